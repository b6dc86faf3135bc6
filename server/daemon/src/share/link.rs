//! The connection of a recorder to the process that holds its store, and what that process has not
//! acknowledged yet.
//!
//! Steps are sent in order and acknowledged in order. A step is kept until its reply has come, so the memory for
//! them is bounded by what may be sent ahead. If the holder goes away, the link finds the next one or takes the
//! store over, asks what the store holds of each run, and sends the rest again. So every step happens once:
//! frames are numbered in the order of their steps, and parts of an output by their offset.
//!
//! A refusal of a step that was sent ahead is permanent: nothing is sent afterwards.

use std::collections::{HashMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use annals::{ErrorKind, Status};
use annals_proxy::spool::SpooledBody;
use annals_wire::resp::{BULK_BYTES_MAX, Reply};
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandWriter, invalid, parse_error};
use tokio::time::Instant;

use super::holder::{RETRY_PAUSE, StoreHolder};
use super::wire::{LinkError, LinkResult, LinkWire, bug};

/// Maximum number of steps without a reply. So few replies fit into the socket's buffer, so the holder never
/// blocks on writing them.
const AHEAD_MAX: usize = 64;
/// Maximum bytes of the steps without a reply, but for one that is longer.
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of a body per command.
pub(super) const PART_BYTES: usize = 1 << 20;
/// How long a recorder looks for a holder before it gives up. Its program waits meanwhile.
const TAKEOVER_WAIT: Duration = Duration::from_secs(60);

/// What is to be done by the holder.
#[derive(Debug)]
pub(super) struct RecordingStep {
    pub(super) kind: StepKind,
    /// The run's name; empty if the step needs none.
    pub(super) run: Arc<str>,
    /// The command.
    pub(super) words: Vec<Vec<u8>>,
    /// The output of a whole frame, sent before it.
    pub(super) body: Option<Arc<SpooledBody>>,
    /// The reply that the store itself has given: the step had happened before its holder went away.
    done: Option<Reply>,
}

/// The kind of a step, and what the store must hold once it has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    BeginRun,
    /// Frame `.0`, begun or whole.
    Frame(u32),
    /// The last word, at offset `at` of the output of frame `seq`.
    Part {
        seq: u32,
        at: u64,
    },
    /// The end of frame `.0`.
    EndFrame(u32),
    /// The end of a run with so many frames.
    EndRun(u32),
    /// May happen twice.
    Repeatable,
}

/// A run that was begun through this link and has not ended.
#[derive(Debug)]
struct OpenRun {
    /// The secret by which the holder knows the recorder; `None` for a run that another recorder began.
    token: Option<Vec<u8>>,
    /// Its beginning is acknowledged.
    is_begun: bool,
    /// Number of frames whose steps were made, and of those that are acknowledged.
    frames: u32,
    acknowledged: u32,
    /// Of each unfinished frame: bytes of its output that were handed in, and those that are acknowledged.
    outputs: HashMap<u32, (u64, u64)>,
}

/// What the store holds of a run.
#[derive(Debug)]
struct HeldRun {
    frames: u32,
    is_ended: bool,
    /// Bytes of the output of each unfinished frame.
    outputs: HashMap<u32, u64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RecorderLink {
    holder: Arc<StoreHolder>,
    namespace: String,
    wire: Option<LinkWire>,
    pending: VecDeque<RecordingStep>,
    pending_bytes: usize,
    runs: HashMap<Arc<str>, OpenRun>,
    /// Why nothing is sent any more.
    failed: Option<(ErrorKind, String)>,
    blobs: u64,
}

impl RecordingStep {
    pub(super) fn new(kind: StepKind, run: &Arc<str>, command: CommandWriter<'_>) -> Self {
        Self { kind, run: run.clone(), words: command.into_words(), body: None, done: None }
    }

