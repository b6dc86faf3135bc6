//! A turn: all whole requests that have arrived, run in order, with their writes as one batch.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use annals::{ErrorKind, kv::StoredBlob};
use tokio::sync::oneshot;

use super::command_table::Command;
use super::databases::{Databases, KeyEntry, SettleResult, TurnBatch};
use super::session::{Daemon, HeldCommand, QueuedCommand, Session, TokenEnd};
use super::slow_log::CommandName;
use super::stream_entries::{self, StreamEntries};
use super::tenant::Tenant;
use annals_wire::resp::{Malformed, Reply, RequestDecoder, RequestLimits};
use annals_wire::schema::unsupported_reason;
use annals_wire::words::error_code;

/// A turn ends after this many commands, staged bytes, or bytes of replies.
const COMMANDS_MAX: usize = 1024;
const STAGED_BYTES_MAX: usize = 4 << 20;
const REPLY_BYTES_MAX: usize = 256 << 10;
/// Maximum number of offloaded commands that run in one turn: their replies are sent together.
const JOINED_MAX: usize = 128;
/// Maximum number of commands in a transaction, and of their bytes.
const QUEUED_MAX: usize = 64 << 10;
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// A write of at least this many bytes is offloaded, because its values are compressed.
const OFFLOAD_BYTES: usize = 64 << 10;

/// The kind of offload of a slow command: it runs in its own turn on a blocking thread, so it delays no other
/// connection. Each kind has a limited number of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offload {
    /// Reads or writes a run or a long value.
    Blocking,
    /// Reads the whole store, or a whole run.
    FullScan,
}

impl Offload {
    /// The offload for a command; `None` if it runs at once.
    fn for_command(command: &Command, words: &[Vec<u8>]) -> Option<Self> {
        let traits = &command.traits;
        let is_long = || words.iter().map(Vec::len).sum::<usize>() >= OFFLOAD_BYTES;
        match () {
            () if traits.whole => Some(Self::FullScan),
            () if traits.apart || traits.write && is_long() => Some(Self::Blocking),
            () => None,
        }
    }
}

/// The arguments of a command's function.
pub(super) struct CommandCall<'a, 'w> {
    pub(super) daemon: &'a Daemon,
    pub(super) tenant: &'a Arc<Tenant>,
    pub(super) session: &'a mut Session,
    pub(super) work: &'a mut TurnBatch<'w>,
    /// Its words, its name first; their number matches the arity.
    pub(super) words: &'a [Vec<u8>],
    /// The command's value, which [`CommandCall::value`] gives away: the word at this index is empty.
    pub(super) taken: &'a Cell<Option<(usize, Vec<u8>)>>,
    /// The words that are already in the store, by index.
    pub(super) stored: &'a [(usize, StoredBlob)],
}

impl<'a> CommandCall<'a, '_> {
    /// A word; empty if there are fewer.
    pub(super) fn word(&self, at: usize) -> &'a [u8] {
        self.words.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    /// The words from an index on.
    pub(super) fn rest(&self, from: usize) -> &'a [Vec<u8>] {
        self.words.get(from..).unwrap_or_default()
    }

    /// A word as a value to store.
    pub(super) fn value(&self, at: usize, deadline: Option<u64>) -> KeyEntry {
        let stored = self.stored.iter().find(|(of, _)| *of == at).map(|(_, blob)| Box::new(blob.clone()));
        let value = match self.taken.take() {
            Some((of, value)) if of == at => value,
            other => {
                self.taken.set(other);
                self.word(at).to_vec()
            }
        };
        KeyEntry { value: value.into(), stored, deadline }
    }

    /// Runs a command with these words.
    pub(super) fn run(&mut self, command: &Command) -> CommandResult {
        // An action writes the record of itself, which a process that only reads leaves out.
        if command.traits.always_writes && !(command.traits.action && self.daemon.reads_only()) {
            self.check_writer()?;
        }
        (command.run)(self)
    }

    /// Checks that the store takes writes, now and again before the reply: a command that writes is not
    /// acknowledged after a failed write, even if it has nothing to write itself (DEL of a key whose SET
    /// failed).
    ///
    /// # Errors
    /// As [`Daemon::check_writer`].
    pub(super) fn check_writer(&mut self) -> Result<(), CommandRefusal> {
        self.work.require_writer();
        self.daemon.check_writer()
    }

    /// Holds this command to be run again, offloaded.
    ///
    /// # Errors
    /// Inside a transaction, which cannot be interrupted.
    pub(super) fn retry_offloaded(&mut self) -> CommandResult {
        if self.session.in_exec {
            return Err(NOT_IN_TRANSACTION.into());
        }
        let (words, until) = (self.words.to_vec(), self.session.until);
        self.session.held_command =
            Some(HeldCommand { words, until, waits: false, offload: Some(Offload::Blocking) });
        Ok(Reply::Null)
    }

    /// The selected database.
    pub(super) fn database(&self) -> u8 {
        self.session.facts.database
    }
}

