//! A split-block Bloom filter of a block's keys (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient
//! Bloom Filters, 2007; split into lanes as in Apache Impala and Parquet).
//!
//! The 128 bits it needs come from BLAKE3 of the key, so no mixing constants are part of the format, and keys
//! cannot be chosen to fill it. Each block has its own filter: a table then streams out in bounded memory, and
//! the filter is read only after the index named the block.

/// Whether a table's blocks get filters. A filter costs 10 bits for each distinct key and spares a lookup of
/// a missing key the decoding of a block, except about one time in a hundred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Only blocks that begin at or after 64 KiB of the file: a small table does not pay for one.
    #[default]
    Auto,
    /// No block.
    #[cfg(test)]
    Never,
    /// Every block.
    #[cfg(test)]
    Always,
}

/// Where `Filter::Auto` begins, in bytes from the start of the file.
const AUTO_FROM: u64 = 64 * 1024;
/// Bits for each key.
const KEY_BITS: usize = 10;
/// Bytes of a word: eight lanes of 32 bits, one bit set in each for each key.
pub(super) const WORD_LEN: usize = 32;

impl Filter {
    pub(super) fn wants(self, offset: u64) -> bool {
        match self {
            Self::Auto => offset >= AUTO_FROM,
            #[cfg(test)]
            Self::Never => false,
            #[cfg(test)]
            Self::Always => true,
        }
    }
}

/// The word and the byte and bit in each lane that a key sets.
fn marks(key: &[u8], words: usize) -> (usize, [(usize, u8); 8]) {
    let hash = blake3::hash(key);
    let hash = hash.as_bytes();
    let place = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]);
    // `place` scaled down to 0..words keeps the widest use of its bits (Lemire 2019).
    let word = usize::try_from((u64::from(place) * words as u64) >> 32).unwrap_or(0);
    let picks =
        u64::from_le_bytes([hash[8], hash[9], hash[10], hash[11], hash[12], hash[13], hash[14], hash[15]]);
    let lanes = std::array::from_fn(|lane| {
        let bit = ((picks >> (5 * lane)) & 31).to_le_bytes()[0];
        (lane * 4 + usize::from(bit / 8), 1 << (bit % 8))
    });
    (word, lanes)
}

/// Makes the filter of distinct keys.
pub(super) fn build<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let words = (keys.len() * KEY_BITS).div_ceil(WORD_LEN * 8).max(1);
    let mut bytes = vec![0; words * WORD_LEN];
    for key in keys {
        let (word, lanes) = marks(key, words);
        for (at, bit) in lanes {
            if let Some(byte) = bytes.get_mut(word * WORD_LEN + at) {
                *byte |= bit;
            }
        }
    }
    bytes
}

/// Whether `key` may be among the keys; a filter of no words holds no opinion.
pub(super) fn may_hold(filter: &[u8], key: &[u8]) -> bool {
    let words = filter.len() / WORD_LEN;
    if words == 0 {
        return true;
    }
    let (word, lanes) = marks(key, words);
    lanes.iter().all(|(at, bit)| filter.get(word * WORD_LEN + at).is_none_or(|byte| byte & bit != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_its_keys_and_few_others() {
        let keys: Vec<[u8; 4]> = (0..400u32).map(u32::to_be_bytes).collect();
        let filter = build(keys.iter().map(|key| &key[..]));
        assert!(filter.len() * 8 <= keys.len() * KEY_BITS + WORD_LEN * 8);
        assert!(keys.iter().all(|key| may_hold(&filter, key)));
        let wrong = (1000..21_000u32).filter(|n| may_hold(&filter, &n.to_be_bytes())).count();
        println!("filter: {wrong} of 20000 missing keys pass");
        assert!(wrong < 600, "{wrong} of 20000");
    }
}
