//! Writing vectors down into files, merging those, and making them again where one is damaged.
//!
//! A file is written under a new number, synced, and its name synced; then one edit of the manifest lists all there now
//! are; then the old ones go. Before that the log is synced up to the last vector, so that a listed file never holds what a
//! power cut takes out of the log. Dead vectors are left out on the way.
//!
//! In memory while one is written: eight bytes a vector. A graph is made afterwards, by `graphs`.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::floor::{Floor, Partitions};
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::io::Open;
use crate::item::OwnerId;
use crate::kv::core::Core;
use crate::kv::view::View;
use crate::log::manifest::{VectorEntry, VectorList};
use crate::log::open::{Damage, OpenLog};
use crate::log::paths::{parse_vector_file, vector_file_name};
use crate::log::segments::{lock, read, write};
use crate::log::ticket::Failure;
use crate::merged::Merged;
use crate::partition::{Levels, Partition, PartitionId};
use crate::segment::Segment;
use crate::source::lives;
use crate::stopped::{Stopped, Tried};
use crate::sync::SCHEDULED;
use crate::sync::atomic::Ordering;
use crate::writer::{self, GraphBytes, Meta};

/// Vectors in memory, of all partitions, that are worth a file.
pub const FLUSH_ROWS: usize = if SCHEDULED { 8 } else { 4096 };
/// Those that are written down when the store closes: fewer are soon read again.
pub const CLOSE_ROWS: usize = 1024;
/// A file is merged into the one before it unless that one is at least this many times larger.
const RATIO: usize = 2;
/// A sweep writes a file anew once one of so many of its vectors is dead.
const DEAD_SHARE: usize = 4;

/// What is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What<'a> {
    /// What is in memory, beside the files there are.
    Tail,
    /// The same, merged with files that are not much larger, and those that are half dead.
    Due,
    /// Everything, one file for each partition.
    All,
    /// All of the files again in which these dropped runs have vectors, or of which a quarter is dead; nothing where there
    /// are none.
    Without(&'a [RunUid]),
}

/// What takes a partition's place.
pub struct Change {
    pub partition: Arc<Partition>,
    pub segments: Vec<Arc<Segment>>,
}

impl Floor {
    /// A floor over the files that the manifest lists.
    pub fn open(core: &Core) -> Arc<Self> {
        let floor = Self::empty();
        let list = core.vectors.clone();
        match open_files(core, &list) {
            Ok(partitions) => {
                *write(&floor.partitions) = Arc::new(partitions);
                floor.upto.store(list.upto.0, Ordering::Release);
            }
            Err(damage) => note(core, damage),
        }
        if core.is_writer() {
            remove_others(core, &list);
        }
        *lock(&floor.files) = list;
        floor.look_for_graphs();
        floor
    }

    /// Writes down what is wanted, without what is dead.
    ///
    /// # Errors
    /// `Unavailable` where the disk refuses; nothing is lost then. `Poisoned`.
    pub fn flush(&self, core: &Arc<Core>, what: What<'_>) -> Result<()> {
        let mut listed = lock(&self.files);
        match self.write_down(core, &mut listed, what) {
            Ok(()) => Ok(()),
            Err(Stopped::Other(error)) => Err(error),
            Err(Stopped::Damaged(damage)) => {
                self.lose_all(core, damage);
                match self.write_down(core, &mut listed, what) {
                    Ok(()) => Ok(()),
                    Err(Stopped::Other(error)) => Err(error),
                    Err(Stopped::Damaged(damage)) => Err(damage.error()),
                }
            }
        }
    }

