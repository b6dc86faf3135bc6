//! The operations on entries: put, get, list, search, rate, forget. Each follows one rule of agentfootprint's
//! store.

use super::js_value::{JsValue, VALUES_MAX};
use super::postings::Numbering;
use super::vector_search::{partition_name, squared_norm};
use super::words::Card;
use super::*;
use annals::Ticket;
use annals::retention::{Deadline, DeadlineKind};
use annals::runs::DropHold;
use annals_store::log::segments::lock;
use std::collections::BTreeMap;

/// Keys that [`Memory::forget`] deletes in one batch.
const KEYS_AT_ONCE: usize = 256;
/// Counts of accesses that one commit of an entry writes along.
const COUNTS_AT_ONCE: usize = 256;
/// Counts of accesses that are kept in memory at most; then a read writes them.
const COUNTS_MAX: usize = 1 << 16;

impl Memory {
    pub(super) fn now_ms(&self) -> i64 {
        (self.entries.core().io.now_ns() / 1_000_000).cast_signed()
    }

    /// Reads a live entry. The access is counted, and the returned copy shows the new count. The count is
    /// kept in memory and written with a later change of this memory, or when the store closes: a crash may lose it. In
    /// a store that cannot be written, the access is not counted.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`, `Poisoned`.
    pub fn get(&self, identity: &Identity, id: &str) -> Result<Option<MemoryEntry>> {
        let key = entry_key(&identity.checked_name()?, id);
        let Some(mut entry) = self.live_entry(&key)? else { return Ok(None) };
        self.count_access(&key, &mut entry)?;
        Ok(Some(entry))
    }

    /// Counts an access to an entry that was read, and shows the count in it.
    pub(super) fn count_access(&self, key: &[u8], entry: &mut MemoryEntry) -> Result<()> {
        let core = self.entries.core();
        if core.is_poisoned() || !core.is_writer() {
            // The entry can still be read, and the access cannot be counted.
            return Ok(());
        }
        let stored = self.access_stats(key, entry)?;
        let mut looks = AccessStats::default();
        let kept = core.deferred.update(self.count_key(key), self.entries.id(), |unwritten| {
            let unwritten = unwritten.and_then(|bytes| serde_json::from_slice(bytes).ok());
            looks = unwritten.unwrap_or(stored);
            looks.count += 1;
            looks.last_ms = self.now_ms();
            serde_json::to_vec(&looks).ok()
        });
        if kept > COUNTS_MAX {
            let mut batch = self.space.batch();
            if self.add_counts(&mut batch, COUNTS_MAX)? > 0 {
                batch.submit_with(Durability::Process)?.wait()?;
            }
        }
        entry.set_member("accessCount", looks.count.to_string());
        entry.set_member("lastAccessedAt", looks.last_ms.to_string());
        Ok(())
    }

    /// Where the count of an entry's accesses is kept until it is written.
    fn count_key(&self, key: &[u8]) -> annals_store::kv::deferred::DeferredKey {
        (self.looks.namespace(), self.looks.id(), key.to_vec())
    }

    /// Adds unwritten counts of accesses to a batch. Counts of entries that are gone are dropped.
    fn add_counts(&self, batch: &mut KvBatch, count_max: usize) -> Result<usize> {
        let core = self.entries.core();
        let mut added = 0;
        for (key, count) in core.deferred.take(self.looks.namespace(), self.looks.id(), count_max) {
            if self.has_entry(&key)? {
                batch.put(&self.looks, &key, count);
                added += 1;
            }
        }
        Ok(added)
    }

    pub(super) fn has_entry(&self, key: &[u8]) -> Result<bool> {
        let mut there = self.entries.scan(ScanRange::prefix(key)).keys();
        Ok(there.next().transpose()?.is_some_and(|there| there == key))
    }

