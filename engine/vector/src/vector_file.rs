//! A vector file, read from its map.
//!
//! Invariant: no byte is used before the checksum of its block was compared. Which blocks matched is
//! remembered. So opening reads only the header and the checksums.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use roaring::RoaringBitmap;

use crate::among::BitmapCache;
use crate::codec::{ByteReader, index};
use crate::graph::GRAPH_ROWS_MIN;
use crate::ids::{Seqno, StoreId};
use crate::io::{FileBytes, Io, OpenMode, ReadMode};
use crate::kernel::{codes_from_bytes, floats_from_bytes, prefetch};
use crate::layout::{
    BLOCK_BYTES, CODES, GRAPH, GRAPH_UPPER, OWNER_ENDS, OWNER_KEY, OWNER_SNAPSHOT, OWNERS, ROWS, SCALE_BYTES,
    SCALES, SEQNOS, VectorFileHeader, block_crc,
};
use crate::log::manifest::VectorEntry;
use crate::log::open::Damage;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::types::{OwnerId, RunUid, VectorOrigin};

/// See the module.
#[derive(Debug)]
pub struct OpenVectorFile {
    pub entry: VectorEntry,
    pub header: VectorFileHeader,
    path: PathBuf,
    bytes: FileBytes,
    /// A bit for each block whose checksum matched.
    checked: Box<[AtomicU64]>,
    /// A bit for each vector that was found dead as of some record.
    dead: Box<[AtomicU64]>,
    /// The last of these records, and the number of dead vectors.
    dead_upto: AtomicU64,
    dead_count: AtomicUsize,
    /// Cached results of owner filters.
    pub bitmaps: BitmapCache,
}

/// A vector's dot product with itself, the scale of its codes, and their error.
#[derive(Debug, Clone, Copy)]
pub struct CodeScale {
    pub square: f32,
    pub scale: f32,
    pub error: f32,
}

type VectorFileResult<T> = Result<T, Damage>;