/// The error reply of a command, with its code.
#[derive(Debug)]
pub(super) struct CommandRefusal(pub(super) String);

impl From<annals::Error> for CommandRefusal {
    fn from(error: annals::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => "ERR",
            kind => error_code(kind),
        };
        Self(format!("{code} {error}"))
    }
}

impl From<&str> for CommandRefusal {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

const NOT_IN_TRANSACTION: &str = "ERR Command not allowed inside a transaction";

pub(super) type CommandResult = Result<Reply, CommandRefusal>;

/// How a connection ends after a turn.
#[derive(Debug)]
pub(super) enum TurnEnd {
    /// It is closed after the replies are sent.
    HangUp,
    /// This command makes it a recorder's connection.
    Recorder(Vec<Vec<u8>>),
}

/// The outcome of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnOutcome {
    /// Replies to send once `wait` has completed, or once the client loop has settled `waits_at`.
    pub(super) out: Vec<u8>,
    pub(super) wait: Option<oneshot::Receiver<SettleResult>>,
    pub(super) waits_at: Option<Arc<Databases>>,
    /// Entries at the turn's end, which the client loop submits with those of other turns; their replies
    /// follow `out`. Nothing else was written.
    pub(super) entries: Option<StreamEntries>,
    pub(super) commands: usize,
    /// The first command.
    pub(super) first: CommandName,
    pub(super) end: Option<TurnEnd>,
    /// There may be more whole requests.
    pub(super) more: bool,
    /// A command blocks until new data arrives; the inner value is its time limit (milliseconds since 1970).
    pub(super) waits: Option<Option<u64>>,
    /// Something was added to a run of this tenant.
    pub(super) added: Option<Arc<Tenant>>,
}

impl TurnOutcome {
    /// Replaces every reply by this error, which begins with its code: the writes failed, and the reads may
    /// not be durable.
    pub(super) fn fail(&mut self, session: &Session, why: &str) {
        self.out.clear();
        let error = Reply::error(why);
        (0..self.commands).for_each(|_| error.put(session.facts.protocol, &mut self.out));
    }
}

