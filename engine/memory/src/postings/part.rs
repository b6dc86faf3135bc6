//! A part: the postings of some entries of a partition, in buckets, and the table of these entries.

use annals_store::codec::{ByteReader, CodecError, put_signed, put_varint};

use super::super::words::CardRead;
use super::bitmap::Bitmap;

/// Maximum number of entries of a part: their bits take 3 KiB, so that a bucket is seldom longer than a value that
/// stands in its record.
pub(in super::super) const ENTRIES_MAX: usize = 24 << 10;
/// The usual size of a bucket in bytes.
const BUCKET_BYTES: usize = 2 << 10;
const BUCKETS_MAX: u32 = 1 << 16;
/// Entries in a block of the table.
pub(super) const TABLE_BLOCK: u32 = 1024;
/// The bucket numbers of the table's blocks begin here.
const TABLE_FROM: u32 = 1 << 31;

/// What a posting is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Term {
    /// A word of the query, the answer or the narrative.
    Main(u32),
    /// A word elsewhere.
    Other(u32),
    Gram(u16),
    Identifier(u64),
}

impl Term {
    pub(super) fn parts(self) -> (u8, u64) {
        match self {
            Self::Main(word) => (0, u64::from(word)),
            Self::Other(word) => (1, u64::from(word)),
            Self::Gram(gram) => (2, u64::from(gram)),
            Self::Identifier(one) => (3, one),
        }
    }

    fn of_parts(kind: u8, value: u64) -> Option<Self> {
        match kind {
            0 => value.try_into().ok().map(Self::Main),
            1 => value.try_into().ok().map(Self::Other),
            2 => value.try_into().ok().map(Self::Gram),
            3 => Some(Self::Identifier(value)),
            _ => None,
        }
    }

    /// The bucket of a part with this many.
    pub(super) fn bucket(self, buckets: u32) -> u32 {
        let (kind, value) = self.parts();
        // The golden ratio's bits: neighbouring values fall far apart.
        let mixed = (value ^ (u64::from(kind) << 61)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let upper = (mixed >> 32) as u32;
        // The upper bits, so that a part with twice the buckets splits each bucket in two.
        if buckets <= 1 { 0 } else { upper >> (32 - buckets.trailing_zeros()) }
    }
}

/// The key of a bucket, or of a block of the table.
pub(super) fn bucket_key(partition: &[u8; 16], part: u32, bucket: u32) -> Vec<u8> {
    [&partition[..], &part.to_be_bytes(), &bucket.to_be_bytes()].concat()
}

/// The key of a block of the table.
pub(super) fn table_key(partition: &[u8; 16], part: u32, block: u32) -> Vec<u8> {
    bucket_key(partition, part, TABLE_FROM | block)
}

/// The start of all keys of a part.
pub(super) fn part_prefix(partition: &[u8; 16], part: u32) -> Vec<u8> {
    [&partition[..], &part.to_be_bytes()].concat()
}

/// Calls `each` with every term of a card.
pub(in super::super) fn for_each_term(card: &CardRead<'_>, each: &mut dyn FnMut(Term)) {
    card.main_words().for_each(|word| each(Term::Main(word)));
    card.other_words().for_each(|word| each(Term::Other(word)));
    card.all_grams().for_each(|gram| each(Term::Gram(gram)));
    card.all_identifiers().for_each(|one| each(Term::Identifier(one)));
}

/// Number of buckets for postings of this many bytes.
pub(super) fn bucket_count(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BUCKET_BYTES))
        .unwrap_or(BUCKETS_MAX)
        .clamp(1, BUCKETS_MAX)
        .next_power_of_two()
}

/// Calls `each` with each term of a bucket and its postings as they stand there.
pub(super) fn for_each_posting<'a>(
    bytes: &'a [u8],
    each: &mut dyn FnMut(Term, &'a [u8]) -> Result<(), CodecError>,
) -> Result<(), CodecError> {
    let mut reader = ByteReader::new(bytes, "postings of memories");
    while !reader.is_empty() {
        let (kind, value) = (reader.u8()?, reader.varint()?);
        let term = Term::of_parts(kind, value)
            .ok_or_else(|| CodecError::Header(format!("postings of memories have a term of kind {kind}")))?;
        let length = reader.varint32()? as usize;
        each(term, reader.take(length)?)?;
    }
    Ok(())
}

/// An entry in a part's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableRow {
    pub(super) number: u64,
    /// The first bytes of the BLAKE3 of the identity's name.
    pub(super) identity: u64,
    pub(super) tier: u8,
    pub(super) ttl_ms: Option<i64>,
}

