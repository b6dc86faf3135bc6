//! Runs one command alone, as its own turn, for the HTTP API.

use super::connection::await_activity;
use super::session::{Daemon, HeldCommand, Session};
use super::slow_log::CommandName;
use super::turn::{SingleOutcome, run_single};
use annals_wire::resp::Reply;

/// Runs a command; returns its reply once everything it depends on is durable.
pub(super) async fn perform(daemon: &Daemon, session: &mut Session, words: Vec<Vec<u8>>) -> Reply {
    let name = CommandName::new(words.first().map(Vec::as_slice).unwrap_or_default());
    session.held_command = Some(HeldCommand { words, until: None, waits: false, offload: None });
    loop {
        let Some(held) = session.held_command.take() else { return Reply::error("BUG a command was lost") };
        let (waits, until) = (held.waits, held.until);
        if waits {
            await_activity(daemon, session, until).await;
        }
        if let Some(end) = session.token_end(daemon) {
            return Reply::error(end.error_text());
        }
        let began = daemon.io.monotonic_ns();
        let done = match held.offload {
            None => run_single(daemon, session, held),
            Some(apart) => {
                let _place = daemon.offload_permits(apart).acquire().await;
                tokio::task::block_in_place(|| run_single(daemon, session, held))
            }
        };
        let SingleOutcome { reply, wait, added } = done;
        if let Some(wait) = wait {
            let why = match wait.await {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why),
                Err(_) => Some("UNAVAILABLE the daemon ends".to_owned()),
            };
            if let Some(why) = why {
                return Reply::error(why);
            }
        }
        daemon.note_duration(session, name, 1, began);
        if let Some(tenant) = &added {
            tenant.added.notify_waiters();
        }
        if let Some(reply) = reply {
            return reply;
        }
    }
}
