//! The server of annals, put together from its crates: `annals-policy` (model providers, redaction, profiles,
//! rules), `annals-review` (views of recorded runs), `annals-formats` (imports and OpenTelemetry),
//! `annals-proxy` (programs behind the proxy) and `annals-daemon` (a store served to clients and recorders).
//!
//! With the feature `middleware` a program records and replays itself ([`middleware`]).

pub mod blame {
    //! Which step caused the outcome of a run.
    pub use annals_blame::document::{BlameSettings, Outcome, Spent};
    pub use annals_blame::oracle::RunOutcome;
    pub use annals_blame::ranking::{BaseRate, PairKind, PairRow, Role, base_rate, pairs};
    pub use annals_blame::validate;
    pub use annals_blame::{
        BLAME_STEPS_TAG, BLAME_TAG, BlameDocument, BlameError, BlameOptions, BlameState, Blamer, Oracle,
        Perturbation, StepRow, Verdict, drop_blame, load_blame, rows,
    };
}
pub use annals_daemon::{
    AccessToken, AskOutcome, BACKUPS_KEPT, ConfiguredToken, ExpiredCounts, ForgetTarget, HolderWait,
    KeptBackup, LogFormat, RecorderHost, Rights, ServeConfig, ServeError, Shared, StartedDaemon,
    WITNESS_BYTES_MAX, ask_daemon, ask_or_open, delete_expired, erase_run, forget, is_own_keyspace,
    keep_backup, list_tokens, list_witnesses, make_token, only_of_another_store, open_or_wait,
    parse_expiry_ns, revoke_token, rotate_token, serve, time_text, witness_inside_store, write_witness,
};
pub use annals_formats::otlp::is_ingested;
pub use annals_page::report;
pub use annals_policy::body_path::BodyPath;
pub use annals_policy::exchange::{ExchangeMetadata, Headers, HttpExchange, VolatileExchange};
pub use annals_policy::rules::{POLICY_BYTES_MAX, RULES_BYTES_MAX, RulesError, RulesFile, parse_policy};
pub use annals_policy::{profiles, providers, redact};
pub use annals_proxy::destination::Destination;
pub use annals_proxy::embeddings::{
    ConfiguredEmbedder, EMBEDDINGS_VARIABLES, EmbeddingsOptions, HttpEmbedder, environment_embedder,
};
#[cfg(feature = "middleware")]
pub use annals_proxy::middleware;
pub use annals_proxy::program::{
    Program, ProgramError, StandardInput, StopReason, Supervision, Survivor, interrupted, when_interrupted,
};
pub use annals_proxy::proxy::{
    CacheUse, ForkEdit, ForkEdits, RecordingSummary, ReplayDivergence, ReplayOptions, ReplaySummary, Timing,
    UpstreamOptions, forget_answers,
};
pub use annals_proxy::{
    AttachOptions, AttachReport, CaptureReport, Connection, DestinationKind, ForkOptions, ForkReport,
    HostPattern, JudgeModel, Mount, MountError, Mounts, NetworkPolicy, NetworkScope, NondetError, NoticeFn,
    OnwardOptions, OnwardReport, Origin, ProxyError, QuestionHash, RecordOptions, RecordReport,
    RecordedInput, ReplayReport, RerunReport, Rerunner, RerunnerOptions, RunUsage, SessionError,
    TrafficReport, UnrecordedTraffic, UpstreamGuard, Variable, attach, first_difference, fork, inspect,
    keep_verdict, kept_verdict, record, replay, replay_onward, run_prices, run_usage,
};
pub use annals_review::memory_input::remember_json;
pub use annals_review::memory_redaction::{redacted_entry, redacted_hits};
pub use annals_review::memory_retention::delete_expired_memories;
pub use annals_review::run_memory::{
    CONVERSATION_TAG, MEMORY_COMMITS_TAG, MEMORY_FOR_TAG, MEMORY_OFF, MEMORY_ON, MEMORY_TAG, PRINCIPAL_TAG,
    RememberOutcome, TENANT_TAG, remember_imported,
};
pub use annals_review::search;
pub use annals_review::suspect;
pub use annals_review::{
    Alignment, BodyDifference, FailureReport, FrameDifference, FramePair, align, decoded_answer,
    failure_report, frame_difference, last_failure, new_part, new_tool_results,
};
pub use annals_review::{
    FrameKind, FrameStatus, FrameView, FrameViewOptions, HttpView, Lanes, RequestBefore, ShownBody,
    ShownSeverity, ShownUsage, TEXT_BYTES_MAX, TIMELINE_FRAMES, TIMELINE_FRAMES_MAX, Timeline, TimelineFrame,
    frame_view, timeline,
};
