//! Checks that the records of each run follow each other as recorders write them, and counts those that only the end
//! of the run's life erases. A checkpoint lists the counts, and a later pass over the same leaves explains what is
//! missing.
//!
//! Rules, which hold in every log that annals wrote:
//! - A frame is whole once, a snapshot is stored once, and a run ends for good once. Nothing but a replacement or a
//!   drop comes after that end.
//! - A run's life ends with its tombstone, with a record that says it was replaced, or with a statement that its last
//!   record was erased. No record of the run comes after the end of its life, and none that begins or ends it is left
//!   when such a statement is made without the one or the other.
//! - A name is that of one living run. A run keeps its name, its parent and the time of its beginning, also in its
//!   tombstone, and an end names all frames before it.
//! - A frame that was begun keeps its component, parent, beginning and input. Parts of its output are numbered in order,
//!   and none comes after the whole frame. A snapshot is one of the last frame that was begun before it.
//!
//! Memory holds a few words for each run, and for each 64 frames of runs that have not ended for good.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::ids::{NamespaceId, RunUid};
use crate::trace::heads::{RunFields, TombstoneHead};
use crate::trace::model::Status;
use crate::trace::number_sets::{NumbersOfRuns, RangeSet, forget_frames_of};
use crate::trace::run_counts::{RunCounts, RunPart, RunTally};

/// The first bytes of a hash of facts that must stay the same.
pub(crate) type FactHash = [u8; 16];

/// A hash of these values, each with its length.
pub(crate) fn hash_facts(values: &[&[u8]]) -> FactHash {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
    }
    let mut front = FactHash::default();
    hasher.finalize_xof().fill(&mut front);
    front
}

/// What stays the same in all records of a living run, and how many frames it has at least.
#[derive(Debug, Clone, Copy)]
struct RunFacts {
    name: FactHash,
    beginning: FactHash,
    frames: u32,
    /// The last frame that it shares with its parent.
    shared: u32,
}

impl RunFacts {
    fn of_run(fields: &RunFields) -> Self {
        let frames = if fields.status == Status::Open.code() { 0 } else { fields.frames };
        let name = hash_facts(&[&fields.namespace.0.to_le_bytes(), fields.name.as_bytes()]);
        let beginning = beginning_of(fields.namespace, fields.started_ns, fields.parent);
        Self { name, beginning, frames, shared: fields.parent.map_or(0, |(_, shared, _)| shared) }
    }
}

fn beginning_of(namespace: NamespaceId, started_ns: u64, parent: Option<(RunUid, u32, u32)>) -> FactHash {
    let parent =
        parent.map(|(of, shared, at)| [of.0, u64::from(shared), u64::from(at)].map(u64::to_le_bytes));
    let parent = parent.unwrap_or_default().concat();
    hash_facts(&[&namespace.0.to_le_bytes(), &started_ns.to_le_bytes(), &parent])
}

/// What is known about the records of runs at one place of the log.
#[derive(Debug, Default)]
pub(crate) struct RunRecordCensus {
    counts: RunCounts,
    /// At most how many records went when a life ended, and one for each run that has ended.
    ended: RunTally,
    /// Runs of which only a statement is left: how many records they had is not known.
    stated: RangeSet,
    /// Those, and others that statements name.
    named: RangeSet,
    /// Runs with a tombstone.
    dropped_once: RangeSet,
    /// Runs with a record of their own.
    begun: RangeSet,
    /// Runs that ended for good.
    finished: RangeSet,
    /// Whole and begun frames, and stored snapshots, of runs that have not ended for good.
    whole: NumbersOfRuns,
    states: NumbersOfRuns,
    /// What stays the same in frames that were begun and are not whole yet.
    opened: BTreeMap<(u64, u32), Option<FactHash>>,
    /// The last part of the output of frames that are not whole yet.
    parts: BTreeMap<(u64, u32), u32>,
    facts: HashMap<u64, RunFacts>,
    /// Living runs by a hash of their namespace and name.
    names: HashMap<FactHash, u64>,
    /// Runs with a record after the end of their life.
    pub(crate) revived: RangeSet,
    /// Runs with records that replace final ones.
    pub(crate) changed: RangeSet,
    /// Runs that took the name of a living run.
    pub(crate) namesakes: RangeSet,
}

impl RunRecordCensus {
    /// Whether [`RunRecordCensus::add_frame`] compares the beginning of this frame.
    pub(crate) fn compares_beginning(&self, run: u64, seq: u32, open: bool) -> bool {
        open || self.opened.contains_key(&(run, seq))
    }