    fn len(&self) -> usize {
        self.words.iter().map(Vec::len).sum()
    }
}

impl RecorderLink {
    /// A link over a connection to the holder; `None` if the holder is closing.
    ///
    /// # Errors
    /// The holder's refusal; `Locked` if it does not answer.
    pub(super) fn join(
        holder: &Arc<StoreHolder>,
        namespace: &str,
        stream: UnixStream,
    ) -> annals::Result<Option<Self>> {
        let wire = match LinkWire::enter(stream, namespace) {
            Ok(wire) => wire,
            Err(LinkError::Lost(_)) => return Ok(None),
            // It may keep the store too long to wait for it.
            Err(LinkError::Silent(why)) => {
                let message = format!("the process that holds the store does not serve it: {why}");
                return Err(annals::Error::new(ErrorKind::Locked, message));
            }
            Err(LinkError::Refused(error)) => return Err(error),
        };
        Ok(Some(Self {
            holder: holder.clone(),
            namespace: namespace.to_owned(),
            wire: Some(wire),
            pending: VecDeque::new(),
            pending_bytes: 0,
            runs: HashMap::new(),
            failed: None,
            blobs: 0,
        }))
    }

    /// Notes a run that is about to begin. `token` is known to this recorder alone.
    pub(super) fn add_run(&mut self, run: &Arc<str>, token: Vec<u8>, shared: u32) {
        let (token, outputs) = (Some(token), HashMap::new());
        let (is_begun, frames, acknowledged) = (false, shared, shared);
        self.runs.insert(run.clone(), OpenRun { token, is_begun, frames, acknowledged, outputs });
    }

    /// Goes on with a run that another recorder began and that no connection records.
    ///
    /// # Errors
    /// The holder's refusal; `Conflict` if the run has ended.
    pub(super) fn take_up(&mut self, name: &Arc<str>) -> annals::Result<()> {
        // The step belongs to no run of this link until the holder has taken the run up.
        let step = RecordingStep::new(StepKind::Repeatable, &"".into(), resume_words(name, None));
        let held = HeldRun::parse(&self.call(step)?).ok_or_else(|| bug("a malformed reply"))?;
        if held.is_ended {
            return Err(annals::Error::new(ErrorKind::Conflict, format!("run {name:?} has ended")));
        }
        let (frames, acknowledged, outputs) = (held.frames, held.frames, HashMap::new());
        let run = OpenRun { token: None, is_begun: true, frames, acknowledged, outputs };
        self.runs.insert(name.clone(), run);
        Ok(())
    }

    /// Forgets a run that has ended or did not begin.
    pub(super) fn remove_run(&mut self, run: &Arc<str>) {
        self.runs.remove(run);
    }

    /// The number of the run's next frame.
    ///
    /// # Errors
    /// `NotFound` if the run has ended.
    pub(super) fn next_frame(&self, run: &Arc<str>) -> annals::Result<u32> {
        self.runs.get(run).map(|run| run.frames + 1).ok_or_else(|| ended_error(run))
    }

    /// Bytes of the output of frame `seq` that were handed in.
    ///
    /// # Errors
    /// `NotFound` if the frame has ended.
    pub(super) fn output_len(&self, run: &Arc<str>, seq: u32) -> annals::Result<u64> {
        let output = self.runs.get(run).and_then(|run| run.outputs.get(&seq));
        output.map(|(made, _)| *made).ok_or_else(|| ended_error(run))
    }

    /// Sends a step and waits until it is acknowledged; returns the reply.
    ///
    /// # Errors
    /// The holder's refusal, of this step or of an earlier one; `Locked` or `Unavailable` if no process takes
    /// the step.
    pub(super) fn call(&mut self, step: RecordingStep) -> annals::Result<Reply> {
        // A run must not end as complete after a part of it was refused.
        self.settle_all()?;
        let (kind, run) = (step.kind, step.run.clone());
        self.push(step)?;
        let (_, reply) = self.settle_one()?;
        match reply {
            Reply::Error(error) => {
                self.undo(kind, &run);
                Err(parse_error(&error))
            }
            reply => Ok(reply),
        }
    }

    /// Sends a step without waiting for its reply.
    ///
    /// # Errors
    /// As [`RecorderLink::call`], of earlier steps.
    pub(super) fn send_ahead(&mut self, step: RecordingStep) -> annals::Result<()> {
        while !self.pending.is_empty() && self.pending_bytes + step.len() > AHEAD_BYTES_MAX {
            self.settle_ahead()?;
        }
        self.push(step)?;
        while self.pending.len() >= AHEAD_MAX {
            self.settle_ahead()?;
        }
        Ok(())
    }

