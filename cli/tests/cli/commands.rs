//! Output for people: the list of runs, a run, a frame, a comparison of two runs, the help.

use std::process::Stdio;

use annals::{Component, Frame, RunSpec, Status, Store};
use serde_json::{Value, json};

use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

const CHAT: &str = "/v1/chat/completions";

/// A model call with these facts, in the form that the recorder writes.
fn call(path: &str, facts: Value) -> Frame {
    exchange(path, "application/json", "{}", "ok", facts)
}

fn exchange(path: &str, kind: &str, request: &str, answer: &str, facts: Value) -> Frame {
    let mut metadata = json!({
        "http": { "mount": "openai", "method": "POST", "path": path, "status": 200 },
        "volatile": { "asked": "", "request_headers": [], "response_headers": [["content-type", kind]] },
    });
    for (key, value) in facts.as_object().unwrap() {
        metadata[key] = value.clone();
    }
    Frame::new(Component::Llm, request, answer).metadata(metadata.to_string())
}

fn usage(model: &str, input: u64, output: u64) -> Value {
    json!({ "model": model, "usage": { "input": input, "output": output } })
}

impl CliBench {
    /// Records runs through the library.
    fn holds(&self, runs: Vec<(&str, Vec<Frame>)>) {
        let store = Store::open(self.path(".annals")).unwrap();
        let space = store.namespace("default").unwrap();
        for (name, frames) in runs {
            let run = space.begin_run(RunSpec::new(name)).unwrap();
            for frame in frames {
                run.record(frame).unwrap();
            }
            run.end(Status::Ok).unwrap();
        }
        store.close().unwrap();
        // A child process of another test inherits the lock file until it executes its program.
        while self.run("put released yes").stderr.contains("is writing to") {}
    }

    /// Runs a command on a terminal of this width.
    fn within(&self, columns: usize, line: &str) -> ProcessResult {
        let mut command = self.command(line.split_whitespace());
        ProcessResult::from_output(command.env("COLUMNS", columns.to_string()).output().unwrap())
    }
}

fn ids(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| run["id"].as_str().unwrap()).collect()
}

