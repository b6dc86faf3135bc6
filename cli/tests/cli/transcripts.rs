//! Imports of transcripts: no part of the input may be lost in silence.

use std::io::Read;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::CliBench;

/// Names the file of 126 multi-agent runs (Who&When, Algorithm-Generated), which is not in the repository.
const VARIABLE: &str = "ANNALS_WHO_AND_WHEN";

/// Two runs in their original form: one names its agents by `role`, the other by `name`.
const AGENTS: &str = concat!(
    r#"{"id":"roles","messages":[{"role":"human","content":"find  it"},"#,
    r#"{"content":"think\u00e9","role":"Orchestrator (thought)"},{"role":"WebSurfer","content":[]}]}"#,
    "\n",
    r#"{"id":"names","history":[{"content":"plan","role":"user","name":"Expert \"A\""},"#,
    r#"{"content":"run","role":"assistant","name":"Computer_terminal"},{"role":"user","content":""}]}"#,
    "\n"
);

#[derive(Deserialize)]
struct Transcript<'a> {
    #[serde(borrow)]
    history: Vec<&'a RawValue>,
}

fn import(bench: &CliBench, source: &str) -> String {
    bench.pipe("import --format chat -", source.as_bytes()).text()
}

fn rows(bench: &CliBench, run: &str) -> Vec<(String, u64, String, String)> {
    let row = |frame: &serde_json::Value| {
        let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
        (text("component"), frame["parent"].as_u64().unwrap_or(0), text("input"), text("output"))
    };
    bench.run(&format!("replay {run} --json")).json().iter().map(row).collect()
}

