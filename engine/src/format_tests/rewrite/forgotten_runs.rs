//! Runs that were dropped and values that were replaced are erased; everything else in the store reads as
//! before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::sample::{self, LogContents, ROOT, SampleRecord, options};
use crate::blob::{Extent, GroupId, decode_recipe};
use crate::codec::ByteReader;
use crate::ids::{RunUid, SegmentId};
use crate::io::sim::SimIo;

use crate::log::ledger::{MerkleHash, leaf_hash, node_hash, record_hash};
use crate::log::record::{BodyRef, KvHead, RecipeRef, RecordKind};
use crate::log::rewrite::{LiveSet, Recompress};
use crate::trace::heads::{FrameHead, PartHead, RunFields, RunHead, SnapshotHead};
use crate::trace::kinds;
use crate::{
    Component, ErrorKind, Frame, Namespace, RunSpec, Status, Store,
    kv::History,
    ledger::{Checkpoint, CheckpointDifference},
    upkeep::{diagnose, restore},
};

/// The live records and ranges, as compaction marks them.
struct MarkedRecords {
    records: HashSet<(SegmentId, u32)>,
    groups: BTreeMap<u64, Vec<Range<u32>>>,
}

impl LiveSet for MarkedRecords {
    fn keeps_record(&self, segment: SegmentId, offset: u32) -> bool {
        self.records.contains(&(segment, offset))
    }

    fn live_ranges(&self, group: GroupId) -> Option<Vec<Range<u32>>> {
        Some(self.groups.get(&group.0).cloned().unwrap_or_default())
    }
}

/// Run and frame of a record, and its bodies. A slot is given if a later body of the run may be coded against
/// it.
type RecordBodies = (Option<(u64, u32)>, Vec<(Option<u8>, BodyRef)>);

/// The run and frame of a record, and the bodies that its head names.
fn bodies(told: &SampleRecord) -> RecordBodies {
    let head = &told.head[..];
    match told.kind {
        kinds::FRAME => {
            let head = FrameHead::parse(head).unwrap();
            let slots = [(Some(0), head.input), (Some(1), head.output), (Some(2), head.metadata)];
            (Some((head.run.0, head.seq)), slots.into())
        }
        kinds::SNAPSHOT => {
            let head = SnapshotHead::parse(head).unwrap();
            let vectors = head.embeddings.into_iter().map(|(_, vector)| (None, vector));
            (Some((head.run.0, head.seq)), [(Some(3), head.state)].into_iter().chain(vectors).collect())
        }
        kinds::FRAME_PART => {
            let head = PartHead::parse(head).unwrap();
            (Some((head.run.0, head.seq)), vec![(None, head.body)])
        }
        kinds::RUN => {
            let head = RunHead::parse(head).unwrap();
            (Some((head.fields.uid.0, 0)), vec![(None, head.metadata)])
        }
        RecordKind::Put => (None, vec![(None, KvHead::parse(RecordKind::Put, head).unwrap().value.unwrap())]),
        _ => (None, Vec::new()),
    }
}

/// Marks the live content without these runs and without replaced values.
fn mark_live(all: &LogContents, forgotten: &dyn Fn(&RunFields) -> bool) -> MarkedRecords {
    let mut newest = HashMap::new();
    let (mut runs, mut dead) = (HashMap::new(), HashSet::new());
    for (seqno, told) in &all.records {
        if let RecordKind::Put | RecordKind::Delete = told.kind {
            let head = KvHead::parse(told.kind, &told.head).unwrap();
            newest.insert((head.space, head.key), *seqno);
        }
        if told.kind == kinds::RUN {
            let fields = RunHead::parse(&told.head).unwrap().fields;
            if forgotten(&fields) {
                dead.insert(fields.uid.0);
            }
            runs.insert(fields.uid.0, fields);
        }
    }
    let mut known: HashMap<(u64, u32, u8), Arc<Vec<Extent>>> = HashMap::new();
    let mut marked = MarkedRecords { records: HashSet::new(), groups: BTreeMap::new() };
    let mut needed: BTreeMap<u64, Vec<Range<u32>>> = BTreeMap::new();
    for (seqno, told) in &all.records {
        let (of, bodies) = bodies(told);
        let lives = match told.kind {
            RecordKind::Put | RecordKind::Delete => {
                let head = KvHead::parse(told.kind, &told.head).unwrap();
                newest[&(head.space, head.key)] == *seqno
            }
            _ => of.is_none_or(|(run, _)| !dead.contains(&run)),
        };
        let mut tail = ByteReader::new(&told.tail, "tail");
        for (slot, body) in bodies {
            let BodyRef::Blob { len, .. } = body else { continue };
            let recipe = RecipeRef::take(&mut tail, len).unwrap();
            let base = (recipe.base_back > 0).then(|| {
                let (mut run, seq) = of.unwrap();
                let seq = seq - recipe.base_back;
                while let Some((parent, _, _)) = runs[&run].parent.filter(|(_, last, _)| seq <= *last) {
                    run = parent.0;
                }
                known[&(run, seq, slot.unwrap())].clone()
            });
            let extents = decode_recipe(recipe.recipe, base.as_deref().map(Vec::as_slice), len).unwrap();
            if lives {
                for extent in &extents {
                    needed.entry(extent.group.0).or_default().push(extent.offset..extent.end());
                }
            }
            if let (Some((run, seq)), Some(slot)) = (of, slot) {
                known.insert((run, seq, slot), Arc::new(extents));
            }
        }
        if lives {
            marked.records.insert((told.place.segment, told.place.offset));
        }
    }
    for (group, mut ranges) in needed {
        ranges.sort_by_key(|range| range.start);
        let mut joined: Vec<Range<u32>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        marked.groups.insert(group, joined);
    }
    marked
}

