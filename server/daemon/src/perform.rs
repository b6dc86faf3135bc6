//! Runs one command alone, as its own turn, for the HTTP API.

use super::connection::pause;
use super::session::{Daemon, Held, Session};
use super::slow::Name;
use super::turn::{Single, single};
use annals_wire::resp::Reply;

/// Runs a command; returns its reply once everything it depends on is durable.
pub(super) async fn perform(daemon: &Daemon, session: &mut Session, words: Vec<Vec<u8>>) -> Reply {
    let name = Name::of(words.first().map(Vec::as_slice).unwrap_or_default());
    session.held = Some(Held { words, until: None, waits: false, apart: None });
    loop {
        let Some(held) = session.held.take() else { return Reply::error("BUG a command was lost") };
        let (waits, until) = (held.waits, held.until);
        if waits {
            pause(daemon, session, until).await;
        }
        if session.is_taken_back(daemon) {
            return Reply::error("NOAUTH the token was revoked");
        }
        let began = daemon.io.monotonic_ns();
        let done = match held.apart {
            None => single(daemon, session, held),
            Some(apart) => {
                let _place = daemon.places(apart).acquire().await;
                tokio::task::block_in_place(|| single(daemon, session, held))
            }
        };
        let Single { reply, wait, added } = done;
        if let Some(wait) = wait {
            let why = match wait.await {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why),
                Err(_) => Some("the daemon ends".to_owned()),
            };
            if let Some(why) = why {
                return Reply::error(format!("UNAVAILABLE the store does not take writes: {why}"));
            }
        }
        daemon.took(session, name, 1, began);
        if let Some(tenant) = &added {
            tenant.added.notify_waiters();
        }
        if let Some(reply) = reply {
            return reply;
        }
    }
}
