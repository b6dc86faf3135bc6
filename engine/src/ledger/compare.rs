//! Compares a store with a checkpoint that was kept elsewhere.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::{ErrorKind, Result};
use crate::ids::{Seqno, StoreId};
use crate::ledger::checkpoint::{Checkpoint, RecordCounts};
use crate::ledger::run_checker::RunChecker;
use crate::ledger::tree;
use crate::ledger::walk::{Visit, walk};
use crate::log::ledger::{Frontier, LedgerNode};
use crate::log::open::find;
use crate::store::Store;
use crate::trace::census::LogCensus;
use crate::trace::erasure_report::FORGED;

/// The result of comparing a store with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Leaves that the checkpoint covers.
    pub leaves: u64,
    /// Leaves of the store that were read, at most `leaves`.
    pub read: u64,
    /// Leaves at the checkpoint's end that cannot be compared: they were erased together with younger ones,
    /// and one node over all of them is left. Fewer than 64; none if any record of the checkpoint's last
    /// batch still exists.
    pub erased: u64,
    /// Records of the checkpoint that were erased after it, as the ledger states. `None` if the checkpoint does
    /// not count records (version 1): then forged statements of erasures are not noticed.
    pub erased_since: Option<u64>,
    /// The same of the oldest checkpoint that was given and counts records.
    pub erased_since_oldest: Option<u64>,
    /// The checkpoint counts records by runs and marks (version 3). Else these are not noticed: a run that was erased
    /// under a forged statement and recorded anew with its number, and records that came back when others were erased.
    pub in_parts: bool,
    /// Places of older checkpoints whose root could not be compared: their last leaves were erased together with younger
    /// ones. Their counts were.
    pub left_out: Vec<usize>,
    /// What could not be checked, as sentences.
    pub notes: Vec<String>,
    /// How the store differs; empty if it still begins with the history of the checkpoint, and all that is missing
    /// of it is explained.
    pub differences: Vec<CheckpointDifference>,
}

/// How a store differs from a checkpoint.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointDifference {
    /// The checkpoint is of another store.
    AnotherStore {
        /// This store.
        found: StoreId,
    },
    /// These records were changed or moved.
    Rewritten(HistoryPart),
    /// The store ends before these records: it was rolled back to an older state.
    RolledBack(HistoryPart),
    /// Records were erased, and the ledger does not state it.
    Erased {
        /// What was erased, as a sentence.
        what: String,
    },
    /// The log has records that annals does not write, for example over those of a run that had ended.
    Forged {
        /// What was written, as a sentence.
        what: String,
    },
    /// Fewer records exist than the checkpoint counts, and the statements since then explain fewer than that.
    Fewer {
        /// Records that the checkpoint counts.
        expected: u64,
        /// Records of the same leaves that exist.
        found: u64,
        /// At most how many of them were erased since, as the ledger states.
        stated: u64,
    },
    /// More records exist than the checkpoint counts: erased records came back.
    More {
        /// Records that the checkpoint counts.
        expected: u64,
        /// Records of the same leaves that exist.
        found: u64,
    },
    /// Runs of the checkpoint have neither a record nor a tombstone now.
    RunsMissing {
        /// Number of runs that the checkpoint counts.
        expected: u64,
        /// Number of runs up to the same run number that are still on record.
        found: u64,
        /// Run numbers without a record. Those that were never used are among them.
        missing: Vec<Range<u64>>,
    },
    /// More records of a part exist than the checkpoint counts: erased records came back.
    Back(HistoryPart),
    /// Frames, snapshots or ends of these runs were erased, but fewer of the runs were dropped or replaced since.
    RunRecordsMissing {
        /// Numbers of runs that share the wrong counts.
        runs: Vec<Range<u64>>,
        /// How many records are missing, at least.
        missing: u64,
    },
    /// More records of these runs exist than the checkpoint counts: dropped or replaced runs came back.
    RunRecordsBack {
        /// Numbers of runs that share the wrong counts.
        runs: Vec<Range<u64>>,
        /// How many records came back, at least.
        more: u64,
    },
    /// Records that nothing erases are gone: tombstones of runs, statements of erasures, or definitions of namespaces
    /// and keyspaces.
    PermanentMissing {
        /// Those that the checkpoint counts.
        expected: u64,
        /// Those of them that exist.
        found: u64,
    },
    /// An older checkpoint than the compared one is not of this history, or counts more or other records than this
    /// history explains. So the compared one was made after the store was rolled back, rewritten or emptied.
    /// [`Store::verify_against`] with the older one shows the difference.
    OlderCheckpoint {
        /// Its place among the older checkpoints that were given.
        index: usize,
    },
    /// The log cannot be read beyond some point, so the rest of it could not be compared.
    Unreadable {
        /// Where reading failed, and why.
        what: String,
    },
}

