//! What a connection may ask for, done: commands in, replies out. Takes no socket.
//!
//! The commands are those of [`RecorderCommand`].
//! An error names its kind: `-CONFLICT run "r" exists already`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use annals::memory::{Embedder, Keep};
use annals::{Durability, ErrorKind, Namespace, OpenFrame, Run, Status, Store, StoredBlob};

use super::host::{Writer, Writing};
use annals_proxy::embeddings::{EmbedderHere, environment_embedder};
use annals_review::remembering::{of_embedder, remember};
use annals_review::run_memory::{Remembered, remember_ended};
use annals_wire::resp::Reply;
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{Arguments, code_of, wrong};

/// Runs, and bodies that are being streamed, of a connection at a time.
const RUNS_MAX: usize = 64;
const BLOBS_MAX: usize = 64;
/// Frames of a connection that have begun and not ended.
const FRAMES_MAX: usize = 16 << 10;
/// Parts of a streamed body that wait to be stored.
const PARTS_MAX: usize = 4;

/// One connection.
pub(super) struct Member {
    store: Store,
    writing: Writing,
    entered: Option<(Namespace, Writer)>,
    frames: HashMap<(String, u32), OpenFrame<Arc<Run>>>,
    runs: HashMap<String, Arc<Run>>,
    blobs: HashMap<Vec<u8>, Blob>,
}

/// A body that is streamed.
enum Blob {
    Coming { parts: SyncSender<Vec<u8>>, stored: JoinHandle<annals::Result<StoredBlob>> },
    There(StoredBlob),
}

impl Member {
    pub(super) fn new(store: Store, writing: Writing) -> Self {
        let (frames, runs, blobs) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { store, writing, entered: None, frames, runs, blobs }
    }

    /// The reply to a command; none where the connection is to end without one.
    pub(super) fn answer(&mut self, command: Vec<Vec<u8>>) -> Option<Reply> {
        let (name, mut arguments) = Arguments::of(command);
        if name == RecorderCommand::UseStore.name() && self.entered.is_none() {
            // Before anything is promised: who is turned away here looks for the store anew.
            let writer = self.writing.enter()?;
            return Some(replied(self.enter(writer, &mut arguments)));
        }
        Some(replied(self.obey(&name, &mut arguments)))
    }

    fn enter(&mut self, writer: Writer, arguments: &mut Arguments) -> annals::Result<Reply> {
        let name = arguments.text("a namespace's name")?;
        arguments.end()?;
        self.entered = Some((self.store.namespace(&name)?, writer));
        Ok(ok())
    }

    fn obey(&mut self, name: &str, arguments: &mut Arguments) -> annals::Result<Reply> {
        let Some(command) = RecorderCommand::find(name) else { return Err(refusal(name)) };
        match command {
            RecorderCommand::Ping => Ok(Reply::Simple("PONG".into())),
            RecorderCommand::BeginRun => self.begin_run(arguments),
            RecorderCommand::EndRun => self.end_run(arguments),
            RecorderCommand::RememberRun => self.remember(arguments),
            RecorderCommand::PutMemory => self.keep(arguments),
            RecorderCommand::DefineMemory => self.define(arguments),
            RecorderCommand::BeginFrame => self.begin_frame(arguments),
            RecorderCommand::AppendFrame => self.append(arguments),
            RecorderCommand::EndFrame => self.end_frame(arguments),
            RecorderCommand::AddFrame => self.add_frame(arguments),
            RecorderCommand::AppendBlob => self.append_blob(arguments),
            RecorderCommand::EndBlob => self.end_blob(arguments),
            RecorderCommand::UseStore => Err(wrong("a connection stays with its namespace".to_owned())),
        }
    }

    fn space(&self) -> annals::Result<&Namespace> {
        let space = self.entered.as_ref().map(|(space, _)| space);
        space.ok_or_else(|| wrong("STORE.USE comes first".to_owned()))
    }

    fn run(&self, arguments: &mut Arguments) -> annals::Result<Arc<Run>> {
        let name = arguments.text("a run's name")?;
        let none =
            || annals::Error::new(ErrorKind::NotFound, format!("this connection began no run {name:?}"));
        self.runs.get(&name).cloned().ok_or_else(none)
    }

