//! The side that joins: a store that another process holds, written through its socket.
//!
//! What has a result that somebody needs is asked for and waited for. The rest is sent ahead, as a holder of the store hands it to the writer; a
//! refusal of it is found with the next reply and stays: from then on nothing is sent. Where the other process goes away it is the same.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::{Ending, ErrorKind, Frame, RunSpec, Status};

use super::socket;
use annals_proxy::destination::{Destination, RemoteBlob, RemoteFrame, RemoteRun, RemoteSpace};
use annals_wire::resp::{BULK_BYTES_MAX, Reply, Responses, write_command};
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{Words, bytes, told, wrong};

/// Commands that may be under way without their replies having been read. Those of so many fit in a socket: whoever serves is never kept
/// from reading by them.
const AHEAD_MAX: usize = 64;
/// Bytes of a body that are sent at once.
const PART_BYTES: usize = 1 << 20;
/// One who serves and says nothing for so long is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 4096;

/// A namespace of a store that another process holds.
#[derive(Debug, Clone)]
pub(super) struct Remote(Arc<Mutex<Link>>);

#[derive(Debug)]
struct Link {
    stream: UnixStream,
    decoder: Responses,
    /// What was read and not yet decoded.
    read: Vec<u8>,
    /// Replies that are still to come.
    ahead: usize,
    /// Why nothing is sent any more.
    lost: Option<(ErrorKind, String)>,
    blobs: u64,
}

/// What became of an attempt to join.
pub(super) enum Joined {
    Yes(Remote),
    /// Nobody serves there, or nobody new: the lock may be free by now.
    NotNow,
}

/// A run that is recorded through a socket.
#[derive(Debug, Clone)]
struct SocketRun {
    remote: Remote,
    name: String,
}

/// A frame of such a run whose output is still to come.
#[derive(Debug)]
struct SocketFrame {
    run: SocketRun,
    seq: u32,
}

impl From<Remote> for Destination {
    fn from(remote: Remote) -> Self {
        Self::from(Arc::new(remote) as Arc<dyn RemoteSpace>)
    }
}

impl Remote {
    /// Joins whoever holds the store of this directory.
    ///
    /// # Errors
    /// What that process says against it.
    pub(super) fn join(root: &Path, namespace: &str) -> annals::Result<Joined> {
        let Ok(stream) = socket::connect(root) else { return Ok(Joined::NotNow) };
        let patient = stream.set_read_timeout(Some(SILENCE)).and(stream.set_write_timeout(Some(SILENCE)));
        if patient.is_err() {
            return Ok(Joined::NotNow);
        }
        let link =
            Link { stream, decoder: Responses::default(), read: Vec::new(), ahead: 0, lost: None, blobs: 0 };
        let remote = Self(Arc::new(Mutex::new(link)));
        let asked = remote.call(&Words::new(RecorderCommand::UseStore).word(namespace.as_bytes()));
        match asked {
            Ok(_) => Ok(Joined::Yes(remote)),
            // It closes; one that is only silent has the store for longer than anybody should wait.
            Err(_) if remote.link().is_gone() => Ok(Joined::NotNow),
            Err(error) => Err(error),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something, and waits for the reply.
    fn call(&self, words: &Words<'_>) -> annals::Result<Reply> {
        let mut link = self.link();
        // Before it is sent: nothing may end as whole after a part of it was refused.
        link.settle()?;
        link.send(words)?;
        let reply = link.reply()?;
        match reply {
            Reply::Error(error) => Err(told(&error)),
            reply => Ok(reply),
        }
    }

    /// Sends something whose reply is read later.
    fn post(&self, words: &Words<'_>) -> annals::Result<()> {
        let mut link = self.link();
        link.send(words)?;
        link.ahead += 1;
        if link.ahead >= AHEAD_MAX { link.settle() } else { Ok(()) }
    }
}

impl RemoteSpace for Remote {
    fn begin_run(&self, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>> {
        self.call(&Words::new(RecorderCommand::BeginRun).run(spec)?)?;
        Ok(Arc::new(SocketRun { remote: self.clone(), name: spec.name.clone() }))
    }

    fn store_blob(&self, from: &mut dyn Read) -> annals::Result<RemoteBlob> {
        let name = {
            let mut link = self.link();
            link.blobs += 1;
            link.blobs.to_string().into_bytes()
        };
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(annals::Error::new(ErrorKind::Unavailable, error.to_string())),
            };
            self.post(&Words::new(RecorderCommand::AppendBlob).word(name.as_slice()).word(&buffer[..read]))?;
        }
        let len = self.call(&Words::new(RecorderCommand::EndBlob).word(name.as_slice()))?;
        Ok(RemoteBlob { len: number(&len)?, name })
    }
}

impl Link {
    fn send(&mut self, words: &Words<'_>) -> annals::Result<()> {
        if let Some((kind, why)) = &self.lost {
            return Err(annals::Error::new(*kind, why.clone()));
        }
        let words = words.as_slices();
        if words.iter().map(|word| word.len()).sum::<usize>() > BULK_BYTES_MAX {
            return Err(wrong(format!(
                "a body over {BULK_BYTES_MAX} bytes cannot be sent to whoever holds the store"
            )));
        }
        let sent = write_command(&mut self.stream, &words);
        sent.map_err(|error| self.lose_to(&error))
    }

