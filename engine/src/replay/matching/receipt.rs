//! What a replay came to.

use std::fmt;

/// What a replay came to, in one line by `Display`: `exact 7 of 7, served 7, unused 0`, and after it only what is not
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// Recorded calls.
    pub recorded: u32,
    /// Requests that were a recorded one byte for byte.
    pub exact: u32,
    /// Requests that were the same after the matcher.
    pub matched: u32,
    /// Requests that were near a recorded one.
    pub changed: u32,
    /// Requests that were recorded nowhere, or asked more often than recorded.
    pub unrecorded: u32,
    /// Answers released.
    pub served: u32,
    /// Answers given up: whoever waited for them would have waited for ever.
    pub given_up: u32,
    /// Of the answered requests, those that overlapped an identical one: which caller got which answer is not recorded.
    pub overlapped: u32,
    /// Recorded calls that nobody asked for, by their numbers.
    pub missing: Vec<u32>,
    /// Recorded draws of times, ids and random numbers that nobody drew.
    pub undrawn: u64,
}

impl Receipt {
    /// Whether every recorded call was asked for, and nothing else, and each was answered. Requests that were the same
    /// after the matcher count as such.
    #[must_use]
    pub fn is_faithful(&self) -> bool {
        let all = u64::from(self.exact) + u64::from(self.matched) == u64::from(self.recorded);
        all && self.served == self.recorded
            && self.changed + self.unrecorded + self.given_up == 0
            && self.undrawn == 0
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exact {} of {}", self.exact, self.recorded)?;
        for (count, what) in [
            (self.matched, "same after the matcher"),
            (self.changed, "changed"),
            (self.unrecorded, "unrecorded"),
            (self.given_up, "given up"),
        ] {
            if count > 0 {
                write!(f, ", {what} {count}")?;
            }
        }
        write!(f, ", served {}, unused {}", self.served, self.missing.len())?;
        if self.undrawn > 0 {
            write!(f, ", undrawn {}", self.undrawn)?;
        }
        if self.overlapped > 0 {
            write!(f, ", {} identical requests overlapped", self.overlapped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipt_shows_only_nonzero_counts() {
        let good = Receipt { recorded: 7, exact: 7, served: 7, ..Receipt::default() };
        assert_eq!(good.to_string(), "exact 7 of 7, served 7, unused 0");
        assert!(good.is_faithful());
        let masked = Receipt { exact: 5, matched: 2, ..good.clone() };
        assert_eq!(masked.to_string(), "exact 5 of 7, same after the matcher 2, served 7, unused 0");
        assert!(masked.is_faithful());
        let alike = Receipt { overlapped: 3, ..good.clone() };
        assert_eq!(alike.to_string(), "exact 7 of 7, served 7, unused 0, 3 identical requests overlapped");
        assert!(alike.is_faithful(), "each was answered as recorded");
        let bad = Receipt {
            exact: 5,
            changed: 1,
            unrecorded: 3,
            served: 4,
            given_up: 1,
            missing: vec![6, 7],
            ..good.clone()
        };
        assert_eq!(bad.to_string(), "exact 5 of 7, changed 1, unrecorded 3, given up 1, served 4, unused 2");
        for bad in [
            bad,
            Receipt { undrawn: 1, ..good.clone() },
            Receipt { unrecorded: 1, ..good.clone() },
            Receipt { served: 6, ..good.clone() },
            Receipt { exact: 6, missing: vec![3], ..good },
        ] {
            assert!(!bad.is_faithful(), "{bad}");
        }
    }
}
