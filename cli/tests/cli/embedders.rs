//! `annals remember`, `annals recall` and recordings with an HTTP embedder that environment variables select.

use crate::serve::http;
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

const LOAN: &str =
    r##"{"query":"Should we approve loan #42? Credit: 580.","finalContent":"Application #42: REJECTED."}"##;
const WHY: &str = "Should we approve loan #42?";

impl CliBench {
    /// Runs a command with the embedder of this name at this address.
    fn with_embedder(&self, url: &str, model: &str, line: &[&str]) -> ProcessResult {
        let mut command = self.command(line);
        command.env("ANNALS_EMBEDDINGS_URL", format!("{url}/v1")).env("ANNALS_EMBEDDINGS_MODEL", model);
        ProcessResult::from_output(command.stdin(std::process::Stdio::null()).output().unwrap())
    }
}

#[test]
fn http_embedder_entry_is_found_by_that_embedder_only() {
    let (bench, far) = (CliBench::new(), FakeUpstream::start());
    bench.write("loan.json", LOAN);
    let remember = ["remember", "loan.json", "--tenant", "far"];
    let recall = ["recall", WHY, "--tenant", "far"];
    assert_eq!(bench.with_embedder(&far.url, "letters", &remember).text(), "remembered snap-1 in far/_/_\n");
    assert_eq!(far.asked(), 1);
    let told = bench.with_embedder(&far.url, "letters", &recall).text();
    assert!(
        told.starts_with("[Past run \u{b7} query: \"Should we approve loan #42? Credit: 580.\""),
        "{told}"
    );
    let entry = bench.run("scan --keyspace annals.memory --json").json().remove(0)["value"].to_string();
    assert!(entry.contains(r#"\"embeddingModel\":\"letters\""#), "{entry}");
    // Entries below the embedder's threshold of 0.7 are not returned.
    assert_eq!(bench.with_embedder(&far.url, "letters", &["recall", "ZZZZ", "--tenant", "far"]).text(), "");
    // A text that was embedded before is not sent again.
    let before = far.asked();
    bench.with_embedder(&far.url, "letters", &remember).ok();
    assert_eq!(far.asked(), before);

    // If the memory uses another embedder, the error names both.
    let both = |refused: String, one: &str, other: &str| {
        for name in [one, other] {
            assert!(refused.contains(&format!("{name:?}")), "{refused}");
        }
    };
    both(bench.run_args(recall).failed(1), "annals-words-1", "letters");
    both(bench.with_embedder(&far.url, "other", &recall).failed(1), "other", "letters");
    bench.run("remember loan.json --tenant near").ok();
    let near = ["recall", WHY, "--tenant", "near"];
    both(bench.with_embedder(&far.url, "letters", &near).failed(1), "letters", "annals-words-1");
    assert_ne!(bench.run_args(near).text(), "");

    // A daemon uses the embedder of its own environment; the error says so.
    let daemon = bench.serve(&[]);
    let refused = bench.with_embedder(&far.url, "letters", &remember).failed(1);
    assert!(!refused.contains("ERR"), "{refused}");
    both(refused, "annals-words-1", "letters");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
}

#[test]
fn daemon_uses_http_embedder_and_names_both_on_mismatch() {
    let (bench, far) = (CliBench::new(), FakeUpstream::start());
    let mut command = bench.command(["serve", "--http", "127.0.0.1:0", "--no-auth"]);
    command.env("ANNALS_EMBEDDINGS_URL", format!("{}/v1", far.url)).env("ANNALS_EMBEDDINGS_MODEL", "letters");
    let daemon = bench.spawn_daemon(command);
    let put = |embedder: &str| {
        let body =
            format!("{{\"entries\":[{LOAN}],\"embed\":true,\"embedder\":\"{embedder}\",\"tenant\":\"far\"}}");
        http(&daemon, "POST /v1/memory/entries", "", &body)
    };
    let ask = |embedder: &str, question: &str| {
        let body = format!("{{\"question\":\"{question}\",\"embedder\":\"{embedder}\",\"tenant\":\"far\"}}");
        http(&daemon, "POST /v1/memory/search", "", &body)
    };
    let refused = |(status, body): (u16, String), other: &str| {
        assert!(status >= 400 && body.contains("letters") && body.contains(other), "{status}: {body}");
    };
    refused(put("annals-words-1"), "annals-words-1");
    assert_eq!(far.asked(), 0);
    assert_eq!(put("letters"), (200, "{\"ids\":[\"snap-1\"]}\n".to_owned()));
    let (status, body) = ask("letters", WHY);
    assert!(status == 200 && body.contains("Application #42: REJECTED."), "{status}: {body}");
    let (status, body) = ask("letters", "ZZZZ");
    assert!(status == 200 && body.contains("\"hits\":[]"), "{status}: {body}");
    refused(ask("annals-words-1", WHY), "annals-words-1");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
}

#[test]
fn recording_is_remembered_with_configured_embedder() {
    let (bench, far) = (CliBench::new(), FakeUpstream::start());
    let agent = crate::record::agent();
    let record = || {
        let line = ["record", "--upstream", &far.url, "--", "python3", "-B", &agent, "loan"];
        let mut command = bench.command(line);
        command.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL");
        command
    };
    let mut command = record();
    command.env("ANNALS_EMBEDDINGS_URL", format!("{}/v1", far.url)).env("ANNALS_EMBEDDINGS_MODEL", "letters");
    let done = ProcessResult::from_output(command.stdin(std::process::Stdio::null()).output().unwrap());
    assert!(done.code == 0 && !done.stderr.contains("NOT REMEMBERED"), "{done:?}");
    let told = bench.with_embedder(&far.url, "letters", &["recall", WHY]).text();
    assert!(told.contains("Final answer: Application #42: REJECTED."), "{told}");
    let by_meaning = ["search", "--meaning", WHY];
    let found = bench.with_embedder(&far.url, "letters", &by_meaning).text();
    assert!(found.contains("\n    > Application #42: REJECTED."), "{found}");
    for refused in [&["recall", WHY][..], &by_meaning] {
        let refused = bench.run_args(refused).failed(1);
        assert!(refused.contains("\"letters\"") && refused.contains("\"annals-words-1\""), "{refused}");
    }

    // A second run, which the built-in embedder remembers. Each search found one run, and did not say that it
    // had not compared the other one.
    assert!(record().stdin(std::process::Stdio::null()).output().unwrap().status.success());
    let far_only = bench.with_embedder(&far.url, "letters", &by_meaning);
    let near_only = bench.run_args(by_meaning);
    for (found, used, other) in
        [(far_only, "letters", "annals-words-1"), (near_only, "annals-words-1", "letters")]
    {
        let note = format!("memory of other embedders was not compared: {other} (this search: {used})");
        assert!(found.code == 0 && found.stderr.contains(&note), "{found:?}");
        assert_eq!(String::from_utf8(found.stdout).unwrap().matches("    > ").count(), 1);
    }
}

#[test]
fn incomplete_embedder_is_refused_and_stores_nothing() {
    let bench = CliBench::new();
    bench.run("init").ok();
    bench.write("loan.json", LOAN);
    for (url, model, why) in [
        ("http://127.0.0.1:1", "", "ANNALS_EMBEDDINGS_MODEL is not set"),
        ("ftp://127.0.0.1", "m", "must begin with http:// or https://"),
        ("http://127.0.0.1:1", "annals-words-1", "built-in"),
    ] {
        for line in [&["remember", "loan.json"][..], &["recall", WHY]] {
            let refused = bench.with_embedder(url, model, line).failed(1);
            assert!(refused.contains(why), "{line:?}: {refused}");
        }
    }
    assert_eq!(bench.run("scan --keyspace annals.memory").text(), "");
}
