//! Reads runs: frames by number, from any run of a fork's lineage, with every blob and link checked.

use std::sync::Arc;

use crate::codec::ByteReader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, Link, NamespaceId, RecordedId, RunUid, Seqno};
use crate::log::record::{BodyRef, RecipeRef, RecordKind};
use crate::trace::chain::{self, FrameDigest};
use crate::trace::dropped_names::{self, DroppedName};
use crate::trace::frame_cache::{FrameCache, FrameRecord};
use crate::trace::frames::ReadBody;
use crate::trace::heads::{RunFields, RunHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::lanes::BodySlot;
use crate::trace::model::{Component, ForkPoint, RunInfo, Severity, Status};
use crate::trace::run_keys;
use crate::trace::scan::{BodyOutput, FrameScan};
use crate::trace::schema::RunSchema;
use annals_store::kv::bodies::{self, HashCheck};
use annals_store::kv::core::Core;
use annals_store::kv::index::prefix_end;
use annals_store::kv::keys;

/// A frame as it was recorded: its bytes hash to their ids, and its link follows from the frame before. A
/// frame from [`RunReader::unverified`] has the recorded ids; its bytes were not hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Its number.
    pub seq: u32,
    /// The frame that caused it.
    pub parent: Option<u32>,
    /// The component that made it.
    pub component: Component,
    /// How much it matters.
    pub severity: Severity,
    /// The frame was begun and never finished: `output` holds the bytes that had arrived.
    pub incomplete: bool,
    /// The component failed.
    pub error: bool,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The exact bytes of its input.
    pub input: Vec<u8>,
    /// The exact bytes of its output.
    pub output: Vec<u8>,
    /// JSON, or nothing.
    pub metadata: Vec<u8>,
    /// BLAKE3 of the input. `None` only from [`RunReader::unverified`]: a record may hold the first bytes of
    /// an id alone, and the bytes are not hashed.
    pub input_id: Option<BlobId>,
    /// BLAKE3 of the output; as `input_id`.
    pub output_id: Option<BlobId>,
    /// The chain's link after this frame.
    pub link: Link,
}

/// A frame as listings show it, read without its input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameInfo {
    /// Its number.
    pub seq: u32,
    /// The frame that caused it.
    pub parent: Option<u32>,
    /// The component that made it.
    pub component: Component,
    /// How much it matters.
    pub severity: Severity,
    /// The frame was begun and not finished.
    pub incomplete: bool,
    /// The component failed.
    pub error: bool,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// Bytes of its input.
    pub input_bytes: u64,
    /// Bytes of its output; the output of an incomplete frame is not counted.
    pub output_bytes: u64,
    /// JSON, or nothing.
    pub metadata: Vec<u8>,
}

/// A run of a fork's lineage, or the fork itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ancestor {
    pub(super) uid: RunUid,
    /// The last frame, in the fork's numbering, that this run holds. Frames up to an older ancestor's `upto`
    /// are in that ancestor.
    pub(super) upto: u32,
    pub(super) started_ns: u64,
}

/// The bodies of a frame, before its link is known.
#[derive(Debug)]
pub(super) struct UnlinkedBodies {
    pub(super) input: ReadBody,
    pub(super) output: ReadBody,
    pub(super) metadata: ReadBody,
}

/// The values that lead to a frame's link: anyone can check the ids of its bodies with them.
#[derive(Debug, Clone)]
pub(crate) struct ChainWitness {
    /// The link before the frame.
    pub(crate) before: Link,
    pub(crate) input: BlobId,
    pub(crate) output: BlobId,
    /// Hash of the canonical metadata.
    pub(crate) metadata: [u8; 32],
}

/// Reads one run. Sees what was committed when the run was found; cheap to clone.
#[derive(Debug, Clone)]
pub struct RunReader {
    pub(crate) core: Arc<Core>,
    pub(crate) namespace: NamespaceId,
    pub(super) info: RunInfo,
    /// Oldest ancestor first.
    pub(super) lineage: Arc<Vec<Ancestor>>,
    /// Cached frame records and recipes.
    pub(super) known: Arc<FrameCache>,
    pub(super) hashing: HashCheck,
    pub(super) metadata: (BodyRef, Option<Vec<u8>>),
}

