//! Changes to one run that are committed together. The batch works on a copy of the run's state. The copy
//! replaces the original only once the batch is queued.

use std::sync::Arc;

use crate::blob::{ComparedBody, Extent, LaneBody};
use crate::error::{Error, Result};
use crate::ids::{BlobId, Link, Seqno};
use crate::log::queue::{Durability, WriteThread};
use crate::log::record::{BodyRef, EMBEDDINGS_MAX, INLINE_BYTES_MAX};
use crate::log::segments::lock;
use crate::log::ticket::Ticket;
use crate::sync::MutexGuard;
use crate::trace::belongings::{BelongingScope, Belongings};
use crate::trace::chain;
use crate::trace::heads::{FrameHead, PartHead, RunFields, RunHead, SnapshotHead};
use crate::trace::kinds;
use crate::trace::lanes::{BodyLane, BodySlot, LaneKey};
use crate::trace::model::{Component, Frame, FrameInput, Severity, Status};
use crate::trace::reader::{RunReader, run_record};
use crate::trace::recorder::{Run, RunState, encode_run};
use crate::trace::stream::Ending;
use annals_store::kv::embeddings;
use annals_store::kv::write::{BatchWriter, PackedBody};
use annals_store::kv::{BodyInput, Content, KvBatch};

/// Maximum number of a fork's shared frames that are searched for a body of the same component.
const FORK_LOOK_BACK: u32 = 16;
/// A body of at most this many bytes is never stored as a reference to an earlier one: that would save
/// nothing.
const SAME_BYTES_MIN: u64 = 4;

/// A frame that has begun: the values that its end needs again.
#[derive(Debug, Clone)]
pub(crate) struct BegunFrame {
    pub(crate) head: FrameHead,
    pub(crate) component: Component,
    input: PackedBody,
    input_base: BaseRecipe,
    metadata: PackedMetadata,
    pub(crate) started_ns: u64,
}

/// The base of a recipe: how many frames back its body is, and its extents.
type BaseRecipe = Option<(u32, Arc<Vec<Extent>>)>;

#[derive(Debug, Clone)]
struct PackedMetadata {
    packed: PackedBody,
    base: BaseRecipe,
    bytes: Vec<u8>,
}

/// Changes to one run that are committed together. Dropping an uncommitted batch discards its changes.
#[derive(Debug)]
#[must_use = "nothing happens before commit or submit"]
pub struct RunBatch<'a> {
    pub(super) run: &'a Run,
    pub(super) guard: MutexGuard<'a, RunState>,
    pub(super) staged: RunState,
    pub(super) writer: BatchWriter,
    /// Bodies that later bodies are compared with, once the batch is queued.
    pub(super) bodies: Vec<(LaneKey, LaneBody)>,
    pub(super) durability: Durability,
    /// The run's record must be written again, once, at the end of the batch.
    pub(super) changed: bool,
    /// The batch contains vectors.
    embedded: bool,
}

impl<'a> RunBatch<'a> {
    /// Creates a batch that keeps the run's state locked while it lives.
    pub(super) fn new(run: &'a Run, guard: MutexGuard<'a, RunState>) -> Result<Self> {
        let writer = BatchWriter::new(&run.core, run.namespace)?;
        let staged = guard.clone();
        let durability = run.core.options.durability;
        let (bodies, changed, embedded) = (Vec::new(), false, false);
        let mut batch = Self { run, guard, staged, writer, bodies, durability, changed, embedded };
        if !batch.staged.begun {
            batch.begin()?;
        }
        Ok(batch)
    }

