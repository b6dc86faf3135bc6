//! Decides and writes what stays of the groups of a source segment.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::blob::{
    Codec, GROUP_BYTES_MAX, GroupDecoder, GroupId, PartEncoder, RemainderEncoder, is_incompressible,
};
use crate::codec::CodecError;
use crate::error::{Error, Result};
use crate::ids::RecordPlace;
use crate::log::cursor::for_each_unchecked_record;
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::layout::RawRecord;
use crate::log::ledger::LedgerNode;
use crate::log::parts;
use crate::log::record::{GroupPart, GroupRest, LAYOUT, RecordKind, group_and_namespace};
use crate::log::rewrite::draft::BatchDraft;
use crate::log::rewrite::source::SourceSegment;
use crate::log::rewrite::{LiveSet, Recompress};
use crate::log::segments::Segment;

/// What the rewrite does with a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupPlan {
    /// No live record names it.
    Drop,
    /// Copies its records.
    Copy,
    /// It was written raw: compresses it, in fewer parts.
    Pack,
    /// Encodes these ranges anew, at the position of its last record.
    Encode(Vec<Range<u32>>),
}

/// A group of the current source segment.
#[derive(Debug)]
struct SourceGroup {
    held: GroupContent,
    plan: Option<GroupPlan>,
    /// Offset and length of its last written part.
    written: (u32, u32),
    packing: Option<PackedParts>,
}

/// A group that is being compressed.
#[derive(Debug, Default)]
struct PackedParts {
    encoder: Option<PartEncoder>,
    /// Raw bytes that no part has yet, and where they begin.
    pending: Vec<u8>,
    start: u32,
    /// Where the record of a part stood, where its raw bytes begin, their number, and the part. Not written yet.
    ready: VecDeque<(u32, u32, u32, Vec<u8>)>,
}

/// The content of a group in a source segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupContent {
    /// Offset of its last record.
    last: u32,
    /// The raw ranges that it contains.
    present: Vec<Range<u32>>,
    /// Offsets of the parts at which a part of the compressed group ends, if the group was written raw and may
    /// compress.
    raw: Option<Vec<u32>>,
    /// Raw bytes behind the last of these.
    rest: u32,
}

/// Raw bytes of a part of a group that is compressed later. A reader decodes the parts up to the one it needs.
const PACKED_PART_BYTES: u32 = 32 << 10;

/// The groups and ledger leaves of the records seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct GroupSurvey {
    groups: HashMap<GroupId, GroupContent>,
    leaves: u64,
    /// Whether the current batch has a leaf.
    has_leaf: bool,
}

impl GroupSurvey {
    fn note_record(&mut self, at: u32, record: &RawRecord<'_>) -> std::result::Result<(), CodecError> {
        match RecordKind::parse(record.kind, record.layout)? {
            None => {}
            Some(RecordKind::GroupPart) => {
                let part = GroupPart::parse(record.body)?;
                self.note_part(&part, at);
            }
            Some(RecordKind::GroupRest) => {
                let rest = GroupRest::parse(record.body)?;
                let held = GroupContent { last: at, present: rest.ranges, raw: None, rest: 0 };
                self.groups.insert(GroupId(rest.group), held);
            }
            Some(RecordKind::Erased) => self.has_leaf |= !ErasedRecords::parse(record.body)?.nodes.is_empty(),
            Some(RecordKind::ErasedBatches) => {
                let node = ErasedBatches::parse(record.body)?.node;
                let leaves = node.as_ref().map_or(Ok(0), LedgerNode::leaves)?;
                self.leaves = self.leaves.saturating_add(leaves);
            }
            Some(_) => self.has_leaf = true,
        }
        Ok(())
    }

    fn note_part(&mut self, part: &GroupPart<'_>, at: u32) {
        let end = part.raw_start.saturating_add(part.raw_len);
        let is_raw = part.codec == Codec::Raw.code() && !is_incompressible(part.encoded);
        let known = self.groups.remove(&GroupId(part.group));
        let (mut raw, mut rest) = match known {
            Some(known) => (known.raw, known.rest),
            None => (is_raw.then(Vec::new), 0),
        };
        // A group with one part that does not compress stays raw: its parts share a codec.
        raw = raw.filter(|_| is_raw);
        rest = rest.saturating_add(part.raw_len);
        if let Some(ends) = raw.as_mut().filter(|_| rest >= PACKED_PART_BYTES) {
            ends.push(at);
            rest = 0;
        }
        let present = std::iter::once(0..end).collect();
        self.groups.insert(GroupId(part.group), GroupContent { last: at, present, raw, rest });
    }

    fn end_batch(&mut self) {
        self.leaves = self.leaves.saturating_add(u64::from(std::mem::take(&mut self.has_leaf)));
    }
}

/// The groups of a rewrite.
pub struct GroupRewriter<'a> {
    keep: &'a dyn LiveSet,
    recompress: Recompress,
    groups: HashMap<GroupId, SourceGroup>,
    /// Leaves of the source, counted by the survey.
    leaves: u64,
    /// Groups and leaves of the records checked since the survey.
    checked: GroupSurvey,
    decoder: GroupDecoder,
    encoder: Option<RemainderEncoder>,
}

