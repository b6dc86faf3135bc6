//! Commands to the process that serves a store, and the store itself where no process holds it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use annals::{ErrorKind, Options, Store};
use tokio::time::Instant;

use super::host::Host;
use super::socket;
use annals_wire::resp::{Reply, ResponseDecoder, write_command};
use annals_wire::words::parse_error;

/// Maximum wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts. Shorter than the time for which recorders leave a free lock alone, so that a
/// process that waits gets the store between two of them.
const ASK_PAUSE: Duration = Duration::from_millis(5);

/// How long to wait for a process that holds the store without running the command.
pub struct HolderWait<'a> {
    /// The longest wait.
    pub most: Duration,
    /// Called once, with the refusal, before a wait of more than a moment.
    pub waiting: &'a mut dyn FnMut(&annals::Error),
}

/// Waits shorter than this one are not reported.
const MOMENT: Duration = Duration::from_millis(500);

/// Why a command has no reply.
enum AskError {
    /// The process that serves the store was closing it: it has not seen the command.
    Unsent(annals::Error),
    /// The process that serves the store went away before it replied.
    Lost(annals::Error),
    Refused(annals::Error),
}

/// Runs a command in the daemon of the store in this directory. Returns its reply as text, one line for each
/// item of an array; `None` if no process listens.
///
/// # Errors
/// The daemon's error; `Unavailable` if it goes away.
pub fn ask_daemon(root: &Path, words: &[&[u8]]) -> annals::Result<Option<String>> {
    ask_with_timeout(root, words, Some(REPLY_TIMEOUT)).map_err(|error| match error {
        AskError::Unsent(error) | AskError::Lost(error) | AskError::Refused(error) => error,
    })
}

/// The outcome of [`ask_or_open`].
#[derive(Debug)]
pub enum AskOutcome {
    /// The process that holds the store ran the command: its reply.
    Asked(String),
    /// This process has opened the store.
    Opened(Store),
}

/// Runs a command in the daemon or recorder that holds the store in this directory, else opens the store. If
/// a process holds it without serving, or is about to close it, this waits. `repeats` says that the command may
/// happen twice: then it is given to the next holder if one goes away before it replied.
///
/// # Errors
/// The error of the process that holds the store; those of [`Store::open_with`].
pub fn ask_or_open(
    root: &Path,
    words: &[&[u8]],
    options: &Options,
    repeats: bool,
    wait: HolderWait<'_>,
) -> annals::Result<AskOutcome> {
    retry_while_locked(wait, || match ask_with_timeout(root, words, None) {
        Ok(Some(reply)) => Ok(AskOutcome::Asked(reply)),
        Ok(None) => Store::open_with(root, options.clone()).map(AskOutcome::Opened),
        Err(AskError::Lost(error)) if !repeats => Err(error),
        Err(AskError::Unsent(error) | AskError::Lost(error)) => {
            Err(annals::Error::new(ErrorKind::Locked, error.to_string()))
        }
        Err(AskError::Refused(error)) => Err(error),
    })
}

/// Opens a store for writing, and waits while another process holds it.
///
/// # Errors
/// Those of [`Store::open_with`].
pub fn open_or_wait(root: &Path, options: &Options, wait: HolderWait<'_>) -> annals::Result<Store> {
    retry_while_locked(wait, || Store::open_with(root, options.clone()))
}

/// Lets recorders write through this process while it holds the store; dropping it ends that.
#[derive(Debug)]
pub struct RecorderHost(#[expect(dead_code, reason = "it serves until it is dropped")] Host);

impl RecorderHost {
    /// Serves the store in this directory, which this process has opened for writing; `None` if the file system
    /// has no sockets.
    #[must_use]
    pub fn start(store: &Store, root: &Path) -> Option<Self> {
        Host::start(store, root, Arc::default()).ok().map(Self)
    }
}

pub(super) fn retry_while_locked<T>(
    wait: HolderWait<'_>,
    mut attempt: impl FnMut() -> annals::Result<T>,
) -> annals::Result<T> {
    let (mut began, mut is_told) = (Instant::now(), false);
    loop {
        let attempted = Instant::now();
        let done = attempt();
        if attempted.elapsed() > MOMENT {
            // A process had begun the command: that was no wait.
            began = Instant::now();
        }
        match done {
            Err(error) if error.kind() == ErrorKind::Locked && began.elapsed() < wait.most => {
                if !is_told && began.elapsed() >= MOMENT {
                    is_told = true;
                    (wait.waiting)(&error);
                }
            }
            done => return done,
        }
        std::thread::sleep(ASK_PAUSE);
    }
}

fn unavailable(why: &dyn std::fmt::Display) -> annals::Error {
    annals::Error::new(ErrorKind::Unavailable, format!("the process that serves the store: {why}"))
}

fn ask_with_timeout(
    root: &Path,
    words: &[&[u8]],
    silence: Option<Duration>,
) -> Result<Option<String>, AskError> {
    let Ok(mut stream) = socket::connect(root) else { return Ok(None) };
    stream.set_read_timeout(silence).map_err(|error| AskError::Unsent(unavailable(&error)))?;
    // A process that closes the store may accept a connection and never serve it.
    ask_on(&mut stream, &[b"PING"]).map_err(|error| match error {
        AskError::Lost(error) => AskError::Unsent(error),
        error => error,
    })?;
    ask_on(&mut stream, words).map(Some)
}

/// Sends one command and waits for its reply.
fn ask_on(stream: &mut UnixStream, words: &[&[u8]]) -> Result<String, AskError> {
    let lost = |error: std::io::Error| AskError::Lost(unavailable(&error));
    write_command(stream, words).map_err(lost)?;
    let (mut responses, mut buffer) = (ResponseDecoder::default(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).map_err(lost)?;
        if read == 0 {
            return Err(AskError::Lost(unavailable(&"it hung up")));
        }
        let mut input = &buffer[..read];
        let reply = responses.next(&mut input);
        match reply.map_err(|error| AskError::Refused(unavailable(&error)))? {
            None => {}
            Some(Reply::Error(error)) => return Err(AskError::Refused(parse_error(&error))),
            Some(Reply::Bulk(bytes)) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Some(Reply::Simple(text)) => return Ok(text.into_owned()),
            Some(Reply::Integer(number)) => return Ok(number.to_string()),
            Some(Reply::Array(items)) => {
                let texts = items.into_iter().filter_map(|item| match item {
                    Reply::Bulk(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
                    _ => None,
                });
                return Ok(texts.collect::<Vec<_>>().join("\n"));
            }
            Some(_) => return Ok(String::new()),
        }
    }
}
