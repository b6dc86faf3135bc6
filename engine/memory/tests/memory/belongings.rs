//! A run's memory entries are deleted with it, whatever removes the run.

use annals::io::sim::SimIo;
use annals::{
    Component, ErrorKind, Frame, Namespace, Options, RunSpec, RunUid, Status, Store,
    kv::ScanRange,
    retention::{RetentionLimit, RetentionPolicy, RetentionRule},
    upkeep::CompactOptions,
};
use annals_memory::{Identity, Memory, MemoryEntry, MemoryQuery, WordEmbedder};

use crate::support::{fresh, quick};

fn identity_of_conversation(conversation: &str) -> Identity {
    Identity { conversation: Some(conversation.to_owned()), ..Identity::default() }
}

fn entry(id: &str, query: &str) -> String {
    format!(
        "{{\"id\":\"{id}\",\"value\":{{\"query\":\"{query}\",\"finalContent\":\"canary-answer of {id}\"}}}}"
    )
}

fn ended_run(space: &Namespace, name: &str) -> RunUid {
    let run = space.begin_run(RunSpec::new(name).replace(true)).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    run.end(Status::Ok).unwrap().uid
}

fn remember(memory: &Memory, run: RunUid, id: &str) -> annals::Result<MemoryEntry> {
    let entries = [entry(id, "what of the canary-query?")];
    let whose = identity_of_conversation("canary-conversation");
    memory.remember_for_run(run, &whose, &entries, &WordEmbedder).map(|mut stored| stored.remove(0))
}

fn ids(memory: &Memory) -> Vec<String> {
    let (entries, _) =
        memory.list(&identity_of_conversation("canary-conversation"), None, None, &[]).unwrap();
    let mut ids: Vec<_> = entries.into_iter().map(|entry| entry.id).collect();
    ids.sort();
    ids
}

