//! The bytes of a vector file, except what is in its sections; docs/format.md has them as a table.
//!
//! ```text
//! header [256] | sections, each at a multiple of 64 | checksums: crc32 of each 64 KiB block before them | their crc32
//! ```
//! The header says where everything is, and has its own checksum. Every other byte is under the checksum of
//! its block. That also covers store, file and block number: a block in another place does not match.

use crate::codec::{ByteReader, CodecError};
use crate::ids::{NamespaceId, Seqno, StoreId};

pub const MAGIC: [u8; 8] = *b"annalvec";
pub const VERSION: u16 = 1;
pub const HEADER_BYTES: usize = 256;
/// Bytes covered by one checksum.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Sections begin at multiples of this, and so do blocks.
pub const ALIGN: usize = 64;
pub const SECTIONS: usize = 8;
/// Maximum number of vectors in a file.
pub const COUNT_MAX: u32 = 1 << 28;

/// Seqnos: a u64 for each vector.
pub const SEQNOS: usize = 0;
/// Where each owner ends in the next section: a u32 for each vector.
pub const OWNER_ENDS: usize = 1;
/// Owners: 1, run u64, frame u32; or 2, keyspace u32, key.
pub const OWNERS: usize = 2;
/// The dot product of each vector with itself, then scale and error of its codes: three f32 each.
pub const SCALES: usize = 3;
/// Codes: a byte for each dimension.
pub const CODES: usize = 4;
/// Vectors: an f32 for each dimension.
pub const ROWS: usize = 5;
/// The graph's lowest level; empty if there is no graph.
pub const GRAPH: usize = 6;
/// The graph's upper levels.
pub const GRAPH_UPPER: usize = 7;

/// The first byte of an owner.
pub const OWNER_SNAPSHOT: u8 = 1;
pub const OWNER_KEY: u8 = 2;

/// Bytes of one vector in [`SCALES`].
pub const SCALE_BYTES: usize = 12;

/// The header of a vector file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorFileHeader {
    pub store: StoreId,
    pub id: u64,
    pub namespace: NamespaceId,
    pub dimensions: u32,
    pub count: u32,
    /// All vectors of its partition up to here are in this file and in those listed before it.
    pub upto: Seqno,
    /// Slots of a node in the graph's lowest level, and in the upper ones.
    pub slots: (u32, u32),
    /// Number of levels above the lowest, and the node in which a search begins.
    pub levels: u32,
    pub entry: u32,
    /// Where each section begins, and how long it is, in bytes.
    pub sections: [(u64, u64); SECTIONS],
}

impl VectorFileHeader {
    /// Where the checksums begin: after the last section.
    pub fn checksums_offset(&self) -> u64 {
        self.sections.iter().map(|(at, len)| at + len).max().unwrap_or(0).max(HEADER_BYTES as u64)
    }

    pub fn block_count(&self) -> u64 {
        self.checksums_offset().div_ceil(BLOCK_BYTES as u64)
    }

