//! Keys of the index: a keyspace number, then what orders the entries in it. All numbers are big-endian, so
//! that the order of bytes is the wanted order. The first keyspace numbers are the engine's own; users' start
//! at
//! [`crate::log::record::FIRST_FREE_SPACE`].

use crate::blob::{Anchor, AnchorKey};
use crate::codec::{self, CodecError};
use crate::ids::{NamespaceId, Place, RunUid, SegmentId, Seqno};
use crate::kv::table::{Entry, Value};
use crate::log::layout::RawRecord;
use crate::log::record::{
    EmbeddingHead, FrameHead, Kind, KvHead, Logical, PartHead, RunHead, SnapshotHead, SpaceHead,
    TombstoneHead, group_of,
};

const SPACES: u32 = 1;
const RUNS: u32 = 2;
const RUN_NAMES: u32 = 3;
const FRAMES: u32 = 4;
const PARTS: u32 = 5;
const SNAPSHOTS: u32 = 6;
const GROUPS: u32 = 7;
const ANCHORS: u32 = 8;
/// Records that have vectors, by seqno: those after a given record are a range.
const VECTORS: u32 = 9;

/// Maximum length of a user's key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// The value is the place of a record.
pub(crate) const AT: u8 = 1;
/// The key ended with the record at this place.
pub(crate) const ENDED: u8 = 2;
/// The value is an anchor's place in a group: `a` the group, `b` the offset.
pub(crate) const ANCHOR: u8 = 3;

fn key(space: u32, room: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + room);
    key.extend_from_slice(&space.to_be_bytes());
    key
}