    fn begin_run(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let spec = arguments.run()?;
        bounded(self.runs.len(), RUNS_MAX, "runs")?;
        let name = spec.name.clone();
        let run = self.space()?.begin_run(spec)?;
        self.runs.insert(name, Arc::new(run));
        Ok(ok())
    }

    fn end_run(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let status: Status = arguments.parsed("a status")?;
        arguments.end()?;
        let mut batch = run.batch()?;
        batch.durability(Durability::Disk);
        batch.end(status)?;
        batch.commit()?;
        self.runs.remove(run.name());
        Ok(ok())
    }

    fn remember(&self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let name = arguments.text("a run's name")?;
        arguments.end()?;
        let space = self.space()?;
        let run = space.run(&name)?;
        Ok(match remember_ended(space, run.info().uid, run.info().status, environment_embedder)? {
            Remembered::As(_, id) => Reply::Bulk(id.into_bytes()),
            Remembered::Nothing(_) => Reply::Null,
        })
    }

    /// Lets a process write that records nothing, unless the host closes, which has promised to write nothing more.
    fn let_in(&self) -> annals::Result<Writer> {
        self.writing.enter().ok_or_else(|| {
            annals::Error::new(ErrorKind::Locked, "a recorder is about to let go of the store: try again")
        })
    }

    fn define(&self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let _writer = self.let_in()?;
        let (definition, namespace) = arguments.definition()?;
        self.store.namespace(&namespace)?.memory()?.on_disk().define(&definition)?;
        Ok(ok())
    }

    fn keep(&self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let _writer = self.let_in()?;
        let brought = arguments.memory()?;
        let space = self.store.namespace(&brought.namespace)?;
        let with = EmbedderHere::of_environment(Some(&space))?;
        of_embedder(brought.embedder.as_deref(), with.id(), "a memory")?;
        let memory = space.memory()?.on_disk();
        let kept = remember(&memory, &brought.identity, &brought.entry, &with, &Keep::default())?;
        Ok(Reply::Bulk(kept.id.into_bytes()))
    }

    fn begin_frame(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let (frame, _) = arguments.frame(true)?;
        bounded(self.frames.len(), FRAMES_MAX, "open frames")?;
        let name = run.name().to_owned();
        let frame = OpenFrame::begin(run, &frame)?;
        let seq = frame.seq();
        self.frames.insert((name, seq), frame);
        Ok(Reply::Integer(seq.into()))
    }

    /// The name of an open frame.
    fn frame(&self, arguments: &mut Arguments) -> annals::Result<(String, u32)> {
        let key = (arguments.text("a run's name")?, arguments.parsed("a frame's number")?);
        if self.frames.contains_key(&key) {
            return Ok(key);
        }
        let message = format!("frame {} of run {:?} was not begun here, or has ended", key.1, key.0);
        Err(annals::Error::new(ErrorKind::NotFound, message))
    }

    fn append(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let key = self.frame(arguments)?;
        let bytes = arguments.bytes("a part of an output")?;
        arguments.end()?;
        self.frames.get(&key).map_or(Ok(()), |frame| frame.append(&bytes))?;
        Ok(ok())
    }

    fn end_frame(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let key = self.frame(arguments)?;
        let ending = arguments.ending()?;
        let frame = self.frames.remove(&key);
        let seq = frame.map_or(Ok(key.1), |frame| frame.finish_with(ending))?;
        Ok(Reply::Integer(seq.into()))
    }

    fn add_frame(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let (mut frame, blob) = arguments.frame(false)?;
        if let Some(name) = blob {
            frame.output = match self.blobs.entry(name) {
                Entry::Occupied(blob) if matches!(blob.get(), Blob::There(_)) => blob.remove().end()?.into(),
                other => {
                    let message = format!("no blob {:?} has ended", String::from_utf8_lossy(other.key()));
                    return Err(annals::Error::new(ErrorKind::NotFound, message));
                }
            };
        }
        // Handed to the writer, as one who holds the store himself would do: the run's end waits for it.
        let (seq, _) = run.submit(frame)?;
        Ok(Reply::Integer(seq.into()))
    }

