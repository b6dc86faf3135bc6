//! The joining side: writes through the socket of the process that holds the store.
//!
//! A command whose result is needed waits for its reply. Other commands are sent ahead. A refusal of one of
//! them is found with the next reply and is permanent: nothing is sent afterwards. The same holds if the
//! other process goes away.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::{ErrorKind, Frame, RunSpec, Status, runs::Ending};

use super::socket;
use annals_proxy::destination::{Destination, RemoteBlob, RemoteFrame, RemoteRun, RemoteSpace};
use annals_wire::resp::{BULK_BYTES_MAX, Reply, ResponseDecoder, write_command};
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandWriter, bytes, invalid, parse_error};

/// Maximum number of commands whose replies are still unread. So few replies fit into the socket's buffer, so
/// the serving process never blocks on writing them.
const AHEAD_MAX: usize = 64;
/// Bytes of a body per command.
const PART_BYTES: usize = 1 << 20;
/// A serving process that is silent for this long counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 4096;

/// A namespace of a store that another process holds.
#[derive(Debug, Clone)]
pub(super) struct RemoteStore(Arc<Mutex<RemoteLink>>);

#[derive(Debug)]
struct RemoteLink {
    stream: UnixStream,
    decoder: ResponseDecoder,
    /// Bytes that were read but not decoded yet.
    read: Vec<u8>,
    /// Number of replies that are still to come.
    pending_replies: usize,
    /// Why nothing is sent any more.
    lost: Option<(ErrorKind, String)>,
    blobs: u64,
}

/// The outcome of an attempt to join.
pub(super) enum JoinOutcome {
    Joined(RemoteStore),
    /// No process serves the store, or it is closing: the lock may be free by now.
    NotNow,
}

/// A run that is recorded through a socket.
#[derive(Debug, Clone)]
struct SocketRun {
    remote: RemoteStore,
    name: String,
}

/// A frame of a remote run whose output is still to come.
#[derive(Debug)]
struct SocketFrame {
    run: SocketRun,
    seq: u32,
}

impl From<RemoteStore> for Destination {
    fn from(remote: RemoteStore) -> Self {
        Self::from(Arc::new(remote) as Arc<dyn RemoteSpace>)
    }
}

impl RemoteStore {
    /// Joins the process that holds the store in this directory.
    ///
    /// # Errors
    /// The refusal of that process.
    pub(super) fn join(root: &Path, namespace: &str) -> annals::Result<JoinOutcome> {
        let Ok(stream) = socket::connect(root) else { return Ok(JoinOutcome::NotNow) };
        let patient =
            stream.set_read_timeout(Some(PEER_TIMEOUT)).and(stream.set_write_timeout(Some(PEER_TIMEOUT)));
        if patient.is_err() {
            return Ok(JoinOutcome::NotNow);
        }
        let link = RemoteLink {
            stream,
            decoder: ResponseDecoder::default(),
            read: Vec::new(),
            pending_replies: 0,
            lost: None,
            blobs: 0,
        };
        let remote = Self(Arc::new(Mutex::new(link)));
        let asked = remote.call(&CommandWriter::new(RecorderCommand::UseStore).word(namespace.as_bytes()));
        match asked {
            Ok(_) => Ok(JoinOutcome::Joined(remote)),
            // The process is closing. One that is only silent may keep the store too long to wait for it.
            Err(_) if remote.link().is_gone() => Ok(JoinOutcome::NotNow),
            Err(error) => Err(error),
        }
    }

    fn link(&self) -> MutexGuard<'_, RemoteLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command and waits for its reply.
    fn call(&self, words: &CommandWriter<'_>) -> annals::Result<Reply> {
        let mut link = self.link();
        // Pending replies come first: a run must not end as complete after a part of it was refused.
        link.read_pending_replies()?;
        link.send(words)?;
        let reply = link.reply()?;
        match reply {
            Reply::Error(error) => Err(parse_error(&error)),
            reply => Ok(reply),
        }
    }

