use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::document::{
    BlameSettings, BlameState, CoalitionForks, Outcome, SampledOrder, Spent, StepForks, VERSION,
};
use crate::estimate::Estimate;
use crate::oracle::Verdict;

/// Forks that came out so: `F` flipped, `S` the same, `U` undefined. In lower case, the answer did not change.
fn forks(outcomes: &str) -> Vec<ForkRecord> {
    let of = |letter: char| {
        let outcome = match letter.to_ascii_uppercase() {
            'F' => Outcome::Flip,
            'S' => Outcome::Same,
            _ => Outcome::Undefined,
        };
        let why = (outcome == Outcome::Undefined).then(|| format!("reason {letter}"));
        let changed = Some(letter.is_uppercase());
        ForkRecord { run: "r-blame-1".to_owned(), outcome, why, calls: 1, changed }
    };
    outcomes.chars().map(of).collect()
}

pub(crate) fn document(base: &str, steps: &[(u32, &str)]) -> BlameDocument {
    let settings = BlameSettings {
        forks: 10,
        base: 3,
        oracle: "exit".to_owned(),
        perturbation: "resample".to_owned(),
        steps: steps.iter().map(|(step, _)| *step).collect(),
        stops_early: false,
        coalitions: 1,
        orders: 0,
        seed: 1,
        budget: None,
        command: Vec::new(),
        scratch: false,
    };
    let of = |(step, outcomes): &(u32, &str)| StepForks {
        step: *step,
        forks: forks(outcomes),
        ..StepForks::default()
    };
    BlameDocument {
        version: VERSION,
        run: "r".to_owned(),
        state: BlameState::Done,
        settings,
        parent: Verdict::Fail,
        estimate: Estimate::default(),
        spent: Spent::default(),
        base: forks(base),
        steps: steps.iter().map(of).collect(),
        coalitions: Vec::new(),
        orders: Vec::new(),
        next_fork: 1,
        reserved: BTreeMap::new(),
        unpaid: BTreeSet::new(),
    }
}

pub(crate) fn with_coalitions(mut document: BlameDocument, coalitions: &[(&[u32], &str)]) -> BlameDocument {
    document.coalitions = coalitions
        .iter()
        .map(|(steps, outcomes)| CoalitionForks { perturbed: steps.to_vec(), forks: forks(outcomes) })
        .collect();
    document
}

fn row(document: &BlameDocument, step: u32) -> StepRow {
    rows(document).into_iter().find(|row| row.step == step).unwrap()
}

/// An undefined fork is no fork without a flip: the rate and the interval are those of the valid forks.
#[test]
fn undefined_forks_count_as_neither_flip_nor_same() {
    let document = document("SSS", &[(1, "FUUS"), (2, "FUUU"), (3, ""), (4, "UU")]);
    let half = row(&document, 1);
    assert_eq!((half.flips, half.valid, half.undefined, half.flip_rate), (1, 2, 2, 0.5));
    assert_eq!(half.interval, crate::statistics::wilson(1, 2, crate::statistics::Z_95));
    assert!(half.trustworthy, "exactly half of the forks are valid");
    let few = row(&document, 2);
    assert_eq!((few.flips, few.valid, few.undefined, few.trustworthy), (1, 1, 3, false));
    let none = row(&document, 3);
    assert_eq!((none.valid, none.flip_rate, none.p_value, none.trustworthy), (0, 0.0, 1.0, false));
    let lost = row(&document, 4);
    assert_eq!((lost.interval.low, lost.interval.high, lost.trustworthy), (0.0, 1.0, false));
}