impl<'a> GroupRewriter<'a> {
    pub fn new(keep: &'a dyn LiveSet, recompress: Recompress) -> Self {
        let (known, checked) = (HashMap::new(), GroupSurvey::default());
        Self {
            keep,
            recompress,
            groups: known,
            leaves: 0,
            checked,
            decoder: GroupDecoder::default(),
            encoder: None,
        }
    }

    /// Surveys the groups of a source, whose records all stand in it; returns the number of its first leaf.
    /// The survey checks nothing: [`GroupRewriter::confirm_survey`] compares it with the checked records.
    pub fn survey(&mut self, source: &SourceSegment) -> Result<u64> {
        let mut seen = GroupSurvey::default();
        source.each_batch_unchecked(&mut |batch| {
            for_each_unchecked_record(batch, source.segment.salt, |at, _, record| {
                seen.note_record(at, &record)
            })
            .map_err(|e| Error::damaged(&source.segment.path, batch.offset, e))?;
            seen.end_batch();
            Ok(())
        })?;
        let group = |(id, held)| (id, SourceGroup { held, plan: None, written: (0, 0), packing: None });
        self.groups = seen.groups.into_iter().map(group).collect();
        (self.leaves, self.checked) = (seen.leaves, GroupSurvey::default());
        source.footer.state.ledger.leaves.checked_sub(seen.leaves).ok_or_else(|| {
            let what = "it has more leaves than the ledger after it";
            Error::damaged(&source.segment.path, source.footer.tail, what)
        })
    }

    /// Notes a checked record of the source.
    pub fn note_checked(&mut self, at: u32, record: &RawRecord<'_>) -> std::result::Result<(), CodecError> {
        self.checked.note_record(at, record)
    }

    /// Ends a batch of the source.
    pub fn end_batch(&mut self) {
        self.checked.end_batch();
    }

    /// Ends the source: the survey must match the checked records.
    ///
    /// # Errors
    /// `Damaged` if they differ.
    pub fn confirm_survey(&self, source: &SourceSegment) -> Result<()> {
        let checked = &self.checked;
        let same = |(id, held): (&GroupId, &GroupContent)| {
            self.groups.get(id).is_some_and(|known| known.held == *held)
        };
        let all = checked.groups.len() == self.groups.len() && checked.groups.iter().all(same);
        match all && checked.leaves == self.leaves {
            true => Ok(()),
            false => Err(Error::damaged(
                &source.segment.path,
                source.footer.tail,
                "two reads of the segment differ",
            )),
        }
    }

    fn group(&mut self, id: GroupId) -> std::result::Result<&mut SourceGroup, CodecError> {
        self.groups.get_mut(&id).ok_or_else(|| CodecError::Header("a group appears while it is read".into()))
    }

    /// The plan for a group; decided on first use.
    pub fn plan(&mut self, id: GroupId) -> std::result::Result<&GroupPlan, CodecError> {
        let (keep, recompress) = (self.keep, self.recompress);
        let group = self.group(id)?;
        let plan = match group.plan.take() {
            Some(plan) => plan,
            None => {
                let named = keep.live_ranges(id).map_or_else(|| group.held.present.clone(), merge_touching);
                let held = |range: &Range<u32>| {
                    range.start < range.end
                        && group
                            .held
                            .present
                            .iter()
                            .any(|has| has.start <= range.start && range.end <= has.end)
                };
                if !named.iter().all(held) {
                    let what = format!("group {} lacks bytes that live records name", id.0);
                    return Err(CodecError::Header(what));
                }
                match named {
                    none if none.is_empty() => GroupPlan::Drop,
                    all if all == group.held.present => match recompress {
                        Recompress::All(_) => GroupPlan::Encode(all),
                        Recompress::Raw if group.held.raw.is_some() => GroupPlan::Pack,
                        _ => GroupPlan::Copy,
                    },
                    some => GroupPlan::Encode(some),
                }
            }
        };
        Ok(group.plan.insert(plan))
    }

    /// Whether the group's record at this offset is replaced by a record in the output.
    pub fn keeps_record_at(&mut self, id: GroupId, offset: u32) -> std::result::Result<bool, CodecError> {
        let last = self.group(id)?.held.last;
        Ok(match self.plan(id)? {
            GroupPlan::Drop => false,
            GroupPlan::Copy => true,
            GroupPlan::Pack => self.ends_packed_part(id, offset)?,
            GroupPlan::Encode(_) => offset == last,
        })
    }

    fn ends_packed_part(&mut self, id: GroupId, offset: u32) -> std::result::Result<bool, CodecError> {
        let held = &self.group(id)?.held;
        let ends = held.raw.as_deref().unwrap_or_default();
        Ok(offset == held.last || ends.binary_search(&offset).is_ok())
    }

