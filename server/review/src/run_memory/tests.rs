//! Snapshots of recorded runs, compared byte for byte.

use annals::{Component, Frame, Namespace, RunSpec, RunUid, Status, Store};
use annals_memory::{Embedder, Identity, Memory, MemoryQuery, WordEmbedder};
use serde_json::json;

use super::RememberOutcome;
use super::remember::{remember_reader, snapshots_json};

const QUESTION: &str = "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.";
const ANSWER: &str = "Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.";
const SECOND_NS: u64 = 1_000_000_000;

fn built_in(_: &Namespace) -> annals::Result<Box<dyn Embedder>> {
    Ok(Box::new(WordEmbedder))
}

fn remember_run(space: &Namespace, run: &str) -> annals::Result<RememberOutcome> {
    let reader = space.run(run)?;
    remember_reader(space, &reader, reader.info().status, false, built_in)
}

fn remember_ended(space: &Namespace, uid: RunUid, status: Status) -> annals::Result<RememberOutcome> {
    super::remember_ended(space, uid, status, built_in)
}

struct RunMemoryBench {
    store: Store,
    space: Namespace,
    _directory: tempfile::TempDir,
}

fn bench() -> RunMemoryBench {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    RunMemoryBench { store, space, _directory: directory }
}

/// An exchange as the proxy records it: one second long, one second after the previous one.
fn exchange(number: u64, path: &str, kind: &str, request: &str, answer: &str) -> Frame {
    let metadata = json!({
        "http": { "mount": "m", "method": "POST", "path": path, "status": 200 },
        "volatile": { "asked": "", "request_headers": [], "response_headers": [["content-type", kind]] },
    });
    let mut frame = Frame::new(Component::Llm, request, answer).metadata(metadata.to_string());
    frame.started_ns = Some(1_800_000_000 * SECOND_NS + 2 * number * SECOND_NS);
    frame.duration_ns = SECOND_NS;
    frame
}

impl RunMemoryBench {
    fn record_and_snapshot(&self, spec: RunSpec, frames: Vec<Frame>) -> Option<String> {
        let name = spec.name.clone();
        let run = self.space.begin_run(spec.started_ns(1_800_000_000 * SECOND_NS)).unwrap();
        for frame in frames {
            run.record(frame).unwrap();
        }
        run.end(Status::Ok).unwrap();
        let mut snapshots = snapshots_json(&self.space.run(&name).unwrap()).unwrap();
        assert!(snapshots.len() <= 1, "{snapshots:?}");
        snapshots.pop()
    }

    fn ids(&self, identity: &Identity) -> Vec<String> {
        let (entries, _) = Memory::open(&self.space).unwrap().list(identity, None, None, &[]).unwrap();
        entries.into_iter().map(|entry| entry.id).collect()
    }
}

