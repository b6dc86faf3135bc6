//! One command to whoever serves a store, from a process that only wants that done.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::{member, socket};
use crate::resp::{Reply, Responses, write_command};

/// How long a reply may take.
const SILENCE: Duration = Duration::from_secs(60);

/// As [`ask_daemon`], for what may take hours: only the connection's end ends the wait.
///
/// # Errors
/// As [`ask_daemon`].
pub fn ask_daemon_patiently(root: &Path, words: &[&[u8]]) -> annals::Result<Option<String>> {
    ask_within(root, words, None)
}

/// Has a command done by the daemon of the store in this directory. Gives its reply as a text, of several a line for each; `None` where nobody listens.
///
/// # Errors
/// What the daemon says; `Unavailable` where it goes away.
pub fn ask_daemon(root: &Path, words: &[&[u8]]) -> annals::Result<Option<String>> {
    ask_within(root, words, Some(SILENCE))
}

fn ask_within(root: &Path, words: &[&[u8]], silence: Option<Duration>) -> annals::Result<Option<String>> {
    let Ok(mut stream) = socket::connect(root) else { return Ok(None) };
    let gone = |why: &dyn std::fmt::Display| {
        annals::Error::new(
            annals::ErrorKind::Unavailable,
            format!("the process that serves the store: {why}"),
        )
    };
    let told = |error: std::io::Error| gone(&error);
    stream.set_read_timeout(silence).map_err(told)?;
    write_command(&mut stream, words).map_err(told)?;
    let (mut responses, mut buffer) = (Responses::default(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).map_err(told)?;
        if read == 0 {
            return Err(gone(&"it hung up"));
        }
        let mut input = &buffer[..read];
        match responses.next(&mut input).map_err(|error| gone(&error))? {
            None => {}
            Some(Reply::Error(error)) => return Err(member::told(&error)),
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
