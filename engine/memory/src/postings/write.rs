//! Parts are written here: postings and tables, of memories and of frames.

use annals::kv::ScanRange;
use annals::{Durability, Error, Keyspace, KvBatch, Namespace, Result};
use annals_store::codec::CodecError;

use super::Partition;
use super::find::damaged;
use super::merge::{FreshPostings, OldBuckets, merged_buckets};
use super::meta::{PartInfo, PartList};
use super::part::{
    ENTRIES_MAX, PartRow, TABLE_BLOCK, Term, bucket_count, bucket_key, part_prefix, table_block_bytes,
    table_key,
};

/// A part is merged with the newer ones if it has less than this many times their entries.
const MERGE_FACTOR: u64 = 2;
/// Bytes of postings in one commit.
const COMMIT_BYTES: usize = 1 << 20;

/// Where parts are: the namespace, the keyspace of postings, the partition.
pub(in super::super) type PartPlace<'a> = (&'a Namespace, &'a Keyspace, &'a Partition);

/// What becomes one part.
pub(in super::super) struct NewPart<'a, R> {
    /// Parts that it replaces.
    pub(in super::super) old: &'a [PartInfo],
    /// The new ordinals of each old part's entries; `None` for an entry that is left out.
    pub(in super::super) moved: &'a [Vec<Option<u16>>],
    /// The rows by their ordinals.
    pub(in super::super) rows: &'a [R],
    /// Terms of new entries, with their ordinals.
    pub(in super::super) fresh: &'a [(Term, u16)],
    /// The bytes that postings of new entries are expected to take, by which buckets are planned.
    pub(in super::super) fresh_bytes: usize,
}

/// The place in the list from which parts are merged with `fresh` new entries.
pub(in super::super) fn merged_from(list: &PartList, fresh: usize) -> usize {
    let (mut merged, mut first) = (fresh, list.parts.len());
    while let Some(part) = first.checked_sub(1).and_then(|at| list.parts.get(at)) {
        let count = part.count as usize;
        if u64::from(part.count) >= MERGE_FACTOR * merged as u64 || merged + count > ENTRIES_MAX {
            break;
        }
        (merged, first) = (merged + count, first - 1);
    }
    first
}

/// Writes a part, and puts it at `at` in the list, unless it has no entries. The batch that is returned ends it: the caller
/// adds the list, commits, and deletes the old parts.
pub(in super::super) fn write_part<R: PartRow>(
    (space, postings, partition): PartPlace<'_>,
    list: &mut PartList,
    at: usize,
    part: &NewPart<'_, R>,
) -> Result<KvBatch> {
    let count = part.rows.len();
    if count == 0 {
        return Ok(space.batch());
    }
    let old_bytes: u64 = part.old.iter().map(|old| old.bytes).sum();
    let expected = usize::try_from(old_bytes).unwrap_or(usize::MAX).saturating_add(part.fresh_bytes);
    let buckets = bucket_count(expected);
    let ranges = part.old.iter().map(|old| old.buckets).min().map_or(1, |old| old.min(buckets));
    let fresh = FreshPostings::new(part.fresh, buckets);
    let id = list.next_id;
    list.next_id = id.checked_add(1).ok_or_else(|| Error::bug("the numbers of parts are used up"))?;
    let (mut batch, mut in_batch, mut bytes_written) = (space.batch(), 0, 0u64);
    for number in 0..ranges {
        let mut read: Vec<OldBuckets<'_>> = Vec::with_capacity(part.old.len());
        for (old, ordinals) in part.old.iter().zip(part.moved) {
            let each = old.buckets / ranges;
            let buckets = (number * each..(number + 1) * each).map(|bucket| {
                let bytes = postings.get(&bucket_key(partition, old.id, bucket))?;
                bytes.ok_or_else(|| damaged(&missing_bucket()))
            });
            read.push(OldBuckets { buckets: buckets.collect::<Result<_>>()?, ordinals });
        }
        let each = buckets / ranges;
        let ends = (number * each, (number + 1) * each);
        let merged = merged_buckets(&read, &fresh, ends, buckets, count).map_err(|error| damaged(&error))?;
        for (bucket, bytes) in (ends.0..).zip(merged) {
            in_batch += bytes.len() + 64;
            bytes_written += bytes.len() as u64;
            batch.put(postings, &bucket_key(partition, id, bucket), bytes);
            if in_batch > COMMIT_BYTES {
                in_batch = 0;
                commit_index(std::mem::replace(&mut batch, space.batch()))?;
            }
        }
    }
    for (block, rows) in (0u32..).zip(part.rows.chunks(TABLE_BLOCK as usize)) {
        batch.put(postings, &table_key(partition, id, block), table_block_bytes(rows));
    }
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    list.parts.insert(at, PartInfo { id, count, buckets, bytes: bytes_written });
    Ok(batch)
}

/// Deletes the postings and tables of parts that no list names any more.
pub(in super::super) fn delete_parts(
    (space, postings, partition): PartPlace<'_>,
    old: &[PartInfo],
) -> Result<()> {
    old.iter().try_for_each(|part| delete_all(space, postings, &part_prefix(partition, part.id)))
}

/// Deletes all keys with a prefix.
pub(super) fn delete_all(space: &Namespace, keyspace: &Keyspace, prefix: &[u8]) -> Result<()> {
    let mut batch = space.batch();
    let mut count = 0usize;
    for key in keyspace.scan(ScanRange::prefix(prefix)).keys() {
        batch.delete(keyspace, &key?);
        count += 1;
    }
    if count == 0 { Ok(()) } else { commit_index(batch) }
}

/// Commits what an index alone needs: it can be made again, so it need not be on disk at once.
pub(in super::super) fn commit_index(batch: KvBatch) -> Result<()> {
    batch.submit_with(Durability::Process)?.wait().map(drop)
}

pub(super) fn missing_bucket() -> CodecError {
    CodecError::Header("a bucket of an index of words is missing".to_owned())
}