    fn write_down(&self, core: &Arc<Core>, listed: &mut VectorList, what: What<'_>) -> Tried<()> {
        let log = core.log()?;
        // Keeps what ends meanwhile, as for a search.
        let _view = View::new(core);
        self.catch_up_some(core, self.memory_bytes())?;
        let (upto, partitions) = {
            let _turn = lock(&self.catching);
            (self.upto(), read(&self.partitions).clone())
        };
        let mut kept = Vec::with_capacity(partitions.len());
        for (id, partition) in partitions.iter() {
            let levels = partition.levels();
            let keep = self.kept_of(core, id.namespace, &levels, upto, what)?;
            kept.push((id, partition, levels, keep));
        }
        if matches!(what, What::Without(_))
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
                let vectors = Merged::living(vectors, &levels, keep, upto, partition.dimensions)?;
                if vectors.len() > 0 {
                    let none = GraphBytes::default();
                    segments.push(Arc::new(self.write_file(core, id, &vectors, &none, (upto, &mut list))?));
                }
                changes.push(Change { partition: partition.clone(), segments: segments.clone() });
            }
            list.files.extend(segments.iter().map(|segment| segment.entry.clone()));
        }
        if changes.is_empty() && *listed == list {
            return Ok(());
        }
        self.publish(core, listed, list, changes)
    }

    /// Lists files that are written, and gives up those whose place they take.
    pub fn publish(
        &self,
        core: &Arc<Core>,
        listed: &mut VectorList,
        list: VectorList,
        changes: Vec<Change>,
    ) -> Tried<()> {
        let log = core.log()?;
        core.io.sync_dir(&core.paths.vectors()).map_err(Error::from)?;
        // The writer's own sync may have failed meanwhile: then nobody knows what of the log is there.
        log.queue.check()?;
        if let Err(failed) = log.manifest.edit(|state| state.vectors = list.clone()) {
            if failed.in_doubt {
                log.queue.poison(Failure::of(&failed.error));
            }
            return Err(failed.error.into());
        }
        for Change { partition, segments } in changes {
            partition.replace(segments, list.upto);
        }
        self.count_tail();
        self.look_for_graphs();
        remove_others(core, &list);
        *listed = list;
        Ok(())
    }

    /// How many of a partition's oldest files stay as they are.
    fn kept_of(
        &self,
        core: &Core,
        namespace: NamespaceId,
        levels: &Levels,
        upto: Seqno,
        what: What<'_>,
    ) -> Tried<usize> {
        let must_go = match what {
            What::All => return Ok(0),
            What::Tail => return Ok(levels.segments.len()),
            What::Due => return Ok(due_of(levels, self.pinned.load(Ordering::Acquire))),
            What::Without(must_go) => must_go,
        };
        for (at, segment) in levels.segments.iter().enumerate() {
            if is_to_sweep(core, namespace, segment, upto, must_go)? {
                return Ok(at);
            }
        }
        Ok(levels.segments.len())
    }

    /// Notes whether some file lacks a graph.
    fn look_for_graphs(&self) {
        let partitions = read(&self.partitions).clone();
        let lacks =
            |partition: &Arc<Partition>| partition.levels().segments.iter().any(|one| one.lacks_graph());
        self.lacks_graph.store(partitions.values().any(lacks), Ordering::Relaxed);
    }

    /// The files in which a run has vectors.
    ///
    /// # Errors
    /// `Damaged`: then its vectors are read from the log again when they are next looked for.
    pub fn files_of(&self, namespace: NamespaceId, run: RunUid) -> Result<Vec<String>> {
        let partitions = read(&self.partitions).clone();
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
        vectors: &Merged<'_>,
        graph: &GraphBytes,
        (upto, list): (Seqno, &mut VectorList),
    ) -> Tried<Segment> {
        let number = list.next;
        list.next += 1;
        let path = core.paths.vector_file(number);
        let meta = Meta { store: core.store, id: number, namespace: id.namespace, upto };
        let bytes = writer::write(&*core.io, &path, meta, vectors, graph).inspect_err(|_| {
            // What is left of it takes room. Where it cannot go now, the next opening takes it.
            let _ = core.io.remove(&path);
        })?;
        let entry = VectorEntry {
            id: number,
            bytes,
            namespace: id.namespace,
            embedder: id.embedder.to_string(),
            dimensions: vectors.dimensions as u32,
            count: vectors.len() as u64,
            upto,
        };
        Ok(Segment::open(&*core.io, &path, core.store, &entry, core.options.read_mode)?)
    }

    /// Gives up all files, since one of them is not what was written: their vectors are read from the log again.
    pub fn lose(&self, core: &Core, damage: Damage) {
        let _files = lock(&self.files);
        let path = &damage.file;
        let partitions = read(&self.partitions).clone();
        // Of several searches that met it, the first has done it.
        let still = partitions.values().any(|partition| {
            partition
                .levels()
                .segments
                .iter()
                .any(|segment| core.paths.vector_file(segment.entry.id) == *path)
        });
        if still {
            self.lose_all(core, damage);
        }
    }

    fn lose_all(&self, core: &Core, damage: Damage) {
        let _turn = lock(&self.catching);
        // Searches that are on their way find out by this number that they have to begin again.
        self.losses.fetch_add(1, Ordering::AcqRel);
        self.upto.store(0, Ordering::Release);
        read(&self.partitions).values().for_each(|partition| partition.clear());
        self.count_tail();
        self.losses.fetch_add(1, Ordering::AcqRel);
        note(core, damage);
    }
}

