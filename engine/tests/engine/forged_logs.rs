//! Stores with valid checksums that contradict themselves, as a bug or another program might write them. They
//! must be refused with a reason.

use std::io::Read as _;
use std::path::Path;

use annals::io::sim::SimIo;
use annals::{Component, ErrorKind, Frame, Options, RunSpec, Status, Store};

use crate::forge::{ForgedFrameHead, ForgedLog, ForgedRecord, ForgedReference, StoreFiles, crc};
use crate::support::{SeededRng, disk_of, files, sim_options};

const FRAME_PART: u8 = 6;

fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 2 << 10, ..sim_options(sim) }
}

fn open(files: &StoreFiles) -> Store {
    Store::open_read_only_with("s", options(&disk_of(files))).unwrap()
}

/// The first and third part without the second are no answer: a reader could not notice the gap.
#[test]
fn stream_without_middle_part_is_damage() {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let frame = run.begin_frame(&Frame::new(Component::Llm, "may I?", "")).unwrap();
    for part in ["You may ", "not ", "do that."] {
        frame.append(part.as_bytes()).unwrap();
        frame.flush().unwrap();
    }
    store.close().unwrap();
    drop(frame);
    drop(run);
    let log = ForgedLog::read(&files(&sim));
    let is_part =
        |record: &ForgedRecord| matches!(record, ForgedRecord::Logical { kind, .. } if *kind == FRAME_PART);
    let batches: Vec<usize> =
        (0..log.batches()).filter(|at| log.clone().get(*at).records.iter().any(is_part)).collect();
    assert_eq!(batches.len(), 3);
    let without = |part: usize| {
        let mut log = log.clone();
        log.get(batches[part - 1]).records.retain(|record| !is_part(record));
        log
    };

    let output = |log: &ForgedLog| {
        let store = open(&log.write().unwrap());
        let frame = store.namespace("default").unwrap().run("r").unwrap().frame(1);
        (frame.map(|frame| frame.output), store.verify().unwrap().damaged)
    };
    assert_eq!(output(&log).0.unwrap(), b"You may not do that.");
    // If the last part is missing, it may simply not have arrived.
    assert_eq!(output(&without(3)).0.unwrap(), b"You may not ");
    for (gone, says) in [(1, "part 1 "), (2, "part 2 ")] {
        let (read, damaged) = output(&without(gone));
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains(says), "{error}");
        assert!(damaged.iter().any(|problem| problem.what.contains(says)), "{damaged:?}");
    }
}

/// A frame's record holds the first 8 bytes of its bodies' ids. Two bodies with the same first bytes are
/// simulated: frame 2 leads to the output of frame 1, and its record has the first bytes of that body's id. The
/// body alone fits its record. The frame's link was made over the whole id, so no reader of the frame accepts it.
#[test]
fn body_that_only_fits_the_front_of_its_id_is_damage() {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let outputs = [SeededRng(1).bytes(1000), SeededRng(2).bytes(1000)];
    for output in &outputs {
        run.record(Frame::new(Component::Llm, "ask", output.clone())).unwrap();
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let mut log = ForgedLog::read(&files(&sim));
    let records = || log.clone().segments.into_iter().flatten().flat_map(|batch| batch.records);
    let frames: Vec<(Vec<u8>, Vec<u8>)> = records()
        .filter_map(|record| match record {
            ForgedRecord::Logical { kind: 5, head, tail, .. } => Some((head, tail)),
            _ => None,
        })
        .collect();
    let [(first, first_tail), (second, _)] = &frames[..] else { panic!("two frames") };
    let (first, mut forged) =
        (ForgedFrameHead::parse(first).unwrap(), ForgedFrameHead::parse(second).unwrap());
    assert!(matches!(first.bodies[1], ForgedReference::Front(1000, _)), "{first:?}");
    forged.bodies[1] = first.bodies[1].clone();
    for record in log.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
        if let ForgedRecord::Logical { kind: 5, head, tail, .. } = record
            && head == second
        {
            (*head, *tail) = (forged.head(), first_tail.clone());
        }
    }

    let store = open(&log.write().unwrap());
    let reader = store.namespace("default").unwrap().run("r").unwrap();
    let mut alone = Vec::new();
    reader.output_reader(2).unwrap().read_to_end(&mut alone).unwrap();
    assert!(alone == outputs[0], "the body alone is checked to 64 bits");
    assert!(reader.frame(1).unwrap().output == outputs[0]);
    let refused =
        [reader.frame(2).map(drop), reader.frames().nth(1).unwrap().map(drop), reader.verify().map(drop)];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("its link differs"), "{error}");
    }
    assert!(!store.verify().unwrap().damaged.is_empty());
    assert!(store.namespace("default").unwrap().prove("r", Some(2), None).is_err());
}

