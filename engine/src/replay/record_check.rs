//! Compares the index with the log while the log is read, and hashes the values of keys.
//!
//! The index is a cache of the log, so its checksums alone show nothing: another table may be valid, too. Two
//! rules hold. For each key that leads to a record, the newest version in the index is this record or a newer
//! one; of a keyspace with a history, the older versions are there, too. Each entry of the index is the entry of a record. So the index neither hides a record nor adds one.
//!
//! The first rule has exceptions. Compaction drops the entries of the records that it erases. An older record of
//! the same key may stay in a file that was not worth a rewrite, and then no entry leads to it. That happens only
//! to keys of runs that are gone, and to keys that lead to a run's record beside the run's own key.
//!
//! Left out: groups and anchors. A wrong one leads to other bytes, and the hash of the body shows that.
//! The cost is a look-up for each key of each record. Memory holds the names of keyspaces and a few words.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::ByteReader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RecordPlace, RunUid, SegmentId, Seqno};
use crate::log::layout::RawRecord;
use crate::log::open::{FoundLog, find};
use crate::log::record::{
    BodyRef, EmbeddingHead, HistoryCode, KvHead, LogicalBody, RecipeRef, RecordKind, SpaceHead,
};
use crate::log::segments::Segment;
use crate::log::writer_lock::is_being_written;
use crate::replay::VerifyProblem;
use crate::trace::kinds;
use crate::trace::reader::{RunOrTombstone, find_run_or_tombstone};
use crate::trace::run_keys::{self, RunKey};
use crate::trace::schema::RunSchema;
use annals_store::kv::bodies::{self, HashCheck};
use annals_store::kv::core::Core;
use annals_store::kv::index::{IndexSnapshot, prefix_end};
use annals_store::kv::keys::{self, KeyKind};
use annals_store::kv::table::{IndexEntry, IndexValue};
use annals_store::kv::{BlobReader, View};
use annals_store::schema::PASSING_SPACE;

/// Begins the sentence about an index that differs from the log.
pub(crate) const INDEX_DIFFERS: &str = "the index differs from the log";
/// Begins the sentence about a table with a damaged block.
pub(crate) const TABLE_DAMAGED: &str = "an index table is damaged";
/// Keys that the first of these sentences names at most.
const NAMED_MAX: usize = 4;
/// Runs that one look at the index finds.
const PAGE_RUNS: usize = 1 << 16;
/// How often the index is opened anew if a compaction of another process has replaced files.
const ATTEMPTS_MAX: usize = 3;

/// What to do about an index that differs from the log.
pub(crate) fn remedy(tables: &std::path::Path) -> String {
    format!(
        "delete the files in {} while no program has the store open; the next opening rebuilds them from the log",
        tables.display()
    )
}

/// A keyspace, by its definition.
#[derive(Debug)]
struct KeyspaceFacts {
    namespace: NamespaceId,
    name: String,
    history: HistoryCode,
}

/// See the module. Feed it every record of the log, in order.
#[derive(Debug)]
pub(super) struct RecordCheck {
    core: Arc<Core>,
    snapshot: IndexSnapshot,
    /// Keeps the versions that are read. `None`: no values are read.
    view: Option<View>,
    namespaces: HashMap<NamespaceId, String>,
    keyspaces: HashMap<u32, KeyspaceFacts>,
    /// The entries of the current record.
    entries: Vec<IndexEntry>,
    /// Entries of the index that are those of a record.
    matched: u64,
    /// Records that a key of theirs does not lead to.
    missed: u64,
    named: Vec<String>,
    /// The record before is a value that was read: its vectors are read, too.
    has_value_before: bool,
    /// The run that was last looked for, and whether it lives.
    last_run: Option<(RunUid, bool)>,
    /// See [`Self::needed_frames`].
    needed: Option<HashMap<RunUid, u32>>,
    pub(super) values: u64,
    pub(super) value_bytes: u64,
    pub(super) problems: Vec<VerifyProblem>,
}

/// What the index has for a key of a record.
#[derive(Debug)]
struct FoundEntry {
    /// The newest version of the key.
    newest: Option<Seqno>,
    /// The record's own entry is there and leads to it.
    is_same: bool,
}

/// The files of the log, and the check of their records if the index leads to these files.
pub(super) type FoundAndCheck = (FoundLog, Option<RecordCheck>);

