//! Batches, merges, frames that are read again, dropped runs, an index in the form of before, damage.

use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::kv::{History, ScanRange};
use annals::runs::RunBelonging;
use annals::{ErrorKind, Namespace, Options, RunSpec, RunUid, Status, Store};
use annals_store::codec::ByteReader;

use super::super::postings::PartRow;
use super::{FrameGaps, FrameRow, FrameText, FrameTextBatch, FrameTexts, PARTITION, RunMark};

struct TextBench {
    _store: Store,
    space: Namespace,
    index: FrameTexts,
}

impl TextBench {
    fn new() -> Self {
        let options = Options { io: Arc::new(SimIo::new(3)), ..Options::default() };
        let store = Store::open_with("s", options).unwrap();
        let space = store.namespace("n").unwrap();
        let index = FrameTexts::open(&space).unwrap().unwrap();
        Self { _store: store, space, index }
    }

    fn begin(&self, name: &str) -> RunUid {
        self.space.begin_run(RunSpec::new(name)).unwrap().end(Status::Ok).unwrap().uid
    }

    /// Adds frames of a run, each with one text, in a batch of their own.
    fn add(&self, run: RunUid, texts: &[(u32, &str)], mark: Option<RunMark>) {
        let mut batch = FrameTextBatch::default();
        let frames: Vec<_> = texts.iter().map(|(seq, text)| text_of(*seq, text)).collect();
        batch.add(run, &frames, mark, FrameGaps::default()).unwrap();
        batch.set_low_mark(run);
        self.index.commit(batch).unwrap();
    }

    /// The frames that answer a question, the best first.
    fn found(&self, question: &str) -> Vec<(u64, u32)> {
        self.index.find(question, 100).unwrap().iter().map(|hit| (hit.run.0, hit.seq)).collect()
    }

    fn parts(&self) -> Vec<u32> {
        self.index.list().unwrap().unwrap().parts.iter().map(|part| part.count).collect()
    }

    fn keys(&self, keyspace: &str) -> usize {
        let found = self.space.find_keyspace(keyspace).unwrap();
        found.map_or(0, |keyspace| keyspace.scan(ScanRange::all()).keys().count())
    }
}

fn text_of(seq: u32, text: &str) -> FrameText {
    FrameText { seq, texts: vec![text.to_owned()] }
}

#[test]
fn row_takes_two_bytes_and_round_trips() {
    let rows = [(1, 1), (1, 2), (1, 60), (2, 1), (1, 9), (u64::MAX, u32::MAX), (u64::MAX, 1), (0, 0)];
    let rows = rows.map(|(run, seq)| FrameRow { run, seq });
    let mut bytes = Vec::new();
    let mut before = None;
    for row in &rows {
        row.put(before, &mut bytes);
        before = Some(row);
    }
    // Golden: docs/format.md, section 20.
    assert_eq!(bytes[..10], [2, 2, 0, 2, 0, 116, 2, 2, 1, 18]);
    let mut reader = ByteReader::new(&bytes, "rows");
    let mut before = None;
    for row in rows {
        assert_eq!(FrameRow::read(before.as_ref(), &mut reader).unwrap(), row);
        before = Some(row);
    }
    assert!(reader.is_empty());
    assert!(FrameRow::read(None, &mut ByteReader::new(&[2, 1], "a frame before 0")).is_err());
}

/// Small batches are merged, so that many searches of a live run do not leave many parts.
#[test]
fn batches_are_merged_and_every_frame_stays_found() {
    let bench = TextBench::new();
    let run = bench.begin("run");
    for seq in 1..=100 {
        bench.add(
            run,
            &[(seq, &format!("the heron number{seq} waits"))],
            Some(RunMark { next: seq + 1, parent: None }),
        );
    }
    let parts = bench.parts();
    assert_eq!(parts.iter().sum::<u32>(), 100);
    assert!(parts.len() <= 7, "{parts:?}");
    assert_eq!(bench.found("heron").len(), 100);
    for seq in [1, 50, 99, 100] {
        assert_eq!(bench.found(&format!("number{seq}"))[0], (run.0, seq));
    }
    let list = bench.index.list().unwrap().unwrap();
    let buckets: u32 = list.parts.iter().map(|part| part.buckets + 1).sum();
    assert_eq!(bench.keys(super::PARTS), buckets as usize + 1, "nothing is left of merged parts");
    assert_eq!(bench.keys(super::RUNS), 1, "a run has one key, whatever the number of its frames");
}

