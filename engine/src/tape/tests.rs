//! Tests of tapes: their contents, their size, and the refusal of damaged ones.

use std::sync::Arc;

use super::{Tape, fuzz};
use crate::io::sim::SimIo;
use crate::{Component, ErrorKind, Frame, Namespace, Options, RunReader, RunSpec, Severity, Status, Store};

const BEGAN: u64 = 1_700_000_000_000_000_000;

fn store(seed: u64) -> (Store, Namespace) {
    let options = Options { io: Arc::new(SimIo::new(seed)), zero_ahead_bytes: 0, ..Options::default() };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    (store, space)
}

fn text(seed: u64, words: usize) -> String {
    let mut state = seed;
    (0..words).fold(String::new(), |text, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{text}{:x} ", state >> 44)
    })
}

/// Records a conversation with everything that a run can have. Its times are fixed, not the clock's.
fn record(space: &Namespace, steps: u64) {
    let spec = RunSpec::new("loan-42").agent("approver").model("m-1").tag("env", "prod").tag("empty", "");
    let spec = spec.severity(Severity::Debug).metadata(format!("{{\"why\":\"{}\"}}", text(1, 30)));
    let run = space.begin_run(spec.started_ns(BEGAN)).unwrap();
    let mut messages = text(2, 40);
    for step in 0..steps {
        let at = format!("{{\"at\":\"{}\",\"messages\":[\"{messages}\"]}}", 1_000_000 + step * 77);
        let answer = text(100 + step, 25);
        let metadata = format!("{{\"volatile\":{{\"n\":{step}}},\"headers\":\"{}\"}}", text(5, 20));
        let mut frame = Frame::new(Component::Llm, at, answer.clone()).metadata(metadata);
        (frame.started_ns, frame.duration_ns) = (Some(BEGAN + step * 1000), 10 + step);
        let call = run.record(frame).unwrap();
        let mut tool = Frame::new(Component::Other("judge".into()), &[0, 255, step as u8], "").parent(call);
        (tool.started_ns, tool.error) = (Some(BEGAN - 5 + step), step == 2);
        tool.severity = if step == 2 { Severity::Flagged } else { Severity::Normal };
        run.record(tool).unwrap();
        if step % 2 == 1 {
            run.snapshot(format!("state {step} {messages}"), &[("e5", &[0.5, step as f32])]).unwrap();
        }
        messages.push_str(&answer);
    }
    run.end(Status::Failed).unwrap();
}

fn tape_of(reader: &RunReader) -> Vec<u8> {
    let mut tape = Vec::new();
    assert_eq!(reader.write_tape(&mut tape).unwrap(), tape.len() as u64);
    tape
}

/// Compares everything that does not depend on the store; the uid and the parent do.
fn assert_same(a: &RunReader, b: &RunReader) {
    let frames = |run: &RunReader| run.frames().collect::<crate::Result<Vec<_>>>().unwrap();
    assert_eq!(frames(a), frames(b));
    assert_eq!(a.metadata().unwrap(), b.metadata().unwrap());
    for seq in 1..=a.info().frames {
        assert_eq!(a.snapshot_at(seq).unwrap(), b.snapshot_at(seq).unwrap());
    }
    let of = |run: &RunReader| {
        let info = run.info();
        (info.status, info.severity, info.started_ns, info.ended_ns, info.fingerprint, info.agent.clone())
    };
    assert_eq!(of(a), of(b));
}

