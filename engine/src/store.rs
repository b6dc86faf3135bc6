//! The store as callers see it: opening, namespaces, statistics.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Link, NamespaceId, RunUid, Seqno, StoreId};
use crate::log::activity::Activity;
use crate::log::open::Damage;
use crate::log::paths::StorePaths;
use crate::log::queue::Durability;
use crate::log::record::{KvHead, RecordKind, SpaceHead};
use crate::log::ticket::WriteFailure;
use crate::trace::census::{state_unused_runs, unrecorded_runs, upgrade};
use crate::trace::model::{RunInfo, RunSpec, Status};
use crate::trace::reader::RunReader;
use crate::trace::recorder::{RecorderRegistry, Run, abandon};
use crate::trace::run_facts::{RunFacts, RunFate, for_each_run};
use crate::trace::run_keys;
use crate::trace::schema::RunSchema;
use crate::upkeep::compact::{CLOSING_BYTES_MIN, TailThread, compress_tail};
use crate::vector::index::VectorIndex;
use crate::vector::nearest::nearest;
use crate::vector::{Search, SearchHit};
use annals_store::kv::content::{Content, StoredBlob};
use annals_store::kv::core::{Core, OpeningReport, Options};
use annals_store::kv::index::IndexHit;
use annals_store::kv::keys;
use annals_store::kv::keyspace::{History, Keyspace, KvBatch};
use annals_store::kv::view::View;
use annals_store::kv::write::{BatchWriter, store_stream};

/// An open store. Cheap to clone; dropping the last clone closes it.
///
/// One process writes a store at a time. Any number of processes read it, also beside the writer.
#[derive(Debug, Clone)]
pub struct Store(Arc<StoreInner>);

#[derive(Debug)]
struct StoreInner {
    core: Arc<Core>,
    recording: Arc<RecorderRegistry>,
    vectors: Arc<VectorIndex>,
    tail: TailThread,
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // Best effort: a caller that needs the result calls `Store::close`.
        let _ = self.close();
    }
}

impl StoreInner {
    /// Runs that are still open become abandoned: nothing can continue them.
    fn close(&self) -> Result<()> {
        if !self.core.is_writer() || self.core.is_closed() {
            return Ok(());
        }
        if let Some(finder) = self.core.embedding_index.get() {
            finder.stop(&self.core);
        }
        self.tail.stop(&self.core);
        // Whatever prevents it, the bodies are in the log: a later compaction can compress them.
        let waits = || Err(Error::conflict("a batch is open"));
        let _ = compress_tail(&self.core, CLOSING_BYTES_MIN, &waits);
        let abandoned = self.core.log().and_then(|log| {
            // What a run holds is final only once nothing adds to it and everything that was queued can be
            // read.
            log.queue.stop_accepting();
            log.queue.check_poisoned()?;
            log.queue.barrier(self.core.index.visible())?;
            let _reserve = log.queue.use_reserve();
            // After a clean close, the next opening would not look for runs to abandon.
            write_deferred(&self.core)
                .and_then(|()| abandon(&self.core, &self.recording.open_runs()))
                .and_then(|()| state_unused_runs(&self.core, &self.recording.unused_numbers()))
                .inspect_err(|error| {
                    log.queue.poison(WriteFailure::from_error(error));
                })
        });
        let closed = self.core.close();
        abandoned.and(closed)
    }
}

/// Maximum number of deferred values in one commit.
const DEFERRED_MAX: usize = 4096;

/// Writes what no batch has taken along, except values about keys that were deleted meanwhile: a reader that saw such a key before
/// may have set its value afterwards.
fn write_deferred(core: &Arc<Core>) -> Result<()> {
    let values: Vec<_> = core.deferred.take_all().into_iter().collect();
    for some in values.chunk_by(|((a, ..), _), ((b, ..), _)| a == b).flat_map(|one| one.chunks(DEFERRED_MAX))
    {
        let Some(((namespace, ..), _)) = some.first() else { continue };
        let mut writer = BatchWriter::for_close(core, *namespace)?;
        for ((_, keyspace, key), value) in some {
            let subject = core.index.versions(&keys::user(value.subject, key), Seqno(u64::MAX))?;
            if subject.first().is_none_or(|(_, newest)| newest.kind == keys::ENDED) {
                continue;
            }
            let (mut head, mut tail) = (Vec::new(), Vec::new());
            KvHead::put_key(*keyspace, core.io.now_ns(), key, &mut head);
            writer.put_value(&Content::from(value.bytes.clone()), &mut head, &mut tail)?;
            writer.add_record(RecordKind::Put, &head, &tail)?;
        }
        if let Some((_, ticket)) = writer.submit_awaited(Durability::Process)? {
            ticket.wait()?;
        }
    }
    Ok(())
}