    /// Drops unwritten counts of entries whose deletion can be read: a reader that saw one before may have counted since.
    fn drop_counts<'a>(&self, keys: impl IntoIterator<Item = &'a Vec<u8>>) {
        keys.into_iter().for_each(|key| self.entries.core().deferred.remove(&self.count_key(key)));
    }

    /// Adds some unwritten counts to a batch. While the result lives, no run is dropped, so the entries are still there when the batch
    /// is queued.
    fn add_some_counts(&self, batch: &mut KvBatch) -> Result<Option<DropHold<'_>>> {
        let (namespace, looks) = (self.looks.namespace(), self.looks.id());
        if !self.entries.core().deferred.has_any(namespace, looks) {
            return Ok(None);
        }
        let held = self.space.hold_drops();
        self.add_counts(batch, COUNTS_AT_ONCE)?;
        Ok(Some(held))
    }

    /// Stores an entry, and replaces the one with its id.
    ///
    /// # Errors
    /// `Invalid` for a malformed entry or vector; `Unavailable`, `Poisoned`.
    pub fn put(&self, identity: &Identity, entry: &str) -> Result<()> {
        self.put_many(identity, std::slice::from_ref(&entry))
    }

    /// Stores entries, all of them or none. Of entries with the same id the last one counts.
    ///
    /// # Errors
    /// As [`Memory::put`].
    pub fn put_many(&self, identity: &Identity, entries: &[&str]) -> Result<()> {
        let waiting = self.submit_put(identity, entries)?;
        self.wait_for_put(identity, waiting)
    }

    /// As [`Memory::put_many`], but returns before the entries are stored: the ticket is answered when they
    /// are. `None` without entries. Entries of several callers are then written and synced together.
    ///
    /// # Errors
    /// As [`Memory::put`].
    pub fn submit_put(&self, identity: &Identity, entries: &[&str]) -> Result<Option<Ticket>> {
        let mut checked: Vec<CheckedEntry> =
            entries.iter().map(|text| CheckedEntry::parse(text)).collect::<Result<_>>()?;
        let texts = entries.iter().map(|text| (*text).to_owned()).collect();
        self.submit_entries(identity, &mut checked, texts)
    }

    pub(super) fn wait_for_put(&self, identity: &Identity, waiting: Option<Ticket>) -> Result<()> {
        let Some(waiting) = waiting else { return Ok(()) };
        waiting.wait()?;
        // The entries are stored. If the index cannot be kept now, the next write tries again.
        let _later = self.tend_index(identity.tenant_prefix().as_bytes());
        Ok(())
    }

    pub(super) fn submit_entries(
        &self,
        identity: &Identity,
        entries: &mut [CheckedEntry],
        texts: Vec<String>,
    ) -> Result<Option<Ticket>> {
        let name = identity.checked_name()?;
        // Of entries with the same id the last one counts.
        let mut last: BTreeMap<&str, (&MemoryEntry, Option<Card>, String)> = BTreeMap::new();
        for (CheckedEntry { entry, card }, text) in entries.iter_mut().zip(texts) {
            last.insert(&entry.id, (entry, card.take(), text));
        }
        let keys: Vec<Vec<u8>> = last.keys().map(|id| entry_key(&name, id)).collect();
        if keys.is_empty() {
            return Ok(None);
        }
        self.tend_index(identity.tenant_prefix().as_bytes())?;
        let mut changing = self.lock_unsettled();
        self.note_queued(&mut changing, &keys)?;
        let mut batch = self.space.batch();
        for (key, (entry, card, text)) in keys.iter().zip(last.into_values()) {
            self.add_to_batch(&mut changing, &mut batch, key, (entry, text), card)?;
        }
        self.submit(batch).map(Some)
    }

    /// Adds an entry and everything kept beside it to a batch.
    pub(super) fn add_to_batch(
        &self,
        changing: &mut Numbering<'_>,
        batch: &mut KvBatch,
        key: &[u8],
        (entry, text): (&MemoryEntry, String),
        card: Option<Card>,
    ) -> Result<()> {
        self.entries.core().deferred.remove(&self.count_key(key));
        let text = text.into_bytes();
        match &entry.embedding {
            Some(vector) => {
                let name = partition_name(vector.len(), entry.embedder.as_deref());
                batch.put_embedded(&self.entries, key, text, &[(&name, vector)]);
            }
            None => {
                batch.put(&self.entries, key, text);
            }
        }
        batch.delete(&self.looks, key);
        if let Some(ms) = entry.deadline_ms() {
            self.space.deadlines()?.add(batch, DeadlineKind::Memory, ms, key);
        }
        match card {
            Some(mut card) => {
                self.number_card(changing, batch, key, &mut card)?;
                batch.put(&self.words, key, card.bytes());
            }
            // The replaced entry may have had a card of the built-in embedder.
            None if self.words.get(key)?.is_some() => {
                self.remove_number(changing, batch, key)?;
                batch.delete(&self.words, key);
            }
            None => {}
        }
        Ok(())
    }

    /// Lock of every read-modify-write in this store. Whatever was queued under it before can be read.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub(super) fn lock_changes(&self) -> Result<Numbering<'_>> {
        let mut changing = self.lock_unsettled();
        self.settle(&mut changing)?;
        Ok(changing)
    }

    /// As [`Self::lock_changes`], but queued batches may still be on their way.
    pub(super) fn lock_unsettled(&self) -> Numbering<'_> {
        Numbering::new(lock(&self.entries.core().memory_lock))
    }

    /// Stores an entry if the current one has the expected version; 0 means that no entry exists.
    ///
    /// # Errors
    /// As [`Memory::put`].
    pub fn put_if_version(&self, identity: &Identity, text: &str, expected: u64) -> Result<PutOutcome> {
        let CheckedEntry { entry, card } = CheckedEntry::parse(text)?;
        let key = entry_key(&identity.checked_name()?, &entry.id);
        let mut changing = self.lock_changes()?;
        let current = self.live_entry(&key)?.map(|entry| entry.version);
        if current.unwrap_or(0) != expected {
            return Ok(PutOutcome { applied: false, current });
        }
        let mut batch = self.space.batch();
        self.add_to_batch(&mut changing, &mut batch, &key, (&entry, text.to_owned()), card)?;
        self.commit(batch)?;
        drop(changing);
        self.tend_index(&key)?;
        Ok(PutOutcome { applied: true, current: None })
    }

    /// A page of entries, the last changed first, from the position that `cursor` names. Also returns the
    /// next cursor, if there are more.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn list(
        &self,
        identity: &Identity,
        cursor: Option<&str>,
        limit: Option<usize>,
        tiers: &[String],
    ) -> Result<(Vec<MemoryEntry>, Option<String>)> {
        let prefix = format!("{}\0", identity.checked_name()?);
        let from: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let limit = limit.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX);
        let mut places: Vec<(std::cmp::Reverse<i64>, Vec<u8>)> = Vec::new();
        self.for_each_entry(&prefix, &mut |key, entry| {
            if has_tier(&entry, tiers) {
                places.push((std::cmp::Reverse(entry.updated_ms), key));
            }
            Ok(())
        })?;
        places.sort();
        let (mut entries, mut bytes, mut looked) = (Vec::new(), 0, 0);
        for (_, key) in places.iter().skip(from).take(limit) {
            if bytes >= LIST_BYTES_MAX {
                break;
            }
            looked += 1;
            if let Some(entry) = self.live_entry(key)? {
                bytes += entry.approximate_bytes();
                entries.push(entry);
            }
        }
        let next = (places.len() > from.saturating_add(looked)).then(|| (from + looked).to_string());
        Ok((entries, next))
    }

    /// Deletes an entry and its feedback; signatures stay. A missing entry is not an error.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn delete(&self, identity: &Identity, id: &str) -> Result<()> {
        let key = entry_key(&identity.checked_name()?, id);
        let mut changing = self.lock_changes()?;
        let mut batch = self.space.batch();
        self.add_deletion(&mut changing, &mut batch, &key)?;
        self.commit(batch)?;
        self.drop_counts([&key]);
        drop(changing);
        self.tend_index(&key)
    }

    /// Adds to a batch the deletion of an entry and of everything kept beside it but its signatures.
    pub(super) fn add_deletion(
        &self,
        changing: &mut Numbering<'_>,
        batch: &mut KvBatch,
        key: &[u8],
    ) -> Result<()> {
        self.remove_number(changing, batch, key)?;
        self.entries.core().deferred.remove(&self.count_key(key));
        for keyspace in [&self.entries, &self.words, &self.looks, &self.feedback] {
            batch.delete(keyspace, key);
        }
        Ok(())
    }

    /// Deletes everything of an identity: entries, feedback, signatures. Returns the number of deleted
    /// entries.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`, `Poisoned`.
    pub fn forget(&self, identity: &Identity) -> Result<u64> {
        let prefix = format!("{}\0", identity.checked_name()?);
        let mut changing = self.lock_changes()?;
        let mut ended = 0;
        for keyspace in
            [&self.entries, &self.words, &self.looks, &self.feedback, &self.signatures, &self.recalled]
        {
            loop {
                let keys: Vec<Vec<u8>> = keyspace
                    .scan(ScanRange::prefix(prefix.as_bytes()))
                    .keys()
                    .take(KEYS_AT_ONCE)
                    .collect::<Result<_>>()?;
                if keys.is_empty() {
                    break;
                }
                let mut batch = self.space.batch();
                for key in &keys {
                    match keyspace.id() == self.words.id() || keyspace.id() == self.entries.id() {
                        true => self.add_deletion(&mut changing, &mut batch, key)?,
                        false => drop(batch.delete(keyspace, key)),
                    }
                }
                self.commit(batch)?;
                self.drop_counts(&keys);
                if std::ptr::eq(keyspace, &self.entries) {
                    ended += keys.len() as u64;
                }
            }
        }
        if let Some(index) = self.space.find_deadlines()? {
            let mut batch = self.space.batch();
            let is_gone = |id: &[u8]| id.starts_with(prefix.as_bytes());
            if index.remove_all(&mut batch, DeadlineKind::Memory, is_gone)? > 0 {
                self.commit(batch)?;
            }
        }
        drop(changing);
        self.tend_index(prefix.as_bytes())?;
        Ok(ended)
    }

    /// Deletes entries of all identities whose `ttl` is over, the earliest first, as the index of deadlines has them.
    /// Looks at `most` entries of the index at most; returns the number of deleted entries, and whether there may be
    /// more. Compaction then frees their bytes. The first call in a store of an earlier version, which has no index,
    /// reads all entries.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`, `Poisoned`; `Invalid` in a store open for reading.
    pub fn delete_due(&self, now_ms: u64, most: usize) -> Result<(u64, bool)> {
        let deadline_of = |value: &[u8]| Ok(parse_stored(value)?.deadline_ms());
        let index = self.space.complete_deadlines(DeadlineKind::Memory, deadline_of)?;
        let due = index.due(DeadlineKind::Memory, now_ms, None, most)?;
        if due.is_empty() {
            return Ok((0, false));
        }
        let mut changing = self.lock_changes()?;
        let (mut batch, mut gone) = (self.space.batch(), Vec::new());
        for Deadline { ms, id } in &due {
            index.remove(&mut batch, DeadlineKind::Memory, *ms, id);
            // The entry may have been replaced or deleted.
            if let Some(value) = self.entries.get(id)?
                && parse_stored(&value)?.deadline_ms().is_some_and(|ms| ms <= now_ms)
                && !gone.contains(&id)
            {
                self.add_deletion(&mut changing, &mut batch, id)?;
                gone.push(id);
            }
        }
        self.commit(batch)?;
        let deleted = gone.len() as u64;
        self.drop_counts(gone);
        drop(changing);
        due.first().map_or(Ok(()), |first| self.tend_index(&first.id))?;
        Ok((deleted, due.len() == most))
    }

    /// Deletes entries of all identities that have expired at `at_ms`, and entries of recorded runs
    /// (`metadata.run`) that were created more than `runs_for_ms` before. Compaction then frees their bytes. Returns the
    /// number of deleted entries; with `dry_run` the number of those that would be deleted.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`, `Poisoned`.
    pub fn delete_expired(&self, at_ms: i64, runs_for_ms: Option<i64>, dry_run: bool) -> Result<u64> {
        let is_over = |entry: &MemoryEntry| {
            let end = runs_for_ms.filter(|_| entry.is_of_run);
            let end = end.and_then(|lasts| entry.created_ms().map(|created| created.saturating_add(lasts)));
            entry.is_expired(at_ms) || end.is_some_and(|end| end <= at_ms)
        };
        let mut due = Vec::new();
        for found in self.entries.scan(ScanRange::all()) {
            let (key, value) = found?;
            if is_over(&parse_stored(&value)?) {
                due.push(key);
            }
        }
        if dry_run {
            return Ok(due.len() as u64);
        }
        let mut deleted = 0;
        for some in due.chunks(KEYS_AT_ONCE) {
            let mut changing = self.lock_changes()?;
            let mut batch = self.space.batch();
            let mut gone = Vec::new();
            for key in some {
                // An entry may have been replaced meanwhile.
                if let Some(value) = self.entries.get(key)?
                    && is_over(&parse_stored(&value)?)
                {
                    self.add_deletion(&mut changing, &mut batch, key)?;
                    gone.push(key);
                }
            }
            if !gone.is_empty() {
                deleted += gone.len() as u64;
                self.commit(batch)?;
                self.drop_counts(gone);
            }
            drop(changing);
            some.first().map_or(Ok(()), |key| self.tend_index(key))?;
        }
        Ok(deleted)
    }

    /// Whether a signature was recorded.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`.
    pub fn has_signature(&self, identity: &Identity, signature: &str) -> Result<bool> {
        Ok(self.signatures.get(&entry_key(&identity.checked_name()?, signature))?.is_some())
    }

    /// Records a signature.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn record_signature(&self, identity: &Identity, signature: &str) -> Result<()> {
        self.write_value(&self.signatures, &entry_key(&identity.checked_name()?, signature), Vec::new())
    }

    /// Rates an entry's usefulness from -1 to 1. Values outside are clamped, and values that are not finite
    /// are ignored.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn rate(&self, identity: &Identity, id: &str, usefulness: f64) -> Result<()> {
        if !usefulness.is_finite() {
            return Ok(());
        }
        let key = entry_key(&identity.checked_name()?, id);
        let _changing = self.lock_changes()?;
        let mut said = self.read_feedback(&key)?.unwrap_or_default();
        said.sum += usefulness.clamp(-1.0, 1.0);
        said.count += 1;
        self.write_value(&self.feedback, &key, to_json_bytes(&said)?)
    }

    /// The ratings of an entry.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn feedback(&self, identity: &Identity, id: &str) -> Result<Option<Feedback>> {
        self.read_feedback(&entry_key(&identity.checked_name()?, id))
    }

    /// Writes one value with this memory's durability.
    fn write_value(&self, keyspace: &Keyspace, key: &[u8], value: Vec<u8>) -> Result<()> {
        let mut batch = self.space.batch();
        batch.put(keyspace, key, value);
        self.commit(batch)
    }

    pub(super) fn commit(&self, mut batch: KvBatch) -> Result<()> {
        let _held = self.add_some_counts(&mut batch)?;
        self.commit_alone(batch)
    }

    /// As [`Self::commit`], without unwritten counts: for a caller that keeps runs from being dropped already.
    pub(super) fn commit_alone(&self, batch: KvBatch) -> Result<()> {
        match self.on_disk {
            true => batch.submit_with(Durability::Disk)?.wait().map(drop),
            false => batch.commit().map(drop),
        }
    }

    /// Queues a batch.
    fn submit(&self, mut batch: KvBatch) -> Result<Ticket> {
        let _held = self.add_some_counts(&mut batch)?;
        if self.on_disk { batch.submit_with(Durability::Disk) } else { batch.submit() }
    }

    /// Calls `each` with every live entry under a key prefix.
    pub(super) fn for_each_entry(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Vec<u8>, MemoryEntry) -> Result<()>,
    ) -> Result<()> {
        let now = self.now_ms();
        for found in self.entries.scan(ScanRange::prefix(prefix.as_bytes())) {
            let (key, value) = found?;
            let entry = parse_stored(&value)?;
            if !entry.is_expired(now) {
                each(key, entry)?;
            }
        }
        Ok(())
    }

    pub(super) fn live_entry(&self, key: &[u8]) -> Result<Option<MemoryEntry>> {
        let Some(value) = self.entries.get(key)? else { return Ok(None) };
        let now = self.now_ms();
        Ok(Some(parse_stored(&value)?).filter(|entry| !entry.is_expired(now)))
    }

    fn access_stats(&self, key: &[u8], entry: &MemoryEntry) -> Result<AccessStats> {
        if let Some(kept) = self.looks.get(key)? {
            return serde_json::from_slice(&kept).map_err(|e| Error::bug(e.to_string()));
        }
        let number = |name: &str| entry.member(name).and_then(|text| serde_json::from_str::<f64>(text).ok());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the count of an imported entry: a fraction is cut off, a negative number is 0"
        )]
        let count = number("accessCount").unwrap_or(0.0) as u64;
        Ok(AccessStats { count, last_ms: 0 })
    }

    pub(super) fn read_feedback(&self, key: &[u8]) -> Result<Option<Feedback>> {
        let Some(kept) = self.feedback.get(key)? else { return Ok(None) };
        serde_json::from_slice(&kept).map(Some).map_err(|e| Error::bug(e.to_string()))
    }
}

