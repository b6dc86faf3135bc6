//! Comparing a store with a checkpoint that was kept elsewhere.

use std::ops::Range;

use crate::error::{ErrorKind, Result};
use crate::ids::{Seqno, StoreId};
use crate::ledger::checkpoint::Checkpoint;
use crate::ledger::tree;
use crate::ledger::walk::{Leaf, walk};
use crate::log::ledger::Frontier;
use crate::log::open::find;
use crate::store::Store;

/// What became of the history that a checkpoint covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Leaves that the checkpoint covers.
    pub leaves: u64,
    /// Leaves of the store that were read, at most as many.
    pub read: u64,
    /// Leaves at the checkpoint's end that cannot be compared, since they were erased together with younger ones, and what
    /// is left of both is one node over all of them. Fewer than 64, and none where anything of the last batch that the
    /// checkpoint covers is still there.
    pub erased: u64,
    /// How the store differs: empty where it still begins with just what the checkpoint covers.
    pub differences: Vec<CheckpointDifference>,
}

/// How a store differs from a checkpoint.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointDifference {
    /// The checkpoint is one of another store.
    AnotherStore {
        /// This store.
        found: StoreId,
    },
    /// These records are others than they were, or stand elsewhere.
    Rewritten(HistoryPart),
    /// The store ends before these: it was rolled back to an older state.
    RolledBack(HistoryPart),
    /// The log cannot be read any further, so that nothing can be said of what follows.
    Unreadable {
        /// Where, and why.
        what: String,
    },
}

/// A part of the history as the checkpoint has it. The checkpoint knows no smaller parts than its marks, so not all of
/// it need differ.
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
    /// When its last batch was queued.
    pub until_ns: u64,
}

impl Store {
    /// Whether the store still begins with just what a checkpoint covers; what came later is not looked at.
    ///
    /// Reads the whole log once, in bounded memory.
    ///
    /// # Errors
    /// `Invalid` for a checkpoint whose marks do not add up; `Unavailable`. Differences are no errors.
    pub fn verify_against(&self, checkpoint: &Checkpoint) -> Result<Comparison> {
        checkpoint.check()?;
        let mut differences = Vec::new();
        if checkpoint.store != self.id() {
            differences.push(CheckpointDifference::AnotherStore { found: self.id() });
            return Ok(Comparison { leaves: checkpoint.leaves, read: 0, erased: 0, differences });
        }
        let mut held = MarkChecker::new(checkpoint);
        let mut last = (0, Seqno(0));
        let core = self.core();
        let walked = find(&*core.io, &core.paths, false, false, core.options.read_mode).and_then(|found| {
            walk(&*core.schema, &found, checkpoint.leaves, &mut |leaf| {
                held.leaf(leaf);
                last = (leaf.end().min(checkpoint.leaves), leaf.last);
                Ok(())
            })
        });
        differences.append(&mut held.differences);
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
        Ok(Comparison { leaves: checkpoint.leaves, read: last.0, erased: held.erased, differences })
    }
}

/// A checkpoint's marks, held against the leaves that go by.
struct MarkChecker<'a> {
    checkpoint: &'a Checkpoint,
    /// The mark at hand.
    next: usize,
    /// Of that mark, what has gone by.
    current: Frontier,
    erased: u64,
    differences: Vec<CheckpointDifference>,
}

impl<'a> MarkChecker<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, next: 0, current: Frontier::default(), erased: 0, differences: Vec::new() }
    }

    /// Takes in a leaf, or a subtree. Where that holds several marks, they are folded: the nodes below it are gone.
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        let marks = &self.checkpoint.marks;
        let Some(mark) = marks.get(self.next) else { return };
        // Both are subtrees of one tree: either holds the other, or they have no leaf in common.
        if self.current.push_node(leaf.node).is_err() || leaf.end() < mark.leaves {
            return;
        }
        let found = std::mem::take(&mut self.current).root();
        let from = std::mem::replace(&mut self.next, marks.partition_point(|mark| mark.leaves <= leaf.end()));
        let (held, mut begins) = (&marks[from..self.next], leaf.index);
        if leaf.end() > self.checkpoint.leaves {
            self.next = marks.len();
            self.erased = self.checkpoint.leaves - leaf.index;
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
