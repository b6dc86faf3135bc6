//! Watches the network of one program and, in a replay, guards it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use annals_preload::namespace::{
    AttemptReports, ConnectAttempt, EnteredNamespace, confine, entry, socket_type,
};
use annals_preload::traffic::{GuardMode, is_datagram_service};
use tokio::process::{Child, Command};

use super::library::{NetworkLibrary, TrafficNote};
use super::notices::{NotesFollower, Notices};
use super::report::{self, NetworkEvent, TrafficReport};
use super::sockets::{self, Sampler, Samples, SocketTable};
use super::{NetworkPolicy, NetworkScope};
use crate::mounts::Mounts;
use crate::nondet::uncovered_programs;
use crate::program::Program;

/// `SOCK_DGRAM`.
const DATAGRAMS: i32 = 2;
/// Maximum number of uncovered programs in a report.
const UNCOVERED_MAX: usize = 16;

/// Why a program is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchPurpose {
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
    purpose: WatchPurpose,
    policy: NetworkPolicy,
    mounts: Mounts,
    proxy: u16,
    program: Program,
    library: Result<NetworkLibrary, String>,
    state: Mutex<WatchState>,
    is_live: AtomicBool,
    samples: bool,
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
        purpose: WatchPurpose,
        policy: &NetworkPolicy,
        proxy: u16,
        mounts: &Mounts,
        program: &Program,
    ) -> Self {
        let mode = match (purpose, policy.scope) {
            (WatchPurpose::Record, _) | (_, NetworkScope::All) => GuardMode::Note,
            (_, NetworkScope::None) => GuardMode::Refuse,
            (_, NetworkScope::Loopback) => GuardMode::Loopback,
        };
        let library = NetworkLibrary::new(mode, proxy, &policy.allowed);
        let is_live = AtomicBool::new(mode == GuardMode::Note);
        Self {
            purpose,
            policy: policy.clone(),
            mounts: mounts.clone(),
            proxy,
            program: program.clone(),
            library,
            state: Mutex::default(),
            is_live,
            samples: true,
        }
    }

    /// The same without samples of the socket tables, which cost more than a short program itself. Connections
    /// of programs that cannot load the library are then neither refused nor noted; such programs are named.
    pub(crate) fn without_samples(mut self) -> Self {
        self.samples = false;
        self
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

    /// Starts the program: in a namespace of its own where it is to have one, with the proxy at its address there:
    /// `also_at` is given what the proxy has to listen at, and what tells about the sockets there.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        also_at: impl FnOnce(TcpListener, Option<OwnedFd>),
    ) -> std::io::Result<Child> {
        let mark = self.library.as_ref().map_or(Path::new("annals"), NetworkLibrary::directory);
        let table = self.samples.then(|| SocketTable::before_start(mark, self.proxy));
        let child = match self.spawn_confined(command) {
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
                also_at(entered.listener, entered.socket_diag);
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
        if let (Some(process), Some(table)) = (child.id(), table) {
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
    fn spawn_confined(&self, command: &mut Command) -> Result<(Child, EnteredNamespace), ConfinementFailure> {
        let wants = self.purpose == WatchPurpose::Replay
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
            && let Err(error) = library.set_mode(GuardMode::Note)
        {
            self.state().weaker = Some(format!("the network stays refused: {error}"));
        }
    }

    /// What the program reached, after its end; some of its processes may still run.
    pub(crate) fn finish(&self) -> TrafficReport {
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
        let names = names_by_address(&notes);
        let programs = executed_programs(&notes);
        let mut events = attempts;
        events.extend(sampled_events(samples, &notes));
        events.extend(notes.into_iter().filter_map(event));
        let connections = report::connections(events, &names, &self.mounts, (self.purpose, &self.policy));
        let uncovered = match (&self.library, is_isolated) {
            (_, true) => Vec::new(),
            (Ok(_), false) => uncovered_programs(&self.program, &programs, UNCOVERED_MAX),
            (Err(why), false) => {
                weaker.get_or_insert_with(|| why.clone());
                Vec::new()
            }
        };
        TrafficReport { connections, uncovered, weaker_reason: weaker }
    }
}

/// The looked-up names, by the addresses found.
fn names_by_address(notes: &[TrafficNote]) -> BTreeMap<std::net::IpAddr, BTreeSet<String>> {
    let mut names: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for note in notes {
        if let TrafficNote::LookUp { name, addresses, .. } = note {
            for address in addresses {
                names.entry(*address).or_default().insert(name.to_ascii_lowercase());
            }
        }
    }
    names
}

fn executed_programs(notes: &[TrafficNote]) -> BTreeSet<String> {
    let of = |note: &TrafficNote| match note {
        TrafficNote::Execute { program, .. } => Some(program.clone()),
        _ => None,
    };
    notes.iter().filter_map(of).collect()
}

/// Converts a note into an event; `None` for a successful look-up, whose connections are noted themselves.
fn event(note: TrafficNote) -> Option<NetworkEvent> {
    match note {
        TrafficNote::Connect { process, is_datagram, address, port, passed } => Some(NetworkEvent {
            host: None,
            address: Some(address),
            port,
            process,
            is_datagram,
            refused: !passed,
            count: 1,
        }),
        TrafficNote::LookUp { process, name, port, passed, addresses } if !passed || addresses.is_empty() => {
            Some(NetworkEvent {
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
fn sampled_events(samples: Samples, notes: &[TrafficNote]) -> Vec<NetworkEvent> {
    let noted: HashSet<_> = notes
        .iter()
        .filter_map(|note| match note {
            TrafficNote::Connect { address, port, .. } => Some((*address, *port)),
            _ => None,
        })
        .collect();
    let is_noted = |at: &sockets::SampledConnection| noted.contains(&(at.address, at.port));
    let samples = samples
        .into_iter()
        .filter(|(at, _)| (!at.is_datagram || is_datagram_service(at.port)) && !is_noted(at));
    let event = |(at, (name, count)): (sockets::SampledConnection, (String, u64))| NetworkEvent {
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
    found: Arc<Mutex<Vec<NetworkEvent>>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    fn start(reports: AttemptReports, proxy: u16, notices: Option<Notices>) -> Option<Self> {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<NetworkEvent>>>::default());
        let (stopped, events) = (stop.clone(), found.clone());
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                let note = |attempt: ConnectAttempt| {
                    if let Some(event) = attempt_event(attempt.process, attempt.socket, attempt.to, proxy) {
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

    fn finish(mut self) -> Vec<NetworkEvent> {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Converts an attempt into an event; `None` if it goes to the proxy, to no network, or sends nothing.
fn attempt_event(process: u32, socket: i32, to: Option<SocketAddr>, proxy: u16) -> Option<NetworkEvent> {
    let place = || format!("{} [{process}]", sockets::name_of(process));
    let Some(to) = to else {
        return Some(NetworkEvent {
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
    (!is_datagram || is_datagram_service(to.port())).then(|| NetworkEvent {
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
