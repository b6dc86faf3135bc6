//! Which step of a recorded run caused its outcome: the run's program runs again as forks, with one step or
//! several perturbed; each outcome is graded, and flips of the outcome are counted.
//!
//! A *step* is a frame of a model's call. A *fork* shares the frames before its first perturbed step. The
//! *oracle* says whether a run passed. A fork *flips* if the oracle's verdict differs from the parent's. A fork
//! whose outcome cannot be graded is *undefined*: it counts as neither.
//!
//! Layout: `statistics` (pure), `oracle` (was it a success), `steps` (what can be blamed), `perturb` (what
//! changes at a step), `estimate` (forks, calls and cost before anything is spent), `document` (the result in
//! the store), `ranking` (rows of the result; pure), `execute` (the forks), `spent` (what a fork took),
//! `coalition` (forks with several perturbed steps), `scratch` (a copy of the working directory), `validate`
//! (the whole on planted faults).
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

pub mod coalition;
pub mod document;
pub mod error;
pub mod estimate;
pub mod execute;
pub mod oracle;
pub mod perturb;
pub mod ranking;
mod scratch;
mod spent;
pub mod statistics;
pub mod steps;
pub mod validate;

pub use annals::runs::BLAME_TAG;
pub use document::{BlameDocument, BlameState, drop_blame, load_blame};
pub use error::BlameError;
pub use execute::{BlameOptions, Blamer};
pub use oracle::{Oracle, Verdict};
pub use perturb::Perturbation;
pub use ranking::{StepRow, rows};

/// The tag that says what a fork of a blame is for: `base`, or the perturbed frames.
pub const BLAME_STEPS_TAG: &str = "annals.blame.steps";
