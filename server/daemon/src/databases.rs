//! Sixteen databases of keys on top of engine keyspaces, and the expiry of keys.
//!
//! Database `n` is the keyspace `dbN` of the namespace. The keyspace `annals.deadlines` has the deadlines:
//! the key is the database's number as a byte and then the key; the value is milliseconds since 1970 in eight
//! bytes, little-endian. A deadline changes in the same batch as its value. The engine decides whether it is
//! past (`annals::retention::is_due`), as for every deadline.
//!
//! The engine makes a batch visible once it is durable. Until then, `pending` holds its values, so that the
//! next turn reads them; a turn that reads a pending value waits for it before replying. The client loop
//! submits and settles batches ([`Databases::settle`]); writes made meanwhile form the next batch. Batches are
//! submitted under the lock, so their tickets are settled in the order in which they become durable. Reads ask
//! `pending` first, then [`ValueCache`], then the store. `turn_batch` has the reads and writes of a turn,
//! `key_scan` the listing of keys, `expired` the deletion of expired keys without a daemon.

mod expired;
mod key_scan;
#[cfg(test)]
mod tests;
mod turn_batch;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use annals::io::Io;
use annals::retention::{Deadline, DeadlineIndex, DeadlineKind};
use annals::{
    Durability, Keyspace, Namespace, Seqno, Ticket,
    kv::{BodyInput, KvBatch, ScanRange, StoredBlob},
};
use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use annals_wire::resp::SharedBytes;

use super::client_loop::{ConnectionSlot, LoopInbox};
use super::turn::CommandRefusal;
use super::value_cache::{SharedValues, ValueCache};
pub use expired::{ExpiredCounts, delete_expired};
pub(super) use key_scan::KeyScan;
pub(super) use turn_batch::TurnBatch;

/// Number of databases.
pub(super) const DATABASES: u8 = 16;
/// Maximum key length in bytes: one byte less than the engine's, which the key of the deadline needs.
pub(super) const KEY_BYTES_MAX: usize = annals::kv::KEY_BYTES_MAX - 1;
/// Maximum number of batches of keys in flight, unless a batch is too long to wait.
const BATCHES_IN_FLIGHT_MAX: usize = 1;
/// Gathered writes of this many bytes are submitted regardless of the batches in flight.
const GATHERED_BYTES_MAX: usize = 8 << 20;
/// A turn that began this long ago may still set a deadline that was in the future then.
const LATE_TURN_MS: u64 = 60_000;
pub(crate) const DEADLINES: &str = "annals.deadlines";

/// A key of a database: the database's number and the key. A short key is in place: it takes no allocation, and the
/// cache compares it without another read of memory.
pub(super) type DatabaseKey = (u8, SmallVec<[u8; 24]>);

/// The name of a key.
pub(super) fn database_key(database: u8, key: &[u8]) -> DatabaseKey {
    (database, SmallVec::from_slice(key))
}

/// A value and its deadline.
#[derive(Debug, Clone)]
pub(super) struct KeyEntry {
    pub(super) value: SharedBytes,
    /// The same value, if it is already in the store.
    pub(super) stored: Option<Box<StoredBlob>>,
    /// In milliseconds since 1970.
    pub(super) deadline: Option<u64>,
}

/// Whether everything that a turn depends on is durable; else the error reply with its code.
pub(super) type SettleResult = Result<(), String>;

/// The settlement to wait for before replying, if any.
pub(super) type SettleReceiver = Option<oneshot::Receiver<SettleResult>>;

/// Who waits for the writes of a turn.
#[derive(Debug)]
enum TurnWaiter {
    /// A task.
    Task(oneshot::Sender<SettleResult>),
    /// A connection of the client loop.
    Connection(ConnectionSlot),
}

/// How [`Databases::settle`] waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettleMode {
    /// Writes and syncs on the loop's thread; blocks until everything is durable.
    Blocking,
    /// Leaves that to the writer's thread and never blocks: it is called again when a batch is durable.
    Polling,
}

/// The databases of a namespace.
#[derive(Debug)]
pub(super) struct Databases {
    space: Namespace,
    io: Arc<dyn Io>,
    state: Mutex<DatabasesState>,
    /// The inbox of the client loop, which calls [`Databases::settle`].
    inbox: Arc<LoopInbox>,
    /// Wakes the client loop when a ticket is done.
    waker: Waker,
    myself: Weak<Databases>,
}

/// Asks the client loop to settle these databases.
#[derive(Debug)]
struct SettleWaker {
    inbox: Arc<LoopInbox>,
    databases: Weak<Databases>,
}

