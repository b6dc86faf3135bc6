//! Record kinds and the bytes of their bodies. The modules above (`kv`, `trace`) define their meaning.
//!
//! ```text
//! logical record   salt [16] | head length varint | head | tail
//! group part       see GroupPart
//! ```
//! The *head* is covered by the ledger: fields, raw small values, blob ids. The *tail* locates the bytes of
//! those blobs in this store: one recipe for each blob of the head, in order.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blob::GROUP_BYTES_MAX;
use crate::codec::{CodecError, Reader, put_bytes, put_signed, put_varint};
use crate::ids::{BlobId, Link, NamespaceId, RunUid};

/// A record kind. The high bit of a kind byte marks records that a reader may skip if it does not know the
/// kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Sets a key's value.
    Put = 1,
    /// Deletes a key.
    Delete = 2,
    /// Creates a namespace or keyspace.
    Space = 3,
    /// A run begins, changes or ends.
    Run = 4,
    /// A frame, whole or just begun.
    Frame = 5,
    /// A part of a frame's output, as it arrived.
    FramePart = 6,
    /// An agent's state after a frame.
    Snapshot = 7,
    /// A run was dropped.
    Tombstone = 8,
    /// Embeddings of a key's value.
    Embedding = 9,
    /// Compressed new bytes of a group.
    GroupPart = 16,
    /// Replaces records of a batch that compaction erased.
    Erased = 17,
    /// Replaces whole batches that compaction erased.
    ErasedBatches = 18,
    /// What compaction left of a group, all in one record.
    GroupRest = 19,
}

/// Bit of the kind byte that marks skippable records of unknown kinds.
pub(crate) const SKIPPABLE: u8 = 0x80;
/// The layout byte of every kind as currently written.
pub(crate) const LAYOUT: u8 = 1;
/// Namespaces and users' keyspaces are numbered from here; lower numbers are the engine's own keyspaces.
pub(crate) const FIRST_FREE_SPACE: u32 = 16;
/// A body of at most this many bytes is stored in the head itself.
pub(crate) const INLINE_BYTES_MAX: usize = 40;
/// A key's value of at most this many bytes is stored in the head itself.
pub(crate) const KV_INLINE_BYTES_MAX: usize = 4095;

impl Kind {
    /// The kind of a record; `None` if the record may be skipped.
    pub(crate) fn parse(kind: u8, layout: u8) -> Result<Option<Self>, CodecError> {
        let known = match kind {
            1 => Self::Put,
            2 => Self::Delete,
            3 => Self::Space,
            4 => Self::Run,
            5 => Self::Frame,
            6 => Self::FramePart,
            7 => Self::Snapshot,
            8 => Self::Tombstone,
            9 => Self::Embedding,
            16 => Self::GroupPart,
            17 => Self::Erased,
            18 => Self::ErasedBatches,
            19 => Self::GroupRest,
            skippable if skippable & SKIPPABLE != 0 => return Ok(None),
            other => return Err(CodecError::Unknown { what: "record kind", found: u64::from(other) }),
        };
        if layout != LAYOUT {
            return Err(CodecError::Unknown { what: "record layout", found: u64::from(layout) });
        }
        Ok(Some(known))
    }

    /// Whether the ledger covers records of this kind.
    pub(crate) fn is_logical(self) -> bool {
        (self as u8) < Self::GroupPart as u8
    }

    /// Whether only compaction writes records of this kind.
    pub(crate) fn is_of_compaction(self) -> bool {
        matches!(self, Self::Erased | Self::ErasedBatches | Self::GroupRest)
    }
}

/// The parts of a logical record's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logical<'a> {
    pub(crate) salt: [u8; 16],
    pub(crate) head: &'a [u8],
    pub(crate) tail: &'a [u8],
}

impl<'a> Logical<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(body, "record body");
        Ok(Self { salt: r.array()?, head: r.bytes(body.len())?, tail: r.rest() })
    }
}

