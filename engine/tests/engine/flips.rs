//! Flips each byte and cuts each length of each file of a small store, then opens it for reading and for
//! writing. The outcome must be a typed error, a report, or the right bytes. A table shows which check caught
//! each change.
//!
//! The default is a sample. `ANNALS_FLIPS=all` covers every byte (one bit of each, all eight bits of one in
//! eight) and every length; run it in release mode:
//!
//! ```text
//! ANNALS_FLIPS=all cargo test --release -p annals --test engine flips -- --nocapture --test-threads=1
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annals::io::sim::{Crash, SimIo};
use annals::{Error, ErrorKind, RunSpec, Status, Store, kv::History};

use crate::damage::{ReadableContent, assert_typed_error, disk_of, files, options, read_all, small_store};
use crate::support::{GrowingConversation, SeededRng, batches, record, reseal_batch, seed};

/// The change in words, and the changed file.
type DamagedFile = (String, Vec<u8>);

fn is_exhaustive() -> bool {
    std::env::var("ANNALS_FLIPS").is_ok_and(|value| value == "all")
}

/// The key that an unclosed store's last commit sets; the names of its content start with it.
const LAST: &str = "last";

/// A store whose process stopped after its last commit; the active segment is zeroed ahead.
fn stopped_store() -> (SimIo, ReadableContent) {
    let sim = SimIo::new(7);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("one").metadata(SeededRng(1).text(100))).unwrap();
    record(&run, &mut GrowingConversation::new("one"), 4);
    run.end(Status::Ok).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    for i in 0..5u64 {
        keys.put(format!("key{}", i % 4).as_bytes(), SeededRng(i).bytes(30 + 300 * (i as usize % 2)))
            .unwrap();
    }
    keys.put(LAST.as_bytes(), "of all").unwrap();
    let sim = sim.crash(Crash::Everything);
    let (content, errors) = read_all(&Store::open_read_only_with("s", options(&sim)).unwrap());
    assert!(errors.is_empty(), "{errors:?}");
    (sim, content)
}

/// The kind of a file.
fn kind(path: &Path, sim: &SimIo, stopped: bool) -> &'static str {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let last = sim.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).max();
    match name.as_str() {
        "LOCK" => "LOCK",
        "CURRENT" => "CURRENT",
        "SYNCED" => "SYNCED",
        "NAMES" => "NAMES",
        _ if name.starts_with("MANIFEST") => "MANIFEST",
        _ if name.ends_with(".tbl") => "table",
        _ if last.as_deref() != Some(path) => "sealed segment",
        _ if stopped => "active segment, stopped",
        _ => "active segment, closed",
    }
}

/// The check that reported an error.
/// A damaged block of a table.
const TABLE_BLOCK: &str = "crc of a table's block";

fn failed_check(error: &str) -> &'static str {
    const CHECKS: [(&str, &str); 25] = [
        ("an index table is damaged", TABLE_BLOCK),
        ("it does not name a manifest", "crc of CURRENT"),
        ("which cannot be opened", "crc of CURRENT"),
        ("there is no annals store", "CURRENT is gone"),
        ("has lost its file CURRENT", "CURRENT is gone"),
        ("it holds no whole edit", "crc of a manifest edit"),
        ("an edit is not whole", "crc of a manifest edit"),
        ("MANIFEST", "crc of the manifest's header"),
        ("when it was sealed", "length in the manifest"),
        ("the manifest does not list it", "a segment that is not listed"),
        ("not the first bytes of an annals segment", "segment header: magic"),
        ("segment format", "segment header: format"),
        ("the file ends here", "position known to be synced"),
        ("its footer", "footer"),
        ("the batch's checksum", "crc of a batch"),
        ("batch length", "length of a batch"),
        ("batch header", "length of a batch"),
        ("the record's checksum", "crc of a record"),
        ("a record ends after", "length of a record"),
        ("a record has another length", "length of a record"),
        ("does not follow the one before it", "digest of the batch before"),
        ("do not hash to it", "blob id"),
        ("its checksum does not match", "segment header: crc"),
        ("a segment header ends after", "segment header: length"),
        ("the log ends at record", "state at the clean close"),
    ];
    let known = CHECKS.iter().find(|(text, _)| error.contains(text));
    known.map_or_else(
        || {
            println!("a check without a name: {error}");
            "another check"
        },
        |(_, check)| check,
    )
}

