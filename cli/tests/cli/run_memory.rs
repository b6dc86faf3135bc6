//! Memory of the outcome of recorded runs, found again by the run's question.

use serde_json::Value;

use crate::record::says;
use crate::upstream::{FakeUpstream, REJECTED};
use crate::{CliBench, ProcessResult};

const WHY: &str = "Why was application #42 rejected?";

impl CliBench {
    fn recorded_with(&self, upstream: &FakeUpstream, options: &[&str], doing: &[&str]) -> ProcessResult {
        let agent = crate::record::agent();
        let mut args = vec!["record", "--upstream", &upstream.url];
        args.extend(options);
        args.extend(["--", "python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").env_remove("ANTHROPIC_BASE_URL");
        let done = ProcessResult::from_output(command.stdin(std::process::Stdio::null()).output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(!done.stderr.contains("NOT REMEMBERED"), "{}", done.stderr);
        done
    }

    /// Hits of a recall, without the time that it took.
    fn why(&self, options: &[&str]) -> Vec<(String, String, Value)> {
        let done = self.run_args(["recall", WHY, "--top-k", "9", "--json"].iter().chain(options));
        let hits = done.json().into_iter().map(|mut hit| {
            let snapshot = hit["snapshot"].as_object_mut().unwrap();
            assert!(snapshot.insert("durationMs".to_owned(), 0.into()).unwrap().is_u64());
            let text = |key: &str| hit[key].as_str().unwrap().to_owned();
            (text("id"), text("identity"), hit["snapshot"].clone())
        });
        let mut hits: Vec<_> = hits.collect();
        hits.sort_by(|a, b| a.0.cmp(&b.0));
        hits
    }
}

fn snapshot() -> Value {
    serde_json::json!({
        "query": "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.",
        "finalContent": REJECTED,
        "iterations": 2,
        "decisions": [],
        "toolCalls": [{
            "name": "lookupCreditBureau",
            "args": { "applicationId": "42" },
            "resultPreview": "{ \"score\": 580, \"bureau\": \"experian\" }",
            "errored": false,
        }],
        "durationMs": 0,
        "tokenUsage": { "input": 1200, "output": 180 },
    })
}

#[test]
fn recall_answers_from_recordings_of_any_provider() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for (run, doing) in
        [("plain", &["loan"][..]), ("stream", &["loan", "stream"]), ("claude", &["loan_claude"])]
    {
        bench.recorded_with(&upstream, &["--run", run], doing);
    }
    let hits = bench.why(&[]);
    let wanted =
        ["claude", "plain", "stream"].map(|run| (format!("run-{run}"), "_/_/_".to_owned(), snapshot()));
    assert_eq!(hits, wanted);
    // The rendered text has the keys in the same order.
    let text = bench.run_args(["recall", WHY, "--projection", "full"]).text();
    let keys = ["query", "finalContent", "iterations", "decisions", "toolCalls", "durationMs", "tokenUsage"];
    let places: Vec<_> = keys.iter().map(|key| text.find(&format!("\n  \"{key}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
    let told = bench.run_args(["recall", WHY]).text();
    for part in [
        "- lookupCreditBureau({\"applicationId\":\"42\"}) \u{2192} { \"score\": 580",
        REJECTED,
        "decided at 20",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }

    // A replay leaves no entry, and neither does a fork, unless one is asked for.
    assert_eq!(bench.replay(&["plain"], &[]).code, 0);
    assert_eq!(bench.why(&[]).len(), 3);
    for fork in [&["fork", "plain@1", "unasked"][..], &["fork", "plain@1", "forked", "--remember"]] {
        let mut fork = bench.command(fork);
        let forked = ProcessResult::from_output(
            fork.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").output().unwrap(),
        );
        assert_eq!(forked.code, 0, "{forked:?}");
    }
    let ids: Vec<_> = bench.why(&[]).into_iter().map(|(id, _, of)| (id, of == snapshot())).collect();
    let all = ["claude", "forked", "plain", "stream"].map(|run| (format!("run-{run}"), true));
    assert_eq!(ids, all);

    // A forgotten run is not found.
    let forgotten = bench.run_args(["forget", "plain", "--why", "asked for"]);
    assert_eq!(forgotten.code, 0, "{forgotten:?}");
    assert_eq!(bench.why(&[]).len(), 3);
}

#[test]
fn record_options_set_identity_or_no_memory() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.recorded_with(
        &upstream,
        &["--run", "monday", "--tenant", "lending", "--conversation", "app-42"],
        &["loan"],
    );
    bench.recorded_with(&upstream, &["--run", "tagged", "--tag", "tenant=lending"], &["loan"]);
    bench.recorded_with(&upstream, &["--run", "off", "--no-memory"], &["loan"]);
    let wordless = bench.recorded_with(&upstream, &["--run", "wordless", "--allow-empty"], &["nothing"]);
    says(&wordless, &["recorded 0 requests into wordless"]);
    assert!(bench.why(&[]).is_empty());
    let friday = ["--tenant", "lending", "--conversation", "app-42-followup"];
    assert!(bench.why(&friday).is_empty());
    let found = bench.why(&[&friday[..], &["--across-conversations"]].concat());
    let found: Vec<_> = found.iter().map(|(id, whose, _)| (id.as_str(), whose.as_str())).collect();
    assert_eq!(found, [("run-monday", "lending/_/app-42"), ("run-tagged", "lending/_/_")]);
    assert!(bench.why(&["--tenant", "other", "--across-conversations"]).is_empty());
    // A program that fails also leaves an entry.
    let agent = crate::record::agent();
    let script = format!("python3 -B {agent} loan; exit 3");
    let args = ["record", "--run", "failed", "--upstream", &upstream.url, "--", "sh", "-c", &script];
    let done =
        ProcessResult::from_output(bench.command(args).env("OPENAI_API_KEY", "sk-x").output().unwrap());
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(bench.why(&[])[0].0, "run-failed");
}

/// One recording serves three uses: the decision and its evidence in a cheaper model's prompt, an audit, and
/// a line for training.
#[test]
fn one_recording_serves_prompt_audit_and_training() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.write("monday.json", crate::recall_interfaces::MONDAY);
    bench.run("remember monday.json --tenant lending --conversation app-42").ok();
    let annals = env!("CARGO_BIN_EXE_annals");
    let options = ["--run", "friday", "--tenant", "lending", "--conversation", "app-42-followup"];
    let doing = ["followup", annals, "--tenant", "lending", "--across-conversations"];
    bench.recorded_with(&upstream, &options, &doing);
    let store = annals::Store::open(bench.path(".annals")).unwrap();
    let request = store.namespace("default").unwrap().run("friday").unwrap().frame(1).unwrap().input;
    store.close().unwrap();
    let request: Value = serde_json::from_slice(&request).unwrap();
    let prompt = request["messages"][0]["content"].as_str().unwrap();
    assert_eq!(request["model"], "cheap-1");
    for part in [crate::recall_interfaces::DECISIONS, "\ndecided at 20"] {
        assert!(prompt.contains(part), "{prompt}");
    }

    // The replay for the audit, the recall and the line for training use only what was recorded.
    bench.recorded_with(&upstream, &["--run", "loan", "--tenant", "loans"], &["loan"]);
    let asked = upstream.asked();
    assert_eq!(bench.replay(&["loan"], &[]).code, 0);
    assert!(bench.run_args(["recall", WHY, "--tenant", "loans"]).text().contains(REJECTED));
    let [line] = bench.run("export-training --format sft --tenant loans").json().try_into().unwrap();
    assert_eq!(line, serde_json::json!({ "prompt": snapshot()["query"], "completion": REJECTED }));
    let steps =
        bench.run("export-training --format process-rl --tenant lending --conversation app-42").json();
    let steps: Vec<_> =
        steps.iter().map(|step| (&step["stageId"], &step["evidence"]["creditScore"])).collect();
    assert_eq!(steps, [(&"classify-risk".into(), &580.into()), (&"pick-reason".into(), &580.into())]);
    assert_eq!(bench.run("export-training --format dpo --tenant lending --across-conversations").text(), "");
    assert_eq!(bench.run("export-training --format sft --tenant other").text(), "");
    assert_eq!(bench.run("export-training").code, 2);
    assert_eq!(bench.run("export-training --format rlhf").code, 2);
    assert_eq!(upstream.asked(), asked, "the upstream got a new request");
}

/// Regression: each follow-up is stored, too, and has the same question as the next. The third follow-up got
/// the second's answer instead of the original decision.
#[test]
fn decision_ranks_before_answers_derived_from_it() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.recorded_with(
        &upstream,
        &["--run", "monday", "--tenant", "lending", "--conversation", "app-42"],
        &["loan"],
    );
    let annals = env!("CARGO_BIN_EXE_annals");
    for number in 1..5 {
        // The agent recalls across conversations without naming one.
        let doing = ["followup", annals, "--tenant", "lending", "--across-conversations"];
        let (run, whose) = (format!("friday{number}"), ["--tenant", "lending", "--conversation", "friday"]);
        let options = [&["--run", run.as_str()][..], &whose].concat();
        let told = String::from_utf8(bench.recorded_with(&upstream, &options, &doing).stdout).unwrap();
        assert!(told.starts_with("[Past run \u{b7} query: \"Should we approve loan #42?"), "{run}: {told}");
    }
    let options = ["--tenant", "lending", "--across-conversations"];
    assert_eq!(bench.why(&options).len(), 5);
    let best = bench.run_args(["recall", WHY, "--json"].iter().chain(&options)).json();
    assert_eq!(best[0]["id"], "run-monday");
    let entries = bench.run("scan --keyspace annals.memory --json").text();
    let derived = r#"\"derivedFrom\":[\"lending/_/app-42/run-monday\"]"#;
    assert_eq!(entries.matches(derived).count(), 4, "{entries}");
    // A forgotten decision is not found. Entries that quote it stay and name their source.
    bench.run_args(["forget", "monday", "--why", "asked for"]).ok();
    assert_eq!(bench.why(&options).iter().filter(|(id, ..)| id == "run-monday").count(), 0);
}

#[test]
fn daemon_remembers_runs_recorded_through_it() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let daemon = bench.serve(&[]);
    bench.recorded_with(&upstream, &["--run", "joined"], &["loan"]);
    let [(id, whose, of)] = bench.why(&[]).try_into().unwrap();
    assert_eq!((id.as_str(), whose.as_str(), of), ("run-joined", "_/_/_", snapshot()));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
}

