//! A store opened to record into: held by this process and served to others, or joined where another process holds it.

use std::path::Path;
use std::time::Duration;

use annals::{ErrorKind, Options, Policy, Store};
use annals_proxy::destination::Destination;

use super::host::Host;
use super::remote::{Joined, Remote};

/// How often, and how long apart, a store is tried whose holder serves nobody: one that has just begun will, one that is about to end is
/// waited for.
pub(super) const TRIES: u32 = 200;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// A store that this process records into.
#[derive(Debug)]
pub struct Shared {
    into: Destination,
    /// Where this process holds it.
    held: Option<(Option<Host>, Store)>,
    /// By which runs are sampled out.
    policy: Option<Policy>,
}

impl Shared {
    /// Opens a store, and serves it to others; where another process does that, joins it. A namespace that is not there is made.
    ///
    /// # Errors
    /// As [`Store::open_with`]: `Locked` where a process writes it that serves nobody.
    pub fn open(root: &Path, namespace: &str, options: &Options) -> annals::Result<Self> {
        let mut tries = 0;
        loop {
            match Store::open_with(root, options.clone()) {
                Ok(store) => {
                    let into = store.namespace(namespace)?.into();
                    // Where the file system holds no sockets, others wait as they would for anybody.
                    let host = Host::start(&store, root).ok();
                    return Ok(Self { into, held: Some((host, store)), policy: None });
                }
                Err(error) if error.kind() == ErrorKind::Locked => {
                    if let Joined::Yes(remote) = Remote::join(root, namespace)? {
                        return Ok(Self { into: remote.into(), held: None, policy: None });
                    }
                    tries += 1;
                    if tries == TRIES {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// From here on the runs that end are sampled by this policy when it is closed, those of others who joined, too. Where another
    /// process holds the store its policy counts, and this one does not.
    ///
    /// # Errors
    /// As [`Store::sample_ended`].
    pub fn sampled_by(mut self, policy: Policy) -> annals::Result<Self> {
        if let Some((_, store)) = &self.held {
            store.sample_ended(&policy)?;
            self.policy = Some(policy);
        }
        Ok(self)
    }

    /// Where runs go.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.into
    }

    /// Closes it. Waits for those who joined until they have ended, or until this process is sent to end (Ctrl-C): their runs are
    /// abandoned then. `waiting` is told how many those are, if there are any. Gives how many runs were sampled out.
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
