//! What a run came to, remembered when it has ended: what was asked and answered, which tools were called and what was decided on the way, under an
//! identity of the agents' memory (`annals_memory`), so that another agent finds it by its question.
//!
//! Invariants: a recording never waits for this and never fails by it; what is remembered of a run goes with the run (`Memory::remember_with`). A fork
//! of a tenant's run is never remembered as somebody else's.
//!
//! Layout: `conversation` (what the recorded calls said, call by call), `snapshot` (that as agentfootprint 9.62.0's `SnapshotEntry`), `whose` (the identity
//! that a run's tags name), `run` (a run to an entry), `behind` (a thread that does it for a daemon).
//!
//! Left out on purpose: a narrative, which nobody recorded; runs that were abandoned, unless somebody asks for one; replays, which are no runs.

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
