//! The stores that this process records into. Sessions of one store share it; the last one closes it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use annals::{Durability, Options};
use annals_daemon::Shared;
use annals_proxy::destination::Destination;

use super::SessionResult;

type StoreKey = (u32, PathBuf, String);

/// Each open store, and how many sessions use it.
type OpenStores = HashMap<StoreKey, (usize, Arc<Shared>)>;

static OPEN: Mutex<Option<OpenStores>> = Mutex::new(None);

/// A session's use of a store. The store is closed when no session uses it.
pub(super) struct StoreUse {
    key: StoreKey,
    destination: Destination,
}

impl StoreUse {
    /// Opens a store for recording, or joins the process that holds it.
    ///
    /// # Errors
    /// As [`Shared::open`].
    pub(super) fn open(root: &Path, namespace: &str) -> SessionResult<Self> {
        // A forked child must not use its parent's store.
        let key =
            (std::process::id(), std::path::absolute(root).unwrap_or(root.to_owned()), namespace.to_owned());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        if let Some((uses, shared)) = open.get_mut(&key) {
            *uses += 1;
            return Ok(Self { destination: shared.destination().clone(), key });
        }
        let options = Options { durability: Durability::Process, ..Options::default() };
        let shared = Arc::new(Shared::open(root, namespace, &options)?);
        let destination = shared.destination().clone();
        open.insert(key.clone(), (1, shared));
        Ok(Self { key, destination })
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Ends the use.
    ///
    /// # Errors
    /// As [`Shared::close`].
    pub(super) fn close(self) -> SessionResult<()> {
        self.release()
    }

    fn release(&self) -> SessionResult<()> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        let Some((uses, _)) = open.get_mut(&self.key) else { return Ok(()) };
        *uses -= 1;
        if *uses > 0 {
            return Ok(());
        }
        let closed = open.remove(&self.key).and_then(|(_, shared)| Arc::into_inner(shared));
        closed.map_or(Ok(()), |shared| shared.close().map(drop))
    }
}

impl Drop for StoreUse {
    fn drop(&mut self) {
        // A store that cannot be closed cleanly is recovered at its next opening.
        let _ = self.release();
    }
}
