//! A limit on the memory of all bodies under way together. One body is limited, but any number may arrive at
//! once.
//!
//! A body reserves memory while it arrives, and frees it when its last reference is dropped. Without free
//! memory a request is refused and may be repeated: waiting could deadlock with others that wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// Memory for all bodies under way in this process, in bytes.
const BYTES_MAX: usize = 1 << 30;

/// A limited amount of memory.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<BodyMemoryState>);

#[derive(Debug)]
struct BodyMemoryState {
    taken: AtomicUsize,
    max: usize,
}

/// The memory limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyMemoryFull;

impl BodyMemoryFull {
    /// The message to the client.
    pub const WHY: &str = "too many long bodies are under way: try again in a moment";
}

impl BodyMemory {
    /// A limit of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(BodyMemoryState { taken: AtomicUsize::new(0), max }))
    }

    /// The limit that all proxies of this process share.
    pub fn shared() -> Self {
        static ROOM: OnceLock<BodyMemory> = OnceLock::new();
        ROOM.get_or_init(|| Self::new(BYTES_MAX)).clone()
    }

    /// An empty reservation.
    pub fn reservation(&self) -> MemoryReservation {
        MemoryReservation { room: self.clone(), bytes: 0 }
    }

    /// Whether nothing more fits.
    pub fn is_full(&self) -> bool {
        self.taken() >= self.0.max
    }

    /// Number of reserved bytes.
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

/// A part of the memory, reserved until it is dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    room: BodyMemory,
    bytes: usize,
}

impl MemoryReservation {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// If not enough is left; nothing is reserved then.
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

    /// Reserves more bytes even beyond the limit. Work that can no longer be refused then blocks later work
    /// instead.
    pub fn reserve_beyond(&mut self, bytes: usize) {
        self.room.0.taken.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Frees the whole reservation.
    pub fn clear(&mut self) {
        self.room.0.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// Ties the reservation to these bytes until their last reference is dropped.
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
