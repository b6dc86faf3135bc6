//! Entries bound to a run: they are deleted with it.

use super::embed::Embedder;
use super::ops::{checked, key};
use super::recall::embedded;
use super::*;
use annals::RunUid;

impl Memory {
    /// Stores an entry as [`Memory::remember`] does, for the lifetime of the run. The entry and its feedback
    /// are deleted in the commit that drops or replaces the run. If the entry has sources (`derivedFrom`),
    /// the identity's recent recall ([`Memory::recently_recalled`]) is cleared.
    ///
    /// # Errors
    /// As [`Memory::remember`]; `Gone` if the run was dropped or replaced, `NotFound` if it does not exist.
    pub fn remember_with(
        &self,
        run: RunUid,
        identity: &Identity,
        entry: &str,
        with: &dyn Embedder,
    ) -> Result<Entry> {
        // Before any lock: an embedder may be slow.
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
