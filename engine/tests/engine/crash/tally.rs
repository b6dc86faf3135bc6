//! Counts of the tested crashes, by kind of loss and by border crossed; printed at the end of each test.

use std::fmt;
use std::path::Path;

use annals::io::sim::{CrashLosses, OpHistory, OpKind, SimOp};

use super::ledger::continues_a_group;

/// What a workload was doing at the crash.
const BORDERS: [&str; 6] = [
    "a group goes on in a later batch",
    "a segment is sealed, the next one begun",
    "a table is written and listed",
    "a table is removed",
    "a manifest generation replaces another",
    "a clean close",
];

#[derive(Debug, Default, Clone)]
pub(super) struct CrashTally {
    /// Disks built.
    pub(super) states: u64,
    /// Disks that had not been checked before against the same states of the model.
    pub(super) distinct: u64,
    pub(super) workloads: u64,
    pub(super) points: u64,
    losses: [u64; 9],
    unharmed: u64,
    borders: [u64; BORDERS.len()],
    inside: [u64; 3],
    pub(super) after_append: u64,
    pub(super) after_close: u64,
    /// Stores compared with a checkpoint from before the crash.
    pub(super) compared: u64,
}

impl CrashTally {
    pub(super) fn state(&mut self, borders: u8, losses: CrashLosses) {
        self.states += 1;
        for (bit, count) in self.borders.iter_mut().enumerate() {
            *count += u64::from(borders >> bit & 1);
        }
        let kinds = [
            losses.sectors,
            losses.torn_sectors,
            losses.torn_writes,
            losses.reordered,
            losses.lengths,
            losses.hollow,
            losses.creations,
            losses.renames,
            losses.removals,
        ];
        for (count, found) in self.losses.iter_mut().zip(kinds) {
            *count += u64::from(found > 0);
        }
        self.unharmed += u64::from(losses == CrashLosses::default());
    }

    /// Counts a crash inside a recovery, `level` recoveries after the first.
    pub(super) fn inside(&mut self, level: usize) {
        self.inside[level] += 1;
    }

    pub(super) fn crashes(&self) -> u64 {
        self.states + self.inside.iter().sum::<u64>() + self.after_append
    }

    /// How many states crossed each border.
    pub(super) fn crossed(&self) -> &[u64] {
        &self.borders
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.states += other.states;
        self.distinct += other.distinct;
        self.workloads += other.workloads;
        self.points += other.points;
        self.unharmed += other.unharmed;
        self.after_append += other.after_append;
        self.after_close += other.after_close;
        self.compared += other.compared;
        let pairs = [
            (&mut self.losses[..], &other.losses[..]),
            (&mut self.borders, &other.borders),
            (&mut self.inside, &other.inside),
        ];
        for (to, from) in pairs {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
}

impl fmt::Display for CrashTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeated = self.states - self.distinct;
        writeln!(f, "{} workloads, {} crash points", self.workloads, self.points)?;
        writeln!(f, "{:>12} crashes in all", self.crashes())?;
        writeln!(f, "{:>12} crash states of workloads", self.states)?;
        writeln!(f, "{:>12}   checked", self.distinct)?;
        writeln!(f, "{repeated:>12}   the same bytes as one checked before, with the same states allowed")?;
        for (level, count) in self.inside.iter().enumerate() {
            writeln!(f, "{count:>12} crashes inside recovery {}", level + 1)?;
        }
        writeln!(f, "{:>12} crashes after one more commit", self.after_append)?;
        writeln!(f, "{:>12} clean closes after one more commit", self.after_close)?;
        writeln!(f, "{:>12} held against a checkpoint taken before", self.compared)?;
        writeln!(f, "crash states of workloads, by what the crash did:")?;
        let kinds = [
            "sectors lost",
            "a sector torn within",
            "a write torn at a sector",
            "writes reordered",
            "a length lost",
            "a length without its data",
            "a creation lost",
            "a rename lost",
            "a removal lost",
        ];
        for (kind, count) in kinds.iter().zip(self.losses) {
            writeln!(f, "{count:>12} {kind}")?;
        }
        writeln!(f, "{:>12} nothing lost", self.unharmed)?;
        writeln!(f, "crash states of workloads, by the border they stand on:")?;
        for (border, count) in BORDERS.iter().zip(self.borders) {
            writeln!(f, "{count:>12} {border}")?;
        }
        Ok(())
    }
}

fn is_op_on(op: &SimOp, kind: OpKind, suffix: &str) -> bool {
    op.kind() == kind && op.path().to_string_lossy().contains(suffix)
}

/// For each point of a history, the borders that it lies on, as bits in the order of [`BORDERS`].
pub(super) fn borders(history: &OpHistory) -> Vec<u8> {
    let ops = history.ops();
    let mut marks = vec![0u8; ops.len() + 1];
    let mut mark = |bit: u8, from: usize, until: &dyn Fn(&SimOp) -> bool| {
        // The points after operation `from`, up to the one before the ending operation.
        let end = ops.iter().skip(from + 1).position(until).map_or(ops.len(), |n| from + 1 + n);
        marks[from + 1..=end].iter_mut().for_each(|mark| *mark |= 1 << bit);
    };
    let listed = |op: &SimOp| is_op_on(op, OpKind::Sync, "MANIFEST");
    for (index, op) in ops.iter().enumerate() {
        let path: &Path = op.path();
        match op.kind() {
            OpKind::Write if is_op_on(op, OpKind::Write, ".seg") && continues_a_group(op.written()) => {
                mark(0, index, &|other| other.kind() == OpKind::Sync && other.path() == path);
            }
            OpKind::SetLen if is_op_on(op, OpKind::SetLen, ".seg") => {
                let sealed = ops[index..]
                    .iter()
                    .take_while(|op| !listed(op))
                    .any(|op| is_op_on(op, OpKind::Create, ".seg"));
                mark(if sealed { 1 } else { 5 }, index, &listed);
            }
            OpKind::Create if is_op_on(op, OpKind::Create, ".tbl") => mark(2, index, &listed),
            OpKind::Remove if is_op_on(op, OpKind::Remove, ".tbl") => {
                mark(3, index, &|op| op.kind() == OpKind::SyncDir && op.path().ends_with("tables"));
            }
            OpKind::Create if is_op_on(op, OpKind::Create, "MANIFEST") => {
                let mut renamed = false;
                let named = ops[index..].iter().position(|op| {
                    renamed |= op.kind() == OpKind::Rename;
                    renamed && op.kind() == OpKind::SyncDir
                });
                let end = named.map(|n| index + n);
                mark(4, index, &|op| end.is_some_and(|end| std::ptr::eq(op, &ops[end])));
            }
            _ => {}
        }
    }
    marks
}
