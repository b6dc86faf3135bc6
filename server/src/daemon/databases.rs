//! Sixteen databases of keys over keyspaces of the engine, and when keys end.
//!
//! Database `n` is the keyspace `dbN` of the namespace: its values are the engine's own. A deadline stands in the keyspace `annals.deadlines`, under the
//! database's number as a byte and the key, as milliseconds since 1970 in eight bytes, little-endian, and changes in the same batch as its value.
//!
//! The engine shows what is as durable as was asked. What was handed over and is not shown yet is kept here (`pending`) until the settler has seen
//! its ticket, so that the next one reads it; and whoever reads it waits for it before replying. Batches are handed over under the lock, so the settler
//! sees their tickets in the order in which they become durable. Then it is what [`Values`] knows, which reads ask next, and the store last.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::io::Io;
use annals::{Content, Durability, History, Keyspace, Namespace, ScanRange, StoredBlob, Ticket};
use tokio::sync::{mpsc, oneshot};

use super::values::Values;

/// How many databases there are.
pub(super) const DATABASES: u8 = 16;
/// The longest key: one byte less than the engine's, which a deadline's key needs.
pub(super) const KEY_BYTES_MAX: usize = annals::KEY_BYTES_MAX - 1;
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
}

#[derive(Debug)]
struct State {
    spaces: [Option<Keyspace>; DATABASES as usize],
    deadlines: Option<Keyspace>,
    /// Whether there may be a deadline.
    any_deadline: bool,
    pending: HashMap<Key, Pending>,
    /// What keys hold of which nothing is pending.
    values: Values,
    /// The number of the last batch.
    last: u64,
}

#[derive(Debug)]
struct Pending {
    entry: Option<Entry>,
    batch: u64,
}

/// A batch that was handed over, or, without a ticket, somebody who waits for all before.
#[derive(Debug)]
pub(super) struct Settling {
    ticket: Option<Ticket>,
    batch: u64,
    keys: Vec<Key>,
    /// Who waits; nobody where something follows that is waited for.
    done: Option<oneshot::Sender<Settled>>,
}

impl Databases {
    /// The namespace that they are of.
    pub(super) fn space(&self) -> &Namespace {
        &self.space
    }

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
        let (pending, values) = (HashMap::new(), Values::new());
        let state = State { spaces, deadlines, any_deadline, pending, values, last: 0 };
        // Bounded by what connections may have under way: one turn each.
        let (settling, settled) = mpsc::unbounded_channel();
        Ok((Arc::new(Self { space, io, state: Mutex::new(state), settling }), settled))
    }

    /// Waits for batches in their order and tells those who wait. Ends with the last handle.
    pub(super) async fn settle(self: Arc<Self>, mut settling: mpsc::UnboundedReceiver<Settling>) {
        let mut failed = None;
        while let Some(next) = settling.recv().await {
            if let Some(ticket) = next.ticket
                && let Err(error) = ticket.await
            {
                // The writer is poisoned by it: nothing after it is written either.
                failed.get_or_insert_with(|| error.to_string());
            }
            if !next.keys.is_empty() {
                let mut state = self.lock();
                for key in next.keys {
                    if state.pending.get(&key).is_none_or(|pending| pending.batch != next.batch) {
                        continue;
                    }
                    let settled = state.pending.remove(&key).and_then(|pending| pending.entry);
                    match &failed {
                        None => state.values.put(key, settled),
                        Some(_) => state.values.forget(&key),
                    }
                }
            }
            // Who went away meanwhile does not want to know.
            if let Some(done) = next.done {
                let _ = done.send(failed.clone().map_or(Ok(()), Err));
            }
        }
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
            Some(deadline) if deadline <= self.now_ms => {
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
        (is_quiet && state.pending.is_empty()).then(|| state.values.get(database, key)).flatten()
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
        if let Some(entry) = self.state().values.get(name.0, &name.1) {
            return Ok(Some(entry));
        }
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
        let mut under = self.keyspace(database).map(|keyspace| keyspace.scan(range)).into_iter().flatten();
        let mut over = over.into_iter().peekable();
        let mut below: Option<Vec<u8>> = under.next().transpose()?.map(|(key, _)| key);
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
                below = under.next().transpose()?.map(|(key, _)| key);
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
        for ticket in std::mem::take(&mut self.tickets) {
            let one = Settling { ticket: Some(ticket), batch: 0, keys: Vec::new(), done: None };
            let _ = self.databases.settling.send(one);
        }
        let ticket = if staged.is_empty() { None } else { self.submit(&staged)? };
        let databases = self.databases;
        let state = self.state();
        state.last += 1;
        let batch = state.last;
        let mut keys = Vec::with_capacity(staged.len());
        if ticket.is_some() {
            for (key, entry) in staged {
                keys.push(key.clone());
                state.pending.insert(key, Pending { entry, batch });
            }
        }
        // Sent under the lock, so that the order is that of the log. Nobody listens only once the daemon has ended.
        let _ = databases.settling.send(Settling { ticket, batch, keys, done: Some(done) });
        Ok(Some(settled))
    }

    fn submit(&mut self, staged: &BTreeMap<Key, Option<Entry>>) -> annals::Result<Option<Ticket>> {
        let space = self.databases.space.clone();
        let mut batch = space.batch();
        let mut any = false;
        for (name, entry) in staged {
            let keyspace = match (self.keyspace(name.0), entry) {
                (Some(keyspace), _) => keyspace,
                // Nothing was ever there.
                (None, None) => continue,
                (None, Some(_)) => {
                    let made = space.keyspace(&format!("db{}", name.0), History::Latest)?;
                    if let Some(place) = self.state().spaces.get_mut(usize::from(name.0)) {
                        *place = Some(made.clone());
                    }
                    made
                }
            };
            any = true;
            match entry {
                Some(Entry { stored: Some(blob), .. }) => batch.put(&keyspace, &name.1, blob.clone()),
                Some(entry) => batch.put(&keyspace, &name.1, Content::Bytes(entry.value.clone())),
                None => batch.delete(&keyspace, &name.1),
            };
            let deadline = entry.as_ref().and_then(|entry| entry.deadline);
            if let Some(deadline) = deadline {
                let state = self.state();
                state.any_deadline = true;
                let deadlines = match &state.deadlines {
                    Some(deadlines) => deadlines.clone(),
                    None => state.deadlines.insert(space.keyspace(DEADLINES, History::Latest)?).clone(),
                };
                batch.put(&deadlines, &deadline_key(name), deadline.to_le_bytes().to_vec());
            } else if self.had_deadline(name)?
                && let Some(deadlines) = self.state().deadlines.clone()
            {
                batch.delete(&deadlines, &deadline_key(name));
            }
        }
        if any { batch.submit_with(Durability::Disk).map(Some) } else { Ok(None) }
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
