//! `annals check`: verifies stored runs, and re-runs their programs to detect drift. For a nightly job over a
//! store, and for a folder of tapes as a regression suite.
//!
//! Each run is read and every byte checked. A tape is first imported into a temporary store. With programs,
//! each one then runs again by `annals replay` as a child process; the program's own output stays out of the
//! report. A bad run does not stop the check of the others. A folder may say which fingerprints its tapes must have
//! ([`tape_sums`]).

mod tape_sums;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::RunReader;
use clap::ValueEnum;
use serde_json::json;

use self::tape_sums::TapeSums;
use super::network;
use super::tape::TapeStore;

use crate::args::{DriftArgs, GlobalArgs};
use crate::atomic_file::{self, FileAccess};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::input;
use crate::junit::{self, JunitCase, JunitProblem};
use crate::output::{CliOutput, plural, printable};
use crate::store_access::StoreAccess;
use crate::{locate, rules};

/// Default number of runs in a sample.
const SAMPLE_DEFAULT: u64 = 100;
/// Most lines of a replay's report that are kept.
const LINES_MAX: usize = 40;

/// The outcome of checking one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckVerdict {
    Ok,
    /// The program's behaviour differs from the recording.
    Drift,
    /// The stored bytes differ from the recorded ones, or a tape is not the one that its folder's sums list.
    Damaged,
    /// The run could not be checked.
    Failed,
}

impl CheckVerdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Drift => "drift",
            Self::Damaged => "damaged",
            Self::Failed => "failed",
        }
    }
}

/// A run that was checked.
struct CheckedTarget {
    name: String,
    verdict: CheckVerdict,
    frames: u64,
    /// The problem; for a good run, the report of its replay.
    text: String,
    seconds: f64,
    /// Of a tape that could be read.
    fingerprint: Option<String>,
}

/// A run or tape to check.
enum CheckTarget {
    Run(String),
    Tape(PathBuf, TapeListing),
    /// A tape that its folder's sums list, and that is not there.
    MissingTape(PathBuf),
}

/// What the sums of its folder say of a tape.
enum TapeListing {
    /// There are no sums.
    NoSums,
    Unlisted,
    Fingerprint(String),
}

pub(super) fn run(global: &GlobalArgs, args: &DriftArgs, out: &mut CliOutput) -> CliResult<()> {
    if args.check_output && !args.programs && args.command.is_empty() {
        return Err(Failure::usage(
            "--check-output compares the output of programs, but no program is to run",
            "add --programs to run the recorded ones",
        ));
    }
    if args.write_sums
        && let Some(named) = args.targets.iter().find(|named| !Path::new(named).is_dir())
    {
        return Err(Failure::usage(
            format!("--write-sums writes the sums of folders, and {named} is no folder"),
            "annals check DIR --write-sums",
        ));
    }
    // Invalid options are reported once, and not for every run.
    rules::matcher(&rules::read(args.rules.file.as_deref())?, &args.rules)?;
    network::policy(&args.network, &args.allow_host)?;
    let given = &args.rules;
    let for_programs = given.file.is_some()
        || !args.network.refuse_quietly.is_empty()
        || [&given.rule, &given.ignore, &given.matcher, &args.allow_host].iter().any(|all| !all.is_empty());
    if for_programs && !args.programs && args.command.is_empty() {
        return Err(Failure::usage(
            "rules and hosts are for programs that run again, but no program is to run",
            "add --programs to run the recorded ones",
        ));
    }
    let (targets, seed) = resolve_targets(global, args)?;
    if targets.is_empty() {
        let hint = "name runs, or a folder that holds *.tape, or a store with runs";
        return Err(Failure::missing("there is nothing to check", hint));
    }
    let mut all = Vec::with_capacity(targets.len());
    for target in &targets {
        let began = jiff::Timestamp::now();
        let mut checked = check_target(global, args, target);
        checked.seconds = (jiff::Timestamp::now() - began).total(jiff::Unit::Second).unwrap_or(0.0).max(0.0);
        print_checked(&checked, out)?;
        all.push(checked);
    }
    if let Some(path) = &args.junit {
        let xml = junit_document(&targets, &all);
        let written = atomic_file::write(path, FileAccess::Everybody, |file| {
            file.write_all(xml.as_bytes()).map_err(crate::failure::output_failure)
        });
        written?.map_err(|error| super::tape::write_failure(path, &error))?;
    }
    let is_good = all.iter().all(|checked| checked.verdict == CheckVerdict::Ok);
    let sums = if args.write_sums && is_good { write_sums(args, &targets, &all)? } else { Vec::new() };
    let of = |verdict| all.iter().filter(|checked| checked.verdict == verdict).count() as u64;
    let repeat = seed.map(|seed| repeat_command(args, seed));
    let (drift, damaged, failed) =
        (of(CheckVerdict::Drift), of(CheckVerdict::Damaged), of(CheckVerdict::Failed));
    if out.json {
        out.object(&json!({
            "checked": all.len(), "ok": of(CheckVerdict::Ok), "drift": drift, "damaged": damaged, "failed": failed,
            "seed": seed, "repeat": repeat, "sums": sums,
        }))?;
    } else {
        let word = if is_good { "as recorded" } else { "NOT as recorded" };
        let counts = format!("{drift} drifted, {damaged} damaged, {failed} not checked");
        let checked = plural(all.len() as u64, "run");
        out.marked_line(is_good, word, format_args!(": {checked} checked, {counts}"))?;
        sums.iter().try_for_each(|path| out.line(format_args!("wrote {}", printable(path))))?;
        if args.write_sums && !is_good {
            out.line(format_args!("{} was not written", tape_sums::FILE))?;
        }
        if let Some(repeat) = repeat {
            out.line(format_args!("the same sample again: {repeat}"))?;
        }
    }
    match (drift + damaged, failed) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::Silent(FailureCode::Failed)),
        _ => Err(Failure::Silent(FailureCode::Damage)),
    }
}

