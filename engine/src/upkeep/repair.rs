//! Saves the intact data of a damaged store into a new store.
//!
//! The damaged store is only read. Repair builds a new index from the salvaged log entries. The ordinary code
//! then reads runs, keys and snapshots through that index, and verifies every body by its id. Data that fails
//! is reported as lost and not copied. The new store is written like any other, so it has its own identity
//! and ledger. It has a DRAFT in place of CURRENT until it is complete, and is no store before.
//!
//! A run keeps its frame numbers: a frame of component `lost`, which holds only the reason, stands in for
//! each lost frame. The run becomes abandoned. Its tag `annals.repair` says that parts are lost, and gives
//! the recorded fingerprint, which the new run cannot have.
//!
//! Not copied: record numbers; dropped runs and their tombstones; the parts of streams; the order in which
//! frames ended; replaced runs (a fork of a replaced run gets its own copy of the shared frames).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Link, NamespaceId, RunUid, Seqno};
use crate::log::manifest::publish_draft;
use crate::log::names;
use crate::log::open::enter;
use crate::log::paths::StorePaths;
use crate::log::queue::Durability;
use crate::log::record::{BodyRef, RecordKind, SpaceHead};
use crate::log::segments::Segments;
use crate::log::writer_lock::{StoreLock, keep_writers_out};
use crate::store::{Namespace, Store};
use crate::trace::belongings::BELONGINGS;
use crate::trace::dropping::PINS;
use crate::trace::flags::{FLAGS, Flag};
use crate::trace::heads::{RunFields, RunHead};
use crate::trace::model::{Component, Frame, RunSpec, Severity, Status};
use crate::trace::reader::{
    RecordedFrame, RunOrTombstone, RunReader, find_living_run, find_run_or_tombstone,
};
use crate::trace::recorder::{Run, end_open_run};
use crate::trace::run_keys;
use crate::trace::schema::RunSchema;
use crate::upkeep::directory::{StoreDirectory, inspect_directory};
use crate::upkeep::repair_report::{LostItem, RepairReport};
use crate::upkeep::salvage::{Salvage, SalvagedRecord, salvage};
use crate::vector::source::vectors_at;
use annals_store::kv::core::{Core, Options};
use annals_store::kv::index::{Index, IndexLimits};
use annals_store::kv::keys;
use annals_store::kv::keyspace::{History, Keyspace, KvBatch, ScanRange};

/// The keyspace that lists the parts of the index of memories (`annals_memory`).
const MEMORY_INDEX_LISTS: &str = "annals.memory.words.parts";

/// The keyspaces of the index of the texts of frames (`annals_memory`), and those of its form before.
const SEARCH_INDEX: [&str; 11] = [
    "annals.search.waiting",
    "annals.search.gaps",
    "annals.search.runs",
    "annals.search.runs.removed",
    "annals.search.parts",
    "annals.search",
    "annals.search.words",
    "annals.search.words.numbers",
    "annals.search.words.removed",
    "annals.search.words.postings",
    "annals.search.words.parts",
];

/// The tag of a run that lost parts.
const REPAIR_TAG: &str = "annals.repair";
/// The component of a frame that stands in for a lost one.
const LOST_COMPONENT: &str = "lost";
/// Maximum number of key operations in one commit.
const BATCH_KEYS_MAX: usize = 4096;

