//! What a program reached, or tried to reach, besides the proxy: as reported, and as stored with the run.

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
    /// The name that was looked up; without one, the address.
    pub host: String,
    /// The port; 0 if the name was only looked up.
    pub port: u16,
    /// The number of connections.
    pub count: u64,
    /// The program and process of the first connection.
    pub process: String,
    /// Whether these are datagrams.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub datagrams: bool,
    /// The model provider of the destination, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The description of a destination without model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// How to get the connection recorded.
    #[serde(skip)]
    pub advice: Option<String>,
    /// Whether it was refused.
    #[serde(skip)]
    pub refused: bool,
    /// Whether the user declared it as expected.
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

/// What a program reached, or tried to reach.
#[derive(Debug, Clone, Default)]
pub struct TrafficReport {
    /// All connections except those through the proxy.
    pub connections: Vec<Connection>,
    /// Programs without the library; their connections are only sampled, or are not refused.
    pub uncovered: Vec<String>,
    /// Why the network was guarded less than requested, or not watched at all.
    pub weaker_reason: Option<String>,
}

impl TrafficReport {
    /// Connections that bypassed annals, may carry model calls and were not expected.
    pub fn missed(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| !of.refused && of.other.is_none() && !of.expected)
    }

    /// Refused connections that were not expected.
    pub fn refused(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.refused && !of.expected)
    }

    /// Connections that passed and carry no model call, or are expected.
    pub fn others(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.expected || (!of.refused && of.other.is_some()))
    }

    /// The part stored with the run; `None` if there is nothing to store.
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

/// Traffic of a recorded program that its run does not contain: stored under `volatile.network` in the
/// metadata of its `program` frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnrecordedTraffic {
    /// Connections that bypassed annals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connection>,
    /// Programs whose connections were only sampled: short ones are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled_only: Vec<String>,
    /// Why connections were not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_watched: Option<String>,
}

impl UnrecordedTraffic {
    /// The stored traffic of a run; `None` if nothing is stored.
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

    /// Connections that may have carried model calls and were not expected.
    pub fn missed(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|of| of.other.is_none() && !of.expected)
    }
}

/// The program's frame is among this many last frames of a run.
const LAST_FRAMES: usize = 4;

/// An event from one of the sources.
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

/// Groups events by destination. `names` are the looked-up names, by address.
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
