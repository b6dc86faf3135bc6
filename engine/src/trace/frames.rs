//! Frame records and their bodies: which run of a fork's lineage holds a frame, where a body really stands, and its
//! bytes. Nothing here walks the chain; that is `reader`'s.

use std::sync::Arc;

use crate::blob::Extent;
use crate::codec::Reader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, RunUid, Seqno};
use crate::kv::blob_reader::BlobReader;
use crate::kv::bodies;
use crate::kv::keys;
use crate::log::record::{BodyRef, FrameHead, Kind, PartHead, RecipeRef};
use crate::trace::lanes::Slot;
use crate::trace::model::Component;
use crate::trace::reader::{RunReader, run_record};

/// How many recipes one may be coded against, one after the other. A million bodies need twenty.
pub(crate) const BASE_DEPTH_MAX: u32 = 64;

/// A body, whose it is, the frame that holds it, and where its bytes are.
#[derive(Debug)]
pub(crate) struct StoredBody {
    pub(crate) component: Component,
    pub(crate) seq: u32,
    pub(crate) id: BlobId,
    pub(crate) bytes: Vec<u8>,
    pub(crate) extents: Arc<Vec<Extent>>,
}

/// A frame's head and the recipes in its tail.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    pub(super) head: FrameHead,
    recipes: [Option<(u32, Vec<u8>)>; 3],
}

impl Raw {
    fn slot(&self, slot: Slot) -> (&BodyRef, Option<RecipeRef<'_>>) {
        let (reference, recipe) = match slot {
            Slot::Input => (&self.head.input, &self.recipes[0]),
            Slot::Output => (&self.head.output, &self.recipes[1]),
            Slot::Metadata | Slot::State => (&self.head.metadata, &self.recipes[2]),
        };
        (reference, recipe.as_ref().map(|(base_back, recipe)| RecipeRef { base_back: *base_back, recipe }))
    }
}

impl RunReader {
    /// Which run of the lineage holds frame `seq`.
    pub(super) fn owner(&self, seq: u32) -> Result<RunUid> {
        self.lineage
            .iter()
            .find(|(_, upto)| seq <= *upto)
            .map(|(uid, _)| *uid)
            .ok_or_else(|| Error::bug("a run's lineage does not reach its own frames"))
    }

