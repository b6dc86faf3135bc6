//! What writing to a store needs beside reading: the log's queue and manifest, and the numbers that are given out.

use crate::blob::GroupId;
use crate::error::Result;
use crate::io::Io;
use crate::kv::raw_tail::RawTail;
use crate::log::layout::LogState;
use crate::log::open::OpenLog;
use crate::log::segments::lock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, rank};

/// See the module.
#[derive(Debug)]
pub struct StoreWriter {
    pub log: OpenLog,
    next_group: AtomicU64,
    next_uid: AtomicU64,
    salts: Mutex<SaltGenerator, { rank::SALTS }>,
    /// Held while a compaction runs, and by the thread that closes the store.
    pub compacting: Mutex<(), { rank::COMPACTING }>,
    pub raw_tail: RawTail,
}

impl StoreWriter {
    pub(super) fn new(log: OpenLog, state: &LogState, raw_tail: RawTail) -> Self {
        Self {
            log,
            next_group: AtomicU64::new(state.next_group),
            next_uid: AtomicU64::new(state.next_run),
            salts: Mutex::default(),
            compacting: Mutex::new(()),
            raw_tail,
        }
    }

    /// Groups below this have been numbered.
    pub fn next_group(&self) -> u64 {
        self.next_group.load(Ordering::Acquire)
    }

    pub fn new_group(&self) -> GroupId {
        GroupId(self.next_group.fetch_add(1, Ordering::Relaxed))
    }

    /// Numbers of the layer above from this one on were not given out.
    pub fn next_uid(&self) -> u64 {
        self.next_uid.load(Ordering::Relaxed)
    }

    /// A number that no record of the layer above has used.
    pub fn new_uid(&self) -> u64 {
        self.next_uid.fetch_add(1, Ordering::Relaxed)
    }

    /// A salt for one record.
    pub fn salt(&self, io: &dyn Io) -> Result<[u8; 16]> {
        lock(&self.salts).next(io)
    }
}

/// Random salts: BLAKE3's output stream under a random key that is never written and often replaced.
#[derive(Debug, Default)]
struct SaltGenerator {
    stream: Option<blake3::OutputReader>,
    left: u32,
}

/// Number of salts that are drawn from one key.
const SALTS_PER_KEY: u32 = 1024;

impl SaltGenerator {
    fn next(&mut self, io: &dyn Io) -> Result<[u8; 16]> {
        let stream = match &mut self.stream {
            Some(stream) if self.left > 0 => stream,
            _ => {
                let mut key = [0; 32];
                io.random(&mut key)?;
                self.left = SALTS_PER_KEY;
                self.stream.insert(blake3::Hasher::new_keyed(&key).finalize_xof())
            }
        };
        self.left -= 1;
        let mut salt = [0; 16];
        stream.fill(&mut salt);
        Ok(salt)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::io::sim::SimIo;

    #[test]
    fn salt_key_is_replaced_after_1024_salts() {
        let (sim, twin) = (SimIo::new(1), SimIo::new(1));
        let mut salts = SaltGenerator::default();
        let mut seen = HashSet::new();
        for _ in 0..3 {
            let mut key = [0; 32];
            twin.random(&mut key).unwrap();
            let mut stream = blake3::Hasher::new_keyed(&key).finalize_xof();
            for _ in 0..1024 {
                let mut wanted = [0; 16];
                stream.fill(&mut wanted);
                assert_eq!(salts.next(&sim).unwrap(), wanted);
                assert!(seen.insert(wanted), "no two are alike");
            }
        }
    }
}
