//! What a connection is, and what all connections share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::StoredBlob;
use annals::io::Io;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::access::{Access, Grant, Rights};
use super::cursors::Cursors;
use super::databases::Databases;
use super::entries::Entries;
use super::operations::Operations;
use super::replay::{Replay, Replayed};
use super::slow::{Name, SlowLog};
use super::table::{Command, Table};
use super::tenant::Tenant;
use super::turn::{Apart, Refusal};
use crate::behind::Behind;
use annals_policy::profiles::{Profiles, Redactor, make_placeholder_key};
use annals_wire::resp::Protocol;

/// How long what may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Milliseconds after which a turn is slow.
    pub(super) slow_ms: u64,
    /// How long a connection may ask nothing.
    pub(super) idle: Option<Duration>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { slow_ms: 100, idle: None }
    }
}

/// The profile of a redacted reader whose token names none.
const SAFE: &str = "safe";

/// Commands that are done apart at a time, by what they take.
const LONG_MAX: usize = 16;
const WHOLE_MAX: usize = 2;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) store: annals::Store,
    pub(super) io: Arc<dyn Io>,
    runtime: Handle,
    /// The namespace of whoever needs no token.
    pub(super) home: String,
    /// Namespaces that somebody has come to.
    tenants: Mutex<BTreeMap<String, Arc<Tenant>>>,
    pub(super) access: Access,
    profiles: Profiles,
    /// What shows by a profile, once somebody reads by it.
    redactors: Mutex<BTreeMap<Arc<str>, Arc<Redactor>>>,
    pub(super) operations: Operations,
    pub(super) table: Table,
    pub(super) started_ns: u64,
    /// Commands done so far, and connections.
    pub(super) commands: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Logins with a wrong token.
    refused: AtomicU64,
    pub(super) slow: SlowLog,
    /// How long a connection may ask nothing; without end where there is none.
    pub(super) idle: Option<Duration>,
    clients: Mutex<BTreeMap<u64, Facts>>,
    cursors: Mutex<Cursors>,
    long: Semaphore,
    whole: Semaphore,
    pub(super) replayed: Replayed,
    /// Frames whose answer is still to come.
    open_frames: Arc<AtomicU64>,
    /// Has runs remembered.
    behind: Arc<Behind>,
}

/// What a daemon has done and holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) commands: u64,
    pub(super) connections: u64,
    pub(super) connections_begun: u64,
    pub(super) logins_refused: u64,
    pub(super) slow: u64,
    pub(super) open_runs: u64,
    pub(super) open_frames: u64,
    pub(super) values_hits: u64,
    pub(super) values_misses: u64,
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
    /// Who it logged in as, and to which namespace.
    pub(super) user: String,
    pub(super) namespace: String,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) facts: Facts,
    /// What it may do; nothing before it has logged in.
    pub(super) grant: Option<Grant>,
    /// What it may do without a login.
    unasked: Option<Grant>,
    /// What it may do has just changed.
    pub(super) granted: bool,
    /// How many tokens had been taken back when that was looked at.
    revoked: u64,
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
    /// Replies may come later than what follows is done: those to these entries.
    pub(super) defers: bool,
    pub(super) entries: Option<Entries>,
    /// The run that is replayed to it.
    pub(super) replay: Option<Replay>,
}

/// A command that EXEC is to do.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) command: Command,
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

