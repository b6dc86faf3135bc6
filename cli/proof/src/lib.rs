//! Checks proofs and checkpoints of an annals ledger without a store.
//!
//! The engine writes proofs and checkpoints; this crate shares no code with it. It implements docs/format.md
//! (sections 6, 7, 11 and 18) a second time, and is small enough to be audited. It opens no file and reads no
//! clock.
//!
//! Its input is untrusted: every length and index is checked, work is bounded by the input's size, and every
//! fault is a [`ProofError`]. Its statements about a record come from the record itself; the text in the file
//! must agree.
//!
//! Layout: `proof` (the whole check), `checkpoint`, `head` (records), `tree` (RFC 9162), `keys` (Ed25519),
//! `text` (hexadecimal and base64).

mod checkpoint;
mod error;
mod head;
mod keys;
mod proof;
mod text;
mod tree;

pub use checkpoint::{
    CheckedCheckpoint, CheckedCounts, CheckedMark, CheckedParts, CheckedRunPart, CheckedSignature,
};
pub use error::ProofError;
pub use keys::{PrivateKey, PublicKey};
pub use proof::{
    BodyClaim, CheckpointAgreement, FrameClaim, JSON_BYTES_MAX, ProofClaim, ProofVerdict, RunClaim, check,
};

/// A BLAKE3 hash.
pub type Hash = [u8; 32];
