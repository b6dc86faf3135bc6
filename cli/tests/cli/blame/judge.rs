//! What a model as judge says, and how often it is asked.

use serde_json::json;

use super::{StepUpstream, message, row_of};
use crate::CliBench;
use crate::record::says;

/// A judge that reads the agent's output.
fn fair_judge() -> StepUpstream {
    StepUpstream::start(|_, _, request| {
        let is_bad = request["messages"].to_string().contains("bad");
        message(if is_bad { "FAIL: the status is bad" } else { "PASS: the status is good" })
    })
}

/// The judge's words, which may quote the output, were kept in a keyspace of their own and outlived the run.
#[test]
fn verdicts_of_the_judge_are_one_word_and_go_with_the_run() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["2"]).code, 1);
    let judge = fair_judge();
    let oracle = format!("judge:{}", judge.url);
    let blame = ["blame", "r", "--k", "2", "--jobs", "1", "--oracle", &oracle];
    let estimated = bench.blame_command(&[&blame[..], &["--estimate"]].concat());
    says(&estimated, &["plan: ", "15 questions to the judge, at most $0."]);
    assert_eq!(judge.asked(), 0, "an estimate spends nothing");
    let done = bench.blame_command(&blame);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(bench.blame_rows("r")[0]["flips"], 2);
    assert_eq!(judge.asked(), 2, "two outcomes, each asked about once");
    let kept = bench.run("scan --keyspace annals.verdicts --json").json();
    let mut words: Vec<&str> = kept.iter().map(|pair| pair["value"].as_str().unwrap()).collect();
    words.sort_unstable();
    assert_eq!(words, ["FAIL", "PASS"]);
    assert_eq!(bench.run("blame r --drop").code, 0);
    bench.run("forget r --why private").text();
    assert_eq!(bench.run("scan --keyspace annals.verdicts --json").json().len(), 0);
}