pub(super) fn entry_key(identity: &str, id: &str) -> Vec<u8> {
    [identity.as_bytes(), b"\0", id.as_bytes()].concat()
}

pub(super) fn has_tier(entry: &MemoryEntry, tiers: &[String]) -> bool {
    tiers.is_empty() || entry.tier.as_ref().is_some_and(|tier| tiers.contains(tier))
}

fn parse_stored(text: &[u8]) -> Result<MemoryEntry> {
    let text = std::str::from_utf8(text).map_err(|e| Error::bug(e.to_string()))?;
    MemoryEntry::parse(text)
}

pub(super) fn to_json_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::bug(e.to_string()))
}

/// An entry whose value and vector are valid, and its card if it uses the built-in embedder.
pub(super) struct CheckedEntry {
    pub(super) entry: MemoryEntry,
    pub(super) card: Option<Card>,
}

impl CheckedEntry {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let entry = MemoryEntry::parse(text)?;
        check_values(&entry)?;
        let value = match uses_cards(&entry) {
            true => parse_value(entry.value())?,
            false => JsValue::Null,
        };
        Self::new(entry, &value)
    }

    /// Checks an entry whose value is parsed.
    pub(super) fn new(entry: MemoryEntry, value: &JsValue) -> Result<Self> {
        if let Some(vector) = &entry.embedding {
            squared_norm(vector)?;
        }
        let card = uses_cards(&entry).then(|| Card::new(&entry, value));
        Ok(Self { entry, card })
    }
}

