use super::*;

fn outcome(code: u8, output: &str) -> RunOutcome {
    RunOutcome { code, signal: None, stopped: None, output: output.into(), stderr: Vec::new(), run: None }
}

fn oracle(text: &str) -> Oracle {
    Oracle::parse(text, |_| Ok(outcome(0, "as it should be\n"))).unwrap()
}

#[test]
fn oracles_grade_by_code_output_and_program() {
    use Verdict::{Fail, Pass};
    let (good, bad) =
        (outcome(0, "{\"status\":\"done\",\"n\":[7]}"), outcome(1, "log\n{\"status\":\"lost\"}\n"));
    for text in ["exit", "regex:done", "json:$.status=done", "json:$.n[0]=7", "cmd:grep -q done"] {
        assert_eq!((oracle(text).grade(&good), text), (Pass, text));
        assert_eq!((oracle(text).grade(&bad), text), (Fail, text));
    }
    assert_eq!(oracle("run:ref").grade(&outcome(0, "as it should be\n")), Pass);
    assert_eq!(oracle("run:ref").grade(&outcome(3, "as it should be\n")), Fail);
    assert_eq!(oracle("cmd:test $ANNALS_EXIT_CODE = 1").grade(&bad), Pass);
}

#[test]
fn ungradable_outcomes_are_undefined_with_a_reason() {
    let why = |oracle: &Oracle, of: &RunOutcome| match oracle.grade_fork(of, &outcome(1, "")) {
        Verdict::Undefined(why) => why,
        graded => panic!("{graded:?}"),
    };
    assert!(why(&oracle("json:$.a=1"), &outcome(0, "no json")).contains("no JSON"));
    assert!(
        why(&oracle("cmd:echo nonsense >&2; exit 7"), &outcome(0, "")).contains("ended with 7: nonsense")
    );
    assert!(why(&oracle("cmd:kill -9 $$"), &outcome(0, "")).contains("crashed"));
    assert!(why(&oracle("exit"), &outcome(2, "")).contains("it ended with 2"));
    let killed = RunOutcome { signal: Some(11), ..outcome(139, "") };
    assert!(why(&oracle("exit"), &killed).contains("signal 11"));
    let hung = RunOutcome { stopped: Some("time limit".to_owned()), ..outcome(137, "") };
    assert!(why(&oracle("regex:x"), &hung).contains("time limit"));
    let raised = "Traceback (most recent call last):\n  File \"a.py\"\nValueError: no\n";
    let raised = RunOutcome { stderr: raised.into(), ..outcome(1, "") };
    assert!(why(&oracle("exit"), &raised).contains("ValueError: no"));
    // The recorded run raised the same way: then that is the failure to explain.
    assert_eq!(oracle("exit").grade_fork(&raised, &raised), Verdict::Fail);
}

#[test]
fn malformed_oracles_are_refused_with_the_form() {
    for text in ["", "exits", "regex:(", "json:$.a", "cmd:", "run:", "judge:nowhere", "regex:"] {
        let refused = Oracle::parse(text, |_| Err("no such run".to_owned())).unwrap_err();
        assert!(!refused.is_empty(), "{text}");
    }
    assert!(Oracle::parse("guess", |_| Err(String::new())).unwrap_err().contains("regex:PATTERN"));
}

/// A process that the shell left behind held its standard error, and the grading waited for it for ever.
#[test]
fn process_left_behind_by_an_oracle_is_ended() {
    assert_eq!(oracle("cmd:sleep 100000 & exit 1").grade(&outcome(0, "")), Verdict::Fail);
}
