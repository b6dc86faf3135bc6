//! Entries bound to a run: they are deleted when it is forgotten or replaced, and outlive its retention.

use super::embedder::Embedder;
use super::operations::{CheckedEntry, entry_key};
use super::recall::with_embedding;
use super::*;
use annals::RunUid;
use annals::runs::RunBelonging;

impl Memory {
    /// Stores entries as [`Memory::remember`] does, all of them or none. The entries and their feedback outlive
    /// a run that retention drops. They are deleted in the commit that forgets, drops on request or replaces the run. If an entry has
    /// sources (`derivedFrom`), the identity's recent recall ([`Memory::recently_recalled`]) is cleared.
    ///
    /// # Errors
    /// As [`Memory::remember`]; `Gone` if the run was dropped or replaced, `NotFound` if it does not exist.
    pub fn remember_for_run(
        &self,
        run: RunUid,
        identity: &Identity,
        entries: &[String],
        with: &dyn Embedder,
    ) -> Result<Vec<MemoryEntry>> {
        // Before any lock: an embedder may be slow.
        let checked: Vec<CheckedEntry> =
            entries.iter().map(|entry| with_embedding(entry, with)).collect::<Result<_>>()?;
        let (entries, cards): (Vec<MemoryEntry>, Vec<_>) =
            checked.into_iter().map(|checked| (checked.entry, checked.card)).unzip();
        let name = identity.checked_name()?;
        let keys: Vec<Vec<u8>> = entries.iter().map(|entry| entry_key(&name, &entry.id)).collect();
        let keyspaces = ["", WORD_CARDS, ACCESS_STATS, FEEDBACK].map(|end| format!("{ENTRIES}{end}"));
        let belongings: Vec<RunBelonging<'_>> = keys
            .iter()
            .flat_map(|key| {
                keyspaces.iter().map(|keyspace| RunBelonging {
                    keyspace,
                    key,
                    is_lasting: true,
                    is_numbered: keyspace.ends_with(WORD_CARDS),
                })
            })
            .collect();
        // Before the lock that keeps runs from being dropped: locks have an order.
        let mut changing = self.lock_changes()?;
        self.space.write_with_run(run, &belongings, || {
            changing.holds_drops = true;
            let mut batch = self.space.batch();
            for ((entry, card), key) in entries.iter().zip(cards).zip(&keys) {
                self.add_to_batch(&mut changing, &mut batch, key, (entry, entry.to_json()), card)?;
            }
            if entries.iter().any(|entry| !entry.derived_from.is_empty()) {
                batch.delete(&self.recalled, &entry_key(&name, ""));
            }
            self.commit_alone(batch)
        })?;
        drop(changing);
        // The entries are stored. If the index cannot be kept now, the next write tries again.
        let _later = self.tend_index(identity.tenant_prefix().as_bytes());
        Ok(entries)
    }
}
