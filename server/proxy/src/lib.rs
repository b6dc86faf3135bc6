//! Records, replays and continues programs behind a loopback proxy. Speaks no RESP and serves no store.
//!
//! The proxy listens on the loopback only. It does not terminate TLS or forge certificates: the environment
//! variables from which clients read their base address point the program to it ([`Mounts`]). The address
//! carries a secret of the run.
//!
//! Layout, lowest first; a module uses only earlier ones: `body` (assembles a body from its parts), `channel_body` (a body that a task sends), `mounts`
//! and `variables` (the upstream of an address), `upstream` (the HTTP client), `chat_client` (one
//! question to a model), `embeddings` (vectors of
//! texts, over HTTP), `program` (the child process), `spool` (a body that can be sent again), `destination`
//! (the store or process to record into), `nondet` (clocks and randomness), `network` (connections besides the proxy), `error`, `origin` and
//! `own_frames` (the program of a run), `proxy` (listening, recording, replaying), `session` (a program and
//! its proxy), [`mod@inspect`] (a program before it is recorded), `in_process` and `middleware` (a program
//! that records itself), `run_usage` (tokens and cost).
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

pub mod body;
pub mod channel_body;
mod chat_client;
pub mod destination;
pub mod embeddings;
mod error;
pub mod in_process;
pub mod inspect;
mod judge;
#[cfg(feature = "middleware")]
pub mod middleware;
mod mounts;
mod network;
mod nondet;
mod origin;
mod own_frames;
mod private_directory;
pub mod program;
pub mod proxy;
mod run_usage;
mod session;
pub mod spool;
mod upstream;
mod variables;

pub use error::{ProxyError, SessionError};
pub use judge::{JudgeModel, QuestionHash, keep_verdict, kept_verdict};
pub use mounts::{Mount, MountError, Mounts};
pub use network::{
    Connection, DestinationKind, HostPattern, NetworkPolicy, NetworkScope, NoticeFn, TrafficReport,
    UnrecordedTraffic,
};
pub use nondet::{CaptureReport, NondetError};
pub use origin::{Origin, RecordedInput};
pub use run_usage::{RunUsage, run_prices, run_usage};
pub use session::{
    AttachOptions, AttachReport, ForkOptions, ForkReport, OnwardOptions, OnwardReport, RecordOptions,
    RecordReport, ReplayReport, RerunReport, Rerunner, RerunnerOptions, attach, first_difference, fork,
    record, replay, replay_onward,
};
pub use upstream::UpstreamGuard;
pub use variables::Variable;
