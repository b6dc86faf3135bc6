//! The state of a connection, and the state shared by all connections.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use annals::io::Io;
use annals::kv::StoredBlob;
use annals::retention::DeadlineKind;
use tokio::sync::Semaphore;

use super::access::{FoundToken, Grant, Rights, SAFE, TokenRegistry, time_text};
use super::changed_runs::ChangedRuns;
use super::client_loop::{ClientLoop, ConnectionSlot};
use super::command_table::{Command, CommandTable};
use super::cursors::ScanCursors;
use super::databases::Databases;
use super::login_limits::LoginLimits;
use super::operations::OperationLog;
use super::page_sessions::PageSessions;
use super::replay::{ConnectionReplay, ReplayMemory};
use super::slow_log::{CommandName, SlowLog};
use super::stream_entries::StreamEntries;
use super::tenant::Tenant;
use super::turn::{CommandRefusal, Offload};
use super::value_cache::SharedValues;
use crate::background::RememberQueue;
use crate::share::ask_daemon;
use annals_policy::profiles::{Profiles, Redactor, make_placeholder_key};
use annals_wire::resp::Protocol;

/// Time limits of turns and connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServeTimeouts {
    /// Milliseconds after which a turn is slow.
    pub(super) slow_ms: u64,
    /// How long a connection may be inactive.
    pub(super) idle: Option<Duration>,
    /// How long a namespace may be unused before it is closed; `None` means forever.
    pub(super) namespace_idle: Option<Duration>,
}

impl Default for ServeTimeouts {
    fn default() -> Self {
        Self { slow_ms: 100, idle: None, namespace_idle: Some(Duration::from_secs(300)) }
    }
}

/// Maximum number of offloaded commands at a time, by kind.
const LONG_MAX: usize = 16;
const WHOLE_MAX: usize = 2;

/// The state shared by all connections.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Browsers that use the page.
    pub(super) page: PageSessions,
    pub(super) store: annals::Store,
    pub(super) io: Arc<dyn Io>,
    /// Serves the connections of Redis clients and settles writes.
    pub(super) client_loop: ClientLoop,
    /// The namespace of clients that need no token.
    pub(super) home: String,
    /// The open namespaces.
    tenants: Mutex<BTreeMap<String, Arc<Tenant>>>,
    /// The cached values of all tenants.
    values: SharedValues,
    pub(super) access: TokenRegistry,
    profiles: Profiles,
    /// The redactor of each profile that is in use.
    redactors: Mutex<BTreeMap<Arc<str>, Arc<Redactor>>>,
    pub(super) operations: OperationLog,
    /// The directory of a store that another process holds: this one only reads it.
    pub(super) followed: OnceLock<PathBuf>,
    pub(super) table: CommandTable,
    pub(super) started_ns: u64,
    /// Number of commands and connections so far.
    pub(super) commands: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Number of logins with a wrong token, or beyond the limit of an address.
    refused: AtomicU64,
    login_limits: LoginLimits,
    pub(super) slow: SlowLog,
    pub(super) changed_runs: ChangedRuns,
    /// How long a connection may be inactive; `None` means forever.
    pub(super) idle: Option<Duration>,
    /// How long a namespace may be unused; `None` means forever.
    namespace_idle: Option<Duration>,
    /// Number of reads that the cache and the store answered in namespaces that are closed.
    closed_reads: Mutex<(u64, u64)>,
    clients: Mutex<BTreeMap<u64, ClientInfo>>,
    cursors: Mutex<ScanCursors>,
    long: Semaphore,
    whole: Semaphore,
    pub(super) replayed: ReplayMemory,
    /// Number of open frames.
    open_frames: Arc<AtomicU64>,
    /// Stores the outcomes of runs in memory, in the background.
    behind: Arc<RememberQueue>,
}

/// Metrics of a daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaemonFigures {
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

/// A command that runs later, as its own turn.
#[derive(Debug)]
pub(super) struct HeldCommand {
    pub(super) words: Vec<Vec<u8>>,
    /// When the wait ends, in milliseconds since 1970.
    pub(super) until: Option<u64>,
    /// Whether it waits for new data; otherwise only for the writes of the turn before.
    pub(super) waits: bool,
    pub(super) offload: Option<Offload>,
}

