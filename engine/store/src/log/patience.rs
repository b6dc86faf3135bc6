//! Waiting for another thread: look again for a little while, then sleep.
//!
//! To wake a sleeping thread costs both sides more than the whole of a small commit. So whoever waits looks again
//! for a while first, as long as that has lately been worth it. One waiter at a time does: of many, all but one
//! would only keep the writer from its core.

use crate::sync::SCHEDULED;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How often whoever waits for others looks whether it is to stop.
pub const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
/// Looks before sleeping: at most some 100 microseconds on today's machines.
const LOOKS_MAX: u32 = if SCHEDULED { 2 } else { 8192 };
/// Looks where it was in vain lately: to notice when that changes.
const LOOKS_MIN: u32 = if SCHEDULED { 1 } else { 32 };

/// See the module.
#[derive(Debug)]
pub struct Patience {
    looks: AtomicU32,
    taken: AtomicBool,
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: AtomicU32::new(LOOKS_MAX), taken: AtomicBool::new(false) }
    }
}

impl Patience {
    /// Looks again and again; `None` where it is time to sleep.
    pub fn look<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        if self.taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let looks = self.looks.load(Ordering::Relaxed);
        let found = (0..looks).find_map(|_| {
            crate::sync::spin_loop();
            look()
        });
        let next = if found.is_some() { looks * 2 } else { looks / 2 };
        self.looks.store(next.clamp(LOOKS_MIN, LOOKS_MAX), Ordering::Relaxed);
        self.taken.store(false, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_wears_off_in_vain_and_comes_back() {
        let patience = Patience::default();
        let count = |found_at: u32| {
            let mut looks = 0;
            patience.look(|| {
                looks += 1;
                (looks > found_at).then_some(())
            });
            looks
        };
        assert_eq!(count(u32::MAX), LOOKS_MAX + 1);
        (0..20).for_each(|_| _ = count(u32::MAX));
        assert_eq!(count(u32::MAX), LOOKS_MIN + 1);
        (0..20).for_each(|_| _ = count(5));
        assert_eq!(count(u32::MAX), LOOKS_MAX + 1);
    }
}