    pub(super) fn raw_if_any(&self, seq: u32) -> Result<Option<Raw>> {
        if seq == 0 {
            return Ok(None);
        }
        let uid = self.owner(seq)?;
        let Some(value) = self.core.index.newest(&keys::frame(uid, seq))? else { return Ok(None) };
        let raw = self.core.logical(keys::place(value), Kind::Frame, |logical| {
            let head = FrameHead::parse(logical.head)?;
            let mut tail = Reader::new(logical.tail, "frame tail");
            let mut recipes = [None, None, None];
            for (reference, recipe) in
                [&head.input, &head.output, &head.metadata].into_iter().zip(&mut recipes)
            {
                if matches!(reference, BodyRef::Blob { .. }) {
                    let taken = RecipeRef::take(&mut tail)?;
                    *recipe = Some((taken.base_back, taken.recipe.to_vec()));
                }
            }
            tail.finish()?;
            Ok(Raw { head, recipes })
        })?;
        if raw.head.run != uid || raw.head.seq != seq {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("the index leads to frame {} where frame {seq} is wanted", raw.head.seq),
            ));
        }
        Ok(Some(raw))
    }

    pub(super) fn raw(&self, seq: u32) -> Result<Raw> {
        let name = &self.info.name;
        if seq == 0 || seq > self.info.frames {
            let hint = if self.info.frames == 0 {
                "it has none".into()
            } else {
                format!("it has 1 to {}", self.info.frames)
            };
            return Err(Error::not_found(format!("run {name:?} has no frame {seq}: {hint}")));
        }
        self.raw_if_any(seq)?
            .ok_or_else(|| Error::new(ErrorKind::Damaged, format!("frame {seq} of run {name:?} is missing")))
    }

    pub(super) fn started_ns(&self, seq: u32, head: &FrameHead) -> Result<u64> {
        let uid = self.owner(seq)?;
        let run_start = if uid == self.info.uid {
            self.info.started_ns
        } else {
            run_record(&self.core, self.namespace, uid)?.map_or(0, |(run, _)| run.fields.started_ns)
        };
        Ok(run_start.saturating_add_signed(head.start_ns))
    }

    /// The frame that really holds a body, and its reference there.
    fn origin(&self, seq: u32, raw: &Raw, slot: Slot) -> Result<(u32, Option<Raw>)> {
        match raw.slot(slot).0 {
            BodyRef::Same { back } => {
                let at = seq.checked_sub(*back).filter(|at| *at > 0);
                let at = at.ok_or_else(|| Error::new(ErrorKind::Damaged, "a body names no earlier frame"))?;
                let origin = self.raw(at)?;
                if matches!(origin.slot(slot).0, BodyRef::Same { .. }) {
                    return Err(Error::new(ErrorKind::Damaged, "a body's origin is itself a reference"));
                }
                Ok((at, Some(origin)))
            }
            _ => Ok((seq, None)),
        }
    }

    pub(super) fn body_len(&self, seq: u32, raw: &Raw, slot: Slot) -> Result<u64> {
        let (_, origin) = self.origin(seq, raw, slot)?;
        Ok(match origin.as_ref().unwrap_or(raw).slot(slot).0 {
            BodyRef::Inline(bytes) => bytes.len() as u64,
            BodyRef::Blob { len, .. } => *len,
            BodyRef::Same { .. } => 0,
        })
    }

    /// A body's id as recorded, its bytes untouched.
    pub(super) fn body_id(&self, seq: u32, raw: &Raw, slot: Slot) -> Result<BlobId> {
        let (_, origin) = self.origin(seq, raw, slot)?;
        Ok(match origin.as_ref().unwrap_or(raw).slot(slot).0 {
            BodyRef::Inline(bytes) => BlobId::of(bytes),
            BodyRef::Blob { id, .. } => *id,
            BodyRef::Same { .. } => return Err(Error::bug("a body's origin is itself a reference")),
        })
    }

    pub(super) fn body(&self, seq: u32, raw: &Raw, slot: Slot) -> Result<(Vec<u8>, BlobId)> {
        let (at, origin) = self.origin(seq, raw, slot)?;
        match origin.as_ref().unwrap_or(raw).slot(slot) {
            (BodyRef::Inline(bytes), _) => Ok((bytes.clone(), BlobId::of(bytes))),
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let extents = bodies::extents(recipe, |back| self.extents(at, back, slot, 0))?;
                Ok((bodies::body(&self.core, self.namespace, &extents, *len, *id)?, *id))
            }
            _ => Err(Error::new(ErrorKind::Damaged, format!("frame {seq} has a body without a recipe"))),
        }
    }

    /// The extents of the body in `slot` of the frame `back` numbers before `seq`.
    fn extents(&self, seq: u32, back: u32, slot: Slot, depth: u32) -> Result<Arc<Vec<Extent>>> {
        let wrong =
            || Error::new(ErrorKind::Damaged, format!("a recipe of frame {seq} names no earlier one"));
        let at = seq.checked_sub(back).filter(|at| *at > 0 && depth < BASE_DEPTH_MAX).ok_or_else(wrong)?;
        let raw = self.raw(at)?;
        match raw.slot(slot) {
            (BodyRef::Blob { .. }, Some(recipe)) => {
                bodies::extents(recipe, |back| self.extents(at, back, slot, depth + 1))
            }
            _ => Err(wrong()),
        }
    }

    /// A body with its extents: what a fork compares its first body with.
    pub(crate) fn body_with_extents(&self, seq: u32, slot: Slot) -> Result<Option<StoredBody>> {
        let raw = self.raw(seq)?;
        let component = Component::from_code(raw.head.component, raw.head.other.clone())?;
        let (at, origin) = self.origin(seq, &raw, slot)?;
        match origin.as_ref().unwrap_or(&raw).slot(slot) {
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let extents = bodies::extents(recipe, |back| self.extents(at, back, slot, 0))?;
                let bytes = bodies::body(&self.core, self.namespace, &extents, *len, *id)?;
                Ok(Some(StoredBody { component, seq: at, id: *id, bytes, extents }))
            }
            _ => Ok(None),
        }
    }

    /// Frame `seq`'s input as a stream.
    ///
    /// # Errors
    /// As [`RunReader::frame`]; bytes that are not what was recorded end the stream with an error.
    pub fn input_reader(&self, seq: u32) -> Result<BlobReader> {
        self.body_reader(seq, Slot::Input)
    }

    /// Frame `seq`'s output as a stream; of an incomplete frame, what had arrived.
    ///
    /// # Errors
    /// As [`RunReader::input_reader`].
    pub fn output_reader(&self, seq: u32) -> Result<BlobReader> {
        self.body_reader(seq, Slot::Output)
    }

    fn body_reader(&self, seq: u32, slot: Slot) -> Result<BlobReader> {
        let raw = self.raw(seq)?;
        let (core, namespace) = (self.core.clone(), self.namespace);
        if raw.head.open && slot == Slot::Output {
            return Ok(BlobReader::of_bytes(core, namespace, self.arrived(seq)?));
        }
        let (at, origin) = self.origin(seq, &raw, slot)?;
        match origin.as_ref().unwrap_or(&raw).slot(slot) {
            (BodyRef::Inline(bytes), _) => Ok(BlobReader::of_bytes(core, namespace, bytes.clone())),
            (BodyRef::Blob { len, id }, Some(recipe)) => {
                let extents = bodies::extents(recipe, |back| self.extents(at, back, slot, 0))?;
                bodies::check_len(&extents, *len, *id)?;
                Ok(BlobReader::new(core, namespace, extents, *len, *id))
            }
            _ => Err(Error::new(ErrorKind::Damaged, format!("frame {seq} has a body without a recipe"))),
        }
    }

    /// What had arrived of an incomplete frame's output.
    pub(super) fn arrived(&self, seq: u32) -> Result<Vec<u8>> {
        let uid = self.owner(seq)?;
        let mut output = Vec::new();
        for hit in self.core.index.prefix(&keys::parts(uid, seq), Seqno(u64::MAX))? {
            let (head, tail) = self.core.logical(keys::place(hit.value), Kind::FramePart, |logical| {
                Ok((PartHead::parse(logical.head)?, logical.tail.to_vec()))
            })?;
            match head.body {
                BodyRef::Inline(bytes) => output.extend_from_slice(&bytes),
                BodyRef::Blob { len, id } => {
                    let mut tail = Reader::new(&tail, "frame part tail");
                    let recipe = RecipeRef::take(&mut tail).map_err(|e| {
                        Error::new(ErrorKind::Damaged, format!("a frame's part is damaged: {e}"))
                    })?;
                    let extents =
                        bodies::extents(recipe, |_| Err(Error::bug("a part's recipe stands alone")))?;
                    output.extend(bodies::body(&self.core, self.namespace, &extents, len, id)?);
                }
                BodyRef::Same { .. } => {
                    return Err(Error::new(ErrorKind::Damaged, "a frame's part refers to another frame"));
                }
            }
        }
        Ok(output)
    }
}
