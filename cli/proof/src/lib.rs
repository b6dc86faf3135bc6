//! Checks proofs and checkpoints of an annals ledger without a store.
//!
//! This crate shares no code with the engine, which writes them: it is a second reading of docs/format.md (sections
//! 6, 7, 11 and 18), small enough to be read whole before it is believed. It opens no file and reads no clock.
//!
//! What it is given is hostile: every length and index is checked, work follows the size of the input, and everything
//! wrong is an [`Error`]. What it says about a record it reads from the record itself; the text in the file has to agree.
//!
//! Layout: `proof` (the whole check), `checkpoint`, `head` (records), `tree` (RFC 9162), `keys` (Ed25519), `text`
//! (hexadecimal and base64).

mod checkpoint;
mod error;
mod head;
mod keys;
mod proof;
mod text;
mod tree;

pub use checkpoint::{Checkpoint, Mark, Signature};
pub use error::Error;
pub use keys::{PrivateKey, PublicKey};
pub use proof::{About, AboutFrame, AboutRun, Body, JSON_BYTES_MAX, Kept, Verdict, check};

/// A BLAKE3 hash.
pub type Hash = [u8; 32];
