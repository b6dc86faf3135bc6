//! What a program reaches besides the proxy: noted in a recording, refused in a replay.
//!
//! Three sources report what a program tried:
//! - the network library (`server/preload/src/guard`), loaded into each process: names, addresses and
//!   refusals;
//! - the kernel, if a replay runs in a network namespace: every `connect`, static programs included;
//! - the kernel's socket tables, sampled if there is no namespace: connections of processes without the
//!   library.
//!
//! Layout: `watch` owns the sources of one program, `library` the private directory, `notices` the immediate
//! messages. `sockets` reads the socket tables, `hosts` classifies destinations, `report` is the result.

mod hosts;
mod library;
mod notices;
mod report;
mod sockets;
mod watch;

pub use hosts::{DestinationKind, HostPattern};
pub use report::{Connection, TrafficReport, UnrecordedTraffic};
pub(crate) use watch::{NetworkWatch, WatchPurpose};

/// What a program may reach besides the proxy while a recording answers its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkScope {
    /// Nothing.
    #[default]
    None,
    /// This machine's loopback.
    Loopback,
    /// Everything.
    All,
}

/// Called at the first refusal of each destination, with the process and the destination.
pub type NoticeFn = fn(&str, &str);

/// What a program may reach, by host.
#[derive(Debug, Clone, Default)]
pub struct NetworkPolicy {
    /// The general scope.
    pub scope: NetworkScope,
    /// Hosts that are allowed in addition.
    pub allowed: Vec<HostPattern>,
    /// Hosts whose refused or unrecorded connections are listed but count as no failure.
    pub expected: Vec<HostPattern>,
    /// Called on refusals while the program runs.
    pub notice: Option<NoticeFn>,
}
