//! Record kinds and the bytes of their bodies. The modules above (`kv`, `trace`) define their meaning.
//!
//! ```text
//! logical record   salt [16], if it is stored | head length varint | head | tail
//! group part       see GroupPart
//! ```
//! The *head* is covered by the ledger: fields, raw small values, blob ids. The *tail* locates the bytes of
//! those blobs in this store: one recipe for each blob of the head, in order.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blob::GROUP_BYTES_MAX;
use crate::codec::{ByteReader, CodecError, index, put_bytes, put_varint};
use crate::ids::{BlobId, NamespaceId, RecordedId};
use crate::log::layout::RawRecord;
use crate::log::salts::RecordSalt;
use crate::schema::SCHEMA_KINDS;

/// A record kind. The high bit of a kind byte marks records that a reader may skip if it does not know the
/// kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// 1: a key's new value.
    Put,
    /// 2: a key's end.
    Delete,
    /// 3: a namespace or keyspace comes to be.
    Space,
    /// 4 to 8: a record of the layer above, by its kind byte.
    Schema(u8),
    /// 9: embeddings of a key's value.
    Embedding,
    /// 10: what a compaction erased.
    Erasure,
    /// 16: compressed new bytes of a group.
    GroupPart,
    /// 17: in the place of records that compaction took out of a batch.
    Erased,
    /// 18: in the place of whole batches that compaction took out.
    ErasedBatches,
    /// 19: what compaction left of a group, all in one record.
    GroupRest,
}

/// Bit of the kind byte that marks skippable records of unknown kinds.
pub const SKIPPABLE: u8 = 0x80;
/// The layout byte of every kind. The ledger's hash of a logical record has it whatever the record's own is.
pub const LAYOUT: u8 = 1;
/// Layout of a logical record whose salt, like later ones of its batch, follows from the key that it stores.
pub const LAYOUT_WITH_KEY: u8 = 2;
/// Layout of a logical record whose salt follows from a key before it in its batch.
pub const LAYOUT_WITHOUT_SALT: u8 = 3;
/// Namespaces and users' keyspaces are numbered from here; lower numbers are the engine's own keyspaces.
pub const FIRST_FREE_SPACE: u32 = 16;
/// A body of at most this many bytes is stored in the head itself.
pub const INLINE_BYTES_MAX: usize = 40;
/// A key's value of at most this many bytes is stored in the head itself.
pub const KV_INLINE_BYTES_MAX: usize = 4095;

impl RecordKind {
    /// The kind of a record; `None` if the record may be skipped.
    #[inline]
    pub fn parse(kind: u8, layout: u8) -> Result<Option<Self>, CodecError> {
        let known = match kind {
            1 => Self::Put,
            2 => Self::Delete,
            3 => Self::Space,
            schema if SCHEMA_KINDS.contains(&schema) => Self::Schema(schema),
            9 => Self::Embedding,
            10 => Self::Erasure,
            16 => Self::GroupPart,
            17 => Self::Erased,
            18 => Self::ErasedBatches,
            19 => Self::GroupRest,
            skippable if skippable & SKIPPABLE != 0 => return Ok(None),
            other => return Err(CodecError::Unknown { what: "record kind", found: u64::from(other) }),
        };
        let of_salt = known.is_logical() && matches!(layout, LAYOUT_WITH_KEY | LAYOUT_WITHOUT_SALT);
        if layout != LAYOUT && !of_salt {
            return Err(CodecError::Unknown { what: "record layout", found: u64::from(layout) });
        }
        Ok(Some(known))
    }

    /// Its byte in a record.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Put => 1,
            Self::Delete => 2,
            Self::Space => 3,
            Self::Schema(kind) => kind,
            Self::Embedding => 9,
            Self::Erasure => 10,
            Self::GroupPart => 16,
            Self::Erased => 17,
            Self::ErasedBatches => 18,
            Self::GroupRest => 19,
        }
    }

    /// Whether the ledger covers records of this kind.
    #[inline]
    pub fn is_logical(self) -> bool {
        self.code() < Self::GroupPart.code()
    }

    /// Whether only compaction writes records of this kind.
    pub fn is_compaction_only(self) -> bool {
        matches!(self, Self::Erased | Self::ErasedBatches | Self::GroupRest)
    }
}

/// The parts of a logical record's body.
#[derive(Debug, Clone, Copy)]
pub struct LogicalBody<'a> {
    pub salt: RecordSalt,
    pub head: &'a [u8],
    pub tail: &'a [u8],
}

impl<'a> LogicalBody<'a> {
    /// The parts of a logical record.
    #[inline]
    pub fn of(record: &RawRecord<'a>) -> Result<Self, CodecError> {
        Self::parse(record.layout, record.body)
    }

