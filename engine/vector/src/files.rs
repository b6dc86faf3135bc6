//! Writes vectors into files, merges files, and rebuilds them if one is damaged.
//!
//! A file gets a new number and is synced, and its name is synced. Then one edit of the manifest lists all
//! current files, and the old ones are removed. Before that the log is synced up to the last vector, so that
//! a listed file never holds what a power cut removes from the log. Dead vectors are left out.
//!
//! Memory while a file is written: eight bytes for each vector. `graph_upkeep` builds its graph afterwards.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, Seqno};
use crate::index::{Partitions, VectorIndex};
use crate::io::OpenMode;
use crate::kv::core::Core;
use crate::kv::embeddings::SweptOwners;
use crate::kv::view::View;
use crate::log::manifest::{VectorEntry, VectorList};
use crate::log::open::{Damage, OpenLog};
use crate::log::paths::{parse_vector_file, vector_file_name};
use crate::log::segments::{lock, read_lock, write_lock};
use crate::log::ticket::WriteFailure;
use crate::merged::MergedVectors;
use crate::partition::{Partition, PartitionId, PartitionLevels};
use crate::search_error::VectorError;
use crate::search_error::VectorResult;
use crate::source::is_living;
use crate::sync::SCHEDULED;
use crate::sync::atomic::Ordering;
use crate::types::{OwnerId, RunUid};
use crate::vector_file::OpenVectorFile;
use crate::writer::{self, GraphBytes, VectorFileMeta};

/// Vectors in memory, over all partitions, that are worth a file.
pub const FLUSH_ROWS: usize = if SCHEDULED { 8 } else { 4096 };
/// Vectors in memory that are flushed when the store closes. Fewer are soon read again.
pub const CLOSE_ROWS: usize = 1024;
/// A file is merged into the one before it unless that one is at least this many times larger.
const FILE_RATIO: usize = 2;
/// A sweep rewrites a file once one in this many of its vectors is dead.
const DEAD_SHARE: usize = 4;

/// What a flush writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushScope<'a> {
    /// The vectors in memory, beside the existing files.
    Tail,
    /// The same, merged with files that are not much larger and with those that are half dead.
    Due,
    /// Everything, one file for each partition.
    All,
    /// The files with vectors of these dropped runs and forgotten keys, and those of which a quarter is dead. Writes
    /// nothing if there are none.
    Sweep(SweptOwners<'a>),
}

/// The files that take the place of a partition's earlier ones.
pub struct PartitionChange {
    pub partition: Arc<Partition>,
    pub segments: Vec<Arc<OpenVectorFile>>,
}

impl VectorIndex {
    /// Opens the vector index over the files that the manifest lists.
    pub fn open(core: &Core) -> Arc<Self> {
        let floor = Self::empty();
        let list = core.vectors.clone();
        match open_files(core, &list) {
            Ok(partitions) => {
                *write_lock(&floor.partitions) = Arc::new(partitions);
                floor.upto.store(list.upto.0, Ordering::Release);
            }
            Err(damage) => note_rebuilt(core, damage),
        }
        if core.is_writer() {
            remove_unlisted_files(core, &list);
        }
        *lock(&floor.files) = list;
        floor.note_missing_graphs();
        floor
    }

    /// Writes what `what` says, without dead vectors.
    ///
    /// # Errors
    /// `Unavailable` if the disk refuses: nothing is lost. `Poisoned`.
    pub fn flush(&self, core: &Arc<Core>, what: FlushScope<'_>) -> Result<()> {
        let mut listed = lock(&self.files);
        match self.write_files(core, &mut listed, what) {
            Ok(()) => Ok(()),
            Err(VectorError::Other(error)) => Err(error),
            Err(VectorError::Damaged(damage)) => {
                self.discard_all_files(core, damage);
                match self.write_files(core, &mut listed, what) {
                    Ok(()) => Ok(()),
                    Err(VectorError::Other(error)) => Err(error),
                    Err(VectorError::Damaged(damage)) => Err(damage.error()),
                }
            }
        }
    }

