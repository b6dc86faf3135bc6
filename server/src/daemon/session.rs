//! What a connection is, and what all connections share.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{RunReader, RunUid, Status, StoredBlob};
use tokio::sync::{Notify, Semaphore};

use super::access::Access;
use super::databases::Databases;
use super::open_runs::OpenRun;
use super::replay::{Replay, Replayed};
use super::table::{Command, Table};
use super::turn::Apart;
use crate::resp::Protocol;

/// Places in scans that are remembered; the oldest go first.
const CURSORS_MAX: usize = 1 << 16;
/// Frames whose times are remembered, and their runs.
const TIMES_MAX: usize = 4 << 20;

/// Commands that are done apart at a time, by what they take.
const LONG_MAX: usize = 16;
const WHOLE_MAX: usize = 2;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) databases: Arc<Databases>,
    pub(super) store: annals::Store,
    pub(super) table: Table,
    pub(super) started_ns: u64,
    /// Commands done so far, and connections.
    pub(super) commands: AtomicU64,
    pub(super) connections: AtomicU64,
    clients: Mutex<BTreeMap<u64, Facts>>,
    cursors: Mutex<Cursors>,
    streams: Mutex<Streams>,
    /// Something was added to a run.
    pub(super) added: Notify,
    long: Semaphore,
    whole: Semaphore,
    pub(super) replayed: Replayed,
    /// Frames whose answer is still to come.
    pub(super) open_frames: Arc<AtomicU64>,
    /// Held while the proxy begins a run.
    pub(super) proxy_begins: Mutex<()>,
}

/// Runs that are added to, and when frames began. Locked after the databases, never before them, and never while anything is compressed.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Those that were begun here and have not ended.
    pub(super) open: HashMap<String, Arc<OpenRun>>,
    /// When frames began, in milliseconds since 1970, never going back.
    times: HashMap<RunUid, Vec<u64>>,
}

/// A command that is done later, in a turn of its own.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) words: Vec<Vec<u8>>,
    /// When it is no longer waited for, in milliseconds since 1970.
    pub(super) until: Option<u64>,
    /// It waits for something to come; else only for what the turn before wrote.
    pub(super) waits: bool,
    pub(super) apart: Option<Apart>,
}

/// What is told of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) began_ns: u64,
    pub(super) name: Vec<u8>,
    pub(super) library: (Vec<u8>, Vec<u8>),
    pub(super) database: u8,
    pub(super) protocol: Protocol,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) facts: Facts,
    pub(super) access: Access,
    pub(super) authenticated: bool,
    /// It came by a Unix socket, where recorders are let in.
    pub(super) local: bool,
    pub(super) transaction: Option<Transaction>,
    /// It is hung up on after its reply.
    pub(super) ends: bool,
    pub(super) held: Option<Held>,
    /// Until when the command that is being done may wait, where it was held before.
    pub(super) until: Option<u64>,
    /// A transaction's commands are being done: none of them waits.
    pub(super) in_exec: bool,
    /// The command that is being done is done apart.
    pub(super) apart: Option<Apart>,
    /// The run that is replayed to it.
    pub(super) replay: Option<Replay>,
}

/// A command that EXEC is to do.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) command: &'static Command,
    pub(super) words: Vec<Vec<u8>>,
    /// Long ones of them, which the store has already.
    pub(super) stored: Vec<(usize, StoredBlob)>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) queued: Vec<Queued>,
    pub(super) bytes: usize,
    /// One of them was refused: EXEC refuses all.
    pub(super) spoiled: bool,
}

/// Numbers for places in scans.
#[derive(Debug, Default)]
struct Cursors {
    last: u64,
    places: HashMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
}

impl Daemon {
    pub(super) fn new(store: annals::Store, databases: Arc<Databases>) -> Self {
        let started_ns = databases.now_ns();
        Self {
            databases,
            store,
            table: Table::new(),
            started_ns,
            commands: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            clients: Mutex::default(),
            cursors: Mutex::default(),
            streams: Mutex::default(),
            added: Notify::new(),
            long: Semaphore::new(LONG_MAX),
            whole: Semaphore::new(WHOLE_MAX),
            replayed: Replayed::default(),
            open_frames: Arc::default(),
            proxy_begins: Mutex::default(),
        }
    }

    /// Who is connected.
    pub(super) fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Facts>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places for what is done apart.
    pub(super) fn places(&self, apart: Apart) -> &Semaphore {
        match apart {
            Apart::Long => &self.long,
            Apart::Whole => &self.whole,
        }
    }

    /// Runs as streams.
    pub(super) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When each frame of a run began, in milliseconds since 1970, never going back.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn times(&self, reader: &RunReader) -> annals::Result<Vec<u64>> {
        let (uid, frames) = (reader.info().uid, reader.info().frames);
        let mut streams = self.streams();
        if streams.times.values().map(|times| times.len() + 64).sum::<usize>() > TIMES_MAX {
            streams.times.clear();
        }
        let times = streams.times.entry(uid).or_default();
        for number in times.len()..frames as usize {
            let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
            let began = reader.frame_info(number)?.started_ns / 1_000_000;
            times.push(began.max(times.last().copied().unwrap_or(0)));
        }
        Ok(times.get(..frames as usize).unwrap_or_default().to_vec())
    }

    /// Ends what XADD and the proxy began here: those runs are whole. Others were not told to end, so they are abandoned with the store's closing.
    pub(super) fn end_streams(&self) {
        let open = std::mem::take(&mut self.streams().open);
        for open in open.into_values().filter(|open| open.is_stream) {
            let status = if open.proxied.failed().is_some() { Status::Failed } else { Status::Ok };
            // Where that fails the store's closing says why.
            let _ = open.run.end(status);
        }
    }

    /// A number for going on after this key.
    pub(super) fn cursor(&self, after: Vec<u8>) -> u64 {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        cursors.last += 1;
        let number = cursors.last;
        cursors.places.insert(number, after);
        cursors.order.push_back(number);
        if cursors.order.len() > CURSORS_MAX
            && let Some(oldest) = cursors.order.pop_front()
        {
            cursors.places.remove(&oldest);
        }
        number
    }

    /// The key that a number stands for.
    pub(super) fn place(&self, cursor: u64) -> Option<Vec<u8>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).places.get(&cursor).cloned()
    }
}

impl Session {
    pub(super) fn new(facts: Facts, access: Access, local: bool) -> Self {
        Self {
            facts,
            access,
            authenticated: access.is_open(),
            local,
            transaction: None,
            ends: false,
            held: None,
            until: None,
            in_exec: false,
            apart: None,
            replay: None,
        }
    }

    /// As it was when it began, but for what it is.
    pub(super) fn reset(&mut self) {
        let facts = Facts {
            id: self.facts.id,
            began_ns: self.facts.began_ns,
            address: std::mem::take(&mut self.facts.address),
            ..Facts::default()
        };
        (self.facts, self.transaction, self.authenticated) = (facts, None, self.access.is_open());
        self.replay = None;
    }
}
