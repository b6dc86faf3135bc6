//! Saving what a damaged store still holds into a new one.
//!
//! The damaged store is only read. What its log still says is put behind an index of its own, so that runs, keys and
//! snapshots are read by the code that always reads them, every body proven by its id; what fails that is named as lost
//! and not copied. The new store is written like any other, so it has an identity and a ledger of its own.
//!
//! A run keeps its frames' numbers: in place of a lost frame stands one of component `lost` with nothing in it but the
//! reason. Such a run is abandoned, and its tag `annals.repair` says what is lost and which fingerprint was recorded:
//! its own cannot be that one.
//!
//! Left out: numbers of records, runs that were dropped and their tombstones, the parts in which a stream came, the order in which frames ended, runs that were
//! replaced (a fork of one holds the shared frames itself).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Link, NamespaceId, RunUid, Seqno};
use crate::kv::core::{Core, Options};
use crate::kv::index::{Index, IndexLimits};
use crate::kv::keys;
use crate::kv::keyspace::{History, Keyspace, KvBatch, ScanRange};
use crate::log::paths::StorePaths;
use crate::log::queue::Durability;
use crate::log::record::{BodyRef, RecordKind, SpaceHead};
use crate::log::segments::Segments;
use crate::store::{Namespace, Store};
use crate::trace::belongings::BELONGINGS;
use crate::trace::dropping::PINS;
use crate::trace::heads::{RunFields, RunHead};
use crate::trace::model::{Component, Frame, RunSpec, Severity, Status};
use crate::trace::reader::{
    RecordedFrame, RunOrTombstone, RunReader, find_living_run, find_run_or_tombstone,
};
use crate::trace::recorder::{Run, end_open_run};
use crate::trace::run_keys;
use crate::trace::schema::RunSchema;
use crate::upkeep::directory::{LockHolder, StoreDirectory, inspect_directory, lock_holder};
use crate::upkeep::repair_report::{LostItem, RepairReport};
use crate::upkeep::salvage::{Salvage, SalvagedRecord, salvage};
use crate::vector::source::vectors_at;

/// The tag of a run of which something is lost.
const REPAIR_TAG: &str = "annals.repair";
/// The component of what stands in a lost frame's place.
const LOST_COMPONENT: &str = "lost";
/// Operations on keys that are committed together at most.
const BATCH_KEYS_MAX: usize = 4096;

/// Saves all that can be proven of the store in `from` into a new one in `to`, which must be empty or not there yet,
/// and lists what was lost. `from` is not changed in any way. Works without a manifest, without some of the segments and
/// whatever bytes of them are damaged. The entries of the index are held in memory, about 100 bytes a record.
///
/// # Errors
/// `Locked` while a process writes `from`; `NotFound` where nothing of a store is there; `Invalid` where `to` is not
/// empty; `Damaged` where nothing says which store `from` was; `Unavailable` where a file cannot be read: copy it to a
/// healthy disk first.
pub fn repair(from: impl AsRef<Path>, to: impl AsRef<Path>, options: Options) -> Result<RepairReport> {
    let (from, to) = (StorePaths::new(from.as_ref()), to.as_ref());
    let io = options.io.clone();
    require_empty_dir(&*io, to)?;
    let _held = match lock_holder(&*io, &from)? {
        LockHolder::Nobody(held) => held,
        LockHolder::Process(pid) => {
            let message = format!("process {pid} is writing to {}: end it first", from.root().display());
            return Err(Error::new(ErrorKind::Locked, message));
        }
    };
    let site = inspect_directory(&*io, &from)?;
    let schema = RunSchema::new();
    let limits = IndexLimits { memory_bytes: options.index_memory_bytes, read_mode: options.read_mode };
    let index = Index::empty(&io, &from, site.store, limits, &schema);
    let mut found = salvage(&site, &mut |entries| index.insert(entries))?;
    index.set_visible(Seqno(u64::MAX));
    let segments = Arc::new(Segments::default());
    site.segments.iter().for_each(|standing| segments.insert(standing.segment.clone()));
    let old = Core::from_salvage(options.clone(), from, site.store, index, segments, schema);
    let store = Store::open_with(to, Options { durability: Durability::Process, ..options })?;
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
    Ok(report)
}

fn all_damage(site: &StoreDirectory, found: &mut Salvage) -> Vec<crate::log::open::Damage> {
    let mut damage = site.damage.clone();
    damage.append(&mut found.damage);
    damage
}

/// Refuses a directory that holds anything.
pub(super) fn require_empty_dir(io: &dyn crate::io::Io, dir: &Path) -> Result<()> {
    match io.stat(dir)? {
        None => Ok(()),
        Some(stat) if stat.is_dir && io.list(dir)?.is_empty() => Ok(()),
        Some(_) => Err(Error::invalid(format!("{} is not empty: name a new directory", dir.display()))),
    }
}

/// Namespaces and keyspaces of the new store by their old numbers.
#[derive(Debug, Default)]
struct RepairedSpaces {
    namespaces: BTreeMap<u32, (String, Namespace)>,
    /// Old namespace, name, policy; and the new one.
    keyspaces: BTreeMap<u32, (u32, String, Keyspace)>,
}

