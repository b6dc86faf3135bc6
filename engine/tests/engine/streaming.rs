//! Frames with output in parts, and runs that are never ended.

use std::path::Path;

use annals::io::sim::{Crash, SimIo};
use annals::{
    Component, Durability, ErrorKind, Frame, Options, RunSpec, Severity, Status, Store,
    runs::{Ending, OpenFrame},
};

use crate::support::{SeededRng, assert_whole, bodies, frames, fresh, recorded, sim_options};

#[test]
fn a_streamed_frame_is_the_same_as_one_recorded_whole() {
    let (_dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("streamed")).unwrap();
    let whole = space.begin_run(RunSpec::new("whole")).unwrap();
    let mut rng = SeededRng(3);
    for len in [0, 1, 39, 40, 41, 16_383, 16_384, 16_385, 200_000] {
        let (input, output) = (rng.text(100 + len / 2), rng.text(len));
        let open = run
            .begin_frame(&Frame::new(Component::Llm, input.clone(), "left out").metadata(r#"{"a":1}"#))
            .unwrap();
        let mut rest = &output[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(1 + rng.below(5000)));
            open.append(part).unwrap();
            if rng.below(4) == 0 {
                open.flush().unwrap();
            }
            rest = after;
        }
        open.finish(false).unwrap();
        whole.record(Frame::new(Component::Llm, input, output).metadata(r#"{"a":1}"#)).unwrap();
    }
    assert_eq!(run.link(), whole.link());
    assert_eq!(run.end(Status::Ok).unwrap().fingerprint, whole.end(Status::Ok).unwrap().fingerprint);
    assert_eq!(bodies(&space.run("streamed").unwrap()), bodies(&space.run("whole").unwrap()));
    assert_whole(&store);
}

/// Metadata known only at the end (status, usage, severity) replaces the metadata that the frame began with.
#[test]
fn a_frame_may_end_with_other_metadata_than_it_began_with() {
    let (_dir, store, space) = fresh();
    let run = std::sync::Arc::new(space.begin_run(RunSpec::new("streamed")).unwrap());
    let whole = space.begin_run(RunSpec::new("whole")).unwrap();
    let mut rng = SeededRng(4);
    let metadata = |n: usize, rng: &mut SeededRng| {
        let text = String::from_utf8_lossy(&rng.text(10 + 3000 * (n % 2))).into_owned();
        serde_json::json!({ "n": n, "text": text, "volatile": { "ms": n } }).to_string().into_bytes()
    };
    for round in 0..6 {
        let ends: Vec<_> = (0..3).map(|n| metadata(round * 3 + n, &mut rng)).collect();
        let frame = |n: usize| Frame::new(Component::Llm, format!("question {round} {n}"), "");
        let mut open: Vec<_> = (0..3)
            .map(|n| Some(OpenFrame::begin(run.clone(), &frame(n).metadata(r#"{"begun":true}"#)).unwrap()))
            .collect();
        assert_eq!(
            space.run("streamed").unwrap().frame(round as u32 * 3 + 1).unwrap().metadata,
            br#"{"begun":true}"#
        );
        for n in [1, 2, 0] {
            let open = open[n].take().unwrap();
            open.append(format!("answer {n}").as_bytes()).unwrap();
            let severity = if round == 3 { Severity::Flagged } else { Severity::Debug };
            let duration_ns = (n == 2).then_some(77);
            let ending = Ending { error: n == 1, severity, metadata: Some(ends[n].clone()), duration_ns };
            open.finish_with(ending).unwrap();
        }
        for (n, end) in ends.iter().enumerate() {
            let mut frame = frame(n).metadata(end.clone());
            (frame.output, frame.error) = (format!("answer {n}").into(), n == 1);
            whole.record(frame).unwrap();
        }
    }
    assert_eq!(space.run("streamed").unwrap().info().severity, Severity::Flagged);
    let severities: Vec<_> = space.run("streamed").unwrap().frames().map(|f| f.unwrap().severity).collect();
    assert_eq!(severities.iter().filter(|s| **s == Severity::Flagged).count(), 3);
    assert_eq!(space.run("streamed").unwrap().frame(3).unwrap().duration_ns, 77);
    assert!(!severities.contains(&Severity::Debug), "an end never lowers a frame's severity");
    assert_eq!(run.end(Status::Ok).unwrap().fingerprint, whole.end(Status::Ok).unwrap().fingerprint);
    assert_eq!(bodies(&space.run("streamed").unwrap()), bodies(&space.run("whole").unwrap()));
    assert_whole(&store);
}

#[test]
fn frames_end_in_any_order_and_chain_in_begin_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let (dir, store, space) = fresh();
        let alone = space.begin_run(RunSpec::new("in order")).unwrap();
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let frame = |i: usize| {
            Frame::new(Component::Llm, SeededRng(i as u64).text(3000), SeededRng(90 + i as u64).text(3000))
        };
        let output = |i: usize| SeededRng(90 + i as u64).text(3000);
        alone.record(frame(9)).unwrap();
        run.record(frame(9)).unwrap();
        let mut open: Vec<_> = (0..4).map(|i| Some(run.begin_frame(&frame(i)).unwrap())).collect();
        for i in 0..4 {
            alone.record(frame(i)).unwrap();
        }
        let mut links = vec![run.link()];
        for i in order {
            let ending = open[i].take().unwrap();
            ending.append(&output(i)).unwrap();
            assert_eq!(
                run.end(Status::Ok).unwrap_err().kind(),
                ErrorKind::Conflict,
                "a frame is not finished"
            );
            assert_eq!(ending.finish(false).unwrap(), i as u32 + 2);
            links.push(run.link());
        }
        // The chain advances only when the first unfinished frame ends.
        let first = order.iter().position(|i| *i == 0).unwrap();
        assert!(links[..=first].iter().all(|link| *link == links[0]), "{order:?}");
        alone.record(frame(5)).unwrap();
        run.record(frame(5)).unwrap();
        let (alone, ended) = (alone.end(Status::Ok).unwrap(), run.end(Status::Ok).unwrap());
        assert_eq!(ended.fingerprint, alone.fingerprint, "{order:?}");
        assert_eq!(ended.raw_bytes, alone.raw_bytes);
        drop(open);
        drop(run);
        store.close().unwrap();
        let store = Store::open_read_only(dir.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        let (a, b) = (frames(&space.run("in order").unwrap()), frames(&space.run("r").unwrap()));
        for (a, b) in a.iter().zip(&b) {
            assert_eq!((&a.input, &a.output, a.link, b.incomplete), (&b.input, &b.output, b.link, false));
            assert_eq!(space.run("r").unwrap().frame(b.seq).unwrap(), *b);
        }
        assert_whole(&store);
    }
}

#[test]
fn crash_leaves_incomplete_frame_with_received_bytes() {
    for (how, durability) in [(Crash::Nothing, Durability::Disk), (Crash::Everything, Durability::Process)] {
        let sim = SimIo::new(1);
        let store = Store::open_with("s", Options { durability, ..sim_options(&sim) }).unwrap();
        let space = store.namespace("default").unwrap();
        let (run, _) = recorded(&space, "r", 2);
        let open = run.begin_frame(&Frame::new(Component::Llm, "question", "").parent(2)).unwrap();
        let second = run.begin_frame(&Frame::new(Component::Tool, "call", "")).unwrap();
        open.append(b"the answer ").unwrap();
        open.flush().unwrap();
        open.append(b"is coming").unwrap();
        open.flush().unwrap();
        second.append(b"quick").unwrap();
        second.finish(false).unwrap();
        open.append(b" and this never left").unwrap();
        let disk = sim.crash(how);
        let check = |store: &Store| {
            let reader = store.namespace("default").unwrap().run("r").unwrap();
            assert_eq!((reader.info().status, reader.info().frames), (Status::Abandoned, 4), "{how:?}");
            let frames = frames(&reader);
            assert!(frames[2].incomplete && !frames[3].incomplete);
            assert_eq!(
                (&frames[2].input[..], &frames[2].output[..]),
                (&b"question"[..], &b"the answer is coming"[..])
            );
            assert_eq!((frames[2].parent, &frames[3].output[..]), (Some(2), &b"quick"[..]));
            assert_eq!(reader.info().fingerprint, Some(frames[3].link));
            assert!(reader.frame_info(3).unwrap().incomplete);
            assert_whole(store);
        };
        let again = Store::open_with("s", sim_options(&disk)).unwrap();
        check(&again);
        let space = again.namespace("default").unwrap();
        assert_eq!(space.begin_run(RunSpec::new("r")).map(drop).unwrap_err().kind(), ErrorKind::Conflict);
        space
            .fork("r", 3, false, RunSpec::new("on"))
            .unwrap()
            .record(Frame::new(Component::User, "a", "b"))
            .unwrap();
        check(&again);
        again.close().unwrap();
        check(&Store::open_read_only_with("s", sim_options(&disk)).unwrap());
    }
}

#[test]
fn a_crash_anywhere_in_a_stream_keeps_what_was_flushed() {
    let sim = SimIo::new(2);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let open = run.begin_frame(&Frame::new(Component::Llm, "question", "")).unwrap();
    let start = sim.op_count();
    let output = SeededRng(5).text(6000);
    let mut flushed = vec![(start, 0)];
    for (i, part) in output.chunks(500).enumerate() {
        open.append(part).unwrap();
        if i % 2 == 0 {
            open.flush().unwrap();
            flushed.push((sim.op_count(), (i + 1) * 500));
        }
    }
    let history = sim.history();
    let mut states = 0;
    for (point, disk) in history.crashes(4) {
        if point.at < start {
            continue;
        }
        states += 1;
        let acknowledged = flushed.iter().rev().find(|(at, _)| *at <= point.at).unwrap().1;
        let store = Store::open_with("s", sim_options(&disk)).unwrap();
        let reader = store.namespace("default").unwrap().run("r").unwrap();
        let frame = reader.frame(1).unwrap();
        assert!(
            frame.incomplete && frame.output.len() >= acknowledged,
            "{point}: {} of {acknowledged}",
            frame.output.len()
        );
        assert!(output.starts_with(&frame.output), "{point}");
        assert_eq!(reader.info().status, Status::Abandoned, "{point}");
    }
    assert!(states > 50, "{states}");
}

#[test]
fn runs_open_at_close_are_abandoned_with_submitted_data() {
    let sim = SimIo::new(3);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let (run, mut talk) = recorded(&space, "r", 3);
    let (ended, _) = recorded(&space, "ended", 1);
    ended.end(Status::Ok).unwrap();
    // No caller waits for these: closing must.
    let tickets: Vec<_> = talk
        .by_ref()
        .take(200)
        .map(|(request, answer)| run.submit(Frame::new(Component::Llm, request, answer)).unwrap().1)
        .collect();
    store.close().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    let late = run.record(Frame::new(Component::Llm, "a", "b")).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unavailable, "{late}");
    let store = Store::open_read_only_with(Path::new("s"), sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let reader = space.run("r").unwrap();
    assert_eq!((reader.info().status, reader.info().frames), (Status::Abandoned, 203));
    assert_eq!(reader.frames().map(Result::unwrap).count(), 203);
    assert_eq!(space.run("ended").unwrap().info().status, Status::Ok);
    assert_whole(&store);
}
