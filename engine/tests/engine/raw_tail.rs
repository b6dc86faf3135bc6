//! Bodies that are written raw and compressed later: by closing, by a call, by a compaction.

use std::path::Path;

use annals::io::Io;
use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{
    Component, ErrorKind, Frame, Options, RunSpec, Status, Store, kv::History, upkeep::CompactOptions,
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, bodies, delete_tables, process_durability_options, record,
    recorded, sim_options,
};

fn raw() -> Options {
    Options { raw_tail_bytes_max: 16 << 20, ..process_durability_options() }
}

fn talk(topic: &str, steps: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    GrowingConversation::new(topic).take(steps).collect()
}

fn record_run(store: &Store, name: &str, steps: usize) {
    let (run, _) = recorded(&store.namespace("default").unwrap(), name, steps);
    run.end(Status::Ok).unwrap();
}

fn assert_runs(store: &Store, steps: usize, names: &[String]) {
    let space = store.namespace("default").unwrap();
    for name in names {
        assert!(bodies(&space.run(name).unwrap()) == talk(name, steps), "{name}");
    }
    assert_whole(store);
}

fn pieces(store: &Store) -> u64 {
    store.stats().unwrap().bytes.pieces
}

#[test]
fn closing_compresses_what_was_written_raw() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["one".to_owned()];
    let closed = |options: Options, path: &Path| {
        let store = Store::open_with(path, options).unwrap();
        record_run(&store, "one", 120);
        let open = pieces(&store);
        let checkpoint = store.checkpoint().unwrap();
        store.close().unwrap();
        let store = Store::open_read_only(path).unwrap();
        assert_runs(&store, 120, &names);
        // Nothing that a checkpoint covers has changed, and what was removed is stated.
        let compared = store.verify_against(&checkpoint).unwrap();
        assert_eq!((compared.differences, compared.erased), (vec![], 0));
        assert!(store.gaps(&mut |_| Ok(())).unwrap().problems().is_empty());
        (open, pieces(&store), store.stats().unwrap().disk_bytes)
    };
    let at_once = closed(Options { raw_tail_bytes_max: 0, ..raw() }, &dir.path().join("at-once"));
    assert_eq!(at_once.0, at_once.1, "there is no raw tail without the option");
    let path = dir.path().join("later");
    let later = closed(raw(), &path);
    println!("{at_once:?} {later:?}");
    assert!(later.0 > at_once.0 * 2, "the bodies are raw while the store is open");
    // A whole group compresses better than the parts that commits add.
    assert!(later.1 < at_once.1 && later.2 < at_once.2);
    // The log alone gives the same answers.
    delete_tables(&path);
    assert_runs(&crate::support::writer(&path).unwrap(), 120, &names);
}

/// Each closing makes a segment. A store that is opened for each run would have one for each.
#[test]
fn store_that_is_opened_often_has_few_segments() {
    let sim = SimIo::new(7);
    let segments =
        || sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).count();
    let mut names = Vec::new();
    for number in 0..40 {
        let store = Store::open_with("s", sim_options(&sim)).unwrap();
        names.push(format!("run {number}"));
        record_run(&store, &names[number], 20 + number % 7 * 5);
        store.close().unwrap();
        assert!(segments() < 9, "{} segments after {number} openings", segments());
    }
    let store = Store::open_read_only_with("s", sim_options(&sim)).unwrap();
    for (number, name) in names.iter().enumerate() {
        assert_runs(&store, 20 + number % 7 * 5, std::slice::from_ref(name));
    }
    assert!(store.gaps(&mut |_| Ok(())).unwrap().problems().is_empty());
}

/// What a killed process left raw is compressed by the next one.
#[test]
fn raw_bodies_of_a_killed_process_are_compressed_by_the_next() {
    let sim = SimIo::new(5);
    let options = sim_options;
    let store = Store::open_with("s", options(&sim)).unwrap();
    record_run(&store, "killed", 80);
    let raw = pieces(&store);
    let sim = sim.crash(Crash::Everything);
    drop(store);
    let store = Store::open_with("s", options(&sim)).unwrap();
    assert_eq!(pieces(&store), raw);
    store.close().unwrap();
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert!(pieces(&store) * 2 < raw, "{} of {raw}", pieces(&store));
    assert_runs(&store, 80, &["killed".to_owned()]);
}

