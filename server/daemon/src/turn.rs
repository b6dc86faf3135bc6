//! A turn: all whole requests that have come, done in order, their writes as one batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use annals::{ErrorKind, StoredBlob};
use tokio::sync::oneshot;

use super::databases::{Entry, Settled, Work};
use super::entries::{self, Entries};
use super::session::{Daemon, Held, Queued, Session};
use super::slow::Name;
use super::table::Command;
use super::tenant::Tenant;
use annals_wire::resp::{Limits, Malformed, Reply, Requests};
use annals_wire::schema::refused;
use annals_wire::words::code_of;

/// A turn ends after so many commands, bytes to write, and bytes of replies.
const COMMANDS_MAX: usize = 1024;
const STAGED_BYTES_MAX: usize = 4 << 20;
const REPLY_BYTES_MAX: usize = 256 << 10;
/// Commands of a transaction, and their bytes.
const QUEUED_MAX: usize = 64 << 10;
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// A command that writes so many bytes and more is done apart: they are compressed meanwhile.
const APART_BYTES: usize = 64 << 10;

/// Where a command is done that takes its time: in a turn of its own, on a thread where waiting keeps no other connection from going on. Of
/// each kind there are a few places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apart {
    /// It reads or writes a run or a long value.
    Long,
    /// It reads the whole store, or a whole run.
    Whole,
}

impl Apart {
    /// How a command is to be done, if not at once.
    fn of(command: &Command, words: &[Vec<u8>]) -> Option<Self> {
        let is = |flag| command.schema.flags.contains(&flag);
        let is_long = || words.iter().map(Vec::len).sum::<usize>() >= APART_BYTES;
        match () {
            () if is("whole") => Some(Self::Whole),
            () if is("apart") || is("write") && is_long() => Some(Self::Long),
            () => None,
        }
    }
}

/// What a command is given.
pub(super) struct Call<'a, 'w> {
    pub(super) daemon: &'a Daemon,
    pub(super) tenant: &'a Arc<Tenant>,
    pub(super) session: &'a mut Session,
    pub(super) work: &'a mut Work<'w>,
    /// Its words, its name first; as many as its arity asks for.
    pub(super) words: &'a [Vec<u8>],
    /// Those of them that the store has already, by their places.
    pub(super) stored: &'a [(usize, StoredBlob)],
}

impl<'a> Call<'a, '_> {
    /// A word, or nothing where there are fewer.
    pub(super) fn word(&self, at: usize) -> &'a [u8] {
        self.words.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    /// The words from one on.
    pub(super) fn rest(&self, from: usize) -> &'a [Vec<u8>] {
        self.words.get(from..).unwrap_or_default()
    }

    /// A word as a value to be kept.
    pub(super) fn value(&self, at: usize, deadline: Option<u64>) -> Entry {
        let stored = self.stored.iter().find(|(of, _)| *of == at).map(|(_, blob)| blob.clone());
        Entry { value: Arc::new(self.word(at).to_vec()), stored, deadline }
    }

    /// Has this command done again, apart.
    ///
    /// # Errors
    /// Within a transaction, which is not interrupted.
    pub(super) fn again_apart(&mut self) -> Outcome {
        if self.session.in_exec {
            return Err(NOT_IN_TRANSACTION.into());
        }
        let (words, until) = (self.words.to_vec(), self.session.until);
        self.session.held = Some(Held { words, until, waits: false, apart: Some(Apart::Long) });
        Ok(Reply::Null)
    }

    /// The database that the connection uses.
    pub(super) fn database(&self) -> u8 {
        self.session.facts.database
    }
}

/// What a command gives instead of a reply: an error with its code.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl From<annals::Error> for Refusal {
    fn from(error: annals::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => "ERR",
            kind => code_of(kind),
        };
        Self(format!("{code} {error}"))
    }
}

