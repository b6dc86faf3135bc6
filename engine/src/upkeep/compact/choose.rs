//! Chooses the segments to rewrite, and groups them into the new segments.

use std::collections::HashSet;
use std::ops::Range;

use crate::blob::GroupId;
use crate::ids::NamespaceId;
use crate::upkeep::compact::live::LiveRecords;
use crate::upkeep::compact::weigh::SegmentWeight;

/// A segment is rewritten if at least one tenth of it is dead.
const DEAD_SHARE: u64 = 10;
/// Bytes that a segment may need in addition to its live records.
const SEGMENT_OVERHEAD_BYTES: u64 = 4096;

/// The segments that a compaction rewrites.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CompactionPlan {
    /// Each range of consecutive segments, by position in the log, becomes one segment.
    pub(super) stretches: Vec<Range<usize>>,
    /// Groups that lose some or all of their bytes.
    pub(super) thinned: HashSet<GroupId>,
    /// File bytes of the segments to rewrite.
    pub(super) bytes: u64,
    /// Estimate of the live bytes among `bytes`.
    pub(super) live_bytes: u64,
    /// Estimate of the bytes that joining batches saves of the live ones.
    pub(super) joins: u64,
    /// Number of segments that are worth rewriting and do not fit on the disk now, and their live bytes.
    pub(super) unfit: (u64, u64),
}

/// Chooses the segments to rewrite: those with enough dead bytes, and those that hold records of a run that
/// must go. A segment also qualifies if it holds unreferenced bytes in the namespace of such a run. With
/// `all_dead`, every segment with a dead byte qualifies; with `recompress`, segments whose bodies are packed as recorded qualify too.
///
/// The new segments take at most `room` bytes: those with the fewest live bytes come first.
///
/// From the start of the log up to the first segment that stays, ends are counted as dead and dropped: no
/// earlier record needs them any more.
pub(super) fn choose(
    weighed: &mut [SegmentWeight],
    live: &mut LiveRecords,
    wanted: &HashSet<NamespaceId>,
    (recompress, all_dead): (bool, bool),
    (segment_bytes_max, room): (u64, u64),
    threads: u64,
) -> CompactionPlan {
    let is_chosen = |weighed: &SegmentWeight, dead: u64| {
        let wanted_bytes = || {
            let mut groups = weighed.groups.iter();
            groups.any(|group| wanted.contains(&group.namespace) && group.has_dead(live))
        };
        (dead > 0 && dead.saturating_mul(DEAD_SHARE) >= weighed.bytes)
            || (all_dead && (dead > 0 || weighed.groups.iter().any(|group| group.has_dead(live))))
            || weighed.holds_wanted
            || (recompress && weighed.as_recorded > 0)
            || (!wanted.is_empty() && wanted_bytes())
    };
    let mut begins_the_log = true;
    let mut chosen = Vec::with_capacity(weighed.len());
    for segment in weighed.iter() {
        let ends = if begins_the_log { segment.ends } else { 0 };
        chosen.push(is_chosen(segment, segment.dead + ends));
        begins_the_log &= chosen.last() == Some(&true);
    }
    let living = |segment: &SegmentWeight| segment.bytes.saturating_sub(segment.dead);
    let unfit = leave_out_what_does_not_fit(weighed, &mut chosen, room);
    let first_left = chosen.iter().position(|chosen| !chosen).unwrap_or(chosen.len());
    for segment in weighed.iter_mut().take(first_left) {
        segment.dead += segment.ends;
        live.drop_ends(segment.segment.id);
    }
    let mut plan = CompactionPlan { unfit, ..CompactionPlan::default() };
    let all: u64 =
        weighed.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(one, _)| living(one)).sum();
    // With few live bytes, the new segments are smaller, so that all threads finish at about the same time.
    let most = (all / (2 * threads.max(1))).clamp(segment_bytes_max / 2, segment_bytes_max);
    let mut room = 0;
    for (at, segment) in weighed.iter().enumerate().filter(|(at, _)| chosen.get(*at) == Some(&true)) {
        let live_bytes = living(segment);
        match plan.stretches.last_mut() {
            Some(last) if last.end == at && live_bytes + SEGMENT_OVERHEAD_BYTES <= room => {
                last.end = at + 1;
                room -= live_bytes;
            }
            _ => {
                plan.stretches.push(at..at + 1);
                room = most.saturating_sub(live_bytes);
            }
        }
        plan.bytes += segment.bytes;
        plan.live_bytes += live_bytes;
        plan.joins += segment.joins.min(live_bytes);
        let thinned = segment.groups.iter().filter(|group| group.has_dead(live));
        plan.thinned.extend(thinned.map(|group| group.group));
    }
    plan
}

/// Unchooses segments so that the live bytes of the others fit into `room`. Returns the number of those left
/// out, and their live bytes.
fn leave_out_what_does_not_fit(weighed: &[SegmentWeight], chosen: &mut [bool], room: u64) -> (u64, u64) {
    let living = |at: usize| {
        let segment = weighed.get(at).map(|one| one.bytes.saturating_sub(one.dead));
        segment.unwrap_or(0).saturating_add(SEGMENT_OVERHEAD_BYTES)
    };
    let mut cheapest: Vec<usize> = (0..chosen.len()).filter(|at| chosen[*at]).collect();
    cheapest.sort_by_key(|at| living(*at));
    let (mut left, mut unfit) = (room, (0, 0));
    for at in cheapest {
        match left.checked_sub(living(at)) {
            Some(rest) => left = rest,
            None => {
                chosen[at] = false;
                unfit = (unfit.0 + 1, unfit.1 + living(at));
            }
        }
    }
    unfit
}
