//! The user's rules in one TOML file: allowed differences between requests (`[[matcher]]`), raised severities
//! (`[[severity]]`), prices of models (`[[price]]`).
//!
//! Invariants: anything in the file that is not understood is an error with its position, so no rule is
//! silently ignored. Matchers are the engine's rules, which refuse to hide a message, a prompt, tools or a
//! model. No rule lowers a severity. A run stores the text of its file, and a replay uses it. Parsing is
//! pure; the command line chooses the file.
//!
//! Layout: `document` (TOML tables whose values know their position), `file` (the three kinds of rules),
//! `retention` (retention policies, which are files of their own).

pub(crate) mod document;
mod file;
mod retention;
#[cfg(test)]
mod tests;

pub use document::RulesError;
pub use file::{RULES_BYTES_MAX, RulesFile};
pub use retention::{POLICY_BYTES_MAX, parse_policy};