/// The outcome of opening one damaged store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum FlipOutcome {
    Caught(&'static str),
    /// A damaged table was rebuilt from the log.
    Healed,
    Harmless(&'static str),
    /// The last batch after an unclean stop, which cannot be told from a torn write.
    Apart(&'static str),
}

/// The undamaged content of a store, and what a change may remove.
struct FlipCase<'a> {
    wanted: &'a ReadableContent,
    kind: &'static str,
    /// Set if the change hits the last batch of an unclosed log or bytes after it, or cuts that log.
    apart: Option<&'static str>,
    /// The least content that must remain: the log up to its last whole batch.
    left: Option<&'a ReadableContent>,
}

fn outcome(opened: annals::Result<Store>, case: &FlipCase<'_>) -> FlipOutcome {
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            assert_typed_error(&error);
            return FlipOutcome::Caught(failed_check(&error.to_string()));
        }
    };
    let (content, errors) = read_all(&store);
    errors.iter().for_each(assert_typed_error);
    let is_left = case.left.is_some_and(|left| *left == content);
    // Content written after the cut is legitimately missing.
    let errors: Vec<Error> =
        errors.into_iter().filter(|error| !(is_left && error.kind() == ErrorKind::NotFound)).collect();
    for (name, bytes) in &content {
        assert!(is_left || case.wanted.get(name) == Some(bytes), "wrong bytes are returned for {name:?}");
    }
    let said = match store.verify() {
        Ok(report) => {
            if report.damaged.is_empty() && errors.is_empty() && !report.rebuilt.is_empty() {
                assert_eq!(content.len(), case.wanted.len());
                return FlipOutcome::Healed;
            }
            report.damaged.first().map(|problem| problem.what.clone())
        }
        Err(error) => {
            assert_typed_error(&error);
            Some(error.to_string())
        }
    };
    if let Some(what) = said.or_else(|| errors.first().map(Error::to_string)) {
        return FlipOutcome::Caught(failed_check(&what));
    }
    if content == *case.wanted {
        return FlipOutcome::Harmless(match case.kind {
            "LOCK" => "holds a pid for people; the lock is not in the bytes",
            "MANIFEST" => "the last edit: the one before leads to the same log",
            "NAMES" => "only a repair reads it",
            "SYNCED" => "the note before it counts, or the clean close",
            "active segment, stopped" => "room written ahead: cut like a tear",
            kind => panic!("a change of a {kind} is not detected"),
        });
    }
    match case.apart {
        Some(why) if is_left => FlipOutcome::Apart(why),
        _ => panic!(
            "{} of {} things are gone without a report",
            case.wanted.len() - content.len(),
            case.wanted.len()
        ),
    }
}

/// Flips one bit of each `step`th byte, and all eight bits of some bytes.
fn flips(bytes: &[u8], rng: &mut SeededRng, step: usize) -> Vec<(usize, u8)> {
    let mut flips = Vec::new();
    let step = step.min(bytes.len());
    for at in (rng.below(step)..bytes.len()).step_by(step) {
        let one = rng.below(8);
        let all = rng.below(8) == 0;
        flips.extend((0..8).filter(|bit| all || *bit == one).map(|bit| (at, 1 << bit)));
    }
    flips
}

fn damaged_files(
    bytes: &[u8],
    rng: &mut SeededRng,
    steps: (usize, usize),
) -> Vec<(bool, usize, DamagedFile)> {
    let mut all = Vec::new();
    for (at, bit) in flips(bytes, rng, steps.0) {
        let mut hurt = bytes.to_vec();
        hurt[at] ^= bit;
        all.push((false, at, (format!("bit mask {bit} of byte {at} flipped"), hurt)));
    }
    for len in (rng.below(steps.1)..bytes.len()).step_by(steps.1) {
        all.push((true, len, (format!("cut to {len} bytes"), bytes[..len].to_vec())));
    }
    all
}

