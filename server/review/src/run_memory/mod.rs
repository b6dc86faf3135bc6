//! Memory entries of recorded runs. When a run ends, each question of its users, with its answer, tool calls
//! and decisions, is stored under an identity of the agents' memory (`annals_memory`). Other agents can then recall them.
//!
//! Invariants: a recording never waits for this and never fails because of it. The entry is deleted when
//! its run is forgotten or replaced, and outlives the run's retention (`Memory::remember_for_run`). A fork of a tenant's run is never stored under another identity.
//!
//! A what-if (a fork, or a run that the cache answered) is only remembered on request, and its entries are
//! marked.
//!
//! Layout: `conversation` (what the recorded calls said), `snapshot` (the conversation as `SnapshotEntry` of
//! agentfootprint 9.62.0), `run_identity` (the identity in the run's tags), `remember` (a run to an entry).
//!
//! Not included: a narrative, which is not recorded; abandoned runs; replays, which are not runs.

mod conversation;
mod remember;
mod run_identity;
mod snapshot;

pub use remember::{EmbedderFn, FROM_CACHE, RememberOutcome, remember_ended, remember_imported};
pub use run_identity::{
    CONVERSATION_TAG, MEMORY_COMMITS_TAG, MEMORY_FOR_TAG, MEMORY_OFF, MEMORY_ON, MEMORY_TAG, PRINCIPAL_TAG,
    TENANT_TAG,
};

#[cfg(test)]
mod tests;
