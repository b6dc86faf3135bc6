//! A served namespace: its databases, its open runs, its memory.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{ErrorKind, Namespace, RunReader, RunUid, Status, Store};
use annals_deliberation::Deliberation;
use annals_diagnostics::Diagnostics;
use annals_memory::{FrameTexts, Memory};
use tokio::sync::Notify;

use super::databases::Databases;
use super::open_runs::DaemonRun;
use crate::background::RememberQueue;
use annals_formats::otlp::TraceIngest;
use annals_proxy::embeddings::ConfiguredEmbedder;
use annals_review::search::{catch_up, is_caught_up};

/// Maximum number of frames whose times are cached; each run counts as 64 more.
const TIMES_MAX: usize = 4 << 20;

/// A served namespace.
#[derive(Debug)]
pub(super) struct Tenant {
    /// The namespace's name.
    pub(super) name: String,
    pub(super) space: Namespace,
    pub(super) databases: Arc<Databases>,
    streams: Mutex<TenantStreams>,
    /// Notified when something was added to a run.
    pub(super) added: Notify,
    /// Number of open frames of all tenants.
    pub(super) open_frames: Arc<AtomicU64>,
    /// Held while the proxy begins a run.
    pub(super) proxy_begins: Mutex<()>,
    /// Ingests traces.
    pub(super) ingest: TraceIngest,
    /// Stores the outcomes of runs in memory, in the background; shared by all tenants.
    pub(super) behind: Arc<RememberQueue>,
    /// The agents' memory, opened at first use.
    memory: Mutex<Option<Memory>>,
    /// The index of the frames' texts. Searches take turns to index what is new.
    frame_texts: Mutex<Option<FrameTexts>>,
    indexing: Mutex<()>,
    /// The sessions' diagnostics, opened at first use.
    diagnostics: Mutex<Option<Diagnostics>>,
    /// The decisions of agents, opened at first use.
    deliberation: Mutex<Option<Deliberation>>,
    /// The embedder for entries without a vector, created at first use.
    embedder: Mutex<Option<Arc<ConfiguredEmbedder>>>,
    /// Since when it is unused, on the monotonic clock; `None` while it is used.
    unused_since_ns: Mutex<Option<u64>>,
}

/// Whether a store was opened for reading. Another process may make an index anew, so no handle on one is kept.
fn reads_only(store: &Store) -> bool {
    store.check_writer().is_err_and(|error| error.kind() == ErrorKind::Invalid)
}

/// Open runs, and the start times of frames. Lock order: after the databases. Never locked during
/// compression.
#[derive(Debug, Default)]
pub(super) struct TenantStreams {
    /// Runs that were begun here and have not ended.
    pub(super) open: HashMap<String, Arc<DaemonRun>>,
    /// Start times of frames in milliseconds since 1970; they never decrease.
    times: HashMap<RunUid, Vec<u64>>,
}

impl Tenant {
    pub(super) fn new(
        name: &str,
        space: Namespace,
        databases: Arc<Databases>,
        open_frames: Arc<AtomicU64>,
        behind: Arc<RememberQueue>,
    ) -> Self {
        let name = name.to_owned();
        let ingest = TraceIngest::new(space.clone());
        let (streams, added, proxy_begins, memory, frame_texts, indexing, diagnostics, deliberation) =
            Default::default();
        let (embedder, unused_since_ns) = Default::default();
        Self {
            name,
            space,
            databases,
            streams,
            added,
            open_frames,
            proxy_begins,
            ingest,
            behind,
            memory,
            frame_texts,
            indexing,
            diagnostics,
            deliberation,
            embedder,
            unused_since_ns,
        }
    }

    /// Whether nobody uses it, and nobody did when this was called in the last `limit_ns`. The caller holds the lock
    /// of the only place from which others get the tenant.
    pub(super) fn is_unused_for(self: &Arc<Self>, limit_ns: u64, now_ns: u64) -> bool {
        // Nobody else has it, so the locks below are free.
        let is_unused = Arc::strong_count(self) == 1
            && Arc::strong_count(&self.databases) == 1
            && self.databases.is_settled()
            && self.streams().open.is_empty()
            && !self.ingest.has_open_traces();
        let mut since = self.unused_since_ns.lock().unwrap_or_else(PoisonError::into_inner);
        match is_unused {
            true => now_ns.saturating_sub(*since.get_or_insert(now_ns)) >= limit_ns,
            false => {
                *since = None;
                false
            }
        }
    }

    /// The agents' memory. All connections share one, because writers of an entry must wait for each other.
    /// Its writes are durable.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn memory(&self) -> annals::Result<Memory> {
        if reads_only(self.space.store()) {
            return Memory::open(&self.space);
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match &*memory {
            Some(memory) => Ok(memory.clone()),
            None => Ok(memory.insert(Memory::open(&self.space)?.with_disk_durability()).clone()),
        }
    }