/// Regression: the oldest runs came first, so `--limit 5` listed the five oldest. The list had no start time,
/// no duration and no cost.
#[test]
fn runs_lists_the_newest_first_with_tokens_and_cost() {
    let bench = CliBench::new();
    bench.holds(vec![
        ("old", vec![call(CHAT, usage("gpt-4o", 1000, 100)), call(CHAT, usage("gpt-4o", 500, 50))]),
        ("two", vec![call(CHAT, usage("gpt-4o", 1000, 100)), call(CHAT, usage("own-model", 7, 3))]),
        ("bare", vec![Frame::new(Component::Tool, "", "")]),
    ]);
    let runs = bench.run("runs --json").json();
    assert_eq!(ids(&runs), ["bare", "two", "old"]);
    assert_eq!(ids(&bench.run("runs --json --limit 2").json()), ["bare", "two"]);
    assert_eq!(runs[2]["tokens"], json!({ "input": 1500, "output": 150 }));
    let dollars = runs[2]["cost"]["dollars"].as_f64().unwrap();
    assert!((dollars - 0.00525).abs() < 1e-9, "{dollars}");
    assert_eq!(
        (&runs[1]["cost"]["unpriced"], &runs[1]["models"]),
        (&json!(1), &json!(["gpt-4o", "own-model"]))
    );
    assert_eq!(
        (&runs[0]["tokens"], &runs[0]["cost"], &runs[0]["model"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let table = bench.run("runs").text();
    let lines: Vec<_> = table.lines().collect();
    for header in ["RUN", "STATUS", "STARTED", "DURATION", "TOKENS", "COST", "MODEL"] {
        assert!(lines[0].contains(header), "{header} is not in {table}");
    }
    assert!(
        lines[3].starts_with("old") && lines[3].contains("1,650") && lines[3].contains("$0.0053"),
        "{table}"
    );
    assert!(lines[2].contains("gpt-4o, own-model") && lines[2].contains("over $0.0035"), "{table}");
    assert_eq!(bench.run("ls").text(), table);
    // Regression: a run that named its models in frames only was not found by one of them.
    assert_eq!(ids(&bench.run("runs --json --model gpt-4o").json()), ["two", "old"]);
    assert_eq!(ids(&bench.run("runs --json --model gpt-4o --limit 1").json()), ["two"]);
    assert_eq!(ids(&bench.run("runs --json --model own-model").json()), ["two"]);
    assert!(bench.run("runs --json --model other").json().is_empty());
}

/// A shortened list says that it is shortened and how to see the rest.
#[test]
fn runs_says_when_it_shows_only_the_newest() {
    let bench = CliBench::new();
    let names: Vec<_> = (0..53).map(|number| format!("run-{number}")).collect();
    bench.holds(names.iter().map(|name| (name.as_str(), vec![])).collect());
    let cut = bench.run("runs");
    let table = String::from_utf8(cut.stdout).unwrap();
    assert_eq!((cut.code, table.lines().count()), (0, 51), "{table}");
    assert!(table.contains("run-52") && !table.contains("run-2 "), "{table}");
    assert_eq!(cut.stderr, "annals: showing the newest 50, and there are more: --limit 0 for all\n");
    assert_eq!(bench.run("runs --limit 0").text().lines().count(), 54);
    assert_eq!(bench.run("runs --limit 3").text().lines().count(), 4);
    assert_eq!(bench.run("runs --json").json().len(), 53);
    let some = bench.run("runs --status ok");
    assert_eq!(some.stderr, "annals: showing the newest 50, and there are more: --limit 0 for all\n");
}

#[test]
fn runs_fits_terminal_and_names_omitted_columns() {
    let bench = CliBench::new();
    let long = "a-run-with-a-rather-long-name-20261123-231500-and-more";
    let facts = usage("anthropic.claude-sonnet-4-20250514-v1:0", 123_456, 7_890);
    bench.holds(vec![(long, vec![call(CHAT, facts)]), ("b", vec![])]);
    for (columns, left_out) in [(80, true), (140, true), (400, false)] {
        let listed = bench.within(columns, "runs");
        let table = String::from_utf8(listed.stdout).unwrap();
        let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns, "{widest} of {columns}: {table}");
        assert_eq!(listed.stderr.contains("--json has all"), left_out, "{} {table}", listed.stderr);
        assert_eq!(table.contains(long), columns > 80, "{table}");
    }
    assert!(bench.run("runs").text().contains(long), "a pipe has no width");
}

/// The parent paid for a fork's shared frames. The run that cached an answer paid for that answer.
#[test]
fn runs_counts_tokens_once() {
    let bench = CliBench::new();
    let mut cached = usage("gpt-4o", 5, 5);
    cached["cached"] = json!({ "run": "a", "seq": 1 });
    bench.holds(vec![("a", vec![call(CHAT, usage("gpt-4o", 9, 1)), call(CHAT, cached)])]);
    bench.run("fork a@1 b").ok();
    let runs = bench.run("runs --json").json();
    assert_eq!(ids(&runs), ["b", "a"]);
    assert_eq!((&runs[0]["tokens"], &runs[1]["tokens"]), (&Value::Null, &json!({ "input": 9, "output": 1 })));
}

#[test]
fn runs_of_an_empty_namespace_says_no_runs() {
    let bench = CliBench::new();
    bench.run("init").ok();
    assert_eq!(bench.run("runs").text(), "no runs\n");
    assert_eq!(bench.run("runs --json").text(), "");
}

/// Regression: docs/record.md says that a frame with an HTTP error is flagged, but a 429 was not. The rule
/// flagged it only if no request followed, which is unknown when the frame is written.
#[test]
fn a_429_is_flagged_and_its_status_is_shown() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["every"]).code, 0);
    let frame = &bench.run("show r@4 --json").json()[0];
    assert_eq!((&frame["severity"], &frame["error"]), (&json!("flagged"), &json!(true)));
    assert_eq!(frame["metadata"]["why_severe"], "the provider answered 429");
    assert_eq!(bench.run("runs --json --severity flagged").json().len(), 1);
    let run = bench.run("show r").text();
    for line in ["POST /v1/limited 429", "POST /v1/chat/completions 200", "DELETE /v1/nowhere/known 200"] {
        assert!(run.contains(line), "{line} is not in {run}");
    }
    assert!(bench.run("show r@4").text().contains("POST openai /v1/limited: 429"));
    let opened = bench.run("open r").text();
    assert!(opened.contains("POST openai /v1/limited: 429"), "{opened}");
    let object = &bench.run("open r --json").json()[0];
    assert_eq!(
        (&object["method"], &object["path"], &object["status_code"]),
        (&json!("POST"), &json!("/v1/limited"), &json!(429))
    );
}

