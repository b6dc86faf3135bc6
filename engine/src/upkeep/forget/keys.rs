//! Forgets keys with all their versions, and finds what holds a content.
//!
//! A forgotten key is deleted first. [`CompactOptions::must_go_keys`] then removes the records of all its versions,
//! the deletion too, so neither value nor name stays. What stays is a note in the keyspace `annals.forgotten` of the
//! namespace, without the name, and the ledger's leaves with the statement of what was erased.
//!
//! [`CompactOptions::must_go_keys`]: crate::upkeep::CompactOptions::must_go_keys

use serde::{Deserialize, Serialize};

use crate::blob::Extent;
use crate::error::{Error, Result};
use crate::ids::{BlobId, NamespaceId, RunUid, Seqno};
use crate::log::queue::Durability;
use crate::log::record::SpaceHead;
use crate::store::Namespace;
use crate::trace::heads::{SnapshotHead, WHY_BYTES_MAX};
use crate::trace::kinds;
use crate::trace::model::check_text;
use crate::trace::reader::RunReader;
use crate::trace::run_facts::{RunFate, for_each_run};
use crate::trace::run_keys;
use crate::upkeep::deadlines::{DeadlineKind, KeyPattern};
use annals_store::kv::keys;
use annals_store::kv::{History, Keyspace};

/// The keyspace of notes about forgotten keys.
const FORGOTTEN: &str = "annals.forgotten";

/// A key that was deleted, and of which every version up to a record must go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) space: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) upto: Seqno,
    /// Entries in the index of deadlines that go with it, each up to a record.
    pub(crate) deadlines: Vec<(KeyPattern, Seqno)>,
    /// Where values of it lie in groups of bodies.
    pub(crate) extents: Vec<Extent>,
    /// Number of its records, deletions included.
    pub records: u64,
}

/// What living data refers to stored bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ContentOwner {
    Run(RunUid),
    Key { space: u32, key: Vec<u8> },
}

/// Living data that shares stored bytes with a forgotten key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedContent {
    pub(crate) owner: ContentOwner,
    /// Number of the shared bytes.
    pub bytes: u64,
}

/// What holds a content, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentHolder {
    /// A frame of a run.
    Frame {
        /// The run's name.
        run: String,
        /// The first frame with the content.
        frame: u32,
    },
    /// A state of a run.
    Snapshot {
        /// The run's name.
        run: String,
        /// The frame after which it was taken.
        frame: u32,
    },
    /// A key.
    Key {
        /// The keyspace.
        keyspace: String,
        /// The key, as text.
        key: String,
    },
}

/// The note that stays of a forgotten key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ForgottenNote {
    what: String,
    why: String,
    forgotten_ns: u64,
}

impl std::fmt::Display for ContentHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame { run, frame } => write!(f, "frame {frame} of run {run:?}"),
            Self::Snapshot { run, frame } => write!(f, "the state after frame {frame} of run {run:?}"),
            Self::Key { keyspace, key } => write!(f, "key {key:?} of keyspace {keyspace:?}"),
        }
    }
}

impl Namespace {
    /// Deletes keys, and notes that they are forgotten: `what` says what they were, in a word, and `why` the reason.
    /// Keys without any version are left out. The keys read as not set when this returns, and the deletion is on
    /// disk. Pass the result to [`CompactOptions::must_go_keys`], which removes the bytes.
    ///
    /// A key that was deleted before can be forgotten as long as the store has a record of it; so a call that was
    /// interrupted can be repeated. `ends` names what the keys are in the index of deadlines: those entries are
    /// forgotten, too.
    ///
    /// # Errors
    /// `NotFound` if no key has a version; `Invalid` without a reason, or if it is too long or has control
    /// characters; `Damaged`, `Unavailable`, `Poisoned`.
    ///
    /// [`CompactOptions::must_go_keys`]: crate::upkeep::CompactOptions::must_go_keys
    pub fn forget_keys(
        &self,
        what: &str,
        keys: &[(&str, &[u8])],
        ends: Option<(DeadlineKind, &[u8])>,
        why: &str,
    ) -> Result<Vec<ForgottenKey>> {
        check_text("the reason for forgetting", why.trim(), 1, WHY_BYTES_MAX)?;
        let core = self.store.core();
        let mut found = Vec::new();
        let mut batch = self.batch();
        for (name, key) in keys {
            let Some(keyspace) = self.find_keyspace(name)? else { continue };
            let versions = core.index.versions(&keys::user(keyspace.id(), key), Seqno(u64::MAX))?;
            let Some((_, newest)) = versions.first() else { continue };
            if newest.kind != keys::ENDED {
                batch.delete(&keyspace, key);
            }
            found.push((keyspace, *key));
        }
        if found.is_empty() {
            let what = format!("the store has no record of this {what}: nothing was forgotten");
            return Err(Error::not_found(what));
        }
        let mut deadlines = None;
        if let (Some((kind, id)), Some(index)) = (ends, self.find_deadlines()?) {
            index.remove_all(&mut batch, kind, |of| of == id)?;
            deadlines = index.pattern(kind, id);
        }
        let forgotten_ns = core.io.now_ns();
        let note = ForgottenNote { what: what.to_owned(), why: why.to_owned(), forgotten_ns };
        let note = serde_json::to_vec(&note).map_err(|error| Error::bug(error.to_string()))?;
        let notes = self.keyspace(FORGOTTEN, History::All)?;
        let place = [forgotten_ns.to_be_bytes(), core.index.visible().0.to_be_bytes()].concat();
        batch.put(&notes, &place, note);
        let upto = batch.submit_with(Durability::Disk)?.wait()?;
        let gone = found.into_iter().map(|(keyspace, key)| self.forgotten(&keyspace, key));
        let mut gone: Vec<ForgottenKey> = gone.collect::<Result<_>>()?;
        if let Some(first) = gone.first_mut() {
            first.deadlines.extend(deadlines.map(|pattern| (pattern, upto)));
        }
        Ok(gone)
    }

