//! The commands of one recorder connection: commands in, replies out. Independent of sockets.
//!
//! The commands are those of [`RecorderCommand`], the methods of decisions, and a fork that ends at once.
//! An error names its kind: `-CONFLICT run "r" exists already`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use annals::{
    Durability, ErrorKind, Namespace, Run, RunSpec, Status, Store, kv::StoredBlob, runs::OpenFrame,
};
use annals_deliberation::{Caller, Deliberation, Method};
use annals_diagnostics::{Diagnostics, SessionDiagnostic, SessionResult};
use annals_memory::{Embedder, FrameTexts, Memory, SnapshotOptions};

use crate::commands::{call_embedded, method_of};

use super::host::{WriterGate, WriterPass};
use super::keys;
use super::notes::{NoteSpace, NotedRuns};
use super::upkeep;
use annals_proxy::embeddings::{ConfiguredEmbedder, environment_embedder};
use annals_review::memory_input::{check_embedder, remember_json};
use annals_review::run_memory::{FROM_CACHE, RememberOutcome, remember_ended};
use annals_review::search::catch_up;
use annals_wire::resp::Reply;
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandArguments, error_code, invalid};

/// Maximum number of open runs, and of streamed bodies, of a connection.
const RUNS_MAX: usize = 64;
const BLOBS_MAX: usize = 64;
/// Maximum number of open frames of a connection.
const FRAMES_MAX: usize = 16 << 10;
/// Maximum number of parts of a streamed body that wait to be stored.
const PARTS_MAX: usize = 4;

/// The tag that holds the hash of the token with which a recorder began its run. A recorder that knows the token may
/// take the run up again.
pub(super) const RECORDER_TAG: &str = "annals.recorder";

/// The hash of a token, in hexadecimal.
pub(super) fn token_hash(token: &[u8]) -> String {
    annals_text::hex::encode(&blake3::derive_key("annals recorder token 1", token)[..16])
}

/// Who has the databases of keys open in the process that holds the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOwner {
    /// No one: the process records.
    Nobody,
    /// The daemon. It has values in memory, so only its own commands may change them.
    Daemon,
}

/// The state of one connection.
pub(super) struct RecorderSession {
    store: Store,
    key_owner: KeyOwner,
    writing: WriterGate,
    notes: Arc<NotedRuns>,
    entered: Option<(Namespace, WriterPass)>,
    /// The name of the entered namespace.
    namespace: String,
    frames: HashMap<(String, u32), OpenFrame<Arc<Run>>>,
    runs: HashMap<String, Arc<Run>>,
    blobs: HashMap<Vec<u8>, StreamedBlob>,
}

/// A body that is being streamed, or has been.
enum StreamedBlob {
    Receiving { parts: SyncSender<Vec<u8>>, stored: JoinHandle<annals::Result<StoredBlob>> },
    Stored(StoredBlob),
}

impl RecorderSession {
    pub(super) fn new(store: Store, writing: WriterGate, notes: Arc<NotedRuns>, key_owner: KeyOwner) -> Self {
        let (frames, runs, blobs) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self {
            store,
            key_owner,
            writing,
            notes,
            entered: None,
            namespace: String::new(),
            frames,
            runs,
            blobs,
        }
    }

    /// Runs a command and returns its reply; `None` if the connection must end without one.
    pub(super) fn answer(&mut self, command: Vec<Vec<u8>>) -> Option<Reply> {
        let (name, mut arguments) = CommandArguments::of(command);
        if name == RecorderCommand::UseStore.name() && self.entered.is_none() {
            // Before anything is promised: a connection refused here opens the store itself.
            let writer = self.writing.enter()?;
            return Some(to_reply(self.enter(writer, &mut arguments)));
        }
        Some(to_reply(self.execute(&name, &mut arguments)))
    }

    fn enter(&mut self, writer: WriterPass, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let name = arguments.text("a namespace's name")?;
        arguments.end()?;
        self.entered = Some((self.store.namespace(&name)?, writer));
        self.namespace = name;
        Ok(ok())
    }