/// Regression: a memory went with its run after seven days. Six months later the frames are gone and the decision is still
/// recalled, until its own lifetime ends or somebody forgets the run.
#[test]
fn memory_outlives_retention_until_forgotten_or_expired() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.recorded_with(&upstream, &["--run", "kept"], &["loan"]);
    bench.recorded_with(&upstream, &["--run", "half-a-year", "--memory-for", "180d"], &["loan"]);
    let swept = bench.run("retain --at +8d").text();
    assert!(swept.contains("dropped: 2 runs"), "{swept}");
    assert_eq!(bench.run("show kept").code, 4, "the frames are gone");
    let ids = || bench.why(&[]).into_iter().map(|(id, ..)| id).collect::<Vec<_>>();
    assert_eq!(ids(), ["run-half-a-year", "run-kept"]);
    bench.run("compact").ok();
    let dry = bench.run("retain --at +181d --dry-run").text();
    assert!(dry.contains("1 entry of memory"), "{dry}");
    assert_eq!(ids().len(), 2);
    bench.run("retain --at +181d").ok();
    assert_eq!(ids(), ["run-kept"]);
    assert_eq!(bench.run("forget kep --why asked").code, 4, "the whole name is needed");
    let forgotten = bench.run_args(["forget", "kept", "--why", "asked for"]).text();
    assert!(forgotten.contains("what was left of kept"), "{forgotten}");
    assert!(ids().is_empty());
    assert_eq!(bench.run("forget kept --why again").code, 4);
    let wrong = bench.run("record --memory-for soon -- true");
    assert!(wrong.code == 2 && wrong.stderr.contains("180d"), "{wrong:?}");
}