/// Refuses a value with too many values. The count includes what a parser does not count, so it is asked for every
/// entry, parsed or not.
pub(super) fn check_values(entry: &MemoryEntry) -> Result<()> {
    if JsValue::has_too_many_values(entry.value()) {
        return Err(Error::invalid(format!("a memory's value must hold at most {VALUES_MAX} values")));
    }
    Ok(())
}

fn uses_cards(entry: &MemoryEntry) -> bool {
    entry.embedder.as_deref() == Some(WordEmbedder::ID)
}

/// Parses an entry's value.
pub(super) fn parse_value(value: &str) -> Result<JsValue> {
    JsValue::parse(value)
        .map_err(|e| Error::invalid(format!("a memory's value is not JSON: {} at byte {}", e.what, e.at)))
}

/// The error if the question and the stored entries use different embedders.
pub(super) fn embedder_mismatch(asked: &str, kept: &str) -> Error {
    Error::invalid(format!(
        "the question's vector is of the embedder {asked:?}, but the stored entries are of {kept:?}: ask with the embedder that wrote them"
    ))
}

/// The key prefix that a search covers.
pub(super) fn key_prefix(identity: &Identity, wanted: &MemoryQuery<'_>) -> Result<String> {
    let own = format!("{}\0", identity.checked_name()?);
    Ok(if wanted.across_conversations { identity.tenant_prefix() } else { own })
}

/// The identity's name in an entry's key.
pub(super) fn identity_of_key(key: &[u8]) -> String {
    String::from_utf8_lossy(key.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
