//! A second reader of the log, written from docs/format.md alone: it recomputes the ledger, and says which writes go on
//! with a group.

use std::path::Path;

use annals::io::sim::SimIo;

const SEGMENT_HEADER: usize = 96;
const BATCH_HEADER: usize = 48;

type Hash = [u8; 32];

/// What the log adds up to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) leaves: u64,
    pub(super) root: Hash,
    pub(super) batches: u64,
    /// Whether a batch checks somewhere behind the last one that follows, in the same segment.
    pub(super) goes_on_behind: bool,
}

/// Reads every batch of a store, from its first segment on, as far as batches follow each other.
pub(super) fn read(disk: &SimIo, store: &Path) -> Ledger {
    let (mut leaves, mut batches) = (Vec::new(), 0);
    let (mut seqno, mut prev) = (1u64, [0; 16]);
    let mut goes_on_behind = false;
    for segment in 1u32.. {
        let Some(bytes) = disk.read(&store.join(format!("segments/{segment:08}.seg"))) else { break };
        let Some(uuid) = bytes.get(15..31) else { break };
        let mut salt = crc32fast::Hasher::new();
        salt.update(uuid);
        salt.update(&segment.to_le_bytes());
        let salt = salt.finalize();
        let mut at = SEGMENT_HEADER;
        while let Some(batch) = batch_at(&bytes, at, salt, seqno, prev) {
            let records = records(batch, seqno);
            let hashes: Vec<Hash> = records.iter().filter_map(|(_, hash)| *hash).collect();
            if !hashes.is_empty() {
                leaves.push(hash(&[&[0], &root(&hashes)]));
            }
            batches += 1;
            seqno += records.len() as u64;
            prev.copy_from_slice(&blake3::hash(batch).as_bytes()[..16]);
            at += batch.len();
        }
        goes_on_behind = (at..bytes.len()).any(|at| whole_at(&bytes, at, salt).is_some());
    }
    Ledger { leaves: leaves.len() as u64, root: root(&leaves), batches, goes_on_behind }
}

/// Whether a compaction has made some of its segments.
pub(super) fn is_compacted(disk: &SimIo, store: &Path) -> bool {
    let segments = store.join("segments");
    disk.files()
        .iter()
        .any(|file| file.parent() == Some(&segments) && file.file_name().is_some_and(|name| name.len() > 12))
}

/// A batch that checks, whatever it follows.
fn whole_at(bytes: &[u8], at: usize, salt: u32) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let batch = rest.get(..number(rest, 4)? as usize).filter(|batch| batch.len() >= BATCH_HEADER)?;
    let mut crc = crc32fast::Hasher::new_with_initial(salt);
    crc.update(&(at as u64).to_le_bytes());
    crc.update(&batch[4..]);
    (crc.finalize() == number(batch, 0)?).then_some(batch)
}

fn batch_at(bytes: &[u8], at: usize, salt: u32, seqno: u64, prev: [u8; 16]) -> Option<&[u8]> {
    let batch = whole_at(bytes, at, salt)?;
    (batch[16..24] == seqno.to_le_bytes() && batch[32..48] == prev).then_some(batch)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The records of a batch: kind, and the hash of a logical one.
fn records(batch: &[u8], first: u64) -> Vec<(u8, Option<Hash>)> {
    let mut found = Vec::new();
    each_record(batch, |kind, layout, body| {
        let seqno = first + found.len() as u64;
        let logical = (1..=7).contains(&kind).then(|| {
            let (salt, mut rest) = body.split_at(16);
            let len = varint(&mut rest) as usize;
            hash(&[&[0], salt, &[kind, layout], &seqno.to_le_bytes(), &rest[..len]])
        });
        found.push((kind, logical));
    });
    found
}

fn each_record(batch: &[u8], mut each: impl FnMut(u8, u8, &[u8])) {
    let mut rest = batch.get(BATCH_HEADER..).unwrap_or_default();
    while let Some(len) = number(rest, 4) {
        let Some(record) = rest.get(..len as usize).filter(|record| record.len() >= 10) else { return };
        each(record[8], record[9], &record[10..]);
        rest = &rest[len as usize..];
    }
}

/// Whether what was written to a segment holds a group's part that is not its first.
pub(super) fn continues_a_group(written: &[u8]) -> bool {
    let mut continues = false;
    let mut rest = written;
    while let Some(len) = number(rest, 4).map(|len| len as usize).filter(|len| *len >= BATCH_HEADER) {
        let Some(batch) = rest.get(..len) else { break };
        each_record(batch, |kind, _, mut body| {
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

fn hash(parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// RFC 9162, section 2.1.1, over hashes of leaves.
fn root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => hash(&[]),
        [one] => *one,
        many => {
            let (left, right) = many.split_at(many.len().next_power_of_two() / 2);
            hash(&[&[1], &root(left), &root(right)])
        }
    }
}