/// Resolves the runs and tapes of the command line. The second value is the seed of a sample.
fn resolve_targets(global: &GlobalArgs, args: &DriftArgs) -> CliResult<(Vec<CheckTarget>, Option<u64>)> {
    if args.targets.is_empty() {
        let names = super::open_to_read(global)?
            .runs()?
            .map(|run| run.map(|run| run.id))
            .collect::<CliResult<Vec<_>>>()?;
        let seed =
            args.seed.unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000);
        let chosen = sample(names.len(), args.sample.unwrap_or(SAMPLE_DEFAULT), seed);
        let chosen = chosen.into_iter().filter_map(|at| names.get(at).cloned().map(CheckTarget::Run));
        return Ok((chosen.collect(), Some(seed)));
    }
    let (mut targets, mut door, mut missing) = (Vec::new(), None::<CliResult<StoreAccess>>, Vec::new());
    for named in &args.targets {
        let path = Path::new(named);
        if path.is_dir() {
            // New sums take the place of the old ones, so they are not compared.
            let sums = if args.write_sums { None } else { tape_sums::read(path)? };
            let tapes = folder_targets(path, sums)?;
            if tapes.is_empty() {
                let hint = "name a folder that holds *.tape, or leave it out";
                return Err(Failure::missing(
                    format!("{named} holds no tape: there is nothing to check"),
                    hint,
                ));
            }
            targets.extend(tapes);
        } else if input::has_tape_name(path) {
            targets.push(CheckTarget::Tape(path.to_path_buf(), TapeListing::NoSums));
        } else {
            let door = door.get_or_insert_with(|| super::open_to_read(global));
            let found = door.as_ref().map_or(Ok(()), |door| door.reader(named).map(drop));
            if let Err(error @ Failure::Message { code: FailureCode::NoSuchThing, .. }) = found {
                missing.push(error);
            }
            targets.push(CheckTarget::Run(named.clone()));
        }
    }
    // If nothing is there to check, the names are wrong, and no check failed.
    if missing.len() == targets.len()
        && let Some(error) = missing.into_iter().next()
    {
        return Err(error);
    }
    Ok((targets, None))
}

/// The tapes of a folder, and those that only its sums name.
fn folder_targets(folder: &Path, sums: Option<TapeSums>) -> CliResult<Vec<CheckTarget>> {
    let tapes = tapes(folder)?;
    let Some(mut sums) = sums else {
        return Ok(tapes.into_iter().map(|tape| CheckTarget::Tape(tape, TapeListing::NoSums)).collect());
    };
    let mut targets = Vec::with_capacity(tapes.len());
    for tape in tapes {
        let listed = sums.remove(&tape_sums::name_of(folder, &tape)?);
        targets.push(CheckTarget::Tape(tape, listed.map_or(TapeListing::Unlisted, TapeListing::Fingerprint)));
    }
    targets.extend(sums.into_keys().map(|name| CheckTarget::MissingTape(folder.join(name))));
    Ok(targets)
}

