//! A program recorded, replayed or run on from a frame, from its beginning to its end.
//!
//! The run's metadata says what was started and how ([`Origin`]). Each exchange is a frame of its own. The last frames are
//! the program's own: `stdin` (what it was given to read), `program` (input: what was started, output: its standard output, metadata: how it ended)
//! and, where it wrote any, `stderr`.
//!
//! Layout: `origin` (what a run is of), `stage` (a program started behind a proxy, and a run's end), and what is done with both: `record`,
//! `replay`, `onward` (a replay that goes on live), `fork`; `secrets` (what a run is recorded without).

mod attach;
mod fork;
mod onward;
mod origin;
mod record;
mod replay;
mod secrets;
mod stage;

pub use attach::{Attached, Attaching, attach};
pub use fork::{ForkReport, Forking, fork};
pub use onward::{Onward, OnwardReport, replay_onward};
pub(crate) use origin::random_key;
pub use origin::{Origin, RecordedInput};
pub use record::{Recording, Report, record};
pub use replay::{ReplayReport, replay};
pub(crate) use stage::{KEYS, PROGRAM};

use crate::nondet::NondetError;
use crate::program::ProgramError;
use crate::proxy::{MountError, ProxyError};

/// Why nothing was recorded.
#[derive(Debug)]
pub enum SessionError {
    /// The program could not be started.
    Program(ProgramError),
    /// There is no proxy for it.
    Proxy(ProxyError),
    /// An upstream that may not be called.
    Mount(MountError),
    /// Clocks and randomness cannot be captured.
    Nondet(NondetError),
    /// A secret that cannot be kept out of what is stored.
    Secret(String),
    /// The store.
    Store(annals::Error),
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Program(error) => f.write_str(&error.message),
            Self::Proxy(error) => error.fmt(f),
            Self::Mount(error) => error.fmt(f),
            Self::Nondet(error) => f.write_str(&error.0),
            Self::Secret(why) => f.write_str(why),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SessionError {}

impl From<NondetError> for SessionError {
    fn from(error: NondetError) -> Self {
        Self::Nondet(error)
    }
}

impl From<annals::Error> for SessionError {
    fn from(error: annals::Error) -> Self {
        Self::Store(error)
    }
}

impl From<ProxyError> for SessionError {
    fn from(error: ProxyError) -> Self {
        Self::Proxy(error)
    }
}

impl From<MountError> for SessionError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

fn wrong(what: &str) -> annals::Error {
    annals::Error::new(annals::ErrorKind::Invalid, what)
}