/// A run of the new store.
#[derive(Debug)]
struct CopiedRun {
    namespace: u32,
    name: String,
    /// Its frames up to this one are the recorded ones, and linked as they were.
    whole_upto: u32,
}

struct Repair {
    old: Arc<Core>,
    store: Store,
    report: RepairReport,
    spaces: RepairedSpaces,
    runs: HashMap<RunUid, CopiedRun>,
}

/// An error that says something of the store, not of the disk.
fn store_error_text(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Bug | ErrorKind::Poisoned => Err(error),
        _ => Ok(error.to_string()),
    }
}

impl Repair {
    /// Makes namespaces and keyspaces, also those whose names are lost.
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

    /// The keyspace that a record names; one whose name is lost gets another.
    fn ensure_keyspace(&mut self, id: u32) -> Result<()> {
        if self.spaces.keyspaces.contains_key(&id) {
            return Ok(());
        }
        // Whose it was is lost with its name: where there is one namespace only, it is that one's.
        let only = match self.spaces.namespaces.first_key_value() {
            Some((only, _)) if self.spaces.namespaces.len() == 1 => *only,
            _ => 0,
        };
        self.ensure_namespace(only)?;
        let name = format!("keyspace-{id}");
        self.report.lost.push(LostItem::Name { name: name.clone() });
        self.add_keyspace(id, only, name, History::All)
    }

    /// Copies versions of keys in the order of the log, those of one batch together.
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

    /// The vectors that a version came with.
    fn read_vectors(&mut self, kept: &SalvagedRecord) -> Result<Vec<(String, Vec<f32>)>> {
        let Some(place) = kept.vectors else { return Ok(Vec::new()) };
        let at = Seqno(kept.seqno.0 + 1);
        vectors_at(&self.old, at, place).or_else(|error| {
            let why = store_error_text(error)?;
            self.report.lost.push(LostItem::Records { from: at, to: Some(at), why });
            Ok(Vec::new())
        })
    }

    /// A version as it was: namespace (old), time, keyspace (new), key, value.
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
            return Err(Error::bug("a keyspace that was just made is not there"));
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

    /// Copies a run, unless it was replaced.
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
                // Where a younger run has the name, this one was replaced, and the record that says so is lost.
                let living = find_living_run(&self.old, NamespaceId(namespace), &head.fields.name)?;
                if living == Some(uid) { self.copy_run_parts(namespace, head, &tail, true) } else { Ok(()) }
            }
            None => self.copy_orphan_run(uid),
        }
    }

    /// Pins and belongings name runs by their numbers, which are others now.
    fn renumber_pins_and_belongings(&self) -> Result<()> {
        for (_, new) in self.spaces.namespaces.values() {
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
                    if let Some(copied) = self.runs.get(&RunUid(u64::from_be_bytes(*number))) {
                        let uid = new.run(&copied.name)?.info().uid;
                        batch.put(&keyspace, &[&uid.0.to_be_bytes(), rest].concat(), value);
                    }
                }
                batch.commit()?;
            }
        }
        Ok(())
    }

    /// A run whose own record is lost: its frames say which one it is, but not whose.
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
        let why = "none of its records is whole, so its name is lost: a run that it had replaced may be there again"
            .to_owned();
        let (space, run) = (self.namespace_name(namespace), head.fields.name.clone());
        self.report.lost.push(LostItem::Run { namespace: space, run, why });
        self.copy_run_parts(namespace, head, &[], false)
    }

    /// Copies what there is of a run; `known`: its own record is there.
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

    /// Begins the new run: as a fork where its parent is there with all that is shared, else with nothing shared.
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

    /// The last frame of which there is a record.
    fn last_frame(&self, reader: &RunReader, shared: u32) -> Result<u32> {
        let uid = reader.info().uid;
        let last = self.old.index.last_key(&run_keys::frames(uid), &run_keys::frame(uid, u32::MAX))?;
        let own = last.and_then(|hit| run_keys::last_number(&hit.key)).unwrap_or(0);
        let inherited = reader.info().parent.as_ref().map_or(0, |parent| parent.shared);
        Ok(own.max(inherited).max(shared).min(reader.info().frames))
    }

    /// Copies a frame, or puts a stand-in where it was. Says whether it is the recorded one.
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
            // A write that fails fails the close, too.
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

    /// Copies the snapshot of frame `at.0`, if there is one that the new run does not share: it shares frames up to
    /// `at.1`.
    fn copy_snapshot(&mut self, space: &str, reader: &RunReader, run: &Run, at: (u32, u32)) -> Result<()> {
        let (seq, shared) = at;
        for uid in reader.possible_snapshot_owners(seq) {
            let own = uid == reader.info().uid;
            // One of an older run is shared with the parent where the frame is.
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

    /// Ends the new run as the old one ended, or says what it lacks.
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
            let why = "its frames do not add up to the fingerprint that was recorded".to_owned();
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

/// What stands for the record of a run whose own is lost.
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
