//! Slow turns, for SLOWLOG and the log: the command's name, never its arguments.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::session::ClientInfo;

/// Maximum number of slow turns remembered.
const KEPT_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 24;

/// The start of a command's name, as it was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CommandName([u8; NAME_BYTES_MAX], usize);

impl CommandName {
    pub(super) fn new(word: &[u8]) -> Self {
        let (mut name, len) = ([0; NAME_BYTES_MAX], word.len().min(NAME_BYTES_MAX));
        name[..len].copy_from_slice(&word[..len]);
        Self(name, len)
    }

    /// In capitals; only characters that occur in command names.
    fn display_name(self) -> String {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".|_".contains(byte);
        let name = self.0[..self.1].iter().copied().filter(is_plain);
        name.map(|byte| char::from(byte.to_ascii_uppercase())).collect()
    }
}

/// A slow turn.
#[derive(Debug, Clone)]
pub(super) struct SlowTurn {
    pub(super) id: u64,
    /// Seconds since 1970.
    pub(super) at_s: u64,
    pub(super) micros: u64,
    /// Its first command.
    pub(super) name: String,
    pub(super) commands: usize,
    pub(super) address: String,
    pub(super) client: Vec<u8>,
}

/// The latest slow turns.
#[derive(Debug)]
pub(super) struct SlowLog {
    threshold_ns: u64,
    count: AtomicU64,
    kept: Mutex<VecDeque<SlowTurn>>,
}

impl SlowLog {
    /// Keeps turns that take longer than `threshold_ms` milliseconds.
    pub(super) fn new(threshold_ms: u64) -> Self {
        Self {
            threshold_ns: threshold_ms.saturating_mul(1_000_000),
            count: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    /// Notes a turn's duration, from reading its requests to having its replies.
    pub(super) fn note_turn(
        &self,
        ns: u64,
        name: CommandName,
        commands: usize,
        facts: &ClientInfo,
        now_ns: u64,
    ) {
        if ns <= self.threshold_ns {
            return;
        }
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        let (name, micros) = (name.display_name(), ns / 1000);
        tracing::warn!(
            command = name,
            commands,
            ms = ns / 1_000_000,
            client = facts.address,
            user = facts.user,
            "slow"
        );
        let (address, client) = (facts.address.clone(), facts.name.clone());
        let slow = SlowTurn { id, at_s: now_ns / 1_000_000_000, micros, name, commands, address, client };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front(slow);
        kept.truncate(KEPT_MAX);
    }

    /// The number of slow turns so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The remembered slow turns, latest first.
    pub(super) fn latest(&self) -> Vec<SlowTurn> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Forgets the slow turns.
    pub(super) fn reset(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_turns_are_kept_up_to_the_limit() {
        let log = SlowLog::new(1);
        let facts = ClientInfo { address: "unix".to_owned(), ..ClientInfo::default() };
        log.note_turn(1_000_000, CommandName::new(b"get"), 1, &facts, 0);
        assert_eq!((log.count(), log.latest().len()), (0, 0));
        for _ in 0..200 {
            log.note_turn(1_000_001, CommandName::new(b"frame.add \r\n secret"), 2, &facts, 5_000_000_000);
        }
        assert_eq!((log.count(), log.latest().len()), (200, KEPT_MAX));
        let last = &log.latest()[0];
        assert_eq!((last.id, last.at_s, last.micros, last.commands), (199, 5, 1000, 2));
        assert_eq!(last.name, "FRAME.ADDSECRET");
        log.reset();
        assert_eq!((log.count(), log.latest().len()), (200, 0));
    }
}
