//! What annals says to the outside over sockets, put together from its parts: `annals-policy` (model providers, redaction, profiles,
//! rules), `annals-review` (recorded runs, looked at), `annals-formats` (imports and OpenTelemetry), `annals-proxy` (programs behind the
//! proxy) and `annals-daemon` (a store served to clients and recorders). `annals-wire` (RESP, commands) is the daemon's.
//!
//! With the feature `middleware` a program of one's own records and replays itself ([`middleware`]).

pub use annals_daemon::{
    AskedOrOpened, Began, ConfiguredToken, Log, Rights, Serving, ServingError, Shared, Token, ask_daemon,
    ask_daemon_patiently, ask_or_open, make_token, revoke_token, serve, tokens,
};
pub use annals_formats::otlp::is_ingested;
pub use annals_policy::exchange::{Exchange, Headers, Http, Volatile};
pub use annals_policy::place::Place;
pub use annals_policy::rules::{POLICY_BYTES_MAX, RULES_BYTES_MAX, RulesError, RulesFile, parse_policy};
pub use annals_policy::{profiles, providers, redact};
pub use annals_proxy::destination::Destination;
pub use annals_proxy::embeddings::{
    EMBEDDINGS_VARIABLES, EmbedderHere, Embeddings, EmbeddingsOptions, environment_embedder,
};
#[cfg(feature = "middleware")]
pub use annals_proxy::middleware;
pub use annals_proxy::program::{
    Program, ProgramError, StandardInput, Supervision, Survivor, interrupted, when_interrupted,
};
pub use annals_proxy::proxy::{
    CacheUse, Diverged, Edit, Edits, Recorded, ReplayOptions, Replayed, Timing, Upstreams, forget_answers,
};
pub use annals_proxy::{
    Attached, Attaching, Captured, Connection, DestinationKind, ForkReport, Forking, Guard, HostPattern,
    Mount, MountError, Mounts, NetworkPolicy, NetworkScope, NondetError, NoticeFn, Onward, OnwardReport,
    Origin, ProxyError, RecordedInput, Recording, ReplayReport, Report, RunUsage, SessionError,
    TrafficReport, UnrecordedTraffic, Variable, attach, fork, inspect, record, replay, replay_onward,
    run_usage,
};
pub use annals_review::remembering::remember;
pub use annals_review::run_memory::{CONVERSATION, MEMORY, OFF, PRINCIPAL, Remembered, TENANT, remember_run};
pub use annals_review::{
    Alignment, BodyDifference, Failing, FrameDifference, Pair, align, failing, frame_difference, new_part,
    new_tool_results, plain_answer,
};