/// Bytes of a store by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BytesByKind {
    /// New bytes of bodies, most of them compressed.
    pub pieces: u64,
    /// Blob ids, lengths, and where the bytes are.
    pub recipes: u64,
    /// Frame records without their recipes, links and salts.
    pub frame_records: u64,
    /// Run, snapshot and namespace records, and tombstones.
    pub run_records: u64,
    /// Key-value records.
    pub kv_records: u64,
    /// Batch headers, links, salts.
    pub chains_and_ledger: u64,
    /// Index tables.
    pub tables: u64,
    /// Vector files.
    pub vectors: u64,
    /// Headers and footers of log files, and room that is written ahead.
    pub log_files: u64,
    /// Which files there are, how far the log is synced, and the names of namespaces: the files of the store's own
    /// directory.
    pub manifest: u64,
    /// Bytes that belong to nothing above, such as files that a crash left and that the next opening for writing
    /// removes.
    pub other: u64,
}

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Living runs.
    pub runs: u64,
    /// Frames of living runs. Frames that forks share are counted once.
    pub frames: u64,
    /// Bytes of their bodies and metadata, as callers gave them.
    pub raw_bytes: u64,
    /// Dropped runs, including those that sampling left out.
    pub dropped_runs: u64,
    /// Own frames of the dropped runs, including those that forks shared.
    pub dropped_frames: u64,
    /// Dropped runs that sampling left out.
    pub sampled_out_runs: u64,
    /// Bytes of every file of the store.
    pub disk_bytes: u64,
    /// The same bytes by kind.
    pub bytes: BytesByKind,
    /// Number of log files.
    pub segments: u64,
    /// Number of batches in the log: commits.
    pub batches: u64,
    /// Seqno of the last record.
    pub seqno: Seqno,
    /// Number of leaves of the ledger.
    pub ledger_leaves: u64,
    /// The ledger's root.
    pub ledger_root: Option<Link>,
}

impl Stats {
    fn add_run(&mut self, core: &Arc<Core>, namespace: NamespaceId, facts: &RunFacts) -> Result<()> {
        match facts.fate {
            RunFate::Living { status, .. } => {
                let (mut frames, mut raw_bytes) = (facts.own_frames, facts.raw_bytes);
                if Status::from_code(status)? == Status::Open {
                    let reader = RunReader::open(core, namespace, facts.uid)?;
                    let info = reader.info();
                    let shared = info.parent.as_ref().map_or(0, |parent| parent.shared);
                    (frames, raw_bytes) = (info.frames.saturating_sub(shared), info.raw_bytes);
                }
                self.runs += 1;
                self.frames += u64::from(frames);
                self.raw_bytes = self.raw_bytes.saturating_add(raw_bytes);
            }
            RunFate::Dropped { by_sampling } => {
                self.dropped_runs += 1;
                self.dropped_frames += u64::from(facts.own_frames);
                self.sampled_out_runs += u64::from(by_sampling);
            }
            RunFate::Replaced => {}
        }
        Ok(())
    }
}

