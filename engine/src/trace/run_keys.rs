//! Index keys of the records of runs.

use crate::ids::{NamespaceId, RunUid};
use crate::kv::keys::{key, space_of};

const RUNS: u32 = 2;
const RUN_NAMES: u32 = 3;
const FRAMES: u32 = 4;
const PARTS: u32 = 5;
const SNAPSHOTS: u32 = 6;

/// The key of a run's record.
pub(crate) fn run(namespace: NamespaceId, uid: RunUid) -> Vec<u8> {
    let mut key = runs(namespace);
    key.extend_from_slice(&uid.0.to_be_bytes());
    key
}

/// The prefix of a namespace's runs.
pub(crate) fn runs(namespace: NamespaceId) -> Vec<u8> {
    let mut key = key(RUNS, 12);
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key
}

/// The uid at the end of a key from [`run`].
pub(crate) fn run_uid(key: &[u8]) -> Option<RunUid> {
    Some(RunUid(u64::from_be_bytes(key.get(8..16)?.try_into().ok()?)))
}

/// The key of a living run's name.
pub(crate) fn run_name(namespace: NamespaceId, name: &str) -> Vec<u8> {
    let mut key = key(RUN_NAMES, 4 + name.len());
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// The key of a frame.
pub(crate) fn frame(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = frames(run);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// The prefix of a run's own frames.
pub(crate) fn frames(run: RunUid) -> Vec<u8> {
    let mut key = key(FRAMES, 12);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The prefix of the parts of all frames of a run.
pub(crate) fn all_parts(run: RunUid) -> Vec<u8> {
    let mut key = key(PARTS, 8);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The prefix of a frame's parts.
pub(crate) fn parts(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = key(PARTS, 16);
    key.extend_from_slice(&run.0.to_be_bytes());
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

pub(crate) fn part(run: RunUid, seq: u32, part: u32) -> Vec<u8> {
    let mut key = parts(run, seq);
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// The key of a snapshot.
pub(crate) fn snapshot(run: RunUid, seq: u32) -> Vec<u8> {
    let mut key = snapshots(run);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// The prefix of a run's own snapshots.
pub(crate) fn snapshots(run: RunUid) -> Vec<u8> {
    let mut key = key(SNAPSHOTS, 12);
    key.extend_from_slice(&run.0.to_be_bytes());
    key
}

/// The number at the end of a key from [`frame`] or [`snapshot`].
pub(crate) fn last_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*key.last_chunk::<4>()?))
}

/// The record that an index key of a run leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKey {
    Run(NamespaceId, RunUid),
    RunName,
    /// A frame, one of its parts, or the snapshot after it.
    Frame(RunUid, u32),
}

/// Parses an index key; `None` if it is not a key of a run's record.
pub(crate) fn of(key: &[u8]) -> Option<RunKey> {
    let number = |at: usize| Some(u32::from_be_bytes(key.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some(match space_of(key) {
        RUNS => RunKey::Run(NamespaceId(number(4)?), RunUid(long(8)?)),
        RUN_NAMES => RunKey::RunName,
        FRAMES | PARTS | SNAPSHOTS => RunKey::Frame(RunUid(long(4)?), number(12)?),
        _ => return None,
    })
}
