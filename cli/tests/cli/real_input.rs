//! Real agent runs through the built binary: every byte as an independent script expands it, with and without tables,
//! and after the recorder is killed at random moments.
//!
//! `engine/tests/data/expand.py`, which shares no code with the importer, made the expected sums, with a hash
//! that the engine does not use. There are sums for both expansions. The cut in the repository has a sum for
//! each frame. The full file of 200 runs is not in the repository; it has a sum for each run, and
//! `ANNALS_TAU_AIRLINE` names its path. `ANNALS_KILLS` sets the number of kills (50 for each input),
//! `ANNALS_SEED` their moments. A kill keeps data that the system already has; the tests on the simulated
//! disk cover a power cut.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{CliBench, ProcessResult, bundled_runs};

const VARIABLE: &str = "ANNALS_TAU_AIRLINE";

/// Bytes of the full file's requests according to PROVENANCE.md, and the minimum share that a store must
/// save.
const FULL_REQUEST_BYTES: u64 = 30_969_226;
const SAVED_SHARE_MIN: u64 = 36;

/// Bytes of a store of the carried runs after a clean close, as measured. It may take 2% more: a change that costs
/// more must be meant, and changes these figures.
const CUT_DISK_BYTES: [(ExpandMode, u64); 2] = [(ExpandMode::Turns, 77_450), (ExpandMode::Calls, 71_750)];

/// Number of single frames that are read without the frames before them.
const SAMPLE_FRAMES: usize = 20;

/// Lines `sha256(input) sha256(output) component run seq` of a run, in the order of its frames.
type FrameLines = Vec<String>;

/// Which messages become frames: `annals import --expand`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpandMode {
    /// The default.
    Turns,
    /// docs/storage.md measures with it, so that its figures stay comparable with earlier ones.
    Calls,
}

/// A file of runs, with the expected result of its import and replay.
struct RunsFile {
    name: &'static str,
    expansion: ExpandMode,
    file: PathBuf,
    /// Each run in the source's order: its name, the sum of its frames' lines, and how many there are.
    runs: Vec<(String, String, usize)>,
    /// The frames' lines, if the repository has them.
    lines: Option<HashMap<String, FrameLines>>,
}

/// The compared fields of a replayed frame.
#[derive(Deserialize)]
struct ReplayedFrame<'a> {
    run: Cow<'a, str>,
    seq: u64,
    component: Cow<'a, str>,
    input: Cow<'a, str>,
    output: Cow<'a, str>,
}

/// The runs that were acknowledged before a kill.
struct KilledImport {
    acknowledged: Vec<(String, u64)>,
}

#[test]
fn bundled_runs_replay_exactly() {
    check_import_and_replay(&cut(ExpandMode::Turns));
}

/// Input that was imported before user frames existed still gives the same bytes.
#[test]
fn bundled_runs_as_calls_replay_exactly() {
    check_import_and_replay(&cut(ExpandMode::Calls));
}

#[test]
fn full_file_replays_exactly_in_one_36th_of_its_size() {
    if let Some(full) = full(ExpandMode::Calls) {
        check_import_and_replay(&full);
    }
}

#[test]
fn full_file_as_turns_replays_exactly() {
    if let Some(full) = full(ExpandMode::Turns) {
        check_import_and_replay(&full);
    }
}

#[test]
fn bundled_runs_survive_random_kills() {
    check_import_with_kills(&cut(ExpandMode::Turns), "bundled_runs_survive_random_kills");
}

#[test]
fn full_file_survives_random_kills() {
    if let Some(full) = full(ExpandMode::Turns) {
        check_import_with_kills(&full, "full_file_survives_random_kills");
    }
}

#[test]
fn import_continues_if_acknowledgements_are_unread() {
    let (bench, input) = (CliBench::new(), cut(ExpandMode::Turns));
    let mut child = import_command(&bench, &input, false).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    input.assert_whole(&replay(&bench).1, "with nobody reading");
}

