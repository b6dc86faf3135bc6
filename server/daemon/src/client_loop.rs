//! The client loop: one thread that serves the connections of Redis clients and settles writes.
//!
//! A cycle polls the connections, runs a turn for each one that has sent something, settles the writes of all
//! these turns together, and sends the replies. So writes of one poll are one batch, however many
//! connections sent them. What would delay other connections leaves the loop: a turn that has to be
//! offloaded, blocks, or whose client does not take its replies is handed back to the connection's task
//! ([`super::connection`]), which returns the connection afterwards.
//!
//! Whether the loop blocks for the disk depends on the load ([`settle_mode`]).
//!
//! Invariant: a connection has at most one turn that is not answered; meanwhile the loop does not read from it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use tokio::sync::oneshot;

use super::client_connection::{ClientConnection, Handback, LoopEntry, NextStep, NextTurn};
use super::connection::READ_BYTES;
use super::databases::{Databases, SettleMode, SettleResult};
use super::stream_entries::{StreamEntries, submit_batch};

/// Maximum number of connections that one poll reports.
const EVENTS_MAX: usize = 1024;
/// For how long after a turn that only read the loop does not block for the disk.
const READERS_NS: u64 = 100_000_000;
/// Interval of looking for connections that exceed a time limit, if there can be any.
const TIMEOUT_CHECK_NS: u64 = 250_000_000;
/// From this many commands a turn on, the writer's thread writes a batch while the loop goes on.
const DEEP_COMMANDS: usize = 4;
/// Marks the event of the inbox.
const INBOX: u64 = u64::MAX;

/// The place of a connection in the loop. The second number tells it from earlier connections at the same
/// place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionSlot(u32, u32);

impl ConnectionSlot {
    fn to_event(self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.1) << 32 | u64::from(self.0))
    }

    fn from_event(data: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = data.to_le_bytes();
        Self(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
    }
}

/// What other threads ask of the loop.
#[derive(Debug)]
pub(super) struct LoopInbox {
    requests: Mutex<LoopRequests>,
    /// Whether the loop has been woken and has not looked yet.
    is_woken: AtomicBool,
    event: OwnedFd,
}

#[derive(Debug, Default)]
struct LoopRequests {
    arrived: Vec<(Box<ClientConnection>, oneshot::Sender<Handback>)>,
    databases: Vec<Arc<Databases>>,
    ends_connections: bool,
    stops: bool,
}