/// A run's record or tombstone, as the log has it.
#[derive(Debug)]
pub(crate) enum RunOrTombstone {
    /// The newest record of a living or replaced run: head and tail.
    Run(Box<RunHead>, Vec<u8>),
    /// The tombstone of a dropped run.
    Dropped(TombstoneHead),
}

/// Reads a run's newest record, or its tombstone.
pub(crate) fn find_run_or_tombstone(
    core: &Core,
    namespace: NamespaceId,
    uid: RunUid,
) -> Result<Option<RunOrTombstone>> {
    let _pin = core.pin();
    let Some((_, value)) = core.index.get(&run_keys::run(namespace, uid), Seqno(u64::MAX))? else {
        return Ok(None);
    };
    let expected: &[RecordKind] =
        if keys::is_living(value) { &[kinds::RUN] } else { &[kinds::RUN, kinds::TOMBSTONE] };
    let known = core.read_logical_any(keys::place(value), expected, |kind, logical| match kind {
        kinds::TOMBSTONE => TombstoneHead::parse(logical.head).map(RunOrTombstone::Dropped),
        _ => Ok(RunOrTombstone::Run(Box::new(RunHead::parse(logical.head)?), logical.tail.to_vec())),
    })?;
    let of = match &known {
        RunOrTombstone::Run(head, _) => (head.fields.namespace, head.fields.uid),
        RunOrTombstone::Dropped(head) => (head.namespace, head.run),
    };
    if of != (namespace, uid) {
        return Err(Error::new(ErrorKind::Damaged, "the index leads to another run than the one wanted"));
    }
    Ok(Some(known))
}

/// Reads a run's newest record; `None` for a dropped run.
pub(crate) fn run_record(
    core: &Core,
    namespace: NamespaceId,
    uid: RunUid,
) -> Result<Option<(RunHead, Vec<u8>)>> {
    Ok(match find_run_or_tombstone(core, namespace, uid)? {
        Some(RunOrTombstone::Run(head, tail)) => Some((*head, tail)),
        _ => None,
    })
}

/// The uid of the living run of this name.
pub(crate) fn find_living_run(core: &Core, namespace: NamespaceId, name: &str) -> Result<Option<RunUid>> {
    let _pin = core.pin();
    let Some(uid) = last_uid_of_name(core, namespace, name)? else { return Ok(None) };
    // A tombstone does not contain the name, so the name key of a dropped run still leads to its old record.
    Ok(core.index.newest(&run_keys::run(namespace, uid))?.map(|_| uid))
}

/// The uid of the run that had this name last, unless it was replaced.
fn last_uid_of_name(core: &Core, namespace: NamespaceId, name: &str) -> Result<Option<RunUid>> {
    let _pin = core.pin();
    let Some(value) = core.index.newest(&run_keys::run_name(namespace, name))? else { return Ok(None) };
    let head = core.read_logical(keys::place(value), kinds::RUN, |logical| RunHead::parse(logical.head))?;
    if head.fields.name != name || head.fields.namespace != namespace {
        return Err(Error::new(ErrorKind::Damaged, "the index leads to another run than the one wanted"));
    }
    Ok(Some(head.fields.uid))
}

/// Builds a run's head from its tombstone. Fields that a tombstone does not have are empty.
fn head_of_tombstone(head: TombstoneHead) -> RunHead {
    let fields = RunFields {
        uid: head.run,
        namespace: head.namespace,
        name: String::new(),
        agent: String::new(),
        model: String::new(),
        tags: Vec::new(),
        status: Status::Abandoned.code(),
        severity: Severity::Normal.code(),
        parent: head.parent,
        started_ns: head.started_ns,
        ended_ns: head.dropped_ns,
        frames: head.frames,
        raw_bytes: 0,
        fingerprint: chain::genesis(),
        gone: true,
    };
    RunHead { fields, metadata: BodyRef::Inline(Vec::new()) }
}