/// A program that flips by itself makes flips cheap: the test of each step uses the measured rate.
#[test]
fn measured_base_rate_is_part_of_every_test() {
    let steady = document("SSS", &[(1, "FFFFF"), (2, "SSSSS")]);
    assert_eq!(base_rate(&steady).used, BASE_RATE_MIN);
    assert!((row(&steady, 1).p_value - 0.05_f64.powi(5)).abs() < 1e-12);
    let flaky = document("FFFFSSSSSS", &[(1, "FFFFF"), (2, "SSSSS")]);
    let base = base_rate(&flaky);
    assert_eq!((base.flips, base.valid, base.measured, base.used), (4, 10, 0.4, 0.4));
    assert!((row(&flaky, 1).p_value - 0.4_f64.powi(5)).abs() < 1e-12);
    // Undefined re-runs say nothing about the rate.
    assert_eq!(base_rate(&document("FUUSSS", &[(1, "F")])).measured, 0.25);
    assert_eq!(base_rate(&document("UU", &[(1, "F")])).used, BASE_RATE_MIN);
}

/// Ten steps are ten chances for a false alarm: the value that is shown is adjusted for their number.
#[test]
fn q_values_are_adjusted_for_the_number_of_steps() {
    let one = document("SSS", &[(1, "FFS")]);
    let many: Vec<(u32, &str)> = (1..=10).map(|step| (step, if step == 1 { "FFS" } else { "SSS" })).collect();
    let many = document("SSS", &many);
    assert!((row(&one, 1).q_value - row(&one, 1).p_value).abs() < 1e-12);
    assert!((row(&many, 1).q_value - 10.0 * row(&many, 1).p_value).abs() < 1e-12);
}

#[test]
fn labels_begin_at_their_rates() {
    let document =
        document("SSS", &[(1, "FFFFFFFSSS"), (2, "FFFFFFSSSS"), (3, "FFFSSSSSSS"), (4, "FFSSSSSSSS")]);
    let label = |step| row(&document, step).label;
    assert_eq!([1, 2, 3, 4].map(label), ["decisive", "suggestive", "suggestive", "diffuse"]);
}

/// Steps 1 to 5: a root, both halves of nothing, an over-determining step, an echo, and a bystander.
#[test]
fn roles_follow_from_necessity_and_sufficiency() {
    let plain = document("SSS", &[(1, "F"), (2, "F"), (3, "S"), (4, "s"), (5, "S")]);
    let all: &[u32] = &[1, 2, 3, 4, 5];
    let coalitions: &[(&[u32], &str)] = &[
        (&[1], "F"),
        (&[2], "F"),
        (&[3], "S"),
        (&[4], "S"),
        (&[5], "S"),
        (all, "F"),
        // All but one: the failure stays while only this one is as recorded, so it is sufficient.
        (&[2, 3, 4, 5], "S"),
        (&[1, 3, 4, 5], "F"),
        (&[1, 2, 4, 5], "S"),
        (&[1, 2, 3, 5], "S"),
        (&[1, 2, 3, 4], "F"),
    ];
    let document = with_coalitions(plain.clone(), coalitions);
    let seen = |step| {
        let row = row(&document, step);
        (row.necessary, row.sufficient, row.role)
    };
    assert_eq!(seen(1), (Some(true), Some(true), Some(Role::Root)));
    assert_eq!(seen(2), (Some(true), Some(false), Some(Role::PartOfConjunction)));
    assert_eq!(seen(3), (Some(false), Some(true), Some(Role::OverDetermined)));
    assert_eq!(seen(4), (Some(false), Some(true), Some(Role::Echo)));
    assert_eq!(seen(5), (Some(false), Some(false), Some(Role::None)));
    // Of equal rates the root comes first, and a bystander last.
    let order: Vec<u32> = rows(&document).iter().map(|row| row.step).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
    // A failure that stays with all steps perturbed comes from none of them.
    let stays: Vec<(&[u32], &str)> =
        coalitions.iter().map(|of| if of.0 == all { (all, "S") } else { *of }).collect();
    let stays = with_coalitions(plain.clone(), &stays);
    assert!([1, 2, 3, 4, 5].iter().all(|step| row(&stays, *step).sufficient == Some(false)));
    // What was not tried, or could mostly not be graded, is unknown: no "no".
    assert_eq!((row(&plain, 1).necessary, row(&plain, 1).role), (None, None));
    let unknown: Vec<(&[u32], &str)> =
        coalitions.iter().map(|of| if of.0 == [1] { (of.0, "UUF") } else { *of }).collect();
    let unknown = row(&with_coalitions(plain, &unknown), 1);
    assert_eq!((unknown.necessary, unknown.sufficient, unknown.role), (None, Some(true), None));
}

