//! What frames and states of an agent hold, line by line of the source that docs/checklist.md calls S2.

use annals::{
    Component, ErrorKind, Frame, RunSpec, Status,
    runs::{LlmFrame, ToolFrame},
};
use serde_json::{Value, json};

use crate::support::{assert_whole, fresh};

/// S2.2: a frame is in the store, byte for byte, when `record` returns: before the agent changes the conversation for
/// its next turn. The frame also says why a tool was called, and has the agent's working state.
#[test]
fn input_is_stored_before_the_next_turn_changes_it() {
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut conversation = br#"[{"role":"user","content":"refund order 7"}]"#.to_vec();
    let mut arguments = br#"{"order":7,"date":"2026-02-30"}"#.to_vec();
    let first = conversation.clone();
    let decided =
        json!({ "decisions": [{ "stageId": "plan", "chosen": "refund", "rule": "order is paid" }] });
    let plan = Frame::new(Component::Planner, conversation.clone(), "call refund, then mail");
    run.record(plan.metadata(decided.to_string())).unwrap();
    run.record(Frame::new(Component::Tool, arguments.clone(), "refused")).unwrap();
    // A reader of another handle sees both frames already.
    let other = annals::Store::open_read_only(dir.path().join("s")).unwrap();
    let reader = other.namespace("default").unwrap().run("r").unwrap();
    arguments.fill(b'x');
    conversation.extend_from_slice(b"corrected");
    run.record(Frame::new(Component::Planner, conversation.clone(), "")).unwrap();
    assert_eq!(reader.info().frames, 2, "the later frame came after");
    let planned = reader.frame(1).unwrap();
    assert_eq!((planned.input, planned.output), (first, b"call refund, then mail".to_vec()));
    let why: Value = serde_json::from_slice(&planned.metadata).unwrap();
    assert_eq!(why["decisions"][0]["rule"], "order is paid");
    assert_eq!(reader.frame(2).unwrap().input, br#"{"order":7,"date":"2026-02-30"}"#);
    assert_whole(&store);
}

/// S2.14: each kind of component has its name, and a frame keeps its kind.
#[test]
fn every_component_of_an_agent_has_its_name() {
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let named = [
        (Component::Planner, "planner"),
        (Component::Tool, "tool"),
        (Component::Llm, "llm"),
        (Component::Merge, "merge"),
        (Component::User, "user"),
    ];
    for (component, _) in &named {
        run.record(Frame::new(component.clone(), "in", "out")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let reader = space.run("r").unwrap();
    for (seq, (component, name)) in (1..).zip(&named) {
        let frame = reader.frame(seq).unwrap();
        assert_eq!((&frame.component, frame.component.name()), (component, *name));
    }
}

/// S2.15, S2.17: a model call has the whole prompt, model, sampling, the raw bytes of the answer, its parsed form, usage
/// and the reason of its end; each missing one is named. Metadata is empty if nothing was said.
#[test]
fn model_call_keeps_every_field_and_names_a_missing_one() {
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Llm, "p", "c")).unwrap();
    assert!(space.run("r").unwrap().frame(1).unwrap().metadata.is_empty());
    let prompt = "You are a clerk.\n\nUser: refund order 7";
    let raw = b"{\"choices\":[\xff\x00]}";
    type SetField = fn(LlmFrame) -> LlmFrame;
    let fields: [(&str, SetField); 5] = [
        ("model", |frame| frame.model("gpt-4o-2024-08-06")),
        ("sampling", |frame| frame.sampling(json!({ "temperature": 0.2, "top_p": 1, "seed": 7 }))),
        ("parsed", |frame| frame.parsed(json!({ "tool": "refund" }))),
        ("usage", |frame| frame.usage(json!({ "in": 11, "out": 3 }))),
        ("finish_reason", |frame| frame.finish_reason("tool_calls")),
    ];
    let with = |left_out: &str| {
        let all = fields.iter().filter(|(name, _)| *name != left_out);
        all.fold(LlmFrame::new(prompt).completion(raw.to_vec()), |frame, (_, set)| set(frame))
    };
    for (name, _) in fields {
        assert_eq!(with(name).missing(), [name]);
        let error = with(name).build_complete().unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(name), "{error}");
    }
    let whole = with("").logprobs(json!([-0.1])).retry_count(2).build_complete().unwrap();
    run.record(whole).unwrap();
    let frame = space.run("r").unwrap().frame(2).unwrap();
    assert_eq!((frame.component, frame.input, frame.output), (Component::Llm, prompt.into(), raw.to_vec()));
    let metadata: Value = serde_json::from_slice(&frame.metadata).unwrap();
    let wanted = json!({
        "model": "gpt-4o-2024-08-06",
        "sampling": { "temperature": 0.2, "top_p": 1, "seed": 7 },
        "parsed": { "tool": "refund" },
        "usage": { "in": 11, "out": 3 },
        "finish_reason": "tool_calls",
        "logprobs": [-0.1],
        "retry_count": 2,
    });
    for (name, value) in wanted.as_object().unwrap() {
        assert_eq!(&metadata[name], value, "{name}");
    }
}

