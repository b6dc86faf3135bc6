//! `annals record`: runs a program behind the proxy. Standard output is the program's; annals prints to
//! standard error.

use std::path::Path;

use annals::{RunSpec, retention::parse_duration_ns};
use annals_server::{
    CONVERSATION_TAG, CacheUse, CaptureReport, Destination, HostPattern, MEMORY_COMMITS_TAG, MEMORY_FOR_TAG,
    MEMORY_OFF, MEMORY_ON, MEMORY_TAG, Mounts, NetworkPolicy, PRINCIPAL_TAG, Program, RecordOptions,
    RecordingSummary, TENANT_TAG, TrafficReport, UpstreamGuard, Variable,
};
use annals_text::visible::is_hidden;

use crate::args::{CacheArg, GlobalArgs, IdentityArgs, LiveArgs, NewRunArgs, RecordArgs};
use crate::failure::{CliResult, Failure, before_start};
use crate::locate;
use crate::output::{count, dollars, plural, print_note, printable};
use crate::rules;
use crate::store_access::SharedRecorder;
use crate::supervision::{self, RecordingEnd};
use crate::verbs::{network, retain};

pub(super) fn run(global: &GlobalArgs, args: &RecordArgs) -> CliResult<()> {
    let tags = tags(&args.run)?;
    let recording = RecordOptions {
        program: Program { argv: args.command.clone(), directory: None, environment: Vec::new() },
        supervision: supervision::for_recording(args).map_err(before_start)?,
        mounts: mounts(&args.run)?,
        guard: upstream_guard(&args.run.live),
        cache: cache_use(&args.run.live)?,
        keep: args.keep_env.clone(),
        capture_nondet: args.capture_nondet,
        secrets: secret_names(&args.run)?,
        rules: rules::read(args.run.rules.as_deref()).map_err(before_start)?,
        network: NetworkPolicy {
            expected: network::patterns("--expect-host", &args.expect_host)?,
            ..NetworkPolicy::default()
        },
    };
    let store = locate::store(global.store.as_deref());
    let policy = retain::sampling_policy(args.run.retain.as_deref()).map_err(before_start)?;
    let door = SharedRecorder::open(&store, &global.namespace, policy).map_err(before_start)?;
    let name = args.run.run.clone().unwrap_or_else(|| default_name(args));
    let spec = |name: &str| run_spec(name, &tags);
    let record = |into: &Destination, name: &str| annals_server::record(into, spec(name), &recording);
    let recorded = door.record_as(&name, args.run.run.is_none(), record);
    let mut is_missed = false;
    if let Ok((name, report)) = &recorded {
        is_missed = print_unrecorded(&report.traffic);
        print_recorded(name, &report.recorded, report.captured.as_ref(), report.seconds, "annals replay");
    }
    let closed = door.close();
    let (_, report) = recorded?;
    let end = RecordingEnd {
        recorded: &report.recorded,
        code: Some(report.code),
        may_be_empty: args.run.allow_empty,
        waits: !recording.supervision.linger.is_zero(),
        is_missed,
    };
    end_result(&end, closed)
}

/// Returns the result of the command: first that of the recording, then that of closing the store.
pub(super) fn end_result(end: &RecordingEnd<'_>, closed: CliResult<u64>) -> CliResult<()> {
    // After a failed write, closing fails for the same reason.
    if end.recorded.failure.is_none() {
        let place = "the recording is whole, but its store could not be closed";
        print_sampled(closed.map_err(|failure| failure.with_place(place).with_end(&end.program_end()))?);
    }
    end.result()
}

/// Prints the connections that bypassed annals. Returns whether model calls may be missing.
pub(super) fn print_unrecorded(traffic: &TrafficReport) -> bool {
    let (lines, is_missed) = network::recording_lines(traffic);
    lines.iter().for_each(|line| print_note(printable(line)));
    is_missed
}

/// Prints how many runs the sampling dropped.
pub(super) fn print_sampled(runs: u64) {
    if runs > 0 {
        let (runs, were) = (plural(runs, "run"), if runs == 1 { "was" } else { "were" });
        print_note(format_args!(
            "{runs} {were} left out by the policy's sampling: dropped, and counted by `annals stats`"
        ));
    }
}

/// Returns the names of the secret variables, without duplicates.
pub(super) fn secret_names(args: &NewRunArgs) -> CliResult<Vec<String>> {
    let mut names = args.secret.clone();
    names.sort_unstable();
    names.dedup();
    // An invalid name may be the secret itself, so the error does not repeat it.
    let is_name = |name: &String| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match names.iter().all(is_name) {
        true => Ok(names),
        false => Err(Failure::usage(
            "--secret takes the name of a variable; the given text is not a name",
            "put the value into a variable: other users can see command lines",
        )),
    }
}

