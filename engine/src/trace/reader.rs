//! Reading runs: frames by number, whatever run of a fork's lineage holds them, every blob and link checked.

use std::sync::Arc;

use crate::codec::Reader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, Link, NamespaceId, RunUid, Seqno};
use crate::kv::bodies;
use crate::kv::core::Core;
use crate::kv::keys;
use crate::log::record::{BodyRef, Kind, RecipeRef, RunFields, RunHead};
use crate::trace::chain::{self, FrameDigest};
use crate::trace::frames::Raw;
use crate::trace::lanes::Slot;
use crate::trace::model::{Component, ForkPoint, RunInfo, Severity, Status};

/// A frame as it was recorded: its bytes hash to their ids, and its link follows from the frame before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Its number.
    pub seq: u32,
    /// The frame that caused it.
    pub parent: Option<u32>,
    /// What made it.
    pub component: Component,
    /// How much it matters.
    pub severity: Severity,
    /// It was begun and never finished: `output` holds what had arrived.
    pub incomplete: bool,
    /// The component failed.
    pub error: bool,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// What went in.
    pub input: Vec<u8>,
    /// What came out.
    pub output: Vec<u8>,
    /// JSON, or nothing.
    pub metadata: Vec<u8>,
    /// BLAKE3 of the input.
    pub input_id: BlobId,
    /// BLAKE3 of the output.
    pub output_id: BlobId,
    /// The chain's link after this frame.
    pub link: Link,
}

/// What listings show of a frame without touching its bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameInfo {
    /// Its number.
    pub seq: u32,
    /// The frame that caused it.
    pub parent: Option<u32>,
    /// What made it.
    pub component: Component,
    /// How much it matters.
    pub severity: Severity,
    /// It was begun and not finished.
    pub incomplete: bool,
    /// The component failed.
    pub error: bool,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Bytes of its input.
    pub input_bytes: u64,
    /// Bytes of its output, those of an incomplete frame not counted.
    pub output_bytes: u64,
    /// JSON, or nothing.
    pub metadata: Vec<u8>,
}

/// Frames `..= .1` of the run's numbering stand in run `.0`.
type Lineage = Vec<(RunUid, u32)>;

/// A run to read. Sees what was committed when it was found; cheap to clone.
#[derive(Debug, Clone)]
pub struct RunReader {
    pub(crate) core: Arc<Core>,
    pub(crate) namespace: NamespaceId,
    pub(super) info: RunInfo,
    /// Oldest ancestor first.
    pub(super) lineage: Lineage,
    metadata: (BodyRef, Option<Vec<u8>>),
}

/// A run's newest record.
pub(crate) fn run_record(
    core: &Core,
    namespace: NamespaceId,
    uid: RunUid,
) -> Result<Option<(RunHead, Vec<u8>)>> {
    let Some((_, value)) = core.index.get(&keys::run(namespace, uid), Seqno(u64::MAX))? else {
        return Ok(None);
    };
    let record = core.logical(keys::place(value), Kind::Run, |logical| {
        Ok((RunHead::parse(logical.head)?, logical.tail.to_vec()))
    })?;
    Ok(Some(record))
}

/// The number of the living run of this name.
pub(crate) fn find_name(core: &Core, namespace: NamespaceId, name: &str) -> Result<Option<RunUid>> {
    let Some(value) = core.index.newest(&keys::run_name(namespace, name))? else { return Ok(None) };
    let head = core.logical(keys::place(value), Kind::Run, |logical| RunHead::parse(logical.head))?;
    Ok(Some(head.fields.uid))
}

impl RunReader {
    pub(crate) fn find(core: &Arc<Core>, namespace: NamespaceId, name: &str) -> Result<Self> {
        let uid = find_name(core, namespace, name)?
            .ok_or_else(|| Error::not_found(format!("there is no run {name:?}")))?;
        Self::open(core, namespace, uid)
    }