/// Finds the files of the log and takes the index as it is for them. With `values`, values are read, too. The check
/// is `None` if compactions of another process replaced files again and again.
pub(super) fn find_with_check(core: &Arc<Core>, values: bool) -> Result<FoundAndCheck> {
    let mut core = core.clone();
    for _ in 0..ATTEMPTS_MAX {
        let (found, check) = RecordCheck::find(&core, values)?;
        if check.leads_to(&found)? {
            return Ok((found, Some(check)));
        }
        // A compaction has moved records. A reader that opens now has an index that leads to them.
        core = Core::open(core.paths.root(), core.options.clone(), false, RunSchema::shared())?;
    }
    let (found, check) = RecordCheck::find(&core, values)?;
    // Without a writer nothing moves: the index is wrong.
    let is_current = check.leads_to(&found)? || !is_being_written(&*core.io, &core.paths)?;
    Ok((found, is_current.then_some(check)))
}

impl RecordCheck {
    fn find(core: &Arc<Core>, values: bool) -> Result<(FoundLog, Self)> {
        let view = values.then(|| View::new(core));
        let look = || find(&*core.io, &core.paths, false, false, core.options.read_mode);
        let (snapshot, found) = core.index.snapshot_with(look);
        let (mut namespaces, mut keyspaces) = (HashMap::new(), HashMap::new());
        for head in core.list_spaces()? {
            match head {
                SpaceHead::Namespace { id, name } => drop(namespaces.insert(id, name)),
                SpaceHead::Keyspace { id, namespace, name, history } => {
                    keyspaces.insert(id, KeyspaceFacts { namespace, name, history });
                }
            }
        }
        let check = Self {
            core: core.clone(),
            snapshot,
            view,
            namespaces,
            keyspaces,
            entries: Vec::new(),
            matched: 0,
            missed: 0,
            named: Vec::new(),
            has_value_before: false,
            last_run: None,
            needed: None,
            values: 0,
            value_bytes: 0,
            problems: Vec::new(),
        };
        Ok((found?, check))
    }

    /// Whether the index is of these files. That of a reader may be older than a compaction by another process.
    fn leads_to(&self, found: &FoundLog) -> Result<bool> {
        // A compaction always changes the tables, and a writer keeps its own from doing so meanwhile.
        if self.core.is_writer() && !self.core.is_closed() || self.snapshot.has_tables(&found.state.tables) {
            return Ok(true);
        }
        let listed: HashSet<SegmentId> = found.segments.all().iter().map(|segment| segment.id).collect();
        Ok(self.snapshot.segments()?.is_subset(&listed))
    }

    /// Checks a record.
    ///
    /// # Errors
    /// `Damaged` for a record that cannot be parsed; `Unavailable`. Other damage is noted.
    pub(super) fn add(
        &mut self,
        segment: &Segment,
        at: u32,
        seqno: Seqno,
        record: &RawRecord<'_>,
    ) -> Result<()> {
        let has_value_before = std::mem::take(&mut self.has_value_before);
        let damaged = |e| Error::damaged(&segment.path, u64::from(at), e);
        let kind = RecordKind::parse(record.kind, record.layout).map_err(damaged)?;
        let Some(kind) = kind.filter(|kind| kind.is_logical()) else { return Ok(()) };
        if seqno > self.snapshot.visible() {
            return Ok(());
        }
        let place = RecordPlace { segment: segment.id, offset: at, len: record.bytes };
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        keys::derive_entries(&*self.core.schema, record, seqno, place, &mut entries).map_err(damaged)?;
        // Two tags of a run may share a list.
        entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        entries.dedup_by(|one, other| one.key == other.key);
        let mut is_value_kept = false;
        for entry in &entries {
            let found = self.look_up(entry)?;
            self.matched += u64::from(found.is_same);
            let is_kept = match found.newest {
                Some(newest) if newest == seqno => true,
                Some(newest) if newest > seqno => self.is_kept_version(&entry.key, seqno)?,
                _ => self.must_be_found(kind, entry, &entries)?,
            };
            is_value_kept = is_kept && found.is_same;
            if is_kept && !found.is_same {
                self.note_miss(&entry.key, seqno);
            }
        }
        if self.view.is_some() {
            let logical = LogicalBody::of(record).map_err(damaged)?;
            match kind {
                // Other values may have lost their bytes.
                RecordKind::Put if is_value_kept => self.check_value(segment, at, logical)?,
                RecordKind::Embedding if has_value_before => self.check_vectors(segment, at, logical)?,
                _ => {}
            }
        }
        self.entries = entries;
        Ok(())
    }