/// A reference to a body in a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyRef {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// A blob; its recipe is in the tail.
    Blob { len: u64, id: BlobId },
    /// Equal to the body in the same slot of the frame `back` frames earlier in this run.
    Same { back: u32 },
}

impl BodyRef {
    /// Appends a body that is stored in the head itself.
    pub(crate) fn put_inline(bytes: &[u8], out: &mut Vec<u8>) {
        put_varint(out, (bytes.len() as u64) << 2);
        out.extend_from_slice(bytes);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => Self::put_inline(bytes, out),
            Self::Blob { len, id } => {
                put_varint(out, (len << 2) + 1);
                out.extend_from_slice(&id.0);
            }
            Self::Same { back } => put_varint(out, (u64::from(*back) << 2) + 2),
        }
    }

    pub(crate) fn take(r: &mut Reader<'_>) -> Result<Self, CodecError> {
        let first = r.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= KV_INLINE_BYTES_MAX as u64 => Ok(Self::Inline(r.take(number as usize)?.to_vec())),
            1 => Ok(Self::Blob { len: number, id: BlobId(r.array()?) }),
            2 if number >= 1 && number <= u64::from(u32::MAX) => Ok(Self::Same { back: number as u32 }),
            _ => Err(CodecError::Unknown { what: "body reference", found: first }),
        }
    }

    /// Skips a reference with the same checks as [`BodyRef::take`]; returns its recipe bytes.
    pub(crate) fn pass(r: &mut Reader<'_>) -> Result<u64, CodecError> {
        let before = r.taken();
        let first = r.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= KV_INLINE_BYTES_MAX as u64 => r.take(number as usize).map(|_| 0),
            1 => r.take(32).map(|_| (r.taken() - before) as u64),
            2 if number >= 1 && number <= u64::from(u32::MAX) => Ok(0),
            _ => Err(CodecError::Unknown { what: "body reference", found: first }),
        }
    }

    /// Bytes of this reference that count as recipe: length and id of a blob.
    pub(crate) fn recipe_bytes(&self) -> u64 {
        match self {
            Self::Blob { len, .. } => 32 + u64::from((64 - ((len << 2) + 1).leading_zeros()).div_ceil(7)),
            _ => 0,
        }
    }
}

/// A recipe in a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecipeRef<'a> {
    /// 0 if the recipe stands alone. Else it is coded against the body in the same slot of the frame (or
    /// snapshot) that many sequence numbers before.
    pub(crate) base_back: u32,
    pub(crate) recipe: &'a [u8],
}

impl<'a> RecipeRef<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.base_back));
        put_bytes(out, self.recipe);
    }

    pub(crate) fn take(r: &mut Reader<'a>) -> Result<Self, CodecError> {
        Ok(Self { base_back: r.varint32()?, recipe: r.bytes(usize::MAX)? })
    }
}

/// Compressed new bytes of a group: `group | namespace | raw start | raw bytes | codec u8 | back | before
/// bytes | encoded`, all varints except the codec and the last. `back` is the offset of the previous part in
/// the same segment (0 for the first part); `before bytes` is the length of that record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupPart<'a> {
    pub(crate) group: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) raw_start: u32,
    pub(crate) raw_len: u32,
    pub(crate) codec: u8,
    /// Offset in the segment of the previous part, 0 if none.
    pub(crate) before_offset: u32,
    pub(crate) before_len: u32,
    pub(crate) encoded: &'a [u8],
}

impl<'a> GroupPart<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group);
        put_varint(out, u64::from(self.namespace.0));
        put_varint(out, u64::from(self.raw_start));
        put_varint(out, u64::from(self.raw_len));
        out.push(self.codec);
        put_varint(out, u64::from(self.before_offset));
        put_varint(out, u64::from(self.before_len));
        out.extend_from_slice(self.encoded);
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(body, "group part");
        Ok(Self {
            group: r.varint()?,
            namespace: NamespaceId(r.varint32()?),
            raw_start: r.varint32()?,
            raw_len: r.varint32()?,
            codec: r.u8()?,
            before_offset: r.varint32()?,
            before_len: r.varint32()?,
            encoded: r.rest(),
        })
    }
}

