//! Sends one command to the process that serves a store.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use annals::{ErrorKind, Options, Store};

use super::shared::{OPEN_TRIES, RETRY_PAUSE};
use super::socket;
use annals_wire::resp::{Reply, ResponseDecoder, write_command};
use annals_wire::words::parse_error;

/// Maximum wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// As [`ask_daemon`], without a timeout: for commands that may take hours. Only the end of the connection
/// ends the wait.
///
/// # Errors
/// As [`ask_daemon`].
pub fn ask_daemon_without_timeout(root: &Path, words: &[&[u8]]) -> annals::Result<Option<String>> {
    ask_with_timeout(root, words, None)
}

/// Runs a command in the daemon of the store in this directory. Returns its reply as text, one line for each
/// item of an array; `None` if no process listens.
///
/// # Errors
/// The daemon's error; `Unavailable` if it goes away.
pub fn ask_daemon(root: &Path, words: &[&[u8]]) -> annals::Result<Option<String>> {
    ask_with_timeout(root, words, Some(REPLY_TIMEOUT))
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
/// a process holds it without serving, such as a short-lived writer, this retries for ten seconds, as
/// recorders do.
///
/// # Errors
/// The error of the process that holds the store; those of [`Store::open_with`].
pub fn ask_or_open(root: &Path, words: &[&[u8]], options: &Options) -> annals::Result<AskOutcome> {
    let mut tries = 0;
    loop {
        let asked = match ask_daemon_without_timeout(root, words) {
            Ok(None) => Store::open_with(root, options.clone()).map(AskOutcome::Opened),
            asked => asked.map(|reply| AskOutcome::Asked(reply.unwrap_or_default())),
        };
        match asked {
            Err(error) if error.kind() == ErrorKind::Locked && tries < OPEN_TRIES => tries += 1,
            done => return done,
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

fn unavailable(why: &dyn std::fmt::Display) -> annals::Error {
    annals::Error::new(ErrorKind::Unavailable, format!("the process that serves the store: {why}"))
}

fn ask_with_timeout(
    root: &Path,
    words: &[&[u8]],
    silence: Option<Duration>,
) -> annals::Result<Option<String>> {
    let Ok(mut stream) = socket::connect(root) else { return Ok(None) };
    let lost = |error: std::io::Error| unavailable(&error);
    stream.set_read_timeout(silence).map_err(lost)?;
    write_command(&mut stream, words).map_err(lost)?;
    let (mut responses, mut buffer) = (ResponseDecoder::default(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).map_err(lost)?;
        if read == 0 {
            return Err(unavailable(&"it hung up"));
        }
        let mut input = &buffer[..read];
        match responses.next(&mut input).map_err(|error| unavailable(&error))? {
            None => {}
            Some(Reply::Error(error)) => return Err(parse_error(&error)),
            Some(Reply::Bulk(bytes)) => return Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Some(Reply::Simple(text)) => return Ok(Some(text.into_owned())),
            Some(Reply::Array(items)) => {
                let texts = items.into_iter().filter_map(|item| match item {
                    Reply::Bulk(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
                    _ => None,
                });
                return Ok(Some(texts.collect::<Vec<_>>().join("\n")));
            }
            Some(_) => return Ok(Some(String::new())),
        }
    }
}
