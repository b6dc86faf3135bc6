//! A compaction beside a writer that overwrites and a reader that holds a view. In every schedule the view is
//! stable, and the log keeps all acknowledged data.

use annals::io::sim::{Crash, SimIo};
use annals::{
    ErrorKind, Frame, Keyspace, Namespace, RunSpec, Status, Store, kv::History, upkeep::CompactOptions,
};

use crate::driver::explore;
use crate::support::{STORE, assert_whole, fresh, options, reopened, round_of, tiny_memory_options, value};
use crate::thread;

const KEYS: u8 = 4;
/// Rounds before the compaction, so that sealed segments hold dead data.
const BEFORE: u64 = 6;
const BESIDE: u64 = 3;

fn put_round(space: &Namespace, latest: &Keyspace, round: u64) {
    let mut batch = space.batch();
    for key in 0..KEYS {
        batch.put(latest, &[key], [value(round), vec![round as u8; 60]].concat());
    }
    batch.commit().unwrap();
}

fn rounds(view: &annals::kv::View, latest: &Keyspace) -> Vec<u64> {
    (0..KEYS).map(|key| round_of(&view.get(latest, &[key]).unwrap().unwrap()[..8])).collect()
}

fn run(space: &Namespace, name: &str) {
    let run = space.begin_run(RunSpec::new(name)).unwrap();
    run.record(Frame::new(annals::Component::Tool, name.repeat(20), "y".repeat(60))).unwrap();
    run.end(Status::Ok).unwrap();
}

fn compact(store: &Store) {
    match store.compact(&CompactOptions::default()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
    }
}

fn compact_beside_writer(seed: u64, small: bool) {
    let io = SimIo::new(seed);
    // A compaction shares its work among threads.
    io.set_threads(2);
    let options = |io: &SimIo| if small { tiny_memory_options(io) } else { options(io) };
    let (store, space, _) = fresh(options(&io));
    let latest = space.keyspace("latest", History::Latest).unwrap();
    run(&space, "kept");
    run(&space, "gone");
    (0..BEFORE).for_each(|round| put_round(&space, &latest, round));
    let gone = space.drop_run("gone", "rule", "").unwrap().uid;
    let root = store.stats().unwrap().ledger_root;
    assert!(root.is_some());
    thread::scope(|scope| {
        let (store, space, latest) = (&store, &space, &latest);
        scope.spawn(move || {
            for round in BEFORE..BEFORE + BESIDE {
                put_round(space, latest, round);
            }
        });
        scope.spawn(move || {
            let view = space.view();
            let first = rounds(&view, latest);
            for _ in 0..3 {
                assert_eq!(rounds(&view, latest), first, "a view changed under its reader");
                let now = round_of(&latest.get(&[0]).unwrap().unwrap()[..8]);
                assert!(now >= first[0], "from round {} back to {now}", first[0]);
                assert_eq!(space.run("kept").unwrap().frames().map(Result::unwrap).count(), 1);
            }
        });
        scope.spawn(move || {
            compact(store);
            assert_eq!(space.run_by_uid(gone).unwrap_err().kind(), ErrorKind::Gone);
        });
        // A second compaction runs beside the first, or after it.
        if seed.is_multiple_of(3) {
            scope.spawn(move || compact(store));
        }
    });
    let wanted = vec![BEFORE + BESIDE - 1; usize::from(KEYS)];
    assert_eq!(rounds(&space.view(), &latest), wanted);
    assert_whole(&store);
    compact(&store);
    assert_eq!(rounds(&space.view(), &latest), wanted);
    let made =
        |path: &std::path::PathBuf| path.file_name().is_some_and(|name| name.len() > "00000001.seg".len());
    assert!(io.files().iter().any(made), "nothing was compacted");
    // Acknowledged data survives a power loss and a close.
    let left = io.crash(Crash::Seed(seed));
    store.close().unwrap();
    for io in [left, io] {
        let (store, space, _) = reopened(options(&io));
        let latest = space.find_keyspace("latest").unwrap().unwrap();
        assert_eq!(rounds(&space.view(), &latest), wanted);
        assert_eq!(space.run("kept").unwrap().frames().count(), 1);
        assert_whole(&store);
        let listed = store.stats().unwrap().segments as usize;
        let there = io.files().iter().filter(|file| file.extension().is_some_and(|end| end == "seg")).count();
        assert_eq!(there, listed, "nothing of {STORE} is left over");
    }
}

#[test]
fn view_and_writer_continue_beside_compaction() {
    explore("compacting::view_and_writer_continue_beside_compaction", |seed| {
        compact_beside_writer(seed, false)
    });
}

#[test]
fn view_and_writer_continue_beside_compaction_and_flush() {
    explore("compacting::view_and_writer_continue_beside_compaction_and_flush", |seed| {
        compact_beside_writer(seed, true)
    });
}
