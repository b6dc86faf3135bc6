//! A second reader of the log, written from docs/format.md alone. It recomputes the ledger, and detects
//! writes that continue a group.

use std::path::Path;

use annals::io::sim::SimIo;

const SEGMENT_HEADER: usize = 96;
/// Bytes of a batch header in the short form. What these tests write has no other, but batches may be joined.
const BATCH_HEADER: usize = 35;
const SHORT_FORM: u32 = 1 << 31;
const JOINED_FORM: u32 = 1 << 30;
/// Rewritten segments have numbers from here on.
const FIRST_REWRITTEN: u32 = 1 << 31;
/// Record kinds up to here are covered by leaves.
const LAST_LOGICAL: u8 = 10;

type NodeDigest = [u8; 32];

/// The totals of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecomputedLedger {
    pub(super) leaves: u64,
    pub(super) root: NodeDigest,
    pub(super) batches: u64,
    /// Whether a later valid batch in the same segment says that the missing bytes were on disk.
    pub(super) goes_on_behind: bool,
}

/// Reads every batch of a store from the first segment on, until the chain breaks.
pub(super) fn read(disk: &SimIo, store: &Path) -> RecomputedLedger {
    let (mut tree, mut batches) = (RecomputedTree::default(), 0);
    let (mut seqno, mut prev) = (1u64, [0; 16]);
    let (mut goes_on_behind, mut rewritten) = (false, false);
    let listed = listed(disk, store).filter(|listed| !listed.is_empty()).unwrap_or_else(|| vec![1]);
    let after = listed.last().map_or(1, |last| last + 1);
    for segment in listed.into_iter().chain(after..) {
        let Some(bytes) = disk.read(&store.join(format!("segments/{segment:08}.seg"))) else { break };
        let (Some(uuid), Some(chain)) = (bytes.get(15..31), bytes.get(43..59)) else { break };
        let mut salt = crc32fast::Hasher::new();
        salt.update(uuid);
        salt.update(&segment.to_le_bytes());
        let salt = salt.finalize();
        // The batch after a rewritten segment continues the chain of the original one.
        if std::mem::replace(&mut rewritten, segment >= FIRST_REWRITTEN) || rewritten {
            prev.copy_from_slice(chain);
        }
        let mut at = SEGMENT_HEADER;
        while let Some(batch) = batch_at(&bytes, at, salt, seqno, prev) {
            for part in parts(batch) {
                seqno += records(part, seqno, &mut tree);
                batches += 1;
            }
            prev.copy_from_slice(&blake3::hash(batch).as_bytes()[..16]);
            at += batch.len();
        }
        goes_on_behind = (at..bytes.len())
            .filter_map(|behind| {
                whole_batch_at(&bytes, behind, salt).filter(|batch| is_filled(batch, behind))
            })
            .any(|batch| number(batch, 12).is_some_and(|synced| synced as usize > at));
    }
    RecomputedLedger { leaves: tree.leaves, root: tree.root(), batches, goes_on_behind }
}

/// The segments that the manifest lists, in log order; `None` if it cannot be read.
fn listed(disk: &SimIo, store: &Path) -> Option<Vec<u32>> {
    let current = disk.read(&store.join("CURRENT"))?;
    let name = std::str::from_utf8(&current).ok()?.split(' ').next()?.to_owned();
    let manifest = disk.read(&store.join(name))?;
    let (mut at, mut body) = (28, None);
    while let Some(len) = manifest.get(at..).and_then(|rest| number(rest, 4)) {
        let Some(edit) = manifest.get(at + 8..at + 8 + len as usize) else { break };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&manifest[8..24]);
        crc.update(&(at as u64).to_le_bytes());
        crc.update(&manifest[at + 4..at + 8 + len as usize]);
        if crc.finalize() != number(&manifest, at)? {
            break;
        }
        (at, body) = (at + 8 + len as usize, Some(edit));
    }
    // Format, store, creation time; then the number of segments.
    let mut rest = body?.get(26..)?;
    let count = number(rest, 0)?;
    rest = rest.get(8..)?;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(number(rest, 0)?);
        let sealed = *rest.get(12)? == 1;
        rest = rest.get(if sealed { 21 } else { 13 }..)?;
    }
    Some(ids)
}

/// A tree of RFC 9162 to which whole subtrees can be added.
#[derive(Default)]
struct RecomputedTree {
    leaves: u64,
    /// Complete subtrees from the left, with falling heights.
    peaks: Vec<(u8, NodeDigest)>,
}

impl RecomputedTree {
    /// Appends a complete subtree of 2^height leaves.
    fn push(&mut self, height: u8, node: NodeDigest) {
        assert!(
            self.leaves.is_multiple_of(1 << height),
            "a subtree of 2^{height} after {} leaves",
            self.leaves
        );
        self.leaves += 1 << height;
        let mut new = (height, node);
        while let Some((height, left)) = self.peaks.pop_if(|(height, _)| *height == new.0) {
            new = (height + 1, hash(&[&[1], &left, &new.1]));
        }
        self.peaks.push(new);
    }

    fn root(&self) -> NodeDigest {
        let mut peaks = self.peaks.iter().rev().map(|(_, hash)| *hash);
        let Some(last) = peaks.next() else { return hash(&[]) };
        peaks.fold(last, |right, left| hash(&[&[1], &left, &right]))
    }
}