/// Records an input and reads it back in every way, with and without tables.
fn check_import_and_replay(input: &RunsFile) {
    let mut random = KillRng(number("ANNALS_SEED").unwrap_or(7));
    let bench = CliBench::new();
    let told = import(&bench, input, false).json();
    let (end, acknowledged) = told.split_last().unwrap();
    let acknowledged: Vec<_> = acknowledged.iter().map(acknowledgement).collect();
    let expected: Vec<_> = input.runs.iter().map(|(run, _, frames)| (run.clone(), *frames as u64)).collect();
    assert_eq!(acknowledged, expected, "every run is acknowledged, in the source's order");
    let frames: u64 = expected.iter().map(|(_, frames)| frames).sum();
    assert_eq!((&end["runs"], &end["frames"]), (&expected.len().into(), &frames.into()));
    assert_eq!(end["whole"], true);

    let [stats] = bench.run("stats --json").json().try_into().unwrap();
    assert_eq!((&stats["runs"], &stats["frames"]), (&expected.len().into(), &frames.into()));
    let disk_bytes = stats["disk_bytes"].as_u64().unwrap();
    assert_eq!(disk_bytes, bytes_under(&bench.path(".annals")), "a file of the store is not counted");
    let (runs, expansion) = (expected.len(), input.expansion);
    tell(&format!(
        "{}, {expansion:?}: {runs} runs, {frames} frames in {disk_bytes} bytes on disk",
        input.name
    ));
    if input.lines.is_some() {
        let (_, measured) = CUT_DISK_BYTES.iter().find(|(of, _)| *of == expansion).unwrap();
        assert!(
            disk_bytes * 100 <= measured * 102,
            "{}, {expansion:?}: {disk_bytes} bytes on disk are over 2% more than {measured}: {stats}",
            input.name
        );
    } else {
        let tenths = FULL_REQUEST_BYTES * 10 / disk_bytes;
        tell(&format!("{}: 1/{}.{} of the requests' bytes", input.name, tenths / 10, tenths % 10));
        assert!(
            expansion == ExpandMode::Turns || disk_bytes * SAVED_SHARE_MIN <= FULL_REQUEST_BYTES,
            "{stats}"
        );
    }

    for tables in ["as closed", "without tables"] {
        if tables == "without tables" {
            assert!(delete_tables(&bench) > 0, "there were tables to delete");
        }
        let (order, replayed) = replay(&bench);
        let names: Vec<&str> = input.runs.iter().map(|(run, _, _)| run.as_str()).collect();
        assert_eq!(order, names, "{tables}: runs in the source's order");
        input.assert_whole(&replayed, tables);
        single_frames(&bench, &replayed, &mut random);
        verify(&bench, expected.len(), frames);
    }
    // A writer without tables also continues correctly.
    import(&bench, input, true).json();
    input.assert_whole(&replay(&bench).1, "recorded again in place of itself");
    verify(&bench, expected.len(), frames);
}

/// Reads a sample of frames without the frames before them.
fn single_frames(bench: &CliBench, replayed: &BTreeMap<String, FrameLines>, random: &mut KillRng) {
    let lines: Vec<&String> = replayed.values().flatten().collect();
    for _ in 0..SAMPLE_FRAMES {
        let line = lines[random.below(lines.len() as u64) as usize];
        let [input, output, _, run, seq] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        for (option, sum) in [("--input", input), ("--output", output)] {
            let body = bench.run_args(["show", &format!("{run}@{seq}"), option, "--raw"]).ok();
            assert_eq!(sha256(&body), sum, "{run}@{seq} {option}");
        }
    }
}