    fn execute(&mut self, name: &str, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        if let Some(method) = method_of(name) {
            return self.call_decisions(method, arguments);
        }
        let Some(command) = RecorderCommand::find(name) else { return self.execute_upkeep(name, arguments) };
        match command {
            RecorderCommand::Ping => Ok(Reply::Simple("PONG".into())),
            RecorderCommand::BeginRun => self.begin_run(arguments),
            RecorderCommand::ForkRun => self.fork_run(arguments),
            RecorderCommand::ResumeRun => self.resume_run(arguments),
            RecorderCommand::SnapshotRun => self.snapshot_run(arguments),
            RecorderCommand::EndRun => self.end_run(arguments),
            RecorderCommand::RememberRun => self.remember(arguments),
            RecorderCommand::PutMemory => self.put_memory(arguments),
            RecorderCommand::DefineMemory => self.define(arguments),
            RecorderCommand::IndexRuns => self.index_runs(arguments),
            RecorderCommand::RecordSession => self.record_session(arguments),
            RecorderCommand::BeginFrame => self.begin_frame(arguments),
            RecorderCommand::AppendFrame => self.append(arguments),
            RecorderCommand::EndFrame => self.end_frame(arguments),
            RecorderCommand::AddFrame => self.add_frame(arguments),
            RecorderCommand::AppendBlob => self.append_blob(arguments),
            RecorderCommand::EndBlob => self.end_blob(arguments),
            RecorderCommand::WriteKeys => {
                let space = NoteSpace { name: &self.namespace, namespace: self.space()? };
                keys::answer_write(space, &self.notes, arguments)
            }
            RecorderCommand::GetKey => keys::answer_get(self.space()?, arguments),
            RecorderCommand::ScanKeys => keys::answer_scan(self.space()?, arguments),
            RecorderCommand::UseStore => Err(invalid("a connection stays with its namespace".to_owned())),
        }
    }

    /// A method of decisions, as the daemon's DELIB commands run it.
    fn call_decisions(&self, method: Method, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        let params = arguments.text("parameters")?;
        let (mut namespace, mut session) = ("default".to_owned(), None);
        while let Some(option) = arguments.option() {
            match option.as_str() {
                "NAMESPACE" => namespace = arguments.text("NAMESPACE")?,
                "SESSION" => session = Some(arguments.text("SESSION")?),
                _ => return Err(invalid(format!("there is no option {option:?} here"))),
            }
        }
        let space = self.store.namespace(&namespace)?;
        let decisions = Deliberation::open(&space)?.with_disk_durability();
        let embedder = ConfiguredEmbedder::from_environment(Some(&space))?;
        let caller = Caller { session: session.as_deref(), ..Caller::new("owner") };
        let answer = call_embedded(&decisions, Some(&embedder), &caller, method, &params)?;
        Ok(Reply::Bulk(answer.into_bytes()))
    }

    /// A fork that ends at once, as the daemon's `RUN.FORK run@seq END` makes it.
    fn fork_run(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let point = arguments.text("a fork point")?;
        let parsed = point.rsplit_once('@').and_then(|(run, at)| Some((run, at.parse::<u32>().ok()?)));
        let (run, at) = parsed.ok_or_else(|| invalid("a fork point is written run@seq".to_owned()))?;
        let run = run.to_owned();
        let edit = match arguments.option().as_deref() {
            Some("BEGIN") => false,
            Some("EDIT") => true,
            Some("END") => return self.share_frames(&run, at, arguments),
            _ => return Err(invalid("a fork point is followed by BEGIN, EDIT or END".to_owned())),
        };
        let spec = RunSpec::new(arguments.text("a run's name")?);
        let spec = arguments.run_options(spec, &[])?;
        check_limit(self.runs.len(), RUNS_MAX, "runs")?;
        let name = spec.name.clone();
        let fork = self.space()?.fork(&run, at, edit, spec)?;
        self.runs.insert(name, Arc::new(fork));
        Ok(ok())
    }

