//! Sixteen databases of keys over keyspaces of the engine, and when keys end.
//!
//! Database `n` is the keyspace `dbN` of the namespace: its values are the engine's own. A deadline stands in the keyspace `annals.deadlines`, under the
//! database's number as a byte and the key, as milliseconds since 1970 in eight bytes, little-endian, and changes in the same batch as its value. Whether one
//! is past the engine says (`annals::is_due`), as of everything that has a deadline.
//!
//! The engine shows what is as durable as was asked. What was handed over and is not shown yet is kept here (`pending`) until the settler has seen
//! its ticket, so that the next one reads it; and whoever reads it waits for it before replying. Few batches of keys are on their way at a time, and what turns
//! write meanwhile is the next one. Batches are handed over under the lock, so the settler sees their tickets in the order in which they become durable. Then
//! it is what [`Values`] knows, which reads ask next, and the store last.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::io::Io;
use annals::{Content, Durability, History, Keyspace, Namespace, ScanRange, StoredBlob, Ticket};
use foldhash::quality::RandomState;
use tokio::sync::{Notify, mpsc, oneshot};

use super::values::Values;

/// How many databases there are.
pub(super) const DATABASES: u8 = 16;
/// The longest key: one byte less than the engine's, which a deadline's key needs.
pub(super) const KEY_BYTES_MAX: usize = annals::KEY_BYTES_MAX - 1;
/// Batches of keys on their way at a time.
const UNDER_WAY_MAX: usize = 4;
/// So many bytes are handed over however many are on their way.
const GATHERED_BYTES_MAX: usize = 8 << 20;
const DEADLINES: &str = "annals.deadlines";

/// A key of a database.
pub(super) type Key = (u8, Vec<u8>);

/// A value, and when it ends.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Arc<Vec<u8>>,
    /// The same, where the store has it already.
    pub(super) stored: Option<StoredBlob>,
    /// In milliseconds since 1970.
    pub(super) deadline: Option<u64>,
}

/// Whether all that a turn rests on is on disk; why not, where it is not.
pub(super) type Settled = Result<(), String>;

/// What has to come before anything is replied, if something has to.
pub(super) type Waits = Option<oneshot::Receiver<Settled>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Databases {
    space: Namespace,
    io: Arc<dyn Io>,
    state: Mutex<State>,
    settling: mpsc::UnboundedSender<Settling>,
    /// The first turn of a batch has something to write.
    gathering: Notify,
}

#[derive(Debug)]
struct State {
    spaces: [Option<Keyspace>; DATABASES as usize],
    deadlines: Option<Keyspace>,
    /// Whether there may be a deadline.
    any_deadline: bool,
    pending: HashMap<Key, Pending, RandomState>,
    /// What keys hold of which nothing is pending.
    values: Values,
    /// Reads that found a value there, and that asked the store.
    hits: u64,
    misses: u64,
    /// Batches of keys on their way to the disk; what is written meanwhile is gathered. Few batches cost the writer and the settler little; some are needed
    /// so that the disk, the writer and those who are answered have something to do at once.
    under_way: usize,
    gathered: Gathered,
}

impl State {
    fn gather(&mut self, changes: Vec<Change>, done: oneshot::Sender<Settled>) {
        let batch = self.gathered.number;
        for (at, change) in (self.gathered.changes.len()..).zip(&changes) {
            self.gathered.bytes +=
                change.key.1.len() + change.entry.as_ref().map_or(0, |entry| entry.value.len());
            self.pending.insert(change.key.clone(), Pending { entry: change.entry.clone(), batch, at });
        }
        self.gathered.changes.extend(changes);
        self.gathered.done.push(done);
    }
}

#[derive(Debug)]
struct Pending {
    entry: Option<Entry>,
    /// The batch that it is in, and which of its changes it is.
    batch: u64,
    at: usize,
}

/// What was handed over, and who waits for it and for all before it.
#[derive(Debug)]
pub(super) struct Settling {
    tickets: Vec<Ticket>,
    /// The batch of keys that the last ticket is of, or why there is none.
    batch: Option<(Gathered, Option<String>)>,
    done: Vec<oneshot::Sender<Settled>>,
}

