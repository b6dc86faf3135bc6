//! The operations on entries: put, get, list, search, rate, forget. Each follows one rule of agentfootprint's
//! store.

use super::js::{Js, VALUES_MAX};
use super::near::{name, squared};
use super::words::Card;
use super::*;
use annals_store::log::segments::lock;

/// Keys that [`Memory::forget`] deletes in one batch.
const KEYS_AT_ONCE: usize = 256;

impl Memory {
    pub(super) fn now_ms(&self) -> i64 {
        (self.entries.core().io.now_ns() / 1_000_000) as i64
    }

    /// Reads a live entry. The access is counted, and the returned copy shows the new count.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`, `Poisoned`.
    pub fn get(&self, identity: &Identity, id: &str) -> Result<Option<Entry>> {
        let key = key(&identity.check()?, id);
        let _changing = self.changing();
        let Some(mut entry) = self.living(&key)? else { return Ok(None) };
        let mut looks = self.looks_at(&key, &entry)?;
        looks.count += 1;
        looks.last_ms = self.now_ms();
        self.set(&self.looks, &key, json(&looks)?)?;
        entry.set("accessCount", looks.count.to_string());
        entry.set("lastAccessedAt", looks.last_ms.to_string());
        Ok(Some(entry))
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
        let name = identity.check()?;
        let parsed: Vec<Entry> = entries.iter().map(|text| Entry::parse(text)).collect::<Result<_>>()?;
        if parsed.is_empty() {
            return Ok(());
        }
        let cards: Vec<Option<Card>> = parsed.iter().map(checked).collect::<Result<_>>()?;
        let _changing = self.changing();
        let mut batch = self.space.batch();
        for ((entry, card), text) in parsed.iter().zip(cards).zip(entries) {
            self.add(&mut batch, &key(&name, &entry.id), (entry, text), card)?;
        }
        self.commit(batch)
    }

    /// Adds an entry and everything kept beside it to a batch.
    pub(super) fn add(
        &self,
        batch: &mut KvBatch,
        key: &[u8],
        (entry, text): (&Entry, &str),
        card: Option<Card>,
    ) -> Result<()> {
        let text = text.as_bytes().to_vec();
        match &entry.embedding {
            Some(vector) => {
                let name = name(vector.len(), entry.embedder.as_deref());
                batch.put_embedded(&self.entries, key, text, &[(&name, vector)]);
            }
            None => {
                batch.put(&self.entries, key, text);
            }
        }
        batch.delete(&self.looks, key);
        match card {
            Some(card) => {
                batch.put(&self.words, key, card.bytes());
            }
            // The replaced entry may have had a card of the built-in embedder.
            None if self.words.get(key)?.is_some() => {
                batch.delete(&self.words, key);
            }
            None => {}
        }
        Ok(())
    }