/// Most leaves that a compaction puts under one node. A greater node would hide the end of any checkpoint.
const ERASED_LEAVES_MAX: u64 = 64;

/// A part of the checkpoint's history. Its precision is that of the checkpoint's marks, so some of its
/// records may be unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPart {
    /// Leaves, counted from 0.
    pub leaves: Range<u64>,
    /// Its first record.
    pub first: Seqno,
    /// Its last record.
    pub last: Seqno,
    /// When the last batch before it was queued, nanoseconds since 1970-01-01 UTC; `None` for the first part.
    pub after_ns: Option<u64>,
    /// When its last batch was queued, nanoseconds since 1970-01-01 UTC.
    pub until_ns: u64,
}

impl Store {
    /// Compares the store's history with a checkpoint's. Later history is not compared, but what was erased
    /// from the covered history must be stated in it.
    ///
    /// Reads the whole log once, in bounded memory; twice if something was erased without a tombstone.
    ///
    /// # Errors
    /// `Invalid` if the checkpoint's marks do not add up; `Unavailable`. Differences are not errors.
    pub fn verify_against(&self, checkpoint: &Checkpoint) -> Result<Comparison> {
        self.verify_against_all(checkpoint, &[])
    }

    /// As [`Store::verify_against`], and also checks that older checkpoints of this store are of the same history. If
    /// only the newest one were compared, making one would hide whatever was done to the store before.
    ///
    /// Reads the log no more often than with one checkpoint. The end of an older checkpoint cannot be compared where it
    /// was erased together with younger leaves; then only its counts are, and [`Comparison::left_out`] has it. Those of
    /// other stores are not compared.
    ///
    /// # Errors
    /// As [`Store::verify_against`].
    pub fn verify_against_all(&self, checkpoint: &Checkpoint, older: &[Checkpoint]) -> Result<Comparison> {
        [checkpoint].into_iter().chain(older).try_for_each(Checkpoint::check)?;
        let mut differences = Vec::new();
        if checkpoint.store != self.id() {
            differences.push(CheckpointDifference::AnotherStore { found: self.id() });
            return Ok(Comparison { leaves: checkpoint.leaves, differences, ..Comparison::default() });
        }
        let mut held = MarkChecker::new(checkpoint);
        let mut living = LivingCounts::new(older.iter().chain([checkpoint]));
        let mut older = OlderCheckpoints::new(self.id(), older);
        let mut last = (0, Seqno(0));
        let mut of_runs = None;
        let core = self.core();
        let walked = find(&*core.io, &core.paths, false, false, core.options.read_mode).and_then(|found| {
            let mut walked = walk(&*core.schema, &found, checkpoint.leaves, &mut |visit| {
                match visit {
                    Visit::Leaf(leaf) => {
                        living.fill(leaf.index, leaf.census.living);
                        older.reach(leaf.before, leaf.census);
                        older.pass(leaf.index..leaf.end());
                        held.subtree(leaf.index, leaf.node);
                        last = (leaf.end().min(checkpoint.leaves), leaf.last);
                    }
                    Visit::End(tree, census) => {
                        living.fill(u64::MAX, census.living);
                        older.reach(tree, census);
                        of_runs = RunChecker::new(checkpoint, census);
                    }
                }
                Ok(())
            })?;
            let report = walked.census.finish(&*core.schema, &found)?;
            Ok((walked.census, report))
        });
        differences.append(&mut held.differences);
        let (mut erased_since, mut notes) = (None, Vec::new());
        let mut erased_since_oldest = older.erased_since_oldest();
        let left_out = older.left_out.clone();
        if let Ok((census, report)) = &walked {
            notes = report.notes();
            differences.extend(older.finish(census, &living));
            differences.extend(report.problems().into_iter().map(|what| match what.starts_with(FORGED) {
                true => CheckpointDifference::Forged { what },
                false => CheckpointDifference::Erased { what },
            }));
            if let Some(counts) = checkpoint.counts.filter(|_| last.0 == checkpoint.leaves) {
                differences.extend(compare_counts(&counts, census.living, checkpoint.seqno, census));
                differences.extend(living.back(checkpoint).map(CheckpointDifference::Back));
                differences.extend(of_runs.into_iter().flat_map(|runs| runs.finish(census)));
                erased_since = Some(counts.living.saturating_sub(census.living));
                erased_since_oldest = erased_since_oldest.or(erased_since);
            }
        }
        match walked {
            Ok(_) if last.0 < checkpoint.leaves => {
                let from = checkpoint.marks.partition_point(|mark| mark.leaves <= last.0);
                let mut part = part_of_marks(checkpoint, from, checkpoint.marks.len() - 1);
                part.leaves.start = last.0;
                part.first = part.first.max(Seqno(last.1.0.saturating_add(1))).min(part.last);
                differences.push(CheckpointDifference::RolledBack(part));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(error) => differences.push(CheckpointDifference::Unreadable { what: error.to_string() }),
        }
        let (leaves, read, erased) = (checkpoint.leaves, last.0, held.erased);
        let in_parts = checkpoint.parts.is_some();
        Ok(Comparison {
            leaves,
            read,
            erased,
            erased_since,
            erased_since_oldest,
            in_parts,
            left_out,
            notes,
            differences,
        })
    }
}

/// What the counts of a checkpoint, which ends with record `seqno`, show about the same leaves now, of which `living`
/// records exist.
fn compare_counts(
    counts: &RecordCounts,
    living: u64,
    seqno: Seqno,
    census: &LogCensus,
) -> Vec<CheckpointDifference> {
    let mut all = Vec::new();
    let (expected, found, stated) = (counts.living, living, census.stated_after(seqno));
    if found > expected {
        all.push(CheckpointDifference::More { expected, found });
    } else if expected - found > stated {
        all.push(CheckpointDifference::Fewer { expected, found, stated });
    }
    let (expected, (found, missing)) = (counts.runs, census.used_runs(counts.last_run.saturating_add(1)));
    if found < expected {
        all.push(CheckpointDifference::RunsMissing { expected, found, missing });
    }
    all
}

/// The records that exist before each end of a mark.
struct LivingCounts {
    /// Ends of marks, in leaves, ascending.
    ends: Vec<u64>,
    /// Filled during the walk.
    living: Vec<u64>,
}

impl LivingCounts {
    fn new<'a>(checkpoints: impl Iterator<Item = &'a Checkpoint>) -> Self {
        let counted = checkpoints.filter(|checkpoint| checkpoint.parts.is_some());
        let mut ends: Vec<u64> =
            counted.flat_map(|checkpoint| checkpoint.marks.iter().map(|mark| mark.leaves)).collect();
        ends.sort_unstable();
        ends.dedup();
        Self { ends, living: Vec::new() }
    }

