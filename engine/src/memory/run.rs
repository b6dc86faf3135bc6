//! What is remembered of a run: an entry that goes with it.

use super::embed::Embedder;
use super::ops::key;
use super::recall::embedded;
use super::*;
use crate::ids::RunUid;

impl Memory {
    /// Keeps an entry as [`Memory::remember`] does, for as long as there is the run: it ends, with what was said of it, in the commit in which the run is
    /// dropped or replaced.
    ///
    /// # Errors
    /// As [`Memory::remember`]; `Gone` for a run that was dropped or replaced, `NotFound` where there is none.
    pub fn remember_with(
        &self,
        run: RunUid,
        identity: &Identity,
        entry: &str,
        with: &dyn Embedder,
    ) -> Result<Entry> {
        // Before anything is locked: an embedder may take its time.
        let entry = embedded(entry, with)?;
        let key = key(&identity.check()?, &entry.id);
        let keys = [ENTRIES, LOOKS, FEEDBACK].map(|keyspace| (keyspace, key.as_slice()));
        self.space.with_run(run, &keys, || self.put(identity, &entry.text()))?;
        Ok(entry)
    }
}