/// The properties of a connection, as shown in client lists.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientInfo {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) began_ns: u64,
    pub(super) name: Vec<u8>,
    pub(super) library: (Vec<u8>, Vec<u8>),
    pub(super) database: u8,
    pub(super) protocol: Protocol,
    /// The token's name and namespace of its login.
    pub(super) user: String,
    pub(super) namespace: String,
}

/// Why a token is no longer valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenEnd {
    Revoked,
    /// And when, in nanoseconds since 1970.
    Expired(Option<u64>),
}

impl TokenEnd {
    /// An error that says so.
    pub(super) fn error_text(self) -> String {
        match self {
            Self::Revoked => "NOAUTH the token was revoked".to_owned(),
            Self::Expired(expires_ns) => format!("NOAUTH {}", expired_text(expires_ns)),
        }
    }
}

fn expired_text(expires_ns: Option<u64>) -> String {
    let at = expires_ns.map(time_text).unwrap_or_default();
    format!("the token expired at {at}: log in with another one")
}

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) facts: ClientInfo,
    /// Its rights; `None` before it has logged in.
    pub(super) grant: Option<Grant>,
    /// Its rights without a login.
    anonymous_grant: Option<Grant>,
    /// Its rights have just changed.
    pub(super) grant_changed: bool,
    /// The number of revocations at the last check.
    revoked: u64,
    /// It uses a Unix socket, where recorders are accepted.
    pub(super) local: bool,
    /// It is a session of the debugger page.
    pub(super) is_page: bool,
    pub(super) transaction: Option<Transaction>,
    /// It is closed after its reply.
    pub(super) hangs_up: bool,
    pub(super) held_command: Option<HeldCommand>,
    /// The time limit of the current command, if it was held before.
    pub(super) until: Option<u64>,
    /// A transaction is running: its commands must not wait.
    pub(super) in_exec: bool,
    /// The kind of offload of the current command.
    pub(super) offload: Option<Offload>,
    /// Replies to these entries may be produced after later commands have run.
    pub(super) defers_replies: bool,
    pub(super) entries: Option<StreamEntries>,
    /// The run that is replayed to this connection.
    pub(super) replay: Option<ConnectionReplay>,
    /// Its place in the client loop, while that runs its turn.
    pub(super) slot: Option<ConnectionSlot>,
}

/// A command queued for EXEC.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    pub(super) command: Command,
    pub(super) words: Vec<Vec<u8>>,
    /// Its long words, which are already in the store.
    pub(super) stored: Vec<(usize, StoredBlob)>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) queued: Vec<QueuedCommand>,
    pub(super) bytes: usize,
    /// A queued command was refused, so EXEC refuses all.
    pub(super) spoiled: bool,
}

impl Daemon {
    /// Creates the daemon of a store; `io` is the store's I/O layer.
    pub(super) fn new(
        store: annals::Store,
        home: &str,
        io: Arc<dyn Io>,
        access: TokenRegistry,
        profiles: Profiles,
        patience: ServeTimeouts,
        client_loop: ClientLoop,
    ) -> Self {
        let started_ns = io.now_ns();
        Self {
            operations: OperationLog::new(store.clone()),
            followed: OnceLock::new(),
            store,
            home: home.to_owned(),
            io,
            client_loop,
            tenants: Mutex::default(),
            values: SharedValues::default(),
            access,
            profiles,
            redactors: Mutex::default(),
            table: CommandTable::new(),
            started_ns,
            commands: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            login_limits: LoginLimits::default(),
            slow: SlowLog::new(patience.slow_ms),
            changed_runs: ChangedRuns::default(),
            idle: patience.idle,
            namespace_idle: patience.namespace_idle,
            closed_reads: Mutex::default(),
            clients: Mutex::default(),
            cursors: Mutex::default(),
            long: Semaphore::new(LONG_MAX),
            whole: Semaphore::new(WHOLE_MAX),
            replayed: ReplayMemory::default(),
            open_frames: Arc::default(),
            page: PageSessions::default(),
            behind: Arc::default(),
        }
    }

