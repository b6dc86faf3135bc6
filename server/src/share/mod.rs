//! One store, several recorders: the process that holds the store serves a socket, and other processes record
//! through it.
//!
//! [`SharedStore::open`] opens a store that no process holds, or joins the process that holds it. Recording
//! goes into a [`Destination`], which hides the difference. The socket speaks RESP2 (`crate::resp`). A daemon
//! that holds a store accepts recorders at its own socket and passes them to the same host.
//!
//! Invariants: only the store's lock decides which process serves, so a socket left by a dead process is
//! replaced. A run belongs to the connection that began it and is abandoned with it. A command is read within
//! fixed limits before it runs.
//!
//! Layout: `command_words` (runs and frames as words of a command), `socket` (the socket's place), `host` and
//! `member` (the side that holds the store: the listener, one connection), `remote` (the joining side), `ask`
//! (one command to the holder), `destination` (both sides as one).
//!
//! Out of scope: forks, keys and cached answers do not go through the socket. The mode of the socket file
//! alone decides which users may connect.

mod ask;
mod destination;
mod host;
mod member;
mod remote;
mod socket;
mod words;

pub use ask::{AskedOrOpened, ask_daemon, ask_daemon_patiently, ask_or_open};
pub use destination::{Destination, Shared};
pub(crate) use destination::{Kept, NewFrame, NewRun};
pub(crate) use host::{Came, Host};
pub(crate) use member::code_of;
pub(crate) use socket::{Listening, listen_at, listen_for};
pub(crate) use words::Arguments;
