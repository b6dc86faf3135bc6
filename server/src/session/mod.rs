//! Sessions: a program is recorded, replayed or run on from a frame, from its beginning to its end.
//!
//! The run's metadata describes the program and its start ([`Origin`]). Each exchange is a frame. The last
//! frames belong to the program: `stdin` (its input), `program` (input: the command; output: its standard
//! output; metadata: how it ended) and `stderr`, if it wrote any.
//!
//! Layout: `origin` (the run's metadata), `stage` (starts a program behind a proxy, and ends a run), and the
//! sessions: `record`, `replay`, `onward` (a replay that continues live), `fork`, `attach`; `secrets`
//! (removed from recordings).

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

/// Why a session could not start.
#[derive(Debug)]
pub enum SessionError {
    /// The program could not be started.
    Program(ProgramError),
    /// The proxy cannot listen.
    Proxy(ProxyError),
    /// An upstream is not allowed.
    Mount(MountError),
    /// Clocks and randomness cannot be captured.
    Nondet(NondetError),
    /// A secret cannot be kept out of the store.
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
