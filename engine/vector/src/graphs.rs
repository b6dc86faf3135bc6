//! Builds the graphs that large files lack.
//!
//! A graph of many vectors takes minutes, so nothing waits for it. It is built from one file without any
//! lock, and merges leave that file alone meanwhile. Then a file of the same vectors with the graph takes its
//! place. If a sweep, a rebuild or a full merge has removed the file by then, the graph is discarded.

use std::sync::Arc;

use crate::error::Result;
use crate::files::{Change, What};
use crate::floor::Floor;
use crate::graph;
use crate::kv::core::Core;
use crate::log::segments::{lock, read};
use crate::merged::Merged;
use crate::partition::{Levels, Partition, PartitionId};
use crate::segment::Segment;
use crate::stopped::{Stopped, Tried};
use crate::sync::atomic::Ordering;
use crate::writer::GraphBytes;

/// A large file without a graph.
struct Lacking {
    id: PartitionId,
    partition: Arc<Partition>,
    segment: Arc<Segment>,
}

impl Lacking {
    fn is_there(&self) -> bool {
        self.partition.levels().segments.iter().any(|one| one.entry.id == self.segment.entry.id)
    }
}

impl Floor {
    /// Builds one graph after another until no file lacks one, or until `stop` returns true. Calls `stop`
    /// after each vector.
    ///
    /// # Errors
    /// `Unavailable` if the disk refuses: nothing is lost. `Poisoned`.
    pub fn make_graphs(&self, core: &Arc<Core>, stop: &dyn Fn() -> bool) -> Result<()> {
        let _making = lock(&self.making);
        while cfg!(feature = "graphs")
            && !stop()
            && let Some(lacking) = self.lacking()
        {
            self.pinned.store(lacking.segment.entry.id, Ordering::Release);
            let tried = self.make_graph(core, &lacking, stop);
            self.pinned.store(0, Ordering::Release);
            match tried {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Stopped::Damaged(damage)) => self.lose(core, damage),
                Err(Stopped::Other(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes everything into one file for each partition, with its graph.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn settle(&self, core: &Arc<Core>) -> Result<()> {
        self.catch_up(core)?;
        self.flush(core, What::All)?;
        self.make_graphs(core, &|| self.is_stopped())
    }

    /// Builds a graph. Returns whether there may be more to do: false if it was stopped.
    fn make_graph(&self, core: &Arc<Core>, lacking: &Lacking, stop: &dyn Fn() -> bool) -> Tried<bool> {
        let levels = Levels { segments: vec![lacking.segment.clone()], tail: Vec::new() };
        let vectors = Merged::all(&levels, lacking.partition.dimensions);
        let stop = || stop() || !lacking.is_there();
        match graph::build(&vectors, &stop)? {
            Some(graph) => self.put_graph(core, lacking, &vectors, &graph).map(|()| true),
            None => Ok(!lacking.is_there()),
        }
    }

    fn put_graph(
        &self,
        core: &Arc<Core>,
        lacking: &Lacking,
        vectors: &Merged<'_>,
        graph: &GraphBytes,
    ) -> Tried<()> {
        let mut listed = lock(&self.files);
        // The file cannot be removed while this thread holds the list of files.
        if !lacking.is_there() {
            return Ok(());
        }
        let old = lacking.segment.entry.id;
        let mut list = listed.clone();
        let made =
            self.write_file(core, &lacking.id, vectors, graph, (lacking.segment.entry.upto, &mut list))?;
        let made = Arc::new(made);
        let swap = |one: &Arc<Segment>| if one.entry.id == old { made.clone() } else { one.clone() };
        let segments = lacking.partition.levels().segments.iter().map(swap).collect();
        list.files.iter_mut().filter(|entry| entry.id == old).for_each(|entry| *entry = made.entry.clone());
        let change = Change { partition: lacking.partition.clone(), segments };
        self.publish(core, &mut listed, list, vec![change])
    }

    fn lacking(&self) -> Option<Lacking> {
        let partitions = read(&self.partitions).clone();
        for (id, partition) in partitions.iter() {
            if let Some(segment) = partition.levels().segments.iter().find(|segment| segment.lacks_graph()) {
                return Some(Lacking {
                    id: id.clone(),
                    partition: partition.clone(),
                    segment: segment.clone(),
                });
            }
        }
        None
    }
}
