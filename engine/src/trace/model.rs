//! The basic types of a trace: status, severity, component, frame, and the specification of a run.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ids::{Link, RunUid};
use crate::trace::heads::{COMPONENT_BYTES_MAX, COMPONENT_OTHER};
pub(crate) use annals_store::kv::catalogue::check_text;
use annals_store::kv::{BodyInput, Content};

/// Greatest length of a run's name, in bytes.
pub const RUN_NAME_BYTES_MAX: usize = 512;
/// Greatest length of an agent's or model's name, and of a tag's key or value, in bytes.
const FIELD_BYTES_MAX: usize = 4 << 10;
/// Greatest number of a run's tags.
pub(crate) const TAGS_MAX: usize = 256;

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Being recorded.
    Open,
    /// Ended well.
    Ok,
    /// Ended badly.
    Failed,
    /// Its writer died, or closed the store, before the run ended.
    Abandoned,
}

/// How much a run or frame matters. Later variants are greater and matter more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Severity {
    /// Kept for debugging.
    Debug,
    /// Nothing special.
    #[default]
    Normal,
    /// Marked for review.
    Flagged,
    /// Handed to a person.
    Escalated,
}

/// The part of an agent that a frame is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Component {
    /// Input of a user.
    User,
    /// A model call.
    Llm,
    /// A tool call.
    Tool,
    /// A planning step.
    Planner,
    /// The merging of parallel results.
    Merge,
    /// A drawn time, id or random number.
    Nondet,
    /// A custom name: 1 to 64 bytes without control characters, and not one of the built-in names.
    Other(String),
}

macro_rules! named {
    ($type:ty, $what:literal, $($variant:path => $code:literal $name:literal),+) => {
        impl $type {
            pub(crate) fn code(self) -> u8 {
                match self { $($variant => $code),+ }
            }

            pub(crate) fn from_code(code: u8) -> Result<Self> {
                match code {
                    $($code => Ok($variant),)+
                    _ => Err(Error::new(crate::ErrorKind::Damaged, format!(concat!($what, " code {} is unknown"), code))),
                }
            }

            /// Its name, lower case.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($variant => $name),+ }
            }
        }

        impl FromStr for $type {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($name => Ok($variant),)+
                    _ => Err(Error::invalid(format!(
                        concat!($what, " {:?} is unknown: use one of {}"), text, [$($name),+].join(", ")
                    ))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named!(Status, "status", Status::Open => 0 "open", Status::Ok => 1 "ok", Status::Failed => 2 "failed",
    Status::Abandoned => 3 "abandoned");
named!(Severity, "severity", Severity::Debug => 0 "debug", Severity::Normal => 1 "normal",
    Severity::Flagged => 2 "flagged", Severity::Escalated => 3 "escalated");

impl Component {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::User => 0,
            Self::Llm => 1,
            Self::Tool => 2,
            Self::Planner => 3,
            Self::Merge => 4,
            Self::Nondet => 5,
            Self::Other(_) => COMPONENT_OTHER,
        }
    }

    pub(crate) fn from_code(code: u8, other: Option<String>) -> Result<Self> {
        Ok(match (code, other) {
            (0, _) => Self::User,
            (1, _) => Self::Llm,
            (2, _) => Self::Tool,
            (3, _) => Self::Planner,
            (4, _) => Self::Merge,
            (5, _) => Self::Nondet,
            (COMPONENT_OTHER, Some(name)) => Self::Other(name),
            (code, _) => {
                return Err(Error::new(
                    crate::ErrorKind::Damaged,
                    format!("component code {code} is unknown"),
                ));
            }
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::User => "user",
            Self::Llm => "llm",
            Self::Tool => "tool",
            Self::Planner => "planner",
            Self::Merge => "merge",
            Self::Nondet => "nondet",
            Self::Other(name) => name,
        }
    }
}

impl FromStr for Component {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "user" => Self::User,
            "llm" => Self::Llm,
            "tool" => Self::Tool,
            "planner" => Self::Planner,
            "merge" => Self::Merge,
            "nondet" => Self::Nondet,
            other => {
                check_text("a component's name", other, 1, COMPONENT_BYTES_MAX)?;
                Self::Other(other.to_owned())
            }
        })
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A [`FrameInput`] that owns its bodies.
pub type Frame = FrameInput<'static>;

/// One decision point, as a caller hands it in: with bodies of its own, or lent ones ([`BodyInput::Lent`]).
#[derive(Debug, Clone)]
pub struct FrameInput<'a> {
    /// The component that made it.
    pub component: Component,
    /// The frame that caused it.
    pub parent: Option<u32>,
    /// When it began, nanoseconds since 1970-01-01 UTC. Default: the store's clock.
    pub started_ns: Option<u64>,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The exact bytes of its input.
    pub input: BodyInput<'a>,
    /// The exact bytes of its output.
    pub output: BodyInput<'a>,
    /// A JSON object, or empty: model, sampling parameters, tool, usage, headers. Values that differ between
    /// two recordings of the same call (times, request ids) belong under the key `volatile`, which the
    /// fingerprint leaves out.
    pub metadata: Vec<u8>,
    /// How much it matters.
    pub severity: Severity,
    /// The component failed.
    pub error: bool,
}

