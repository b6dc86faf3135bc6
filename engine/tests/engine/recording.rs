//! Recording runs and reading them back, on a real disk.

use std::io::Read as _;
use std::path::Path;

use annals::io::{Io as _, sim::SimIo};
use annals::runs::FrameInput;
use annals::{
    Component, Durability, ErrorKind, Frame, Options, RunSpec, Status, Store,
    kv::{BodyInput, History, ScanRange},
};

fn options() -> Options {
    Options { durability: Durability::Process, ..crate::support::defaults() }
}

/// A growing conversation: request n holds everything before it.
fn conversation(steps: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut messages = String::from(r#"{"role":"system","content":"You are an airline agent."}"#);
    (0..steps)
        .map(|step| {
            let request = format!(r#"{{"model":"m","messages":[{messages}]}}"#);
            let answer =
                format!(r#"{{"role":"assistant","content":"step {step}: {}"}}"#, "word ".repeat(step % 50));
            messages.push(',');
            messages.push_str(&answer);
            (request.into_bytes(), answer.into_bytes())
        })
        .collect()
}

#[test]
fn a_recorded_run_comes_back_bit_exactly_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let steps = conversation(60);
    let store = Store::open_with(dir.path().join("s"), options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for (request, answer) in &steps {
        run.record(Frame::new(Component::Llm, request.clone(), answer.clone())).unwrap();
    }
    let ended = run.end(Status::Ok).unwrap();
    let check = |store: &Store| {
        let reader = store.namespace("default").unwrap().run("r").unwrap();
        assert_eq!(reader.info(), &ended);
        let frames: Vec<_> = reader.frames().map(Result::unwrap).collect();
        assert_eq!(frames.len(), steps.len());
        for (frame, (request, answer)) in frames.iter().zip(&steps) {
            assert_eq!((&frame.input, &frame.output), (request, answer));
        }
        assert_eq!(reader.frame(37).unwrap(), frames[36]);
        let mut streamed = Vec::new();
        reader.input_reader(37).unwrap().read_to_end(&mut streamed).unwrap();
        assert_eq!(streamed, frames[36].input);
        assert_eq!(frames.last().unwrap().link, ended.fingerprint.unwrap());
    };
    check(&store);
    let live = Store::open_read_only(dir.path().join("s")).unwrap();
    check(&live);
    store.close().unwrap();
    check(&Store::open_read_only(dir.path().join("s")).unwrap());
    std::fs::remove_dir_all(dir.path().join("s/tables")).unwrap();
    let store = Store::open(dir.path().join("s")).unwrap();
    check(&store);
    // The tables folder was documented as deletable, but without it the store could not be written or
    // counted.
    assert!(store.stats().unwrap().disk_bytes > 0);
    store.namespace("default").unwrap().begin_run(RunSpec::new("another")).unwrap().end(Status::Ok).unwrap();
    let report = store.verify().unwrap();
    assert_eq!(report.damaged, []);
    assert_eq!((report.runs, report.frames), (2, 60));
    store.close().unwrap();
    check(&Store::open_read_only(dir.path().join("s")).unwrap());
}

#[test]
fn keys_have_versions() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), options()).unwrap();
    let space = store.namespace("default").unwrap();
    let all = space.keyspace("all", History::All).unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    let first = all.put(b"k", "1").unwrap();
    latest.put(b"k", "1").unwrap();
    let view = space.view();
    all.put(b"k", vec![7; 10_000]).unwrap();
    latest.put(b"k", "2").unwrap();
    all.delete(b"k").unwrap();
    assert_eq!(all.get(b"k").unwrap(), None);
    assert_eq!(all.get_at(b"k", first).unwrap().unwrap(), b"1");
    assert_eq!(all.history(b"k").unwrap().len(), 3);
    assert_eq!(latest.get_at(b"k", first).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(view.get(&latest, b"k").unwrap().unwrap(), b"1");
    for i in 0..1000u32 {
        latest.put(format!("key{i:04}").as_bytes(), i.to_string()).unwrap();
    }
    let back: Vec<_> = latest.scan(ScanRange::prefix(b"key").reverse()).map(|r| r.unwrap().0).collect();
    assert_eq!(back.len(), 1000);
    assert!(back.windows(2).all(|pair| pair[0] > pair[1]));
    drop(view);
    store.close().unwrap();
    let store = Store::open(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let all = space.keyspace("all", History::All).unwrap();
    assert_eq!(all.get_at(b"k", first).unwrap().unwrap(), b"1");
    assert_eq!(all.history(b"k").unwrap()[1].value.as_deref(), Some(&[7u8; 10_000][..]));
}

/// An unchanged state was coded as equal to an earlier one. Reading it was refused, although the snapshot had
/// been acknowledged.
#[test]
fn a_state_that_has_not_changed_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), options()).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    let state = "the same working memory at each step, longer than what is kept inline";
    for step in 0..3 {
        run.record(Frame::new(Component::Planner, format!("{step}"), "")).unwrap();
        run.snapshot(state, &[("mock", &[0.25; 4])]).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let reader = store.namespace("default").unwrap().run("r").unwrap();
    for seq in 1..=3 {
        let snapshot = reader.snapshot(seq).unwrap();
        assert_eq!((snapshot.seq, snapshot.state.as_slice()), (seq, state.as_bytes()));
        assert_eq!(snapshot.embeddings, [("mock".to_owned(), vec![0.25; 4])]);
    }
}

