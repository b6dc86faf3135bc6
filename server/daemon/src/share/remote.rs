//! The joining side: runs and frames that are written through the process that holds the store.
//!
//! A command whose result is needed waits for its reply. Other commands are sent ahead. `link` keeps what is not
//! acknowledged, and finds the next holder if one goes away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{ErrorKind, Frame, RunSpec, Status, runs::Ending};

use super::holder::StoreHolder;
use super::link::{PART_BYTES, RecorderLink, RecordingStep, StepKind};
use super::member::{RECORDER_TAG, token_hash};
use annals_proxy::destination::{Destination, ForkPoint, RemoteFrame, RemoteRun, RemoteSpace};
use annals_proxy::spool::SpooledBody;
use annals_wire::resp::Reply;
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandWriter, bytes};

/// A namespace of a store that another process holds.
#[derive(Debug, Clone)]
pub(super) struct RemoteStore(Arc<Mutex<RecorderLink>>);

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
    name: Arc<str>,
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
    /// Joins the process that holds the store.
    ///
    /// # Errors
    /// The refusal of that process.
    pub(super) fn join(holder: &Arc<StoreHolder>, namespace: &str) -> annals::Result<JoinOutcome> {
        let Some(stream) = holder.connect() else { return Ok(JoinOutcome::NotNow) };
        Ok(match RecorderLink::join(holder, namespace, stream)? {
            Some(link) => JoinOutcome::Joined(Self(Arc::new(Mutex::new(link)))),
            None => JoinOutcome::NotNow,
        })
    }

    fn link(&self) -> MutexGuard<'_, RecorderLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteSpace for RemoteStore {
    fn begin_run(&self, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>> {
        self.begin(None, spec)
    }

    fn fork_run(&self, from: ForkPoint<'_>, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>> {
        self.begin(Some(from), spec)
    }
}

impl RemoteStore {
    /// Takes up a run of any recorder that is open or abandoned.
    ///
    /// # Errors
    /// As [`annals::Namespace::resume_run`]; `Locked` or `Unavailable` if no process takes it.
    pub(super) fn resume_run(&self, name: &str) -> annals::Result<Arc<dyn RemoteRun>> {
        let name: Arc<str> = name.into();
        self.link().take_up(&name)?;
        Ok(Arc::new(SocketRun { remote: self.clone(), name }))
    }

    fn begin(&self, from: Option<ForkPoint<'_>>, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>> {
        let mut token = vec![0; 16];
        getrandom::fill(&mut token).map_err(|error| {
            annals::Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
        })?;
        let name: Arc<str> = spec.name.as_str().into();
        let spec = spec.clone().tag(RECORDER_TAG, token_hash(&token));
        let words = match from {
            None => CommandWriter::new(RecorderCommand::BeginRun),
            Some(from) => CommandWriter::new(RecorderCommand::ForkRun)
                .word(format!("{}@{}", from.run, from.at).into_bytes())
                .word(if from.edit { b"EDIT".as_slice() } else { b"BEGIN" }),
        };
        let words = words.run(&spec)?;
        let step = RecordingStep::new(StepKind::BeginRun, &name, words);
        let mut link = self.link();
        link.add_run(&name, token, from.map_or(0, |from| from.shared()));
        link.call(step)?;
        drop(link);
        Ok(Arc::new(SocketRun { remote: self.clone(), name }))
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

    fn submit(&self, frame: &Frame, output: Option<&Arc<SpooledBody>>) -> annals::Result<()> {
        let words = self.words(RecorderCommand::AddFrame).word(frame.component.name().as_bytes());
        let words = words.word(bytes(&frame.input)?).word(bytes(&frame.output)?).frame(frame);
        let mut link = self.remote.link();
        let seq = link.next_frame(&self.name)?;
        let mut step = RecordingStep::new(StepKind::Frame(seq), &self.name, words);
        match output {
            None => link.send_ahead(step),
            Some(output) => {
                step.body = Some(output.clone());
                link.call(step).map(drop)
            }
        }
    }

    fn record(&self, frame: &Frame) -> annals::Result<u32> {
        let words = self.words(RecorderCommand::AddFrame).word(frame.component.name().as_bytes());
        let words = words.word(bytes(&frame.input)?).word(bytes(&frame.output)?).frame(frame);
        let mut link = self.remote.link();
        let seq = link.next_frame(&self.name)?;
        link.call(RecordingStep::new(StepKind::Frame(seq), &self.name, words))?;
        Ok(seq)
    }

    fn snapshot(&self, state: &[u8]) -> annals::Result<u32> {
        let words = self.words(RecorderCommand::SnapshotRun).word(state);
        let mut link = self.remote.link();
        let last = link.next_frame(&self.name)? - 1;
        link.call(RecordingStep::new(StepKind::Repeatable, &self.name, words))?;
        Ok(last)
    }

    fn begin_frame(&self, frame: &Frame) -> annals::Result<Box<dyn RemoteFrame>> {
        let words = self.words(RecorderCommand::BeginFrame).word(frame.component.name().as_bytes());
        let words = words.word(bytes(&frame.input)?).frame(frame);
        let mut link = self.remote.link();
        let seq = link.next_frame(&self.name)?;
        link.call(RecordingStep::new(StepKind::Frame(seq), &self.name, words))?;
        Ok(Box::new(SocketFrame { run: self.clone(), seq }))
    }

    fn end(&self, status: Status) -> annals::Result<()> {
        let words = self.words(RecorderCommand::EndRun).word(status.name().as_bytes());
        let mut link = self.remote.link();
        let frames = link.next_frame(&self.name)? - 1;
        link.call(RecordingStep::new(StepKind::EndRun(frames), &self.name, words))?;
        link.remove_run(&self.name);
        Ok(())
    }

    fn remember(&self) -> annals::Result<Option<String>> {
        let words = self.words(RecorderCommand::RememberRun);
        let step = RecordingStep::new(StepKind::Repeatable, &self.name, words);
        Ok(match self.remote.link().call(step)? {
            Reply::Bulk(why) => Some(String::from_utf8_lossy(&why).into_owned()),
            _ => None,
        })
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
        let mut link = self.run.remote.link();
        for part in bytes.chunks(PART_BYTES) {
            let at = link.output_len(&self.run.name, self.seq)?;
            let words = self.words(RecorderCommand::AppendFrame).word(part);
            link.send_ahead(RecordingStep::new(StepKind::Part { seq: self.seq, at }, &self.run.name, words))?;
        }
        Ok(())
    }

    fn finish_with(self: Box<Self>, ending: &Ending) -> annals::Result<u32> {
        let words = self.words(RecorderCommand::EndFrame).ending(ending);
        let step = RecordingStep::new(StepKind::EndFrame(self.seq), &self.run.name, words);
        self.run.remote.link().call(step)?;
        Ok(self.seq)
    }
}