const CHAT: &str = "/v1/chat/completions";
const CLAUDE: &str = "/v1/messages";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// The loan example of agentfootprint as OpenAI chat completions.
fn chat_frames() -> Vec<Frame> {
    let asked =
        format!(r#"{{"role":"system","content":"underwrite"}},{{"role":"user","content":"{QUESTION}"}}"#);
    let call = r#"{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"lookupCreditBureau","arguments":"{\"applicationId\":\"42\"}"}}]}"#;
    let given =
        r#"{"role":"tool","tool_call_id":"c1","content":"{ \"score\": 580, \"bureau\": \"experian\" }"}"#;
    vec![
        exchange(
            0,
            CHAT,
            JSON,
            &format!(r#"{{"model":"m","messages":[{asked}]}}"#),
            &format!(
                r#"{{"choices":[{{"message":{call}}}],"usage":{{"prompt_tokens":500,"completion_tokens":80}}}}"#
            ),
        ),
        exchange(
            1,
            CHAT,
            JSON,
            &format!(r#"{{"model":"m","messages":[{asked},{call},{given}]}}"#),
            &format!(
                r#"{{"choices":[{{"message":{{"role":"assistant","content":"{ANSWER}"}}}}],"usage":{{"prompt_tokens":700,"completion_tokens":100}}}}"#
            ),
        ),
    ]
}

/// The snapshot that every provider's form of the example must give.
fn expected_snapshot(decisions: &str) -> String {
    format!(
        r#"{{"query":"{QUESTION}","finalContent":"{ANSWER}","iterations":2,"decisions":{decisions},"toolCalls":[{{"name":"lookupCreditBureau","args":{{"applicationId":"42"}},"resultPreview":"{{ \"score\": 580, \"bureau\": \"experian\" }}","errored":false}}],"durationMs":3000,"tokenUsage":{{"input":1200,"output":180}}}}"#
    )
}

#[test]
fn chat_run_snapshot_matches_bytes_and_decisions() {
    let bench = bench();
    assert_eq!(
        bench.record_and_snapshot(RunSpec::new("plain"), chat_frames()).unwrap(),
        expected_snapshot("[]")
    );
    let decided = r#"{"stageId":"classify-risk","chosen":"rejected","rule":"Marginal credit","evidence":{ "creditScore":580,"threshold":6.00e2}}"#;
    let mut frames = chat_frames();
    let other = Frame::new(Component::Planner, "", "");
    frames.push(other.clone().metadata(format!(r#"{{"decisions":[{decided}, 7],"else":1}}"#)));
    frames.push(other.metadata(r#"{"decisions":"none"}"#));
    assert_eq!(
        bench.record_and_snapshot(RunSpec::new("decided"), frames).unwrap(),
        expected_snapshot(&format!("[{decided}]"))
    );
}

#[test]
fn streams_and_other_providers_give_same_snapshot() {
    let bench = bench();
    // OpenAI, as a stream; the client hung up after the last event, and a first attempt failed.
    let mut frames = chat_frames();
    let said = |piece: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{piece}}}]}}\n\n");
    let (front, rest) = ANSWER.split_at(30);
    let events = [
        said(&format!(r#"{{"role":"assistant","content":"{front}"}}"#)),
        said(&format!(r#"{{"content":"{rest}"}}"#)),
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":700,\"completion_tokens\":100}}\n\ndata: [DONE]\n\n"
            .to_owned(),
    ];
    let request = String::from_utf8(match &frames[1].input {
        annals::kv::Content::Bytes(bytes) => bytes.to_vec(),
        _ => panic!("the body is still in memory"),
    });
    let mut last = exchange(1, CHAT, EVENTS, &request.unwrap(), &events.concat());
    let metadata = String::from_utf8(last.metadata.clone()).unwrap();
    last.metadata =
        metadata.replace(r#""status":200"#, r#""status":200,"broken":"the client hung up""#).into();
    last.error = true;
    let mut refused = exchange(0, CHAT, JSON, r#"{"messages":[{"role":"user","content":"QUESTION"}]}"#, "{}");
    refused.metadata = String::from_utf8(refused.metadata).unwrap().replace("200", "429").into();
    refused.input = frames[0].input.clone();
    frames[1] = last;
    frames.insert(0, refused);
    assert_eq!(bench.record_and_snapshot(RunSpec::new("stream"), frames).unwrap(), expected_snapshot("[]"));

    // Anthropic, as a stream.
    let turn = |content: &str| format!(r#"{{"role":"user","content":{content}}}"#);
    let asked = turn(&format!("\"{QUESTION}\""));
    let call = r#"{"role":"assistant","content":[{"type":"text","text":"I look it up."},{"type":"tool_use","id":"t1","name":"lookupCreditBureau","input":{"applicationId":"42"}}]}"#;
    let given = turn(
        r#"[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"{ \"score\": 580, \"bureau\": \"experian\" }"}]}]"#,
    );
    let event = |name: &str, data: &str| format!("event: {name}\ndata: {data}\n\n");
    let started = |input: u64| {
        event(
            "message_start",
            &format!(
                r#"{{"type":"message_start","message":{{"model":"m","usage":{{"input_tokens":{input},"output_tokens":1}}}}}}"#
            ),
        )
    };
    let ended = |output: u64| {
        event(
            "message_delta",
            &format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{{"output_tokens":{output}}}}}"#
            ),
        ) + &event("message_stop", r#"{"type":"message_stop"}"#)
    };
    let first = [
        started(500),
        event(
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        ),
        event(
            "content_block_delta",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"I look it up."}}"#,
        ),
        event(
            "content_block_start",
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t1","name":"lookupCreditBureau","input":{}}}"#,
        ),
        event(
            "content_block_delta",
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"applicationId\":"}}"#,
        ),
        event(
            "content_block_delta",
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"\"42\"}"}}"#,
        ),
        ended(80),
    ];
    let second = [
        started(700),
        event(
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        ),
        event(
            "content_block_delta",
            &format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{ANSWER}"}}}}"#
            ),
        ),
        ended(100),
    ];
    let frames = vec![
        exchange(0, CLAUDE, EVENTS, &format!(r#"{{"system":"s","messages":[{asked}]}}"#), &first.concat()),
        exchange(1, CLAUDE, EVENTS, &format!(r#"{{"messages":[{asked},{call},{given}]}}"#), &second.concat()),
    ];
    assert_eq!(bench.record_and_snapshot(RunSpec::new("claude"), frames).unwrap(), expected_snapshot("[]"));

    // OpenAI's responses API: the second request holds only the new items.
    let frames = vec![
        exchange(
            0,
            "/v1/responses",
            JSON,
            &format!(r#"{{"input":"{QUESTION}"}}"#),
            r#"{"id":"r1","output":[{"type":"function_call","call_id":"c1","name":"lookupCreditBureau","arguments":"{\"applicationId\":\"42\"}"}],"usage":{"input_tokens":500,"output_tokens":80}}"#,
        ),
        exchange(
            1,
            "/v1/responses",
            JSON,
            r#"{"previous_response_id":"r1","input":[{"type":"function_call_output","call_id":"c1","output":"{ \"score\": 580, \"bureau\": \"experian\" }"}]}"#,
            &format!(
                r#"{{"output":[{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{ANSWER}"}}]}}],"usage":{{"input_tokens":700,"output_tokens":100}}}}"#
            ),
        ),
    ];
    assert_eq!(
        bench.record_and_snapshot(RunSpec::new("responses"), frames).unwrap(),
        expected_snapshot("[]")
    );

    // Gemini: calls have no ids, and results are objects.
    let asked = format!(r#"{{"role":"user","parts":[{{"text":"{QUESTION}"}}]}}"#);
    let call = r#"{"role":"model","parts":[{"functionCall":{"name":"lookupCreditBureau","args":{"applicationId":"42"}}}]}"#;
    let given = r#"{"role":"user","parts":[{"functionResponse":{"name":"lookupCreditBureau","response":{ "score": 580, "bureau": "experian" }}}]}"#;
    let said = |content: &str, input: u64, output: u64| {
        format!(
            r#"{{"candidates":[{{"content":{content}}}],"usageMetadata":{{"promptTokenCount":{input},"candidatesTokenCount":{output}}}}}"#
        )
    };
    let gemini = "/v1beta/models/g:generateContent";
    let answer = format!(r#"{{"role":"model","parts":[{{"text":"{ANSWER}"}}]}}"#);
    let frames = vec![
        exchange(0, gemini, JSON, &format!(r#"{{"contents":[{asked}]}}"#), &said(call, 500, 80)),
        exchange(
            1,
            gemini,
            JSON,
            &format!(r#"{{"contents":[{asked},{call},{given}]}}"#),
            &said(&answer, 700, 100),
        ),
    ];
    assert_eq!(bench.record_and_snapshot(RunSpec::new("gemini"), frames).unwrap(), expected_snapshot("[]"));
}

#[test]
fn run_without_question_or_answer_is_not_remembered() {
    let bench = bench();
    assert_eq!(bench.record_and_snapshot(RunSpec::new("empty"), Vec::new()), None);
    assert_eq!(
        bench.record_and_snapshot(RunSpec::new("unanswered"), chat_frames().drain(..1).collect()),
        None
    );
    let other = Frame::new(Component::Llm, r#"{"messages":[{"role":"user","content":"q"}]}"#, "text");
    assert_eq!(bench.record_and_snapshot(RunSpec::new("other"), vec![other]), None);
    let embedded = r#"{"input":"some text"}"#;
    let frames = vec![exchange(0, "/v1/embeddings", JSON, embedded, r#"{"data":[]}"#)];
    assert_eq!(bench.record_and_snapshot(RunSpec::new("embeddings"), frames), None);
    let mut cut = chat_frames();
    let metadata = String::from_utf8(cut[1].metadata.clone()).unwrap();
    cut[1].metadata = metadata.replace(r#""status":200"#, r#""status":200,"broken":"it broke off""#).into();
    assert_eq!(bench.record_and_snapshot(RunSpec::new("cut"), cut), None);
    let uid = bench.space.run("empty").unwrap().info().uid;
    assert!(matches!(remember_ended(&bench.space, uid, Status::Ok), Ok(RememberOutcome::Skipped(_))));
    assert!(bench.ids(&Identity::default()).is_empty());
}

/// If a parent's tags were ignored, a fork's entry would have no tenant, and callers without a tenant would
/// see it.
#[test]
fn tags_name_identity_and_fork_inherits_it() {
    let bench = bench();
    let lending = Identity {
        tenant: Some("lending".into()),
        conversation: Some("app-42".into()),
        ..Identity::default()
    };
    let tagged = |name: &str| RunSpec::new(name).tag("tenant", "lending").tag("conversation", "app-42");
    bench.record_and_snapshot(tagged("monday"), chat_frames());
    bench.record_and_snapshot(RunSpec::new("nobody's"), chat_frames());
    bench.record_and_snapshot(RunSpec::new("off").tag("memory", "off"), chat_frames());
    for (name, parent) in [("fork", "monday"), ("fork-of-fork", "fork"), ("fork-of-off", "off")] {
        let spec = RunSpec::new(name).tag("memory", "on");
        let fork = bench.space.fork(parent, 2, false, spec).unwrap();
        fork.end(Status::Ok).unwrap();
    }
    let remember = |name: &str| remember_run(&bench.space, name).unwrap();
    for (name, identity) in [
        ("monday", &lending),
        ("fork", &lending),
        ("fork-of-fork", &lending),
        ("nobody's", &Identity::default()),
    ] {
        assert_eq!(remember(name), RememberOutcome::Stored(identity.clone(), vec![format!("run-{name}")]));
    }
    for name in ["off", "fork-of-off"] {
        assert_eq!(remember(name), RememberOutcome::Skipped("its tags say memory=off"));
    }
    assert_eq!(bench.ids(&Identity::default()), ["run-nobody's"]);
    bench.space.drop_run("monday", "r", "").unwrap();
    assert!(matches!(remember("fork"), RememberOutcome::Skipped(why) if why.contains("is gone")));
    // The fork's own earlier entry stays. The parent's entry was deleted with the parent.
    let mut ids = bench.ids(&lending);
    ids.sort();
    assert_eq!(ids, ["run-fork", "run-fork-of-fork"]);
    // Remembering again replaces the entry.
    remember("nobody's");
    assert_eq!(bench.ids(&Identity::default()), ["run-nobody's"]);
    let open = bench.space.begin_run(RunSpec::new("open")).unwrap();
    open.end(Status::Abandoned).unwrap();
    assert!(matches!(
        remember_ended(&bench.space, bench.space.run("open").unwrap().info().uid, Status::Abandoned),
        Ok(RememberOutcome::Skipped(_))
    ));
}

/// Otherwise a follow-up that only repeats Monday's answer would rank first: its question is nearer to
/// the next question.
#[test]
fn run_answering_from_recall_is_marked_derived() {
    let bench = bench();
    bench.record_and_snapshot(RunSpec::new("monday"), chat_frames());
    let uid = |name: &str| bench.space.run(name).unwrap().info().uid;
    remember_ended(&bench.space, uid("monday"), Status::Ok).unwrap();
    let memory = Memory::open(&bench.space).unwrap();
    let why = "Why was application #42 rejected?";
    let recall = || {
        memory
            .recall(&Identity::default(), why, &WordEmbedder, &MemoryQuery { k: 2, ..MemoryQuery::default() })
            .unwrap()
    };
    assert_eq!(recall().len(), 1);
    let asked = format!(r#"{{"messages":[{{"role":"user","content":"{why}"}}]}}"#);
    let answer = r##"{"choices":[{"message":{"role":"assistant","content":"Application #42 was rejected: 580 is below 600."}}]}"##;
    bench.record_and_snapshot(RunSpec::new("friday"), vec![exchange(0, CHAT, JSON, &asked, answer)]);
    remember_ended(&bench.space, uid("friday"), Status::Ok).unwrap();
    let hits: Vec<_> =
        recall().into_iter().map(|hit| (hit.entry.id.clone(), hit.entry.derived_from)).collect();
    let derived = vec!["_/_/_/run-monday".to_owned()];
    assert_eq!(hits, [("run-monday".to_owned(), Vec::new()), ("run-friday".to_owned(), derived)]);
}

/// A recall on the command line, or for another identity, leaves no note for this run. The run's prompt shows
/// what was recalled.
#[test]
fn run_quoting_earlier_run_is_marked_derived() {
    let bench = bench();
    let lending = |conversation: &'static str| [("tenant", "lending"), ("conversation", conversation)];
    let spec = |name: &str, of: [(&str, &str); 2]| {
        of.iter().fold(RunSpec::new(name), |spec, (key, value)| spec.tag(*key, *value))
    };
    bench.record_and_snapshot(spec("monday", lending("app-42")), chat_frames());
    remember_run(&bench.space, "monday").unwrap();
    let memory = Memory::open(&bench.space).unwrap();
    let why = "Why was application #42 rejected?";
    let asking = Identity { tenant: Some("lending".into()), ..Identity::default() };
    let hits = memory
        .recall(
            &asking,
            why,
            &WordEmbedder,
            &MemoryQuery { across_conversations: true, ..MemoryQuery::default() },
        )
        .unwrap();
    let text = annals_memory::prompt_text(&hits, Some(annals_memory::Projection::Commits), None);
    let request =
        json!({ "messages": [{ "role": "system", "content": text }, { "role": "user", "content": why }] });
    let answer = r#"{"choices":[{"message":{"role":"assistant","content":"The score was too low."}}]}"#;
    // Python escapes non-ASCII characters; other clients do not.
    let escaped = request.to_string().replace('\u{b7}', "\\u00b7");
    for (name, request) in [("plain", &request.to_string()), ("escaped", &escaped)] {
        bench.record_and_snapshot(
            spec(name, lending("friday")),
            vec![exchange(0, CHAT, JSON, request, answer)],
        );
        // The same holds if the run is remembered much later.
        remember_run(&bench.space, name).unwrap();
        let friday = Identity { conversation: Some("friday".into()), ..asking.clone() };
        let entry = memory.get(&friday, &format!("run-{name}")).unwrap().unwrap();
        assert_eq!(entry.derived_from, ["lending/_/app-42/run-monday"], "{name}");
    }
}

#[test]
fn run_entry_names_run_and_end_and_is_recalled() {
    let bench = bench();
    bench.record_and_snapshot(RunSpec::new("monday").tag("tenant", "lending"), chat_frames());
    remember_run(&bench.space, "monday").unwrap();
    let identity = Identity { tenant: Some("lending".into()), ..Identity::default() };
    let memory = Memory::open(&bench.space).unwrap();
    let hits = memory
        .recall(&identity, "Why was application #42 rejected?", &WordEmbedder, &MemoryQuery::default())
        .unwrap();
    assert_eq!(hits.len(), 1);
    let entry = &hits[0].entry;
    assert_eq!((entry.id.as_str(), entry.value()), ("run-monday", expected_snapshot("[]").as_str()));
    assert_eq!(entry.member("metadata"), Some(r#"{"frame":1,"run":"monday","status":"ok"}"#));
    assert_eq!(entry.member("source"), Some(r#"{"identity":{"tenant":"lending"}}"#));
    let ended_ms = bench.space.run("monday").unwrap().info().ended_ns.unwrap() / 1_000_000;
    for name in ["createdAt", "updatedAt", "lastAccessedAt"] {
        assert_eq!(entry.member(name), Some(ended_ms.to_string().as_str()), "{name}");
    }
    assert!(
        memory
            .recall(
                &Identity::default(),
                "Why was application #42 rejected?",
                &WordEmbedder,
                &MemoryQuery::default()
            )
            .unwrap()
            .is_empty()
    );
    bench.store.close().unwrap();
}

/// A worker's run as chat completions: each text is a whole conversation of questions and answers, and the
/// frames are the model calls in this order.
fn worker_frames(calls: &[&[&str]]) -> Vec<Frame> {
    let call = |(number, texts): (u64, &&[&str])| {
        let roles = ["user", "assistant"].into_iter().cycle();
        let mut messages: Vec<_> =
            roles.zip(*texts).map(|(role, text)| json!({ "role": role, "content": text })).collect();
        let answer = messages.pop().unwrap();
        messages.insert(0, json!({ "role": "system", "content": format!("Decide. It is 12:0{number}.") }));
        let request = json!({ "messages": messages }).to_string();
        exchange(number, CHAT, JSON, &request, &json!({ "choices": [{ "message": answer }] }).to_string())
    };
    (0..).zip(calls).map(call).collect()
}

fn best_answer(space: &Namespace, question: &str) -> Option<String> {
    let hits = Memory::open(space)
        .unwrap()
        .recall(&Identity::default(), question, &WordEmbedder, &MemoryQuery::default())
        .unwrap();
    let value: serde_json::Value = serde_json::from_str(hits.first()?.entry.value()).unwrap();
    Some(value["finalContent"].as_str().unwrap().to_owned())
}

/// Regression: a run was remembered as its first question with its last answer. A worker that decided three
/// applications in one run answered `Why was application #42 decided so?` with the outcome of #99, and #77
/// and #99 were not found.
#[test]
fn run_with_three_questions_answers_each_with_its_own() {
    let bench = bench();
    let ask = |number: u32| format!("Should we approve application #{number}?");
    let (a, b, c) = (ask(42), ask(77), ask(99));
    let outcome =
        ["#42: REJECTED, credit 580", "#77: APPROVED, credit 710", "#99: ESCALATED, income unproven"];
    let run = bench.space.begin_run(RunSpec::new("worker")).unwrap();
    let frames = worker_frames(&[
        &[&a, outcome[0]],
        &[&b, outcome[1]],
        &[&c, outcome[2]],
        &[&a, outcome[0], "Thanks!", "You are welcome."],
    ]);
    for frame in frames {
        run.record(frame).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let stored = remember_run(&bench.space, "worker").unwrap();
    let ids = ["run-worker", "run-worker@2", "run-worker@3"].map(str::to_owned).to_vec();
    assert_eq!(stored, RememberOutcome::Stored(Identity::default(), ids));
    for (number, outcome) in [42, 77, 99].into_iter().zip(outcome) {
        let question = format!("Why was application #{number} decided so?");
        assert_eq!(best_answer(&bench.space, &question).as_deref(), Some(outcome));
    }
    // All entries go with the run.
    bench.space.forget("worker", "asked for").unwrap();
    assert!(bench.ids(&Identity::default()).is_empty());
}

/// Regression: a chat that ended with `Thanks!` was remembered as `You are welcome`.
#[test]
fn chat_ending_in_thanks_is_remembered_by_its_answer() {
    let bench = bench();
    let (ask, reply) = ("Please cancel my flight HAT136.", "My id is mia_li_3668.");
    let (which, done) =
        ("What is your user id?", "Cancelled; 230 dollars go back to your card. Anything else?");
    for (name, thanks, answer) in [
        ("thanks", "Thanks!", "You're welcome! Have a great day!"),
        ("bye", "No, that's all. Thank you so much, bye!", "Goodbye! Safe travels."),
        ("wordy", "I am so happy with how this went", "You're welcome! I am glad that I could help."),
    ] {
        let frames = worker_frames(&[
            &[ask, which],
            &[ask, which, reply, done],
            &[ask, which, reply, done, thanks, answer],
        ]);
        let snapshots = |frames| {
            let run = bench.space.begin_run(RunSpec::new(name)).unwrap();
            for frame in frames {
                run.record(frame).unwrap();
            }
            run.end(Status::Ok).unwrap();
            snapshots_json(&bench.space.run(name).unwrap()).unwrap()
        };
        let [snapshot] = snapshots(frames).try_into().unwrap();
        let snapshot: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
        assert_eq!(snapshot["query"], format!("{ask}\n{reply}"), "{name}");
        assert_eq!((&snapshot["finalContent"], &snapshot["iterations"]), (&done.into(), &2.into()), "{name}");
    }
}

/// Conversations of one run may alternate; each question keeps the tool calls of its own loop.
#[test]
fn interleaved_tool_loops_keep_their_own_calls() {
    let bench = bench();
    let user = |number: u32| json!({ "role": "user", "content": format!("Decide #{number}") });
    let call = |number: u32| {
        let arguments = format!("{{\"id\":{number}}}");
        json!({ "role": "assistant", "tool_calls": [{ "id": format!("c{number}"), "type": "function",
            "function": { "name": "lookup", "arguments": arguments } }] })
    };
    let given = |number: u32| json!({ "role": "tool", "tool_call_id": format!("c{number}"), "content": format!("score of {number}") });
    let frame = |at: u64, messages: serde_json::Value, answer: serde_json::Value| {
        let request = json!({ "messages": messages }).to_string();
        exchange(at, CHAT, JSON, &request, &json!({ "choices": [{ "message": answer }] }).to_string())
    };
    let said = |text: &str| json!({ "role": "assistant", "content": text });
    let run = bench.space.begin_run(RunSpec::new("both")).unwrap();
    for frame in [
        frame(0, json!([user(42)]), call(42)),
        frame(1, json!([user(77)]), call(77)),
        frame(2, json!([user(42), call(42), given(42)]), said("42 is rejected")),
        frame(3, json!([user(77), call(77), given(77)]), said("77 is approved")),
    ] {
        run.record(frame).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let snapshots = snapshots_json(&bench.space.run("both").unwrap()).unwrap();
    let found: Vec<_> = snapshots
        .iter()
        .map(|text| {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let calls = value["toolCalls"].as_array().unwrap().clone();
            let previews: Vec<_> = calls.iter().map(|call| call["resultPreview"].clone()).collect();
            (value["finalContent"].clone(), previews)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("42 is rejected".into(), vec!["score of 42".into()]),
            ("77 is approved".into(), vec!["score of 77".into()])
        ]
    );
}

/// Regression: a fork's hypothetical approval answered instead of the real rejection.
#[test]
fn what_if_is_remembered_on_request_and_ranks_last() {
    let bench = bench();
    let (ask, why) = ("Should we approve application #42?", "Why was application #42 decided so?");
    bench.record_and_snapshot(RunSpec::new("real"), worker_frames(&[&[ask, "REJECTED: 580"]]));
    remember_run(&bench.space, "real").unwrap();
    let what_if = |spec: RunSpec| {
        let name = spec.name.clone();
        let run = bench.space.fork("real", 1, true, spec).unwrap();
        run.record(worker_frames(&[&[ask, why]]).remove(0)).unwrap();
        run.end(Status::Ok).unwrap();
        remember_run(&bench.space, &name).unwrap()
    };
    assert!(
        matches!(what_if(RunSpec::new("fork")), RememberOutcome::Skipped(reason) if reason.contains("what-if"))
    );
    let mut cached = worker_frames(&[&[ask, "APPROVED"]]);
    let metadata = String::from_utf8(cached[0].metadata.clone()).unwrap();
    cached[0].metadata = metadata.replacen('{', r#"{"cached":{"run":"x","seq":1},"#, 1).into();
    bench.record_and_snapshot(RunSpec::new("cached"), cached);
    assert!(matches!(remember_run(&bench.space, "cached").unwrap(), RememberOutcome::Skipped(_)));
    assert_eq!(bench.ids(&Identity::default()), ["run-real"]);

    // On request it is kept and marked. Its text resembles the question more, and it still comes last.
    what_if(RunSpec::new("kept").tag("memory", "on"));
    let memory = Memory::open(&bench.space).unwrap();
    let hits = memory.recall(&Identity::default(), why, &WordEmbedder, &MemoryQuery::default()).unwrap();
    let found: Vec<_> = hits.iter().map(|hit| (hit.entry.id.as_str(), hit.entry.is_what_if)).collect();
    assert_eq!(found, [("run-real", false), ("run-kept", true)]);
    assert!(hits[1].score > hits[0].score);
    assert_eq!(best_answer(&bench.space, why).as_deref(), Some("REJECTED: 580"));
}

/// Regression: a run that recalled an entry and called another tool was remembered as a decision of its own, and so
/// was one that asked by a vector: follow-up answers then stood before the decision that they repeat.
#[test]
fn run_that_recalls_beside_tools_is_derived() {
    for by_vector in [false, true] {
        let bench = bench();
        bench.record_and_snapshot(RunSpec::new("monday"), chat_frames());
        remember_run(&bench.space, "monday").unwrap();
        let memory = Memory::open(&bench.space).unwrap();
        let nobody = Identity::default();
        let monday = memory.get(&nobody, "run-monday").unwrap().unwrap();
        let record = |name: &str, recalls: bool| {
            let run = bench.space.begin_run(RunSpec::new(name)).unwrap();
            let began_ns = bench.space.run(name).unwrap().info().started_ns;
            if recalls && by_vector {
                memory.search(&nobody, &monday.embedding.clone().unwrap(), &MemoryQuery::default()).unwrap();
            } else if recalls {
                let why = "Why was application #42 rejected?";
                memory.recall(&nobody, why, &WordEmbedder, &MemoryQuery::default()).unwrap();
            }
            for (number, mut frame) in (0..).zip(chat_frames()) {
                // From the run's beginning on; the recall is between the first request and the last answer.
                frame.started_ns = Some(began_ns + number * SECOND_NS);
                run.record(frame).unwrap();
            }
            run.end(Status::Ok).unwrap();
            let uid = bench.space.run(name).unwrap().info().uid;
            remember_ended(&bench.space, uid, Status::Ok).unwrap();
            memory.get(&nobody, &format!("run-{name}")).unwrap().unwrap()
        };
        let friday = record("friday", true);
        assert!(friday.value().contains("lookupCreditBureau"), "it called a tool, too");
        assert_eq!(friday.derived_from, ["_/_/_/run-monday"], "by vector: {by_vector}");
        assert_eq!(record("saturday", false).derived_from, [""; 0], "another decision with the same tools");
    }
}

/// A recall long before a question says nothing about an answer that came from tools.
#[test]
fn run_with_tools_after_a_recall_is_a_decision() {
    let bench = bench();
    bench.record_and_snapshot(RunSpec::new("monday"), chat_frames());
    remember_run(&bench.space, "monday").unwrap();
    let memory = Memory::open(&bench.space).unwrap();
    let why = "Why was application #42 rejected?";
    memory.recall(&Identity::default(), why, &WordEmbedder, &MemoryQuery::default()).unwrap();
    // The frames of the helper are later than the recall.
    bench.record_and_snapshot(RunSpec::new("friday"), chat_frames());
    let uid = bench.space.run("friday").unwrap().info().uid;
    remember_ended(&bench.space, uid, Status::Ok).unwrap();
    let friday = memory.get(&Identity::default(), "run-friday").unwrap().unwrap();
    assert_eq!(friday.derived_from, [""; 0]);
}

/// What does not fit is said, and what fits is stored.
#[test]
fn run_beyond_limits_is_remembered_in_part_and_says_so() {
    let bench = bench();
    for (name, decisions, is_cut) in [("fits", 4096, false), ("cut", 4097, true)] {
        let mut frames = chat_frames();
        let stated = vec![json!({ "stageId": "s", "chosen": "c" }); decisions];
        let planner = Frame::new(Component::Planner, "", "");
        frames.push(planner.metadata(json!({ "decisions": stated }).to_string()));
        bench.record_and_snapshot(RunSpec::new(name), frames);
        let told = remember_run(&bench.space, name).map_err(|error| error.to_string());
        assert_eq!(told.is_err(), is_cut, "{told:?}");
        assert!(!is_cut || told.unwrap_err().contains("only a part of the run is remembered"));
        let memory = Memory::open(&bench.space).unwrap();
        let entry = memory.get(&Identity::default(), &format!("run-{name}")).unwrap().unwrap();
        assert_eq!(entry.value().matches("stageId").count(), 4096);
    }
}

/// A run that the cache answered repeats an earlier answer. On request it is kept as a what-if.
#[test]
fn cached_run_is_remembered_only_on_request_as_what_if() {
    let bench = bench();
    let (ask, why) = ("Should we approve application #42?", "Why was application #42 decided so?");
    let cached = || {
        let mut frames = worker_frames(&[&[ask, "APPROVED"]]);
        let metadata = String::from_utf8(frames[0].metadata.clone()).unwrap();
        frames[0].metadata = metadata.replacen('{', r#"{"cached":{"run":"x","seq":1},"#, 1).into();
        frames
    };
    bench.record_and_snapshot(RunSpec::new("plain"), cached());
    let skipped = remember_run(&bench.space, "plain").unwrap();
    assert_eq!(skipped, RememberOutcome::Skipped(super::FROM_CACHE));
    bench.record_and_snapshot(RunSpec::new("kept").tag("memory", "on"), cached());
    remember_run(&bench.space, "kept").unwrap();
    let memory = Memory::open(&bench.space).unwrap();
    let hits = memory.recall(&Identity::default(), why, &WordEmbedder, &MemoryQuery::default()).unwrap();
    let found: Vec<_> = hits.iter().map(|hit| (hit.entry.id.as_str(), hit.entry.is_what_if)).collect();
    assert_eq!(found, [("run-kept", true)]);
}

/// Retention drops the frames and keeps the memory, for as long as the run's tag says.
#[test]
fn memory_for_tag_sets_the_lifetime_of_entries() {
    let bench = bench();
    bench.record_and_snapshot(RunSpec::new("lasts").tag("memory-for", "180d"), chat_frames());
    remember_run(&bench.space, "lasts").unwrap();
    let memory = Memory::open(&bench.space).unwrap();
    let entry = memory.get(&Identity::default(), "run-lasts").unwrap().unwrap();
    let ended_ms = bench.space.run("lasts").unwrap().info().ended_ns.unwrap() / 1_000_000;
    let end_ms = ended_ms + 180 * 24 * 3_600_000;
    assert_eq!(entry.ttl_ms, Some(end_ms.cast_signed()));
    let policy = annals::retention::RetentionPolicy::default();
    let delete = |at_ms: u64, dry_run| {
        crate::memory_retention::delete_expired_memories(&bench.store, &policy, at_ms * 1_000_000, dry_run)
            .unwrap()
    };
    assert_eq!(delete(end_ms - 1, false), 0);
    assert_eq!(
        (delete(end_ms, true), bench.ids(&Identity::default()).len()),
        (1, 1),
        "a dry run deletes nothing"
    );
    assert_eq!(delete(end_ms, false), 1);
    assert_eq!(bench.ids(&Identity::default()), [""; 0]);
    // A policy with a lifetime for the entries of runs; entries of others stay.
    bench.record_and_snapshot(RunSpec::new("other"), chat_frames());
    remember_run(&bench.space, "other").unwrap();
    memory.put(&Identity::default(), r#"{"id":"own","createdAt":1,"value":"note"}"#).unwrap();
    let policy = annals::retention::RetentionPolicy { memory_for_ns: Some(SECOND_NS), ..policy };
    let ended_ns = bench.space.run("other").unwrap().info().ended_ns.unwrap();
    let delete = |at_ns| {
        crate::memory_retention::delete_expired_memories(&bench.store, &policy, at_ns, false).unwrap()
    };
    assert_eq!((delete(ended_ns), delete(ended_ns + SECOND_NS)), (0, 1));
    assert_eq!(bench.ids(&Identity::default()), ["own"]);
    bench.record_and_snapshot(RunSpec::new("wrong").tag("memory-for", "soon"), chat_frames());
    let refused = remember_run(&bench.space, "wrong").unwrap_err().to_string();
    assert!(refused.contains("memory-for") && refused.contains("180d"), "{refused}");
}

/// S1.28: with the tag, an entry holds the frames of its question, and recall shows them. Without it, the snapshot is
/// agentfootprint's alone.
#[test]
fn commit_log_is_kept_only_on_request_and_shown() {
    let bench = bench();
    let mut frames = chat_frames();
    let mut tool = Frame::new(Component::Tool, r#"{"applicationId":"42"}"#, r#"{ "score": 580 }"#)
        .metadata(r#"{"call":{"name":"lookupCreditBureau"}}"#);
    tool.started_ns = Some(1_800_000_001 * SECOND_NS);
    tool.duration_ns = 12_000_000;
    frames.insert(1, tool);
    let answer = frames[2].output.bytes().unwrap().to_vec();
    for (name, tags) in [("plain", None), ("logged", Some(("memory-commits", "on")))] {
        let spec = RunSpec::new(name);
        let spec = tags.into_iter().fold(spec, |spec, (key, value)| spec.tag(key, value));
        bench.record_and_snapshot(spec, frames.clone());
        remember_run(&bench.space, name).unwrap();
    }
    let memory = Memory::open(&bench.space).unwrap();
    let value = |id: &str| memory.get(&Identity::default(), id).unwrap().unwrap().value().to_owned();
    assert!(!value("run-plain").contains("commitLog"));
    let logged: serde_json::Value = serde_json::from_str(&value("run-logged")).unwrap();
    let log = logged["commitLog"].as_array().unwrap();
    let seen: Vec<_> = log.iter().map(|commit| (&commit["frame"], &commit["component"])).collect();
    assert_eq!(json!(seen), json!([[1, "llm"], [2, "tool"], [3, "llm"]]));
    assert_eq!(log[2]["output"]["blake3"], blake3::hash(&answer).to_hex().as_str());
    assert_eq!(
        log[1]["output"],
        json!({
            "bytes": 16,
            "blake3": blake3::hash(br#"{ "score": 580 }"#).to_hex().as_str(),
            "preview": r#"{ "score": 580 }"#,
        })
    );
    let shown = annals_memory::render(&value("run-logged"), annals_memory::Projection::Commits, 0.9).unwrap();
    let line =
        "#2 tool lookupCreditBureau, 12 ms: {\"applicationId\":\"42\"} \u{2192} { \"score\": 580 }\n#3 llm";
    assert!(shown.contains(line), "{shown}");
}