#[test]
fn imported_run_exports_the_same_tape_bytes() {
    let ((_one, a), (_two, b)) = (store(1), store(2));
    record(&a, 12);
    b.begin_run(RunSpec::new("in the way")).unwrap();
    let tape = tape_of(&a.run("loan-42").unwrap());
    let read = Tape::read(tape.clone()).unwrap();
    assert_eq!((read.info().frames, read.info().status), (24, Status::Failed));
    assert_eq!(read.info().raw_bytes, a.run("loan-42").unwrap().info().raw_bytes);
    b.import_tape(&read, None, false).unwrap();
    assert_same(&a.run("loan-42").unwrap(), &b.run("loan-42").unwrap());
    b.run("loan-42").unwrap().verify().unwrap();
    assert_eq!(tape_of(&b.run("loan-42").unwrap()), tape);
    assert_eq!(tape_of(&a.run("loan-42").unwrap()), tape);
    // Importing again conflicts, unless another name or `replace` is given.
    assert_eq!(b.import_tape(&read, None, false).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(b.import_tape(&read, Some("other"), false).unwrap().name, "other");
    b.import_tape(&read, None, true).unwrap();
    assert_eq!(tape_of(&b.run("loan-42").unwrap()), tape);
}

#[test]
fn a_fork_is_whole_and_says_where_it_was_forked() {
    let ((_one, a), (_two, b)) = (store(1), store(2));
    record(&a, 4);
    let fork = a.fork("loan-42", 3, true, RunSpec::new("again").started_ns(BEGAN + 9)).unwrap();
    let mut frame = Frame::new(Component::Llm, text(7, 30), "other");
    frame.started_ns = Some(BEGAN + 10);
    fork.record(frame).unwrap();
    fork.end(Status::Ok).unwrap();
    let tape = tape_of(&a.run("again").unwrap());
    b.import_tape(&Tape::read(tape.clone()).unwrap(), None, false).unwrap();
    let there = b.run("again").unwrap();
    assert_same(&a.run("again").unwrap(), &there);
    let from = r#"{"at":3,"run":"loan-42","shared":2}"#;
    assert_eq!(there.info().tags, [("annals.forked_from".to_owned(), from.to_owned())]);
    assert_eq!(tape_of(&there), tape);
    // Replacing the parent does not change the tape.
    a.begin_run(RunSpec::new("loan-42").replace(true)).unwrap();
    assert_eq!(tape_of(&a.run("again").unwrap()), tape);
}

#[test]
fn a_run_that_was_cut_off_keeps_what_had_arrived() {
    let io = SimIo::new(1);
    let options = || Options { io: Arc::new(io.clone()), zero_ahead_bytes: 0, ..Options::default() };
    let one = Store::open_with("s", options()).unwrap();
    let a = one.namespace("default").unwrap();
    let run = a.begin_run(RunSpec::new("cut").started_ns(BEGAN)).unwrap();
    let mut asked = Frame::new(Component::Llm, text(3, 40), "");
    asked.started_ns = Some(BEGAN + 1);
    for words in [40, 0] {
        let open = run.begin_frame(&asked).unwrap();
        for part in 0..words / 10 {
            open.append(text(part, 10).as_bytes()).unwrap();
            open.flush().unwrap();
        }
        drop(open);
    }
    run.record(Frame::new(Component::User, "hello?", text(9, 30))).unwrap();
    assert_eq!(a.run("cut").unwrap().write_tape(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Conflict);
    one.close().unwrap();
    let one = Store::open_with("s", options()).unwrap();
    let (a, (_two, b)) = (one.namespace("default").unwrap(), store(2));
    let tape = tape_of(&a.run("cut").unwrap());
    b.import_tape(&Tape::read(tape.clone()).unwrap(), None, false).unwrap();
    let there = b.run("cut").unwrap();
    assert_same(&a.run("cut").unwrap(), &there);
    there.verify().unwrap();
    assert!(there.frame(1).unwrap().incomplete && !there.frame(1).unwrap().output.is_empty());
    assert_eq!(tape_of(&there), tape);
}

/// A tape of a conversation grows with the conversation's length, not with its square.
#[test]
fn repeated_bytes_are_stored_as_references() {
    let (_one, a) = store(1);
    record(&a, 100);
    let reader = a.run("loan-42").unwrap();
    let (tape, raw) = (tape_of(&reader).len() as u64, reader.info().raw_bytes);
    // A step adds an answer of 25 words, which the next request repeats, and a state.
    assert!(tape < 100 * 800, "{tape} bytes for {raw}");
    assert!(raw > 10 * tape, "{tape} bytes for {raw}");
}

#[test]
fn changed_or_cut_tape_is_refused_with_its_location() {
    let (_one, a) = store(1);
    record(&a, 2);
    let tape = tape_of(&a.run("loan-42").unwrap());
    Tape::read(tape.clone()).unwrap();
    let refused = |bytes: Vec<u8>, what: &dyn Fn() -> String| {
        let error = Tape::read(bytes).map(|tape| tape.info().clone()).expect_err(&what());
        assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid), "{error}");
        assert!(error.kind() == ErrorKind::Invalid || error.to_string().contains("at byte"), "{error}");
    };
    for at in 0..tape.len() {
        for bit in 0..8 {
            let mut bytes = tape.clone();
            bytes[at] ^= 1 << bit;
            refused(bytes, &|| format!("bit {bit} of byte {at}"));
        }
        refused(tape[..at].to_vec(), &|| format!("cut at {at}"));
    }
    refused([&tape[..], b"\n"].concat(), &|| "a byte more".to_owned());
    // A mail program, or git without attributes, may convert line ends.
    let text = tape.iter().flat_map(|b| if *b == b'\n' { vec![b'\r', b'\n'] } else { vec![*b] }).collect();
    refused(text, &|| "other line ends".to_owned());
}

/// An attacker can correct the digest. Changes that the fingerprint or the ids cover are still refused. All
/// others must read as a run that can be recorded.
#[test]
fn a_forged_tape_is_refused_or_reads_as_a_run() {
    let (_one, a) = store(1);
    record(&a, 2);
    let tape = tape_of(&a.run("loan-42").unwrap());
    let body = &tape[14..tape.len() - 32];
    assert_eq!(fuzz::seal(body), tape);
    let mut read = 0;
    for at in 0..body.len() {
        let mut bytes = body.to_vec();
        bytes[at] = bytes[at].wrapping_add(1);
        let sealed = fuzz::seal(&bytes);
        read += usize::from(Tape::read(sealed).is_ok());
        fuzz::tape(&[&[1], &bytes[..]].concat());
    }
    assert!(read > 10 && read < body.len() / 5, "{read} of {}", body.len());
}

#[test]
fn a_small_tape_cannot_ask_for_endless_work() {
    let (_one, a) = store(1);
    record(&a, 2);
    let tape = tape_of(&a.run("loan-42").unwrap());
    let mut bytes = tape[14..tape.len() - 32].to_vec();
    // The head's metadata claims to be of a gigabyte.
    let at = bytes.windows(8).position(|w| w == b"{\"why\":\"").unwrap();
    let at = bytes[..at].iter().rposition(|b| *b == 0).unwrap();
    bytes.splice(at - 40..at, [0, 0xff, 0xff, 0xff, 0xff, 3]);
    assert_eq!(Tape::read(fuzz::seal(&bytes)).unwrap_err().kind(), ErrorKind::Damaged);
}
