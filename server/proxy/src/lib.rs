//! Programs recorded, replayed and run on behind a loopback proxy. It speaks no RESP and serves no store.
//!
//! The proxy listens on the loopback only. It does not terminate TLS or forge certificates: a program is
//! pointed at it by the environment variables from which clients read their base address ([`Mounts`]). The
//! address carries a secret of the run.
//!
//! Layout, lowest first; a module uses only those before it: `body` (parts of a body put together), `mounts` and `variables` (which upstream an address stands for), `upstream` (the HTTP client),
//! `embeddings` (vectors of texts, from others), `program` (the child process), `destination` (where runs are recorded), `nondet` (clocks and
//! randomness), `network` (what a program reaches besides), `error`, `origin` (what a run is of), `proxy` (listening, recording, replaying), `session`
//! (a program and its proxy, as a run), then [`mod@inspect`] (a program before it is recorded), `middleware` (a program that records itself) and
//! `run_usage` (tokens and cost of a run).
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

pub mod body;
pub mod destination;
pub mod embeddings;
mod error;
pub mod inspect;
#[cfg(feature = "middleware")]
pub mod middleware;
mod mounts;
mod network;
mod nondet;
mod origin;
mod own_frames;
pub mod program;
pub mod proxy;
mod run_usage;
mod session;
mod upstream;
mod variables;

pub use error::{ProxyError, SessionError};
pub use mounts::{Mount, MountError, Mounts};
pub use network::{
    Connection, DestinationKind, HostPattern, NetworkPolicy, NetworkScope, NoticeFn, TrafficReport,
    UnrecordedTraffic,
};
pub use nondet::{CaptureReport, NondetError};
pub use origin::{Origin, RecordedInput};
pub use run_usage::{RunUsage, run_usage};
pub use session::{
    AttachOptions, AttachReport, ForkOptions, ForkReport, OnwardOptions, OnwardReport, RecordOptions,
    RecordReport, ReplayReport, attach, fork, record, replay, replay_onward,
};
pub use upstream::UpstreamGuard;
pub use variables::Variable;