    fn push(&mut self, step: RecordingStep) -> annals::Result<()> {
        self.check_failed()?;
        if step.len() > BULK_BYTES_MAX {
            return Err(invalid(format!(
                "a body over {BULK_BYTES_MAX} bytes cannot be sent to the process that holds the store"
            )));
        }
        self.note_made(&step);
        self.pending_bytes += step.len();
        self.pending.push_back(step);
        let last = self.pending.len() - 1;
        match self.transmit(last) {
            Ok(()) => Ok(()),
            Err(error) => self.recover(error),
        }
    }

    /// Counts what a step adds to its run.
    fn note_made(&mut self, step: &RecordingStep) {
        let Some(run) = self.runs.get_mut(&step.run) else { return };
        match step.kind {
            StepKind::Frame(seq) => {
                run.frames = seq;
                if step
                    .words
                    .first()
                    .is_some_and(|name| name == RecorderCommand::BeginFrame.name().as_bytes())
                {
                    run.outputs.insert(seq, (0, 0));
                }
            }
            StepKind::Part { seq, at } => {
                let len = step.words.last().map_or(0, Vec::len) as u64;
                run.outputs.entry(seq).or_default().0 = at + len;
            }
            _ => {}
        }
    }

    /// Takes back what a refused step was to add.
    fn undo(&mut self, kind: StepKind, name: &Arc<str>) {
        match (kind, self.runs.get_mut(name)) {
            (StepKind::BeginRun, Some(_)) => self.remove_run(name),
            (StepKind::Frame(seq), Some(run)) => {
                run.frames = seq - 1;
                run.outputs.remove(&seq);
            }
            _ => {}
        }
    }

    fn settle_all(&mut self) -> annals::Result<()> {
        while !self.pending.is_empty() {
            self.settle_ahead()?;
        }
        self.check_failed()
    }

    /// Waits for the reply to the first step, which was sent ahead.
    fn settle_ahead(&mut self) -> annals::Result<()> {
        match self.settle_one()? {
            (_, Reply::Error(error)) => Err(self.fail(parse_error(&error))),
            _ => Ok(()),
        }
    }