/// Number of outcomes by file kind and kind of change.
type FlipCounts = BTreeMap<(&'static str, &'static str, FlipOutcome), usize>;

fn run(stopped: bool, seed: u64, counts: &mut FlipCounts) {
    let (sim, wanted) = if stopped { stopped_store() } else { small_store() };
    let whole = files(&sim);
    let steps = if is_exhaustive() { (1, 1) } else { (23, 53) };
    let mut rng = SeededRng(seed);
    for (path, bytes) in &whole {
        let kind = kind(path, &sim, stopped);
        if stopped && !["active segment, stopped", "MANIFEST", "SYNCED"].contains(&kind) {
            continue;
        }
        let lefts = if kind == "active segment, stopped" {
            content_by_log_end(&whole, path)
        } else {
            BTreeMap::new()
        };
        let last = batches(bytes).last().map_or(bytes.len(), |(at, _)| *at);
        for (is_cut, at, (how, hurt)) in damaged_files(bytes, &mut rng, steps) {
            let apart = match kind {
                "active segment, stopped" if is_cut => Some("a log cut after an unclean stop ends there"),
                "active segment, stopped" if at >= last => Some("the last batch after an unclean stop"),
                _ => None,
            };
            for write in [false, true] {
                let left = lefts.range((write, 0)..=(write, at)).next_back().map(|(_, left)| left);
                let case = FlipCase { wanted: &wanted, kind, apart, left };
                let done = attempt(&sim, &whole, (path, bytes, &hurt), write, &case, &how);
                let what = if is_cut { "cuts" } else { "flips" };
                *counts.entry((kind, what, done)).or_default() += 1;
            }
        }
    }
}

/// The content of a log that ends with each whole batch, for reading and writing, by end position.
fn content_by_log_end(
    whole: &BTreeMap<PathBuf, Vec<u8>>,
    path: &Path,
) -> BTreeMap<(bool, usize), ReadableContent> {
    let bytes = &whole[path];
    let mut lefts = BTreeMap::new();
    for end in batches(bytes).into_iter().flat_map(|(at, len)| [at, at + len]) {
        for write in [false, true] {
            let mut files = whole.clone();
            files.insert(path.to_path_buf(), bytes[..end].to_vec());
            let sim = disk_of(&files);
            let store = match write {
                true => Store::open_with("s", options(&sim)),
                false => Store::open_read_only_with("s", options(&sim)),
            };
            let (content, errors) = read_all(&store.unwrap());
            assert!(errors.iter().all(|error| error.kind() == ErrorKind::NotFound), "{errors:?}");
            lefts.insert((write, end), content);
        }
    }
    lefts
}

fn attempt(
    sim: &SimIo,
    whole: &BTreeMap<PathBuf, Vec<u8>>,
    file: (&PathBuf, &Vec<u8>, &Vec<u8>),
    write: bool,
    case: &FlipCase<'_>,
    how: &str,
) -> FlipOutcome {
    let (path, bytes, hurt) = file;
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if write {
            let mut files = whole.clone();
            files.insert(path.clone(), hurt.clone());
            return outcome(Store::open_with("s", options(&disk_of(&files))), case);
        }
        sim.edit(path, |bytes| bytes.clone_from(hurt)).unwrap();
        let done = outcome(Store::open_read_only_with("s", options(sim)), case);
        sim.edit(path, |to| to.clone_from(bytes)).unwrap();
        done
    }));
    match done {
        Ok(done) => done,
        Err(_) => panic!("{} of {} bytes: {how} (for writing: {write})", path.display(), bytes.len()),
    }
}

