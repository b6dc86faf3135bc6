//! Belongings: keys elsewhere that were derived from a run's frames and are deleted with the run.
//!
//! A link is a key in the keyspace `annals.belongings` of the run's namespace. It consists of the run's uid
//! in eight bytes, big-endian, the name of the other keyspace, a zero byte, and the key there.
//!
//! A link's value is empty, or flags (docs/format.md, section 22): a *lasting* belonging outlives its run if
//! retention drops it, and is deleted when the run is forgotten or replaced. A *numbered* one ends with its number in an index
//! of its keyspace, which is noted as removed in the commit that deletes it.
//!
//! Invariant: every belonging of a run has a link. A link is therefore written with its belonging or before it, under
//! the lock that dropping takes. A link without a belonging does no harm. The commit that drops or replaces a
//! run deletes its links and its belongings; lasting ones keep their links when retention drops the run.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RunUid};
use crate::log::queue::Durability;
use crate::log::record::{KvHead, RecordKind};
use crate::log::segments::lock;
use crate::store::Namespace;
use crate::trace::dropping::PendingForks;
use crate::trace::reader::run_record;
use crate::upkeep::deadlines::DeadlineKind;
use annals_store::kv::content::Content;
use annals_store::kv::core::Core;
use annals_store::kv::keyspace::{History, Keyspace, ScanRange};
use annals_store::kv::write::BatchWriter;
use annals_store::sync::MutexGuard;

/// The keyspace of links.
pub(crate) const BELONGINGS: &str = "annals.belongings";
/// Flags in a link's value.
const LASTING: u8 = 1;
const NUMBERED: u8 = 2;
/// Bytes of the number that ends the value of a numbered belonging.
const NUMBER_BYTES: usize = 24;
/// Ends of the names of the keyspaces that index a keyspace of numbered belongings: from a number to the key, and of the
/// numbers that were removed.
const NUMBERS: &str = ".numbers";
const REMOVED: &str = ".removed";

/// A key that belongs to a run.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct RunBelonging<'a> {
    /// The name of its keyspace.
    pub keyspace: &'a str,
    pub key: &'a [u8],
    /// It outlives its run if retention drops the run.
    pub is_lasting: bool,
    /// Its value ends with its number in an index of its keyspace.
    pub is_numbered: bool,
}

/// While it lives, no run is dropped, forked or pinned. Another run may still replace one.
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "runs can be dropped again once this is gone"]
pub struct DropHold<'a> {
    _forking: MutexGuard<'a, PendingForks>,
}

/// A key that was deleted, and its keyspace.
pub(crate) type DeletedKey = (Keyspace, Vec<u8>);

/// Which belongings of a run are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BelongingScope {
    /// Those that end with the run's frames: retention drops the run.
    Passing {
        /// When the policy began to judge the run.
        judged_ns: u64,
    },
    /// All of them: the run is forgotten or replaced.
    All,
}