    /// Makes a fork that ends at once.
    fn share_frames(&self, run: &str, at: u32, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        if arguments.option().as_deref() != Some("NAMESPACE") {
            return Err(invalid("a fork that ends at once needs a NAMESPACE".to_owned()));
        }
        let space = self.store.namespace(&arguments.text("NAMESPACE")?)?;
        let spec = arguments.run_options(RunSpec::default(), &["NAME"])?;
        let fork = space.prepare_fork(run, at, false, spec)?;
        let mut batch = fork.batch()?;
        batch.durability(Durability::Disk);
        batch.end(Status::Ok)?;
        batch.commit()?;
        Ok(ok())
    }

    /// A command that records nothing. It ends with the host: a recorder does not wait for others.
    fn execute_upkeep(&self, name: &str, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let gate = self.writing.clone();
        let closing = Arc::new(move || gate.is_closing());
        upkeep::answer(&self.store, self.key_owner, name, arguments, closing)
            .unwrap_or_else(|| Err(invalid(format!("unknown command '{name}'"))))
    }

    fn space(&self) -> annals::Result<&Namespace> {
        let space = self.entered.as_ref().map(|(space, _)| space);
        space.ok_or_else(|| invalid("STORE.USE comes first".to_owned()))
    }

    fn run(&self, arguments: &mut CommandArguments) -> annals::Result<Arc<Run>> {
        let name = arguments.text("a run's name")?;
        let none =
            || annals::Error::new(ErrorKind::NotFound, format!("this connection began no run {name:?}"));
        self.runs.get(&name).cloned().ok_or_else(none)
    }

    fn begin_run(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let spec = arguments.run()?;
        check_limit(self.runs.len(), RUNS_MAX, "runs")?;
        let name = spec.name.clone();
        let run = self.space()?.begin_run(spec)?;
        self.runs.insert(name, Arc::new(run));
        Ok(ok())
    }

    /// Takes up a run again. With a token: one that its recorder began through an earlier connection, perhaps to
    /// another process. Without: any run that no connection records, because its caller wants to go on with it.
    /// The reply says what the store holds, so that the recorder sends again what is missing and nothing else.
    fn resume_run(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let name = arguments.text("a run's name")?;
        let token = arguments.has_more().then(|| arguments.bytes("a token")).transpose()?;
        arguments.end()?;
        check_limit(self.runs.len(), RUNS_MAX, "runs")?;
        let space = self.space()?;
        let info = space.run(&name)?.info().clone();
        let owner = info.tags.iter().find(|(key, _)| key == RECORDER_TAG);
        if token.is_some_and(|token| owner.is_none_or(|(_, hash)| *hash != token_hash(&token))) {
            let message = format!("no run {name:?} was begun with this token");
            return Err(annals::Error::new(ErrorKind::NotFound, message));
        }
        if matches!(info.status, Status::Ok | Status::Failed) {
            return Ok(Reply::text(format!("{} {}", info.frames, info.status.name())));
        }
        let resumed = space.resume_run(&name)?;
        let frames = space.run(&name)?.info().frames;
        let mut reply = format!("{frames} {}", Status::Open.name());
        for open in resumed.open_frames {
            let _ = write!(reply, " {} {}", open.seq(), open.output_len());
            self.frames.insert((name.clone(), open.seq()), open);
        }
        self.runs.insert(name, resumed.run);
        Ok(Reply::text(reply))
    }

    fn snapshot_run(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let state = arguments.bytes("a state")?;
        arguments.end()?;
        let stored = run.snapshot(state.clone(), &[]);
        let is_conflict = stored.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if is_conflict {
            // The recorder sends it again if its connection ended before the reply.
            let reader = self.space()?.run(run.name())?;
            let found = reader.snapshot_at(reader.info().frames)?;
            if let Some(found) =
                found.filter(|found| found.seq == reader.info().frames && found.state == state)
            {
                return Ok(Reply::Integer(found.seq.into()));
            }
        }
        Ok(Reply::Integer(stored?.into()))
    }

    fn end_run(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let status: Status = arguments.parsed("a status")?;
        arguments.end()?;
        let mut batch = run.batch()?;
        batch.durability(Durability::Disk);
        batch.end(status)?;
        batch.commit()?;
        self.runs.remove(run.name());
        Ok(Reply::Integer(self.space()?.run(run.name())?.info().frames.into()))
    }