pub(super) fn tags(args: &NewRunArgs) -> CliResult<Vec<(String, String)>> {
    let mut tags: Vec<_> =
        args.tag.iter().map(|tag| split_pair(tag, "--tag KEY=VALUE")).collect::<CliResult<_>>()?;
    tags.extend(identity_tags(&args.whose));
    if let Some(lasts) = &args.memory_for {
        if parse_duration_ns(lasts).is_none() {
            let message = format!("--memory-for {lasts:?} is not a time");
            return Err(Failure::usage(
                message,
                "give an integer and s, min, h, d, w or y, for example 180d",
            ));
        }
        tags.push((MEMORY_FOR_TAG.to_owned(), lasts.clone()));
    }
    if args.with_commits {
        tags.push((MEMORY_COMMITS_TAG.to_owned(), MEMORY_ON.to_owned()));
    }
    if args.no_memory {
        tags.push((MEMORY_TAG.to_owned(), MEMORY_OFF.to_owned()));
    }
    if args.live.remember {
        tags.push((MEMORY_TAG.to_owned(), MEMORY_ON.to_owned()));
    }
    Ok(tags)
}

/// The tags of a run that say whose memory it goes into.
pub(super) fn identity_tags(whose: &IdentityArgs) -> Vec<(String, String)> {
    let IdentityArgs { tenant, principal, conversation } = whose;
    let parts = [(TENANT_TAG, tenant), (PRINCIPAL_TAG, principal), (CONVERSATION_TAG, conversation)];
    let named = parts.into_iter().filter_map(|(key, part)| Some((key.to_owned(), part.clone()?)));
    named.collect()
}

pub(super) fn run_spec(name: &str, tags: &[(String, String)]) -> RunSpec {
    tags.iter().fold(RunSpec::new(name), |spec, (key, value)| spec.tag(key, value))
}

pub(super) fn split_pair(text: &str, form: &str) -> CliResult<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => {
            Err(Failure::usage(format!("{text:?} is not of the form {form}"), "separate key and value by ="))
        }
    }
}

pub(super) fn mounts(args: &NewRunArgs) -> CliResult<Mounts> {
    let upstreams = upstreams(&args.live.upstream);
    let mut variables = Variable::known();
    for text in &args.env {
        let (name, path) = split_pair(text, "--env NAME=/PATH")?;
        if path.is_empty() {
            variables.retain(|variable| variable.name != name);
            continue;
        }
        if !path.starts_with('/') {
            let hint = "a path starts with /, for example /v1";
            return Err(Failure::usage(format!("{path:?} is not a path"), hint));
        }
        variables.retain(|variable| variable.name != name);
        variables.push(Variable::custom(&name, &path));
    }
    // No variable would point to such an upstream: the calls would go to the provider's own address.
    for provider in upstreams.iter().filter_map(|(provider, _)| provider.as_ref()) {
        if !variables.iter().any(|variable| variable.provider == *provider) {
            let mut known: Vec<_> = variables.iter().map(|variable| variable.provider.as_str()).collect();
            known.dedup();
            return Err(Failure::usage(
                format!("--upstream names provider {provider:?}, which has no known variable"),
                format!(
                    "known providers: {}; --env NAME=/PATH adds a variable, and its provider is NAME in lower case",
                    known.join(", ")
                ),
            ));
        }
    }
    let set = |name: &str| std::env::var(name).ok();
    Mounts::new(&variables, &upstreams, set).map_err(|error| annals_server::SessionError::from(error).into())
}

/// Splits each `[PROVIDER=]URL` into a pair.
pub(super) fn upstreams(texts: &[String]) -> Vec<(Option<String>, String)> {
    texts.iter().map(|text| Mounts::parse_upstream(text)).collect()
}

pub(super) fn upstream_guard(live: &LiveArgs) -> UpstreamGuard {
    // The guard compares host names without ports.
    let hosts = live
        .allow_host
        .iter()
        .map(|text| HostPattern::parse(text).map_or_else(|| text.clone(), |of| of.host));
    UpstreamGuard { allowed: hosts.collect() }
}

pub(super) fn cache_use(live: &LiveArgs) -> CliResult<CacheUse> {
    let (read, write) = match live.cache {
        CacheArg::Off => (false, false),
        CacheArg::Read => (true, false),
        CacheArg::Write => (false, true),
        CacheArg::Both => (true, true),
    };
    let lasting = |text: &String| {
        let refused = |message: String| {
            let hint = "--cache-for 7d caches this run's answers for seven days, with --cache write or both";
            Failure::usage(message, hint)
        };
        match parse_duration_ns(text) {
            Some(ns) if write => Ok(ns),
            Some(_) => {
                Err(refused("--cache-for limits cached answers; it needs --cache write or both".to_owned()))
            }
            None => Err(refused(format!("--cache-for takes a time such as 7d, not {text:?}"))),
        }
    };
    if !read && !live.reroll.is_empty() {
        return Err(Failure::usage(
            "--reroll calls the upstream although the cache has an answer; no cache is read",
            "--cache read or both reads it",
        ));
    }
    let keep_ns = live.cache_for.as_ref().map(lasting).transpose()?;
    Ok(CacheUse { read, write, reroll: live.reroll.clone(), keep_ns })
}

