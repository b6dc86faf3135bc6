//! Runs that continue after a recording ends: live after a divergence, from an edited fork, or with cached
//! answers.

use std::process::Stdio;

use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

impl CliBench {
    /// Replays a run and continues live with this upstream.
    pub(crate) fn replay_live(&self, args: &[&str], upstream: &str, doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut all = vec!["replay", "--on-divergence", "live", "--upstream", upstream];
        all.extend(args);
        all.extend(["--", "python3", "-B", &agent]);
        all.extend(doing);
        let mut command = self.command(all);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }

    /// Records this command of the agent with more options.
    pub(crate) fn record_with(&self, args: &[&str], upstream: &str, doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut all = vec!["record", "--upstream", upstream];
        all.extend(args);
        all.extend(["--", "python3", "-B", &agent]);
        all.extend(doing);
        let mut command = self.command(all);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }
}

fn text(done: &ProcessResult) -> String {
    String::from_utf8(done.stdout.clone()).unwrap()
}

#[test]
fn live_replay_records_a_run_that_replays_alone() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["noted", "1", "a,b,c"]).code, 0);
    let before = bench.run("show r --json").json();

    // If the recording answers every request, the replay does not go live and creates no run.
    let same = bench.replay_live(&["r"], &upstream.url, &["noted", "1", "a,b,c"]);
    assert_eq!(same.code, 0, "{same:?}");
    says(&same, &["exact 3 of 3"]);
    assert!(!same.stderr.contains("went on"), "{same:?}");
    assert_eq!((bench.run("runs --json").json().len(), upstream.asked()), (1, 3));

    // The second request differs. It and the third go to the upstream, although the recording has the third.
    let gone = bench.replay_live(&["r"], &upstream.url, &["noted", "1", "a,B,c"]);
    assert_eq!(gone.code, 3, "{gone:?}");
    says(&gone, &["DIVERGED", "went on live into r-live: 1 answered from r, then 2 requests recorded"]);
    assert_eq!(upstream.asked(), 5);
    assert!(text(&gone).contains("5: you said"), "{gone:?}");
    let alone = bench.replay(&["r-live"], &["noted", "1", "a,B,c"]);
    assert_eq!((alone.code, text(&alone)), (0, text(&gone)), "{}", alone.stderr);
    says(&alone, &["exact 3 of 3"]);
    assert_eq!(bench.run("verify r-live").code, 0);
    assert_eq!(bench.run("show r --json").json(), before, "the parent is unchanged");
    assert!(bench.run("runs").text().contains("r@2"));

    // Even the first request differs, and the default name is taken.
    let first = bench.replay_live(&["r"], &upstream.url, &["noted", "1", "A"]);
    says(&first, &["went on live into r-live-2: 0 answered from r, then 1 request recorded"]);
    assert_eq!(bench.replay(&["r-live-2"], &["noted", "1", "A"]).code, 0);
    // The program makes one request more than the recording has.
    let more = bench.replay_live(&["r", "--into", "longer"], &upstream.url, &["noted", "1", "a,b,c,d"]);
    says(&more, &["went on live into longer: 3 answered from r, then 1 request recorded"]);
    let alone = bench.replay(&["longer"], &["noted", "1", "a,b,c,d"]);
    assert_eq!((alone.code, text(&alone)), (0, text(&more)), "{}", alone.stderr);
    says(&alone, &["exact 4 of 4"]);
    // Regression: the new run was called longer-2. A script that then replayed `longer` got the old run.
    let asked = upstream.asked();
    let taken = bench.replay_live(&["r", "--into", "longer"], &upstream.url, &["noted", "1", "a,b,c,d"]);
    assert_eq!((taken.code, upstream.asked()), (125, asked), "{taken:?}");
    says(&taken, &["there is a run `longer`"]);
    // The beginning of another run's name is free.
    let free = bench.replay_live(&["r", "--into", "long"], &upstream.url, &["noted", "1", "a,b,c,d"]);
    says(&free, &["went on live into long: 3 answered from r"]);
}