#[test]
fn a_run_on_a_narrow_terminal_fits_its_lines() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["every"]).code, 0);
    for columns in [80, 140] {
        let shown = bench.within(columns, "show r").text();
        let table = shown.split_once("\n\n").unwrap().1;
        let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns, "{widest} of {columns}: {table}");
    }
}

#[test]
fn help_shows_the_verbs_in_groups() {
    let help = CliBench::new().run("--help").text();
    for group in
        ["Record and replay:", "Look:", "Compare and fork:", "Keys and memory:", "Evidence:", "Servers:"]
    {
        assert!(help.contains(&format!("\n{group}\n")), "{group} is not in {help}");
    }
    for place in [help.find("Options:"), help.find("Exit codes:"), help.find("--store")] {
        assert!(place.is_some(), "{help}");
    }
}

/// A verb without a test would be the first that breaks.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test reads its own sources")]
fn every_verb_has_help_and_a_test() {
    let bench = CliBench::new();
    let help = bench.run("--help").text();
    let verb = |line: &str| {
        let word = line.strip_prefix("  ")?.split([' ', ',']).next()?;
        let is_verb = word.starts_with(|letter: char| letter.is_ascii_lowercase());
        is_verb.then(|| word.to_owned())
    };
    let verbs: Vec<String> = help.split("Options:").next().unwrap().lines().filter_map(verb).collect();
    assert!(verbs.len() > 30 && verbs.iter().any(|verb| verb == "forget"), "{verbs:?}");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut tests = String::new();
    for folder in [folder.join("serve"), folder.join("blame"), folder] {
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|end| end == "rs") {
                tests += &std::fs::read_to_string(file).unwrap();
            }
        }
    }
    for verb in verbs {
        let told = bench.run(&format!("{verb} --help")).text();
        assert!(told.contains("Usage: annals"), "{verb}: {told}");
        assert!(is_run(&tests, &verb), "no test runs `annals {verb}`");
    }
    // The search tells a command from other texts.
    assert!(is_run("bench.run(\"open r\")", "open") && is_run("[\"--store\", \"s\", \"open\"]", "open"));
    for other in
        ["state[\"open\"]", "text.contains(\"open \")", "== \"open\"", "{ \"open\": 1 }", "\"an open run\""]
    {
        assert!(!is_run(other, "open"), "{other}");
    }
}

/// Whether a source passes a text that begins with this verb to a function or in a list: not as an index, a key, a compared
/// text or one that is searched for.
fn is_run(source: &str, verb: &str) -> bool {
    let texts = [format!("\"{verb} "), format!("\"{verb}\"")];
    let mut found = texts.iter().flat_map(|text| source.match_indices(text.as_str()));
    found.any(|(at, text)| {
        let (before, after) = (source[..at].trim_end(), source[at + text.len()..].trim_start());
        let is_index = before
            .strip_suffix('[')
            .is_some_and(|of| of.ends_with(|c: char| c.is_alphanumeric() || ")]_".contains(c)));
        let is_searched = ["contains(", "contains(&", "get(", "ends_with(", "starts_with(", "==", "!="]
            .iter()
            .any(|end| before.ends_with(end));
        let is_key = text.ends_with('"') && after.starts_with(':');
        before.ends_with(['(', '[', ',', '{']) && !is_index && !is_searched && !is_key
    })
}