    fn write_files(
        &self,
        core: &Arc<Core>,
        listed: &mut VectorList,
        what: FlushScope<'_>,
    ) -> VectorResult<()> {
        let log = core.log()?;
        // Keeps versions that end meanwhile, as in a search.
        let _view = View::new(core);
        self.catch_up_within(core, self.memory_bytes())?;
        let (upto, partitions) = {
            let _turn = lock(&self.catch_up_lock);
            (self.upto(), read_lock(&self.partitions).clone())
        };
        let mut kept = Vec::with_capacity(partitions.len());
        for (id, partition) in partitions.iter() {
            let levels = partition.levels();
            let keep = self.files_to_keep(core, id.namespace, &levels, upto, what)?;
            kept.push((id, partition, levels, keep));
        }
        if matches!(what, FlushScope::Sweep(_))
            && kept.iter().all(|(.., levels, keep)| *keep == levels.segments.len())
        {
            return Ok(());
        }
        sync_log(core, log)?;
        core.io.create_dir_all(&core.paths.vectors()).map_err(Error::from)?;
        let mut list = VectorList { files: Vec::new(), upto, next: listed.next.max(1) };
        let mut changes = Vec::new();
        for (id, partition, levels, keep) in kept {
            let mut segments = levels.segments[..keep].to_vec();
            if keep < levels.segments.len() || levels.tail_rows() > 0 {
                let vectors = (core.as_ref(), id.namespace);
                let vectors = MergedVectors::living(vectors, &levels, keep, upto, partition.dimensions)?;
                if vectors.len() > 0 {
                    let none = GraphBytes::default();
                    segments.push(Arc::new(self.write_file(core, id, &vectors, &none, (upto, &mut list))?));
                }
                changes.push(PartitionChange { partition: partition.clone(), segments: segments.clone() });
            }
            list.files.extend(segments.iter().map(|segment| segment.entry.clone()));
        }
        if changes.is_empty() && *listed == list {
            return Ok(());
        }
        self.publish(core, listed, list, changes)
    }

    /// Lists written files, and removes those that they replace.
    pub fn publish(
        &self,
        core: &Arc<Core>,
        listed: &mut VectorList,
        list: VectorList,
        changes: Vec<PartitionChange>,
    ) -> VectorResult<()> {
        let log = core.log()?;
        core.io.sync_dir(&core.paths.vectors()).map_err(Error::from)?;
        // The writer's own sync may have failed meanwhile: then it is unknown what of the log is on disk.
        log.queue.check_poisoned()?;
        if let Err(failed) = log.manifest.edit(|state| state.vectors = list.clone()) {
            if failed.in_doubt {
                log.queue.poison(WriteFailure::from_error(&failed.error));
            }
            return Err(failed.error.into());
        }
        for PartitionChange { partition, segments } in changes {
            partition.replace(segments, list.upto);
        }
        self.recount_tail();
        self.note_missing_graphs();
        remove_unlisted_files(core, &list);
        *listed = list;
        Ok(())
    }

    /// How many of a partition's oldest files stay as they are.
    fn files_to_keep(
        &self,
        core: &Core,
        namespace: NamespaceId,
        levels: &PartitionLevels,
        upto: Seqno,
        what: FlushScope<'_>,
    ) -> VectorResult<usize> {
        let must_go = match what {
            FlushScope::All => return Ok(0),
            FlushScope::Tail => return Ok(levels.segments.len()),
            FlushScope::Due => {
                return Ok(files_to_keep_when_due(levels, self.pinned_file.load(Ordering::Acquire)));
            }
            FlushScope::Sweep(must_go) => must_go,
        };
        for (at, segment) in levels.segments.iter().enumerate() {
            if needs_sweep(core, namespace, segment, upto, &must_go)? {
                return Ok(at);
            }
        }
        Ok(levels.segments.len())
    }