/// Recording, reading and an open batch go on beside it, and what is recorded later refers to bodies that it moved.
#[test]
fn open_store_compresses_its_tail_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, raw()).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    assert!(!store.compress_tail().unwrap(), "there is nothing");
    let run = space.begin_run(RunSpec::new("talk")).unwrap();
    let mut talking = GrowingConversation::new("talk");
    let reader = Store::open_read_only(&path).unwrap();
    for round in 0..6u64 {
        record(&run, &mut talking, 30);
        keys.put(b"long", SeededRng(round).text(9000)).unwrap();
        keys.put(b"short", round.to_string().into_bytes()).unwrap();
        let view = space.view();
        let seen = view.get(&keys, b"short").unwrap();
        let before = pieces(&store);
        assert!(store.compress_tail().unwrap());
        assert!(pieces(&store) < before);
        assert!(!store.compress_tail().unwrap(), "once");
        assert_eq!(view.get(&keys, b"short").unwrap(), seen);
        assert_eq!(keys.history(b"long").unwrap().len() as u64, round + 1);
        reader.refresh().unwrap();
        assert_whole(&reader);
    }
    run.end(Status::Ok).unwrap();
    assert_eq!(keys.get(b"long").unwrap().unwrap(), SeededRng(5).text(9000));
    store.close().unwrap();
    let store = Store::open_read_only(&path).unwrap();
    assert_runs(&store, 180, &["talk".to_owned()]);
}

/// A store that is open and at rest compresses its tail by itself.
#[test]
fn idle_store_compresses_its_tail() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, raw()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("run")).unwrap();
    let texts: Vec<Vec<u8>> = (0..20).map(|number| SeededRng(number).text(20_000)).collect();
    for text in &texts {
        run.record(Frame::new(Component::Llm, text.clone(), b"".to_vec())).unwrap();
    }
    let raw = pieces(&store);
    while pieces(&store) * 2 > raw {
        std::thread::yield_now();
    }
    run.record(Frame::new(Component::Llm, texts[0].clone(), b"after".to_vec())).unwrap();
    run.end(Status::Ok).unwrap();
    let read = bodies(&space.run("run").unwrap());
    assert!(read.iter().map(|(input, _)| input).eq(texts.iter().chain([&texts[0]])));
    assert_whole(&store);
}

/// A recording with little new text is not worth a rewrite. A store of many had all of it raw.
#[test]
fn closings_with_little_raw_text_add_up() {
    let sim = SimIo::new(8);
    let mut written = 0;
    for number in 0..30u64 {
        let store = Store::open_with("s", sim_options(&sim)).unwrap();
        let run = store.namespace("default").unwrap().begin_run(RunSpec::new(number.to_string())).unwrap();
        run.record(Frame::new(Component::Llm, SeededRng(number).text(1500), b"".to_vec())).unwrap();
        run.end(Status::Ok).unwrap();
        drop(run);
        written += 1500;
        store.close().unwrap();
    }
    let store = Store::open_read_only_with("s", sim_options(&sim)).unwrap();
    assert!(pieces(&store) * 10 < written * 7, "{} of {written}", pieces(&store));
    assert!(store.stats().unwrap().segments < 9);
    assert_whole(&store);
}

/// A batch that is still open, in the thread that closes, must not keep the store from closing.
#[test]
fn closing_beside_an_open_batch_leaves_the_tail_raw() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, raw()).unwrap();
    let (run, mut talking) = recorded(&store.namespace("default").unwrap(), "talk", 60);
    let mut batch = run.batch().unwrap();
    let (request, answer) = talking.next().unwrap();
    batch.frame(Frame::new(Component::Llm, request, answer)).unwrap();
    let open = pieces(&store);
    store.close().unwrap();
    drop(batch);
    drop(run);
    let store = Store::open_with(&path, raw()).unwrap();
    assert_eq!(pieces(&store), open);
    assert_runs(&store, 60, &["talk".to_owned()]);
    // The next closing compresses it.
    store.close().unwrap();
    let store = Store::open_read_only(&path).unwrap();
    assert!(pieces(&store) * 2 < open, "{} of {open}", pieces(&store));
    assert_runs(&store, 60, &["talk".to_owned()]);
}

/// Bodies that do not compress stay as they are, and a tail has its bound.
#[test]
fn tail_is_bounded_and_noise_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, Options { raw_tail_bytes_max: 100_000, ..raw() }).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap();
    let mut all = Vec::new();
    for number in 0..40u64 {
        // Text and noise by turns, in bodies of 20 KB.
        let body =
            if number % 2 == 0 { SeededRng(number).text(20_000) } else { SeededRng(number).bytes(20_000) };
        run.record(Frame::new(Component::Llm, body.clone(), b"".to_vec())).unwrap();
        all.push(body);
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let store = Store::open_read_only(&path).unwrap();
    let read = bodies(&store.namespace("default").unwrap().run("run").unwrap());
    assert!(read.into_iter().map(|(input, _)| input).eq(all));
    assert_whole(&store);
}

/// A compaction compresses the raw bodies of what it rewrites.
#[test]
fn compaction_compresses_raw_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, raw()).unwrap();
    let space = store.namespace("default").unwrap();
    record_run(&store, "kept", 60);
    record_run(&store, "dropped", 60);
    space.drop_run("dropped", "test", "").unwrap();
    let before = pieces(&store);
    assert_eq!(store.compact(&CompactOptions::default()).unwrap().rewritten, 1);
    assert!(pieces(&store) * 4 < before);
    assert!(!store.compress_tail().unwrap(), "nothing is left to compress");
    assert_runs(&store, 60, &["kept".to_owned()]);
    store.close().unwrap();
    assert_runs(&Store::open_read_only(&path).unwrap(), 60, &["kept".to_owned()]);
}

