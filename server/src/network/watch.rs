//! Watches the network of one program and, in a replay, guards it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use annals_preload::namespace::{Attempt, Entered, Reports, confine, entry, socket_type};
use annals_preload::traffic::{Mode, is_datagram_service};
use tokio::process::{Child, Command};

use super::library::{NetworkLibrary, Note};
use super::notices::{NotesFollower, Notices};
use super::report::{self, Event, TrafficReport};
use super::sockets::{self, Sampler, Samples, SocketTable};
use super::{NetworkPolicy, NetworkScope};
use crate::nondet::uncovered;
use crate::program::Program;
use crate::proxy::{Mounts, Proxy};

/// `SOCK_DGRAM`.
const DATAGRAMS: i32 = 2;
/// Maximum number of uncovered programs in a report.
const UNCOVERED_MAX: usize = 16;

/// Why a program is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Everything passes and is noted.
    Record,
    /// Only allowed connections pass.
    Replay,
    /// Like a replay until [`NetworkWatch::go_live`], then like a recording.
    Prefix,
}

/// Watches the network of one program.
#[derive(Debug)]
pub(crate) struct NetworkWatch {
    purpose: Purpose,
    policy: NetworkPolicy,
    mounts: Mounts,
    proxy: u16,
    program: Program,
    library: Result<NetworkLibrary, String>,
    state: Mutex<WatchState>,
    is_live: AtomicBool,
}

#[derive(Debug, Default)]
struct WatchState {
    sampler: Option<Sampler>,
    supervisor: Option<Supervisor>,
    follower: Option<NotesFollower>,
    is_isolated: bool,
    weaker: Option<String>,
}

/// Why a program does not run in a namespace.
enum ConfinementFailure {
    NotWanted,
    /// The system does not permit a namespace.
    Refused(std::io::Error),
    /// The program itself cannot be started.
    Program(std::io::Error),
    /// The program has started without a namespace.
    Started(Box<Child>),
}