/// What turns have written while a batch was on its way: the next one.
#[derive(Debug, Default)]
struct Gathered {
    /// In the order in which they were made; a key may be there more than once.
    changes: Vec<Change>,
    bytes: usize,
    /// Who waits for them.
    done: Vec<oneshot::Sender<Settled>>,
    number: u64,
}

/// A key's new value, or its end.
#[derive(Debug)]
struct Change {
    keyspace: Keyspace,
    key: Key,
    entry: Option<Entry>,
    /// What becomes of its deadline, where something does.
    deadline: Option<(Keyspace, Option<u64>)>,
}

impl Databases {
    /// Those of a namespace. What is handed over is settled by [`Databases::settle`], which the other half is for.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn open(
        space: Namespace,
        io: Arc<dyn Io>,
    ) -> annals::Result<(Arc<Self>, mpsc::UnboundedReceiver<Settling>)> {
        let mut spaces = [const { None }; DATABASES as usize];
        for (number, keyspace) in spaces.iter_mut().enumerate() {
            *keyspace = space.find_keyspace(&format!("db{number}"))?;
        }
        let deadlines = space.find_keyspace(DEADLINES)?;
        let any_deadline = deadlines.as_ref().is_some_and(|all| all.scan(ScanRange::all()).next().is_some());
        let (pending, values) = (HashMap::default(), Values::new());
        let (hits, misses) = (0, 0);
        let state = State {
            spaces,
            deadlines,
            any_deadline,
            pending,
            values,
            hits,
            misses,
            under_way: 0,
            gathered: Gathered::default(),
        };
        // Bounded by what connections may have under way: one turn each.
        let (settling, settled) = mpsc::unbounded_channel();
        Ok((
            Arc::new(Self { space, io, state: Mutex::new(state), settling, gathering: Notify::new() }),
            settled,
        ))
    }

    /// Hands over what is gathered and waits for batches in their order. Ends with the last handle.
    pub(super) async fn settle(self: Arc<Self>, settling: mpsc::UnboundedReceiver<Settling>) {
        tokio::join!(self.hand_over_in_turn(), self.tell(settling));
    }

    /// Hands over what was gathered once all who are ready now have had their turn.
    async fn hand_over_in_turn(&self) {
        loop {
            self.gathering.notified().await;
            tokio::task::yield_now().await;
            let mut state = self.lock();
            if state.under_way < UNDER_WAY_MAX && !state.gathered.done.is_empty() {
                self.hand_over(&mut state);
            }
        }
    }

    /// Waits for batches in their order and tells those who wait.
    async fn tell(&self, mut settling: mpsc::UnboundedReceiver<Settling>) {
        let mut failed = None;
        while let Some(Settling { tickets, batch, done }) = settling.recv().await {
            for ticket in tickets {
                if let Err(error) = ticket.await {
                    // The writer is poisoned by it: nothing after it is written either.
                    failed.get_or_insert_with(|| error.to_string());
                }
            }
            let mut refused = None;
            if let Some((gathered, why)) = batch {
                refused = why;
                let holds = failed.is_none() && refused.is_none();
                let mut state = self.lock();
                for (at, Change { key, entry, .. }) in gathered.changes.into_iter().enumerate() {
                    match state.pending.get(&key) {
                        // Something newer comes, of this batch or of a later one.
                        Some(pending) if (pending.batch, pending.at) != (gathered.number, at) => {}
                        Some(_) if holds => {
                            state.pending.remove(&key);
                            state.values.put(key, entry);
                        }
                        // A later batch had taken its place and was refused: what is at hand may be older than this.
                        _ => {
                            state.pending.remove(&key);
                            state.values.forget(&key);
                        }
                    }
                }
                state.under_way -= 1;
                if !state.gathered.done.is_empty() {
                    self.hand_over(&mut state);
                }
            }
            let settled = failed.clone().or(refused).map_or(Ok(()), Err);
            for done in done {
                // Who went away meanwhile does not want to know.
                let _ = done.send(settled.clone());
            }
        }
    }

    /// Hands over what was gathered, as one batch.
    fn hand_over(&self, state: &mut State) {
        let number = state.gathered.number + 1;
        let mut gathered = std::mem::replace(&mut state.gathered, Gathered { number, ..Gathered::default() });
        let done = std::mem::take(&mut gathered.done);
        state.under_way += 1;
        let mut batch = self.space.batch();
        for Change { keyspace, key, entry, deadline } in &gathered.changes {
            match entry {
                Some(Entry { stored: Some(blob), .. }) => batch.put(keyspace, &key.1, blob.clone()),
                Some(entry) => batch.put(keyspace, &key.1, Content::Bytes(entry.value.clone())),
                None => batch.delete(keyspace, &key.1),
            };
            match deadline {
                Some((deadlines, Some(ms))) => {
                    batch.put(deadlines, &deadline_key(key), ms.to_le_bytes().to_vec());
                }
                Some((deadlines, None)) => {
                    batch.delete(deadlines, &deadline_key(key));
                }
                None => {}
            }
        }
        let (tickets, why) = match batch.submit_with(Durability::Disk) {
            Ok(ticket) => (vec![ticket], None),
            Err(error) => {
                // Nobody is to read what will not be.
                for Change { key, .. } in &gathered.changes {
                    if state.pending.get(key).is_some_and(|pending| pending.batch == gathered.number) {
                        state.pending.remove(key);
                    }
                }
                (Vec::new(), Some(error.to_string()))
            }
        };
        let _ = self.settling.send(Settling { tickets, batch: Some((gathered, why)), done });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The system behind the store.
    pub(super) fn io(&self) -> &Arc<dyn Io> {
        &self.io
    }

    /// The keyspace of a database, if anything was ever put there.
    pub(super) fn keyspace_of(&self, database: u8) -> Option<Keyspace> {
        self.lock().spaces.get(usize::from(database)).cloned().flatten()
    }

    /// Reads that found a value at hand, and that asked the store.
    pub(super) fn reads(&self) -> (u64, u64) {
        let state = self.lock();
        (state.hits, state.misses)
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    /// Ends keys whose deadline is past: at most so many, found from this key of the deadlines on. Gives where to go on, and what to wait for.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn sweep(&self, from: &[u8], most: usize) -> annals::Result<(Option<Vec<u8>>, Waits)> {
        let mut work = Work::new(self);
        if !work.state().any_deadline {
            return Ok((None, None));
        }
        let Some(deadlines) = work.state().deadlines.clone() else { return Ok((None, None)) };
        let (mut seen, mut last) = (0, None);
        for found in
            deadlines.scan(ScanRange::between(std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded))
        {
            let (key, _) = found?;
            if let Some((database, name)) = key.split_first() {
                work.get(*database, name)?;
            }
            seen += 1;
            if seen == most {
                last = Some(key);
                break;
            }
        }
        Ok((last, work.commit()?))
    }
}