    pub(crate) fn open(core: &Arc<Core>, namespace: NamespaceId, uid: RunUid) -> Result<Self> {
        let (head, tail) = run_record(core, namespace, uid)?
            .ok_or_else(|| Error::not_found(format!("there is no run number {}", uid.0)))?;
        let lineage = lineage(core, namespace, &head.fields)?;
        let parent = match head.fields.parent {
            None => None,
            Some((parent, shared, at)) => {
                let known = run_record(core, namespace, parent)?.filter(|(head, _)| !head.fields.gone);
                Some(ForkPoint { run: known.map(|(head, _)| head.fields.name), uid: parent, at, shared })
            }
        };
        let recipe =
            match head.metadata {
                BodyRef::Blob { .. } => {
                    let mut r = Reader::new(&tail, "run tail");
                    let taken = RecipeRef::take(&mut r).map(|recipe| recipe.recipe.to_vec());
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
        let mut reader =
            Self { core: core.clone(), namespace, info, lineage, metadata: (head.metadata, recipe) };
        if open {
            reader.count()?;
        }
        Ok(reader)
    }

    /// Counts what an open run's record does not say yet.
    fn count(&mut self) -> Result<()> {
        let uid = self.info.uid;
        let shared = self.info.parent.as_ref().map_or(0, |parent| parent.shared);
        let last = self.core.index.last(&keys::frames(uid), &keys::frame(uid, u32::MAX))?;
        self.info.frames = last.and_then(|hit| keys::last_number(&hit.key)).unwrap_or(shared);
        let mut raw_bytes = 0;
        for seq in shared + 1..=self.info.frames {
            if let Some(raw) = self.raw_if_any(seq)? {
                for slot in [Slot::Input, Slot::Output, Slot::Metadata] {
                    raw_bytes += self.body_len(seq, &raw, slot)?;
                }
            }
        }
        self.info.raw_bytes = raw_bytes;
        Ok(())
    }

    /// What is known of the run.
    #[must_use]
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// What else its recorder said of it: JSON, or nothing.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn metadata(&self) -> Result<Vec<u8>> {
        match &self.metadata {
            (BodyRef::Inline(bytes), _) => Ok(bytes.clone()),
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let alone = RecipeRef { base_back: 0, recipe };
                let extents = bodies::extents(alone, |_| Err(Error::bug("a run's recipe stands alone")))?;
                bodies::body(&self.core, self.namespace, &extents, *len, *id)
            }
            _ => Err(Error::new(ErrorKind::Damaged, "a run's record names no metadata that can be read")),
        }
    }

    /// One frame, without reading those before it but for one link.
    ///
    /// # Errors
    /// `NotFound` for a number the run does not have; `Damaged` where bytes or link are not what was recorded.
    pub fn frame(&self, seq: u32) -> Result<RecordedFrame> {
        let raw = self.raw(seq)?;
        let before = self.link_at(seq - 1)?;
        self.verified(seq, &raw, &before)
    }

    /// All frames in order, each checked, the chain walked.
    #[must_use]
    pub fn frames(&self) -> Frames {
        Frames { reader: self.clone(), next: 1, link: chain::genesis(), failed: false }
    }