fn note(core: &Core, damage: Damage) {
    let Damage { file, offset, what } = damage;
    core.index.note_rebuilt(file, offset, format!("{what}; the vectors were read from the log again"));
}

fn open_files(core: &Core, list: &VectorList) -> std::result::Result<Partitions, Damage> {
    let dir = core.paths.vectors();
    if list.upto > core.index.visible() {
        return Err(Damage {
            file: dir,
            offset: 0,
            what: "the vectors are of a longer log than this".into(),
        });
    }
    let mut found: std::collections::BTreeMap<PartitionId, (u32, Vec<Arc<Segment>>)> = Default::default();
    for entry in &list.files {
        let path = core.paths.vector_file(entry.id);
        let segment = Segment::open(&*core.io, &path, core.store, entry, core.options.read_mode)?;
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

/// How many of the oldest files stay as they are: as many of the newest are merged with the tail as keeps each a good deal
/// larger than the next, and from the first one on of which half is dead; but none up to the one that is pinned.
fn due_of(levels: &Levels, pinned: u64) -> usize {
    let mut size = levels.tail_rows();
    let mut keep = levels.segments.len();
    if size > 0 {
        while keep > 0 && levels.segments[keep - 1].living() < size * RATIO {
            keep -= 1;
            size += levels.segments[keep].living();
        }
    }
    let dead = levels.segments.iter().position(|segment| segment.living() * 2 < segment.len());
    let pinned = levels.segments.iter().position(|segment| segment.entry.id == pinned);
    dead.map_or(keep, |dead| keep.min(dead)).max(pinned.map_or(0, |pinned| pinned + 1))
}

/// Whether a file is to be written without what is dead in it.
fn is_to_sweep(
    core: &Core,
    namespace: NamespaceId,
    segment: &Segment,
    upto: Seqno,
    must_go: &[RunUid],
) -> Tried<bool> {
    let mut dead = 0;
    for at in 0..segment.len() {
        let item = segment.item(at)?;
        if matches!(&item.owner, OwnerId::Snapshot { run, .. } if must_go.contains(run)) {
            return Ok(true);
        }
        if segment.is_dead(at, upto) || !lives(core, namespace, &item, upto)? {
            segment.note_dead(at, upto);
            dead += 1;
        }
    }
    Ok(dead > 0 && dead * DEAD_SHARE >= segment.len())
}

/// Makes the log durable up to what is visible. The segments before the last are.
fn sync_log(core: &Core, log: &OpenLog) -> Result<()> {
    log.queue.check()?;
    if let Some(last) = read(&core.segments).all().last() {
        let file = core.io.open(&core.paths.segment(last.id), Open::Read)?;
        if let Err(error) = file.sync() {
            let error = Error::from(error);
            log.queue.poison(Failure::of(&error));
            return Err(error);
        }
    }
    log.queue.check()
}

/// Removes vector files that are not listed. One that cannot go now goes another time.
fn remove_others(core: &Core, list: &VectorList) {
    let Ok(names) = core.io.list(&core.paths.vectors()) else { return };
    for name in names {
        if let Some(id) = parse_vector_file(&name)
            && list.files.iter().all(|entry| entry.id != id)
        {
            let _ = core.io.remove(&core.paths.vector_file(id));
        }
    }
}
