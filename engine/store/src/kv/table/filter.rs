//! A split-block Bloom filter of a block's keys (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient
//! Bloom Filters, 2007; split into lanes as in Apache Impala and Parquet).
//!
//! Its 128 bits are mixed from the key and the store's random id (SplitMix64's finisher), so that a stranger
//! cannot choose keys that fill it. Each block has its own filter. So a table is written in bounded memory,
//! and the filter is read only after the index has named the block.

use super::entry::TableMeta;

/// Which of a table's blocks get filters. A filter costs 10 bits for each distinct key. It spares a lookup of
/// a missing key the decoding of a block, except about once in a hundred lookups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FilterPolicy {
    /// Only blocks that begin at or after 64 KiB of the file: a small table does not gain from one.
    #[default]
    Auto,
    /// No block.
    #[cfg(test)]
    Never,
    /// Every block.
    #[cfg(test)]
    Always,
}

/// Where `FilterPolicy::Auto` begins, in bytes from the start of the file.
const AUTO_FROM: u64 = 64 * 1024;
/// Bits for each key.
const KEY_BITS: usize = 10;
/// Bytes of a word: eight lanes of 32 bits, one bit set in each for each key.
pub(super) const WORD_LEN: usize = 32;

impl FilterPolicy {
    pub(super) fn applies_at(self, offset: u64) -> bool {
        match self {
            Self::Auto => offset >= AUTO_FROM,
            #[cfg(test)]
            Self::Never => false,
            #[cfg(test)]
            Self::Always => true,
        }
    }
}

/// SplitMix64's finisher (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Two numbers of a key in a store. `layout.rs` specifies them.
fn hash(meta: &TableMeta, key: &[u8]) -> (u64, u64) {
    let mut seed = [0; 8];
    seed.copy_from_slice(&meta.store[..8]);
    let mut h = mix(u64::from_le_bytes(seed) ^ key.len() as u64);
    for chunk in key.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = mix(h ^ u64::from_le_bytes(word));
    }
    (h, mix(h ^ SECOND_HASH_SEED))
}

/// Makes the second number differ from the first.
const SECOND_HASH_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The word that a key sets, and the byte and bit in each lane.
fn filter_bits(meta: &TableMeta, key: &[u8], words: usize) -> (usize, [(usize, u8); 8]) {
    let (place, picks) = hash(meta, key);
    // Scaling the upper half down to 0..words uses its bits best (Lemire 2019).
    let word = usize::try_from(((place >> 32) * words as u64) >> 32).unwrap_or(0);
    let lanes = std::array::from_fn(|lane| {
        let bit = ((picks >> (5 * lane)) & 31).to_le_bytes()[0];
        (lane * 4 + usize::from(bit / 8), 1 << (bit % 8))
    });
    (word, lanes)
}

/// Builds the filter of distinct keys.
pub(super) fn build<'a>(meta: &TableMeta, keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let words = (keys.len() * KEY_BITS).div_ceil(WORD_LEN * 8).max(1);
    let mut bytes = vec![0; words * WORD_LEN];
    for key in keys {
        let (word, lanes) = filter_bits(meta, key, words);
        for (at, bit) in lanes {
            if let Some(byte) = bytes.get_mut(word * WORD_LEN + at) {
                *byte |= bit;
            }
        }
    }
    bytes
}

/// Whether `key` may be among the keys. Always true for a filter without words.
pub(super) fn may_contain(meta: &TableMeta, filter: &[u8], key: &[u8]) -> bool {
    let words = filter.len() / WORD_LEN;
    if words == 0 {
        return true;
    }
    let (word, lanes) = filter_bits(meta, key, words);
    lanes.iter().all(|(at, bit)| filter.get(word * WORD_LEN + at).is_none_or(|byte| byte & bit != 0))
}

#[cfg(test)]
mod tests {
    use super::super::tests::META;
    use super::*;

    #[test]
    fn filter_passes_its_keys_and_few_others() {
        let keys: Vec<[u8; 4]> = (0..400u32).map(u32::to_be_bytes).collect();
        let filter = build(&META, keys.iter().map(|key| &key[..]));
        assert!(filter.len() * 8 <= keys.len() * KEY_BITS + WORD_LEN * 8);
        assert!(keys.iter().all(|key| may_contain(&META, &filter, key)));
        let wrong = (1000..21_000u32).filter(|n| may_contain(&META, &filter, &n.to_be_bytes())).count();
        println!("filter: {wrong} of 20000 missing keys pass");
        assert!(wrong < 600, "{wrong} of 20000");
    }
}