#[test]
fn run_removal_deletes_its_memory_entries() {
    let (_dir, store, space) = fresh();
    let memory = Memory::open(&space).unwrap();
    for name in ["dropped", "forgotten", "replaced", "stays"] {
        let uid = ended_run(&space, name);
        let kept = remember(&memory, uid, name).unwrap();
        assert!(kept.embedding.is_some());
        memory.rate(&identity_of_conversation("canary-conversation"), name, 1.0).unwrap();
        memory.get(&identity_of_conversation("canary-conversation"), name).unwrap().unwrap();
    }
    space.drop_run("dropped", "r", "").unwrap();
    assert_eq!(ids(&memory), ["forgotten", "replaced", "stays"]);
    assert_eq!(memory.feedback(&identity_of_conversation("canary-conversation"), "dropped").unwrap(), None);
    space.forget("forgotten", "asked for").unwrap();
    assert_eq!(ids(&memory), ["replaced", "stays"]);
    let old = space.run("replaced").unwrap().info().uid;
    ended_run(&space, "replaced");
    assert_eq!(ids(&memory), ["stays"]);
    // A late entry for a removed run is refused, and nothing is stored.
    for gone in [old, RunUid(9_999)] {
        let refused = remember(&memory, gone, "late").unwrap_err();
        assert!([ErrorKind::Gone, ErrorKind::NotFound].contains(&refused.kind()), "{refused}");
    }
    assert_eq!(ids(&memory), ["stays"]);
    space.pin("stays", "for a while").unwrap();
    let rule = RetentionRule {
        name: "all".to_owned(),
        namespaces: Vec::new(),
        statuses: Vec::new(),
        severities: Vec::new(),
        tags: Vec::new(),
        components: Vec::new(),
        older_than_ns: None,
        younger_than_ns: None,
        pinned: None,
        keep: RetentionLimit::ForNs(0),
    };
    let policy = RetentionPolicy::new(vec![rule]);
    let sweep = || store.retain(store.plan_retention(&policy, None).unwrap()).unwrap();
    sweep();
    assert_eq!(ids(&memory), ["stays"]);
    space.unpin("stays").unwrap();
    sweep();
    // Retention drops the frames; the memory stays until somebody forgets the run.
    assert_eq!(space.run("stays").unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(ids(&memory), ["stays"]);
    assert!(space.has_lasting_belongings("stays").unwrap());
    assert_eq!(space.forget("stay", "asked for").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(space.forget("stays", "asked for").unwrap().run.rule, "all");
    assert!(ids(&memory).is_empty() && !space.has_lasting_belongings("stays").unwrap());
    assert_eq!(space.forget("stays", "again").unwrap_err().kind(), ErrorKind::Gone);
}

/// Regression: a memory went with its run after seven days, or at once by sampling. Compaction frees the name of a dropped run,
/// and its memory can still be forgotten by that name.
#[test]
fn memory_of_retained_run_is_forgotten_after_compaction() {
    let (dir, store, space) = fresh();
    let memory = Memory::open(&space).unwrap();
    let uid = ended_run(&space, "gone");
    remember(&memory, uid, "canary-id").unwrap();
    ended_run(&space, "other");
    let rule = RetentionRule::new("all", RetentionLimit::ForNs(0));
    let policy = RetentionPolicy::new(vec![rule]);
    store.retain(store.plan_retention(&policy, None).unwrap()).unwrap();
    store.compact(&CompactOptions::default()).unwrap();
    assert_eq!(ids(&memory), ["canary-id"]);
    space.forget("gone", "asked for").unwrap();
    assert!(ids(&memory).is_empty());
    store.compact(&CompactOptions { must_go: vec![uid], ..CompactOptions::default() }).unwrap();
    let root = dir.path().join("s");
    store.close().unwrap();
    assert!(!files(&root).windows(7).any(|window| window == b"canary-"));
}

/// Counts of reads are in memory until a later batch or the close writes them. Regression: each read committed.
#[test]
fn read_counts_are_written_with_a_later_batch_or_at_close() {
    let sim = SimIo::new(3);
    let options = |sim: &SimIo| Options { io: std::sync::Arc::new(sim.clone()), ..Options::default() };
    let whose = identity_of_conversation("c");
    let count = |memory: &Memory| {
        let entry = memory.get(&whose, "e").unwrap().unwrap();
        entry.member("accessCount").unwrap().parse::<u64>().unwrap()
    };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    memory.put(&whose, &entry("e", "q")).unwrap();
    let before = store.seqno();
    assert_eq!([count(&memory), count(&memory), count(&memory)], [1, 2, 3]);
    assert_eq!(store.seqno(), before, "reading writes nothing");
    // A crash now loses the three counts.
    memory.put(&whose, &entry("other", "q")).unwrap();
    assert!(store.seqno() > before);
    let crashed = sim.clone();
    drop(memory);
    store.close().unwrap();
    let store = Store::open_with("s", options(&crashed)).unwrap();
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    assert_eq!([count(&memory), count(&memory)], [4, 5]);
    drop(memory);
    store.close().unwrap();
    let store = Store::open_with("s", options(&sim)).unwrap();
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    assert_eq!(count(&memory), 6, "closing writes what no batch took along");
    // The count of a deleted entry does not come back.
    memory.delete(&whose, "e").unwrap();
    memory.put(&whose, &entry("third", "q")).unwrap();
    let looks = store.namespace("n").unwrap().find_keyspace("annals.memory.looks").unwrap().unwrap();
    assert_eq!(looks.scan(ScanRange::all()).keys().count(), 0);
}

#[test]
fn key_bound_to_run_is_deleted_with_it() {
    let (_dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("a")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    let put = |uid, key: &str| space.put_with_run(uid, "notes", key.as_bytes(), key.into(), None);
    put(run.uid(), "bound to an open run").unwrap();
    run.end(Status::Ok).unwrap();
    let other = ended_run(&space, "b");
    put(run.uid(), "bound to an ended run").unwrap();
    put(other, "of another").unwrap();
    let notes = space.find_keyspace("notes").unwrap().unwrap();
    let there = || {
        notes
            .scan(ScanRange::all())
            .map(|pair| String::from_utf8(pair.unwrap().0).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(there(), ["bound to an ended run", "bound to an open run", "of another"]);
    space.drop_run("a", "rule", "").unwrap();
    assert_eq!(there(), ["of another"]);
    assert_eq!(put(run.uid(), "late").unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(there(), ["of another"]);
    drop(store);
}

fn files(root: &std::path::Path) -> Vec<u8> {
    let (mut all, mut folders) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                all.extend(std::fs::read(path).unwrap());
            }
        }
    }
    all
}

/// The keys of the entry also name the person and must be erased.
#[test]
fn forgotten_run_leaves_no_memory_bytes_after_compaction() {
    let (dir, store, space) = fresh();
    let memory = Memory::open(&space).unwrap();
    ended_run(&space, "kept");
    let uid = ended_run(&space, "gone");
    remember(&memory, uid, "canary-id").unwrap();
    memory.get(&identity_of_conversation("canary-conversation"), "canary-id").unwrap().unwrap();
    memory.rate(&identity_of_conversation("canary-conversation"), "canary-id", 0.5).unwrap();
    let root = dir.path().join("s");
    let there = || {
        let (files, canary) = (files(&root), b"canary-");
        let found = files.windows(canary.len()).enumerate().filter(|(_, window)| window == canary);
        found.map(|(at, _)| String::from_utf8_lossy(&files[at..at + 24]).into_owned()).collect::<Vec<_>>()
    };
    assert!(!there().is_empty());
    space.forget("gone", "asked for").unwrap();
    let options = CompactOptions { must_go: vec![uid], ..CompactOptions::default() };
    store.compact(&options).unwrap();
    store.close().unwrap();
    assert_eq!(there(), Vec::<String>::new());
}

/// Regression: a compaction got only the run's number, and left its memories in files of which they are a small part.
#[test]
fn forgotten_run_leaves_no_memory_bytes_in_large_files() {
    for by_its_options in [false, true] {
        let (dir, store, space) = fresh();
        let memory = Memory::open(&space).unwrap();
        ended_run(&space, "kept");
        let uid = ended_run(&space, "gone");
        // The runs stand in a file of their own.
        let rewritten = store.compact(&CompactOptions { all_dead: true, ..CompactOptions::default() });
        assert!(rewritten.unwrap().rewritten > 0);
        let mut noise = vec![0; 400_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let fill = |from: usize| {
            let keyspace = space.keyspace("fill", annals::kv::History::Latest).unwrap();
            for (part, bytes) in noise[from..][..200_000].chunks(20_000).enumerate() {
                keyspace.put(format!("{from} {part}").as_bytes(), bytes.to_vec()).unwrap();
            }
        };
        fill(0);
        remember(&memory, uid, "canary-id").unwrap();
        fill(200_000);
        let forgotten = space.forget("gone", "asked for").unwrap();
        let options = match by_its_options {
            true => forgotten.compact_options(&space).unwrap(),
            false => CompactOptions { must_go: vec![uid], ..CompactOptions::default() },
        };
        store.compact(&options).unwrap();
        drop((space, memory));
        store.close().unwrap();
        let remains = files(&dir.path().join("s")).windows(7).any(|window| window == b"canary-");
        assert_eq!(remains, !by_its_options);
    }
}

/// After a crash at any moment an entry may be missing while its run exists; no entry exists without its run.
#[test]
fn crash_leaves_no_belongings_of_a_removed_run() {
    let sim = SimIo::new(7);
    let options = |sim: &SimIo| Options { io: std::sync::Arc::new(sim.clone()), ..Options::default() };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("n").unwrap();
    let memory = Memory::open(&space).unwrap();
    let uid = ended_run(&space, "r");
    let from = sim.op_count();
    remember(&memory, uid, "r").unwrap();
    space.drop_run("r", "r", "").unwrap();
    let mut seen = [0; 3];
    for (point, disk) in sim.history().crashes(2).filter(|(point, _)| point.at >= from) {
        let store = Store::open_with("s", options(&disk)).unwrap();
        let space = store.namespace("n").unwrap();
        let there = ids(&Memory::open(&space).unwrap()).len();
        match space.run("r") {
            Ok(_) => seen[there] += 1,
            Err(_) => {
                assert_eq!(there, 0, "{point}");
                seen[2] += 1;
            }
        }
        store.close().unwrap();
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn repair_renumbers_links_of_belongings() {
    let (dir, store, space) = fresh();
    let memory = Memory::open(&space).unwrap();
    for name in ["gone", "a", "b"] {
        let uid = ended_run(&space, name);
        remember(&memory, uid, name).unwrap();
    }
    space.drop_run("gone", "r", "").unwrap();
    drop((space, memory));
    store.close().unwrap();
    let report = annals::upkeep::repair(dir.path().join("s"), dir.path().join("new"), quick()).unwrap();
    assert_eq!((report.runs, report.lost), (2, Vec::new()));
    let store = Store::open(dir.path().join("new")).unwrap();
    let space = store.namespace("default").unwrap();
    let memory = Memory::open(&space).unwrap();
    assert_eq!(ids(&memory), ["a", "b"]);
    space.drop_run("b", "r", "").unwrap();
    assert_eq!(ids(&memory), ["a"]);
    let found = memory.recall(
        &identity_of_conversation("canary-conversation"),
        "canary query",
        &WordEmbedder,
        &MemoryQuery::default(),
    );
    assert_eq!(found.unwrap().len(), 1);
}
