//! Clocks and randomness of programs that know nothing of annals: a library of ours is loaded into each process of the program
//! (server/preload); it notes what is drawn and serves what was recorded.
//!
//! `capture` is the private directory in which the library and this process meet, `lanes` what was drawn, as frames and compared with
//! another run's, `reach` what the library cannot be loaded into. What is not covered is always told ([`Captured::missed`]).

mod capture;
mod lanes;
mod reach;

pub use capture::{CaptureReport, NondetError};
pub(crate) use capture::{HASH_SEED, NondetCapture, check_support, private_directory};
pub(crate) use lanes::DrawLanes;
pub(crate) use reach::{ExecChain, ExecTarget, chain, open_regular, uncovered_programs};
