//! One store, several recorders: whoever holds it serves a socket, and the others record through that.
//!
//! [`Shared::open`] holds a store that nobody writes, or joins whoever does. What is recorded goes into a [`Destination`](annals_proxy::destination::Destination), and
//! nobody who records asks which of the two it is. The socket speaks RESP2 (`annals_wire::resp`); where a daemon holds the store, recorders
//! come by its socket, and it hands them to the same host.
//!
//! Invariants: the store's lock alone says who serves, so a socket that a dead process left is replaced; a run belongs to the connection
//! that began it, and is abandoned with it; a command is read within fixed limits before anything is done.
//!
//! Layout: `socket` (where it stands), `host` and
//! `member` (the side that holds the store: the listener, one connection), `remote` (the other side), `ask` (one command to the side that holds it), `shared` (both as one).
//!
//! Left out on purpose: forks, keys and answers of earlier runs do not go through the socket; who may connect is decided by the
//! file's mode alone.

mod ask;
mod host;
mod member;
mod remote;
mod shared;
mod socket;

pub use ask::{AskedOrOpened, ask_daemon, ask_daemon_patiently, ask_or_open};
pub(crate) use host::{Came, Host};
pub use shared::Shared;
pub(crate) use socket::{Listening, listen_at, listen_for};