/// Writes the sums of each folder of the command line, and returns the paths of the files.
fn write_sums(args: &DriftArgs, targets: &[CheckTarget], all: &[CheckedTarget]) -> CliResult<Vec<String>> {
    let mut written = Vec::with_capacity(args.targets.len());
    for folder in args.targets.iter().map(Path::new) {
        let mut sums = TapeSums::new();
        for (target, checked) in targets.iter().zip(all) {
            if let (CheckTarget::Tape(tape, _), Some(fingerprint)) = (target, &checked.fingerprint)
                && tape.starts_with(folder)
            {
                sums.insert(tape_sums::name_of(folder, tape)?, fingerprint.clone());
            }
        }
        written.push(tape_sums::write(folder, &sums)?.display().to_string());
    }
    Ok(written)
}

/// Lists the tapes of a folder and its subfolders, by name. A link to a folder is followed, unless the tapes there are
/// in the list already: it may lead back here.
#[expect(clippy::disallowed_methods, reason = "the user's own folder, which is no part of a store")]
fn tapes(folder: &Path) -> CliResult<Vec<PathBuf>> {
    let (mut found, mut listed) = (Vec::new(), BTreeSet::new());
    // What a link leads to may have links, too.
    let mut links = BTreeSet::from([folder.to_path_buf()]);
    while let Some(link) = links.pop_first() {
        let mut folders = vec![link];
        while let Some(folder) = folders.pop() {
            let unread = |error: std::io::Error| {
                let message = format!("cannot read {}: {error}", folder.display());
                Failure::failed(message, "name a folder that can be read")
            };
            if !listed.insert(folder.canonicalize().map_err(unread)?) {
                continue;
            }
            for entry in std::fs::read_dir(&folder).map_err(unread)? {
                let entry = entry.map_err(unread)?;
                let path = entry.path();
                let kind = entry.file_type().map_err(unread)?;
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_symlink() && path.is_dir() {
                    links.insert(path);
                } else if input::has_tape_name(&path) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Chooses `wanted` of `len` indices, in ascending order, by the seed alone: splitmix64 (Steele, Lea, Flood
/// 2014) drives the first steps of a Fisher-Yates shuffle.
fn sample(len: usize, wanted: u64, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    };
    let mut places: Vec<usize> = (0..len).collect();
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(len);
    for at in 0..wanted {
        let other = at + usize::try_from(next((len - at) as u64)).unwrap_or(0);
        places.swap(at, other);
    }
    places.truncate(wanted);
    places.sort_unstable();
    places
}

/// Builds the command that checks the same sample again.
fn repeat_command(args: &DriftArgs, seed: u64) -> String {
    let mut line = format!("annals check --sample {} --seed {seed}", args.sample.unwrap_or(SAMPLE_DEFAULT));
    if args.programs {
        line.push_str(" --programs");
    }
    if args.check_output {
        line.push_str(" --check-output");
    }
    if !args.command.is_empty() {
        let command: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
        line = format!("{line} -- {}", command.join(" "));
    }
    line
}

fn check_target(global: &GlobalArgs, args: &DriftArgs, target: &CheckTarget) -> CheckedTarget {
    let mut fingerprint = None;
    let (name, done) = match target {
        CheckTarget::Run(run) => (run.clone(), check_stored_run(global, args, run)),
        CheckTarget::Tape(path, listing) => {
            (path.display().to_string(), check_tape(args, path, listing, &mut fingerprint))
        }
        CheckTarget::MissingTape(path) => {
            let text = format!("{} lists this tape, and it is not there", tape_sums::FILE);
            (path.display().to_string(), Ok((CheckVerdict::Failed, 0, text)))
        }
    };
    let (verdict, frames, text) = match done {
        Ok((verdict, frames, text)) => (verdict, frames, text),
        Err(Failure::Message { code, message, .. }) => (
            if code == FailureCode::Damage { CheckVerdict::Damaged } else { CheckVerdict::Failed },
            0,
            message,
        ),
        Err(_) => (CheckVerdict::Failed, 0, "it could not be checked".to_owned()),
    };
    CheckedTarget { name, verdict, frames, text, seconds: 0.0, fingerprint }
}

type CheckResult = (CheckVerdict, u64, String);

/// Checks a run of the store.
fn check_stored_run(global: &GlobalArgs, args: &DriftArgs, run: &str) -> CliResult<CheckResult> {
    let door = super::open_to_read(global)?;
    let reader = door.reader(run)?;
    let root = locate::store(global.store.as_deref());
    read_and_run(&door, &reader, (&root, &global.namespace), args)
}

/// Checks a tape in a temporary store, and sets its fingerprint. The program of a tape that is not the listed one does
/// not run.
fn check_tape(
    args: &DriftArgs,
    path: &Path,
    listing: &TapeListing,
    fingerprint: &mut Option<String>,
) -> CliResult<CheckResult> {
    let tape = TapeStore::open(path)?;
    let reader = tape.door.reader(&tape.run)?;
    let found = reader.info().fingerprint.map(|link| link.to_string()).unwrap_or_default();
    let file = tape_sums::FILE;
    if let TapeListing::Fingerprint(listed) = listing
        && *listed != found
    {
        let frames = tape.door.check_frames(&reader)?;
        let text = format!("another tape than the listed one: fingerprint {found}, and {file} has {listed}");
        return Ok((CheckVerdict::Damaged, frames, text));
    }
    *fingerprint = Some(found);
    let (verdict, frames, text) = read_and_run(&tape.door, &reader, (&tape.root, "default"), args)?;
    if verdict == CheckVerdict::Ok && matches!(listing, TapeListing::Unlisted) {
        let text = format!("{file} does not list this tape: `annals check DIR --write-sums` lists all");
        return Ok((CheckVerdict::Failed, frames, text));
    }
    Ok((verdict, frames, text))
}

/// Verifies a run and, with programs, runs its program again.
fn read_and_run(
    door: &StoreAccess,
    reader: &RunReader,
    store: (&Path, &str),
    args: &DriftArgs,
) -> CliResult<CheckResult> {
    let frames = door.check_frames(reader)?;
    if !args.programs && args.command.is_empty() {
        return Ok((CheckVerdict::Ok, frames, String::new()));
    }
    if door.origin(reader)?.is_none() {
        let text = "no program was recorded as this run".to_owned();
        // A named command that does not run is no success.
        let verdict = if args.command.is_empty() { CheckVerdict::Ok } else { CheckVerdict::Failed };
        return Ok((verdict, frames, text));
    }
    if let Some(by) = door.redacted_by(&reader.info().name)? {
        let text =
            format!("it was redacted by profile {by} before it came here, so its program cannot be replayed");
        return Ok((CheckVerdict::Failed, frames, text));
    }
    let (verdict, text) = replay_program(&reader.info().name, store, args, door.exit_code(reader)?)?;
    Ok((verdict, frames, text))
}

/// Replays a program as a child process.
fn replay_program(
    run: &str,
    (root, namespace): (&Path, &str),
    args: &DriftArgs,
    recorded: Option<u8>,
) -> CliResult<(CheckVerdict, String)> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("`annals replay` cannot be started: {error}"), "try it by hand")
    };
    let mut words: Vec<OsString> =
        vec!["--store".into(), root.into(), "--namespace".into(), namespace.into()];
    words.extend(["replay".into(), run.into()]);
    words.extend(args.rules.file.iter().flat_map(|file| ["--rules".into(), file.into()]));
    for (option, values) in
        [("--rule", &args.rules.rule), ("--ignore", &args.rules.ignore), ("--matcher", &args.rules.matcher)]
    {
        words.extend(values.iter().flat_map(|value| [option.into(), value.into()]));
    }
    words.extend(["--network".into(), network_option(args).into()]);
    for (option, values) in
        [("--allow-host", &args.allow_host), ("--refuse-quietly", &args.network.refuse_quietly)]
    {
        words.extend(values.iter().flat_map(|value| [option.into(), value.into()]));
    }
    if args.check_output {
        words.push("--check-output".into());
    }
    if !args.command.is_empty() {
        words.push("--".into());
        words.extend(args.command.iter().cloned());
    }
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).env("NO_COLOR", "1");
    let output = command.stderr(Stdio::piped()).output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ours = annals_lines(&said);
    let text = ours.join("\n");
    let not_replayed = ours.iter().any(|line| line.starts_with("NOT replayed"));
    let (verdict, text) = match output.status.code() {
        Some(3) if recorded != Some(3) || not_replayed => (CheckVerdict::Drift, text),
        Some(125..=127) if !ours.iter().any(|line| line.starts_with("replayed ")) => {
            (CheckVerdict::Failed, text)
        }
        code if code == recorded.map(i32::from) || recorded.is_none() => (CheckVerdict::Ok, text),
        // The text has a line about it.
        _ => (CheckVerdict::Drift, text),
    };
    Ok((verdict, text))
}

