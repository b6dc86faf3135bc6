//! `Store::verify` and forged bytes: bodies of values and snapshots, and tables with valid checksums that hide data.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use annals::io::Io;
use annals::io::sim::SimIo;
use annals::upkeep::{CompactOptions, diagnose};
use annals::{Component, ErrorKind, Frame, Options, RunSpec, Status, Store, kv::History};
use annals_store::io::FileBytes;
use annals_store::kv::table::{IndexEntry, Table, TableWriter};

use crate::forge::{ForgedFrameHead, ForgedLog, ForgedRecord};
use crate::support::{
    GrowingConversation, SeededRng, assert_whole, disk_of, files, process_durability_options, record, seed,
    sim_options,
};

/// Value kinds of the index: docs/format.md, section 12.
const LIVING: u8 = 1;
const ENDED: u8 = 2;

fn read_only(sim: &SimIo) -> Store {
    Store::open_read_only_with("s", sim_options(sim)).unwrap()
}

// ---- bodies ----

/// Where a body is recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BodyHolder {
    Value,
    OldVersion,
    LongValue,
    State,
    Vector,
}

const HOLDERS: [BodyHolder; 5] =
    [BodyHolder::Value, BodyHolder::OldVersion, BodyHolder::LongValue, BodyHolder::State, BodyHolder::Vector];

fn body(holder: BodyHolder) -> Vec<u8> {
    match holder {
        BodyHolder::LongValue => SeededRng(7).bytes(9 << 20),
        BodyHolder::Vector => vector().iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => SeededRng(7).bytes(6000),
    }
}

fn vector() -> Vec<f32> {
    let mut rng = SeededRng(8);
    (0..2000).map(|_| rng.below(1 << 24) as f32 / 1000.0).collect()
}

/// A closed store with one body.
fn store_with_body(holder: BodyHolder) -> SimIo {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", Options { raw_tail_bytes_max: 0, ..sim_options(&sim) }).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    keys.put(b"other", "short").unwrap();
    match holder {
        BodyHolder::Value | BodyHolder::LongValue => {
            keys.put(b"big", body(holder)).unwrap();
        }
        BodyHolder::OldVersion => {
            keys.put(b"big", body(holder)).unwrap();
            keys.put(b"big", "newer").unwrap();
        }
        BodyHolder::State | BodyHolder::Vector => {
            let run = space.begin_run(RunSpec::new("r")).unwrap();
            record(&run, &mut GrowingConversation::new("topic"), 2);
            match holder {
                BodyHolder::State => run.snapshot(body(holder), &[]).unwrap(),
                _ => run.snapshot("state", &[("e", &vector())]).unwrap(),
            };
            run.end(Status::Ok).unwrap();
        }
    }
    store.close().unwrap();
    sim
}

/// The same store with one changed byte in the body, and every checksum made anew.
fn forge_body(sim: &SimIo, needle: &[u8]) -> SimIo {
    let mut log = ForgedLog::read(&files(sim));
    log.decompress();
    let mut changed = 0;
    for record in log.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
        let ForgedRecord::Part { encoded, .. } = record else { continue };
        if let Some(at) = encoded.windows(needle.len()).position(|window| window == needle) {
            encoded[at] ^= 0x55;
            changed += 1;
        }
    }
    assert_eq!(changed, 1, "the body stands raw in one part");
    disk_of(&log.write().unwrap())
}

/// Found by an attacker: only frames and the metadata of runs were hashed.
#[test]
fn forged_body_of_value_or_snapshot_is_damage() {
    for holder in HOLDERS {
        let sim = store_with_body(holder);
        let needle = &body(holder)[100..132];
        let whole = disk_of(&ForgedLog::read(&files(&sim)).write().unwrap());
        assert_whole(&read_only(&whole));
        let forged = forge_body(&sim, needle);
        let damaged = read_only(&forged).verify().unwrap().damaged;
        let [problem] = &damaged[..] else { panic!("{holder:?}: {damaged:?}") };
        let names = match holder {
            BodyHolder::State | BodyHolder::Vector => "the snapshot after frame 2",
            _ => "key \"big\" of keyspace \"k\" in namespace \"default\"",
        };
        assert!(problem.what.contains(names), "{holder:?}: {}", problem.what);
        assert!(problem.what.contains("do not hash to it"), "{holder:?}: {}", problem.what);
        if names.starts_with("key") {
            assert!(problem.what.contains(".seg is damaged at byte "), "{holder:?}: {}", problem.what);
        }
        let restored = annals::upkeep::restore("s", "t", sim_options(&forged)).unwrap_err();
        assert_eq!(restored.kind(), ErrorKind::Damaged, "{holder:?}");
    }
}