    /// Notes whether a file lacks a graph.
    fn note_missing_graphs(&self) {
        let partitions = read_lock(&self.partitions).clone();
        let lacks =
            |partition: &Arc<Partition>| partition.levels().segments.iter().any(|one| one.lacks_graph());
        self.lacks_graph.store(partitions.values().any(lacks), Ordering::Relaxed);
    }

    /// The files in which a run has vectors.
    ///
    /// # Errors
    /// `Damaged`: the next search reads the vectors from the log again.
    pub fn files_with_run(&self, namespace: NamespaceId, run: RunUid) -> Result<Vec<String>> {
        let partitions = read_lock(&self.partitions).clone();
        let mut files = Vec::new();
        for (_, partition) in partitions.iter().filter(|(id, _)| id.namespace == namespace) {
            for segment in &partition.levels().segments {
                for at in 0..segment.len() {
                    let item = segment.item(at).map_err(|damage| damage.error())?;
                    if matches!(item.owner, OwnerId::Snapshot { run: of, .. } if of == run) {
                        files.push(vector_file_name(segment.entry.id));
                        break;
                    }
                }
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    pub fn write_file(
        &self,
        core: &Core,
        id: &PartitionId,
        vectors: &MergedVectors<'_>,
        graph: &GraphBytes,
        (upto, list): (Seqno, &mut VectorList),
    ) -> VectorResult<OpenVectorFile> {
        let number = list.next;
        list.next += 1;
        let path = core.paths.vector_file(number);
        let meta = VectorFileMeta { store: core.store, id: number, namespace: id.namespace, upto };
        let header = writer::write(&*core.io, &path, meta, vectors, graph).inspect_err(|_| {
            // The incomplete file takes space. If it cannot be removed now, the next opening removes it.
            let _ = core.io.remove(&path);
        })?;
        let entry = VectorEntry {
            id: number,
            bytes: header.file_bytes(),
            namespace: id.namespace,
            embedder: id.embedder.to_string(),
            dimensions: header.dimensions,
            count: u64::from(header.count),
            upto,
        };
        Ok(OpenVectorFile::open(&*core.io, &path, core.store, &entry, core.options.read_mode)?)
    }

    /// Discards all files because one of them is damaged. Their vectors are read from the log again.
    pub fn discard_damaged(&self, core: &Core, damage: Damage) {
        let _files = lock(&self.files);
        let path = &damage.file;
        let partitions = read_lock(&self.partitions).clone();
        // If several searches met the damage, the first of them has discarded the files.
        let still = partitions.values().any(|partition| {
            partition
                .levels()
                .segments
                .iter()
                .any(|segment| core.paths.vector_file(segment.entry.id) == *path)
        });
        if still {
            self.discard_all_files(core, damage);
        }
    }

    fn discard_all_files(&self, core: &Core, damage: Damage) {
        let _turn = lock(&self.catch_up_lock);
        // Running searches see by this number that they must start again.
        self.discards.fetch_add(1, Ordering::AcqRel);
        self.upto.store(0, Ordering::Release);
        read_lock(&self.partitions).values().for_each(|partition| partition.clear());
        self.recount_tail();
        self.discards.fetch_add(1, Ordering::AcqRel);
        note_rebuilt(core, damage);
    }
}

fn note_rebuilt(core: &Core, damage: Damage) {
    let Damage { file, offset, what } = damage;
    core.index.note_rebuilt(file, offset, format!("{what}; the vectors were read from the log again"));
}

fn open_files(core: &Core, list: &VectorList) -> std::result::Result<Partitions, Damage> {
    let dir = core.paths.vectors();
    if list.upto > core.index.visible() {
        return Err(Damage {
            file: dir,
            offset: 0,
            what: "the vector files cover records that the log does not have".into(),
        });
    }
    let mut found: std::collections::BTreeMap<PartitionId, (u32, Vec<Arc<OpenVectorFile>>)> =
        Default::default();
    for entry in &list.files {
        let path = core.paths.vector_file(entry.id);
        let segment = OpenVectorFile::open(&*core.io, &path, core.store, entry, core.options.read_mode)?;
        let id = PartitionId { namespace: entry.namespace, embedder: entry.embedder.as_str().into() };
        let (dimensions, segments) = found.entry(id).or_insert((entry.dimensions, Vec::new()));
        if *dimensions != entry.dimensions {
            return Err(Damage {
                file: path,
                offset: 0,
                what: "it has other dimensions than the one before".into(),
            });
        }
        segments.push(Arc::new(segment));
    }
    Ok(found
        .into_iter()
        .map(|(id, (dimensions, segments))| {
            let partition = Partition::new(dimensions as usize);
            partition.replace(segments, list.upto);
            (id, Arc::new(partition))
        })
        .collect())
}

/// How many of the oldest files stay as they are. The newest are merged with the tail until each file is
/// [`FILE_RATIO`] times larger than what follows. Files from the first half-dead one on are merged, too. The
/// pinned file and those before it always stay.
fn files_to_keep_when_due(levels: &PartitionLevels, pinned: u64) -> usize {
    let mut size = levels.tail_rows();
    let mut keep = levels.segments.len();
    if size > 0 {
        while keep > 0 && levels.segments[keep - 1].living_count() < size * FILE_RATIO {
            keep -= 1;
            size += levels.segments[keep].living_count();
        }
    }
    let dead = levels.segments.iter().position(|segment| segment.living_count() * 2 < segment.len());
    let pinned = levels.segments.iter().position(|segment| segment.entry.id == pinned);
    dead.map_or(keep, |dead| keep.min(dead)).max(pinned.map_or(0, |pinned| pinned + 1))
}

/// Whether a file must be rewritten without its dead vectors.
fn needs_sweep(
    core: &Core,
    namespace: NamespaceId,
    segment: &OpenVectorFile,
    upto: Seqno,
    must_go: &SweptOwners<'_>,
) -> VectorResult<bool> {
    let mut dead = 0;
    for at in 0..segment.len() {
        let item = segment.item(at)?;
        let goes = match &item.owner {
            OwnerId::Snapshot { run, .. } => must_go.uids.contains(&run.0),
            OwnerId::Key { space, key } => {
                must_go.keys.iter().any(|(of, gone)| of == space && **gone == **key)
            }
        };
        if goes {
            return Ok(true);
        }
        if segment.is_dead(at, upto) || !is_living(core, namespace, &item, upto)? {
            segment.note_dead(at, upto);
            dead += 1;
        }
    }
    Ok(dead > 0 && (must_go.all_dead || dead * DEAD_SHARE >= segment.len()))
}

/// Syncs the log up to what is visible. The segments before the last are synced already.
fn sync_log(core: &Core, log: &OpenLog) -> Result<()> {
    log.queue.check_poisoned()?;
    if let Some(last) = read_lock(&core.segments).all().last() {
        let file = core.io.open(&core.paths.segment(last.id), OpenMode::Read)?;
        if let Err(error) = file.sync() {
            let error = Error::from(error);
            log.queue.poison(WriteFailure::from_error(&error));
            return Err(error);
        }
    }
    log.queue.check_poisoned()
}

/// Removes vector files that are not listed. A later call removes those that cannot be removed now.
fn remove_unlisted_files(core: &Core, list: &VectorList) {
    let Ok(names) = core.io.list(&core.paths.vectors()) else { return };
    for name in names {
        if let Some(id) = parse_vector_file(&name)
            && list.files.iter().all(|entry| entry.id != id)
        {
            let _ = core.io.remove(&core.paths.vector_file(id));
        }
    }
}
