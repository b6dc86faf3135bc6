//! The keyspaces of a store that several processes write: changed here, or by the process that holds the store.
//!
//! [`SharedKeys`] hides the difference, as [`Shared`](super::Shared) does for runs. Each call that goes to another
//! process uses a connection of its own, so that an idle program keeps no holder from closing. If a holder goes away
//! before it replies, all changes are sent again to the next one. A change of keys has the same effect twice. A note
//! may then stand twice in its run, and a fork that was made is refused with `Conflict`.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use annals::{
    Durability, ErrorKind, Keyspace, Namespace, Options, Run, RunSpec, Store,
    kv::{Content, History, ScanRange},
};
use annals_proxy::destination::{ForkPoint, RemoteRun, RemoteSpace as _};
use annals_wire::resp::Reply;
use annals_wire::schema::recorder::RecorderCommand;
use annals_wire::words::{CommandArguments, invalid};

use crate::databases::DEADLINES;

use super::holder::{RETRY_PAUSE, StoreHolder};
use super::notes::{Note, NoteSpace, NotedRuns};
use super::remote::{JoinOutcome, RemoteStore};
use super::runs::SharedRun;
use super::shared::OPEN_TRIES;
use super::wire::{LinkError, LinkResult, LinkWire, bug};

/// Maximum number of changes of one command to another process.
const CHANGES_MAX: usize = 200;
/// A scan's page ends after this many bytes of keys and values.
const PAGE_BYTES: usize = 16 << 20;
/// Maximum number of keys of a page.
const PAGE_KEYS_MAX: usize = 10_000;

/// A change of a key or of a run that is made of notes.
#[derive(Debug, Clone)]
pub enum KeyChange {
    /// Sets a key, with vectors of its value by the ids of their embedders.
    Put { keyspace: String, key: Vec<u8>, value: Vec<u8>, vectors: Vec<(String, Vec<f32>)> },
    /// Deletes a key.
    Delete { keyspace: String, key: Vec<u8> },
    /// Adds a frame to a run, which begins with its first note. The frame's input is the id. Metadata is JSON or empty.
    Note { run: String, id: String, metadata: Vec<u8>, output: Vec<u8> },
    /// Forks a run at the note with this id.
    Fork { run: String, id: String, fork: String },
    /// Drops a run of notes.
    Drop { run: String },
}

/// Which keys a scan reads.
#[derive(Debug, Clone, Default)]
pub struct KeyRange {
    /// The first key.
    pub from: Vec<u8>,
    /// The key after the last one; empty: no end.
    pub to: Vec<u8>,
    /// Maximum number of keys.
    pub count: usize,
    /// From the last key to the first.
    pub reverse: bool,
    /// Values are not read.
    pub keys_only: bool,
}

impl KeyRange {
    /// A page of keys and values of a store that this process has open. At most 10,000 keys; a page ends after 16 MiB.
    ///
    /// # Errors
    /// As [`Keyspace::scan`].
    pub fn read(&self, space: &Namespace, keyspace: &str) -> annals::Result<KeyScan> {
        scan(space, keyspace, self)
    }
}

/// A page of a scan.
#[derive(Debug, Clone, Default)]
pub struct KeyScan {
    /// Keys and values; a scan of keys has no values.
    pub items: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// There may be more keys.
    pub more: bool,
}

/// The keyspaces of a store, wherever it is held.
#[derive(Debug)]
pub struct SharedKeys(Arc<StoreHolder>);

impl SharedKeys {
    /// Opens a store and serves it to other processes; if another process holds it, later calls go to that one.
    ///
    /// # Errors
    /// As [`Store::open_with`], except `Locked`.
    pub fn open(root: &Path, options: &Options) -> annals::Result<Self> {
        let keys = Self(Arc::new(StoreHolder::new(root, options)));
        match keys.0.open() {
            Err(error) if error.kind() != ErrorKind::Locked => Err(error),
            _ => Ok(keys),
        }
    }

    /// The store, if this process holds it.
    #[must_use]
    pub fn local(&self) -> Option<Store> {
        self.0.store()
    }

    /// The store, held by this process.
    ///
    /// # Errors
    /// As [`Store::open_with`]: `Locked` with the process that holds it.
    pub fn hold(&self) -> annals::Result<Store> {
        self.local().map_or_else(|| self.0.open(), Ok)
    }