/// A child shares its parent's frames only up to the first call that the program skipped or changed. Answers
/// after that are copied into the child, under the requests that the program made.
#[test]
fn live_run_has_reordered_and_rule_matched_answers() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["noted", "1", "a,b,c"]).code, 0);
    let gone = bench.replay_live(&["r"], &upstream.url, &["noted", "1", "c,x"]);
    says(&gone, &["1 answered from r, then 1 request recorded"]);
    let alone = bench.replay(&["r-live"], &["noted", "1", "c,x"]);
    assert_eq!((alone.code, text(&alone)), (0, text(&gone)), "{}", alone.stderr);
    says(&alone, &["exact 2 of 2"]);

    let ruled = ["r", "--into", "ruled", "--ignore", "$.note"];
    let gone = bench.replay_live(&ruled, &upstream.url, &["noted", "2", "a,b,x"]);
    says(&gone, &["same after the matcher 2", "2 answered from r, then 1 request recorded"]);
    // The child has the program's own requests, so its replay needs no rule.
    let alone = bench.replay(&["ruled"], &["noted", "2", "a,b,x"]);
    assert_eq!((alone.code, text(&alone)), (0, text(&gone)), "{}", alone.stderr);
    says(&alone, &["exact 3 of 3"]);
}

#[test]
fn replay_calls_no_upstream_unless_live() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["noted", "1", "a"]).code, 0);
    for args in
        [&["r", "--upstream", "http://127.0.0.1:1"][..], &["r", "--cache", "both"], &["r", "--into", "x"]]
    {
        let refused = bench.replay(args, &[]);
        assert_eq!(refused.code, 2, "{refused:?}");
        says(&refused, &["--on-divergence live"]);
    }
    let mut command = bench.command(["replay", "r", "--on-divergence", "live"]);
    command.env_remove("OPENAI_API_KEY").env_remove("AZURE_OPENAI_API_KEY").stdin(Stdio::null());
    let done = ProcessResult::from_output(command.output().unwrap());
    assert_eq!(done.code, 125, "{done:?}");
    says(&done, &["OPENAI_API_KEY", "is not set"]);
    assert_eq!(upstream.asked(), 1);
}

#[test]
fn cache_is_off_by_default() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let first = bench.record_with(&["--run", "a", "--cache", "write"], &upstream.url, &["noted", "1", "x,y"]);
    assert_eq!((first.code, upstream.asked()), (0, 2), "{first:?}");
    let other = bench.record_with(&["--run", "b"], &upstream.url, &["noted", "1", "x,y"]);
    assert_eq!((other.code, upstream.asked()), (0, 4), "{other:?}");
    assert_ne!(text(&other), text(&first));

    let taken =
        bench.record_with(&["--run", "c", "--cache", "both"], &upstream.url, &["noted", "1", "x,y,z"]);
    assert_eq!(upstream.asked(), 5, "{taken:?}");
    says(&taken, &["recorded 3 requests into c", "2 answers of earlier runs"]);
    assert!(text(&taken).starts_with(&text(&first)), "{taken:?}");
    let frame = &bench.run("show c@2 --json").json()[0];
    assert_eq!(
        (&frame["metadata"]["cached"]["run"], &frame["metadata"]["cached"]["seq"]),
        (&"a".into(), &2.into())
    );
    // A run with cached answers replays like any other run.
    let alone = bench.replay(&["c"], &[]);
    assert_eq!((alone.code, text(&alone)), (0, text(&taken)), "{}", alone.stderr);

    // `--reroll` requests one answer again, and later runs get the new answer. Run c had cached the last one.
    let again = bench.record_with(
        &["--run", "d", "--cache", "both", "--reroll", "2"],
        &upstream.url,
        &["noted", "1", "x,y,z"],
    );
    assert_eq!(upstream.asked(), 6, "{again:?}");
    assert!(text(&again).contains("6: you said"), "{again:?}");
    let later =
        bench.record_with(&["--run", "e", "--cache", "read"], &upstream.url, &["noted", "1", "x,y,z"]);
    assert_eq!((upstream.asked(), text(&later)), (6, text(&again)));
    // A different request and a different upstream do not use these cached answers.
    let other = bench.record_with(&["--run", "f", "--cache", "read"], &upstream.url, &["noted", "2", "x"]);
    assert_eq!((other.code, upstream.asked()), (0, 7));
    let elsewhere = FakeUpstream::start();
    bench.record_with(&["--run", "g", "--cache", "read"], &elsewhere.url, &["noted", "1", "x"]);
    assert_eq!(elsewhere.asked(), 1);
}

