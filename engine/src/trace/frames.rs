//! Reads frame records and their bodies: the run of a fork's lineage that holds a frame, the extents of a
//! body, and its bytes. `reader` walks the chain.

use std::sync::Arc;

use crate::blob::Extent;
use crate::codec::ByteReader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, RecordedId, RunUid, Seqno};
use crate::log::record::{BodyRef, RecipeRef};
use crate::trace::frame_cache::FrameRecord;
use crate::trace::heads::{FrameHead, PartHead};
use crate::trace::kinds;
use crate::trace::lanes::BodySlot;
use crate::trace::model::Component;
use crate::trace::reader::{Ancestor, RunReader};
use crate::trace::run_keys;
use annals_store::kv::blob_reader::BlobReader;
use annals_store::kv::bodies::{self, HashCheck};
use annals_store::kv::groups::DecodeScope;
use annals_store::kv::keys;

/// Maximum depth of recipes coded against each other. A million bodies need a depth of twenty.
pub(crate) const BASE_DEPTH_MAX: u32 = 64;

/// A body with its component, the frame that holds it, and its extents.
#[derive(Debug)]
pub(crate) struct StoredBody {
    pub(crate) component: Component,
    pub(crate) seq: u32,
    pub(crate) id: BlobId,
    pub(crate) bytes: Vec<u8>,
    pub(crate) extents: Arc<Vec<Extent>>,
}

/// The location of a body's bytes.
#[derive(Debug)]
pub(super) enum BodyLocation {
    /// In the record that names it.
    Inline(Vec<u8>),
    /// In groups. `seq` is the frame that holds the recipe.
    Blob { seq: u32, extents: Arc<Vec<Extent>>, len: u64, id: RecordedId },
}

/// A body as read.
#[derive(Debug)]
pub(super) struct ReadBody {
    pub(super) bytes: Vec<u8>,
    /// Its length, also if its bytes were only checked.
    pub(super) len: u64,
    /// `None` if the bytes were not hashed and the record holds only the id's first bytes.
    pub(super) id: Option<BlobId>,
}

impl ReadBody {
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len() as u64, id: Some(BlobId::of(&bytes)), bytes }
    }
}

/// Takes the bytes of a part of an incomplete frame's output, and their extents.
type EachPart<'a> = dyn FnMut(Vec<u8>, &[Extent]) -> Result<()> + 'a;

/// The index of a slot in a frame's record.
fn slot_index(slot: BodySlot) -> usize {
    match slot {
        BodySlot::Input => 0,
        BodySlot::Output => 1,
        BodySlot::Metadata | BodySlot::State => 2,
    }
}

impl RunReader {
    /// The run of the lineage that holds frame `seq`.
    fn ancestor(&self, seq: u32) -> Result<&Ancestor> {
        self.lineage
            .iter()
            .find(|ancestor| seq <= ancestor.upto)
            .ok_or_else(|| Error::bug("a run's lineage does not reach its own frames"))
    }

    /// The uid of the run of the lineage that holds frame `seq`.
    pub(crate) fn frame_owner(&self, seq: u32) -> Result<RunUid> {
        self.ancestor(seq).map(|ancestor| ancestor.uid)
    }

