//! A recorder's connection to the process that holds its store: commands out, replies in.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use annals::ErrorKind;
use annals_wire::resp::{Reply, ResponseDecoder, write_command};
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandWriter, parse_error};

/// A holder that is silent for this long counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 4096;

/// A connection that records into one namespace.
#[derive(Debug)]
pub(super) struct LinkWire {
    stream: UnixStream,
    decoder: ResponseDecoder,
    /// Bytes that were read but not decoded yet.
    read: Vec<u8>,
}

/// Why a connection does not serve.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The holder has gone, or is not ready: try again.
    Lost(String),
    /// The holder has not answered for a long time.
    Silent(String),
    /// The holder refused: trying again changes nothing.
    Refused(annals::Error),
}

pub(super) type LinkResult<T> = Result<T, LinkError>;

impl LinkWire {
    /// Makes a connection one that records into this namespace.
    pub(super) fn enter(stream: UnixStream, namespace: &str) -> LinkResult<Self> {
        let bounded =
            stream.set_read_timeout(Some(PEER_TIMEOUT)).and(stream.set_write_timeout(Some(PEER_TIMEOUT)));
        bounded.map_err(|error| lost(&error))?;
        let mut wire = Self { stream, decoder: ResponseDecoder::default(), read: Vec::new() };
        wire.ask(&CommandWriter::new(RecorderCommand::UseStore).word(namespace.as_bytes()).into_words())?;
        Ok(wire)
    }

    pub(super) fn send(&mut self, words: &[Vec<u8>]) -> LinkResult<()> {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        write_command(&mut self.stream, &words).map_err(|error| lost(&error))
    }

    /// Sends a command and waits for its reply.
    pub(super) fn ask(&mut self, words: &[Vec<u8>]) -> LinkResult<Reply> {
        self.send(words)?;
        match self.reply()? {
            Reply::Error(error) => Err(LinkError::Refused(parse_error(&error))),
            reply => Ok(reply),
        }
    }

    pub(super) fn reply(&mut self) -> LinkResult<Reply> {
        loop {
            let mut input = self.read.as_slice();
            let decoded = self.decoder.next(&mut input);
            let left = input.len();
            self.read.drain(..self.read.len() - left);
            match decoded {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(malformed) => return Err(LinkError::Refused(bug(malformed.to_string()))),
            }
            let mut buffer = [0; READ_BYTES];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(LinkError::Lost("it has closed the connection".to_owned())),
                Ok(read) => self.read.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(&error)),
            }
        }
    }
}

fn lost(error: &std::io::Error) -> LinkError {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            LinkError::Silent(format!("it has not answered for {} s", PEER_TIMEOUT.as_secs()))
        }
        _ => LinkError::Lost(error.to_string()),
    }
}

pub(super) fn bug(what: impl Into<String>) -> annals::Error {
    annals::Error::new(ErrorKind::Bug, what.into())
}