/// A version that nobody can ask for may have lost its bytes to a compaction.
#[test]
fn superseded_body_is_not_read() {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", Options { raw_tail_bytes_max: 0, ..sim_options(&sim) }).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::Latest).unwrap();
    keys.put(b"big", body(BodyHolder::Value)).unwrap();
    keys.put(b"big", "newer").unwrap();
    store.close().unwrap();
    let forged = forge_body(&sim, &body(BodyHolder::Value)[100..132]);
    assert_whole(&read_only(&forged));
}

// ---- tables ----

fn tables(sim: &SimIo) -> Vec<PathBuf> {
    sim.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")).collect()
}

fn entries_of(table: &Table) -> Vec<IndexEntry> {
    table.scan(Bound::Unbounded, Bound::Unbounded).map(Result::unwrap).collect()
}

/// The oldest table that has such an entry.
fn table_with(sim: &SimIo, wanted: impl Fn(&IndexEntry) -> bool) -> PathBuf {
    let has = |path: &PathBuf| {
        let table = Table::open(FileBytes::owned(sim.read(path).unwrap().into())).unwrap();
        entries_of(&table).iter().any(&wanted)
    };
    tables(sim).into_iter().find(has).unwrap()
}

/// Changes the entries of the only table. Its checksums are made anew, and the manifest lists its new length.
fn edit_table(sim: &SimIo, edit: impl FnOnce(&mut Vec<IndexEntry>)) {
    edit_table_at(sim, &tables(sim)[0], edit);
}

fn edit_table_at(sim: &SimIo, path: &Path, edit: impl FnOnce(&mut Vec<IndexEntry>)) {
    let bytes = sim.read(path).unwrap();
    let table = Table::open(FileBytes::owned(bytes.clone().into())).unwrap();
    let mut entries = entries_of(&table);
    let write = |entries: &[IndexEntry]| {
        let mut writer = TableWriter::new(Vec::new(), *table.meta()).unwrap();
        for entry in entries {
            writer.push(&entry.key, entry.seqno, entry.value).unwrap();
        }
        writer.finish().unwrap()
    };
    assert!(write(&entries) == bytes, "the table is written as annals writes it");
    edit(&mut entries);
    entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
    let forged = write(&entries);
    assert!(forged != bytes);
    sim.edit(path, |bytes| bytes.clone_from(&forged)).unwrap();
    relist_table(sim, (table.meta().id, bytes.len(), forged.len()));
}

/// Changes the length of a table in the last edit of the manifest: docs/format.md, section 3.
fn relist_table(sim: &SimIo, (id, old, new): (u64, usize, usize)) {
    let is_manifest = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST-");
    let path = sim.files().into_iter().find(is_manifest).unwrap();
    let row = |len: usize| [id.to_le_bytes(), (len as u64).to_le_bytes()].concat();
    sim.edit(&path, |bytes| {
        let store = bytes[8..24].to_vec();
        let (mut at, mut edit) = (28, 0..0);
        while at + 8 <= bytes.len() {
            let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            edit = at..at + 8 + len;
            at = edit.end;
        }
        let found = bytes[edit.clone()].windows(16).position(|window| window == row(old)).unwrap();
        bytes[edit.start + found..][..16].copy_from_slice(&row(new));
        let offset = (edit.start as u64).to_le_bytes();
        let crc = crc32fast::hash(&[&store, &offset[..], &bytes[edit.start + 4..edit.end]].concat());
        bytes[edit.start..edit.start + 4].copy_from_slice(&crc.to_le_bytes());
    })
    .unwrap();
}

