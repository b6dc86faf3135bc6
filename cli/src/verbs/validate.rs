//! `annals validate`: blame checked on planted faults, and the scripted agent that it runs.

use std::io::IsTerminal;
use std::path::Path;

use annals_server::blame::validate::{
    AgentScript, CompetingReport, NEGATIVE_MAX, ValidateOptions, ValidationReport, compare, run_agent,
    validate, validate_competing,
};

use crate::args::{ScriptedAgentArgs, ValidateArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::input;
use crate::output::{CliOutput, plural, print_note};

/// Most bytes of a report.
const REPORT_BYTES_MAX: usize = 16 << 20;

pub(super) fn run(args: &ValidateArgs, out: &mut CliOutput) -> CliResult<()> {
    let earlier = args.check.as_deref().map(read_report).transpose()?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("the path of annals itself is unknown: {error}"), "run annals by its path")
    })?;
    let options = ValidateOptions {
        agent: (program, vec!["scripted-agent".to_owned()]),
        forks: args.k,
        runs: args.runs,
        jobs: args
            .jobs
            .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from),
        seeds: args.seeds,
    };
    let shows = std::io::stderr().is_terminal();
    let each = |name: &str| {
        if shows {
            print_note(format_args!("blamed: {name}"));
        }
    };
    if args.competing {
        let report = validate_competing(&options, &each)?;
        return print_competing(&report, args, out);
    }
    let report = validate(&options, &each)?;
    print_report(&report, out)?;
    out.flush()?;
    if let Some(earlier) = earlier {
        let worse = compare(&report, &earlier);
        if let Some(first) = worse.first() {
            return Err(Failure::damage(
                format!("worse than the report: {}", worse.join("; ")),
                format!("the first: {first}"),
            ));
        }
    }
    if report.passed() { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

fn read_report(path: &Path) -> CliResult<ValidationReport> {
    let bytes = input::read_small(path, REPORT_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("{} is no report of a validation: {error}", path.display());
        Failure::usage(message, "annals validate --json > REPORT")
    })
}

fn print_report(report: &ValidationReport, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        return out.object(report);
    }
    for class in &report.classes {
        let passed = class.hits == class.runs;
        let word = if passed { "[PASS]" } else { "[FAIL]" };
        out.marked_line(passed, word, format_args!(" {} top-1: {:.2}", class.class, class.precision()))?;
        for (planted, top) in &class.missed {
            let top = top.map_or_else(|| "no step".to_owned(), |top| format!("@{top}"));
            out.line(format_args!("  planted at @{planted}, and {top} came first"))?;
        }
    }
    out.line(format_args!("overall top-1 precision: {:.2}", report.overall))?;
    out.line(format_args!("  95% interval: {:.2}..{:.2}", report.interval.low, report.interval.high))?;
    out.line(format_args!(
        "negative control max flip: {:.2} (threshold {NEGATIVE_MAX:.2})",
        report.negative.negative_max
    ))?;
    out.line(format_args!(
        "  forks that crash the agent: {} of {} undefined",
        report.negative.crashed_undefined, report.negative.crashed
    ))?;
    out.line(format_args!(
        "{}, {} of a scripted model",
        plural(report.forks, "fork"),
        plural(report.calls, "call")
    ))
}

fn print_competing(report: &CompetingReport, args: &ValidateArgs, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        out.object(report)?;
    } else {
        for (cause, (right, planted)) in &report.causes {
            let passed = right == planted;
            let word = if passed { "[PASS]" } else { "[FAIL]" };
            out.marked_line(passed, word, format_args!(" {cause}: {right} of {planted}"))?;
        }
        for wrong in &report.wrong {
            out.line(format_args!("  {wrong}"))?;
        }
        out.line(report.summary())?;
        if let Some(limitation) = report.limitation() {
            out.line(format_args!("[LIMITATION] {limitation}"))?;
        }
        out.line(format_args!(
            "{}: {}, {} of a scripted model",
            plural(u64::from(args.seeds), "seed"),
            plural(report.forks, "fork"),
            plural(report.calls, "call")
        ))?;
    }
    if report.passed() { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

/// Runs the scripted agent: for `annals validate` only.
pub(super) fn agent(args: &ScriptedAgentArgs, out: &mut CliOutput) -> CliResult<()> {
    let script: AgentScript = serde_json::from_str(&args.script)
        .map_err(|error| Failure::usage(format!("this is no script: {error}"), "annals validate"))?;
    let base = std::env::var(script.wire.variable()).unwrap_or_default();
    let (text, code) = run_agent(&script, &base).map_err(|error| {
        Failure::new(FailureCode::Usage, format!("the agent failed: {error}"), "annals validate")
    })?;
    out.bytes(text.as_bytes())?;
    match code {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}