/// The hash of an identity in a table.
pub(super) fn identity_hash(name: &str) -> u64 {
    blake3::hash(name.as_bytes()).as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// An entry's row in a part's table.
pub(in super::super) trait PartRow: Copy {
    /// Appends the row. `before` is the row before it in its block.
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>);
    /// Reads a row that [`PartRow::put`] wrote.
    fn read(before: Option<&Self>, reader: &mut ByteReader<'_>) -> Result<Self, CodecError>;
}

impl PartRow for TableRow {
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        put_varint(out, self.number.wrapping_sub(before.map_or(0, |row| row.number.wrapping_add(1))));
        out.extend(self.identity.to_le_bytes());
        out.push(self.tier << 1 | u8::from(self.ttl_ms.is_some()));
        if let Some(ttl) = self.ttl_ms {
            put_signed(out, ttl);
        }
    }

    fn read(before: Option<&Self>, reader: &mut ByteReader<'_>) -> Result<Self, CodecError> {
        let number = before.map_or(0, |row| row.number.wrapping_add(1)).wrapping_add(reader.varint()?);
        let (identity, flags) = (reader.u64()?, reader.u8()?);
        let ttl_ms = if flags & 1 == 1 { Some(reader.signed()?) } else { None };
        Ok(Self { number, identity, tier: flags >> 1, ttl_ms })
    }
}

pub(super) fn table_block_bytes<R: PartRow>(rows: &[R]) -> Vec<u8> {
    let (mut out, mut before) = (Vec::new(), None);
    for row in rows {
        row.put(before, &mut out);
        before = Some(row);
    }
    out
}

pub(super) fn read_table_block<R: PartRow>(bytes: &[u8], rows: &mut Vec<R>) -> Result<(), CodecError> {
    let mut reader = ByteReader::new(bytes, "the table of an index of words");
    let mut before = None;
    while !reader.is_empty() {
        let row = R::read(before.as_ref(), &mut reader)?;
        rows.push(row);
        before = Some(row);
    }
    Ok(())
}

/// A part's table, as a recall uses it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: Vec<TableRow>,
    /// When entries expire, and which, the earliest first.
    expiries: Vec<(i64, u16)>,
}

impl Table {
    pub(super) fn new(rows: Vec<TableRow>) -> Self {
        let ends = rows.iter().zip(0u16..).filter_map(|(row, ordinal)| Some((row.ttl_ms?, ordinal)));
        let mut expiries: Vec<(i64, u16)> = ends.collect();
        expiries.sort_unstable();
        Self { rows, expiries }
    }

    /// The entries that are neither removed nor expired.
    pub(super) fn living(&self, removed: &[u64], now_ms: i64) -> Bitmap {
        let mut living = Bitmap::full(self.rows.len());
        let mut dead = Bitmap::empty(self.rows.len());
        for (_, ordinal) in self.expiries.iter().take_while(|(ttl, _)| *ttl <= now_ms) {
            dead.insert(usize::from(*ordinal));
        }
        for ordinal in removed.iter().filter_map(|number| self.ordinal_of(*number)) {
            dead.insert(ordinal);
        }
        living.remove_all(&dead);
        living
    }

    pub(super) fn ordinal_of(&self, number: u64) -> Option<usize> {
        self.rows.binary_search_by_key(&number, |row| row.number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_split_in_two() {
        let values = 0..500u32;
        let terms = values.flat_map(|value| {
            [
                Term::Main(value),
                Term::Other(value),
                Term::Gram(value as u16),
                Term::Identifier(u64::from(value) << 40),
            ]
        });
        let mut loads = [0usize; 64];
        for term in terms {
            assert_eq!(term.bucket(1), 0);
            assert_eq!(term.bucket(64), term.bucket(128) / 2, "{term:?}");
            loads[term.bucket(64) as usize] += 1;
        }
        assert!(loads.iter().all(|load| (8..80).contains(load)), "{loads:?}");
        assert!(for_each_posting(&[4, 0, 1, 0], &mut |_, _| Ok(())).is_err(), "an unknown kind");
        assert!(for_each_posting(&[2, 128, 128, 4, 0], &mut |_, _| Ok(())).is_err(), "an n-gram of 17 bits");
    }

    #[test]
    fn table_round_trips_and_knows_the_living() {
        let row = |number, ttl_ms| TableRow { number, identity: number ^ 77, tier: 2, ttl_ms };
        let rows = vec![row(5, None), row(6, Some(-3)), row(900, Some(50)), row(u64::MAX, None)];
        let mut back: Vec<TableRow> = Vec::new();
        read_table_block(&table_block_bytes(&rows[..3]), &mut back).unwrap();
        read_table_block(&table_block_bytes(&rows[3..]), &mut back).unwrap();
        assert_eq!(back, rows);
        let table = Table::new(rows);
        assert_eq!(table.living(&[5, 7], 49).iter().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(table.living(&[], 50).iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(table.living(&[], -4).count(), 4);
    }
}