/// The error for reading a dropped run.
fn dropped_error(what: &str, dropped_ns: u64, rule: &str, why: &str) -> Error {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    let when = crate::timestamp::rfc3339(dropped_ns);
    Error::new(ErrorKind::Gone, format!("{what} was dropped {when} by the rule {rule:?}{why}"))
}

/// Frames of an open run that one look at the index counts.
const PAGE_FRAMES: usize = 1 << 16;

impl RunReader {
    pub(crate) fn find(core: &Arc<Core>, namespace: NamespaceId, name: &str) -> Result<Self> {
        let known = match last_uid_of_name(core, namespace, name)? {
            Some(uid) => find_run_or_tombstone(core, namespace, uid)?,
            None => None,
        };
        match known {
            Some(RunOrTombstone::Dropped(head)) => {
                Err(dropped_error(&format!("run {name:?}"), head.dropped_ns, &head.rule, &head.why))
            }
            Some(RunOrTombstone::Run(head, tail)) if !head.fields.gone => {
                Self::from_record(core, namespace, *head, &tail)
            }
            // Compaction removed its record, or it was replaced, or it never was.
            _ => match dropped_names::find(core, namespace, name)? {
                Some(DroppedName { dropped_ns, rule, why }) => {
                    Err(dropped_error(&format!("run {name:?}"), dropped_ns, &rule, &why))
                }
                None => Err(Error::not_found(format!("there is no run {name:?}"))),
            },
        }
    }

    pub(crate) fn open(core: &Arc<Core>, namespace: NamespaceId, uid: RunUid) -> Result<Self> {
        match find_run_or_tombstone(core, namespace, uid)? {
            Some(RunOrTombstone::Run(head, tail)) => Self::from_record(core, namespace, *head, &tail),
            Some(RunOrTombstone::Dropped(head)) => {
                let what = format!("run number {}", uid.0);
                Err(dropped_error(&what, head.dropped_ns, &head.rule, &head.why))
            }
            None => Err(Error::not_found(format!("there is no run number {}", uid.0))),
        }
    }

    /// Reads the shared frames of a fork that is not in the log yet.
    pub(crate) fn for_shared_frames(
        core: &Arc<Core>,
        namespace: NamespaceId,
        fields: RunFields,
        shared: u32,
    ) -> Result<Self> {
        let lineage = lineage(core, namespace, &fields)?;
        let fields = RunFields { frames: shared, ..fields };
        let head = RunHead { fields, metadata: BodyRef::Inline(Vec::new()) };
        Self::from_head(core, namespace, head, &[], lineage).map(|(reader, _)| reader)
    }

    /// Opens a run from its newest record.
    pub(super) fn from_record(
        core: &Arc<Core>,
        namespace: NamespaceId,
        head: RunHead,
        tail: &[u8],
    ) -> Result<Self> {
        let lineage = lineage(core, namespace, &head.fields)?;
        let (mut reader, open) = Self::from_head(core, namespace, head, tail, lineage)?;
        if open {
            reader.count_open_run()?;
        }
        Ok(reader)
    }

