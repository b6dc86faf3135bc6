//! Runs in which several causes compete: a root and its echo, a conjunction, an over-determined failure, with
//! decoys, delayed and masked causes among them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::agent::AgentScript;
use super::faults::{says, work};
use super::model::{Answers, StepAnswer};
use super::trial::BlamedTrial;
use crate::ranking::{PairKind, Role, pairs};
use crate::statistics::SeededNumbers;

/// Steps of a run with competing causes.
const STEPS: u32 = 8;

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
    3
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
        vec![Self::root_and_echo(numbers), Self::conjunction(numbers), Self::over_determined(numbers)]
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
        Self { name, script: AgentScript { steps: STEPS, succeeds_if }, answers, armed, wanted, pair }
    }

    /// A masked fault, a root whose effect shows only at the end, decoys before and after it, and an echo that
    /// repeats the root. The agent takes both the root's and the echo's word.
    fn root_and_echo(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 6);
        let [masked, decoy, root, echo, late, repair] = places[..] else {
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
            (late, StepAnswer::Chatter),
            // A later step notes the right value whatever was noted before.
            (repair, StepAnswer::Fixed(says("NOTE stock=good"))),
        ];
        let wanted = vec![
            ("masked cause", masked, Role::None),
            ("decoy before the root", decoy, Role::None),
            ("delayed root", root, Role::Root),
            ("downstream echo", echo, Role::Echo),
            ("decoy after the root", late, Role::None),
        ];
        Self::build("root and echo", planted, vec![all_good(&["limit", "checked", "stock"])], wanted, None)
    }

    /// Two faults that fail the run only together.
    fn conjunction(numbers: &mut SeededNumbers) -> Self {
        let places = Self::places(numbers, 3);
        let [first, decoy, second] = places[..] else { return Self::conjunction(numbers) };
        let planted = vec![(first, fault("brake")), (decoy, StepAnswer::Chatter), (second, fault("alarm"))];
        let wanted = vec![
            ("earlier half of a conjunction", first, Role::PartOfConjunction),
            ("decoy between the halves", decoy, Role::None),
            ("later half of a conjunction", second, Role::PartOfConjunction),
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

    fn note(&mut self, cause: &str, is_right: bool, what: impl FnOnce() -> String) {
        let (right, planted) = self.causes.entry(cause.to_owned()).or_default();
        *planted += 1;
        *right += u32::from(is_right);
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