    /// Compresses the bytes of a record of a group that is packed. Call it with each record, in their order.
    pub(super) fn pack(
        &mut self,
        id: GroupId,
        at: u32,
        record: &RawRecord<'_>,
    ) -> std::result::Result<(), CodecError> {
        if *self.plan(id)? != GroupPlan::Pack {
            return Ok(());
        }
        let ends = self.ends_packed_part(id, at)?;
        let group = self.group(id)?;
        let part = GroupPart::parse(record.body)?;
        let packing = group.packing.get_or_insert_default();
        let at_bytes = packing.start as usize + packing.pending.len();
        if part.codec != Codec::Raw.code()
            || part.encoded.len() != part.raw_len as usize
            || part.raw_start as usize != at_bytes
            || at_bytes + part.encoded.len() > GROUP_BYTES_MAX
        {
            return Err(CodecError::Header("the parts of a group do not follow each other".into()));
        }
        packing.pending.extend_from_slice(part.encoded);
        if !ends {
            return Ok(());
        }
        let wrong = |e: crate::blob::BlobError| CodecError::Header(e.to_string());
        let encoder = match &mut packing.encoder {
            Some(encoder) => encoder,
            None => packing.encoder.insert(PartEncoder::new().map_err(wrong)?),
        };
        let encoded = encoder.encode(&packing.pending).map_err(wrong)?;
        let len = part.raw_start + part.raw_len - packing.start;
        packing.ready.push_back((at, packing.start, len, encoded));
        packing.start += len;
        packing.pending.clear();
        if at == group.held.last {
            packing.encoder = None;
        }
        Ok(())
    }

    /// Writes the part of a packed group that ended with the record at `at`.
    pub(super) fn write_packed(
        &mut self,
        id: GroupId,
        at: u32,
        record: &RawRecord<'_>,
        draft: &mut BatchDraft,
    ) -> std::result::Result<RecordPlace, CodecError> {
        let namespace = group_and_namespace(record.body)?.1;
        let group = self.group(id)?;
        let ready = group.packing.as_mut().and_then(|packing| packing.ready.pop_front());
        let Some((_, raw_start, raw_len, encoded)) = ready.filter(|(of, ..)| *of == at) else {
            return Err(CodecError::Header("a part of a group appears while it is read".into()));
        };
        let (before_offset, before_len) = group.written;
        let codec = Codec::Zstd.code();
        let part = GroupPart {
            group: id.0,
            namespace,
            raw_start,
            raw_len,
            codec,
            before_offset,
            before_len,
            encoded: &encoded,
        };
        let place = draft.record(RecordKind::GroupPart.code(), LAYOUT, |out| part.put(out));
        group.written = (place.offset, place.len);
        Ok(place)
    }

    pub fn is_last(&self, id: GroupId, offset: u32) -> bool {
        self.groups.get(&id).is_some_and(|group| group.held.last == offset)
    }

    /// Copies a record of a group that stays whole.
    pub(super) fn copy(
        &mut self,
        id: GroupId,
        record: &RawRecord<'_>,
        draft: &mut BatchDraft,
    ) -> std::result::Result<RecordPlace, CodecError> {
        let group = self.group(id)?;
        if record.kind == RecordKind::GroupRest.code() {
            return Ok(draft.record(record.kind, record.layout, |out| out.extend_from_slice(record.body)));
        }
        let part = GroupPart::parse(record.body)?;
        let (before_offset, before_len) = group.written;
        // The start of a part tells whether a part precedes it: the first part begins at 0.
        if (part.raw_start == 0) != (before_offset == 0) {
            return Err(CodecError::Header("the parts of a group do not follow each other".into()));
        }
        let part = GroupPart { before_offset, before_len, ..part };
        let place = draft.record(record.kind, record.layout, |out| part.put(out));
        group.written = (place.offset, place.len);
        Ok(place)
    }

    /// Encodes the live ranges of a group anew; `from` is its last record.
    pub(super) fn encode(
        &mut self,
        segment: &Segment,
        from: RecordPlace,
        record: &RawRecord<'_>,
        ranges: &[Range<u32>],
        draft: &mut BatchDraft,
    ) -> Result<RecordPlace> {
        let damaged = |e: CodecError| Error::damaged(&segment.path, u64::from(from.offset), e);
        let bug = |e: crate::blob::BlobError| Error::bug(e.to_string());
        let (group, namespace) = group_and_namespace(record.body).map_err(damaged)?;
        let raw = parts::read(segment, from, namespace, GroupId(group), GROUP_BYTES_MAX, &mut self.decoder)?;
        let mut living = Vec::new();
        for range in ranges {
            let some = raw.bytes.get(range.start as usize..range.end as usize);
            living.extend_from_slice(some.ok_or_else(|| {
                damaged(CodecError::Header(format!("group {group} is shorter than its parts say")))
            })?);
        }
        let level = match self.recompress {
            Recompress::All(level) => Some(level),
            _ => None,
        };
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            None => self.encoder.insert(RemainderEncoder::new(level).map_err(bug)?),
        };
        let (codec, encoded) = encoder.encode(&living).map_err(bug)?;
        let rest =
            GroupRest { group, namespace, codec: codec.code(), ranges: ranges.to_vec(), encoded: &encoded };
        Ok(draft.record(RecordKind::GroupRest.code(), LAYOUT, |out| rest.put(out)))
    }
}

/// Merges ranges that touch.
fn merge_touching(ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