    fn look_up(&self, entry: &IndexEntry) -> Result<FoundEntry> {
        let seqno = Seqno(entry.seqno);
        let newest = self.snapshot.get(&entry.key, Seqno(u64::MAX))?;
        let own = match newest {
            Some((newest, _)) if newest > seqno => self.snapshot.get(&entry.key, seqno)?,
            newest => newest,
        };
        let is_same = own == Some((seqno, entry.value));
        Ok(FoundEntry { newest: newest.map(|(newest, _)| newest), is_same })
    }

    /// Whether a version that is not the newest of its key is one that a reader can ask for. In keyspaces with a
    /// history by age this depends on the time of a compaction, so only the newest version counts there.
    fn is_kept_version(&self, key: &[u8], seqno: Seqno) -> Result<bool> {
        let Some(KeyKind::User(space)) = keys::kind_of(key) else { return Ok(false) };
        Ok(match self.keyspaces.get(&space).map(|keyspace| keyspace.history) {
            Some(HistoryCode::All) => true,
            Some(HistoryCode::Newest(count)) => {
                self.snapshot.newer_versions(key, seqno)? < count.max(1) as usize
            }
            Some(HistoryCode::Latest | HistoryCode::AgeNs(_)) | None => false,
        })
    }

    /// Whether a key must lead to its record although no version as new is in the index.
    fn must_be_found(&mut self, kind: RecordKind, entry: &IndexEntry, all: &[IndexEntry]) -> Result<bool> {
        Ok(match run_keys::of(&entry.key) {
            Some(RunKey::ToRun) => {
                let is_ended = entry.value.kind == keys::ENDED;
                if run_keys::is_facts(&entry.key) || is_ended && keys::space_of(&entry.key) == PASSING_SPACE {
                    return Ok(false);
                }
                // The run's own key says whether this record counts.
                let run = all.iter().find(|own| matches!(run_keys::of(&own.key), Some(RunKey::Run(..))));
                let Some(run) = run else { return Ok(true) };
                let newest = self.snapshot.get(&run.key, Seqno(u64::MAX))?;
                newest == Some((Seqno(run.seqno), run.value))
                    && (keys::is_living(run.value) || kind == kinds::TOMBSTONE)
            }
            Some(RunKey::Frame(uid, seq)) => self.run_lives(uid)? || seq <= self.needed_frames(uid)?,
            Some(RunKey::Run(..)) | None => true,
        })
    }

    fn run_lives(&mut self, uid: RunUid) -> Result<bool> {
        if let Some((known, lives)) = self.last_run
            && known == uid
        {
            return Ok(lives);
        }
        let mut lives = false;
        for namespace in self.namespaces.keys() {
            let found = self.snapshot.get(&run_keys::run(*namespace, uid), Seqno(u64::MAX))?;
            lives |= found.is_some_and(|(_, value)| keys::is_living(value));
        }
        self.last_run = Some((uid, lives));
        Ok(lives)
    }

    /// The last frame of a run that is gone, and that living forks still read.
    fn needed_frames(&mut self, uid: RunUid) -> Result<u32> {
        let all = match self.needed.take() {
            Some(all) => all,
            None => self.all_needed_frames()?,
        };
        Ok(self.needed.insert(all).get(&uid).copied().unwrap_or(0))
    }

