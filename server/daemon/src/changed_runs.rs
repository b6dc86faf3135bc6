//! Runs that clients flagged, unflagged or dropped. Streams of events tell their clients: they look only at runs that are
//! open.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Number of changes that are kept. A stream that is further behind misses the older ones.
const KEPT_MAX: usize = 1024;

/// The newest changes of runs.
#[derive(Debug, Default)]
pub(super) struct ChangedRuns(Mutex<Changes>);

#[derive(Debug, Default)]
struct Changes {
    /// Number of changes so far.
    count: u64,
    /// The namespace and name of each run, the newest last.
    kept: VecDeque<(String, String)>,
}

impl ChangedRuns {
    /// A run has changed.
    pub(super) fn add(&self, namespace: &str, run: &str) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.count += 1;
        if changes.kept.len() == KEPT_MAX {
            changes.kept.pop_front();
        }
        changes.kept.push_back((namespace.to_owned(), run.to_owned()));
    }

    /// Number of changes so far.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// The runs of a namespace that changed after the first `seen` changes; then `seen` is the count.
    pub(super) fn since(&self, seen: &mut u64, namespace: &str) -> Vec<String> {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = usize::try_from(changes.count.saturating_sub(*seen)).unwrap_or(usize::MAX);
        *seen = changes.count;
        let of_namespace = |(of, run): &(String, String)| (of == namespace).then(|| run.clone());
        changes.kept.iter().skip(changes.kept.len().saturating_sub(new)).filter_map(of_namespace).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_once_and_by_namespace() {
        let changed = ChangedRuns::default();
        changed.add("a", "before");
        let mut seen = changed.count();
        for (namespace, run) in [("a", "x"), ("b", "y"), ("a", "z")] {
            changed.add(namespace, run);
        }
        assert_eq!(changed.since(&mut seen, "a"), ["x", "z"]);
        assert!(changed.since(&mut seen, "a").is_empty());
        for number in 0..2 * KEPT_MAX {
            changed.add("a", &number.to_string());
        }
        let told = changed.since(&mut seen, "a");
        assert_eq!((told.len(), told.last().unwrap().as_str()), (KEPT_MAX, "2047"));
    }
}
