//! Belongings: keys elsewhere that were derived from a run's frames and are deleted with the run.
//!
//! A link is a key in the keyspace `annals.belongings` of the run's namespace. It consists of the run's uid
//! in eight bytes, big-endian, the name of the other keyspace, a zero byte, and the key there.
//!
//! Invariant: every belonging of a run has a link. A link is therefore written before its belonging, under
//! the lock that dropping takes. A link without a belonging does no harm. The commit that drops or replaces a
//! run deletes its links and all its belongings.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RunUid};
use crate::log::record::{KvHead, RecordKind};
use crate::log::segments::lock;
use crate::store::Namespace;
use crate::trace::reader::run_record;
use annals_store::kv::core::Core;
use annals_store::kv::keyspace::{History, Keyspace, ScanRange};
use annals_store::kv::write::BatchWriter;

/// The keyspace of links.
pub(crate) const BELONGINGS: &str = "annals.belongings";

impl Namespace {
    /// Writes belongings of a run. `keys` are all keys that `write` may set, each with the name of its
    /// keyspace. No run is dropped meanwhile.
    ///
    /// # Errors
    /// `Gone` if the run was dropped or replaced; `NotFound` if there is no such run; errors of `write`;
    /// `Invalid`, `Unavailable`, `Poisoned`.
    #[doc(hidden)]
    pub fn write_with_run<T>(
        &self,
        uid: RunUid,
        keys: &[(&str, &[u8])],
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let links = self.keyspace(BELONGINGS, History::Latest)?;
        let _forking = lock(&self.store.recording().forking);
        self.check_living(uid)?;
        let mut batch = self.batch();
        for (keyspace, key) in keys {
            batch.put(&links, &link_key(uid, keyspace, key), Vec::new());
        }
        batch.commit()?;
        let written = write()?;
        // Replacing a run takes no lock: if this run was replaced meanwhile, its new belongings are deleted
        // here.
        if let Err(gone) = self.check_living(uid) {
            let core = self.store.core();
            let mut writer = BatchWriter::new(core, self.id)?;
            Belongings::open(core, self.id)?.delete_all(uid, &mut writer)?;
            if let Some((_, ticket)) = writer.submit_awaited(core.options.durability)? {
                ticket.wait()?;
            }
            return Err(gone);
        }
        Ok(written)
    }

    /// Sets a key as a belonging of a run, in a keyspace that keeps the latest values. The commit that drops
    /// or replaces the run deletes the key. No run is dropped meanwhile.
    ///
    /// # Errors
    /// `Gone` if the run was dropped or replaced; `NotFound` if there is no such run; `Invalid`,
    /// `Unavailable`, `Poisoned`.
    pub fn put_with_run(&self, uid: RunUid, keyspace: &str, key: &[u8], value: Vec<u8>) -> Result<()> {
        let core = self.store.core();
        // The run's first batch may be queued and not in the index yet.
        core.log()?.queue.barrier(core.index.visible())?;
        self.write_with_run(uid, &[(keyspace, key)], || {
            self.keyspace(keyspace, History::Latest)?.put(key, value).map(drop)
        })
    }

    fn check_living(&self, uid: RunUid) -> Result<()> {
        let reader = self.run_by_uid(uid)?;
        match run_record(self.store.core(), self.id, uid)? {
            Some((head, _)) if !head.fields.gone => Ok(()),
            _ => {
                let what = format!("run {:?} was dropped or replaced meanwhile", reader.info().name);
                Err(Error::new(ErrorKind::Gone, what))
            }
        }
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
}

impl<'a> Belongings<'a> {
    pub(crate) fn open(core: &'a Arc<Core>, namespace: NamespaceId) -> Result<Self> {
        let links = core.find_keyspace(namespace, BELONGINGS)?;
        Ok(Self { core, namespace, links, named: HashMap::new() })
    }

    /// Adds to a batch the deletion of a run's links and belongings.
    pub(crate) fn delete_all(&mut self, uid: RunUid, writer: &mut BatchWriter) -> Result<()> {
        let Some(links) = &self.links else { return Ok(()) };
        let now_ns = self.core.io.now_ns();
        let mut end = |keyspace: &Keyspace, key: &[u8]| {
            let mut head = Vec::new();
            KvHead::put_key(keyspace.id(), now_ns, key, &mut head);
            writer.add_record(RecordKind::Delete, &head, &[])
        };
        for found in links.scan(ScanRange::prefix(&uid.0.to_be_bytes())).keys() {
            let found = found?;
            let mut parts = found.get(8..).unwrap_or_default().splitn(2, |byte| *byte == 0);
            let name = std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
            // A key that is not a valid link has no belonging.
            if let (false, Some(key)) = (name.is_empty(), parts.next()) {
                let keyspace = match self.named.get(name) {
                    Some(keyspace) => keyspace.clone(),
                    None => {
                        let keyspace = self.core.find_keyspace(self.namespace, name)?;
                        self.named.insert(name.to_owned(), keyspace.clone());
                        keyspace
                    }
                };
                keyspace.map_or(Ok(()), |keyspace| end(&keyspace, key))?;
            }
            end(links, &found)?;
        }
        Ok(())
    }
}