    /// Opens a run for salvage, living or with its newest record lost, from the given record. If an ancestor
    /// is lost, its frames are missing.
    pub(crate) fn for_salvage(
        core: &Arc<Core>,
        namespace: NamespaceId,
        head: RunHead,
        tail: &[u8],
    ) -> Result<Self> {
        let lineage = match lineage(core, namespace, &head.fields) {
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Damaged) => {
                let fields = &head.fields;
                vec![Ancestor { uid: fields.uid, upto: u32::MAX, started_ns: fields.started_ns }]
            }
            lineage => lineage?,
        };
        let (mut reader, open) = Self::from_head(core, namespace, head, tail, lineage)?;
        if open
            && let Err(error) = reader.count_open_run()
            && error.kind() != ErrorKind::Damaged
        {
            return Err(error);
        }
        Ok(reader)
    }

    /// Opens a run, living or not, to find the extents of its frames without reading the bodies.
    pub(crate) fn for_marking(
        core: &Arc<Core>,
        namespace: NamespaceId,
        uid: RunUid,
        known: Arc<FrameCache>,
    ) -> Result<Self> {
        let (head, tail) = match find_run_or_tombstone(core, namespace, uid)? {
            Some(RunOrTombstone::Run(head, tail)) => (*head, tail),
            Some(RunOrTombstone::Dropped(head)) => (head_of_tombstone(head), Vec::new()),
            None => {
                let what = format!("the record of run {} is missing", uid.0);
                return Err(Error::new(ErrorKind::Damaged, what));
            }
        };
        let lineage = lineage(core, namespace, &head.fields)?;
        let (reader, _) = Self::from_head(core, namespace, head, &tail, lineage)?;
        let info = RunInfo { frames: u32::MAX, ..reader.info };
        Ok(Self { info, known, hashing: HashCheck::Skipped, ..reader })
    }

    fn from_head(
        core: &Arc<Core>,
        namespace: NamespaceId,
        head: RunHead,
        tail: &[u8],
        lineage: Vec<Ancestor>,
    ) -> Result<(Self, bool)> {
        let (uid, lineage) = (head.fields.uid, Arc::new(lineage));
        let parent = match head.fields.parent {
            None => None,
            Some((parent, shared, at)) => {
                let known = run_record(core, namespace, parent)?.filter(|(head, _)| !head.fields.gone);
                Some(ForkPoint { run: known.map(|(head, _)| head.fields.name), uid: parent, at, shared })
            }
        };
        let recipe =
            match head.metadata {
                BodyRef::Blob { len, .. } => {
                    let mut r = ByteReader::new(tail, "run tail");
                    let taken = RecipeRef::take(&mut r, len).map(|recipe| recipe.recipe.to_vec());
                    Some(taken.map_err(|e| {
                        Error::new(ErrorKind::Damaged, format!("a run's record is damaged: {e}"))
                    })?)
                }
                _ => None,
            };
        let fields = head.fields;
        let status = Status::from_code(fields.status)?;
        let open = status == Status::Open;
        let info = RunInfo {
            uid,
            name: fields.name,
            agent: fields.agent,
            model: fields.model,
            tags: fields.tags,
            status,
            severity: Severity::from_code(fields.severity)?,
            parent,
            started_ns: fields.started_ns,
            ended_ns: (!open).then_some(fields.ended_ns),
            frames: fields.frames,
            raw_bytes: fields.raw_bytes,
            fingerprint: (!open).then_some(fields.fingerprint),
        };
        let reader = Self {
            core: core.clone(),
            namespace,
            info,
            lineage,
            known: RunSchema::frames(core),
            hashing: HashCheck::Compared,
            metadata: (head.metadata, recipe),
        };
        Ok((reader, open))
    }

    /// Counts the frames and raw bytes of an open run, since its record does not have them yet.
    fn count_open_run(&mut self) -> Result<()> {
        let uid = self.info.uid;
        let shared = self.info.parent.as_ref().map_or(0, |parent| parent.shared);
        let last = self.core.index.last_key(&run_keys::frames(uid), &run_keys::frame(uid, u32::MAX))?;
        self.info.frames = last.and_then(|hit| run_keys::last_number(&hit.key)).unwrap_or(shared);
        let mut raw_bytes = 0;
        // A forged frame may have any number, so only those that exist are looked at.
        let mut from = run_keys::frames(uid);
        let end = prefix_end(&from).unwrap_or_default();
        loop {
            let number = |key: &[u8], _| run_keys::last_number(key);
            let (seqs, more) = self.core.index.pick_newest(&from, &end, PAGE_FRAMES, number)?;
            for seq in seqs.into_iter().filter(|seq| *seq > shared) {
                if let Some(record) = self.find_record(seq)? {
                    for slot in [BodySlot::Input, BodySlot::Output, BodySlot::Metadata] {
                        raw_bytes += self.body_len(seq, &record, slot)?;
                    }
                }
            }
            match more {
                Some(next) => from = next,
                None => break,
            }
        }
        self.info.raw_bytes = raw_bytes;
        Ok(())
    }

    /// The run's name, status, counts and other fields.
    #[must_use]
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// The run's metadata: JSON, or empty.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn metadata(&self) -> Result<Vec<u8>> {
        match &self.metadata {
            (BodyRef::Inline(bytes), _) => Ok(bytes.clone()),
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let alone = RecipeRef { body_len: *len, base_back: 0, recipe };
                let extents =
                    bodies::decode_extents(alone, |_| Err(Error::bug("a run's recipe stands alone")))?;
                bodies::read_body(&self.core, self.namespace, &extents, *len, *id)
            }
            _ => Err(Error::new(ErrorKind::Damaged, "a run's record names no metadata that can be read")),
        }
    }

    /// The same run, read without hashing: for callers that read a body repeatedly or check the bytes in
    /// another way.
    ///
    /// Record checksums (CRC-32 of the bytes on disk) and lengths are still checked. So are the stored links
    /// of the chain, where the records hold whole ids. The check that a body hashes to its id is left out, and
    /// only that check proves that the bytes are the recorded ones. [`RunReader::verify`] makes it on every
    /// reader.
    ///
    /// ```
    /// # use annals::{Component, Frame, RunSpec, Status, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(dir.path().join("store"))?;
    /// # let agent = store.namespace("default")?;
    /// # let run = agent.begin_run(RunSpec::new("r"))?;
    /// # run.record(Frame::new(Component::Llm, "in", "out"))?;
    /// # run.end(Status::Ok)?;
    /// let reader = agent.run("r")?;
    /// assert_eq!(reader.unverified().frame(1)?, reader.frame(1)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn unverified(&self) -> Self {
        Self { hashing: HashCheck::Skipped, ..self.clone() }
    }

    /// Reads one frame, and of the frames before it only what its link needs.
    ///
    /// # Errors
    /// `NotFound` if the run has no frame of this number; `Damaged` if bytes or link differ from what was
    /// recorded.
    pub fn frame(&self, seq: u32) -> Result<RecordedFrame> {
        let record = self.record(seq)?;
        let before = self.link_at(seq - 1)?;
        let bodies = self.read_bodies(seq, &record)?;
        self.checked_frame(seq, &record, &before, bodies)
    }

    /// All frames in order. Each is checked and the chain is walked.
    ///
    /// Of a body, only the parts that differ from the previous body of its lane are hashed. For this, at most
    /// 64 MiB of bodies are kept in memory.
    #[must_use]
    pub fn frames(&self) -> Frames {
        Frames { scan: FrameScan::all_frames(self) }
    }

    /// Reads a frame without its input and output. Their bytes are not checked.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub fn frame_info(&self, seq: u32) -> Result<FrameInfo> {
        let record = self.record(seq)?;
        let head = &record.head;
        Ok(FrameInfo {
            seq,
            parent: (head.parent != 0).then_some(head.parent),
            component: Component::from_code(head.component, head.other.clone())?,
            severity: Severity::from_code(head.severity)?,
            incomplete: head.open,
            error: head.error,
            started_ns: self.started_ns(seq, head)?,
            duration_ns: head.duration_ns,
            input_bytes: self.body_len(seq, &record, BodySlot::Input)?,
            output_bytes: self.body_len(seq, &record, BodySlot::Output)?,
            metadata: self.body(seq, &record, BodySlot::Metadata)?.bytes,
        })
    }

    /// Whether a frame of the run, shared or own, is of one of these components. Bodies are not read.
    pub(crate) fn has_component(&self, any: &[Component]) -> Result<bool> {
        for seq in 1..=self.info.frames {
            let record = self.record(seq)?;
            let component = Component::from_code(record.head.component, record.head.other.clone())?;
            if any.contains(&component) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first frame of the run, shared or own, of which a body is the content with this id. Long bodies are not
    /// read.
    pub(crate) fn frame_with_content(&self, id: BlobId) -> Result<Option<u32>> {
        for seq in 1..=self.info.frames {
            let record = self.record(seq)?;
            if (0..3).any(|place| record.body(place).0.has_content(id)) {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// Assembles a frame from its bodies. Its stored link must follow from `before`.
    pub(super) fn checked_frame(
        &self,
        seq: u32,
        record: &FrameRecord,
        before: &Link,
        bodies: UnlinkedBodies,
    ) -> Result<RecordedFrame> {
        let frame = self.assemble_frame(seq, record, before, bodies)?;
        match record.head.link {
            Some((at, stored)) if at == seq && stored != frame.link => Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "frame {seq} of run {:?} does not follow from the frames before it: its link differs",
                    self.info.name
                ),
            )),
            _ => Ok(frame),
        }
    }

    /// Reads a frame of a damaged run: checks its bodies, and its link if the link before it can be read.
    /// After a lost frame, the link in the result has no meaning.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub(crate) fn salvage_frame(&self, seq: u32) -> Result<RecordedFrame> {
        let record = self.record(seq)?;
        let bodies = self.read_bodies(seq, &record)?;
        match self.link_at(seq - 1) {
            Ok(before) => self.checked_frame(seq, &record, &before, bodies),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Bug) => Err(error),
            Err(_) => self.assemble_frame(seq, &record, &chain::genesis(), bodies),
        }
    }

    fn read_bodies(&self, seq: u32, record: &Arc<FrameRecord>) -> Result<UnlinkedBodies> {
        let input = self.body(seq, record, BodySlot::Input)?;
        let output = match record.head.open {
            true => ReadBody::from_bytes(self.arrived_output(seq)?),
            false => self.body(seq, record, BodySlot::Output)?,
        };
        let metadata = self.body(seq, record, BodySlot::Metadata)?;
        Ok(UnlinkedBodies { input, output, metadata })
    }

    fn assemble_frame(
        &self,
        seq: u32,
        record: &FrameRecord,
        before: &Link,
        bodies: UnlinkedBodies,
    ) -> Result<RecordedFrame> {
        let head = &record.head;
        let component = Component::from_code(head.component, head.other.clone())?;
        let UnlinkedBodies { input, output, metadata } = bodies;
        let digest = |input: BlobId, output: BlobId| {
            chain::digest(&component, head.parent, head.open, head.error, input, output, &metadata.bytes)
        };
        let link = match (input.id, output.id, head.link) {
            (Some(input), Some(output), _) => chain::next(before, &digest(input, output)),
            // Not every id is known without hashing: the stored link is taken as recorded.
            (_, _, Some((at, stored))) if at == seq => stored,
            _ => {
                let known = |body: &ReadBody| body.id.unwrap_or_else(|| BlobId::of(&body.bytes));
                chain::next(before, &digest(known(&input), known(&output)))
            }
        };
        Ok(RecordedFrame {
            seq,
            parent: (head.parent != 0).then_some(head.parent),
            component,
            severity: Severity::from_code(head.severity)?,
            incomplete: head.open,
            error: head.error,
            started_ns: self.started_ns(seq, head)?,
            duration_ns: head.duration_ns,
            input: input.bytes,
            output: output.bytes,
            metadata: metadata.bytes,
            input_id: input.id,
            output_id: output.id,
            link,
        })
    }

    /// The digest that frame `seq` adds to the chain. Besides the record, only metadata and an incomplete
    /// output are read.
    pub(super) fn frame_digest(&self, seq: u32, record: &Arc<FrameRecord>) -> Result<FrameDigest> {
        let head = &record.head;
        let component = Component::from_code(head.component, head.other.clone())?;
        let input = self.body_id(seq, record, BodySlot::Input)?;
        let output = match head.open {
            true => BlobId::of(&self.arrived_output(seq)?),
            false => self.body_id(seq, record, BodySlot::Output)?,
        };
        let metadata = self.body(seq, record, BodySlot::Metadata)?.bytes;
        Ok(chain::digest(&component, head.parent, head.open, head.error, input, output, &metadata))
    }

    /// What leads to the link of frame `seq`, if its record holds only the first bytes of an id. The bodies are
    /// read and checked.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub(crate) fn chain_witness(&self, seq: u32) -> Result<Option<ChainWitness>> {
        let record = self.record(seq)?;
        let is_front = |body: &BodyRef| matches!(body, BodyRef::Blob { id: RecordedId::Front(_), .. });
        if ![&record.head.input, &record.head.output].into_iter().any(is_front) {
            return Ok(None);
        }
        let hashing = Self { hashing: HashCheck::Compared, ..self.clone() };
        let before = hashing.link_at(seq - 1)?;
        let bodies = hashing.read_bodies(seq, &record)?;
        let metadata = chain::canonical_metadata(&bodies.metadata.bytes);
        let checked = hashing.checked_frame(seq, &record, &before, bodies)?;
        let ids = checked.input_id.zip(checked.output_id);
        let (input, output) = ids.ok_or_else(|| Error::bug("a frame was checked without its hashes"))?;
        Ok(Some(ChainWitness { before, input, output, metadata }))
    }

    /// The link after frame `seq`: its stored link, or computed from the nearest earlier frame with a stored
    /// link.
    pub(crate) fn link_at(&self, seq: u32) -> Result<Link> {
        let mut unlinked = Vec::new();
        let mut at = seq;
        let mut link = chain::genesis();
        while at > 0 {
            let record = self.record(at)?;
            match record.head.link {
                Some((of, stored)) if of == at => {
                    link = stored;
                    break;
                }
                _ => unlinked.push((at, record)),
            }
            at -= 1;
        }
        for (at, record) in unlinked.iter().rev() {
            link = chain::next(&link, &self.frame_digest(*at, record)?);
        }
        Ok(link)
    }

    /// Fails if frame `seq` or an earlier own frame is unfinished: the chain changes when that frame is
    /// finished.
    pub(crate) fn check_finished(&self, seq: u32) -> Result<()> {
        if self.info.status != Status::Open {
            return Ok(());
        }
        let mut at = seq;
        while at > 0 && self.frame_owner(at)? == self.info.uid {
            let record = self.record(at)?;
            if record.head.open {
                return Err(Error::conflict(format!(
                    "frame {at} of run {:?} is not finished: finish it first, or fork before it",
                    self.info.name
                )));
            }
            // A stored link proves that all frames before it were finished.
            if record.head.link.is_some() {
                break;
            }
            at -= 1;
        }
        Ok(())
    }
}

