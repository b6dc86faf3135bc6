//! `annals check`: verifies stored runs, and re-runs their programs to detect drift. For a nightly job over a
//! store, and for a folder of tapes as a regression suite.
//!
//! Each run is read and every byte checked. A tape is first imported into a temporary store. With programs,
//! each one then runs again by `annals replay` as a child process; the program's own output stays out of the
//! report. A bad run does not stop the check of the others.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::RunReader;
use clap::ValueEnum;
use serde_json::json;

use super::network;

use crate::args::{DriftArgs, Global};
use crate::door::Door;
use crate::failure::{Code, Failure, Result};
use crate::input::{self, AnyTape};
use crate::junit::{self, Case, Wrong};
use crate::out::{Out, count, many, printable};
use crate::tracefork::Recording;
use crate::{locate, rules, whole_file};

/// Default number of runs in a sample.
const SAMPLE: u64 = 100;
/// Most lines of a replay's report that are kept.
const LINES_MAX: usize = 40;

/// The outcome of checking one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// The program's behaviour differs from the recording.
    Drift,
    /// The stored bytes differ from the recorded ones.
    Damaged,
    /// The run could not be checked.
    Failed,
}

impl Verdict {
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
struct Checked {
    name: String,
    verdict: Verdict,
    frames: u64,
    /// The problem; for a good run, the report of its replay.
    text: String,
    seconds: f64,
}

/// A run or tape to check.
enum Target {
    Run(String),
    Tape(PathBuf),
}

pub(super) fn run(global: &Global, args: &DriftArgs, out: &mut Out) -> Result<()> {
    if args.check_output && !args.programs && args.command.is_empty() {
        return Err(Failure::new(
            Code::Usage,
            "--check-output compares the output of programs, but no program is to run",
            "add --programs to run the recorded ones",
        ));
    }
    // Invalid options are reported once, and not for every run.
    rules::matcher(&rules::read(args.rules.file.as_deref())?, &args.rules)?;
    network::policy(&args.network, &args.allow_host)?;
    let (targets, seed) = targets(global, args)?;
    if targets.is_empty() {
        let hint = "name runs, or a folder that holds *.tape, or a store with runs";
        return Err(Failure::new(Code::NoSuchThing, "there is nothing to check", hint));
    }
    let mut all = Vec::with_capacity(targets.len());
    for target in &targets {
        let began = jiff::Timestamp::now();
        let mut checked = check(global, args, target);
        checked.seconds = (jiff::Timestamp::now() - began).total(jiff::Unit::Second).unwrap_or(0.0).max(0.0);
        tell(&checked, out)?;
        all.push(checked);
    }
    if let Some(path) = &args.junit {
        let xml = document(&targets, &all);
        let written =
            whole_file::write(path, |file| file.write_all(xml.as_bytes()).map_err(crate::failure::output));
        written?.map_err(|error| super::tape::unwritten(path, &error))?;
    }
    let of = |verdict| all.iter().filter(|checked| checked.verdict == verdict).count() as u64;
    let repeat = seed.map(|seed| repeat(args, seed));
    let (drift, damaged, failed) = (of(Verdict::Drift), of(Verdict::Damaged), of(Verdict::Failed));
    if out.json {
        out.object(&json!({
            "checked": all.len(), "ok": of(Verdict::Ok), "drift": drift, "damaged": damaged, "failed": failed,
            "seed": seed, "repeat": repeat,
        }))?;
    } else {
        let good = drift + damaged + failed == 0;
        let word = if good { "as recorded" } else { "NOT as recorded" };
        let counts = format!("{drift} drifted, {damaged} damaged, {failed} not checked");
        out.marked(good, word, format_args!(": {} checked, {counts}", many(all.len() as u64, "run")))?;
        if let Some(repeat) = repeat {
            out.line(format_args!("the same sample again: {repeat}"))?;
        }
    }
    match (drift + damaged, failed) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::Silent(Code::Failed)),
        _ => Err(Failure::Silent(Code::Damage)),
    }
}

