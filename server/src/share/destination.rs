//! Where runs are recorded: into a store that this process holds, or through the socket of the process that
//! holds it.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use annals::{
    Durability, Ending, ErrorKind, Frame, Namespace, OpenFrame, Options, Policy, Run, RunSpec, Status, Store,
    StoredBlob,
};

use super::host::Host;
use super::remote::{Joined, Remote, RemoteBlob, RemoteFrame, RemoteRun};
use crate::run_memory::remember_ended;
use crate::session::SessionError;

/// Number of attempts to open a store whose holder does not serve, and the pause between them: a holder that
/// starts will serve soon, one that ends will release the lock.
pub(super) const TRIES: u32 = 200;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// A namespace into which runs are recorded.
#[derive(Debug, Clone)]
pub struct Destination(Place);

#[derive(Debug, Clone)]
enum Place {
    Here(Namespace),
    There(Remote),
}

impl From<Namespace> for Destination {
    fn from(space: Namespace) -> Self {
        Self(Place::Here(space))
    }
}

impl Destination {
    /// The namespace, if this process holds its store.
    ///
    /// # Errors
    /// `Locked` if another process holds it.
    pub(crate) fn here(&self, what: &str) -> annals::Result<&Namespace> {
        match &self.0 {
            Place::Here(space) => Ok(space),
            Place::There(_) => {
                let message = format!(
                    "another process is writing to this store, and {what} are not available through it"
                );
                Err(annals::Error::new(ErrorKind::Locked, message))
            }
        }
    }

    pub(crate) fn begin_run(&self, spec: RunSpec) -> annals::Result<NewRun> {
        Ok(match &self.0 {
            Place::Here(space) => NewRun::Here(Arc::new(space.begin_run(spec)?)),
            Place::There(remote) => NewRun::There(remote.begin_run(&spec)?),
        })
    }

    /// Ends a run that was begun but never ran. If its program could not be started and this process holds
    /// the store, the run is dropped.
    pub(crate) fn give_up(&self, run: &NewRun, why: &SessionError) {
        // If the store refuses this, the next writer abandons the run.
        let _ = run.end(Status::Failed);
        if let (Place::Here(space), SessionError::Program(error)) = (&self.0, why) {
            let _ = space.drop_run(run.name(), "record", &error.message.replace(char::is_control, " "));
        }
    }

    /// Stores the outcome of a run that has just ended with this status in memory.
    ///
    /// # Errors
    /// As [`remember_ended`].
    pub(crate) fn remember(&self, run: &NewRun, status: Status) -> annals::Result<()> {
        match (&self.0, run) {
            (Place::Here(space), NewRun::Here(run)) => remember_ended(space, run.uid(), status).map(drop),
            (_, NewRun::There(run)) => run.remember(),
            (Place::There(_), NewRun::Here(_)) => Err(elsewhere()),
        }
    }

    /// Streams a body into the store.
    pub(crate) fn keep(&self, from: &mut dyn Read) -> annals::Result<Kept> {
        match &self.0 {
            Place::Here(space) => space.store_blob(from).map(Kept::from),
            Place::There(remote) => remote.store_blob(from).map(|blob| Kept(Body::There(blob))),
        }
    }
}

