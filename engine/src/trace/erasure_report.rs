//! What a pass over the log finds about erased and forged records, and how it is said.

use std::fmt;
use std::ops::Range;

/// Ranges of run numbers that a note names.
const LISTED_RANGES_MAX: usize = 8;
/// Begins the sentence of every erasure that nothing explains.
pub(crate) const ERASED: &str = "erased without a tombstone";
/// Begins the sentence of records that no recorder writes.
pub(crate) const FORGED: &str = "records that annals does not write";

/// Consecutive erased records that no statement explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnexplainedErasure {
    /// The erased records: seqnos, the end excluded.
    pub records: Range<u64>,
    /// The leaves that held them, counted from 0, the end excluded. Empty if they were in no leaf: stored bytes
    /// of bodies.
    pub leaves: Range<u64>,
    /// The leaves have no record left.
    pub whole: bool,
}

/// What a pass over the log found about erased records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErasureReport {
    /// Number of erased records: content, and stored bytes of bodies, which compactions write anew.
    pub records: u64,
    /// Of those, content: versions of keys and records of runs that nothing needs any more, or that were forgotten.
    pub content: u64,
    /// Number of compactions that the ledger says erased something, and the time of the last one, nanoseconds since
    /// 1970-01-01 UTC.
    pub compactions: u64,
    /// See `compactions`; 0 if there was none.
    pub compacted_ns: u64,
    /// Erased records that no statement in the ledger explains.
    pub unexplained: Vec<UnexplainedErasure>,
    /// Number of log files with records that were erased before format 4. Whether that was a compaction cannot be
    /// checked.
    pub uncheckable: u64,
    /// Runs whose frames exist, but that have neither a record nor a tombstone: ranges of run numbers.
    pub orphaned_runs: Vec<Range<u64>>,
    /// Run numbers without any record, tombstone or statement.
    pub missing_runs: Vec<Range<u64>>,
    /// Run numbers without a record that the ledger calls unused. A forger may have called a removed run so; only
    /// a checkpoint can tell.
    pub unused_runs: Vec<Range<u64>>,
    /// Run numbers without a record that the ledger calls missing since before format 4. Nobody can check that.
    pub earlier_runs: Vec<Range<u64>>,
    /// Runs with a record that is younger than the tombstone, replacement or statement that ended the run's life, or
    /// that a statement says is erased.
    pub revived_runs: Vec<Range<u64>>,
    /// Runs with records that replace whole frames, snapshots or a final end.
    pub changed_runs: Vec<Range<u64>>,
    /// Runs that took the name of a living run.
    pub namesakes: Vec<Range<u64>>,
    /// Numbers of namespaces and keyspaces with two definitions, with the name of another one, or that no writer gives.
    pub renamed_spaces: Vec<u32>,
    /// Numbers of keyspaces with keys that the log does not define. Keys with numbers below 16 would change the engine's
    /// own index.
    pub stray_spaces: Vec<u32>,
    /// The store was closed cleanly in this format, so numbers that were taken and not used are stated. A missing
    /// run was then removed. Else a missing run may still begin, or the next opening for writing states it.
    pub is_settled: bool,
}