    /// Waits until the runs that ended so far are in memory.
    pub(super) fn settle_memory(&self) {
        self.behind.settle();
    }

    /// Whether another process holds the store.
    pub(super) fn reads_only(&self) -> bool {
        self.followed.get().is_some()
    }

    /// Asks the process that holds the store to index frames of a namespace, if another one does. A process that cannot
    /// is no error: then fewer frames are found, and the answer says so.
    pub(super) fn ask_holder_to_index(&self, namespace: &str) {
        let Some(root) = self.followed.get() else { return };
        if let Err(why) = ask_daemon(root, &[b"RUN.INDEX", b"NAMESPACE", namespace.as_bytes()]) {
            tracing::warn!(%why, "the process that holds the store indexes no frames");
        }
        // What cannot be read again is not found.
        let _ = self.refresh();
    }

    /// Reads what another process wrote into a store that is only read here.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn refresh(&self) -> annals::Result<()> {
        self.store.refresh()?;
        self.tenants().iter().try_for_each(|tenant| tenant.databases.follow(&self.values))
    }

    /// Checks that the store takes writes.
    ///
    /// # Errors
    /// `UNAVAILABLE` if another process holds the store; `Poisoned` with the first cause.
    pub(super) fn check_writer(&self) -> Result<(), CommandRefusal> {
        if self.reads_only() {
            let why = "UNAVAILABLE another process holds the store, and this one only reads it: use the command line, which asks that process";
            return Err(why.into());
        }
        Ok(self.store.check_writer()?)
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    /// The tenant of a namespace, which is opened, and created if necessary.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn tenant(&self, namespace: &str) -> annals::Result<Arc<Tenant>> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.get(namespace) {
            return Ok(tenant.clone());
        }
        let space = self.store.namespace(namespace)?;
        let inbox = self.client_loop.inbox().clone();
        let databases = Databases::open(space.clone(), self.io.clone(), &self.values, inbox)?;
        let (frames, behind) = (self.open_frames.clone(), self.behind.clone());
        let tenant = Arc::new(Tenant::new(namespace, space, databases, frames, behind));
        tenants.insert(namespace.to_owned(), tenant.clone());
        Ok(tenant)
    }

    /// Opens the tenants that have something to sweep.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn open_expired_tenants(&self) -> annals::Result<()> {
        let now_ms = self.now_ns() / 1_000_000;
        for name in self.store.namespaces()? {
            let is_open =
                self.tenants.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name.as_str());
            if is_open {
                continue;
            }
            let space = self.store.namespace(&name)?;
            for kind in [DeadlineKind::Key, DeadlineKind::Memory, DeadlineKind::Answer] {
                if space.has_due(kind, now_ms)? {
                    self.tenant(&name)?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Closes the tenants that were unused for the time limit. They are opened again when they are named.
    pub(super) fn close_idle_tenants(&self) {
        let Some(limit) = self.namespace_idle else { return };
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = self.io.monotonic_ns();
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = tenants.extract_if(.., |_, tenant| tenant.is_unused_for(limit_ns, now_ns));
        let closed: Vec<_> = closed.map(|(_, tenant)| tenant).collect();
        drop(tenants);
        for tenant in closed {
            let (hits, misses) = tenant.databases.cache_reads();
            let mut sums = self.closed_reads.lock().unwrap_or_else(PoisonError::into_inner);
            *sums = (sums.0 + hits, sums.1 + misses);
            tracing::info!(namespace = tenant.name, "closed an idle namespace");
        }
    }

    /// The open tenants.
    pub(super) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All rights, for a client that needs no token.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn owner(&self) -> annals::Result<Grant> {
        self.owner_of(&self.home)
    }

    /// All rights in a namespace.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn owner_of(&self, namespace: &str) -> annals::Result<Grant> {
        let tenant = self.tenant(namespace)?;
        Ok(Grant {
            name: "owner".into(),
            rights: if self.reads_only() { Rights::READ.union(Rights::OPERATE) } else { Rights::ALL },
            tenant,
            profile: SAFE.into(),
            token: None,
            expires_ns: None,
        })
    }

    /// A link to the page that logs in once, to a namespace. `None` without HTTP.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn page_link(&self, namespace: &str) -> annals::Result<Option<String>> {
        let Some(address) = self.page.address() else { return Ok(None) };
        let code = self.page.make_code(namespace, &*self.io)?;
        Ok(Some(format!("{address}#/login/{code}")))
    }

    /// The rights for a login from `peer`, an address; `user` is the token's name, or `default`. `None` for a
    /// wrong token.
    ///
    /// # Errors
    /// `NOAUTH` for an expired token; `UNAVAILABLE` after too many wrong tokens from this address; as
    /// [`Daemon::tenant`].
    pub(super) fn login(
        &self,
        user: &[u8],
        token: &[u8],
        peer: &str,
    ) -> Result<Option<Grant>, CommandRefusal> {
        let now_ns = self.io.monotonic_ns();
        if !self.login_limits.allows(peer, now_ns) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let why = "too many wrong tokens came from this address: try again in ten seconds";
            return Err(annals::Error::new(annals::ErrorKind::Unavailable, why).into());
        }
        let found = match self.access.find(user, token, self.now_ns()) {
            FoundToken::Valid(found) => Some(found),
            FoundToken::Expired(found) => {
                // The text is right, so this is no guess: the address is not limited.
                self.refused.fetch_add(1, Ordering::Relaxed);
                let expired = expired_text(found.expires_ns);
                tracing::warn!(peer, token = found.name, "a login was refused: {expired}");
                return Err(CommandRefusal(format!("NOAUTH {expired}")));
            }
            FoundToken::Unknown => None,
        };
        let Some(found) = found else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(peer, "a login was refused");
            if self.login_limits.note_refused(peer, now_ns) {
                tracing::warn!(
                    peer,
                    "too many logins were refused: none from this address is tried for ten seconds"
                );
            }
            return Ok(None);
        };
        let tenant = self.tenant(&found.namespace)?;
        Ok(Some(Grant {
            name: found.name.as_str().into(),
            rights: found.rights,
            tenant,
            profile: found.profile.as_deref().unwrap_or(SAFE).into(),
            token: Some(found.hash),
            expires_ns: found.expires_ns,
        }))
    }

    /// The profiles that a token may have.
    pub(super) fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// The redactor for a session; `None` if its reader sees everything.
    ///
    /// # Errors
    /// `NOPERM` if the profile no longer exists; those of the store, which keeps the placeholders' key.
    pub(super) fn redactor(&self, session: &Session) -> Result<Option<Arc<Redactor>>, CommandRefusal> {
        let Some(grant) = session.grant.as_ref().filter(|_| session.is_redacted()) else { return Ok(None) };
        let mut redactors = self.redactors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(redactor) = redactors.get(&grant.profile) {
            return Ok(Some(redactor.clone()));
        }
        let found = self.profiles.find(&grant.profile).filter(|profile| !profile.is_raw());
        let profile = found.ok_or_else(|| {
            let name = &grant.profile;
            CommandRefusal(format!(
                "NOPERM this token's profile {name} is unknown to this daemon: --profiles gives the file"
            ))
        })?;
        let key = if profile.has_key() { [0; 32] } else { make_placeholder_key(&self.store)? };
        let redactor = Arc::new(Redactor::new(profile, key));
        redactors.insert(grant.profile.clone(), redactor.clone());
        Ok(Some(redactor))
    }

    /// Notes the duration of a turn that began at `began_ns` on the monotonic clock.
    pub(super) fn note_duration(
        &self,
        session: &Session,
        first: CommandName,
        commands: usize,
        began_ns: u64,
    ) {
        let took = self.io.monotonic_ns().saturating_sub(began_ns);
        self.slow.note_turn(took, first, commands, &session.facts, self.now_ns());
    }

    /// The current metrics.
    pub(super) fn figures(&self) -> DaemonFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tenants = self.tenants();
        let mut reads: Vec<_> = tenants.iter().map(|tenant| tenant.databases.cache_reads()).collect();
        reads.push(*self.closed_reads.lock().unwrap_or_else(PoisonError::into_inner));
        DaemonFigures {
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

    /// Finishes the work that only the daemon can finish, while the store is open.
    pub(super) fn shut_down(&self) {
        for tenant in self.tenants() {
            tenant.end_streams(self.now_ns());
        }
        self.behind.finish();
        self.operations.end();
        self.client_loop.stop();
    }

    /// The connected clients.
    pub(super) fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, ClientInfo>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The permits for offloaded commands.
    pub(super) fn offload_permits(&self, apart: Offload) -> &Semaphore {
        match apart {
            Offload::Blocking => &self.long,
            Offload::FullScan => &self.whole,
        }
    }

    /// A cursor for continuing after this key.
    pub(super) fn remember_cursor(&self, after: Vec<u8>) -> u64 {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).remember(after)
    }

    /// The key of a cursor.
    pub(super) fn cursor_position(&self, cursor: u64) -> Option<Vec<u8>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).position(cursor)
    }
}

