//! SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): small,
//! seeded by any number, good enough to choose what a crash keeps. Not for secrets.

#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a usize")]
        let number = (self.next() % end as u64) as usize;
        number
    }

    pub(super) fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the authors' reference program for seed 0.
    #[test]
    fn splitmix64_matches_the_reference() {
        let mut rng = SplitMix64::new(0);
        let numbers = [rng.next(), rng.next(), rng.next()];
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        let mut bytes = [0; 19];
        SplitMix64::new(0).fill(&mut bytes);
        assert_eq!(bytes[..8], numbers[0].to_le_bytes());
        assert_eq!(bytes[8..16], numbers[1].to_le_bytes());
        assert_eq!(bytes[16..], numbers[2].to_le_bytes()[..3]);
    }
}
