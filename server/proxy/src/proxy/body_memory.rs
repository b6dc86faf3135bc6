//! Memory for bodies under way, all of them together: one is short, but nobody knows how many come at once.
//!
//! Whoever keeps a body takes room for it as it comes, and gives it back when the last who holds the body lets go of it. Where there is none
//! left a request is refused, to be asked again: to wait for room would be to wait for those who wait for it themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// Bytes of all bodies that a process has under way.
const BYTES_MAX: usize = 1 << 30;

/// So much memory.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<BodyMemoryState>);

#[derive(Debug)]
struct BodyMemoryState {
    taken: AtomicUsize,
    max: usize,
}

/// There is no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyMemoryFull;

impl BodyMemoryFull {
    /// What whoever asked is told.
    pub const WHY: &str = "too many long bodies are under way at once: ask again in a moment";
}

impl BodyMemory {
    /// Room for so many bytes.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(BodyMemoryState { taken: AtomicUsize::new(0), max }))
    }

    /// The room that all proxies of this process share.
    pub fn shared() -> Self {
        static ROOM: OnceLock<BodyMemory> = OnceLock::new();
        ROOM.get_or_init(|| Self::new(BYTES_MAX)).clone()
    }

    /// Nothing of it, yet.
    pub fn reservation(&self) -> MemoryReservation {
        MemoryReservation { room: self.clone(), bytes: 0 }
    }

    /// Whether nothing more fits in.
    pub fn is_full(&self) -> bool {
        self.taken() >= self.0.max
    }

    /// How many bytes are taken.
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

/// A part of a room that somebody has taken, until it is dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    room: BodyMemory,
    bytes: usize,
}

impl MemoryReservation {
    /// Takes so much more.
    ///
    /// # Errors
    /// Where there is not as much left: nothing is taken then.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), BodyMemoryFull> {
        let BodyMemoryState { taken, max } = &*self.room.0;
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > *max {
            taken.fetch_sub(bytes, Ordering::Relaxed);
            return Err(BodyMemoryFull);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes so much more, whether it is there or not: what cannot be refused any more keeps out what comes after it.
    pub fn reserve_beyond(&mut self, bytes: usize) {
        self.room.0.taken.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Gives all of it back.
    pub fn clear(&mut self) {
        self.room.0.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// These bytes, for which this is held until nobody has any of them.
    pub fn attach_to(self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        Bytes::from_owner(ReservedBytes { bytes, _held: self })
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.clear();
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _held: MemoryReservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_memory_is_freed_with_the_last_reference() {
        let room = BodyMemory::new(100);
        let mut held = room.reservation();
        assert_eq!(
            (held.reserve(60), held.reserve(41), held.reserve(40)),
            (Ok(()), Err(BodyMemoryFull), Ok(()))
        );
        assert!(room.is_full());
        assert_eq!(room.reservation().reserve(1), Err(BodyMemoryFull));
        let bytes = held.attach_to(Bytes::from(vec![7; 100]));
        let part = bytes.slice(3..5);
        drop(bytes);
        assert_eq!((room.taken(), &part[..]), (100, &[7, 7][..]));
        drop(part);
        assert_eq!(room.taken(), 0);
        let mut held = room.reservation();
        held.reserve_beyond(1000);
        assert_eq!(room.reservation().reserve(1), Err(BodyMemoryFull));
        drop(held.attach_to(Bytes::new()));
        assert_eq!(room.taken(), 0);
    }
}