    /// The parts of a body in this layout.
    #[inline]
    pub fn parse(layout: u8, body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(body, "record body");
        let salt = match layout {
            LAYOUT_WITHOUT_SALT => RecordSalt::Derived,
            LAYOUT_WITH_KEY => RecordSalt::Key(r.array()?),
            _ => RecordSalt::Stored(r.array()?),
        };
        Ok(Self { salt, head: r.bytes(body.len())?, tail: r.take_rest() })
    }
}

/// A reference to a body in a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyRef {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// A blob; its recipe is in the tail.
    Blob { len: u64, id: RecordedId },
    /// Equal to the body in the same slot of the frame `back` frames earlier in this run.
    Same { back: u32 },
}

impl BodyRef {
    /// Whether the reference itself is to the content with this id. An empty body is not.
    #[must_use]
    pub fn has_content(&self, wanted: BlobId) -> bool {
        match self {
            Self::Inline(bytes) => !bytes.is_empty() && BlobId::of(bytes) == wanted,
            Self::Blob { id, .. } => id.fits(wanted),
            Self::Same { .. } => false,
        }
    }

    /// Appends a body that is stored in the head itself.
    pub fn put_inline(bytes: &[u8], out: &mut Vec<u8>) {
        put_varint(out, (bytes.len() as u64) << 2);
        out.extend_from_slice(bytes);
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => Self::put_inline(bytes, out),
            Self::Blob { len, id: RecordedId::Whole(id) } => {
                put_varint(out, (len << 2) + 1);
                out.extend_from_slice(&id.0);
            }
            Self::Blob { len, id: RecordedId::Front(front) } => {
                put_varint(out, (len << 2) + 3);
                out.extend_from_slice(front);
            }
            Self::Same { back } => put_varint(out, (u64::from(*back) << 2) + 2),
        }
    }

    /// Appends the reference. With `proved`, only the first bytes of a blob's id: the rest of the record proves
    /// the others.
    pub fn put_if_proved(&self, out: &mut Vec<u8>, proved: bool) {
        match self {
            Self::Blob { len, id } if proved => Self::Blob { len: *len, id: id.front() }.put(out),
            whole => whole.put(out),
        }
    }

    /// Reads a reference. One with only the first bytes of an id is refused: nothing would prove the others.
    pub fn take(r: &mut ByteReader<'_>) -> Result<Self, CodecError> {
        Self::take_if_proved(r, false)
    }

    /// Like [`BodyRef::take`]. With `proved`, it also reads a reference with only the first bytes of an id:
    /// the caller knows that the rest of the record proves the others.
    pub fn take_if_proved(r: &mut ByteReader<'_>, proved: bool) -> Result<Self, CodecError> {
        let first = r.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= KV_INLINE_BYTES_MAX as u64 => Ok(Self::Inline(r.take(index(number))?.to_vec())),
            1 => Ok(Self::Blob { len: number, id: RecordedId::Whole(BlobId(r.array()?)) }),
            3 if proved => Ok(Self::Blob { len: number, id: RecordedId::Front(r.array()?) }),
            2 if number >= 1 && number <= u64::from(u32::MAX) => {
                #[expect(clippy::cast_possible_truncation, reason = "at most u32::MAX")]
                let back = number as u32;
                Ok(Self::Same { back })
            }
            _ => Err(CodecError::Unknown { what: "body reference", found: first }),
        }
    }

    /// Skips a reference with the same checks as [`BodyRef::take`]; returns its recipe bytes.
    pub fn skip(r: &mut ByteReader<'_>) -> Result<u64, CodecError> {
        let before = r.position();
        let first = r.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= KV_INLINE_BYTES_MAX as u64 => r.take(number as usize).map(|_| 0),
            1 => r.take(32).map(|_| (r.position() - before) as u64),
            2 if number >= 1 && number <= u64::from(u32::MAX) => Ok(0),
            _ => Err(CodecError::Unknown { what: "body reference", found: first }),
        }
    }

    /// Bytes of this reference that count as recipe: length and id of a blob.
    pub fn recipe_bytes(&self) -> u64 {
        match self {
            Self::Blob { len, id } => {
                let of_id = match id {
                    RecordedId::Whole(_) => 32,
                    RecordedId::Front(front) => front.len() as u64,
                };
                of_id + u64::from((64 - ((len << 2) + 1).leading_zeros()).div_ceil(7))
            }
            _ => 0,
        }
    }
}

/// A recipe in a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecipeRef<'a> {
    /// Length of the body, in bytes. It stands in the head.
    pub body_len: u64,
    /// 0 if the recipe stands alone. Else it is coded against the body in the same slot of the frame (or
    /// snapshot) that many sequence numbers before.
    pub base_back: u32,
    pub recipe: &'a [u8],
}

