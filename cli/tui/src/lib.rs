//! The terminal view: the runs of a namespace, the timeline of a run, its frames as a person reads them, what
//! a request changed, and two runs beside each other. Reads the store as other reading verbs do, so it works
//! while another process records.
//!
//! Layout: `terminal` (the real terminal: set up, read keys, put back), `app` (screens and keys; pure but for
//! reading the store), `runs`, `run`, `compare` (one screen each), `frame_text` (a frame as lines), `wrap`
//! (lines that fit), `look` (colours and characters), `numbers` (times and sizes for people), `source` (the
//! store).
//!
//! Recorded text goes through `annals_text::visible::printable` before it becomes a line, so no escape of a
//! recording reaches the terminal.

#![allow(missing_docs, reason = "an internal crate of the command line")]

mod app;
mod compare;
mod frame_text;
mod help;
mod look;
pub mod numbers;
mod run;
mod runs;
mod source;
mod terminal;
#[cfg(test)]
mod tests;
mod wrap;

pub use look::{Look, Surroundings, UnfitTerminal};
pub use source::{BadgesFn, RunSource};
pub use terminal::{TerminalEnd, show};

/// Where the view begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartScreen {
    /// The list of runs.
    Runs,
    /// A run, at this frame; without one at the frame to read first.
    Run(String, Option<u32>),
}
