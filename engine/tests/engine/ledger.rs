//! Checkpoints beside writers, across crashes and of empty stores; and the reported gaps.

use annals::io::sim::{Crash, SimIo};
use annals::{
    Durability, Options, RunSpec, Status, Store,
    kv::History,
    ledger::{Checkpoint, CheckpointDifference, GapKind},
};

use crate::support::{SeededRng, fresh, process_durability_options, recorded, sim_options};

fn round_trip(checkpoint: &Checkpoint) -> Checkpoint {
    Checkpoint::from_json(checkpoint.to_json(None).unwrap().as_bytes()).unwrap()
}

#[test]
fn empty_ledger_checkpoint_agrees_with_all_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let empty = store.checkpoint().unwrap();
    assert_eq!((empty.leaves, empty.seqno.0, empty.marks.len()), (0, 0, 0));
    assert_eq!(round_trip(&empty), empty);
    store.namespace("default").unwrap().keyspace("k", History::All).unwrap().put(b"a", "1").unwrap();
    assert_eq!(store.verify_against(&empty).unwrap().differences, []);
    assert!(store.checkpoint().unwrap().leaves > 0);
}

#[test]
fn checkpoint_beside_writer_stays_valid_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes_max: 4 << 10, ..process_durability_options() };
    let store = Store::open_with(dir.path().join("s"), options.clone()).unwrap();
    let space = store.namespace("default").unwrap();
    let reader = Store::open_read_only_with(dir.path().join("s"), options).unwrap();
    let mut kept: Vec<Checkpoint> = Vec::new();
    for round in 0..12 {
        let (run, _) = recorded(&space, &format!("run {round}"), 7);
        run.end(Status::Ok).unwrap();
        // The reader's view may be older: a checkpoint covers the files.
        let from = if round % 2 == 0 { &store } else { &reader };
        kept.push(round_trip(&from.checkpoint().unwrap()));
        for checkpoint in &kept {
            assert_eq!(reader.verify_against(checkpoint).unwrap().differences, []);
        }
    }
    assert!(kept.windows(2).all(|two| two[0].leaves < two[1].leaves && two[0].seqno < two[1].seqno));
    let last = kept.last().unwrap();
    assert!(last.leaves > 100 && last.marks.len() > 32 && last.marks.len() <= 64, "{}", last.marks.len());
    assert_eq!(store.stats().unwrap().ledger_root.unwrap().0, last.root.0);
}

/// Parts of groups are no logical records (docs/format.md): a batch of parts alone adds no leaf. Otherwise
/// two stores with equal records and different compression would have different ledgers.
#[test]
fn batch_of_parts_only_is_no_leaf() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "r", 2);
    let before = (store.checkpoint().unwrap(), store.seqno());
    space.store_blob(SeededRng(7).bytes(100_000).as_slice()).unwrap();
    let after = store.checkpoint().unwrap();
    assert!(store.seqno() > before.1);
    assert_eq!((after.leaves, after.root), (before.0.leaves, before.0.root));
    run.end(Status::Ok).unwrap();
    assert_eq!(store.checkpoint().unwrap().leaves, after.leaves + 1);
    assert_eq!(store.verify_against(&before.0).unwrap().differences, []);
}

/// A checkpoint is kept elsewhere: after a power loss the store must not be shorter than it.
#[test]
fn batches_under_checkpoint_survive_power_loss() {
    let sim = SimIo::new(8);
    let options = |sim: &SimIo| Options { durability: Durability::Process, ..sim_options(sim) };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let (_run, _) = recorded(&store.namespace("default").unwrap(), "one", 5);
    let checkpoint = Store::open_read_only_with("s", options(&sim)).unwrap().checkpoint().unwrap();
    let (_more, _) = recorded(&store.namespace("default").unwrap(), "two", 2);
    let crashed = sim.crash(Crash::Nothing);
    let after = Store::open_with("s", options(&crashed)).unwrap();
    assert_eq!(after.verify_against(&checkpoint).unwrap().differences, []);
}

#[test]
fn diverged_history_after_crash_is_detected() {
    let sim = SimIo::new(9);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    keys.put(b"a", "1").unwrap();
    let before = sim.crash(Crash::Everything);
    keys.put(b"b", "2").unwrap();
    let kept = store.checkpoint().unwrap();
    // The older state is restored and gets the same calls: the salts make it a different history.
    let other = Store::open_with("s", sim_options(&before)).unwrap();
    let found = other.verify_against(&kept).unwrap().differences;
    assert!(matches!(found[..], [CheckpointDifference::RolledBack(_)]), "{found:?}");
    let keys = other.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    keys.put(b"b", "2").unwrap();
    let found = other.verify_against(&kept).unwrap().differences;
    let [CheckpointDifference::Rewritten(part)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((part.leaves.end, part.last), (kept.leaves, kept.seqno));
    assert_eq!(part.leaves.end - part.leaves.start, 1, "only the last batch differs: {part:?}");
}

#[test]
fn gaps_are_replaced_and_abandoned_runs_in_the_order_of_the_log() {
    let (dir, store, space) = fresh();
    let (run, _) = recorded(&space, "kept", 2);
    run.end(Status::Ok).unwrap();
    let all = |store: &Store| {
        let mut all = Vec::new();
        let each = &mut |gap| {
            all.push(gap);
            Ok(())
        };
        store.gaps(each).unwrap();
        all
    };
    assert_eq!(all(&store), []);
    let (first, _) = recorded(&space, "again", 3);
    first.end(Status::Ok).unwrap();
    let second = space.begin_run(RunSpec::new("again").replace(true)).unwrap();
    second.end(Status::Ok).unwrap();
    let (cut, _) = recorded(&space, "cut", 4);
    drop(cut);
    store.close().unwrap();
    let store = Store::open_read_only_with(dir.path().join("s"), process_durability_options()).unwrap();
    let gaps = all(&store);
    let said: Vec<_> = gaps
        .iter()
        .map(|gap| (gap.kind, gap.name.as_deref().unwrap_or_default(), gap.frames.unwrap_or_default()))
        .collect();
    assert_eq!(said, [(GapKind::Replaced, "again", 3), (GapKind::Abandoned, "cut", 4)]);
    assert!(gaps.iter().all(|gap| gap.namespace.as_deref() == Some("default") && gap.time_ns > 0));
    assert!(gaps[0].seqno < gaps[1].seqno && gaps[1].seqno <= store.seqno());
}