    fn append_blob(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let name = arguments.bytes("a blob's name")?;
        let part = arguments.bytes("a part of a blob")?;
        arguments.end()?;
        if !self.blobs.contains_key(&name) {
            bounded(self.blobs.len(), BLOBS_MAX, "blobs")?;
            let blob = Blob::begin(self.space()?)?;
            self.blobs.insert(name.clone(), blob);
        }
        match self.blobs.get(&name) {
            // Where nobody takes it, it could not be stored; its end says why.
            Some(Blob::Coming { parts, .. }) => drop(parts.send(part)),
            _ => return Err(wrong("this blob has ended".to_owned())),
        }
        Ok(ok())
    }

    fn end_blob(&mut self, arguments: &mut Arguments) -> annals::Result<Reply> {
        let name = arguments.bytes("a blob's name")?;
        arguments.end()?;
        let stored = match self.blobs.remove(&name) {
            Some(blob) => blob.end()?,
            // Nothing was ever appended.
            None => self.space()?.store_blob(std::io::empty())?,
        };
        let len = i64::try_from(stored.len()).unwrap_or(i64::MAX);
        bounded(self.blobs.len(), BLOBS_MAX, "blobs")?;
        self.blobs.insert(name, Blob::There(stored));
        Ok(Reply::Integer(len))
    }
}

impl Drop for Member {
    /// What was begun and not ended is abandoned.
    fn drop(&mut self) {
        self.frames.clear();
        for run in self.runs.values() {
            // Where that fails, so does all that is written; the next opening abandons it.
            let _ = run.abandon();
        }
    }
}

impl Blob {
    fn begin(space: &Namespace) -> annals::Result<Self> {
        let (parts, coming) = sync_channel(PARTS_MAX);
        let space = space.clone();
        let thread = std::thread::Builder::new().name("annals-blob".to_owned());
        let stored = thread.spawn(move || {
            space.store_blob(Coming { parts: coming, part: Vec::new(), taken: 0, whole: false })
        });
        let stored = stored.map_err(|error| unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self::Coming { parts, stored })
    }

    fn end(self) -> annals::Result<StoredBlob> {
        match self {
            Self::There(stored) => Ok(stored),
            Self::Coming { parts, stored } => {
                // An empty part is the last.
                let _ = parts.send(Vec::new());
                stored.join().unwrap_or_else(|_| Err(unavailable("a blob could not be stored".to_owned())))
            }
        }
    }
}

/// A body as it comes. Without its last part it is an error, not a shorter body.
struct Coming {
    parts: Receiver<Vec<u8>>,
    part: Vec<u8>,
    taken: usize,
    whole: bool,
}

impl Read for Coming {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.part.len() && !self.whole {
            let part = self.parts.recv();
            self.part = part.map_err(|_| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
            (self.taken, self.whole) = (0, self.part.is_empty());
        }
        let read = (&self.part[self.taken..]).read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

/// Why a command that is not a recorder's is refused.
fn refusal(name: &str) -> annals::Error {
    match name {
        "STORE.COMPACT" => annals::Error::new(
            ErrorKind::Locked,
            "a recorder holds the store and compacts nothing: wait until it has ended",
        ),
        "RUN.PIN" | "RUN.UNPIN" | "RUN.DROP" | "STORE.RETAIN" => annals::Error::new(
            ErrorKind::Locked,
            "a recorder holds the store and neither pins nor drops runs: wait until it has ended",
        ),
        _ => wrong(format!("unknown command '{name}'")),
    }
}

fn ok() -> Reply {
    Reply::OK
}

fn bounded(count: usize, max: usize, of: &str) -> annals::Result<()> {
    if count < max { Ok(()) } else { Err(wrong(format!("a connection has at most {max} {of} at a time"))) }
}

fn unavailable(what: String) -> annals::Error {
    annals::Error::new(ErrorKind::Unavailable, what)
}

fn replied(done: annals::Result<Reply>) -> Reply {
    done.unwrap_or_else(|error| {
        let code = code_of(error.kind());
        Reply::Error(format!("{code} {error}"))
    })
}