/// Kills the import of an input at random moments. Everything acknowledged must be there, and no partial run.
fn check_import_with_kills(input: &RunsFile, test: &str) {
    let seed = number("ANNALS_SEED").unwrap_or(50);
    let kills = number("ANNALS_KILLS").unwrap_or(50);
    let repeat = format!(
        "ANNALS_SEED={seed} ANNALS_KILLS={kills} cargo test -p annals-cli --test cli real_input::{test} -- --exact"
    );
    tell(&format!("{}: kills, repeat with: {repeat}", input.name));
    let mut random = KillRng(seed);
    let undisturbed = || kill_after(&CliBench::new(), input, None).0;
    let mut lifetimes = [undisturbed(), undisturbed(), undisturbed()];
    lifetimes.sort();
    let mut lifetime = lifetimes[1];
    let source = source_texts(input);
    let last = input.runs.len();
    let (mut before, mut between, mut after, mut tenths) = (0, 0, 0, [0; 10]);
    let mut done = 0;
    while done < kills || (between * 3 < kills && done < kills * 4) {
        if done >= kills {
            // The machine's load has changed, and too few kills came in time. Measure the duration again and
            // add kills.
            lifetime = undisturbed();
        }
        done += 1;
        let bench = CliBench::new();
        let moment = lifetime * u32::try_from(random.below(1_000_000)).unwrap() / 1_000_000;
        let (_, killed) = kill_after(&bench, input, Some(moment));
        let so_far = killed.acknowledged.len();
        match so_far {
            0 => before += 1,
            all if all == last => after += 1,
            some => {
                between += 1;
                tenths[some * 10 / last] += 1;
            }
        }
        let what = format!("killed after {moment:?} with {so_far} runs acknowledged; repeat with: {repeat}");
        let present = check_killed(&bench, input, &killed, &what);
        if random.below(2) == 0 {
            let rest = source[present..].join("\n");
            let rest_of = "import --format chat --allow-empty --id {task_id}-{trial} -";
            bench.pipe(rest_of, rest.as_bytes()).ok_after_kill();
        } else {
            import(&bench, input, true).ok_after_kill();
        }
        input.assert_whole(&replay(&bench).1, &what);
        verify(&bench, last, input.runs.iter().map(|(_, _, frames)| *frames as u64).sum());
    }
    tell(&format!(
        "{}: kills before the first acknowledged run {before}, between {between}, after the last {after}; \
         between, by tenths of the runs: {tenths:?}; over {lifetime:?}",
        input.name
    ));
    assert!(
        between * 3 >= kills,
        "only {between} of {kills} kills landed while runs were recorded; {repeat}"
    );
}

