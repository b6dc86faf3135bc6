//! The reads and writes of one turn.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::MutexGuard;

use annals::{
    Keyspace, Namespace, Ticket,
    kv::{History, ScanRange},
};
use foldhash::quality::RandomState;
use tokio::sync::oneshot;

use super::{
    DEADLINES, DatabaseKey, Databases, DatabasesState, DeadlineChange, GATHERED_BYTES_MAX, KeyEntry, KeyScan,
    KeyWrite, PendingValue, SettleReceiver, SubmittedWrites, TurnWaiter, check_key, database_key,
    deadline_in, deadline_key,
};
use crate::client_loop::ConnectionSlot;

/// A turn stops reading ahead after this many bytes of values.
const AHEAD_BYTES_MAX: usize = 64 << 20;

/// The reads and writes of a turn: reads see its earlier writes, and the writes become one batch. It takes
/// the lock at its first key and holds it until it is committed or dropped, so other turns wait.
pub(crate) struct TurnBatch<'a> {
    databases: &'a Databases,
    state: Option<MutexGuard<'a, DatabasesState>>,
    staged: BTreeMap<DatabaseKey, Option<KeyEntry>>,
    staged_bytes: usize,
    /// What was read before the lock was taken, and has not changed until then.
    ahead: HashMap<DatabaseKey, Option<KeyEntry>, RandomState>,
    /// As `ahead`: the deadlines of keys.
    ahead_deadlines: HashMap<DatabaseKey, Option<u64>, RandomState>,
    /// Keys whose deadline on disk is past, with that deadline.
    expired: BTreeMap<DatabaseKey, u64>,
    now_ms: u64,
    /// A value was read that is not durable yet.
    reads_pending: bool,
    /// Tickets of batches that were submitted directly.
    tickets: Vec<Ticket>,
    /// A command of the turn writes, so no reply may be sent after a failed write.
    requires_writer: bool,
}

impl<'a> TurnBatch<'a> {
    pub(crate) fn new(databases: &'a Databases) -> Self {
        let now_ms = databases.now_ns() / 1_000_000;
        Self {
            databases,
            state: None,
            staged: BTreeMap::new(),
            staged_bytes: 0,
            ahead: HashMap::default(),
            ahead_deadlines: HashMap::default(),
            expired: BTreeMap::new(),
            now_ms,
            reads_pending: false,
            tickets: Vec::new(),
            requires_writer: false,
        }
    }

    /// Milliseconds since 1970, fixed for the whole turn.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether a deadline (milliseconds since 1970) is past. A clock far ahead of the store's records never
    /// expires keys.
    pub(super) fn is_due(&self, deadline: u64) -> bool {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        self.databases.space.is_due(ns(deadline), ns(self.now_ms))
    }

