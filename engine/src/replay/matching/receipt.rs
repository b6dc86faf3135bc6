//! The outcome of a replay.

use std::fmt;

/// The outcome of a replay. `Display` gives one line, such as `exact 7 of 7, served 7, unused 0`, followed by
/// the other counts that are not zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// Number of recorded calls.
    pub recorded: u32,
    /// Requests that equalled a recorded one byte for byte.
    pub exact: u32,
    /// Requests that were the same after the matcher.
    pub matched: u32,
    /// Requests that were similar to a recorded one.
    pub changed: u32,
    /// Requests without a similar recorded call, or made more often than recorded.
    pub unrecorded: u32,
    /// Number of answers released.
    pub served: u32,
    /// Number of answers given up, because the program never made the calls before them.
    pub given_up: u32,
    /// Answered requests that overlapped an identical one: which caller got which answer is not recorded.
    pub overlapped: u32,
    /// Frame numbers of the recorded calls that the program did not make.
    pub missing: Vec<u32>,
    /// Number of recorded draws (times, ids, random numbers) that the program did not draw.
    pub undrawn: u64,
}

impl Receipt {
    /// Whether the program made every recorded call and no other, and every call was answered. Requests that
    /// were the same after the matcher count, too.
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
        assert!(alike.is_faithful(), "each request got its recorded answer");
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
