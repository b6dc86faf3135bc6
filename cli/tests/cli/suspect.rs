//! `annals suspect`: the ranking of a failed run's steps, over imports, recordings, damage and redaction.

use serde_json::Value;

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// A transcript of agents in which `Guesser` makes a year up. Its executor has the role of all others.
const AGENTS: &str = concat!(
    r#"{"id":"team","status":"failed","question":"In which year did the bridge of Elm open?","history":["#,
    r#"{"role":"user","name":"Lead","content":"In which year did the bridge of Elm open? Work together."},"#,
    r#"{"role":"user","name":"Guesser","content":"Assuming a typical bridge, it opened in 1931 I think."},"#,
    r#"{"role":"user","name":"Shell","content":"exitcode: 0 (execution succeeded)\nCode output: nothing"},"#,
    r#"{"role":"assistant","name":"Checker","content":"I verified the work: everything is fine, as far as I see."},"#,
    r#"{"role":"assistant","name":"Lead","content":"The bridge of Elm opened in 1931, says the team."}]}"#,
    "\n",
);

/// A chat with tools: the call names an order that nobody gave, and fails.
const CHAT: &str = concat!(
    r#"{"id":"chat","status":"failed","messages":[{"role":"user","content":"Cancel order AB123X"},"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":"#,
    r#"{"name":"cancel","arguments":"{\"order\":\"ZZ999Q\"}"}}]},"#,
    r#"{"role":"tool","tool_call_id":"c1","content":"Error: no such order"},"#,
    r#"{"role":"assistant","content":"Your order has been cancelled with success."}]}"#,
    "\n",
);

fn imported(source: &str) -> CliBench {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", source.as_bytes()).ok();
    bench
}

fn array(done: ProcessResult) -> Vec<Value> {
    serde_json::from_slice(&done.ok()).unwrap()
}

fn names(step: &Value) -> Vec<(&str, u64)> {
    let signals = step["signals"].as_array().unwrap();
    signals.iter().map(|seen| (seen["name"].as_str().unwrap(), seen["seq"].as_u64().unwrap())).collect()
}

#[test]
fn transcript_of_agents_is_ranked_with_evidence() {
    let bench = imported(AGENTS);
    let steps = array(bench.run("suspect team --json"));
    let first = &steps[0];
    assert_eq!(
        (&first["seq"], &first["agent"], &first["component"]),
        (&2.into(), &"Guesser".into(), &"agent".into())
    );
    let seen = names(first);
    for wanted in [("assumption", 2), ("value_from_nowhere", 2), ("source_of_final_value", 5)] {
        assert!(seen.contains(&wanted), "{wanted:?} is not in {seen:?}");
    }
    assert!(first["signals"][0]["why"].as_str().unwrap().len() > 10);
    // The executor of code is no step. The scores sum to 1, best first.
    let order: Vec<u64> = steps.iter().map(|step| step["seq"].as_u64().unwrap()).collect();
    assert_eq!((order.len(), order.contains(&3)), (4, false));
    let scores: Vec<f64> = steps.iter().map(|step| step["score"].as_f64().unwrap()).collect();
    assert!(
        scores.is_sorted_by(|a, b| a >= b) && (scores.iter().sum::<f64>() - 1.0).abs() < 1e-9,
        "{scores:?}"
    );
    assert_eq!(array(bench.run("suspect team --top 2 --json")).len(), 2);

    let text = bench.run("suspect team --top 1").text();
    assert!(text.starts_with("team: failed, 4 steps of 3 agents ranked\n"), "{text}");
    assert!(text.contains("a heuristic from the record alone"), "{text}");
    assert!(text.contains("1. team@2  Guesser (agent), score 0."), "{text}");
    assert!(text.contains("next: annals show team@2\n") && !text.contains("\n2. "), "{text}");
}

#[test]
fn chat_with_tools_names_the_call_and_its_result() {
    let bench = imported(CHAT);
    let steps = array(bench.run("suspect chat --json"));
    assert_eq!((&steps[0]["seq"], &steps[0]["component"]), (&2.into(), &"llm".into()));
    let seen = names(&steps[0]);
    for wanted in [("value_from_nowhere", 2), ("failed_action", 3), ("unserved_instruction", 1)] {
        assert!(seen.contains(&wanted), "{wanted:?} is not in {seen:?}");
    }
    assert!(names(&steps[1]).contains(&("ignored_failure", 3)), "{:?}", steps[1]);
}

#[test]
fn recorded_run_is_ranked_from_its_requests_and_answers() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let agent = crate::record::agent();
    for (run, doing) in
        [("plain", &["loan"][..]), ("stream", &["loan", "stream"]), ("claude", &["loan_claude"])]
    {
        let args = ["record", "--upstream", &upstream.url, "--run", run, "--", "python3", "-B", &agent];
        let mut command = bench.command(args.iter().chain(doing));
        command.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").env_remove("ANTHROPIC_BASE_URL");
        let done = ProcessResult::from_output(command.stdin(std::process::Stdio::null()).output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        let done = bench.run(&format!("suspect {run} --json"));
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(
            done.stderr,
            "annals: the run ended with status ok: the ranking assumes that its result is wrong\n"
        );
        let mut steps: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
        steps.sort_by_key(|step| step["seq"].as_u64());
        assert_eq!(steps.len(), 2, "{steps:?}");
        assert!(steps[0]["signals"].to_string().contains("lookupCreditBureau"), "{:?}", steps[0]);
        // The answer has the score 580 from the tool's result, which the second request has, and a limit of
        // 600 that nothing has.
        let why: Vec<&str> = steps[1]["signals"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|seen| seen["name"] == "value_from_nowhere")
            .map(|seen| seen["why"].as_str().unwrap())
            .collect();
        assert_eq!(why, ["no earlier frame holds \"600\""], "{run}");
    }
}

