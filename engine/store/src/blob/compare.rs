//! Compares a body with the previous one and finds equal ranges by comparing bytes, without hashing.
//!
//! The common front and tail come first. Where the middle differs (a time in the head, a marker that moved),
//! the comparison resynchronises. It takes short probes of one body just past the mismatch and searches for
//! them in the other. Anchors find what this misses.

use memchr::memmem;

/// `len` equal bytes at `new` and at `old`, each counted from its body's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonRange {
    pub new: usize,
    pub old: usize,
    pub len: usize,
}

/// Bytes of a probe.
const PROBE_BYTES: usize = 32;
/// How far past a mismatch a probe is searched for, in bytes.
const PROBE_REACH_BYTES: usize = 8 * 1024;
/// Minimum length of the shorter remainder where anchors find a repeat, too, at less cost.
pub(super) const RESYNC_BYTES_BESIDE_ANCHORS: usize = 8 * 1024;
/// The same without anchors.
pub const RESYNC_BYTES_MIN: usize = 1024;
/// Offsets past the mismatch at which probes are taken.
const PROBE_OFFSETS: [usize; 10] = [0, 8, 24, 56, 120, 248, 504, 1016, 2040, 4088];

/// Length of the common front.
pub fn common_front(a: &[u8], b: &[u8]) -> usize {
    const STRIDE: usize = 1024;
    let most = a.len().min(b.len());
    let (a, b) = (&a[..most], &b[..most]);
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE));
    let mut at = STRIDE * strides.take_while(|(x, y)| x == y).count();
    // Arrays are compared as numbers, slices by a call.
    let words = a[at..].as_chunks::<8>().0.iter().zip(b[at..].as_chunks::<8>().0);
    at += 8 * words.take_while(|(x, y)| x == y).count();
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

/// Length of the common tail.
pub fn common_tail(a: &[u8], b: &[u8]) -> usize {
    const STRIDE: usize = 1024;
    let most = a.len().min(b.len());
    let (a, b) = (&a[a.len() - most..], &b[b.len() - most..]);
    let strides = a.rchunks_exact(STRIDE).zip(b.rchunks_exact(STRIDE));
    let mut left = most - STRIDE * strides.take_while(|(x, y)| x == y).count();
    let words = a[..left].as_rchunks::<8>().1.iter().rev().zip(b[..left].as_rchunks::<8>().1.iter().rev());
    left -= 8 * words.take_while(|(x, y)| x == y).count();
    let bytes = a[..left].iter().rev().zip(b[..left].iter().rev());
    most - left + bytes.take_while(|(x, y)| x == y).count()
}

/// The equal ranges of both bodies, each at least `least` long, in ascending order in both. Remainders shorter than
/// `resync_min` are not resynchronised.
pub fn compare(new: &[u8], old: &[u8], least: usize, resync_min: usize) -> Vec<CommonRange> {
    let mut out = Vec::new();
    let front = common_front(new, old);
    let tail = common_tail(&new[front..], &old[front..]);
    let (new_end, old_end) = (new.len() - tail, old.len() - tail);
    let mut keep = |same: CommonRange| {
        if same.len >= least {
            out.push(same);
        }
    };
    keep(CommonRange { new: 0, old: 0, len: front });
    let (mut at_new, mut at_old) = (front, front);
    // Bounds the search by the size of the bodies, whatever they contain.
    let mut budget = 256 * 1024 + 8 * (new.len() + old.len());
    while let Some(found) =
        resync(&new[at_new..new_end], &old[at_old..old_end], least, resync_min, &mut budget)
    {
        let same = CommonRange { new: at_new + found.new, old: at_old + found.old, len: found.len };
        keep(same);
        (at_new, at_old) = (same.new + same.len, same.old + same.len);
    }
    keep(CommonRange { new: new_end, old: old_end, len: tail });
    out
}

/// The first equal range of at least `least` bytes after a mismatch at the front of both.
fn resync(
    new: &[u8],
    old: &[u8],
    least: usize,
    resync_min: usize,
    budget: &mut usize,
) -> Option<CommonRange> {
    if new.len().min(old.len()) < resync_min {
        return None;
    }
    for at in PROBE_OFFSETS {
        let in_new = find_probe(old, at, new, budget).map(|found| (found, at));
        let in_old = find_probe(new, at, old, budget).map(|found| (at, found));
        let mut best: Option<CommonRange> = None;
        for (n, o) in in_new.into_iter().chain(in_old) {
            // The other probe found the same alignment: comparing again would give the same range.
            if best.is_some_and(|b| b.new.wrapping_sub(b.old) == n.wrapping_sub(o)) {
                continue;
            }
            let back = common_tail(&new[..n], &old[..o]);
            let (n, o) = (n - back, o - back);
            let same = CommonRange { new: n, old: o, len: common_front(&new[n..], &old[o..]) };
            let nearer = best.is_none_or(|b| n + o < b.new + b.old);
            if same.len >= least && nearer {
                best = Some(same);
            }
        }
        if best.is_some() {
            return best;
        }
    }
    None
}

