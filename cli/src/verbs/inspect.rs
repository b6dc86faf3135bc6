//! `annals doctor --agent`: which calls of a program a recording is likely to capture. Needs no store, starts
//! nothing.

use std::ffi::OsString;

use annals_server::Program;
use annals_server::inspect::{CaptureLikelihood, DetectedClient, Inspection, ProgramKind, inspect};

use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, count, plural, printable};

pub(super) fn run(command: &[OsString], out: &mut CliOutput) -> CliResult<()> {
    let program = Program { argv: command.to_vec(), directory: None, environment: Vec::new() };
    let found = inspect(&program, &|name| std::env::var(name).ok()).map_err(|error| {
        let message = format!("{} (exit code {} of a recording)", printable(&error.message), error.code);
        Failure::failed(message, "check the command after --")
    })?;
    if out.json {
        out.object(&found)?;
    } else {
        print_inspection(&found, out)?;
    }
    match found.verdict.capture {
        CaptureLikelihood::Unlikely => Err(Failure::Silent(FailureCode::Failed)),
        CaptureLikelihood::Likely | CaptureLikelihood::Unknown => Ok(()),
    }
}

fn print_inspection(found: &Inspection, out: &mut CliOutput) -> CliResult<()> {
    let mut line = |text: String| out.line(printable(&text));
    let kind = match found.kind {
        ProgramKind::Python => "Python",
        ProgramKind::Node => "JavaScript",
        ProgramKind::Shell => "a shell script",
        ProgramKind::Other => "no script",
    };
    line(format!("program: {} ({kind})", found.programs.join(", run by ")))?;
    if let [first, rest @ ..] = found.files.as_slice() {
        let more = if rest.is_empty() {
            String::new()
        } else {
            format!(" and {} that it imports", plural(rest.len() as u64, "file"))
        };
        let bytes = found.files.iter().map(|file| file.bytes).sum();
        line(format!("looked at: {}{more} ({} bytes)", first.file, count(bytes)))?;
    }
    for client in &found.clients {
        line(format!("client: {}", describe_client(client)))?;
    }
    for upstream in &found.upstreams {
        let to = upstream.origin.as_ref().map_or_else(
            || "and cannot be used".to_owned(),
            |origin| format!("and is the upstream: {origin}"),
        );
        line(format!("address: {} is set {to}", upstream.variable))?;
    }
    let keys = |set: bool| {
        let keys: Vec<_> =
            found.keys.iter().filter(|key| key.set == set).map(|key| key.variable.as_str()).collect();
        if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
    };
    line(format!("keys: set: {}; not set: {}", keys(true), keys(false)))?;
    if !found.proxies.is_empty() {
        line(format!(
            "proxy: {} set: upstreams are called through it, the program comes to annals without it",
            found.proxies.join(", ")
        ))?;
    }
    let works = if found.nondet.works { "would work; not covered" } else { "would not work" };
    line(format!(
        "clocks and randomness: --capture-nondet {works}: {}",
        found.nondet.not_covered.join("; ")
    ))?;
    for finding in &found.findings {
        let place = finding.place.as_ref().map_or(String::new(), |place| format!(" {place}:"));
        let text = printable(&format!(":{place} {}", finding.text));
        out.marked_line(!finding.problem, if finding.problem { "problem" } else { "note" }, text)?;
        out.line(printable(&format!("  next: {}", finding.next)))?;
    }
    let verdict = &found.verdict;
    let list = |all: &[String], none: &str| if all.is_empty() { none.to_owned() } else { all.join(", ") };
    let nothing = match verdict.capture {
        CaptureLikelihood::Unknown => "cannot be told",
        _ => "nothing that was seen",
    };
    let (likely, not) = (list(&verdict.likely, nothing), list(&verdict.not, "nothing that was seen"));
    let said = format!(": likely captured: {likely}; not captured: {not}; try: {}", verdict.r#try);
    out.line(
        "files were looked at and nothing was run: a recording that captures no model call says so loudly",
    )?;
    out.marked_line(verdict.capture != CaptureLikelihood::Unlikely, "looks like", printable(&said))
}

fn describe_client(client: &DetectedClient) -> String {
    let what = match (client.variables.as_slice(), client.providers.is_empty()) {
        ([], true) => "goes where the program says".to_owned(),
        ([], false) => format!("reads no address; {}", client.providers.join(", ")),
        (variables, _) => format!("reads {}", variables.join(", ")),
    };
    format!("{} ({}) {what}", client.name, client.place)
}
