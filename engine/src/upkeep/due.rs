//! What is due: the one place that compares a deadline with a clock. Runs that a rule keeps for a time, keys with a deadline and
//! answers that a cache keeps for a time all ask here.
//!
//! Deadlines are absolute: nanoseconds since 1970-01-01 UTC. A clock that stands far ahead of the newest record is not believed, and
//! then nothing is due; a sweep, which drops what cannot be had back, also refuses one that stands before that record.

use crate::error::{Error, ErrorKind, Result};
use crate::kv::store_reader::is_plausible_time;
use crate::store::{Namespace, Store};
use crate::timestamp::rfc3339;

/// Whether a deadline is past by a clock that says `now_ns`, in a store whose newest record is from `newest_ns` (0: there is none).
/// Never by a clock that stands more than 400 days after that.
///
/// ```
/// let (second, day) = (1_000_000_000, 86_400_000_000_000);
/// assert!(annals::is_due(5 * second, 5 * second, 4 * second));
/// assert!(!annals::is_due(6 * second, 5 * second, 4 * second));
/// assert!(!annals::is_due(5 * second, 401 * day, 4 * second));
/// ```
#[must_use]
pub fn is_due(deadline_ns: u64, now_ns: u64, newest_ns: u64) -> bool {
    deadline_ns <= now_ns && is_plausible_time(now_ns, newest_ns)
}

/// The time by which a sweep goes: what somebody said, or the store's clock.
///
/// # Errors
/// `Unavailable` where the clock stands before the newest record, or more than 400 days after it.
pub(crate) fn sweep_time(at_ns: Option<u64>, now_ns: u64, newest_ns: u64) -> Result<u64> {
    let told = "set the clock, or say what time it is, as `--at 2026-01-31T12:00:00Z` does";
    let refused = |what: String| Err(Error::new(ErrorKind::Unavailable, what));
    match at_ns {
        Some(at_ns) => Ok(at_ns),
        None if now_ns < newest_ns => refused(format!(
            "the clock says {}, which is before the newest record ({}): nothing was dropped; {told}",
            rfc3339(now_ns),
            rfc3339(newest_ns)
        )),
        None if !is_plausible_time(now_ns, newest_ns) => refused(format!(
            "the clock says {}, more than 400 days after the newest record ({}): nothing was dropped; {told}",
            rfc3339(now_ns),
            rfc3339(newest_ns)
        )),
        None => Ok(now_ns),
    }
}

impl Store {
    /// When the newest record was written, nanoseconds since 1970-01-01 UTC; 0 in a store without one. In the writing process a record
    /// written by a clock that is not believed (see [`is_due`]) does not count.
    #[must_use]
    pub fn newest_ns(&self) -> u64 {
        self.core().newest_ns()
    }
}

impl Store {
    /// What time it is by the store's clock, nanoseconds since 1970-01-01 UTC, where a sweep would go by it.
    ///
    /// # Errors
    /// `Unavailable` where it stands before the newest record or more than 400 days after it.
    pub fn believed_now_ns(&self) -> Result<u64> {
        sweep_time(None, self.core().io.now_ns(), self.newest_ns())
    }
}

impl Namespace {
    /// Whether a deadline is past by the store's clock: [`is_due`].
    #[must_use]
    pub fn is_due(&self, deadline_ns: u64, now_ns: u64) -> bool {
        is_due(deadline_ns, now_ns, self.store.newest_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::store_reader::AHEAD_NS_MAX;

    #[test]
    fn deadline_is_due_only_by_a_believed_clock() {
        let far = AHEAD_NS_MAX;
        for (deadline, now, newest, due) in [
            (10, 9, 5, false),
            (10, 10, 5, true),
            (10, 11, 5, true),
            // By a clock that was set back: what is past by it was past before.
            (10, 11, 500, true),
            (10, 5 + far, 5, true),
            (10, 6 + far, 5, false),
            // Nothing says what time it may be.
            (10, u64::MAX, 0, true),
            (u64::MAX, u64::MAX - 1, 0, false),
            (1, u64::MAX, u64::MAX - 1, true),
        ] {
            assert_eq!(is_due(deadline, now, newest), due, "{deadline} {now} {newest}");
        }
    }

    #[test]
    fn sweep_refuses_an_implausible_clock_unless_time_is_given() {
        let far = AHEAD_NS_MAX;
        let kind = |at, now, newest| sweep_time(at, now, newest).map_err(|error| error.kind());
        assert_eq!(kind(None, 5, 5), Ok(5));
        assert_eq!(kind(None, 4, 5), Err(ErrorKind::Unavailable));
        assert_eq!(kind(None, 5 + far, 5), Ok(5 + far));
        assert_eq!(kind(None, 6 + far, 5), Err(ErrorKind::Unavailable));
        assert_eq!(kind(None, 6 + far, 0), Ok(6 + far));
        assert_eq!(kind(Some(1), 6 + far, 5), Ok(1));
        assert_eq!(kind(Some(u64::MAX), 4, 5), Ok(u64::MAX));
    }
}