/// Iterates over the frames of a run in order, each checked. After an error it ends.
#[derive(Debug)]
pub struct Frames {
    scan: FrameScan,
}

impl Iterator for Frames {
    type Item = Result<RecordedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        self.scan.next(BodyOutput::Returned).map(|scanned| scanned.map(|scanned| scanned.frame))
    }
}

/// The runs that hold the frames of a run with these fields, oldest ancestor first.
fn lineage(core: &Core, namespace: NamespaceId, fields: &RunFields) -> Result<Vec<Ancestor>> {
    let mut child = Ancestor { uid: fields.uid, upto: u32::MAX, started_ns: fields.started_ns };
    let mut parent = fields.parent;
    let mut lineage = Vec::new();
    while let Some((uid, shared, _)) = parent {
        // A fork is always younger than its parent; without this check a damaged record could cause an
        // endless loop.
        if uid >= child.uid {
            return Err(Error::new(ErrorKind::Damaged, "a run is recorded as a fork of a younger run"));
        }
        let (started_ns, of_parent) = match find_run_or_tombstone(core, namespace, uid)? {
            Some(RunOrTombstone::Run(head, _)) => (head.fields.started_ns, head.fields.parent),
            // The shared frames of a dropped run still exist.
            Some(RunOrTombstone::Dropped(head)) => (head.started_ns, head.parent),
            None => {
                let message = format!("the run that run {} was forked from is gone", child.uid.0);
                return Err(Error::new(ErrorKind::Gone, message));
            }
        };
        lineage.push(child);
        child = Ancestor { uid, upto: child.upto.min(shared), started_ns };
        parent = of_parent;
    }
    lineage.push(child);
    lineage.reverse();
    Ok(lineage)
}