/// Returns the value of --network.
fn network_option(args: &DriftArgs) -> String {
    let value = args.network.network.to_possible_value();
    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the lines that annals itself printed, without the program's standard error. Continuation lines are
/// indented.
fn annals_lines(said: &str) -> Vec<&str> {
    let mut ours = Vec::new();
    let mut goes_on = false;
    for line in said.lines() {
        let own = line.strip_prefix("annals: ").or_else(|| line.strip_prefix("error: "));
        goes_on = own.is_some() || (goes_on && line.starts_with(' '));
        if goes_on {
            ours.push(own.unwrap_or(line));
        }
    }
    // The receipt is the last line.
    let skipped = ours.len().saturating_sub(LINES_MAX);
    ours.split_off(skipped)
}

fn print_checked(checked: &CheckedTarget, out: &mut CliOutput) -> CliResult<()> {
    let CheckedTarget { name, verdict, frames, text, seconds, .. } = checked;
    if out.json {
        return out.object(&json!({
            "name": name, "verdict": verdict.name(), "frames": frames, "text": text, "seconds": seconds,
        }));
    }
    let good = *verdict == CheckVerdict::Ok;
    let frames = if *frames == 0 { String::new() } else { format!(", {}", plural(*frames, "frame")) };
    out.marked_line(good, verdict.name(), format_args!(": {}{frames}", printable(name)))?;
    if !good {
        text.lines().try_for_each(|line| out.line(format_args!("  {}", printable(line))))?;
    }
    Ok(())
}

fn junit_document(targets: &[CheckTarget], all: &[CheckedTarget]) -> String {
    let cases: Vec<_> = targets
        .iter()
        .zip(all)
        .map(|(target, checked)| {
            let wrong = JunitProblem {
                is_finding: checked.verdict != CheckVerdict::Failed,
                kind: checked.verdict.name(),
                text: &checked.text,
            };
            JunitCase {
                class: if matches!(target, CheckTarget::Run(_)) { "annals.runs" } else { "annals.tapes" },
                name: &checked.name,
                seconds: checked.seconds,
                problem: (checked.verdict != CheckVerdict::Ok).then_some(wrong),
            }
        })
        .collect();
    junit::document("annals check", &cases)
}

#[cfg(test)]
mod tests {
    use super::{LINES_MAX, annals_lines, sample};

    #[test]
    fn report_keeps_the_last_annals_lines() {
        let said = "Traceback:\n  in main\nannals: DIVERGED at step 2\n  $.a: was 1\nwarning\n  more\nannals: NOT replayed";
        assert_eq!(annals_lines(said), ["DIVERGED at step 2", "  $.a: was 1", "NOT replayed"]);
        let long = "annals: x\n".repeat(1000) + "annals: the receipt";
        assert_eq!(
            (annals_lines(&long).len(), annals_lines(&long).last()),
            (LINES_MAX, Some(&"the receipt"))
        );
    }

    #[test]
    fn sample_depends_on_seed_only_and_is_uniform() {
        assert_eq!(sample(1000, 5, 7), sample(1000, 5, 7));
        assert_ne!(sample(1000, 5, 7), sample(1000, 5, 8));
        assert_eq!(sample(3, 99, 1), [0, 1, 2]);
        assert!(sample(0, 5, 1).is_empty());
        let mut seen = [0; 10];
        for seed in 0..1000 {
            let chosen = sample(10, 3, seed);
            assert!(chosen.len() == 3 && chosen.is_sorted_by(|a, b| a < b));
            chosen.into_iter().for_each(|at| seen[at] += 1);
        }
        assert!(seen.iter().all(|times| (200..400).contains(times)), "{seen:?}");
    }
}