/// The key of a namespace's or keyspace's definition.
pub(crate) fn space(id: u32) -> Vec<u8> {
    let mut key = key(SPACES, 4);
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// The prefix of all definitions.
pub(crate) fn spaces() -> Vec<u8> {
    key(SPACES, 0)
}

/// The key of a run's record.
pub(crate) fn run(namespace: NamespaceId, uid: RunUid) -> Vec<u8> {
    let mut key = runs(namespace);
    key.extend_from_slice(&uid.0.to_be_bytes());
    key
}

/// The prefix of a namespace's runs.
pub(crate) fn runs(namespace: NamespaceId) -> Vec<u8> {
    let mut key = key(RUNS, 12);
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key
}

/// The uid at the end of a key from [`run`].
pub(crate) fn run_uid(key: &[u8]) -> Option<RunUid> {
    Some(RunUid(u64::from_be_bytes(key.get(8..16)?.try_into().ok()?)))
}

/// The key of a living run's name.
pub(crate) fn run_name(namespace: NamespaceId, name: &str) -> Vec<u8> {
    let mut key = key(RUN_NAMES, 4 + name.len());
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// The key of a frame.
pub(crate) fn frame(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = frames(run);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// The prefix of a run's own frames.
pub(crate) fn frames(run: RunUid) -> Vec<u8> {
    let mut key = key(FRAMES, 12);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The prefix of the parts of all frames of a run.
pub(crate) fn all_parts(run: RunUid) -> Vec<u8> {
    let mut key = key(PARTS, 8);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The prefix of a frame's parts.
pub(crate) fn parts(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = key(PARTS, 16);
    key.extend_from_slice(&run.0.to_be_bytes());
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

fn part(run: RunUid, seq: u32, part: u32) -> Vec<u8> {
    let mut key = parts(run, seq);
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// The key of a snapshot.
pub(crate) fn snapshot(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = snapshots(run);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// The prefix of a run's own snapshots.
pub(crate) fn snapshots(run: RunUid) -> Vec<u8> {
    let mut key = key(SNAPSHOTS, 12);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The number at the end of a key from [`frame`] or [`snapshot`].
pub(crate) fn last_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*key.last_chunk::<4>()?))
}

/// The key of the last part of a group.
pub(crate) fn group(group: u64) -> Vec<u8> {
    let mut key = key(GROUPS, 8);
    key.extend_from_slice(&group.to_be_bytes());
    key
}

/// The key of an anchor. It keeps only 48 bits: a hit is verified by its bytes.
pub(crate) fn anchor(namespace: NamespaceId, anchor: AnchorKey) -> [u8; 14] {
    let mut key = [0; 14];
    key[..4].copy_from_slice(&ANCHORS.to_be_bytes());
    key[4..8].copy_from_slice(&namespace.0.to_be_bytes());
    key[8..].copy_from_slice(&anchor.0.to_be_bytes()[2..]);
    key
}

/// The index key of a user's key.
pub(crate) fn user(space: u32, user: &[u8]) -> Vec<u8> {
    let mut key = key(space, user.len());
    key.extend_from_slice(user);
    key
}

/// The user's part of a key from [`user`].
pub(crate) fn user_part(key: &[u8]) -> &[u8] {
    key.get(4..).unwrap_or(&[])
}

/// The keyspace a key belongs to.
pub(crate) fn space_of(key: &[u8]) -> u32 {
    key.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Whether this anchor of a large body is kept.
pub(crate) fn kept_of_large_bodies(anchor: AnchorKey) -> bool {
    anchor.0 & 15 == 0
}

/// The entry of an anchor.
pub(crate) fn anchor_entry(namespace: NamespaceId, found: &Anchor, seqno: Seqno) -> Entry {
    Entry { key: anchor(namespace, found.key).to_vec(), seqno: seqno.0, value: anchor_value(found) }
}

/// The value that leads to an anchor.
pub(crate) fn anchor_value(found: &Anchor) -> Value {
    Value { kind: ANCHOR, a: found.group.0, b: found.offset, c: 0 }
}

/// Whether an entry is worth its bytes in a table. One anchor in four is: a long repeat still meets one of
/// them, and all anchors would cost more than frames do.
pub(crate) fn kept_in_tables(key: &[u8]) -> bool {
    space_of(key) != ANCHORS || key.last().is_some_and(|byte| byte & 3 == 0)
}

/// Whether only the newest version of a key counts in this keyspace.
pub(crate) fn newest_only(space: u32) -> bool {
    matches!(space, GROUPS | ANCHORS | SPACES | RUNS | RUN_NAMES | FRAMES | PARTS | SNAPSHOTS | VECTORS)
}

/// What an index entry belongs to, for callers that read all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Space,
    Run(NamespaceId, RunUid),
    RunName,
    /// A frame, one of its parts, or the snapshot after it.
    Frame(RunUid, u32),
    Group,
    Anchor,
    /// A record that has vectors.
    Vectors,
    /// A user's key of this keyspace.
    User(u32),
}

/// What a key belongs to; `None` for a key that no record leads to.
pub(crate) fn of(key: &[u8]) -> Option<Of> {
    let number = |at: usize| Some(u32::from_be_bytes(key.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some(match space_of(key) {
        SPACES => Of::Space,
        RUNS => Of::Run(NamespaceId(number(4)?), RunUid(long(8)?)),
        RUN_NAMES => Of::RunName,
        FRAMES | PARTS | SNAPSHOTS => Of::Frame(RunUid(long(4)?), number(12)?),
        GROUPS => Of::Group,
        ANCHORS => Of::Anchor,
        VECTORS => Of::Vectors,
        space if space >= crate::log::record::FIRST_FREE_SPACE => Of::User(space),
        _ => return None,
    })
}

/// The index value for a record at a place.
pub(crate) fn at(kind: u8, place: Place) -> Value {
    Value { kind, a: u64::from(place.segment.0), b: place.offset, c: place.len }
}

/// Whether a value does not end its key.
pub(crate) fn is_living(value: Value) -> bool {
    value.kind != ENDED
}

/// The place in a value of kind [`AT_PLACE`] or [`ENDED`].
pub(crate) fn place(value: Value) -> Place {
    Place { segment: SegmentId(u32::try_from(value.a).unwrap_or(u32::MAX)), offset: value.b, len: value.c }
}

/// Derives the index entries of a record. Writing and recovery both use [`index_keys`], so that tables can be
/// rebuilt from the log alone.
pub(crate) fn derive(
    record: &RawRecord<'_>,
    seqno: Seqno,
    place: Place,
    entries: &mut Vec<Entry>,
) -> Result<(), CodecError> {
    let Some(kind) = Kind::parse(record.kind, record.layout)? else { return Ok(()) };
    let of = if kind.is_logical() { Logical::parse(record.body)?.head } else { record.body };
    lead(kind, of, &mut |key, kind| {
        let key = if is_numbered(key) { vectors(seqno) } else { key.to_vec() };
        entries.push(Entry { key, seqno: seqno.0, value: at(kind, place) });
    })
}

/// The key of a record that has vectors.
pub(crate) fn vectors(seqno: Seqno) -> Vec<u8> {
    let mut key = key(VECTORS, 8);
    key.extend_from_slice(&seqno.0.to_be_bytes());
    key
}

/// The seqno at the end of a key from [`vectors`].
pub(crate) fn vectors_seqno(key: &[u8]) -> Option<Seqno> {
    Some(Seqno(u64::from_be_bytes(key.get(4..12)?.try_into().ok()?)))
}

/// Whether a key must still get its record's seqno, which only the writer knows.
pub(crate) fn is_numbered(key: &[u8]) -> bool {
    key == VECTORS.to_be_bytes()
}

/// Calls `add` with the keys that lead to a record. `of` is its head, or its body if it is not a logical
/// record.
pub(crate) fn lead(kind: Kind, of: &[u8], add: &mut dyn FnMut(&[u8], u8)) -> Result<(), CodecError> {
    match kind {
        Kind::GroupPart | Kind::GroupRest => add(&group(group_of(of)?.0), AT),
        // No key leads to what was erased.
        Kind::Erased | Kind::ErasedBatches => {}
        Kind::Put | Kind::Delete => {
            let (space, key, _) = KvHead::peek(kind, of)?;
            add(&user(space, key), if kind == Kind::Put { AT } else { ENDED });
        }
        Kind::Space => add(
            &space(match codec::decode(of)? {
                SpaceHead::Namespace { id, .. } => id.0,
                SpaceHead::Keyspace { id, .. } => id,
            }),
            AT,
        ),
        Kind::Run => {
            let fields = RunHead::parse(of)?.fields;
            let kind = if fields.gone { ENDED } else { AT };
            add(&run(fields.namespace, fields.uid), kind);
            add(&run_name(fields.namespace, &fields.name), kind);
        }
        Kind::Frame => {
            let (run, seq) = FrameHead::peek(of)?;
            add(&frame(run, seq), AT);
        }
        Kind::FramePart => {
            let head = PartHead::parse(of)?;
            add(&part(head.run, head.seq, head.part), AT);
        }
        Kind::Snapshot => {
            let head = SnapshotHead::parse(of)?;
            add(&snapshot(head.run, head.seq), AT);
            if !head.embeddings.is_empty() {
                add(&VECTORS.to_be_bytes(), AT);
            }
        }
        Kind::Embedding => {
            EmbeddingHead::parse(of)?;
            add(&VECTORS.to_be_bytes(), AT);
        }
        Kind::Tombstone => {
            let head = TombstoneHead::parse(of)?;
            add(&run(head.namespace, head.run), ENDED);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_engines_own_keyspaces_only_the_newest_version_counts() {
        let own: Vec<u32> = (0..100).filter(|space| newest_only(*space)).collect();
        assert_eq!(own, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn what_is_kept_of_anchors_is_told_by_their_last_bits() {
        let kept = |mask: fn(u64) -> bool| (0..64).filter(|n| mask(*n)).collect::<Vec<_>>();
        assert_eq!(kept(|n| kept_of_large_bodies(AnchorKey(n))), [0, 16, 32, 48]);
        let tables = kept(|n| kept_in_tables(&anchor(NamespaceId(3), AnchorKey(n))));
        assert_eq!(tables, (0..16).map(|n| 4 * n).collect::<Vec<_>>());
        assert!((0..=255).all(|byte| kept_in_tables(&user(50, &[byte]))));
        assert!(kept_in_tables(&group(3)) && kept_in_tables(&[]));
    }
}