impl Namespace {
    /// Keeps runs from being dropped. For layers that read belongings and write what they make of them.
    #[doc(hidden)]
    pub fn hold_drops(&self) -> DropHold<'_> {
        DropHold { _forking: lock(&self.store.recording().forking) }
    }

    /// Writes belongings of a run. `keys` are all keys that `write` may set, each with the name of its
    /// keyspace. No run is dropped meanwhile. Lasting belongings of a run that retention dropped can be written
    /// again.
    ///
    /// # Errors
    /// `Gone` if the run was dropped or replaced; `NotFound` if there is no such run; errors of `write`;
    /// `Invalid`, `Unavailable`, `Poisoned`.
    #[doc(hidden)]
    pub fn write_with_run<T>(
        &self,
        uid: RunUid,
        keys: &[RunBelonging<'_>],
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let links = self.keyspace(BELONGINGS, History::Latest)?;
        let _forking = lock(&self.store.recording().forking);
        let run = match self.check_living(uid) {
            Ok(run) => run,
            Err(gone) => {
                let outlives = |belonging: &RunBelonging<'_>| -> Result<bool> {
                    let link = links.get(&link_key(uid, belonging.keyspace, belonging.key))?;
                    Ok(link.is_some_and(|link| link.first().is_some_and(|flags| flags & LASTING != 0)))
                };
                for belonging in keys {
                    if !outlives(belonging)? {
                        return Err(gone);
                    }
                }
                // A forget takes the same lock, and deletes the links with what they name.
                return write();
            }
        };
        let mut batch = self.batch();
        for belonging in keys {
            batch.put(&links, &link_key(uid, belonging.keyspace, belonging.key), link_value(belonging, &run));
        }
        batch.commit()?;
        let written = write()?;
        self.delete_if_replaced(uid)?;
        Ok(written)
    }

    /// Replacing a run takes no lock: if this run was replaced meanwhile, its new belongings are deleted here.
    fn delete_if_replaced(&self, uid: RunUid) -> Result<()> {
        let Err(gone) = self.check_living(uid) else { return Ok(()) };
        let core = self.store.core();
        let mut writer = BatchWriter::new(core, self.id)?;
        let mut belongings = Belongings::open(core, self.id)?;
        belongings.delete(uid, BelongingScope::All, &mut writer)?;
        if let Some((_, ticket)) = writer.submit_awaited(core.options.durability)? {
            ticket.wait()?;
        }
        belongings.finish();
        Err(gone)
    }

    /// Sets a key as a belonging of a run, in a keyspace that keeps the latest values. The commit that drops
    /// or replaces the run deletes the key. No run is dropped meanwhile. `deadline` is when it ends, in milliseconds since
    /// 1970-01-01 UTC, and its kind in the index of deadlines.
    ///
    /// # Errors
    /// `Gone` if the run was dropped or replaced; `NotFound` if there is no such run; `Invalid`,
    /// `Unavailable`, `Poisoned`.
    pub fn put_with_run(
        &self,
        uid: RunUid,
        keyspace: &str,
        key: &[u8],
        value: Vec<u8>,
        deadline: Option<(DeadlineKind, u64)>,
    ) -> Result<()> {
        self.put_belonging(uid, (keyspace, key), value, deadline, self.store.core().options.durability)
    }

    /// Like [`Namespace::put_with_run`], with this durability. One commit has the key and its link.
    pub(crate) fn put_belonging(
        &self,
        uid: RunUid,
        (keyspace, key): (&str, &[u8]),
        value: Vec<u8>,
        deadline: Option<(DeadlineKind, u64)>,
        durability: Durability,
    ) -> Result<()> {
        let core = self.store.core();
        // The run's first batch may be queued and not in the index yet.
        core.log()?.queue.barrier(core.index.visible())?;
        let links = self.keyspace(BELONGINGS, History::Latest)?;
        let named = self.keyspace(keyspace, History::Latest)?;
        let belonging = RunBelonging { keyspace, key, is_lasting: false, is_numbered: false };
        let _forking = lock(&self.store.recording().forking);
        let run = self.check_living(uid)?;
        let mut batch = self.batch();
        batch.put(&links, &link_key(uid, keyspace, key), link_value(&belonging, &run));
        batch.put(&named, key, value);
        if let Some((kind, ms)) = deadline {
            self.deadlines()?.add(&mut batch, kind, ms, key);
        }
        batch.submit_with(durability)?.wait()?;
        self.delete_if_replaced(uid)
    }

    /// Deletes a key that belongs to a run, and its link; returns whether there was such a key. On disk when this
    /// returns.
    pub(crate) fn delete_belonging(&self, uid: RunUid, (keyspace, key): (&str, &[u8])) -> Result<bool> {
        let (Some(links), Some(named)) = (self.find_keyspace(BELONGINGS)?, self.find_keyspace(keyspace)?)
        else {
            return Ok(false);
        };
        let _forking = lock(&self.store.recording().forking);
        if named.get(key)?.is_none() {
            return Ok(false);
        }
        let mut batch = self.batch();
        batch.delete(&links, &link_key(uid, keyspace, key));
        batch.delete(&named, key);
        batch.submit_with(Durability::Disk)?.wait()?;
        Ok(true)
    }

    /// Deletes the lasting belongings of runs of this name that retention dropped. Returns those runs, the one that was
    /// dropped last at the end, and adds what was deleted to `deleted`.
    pub(crate) fn forget_lasting(&self, run: &str, deleted: &mut Vec<DeletedKey>) -> Result<Vec<RunUid>> {
        let core = self.store.core();
        let Some(links) = core.find_keyspace(self.id, BELONGINGS)? else { return Ok(Vec::new()) };
        let _forking = lock(&self.store.recording().forking);
        let found = self.runs_with_lasting(&links, run)?;
        let mut belongings = Belongings::open(core, self.id)?;
        for some in found.chunks(FORGOTTEN_AT_ONCE) {
            let mut writer = BatchWriter::new(core, self.id)?;
            some.iter().try_for_each(|uid| belongings.delete(*uid, BelongingScope::All, &mut writer))?;
            if let Some((_, ticket)) = writer.submit_awaited(Durability::Disk)? {
                ticket.wait()?;
            }
            deleted.extend(belongings.finish());
        }
        Ok(found)
    }

    /// Whether anything outlived a run of this name that retention dropped.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn has_lasting_belongings(&self, run: &str) -> Result<bool> {
        match self.store.core().find_keyspace(self.id, BELONGINGS)? {
            Some(links) => Ok(!self.runs_with_lasting(&links, run)?.is_empty()),
            None => Ok(false),
        }
    }

    /// The runs of a name that were dropped and have lasting belongings. Compaction frees the name of a dropped run, so the
    /// links hold it.
    fn runs_with_lasting(&self, links: &Keyspace, run: &str) -> Result<Vec<RunUid>> {
        let core = self.store.core();
        let mut found = Vec::new();
        for pair in links.scan(ScanRange::all()) {
            let (key, value) = pair?;
            let uid = key.first_chunk().map(|bytes| RunUid(u64::from_be_bytes(*bytes)));
            if let Some(uid) = uid.filter(|uid| found.last() != Some(uid))
                && value.first().is_some_and(|flags| flags & LASTING != 0)
                && value.get(1..) == Some(run.as_bytes())
                && run_record(core, self.id, uid)?.is_none_or(|(head, _)| head.fields.gone)
            {
                found.push(uid);
            }
        }
        Ok(found)
    }

    /// The name of a run, if it lives.
    fn check_living(&self, uid: RunUid) -> Result<String> {
        let reader = self.run_by_uid(uid)?;
        match run_record(self.store.core(), self.id, uid)? {
            Some((head, _)) if !head.fields.gone => Ok(head.fields.name),
            _ => {
                let what = format!("run {:?} was dropped or replaced meanwhile", reader.info().name);
                Err(Error::new(ErrorKind::Gone, what))
            }
        }
    }
}

