//! annals over sockets: the proxy that records and replays programs that call models over HTTP, the daemon,
//! and their helpers.
//!
//! The proxy listens on the loopback only. It does not terminate TLS or forge certificates: a program is
//! pointed at it by the environment variables from which clients read their base address ([`Mounts`]). The
//! address carries a secret of the run.
//!
//! Layout: `proxy` (listening, exchanges, recording, replaying), `program` (the child process: environment,
//! output, exit), `nondet` (its clocks and random numbers), `session` (proxy and program together, as a run),
//! `share` (several recorders of one store), `daemon` (a store served to Redis and HTTP clients), `otlp`
//! (traces of other tools as runs), `resp` (the protocol of `share` and `daemon`), `frame_views` (recorded
//! exchanges for people), `memory_input` (entries for a memory), `run_memory` (outcomes of runs as entries),
//! `run_usage` (tokens and cost of a run), `align` (two runs side by side), `rules` (the user's rules file),
//! `embeddings` (vectors from an external service), [`mod@inspect`] (checks of a program before it is
//! recorded). With the feature `middleware`, a program records and replays itself ([`middleware`]). Functions
//! of bytes alone, without sockets: [`providers`] (knowledge about model providers), [`redact`] (secrets that
//! must not reach the disk) and [`profiles`] (redaction for readers).

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
mod percent;
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
