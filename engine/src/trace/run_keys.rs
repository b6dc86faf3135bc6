//! Index keys of the records of runs.

use crate::ids::{NamespaceId, RunUid};
use annals_store::kv::keys::{key, space_of};
use annals_store::schema::PASSING_SPACE;

const RUNS: u32 = 2;
const RUN_NAMES: u32 = 3;
const FRAMES: u32 = 4;
const PARTS: u32 = 5;
const SNAPSHOTS: u32 = 6;
/// Open runs. An ended run leaves no key for long.
const OPEN_RUNS: u32 = PASSING_SPACE;
/// Forks by the run that they were forked from, dropped and replaced ones included.
const FORKS: u32 = 12;
/// Lists of runs by what their records say. An entry may be outdated: the run's newest record decides.
const RUN_LISTS: u32 = 13;

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

/// Namespace and name in a key from [`run_name`]; `None` for other keys.
pub(crate) fn name_of(key: &[u8]) -> Option<(NamespaceId, String)> {
    let (namespace, name) = key.get(4..)?.split_first_chunk::<4>()?;
    let name = String::from_utf8_lossy(name).into_owned();
    (space_of(key) == RUN_NAMES).then(|| (NamespaceId(u32::from_be_bytes(*namespace)), name))
}

/// The key of a run that is open.
pub(crate) fn open_run(namespace: NamespaceId, uid: RunUid) -> Vec<u8> {
    let mut key = key(OPEN_RUNS, 12);
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(&uid.0.to_be_bytes());
    key
}

/// The prefix of the open runs of all namespaces.
pub(crate) fn open_runs() -> Vec<u8> {
    key(OPEN_RUNS, 0)
}

/// The prefix of a namespace's open runs.
pub(crate) fn open_runs_of(namespace: NamespaceId) -> Vec<u8> {
    let mut key = open_runs();
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key
}

/// What the runs of a list have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunTerm<'a> {
    /// The code of a status other than open and ok.
    Status(u8),
    /// The code of a severity other than normal.
    Severity(u8),
    Agent(&'a str),
    Model(&'a str),
    Tag(&'a str, &'a str),
}

impl RunTerm<'_> {
    /// A number for the term. Other terms may have the same one: then their runs share a list.
    fn number(self) -> u32 {
        let mut hasher = blake3::Hasher::new();
        match self {
            Self::Status(code) => hasher.update(&[1, code]),
            Self::Severity(code) => hasher.update(&[2, code]),
            Self::Agent(name) => hasher.update(&[3]).update(name.as_bytes()),
            Self::Model(name) => hasher.update(&[4]).update(name.as_bytes()),
            Self::Tag(key, value) => {
                hasher.update(&[5]).update(key.as_bytes()).update(&[0]).update(value.as_bytes())
            }
        };
        let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
        // 0 is the list by time.
        u32::from_be_bytes([a, b, c, d]).max(1)
    }
}

/// The prefix of the list of a term.
pub(crate) fn run_list(namespace: NamespaceId, term: RunTerm<'_>) -> Vec<u8> {
    let mut key = key(RUN_LISTS, 16);
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(&term.number().to_be_bytes());
    key
}

/// The key of a run in the list of a term.
pub(crate) fn listed_run(namespace: NamespaceId, term: RunTerm<'_>, uid: RunUid) -> Vec<u8> {
    let mut key = run_list(namespace, term);
    key.extend_from_slice(&uid.0.to_be_bytes());
    key
}

/// The key of a run in the list by time: ordered by the second in which it began.
pub(crate) fn run_time(namespace: NamespaceId, started_ns: u64, uid: RunUid) -> Vec<u8> {
    let mut key = key(RUN_LISTS, 20);
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(&[0; 4]);
    key.extend_from_slice(&u32::try_from(started_ns / 1_000_000_000).unwrap_or(u32::MAX).to_be_bytes());
    key.extend_from_slice(&uid.0.to_be_bytes());
    key
}

/// Number of the list of facts. A term with this number shares the list: its keys end with no facts.
const FACTS: u32 = 1;

/// The key of what a run's record says in few bytes (see `run_facts`).
pub(crate) fn run_facts(namespace: NamespaceId, uid: RunUid, facts: &[u8]) -> Vec<u8> {
    let mut key = key(RUN_LISTS, 16 + facts.len());
    key.extend_from_slice(&namespace.0.to_be_bytes());
    key.extend_from_slice(&FACTS.to_be_bytes());
    key.extend_from_slice(&uid.0.to_be_bytes());
    key.extend_from_slice(facts);
    key
}

/// Whether a key is one of the list of facts, which no reader needs.
pub(crate) fn is_facts(key: &[u8]) -> bool {
    space_of(key) == RUN_LISTS && key.get(8..12) == Some(&FACTS.to_be_bytes())
}

/// Uid and facts in a key from [`run_facts`].
pub(crate) fn uid_and_facts(key: &[u8]) -> Option<(RunUid, &[u8])> {
    let (uid, facts) = key.get(12..)?.split_first_chunk::<8>()?;
    Some((RunUid(u64::from_be_bytes(*uid)), facts))
}

/// The uid at the end of a key of a run.
pub(crate) fn last_uid(key: &[u8]) -> Option<RunUid> {
    Some(RunUid(u64::from_be_bytes(*key.last_chunk::<8>()?)))
}

/// Namespace and uid in a key from [`run`] or [`open_run`].
pub(crate) fn namespace_and_uid(key: &[u8]) -> Option<(NamespaceId, RunUid)> {
    let namespace = NamespaceId(u32::from_be_bytes(key.get(4..8)?.try_into().ok()?));
    Some((namespace, run_uid(key)?))
}

/// The key of a fork.
pub(crate) fn fork(parent: RunUid, fork: RunUid) -> Vec<u8> {
    let mut key = forks(parent);
    key.extend_from_slice(&fork.0.to_be_bytes());
    key
}

/// The prefix of all forks.
pub(crate) fn all_forks() -> Vec<u8> {
    key(FORKS, 4)
}

/// The prefix of the forks of a run.
pub(crate) fn forks(parent: RunUid) -> Vec<u8> {
    let mut key = key(FORKS, 16);
    key.extend_from_slice(&parent.0.to_be_bytes());
    key
}

/// The fork's uid at the end of a key from [`fork`].
pub(crate) fn fork_uid(key: &[u8]) -> Option<RunUid> {
    Some(RunUid(u64::from_be_bytes(key.get(12..20)?.try_into().ok()?)))
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
    /// Leads to a run's record, which the run's own key marks as living: a name, an open run, a fork, a list.
    ToRun,
    /// A frame, one of its parts, or the snapshot after it.
    Frame(RunUid, u32),
}

/// Parses an index key; `None` if it is not a key of a run's record.
pub(crate) fn of(key: &[u8]) -> Option<RunKey> {
    let number = |at: usize| Some(u32::from_be_bytes(key.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some(match space_of(key) {
        RUNS => RunKey::Run(NamespaceId(number(4)?), RunUid(long(8)?)),
        RUN_NAMES | OPEN_RUNS | FORKS | RUN_LISTS => RunKey::ToRun,
        FRAMES | PARTS | SNAPSHOTS => RunKey::Frame(RunUid(long(4)?), number(12)?),
        _ => return None,
    })
}
