//! A connection of the client loop: its socket, its bytes, and the turn that is not answered yet.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::client_loop::ConnectionSlot;
use super::connection::LOGIN_TIMEOUT;
use super::databases::{Databases, SettleResult};
use super::session::{Daemon, Session};
use super::tls::TlsStream;
use super::turn::{TurnEnd, TurnOutcome, run_turn};
use annals_wire::resp::{RequestDecoder, RequestLimits};

/// The socket of a connection. It does not block.
#[derive(Debug)]
pub(super) enum ClientStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    Tls(TlsStream),
}

impl ClientStream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends what a write took; `WouldBlock` if the socket does not take all of it now.
    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Whether a read that filled less than its buffer has emptied the socket. A TLS record may be followed
    /// by others.
    fn is_emptied_by_short_reads(&self) -> bool {
        !matches!(self, Self::Tls(_))
    }

    fn shut_down_writing(&mut self) {
        // A client that is gone needs no end of the stream.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tls(stream) => stream.shut_down_writing(),
        };
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.stream.as_fd(),
        }
    }
}

/// A connection of a Redis client.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) daemon: Arc<Daemon>,
    pub(super) stream: ClientStream,
    pub(super) session: Session,
    pub(super) requests: RequestDecoder,
    /// When it was accepted, on the monotonic clock.
    pub(super) opened_ns: u64,
}

impl ClientConnection {
    /// A connection that was just accepted. It is boxed because it passes through the states of several tasks,
    /// each of which would reserve its 2 KB.
    pub(super) fn new(daemon: &Arc<Daemon>, session: Session, stream: ClientStream) -> Box<Self> {
        let limits =
            if session.grant.is_some() { RequestLimits::CLIENT } else { RequestLimits::UNAUTHENTICATED };
        let opened_ns = daemon.io.monotonic_ns();
        let requests = RequestDecoder::new(limits);
        Box::new(Self { daemon: daemon.clone(), stream, session, requests, opened_ns })
    }

    /// When it has to end if nothing more arrives, on the monotonic clock; `active_ns` is the time of its
    /// last turn.
    pub(super) fn time_limit(&self, active_ns: u64) -> Option<u64> {
        let (since, limit) = match &self.session.grant {
            None => (self.opened_ns, Some(LOGIN_TIMEOUT)),
            Some(_) => (active_ns, self.daemon.idle),
        };
        let nanoseconds = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        limit.map(|limit| since.saturating_add(nanoseconds(limit)))
    }
}

/// A connection that leaves the loop, because its turn needs what would delay others.
#[derive(Debug)]
pub(super) struct Handback {
    pub(super) connection: Box<ClientConnection>,
    /// The bytes after the turn's requests.
    pub(super) input: Vec<u8>,
    /// The turn, with the replies that were not sent yet.
    pub(super) turn: TurnOutcome,
}

/// A connection in the loop.
#[derive(Debug)]
pub(super) struct LoopEntry {
    pub(super) connection: Box<ClientConnection>,
    pub(super) back: oneshot::Sender<Handback>,
    /// Bytes that were read and not handled.
    pub(super) input: Vec<u8>,
    /// There may be bytes to read.
    pub(super) is_readable: bool,
    /// The peer has closed its side, so a short read is not the last.
    pub(super) has_hung_up: bool,
    /// The loop ends, and what had arrived was read.
    pub(super) is_last: bool,
    /// The turn that waits for its writes, and when it began.
    pub(super) turn: Option<(TurnOutcome, u64)>,
    /// The time of its last turn, on the monotonic clock.
    pub(super) active_ns: u64,
}

/// What becomes of a connection after a turn.
pub(super) enum NextStep {
    Stays,
    Ends,
    Leaves(TurnOutcome),
}

/// What the loop does after looking at a connection.
pub(super) enum NextTurn {
    /// Nothing has arrived.
    Nothing,
    /// The connection has ended.
    Ends,
    /// The turn waits for these databases; it had this many commands.
    Waits(Arc<Databases>, usize),
    /// The turn waits for nothing.
    Done,
}

impl LoopEntry {
    /// Whether there may be a turn to run, or its end to note.
    pub(super) fn has_more(&self) -> bool {
        let session = &self.connection.session;
        self.is_readable || self.is_last || !self.input.is_empty() || session.held_command.is_some()
    }

    /// Reads what has arrived; `None` if that is nothing.
    pub(super) fn read(&mut self, buffer: &mut [u8], is_ending: bool) -> std::io::Result<Option<usize>> {
        if !self.is_readable || self.is_last {
            return if self.is_last { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(None) };
        }
        loop {
            return match self.connection.stream.read(buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    let is_emptied = self.connection.stream.is_emptied_by_short_reads();
                    self.is_readable = read == buffer.len() || self.has_hung_up || !is_emptied;
                    self.is_last = is_ending;
                    Ok(Some(read))
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_ending => {
                    self.is_readable = false;
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
    }

    /// Runs a turn over these bytes, and keeps those that are left.
    pub(super) fn run_turn(&mut self, slot: ConnectionSlot, mut input: &[u8]) -> NextTurn {
        let ClientConnection { daemon, session, requests, .. } = &mut *self.connection;
        self.active_ns = daemon.io.monotonic_ns();
        session.slot = Some(slot);
        // A fault of ours in one command must not end the connections of others.
        let turn = catch_unwind(AssertUnwindSafe(|| run_turn(daemon, session, requests, &mut input)));
        let Ok(turn) = turn else { return NextTurn::Ends };
        session.slot = None;
        self.input.extend_from_slice(input);
        let next = match &turn.waits_at {
            Some(databases) => NextTurn::Waits(databases.clone(), turn.commands),
            None => NextTurn::Done,
        };
        self.turn = Some((turn, self.active_ns));
        next
    }

    /// Sends the replies of its turn.
    pub(super) fn finish(&mut self, result: SettleResult) -> NextStep {
        let Some((mut turn, began_ns)) = self.turn.take() else { return NextStep::Stays };
        let ClientConnection { daemon, stream, session, .. } = &mut *self.connection;
        if let Err(why) = result {
            turn.fail(session, &why);
        }
        daemon.note_duration(session, turn.first, turn.commands, began_ns);
        if let Some(tenant) = turn.added.take() {
            tenant.added.notify_waiters();
        }
        let mut sent = 0;
        while let Some(rest) = turn.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match stream.write(rest) {
                Ok(0) => return NextStep::Ends,
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    turn.out.drain(..sent);
                    return NextStep::Leaves(turn);
                }
                Err(_) => return NextStep::Ends,
            }
        }
        turn.out.clear();
        match stream.flush() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return NextStep::Leaves(turn),
            Err(_) => return NextStep::Ends,
        }
        match turn.end {
            Some(TurnEnd::HangUp) => {
                stream.shut_down_writing();
                return NextStep::Ends;
            }
            Some(TurnEnd::Recorder(_)) => return NextStep::Leaves(turn),
            None => {}
        }
        let is_offloaded = session.held_command.as_ref().is_some_and(|held| held.offload.is_some());
        if turn.waits.is_some() || is_offloaded {
            return NextStep::Leaves(turn);
        }
        NextStep::Stays
    }
}
