//! Spin-then-park: spin while spinning has lately been worth it, then block.
//!
//! Waking a parked thread costs both sides more than a whole small commit. So a waiter spins first, as long
//! as that has lately succeeded. Only one waiter spins at a time: several would keep the writer from its
//! core.

use crate::sync::SCHEDULED;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Interval at which a thread that waits for others checks whether to stop.
pub const STOP_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// Maximum spins before blocking: at most some 100 microseconds on current machines.
const SPINS_MAX: u32 = if SCHEDULED { 2 } else { 8192 };
/// Minimum spins after failures.
const SPINS_MIN: u32 = if SCHEDULED { 1 } else { 32 };
/// So many waits in vain at the minimum are followed by one with the maximum: a commit takes longer than the
/// minimum, so that alone would never notice that spinning is worth it again.
const RETRY_AFTER: u32 = 64;

/// Adaptive spinning before a wait.
#[derive(Debug)]
pub struct SpinWait {
    spins: AtomicU32,
    /// Waits in vain since the spins were last at their maximum.
    misses: AtomicU32,
    is_spinning: AtomicBool,
}

impl Default for SpinWait {
    fn default() -> Self {
        Self {
            spins: AtomicU32::new(SPINS_MAX),
            misses: AtomicU32::new(0),
            is_spinning: AtomicBool::new(false),
        }
    }
}

impl SpinWait {
    /// Spins on `look`; `None` when the caller should block.
    pub fn spin<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        if self.is_spinning.swap(true, Ordering::Relaxed) {
            return None;
        }
        let looks = self.spins.load(Ordering::Relaxed);
        let found = (0..looks).find_map(|_| {
            crate::sync::spin_loop();
            look()
        });
        let misses = if found.is_some() { 0 } else { self.misses.load(Ordering::Relaxed) + 1 };
        let next = match found {
            Some(_) => looks * 2,
            None if misses % RETRY_AFTER == 0 => SPINS_MAX,
            None => looks / 2,
        };
        self.misses.store(misses % RETRY_AFTER, Ordering::Relaxed);
        self.spins.store(next.clamp(SPINS_MIN, SPINS_MAX), Ordering::Relaxed);
        self.is_spinning.store(false, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_count_halves_in_vain_and_doubles_on_success() {
        let patience = SpinWait::default();
        let count = |found_at: u32| {
            let mut looks = 0;
            patience.spin(|| {
                looks += 1;
                (looks > found_at).then_some(())
            });
            looks
        };
        assert_eq!(count(u32::MAX), SPINS_MAX + 1);
        (0..20).for_each(|_| _ = count(u32::MAX));
        assert_eq!(count(u32::MAX), SPINS_MIN + 1);
        (0..20).for_each(|_| _ = count(5));
        assert_eq!(count(u32::MAX), SPINS_MAX + 1);
    }

    // A commit takes longer than the minimum of spins. After some misses every wait slept, for good: one store
    // recorded 3,468 steps a second and another one 6,344.
    #[test]
    fn spins_after_many_misses_recover() {
        let spin_wait = SpinWait::default();
        let finds = |needed: u32| {
            let mut looks = 0;
            spin_wait
                .spin(|| {
                    looks += 1;
                    (looks > needed).then_some(())
                })
                .is_some()
        };
        (0..20).for_each(|_| _ = finds(u32::MAX));
        let tries = (1..1000).find(|_| finds(SPINS_MIN * 4)).unwrap();
        assert!(tries <= RETRY_AFTER + 1, "{tries}");
        (0..20).for_each(|_| assert!(finds(SPINS_MIN * 4)));
    }
}
