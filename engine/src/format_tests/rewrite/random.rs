//! Random records and group ranges are erased, repeatedly: live content is unchanged, erased content is
//! nowhere.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use proptest::prelude::*;

use super::sample::{self, LogContents, mix_seed};
use crate::blob::GroupId;
use crate::ids::{RecordPlace, SegmentId};
use crate::io::sim::SimIo;
use crate::log::ledger::record_hash;
use crate::log::record::LAYOUT;
use crate::log::rewrite::Recompress;
use crate::log::rewrite::{LiveSet, RewrittenSegment};

/// Decides by a seed. The greater `mercy` (of 256), the more stays.
struct RandomLiveSet<'a> {
    seed: u64,
    mercy: u64,
    all: &'a LogContents,
}

impl RandomLiveSet<'_> {
    fn stays(&self, what: u64, number: u64) -> bool {
        // Dead and live stretches, as runs make them, and single records besides.
        let stretch = mix_seed(self.seed ^ what, number / 40) % 256;
        let own = mix_seed(self.seed ^ what ^ 77, number) % 256;
        match stretch % 3 {
            0 => own < self.mercy,
            1 => stretch < self.mercy,
            _ => stretch / 2 < self.mercy && own > 8,
        }
    }
}

impl LiveSet for RandomLiveSet<'_> {
    fn keeps_record(&self, segment: SegmentId, offset: u32) -> bool {
        self.stays(1, (u64::from(segment.0) << 32) | (u64::from(offset) / 16))
    }

    fn live_ranges(&self, group: GroupId) -> Option<Vec<Range<u32>>> {
        Some(self.named_ranges(group))
    }
}

impl RandomLiveSet<'_> {
    fn named_ranges(&self, group: GroupId) -> Vec<Range<u32>> {
        let has = &self.all.groups[&group.0].ranges;
        match mix_seed(self.seed, group.0 << 8) % 4 {
            0 => Vec::new(),
            1 => has.clone(),
            way => {
                // Parts of the existing ranges; with `way` 2 some of them touch.
                let mut named = Vec::new();
                for range in has {
                    let mut at = range.start;
                    while at < range.end {
                        let own = mix_seed(self.seed ^ group.0, u64::from(at));
                        let end = range.end.min(at + 1 + (own % 700) as u32);
                        if own % 512 / 2 < self.mercy {
                            named.push(at..end);
                        }
                        at = end + if way == 2 { 0 } else { 1 };
                    }
                }
                named
            }
        }
    }
}

fn covers_byte(ranges: &[Range<u32>], at: usize) -> bool {
    ranges.iter().any(|range| range.contains(&(at as u32)))
}

/// Every window of 16 bytes in these slices.
fn rows<'a>(bytes: impl IntoIterator<Item = &'a [u8]>) -> HashSet<[u8; 16]> {
    let windows = bytes.into_iter().flat_map(|bytes| bytes.windows(16));
    windows.map(|row| row.try_into().unwrap()).collect()
}