impl Daemon {
    /// Of a store, whose system this is; tasks are started on the runtime.
    pub(super) fn new(
        store: annals::Store,
        home: &str,
        io: Arc<dyn Io>,
        access: Access,
        profiles: Profiles,
        patience: Patience,
        runtime: Handle,
    ) -> Self {
        let started_ns = io.now_ns();
        Self {
            operations: Operations::new(store.clone()),
            store,
            home: home.to_owned(),
            io,
            runtime,
            tenants: Mutex::default(),
            access,
            profiles,
            redactors: Mutex::default(),
            table: Table::new(),
            started_ns,
            commands: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            slow: SlowLog::new(patience.slow_ms),
            idle: patience.idle,
            clients: Mutex::default(),
            cursors: Mutex::default(),
            long: Semaphore::new(LONG_MAX),
            whole: Semaphore::new(WHOLE_MAX),
            replayed: Replayed::default(),
            open_frames: Arc::default(),
            behind: Arc::default(),
        }
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    /// A namespace, which is opened, and made where there is none.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn tenant(&self, namespace: &str) -> annals::Result<Arc<Tenant>> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.get(namespace) {
            return Ok(tenant.clone());
        }
        let space = self.store.namespace(namespace)?;
        let (databases, settling) = Databases::open(space.clone(), self.io.clone())?;
        self.runtime.spawn(databases.clone().settle(settling));
        let (frames, behind) = (self.open_frames.clone(), self.behind.clone());
        let tenant = Arc::new(Tenant::new(namespace, space, databases, frames, behind));
        tenants.insert(namespace.to_owned(), tenant.clone());
        Ok(tenant)
    }

    /// The namespaces that somebody has come to.
    pub(super) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All rights, for whoever needs no token.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn owner(&self) -> annals::Result<Grant> {
        let tenant = self.tenant(&self.home)?;
        Ok(Grant { name: "owner".into(), rights: Rights::ALL, tenant, profile: SAFE.into(), token: None })
    }

    /// What whoever says this may do: `user` is the token's name, or `default` where none is named.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn login(&self, user: &[u8], token: &[u8]) -> annals::Result<Option<Grant>> {
        let Some(found) = self.access.find(user, token) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a login was refused");
            return Ok(None);
        };
        let tenant = self.tenant(&found.namespace)?;
        Ok(Some(Grant {
            name: found.name.as_str().into(),
            rights: found.rights,
            tenant,
            profile: found.profile.as_deref().unwrap_or(SAFE).into(),
            token: Some(found.hash),
        }))
    }

    /// The profiles that a token may have.
    pub(super) fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// What shows a session's reader things, where that is by a profile.
    ///
    /// # Errors
    /// `NOPERM` where there is no such profile any more; those of the store, which keeps the placeholders' key.
    pub(super) fn redactor(&self, session: &Session) -> Result<Option<Arc<Redactor>>, Refusal> {
        let Some(grant) = session.grant.as_ref().filter(|_| session.is_redacted()) else { return Ok(None) };
        let mut redactors = self.redactors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(redactor) = redactors.get(&grant.profile) {
            return Ok(Some(redactor.clone()));
        }
        let found = self.profiles.find(&grant.profile).filter(|profile| !profile.is_raw());
        let profile = found.ok_or_else(|| {
            let name = &grant.profile;
            Refusal(format!("NOPERM this token's profile {name} is not among those of this daemon: --profiles names the file"))
        })?;
        let key = if profile.has_key() { [0; 32] } else { make_placeholder_key(&self.store)? };
        let redactor = Arc::new(Redactor::new(profile, key));
        redactors.insert(grant.profile.clone(), redactor.clone());
        Ok(Some(redactor))
    }

    /// A turn of a connection has its replies, which was begun then on the monotonic clock.
    pub(super) fn took(&self, session: &Session, first: Name, commands: usize, began_ns: u64) {
        let took = self.io.monotonic_ns().saturating_sub(began_ns);
        self.slow.took(took, first, commands, &session.facts, self.now_ns());
    }

    /// Figures of this moment.
    pub(super) fn figures(&self) -> Figures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tenants = self.tenants();
        let reads: Vec<_> = tenants.iter().map(|tenant| tenant.databases.reads()).collect();
        Figures {
            commands: load(&self.commands),
            connections: self.clients().len() as u64,
            connections_begun: load(&self.connections),
            logins_refused: load(&self.refused),
            slow: self.slow.count(),
            open_runs: tenants.iter().map(|tenant| tenant.streams().open.len() as u64).sum(),
            open_frames: load(&self.open_frames),
            values_hits: reads.iter().map(|(hits, _)| hits).sum(),
            values_misses: reads.iter().map(|(_, misses)| misses).sum(),
        }
    }

    /// Ends what only the daemon could go on with, while the store is open.
    pub(super) fn end(&self) {
        for tenant in self.tenants() {
            tenant.end_streams(self.now_ns());
        }
        self.behind.finish();
        self.operations.end();
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

    /// A number for going on after this key.
    pub(super) fn cursor(&self, after: Vec<u8>) -> u64 {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).remember(after)
    }

    /// The key that a number stands for.
    pub(super) fn place(&self, cursor: u64) -> Option<Vec<u8>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).place(cursor)
    }
}

impl Session {
    /// One that may do this without a login; nothing, where it has to log in.
    pub(super) fn new(facts: Facts, unasked: Option<Grant>, local: bool) -> Self {
        let mut session = Self {
            facts,
            grant: None,
            unasked: unasked.clone(),
            granted: false,
            revoked: 0,
            local,
            transaction: None,
            ends: false,
            held: None,
            until: None,
            in_exec: false,
            apart: None,
            defers: false,
            entries: None,
            replay: None,
        };
        if let Some(grant) = unasked {
            session.grant(grant);
        }
        session
    }

    /// Whether it may do what it may without a login.
    pub(super) fn needs_no_token(&self) -> bool {
        self.unasked.is_some()
    }

    /// Whether it may do this.
    pub(super) fn may(&self, rights: Rights) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.rights.include(rights))
    }

    /// Whether it is shown runs by a profile, and not as they are stored.
    pub(super) fn is_redacted(&self) -> bool {
        !self.may(Rights::READ)
    }

    /// Whether it may record as `annals record` does: only whoever needs no token.
    pub(super) fn records(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.token.is_none())
    }

    /// Whether the token that it came by was taken back.
    pub(super) fn is_taken_back(&mut self, daemon: &Daemon) -> bool {
        let revoked = daemon.access.revoked();
        if self.revoked == revoked {
            return false;
        }
        self.revoked = revoked;
        let Some(Grant { name, token: Some(hash), .. }) = &self.grant else { return false };
        !daemon.access.holds(name, hash)
    }

    /// The namespace that it is in; that of the daemon before it has logged in.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn tenant(&self, daemon: &Daemon) -> annals::Result<Arc<Tenant>> {
        match &self.grant {
            Some(grant) => Ok(grant.tenant.clone()),
            None => daemon.tenant(&daemon.home),
        }
    }

    /// Lets it do this from now on.
    pub(super) fn grant(&mut self, grant: Grant) {
        (self.facts.user, self.facts.namespace) = (grant.name.to_string(), grant.tenant.name.clone());
        (self.grant, self.granted) = (Some(grant), true);
        self.replay = None;
    }

    /// As it was when it began, but for what it is.
    pub(super) fn reset(&mut self) {
        let facts = Facts {
            id: self.facts.id,
            began_ns: self.facts.began_ns,
            address: std::mem::take(&mut self.facts.address),
            ..Facts::default()
        };
        (self.facts, self.transaction, self.grant, self.granted) = (facts, None, None, true);
        self.replay = None;
        if let Some(grant) = self.unasked.clone() {
            self.grant(grant);
        }
    }
}