    /// A frame without its bodies. Its bytes are not checked.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub fn frame_info(&self, seq: u32) -> Result<FrameInfo> {
        let raw = self.raw(seq)?;
        let head = &raw.head;
        Ok(FrameInfo {
            seq,
            parent: (head.parent != 0).then_some(head.parent),
            component: Component::from_code(head.component, head.other.clone())?,
            severity: Severity::from_code(head.severity)?,
            incomplete: head.open,
            error: head.error,
            started_ns: self.started_ns(seq, head)?,
            duration_ns: head.duration_ns,
            input_bytes: self.body_len(seq, &raw, Slot::Input)?,
            output_bytes: self.body_len(seq, &raw, Slot::Output)?,
            metadata: self.body(seq, &raw, Slot::Metadata)?.0,
        })
    }

    /// Reads a frame's bodies and checks them, and its link, which must follow `before`.
    fn verified(&self, seq: u32, raw: &Raw, before: &Link) -> Result<RecordedFrame> {
        let head = &raw.head;
        let component = Component::from_code(head.component, head.other.clone())?;
        let (input, input_id) = self.body(seq, raw, Slot::Input)?;
        let (output, output_id) = if head.open {
            let output = self.arrived(seq)?;
            let id = BlobId::of(&output);
            (output, id)
        } else {
            self.body(seq, raw, Slot::Output)?
        };
        let (metadata, _) = self.body(seq, raw, Slot::Metadata)?;
        let digest =
            chain::digest(&component, head.parent, head.open, head.error, input_id, output_id, &metadata);
        let link = chain::next(before, &digest);
        if let Some((at, stored)) = head.link
            && at == seq
            && stored != link
        {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "frame {seq} of run {:?} does not follow from the frames before it: its link differs",
                    self.info.name
                ),
            ));
        }
        Ok(RecordedFrame {
            seq,
            parent: (head.parent != 0).then_some(head.parent),
            component,
            severity: Severity::from_code(head.severity)?,
            incomplete: head.open,
            error: head.error,
            started_ns: self.started_ns(seq, head)?,
            duration_ns: head.duration_ns,
            input,
            output,
            metadata,
            input_id,
            output_id,
            link,
        })
    }

    /// What frame `seq` adds to the chain, from its record: only metadata (and an incomplete output) is read.
    fn digest(&self, seq: u32, raw: &Raw) -> Result<FrameDigest> {
        let head = &raw.head;
        let component = Component::from_code(head.component, head.other.clone())?;
        let input = self.body_id(seq, raw, Slot::Input)?;
        let output = match head.open {
            true => BlobId::of(&self.arrived(seq)?),
            false => self.body_id(seq, raw, Slot::Output)?,
        };
        let (metadata, _) = self.body(seq, raw, Slot::Metadata)?;
        Ok(chain::digest(&component, head.parent, head.open, head.error, input, output, &metadata))
    }

    /// The link after frame `seq`: as stored with it, or walked from the nearest frame before that stores its own.
    pub(crate) fn link_at(&self, seq: u32) -> Result<Link> {
        let mut unlinked = Vec::new();
        let mut at = seq;
        let mut link = chain::genesis();
        while at > 0 {
            let raw = self.raw(at)?;
            match raw.head.link {
                Some((of, stored)) if of == at => {
                    link = stored;
                    break;
                }
                _ => unlinked.push((at, raw)),
            }
            at -= 1;
        }
        for (at, raw) in unlinked.iter().rev() {
            link = chain::next(&link, &self.digest(*at, raw)?);
        }
        Ok(link)
    }

    /// Refuses to build on a frame that its recorder may still finish: the chain after it is going to change.
    pub(crate) fn check_finished(&self, seq: u32) -> Result<()> {
        if self.info.status != Status::Open {
            return Ok(());
        }
        let mut at = seq;
        while at > 0 && self.owner(at)? == self.info.uid {
            let raw = self.raw(at)?;
            if raw.head.open {
                return Err(Error::conflict(format!(
                    "frame {at} of run {:?} is not finished: finish it first, or fork before it",
                    self.info.name
                )));
            }
            // A stored link says that all frames before it were finished.
            if raw.head.link.is_some() {
                break;
            }
            at -= 1;
        }
        Ok(())
    }

    /// Reads every frame, and checks the run's fingerprint where it has ended.
    ///
    /// # Errors
    /// `Damaged` at the first frame that is not what was recorded.
    pub fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut link = chain::genesis();
        for frame in self.frames() {
            let frame = frame?;
            verified.frames += 1;
            verified.blobs += 2 + u64::from(!frame.metadata.is_empty());
            verified.bytes += (frame.input.len() + frame.output.len() + frame.metadata.len()) as u64;
            link = frame.link;
        }
        if self.info.fingerprint.is_some_and(|fingerprint| fingerprint != link) {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("run {:?} does not add up to its fingerprint", self.info.name),
            ));
        }
        self.metadata()?;
        Ok(verified)
    }
}

/// What a verification read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verified {
    /// Frames whose bytes and links were checked.
    pub frames: u64,
    /// Bodies re-hashed.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The frames of a run in order, each checked.
#[derive(Debug)]
pub struct Frames {
    reader: RunReader,
    next: u32,
    link: Link,
    failed: bool,
}

impl Iterator for Frames {
    type Item = Result<RecordedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.next > self.reader.info.frames {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        let frame = self.reader.raw(seq).and_then(|raw| self.reader.verified(seq, &raw, &self.link));
        match &frame {
            Ok(frame) => self.link = frame.link,
            Err(_) => self.failed = true,
        }
        Some(frame)
    }
}

/// Which run holds which frames of a run with these fields.
fn lineage(core: &Core, namespace: NamespaceId, fields: &RunFields) -> Result<Lineage> {
    let mut lineage = vec![(fields.uid, u32::MAX)];
    let mut parent = fields.parent;
    let mut upto = u32::MAX;
    while let Some((uid, shared, _)) = parent {
        let child = lineage.last().map_or(0, |(child, _)| child.0);
        // A fork is always younger than what it was forked from: anything else would not end.
        if uid.0 >= child {
            return Err(Error::new(ErrorKind::Damaged, "a run is recorded as a fork of a younger one"));
        }
        upto = upto.min(shared);
        lineage.push((uid, upto));
        let (head, _) = run_record(core, namespace, uid)?.ok_or_else(|| {
            Error::new(ErrorKind::Gone, format!("the run that run {child} was forked from is gone"))
        })?;
        parent = head.fields.parent;
    }
    lineage.reverse();
    Ok(lineage)
}
