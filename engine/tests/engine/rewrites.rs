//! Forged logs: an older checkpoint must detect every rewrite of history that a plain check does not see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annals::io::sim::SimIo;
use annals::{
    ErrorKind, Frame as Spec, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
    ledger::{Checkpoint, CheckpointDifference},
    upkeep::CompactOptions,
};

use crate::forge::{
    ForgedBatch, ForgedFrameHead, ForgedLog, ForgedRecord, ForgedReference, StoreFiles, WholeIds, crc, varint,
};
use crate::support::{GrowingConversation, SeededRng, disk_of, files, record, seed, sim_options};

fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 2 << 10, ..sim_options(sim) }
}

fn open(files: &StoreFiles) -> annals::Result<Store> {
    let sim = disk_of(files);
    Store::open_read_only_with("s", options(&sim))
}

/// Everything that a reader can return, as text.
fn content(store: &Store) -> annals::Result<String> {
    use std::fmt::Write as _;
    let mut out = format!("{:?}\n", store.namespaces()?);
    let space = store.namespace("default")?;
    for info in space.runs()? {
        let run = space.run(&info?.name)?;
        let _ = writeln!(out, "{:?} {:?}", run.info(), run.metadata()?);
        for frame in run.frames() {
            let _ = writeln!(out, "{:?}", frame?);
        }
        let _ = writeln!(out, "{:?}", run.snapshot_at(run.info().frames)?);
    }
    if let Some(keys) = space.find_keyspace("k")? {
        for pair in keys.scan(ScanRange::all()) {
            let (key, value) = pair?;
            let _ = writeln!(out, "{key:?} {value:?} {:?}", keys.history(&key)?);
        }
    }
    Ok(out)
}

fn whole_ids(store: &Store) -> WholeIds {
    let space = store.namespace("default").unwrap();
    let runs = space.runs().unwrap().map(|info| space.run(&info.unwrap().name).unwrap());
    let frames = runs.flat_map(|run| run.frames().map(Result::unwrap).collect::<Vec<_>>());
    let ids = frames.flat_map(|frame| [frame.input_id.unwrap(), frame.output_id.unwrap()]);
    ids.map(|id| (*id.0.first_chunk().unwrap(), id.0)).collect()
}

/// A store older than the checkpoint, at the checkpoint, and grown since.
struct ForgeryTarget {
    older: StoreFiles,
    now: StoreFiles,
    log: ForgedLog,
    old_log: ForgedLog,
    checkpoint: Checkpoint,
    content: String,
    /// Whole ids of the bodies: the bodies lead to them.
    ids: WholeIds,
    /// Number of batches that the checkpoint covers.
    covered: usize,
    /// Length of each file at the checkpoint.
    lengths: BTreeMap<PathBuf, usize>,
    other: ForgedLog,
}