    pub(crate) fn add_frame(&mut self, run: u64, seq: u32, open: bool, beginning: Option<FactHash>) {
        let dropped = self.has_ended(run);
        let begun = self.opened.get(&(run, seq));
        let is_other = begun.is_some_and(|begun| open || *begun != beginning);
        if dropped {
            self.revived.insert_one(run);
        } else if self.finished.contains(run) || self.whole.has(run, seq) || is_other {
            self.changed.insert_one(run);
        }
        if open {
            if !dropped && !self.finished.contains(run) {
                self.opened.insert((run, seq), beginning);
            }
            return;
        }
        self.opened.remove(&(run, seq));
        self.parts.remove(&(run, seq));
        if dropped {
            self.counts.add_dropped(run, 1);
        } else {
            self.counts.add_living(run);
            if !self.finished.contains(run) {
                self.whole.insert(run, seq);
            }
        }
    }

    /// A part of a frame's output.
    pub(crate) fn add_part(&mut self, run: u64, seq: u32, part: u32) {
        if self.has_ended(run) {
            self.revived.insert_one(run);
            return;
        }
        if self.finished.contains(run) || self.whole.has(run, seq) {
            self.changed.insert_one(run);
            return;
        }
        // Compaction may have erased earlier parts.
        let before = self.parts.insert((run, seq), part);
        if before.is_some_and(|before| part <= before) {
            self.changed.insert_one(run);
        }
    }

    /// The last frame that was begun so far, shared ones included.
    fn last_frame(&self, run: u64) -> u32 {
        let opened =
            self.opened.range((run, 0)..=(run, u32::MAX)).next_back().map_or(0, |((_, seq), _)| *seq);
        let shared = self.facts.get(&run).map_or(0, |facts| facts.shared);
        self.whole.last(run).max(opened).max(shared)
    }

    pub(crate) fn add_snapshot(&mut self, run: u64, seq: u32) {
        if self.has_ended(run) {
            self.revived.insert_one(run);
            return;
        }
        match self.finished.contains(run) {
            true => self.changed.insert_one(run),
            false if self.states.has(run, seq) || seq < self.last_frame(run) => self.changed.insert_one(run),
            false => self.states.insert(run, seq),
        }
        self.counts.add_snapshot(run);
    }

    pub(crate) fn add_run(&mut self, fields: &RunFields) {
        let run = fields.uid.0;
        let is_open = fields.status == Status::Open.code();
        let facts = RunFacts::of_run(fields);
        let is_other = |known: &RunFacts| (known.name, known.beginning) != (facts.name, facts.beginning);
        if self.facts.get(&run).is_some_and(is_other) {
            self.changed.insert_one(run);
        }
        let holder =
            self.names.get(&facts.name).filter(|holder| **holder != run && !self.has_ended(**holder));
        if holder.is_some() {
            self.namesakes.insert_one(run);
        }
        if fields.gone {
            // A run is replaced once, and not after it was dropped.
            if self.has_ended(run) {
                self.revived.insert_one(run);
            }
            // It repeats the record before it. The number of frames is that of an end.
            let known = self.facts.get(&run).map_or(0, |known| known.frames).max(self.last_frame(run));
            if !is_open && fields.frames < known {
                self.changed.insert_one(run);
            }
            let shared = fields.parent.map_or(0, |(_, shared, _)| shared);
            self.end(run, if is_open { u32::MAX } else { fields.frames.saturating_sub(shared) });
            return;
        }
        let last = self.last_frame(run);
        if self.has_ended(run) {
            self.revived.insert_one(run);
        } else if self.finished.contains(run) || !is_open && fields.frames < last {
            self.changed.insert_one(run);
        }
        self.begun.insert_one(run);
        self.names.insert(facts.name, run);
        if !self.has_ended(run) {
            self.facts.insert(run, facts);
        }
        if is_open || fields.status == Status::Abandoned.code() {
            return;
        }
        self.finished.insert_one(run);
        self.forget_frames(run);
        if self.has_ended(run) { self.counts.add_dropped(run, 1) } else { self.counts.add_living(run) }
    }

    pub(crate) fn add_tombstone(&mut self, head: &TombstoneHead) {
        let (run, shared) = (head.run.0, head.parent.map_or(0, |(_, shared, _)| shared));
        if self.dropped_once.contains(run) {
            self.revived.insert_one(run);
        }
        self.dropped_once.insert_one(run);
        // A resumed run has more frames than a record of before says, and the newer one may be erased.
        let beginning = beginning_of(head.namespace, head.started_ns, head.parent);
        let is_other = |known: &RunFacts| known.beginning != beginning || head.frames < known.frames;
        if self.facts.get(&run).is_some_and(is_other) || head.frames < self.last_frame(run) {
            self.changed.insert_one(run);
        }
        self.end(run, head.frames.saturating_sub(shared));
    }