/// A fork's snapshot at its fork point belongs to the fork, the frame to its parent. A later snapshot coded
/// against it was once looked up in the parent and reported as damaged.
#[test]
fn a_fork_may_change_the_state_before_its_first_frame() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for step in 0..3 {
        run.record(Frame::new(Component::Planner, format!("{step}"), "")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let fork = space.fork("r", 2, false, RunSpec::new("f")).unwrap();
    let state =
        |step: usize| format!("planner_choice=tool_B {} then {step}", "what was known before ".repeat(20));
    assert_eq!(fork.snapshot(state(0), &[]).unwrap(), 2);
    for step in [1, 2, 0, 3] {
        fork.record(Frame::new(Component::Planner, format!("other {step}"), "")).unwrap();
        fork.snapshot(state(step), &[]).unwrap();
    }
    fork.end(Status::Ok).unwrap();
    let reader = space.run("f").unwrap();
    for (seq, step) in [(2, 0), (3, 1), (4, 2), (5, 0), (6, 3)] {
        assert_eq!(reader.snapshot(seq).unwrap().state, state(step).into_bytes(), "after frame {seq}");
    }
    assert!(space.run("r").unwrap().snapshot_at(3).unwrap().is_none());
}

/// Records a conversation that is appended to, changed at its head, repeated, shrunk and grown again. Returns the
/// log's files.
fn log_of_a_changing_conversation(lends: bool) -> Vec<Vec<u8>> {
    let sim = SimIo::new(5);
    let store = Store::open_with("/s", crate::support::sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut rng = crate::support::SeededRng(3);
    let mut text = |words: usize| (0..words).map(|_| format!("{:x} ", rng.next() >> 40)).collect::<String>();
    let mut body = text(3000);
    for step in 0..24 {
        match step % 8 {
            3 => body.replace_range(40..52, &text(1)),
            4 => {}
            5 => body.truncate(body.len() / 4 * 3),
            6 => body.insert_str(body.len() / 3, &text(4)),
            _ => body.push_str(&text(120)),
        }
        let answer = text(if step % 3 == 0 { 2 } else { 400 });
        let (input, output) = (body.as_bytes(), answer.as_bytes());
        let mut batch = run.batch().unwrap();
        for _ in 0..=step % 2 {
            match lends {
                true => batch.frame(FrameInput::new(
                    Component::Llm,
                    BodyInput::Lent(input),
                    BodyInput::Lent(output),
                )),
                false => batch.frame(Frame::new(Component::Llm, input, output)),
            }
            .unwrap();
        }
        batch.commit().unwrap();
    }
    run.end(Status::Ok).unwrap();
    let reader = space.run("r").unwrap();
    assert_eq!(reader.frame(reader.info().frames).unwrap().input, body.as_bytes());
    drop((reader, run, space));
    store.close().unwrap();
    let segments = Path::new("/s/segments");
    let mut names = sim.list(segments).unwrap();
    names.sort();
    names.iter().map(|name| sim.read(&segments.join(name)).unwrap()).collect()
}

#[test]
fn lent_bodies_write_the_same_log_as_owned_ones() {
    let (owned, lent) = (log_of_a_changing_conversation(false), log_of_a_changing_conversation(true));
    assert!(owned.iter().map(Vec::len).sum::<usize>() > 20_000);
    assert!(owned == lent, "the logs differ");
}

/// A lane's previous body is changed in place for a lent one. A batch that is dropped must not leave its bytes.
#[test]
fn dropped_batch_of_lent_bodies_leaves_the_lane_usable() {
    let (_dir, store, space) = crate::support::fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let bodies: Vec<String> = (0..3).map(|n| format!("head {n} {}", "word ".repeat(2000 + n))).collect();
    let frame = |n: usize| {
        FrameInput::new(Component::Llm, BodyInput::Lent(bodies[n].as_bytes()), BodyInput::Lent(b"out"))
    };
    run.record(frame(0)).unwrap();
    let mut dropped = run.batch().unwrap();
    dropped.frame(frame(1)).unwrap();
    drop(dropped);
    run.record(frame(2)).unwrap();
    run.record(frame(0)).unwrap();
    let inputs: Vec<_> = space.run("r").unwrap().frames().map(|frame| frame.unwrap().input).collect();
    assert_eq!(inputs, [0, 2, 0].map(|n| bodies[n].as_bytes()));
    assert_eq!(store.verify().unwrap().damaged, []);
}

#[test]
fn keys_in_a_run_batch_happen_with_its_frames() {
    let sim = SimIo::new(20_261_126);
    let store = Store::open_with("s", crate::support::sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keyspace = space.keyspace("k", History::Latest).unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let submit = |space: &annals::Namespace, keyspace: &annals::Keyspace, value: &str| {
        let mut batch = run.batch()?;
        let mut keys = space.batch();
        keys.put(keyspace, b"a", value.as_bytes().to_vec());
        batch.keys(keys)?;
        batch.frame(Frame::new(Component::Tool, value, ""))?;
        Ok::<_, annals::Error>(batch)
    };
    let before = store.stats().unwrap().batches;
    submit(&space, &keyspace, "one").unwrap().commit().unwrap();
    assert_eq!(store.stats().unwrap().batches, before + 1);
    // A dropped batch leaves neither.
    drop(submit(&space, &keyspace, "two").unwrap());
    // Keys of another namespace are refused, and nothing of the batch happens.
    let other = store.namespace("other").unwrap();
    let foreign = other.keyspace("k", History::Latest).unwrap();
    assert_eq!(submit(&other, &foreign, "three").err().map(|error| error.kind()), Some(ErrorKind::Invalid));
    run.end(Status::Ok).unwrap();
    store.close().unwrap();

    let store = Store::open_with("s", crate::support::sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keyspace = space.find_keyspace("k").unwrap().unwrap();
    assert_eq!(keyspace.get(b"a").unwrap(), Some(b"one".to_vec()));
    let frames: Vec<_> = space.run("r").unwrap().frames().map(|frame| frame.unwrap().input).collect();
    assert_eq!(frames, [b"one".to_vec()]);
}