    /// The index of the frames' texts. `None` if the store is only read, and nobody has searched it.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn frame_texts(&self) -> annals::Result<Option<FrameTexts>> {
        if reads_only(self.space.store()) {
            return FrameTexts::open(&self.space);
        }
        let mut index = self.frame_texts.lock().unwrap_or_else(PoisonError::into_inner);
        if index.is_none() {
            *index = FrameTexts::open(&self.space)?;
        }
        Ok(index.clone())
    }

    /// Indexes some frames that were recorded since the last search, from the beginning if `rebuilds`. Waits while another
    /// search does. A store that is only read is not changed. Returns whether all are indexed.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn index_frames(&self, rebuilds: bool) -> annals::Result<bool> {
        let Some(index) = self.frame_texts()? else { return Ok(false) };
        if reads_only(self.space.store()) {
            return is_caught_up(&self.space, &index);
        }
        let _turn = self.indexing.lock().unwrap_or_else(PoisonError::into_inner);
        if rebuilds {
            index.clear()?;
        }
        Ok(catch_up(&self.space, &index)?.is_whole)
    }

    /// The sessions' diagnostics; their writes are durable.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn diagnostics(&self) -> annals::Result<Diagnostics> {
        let mut diagnostics = self.diagnostics.lock().unwrap_or_else(PoisonError::into_inner);
        match &*diagnostics {
            Some(diagnostics) => Ok(diagnostics.clone()),
            None => Ok(diagnostics.insert(Diagnostics::open(&self.space)?.with_disk_durability()).clone()),
        }
    }

    /// The sessions' diagnostics, if a session was ever recorded. Writes nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn existing_diagnostics(&self) -> annals::Result<Option<Diagnostics>> {
        let mut diagnostics = self.diagnostics.lock().unwrap_or_else(PoisonError::into_inner);
        if diagnostics.is_none() {
            *diagnostics = Diagnostics::find(&self.space)?.map(Diagnostics::with_disk_durability);
        }
        Ok(diagnostics.clone())
    }

    /// The decisions of agents. Their writes are durable.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn deliberation(&self) -> annals::Result<Deliberation> {
        let mut deliberation = self.deliberation.lock().unwrap_or_else(PoisonError::into_inner);
        match &*deliberation {
            Some(deliberation) => Ok(deliberation.clone()),
            None => Ok(deliberation.insert(Deliberation::open(&self.space)?.with_disk_durability()).clone()),
        }
    }

    /// The embedder for entries without a vector.
    ///
    /// # Errors
    /// As [`ConfiguredEmbedder::from_environment`].
    pub(super) fn embedder(&self) -> annals::Result<Arc<ConfiguredEmbedder>> {
        let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
        match &*embedder {
            Some(embedder) => Ok(embedder.clone()),
            None => Ok(embedder
                .insert(Arc::new(ConfiguredEmbedder::from_environment(Some(&self.space))?))
                .clone()),
        }
    }

    /// Locks the open runs.
    pub(super) fn streams(&self) -> MutexGuard<'_, TenantStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The start time of each frame of a run in milliseconds since 1970; the times never decrease.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn frame_times_ms(&self, reader: &RunReader) -> annals::Result<Vec<u64>> {
        let (uid, frames) = (reader.info().uid, reader.info().frames);
        let mut streams = self.streams();
        if streams.times.values().map(|times| times.len() + 64).sum::<usize>() > TIMES_MAX {
            streams.times.clear();
        }
        let times = streams.times.entry(uid).or_default();
        for number in times.len()..frames as usize {
            let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
            let began = reader.frame_info(number)?.started_ns / 1_000_000;
            times.push(began.max(times.last().copied().unwrap_or(0)));
        }
        Ok(times.get(..frames as usize).unwrap_or_default().to_vec())
    }

    /// Ends the runs begun by the proxy and traces, which are complete. Other runs are abandoned when the store
    /// closes; XADD takes up its own again.
    pub(super) fn end_streams(&self, now_ns: u64) {
        let open = std::mem::take(&mut self.streams().open);
        for open in open.into_values().filter(|open| open.ends_with_daemon) {
            let status = if open.proxied.failure().is_some() { Status::Failed } else { Status::Ok };
            // If this fails, closing the store reports the cause.
            let ended = open.run.end(status);
            if ended.is_ok() && open.proxied.recorded() {
                self.behind.remember(&self.space, open.run.uid(), status);
            }
        }
        let _ = self.ingest.end_quiet_traces(now_ns, true);
    }
}
