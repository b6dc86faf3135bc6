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
pub(crate) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    taken: AtomicUsize,
    max: usize,
}

/// The memory limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Full {
    /// The message to the client.
    pub(crate) const WHY: &str = "too many long bodies are under way: try again in a moment";
}

impl Room {
    /// A limit of `max` bytes.
    pub(crate) fn of(max: usize) -> Self {
        Self(Arc::new(Inner { taken: AtomicUsize::new(0), max }))
    }

    /// The limit that all proxies of this process share.
    pub(crate) fn of_process() -> Self {
        static ROOM: OnceLock<Room> = OnceLock::new();
        ROOM.get_or_init(|| Self::of(BYTES_MAX)).clone()
    }

    /// An empty reservation.
    pub(crate) fn hold(&self) -> Held {
        Held { room: self.clone(), bytes: 0 }
    }

    /// Whether nothing more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.0.max
    }

    /// Number of reserved bytes.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

/// A part of the memory, reserved until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    room: Room,
    bytes: usize,
}

impl Held {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// If not enough is left; nothing is reserved then.
    pub(crate) fn more(&mut self, bytes: usize) -> Result<(), Full> {
        let Inner { taken, max } = &*self.room.0;
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > *max {
            taken.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Full);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Reserves more bytes even beyond the limit. Work that can no longer be refused then blocks later work
    /// instead.
    pub(crate) fn over(&mut self, bytes: usize) {
        self.room.0.taken.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Frees the whole reservation.
    pub(crate) fn clear(&mut self) {
        self.room.0.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// Ties the reservation to these bytes until their last reference is dropped.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        Bytes::from_owner(Kept { bytes, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

struct Kept {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_until_the_last_has_let_go() {
        let room = Room::of(100);
        let mut held = room.hold();
        assert_eq!((held.more(60), held.more(41), held.more(40)), (Ok(()), Err(Full), Ok(())));
        assert!(room.is_full());
        assert_eq!(room.hold().more(1), Err(Full));
        let bytes = held.keep(Bytes::from(vec![7; 100]));
        let part = bytes.slice(3..5);
        drop(bytes);
        assert_eq!((room.taken(), &part[..]), (100, &[7, 7][..]));
        drop(part);
        assert_eq!(room.taken(), 0);
        let mut held = room.hold();
        held.over(1000);
        assert_eq!(room.hold().more(1), Err(Full));
        drop(held.keep(Bytes::new()));
        assert_eq!(room.taken(), 0);
    }
}