impl<'a> RecipeRef<'a> {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.base_back));
        put_bytes(out, self.recipe);
    }

    /// Reads the recipe of a body of this length.
    pub fn take(r: &mut ByteReader<'a>, body_len: u64) -> Result<Self, CodecError> {
        Ok(Self { body_len, base_back: r.varint32()?, recipe: r.bytes(usize::MAX)? })
    }
}

/// Compressed new bytes of a group: `group | namespace | raw start | raw bytes | codec u8 | back | before
/// bytes | encoded`, all varints except the codec and the last. `back` is the offset of the previous part in
/// the same segment (0 for the first part); `before bytes` is the length of that record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPart<'a> {
    pub group: u64,
    pub namespace: NamespaceId,
    pub raw_start: u32,
    pub raw_len: u32,
    pub codec: u8,
    /// Offset in the segment of the previous part, 0 if none.
    pub before_offset: u32,
    pub before_len: u32,
    pub encoded: &'a [u8],
}

impl<'a> GroupPart<'a> {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group);
        put_varint(out, u64::from(self.namespace.0));
        put_varint(out, u64::from(self.raw_start));
        put_varint(out, u64::from(self.raw_len));
        out.push(self.codec);
        put_varint(out, u64::from(self.before_offset));
        put_varint(out, u64::from(self.before_len));
        out.extend_from_slice(self.encoded);
    }

    pub fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(body, "group part");
        Ok(Self {
            group: r.varint()?,
            namespace: NamespaceId(r.varint32()?),
            raw_start: r.varint32()?,
            raw_len: r.varint32()?,
            codec: r.u8()?,
            before_offset: r.varint32()?,
            before_len: r.varint32()?,
            encoded: r.take_rest(),
        })
    }
}

/// What compaction left of a group: `group | namespace | codec u8 | ranges varint | (gap | length)* |
/// encoded`, all varints except the codec and the last. `encoded` holds the bytes of the ranges, end to end,
/// as one encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRest<'a> {
    pub group: u64,
    pub namespace: NamespaceId,
    pub codec: u8,
    /// Ranges of the group's raw bytes, ascending; no two touch and none is empty.
    pub ranges: Vec<Range<u32>>,
    pub encoded: &'a [u8],
}

impl<'a> GroupRest<'a> {
    pub fn put(&self, out: &mut Vec<u8>) {
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

    pub fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(body, "rest of a group");
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
            false => Ok(Self { group, namespace, codec, ranges, encoded: r.take_rest() }),
        }
    }

    /// Raw length of the encoded bytes.
    pub fn raw_len(&self) -> u32 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// The group and namespace of a record's body, for parts and remainders.
pub fn group_and_namespace(body: &[u8]) -> Result<(u64, NamespaceId), CodecError> {
    let mut r = ByteReader::new(body, "group part");
    Ok((r.varint()?, NamespaceId(r.varint32()?)))
}

/// A key's new value, or its deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvHead {
    pub space: u32,
    pub time_ns: u64,
    pub key: Vec<u8>,
    /// `None` in a delete.
    pub value: Option<BodyRef>,
}

impl KvHead {
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 32);
        Self::put_key(self.space, self.time_ns, &self.key, &mut out);
        if let Some(value) = &self.value {
            value.put(&mut out);
        }
        out
    }

    /// Appends the head of a delete, or of a put up to its value.
    pub fn put_key(space: u32, time_ns: u64, key: &[u8], out: &mut Vec<u8>) {
        put_varint(out, u64::from(space));
        out.extend_from_slice(&time_ns.to_le_bytes());
        put_bytes(out, key);
    }

    /// The keyspace, the key, and the value's recipe bytes. Checks the head without copying it.
    pub fn peek(kind: RecordKind, head: &[u8]) -> Result<(u32, &[u8], u64), CodecError> {
        let mut r = ByteReader::new(head, "key-value head");
        let space = r.varint32()?;
        r.u64()?;
        let key = r.bytes(head.len())?;
        let recipe = if kind == RecordKind::Put { BodyRef::skip(&mut r)? } else { 0 };
        r.finish()?;
        Ok((space, key, recipe))
    }

    /// The keyspace, from the front of a head.
    pub fn space(head: &[u8]) -> Result<u32, CodecError> {
        ByteReader::new(head, "key-value head").varint32()
    }

    /// The write time, from the front of a head.
    pub fn time(head: &[u8]) -> Result<u64, CodecError> {
        let mut r = ByteReader::new(head, "key-value head");
        r.varint32()?;
        r.u64()
    }

    pub fn parse(kind: RecordKind, head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "key-value head");
        let space = r.varint32()?;
        let time_ns = r.u64()?;
        let key = r.bytes(head.len())?.to_vec();
        let value = if kind == RecordKind::Put { Some(BodyRef::take(&mut r)?) } else { None };
        r.finish()?;
        Ok(Self { space, time_ns, key, value })
    }
}

