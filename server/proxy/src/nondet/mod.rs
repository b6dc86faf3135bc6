//! Clocks and randomness of programs that know nothing of annals: a library of ours is loaded into each process of the program
//! (server/preload); it notes what is drawn and serves what was recorded.
//!
//! `capture` is the private directory in which the library and this process meet, `lanes` what was drawn, as frames and compared with
//! another run's, `reach` what the library cannot be loaded into. What is not covered is always told ([`Captured::missed`]).

mod capture;
mod lanes;
mod reach;

pub(crate) use capture::{Capture, HASH_SEED, possible, private_directory};
pub use capture::{Captured, NondetError};
pub(crate) use lanes::Lanes;
pub(crate) use reach::{Chain, End, chain, regular, uncovered};