impl NetworkWatch {
    /// Watches a program behind the proxy at this port.
    pub(crate) fn begin(
        purpose: Purpose,
        policy: &NetworkPolicy,
        proxy: u16,
        mounts: &Mounts,
        program: &Program,
    ) -> Self {
        let mode = match (purpose, policy.scope) {
            (Purpose::Record, _) | (_, NetworkScope::All) => Mode::Note,
            (_, NetworkScope::None) => Mode::Refuse,
            (_, NetworkScope::Loopback) => Mode::Loopback,
        };
        let library = NetworkLibrary::new(mode, proxy, &policy.allowed);
        let is_live = AtomicBool::new(mode == Mode::Note);
        Self {
            purpose,
            policy: policy.clone(),
            mounts: mounts.clone(),
            proxy,
            program: program.clone(),
            library,
            state: Mutex::default(),
            is_live,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program's variables; `preloaded` lists other preloaded libraries.
    pub(crate) fn environment(&self, preloaded: Option<&str>) -> Vec<(String, String)> {
        match &self.library {
            Ok(library) => library.environment(preloaded).into(),
            Err(_) => Vec::new(),
        }
    }

    /// Starts the program. If it gets a namespace of its own, the proxy also listens at its address there.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn spawn(&self, command: &mut Command, proxy: &Proxy) -> std::io::Result<Child> {
        let mark = self.library.as_ref().map_or(Path::new("annals"), NetworkLibrary::directory);
        let table = SocketTable::before_start(mark, self.proxy);
        let child = match self.confined(command) {
            Ok((child, entered)) => {
                let notices = self.follow();
                let mut state = self.state();
                state.is_isolated = true;
                let reports = entered.reports;
                state.supervisor =
                    reports.and_then(|reports| Supervisor::start(reports, self.proxy, notices));
                if state.supervisor.is_none() {
                    let why =
                        "the kernel reports no attempts here: a static program is refused, and not named";
                    state.weaker = Some(why.to_owned());
                }
                proxy.also_at(entered.listener);
                return Ok(child);
            }
            Err(ConfinementFailure::Started(child)) => {
                self.state().weaker =
                    Some("the proxy cannot listen in the program's network namespace".to_owned());
                *child
            }
            Err(ConfinementFailure::Program(error)) => return Err(error),
            Err(ConfinementFailure::Refused(error)) => {
                let why = format!(
                    "a network namespace is not permitted here ({error}): only a loaded library guards"
                );
                self.state().weaker = Some(why);
                command.spawn()?
            }
            Err(ConfinementFailure::NotWanted) => command.spawn()?,
        };
        let _ = self.follow();
        if let Some(process) = child.id() {
            let mut state = self.state();
            state.sampler = Sampler::start(table, process);
            if state.sampler.is_none() {
                let why = "no thread can be started that samples the socket tables";
                state.weaker.get_or_insert_with(|| why.to_owned());
            }
        }
        Ok(child)
    }

    /// Reports refusals as they happen, if requested.
    fn follow(&self) -> Option<Notices> {
        let notices = Notices::new(self.policy.notice?);
        if let Ok(Ok(notes)) = self.library.as_ref().map(NetworkLibrary::follow) {
            self.state().follower = NotesFollower::start(notes, notices.clone());
        }
        Some(notices)
    }

    /// Starts the program in a namespace of its own.
    fn confined(&self, command: &mut Command) -> Result<(Child, Entered), ConfinementFailure> {
        let wants = self.purpose == Purpose::Replay
            && self.policy.scope == NetworkScope::None
            && self.policy.allowed.is_empty();
        if !wants {
            return Err(ConfinementFailure::NotWanted);
        }
        let (entry, gate) = entry(self.proxy).map_err(ConfinementFailure::Refused)?;
        let confinement = confine(command.as_std_mut(), entry).map_err(ConfinementFailure::Refused)?;
        let (spawned, admitted) = std::thread::scope(|scope| {
            let admitting = scope.spawn(|| gate.admit(map_users));
            let spawned = command.spawn();
            if spawned.is_err() {
                confinement.give_up();
            }
            (spawned, admitting.join())
        });
        confinement.give_up();
        let admitted = admitted.unwrap_or_else(|_| Err(std::io::Error::other("its entry failed")));
        match (spawned, admitted) {
            (Ok(child), Ok(entered)) => Ok((child, entered)),
            (Err(error), Ok(_)) => Err(ConfinementFailure::Program(error)),
            // The child's own error names the refused step.
            (Err(error), Err(_)) => Err(ConfinementFailure::Refused(error)),
            (Ok(child), Err(_)) => Err(ConfinementFailure::Started(Box::new(child))),
        }
    }

    /// From now on the program may reach everything, and its connections are noted.
    pub(crate) fn go_live(&self) {
        if !self.is_live.swap(true, Ordering::AcqRel)
            && let Ok(library) = &self.library
            && let Err(error) = library.set_mode(Mode::Note)
        {
            self.state().weaker = Some(format!("the network stays refused: {error}"));
        }
    }

    /// What the program reached, after its end; some of its processes may still run.
    pub(crate) fn finish(&self, are_left: bool) -> TrafficReport {
        if let (true, Ok(library)) = (are_left, &self.library) {
            library.leave();
        }
        let (sampler, supervisor, is_isolated, mut weaker) = {
            let mut state = self.state();
            state.follower = None;
            (state.sampler.take(), state.supervisor.take(), state.is_isolated, state.weaker.take())
        };
        let samples = sampler.map(Sampler::finish).unwrap_or_default();
        let attempts = supervisor.map(Supervisor::finish).unwrap_or_default();
        let (notes, more) = self.library.as_ref().map(NetworkLibrary::notes).unwrap_or_default();
        weaker = match (weaker, more) {
            (Some(weaker), Some(more)) => Some(format!("{weaker}; {more}")),
            (weaker, more) => weaker.or(more),
        };
        let names = names(&notes);
        let programs = programs(&notes);
        let mut events = attempts;
        events.extend(sampled(samples, &notes));
        events.extend(notes.into_iter().filter_map(event));
        let connections = report::connections(events, &names, &self.mounts, (self.purpose, &self.policy));
        let uncovered = match (&self.library, is_isolated) {
            (_, true) => Vec::new(),
            (Ok(_), false) => uncovered(&self.program, &programs, UNCOVERED_MAX),
            (Err(why), false) => {
                weaker.get_or_insert_with(|| why.clone());
                Vec::new()
            }
        };
        TrafficReport { connections, uncovered, weaker, is_isolated }
    }
}

/// The looked-up names, by the addresses found.
fn names(notes: &[Note]) -> BTreeMap<std::net::IpAddr, BTreeSet<String>> {
    let mut names: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for note in notes {
        if let Note::LookUp { name, addresses, .. } = note {
            for address in addresses {
                names.entry(*address).or_default().insert(name.to_ascii_lowercase());
            }
        }
    }
    names
}

fn programs(notes: &[Note]) -> BTreeSet<String> {
    let of = |note: &Note| match note {
        Note::Execute { program, .. } => Some(program.clone()),
        _ => None,
    };
    notes.iter().filter_map(of).collect()
}

/// Converts a note into an event; `None` for a successful look-up, whose connections are noted themselves.
fn event(note: Note) -> Option<Event> {
    match note {
        Note::Connect { process, is_datagram, address, port, passed } => Some(Event {
            host: None,
            address: Some(address),
            port,
            process,
            is_datagram,
            refused: !passed,
            count: 1,
        }),
        Note::LookUp { process, name, port, passed, addresses } if !passed || addresses.is_empty() => {
            Some(Event {
                host: Some(name.to_ascii_lowercase()),
                address: None,
                port,
                process,
                is_datagram: false,
                refused: !passed,
                count: 1,
            })
        }
        _ => None,
    }
}

/// Sampled connections that no process with the library has noted.
fn sampled(samples: Samples, notes: &[Note]) -> Vec<Event> {
    let noted: HashSet<_> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Connect { address, port, .. } => Some((*address, *port)),
            _ => None,
        })
        .collect();
    let is_noted = |at: &sockets::SampledConnection| noted.contains(&(at.address, at.port));
    let samples = samples
        .into_iter()
        .filter(|(at, _)| (!at.is_datagram || is_datagram_service(at.port)) && !is_noted(at));
    let event = |(at, (name, count)): (sockets::SampledConnection, (String, u64))| Event {
        host: None,
        address: Some(at.address),
        port: at.port,
        process: format!("{name} [{}]", at.process),
        is_datagram: at.is_datagram,
        refused: false,
        count,
    };
    samples.map(event).collect()
}