fn is_forgotten(fields: &RunFields) -> bool {
    is_forgotten_name(&fields.name)
}

/// The second run of each round is forgotten, and both runs of some rounds without a fork. The last round is
/// in the active segment, too.
fn is_forgotten_name(name: &str) -> bool {
    !name.starts_with("run 5") && (name.ends_with(".1") || ["run 0.0", "run 2.0"].contains(&name))
}

/// Everything that can be read of a run.
fn run_contents(space: &Namespace, name: &str) -> Vec<String> {
    let run = space.run(name).unwrap();
    let mut told = vec![format!("{:?}", run.info())];
    for frame in run.frames() {
        told.push(format!("{:?}", frame.unwrap()));
    }
    for seq in 1..=run.info().frames {
        told.push(format!("{:?}", run.snapshot_at(seq).unwrap()));
    }
    told
}

fn names(space: &Namespace) -> Vec<String> {
    space.runs().unwrap().map(|info| info.unwrap().name).collect()
}

fn hash_of(text: &Value) -> MerkleHash {
    let text = text.as_str().unwrap();
    let bytes: Vec<u8> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// The root from an inclusion path (RFC 9162, section 2.1.3.2).
fn root_from_path(leaf: MerkleHash, path: &Value) -> MerkleHash {
    let number = |name: &str| path[name].as_u64().unwrap();
    let (mut at, mut last, mut node) = (number("index"), number("size") - 1, leaf);
    for sibling in path["path"].as_array().unwrap() {
        assert!(last > 0);
        let sibling = hash_of(sibling);
        if at % 2 == 1 || at == last {
            node = node_hash(&sibling, &node);
            while at % 2 == 0 && at > 0 {
                (at, last) = (at / 2, last / 2);
            }
        } else {
            node = node_hash(&node, &sibling);
        }
        (at, last) = (at / 2, last / 2);
    }
    assert_eq!(last, 0);
    node
}

/// Checks every path of a proof as docs/format.md specifies.
fn check_proof(proof: &str) {
    let proof: Value = serde_json::from_str(proof).unwrap();
    let hex = |value: &Value| {
        let text = value.as_str().unwrap();
        let digits = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap());
        digits.collect::<Vec<u8>>()
    };
    for record in proof["records"].as_array().unwrap() {
        let number = |name: &str| record[name].as_u64().unwrap();
        let salt = hex(&record["salt"]).try_into().unwrap();
        let (kind, layout) = (number("kind") as u8, number("layout") as u8);
        let hash = record_hash(&salt, kind, layout, number("seqno"), &hex(&record["head"]));
        let batch = root_from_path(hash, &record["batch"]);
        assert_eq!(
            root_from_path(leaf_hash(&batch), &record["ledger"]),
            hash_of(&proof["checkpoint"]["root"])
        );
    }
}

fn reader(sim: &SimIo) -> Store {
    Store::open_read_only_with(ROOT, options(sim)).unwrap()
}