/// Greatest number of embeddings of one snapshot.
pub const EMBEDDINGS_MAX: usize = 16;
/// Greatest length of an embedder id, in bytes.
pub const EMBEDDER_BYTES_MAX: usize = 256;

/// The embeddings of the value that the preceding put in the batch wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingHead {
    pub namespace: NamespaceId,
    pub space: u32,
    pub key: Vec<u8>,
    /// Embedder id and the vector's little-endian f32 bytes.
    pub embeddings: Vec<(String, BodyRef)>,
}

impl EmbeddingHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 64);
        put_varint(&mut out, u64::from(self.namespace.0));
        put_varint(&mut out, u64::from(self.space));
        put_bytes(&mut out, &self.key);
        put_embeddings(&self.embeddings, &mut out);
        out
    }

    /// The keyspace, from the front of a head.
    pub fn space(head: &[u8]) -> Result<u32, CodecError> {
        let mut r = ByteReader::new(head, "embedding head");
        r.varint32()?;
        r.varint32()
    }

    pub fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "embedding head");
        let (namespace, space) = (NamespaceId(r.varint32()?), r.varint32()?);
        let key = r.bytes(head.len())?.to_vec();
        let embeddings = take_embeddings(&mut r)?;
        r.finish()?;
        Ok(Self { namespace, space, key, embeddings })
    }
}

pub fn put_embeddings(embeddings: &[(String, BodyRef)], out: &mut Vec<u8>) {
    put_varint(out, embeddings.len() as u64);
    for (embedder, vector) in embeddings {
        put_bytes(out, embedder.as_bytes());
        vector.put(out);
    }
}

pub fn take_embeddings(r: &mut ByteReader<'_>) -> Result<Vec<(String, BodyRef)>, CodecError> {
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
pub enum SpaceHead {
    /// A tenant.
    Namespace { id: NamespaceId, name: String },
    /// A set of keys in a namespace.
    Keyspace { id: u32, namespace: NamespaceId, name: String, history: HistoryCode },
}

/// The history policy of a keyspace, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryCode {
    /// The newest version.
    Latest,
    /// The newest N.
    Newest(u32),
    /// Versions not older than this, and the newest.
    AgeNs(u64),
    /// Every version.
    All,
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
    fn body_ref_skip_accepts_what_take_accepts() {
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
            let mut r = ByteReader::new(&behind, "test");
            r.take(9).unwrap();
            let passed = BodyRef::skip(&mut r).ok().map(|recipe| (recipe, r.position() - 9 - head));
            assert_eq!(passed, wanted, "{number} {tag}");
            let mut r = ByteReader::new(&bytes, "test");
            let taken = BodyRef::take(&mut r).ok().map(|body| (body.recipe_bytes(), r.position() - head));
            assert_eq!(taken, wanted, "{number} {tag}");
            // Both refuse a reference that is cut short.
            if let Some((_, after @ 1..)) = wanted {
                let short = &bytes[..head + after - 1];
                assert!(BodyRef::skip(&mut ByteReader::new(short, "test")).is_err());
                assert!(BodyRef::take(&mut ByteReader::new(short, "test")).is_err());
            }
        }
    }

    #[test]
    fn body_ref_round_trips() {
        for body in [
            BodyRef::Inline(vec![]),
            BodyRef::Inline(vec![7; 40]),
            BodyRef::Blob { len: 0, id: BlobId([1; 32]).into() },
            BodyRef::Blob { len: u64::MAX >> 2, id: BlobId([1; 32]).into() },
            BodyRef::Same { back: 1 },
            BodyRef::Same { back: u32::MAX },
        ] {
            let mut bytes = Vec::new();
            body.put(&mut bytes);
            let mut r = ByteReader::new(&bytes, "test");
            assert_eq!(BodyRef::take(&mut r).unwrap(), body);
            assert!(r.is_empty());
            let recipe = if matches!(body, BodyRef::Blob { .. }) { bytes.len() as u64 } else { 0 };
            assert_eq!(body.recipe_bytes(), recipe);
            // With only the first bytes of an id, it is read only where the others are proved.
            let mut proved = Vec::new();
            body.put_if_proved(&mut proved, true);
            let mut r = ByteReader::new(&proved, "test");
            let taken = BodyRef::take_if_proved(&mut r, true).unwrap();
            assert!(r.is_empty());
            let is_blob = matches!(body, BodyRef::Blob { .. });
            assert_eq!(taken == body, !is_blob);
            assert_eq!(taken.recipe_bytes(), if is_blob { proved.len() as u64 } else { 0 });
            assert_eq!(BodyRef::take(&mut ByteReader::new(&proved, "test")).is_err(), is_blob);
        }
    }
}
