//! The loopback proxy: `listen` takes connections and reads requests, `mounts` says which upstream an address stands for,
//! `upstream` calls it, `record` records what goes through, `replay` answers
//! from a recording, `branch` does both, one after the other, `exchange` is the form in which a frame keeps it.

mod branch;
mod exchange;
mod listen;
mod mounts;
mod record;
mod replay;
mod upstream;
mod wire;

pub(crate) use branch::Branch;
pub use branch::{Edits, Place};
pub use exchange::{Exchange, Headers, Http, Volatile};
pub use listen::ProxyError;
pub use mounts::{Mount, MountError, Mounts, Variable};
pub use record::Recorded;
pub(crate) use record::Recorder;
pub use replay::{Diverged, ReplayOptions, Replayed, Timing};
pub(crate) use replay::{Replayer, unhex};
pub use upstream::Guard;