/// Keys, deleted keys, several versions, two runs; one table.
fn store_with_table() -> SimIo {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    for i in 0..5 {
        keys.put(format!("user{i}").as_bytes(), format!("value{i}")).unwrap();
        latest.put(format!("user{i}").as_bytes(), format!("value{i}")).unwrap();
    }
    keys.put(b"secret", "precious").unwrap();
    keys.put(b"secret", "precious2").unwrap();
    for keys in [&keys, &latest] {
        keys.delete(b"user1").unwrap();
    }
    for name in ["good-run", "evil-run"] {
        let run = space.begin_run(RunSpec::new(name).agent("bot").tag("env", "prod")).unwrap();
        record(&run, &mut GrowingConversation::new(name), 3);
        run.snapshot("state", &[]).unwrap();
        run.end(Status::Ok).unwrap();
    }
    store.close().unwrap();
    assert_eq!(tables(&sim).len(), 1);
    sim
}

fn entry<'a>(entries: &'a mut [IndexEntry], key: &[u8]) -> &'a mut IndexEntry {
    entries.iter_mut().find(|entry| entry.key.ends_with(key) && entry.value.kind == LIVING).unwrap()
}

type TableForgery = (&'static str, fn(&mut Vec<IndexEntry>));

/// Each hides or changes an answer.
const FORGERIES: [TableForgery; 11] = [
    ("a key in a file that is not there", |entries| entry(entries, b"secret").value.a = 77),
    ("an old version of a key left out", |entries| {
        entries.retain(|entry| !(entry.key.ends_with(b"user1") && entry.value.kind == LIVING));
    }),
    ("a key as deleted", |entries| entry(entries, b"secret").value.kind = ENDED),
    ("a deleted key as living", |entries| {
        let ended = |entry: &&mut IndexEntry| entry.key.ends_with(b"user1") && entry.value.kind == ENDED;
        entries.iter_mut().find(ended).unwrap().value.kind = LIVING;
    }),
    ("a key renamed", |entries| {
        for entry in entries.iter_mut().filter(|entry| entry.key.ends_with(b"secret")) {
            *entry.key.last_mut().unwrap() = b'u';
        }
    }),
    ("an older version's place", |entries| {
        let at = entries.iter().position(|entry| entry.key.ends_with(b"secret")).unwrap();
        assert!(entries[at + 1].key == entries[at].key);
        let old = entries[at + 1].value;
        entries[at + 1].value = std::mem::replace(&mut entries[at].value, old);
    }),
    ("two keys exchanged", |entries| {
        let one = entry(entries, b"user2").value;
        let other = std::mem::replace(&mut entry(entries, b"user3").value, one);
        entry(entries, b"user2").value = other;
    }),
    ("an old version under a number of its own", |entries| {
        let newest = entry(entries, b"secret").seqno;
        let old = |entry: &&mut IndexEntry| entry.key.ends_with(b"secret") && entry.seqno != newest;
        entries.iter_mut().find(old).unwrap().seqno = newest + 1;
    }),
    ("a run's name renamed", |entries| *entry(entries, b"evil-run").key.last_mut().unwrap() = b'o'),
    ("a run as ended", |entries| {
        let run = |entry: &&mut IndexEntry| entry.key.starts_with(&[0, 0, 0, 2]);
        entries.iter_mut().find(run).unwrap().value.kind = ENDED;
    }),
    ("a snapshot of another frame", |entries| {
        let state = |entry: &&mut IndexEntry| entry.key.starts_with(&[0, 0, 0, 6]);
        *entries.iter_mut().find(state).unwrap().key.last_mut().unwrap() = 2;
    }),
];

fn assert_index_damage(sim: &SimIo, what: &str) -> String {
    let damaged = read_only(sim).verify().unwrap().damaged;
    let problem = damaged.iter().find(|problem| problem.what.starts_with("the index differs from the log"));
    let problem = problem.unwrap_or_else(|| panic!("{what}: {damaged:?}")).what.clone();
    let found = diagnose("s", sim_options(sim)).unwrap();
    let finding = found.findings.iter().find(|finding| finding.file.ends_with("tables"));
    let finding = finding.unwrap_or_else(|| panic!("{what}: {:?}", found.findings));
    assert!(finding.means.contains("nothing is lost"), "{what}: {finding:?}");
    assert!(finding.next.contains("s/tables"), "{what}: {finding:?}");
    problem
}

/// Found by an attacker: checksums alone were compared, so a table with other entries counted as whole.
#[test]
fn forged_table_is_damage_and_deleting_it_heals() {
    for (what, forge) in FORGERIES {
        let sim = store_with_table();
        assert_whole(&read_only(&sim));
        edit_table(&sim, forge);
        let problem = assert_index_damage(&sim, what);
        if what.contains("key") {
            assert!(problem.contains("of keyspace \"k\" in namespace \"default\""), "{what}: {problem}");
        }
        let restored = annals::upkeep::restore("s", "t", sim_options(&sim)).unwrap_err();
        assert_eq!(restored.kind(), ErrorKind::Damaged, "{what}");
        // A writer finds it, too, and then with memory over the table.
        let store = Store::open_with("s", sim_options(&sim)).unwrap();
        let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
        keys.put(b"more", "more").unwrap();
        assert!(!store.verify().unwrap().damaged.is_empty(), "{what}");
        store.close().unwrap();
        assert_index_damage(&sim, what);
        for path in tables(&sim) {
            sim.remove(&path).unwrap();
        }
        let store = Store::open_with("s", sim_options(&sim)).unwrap();
        assert_whole(&store);
        let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
        assert_eq!(keys.get(b"secret").unwrap().as_deref(), Some(&b"precious2"[..]));
        store.close().unwrap();
        assert_whole(&read_only(&sim));
    }
}

/// A table of a copy of the store that went on in another way: its checksums name this store and this table.
#[test]
fn table_of_a_diverged_copy_is_damage() {
    let sim = store_with_table();
    let fill = |sim: &SimIo, key: &str, name: &str| {
        let store = Store::open_with("s", sim_options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        space.keyspace("k", History::All).unwrap().put(key.as_bytes(), "a value").unwrap();
        let run = space.begin_run(RunSpec::new(name)).unwrap();
        record(&run, &mut GrowingConversation::new("same"), 2);
        run.end(Status::Ok).unwrap();
        store.close().unwrap();
    };
    let copy = disk_of(&files(&sim));
    fill(&sim, "secret42", "bad-run");
    fill(&copy, "another1", "odd-run");
    assert_eq!(tables(&sim), tables(&copy));
    for path in tables(&sim) {
        let foreign = copy.read(&path).unwrap();
        sim.edit(&path, |bytes| {
            assert_eq!(bytes.len(), foreign.len());
            bytes.copy_from_slice(&foreign);
        })
        .unwrap();
    }
    assert_index_damage(&sim, "a foreign table");
}

/// Found by an attacker: where an older table had an entry of the same record with another place, which of both a reader
/// saw was left to chance, and `verify` passed over it.
#[test]
fn second_entry_of_a_record_in_an_older_table_is_damage() {
    let sim = store_with_table();
    let older = tables(&sim);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("k", History::All).unwrap();
    keys.put(b"secret", "precious3").unwrap();
    store.close().unwrap();
    assert_whole(&read_only(&sim));
    let newest = {
        let newer = tables(&sim).into_iter().find(|path| !older.contains(path)).unwrap();
        let newer = Table::open(FileBytes::owned(sim.read(&newer).unwrap().into())).unwrap();
        entries_of(&newer).into_iter().find(|entry| entry.key.ends_with(b"secret")).unwrap()
    };
    edit_table_at(&sim, &older[0], |entries| {
        let value = entry(entries, b"secret").value;
        assert!(value != newest.value);
        entries.push(IndexEntry { value, ..newest });
    });
    assert_index_damage(&sim, "a second entry");
}

/// Found by an attacker: a table without the snapshots of a dropped run passed, though a fork still read them.
#[test]
fn hidden_snapshot_of_a_dropped_parent_is_damage() {
    let sim = SimIo::new(6);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("parent")).unwrap();
    for state in ["state 1", "state 2", "state 3"] {
        record(&run, &mut GrowingConversation::new(state), 1);
        run.snapshot(state, &[]).unwrap();
    }
    run.end(Status::Ok).unwrap();
    for (name, of, at) in [("child", "parent", 2), ("grandchild", "child", 2)] {
        space.fork(of, at, false, RunSpec::new(name)).unwrap().end(Status::Ok).unwrap();
    }
    for gone in ["parent", "child"] {
        space.drop_run(gone, "rule", "").unwrap();
    }
    store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() }).unwrap();
    drop(space);
    store.close().unwrap();
    assert_whole(&read_only(&sim));
    let state = |sim: &SimIo| {
        let run = read_only(sim).namespace("default").unwrap().run("grandchild").unwrap();
        run.snapshot_at(9).unwrap().map(|snapshot| snapshot.state)
    };
    assert_eq!(state(&sim).as_deref(), Some(&b"state 2"[..]));
    let is_second =
        |entry: &IndexEntry| entry.key.starts_with(&[0, 0, 0, 6]) && entry.key.ends_with(&[0, 0, 0, 2]);
    let table = table_with(&sim, is_second);
    edit_table_at(&sim, &table, |entries| entries.retain(|entry| !is_second(entry)));
    assert_eq!(state(&sim).as_deref(), Some(&b"state 1"[..]));
    assert_index_damage(&sim, "a hidden snapshot");
}