/// The first position of the probe (`from` at `at`) in the front of `within`.
fn find_probe(from: &[u8], at: usize, within: &[u8], budget: &mut usize) -> Option<usize> {
    let probe = from.get(at..at + PROBE_BYTES)?;
    let within = &within[..within.len().min(PROBE_REACH_BYTES)];
    if *budget < within.len() {
        return None;
    }
    *budget -= within.len();
    memmem::find(within, probe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random bytes without repeats.
    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    /// The front of `old` stands at the end of `new`. Both probes match; the match nearer to the mismatch is
    /// taken.
    #[test]
    fn resync_takes_the_match_nearer_to_the_mismatch() {
        let (moved, rest) = (bytes(200, 1), bytes(10_000, 2));
        let (old, new) = ([&moved[..], &rest].concat(), [&rest[..], &moved].concat());
        let mut budget = usize::MAX;
        let found = resync(&new, &old, 64, RESYNC_BYTES_MIN, &mut budget);
        assert_eq!(found, Some(CommonRange { new: 0, old: 200, len: 10_000 }));
        let back = resync(&old, &new, 64, RESYNC_BYTES_MIN, &mut budget);
        assert_eq!(back, Some(CommonRange { new: 200, old: 0, len: 10_000 }));
    }

    #[test]
    fn probe_search_spends_and_respects_its_budget() {
        let (from, within) = (bytes(100, 1), [bytes(50, 2), bytes(100, 1)].concat());
        let mut budget = 150;
        assert_eq!(find_probe(&from, 0, &within, &mut budget), Some(50));
        assert_eq!(budget, 0, "met exactly");
        assert_eq!((find_probe(&from, 0, &within, &mut budget), budget), (None, 0));
        budget = 149;
        assert_eq!((find_probe(&from, 0, &within, &mut budget), budget), (None, 149));
        budget = 1000;
        assert_eq!((find_probe(&from, 68, &within, &mut budget), budget), (Some(118), 850));
        assert_eq!((find_probe(&from, 69, &within, &mut budget), budget), (None, 850), "no whole probe");
        // The search reaches no further than the limit.
        let far = [bytes(PROBE_REACH_BYTES - PROBE_BYTES, 3), bytes(100, 1)].concat();
        budget = 2 * PROBE_REACH_BYTES;
        assert_eq!(
            (find_probe(&from, 0, &far, &mut budget), budget),
            (Some(PROBE_REACH_BYTES - PROBE_BYTES), PROBE_REACH_BYTES)
        );
        assert_eq!((find_probe(&from, 1, &far, &mut budget), budget), (None, 0));
    }

    #[test]
    fn resync_needs_a_minimum_of_remaining_bytes() {
        let (head, rest) = (bytes(100, 1), bytes(RESYNC_BYTES_MIN, 2));
        let taken_up = |left: usize| {
            let (old, new) = ([b"x", &rest[..left - 1]].concat(), [&head[..], &rest[..left - 1]].concat());
            resync(&new, &old, 64, RESYNC_BYTES_MIN, &mut { usize::MAX })
        };
        let whole = Some(CommonRange { new: 100, old: 1, len: RESYNC_BYTES_MIN - 1 });
        assert_eq!(taken_up(RESYNC_BYTES_MIN), whole);
        assert_eq!(taken_up(RESYNC_BYTES_MIN - 1), None);
        // A range that is too short is not returned.
        let (old, new) = ([b"x", &rest[..]].concat(), [&head[..], &rest].concat());
        let found =
            |least| resync(&new, &old, least, RESYNC_BYTES_MIN, &mut { usize::MAX }).map(|same| same.len);
        assert_eq!((found(RESYNC_BYTES_MIN), found(RESYNC_BYTES_MIN + 1)), (Some(RESYNC_BYTES_MIN), None));
    }

    #[test]
    fn common_ranges_are_equal_and_ascending() {
        for seed in 0..50 {
            let old = bytes(20_000, seed);
            let at = (seed as usize * 97) % 5000;
            // One piece is inserted and one is removed.
            let new = [&old[..at], &bytes(seed as usize, 99), &old[at + 40..]].concat();
            let same = compare(&new, &old, 16, RESYNC_BYTES_MIN);
            let mut upto = (0, 0);
            for range in &same {
                assert!(range.new >= upto.0 && range.old >= upto.1, "{same:?}");
                assert_eq!(new[range.new..range.new + range.len], old[range.old..range.old + range.len]);
                upto = (range.new + range.len, range.old + range.len);
            }
            let kept: usize = same.iter().map(|range| range.len).sum();
            assert!(kept >= 20_000 - 40 - 16, "seed {seed}: {kept} of 20000");
        }
    }
}