/// A batch with a valid checksum, whatever precedes it.
fn whole_batch_at(bytes: &[u8], at: usize, salt: u32) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let batch = rest.get(..batch_len(rest)?)?;
    let mut crc = crc32fast::Hasher::new_with_initial(salt);
    crc.update(&(at as u64).to_le_bytes());
    crc.update(&batch[4..]);
    (crc.finalize() == number(batch, 0)?).then_some(batch)
}

/// Whether records fill a batch, and its synced position is not after itself.
fn is_filled(batch: &[u8], at: usize) -> bool {
    let mut end = BATCH_HEADER;
    each_record(batch.get(BATCH_HEADER..).unwrap_or_default(), |_, _, body| {
        end = body.as_ptr_range().end as usize - batch.as_ptr() as usize;
    });
    end == batch.len() && number(batch, 8).is_some_and(|synced| synced as usize <= at)
}

/// The records of a batch, or of each of joined ones.
fn parts(batch: &[u8]) -> Vec<&[u8]> {
    if number(batch, 4).is_none_or(|word| word & JOINED_FORM == 0) {
        return vec![&batch[BATCH_HEADER..]];
    }
    let records_end = number(batch, 8).unwrap() as usize;
    let (mut records, mut table) = (&batch[BATCH_HEADER..records_end], &batch[records_end..]);
    let mut parts = Vec::new();
    while !table.is_empty() {
        let (part, rest) = records.split_at(varint(&mut table) as usize);
        // The times are not compared here.
        varint(&mut table);
        parts.push(part);
        records = rest;
    }
    parts.push(records);
    parts
}

/// The length of the batch at the front of `bytes`; `None` if none begins there.
fn batch_len(bytes: &[u8]) -> Option<usize> {
    let word = number(bytes, 4).filter(|word| word & SHORT_FORM != 0)?;
    Some((word & !(SHORT_FORM | JOINED_FORM)) as usize).filter(|len| *len >= BATCH_HEADER)
}

fn batch_at(bytes: &[u8], at: usize, salt: u32, seqno: u64, prev: [u8; 16]) -> Option<&[u8]> {
    let batch = whole_batch_at(bytes, at, salt)?;
    (batch[12..19] == seqno.to_le_bytes()[..7] && batch[27..35] == prev[..8]).then_some(batch)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Adds the leaf of a batch with these records, or the leaves that it replaces, to the tree; returns its number of
/// seqnos.
fn records(records: &[u8], first: u64, ledger: &mut RecomputedTree) -> u64 {
    let (mut seqno, mut own) = (first, RecomputedTree::default());
    // The last key of salts in this batch.
    let mut key = None;
    each_record(records, |kind, layout, mut body| match kind {
        // Erased records or batches: the number of seqnos, the number of nodes or batches, the nodes.
        17 | 18 => {
            seqno += varint(&mut body);
            varint(&mut body);
            for node in body.chunks_exact(33) {
                let tree = if kind == 17 { &mut own } else { &mut *ledger };
                tree.push(node[0], *node[1..].first_chunk().unwrap());
            }
        }
        _ => {
            if (1..=LAST_LOGICAL).contains(&kind) {
                let (stored, mut rest) = body.split_at(if layout == 3 { 0 } else { 16 });
                if layout == 2 {
                    key = Some(stored.to_vec());
                }
                let salt = match layout {
                    1 => stored.to_vec(),
                    _ => derived_salt(key.as_ref().unwrap(), seqno),
                };
                let len = varint(&mut rest) as usize;
                own.push(0, hash(&[&[0], &salt, &[kind, 1], &seqno.to_le_bytes(), &rest[..len]]));
            }
            seqno += 1;
        }
    });
    if own.leaves > 0 {
        ledger.push(0, hash(&[&[0], &own.root()]));
    }
    seqno - first
}

/// The salt that follows from a key.
fn derived_salt(key: &[u8], seqno: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_derive_key("annals record salt 1");
    hasher.update(key).update(&seqno.to_le_bytes());
    hasher.finalize().as_bytes()[..16].to_vec()
}

fn each_record(mut rest: &[u8], mut each: impl FnMut(u8, u8, &[u8])) {
    while rest.len() > 5 {
        let mut after = &rest[5..];
        let len = varint(&mut after) as usize;
        let header = rest.len() - after.len();
        let Some(record) = rest.get(..len).filter(|record| record.len() >= header) else { return };
        each(record[4] & 31, 1 + (record[4] >> 5), &record[header..]);
        rest = &rest[len..];
    }
}

/// Whether a written segment range holds a part of a group that is not the first.
pub(super) fn continues_a_group(written: &[u8]) -> bool {
    let mut continues = false;
    let mut rest = written;
    while let Some(len) = batch_len(rest) {
        let Some(batch) = rest.get(..len) else { break };
        each_record(&parts(batch).concat(), |kind, _, mut body| {
            if kind == 16 {
                // group, namespace, raw_start, raw_len, codec, before
                (0..4).for_each(|_| _ = varint(&mut body));
                body = body.get(1..).unwrap_or_default();
                continues |= varint(&mut body) != 0;
            }
        });
        rest = &rest[len..];
    }
    continues
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte & 128 == 0 {
            break;
        }
    }
    value
}

fn hash(parts: &[&[u8]]) -> NodeDigest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}