    /// Applies changes; they are on disk when this returns. Up to 200 changes of keys happen together; more are applied
    /// in their order.
    ///
    /// # Errors
    /// `Invalid` for a keyspace that belongs to the daemon's databases; `Locked` if a process holds the store without
    /// serving it; as [`annals::KvBatch::commit`].
    pub fn write(&self, namespace: &str, changes: Vec<KeyChange>) -> annals::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if let Some(store) = self.local() {
            let space = &store.namespace(namespace)?;
            return apply(NoteSpace { name: namespace, namespace: space }, self.0.notes(), changes);
        }
        for some in changes.chunks(CHANGES_MAX) {
            let local = |space: &Namespace, notes: &NotedRuns| {
                apply(NoteSpace { name: namespace, namespace: space }, notes, some.to_vec())
            };
            self.with_holder(namespace, local, |wire| wire.ask(&write_words(some)).map(drop))?;
        }
        Ok(())
    }

    /// A key's value.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; `Locked`.
    pub fn get(&self, namespace: &str, keyspace: &str, key: &[u8]) -> annals::Result<Option<Vec<u8>>> {
        let words = [RecorderCommand::GetKey.name().as_bytes().to_vec(), keyspace.into(), key.to_vec()];
        self.with_holder(
            namespace,
            |space, _| find(space, keyspace)?.map_or(Ok(None), |keyspace| keyspace.get(key)),
            |wire| match wire.ask(&words)? {
                Reply::Bulk(value) => Ok(Some(value)),
                Reply::Null => Ok(None),
                _ => Err(LinkError::Refused(bug("a value is no string"))),
            },
        )
    }

    /// Whether a key has this value. Long values are not read if this process holds the store.
    ///
    /// # Errors
    /// As [`Keyspace::has_value`]; `Locked`.
    pub fn has_value(
        &self,
        namespace: &str,
        keyspace: &str,
        key: &[u8],
        value: &[u8],
    ) -> annals::Result<bool> {
        if let Some(store) = self.local() {
            let found = find(&store.namespace(namespace)?, keyspace)?;
            return found.map_or(Ok(false), |keyspace| keyspace.has_value(key, value));
        }
        Ok(self.get(namespace, keyspace, key)?.is_some_and(|found| found == value))
    }

    /// A page of keys and values.
    ///
    /// # Errors
    /// As [`Keyspace::scan`]; `Locked`.
    pub fn scan(&self, namespace: &str, keyspace: &str, range: &KeyRange) -> annals::Result<KeyScan> {
        self.with_holder(
            namespace,
            |space, _| scan(space, keyspace, range),
            |wire| decode_scan(wire.ask(&scan_words(keyspace, range))?, range.keys_only),
        )
    }

    /// Begins a run, here or through the process that holds the store.
    ///
    /// # Errors
    /// As [`Namespace::begin_run`]; `Locked` if a process holds the store without serving it.
    pub fn begin_run(&self, namespace: &str, spec: &RunSpec) -> annals::Result<SharedRun> {
        let local = |space: &Namespace| space.begin_run(spec.clone()).map(Arc::new);
        self.open_run(namespace, local, |remote| remote.begin_run(spec))
    }

    /// Begins a run that shares the frames of another run, here or through the process that holds the store.
    ///
    /// # Errors
    /// As [`Namespace::fork`]; `Locked` if a process holds the store without serving it.
    pub fn fork_run(
        &self,
        namespace: &str,
        from: ForkPoint<'_>,
        spec: &RunSpec,
    ) -> annals::Result<SharedRun> {
        let local = |space: &Namespace| space.fork(from.run, from.at, from.edit, spec.clone()).map(Arc::new);
        self.open_run(namespace, local, |remote| remote.fork_run(from, spec))
    }

    /// Takes up a run that is open or abandoned, here or through the process that holds the store.
    ///
    /// # Errors
    /// As [`Namespace::resume_run`]; `Locked` if a process holds the store without serving it.
    pub fn resume_run(&self, namespace: &str, name: &str) -> annals::Result<SharedRun> {
        let local = |space: &Namespace| space.resume_run(name).map(|resumed| resumed.run);
        self.open_run(namespace, local, |remote| remote.resume_run(name))
    }

    fn open_run(
        &self,
        namespace: &str,
        local: impl Fn(&Namespace) -> annals::Result<Arc<Run>>,
        remote: impl Fn(&RemoteStore) -> annals::Result<Arc<dyn RemoteRun>>,
    ) -> annals::Result<SharedRun> {
        let mut last = None;
        for _ in 0..OPEN_TRIES {
            if let Some(store) = self.local() {
                return local(&store.namespace(namespace)?).map(SharedRun::Local);
            }
            if let JoinOutcome::Joined(joined) = RemoteStore::join(&self.0, namespace)? {
                return remote(&joined).map(SharedRun::Remote);
            }
            match self.0.open() {
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::Locked => last = Some(error),
                Err(error) => return Err(error),
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Err(last.unwrap_or_else(|| bug("a store is neither held nor free")))
    }

    /// Runs `local` if this process holds the store, else a command in the process that holds it: returns its reply
    /// as text. If that process goes away before it replies, the command goes to the next one.
    ///
    /// # Errors
    /// Those of `local` and of the command; `Locked` if a process holds the store without serving it.
    pub fn run_or_ask(
        &self,
        namespace: &str,
        local: impl Fn(&Namespace) -> annals::Result<Option<String>>,
        words: &[&[u8]],
    ) -> annals::Result<Option<String>> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        self.with_holder(
            namespace,
            |space, _| local(space),
            |wire| match wire.ask(&words)? {
                Reply::Bulk(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
                Reply::Null => Ok(None),
                _ => Ok(Some(String::new())),
            },
        )
    }

    /// Closes the store if this process holds it.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(&self) -> annals::Result<()> {
        self.0.close().map(drop)
    }

    fn with_holder<T>(
        &self,
        namespace: &str,
        local: impl Fn(&Namespace, &NotedRuns) -> annals::Result<T>,
        remote: impl Fn(&mut LinkWire) -> LinkResult<T>,
    ) -> annals::Result<T> {
        let mut last = None;
        for _ in 0..OPEN_TRIES {
            if let Some(store) = self.local() {
                return local(&store.namespace(namespace)?, self.0.notes());
            }
            if let Some(stream) = self.0.connect() {
                match LinkWire::enter(stream, namespace).and_then(|mut wire| remote(&mut wire)) {
                    Ok(done) => return Ok(done),
                    Err(LinkError::Refused(error)) => return Err(error),
                    Err(LinkError::Silent(why)) => {
                        let message = format!("the process that holds the store does not serve it: {why}");
                        return Err(annals::Error::new(ErrorKind::Locked, message));
                    }
                    Err(LinkError::Lost(_)) => {}
                }
            }
            match self.0.open() {
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::Locked => last = Some(error),
                Err(error) => return Err(error),
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Err(last.unwrap_or_else(|| bug("a store is neither held nor free")))
    }
}

/// A key to write: its value with vectors, or `None` to delete it.
type KeptKey = (Keyspace, Vec<u8>, Option<(Content, Vec<(String, Vec<f32>)>)>);

fn apply(space: NoteSpace<'_>, notes: &NotedRuns, changes: Vec<KeyChange>) -> annals::Result<()> {
    let (mut keys, mut noted) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            KeyChange::Put { keyspace, key, value, vectors } => {
                keys.push((made(space.namespace, &keyspace)?, key, Some((Content::from(value), vectors))));
            }
            KeyChange::Delete { keyspace, key } => keys.push((made(space.namespace, &keyspace)?, key, None)),
            KeyChange::Note { run, id, metadata, output } => noted.push(Note { run, id, metadata, output }),
            // These are no part of a batch. They see the changes before them.
            KeyChange::Fork { run, id, fork } => {
                write_gathered(space, notes, &mut keys, &mut noted)?;
                notes.fork(space, &run, &id, &fork)?;
            }
            KeyChange::Drop { run } => {
                write_gathered(space, notes, &mut keys, &mut noted)?;
                notes.drop_run(space, &run)?;
            }
        }
    }
    write_gathered(space, notes, &mut keys, &mut noted)
}

