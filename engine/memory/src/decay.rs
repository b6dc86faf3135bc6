//! Decay of a memory's weight: it halves with each half-life since the last access, and each access raises
//! it.

/// How an entry's weight changes with time and use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    /// Milliseconds in which the weight halves.
    pub half_life_ms: f64,
    /// Factor by which each access multiplies the weight.
    pub access_boost: f64,
}

/// The largest factor that accesses can reach.
const BOOST_MAX: f64 = 10.0;

impl Decay {
    /// The factor after `looks` accesses, the last one `idle_ms` ago:
    /// `2^(-idle / half life) * min(boost^looks, 10)` (agentfootprint 9.62.0). With a half-life of 0 the
    /// factor is 0 for any positive `idle_ms`.
    #[must_use]
    pub fn factor(&self, idle_ms: f64, looks: u64) -> f64 {
        let idle = idle_ms.max(0.0);
        let kept = if self.half_life_ms == 0.0 {
            if idle == 0.0 { 1.0 } else { 0.0 }
        } else {
            (-idle / self.half_life_ms).exp2()
        };
        kept * self.access_boost.max(f64::EPSILON).powf(looks as f64).min(BOOST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_halves_per_half_life_and_boost_is_capped() {
        let decay = Decay { half_life_ms: 1000.0, access_boost: 1.5 };
        assert_eq!(decay.factor(0.0, 0), 1.0);
        assert_eq!(decay.factor(1000.0, 0), 0.5);
        assert_eq!(decay.factor(3000.0, 0), 0.125);
        assert_eq!(decay.factor(-5.0, 1), 1.5, "the clock moved backwards");
        assert_eq!(decay.factor(1000.0, 2), 0.5 * 2.25);
        assert_eq!(decay.factor(0.0, 100), 10.0);
        let once = Decay { half_life_ms: 0.0, access_boost: 0.0 };
        assert_eq!((once.factor(0.0, 0), once.factor(1.0, 0)), (1.0, 0.0));
        assert!(once.factor(0.0, 1) > 0.0, "a boost of 0 counts as the smallest positive boost");
    }
}