/// What was recorded goes through every stage: shown, replayed, proven, forked, compared, carried to another store,
/// copied, dropped by name and compacted. Each stage reads what the one before it wrote.
#[test]
fn recorded_run_passes_every_stage() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let frames = bench.run("replay r --json").json();
    // Three calls and the program itself.
    assert_eq!(frames.len(), 4);
    bench.run("show r").ok();
    assert_eq!(bench.replay(&["r"], &["changed", "two"]).code, 0);
    bench.run("verify r").ok();
    bench.write("before.json", bench.run("ledger checkpoint").text());
    bench.run("fork r@2 branch --no-run").ok();
    assert_eq!(bench.run("diff r branch").code, 3);
    bench.run("tape export r -o r.tape").ok();
    bench.run("--store other tape import r.tape").ok();
    assert_eq!(bench.run("--store other replay r --json").json().len(), frames.len());
    assert_eq!(bench.run("check r.tape").code, 0);
    bench.run("backup copy").ok();
    bench.run("forget branch --why tested").ok();
    bench.run("forget r --why tested").ok();
    bench.run("compact --now").ok();
    bench.run("verify").ok();
    assert_eq!(bench.run("verify --against before.json").code, 0);
    assert!(bench.run("show r").failed(4).contains("was dropped"));
    bench.run("restore copy restored").ok();
    let restored = bench.run("--store restored replay r --json").json();
    assert_eq!(restored, frames);
}

fn sent(bench: &CliBench, run: &str, seq: u32, key: &str) -> Value {
    let input = bench.run(&format!("show {run}@{seq} --input --raw")).ok();
    serde_json::from_slice::<Value>(&input).unwrap()[key].clone()
}

/// Regression: `--set` changed every request from the named frame on. A user could not see the effect of one
/// changed step.
#[test]
fn fork_set_edits_the_named_step_only() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let of = |run: &str| [2, 3].map(|seq| sent(&bench, run, seq, "temperature"));
    let forked = bench.fork(&["r@2", "one", "--set", "$.temperature=0"], &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    assert_eq!(of("one"), [json!(0), json!(0.5)]);
    let edited =
        |seq: u32| bench.run(&format!("show one@{seq} --json")).json()[0]["metadata"]["edited"].clone();
    assert_eq!((edited(2), edited(3)), (json!(true), Value::Null));
    assert_eq!(bench.replay(&["one"], &[]).code, 0);

    let forked = bench.fork(&["r@2", "all", "--set-all", "$.temperature=0"], &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    assert_eq!(of("all"), [json!(0), json!(0)]);
    assert_eq!(bench.replay(&["all"], &[]).code, 0);

    // `--set` wins over `--set-all` at its step. The changed model stays for all later steps.
    let args = ["r@2", "both", "--set", "$.temperature=1", "--set-all", "$.temperature=0", "--model", "m-2"];
    assert_eq!(bench.fork(&args, &upstream.url).code, 0);
    assert_eq!(of("both"), [json!(1), json!(0)]);
    assert_eq!([2, 3].map(|seq| sent(&bench, "both", seq, "model")), [json!("m-2"), json!("m-2")]);
}

/// Regression: a request with half a surrogate pair, as clients send that cut a text inside an emoji, went on with the
/// recorded model, and the fork passed.
#[test]
fn fork_reports_requests_that_it_cannot_edit() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let program = "import os, urllib.request as r\n\
        for text in ('hi', 'cut \\\\ud83d'):\n\
        \x20   body = ('{\"model\":\"m-1\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}' % text).encode()\n\
        \x20   head = {'content-type': 'application/json'}\n\
        \x20   r.urlopen(r.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body, head)).read()";
    let mut command =
        bench.command(["record", "--run", "r", "--upstream", &upstream.url, "--", "python3", "-c", program]);
    command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let done = ProcessResult::from_output(command.output().unwrap());
    assert!(done.stderr.contains("recorded 2 requests into r"), "{done:?}");
    let mut command = bench.command(["fork", "r@1", "x", "--model", "m-2", "--upstream", &upstream.url]);
    command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let forked = ProcessResult::from_output(command.output().unwrap());
    assert_eq!(forked.code, 3, "{forked:?}");
    says(&forked, &["NOT EDITED: 1 request cannot be read as JSON"]);
}

