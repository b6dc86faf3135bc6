//! Checkpoints: the ledger's head at one time, small enough to keep elsewhere.

use std::fmt::Write as _;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::ids::{NodeHash, Seqno, StoreId};
use crate::ledger::tree;
use crate::ledger::walk::{Leaf, Visit, WalkedLog, open_log, walk};
use crate::log::layout::COUNT_MAX;
use crate::log::ledger::Frontier;
use crate::store::Store;
use crate::trace::census::LogCensus;
use crate::trace::run_counts::{PARTS_MAX, RunPart};

/// Maximum number of a checkpoint's marks.
pub(super) const MARKS_MAX: usize = 64;

/// The ledger's head at one time. Comparing a store with it shows later whether the covered history was
/// rewritten, and where.
///
/// It covers every logical record of the log's first batches: kind, layout, seqno, salt and head of each, and
/// so every field and the BLAKE3 of every body. It does not cover how bodies are stored. It does not cover
/// the times of batches either, but those that frames, runs and values have themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The store's identity.
    pub store: StoreId,
    /// Number of leaves of the tree: batches with a logical record.
    pub leaves: u64,
    /// The tree's root.
    pub root: NodeHash,
    /// The last covered record; 0 if none is covered.
    pub seqno: Seqno,
    /// When it was made, by the store's clock, in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// What the covered leaves hold; `None` in a checkpoint of version 1.
    pub counts: Option<RecordCounts>,
    /// Where those records are; `None` before version 3.
    pub parts: Option<PartCounts>,
    /// At most 64 complete subtrees that tile the tree, from the left. They show where two histories differ.
    pub marks: Vec<Mark>,
}

/// What the store held when a checkpoint was made. A store that holds less later must say why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordCounts {
    /// Logical records that existed.
    pub living: u64,
    /// Erased records. Living and erased records are at most `seqno`: parts of bodies are neither.
    pub erased: u64,
    /// Leaves of which no record existed.
    pub erased_leaves: u64,
    /// Run numbers that had a record, a tombstone, or a place in a statement of erasures.
    pub runs: u64,
    /// The greatest run number in use; 0 if there was no run.
    pub last_run: u64,
}

/// How many records the parts of a store held when a checkpoint was made. What one part lost does not make up for
/// what another one got back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartCounts {
    /// Logical records that existed, by mark.
    pub living_by_mark: Vec<u64>,
    /// Records that nothing erases: tombstones, statements of erasures, and definitions of namespaces and keyspaces.
    pub permanent: u64,
    /// How many run numbers a part has: the least power of two that gives at most 256 parts with a record.
    pub run_span: u64,
    /// Those parts, ascending.
    pub runs: Vec<RunPart>,
}

impl PartCounts {
    /// Whether they agree with each other and with the checkpoint's other counts.
    fn agrees_with(&self, counts: &RecordCounts, marks: usize) -> bool {
        let mut next = 0;
        let mut records = Some(self.permanent);
        for part in &self.runs {
            let own = sum(&[part.records, part.dropped, part.snapshots]);
            if part.first < next || !part.first.is_multiple_of(self.run_span) || own == Some(0) {
                return false;
            }
            next = part.first.saturating_add(self.run_span);
            records = records.zip(own).and_then(|(all, own)| all.checked_add(own));
        }
        self.run_span.is_power_of_two()
            && self.runs.len() <= PARTS_MAX
            && self.runs.last().is_none_or(|part| part.first <= counts.last_run)
            && self.living_by_mark.len() == marks
            && sum(&self.living_by_mark) == Some(counts.living)
            && records.is_some_and(|records| records <= counts.living)
    }
}

fn sum(list: &[u64]) -> Option<u64> {
    list.iter().try_fold(0u64, |sum, count| sum.checked_add(*count))
}

/// A complete subtree of a checkpoint's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The end of its leaves, exclusive. They begin where those of the mark before end.
    pub leaves: u64,
    /// The last record of its last leaf.
    pub seqno: Seqno,
    /// When its last batch was queued, nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Its root.
    pub node: NodeHash,
}