/// Starts the import, kills it after this time, and returns the acknowledged runs. Without a time the import
/// ends by itself.
#[expect(clippy::disallowed_methods, reason = "measures how long the child lives, to kill it within that")]
fn kill_after(bench: &CliBench, input: &RunsFile, moment: Option<Duration>) -> (Duration, KilledImport) {
    let began = std::time::Instant::now();
    // The output fits into a pipe, so the child never waits for this process.
    let mut child: Child = import_command(bench, input, false)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(moment) = moment {
        std::thread::sleep(moment.saturating_sub(began.elapsed()));
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(moment.is_some() || output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let acknowledged = lines.filter(|line| line.get("whole").is_none()).map(|line| acknowledgement(&line));
    (began.elapsed(), KilledImport { acknowledged: acknowledged.collect() })
}

/// Checks the store after a kill: everything acknowledged is whole, nothing is partial. Returns the number of
/// runs.
fn check_killed(bench: &CliBench, input: &RunsFile, killed: &KilledImport, what: &str) -> usize {
    let checked = bench.run("verify --json");
    if checked.code == 4 && killed.acknowledged.is_empty() {
        // The kill came before the store existed.
        return 0;
    }
    let checked = checked.json();
    assert_eq!(checked[0]["damaged"], serde_json::json!([]), "{what}");
    let listed = bench.run("runs --json");
    if listed.code == 4 && killed.acknowledged.is_empty() {
        // The kill came before the namespace existed.
        return 0;
    }
    let mut listed = listed.json();
    if listed.is_empty() && killed.acknowledged.is_empty() {
        // The kill came before the first run existed: a replay of nothing ends with 4.
        return 0;
    }
    listed.reverse();
    let (order, replayed) = replay(bench);
    assert_eq!(order.len(), listed.len(), "{what}");
    // Runs are recorded one after the other. The stored runs are the first of the source, and only the last
    // of them may be unacknowledged.
    let said = killed.acknowledged.len();
    assert!(order.len() == said || order.len() == said + 1, "{} runs are there: {what}", order.len());
    for (((name, sum, frames), found), row) in input.runs.iter().zip(&order).zip(&listed) {
        assert_eq!(name, found, "{what}");
        assert_eq!((&row["id"], &row["status"]), (&name.as_str().into(), &"ok".into()), "{what}");
        assert_eq!(row["frames"], *frames as u64, "{what}");
        input.assert_run(name, sum, *frames, &replayed[name], what);
    }
    for ((name, _, frames), said) in input.runs.iter().zip(&killed.acknowledged) {
        assert_eq!((name, *frames as u64), (&said.0, said.1), "{what}");
    }
    order.len()
}

impl RunsFile {
    /// Checks that the store has every run of the input with every byte, and no other run.
    #[track_caller]
    fn assert_whole(&self, replayed: &BTreeMap<String, FrameLines>, what: &str) {
        assert_eq!(replayed.len(), self.runs.len(), "{}: runs, {what}", self.name);
        for (run, sum, frames) in &self.runs {
            assert!(replayed.contains_key(run), "{}: run {run} is lost, {what}", self.name);
            self.assert_run(run, sum, *frames, &replayed[run], what);
        }
    }

    #[track_caller]
    fn assert_run(&self, run: &str, sum: &str, frames: usize, lines: &FrameLines, what: &str) {
        if let Some(expected) = self.lines.as_ref().map(|all| &all[run]) {
            for (found, expected) in lines.iter().zip(expected) {
                assert_eq!(found, expected, "{}: a frame of run {run}, {what}", self.name);
            }
        }
        assert_eq!(lines.len(), frames, "{}: frames of run {run}, {what}", self.name);
        assert_eq!(sum_of(lines), sum, "{}: the frames of run {run}, {what}", self.name);
    }
}

/// The runs in the repository, with a line for each frame.
fn cut(expansion: ExpandMode) -> RunsFile {
    let (sums, frames) = match expansion {
        ExpandMode::Turns => ("tau-airline-cut.turns.sums", 408_usize),
        ExpandMode::Calls => ("tau-airline-cut.sums", 330),
    };
    let mut runs: Vec<String> = Vec::new();
    let mut lines: HashMap<String, FrameLines> = HashMap::new();
    for line in text(&bundled_runs().with_file_name(sums)).lines() {
        let run = line.split(' ').nth(3).unwrap();
        if runs.last().is_none_or(|last| last != run) {
            runs.push(run.to_owned());
        }
        lines.entry(run.to_owned()).or_default().push(line.to_owned());
    }
    assert_eq!((runs.len(), lines.len(), lines.values().map(Vec::len).sum()), (12, 12, frames));
    let runs = runs.into_iter().map(|run| (run.clone(), sum_of(&lines[&run]), lines[&run].len())).collect();
    RunsFile { name: "cut", expansion, file: bundled_runs(), runs, lines: Some(lines) }
}

/// The full file, if its path is set.
fn full(expansion: ExpandMode) -> Option<RunsFile> {
    let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) else {
        tell(&format!(
            "the full file of 200 runs was not given ({VARIABLE} names it): the 12 carried runs alone are tested"
        ));
        return None;
    };
    let file = std::path::absolute(given).unwrap();
    assert!(file.is_file(), "{VARIABLE} names {}, which is no file", file.display());
    let (sums, frames) = match expansion {
        ExpandMode::Turns => ("tau-airline.turns.run-sums", 5_108_usize),
        ExpandMode::Calls => ("tau-airline.run-sums", 3_618),
    };
    let sums = text(&bundled_runs().with_file_name(sums));
    let run = |line: &str| {
        let [sum, run, frames] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        (run.to_owned(), sum.to_owned(), frames.parse().unwrap())
    };
    let runs: Vec<(String, String, usize)> = sums.lines().map(run).collect();
    assert_eq!((runs.len(), runs.iter().map(|(_, _, frames)| frames).sum()), (200, frames));
    Some(RunsFile { name: "full", expansion, file, runs, lines: None })
}

/// The exact source texts of an input's runs.
#[expect(clippy::disallowed_methods, reason = "reads test data")]
fn source_texts(input: &RunsFile) -> Vec<String> {
    let mut bytes = std::fs::read(&input.file).unwrap();
    if bytes.starts_with(b"\xfd7zXZ\0") {
        let packed = std::mem::take(&mut bytes);
        liblzma::read::XzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    }
    let runs: Vec<Box<RawValue>> = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(runs.len(), input.runs.len());
    runs.into_iter().map(|run| run.get().to_owned()).collect()
}

fn import_command(bench: &CliBench, input: &RunsFile, replace: bool) -> std::process::Command {
    let file = input.file.to_str().unwrap();
    let args = ["import", "--json", "--format", "chat", file, "--id", "{task_id}-{trial}"];
    // The last messages of most runs are a user's. With this expansion no frame contains them.
    let calls = match input.expansion {
        ExpandMode::Turns => &[][..],
        ExpandMode::Calls => &["--expand", "calls", "--allow-empty"],
    };
    bench.command(args.into_iter().chain(calls.iter().copied()).chain(replace.then_some("--replace")))
}

fn import(bench: &CliBench, input: &RunsFile, replace: bool) -> ProcessResult {
    ProcessResult::from_output(import_command(bench, input, replace).stdin(Stdio::null()).output().unwrap())
}

fn acknowledgement(line: &serde_json::Value) -> (String, u64) {
    (line["run"].as_str().unwrap().to_owned(), line["frames"].as_u64().unwrap())
}

/// Replays all runs. Returns their order, and each run's frame lines in the form that `expand.py` prints.
fn replay(bench: &CliBench) -> (Vec<String>, BTreeMap<String, FrameLines>) {
    let (mut order, mut runs) = (Vec::new(), BTreeMap::<String, FrameLines>::new());
    for line in bench.run("replay --all --json").text().lines() {
        let ReplayedFrame { run, seq, component, input, output } = serde_json::from_str(line).unwrap();
        if order.last().is_none_or(|last| *last != run) {
            order.push(run.clone().into_owned());
        }
        let (input, output) = (sha256(input.as_bytes()), sha256(output.as_bytes()));
        let line = format!("{input} {output} {component} {run} {seq}");
        runs.entry(run.into_owned()).or_default().push(line);
    }
    (order, runs)
}

#[track_caller]
fn verify(bench: &CliBench, runs: usize, frames: u64) {
    let [found] = bench.run("verify --json").json().try_into().unwrap();
    assert_eq!((&found["runs"], &found["frames"]), (&runs.into(), &frames.into()));
    assert_eq!(found["damaged"], serde_json::json!([]));
}

/// Deletes all files in the folder of tables; returns their number.
#[expect(clippy::disallowed_methods, reason = "damages the store from outside")]
fn delete_tables(bench: &CliBench) -> usize {
    let tables = std::fs::read_dir(bench.path(".annals/tables")).unwrap();
    tables.map(|entry| std::fs::remove_file(entry.unwrap().path()).unwrap()).count()
}

#[expect(clippy::disallowed_methods, reason = "looks at the store from outside")]
fn bytes_under(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let size = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        facts if facts.is_dir() => bytes_under(&entry.path()),
        facts => facts.len(),
    };
    entries.map(size).sum()
}

#[expect(clippy::disallowed_methods, reason = "reads test data")]
fn text(path: &Path) -> String {
    String::from_utf8(std::fs::read(path).unwrap()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// The sum of a run, over its frames' lines with their newlines.
fn sum_of(lines: &FrameLines) -> String {
    sha256(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>().as_bytes())
}

fn number(variable: &str) -> Option<u64> {
    let given = std::env::var(variable).ok()?;
    let number = given.parse().ok();
    assert!(number.is_some(), "{variable}={given} is no number");
    number
}

/// Prints a line even if the test passes: figures, and checks that were skipped.
fn tell(line: &str) {
    writeln!(std::io::stderr().lock(), "real input: {line}").unwrap();
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct KillRng(u64);

impl KillRng {
    /// A number below `end`. `end` is far below 2^64, so the bias of the remainder is negligible.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
