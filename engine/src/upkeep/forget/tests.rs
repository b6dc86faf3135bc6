//! Canaries: unique bytes that do not compress, in every place of a run and a key. The tests find all of them
//! before the run is dropped, in the raw files and in their decoded contents, and none afterwards.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use crate::blob::ANCHOR_WINDOW_BYTES;
use crate::format_tests::rewrite::sample::{self, ROOT, noise};
use crate::io::FileBytes;
use crate::io::sim::{Crash, SimIo};
use crate::{
    Component, ErrorKind, Frame, Keyspace, Namespace, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
    retention::{Deadline, DeadlineKind, RetentionLimit, RetentionPolicy, RetentionRule},
    upkeep::CompactOptions,
};
use annals_store::kv::keys;
use annals_store::kv::table::Table;

/// Length of the byte rows that the tests search for.
const ROW: usize = 8;

type Canaries = BTreeMap<String, Vec<u8>>;

fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 64 << 10, ..sample::options(sim) }
}

/// A unique text, for places that must hold text.
fn word(seed: u64) -> String {
    blake3::hash(&seed.to_le_bytes()).to_hex()[..40].to_owned()
}

/// Adds a canary. The first bytes of its BLAKE3 hash become one, too: a reader could confirm a guess of the bytes
/// with them. A record holds at least eight.
fn canary(all: &mut Canaries, what: &str, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref().to_vec();
    all.insert(what.to_owned(), bytes.clone());
    // Text inside of a request is not a body of its own, so no record holds its hash.
    if bytes.len() > 1000 && !what.starts_with("said") {
        all.insert(format!("{what}, its hash"), blake3::hash(&bytes).as_bytes()[..8].to_vec());
    }
    bytes
}

/// Records a run with canaries in every place where a caller can put bytes.
fn record_canary_run(space: &Namespace, name: &str, seed: u64, all: &mut Canaries) {
    let text = |all: &mut Canaries, what: &str, n: u64| {
        String::from_utf8(canary(all, what, word(seed * 1000 + n))).unwrap()
    };
    let bytes =
        |all: &mut Canaries, what: &str, n: u64, len: usize| canary(all, what, noise(seed * 1000 + n, len));
    let run = RunSpec::new(name).agent(text(all, "agent", 1)).model(text(all, "model", 2));
    let run = run.tag(text(all, "tag", 3), text(all, "value of a tag", 4));
    let run = space.begin_run(run.metadata(bytes(all, "metadata of a run", 5, 3000))).unwrap();
    // A conversation: each request contains the previous one.
    let mut request = bytes(all, "request", 6, 5000);
    for step in 0..3u64 {
        let answer = bytes(all, &format!("answer {step}"), 10 + step, 4000);
        let frame = Frame::new(Component::Llm, request.clone(), answer.clone());
        run.record(frame.metadata(bytes(all, &format!("metadata of frame {step}"), 20 + step, 2000)))
            .unwrap();
        request.extend(answer);
        request.extend(bytes(all, &format!("said in {step}"), 30 + step, 1500));
    }
    run.record(Frame::new(Component::Llm, request, "")).unwrap();
    let own = Component::Other(text(all, "component", 40));
    run.record(Frame::new(own, bytes(all, "short input", 41, 30), bytes(all, "short output", 42, 30)))
        .unwrap();
    let open =
        run.begin_frame(&Frame::new(Component::Tool, bytes(all, "input of a stream", 43, 2500), "")).unwrap();
    for part in 0..4u64 {
        open.append(&bytes(all, &format!("part {part}"), 50 + part, 1800)).unwrap();
        open.flush().unwrap();
    }
    open.finish(false).unwrap();
    // A frame that never ended.
    let left = run
        .begin_frame(&Frame::new(Component::Tool, bytes(all, "input of what was left", 60, 1200), ""))
        .unwrap();
    left.append(&bytes(all, "part of what was left", 61, 1100)).unwrap();
    left.flush().unwrap();
    drop(left);
    let embedder = text(all, "embedder", 70);
    // Any bits are allowed except those of NaN and infinity.
    let numbers: Vec<f32> = noise(seed * 1000 + 71, 1536)
        .chunks_exact(4)
        .map(|bits| f32::from_bits(u32::from_le_bytes(*bits.first_chunk().unwrap()) & !(1 << 30)))
        .collect();
    let stored: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    canary(all, "vector", &stored);
    run.snapshot(bytes(all, "state", 72, 6000), &[(&embedder, &numbers)]).unwrap();
    let large = bytes(all, "large body", 80, 300_000);
    let blob = space.store_blob(&large[..]).unwrap();
    run.record(Frame::new(Component::Tool, blob, bytes(all, "after it", 81, 900))).unwrap();
    // The recorder is dropped with a frame begun, so the run becomes abandoned.
}