/// Nothing is asked twice: not at the resumption of a blame, and not by a blame that is done again.
#[test]
fn verdicts_are_used_again_when_a_blame_is_resumed() {
    let (bench, upstream, judge) = (CliBench::new(), StepUpstream::with_fault(2), fair_judge());
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let oracle = format!("judge:{}", judge.url);
    let blame = ["blame", "r", "--k", "3", "--jobs", "1", "--oracle", &oracle];
    let done = bench.blame_command(&[&blame[..], &["--budget", "0.00003"]].concat());
    assert_eq!(done.code, 1, "{done:?}");
    says(&done, &["the budget ended the blame of `r`"]);
    let asked = judge.asked();
    assert!((1..=2).contains(&asked), "{asked}");
    let done = bench.blame_command(&["blame", "r", "--resume", "--budget", "5"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(bench.run("runs --json --tag annals.blame=r").json().len(), 12);
    assert_eq!(row_of(&bench.blame_rows("r"), 2)["flips"], 3);
    assert_eq!(judge.asked(), 2, "a failed and a passed output, each asked about once");
}

/// Neither the plan nor the budget counted what a judge costs: a blame could cost a multiple of its budget.
#[test]
fn questions_to_the_judge_count_in_plan_and_budget() {
    let (bench, upstream, judge) = (CliBench::new(), StepUpstream::with_fault(2), fair_judge());
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let oracle = format!("judge:{}", judge.url);
    let price = "[[price]]\nmodel = \"gpt-4o-mini\"\ninput = 1000\noutput = 1000\n";
    let rules = bench.write("rules.toml", price);
    let with = |budget: &str| {
        let blame = ["blame", "r", "--k", "3", "--jobs", "1", "--oracle", &oracle];
        bench.blame_command(&[&blame[..], &["--rules", &rules, "--budget", budget]].concat())
    };
    // One question is expected to cost about seven cents.
    let refused = with("0.01");
    assert_eq!(refused.code, 2, "{refused:?}");
    says(&refused, &["error: the budget does not pay for one question to the judge"]);
    assert_eq!(judge.asked(), 0);
    let ended = with("0.2");
    assert_eq!(ended.code, 1, "{ended:?}");
    says(&ended, &["the budget ended the blame of `r`", "to the judge, $0."]);
    let whole = bench.blame_command(&["blame", "r", "--resume", "--rules", &rules, "--budget", "50"]);
    assert_eq!(whole.code, 0, "{whole:?}");
    let spent = &bench.stored_blame("r")["spent"];
    assert_eq!(spent["questions"], judge.asked(), "{spent}");
    assert!(spent["dollars"].as_f64().unwrap() > 0.01, "{spent}");
}

/// A judge that says neither, or both, or does not answer gives no verdict: never "no flip".
#[test]
fn forks_without_a_verdict_of_the_judge_are_undefined() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let by_passed = |said: serde_json::Value| {
        StepUpstream::start(move |_, _, request| {
            let is_bad = request["messages"].to_string().contains("bad");
            if is_bad { message("FAIL") } else { said.clone() }
        })
    };
    for (said, why) in [
        (message("PASS or FAIL, who knows"), "the judge said neither PASS nor FAIL"),
        (message(""), "the judge said neither PASS nor FAIL"),
        (json!({ "status": 500, "content": "PASS" }), "the judge did not answer"),
    ] {
        let judge = by_passed(said);
        let oracle = format!("judge:{}", judge.url);
        let done = bench.blame_command(&["blame", "r", "--k", "2", "--no-early-stop", "--oracle", &oracle]);
        assert_eq!(done.code, 0, "{done:?}");
        let rows = bench.blame_rows("r");
        let row = row_of(&rows, 2);
        let counts = (&row["flips"], &row["valid"], &row["undefined"], &row["trustworthy"]);
        assert_eq!(counts, (&json!(0), &json!(0), &json!(2), &json!(false)), "{row}");
        assert!(row["undefined_reasons"][0][0].as_str().unwrap().contains(why), "{row}");
        assert_eq!(row_of(&rows, 3)["valid"], 2, "{rows:?}");
    }
    // A judge that cannot grade the run itself ends the blame before anything is spent.
    let (asked, judge) = (upstream.asked(), StepUpstream::start(|_, _, _| message("no idea")));
    let refused = bench.blame_command(&["blame", "r", "--oracle", &format!("judge:{}", judge.url)]);
    assert_eq!(refused.code, 2, "{refused:?}");
    says(&refused, &["cannot grade run \"r\" itself: the judge said neither"]);
    assert_eq!(upstream.asked(), asked);
}

/// A judge of `blame` and one of `suspect` have the same settings and keep their verdicts in the same place.
#[test]
fn blame_and_suspect_share_the_settings_of_a_judge() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["2"]).code, 1);
    let judge = StepUpstream::start(|_, _, request| match request["model"].as_str() {
        Some("our-judge") => message("FAIL"),
        _ => message("PASS"),
    });
    let oracle = format!("judge:{}", judge.url);
    let blame = ["blame", "r", "--k", "1", "--coalitions", "0", "--oracle", &oracle];
    for args in [&blame[..], &["suspect", "r", "--judge", &judge.url]] {
        let asked = judge.asked();
        let mut command = bench.command(args);
        command.env("ANNALS_JUDGE_MODEL", "our-judge").env_remove("OPENAI_API_KEY");
        command.stdin(std::process::Stdio::null());
        let done = crate::ProcessResult::from_output(command.output().unwrap());
        assert!(judge.asked() > asked, "{args:?}: {done:?}");
        // A key must not travel unencrypted: both refuse before they ask.
        for url in ["http://judge.example/v1", "nonsense"] {
            let args: Vec<String> = args.iter().map(|word| word.replace(&judge.url, url)).collect();
            let mut command = bench.command(&args);
            let done =
                command.env("ANNALS_JUDGE_KEY", "k").stdin(std::process::Stdio::null()).output().unwrap();
            assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        }
    }
}
