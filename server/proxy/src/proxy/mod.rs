//! The loopback proxy: `listen` takes connections and reads requests,
//! `forward` passes them on, `record` records what goes through, `replay` answers
//! from a recording, `branch` and `onward` do both, one after the other, `cache` has answers of earlier runs, `upload` passes
//! a long body on while it comes, `room` bounds what bodies take of memory, `many` does all this for many runs behind somebody else's listener, `backlog` writes while traffic goes on, `clearing` takes named secrets out of an exchange.

mod answer_ends;
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
mod socket_queue;
mod upload;

pub use body_memory::BodyMemory;
pub(crate) use branch::ForkProxy;
pub use branch::{ForkEdit, ForkEdits};
pub(crate) use cache::AnswerCache;
pub use cache::{CacheUse, forget_answers};
pub(crate) use clearing::redact_request;
pub use diverged::ReplayDivergence;
pub(crate) use listen::{Proxy, ProxyRequest};
pub use multi_run::{MultiRunProxy, ProxyAction, RECORDED, REPLAYED, UpstreamOptions};
pub use multi_run::{RequestRefusal, RunAccess, RunEndError, RunProxyState, WritableRun, ended_message};
pub(crate) use onward::{OnwardProxy, ServedCalls};
pub use record::RecordingSummary;
pub(crate) use record::{ProxyRecorder, http_exchange};
pub use replay::{ProxyReplayer, ReplayOptions, ReplaySummary, Timing};