fn print(counts: &FlipCounts) {
    println!("| file | change | caught by, or why it is harmless | times |\n|---|---|---|---|");
    let mut tried = 0;
    for ((kind, what, outcome), count) in counts {
        let outcome = match outcome {
            FlipOutcome::Caught(check) => format!("caught: {check}"),
            FlipOutcome::Healed => "made again from the log".to_owned(),
            FlipOutcome::Harmless(why) => format!("harmless: {why}"),
            FlipOutcome::Apart(why) => format!("counted apart: {why}"),
        };
        println!("| {kind} | {what} | {outcome} | {count} |");
        tried += count;
    }
    println!("{tried} tried, 0 missed");
}

#[test]
fn every_flip_and_cut_is_detected_or_harmless() {
    let seed = seed(71, "flips::every_flip_and_cut_is_detected_or_harmless");
    let mut counts = FlipCounts::new();
    run(false, seed, &mut counts);
    run(true, seed, &mut counts);
    print(&counts);
    for kind in [
        "LOCK",
        "CURRENT",
        "MANIFEST",
        "SYNCED",
        "table",
        "sealed segment",
        "active segment, closed",
        "active segment, stopped",
    ] {
        assert!(counts.keys().any(|(of, ..)| *of == kind), "nothing of a {kind} was tried");
    }
    let unclear = counts.keys().find(|(.., outcome)| *outcome == FlipOutcome::Caught("another check"));
    assert!(unclear.is_none(), "{unclear:?}: name the check");
    let healed = |(kind, _, outcome): &(&str, &str, FlipOutcome)| {
        *kind != "table" || [FlipOutcome::Healed, FlipOutcome::Caught(TABLE_BLOCK)].contains(outcome)
    };
    assert!(counts.keys().all(healed), "a table was not rebuilt");
}

#[test]
fn a_change_with_valid_checksums_is_caught_by_digests() {
    let seed = seed(72, "flips::a_change_with_valid_checksums_is_caught_by_digests");
    let (sim, wanted) = small_store();
    let mut rng = SeededRng(seed);
    let step = if is_exhaustive() { 1 } else { 19 };
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let whole = files(&sim);
    for (path, bytes) in whole.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "seg")) {
        for (at, len) in batches(bytes) {
            for byte in (at + 4 + rng.below(step)..at + len).step_by(step) {
                let mut hurt = bytes.clone();
                hurt[byte] ^= 1 << rng.below(8);
                // Checksums cannot be recomputed if a record length no longer fits.
                if u32_at(&hurt, at + 4) != u32_at(bytes, at + 4)
                    || !reseal_batch(&mut hurt, at, len)
                    || hurt == *bytes
                {
                    continue;
                }
                sim.edit(path, |bytes| bytes.clone_from(&hurt)).unwrap();
                let (by_reading, by_verifying) = caught(&sim, &wanted);
                sim.edit(path, |to| to.clone_from(bytes)).unwrap();
                let by_verifying = by_verifying
                    .unwrap_or_else(|| panic!("byte {byte} of {}: never detected", path.display()));
                *counts.entry((by_reading, by_verifying)).or_default() += 1;
            }
        }
    }
    println!("| read on its own | `verify` | times |\n|---|---|---|");
    for ((reading, verifying), count) in &counts {
        println!("| {reading} | {verifying} | {count} |");
    }
    let tried: usize = counts.values().sum();
    println!("{tried} tried, 0 missed");
    assert!(tried > 100 && counts.keys().any(|(reading, _)| *reading == "blob id"));
}