/// Runs the requests that have arrived.
pub(super) fn run_turn(
    daemon: &Daemon,
    session: &mut Session,
    requests: &mut RequestDecoder,
    input: &mut &[u8],
) -> TurnOutcome {
    let mut turn = TurnOutcome::default();
    if let Some(end) = session.token_end(daemon) {
        // A client whose token has expired has done nothing wrong: it gets the reason.
        if matches!(end, TokenEnd::Expired(_)) {
            Reply::error(end.error_text()).put(session.facts.protocol, &mut turn.out);
        }
        turn.end = Some(TurnEnd::HangUp);
        return turn;
    }
    session.grant_changed = false;
    let tenant = match session.tenant(daemon) {
        Ok(tenant) => tenant,
        Err(error) => {
            Reply::Error(CommandRefusal::from(error).0).put(session.facts.protocol, &mut turn.out);
            turn.end = Some(TurnEnd::HangUp);
            return turn;
        }
    };
    let mut work = TurnBatch::new(&tenant.databases);
    // The offload of the commands before, if the next one may join them.
    let mut joins: Option<Offload> = None;
    let is_joined = |name: &[u8]| daemon.table.find(name).is_some_and(|command| command.traits.joined);
    loop {
        if turn.commands >= COMMANDS_MAX
            || turn.out.len() >= REPLY_BYTES_MAX
            || work.staged_bytes() >= STAGED_BYTES_MAX
            || session.entries.as_ref().is_some_and(|entries| entries.bytes() >= STAGED_BYTES_MAX)
        {
            turn.more = true;
            break;
        }
        let held = session.held_command.take();
        session.until = held.as_ref().and_then(|held| held.until);
        session.offload = held.as_ref().and_then(|held| held.offload);
        let next = held.map_or_else(|| requests.next(input), |held| Ok(Some(held.words)));
        let request = match next {
            Ok(None) => break,
            Ok(Some(request)) => request,
            Err(Malformed::Http) => {
                turn.end = Some(TurnEnd::HangUp);
                break;
            }
            Err(Malformed::Protocol(why)) => {
                add_entries(daemon, session, &mut work, &mut turn.out);
                let error = Reply::error(format!("ERR Protocol error: {why}"));
                error.put(session.facts.protocol, &mut turn.out);
                turn.end = Some(TurnEnd::HangUp);
                break;
            }
        };
        let Some(name) = request.first() else { continue };
        let is_offloaded = session.offload.is_some() || joins.is_some();
        let joins_now = is_offloaded && is_joined(name);
        if let Some(offload) = joins.take() {
            if !joins_now {
                session.held_command =
                    Some(HeldCommand { words: request, until: None, waits: false, offload: None });
                turn.more = true;
                break;
            }
            session.offload = Some(offload);
        }
        if session.local
            && session.may_join_as_recorder()
            && session.transaction.is_none()
            && name.eq_ignore_ascii_case(b"STORE.USE")
        {
            turn.end = Some(TurnEnd::Recorder(request));
            break;
        }
        if turn.commands == 0 {
            turn.first = CommandName::new(name);
        }
        if session.entries.as_ref().is_some_and(|entries| !entries.continues_with(&request)) {
            add_entries(daemon, session, &mut work, &mut turn.out);
        }
        let before = deferred_count(session);
        session.defers_replies = true;
        let reply = answer(daemon, &tenant, session, &mut work, request);
        session.defers_replies = false;
        if deferred_count(session) > before {
            turn.commands += 1;
            continue;
        }
        add_entries(daemon, session, &mut work, &mut turn.out);
        if let Some(held) = &session.held_command {
            turn.more = true;
            turn.waits = held.waits.then_some(held.until);
            break;
        }
        reply.append(session.facts.protocol, &mut turn.out);
        turn.commands += 1;
        if session.hangs_up {
            turn.end = Some(TurnEnd::HangUp);
            break;
        }
        // After its login, a client may send more, and is in its own namespace.
        requests.set_limits(if session.grant.is_some() {
            RequestLimits::CLIENT
        } else {
            RequestLimits::UNAUTHENTICATED
        });
        let offload = session.offload.take();
        joins = offload.filter(|_| joins_now && turn.commands < JOINED_MAX);
        if offload.is_some() && joins.is_none() || session.grant_changed {
            turn.more = true;
            break;
        }
    }
    if session.slot.is_some() && !work.has_to_wait() {
        turn.entries = session.entries.take();
    }
    add_entries(daemon, session, &mut work, &mut turn.out);
    daemon.commands.fetch_add(turn.commands as u64, Ordering::Relaxed);
    turn.added = (work.has_submitted() || turn.entries.is_some()).then(|| tenant.clone());
    let committed = match session.slot {
        None => work.commit().map(|wait| turn.wait = wait),
        Some(slot) => work.commit_in_loop(slot).map(|waits| {
            turn.waits_at = (waits || turn.entries.is_some()).then(|| tenant.databases.clone());
        }),
    };
    if let Err(error) = committed {
        turn.fail(session, &CommandRefusal::from(error).0);
    }
    turn
}

fn deferred_count(session: &Session) -> usize {
    session.entries.as_ref().map_or(0, StreamEntries::count)
}

