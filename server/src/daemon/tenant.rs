//! A namespace as it is served: its databases, and those of its runs that are added to.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{Namespace, RunReader, RunUid, Status};
use annals_memory::Memory;
use tokio::sync::Notify;

use super::databases::Databases;
use super::open_runs::OpenRun;
use crate::embeddings::EmbedderHere;
use crate::otlp::Ingest;
use crate::run_memory::Behind;

/// Frames whose times are remembered, and their runs.
const TIMES_MAX: usize = 4 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Tenant {
    /// The namespace's name.
    pub(super) name: String,
    pub(super) space: Namespace,
    pub(super) databases: Arc<Databases>,
    streams: Mutex<Streams>,
    /// Something was added to a run.
    pub(super) added: Notify,
    /// Frames of all tenants whose answer is still to come.
    pub(super) open_frames: Arc<AtomicU64>,
    /// Held while the proxy begins a run.
    pub(super) proxy_begins: Mutex<()>,
    /// Traces that come.
    pub(super) ingest: Ingest,
    /// Has runs remembered, of all tenants.
    pub(super) behind: Arc<Behind>,
    /// What agents remember, once somebody asks.
    memory: Mutex<Option<Memory>>,
    /// What makes vectors of what is brought without, once there is something.
    embedder: Mutex<Option<Arc<EmbedderHere>>>,
}

/// Runs that are added to, and when frames began. Locked after the databases, never before them, and never while anything is compressed.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Those that were begun here and have not ended.
    pub(super) open: HashMap<String, Arc<OpenRun>>,
    /// When frames began, in milliseconds since 1970, never going back.
    times: HashMap<RunUid, Vec<u64>>,
}

impl Tenant {
    pub(super) fn new(
        name: &str,
        space: Namespace,
        databases: Arc<Databases>,
        open_frames: Arc<AtomicU64>,
        behind: Arc<Behind>,
    ) -> Self {
        let name = name.to_owned();
        let ingest = Ingest::new(space.clone());
        let (streams, added, proxy_begins, memory, embedder) = Default::default();
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
            embedder,
        }
    }

    /// What agents remember: one for all, since of those that change an entry each waits for the other. What it has written is on disk.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn memory(&self) -> annals::Result<Memory> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match &*memory {
            Some(memory) => Ok(memory.clone()),
            None => Ok(memory.insert(Memory::open(&self.space)?.on_disk()).clone()),
        }
    }

    /// What makes vectors of what is brought without.
    ///
    /// # Errors
    /// As [`EmbedderHere::of_environment`].
    pub(super) fn embedder(&self) -> annals::Result<Arc<EmbedderHere>> {
        let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
        match &*embedder {
            Some(embedder) => Ok(embedder.clone()),
            None => Ok(embedder.insert(Arc::new(EmbedderHere::of_environment(Some(&self.space))?)).clone()),
        }
    }

    /// Runs as streams.
    pub(super) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When each frame of a run began, in milliseconds since 1970, never going back.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn times(&self, reader: &RunReader) -> annals::Result<Vec<u64>> {
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

    /// Ends what XADD, the proxy and traces began here: those runs are whole. Others were not told to end, so they are abandoned with the store's closing.
    pub(super) fn end_streams(&self, now_ns: u64) {
        let open = std::mem::take(&mut self.streams().open);
        for open in open.into_values().filter(|open| open.is_stream) {
            let status = if open.proxied.failed().is_some() { Status::Failed } else { Status::Ok };
            // Where that fails the store's closing says why.
            let ended = open.run.end(status);
            if ended.is_ok() && open.proxied.recorded() {
                self.behind.remember(&self.space, open.run.uid(), status);
            }
        }
        let _ = self.ingest.settle(now_ns, true);
    }
}
