//! What annals says to the outside over sockets: the proxy that records and replays programs that call models over HTTP.
//!
//! The proxy listens on the loopback only. It ends no TLS and forges no certificate: a program is pointed at it by
//! the variables that clients read their base address from ([`Mounts`]). The address carries a secret of the run.
//!
//! Layout: `proxy` (listening, exchanges, recording, replaying), `program` (the child process: its
//! environment, its output, its end), `nondet` (what it reads of clocks and randomness), `session` (both together, as a run), `share` (several recorders of one store), `daemon` (a store
//! served to Redis clients), `otlp` (traces of others as runs), `resp` (what both speak), `look`
//! (recorded exchanges as a person wants to see them), `remembering` (what is kept in a memory), `run_memory` (what a run came to, kept there), `run_usage` (tokens and cost of a run), `align` (two runs side by side), `rules` (a file of the user's own), `embeddings` (vectors of texts, from others), [`mod@inspect`] (a program before it is recorded). With the feature `middleware` a program of one's own records and replays itself ([`middleware`]). Without a socket, functions of bytes alone:
//! [`providers`] (what is known of model providers), [`redact`] (what must not reach the disk) and [`profiles`] (what a reader is shown of what did).

mod align;
mod daemon;
mod embeddings;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod look;
#[cfg(feature = "middleware")]
pub mod middleware;
mod network;
mod nondet;
mod otlp;
mod place;
pub mod profiles;
mod program;
pub mod providers;
mod proxy;
pub mod redact;
mod remembering;
mod resp;
mod rules;
mod run_memory;
mod run_usage;
mod session;
mod share;

pub use align::{Alignment, BodyDifference, FrameDifference, Pair, align, frame_difference};
pub use daemon::{
    Began, ConfiguredToken, Log, Rights, Serving, ServingError, Token, make_token, revoke_token, serve,
    tokens,
};
pub use embeddings::{EMBEDDINGS_VARIABLES, EmbedderHere, Embeddings, EmbeddingsOptions};
pub use look::{Failing, failing, new_part, new_tool_results, plain_answer};
pub use network::{
    Connection, DestinationKind, HostPattern, NetworkPolicy, NetworkScope, NoticeFn, TrafficReport,
    UnrecordedTraffic,
};
pub use nondet::{Captured, NondetError};
pub use otlp::is_ingested;
pub use place::Place;
pub use program::{
    Program, ProgramError, StandardInput, Supervision, Survivor, interrupted, when_interrupted,
};
pub use proxy::{
    CacheUse, Diverged, Edit, Edits, Exchange, Guard, Headers, Http, Mount, MountError, Mounts, ProxyError,
    Recorded, ReplayOptions, Replayed, Timing, Upstreams, Variable, Volatile, forget_answers,
};
pub use remembering::remember;
pub use rules::{POLICY_BYTES_MAX, RULES_BYTES_MAX, RulesError, RulesFile, parse_policy};
pub use run_memory::{CONVERSATION, MEMORY, OFF, PRINCIPAL, Remembered, TENANT, remember_run};
pub use run_usage::{RunUsage, run_usage};
pub use session::{
    Attached, Attaching, ForkReport, Forking, Onward, OnwardReport, Origin, RecordedInput, Recording,
    ReplayReport, Report, SessionError, attach, fork, record, replay, replay_onward,
};
pub use share::{AskedOrOpened, Destination, Shared, ask_daemon, ask_daemon_patiently, ask_or_open};