    /// What must go of a key that was just deleted. Versions after the deletion stay: somebody set the key again.
    pub(super) fn forgotten(&self, keyspace: &Keyspace, key: &[u8]) -> Result<ForgottenKey> {
        let core = self.store.core();
        let _pin = core.pin();
        let versions = core.index.versions(&keys::user(keyspace.id(), key), Seqno(u64::MAX))?;
        let newer = versions.iter().take_while(|(_, value)| value.kind != keys::ENDED).count();
        let gone = versions.get(newer..).unwrap_or_default();
        let mut extents = Vec::new();
        for (_, value) in gone {
            extents.extend(keyspace.version_extents(key, *value)?);
        }
        Ok(ForgottenKey {
            namespace: self.id,
            space: keyspace.id(),
            key: key.to_vec(),
            upto: gone.first().map_or(Seqno(0), |(seqno, _)| *seqno),
            deadlines: Vec::new(),
            extents,
            records: gone.len() as u64,
        })
    }

    /// Names living data by which a content stays in the store: bodies of frames, states, and current values of
    /// keys, in any keyspace but `besides`. At most `most` of them. Reads all records of the namespace, and no bytes
    /// of long bodies.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn content_holders(&self, id: BlobId, besides: &str, most: usize) -> Result<Vec<ContentHolder>> {
        let core = self.store.core();
        let mut holders = Vec::new();
        for_each_run(core, self.id, &mut |facts| {
            if holders.len() >= most || !matches!(facts.fate, RunFate::Living { .. }) {
                return Ok(());
            }
            let reader = RunReader::open(core, self.id, facts.uid)?;
            let run = || reader.info().name.clone();
            if let Some(frame) = reader.frame_with_content(id)? {
                holders.push(ContentHolder::Frame { run: run(), frame });
            }
            for hit in core.index.scan_prefix(&run_keys::snapshots(facts.uid), Seqno(u64::MAX))? {
                let head =
                    core.read_logical_any(keys::place(hit.value), &[kinds::SNAPSHOT], |_, logical| {
                        SnapshotHead::parse(logical.head)
                    })?;
                if head.state.has_content(id) {
                    holders.push(ContentHolder::Snapshot { run: run(), frame: head.seq });
                    break;
                }
            }
            Ok(())
        })?;
        for space in core.list_spaces()? {
            let SpaceHead::Keyspace { namespace, name, .. } = space else { continue };
            if namespace != self.id || name == besides || holders.len() >= most {
                continue;
            }
            let Some(keyspace) = self.find_keyspace(&name)? else { continue };
            let _pin = core.pin();
            for hit in core.index.scan_prefix(&keys::user(keyspace.id(), b""), Seqno(u64::MAX))? {
                let key = keys::user_part(&hit.key);
                if keyspace.version_has_content(key, hit.value, id)? {
                    let key = String::from_utf8_lossy(key).into_owned();
                    holders.push(ContentHolder::Key { keyspace: name.clone(), key });
                }
            }
        }
        holders.truncate(most);
        Ok(holders)
    }

    /// Names what shares bytes with a forgotten key. What was deleted meanwhile is left out.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn name_sharers(&self, sharers: &[SharedContent]) -> Result<Vec<String>> {
        let spaces = self.store.core().list_spaces()?;
        let mut names = Vec::new();
        for SharedContent { owner, bytes } in sharers {
            let bytes = match bytes {
                1 => "1 byte".to_owned(),
                some => format!("{some} bytes"),
            };
            match owner {
                ContentOwner::Run(uid) => match self.run_by_uid(*uid) {
                    Ok(reader) => names.push(format!("{bytes} in run {:?}", reader.info().name)),
                    Err(_) => names.push(format!("{bytes} in run number {}, which a fork needs", uid.0)),
                },
                ContentOwner::Key { space, key } => {
                    let keyspace = spaces.iter().find_map(|one| match one {
                        SpaceHead::Keyspace { id, name, .. } if id == space => Some(name.as_str()),
                        _ => None,
                    });
                    let keyspace = keyspace.unwrap_or("?");
                    let key = String::from_utf8_lossy(key);
                    names.push(format!("{bytes} in key {key:?} of keyspace {keyspace:?}"));
                }
            }
        }
        Ok(names)
    }
}