/// Found by an attacker: a begun frame with a great number in an open run kept readers busy for hours, since they looked
/// for each of the frames before it.
#[test]
fn frames_that_do_not_exist_take_no_time() {
    let sim = SimIo::new(7);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    drop(run.begin_frame(&Frame::new(Component::Llm, "question", "")).unwrap());
    drop((run, space));
    store.close().unwrap();
    let mut log = ForgedLog::read(&files(&sim));
    // Without its end, which the closing wrote, the run is open.
    let mut runs = 0;
    for batch in log.segments.iter_mut().flatten() {
        batch.records.retain(|record| {
            let is_run = matches!(record, ForgedRecord::Logical { kind: 4, .. });
            runs += u32::from(is_run);
            !is_run || runs == 1
        });
    }
    log.segments.iter_mut().for_each(|batches| batches.retain(|batch| !batch.records.is_empty()));
    for record in log.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
        if let ForgedRecord::Logical { kind: 5, head, .. } = record {
            let mut frame = ForgedFrameHead::parse(head).unwrap();
            frame.seq = u64::from(u32::MAX);
            *head = frame.head();
        }
    }
    let forged = read_only(&disk_of(&log.write().unwrap()));
    let found = forged.namespace("default").unwrap().run("r").unwrap();
    assert_eq!((found.info().frames, found.info().raw_bytes), (u32::MAX, 8));
    assert!(!forged.verify().unwrap().damaged.is_empty());
}

