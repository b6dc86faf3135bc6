use super::agent::AgentState;
use super::faults::{CLASSES, work};
use super::report::{ClassResult, ValidationReport, compare};
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
    ValidationReport::new(3, vec![class], negative_max, 10, 10)
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
}
