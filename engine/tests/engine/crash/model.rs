//! A plain model beside the store: the state after each commit, as text.
//!
//! It shares no code with the engine. Histories are lists, a fork copies its parent's frames, and links are
//! computed from docs/format.md, section 14.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use annals::{Component, Severity, Status};

/// Keys whose whole history is compared.
pub(super) const KEYS: [&str; 3] = ["a", "b", "c"];

/// Keyspaces, and how many versions of a key each returns.
pub(super) const SPACES: [(&str, usize); 4] =
    [("age", usize::MAX), ("all", usize::MAX), ("latest", 1), ("two", 2)];

/// Eight bytes of BLAKE3, as a short text for bytes.
pub(super) fn short_hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

/// Each key's versions, oldest first; `None` is a deletion.
type ModelKeys = BTreeMap<String, Vec<Option<Arc<str>>>>;

#[derive(Debug, Clone, Default)]
pub(super) struct StoreModel {
    pub(super) made: bool,
    /// By name.
    pub(super) spaces: BTreeMap<&'static str, ModelKeys>,
    /// By keyspace and key: the vector of the current value.
    pub(super) near: BTreeMap<(&'static str, String), [f32; 3]>,
    /// In the order in which they began.
    pub(super) runs: Vec<ModelRun>,
}

#[derive(Debug, Clone)]
pub(super) struct ModelRun {
    pub(super) name: String,
    pub(super) status: Status,
    pub(super) severity: Severity,
    /// Index of the parent in `runs`, the frame forked at, and the last shared frame.
    pub(super) parent: Option<(usize, u32, u32)>,
    pub(super) metadata: String,
    pub(super) frames: Vec<ModelFrame>,
    /// By frame: the state, and the first number of its one embedding.
    pub(super) snapshots: BTreeMap<u32, (Arc<str>, f32)>,
    /// Replaced or dropped.
    pub(super) gone: bool,
    /// The rule that dropped the run, and the reason.
    pub(super) dropped: Option<(&'static str, &'static str)>,
    pub(super) pinned: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ModelFrame {
    pub(super) component: Component,
    pub(super) severity: Severity,
    pub(super) parent: u32,
    pub(super) open: bool,
    pub(super) error: bool,
    pub(super) input: Arc<str>,
    pub(super) output: Arc<str>,
    pub(super) metadata: Arc<str>,
}

impl StoreModel {
    pub(super) fn put(&mut self, space: &'static str, key: &str, value: Option<Arc<str>>) {
        self.near.remove(&(space, key.to_owned()));
        self.spaces.entry(space).or_default().entry(key.to_owned()).or_default().push(value);
    }

    /// The state as text; equal texts mean equal content.
    pub(super) fn describe(&self) -> String {
        let mut said = String::new();
        if !self.made {
            return said;
        }
        said.push_str("namespace default\n");
        for (name, limit) in SPACES {
            let Some(keys) = self.spaces.get(name) else { continue };
            let _ = writeln!(said, "keyspace {name}");
            for (key, versions) in keys {
                if let Some(Some(value)) = versions.last() {
                    describe_pair(&mut said, key.as_bytes(), value.as_bytes());
                }
            }
            for key in KEYS {
                let versions = keys.get(key).map(Vec::as_slice).unwrap_or_default();
                // With one version kept, a deleted key soon cannot be told from one that never was.
                let ended = limit == 1 && versions.last().is_some_and(Option::is_none);
                let newest = versions.iter().rev().take(if ended { 0 } else { limit });
                describe_history(&mut said, key, newest.map(|value| value.as_deref().map(str::as_bytes)));
            }
        }
        describe_near(
            &mut said,
            self.near.iter().map(|((space, key), v)| (*space, key.as_bytes(), cosine(v))),
        );
        describe_states_near(&mut said, self.snapshots());
        for (index, run) in self.runs.iter().enumerate() {
            if let Some((rule, why)) = run.dropped {
                let shared = run.parent.map_or(0, |(.., shared)| shared);
                describe_dropped(&mut said, index as u64 + 1, run.frames.len() as u32, shared, rule, why);
            }
        }
        for run in self.runs.iter().filter(|run| !run.gone) {
            let parent = run.parent.map(|(of, at, shared)| {
                let parent = &self.runs[of];
                ((!parent.gone).then_some(parent.name.as_str()), at, shared)
            });
            let frames = run.frames.len() as u32;
            describe_run(
                &mut said,
                &run.name,
                run.status,
                run.severity,
                frames,
                parent,
                run.metadata.as_bytes(),
            );
            if run.pinned {
                describe_pinned(&mut said, PIN);
            }
            let mut link = genesis();
            for (index, frame) in run.frames.iter().enumerate() {
                let seq = index as u32 + 1;
                link = frame.link(&link);
                describe_frame(&mut said, seq, frame, &link);
                if let Some((state, number)) = run.snapshots.get(&seq) {
                    describe_snapshot(&mut said, seq, state.as_bytes(), *number);
                }
            }
        }
        said
    }

    /// Run and frame of each snapshot that a living run took itself.
    fn snapshots(&self) -> impl Iterator<Item = (u64, u32)> {
        self.runs.iter().enumerate().filter(|(_, run)| !run.gone).flat_map(|(index, run)| {
            let shared = run.parent.map_or(0, |(.., shared)| shared);
            run.snapshots.keys().filter(move |seq| **seq > shared).map(move |seq| (index as u64 + 1, *seq))
        })
    }