// ---- whole stores ----

/// Runs that are dropped, replaced, forked and open; keys with every history; vectors; compactions.
#[test]
fn whole_store_of_many_features_raises_no_alarm() {
    let mut rng = SeededRng(seed(31, "verify::whole_store_of_many_features_raises_no_alarm"));
    let sim = SimIo::new(9);
    let options =
        || Options { segment_bytes_max: 16 << 10, index_memory_bytes: 8 << 10, ..sim_options(&sim) };
    let histories = BTreeMap::from([
        ("all", History::All),
        ("latest", History::Latest),
        ("two", History::Newest(2)),
        ("hour", History::Age(std::time::Duration::from_secs(3600))),
        ("instant", History::Age(std::time::Duration::from_nanos(1))),
    ]);
    let mut snapshots = 0;
    for round in 0..6 {
        let store = Store::open_with("s", options()).unwrap();
        let space = store.namespace("default").unwrap();
        for step in 0..12 {
            for (name, history) in &histories {
                let keys = space.keyspace(name, *history).unwrap();
                let key = format!("key{}", rng.below(6));
                match rng.below(4) {
                    0 => drop(keys.delete(key.as_bytes()).unwrap()),
                    1 => drop(keys.put(key.as_bytes(), rng.text(6000)).unwrap()),
                    2 => drop(keys.put(key.as_bytes(), rng.text(100)).unwrap()),
                    _ => {
                        let mut batch = space.batch();
                        let vector: Vec<f32> = (0..1100).map(|_| rng.below(1000) as f32).collect();
                        batch.put_embedded(&keys, key.as_bytes(), rng.text(50), &[("e", &vector)]);
                        batch.commit().unwrap();
                    }
                }
            }
            let name = format!("run{}", rng.below(4));
            let run = space.begin_run(RunSpec::new(&name).replace(true).tag("a", "b").agent("bot")).unwrap();
            record(&run, &mut GrowingConversation::new(&name), 1 + rng.below(6));
            run.snapshot(rng.text(900), &[("state", &[1.0, 2.0])]).unwrap();
            run.end([Status::Ok, Status::Failed][rng.below(2)]).unwrap();
            if rng.below(2) == 0 {
                let fork = space.fork(&name, 1, true, RunSpec::new(format!("fork{round}-{step}"))).unwrap();
                record(&fork, &mut GrowingConversation::new("fork"), 2);
                fork.end(Status::Ok).unwrap();
            }
            match rng.below(4) {
                0 => drop(space.drop_run(&name, "rule", "").unwrap()),
                1 if round > 0 => {
                    let (recompress, all_dead) = ([None, Some(3)][rng.below(2)], rng.below(2) == 0);
                    let options = CompactOptions { recompress, all_dead, ..CompactOptions::default() };
                    store.compact(&options).unwrap();
                }
                _ => {}
            }
            assert_whole(&store);
        }
        let open = space.begin_run(RunSpec::new(format!("open{round}"))).unwrap();
        record(&open, &mut GrowingConversation::new("open"), 2);
        assert_whole(&store);
        // A reader beside the writer, and one that the writer has left behind.
        let reader = read_only(&sim);
        assert_whole(&reader);
        store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() }).unwrap();
        let report = reader.verify().unwrap();
        assert_eq!(report.damaged, []);
        drop((open, space));
        store.close().unwrap();
        let report = read_only(&sim).verify().unwrap();
        assert_eq!((&report.damaged[..], &report.rebuilt[..]), (&[][..], &[][..]));
        snapshots = report.snapshots;
        assert!(report.values > 5, "{report:?}");
    }
    assert!(snapshots > 1, "{snapshots}");
}