/// Regression: an edit that matched no request, or no field of a request, was ignored without a message.
#[test]
fn fork_reports_an_edit_that_changed_nothing() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    for (name, option) in [("x", "--set"), ("y", "--set-all")] {
        let forked = bench.fork(&["r@2", name, option, "$.messages[7].content=x"], &upstream.url);
        assert_eq!(forked.code, 3, "{forked:?}");
        says(&forked, &["NOT EDITED", option, "$.messages[7].content"]);
        // The recorded value: this passed as an edit, and an oracle graded it.
        let same = sent(&bench, "r", 2, "model").as_str().unwrap().to_owned();
        let forked =
            bench.fork(&["r@2", &format!("{name}-same"), option, &format!("$.model={same}")], &upstream.url);
        assert_eq!(forked.code, 3, "{forked:?}");
        says(&forked, &["NOT EDITED", "or it has the value already"]);
    }
    let refused = bench.fork(&["r@2", "z", "--set", "$.a=1", "--response", "x"], &upstream.url);
    assert_eq!(refused.code, 2, "{refused:?}");
}

/// A replaced answer whose request never came was dropped without a word: the call went live, the exit code was 0, and
/// an oracle gave its verdict on a fork without the edit.
#[test]
fn fork_reports_a_replaced_answer_whose_request_never_came() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let asked = upstream.asked();
    let answer = bench.write("answer.json", r#"{"id":"x","object":"chat.completion","choices":["swapped"]}"#);
    let agent = agent();
    let swapped = ["--response", answer.as_str(), "--", "python3", "-B", agent.as_str()];
    // Another request at the fork's point is a divergence, as before it. Only the recorded one after it goes on.
    let other = bench.fork(&[&["r@2", "other"], &swapped[..], &["changed", "2"]].concat(), &upstream.url);
    assert_eq!(other.code, 3, "{other:?}");
    says(&other, &["DIVERGED at step 2", "NOT EDITED: --response", "never came", "tail recorded 1"]);
    assert_eq!(upstream.asked(), asked + 1);
    // A program that ends before the point.
    let early = bench.fork(&[&["r@2", "early"], &swapped[..], &["first_of_changed"]].concat(), &upstream.url);
    assert_eq!(early.code, 3, "{early:?}");
    says(&early, &["NOT EDITED: --response", "prefix replayed 1, tail recorded 0"]);
    // Without a live call after the point, no key is needed.
    let swap = ["fork", "r@3", "last", "--response", &answer];
    let last = ProcessResult::from_output(
        bench.command(swap).env_remove("OPENAI_API_KEY").stdin(Stdio::null()).output().unwrap(),
    );
    assert_eq!(last.code, 0, "{last:?}");
    says(&last, &["prefix replayed 2, 1 answer replaced, tail recorded 0"]);
    assert_eq!(upstream.asked(), asked + 1);
}

