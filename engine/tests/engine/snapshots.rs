//! Snapshots, and the properties of runs and frames: status, severity, names, tags, metadata, parents.

use annals::{
    Component, ErrorKind, Frame, RunSpec, Severity, Status, Store,
    runs::{LlmFrame, ToolFrame},
};
use serde_json::json;

use crate::support::{SeededRng, assert_whole, fresh, recorded};

#[test]
fn snapshots_come_back_exactly_with_their_embeddings() {
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    assert_eq!(run.snapshot("too early", &[]).unwrap_err().kind(), ErrorKind::Invalid);
    let mut state = SeededRng(1).text(30_000);
    let mut states = Vec::new();
    let vector: Vec<f32> = (0..1536).map(|i| (i as f32).sin()).collect();
    for step in 0..20u32 {
        let seq = run.record(Frame::new(Component::Planner, "plan", step.to_string())).unwrap();
        state.extend_from_slice(format!("step {step}").as_bytes());
        assert_eq!(
            run.snapshot(state.clone(), &[("e5", &vector), ("tiny", &[1.0, f32::MIN_POSITIVE])]).unwrap(),
            seq
        );
        states.push(state.clone());
    }
    assert_eq!(run.snapshot("again", &[]).unwrap_err().kind(), ErrorKind::Conflict);
    run.record(Frame::new(Component::Planner, "plan", "")).unwrap();
    for bad in [&[][..], &[f32::NAN], &[1.0, f32::INFINITY]] {
        assert_eq!(run.snapshot("s", &[("e", bad)]).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(run.snapshot("s", &[("", &[1.0])]).unwrap_err().kind(), ErrorKind::Invalid);
    // A refused snapshot leaves its frame without a snapshot.
    run.snapshot("", &[]).unwrap();
    run.end(Status::Ok).unwrap();
    assert_eq!(run.snapshot("late", &[]).unwrap_err().kind(), ErrorKind::Conflict);
    store.close().unwrap();
    let store = Store::open_read_only(dir.path().join("s")).unwrap();
    let reader = store.namespace("default").unwrap().run("r").unwrap();
    for (i, state) in states.iter().enumerate() {
        let snapshot = reader.snapshot(i as u32 + 1).unwrap();
        assert_eq!(&snapshot.state, state);
        assert_eq!(snapshot.embeddings[0], ("e5".to_owned(), vector.clone()));
        assert_eq!(snapshot.embeddings[1].1, [1.0, f32::MIN_POSITIVE]);
    }
    assert_eq!(reader.snapshot(21).unwrap().state, b"");
    assert_eq!(reader.snapshot(22).unwrap_err().kind(), ErrorKind::NotFound);
    let stats = store.stats().unwrap();
    assert!(stats.disk_bytes < 250_000, "20 like states and vectors took {} bytes", stats.disk_bytes);
}

#[test]
fn a_run_says_what_it_was_begun_and_ended_with() {
    let (dir, store, space) = fresh();
    let about = r#"{"task": 7,  "odd":"  spacing kept"}"#;
    let long = format!(r#"{{"transcript":"{}"}}"#, "x".repeat(100_000));
    let spec =
        RunSpec::new("r").agent("airline").model("gpt-4o").tag("task", "7").tag("empty", "").metadata(about);
    let run = space.begin_run(spec.severity(Severity::Debug).started_ns(1_700_000_000_000_000_000)).unwrap();
    let info = space.run("r").unwrap().info().clone();
    assert_eq!(
        (info.status, info.severity, info.ended_ns, info.fingerprint),
        (Status::Open, Severity::Debug, None, None)
    );
    let mut frame = Frame::new(Component::Tool, "in", "out");
    frame.severity = Severity::Escalated;
    run.record(frame).unwrap();
    run.record(Frame::new(Component::Tool, "in", "out")).unwrap();
    assert_eq!(run.end(Status::Open).unwrap_err().kind(), ErrorKind::Invalid);
    let ended = run.end(Status::Failed).unwrap();
    assert_eq!((ended.status, ended.severity, ended.frames), (Status::Failed, Severity::Escalated, 2));
    space.begin_run(RunSpec::new("long").metadata(long.as_str())).unwrap().end(Status::Ok).unwrap();
    let flagged = space.begin_run(RunSpec::new("flagged")).unwrap();
    flagged.set_severity(Severity::Flagged).unwrap();
    flagged.end(Status::Abandoned).unwrap();
    store.close().unwrap();
    let store = Store::open_read_only(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let reader = space.run("r").unwrap();
    let info = reader.info();
    assert_eq!(info, &ended);
    assert_eq!((info.agent.as_str(), info.model.as_str()), ("airline", "gpt-4o"));
    assert_eq!(info.tags, [("task".into(), "7".into()), ("empty".into(), String::new())]);
    assert_eq!(info.started_ns, 1_700_000_000_000_000_000);
    assert!(info.ended_ns.unwrap() >= info.started_ns);
    assert_eq!(reader.metadata().unwrap(), about.as_bytes());
    assert_eq!(space.run("long").unwrap().metadata().unwrap(), long.as_bytes());
    assert_eq!(space.run("flagged").unwrap().info().severity, Severity::Flagged);
    assert_eq!(space.run("flagged").unwrap().info().status, Status::Abandoned);
    let names: Vec<_> = space.runs().unwrap().map(|info| info.unwrap().name).collect();
    assert_eq!(names, ["r", "long", "flagged"]);
    assert_eq!(space.last_run().unwrap().info().name, "flagged");
    assert_whole(&store);
}

#[test]
fn run_names_are_checked() {
    let (_dir, _store, space) = fresh();
    let refused = |spec| {
        let error = space.begin_run(spec).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    assert!(refused(RunSpec::new("")).contains("empty"));
    assert!(refused(RunSpec::new("x".repeat(513))).contains("512"));
    for bad in ["a\nb", "\0", "tab\there", "\u{7f}", "\u{85}"] {
        assert!(refused(RunSpec::new(bad)).contains("control character"));
    }
    refused(RunSpec::new("r").tag("", "v"));
    refused(RunSpec::new("r").tag("k", "v\u{1b}"));
    refused(RunSpec::new("r").agent("x".repeat(5000)));
    refused((0..300).fold(RunSpec::new("r"), |spec, i| spec.tag(format!("k{i}"), "v")));
    for good in ["x".repeat(512).as_str(), "ä/ö \u{1f600} {1}", "é".repeat(256).as_str()] {
        space.begin_run(RunSpec::new(good)).unwrap().end(Status::Ok).unwrap();
        assert_eq!(space.run(good).unwrap().info().name, good);
    }
    assert_eq!(space.runs().unwrap().count(), 3);
    assert_eq!(space.run("r").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn run_name_is_unique_unless_replaced_on_demand() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "r", 3);
    let second = |replace| space.begin_run(RunSpec::new("r").replace(replace)).map(|run| run.uid());
    assert_eq!(second(false).unwrap_err().kind(), ErrorKind::Conflict);
    // The run is still being recorded: its name cannot be taken.
    assert_eq!(second(true).unwrap_err().kind(), ErrorKind::Conflict);
    let old = run.uid();
    run.end(Status::Ok).unwrap();
    assert_eq!(second(false).unwrap_err().kind(), ErrorKind::Conflict);
    // The run has ended, although its handle is alive.
    let new = second(true).unwrap();
    assert_ne!(new, old);
    drop(run);
    assert_eq!(space.run("r").unwrap().info().uid, new);
    assert_eq!(space.runs().unwrap().count(), 1);
    // Dropping the handle must not free the name of the new run, and a refused run must not take it.
    let held = space.begin_run(RunSpec::new("held")).unwrap();
    assert!(space.begin_run(RunSpec::new("held")).is_err());
    held.end(Status::Ok).unwrap();
    let other = store.namespace("other").unwrap();
    other.begin_run(RunSpec::new("r")).unwrap().end(Status::Ok).unwrap();
    assert_eq!(other.runs().unwrap().count(), 1);
    assert_whole(&store);
}

#[test]
fn a_run_that_has_ended_takes_nothing_more() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "r", 2);
    let ended = run.end(Status::Ok).unwrap();
    let late = run.record(Frame::new(Component::Llm, "a", "b")).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);
    assert!(late.to_string().contains("has ended") && late.to_string().contains("fork"), "{late}");
    assert_eq!(run.end(Status::Failed).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(run.set_severity(Severity::Flagged).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(
        run.begin_frame(&Frame::new(Component::Llm, "a", "")).map(drop).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert_eq!(space.run("r").unwrap().info(), &ended);
    assert_whole(&store);
}

#[test]
fn frames_name_their_parents_components_and_metadata() {
    let (_dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let one = run.record(Frame::new(Component::User, "hello", "")).unwrap();
    let mut frame =
        Frame::new(Component::Other("sensor".into()), "in", "out").parent(one).metadata(r#"{"b":1, "a":2}"#);
    (frame.error, frame.duration_ns, frame.started_ns, frame.severity) =
        (true, 42, Some(1_000), Severity::Flagged);
    let two = run.record(frame).unwrap();
    for bad in [0, 3, 4, u32::MAX] {
        let refused = run.record(Frame::new(Component::Llm, "x", "y").parent(bad)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad}");
    }
    for bad in ["", "llm", "a\nb", "x".repeat(65).as_str()] {
        let refused = run.record(Frame::new(Component::Other(bad.into()), "x", "y")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad:?}");
    }
    assert_eq!(run.record(Frame::new(Component::Merge, "x", "y").parent(two)).unwrap(), 3);
    let reader = space.run("r").unwrap();
    let frame = reader.frame(2).unwrap();
    assert_eq!((frame.parent, frame.component.name(), frame.error), (Some(1), "sensor", true));
    assert_eq!((frame.started_ns, frame.duration_ns, frame.severity), (1_000, 42, Severity::Flagged));
    assert_eq!(frame.metadata, br#"{"b":1, "a":2}"#);
    let info = reader.frame_info(2).unwrap();
    assert_eq!((info.input_bytes, info.output_bytes, info.started_ns, info.error), (2, 3, 1_000, true));
    assert_eq!(reader.frame(0).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(reader.frame(4).unwrap_err().kind(), ErrorKind::NotFound);
    assert_whole(&store);
}

#[test]
fn builder_error_names_missing_field() {
    let all = ["prompt", "model", "sampling", "completion", "parsed", "usage", "finish_reason"];
    assert_eq!(LlmFrame::new("").missing(), all);
    let error = LlmFrame::new("p").build_complete().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(all[1..].iter().all(|field| error.to_string().contains(field)), "{error}");
    let whole = LlmFrame::new("p")
        .model("m-1")
        .sampling(json!({"temperature": 0, "seed": 1}))
        .completion("c")
        .parsed(json!(null))
        .usage(json!({"in": 1, "out": 2}))
        .finish_reason("stop")
        .retry_count(1)
        .volatile("request_id", json!("abc"));
    assert!(whole.missing().is_empty());
    assert_eq!(ToolFrame::new("").missing(), ["name", "version", "input", "output"]);
    let error = ToolFrame::new("score").build_complete().unwrap_err().to_string();
    assert!(["version", "input", "output"].iter().all(|field| error.contains(field)), "{error}");
    assert!(ToolFrame::new("t").version("v").input("i").error("timeout").missing().is_empty());
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(whole.clone().build_complete().unwrap()).unwrap();
    run.record(ToolFrame::new("t").version("v").input("i").error("timeout").build_complete().unwrap())
        .unwrap();
    let again = space.begin_run(RunSpec::new("again")).unwrap();
    again.record(whole.volatile("request_id", json!("xyz")).build_complete().unwrap()).unwrap();
    let (one, two) =
        (space.run("r").unwrap().frame(1).unwrap(), space.run("again").unwrap().frame(1).unwrap());
    assert_eq!(one.link, two.link, "what differs between recordings is left out of the chain");
    assert_ne!(one.metadata, two.metadata);
    let metadata: serde_json::Value = serde_json::from_slice(&one.metadata).unwrap();
    assert_eq!((&metadata["model"], &metadata["volatile"]["request_id"]), (&json!("m-1"), &json!("abc")));
    assert!(space.run("r").unwrap().frame(2).unwrap().error);
}
