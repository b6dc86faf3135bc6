//! The classes of faults. Each is one wrong answer at one step, by a mechanism of its own.

use std::collections::BTreeMap;

use super::agent::{AgentScript, AgentState, CRASHES, ScriptedAnswer};
use super::model::{Answers, StepAnswer};

/// A class of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultClass {
    CorruptedToolOutput,
    MisleadingRetrieval,
    WrongSystemPrompt,
    DroppedMessage,
    PoisonedArgument,
    StaleContext,
    SwappedToolOrder,
    TruncatedContext,
    DuplicatedSideEffect,
    ParallelRace,
}

pub(crate) const CLASSES: [FaultClass; 10] = [
    FaultClass::CorruptedToolOutput,
    FaultClass::MisleadingRetrieval,
    FaultClass::WrongSystemPrompt,
    FaultClass::DroppedMessage,
    FaultClass::PoisonedArgument,
    FaultClass::StaleContext,
    FaultClass::SwappedToolOrder,
    FaultClass::TruncatedContext,
    FaultClass::DuplicatedSideEffect,
    FaultClass::ParallelRace,
];

pub(crate) fn says(text: &str) -> ScriptedAnswer {
    ScriptedAnswer { text: text.to_owned(), calls: Vec::new() }
}

fn calls(text: &str, calls: &[(&'static str, &'static str, &'static str)]) -> ScriptedAnswer {
    ScriptedAnswer { text: text.to_owned(), calls: calls.to_vec() }
}

impl FaultClass {
    /// Its name in reports; the first five are tracefork's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CorruptedToolOutput => "corrupted_tool_output",
            Self::MisleadingRetrieval => "misleading_retrieval",
            Self::WrongSystemPrompt => "wrong_system_prompt",
            Self::DroppedMessage => "dropped_message",
            Self::PoisonedArgument => "poisoned_argument",
            Self::StaleContext => "stale_context",
            Self::SwappedToolOrder => "swapped_tool_order",
            Self::TruncatedContext => "truncated_context",
            Self::DuplicatedSideEffect => "duplicated_side_effect",
            Self::ParallelRace => "parallel_race",
        }
    }

    /// The right answer of the faulty step, and the faulty one.
    pub(crate) fn answers(self) -> (ScriptedAnswer, ScriptedAnswer) {
        match self {
            // A tool that the provider runs returns its result inside the answer.
            Self::CorruptedToolOutput => (says("RESULT weight=40"), says("RESULT weight=4\u{fffd}")),
            Self::MisleadingRetrieval => (says("FOUND refund_days=30"), says("FOUND refund_days=90")),
            // A planner writes the system prompt of the steps that follow.
            Self::WrongSystemPrompt => (says("SYSTEM reckon in euros"), says("SYSTEM reckon in dollars")),
            Self::DroppedMessage => (says("NOTE approval=given"), says("")),
            Self::PoisonedArgument => (
                calls("look up the account", &[("fetch", "balance", "account-17")]),
                calls("look up the account", &[("fetch", "balance", "account-71")]),
            ),
            Self::StaleContext => (says("SUMMARY price=20; stock=3"), says("SUMMARY price=15; stock=3")),
            Self::SwappedToolOrder => (
                calls("in order", &[("add", "total", "10"), ("double", "total", "")]),
                calls("in order", &[("double", "total", ""), ("add", "total", "10")]),
            ),
            Self::TruncatedContext => {
                (says("SUMMARY price=20; stock=3; limit=9"), says("SUMMARY price=20; sto"))
            }
            Self::DuplicatedSideEffect => (
                calls("pay", &[("add", "paid", "100")]),
                calls("pay", &[("add", "paid", "100"), ("add", "paid", "100")]),
            ),
            Self::ParallelRace => (
                calls("one after the other", &[("add", "total", "5"), ("add", "total", "7")]),
                calls("PARALLEL", &[("add", "total", "5"), ("add", "total", "7")]),
            ),
        }
    }
}

/// A run with a planted fault.
pub(crate) struct FaultCase {
    steps: u32,
    answers: Answers,
    succeeds_if: Vec<BTreeMap<String, String>>,
}

/// An ordinary step: it does some work that the outcome depends on.
pub(crate) fn work() -> ScriptedAnswer {
    calls("go on", &[("add", "total", "3")])
}

impl FaultCase {
    /// A run of so many steps with a fault of this class at step `at`.
    pub(crate) fn new(class: FaultClass, at: u32, steps: u32) -> Self {
        let (right, faulty) = class.answers();
        let step = |number: u32| match number == at {
            true => StepAnswer::Faulty { faulty: faulty.clone(), right: right.clone() },
            false => StepAnswer::Fixed(work()),
        };
        let clean: Vec<ScriptedAnswer> =
            (1..=steps).map(|number| if number == at { right.clone() } else { work() }).collect();
        let wanted = AgentState::after(&clean).0;
        Self { steps, answers: (1..=steps).map(step).collect(), succeeds_if: vec![wanted] }
    }

    /// A run that fails whatever the model says: no step is to blame. A new answer of the last step but `variant`
    /// crashes the agent: these forks have no outcome, and must count as neither.
    pub(crate) fn without_fault(steps: u32, variant: u32) -> Self {
        let wanted = BTreeMap::from([("never".to_owned(), variant.to_string())]);
        let answers = (1..=steps).map(|number| match (number + variant) % 3 {
            _ if number == Self::crashing_step(steps, variant) => {
                StepAnswer::Faulty { faulty: work(), right: says(CRASHES) }
            }
            // Some answers change at each asking, and do not matter.
            0 => StepAnswer::Chatter,
            _ => StepAnswer::Fixed(work()),
        });
        Self { steps, answers: answers.collect(), succeeds_if: vec![wanted] }
    }

    /// The step of a run without a fault whose new answer crashes the agent.
    pub(crate) fn crashing_step(steps: u32, variant: u32) -> u32 {
        steps - variant % steps
    }

    pub(crate) fn script(&self) -> AgentScript {
        AgentScript { steps: self.steps, succeeds_if: self.succeeds_if.clone() }
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers.clone()
    }
}
