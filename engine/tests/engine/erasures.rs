//! Records that are taken out of the log must be explained by a statement and a tombstone of the ledger.

use std::ops::Range;
use std::sync::Arc;

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{
    ErrorKind, Options, RunSpec, Status, Store,
    kv::History,
    ledger::{Checkpoint, CheckpointDifference, Comparison, ErasureReport, GapKind},
    retention::{RetentionLimit, RetentionPolicy, RetentionRule},
    upkeep::{CompactOptions, diagnose},
};

use crate::forge::{ForgedBatch, ForgedLog, ForgedRecord, StoreFiles, varint};
use crate::support::{SeededRng, assert_whole, disk_of, recorded, seed, sim_options};

const DAY_NS: u64 = 86_400_000_000_000;
const STATEMENT: u8 = 10;

fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 2 << 10, ..sim_options(sim) }
}

fn files(sim: &SimIo) -> StoreFiles {
    sim.files().into_iter().map(|path| (path.clone(), sim.read(&path).unwrap())).collect()
}

/// A store after a run was forgotten and compacted, and a checkpoint from before that.
struct Forgotten {
    before: ForgedLog,
    now: ForgedLog,
    checkpoint: Checkpoint,
    /// A checkpoint from after it.
    later: Checkpoint,
    /// Batches that `checkpoint` covers in `now`.
    covered: usize,
}

fn forgotten() -> Forgotten {
    let sim = SimIo::new(21);
    // Each closing would state again what is erased, and the attacks want the only statement.
    let options = |sim: &SimIo| Options { raw_tail_bytes_max: 0, ..options(sim) };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    let all = space.keyspace("all", History::All).unwrap();
    for number in 1..=9 {
        recorded(&space, &format!("run {number}"), 4).0.end(Status::Ok).unwrap();
        latest.put(b"key", format!("value {number}")).unwrap();
        all.put(b"key", format!("value {number}")).unwrap();
    }
    let checkpoint = store.checkpoint().unwrap();
    drop((latest, all, space));
    store.close().unwrap();
    let before = ForgedLog::read(&files(&sim));
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let uid = space.forget("run 8", "asked for").unwrap().run.uid;
    assert_eq!(uid.0, 8);
    store.compact(&CompactOptions { must_go: vec![uid], ..CompactOptions::default() }).unwrap();
    space.keyspace("all", History::All).unwrap().put(b"key", "the last").unwrap();
    let later = store.checkpoint().unwrap();
    assert_eq!(store.verify_against(&checkpoint).unwrap().differences, []);
    assert_whole(&store);
    drop(space);
    store.close().unwrap();
    let now = ForgedLog::read(&files(&sim));
    assert!(ForgedLog::read(&now.write().unwrap()) == now, "the forger makes the same files");
    let covered = now.up_to_leaf(checkpoint.leaves as usize);
    Forgotten { before, now, checkpoint, later, covered }
}

/// What the checks say about a forged log.
struct Checks {
    damaged: Vec<String>,
    notes: Vec<String>,
    gaps: ErasureReport,
    compared: Comparison,
    is_healthy: bool,
}

fn check(log: &ForgedLog, checkpoint: &Checkpoint) -> Checks {
    let sim = disk_of(&log.write().unwrap());
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    let report = store.verify().unwrap();
    Checks {
        damaged: report.damaged.into_iter().map(|problem| problem.what).collect(),
        notes: report.notes,
        gaps: store.gaps(&mut |_| Ok(())).unwrap(),
        compared: store.verify_against(checkpoint).unwrap(),
        is_healthy: diagnose("s", options(&sim)).unwrap().is_healthy(),
    }
}

/// Every check names the erasure, without the checkpoint, too.
#[track_caller]
fn assert_named(found: &Checks) {
    let is_named = |what: &String| what.starts_with("erased without a tombstone: ");
    assert!(!found.damaged.is_empty() && found.damaged.iter().all(is_named), "{:?}", found.damaged);
    assert!(!found.gaps.unexplained.is_empty());
    let named = |difference: &CheckpointDifference| matches!(difference, CheckpointDifference::Erased { .. });
    assert!(found.compared.differences.iter().any(named), "{:?}", found.compared);
    assert!(!found.is_healthy);
}

/// Somebody forgot a run, cut the log back to a checkpoint, which removed the tombstone, and wrote a fresh
/// manifest. `verify`, `verify --against`, `ledger gaps` and `doctor` called the store whole and unchanged.
#[test]
fn log_cut_back_behind_a_tombstone_is_named() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    let found = check(&victim.now, &victim.checkpoint);
    assert_named(&found);
    assert!(found.damaged.iter().any(|what| what.contains(": leaves ")), "{:?}", found.damaged);
    assert!(found.damaged.iter().any(|what| what.contains("run 8")), "{:?}", found.damaged);
    assert_eq!(found.gaps.missing_runs, std::slice::from_ref(&(8..9)));
    // The checkpoint shows it in two more ways.
    let differences = &found.compared.differences;
    let fewer = |one: &CheckpointDifference| matches!(one, CheckpointDifference::Fewer { stated: 0, .. });
    assert!(differences.iter().any(fewer), "{differences:?}");
    let missing =
        CheckpointDifference::RunsMissing { expected: 9, found: 8, missing: std::iter::once(8..9).collect() };
    assert!(differences.contains(&missing), "{differences:?}");
}