    fn begin(&mut self) -> Result<()> {
        if let Some(old) = self.staged.replaces.take() {
            // If the old run was dropped meanwhile, its name is free already.
            if let Some((mut head, tail)) = run_record(&self.run.core, self.run.namespace, old)? {
                head.fields.gone = true;
                self.writer.add_record(kinds::RUN, &encode_run(&head)?, &tail)?;
                let mut belongings = Belongings::open(&self.run.core, self.run.namespace)?;
                belongings.delete(old, BelongingScope::All, &mut self.writer)?;
            }
        }
        if let Some(metadata) = self.staged.unpacked.take() {
            self.staged.metadata = Arc::new(self.writer.pack_content(&metadata, INLINE_BYTES_MAX)?);
        }
        self.staged.begun = true;
        self.changed = true;
        Ok(())
    }

    /// Writes the run's record with its current state.
    fn put_run(&mut self) -> Result<()> {
        let mut fields = RunFields::clone(&self.staged.fields);
        (fields.severity, fields.raw_bytes) = (self.staged.severity, self.staged.raw_bytes);
        let head = RunHead { fields, metadata: self.staged.metadata.reference.clone() };
        let mut tail = Vec::new();
        self.staged.metadata.put_recipe(None, &mut tail);
        self.writer.add_record(kinds::RUN, &encode_run(&head)?, &tail)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.staged.ended {
            false => Ok(()),
            true => Err(Error::conflict(format!(
                "run {:?} has ended: fork it, or record into a new run",
                self.run.name
            ))),
        }
    }