impl LoopInbox {
    /// # Errors
    /// The system has no more file descriptors.
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { requests: Mutex::default(), is_woken: AtomicBool::new(false), event })
    }

    /// Asks for these databases to be settled.
    pub(super) fn settle(&self, databases: Arc<Databases>) {
        self.ask(|requests| requests.databases.push(databases));
    }

    fn ask(&self, what: impl FnOnce(&mut LoopRequests)) {
        what(&mut self.requests());
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // It cannot fail: the counter is far from its maximum.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    fn take(&self) -> LoopRequests {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        // Before the requests are taken, so that a later one wakes the loop again.
        self.is_woken.store(false, Ordering::Release);
        std::mem::take(&mut self.requests())
    }

    fn requests(&self) -> MutexGuard<'_, LoopRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running client loop. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct ClientLoop {
    inbox: Arc<LoopInbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ClientLoop {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn start() -> std::io::Result<Self> {
        let inbox = Arc::new(LoopInbox::new()?);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = epoll::EventData::new_u64(INBOX);
        epoll::add(&poll, &inbox.event, event, epoll::EventFlags::IN)?;
        let of_thread = LoopThread {
            inbox: inbox.clone(),
            poll,
            entries: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            databases: Vec::new(),
            added: Vec::new(),
            settled: Vec::new(),
            buffer: vec![0; READ_BYTES],
            load: CycleLoad::default(),
            has_limits: false,
            now_ns: 0,
            checked_ns: 0,
            read_ns: None,
            is_ending: false,
        };
        let thread = std::thread::Builder::new().name("annals-clients".to_owned());
        let thread = thread.spawn(move || of_thread.run())?;
        Ok(Self { inbox, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn inbox(&self) -> &Arc<LoopInbox> {
        &self.inbox
    }

    /// Serves a connection until it needs its task. `None` if it has ended.
    pub(super) async fn serve(&self, connection: Box<ClientConnection>) -> Option<Handback> {
        let (back, handback) = oneshot::channel();
        self.inbox.ask(|requests| requests.arrived.push((connection, back)));
        handback.await.ok()
    }

    /// Ends all connections after the requests that they have sent, now and from now on.
    pub(super) fn end_connections(&self) {
        self.inbox.ask(|requests| requests.ends_connections = true);
    }

    /// Ends the thread. Connections that are left end, and nothing is settled any more.
    pub(super) fn stop(&self) {
        self.inbox.ask(|requests| requests.stops = true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last connection may be dropped in the thread, and the daemon with it.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
        // Dropped without the lock: what is dropped may ask for something.
        let left = std::mem::take(&mut *self.inbox.requests());
        drop(left);
    }
}

impl Drop for ClientLoop {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the turns of a cycle were.
#[derive(Debug, Default, Clone, Copy)]
struct CycleLoad {
    turns: usize,
    commands: usize,
    /// Turns that wait for the disk.
    waiting: usize,
    /// A turn has lately read only.
    has_readers: bool,
}

/// How a cycle with this load waits for the disk.
///
/// Blocking saves the wakes between two threads, which cost more than a short turn. Two cases do not block:
/// with deep pipelines the next turns are run while the disk works, and turns that only read do not wait for the
/// writes of others.
fn settle_mode(load: CycleLoad) -> SettleMode {
    let is_deep = load.commands >= load.waiting.saturating_mul(DEEP_COMMANDS);
    if is_deep || load.has_readers || load.waiting < load.turns {
        SettleMode::Polling
    } else {
        SettleMode::Blocking
    }
}

/// The state of the thread.
struct LoopThread {
    inbox: Arc<LoopInbox>,
    poll: OwnedFd,
    /// The connections by their place, with the number that their next event must have.
    entries: Vec<(u32, Option<Box<LoopEntry>>)>,
    free: Vec<u32>,
    /// Connections that may have a turn to run.
    ready: VecDeque<ConnectionSlot>,
    /// Databases that have something to settle.
    databases: Vec<Arc<Databases>>,
    /// Entries of the cycle's turns, by run.
    added: Vec<AddedEntries>,
    settled: Vec<(ConnectionSlot, SettleResult)>,
    buffer: Vec<u8>,
    load: CycleLoad,
    /// Whether a connection may exceed a time limit.
    has_limits: bool,
    /// The time of the latest turn, and of the last check of time limits, on the monotonic clock.
    now_ns: u64,
    checked_ns: u64,
    /// The time of the latest turn that only read.
    read_ns: Option<u64>,
    is_ending: bool,
}

/// Entries that several connections add to one run.
struct AddedEntries {
    entries: StreamEntries,
    databases: Arc<Databases>,
    /// The connections, and the number of their entries.
    from: Vec<(ConnectionSlot, usize)>,
}

impl LoopThread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.poll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the client loop cannot poll: it ends its connections");
                    return;
                }
            }
            let mut is_asked = false;
            for event in &events {
                let data = event.data.u64();
                if data == INBOX {
                    is_asked = true;
                } else {
                    self.note_event(ConnectionSlot::from_event(data), event.flags);
                }
            }
            if is_asked && self.take_requests() {
                return;
            }
            self.run_turns();
            self.submit_entries();
            self.settle();
            let is_due = self.now_ns.saturating_sub(self.checked_ns) >= TIMEOUT_CHECK_NS;
            if self.has_limits && (events.is_empty() || is_due) {
                self.end_overdue();
            }
        }
    }

    /// How long the next poll may wait; `None` means until something happens.
    fn timeout(&self) -> Option<Timespec> {
        if !self.ready.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let tv_nsec = i64::try_from(TIMEOUT_CHECK_NS).unwrap_or(i64::MAX);
        self.has_limits.then_some(Timespec { tv_sec: 0, tv_nsec })
    }

    fn entry(&mut self, slot: ConnectionSlot) -> Option<&mut LoopEntry> {
        let (number, entry) = self.entries.get_mut(slot.0 as usize)?;
        entry.as_deref_mut().filter(|_| *number == slot.1)
    }

    fn note_event(&mut self, slot: ConnectionSlot, flags: epoll::EventFlags) {
        let Some(entry) = self.entry(slot) else { return };
        entry.is_readable = true;
        let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        entry.has_hung_up |= flags.intersects(ends);
        if entry.turn.is_none() {
            self.ready.push_back(slot);
        }
    }

    /// Does what other threads ask. Returns whether the thread ends.
    fn take_requests(&mut self) -> bool {
        let LoopRequests { arrived, databases, ends_connections, stops } = self.inbox.take();
        for (connection, back) in arrived {
            self.insert(connection, back);
        }
        databases.into_iter().for_each(|databases| self.note_databases(databases));
        if ends_connections && !self.is_ending {
            self.is_ending = true;
            let (ready, entries) = (&mut self.ready, &mut self.entries);
            for (at, (number, entry)) in (0..).zip(entries) {
                if let Some(entry) = entry.as_deref_mut().filter(|entry| entry.turn.is_none()) {
                    entry.is_readable = true;
                    ready.push_back(ConnectionSlot(at, *number));
                }
            }
        }
        stops
    }

    fn note_databases(&mut self, databases: Arc<Databases>) {
        if !self.databases.iter().any(|known| Arc::ptr_eq(known, &databases)) {
            self.databases.push(databases);
        }
    }

    fn insert(&mut self, connection: Box<ClientConnection>, back: oneshot::Sender<Handback>) {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let Ok(at) = u32::try_from(self.entries.len()) else { return };
                self.entries.push((0, None));
                at
            }
        };
        let Some((number, place)) = self.entries.get_mut(at as usize) else { return };
        let slot = ConnectionSlot(at, *number);
        // Edges suffice: a connection is read until it is empty.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if epoll::add(&self.poll, &connection.stream, slot.to_event(), flags).is_err() {
            // Out of memory: the connection ends.
            self.free.push(at);
            return;
        }
        let active_ns = connection.daemon.io.monotonic_ns();
        self.has_limits |= connection.time_limit(active_ns).is_some();
        *place = Some(Box::new(LoopEntry {
            connection,
            back,
            input: Vec::new(),
            is_readable: true,
            has_hung_up: false,
            is_last: false,
            turn: None,
            active_ns,
        }));
        self.ready.push_back(slot);
    }

    fn remove(&mut self, slot: ConnectionSlot) -> Option<Box<LoopEntry>> {
        let (number, entry) = self.entries.get_mut(slot.0 as usize)?;
        let entry = entry.take_if(|_| *number == slot.1)?;
        *number = number.wrapping_add(1);
        self.free.push(slot.0);
        // A socket that is closed leaves the poll by itself; this one may live on.
        let _ = epoll::delete(&self.poll, &entry.connection.stream);
        Some(entry)
    }

    /// Ends connections that exceed a time limit.
    fn end_overdue(&mut self) {
        let mut overdue = Vec::new();
        self.has_limits = false;
        for (at, (number, entry)) in (0..).zip(&self.entries) {
            let Some(entry) = entry.as_deref() else { continue };
            let Some(limit_ns) = entry.connection.time_limit(entry.active_ns) else { continue };
            self.has_limits = true;
            self.checked_ns = entry.connection.daemon.io.monotonic_ns();
            if self.checked_ns >= limit_ns && entry.turn.is_none() {
                overdue.push(ConnectionSlot(at, *number));
            }
        }
        overdue.into_iter().for_each(|slot| drop(self.remove(slot)));
    }

    /// Runs a turn of each connection that is ready.
    fn run_turns(&mut self) {
        let has_readers = self.read_ns.is_some_and(|read| self.now_ns.saturating_sub(read) < READERS_NS);
        self.load = CycleLoad { has_readers, ..CycleLoad::default() };
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { break };
            self.run_one(slot);
        }
    }

    fn run_one(&mut self, slot: ConnectionSlot) {
        let is_ending = self.is_ending;
        let mut buffer = std::mem::take(&mut self.buffer);
        let next = self.entry(slot).filter(|entry| entry.turn.is_none()).map(|entry| {
            if entry.input.is_empty() && entry.connection.session.held_command.is_none() {
                match entry.read(&mut buffer, is_ending) {
                    Ok(None) => NextTurn::Nothing,
                    Ok(Some(read)) => entry.run_turn(slot, buffer.get(..read).unwrap_or_default()),
                    Err(_) => NextTurn::Ends,
                }
            } else {
                let input = std::mem::take(&mut entry.input);
                entry.run_turn(slot, &input)
            }
        });
        self.buffer = buffer;
        match next {
            None | Some(NextTurn::Nothing) => {}
            Some(NextTurn::Ends) => drop(self.remove(slot)),
            Some(NextTurn::Waits(databases, commands)) => {
                self.note_turn(slot);
                self.load.waiting += 1;
                self.load.commands += commands;
                self.note_entries(slot, &databases);
                self.note_databases(databases);
            }
            Some(NextTurn::Done) => {
                self.note_turn(slot);
                self.read_ns = Some(self.now_ns);
                self.finish(slot, Ok(()));
            }
        }
    }

    fn note_turn(&mut self, slot: ConnectionSlot) {
        self.load.turns += 1;
        if let Some(active_ns) = self.entry(slot).map(|entry| entry.active_ns) {
            self.now_ns = active_ns;
        }
    }

    /// Gathers the entries at the end of a connection's turn with those of the same run.
    fn note_entries(&mut self, slot: ConnectionSlot, databases: &Arc<Databases>) {
        let turn = self.entry(slot).and_then(|entry| entry.turn.as_mut());
        let Some(mut entries) = turn.and_then(|(turn, _)| turn.entries.take()) else { return };
        let from = (slot, entries.count());
        for known in &mut self.added {
            entries = match known.entries.join(entries) {
                Ok(()) => return known.from.push(from),
                Err(others) => others,
            };
        }
        self.added.push(AddedEntries { entries, databases: databases.clone(), from: vec![from] });
    }

    /// Submits the entries of the cycle: one batch for each run.
    fn submit_entries(&mut self) {
        for AddedEntries { entries, databases, from } in std::mem::take(&mut self.added) {
            let (replies, ticket) = submit_batch(entries, databases.now_ns());
            let mut replies = replies.into_iter();
            for (slot, count) in &from {
                let Some(entry) = self.entry(*slot) else { continue };
                let protocol = entry.connection.session.facts.protocol;
                let Some((turn, _)) = &mut entry.turn else { continue };
                replies.by_ref().take(*count).for_each(|reply| reply.put(protocol, &mut turn.out));
            }
            let slots = from.iter().map(|(slot, _)| *slot);
            match ticket {
                Some(ticket) => databases.await_in_loop(ticket, slots),
                None => slots.for_each(|slot| self.finish(slot, Ok(()))),
            }
        }
    }

    /// Settles the writes of the cycle, and answers the turns that waited for them.
    fn settle(&mut self) {
        if self.databases.is_empty() {
            return;
        }
        let mode = settle_mode(self.load);
        let mut settled = std::mem::take(&mut self.settled);
        // All are submitted before any is waited for, so that they share a write and a sync.
        self.databases.iter().for_each(|databases| databases.submit());
        for databases in self.databases.drain(..) {
            databases.settle(mode, &mut settled);
        }
        for (slot, result) in settled.drain(..) {
            self.finish(slot, result);
        }
        self.settled = settled;
    }

    /// Answers a turn whose writes are settled, and goes on with its connection.
    fn finish(&mut self, slot: ConnectionSlot, result: SettleResult) {
        let is_ending = self.is_ending;
        let Some(entry) = self.entry(slot) else { return };
        let next = entry.finish(result);
        entry.is_readable |= is_ending;
        // It may have given up its rights, and then has to log in again in time.
        let (has_more, has_limit) = (entry.has_more(), entry.connection.session.grant.is_none());
        self.has_limits |= has_limit;
        match next {
            NextStep::Stays if has_more => self.ready.push_back(slot),
            NextStep::Stays => {}
            NextStep::Ends => drop(self.remove(slot)),
            NextStep::Leaves(turn) => {
                let Some(entry) = self.remove(slot) else { return };
                let LoopEntry { connection, back, input, .. } = *entry;
                // A task that was aborted has ended its connection.
                let _ = back.send(Handback { connection, input, turn });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_blocks_only_for_short_turns_that_all_write() {
        let mode = |turns, waiting, commands| {
            settle_mode(CycleLoad { turns, commands, waiting, has_readers: false })
        };
        assert_eq!(mode(20, 20, 20), SettleMode::Blocking);
        assert_eq!(mode(20, 20, 20 * 16), SettleMode::Polling);
        assert_eq!(mode(20, 19, 19), SettleMode::Polling, "a reader would wait for a write");
        let after_readers = CycleLoad { turns: 20, commands: 20, waiting: 20, has_readers: true };
        assert_eq!(settle_mode(after_readers), SettleMode::Polling);
        // The databases of another thread's turn, or a batch that has become durable.
        assert_eq!(mode(0, 0, 0), SettleMode::Polling);
    }
}
