//! One store, several recorders: whoever holds it serves a socket, and the others record through that.
//!
//! [`Shared::open`] holds a store that nobody writes, or joins whoever does. What is recorded goes into a [`Destination`], and
//! nobody who records asks which of the two it is. The socket speaks RESP2: commands are arrays of bulk strings.
//!
//! Invariants: the store's lock alone says who serves, so a socket that a dead process left is replaced; a run belongs to the connection
//! that began it, and is abandoned with it; a command is read within fixed limits before anything is done.
//!
//! Layout: `resp` (values to bytes and back), `words` (runs and frames as words of a command), `socket` (where it stands), `host` and
//! `member` (the side that holds the store: the listener, one connection), `remote` (the other side), `destination` (both as one).
//!
//! Left out on purpose: forks, keys and answers of earlier runs do not go through the socket; who may connect is decided by the
//! file's mode alone.

mod destination;
mod host;
mod member;
mod remote;
mod resp;
mod socket;
mod words;

pub use destination::{Destination, Shared};
pub(crate) use destination::{Kept, NewFrame, NewRun};
