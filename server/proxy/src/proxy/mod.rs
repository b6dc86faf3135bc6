//! The loopback proxy.
//!
//! Layout:
//! - Connections: `listen` (reads requests), `arrivals` (their order), `connection` (what a client has read, whether it hung up), `socket_diag` (its end,
//!   from the kernel), `awake` (stays awake after an answer), `upload` (long request bodies),
//!   `body_memory` (limits the memory of bodies).
//! - Recording: `forward` (passes a request on), `record` and `exchange_recorder` (make frames), `backlog`
//!   (writes while traffic goes on), `clearing` (removes named secrets), `cache` (answers of earlier runs).
//! - Replaying: `replay` (answers from a recording), `identical_requests` and `answer_ends` (the recorded
//!   order), `diverged` (deviations), `branch` and `onward` (a replay that continues live), `steered`
//!   (a fork that decides each call by a plan).
//! - `multi_run`: all this for many runs behind the listener of another module.

mod answer_ends;
mod arrivals;
mod awake;
mod backlog;
mod body_memory;
mod branch;
mod cache;
mod clearing;
mod connection;
mod diverged;
mod exchange_recorder;
mod forward;
mod identical_requests;
mod listen;
mod multi_run;
mod onward;
mod record;
mod replay;
mod socket_diag;
mod steered;
mod upload;

pub use body_memory::BodyMemory;
pub(crate) use branch::ForkProxy;
pub use branch::{ForkEdit, ForkEdits};
pub(crate) use cache::AnswerCache;
pub use cache::{CacheUse, delete_due_answers, forget_answers};
pub(crate) use clearing::redact_request;
pub use diverged::ReplayDivergence;
pub(crate) use exchange_recorder::ExchangeRecorder;
pub(crate) use listen::{Proxy, ProxyRequest};
pub use multi_run::{MultiRunProxy, ProxyAction, RECORDED, REPLAYED, UpstreamOptions};
pub use multi_run::{RequestRefusal, RunAccess, RunEndError, RunProxyState, WritableRun, ended_message};
pub(crate) use onward::{OnwardProxy, ServedCalls};
pub use record::RecordingSummary;
pub(crate) use record::{ProxyRecorder, RecorderPool, http_exchange};
pub use replay::{
    ProxyReplayer, RecordedAnswer, RecordedResult, ReplayOptions, ReplaySummary, Timing, ToolReplay,
};
pub(crate) use steered::SteeredProxy;
pub use steered::{BodyEdit, CallAction, GivenAnswer, OtherCalls, RerunPlan};