/// A store that this process records into.
#[derive(Debug)]
pub struct Shared {
    into: Destination,
    /// Set if this process holds the store.
    held: Option<(Option<Host>, Store)>,
    /// The policy by which ended runs are sampled out.
    policy: Option<Policy>,
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
                    if let Joined::Yes(remote) = Remote::join(root, namespace)? {
                        return Ok(Self {
                            into: Destination(Place::There(remote)),
                            held: None,
                            policy: None,
                        });
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

    /// From now on, runs that end are sampled by this policy when the store is closed, including those of
    /// joined processes. If another process holds the store, its policy applies and this one is ignored.
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

/// A run that is being recorded.
#[derive(Debug, Clone)]
pub(crate) enum NewRun {
    Here(Arc<Run>),
    There(RemoteRun),
}

impl From<Arc<Run>> for NewRun {
    fn from(run: Arc<Run>) -> Self {
        Self::Here(run)
    }
}

impl NewRun {
    /// The run, if this process holds its store.
    pub(crate) fn here(&self) -> Option<&Run> {
        match self {
            Self::Here(run) => Some(run),
            Self::There(_) => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Here(run) => run.name(),
            Self::There(run) => &run.name,
        }
    }

    /// Queues a frame for the writer without waiting.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub(crate) fn submit(&self, frame: Frame) -> annals::Result<()> {
        match self {
            Self::Here(run) => run.submit(frame).map(drop),
            Self::There(run) => run.submit(&frame, None),
        }
    }

    /// Begins a frame whose output is still to come.
    ///
    /// # Errors
    /// As [`OpenFrame::begin`].
    pub(crate) fn begin_frame(&self, frame: &Frame) -> annals::Result<NewFrame> {
        Ok(match self {
            Self::Here(run) => NewFrame::Here(Box::new(OpenFrame::begin(run.clone(), frame)?)),
            Self::There(run) => NewFrame::There(run.begin_frame(frame)?),
        })
    }

    /// Ends a run that has no more frames.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub(crate) fn end(&self, status: Status) -> annals::Result<()> {
        match self {
            Self::Here(run) => run.end(status).map(drop),
            Self::There(run) => run.end(status),
        }
    }

    /// Ends a run together with its last frames and their outputs; durable when this returns. In a local
    /// store this is atomic.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub(crate) fn end_with(&self, frames: Vec<(Frame, Kept)>, status: Status) -> annals::Result<()> {
        match self {
            Self::Here(run) => {
                let mut batch = run.batch()?;
                batch.durability(Durability::Disk);
                for (mut frame, output) in frames {
                    frame.output = output.here()?.into();
                    batch.frame(frame)?;
                }
                batch.end(status)?;
                batch.commit().map(drop)
            }
            Self::There(run) => {
                for (frame, output) in frames {
                    run.submit(&frame, Some(output.there()?))?;
                }
                run.end(status)
            }
        }
    }
}

/// A frame whose output is still to come.
#[derive(Debug)]
pub(crate) enum NewFrame {
    Here(Box<OpenFrame<Arc<Run>>>),
    There(RemoteFrame),
}

impl NewFrame {
    pub(crate) fn seq(&self) -> u32 {
        match self {
            Self::Here(frame) => frame.seq(),
            Self::There(frame) => frame.seq,
        }
    }

    /// Appends to the output.
    ///
    /// # Errors
    /// As [`OpenFrame::append`].
    pub(crate) fn append(&self, bytes: &[u8]) -> annals::Result<()> {
        match self {
            Self::Here(frame) => frame.append(bytes),
            Self::There(frame) => frame.append(bytes),
        }
    }

    /// Ends the frame; returns its number.
    ///
    /// # Errors
    /// As [`OpenFrame::finish_with`].
    pub(crate) fn finish_with(self, ending: Ending) -> annals::Result<u32> {
        match self {
            Self::Here(frame) => frame.finish_with(ending),
            Self::There(frame) => frame.finish_with(&ending),
        }
    }
}

/// A body in the store that no frame references yet.
#[derive(Debug)]
pub(crate) struct Kept(Body);

#[derive(Debug)]
enum Body {
    Here(StoredBlob),
    There(RemoteBlob),
}

impl From<StoredBlob> for Kept {
    fn from(stored: StoredBlob) -> Self {
        Self(Body::Here(stored))
    }
}

impl Kept {
    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            Body::Here(stored) => stored.is_empty(),
            Body::There(blob) => blob.len == 0,
        }
    }

    fn here(self) -> annals::Result<StoredBlob> {
        match self.0 {
            Body::Here(stored) => Ok(stored),
            Body::There(_) => Err(elsewhere()),
        }
    }

    fn there(&self) -> annals::Result<&RemoteBlob> {
        match &self.0 {
            Body::There(blob) => Ok(blob),
            Body::Here(_) => Err(elsewhere()),
        }
    }
}

fn elsewhere() -> annals::Error {
    annals::Error::new(ErrorKind::Bug, "a body was stored in another place than its frame")
}
