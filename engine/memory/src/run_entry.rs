//! Entries bound to a run: they are deleted with it.

use super::embedder::Embedder;
use super::operations::{entry_key, validate_entry};
use super::recall::with_embedding;
use super::*;
use annals::RunUid;

impl Memory {
    /// Stores an entry as [`Memory::remember`] does, for the lifetime of the run. The entry and its feedback
    /// are deleted in the commit that drops or replaces the run. If the entry has sources (`derivedFrom`),
    /// the identity's recent recall ([`Memory::recently_recalled`]) is cleared.
    ///
    /// # Errors
    /// As [`Memory::remember`]; `Gone` if the run was dropped or replaced, `NotFound` if it does not exist.
    pub fn remember_for_run(
        &self,
        run: RunUid,
        identity: &Identity,
        entry: &str,
        with: &dyn Embedder,
    ) -> Result<MemoryEntry> {
        // Before any lock: an embedder may be slow.
        let entry = with_embedding(entry, with)?;
        let card = validate_entry(&entry)?;
        let name = identity.checked_name()?;
        let key = entry_key(&name, &entry.id);
        let keys = [ENTRIES, WORD_CARDS, ACCESS_STATS, FEEDBACK].map(|keyspace| (keyspace, key.as_slice()));
        self.space.write_with_run(run, &keys, || {
            let _changing = self.lock_changes();
            let mut batch = self.space.batch();
            self.add_to_batch(&mut batch, &key, (&entry, &entry.to_json()), card)?;
            if !entry.derived_from.is_empty() {
                batch.delete(&self.recalled, &entry_key(&name, ""));
            }
            self.commit(batch)
        })?;
        Ok(entry)
    }
}