/// The batch with the statement.
fn statement_in(log: &ForgedLog) -> usize {
    let is_statement =
        |record: &ForgedRecord| matches!(record, ForgedRecord::Logical { kind: STATEMENT, .. });
    let mut batches = log.segments.iter().flatten();
    batches.position(|batch| batch.records.iter().any(is_statement)).unwrap()
}

#[test]
fn dropped_statement_is_noticed() {
    let mut victim = forgotten();
    let at = statement_in(&victim.now);
    victim.now.remove(at);
    assert_named(&check(&victim.now, &victim.checkpoint));
}

/// Erases a logical record of a batch as compaction does it; returns its seqno.
fn erase(log: &mut ForgedLog, at: usize, index: usize) -> u64 {
    let seqno = log.first_seqno(at) + log.get(at).seqnos_before(index);
    let batch = log.get(at);
    let ForgedRecord::Logical { kind, salt, head, .. } = &batch.records[index] else { unreachable!() };
    let parts = [&[0], &salt[..], &[*kind, 1], &seqno.to_le_bytes(), head];
    let node = (0, *blake3::hash(&parts.concat()).as_bytes());
    batch.records[index] = ForgedRecord::Erased { count: 1, nodes: vec![node] };
    seqno
}

/// Whether a batch stands in a rewritten segment, where records may be erased.
fn is_rewritten(log: &ForgedLog, at: usize) -> bool {
    log.rewritten.get(log.segment_of(at)).is_some_and(Option::is_some)
}

fn logical_record(batch: &ForgedBatch) -> Option<usize> {
    batch.records.iter().position(|record| matches!(record, ForgedRecord::Logical { .. }))
}

/// A record erased as compaction does it leaves the ledger's root unchanged. Only the statement shows it.
#[test]
fn one_more_erased_record_is_noticed() {
    let victim = forgotten();
    let mut tried = 0;
    for at in (0..victim.covered).filter(|at| is_rewritten(&victim.now, *at)) {
        let mut log = victim.now.clone();
        let Some(index) = logical_record(log.get(at)) else { continue };
        let seqno = erase(&mut log, at, index);
        let sim = disk_of(&log.write().unwrap());
        let named = match Store::open_read_only_with("s", options(&sim))
            .and_then(|store| store.gaps(&mut |_| Ok(())))
        {
            Ok(report) => report.problems(),
            // Without the record of a namespace the store does not open.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                continue;
            }
        };
        assert!(named.iter().any(|what| what.contains(&format!("record {seqno} of leaf"))), "{named:?}");
        tried += 1;
    }
    assert!(tried > 10, "{tried}");
}

/// Regression: a compaction of the same log file stated all that was erased there, also what somebody had erased past
/// annals, and from then on every check called the store whole.
#[test]
fn compaction_does_not_explain_what_somebody_else_erased() {
    let victim = forgotten();
    let mut tried = 0;
    for at in (0..victim.covered).filter(|at| is_rewritten(&victim.now, *at)).step_by(3) {
        let mut log = victim.now.clone();
        let Some(index) = logical_record(log.get(at)) else { continue };
        erase(&mut log, at, index);
        let sim = disk_of(&log.write().unwrap());
        let Ok(store) = Store::open_with("s", options(&sim)) else { continue };
        let erased = store.gaps(&mut |_| Ok(())).unwrap().unexplained;
        let error = store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() }).err();
        if let Some(error) = &error {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            // Without a frame or a value a compaction ends before.
            tried += u32::from(error.to_string().contains("no statement names"));
        }
        assert_eq!(store.gaps(&mut |_| Ok(())).unwrap().unexplained, erased, "{error:?}");
        store.close().unwrap();
    }
    assert!(tried > 0);
}

