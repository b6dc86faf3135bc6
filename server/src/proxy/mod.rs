//! The loopback proxy.
//!
//! - `listen` accepts connections and reads requests.
//! - `mounts` maps the proxy's addresses to upstreams, and `upstream` calls them.
//! - `record` records exchanges, and `replay` answers from a recording; `branch` and `onward` do one after
//! the other.
//! - `cache` holds answers of earlier runs.
//! - `upload` passes a long body on while it arrives, and `body_memory` limits the memory of bodies.
//! - `multi_run` does all this for many runs behind another listener.
//! - `backlog` writes to the store in the background.
//! - `exchange` is the metadata of a frame, and `clearing` removes named secrets from it.

mod awake;
mod backlog;
mod branch;
mod cache;
mod clearing;
mod diverged;
mod ends;
mod exchange;
mod lines;
mod listen;
mod many;
mod mounts;
mod onward;
mod record;
mod replay;
mod room;
mod taping;
mod unread;
mod upload;
mod upstream;
mod variables;
mod wire;

pub(crate) use branch::Branch;
pub use branch::{Edit, Edits};
pub(crate) use cache::Cache;
pub use cache::{CacheUse, forget_answers};
pub(crate) use clearing::clear_request;
pub use diverged::Diverged;
pub use exchange::{Exchange, Headers, Http, Volatile};
pub use listen::ProxyError;
pub(crate) use listen::{Asked, Proxy};
pub use many::Upstreams;
pub(crate) use many::{Many, RECORDED, REPLAYED, Wants};
pub(crate) use many::{Opened, Proxied, Refused, Runs, Unended, has_ended};
pub(crate) use mounts::origin_of;
pub use mounts::{Mount, MountError, Mounts};
pub(crate) use onward::{Onward, Served};
pub use record::Recorded;
pub(crate) use record::{Recorder, http_of};
pub use replay::{ReplayOptions, Replayed, Timing};
pub(crate) use replay::{Replayer, unhex};
#[cfg(test)]
pub(crate) use room::Room;
pub(crate) use taping::WHY_SEVERE;
pub use upstream::Guard;
pub(crate) use upstream::{Upstream, chain};
pub use variables::Variable;