/// Writes and empties what was gathered.
fn write_gathered(
    space: NoteSpace<'_>,
    notes: &NotedRuns,
    keys: &mut Vec<KeptKey>,
    noted: &mut Vec<Note>,
) -> annals::Result<()> {
    let (keys, noted) = (std::mem::take(keys), std::mem::take(noted));
    let batch = || {
        let mut batch = space.namespace.batch();
        for (keyspace, key, value) in &keys {
            match value {
                Some((value, vectors)) => {
                    let vectors: Vec<_> =
                        vectors.iter().map(|(id, vector)| (id.as_str(), vector.as_slice())).collect();
                    batch.put_embedded(keyspace, key, value.clone(), &vectors)
                }
                None => batch.delete(keyspace, key),
            };
        }
        batch
    };
    // The keys are in one batch with the first note. All notes have one write and one sync.
    let mut queued = Vec::new();
    if noted.is_empty() && !keys.is_empty() {
        queued.push(batch().submit_inline(Durability::Disk)?);
    }
    for (place, note) in noted.iter().enumerate() {
        let with_keys = || if place == 0 { batch() } else { space.namespace.batch() };
        queued.push(notes.note(space, note, with_keys)?);
    }
    queued.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
}

/// Opens a keyspace to write it.
fn made(space: &Namespace, keyspace: &str) -> annals::Result<Keyspace> {
    if crate::forgetting::database_number(keyspace).is_some() || keyspace == DEADLINES {
        let why = format!("keyspace {keyspace:?} belongs to the daemon's databases: choose another name");
        return Err(invalid(why));
    }
    match space.find_keyspace(keyspace)? {
        Some(found) => Ok(found),
        None => space.keyspace(keyspace, History::Latest),
    }
}