/// Notes what the kernel reports about a namespace.
#[derive(Debug)]
struct Supervisor {
    stop: Arc<AtomicBool>,
    found: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    fn start(reports: Reports, proxy: u16, notices: Option<Notices>) -> Option<Self> {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Event>>>::default());
        let (stopped, events) = (stop.clone(), found.clone());
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                let note = |attempt: Attempt| {
                    if let Some(event) = attempted(attempt.process, attempt.socket, attempt.to, proxy) {
                        if let (Some(notices), Some(to)) = (&notices, attempt.to) {
                            notices.refused(&event.process, to.to_string());
                        }
                        events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                    }
                };
                if !reports.next(note).unwrap_or(false) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("annals-network".to_owned()).spawn(work).ok()?;
        Some(Self { stop, found, thread: Some(thread) })
    }

    fn finish(mut self) -> Vec<Event> {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Converts an attempt into an event; `None` if it goes to the proxy, to no network, or sends nothing.
fn attempted(process: u32, socket: i32, to: Option<SocketAddr>, proxy: u16) -> Option<Event> {
    let place = || format!("{} [{process}]", sockets::name_of(process));
    let Some(to) = to else {
        return Some(Event {
            host: Some("an address that cannot be read".to_owned()),
            address: None,
            port: 0,
            process: place(),
            is_datagram: false,
            refused: true,
            count: 1,
        });
    };
    if to.port() == 0 || (to.ip().is_loopback() && to.port() == proxy) {
        return None;
    }
    let is_datagram = socket_type(process, socket) == Some(DATAGRAMS);
    (!is_datagram || is_datagram_service(to.port())).then(|| Event {
        host: None,
        address: Some(to.ip()),
        port: to.port(),
        process: place(),
        is_datagram,
        refused: true,
        count: 1,
    })
}

/// Maps the users of a process in a new user namespace: all users of this process if permitted; else only its
/// own.
fn map_users(process: u32) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a file of the kernel")]
    let write = |name: &str, text: &str| std::fs::write(format!("/proc/{process}/{name}"), text);
    let all = |name: &str| {
        let map = std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let line = |line: &str| {
            let mut numbers = line.split_whitespace();
            let (inside, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
            Some(format!("{inside} {inside} {count}\n"))
        };
        map.lines().filter_map(line).collect::<String>()
    };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if user == 0 && write("uid_map", &all("uid_map")).is_ok() {
        return write("gid_map", &all("gid_map"));
    }
    write("setgroups", "deny")?;
    write("gid_map", &format!("{group} {group} 1"))?;
    write("uid_map", &format!("{user} {user} 1"))
}
