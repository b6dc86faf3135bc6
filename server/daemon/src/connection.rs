//! A connection of a Redis client from its beginning to its end: in the client loop, and in its task while a
//! turn needs what would delay other connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::client_connection::{ClientConnection, ClientStream, Handback};
use super::session::{Daemon, Session};
use super::turn::{TurnEnd, TurnOutcome, run_turn};
use crate::share::HandoverBytes;
use annals_wire::resp::RequestDecoder;

/// Size of a read from a connection, in bytes.
pub(super) const READ_BYTES: usize = 16 << 10;
/// Time limits for a client to log in, and to read some of its replies.
pub(super) const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Polling interval of a blocked command, and the maximum bytes read from its connection meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const CARRIED_BYTES_MAX: usize = 64 << 10;

/// A connection that continues as a recorder's: its socket, its command, and the bytes after it.
pub(super) type RecorderHandover = (ClientStream, HandoverBytes);

/// How the work of a task on a connection ends.
enum TaskEnd {
    /// All requests are answered: the client loop goes on.
    Returns,
    /// The connection has ended.
    Closed,
    /// It is a recorder's: its command and the bytes after it.
    Recorder(HandoverBytes),
}

/// Serves a connection until it or the daemon ends. Returns the recorder handover if the connection is a
/// recorder's.
///
/// # Errors
/// Those of reading and writing; `TimedOut` if the client exceeds a time limit.
pub(super) async fn serve(
    mut connection: Box<ClientConnection>,
    mut stopped: watch::Receiver<bool>,
) -> std::io::Result<Option<RecorderHandover>> {
    let daemon = connection.daemon.clone();
    loop {
        let served = daemon.client_loop.serve(connection);
        tokio::pin!(served);
        let early = tokio::select! {
            biased;
            handback = &mut served => Some(handback),
            _ = stopped.wait_for(|stopped| *stopped) => None,
        };
        let handback = match early {
            Some(handback) => handback,
            None => {
                daemon.client_loop.end_connections();
                served.await
            }
        };
        let Some(Handback { connection: mut left, input, turn }) = handback else { return Ok(None) };
        let end;
        (left.stream, end) = match left.stream {
            ClientStream::Tcp(stream) => {
                let mut stream = tokio::net::TcpStream::from_std(stream)?;
                let task = ConnectionTask { daemon: &daemon, stream: &mut stream, stopped: &mut stopped };
                let end = task.answer(&mut left.session, &mut left.requests, input, turn).await?;
                (ClientStream::Tcp(stream.into_std()?), end)
            }
            ClientStream::Tls(stream) => {
                let mut stream = stream.into_task_stream()?;
                let task = ConnectionTask { daemon: &daemon, stream: &mut stream, stopped: &mut stopped };
                let end = task.answer(&mut left.session, &mut left.requests, input, turn).await?;
                (ClientStream::Tls(stream.into_loop_stream()?), end)
            }
            ClientStream::Unix(stream) => {
                let mut stream = tokio::net::UnixStream::from_std(stream)?;
                let task = ConnectionTask { daemon: &daemon, stream: &mut stream, stopped: &mut stopped };
                let end = task.answer(&mut left.session, &mut left.requests, input, turn).await?;
                (ClientStream::Unix(stream.into_std()?), end)
            }
        };
        match end {
            TaskEnd::Returns => connection = left,
            TaskEnd::Closed => return Ok(None),
            TaskEnd::Recorder(bytes) => return Ok(Some((left.stream, bytes))),
        }
    }
}

/// A connection outside of the client loop.
struct ConnectionTask<'a, S> {
    daemon: &'a Arc<Daemon>,
    stream: &'a mut S,
    stopped: &'a mut watch::Receiver<bool>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionTask<'_, S> {
    /// Sends the replies of a turn, and runs the turns after it until all requests are answered.
    async fn answer(
        self,
        session: &mut Session,
        requests: &mut RequestDecoder,
        mut carried: Vec<u8>,
        mut done: TurnOutcome,
    ) -> std::io::Result<TaskEnd> {
        let Self { daemon, stream, stopped } = self;
        loop {
            write_all(stream, &done.out).await?;
            if let Some(until) = done.waits {
                tokio::select! {
                    () = await_activity(daemon, session, until) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(TaskEnd::Closed),
                    // A client that hangs up ends the wait; further requests are handled afterwards.
                    more = stream.read_buf(&mut carried), if carried.len() < CARRIED_BYTES_MAX => if more? == 0 {
                        return Ok(TaskEnd::Closed);
                    },
                }
            } else {
                match done.end {
                    None if done.more => {}
                    None => return Ok(TaskEnd::Returns),
                    Some(TurnEnd::HangUp) => {
                        let _ = stream.shutdown().await;
                        return Ok(TaskEnd::Closed);
                    }
                    Some(TurnEnd::Recorder(command)) => {
                        return Ok(TaskEnd::Recorder(HandoverBytes { command, rest: carried }));
                    }
                }
            }
            let mut input = carried.as_slice();
            let began = daemon.io.monotonic_ns();
            done = match session.held_command.as_ref().and_then(|held| held.offload) {
                None => run_turn(daemon, session, requests, &mut input),
                Some(offload) => {
                    let _place = tokio::select! {
                        // Work that needs no wait is still done after a stop.
                        biased;
                        place = daemon.offload_permits(offload).acquire() => place,
                        _ = stopped.wait_for(|stopped| *stopped) => return Ok(TaskEnd::Closed),
                    };
                    // Other tasks continue on another thread meanwhile.
                    tokio::task::block_in_place(|| run_turn(daemon, session, requests, &mut input))
                }
            };
            let handled = carried.len() - input.len();
            carried.drain(..handled);
            await_settled(session, &mut done).await;
            daemon.note_duration(session, done.first, done.commands, began);
            if let Some(tenant) = &done.added {
                tenant.added.notify_waiters();
            }
        }
    }
}
/// Waits until new data may be available, the poll interval passes, or `until` is reached.
pub(super) async fn await_activity(daemon: &Daemon, session: &Session, until: Option<u64>) {
    let now = daemon.now_ns() / 1_000_000;
    let left = until
        .map_or(POLL_INTERVAL, |until| Duration::from_millis(until.saturating_sub(now)).min(POLL_INTERVAL));
    // Frames of recorders send no notification, so they are found by polling.
    let left = left.max(Duration::from_millis(1));
    match &session.grant {
        Some(grant) => drop(timeout(left, grant.tenant.added.notified()).await),
        None => tokio::time::sleep(left).await,
    }
}

/// Waits until all that a turn depends on is durable.
pub(super) async fn await_settled(session: &Session, turn: &mut TurnOutcome) {
    let Some(wait) = turn.wait.take() else { return };
    match wait.await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => turn.fail(session, &why),
        Err(_) => turn.fail(session, "UNAVAILABLE the daemon ends"),
    }
}

/// Writes all bytes; each write must make progress within the time limit.
async fn write_all<S: AsyncWrite + Unpin>(stream: &mut S, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let written = timeout(WRITE_TIMEOUT, stream.write(bytes)).await??;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    timeout(WRITE_TIMEOUT, stream.flush()).await?
}
