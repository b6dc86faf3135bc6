//! Clocks and randomness of programs: a library loaded into each process of the program (server/preload)
//! notes its draws, and serves recorded ones.
//!
//! `capture` owns the directory that the library and this process share. `lanes` stores draws as frames and
//! compares them. `reach` knows which programs the library cannot cover. Uncovered programs are always
//! reported ([`CaptureReport::missed`]).

mod capture;
mod lanes;
mod reach;

pub(crate) use capture::{Capture, HASH_SEED, possible, private_directory};
pub use capture::{Captured, NondetError};
pub(crate) use lanes::Lanes;
pub(crate) use reach::{Chain, End, chain, regular, uncovered};
