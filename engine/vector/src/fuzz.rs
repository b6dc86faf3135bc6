//! Entry point for fuzzers: a vector file with correct checksums around any sections.

use std::collections::HashSet;
use std::io::IoSlice;
use std::path::Path;

use roaring::RoaringBitmap;

use super::graph::walk;
use super::layout::{ALIGN, BLOCK_BYTES, HEADER_BYTES, SCALE_BYTES, SECTIONS, VectorFileHeader, block_crc};
use super::quantise::encode;
use super::vector_file::OpenVectorFile;
use crate::ids::{NamespaceId, Seqno, StoreId};
use crate::io::sim::SimIo;
use crate::io::{Io, OpenMode, ReadMode};
use crate::log::manifest::VectorEntry;
use annals_store::testing::{byte, take_bytes, take_u16};

const STORE: StoreId = StoreId(*b"0123456789abcdef");
const ID: u64 = 7;
const UPTO: Seqno = Seqno(99);
const NAMESPACE: NamespaceId = NamespaceId(16);

/// The input begins with a flag. Then follows either a whole file, or a header's fields and the contents of
/// each section.
pub fn vectors(data: &[u8]) {
    let mut rest = data;
    let (bytes, dimensions, count) = match byte(&mut rest) & 1 {
        0 => (rest.to_vec(), 1, 1),
        _ => built_file(&mut rest),
    };
    let io = SimIo::new(1);
    let path = Path::new("7.vec");
    let Ok(file) = io.open(path, OpenMode::CreateNew) else { return };
    if file.write_at(&[IoSlice::new(&bytes)], 0).is_err() {
        return;
    }
    let entry = VectorEntry {
        id: ID,
        bytes: bytes.len() as u64,
        namespace: NAMESPACE,
        embedder: "e".into(),
        dimensions,
        count: u64::from(count),
        upto: UPTO,
    };
    if let Ok(segment) = OpenVectorFile::open(&io, path, STORE, &entry, ReadMode::Positional) {
        check_reads(&segment);
    }
}

/// Builds a file from the input, with correct checksums. Returns it with its dimensions and count.
fn built_file(rest: &mut &[u8]) -> (Vec<u8>, u32, u32) {
    let (dimensions, count) = (u32::from(byte(rest) % 40) + 1, u32::from(byte(rest)));
    let slots = (u32::from(byte(rest) % 9), u32::from(byte(rest) % 5));
    let (levels, entry) = (u32::from(byte(rest) % 4), u32::from(byte(rest)));
    let (owners, upper) = (take_u16(rest) % 4096, take_u16(rest) % 4096);
    let (n, d) = (count as usize, dimensions as usize);
    let lens = [8 * n, 4 * n, owners, SCALE_BYTES * n, d * n, 4 * d * n, 4 * n * slots.0 as usize, upper];
    let mut bytes = vec![0; HEADER_BYTES];
    let mut sections = [(0, 0); SECTIONS];
    for (section, len) in sections.iter_mut().zip(lens) {
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        let at = bytes.len();
        *section = (at as u64, len as u64);
        bytes.extend_from_slice(take_bytes(rest, len));
        bytes.resize(at + len, 0);
    }
    let header = VectorFileHeader {
        store: STORE,
        id: ID,
        namespace: NAMESPACE,
        dimensions,
        count,
        upto: UPTO,
        slots,
        levels,
        entry,
        sections,
    };
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    let blocks = bytes.chunks(BLOCK_BYTES).enumerate();
    let sums: Vec<u8> =
        blocks.flat_map(|(block, bytes)| block_crc(STORE, ID, block, bytes).to_le_bytes()).collect();
    let crc = block_crc(STORE, ID, usize::MAX, &sums).to_le_bytes();
    ([bytes, sums, crc.to_vec()].concat(), dimensions, count)
}

fn check_reads(segment: &OpenVectorFile) {
    for at in 0..segment.len() {
        let _ = (segment.item(at), segment.row(at), segment.scale(at), segment.codes(at..at + 1));
    }
    let _ = (segment.scales(), segment.positions_of_keys(20, b"k"));
    if segment.header.slots.0 == 0 || segment.len() == 0 {
        return;
    }
    let query: Vec<f32> = (0..segment.header.dimensions).map(|n| 1.0 + n as f32).collect();
    let some: RoaringBitmap = (0..segment.header.count).step_by(3).collect();
    for (width, among) in [(1, None), (5, None), (5, Some(&some))] {
        let Ok(found) = walk(segment, &encode(&query), width, among) else { continue };
        let positions: HashSet<u32> = found.iter().map(|near| near.at).collect();
        assert!(found.len() <= width && positions.len() == found.len(), "a position is given twice");
        assert!(positions.iter().all(|at| *at < segment.header.count), "a position is past the end");
        assert!(among.is_none_or(|among| positions.iter().all(|at| among.contains(*at))), "not asked for");
    }
}