/// S1.28: a snapshot carries the run's commit log if it is asked for.
#[test]
fn with_commits_recall_shows_frames() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.recorded_with(&upstream, &["--run", "plain"], &["loan"]);
    let commits = || bench.run_args(["recall", WHY, "--projection", "commits"]).text();
    let plain = commits();
    assert!(plain.contains("(no commit log captured)") && !plain.contains("#1 llm"), "{plain}");
    bench.run_args(["forget", "plain", "--why", "replaced"]).ok();
    bench.recorded_with(&upstream, &["--run", "logged", "--with-commits"], &["loan"]);
    let logged = commits();
    assert!(logged.contains("\n#1 llm ") && logged.contains("\n#2 llm "), "{logged}");
    assert!(!logged.contains("(no commit log captured)"), "{logged}");
    assert_eq!(bench.run("record --no-memory --with-commits -- true").code, 2);
}

/// A run that the cache answered is left out of memory. Regression: nobody was told.
#[test]
fn record_says_that_a_cached_run_is_not_remembered() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let first = bench.recorded_with(&upstream, &["--run", "first", "--cache", "both"], &["loan"]);
    assert!(!first.stderr.contains("not remembered"), "{}", first.stderr);
    let cached = bench.recorded_with(&upstream, &["--run", "again", "--cache", "both"], &["loan"]);
    assert!(cached.stderr.contains("not remembered: the cache answered"), "{}", cached.stderr);
    let kept = bench.recorded_with(&upstream, &["--run", "kept", "--cache", "both", "--remember"], &["loan"]);
    assert!(!kept.stderr.contains("not remembered"), "{}", kept.stderr);
    let ids: Vec<_> = bench.why(&[]).into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["run-first", "run-kept"]);
}