    /// Reads the replies to all that was sent ahead.
    fn settle(&mut self) -> annals::Result<()> {
        while self.ahead > 0 {
            self.ahead -= 1;
            if let Reply::Error(error) = self.reply()? {
                let error = told(&error);
                self.lost = Some((error.kind(), error.to_string()));
                return Err(error);
            }
        }
        Ok(())
    }

    fn reply(&mut self) -> annals::Result<Reply> {
        loop {
            let mut input = self.read.as_slice();
            let decoded = self.decoder.next(&mut input);
            let left = input.len();
            self.read.drain(..self.read.len() - left);
            match decoded {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(malformed) => return Err(self.lose(ErrorKind::Unavailable, &malformed.to_string())),
            }
            let mut buffer = [0; READ_BYTES];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.lose(ErrorKind::Unavailable, "it has closed the connection")),
                Ok(read) => self.read.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lose_to(&error)),
            }
        }
    }

    fn lose_to(&mut self, error: &std::io::Error) -> annals::Error {
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                let why = format!("it has not answered for {} s", SILENCE.as_secs());
                self.lose(ErrorKind::Locked, &why)
            }
            _ => self.lose(ErrorKind::Unavailable, &error.to_string()),
        }
    }

    /// The other process has ended, or closes the store.
    fn is_gone(&self) -> bool {
        matches!(self.lost, Some((ErrorKind::Unavailable, _)))
    }

    /// The other process is gone, or not to be understood.
    fn lose(&mut self, kind: ErrorKind, why: &str) -> annals::Error {
        let why = format!("the process that holds the store is lost: {why}");
        self.lost = Some((kind, why.clone()));
        annals::Error::new(kind, why)
    }
}

impl SocketRun {
    fn words(&self, command: RecorderCommand) -> Words<'_> {
        Words::new(command).word(self.name.as_bytes())
    }
}

impl RemoteRun for SocketRun {
    fn name(&self) -> &str {
        &self.name
    }

    fn submit(&self, frame: &Frame, blob: Option<&RemoteBlob>) -> annals::Result<()> {
        let words = self.words(RecorderCommand::AddFrame).word(frame.component.name().as_bytes());
        let mut words = words.word(bytes(&frame.input)?).word(bytes(&frame.output)?);
        if let Some(blob) = blob {
            words = words.word(b"BLOB".as_slice()).word(blob.name.as_slice());
        }
        self.remote.post(&words.frame(frame))
    }

    fn begin_frame(&self, frame: &Frame) -> annals::Result<Box<dyn RemoteFrame>> {
        let words = self.words(RecorderCommand::BeginFrame).word(frame.component.name().as_bytes());
        let seq = self.remote.call(&words.word(bytes(&frame.input)?).frame(frame))?;
        Ok(Box::new(SocketFrame { run: self.clone(), seq: number(&seq)? }))
    }

    fn end(&self, status: Status) -> annals::Result<()> {
        self.remote.call(&self.words(RecorderCommand::EndRun).word(status.name().as_bytes())).map(drop)
    }

    fn remember(&self) -> annals::Result<()> {
        self.remote.call(&self.words(RecorderCommand::RememberRun)).map(drop)
    }
}

impl SocketFrame {
    fn words(&self, command: RecorderCommand) -> Words<'_> {
        self.run.words(command).word(self.seq.to_string().into_bytes())
    }
}

impl RemoteFrame for SocketFrame {
    fn seq(&self) -> u32 {
        self.seq
    }

    fn append(&self, bytes: &[u8]) -> annals::Result<()> {
        bytes
            .chunks(PART_BYTES)
            .try_for_each(|part| self.run.remote.post(&self.words(RecorderCommand::AppendFrame).word(part)))
    }

    fn finish_with(self: Box<Self>, ending: &Ending) -> annals::Result<u32> {
        number(&self.run.remote.call(&self.words(RecorderCommand::EndFrame).ending(ending))?)
    }
}

fn number<T: TryFrom<i64>>(reply: &Reply) -> annals::Result<T> {
    let number = match reply {
        Reply::Integer(number) => T::try_from(*number).ok(),
        _ => None,
    };
    number.ok_or_else(|| {
        annals::Error::new(ErrorKind::Unavailable, "whoever holds the store replied with no number")
    })
}