/// The statement that a compaction would have made of this log, computed without the engine.
fn forged_statement(log: &ForgedLog, runs: &[(u64, u64)]) -> ForgedBatch {
    let mut spans = Vec::new();
    let mut seqno = 1u64;
    for (at, batches) in log.segments.iter().enumerate() {
        let (first, mut set, mut leaves) = (seqno, Vec::<(u64, u64)>::new(), 0);
        for batch in batches {
            let mut living = 0;
            for record in &batch.records {
                let count = match record {
                    ForgedRecord::Erased { count, .. } => *count,
                    ForgedRecord::ErasedBatches { seqnos, .. } => *seqnos,
                    other => {
                        living += u64::from(matches!(other, ForgedRecord::Logical { .. }));
                        seqno += 1;
                        continue;
                    }
                };
                match set.last_mut() {
                    Some((_, end)) if *end == seqno => *end += count,
                    _ => set.push((seqno, seqno + count)),
                }
                seqno += count;
            }
            leaves += if living == 0 { batch.leaves() } else { 0 };
        }
        if log.rewritten.get(at).is_some_and(Option::is_some) && !set.is_empty() {
            spans.push((first, seqno, set, leaves));
        }
    }
    let mut head = vec![1];
    head.extend_from_slice(&7u64.to_le_bytes());
    varint(&mut head, spans.len() as u64);
    for (first, end, set, leaves) in spans {
        let mut digest = blake3::Hasher::new_derive_key("annals erased records 1");
        let mut records = 0;
        for (from, to) in set {
            records += to - from;
            digest.update(&from.to_le_bytes()).update(&to.to_le_bytes());
        }
        for number in [first, end - first, records, leaves] {
            varint(&mut head, number);
        }
        head.extend_from_slice(digest.finalize().as_bytes());
    }
    varint(&mut head, runs.len() as u64);
    for (gap, length) in runs {
        varint(&mut head, *gap);
        varint(&mut head, *length);
    }
    let statement = ForgedRecord::Logical { kind: STATEMENT, salt: [3; 16], head, tail: Vec::new() };
    ForgedBatch { time_ns: 7, records: vec![statement] }
}

/// A forged statement explains the erased records, but not the run, which has no tombstone.
/// The ranges of a single run number.
fn one(run: u64) -> Vec<Range<u64>> {
    std::iter::once(run..run + 1).collect()
}

#[test]
fn forged_statement_does_not_hide_a_missing_run() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    let statement = forged_statement(&victim.now, &[]);
    victim.now.segments.push(vec![statement]);
    let found = check(&victim.now, &victim.checkpoint);
    assert_eq!(found.damaged, ["erased without a tombstone: run 8"]);
    let missing = CheckpointDifference::RunsMissing { expected: 9, found: 8, missing: one(8) };
    assert!(found.compared.differences.contains(&missing), "{:?}", found.compared);
    // A statement that calls the number unused is listed, and the checkpoint shows that it is wrong.
    let mut unused = victim.now.clone();
    let head = [&[3u8][..], &7u64.to_le_bytes(), &[0, 1, 8, 1]].concat();
    let statement = ForgedRecord::Logical { kind: STATEMENT, salt: [3; 16], head, tail: Vec::new() };
    unused.segments.push(vec![ForgedBatch { time_ns: 7, records: vec![statement] }]);
    let found = check(&unused, &victim.checkpoint);
    assert_eq!(found.damaged, Vec::<String>::new());
    // Its four frames and its end.
    let records = CheckpointDifference::RunRecordsMissing { runs: one(8), missing: 5 };
    assert_eq!(found.compared.differences, [missing, records]);
    // A checkpoint of version 1 has no counts, and the comparison says so.
    let first = Checkpoint { counts: None, parts: None, ..victim.checkpoint };
    let found = check(&unused, &first);
    assert_eq!((found.compared.differences, found.compared.erased_since), (vec![], None));
}

/// Stores of an older format need no statement, so a forger may claim that format. The counts show it. The next
/// opening for writing states what is missing, which excuses nothing.
#[test]
fn older_format_as_excuse_is_noticed_by_a_checkpoint() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    (victim.now.rewritten_format, victim.now.manifest_format) = (2, 3);
    let found = check(&victim.now, &victim.checkpoint);
    assert_eq!(found.damaged, Vec::<String>::new());
    let said = |note: &String| note.starts_with("erasures before format 4 cannot be checked");
    assert!(found.notes.iter().any(said), "{:?}", found.notes);
    let fewer = |one: &CheckpointDifference| matches!(one, CheckpointDifference::Fewer { stated: 0, .. });
    assert!(found.compared.differences.iter().any(fewer), "{:?}", found.compared);
    let sim = disk_of(&victim.now.write().unwrap());
    Store::open_with("s", options(&sim)).unwrap().close().unwrap();
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    let notes = store.verify().unwrap().notes;
    assert!(notes.iter().any(said));
    // Regression: the statement of that opening silenced the missing run.
    let earlier =
        |note: &String| note.starts_with("without a record since before format 4") && note.contains("run 8");
    assert!(notes.iter().any(earlier), "{notes:?}");
    let differences = store.verify_against(&victim.checkpoint).unwrap().differences;
    assert!(differences.iter().any(fewer), "{differences:?}");
}

/// A manifest of an older format over segments of this one: the first opening for writing stated what was missing,
/// and so made the erasure good.
#[test]
fn older_manifest_does_not_excuse_newer_segments() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    victim.now.manifest_format = 3;
    assert_named(&check(&victim.now, &victim.checkpoint));
    let sim = disk_of(&victim.now.write().unwrap());
    Store::open_with("s", options(&sim)).unwrap().close().unwrap();
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert!(!store.gaps(&mut |_| Ok(())).unwrap().unexplained.is_empty());
}

