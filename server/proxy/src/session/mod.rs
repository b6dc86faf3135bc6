//! Sessions: a program is recorded, replayed or continued from a frame, from its start to its end.
//!
//! The run's metadata says what was started and how ([`Origin`](crate::Origin)). Each exchange is a frame of
//! its own. The last frames belong to the program: `stdin` (its input), `program` (input: the command;
//! output: its standard output; metadata: how it ended) and `stderr`, if it wrote any.
//!
//! Layout: `stage` (a program behind a proxy, and the end of a run), `record`, `attach` (records programs
//! that others start), `replay`, `onward` (a replay that continues live), `fork`, `rerun` (many forks
//! of one run, each by a plan), `secrets` (named secrets
//! that no run stores).

mod attach;
mod fork;
mod onward;
mod record;
mod replay;
mod rerun;
pub(crate) mod secrets;
mod stage;

pub use attach::{AttachOptions, AttachReport, attach};
pub use fork::{ForkOptions, ForkReport, first_difference, fork};
pub use onward::{OnwardOptions, OnwardReport, replay_onward};
pub use record::{RecordOptions, RecordReport, record};
pub use replay::{ReplayReport, replay};
pub use rerun::{RerunReport, Rerunner, RerunnerOptions};
pub(crate) use stage::KEYS;

use crate::error::SessionError;
