//! What a program reaches besides the proxy: noted while it is recorded, refused while it is replayed.
//!
//! Three sources say what a program tried:
//! - the network library (`server/preload/src/guard.rs`), loaded into each process: names, addresses, and refusals;
//! - the kernel, where a replay has a namespace of its own: every `connect`, static programs included;
//! - the kernel's socket tables, sampled, where there is no namespace: what processes without the library do.
//!
//! `watch` owns the sources of one program, `library` the private directory, `notices` what is told at once, `sockets` the socket tables, `hosts` what is known of a
//! destination, `report` what is said at the end.

mod hosts;
mod library;
mod notices;
mod report;
mod sockets;
mod watch;

pub use hosts::{DestinationKind, HostPattern};
pub use report::{Connection, TrafficReport, UnrecordedTraffic};
pub(crate) use watch::{NetworkWatch, WatchPurpose};

/// What a program may reach besides the proxy while its calls are answered from a recording.
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

/// Is told the first refusal to each destination, as it happens: the process and the destination.
pub type NoticeFn = fn(&str, &str);

/// What a program may reach, host by host.
#[derive(Debug, Clone, Default)]
pub struct NetworkPolicy {
    /// What it may reach in general.
    pub scope: NetworkScope,
    /// Hosts that it may reach all the same.
    pub allowed: Vec<HostPattern>,
    /// Hosts whose connections, refused or unrecorded, are listed and count as no failure.
    pub expected: Vec<HostPattern>,
    /// Is told of refusals while the program runs.
    pub notice: Option<NoticeFn>,
}