impl OpenVectorFile {
    /// Opens a listed file.
    ///
    /// # Errors
    /// If it is missing, cut short, of another store, or not what was listed.
    pub fn open(
        io: &dyn Io,
        path: &Path,
        store: StoreId,
        entry: &VectorEntry,
        mode: ReadMode,
    ) -> VectorFileResult<Self> {
        let wrong = |offset: u64, what: String| Damage { file: path.to_path_buf(), offset, what };
        let file = io.open(path, OpenMode::Read).map_err(|e| wrong(0, e.to_string()))?;
        let bytes = mode.read_whole(&*file).map_err(|e| wrong(0, e.to_string()))?;
        let header =
            VectorFileHeader::decode(&bytes, bytes.len() as u64).map_err(|e| wrong(0, e.to_string()))?;
        let named = (
            header.store,
            header.id,
            header.namespace,
            header.dimensions,
            u64::from(header.count),
            header.upto,
        );
        let listed = (store, entry.id, entry.namespace, entry.dimensions, entry.count, entry.upto);
        if named != listed {
            return Err(wrong(0, "it is another file than the one that is listed".into()));
        }
        let at = index(header.checksums_offset());
        let (sums, crc) =
            bytes.get(at..).and_then(|rest| rest.split_last_chunk::<4>()).unwrap_or((&[], &[0; 4]));
        if block_crc(store, entry.id, usize::MAX, sums) != u32::from_le_bytes(*crc) {
            return Err(wrong(at as u64, "the checksum of its checksums does not match".into()));
        }
        let checked = (0..header.block_count().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let dead = (0..(header.count as usize).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (dead_upto, dead_count) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (entry, path) = (entry.clone(), path.to_path_buf());
        Ok(Self {
            entry,
            header,
            path,
            bytes,
            checked,
            dead,
            dead_upto,
            dead_count,
            bitmaps: BitmapCache::default(),
        })
    }

    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether it is empty")]
    pub fn len(&self) -> usize {
        self.header.count as usize
    }

    /// Whether it is large enough for a graph and has none.
    pub fn lacks_graph(&self) -> bool {
        self.len() >= GRAPH_ROWS_MIN && self.header.slots.0 == 0
    }

    /// Number of vectors that are not known to be dead.
    pub fn living_count(&self) -> usize {
        self.len().saturating_sub(self.dead_count.load(Ordering::Relaxed))
    }

    /// Notes that a vector is dead as of a record. A dead vector never lives again.
    pub fn note_dead(&self, at: usize, upto: Seqno) {
        self.dead_upto.fetch_max(upto.0, Ordering::AcqRel);
        if let Some(word) = self.dead.get(at / 64)
            && word.fetch_or(1 << (at % 64), Ordering::AcqRel) & 1 << (at % 64) == 0
        {
            self.dead_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a vector is known to be dead as of a record. False if deaths were noted as of a later record.
    pub fn is_dead(&self, at: usize, upto: Seqno) -> bool {
        let noted =
            self.dead.get(at / 64).is_some_and(|word| word.load(Ordering::Acquire) & 1 << (at % 64) != 0);
        noted && self.dead_upto.load(Ordering::Acquire) <= upto.0
    }

    fn damage(&self, offset: u64, what: impl Into<String>) -> Damage {
        Damage { file: self.path.clone(), offset, what: what.into() }
    }

    /// Bytes of a section, checked.
    fn section(&self, section: usize, range: Range<usize>) -> VectorFileResult<&[u8]> {
        let (at, len) = self.header.sections[section];
        let (start, end) = (index(at) + range.start, index(at) + range.end);
        if range.start > range.end || range.end as u64 > len {
            return Err(self.damage(at, "it names bytes that its section does not have"));
        }
        if start < end {
            for block in start / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES {
                let (word, bit) = (&self.checked[block / 64], 1 << (block % 64));
                if word.load(Ordering::Relaxed) & bit == 0 {
                    self.check(block)?;
                    word.fetch_or(bit, Ordering::Relaxed);
                }
            }
        }
        self.bytes.get(start..end).ok_or_else(|| self.damage(start as u64, "it ends before its sections do"))
    }

    fn check(&self, block: usize) -> VectorFileResult<()> {
        let (start, sums) = (block * BLOCK_BYTES, index(self.header.checksums_offset()));
        let bytes = self.bytes.get(start..sums.min(start + BLOCK_BYTES)).unwrap_or_default();
        let sum = self.bytes.get(sums + 4 * block..).and_then(|rest| rest.first_chunk::<4>());
        match sum.map(|sum| u32::from_le_bytes(*sum)) {
            Some(sum) if sum == block_crc(self.header.store, self.header.id, block, bytes) => Ok(()),
            _ => Err(self.damage(start as u64, "the checksum of its block does not match")),
        }
    }

    pub fn seqno(&self, at: usize) -> VectorFileResult<Seqno> {
        Ok(Seqno(read_u64(self.section(SEQNOS, 8 * at..8 * at + 8)?)))
    }

    fn owner_bytes(&self, at: usize) -> VectorFileResult<&[u8]> {
        let start = match at.checked_sub(1) {
            Some(before) => read_u32(self.section(OWNER_ENDS, 4 * before..4 * before + 4)?) as usize,
            None => 0,
        };
        let end = read_u32(self.section(OWNER_ENDS, 4 * at..4 * at + 4)?) as usize;
        self.section(OWNERS, start..end)
    }

    /// Prefetches what leads to the owner of the vector at a position, and the number of its record.
    pub fn prefetch_place(&self, at: usize) -> VectorFileResult<()> {
        prefetch(self.section(OWNER_ENDS, 4 * at..4 * at + 4)?);
        prefetch(self.section(SEQNOS, 8 * at..8 * at + 8)?);
        Ok(())
    }

    /// Prefetches the owner of the vector at a position, after [`OpenVectorFile::prefetch_place`].
    pub fn prefetch_owner(&self, at: usize) -> VectorFileResult<()> {
        prefetch(self.owner_bytes(at)?);
        Ok(())
    }

    /// The positions of vectors whose owners are keys of a keyspace with this prefix.
    pub fn positions_of_keys(&self, space: u32, prefix: &[u8]) -> VectorFileResult<RoaringBitmap> {
        let begins = [&[OWNER_KEY][..], &space.to_le_bytes(), prefix].concat();
        let mut bitmap = RoaringBitmap::new();
        for at in 0..self.header.count {
            if self.owner_bytes(at as usize)?.starts_with(&begins) {
                bitmap.insert(at);
            }
        }
        Ok(bitmap)
    }

    /// The owner of the vector at a position, and the record that holds the vector.
    pub fn item(&self, at: usize) -> VectorFileResult<VectorOrigin> {
        let bytes = self.owner_bytes(at)?;
        let mut r = ByteReader::new(bytes, "owner of a vector");
        let owner = match r.u8() {
            Ok(OWNER_SNAPSHOT) => match (r.u64(), r.u32(), r.is_empty()) {
                (Ok(run), Ok(seq), true) => Some(OwnerId::Snapshot { run: RunUid(run), seq }),
                _ => None,
            },
            Ok(OWNER_KEY) => r.u32().ok().map(|space| OwnerId::Key { space, key: r.take_rest().into() }),
            _ => None,
        };
        let owner = owner
            .ok_or_else(|| self.damage(self.header.sections[OWNERS].0, "an owner's bytes are not valid"))?;
        Ok(VectorOrigin { seqno: self.seqno(at)?, owner })
    }

    pub fn scale(&self, at: usize) -> VectorFileResult<CodeScale> {
        let bytes = self.section(SCALES, SCALE_BYTES * at..SCALE_BYTES * (at + 1))?;
        let part = |n: usize| f32::from_bits(read_u32(&bytes[4 * n..4 * n + 4]));
        Ok(CodeScale { square: part(0), scale: part(1), error: part(2) })
    }

    /// The scales of all vectors.
    pub fn scales(&self) -> VectorFileResult<Cow<'_, [f32]>> {
        Ok(floats_from_bytes(self.section(SCALES, 0..SCALE_BYTES * self.len())?))
    }

    pub fn codes(&self, range: Range<usize>) -> VectorFileResult<&[i8]> {
        let dimensions = self.header.dimensions as usize;
        Ok(codes_from_bytes(self.section(CODES, dimensions * range.start..dimensions * range.end)?))
    }

    pub fn row(&self, at: usize) -> VectorFileResult<Cow<'_, [f32]>> {
        let bytes = 4 * self.header.dimensions as usize;
        Ok(floats_from_bytes(self.section(ROWS, bytes * at..bytes * (at + 1))?))
    }

    /// The slots of a node in the graph's lowest level; empty if there is no graph.
    pub fn slots(&self, at: usize) -> VectorFileResult<&[[u8; 4]]> {
        let bytes = 4 * self.header.slots.0 as usize;
        Ok(self.section(GRAPH, bytes * at..bytes * (at + 1))?.as_chunks::<4>().0)
    }

    /// The graph's upper levels.
    pub fn upper(&self) -> VectorFileResult<&[u8]> {
        self.section(GRAPH_UPPER, 0..index(self.header.sections[GRAPH_UPPER].1))
    }
}

/// The little-endian number in four bytes.
fn read_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The little-endian number in eight bytes.
fn read_u64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