/// Regression: 58 real transcripts, whose `role` is an agent's name, were imported as "58 runs, 0 frames"
/// with exit code 0. `replay --all` called the empty runs bit-exact.
#[test]
fn agent_transcript_gives_one_frame_for_each_message() {
    let bench = CliBench::new();
    assert!(import(&bench, AGENTS).starts_with("imported 2 runs, 6 frames, "));
    let frame = |parent: u64, output: &str| ("agent".to_owned(), parent, String::new(), output.to_owned());
    assert_eq!(
        rows(&bench, "roles"),
        [
            frame(0, r#"{"role":"human","content":"find  it"}"#),
            frame(1, r#"{"content":"think\u00e9","role":"Orchestrator (thought)"}"#),
            frame(2, r#"{"role":"WebSurfer","content":[]}"#),
        ]
    );
    assert_eq!(
        bench.run("show roles@2 --metadata --raw").text(),
        r#"{"agent":{"name":"Orchestrator (thought)"}}"#
    );
    assert_eq!(bench.run("show names@1 --metadata --raw").text(), r#"{"agent":{"name":"Expert \"A\""}}"#);
    assert_eq!(bench.run("show names@3 --metadata --raw").text(), r#"{"agent":{"name":"user"}}"#);
    assert!(bench.run("replay --all").text().contains("bit-exact: 2 runs, 6 frames"));
}

/// Regression: a user's message was only part of the requests after it. A last message without an answer was
/// in no frame.
#[test]
fn user_messages_become_frames_of_their_own() {
    let bench = CliBench::new();
    let user = r#"{"role":"user", "content":"caf\u00e9?"}"#;
    let call = r#"{"id":"c","function":{"name":"find","arguments":"{}"}}"#;
    let asks = format!(r#"{{"role":"assistant","tool_calls":[{call}]}}"#);
    let tool = r#"{"role":"tool","tool_call_id":"c","content":"42"}"#;
    let answer = r#"{"role":"assistant","content":"done"}"#;
    let thanks = r#"{"role":"user","content":[{"type":"text","text":"thanks"}]}"#;
    let source = format!(r#"{{"id":"a","messages":[{user},{asks},{tool},{answer},{thanks}]}}"#);
    assert!(import(&bench, &source).starts_with("imported 1 run, 5 frames, "));
    let request = |messages: &[&str]| format!(r#"{{"model":"unknown","messages":[{}]}}"#, messages.join(","));
    let frame = |component: &str, parent: u64, input: String, output: &str| {
        (component.to_owned(), parent, input, output.to_owned())
    };
    assert_eq!(
        rows(&bench, "a"),
        [
            frame("user", 0, String::new(), user),
            frame("llm", 1, request(&[user]), &asks),
            frame("tool", 2, call.to_owned(), tool),
            frame("llm", 3, request(&[user, &asks, tool]), answer),
            frame("user", 4, String::new(), thanks),
        ]
    );
}

/// Every message of the file becomes a frame with its exact bytes, in the original order.
#[test]
fn all_126_transcripts_give_one_frame_for_each_message() {
    let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) else {
        use std::io::Write as _;
        let line = format!("the 126 logs were not given ({VARIABLE} names them): not tested");
        writeln!(std::io::stderr().lock(), "transcripts: {line}").unwrap();
        return;
    };
    let file = std::path::absolute(given).unwrap();
    #[expect(clippy::disallowed_methods, reason = "reads test data")]
    let packed = std::fs::read(&file).unwrap();
    let mut source = String::new();
    liblzma::read::XzDecoder::new(packed.as_slice()).read_to_string(&mut source).unwrap();
    let runs: Vec<Transcript> = source.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages: Vec<Vec<&str>> =
        runs.iter().map(|run| run.history.iter().map(|message| message.get()).collect()).collect();
    assert_eq!((messages.len(), messages.iter().map(Vec::len).sum()), (126, 1_099_usize));
    let bench = CliBench::new();
    let told = bench.run_args(["import", "--format", "chat", file.to_str().unwrap()]).text();
    assert!(told.starts_with("imported 126 runs, 1,099 frames, "), "{told}");
    for (messages, number) in messages.iter().zip(1..) {
        let stored = rows(&bench, &format!("run-{number:06}"));
        assert!(stored.iter().all(|(component, ..)| component == "agent"), "run {number}");
        assert!(
            stored.iter().map(|(.., output)| output.as_str()).eq(messages.iter().copied()),
            "run {number}"
        );
    }
    assert!(bench.run("replay --all").text().contains("bit-exact: 126 runs, 1,099 frames"));
}

/// Regression: `replay --all` over runs without frames printed "bit-exact: 58 runs, 0 frames".
#[test]
fn replaying_a_store_without_frames_ends_with_4() {
    let bench = CliBench::new();
    let line = r#"{"run":"empty","status":"ok","end":true}"#;
    drop(bench.pipe("import --format frames -", line.as_bytes()));
    assert_eq!(bench.run("runs --json").json().len(), 1);
    for line in ["replay --all", "replay --all --json", "replay --all --raw", "replay empty"] {
        let done = bench.run(line);
        assert!(!String::from_utf8_lossy(&done.stdout).contains("bit-exact"), "{line}");
        let error = done.failed(4);
        assert!(error.contains("frame"), "{line}: {error}");
    }
}

/// Regression: system messages without a later model call were in no frame, and the exit code was 0.
#[test]
fn messages_in_no_frame_are_counted_and_end_with_1() {
    let answered = r#"{"id":"a","messages":[{"role":"system","content":"s"},{"role":"assistant"}]}"#;
    let alone = r#"{"id":"b","messages":[{"role":"system","content":"s"},{"role":"developer"}]}"#;
    let trailing = r#"{"id":"c","messages":[{"role":"assistant"},{"role":"function","content":"f"}]}"#;
    let source = format!("{answered}\n{alone}\n{trailing}\n");
    let bench = CliBench::new();
    let done = bench.pipe("import --format chat -", source.as_bytes());
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(told.starts_with("imported 3 runs, 2 frames, "), "{told}");
    assert!(told.contains("3 messages in no frame"), "{told}");
    let error = done.failed(1);
    assert!(error.contains("3 messages") && error.contains("`b`"), "{error}");
    let metadata = bench.run("show c --metadata --raw").text();
    assert!(metadata.contains(r#"{"role":"function","content":"f"}"#), "{metadata}");
    let again = "import --format chat --replace --allow-empty -";
    assert_eq!(bench.pipe(again, source.as_bytes()).text(), told);
    let end = bench.pipe(&format!("{again} --json"), source.as_bytes()).json().pop().unwrap();
    assert_eq!((&end["messages_in_no_frame"], &end["runs_without_frames"]), (&3.into(), &1.into()));
}

#[test]
fn an_import_without_a_frame_ends_with_1_unless_allowed() {
    for (format, source) in [
        ("chat", ""),
        ("chat", "[]"),
        ("chat", r#"{"id":"a","messages":[]}"#),
        ("frames", ""),
        ("frames", r#"{"run":"a","end":true}"#),
    ] {
        let bench = CliBench::new();
        let error = bench.pipe(&format!("import --format {format} -"), source.as_bytes()).failed(1);
        assert!(error.contains("no frame"), "{error}");
        let allowed = format!("import --format {format} --allow-empty --replace -");
        bench.pipe(&allowed, source.as_bytes()).ok();
    }
}
