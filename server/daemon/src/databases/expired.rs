//! Deletes what is over in a store that no daemon serves.

use annals::retention::{Deadline, DeadlineKind};
use annals::{Namespace, Store};
use annals_proxy::proxy::delete_due_answers;
use serde::Serialize;

use super::{DEADLINES, deadline_in};

/// Entries of the index of deadlines in one commit.
const AT_ONCE: usize = 256;

/// What [`delete_expired`] deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExpiredCounts {
    /// Keys of databases.
    pub keys: u64,
    /// Cached answers.
    pub answers: u64,
}

/// Deletes the keys of databases and the cached answers that are over, in all namespaces of a store that this process
/// holds and does not serve: a daemon deletes its own, beside pending writes. `now_ns` is [`Store::believed_now_ns`].
///
/// # Errors
/// `Damaged`, `Unavailable`, `Poisoned`; `Invalid` in a store open for reading.
pub fn delete_expired(store: &Store, now_ns: u64) -> annals::Result<ExpiredCounts> {
    store.check_writer()?;
    let (mut deleted, now_ms) = (ExpiredCounts::default(), now_ns / 1_000_000);
    for name in store.namespaces()? {
        let space = store.namespace(&name)?;
        if space.has_due(DeadlineKind::Key, now_ms)? {
            deleted.keys += delete_due_keys(&space, now_ms)?;
        }
        let mut is_more = space.has_due(DeadlineKind::Answer, now_ms)?;
        while is_more {
            let (answers, more) = delete_due_answers(&space, now_ms, AT_ONCE)?;
            deleted.answers += answers;
            is_more = more;
        }
    }
    Ok(deleted)
}

fn delete_due_keys(space: &Namespace, now_ms: u64) -> annals::Result<u64> {
    let Some(deadlines) = space.find_keyspace(DEADLINES)? else { return Ok(0) };
    let index = space.complete_deadlines(DeadlineKind::Key, |value| Ok(deadline_in(Some(value.to_vec()))))?;
    let (mut deleted, mut after) = (0, None);
    loop {
        let mut due = index.due(DeadlineKind::Key, now_ms, after.as_ref(), AT_ONCE)?;
        if due.is_empty() {
            return Ok(deleted);
        }
        let mut batch = space.batch();
        for Deadline { ms, id } in &due {
            index.remove(&mut batch, DeadlineKind::Key, *ms, id);
            // The key may have another deadline by now.
            if deadline_in(deadlines.get(id)?) != Some(*ms) {
                continue;
            }
            batch.delete(&deadlines, id);
            let Some((database, key)) = id.split_first() else { continue };
            if let Some(values) = space.find_keyspace(&format!("db{database}"))? {
                batch.delete(&values, key);
                deleted += 1;
            }
        }
        batch.commit()?;
        after = due.pop();
    }
}