impl Store {
    /// Opens a store for writing; creates one in an empty or missing directory.
    ///
    /// After a crash it recovers by itself, to a prefix of whole batches that holds everything that was
    /// acknowledged. Runs that were open become abandoned.
    ///
    /// # Errors
    /// `Locked` with the pid of the process that writes it; `Invalid` if the directory holds something else;
    /// `Unsupported` if a newer annals wrote it; `Damaged`; `Unavailable`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Like [`Store::open`], with options.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let core = Core::open(path.as_ref(), options, true, RunSchema::shared())?;
        let reserve = core.log()?.queue.use_reserve();
        if core.recovered {
            abandon_open_runs(&core)?;
        }
        if core.opening.upgraded_from.is_some() {
            upgrade(&core)?;
        } else if core.recovered {
            state_unused_runs(&core, &unrecorded_runs(&core)?)?;
        }
        drop(reserve);
        Ok(Self::from_core(core))
    }

    /// Creates a store that no one can open before [`publish_draft`](crate::log::manifest::publish_draft).
    pub(crate) fn create_draft(path: &Path, options: Options) -> Result<Self> {
        let core = Core::open_at(StorePaths::draft(path), options, true, RunSchema::shared())?;
        Ok(Self::from_core(core))
    }

    pub(crate) fn from_core(core: Arc<Core>) -> Self {
        let recording = Arc::new(RecorderRegistry::new(core.options.previous_bytes_max));
        let vectors = VectorIndex::open(&core);
        // No other index was set: a core belongs to one store.
        let _ = core.embedding_index.set(vectors.clone());
        let tail = TailThread::start(&core);
        Self(Arc::new(StoreInner { core, recording, vectors, tail }))
    }

    /// Opens a store for reading, with or without a writer beside it. Sees what was in the log when it was
    /// opened or at the last [`Store::refresh`].
    ///
    /// # Errors
    /// `NotFound` if there is no store; `Damaged`; `Unavailable`.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_read_only_with(path, Options::default())
    }

    /// Like [`Store::open_read_only`], with options.
    ///
    /// # Errors
    /// As [`Store::open_read_only`].
    pub fn open_read_only_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let core = Core::open(path.as_ref(), options, false, RunSchema::shared())?;
        Ok(Self::from_core(core))
    }

    /// Reads what was added to the log since it was last read. Does nothing in the writing process.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn refresh(&self) -> Result<()> {
        self.0.core.refresh()
    }

    /// Writes everything that is queued, abandons runs that are still open, and closes. Every other handle on
    /// this store, run or keyspace then fails.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// Opens a namespace: a tenant, with which others share nothing and are never compared. A writer creates
    /// a missing one.
    ///
    /// # Errors
    /// `NotFound` if it is missing in a store open for reading; `Invalid` for a name that is empty, over 512
    /// bytes or has control characters.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        Ok(Namespace { store: self.clone(), id: self.0.core.namespace(name)? })
    }

    /// What the opening did beside opening, for people: an upgrade, a cut of the log's end.
    #[must_use]
    pub fn opening(&self) -> &OpeningReport {
        &self.0.core.opening
    }

    /// Checks that this store accepts writes.
    ///
    /// # Errors
    /// `Poisoned` with the first cause after a failure of the writer; `Invalid` in a store open for reading.
    pub fn check_writer(&self) -> Result<()> {
        self.0.core.log()?.queue.check_poisoned()
    }

    /// Lets every commit use the reserve of disk space until the result is dropped: for work that makes room, and for the
    /// notes about it. Otherwise a full disk refuses what follows a drop.
    ///
    /// # Errors
    /// `Invalid` in a store open for reading.
    pub fn use_reserve(&self) -> Result<impl Sized + '_> {
        Ok(self.0.core.log()?.queue.use_reserve())
    }

    /// Whether a process holds the store open for writing. While this looks, an opening for writing may be refused as
    /// `Locked` for a moment.
    ///
    /// # Errors
    /// `Unavailable`; `Damaged` if LOCK is not a file.
    pub fn is_being_written(&self) -> Result<bool> {
        let core = &self.0.core;
        Ok(core.is_writer() || annals_store::log::writer_lock::is_being_written(&*core.io, &core.paths)?)
    }

    /// What the writer has done since opening, and what waits for it. All zero in a store open for reading.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let Ok(writer) = self.0.core.writer() else { return Activity::default() };
        let mut activity = writer.log.queue.activity();
        activity.raw_tail_bytes = writer.raw_tail.bytes();
        activity.raw_tail_failures = writer.raw_tail.failures();
        activity
    }

    /// The names of all namespaces.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn namespaces(&self) -> Result<Vec<String>> {
        let spaces = self.0.core.list_spaces()?;
        Ok(spaces
            .into_iter()
            .filter_map(|space| match space {
                SpaceHead::Namespace { name, .. } => Some(name),
                SpaceHead::Keyspace { .. } => None,
            })
            .collect())
    }

    /// The store's random identity.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.0.core.store
    }

    /// The last record that readers see.
    #[must_use]
    pub fn seqno(&self) -> Seqno {
        self.0.core.index.visible()
    }

    /// Counts, and bytes by kind. Reads open runs with their frames, what of the log came since the last call
    /// or the last table, and one or two keys of the index for each run.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn stats(&self) -> Result<Stats> {
        let core = &self.0.core;
        let (state, held) = core.log_state(core.is_writer().then(|| core.index.visible()))?;
        let files = FileBytes::of(core)?;
        let mut stats = Stats {
            disk_bytes: files.root + files.segments + files.tables + files.vectors,
            segments: crate::log::segments::read_lock(&core.segments).all().len() as u64,
            batches: state.totals.batches,
            seqno: state.last_seqno(),
            ledger_leaves: state.ledger.leaves,
            ledger_root: Some(Link(state.ledger.root())),
            ..Stats::default()
        };
        for space in core.list_spaces()? {
            if let SpaceHead::Namespace { id, .. } = space {
                for_each_run(core, id, &mut |facts| stats.add_run(core, id, &facts))?;
            }
        }
        let totals = &held;
        let log = totals.piece_bytes
            + totals.recipe_bytes
            + totals.frame_bytes
            + totals.run_bytes
            + totals.kv_bytes
            + totals.chain_bytes;
        let tables = core.index.table_bytes();
        stats.bytes = BytesByKind {
            pieces: totals.piece_bytes,
            recipes: totals.recipe_bytes,
            frame_records: totals.frame_bytes,
            run_records: totals.run_bytes,
            kv_records: totals.kv_bytes,
            chains_and_ledger: totals.chain_bytes,
            tables,
            vectors: files.vectors,
            log_files: files.listed_segments.saturating_sub(log),
            manifest: files.root,
            other: files.segments.saturating_sub(files.listed_segments) + files.tables.saturating_sub(tables),
        };
        Ok(stats)
    }

    /// Parts of the index that were missing or damaged, and were rebuilt from the log since this store was
    /// opened. No data is lost with a table. But check a disk that changes what it stores.
    #[must_use]
    pub fn rebuilt(&self) -> Vec<Damage> {
        self.0.core.index.rebuilt()
    }

    /// Empties the caches of decoded groups and frame records, so that the next reads come from the files.
    /// For measuring.
    pub fn drop_caches(&self) {
        self.0.core.groups.clear();
        RunSchema::frames(&self.0.core).clear();
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Writes all committed vectors into files, one for each embedder of a namespace, builds their graphs,
    /// and waits until that is done. Without this call, a thread writes vectors as they come, and merges
    /// files that are not much larger than what comes. Call it after loading many vectors, so that the
    /// following searches are as fast as possible.
    ///
    /// # Errors
    /// `Invalid` in a store open for reading; `Unavailable`, `Poisoned`.
    pub fn settle_vectors(&self) -> Result<()> {
        self.0.vectors.write_all_with_graphs(&self.0.core)
    }

    pub(crate) fn vectors(&self) -> &Arc<VectorIndex> {
        &self.0.vectors
    }

    pub(crate) fn recording(&self) -> &Arc<RecorderRegistry> {
        &self.0.recording
    }
}

