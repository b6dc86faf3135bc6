//! A failed sync poisons the writer. Each sync of a workload fails in turn, once and permanently.
//!
//! After a failed sync the durability of its data is unknown, whatever later syncs report. So after the first
//! failed commit no other may succeed. Published data can still be read, and the close reports the failure.
//! The next opening finds a prefix of the issued commits that holds all acknowledged ones. A table whose sync
//! fails is different: nothing depends on it, so it is written again under another name, and commits
//! continue.

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{Durability, Error, ErrorKind, Options, RunSpec, Status, Store, kv::History};

use crate::support::{SeededRng, assert_whole, seed, sim_options};

/// Small segments and little memory, so that segments, tables and manifests are synced during the workload.
fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 6 << 10, index_memory_bytes: 2 << 10, ..sim_options(sim) }
}

fn key(number: usize) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

fn value(number: usize) -> Vec<u8> {
    SeededRng(number as u64).bytes(40 + number % 7 * 60)
}

const COMMITS: usize = 90;

/// The outcome of a workload.
#[derive(Debug, Default)]
struct SyncFailureOutcome {
    issued: usize,
    acknowledged: usize,
    /// The first failure.
    failed: Option<Error>,
    close_failed: bool,
    /// The store did not open.
    never_open: bool,
}

/// Commits keys one after the other, some in one batch, and continues after failures like a stubborn caller.
fn run_workload(sim: &SimIo) -> SyncFailureOutcome {
    let mut done = SyncFailureOutcome::default();
    let store = match Store::open_with("s", options(sim)) {
        Ok(store) => store,
        Err(error) => return SyncFailureOutcome { failed: Some(error), never_open: true, ..done },
    };
    let opened = store.namespace("default").and_then(|space| Ok((space.keyspace("k", History::All)?, space)));
    let (keys, space) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            done.failed = Some(error);
            done.close_failed = store.close().is_err();
            return done;
        }
    };
    let mut number = 0;
    while number < COMMITS {
        let many = if number % 10 == 7 { 4 } else { 1 };
        let tickets: Vec<_> = (number..number + many)
            .map(|number| {
                let mut batch = space.batch();
                batch.put(&keys, &key(number), value(number));
                batch.submit()
            })
            .collect();
        done.issued = number + many;
        for (index, ticket) in tickets.into_iter().enumerate() {
            match ticket.and_then(annals::Ticket::wait) {
                Ok(_) => {
                    assert!(done.failed.is_none(), "commit {} succeeded after a failure", number + index);
                    done.acknowledged = number + index + 1;
                }
                Err(error) => {
                    let first =
                        done.failed.get_or_insert_with(|| Error::new(error.kind(), error.to_string()));
                    assert!(
                        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Poisoned),
                        "{error:?}"
                    );
                    // Waiting and later callers get the first cause.
                    assert!(error.to_string().contains(&first.to_string()), "{error} does not say {first}");
                }
            }
        }
        number += many;
    }
    // Readers in the process still see published data.
    for number in 0..done.acknowledged {
        assert_eq!(keys.get(&key(number)).unwrap().unwrap(), value(number));
    }
    done.close_failed = store.close().is_err();
    done
}

/// Number of recovered keys, which must be the first ones.
fn recovered(sim: &SimIo) -> usize {
    let store = match Store::open_with("s", options(sim)) {
        Ok(store) => store,
        Err(error) => panic!("reopening failed: {error}"),
    };
    assert_whole(&store);
    let found = store.namespace("default").ok().and_then(|space| space.find_keyspace("k").unwrap());
    let Some(keys) = found else { return 0 };
    let there: Vec<bool> = (0..COMMITS + 8).map(|number| keys.get(&key(number)).unwrap().is_some()).collect();
    let count = there.iter().take_while(|there| **there).count();
    assert!(there.iter().skip(count).all(|there| !there), "a hole: {there:?}");
    for number in 0..count {
        assert_eq!(keys.get(&key(number)).unwrap().unwrap(), value(number));
    }
    keys.put(b"zz", "more").unwrap();
    store.close().unwrap();
    count
}

/// The kind of sync, by its file.
fn kind_of(error: &Error) -> &'static str {
    let text = error.to_string();
    match () {
        () if text.contains("sync directory") => "directory",
        () if text.contains("MANIFEST") || text.contains("CURRENT") => "manifest",
        () if text.contains(".seg") => "segment",
        () => "other",
    }
}