#[test]
fn runs_that_cannot_be_ranked_say_why() {
    let bench = imported(concat!(
        r#"{"id":"asked","messages":[{"role":"user","content":"hello"}]}"#,
        "\n",
        r#"{"id":"one","messages":[{"role":"user","content":"hello"},{"role":"assistant","content":"hi"}]}"#,
        "\n"
    ));
    assert!(bench.run("suspect nobody").failed(4).contains("nobody"));
    let why = bench.run("suspect asked").failed(1);
    assert!(why.contains("no step to rank: none of 1 frame is a model's answer"), "{why}");
    let one = bench.run("suspect one --json");
    assert_eq!(one.code, 0);
    let steps: Vec<Value> = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!((steps.len(), steps[0]["score"].as_f64()), (1, Some(1.0)));
    assert!(bench.run("suspect one --judge ftp://x").failed(2).contains("must begin with http"));
}

/// A frame that cannot be read must not hide the others, nor be passed over in silence.
#[test]
#[expect(clippy::disallowed_methods, reason = "damages the store from outside")]
fn damaged_frame_is_named_and_the_others_are_ranked() {
    use std::io::{Seek, SeekFrom, Write};
    let bench = CliBench::new();
    // Text that does not compress, so that one flipped byte damages one message.
    let mut state = 7_u64;
    let mut noise = |bytes: usize| -> String {
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(33 + u8::try_from((state >> 33) % 90).unwrap()).to_string().replace(['"', '\\'], "x")
        };
        (0..bytes).map(next).collect()
    };
    let message = |name: &str, text: &str| format!(r#"{{"role":"user","name":"{name}","content":"{text}"}}"#);
    let texts: Vec<String> = (0..6).map(|_| noise(400_000)).collect();
    let messages: Vec<String> =
        texts.iter().zip(0..).map(|(text, at)| message(&format!("Agent{}", at % 2), text)).collect();
    let history = format!(
        "{},{}",
        messages.join(","),
        r#"{"role":"assistant","name":"Agent0","content":"it is done now, all of it"}"#
    );
    let source = format!("{{\"id\":\"r\",\"status\":\"failed\",\"history\":[{history}]}}\n");
    bench.pipe("import --format chat -", source.as_bytes()).ok();
    assert_eq!(array(bench.run("suspect r --json")).len(), 7);
    let entries = std::fs::read_dir(bench.path(".annals/segments")).unwrap();
    let path =
        entries.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let at = bytes.len() / 2;
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&[bytes[at] ^ 0x10]).unwrap();
    drop(file);
    let done = bench.run("suspect r --json");
    let steps: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
    assert!((1..7).contains(&steps.len()), "{}", steps.len());
    let why = done.failed(3);
    assert!(why.contains("of run `r` cannot be read and") && why.contains("not ranked ("), "{why}");
}

#[test]
fn evidence_is_shown_as_the_profile_shows_the_run() {
    let source = AGENTS.replace("Assuming a typical bridge", "Assuming that ann@mail.example is right");
    let bench = imported(&source);
    assert!(bench.run("suspect team").text().contains("ann@mail.example"));
    bench.write(".annals/profiles.toml", "[[profile]]\nname = \"audit\"\ndetect = [\"email\"]\n");
    let done = bench.run("suspect team --as audit");
    assert_eq!(done.code, 0, "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(!text.contains("ann@mail.example") && text.contains("Assuming that"), "{text}");
    assert!(text.contains("annals show team@2 --as audit"), "{text}");
    assert!(done.stderr.contains("redacted by profile audit"), "{}", done.stderr);
}

#[test]
fn verdict_of_the_judge_is_kept_and_dropped_with_the_run() {
    let (bench, far) = (imported(AGENTS), FakeUpstream::start());
    let judge = format!("{}/judge", far.url);
    for round in 0..2 {
        let done = bench.run_args(["suspect", "team", "--json", "--top", "1", "--judge", &judge]);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stderr.contains("its opinion changes no score"), "{}", done.stderr);
        let steps: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
        let last = steps[0]["signals"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(
            last,
            serde_json::json!({"name": "judge", "seq": 2, "why": "gpt-4o-mini: it guesses the year"})
        );
        assert_eq!(far.asked(), 1, "round {round}");
    }
    let text = bench.run_args(["suspect", "team", "--judge", &judge]);
    let shown = String::from_utf8(text.stdout).unwrap();
    assert!(shown.contains("gpt-4o-mini names team@2 (place 1): it guesses the year"), "{shown}");
    assert_eq!(bench.run("scan --keyspace annals.verdicts --json").json().len(), 1);
    bench.run("forget team --why private").text();
    assert_eq!(bench.run("scan --keyspace annals.verdicts --json").json().len(), 0);
}

#[test]
fn judge_that_fails_is_reported_beside_the_ranking() {
    let (bench, far) = (imported(AGENTS), FakeUpstream::start());
    // This path repeats the question; the other has nothing behind it.
    for address in
        [format!("{}/v1", far.url), format!("{}/nowhere", far.url), "http://127.0.0.1:1".to_owned()]
    {
        let done = bench.run_args(["suspect", "team", "--judge", &address]);
        let shown = String::from_utf8(done.stdout.clone()).unwrap();
        assert!(shown.contains("1. team@2"), "{shown}");
        let why = done.failed(1);
        assert!(why.contains("the judge gives no verdict: "), "{why}");
    }
}