/// S2.15, S2.18: a tool call has name, version, arguments, the raw answer and its error; each missing one is named.
#[test]
fn tool_call_keeps_every_field_and_names_a_missing_one() {
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let version = "3f2a5c1e9b7d4f60a8c2e4d6f8091a3b5c7d9e0f";
    assert_eq!(ToolFrame::new("").version(version).input("i").output("o").missing(), ["name"]);
    assert_eq!(ToolFrame::new("t").input("i").output("o").missing(), ["version"]);
    assert_eq!(ToolFrame::new("t").version(version).output("o").missing(), ["input"]);
    assert_eq!(ToolFrame::new("t").version(version).input("i").missing(), ["output"]);
    let call = ToolFrame::new("refund").version(version).input(r#"{"order":7}"#);
    run.record(call.clone().output(b"\x00ok\xff".to_vec()).build_complete().unwrap()).unwrap();
    run.record(call.error("timeout after 30 s").build_complete().unwrap()).unwrap();
    let reader = space.run("r").unwrap();
    let (good, bad) = (reader.frame(1).unwrap(), reader.frame(2).unwrap());
    let of = |metadata: &[u8]| serde_json::from_slice::<Value>(metadata).unwrap()["tool"].clone();
    assert_eq!(of(&good.metadata), json!({ "name": "refund", "version": version }));
    assert_eq!(
        (good.input, good.output, good.error),
        (br#"{"order":7}"#.to_vec(), b"\x00ok\xff".to_vec(), false)
    );
    assert!(bad.error && String::from_utf8_lossy(&bad.metadata).contains("timeout after 30 s"));
}

/// S2.3, S2.4, S2.23: the state of an agent is its history, plan, scratch, calls under way, embeddings and the state of
/// its framework. It is kept beside the frames, found by the frame, and a fork goes on from it. S2.41: it shares nothing
/// with the agent, which changes its own state afterwards.
#[test]
fn state_is_kept_whole_and_apart_from_the_agents_own() {
    let (_dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut state = json!({
        "history": [{ "role": "user", "content": "refund order 7" }],
        "plan": ["look", "refund"],
        "scratch": { "attempt": 1 },
        "pending": [{ "id": "call-1", "tool": "look", "so_far": "{\"ord" }],
        "retrieved": [{ "id": "doc-3", "score": 0.5 }],
        "sessions": [{ "tool": "browser", "cookie": "c" }],
        "framework": { "node": "plan", "locals": { "n": 3 } },
    });
    let retrieved = [0.25f32, -1.0, 0.5];
    let mut kept = Vec::new();
    for step in 1..=3u32 {
        run.record(Frame::new(Component::Planner, format!("turn {step}"), "")).unwrap();
        let bytes = state.to_string().into_bytes();
        run.snapshot(bytes.clone(), &[("retriever", &retrieved)]).unwrap();
        kept.push(bytes);
        state["scratch"]["attempt"] = json!(step + 1);
        state["history"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": step }));
    }
    run.end(Status::Failed).unwrap();
    let reader = space.run("r").unwrap();
    for (step, bytes) in (1..).zip(&kept) {
        let snapshot = reader.snapshot(step).unwrap();
        assert_eq!(&snapshot.state, bytes);
        assert_eq!(snapshot.embeddings, [("retriever".to_owned(), retrieved.to_vec())]);
        let read: Value = serde_json::from_slice(&snapshot.state).unwrap();
        assert_eq!(read["scratch"]["attempt"], step);
        assert_eq!(read["history"].as_array().unwrap().len() as u32, step);
    }
    // From the state at frame 2, with another plan (S2.36): the parent stays as it was.
    let fork = space.fork("r", 2, false, RunSpec::new("other")).unwrap();
    let mut changed: Value = serde_json::from_slice(&reader.snapshot_at(2).unwrap().unwrap().state).unwrap();
    changed["plan"] = json!(["ask"]);
    fork.record(Frame::new(Component::Planner, "turn 3, otherwise", "")).unwrap();
    fork.snapshot(changed.to_string(), &[]).unwrap();
    fork.end(Status::Ok).unwrap();
    let other = space.run("other").unwrap();
    assert_eq!(other.snapshot_at(2).unwrap().unwrap().state, kept[1]);
    let read: Value = serde_json::from_slice(&other.snapshot(3).unwrap().state).unwrap();
    assert_eq!(read["plan"], json!(["ask"]));
    assert_eq!(space.run("r").unwrap().snapshot(3).unwrap().state, kept[2]);
    assert_whole(&store);
}

/// S2.25: bad context that builds up shows in the states, though each frame for itself looks right; a wrong branch of
/// the planner shows in the frames alone.
#[test]
fn accumulated_context_shows_in_states_and_branches_in_frames() {
    let (_dir, _store, space) = fresh();
    let record = |name: &str, choice: &str, poison: bool| {
        let run = space.begin_run(RunSpec::new(name)).unwrap();
        let mut notes = vec!["order 7 is paid".to_owned()];
        for turn in 1..=5 {
            let output = if turn == 3 { choice } else { "go on" };
            run.record(Frame::new(Component::Planner, format!("turn {turn}"), output)).unwrap();
            if poison && turn == 2 {
                notes.push("order 7 was never paid".to_owned());
            }
            run.snapshot(json!(notes).to_string(), &[]).unwrap();
        }
        run.end(Status::Ok).unwrap();
    };
    record("right", "refund", false);
    record("branch", "escalate", false);
    record("poisoned", "refund", true);
    let first_difference = |other: &str, states: bool| {
        let (a, b) = (space.run("right").unwrap(), space.run(other).unwrap());
        (1..=5).find(|seq| match states {
            true => a.snapshot(*seq).unwrap().state != b.snapshot(*seq).unwrap().state,
            false => a.frame(*seq).unwrap().output != b.frame(*seq).unwrap().output,
        })
    };
    assert_eq!((first_difference("branch", false), first_difference("branch", true)), (Some(3), None));
    assert_eq!((first_difference("poisoned", false), first_difference("poisoned", true)), (None, Some(2)));
}

/// S2.20: user, model call, tool as the call's child, model call.
#[test]
fn turn_is_user_model_tool_model_with_parents() {
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let user = run.record(Frame::new(Component::User, "", "refund order 7")).unwrap();
    let asked = run.record(Frame::new(Component::Llm, "prompt", "call refund").parent(user)).unwrap();
    let tool = run.record(Frame::new(Component::Tool, "{}", "done").parent(asked)).unwrap();
    run.record(Frame::new(Component::Llm, "prompt, done", "It is done.").parent(tool)).unwrap();
    run.end(Status::Ok).unwrap();
    let reader = space.run("r").unwrap();
    let told: Vec<(String, Option<u32>)> = (1..=4)
        .map(|seq| reader.frame(seq).unwrap())
        .map(|frame| (frame.component.name().to_owned(), frame.parent))
        .collect();
    let wanted = [("user", None), ("llm", Some(1)), ("tool", Some(2)), ("llm", Some(3))];
    assert_eq!(told, wanted.map(|(name, parent)| (name.to_owned(), parent)));
}