/// Opening a store at its end trusts a footer instead of reading the batches that it sums up.
#[test]
fn verify_detects_footer_that_contradicts_batches() {
    let sim = SimIo::new(5);
    // A rewritten segment's footer counts erased records, too, so that its batches do not show its totals.
    let store = Store::open_with("s", Options { raw_tail_bytes_max: 0, ..options(&sim) }).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for seed in 0..8 {
        run.record(Frame::new(Component::Llm, SeededRng(seed).bytes(1000), "yes")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let log = ForgedLog::read(&files(&sim));
    assert!(log.segments.len() > 2, "a sealed segment is needed");
    let sound = log.write().unwrap();
    assert_eq!(open(&sound).verify().unwrap().damaged, []);

    let first = Path::new("s/segments/00000001.seg");
    let end = sound[first].len();
    let summed = u32::from_le_bytes(sound[first][end - 16..end - 12].try_into().unwrap()) as usize;
    let footer = end - 16 - summed;
    // The ledger's root stands last. Before it stand 9 totals (the first counts batches), three more 8-byte
    // numbers and a 4-byte one.
    let root = end - 16 - 32;
    let totals = root - (9 * 8 + 8 + 8 + 8 + 4);
    for (at, says) in
        [(root, "ledger root does not match its ledger"), (totals, "what its batches add up to")]
    {
        let mut files = sound.clone();
        let bytes = files.get_mut(first).unwrap();
        bytes[at] ^= 1;
        let salt = crc(0, &[&log.store, &1u32.to_le_bytes()]);
        let check = crc(salt, &[&(footer as u64).to_le_bytes(), &bytes[footer..end - 12]]);
        bytes[end - 12..end - 8].copy_from_slice(&check.to_le_bytes());
        let damaged = open(&files).verify().unwrap().damaged;
        assert!(matches!(&damaged[..], [problem] if problem.what.contains(says)), "{damaged:?}");
        assert!(damaged[0].what.contains("00000001.seg"), "{damaged:?}");
    }
}

/// A rewrite gathers the raw bytes of a group to compress them. A group without end once filled the memory.
#[test]
fn raw_group_over_the_limit_is_damage() {
    let sim = SimIo::new(5);
    let options = |sim: &SimIo| Options { segment_bytes_max: 64 << 20, ..options(sim) };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    for seed in 0..8 {
        run.record(Frame::new(Component::Llm, SeededRng(seed).text(2000), "yes")).unwrap();
    }
    // A closing beside an open batch leaves the bodies raw.
    let mut open = run.batch().unwrap();
    open.frame(Frame::new(Component::Llm, SeededRng(8).text(2000), "yes")).unwrap();
    store.close().unwrap();
    drop(open);
    let mut log = ForgedLog::read(&files(&sim));
    let mut bytes = 0;
    for record in log.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
        if let ForgedRecord::Part { raw_start, raw_len, codec: 0, encoded, .. } = record {
            *encoded = vec![b'a'; 60_000];
            (*raw_start, *raw_len) = (bytes, 60_000);
            bytes += 60_000;
        }
    }
    assert!(bytes > 262_144, "{bytes}");
    let store = Store::open_with("s", options(&disk_of(&log.write().unwrap()))).unwrap();
    let refused = store.compress_tail().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged);
    assert!(refused.to_string().contains("do not follow each other"), "{refused}");
}
