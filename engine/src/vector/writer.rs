//! Writing a vector file.

use std::io::IoSlice;
use std::path::Path;

use crate::error::Result;
use crate::ids::{NamespaceId, Seqno, StoreId};
use crate::io::{Io, Open};
use crate::vector::item::{Item, OwnerId};
use crate::vector::layout::{ALIGN, BLOCK_BYTES, HEADER_BYTES, Header, SECTIONS, block_crc};
use crate::vector::quantise::Coded;

/// Bytes that are written together.
const WRITE_BYTES: usize = 4 << 20;

/// Which file of which partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub(super) store: StoreId,
    pub(super) id: u64,
    pub(super) namespace: NamespaceId,
    pub(super) upto: Seqno,
    pub(super) dimensions: u32,
}

/// A graph as its section has it.
#[derive(Debug, Clone, Default)]
pub(super) struct GraphBytes {
    pub(super) slots: (u32, u32),
    pub(super) levels: u32,
    pub(super) entry: u32,
    pub(super) lowest: Vec<u8>,
    pub(super) upper: Vec<u8>,
}

/// Writes a file of these vectors, whose codes and dot products with themselves stand beside them, and syncs it, but not its name.
/// Gives its bytes.
pub(super) fn write(
    io: &dyn Io,
    path: &Path,
    meta: Meta,
    vectors: &[(Item, Vec<f32>)],
    coded: &[Coded],
    squares: &[f32],
    graph: &GraphBytes,
) -> Result<u64> {
    if io.stat(path)?.is_some() {
        io.remove(path)?;
    }
    let mut parts: [Vec<u8>; SECTIONS] = Default::default();
    for (((item, vector), coded), square) in vectors.iter().zip(coded).zip(squares) {
        parts[0].extend_from_slice(&item.seqno.0.to_le_bytes());
        put_owner(&item.owner, &mut parts[2]);
        let end = parts[2].len() as u32;
        parts[1].extend_from_slice(&end.to_le_bytes());
        for number in [*square, coded.scale, coded.error] {
            parts[3].extend_from_slice(&number.to_le_bytes());
        }
        parts[4].extend(coded.codes.iter().map(|code| *code as u8));
        parts[5].extend(vector.iter().flat_map(|x| x.to_le_bytes()));
    }
    parts[6].clone_from(&graph.lowest);
    parts[7].clone_from(&graph.upper);
    let mut at = HEADER_BYTES as u64;
    let sections = std::array::from_fn(|section| {
        at = at.next_multiple_of(ALIGN);
        let begins = at;
        at += parts[section].len() as u64;
        (begins, parts[section].len() as u64)
    });
    let header = Header {
        store: meta.store,
        id: meta.id,
        namespace: meta.namespace,
        dimensions: meta.dimensions,
        count: vectors.len() as u32,
        upto: meta.upto,
        slots: graph.slots,
        levels: graph.levels,
        entry: graph.entry,
        sections,
    };
    let mut bytes = Vec::with_capacity(header.file_bytes() as usize);
    bytes.extend_from_slice(&header.encode());
    for (part, (at, _)) in parts.into_iter().zip(sections) {
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&part);
    }
    let mut sums = Vec::with_capacity(4 * header.blocks());
    for (block, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
        sums.extend_from_slice(&block_crc(meta.store, meta.id, block, bytes).to_le_bytes());
    }
    let crc = block_crc(meta.store, meta.id, usize::MAX, &sums);
    bytes.extend_from_slice(&sums);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let file = io.open(path, Open::CreateNew)?;
    for (index, piece) in bytes.chunks(WRITE_BYTES).enumerate() {
        file.write_at(&[IoSlice::new(piece)], (index * WRITE_BYTES) as u64)?;
    }
    file.sync()?;
    Ok(bytes.len() as u64)
}

fn put_owner(owner: &OwnerId, out: &mut Vec<u8>) {
    match owner {
        OwnerId::Snapshot { run, seq } => {
            out.push(1);
            out.extend_from_slice(&run.0.to_le_bytes());
            out.extend_from_slice(&seq.to_le_bytes());
        }
        OwnerId::Key { space, key } => {
            out.push(2);
            out.extend_from_slice(&space.to_le_bytes());
            out.extend_from_slice(key);
        }
    }
}