    /// `living` records exist in the leaves before leaf `at`. In leaves that have no number of their own any more none exists.
    fn fill(&mut self, at: u64, living: u64) {
        while self.ends.get(self.living.len()).is_some_and(|end| *end <= at) {
            self.living.push(living);
        }
    }

    /// The marks that hold more records than the checkpoint counts.
    fn back(&self, checkpoint: &Checkpoint) -> impl Iterator<Item = HistoryPart> {
        let counts = checkpoint.parts.iter().flat_map(|parts| &parts.living_by_mark);
        let mut before = 0;
        counts.enumerate().filter_map(move |(at, expected)| {
            let end = self.ends.partition_point(|end| *end < checkpoint.marks[at].leaves);
            let found = self.living[end] - std::mem::replace(&mut before, self.living[end]);
            (found > *expected).then(|| part_of_marks(checkpoint, at, at))
        })
    }
}

/// Compares older checkpoints with the tree while it grows.
struct OlderCheckpoints<'a> {
    /// With their places, by leaves, the last one first.
    left: Vec<(usize, &'a Checkpoint)>,
    /// Those that are of this history, and the records of their leaves that exist.
    held: Vec<(usize, &'a Checkpoint, u64)>,
    contradicted: Vec<usize>,
    /// Those of `held` whose root could not be compared.
    left_out: Vec<usize>,
    /// By run numbers, from and to: the most records that ends of lives must explain in the whole log, and the checkpoint
    /// that asks for it. One for each part, since a checkpoint that asks for less shows nothing more.
    to_explain: HashMap<(u64, u64), (u64, usize)>,
}

impl<'a> OlderCheckpoints<'a> {
    fn new(store: StoreId, all: &'a [Checkpoint]) -> Self {
        let of_store = all.iter().enumerate().filter(|(_, checkpoint)| checkpoint.store == store);
        let mut left: Vec<_> = of_store.collect();
        left.sort_by_key(|(_, checkpoint)| std::cmp::Reverse(checkpoint.leaves));
        Self {
            left,
            held: Vec::new(),
            contradicted: Vec::new(),
            left_out: Vec::new(),
            to_explain: HashMap::new(),
        }
    }

    /// Compares those that end with this tree, of which `census` counts the records.
    fn reach(&mut self, tree: &Frontier, census: &LogCensus) {
        let living = census.living;
        while let Some((index, checkpoint)) =
            self.left.pop_if(|(_, checkpoint)| checkpoint.leaves <= tree.leaves)
        {
            if let Some(runs) = RunChecker::new(checkpoint, census) {
                self.note_runs(index, runs);
            }
            match checkpoint.leaves == tree.leaves {
                true if checkpoint.root.0 != tree.root() => self.contradicted.push(index),
                true => self.held.push((index, checkpoint, living)),
                // Its last leaves were erased together with younger ones, so no record of them is among the living.
                false => {
                    self.left_out.push(index);
                    self.held.push((index, checkpoint, living));
                }
            }
        }
    }

    fn note_runs(&mut self, index: usize, checker: RunChecker) {
        if checker.differs() {
            self.contradicted.push(index);
        }
        for (runs, lost, explained) in checker.lost {
            let asked = (lost.saturating_add(explained), index);
            let most = self.to_explain.entry((runs.start, runs.end)).or_insert(asked);
            *most = (*most).max(asked);
        }
    }

    /// Records of the oldest checkpoint that counts them that do not exist any more.
    fn erased_since_oldest(&self) -> Option<u64> {
        let oldest = |(_, checkpoint, found): &(_, &Checkpoint, u64)| {
            Some(checkpoint.counts.as_ref()?.living.saturating_sub(*found))
        };
        self.held.iter().find_map(oldest)
    }

    /// Contradicts those that end inside a subtree of erased leaves that no compaction makes.
    fn pass(&mut self, leaves: Range<u64>) {
        if leaves.end - leaves.start <= ERASED_LEAVES_MAX {
            return;
        }
        while let Some((index, _)) = self.left.pop_if(|(_, checkpoint)| checkpoint.leaves < leaves.end) {
            self.contradicted.push(index);
        }
    }

    /// The differences, once the census knows what the whole log states.
    fn finish(self, census: &LogCensus, living: &LivingCounts) -> impl Iterator<Item = CheckpointDifference> {
        let miscounts = |(index, checkpoint, found): &(usize, &Checkpoint, u64)| {
            let counts = checkpoint.counts?;
            let differences = compare_counts(&counts, *found, checkpoint.seqno, census);
            (!differences.is_empty() || living.back(checkpoint).next().is_some()).then_some(*index)
        };
        let mut all = self.contradicted;
        all.extend(self.held.iter().filter_map(miscounts));
        for ((start, end), (asked, place)) in &self.to_explain {
            let explained = census.run_records.explained(&(*start..*end));
            all.extend((explained < *asked).then_some(*place));
        }
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|index| CheckpointDifference::OlderCheckpoint { index })
    }
}

