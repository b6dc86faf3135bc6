//! Limits how many wrong tokens an address may try.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Refused logins of an address within a window, after which none is tried until the window ends.
const REFUSED_MAX: u32 = 20;
/// In nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;
/// Maximum number of addresses; beyond it, those whose window has ended are forgotten, then all.
const PEERS_MAX: usize = 1024;

/// The refused logins of an address.
#[derive(Debug, Clone, Copy)]
struct RefusedLogins {
    /// By the monotonic clock.
    since_ns: u64,
    count: u32,
}

impl RefusedLogins {
    /// Whether the window has ended. Another thread may have begun it after this one read the clock.
    fn is_over(self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= WINDOW_NS
    }
}

/// The addresses whose logins were refused lately.
#[derive(Debug, Default)]
pub(super) struct LoginLimits(Mutex<HashMap<String, RefusedLogins>>);

impl LoginLimits {
    /// Whether a login from this address may be tried. `now_ns` is of the monotonic clock.
    pub(super) fn allows(&self, peer: &str, now_ns: u64) -> bool {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(host(peer)).is_none_or(|refused| refused.count < REFUSED_MAX || refused.is_over(now_ns))
    }

    /// Notes a refused login; returns whether it was the last that is tried until the window ends.
    pub(super) fn note_refused(&self, peer: &str, now_ns: u64) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX && !peers.contains_key(host(peer)) {
            peers.retain(|_, refused| !refused.is_over(now_ns));
            if peers.len() >= PEERS_MAX {
                peers.clear();
            }
        }
        let fresh = RefusedLogins { since_ns: now_ns, count: 0 };
        let refused = peers.entry(host(peer).to_owned()).or_insert(fresh);
        if refused.is_over(now_ns) {
            *refused = fresh;
        }
        refused.count += 1;
        refused.count == REFUSED_MAX
    }
}

/// The address of a peer without its port.
fn host(peer: &str) -> &str {
    let peer = peer.strip_prefix("http ").unwrap_or(peer);
    match peer.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => peer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_refuse_an_address_for_a_while() {
        let limits = LoginLimits::default();
        for count in 1..=REFUSED_MAX {
            assert!(limits.allows("10.0.0.1:5000", 7));
            // A new connection has another port.
            assert_eq!(limits.note_refused(&format!("10.0.0.1:{count}"), 7), count == REFUSED_MAX);
        }
        assert!(!limits.allows("10.0.0.1:1", 6), "the clock was read before the window began");
        assert!(!limits.allows("10.0.0.1:1", 8) && !limits.allows("http 10.0.0.1:2", 8));
        assert!(limits.allows("10.0.0.2:1", 8) && limits.allows("[::1]:1", 8));
        assert!(limits.allows("10.0.0.1:1", 7 + WINDOW_NS));
        assert!(!limits.note_refused("10.0.0.1:1", 7 + WINDOW_NS), "a new window");
        for peer in 0..3 * PEERS_MAX {
            limits.note_refused(&format!("host{peer}"), 8 + WINDOW_NS);
        }
        assert!(lock_len(&limits) <= PEERS_MAX);
    }

    fn lock_len(limits: &LoginLimits) -> usize {
        limits.0.lock().unwrap().len()
    }
}
