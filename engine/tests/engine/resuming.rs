//! Runs that are taken up again after their recorder went away.

use std::sync::Arc;

use annals::io::sim::{Crash, SimIo};
use annals::{
    Component, Durability, ErrorKind, Frame, Namespace, RunSpec, Status, Store,
    runs::{OpenFrame, ResumedRun},
};

use crate::support::{
    SeededRng, assert_whole, bodies, fresh, process_durability_options, seed, sim_options, writer,
};

fn frame(number: usize) -> Frame {
    Frame::new(Component::Llm, format!("question {number}").repeat(1 + number % 7 * 40), "")
        .metadata(format!(r#"{{"n":{number}}}"#))
}

fn answer(number: usize) -> Vec<u8> {
    format!("answer {number} ").repeat(1 + number % 5 * 300).into_bytes()
}

fn streamed(run: &Arc<annals::Run>, number: usize) {
    let open = OpenFrame::begin(run.clone(), &frame(number)).unwrap();
    open.append(&answer(number)).unwrap();
    open.finish(false).unwrap();
}

/// A run whose recorder took it up again ends as one that was never left: same bytes, same fingerprint.
#[test]
fn resumed_run_equals_one_recorded_without_a_break() {
    let (dir, store, space) = fresh();
    let whole = Arc::new(space.begin_run(RunSpec::new("whole").metadata(r#"{"m":1}"#)).unwrap());
    (0..7).for_each(|number| streamed(&whole, number));
    let ended = whole.end(Status::Ok).unwrap();

    let spec = RunSpec::new("broken").metadata(format!(r#"{{"m":"{}"}}"#, "x".repeat(2000)));
    let run = Arc::new(space.begin_run(spec).unwrap());
    streamed(&run, 0);
    let open = OpenFrame::begin(run.clone(), &frame(1)).unwrap();
    open.append(&answer(1)[..5]).unwrap();
    open.flush().unwrap();
    // Ended behind one that is not finished, so it has no link yet.
    streamed(&run, 2);
    let unanswered = OpenFrame::begin(run.clone(), &frame(3)).unwrap();
    assert_eq!(space.resume_run("broken").unwrap_err().kind(), ErrorKind::Conflict);
    drop((open, unanswered, run));
    store.close().unwrap();

    let store = writer(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    assert_eq!(space.run("broken").unwrap().info().status, Status::Abandoned);
    let ResumedRun { run, mut open_frames } = space.resume_run("broken").unwrap();
    assert_eq!(space.run("broken").unwrap().info().status, Status::Open);
    let held: Vec<_> = open_frames.iter().map(|open| (open.seq(), open.output_len())).collect();
    assert_eq!(held, [(2, 5), (4, 0)]);
    streamed(&run, 4);
    let (last, first) = (open_frames.pop().unwrap(), open_frames.pop().unwrap());
    last.append(&answer(3)).unwrap();
    last.finish(false).unwrap();
    first.append(&answer(1)[5..]).unwrap();
    first.finish(false).unwrap();
    (5..7).for_each(|number| streamed(&run, number));
    let resumed = run.end(Status::Ok).unwrap();
    assert_eq!((resumed.frames, resumed.fingerprint), (ended.frames, ended.fingerprint));
    assert_eq!(resumed.raw_bytes, ended.raw_bytes);
    assert_eq!(bodies(&space.run("broken").unwrap()), bodies(&space.run("whole").unwrap()));
    assert!(space.run("broken").unwrap().metadata().unwrap().len() > 2000);
    assert_eq!(space.resume_run("broken").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(space.resume_run("nobody").unwrap_err().kind(), ErrorKind::NotFound);
    // The evidence names no gap where nothing is missing.
    let mut gaps = 0;
    store
        .gaps(&mut |_| {
            gaps += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(gaps, 0);
    assert_whole(&store);
}

/// A fork of an abandoned run keeps what the run had then, so a frame that both share must not be finished.
#[test]
fn resume_is_refused_if_a_fork_shares_an_open_frame() {
    let (dir, store, space) = fresh();
    for name in ["a", "b"] {
        let run = Arc::new(space.begin_run(RunSpec::new(name)).unwrap());
        streamed(&run, 0);
        drop(OpenFrame::begin(run.clone(), &frame(1)).unwrap());
        run.abandon().unwrap();
    }
    space.fork("a", 2, false, RunSpec::new("fork of a")).unwrap().end(Status::Ok).unwrap();
    space.fork("b", 1, false, RunSpec::new("fork of b")).unwrap().end(Status::Ok).unwrap();
    let refused = space.resume_run("a").unwrap_err();
    assert!(refused.to_string().contains("was forked at a frame"), "{refused}");
    let resumed = space.resume_run("b").unwrap();
    for open in resumed.open_frames {
        open.finish(false).unwrap();
    }
    resumed.run.end(Status::Ok).unwrap();
    assert_whole(&store);
    drop(space);
    store.close().unwrap();
    assert_whole(&writer(dir.path().join("s")).unwrap());
}

/// Nobody takes it up: it is abandoned again at the next opening.
#[test]
fn resumed_run_is_abandoned_again_if_left() {
    let (dir, store, space) = fresh();
    let run = Arc::new(space.begin_run(RunSpec::new("r")).unwrap());
    streamed(&run, 0);
    drop(run);
    store.close().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    drop(store.namespace("default").unwrap().resume_run("r").unwrap());
    store.close().unwrap();
    let store = writer(dir.path().join("s")).unwrap();
    let info = store.namespace("default").unwrap().run("r").unwrap().info().clone();
    assert_eq!((info.status, info.frames), (Status::Abandoned, 1));
}

/// Power is cut again and again while one run goes on; what was acknowledged is there once, in order.
#[test]
fn run_goes_on_over_crashes_without_loss() {
    let seed = seed(24, "resuming::run_goes_on_over_crashes_without_loss");
    let mut rng = SeededRng(seed);
    for _ in 0..30 {
        let mut sim = SimIo::new(rng.next());
        let path = std::path::Path::new("/store");
        let open = |sim: &SimIo| {
            let store = Store::open_with(path, sim_options(sim)).unwrap();
            let space: Namespace = store.namespace("default").unwrap();
            (store, space)
        };
        let (mut store, mut space) = open(&sim);
        let mut run = Arc::new(space.begin_run(RunSpec::new("r")).unwrap());
        let mut number = 0;
        for _ in 0..4 {
            for _ in 0..rng.below(4) {
                let begun = OpenFrame::begin(run.clone(), &frame(number)).unwrap();
                let (_, ticket) = begun.submit_append(&answer(number)[..9], Durability::Disk).unwrap();
                ticket.wait().unwrap();
                if rng.below(3) == 0 {
                    // Left open by the crash.
                    number += 1;
                    break;
                }
                begun.append(&answer(number)[9..]).unwrap();
                begun.finish(false).unwrap();
                number += 1;
            }
            let how = [Crash::Nothing, Crash::Everything, Crash::Torn, Crash::Seed(rng.next())];
            sim = sim.crash(how[rng.below(4)]);
            drop((run, space, store));
            (store, space) = open(&sim);
            let resumed = space.resume_run("r").unwrap();
            run = resumed.run;
            for open in resumed.open_frames {
                let number = open.seq() as usize - 1;
                assert_eq!(open.output_len(), 9, "seed {seed}");
                open.append(&answer(number)[9..]).unwrap();
                open.finish(false).unwrap();
            }
        }
        let ended = run.end(Status::Ok).unwrap();
        assert_eq!(ended.frames as usize, number, "seed {seed}");
        for (number, frame) in space.run("r").unwrap().frames().enumerate() {
            assert_eq!(frame.unwrap().output, answer(number), "seed {seed}");
        }
        assert_whole(&store);
    }
}