/// Saves all verifiable data of the store in `from` into a new store in `to`, and lists what was lost. `to`
/// must be empty or not exist. `from` is not changed. It works without a manifest, without some segments, and
/// with damage at any position. The index entries are held in memory, about 100 bytes per record.
///
/// # Errors
/// `Locked` while a process writes to `from`. `NotFound` if `from` holds no part of a store. `Invalid` if
/// `to` is not empty. `Damaged` if no file identifies the store in `from`. `Unavailable` if a file cannot be
/// read: copy the store to a healthy disk first.
pub fn repair(from: impl AsRef<Path>, to: impl AsRef<Path>, options: Options) -> Result<RepairReport> {
    let (from, to) = (StorePaths::new(from.as_ref()), to.as_ref());
    require_new_dir(&*options.io, to, from.root())?;
    let io = enter(&options.io, &from, false)?;
    let _held = match keep_writers_out(&*io, &from)? {
        StoreLock::Held(held) => held,
        StoreLock::Writer(pid) => {
            let message = format!("process {pid} is writing to {}: stop it first", from.root().display());
            return Err(Error::new(ErrorKind::Locked, message));
        }
    };
    let site = inspect_directory(&*io, &from)?;
    let schema = RunSchema::shared();
    let limits = IndexLimits { memory_bytes: options.index_memory_bytes, read_mode: options.read_mode };
    let index = Index::empty(&io, &from, site.store, limits, &schema);
    let mut found = salvage(&site, &mut |entries| index.insert(entries))?;
    index.set_visible(Seqno(u64::MAX));
    let segments = Arc::new(Segments::default());
    site.segments.iter().for_each(|standing| segments.insert(standing.segment.clone()));
    let old =
        Core::from_salvage(Options { io, ..options.clone() }, from, site.store, index, segments, schema);
    let new_io = options.io.clone();
    let store = Store::create_draft(to, Options { durability: Durability::Process, ..options })?;
    let report = RepairReport {
        damage: all_damage(&site, &mut found),
        lost: std::mem::take(&mut found.lost),
        ..RepairReport::default()
    };
    let mut repair =
        Repair { old, store: store.clone(), report, spaces: RepairedSpaces::default(), runs: HashMap::new() };
    repair.copy_spaces(&found)?;
    repair.copy_keys(&found.kept)?;
    for uid in &found.runs {
        repair.copy_run(RunUid(*uid))?;
    }
    repair.renumber_pins_and_belongings()?;
    let report = repair.report;
    store.close()?;
    // Only now is the directory a store: an interrupted repair must not look like a whole one.
    publish_draft(&*enter(&new_io, &StorePaths::new(to), false)?, to)?;
    Ok(report)
}

fn all_damage(site: &StoreDirectory, found: &mut Salvage) -> Vec<crate::log::open::Damage> {
    let mut damage = site.damage.clone();
    damage.append(&mut found.damage);
    damage
}