fn find(space: &Namespace, keyspace: &str) -> annals::Result<Option<Keyspace>> {
    space.find_keyspace(keyspace)
}

fn scan(space: &Namespace, keyspace: &str, range: &KeyRange) -> annals::Result<KeyScan> {
    let Some(keyspace) = find(space, keyspace)? else { return Ok(KeyScan::default()) };
    let to = if range.to.is_empty() { Bound::Unbounded } else { Bound::Excluded(range.to.as_slice()) };
    let mut wanted = ScanRange::between(Bound::Included(range.from.as_slice()), to);
    if range.reverse {
        wanted = wanted.reverse();
    }
    let (count, mut bytes) = (range.count.min(PAGE_KEYS_MAX), 0);
    let mut page = KeyScan::default();
    let mut take = |key: Vec<u8>, value: Option<Vec<u8>>| {
        bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        page.items.push((key, value));
        page.more = page.items.len() >= count || bytes >= PAGE_BYTES;
        page.more
    };
    if range.keys_only {
        for key in keyspace.scan(wanted).keys() {
            if take(key?, None) {
                break;
            }
        }
    } else {
        for item in keyspace.scan(wanted) {
            let (key, value) = item?;
            if take(key, Some(value)) {
                break;
            }
        }
    }
    Ok(page)
}

fn write_words(changes: &[KeyChange]) -> Vec<Vec<u8>> {
    let mut words = vec![RecorderCommand::WriteKeys.name().as_bytes().to_vec()];
    let mut add = |name: &str, rest: &[&[u8]]| {
        words.push(name.as_bytes().to_vec());
        words.extend(rest.iter().map(|word| word.to_vec()));
    };
    for change in changes {
        match change {
            KeyChange::Put { keyspace, key, value, vectors } => {
                add("PUT", &[keyspace.as_bytes(), key, value]);
                for (embedder, vector) in vectors {
                    let vector: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                    add("EMBED", &[embedder.as_bytes(), &vector]);
                }
            }
            KeyChange::Delete { keyspace, key } => add("DELETE", &[keyspace.as_bytes(), key]),
            KeyChange::Note { run, id, metadata, output } => {
                add("NOTE", &[run.as_bytes(), id.as_bytes(), metadata, output]);
            }
            KeyChange::Fork { run, id, fork } => {
                add("FORK", &[run.as_bytes(), id.as_bytes(), fork.as_bytes()]);
            }
            KeyChange::Drop { run } => add("DROP", &[run.as_bytes()]),
        }
    }
    words
}

