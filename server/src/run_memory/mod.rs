//! Memory entries of recorded runs. When a run ends, its question, answer, tool calls and decisions are
//! stored under an identity of the agents' memory (`annals::memory`). Other agents can then recall them.
//!
//! Invariants: a recording never waits for this and never fails because of it. The entry is deleted with its
//! run (`Memory::remember_for_run`). A fork of a tenant's run is never stored under another identity.
//!
//! Layout:
//! - `conversation` reads the recorded calls in order;
//! - `snapshot` is the result, as agentfootprint 9.62.0's `SnapshotEntry`;
//! - `run_identity` is the identity in a run's tags;
//! - `remember` turns a run into an entry;
//! - `background` is the daemon's thread.
//!
//! Not included: a narrative, which is not recorded; abandoned runs, unless a caller asks for one; replays,
//! which are not runs.

mod behind;
mod conversation;
mod run;
mod snapshot;
mod whose;

pub(crate) use behind::Behind;
pub(crate) use run::remember_ended;
pub use run::{Remembered, remember_run};
pub use whose::{CONVERSATION, MEMORY, OFF, PRINCIPAL, TENANT};

#[cfg(test)]
mod tests;