    fn remember(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let name = arguments.text("a run's name")?;
        arguments.end()?;
        let space = self.space()?;
        let run = space.run(&name)?;
        Ok(match remember_ended(space, run.info().uid, run.info().status, environment_embedder)? {
            RememberOutcome::Stored(_, ids) => Reply::count(ids.len()),
            RememberOutcome::Skipped(why) if why == FROM_CACHE => Reply::text(why),
            RememberOutcome::Skipped(_) => Reply::Integer(0),
        })
    }

    /// Admits a writer that records nothing, unless the host is closing; a closing host has promised no more
    /// writes.
    fn enter_writer(&self) -> annals::Result<WriterPass> {
        self.writing.enter().ok_or_else(|| {
            annals::Error::new(ErrorKind::Locked, "the recorder is closing the store: try again")
        })
    }

    fn define(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        let (definition, namespace) = arguments.definition()?;
        Memory::open(&self.store.namespace(&namespace)?)?.with_disk_durability().define(&definition)?;
        Ok(ok())
    }

    fn index_runs(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        let (namespace, rebuilds) = arguments.index_runs()?;
        let space = self.store.namespace(&namespace)?;
        let Some(index) = FrameTexts::open(&space)? else { return Ok(Reply::Integer(1)) };
        if rebuilds {
            index.clear()?;
        }
        Ok(Reply::Integer(catch_up(&space, &index)?.is_whole.into()))
    }

    fn record_session(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        let (report, namespace, keep_ms) = arguments.session()?;
        let session = SessionDiagnostic::parse(&report)?;
        let diagnostics = Diagnostics::open(&self.store.namespace(&namespace)?)?.with_disk_durability();
        let result = SessionResult::from(Ok(diagnostics.record(&session, keep_ms)?));
        let json = serde_json::to_vec(&result).map_err(|error| annals::Error::bug(error.to_string()))?;
        Ok(Reply::Bulk(json))
    }

    fn put_memory(&self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let _writer = self.enter_writer()?;
        let brought = arguments.memory()?;
        let space = self.store.namespace(&brought.namespace)?;
        let with = ConfiguredEmbedder::from_environment(Some(&space))?;
        check_embedder(brought.embedder.as_deref(), with.id(), "a memory")?;
        let memory = Memory::open(&space)?.with_disk_durability();
        let kept =
            remember_json(&memory, &brought.identity, &brought.entry, &with, &SnapshotOptions::default())?;
        Ok(Reply::Bulk(kept.id.into_bytes()))
    }

    fn begin_frame(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let (frame, _) = arguments.frame(true)?;
        check_limit(self.frames.len(), FRAMES_MAX, "open frames")?;
        let name = run.name().to_owned();
        let frame = OpenFrame::begin(run, &frame)?;
        let seq = frame.seq();
        self.frames.insert((name, seq), frame);
        Ok(Reply::Integer(seq.into()))
    }

    /// The key of an open frame.
    fn frame(&self, arguments: &mut CommandArguments) -> annals::Result<(String, u32)> {
        let key = (arguments.text("a run's name")?, arguments.parsed("a frame's number")?);
        if self.frames.contains_key(&key) {
            return Ok(key);
        }
        let message = format!("frame {} of run {:?} was not begun here, or has ended", key.1, key.0);
        Err(annals::Error::new(ErrorKind::NotFound, message))
    }

    fn append(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let key = self.frame(arguments)?;
        let bytes = arguments.bytes("a part of an output")?;
        arguments.end()?;
        let Some(frame) = self.frames.get(&key) else { return Ok(Reply::Integer(0)) };
        // The recorder drops the bytes with this reply, so the system must have them, whatever becomes of this
        // process.
        let appended = frame
            .submit_append(&bytes, Durability::Process)
            .and_then(|(len, ticket)| ticket.wait().map(|_| len));
        // Later parts may be on their way already. Without this one they would be another answer.
        let len = appended.inspect_err(|_| drop(self.frames.remove(&key)))?;
        Ok(Reply::Integer(i64::try_from(len).unwrap_or(i64::MAX)))
    }

    fn end_frame(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let key = self.frame(arguments)?;
        let ending = arguments.ending()?;
        if let Some(frame) = self.frames.get(&key) {
            frame.finish_with(ending)?;
        }
        self.frames.remove(&key);
        Ok(Reply::Integer(key.1.into()))
    }