/// Compares a checkpoint's marks with the store's leaves during the walk.
struct MarkChecker<'a> {
    checkpoint: &'a Checkpoint,
    /// Index of the current mark.
    next: usize,
    /// The tree over the visited leaves of the current mark.
    current: Frontier,
    erased: u64,
    differences: Vec<CheckpointDifference>,
}

impl<'a> MarkChecker<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, next: 0, current: Frontier::default(), erased: 0, differences: Vec::new() }
    }

    /// Adds a leaf, or a subtree of erased leaves. A subtree over several marks is compared with their common
    /// root, since the nodes below it are gone.
    fn subtree(&mut self, index: u64, node: LedgerNode) {
        let end = index + (1 << node.height);
        let marks = &self.checkpoint.marks;
        let Some(mark) = marks.get(self.next) else { return };
        // Both are complete subtrees of one tree: one contains the other, or they have no leaf in common.
        if self.current.push_node(node).is_err() || end < mark.leaves {
            return;
        }
        let found = std::mem::take(&mut self.current).root();
        let from = std::mem::replace(&mut self.next, marks.partition_point(|mark| mark.leaves <= end));
        let (held, mut begins) = (&marks[from..self.next], index);
        if end > self.checkpoint.leaves {
            let to = marks.len() - 1;
            self.next = marks.len();
            self.erased = self.checkpoint.leaves - index;
            if end - index > ERASED_LEAVES_MAX {
                self.note_rewritten(from, to);
            }
            return;
        }
        let tiles = held.iter().map(|mark| {
            let len = mark.leaves - std::mem::replace(&mut begins, mark.leaves);
            (len, mark.node.0)
        });
        let expected = match held {
            [one] => Some(one.node.0),
            _ => tree::fold_subtrees(tiles),
        };
        if expected != Some(found) {
            self.note_rewritten(from, self.next - 1);
        }
    }

    fn note_rewritten(&mut self, from: usize, to: usize) {
        let more = part_of_marks(self.checkpoint, from, to);
        match self.differences.last_mut() {
            Some(CheckpointDifference::Rewritten(part)) if part.leaves.end == more.leaves.start => {
                (part.leaves.end, part.last) = (more.leaves.end, more.last);
                part.until_ns = more.until_ns;
            }
            _ => self.differences.push(CheckpointDifference::Rewritten(more)),
        }
    }
}