impl ErasureReport {
    /// The erasures that nothing explains, and records that annals does not write, as sentences. Empty in a sound store.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (at, erased) in self.unexplained.iter().enumerate() {
            let runs = match self.missing_runs.is_empty() || at + 1 < self.unexplained.len() {
                true => String::new(),
                false => format!("; without a record now: {}", run_numbers(&self.missing_runs)),
            };
            all.push(format!("{ERASED}: {erased}{runs}"));
        }
        if self.is_settled && self.unexplained.is_empty() && !self.missing_runs.is_empty() {
            all.push(format!("{ERASED}: {}", run_numbers(&self.missing_runs)));
        }
        if !self.orphaned_runs.is_empty() {
            let runs = run_numbers(&self.orphaned_runs);
            all.push(format!("{ERASED}: the records of {runs}, whose frames still exist"));
        }
        if !self.revived_runs.is_empty() {
            let runs = run_numbers(&self.revived_runs);
            all.push(format!("{FORGED}: of {runs} after a drop, a replacement or an erasure"));
        }
        if !self.changed_runs.is_empty() {
            let runs = run_numbers(&self.changed_runs);
            all.push(format!("{FORGED}: of {runs} over what was final"));
        }
        if !self.namesakes.is_empty() {
            let runs = run_numbers(&self.namesakes);
            all.push(format!("{FORGED}: of {runs} under the name of another living run"));
        }
        for space in &self.renamed_spaces {
            all.push(format!("{FORGED}: a definition of namespace or keyspace {space} beside another one"));
        }
        for space in &self.stray_spaces {
            all.push(format!("{FORGED}: keys of keyspace {space}, which is not defined"));
        }
        all
    }

    /// What could not be checked, as sentences.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.uncheckable > 0 {
            let files = match self.uncheckable {
                1 => "1 log file".to_owned(),
                some => format!("{some} log files"),
            };
            all.push(format!(
                "erasures before format 4 cannot be checked: {files} compacted by an older annals"
            ));
        }
        if !self.is_settled && self.unexplained.is_empty() && !self.missing_runs.is_empty() {
            let runs = run_numbers(&self.missing_runs);
            all.push(format!(
                "no record and no tombstone of {runs}: not begun yet, or removed; the store is open, or was not closed"
            ));
        }
        let listed = |runs: &[Range<u64>]| match runs.len() {
            ..=LISTED_RANGES_MAX => run_numbers(runs),
            _ => format!("{} run numbers", count_of(runs)),
        };
        if !self.unused_runs.is_empty() {
            let what = listed(&self.unused_runs);
            all.push(format!(
                "never used, as the ledger says: {what}; a checkpoint shows whether that is true"
            ));
        }
        if !self.earlier_runs.is_empty() {
            let what = listed(&self.earlier_runs);
            all.push(format!(
                "without a record since before format 4, as the ledger says: {what}; only an older checkpoint or backup can show whether that is true"
            ));
        }
        all
    }
}

impl fmt::Display for UnexplainedErasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |one: &str, many: &str, range: &Range<u64>| match range.end.saturating_sub(range.start) {
            0 | 1 => format!("{one} {}", range.start),
            _ => format!("{many} {} to {}", range.start, range.end.saturating_sub(1)),
        };
        let (records, leaves) =
            (span("record", "records", &self.records), span("leaf", "leaves", &self.leaves));
        match (self.leaves.is_empty(), self.whole) {
            (true, _) => write!(f, "{records}, in no leaf"),
            (false, true) => write!(f, "{leaves} ({records})"),
            (false, false) => write!(f, "{records} of {leaves}"),
        }
    }
}

/// Run numbers as text: `run 8`, `runs 8, 11 to 13`.
#[must_use]
pub fn run_numbers(runs: &[Range<u64>]) -> String {
    let word = match runs {
        [one] if one.end - one.start == 1 => "run",
        _ => "runs",
    };
    let numbers: Vec<String> = (runs.iter())
        .map(|range| match range.end - range.start {
            1 => range.start.to_string(),
            _ => format!("{} to {}", range.start, range.end - 1),
        })
        .collect();
    format!("{word} {}", numbers.join(", "))
}

/// How many run numbers the ranges have.
pub(super) fn count_of(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexplained_erasure_is_named_by_leaves_and_records() {
        let text = |records, leaves, whole| UnexplainedErasure { records, leaves, whole }.to_string();
        assert_eq!(text(40..60, 31..41, true), "leaves 31 to 40 (records 40 to 59)");
        assert_eq!(text(40..41, 31..32, false), "record 40 of leaf 31");
        assert_eq!(text(40..42, 31..31, false), "records 40 to 41, in no leaf");
    }
}
