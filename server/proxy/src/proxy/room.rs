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
pub struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    taken: AtomicUsize,
    max: usize,
}

/// There is no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Full {
    /// What whoever asked is told.
    pub const WHY: &str = "too many long bodies are under way at once: ask again in a moment";
}

impl Room {
    /// Room for so many bytes.
    pub fn of(max: usize) -> Self {
        Self(Arc::new(Inner { taken: AtomicUsize::new(0), max }))
    }

    /// The room that all proxies of this process share.
    pub fn of_process() -> Self {
        static ROOM: OnceLock<Room> = OnceLock::new();
        ROOM.get_or_init(|| Self::of(BYTES_MAX)).clone()
    }

    /// Nothing of it, yet.
    pub fn hold(&self) -> Held {
        Held { room: self.clone(), bytes: 0 }
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
pub struct Held {
    room: Room,
    bytes: usize,
}

impl Held {
    /// Takes so much more.
    ///
    /// # Errors
    /// Where there is not as much left: nothing is taken then.
    pub fn more(&mut self, bytes: usize) -> Result<(), Full> {
        let Inner { taken, max } = &*self.room.0;
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > *max {
            taken.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Full);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes so much more, whether it is there or not: what cannot be refused any more keeps out what comes after it.
    pub fn over(&mut self, bytes: usize) {
        self.room.0.taken.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Gives all of it back.
    pub fn clear(&mut self) {
        self.room.0.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// These bytes, for which this is held until nobody has any of them.
    pub fn keep(self, bytes: Bytes) -> Bytes {
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