/// Compares a rewritten log with the log before.
fn compare(
    before: &LogContents,
    raw: &BTreeMap<u64, Vec<u8>>,
    sim: &SimIo,
    keep: &RandomLiveSet<'_>,
    made: &[RewrittenSegment],
) {
    let after = sample::log_contents(sim);
    let rewritten: BTreeSet<SegmentId> = made.iter().map(|made| made.entry.id).collect();
    let moved: BTreeMap<(u32, u32), RecordPlace> = made
        .iter()
        .flat_map(|made| &made.moved)
        .map(|moved| ((moved.from.segment.0, moved.from.offset), moved.to))
        .collect();
    let went_on = |place: RecordPlace| after.records.values().any(|told| told.place == place);
    let (mut living, mut dead) = (Vec::new(), Vec::new());
    for (seqno, told) in &before.records {
        let stays = went_on(told.place) || keep.keeps_record(told.place.segment, told.place.offset);
        let Some(now) = after.records.get(seqno) else {
            assert!(!stays, "record {seqno} is gone");
            dead.push(told);
            continue;
        };
        assert!(stays, "record {seqno} stayed");
        assert_eq!(
            (now.time_ns, now.kind, now.salt, &now.head, &now.tail),
            (told.time_ns, told.kind, told.salt, &told.head, &told.tail)
        );
        let hash = |told: &sample::SampleRecord| {
            record_hash(&told.salt, told.kind.code(), LAYOUT, *seqno, &told.head)
        };
        assert_eq!(hash(now), hash(told));
        if rewritten.contains(&now.place.segment) {
            assert_eq!(moved[&(told.place.segment.0, told.place.offset)], now.place);
        }
        living.push(now);
    }
    let raw_after = sample::raw_groups(sim, &after);
    let (mut left, mut went) = (Vec::new(), Vec::new());
    for (id, held) in &before.groups {
        let untouched = after.groups.get(id).is_some_and(|now| now.last == held.last);
        let named = if untouched { held.ranges.clone() } else { keep.named_ranges(GroupId(*id)) };
        let (old, new) = (&raw[id], raw_after.get(id));
        assert_eq!(new.is_none(), named.is_empty());
        for (at, byte) in old.iter().enumerate() {
            let now = new.and_then(|new| new.get(at)).copied();
            match covers_byte(&named, at) {
                true => assert_eq!(now, Some(*byte), "byte {at} of group {id}"),
                false => assert!(now.unwrap_or(0) == 0, "byte {at} of group {id} is still there"),
            }
        }
        if let Some(now) = after.groups.get(id).filter(|_| !untouched) {
            assert_eq!(moved[&(held.last.segment.0, held.last.offset)], now.last);
        }
        let dead = |at: &usize| covers_byte(&held.ranges, *at) && !covers_byte(&named, *at);
        let mut at = 0;
        while let Some(from) = (at..old.len()).find(dead) {
            at = (from..old.len()).find(|at| !dead(at)).unwrap_or(old.len());
            went.push(&old[from..at]);
        }
    }
    for (id, now) in &after.groups {
        left.extend(now.ranges.iter().map(|range| &raw_after[id][range.start as usize..range.end as usize]));
    }
    // Looks for erased bytes in the files and in the decoded groups, except for rows that live content also
    // has.
    let files: Vec<Vec<u8>> = sim.files().iter().map(|path| sim.read(path).unwrap()).collect();
    let decoded = rows(raw_after.values().map(Vec::as_slice));
    let there = rows(files.iter().map(Vec::as_slice));
    // A row that begins in a live record may end in the next checksum. Recipes of two runs are often alike,
    // and once the next byte was too.
    let records = living.iter().map(|told| {
        let name = format!("{:08}.seg", told.place.segment.0);
        let at = sim.files().iter().position(|path| path.ends_with(&name)).unwrap();
        let (from, to) = (told.place.offset as usize, (told.place.offset + told.place.len) as usize + 15);
        &files[at][from..to.min(files[at].len())]
    });
    let stays = rows(records.chain(left));
    let gone = dead.iter().flat_map(|told| [&told.head[..], &told.salt, &told.tail]);
    for row in rows(gone.chain(went)).difference(&stays) {
        // Small numbers occur anywhere.
        let zeros = row.iter().filter(|byte| **byte == 0).count();
        let stands = || {
            let of = dead.iter().find(|told| {
                [&told.head, &told.tail].iter().any(|bytes| bytes.windows(16).any(|window| window == row))
            });
            let mut files = sim.files().into_iter().zip(&files);
            let file = files
                .find_map(|(path, bytes)| Some((path, bytes.windows(16).position(|window| window == row)?)));
            format!("{row:?} of {of:?} is still there, in {file:?}")
        };
        assert!(zeros > 6 || !decoded.contains(row), "{}", stands());
        // A compressed text contains its unmatched letters next to each other. Thirteen letters of a live
        // text and the next three once equalled a row of a dead text with the same start. So text is searched
        // only in decoded form, and noise in the files as well.
        let text = row.iter().all(|byte| (b'a'..=b'h').contains(byte));
        assert!(zeros > 6 || text || !there.contains(row), "{}", stands());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn rewrite_keeps_live_records_and_erases_the_rest(seed: u64, mercy in 0..256u64, anew: bool) {
        let sim = sample::sample_store(seed % 5);
        let end = sample::scan_whole_log(&sim).unwrap();
        // The second round rewrites the output of the first.
        for (round, rows) in [vec![1, 3, 2, 1, 4], vec![2, 1, 30]].iter().enumerate() {
            let before = sample::log_contents(&sim);
            let raw = sample::raw_groups(&sim, &before);
            let keep = RandomLiveSet { seed: seed ^ round as u64, mercy, all: &before };
            let made = sample::rewrite_rows(&sim, &keep, rows, if anew { Recompress::All(9) } else { Recompress::Nothing }).unwrap();
            prop_assert!(!made.is_empty());
            let now = sample::scan_whole_log(&sim).unwrap();
            prop_assert_eq!(now.state.ledger.root(), end.state.ledger.root());
            prop_assert_eq!(&now.state, &end.state);
            compare(&before, &raw, &sim, &keep, &made);
        }
    }
}