impl Wake for SettleWaker {
    fn wake(self: Arc<Self>) {
        if let Some(databases) = self.databases.upgrade() {
            self.inbox.settle(databases);
        }
    }
}

/// What the store has of the databases. An absent keyspace is made by the first write that needs it.
#[derive(Debug)]
struct StoredKeyspaces {
    spaces: [Option<Keyspace>; DATABASES as usize],
    deadlines: Option<Keyspace>,
    index: Option<DeadlineIndex>,
    /// Whether any deadline may exist.
    any_deadline: bool,
    /// The last record before this was read.
    as_of: Seqno,
}

impl StoredKeyspaces {
    fn find(space: &Namespace) -> annals::Result<Self> {
        let as_of = space.store().seqno();
        let mut spaces = [const { None }; DATABASES as usize];
        for (number, keyspace) in spaces.iter_mut().enumerate() {
            *keyspace = space.find_keyspace(&format!("db{number}"))?;
        }
        let deadlines = space.find_keyspace(DEADLINES)?;
        let any_deadline = deadlines.as_ref().is_some_and(|all| all.scan(ScanRange::all()).next().is_some());
        Ok(Self { spaces, deadlines, index: space.find_deadlines()?, any_deadline, as_of })
    }
}

#[derive(Debug)]
struct DatabasesState {
    stored: StoredKeyspaces,
    /// Everything that ended before this time, in milliseconds since 1970, has been swept. A sweep need not pass over
    /// the deleted entries again.
    swept_to_ms: u64,
    /// Whether no write was refused since the last sweep began. One that was may have been a page of the sweep.
    is_sweep_whole: bool,
    pending: HashMap<DatabaseKey, PendingValue, RandomState>,
    /// The values of keys without pending writes.
    values: ValueCache,
    /// Number of reads answered by `values`, and by the store.
    hits: u64,
    misses: u64,
    /// Batches of keys in flight; writes made meanwhile are gathered.
    in_flight: usize,
    gathered: GatheredBatch,
    /// Counts changes of what the store answers: settled batches, forgotten keys, and what another process wrote. What
    /// was read without the lock is outdated if this has changed.
    changes: u64,
    /// Submitted writes that are not settled, in the order of the log.
    submitted: VecDeque<SubmittedWrites>,
    /// The error reply of the first write that failed.
    failed: Option<String>,
}

impl DatabasesState {
    fn gather(&mut self, changes: Vec<KeyWrite>, waiter: TurnWaiter) {
        let batch = self.gathered.number;
        for (at, change) in (self.gathered.changes.len()..).zip(&changes) {
            self.gathered.bytes +=
                change.key.1.len() + change.entry.as_ref().map_or(0, |entry| entry.value.len());
            self.pending.insert(change.key.clone(), PendingValue { entry: change.entry.clone(), batch, at });
        }
        self.gathered.changes.extend(changes);
        self.gathered.waiters.push(waiter);
    }

    /// Takes back the changes of a refused batch: they must not be read. A key that an earlier batch in flight changes,
    /// too, has that value again. For any other key the cache may be older than the last settled batch, whose value it
    /// did not take while this one was pending.
    fn take_back(&mut self, refused: &GatheredBatch) {
        let in_flight = self.submitted.iter().filter_map(|writes| writes.batch.as_ref());
        let in_flight = in_flight.filter(|(_, why)| why.is_none()).map(|(batch, _)| batch);
        let mut earlier = HashMap::<_, _, RandomState>::default();
        for batch in in_flight {
            let changes = batch.changes.iter().enumerate();
            earlier.extend(changes.map(|(at, change)| (&change.key, (change, batch.number, at))));
        }
        let mut values = self.values.update();
        for KeyWrite { key, .. } in &refused.changes {
            match earlier.get(key) {
                Some((change, batch, at)) => {
                    let earlier = PendingValue { entry: change.entry.clone(), batch: *batch, at: *at };
                    self.pending.insert(key.clone(), earlier);
                }
                None => {
                    self.pending.remove(key);
                    values.forget(key);
                }
            }
        }
        (self.is_sweep_whole, self.swept_to_ms) = (false, 0);
    }

    /// Removes the values of a batch from the pending ones; those that are durable are cached.
    fn settle_batch(&mut self, gathered: GatheredBatch, is_durable: bool) {
        let mut values = self.values.update();
        values.fetch(gathered.changes.iter().map(|change| &change.key));
        for (at, KeyWrite { key, entry, .. }) in gathered.changes.into_iter().enumerate() {
            match self.pending.entry(key) {
                // A newer write of this key is pending, in this batch or a later one.
                Entry::Occupied(pending)
                    if (pending.get().batch, pending.get().at) != (gathered.number, at) => {}
                Entry::Occupied(pending) => {
                    let (key, _) = pending.remove_entry();
                    if is_durable {
                        values.put(key, entry);
                    } else {
                        values.forget(&key);
                    }
                }
                // Refused itself.
                Entry::Vacant(place) => values.forget(place.key()),
            }
        }
    }
}

