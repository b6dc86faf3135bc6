//! What is remembered of a run: an entry that goes with it.

use super::embed::Embedder;
use super::ops::{checked, key};
use super::recall::embedded;
use super::*;
use annals::RunUid;

impl Memory {
    /// Keeps an entry as [`Memory::remember`] does, for as long as there is the run: it ends, with what was said of it, in the commit in which the run is
    /// dropped or replaced. One that answers from what its identity was told of late ([`Memory::told_of_late`]) has answered that.
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
        let card = checked(&entry)?;
        let name = identity.check()?;
        let key = key(&name, &entry.id);
        let keys = [ENTRIES, WORDS, LOOKS, FEEDBACK].map(|keyspace| (keyspace, key.as_slice()));
        self.space.with_run(run, &keys, || {
            let _changing = self.changing();
            let mut batch = self.space.batch();
            self.add(&mut batch, &key, (&entry, &entry.text()), card)?;
            if !entry.derived_from.is_empty() {
                batch.delete(&self.recalled, &self::key(&name, ""));
            }
            self.commit(batch)
        })?;
        Ok(entry)
    }
}