    /// Lock of every read-modify-write in this store.
    pub(super) fn changing(&self) -> annals_store::sync::MutexGuard<'_, ()> {
        lock(&self.entries.core().remembering)
    }

    /// Stores an entry if the current one has the expected version; 0 means that no entry exists.
    ///
    /// # Errors
    /// As [`Memory::put`].
    pub fn put_if_version(&self, identity: &Identity, text: &str, expected: u64) -> Result<Applied> {
        let entry = Entry::parse(text)?;
        let card = checked(&entry)?;
        let key = key(&identity.check()?, &entry.id);
        let _changing = self.changing();
        let current = self.living(&key)?.map(|entry| entry.version);
        if current.unwrap_or(0) != expected {
            return Ok(Applied { applied: false, current });
        }
        let mut batch = self.space.batch();
        self.add(&mut batch, &key, (&entry, text), card)?;
        self.commit(batch)?;
        Ok(Applied { applied: true, current: None })
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
    ) -> Result<(Vec<Entry>, Option<String>)> {
        let prefix = format!("{}\0", identity.check()?);
        let from: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let limit = limit.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX);
        let mut places: Vec<(std::cmp::Reverse<i64>, Vec<u8>)> = Vec::new();
        self.each(&prefix, &mut |key, entry| {
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
            if let Some(entry) = self.living(key)? {
                bytes += entry.bytes();
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
        let key = key(&identity.check()?, id);
        let _changing = self.changing();
        let mut batch = self.space.batch();
        for keyspace in [&self.entries, &self.words, &self.looks, &self.feedback] {
            batch.delete(keyspace, &key);
        }
        self.commit(batch)
    }

    /// Deletes everything of an identity: entries, feedback, signatures. Returns the number of deleted
    /// entries.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`, `Poisoned`.
    pub fn forget(&self, identity: &Identity) -> Result<u64> {
        let prefix = format!("{}\0", identity.check()?);
        let _changing = self.changing();
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
                    batch.delete(keyspace, key);
                }
                self.commit(batch)?;
                if std::ptr::eq(keyspace, &self.entries) {
                    ended += keys.len() as u64;
                }
            }
        }
        Ok(ended)
    }

    /// Whether a signature was recorded.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`.
    pub fn seen(&self, identity: &Identity, signature: &str) -> Result<bool> {
        Ok(self.signatures.get(&key(&identity.check()?, signature))?.is_some())
    }

    /// Records a signature.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn record_signature(&self, identity: &Identity, signature: &str) -> Result<()> {
        self.set(&self.signatures, &key(&identity.check()?, signature), Vec::new())
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
        let key = key(&identity.check()?, id);
        let _changing = self.changing();
        let mut said = self.said(&key)?.unwrap_or_default();
        said.sum += usefulness.clamp(-1.0, 1.0);
        said.count += 1;
        self.set(&self.feedback, &key, json(&said)?)
    }

    /// The ratings of an entry.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn feedback(&self, identity: &Identity, id: &str) -> Result<Option<Feedback>> {
        self.said(&key(&identity.check()?, id))
    }

    /// Writes one value with this memory's durability.
    fn set(&self, keyspace: &Keyspace, key: &[u8], value: Vec<u8>) -> Result<()> {
        let mut batch = self.space.batch();
        batch.put(keyspace, key, value);
        self.commit(batch)
    }

    pub(super) fn commit(&self, batch: KvBatch) -> Result<()> {
        match self.on_disk {
            true => batch.submit_with(Durability::Disk)?.wait().map(drop),
            false => batch.commit().map(drop),
        }
    }

    /// Calls `each` with every live entry under a key prefix.
    pub(super) fn each(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Vec<u8>, Entry) -> Result<()>,
    ) -> Result<()> {
        let now = self.now_ms();
        for found in self.entries.scan(ScanRange::prefix(prefix.as_bytes())) {
            let (key, value) = found?;
            let entry = parsed(&value)?;
            if !entry.is_expired(now) {
                each(key, entry)?;
            }
        }
        Ok(())
    }

    pub(super) fn living(&self, key: &[u8]) -> Result<Option<Entry>> {
        let Some(value) = self.entries.get(key)? else { return Ok(None) };
        let now = self.now_ms();
        Ok(Some(parsed(&value)?).filter(|entry| !entry.is_expired(now)))
    }

    fn looks_at(&self, key: &[u8], entry: &Entry) -> Result<Looks> {
        if let Some(kept) = self.looks.get(key)? {
            return serde_json::from_slice(&kept).map_err(|e| Error::bug(e.to_string()));
        }
        let number = |name: &str| entry.member(name).and_then(|text| serde_json::from_str::<f64>(text).ok());
        Ok(Looks { count: number("accessCount").unwrap_or(0.0) as u64, last_ms: 0 })
    }

    pub(super) fn said(&self, key: &[u8]) -> Result<Option<Feedback>> {
        let Some(kept) = self.feedback.get(key)? else { return Ok(None) };
        serde_json::from_slice(&kept).map(Some).map_err(|e| Error::bug(e.to_string()))
    }
}

pub(super) fn key(identity: &str, id: &str) -> Vec<u8> {
    [identity.as_bytes(), b"\0", id.as_bytes()].concat()
}

pub(super) fn has_tier(entry: &Entry, tiers: &[String]) -> bool {
    tiers.is_empty() || entry.tier.as_ref().is_some_and(|tier| tiers.contains(tier))
}

fn parsed(text: &[u8]) -> Result<Entry> {
    let text = std::str::from_utf8(text).map_err(|e| Error::bug(e.to_string()))?;
    Entry::parse(text)
}

pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::bug(e.to_string()))
}

/// Validates an entry's vector, and builds the card if the entry uses the built-in embedder.
pub(super) fn checked(entry: &Entry) -> Result<Option<Card>> {
    if Js::has_too_many_values(entry.value()) {
        return Err(Error::invalid(format!("a memory's value must hold at most {VALUES_MAX} values")));
    }
    if let Some(vector) = &entry.embedding {
        squared(vector)?;
    }
    (entry.embedder.as_deref() == Some(Words::ID)).then(|| Card::of(entry)).transpose()
}

/// The error if the question and the stored entries use different embedders.
pub(super) fn mismatch(asked: &str, kept: &str) -> Error {
    Error::invalid(format!(
        "the question's vector is of the embedder {asked:?}, but the stored entries are of {kept:?}: ask with the embedder that wrote them"
    ))
}

/// The key prefix that a search covers.
pub(super) fn scope(identity: &Identity, wanted: &Wanted<'_>) -> Result<String> {
    let own = format!("{}\0", identity.check()?);
    Ok(if wanted.across { identity.tenant_prefix() } else { own })
}

/// The identity's name in an entry's key.
pub(super) fn identity_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