/// Segments of the older format in a store of this one: every such segment was stated when the store was upgraded.
#[test]
fn older_segments_do_not_excuse_a_newer_store() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    victim.now.rewritten_format = 2;
    assert_named(&check(&victim.now, &victim.checkpoint));
}

/// Segments from before a compaction were put back, under the statement of the compaction.
#[test]
fn erased_records_that_come_back_are_noticed_by_a_checkpoint() {
    let victim = forgotten();
    let mut log = victim.before.clone();
    let known = log.up_to_leaf(victim.checkpoint.leaves as usize);
    let closed: Vec<ForgedBatch> = log.segments.iter().flatten().skip(known).cloned().collect();
    let later: Vec<ForgedBatch> =
        victim.now.segments.iter().flatten().skip(victim.covered).cloned().collect();
    assert!(later.starts_with(&closed));
    log.truncate(known);
    log.segments.last_mut().unwrap().extend(later);
    let found = check(&log, &victim.later);
    assert_eq!(found.damaged, Vec::<String>::new());
    let more = |one: &CheckpointDifference| matches!(one, CheckpointDifference::More { .. });
    assert!(found.compared.differences.iter().any(more), "{:?}", found.compared);
}

/// The checkpoint as annals made it before it counted records by runs and marks.
fn second_version(checkpoint: &Checkpoint) -> Checkpoint {
    Checkpoint { parts: None, ..checkpoint.clone() }
}

/// Whether this is a frame or a state of a run.
fn is_of_run(record: &ForgedRecord, run: u8) -> bool {
    match record {
        // Uids this small take one byte.
        ForgedRecord::Logical { kind: 5, head, .. } => head[0] == run,
        ForgedRecord::Logical { kind: 4, head, .. } => {
            let length = if head[0] < 128 { 1 } else { 2 };
            head[length] == run
        }
        _ => false,
    }
}

/// The records of a run before anything was forgotten, as a batch of their own.
fn recorded_anew(victim: &Forgotten, run: u8) -> ForgedBatch {
    let old = victim.before.segments.iter().flatten().flat_map(|batch| &batch.records);
    let records = old.filter(|record| is_of_run(record, run)).cloned().collect();
    ForgedBatch { time_ns: 8, records }
}

/// A run was erased, a forged statement explained its records, and another run was recorded with its name and its
/// number. Each count of the whole store was as before, so a comparison called the store unchanged.
#[test]
fn run_recorded_anew_under_an_old_number_is_noticed() {
    let mut victim = forgotten();
    victim.now.truncate(victim.covered);
    let statement = forged_statement(&victim.now, &[]);
    let recorded = recorded_anew(&victim, 8);
    assert!(recorded.records.len() >= 5, "{}", recorded.records.len());
    victim.now.segments.push(vec![statement, recorded]);
    let found = check(&victim.now, &second_version(&victim.checkpoint));
    assert_eq!((found.compared.differences, found.compared.in_parts), (vec![], false));
    let found = check(&victim.now, &victim.checkpoint);
    let missing = CheckpointDifference::RunRecordsMissing { runs: one(8), missing: 5 };
    assert_eq!(found.compared.differences, [missing]);
    // A later checkpoint hides nothing, if an older one is compared, too.
    let sim = disk_of(&victim.now.write().unwrap());
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    let newest = store.checkpoint().unwrap();
    let differences = store.verify_against_all(&newest, &[victim.checkpoint.clone()]).unwrap().differences;
    assert_eq!(differences, [CheckpointDifference::OlderCheckpoint { index: 0 }]);

    // A statement that calls the run replaced is listed as a gap, and no run is younger than that.
    let statement = forged_statement(&victim.now, &[(8, 1)]);
    victim.now.segments.last_mut().unwrap().insert(1, statement);
    let found = check(&victim.now, &victim.checkpoint);
    let revived =
        "records that annals does not write: of run 8 after a drop, a replacement or an erasure".to_owned();
    assert!(found.damaged.contains(&revived), "{:?}", found.damaged);
}

/// A part of the dropped run is put back, and more values are erased than records come back, under a forged
/// statement. Returns the log and how many records of the run came back.
fn put_back_under_erasures(victim: &Forgotten) -> (ForgedLog, usize) {
    let mut log = victim.now.clone();
    let mut back = 0;
    for at in (0..victim.covered).rev().filter(|at| is_rewritten(&victim.now, *at)) {
        let mut batches = log.segments.iter().flatten();
        let first: u64 = batches.by_ref().take(at).map(ForgedBatch::leaves).sum();
        let batch = batches.next().unwrap();
        let [ForgedRecord::ErasedBatches { node: Some(_), .. }] = &batch.records[..] else { continue };
        let leaves = first as usize..(first + batch.leaves()) as usize;
        let span = victim.before.up_to_leaf(leaves.start)..victim.before.up_to_leaf(leaves.end);
        let all = victim.before.segments.iter().flatten();
        let old: Vec<ForgedBatch> = all.skip(span.start).take(span.len()).cloned().collect();
        back = old.iter().flat_map(|batch| &batch.records).filter(|record| is_of_run(record, 8)).count();
        if back > 0 {
            let segment = log.segment_of(at);
            let before: usize = log.segments[..segment].iter().map(Vec::len).sum();
            log.segments[segment].splice(at - before..=at - before, old);
            break;
        }
    }
    let covered = log.up_to_leaf(victim.checkpoint.leaves as usize);
    let mut erased = 0;
    for at in (0..covered).filter(|at| is_rewritten(&log, *at)).collect::<Vec<_>>() {
        let put = |record: &ForgedRecord| matches!(record, ForgedRecord::Logical { kind: 1, .. });
        if let Some(index) = log.get(at).records.iter().position(put) {
            erase(&mut log, at, index);
            erased += 1;
        }
    }
    assert!(back > 0 && erased > back, "{back}, {erased}");
    let statement = forged_statement(&log, &[]);
    log.segments.push(vec![statement]);
    (log, back)
}