/// Records a living run, so that dropped runs share groups and segments with it.
fn record_living_run(space: &Namespace, name: &str, seed: u64) {
    let run = space.begin_run(RunSpec::new(name)).unwrap();
    let mut said = noise(seed, 2000);
    for step in 0..4 {
        let answer = noise(seed + 1 + step, 3000);
        run.record(Frame::new(Component::Llm, said.clone(), answer.clone())).unwrap();
        said.extend(answer);
    }
    run.end(Status::Failed).unwrap();
}

fn note_found(rows: &HashMap<[u8; ROW], usize>, bytes: &[u8], found: &mut HashSet<usize>) {
    found.extend(bytes.windows(ROW).filter_map(|row| rows.get(row)));
}

/// Finds canaries by any row of theirs: first in the raw files, then in the decoded contents (records,
/// groups, keys of tables). It also checks that anchors point to existing bytes.
fn find_canaries(disk: &SimIo, all: &Canaries, when: &str) -> [Vec<String>; 2] {
    let mut rows = HashMap::new();
    for (number, bytes) in all.values().enumerate() {
        rows.extend(bytes.windows(ROW).map(|row| (row.try_into().unwrap(), number)));
    }
    let (mut raw, mut decoded) = (HashSet::new(), HashSet::new());
    let log = sample::log_contents(disk);
    for told in log.records.values() {
        [&told.head, &told.tail].iter().for_each(|bytes| note_found(&rows, bytes, &mut decoded));
    }
    sample::raw_groups(disk, &log).values().for_each(|bytes| note_found(&rows, bytes, &mut decoded));
    let mut tables = 0;
    for path in disk.files() {
        let bytes = disk.read(&path).unwrap();
        note_found(&rows, &bytes, &mut raw);
        note_found(&rows, path.to_string_lossy().as_bytes(), &mut raw);
        if path.extension().is_none_or(|end| end != "tbl") {
            continue;
        }
        tables += 1;
        let table = Table::open(FileBytes::owned(bytes.into())).unwrap();
        for entry in table.scan(Bound::Unbounded, Bound::Unbounded) {
            let entry = entry.unwrap();
            note_found(&rows, &entry.key, &mut decoded);
            if entry.value.kind == keys::ANCHOR {
                let window = entry.value.b..entry.value.b + ANCHOR_WINDOW_BYTES as u32;
                let held = log.groups.get(&entry.value.a).unwrap_or_else(|| {
                    panic!(
                        "{when}, an anchor of {} leads to group {}, which is gone",
                        path.display(),
                        entry.value.a
                    )
                });
                let there =
                    held.ranges.iter().any(|range| range.start <= window.start && window.end <= range.end);
                assert!(
                    there,
                    "{when}, an anchor of {path:?} leads to {window:?} of group {}, which has only {:?}",
                    entry.value.a, held.ranges
                );
            }
        }
    }
    assert!(tables > 0, "the disk has no table");
    let named = |found: HashSet<usize>| {
        let names: Vec<&String> = all.keys().collect();
        let mut found: Vec<String> = found.into_iter().map(|number| names[number].clone()).collect();
        found.sort();
        found
    };
    [named(raw), named(decoded)]
}

/// Runs the check in each state of the store: open, after crashes, closed, opened and closed again, and with
/// its tables rebuilt.
fn check_every_state(sim: &SimIo, store: Store, mut check: impl FnMut(&SimIo, &str)) {
    check(&sim.crash(Crash::Everything), "while it is open");
    // A power cut right away must not bring anything back.
    check(&sim.crash(Crash::Nothing), "after a power cut");
    store.close().unwrap();
    check(sim, "closed");
    let store = Store::open_with(ROOT, options(sim)).unwrap();
    assert!(store.verify().unwrap().damaged.is_empty());
    store.close().unwrap();
    check(sim, "opened and closed again");
    // Removes the tables, so that only the log is left.
    for path in sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")) {
        crate::io::Io::remove(sim, path).unwrap();
    }
    let store = Store::open_with(ROOT, options(sim)).unwrap();
    store.close().unwrap();
    check(sim, "with its tables made again");
}