/// What compaction left of a group: `group | namespace | codec u8 | ranges varint | (gap | length)* |
/// encoded`, all varints except the codec and the last. `encoded` holds the bytes of the ranges, end to end,
/// as one encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRest<'a> {
    pub(crate) group: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) codec: u8,
    /// Ranges of the group's raw bytes, ascending; no two touch and none is empty.
    pub(crate) ranges: Vec<Range<u32>>,
    pub(crate) encoded: &'a [u8],
}

impl<'a> GroupRest<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group);
        put_varint(out, u64::from(self.namespace.0));
        out.push(self.codec);
        put_varint(out, self.ranges.len() as u64);
        let mut end = 0;
        for range in &self.ranges {
            put_varint(out, u64::from(range.start - end));
            put_varint(out, u64::from(range.end - range.start));
            end = range.end;
        }
        out.extend_from_slice(self.encoded);
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(body, "rest of a group");
        let (group, namespace, codec) = (r.varint()?, NamespaceId(r.varint32()?), r.u8()?);
        let count = r.varint()?;
        let wrong = |found| CodecError::Limit {
            what: "a range of a group's bytes",
            found,
            limit: GROUP_BYTES_MAX as u64,
        };
        let (mut ranges, mut end) = (Vec::new(), 0u32);
        // Each range takes at least two bytes, so a wrong count cannot allocate more than the input.
        for _ in 0..count {
            let (gap, len) = (r.varint32()?, r.varint32()?);
            let start = end.checked_add(gap).filter(|_| gap > 0 || ranges.is_empty());
            let start = start.ok_or_else(|| wrong(u64::from(gap)))?;
            let fits = |end: &u32| len > 0 && *end as usize <= GROUP_BYTES_MAX;
            end = start.checked_add(len).filter(fits).ok_or_else(|| wrong(u64::from(len)))?;
            ranges.push(start..end);
        }
        match ranges.is_empty() {
            true => Err(wrong(0)),
            false => Ok(Self { group, namespace, codec, ranges, encoded: r.rest() }),
        }
    }

    /// Raw length of the encoded bytes.
    pub(crate) fn raw_len(&self) -> u32 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// The group and namespace of a record's body, for parts and remainders.
pub(crate) fn group_of(body: &[u8]) -> Result<(u64, NamespaceId), CodecError> {
    let mut r = Reader::new(body, "group part");
    Ok((r.varint()?, NamespaceId(r.varint32()?)))
}

/// A key's new value, or its deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvHead {
    pub(crate) space: u32,
    pub(crate) time_ns: u64,
    pub(crate) key: Vec<u8>,
    /// `None` in a delete.
    pub(crate) value: Option<BodyRef>,
}

impl KvHead {
    #[cfg(any(test, fuzzing))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 32);
        Self::put_key(self.space, self.time_ns, &self.key, &mut out);
        if let Some(value) = &self.value {
            value.put(&mut out);
        }
        out
    }

    /// Appends the head of a delete, or of a put up to its value.
    pub(crate) fn put_key(space: u32, time_ns: u64, key: &[u8], out: &mut Vec<u8>) {
        put_varint(out, u64::from(space));
        out.extend_from_slice(&time_ns.to_le_bytes());
        put_bytes(out, key);
    }

    /// The keyspace, the key, and the value's recipe bytes. Checks the head without copying it.
    pub(crate) fn peek(kind: Kind, head: &[u8]) -> Result<(u32, &[u8], u64), CodecError> {
        let mut r = Reader::new(head, "key-value head");
        let space = r.varint32()?;
        r.u64()?;
        let key = r.bytes(head.len())?;
        let recipe = if kind == Kind::Put { BodyRef::pass(&mut r)? } else { 0 };
        r.finish()?;
        Ok((space, key, recipe))
    }

    /// The write time, from the front of a head.
    pub(crate) fn time(head: &[u8]) -> Result<u64, CodecError> {
        let mut r = Reader::new(head, "key-value head");
        r.varint32()?;
        r.u64()
    }

    pub(crate) fn parse(kind: Kind, head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "key-value head");
        let space = r.varint32()?;
        let time_ns = r.u64()?;
        let key = r.bytes(head.len())?.to_vec();
        let value = if kind == Kind::Put { Some(BodyRef::take(&mut r)?) } else { None };
        r.finish()?;
        Ok(Self { space, time_ns, key, value })
    }
}

