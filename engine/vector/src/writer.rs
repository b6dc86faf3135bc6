//! Writes a vector file, section after section. Each row is read from its place, and each block is summed
//! when it is full.
//!
//! The header says where everything is, so its block is written last. Memory: two blocks, the blocks that
//! wait to be written, four bytes for each block, and the graph.

use std::io::IoSlice;
use std::path::Path;

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, Seqno, StoreId};
use crate::io::{File, Io, OpenMode};
use crate::kv::embeddings::DIMENSIONS_MAX;
use crate::layout::{
    ALIGN, BLOCK_BYTES, CODES, COUNT_MAX, GRAPH, GRAPH_UPPER, HEADER_BYTES, OWNER_ENDS, OWNER_KEY,
    OWNER_SNAPSHOT, OWNERS, SCALES, SECTIONS, SEQNOS, VectorFileHeader, block_crc,
};
use crate::merged::MergedVectors;
use crate::search_error::VectorResult;
use crate::types::OwnerId;
use crate::vector_file::CodeScale;

/// Blocks that are written together.
const WRITE_BLOCKS: usize = 16;

/// Identifies a file and its partition.
#[derive(Debug, Clone, Copy)]
pub struct VectorFileMeta {
    pub store: StoreId,
    pub id: u64,
    pub namespace: NamespaceId,
    pub upto: Seqno,
}

/// A graph in the form of its sections.
#[derive(Debug, Clone, Default)]
pub struct GraphBytes {
    pub slots: (u32, u32),
    pub levels: u32,
    pub entry: u32,
    pub lowest: Vec<u8>,
    pub upper: Vec<u8>,
}

/// Writes a file of these vectors and syncs it, but not its name. Returns its header.
///
/// # Errors
/// `Invalid` if the vectors or their keys do not fit in one file.
pub fn write(
    io: &dyn Io,
    path: &Path,
    meta: VectorFileMeta,
    vectors: &MergedVectors<'_>,
    graph: &GraphBytes,
) -> VectorResult<VectorFileHeader> {
    let (dimensions, count) = header_numbers(vectors.dimensions, vectors.len())?;
    if io.stat(path)?.is_some() {
        io.remove(path)?;
    }
    let file = io.open(path, OpenMode::CreateNew)?;
    let mut out = VectorFileWriter {
        file: &*file,
        meta,
        first: None,
        full: Vec::new(),
        block: Vec::new(),
        sums: Vec::new(),
    };
    out.put(&[0; HEADER_BYTES])?;
    let mut sections = [(0, 0); SECTIONS];
    for (section, (begins, len)) in sections.iter_mut().enumerate() {
        let padding = out.block.len().next_multiple_of(ALIGN) - out.block.len();
        out.put(&[0; ALIGN][..padding])?;
        *begins = out.len();
        match section {
            GRAPH => out.put(&graph.lowest)?,
            GRAPH_UPPER => out.put(&graph.upper)?,
            _ => put_section(section, vectors, &mut out)?,
        }
        *len = out.len() - *begins;
    }
    let header = VectorFileHeader {
        store: meta.store,
        id: meta.id,
        namespace: meta.namespace,
        dimensions,
        count,
        upto: meta.upto,
        slots: graph.slots,
        levels: graph.levels,
        entry: graph.entry,
        sections,
    };
    out.finish(&header)?;
    file.sync()?;
    Ok(header)
}

/// The dimensions and the number of vectors as a header holds them, within the limits of its readers.
fn header_numbers(dimensions: usize, count: usize) -> Result<(u32, u32)> {
    match (u32::try_from(dimensions), u32::try_from(count)) {
        (Ok(few), Ok(counted)) if dimensions <= DIMENSIONS_MAX && counted <= COUNT_MAX => Ok((few, counted)),
        _ => Err(Error::invalid(format!(
            "{count} vectors of {dimensions} dimensions do not fit in one vector file, which holds {COUNT_MAX} of {DIMENSIONS_MAX}: give some of them another embedder id or namespace"
        ))),
    }
}

/// Writes the data of one section for each vector.
fn put_section(
    section: usize,
    vectors: &MergedVectors<'_>,
    out: &mut VectorFileWriter<'_>,
) -> VectorResult<()> {
    let mut bytes = Vec::new();
    let mut ends = 0u32;
    for at in 0..vectors.len() {
        bytes.clear();
        match section {
            SEQNOS => bytes.extend_from_slice(&vectors.item(at)?.seqno.0.to_le_bytes()),
            OWNER_ENDS => {
                put_owner(&vectors.item(at)?.owner, &mut bytes);
                let end = u32::try_from(bytes.len()).ok().and_then(|len| ends.checked_add(len));
                ends = end.ok_or_else(|| {
                    Error::invalid("the keys that have vectors of one embedder take over 4 GiB")
                })?;
                bytes.clear();
                bytes.extend_from_slice(&ends.to_le_bytes());
            }
            OWNERS => put_owner(&vectors.item(at)?.owner, &mut bytes),
            SCALES => {
                let (_, CodeScale { square, scale, error }) = vectors.codes_and_scale(at)?;
                [square, scale, error]
                    .iter()
                    .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            }
            CODES => bytes.extend(vectors.codes_and_scale(at)?.0.iter().map(|code| code.cast_unsigned())),
            _ => vectors.row(at)?.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes())),
        }
        out.put(&bytes)?;
    }
    Ok(())
}