/// Runs whose lasting belongings are deleted in one commit.
const FORGOTTEN_AT_ONCE: usize = 256;

/// The value of a link: empty, or flags and, for a lasting belonging, the run's name.
fn link_value(belonging: &RunBelonging<'_>, run: &str) -> Vec<u8> {
    let lasting = if belonging.is_lasting { LASTING } else { 0 };
    match lasting | if belonging.is_numbered { NUMBERED } else { 0 } {
        0 => Vec::new(),
        flags if flags & LASTING != 0 => [&[flags], run.as_bytes()].concat(),
        flags => vec![flags],
    }
}

fn link_key(uid: RunUid, keyspace: &str, key: &[u8]) -> Vec<u8> {
    [&uid.0.to_be_bytes(), keyspace.as_bytes(), &[0], key].concat()
}

/// Finds and deletes the belongings of runs of a namespace.
#[derive(Debug)]
pub(crate) struct Belongings<'a> {
    core: &'a Arc<Core>,
    namespace: NamespaceId,
    /// `None` if the namespace never had a link.
    links: Option<Keyspace>,
    /// Keyspaces that links name, by name; `None` for a keyspace that does not exist.
    named: HashMap<String, Option<Keyspace>>,
    /// What was deleted since [`Belongings::finish`].
    deleted: Vec<DeletedKey>,
}