/// Nothing said that a tail could not be compressed. It is tried again, and until then nothing is lost.
#[test]
fn tail_that_cannot_be_compressed_is_counted_and_stays() {
    let sim = SimIo::new(6);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    record_run(&store, "talk", 60);
    let raw = store.activity().raw_tail_bytes;
    assert!(raw > 10_000, "{raw}");
    // Segments that a rewrite makes have numbers from 2 to the power of 31 on.
    for (part, failures) in [("21474836", 1), ("tbl", 2), ("MANIFEST", 3)] {
        sim.fail(FailRule::enospc(OpKind::Write).on(part));
        let refused = store.compress_tail();
        sim.clear_faults();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable, "{part}");
        let activity = store.activity();
        assert_eq!((activity.raw_tail_bytes, activity.raw_tail_failures), (raw, failures), "{part}");
        assert_runs(&store, 60, &["talk".to_owned()]);
    }
    assert!(store.compress_tail().unwrap());
    assert_eq!(store.activity().raw_tail_bytes, 0);
    store.close().unwrap();
    assert_runs(&Store::open_read_only_with("s", sim_options(&sim)).unwrap(), 60, &["talk".to_owned()]);
}

/// Each closing of a store that is mostly keys sealed a segment, and then found that a rewrite was not worth it.
#[test]
fn store_of_keys_keeps_its_segment() {
    let sim = SimIo::new(9);
    for number in 0..12u64 {
        let store = Store::open_with("s", sim_options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let keys = space.keyspace("k", History::All).unwrap();
        for key in 0..40u64 {
            keys.put(&key.to_le_bytes(), SeededRng(number * 40 + key).bytes(2000)).unwrap();
        }
        keys.put(b"long", SeededRng(number).text(6000)).unwrap();
        store.close().unwrap();
    }
    let store = Store::open_read_only_with("s", sim_options(&sim)).unwrap();
    assert_eq!(store.stats().unwrap().segments, 1);
    assert_whole(&store);
}

/// What earlier openings left raw among many keys kept the next bodies from beginning a segment of their own: they
/// were written behind the keys, and were too few to be rewritten with them.
#[test]
fn run_in_a_store_of_keys_is_compressed() {
    let sim = SimIo::new(10);
    let options = || Options { segment_bytes_max: 64 << 20, ..sim_options(&sim) };
    let store = Store::open_with("s", options()).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    for key in 0..1500u64 {
        keys.put(&key.to_le_bytes(), SeededRng(key).bytes(3500)).unwrap();
    }
    keys.put(b"long", SeededRng(1).text(6000)).unwrap();
    drop(keys);
    store.close().unwrap();
    let store = Store::open_with("s", options()).unwrap();
    let before = pieces(&store);
    record_run(&store, "talk", 120);
    let raw = pieces(&store) - before;
    store.close().unwrap();
    let store = Store::open_read_only_with("s", options()).unwrap();
    assert!((pieces(&store) - before) * 2 < raw, "{} of {raw}", pieces(&store) - before);
    assert_runs(&store, 120, &["talk".to_owned()]);
}

/// A closing joins batches. An opening that makes the index anew with little memory writes tables on the way. One that
/// covered the log up to a place between joined batches would hide the others from the next opening.
#[test]
fn tables_made_anew_cover_whole_joined_batches() {
    let sim = SimIo::new(8);
    let options = |sim: &SimIo| Options { index_memory_bytes: 4 << 10, ..sim_options(sim) };
    let store = Store::open_with("s", options(&sim)).unwrap();
    record_run(&store, "one", 200);
    store.close().unwrap();
    for path in sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")) {
        sim.remove(path).unwrap();
    }
    let store = Store::open_with("s", options(&sim)).unwrap();
    let sim = sim.crash(Crash::Everything);
    drop(store);
    let tables = sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")).count();
    assert!(tables > 0, "no table was written on the way");
    let store = Store::open_with("s", options(&sim)).unwrap();
    assert_runs(&store, 200, &["one".to_owned()]);
}

/// A header of 35 bytes for each frame was a quarter of what a frame takes beyond its text. A closing joins batches:
/// then it is a few bytes.
#[test]
fn a_closing_joins_batches() {
    let sim = SimIo::new(9);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    record_run(&store, "one", 400);
    let open = store.stats().unwrap();
    store.close().unwrap();
    let closed = Store::open_read_only_with("s", sim_options(&sim)).unwrap().stats().unwrap();
    assert_eq!((open.frames, closed.frames), (400, 400));
    // Link and salt take 48 bytes of each.
    let a_frame = |stats: &annals::Stats| stats.bytes.chains_and_ledger / stats.frames;
    assert!(a_frame(&open) >= 48 + 35 && a_frame(&closed) <= 48 + 15, "{open:?} {closed:?}");
}
