//! The classes of faults. Each is one wrong answer at one step, with an effect of its own.
//!
//! The first five are tracefork's, by its two mechanisms: a replaced text message, and a corrupted argument of a
//! tool's call. They go over Anthropic's interface, with a marker inside a content field.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::agent::{AgentScript, AgentState, CRASHES, ScriptedAnswer};
use super::model::{Answers, StepAnswer};
use super::wire::WireForm;

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
    PlannerDivergence,
    ContextPoisoning,
}

pub(crate) const CLASSES: [FaultClass; 12] = [
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
    FaultClass::PlannerDivergence,
    FaultClass::ContextPoisoning,
];

/// Turns after which a poisoned context gives a wrong outcome, the poisoned one included.
pub(crate) const POISONED_TURNS: u32 = 5;

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
            Self::PlannerDivergence => "planner_divergence",
            Self::ContextPoisoning => "context_poisoning",
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
            Self::DroppedMessage => (says("NOTE approval=given"), says("[message dropped]")),
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
            // The steps that follow take the branch that the plan names.
            Self::PlannerDivergence => (says("NOTE plan=refund"), says("NOTE plan=exchange")),
            // Each later turn that reads the wrong rate adds to the drift.
            Self::ContextPoisoning => (says("NOTE rate=1.00"), says("NOTE rate=1.01")),
        }
    }

    /// The answer of a later step: it may follow from what the planted step said.
    fn later(self) -> StepAnswer {
        match self {
            Self::PlannerDivergence => StepAnswer::Echo {
                needle: "plan=exchange",
                told: calls("send a new one", &[("add", "exchanged", "1")]),
                otherwise: work(),
            },
            Self::ContextPoisoning => StepAnswer::Echo {
                needle: "rate=1.01",
                told: calls("at that rate", &[("add", "drift", "1")]),
                otherwise: calls("at that rate", &[("add", "drift", "0")]),
            },
            _ => StepAnswer::Fixed(work()),
        }
    }

    /// Of tracefork's classes: what the faulty answer holds in a content field, and no other answer holds.
    pub(crate) fn marker(self) -> Option<&'static str> {
        match self {
            Self::CorruptedToolOutput => Some("weight=4\u{fffd}"),
            Self::MisleadingRetrieval => Some("refund_days=90"),
            Self::WrongSystemPrompt => Some("reckon in dollars"),
            Self::DroppedMessage => Some("[message dropped]"),
            Self::PoisonedArgument => Some("account-71"),
            _ => None,
        }
    }
}

/// A run with a planted fault.
pub(crate) struct FaultCase {
    script: AgentScript,
    answers: Answers,
}

/// An ordinary step: it does some work that the outcome depends on.
pub(crate) fn work() -> ScriptedAnswer {
    calls("go on", &[("add", "total", "3")])
}

impl FaultCase {
    /// A run of so many steps with a fault of this class at step `at`. A poisoned context needs some more turns.
    pub(crate) fn new(class: FaultClass, at: u32, steps: u32) -> Self {
        let (right, faulty) = class.answers();
        let steps = if class == FaultClass::ContextPoisoning { at + POISONED_TURNS - 1 } else { steps };
        let step = |number: u32| match number.cmp(&at) {
            Ordering::Less => StepAnswer::Fixed(work()),
            Ordering::Equal => StepAnswer::Faulty { faulty: faulty.clone(), right: right.clone() },
            Ordering::Greater => class.later(),
        };
        let succeeds_if = match class {
            // A drift that is smaller goes unnoticed.
            FaultClass::ContextPoisoning => (0..POISONED_TURNS - 1)
                .map(|drift| BTreeMap::from([("#drift".to_owned(), drift.to_string())]))
                .collect(),
            _ => {
                let clean: Vec<ScriptedAnswer> =
                    (1..=steps).map(|number| if number == at { right.clone() } else { work() }).collect();
                vec![AgentState::after(&clean).0]
            }
        };
        let wire = if class.marker().is_some() { WireForm::Anthropic } else { WireForm::OpenAi };
        Self { script: AgentScript { steps, wire, succeeds_if }, answers: (1..=steps).map(step).collect() }
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
        let script = AgentScript { steps, wire: WireForm::OpenAi, succeeds_if: vec![wanted] };
        Self { script, answers: answers.collect() }
    }

    /// The step of a run without a fault whose new answer crashes the agent.
    pub(crate) fn crashing_step(steps: u32, variant: u32) -> u32 {
        steps - variant % steps
    }

    pub(crate) fn script(&self) -> AgentScript {
        self.script.clone()
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers.clone()
    }
}