/// Bytes of every file of a store, by directory.
struct FileBytes {
    root: u64,
    segments: u64,
    /// Those of `segments` that belong to the log.
    listed_segments: u64,
    tables: u64,
    vectors: u64,
}

impl FileBytes {
    fn of(core: &Core) -> Result<Self> {
        let listed: HashSet<PathBuf> = (crate::log::segments::read_lock(&core.segments).all().iter())
            .map(|segment| core.paths.segment(segment.id))
            .collect();
        let sum = |dir: PathBuf, counts: &dyn Fn(&PathBuf) -> bool| -> Result<u64> {
            if core.io.stat(&dir)?.is_none() {
                return Ok(0);
            }
            let mut total = 0;
            for path in core.io.list(&dir)?.into_iter().map(|name| dir.join(name)).filter(counts) {
                match core.io.stat(&path)? {
                    Some(stat) if !stat.is_dir => total += stat.len,
                    _ => {}
                }
            }
            Ok(total)
        };
        let all = |_: &PathBuf| true;
        Ok(Self {
            root: sum(core.paths.root().to_path_buf(), &all)?,
            segments: sum(core.paths.segments(), &all)?,
            listed_segments: sum(core.paths.segments(), &|path| listed.contains(path))?,
            tables: sum(core.paths.tables(), &all)?,
            vectors: sum(core.paths.vectors(), &all)?,
        })
    }
}