/// What a turn does: reads that see what it did before, and writes that become one batch. Everybody else waits from its first look at a key
/// until it is committed or dropped.
pub(super) struct Work<'a> {
    databases: &'a Databases,
    state: Option<MutexGuard<'a, State>>,
    staged: BTreeMap<Key, Option<Entry>>,
    staged_bytes: usize,
    now_ms: u64,
    /// Something was read that is not on disk yet.
    rests: bool,
    /// What was handed over already.
    tickets: Vec<Ticket>,
}

impl<'a> Work<'a> {
    pub(super) fn new(databases: &'a Databases) -> Self {
        let now_ms = databases.now_ns() / 1_000_000;
        Self {
            databases,
            state: None,
            staged: BTreeMap::new(),
            staged_bytes: 0,
            now_ms,
            rests: false,
            tickets: Vec::new(),
        }
    }

    /// Milliseconds since 1970, the same for the whole turn.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether a deadline is past, in milliseconds since 1970. Never by a clock that stands far ahead of what the store holds.
    fn is_due(&self, deadline: u64) -> bool {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        self.databases.space.is_due(ns(deadline), ns(self.now_ms))
    }

    /// Bytes that are to be written.
    pub(super) fn staged_bytes(&self) -> usize {
        self.staged_bytes
    }

