//! All ways to read a run give the same answers: frame by frame, in sequence, unverified, on several threads,
//! with caches of any size.

use annals::io::sim::SimIo;
use annals::io::{Io, OpenMode};
use annals::{
    BlobId, Component, Frame, Namespace, Options, RecordedFrame, RunReader, RunSpec, Status, Store,
};
use std::io::{IoSlice, Read};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, frames, fresh, process_durability_options, record, seed,
    sim_options,
};

/// A run with every kind of body: growing, repeated, inline, random, large, shifted by a byte, with metadata,
/// in a fork, and incomplete. Returns the names of the run and of its fork.
fn record_sample_runs(space: &Namespace) -> [&'static str; 2] {
    let mut rng = SeededRng(7);
    let run = space.begin_run(RunSpec::new("first").metadata(r#"{"a":1}"#)).unwrap();
    record(&run, &mut GrowingConversation::new("first"), 90);
    let mut grown = rng.text(70_000);
    for step in 0..40 {
        match step % 4 {
            0 => grown.extend(rng.text(3000)),
            1 => grown.splice(20_000..20_000, *b"!").for_each(drop),
            2 => grown[50_000] ^= 1,
            _ => grown.truncate(grown.len() - 500),
        }
        let small = rng.text(50 * step);
        let frame = Frame::new(Component::Llm, grown.clone(), small.clone()).metadata(r#"{"model":"m"}"#);
        let llm = run.record(frame).unwrap();
        let output = if step % 3 == 0 { rng.bytes(30_000) } else { small };
        let tool = Component::Other(format!("tool{}", step % 3));
        run.record(
            Frame::new(tool, "same every time, and longer than what stands inline", output).parent(llm),
        )
        .unwrap();
    }
    run.end(Status::Ok).unwrap();
    let fork = space.fork("first", 100, true, RunSpec::new("fork")).unwrap();
    record(&fork, &mut GrowingConversation::new("first"), 50);
    let open = fork.begin_frame(&Frame::new(Component::Llm, grown, "")).unwrap();
    for _ in 0..3 {
        open.append(&rng.text(9000)).unwrap();
        open.flush().unwrap();
    }
    drop(open);
    ["first", "fork"]
}

/// Whether an unverified frame is `frame`. Only its ids may be missing: a record may hold their first bytes alone.
fn is_same(unverified: &RecordedFrame, frame: &RecordedFrame) -> bool {
    let known = |id: Option<BlobId>, whole| if id.is_some() { id } else { whole };
    let (input_id, output_id) =
        (known(unverified.input_id, frame.input_id), known(unverified.output_id, frame.output_id));
    RecordedFrame { input_id, output_id, ..unverified.clone() } == *frame
}

fn assert_read_paths_agree(reader: &RunReader) {
    let whole = frames(reader);
    assert_eq!(whole.len(), reader.info().frames as usize);
    assert!(frames(&reader.unverified()).iter().zip(&whole).all(|(found, frame)| is_same(found, frame)));
    for (index, frame) in whole.iter().enumerate().rev() {
        let seq = index as u32 + 1;
        assert!(reader.frame(seq).unwrap() == *frame, "frame {seq}");
        let unverified = reader.unverified();
        assert!(is_same(&unverified.frame(seq).unwrap(), frame), "frame {seq} unverified");
        for reader in [reader, &unverified] {
            let (mut input, mut output) = (Vec::new(), Vec::new());
            reader.input_reader(seq).unwrap().read_to_end(&mut input).unwrap();
            reader.output_reader(seq).unwrap().read_to_end(&mut output).unwrap();
            assert!(input == frame.input && output == frame.output, "frame {seq} streamed");
        }
    }
    let verified = reader.verify().unwrap();
    assert_eq!(verified.frames, whole.len() as u64);
    let bytes: usize = whole.iter().map(|f| f.input.len() + f.output.len() + f.metadata.len()).sum();
    assert_eq!(verified.bytes, bytes as u64);
    for threads in [0, 2, 3, 7, 1000] {
        assert_eq!(reader.verify_with_threads(threads).unwrap(), verified, "{threads} threads");
    }
}

#[test]
fn all_read_paths_agree_on_any_segment_and_cache() {
    for (segment_bytes_max, group_cache_bytes) in
        [(256 << 20, 32 << 20), (256 << 20, 0), (40 << 10, 300 << 10)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let options = || Options { segment_bytes_max, group_cache_bytes, ..process_durability_options() };
        let store = Store::open_with(&path, options()).unwrap();
        let space = store.namespace("default").unwrap();
        let names = record_sample_runs(&space);
        for name in names {
            assert_read_paths_agree(&space.run(name).unwrap());
        }
        let report = store.verify().unwrap();
        assert_eq!(report.damaged, []);
        store.close().unwrap();
        let store = Store::open_read_only_with(&path, options()).unwrap();
        let space = store.namespace("default").unwrap();
        for name in names {
            assert_read_paths_agree(&space.run(name).unwrap());
        }
        for threads in [1, 2, 5] {
            let again = store.verify_with_threads(threads).unwrap();
            assert_eq!((again.frames, again.bytes, again.runs), (report.frames, report.bytes, report.runs));
            assert_eq!(again.damaged, []);
        }
    }
}

#[test]
fn single_frame_reads_are_exact_after_cache_drop() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut rng = SeededRng(3);
    let bodies: Vec<Vec<u8>> = (0..80).map(|_| rng.text(5000)).collect();
    for body in &bodies {
        run.record(Frame::new(Component::Tool, body.clone(), body[..2500].to_vec())).unwrap();
    }
    let reader = space.run("r").unwrap();
    // Prefixes of every length of the group, each followed by longer and shorter ones.
    for _ in 0..60 {
        store.drop_caches();
        for _ in 0..4 {
            let at = rng.below(bodies.len());
            assert!(reader.frame(at as u32 + 1).unwrap().input == bodies[at]);
        }
    }
}

#[test]
fn finished_frame_replaces_its_cached_unfinished_form() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    record(&run, &mut GrowingConversation::new("r"), 3);
    let open = run.begin_frame(&Frame::new(Component::Llm, SeededRng(1).text(9000), "")).unwrap();
    open.append(&SeededRng(2).text(9000)).unwrap();
    open.flush().unwrap();
    let reader = space.run("r").unwrap();
    let (seq, before) = (open.seq(), reader.frame(open.seq()).unwrap());
    assert!(before.incomplete && before.output.len() == 9000);
    open.append(b"the end").unwrap();
    open.finish(false).unwrap();
    let after = reader.frame(seq).unwrap();
    assert!(!after.incomplete && after.output.ends_with(b"the end") && after.link != before.link);
}

/// A store of a few runs in a few segments.
fn store_with_runs() -> SimIo {
    let sim = SimIo::new(11);
    let options = Options { segment_bytes_max: 8 << 10, ..sim_options(&sim) };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    for (name, steps) in [("long", 150), ("short", 10), ("other", 70)] {
        let run = space.begin_run(RunSpec::new(name)).unwrap();
        record(&run, &mut GrowingConversation::new(name), steps);
        run.end(Status::Ok).unwrap();
    }
    store.close().unwrap();
    sim
}

#[test]
fn damage_report_is_equal_for_any_thread_count() {
    let mut rng = SeededRng(seed(5, "reading::damage_report_is_equal_for_any_thread_count"));
    let whole = store_with_runs();
    let files: Vec<_> =
        whole.files().into_iter().map(|path| (path.clone(), whole.read(&path).unwrap())).collect();
    let segments: Vec<usize> =
        (0..files.len()).filter(|i| files[*i].0.extension().is_some_and(|ext| ext == "seg")).collect();
    assert!(segments.len() > 3, "{}", segments.len());
    let (mut told, mut late) = (0, 0);
    for _ in 0..120 {
        let sim = SimIo::new(12);
        let victim = segments[rng.below(segments.len())];
        for (index, (path, bytes)) in files.iter().enumerate() {
            let mut bytes = bytes.clone();
            if index == victim {
                // One to three flips.
                for _ in 0..=rng.below(3) {
                    let at = rng.below(bytes.len());
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            sim.create_dir_all(path.parent().unwrap()).unwrap();
            sim.open(path, OpenMode::CreateNew).unwrap().write_at(&[IoSlice::new(&bytes)], 0).unwrap();
        }
        let Ok(store) = Store::open_read_only_with("s", sim_options(&sim)) else { continue };
        let one = store.verify().unwrap();
        for threads in [2, 3, 4] {
            store.drop_caches();
            assert_eq!(store.verify_with_threads(threads).unwrap(), one, "{threads} threads");
        }
        let Ok(space) = store.namespace("default") else { continue };
        for name in ["long", "other"] {
            let Ok(reader) = space.run(name) else { continue };
            let one = reader.verify().map_err(|e| e.to_string());
            for threads in [2, 4] {
                store.drop_caches();
                let many = reader.verify_with_threads(threads).map_err(|e| e.to_string());
                assert_eq!(many, one, "{threads} threads");
            }
            told += u32::from(one.is_err());
            // The first damage lies after the first thread's range.
            late += u32::from(one.is_err() && reader.frames().take_while(Result::is_ok).count() > 50);
        }
    }
    assert!(told > 20 && late > 5, "{told} told, {late} late");
}

#[test]
fn streamed_body_reports_length_and_blob_id() {
    let (_dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let bodies = [Vec::new(), b"short".to_vec(), SeededRng(1).bytes(300_000)];
    for body in &bodies {
        run.record(Frame::new(Component::Tool, "", body.clone())).unwrap();
    }
    let reader = space.run("r").unwrap();
    for (seq, body) in (1..).zip(&bodies) {
        let mut stream = reader.output_reader(seq).unwrap();
        assert_eq!((stream.len(), stream.is_empty()), (body.len() as u64, body.is_empty()));
        assert!(stream.id().fits(BlobId::of(body)));
        let mut read = Vec::new();
        stream.read_to_end(&mut read).unwrap();
        assert_eq!(stream.id(), BlobId::of(body).into(), "known once it was read");
        assert!(read == *body, "body {seq}");
    }
    assert_whole(&store);
}
