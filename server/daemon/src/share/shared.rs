//! A store to record into: held by this process and served to others, or joined if another process holds it.

use std::path::Path;
use std::sync::Arc;

use annals::{ErrorKind, Options, Store, retention::RetentionPolicy, upkeep::OpeningReport};
use annals_proxy::destination::Destination;

use super::ask::{HolderWait, retry_while_locked};
use super::holder::{RETRY_PAUSE, StoreHolder};
use super::remote::{JoinOutcome, RemoteStore};

/// Number of attempts to open a store whose holder does not serve.
pub(super) const OPEN_TRIES: u32 = 200;

/// A store that this process records into.
#[derive(Debug)]
pub struct Shared {
    into: Destination,
    holder: Arc<StoreHolder>,
    /// Another process held the store at the beginning.
    is_joined: bool,
}

impl Shared {
    /// Opens a store and serves it to other processes; if another process serves it, joins that process.
    /// Creates the namespace if it does not exist. If that process goes away later, this one or another one
    /// takes the store over.
    ///
    /// # Errors
    /// As [`Store::open_with`]: `Locked` if a process holds the store without serving
    /// it.
    pub fn open(root: &Path, namespace: &str, options: &Options) -> annals::Result<Self> {
        let holder = Arc::new(StoreHolder::new(root, options));
        let mut tries = 0;
        loop {
            match Self::attempt(&holder, namespace) {
                Err(error) if error.kind() == ErrorKind::Locked => {
                    tries += 1;
                    if tries == OPEN_TRIES {
                        return Err(error);
                    }
                }
                opened => return opened,
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// As [`Shared::open`]; waits longer for a process that holds the store without serving it.
    ///
    /// # Errors
    /// As [`Shared::open`].
    pub fn open_or_wait(
        root: &Path,
        namespace: &str,
        options: &Options,
        wait: HolderWait<'_>,
    ) -> annals::Result<Self> {
        let holder = Arc::new(StoreHolder::new(root, options));
        retry_while_locked(wait, || Self::attempt(&holder, namespace))
    }

    fn attempt(holder: &Arc<StoreHolder>, namespace: &str) -> annals::Result<Self> {
        match holder.open() {
            Ok(store) => {
                let into = store.namespace(namespace)?.into();
                Ok(Self { into, holder: holder.clone(), is_joined: false })
            }
            Err(error) if error.kind() == ErrorKind::Locked => match RemoteStore::join(holder, namespace)? {
                JoinOutcome::Joined(remote) => {
                    Ok(Self { into: remote.into(), holder: holder.clone(), is_joined: true })
                }
                JoinOutcome::NotNow => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The store, if this process holds it.
    #[must_use]
    pub fn local(&self) -> Option<Store> {
        self.holder.store()
    }

    /// From now on, runs that end are sampled by this policy when this process closes the store, including
    /// those of joined processes. While another process holds the store, its policy applies.
    ///
    /// # Errors
    /// As [`Store::sample_ended`].
    pub fn with_sampling(self, policy: RetentionPolicy) -> annals::Result<Self> {
        self.holder.set_policy(policy)?;
        Ok(self)
    }

    /// What the last opening of the store did, if this process has opened it: at the beginning, or when it took
    /// the store over.
    #[must_use]
    pub fn opening(&self) -> Option<OpeningReport> {
        self.holder.opening()
    }

    /// Whether this process holds a store that another process held at the beginning.
    #[must_use]
    pub fn has_taken_over(&self) -> bool {
        self.is_joined && self.holder.opening().is_some()
    }

    /// The destination of runs.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.into
    }

    /// Closes the store if this process holds it. Does not wait for joined processes: one of them takes the
    /// store over. Returns the number of runs that were sampled out.
    ///
    /// # Errors
    /// As [`Store::sample_ended`] and [`Store::close`].
    pub fn close(self) -> annals::Result<u64> {
        self.holder.close()
    }
}
