//! The bytes of a table file, version 4. Version 3 is the same without key coding 2; it is read and not written.
//!
//! All fixed-width numbers are little-endian. `varint` is unsigned LEB128 of at most 64 bits. Every byte of a
//! file is under a crc32 (the IEEE polynomial, as in zip). Sorted means: key ascending by unsigned bytes, a
//! shorter key before those it begins; then seqno descending. No two entries share key and seqno.
//!
//! ```text
//! file    = header block* index footer
//! header  = magic "ANNALTBL" | version u32 = 4                                    12 bytes
//! footer  = index offset u64 | block count u32 | entry count u64
//!         | store uuid [16] | table id u64
//!         | covers: segment u64, offset u64, seqno u64
//!         | index crc u32 | footer crc u32                                        76 bytes
//! ```
//! The index crc is over the index. The footer crc is over the header, then the footer without its crc.
//!
//! ```text
//! index   = (block offset u64 | separator end u32){block count} separator{block count}
//! separator = varint(!seqno) | key
//! ```
//! Blocks touch: the first begins at 12, each ends where the next begins, the last where the index begins. A
//! separator ends at its `separator end`, counted from the first separator, and begins where the one before
//! it ends. In the order of entries it is greater than the last entry of the block before, and not greater
//! than the first entry of its own block. The first is the empty key with seqno 2^64-1. `!seqno` is
//! 2^64-1-seqno. A separator between two keys is cut to one byte more than they share, and has seqno 2^64-1.
//!
//! ```text
//! block   = words varint | (filter crc u32 | filter [words * 32])? | body crc u32 | body
//! ```
//! The filter and its crc exist only if `words` is not 0. Both crcs are over the salt, then the filter or the
//! body. The salt is: store uuid [16] | table id u64 | block offset u64 | words u32. So a block is valid only
//! in its own place of its own table.
//!
//! A filter is `words` words of 8 lanes of 4 bytes. With m = SplitMix64's finisher (`filter.rs`), a key's
//! numbers are h = m(store[0..8] ^ length), then h = m(h ^ word) for each of its 8-byte words, the last
//! padded with zeros, and g = m(h ^ 0x9e3779b97f4a7c15). The key has the word `(h >> 32) * words >> 32` and
//! in lane j the bit `g >> 5j & 31` (bit k is bit k%8 of the lane's byte k/8). A key of the block has all
//! eight bits set.
//!
//! ```text
//! body    = entries varint | keys varint | key coding u8 | head length varint | head | rests
//!         | which | seqno | kind | a | b | c
//! rests   = coding 0: ends column | bytes up to the last end
//!         | coding 1: tail u8 | tails column
//!         | coding 2: high u8 | low u8 | highs column | lows column
//! ```
//! `which`, `seqno`, `kind`, `a`, `b` and `c` are columns of a number for each entry; `which` is the number
//! of its key, from 0. Each of the block's keys is stored once, and all begin with `head`. Coding 0: the rest
//! of a key is the bytes from the end before it (0 for the first) to its own. Coding 1: it is the number,
//! `tail` bytes (0 to 8), big-endian. Coding 2: it is two such numbers, one of `high` and one of `low` bytes (0
//! to 8 each), as of a run and its frame.
//!
//! ```text
//! column  = zigzag base varint | zigzag slope varint | width u8 | bits [ceil(n * width / 8)]
//! ```
//! Number i, from 0, is `base + slope * i + bits i`, modulo 2^64; `width` is 0 to 64. Bits fill each byte
//! from its lowest; the last byte is padded with zeros. zigzag is that of a 64-bit two's complement number.
//!
//! Limits that a reader enforces: [`KEY_LEN_MAX`], [`BLOCK_ENTRIES_MAX`], [`BLOCK_KEYS_MAX`].
//! Not in the file: the key range and any count of keys. The first and last block give them if they are
//! needed.

use super::cursor::TableByteCursor;
use super::entry::{TableCoverage, TableMeta};
use super::error::{TableError, TableResult};

/// The first bytes of a table file.
pub(super) const MAGIC: [u8; 8] = *b"ANNALTBL";
/// The format this build writes.
pub(super) const VERSION: u32 = 4;
/// The oldest format that this build reads.
const OLDEST_VERSION: u32 = 3;
/// Bytes before the first block.
pub(super) const HEADER_LEN: usize = 12;
/// Bytes after the index.
pub(super) const FOOTER_LEN: usize = 76;
/// Maximum length of a key, in bytes.
pub(crate) const KEY_LEN_MAX: usize = 70_000;
/// Maximum number of entries in a block.
pub(super) const BLOCK_ENTRIES_MAX: usize = 4096;
/// Maximum length of the keys of all entries of a block together, in bytes.
pub(super) const BLOCK_KEYS_MAX: usize = 256 * 1024;

