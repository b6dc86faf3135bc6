//! The order in which answers are released: the order in which the recorded calls ended.
//!
//! A program with overlapping calls sees them end in some order, and may depend on it; a replay keeps that
//! order. `chaos` changes the order where it was random: among calls that all overlapped.
//!
//! Nothing waits here. The caller polls `may_release`, and asks `blocking` if it has waited too long.

use std::collections::HashMap;

use crate::replay::matching::RecordedCall;

#[derive(Debug)]
pub(super) struct ReleaseOrder {
    /// Frame numbers of the calls, in order of release.
    order: Vec<u32>,
    place: HashMap<u32, usize>,
    done: Vec<bool>,
    /// All calls before this index are done.
    first: usize,
}

impl ReleaseOrder {
    /// The recorded order of `calls`.
    pub(super) fn new(calls: &[RecordedCall]) -> Self {
        let mut ended: Vec<_> = calls.iter().map(|call| (end_ns(call), call.seq)).collect();
        ended.sort_unstable();
        let mut release = Self {
            order: ended.into_iter().map(|(_, seq)| seq).collect(),
            place: HashMap::new(),
            done: vec![false; calls.len()],
            first: 0,
        };
        release.index_places();
        release
    }

    fn index_places(&mut self) {
        self.place = self.order.iter().enumerate().map(|(place, seq)| (*seq, place)).collect();
    }

    /// Shuffles calls that all overlapped; the same seed gives the same order.
    pub(super) fn chaos(&mut self, calls: &[RecordedCall], seed: u64) {
        let by_seq: HashMap<u32, &RecordedCall> = calls.iter().map(|call| (call.seq, call)).collect();
        let spans: Vec<(u64, u64)> = self
            .order
            .iter()
            .map(|seq| by_seq.get(seq).map_or((0, 0), |call| (call.begun_ns, end_ns(call))))
            .collect();
        let mut random = seed;
        for (start, end) in episodes(&spans) {
            let episode = &spans[start..end];
            let last_begun = episode.iter().map(|(begun, _)| *begun).max().unwrap_or_default();
            // A call that began after another call's end may depend on that call's answer.
            if last_begun < episode[0].1 {
                shuffle(&mut self.order[start..end], &mut random);
            }
        }
        self.index_places();
    }

    /// Whether all calls before this one are done.
    pub(super) fn may_release(&self, seq: u32) -> bool {
        self.place.get(&seq).is_none_or(|place| *place <= self.first || self.done[*place])
    }

    /// Marks a call as released or given up.
    pub(super) fn mark_done(&mut self, seq: u32) {
        if let Some(place) = self.place.get(&seq) {
            self.done[*place] = true;
        }
        while self.done.get(self.first) == Some(&true) {
            self.first += 1;
        }
    }

    /// The call that is released next after this one.
    pub(super) fn next_after(&self, seq: u32) -> Option<u32> {
        self.place.get(&seq).and_then(|place| self.order.get(place + 1)).copied()
    }

    /// The calls that must be released before this one, in order.
    pub(super) fn blocking(&self, seq: u32) -> Vec<u32> {
        let upto = self.place.get(&seq).copied().unwrap_or_default();
        (self.first..upto).filter(|place| !self.done[*place]).map(|place| self.order[place]).collect()
    }
}

/// The end of a call, but never before its beginning: the clock may have been set back.
fn end_ns(call: &RecordedCall) -> u64 {
    call.ended_ns.max(call.begun_ns)
}

/// Ranges of calls, sorted by end, between moments at which no call was under way.
fn episodes(spans: &[(u64, u64)]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut upto = spans.len();
    let mut earliest = u64::MAX;
    for at in (0..spans.len()).rev() {
        earliest = earliest.min(spans[at].0);
        if at == 0 || spans[at - 1].1 <= earliest {
            found.push((at, upto));
            (upto, earliest) = (at, u64::MAX);
        }
    }
    found.reverse();
    found
}