/// A dropped run was put back, and more records were erased than came back. So the store had fewer records than the
/// checkpoint counted, and a forged statement explained them.
#[test]
fn records_put_back_are_noticed_though_others_were_erased() {
    let victim = forgotten();
    let (log, back) = put_back_under_erasures(&victim);
    let found = check(&log, &second_version(&victim.later));
    assert_eq!(found.compared.differences, []);
    let found = check(&log, &victim.later).compared.differences;
    let more = CheckpointDifference::RunRecordsBack { runs: one(8), more: back as u64 };
    assert!(found.contains(&more), "{found:?}");
    let back = |one: &CheckpointDifference| matches!(one, CheckpointDifference::Back(_));
    assert!(found.iter().any(back), "{found:?}");
}

/// A compaction that ends between its statement and its edit of the manifest leaves a statement that nothing
/// needs.
#[test]
fn statement_without_its_compaction_is_harmless() {
    let sim = SimIo::new(22);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    for name in ["one", "two", "three"] {
        recorded(&space, name, 4).0.end(Status::Ok).unwrap();
    }
    space.drop_run("two", "rule", "").unwrap();
    let (last, watched) = (store.seqno(), store.clone());
    let cancel = Arc::new(move || watched.seqno() > last);
    let cancelled = store.compact(&CompactOptions { cancel: Some(cancel), ..CompactOptions::default() });
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.seqno().0, last.0 + 1, "the statement is there");
    assert_whole(&store);
    assert!(store.compact(&CompactOptions::default()).unwrap().rewritten > 0);
    assert_whole(&store);
    let report = store.gaps(&mut |_| Ok(())).unwrap();
    assert!(report.records > 0 && report.problems().is_empty() && report.notes().is_empty(), "{report:?}");
}

/// Runs that another of the same name replaced have no tombstone. Compaction erases their last record, too, and
/// states their numbers.
#[test]
fn erased_replaced_runs_are_stated() {
    let sim = SimIo::new(23);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    for _ in 0..4 {
        let run = space.begin_run(RunSpec::new("again").replace(true)).unwrap();
        run.record(annals::Frame::new(annals::Component::Llm, "question".repeat(40), "answer")).unwrap();
        run.end(Status::Ok).unwrap();
    }
    let checkpoint = store.checkpoint().unwrap();
    assert_eq!(checkpoint.counts.map(|counts| (counts.runs, counts.last_run)), Some((4, 4)));
    assert!(store.compact(&CompactOptions::default()).unwrap().rewritten > 0);
    let mut replaced = Vec::new();
    let report = store
        .gaps(&mut |gap| {
            replaced.push((gap.run.0, gap.name));
            Ok(())
        })
        .unwrap();
    replaced.sort();
    assert_eq!(replaced, [(1, None), (2, None), (3, None)], "they are listed without a name");
    assert_eq!(report.missing_runs, []);
    assert_eq!(store.verify_against(&checkpoint).unwrap().differences, []);
    assert_whole(&store);
}

/// A run number was taken before the name was found to be in use, so every refused run left a number that looked
/// like an erased run.
#[test]
fn refused_run_takes_no_run_number() {
    let sim = SimIo::new(24);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let first = recorded(&space, "one", 1).0.end(Status::Ok).unwrap();
    for _ in 0..5 {
        assert_eq!(space.begin_run(RunSpec::new("one")).unwrap_err().kind(), ErrorKind::Conflict);
    }
    let second = recorded(&space, "two", 1).0.end(Status::Ok).unwrap();
    assert_eq!(second.uid.0, first.uid.0 + 1);
}

