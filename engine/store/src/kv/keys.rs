//! Keys of the index: a keyspace number, then what orders the entries in it. All numbers are big-endian, so
//! that the order of bytes is the wanted order. The first keyspace numbers are the engine's own; users' start
//! at
//! [`crate::log::record::FIRST_FREE_SPACE`].

use crate::blob::{Anchor, AnchorKey};
use crate::codec::{self, CodecError};
use crate::ids::{NamespaceId, RecordPlace, SegmentId, Seqno};
use crate::kv::table::{IndexEntry, IndexValue};
use crate::log::layout::RawRecord;
use crate::log::record::{EmbeddingHead, KvHead, LogicalBody, RecordKind, SpaceHead, group_and_namespace};
use crate::schema::{RecordSchema, is_schema_space};

const SPACES: u32 = 1;
const GROUPS: u32 = 7;
const ANCHORS: u32 = 8;
/// Records that have vectors, by seqno: those after a given record are a range.
const VECTORS: u32 = 9;
/// Statements of erasures, by seqno.
const ERASURES: u32 = 10;

/// Maximum length of a user's key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// The value is the place of a record.
pub const AT_PLACE: u8 = 1;
/// The key ended with the record at this place.
pub const ENDED: u8 = 2;
/// The value is an anchor's place in a group: `a` the group, `b` the offset.
pub const ANCHOR: u8 = 3;

/// A key of a keyspace, with room for more of it.
pub fn key(space: u32, room: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + room);
    key.extend_from_slice(&space.to_be_bytes());
    key
}

