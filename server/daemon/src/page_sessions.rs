//! Sessions of the debugger page: one-time links, and what a browser holds afterwards.
//!
//! A link has a code of 32 random bytes, valid once and for ten minutes. It is traded for a session, which has two
//! parts of 32 random bytes: a cookie that scripts cannot read, and a key that only pages of this origin can read
//! and that they send in a header. A request needs both. A browser sends a cookie to every port of a host, so a
//! cookie alone could be used by another user's server on this machine; a key alone could be used by a script that
//! came into the page.
//!
//! Only hashes are kept, in memory: sessions end with the daemon. A session has the rights of the store's owner.

use std::sync::{Mutex, PoisonError};

use annals::io::Io;

/// Validity of a link.
const LINK_NS: u64 = 600 * 1_000_000_000;
/// Maximum number of links, and of sessions; a new one replaces the oldest.
const LINKS_MAX: usize = 64;
const SESSIONS_MAX: usize = 64;

/// The links and sessions of a daemon.
#[derive(Debug, Default)]
pub(crate) struct PageSessions {
    /// Never held while anything else is locked or waited for.
    state: Mutex<SessionState>,
    /// The address of the page, once the daemon listens for HTTP.
    address: std::sync::OnceLock<String>,
}

#[derive(Debug, Default)]
struct SessionState {
    /// Hashes of codes, and when they expire on the monotonic clock; oldest first.
    links: Vec<(blake3::Hash, u64)>,
    /// Hashes of cookies and keys; oldest first.
    sessions: Vec<(blake3::Hash, blake3::Hash)>,
}

/// What a browser holds of a session.
#[derive(Debug)]
pub(crate) struct NewSession {
    pub(crate) cookie: String,
    pub(crate) key: String,
}

/// Why a code opens no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkProblem {
    Expired,
    /// It was used before, or was never valid.
    Unknown,
}

impl PageSessions {
    /// Notes where the page is; only the first call counts.
    pub(crate) fn set_address(&self, address: String) {
        let _ = self.address.set(address);
    }

    /// The address of the page; `None` if the daemon does not listen for HTTP.
    pub(crate) fn address(&self) -> Option<&str> {
        self.address.get().map(String::as_str)
    }

    /// A new code.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(crate) fn make_code(&self, io: &dyn Io) -> annals::Result<String> {
        let code = random_text(io)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = io.monotonic_ns();
        if state.links.len() >= LINKS_MAX {
            state.links.remove(0);
        }
        state.links.push((blake3::hash(code.as_bytes()), now_ns.saturating_add(LINK_NS)));
        Ok(code)
    }

    /// Trades a code for a session. The code is then used.
    ///
    /// # Errors
    /// The code is not valid, or the system has no randomness.
    pub(crate) fn open(&self, code: &str, io: &dyn Io) -> annals::Result<Result<NewSession, LinkProblem>> {
        let (cookie, key) = (random_text(io)?, random_text(io)?);
        let now_ns = io.monotonic_ns();
        let hash = blake3::hash(code.as_bytes());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Hashes compare in constant time.
        let Some(at) = state.links.iter().position(|(link, _)| *link == hash) else {
            return Ok(Err(LinkProblem::Unknown));
        };
        let (_, expires_ns) = state.links.remove(at);
        if expires_ns <= now_ns {
            return Ok(Err(LinkProblem::Expired));
        }
        if state.sessions.len() >= SESSIONS_MAX {
            state.sessions.remove(0);
        }
        state.sessions.push((blake3::hash(cookie.as_bytes()), blake3::hash(key.as_bytes())));
        Ok(Ok(NewSession { cookie, key }))
    }

    /// Whether these are the two parts of one session.
    pub(crate) fn includes(&self, cookie: &str, key: &str) -> bool {
        let (cookie, key) = (blake3::hash(cookie.as_bytes()), blake3::hash(key.as_bytes()));
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions.iter().any(|known| known.0 == cookie && known.1 == key)
    }
}

fn random_text(io: &dyn Io) -> annals::Result<String> {
    let mut bytes = [0; 32];
    let drawn = io.random(&mut bytes);
    drawn.map_err(|error| annals::Error::new(annals::ErrorKind::Unavailable, error.to_string()))?;
    Ok(annals_text::hex::encode(&bytes))
}