    pub fn file_bytes(&self) -> u64 {
        self.checksums_offset() + 4 * self.block_count() + 4
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.namespace.0.to_le_bytes());
        bytes.extend_from_slice(&self.store.0);
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.extend_from_slice(&self.upto.0.to_le_bytes());
        for number in [self.dimensions, self.count, self.slots.0, self.slots.1, self.levels, self.entry] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for (at, len) in self.sections {
            bytes.extend_from_slice(&at.to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
        }
        let mut header = [0; HEADER_BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        let crc = crc32fast::hash(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Reads the header of a file of `file_bytes` bytes, and checks that its fields fit together.
    ///
    /// # Errors
    /// For bytes that no writer wrote.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(bytes, "header of a vector file");
        let whole = r.take(HEADER_BYTES)?;
        let wrong = |what: &'static str, found: u64| CodecError::Unknown { what, found };
        let mut r = ByteReader::new(whole, "header of a vector file");
        if r.array::<8>()? != MAGIC {
            return Err(CodecError::Header("it does not begin as a vector file does".into()));
        }
        let version = r.u16()?;
        if version != VERSION {
            return Err(wrong("version of a vector file", u64::from(version)));
        }
        let crc = crc32fast::hash(&whole[..HEADER_BYTES - 4]).to_le_bytes();
        if whole[HEADER_BYTES - 4..] != crc {
            return Err(CodecError::Header("the checksum of its header does not match".into()));
        }
        r.u16()?;
        let namespace = NamespaceId(r.u32()?);
        let store = StoreId(r.array()?);
        let (id, upto) = (r.u64()?, Seqno(r.u64()?));
        let (dimensions, count) = (r.u32()?, r.u32()?);
        let (slots, levels, entry) = ((r.u32()?, r.u32()?), r.u32()?, r.u32()?);
        let mut sections = [(0, 0); SECTIONS];
        for section in &mut sections {
            *section = (r.u64()?, r.u64()?);
        }
        let header = Self { store, id, namespace, dimensions, count, upto, slots, levels, entry, sections };
        header.check(file_bytes)?;
        Ok(header)
    }

    fn check(&self, file_bytes: u64) -> Result<(), CodecError> {
        let fault = |what: &str| Err(CodecError::Header(what.into()));
        let (count, dimensions) = (u64::from(self.count), u64::from(self.dimensions));
        if self.count > COUNT_MAX
            || dimensions == 0
            || dimensions > crate::kv::embeddings::DIMENSIONS_MAX as u64
        {
            return fault("it claims more vectors or dimensions than a file can have");
        }
        let mut end = HEADER_BYTES as u64;
        for (at, len) in self.sections {
            if at < end || at % ALIGN as u64 != 0 || len > file_bytes || at > file_bytes {
                return fault("its sections overlap or pass its end");
            }
            end = at + len;
        }
        let slots = count * u64::from(self.slots.0) * 4;
        let fixed = [(SEQNOS, 8 * count), (OWNER_ENDS, 4 * count), (SCALES, SCALE_BYTES as u64 * count)];
        let fixed = fixed.into_iter().chain([
            (CODES, dimensions * count),
            (ROWS, 4 * dimensions * count),
            (GRAPH, slots),
        ]);
        for (section, len) in fixed {
            if self.sections[section].1 != len {
                return fault("a section has another length than its vectors need");
            }
        }
        if self.slots.0 > 1024
            || self.slots.1 > 1024
            || self.levels > 64
            || (slots > 0 && self.entry >= self.count)
        {
            return fault("its graph has impossible sizes");
        }
        if self.file_bytes() != file_bytes {
            return fault("it has another length than it says");
        }
        Ok(())
    }
}

/// The checksum of a block.
pub fn block_crc(store: StoreId, id: u64, block: usize, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&store.0);
    hasher.update(&id.to_le_bytes());
    hasher.update(&(block as u64).to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of three vectors of five dimensions with a graph, whose sections follow each other.
    fn header() -> VectorFileHeader {
        let lens = [24, 12, 40, 36, 15, 60, 24, 100];
        let mut at = HEADER_BYTES as u64;
        let sections = lens.map(|len: u64| {
            let begins = at.next_multiple_of(ALIGN as u64);
            at = begins + len;
            (begins, len)
        });
        VectorFileHeader {
            store: StoreId([7; 16]),
            id: 3,
            namespace: NamespaceId(16),
            dimensions: 5,
            count: 3,
            upto: Seqno(9),
            slots: (2, 1),
            levels: 1,
            entry: 2,
            sections,
        }
    }

    /// Encodes a header and reads it again, from a file as long as it says or as long as it should be.
    fn reread(header: &VectorFileHeader) -> Result<VectorFileHeader, CodecError> {
        let has_end = header.sections.iter().all(|(at, len)| at.saturating_add(*len) < 1 << 40);
        let bytes = if has_end { header.file_bytes() } else { self::header().file_bytes() };
        VectorFileHeader::decode(&header.encode(), bytes)
    }

    #[test]
    fn header_round_trips_and_gives_the_file_length() {
        let header = header();
        assert_eq!(reread(&header).unwrap(), header);
        let (at, len) = header.sections[GRAPH_UPPER];
        assert_eq!(
            (header.checksums_offset(), header.block_count(), header.file_bytes()),
            (at + len, 1, at + len + 8)
        );
        // One byte more than a block takes a second checksum.
        let mut long = header.clone();
        long.sections[GRAPH_UPPER].1 = BLOCK_BYTES as u64 - at;
        assert_eq!((long.block_count(), long.file_bytes()), (1, BLOCK_BYTES as u64 + 8));
        long.sections[GRAPH_UPPER].1 += 1;
        assert_eq!((long.block_count(), long.file_bytes()), (2, BLOCK_BYTES as u64 + 13));
        assert_eq!(reread(&long).unwrap(), long);
        // Golden: docs/format.md; the checksum was computed by another program from its table.
        let bytes = header.encode();
        assert_eq!(bytes[..16], *b"annalvec\x01\0\0\0\x10\0\0\0");
        assert_eq!(bytes[252..], 0x0a1e6bb5_u32.to_le_bytes());
    }

    /// Each header has a correct checksum, as an attacker would write it.
    #[test]
    fn headers_over_their_limits_are_refused() {
        let refused = |what: &str, change: &dyn Fn(&mut VectorFileHeader)| {
            let mut header = header();
            change(&mut header);
            assert!(reread(&header).is_err(), "{what}: {header:?}");
        };
        let taken = |what: &str, change: &dyn Fn(&mut VectorFileHeader)| {
            let mut header = header();
            change(&mut header);
            assert_eq!(reread(&header).unwrap(), header, "{what}");
        };
        for section in 0..SECTIONS {
            refused("a section that begins before the one before ends", &|h| {
                h.sections[section].0 -= ALIGN as u64
            });
            refused("one that is nowhere", &|h| h.sections[section].0 = u64::MAX - 63);
            refused("one without an end", &|h| h.sections[section].1 = u64::MAX - 4096);
            refused("one at an odd place", &|h| h.sections[section..].iter_mut().for_each(|one| one.0 += 1));
            // The vectors do not determine how much owners and upper levels take.
            if ![OWNERS, GRAPH_UPPER].contains(&section) {
                refused("one vector's too long", &|h| h.sections[section].1 += 1);
                refused("too short", &|h| h.sections[section].1 -= 1);
            }
        }
        refused("a section in the header", &|h| h.sections[0].0 = 0);
        taken("room between", &|h| h.sections[GRAPH_UPPER].0 += ALIGN as u64);
        taken("no upper level", &|h| h.sections[GRAPH_UPPER].1 = 0);
        let empty = |h: &mut VectorFileHeader, count, dimensions| {
            (h.count, h.dimensions, h.slots) = (count, dimensions, (0, 0));
            let lens = [8, 4, 0, SCALE_BYTES as u64, u64::from(dimensions), 4 * u64::from(dimensions), 0, 0];
            let mut at = HEADER_BYTES as u64;
            h.sections = lens.map(|len| {
                let begins = at.next_multiple_of(ALIGN as u64);
                at = begins + len * u64::from(count);
                (begins, len * u64::from(count))
            });
        };
        taken("as many as there can be", &|h| empty(h, COUNT_MAX, 1));
        refused("one more", &|h| empty(h, COUNT_MAX + 1, 1));
        let most = crate::kv::embeddings::DIMENSIONS_MAX as u32;
        taken("as many dimensions", &|h| empty(h, 1, most));
        refused("one more", &|h| empty(h, 1, most + 1));
        refused("none", &|h| empty(h, 1, 0));
        taken("no vectors", &|h| empty(h, 0, 1));
        refused("an entry that is no vector", &|h| h.entry = 3);
        taken("without a graph it says nothing", &|h| {
            empty(h, 1, 1);
            h.entry = 3;
        });
        taken("the widest graph", &|h| {
            (h.slots, h.levels) = ((1024, 1024), 64);
            h.sections[GRAPH].1 = 3 * 1024 * 4;
            h.sections[GRAPH_UPPER].0 += 3 * 1024 * 4;
        });
        refused("a wider one", &|h| {
            h.slots.0 = 1025;
            h.sections[GRAPH].1 = 3 * 1025 * 4;
            h.sections[GRAPH_UPPER].0 += 4 * 1024 * 4;
        });
        refused("a wider one above", &|h| h.slots.1 = 1025);
        refused("more levels", &|h| h.levels = 65);
        let (header, bytes) = (header(), header().encode());
        for other in [header.file_bytes() - 1, header.file_bytes() + 1] {
            assert!(VectorFileHeader::decode(&bytes, other).is_err(), "a file of another length");
        }
        for at in 0..HEADER_BYTES {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert!(VectorFileHeader::decode(&bytes, header.file_bytes()).is_err(), "a flip at {at}");
            assert!(VectorFileHeader::decode(&bytes[..at], header.file_bytes()).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn block_checksum_covers_store_file_and_number() {
        let (store, other) = (StoreId([7; 16]), StoreId([8; 16]));
        let one = block_crc(store, 3, 1, b"bytes");
        for crc in [
            block_crc(other, 3, 1, b"bytes"),
            block_crc(store, 4, 1, b"bytes"),
            block_crc(store, 3, 2, b"bytes"),
            block_crc(store, 3, 1, b"byte"),
        ] {
            assert_ne!(crc, one);
        }
    }
}
