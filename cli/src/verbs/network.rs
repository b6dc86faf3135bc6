//! Reports of connections that bypassed annals, and the options for them.

use annals_server::{Connection, HostPattern, NetworkPolicy, NetworkScope, TrafficReport, UnrecordedTraffic};

use crate::args::{NetworkArgs, NetworkScopeArg};
use crate::failure::{CliResult, Failure};
use crate::output::{plural, print_note, printable};

/// Parses each `HOST[:PORT]` into a pattern.
pub(super) fn patterns(option: &str, texts: &[String]) -> CliResult<Vec<HostPattern>> {
    let of = |text: &String| {
        HostPattern::parse(text).ok_or_else(|| {
            let hint =
                format!("{option} takes a name or an address: api.example.org, 127.0.0.1:8000, [::1]:8000");
            Failure::usage(format!("{text:?} is not HOST[:PORT]"), hint)
        })
    };
    texts.iter().map(of).collect()
}

/// Returns what a program may reach while a recording answers its calls.
pub(super) fn policy(args: &NetworkArgs, allowed: &[String]) -> CliResult<NetworkPolicy> {
    let scope = match args.network {
        NetworkScopeArg::None => NetworkScope::None,
        NetworkScopeArg::Loopback => NetworkScope::Loopback,
        NetworkScopeArg::All => NetworkScope::All,
    };
    let allowed = patterns("--allow-host", allowed)?;
    let expected = patterns("--refuse-quietly", &args.refuse_quietly)?;
    Ok(NetworkPolicy { scope, allowed, expected, notice: Some(print_refusal) })
}

/// Prints the first refusal of a destination at once, because the program's client may retry for a long time.
fn print_refusal(process: &str, destination: &str) {
    print_note(format_args!("refusing {} to {}", printable(process), printable(destination)));
}

/// Lines about the connections that a recording missed. The second value: model calls may be missing.
pub(super) fn recording_lines(traffic: &TrafficReport) -> (Vec<String>, bool) {
    let mut lines: Vec<_> = traffic.missed().map(missed_line).collect();
    let is_missed = !lines.is_empty();
    lines.extend(other_traffic_line(traffic.others()));
    lines.extend(traffic.uncovered.iter().map(|program| {
        format!("SAMPLED ONLY: {program}: its connections are seen only if they last about 40 ms")
    }));
    lines.extend(
        traffic
            .weaker_reason
            .iter()
            .map(|why| format!("NOT WATCHED: {why}: what did not go through annals is not known")),
    );
    (lines, is_missed)
}

/// Lines about the connections that a replayed program tried. The second value: a replay forbids some of
/// them.
pub(super) fn replay_lines(traffic: &TrafficReport) -> (Vec<String>, bool) {
    let mut lines: Vec<_> = traffic.refused().map(refused_line).collect();
    lines.extend(traffic.missed().map(|of| {
        let (many, to) = (connection_count(of), of.destination());
        format!("NOT REFUSED: {many} of {} reached {to}: a replay must not reach the network", of.process)
    }));
    let is_wrong = !lines.is_empty();
    lines.extend(other_traffic_line(traffic.others().filter(|of| !of.refused)));
    lines.extend(connection_list("refused as expected", traffic.others().filter(|of| of.refused)));
    if let Some(why) = &traffic.weaker_reason {
        lines.push(format!("GUARDED LESS: {why}"));
    }
    lines.extend(traffic.uncovered.iter().map(|program| format!("NOT GUARDED: {program}")));
    (lines, is_wrong)
}

/// Lines about the connections of a program that continued live: those refused before the divergence, and
/// those unrecorded after it. The second value: there are some.
pub(super) fn live_lines(traffic: &TrafficReport) -> (Vec<String>, bool) {
    let refusals: Vec<_> = traffic.refused().map(refused_line).collect();
    let mut lines = refusals;
    lines.extend(traffic.missed().map(missed_line));
    let is_wrong = !lines.is_empty();
    lines.extend(other_traffic_line(traffic.others().filter(|of| !of.refused)));
    lines.extend(connection_list("refused as expected", traffic.others().filter(|of| of.refused)));
    lines.extend(traffic.uncovered.iter().map(|program| {
        format!("NOT GUARDED: {program}: it could reach the network while the recording answered")
    }));
    lines.extend(traffic.weaker_reason.iter().map(|why| format!("GUARDED LESS: {why}")));
    (lines, is_wrong)
}

/// A line of a replay's report: the connections that the recording lacks.
pub(super) fn incomplete_line(unrecorded: &UnrecordedTraffic) -> Option<String> {
    let of = |of: &Connection| format!("{} ({})", of.destination(), of.count);
    let all: Vec<_> = unrecorded.missed().map(of).collect();
    (!all.is_empty()).then(|| {
        format!("the recording is incomplete: connections that did not go through annals: {}", all.join(", "))
    })
}

/// Part of the summary line: the number of connections that the recording lacks.
pub(super) fn unrecorded_aside(unrecorded: &UnrecordedTraffic) -> Option<String> {
    let count: u64 = unrecorded.missed().map(|of| of.count).sum();
    (count > 0).then(|| format!("{} not recorded", plural(count, "connection")))
}

/// Lines about a run's unrecorded connections, as stored with the run.
pub(super) fn stored_lines(unrecorded: &UnrecordedTraffic) -> Vec<String> {
    let mut lines: Vec<_> = unrecorded.missed().map(missed_line).collect();
    lines.extend(other_traffic_line(
        unrecorded.connections.iter().filter(|of| of.other.is_some() || of.expected),
    ));
    lines.extend(unrecorded.sampled_only.iter().map(|program| format!("SAMPLED ONLY: {program}")));
    lines.extend(unrecorded.not_watched.iter().map(|why| format!("NOT WATCHED: {why}")));
    lines
}

fn connection_count(of: &Connection) -> String {
    plural(of.count, "connection")
}

fn missed_line(of: &Connection) -> String {
    let (many, to, process) = (connection_count(of), of.destination(), &of.process);
    let (what, advice) = match (&of.provider, &of.advice) {
        (Some(provider), Some(advice)) => (format!(" ({provider})"), format!(": {advice}")),
        (Some(provider), None) => (format!(" ({provider})"), String::new()),
        (None, _) => {
            let advice = format!(
                ": if it carries model calls, have the program read its base address from a variable (--env NAME=/PATH); if not, --expect-host {to}"
            );
            (String::new(), advice)
        }
    };
    let calls = if of.port == 0 { "" } else { ", with any number of calls," };
    format!("NOT RECORDED: {many} of {process} to {to}{what}{calls} did not go through annals{advice}")
}

fn refused_line(of: &Connection) -> String {
    let (many, to, process) = (connection_count(of), of.destination(), &of.process);
    format!(
        "REFUSED: {many} of {process} to {to}: a replay has no network (--allow-host {to} permits it, --refuse-quietly {to} accepts the refusal)"
    )
}

/// One line about the traffic that carries no model calls.
fn other_traffic_line<'a>(connections: impl Iterator<Item = &'a Connection>) -> Option<String> {
    connection_list("other traffic, not recorded", connections)
}

fn connection_list<'a>(what: &str, connections: impl Iterator<Item = &'a Connection>) -> Option<String> {
    let of = |of: &Connection| {
        let kind = of.other.as_deref().map_or_else(String::new, |kind| format!(" ({kind})"));
        format!("{} x {}{kind}", of.count, of.destination())
    };
    let all: Vec<_> = connections.map(of).collect();
    (!all.is_empty()).then(|| format!("{what}: {}", all.join(", ")))
}
