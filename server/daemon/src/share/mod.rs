//! One store, several recorders: the process that holds the store serves a socket, and other processes record
//! through it.
//!
//! [`Shared::open`] opens a store for writing, or joins the process that holds it. Recorded frames go into a
//! [`Destination`](annals_proxy::destination::Destination), which hides the difference. The socket speaks RESP2
//! (`annals_wire::resp`). A daemon that holds a store accepts recorders at its own socket and passes them to the
//! same host.
//!
//! Invariants: only the store's lock decides which process serves, so a socket left by a dead process is
//! replaced. A run belongs to the connection that began it and is abandoned with it, until its recorder, or a program
//! that asks for it by its name, takes it up again through another connection. If the holder goes away, one of the others becomes the holder. A command
//! is read within fixed limits before it runs.
//!
//! Layout: `socket` (its path), `host` (the listener of the process that holds the store), `member` (one of its
//! connections), `upkeep` (what else a host does for others), `holder` (who holds the store), `wire` and `link` (a
//! recorder's connection, and what is not acknowledged), `remote` (runs and frames over a link), `ask` (one command
//! to the process that holds the store), `shared` and `runs` (either side of runs), `keys` (either side of keyspaces), `notes`
//! (runs that are made of notes of many connections).
//!
//! Out of scope: cached answers do not go through the socket. The mode of the socket file
//! alone decides which users may connect.

mod ask;
mod holder;
mod host;
mod keys;
mod link;
mod member;
mod notes;
mod remote;
mod runs;
mod shared;
mod socket;
#[cfg(test)]
mod tests;
mod upkeep;
mod wire;

pub use ask::{AskOutcome, HolderWait, RecorderHost, ask_daemon, ask_or_open, open_or_wait};
pub(crate) use host::{HandoverBytes, Host};
pub use keys::{KeyChange, KeyRange, KeyScan, SharedKeys};
pub use runs::SharedRun;
pub use shared::Shared;
pub(crate) use socket::{ListeningSocket, listen_at, listen_guarded};