    /// A run's life ends; it had at most this many frames of its own.
    fn end(&mut self, run: u64, frames: u32) {
        if !self.has_ended(run) {
            // The frames, and the record of its end.
            self.ended.add(run, frames.saturating_add(1));
            self.forget(run);
        }
    }

    /// A statement says that no record of these runs is left.
    pub(crate) fn end_stated(&mut self, runs: &Range<u64>) {
        // Each number is looked at once, however often it is stated.
        for fresh in self.named.missing_from(runs.clone()) {
            let left: Vec<Range<u64>> = self.begun.within(fresh.clone()).collect();
            for run in left.into_iter().flatten().filter(|run| !self.ended.has(*run)) {
                self.revived.insert_one(run);
            }
            let counted =
                self.counts.living.counted_in(&fresh).chain(self.counts.snapshots.counted_in(&fresh));
            let counted: Vec<u64> = counted.map(|(run, _)| run).collect();
            counted.into_iter().for_each(|run| self.forget(run));
            let mut from = fresh.start;
            for (run, _) in self.ended.counted_in(&fresh) {
                self.stated.insert(from..run);
                from = run + 1;
            }
            self.stated.insert(from..fresh.end);
            self.named.insert(fresh);
        }
    }

    fn has_ended(&self, run: u64) -> bool {
        self.ended.has(run) || self.stated.contains(run)
    }

    /// The records of a run whose life ends are those of a dropped one.
    fn forget(&mut self, run: u64) {
        self.counts.drop_run(run);
        self.forget_frames(run);
        self.facts.remove(&run);
    }

    /// Of a run that is over, no frame is expected.
    fn forget_frames(&mut self, run: u64) {
        self.whole.forget(run);
        self.states.forget(run);
        forget_frames_of(&mut self.opened, run);
        forget_frames_of(&mut self.parts, run);
    }

    /// See [`RunCounts::part_span`].
    pub(crate) fn part_span(&self) -> u64 {
        self.counts.part_span()
    }

    /// See [`RunCounts::parts`].
    pub(crate) fn parts(&self, span: u64) -> Vec<RunPart> {
        self.counts.parts(span)
    }