/// A run that was prepared and never began leaves its number unused. It looked like an erased run. Closing states
/// it, and so does the opening after a crash.
#[test]
fn unused_run_number_is_stated() {
    let sim = SimIo::new(26);
    let begin = || {
        let store = Store::open_with("s", options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        drop(space.prepare_run(RunSpec::new("never")).unwrap());
        let after = space.begin_run(RunSpec::new(format!("after {}", store.seqno()))).unwrap();
        let uid = after.end(Status::Ok).unwrap().uid.0;
        (store, uid)
    };
    let unused = |store: &Store| {
        let mut unused = Vec::new();
        let report = store
            .gaps(&mut |gap| {
                unused.extend((gap.kind == GapKind::Unused).then_some(gap.run.0));
                Ok(())
            })
            .unwrap();
        assert_eq!(report.problems(), Vec::<String>::new());
        let numbers: Vec<u64> = report.unused_runs.iter().cloned().flatten().collect();
        assert_eq!(numbers, unused, "verify notes what the ledger lists");
        (report.missing_runs, report.is_settled, unused)
    };
    let (store, uid) = begin();
    assert_eq!((unused(&store), uid), ((one(1), false, vec![]), 2), "it may still begin");
    store.close().unwrap();
    let closed = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert_eq!(unused(&closed), (vec![], true, vec![1]));
    assert_whole(&closed);
    drop(closed);
    let (store, uid) = begin();
    let crashed = sim.crash(Crash::Everything);
    drop(store);
    assert_eq!(uid, 4);
    let reader = Store::open_read_only_with("s", options(&crashed)).unwrap();
    assert_eq!(unused(&reader), (one(3), false, vec![1]));
    drop(reader);
    for _ in 0..2 {
        let store = Store::open_with("s", options(&crashed)).unwrap();
        assert_eq!(unused(&store).2, [1, 3], "it is stated once");
        store.close().unwrap();
        let closed = Store::open_read_only_with("s", options(&crashed)).unwrap();
        assert_eq!(unused(&closed), (vec![], true, vec![1, 3]));
    }
}

/// Records into a run of a year, and ends it in one of the ways in which runs end.
fn record_day(space: &annals::Namespace, run: annals::Run, name: &str, rng: &mut SeededRng) {
    let frame =
        |rng: &mut SeededRng| annals::Frame::new(annals::Component::Llm, rng.text(200), rng.bytes(50));
    run.record(frame(rng)).unwrap();
    let open = run.begin_frame(&frame(rng)).unwrap();
    run.snapshot(rng.text(100), &[]).unwrap();
    open.append(&rng.bytes(20)).unwrap();
    let resume = match rng.below(4) {
        0 => {
            // Its frame stays unfinished until the run is taken up again.
            run.abandon().unwrap();
            drop(open);
            drop(run);
            rng.below(2) == 0
        }
        _ => {
            open.finish(false).unwrap();
            run.end(Status::Ok).unwrap();
            false
        }
    };
    if resume {
        let resumed = space.resume_run(name).unwrap();
        for open in resumed.open_frames {
            open.append(&rng.bytes(20)).unwrap();
            open.finish(false).unwrap();
        }
        resumed.run.record(frame(rng)).unwrap();
        resumed.run.end(Status::Failed).unwrap();
    }
}

/// Found by an attacker who looked for false alarms. A compaction states what it erases before it erases it. A checkpoint of
/// that moment has the statement and counts the records; if the compaction was cut off there, the next one does the same
/// again. Each time the records were called erased without a statement, and for ever.
#[test]
fn checkpoint_beside_a_compaction_raises_no_alarm() {
    let compacted = |rule: Option<FailRule>| {
        let sim = SimIo::new(29);
        let store = Store::open_with("s", options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let latest = space.keyspace("latest", History::Latest).unwrap();
        for number in 0..12u64 {
            let name = format!("run {}", number % 8);
            let run = space.begin_run(RunSpec::new(&name).replace(true)).unwrap();
            record_day(&space, run, &name, &mut SeededRng(number));
            latest.put(&[(number % 3) as u8], SeededRng(number).bytes(60)).unwrap();
        }
        space.drop_run("run 5", "room", "").unwrap();
        rule.into_iter().for_each(|rule| sim.fail(rule));
        let all = CompactOptions { all_dead: true, ..CompactOptions::default() };
        let is_done = store.compact(&all).is_ok();
        // What the disk has now is what another process sees beside the compaction, or after a kill.
        (sim.crash(Crash::Everything), is_done)
    };
    let (whole, _) = compacted(None);
    let whole = Store::open_read_only_with("s", options(&whole)).unwrap();
    let mut stated = 0;
    for kind in [OpKind::Create, OpKind::Write, OpKind::Sync, OpKind::SyncDir] {
        for after in 0.. {
            let (disk, is_done) = compacted(Some(FailRule::eio(kind).after(after)));
            if is_done {
                break;
            }
            let cut_off = Store::open_read_only_with("s", options(&disk)).unwrap();
            let checkpoint = cut_off.checkpoint().unwrap();
            stated += usize::from(cut_off.gaps(&mut |_| Ok(())).unwrap().compactions > 0);
            drop(cut_off);
            let what = format!("{kind:?} number {after}");
            assert_eq!(whole.verify_against(&checkpoint).unwrap().differences, [], "{what}");
            for _ in 0..2 {
                let store = Store::open_with("s", options(&disk)).unwrap();
                store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() }).unwrap();
                store.close().unwrap();
                let store = Store::open_read_only_with("s", options(&disk)).unwrap();
                assert_eq!(store.verify_against(&checkpoint).unwrap().differences, [], "{what}");
                assert_eq!(store.gaps(&mut |_| Ok(())).unwrap().problems(), Vec::<String>::new(), "{what}");
            }
        }
    }
    assert!(stated > 2, "{stated} checkpoints have a statement");
}