    /// As [`Self::needed_frames`] for every run. Looks at the runs' own keys, since the index may lack the key that leads
    /// from a run to its fork.
    fn all_needed_frames(&self) -> Result<HashMap<RunUid, u32>> {
        let mut runs: BTreeMap<RunUid, (bool, Option<(RunUid, u32)>)> = BTreeMap::new();
        for namespace in self.namespaces.keys() {
            let mut from = run_keys::runs(*namespace);
            let end = prefix_end(&from).unwrap_or_default();
            loop {
                let found = |key: &[u8], value| Some((run_keys::run_uid(key)?, keys::is_living(value)));
                let (some, more) = self.core.index.pick_newest(&from, &end, PAGE_RUNS, found)?;
                for (uid, lives) in some {
                    let parent = match find_run_or_tombstone(&self.core, *namespace, uid) {
                        Ok(Some(RunOrTombstone::Run(head, _))) => head.fields.parent,
                        Ok(Some(RunOrTombstone::Dropped(head))) => head.parent,
                        Ok(None) => None,
                        // The run's own key is compared, too.
                        Err(error) if error.kind() == ErrorKind::Damaged => None,
                        Err(error) => return Err(error),
                    };
                    runs.insert(uid, (lives, parent.map(|(of, shared, _)| (of, shared))));
                }
                match more {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        let mut needed: HashMap<RunUid, u32> = HashMap::new();
        // A fork is always younger than its parent.
        for (uid, (lives, parent)) in runs.iter().rev() {
            let Some((of, shared)) = parent else { continue };
            let upto = if *lives { u32::MAX } else { needed.get(uid).copied().unwrap_or(0) };
            let most = needed.entry(*of).or_default();
            *most = (*most).max((*shared).min(upto));
        }
        Ok(needed)
    }

    fn check_value(&mut self, segment: &Segment, at: u32, logical: LogicalBody<'_>) -> Result<()> {
        let damaged = |e| Error::damaged(&segment.path, u64::from(at), e);
        let head = KvHead::parse(RecordKind::Put, logical.head).map_err(damaged)?;
        let Some(keyspace) = self.keyspaces.get(&head.space) else { return Ok(()) };
        self.has_value_before = true;
        let mut tail = ByteReader::new(logical.tail, "key-value tail");
        let namespace = keyspace.namespace;
        match head.value.as_ref().map_or(Ok(0), |value| self.check_body(namespace, value, &mut tail)) {
            Ok(bytes) => {
                self.values += 1;
                self.value_bytes += bytes;
                Ok(())
            }
            Err(error) => {
                let key = self.describe(&keys::user(head.space, &head.key));
                self.note_damage(segment, at, &key, &error)
            }
        }
    }

    /// Checks the vectors of the value before.
    fn check_vectors(&mut self, segment: &Segment, at: u32, logical: LogicalBody<'_>) -> Result<()> {
        let damaged = |e| Error::damaged(&segment.path, u64::from(at), e);
        let head = EmbeddingHead::parse(logical.head).map_err(damaged)?;
        let mut tail = ByteReader::new(logical.tail, "embedding tail");
        for (embedder, vector) in &head.embeddings {
            match self.check_body(head.namespace, vector, &mut tail) {
                Ok(bytes) => self.value_bytes += bytes,
                Err(error) => {
                    let key = self.describe(&keys::user(head.space, &head.key));
                    let what = format!("the vector of embedder {embedder:?} of {key}");
                    return self.note_damage(segment, at, &what, &error);
                }
            }
        }
        Ok(())
    }

    /// Hashes a body whose recipe stands alone, piece by piece. Returns its length.
    fn check_body(&self, namespace: NamespaceId, body: &BodyRef, tail: &mut ByteReader<'_>) -> Result<u64> {
        match body {
            // The record's checksum covers the bytes.
            BodyRef::Inline(bytes) => Ok(bytes.len() as u64),
            BodyRef::Blob { len, id } => {
                let recipe = RecipeRef::take(tail, *len).map_err(|e| {
                    Error::with_source(ErrorKind::Damaged, format!("it has no recipe: {e}"), e)
                })?;
                let alone = RecipeRef { base_back: 0, ..recipe };
                let extents =
                    bodies::decode_extents(alone, |_| Err(Error::bug("a value's recipe stands alone")))?;
                bodies::check_len(&extents, *len, *id)?;
                let core = self.core.clone();
                BlobReader::new(core, namespace, extents, (*len, *id), HashCheck::Compared).check()?;
                Ok(*len)
            }
            BodyRef::Same { .. } => Err(Error::new(ErrorKind::Damaged, "a value refers to a frame")),
        }
    }

    fn note_damage(&mut self, segment: &Segment, at: u32, of: &str, error: &Error) -> Result<()> {
        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unsupported | ErrorKind::Bug) {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        let what = Error::damaged(&segment.path, u64::from(at), format!("{of}: {error}")).to_string();
        self.problems.push(VerifyProblem { run: None, what });
        Ok(())
    }

    fn note_miss(&mut self, key: &[u8], seqno: Seqno) {
        self.missed += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{} (record {seqno})", self.describe(key)));
        }
    }

    /// Compares the number of entries after the whole log was read. Returns a problem if the index differs.
    ///
    /// # Errors
    /// `Damaged` if a table is; `Unavailable`.
    pub(super) fn finish(mut self, tables: PathBuf) -> Result<Option<VerifyProblem>> {
        let (upto, now) = (self.snapshot.visible(), self.core.index.visible());
        let (mut entries, mut unknown) = (0, 0);
        let mut late: Vec<(Vec<u8>, Seqno)> = Vec::new();
        self.snapshot.for_each(|key, seqno, _, differs| {
            match keys::kind_of(key) {
                Some(KeyKind::Group | KeyKind::Anchor) => {}
                // An older table has another entry of the same record.
                Some(_) if differs => unknown += 1,
                None => unknown += 1,
                Some(_) if seqno > now && late.len() < NAMED_MAX => late.push((key.to_vec(), seqno)),
                Some(_) if seqno > upto => {}
                Some(_) => entries += 1,
            }
            Ok(())
        })?;
        for (key, seqno) in late {
            // Entries of a batch that is being published are in memory only.
            if self.snapshot.is_in_table(&key, seqno)? {
                unknown += 1;
                self.name_extra(&key);
            }
        }
        let extra = unknown + u64::from(entries > self.matched) * (entries - self.matched.min(entries));
        if self.missed == 0 && extra == 0 {
            return Ok(None);
        }
        if extra > 0 {
            self.name_extras()?;
        }
        let count = |count: u64, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {many}"),
        };
        let missed =
            count(self.missed, "key does not lead to its record", "keys do not lead to their records");
        let extra = count(extra, "entry is that of no record", "entries are those of no record");
        let first = match self.named.is_empty() {
            true => String::new(),
            false => format!("; among them: {}", self.named.join(", ")),
        };
        let what = format!("{INDEX_DIFFERS}: {missed}, {extra}{first}; nothing is lost: {}", remedy(&tables));
        Ok(Some(VerifyProblem { run: None, what }))
    }

    /// Names the first entries that lead to a record of another key.
    fn name_extras(&mut self) -> Result<()> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let room = NAMED_MAX.saturating_sub(self.named.len());
        self.snapshot.for_each(|key, seqno, value, differs| {
            let is_checked = !matches!(keys::kind_of(key), Some(KeyKind::Group | KeyKind::Anchor));
            if found.len() < room && is_checked && (differs || !self.is_of_its_record(key, seqno, value)) {
                found.push(key.to_vec());
            }
            Ok(())
        })?;
        found.iter().for_each(|key| self.name_extra(key));
        Ok(())
    }

