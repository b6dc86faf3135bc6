//! Sessions of the debugger page: one-time links, and what a browser holds afterwards.
//!
//! A link has a code of 32 random bytes, valid once and for ten minutes. It is traded for a session, which has two
//! parts of 32 random bytes: a cookie that scripts cannot read, and a key that only pages of this origin can read
//! and that they send in a header. A request needs both. A browser sends a cookie to every port of a host, so a
//! cookie alone could be used by another user's server on this machine; a key alone could be used by a script that
//! came into the page.
//!
//! Only hashes are kept, in memory: sessions end after twelve hours, and with the daemon. A session has the rights of
//! the store's owner.

use std::sync::{Mutex, PoisonError};

use annals::io::Io;

/// Validity of a link.
const LINK_NS: u64 = 600 * 1_000_000_000;
/// Validity of a session, however much it is used: a working day.
const SESSION_NS: u64 = 12 * 3600 * 1_000_000_000;
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
    /// Oldest first.
    links: Vec<PageLink>,
    /// Oldest first.
    sessions: Vec<PageSession>,
}

#[derive(Debug)]
struct PageLink {
    code: blake3::Hash,
    /// On the monotonic clock.
    expires_ns: u64,
    namespace: String,
}

#[derive(Debug)]
struct PageSession {
    cookie: blake3::Hash,
    key: blake3::Hash,
    /// On the monotonic clock.
    expires_ns: u64,
    namespace: String,
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

    /// A new code, which gives access to a namespace.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(crate) fn make_code(&self, namespace: &str, io: &dyn Io) -> annals::Result<String> {
        let code = random_text(io)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = io.monotonic_ns();
        if state.links.len() >= LINKS_MAX {
            state.links.remove(0);
        }
        state.links.push(PageLink {
            code: blake3::hash(code.as_bytes()),
            expires_ns: now_ns.saturating_add(LINK_NS),
            namespace: namespace.to_owned(),
        });
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
        let Some(at) = state.links.iter().position(|link| link.code == hash) else {
            return Ok(Err(LinkProblem::Unknown));
        };
        let link = state.links.remove(at);
        if link.expires_ns <= now_ns {
            return Ok(Err(LinkProblem::Expired));
        }
        if state.sessions.len() >= SESSIONS_MAX {
            state.sessions.remove(0);
        }
        state.sessions.push(PageSession {
            cookie: blake3::hash(cookie.as_bytes()),
            key: blake3::hash(key.as_bytes()),
            expires_ns: now_ns.saturating_add(SESSION_NS),
            namespace: link.namespace,
        });
        Ok(Ok(NewSession { cookie, key }))
    }

    /// The namespace of the session that has these two parts; `None` also after it has expired.
    pub(crate) fn namespace(&self, cookie: &str, key: &str, io: &dyn Io) -> Option<String> {
        let (cookie, key) = (blake3::hash(cookie.as_bytes()), blake3::hash(key.as_bytes()));
        let now_ns = io.monotonic_ns();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions.retain(|session| session.expires_ns > now_ns);
        let found = state.sessions.iter().find(|session| session.cookie == cookie && session.key == key);
        found.map(|session| session.namespace.clone())
    }
}

fn random_text(io: &dyn Io) -> annals::Result<String> {
    let mut bytes = [0; 32];
    let drawn = io.random(&mut bytes);
    drawn.map_err(|error| annals::Error::new(annals::ErrorKind::Unavailable, error.to_string()))?;
    Ok(annals_text::hex::encode(&bytes))
}

#[cfg(test)]
mod tests {
    use annals::io::sim::SimIo;

    use super::*;

    #[test]
    fn code_opens_one_session_within_ten_minutes() {
        let sim = SimIo::new(1);
        let sessions = PageSessions::default();
        let code = sessions.make_code("n", &sim).unwrap();
        sim.advance_ns(LINK_NS - 1_000_000_000);
        let held = sessions.open(&code, &sim).unwrap().unwrap();
        assert_eq!(sessions.namespace(&held.cookie, &held.key, &sim).as_deref(), Some("n"));
        assert_eq!(sessions.namespace(&held.key, &held.cookie, &sim), None, "each part has its place");
        assert_eq!(sessions.open(&code, &sim).unwrap().unwrap_err(), LinkProblem::Unknown, "used");
        let late = sessions.make_code("n", &sim).unwrap();
        sim.advance_ns(LINK_NS + 1);
        assert_eq!(sessions.open(&late, &sim).unwrap().unwrap_err(), LinkProblem::Expired);
        assert_eq!(sessions.open(&late, &sim).unwrap().unwrap_err(), LinkProblem::Unknown);
    }

    #[test]
    fn session_ends_after_twelve_hours_of_use() {
        let sim = SimIo::new(1);
        let sessions = PageSessions::default();
        let code = sessions.make_code("n", &sim).unwrap();
        let held = sessions.open(&code, &sim).unwrap().unwrap();
        for _ in 0..12 {
            assert!(sessions.namespace(&held.cookie, &held.key, &sim).is_some());
            sim.advance_ns(SESSION_NS / 12);
        }
        assert_eq!(sessions.namespace(&held.cookie, &held.key, &sim), None);
    }

    /// Many links must not fill the memory, and the newest one must work.
    #[test]
    fn oldest_link_makes_room_for_a_new_one() {
        let sim = SimIo::new(1);
        let sessions = PageSessions::default();
        let codes: Vec<_> = (0..=LINKS_MAX).map(|_| sessions.make_code("n", &sim).unwrap()).collect();
        assert_eq!(sessions.open(&codes[0], &sim).unwrap().unwrap_err(), LinkProblem::Unknown);
        assert!(sessions.open(&codes[1], &sim).unwrap().is_ok());
        assert!(sessions.open(&codes[LINKS_MAX], &sim).unwrap().is_ok());
    }
}