    /// At most how many records of these runs the ends of their lives explain, from the log's beginning.
    pub(crate) fn explained(&self, runs: &Range<u64>) -> u64 {
        let ended: u64 = self.ended.counted_in(runs).map(|(_, count)| u64::from(count)).sum();
        // As many as any run has, once for each run.
        let stated: u64 = self.stated.within(runs.clone()).map(|part| part.end - part.start).sum();
        ended.saturating_add(stated.saturating_mul(u64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Link;

    fn fields(run: u64, name: &str, status: Status) -> RunFields {
        RunFields {
            uid: RunUid(run),
            namespace: NamespaceId(16),
            name: name.into(),
            agent: String::new(),
            model: String::new(),
            tags: Vec::new(),
            status: status.code(),
            severity: 0,
            parent: None,
            started_ns: 1,
            ended_ns: 2,
            frames: 3,
            raw_bytes: 0,
            fingerprint: Link([0; 32]),
            gone: false,
        }
    }

    /// The runs with each fault: revived, changed, namesakes.
    fn faults(census: &RunRecordCensus) -> [Vec<Range<u64>>; 3] {
        [&census.revived, &census.changed, &census.namesakes].map(RangeSet::ranges)
    }

    fn one(run: u64) -> Vec<Range<u64>> {
        std::iter::once(run..run + 1).collect()
    }

    #[test]
    fn at_most_256_parts_of_runs_with_records() {
        let mut census = RunRecordCensus::default();
        assert_eq!((census.part_span(), census.parts(1)), (1, vec![]));
        (1..=256).for_each(|run| census.add_frame(run * 1000, 1, false, None));
        assert_eq!((census.part_span(), census.parts(1).len()), (1, 256));
        census.add_snapshot(1001, 1);
        assert_eq!(census.part_span(), 2);
        let parts = census.parts(2);
        assert_eq!(parts.len(), 256);
        assert_eq!(parts[0], RunPart { first: 1000, records: 1, dropped: 0, snapshots: 1 });
    }

    /// A forged frame may name any run. Counting up to the greatest number overflowed.
    #[test]
    fn greatest_run_number_is_counted_without_overflow() {
        let mut census = RunRecordCensus::default();
        for run in [u64::MAX, u64::MAX - 1] {
            census.add_frame(run, 1, false, None);
            census.add_frame(run, 1, false, None);
            census.add_snapshot(run, u32::MAX);
        }
        let parts = census.parts(1);
        assert_eq!(parts.iter().map(|part| part.first).collect::<Vec<_>>(), [u64::MAX - 1]);
        assert_eq!(census.parts(1 << 57).len(), 1);
        census.end_stated(&(u64::MAX - 3..u64::MAX));
        assert_eq!((census.explained(&(0..u64::MAX)), census.part_span()), (3 * u64::from(u32::MAX), 1));
    }

    #[test]
    fn the_end_of_a_life_explains_its_records_once() {
        let mut census = RunRecordCensus::default();
        for (run, seq) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)] {
            census.add_frame(run, seq, false, None);
        }
        census.add_frame(3, 2, true, None);
        [(1, 3), (2, 2)].into_iter().for_each(|(run, seq)| census.add_snapshot(run, seq));
        let part = |first, records, dropped, snapshots| RunPart { first, records, dropped, snapshots };
        assert_eq!(census.parts(1), [part(1, 3, 0, 1), part(2, 2, 0, 1), part(3, 1, 0, 0)]);
        census.end(1, 3);
        census.end(1, 3);
        census.end_stated(&(1..3));
        assert_eq!(census.parts(1), [part(1, 0, 3, 0), part(2, 0, 2, 0), part(3, 1, 0, 0)]);
        assert_eq!(census.parts(2), [part(0, 0, 3, 0), part(2, 1, 2, 0)]);
        assert_eq!((census.explained(&(1..2)), census.explained(&(3..9))), (4, 0));
        assert_eq!(census.explained(&(0..9)), 4 + u64::from(u32::MAX));
        assert_eq!(faults(&census), [vec![], vec![], vec![]]);
    }

    /// An attacker wrote newer records over those of a finished run, or recorded a run after the end of its life.
    #[test]
    fn records_after_an_end_are_faults() {
        let finished = || {
            let mut census = RunRecordCensus::default();
            census.add_run(&fields(7, "a", Status::Open));
            (1..=3).for_each(|seq| census.add_frame(7, seq, false, None));
            census.add_snapshot(7, 3);
            census
        };
        // Before its end, what is whole stays.
        let mut census = finished();
        census.add_frame(7, 4, true, None);
        census.add_part(7, 4, 1);
        census.add_frame(7, 4, false, None);
        let abandoned = RunFields { frames: 4, ..fields(7, "a", Status::Abandoned) };
        census.add_run(&abandoned);
        census.add_run(&fields(7, "a", Status::Open));
        census.add_run(&RunFields { status: Status::Failed.code(), ..abandoned });
        assert_eq!(faults(&census), [vec![], vec![], vec![]]);
        type Change = fn(&mut RunRecordCensus);
        let before: [Change; 7] = [
            |census| census.add_run(&RunFields { frames: 2, ..fields(7, "a", Status::Abandoned) }),
            |census| census.add_run(&fields(7, "b", Status::Open)),
            |census| census.add_run(&RunFields { started_ns: 2, ..fields(7, "a", Status::Open) }),
            |census| {
                census.add_run(&RunFields { parent: Some((RunUid(1), 1, 1)), ..fields(7, "a", Status::Open) })
            },
            |census| census.add_frame(7, 2, false, None),
            |census| census.add_frame(7, 2, true, None),
            |census| census.add_snapshot(7, 3),
        ];
        for change in before {
            let mut census = finished();
            change(&mut census);
            assert_eq!(faults(&census), [vec![], one(7), vec![]]);
        }
        let after: [Change; 5] = [
            |census| census.add_part(7, 4, 1),
            |census| census.add_frame(7, 4, false, None),
            |census| census.add_snapshot(7, 3),
            |census| census.add_run(&fields(7, "a", Status::Ok)),
            |census| census.add_run(&fields(7, "a", Status::Open)),
        ];
        for change in after {
            let mut census = finished();
            census.add_run(&fields(7, "a", Status::Ok));
            change(&mut census);
            assert_eq!(faults(&census), [vec![], one(7), vec![]]);
            for end in [(|census| census.end(7, 3)) as Change, |census| census.end_stated(&(7..8))] {
                let mut census = RunRecordCensus::default();
                end(&mut census);
                change(&mut census);
                assert_eq!(faults(&census), [one(7), vec![], vec![]]);
            }
        }
        // A statement that names a run with a record: the record should be erased.
        let mut census = finished();
        census.end_stated(&(5..9));
        assert_eq!(faults(&census), [one(7), vec![], vec![]]);
        // Left by a crash before the compaction, after a replacement.
        let mut census = finished();
        census.add_run(&RunFields { gone: true, ..fields(7, "a", Status::Ok) });
        census.end_stated(&(5..9));
        assert_eq!(faults(&census), [vec![], vec![], vec![]]);
    }

    #[test]
    fn a_name_is_that_of_one_living_run() {
        let mut census = RunRecordCensus::default();
        census.add_run(&fields(1, "a", Status::Ok));
        census.add_run(&fields(2, "b", Status::Ok));
        census.add_run(&RunFields { gone: true, ..fields(1, "a", Status::Ok) });
        census.add_run(&fields(3, "a", Status::Open));
        census.add_run(&fields(3, "a", Status::Ok));
        assert_eq!(faults(&census), [vec![], vec![], vec![]]);
        census.add_run(&fields(4, "b", Status::Open));
        assert_eq!(faults(&census), [vec![], vec![], one(4)]);
        // A number that never was ends the name of a living run.
        census.add_run(&RunFields { gone: true, ..fields(9, "a", Status::Ok) });
        assert_eq!(faults(&census), [vec![], vec![], vec![4..5, 9..10]]);
    }

    /// An attacker replaced the question and the answer of a frame that was begun in an abandoned run, put a snapshot
    /// over those of the past, and moved the beginning of a run that a fork shares by a tombstone.
    #[test]
    fn what_was_begun_keeps_its_beginning() {
        let begun = || {
            let mut census = RunRecordCensus::default();
            let parent = Some((RunUid(1), 1, 1));
            census.add_run(&RunFields { parent, ..fields(7, "a", Status::Open) });
            census.add_frame(7, 2, false, None);
            census.add_frame(7, 3, true, Some([3; 16]));
            (1..=2).for_each(|part| census.add_part(7, 3, part));
            census.add_run(&RunFields { parent, frames: 3, ..fields(7, "a", Status::Abandoned) });
            census
        };
        let tombstone = |frames, started_ns| TombstoneHead {
            namespace: NamespaceId(16),
            run: RunUid(7),
            frames,
            started_ns,
            parent: Some((RunUid(1), 1, 1)),
            dropped_ns: 9,
            rule: String::new(),
            why: String::new(),
        };
        type Change<'a> = &'a dyn Fn(&mut RunRecordCensus);
        let sound: [Change<'_>; 4] = [
            &|census| census.add_part(7, 3, 3),
            &|census| census.add_frame(7, 3, false, Some([3; 16])),
            &|census| census.add_snapshot(7, 3),
            &|census| census.add_tombstone(&tombstone(4, 1)),
        ];
        let replaced = RunFields { gone: true, frames: 2, ..fields(7, "a", Status::Abandoned) };
        let replaced = RunFields { parent: Some((RunUid(1), 1, 1)), ..replaced };
        let forged: [Change<'_>; 8] = [
            &|census| census.add_run(&replaced),
            &|census| census.add_part(7, 3, 2),
            &|census| census.add_part(7, 2, 1),
            &|census| census.add_frame(7, 3, false, Some([4; 16])),
            &|census| census.add_frame(7, 3, true, Some([3; 16])),
            &|census| census.add_snapshot(7, 2),
            &|census| census.add_tombstone(&tombstone(2, 1)),
            &|census| census.add_tombstone(&tombstone(3, 2)),
        ];
        let all =
            sound.iter().map(|change| (change, false)).chain(forged.iter().map(|change| (change, true)));
        for (at, (change, is_forged)) in all.enumerate() {
            let mut census = begun();
            change(&mut census);
            let expected = if is_forged { one(7) } else { Vec::new() };
            assert_eq!(faults(&census), [vec![], expected, vec![]], "change {at}");
        }
        // Of a fork without a frame of its own, the last frame is the shared one.
        let mut census = RunRecordCensus::default();
        census.add_run(&RunFields { parent: Some((RunUid(1), 5, 5)), ..fields(8, "b", Status::Open) });
        census.add_snapshot(8, 5);
        assert_eq!(faults(&census), [vec![], vec![], vec![]]);
        census.add_snapshot(8, 4);
        assert_eq!(faults(&census), [vec![], one(8), vec![]]);
    }
}
