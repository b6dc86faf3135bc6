//! A connection's bytes: read while there is room, done turn by turn, answered in order.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::session::{Daemon, Session};
use super::turn::{End, Turn, turn};
use annals_wire::resp::{Limits, Requests};

/// What is read of a connection at once.
const READ_BYTES: usize = 16 << 10;
/// How long a stranger may take to log in, and a client to take anything of its replies.
const LOGIN: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(60);

/// How often it is looked for what a client waits for, and what is heard of it meanwhile.
const LOOK: Duration = Duration::from_millis(100);
const CARRIED_BYTES_MAX: usize = 64 << 10;

/// A connection that is to go on as a recorder's: its command, and what followed that.
pub(super) type Recorder = (Vec<Vec<u8>>, Vec<u8>);

/// Answers a connection until it ends, or until the daemon does. Gives the recorder that it turned out to be.
///
/// # Errors
/// As reading and writing; `TimedOut` for one that is not waited for any longer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    daemon: &Daemon,
    mut session: Session,
    stream: &mut S,
    mut stopped: watch::Receiver<bool>,
) -> std::io::Result<Option<Recorder>> {
    let limits = if session.grant.is_some() { Limits::CLIENT } else { Limits::STRANGER };
    let mut requests = Requests::new(limits);
    let mut buffer = vec![0; READ_BYTES];
    let mut carried: Option<Vec<u8>> = None;
    let login = tokio::time::sleep(LOGIN);
    tokio::pin!(login);
    loop {
        let taken = carried.take();
        let mut input = match &taken {
            Some(bytes) => bytes.as_slice(),
            None => {
                let read = tokio::select! {
                    read = stream.read(&mut buffer) => read?,
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    () = idle(daemon.idle), if session.grant.is_some() => return Err(std::io::ErrorKind::TimedOut.into()),
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
            let mut done = match session.held.as_ref().and_then(|held| held.apart) {
                None => turn(daemon, &mut session, &mut requests, &mut input),
                Some(apart) => {
                    let _place = tokio::select! {
                        // What has come is still done where that need not be waited for.
                        biased;
                        place = daemon.places(apart).acquire() => place,
                        _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    };
                    // Other connections go on in another thread meanwhile.
                    tokio::task::block_in_place(|| turn(daemon, &mut session, &mut requests, &mut input))
                }
            };
            settle(&session, &mut done).await;
            daemon.took(&session, done.first, done.commands, began);
            if let Some(tenant) = &done.added {
                tenant.added.notify_waiters();
            }
            write(stream, &done.out).await?;
            if let Some(until) = done.waits {
                let mut rest = input.to_vec();
                tokio::select! {
                    () = pause(daemon, &session, until) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                    // Who hangs up is not waited with; who says more is heard afterwards.
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
                Some(End::HangUp) => {
                    let _ = stream.shutdown().await;
                    return Ok(None);
                }
                Some(End::Recorder(command)) => return Ok(Some((command, input.to_vec()))),
            }
        }
    }
}

/// Waits as long as a connection may ask nothing.
async fn idle(most: Option<Duration>) {
    match most {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
    }
}

/// Waits until something may have come.
pub(super) async fn pause(daemon: &Daemon, session: &Session, until: Option<u64>) {
    let now = daemon.now_ns() / 1_000_000;
    let left = until.map_or(LOOK, |until| Duration::from_millis(until.saturating_sub(now)).min(LOOK));
    // What recorders add is found by looking.
    let left = left.max(Duration::from_millis(1));
    match &session.grant {
        Some(grant) => drop(timeout(left, grant.tenant.added.notified()).await),
        None => tokio::time::sleep(left).await,
    }
}

/// Waits until what a turn rests on is on disk.
async fn settle(session: &Session, turn: &mut Turn) {
    let Some(wait) = turn.wait.take() else { return };
    match wait.await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => turn.fail(session, &why),
        Err(_) => turn.fail(session, "the daemon ends"),
    }
}

/// Writes all, as long as the other side takes some of it now and then.
async fn write<S: AsyncWrite + Unpin>(stream: &mut S, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let written = timeout(STALL, stream.write(bytes)).await??;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    stream.flush().await
}
