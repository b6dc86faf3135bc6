//! The bytes of a connection: read while there is room, handled turn by turn, answered in order.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::session::{Daemon, Session};
use super::turn::{TurnEnd, TurnOutcome, run_turn};
use annals_wire::resp::{RequestDecoder, RequestLimits};

/// Size of a read from a connection, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Time limits for a client to log in, and to read some of its replies.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Polling interval of a blocked command, and the maximum bytes read from its connection meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const CARRIED_BYTES_MAX: usize = 64 << 10;

/// A connection that continues as a recorder's: its command, and the bytes after it.
pub(super) type RecorderHandover = (Vec<Vec<u8>>, Vec<u8>);

/// Serves a connection until it or the daemon ends. Returns the recorder handover if the connection is a
/// recorder's.
///
/// # Errors
/// Those of reading and writing; `TimedOut` if the client exceeds a time limit.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    daemon: &Daemon,
    mut session: Session,
    stream: &mut S,
    mut stopped: watch::Receiver<bool>,
) -> std::io::Result<Option<RecorderHandover>> {
    let limits = if session.grant.is_some() { RequestLimits::CLIENT } else { RequestLimits::UNAUTHENTICATED };
    let mut requests = RequestDecoder::new(limits);
    let mut buffer = vec![0; READ_BYTES];
    let mut carried: Option<Vec<u8>> = None;
    let login = tokio::time::sleep(LOGIN_TIMEOUT);
    tokio::pin!(login);
    loop {
        let taken = carried.take();
        let mut input = match &taken {
            Some(bytes) => bytes.as_slice(),
            None => {
                let read = tokio::select! {
                    read = stream.read(&mut buffer) => read?,
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    () = idle_timeout(daemon.idle), if session.grant.is_some() => return Err(std::io::ErrorKind::TimedOut.into()),
                    () = &mut login, if session.grant.is_none() => return Err(std::io::ErrorKind::TimedOut.into()),
                };
                if read == 0 {
                    return Ok(None);
                }
                &buffer[..read]
            }
        };
        loop {
            let began = daemon.io.monotonic_ns();
            let mut done = match session.held_command.as_ref().and_then(|held| held.offload) {
                None => run_turn(daemon, &mut session, &mut requests, &mut input),
                Some(apart) => {
                    let _place = tokio::select! {
                        // Work that needs no wait is still done after a stop.
                        biased;
                        place = daemon.offload_permits(apart).acquire() => place,
                        _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    };
                    // Other connections continue on another thread meanwhile.
                    tokio::task::block_in_place(|| run_turn(daemon, &mut session, &mut requests, &mut input))
                }
            };
            await_settled(&session, &mut done).await;
            daemon.note_duration(&session, done.first, done.commands, began);
            if let Some(tenant) = &done.added {
                tenant.added.notify_waiters();
            }
            write_all(stream, &done.out).await?;
            if let Some(until) = done.waits {
                let mut rest = input.to_vec();
                tokio::select! {
                    () = await_activity(daemon, &session, until) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    // A client that hangs up ends the wait; further requests are handled afterwards.
                    more = stream.read_buf(&mut rest), if rest.len() < CARRIED_BYTES_MAX => if more? == 0 {
                        return Ok(None);
                    },
                }
                carried = Some(rest);
                break;
            }
            match done.end {
                None if done.more => {}
                None => break,
                Some(TurnEnd::HangUp) => {
                    let _ = stream.shutdown().await;
                    return Ok(None);
                }
                Some(TurnEnd::Recorder(command)) => return Ok(Some((command, input.to_vec()))),
            }
        }
    }
}

/// Waits for the idle timeout; forever if there is none.
async fn idle_timeout(most: Option<Duration>) {
    match most {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
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
    stream.flush().await
}