/// The head of a frame record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    /// 0 if none.
    pub(crate) parent: u32,
    /// Code of the component; with code 15, `other` is its name.
    pub(crate) component: u8,
    pub(crate) other: Option<String>,
    pub(crate) severity: u8,
    /// Begun but not finished: there is no output yet.
    pub(crate) open: bool,
    /// The component failed.
    pub(crate) error: bool,
    /// Nanoseconds after the run's start.
    pub(crate) start_ns: i64,
    pub(crate) duration_ns: u64,
    /// The chain's link after frame `.0`; `None` while an earlier frame is unfinished.
    pub(crate) link: Option<(u32, Link)>,
    pub(crate) input: BodyRef,
    pub(crate) output: BodyRef,
    pub(crate) metadata: BodyRef,
}

const FRAME_OPEN: u16 = 1 << 6;
const FRAME_ERROR: u16 = 1 << 7;
const FRAME_LINK: u16 = 1 << 8;
const FRAME_LINK_OTHER: u16 = 1 << 9;
/// Code of a component with a custom name.
pub(crate) const COMPONENT_OTHER: u8 = 15;
/// Greatest length of such a name, in bytes.
pub(crate) const COMPONENT_BYTES_MAX: usize = 64;

impl FrameHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        let mut flags = u16::from(self.component & 15) | u16::from(self.severity & 3) << 4;
        flags |= if self.open { FRAME_OPEN } else { 0 } | if self.error { FRAME_ERROR } else { 0 };
        match self.link {
            Some((seq, _)) if seq == self.seq => flags |= FRAME_LINK,
            Some(_) => flags |= FRAME_LINK | FRAME_LINK_OTHER,
            None => {}
        }
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        out.extend_from_slice(&flags.to_le_bytes());
        if self.component == COMPONENT_OTHER {
            put_bytes(&mut out, self.other.as_deref().unwrap_or("").as_bytes());
        }
        put_varint(&mut out, if self.parent == 0 { 0 } else { u64::from(self.seq - self.parent) });
        put_signed(&mut out, self.start_ns);
        put_varint(&mut out, self.duration_ns);
        if let Some((seq, link)) = &self.link {
            if *seq != self.seq {
                put_varint(&mut out, u64::from(*seq));
            }
            out.extend_from_slice(&link.0);
        }
        self.input.put(&mut out);
        self.output.put(&mut out);
        self.metadata.put(&mut out);
        out
    }

    /// Run and sequence number of a frame, from the front of its head.
    pub(crate) fn peek(head: &[u8]) -> Result<(RunUid, u32), CodecError> {
        let mut r = Reader::new(head, "frame head");
        Ok((RunUid(r.varint()?), r.varint32()?))
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "frame head");
        let run = RunUid(r.varint()?);
        let seq = r.varint32()?;
        let flags = r.u16()?;
        if flags >> 10 != 0 || (flags & FRAME_LINK_OTHER != 0 && flags & FRAME_LINK == 0) {
            return Err(CodecError::Unknown { what: "frame flags", found: u64::from(flags) });
        }
        let component = (flags & 15) as u8;
        let other = match component {
            COMPONENT_OTHER => Some(r.text(COMPONENT_BYTES_MAX)?.to_owned()),
            _ => None,
        };
        let back = r.varint32()?;
        let parent = match back {
            0 => 0,
            back if back < seq => seq - back,
            back => return Err(CodecError::Unknown { what: "frame parent", found: u64::from(back) }),
        };
        let start_ns = r.signed()?;
        let duration_ns = r.varint()?;
        let link = if flags & FRAME_LINK != 0 {
            let at = if flags & FRAME_LINK_OTHER != 0 { r.varint32()? } else { seq };
            if flags & FRAME_LINK_OTHER != 0 && at == seq {
                return Err(CodecError::Unknown { what: "another frame's link", found: u64::from(at) });
            }
            Some((at, Link(r.array()?)))
        } else {
            None
        };
        let head = Self {
            run,
            seq,
            parent,
            component,
            other,
            severity: (flags >> 4 & 3) as u8,
            open: flags & FRAME_OPEN != 0,
            error: flags & FRAME_ERROR != 0,
            start_ns,
            duration_ns,
            link,
            input: BodyRef::take(&mut r)?,
            output: BodyRef::take(&mut r)?,
            metadata: BodyRef::take(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

/// A part of a frame's output: its number from 1, nanoseconds after the frame's start, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    pub(crate) part: u32,
    pub(crate) after_ns: u64,
    pub(crate) body: BodyRef,
}

impl PartHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        put_varint(&mut out, u64::from(self.part));
        put_varint(&mut out, self.after_ns);
        self.body.put(&mut out);
        out
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "frame part head");
        let head = Self {
            run: RunUid(r.varint()?),
            seq: r.varint32()?,
            part: r.varint32()?,
            after_ns: r.varint()?,
            body: BodyRef::take(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

/// An agent's state after frame `seq`, with its embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    pub(crate) state: BodyRef,
    /// Embedder id and the vector's little-endian f32 bytes.
    pub(crate) embeddings: Vec<(String, BodyRef)>,
}

/// Greatest number of embeddings of one snapshot.
pub(crate) const EMBEDDINGS_MAX: usize = 16;
/// Greatest length of an embedder id, in bytes.
pub(crate) const EMBEDDER_BYTES_MAX: usize = 256;

impl SnapshotHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        self.state.put(&mut out);
        put_embeddings(&self.embeddings, &mut out);
        out
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "snapshot head");
        let run = RunUid(r.varint()?);
        let seq = r.varint32()?;
        let state = BodyRef::take(&mut r)?;
        let embeddings = take_embeddings(&mut r)?;
        r.finish()?;
        Ok(Self { run, seq, state, embeddings })
    }
}