/// Resolves the runs and tapes of the command line. The second value is the seed of a sample.
fn targets(global: &Global, args: &DriftArgs) -> Result<(Vec<Target>, Option<u64>)> {
    if args.targets.is_empty() {
        let names =
            super::reading(global)?.runs()?.map(|run| run.map(|run| run.id)).collect::<Result<Vec<_>>>()?;
        let seed =
            args.seed.unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000);
        let chosen = sample(names.len(), args.sample.unwrap_or(SAMPLE), seed);
        let chosen = chosen.into_iter().filter_map(|at| names.get(at).cloned().map(Target::Run));
        return Ok((chosen.collect(), Some(seed)));
    }
    let mut targets = Vec::new();
    for named in &args.targets {
        let path = Path::new(named);
        if path.is_dir() {
            targets.extend(tapes(path)?.into_iter().map(Target::Tape));
        } else if is_tape(path) {
            targets.push(Target::Tape(path.to_path_buf()));
        } else {
            targets.push(Target::Run(named.clone()));
        }
    }
    Ok((targets, None))
}

/// Returns whether a file has the name of a tape: `x.tape`, or tracefork's `x.tape.sqlite`.
fn is_tape(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".tape") || name.ends_with(".tape.sqlite")
}

/// Lists the tapes of a folder and its subfolders, by name.
#[expect(clippy::disallowed_methods, reason = "the user's own folder, which is no part of a store")]
fn tapes(folder: &Path) -> Result<Vec<PathBuf>> {
    let unread = |error: std::io::Error| {
        let message = format!("cannot read {}: {error}", folder.display());
        Failure::new(Code::Failed, message, "name a folder that can be read")
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let path = entry.path();
        // A link to a folder is not followed: it may lead back here.
        if entry.file_type().map_err(unread)?.is_dir() {
            found.extend(tapes(&path)?);
        } else if is_tape(&path) {
            found.push(path);
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
fn repeat(args: &DriftArgs, seed: u64) -> String {
    let mut line = format!("annals check --sample {} --seed {seed}", args.sample.unwrap_or(SAMPLE));
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

fn check(global: &Global, args: &DriftArgs, target: &Target) -> Checked {
    let (name, done) = match target {
        Target::Run(run) => (run.clone(), stored(global, args, run)),
        Target::Tape(path) => (path.display().to_string(), taped(args, path)),
    };
    let (verdict, frames, text) = match done {
        Ok((verdict, frames, text)) => (verdict, frames, text),
        Err(Failure::Told { code, message, .. }) => {
            (if code == Code::Damage { Verdict::Damaged } else { Verdict::Failed }, 0, message)
        }
        Err(_) => (Verdict::Failed, 0, "it could not be checked".to_owned()),
    };
    Checked { name, verdict, frames, text, seconds: 0.0 }
}

type Found = (Verdict, u64, String);

/// Checks a run of the store.
fn stored(global: &Global, args: &DriftArgs, run: &str) -> Result<Found> {
    let door = super::reading(global)?;
    let reader = door.reader(run)?;
    let root = locate::store(global.store.as_deref());
    read_and_run(&door, &reader, (&root, &global.namespace), args)
}

/// Checks a tape in a temporary store.
fn taped(args: &DriftArgs, path: &Path) -> Result<Found> {
    let tape = input::tape(path)?;
    let failed = |error: std::io::Error| {
        let message = format!("cannot create a temporary store for the tape: {error}");
        Failure::new(Code::Failed, message, "set TMPDIR to another directory")
    };
    // The directory is readable by its owner only.
    let folder = tempfile::tempdir().map_err(failed)?;
    let root = folder.path().join("store");
    let door = Door::write(&root, "default")?;
    let name = match tape {
        AnyTape::Ours(tape) => door.import_tape(&tape, None, false)?.name,
        AnyTape::Foreign(tape) => {
            let failed = |why| Failure::new(Code::Failed, why, "please report it");
            door.import_foreign(Recording::of(&tape).map_err(failed)?, "tape", false)?.name
        }
    };
    door.close()?;
    let door = Door::read(&root, "default")?;
    let reader = door.reader(&name)?;
    read_and_run(&door, &reader, (&root, "default"), args)
}

/// Verifies a run and, with programs, runs its program again.
fn read_and_run(door: &Door, reader: &RunReader, store: (&Path, &str), args: &DriftArgs) -> Result<Found> {
    let frames = door.check_frames(reader)?;
    if !args.programs && args.command.is_empty() {
        return Ok((Verdict::Ok, frames, String::new()));
    }
    if door.origin(reader)?.is_none() {
        let text = "no program was recorded as this run".to_owned();
        // A named command that does not run is no success.
        let verdict = if args.command.is_empty() { Verdict::Ok } else { Verdict::Failed };
        return Ok((verdict, frames, text));
    }
    let (verdict, text) = replayed(&reader.info().name, store, args, door.exit_code(reader)?)?;
    Ok((verdict, frames, text))
}

/// Replays a program as a child process.
fn replayed(
    run: &str,
    (root, namespace): (&Path, &str),
    args: &DriftArgs,
    recorded: Option<u8>,
) -> Result<(Verdict, String)> {
    let failed = |error: std::io::Error| {
        Failure::new(Code::Failed, format!("`annals replay` cannot be started: {error}"), "try it by hand")
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
    words.extend(["--network".into(), scope(args).into()]);
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
    let ours = ours(&said);
    let text = ours.join("\n");
    let not_replayed = ours.iter().any(|line| line.starts_with("NOT replayed"));
    let (verdict, text) = match output.status.code() {
        Some(3) if recorded != Some(3) || not_replayed => (Verdict::Drift, text),
        Some(125..=127) if !ours.iter().any(|line| line.starts_with("replayed ")) => (Verdict::Failed, text),
        code if code == recorded.map(i32::from) || recorded.is_none() => (Verdict::Ok, text),
        code => {
            let (code, recorded) = (code.unwrap_or(1), recorded.unwrap_or(0));
            (
                Verdict::Drift,
                format!("the program ended with {code}, not with {recorded} as recorded\n{text}"),
            )
        }
    };
    Ok((verdict, text))
}

/// Returns the value of --network.
fn scope(args: &DriftArgs) -> String {
    let value = args.network.network.to_possible_value();
    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the lines that annals itself printed, without the program's standard error. Continuation lines are
/// indented.
fn ours(said: &str) -> Vec<&str> {
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

fn tell(checked: &Checked, out: &mut Out) -> Result<()> {
    let Checked { name, verdict, frames, text, seconds } = checked;
    if out.json {
        return out.object(&json!({
            "name": name, "verdict": verdict.name(), "frames": frames, "text": text, "seconds": seconds,
        }));
    }
    let good = *verdict == Verdict::Ok;
    let frames = if *frames == 0 { String::new() } else { format!(", {} frames", count(*frames)) };
    out.marked(good, verdict.name(), format_args!(": {}{frames}", printable(name)))?;
    if !good {
        text.lines().try_for_each(|line| out.line(format_args!("  {}", printable(line))))?;
    }
    Ok(())
}

fn document(targets: &[Target], all: &[Checked]) -> String {
    let cases: Vec<_> = targets
        .iter()
        .zip(all)
        .map(|(target, checked)| {
            let wrong = Wrong {
                found: checked.verdict != Verdict::Failed,
                kind: checked.verdict.name(),
                text: &checked.text,
            };
            Case {
                class: if matches!(target, Target::Run(_)) { "annals.runs" } else { "annals.tapes" },
                name: &checked.name,
                seconds: checked.seconds,
                wrong: (checked.verdict != Verdict::Ok).then_some(wrong),
            }
        })
        .collect();
    junit::document("annals check", &cases)
}

#[cfg(test)]
mod tests {
    use super::{LINES_MAX, ours, sample};

    #[test]
    fn a_report_is_what_annals_said_and_the_last_of_it() {
        let said = "Traceback:\n  in main\nannals: DIVERGED at step 2\n  $.a: was 1\nwarning\n  more\nannals: NOT replayed";
        assert_eq!(ours(said), ["DIVERGED at step 2", "  $.a: was 1", "NOT replayed"]);
        let long = "annals: x\n".repeat(1000) + "annals: the receipt";
        assert_eq!((ours(&long).len(), ours(&long).last()), (LINES_MAX, Some(&"the receipt")));
    }

    #[test]
    fn a_sample_follows_from_its_seed_alone_and_any_place_may_be_in_it() {
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