/// An Ed25519 signature (RFC 8032) of [`Checkpoint::statement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The signer's public key.
    pub public_key: [u8; 32],
    /// The signature.
    pub bytes: [u8; 64],
}

impl Checkpoint {
    /// The bytes that are signed: lines of text with every field, each ending in a newline.
    #[must_use]
    pub fn statement(&self) -> Vec<u8> {
        let mut text = format!("annals checkpoint {}\n", self.version());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "store {}\nleaves {}\nroot {}", self.store, self.leaves, self.root);
        let _ = writeln!(text, "seqno {}\ntime_ns {}", self.seqno, self.time_ns);
        if let Some(counts) = &self.counts {
            let RecordCounts { living, erased, erased_leaves, runs, last_run } = counts;
            let _ = writeln!(text, "living {living}\nerased {erased}\nerased_leaves {erased_leaves}");
            let _ = writeln!(text, "runs {runs}\nlast_run {last_run}");
        }
        if let Some(PartCounts { living_by_mark, permanent, run_span, runs }) = &self.parts {
            let _ = write!(text, "living_by_mark");
            for count in living_by_mark {
                let _ = write!(text, " {count}");
            }
            let _ = writeln!(text, "\npermanent {permanent}\nrun_span {run_span}");
            for RunPart { first, records, dropped, snapshots } in runs {
                let _ = writeln!(text, "runs {first} {records} {dropped} {snapshots}");
            }
        }
        for mark in &self.marks {
            let _ = writeln!(text, "mark {} {} {} {}", mark.leaves, mark.seqno, mark.time_ns, mark.node);
        }
        text.into_bytes()
    }

    /// Version of its form: 3 with counts of parts, 2 with counts of the whole, 1 without.
    #[must_use]
    pub fn version(&self) -> u32 {
        match (&self.counts, &self.parts) {
            (None, _) => 1,
            (Some(_), None) => 2,
            (Some(_), Some(_)) => 3,
        }
    }

    /// BLAKE3 of [`Checkpoint::statement`]: an identifier of the checkpoint, short enough to be read aloud.
    #[must_use]
    pub fn digest(&self) -> NodeHash {
        NodeHash(*blake3::hash(&self.statement()).as_bytes())
    }

    /// Fails if the marks do not tile the checkpoint's tree.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("this is not a checkpoint of annals: {what}")));
        if self.marks.len() > MARKS_MAX {
            return wrong("it has over 64 marks");
        }
        let mut before = (0, Seqno(0));
        let mut tiles = Vec::new();
        for mark in &self.marks {
            if mark.leaves <= before.0 || mark.seqno <= before.1 {
                return wrong("its marks are not in order");
            }
            tiles.push((mark.leaves - before.0, mark.node.0));
            before = (mark.leaves, mark.seqno);
        }
        if before != (self.leaves, self.seqno) || tree::fold_subtrees(tiles) != Some(self.root.0) {
            return wrong("its marks do not add up to its root");
        }
        if let Some(counts) = &self.counts {
            let records = counts.living.checked_add(counts.erased);
            if records.is_none_or(|records| records > self.seqno.0)
                || counts.erased_leaves > self.leaves
                || counts.runs > counts.last_run
                || counts.last_run > COUNT_MAX
            {
                return wrong("its counts contradict each other");
            }
        }
        match (&self.counts, &self.parts) {
            (_, None) => Ok(()),
            (Some(counts), Some(parts)) if parts.agrees_with(counts, self.marks.len()) => Ok(()),
            _ => wrong("its counts of parts contradict the others"),
        }
    }
}