/// The embeddings of the value that the preceding put in the batch wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EmbeddingHead {
    pub(crate) namespace: NamespaceId,
    pub(crate) space: u32,
    pub(crate) key: Vec<u8>,
    /// Embedder id and the vector's little-endian f32 bytes.
    pub(crate) embeddings: Vec<(String, BodyRef)>,
}

impl EmbeddingHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 64);
        put_varint(&mut out, u64::from(self.namespace.0));
        put_varint(&mut out, u64::from(self.space));
        put_bytes(&mut out, &self.key);
        put_embeddings(&self.embeddings, &mut out);
        out
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "embedding head");
        let (namespace, space) = (NamespaceId(r.varint32()?), r.varint32()?);
        let key = r.bytes(head.len())?.to_vec();
        let embeddings = take_embeddings(&mut r)?;
        r.finish()?;
        Ok(Self { namespace, space, key, embeddings })
    }
}

fn put_embeddings(embeddings: &[(String, BodyRef)], out: &mut Vec<u8>) {
    put_varint(out, embeddings.len() as u64);
    for (embedder, vector) in embeddings {
        put_bytes(out, embedder.as_bytes());
        vector.put(out);
    }
}

fn take_embeddings(r: &mut Reader<'_>) -> Result<Vec<(String, BodyRef)>, CodecError> {
    let count = r.varint()?;
    if count > EMBEDDINGS_MAX as u64 {
        return Err(CodecError::Limit { what: "embeddings", found: count, limit: EMBEDDINGS_MAX as u64 });
    }
    let mut embeddings = Vec::new();
    for _ in 0..count {
        let embedder = r.text(EMBEDDER_BYTES_MAX)?.to_owned();
        embeddings.push((embedder, BodyRef::take(r)?));
    }
    Ok(embeddings)
}