/// Records move, and versions lose their bytes, while they are verified: in the writing process, by a reader that
/// stays, and by readers that have just opened.
#[test]
fn verifying_beside_writes_and_compactions_raises_no_alarm() {
    let mut rng = SeededRng(seed(32, "verify::verifying_beside_writes_and_compactions_raises_no_alarm"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = || Options {
        segment_bytes_max: 64 << 10,
        index_memory_bytes: 16 << 10,
        ..process_durability_options()
    };
    let store = Store::open_with(&path, options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    record(&run, &mut GrowingConversation::new("topic"), 4);
    run.snapshot("state", &[]).unwrap();
    let stays = Store::open_read_only_with(&path, options()).unwrap();
    let is_done = AtomicBool::new(false);
    let (mut verified, mut compared) = (0, 0);
    let mut check = |store: &Store| {
        let report = store.verify().unwrap();
        assert_eq!(report.damaged, []);
        verified += 1;
        compared += usize::from(!report.notes.iter().any(|note| note.contains("not compared")));
    };
    std::thread::scope(|threads| {
        let done = &is_done;
        let store = &store;
        threads.spawn(move || {
            for step in 0..400 {
                for (name, history) in
                    [("a", History::All), ("l", History::Latest), ("n", History::Newest(2))]
                {
                    let keys = space.keyspace(name, history).unwrap();
                    let key = format!("key{}", rng.below(8));
                    match rng.below(3) {
                        0 => drop(keys.delete(key.as_bytes()).unwrap()),
                        1 => drop(keys.put(key.as_bytes(), rng.bytes(6000)).unwrap()),
                        _ => drop(keys.put(key.as_bytes(), rng.text(100)).unwrap()),
                    }
                }
                if step % 10 == 9 {
                    store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() }).unwrap();
                }
            }
            done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            check(store);
            check(&stays);
            check(&Store::open_read_only_with(&path, options()).unwrap());
        }
    });
    check(&store);
    check(&stays);
    assert!(compared > verified / 2, "{compared} of {verified}");
    println!("{verified} times verified, {compared} times compared");
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
}