/// Submits the deferred entries and appends their replies, before any other reply.
fn add_entries(daemon: &Daemon, session: &mut Session, work: &mut TurnBatch<'_>, out: &mut Vec<u8>) {
    let Some(entries) = session.entries.take() else { return };
    let replies = stream_entries::submit_entries(entries, work, daemon.now_ns());
    replies.iter().for_each(|reply| reply.put(session.facts.protocol, out));
}

/// The outcome of a command that ran alone.
pub(super) struct SingleOutcome {
    /// `None` if it is held to be run again.
    pub(super) reply: Option<Reply>,
    pub(super) wait: Option<oneshot::Receiver<SettleResult>>,
    /// Something was added to a run of this tenant.
    pub(super) added: Option<Arc<Tenant>>,
}

/// Runs one command as its own turn.
pub(super) fn run_single(daemon: &Daemon, session: &mut Session, held: HeldCommand) -> SingleOutcome {
    let failed = |error: annals::Error| SingleOutcome {
        reply: Some(Reply::Error(CommandRefusal::from(error).0)),
        wait: None,
        added: None,
    };
    let tenant = match session.tenant(daemon) {
        Ok(tenant) => tenant,
        Err(error) => return failed(error),
    };
    (session.until, session.offload) = (held.until, held.offload);
    let mut work = TurnBatch::new(&tenant.databases);
    let reply = answer(daemon, &tenant, session, &mut work, held.words);
    daemon.commands.fetch_add(u64::from(session.held_command.is_none()), Ordering::Relaxed);
    let added = work.has_submitted().then(|| tenant.clone());
    match work.commit() {
        Ok(wait) => SingleOutcome { reply: session.held_command.is_none().then_some(reply), wait, added },
        Err(error) => failed(error),
    }
}

/// Runs a command and returns its reply.
fn answer(
    daemon: &Daemon,
    tenant: &Arc<Tenant>,
    session: &mut Session,
    work: &mut TurnBatch<'_>,
    mut words: Vec<Vec<u8>>,
) -> Reply {
    let checked = check_command(daemon, session, &words);
    let command = match checked {
        Ok(command) => command,
        Err(CommandRefusal(why)) => return spoil_transaction(session, why),
    };
    let apart = Offload::for_command(&command, &words);
    let traits = command.traits;
    let queues = session.transaction.is_some() && !traits.no_multi;
    if queues && (traits.apart || traits.whole) {
        return spoil_transaction(session, NOT_IN_TRANSACTION.to_owned());
    }
    let has_to_settle = !queues && traits.settled && work.has_written();
    let goes_apart = apart.is_some() && session.offload.is_none() && (!queues || traits.stores);
    if has_to_settle || goes_apart {
        session.held_command =
            Some(HeldCommand { words, until: session.until, waits: false, offload: apart });
        return Reply::Null;
    }
    if queues
        && traits.always_writes
        && let Err(CommandRefusal(why)) = daemon.check_writer()
    {
        return spoil_transaction(session, why);
    }
    let stored = match store_long_values(&command, &words, apart, work) {
        Ok(stored) => stored,
        Err(CommandRefusal(why)) => return spoil_transaction(session, why),
    };
    if let Some(transaction) = session.transaction.as_mut().filter(|_| queues) {
        transaction.bytes += words.iter().map(|word| word.len() + 32).sum::<usize>();
        if transaction.queued.len() >= QUEUED_MAX || transaction.bytes > QUEUED_BYTES_MAX {
            transaction.queued = Vec::new();
            let why =
                format!("ERR a transaction has at most {QUEUED_MAX} commands and {QUEUED_BYTES_MAX} bytes");
            return spoil_transaction(session, why);
        }
        transaction.queued.push(QueuedCommand { command, words, stored });
        return Reply::Simple("QUEUED".into());
    }
    let taken = Cell::new(take_value(&command, &mut words));
    let mut call =
        CommandCall { daemon, tenant, session, work, words: &words, taken: &taken, stored: &stored };
    let outcome = call.run(&command);
    let outcome = if traits.action { record_outcome(&mut call, outcome) } else { outcome };
    outcome.unwrap_or_else(|CommandRefusal(why)| Reply::Error(why))
}