/// The check that reading meets, and the check that `verify` meets.
fn caught(sim: &SimIo, wanted: &ReadableContent) -> (&'static str, Option<&'static str>) {
    let store = match Store::open_read_only_with("s", options(sim)) {
        Ok(store) => store,
        Err(error) => {
            assert_typed_error(&error);
            return ("does not open", Some("parsing"));
        }
    };
    let (content, errors) = read_all(&store);
    errors.iter().for_each(assert_typed_error);
    let altered = content.iter().any(|(name, bytes)| wanted.get(name) != Some(bytes));
    let reading = match errors.first().map(|error| failed_check(&error.to_string())) {
        Some("another check") => "parsing, or the run's chain",
        Some(check) => check,
        // Inline bytes have no blob id: only the chain of batches covers them.
        None if altered => "returned: it has no id of its own",
        None => "nothing that a read returns",
    };
    let report = match store.verify() {
        Ok(report) => report,
        Err(error) => {
            assert_typed_error(&error);
            return (reading, Some("parsing"));
        }
    };
    (
        reading,
        report.damaged.first().map(|problem| match failed_check(&problem.what) {
            "another check" => "parsing",
            check => check,
        }),
    )
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

const CHILD: &str = "flips::child_opens_hostile_stores";
const CHILD_STORE: &str = "ANNALS_FLIPS_CHILD";
/// Memory that a forged length may cost beyond that of an ordinary store: windows and caches, never the
/// length itself.
const BOUND_KB: u64 = 8 << 10;

/// Peak address space of this process, so that memory that is allocated and never touched counts.
fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Not a test of its own: opens stores with forged lengths, alone in its process, and prints the memory used.
#[test]
#[ignore = "the test below runs it"]
fn child_opens_hostile_stores() {
    let Ok(dir) = std::env::var(CHILD_STORE) else { return };
    let path = Path::new(&dir);
    let open = |repair: bool| {
        let options = || annals::Options {
            segment_bytes_max: 3 << 10,
            zero_ahead_bytes: 4 << 10,
            ..Default::default()
        };
        if let Ok(store) = Store::open_read_only_with(path, options()) {
            drop((read_all(&store), store.verify()));
        }
        if repair {
            let to = path.with_extension("repaired");
            drop(annals::upkeep::repair(path, &to, options()));
            let _ = std::fs::remove_dir_all(to);
        }
    };
    open(true);
    let before = peak_kb();
    let mut tried = 0;
    let mut rng = SeededRng(9);
    for folder in ["segments", "tables", "."] {
        for entry in std::fs::read_dir(path.join(folder)).unwrap() {
            let file = entry.unwrap().path();
            if !file.is_file() || file.ends_with("LOCK") {
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            let is_segment = folder == "segments";
            let starts: Vec<(usize, usize)> = if is_segment { batches(&bytes) } else { Vec::new() };
            for at in (0..bytes.len().saturating_sub(8)).step_by(if is_exhaustive() { 1 } else { 11 }) {
                let mut hurt = bytes.clone();
                // Writes a huge value over each possible length, as a fixed integer and as a varint.
                match rng.below(3) {
                    0 => hurt[at..at + 4].copy_from_slice(&0x3fff_ffff_u32.to_le_bytes()),
                    1 => hurt[at..at + 8].copy_from_slice(&0x0000_0fff_ffff_ffff_u64.to_le_bytes()),
                    _ => hurt[at..at + 5].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x07]),
                }
                // Recompute the checksums, so that the length is trusted as far as possible.
                if let Some((start, len)) =
                    starts.iter().find(|(start, len)| (*start..start + len).contains(&at))
                {
                    reseal_batch(&mut hurt, *start, *len);
                }
                std::fs::write(&file, &hurt).unwrap();
                // A repair waits for the disk.
                open(tried % 32 == 0);
                tried += 1;
            }
            std::fs::write(&file, &bytes).unwrap();
        }
    }
    println!("@{tried} {before} {}", peak_kb());
}

#[test]
fn lengths_that_lie_cost_no_memory() {
    let (sim, _) = small_store();
    // The test does not depend on the disk, and repairs wait for syncs.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    for (path, bytes) in files(&sim) {
        let to = dir.path().join(&path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_STORE, dir.path().join("s"))
        // One arena for all threads: otherwise the allocator reserves 64 MiB of addresses for each.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{:?}: {text} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let told = text.find('@').map(|at| &text[at + 1..]).unwrap_or_default();
    let numbers: Vec<u64> = told.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect();
    let [tried, before, after] = numbers.try_into().unwrap();
    println!("{tried} hostile lengths: address space {before} KB before, {after} KB at its peak");
    assert!(tried > 500);
    assert!(after - before <= BOUND_KB, "{} KB more than an ordinary store", after - before);
}
