//! `annals blame`: which step caused the outcome of a run, by forks of its program.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use annals::{RunReader, retention::parse_duration_ns};
use annals_server::blame::{
    BaseRate, BlameDocument, BlameError, BlameOptions, BlameSettings, BlameState, Blamer, Perturbation, Role,
    StepRow, base_rate, pairs, rows,
};
use annals_server::{Origin, RerunnerOptions, StandardInput, UpstreamGuard, when_interrupted};
use serde_json::{Value, json};

use super::network;
use super::record::upstreams;
use super::replay::program_to_run;
use crate::args::{BlameArgs, GlobalArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::locate;
use crate::output::{CliOutput, bytes, count, plural, print_note, printable};
use crate::rules;
use crate::store_access::{StoreAccess, StoreWait, engine_failure};

/// The exit code of an interrupted command, as shells have it.
const INTERRUPTED: u8 = 130;
/// The budget of a blame in US dollars. Forks ask live models, and a long run has many.
const BUDGET_DEFAULT: f64 = 5.0;
/// The least time limit of a fork, and what the run's own time is multiplied by.
const TIME_LIMIT_MIN: Duration = Duration::from_secs(30);
const TIME_LIMIT_FACTOR: u32 = 10;

pub(super) fn run(global: &GlobalArgs, args: &BlameArgs, out: &mut CliOutput) -> CliResult<()> {
    if args.run.ends_with(".tape") {
        return Err(Failure::usage(
            format!("{} is a tape, and a blame needs the run in a store", args.run),
            format!("annals tape import {}", args.run),
        ));
    }
    if args.show {
        let door = super::open_to_read(global)?;
        let name = door.reader(&args.run)?.info().name.clone();
        let document = door.blame(&name)?.ok_or_else(|| no_blame(&name))?;
        return print_result(&document, out);
    }
    let root = locate::store(global.store.as_deref());
    let wait = StoreWait::from_args(global);
    let door = StoreAccess::open_existing_for_blame(&root, &global.namespace, wait)?.served(&root);
    let reader = door.reader(&args.run);
    if args.drop {
        return drop(door, &args.run, reader.map(|reader| reader.info().name.clone()), out);
    }
    let reader = reader?;
    let name = reader.info().name.clone();
    if args.budget.is_some_and(|budget| budget.is_nan() || budget <= 0.0) {
        return Err(Failure::usage(
            "a budget of 0 pays for no call",
            "--budget 5.00, or --budget inf for no limit",
        ));
    }
    check_program(&door, &reader)?;
    let Some(origin) = door.origin(&reader)? else {
        return Err(Failure::usage(
            format!("no program was recorded as run `{name}`, so none can run again"),
            "blame a run of `annals record`; `annals show` reads this one",
        ));
    };
    let resumed = resumed(&door, args, &name)?;
    let settings = match &resumed {
        Some(document) => document.settings.clone(),
        None => settings(args),
    };
    let options = BlameOptions {
        oracle: door.oracle(&settings.oracle)?,
        perturbation: Perturbation::parse(&settings.perturbation, |run| {
            door.reader(run).map_err(|_| format!("there is no run {run:?}"))
        })
        .map_err(|why| Failure::usage(why, "--with resample"))?,
        more_coalitions: Vec::new(),
        jobs: args.jobs.map_or_else(processors, usize::from),
        settings,
    };
    let budget = options.settings.budget;
    let rerun = rerunner_options(args, &reader, &origin, &options.settings)?;
    let range = resumed.as_ref().map(|document| ranges(&document.settings.steps));
    let range = range.as_deref().or(args.steps.as_deref());
    let blamer = door.blamer(&reader, &origin, rerun, options, range)?;
    if args.estimate {
        if out.json {
            out.object(&json!({ "run": name, "estimate": blamer.estimate() }))?;
            return door.close();
        }
        print_estimate(&blamer, budget);
        return door.close();
    }
    let before = door.disk_bytes()?;
    let document = run_forks(&blamer, resumed, budget)?;
    let grown = door.disk_bytes()?.saturating_sub(before);
    let told = print_result(&document, out);
    print_spent(&document, grown);
    let closed = door.close();
    told.and(closed)
}

/// Drops the blame of a run. `name` is the name of the run that `wanted` leads to. Forks are found by their tag, also if
/// the run itself was dropped by a version that kept them.
fn drop(door: StoreAccess, wanted: &str, name: CliResult<String>, out: &mut CliOutput) -> CliResult<()> {
    let (name, missing) = match name {
        Ok(name) => (name, None),
        Err(failure) => (wanted.to_owned(), Some(failure)),
    };
    let forks = door.drop_blame(&name)?;
    door.close()?;
    match missing {
        Some(failure) if forks == 0 => Err(failure),
        _ => out.line(format_args!("dropped the blame of {name} and {}", plural(forks, "fork"))),
    }
}

/// Refuses runs whose program cannot run again from what is stored.
fn check_program(door: &StoreAccess, reader: &RunReader) -> CliResult<()> {
    let name = &reader.info().name;
    if door.is_ingested(reader)? {
        return Err(Failure::usage(
            format!("run `{name}` was ingested from traces, so no program can run again from it"),
            "blame a run of `annals record`",
        ));
    }
    if let Some(by) = door.redacted_by(name)? {
        return Err(Failure::usage(
            format!("run `{name}` was redacted by profile {} before it came here", printable(&by)),
            "blame the run in the store that it is from",
        ));
    }
    Ok(())
}

/// The unfinished blame to go on with. Without `--resume`, an unfinished blame is not overwritten silently.
fn resumed(door: &StoreAccess, args: &BlameArgs, name: &str) -> CliResult<Option<BlameDocument>> {
    let known = door.blame(name)?;
    if args.resume {
        let document = known.ok_or_else(|| no_blame(name))?;
        if document.state == BlameState::Done {
            let message = format!("the blame of run `{name}` is done");
            return Err(Failure::usage(message, format!("annals blame {name} --show")));
        }
        return Ok(Some(BlameDocument {
            settings: BlameSettings {
                budget: args.budget.map_or(document.settings.budget, limit),
                ..document.settings
            },
            ..document
        }));
    }
    match known {
        Some(document) if document.state != BlameState::Done && !args.estimate => Err(Failure::failed(
            format!("run `{name}` has an unfinished blame with {}", plural(document.spent.forks, "fork")),
            format!("annals blame {name} --resume finishes it; --drop removes it"),
        )),
        _ => Ok(None),
    }
}

fn no_blame(name: &str) -> Failure {
    Failure::missing(format!("run `{name}` has no blame"), format!("annals blame {name}"))
}

/// A budget in US dollars; `None` for no limit.
fn limit(budget: f64) -> Option<f64> {
    Some(budget).filter(|budget| budget.is_finite())
}

fn settings(args: &BlameArgs) -> BlameSettings {
    let perturbation = args.perturb.as_ref().map_or_else(|| args.with.clone(), |cmd| format!("cmd:{cmd}"));
    BlameSettings {
        forks: args.k,
        base: args.base,
        oracle: args.oracle.clone(),
        perturbation,
        steps: Vec::new(),
        stops_early: !args.no_early_stop,
        coalitions: args.coalitions,
        orders: args.orders,
        seed: args.seed,
        budget: limit(args.budget.unwrap_or(BUDGET_DEFAULT)),
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        scratch: args.scratch,
    }
}

/// The range of a resumed blame's steps.
fn ranges(steps: &[u32]) -> String {
    match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => format!("{first}..{last}"),
        _ => "..".to_owned(),
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn rerunner_options(
    args: &BlameArgs,
    reader: &RunReader,
    origin: &Origin,
    settings: &BlameSettings,
) -> CliResult<RerunnerOptions> {
    let name = &reader.info().name;
    let command: Vec<_> = match args.command.is_empty() {
        true => settings.command.iter().map(Into::into).collect(),
        false => args.command.clone(),
    };
    let program = program_to_run(name, origin, &command)?;
    if program.directory.is_none() && command.is_empty() {
        return Err(Failure::usage(
            format!("the program ran in {}, which is gone", origin.directory),
            format!("annals blame {name} -- CMD runs another command in this directory"),
        ));
    }
    let stdin = origin.input(reader).map_err(engine_failure)?;
    let time_limit = match &args.time_limit {
        Some(text) => parse_duration_ns(text).map(Duration::from_nanos).ok_or_else(|| {
            Failure::usage(format!("--time-limit takes a time such as 30s, not {text:?}"), "--time-limit 30s")
        })?,
        None => {
            let info = reader.info();
            let ran = info.ended_ns.unwrap_or(info.started_ns).saturating_sub(info.started_ns);
            Duration::from_nanos(ran).saturating_mul(TIME_LIMIT_FACTOR).max(TIME_LIMIT_MIN)
        }
    };
    Ok(RerunnerOptions {
        program,
        // An unattended program reads what was recorded, or nothing.
        stdin: stdin.unwrap_or_else(|| StandardInput::Given(Vec::new().into())),
        time_limit,
        upstreams: upstreams(&args.upstream),
        guard: UpstreamGuard { allowed: args.allow_host.iter().map(|host| host_of(host)).collect() },
        rules: rules::read_or_recorded(args.rules.as_deref(), name, origin)?,
        network: network::policy(&args.network, &args.allow_host)?,
    })
}

/// A host without its port.
fn host_of(text: &str) -> String {
    text.rsplit_once(':').map_or(text, |(host, _)| host).trim_matches(['[', ']']).to_owned()
}

/// An amount of US dollars.
fn dollars_text(dollars: f64) -> String {
    match dollars {
        dollars if dollars >= 0.01 => format!("${dollars:.2}"),
        dollars if dollars >= 0.0001 => format!("${dollars:.4}"),
        _ => "under $0.0001".to_owned(),
    }
}

/// The part of a line that counts questions to a judge, if there are any.
fn questions(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(", {} to the judge", plural(count, "question")),
    }
}

fn print_estimate(blamer: &Blamer, budget: Option<f64>) {
    let most = blamer.estimate();
    let money = match (most.unpriced, most.calls + most.questions) {
        (0, _) if most.dollars < 0.0001 => dollars_text(most.dollars),
        (0, _) => format!("at most {}", dollars_text(most.dollars)),
        (unpriced, calls) if unpriced == calls => "price unknown".to_owned(),
        (unpriced, _) => {
            format!(
                "at most {} and {} without a known price",
                dollars_text(most.dollars),
                plural(unpriced, "call")
            )
        }
    };
    print_note(
        "tools of the program run for real in each fork; before a fork's step nothing reaches the network",
    );
    print_note(format_args!(
        "plan: {}, at most {} to models{}, {money}",
        plural(most.forks, "fork"),
        plural(most.calls, "call"),
        questions(most.questions),
    ));
    if blamer.pair_forks_max() > 0 {
        print_note(format_args!(
            "coalitions of pairs that act together come on top: at most {}",
            plural(blamer.pair_forks_max(), "fork")
        ));
    }
    match budget {
        Some(budget) if most.dollars > budget => {
            print_note(format_args!("the budget of {} may end it earlier", dollars_text(budget)));
        }
        Some(_) if most.unpriced > 0 => print_note("the budget cannot count calls without a known price"),
        _ => {}
    }
}

fn run_forks(
    blamer: &Blamer,
    resumed: Option<BlameDocument>,
    budget: Option<f64>,
) -> CliResult<BlameDocument> {
    print_estimate(blamer, budget);
    let interrupter = blamer.interrupter();
    when_interrupted(move |_| interrupter.store(true, Ordering::SeqCst));
    let shown = AtomicU64::new(0);
    let progress = move |done: u64, planned: u64| {
        // A line for each tenth, so that a log stays short.
        let tenth = (done * 10).checked_div(planned).unwrap_or(0);
        if tenth > shown.fetch_max(tenth, Ordering::Relaxed) && planned >= 50 {
            print_note(format_args!("{done} forks done of {planned} planned so far"));
        }
    };
    Ok(blamer.run(resumed, &progress)?)
}

fn print_spent(document: &BlameDocument, grown: u64) {
    let spent = &document.spent;
    let money = match (spent.calls + spent.questions, spent.dollars) {
        (0, _) => String::new(),
        (_, dollars) if dollars > 0.0 => format!(", {}", dollars_text(dollars)),
        _ => ", price unknown".to_owned(),
    };
    let each = grown.checked_div(spent.forks).unwrap_or(0);
    print_note(format_args!(
        "{}, {} to models{}{money}; the store grew by {} a fork: annals runs --tag annals.blame={}",
        plural(spent.forks, "fork"),
        plural(spent.calls, "call"),
        questions(spent.questions),
        bytes(each),
        document.run,
    ));
}

/// Prints the rows; an unfinished or doubtful blame also fails.
fn print_result(document: &BlameDocument, out: &mut CliOutput) -> CliResult<()> {
    let (ranked, base) = (rows(document), base_rate(document));
    if out.json {
        out.object(&as_json(document, &ranked, &base))?;
    } else {
        print_table(document, &ranked, &base, out)?;
    }
    out.flush()?;
    let undetermined = ranked
        .iter()
        .find_map(|row| row.undefined_reasons.iter().find(|(why, _)| why.starts_with("not deterministic")));
    match document.state {
        BlameState::Done => {}
        BlameState::Interrupted => {
            print_note(format_args!("INTERRUPTED: annals blame {} --resume finishes it", document.run));
            return Err(Failure::Exit(INTERRUPTED));
        }
        BlameState::OutOfBudget => {
            return Err(Failure::failed(
                format!("the budget ended the blame of `{}` before all forks were done", document.run),
                format!("annals blame {} --resume --budget DOLLARS goes on", document.run),
            ));
        }
        BlameState::Running => {
            return Err(Failure::failed(
                format!(
                    "the blame of `{}` is not finished: it is running, or its process was killed",
                    document.run
                ),
                format!("annals blame {} --resume finishes it", document.run),
            ));
        }
    }
    if !ranked.is_empty() && ranked.iter().all(|row| row.skipped.is_some()) {
        return Err(Failure::failed(
            format!("no step of `{}` could be perturbed: the notes say why", document.run),
            "use another --with, or --perturb",
        ));
    }
    if let Some((why, _)) = undetermined {
        return Err(Failure::damage(
            why,
            "the program does not always repeat its recording: --capture-nondet at the recording may help",
        ));
    }
    Ok(())
}

fn print_table(
    document: &BlameDocument,
    ranked: &[StepRow],
    base: &BaseRate,
    out: &mut CliOutput,
) -> CliResult<()> {
    let coalitions = ranked.iter().any(|row| row.role.is_some());
    let orders = ranked.iter().any(|row| row.shapley.is_some());
    let mut headers = vec![">STEP", ">FLIPS", ">RATE", "95%", "LABEL", ">Q"];
    if coalitions {
        headers.push("ROLE");
    }
    if orders {
        headers.push("SHAPLEY");
    }
    headers.push("NOTE");
    let cells = |row: &StepRow| {
        let mut cells = vec![
            format!("@{}", row.step),
            format!("{}/{}", row.flips, row.valid),
            if row.valid == 0 { "?".to_owned() } else { format!("{:.2}", row.flip_rate) },
            format!("{:.2}..{:.2}", row.interval.low, row.interval.high),
            if row.trustworthy { row.label.to_owned() } else { String::new() },
            format!("{:.3}", row.q_value),
        ];
        if coalitions {
            cells.push(row.role.map_or_else(|| "?".to_owned(), role_name));
        }
        if orders {
            cells.push(row.shapley.map_or_else(String::new, |of| {
                format!("{:.2} ({:.2}..{:.2})", of.value, of.interval.low, of.interval.high)
            }));
        }
        cells.push(note(row));
        cells
    };
    out.table(&headers, ranked.iter().map(cells).collect())?;
    for pair in pairs(document) {
        let [first, second] = pair.steps;
        out.line(match pair.kind {
            annals_server::blame::PairKind::Conjunction => {
                format!("@{first} and @{second}: the failure needs both; a fix of either ends it")
            }
            annals_server::blame::PairKind::OverDetermined => {
                format!("@{first} and @{second}: either alone keeps the failure; only a fix of both ends it")
            }
        })?;
    }
    let flaky = if base.flips > 0 { ": the program flips by itself" } else { "" };
    out.line(format_args!(
        "without a perturbation: {} of {} re-runs flip{flaky}; tests against a base rate of {:.2}",
        base.flips, base.valid, base.used
    ))
}

fn role_name(role: Role) -> String {
    match role {
        Role::Root => "root",
        Role::PartOfConjunction => "needed with another",
        Role::OverDetermined => "enough by itself",
        Role::Echo => "echo",
        Role::None => "none",
    }
    .to_owned()
}

fn note(row: &StepRow) -> String {
    let mut notes = Vec::new();
    if let Some(why) = &row.skipped {
        notes.push(format!("not perturbed: {why}"));
    } else if !row.trustworthy {
        notes.push(format!("CANNOT BE TRUSTED: {} undefined", plural(u64::from(row.undefined), "fork")));
    } else if row.undefined > 0 {
        notes.push(format!("{} undefined", count(u64::from(row.undefined))));
    }
    if let Some((why, _)) = row.undefined_reasons.first() {
        notes.push(why.clone());
    }
    if row.stopped_early {
        notes.push("decided early (97.5% interval)".to_owned());
    }
    if row.skipped.is_none() && row.unchanged > 0 && row.changed == 0 {
        notes.push("its answer never changed".to_owned());
    }
    notes.join("; ")
}

fn as_json(document: &BlameDocument, ranked: &[StepRow], base: &BaseRate) -> Value {
    json!({
        "run": document.run,
        "state": document.state,
        "oracle": document.settings.oracle,
        "perturbation": document.settings.perturbation,
        "forks_max": document.settings.forks,
        "base": base,
        "steps": ranked,
        "pairs": pairs(document),
        "estimate": document.estimate,
        "spent": document.spent,
        "forks": document,
    })
}

impl From<BlameError> for Failure {
    fn from(error: BlameError) -> Self {
        match error {
            BlameError::Unusable { message, hint } => Self::usage(message, hint),
            BlameError::Nondeterministic { message, hint } => Self::new(FailureCode::Damage, message, hint),
            BlameError::Lost(why) => {
                let message =
                    format!("a fork could not be stored: {}", crate::supervision::store_failure_reason(&why));
                Self::failed(message, "what is done is kept: annals blame RUN --resume goes on")
            }
            BlameError::Session(error) => error.into(),
            BlameError::Store(error) => engine_failure(error),
        }
    }
}