/// Regression: cached answers stayed when retention dropped their run, and so did the run's name. They had no
/// deadline either.
#[test]
fn cached_answer_ends_with_its_run_or_deadline() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let note = |run: &str, keep: &[&str], text: &str| {
        let options = [&["--run", run, "--cache", "both"][..], keep].concat();
        bench.record_with(&options, &upstream.url, &["noted", "1", text])
    };
    let noted = |bench: &CliBench| bench.run("scan --keyspace annals.answers --json").json().len() - 1;
    assert_eq!((note("a", &[], "x").code, upstream.asked(), noted(&bench)), (0, 1, 1));
    assert_eq!((note("b", &[], "x").code, upstream.asked(), noted(&bench)), (0, 1, 1));
    bench.write("all.toml", "[[rule]]\nname = \"all\"\nkeep = \"0d\"\n");
    bench.run("retain --policy all.toml").ok();
    assert_eq!(noted(&bench), 0, "a cached answer outlived its run");
    assert_eq!((note("c", &["--cache-for", "0s"], "x").code, upstream.asked(), noted(&bench)), (0, 2, 1));
    // The cached answer expired at once, so this run requests it again. The new deadline is far away.
    assert_eq!((note("d", &["--cache-for", "1y"], "x").code, upstream.asked(), noted(&bench)), (0, 3, 1));
    assert_eq!((note("e", &[], "x").code, upstream.asked(), noted(&bench)), (0, 3, 1));
    // A run that only reads the cache also removes expired answers, because they name a run.
    assert_eq!((note("f", &["--cache-for", "0s"], "y").code, noted(&bench)), (0, 2));
    let read = bench.record_with(&["--run", "g", "--cache", "read"], &upstream.url, &["noted", "1", "y"]);
    assert_eq!((read.code, upstream.asked(), noted(&bench)), (0, 5, 1));
    for options in [&["--cache", "read", "--cache-for", "1d"], &["--cache", "write", "--cache-for", "soon"]] {
        let refused = bench.record_with(options, &upstream.url, &["noted", "1", "x"]);
        assert!(refused.code != 0 && refused.stderr.contains("--cache-for"), "{}", refused.stderr);
    }
    assert_eq!(upstream.asked(), 5);
}

/// A cached answer is not used after another run took the name of its run.
#[test]
fn cached_answer_of_replaced_run_is_not_used() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.record_with(&["--run", "a", "--cache", "write"], &upstream.url, &["noted", "1", "x"]);
    let other = bench.replay(&["a"], &["noted", "1", "x"]);
    assert_eq!(other.code, 0);
    let frames = bench.run("replay a --json").json();
    let mut replaced = frames[0].clone();
    replaced["input"] = "{\"model\":\"m-1\",\"messages\":[]}".into();
    let file = bench.write("frames.jsonl", replaced.to_string());
    assert_eq!(bench.run(&format!("import {file} --format frames --replace")).code, 0);
    bench.record_with(&["--run", "b", "--cache", "read"], &upstream.url, &["noted", "1", "x"]);
    assert_eq!(upstream.asked(), 2);
}

#[test]
fn fork_edit_takes_answer_from_editor() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let fork = |editor: &str, name: &str| {
        let mut command = bench.command(["fork", "r@2", name, "--edit", "--upstream", &upstream.url]);
        command.env("OPENAI_API_KEY", "k").env_remove("VISUAL").env("EDITOR", editor).stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    };
    let edited = fork("sed -i s/you.said/EDITED/", "child");
    assert_eq!(edited.code, 0, "{edited:?}");
    assert!(text(&edited).contains("EDITED"), "{edited:?}");
    says(&edited, &["prefix replayed 1, 1 answer replaced, tail recorded 1, first different at frame 2"]);
    assert_eq!(bench.replay(&["child"], &[]).code, 0);
    for (editor, why) in [
        ("true", "nothing to fork"),
        ("false", "nothing was changed"),
        ("no-such-editor", "nothing was changed"),
    ] {
        let refused = fork(editor, "other");
        assert_ne!(refused.code, 0, "{refused:?}");
        says(&refused, &[why]);
    }
    assert_eq!(bench.run("runs --json").json().len(), 2);
}

#[test]
fn fork_tool_result_changes_all_later_requests() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["tools"]).code, 0);
    let cold = bench.write("cold", "-40 degrees");
    let forked = bench.fork(&["r@2", "child", "--tool-result", &cold], &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    assert!(text(&forked).contains("-40 degrees") && !text(&forked).contains("19 degrees"), "{forked:?}");
    for seq in [2, 3] {
        let frame = &bench.run(&format!("show child@{seq} --json")).json()[0];
        let input: serde_json::Value = serde_json::from_str(frame["input"].as_str().unwrap()).unwrap();
        assert_eq!(input["messages"][2]["content"], "-40 degrees", "frame {seq}");
    }
    let named = bench.fork(&["r@2", "named", "--tool-result", &format!("call_1={cold}")], &upstream.url);
    assert_eq!(named.code, 0, "{named:?}");
    // The first and the third request contain no new tool result.
    for at in ["r@1", "r@3"] {
        let refused = bench.fork(&[at, "x", "--tool-result", &cold], &upstream.url);
        assert_eq!(refused.code, 2, "{refused:?}");
        says(&refused, &["has no new tool result"]);
    }
}