    /// Sends a command whose reply is read later.
    fn send_ahead(&self, words: &CommandWriter<'_>) -> annals::Result<()> {
        let mut link = self.link();
        link.send(words)?;
        link.pending_replies += 1;
        if link.pending_replies >= AHEAD_MAX { link.read_pending_replies() } else { Ok(()) }
    }
}

impl RemoteSpace for RemoteStore {
    fn begin_run(&self, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>> {
        self.call(&CommandWriter::new(RecorderCommand::BeginRun).run(spec)?)?;
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
            self.send_ahead(
                &CommandWriter::new(RecorderCommand::AppendBlob).word(name.as_slice()).word(&buffer[..read]),
            )?;
        }
        let len = self.call(&CommandWriter::new(RecorderCommand::EndBlob).word(name.as_slice()))?;
        Ok(RemoteBlob { len: number(&len)?, name })
    }
}

impl RemoteLink {
    fn send(&mut self, words: &CommandWriter<'_>) -> annals::Result<()> {
        if let Some((kind, why)) = &self.lost {
            return Err(annals::Error::new(*kind, why.clone()));
        }
        let words = words.as_slices();
        if words.iter().map(|word| word.len()).sum::<usize>() > BULK_BYTES_MAX {
            return Err(invalid(format!(
                "a body over {BULK_BYTES_MAX} bytes cannot be sent to the process that holds the store"
            )));
        }
        let sent = write_command(&mut self.stream, &words);
        sent.map_err(|error| self.mark_lost_by(&error))
    }

    /// Reads the replies to all commands that were sent ahead.
    fn read_pending_replies(&mut self) -> annals::Result<()> {
        while self.pending_replies > 0 {
            self.pending_replies -= 1;
            if let Reply::Error(error) = self.reply()? {
                let error = parse_error(&error);
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
                Err(malformed) => return Err(self.mark_lost(ErrorKind::Unavailable, &malformed.to_string())),
            }
            let mut buffer = [0; READ_BYTES];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.mark_lost(ErrorKind::Unavailable, "it has closed the connection")),
                Ok(read) => self.read.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.mark_lost_by(&error)),
            }
        }
    }

    fn mark_lost_by(&mut self, error: &std::io::Error) -> annals::Error {
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                let why = format!("it has not answered for {} s", PEER_TIMEOUT.as_secs());
                self.mark_lost(ErrorKind::Locked, &why)
            }
            _ => self.mark_lost(ErrorKind::Unavailable, &error.to_string()),
        }
    }

    /// Whether the other process has ended or is closing the store.
    fn is_gone(&self) -> bool {
        matches!(self.lost, Some((ErrorKind::Unavailable, _)))
    }

    /// Marks the other process as gone or unintelligible.
    fn mark_lost(&mut self, kind: ErrorKind, why: &str) -> annals::Error {
        let why = format!("the connection to the process that holds the store is lost: {why}");
        self.lost = Some((kind, why.clone()));
        annals::Error::new(kind, why)
    }
}

impl SocketRun {
    fn words(&self, command: RecorderCommand) -> CommandWriter<'_> {
        CommandWriter::new(command).word(self.name.as_bytes())
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
        self.remote.send_ahead(&words.frame(frame))
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
    fn words(&self, command: RecorderCommand) -> CommandWriter<'_> {
        self.run.words(command).word(self.seq.to_string().into_bytes())
    }
}

impl RemoteFrame for SocketFrame {
    fn seq(&self) -> u32 {
        self.seq
    }

    fn append(&self, bytes: &[u8]) -> annals::Result<()> {
        bytes.chunks(PART_BYTES).try_for_each(|part| {
            self.run.remote.send_ahead(&self.words(RecorderCommand::AppendFrame).word(part))
        })
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
        annals::Error::new(ErrorKind::Unavailable, "the store's holder did not reply with a number")
    })
}