/// The key of a namespace's or keyspace's definition.
pub fn space(id: u32) -> Vec<u8> {
    let mut key = key(SPACES, 4);
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// The prefix of all definitions.
pub fn spaces() -> Vec<u8> {
    key(SPACES, 0)
}

/// The key of the last part of a group.
pub fn group(group: u64) -> Vec<u8> {
    let mut key = key(GROUPS, 8);
    key.extend_from_slice(&group.to_be_bytes());
    key
}

/// The key of an anchor. It keeps only 48 bits: a hit is verified by its bytes.
pub fn anchor(namespace: NamespaceId, anchor: AnchorKey) -> [u8; 14] {
    let mut key = [0; 14];
    key[..4].copy_from_slice(&ANCHORS.to_be_bytes());
    key[4..8].copy_from_slice(&namespace.0.to_be_bytes());
    key[8..].copy_from_slice(&anchor.0.to_be_bytes()[2..]);
    key
}

/// The index key of a user's key.
pub fn user(space: u32, user: &[u8]) -> Vec<u8> {
    let mut key = key(space, user.len());
    key.extend_from_slice(user);
    key
}

/// The user's part of a key from [`user`].
pub fn user_part(key: &[u8]) -> &[u8] {
    key.get(4..).unwrap_or(&[])
}

/// The keyspace a key belongs to.
pub fn space_of(key: &[u8]) -> u32 {
    key.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Whether this anchor of a large body is kept.
pub fn is_kept_for_large_bodies(anchor: AnchorKey) -> bool {
    anchor.0 & 15 == 0
}

/// The entry of an anchor.
pub fn anchor_entry(namespace: NamespaceId, found: &Anchor, seqno: Seqno) -> IndexEntry {
    IndexEntry { key: anchor(namespace, found.key).to_vec(), seqno: seqno.0, value: anchor_value(found) }
}

/// The value that leads to an anchor.
pub fn anchor_value(found: &Anchor) -> IndexValue {
    IndexValue { kind: ANCHOR, a: found.group.0, b: found.offset, c: 0 }
}

/// Whether an entry is worth its bytes in a table. One anchor in four is: a long repeat still meets one of
/// them, and all anchors would cost more than frames do.
pub fn is_kept_in_tables(key: &[u8]) -> bool {
    space_of(key) != ANCHORS || key.last().is_some_and(|byte| byte & 3 == 0)
}

/// The seqno of an entry as a table stores it. An anchor only counts in its newest version, and no reader asks
/// for an older one, so tables store 0: among keys without order, its seqno would cost a sixth of its bytes.
pub fn seqno_in_tables(space: u32, seqno: u64) -> u64 {
    if space == ANCHORS { 0 } else { seqno }
}

/// Whether an anchor's entry stays in a table once its group was packed again: as for large bodies.
pub fn is_kept_when_packed(key: &[u8]) -> bool {
    key.last().is_some_and(|byte| byte & 15 == 0)
}

/// Whether only the newest version of a key counts in this keyspace.
pub fn keeps_newest_only(space: u32) -> bool {
    matches!(space, GROUPS | ANCHORS | SPACES | VECTORS | ERASURES) || is_schema_space(space)
}

/// What an index entry belongs to, for callers that read all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    Space,
    /// Of the layer above.
    Schema,
    Group,
    Anchor,
    /// A record that has vectors.
    Vectors,
    /// A statement of an erasure.
    Erasure,
    /// A user's key of this keyspace.
    User(u32),
}

/// What a key belongs to; `None` for a key that no record leads to.
pub fn kind_of(key: &[u8]) -> Option<KeyKind> {
    Some(match space_of(key) {
        SPACES => KeyKind::Space,
        space if is_schema_space(space) => KeyKind::Schema,
        GROUPS => KeyKind::Group,
        ANCHORS => KeyKind::Anchor,
        VECTORS => KeyKind::Vectors,
        ERASURES => KeyKind::Erasure,
        space if space >= crate::log::record::FIRST_FREE_SPACE => KeyKind::User(space),
        _ => return None,
    })
}

/// The index value for a record at a place.
pub fn record_value(kind: u8, place: RecordPlace) -> IndexValue {
    IndexValue { kind, a: u64::from(place.segment.0), b: place.offset, c: place.len }
}

/// Whether a value does not end its key.
pub fn is_living(value: IndexValue) -> bool {
    value.kind != ENDED
}

/// The place in a value of kind [`AT_PLACE`] or [`ENDED`].
pub fn place(value: IndexValue) -> RecordPlace {
    RecordPlace {
        segment: SegmentId(u32::try_from(value.a).unwrap_or(u32::MAX)),
        offset: value.b,
        len: value.c,
    }
}

/// Derives the index entries of a record. Writing and recovery both use [`index_keys`], so that tables can be
/// rebuilt from the log alone.
pub fn derive_entries(
    schema: &dyn RecordSchema,
    record: &RawRecord<'_>,
    seqno: Seqno,
    place: RecordPlace,
    entries: &mut Vec<IndexEntry>,
) -> Result<(), CodecError> {
    let Some(kind) = RecordKind::parse(record.kind, record.layout)? else { return Ok(()) };
    let of = if kind.is_logical() { LogicalBody::of(record)?.head } else { record.body };
    index_keys(schema, kind, of, &mut |key, kind| {
        let key = if is_numbered(key) { numbered(key, seqno) } else { key.to_vec() };
        entries.push(IndexEntry { key, seqno: seqno.0, value: record_value(kind, place) });
    })
}

/// The key of a record that has vectors.
pub fn vectors(seqno: Seqno) -> Vec<u8> {
    let mut key = key(VECTORS, 8);
    key.extend_from_slice(&seqno.0.to_be_bytes());
    key
}

/// The prefix of all statements of erasures.
pub fn erasures() -> Vec<u8> {
    key(ERASURES, 0)
}

/// The key that a record is posted under, with its seqno, which only the writer knows.
pub fn numbered(key: &[u8], seqno: Seqno) -> Vec<u8> {
    [key, &seqno.0.to_be_bytes()].concat()
}

/// The seqno at the end of a key from [`vectors`].
pub fn vectors_seqno(key: &[u8]) -> Option<Seqno> {
    Some(Seqno(u64::from_be_bytes(key.get(4..12)?.try_into().ok()?)))
}

/// The key that a record with vectors is posted under: the writer puts its number behind it.
pub fn unnumbered_vectors() -> [u8; 4] {
    VECTORS.to_be_bytes()
}

/// Whether a key must still get its record's seqno, which only the writer knows.
pub fn is_numbered(key: &[u8]) -> bool {
    key == VECTORS.to_be_bytes() || key == ERASURES.to_be_bytes()
}

/// Calls `add` with the keys that lead to a record. `of` is its head, or its body if it is not a logical
/// record.
pub fn index_keys(
    schema: &dyn RecordSchema,
    kind: RecordKind,
    of: &[u8],
    add: &mut dyn FnMut(&[u8], u8),
) -> Result<(), CodecError> {
    match kind {
        RecordKind::GroupPart | RecordKind::GroupRest => add(&group(group_and_namespace(of)?.0), AT_PLACE),
        // No key leads to what was erased.
        RecordKind::Erased | RecordKind::ErasedBatches => {}
        RecordKind::Erasure => add(&ERASURES.to_be_bytes(), AT_PLACE),
        RecordKind::Put | RecordKind::Delete => {
            let (space, key, _) = KvHead::peek(kind, of)?;
            add(&user(space, key), if kind == RecordKind::Put { AT_PLACE } else { ENDED });
        }
        RecordKind::Space => add(
            &space(match codec::decode(of)? {
                SpaceHead::Namespace { id, .. } => id.0,
                SpaceHead::Keyspace { id, .. } => id,
            }),
            AT_PLACE,
        ),
        RecordKind::Schema(kind) => schema.post(kind, of, add)?,
        RecordKind::Embedding => {
            EmbeddingHead::parse(of)?;
            add(&unnumbered_vectors(), AT_PLACE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_keyspaces_keep_the_newest_version_only() {
        let own: Vec<u32> = (0..100).filter(|space| keeps_newest_only(*space)).collect();
        assert_eq!(own, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn kept_anchors_are_chosen_by_their_last_bits() {
        let kept = |mask: fn(u64) -> bool| (0..64).filter(|n| mask(*n)).collect::<Vec<_>>();
        assert_eq!(kept(|n| is_kept_for_large_bodies(AnchorKey(n))), [0, 16, 32, 48]);
        let packed = kept(|n| is_kept_when_packed(&anchor(NamespaceId(3), AnchorKey(n))));
        assert_eq!(packed, [0, 16, 32, 48]);
        let tables = kept(|n| is_kept_in_tables(&anchor(NamespaceId(3), AnchorKey(n))));
        assert_eq!(tables, (0..16).map(|n| 4 * n).collect::<Vec<_>>());
        assert!((0..=255).all(|byte| is_kept_in_tables(&user(50, &[byte]))));
        assert!(is_kept_in_tables(&group(3)) && is_kept_in_tables(&[]));
    }
}
