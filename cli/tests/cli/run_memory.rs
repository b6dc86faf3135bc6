//! What a recorded run came to, found again by its question.

use serde_json::Value;

use crate::record::says;
use crate::upstream::{REJECTED, Upstream};
use crate::{Bench, Done};

const WHY: &str = "Why was application #42 rejected?";

impl Bench {
    fn recorded_with(&self, upstream: &Upstream, options: &[&str], doing: &[&str]) -> Done {
        let agent = crate::record::agent();
        let mut args = vec!["record", "--upstream", &upstream.url];
        args.extend(options);
        args.extend(["--", "python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").env_remove("ANTHROPIC_BASE_URL");
        let done = Done::of(command.stdin(std::process::Stdio::null()).output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(!done.stderr.contains("NOT REMEMBERED"), "{}", done.stderr);
        done
    }

    /// What is found, without how long it took.
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
fn why_a_loan_was_rejected_is_answered_from_the_recording_of_any_provider() {
    let (bench, upstream) = (Bench::new(), Upstream::start());
    for (run, doing) in
        [("plain", &["loan"][..]), ("stream", &["loan", "stream"]), ("claude", &["loan_claude"])]
    {
        bench.recorded_with(&upstream, &["--run", run], doing);
    }
    let hits = bench.why(&[]);
    let wanted =
        ["claude", "plain", "stream"].map(|run| (format!("run-{run}"), "_/_/_".to_owned(), snapshot()));
    assert_eq!(hits, wanted);
    // By the keys' order, too.
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

    // A replay is no run; a fork is, and has its own.
    assert_eq!(bench.replay(&["plain"], &[]).code, 0);
    assert_eq!(bench.why(&[]).len(), 3);
    let mut fork = bench.command(["fork", "plain@1", "forked"]);
    let forked = Done::of(fork.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").output().unwrap());
    assert_eq!(forked.code, 0, "{forked:?}");
    let ids: Vec<_> = bench.why(&[]).into_iter().map(|(id, _, of)| (id, of == snapshot())).collect();
    let all = ["claude", "forked", "plain", "stream"].map(|run| (format!("run-{run}"), true));
    assert_eq!(ids, all);

    // What is forgotten is not told any more.
    let forgotten = bench.run_args(["forget", "plain", "--why", "asked for"]);
    assert_eq!(forgotten.code, 0, "{forgotten:?}");
    assert_eq!(bench.why(&[]).len(), 3);
}

#[test]
fn whose_memory_it_is_or_that_it_is_nobodys_is_said_when_recording() {
    let (bench, upstream) = (Bench::new(), Upstream::start());
    bench.recorded_with(
        &upstream,
        &["--run", "monday", "--tenant", "lending", "--conversation", "app-42"],
        &["loan"],
    );
    bench.recorded_with(&upstream, &["--run", "tagged", "--tag", "tenant=lending"], &["loan"]);
    bench.recorded_with(&upstream, &["--run", "off", "--no-memory"], &["loan"]);
    let wordless = bench.recorded_with(&upstream, &["--run", "wordless"], &["nothing"]);
    says(&wordless, &["NO MODEL CALL WAS CAPTURED"]);
    assert!(bench.why(&[]).is_empty());
    let friday = ["--tenant", "lending", "--conversation", "app-42-followup"];
    assert!(bench.why(&friday).is_empty());
    let found = bench.why(&[&friday[..], &["--across-conversations"]].concat());
    let found: Vec<_> = found.iter().map(|(id, whose, _)| (id.as_str(), whose.as_str())).collect();
    assert_eq!(found, [("run-monday", "lending/_/app-42"), ("run-tagged", "lending/_/_")]);
    assert!(bench.why(&["--tenant", "other", "--across-conversations"]).is_empty());
    // A program that ends badly has come to something, too.
    let agent = crate::record::agent();
    let script = format!("python3 -B {agent} loan; exit 3");
    let args = ["record", "--run", "failed", "--upstream", &upstream.url, "--", "sh", "-c", &script];
    let done = Done::of(bench.command(args).env("OPENAI_API_KEY", "sk-x").output().unwrap());
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(bench.why(&[])[0].0, "run-failed");
}

#[test]
fn a_run_that_is_recorded_through_a_daemon_is_remembered_by_it() {
    let (bench, upstream) = (Bench::new(), Upstream::start());
    let daemon = bench.serve(&[]);
    bench.recorded_with(&upstream, &["--run", "joined"], &["loan"]);
    let [(id, whose, of)] = bench.why(&[]).try_into().unwrap();
    assert_eq!((id.as_str(), whose.as_str(), of), ("run-joined", "_/_/_", snapshot()));
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().0, Some(0));
}