/// Retention, replaced runs, keys that end, runs that were prepared and never begun or were taken up again: whatever a
/// year brings, no check raises an alarm.
#[test]
fn year_of_retention_and_compaction_raises_no_alarm() {
    let mut rng = SeededRng(seed(41, "erasures::year_of_retention_and_compaction_raises_no_alarm"));
    let sim = SimIo::new(25);
    let open =
        || Store::open_with("s", Options { segment_bytes_max: 16 << 10, ..sim_options(&sim) }).unwrap();
    let mut store = open();
    let mut kept: Vec<Checkpoint> = Vec::new();
    let policy = || {
        let rule = RetentionRule::new("old", RetentionLimit::ForNs(20 * DAY_NS));
        RetentionPolicy::new(vec![rule])
    };
    for day in 0..365u32 {
        sim.advance_ns(DAY_NS);
        let space = store.namespace("default").unwrap();
        let latest = space.keyspace("latest", History::Latest).unwrap();
        let aged = space.keyspace("aged", History::Age(std::time::Duration::from_nanos(5 * DAY_NS))).unwrap();
        for _ in 0..1 + rng.below(2) {
            let name = format!("day {day} {}", rng.below(2));
            let Ok(run) = space.begin_run(RunSpec::new(&name).replace(rng.below(2) == 0)) else { continue };
            if rng.below(12) == 0 {
                kept.push(store.checkpoint().unwrap());
            }
            record_day(&space, run, &name, &mut rng);
            if rng.below(8) == 0 {
                let spec = RunSpec::new(format!("fork of {name}")).replace(true);
                space.fork(&name, 1, false, spec).unwrap().end(Status::Ok).unwrap();
            }
        }
        latest.put(&[rng.below(4) as u8], rng.bytes(30)).unwrap();
        aged.put(&[rng.below(4) as u8], rng.bytes(30)).unwrap();
        if rng.below(5) == 0 {
            latest.delete(&[rng.below(4) as u8]).unwrap();
            drop(space.prepare_run(RunSpec::new(format!("never {day}"))).unwrap());
        }
        if rng.below(6) == 0 {
            store.retain(store.plan_retention(&policy(), None).unwrap()).unwrap();
        }
        if rng.below(6) == 0 {
            let recompress = (rng.below(4) == 0).then_some(3);
            store.compact(&CompactOptions { recompress, ..CompactOptions::default() }).unwrap();
        }
        if rng.below(12) == 0 {
            kept.push(store.checkpoint().unwrap());
        }
        if rng.below(20) == 0 {
            drop((latest, aged, space));
            store.close().unwrap();
            store = open();
        }
        if day % 60 == 59 {
            assert_whole(&store);
            let report = store.gaps(&mut |_| Ok(())).unwrap();
            assert_eq!((report.problems(), report.uncheckable), (vec![], 0), "day {day}");
            for checkpoint in &kept {
                let compared = store.verify_against(checkpoint).unwrap();
                assert_eq!(compared.differences, [], "day {day}");
            }
            let compared = store.verify_against_all(&store.checkpoint().unwrap(), &kept).unwrap();
            assert_eq!(compared.differences, [], "day {day}");
        }
    }
    store.close().unwrap();
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert_whole(&store);
    let report = store.gaps(&mut |_| Ok(())).unwrap();
    let notes = report.notes();
    assert!(report.is_settled && notes.len() == 1 && notes[0].starts_with("never used"), "{notes:?}");
    assert!(report.records > 500 && kept.len() > 10, "{report:?}, {} checkpoints", kept.len());
    let parts: Vec<_> = kept.iter().filter_map(|checkpoint| checkpoint.parts.as_ref()).collect();
    assert!(parts.iter().any(|parts| parts.runs.iter().any(|part| part.dropped > 0)));
    assert!(parts.iter().any(|parts| parts.runs.iter().any(|part| part.snapshots > 0)));
}

const ATTACKS: [&str; 11] = [
    "cut back behind the statement",
    "the statement dropped",
    "the statement changed",
    "a statement of another set in its place",
    "a record erased",
    "a batch erased",
    "a run erased under a forged statement",
    "cut back, under an older format",
    "a run erased so, and recorded anew under its number",
    "erased records put back",
    "erased records put back while others are erased",
];