#[test]
fn remaining_runs_read_and_prove_as_before_rewrite() {
    for recompress in [Recompress::Nothing, Recompress::All(12), Recompress::Raw] {
        let sim = sample::sample_store(3);
        let (before, forgotten, checkpoint) = {
            let store = reader(&sim);
            let space = store.namespace("default").unwrap();
            let (gone, stays): (Vec<_>, Vec<_>) =
                names(&space).into_iter().partition(|name| is_forgotten_name(name));
            let contents = stays.into_iter().map(|name| (run_contents(&space, &name), name));
            (contents.collect::<Vec<_>>(), gone.len(), store.checkpoint().unwrap())
        };
        let all = sample::log_contents(&sim);
        let made =
            sample::rewrite_rows(&sim, &mark_live(&all, &is_forgotten), &[3, 100], recompress).unwrap();
        assert!(made.iter().all(|made| made.erased.records > 100 && made.erased.bytes() > 1000), "{made:?}");
        let now = reader(&sim).checkpoint().unwrap();
        assert_eq!((now.leaves, now.root, now.seqno), (checkpoint.leaves, checkpoint.root, checkpoint.seqno));
        sample::state_erasures(&sim, &made);

        let store = reader(&sim);
        let space = store.namespace("default").unwrap();
        assert_eq!(names(&space), before.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>());
        for (was, name) in &before {
            assert_eq!(&run_contents(&space, name), was, "{name}");
        }
        assert_eq!(space.run("run 1.1").unwrap_err().kind(), ErrorKind::NotFound);
        let keys = space.find_keyspace("keys").unwrap().unwrap();
        // Of six versions, one lives. The active segment, which was not rewritten, holds another one.
        assert_eq!(keys.history(b"one").unwrap().len(), 2);
        assert_eq!(store.verify().unwrap().damaged, []);

        // The ledger is unchanged but for the statement: old and new checkpoints, and proofs.
        let now = store.checkpoint().unwrap();
        let compared = store.verify_against(&checkpoint).unwrap();
        assert_eq!((compared.read, compared.erased), (checkpoint.leaves, 0));
        assert_eq!(compared.differences, []);
        assert!(compared.erased_since.is_some_and(|erased| erased > 100), "{compared:?}");
        assert_eq!(store.verify_against(&now).unwrap().differences, []);
        for (_, name) in &before {
            for seq in [None, Some(1), Some(5)] {
                check_proof(&space.prove(name, seq, None).unwrap().to_json(None).unwrap());
                check_proof(&space.prove(name, seq, Some(&checkpoint)).unwrap().to_json(None).unwrap());
            }
        }
        let mut gaps = 0;
        store
            .gaps(&mut |_| {
                let _: () = gaps += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(gaps, forgotten, "the statement lists them");
        assert!(diagnose(ROOT, options(&sim)).unwrap().findings.is_empty());
        check_store_stays_usable(&sim, &before, &checkpoint);
    }
}

/// Writes to the store, copies, repairs and rewrites it once more.
fn check_store_stays_usable(sim: &SimIo, before: &[(Vec<String>, String)], checkpoint: &Checkpoint) {
    let holds = |root: &str, least: usize| {
        let store = Store::open_read_only_with(root, options(sim)).unwrap();
        assert_eq!(store.verify().unwrap().damaged, []);
        let space = store.namespace("default").unwrap();
        assert!(names(&space).len() >= least);
        for (was, name) in before {
            assert_eq!(run_contents(&space, name)[1..], was[1..], "{name}");
        }
        store
    };
    let store = Store::open_with(ROOT, options(sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let fork = space.fork("fork 1", 3, false, RunSpec::new("later")).unwrap();
    fork.record(Frame::new(Component::Tool, "and then", sample::noise(9, 3000))).unwrap();
    fork.end(Status::Ok).unwrap();
    assert_eq!(space.keyspace("keys", History::All).unwrap().get(b"two").unwrap().unwrap().len(), 50);
    store.backup("copy", crate::upkeep::Sharing::Copied).unwrap();
    store.close().unwrap();
    for root in [ROOT, "copy"] {
        assert_eq!(holds(root, before.len() + 1).verify_against(checkpoint).unwrap().differences, []);
    }
    restore("copy", "restored", options(sim)).unwrap();
    holds("restored", before.len() + 1);
    let repaired = crate::upkeep::repair("copy", "repaired", options(sim)).unwrap();
    assert_eq!((repaired.lost, repaired.damage), (vec![], vec![]));
    holds("repaired", before.len() + 1);

    // Rewrites the remaining content once more.
    let all = sample::log_contents(sim);
    let again = sample::rewrite_rows(sim, &mark_live(&all, &|_| false), &[100], Recompress::Nothing).unwrap();
    assert_eq!(again[0].erased.frames, 0);
    sample::state_erasures(sim, &again);
    let store = holds(ROOT, before.len() + 1);
    assert_eq!(store.verify_against(checkpoint).unwrap().differences, []);
    let later = store.namespace("default").unwrap();
    check_proof(&later.prove("later", Some(4), Some(checkpoint)).unwrap().to_json(None).unwrap());
    assert!(later.run("later").unwrap().info().uid > RunUid(0));
}

/// All runs of some time, on both sides of a checkpoint, are forgotten. The checkpoint's last leaves and
/// younger ones form a subtree, of which one node is left.
#[test]
fn checkpoint_inside_erased_batches_is_partly_comparable() {
    let sim = SimIo::new(1);
    let mut kept = Vec::new();
    {
        let store = Store::open_with(ROOT, options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("gone.1")).unwrap();
        for n in 0..300u64 {
            run.record(Frame::new(Component::Tool, sample::noise(n, 300), "")).unwrap();
            kept.push(store.checkpoint().unwrap());
        }
        run.end(Status::Ok).unwrap();
        let stays = space.begin_run(RunSpec::new("stays")).unwrap();
        stays.record(Frame::new(Component::Tool, sample::noise(7, 9000), "")).unwrap();
        stays.end(Status::Ok).unwrap();
        store.close().unwrap();
    }
    let all = sample::log_contents(&sim);
    let made =
        sample::rewrite_rows(&sim, &mark_live(&all, &is_forgotten), &[100], Recompress::Nothing).unwrap();
    sample::state_erasures(&sim, &made);
    let store = reader(&sim);
    let now = store.checkpoint().unwrap();
    let mut whole = 0;
    // The run was erased without a tombstone, which counts by run show.
    let differences = store.verify_against(&kept[200]).unwrap().differences;
    let [CheckpointDifference::RunRecordsMissing { runs, missing }] = &differences[..] else {
        panic!("{differences:?}")
    };
    assert_eq!((&runs[..], *missing > 100), (std::slice::from_ref(&(1..2)), true), "{missing}");
    kept.iter_mut().for_each(|checkpoint| checkpoint.parts = None);
    for (number, checkpoint) in kept.iter().enumerate() {
        let compared = store.verify_against(checkpoint).unwrap();
        assert_eq!(compared.differences, [], "{number}");
        assert!(compared.erased < 64 && compared.read == checkpoint.leaves, "{compared:?}");
        whole += usize::from(compared.erased == 0);
        // Any changed bit of the comparable history is detected, also below a node.
        let (at, known) = (number % checkpoint.marks.len(), checkpoint.leaves - compared.erased);
        let differences = store.verify_against(&forged(checkpoint, at)).unwrap().differences.len();
        assert_eq!(differences > 0, checkpoint.marks[at].leaves <= known, "{number}");
        let since = store.namespace("default").unwrap().prove("stays", Some(1), Some(checkpoint));
        match compared.erased {
            0 => check_proof(&since.unwrap().to_json(None).unwrap()),
            _ => assert_eq!(since.unwrap_err().kind(), ErrorKind::Gone),
        }
    }
    assert!(whole > 4 && whole < 250, "{whole}");
    assert_eq!(store.verify_against(&now).unwrap().differences, []);
}

/// The checkpoint with one changed mark and a matching root.
fn forged(checkpoint: &Checkpoint, at: usize) -> Checkpoint {
    let mut forged = checkpoint.clone();
    // Only marks are compared here.
    (forged.counts, forged.parts) = (None, None);
    forged.marks[at].node.0[0] ^= 1;
    let mut from = 0;
    let tiles =
        forged.marks.iter().map(|mark| (mark.leaves - std::mem::replace(&mut from, mark.leaves), mark));
    let mut peaks: Vec<(u64, MerkleHash)> = Vec::new();
    for (mut len, mark) in tiles {
        let mut node = mark.node.0;
        while let Some((_, left)) = peaks.pop_if(|(before, _)| *before == len) {
            (len, node) = (len * 2, node_hash(&left, &node));
        }
        peaks.push((len, node));
    }
    let last = peaks.pop().unwrap().1;
    forged.root.0 = peaks.iter().rev().fold(last, |right, (_, left)| node_hash(left, &right));
    forged
}
