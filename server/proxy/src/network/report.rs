//! What a program reached, or tried to, besides the proxy: as it is told, and as a run keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use annals::RunReader;
use serde::{Deserialize, Serialize};

use super::hosts::{self, DestinationKind};
use super::watch::WatchPurpose;
use super::{HostPattern, NetworkPolicy, NetworkScope};
use crate::mounts::Mounts;

/// Connections of one kind to one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The name that was looked up; else the address.
    pub host: String,
    /// The port; 0 where only a name was looked up.
    pub port: u16,
    /// How many.
    pub count: u64,
    /// The program and process that made the first of them.
    pub process: String,
    /// Datagrams, not a stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub datagrams: bool,
    /// The model provider that answers there, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// What it is, where it carries no model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// What to do so that it is recorded.
    #[serde(skip)]
    pub advice: Option<String>,
    /// It was refused.
    #[serde(skip)]
    pub refused: bool,
    /// The user said that it is expected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expected: bool,
}

impl Connection {
    /// `HOST:PORT`.
    #[must_use]
    pub fn destination(&self) -> String {
        match (self.port, self.host.contains(':')) {
            (0, _) => self.host.clone(),
            (port, true) => format!("[{}]:{port}", self.host),
            (port, false) => format!("{}:{port}", self.host),
        }
    }
}

/// What a program reached, or tried to.
#[derive(Debug, Clone, Default)]
pub struct TrafficReport {
    /// All of it, but for what went through the proxy.
    pub connections: Vec<Connection>,
    /// Programs that the library is not loaded into; their connections are sampled only, or not refused.
    pub uncovered: Vec<String>,
    /// Why the network was guarded less than was asked, or not watched at all.
    pub weaker_reason: Option<String>,
    /// The kernel kept the program from the network; nothing depends on the library.
    pub is_isolated: bool,
}

impl TrafficReport {
    /// What passed without annals, may carry model calls and was not expected.
    pub fn missed(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| !of.refused && of.other.is_none() && !of.expected)
    }

    /// What was refused and was not expected to be.
    pub fn refused(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.refused && !of.expected)
    }

    /// What passed and is known to carry no model call, or is expected.
    pub fn others(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.expected || (!of.refused && of.other.is_some()))
    }

    /// As a run keeps it; `None` where there is nothing to keep.
    pub(crate) fn unrecorded(&self) -> Option<UnrecordedTraffic> {
        let connections = self.connections.iter().filter(|of| !of.refused).cloned().collect::<Vec<_>>();
        let kept = UnrecordedTraffic {
            connections,
            sampled_only: self.uncovered.clone(),
            not_watched: self.weaker_reason.clone(),
        };
        (kept != UnrecordedTraffic::default()).then_some(kept)
    }
}

/// Traffic of a recorded program that is not in its run: under `volatile.network` of the metadata of its `program` frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnrecordedTraffic {
    /// Connections that did not go through annals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connection>,
    /// Programs of which only longer connections are seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled_only: Vec<String>,
    /// Why connections were not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_watched: Option<String>,
}

impl UnrecordedTraffic {
    /// What a run keeps of it; `None` where it keeps nothing.
    ///
    /// # Errors
    /// As [`RunReader::frame_info`].
    pub fn from_reader(reader: &RunReader) -> annals::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct NetworkMetadata {
            volatile: NetworkVolatile,
        }
        #[derive(Deserialize)]
        struct NetworkVolatile {
            network: UnrecordedTraffic,
        }
        for seq in (1..=reader.info().frames).rev().take(LAST_FRAMES) {
            let frame = reader.frame_info(seq)?;
            if frame.component.name() == crate::own_frames::PROGRAM {
                let metadata = serde_json::from_slice::<NetworkMetadata>(&frame.metadata);
                return Ok(metadata.ok().map(|metadata| metadata.volatile.network));
            }
        }
        Ok(None)
    }

    /// What may have carried model calls and was not expected.
    pub fn missed(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.other.is_none() && !of.expected)
    }
}

/// Among so many last frames of a run is its program's.
const LAST_FRAMES: usize = 4;

/// An event of one of the sources.
#[derive(Debug, Clone)]
pub(super) struct NetworkEvent {
    pub(super) host: Option<String>,
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) process: String,
    pub(super) is_datagram: bool,
    pub(super) refused: bool,
    pub(super) count: u64,
}

/// Puts events together by destination. `names` are those that were looked up, by address.
pub(super) fn connections(
    events: Vec<NetworkEvent>,
    names: &BTreeMap<IpAddr, BTreeSet<String>>,
    mounts: &Mounts,
    (purpose, policy): (WatchPurpose, &NetworkPolicy),
) -> Vec<Connection> {
    let mut by_place: BTreeMap<(String, u16, bool, bool), Connection> = BTreeMap::new();
    for event in events {
        let literal = event.address.map(|address| address.to_string());
        let looked_up = event.address.and_then(|address| names.get(&address));
        let known = event.host.iter().chain(looked_up.into_iter().flatten()).chain(&literal);
        let known = known.map(String::as_str).collect::<Vec<_>>();
        let Some(host) = known.first().map(|host| (*host).to_owned()) else { continue };
        let at = (host.clone(), event.port, event.refused, event.is_datagram);
        if let Some(connection) = by_place.get_mut(&at) {
            connection.count += event.count;
            continue;
        }
        let (mut provider, mut other, mut advice) = (None, None, None);
        match hosts::kind(&known, event.address, event.port, mounts) {
            DestinationKind::Model { provider: of, advice: what } => {
                (provider, advice) = (Some(of), Some(what))
            }
            DestinationKind::Other(what) => other = Some(what.to_owned()),
            DestinationKind::Unknown => (),
        }
        let covered =
            |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(&known, event.port));
        let is_local = event.address.is_some_and(|address| address.is_loopback() || address.is_unspecified());
        let in_scope = match policy.scope {
            NetworkScope::None => false,
            NetworkScope::Loopback => is_local,
            NetworkScope::All => true,
        };
        let permitted = covered(&policy.allowed) || (purpose == WatchPurpose::Replay && in_scope);
        let expected = covered(&policy.expected) || (!event.refused && permitted);
        let NetworkEvent { port, process, is_datagram: datagrams, refused, count, .. } = event;
        let connection =
            Connection { host, port, count, process, datagrams, provider, other, advice, refused, expected };
        by_place.insert(at, connection);
    }
    by_place.into_values().collect()
}
