//! The loopback proxy: `listen` takes connections and reads requests,
//! `forward` passes them on, `record` records what goes through, `replay` answers
//! from a recording, `branch` and `onward` do both, one after the other, `cache` has answers of earlier runs, `upload` passes
//! a long body on while it comes, `room` bounds what bodies take of memory, `many` does all this for many runs behind somebody else's listener, `backlog` writes while traffic goes on, `clearing` takes named secrets out of an exchange.

mod awake;
mod backlog;
mod branch;
mod cache;
mod clearing;
mod diverged;
mod ends;
mod forward;
mod lines;
mod listen;
mod many;
mod onward;
mod record;
mod replay;
mod room;
mod taping;
mod unread;
mod upload;
mod wire;

pub(crate) use branch::Branch;
pub use branch::{Edit, Edits};
pub(crate) use cache::Cache;
pub use cache::{CacheUse, forget_answers};
pub(crate) use clearing::clear_request;
pub use diverged::Diverged;
pub(crate) use listen::{Asked, Proxy};
pub use many::{Many, RECORDED, REPLAYED, Upstreams, Wants};
pub use many::{Opened, Proxied, Refused, Runs, Unended, has_ended};
pub(crate) use onward::{Onward, Served};
pub use record::Recorded;
pub(crate) use record::{Recorder, http_of};
pub use replay::{ReplayOptions, Replayed, Replayer, Timing};
pub use room::Room;
