//! Runs in which several causes compete: a root and its echo, a conjunction, an over-determined failure, with
//! decoys, delayed and masked causes among them; and a conjunction that a root makes over-determined.
//!
//! Beside the roles of coalitions stands what one order of the steps would say of a conjunction: tracefork's
//! Shapley value from a single permutation, which credits the later half only.

use std::collections::BTreeMap;

use serde::Serialize;

use super::agent::AgentScript;
use super::faults::{says, work};
use super::model::{Answers, StepAnswer};
use super::trial::BlamedTrial;
use super::wire::WireForm;
use crate::document::BlameDocument;
use crate::ranking::{Coalitions, PairKind, Role, pairs};
use crate::statistics::{Interval, SeededNumbers, Z_95, wilson};

/// Steps of a run with competing causes: as many as the exchanges of tracefork's `bench`.
const STEPS: u32 = 7;
/// The halves of a conjunction, in the report.
const EARLIER_HALF: &str = "earlier half of a conjunction";
const LATER_HALF: &str = "later half of a conjunction";

/// A planted structure.
pub struct CompetingCase {
    /// Its name.
    pub name: &'static str,
    pub(super) script: AgentScript,
    pub(super) answers: Answers,
    pub(super) armed: Vec<u32>,
    /// What each planted step is, and its name in the report.
    wanted: Vec<(&'static str, u32, Role)>,
    /// The pair that acts together.
    pair: Option<([u32; 2], PairKind)>,
}

/// How often each planted cause was told right.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompetingReport {
    /// For each kind of cause: right, and planted.
    pub causes: BTreeMap<String, (u32, u32)>,
    /// All of them: right, and planted.
    pub all: (u32, u32),
    /// The 95% interval of the share that is right.
    pub interval: Interval,
    /// For each half of a conjunction: runs in which one order of the steps calls it necessary, and runs.
    pub one_order: BTreeMap<String, (u32, u32)>,
    /// What was wrong, as sentences.
    pub wrong: Vec<String>,
    /// Forks in all.
    pub forks: u64,
    /// Calls of the scripted model by forks.
    pub calls: u64,
}

/// Number of runs of one seed.
#[must_use]
pub fn competing_case_count() -> u32 {
    4
}

fn fault(key: &str) -> StepAnswer {
    StepAnswer::Faulty { faulty: says(&format!("NOTE {key}=bad")), right: says(&format!("NOTE {key}=good")) }
}

fn all_good(keys: &[&str]) -> BTreeMap<String, String> {
    keys.iter().map(|key| ((*key).to_owned(), "good".to_owned())).collect()
}

impl CompetingCase {
    /// The runs of a seed: the places of all planted steps are random.
    pub(super) fn of_seed(numbers: &mut SeededNumbers) -> Vec<Self> {
        vec![
            Self::root_and_echo(numbers),
            Self::conjunction(numbers),
            Self::over_determined(numbers),
            Self::over_determined_conjunction(numbers),
        ]
    }

    /// So many random steps, in ascending order. The last step is the agent's closing answer: a cause there
    /// could not be told from the outcome that it states.
    fn places(numbers: &mut SeededNumbers, count: usize) -> Vec<u32> {
        let order = numbers.order(STEPS as usize - 1);
        let mut places: Vec<u32> =
            order.into_iter().take(count).map(|place| u32::try_from(place + 1).unwrap_or(1)).collect();
        places.sort_unstable();
        places
    }

