use super::agent::AgentState;
use super::faults::{CLASSES, work};
use super::report::{ClassResult, NegativeControl, ValidationReport, compare};
use crate::statistics::{Z_95, wilson};

/// A fault that does not change the agent's state would make every validation pass or fail by chance.
#[test]
fn each_fault_changes_the_state_at_each_position() {
    for class in CLASSES {
        let (right, faulty) = class.answers();
        for at in 0..6 {
            let with = |answer: &super::agent::ScriptedAnswer| {
                let mut answers: Vec<_> = (0..6).map(|_| work()).collect();
                answers[at] = answer.clone();
                AgentState::after(&answers)
            };
            assert_ne!(with(&right), with(&faulty), "{} at step {}", class.name(), at + 1);
        }
    }
}

fn report(hits: u32, negative_max: f64) -> ValidationReport {
    let interval = wilson(hits, 3, Z_95);
    let class = ClassResult { class: "a".to_owned(), hits, runs: 3, interval, missed: Vec::new() };
    let negative = NegativeControl { negative_max, crashed: 3, crashed_undefined: 3 };
    ValidationReport::new(3, vec![class], negative, 10, 10)
}

#[test]
fn check_reports_what_got_worse_only() {
    assert!(compare(&report(3, 0.0), &report(3, 0.0)).is_empty());
    assert!(compare(&report(3, 0.0), &report(2, 0.04)).is_empty());
    assert_eq!(compare(&report(2, 0.0), &report(3, 0.0)), ["a: top-1 was 1.00 and is 0.67"]);
    assert_eq!(compare(&report(3, 0.2), &report(3, 0.0)).len(), 1);
    let mut none = report(3, 0.0);
    none.classes.clear();
    assert_eq!(compare(&none, &report(3, 0.0)), ["a is no longer validated"]);
}

#[test]
fn a_flipping_negative_control_fails_the_validation() {
    assert!(report(3, 0.05).passed());
    assert!(!report(3, 0.06).passed());
    assert!(!report(2, 0.0).passed());
    let mut counted = report(3, 0.0);
    counted.negative.crashed_undefined = 2;
    assert!(!counted.passed(), "a crash of the agent is no outcome");
}

/// A cause that is called by a wrong name, or a bystander that is called a cause, fails the whole report.
#[test]
fn wrong_role_fails_the_report_of_competing_causes() {
    use super::competing::{CompetingCase, CompetingReport};
    use super::trial::BlamedTrial;
    use crate::ranking::tests::{document, with_coalitions};
    use crate::ranking::{Role, rows};
    let mut numbers = crate::statistics::SeededNumbers::new(1);
    let case =
        CompetingCase::of_seed(&mut numbers).into_iter().find(|case| case.name == "conjunction").unwrap();
    let [first, second] = [case.armed[0], case.armed[2]];
    let all: Vec<u32> = (1..=8).collect();
    let without =
        |held: &[u32]| -> Vec<u32> { all.iter().copied().filter(|step| !held.contains(step)).collect() };
    let halves = [first, second];
    // `first_alone`: what happens while only the first half is as recorded.
    let report = |first_alone: &'static str| {
        let steps: Vec<(u32, &str)> =
            all.iter().map(|step| (*step, if halves.contains(step) { "F" } else { "S" })).collect();
        let mut tried: Vec<(Vec<u32>, &str)> = vec![(all.clone(), "F"), (without(&halves), "S")];
        for step in &all {
            tried.push((vec![*step], if halves.contains(step) { "F" } else { "S" }));
            tried.push((without(&[*step]), if *step == first { first_alone } else { "F" }));
        }
        let tried: Vec<(&[u32], &str)> =
            tried.iter().map(|(steps, outcome)| (steps.as_slice(), *outcome)).collect();
        let document = with_coalitions(document("SSS", &steps), &tried);
        let mut report = CompetingReport::default();
        let rows = rows(&document);
        report.add(0, &case, &BlamedTrial { document, rows });
        report
    };
    assert!(report("F").passed(), "{:?}", report("F").wrong);
    let wrong = report("S");
    assert!(!wrong.passed());
    assert_eq!(wrong.causes["earlier half of a conjunction"], (0, 1));
    assert!(wrong.wrong[0].contains(&format!("{:?}", Role::Root)), "{:?}", wrong.wrong);
}