    /// The namespace that the databases are in.
    pub(super) fn space(&self) -> &'a Namespace {
        &self.databases.space
    }

    /// Keeps everybody else waiting from now on.
    pub(super) fn hold(&mut self) {
        self.state();
    }

    /// Something was handed over that is to be waited for, too. Where [`Work::hold`] did not come first, others may have handed over meanwhile:
    /// then one of the two is awaited a little longer than it takes.
    pub(super) fn rest_on(&mut self, ticket: Ticket) {
        self.tickets.push(ticket);
    }

    /// Whether something was handed over.
    pub(super) fn has_handed_over(&self) -> bool {
        !self.tickets.is_empty()
    }

    /// Whether something was written, handed over or not.
    pub(super) fn has_written(&self) -> bool {
        self.has_handed_over() || !self.staged.is_empty()
    }

    fn state(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.databases.lock())
    }

    /// What a key holds. One whose deadline is past is ended by this.
    ///
    /// # Errors
    /// Those of the store; `Invalid` for a key that is too long.
    pub(super) fn get(&mut self, database: u8, key: &[u8]) -> annals::Result<Option<Entry>> {
        check(key)?;
        let found = match self.at_hand(database, key) {
            Some(entry) => Some(entry),
            None => self.found((database, key.to_vec()))?,
        };
        match found.as_ref().and_then(|entry| entry.deadline) {
            Some(deadline) if self.is_due(deadline) => {
                self.stage((database, key.to_vec()), None);
                Ok(None)
            }
            _ => Ok(found),
        }
    }

    /// What a key is known to hold, where nothing is on its way that could be of it.
    fn at_hand(&mut self, database: u8, key: &[u8]) -> Option<Entry> {
        let is_quiet = self.staged.is_empty();
        let state = self.state();
        let found = (is_quiet && state.pending.is_empty()).then(|| state.values.get(database, key)).flatten();
        state.hits += u64::from(found.is_some());
        found
    }

    fn found(&mut self, name: Key) -> annals::Result<Option<Entry>> {
        match self.staged.get(&name) {
            Some(staged) => Ok(staged.clone()),
            None => self.beneath(name),
        }
    }

    /// What a key held before this turn.
    fn beneath(&mut self, name: Key) -> annals::Result<Option<Entry>> {
        if let Some(pending) = self.state().pending.get(&name) {
            let entry = pending.entry.clone();
            self.rests = true;
            return Ok(entry);
        }
        let state = self.state();
        if let Some(entry) = state.values.get(name.0, &name.1) {
            state.hits += 1;
            return Ok(Some(entry));
        }
        state.misses += 1;
        let Some(keyspace) = self.keyspace(name.0) else { return Ok(None) };
        let Some(value) = keyspace.get(&name.1)? else { return Ok(None) };
        let entry = Entry { value: Arc::new(value), stored: None, deadline: self.deadline(&name)? };
        self.state().values.put(name, Some(entry.clone()));
        Ok(Some(entry))
    }

    fn keyspace(&mut self, database: u8) -> Option<Keyspace> {
        self.state().spaces.get(usize::from(database)).cloned().flatten()
    }

    /// The deadline that is on disk.
    fn deadline(&mut self, name: &Key) -> annals::Result<Option<u64>> {
        let state = self.state();
        let Some(deadlines) = state.deadlines.as_ref().filter(|_| state.any_deadline) else {
            return Ok(None);
        };
        let kept = deadlines.get(&deadline_key(name))?;
        Ok(kept.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes))
    }

    /// Sets what a key holds.
    ///
    /// # Errors
    /// `Invalid` for a key that is too long.
    pub(super) fn put(&mut self, database: u8, key: &[u8], entry: Entry) -> annals::Result<()> {
        check(key)?;
        self.stage((database, key.to_vec()), Some(entry));
        Ok(())
    }

    /// Ends a key; says whether it was there.
    ///
    /// # Errors
    /// As [`Work::get`].
    pub(super) fn delete(&mut self, database: u8, key: &[u8]) -> annals::Result<bool> {
        let was = self.get(database, key)?.is_some();
        if was {
            self.stage((database, key.to_vec()), None);
        }
        Ok(was)
    }

    fn stage(&mut self, name: Key, entry: Option<Entry>) {
        // Nobody else may come between a look and what follows from it.
        self.state();
        self.staged_bytes += name.1.len() + entry.as_ref().map_or(0, |entry| entry.value.len()) + 64;
        self.staged.insert(name, entry);
    }

    /// Keys of a database after this one, in order: at most so many that are there.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn keys(
        &mut self,
        database: u8,
        after: Option<&[u8]>,
        most: usize,
    ) -> annals::Result<Vec<Vec<u8>>> {
        let mut over: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
        let is_after = |key: &[u8]| after.is_none_or(|after| key > after);
        for ((of, key), pending) in &self.state().pending {
            if *of == database && is_after(key) {
                over.insert(key.clone(), pending.entry.is_some());
            }
        }
        self.rests |= !over.is_empty();
        for ((of, key), entry) in &self.staged {
            if *of == database && is_after(key) {
                over.insert(key.clone(), entry.is_some());
            }
        }
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = ScanRange::between(from, std::ops::Bound::Unbounded);
        let mut under =
            self.keyspace(database).map(|keyspace| keyspace.scan(range).keys()).into_iter().flatten();
        let mut over = over.into_iter().peekable();
        let mut below: Option<Vec<u8>> = under.next().transpose()?;
        let mut found = Vec::new();
        while found.len() < most {
            let key = match (&below, over.peek()) {
                (None, None) => break,
                (Some(key), Some((upper, _))) if key < upper => below.take(),
                (Some(_), None) => below.take(),
                (key, Some((upper, _))) => {
                    if key.as_ref() == Some(upper) {
                        below = None;
                    }
                    over.next().and_then(|(key, is_there)| is_there.then_some(key))
                }
            };
            if below.is_none() {
                below = under.next().transpose()?;
            }
            let Some(key) = key else { continue };
            if !self.state().any_deadline || self.get(database, &key)?.is_some() {
                found.push(key);
            }
        }
        Ok(found)
    }

    /// Hands over what was written, and lets the next one in. Gives what to wait for before anything is replied.
    ///
    /// # Errors
    /// Those of the store: nothing of it happened then.
    pub(super) fn commit(mut self) -> annals::Result<Waits> {
        if self.staged.is_empty() && !self.rests && self.tickets.is_empty() {
            return Ok(None);
        }
        let (done, settled) = oneshot::channel();
        let staged = std::mem::take(&mut self.staged);
        self.hold();
        let mut changes = Vec::with_capacity(staged.len());
        for (key, entry) in staged {
            let keyspace = self.keyspace_for(key.0, entry.is_some())?;
            // Nothing was ever there.
            let Some(keyspace) = keyspace else { continue };
            let deadline = self.deadline_after(&key, entry.as_ref())?;
            changes.push(Change { keyspace, key, entry, deadline });
        }
        let databases = self.databases;
        // Sent under the lock, so that the order is that of the log. Nobody listens only once the daemon has ended.
        let tickets = std::mem::take(&mut self.tickets);
        if changes.is_empty() && self.state().gathered.changes.is_empty() {
            let _ = databases.settling.send(Settling { tickets, batch: None, done: vec![done] });
            return Ok(Some(settled));
        }
        if !tickets.is_empty() {
            let _ = databases.settling.send(Settling { tickets, batch: None, done: Vec::new() });
        }
        self.state().gather(changes, done);
        let state = self.state();
        if state.gathered.bytes >= GATHERED_BYTES_MAX {
            databases.hand_over(state);
        } else if state.under_way < UNDER_WAY_MAX && state.gathered.done.len() == 1 {
            // Whoever has something to write in the same moment writes with it.
            databases.gathering.notify_one();
        }
        Ok(Some(settled))
    }

    /// The keyspace of a database, which is made where something is to be put there.
    fn keyspace_for(&mut self, database: u8, puts: bool) -> annals::Result<Option<Keyspace>> {
        let known = self.keyspace(database);
        if known.is_some() || !puts {
            return Ok(known);
        }
        let made = self.databases.space.keyspace(&format!("db{database}"), History::Latest)?;
        if let Some(place) = self.state().spaces.get_mut(usize::from(database)) {
            *place = Some(made.clone());
        }
        Ok(Some(made))
    }

    /// What becomes of a key's deadline.
    fn deadline_after(
        &mut self,
        key: &Key,
        entry: Option<&Entry>,
    ) -> annals::Result<Option<(Keyspace, Option<u64>)>> {
        let deadline = entry.and_then(|entry| entry.deadline);
        if deadline.is_none() && !self.had_deadline(key)? {
            return Ok(None);
        }
        let deadlines = match self.state().deadlines.clone() {
            Some(deadlines) => deadlines,
            None => {
                let made = self.databases.space.keyspace(DEADLINES, History::Latest)?;
                self.state().deadlines.insert(made).clone()
            }
        };
        self.state().any_deadline |= deadline.is_some();
        Ok(Some((deadlines, deadline)))
    }

    /// Whether there is a deadline from before this turn, on disk or on its way.
    fn had_deadline(&mut self, name: &Key) -> annals::Result<bool> {
        match self.state().pending.get(name) {
            // What is on its way may have taken one away that is still to be seen on disk.
            Some(Pending { entry: Some(Entry { deadline: Some(_), .. }), .. }) => Ok(true),
            Some(_) => Ok(false),
            None => Ok(self.deadline(name)?.is_some()),
        }
    }
}