/// Creates a namespace or keyspace. Bincode is the whole head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SpaceHead {
    /// A tenant.
    Namespace { id: NamespaceId, name: String },
    /// A set of keys in a namespace.
    Keyspace { id: u32, namespace: NamespaceId, name: String, history: HistoryCode },
}

/// The history policy of a keyspace, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HistoryCode {
    /// The newest version.
    Latest,
    /// The newest N.
    Newest(u32),
    /// Versions not older than this, and the newest.
    AgeNs(u64),
    /// Every version.
    All,
}

/// The fields of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFields {
    pub(crate) uid: RunUid,
    pub(crate) namespace: NamespaceId,
    pub(crate) name: String,
    pub(crate) agent: String,
    pub(crate) model: String,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) status: u8,
    pub(crate) severity: u8,
    /// The run it was forked from, the last shared frame, and the frame of the fork point.
    pub(crate) parent: Option<(RunUid, u32, u32)>,
    pub(crate) started_ns: u64,
    /// 0 while the run is open.
    pub(crate) ended_ns: u64,
    /// The last frame's number, shared ones included. Valid only after the run has ended.
    pub(crate) frames: u32,
    /// Raw bytes of the run's own frames. Valid only after the run has ended.
    pub(crate) raw_bytes: u64,
    /// The chain's last link. Valid only after the run has ended.
    pub(crate) fingerprint: Link,
    /// Whether the run was replaced or dropped: its name is free.
    pub(crate) gone: bool,
}

/// The state of a run: its newest record is complete. Head: length and bincode of the fields, then the
/// metadata's body reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunHead {
    pub(crate) fields: RunFields,
    pub(crate) metadata: BodyRef,
}

impl RunHead {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut out = Vec::with_capacity(256);
        put_bytes(&mut out, &crate::codec::encode(&self.fields)?);
        self.metadata.put(&mut out);
        Ok(out)
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "run head");
        let fields = crate::codec::decode(r.bytes(head.len())?)?;
        let metadata = BodyRef::take(&mut r)?;
        r.finish()?;
        Ok(Self { fields, metadata })
    }
}

/// Maximum length of the rule that dropped a run, in bytes.
pub(crate) const RULE_BYTES_MAX: usize = 256;
/// Maximum length of the reason given for dropping a run, in bytes.
pub(crate) const WHY_BYTES_MAX: usize = 1024;

/// A dropped run. It contains nothing that the caller said about the run, not even its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TombstoneHead {
    pub(crate) namespace: NamespaceId,
    pub(crate) run: RunUid,
    /// The last frame's number, shared ones included.
    pub(crate) frames: u32,
    pub(crate) started_ns: u64,
    /// The run it was forked from, the last shared frame, and the frame of the fork point. Forks of this run
    /// read their shared frames through it.
    pub(crate) parent: Option<(RunUid, u32, u32)>,
    pub(crate) dropped_ns: u64,
    pub(crate) rule: String,
    /// Empty if no reason was given.
    pub(crate) why: String,
}