/// Fisher-Yates shuffle with SplitMix64 (Steele, Lea, Flood 2014). It never returns the original order.
fn shuffle(order: &mut [u32], random: &mut u64) {
    let before = order.to_vec();
    for last in (1..order.len()).rev() {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of at most `last`, a usize")]
        let other = ((z ^ (z >> 31)) % (last as u64 + 1)) as usize;
        order.swap(last, other);
    }
    if order == before {
        order.rotate_left(1.min(before.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::matching::CallHash;
    use proptest::prelude::*;

    fn call(seq: u32, begun_ns: u64, ended_ns: u64) -> RecordedCall {
        RecordedCall {
            seq,
            name: "POST /x".to_owned(),
            exact: CallHash([0; 32]),
            begun_ns,
            ended_ns,
            arrived: 0,
        }
    }

    fn calls(spans: &[(u64, u64)]) -> Vec<RecordedCall> {
        (1..).zip(spans).map(|(seq, (begun, ended))| call(seq, *begun, *ended)).collect()
    }

    #[test]
    fn calls_are_released_as_they_ended() {
        let mut order = ReleaseOrder::new(&calls(&[(0, 30), (1, 10), (2, 20), (40, 50)]));
        assert!(order.may_release(2) && !order.may_release(3) && !order.may_release(1));
        assert_eq!(order.blocking(4), [2, 3, 1]);
        order.mark_done(3);
        assert!(!order.may_release(1), "1 is given up, but 2 is not done");
        order.mark_done(2);
        assert!(order.may_release(1) && order.may_release(2) && !order.may_release(4));
        order.mark_done(1);
        assert!(order.may_release(4));
        assert!(order.blocking(4).is_empty());
    }

    #[test]
    fn chaos_reorders_only_what_fully_overlapped() {
        // Call 1 is alone; 2 to 5 all overlap; 6 to 8 are nested, and 8 began after 7 had ended.
        let recorded = calls(&[(0, 5), (10, 20), (11, 19), (12, 21), (13, 22), (30, 50), (31, 35), (36, 40)]);
        let straight = ReleaseOrder::new(&recorded);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut chaos = ReleaseOrder::new(&recorded);
            chaos.chaos(&recorded, seed);
            let mut again = ReleaseOrder::new(&recorded);
            again.chaos(&recorded, seed);
            assert_eq!(chaos.order, again.order);
            assert_eq!(chaos.order[0], 1);
            assert_ne!(chaos.order[1..5], straight.order[1..5]);
            assert_eq!(chaos.order[5..], straight.order[5..]);
            seen.insert(chaos.order);
        }
        assert!(seen.len() > 10, "{} orders of 4 calls", seen.len());
    }

    proptest! {
        #[test]
        fn release_order_equals_the_naive_model(
            spans in prop::collection::vec((0u64..20, 0u64..8), 1..12),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let recorded = calls(&spans.into_iter().map(|(begun, long)| (begun, begun + long)).collect::<Vec<_>>());
            let mut order = ReleaseOrder::new(&recorded);
            let mut done = std::collections::BTreeSet::new();
            for pick in picks {
                for this in &recorded {
                    let before: Vec<_> = recorded.iter().filter(|other| {
                        let earlier = (other.ended_ns, other.seq) < (this.ended_ns, this.seq);
                        earlier && other.begun_ns <= this.ended_ns && !done.contains(&other.seq)
                    }).collect();
                    let free = before.is_empty() || done.contains(&this.seq);
                    prop_assert_eq!(order.may_release(this.seq), free, "{:?} of {:?}", this, recorded);
                    let mut blocking = order.blocking(this.seq);
                    blocking.sort_unstable();
                    prop_assert_eq!(blocking, before.iter().map(|call| call.seq).collect::<Vec<_>>());
                }
                let seq = pick.get(&recorded).seq;
                order.mark_done(seq);
                done.insert(seq);
            }
        }

        #[test]
        fn chaos_keeps_what_did_not_overlap_in_order(
            spans in prop::collection::vec((0u64..40, 1u64..8), 1..12),
            seed: u64,
        ) {
            let recorded = calls(&spans.into_iter().map(|(begun, long)| (begun, begun + long)).collect::<Vec<_>>());
            let mut order = ReleaseOrder::new(&recorded);
            order.chaos(&recorded, seed);
            for a in &recorded {
                for b in recorded.iter().filter(|b| a.ended_ns <= b.begun_ns) {
                    prop_assert!(order.place[&a.seq] < order.place[&b.seq], "{:?} {:?}", a, b);
                }
            }
        }
    }
}