    /// Sets the durability that the commit waits for. The default is that of the store's options.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = durability;
        self
    }

    /// Adds a frame; returns its number.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn frame(&mut self, frame: FrameInput<'_>) -> Result<u32> {
        let mut begun = self.start_frame(&frame, true)?;
        begun.head.error = frame.error;
        begun.head.duration_ns = frame.duration_ns;
        let output_lane = (frame.component.clone(), BodySlot::Output);
        let (output, base) = self.pack_body(&output_lane, begun.head.seq, &frame.output)?;
        let seq = begun.head.seq;
        self.finish_frame(begun, output, base)?;
        Ok(seq)
    }

    /// Numbers a frame and packs its input and metadata. Metadata that is not `settled` may change when the
    /// frame ends, so no later frame may refer to it.
    pub(crate) fn start_frame(&mut self, frame: &FrameInput<'_>, settled: bool) -> Result<BegunFrame> {
        self.check_open()?;
        if let Component::Other(name) = &frame.component {
            // A built-in name would read back as the built-in component.
            if name.parse::<Component>()? != frame.component {
                return Err(Error::invalid(format!(
                    "component {name:?} is built in: use the built-in component, not `Component::Other`"
                )));
            }
        }
        let seq = self.staged.last_seq + 1;
        let parent = match frame.parent {
            None => 0,
            Some(parent) if parent >= 1 && parent < seq => parent,
            Some(parent) => {
                return Err(Error::invalid(format!(
                    "frame {seq} cannot have frame {parent} as its parent: name an earlier one"
                )));
            }
        };
        let started_ns = frame.started_ns.unwrap_or_else(|| self.run.core.io.now_ns());
        let start_ns = started_ns.wrapping_sub(self.staged.fields.started_ns).cast_signed();
        let lane = |slot| (frame.component.clone(), slot);
        let (input, input_base) = self.pack_body(&lane(BodySlot::Input), seq, &frame.input)?;
        let metadata = Content::Bytes(Arc::new(frame.metadata.clone()));
        let (metadata, metadata_base) = match settled {
            true => self.pack_body(&lane(BodySlot::Metadata), seq, &metadata)?,
            false => (self.writer.pack_content(&metadata, INLINE_BYTES_MAX)?, None),
        };
        debug_assert!(metadata_base.is_none() || metadata.extents.is_some());
        self.staged.last_seq = seq;
        self.raise_severity(frame.severity.code());
        let head = FrameHead {
            run: self.run.uid,
            seq,
            parent,
            component: frame.component.code(),
            other: match &frame.component {
                Component::Other(name) => Some(name.clone()),
                _ => None,
            },
            severity: frame.severity.code(),
            open: true,
            error: false,
            start_ns,
            duration_ns: 0,
            link: None,
            input: input.reference.clone(),
            output: BodyRef::Inline(Vec::new()),
            metadata: metadata.reference.clone(),
        };
        let component = frame.component.clone();
        let metadata =
            PackedMetadata { packed: metadata, base: metadata_base, bytes: frame.metadata.clone() };
        Ok(BegunFrame { head, component, input, input_base, metadata, started_ns })
    }

    /// Applies the values that are known only when the frame ends.
    pub(crate) fn apply_ending(&mut self, begun: &mut BegunFrame, ending: &Ending) -> Result<()> {
        begun.head.error = ending.error;
        let severity = begun.head.severity.max(ending.severity.code());
        begun.head.severity = severity;
        self.raise_severity(severity);
        let bytes = ending.metadata.as_ref().unwrap_or(&begun.metadata.bytes).clone();
        let content = Content::Bytes(Arc::new(bytes.clone()));
        let lane = (begun.component.clone(), BodySlot::Metadata);
        let (packed, base) = self.pack_body(&lane, begun.head.seq, &content)?;
        begun.head.metadata = packed.reference.clone();
        begun.metadata = PackedMetadata { packed, base, bytes };
        Ok(())
    }

    /// Raises the run's severity to that of its most severe frame. The run's record is written in the same
    /// batch: after a crash, an open run must not have a lower severity than its frames.
    fn raise_severity(&mut self, severity: u8) {
        if severity > self.staged.severity {
            self.staged.severity = severity;
            self.changed = true;
        }
    }

    /// Writes the record of a frame that has begun and not finished.
    pub(crate) fn put_begun_frame(&mut self, begun: &BegunFrame) -> Result<()> {
        let mut tail = Vec::new();
        begun.put_recipes(None, &mut tail);
        self.writer.add_record(kinds::FRAME, &begun.head.encode(), &tail)
    }

    /// Binds a frame to the chain and writes its record.
    pub(crate) fn finish_frame(
        &mut self,
        mut begun: BegunFrame,
        output: PackedBody,
        output_base: BaseRecipe,
    ) -> Result<()> {
        self.check_open()?;
        let head = &mut begun.head;
        head.open = false;
        head.output = output.reference.clone();
        let digest = chain::digest(
            &begun.component,
            head.parent,
            false,
            head.error,
            begun.input.id,
            output.id,
            &begun.metadata.bytes,
        );
        let staged = &mut self.staged;
        if head.seq == staged.linked.0 + 1 {
            staged.linked = (head.seq, chain::next(&staged.linked.1, &digest));
        } else {
            staged.waiting.insert(head.seq, digest);
        }
        while let Some(digest) = staged.waiting.remove(&(staged.linked.0 + 1)) {
            staged.linked = (staged.linked.0 + 1, chain::next(&staged.linked.1, &digest));
        }
        head.link = (staged.linked.0 >= head.seq).then_some(staged.linked);
        for content in [&begun.input, &output, &begun.metadata.packed] {
            staged.raw_bytes += content.len;
        }
        let mut tail = Vec::new();
        begun.put_recipes(Some((&output, &output_base)), &mut tail);
        self.writer.add_record(kinds::FRAME, &begun.head.encode(), &tail)
    }

    /// Packs a body and advances its lane. Also returns the base that its recipe is coded against.
    pub(crate) fn pack_body(
        &mut self,
        key: &LaneKey,
        seq: u32,
        content: &BodyInput<'_>,
    ) -> Result<(PackedBody, BaseRecipe)> {
        if content.len() <= SAME_BYTES_MIN {
            return Ok((self.writer.pack_content(content, INLINE_BYTES_MAX)?, None));
        }
        if self.staged.lanes.get(key).is_none() {
            let lane = self.lane_from_lineage(key)?;
            self.staged.lanes.insert(key.clone(), lane);
        }
        self.writer.check_len(content)?;
        let staged = self.bodies.iter().rposition(|(of, _)| of == key);
        let lane =
            self.staged.lanes.get_mut(key).ok_or_else(|| Error::bug("a lane that was just made is gone"))?;
        let cached = &self.run.recording.previous;
        // Bytes that are only lent are written over the previous body, which nothing else may hold then. If the
        // batch is dropped, the lane goes on without a previous body.
        let is_patched = matches!(content, BodyInput::Lent(bytes) if bytes.len() > INLINE_BYTES_MAX);
        let previous = match staged {
            Some(index) if is_patched => Some(self.bodies.remove(index).1),
            Some(index) => self.bodies.get(index).map(|(_, body)| body.clone()),
            None if is_patched => cached.take_last_body(lane),
            None => cached.last_body(lane),
        };
        let compared = match content {
            BodyInput::Bytes(bytes) if bytes.len() > INLINE_BYTES_MAX => {
                Some(ComparedBody::new(bytes, previous.as_ref()))
            }
            BodyInput::Lent(bytes) if is_patched => Some(ComparedBody::lent(bytes, previous.as_ref())),
            _ => None,
        };
        let id = match (content, &compared) {
            (_, Some(compared)) => compared.id(),
            (BodyInput::Bytes(bytes), None) => BlobId::of(bytes),
            (BodyInput::Lent(bytes), None) => BlobId::of(bytes),
            (BodyInput::Stored(blob), None) => blob.id(),
        };
        if let Some(bytes) = content.bytes()
            && let Some(at) = lane.frame_with_body(id).filter(|at| *at < seq)
        {
            drop(compared);
            self.bodies.extend(previous.filter(|_| is_patched).map(|body| (key.clone(), body)));
            let reference = BodyRef::Same { back: seq - at };
            return Ok((PackedBody { reference, id, extents: None, len: bytes.len() as u64 }, None));
        }
        let packed = match &compared {
            Some(compared) => self.writer.pack_blob(compared)?,
            None => self.writer.pack_content(content, INLINE_BYTES_MAX)?,
        };
        let Some(extents) = packed.extents.clone() else {
            lane.push_inline(seq, packed.id);
            return Ok((packed, None));
        };
        // Frames may end in any order; a base must be an earlier frame.
        let base = lane.base().filter(|(at, _)| *at < seq).map(|(at, extents)| (seq - at, extents));
        lane.push(seq, packed.id, extents.clone());
        if let Some((comparison, bytes)) = compared.map(ComparedBody::detach).zip(content.bytes()) {
            self.bodies.retain(|(of, _)| of != key);
            self.bodies.push((key.clone(), comparison.into_body(bytes, previous, extents)));
        }
        Ok((packed, base))
    }

    /// Creates a lane. A fork's lane begins with the last body of its lineage in that lane.
    fn lane_from_lineage(&mut self, (component, slot): &LaneKey) -> Result<BodyLane> {
        let mut lane = self.run.recording.previous.new_lane();
        let Some((_, shared, _)) = self.staged.fields.parent else { return Ok(lane) };
        // The parent may have been dropped meanwhile, so the lineage is read from this run's own fields.
        if *slot != BodySlot::Input || shared == 0 {
            return Ok(lane);
        }
        let fields = RunFields::clone(&self.staged.fields);
        let reader = RunReader::for_shared_frames(&self.run.core, self.run.namespace, fields, shared)?;
        for seq in (shared.saturating_sub(FORK_LOOK_BACK).max(1)..=shared).rev() {
            let found = reader.body_with_extents(seq, *slot)?;
            if let Some(found) = found.filter(|found| found.component == *component) {
                lane.push(found.seq, found.id, found.extents.clone());
                let bytes = Arc::new(found.bytes);
                let body = ComparedBody::new(&bytes, None).into_body(found.extents);
                self.bodies.push(((found.component, *slot), body));
                break;
            }
        }
        Ok(lane)
    }

    /// Stores the agent's state after the last frame; returns that frame's number.
    ///
    /// # Errors
    /// As [`Run::snapshot`].
    pub fn snapshot(&mut self, state: impl Into<Content>, embeddings: &[(&str, &[f32])]) -> Result<u32> {
        embeddings::check_embeddings(embeddings)?;
        for (embedder, vector) in embeddings {
            if let Some(finder) = self.run.core.embedding_index.get() {
                finder.check_dimensions(&self.run.core, self.run.namespace, embedder, vector.len())?;
            }
        }
        self.snapshot_as_recorded(state.into(), embeddings)
    }

    /// Stores a snapshot that was recorded elsewhere, without checking its vectors against those of the
    /// namespace. A vector that cannot be compared is stored too; searches skip it.
    pub(crate) fn snapshot_as_recorded(
        &mut self,
        state: Content,
        embeddings: &[(&str, &[f32])],
    ) -> Result<u32> {
        self.check_open()?;
        let seq = self.staged.last_seq;
        if seq == 0 {
            return Err(Error::invalid("a snapshot needs a frame before it: record a frame first"));
        }
        if self.staged.snapshots.contains(&seq) {
            return Err(Error::conflict(format!(
                "frame {seq} of run {:?} has a snapshot already",
                self.run.name
            )));
        }
        if embeddings.len() > EMBEDDINGS_MAX {
            return Err(Error::invalid(format!("a snapshot has at most {EMBEDDINGS_MAX} embeddings")));
        }
        let lane: LaneKey = (Component::Merge, BodySlot::State);
        let (state, base) = self.pack_body(&lane, seq, &state)?;
        let mut tail = Vec::new();
        state.put_recipe(base.as_ref().map(|(back, extents)| (*back, extents.as_slice())), &mut tail);
        let mut stored = Vec::with_capacity(embeddings.len());
        for (embedder, vector) in embeddings {
            let bytes = embeddings::vector_bytes(vector);
            let packed = self.writer.pack_content(&bytes.into(), INLINE_BYTES_MAX)?;
            packed.put_recipe(None, &mut tail);
            stored.push(((*embedder).to_owned(), packed.reference));
        }
        let head = SnapshotHead { run: self.run.uid, seq, state: state.reference, embeddings: stored };
        self.writer.add_record(kinds::SNAPSHOT, &head.encode(), &tail)?;
        Arc::make_mut(&mut self.staged.snapshots).insert(seq);
        self.embedded |= !embeddings.is_empty();
        Ok(seq)
    }

    /// Adds changes of keys of the run's namespace: they happen together with the frames, or not at all.
    ///
    /// # Errors
    /// As [`KvBatch::commit`]; `Invalid` for another namespace's keys.
    pub fn keys(&mut self, keys: KvBatch) -> Result<()> {
        self.embedded |= keys.has_embeddings();
        keys.add_to(&mut self.writer)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub fn end(&mut self, status: Status) -> Result<()> {
        self.check_open()?;
        if status == Status::Open {
            return Err(Error::invalid("a run cannot end as open: say ok, failed or abandoned"));
        }
        if self.staged.linked.0 != self.staged.last_seq {
            return Err(Error::conflict(format!(
                "frame {} of run {:?} is not finished: finish it first",
                self.staged.linked.0 + 1,
                self.run.name
            )));
        }
        self.staged.ended = true;
        let fields = Arc::make_mut(&mut self.staged.fields);
        fields.status = status.code();
        fields.ended_ns = self.run.core.io.now_ns().max(fields.started_ns);
        fields.frames = self.staged.last_seq;
        fields.fingerprint = self.staged.linked.1;
        self.changed = true;
        Ok(())
    }

    /// Adds a frame that was begun and never finished, with the output that had arrived.
    pub(crate) fn record_incomplete(&mut self, frame: &Frame) -> Result<u32> {
        let begun = self.start_frame(frame, false)?;
        self.put_begun_frame(&begun)?;
        if !frame.output.is_empty() {
            let packed = self.writer.pack_content(&frame.output, 0)?;
            let (run, seq) = (self.run.uid, begun.head.seq);
            let head = PartHead { run, seq, part: 1, after_ns: 0, body: packed.reference.clone() };
            let mut tail = Vec::new();
            packed.put_recipe(None, &mut tail);
            self.writer.add_record(kinds::FRAME_PART, &head.encode(), &tail)?;
        }
        Ok(begun.head.seq)
    }

    /// Ends an imported run as its recorder did, with the recorded fingerprint and severity. The fingerprint
    /// covers unfinished frames too. A fork's severity may be lower than that of the frames it shares.
    pub(crate) fn end_as_recorded(
        &mut self,
        (status, severity): (Status, Severity),
        ended_ns: u64,
        fingerprint: Link,
    ) -> Result<()> {
        let staged = &self.staged;
        if staged.linked.0 == staged.last_seq && staged.linked.1 != fingerprint {
            return Err(Error::bug("checked frames have another fingerprint than recorded"));
        }
        self.staged.ended = true;
        self.staged.severity = severity.code();
        let fields = Arc::make_mut(&mut self.staged.fields);
        fields.status = status.code();
        fields.ended_ns = ended_ns;
        fields.frames = self.staged.last_seq;
        fields.fingerprint = fingerprint;
        self.changed = true;
        Ok(())
    }

    /// Writes the batch and waits until it has the batch's durability; returns the last record's seqno.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn commit(self) -> Result<Seqno> {
        self.queue(WriteThread::Either)?.wait()
    }

    /// Hands the batch to the writer without waiting.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn submit(self) -> Result<Ticket> {
        self.queue(WriteThread::Writer)
    }

    /// As [`RunBatch::submit`]; the batch is written as `KvBatch::submit_inline` says.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn submit_inline(self) -> Result<Ticket> {
        self.queue(WriteThread::Caller)
    }

    pub(super) fn queue(mut self, write_thread: WriteThread) -> Result<Ticket> {
        let run = self.run;
        if self.changed {
            self.put_run()?;
        }
        let submitted = self.writer.submit_on(write_thread, self.durability)?;
        if self.embedded
            && let Some(finder) = run.core.embedding_index.get()
        {
            finder.note_queued(&run.core);
        }
        let (_, ticket) = submitted.ok_or_else(|| Error::invalid("an empty batch cannot be committed"))?;
        for (key, body) in self.bodies {
            if let Some(lane) = self.staged.lanes.get(&key) {
                run.recording.previous.remember(lane, body);
            }
        }
        if !self.guard.begun {
            lock(&run.recording.names).note_used(run.uid);
        }
        *self.guard = self.staged;
        run.release_parent(&mut self.guard);
        if self.guard.ended {
            run.release_state(&mut self.guard);
            run.recording.note_ended(run.namespace, run.uid);
        }
        Ok(ticket)
    }
}

impl BegunFrame {
    /// An unfinished frame as the log has it. Its recipes are coded without a base when it is finished.
    pub(crate) fn resumed(
        head: FrameHead,
        component: Component,
        input: PackedBody,
        (packed, bytes): (PackedBody, Vec<u8>),
        started_ns: u64,
    ) -> Self {
        let metadata = PackedMetadata { packed, base: None, bytes };
        Self { head, component, input, input_base: None, metadata, started_ns }
    }

    /// Bytes of its input and metadata.
    pub(crate) fn begun_bytes(&self) -> u64 {
        self.input.len + self.metadata.packed.len
    }

    /// The recipes of a frame's record, in the order of its body references.
    fn put_recipes(&self, output: Option<(&PackedBody, &BaseRecipe)>, tail: &mut Vec<u8>) {
        fn slice(base: &BaseRecipe) -> Option<(u32, &[Extent])> {
            base.as_ref().map(|(back, extents)| (*back, extents.as_slice()))
        }
        self.input.put_recipe(slice(&self.input_base), tail);
        if let Some((output, base)) = output {
            output.put_recipe(slice(base), tail);
        }
        self.metadata.packed.put_recipe(slice(&self.metadata.base), tail);
    }
}
