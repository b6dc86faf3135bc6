//! Clocks and randomness of programs: a library loaded into each process of the program (server/preload)
//! notes its draws, and serves recorded ones.
//!
//! `capture` owns the directory that the library and this process share. `lanes` stores draws as frames and
//! compares them. `reach` knows which programs the library cannot cover. Uncovered programs are always
//! reported ([`CaptureReport::missed`]).

mod capture;
mod lanes;
mod reach;

pub use capture::{CaptureReport, NondetError};
pub(crate) use capture::{HASH_SEED, NondetCapture, check_support};
pub(crate) use lanes::DrawLanes;
pub(crate) use reach::{ExecChain, ExecTarget, chain, open_regular, uncovered_programs};