/// The marks `from..=to` as one part.
fn part_of_marks(checkpoint: &Checkpoint, from: usize, to: usize) -> HistoryPart {
    let before = from.checked_sub(1).map(|before| checkpoint.marks[before]);
    let last = checkpoint.marks[to];
    HistoryPart {
        leaves: before.map_or(0, |mark| mark.leaves)..last.leaves,
        first: Seqno(before.map_or(0, |mark| mark.seqno.0).saturating_add(1)),
        last: last.seqno,
        after_ns: before.map(|mark| mark.time_ns),
        until_ns: last.time_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeHash;
    use crate::ledger::checkpoint::Mark;

    /// A checkpoint of `leaves` leaves, each with a mark of its own.
    fn checkpoint(leaves: u64) -> Checkpoint {
        let mark =
            |at: u64| Mark { leaves: at, seqno: Seqno(at), time_ns: at, node: NodeHash([at as u8; 32]) };
        Checkpoint {
            store: StoreId([7; 16]),
            leaves,
            seqno: Seqno(leaves),
            time_ns: 1,
            root: NodeHash([1; 32]),
            marks: (1..=leaves).map(mark).collect(),
            counts: None,
            parts: None,
        }
    }

    /// Regression: a node of any height over a checkpoint's end was taken for a compaction's, so one node over the whole
    /// history hid that another one had been put in its place. An older checkpoint that ended in it was passed over.
    #[test]
    fn node_that_no_compaction_makes_hides_no_checkpoint() {
        for (height, is_contradicted) in [(6, false), (7, true)] {
            let node = LedgerNode { height, hash: [9; 32] };
            let newest = checkpoint(20);
            let mut held = MarkChecker::new(&newest);
            held.subtree(0, node);
            assert_eq!((held.erased, held.differences.len()), (20, usize::from(is_contradicted)), "{height}");
            let all = [checkpoint(10)];
            let mut older = OlderCheckpoints::new(StoreId([7; 16]), &all);
            older.pass(0..1 << height);
            let mut tree = Frontier::default();
            tree.push_node(node).unwrap();
            older.reach(&tree, &LogCensus::default());
            let found = (older.contradicted.as_slice(), older.left_out.as_slice());
            let expected: (&[usize], &[usize]) = if is_contradicted { (&[0], &[]) } else { (&[], &[0]) };
            assert_eq!(found, expected, "{height}");
        }
    }
}