    /// Waits for the reply to the first step.
    fn settle_one(&mut self) -> annals::Result<(RecordingStep, Reply)> {
        loop {
            self.check_failed()?;
            let first = self.pending.front_mut().ok_or_else(|| bug("no reply is expected"))?;
            let reply = match (first.done.take(), &mut self.wire) {
                (Some(reply), _) => Ok(reply),
                (None, Some(wire)) => wire.reply(),
                (None, None) => Err(LinkError::Lost("there is no connection".to_owned())),
            };
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) => {
                    self.recover(error)?;
                    continue;
                }
            };
            let step = self.pending.pop_front().ok_or_else(|| bug("no reply is expected"))?;
            self.pending_bytes -= step.len();
            if !matches!(reply, Reply::Error(_)) {
                self.acknowledge(&step, &reply)?;
            }
            return Ok((step, reply));
        }
    }

    /// Notes that the store holds what a step added. The reply must say so.
    fn acknowledge(&mut self, step: &RecordingStep, reply: &Reply) -> annals::Result<()> {
        let expected = match step.kind {
            StepKind::BeginRun | StepKind::Repeatable => None,
            StepKind::Frame(seq) | StepKind::EndFrame(seq) => Some(u64::from(seq)),
            StepKind::EndRun(frames) => Some(u64::from(frames)),
            StepKind::Part { at, .. } => Some(at + step.words.last().map_or(0, Vec::len) as u64),
        };
        if let Some(expected) = expected
            && *reply != Reply::Integer(i64::try_from(expected).unwrap_or(i64::MAX))
        {
            let message = format!(
                "the store holds other frames of run {:?} than were recorded: {reply:?} instead of {expected}",
                &*step.run
            );
            return Err(self.fail(bug(message)));
        }
        let Some(run) = self.runs.get_mut(&step.run) else { return Ok(()) };
        match step.kind {
            StepKind::BeginRun => run.is_begun = true,
            StepKind::Frame(seq) => run.acknowledged = seq,
            StepKind::Part { seq, .. } => {
                if let (Some(output), Some(expected)) = (run.outputs.get_mut(&seq), expected) {
                    output.1 = expected;
                }
            }
            StepKind::EndFrame(seq) => drop(run.outputs.remove(&seq)),
            StepKind::EndRun(_) | StepKind::Repeatable => {}
        }
        Ok(())
    }

    /// Sends the step at this place.
    fn transmit(&mut self, at: usize) -> LinkResult<()> {
        let lost = || LinkError::Lost("there is no connection".to_owned());
        let (Some(step), Some(wire)) = (self.pending.get(at), &mut self.wire) else { return Err(lost()) };
        let Some(body) = &step.body else { return wire.send(&step.words) };
        // Steps with a body are called, so no other reply is to come.
        self.blobs += 1;
        let name = self.blobs.to_string().into_bytes();
        let mut failed = None;
        let upload = body.for_each_part(PART_BYTES, &mut |part| {
            let append = CommandWriter::new(RecorderCommand::AppendBlob).word(name.as_slice()).word(part);
            wire.ask(&append.into_words()).map(drop).map_err(|error| {
                failed = Some(error);
                bug("a body could not be sent")
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        upload.map_err(LinkError::Refused)?;
        wire.ask(&CommandWriter::new(RecorderCommand::EndBlob).word(name.as_slice()).into_words())?;
        let mut words = step.words.clone();
        words.extend([b"BLOB".to_vec(), name]);
        wire.send(&words)
    }

    /// After a failure of the connection: finds the next holder or becomes it, and sends again what the store
    /// does not hold. Waits with everything that is to be recorded meanwhile.
    fn recover(&mut self, error: LinkError) -> annals::Result<()> {
        let mut why = match error {
            LinkError::Lost(why) | LinkError::Silent(why) => why,
            LinkError::Refused(error) => return Err(self.fail(error)),
        };
        let until = Instant::now() + TAKEOVER_WAIT;
        loop {
            self.wire = None;
            match self.reconnect() {
                Ok(()) => return Ok(()),
                Err(LinkError::Refused(error)) => return Err(self.fail(error)),
                Err(LinkError::Lost(_) | LinkError::Silent(_)) if Instant::now() < until => {}
                Err(LinkError::Lost(last) | LinkError::Silent(last)) => {
                    why = format!(
                        "the process that held the store has gone ({why}), and none has served it for {} s: {last}",
                        TAKEOVER_WAIT.as_secs()
                    );
                    return Err(self.fail(annals::Error::new(ErrorKind::Locked, why)));
                }
            }
            std::thread::sleep(RETRY_PAUSE / 2);
        }
    }

    fn reconnect(&mut self) -> LinkResult<()> {
        let stream = self.holder.connect_or_take_over().map_err(LinkError::Refused)?;
        let stream = stream.ok_or_else(|| LinkError::Lost("another process holds the store".to_owned()))?;
        let mut wire = LinkWire::enter(stream, &self.namespace)?;
        let mut held = HashMap::new();
        for (name, run) in &self.runs {
            if let Some(found) = resume(&mut wire, name, run)? {
                held.insert(name.clone(), found);
            }
        }
        for step in &mut self.pending {
            step.done = None;
            if let Some(held) = held.get(&step.run) {
                settle_by_store(step, held)?;
            }
        }
        self.pending_bytes = self.pending.iter().map(RecordingStep::len).sum();
        self.wire = Some(wire);
        for at in 0..self.pending.len() {
            if self.pending[at].done.is_none() {
                self.transmit(at)?;
            }
        }
        Ok(())
    }

    fn check_failed(&self) -> annals::Result<()> {
        match &self.failed {
            Some((kind, why)) => Err(annals::Error::new(*kind, why.clone())),
            None => Ok(()),
        }
    }

    /// Sends nothing any more.
    fn fail(&mut self, error: annals::Error) -> annals::Error {
        self.failed.get_or_insert_with(|| (error.kind(), error.to_string()));
        self.wire = None;
        error
    }
}

fn resume_words<'a>(name: &'a str, token: Option<&'a [u8]>) -> CommandWriter<'a> {
    let words = CommandWriter::new(RecorderCommand::ResumeRun).word(name.as_bytes());
    match token {
        Some(token) => words.word(token),
        None => words,
    }
}

/// Asks what the store holds of a run, which goes on through this connection from then on; `None` if its
/// beginning has not reached the store.
fn resume(wire: &mut LinkWire, name: &Arc<str>, run: &OpenRun) -> LinkResult<Option<HeldRun>> {
    let reply = match wire.ask(&resume_words(name, run.token.as_deref()).into_words()) {
        Ok(reply) => reply,
        // Its earlier connection has not ended yet.
        Err(LinkError::Refused(error)) if error.kind() == ErrorKind::Conflict => {
            return Err(LinkError::Lost(error.to_string()));
        }
        Err(LinkError::Refused(error)) if error.kind() == ErrorKind::NotFound && !run.is_begun => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let held = HeldRun::parse(&reply).ok_or_else(|| LinkError::Refused(bug("a malformed reply")))?;
    let is_less = held.frames < run.acknowledged
        || run.outputs.iter().any(|(seq, (_, acknowledged))| {
            let is_acknowledged = *seq <= run.acknowledged;
            is_acknowledged && held.outputs.get(seq).is_some_and(|len| len < acknowledged)
        });
    if is_less || held.frames > run.frames {
        let message = format!(
            "the store holds {} frames of run {name:?}; {} were acknowledged and {} recorded",
            held.frames, run.acknowledged, run.frames
        );
        return Err(LinkError::Refused(annals::Error::new(ErrorKind::Diverged, message)));
    }
    Ok(Some(held))
}

/// Marks a step as done if the store holds what it adds; cuts off the bytes of a part that the store holds.
fn settle_by_store(step: &mut RecordingStep, held: &HeldRun) -> LinkResult<()> {
    let is_there = |seq: u32| seq <= held.frames;
    let finished = |seq: u32| is_there(seq) && !held.outputs.contains_key(&seq);
    step.done = match step.kind {
        StepKind::BeginRun => Some(Reply::OK),
        StepKind::Frame(seq) => is_there(seq).then(|| Reply::Integer(seq.into())),
        StepKind::EndFrame(seq) => finished(seq).then(|| Reply::Integer(seq.into())),
        StepKind::EndRun(_) => held.is_ended.then(|| Reply::Integer(held.frames.into())),
        StepKind::Repeatable => None,
        StepKind::Part { seq, at } => {
            let bytes =
                step.words.last_mut().ok_or_else(|| LinkError::Refused(bug("a part has no bytes")))?;
            let end = at + bytes.len() as u64;
            match held.outputs.get(&seq) {
                None if is_there(seq) => Some(end),
                // The frame is begun again first.
                None => None,
                Some(len) if *len >= end => Some(end),
                Some(len) => {
                    let from = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
                    bytes.drain(..from.min(bytes.len()));
                    step.kind = StepKind::Part { seq, at: at.max(*len) };
                    None
                }
            }
            .map(|end| Reply::Integer(i64::try_from(end).unwrap_or(i64::MAX)))
        }
    };
    Ok(())
}

impl HeldRun {
    fn parse(reply: &Reply) -> Option<Self> {
        let Reply::Bulk(text) = reply else { return None };
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let frames = words.next()?.parse().ok()?;
        let is_ended = words.next()? != Status::Open.name();
        let mut outputs = HashMap::new();
        while let Some(seq) = words.next() {
            outputs.insert(seq.parse().ok()?, words.next()?.parse().ok()?);
        }
        Some(Self { frames, is_ended, outputs })
    }
}

fn ended_error(run: &Arc<str>) -> annals::Error {
    annals::Error::new(ErrorKind::NotFound, format!("run {run:?}, or its frame, has ended"))
}
