//! One batch that reads its own writes, so that several sessions fit into one commit.

use std::collections::BTreeMap;

use annals::kv::KvBatch;
use annals::{Durability, Keyspace, Result};

use crate::{Diagnostics, Keyspaces};

/// A keyspace of the diagnostics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    Rows,
    Counts,
    Weights,
    History,
    Audit,
    Injections,
    Retrievals,
}

impl Keyspaces {
    pub(crate) fn get(&self, space: Space) -> &Keyspace {
        match space {
            Space::Rows => &self.rows,
            Space::Counts => &self.counts,
            Space::Weights => &self.weights,
            Space::History => &self.history,
            Space::Audit => &self.audit,
            Space::Injections => &self.injections,
            Space::Retrievals => &self.retrievals,
        }
    }
}

/// Values that are set (`None`: deleted) when the batch is committed.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    of: &'a Diagnostics,
    pending: BTreeMap<(Space, Vec<u8>), Option<Vec<u8>>>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(of: &'a Diagnostics) -> Self {
        Self { of, pending: BTreeMap::new() }
    }

    pub(crate) fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.pending.get(&(space, key.to_vec())) {
            Some(value) => Ok(value.clone()),
            None => self.of.keyspaces.get(space).get(key),
        }
    }

    /// Whether these changes delete a key.
    pub(crate) fn is_deleted(&self, space: Space, key: &[u8]) -> bool {
        self.pending.get(&(space, key.to_vec())) == Some(&None)
    }

    pub(crate) fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.pending.insert((space, key), Some(value));
    }

    pub(crate) fn delete(&mut self, space: Space, key: Vec<u8>) {
        self.pending.insert((space, key), None);
    }

    /// Commits all changes, or none.
    pub(crate) fn commit(self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut batch: KvBatch = self.of.space.batch();
        for ((space, key), value) in self.pending {
            let keyspace = self.of.keyspaces.get(space);
            match value {
                Some(value) => batch.put(keyspace, &key, value),
                None => batch.delete(keyspace, &key),
            };
        }
        match self.of.on_disk {
            true => batch.submit_with(Durability::Disk)?.wait().map(drop),
            false => batch.commit().map(drop),
        }
    }
}