impl TombstoneHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.rule.len() + self.why.len());
        put_varint(&mut out, u64::from(self.namespace.0));
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.frames));
        out.extend_from_slice(&self.started_ns.to_le_bytes());
        match self.parent {
            None => out.push(0),
            Some((uid, shared, at)) => {
                out.push(1);
                put_varint(&mut out, uid.0);
                put_varint(&mut out, u64::from(shared));
                put_varint(&mut out, u64::from(at));
            }
        }
        out.extend_from_slice(&self.dropped_ns.to_le_bytes());
        put_bytes(&mut out, self.rule.as_bytes());
        put_bytes(&mut out, self.why.as_bytes());
        out
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = Reader::new(head, "tombstone head");
        let namespace = NamespaceId(r.varint32()?);
        let run = RunUid(r.varint()?);
        let frames = r.varint32()?;
        let started_ns = r.u64()?;
        let parent = match r.u8()? {
            0 => None,
            1 => Some((RunUid(r.varint()?), r.varint32()?, r.varint32()?)),
            other => {
                return Err(CodecError::Unknown { what: "parent of a dropped run", found: u64::from(other) });
            }
        };
        // A fork is always younger than its parent.
        if let Some((uid, ..)) = parent.filter(|(uid, ..)| *uid >= run) {
            return Err(CodecError::Unknown { what: "parent of a dropped run", found: uid.0 });
        }
        let head = Self {
            namespace,
            run,
            frames,
            started_ns,
            parent,
            dropped_ns: r.u64()?,
            rule: r.text(RULE_BYTES_MAX)?.to_owned(),
            why: r.text(WHY_BYTES_MAX)?.to_owned(),
        };
        r.finish()?;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reference with this number and tag, followed by enough bytes.
    fn reference(number: u64, tag: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, number * 4 + tag);
        bytes.resize(bytes.len() + 5000, 9);
        bytes
    }

    #[test]
    fn a_reference_is_passed_just_where_it_is_taken() {
        let inline = KV_INLINE_BYTES_MAX as u64;
        let back = u64::from(u32::MAX);
        // Number, tag; recipe bytes, bytes after the varint.
        let cases = [
            (0, 0, Some((0, 0))),
            (5, 0, Some((0, 5))),
            (inline, 0, Some((0, KV_INLINE_BYTES_MAX))),
            (inline + 1, 0, None),
            (0, 1, Some((33, 32))),
            (31, 1, Some((33, 32))),
            (32, 1, Some((34, 32))),
            (4095, 1, Some((34, 32))),
            (4096, 1, Some((35, 32))),
            (u64::MAX >> 2, 1, Some((42, 32))),
            (0, 2, None),
            (1, 2, Some((0, 0))),
            (back, 2, Some((0, 0))),
            (back + 1, 2, None),
            (0, 3, None),
            (1, 3, None),
        ];
        for (number, tag, wanted) in cases {
            let bytes = reference(number, tag);
            let head = bytes.len() - 5000;
            // Its position does not matter.
            let behind = [&[0; 9][..], &bytes].concat();
            let mut r = Reader::new(&behind, "test");
            r.take(9).unwrap();
            let passed = BodyRef::pass(&mut r).ok().map(|recipe| (recipe, r.taken() - 9 - head));
            assert_eq!(passed, wanted, "{number} {tag}");
            let mut r = Reader::new(&bytes, "test");
            let taken = BodyRef::take(&mut r).ok().map(|body| (body.recipe_bytes(), r.taken() - head));
            assert_eq!(taken, wanted, "{number} {tag}");
            // Both refuse a reference that is cut short.
            if let Some((_, after @ 1..)) = wanted {
                let short = &bytes[..head + after - 1];
                assert!(BodyRef::pass(&mut Reader::new(short, "test")).is_err());
                assert!(BodyRef::take(&mut Reader::new(short, "test")).is_err());
            }
        }
    }

    #[test]
    fn what_was_put_is_taken() {
        for body in [
            BodyRef::Inline(vec![]),
            BodyRef::Inline(vec![7; 40]),
            BodyRef::Blob { len: 0, id: BlobId([1; 32]) },
            BodyRef::Blob { len: u64::MAX >> 2, id: BlobId([1; 32]) },
            BodyRef::Same { back: 1 },
            BodyRef::Same { back: u32::MAX },
        ] {
            let mut bytes = Vec::new();
            body.put(&mut bytes);
            let mut r = Reader::new(&bytes, "test");
            assert_eq!(BodyRef::take(&mut r).unwrap(), body);
            assert!(r.is_done());
            let recipe = if matches!(body, BodyRef::Blob { .. }) { bytes.len() as u64 } else { 0 };
            assert_eq!(body.recipe_bytes(), recipe);
        }
    }
}
