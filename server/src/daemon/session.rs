//! What a connection is, and what all connections share.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::Access;
use super::databases::Databases;
use super::table::{Command, Table};
use crate::resp::Protocol;

/// Places in scans that are remembered; the oldest go first.
const CURSORS_MAX: usize = 1 << 16;

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
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) queued: Vec<(&'static Command, Vec<Vec<u8>>)>,
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
        }
    }

    /// Who is connected.
    pub(super) fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Facts>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
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
        Self { facts, access, authenticated: access.is_open(), local, transaction: None, ends: false }
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
    }
}