#[derive(Debug)]
struct PendingValue {
    entry: Option<KeyEntry>,
    /// The batch that contains it, and the index of its change there.
    batch: u64,
    at: usize,
}

/// Submitted tickets, and the turns that wait for them and for all earlier ones.
#[derive(Debug)]
struct SubmittedWrites {
    tickets: VecDeque<Ticket>,
    /// The batch of the last ticket, and the error if its submission was refused.
    batch: Option<(GatheredBatch, Option<String>)>,
    waiters: Vec<TurnWaiter>,
}

/// Writes that turns made while other batches were in flight: the next batch.
#[derive(Debug, Default)]
struct GatheredBatch {
    /// In the order in which they were made; a key may occur more than once.
    changes: Vec<KeyWrite>,
    bytes: usize,
    /// The turns that wait for them.
    waiters: Vec<TurnWaiter>,
    number: u64,
}

/// A key's new value, or its deletion.
#[derive(Debug)]
struct KeyWrite {
    key: DatabaseKey,
    entry: Option<KeyEntry>,
    /// The change of its deadline, if any.
    deadline: Option<DeadlineChange>,
}

/// What a write does to the deadline of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeadlineChange {
    before: Option<u64>,
    after: Option<u64>,
}

impl Databases {
    /// Opens the databases of a namespace. The client loop of `inbox` settles their writes.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn open(
        space: Namespace,
        io: Arc<dyn Io>,
        values: &SharedValues,
        inbox: Arc<LoopInbox>,
    ) -> annals::Result<Arc<Self>> {
        let state = DatabasesState {
            stored: StoredKeyspaces::find(&space)?,
            swept_to_ms: 0,
            is_sweep_whole: false,
            pending: HashMap::default(),
            values: values.open_namespace(),
            hits: 0,
            misses: 0,
            in_flight: 0,
            gathered: GatheredBatch::default(),
            changes: 0,
            // Bounded by the connections: each has at most one turn in flight.
            submitted: VecDeque::new(),
            failed: None,
        };
        Ok(Arc::new_cyclic(|myself| Self {
            space,
            io,
            state: Mutex::new(state),
            waker: Arc::new(SettleWaker { inbox: inbox.clone(), databases: myself.clone() }).into(),
            inbox,
            myself: myself.clone(),
        }))
    }

    /// Forgets what is known of the store, if it has new records. For a store that another process writes.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn follow(&self, values: &SharedValues) -> annals::Result<()> {
        if self.lock().stored.as_of == self.space.store().seqno() {
            return Ok(());
        }
        let stored = StoredKeyspaces::find(&self.space)?;
        let mut state = self.lock();
        state.stored = stored;
        state.values = values.open_namespace();
        state.changes += 1;
        Ok(())
    }

    /// Submits gathered writes, unless enough batches are in flight. Only the client loop calls this.
    pub(super) fn submit(&self) {
        self.submit_if_due(&mut self.lock());
    }

    fn submit_if_due(&self, state: &mut DatabasesState) {
        if state.in_flight < BATCHES_IN_FLIGHT_MAX && !state.gathered.waiters.is_empty() {
            self.submit_gathered(state);
        }
    }

    /// As [`Databases::submit`]; then settles batches in order: tells the tasks that wait, and appends the
    /// connections that wait to `settled`.
    pub(super) fn settle(&self, mode: SettleMode, settled: &mut Vec<(ConnectionSlot, SettleResult)>) {
        loop {
            let mut state = self.lock();
            self.submit_if_due(&mut state);
            // The writes stay in the queue until they are settled: a refused batch looks for them there.
            let Some(first) = state.submitted.front_mut() else { return };
            let mut tickets = std::mem::take(&mut first.tickets);
            drop(state);
            let failure = self.await_tickets(&mut tickets, mode);
            let mut state = self.lock();
            if let Some(error) = failure {
                // The error has poisoned the writer: nothing after it is written either.
                state.failed.get_or_insert_with(|| {
                    tracing::error!(why = error.to_string(), "a write failed");
                    CommandRefusal::from(error).0
                });
            }
            if !tickets.is_empty() {
                state.submitted.front_mut().into_iter().for_each(|first| first.tickets.append(&mut tickets));
                return;
            }
            let Some(SubmittedWrites { batch, waiters, .. }) = state.submitted.pop_front() else { return };
            let mut refused = None;
            if let Some((gathered, why)) = batch {
                refused = why;
                let holds = state.failed.is_none() && refused.is_none();
                state.settle_batch(gathered, holds);
                state.in_flight -= 1;
                state.changes += 1;
            }
            let result = state.failed.clone().or(refused).map_or(Ok(()), Err);
            drop(state);
            for waiter in waiters {
                match waiter {
                    // A receiver that is gone does not matter.
                    TurnWaiter::Task(done) => drop(done.send(result.clone())),
                    TurnWaiter::Connection(slot) => settled.push((slot, result.clone())),
                }
            }
        }
    }

    /// Makes connections of the client loop wait for a batch that was submitted directly.
    pub(super) fn await_in_loop(&self, ticket: Ticket, slots: impl Iterator<Item = ConnectionSlot>) {
        let waiters = slots.map(TurnWaiter::Connection).collect();
        let submitted = SubmittedWrites { tickets: VecDeque::from([ticket]), batch: None, waiters };
        self.lock().submitted.push_back(submitted);
    }

    /// Waits for these tickets and removes them; without blocking, the first that is not done stays. Returns
    /// the first error.
    fn await_tickets(&self, tickets: &mut VecDeque<Ticket>, mode: SettleMode) -> Option<annals::Error> {
        let mut failure = None;
        let mut context = Context::from_waker(&self.waker);
        while let Some(mut ticket) = tickets.pop_front() {
            let done = match mode {
                SettleMode::Blocking => ticket.wait(),
                SettleMode::Polling => match Pin::new(&mut ticket).poll(&mut context) {
                    std::task::Poll::Ready(done) => done,
                    std::task::Poll::Pending => {
                        tickets.push_front(ticket);
                        return failure;
                    }
                },
            };
            if let Err(error) = done {
                failure.get_or_insert(error);
            }
        }
        failure
    }

    /// Submits the gathered writes as one batch.
    fn submit_gathered(&self, state: &mut DatabasesState) {
        let number = state.gathered.number + 1;
        // The next batch is probably as long.
        let changes = Vec::with_capacity(state.gathered.changes.len());
        let next = GatheredBatch { number, changes, ..GatheredBatch::default() };
        let mut gathered = std::mem::replace(&mut state.gathered, next);
        let waiters = std::mem::take(&mut gathered.waiters);
        state.in_flight += 1;
        let batch = self.batch_of(state, &gathered.changes);
        let (tickets, why) = match batch.and_then(|batch| batch.submit_inline(Durability::Disk)) {
            Ok(ticket) => (VecDeque::from([ticket]), None),
            Err(error) => {
                state.take_back(&gathered);
                (VecDeque::new(), Some(CommandRefusal::from(error).0))
            }
        };
        state.submitted.push_back(SubmittedWrites { tickets, batch: Some((gathered, why)), waiters });
    }

    /// The batch of these changes.
    fn batch_of(&self, state: &DatabasesState, changes: &[KeyWrite]) -> annals::Result<KvBatch> {
        // Opened before the change was accepted.
        let missing = || annals::Error::new(annals::ErrorKind::Bug, "a key was changed without its keyspace");
        let mut batch = self.space.batch();
        for KeyWrite { key, entry, deadline } in changes {
            let keyspace = state.stored.spaces.get(usize::from(key.0)).and_then(Option::as_ref);
            let keyspace = keyspace.ok_or_else(missing)?;
            match entry {
                Some(KeyEntry { stored: Some(blob), .. }) => {
                    batch.put(keyspace, &key.1, StoredBlob::clone(blob))
                }
                Some(KeyEntry { value: SharedBytes::Long(value), .. }) => {
                    batch.put(keyspace, &key.1, BodyInput::Bytes(value.clone()))
                }
                Some(KeyEntry { value: SharedBytes::Short(value), .. }) => {
                    batch.put(keyspace, &key.1, BodyInput::Lent(value))
                }
                None => batch.delete(keyspace, &key.1),
            };
            if let Some(DeadlineChange { before, after }) = *deadline {
                let deadlines = state.stored.deadlines.as_ref().ok_or_else(missing)?;
                let index = state.stored.index.as_ref().ok_or_else(missing)?;
                let name = deadline_key(key.0, &key.1);
                match after {
                    Some(ms) => batch.put(deadlines, &name, ms.to_le_bytes().to_vec()),
                    None => batch.delete(deadlines, &name),
                };
                if let Some(ms) = before.filter(|_| before != after) {
                    index.remove(&mut batch, DeadlineKind::Key, ms, &name);
                }
                if let Some(ms) = after {
                    index.add(&mut batch, DeadlineKind::Key, ms, &name);
                }
            }
        }
        Ok(batch)
    }

    fn lock(&self) -> MutexGuard<'_, DatabasesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The I/O layer of the store.
    pub(super) fn io(&self) -> &Arc<dyn Io> {
        &self.io
    }

    /// The keyspace of a database; `None` if nothing was ever put there.
    pub(super) fn keyspace_of(&self, database: u8) -> Option<Keyspace> {
        self.lock().stored.spaces.get(usize::from(database)).cloned().flatten()
    }

    /// Whether a thread holds the lock.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.state.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }

    /// Whether no write is pending.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.lock();
        state.submitted.is_empty() && state.gathered.waiters.is_empty() && state.pending.is_empty()
    }

    /// Number of reads answered by the cache, and by the store.
    pub(super) fn cache_reads(&self) -> (u64, u64) {
        let state = self.lock();
        (state.hits, state.misses)
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    /// Deletes keys whose deadline is past, the earliest first: looks at `most` entries of the index after `after`.
    /// Returns where to continue, if there may be more, and what to wait for.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn sweep(
        &self,
        after: Option<&Deadline>,
        most: usize,
    ) -> annals::Result<(Option<Deadline>, SettleReceiver)> {
        let (deadlines, changes, swept_to_ms) = {
            let mut state = self.lock();
            state.is_sweep_whole |= after.is_none();
            match state.stored.deadlines.clone().filter(|_| state.stored.any_deadline) {
                Some(deadlines) => (deadlines, state.changes, state.swept_to_ms),
                None => return Ok((None, None)),
            }
        };
        let deadline_of = |value: &[u8]| Ok(deadline_in(Some(value.to_vec())));
        let index = self.space.complete_deadlines(DeadlineKind::Key, deadline_of)?;
        let mut work = TurnBatch::new(self);
        let now_ms = work.now_ms();
        // A clock that was ahead, and was set back, has swept too far.
        let start = Deadline { ms: if now_ms < swept_to_ms { 0 } else { swept_to_ms }, id: Vec::new() };
        if !work.is_due(now_ms) || self.space.store().check_writer().is_err() {
            return Ok((None, None));
        }
        let due = index.due(DeadlineKind::Key, now_ms, Some(after.unwrap_or(&start)), most)?;
        let next = due.last().filter(|_| due.len() == most).cloned();
        if due.is_empty() {
            return Ok((None, None));
        }
        // Read without the lock: turns do not wait for it.
        let read = due.iter().map(|Deadline { id, .. }| Ok(deadline_in(deadlines.get(id)?)));
        let stored: Vec<Option<u64>> = read.collect::<annals::Result<_>>()?;
        let is_current = work.state().changes == changes;
        let (mut outdated, mut is_any_outdated) = (self.space.batch(), false);
        for (Deadline { ms, id }, stored) in due.iter().zip(stored) {
            let Some((database, key)) = id.split_first() else { continue };
            let name = database_key(*database, key);
            let stored = if is_current { stored } else { deadline_in(deadlines.get(id)?) };
            if stored == Some(*ms) || work.state().pending.contains_key(&name) {
                work.expire(name, *ms, is_current)?;
            } else {
                index.remove(&mut outdated, DeadlineKind::Key, *ms, id);
                is_any_outdated = true;
            }
        }
        // Under the lock: no turn can add such an entry between the look and this.
        if is_any_outdated {
            work.await_before_reply(outdated.submit_with(Durability::Process)?);
        }
        let state = work.state();
        if next.is_none() && state.is_sweep_whole {
            state.swept_to_ms = now_ms.saturating_sub(LATE_TURN_MS);
        }
        // Refused here or later, the keys are swept again.
        let deleted = work.commit().inspect_err(|_| self.lock().swept_to_ms = 0)?;
        Ok((next, deleted))
    }
}

/// Checks the length of a key.
///
/// # Errors
/// `Invalid` if the key is too long.
pub(super) fn check_key(key: &[u8]) -> annals::Result<()> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a key has at most {KEY_BYTES_MAX} bytes");
    Err(annals::Error::new(annals::ErrorKind::Invalid, message))
}

/// The deadline in its stored form.
fn deadline_in(kept: Option<Vec<u8>>) -> Option<u64> {
    kept.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
}

pub(crate) fn deadline_key(database: u8, key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(database);
    whole.extend_from_slice(key);
    whole
}