/// A fork's frames are read again once its parent is gone: each was found twice.
#[test]
fn frame_that_is_read_again_is_found_once() {
    let bench = TextBench::new();
    let (run, other) = (bench.begin("run"), bench.begin("other"));
    let many: Vec<(u32, String)> = (1..=9).map(|seq| (seq, format!("a heron and an ibis {seq}"))).collect();
    let many: Vec<(u32, &str)> = many.iter().map(|(seq, text)| (*seq, &**text)).collect();
    bench.add(run, &many, None);
    bench.add(run, &[(9, "a heron without the other bird")], None);
    assert_eq!(bench.parts(), [9, 1], "too few to be merged");
    assert_eq!(bench.found("heron").iter().filter(|found| **found == (run.0, 9)).count(), 1);
    // Merged, only what was read last stays.
    bench.add(other, &[(1, "a stork"), (2, "a stork"), (3, "a stork"), (4, "a stork")], None);
    assert_eq!(bench.parts(), [13]);
    assert_eq!(bench.found("ibis").len(), 8);
}

/// Their rows stay in the parts until those are written again, but are not found from the commit on that drops the run.
#[test]
fn dropped_run_is_not_found_and_then_taken_out() {
    let bench = TextBench::new();
    let runs: Vec<RunUid> = ["a", "b", "c"].map(|name| bench.begin(name)).into();
    for run in &runs {
        bench.add(*run, &[(1, "the canary sings"), (2, "it rests")], Some(RunMark { next: 3, parent: None }));
    }
    assert_eq!(bench.found("canary"), [(3, 1), (2, 1), (1, 1)]);
    bench.space.drop_run("a", "rule", "").unwrap();
    bench.begin("other");
    let replaced = bench.space.begin_run(RunSpec::new("b").replace(true)).unwrap();
    assert_eq!(bench.found("canary"), [(3, 1)]);
    assert_eq!(bench.parts().iter().sum::<u32>(), 6);
    bench.index.tend().unwrap();
    assert_eq!(bench.parts().iter().sum::<u32>(), 2, "only the frames of the living run");
    assert_eq!(bench.found("canary"), [(3, 1)]);
    assert_eq!((bench.keys(super::REMOVED), bench.keys(super::RUNS)), (0, 1));
    assert_eq!(bench.index.waiting().unwrap().into_keys().collect::<Vec<_>>(), [runs[2]]);
    drop(replaced);
    // A run that was dropped between reading its frames and the commit.
    bench.space.drop_run("c", "rule", "").unwrap();
    bench.add(runs[2], &[(3, "a late canary")], Some(RunMark { next: 4, parent: None }));
    assert!(bench.found("canary").is_empty());
    bench.index.tend().unwrap();
    assert!(bench.parts().is_empty() && bench.index.waiting().unwrap().is_empty());
}

/// Each frame had three keys and two links. They took seven times the bytes of the frames.
#[test]
fn index_in_the_form_of_before_is_removed_and_made_again() {
    let bench = TextBench::new();
    let run = bench.begin("run");
    let keyspace = |name| bench.space.keyspace(name, History::Latest).unwrap();
    let key = b"_/_/fffffffffffffffe\x001";
    let belonging = |keyspace| RunBelonging { keyspace, key, is_lasting: false, is_numbered: false };
    let before = [belonging("annals.search"), belonging("annals.search.words"), belonging("annals.kept")];
    bench
        .space
        .write_with_run(run, &before, || {
            for name in ["annals.search", "annals.search.words", "annals.kept"] {
                keyspace(name).put(key, "x").unwrap();
            }
            keyspace("annals.search.words.numbers").put(&[0; 24], "x").unwrap();
            keyspace("annals.search.waiting").put(b"low", run.0.to_be_bytes().to_vec()).map(drop)
        })
        .unwrap();
    assert_eq!(bench.index.low_mark().unwrap(), None, "its mark says nothing of the new form");
    bench.index.tend().unwrap();
    for name in
        ["annals.search", "annals.search.words", "annals.search.words.numbers", "annals.search.waiting"]
    {
        assert_eq!(bench.keys(name), 0, "{name}");
    }
    assert_eq!((bench.keys("annals.kept"), bench.keys("annals.belongings")), (1, 1));
    bench.add(run, &[(1, "a heron")], None);
    bench.index.tend().unwrap();
    assert_eq!((bench.found("heron"), bench.index.low_mark().unwrap()), (vec![(run.0, 1)], Some(run)));
}

#[test]
fn damaged_part_is_an_error_and_clearing_mends_it() {
    let bench = TextBench::new();
    let run = bench.begin("run");
    bench.add(run, &[(1, "a heron")], None);
    let parts: Vec<Vec<u8>> = bench.index.parts.scan(ScanRange::all()).keys().map(Result::unwrap).collect();
    for key in parts.iter().filter(|key| key.len() > PARTITION.len()) {
        bench.index.parts.put(key, vec![9; 7]).unwrap();
    }
    assert_eq!(bench.index.find("heron", 1).unwrap_err().kind(), ErrorKind::Damaged);
    bench.index.clear().unwrap();
    assert!(bench.found("heron").is_empty() && bench.index.low_mark().unwrap().is_none());
    bench.add(run, &[(1, "a heron")], None);
    assert_eq!(bench.found("heron"), [(run.0, 1)]);
}
