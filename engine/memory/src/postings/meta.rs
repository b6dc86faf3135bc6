//! The list of a partition's parts.

use annals_store::codec::{ByteReader, CodecError, put_varint};

const VERSION: u8 = 1;
/// Maximum number of parts that a list may name.
const PARTS_MAX: u64 = 1 << 20;

/// A part, as the list names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct PartInfo {
    pub(super) id: u32,
    /// Number of entries.
    pub(in super::super) count: u32,
    /// Number of buckets: a power of two.
    pub(in super::super) buckets: u32,
    /// Bytes of its postings, by which the next part's buckets are planned.
    pub(super) bytes: u64,
}

/// What is known of a partition's index. A partition without this has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct PartList {
    /// Numbers from this one on are in the tail.
    pub(super) tail_from: u64,
    pub(super) next_id: u32,
    /// The oldest first.
    pub(in super::super) parts: Vec<PartInfo>,
}

impl PartList {
    pub(in super::super) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.tail_from);
        put_varint(&mut out, u64::from(self.next_id));
        put_varint(&mut out, self.parts.len() as u64);
        for part in &self.parts {
            for number in [part.id, part.count, part.buckets] {
                put_varint(&mut out, u64::from(number));
            }
            put_varint(&mut out, part.bytes);
        }
        out
    }

    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = ByteReader::new(bytes, "the index of memories");
        let version = reader.u8()?;
        if version != VERSION {
            return Err(CodecError::Header(format!("the index of memories has version {version}")));
        }
        let (tail_from, next_id, count) = (reader.varint()?, reader.varint32()?, reader.varint()?);
        let mut parts = Vec::new();
        for _ in 0..count.min(PARTS_MAX) {
            let (id, count, buckets) = (reader.varint32()?, reader.varint32()?, reader.varint32()?);
            let part = PartInfo { id, count, buckets, bytes: reader.varint()? };
            if !part.buckets.is_power_of_two()
                || part.count == 0
                || part.count as usize > super::part::ENTRIES_MAX
            {
                return Err(CodecError::Header(format!("the index of memories has the part {part:?}")));
            }
            parts.push(part);
        }
        reader.finish()?;
        Ok(Self { tail_from, next_id, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_list_round_trips_and_rejects_damage() {
        let parts = vec![
            PartInfo { id: 3, count: 1024, buckets: 256, bytes: 130 },
            PartInfo { id: 9, count: 7, buckets: 1, bytes: 5 },
        ];
        let list = PartList { tail_from: 1 << 40, next_id: 10, parts };
        let bytes = list.bytes();
        assert_eq!(PartList::parse(&bytes).unwrap(), list);
        // Golden: docs/format.md, section 20.
        assert_eq!(bytes, [1, 128, 128, 128, 128, 128, 32, 10, 2, 3, 128, 8, 128, 2, 130, 1, 9, 7, 1, 5]);
        for end in 0..bytes.len() {
            assert!(PartList::parse(&bytes[..end]).is_err(), "{end}");
        }
        assert!(PartList::parse(&[&[2], &bytes[1..]].concat()).is_err(), "an unknown version");
        assert!(PartList::parse(&[1, 0, 1, 1, 0, 5, 3, 0]).is_err(), "three buckets");
        assert!(PartList::parse(&[1, 0, 1, 1, 0, 0, 1, 0]).is_err(), "no entries");
    }
}