/// Marks every run that the log has as open as abandoned: after a crash, no recorder of this process knows them.
fn abandon_open_runs(core: &Arc<Core>) -> Result<()> {
    let hits = core.index.scan_prefix(&run_keys::open_runs(), Seqno(u64::MAX))?;
    let open: Vec<_> = hits.iter().filter_map(|hit| run_keys::namespace_and_uid(&hit.key)).collect();
    abandon(core, &open)
}

/// A tenant's part of a store.
#[derive(Debug, Clone)]
pub struct Namespace {
    pub(crate) store: Store,
    pub(crate) id: NamespaceId,
}

impl Namespace {
    /// The store of this namespace.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Opens a keyspace. A writer creates a missing one with this history policy.
    ///
    /// # Errors
    /// `Conflict` if it has another policy; `NotFound` if it is missing in a store open for reading;
    /// `Invalid` for its name.
    pub fn keyspace(&self, name: &str, history: History) -> Result<Keyspace> {
        self.core().keyspace(self.id, name, history)
    }

    /// The keyspace of this name, if it exists.
    ///
    /// # Errors
    /// `Invalid` for its name; `Damaged`, `Unavailable`.
    pub fn find_keyspace(&self, wanted: &str) -> Result<Option<Keyspace>> {
        self.core().find_checked_keyspace(self.id, wanted)
    }

    /// Begins a batch of changes to several keys that happen together.
    pub fn batch(&self) -> KvBatch {
        KvBatch::new(self.core(), self.id)
    }

    /// Finds the embeddings nearest to a vector, of those that `embedder` made of this namespace's snapshots
    /// and keys. Sees what was committed before this call and still belongs to its owner. The nearest come
    /// first, equally near ones by [`Owner`](crate::vectors::Owner). Hits below `wanted.min_score` are left out, so
    /// the list may be empty.
    ///
    /// ```
    /// # use annals::{Store, kv::History, vectors::{Owner, Search}};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(dir.path().join("store"))?;
    /// let lending = store.namespace("lending")?;
    /// let notes = lending.keyspace("notes", History::Latest)?;
    /// let mut batch = lending.batch();
    /// batch.put_embedded(&notes, b"42", "rejected: credit below floor", &[("words-v1", &[0.6, 0.8])]);
    /// batch.put_embedded(&notes, b"43", "approved", &[("words-v1", &[0.8, -0.6])]);
    /// batch.commit()?;
    /// let near = lending.nearest("words-v1", &[0.5, 0.9], &Search { min_score: 0.7, ..Search::default() })?;
    /// assert_eq!(near[0].owner, Owner::Key { keyspace: "notes".into(), key: b"42".to_vec() });
    /// assert_eq!(near.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, naming the embedders there are, if this one has no vectors; `Invalid` for a vector of
    /// other dimensions, with NaN or infinity, or without a direction; `Damaged`, `Unavailable`.
    pub fn nearest(&self, embedder: &str, query: &[f32], wanted: &Search<'_>) -> Result<Vec<SearchHit>> {
        nearest(&self.store.0.vectors, self.core(), self.id, embedder, query, wanted)
    }