fn scan_words(keyspace: &str, range: &KeyRange) -> Vec<Vec<u8>> {
    let mut words = vec![
        RecorderCommand::ScanKeys.name().as_bytes().to_vec(),
        keyspace.into(),
        range.from.clone(),
        range.to.clone(),
        range.count.to_string().into_bytes(),
    ];
    words.extend(range.reverse.then(|| b"REVERSE".to_vec()));
    words.extend(range.keys_only.then(|| b"KEYS".to_vec()));
    words
}

fn decode_scan(reply: Reply, keys_only: bool) -> LinkResult<KeyScan> {
    let malformed = || LinkError::Refused(bug("a page of keys is malformed"));
    let Reply::Array(items) = reply else { return Err(malformed()) };
    let mut items = items.into_iter();
    let Some(Reply::Integer(more)) = items.next() else { return Err(malformed()) };
    let mut page = KeyScan { items: Vec::new(), more: more != 0 };
    while let Some(key) = items.next() {
        let Reply::Bulk(key) = key else { return Err(malformed()) };
        let value = match (keys_only, keys_only.then_some(Reply::Null).or_else(|| items.next())) {
            (true, _) => None,
            (false, Some(Reply::Bulk(value))) => Some(value),
            _ => return Err(malformed()),
        };
        page.items.push((key, value));
    }
    Ok(page)
}

pub(super) fn answer_write(
    space: NoteSpace<'_>,
    notes: &NotedRuns,
    arguments: &mut CommandArguments,
) -> annals::Result<Reply> {
    let mut changes = Vec::new();
    while let Some(kind) = arguments.option() {
        changes.push(match kind.as_str() {
            "PUT" => KeyChange::Put {
                keyspace: arguments.text("a keyspace")?,
                key: arguments.bytes("a key")?,
                value: arguments.bytes("a value")?,
                vectors: Vec::new(),
            },
            "EMBED" => {
                let Some(KeyChange::Put { vectors, .. }) = changes.last_mut() else {
                    return Err(invalid("EMBED must follow the PUT of its value".to_owned()));
                };
                vectors.push((arguments.text("an embedder")?, parse_vector(&arguments.bytes("a vector")?)?));
                continue;
            }
            "DELETE" => {
                KeyChange::Delete { keyspace: arguments.text("a keyspace")?, key: arguments.bytes("a key")? }
            }
            "NOTE" => KeyChange::Note {
                run: arguments.text("a run's name")?,
                id: arguments.text("an id")?,
                metadata: arguments.bytes("metadata")?,
                output: arguments.bytes("an output")?,
            },
            "FORK" => KeyChange::Fork {
                run: arguments.text("a run's name")?,
                id: arguments.text("an id")?,
                fork: arguments.text("a fork's name")?,
            },
            "DROP" => KeyChange::Drop { run: arguments.text("a run's name")? },
            _ => return Err(invalid(format!("there is no change {kind:?} of keys"))),
        });
    }
    apply(space, notes, changes)?;
    Ok(Reply::OK)
}

/// Numbers of 32 bits, little-endian.
fn parse_vector(bytes: &[u8]) -> annals::Result<Vec<f32>> {
    let (numbers, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(invalid("a vector has 4 bytes for each number".to_owned()));
    }
    Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

pub(super) fn answer_get(space: &Namespace, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let (keyspace, key) = (arguments.text("a keyspace")?, arguments.bytes("a key")?);
    arguments.end()?;
    let found = find(space, &keyspace)?.map_or(Ok(None), |keyspace| keyspace.get(&key))?;
    Ok(found.map_or(Reply::Null, Reply::Bulk))
}

pub(super) fn answer_scan(space: &Namespace, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let keyspace = arguments.text("a keyspace")?;
    let (from, to) = (arguments.bytes("the first key")?, arguments.bytes("the end")?);
    let mut range =
        KeyRange { from, to, count: arguments.parsed("a count")?, reverse: false, keys_only: false };
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "REVERSE" => range.reverse = true,
            "KEYS" => range.keys_only = true,
            _ => return Err(invalid(format!("there is no option {option:?} here"))),
        }
    }
    let page = scan(space, &keyspace, &range)?;
    let mut items = vec![Reply::Integer(page.more.into())];
    for (key, value) in page.items {
        items.push(Reply::Bulk(key));
        items.extend(value.map(Reply::Bulk));
    }
    Ok(Reply::Array(items))
}