impl From<&str> for Refusal {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

const NOT_IN_TRANSACTION: &str = "ERR Command not allowed inside a transaction";

pub(super) type Outcome = Result<Reply, Refusal>;

/// What a connection comes to.
#[derive(Debug)]
pub(super) enum End {
    /// It is hung up on, once the replies are out.
    HangUp,
    /// This command makes it a recorder's.
    Recorder(Vec<Vec<u8>>),
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Replies as they are to be sent, once `wait` has come.
    pub(super) out: Vec<u8>,
    pub(super) wait: Option<oneshot::Receiver<Settled>>,
    pub(super) commands: usize,
    /// The first of them.
    pub(super) first: Name,
    pub(super) end: Option<End>,
    /// There may be whole requests left.
    pub(super) more: bool,
    /// A command waits for something to come, until then at most (milliseconds since 1970).
    pub(super) waits: Option<Option<u64>>,
    /// Something was added to a run of this namespace.
    pub(super) added: Option<Arc<Tenant>>,
}

impl Turn {
    /// Every reply becomes this error: what was to be written was not, and what was read may not last.
    pub(super) fn fail(&mut self, session: &Session, why: &str) {
        self.out.clear();
        let error = Reply::error(format!("ERR the store does not take writes: {why}"));
        (0..self.commands).for_each(|_| error.put(session.facts.protocol, &mut self.out));
    }
}

/// Does what has come.
pub(super) fn turn(
    daemon: &Daemon,
    session: &mut Session,
    requests: &mut Requests,
    input: &mut &[u8],
) -> Turn {
    let mut turn = Turn::default();
    if session.is_taken_back(daemon) {
        turn.end = Some(End::HangUp);
        return turn;
    }
    session.granted = false;
    let tenant = match session.tenant(daemon) {
        Ok(tenant) => tenant,
        Err(error) => {
            Reply::Error(Refusal::from(error).0).put(session.facts.protocol, &mut turn.out);
            turn.end = Some(End::HangUp);
            return turn;
        }
    };
    let mut work = Work::new(&tenant.databases);
    loop {
        if turn.commands >= COMMANDS_MAX
            || turn.out.len() >= REPLY_BYTES_MAX
            || work.staged_bytes() >= STAGED_BYTES_MAX
            || session.entries.as_ref().is_some_and(|entries| entries.bytes() >= STAGED_BYTES_MAX)
        {
            turn.more = true;
            break;
        }
        let held = session.held.take();
        session.until = held.as_ref().and_then(|held| held.until);
        session.apart = held.as_ref().and_then(|held| held.apart);
        let next = held.map_or_else(|| requests.next(input), |held| Ok(Some(held.words)));
        let request = match next {
            Ok(None) => break,
            Ok(Some(request)) => request,
            Err(Malformed::Http) => {
                turn.end = Some(End::HangUp);
                break;
            }
            Err(Malformed::Protocol(why)) => {
                add_entries(daemon, session, &mut work, &mut turn.out);
                let error = Reply::error(format!("ERR Protocol error: {why}"));
                error.put(session.facts.protocol, &mut turn.out);
                turn.end = Some(End::HangUp);
                break;
            }
        };
        let Some(name) = request.first() else { continue };
        if session.local
            && session.records()
            && session.transaction.is_none()
            && name.eq_ignore_ascii_case(b"STORE.USE")
        {
            turn.end = Some(End::Recorder(request));
            break;
        }
        if turn.commands == 0 {
            turn.first = Name::of(name);
        }
        if session.entries.as_ref().is_some_and(|entries| !entries.go_on(&request)) {
            add_entries(daemon, session, &mut work, &mut turn.out);
        }
        let before = entries_of(session);
        session.defers = true;
        let reply = answer(daemon, &tenant, session, &mut work, request);
        session.defers = false;
        if entries_of(session) > before {
            turn.commands += 1;
            continue;
        }
        add_entries(daemon, session, &mut work, &mut turn.out);
        if let Some(held) = &session.held {
            turn.more = true;
            turn.waits = held.waits.then_some(held.until);
            break;
        }
        reply.append(session.facts.protocol, &mut turn.out);
        turn.commands += 1;
        if session.ends {
            turn.end = Some(End::HangUp);
            break;
        }
        // From its login on a client may say more, and is in a namespace of its own.
        requests.limit(if session.grant.is_some() { Limits::CLIENT } else { Limits::STRANGER });
        if session.apart.take().is_some() || session.granted {
            turn.more = true;
            break;
        }
    }
    add_entries(daemon, session, &mut work, &mut turn.out);
    daemon.commands.fetch_add(turn.commands as u64, Ordering::Relaxed);
    turn.added = work.has_handed_over().then(|| tenant.clone());
    match work.commit() {
        Ok(wait) => turn.wait = wait,
        Err(error) => turn.fail(session, &error.to_string()),
    }
    turn
}

fn entries_of(session: &Session) -> usize {
    session.entries.as_ref().map_or(0, Entries::count)
}

/// Adds the entries that are to be added, and replies to them: before anything else is replied.
fn add_entries(daemon: &Daemon, session: &mut Session, work: &mut Work<'_>, out: &mut Vec<u8>) {
    let Some(entries) = session.entries.take() else { return };
    let replies = entries::add(entries, work, daemon.now_ns());
    replies.iter().for_each(|reply| reply.put(session.facts.protocol, out));
}

/// What came of a command that was done alone.
pub(super) struct Single {
    /// Nothing, where it is held to be done again.
    pub(super) reply: Option<Reply>,
    pub(super) wait: Option<oneshot::Receiver<Settled>>,
    /// Something was added to a run of this namespace.
    pub(super) added: Option<Arc<Tenant>>,
}

/// Does one command as a turn of its own.
pub(super) fn single(daemon: &Daemon, session: &mut Session, held: Held) -> Single {
    let failed = |error: annals::Error| Single {
        reply: Some(Reply::Error(Refusal::from(error).0)),
        wait: None,
        added: None,
    };
    let tenant = match session.tenant(daemon) {
        Ok(tenant) => tenant,
        Err(error) => return failed(error),
    };
    (session.until, session.apart) = (held.until, held.apart);
    let mut work = Work::new(&tenant.databases);
    let reply = answer(daemon, &tenant, session, &mut work, held.words);
    daemon.commands.fetch_add(u64::from(session.held.is_none()), Ordering::Relaxed);
    let added = work.has_handed_over().then(|| tenant.clone());
    match work.commit() {
        Ok(wait) => Single { reply: session.held.is_none().then_some(reply), wait, added },
        Err(error) => failed(error),
    }
}

/// The reply to a command.
fn answer(
    daemon: &Daemon,
    tenant: &Arc<Tenant>,
    session: &mut Session,
    work: &mut Work<'_>,
    words: Vec<Vec<u8>>,
) -> Reply {
    let checked = check(daemon, session, &words);
    let command = match checked {
        Ok(command) => command,
        Err(Refusal(why)) => return spoiled(session, why),
    };
    let apart = Apart::of(&command, &words);
    let is = |flag| command.schema.flags.contains(&flag);
    let queues = session.transaction.is_some() && !is("no_multi");
    if queues && (is("apart") || is("whole")) {
        return spoiled(session, NOT_IN_TRANSACTION.to_owned());
    }
    let has_to_settle = !queues && is("settled") && work.has_written();
    let goes_apart = apart.is_some() && session.apart.is_none() && (!queues || is("stores"));
    if has_to_settle || goes_apart {
        session.held = Some(Held { words, until: session.until, waits: false, apart });
        return Reply::Null;
    }
    let stored = match stored(&command, &words, apart, work) {
        Ok(stored) => stored,
        Err(Refusal(why)) => return spoiled(session, why),
    };
    if let Some(transaction) = session.transaction.as_mut().filter(|_| queues) {
        transaction.bytes += words.iter().map(|word| word.len() + 32).sum::<usize>();
        if transaction.queued.len() >= QUEUED_MAX || transaction.bytes > QUEUED_BYTES_MAX {
            transaction.queued = Vec::new();
            let why =
                format!("ERR a transaction has at most {QUEUED_MAX} commands and {QUEUED_BYTES_MAX} bytes");
            return spoiled(session, why);
        }
        transaction.queued.push(Queued { command, words, stored });
        return Reply::Simple("QUEUED".into());
    }
    let mut call = Call { daemon, tenant, session, work, words: &words, stored: &stored };
    let outcome = (command.run)(&mut call);
    let outcome = if is("action") { recorded(&mut call, outcome) } else { outcome };
    outcome.unwrap_or_else(|Refusal(why)| Reply::Error(why))
}

/// Keeps in the store what an operator had done. Nobody is told of it before that is on disk.
fn recorded(call: &mut Call<'_, '_>, outcome: Outcome) -> Outcome {
    let who = call.session.grant.as_ref().map(|grant| grant.name.clone()).unwrap_or_default();
    let failed = outcome.as_ref().err().map(|refusal| refusal.0.as_str());
    let name = call.words.first().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
    tracing::info!(who = &*who, command = name, failed = failed.is_some(), "an operator's action");
    act(call, call.words, failed)?;
    outcome
}

/// Keeps in the store that an operator had this done, in these words.
pub(super) fn act(call: &mut Call<'_, '_>, words: &[Vec<u8>], failed: Option<&str>) -> Result<(), Refusal> {
    let who = call.session.grant.as_ref().map(|grant| grant.name.clone()).unwrap_or_default();
    let (from, now_ns) = (&call.session.facts.address, call.daemon.now_ns());
    let ticket = call.daemon.operations.record(&who, from, words, failed, now_ns)?;
    call.work.rest_on(ticket);
    Ok(())
}

/// An error, after which EXEC does nothing of a transaction.
fn spoiled(session: &mut Session, why: String) -> Reply {
    if let Some(transaction) = &mut session.transaction {
        transaction.spoiled = true;
    }
    Reply::Error(why)
}

/// Hands long values to the store before anybody is kept waiting for it: they are compressed here.
fn stored(
    command: &Command,
    words: &[Vec<u8>],
    apart: Option<Apart>,
    work: &Work<'_>,
) -> Result<Vec<(usize, StoredBlob)>, Refusal> {
    if apart.is_none() || !command.schema.flags.contains(&"stores") {
        return Ok(Vec::new());
    }
    let long = words.iter().enumerate().filter(|(_, word)| word.len() >= APART_BYTES);
    long.map(|(at, word)| Ok((at, work.space().store_blob(word.as_slice())?))).collect()
}

/// The command that is meant, if this connection may give it like this.
fn check(daemon: &Daemon, session: &Session, words: &[Vec<u8>]) -> Result<Command, Refusal> {
    let name = words.first().map(Vec::as_slice).unwrap_or_default();
    let Some(command) = daemon.table.find(name) else {
        if session.grant.is_none() {
            return Err("NOAUTH Authentication required.".into());
        }
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes.get(..128).unwrap_or(bytes)).into_owned();
        if let Some(why) = refused(name) {
            return Err(Refusal(format!("ERR {} is not offered: {why}", shown(name).to_ascii_uppercase())));
        }
        let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(name));
        for word in words.iter().skip(1) {
            if text.len() > 256 {
                break;
            }
            text += &format!("'{}' ", shown(word));
        }
        return Err(Refusal(text));
    };
    match &session.grant {
        None if !command.schema.flags.contains(&"no_auth") => {
            return Err("NOAUTH Authentication required.".into());
        }
        Some(grant) if !command.schema.is_allowed(grant.rights) => {
            let (name, wanted) = (command.schema.name, command.schema.rights());
            return Err(Refusal(format!(
                "NOPERM this user has no permissions to run the '{name}' command: it takes the right {wanted}"
            )));
        }
        _ => {}
    }
    let (given, wanted) = (words.len(), command.schema.arity.unsigned_abs() as usize);
    if given < wanted || command.schema.arity > 0 && given > wanted {
        return Err(wrong_number(command.schema.name));
    }
    Ok(command)
}

/// The error for a command with too few or too many words.
pub(super) fn wrong_number(name: &str) -> Refusal {
    Refusal(format!("ERR wrong number of arguments for '{name}' command"))
}