    /// The embedders that have made vectors of this namespace's snapshots and keys, sorted.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn embedders(&self) -> Result<Vec<String>> {
        self.store.0.vectors.committed_embedders(self.core(), self.id)
    }

    /// A consistent read of the keyspaces as they are now.
    #[must_use]
    pub fn view(&self) -> View {
        View::new(self.core())
    }

    /// Begins a run. When this returns, the run is in the log, open.
    ///
    /// # Errors
    /// `Conflict` if a run of this name lives and must not be replaced; `Invalid` for its name;
    /// `Unavailable`, `Poisoned`.
    pub fn begin_run(&self, spec: RunSpec) -> Result<Run> {
        let run = self.prepare_run(spec)?;
        run.batch()?.commit()?;
        Ok(run)
    }

    /// Prepares a run. Nothing is in the log until its first batch, so that a whole run can be recorded in
    /// one batch.
    ///
    /// # Errors
    /// As [`Namespace::begin_run`].
    pub fn prepare_run(&self, spec: RunSpec) -> Result<Run> {
        if spec.replace {
            self.check_replaceable(&spec.name)?;
        }
        Run::prepare(self.core(), &self.store.0.recording, self.id, spec, None)
    }

    /// Begins a run that shares another run's frames up to `at`. With `edit` it shares only those before
    /// `at`, and records `at` anew. Costs one record, however long the run is. The other run is not changed. Tags
    /// which say that shared frames are redacted or ingested are the fork's, too.
    ///
    /// # Errors
    /// `NotFound` for the run or the frame; `Conflict` if a shared frame is not finished but still may be;
    /// otherwise as [`Namespace::begin_run`].
    pub fn fork(&self, run: &str, at: u32, edit: bool, spec: RunSpec) -> Result<Run> {
        let fork = self.prepare_fork(run, at, edit, spec)?;
        fork.batch()?.commit()?;
        Ok(fork)
    }

    /// Prepares a fork. Nothing is in the log until its first batch.
    ///
    /// # Errors
    /// As [`Namespace::fork`].
    pub fn prepare_fork(&self, run: &str, at: u32, edit: bool, mut spec: RunSpec) -> Result<Run> {
        let reader = self.run(run)?;
        if at == 0 || at > reader.info().frames {
            return Err(Error::not_found(format!(
                "run {run:?} has no frame {at}: it has {}",
                reader.info().frames
            )));
        }
        if spec.replace && spec.name == run {
            return Err(Error::invalid("a fork cannot replace the run that it is forked from"));
        }
        if spec.replace {
            self.check_replaceable(&spec.name)?;
        }
        let shared = if edit { at - 1 } else { at };
        reader.check_finished(shared)?;
        if shared > 0 {
            spec.inherit_marks(&reader.info().tags);
        }
        Run::prepare(self.core(), &self.store.0.recording, self.id, spec, Some((&reader, at, shared)))
    }

    /// The living run of this name.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, `Unavailable`.
    pub fn run(&self, name: &str) -> Result<RunReader> {
        RunReader::find(self.core(), self.id, name)
    }

    /// All living runs, oldest first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`; each item may fail, too.
    pub fn runs(&self) -> Result<impl Iterator<Item = Result<RunInfo>> + use<>> {
        self.runs_after(None)
    }

    /// Living runs that began after this one, which may be gone by now.
    ///
    /// # Errors
    /// As [`Namespace::runs`].
    pub fn runs_after(&self, after: Option<RunUid>) -> Result<impl Iterator<Item = Result<RunInfo>> + use<>> {
        let hits: Vec<IndexHit> = self.core().index.scan_prefix(&run_keys::runs(self.id), Seqno(u64::MAX))?;
        let (core, namespace) = (self.core().clone(), self.id);
        Ok(hits.into_iter().filter_map(move |hit| {
            let uid: RunUid =
                run_keys::run_uid(&hit.key).filter(|uid| after.is_none_or(|after| *uid > after))?;
            Some(RunReader::open(&core, namespace, uid).map(|reader| reader.info().clone()))
        }))
    }

    /// The living run that began last.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn last_run(&self) -> Result<RunReader> {
        let (from, to) = (run_keys::runs(self.id), run_keys::run(self.id, RunUid(u64::MAX)));
        let hit = self.core().index.last_key(&from, &to)?;
        match hit.and_then(|hit| run_keys::run_uid(&hit.key)) {
            Some(uid) => RunReader::open(self.core(), self.id, uid),
            None => Err(Error::new(ErrorKind::NotFound, "there is no run yet")),
        }
    }

    /// Streams a body into the log. Afterwards a frame or value of this namespace can name it.
    ///
    /// # Errors
    /// `Invalid` over the limit for bodies; `Unavailable` if the source cannot be read; `Poisoned`.
    pub fn store_blob(&self, mut from: impl std::io::Read) -> Result<StoredBlob> {
        store_stream(self.core(), self.id, &mut from)
    }

    fn core(&self) -> &Arc<Core> {
        self.store.core()
    }
}

#[cfg(test)]
mod bounds;