fn session(sim: &SimIo, names: [&str; 2], rounds: u64) {
    let store = Store::open_with("s", options(sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new(names[0]).agent("a").tag("env", "prod")).unwrap();
    record(&run, &mut GrowingConversation::new(names[0]), 3);
    run.record(Spec::new(annals::Component::Tool, r#"{"id":42}"#, r#"{"score":580}"#)).unwrap();
    run.snapshot("the state", &[]).unwrap();
    run.end(Status::Ok).unwrap();
    let fork = space.fork(names[0], 2, false, RunSpec::new(names[1])).unwrap();
    fork.record(Spec::new(annals::Component::Tool, "q", "yes")).unwrap();
    fork.end(Status::Failed).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    for round in 0..rounds {
        keys.put(format!("{}{}", names[0], round % 2).as_bytes(), format!("value {round}")).unwrap();
    }
    keys.delete(format!("{}0", names[0]).as_bytes()).unwrap();
    store.close().unwrap();
}

/// Drops a parent of a fork and a whole run, ends keys, and compacts. The last commit stays, so that a
/// checkpoint can be compared up to its end.
fn compact(sim: &SimIo) {
    let store = Store::open_with("s", options(sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("gone")).unwrap();
    record(&run, &mut GrowingConversation::new("gone"), 12);
    run.end(Status::Ok).unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    for round in 0..20 {
        latest.put(b"key", format!("value {round}")).unwrap();
    }
    for name in ["gone", "one"] {
        space.drop_run(name, "rule", "").unwrap();
    }
    store.compact(&CompactOptions::default()).unwrap();
    space.keyspace("k", History::All).unwrap().put(b"last", "it stays").unwrap();
    store.close().unwrap();
}

fn victim(compacted: bool) -> ForgeryTarget {
    let sim = SimIo::new(5);
    session(&sim, ["one", "two"], 4);
    let older = files(&sim);
    session(&sim, ["three", "four"], 3);
    if compacted {
        compact(&sim);
    }
    let checkpoint = Store::open_read_only_with("s", options(&sim)).unwrap().checkpoint().unwrap();
    let at_checkpoint = files(&sim);
    session(&sim, ["five", "six"], 2);
    let now = files(&sim);
    let log = ForgedLog::read(&now);
    let other = SimIo::new(77);
    session(&other, ["one", "two"], 4);
    session(&other, ["three", "four"], 9);
    let store = open(&now).unwrap();
    // The checkpoint makes no claim about later batches.
    assert_eq!(store.verify_against(&checkpoint).unwrap().differences, []);
    assert_eq!(store.verify_against(&checkpoint).unwrap().erased, 0);
    assert!(store.checkpoint().unwrap().leaves > checkpoint.leaves);
    assert_eq!(store.verify().unwrap().damaged, []);
    ForgeryTarget {
        content: content(&store).unwrap(),
        ids: whole_ids(&store),
        covered: log.up_to_leaf(checkpoint.leaves as usize),
        lengths: at_checkpoint.iter().map(|(path, bytes)| (path.clone(), bytes.len())).collect(),
        old_log: ForgedLog::read(&older),
        other: ForgedLog::read(&files(&other)),
        older,
        now,
        log,
        checkpoint,
    }
}

/// Edits of raw bytes.
const PLAIN: [&str; 8] = [
    "bytes flipped",
    "bytes overwritten",
    "bytes zeroed",
    "bytes swapped",
    "bytes cut out",
    "a file cut short",
    "a file gone",
    "a file of an older state",
];

/// Edits of records, followed by recomputing every checksum, digest and root.
const CLEVER: [&str; 24] = [
    "a salt changed",
    "a byte of a head changed",
    "a value changed",
    "a frame's time changed",
    "a frame's body changed, the chain relinked",
    "a large body changed, the chain relinked",
    "a run's record changed",
    "a record's kind changed",
    "a record made one to skip",
    "a record to skip put in",
    "a record dropped",
    "a record doubled",
    "two records swapped",
    "a batch dropped",
    "a batch doubled",
    "two batches swapped",
    "two batches made one",
    "a batch split",
    "a batch of another store spliced in",
    "a batch of another place put in for one",
    "cut to an older state",
    "cut, and grown again otherwise",
    "the directory rolled back",
    "another store under this one's name",
];

/// Edits of records that compaction writes, followed by recomputing everything.
const REWRITTEN: [&str; 9] = [
    "a node of erased records changed",
    "a node of erased batches changed",
    "erased records counted otherwise",
    "erased batches counted otherwise",
    "a record put in erased ones' place",
    "what is left of a group changed",
    "ranges of what is left of a group changed",
    "what a rewritten footer says changed",
    "what a manifest says of rewriting changed",
];

/// A record erased as compaction does it, with the node that replaces it. The ledger does not state it.
const FORGOTTEN: &str = "a record erased as compaction does";

/// Edits of the storage form that change no recorded data.
const HARMLESS: [&str; 5] = [
    "groups stored another way",
    "segments joined",
    "times of batches changed",
    "tables deleted",
    "all made anew",
];

/// Two different numbers below `n`, the smaller first.
fn two_places(rng: &mut SeededRng, n: usize) -> (usize, usize) {
    let (a, b) = (rng.below(n), rng.below(n - 1));
    let b = if b >= a { b + 1 } else { b };
    (a.min(b), a.max(b))
}

fn plain_forgery(victim: &ForgeryTarget, how: &str, rng: &mut SeededRng) -> Option<StoreFiles> {
    let mut files = victim.now.clone();
    let segments: Vec<PathBuf> =
        victim.lengths.keys().filter(|path| path.extension().is_some_and(|e| e == "seg")).cloned().collect();
    let all: Vec<PathBuf> = files.keys().filter(|path| !path.ends_with("LOCK")).cloned().collect();
    if how == "a file gone" {
        files.remove(&all[rng.below(all.len())]);
        return Some(files);
    }
    if how == "a file of an older state" {
        let old: Vec<&PathBuf> = victim.older.keys().filter(|path| !path.ends_with("LOCK")).collect();
        let path = old[rng.below(old.len())];
        files.insert(path.clone(), victim.older[path].clone());
        return Some(files);
    }
    // One in eight edits hits a file that is not part of the log.
    let path = match rng.below(8) {
        0 => all[rng.below(all.len())].clone(),
        _ => segments[rng.below(segments.len())].clone(),
    };
    let bytes = files.get_mut(&path)?;
    // Bytes written after the checkpoint are outside its promise.
    let len = bytes.len().min(victim.lengths.get(&path).copied().unwrap_or(bytes.len()));
    let (at, end) = two_places(rng, len + 1);
    let end = end.min(at + 1 + rng.below(64));
    match how {
        "bytes flipped" => {
            for _ in 0..1 + rng.below(4) {
                bytes[rng.below(len)] ^= 1 << rng.below(8);
            }
        }
        "bytes overwritten" => bytes[at..end].copy_from_slice(&rng.bytes(end - at)),
        "bytes zeroed" => bytes[at..end].fill(0),
        "bytes swapped" => {
            let (other, span) = (rng.below(len), end - at);
            let span = span.min(len - other);
            for index in 0..span {
                bytes.swap(at + index, other + index);
            }
        }
        "bytes cut out" => drop(bytes.drain(at..end)),
        _ => bytes.truncate(at),
    }
    Some(files)
}

/// A logical record under the checkpoint, of one of `kinds` (any kind if empty): its batch and index.
fn pick(log: &ForgedLog, covered: usize, kinds: &[u8], rng: &mut SeededRng) -> Option<(usize, usize)> {
    let mut all = Vec::new();
    for (at, batch) in log.segments.iter().flatten().enumerate().take(covered) {
        for (index, record) in batch.records.iter().enumerate() {
            if matches!(record, ForgedRecord::Logical { kind, .. } if kinds.is_empty() || kinds.contains(kind))
            {
                all.push((at, index));
            }
        }
    }
    (!all.is_empty()).then(|| all[rng.below(all.len())])
}

/// A record under the checkpoint that satisfies `holds`: its batch and index.
fn pick_any(
    log: &ForgedLog,
    covered: usize,
    rng: &mut SeededRng,
    holds: impl Fn(&ForgedRecord) -> bool,
) -> Option<(usize, usize)> {
    let batches = log.segments.iter().flatten().enumerate().take(covered);
    let all: Vec<(usize, usize)> = batches
        .flat_map(|(at, batch)| (0..batch.records.len()).map(move |index| (at, index, batch)))
        .filter(|(_, index, batch)| holds(&batch.records[*index]))
        .map(|(at, index, _)| (at, index))
        .collect();
    (!all.is_empty()).then(|| all[rng.below(all.len())])
}

/// A different number, mostly a near one.
fn changed_number(number: u64, rng: &mut SeededRng) -> u64 {
    match rng.below(4) {
        0 => number.wrapping_add(1 + rng.next() % 1000),
        1 => number ^ 1 << rng.below(64),
        2 => number.saturating_sub(1),
        _ => number + 1,
    }
}

fn head_of(log: &mut ForgedLog, (batch, index): (usize, usize)) -> &mut Vec<u8> {
    match &mut log.get(batch).records[index] {
        ForgedRecord::Logical { head, .. } => head,
        ForgedRecord::Part { encoded, .. } | ForgedRecord::Rest { encoded, .. } => encoded,
        ForgedRecord::Erased { .. } | ForgedRecord::ErasedBatches { .. } => unreachable!("it has no head"),
    }
}

fn resealed_forgery(victim: &ForgeryTarget, how: &str, rng: &mut SeededRng) -> Option<StoreFiles> {
    let (mut log, covered) = (victim.log.clone(), victim.covered);
    match how {
        "a salt changed" => {
            let (batch, index) = pick(&log, covered, &[], rng)?;
            if let ForgedRecord::Logical { salt, .. } = &mut log.get(batch).records[index] {
                salt[rng.below(16)] ^= 1 << rng.below(8);
            }
        }
        "a byte of a head changed" => {
            let at = pick(&log, covered, &[], rng)?;
            let head = head_of(&mut log, at);
            let byte = rng.below(head.len());
            head[byte] ^= 1 << rng.below(8);
        }
        "a value changed" => {
            let at = pick(&log, covered, &[1], rng)?;
            *head_of(&mut log, at).last_mut()? ^= 1 + rng.below(9) as u8;
        }
        "a frame's time changed" => {
            let at = pick(&log, covered, &[5], rng)?;
            let head = head_of(&mut log, at);
            let mut frame = ForgedFrameHead::parse(head)?;
            match rng.below(2) {
                0 => frame.start = frame.start.wrapping_add(2 + rng.next() % 9),
                _ => frame.duration += 1 + rng.next() % 9,
            }
            *head = frame.head();
        }
        "a frame's body changed, the chain relinked" => {
            let at = pick(&log, covered, &[5], rng)?;
            let head = head_of(&mut log, at);
            let mut frame = ForgedFrameHead::parse(head)?;
            let slot = frame.bodies[..2]
                .iter()
                .position(|body| matches!(body, ForgedReference::Inline(b) if !b.is_empty()))?;
            if let ForgedReference::Inline(bytes) = &mut frame.bodies[slot] {
                let byte = rng.below(bytes.len());
                bytes[byte] ^= 1 << rng.below(5);
            }
            *head = frame.head();
            log.relink(&victim.ids);
        }
        "a large body changed, the chain relinked" => {
            // A frame whose large output is no base of a later one: the new output becomes a blob in a group
            // of its own.
            let at = pick(&log, covered, &[5], rng)?;
            let mut frame = ForgedFrameHead::parse(head_of(&mut log, at))?;
            if !frame.bodies[1].is_blob() {
                return None;
            }
            let (text, group) = (rng.text(60), 1_000_000);
            frame.bodies[1] = ForgedReference::Blob(text.len() as u64, *blake3::hash(&text).as_bytes());
            let ForgedRecord::Logical { head, tail, .. } = &mut log.get(at.0).records[at.1] else {
                return None;
            };
            *head = frame.head();
            let mut recipe = Vec::new();
            varint(&mut recipe, (text.len() as u64) << 2 | 3);
            varint(&mut recipe, group << 1);
            varint(&mut recipe, 0);
            // The tail: the recipe of the input, if it is a blob, then the output's.
            let kept = if frame.bodies[0].is_blob() { first_recipe(tail) } else { 0 };
            tail.truncate(kept);
            varint(tail, 0);
            varint(tail, recipe.len() as u64);
            tail.extend_from_slice(&recipe);
            let namespace = log.segments.iter().flatten().flat_map(|b| &b.records).find_map(|r| match r {
                ForgedRecord::Part { namespace, .. } | ForgedRecord::Rest { namespace, .. } => {
                    Some(*namespace)
                }
                _ => None,
            })?;
            let part = ForgedRecord::Part {
                group,
                namespace,
                raw_start: 0,
                raw_len: text.len() as u64,
                codec: 0,
                encoded: text,
            };
            log.get(at.0).records.push(part);
            log.relink(&victim.ids);
        }
        "a run's record changed" => {
            let at = pick(&log, covered, &[4], rng)?;
            let head = head_of(&mut log, at);
            // Changes names, tags, status, severity, times or counts, but nothing that would not parse.
            let byte = 1 + rng.below(head.len() - 1);
            head[byte] = head[byte].wrapping_add(1 + rng.below(3) as u8);
        }
        "a record's kind changed" => {
            let (batch, index) = pick(&log, covered, &[], rng)?;
            if let ForgedRecord::Logical { kind, .. } = &mut log.get(batch).records[index] {
                *kind = 1 + (*kind + rng.below(6) as u8) % 7;
            }
        }
        "a record made one to skip" => {
            let (batch, index) = pick(&log, covered, &[], rng)?;
            if let ForgedRecord::Logical { kind, .. } = &mut log.get(batch).records[index] {
                *kind |= 128;
            }
        }
        "a record to skip put in" => {
            let records = &mut log.get(rng.below(covered)).records;
            let skipped =
                ForgedRecord::Logical { kind: 200, salt: [7; 16], head: rng.bytes(9), tail: Vec::new() };
            records.insert(rng.below(records.len() + 1), skipped);
        }
        "a record dropped" => {
            let batch = rng.below(covered);
            let records = &mut log.get(batch).records;
            records.remove(rng.below(records.len()));
            if records.is_empty() {
                log.remove(batch);
            }
        }
        "a record doubled" => {
            let batch = rng.below(covered);
            let records = &mut log.get(batch).records;
            let index = rng.below(records.len());
            records.insert(rng.below(records.len() + 1), records[index].clone());
        }
        "two records swapped" => {
            let (one, two) = (pick(&log, covered, &[], rng)?, pick(&log, covered, &[], rng)?);
            let first = log.get(one.0).records[one.1].clone();
            let second = std::mem::replace(&mut log.get(two.0).records[two.1], first);
            log.get(one.0).records[one.1] = second;
        }
        "a batch dropped" => drop(log.remove(rng.below(covered))),
        "a batch doubled" => {
            let batch = log.get(rng.below(covered)).clone();
            log.insert(rng.below(covered), batch);
        }
        "two batches swapped" => {
            let (one, two) = two_places(rng, covered);
            let second = log.get(two).clone();
            let first = std::mem::replace(log.get(one), second);
            *log.get(two) = first;
        }
        "two batches made one" => {
            let at = rng.below(covered - 1);
            let next = log.remove(at + 1);
            log.get(at).records.extend(next.records);
        }
        "a batch split" => {
            let at = rng.below(covered);
            let batch = log.get(at);
            if batch.records.len() < 2 {
                return None;
            }
            let rest = batch.records.split_off(1 + rng.below(batch.records.len() - 1));
            let time_ns = batch.time_ns;
            log.insert(at + 1, ForgedBatch { time_ns, records: rest });
        }
        "a batch of another store spliced in" => {
            let theirs = victim.other.clone().get(rng.below(victim.other.batches())).clone();
            let at = rng.below(covered);
            match rng.below(2) {
                0 => log.insert(at, theirs),
                _ => *log.get(at) = theirs,
            }
        }
        "a batch of another place put in for one" => {
            let batch = log.get(rng.below(covered)).clone();
            *log.get(rng.below(covered)) = batch;
        }
        "cut to an older state" => log.truncate(1 + rng.below(covered - 1)),
        "cut, and grown again otherwise" => {
            let at = 1 + rng.below(covered - 1);
            let later: Vec<ForgedBatch> = log.segments.iter().flatten().skip(at + 1).cloned().collect();
            log.truncate(at);
            let theirs = victim.other.segments.iter().flatten().skip(at);
            let more: Vec<ForgedBatch> = match rng.below(2) {
                0 => later,
                _ => theirs.cloned().collect(),
            };
            let last = log.segments.len() - 1;
            log.segments[last].extend(more);
        }
        "a node of erased records changed" => {
            let (batch, index) = pick_any(
                &log,
                covered,
                rng,
                |record| matches!(record, ForgedRecord::Erased { nodes, .. } if !nodes.is_empty()),
            )?;
            let ForgedRecord::Erased { nodes, .. } = &mut log.get(batch).records[index] else { return None };
            let at = rng.below(nodes.len());
            match rng.below(3) {
                0 => nodes[at].0 ^= 1,
                1 => drop(nodes.remove(at)),
                _ => nodes[at].1[rng.below(32)] ^= 1 << rng.below(8),
            }
        }
        "a node of erased batches changed" => {
            let (batch, index) = pick_any(&log, covered, rng, |record| {
                matches!(record, ForgedRecord::ErasedBatches { node: Some(_), .. })
            })?;
            let ForgedRecord::ErasedBatches { node, .. } = &mut log.get(batch).records[index] else {
                return None;
            };
            match (rng.below(3), node) {
                (0, node) => *node = None,
                (1, Some(node)) => node.0 ^= 1,
                (_, Some(node)) => node.1[rng.below(32)] ^= 1 << rng.below(8),
                _ => {}
            }
        }
        "erased records counted otherwise" => {
            let (batch, index) =
                pick_any(&log, covered, rng, |record| matches!(record, ForgedRecord::Erased { .. }))?;
            let ForgedRecord::Erased { count, .. } = &mut log.get(batch).records[index] else { return None };
            *count = changed_number(*count, rng);
        }
        "erased batches counted otherwise" => {
            let (batch, index) =
                pick_any(&log, covered, rng, |record| matches!(record, ForgedRecord::ErasedBatches { .. }))?;
            let ForgedRecord::ErasedBatches { seqnos, batches, .. } = &mut log.get(batch).records[index]
            else {
                return None;
            };
            // Readers are not told the number of batches: it only serves the totals.
            match rng.below(4) {
                0 => *batches = changed_number(*batches, rng),
                _ => *seqnos = changed_number(*seqnos, rng),
            }
        }
        "a record put in erased ones' place" => {
            let (batch, index) = pick_any(&log, covered, rng, |record| {
                matches!(record, ForgedRecord::Erased { .. } | ForgedRecord::ErasedBatches { .. })
            })?;
            let from = pick(&log, covered, &[], rng)?;
            log.get(batch).records[index] = log.get(from.0).records[from.1].clone();
        }
        "what is left of a group changed" => {
            let (batch, index) =
                pick_any(&log, covered, rng, |record| matches!(record, ForgedRecord::Rest { .. }))?;
            let ForgedRecord::Rest { group, encoded, codec, .. } = &mut log.get(batch).records[index] else {
                return None;
            };
            match rng.below(6) {
                0 => *group += 1 + rng.next() % 3,
                1 => *codec ^= 1,
                2 => encoded.truncate(rng.below(encoded.len())),
                _ => {
                    let at = rng.below(encoded.len());
                    encoded[at] ^= 1 << rng.below(8);
                }
            }
        }
        "ranges of what is left of a group changed" => {
            let (batch, index) =
                pick_any(&log, covered, rng, |record| matches!(record, ForgedRecord::Rest { .. }))?;
            let ForgedRecord::Rest { ranges, .. } = &mut log.get(batch).records[index] else { return None };
            let at = rng.below(ranges.len());
            match rng.below(4) {
                0 => ranges[at].0 = changed_number(ranges[at].0, rng),
                1 => ranges[at].1 = changed_number(ranges[at].1, rng),
                2 => drop(ranges.remove(at)),
                _ => ranges.insert(at, (1 + rng.next() % 9, 1 + rng.next() % 9)),
            }
        }
        "what a rewritten footer says changed" => {
            let mut said: Vec<_> = log.rewritten.iter_mut().flatten().collect();
            let at = rng.below(said.len().max(1));
            let (_, state) = said.get_mut(at)?;
            match rng.below(6) {
                0 => state.next_group = changed_number(state.next_group, rng),
                1 => state.next_run = changed_number(state.next_run, rng),
                2 => state.next_space = changed_number(u64::from(state.next_space), rng) as u32,
                3 => state.newest_ns = changed_number(state.newest_ns, rng),
                _ => {
                    let total = rng.below(9);
                    state.totals[total] = changed_number(state.totals[total], rng);
                }
            }
        }
        "what a manifest says of rewriting changed" => {
            let (next, erased) = log.erased.as_mut()?;
            match rng.below(4) {
                0 => *next = next.wrapping_add(1 + rng.below(3) as u32).wrapping_sub(2),
                _ => {
                    let total = rng.below(9);
                    erased[total] = changed_number(erased[total], rng);
                }
            }
        }
        FORGOTTEN => {
            let (batch, index) = pick(&log, covered, &[], rng)?;
            let seqno = log.first_seqno(batch) + log.get(batch).seqnos_before(index);
            let ForgedRecord::Logical { kind, salt, head, .. } = &log.get(batch).records[index] else {
                return None;
            };
            let parts = [&[0], &salt[..], &[*kind, 1], &seqno.to_le_bytes(), head];
            let node = (0, *blake3::hash(&parts.concat()).as_bytes());
            log.get(batch).records[index] = ForgedRecord::Erased { count: 1, nodes: vec![node] };
            // The record is allowed in a rewritten segment only.
            let segment = log.segment_of(batch);
            log.rewritten.get(segment)?.as_ref()?;
        }
        "the directory rolled back" => {
            return match rng.below(2) {
                0 => Some(victim.older.clone()),
                _ => victim.old_log.write(),
            };
        }
        _ => log = ForgedLog { store: log.store, ..victim.other.clone() },
    }
    log.write()
}

/// Length of the first recipe of a tail.
fn first_recipe(tail: &[u8]) -> usize {
    let mut at = 0;
    let mut varint = || {
        let mut value = 0usize;
        for shift in (0..).step_by(7) {
            let byte = tail[at];
            at += 1;
            value |= usize::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    };
    varint();
    let len = varint();
    at + len
}

fn harmless_change(victim: &ForgeryTarget, how: &str, rng: &mut SeededRng) -> Option<StoreFiles> {
    let mut log = victim.log.clone();
    match how {
        "groups stored another way" => log.decompress(),
        "segments joined" => {
            let at = rng.below(log.segments.len() - 1);
            // A rewritten segment records the log state after it.
            if log.rewritten[at..at + 2].iter().any(Option::is_some) {
                return None;
            }
            let next = log.segments.remove(at + 1);
            log.rewritten.remove(at + 1);
            log.segments[at].extend(next);
        }
        "times of batches changed" => {
            let at = rng.below(victim.covered);
            log.get(at).time_ns += 1 + rng.next() % 1000;
        }
        "tables deleted" => {
            let mut files = victim.now.clone();
            files.retain(|path, _| path.extension().is_none_or(|e| e != "tbl"));
            return Some(files);
        }
        _ => {}
    }
    log.write()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ForgeryVerdict {
    Plainly,
    ByCheckpoint,
    /// Everything that can be read is unchanged.
    Harmless,
    /// By the forger's own reading, the records under the checkpoint are unchanged and later ones are not.
    AfterIt,
    /// The comparison reports that the last leaves cannot be compared, as after forgetting them. It reports
    /// nothing like that for the original store.
    SaidUnknown,
    Missed,
}

fn judge(victim: &ForgeryTarget, files: &StoreFiles) -> ForgeryVerdict {
    let typed = |error: &annals::Error| {
        assert!(
            !matches!(error.kind(), ErrorKind::Bug | ErrorKind::Poisoned | ErrorKind::Locked),
            "{error:?}"
        );
    };
    let store = match open(files) {
        Ok(store) => store,
        Err(error) => {
            typed(&error);
            return ForgeryVerdict::Plainly;
        }
    };
    match store.verify() {
        Ok(report) if report.damaged.is_empty() => {}
        Ok(_) => return ForgeryVerdict::Plainly,
        Err(error) => {
            typed(&error);
            return ForgeryVerdict::Plainly;
        }
    }
    let compared = store.verify_against(&victim.checkpoint).unwrap();
    if !compared.differences.is_empty() {
        return ForgeryVerdict::ByCheckpoint;
    }
    match content(&store) {
        Ok(content) if content == victim.content => ForgeryVerdict::Harmless,
        _ => {
            let leaves = victim.checkpoint.leaves as usize;
            match ForgedLog::read(files).logical(leaves) == victim.log.logical(leaves) {
                true => ForgeryVerdict::AfterIt,
                false if compared.erased > 0 => ForgeryVerdict::SaidUnknown,
                false => ForgeryVerdict::Missed,
            }
        }
    }
}

#[test]
fn older_checkpoint_detects_every_forged_rewrite() {
    catches_every_rewrite(false, "rewrites::older_checkpoint_detects_every_forged_rewrite");
}

/// The same for a compacted store: its rewritten segments and the nodes in them.
#[test]
fn checkpoint_detects_forged_rewrites_after_compaction() {
    catches_every_rewrite(true, "rewrites::checkpoint_detects_forged_rewrites_after_compaction");
}

fn catches_every_rewrite(compacted: bool, test: &str) {
    let tried: usize =
        std::env::var("ANNALS_REWRITES").ok().and_then(|text| text.parse().ok()).unwrap_or(3000);
    let seed = seed(31, test);
    println!("with ANNALS_REWRITES={tried}");
    let victim = victim(compacted);
    if compacted {
        let records =
            || victim.log.segments.iter().flatten().take(victim.covered).flat_map(|batch| &batch.records);
        let count = |holds: fn(&ForgedRecord) -> bool| records().filter(|record| holds(record)).count();
        let kinds = [
            count(|record| matches!(record, ForgedRecord::Erased { nodes, .. } if !nodes.is_empty())),
            count(|record| matches!(record, ForgedRecord::ErasedBatches { node: Some(_), .. })),
            count(|record| matches!(record, ForgedRecord::Rest { .. })),
        ];
        println!("erased, erased batches, rests of groups: {kinds:?}");
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }
    // The forger reproduces the engine's files: otherwise its own mistakes would be detected.
    let again = ForgedLog::read(&victim.log.write().unwrap());
    assert!(again == victim.log);
    let mut relinked = victim.log.clone();
    relinked.relink(&victim.ids);
    assert!(relinked == victim.log);
    assert_eq!(judge(&victim, &victim.log.write().unwrap()), ForgeryVerdict::Harmless);

    let mut clever_kinds = CLEVER.to_vec();
    if compacted {
        clever_kinds.extend(REWRITTEN);
        clever_kinds.push(FORGOTTEN);
    }
    let harmless_from = PLAIN.len() + clever_kinds.len();
    let kinds: Vec<&str> = PLAIN.into_iter().chain(clever_kinds).chain(HARMLESS).collect();
    let mut counts: BTreeMap<(usize, ForgeryVerdict), usize> = BTreeMap::new();
    let mut missed = Vec::new();
    let (mut done, mut round) = (0, 0u64);
    // Repeats a single round.
    let only: Option<u64> = std::env::var("ANNALS_ROUND").ok().and_then(|text| text.parse().ok());
    while done < tried {
        round = only.unwrap_or(round + 1);
        let mut rng = SeededRng(seed ^ round.wrapping_mul(0x9e37_79b9));
        // Few edits are harmless: they show that content is compared, and which changes pass.
        let kind = match rng.below(20) {
            0..7 => rng.below(PLAIN.len()),
            7..19 => rng.below(harmless_from - PLAIN.len()) + PLAIN.len(),
            _ => harmless_from + rng.below(HARMLESS.len()),
        };
        let how = kinds[kind];
        let made = match kind {
            kind if kind < PLAIN.len() => plain_forgery(&victim, how, &mut rng),
            kind if kind < harmless_from => resealed_forgery(&victim, how, &mut rng),
            _ => harmless_change(&victim, how, &mut rng),
        };
        // An edit that changed nothing is no rewrite.
        let Some(made) = made.filter(|made| *made != victim.now) else {
            assert_eq!(only, None, "this round changes nothing");
            continue;
        };
        done += 1;
        let caught = judge(&victim, &made);
        *counts.entry((kind, caught)).or_default() += 1;
        let expected_harmless = kind >= harmless_from;
        if caught == ForgeryVerdict::Missed || (expected_harmless && caught != ForgeryVerdict::Harmless) {
            missed.push((how, round, caught));
        }
        if only.is_some() {
            break;
        }
    }
    let count = |kind, caught| counts.get(&(kind, caught)).copied().unwrap_or(0);
    let line = |how: &str, all: usize, row: [usize; 6]| {
        let [plainly, checkpoint, harmless, after, unknown, missed] = row;
        println!(
            "{how:<45} {all:>8} {plainly:>8} {checkpoint:>10} {harmless:>8} {after:>8} {unknown:>8} {missed:>6}"
        );
    };
    println!(
        "caught plainly, by the checkpoint alone, harmless, only later records changed, said to be unknown, missed:"
    );
    let mut sums = [0; 6];
    for (kind, how) in kinds.iter().enumerate() {
        let row = [
            ForgeryVerdict::Plainly,
            ForgeryVerdict::ByCheckpoint,
            ForgeryVerdict::Harmless,
            ForgeryVerdict::AfterIt,
            ForgeryVerdict::SaidUnknown,
            ForgeryVerdict::Missed,
        ]
        .map(|caught| count(kind, caught));
        line(how, row.iter().sum(), row);
        row.iter().zip(&mut sums).for_each(|(n, sum)| *sum += n);
    }
    line("all", done, sums);
    assert!(missed.is_empty(), "how, round, outcome: {:?}", &missed[..missed.len().min(20)]);
    if only.is_some() {
        return;
    }
    // Only a node that ends after the checkpoint hides anything.
    assert!(sums[4] * 1000 <= done, "{} of {done} could not be compared", sums[4]);
    // An edit before the checkpoint hardly ever leaves all covered records unchanged.
    assert!(sums[3] * 500 <= done, "{} of {done} changed only later records", sums[3]);
    // The forger is useless if plain checks detect everything. After a compaction the ledger states what was
    // erased, so plain checks detect more.
    let least = if compacted { 8 } else { 4 };
    assert!(sums[1] * least > done, "only {} of {done} rewrites got past a plain check", sums[1]);
}

#[test]
fn comparison_locates_the_difference() {
    let victim = victim(false);
    let leaves = victim.checkpoint.leaves;
    let compare = |files: &StoreFiles| open(files).unwrap().verify_against(&victim.checkpoint).unwrap();
    // One changed value: the comparison names its leaf, and its seqno.
    let mut log = victim.log.clone();
    let (batch, index) = pick(&log, victim.covered, &[1], &mut SeededRng(3)).unwrap();
    *head_of(&mut log, (batch, index)).last_mut().unwrap() ^= 1;
    let leaf = log.segments.iter().flatten().take(batch).filter(|b| b.has_leaf()).count() as u64;
    let seqno = log.segments.iter().flatten().take(batch).map(|b| b.records.len()).sum::<usize>() + index + 1;
    let found = compare(&log.write().unwrap());
    let [CheckpointDifference::Rewritten(part)] = &found.differences[..] else { panic!("{found:?}") };
    assert!(part.leaves.contains(&leaf) && part.leaves.end - part.leaves.start <= 2, "{part:?}");
    assert!((part.first.0..=part.last.0).contains(&(seqno as u64)), "{part:?}");
    assert!(part.after_ns.unwrap() < part.until_ns, "{part:?}");
    // An older state: only the missing part differs.
    let found = compare(&victim.older);
    let [CheckpointDifference::RolledBack(part)] = &found.differences[..] else { panic!("{found:?}") };
    assert_eq!((part.leaves.end, part.last), (leaves, victim.checkpoint.seqno));
    assert_eq!(found.read, part.leaves.start);
    // Another store.
    let found = compare(&victim.other.write().unwrap());
    assert!(matches!(found.differences[..], [CheckpointDifference::AnotherStore { .. }]), "{found:?}");
    // A log with an unreadable end.
    let mut files = victim.now.clone();
    let open_store = open(&files).unwrap();
    files.get_mut(Path::new("s/segments/00000002.seg")).unwrap()[120] ^= 1;
    let sim = disk_of(&files);
    drop(open_store);
    let damaged = Store::open_read_only_with("s", options(&sim)).unwrap();
    let found = damaged.verify_against(&victim.checkpoint).unwrap();
    assert!(matches!(found.differences[..], [CheckpointDifference::Unreadable { .. }]), "{found:?}");
    assert_eq!(damaged.checkpoint().unwrap_err().kind(), ErrorKind::Damaged);
}

/// Readers trust a rewritten segment's footer, so each value that the batches also give must agree with them.
#[test]
fn rewritten_footer_that_contradicts_batches_is_refused() {
    let victim = victim(true);
    let store = Store::open_read_only_with("s", options(&disk_of(&victim.now))).unwrap().id().0;
    let mut tried = 0;
    for (path, whole) in &victim.now {
        let id = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        let Some(id) = id.filter(|id| *id >= 1 << 31 && path.extension().is_some_and(|end| end == "seg"))
        else {
            continue;
        };
        let end = whole.len() - 16;
        let len = u32::from_le_bytes(whole[end..end + 4].try_into().unwrap()) as usize;
        let tail = end - len;
        // The next record's seqno, the ledger's first peak, and the digest of the last batch.
        for at in [tail + 8, tail + 48, end - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let salt = crc(0, &[&store, &id.to_le_bytes()]);
            let check = crc(salt, &[&(tail as u64).to_le_bytes(), &bytes[tail..end + 4]]);
            bytes[end + 4..end + 8].copy_from_slice(&check.to_le_bytes());
            let mut files = victim.now.clone();
            // Tables record the log's end: without them the log is read from the start.
            files.retain(|path, _| path.extension().is_none_or(|end| end != "tbl"));
            files.insert(path.clone(), bytes);
            let what = match open(&files).and_then(|store| store.verify()) {
                Ok(report) => report.damaged.iter().map(|problem| problem.what.clone()).collect::<String>(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                    error.to_string()
                }
            };
            assert!(what.contains("footer"), "byte {at} of {} is not detected: {what:?}", path.display());
            tried += 1;
        }
    }
    assert!(tried >= 3, "{tried}");
}