    /// Approximate bytes of the staged writes.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.staged_bytes
    }

    /// The namespace of the databases.
    pub(crate) fn namespace(&self) -> &'a Namespace {
        &self.databases.space
    }

    /// Takes the lock now.
    pub(crate) fn lock_databases(&mut self) {
        self.state();
    }

    /// Adds a ticket to wait for before the reply. If [`TurnBatch::lock_databases`] was not called first,
    /// other turns may submit in between; then one of the two waits slightly longer than needed.
    pub(crate) fn await_before_reply(&mut self, ticket: Ticket) {
        self.tickets.push(ticket);
    }

    /// Makes [`TurnBatch::commit`] fail if the store takes no writes by then.
    pub(crate) fn require_writer(&mut self) {
        self.requires_writer = true;
    }

    /// Whether a batch was submitted directly.
    pub(crate) fn has_submitted(&self) -> bool {
        !self.tickets.is_empty()
    }

    /// Whether anything was written, staged or submitted.
    pub(crate) fn has_written(&self) -> bool {
        self.has_submitted() || !self.staged.is_empty()
    }

    /// Whether a reply has to wait for anything so far.
    pub(crate) fn has_to_wait(&self) -> bool {
        self.has_written() || self.reads_pending
    }

    pub(super) fn state(&mut self) -> &mut DatabasesState {
        self.state.get_or_insert_with(|| self.databases.lock())
    }

    /// The value of a key. A key whose deadline is past is deleted by this, while the store takes writes.
    ///
    /// # Errors
    /// Those of the store; `Invalid` if the key is too long.
    pub(crate) fn get(&mut self, database: u8, key: &[u8]) -> annals::Result<Option<KeyEntry>> {
        check_key(key)?;
        self.read_ahead(database, [key])?;
        let found = match self.cached(database, key) {
            Some(entry) => Some(entry),
            None => self.lookup(database_key(database, key))?,
        };
        match found.as_ref().and_then(|entry| entry.deadline) {
            Some(deadline) if self.is_due(deadline) => {
                // A read is answered after a failed write, too: then the key stays on disk.
                if self.databases.space.store().check_writer().is_ok() {
                    self.stage(database_key(database, key), None);
                }
                Ok(None)
            }
            _ => Ok(found),
        }
    }

    /// Deletes a key whose deadline in the store, `ms`, is past. Reads neither the value nor the deadline again, unless a
    /// write of the key is pending or, without `is_current`, may have been settled since.
    ///
    /// # Errors
    /// As [`TurnBatch::get`].
    pub(super) fn expire(&mut self, name: DatabaseKey, ms: u64, is_current: bool) -> annals::Result<()> {
        if !is_current || self.state().pending.contains_key(&name) {
            return self.get(name.0, &name.1).map(drop);
        }
        if self.databases.space.store().check_writer().is_ok() {
            self.expired.insert(name.clone(), ms);
            self.stage(name, None);
        }
        Ok(())
    }

    /// Reads keys from the store without the lock, so that no other turn waits for the disk; then takes the lock. For
    /// the first command of a turn: later ones run under the lock. Keys that are cached or pending are left out. What
    /// a write may have changed meanwhile is read again when it is asked for.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn read_ahead<'k>(
        &mut self,
        database: u8,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> annals::Result<()> {
        if self.state.is_some() {
            return Ok(());
        }
        let state = self.databases.lock();
        let missing = keys.into_iter().filter(|key| !state.values.contains(database, key));
        let mut missing: Vec<_> = missing.map(|key| database_key(database, key)).collect();
        missing.retain(|name| !state.pending.contains_key(name));
        let keyspace = match missing.is_empty() {
            true => None,
            false => state.stored.spaces.get(usize::from(database)).cloned().flatten(),
        };
        let Some(keyspace) = keyspace else {
            self.state = Some(state);
            return Ok(());
        };
        let (deadlines, changes) =
            (state.stored.deadlines.clone().filter(|_| state.stored.any_deadline), state.changes);
        drop(state);
        let (mut ahead, mut bytes) = (HashMap::default(), 0);
        for name in missing {
            let value = keyspace.get(&name.1)?;
            let deadline = match deadlines.as_ref().filter(|_| value.is_some()) {
                Some(deadlines) => deadline_in(deadlines.get(&deadline_key(name.0, &name.1))?),
                None => None,
            };
            bytes += value.as_ref().map_or(0, Vec::len);
            ahead.insert(name, value.map(|value| KeyEntry { value: value.into(), stored: None, deadline }));
            if bytes >= AHEAD_BYTES_MAX {
                break;
            }
        }
        if self.state().changes != changes {
            return Ok(());
        }
        let state = self.state();
        state.misses += ahead.len() as u64;
        for (name, entry) in &ahead {
            if entry.is_some() && !state.pending.contains_key(name) {
                state.values.put(name.clone(), entry.clone());
            }
        }
        self.ahead = ahead;
        Ok(())
    }

    /// As [`TurnBatch::read_ahead`], for keys that are set without reading them: reads their deadlines.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn read_deadlines_ahead<'k>(
        &mut self,
        database: u8,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> annals::Result<()> {
        if self.state.is_some() {
            return Ok(());
        }
        let state = self.databases.lock();
        let Some(deadlines) = state.stored.deadlines.clone().filter(|_| state.stored.any_deadline) else {
            self.state = Some(state);
            return Ok(());
        };
        let missing = keys.into_iter().filter(|key| !state.values.contains(database, key));
        let missing: Vec<_> = missing.map(|key| database_key(database, key)).collect();
        let changes = state.changes;
        drop(state);
        let mut ahead = HashMap::default();
        for name in missing {
            let deadline = deadline_in(deadlines.get(&deadline_key(name.0, &name.1))?);
            ahead.insert(name, deadline);
        }
        if self.state().changes == changes {
            self.ahead_deadlines = ahead;
        }
        Ok(())
    }

    /// The cached value of a key, if no pending write can affect it.
    fn cached(&mut self, database: u8, key: &[u8]) -> Option<KeyEntry> {
        let is_quiet = self.staged.is_empty();
        let state = self.state();
        let found = (is_quiet && state.pending.is_empty()).then(|| state.values.get(database, key)).flatten();
        state.hits += u64::from(found.is_some());
        found
    }

    fn lookup(&mut self, name: DatabaseKey) -> annals::Result<Option<KeyEntry>> {
        match self.staged.get(&name) {
            Some(staged) => Ok(staged.clone()),
            None => self.read_committed(name),
        }
    }

    /// The value of a key before this turn.
    fn read_committed(&mut self, name: DatabaseKey) -> annals::Result<Option<KeyEntry>> {
        if let Some(pending) = self.state().pending.get(&name) {
            let entry = pending.entry.clone();
            self.reads_pending = true;
            return Ok(entry);
        }
        if let Some(entry) = self.ahead.get(&name) {
            return Ok(entry.clone());
        }
        let state = self.state();
        if let Some(entry) = state.values.get(name.0, &name.1) {
            state.hits += 1;
            return Ok(Some(entry));
        }
        state.misses += 1;
        let Some(keyspace) = self.keyspace(name.0) else { return Ok(None) };
        let Some(value) = keyspace.get(&name.1)? else { return Ok(None) };
        let entry = KeyEntry { value: value.into(), stored: None, deadline: self.deadline(&name)? };
        self.state().values.put(name, Some(entry.clone()));
        Ok(Some(entry))
    }

    /// Takes the lock and removes a key from the cache, for a caller that then deletes the key in the store itself before
    /// it drops this. Returns false if a write of the key is under way.
    pub(crate) fn forget_cached(&mut self, database: u8, key: &[u8]) -> bool {
        let name = database_key(database, key);
        self.ahead.remove(&name);
        let state = self.state();
        if state.pending.contains_key(&name) {
            return false;
        }
        state.values.forget(&name);
        // A turn that is reading the value now must not cache it.
        state.changes += 1;
        true
    }

    fn keyspace(&mut self, database: u8) -> Option<Keyspace> {
        self.state().stored.spaces.get(usize::from(database)).cloned().flatten()
    }

    /// The deadline on disk.
    fn deadline(&mut self, name: &DatabaseKey) -> annals::Result<Option<u64>> {
        let state = self.state();
        let Some(deadlines) = state.stored.deadlines.as_ref().filter(|_| state.stored.any_deadline) else {
            return Ok(None);
        };
        let kept = deadlines.get(&deadline_key(name.0, &name.1))?;
        Ok(deadline_in(kept))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `Invalid` if the key is too long.
    pub(crate) fn put(&mut self, database: u8, key: &[u8], entry: KeyEntry) -> annals::Result<()> {
        check_key(key)?;
        self.read_deadlines_ahead(database, [key])?;
        self.stage(database_key(database, key), Some(entry));
        Ok(())
    }

    /// Deletes a key; returns whether it existed.
    ///
    /// # Errors
    /// As [`TurnBatch::get`].
    pub(crate) fn delete(&mut self, database: u8, key: &[u8]) -> annals::Result<bool> {
        let was = self.get(database, key)?.is_some();
        if was {
            self.stage(database_key(database, key), None);
        }
        Ok(was)
    }

    fn stage(&mut self, name: DatabaseKey, entry: Option<KeyEntry>) {
        // No other turn may run between a read and a write that depends on it.
        self.state();
        self.staged_bytes += name.1.len() + entry.as_ref().map_or(0, |entry| entry.value.len()) + 64;
        self.staged.insert(name, entry);
    }

    /// The existing keys of a database after this key, as they are now.
    pub(crate) fn scan_keys(&mut self, database: u8, after: Option<&[u8]>) -> KeyScan {
        let is_after = |key: &[u8]| after.is_none_or(|after| key > after);
        let exists = |entry: Option<&KeyEntry>, batch: &Self| {
            entry.is_some_and(|entry| entry.deadline.is_none_or(|deadline| !batch.is_due(deadline)))
        };
        self.lock_databases();
        let mut changed: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
        if let Some(state) = &self.state {
            for ((of, key), pending) in &state.pending {
                if *of == database && is_after(key) {
                    changed.insert(key.to_vec(), exists(pending.entry.as_ref(), self));
                }
            }
        }
        self.reads_pending |= !changed.is_empty();
        for ((of, key), entry) in &self.staged {
            if *of == database && is_after(key) {
                changed.insert(key.to_vec(), exists(entry.as_ref(), self));
            }
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let stored =
            self.keyspace(database).map(|all| all.scan(ScanRange::between(from, Bound::Unbounded)).keys());
        let state = self.state();
        let deadlines = state.stored.deadlines.clone().filter(|_| state.stored.any_deadline);
        let (space, now_ns) = (self.databases.space.clone(), self.now_ms.saturating_mul(1_000_000));
        KeyScan {
            database,
            stored,
            next: None,
            changed: changed.into_iter().peekable(),
            deadlines,
            space,
            now_ns,
        }
    }

    /// Releases the lock, for a command that runs alone and needs no more than what it has read.
    pub(crate) fn release_lock(&mut self) {
        if self.staged.is_empty() {
            self.state = None;
            // Valid only while the lock is held.
            self.ahead.clear();
            self.ahead_deadlines.clear();
        }
    }

    /// Hands the writes over and releases the lock. Returns what to wait for before replying.
    ///
    /// # Errors
    /// Those of the store; then nothing of the turn was written.
    pub(crate) fn commit(self) -> annals::Result<SettleReceiver> {
        let (done, settled) = oneshot::channel();
        let databases = self.databases;
        let waits = self.hand_over(TurnWaiter::Task(done))?;
        if waits && let Some(databases) = databases.myself.upgrade() {
            databases.inbox.clone().settle(databases);
        }
        Ok(waits.then_some(settled))
    }

    /// As [`TurnBatch::commit`], for a connection of the client loop, which then calls [`Databases::settle`].
    /// Returns whether the connection has to wait.
    ///
    /// # Errors
    /// As [`TurnBatch::commit`].
    pub(crate) fn commit_in_loop(self, slot: ConnectionSlot) -> annals::Result<bool> {
        self.hand_over(TurnWaiter::Connection(slot))
    }

    /// Hands the writes over. Returns whether there is anything to wait for.
    fn hand_over(mut self, waiter: TurnWaiter) -> annals::Result<bool> {
        // A write that failed while the turn ran is no longer pending, so its key was read as absent.
        if self.requires_writer {
            self.databases.space.store().check_writer()?;
        }
        if !self.has_to_wait() {
            return Ok(false);
        }
        let staged = std::mem::take(&mut self.staged);
        self.lock_databases();
        let mut changes = Vec::with_capacity(staged.len());
        for (key, entry) in staged {
            // If the database has no keyspace, there is nothing to delete.
            if !self.ensure_keyspace(key.0, entry.is_some())? {
                continue;
            }
            let deadline = self.deadline_change(&key, entry.as_ref())?;
            changes.push(KeyWrite { key, entry, deadline });
        }
        let databases = self.databases;
        let tickets = VecDeque::from(std::mem::take(&mut self.tickets));
        let state = self.state();
        // Pushed under the lock, so that the order is that of the log.
        if changes.is_empty() && state.gathered.changes.is_empty() {
            state.submitted.push_back(SubmittedWrites { tickets, batch: None, waiters: vec![waiter] });
            return Ok(true);
        }
        if !tickets.is_empty() {
            state.submitted.push_back(SubmittedWrites { tickets, batch: None, waiters: Vec::new() });
        }
        state.gather(changes, waiter);
        if state.gathered.bytes >= GATHERED_BYTES_MAX {
            databases.submit_gathered(state);
        }
        Ok(true)
    }

    /// Whether a database has a keyspace; it is created if something is put there.
    fn ensure_keyspace(&mut self, database: u8, puts: bool) -> annals::Result<bool> {
        let is_known = self.state().stored.spaces.get(usize::from(database)).is_some_and(Option::is_some);
        if is_known || !puts {
            return Ok(is_known);
        }
        let made = self.databases.space.keyspace(&format!("db{database}"), History::Latest)?;
        if let Some(place) = self.state().stored.spaces.get_mut(usize::from(database)) {
            *place = Some(made);
        }
        Ok(true)
    }

    /// The change of a key's deadline; the keyspaces of deadlines are created if there is one.
    fn deadline_change(
        &mut self,
        key: &DatabaseKey,
        entry: Option<&KeyEntry>,
    ) -> annals::Result<Option<DeadlineChange>> {
        let after = entry.and_then(|entry| entry.deadline);
        let before = if self.state().stored.any_deadline { self.deadline_before(key)? } else { None };
        if before.is_none() && after.is_none() {
            return Ok(None);
        }
        if self.state().stored.deadlines.is_none() {
            let made = self.databases.space.keyspace(DEADLINES, History::Latest)?;
            self.state().stored.deadlines = Some(made);
        }
        if self.state().stored.index.is_none() {
            let made = self.databases.space.deadlines()?;
            self.state().stored.index = Some(made);
        }
        self.state().stored.any_deadline |= after.is_some();
        Ok(Some(DeadlineChange { before, after }))
    }

    /// The key's deadline before this turn, on disk or pending.
    fn deadline_before(&mut self, name: &DatabaseKey) -> annals::Result<Option<u64>> {
        if let Some(ms) = self.expired.get(name) {
            return Ok(Some(*ms));
        }
        match self.state().pending.get(name) {
            // A pending write may have removed a deadline that is still on disk.
            Some(PendingValue { entry, .. }) => Ok(entry.as_ref().and_then(|entry| entry.deadline)),
            None => match self.ahead_deadline(name) {
                Some(known) => Ok(known),
                None => self.deadline(name),
            },
        }
    }

    /// The deadline of a key without pending writes, if it is known without reading the store.
    fn ahead_deadline(&mut self, name: &DatabaseKey) -> Option<Option<u64>> {
        if let Some(Some(entry)) = self.ahead.get(name) {
            return Some(entry.deadline);
        }
        let ahead = self.ahead_deadlines.get(name).copied();
        ahead.or_else(|| self.state().values.get(name.0, &name.1).map(|entry| entry.deadline))
    }
}