    fn add_frame(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let run = self.run(arguments)?;
        let (mut frame, blob) = arguments.frame(false)?;
        if let Some(name) = blob {
            frame.output = match self.blobs.entry(name) {
                Entry::Occupied(blob) if matches!(blob.get(), StreamedBlob::Stored(_)) => {
                    blob.remove().end()?.into()
                }
                other => {
                    let message = format!("no blob {:?} has ended", String::from_utf8_lossy(other.key()));
                    return Err(annals::Error::new(ErrorKind::NotFound, message));
                }
            };
        }
        // The recorder drops the frame with this reply.
        Ok(Reply::Integer(run.record(frame)?.into()))
    }

    fn append_blob(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let name = arguments.bytes("a blob's name")?;
        let part = arguments.bytes("a part of a blob")?;
        arguments.end()?;
        if !self.blobs.contains_key(&name) {
            check_limit(self.blobs.len(), BLOBS_MAX, "blobs")?;
            let blob = StreamedBlob::begin(self.space()?)?;
            self.blobs.insert(name.clone(), blob);
        }
        match self.blobs.get(&name) {
            // If the receiver is gone, the body could not be stored; BLOB.END reports why.
            Some(StreamedBlob::Receiving { parts, .. }) => drop(parts.send(part)),
            _ => return Err(invalid("this blob has ended".to_owned())),
        }
        Ok(ok())
    }

    fn end_blob(&mut self, arguments: &mut CommandArguments) -> annals::Result<Reply> {
        let name = arguments.bytes("a blob's name")?;
        arguments.end()?;
        let stored = match self.blobs.remove(&name) {
            Some(blob) => blob.end()?,
            // Nothing was ever appended.
            None => self.space()?.store_blob(std::io::empty())?,
        };
        let len = i64::try_from(stored.len()).unwrap_or(i64::MAX);
        check_limit(self.blobs.len(), BLOBS_MAX, "blobs")?;
        self.blobs.insert(name, StreamedBlob::Stored(stored));
        Ok(Reply::Integer(len))
    }
}

impl Drop for RecorderSession {
    /// Abandons everything that was begun and not ended.
    fn drop(&mut self) {
        self.frames.clear();
        for run in self.runs.values() {
            // If this fails, all writes fail; the next opening abandons the run.
            let _ = run.abandon();
        }
    }
}

impl StreamedBlob {
    fn begin(space: &Namespace) -> annals::Result<Self> {
        let (parts, coming) = sync_channel(PARTS_MAX);
        let space = space.clone();
        let thread = std::thread::Builder::new().name("annals-blob".to_owned());
        let stored = thread.spawn(move || {
            space.store_blob(BlobPartsReader { parts: coming, part: Vec::new(), taken: 0, whole: false })
        });
        let stored = stored.map_err(|error| unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self::Receiving { parts, stored })
    }

    fn end(self) -> annals::Result<StoredBlob> {
        match self {
            Self::Stored(stored) => Ok(stored),
            Self::Receiving { parts, stored } => {
                // An empty part marks the end.
                let _ = parts.send(Vec::new());
                stored.join().unwrap_or_else(|_| Err(unavailable("a blob could not be stored".to_owned())))
            }
        }
    }
}

/// A reader over the parts of a streamed body. A missing last part is an error, not a shorter body.
struct BlobPartsReader {
    parts: Receiver<Vec<u8>>,
    part: Vec<u8>,
    taken: usize,
    whole: bool,
}

impl Read for BlobPartsReader {
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

fn ok() -> Reply {
    Reply::OK
}

fn check_limit(count: usize, max: usize, of: &str) -> annals::Result<()> {
    if count < max { Ok(()) } else { Err(invalid(format!("a connection has at most {max} {of} at a time"))) }
}

fn unavailable(what: String) -> annals::Error {
    annals::Error::new(ErrorKind::Unavailable, what)
}

fn to_reply(done: annals::Result<Reply>) -> Reply {
    done.unwrap_or_else(|error| {
        let code = error_code(error.kind());
        Reply::Error(format!("{code} {error}"))
    })
}