impl<'a> FrameInput<'a> {
    /// A frame of a component with its input and output.
    #[must_use]
    pub fn new(
        component: Component,
        input: impl Into<BodyInput<'a>>,
        output: impl Into<BodyInput<'a>>,
    ) -> Self {
        Self {
            component,
            parent: None,
            started_ns: None,
            duration_ns: 0,
            input: input.into(),
            output: output.into(),
            metadata: Vec::new(),
            severity: Severity::Normal,
            error: false,
        }
    }

    /// The frame that caused it.
    #[must_use]
    pub fn parent(mut self, parent: u32) -> Self {
        self.parent = Some(parent);
        self
    }

    /// See [`FrameInput::metadata`].
    #[must_use]
    pub fn metadata(mut self, json: impl Into<Vec<u8>>) -> Self {
        self.metadata = json.into();
        self
    }
}

/// The fields of a run that are given when it begins.
#[derive(Debug, Clone, Default)]
pub struct RunSpec {
    /// See [`RunSpec::new`].
    pub name: String,
    /// The agent's name.
    pub agent: String,
    /// The model's name and version.
    pub model: String,
    /// Tags: a key and a value each.
    pub tags: Vec<(String, String)>,
    /// How much it matters.
    pub severity: Severity,
    /// Other data about the run, as JSON.
    pub metadata: Content,
    /// When it began, nanoseconds since 1970-01-01 UTC. Default: the store's clock.
    pub started_ns: Option<u64>,
    /// Whether it replaces a living run of the same name.
    pub replace: bool,
}

/// The tag of a run that was redacted before it came here. Its value is the name of the profile.
pub const REDACTED_TAG: &str = "annals.redacted";
/// The tag of a run that was made of traces. Its value is the kind of traces.
pub const INGESTED_TAG: &str = "annals.ingested";
/// Tags which say that a run does not hold what a program sent and got. Each fork that shares its frames inherits them.
const MARKS: [&str; 2] = [REDACTED_TAG, INGESTED_TAG];

impl RunSpec {
    /// The marks of a run whose frames this one shares are its own as well.
    pub(crate) fn inherit_marks(&mut self, tags: &[(String, String)]) {
        for (key, value) in tags.iter().filter(|(key, _)| MARKS.contains(&key.as_str())) {
            self.tags.retain(|(own, _)| own != key);
            self.tags.push((key.clone(), value.clone()));
        }
    }

    /// A run of this name: 1 to 512 bytes without control characters, unique in its namespace while the run
    /// lives.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The agent's name.
    #[must_use]
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = agent.into();
        self
    }

    /// The model's name and version.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Adds a tag, by which the run can be found.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((key.into(), value.into()));
        self
    }

    /// How much it matters.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Other data about the run, as JSON.
    #[must_use]
    pub fn metadata(mut self, json: impl Into<Content>) -> Self {
        self.metadata = json.into();
        self
    }

    /// When it began, nanoseconds since 1970-01-01 UTC. Default: the store's clock.
    #[must_use]
    pub fn started_ns(mut self, ns: u64) -> Self {
        self.started_ns = Some(ns);
        self
    }

    /// Whether the run replaces a living run of the same name. Its first batch ends the old run.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_text("a run's name", &self.name, 1, RUN_NAME_BYTES_MAX)?;
        check_text("an agent's name", &self.agent, 0, FIELD_BYTES_MAX)?;
        check_text("a model's name", &self.model, 0, FIELD_BYTES_MAX)?;
        if self.tags.len() > TAGS_MAX {
            return Err(Error::invalid(format!(
                "a run has at most {TAGS_MAX} tags, not {}",
                self.tags.len()
            )));
        }
        for (key, value) in &self.tags {
            check_text("a tag's key", key, 1, FIELD_BYTES_MAX)?;
            check_text("a tag's value", value, 0, FIELD_BYTES_MAX)?;
        }
        Ok(())
    }
}

/// The point at which a fork leaves its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPoint {
    /// The parent's name, if it still lives.
    pub run: Option<String>,
    /// The parent's uid.
    pub uid: RunUid,
    /// The frame it was forked at.
    pub at: u32,
    /// The last frame that both share: `at`, or the one before if the fork edits `at`.
    pub shared: u32,
}

/// A run's fields and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInfo {
    /// Its uid, never used again.
    pub uid: RunUid,
    /// Its name.
    pub name: String,
    /// The agent's name.
    pub agent: String,
    /// The model's name.
    pub model: String,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// Its status.
    pub status: Status,
    /// How much it matters: the greatest severity of the run and its frames.
    pub severity: Severity,
    /// The fork point, if it is a fork.
    pub parent: Option<ForkPoint>,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// When it ended, nanoseconds since 1970-01-01 UTC; `None` while it is open.
    pub ended_ns: Option<u64>,
    /// Number of its frames, shared ones included.
    pub frames: u32,
    /// Raw bytes of its own frames: inputs, outputs and metadata.
    pub raw_bytes: u64,
    /// The last link of its chain; `None` while it is open.
    pub fingerprint: Option<Link>,
}