/// Parts of the summary line: the cost of the recording, and what the cache saved.
fn cost_asides(recorded: &RecordingSummary) -> Vec<String> {
    let mut asides = Vec::from_iter(dollars(&recorded.cost));
    if recorded.cached > 0 {
        let calls = plural(recorded.cached, "answer");
        let saved = match dollars(&recorded.saved) {
            Some(saved) if recorded.saved.priced > 0 => format!(", {saved} saved"),
            _ => String::new(),
        };
        asides.push(format!("{calls} of earlier runs{saved}"));
    }
    asides
}

/// A line that says why no memory of the run was stored, if one was expected.
pub(super) fn unremembered_line(recorded: &RecordingSummary) -> Option<String> {
    if let Some(why) = &recorded.memory_failure {
        return Some(format!("NOT REMEMBERED, the recording is whole: {}", printable(why)));
    }
    let why = recorded.memory_skipped.as_ref()?;
    Some(format!("not remembered: {}", printable(why)))
}

/// Part of the summary line: the number of secrets that were removed.
fn removed_aside(recorded: &RecordingSummary) -> Option<String> {
    let secrets = recorded.secrets_removed;
    (secrets > 0).then(|| format!("{} removed", plural(secrets, "secret")))
}

/// Parts of the summary line: the numbers of command arguments that are not stored as they were.
fn argument_asides(recorded: &RecordingSummary) -> impl Iterator<Item = String> {
    let (masked, altered) = (recorded.masked_arguments, recorded.altered_arguments);
    let masked = (masked > 0).then(|| format!("{} masked", plural(masked, "argument")));
    let altered = (altered > 0)
        .then(|| format!("{} not UTF-8: name the command to replay it", plural(altered, "argument")));
    masked.into_iter().chain(altered)
}

/// The end of the summary line of a run that went on live.
pub(super) fn asides_text(recorded: &RecordingSummary) -> String {
    let asides = cost_asides(recorded).into_iter().chain(removed_aside(recorded));
    asides.chain(argument_asides(recorded)).map(|aside| format!(", {aside}")).collect()
}

/// The default name of a run: the command without its directory, and the time.
fn default_name(args: &RecordArgs) -> String {
    // For `python agent.py` the script names the run.
    let script =
        |text: &str| [".py", ".js", ".mjs", ".ts", ".sh", ".rb"].iter().any(|end| text.ends_with(end));
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let named = words.iter().find(|word| script(word)).or(words.first());
    let stem = named.and_then(|word| Path::new(word.as_ref()).file_stem()).unwrap_or_default();
    let stem: String = stem.to_string_lossy().chars().filter(|c| !is_hidden(*c)).take(64).collect();
    format!("{stem}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"))
}

/// The line about requests that the proxy refused, if there were any.
pub(super) fn refused_line(recorded: &RecordingSummary) -> Option<String> {
    (recorded.refused > 0).then(|| {
        let requests = plural(recorded.refused, "request");
        format!(
            "NOT RECORDED: {requests} that annals refused: without the secret of the recording's address (a redirect or a path made by hand, or another program), or not readable as HTTP"
        )
    })
}

pub(super) fn print_recorded(
    name: &str,
    recorded: &RecordingSummary,
    captured: Option<&CaptureReport>,
    seconds: f64,
    next: &str,
) {
    let line = |text: String| print_note(text);
    unremembered_line(recorded).map(line);
    for missed in captured.iter().flat_map(|captured| &captured.missed) {
        line(format!("NOT CAPTURED: {}", printable(missed)));
    }
    refused_line(recorded).map(line);
    let mut asides = vec![format!("{seconds:.1} s")];
    if let Some(captured) = captured {
        asides.push(format!("{} of {}", plural(captured.draws, "draw"), plural(captured.lanes, "thread")));
    }
    if recorded.calls == 0 && recorded.requests > 0 {
        asides.push("none of them is known as a model call".to_owned());
    }
    asides.extend(cost_asides(recorded));
    if recorded.broken > 0 {
        asides.push(format!("{} without a whole answer", count(recorded.broken)));
    }
    asides.extend(removed_aside(recorded));
    asides.extend(argument_asides(recorded));
    let asides = asides.join(", ");
    let requests = plural(recorded.requests, "request");
    let tools =
        if recorded.tools > 0 { format!(", {}", plural(recorded.tools, "tool")) } else { String::new() };
    line(format!("recorded {requests}{tools} into {name} ({asides}): {next}"));
}