fn assert_gone(disk: &SimIo, all: &Canaries, when: &str) {
    let [raw, decoded] = find_canaries(disk, all, when);
    assert!(
        raw.is_empty() && decoded.is_empty(),
        "{when}, canaries remain in the raw files: {raw:?}; decoded: {decoded:?}"
    );
}

/// Proves that the search works: it finds every canary before the drop.
fn assert_all_found(disk: &SimIo, all: &Canaries) {
    let [raw, decoded] = find_canaries(disk, all, "before");
    let mut either: Vec<&String> = raw.iter().chain(&decoded).collect();
    either.sort();
    either.dedup();
    let missing: Vec<&String> = all.keys().filter(|what| !either.contains(what)).collect();
    assert!(missing.is_empty(), "canaries not found: {missing:?}");
    let decoded_only: Vec<&String> = all.keys().filter(|what| !raw.contains(what)).collect();
    assert!(decoded_only.is_empty(), "canaries missing from the raw files: {decoded_only:?}");
}

#[test]
fn forgotten_run_leaves_no_bytes_in_any_file() {
    for recompressed in [false, true] {
        let sim = SimIo::new(9);
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let mut all = Canaries::new();
        let name = word(7);
        canary(&mut all, "name", &name);
        record_living_run(&space, "before", 100);
        record_canary_run(&space, &name, 1, &mut all);
        record_living_run(&space, "after", 200);
        if recompressed {
            let options = CompactOptions { recompress: Some(5), ..CompactOptions::default() };
            assert!(store.compact(&options).unwrap().rewritten > 0);
            record_living_run(&space, "later", 300);
        }
        // Closing also writes the data to tables.
        drop(space);
        store.close().unwrap();
        assert_all_found(&sim, &all);
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let root = store.stats().unwrap().ledger_root;
        let checkpoint = store.checkpoint().unwrap();
        let uid = space.forget(&name, "asked for").unwrap().run.uid;
        assert_ne!(store.stats().unwrap().ledger_root, root, "a tombstone adds a leaf");
        let options = CompactOptions { must_go: vec![uid], ..CompactOptions::default() };
        assert!(store.compact(&options).unwrap().rewritten > 0);
        assert!(store.verify_against(&checkpoint).unwrap().differences.is_empty());
        assert_eq!(space.run_by_uid(uid).unwrap_err().kind(), ErrorKind::Gone);
        drop(space);
        check_every_state(&sim, store, |disk, when| assert_gone(disk, &all, when));
    }
}