/// Coding 0: keys have rests of any length.
pub(super) const KEYS_BY_END: u8 = 0;
/// Coding 1: keys have rests of one length, at most [`NUMBER_MAX`] bytes.
pub(super) const KEYS_BY_TAIL: u8 = 1;
/// Coding 2: keys have rests of two numbers, each of at most [`NUMBER_MAX`] bytes.
pub(super) const KEYS_BY_PAIR: u8 = 2;
/// Maximum bytes of a number of a rest.
pub(super) const NUMBER_MAX: usize = 8;

const _: () = assert!(KEY_LEN_MAX < BLOCK_KEYS_MAX);

/// The fields of a footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableFooter {
    pub(super) index_offset: u64,
    pub(super) block_count: u32,
    pub(super) entry_count: u64,
    pub(super) meta: TableMeta,
    pub(super) index_crc: u32,
}

/// The bytes before the first block.
pub(super) fn header() -> [u8; HEADER_LEN] {
    header_of(VERSION)
}

fn header_of(version: u32) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..].copy_from_slice(&version.to_le_bytes());
    out
}

/// Whether a file is a whole table of a version that is not read any more. Its footer's checksum covers the version, so a changed
/// version is not taken for an earlier one.
pub(crate) fn is_earlier_version(file: &[u8]) -> bool {
    let Some((fields, crc)) = file.split_last_chunk::<4>() else { return false };
    let Some((_, fields)) = fields.split_last_chunk::<{ FOOTER_LEN - 4 }>() else { return false };
    (1..OLDEST_VERSION).any(|version| {
        let header = header_of(version);
        file.starts_with(&header) && crc_of(&header, fields) == u32::from_le_bytes(*crc)
    })
}

/// The crc of a block's filter or body.
pub(super) fn block_crc(meta: &TableMeta, offset: u64, words: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&meta.store);
    hasher.update(&meta.id.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(&words.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

fn crc_of(header: &[u8], footer: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(footer);
    hasher.finalize()
}

impl TableFooter {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_LEN);
        out.extend_from_slice(&self.index_offset.to_le_bytes());
        out.extend_from_slice(&self.block_count.to_le_bytes());
        out.extend_from_slice(&self.entry_count.to_le_bytes());
        out.extend_from_slice(&self.meta.store);
        out.extend_from_slice(&self.meta.id.to_le_bytes());
        out.extend_from_slice(&self.meta.covers.segment.to_le_bytes());
        out.extend_from_slice(&self.meta.covers.offset.to_le_bytes());
        out.extend_from_slice(&self.meta.covers.seqno.to_le_bytes());
        out.extend_from_slice(&self.index_crc.to_le_bytes());
        let crc = crc_of(&header(), &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads header and footer of a whole file, and the bytes between them.
    pub(super) fn decode(file: &[u8]) -> TableResult<(Self, &[u8])> {
        let len = file.len() as u64;
        let not = |what| TableError::NotATable { len, what };
        let mut cursor = TableByteCursor::new(file);
        if cursor.array().ok_or_else(|| not("no room for a header"))? != MAGIC {
            return Err(not("its first bytes are not a table's"));
        }
        let found = cursor.u32().ok_or_else(|| not("no room for a header"))?;
        if !(OLDEST_VERSION..=VERSION).contains(&found) {
            return Err(TableError::UnknownVersion { found, known: VERSION });
        }
        let (middle, footer) =
            cursor.rest().split_last_chunk::<FOOTER_LEN>().ok_or_else(|| not("no room for a footer"))?;
        let offset = (HEADER_LEN + middle.len()) as u64;
        let this = Self::checked_fields(found, footer).ok_or(TableError::Damaged {
            table: 0,
            offset,
            what: "the footer's checksum does not match",
        })?;
        Ok((this, middle))
    }

    /// `None` if the crc does not match.
    fn checked_fields(version: u32, footer: &[u8; FOOTER_LEN]) -> Option<Self> {
        let (fields, crc) = footer.split_last_chunk::<4>()?;
        if crc_of(&header_of(version), fields) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut cursor = TableByteCursor::new(fields);
        Some(Self {
            index_offset: cursor.u64()?,
            block_count: cursor.u32()?,
            entry_count: cursor.u64()?,
            meta: TableMeta {
                store: cursor.array()?,
                id: cursor.u64()?,
                covers: TableCoverage { segment: cursor.u64()?, offset: cursor.u64()?, seqno: cursor.u64()? },
            },
            index_crc: cursor.u32()?,
        })
    }
}
