//! Rules of the user's own, in one TOML file: what of a request may differ (`[[matcher]]`), what matters more than it would by
//! itself (`[[severity]]`), what a model costs (`[[price]]`).
//!
//! Invariants: what the file holds and is not understood is refused with its place, so that no rule is silently without effect; a
//! matcher is made by the engine's own rules, which refuse what would hide a message, a prompt, tools or a model; no severity is lowered.
//! A run keeps the text of its file, and a replay goes by it. Pure: text in, rules out; which file it is, the command line says.
//!
//! Layout: `document` (TOML as tables whose values know where they stand), `file` (the three kinds of rules), `retention` (policies, which are files of their
//! own: how long which runs stay).

pub(crate) mod document;
mod file;
mod retention;
#[cfg(test)]
mod tests;

pub use document::RulesError;
pub use file::{RULES_BYTES_MAX, RulesFile};
pub use retention::{POLICY_BYTES_MAX, parse_policy};