#[test]
fn no_commit_succeeds_after_a_sync_failed() {
    let seed = seed(61, "poison::no_commit_succeeds_after_a_sync_failed");
    let whole = SimIo::new(seed);
    let done = run_workload(&whole);
    assert!(done.failed.is_none() && done.acknowledged == done.issued && !done.close_failed, "{done:?}");
    assert!(done.issued >= COMMITS);
    let syncs = |kind| whole.history().ops().iter().filter(|op| op.kind() == kind).count();
    let mut counts = std::collections::BTreeMap::new();
    let (mut failures, mut states) = (0, 0);
    for (kind, count) in [(OpKind::Sync, syncs(OpKind::Sync)), (OpKind::SyncDir, syncs(OpKind::SyncDir))] {
        for nth in 0..count as u64 {
            for forever in [false, true] {
                let sim = SimIo::new(seed);
                let rule = FailRule::eio(kind).after(nth);
                sim.fail(if forever { rule.forever() } else { rule });
                let done = run_workload(&sim);
                sim.clear_faults();
                failures += 1;
                let what = done.failed.as_ref().map_or("none: a table, written again", kind_of);
                *counts.entry((format!("{kind:?}"), what)).or_insert(0) += 1;
                // Failures of the upkeep thread fail no commit; the close reports all others.
                assert!(
                    done.never_open || done.failed.is_none() || done.close_failed,
                    "{kind:?} {nth}: {done:?}"
                );
                for how in [Crash::Nothing, Crash::Everything, Crash::Torn, Crash::Seed(seed ^ nth)] {
                    let found = recovered(&sim.crash(how));
                    assert!(
                        (done.acknowledged..=done.issued).contains(&found),
                        "{kind:?} {nth} (for good: {forever}), {how:?}: {found} of {done:?}"
                    );
                    states += 1;
                }
                // Reopening in the same process, or in the next one, on the same disk.
                let found = recovered(&sim);
                assert!(
                    (done.acknowledged..=done.issued).contains(&found),
                    "{kind:?} {nth}: {found} of {done:?}"
                );
            }
        }
    }
    println!(
        "{failures} failed syncs, {states} power cuts after them; the first commit to fail was told of:"
    );
    for ((kind, what), count) in counts {
        println!("  {kind:<8} {what:<28} {count}");
    }
    assert!(failures > 100);
}

#[test]
fn table_with_failed_sync_is_rewritten_under_new_name() {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    sim.fail(FailRule::eio(OpKind::Sync).on(".tbl").times(3));
    sim.fail(FailRule::eio(OpKind::SyncDir).on("tables").after(1).times(2));
    for number in 0..200 {
        keys.put(&key(number), value(number)).unwrap();
    }
    let ops = sim.history();
    let created = ops
        .ops()
        .iter()
        .filter(|op| op.kind() == OpKind::Create && op.path().to_string_lossy().ends_with(".tbl"));
    let mut names: Vec<_> = created.map(|op| op.path().to_path_buf()).collect();
    let made = names.len();
    names.sort();
    names.dedup();
    assert!(made > 6 && names.len() == made, "a name was used twice: {made} tables, {} names", names.len());
    store.close().unwrap();
    for how in [Crash::Nothing, Crash::Everything] {
        let store = Store::open_read_only_with("s", options(&sim.crash(how))).unwrap();
        assert_whole(&store);
        assert!(store.rebuilt().is_empty(), "{:?}", store.rebuilt());
        let keys = store.namespace("default").unwrap().find_keyspace("k").unwrap().unwrap();
        for number in 0..200 {
            assert_eq!(keys.get(&key(number)).unwrap().unwrap(), value(number));
        }
    }
}

/// Regression: a checkpoint and a proof sync the log beside the writer. If that sync failed, only they were
/// errors; the next sync succeeded, and the writer acknowledged commits after bytes that may be lost.
#[test]
fn failed_sync_of_a_checkpoint_or_proof_poisons_the_writer() {
    for proves in [false, true] {
        let sim = SimIo::new(3);
        let store =
            Store::open_with("s", Options { durability: Durability::Process, ..sim_options(&sim) }).unwrap();
        let space = store.namespace("default").unwrap();
        space.begin_run(RunSpec::new("r")).unwrap().end(Status::Ok).unwrap();
        let cover = || match proves {
            false => store.checkpoint().map(drop),
            true => space.prove("r", None, None).map(drop),
        };
        cover().unwrap();
        sim.fail(FailRule::eio(OpKind::Sync).on("segments"));
        assert_eq!(cover().unwrap_err().kind(), ErrorKind::Unavailable);
        // The next sync would succeed, so nothing may ask for it.
        assert_eq!(cover().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(store.check_writer().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(space.begin_run(RunSpec::new("other")).unwrap_err().kind(), ErrorKind::Poisoned);
    }
}

/// Regression: the counts of a store included a batch whose sync had failed, because its bytes are in the file.
#[test]
fn counts_leave_out_a_batch_whose_sync_failed() {
    let sim = SimIo::new(3);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    keys.put(b"a", "1").unwrap();
    let counted = |store: &Store| {
        let stats = store.stats().unwrap();
        (stats.batches, stats.seqno, stats.ledger_leaves, stats.bytes.kv_records)
    };
    let before = counted(&store);
    assert_eq!(before.1, store.seqno());
    sim.fail(FailRule::eio(OpKind::Sync).on("segments"));
    keys.put(b"b", "2").unwrap_err();
    assert_eq!(counted(&store), before);
}
