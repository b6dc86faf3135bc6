//! The score interval of a rate.

use serde::{Deserialize, Serialize};

/// The two-sided 95% quantile of the normal distribution, as tracefork rounds it.
pub const Z_95: f64 = 1.96;
/// The two-sided 97.5% quantile of the normal distribution.
pub const Z_97_5: f64 = 2.241_403;

/// An interval of a rate or a difference of rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Before any trial every rate is possible.
impl Default for Interval {
    fn default() -> Self {
        Self { low: 0.0, high: 1.0 }
    }
}

impl Interval {
    /// Whether a value lies in it, ends included.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The Wilson score interval of `hits` in `trials` (E. B. Wilson, JASA 22, 1927, 209-212):
/// `(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with `p = hits / n`.
///
/// Without a trial it is (0, 1). With no hit the lower end is exactly 0, with hits only the upper end is
/// exactly 1.
#[must_use]
pub fn wilson(hits: u32, trials: u32, z: f64) -> Interval {
    if trials == 0 {
        return Interval::default();
    }
    let n = f64::from(trials);
    let p = f64::from(hits) / n;
    let squared = z * z;
    let centre = p + squared / (2.0 * n);
    let spread = z * (p * (1.0 - p) / n + squared / (4.0 * n * n)).sqrt();
    let scale = 1.0 + squared / n;
    Interval {
        low: if hits == 0 { 0.0 } else { ((centre - spread) / scale).max(0.0) },
        high: if hits == trials { 1.0 } else { ((centre + spread) / scale).min(1.0) },
    }
}