/// Regression: two recordings of one program never have equal bytes, because ids, times and stream boundaries
/// differ. The comparison showed all of these differences, so the changed text was hard to find.
#[test]
fn diff_shows_meaning_before_bytes() {
    let bench = CliBench::new();
    let request = |text: &str, id: &str, city: &str| {
        let arguments = format!(r#"{{"city":"{city}","days":2}}"#);
        json!({ "model": "m", "messages": [
            { "role": "user", "content": text },
            { "role": "assistant", "tool_calls": [{ "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } }] },
            { "role": "tool", "tool_call_id": id, "content": "19 degrees" },
        ] })
        .to_string()
    };
    let answer = |id: &str, text: &str| {
        json!({ "id": id, "created": id.len(), "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }] }).to_string()
    };
    let stream = |id: &str, words: &[&str]| {
        let event = |word: &&str| {
            format!(
                "data: {}\n\n",
                json!({ "id": id, "choices": [{ "index": 0, "delta": { "content": word } }] })
            )
        };
        words.iter().map(event).collect::<String>() + "data: [DONE]\n\n"
    };
    let frames = |id: &str, city: &str, said: &str, words: &[&str]| {
        vec![
            exchange(CHAT, "application/json", &request("hi", id, "Rome"), &answer(id, "warm"), json!({})),
            exchange(CHAT, "text/event-stream", &request("hi", id, city), &stream(id, words), json!({})),
            exchange(CHAT, "application/json", &request("hi", id, "Rome"), &answer(id, said), json!({})),
        ]
    };
    bench.holds(vec![
        ("a", frames("call_1", "Rome", "it is warm", &["it is", " warm"])),
        ("same", frames("call_two", "Rome", "it is warm", &["it", " is", " warm"])),
        ("b", frames("call_3", "Paris", "it is cold", &["it is", " warm"])),
    ]);
    let same = bench.run("diff a same");
    let text = String::from_utf8(same.stdout).unwrap();
    assert_eq!(same.code, 3, "the bytes differ: {text}");
    assert!(text.contains("0 frames the same, 3 say the same in other bytes, 0 differ"), "{text}");
    assert!(!text.contains("message"), "{text}");

    let other = bench.run("diff a b");
    let text = String::from_utf8(other.stdout).unwrap();
    for line in [
        "b@2 beside a@2: request",
        "message 2, assistant tool call weather",
        r#"$.city: "Rome" -> "Paris""#,
        "b@3 beside a@3: answer",
        "assistant text",
        "it is warm",
        "it is cold",
        "0 frames the same, 1 says the same in other bytes, 2 differ",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(!text.contains("call_3"), "ids of calls are not shown: {text}");
    let lines: Vec<Value> = String::from_utf8(bench.run("diff a b --json").stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((&lines[0]["same"], &lines[0]["says_same"]), (&json!(false), &json!(true)));
    let difference = &lines[1]["differences"][0];
    assert_eq!(
        (&difference["in"], &difference["message"], &difference["kind"], &difference["name"]),
        (&json!("request"), &json!(2), &json!("tool call"), &json!("weather"))
    );
    assert_eq!(difference["paths"], json!([{ "path": "$.city", "a": "Rome", "b": "Paris" }]));
}

/// Role names of each provider, and one role that changes alone.
#[test]
fn diff_names_a_role_that_changed() {
    let bench = CliBench::new();
    for (path, before, after, line) in [
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "hi" }] }),
            json!({ "messages": [{ "role": "system", "content": "hi" }] }),
            "message 1, text: role user -> system",
        ),
        (
            "/v1/messages",
            json!({ "messages": [{ "role": "user", "content": "hi" }] }),
            json!({ "messages": [{ "role": "assistant", "content": [{ "type": "text", "text": "hi" }] }] }),
            "message 1, text: role user -> assistant",
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"n\":1}" }] }),
            json!({ "input": [{ "type": "function_call", "call_id": "2", "name": "f", "arguments": "{ \"n\": 2 }" }] }),
            "$.n: 1 -> 2",
        ),
        (
            "/v1beta/models/g:generateContent",
            json!({ "contents": [{ "role": "user", "parts": [{ "text": "a" }] }] }),
            json!({ "contents": [{ "role": "user", "parts": [{ "text": "b" }] }] }),
            "message 1, user text",
        ),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "a" }] }),
            json!({ "messages": [{ "role": "user", "content": "b" }] }),
            "message 1, user text",
        ),
    ] {
        let name = path.replace(['/', ':'], "-");
        let frame =
            |body: &Value| vec![exchange(path, "application/json", &body.to_string(), "{}", json!({}))];
        bench.holds(vec![(&format!("a{name}"), frame(&before)), (&format!("b{name}"), frame(&after))]);
        let text = String::from_utf8(bench.run(&format!("diff a{name} b{name}")).stdout).unwrap();
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
}

/// A frame that is not a model call is compared by bytes, and the first difference is shown.
#[test]
fn diff_shows_bytes_of_frames_without_meaning() {
    let bench = CliBench::new();
    let tool = |text: &str| vec![Frame::new(Component::Tool, "same", text)];
    bench.holds(vec![("a", tool("one two")), ("b", tool("one too"))]);
    let done = bench.run("diff a b");
    let text = String::from_utf8(done.stdout).unwrap();
    for line in
        ["b@1 beside a@1: answer", "from byte 5", "one two", "one too", "0 frames the same, 1 differs"]
    {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
}

/// A store that records any framework must pull in none of them, nor a provider's SDK.
#[test]
fn no_dependency_is_a_framework_or_provider_sdk() {
    let lock = include_str!("../../../Cargo.lock");
    let names: Vec<&str> = lock.lines().filter_map(|line| line.strip_prefix("name = \"")).collect();
    assert!(names.len() > 50, "the lock file was not read: {}", names.len());
    let foreign =
        ["openai", "anthropic", "langchain", "langgraph", "bedrock", "genai", "llm-chain", "rig-core"];
    let found: Vec<&&str> = names
        .iter()
        .filter(|name| foreign.iter().any(|sdk| name.trim_end_matches('"').contains(sdk)))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
