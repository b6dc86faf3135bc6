//! Keys that go with a run: what was made of its frames and stands elsewhere, so that dropping the run leaves nothing of it behind.
//!
//! A link is a key of the keyspace `annals.belongings` of the run's namespace: the run's number in eight bytes, big-endian, the name of the other
//! keyspace, a zero byte, the key there. It is written before what it leads to, behind the lock that dropping takes, so there is no moment at which a
//! dropped run has something that no link leads to; one that leads to nothing does no harm. In the commit in which a run is dropped or replaced its
//! links end, and all that they lead to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RunUid};
use crate::kv::core::Core;
use crate::kv::keyspace::{History, Keyspace, ScanRange};
use crate::kv::write::BatchWriter;
use crate::log::record::{KvHead, RecordKind};
use crate::log::segments::lock;
use crate::store::Namespace;
use crate::trace::reader::run_record;

/// The keyspace of links.
pub(crate) const BELONGINGS: &str = "annals.belongings";

impl Namespace {
    /// Writes what goes with a run; `keys` are all the keys that `write` may set, by the names of their keyspaces. While this goes on no run is dropped.
    ///
    /// # Errors
    /// `Gone` for a run that was dropped or replaced, `NotFound` where there is none; those of `write`; `Invalid`, `Unavailable`, `Poisoned`.
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
        // Replacing takes no lock: who was replaced meanwhile takes it along.
        if let Err(gone) = self.check_living(uid) {
            let core = self.store.core();
            let mut writer = BatchWriter::new(core, self.id)?;
            Belongings::open(core, self.id)?.delete_all(uid, &mut writer)?;
            if let Some((_, ticket)) = writer.submit(core.options.durability)? {
                ticket.wait()?;
            }
            return Err(gone);
        }
        Ok(written)
    }

    /// Sets a key of a keyspace that keeps the latest values, and has it end in the commit in which a run is dropped or replaced. While this
    /// goes on no run is dropped.
    ///
    /// # Errors
    /// `Gone` for a run that was dropped or replaced, `NotFound` where there is none; `Invalid`, `Unavailable`, `Poisoned`.
    pub fn put_with_run(&self, uid: RunUid, keyspace: &str, key: &[u8], value: Vec<u8>) -> Result<()> {
        let core = self.store.core();
        // The run may have begun a moment ago.
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

/// What goes with runs of a namespace, looked up while they are dropped.
#[derive(Debug)]
pub(crate) struct Belongings<'a> {
    core: &'a Arc<Core>,
    namespace: NamespaceId,
    /// Where nothing was ever linked, there is none.
    links: Option<Keyspace>,
    /// Keyspaces that links name.
    named: HashMap<String, Option<Keyspace>>,
}

impl<'a> Belongings<'a> {
    pub(crate) fn open(core: &'a Arc<Core>, namespace: NamespaceId) -> Result<Self> {
        let links = core.find_keyspace(namespace, BELONGINGS)?;
        Ok(Self { core, namespace, links, named: HashMap::new() })
    }

    /// Adds to a batch that all that goes with a run ends.
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
            // What is no link of ours leads nowhere.
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
