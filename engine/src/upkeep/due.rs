//! Compares deadlines with a clock, for all of the store: runs that a rule keeps for a time, keys with a
//! deadline, and answers that a cache keeps for a time.
//!
//! Deadlines are absolute: nanoseconds since 1970-01-01 UTC. A clock more than 400 days ahead of the newest
//! record is not trusted, and then nothing is due. A sweep drops data for good, so it also refuses a clock
//! that is behind that record.

use crate::error::{Error, ErrorKind, Result};
use crate::kv::store_reader::is_plausible_time;
use crate::store::{Namespace, Store};
use crate::timestamp::rfc3339;

/// Whether the clock `now_ns` has reached a deadline. `newest_ns` is the time of the store's newest record; 0
/// means that there is none. A clock more than 400 days ahead of `newest_ns` makes nothing due.
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

/// The time of a sweep: the caller's, or else the store's clock.
///
/// # Errors
/// `Unavailable` if the clock is behind the newest record, or more than 400 days ahead of it.
pub(crate) fn sweep_time(at_ns: Option<u64>, now_ns: u64, newest_ns: u64) -> Result<u64> {
    let told = "correct the clock, or give the time, for example `--at 2026-01-31T12:00:00Z`";
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
    /// Time of the newest record, in nanoseconds since 1970-01-01 UTC; 0 in an empty store. In the writing
    /// process, records of an untrusted clock (see [`is_due`]) do not count.
    #[must_use]
    pub fn newest_ns(&self) -> u64 {
        self.core().newest_ns()
    }
}

impl Store {
    /// The store's clock, in nanoseconds since 1970-01-01 UTC, if a sweep may trust it.
    ///
    /// # Errors
    /// `Unavailable` if the clock is behind the newest record, or more than 400 days ahead of it.
    pub fn believed_now_ns(&self) -> Result<u64> {
        sweep_time(None, self.core().io.now_ns(), self.newest_ns())
    }
}

impl Namespace {
    /// Whether the clock `now_ns` has reached a deadline in this store: see [`is_due`].
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
            // The clock was set back: deadlines that it has passed were due before.
            (10, 11, 500, true),
            (10, 5 + far, 5, true),
            (10, 6 + far, 5, false),
            // Without records, nothing contradicts the clock.
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