    fn build(
        name: &'static str,
        planted: Vec<(u32, StepAnswer)>,
        succeeds_if: Vec<BTreeMap<String, String>>,
        wanted: Vec<(&'static str, u32, Role)>,
        pair: Option<([u32; 2], PairKind)>,
    ) -> Self {
        let mut answers: Answers = (0..STEPS).map(|_| StepAnswer::Fixed(work())).collect();
        for (step, answer) in &planted {
            answers[*step as usize - 1] = answer.clone();
        }
        let armed = planted.iter().map(|(step, _)| *step).collect();
        let script = AgentScript { steps: STEPS, wire: WireForm::OpenAi, succeeds_if };
        Self { name, script, answers, armed, wanted, pair }
    }

    /// A masked fault, a root whose effect shows only at the end, a decoy before it, and an echo that repeats the
    /// root. The agent takes both the root's and the echo's word.
    fn root_and_echo(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 5);
        let [masked, decoy, root, echo, repair] = places[..] else {
            return Self::root_and_echo(numbers);
        };
        let echoes = StepAnswer::Echo {
            needle: "limit=bad",
            told: says("NOTE checked=bad"),
            otherwise: says("NOTE checked=good"),
        };
        let planted = vec![
            (masked, fault("stock")),
            (decoy, StepAnswer::Chatter),
            (root, fault("limit")),
            (echo, echoes),
            // A later step notes the right value whatever was noted before.
            (repair, StepAnswer::Fixed(says("NOTE stock=good"))),
        ];
        let wanted = vec![
            ("masked cause", masked, Role::None),
            ("decoy before the root", decoy, Role::None),
            ("delayed root", root, Role::Root),
            ("downstream echo", echo, Role::Echo),
        ];
        Self::build("root and echo", planted, vec![all_good(&["limit", "checked", "stock"])], wanted, None)
    }

    /// Two faults that fail the run only together.
    fn conjunction(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 3);
        let [first, decoy, second] = places[..] else { return Self::conjunction(numbers) };
        let planted = vec![(first, fault("brake")), (decoy, StepAnswer::Chatter), (second, fault("alarm"))];
        let wanted = vec![
            (EARLIER_HALF, first, Role::PartOfConjunction),
            ("decoy between the halves", decoy, Role::None),
            (LATER_HALF, second, Role::PartOfConjunction),
        ];
        let succeeds_if = vec![all_good(&["brake"]), all_good(&["alarm"])];
        let pair = Some(([first, second], PairKind::Conjunction));
        Self::build("conjunction", planted, succeeds_if, wanted, pair)
    }

    /// Two faults, each of which fails the run alone.
    fn over_determined(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 3);
        let [first, decoy, second] = places[..] else { return Self::over_determined(numbers) };
        let planted = vec![(first, fault("price")), (decoy, StepAnswer::Chatter), (second, fault("name"))];
        let wanted = vec![
            ("first over-determining cause", first, Role::OverDetermined),
            ("decoy between the causes", decoy, Role::None),
            ("second over-determining cause", second, Role::OverDetermined),
        ];
        let pair = Some(([first, second], PairKind::OverDetermined));
        Self::build("over-determination", planted, vec![all_good(&["price", "name"])], wanted, pair)
    }

    /// A root that fails the run by itself, and through two later steps that fail it only together. Without the root
    /// the two steps are right, so neither is necessary.
    fn over_determined_conjunction(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 4);
        let [decoy, root, first, second] = places[..] else {
            return Self::over_determined_conjunction(numbers);
        };
        let half = |told: &str, otherwise: &str| StepAnswer::Echo {
            needle: "limit=bad",
            told: says(told),
            otherwise: says(otherwise),
        };
        let planted = vec![
            (decoy, StepAnswer::Chatter),
            (root, fault("limit")),
            (first, half("NOTE brake=bad", "NOTE brake=good")),
            (second, half("NOTE alarm=bad", "NOTE alarm=good")),
        ];
        let wanted = vec![
            ("decoy beside an over-determined conjunction", decoy, Role::None),
            ("root of an over-determined conjunction", root, Role::Root),
            ("earlier half of an over-determined conjunction", first, Role::None),
            ("later half of an over-determined conjunction", second, Role::None),
        ];
        let succeeds_if = vec![all_good(&["limit", "brake"]), all_good(&["limit", "alarm"])];
        Self::build("over-determined conjunction", planted, succeeds_if, wanted, None)
    }

    /// The coalitions that one order needs besides: all steps after each.
    pub(super) fn one_order_coalitions(&self) -> Vec<Vec<u32>> {
        match self.pair {
            Some((_, PairKind::Conjunction)) => (1..STEPS).map(|last| (last + 1..=STEPS).collect()).collect(),
            _ => Vec::new(),
        }
    }
}