    /// How many of a run's frames living runs share, directly or through others.
    pub(super) fn shared_by_living(&self, of: usize) -> u32 {
        let living = self.runs.iter().filter(|run| !run.gone);
        let upto = living.map(|run| {
            let (mut run, mut upto) = (run, u32::MAX);
            while let Some((parent, _, shared)) = run.parent {
                (run, upto) = (&self.runs[parent], upto.min(shared));
                if parent == of {
                    return upto;
                }
            }
            0
        });
        upto.max().unwrap_or(0)
    }
}

/// The embedders of keys and of snapshots.
pub(super) const KEYS_BY: &str = "keys-1";
pub(super) const RUNS_BY: &str = "mock";

/// The query for the vectors of keys.
pub(super) const QUERY: [f32; 3] = [1.0, 2.0, 0.5];

/// A vector for a number, with a direction that few others have.
pub(super) fn vector(number: usize) -> [f32; 3] {
    [1.0, (number % 17) as f32, (number % 5) as f32]
}

/// Cosine similarity of the vector and the query.
fn cosine(vector: &[f32; 3]) -> f32 {
    let dot = |a: &[f32; 3], b: &[f32; 3]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    (dot(vector, &QUERY) / (dot(vector, vector) * dot(&QUERY, &QUERY)).sqrt()) as f32
}

/// Keys with vectors and their scores, in key order.
pub(super) fn describe_near<'a>(said: &mut String, near: impl Iterator<Item = (&'a str, &'a [u8], f32)>) {
    for (space, key, score) in near {
        let _ = writeln!(said, "near {space} {}: {score:.4}", String::from_utf8_lossy(key));
    }
}

/// Snapshots with vectors, in their order.
pub(super) fn describe_states_near(said: &mut String, near: impl Iterator<Item = (u64, u32)>) {
    for (run, seq) in near {
        let _ = writeln!(said, "near: state {seq} of run {run}");
    }
}

/// The reason given for pins.
pub(super) const PIN: &str = "evidence";

/// A tombstone. Runs are numbered from 1 in the order in which they began.
pub(super) fn describe_dropped(said: &mut String, uid: u64, frames: u32, shared: u32, rule: &str, why: &str) {
    let _ = writeln!(said, "dropped {uid}: {frames} frames, {shared} of them shared, by {rule:?} {why:?}");
}

pub(super) fn describe_pinned(said: &mut String, why: &str) {
    let _ = writeln!(said, "  pinned: {why}");
}

pub(super) fn describe_pair(said: &mut String, key: &[u8], value: &[u8]) {
    let _ =
        writeln!(said, "  {} = {} bytes {:x}", String::from_utf8_lossy(key), value.len(), short_hash(value));
}

pub(super) fn describe_history<'a>(
    said: &mut String,
    key: &str,
    versions: impl Iterator<Item = Option<&'a [u8]>>,
) {
    let _ = write!(said, "  {key}:");
    for version in versions {
        let _ = match version {
            Some(value) => write!(said, " {:x}", short_hash(value)),
            None => write!(said, " deleted"),
        };
    }
    said.push('\n');
}

/// An open run is described as abandoned: whether it is depends on who opened the store.
pub(super) fn describe_run(
    said: &mut String,
    name: &str,
    status: Status,
    severity: Severity,
    frames: u32,
    parent: Option<(Option<&str>, u32, u32)>,
    metadata: &[u8],
) {
    let status = if status == Status::Open { Status::Abandoned } else { status };
    let _ = writeln!(
        said,
        "run {name} {status} {severity} {frames} frames, of {parent:?}, {:x}",
        short_hash(metadata)
    );
}

pub(super) fn describe_frame(said: &mut String, seq: u32, frame: &ModelFrame, link: &[u8; 32]) {
    let ModelFrame { component, severity, parent, open, error, .. } = frame;
    let _ = writeln!(
        said,
        "  {seq} {component:?} {severity} after {parent}{}{}: {:x} {:x} {:x}, link {:x}",
        if *open { " incomplete" } else { "" },
        if *error { " failed" } else { "" },
        short_hash(frame.input.as_bytes()),
        short_hash(frame.output.as_bytes()),
        short_hash(frame.metadata.as_bytes()),
        short_hash(link),
    );
}

pub(super) fn describe_snapshot(said: &mut String, seq: u32, state: &[u8], number: f32) {
    let _ = writeln!(said, "    state after {seq}: {:x} {number}", short_hash(state));
}

/// Link 0.
pub(super) fn genesis() -> [u8; 32] {
    blake3::derive_key("annals run chain 1", b"")
}

impl ModelFrame {
    fn link(&self, before: &[u8; 32]) -> [u8; 32] {
        let mut frame = blake3::Hasher::new_derive_key("annals run frame 1");
        match &self.component {
            Component::User => frame.update(&[0]),
            Component::Llm => frame.update(&[1]),
            Component::Tool => frame.update(&[2]),
            Component::Other(name) => {
                frame.update(&[15]);
                frame.update(&(name.len() as u64).to_le_bytes());
                frame.update(name.as_bytes())
            }
            other => panic!("no workload records {other:?}"),
        };
        frame.update(&self.parent.to_le_bytes());
        frame.update(&[u8::from(self.open), u8::from(self.error)]);
        // The metadata of workloads is in its canonical form.
        for body in [&self.input, &self.output, &self.metadata] {
            frame.update(blake3::hash(body.as_bytes()).as_bytes());
        }
        let mut link = blake3::Hasher::new_derive_key("annals run link 1");
        link.update(before).update(frame.finalize().as_bytes());
        link.finalize().into()
    }
}