impl Session {
    /// A new session; `unasked` are its rights without a login, `None` if it must log in.
    pub(super) fn new(facts: ClientInfo, unasked: Option<Grant>, local: bool) -> Self {
        let mut session = Self {
            facts,
            grant: None,
            anonymous_grant: unasked.clone(),
            grant_changed: false,
            revoked: 0,
            local,
            is_page: false,
            transaction: None,
            hangs_up: false,
            held_command: None,
            until: None,
            in_exec: false,
            offload: None,
            defers_replies: false,
            entries: None,
            replay: None,
            slot: None,
        };
        if let Some(grant) = unasked {
            session.grant(grant);
        }
        session
    }

    /// Whether it has rights without a login.
    pub(super) fn needs_no_token(&self) -> bool {
        self.anonymous_grant.is_some()
    }

    /// Whether it has these rights.
    pub(super) fn has_rights(&self, rights: Rights) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.rights.includes(rights))
    }

    /// Whether its reader sees runs through a profile.
    pub(super) fn is_redacted(&self) -> bool {
        !self.has_rights(Rights::READ)
    }

    /// Whether it may continue as a recorder: only a client that needs no token.
    pub(super) fn may_join_as_recorder(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.token.is_none())
    }

    /// Why its token is no longer valid: it was revoked or changed since the last check, or has expired.
    pub(super) fn token_end(&mut self, daemon: &Daemon) -> Option<TokenEnd> {
        let revocations = daemon.access.revocations();
        let grant = self.grant.as_mut().filter(|grant| grant.token.is_some())?;
        if self.revoked != revocations {
            let Some(token) = daemon.access.current(grant) else { return Some(TokenEnd::Revoked) };
            grant.expires_ns = token.expires_ns;
            self.revoked = revocations;
        }
        let is_expired = grant.expires_ns.is_some_and(|expires_ns| expires_ns <= daemon.now_ns());
        is_expired.then_some(TokenEnd::Expired(grant.expires_ns))
    }

    /// The tenant of its login; the daemon's own before a login.
    ///
    /// # Errors
    /// As [`Daemon::tenant`].
    pub(super) fn tenant(&self, daemon: &Daemon) -> annals::Result<Arc<Tenant>> {
        match &self.grant {
            Some(grant) => Ok(grant.tenant.clone()),
            None => daemon.tenant(&daemon.home),
        }
    }

    /// Sets its rights after a login.
    pub(super) fn grant(&mut self, grant: Grant) {
        (self.facts.user, self.facts.namespace) = (grant.name.to_string(), grant.tenant.name.clone());
        (self.grant, self.grant_changed) = (Some(grant), true);
        self.replay = None;
    }

    /// Resets it to its initial state; its identity stays.
    pub(super) fn reset(&mut self) {
        let facts = ClientInfo {
            id: self.facts.id,
            began_ns: self.facts.began_ns,
            address: std::mem::take(&mut self.facts.address),
            ..ClientInfo::default()
        };
        (self.facts, self.transaction, self.grant, self.grant_changed) = (facts, None, None, true);
        self.replay = None;
        if let Some(grant) = self.anonymous_grant.clone() {
            self.grant(grant);
        }
    }
}
