//! Builds the graphs that large files lack.
//!
//! A graph of many vectors takes minutes, so nothing waits for it. It is built from one file without any
//! lock, and merges leave that file alone meanwhile. Then a file of the same vectors with the graph takes its
//! place. If a sweep, a rebuild or a full merge has removed the file by then, the graph is discarded.

use std::sync::Arc;

use crate::error::Result;
use crate::files::{FlushScope, PartitionChange};
use crate::graph;
use crate::index::VectorIndex;
use crate::kv::core::Core;
use crate::log::segments::{lock, read_lock};
use crate::merged::MergedVectors;
use crate::partition::{Partition, PartitionId, PartitionLevels};
use crate::search_error::VectorError;
use crate::search_error::VectorResult;
use crate::sync::atomic::Ordering;
use crate::vector_file::OpenVectorFile;
use crate::writer::GraphBytes;

/// A large file without a graph.
struct FileWithoutGraph {
    id: PartitionId,
    partition: Arc<Partition>,
    segment: Arc<OpenVectorFile>,
}

impl FileWithoutGraph {
    fn is_listed(&self) -> bool {
        self.partition.levels().segments.iter().any(|one| one.entry.id == self.segment.entry.id)
    }
}

impl VectorIndex {
    /// Builds one graph after another until no file lacks one, or until `stop` returns true. Calls `stop`
    /// after each vector.
    ///
    /// # Errors
    /// `Unavailable` if the disk refuses: nothing is lost. `Poisoned`.
    pub fn make_graphs(&self, core: &Arc<Core>, stop: &dyn Fn() -> bool) -> Result<()> {
        let _making = lock(&self.graph_lock);
        while cfg!(feature = "graphs")
            && !stop()
            && let Some(lacking) = self.next_file_without_graph()
        {
            self.pinned_file.store(lacking.segment.entry.id, Ordering::Release);
            let tried = self.make_graph(core, &lacking, stop);
            self.pinned_file.store(0, Ordering::Release);
            match tried {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(VectorError::Damaged(damage)) => self.discard_damaged(core, damage),
                Err(VectorError::Other(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes everything into one file for each partition, with its graph.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn write_all_with_graphs(&self, core: &Arc<Core>) -> Result<()> {
        self.catch_up(core)?;
        self.flush(core, FlushScope::All)?;
        self.make_graphs(core, &|| self.is_stopped())
    }

    /// Builds a graph. Returns whether there may be more to do: false if it was stopped.
    fn make_graph(
        &self,
        core: &Arc<Core>,
        lacking: &FileWithoutGraph,
        stop: &dyn Fn() -> bool,
    ) -> VectorResult<bool> {
        let levels =
            PartitionLevels { segments: vec![lacking.segment.clone()], ..PartitionLevels::default() };
        let vectors = MergedVectors::all(&levels, lacking.partition.dimensions);
        let stop = || stop() || !lacking.is_listed();
        match graph::build(&vectors, &stop)? {
            Some(graph) => self.install_graph(core, lacking, &vectors, &graph).map(|()| true),
            None => Ok(!lacking.is_listed()),
        }
    }

    fn install_graph(
        &self,
        core: &Arc<Core>,
        lacking: &FileWithoutGraph,
        vectors: &MergedVectors<'_>,
        graph: &GraphBytes,
    ) -> VectorResult<()> {
        let mut listed = lock(&self.files);
        // The file cannot be removed while this thread holds the list of files.
        if !lacking.is_listed() {
            return Ok(());
        }
        let old = lacking.segment.entry.id;
        let mut list = listed.clone();
        let made =
            self.write_file(core, &lacking.id, vectors, graph, (lacking.segment.entry.upto, &mut list))?;
        let made = Arc::new(made);
        let swap = |one: &Arc<OpenVectorFile>| if one.entry.id == old { made.clone() } else { one.clone() };
        let segments = lacking.partition.levels().segments.iter().map(swap).collect();
        list.files.iter_mut().filter(|entry| entry.id == old).for_each(|entry| *entry = made.entry.clone());
        let change = PartitionChange { partition: lacking.partition.clone(), segments };
        self.publish(core, &mut listed, list, vec![change])
    }

    fn next_file_without_graph(&self) -> Option<FileWithoutGraph> {
        let partitions = read_lock(&self.partitions).clone();
        for (id, partition) in partitions.iter() {
            if let Some(segment) = partition.levels().segments.iter().find(|segment| segment.lacks_graph()) {
                return Some(FileWithoutGraph {
                    id: id.clone(),
                    partition: partition.clone(),
                    segment: segment.clone(),
                });
            }
        }
        None
    }
}