/// Takes the value of a SET out of its words, so that it is not copied.
pub(super) fn take_value(command: &Command, words: &mut [Vec<u8>]) -> Option<(usize, Vec<u8>)> {
    const VALUE: usize = 2;
    let is_set = command.schema.name == "set";
    words.get_mut(VALUE).filter(|_| is_set).map(|value| (VALUE, std::mem::take(value)))
}

/// Records an operator's action in the store. Its reply is sent only after that is durable.
fn record_outcome(call: &mut CommandCall<'_, '_>, outcome: CommandResult) -> CommandResult {
    let who = call.session.grant.as_ref().map(|grant| grant.name.clone()).unwrap_or_default();
    let failed = outcome.as_ref().err().map(|refusal| refusal.0.as_str());
    let name = call.words.first().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
    tracing::info!(who = &*who, command = name, failed = failed.is_some(), "an operator's action");
    record_operation(call, call.words, failed)?;
    outcome
}

/// Records in the store that an operator ran these words. A process that only reads the store has changed nothing, and
/// records nothing.
pub(super) fn record_operation(
    call: &mut CommandCall<'_, '_>,
    words: &[Vec<u8>],
    failed: Option<&str>,
) -> Result<(), CommandRefusal> {
    let who = call.session.grant.as_ref().map(|grant| grant.name.clone()).unwrap_or_default();
    let (from, now_ns) = (&call.session.facts.address, call.daemon.now_ns());
    if call.daemon.reads_only() {
        return Ok(());
    }
    let ticket = call.daemon.operations.record(&who, from, words, failed, now_ns)?;
    call.work.await_before_reply(ticket);
    Ok(())
}

/// An error that makes EXEC refuse the transaction.
fn spoil_transaction(session: &mut Session, why: String) -> Reply {
    if let Some(transaction) = &mut session.transaction {
        transaction.spoiled = true;
    }
    Reply::Error(why)
}

/// Stores long values before the lock is taken, because this compresses them.
fn store_long_values(
    command: &Command,
    words: &[Vec<u8>],
    apart: Option<Offload>,
    work: &TurnBatch<'_>,
) -> Result<Vec<(usize, StoredBlob)>, CommandRefusal> {
    if apart.is_none() || !command.traits.stores {
        return Ok(Vec::new());
    }
    let long = words.iter().enumerate().filter(|(_, word)| word.len() >= OFFLOAD_BYTES);
    long.map(|(at, word)| Ok((at, work.namespace().store_blob(word.as_slice())?))).collect()
}

/// The command, if it exists and this connection may run it with these words.
fn check_command(daemon: &Daemon, session: &Session, words: &[Vec<u8>]) -> Result<Command, CommandRefusal> {
    let name = words.first().map(Vec::as_slice).unwrap_or_default();
    let Some(command) = daemon.table.find(name) else {
        if session.grant.is_none() {
            return Err("NOAUTH Authentication required.".into());
        }
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes.get(..128).unwrap_or(bytes)).into_owned();
        if let Some(why) = unsupported_reason(name) {
            return Err(CommandRefusal(format!(
                "ERR {} is not offered: {why}",
                shown(name).to_ascii_uppercase()
            )));
        }
        let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(name));
        for word in words.iter().skip(1) {
            if text.len() > 256 {
                break;
            }
            text += &format!("'{}' ", shown(word));
        }
        return Err(CommandRefusal(text));
    };
    match &session.grant {
        None if !command.traits.no_auth => {
            return Err("NOAUTH Authentication required.".into());
        }
        Some(grant)
            if !grant.rights.includes(command.traits.rights) && !command.schema.is_allowed(grant.rights) =>
        {
            let (name, wanted) = (command.schema.name, command.schema.rights());
            return Err(CommandRefusal(format!(
                "NOPERM this user has no permissions to run the '{name}' command: it takes the right {wanted}"
            )));
        }
        _ => {}
    }
    let (given, wanted) = (words.len(), command.schema.arity.unsigned_abs() as usize);
    if given < wanted || command.schema.arity > 0 && given > wanted {
        return Err(wrong_arity(command.schema.name));
    }
    Ok(command)
}

/// The error for a command with a wrong number of words.
pub(super) fn wrong_arity(name: &str) -> CommandRefusal {
    CommandRefusal(format!("ERR wrong number of arguments for '{name}' command"))
}