/// Whether a key is one.
///
/// # Errors
/// `Invalid` for one that is too long.
pub(super) fn check(key: &[u8]) -> annals::Result<()> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a key has at most {KEY_BYTES_MAX} bytes");
    Err(annals::Error::new(annals::ErrorKind::Invalid, message))
}

fn deadline_key((database, key): &Key) -> Vec<u8> {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(*database);
    whole.extend_from_slice(key);
    whole
}

#[cfg(test)]
mod tests {
    use annals::io::RealIo;
    use annals::{Options, Store};

    use super::*;

    fn put(databases: &Databases, key: &str, value: &str) -> oneshot::Receiver<Settled> {
        let mut work = Work::new(databases);
        let entry = Entry { value: Arc::new(value.as_bytes().to_vec()), stored: None, deadline: None };
        work.put(0, key.as_bytes(), entry).unwrap();
        work.commit().unwrap().unwrap()
    }

    fn get(databases: &Databases, key: &str) -> (Option<Vec<u8>>, Waits) {
        let mut work = Work::new(databases);
        let entry = work.get(0, key.as_bytes()).unwrap();
        (entry.map(|entry| entry.value.to_vec()), work.commit().unwrap())
    }

    #[tokio::test]
    async fn what_is_written_while_a_batch_is_on_its_way_is_the_next_one_and_every_version_of_it_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open_with(directory.path().join("s"), Options::default()).unwrap();
        let space = store.namespace("n").unwrap();
        let kept = space.keyspace("db0", History::All).unwrap();
        let before = store.stats().unwrap().batches;
        let (databases, settling) = Databases::open(space, Arc::new(RealIo::new())).unwrap();
        // Nobody hands over yet.
        let mut waits =
            vec![put(&databases, "k", "one"), put(&databases, "k", "two"), put(&databases, "j", "x")];
        waits.push(put(&databases, "k", "three"));
        let (value, rests) = get(&databases, "k");
        assert_eq!(value.as_deref(), Some(&b"three"[..]));
        let mut rests = rests.unwrap();
        assert!(rests.try_recv().is_err(), "what was read is not on disk");
        tokio::spawn(databases.clone().settle(settling));
        for wait in waits {
            wait.await.unwrap().unwrap();
        }
        rests.await.unwrap().unwrap();
        assert_eq!(store.stats().unwrap().batches - before, 1);
        let versions: Vec<_> =
            kept.versions(b"k").unwrap().map(|version| version.unwrap().value.unwrap()).collect();
        assert_eq!(versions, [b"three".to_vec(), b"two".to_vec(), b"one".to_vec()]);
        // The last of a batch is what is at hand then: the first of it was once, and INCR gave numbers a second time.
        assert_eq!(get(&databases, "k").0.as_deref(), Some(&b"three"[..]));
        assert!(get(&databases, "k").1.is_none(), "it is at hand, and on disk");
    }
}
