//! Outcomes of sessions, and the category of a failure: ordered rules, no model.

use serde::{Deserialize, Serialize};

use crate::session::SessionDiagnostic;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its work was accepted.
    Accepted,
    /// Its work was rejected.
    Rejected,
    /// Its work had to be done again.
    Rework,
}

impl Outcome {
    /// Whether the session failed. Rework is a failure for observations.
    #[must_use]
    pub fn is_failed(self) -> bool {
        self != Self::Accepted
    }

    /// Its name, as it is written in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Rework => "rework",
        }
    }
}

/// Why a session failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCategory {
    /// A test runner failed.
    TestFailure,
    /// An error message speaks of lint or format.
    Style,
    /// An error message speaks of something that worked before.
    Regression,
    /// No file was modified.
    Incomplete,
    /// There were errors, and none of the rules above matched.
    WrongApproach,
    /// Nothing matched.
    Other,
    /// The failure was never classified: the reporter said so.
    Unknown,
}

impl FailureCategory {
    /// All categories, in the order of a distribution.
    pub const ALL: [Self; 7] = [
        Self::TestFailure,
        Self::Style,
        Self::Regression,
        Self::Incomplete,
        Self::WrongApproach,
        Self::Other,
        Self::Unknown,
    ];

    /// Its name, as it is written in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TestFailure => "test_failure",
            Self::Style => "style",
            Self::Regression => "regression",
            Self::Incomplete => "incomplete",
            Self::WrongApproach => "wrong_approach",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

/// The tools that count as test runners. A tool's name is compared in lower case, with `-` and spaces as `_`, and
/// without what stands before the last `__`, `/`, `.` or `:` (`mcp__ci__pytest`, `functions.jest`).
pub const TEST_RUNNERS: [&str; 32] = [
    "ava",
    "bun_test",
    "cargo_nextest",
    "cargo_test",
    "ctest",
    "cypress",
    "deno_test",
    "dotnet_test",
    "go_test",
    "gotest",
    "gradle_test",
    "jasmine",
    "jest",
    "junit",
    "karma",
    "minitest",
    "mix_test",
    "mocha",
    "mvn_test",
    "nose2",
    "npm_test",
    "phpunit",
    "playwright",
    "pnpm_test",
    "pytest",
    "rspec",
    "run_tests",
    "swift_test",
    "tox",
    "unittest",
    "vitest",
    "yarn_test",
];

/// Words of an error message about style, and about a regression. Letters compare as in JavaScript's `/i`: only
/// ASCII letters have two cases.
const STYLE_WORDS: [&str; 4] = ["lint", "format", "prettier", "eslint"];
const REGRESSION_WORDS: [&str; 3] = ["regression", "broke", "previously"];

/// The category of a failed session. The first rule that matches wins, so a session with errors that modified no
/// file is `incomplete`.
#[must_use]
pub fn classify(session: &SessionDiagnostic) -> FailureCategory {
    let says = |words: &[&str]| session.errors().iter().any(|error| has_word(&error.message, words));
    match () {
        () if session.tool_calls().iter().any(|call| !call.success && is_test_runner(&call.tool)) => {
            FailureCategory::TestFailure
        }
        () if says(&STYLE_WORDS) => FailureCategory::Style,
        () if says(&REGRESSION_WORDS) => FailureCategory::Regression,
        () if session.files().is_empty() => FailureCategory::Incomplete,
        () if !session.errors().is_empty() => FailureCategory::WrongApproach,
        () => FailureCategory::Other,
    }
}

fn is_test_runner(tool: &str) -> bool {
    let name = tool.trim().rsplit("__").next().unwrap_or_default();
    let name = name.rsplit(['/', '.', ':']).next().unwrap_or_default();
    let name = name.to_ascii_lowercase().replace(['-', ' '], "_");
    TEST_RUNNERS.contains(&name.as_str())
}

/// Whether a message contains one of these words, in any letters. A message may have megabytes.
fn has_word(message: &str, words: &[&str]) -> bool {
    let message = message.as_bytes();
    words.iter().any(|word| {
        let word = word.as_bytes();
        message.windows(word.len()).any(|part| {
            part.first().zip(word.first()).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b))
                && part.eq_ignore_ascii_case(word)
        })
    })
}
