//! Each perturbation, with a model whose answers show that it was the request that changed.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{StepUpstream, agent, message, row_of};
use crate::CliBench;

#[test]
fn other_perturbations_and_oracles_are_used() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let good = StepUpstream::with_fault(9);
    assert_eq!(bench.record_steps(&good, "good", &["3"]).code, 0);
    let by = |options: &[&str]| {
        let args = [&["blame", "r", "--k", "2"][..], options].concat();
        let done = bench.blame_command(&args);
        assert_eq!(done.code, 0, "{options:?}: {done:?}");
        let rows = bench.blame_rows("r");
        assert_eq!(
            (&rows[0]["step"], rows[0]["flips"].as_u64().unwrap() > 0),
            (&json!(2), true),
            "{options:?}"
        );
    };
    by(&["--with", "run:good", "--oracle", "json:$.status=good"]);
    by(&["--perturb", "sed s/WRONG/2/", "--oracle", "regex:good"]);
    by(&["--with", "model:other", "--oracle", "cmd:grep -q good"]);
    by(&["--oracle", "run:good", "--scratch", "--jobs", "2"]);
}

/// Flips of each step, in the order of steps.
fn flips(bench: &CliBench) -> Vec<u64> {
    let rows = bench.blame_rows("r");
    let mut steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    steps.sort_unstable();
    steps.iter().map(|step| row_of(&rows, *step)["flips"].as_u64().unwrap()).collect()
}

/// The model errs at step 2 whenever the newest message is there: only a request without it changes the outcome.
#[test]
fn dropped_message_is_missing_in_the_perturbed_request() {
    let upstream = StepUpstream::start(|step, _, request| {
        let newest = request["messages"].as_array().unwrap().last().unwrap();
        message(if step == 2 && newest["content"] == "go on" { "value WRONG" } else { "value" })
    });
    let bench = CliBench::new();
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "2"]).code, 0);
    assert_eq!(flips(&bench), [0, 0, 0], "to ask again changes nothing");
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "2", "--with", "drop"]).code, 0);
    assert_eq!(flips(&bench), [0, 2, 0]);
}

#[test]
fn other_model_is_asked_at_the_perturbed_step_only() {
    let models = Arc::new(Mutex::new(Vec::new()));
    let seen = models.clone();
    let upstream = StepUpstream::start(move |step, _, request| {
        let model = request["model"].as_str().unwrap().to_owned();
        let is_wrong = step == 2 && model != "better";
        seen.lock().unwrap().push((step, model));
        message(if is_wrong { "value WRONG" } else { "value" })
    });
    let bench = CliBench::new();
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    models.lock().unwrap().clear();
    let blame = ["blame", "r", "--k", "1", "--steps", "2", "--with", "model:better"];
    assert_eq!(bench.blame_command(&blame).code, 0);
    assert_eq!(flips(&bench), [1]);
    let asked = models.lock().unwrap().clone();
    assert_eq!(asked, [(2, "better".to_owned()), (3, "gpt-4o-mini".to_owned())]);
}

/// The model repeats what a tool said. Failed results reach it in the perturbed request and in all later ones, although
/// the program itself still sends what its tool returned.
#[test]
fn corrupted_tool_results_stay_corrupted_in_later_requests() {
    let requests = Arc::new(Mutex::new(Vec::<Value>::new()));
    let seen = requests.clone();
    let upstream = StepUpstream::start(move |step, _, request| {
        seen.lock().unwrap().push(request.clone());
        match step {
            1 => {
                json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "call_1", "type": "function",
                "function": { "name": "search", "arguments": "{}" } }] })
            }
            _ if request.to_string().contains("WRONG city") => message("it is the WRONG city"),
            _ => message("the tool failed"),
        }
    });
    let bench = CliBench::new();
    // This agent judges the last answer only.
    let script = std::fs::read_to_string(agent()).unwrap();
    let script = script.replace("\"WRONG\" in said", "\"WRONG\" in messages[-2][\"content\"]");
    let script = bench.write("last.py", script);
    let args = ["record", "--run", "r", "--upstream", &upstream.url, "--", "python3", "-B", &script, "3"];
    assert_eq!(bench.blame_command(&args).code, 1);
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "1"]).code, 0);
    assert_eq!(flips(&bench), [0, 0, 0]);
    requests.lock().unwrap().clear();
    let done = bench.blame_command(&["blame", "r", "--k", "2", "--with", "tool", "--no-early-stop"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(flips(&bench), [0, 2, 0]);
    let table = String::from_utf8(done.stdout).unwrap();
    assert_eq!(table.matches("not perturbed: its request brings no new tool result").count(), 2, "{table}");
    let asked = requests.lock().unwrap();
    assert_eq!(asked.len(), 4, "two forks of step 2, each with the last step");
    assert!(asked.iter().all(|request| request.to_string().contains("returned no usable result")));
}

/// Rows without a fork looked like rows without a flip, and the command succeeded.
#[test]
fn blame_that_perturbs_no_step_fails() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    for (option, value, why) in [
        ("--with", "tool", "not perturbed: its request brings no new tool result"),
        ("--perturb", "exit 7", "not perturbed: the command of --perturb ended with 7"),
        ("--perturb", "cat >&2", "not perturbed: the command of --perturb wrote no answer"),
    ] {
        let done = bench.blame_command(&["blame", "r", "--k", "1", option, value]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("no step of `r` could be perturbed"), "{done:?}");
        let table = String::from_utf8(done.stdout).unwrap();
        assert_eq!(table.matches(why).count(), 3, "{table}");
    }
}

/// The command knows the step and the attempt. An attempt for which it fails is undefined.
#[test]
fn perturbing_command_gets_step_and_attempt() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let command = "test $ANNALS_STEP.$ANNALS_ATTEMPT = 2.1 && exit 5; sed \"s/WRONG/$ANNALS_ATTEMPT/\"";
    let done = bench.blame_command(&["blame", "r", "--k", "3", "--no-early-stop", "--perturb", command]);
    assert_eq!(done.code, 0, "{done:?}");
    let rows = bench.blame_rows("r");
    let row = row_of(&rows, 2);
    assert_eq!((&row["flips"], &row["valid"], &row["undefined"]), (&json!(2), &json!(2), &json!(1)), "{row}");
    assert_eq!(row["undefined_reasons"][0][0], "the command of --perturb ended with 5");
    assert_eq!(row_of(&rows, 1)["valid"], 3);
}

/// The answers of a run with fewer steps end before the step.
#[test]
fn steps_that_the_other_run_lacks_are_not_perturbed() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(3));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    assert_eq!(bench.record_steps(&StepUpstream::with_fault(9), "short", &["2"]).code, 0);
    let done = bench.blame_command(&["blame", "r", "--k", "1", "--with", "run:short"]);
    assert_eq!(done.code, 0, "{done:?}");
    let rows = bench.blame_rows("r");
    assert_eq!(row_of(&rows, 3)["skipped"], "run short has only 2 steps");
    assert_eq!(row_of(&rows, 2)["valid"], 1);
}