/// A file that is being written.
struct VectorFileWriter<'a> {
    file: &'a dyn File,
    meta: VectorFileMeta,
    /// The first block, once it is full.
    first: Option<Vec<u8>>,
    /// Blocks that are summed and not written yet.
    full: Vec<u8>,
    /// The last block.
    block: Vec<u8>,
    /// Checksums of the full blocks.
    sums: Vec<u8>,
}

impl VectorFileWriter<'_> {
    /// Bytes of the file so far.
    fn len(&self) -> u64 {
        (self.sums.len() / 4 * BLOCK_BYTES + self.block.len()) as u64
    }

    fn put(&mut self, mut bytes: &[u8]) -> VectorResult<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK_BYTES {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Ends a block. The first block is kept until it has the header; its checksum is corrected then.
    fn end_block(&mut self) -> VectorResult<()> {
        let block = self.sums.len() / 4;
        let crc = block_crc(self.meta.store, self.meta.id, block, &self.block);
        self.sums.extend_from_slice(&crc.to_le_bytes());
        match block {
            0 => self.first = Some(std::mem::take(&mut self.block)),
            _ => {
                self.full.extend_from_slice(&self.block);
                self.block.clear();
            }
        }
        if self.full.len() >= WRITE_BLOCKS * BLOCK_BYTES {
            self.write_full()?;
        }
        Ok(())
    }

    fn write_full(&mut self) -> VectorResult<()> {
        if self.full.is_empty() {
            return Ok(());
        }
        // The full blocks end where the last block begins. That block is empty here, or becomes the file's
        // last.
        let end = self.len() - self.block.len() as u64;
        self.file.write_at(&[IoSlice::new(&self.full)], end - self.full.len() as u64)?;
        self.full.clear();
        Ok(())
    }

    fn finish(mut self, header: &VectorFileHeader) -> VectorResult<()> {
        let sums_at = self.len();
        self.write_full()?;
        let (store, id) = (self.meta.store, self.meta.id);
        let last = std::mem::take(&mut self.block);
        let (first, last) = match self.first.take() {
            Some(first) => (first, last),
            // There is only one block.
            None => (last, Vec::new()),
        };
        let mut first = first;
        first[..HEADER_BYTES].copy_from_slice(&header.encode());
        if !last.is_empty() {
            let crc = block_crc(store, id, self.sums.len() / 4, &last);
            self.sums.extend_from_slice(&crc.to_le_bytes());
        }
        let crc = block_crc(store, id, 0, &first).to_le_bytes();
        match self.sums.first_chunk_mut::<4>() {
            Some(of_first) => *of_first = crc,
            None => self.sums.extend_from_slice(&crc),
        }
        let of_sums = block_crc(store, id, usize::MAX, &self.sums).to_le_bytes();
        let end = [IoSlice::new(&last), IoSlice::new(&self.sums), IoSlice::new(&of_sums)];
        self.file.write_at(&end, sums_at - last.len() as u64)?;
        self.file.write_at(&[IoSlice::new(&first)], 0)?;
        Ok(())
    }
}

fn put_owner(owner: &OwnerId, out: &mut Vec<u8>) {
    match owner {
        OwnerId::Snapshot { run, seq } => {
            out.push(OWNER_SNAPSHOT);
            out.extend_from_slice(&run.0.to_le_bytes());
            out.extend_from_slice(&seq.to_le_bytes());
        }
        OwnerId::Key { space, key } => {
            out.push(OWNER_KEY);
            out.extend_from_slice(&space.to_le_bytes());
            out.extend_from_slice(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// The writer once cut the number of vectors to 32 bits. A file of too many vectors was then listed and
    /// could not be opened again, and one of 2^32 + 1 vectors claimed to have one.
    #[test]
    fn too_many_vectors_for_a_header_are_refused() {
        let most = COUNT_MAX as usize;
        assert_eq!(header_numbers(DIMENSIONS_MAX, most).unwrap(), (DIMENSIONS_MAX as u32, COUNT_MAX));
        for (dimensions, count) in [(1, most + 1), (1, (1 << 32) + 1), (DIMENSIONS_MAX + 1, 1), (1 << 32, 1)]
        {
            let error = header_numbers(dimensions, count).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{dimensions} {count}: {error}");
        }
    }
}