#[test]
fn compaction_erases_policy_drops_and_deleted_keys() {
    let sim = SimIo::new(10);
    let store = Store::open_with(ROOT, options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let mut all = Canaries::new();
    let keyspace = space.keyspace("latest", History::Latest).unwrap();
    let key = canary(&mut all, "key", noise(1, 40));
    for (round, len) in [(0u64, 200), (1, 9000), (2, 900)] {
        keyspace.put(&key, canary(&mut all, &format!("value {round}"), noise(10 + round, len))).unwrap();
    }
    record_living_run(&space, "before", 100);
    record_canary_run(&space, "goes", 2, &mut all);
    record_living_run(&space, "after", 200);
    record_canary_run(&space, "goes, too", 3, &mut BTreeMap::new());
    drop((keyspace, space));
    store.close().unwrap();
    assert_all_found(&sim, &all);
    let store = Store::open_with(ROOT, options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    space.find_keyspace("latest").unwrap().unwrap().delete(&key).unwrap();
    let rule = RetentionRule {
        statuses: vec![Status::Abandoned],
        ..RetentionRule::new("abandoned", RetentionLimit::ForNs(0))
    };
    let plan = store.plan_retention(&RetentionPolicy::new(vec![rule]), None).unwrap();
    assert_eq!(plan.report().dropped().runs, 2);
    store.retain(plan).unwrap();
    drop(space);
    assert!(store.compact(&CompactOptions::default()).unwrap().rewritten > 0);
    check_every_state(&sim, store, |disk, when| assert_gone(disk, &all, when));
}

/// A value of every size, in a keyspace that keeps all versions, with a vector. The key's name is a canary, too.
fn put_canary_key(space: &Namespace, keyspace: &Keyspace, seed: u64, all: &mut Canaries) -> Vec<u8> {
    let key = canary(all, "key", noise(seed, 40));
    for (round, len) in [(0u64, 200), (1, 9000), (2, 900), (3, 200_000)] {
        keyspace.put(&key, canary(all, &format!("value {round}"), noise(seed + 10 + round, len))).unwrap();
    }
    let numbers: Vec<f32> = noise(seed + 20, 1536)
        .chunks_exact(4)
        .map(|bits| f32::from_bits(u32::from_le_bytes(*bits.first_chunk().unwrap()) & !(1 << 30)))
        .collect();
    let stored: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    all.insert("vector of the key".to_owned(), stored);
    let mut batch = space.batch();
    let value = canary(all, "value with a vector", noise(seed + 21, 6000));
    batch.put_embedded(keyspace, &key, value, &[("e", &numbers)]);
    batch.commit().unwrap();
    key
}

/// Versions in a keyspace that keeps every version stayed for ever, deleted or not: nothing removed them.
#[test]
fn forgotten_key_leaves_no_bytes_in_any_file() {
    for (deleted_before, view_open) in [(false, false), (true, false), (false, true)] {
        let sim = SimIo::new(11);
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let keyspace = space.keyspace("all", History::All).unwrap();
        let mut all = Canaries::new();
        record_living_run(&space, "before", 100);
        let key = put_canary_key(&space, &keyspace, 5000, &mut all);
        // A neighbour whose name begins with the key, and values that must stay.
        let neighbour = [key.as_slice(), b"+"].concat();
        let kept = noise(900, 7000);
        let other = noise(901, 40);
        keyspace.put(&other, kept.clone()).unwrap();
        // Its deadline was set, moved twice and removed or not: each entry of the index has the name.
        let index = space.deadlines().unwrap();
        let set = |id: &[u8], before: Option<u64>, after: Option<u64>| {
            let mut batch = space.batch();
            before.iter().for_each(|ms| index.remove(&mut batch, DeadlineKind::Key, *ms, id));
            after.iter().for_each(|ms| index.add(&mut batch, DeadlineKind::Key, *ms, id));
            batch.commit().unwrap();
        };
        for (before, after) in [(None, Some(5)), (Some(5), Some(1 << 40)), (Some(1 << 40), Some(70))] {
            set(&key, before, after);
        }
        set(&other, None, Some(6));
        record_living_run(&space, "after", 200);
        if deleted_before {
            set(&key, Some(70), None);
            keyspace.delete(&key).unwrap();
            store.compact(&CompactOptions::default()).unwrap();
        }
        drop((keyspace, index, space));
        store.close().unwrap();
        assert_all_found(&sim, &all);
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let keyspace = space.find_keyspace("all").unwrap().unwrap();
        let index = space.find_deadlines().unwrap().unwrap();
        // A view keeps old versions in an ordinary compaction.
        let view = view_open.then(|| space.view());
        let checkpoint = store.checkpoint().unwrap();
        let ends = Some((DeadlineKind::Key, key.as_slice()));
        let gone = space.forget_keys("key", &[("all", &key)], ends, "asked for").unwrap();
        assert_eq!((gone.len(), gone[0].records), (1, 6), "five versions and the deletion");
        let due = |after: Option<&Deadline>| index.due(DeadlineKind::Key, u64::MAX, after, 10).unwrap();
        assert_eq!(due(None), [Deadline { ms: 6, id: other.clone() }]);
        let options = CompactOptions { must_go_keys: gone, ..CompactOptions::default() };
        let (done, sharers) = store.compact_and_list_sharers(&options).unwrap();
        assert!(done.rewritten > 0 && sharers.is_empty(), "{sharers:?}");
        // The evidence stays: the history is a continuation of the checkpoint's, and the note has the reason.
        assert!(store.verify_against(&checkpoint).unwrap().differences.is_empty());
        let notes: Vec<_> =
            space.find_keyspace("annals.forgotten").unwrap().unwrap().scan(ScanRange::all()).collect();
        assert_eq!(notes.len(), 1);
        assert!(String::from_utf8_lossy(&notes[0].as_ref().unwrap().1).contains("asked for"));
        assert!(keyspace.history(&key).unwrap().is_empty());
        assert_eq!(keyspace.get(&other).unwrap().unwrap(), kept);
        assert_eq!(keyspace.get(&neighbour).unwrap(), None);
        let error = space.forget_keys("key", &[("all", &key)], None, "again").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        // A key that is set again is another one.
        keyspace.put(&key[..20], "new").unwrap();
        drop((view, keyspace, index, space));
        check_every_state(&sim, store, |disk, when| {
            let rows = Canaries::from_iter(
                all.iter()
                    .filter(|(what, _)| *what != "key")
                    .map(|(what, bytes)| (what.clone(), bytes.clone())),
            );
            assert_gone(disk, &rows, when);
            let tail = Canaries::from([("end of the key".to_owned(), key[20..].to_vec())]);
            assert_gone(disk, &tail, when);
        });
    }
}

/// A key that is set while it is forgotten keeps the new value.
#[test]
fn key_set_after_forgetting_keeps_its_new_value() {
    let sim = SimIo::new(12);
    let store = Store::open_with(ROOT, options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keyspace = space.keyspace("all", History::All).unwrap();
    let mut old = Canaries::new();
    keyspace.put(b"k", canary(&mut old, "old", noise(1, 5000))).unwrap();
    let gone = space.forget_keys("key", &[("all", b"k")], None, "asked for").unwrap();
    keyspace.put(b"k", noise(2, 5000)).unwrap();
    store.compact(&CompactOptions { must_go_keys: gone, ..CompactOptions::default() }).unwrap();
    assert_eq!(keyspace.get(b"k").unwrap().unwrap(), noise(2, 5000));
    assert_eq!(keyspace.history(b"k").unwrap().len(), 1);
    drop((keyspace, space));
    check_every_state(&sim, store, |disk, when| assert_gone(disk, &old, when));
}

/// Equal bytes are stored once, so those of a forgotten key can be a living run's. The report names it.
#[test]
fn content_shared_with_living_data_is_named() {
    let sim = SimIo::new(13);
    let store = Store::open_with(ROOT, options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keyspace = space.keyspace("all", History::All).unwrap();
    let (content, short) = (noise(1, 50_000), noise(2, 30));
    let run = space.begin_run(RunSpec::new("user")).unwrap();
    let longer = [noise(3, 4000), content.clone(), noise(4, 4000)].concat();
    run.record(Frame::new(Component::Tool, longer, short.clone())).unwrap();
    run.snapshot(noise(5, 9000), &[]).unwrap();
    run.end(Status::Ok).unwrap();
    keyspace.put(b"copy", content.clone()).unwrap();
    let id = |bytes: &[u8]| crate::BlobId::of(bytes);
    let names = |bytes: &[u8]| {
        let holders = space.content_holders(id(bytes), "none", 10).unwrap();
        holders.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&content), ["key \"copy\" of keyspace \"all\""]);
    assert_eq!(names(&short), ["frame 1 of run \"user\""]);
    assert_eq!(names(&noise(5, 9000)), ["the state after frame 1 of run \"user\""]);
    assert!(names(&noise(6, 10)).is_empty());
    let gone = space.forget_keys("key", &[("all", b"copy")], None, "asked for").unwrap();
    let options = CompactOptions { must_go_keys: gone, ..CompactOptions::default() };
    let (_, sharers) = store.compact_and_list_sharers(&options).unwrap();
    let named = space.name_sharers(&sharers).unwrap();
    assert!(named.len() == 1 && named[0].ends_with(" bytes in run \"user\""), "{named:?}");
    assert!(sharers[0].bytes > 40_000, "{sharers:?}");
    assert!(names(&content).is_empty());
    assert!(store.verify().unwrap().damaged.is_empty());
}

/// A compaction leaves a file with little dead data as it is. With `all_dead`, nothing dead stays in any file.
#[test]
fn compaction_of_all_dead_data_leaves_none_in_any_file() {
    for all_dead in [false, true] {
        let sim = SimIo::new(14);
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let keyspace = space.keyspace("latest", History::Latest).unwrap();
        let mut all = Canaries::new();
        keyspace.put(b"small", canary(&mut all, "old value", noise(1, 300))).unwrap();
        record_living_run(&space, "large", 100);
        keyspace.put(b"small", "new").unwrap();
        let report = store.compact(&CompactOptions { all_dead, ..CompactOptions::default() }).unwrap();
        assert_eq!(report.rewritten > 0, all_dead, "{report:?}");
        drop((keyspace, space));
        if all_dead {
            check_every_state(&sim, store, |disk, when| assert_gone(disk, &all, when));
        } else {
            store.close().unwrap();
            assert_all_found(&sim, &all);
        }
    }
}
