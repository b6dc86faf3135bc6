//! Requests that `blame` refuses before anything runs.

use std::process::Stdio;

use annals::{Component, Frame, RunSpec, Status, Store};

use super::{StepUpstream, agent};
use crate::CliBench;

#[test]
fn unusable_requests_are_refused_before_anything_runs() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let good = StepUpstream::with_fault(9);
    assert_eq!(bench.record_steps(&good, "good", &["3"]).code, 0);
    bench.pipe("import --format chat --status-from reward -", crate::LINES.as_bytes()).ok();
    let asked = upstream.asked();
    let refused = |args: &[&str], words: &str| {
        let error = bench.blame_command(args).failed(2);
        assert!(error.contains(words), "{args:?}: {error}");
    };
    refused(&["blame", "good"], "the oracle calls run \"good\" passed");
    refused(&["blame", "r", "--budget", "0"], "a budget of 0 pays for no call");
    refused(&["blame", "r.tape"], "is a tape");
    refused(&["blame", "b"], "no program was recorded as run `b`");
    refused(&["blame", "r", "--oracle", "guess"], "is no oracle");
    refused(&["blame", "r", "--oracle", "run:nobody"], "there is no run");
    refused(&["blame", "r", "--with", "magic"], "is no perturbation");
    refused(&["blame", "r", "--steps", "7..9"], "no step lies in 7..9");
    refused(
        &["blame", "r", "--oracle", "cmd:kill -9 $$"],
        "cannot grade run \"r\" itself: the oracle crashed",
    );
    refused(&["blame", "r", "--oracle", "cmd:echo what >&2; exit 9"], "the oracle ended with 9: what");
    bench.blame_command(&["blame", "nobody"]).failed(4);
    bench.blame_command(&["blame", "r", "--resume"]).failed(4);
    assert_eq!((upstream.asked(), bench.run("runs --json --blame-forks").json().len()), (asked, 4));
}

#[test]
fn malformed_options_are_refused_with_their_form() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let asked = upstream.asked();
    for (options, words) in [
        (&["--k", "0"][..], "0 is not in 1..=10000"),
        (&["--base", "2"], "2 is not in 3..=1000"),
        (&["--jobs", "0"], "0 is not in 1..=256"),
        (&["--budget", "nothing"], "invalid value 'nothing'"),
        (&["--budget=-1"], "a budget of 0 pays for no call"),
        (&["--budget", "NaN"], "a budget of 0 pays for no call"),
        (&["--steps", "a..b"], "names no frames: write 3..9"),
        (&["--time-limit", "soon"], "--time-limit takes a time such as 30s"),
        (&["--oracle", "regex:("], "is no regular expression"),
        (&["--oracle", "json:$.status"], "has no value: write json:$.status=done"),
        (&["--oracle", "judge:ftp://x"], "no judge: "),
        (&["--with", "run:nobody"], "there is no run \"nobody\""),
        (&["--with", "drop", "--perturb", "cat"], "cannot be used with"),
        (&["--rules", "none.toml"], "none.toml"),
        (&["--estimate", "--resume"], "cannot be used with"),
        (&["--show", "--drop"], "cannot be used with"),
    ] {
        let done = bench.blame_command(&[&["blame", "r"], options].concat());
        assert!([2, 4].contains(&done.code), "{options:?}: {done:?}");
        assert!(done.stderr.contains(words), "{options:?}: {}", done.stderr);
        assert!(done.stderr.contains("hint: ") || done.stderr.contains("--help"), "{}", done.stderr);
    }
    assert_eq!((upstream.asked(), bench.run("runs --json --blame-forks").json().len()), (asked, 1));
}

/// Runs that hold no program that could run again.
#[test]
fn runs_that_cannot_run_again_are_refused() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(1));
    assert_eq!(bench.record_steps(&upstream, "r", &["1"]).code, 1);
    let store = Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    for (name, metadata) in [("traced", r#"{"ingested":{"from":"otlp"}}"#), ("ours", "{}")] {
        let run = space.begin_run(RunSpec::new(name).metadata(metadata)).unwrap();
        run.record(Frame::new(Component::Llm, "{}", "ok")).unwrap();
        run.end(Status::Failed).unwrap();
    }
    store.close().unwrap();
    bench.run("tape export r -o r.tape --as safe").ok();
    bench.run("--store t tape import r.tape --redacted").ok();
    for (args, words) in [
        (&["blame", "traced"][..], "run `traced` was ingested from traces"),
        (&["blame", "ours"], "no program was recorded as run `ours`"),
        (&["--store", "t", "blame", "r"], "run `r` was redacted by profile safe"),
        (&["blame", "r.tape"], "is a tape"),
    ] {
        let error = bench.blame_command(args).failed(2);
        assert!(error.contains(words), "{args:?}: {error}");
    }
    // A run without a call of a model, and one whose recorder was killed.
    assert_eq!(bench.blame_command(&["record", "--run", "none", "--", "false"]).code, 1);
    let error = bench.blame_command(&["blame", "none"]).failed(2);
    assert!(error.contains("has no call of a model, so it has no step to blame"), "{error}");
    let killing = format!("python3 -B {} 1; kill -9 $PPID; sleep 1", agent());
    let mut command =
        bench.command(["record", "--run", "killed", "--upstream", &upstream.url, "--", "sh", "-c", &killing]);
    command.env_remove("OPENAI_API_KEY").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(!command.status().unwrap().success());
    let done = bench.blame_command(&["blame", "killed"]);
    assert_eq!(done.code, 2, "{done:?}");
    // The kill may come before the call is stored.
    let words = ["the program of run \"killed\" has not ended", "run \"killed\" has no call of a model"];
    assert!(words.iter().any(|words| done.stderr.contains(words)), "{done:?}");
}

/// The directory is part of how the program ran.
#[test]
#[expect(clippy::disallowed_methods, reason = "a user removes a directory")]
fn run_whose_directory_is_gone_needs_another_command() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(1));
    std::fs::create_dir(bench.path("work")).unwrap();
    let store = bench.path(".annals");
    let agent = agent();
    let args = ["record", "--run", "r", "--upstream", &upstream.url, "--", "python3", "-B", &agent, "1"];
    let mut command = bench.command(args);
    command.env("ANNALS_STORE", &store).env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    command.current_dir(bench.path("work")).stdin(Stdio::null());
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    std::fs::remove_dir_all(bench.path("work")).unwrap();
    let error = bench.blame_command(&["blame", "r"]).failed(2);
    assert!(error.contains("which is gone"), "{error}");
    let done = bench.blame_command(&["blame", "r", "--k", "1", "--", "python3", "-B", &agent, "1"]);
    assert_eq!(done.code, 0, "{done:?}");
}