impl Store {
    /// Makes a checkpoint of the current ledger. It covers everything that readers see, and is returned only
    /// after all of that is synced.
    ///
    /// Reads the whole log once, in bounded memory.
    ///
    /// # Errors
    /// `Damaged` if the log is damaged; `Unavailable`.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let core = self.core();
        let (found, state) = open_log(core)?;
        let mut making = CheckpointBuilder::new(state.ledger.leaves);
        let walked = walk(&*core.schema, &found, state.ledger.leaves, &mut |visit| {
            making.visit(&visit);
            Ok(())
        })?;
        // After a power cut, the log must still have everything that a checkpoint kept elsewhere covers.
        core.sync_log(&*found.segments.get(walked.end.segment)?.file)?;
        making.finish(self, &walked)
    }
}

/// Builds a checkpoint during a walk over the leaves.
pub(super) struct CheckpointBuilder {
    /// The spans of leaves that the marks cover, the next one last.
    spans: Vec<Range<u64>>,
    /// The tree over the visited leaves of the current span.
    current: Frontier,
    marks: Vec<Mark>,
    /// The records that existed before each mark.
    living_before: Vec<u64>,
    leaves: u64,
    counts: Option<(RecordCounts, PartCounts)>,
}

impl CheckpointBuilder {
    pub(super) fn new(leaves: u64) -> Self {
        let mut spans = tree::tiles(leaves, MARKS_MAX as u64);
        // The next span comes last, so that it can be popped.
        spans.reverse();
        let (current, marks, living_before) = (Frontier::default(), Vec::new(), Vec::new());
        Self { spans, current, marks, living_before, leaves, counts: None }
    }

    pub(super) fn visit(&mut self, visit: &Visit<'_>) {
        match visit {
            Visit::Leaf(leaf) => self.leaf(leaf),
            Visit::End(_, census) => self.count(census),
        }
    }

    /// Adds a leaf, or a subtree of erased leaves. All spans within a subtree become one mark, since the
    /// nodes below it are gone.
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        let Some(span) = self.spans.last().cloned() else { return };
        if self.current.leaves == 0 {
            self.living_before.push(leaf.census.living);
        }
        // Both are complete subtrees of one tree: one contains the other, or they have no leaf in common.
        if self.current.push_node(leaf.node).is_err() || leaf.end() < span.end {
            return;
        }
        let tree = std::mem::take(&mut self.current);
        while self.spans.pop_if(|span| span.end <= leaf.end()).is_some() {}
        let (seqno, time_ns) = (leaf.last, leaf.batch.header.time_ns);
        self.marks.push(Mark { leaves: leaf.end(), seqno, time_ns, node: NodeHash(tree.root()) });
    }

    fn count(&mut self, census: &LogCensus) {
        let last_run = census.next_run() - 1;
        let counts = RecordCounts {
            living: census.living,
            erased: census.erased,
            erased_leaves: census.erased_leaves,
            runs: census.recorded_runs(census.next_run()),
            last_run,
        };
        let ends = self.living_before.iter().skip(1).chain([&census.living]);
        let living_by_mark = ends.zip(&self.living_before).map(|(end, begin)| end - begin).collect();
        let run_span = census.run_records.part_span();
        let runs = census.run_records.parts(run_span);
        let parts = PartCounts { living_by_mark, permanent: census.permanent, run_span, runs };
        self.counts = Some((counts, parts));
    }

    pub(super) fn finish(self, store: &Store, walked: &WalkedLog) -> Result<Checkpoint> {
        let tree = &walked.tree;
        if tree.leaves != self.leaves || !self.spans.is_empty() {
            let what =
                format!("the log has {} leaves, but its state says it has {}", tree.leaves, self.leaves);
            return Err(Error::new(crate::ErrorKind::Damaged, what));
        }
        let (counts, parts) = self.counts.unzip();
        Ok(Checkpoint {
            store: store.id(),
            leaves: tree.leaves,
            root: NodeHash(tree.root()),
            seqno: self.marks.last().map(|mark| mark.seqno).unwrap_or_default(),
            time_ns: store.core().io.now_ns(),
            counts,
            parts,
            marks: self.marks,
        })
    }
}