impl CompetingReport {
    pub(super) fn add(&mut self, seed: u32, case: &CompetingCase, blamed: &BlamedTrial) {
        self.forks += blamed.document.spent.forks;
        self.calls += blamed.document.spent.calls;
        for (cause, step, wanted) in &case.wanted {
            let found = blamed.rows.iter().find(|row| row.step == *step).and_then(|row| row.role);
            self.note(cause, found == Some(*wanted), || {
                format!(
                    "seed {seed}, {}: {cause} at @{step} is {wanted:?} and was called {found:?}",
                    case.name
                )
            });
        }
        if let Some((steps, kind)) = case.pair {
            let found = pairs(&blamed.document);
            let is_right = matches!(found.as_slice(), [pair] if (pair.steps, pair.kind) == (steps, kind));
            let name = match kind {
                PairKind::Conjunction => "pair of a conjunction",
                PairKind::OverDetermined => "pair of over-determining causes",
            };
            self.note(name, is_right, || {
                format!("seed {seed}, {}: {steps:?} was called {found:?}", case.name)
            });
        }
        self.add_one_order(case, &blamed.document);
        // No step that was not planted is a cause.
        for row in &blamed.rows {
            let is_planted = case.wanted.iter().any(|(_, step, _)| *step == row.step);
            if !is_planted && row.role.is_none_or(|role| !matches!(role, Role::None)) {
                let what = format!("seed {seed}, {}: @{} was called {:?}", case.name, row.step, row.role);
                self.wrong.push(what);
            }
        }
        let top = blamed.rows.first().map(|row| row.step);
        let causes: Vec<u32> = case
            .wanted
            .iter()
            .filter(|(_, _, role)| !matches!(role, Role::None | Role::Echo))
            .map(|(_, step, _)| *step)
            .collect();
        self.note("a cause comes first", top.is_some_and(|top| causes.contains(&top)), || {
            format!("seed {seed}, {}: {top:?} came first", case.name)
        });
    }

    /// What one order of the steps says of the halves of a conjunction.
    fn add_one_order(&mut self, case: &CompetingCase, document: &BlameDocument) {
        for (cause, step, _) in &case.wanted {
            if ![EARLIER_HALF, LATER_HALF].contains(cause) {
                continue;
            }
            let (necessary, runs) = self.one_order.entry((*cause).to_owned()).or_default();
            *runs += 1;
            *necessary += u32::from(necessary_in_one_order(document, *step) == Some(true));
        }
    }

    /// One line about all causes.
    #[must_use]
    pub fn summary(&self) -> String {
        let ((right, planted), Interval { low, high }) = (self.all, self.interval);
        format!("{right} of {planted} right: 95% interval {low:.4}..{high:.4}")
    }

    /// What one order of the steps cannot say, if it was tried.
    #[must_use]
    pub fn limitation(&self) -> Option<String> {
        let of = |cause: &str| self.one_order.get(cause);
        let ((earlier, runs), (later, _)) = of(EARLIER_HALF).zip(of(LATER_HALF))?;
        let by_coalitions = |cause: &str| self.causes.get(cause).map_or(0, |(right, _)| *right);
        let (first, second) = (by_coalitions(EARLIER_HALF), by_coalitions(LATER_HALF));
        Some(format!(
            "one order of the steps calls the earlier half of a conjunction necessary in {earlier} of {runs} runs, and the later half in {later}; coalitions call them necessary in {first} and {second}"
        ))
    }

    pub(super) fn note(&mut self, cause: &str, is_right: bool, what: impl FnOnce() -> String) {
        let (right, planted) = self.causes.entry(cause.to_owned()).or_default();
        *planted += 1;
        *right += u32::from(is_right);
        self.all = (self.all.0 + u32::from(is_right), self.all.1 + 1);
        self.interval = wilson(self.all.0, self.all.1, Z_95);
        if !is_right {
            self.wrong.push(what());
        }
    }

    /// Whether every planted cause was told right.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.wrong.is_empty()
    }
}

/// Whether one order of the steps, the temporal one, calls a step necessary: `v(i)` is whether the run fails with the
/// steps up to `i` as recorded and all others perturbed, and the step's value is `v(i) - v(i-1)`, at least 0.5 if it is
/// necessary (tracefork's rule). `None` if a coalition was not tried.
fn necessary_in_one_order(document: &BlameDocument, step: u32) -> Option<bool> {
    let coalitions = Coalitions::new(document);
    let fails = |last: u32| -> Option<bool> {
        let later: Vec<u32> = document.settings.steps.iter().copied().filter(|of| *of > last).collect();
        coalitions.flips(&later).map(|flips| !flips)
    };
    Some(fails(step)? && !fails(step - 1)?)
}
