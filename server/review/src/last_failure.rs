//! The run that a person opens first: the newest one that failed. One rule for the command line, the page and
//! agents.

use annals::runs::{BLAME_TAG, RunFilter, RunOrder};
use annals::{Namespace, Result, RunReader, Severity, Status};

/// Runs that are read at a time.
const PAGE_RUNS: usize = 64;

/// The run that [`last_failure`] chose.
#[derive(Debug)]
pub struct LastFailure {
    pub run: RunReader,
    /// Whether it failed or was abandoned; else it is only flagged or escalated.
    pub has_failed: bool,
    /// Whether it is a fork or a live replay.
    pub is_fork: bool,
}

impl LastFailure {
    /// Why this run was chosen; `None` for a run that failed and is no fork.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match (self.has_failed, self.is_fork) {
            (true, false) => None,
            (true, true) => Some("only forks and live replays have failed: this is the newest of them"),
            (false, false) => Some("no run has failed: this is the newest flagged or escalated run"),
            (false, true) => Some(
                "no run has failed, and only forks and live replays are flagged or escalated: this is the newest of them",
            ),
        }
    }
}

/// The newest run that failed or was abandoned. If there is none, the newest flagged or escalated run: a provider
/// can fail while the program ends well. Forks and live replays come last among the failed runs, and last among the
/// others: people try out changes with them after a failure.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub fn last_failure(space: &Namespace) -> Result<Option<LastFailure>> {
    let failed = [RunFilter { statuses: vec![Status::Failed, Status::Abandoned], ..RunFilter::default() }];
    let severe = [Severity::Flagged, Severity::Escalated]
        .map(|severity| RunFilter { severity: Some(severity), ..RunFilter::default() });
    for (filters, has_failed) in [(&failed[..], true), (&severe[..], false)] {
        let mut best: Option<RunReader> = None;
        for filter in filters {
            let found = newest_run(space, filter)?;
            // Runs count up as they begin.
            let rank = |run: &RunReader| (!is_fork(run), run.info().uid);
            best = best.into_iter().chain(found).max_by_key(rank);
        }
        if let Some(run) = best {
            let is_fork = is_fork(&run);
            return Ok(Some(LastFailure { run, has_failed, is_fork }));
        }
    }
    Ok(None)
}

fn is_fork(run: &RunReader) -> bool {
    run.info().parent.is_some() || run.info().tags.iter().any(|(key, _)| key == BLAME_TAG)
}

/// The newest run of a filter that is no fork, else the newest fork.
fn newest_run(space: &Namespace, filter: &RunFilter) -> Result<Option<RunReader>> {
    let (mut after, mut fork) = (None, None);
    loop {
        let page = space.page_runs(filter, RunOrder::NewestFirst, after, PAGE_RUNS)?;
        for run in page.runs {
            if !is_fork(&run) {
                return Ok(Some(run));
            }
            fork.get_or_insert(run);
        }
        after = page.next;
        if after.is_none() {
            return Ok(fork);
        }
    }
}
