//! A store to record into: held by this process and served to others, or joined if another process holds it.

use std::path::Path;
use std::time::Duration;

use annals::{ErrorKind, Options, Store, retention::RetentionPolicy, upkeep::OpeningReport};
use annals_proxy::destination::Destination;

use super::host::Host;
use super::remote::{JoinOutcome, RemoteStore};

/// Number of attempts to open a store whose holder does not serve, and the pause between them: a holder that
/// starts will serve soon, one that ends will release the lock.
pub(super) const OPEN_TRIES: u32 = 200;
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A store that this process records into.
#[derive(Debug)]
pub struct Shared {
    into: Destination,
    /// Set if this process holds the store.
    held: Option<(Option<Host>, Store)>,
    /// The policy by which ended runs are sampled out.
    policy: Option<RetentionPolicy>,
}

impl Shared {
    /// Opens a store and serves it to other processes; if another process serves it, joins that process.
    /// Creates the namespace if it does not exist.
    ///
    /// # Errors
    /// As [`Store::open_with`]: `Locked` if a process holds the store without serving it.
    pub fn open(root: &Path, namespace: &str, options: &Options) -> annals::Result<Self> {
        let mut tries = 0;
        loop {
            match Store::open_with(root, options.clone()) {
                Ok(store) => {
                    let into = store.namespace(namespace)?.into();
                    // If the file system has no sockets, other processes wait for the lock.
                    let host = Host::start(&store, root).ok();
                    return Ok(Self { into, held: Some((host, store)), policy: None });
                }
                Err(error) if error.kind() == ErrorKind::Locked => {
                    if let JoinOutcome::Joined(remote) = RemoteStore::join(root, namespace)? {
                        return Ok(Self { into: remote.into(), held: None, policy: None });
                    }
                    tries += 1;
                    if tries == OPEN_TRIES {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// From now on, runs that end are sampled by this policy when the store is closed, including those of
    /// joined processes. If another process holds the store, its policy applies and this one is ignored.
    ///
    /// # Errors
    /// As [`Store::sample_ended`].
    pub fn with_sampling(mut self, policy: RetentionPolicy) -> annals::Result<Self> {
        if let Some((_, store)) = &self.held {
            store.sample_ended(&policy)?;
            self.policy = Some(policy);
        }
        Ok(self)
    }

    /// What the opening of the store did, if this process opened it.
    #[must_use]
    pub fn opening(&self) -> Option<&OpeningReport> {
        self.held.as_ref().map(|(_, store)| store.opening())
    }

    /// The destination of runs.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.into
    }

    /// Closes the store. Waits until joined processes have ended, or until this process is told to end
    /// (Ctrl-C); their runs are then abandoned. `waiting` gets the number of joined processes, if any.
    /// Returns the number of runs that were sampled out.
    ///
    /// # Errors
    /// As [`Store::sample_ended`] and [`Store::close`].
    pub fn close(self, waiting: impl FnOnce(usize)) -> annals::Result<u64> {
        let Some((host, store)) = self.held else { return Ok(0) };
        if let Some(host) = host {
            host.finish(waiting);
        }
        let sampled = self.policy.as_ref().map_or(Ok(0), |policy| store.sample_ended(policy));
        store.close()?;
        sampled
    }
}
