//! Sessions: a program is recorded, replayed or run on from a frame, from its beginning to its end.
//!
//! The run's metadata says what was started and how ([`Origin`](crate::Origin)). Each exchange is a frame of its own. The last frames are
//! frames belong to the program: `stdin` (its input), `program` (input: the command; output: its standard
//! output; metadata: how it ended) and `stderr`, if it wrote any.
//!
//! Layout: `stage` (a program started behind a proxy, and a run's end), and what is done with both: `record`,
//! `replay`, `onward` (a replay that goes on live), `fork`; `secrets` (what a run is recorded without).

mod attach;
mod fork;
mod onward;
mod record;
mod replay;
mod secrets;
mod stage;

pub use attach::{AttachOptions, AttachReport, attach};
pub use fork::{ForkOptions, ForkReport, fork};
pub use onward::{OnwardOptions, OnwardReport, replay_onward};
pub use record::{RecordOptions, RecordReport, record};
pub use replay::{ReplayReport, replay};
pub(crate) use stage::KEYS;

use crate::error::SessionError;