/// The path from the root, without `..`. Links count as what their names say.
fn whole_path(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components() {
        match part {
            std::path::Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    whole
}

/// Refuses a directory that is not empty, or that is inside the store which is read.
pub(super) fn require_new_dir(io: &dyn crate::io::Io, dir: &Path, store: &Path) -> Result<()> {
    if whole_path(dir).starts_with(whole_path(store)) {
        let what = format!("{} is inside the store: choose a directory outside of it", dir.display());
        return Err(Error::invalid(what));
    }
    match io.stat(dir)? {
        None => Ok(()),
        Some(stat) if stat.is_dir && io.list(dir)?.is_empty() => Ok(()),
        Some(_) => Err(Error::invalid(format!("{} is not empty: choose a new directory", dir.display()))),
    }
}

/// Namespaces and keyspaces of the new store, by their old numbers.
#[derive(Debug, Default)]
struct RepairedSpaces {
    namespaces: BTreeMap<u32, (String, Namespace)>,
    /// Old namespace number, name, and the keyspace in the new store.
    keyspaces: BTreeMap<u32, (u32, String, Keyspace)>,
}

/// A run that was copied to the new store.
#[derive(Debug)]
struct CopiedRun {
    namespace: u32,
    name: String,
    /// The frames up to this number equal the recorded ones, links included.
    whole_upto: u32,
}

struct Repair {
    old: Arc<Core>,
    store: Store,
    report: RepairReport,
    spaces: RepairedSpaces,
    runs: HashMap<RunUid, CopiedRun>,
}

/// The text of an error about the store's data. Errors of the disk or of this program are passed on as
/// errors.
fn store_error_text(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Bug | ErrorKind::Poisoned => Err(error),
        _ => Ok(error.to_string()),
    }
}

impl Repair {
    /// Creates the namespaces and keyspaces, including those whose names are lost.
    fn copy_spaces(&mut self, found: &Salvage) -> Result<()> {
        let mut keyspaces = Vec::new();
        for kept in found.kept.iter().filter(|kept| kept.kind == RecordKind::Space) {
            let head = self
                .old
                .read_logical(kept.place, RecordKind::Space, |logical| crate::codec::decode(logical.head));
            match head {
                Ok(SpaceHead::Namespace { id, name }) => self.add_namespace(id.0, name)?,
                Ok(SpaceHead::Keyspace { id, namespace, name, history }) => {
                    keyspaces.push((id, namespace.0, name, History::from_code(history)));
                }
                Err(error) => {
                    let (why, at) = (store_error_text(error)?, kept.seqno);
                    self.report.lost.push(LostItem::Records { from: at, to: Some(at), why });
                }
            }
        }
        // The definitions that the log has lost stand in another file once more.
        for head in names::read(&*self.old.io, &self.old.paths, self.old.store)? {
            match head {
                SpaceHead::Namespace { id, name } if !self.spaces.namespaces.contains_key(&id.0) => {
                    self.add_namespace(id.0, name)?;
                }
                SpaceHead::Keyspace { id, namespace, name, history }
                    if keyspaces.iter().all(|(known, ..)| *known != id) =>
                {
                    keyspaces.push((id, namespace.0, name, History::from_code(history)));
                }
                _ => {}
            }
        }
        for id in found.namespaces.iter().chain(keyspaces.iter().map(|(_, namespace, ..)| namespace)) {
            self.ensure_namespace(*id)?;
        }
        for (id, namespace, name, history) in keyspaces {
            self.add_keyspace(id, namespace, name, history)?;
        }
        Ok(())
    }

    fn add_namespace(&mut self, id: u32, name: String) -> Result<()> {
        let namespace = self.store.namespace(&name)?;
        self.spaces.namespaces.insert(id, (name, namespace));
        Ok(())
    }

    fn ensure_namespace(&mut self, id: u32) -> Result<()> {
        if self.spaces.namespaces.contains_key(&id) {
            return Ok(());
        }
        let name = format!("namespace-{id}");
        self.report.lost.push(LostItem::Name { name: name.clone() });
        self.add_namespace(id, name)
    }

    fn add_keyspace(&mut self, id: u32, namespace: u32, name: String, history: History) -> Result<()> {
        let Some((_, new)) = self.spaces.namespaces.get(&namespace) else { return Ok(()) };
        let keyspace = new.keyspace(&name, history)?;
        self.spaces.keyspaces.insert(id, (namespace, name, keyspace));
        Ok(())
    }

    /// Ensures that the keyspace of a record exists. If its name is lost, it gets a new one.
    fn ensure_keyspace(&mut self, id: u32) -> Result<()> {
        if self.spaces.keyspaces.contains_key(&id) {
            return Ok(());
        }
        // The keyspace's namespace is lost with its record. A single namespace must be the right one.
        let only = match self.spaces.namespaces.first_key_value() {
            Some((only, _)) if self.spaces.namespaces.len() == 1 => *only,
            _ => 0,
        };
        self.ensure_namespace(only)?;
        let name = format!("keyspace-{id}");
        self.report.lost.push(LostItem::Name { name: name.clone() });
        self.add_keyspace(id, only, name, History::All)
    }

    /// Copies versions of keys in log order; versions of one batch stay together.
    fn copy_keys(&mut self, kept: &[SalvagedRecord]) -> Result<()> {
        let mut kept = kept.iter().filter(|kept| kept.kind != RecordKind::Space).peekable();
        while let Some(first) = kept.next() {
            let mut batch: Option<(u32, u64, KvBatch)> = None;
            let mut next = Some(first);
            let mut count = 0;
            while let Some(one) = next {
                if let Some((namespace, time_ns, keyspace, key, value)) = self.read_version(one)? {
                    let vectors = self.read_vectors(one)?;
                    let same = batch.as_ref().is_some_and(|(of, at, _)| (*of, *at) == (namespace, time_ns));
                    if !same && let Some((_, _, done)) = batch.take() {
                        drop(done.submit()?);
                    }
                    let (_, _, batch) = match &mut batch {
                        Some(batch) => batch,
                        none => {
                            let core = self.store.core();
                            let fresh = KvBatch::new(core, keyspace.namespace()).at_time(time_ns);
                            none.insert((namespace, time_ns, fresh))
                        }
                    };
                    match value {
                        Some(value) => {
                            let vectors: Vec<(&str, &[f32])> =
                                vectors.iter().map(|(id, vector)| (id.as_str(), vector.as_slice())).collect();
                            batch.put_embedded(&keyspace, &key, value, &vectors)
                        }
                        None => batch.delete(&keyspace, &key),
                    };
                    self.report.versions += 1;
                }
                count += 1;
                next = kept.next_if(|one| one.batch == first.batch && count < BATCH_KEYS_MAX);
            }
            if let Some((_, _, done)) = batch {
                drop(done.submit()?);
            }
        }
        Ok(())
    }

    /// The vectors of a version.
    fn read_vectors(&mut self, kept: &SalvagedRecord) -> Result<Vec<(String, Vec<f32>)>> {
        let Some(place) = kept.vectors else { return Ok(Vec::new()) };
        let at = Seqno(kept.seqno.0 + 1);
        vectors_at(&self.old, at, place).or_else(|error| {
            let why = store_error_text(error)?;
            self.report.lost.push(LostItem::Records { from: at, to: Some(at), why });
            Ok(Vec::new())
        })
    }

    /// A recorded version: namespace (old), time, keyspace (new), key, value.
    #[expect(clippy::type_complexity, reason = "read once, by the function above")]
    fn read_version(
        &mut self,
        kept: &SalvagedRecord,
    ) -> Result<Option<(u32, u64, Keyspace, Vec<u8>, Option<Vec<u8>>)>> {
        let head = self.old.read_logical(kept.place, kept.kind, |logical| {
            crate::log::record::KvHead::parse(kept.kind, logical.head)
        });
        let head = match head {
            Ok(head) => head,
            Err(error) => {
                let (why, at) = (store_error_text(error)?, kept.seqno);
                self.report.lost.push(LostItem::Records { from: at, to: Some(at), why });
                return Ok(None);
            }
        };
        self.ensure_keyspace(head.space)?;
        let Some((namespace, name, new)) = self.spaces.keyspaces.get(&head.space).cloned() else {
            return Err(Error::bug("a keyspace that was just created is missing"));
        };
        let old = Keyspace::numbered(&self.old, NamespaceId(namespace), head.space, new.history_policy());
        let kind = if kept.kind == RecordKind::Delete { keys::ENDED } else { keys::AT_PLACE };
        match old.read_version(&head.key, kept.seqno, keys::record_value(kind, kept.place)) {
            Ok(version) => Ok(Some((namespace, version.time_ns, new, head.key, version.value))),
            Err(error) => {
                let why = store_error_text(error)?;
                let namespace = self.namespace_name(namespace);
                let (key, seqno) = (head.key, kept.seqno);
                self.report.lost.push(LostItem::Version { namespace, keyspace: name, key, seqno, why });
                Ok(None)
            }
        }
    }

    fn namespace_name(&self, namespace: u32) -> String {
        self.spaces.namespaces.get(&namespace).map_or_else(String::new, |(name, _)| name.clone())
    }

    /// Copies a run, unless it was dropped or replaced.
    fn copy_run(&mut self, uid: RunUid) -> Result<()> {
        let mut known = None;
        for namespace in self.spaces.namespaces.keys() {
            match find_run_or_tombstone(&self.old, NamespaceId(*namespace), uid) {
                Ok(Some(RunOrTombstone::Run(head, tail))) => known = Some((*namespace, *head, tail)),
                Ok(Some(RunOrTombstone::Dropped(_))) => return Ok(()),
                Ok(None) => {}
                Err(error) => drop(store_error_text(error)?),
            }
        }
        match known {
            Some((_, head, _)) if head.fields.gone => Ok(()),
            Some((namespace, head, tail)) => {
                // If another run holds the name, it replaced this one, and the record that says so is lost.
                let living = find_living_run(&self.old, NamespaceId(namespace), &head.fields.name)?;
                if living == Some(uid) { self.copy_run_parts(namespace, head, &tail, true) } else { Ok(()) }
            }
            None => self.copy_orphan_run(uid),
        }
    }

    /// Renumbers pins, flags and belongings: they name runs by numbers, and the new store has other numbers.
    fn renumber_pins_and_belongings(&self) -> Result<()> {
        for (_, new) in self.spaces.namespaces.values() {
            // The index of memories may name cards that were lost. Without its lists it is rebuilt.
            if let Some(lists) = new.find_keyspace(MEMORY_INDEX_LISTS)? {
                for key in lists.scan(ScanRange::all()).keys() {
                    lists.delete(&key?)?;
                }
            }
            // That of frames names runs by their old numbers. The next search makes it again.
            for name in SEARCH_INDEX {
                let Some(keyspace) = new.find_keyspace(name)? else { continue };
                for key in keyspace.scan(ScanRange::all()).keys() {
                    keyspace.delete(&key?)?;
                }
            }
            let flags = new.flags()?;
            if let Some(keyspace) = new.find_keyspace(FLAGS)? {
                flags.iter().try_for_each(|flag| keyspace.delete(&flag.uid.0.to_be_bytes()).map(drop))?;
            }
            for name in [PINS, BELONGINGS] {
                let Some(keyspace) = new.find_keyspace(name)? else { continue };
                let (mut batch, mut kept) = (new.batch(), Vec::new());
                for pair in keyspace.scan(ScanRange::all()) {
                    let (key, value) = pair?;
                    batch.delete(&keyspace, &key);
                    kept.push((key, value));
                }
                if kept.is_empty() {
                    continue;
                }
                for (key, value) in kept {
                    let Some((number, rest)) = key.split_first_chunk::<8>() else { continue };
                    // A flag's key is a number, too: the flag is written again below, with its link.
                    if rest.strip_prefix(FLAGS.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)) {
                        continue;
                    }
                    if let Some(copied) = self.runs.get(&RunUid(u64::from_be_bytes(*number))) {
                        let uid = new.run(&copied.name)?.info().uid;
                        batch.put(&keyspace, &[&uid.0.to_be_bytes(), rest].concat(), value);
                    }
                }
                batch.commit()?;
            }
            for flag in flags {
                if let Some(copied) = self.runs.get(&flag.uid) {
                    new.write_flag(&Flag { uid: new.run(&copied.name)?.info().uid, ..flag })?;
                }
            }
        }
        Ok(())
    }

    /// Copies a run whose own record is lost. Its frames give its number, but not its namespace.
    fn copy_orphan_run(&mut self, uid: RunUid) -> Result<()> {
        let mut best: Option<(usize, u32, RunHead)> = None;
        for namespace in self.spaces.namespaces.keys() {
            let head = head_of_lost_run(uid, NamespaceId(*namespace));
            let reader = RunReader::for_salvage(&self.old, NamespaceId(*namespace), head.clone(), &[])?;
            let proven =
                (1..=reader.info().frames.min(8)).filter(|seq| reader.salvage_frame(*seq).is_ok()).count();
            if best.as_ref().is_none_or(|(most, ..)| proven > *most) {
                best = Some((proven, *namespace, head));
            }
        }
        let Some((_, namespace, head)) = best else { return Ok(()) };
        let why = "all of its run records are damaged, so its name is lost; a run that it had replaced may have returned"
            .to_owned();
        let (space, run) = (self.namespace_name(namespace), head.fields.name.clone());
        self.report.lost.push(LostItem::Run { namespace: space, run, why });
        self.copy_run_parts(namespace, head, &[], false)
    }

    /// Copies the intact parts of a run. `known`: its own record is intact.
    fn copy_run_parts(&mut self, namespace: u32, head: RunHead, tail: &[u8], known: bool) -> Result<()> {
        let Some((space, new)) = self.spaces.namespaces.get(&namespace).cloned() else { return Ok(()) };
        let fields = head.fields.clone();
        let reader = RunReader::for_salvage(&self.old, NamespaceId(namespace), head, tail)?;
        let lost_before = self.report.lost.len();
        let metadata = match reader.metadata() {
            Ok(metadata) => metadata,
            Err(error) => {
                let (namespace, run, why) = (space.clone(), fields.name.clone(), store_error_text(error)?);
                self.report.lost.push(LostItem::Metadata { namespace, run, why });
                Vec::new()
            }
        };
        let mut fields = fields;
        if new.run(&fields.name).is_ok() {
            fields.name = format!("run-{}-of-{}", fields.uid.0, self.old.store);
            self.report.lost.push(LostItem::Name { name: fields.name.clone() });
        }
        let (run, shared) = self.begin_run(&new, namespace, &reader, &fields, metadata)?;
        let last = self.last_frame(&reader, shared)?;
        let mut whole_upto = shared;
        self.copy_snapshot(&space, &reader, &run, (shared, shared))?;
        for seq in shared + 1..=last {
            match self.copy_frame(&space, &reader, &run, seq)? {
                true if whole_upto + 1 == seq => whole_upto = seq,
                _ => {}
            }
            self.copy_snapshot(&space, &reader, &run, (seq, shared))?;
        }
        if fields.frames > last {
            let (namespace, run) = (space.clone(), fields.name.clone());
            let why = "their records are lost".to_owned();
            self.report.lost.push(LostItem::Frames {
                namespace,
                run,
                from: last + 1,
                to: fields.frames,
                why,
            });
        }
        let whole = known && self.report.lost.len() == lost_before;
        self.end_run(&new, &run, &fields, whole)?;
        self.runs.insert(fields.uid, CopiedRun { namespace, name: run.name().to_owned(), whole_upto });
        Ok(())
    }

    /// Begins the new run: as a fork if all shared frames of its parent were copied, else as a run of its
    /// own.
    fn begin_run(
        &self,
        new: &Namespace,
        namespace: u32,
        reader: &RunReader,
        fields: &RunFields,
        metadata: Vec<u8>,
    ) -> Result<(Run, u32)> {
        let spec = || {
            let mut spec = RunSpec::new(&fields.name)
                .agent(&fields.agent)
                .model(&fields.model)
                .severity(reader.info().severity)
                .metadata(metadata.clone())
                .started_ns(fields.started_ns);
            for (key, value) in &fields.tags {
                spec = spec.tag(key, value);
            }
            spec
        };
        let recording = self.store.recording();
        if let Some((parent, shared, at)) = fields.parent
            && let Some(copied) = self.runs.get(&parent)
            && copied.namespace == namespace
            && copied.whole_upto >= shared
        {
            let parent = new.run(&copied.name)?;
            let fork = Some((&parent, at, shared));
            let run = Run::prepare(self.store.core(), recording, new.id, spec(), fork)?;
            run.batch()?.commit()?;
            return Ok((run, shared));
        }
        let run = Run::prepare(self.store.core(), recording, new.id, spec(), None)?;
        run.batch()?.commit()?;
        Ok((run, 0))
    }

    /// The last frame that has a record.
    fn last_frame(&self, reader: &RunReader, shared: u32) -> Result<u32> {
        let uid = reader.info().uid;
        let last = self.old.index.last_key(&run_keys::frames(uid), &run_keys::frame(uid, u32::MAX))?;
        let own = last.and_then(|hit| run_keys::last_number(&hit.key)).unwrap_or(0);
        let inherited = reader.info().parent.as_ref().map_or(0, |parent| parent.shared);
        Ok(own.max(inherited).max(shared).min(reader.info().frames))
    }

    /// Copies a frame, or puts a stand-in in its place. Returns whether the copy equals the recorded frame.
    fn copy_frame(&mut self, space: &str, reader: &RunReader, run: &Run, seq: u32) -> Result<bool> {
        let recorded = match reader.salvage_frame(seq) {
            Ok(recorded) => recorded,
            Err(error) => {
                let why = store_error_text(error)?;
                drop(run.submit(lost_frame_stand_in(&why, reader.info().started_ns))?);
                self.note_lost_frame(space, run.name(), seq, why);
                return Ok(false);
            }
        };
        let incomplete = recorded.incomplete;
        let link = recorded.link;
        let output = recorded.output.clone();
        let frame = frame_from_recorded(recorded);
        if incomplete {
            let open = run.begin_frame(&frame)?;
            open.append(&output)?;
            open.flush()?;
        } else {
            // A failed write also makes the store's close fail.
            drop(run.submit(frame)?);
        }
        self.report.frames += 1;
        Ok(incomplete || run.link() == link)
    }

    fn note_lost_frame(&mut self, space: &str, name: &str, seq: u32, why: String) {
        if let Some(LostItem::Frames { namespace, run, to, why: known, .. }) = self.report.lost.last_mut()
            && (namespace.as_str(), run.as_str(), to.checked_add(1), &*known)
                == (space, name, Some(seq), &why)
        {
            *to = seq;
            return;
        }
        let (namespace, run) = (space.to_owned(), name.to_owned());
        self.report.lost.push(LostItem::Frames { namespace, run, from: seq, to: seq, why });
    }

    /// Copies the snapshot of frame `at.0`, if one exists and the new run does not share it. The new run
    /// shares frames up to `at.1`.
    fn copy_snapshot(&mut self, space: &str, reader: &RunReader, run: &Run, at: (u32, u32)) -> Result<()> {
        let (seq, shared) = at;
        for uid in reader.possible_snapshot_owners(seq) {
            let own = uid == reader.info().uid;
            // A snapshot of an ancestor run is shared together with its frame.
            if seq == 0 || (!own && seq <= shared) {
                continue;
            }
            if self.old.index.newest(&run_keys::snapshot(uid, seq))?.is_none() {
                continue;
            }
            let copied = reader.read_snapshot(uid, seq).and_then(|snapshot| {
                let embeddings: Vec<(&str, &[f32])> =
                    snapshot.embeddings.iter().map(|(id, vector)| (id.as_str(), vector.as_slice())).collect();
                let mut batch = run.batch()?;
                let seq = batch.snapshot_as_recorded(snapshot.state.clone().into(), &embeddings)?;
                batch.commit().map(|_| seq)
            });
            match copied {
                Ok(_) => self.report.snapshots += 1,
                Err(error) => {
                    let (namespace, run, why) =
                        (space.to_owned(), run.name().to_owned(), store_error_text(error)?);
                    self.report.lost.push(LostItem::Snapshot { namespace, run, seq, why });
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Ends the new run as the old one ended, or marks it as incomplete.
    fn end_run(&mut self, new: &Namespace, run: &Run, fields: &RunFields, whole: bool) -> Result<()> {
        let core = self.store.core().clone();
        core.log()?.queue.barrier(core.index.visible())?;
        let open = fields.status == Status::Open.code();
        let mut same = true;
        end_open_run(&core, new.id, run.uid(), |ended| {
            same = open || ended.fingerprint == fields.fingerprint;
            ended.status = match open || !whole || !same {
                true => Status::Abandoned.code(),
                false => fields.status,
            };
            if !open {
                ended.ended_ns = fields.ended_ns;
            }
            if !whole || !same {
                ended.tags.retain(|(key, _)| key != REPAIR_TAG);
                ended.tags.push((REPAIR_TAG.to_owned(), repair_tag_value(fields, open)));
            }
        })?;
        if !same && whole {
            let (namespace, run) = (self.new_namespace_name(new), fields.name.clone());
            let why = "the fingerprint of its frames is not the recorded one".to_owned();
            self.report.lost.push(LostItem::Run { namespace, run, why });
        }
        self.report.runs += 1;
        self.report.runs_whole += u64::from(whole && same);
        Ok(())
    }

    fn new_namespace_name(&self, new: &Namespace) -> String {
        let named = self.spaces.namespaces.values().find(|(_, namespace)| namespace.id == new.id);
        named.map_or_else(String::new, |(name, _)| name.clone())
    }
}

fn repair_tag_value(fields: &RunFields, open: bool) -> String {
    if open {
        return "parts of this run were lost".to_owned();
    }
    let status = Status::from_code(fields.status).map_or("unknown", Status::name);
    format!(
        "parts of this run were lost; it had {} frames, status {status}, fingerprint {}",
        fields.frames,
        Link(fields.fingerprint.0)
    )
}

fn lost_frame_stand_in(why: &str, started_ns: u64) -> Frame {
    let metadata = serde_json::json!({ "annals": { "lost": why } }).to_string();
    let mut frame = Frame::new(Component::Other(LOST_COMPONENT.to_owned()), "", "").metadata(metadata);
    frame.started_ns = Some(started_ns);
    frame.severity = Severity::Flagged;
    frame.error = true;
    frame
}

fn frame_from_recorded(recorded: RecordedFrame) -> Frame {
    let mut frame = Frame::new(recorded.component, recorded.input, recorded.output);
    frame.parent = recorded.parent;
    frame.started_ns = Some(recorded.started_ns);
    frame.duration_ns = recorded.duration_ns;
    frame.metadata = recorded.metadata;
    frame.severity = recorded.severity;
    frame.error = recorded.error;
    frame
}

/// The head of a run whose own record is lost.
fn head_of_lost_run(uid: RunUid, namespace: NamespaceId) -> RunHead {
    let fields = RunFields {
        uid,
        namespace,
        name: format!("run-{}", uid.0),
        agent: String::new(),
        model: String::new(),
        tags: Vec::new(),
        status: Status::Open.code(),
        severity: Severity::Normal.code(),
        parent: None,
        started_ns: 0,
        ended_ns: 0,
        frames: 0,
        raw_bytes: 0,
        fingerprint: Link([0; 32]),
        gone: false,
    };
    RunHead { fields, metadata: BodyRef::Inline(Vec::new()) }
}