    fn name_extra(&mut self, key: &[u8]) {
        let name = self.describe(key);
        if self.named.len() < NAMED_MAX && !self.named.iter().any(|named| named.starts_with(&name)) {
            self.named.push(name);
        }
    }

    /// Whether an entry leads to a record of its key. Records do not hold their numbers, so the number is not
    /// compared.
    fn is_of_its_record(&self, key: &[u8], seqno: Seqno, value: IndexValue) -> bool {
        let place = keys::place(value);
        let Ok(segment) = self.core.segment(place.segment) else { return false };
        let mut entries = Vec::new();
        let read = segment.with_record(place, |record| {
            Ok(keys::derive_entries(&*self.core.schema, &record, seqno, place, &mut entries).is_ok())
        });
        read.is_ok_and(|is_parsed| is_parsed)
            && entries.iter().any(|entry| entry.key == key && entry.value == value)
    }

    /// A key of the index as readers know it.
    fn describe(&self, key: &[u8]) -> String {
        let namespace = |id: NamespaceId| match self.namespaces.get(&id) {
            Some(name) => format!("namespace {name:?}"),
            None => format!("namespace number {}", id.0),
        };
        match keys::kind_of(key) {
            Some(KeyKind::User(space)) => {
                let user = String::from_utf8_lossy(keys::user_part(key)).into_owned();
                match self.keyspaces.get(&space) {
                    Some(KeyspaceFacts { namespace: of, name, .. }) => {
                        format!("key {user:?} of keyspace {name:?} in {}", namespace(*of))
                    }
                    None => format!("key {user:?} of keyspace number {space}"),
                }
            }
            Some(KeyKind::Schema) => match (run_keys::name_of(key), run_keys::of(key)) {
                (Some((of, name)), _) => format!("run {name:?} of {}", namespace(of)),
                (_, Some(RunKey::Run(of, uid))) => format!("run number {} of {}", uid.0, namespace(of)),
                (_, Some(RunKey::Frame(uid, seq))) => format!("frame {seq} of run number {}", uid.0),
                _ => "a list of runs".to_owned(),
            },
            Some(KeyKind::Space) => "the definition of a namespace or keyspace".to_owned(),
            Some(KeyKind::Vectors) => "a vector".to_owned(),
            Some(KeyKind::Erasure) => "a statement of an erasure".to_owned(),
            Some(KeyKind::Group | KeyKind::Anchor) | None => "an unknown key".to_owned(),
        }
    }
}
