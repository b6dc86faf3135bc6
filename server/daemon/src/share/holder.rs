//! Finds the process that holds a store, or makes this process its holder.
//!
//! The lock alone decides: its holder serves the others. A recorder whose holder has gone looks for the next one
//! and for the lock in turn, until it has one of them.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::{ErrorKind, Options, Store, retention::RetentionPolicy, upkeep::OpeningReport};

use super::host::Host;
use super::notes::NotedRuns;
use super::socket;

/// Pause between two attempts to find or open a store whose holder does not serve. A holder that starts will
/// serve soon, one that ends will release the lock.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a recorder leaves a lock alone that its holder has released. Others that want the store for
/// themselves, and ask for it all the time, get it meanwhile.
const GIVE_WAY: Duration = Duration::from_millis(20);

/// A store that this process records into: held here, or by another process.
#[derive(Debug)]
pub(super) struct StoreHolder {
    root: PathBuf,
    options: Options,
    /// What this process holds.
    held: Mutex<HeldStore>,
    /// Runs that are noted into while this process holds the store.
    notes: Arc<NotedRuns>,
}

#[derive(Debug, Default)]
struct HeldStore {
    /// The store, and the host if the file system has sockets.
    store: Option<(Option<Host>, Store)>,
    /// The policy by which ended runs are sampled out while this process holds the store.
    policy: Option<RetentionPolicy>,
    /// Nothing is held any more.
    is_closed: bool,
}

impl StoreHolder {
    pub(super) fn new(root: &Path, options: &Options) -> Self {
        // The path must stay valid if this process changes its directory.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_path_buf());
        Self { root, options: options.clone(), held: Mutex::default(), notes: Arc::default() }
    }

    fn held(&self) -> MutexGuard<'_, HeldStore> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store and serves it to other processes. Without a socket, other processes wait for the lock.
    ///
    /// # Errors
    /// As [`Store::open_with`]: `Locked` if another process holds the store.
    pub(super) fn open(&self) -> annals::Result<Store> {
        let mut held = self.held();
        if held.is_closed {
            return Err(annals::Error::new(ErrorKind::Unavailable, "this recorder has closed its store"));
        }
        let store = Store::open_with(&self.root, self.options.clone())?;
        if let Some(policy) = &held.policy {
            store.sample_ended(policy)?;
        }
        let host = Host::start(&store, &self.root, self.notes.clone()).ok();
        held.store = Some((host, store.clone()));
        Ok(store)
    }

    /// The store, if this process holds it.
    pub(super) fn store(&self) -> Option<Store> {
        self.held().store.as_ref().map(|(_, store)| store.clone())
    }

    /// The runs that are noted into.
    pub(super) fn notes(&self) -> &NotedRuns {
        &self.notes
    }

    /// A connection to the process that serves the store, which may be this one; `None` if no process serves it
    /// now.
    pub(super) fn connect(&self) -> Option<UnixStream> {
        socket::connect(&self.root).ok()
    }

    /// As [`StoreHolder::connect`], for a recorder whose holder has gone: takes the store over if its lock is
    /// free.
    ///
    /// # Errors
    /// As [`StoreHolder::open`], except `Locked`.
    pub(super) fn connect_or_take_over(&self) -> annals::Result<Option<UnixStream>> {
        if let Some(stream) = self.connect() {
            return Ok(Some(stream));
        }
        std::thread::sleep(GIVE_WAY);
        if let Some(stream) = self.connect() {
            return Ok(Some(stream));
        }
        match self.open() {
            Ok(_) if self.held().store.as_ref().is_some_and(|(host, _)| host.is_none()) => {
                let message =
                    "the socket of the store cannot be made again: nothing can be recorded through it";
                Err(annals::Error::new(ErrorKind::Unavailable, message))
            }
            Ok(_) => Ok(self.connect()),
            Err(error) if error.kind() == ErrorKind::Locked => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the opening of the store did, if this process holds it.
    pub(super) fn opening(&self) -> Option<OpeningReport> {
        self.held().store.as_ref().map(|(_, store)| store.opening().clone())
    }

    /// From now on, runs that end while this process holds the store are sampled by this policy when it closes
    /// the store.
    ///
    /// # Errors
    /// As [`Store::sample_ended`].
    pub(super) fn set_policy(&self, policy: RetentionPolicy) -> annals::Result<()> {
        let mut held = self.held();
        if let Some((_, store)) = &held.store {
            store.sample_ended(&policy)?;
        }
        held.policy = Some(policy);
        Ok(())
    }

    /// Closes the store if this process holds it, without waiting for other recorders: one of them takes it
    /// over. Returns the number of runs that were sampled out.
    ///
    /// # Errors
    /// As [`Store::sample_ended`] and [`Store::close`].
    pub(super) fn close(&self) -> annals::Result<u64> {
        let (held, policy) = {
            let mut held = self.held();
            held.is_closed = true;
            (held.store.take(), held.policy.take())
        };
        let Some((host, store)) = held else { return Ok(0) };
        // Ends the connections: the runs of other recorders are left as the log has them, to be taken up again.
        drop(host);
        let sampled = policy.map_or(Ok(0), |policy| store.sample_ended(&policy));
        store.close()?;
        sampled
    }
}
