//! Crashes at the points of a recorded workload.

use std::collections::HashSet;

use annals::io::sim::{Crash, SimIo};

use super::drive::{DrivenCommit, IndexRoom, WorkloadDriver, WorkloadOp};
use super::oracle::{check, observe};
use super::tally::{CrashTally, borders};
use crate::support::SeededRng;

/// Maximum number of remembered states. Then all are forgotten, and some states are checked again.
const KNOWN_MAX: usize = 4 << 20;

/// The trace of a workload.
pub(super) struct RecordedWorkload {
    pub(super) io: SimIo,
    pub(super) commits: Vec<DrivenCommit>,
    /// Disk operations before the workload's last operation.
    pub(super) last_began: usize,
}

/// Runs a workload to its clean close.
pub(super) fn record(seed: u64, room: IndexRoom, ops: &[WorkloadOp]) -> Result<RecordedWorkload, String> {
    let io = SimIo::new(seed);
    let mut driver = WorkloadDriver::new(&io, room);
    let words = |e: annals::Error| format!("the workload fails: {e}");
    let (rest, last) = ops.split_at(ops.len().saturating_sub(1));
    driver.run(rest).map_err(words)?;
    let last_began = io.op_count();
    last.iter().try_for_each(|op| driver.apply(*op)).map_err(words)?;
    if let Some(store) = driver.store() {
        let live = observe(store).map_err(words)?;
        if live.text != driver.model.describe() {
            return Err(format!(
                "the open store shows\n{}instead of\n{}",
                live.text,
                driver.model.describe()
            ));
        }
    }
    driver.close().map_err(words)?;
    Ok(RecordedWorkload { io, commits: driver.commits, last_began })
}

/// Known states and counts over many workloads.
#[derive(Default)]
pub(super) struct CrashExplorer {
    pub(super) tally: CrashTally,
    known: HashSet<u128>,
}

/// How many crash choices are tried at a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrashChoices {
    /// With at most this many changes in doubt, every subset is kept.
    pub(super) all_up_to: u32,
    /// Otherwise the four extremes, and this many random choices.
    pub(super) seeds: u64,
}

impl CrashExplorer {
    /// Crashes at every point of a range.
    pub(super) fn explore(
        &mut self,
        recorded: &RecordedWorkload,
        points: std::ops::Range<usize>,
        choices: CrashChoices,
        rng: &mut SeededRng,
    ) -> Result<(), String> {
        let history = recorded.io.history();
        let marks = borders(&history);
        let sums: Vec<u64> =
            recorded.commits.iter().map(|commit| super::model::short_hash(commit.state.as_bytes())).collect();
        let mut walk = history.walk();
        self.tally.workloads += 1;
        loop {
            let at = walk.at();
            if points.contains(&at) {
                self.tally.points += 1;
                let range = visible_commits(&recorded.commits, at);
                let key =
                    sums[range.clone()].iter().fold(range.len() as u64, |key, sum| key.rotate_left(7) ^ sum);
                for how in crash_kinds(walk.choice_count(), choices, rng) {
                    let (disk, losses) = walk.crash_with_losses(how);
                    self.tally.state(marks[at], losses);
                    let mut known = disk.contents_hash();
                    known[..8].iter_mut().zip(key.to_le_bytes()).for_each(|(to, from)| *to ^= from);
                    let known = known.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
                    if self.known.len() >= KNOWN_MAX {
                        self.known.clear();
                    }
                    if !self.known.insert(known) {
                        continue;
                    }
                    self.tally.distinct += 1;
                    check(&disk, &recorded.commits, range.clone(), rng, &mut self.tally)
                        .map_err(|what| format!("{what}\nafter {}", walk.point(how)))?;
                }
            }
            if at >= points.end || !walk.step() {
                return Ok(());
            }
        }
    }
}

/// The commits whose state a crash at a point may show.
pub(super) fn visible_commits(commits: &[DrivenCommit], at: usize) -> std::ops::Range<usize> {
    let acknowledged = commits.iter().rposition(|c| c.acknowledged <= at).unwrap_or(0);
    let issued = commits.iter().rposition(|c| c.issued <= at).unwrap_or(0);
    acknowledged..issued + 1
}

pub(super) fn crash_kinds(in_doubt: usize, choices: CrashChoices, rng: &mut SeededRng) -> Vec<Crash> {
    if in_doubt == 0 {
        return vec![Crash::Everything];
    }
    let mut hows = Vec::new();
    if in_doubt <= choices.all_up_to as usize {
        hows.extend((0..1u64 << in_doubt).map(Crash::Mask));
    } else {
        hows.extend([Crash::Nothing, Crash::Everything, Crash::Hollow, Crash::Torn]);
        hows.extend((0..choices.seeds).map(|_| Crash::Seed(rng.next())));
    }
    hows.extend((0..choices.seeds.div_ceil(2)).map(|_| Crash::Ragged(rng.next())));
    hows
}