impl<'a> Belongings<'a> {
    pub(crate) fn open(core: &'a Arc<Core>, namespace: NamespaceId) -> Result<Self> {
        let links = core.find_keyspace(namespace, BELONGINGS)?;
        Ok(Self { core, namespace, links, named: HashMap::new(), deleted: Vec::new() })
    }

    /// To be called when the commit of the deletions can be read. Returns the deleted keys.
    pub(crate) fn finish(&mut self) -> Vec<DeletedKey> {
        let deleted = std::mem::take(&mut self.deleted);
        // A reader that saw a belonging before may have set an unwritten value since.
        for (keyspace, key) in &deleted {
            self.core.deferred.remove(&(self.namespace, keyspace.id(), key.clone()));
        }
        deleted
    }

    /// Adds to a batch the deletion of a run's links and belongings.
    pub(crate) fn delete(
        &mut self,
        uid: RunUid,
        scope: BelongingScope,
        writer: &mut BatchWriter,
    ) -> Result<()> {
        let Some(links) = self.links.clone() else { return Ok(()) };
        for found in links.scan(ScanRange::prefix(&uid.0.to_be_bytes())) {
            let (found, value) = found?;
            let flags = value.first().copied().unwrap_or_default();
            if scope != BelongingScope::All && flags & LASTING != 0 {
                continue;
            }
            let mut parts = found.get(8..).unwrap_or_default().splitn(2, |byte| *byte == 0);
            let name = std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
            // A key that is not a valid link has no belonging.
            if let (false, Some(key)) = (name.is_empty(), parts.next())
                && let Some(keyspace) = self.keyspace(name)?
            {
                if flags & NUMBERED != 0 {
                    self.remove_number(&keyspace, name, key, writer)?;
                }
                // A value that is not written yet must not come back later.
                self.core.deferred.remove(&(self.namespace, keyspace.id(), key.to_vec()));
                self.add_deletion(&keyspace, key, writer)?;
            }
            self.add_deletion(&links, &found, writer)?;
        }
        Ok(())
    }

    fn keyspace(&mut self, name: &str) -> Result<Option<Keyspace>> {
        if let Some(keyspace) = self.named.get(name) {
            return Ok(keyspace.clone());
        }
        let keyspace = self.core.find_keyspace(self.namespace, name)?;
        self.named.insert(name.to_owned(), keyspace.clone());
        Ok(keyspace)
    }

    fn add_deletion(&mut self, keyspace: &Keyspace, key: &[u8], writer: &mut BatchWriter) -> Result<()> {
        let mut head = Vec::new();
        KvHead::put_key(keyspace.id(), self.core.io.now_ns(), key, &mut head);
        self.deleted.push((keyspace.clone(), key.to_vec()));
        writer.add_record(RecordKind::Delete, &head, &[]).map(drop)
    }

    /// Adds to a batch that the number which ends a key's value was removed.
    fn remove_number(
        &mut self,
        keyspace: &Keyspace,
        name: &str,
        key: &[u8],
        writer: &mut BatchWriter,
    ) -> Result<()> {
        let Some(value) = keyspace.get(key)? else { return Ok(()) };
        let Some(number) = value.last_chunk::<NUMBER_BYTES>() else { return Ok(()) };
        if let Some(numbers) = self.keyspace(&format!("{name}{NUMBERS}"))? {
            // A value without a number ends with other bytes, which are no key there.
            if numbers.get(number)?.as_deref() != Some(key) {
                return Ok(());
            }
            self.add_deletion(&numbers, number, writer)?;
        }
        if let Some(removed) = self.keyspace(&format!("{name}{REMOVED}"))? {
            let (mut head, mut tail) = (Vec::new(), Vec::new());
            KvHead::put_key(removed.id(), self.core.io.now_ns(), number, &mut head);
            writer.put_value(&Content::from(Vec::new()), &mut head, &mut tail)?;
            writer.add_record(RecordKind::Put, &head, &tail)?;
        }
        Ok(())
    }
}