    pub(super) fn find_record(&self, seq: u32) -> Result<Option<Arc<FrameRecord>>> {
        if seq == 0 {
            return Ok(None);
        }
        let uid = self.frame_owner(seq)?;
        if let Some(known) = self.known.record(uid, seq) {
            return Ok(Some(known));
        }
        let _pin = self.core.pin();
        let Some(value) = self.core.index.newest(&run_keys::frame(uid, seq))? else { return Ok(None) };
        let record = self.core.read_logical(keys::place(value), kinds::FRAME, FrameRecord::parse)?;
        if record.head.run != uid || record.head.seq != seq {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("the index leads to frame {} where frame {seq} is wanted", record.head.seq),
            ));
        }
        let record = Arc::new(record);
        self.known.put_record(&record);
        Ok(Some(record))
    }

    pub(super) fn record(&self, seq: u32) -> Result<Arc<FrameRecord>> {
        let name = &self.info.name;
        if seq == 0 || seq > self.info.frames {
            let hint = if self.info.frames == 0 {
                "it has none".into()
            } else {
                format!("it has 1 to {}", self.info.frames)
            };
            return Err(Error::not_found(format!("run {name:?} has no frame {seq}: {hint}")));
        }
        match self.find_record(seq)? {
            Some(record) => Ok(record),
            None => Err(self.missing_frame_error(seq)?),
        }
    }

    /// The error for a frame without a record. Compaction removes the frames of a run that was dropped or
    /// replaced after this reader found it; any other missing frame is damage.
    fn missing_frame_error(&self, seq: u32) -> Result<Error> {
        let name = &self.info.name;
        let run =
            self.core.index.get(&run_keys::run(self.namespace, self.frame_owner(seq)?), Seqno(u64::MAX))?;
        Ok(match run {
            Some((_, value)) if value.kind != keys::ENDED => {
                Error::new(ErrorKind::Damaged, format!("frame {seq} of run {name:?} is missing"))
            }
            Some(_) | None => Error::new(
                ErrorKind::Gone,
                format!("run {name:?} was dropped or replaced while it was read, and its frames are gone"),
            ),
        })
    }

    pub(super) fn started_ns(&self, seq: u32, head: &FrameHead) -> Result<u64> {
        Ok(self.ancestor(seq)?.started_ns.saturating_add_signed(head.start_ns))
    }

    /// The frame that holds a body, and its record. It is an earlier one if the body is a reference.
    fn body_origin(
        &self,
        seq: u32,
        record: &Arc<FrameRecord>,
        slot: BodySlot,
    ) -> Result<(u32, Arc<FrameRecord>)> {
        match record.body(slot_index(slot)).0 {
            BodyRef::Same { back } => {
                let at = seq.checked_sub(*back).filter(|at| *at > 0);
                let at = at.ok_or_else(|| Error::new(ErrorKind::Damaged, "a body names no earlier frame"))?;
                let origin = self.record(at)?;
                if matches!(origin.body(slot_index(slot)).0, BodyRef::Same { .. }) {
                    return Err(Error::new(ErrorKind::Damaged, "a body's origin is itself a reference"));
                }
                Ok((at, origin))
            }
            _ => Ok((seq, record.clone())),
        }
    }

    pub(super) fn body_len(&self, seq: u32, record: &Arc<FrameRecord>, slot: BodySlot) -> Result<u64> {
        let (_, origin) = self.body_origin(seq, record, slot)?;
        Ok(match origin.body(slot_index(slot)).0 {
            BodyRef::Inline(bytes) => bytes.len() as u64,
            BodyRef::Blob { len, .. } => *len,
            BodyRef::Same { .. } => 0,
        })
    }

    /// A body's id. Its bytes are read only if the record holds the id's first bytes alone.
    pub(crate) fn body_id(&self, seq: u32, record: &Arc<FrameRecord>, slot: BodySlot) -> Result<BlobId> {
        let (at, origin) = self.body_origin(seq, record, slot)?;
        match origin.body(slot_index(slot)).0 {
            BodyRef::Inline(bytes) => Ok(BlobId::of(bytes)),
            BodyRef::Blob { id: RecordedId::Whole(id), .. } => Ok(*id),
            BodyRef::Blob { .. } => {
                let hashing = Self { hashing: HashCheck::Compared, ..self.clone() };
                let id = hashing.body(at, &origin, slot)?.id;
                id.ok_or_else(|| Error::bug("a body was read without its hash"))
            }
            BodyRef::Same { .. } => Err(Error::bug("a body's origin is itself a reference")),
        }
    }

    /// Finds a body's bytes.
    pub(super) fn find_body(
        &self,
        seq: u32,
        record: &Arc<FrameRecord>,
        slot: BodySlot,
    ) -> Result<BodyLocation> {
        let (at, origin) = self.body_origin(seq, record, slot)?;
        match origin.body(slot_index(slot)) {
            (BodyRef::Inline(bytes), _) => Ok(BodyLocation::Inline(bytes.clone())),
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let extents = self.extents_of(at, &origin, slot, recipe, 0)?;
                Ok(BodyLocation::Blob { seq: at, extents, len: *len, id: *id })
            }
            _ => Err(Error::new(ErrorKind::Damaged, format!("frame {seq} has a body without a recipe"))),
        }
    }

    /// Reads a body. It is hashed, unless this is an unverified reader.
    pub(super) fn body(&self, seq: u32, record: &Arc<FrameRecord>, slot: BodySlot) -> Result<ReadBody> {
        match self.find_body(seq, record, slot)? {
            BodyLocation::Inline(bytes) => Ok(ReadBody::from_bytes(bytes)),
            BodyLocation::Blob { extents, len, id, .. } => {
                let (bytes, id) = self.read_blob(&extents, (len, id), self.hashing)?;
                Ok(ReadBody { bytes, len, id })
            }
        }
    }

    fn read_blob(
        &self,
        extents: &[Extent],
        named: (u64, RecordedId),
        hashing: HashCheck,
    ) -> Result<(Vec<u8>, Option<BlobId>)> {
        let scope = DecodeScope::UpToBody;
        bodies::read_body_with(&self.core, self.namespace, extents, named, scope, hashing)
    }

    /// Decodes the extents of frame `seq`'s recipe in `slot`.
    fn extents_of(
        &self,
        seq: u32,
        record: &FrameRecord,
        slot: BodySlot,
        recipe: RecipeRef<'_>,
        depth: u32,
    ) -> Result<Arc<Vec<Extent>>> {
        let place = slot_index(slot);
        if let Some(known) = self.known.recipe(record, place) {
            return Ok(known);
        }
        let extents = bodies::decode_extents(recipe, |back| {
            let wrong =
                || Error::new(ErrorKind::Damaged, format!("a recipe of frame {seq} has no earlier base"));
            let at =
                seq.checked_sub(back).filter(|at| *at > 0 && depth < BASE_DEPTH_MAX).ok_or_else(wrong)?;
            let base = self.record(at)?;
            match base.body(place) {
                (BodyRef::Blob { .. }, Some(recipe)) => self.extents_of(at, &base, slot, recipe, depth + 1),
                _ => Err(wrong()),
            }
        })?;
        self.known.put_recipe(record, place, &extents);
        Ok(extents)
    }

    /// The extents of all bodies that a frame's record holds itself. The record may be an old version of it.
    pub(crate) fn own_extents(&self, record: &Arc<FrameRecord>) -> Result<Vec<Arc<Vec<Extent>>>> {
        let mut named = Vec::new();
        for slot in [BodySlot::Input, BodySlot::Output, BodySlot::Metadata] {
            if matches!(record.body(slot_index(slot)).0, BodyRef::Blob { .. })
                && let BodyLocation::Blob { extents, .. } = self.find_body(record.head.seq, record, slot)?
            {
                named.push(extents);
            }
        }
        Ok(named)
    }

    /// Reads a body with its extents, as a fork compares its first body with; `None` for an inline body.
    pub(crate) fn body_with_extents(&self, seq: u32, slot: BodySlot) -> Result<Option<StoredBody>> {
        let record = self.record(seq)?;
        let component = Component::from_code(record.head.component, record.head.other.clone())?;
        match self.find_body(seq, &record, slot)? {
            BodyLocation::Blob { seq, extents, len, id } => {
                let (bytes, id) = self.read_blob(&extents, (len, id), HashCheck::Compared)?;
                let id = id.ok_or_else(|| Error::bug("a body was read without its hash"))?;
                Ok(Some(StoredBody { component, seq, id, bytes, extents }))
            }
            BodyLocation::Inline(_) => Ok(None),
        }
    }

    /// Frame `seq`'s input as a stream.
    ///
    /// # Errors
    /// As [`RunReader::frame`]; if the bytes differ from what was recorded, the stream ends with an error.
    pub fn input_reader(&self, seq: u32) -> Result<BlobReader> {
        self.body_reader(seq, BodySlot::Input)
    }

    /// Frame `seq`'s output as a stream; for an incomplete frame, the part that had arrived.
    ///
    /// # Errors
    /// As [`RunReader::input_reader`].
    pub fn output_reader(&self, seq: u32) -> Result<BlobReader> {
        self.body_reader(seq, BodySlot::Output)
    }

    fn body_reader(&self, seq: u32, slot: BodySlot) -> Result<BlobReader> {
        let record = self.record(seq)?;
        let (core, namespace) = (self.core.clone(), self.namespace);
        if record.head.open && slot == BodySlot::Output {
            return Ok(BlobReader::from_bytes(core, namespace, self.arrived_output(seq)?));
        }
        match self.find_body(seq, &record, slot)? {
            BodyLocation::Inline(bytes) => Ok(BlobReader::from_bytes(core, namespace, bytes)),
            BodyLocation::Blob { extents, len, id, .. } => {
                bodies::check_len(&extents, len, id)?;
                Ok(BlobReader::new(core, namespace, extents, (len, id), self.hashing))
            }
        }
    }

    /// The output of an incomplete frame that had arrived.
    pub(super) fn arrived_output(&self, seq: u32) -> Result<Vec<u8>> {
        let mut output = Vec::new();
        self.for_each_part(seq, &mut |bytes, _| {
            output.extend(bytes);
            Ok(())
        })?;
        Ok(output)
    }

    /// Calls `each` with the bytes of every part of an incomplete frame's output, in order, and with their
    /// extents, which are empty for an inline part.
    pub(super) fn for_each_part(&self, seq: u32, each: &mut EachPart<'_>) -> Result<()> {
        let uid = self.frame_owner(seq)?;
        let _pin = self.core.pin();
        for (part, hit) in
            (1..).zip(self.core.index.scan_prefix(&run_keys::parts(uid, seq), Seqno(u64::MAX))?)
        {
            if run_keys::last_number(&hit.key) != Some(part) {
                let what = format!("part {part} of the output of frame {seq} is missing");
                return Err(Error::new(ErrorKind::Damaged, what));
            }
            let (head, tail) =
                self.core.read_logical(keys::place(hit.value), kinds::FRAME_PART, |logical| {
                    Ok((PartHead::parse(logical.head)?, logical.tail.to_vec()))
                })?;
            match head.body {
                BodyRef::Inline(bytes) => each(bytes, &[])?,
                BodyRef::Blob { len, id } => {
                    let mut tail = ByteReader::new(&tail, "frame part tail");
                    let recipe = RecipeRef::take(&mut tail, len).map_err(|e| {
                        Error::new(ErrorKind::Damaged, format!("a frame's part is damaged: {e}"))
                    })?;
                    let extents =
                        bodies::decode_extents(recipe, |_| Err(Error::bug("a part's recipe stands alone")))?;
                    each(bodies::read_body(&self.core, self.namespace, &extents, len, id)?, &extents)?;
                }
                BodyRef::Same { .. } => {
                    return Err(Error::new(ErrorKind::Damaged, "a frame's part refers to another frame"));
                }
            }
        }
        Ok(())
    }
}