/// The log after an attack; `None` if there is nothing to attack there.
fn attacked(victim: &Forgotten, how: &str, rng: &mut SeededRng) -> Option<ForgedLog> {
    let mut log = victim.now.clone();
    let stated = statement_in(&log);
    let at = rng.below(victim.covered);
    match how {
        "cut back behind the statement" => {
            log.truncate(victim.covered + rng.below(stated - victim.covered + 1))
        }
        "cut back, under an older format" => {
            log.truncate(victim.covered + rng.below(stated - victim.covered + 1));
            (log.rewritten_format, log.manifest_format) = (2, 3);
        }
        "the statement dropped" => drop(log.remove(stated)),
        "the statement changed" => {
            let ForgedRecord::Logical { head, .. } = &mut log.get(stated).records[0] else { return None };
            // Its time, after the rule, explains nothing.
            let byte = 9 + rng.below(head.len() - 9);
            head[byte] ^= 1 << rng.below(8);
        }
        "a statement of another set in its place" => {
            let mut other = log.clone();
            let index = logical_record(other.get(at)).filter(|_| is_rewritten(&victim.now, at))?;
            erase(&mut other, at, index);
            *log.get(stated) = forged_statement(&other, &[]);
        }
        "a record erased" => {
            let index = logical_record(log.get(at)).filter(|_| is_rewritten(&victim.now, at))?;
            erase(&mut log, at, index);
        }
        "a batch erased" => {
            logical_record(log.get(at)).filter(|_| is_rewritten(&victim.now, at))?;
            let seqnos = log.get(at).seqnos_before(usize::MAX);
            let mut nodes = Vec::new();
            while let Some(index) = logical_record(log.get(at)) {
                erase(&mut log, at, index);
            }
            for record in &log.get(at).records {
                if let ForgedRecord::Erased { nodes: more, .. } = record {
                    nodes.extend(more.iter().copied());
                }
            }
            let [(0, record)] = nodes[..] else { return None };
            let leaf = *blake3::hash(&[&[0], &record[..]].concat()).as_bytes();
            let gone = ForgedRecord::ErasedBatches { seqnos, batches: 1, node: Some((0, leaf)) };
            log.get(at).records = vec![gone];
        }
        "a run erased under a forged statement" | "a run erased so, and recorded anew under its number" => {
            let run = 1 + rng.below(7) as u8;
            for at in 0..log.batches() {
                for index in 0..log.get(at).records.len() {
                    let is_of_run = is_of_run(&log.get(at).records[index], run);
                    if is_of_run && !is_rewritten(&log, at) {
                        return None;
                    }
                    if is_of_run {
                        erase(&mut log, at, index);
                    }
                }
            }
            let statement = forged_statement(&log, &[]);
            log.segments.push(vec![statement]);
            if how.contains("recorded anew") {
                log.segments.last_mut()?.push(recorded_anew(victim, run));
            }
        }
        "erased records put back while others are erased" => return Some(put_back_under_erasures(victim).0),
        _ => {
            let later = log.segments.iter().flatten().skip(victim.covered).cloned().collect::<Vec<_>>();
            log = victim.before.clone();
            log.truncate(log.up_to_leaf(victim.checkpoint.leaves as usize));
            log.segments.last_mut().unwrap().extend(later);
        }
    }
    Some(log)
}

/// Whatever is erased without a tombstone is named, plainly or against the checkpoint. The attacks of `rewrites`
/// change records; these keep the ledger's root.
#[test]
fn erasure_without_a_tombstone_is_never_missed() {
    let test = "erasures::erasure_without_a_tombstone_is_never_missed";
    let tried: usize =
        std::env::var("ANNALS_REWRITES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let seed = seed(43, test);
    println!("with ANNALS_REWRITES={tried}");
    let victim = forgotten();
    let mut counts = [[0; 3]; ATTACKS.len()];
    let (mut done, mut round) = (0, 0u64);
    while done < tried {
        round += 1;
        let mut rng = SeededRng(seed ^ round.wrapping_mul(0x9e37_79b9));
        let number = rng.below(ATTACKS.len());
        let Some(log) = attacked(&victim, ATTACKS[number], &mut rng) else { continue };
        done += 1;
        // A log that the forger cannot write has records that no reader takes.
        let Some(files) = log.write() else { continue };
        let sim = disk_of(&files);
        let kept = if ATTACKS[number].contains("put back") { &victim.later } else { &victim.checkpoint };
        let plainly = |error: annals::Error| {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            0
        };
        let verdict = match Store::open_read_only_with("s", options(&sim)) {
            Err(error) => plainly(error),
            Ok(store) => match store.verify() {
                Err(error) => plainly(error),
                Ok(report) if !report.damaged.is_empty() => 0,
                Ok(_) => usize::from(store.verify_against(kept).unwrap().differences.is_empty()) + 1,
            },
        };
        counts[number][verdict] += 1;
        assert!(verdict < 2, "round {round}: {} is missed", ATTACKS[number]);
    }
    println!("caught plainly, by the checkpoint alone, missed:");
    for (how, [plainly, checkpoint, missed]) in ATTACKS.iter().zip(counts) {
        println!("{how:<52} {plainly:>8} {checkpoint:>8} {missed:>8}");
        assert!(tried < 200 || plainly + checkpoint > 0, "{how} was not tried");
    }
}