#[test]
fn pairs_need_a_coalition_of_their_own() {
    let three = document("SSS", &[(1, "F"), (2, "F"), (3, "S")]);
    let halves: Vec<(&[u32], &str)> = vec![
        (&[1], "F"),
        (&[2], "F"),
        (&[3], "S"),
        (&[1, 2, 3], "F"),
        (&[2, 3], "F"),
        (&[1, 3], "F"),
        (&[1, 2], "F"),
    ];
    // Both halves as recorded, the rest perturbed: here that is step 3 alone, and the failure stays.
    let found = pairs(&with_coalitions(three.clone(), &halves));
    assert_eq!(found, [PairRow { steps: [1, 2], kind: PairKind::Conjunction }]);
    let either: Vec<(&[u32], &str)> = vec![
        (&[1], "S"),
        (&[2], "S"),
        (&[3], "S"),
        (&[1, 2, 3], "F"),
        (&[2, 3], "S"),
        (&[1, 3], "S"),
        (&[1, 2], "F"),
    ];
    let found = pairs(&with_coalitions(three.clone(), &either));
    assert_eq!(found, [PairRow { steps: [1, 2], kind: PairKind::OverDetermined }]);
    let mut untried = either;
    untried.pop();
    assert!(pairs(&with_coalitions(three, &untried)).is_empty());
}

/// A step's value is what its own entry changes: the fork before it in the order, against the fork with it.
#[test]
fn shapley_values_count_the_entry_of_the_step() {
    let mut document = document("SSS", &[(1, "F"), (2, "F"), (3, "S")]);
    let order =
        |order: [u32; 3], outcomes: &str| SampledOrder { order: order.to_vec(), forks: forks(outcomes) };
    document.orders = vec![order([3, 1, 2], "SSFF"), order([1, 2, 3], "SFFF"), order([2, 3, 1], "SSSF")];
    let value = |document: &BlameDocument, step| {
        let shapley = row(document, step).shapley.unwrap();
        (shapley.value, shapley.orders)
    };
    assert_eq!([1, 2, 3].map(|step| value(&document, step)), [(1.0, 3), (0.0, 3), (0.0, 3)]);
    // A step that hinders has a negative value; an entry next to an undefined fork says nothing.
    document.orders = vec![order([2, 1, 3], "SFSS"), order([1, 2, 3], "UFFF")];
    assert_eq!(value(&document, 1), (-1.0, 1));
    assert_eq!(value(&document, 2), (0.5, 2));
    assert_eq!(value(&document, 3), (0.0, 2));
}

#[test]
fn equal_rates_are_ordered_by_value_then_by_frame() {
    let mut document = document("SSS", &[(1, "FS"), (2, "FF"), (3, "FS"), (4, "FS")]);
    let order = SampledOrder { order: vec![1, 2, 3, 4], forks: forks("SSSFF") };
    document.orders = vec![order];
    let order: Vec<u32> = rows(&document).iter().map(|row| row.step).collect();
    assert_eq!(order, [2, 3, 1, 4]);
}

#[test]
fn reasons_of_undefined_forks_are_counted() {
    let reasons = row(&document("SSS", &[(1, "UvwxvF")]), 1).undefined_reasons;
    assert_eq!(reasons.len(), 3, "three are enough: {reasons:?}");
    assert_eq!(reasons[0], ("reason v".to_owned(), 2));
}
