//! Answers of earlier runs, found by their request.
//!
//! A cache entry names the frame that holds the answer; the answer itself stays in its run. The key is a
//! keyed hash of the request's canonical form and its destination. The request of the found frame is hashed
//! again, so an entry whose run was dropped, replaced or redacted gives no answer. Each namespace has its own
//! hash key.
//!
//! An entry ends with its run, or earlier at its deadline, if it has one.

use annals::io::{Io, RealIo};
use annals::replay::matching::CallHash;
use annals::{
    ErrorKind, Keyspace, Namespace, Run,
    kv::{History, ScanRange},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::destination::Destination;
use annals_policy::exchange::{ExchangeMetadata, HttpExchange};

/// The keyspace of cache entries. Names that start with `annals.` are reserved.
const KEYSPACE: &str = "annals.answers";
/// The key that holds the hash key. Entries have keys of 32 bytes.
const KEY_OF_HASHES: &[u8] = b"key";

/// Maximum number of entries deleted in one commit.
const FORGET_BATCH_MAX: usize = 4096;

/// How answers of earlier runs are used.
#[derive(Debug, Clone, Default)]
pub struct CacheUse {
    /// Answer requests from earlier runs.
    pub read: bool,
    /// Store answers for later runs.
    pub write: bool,
    /// Frames that always go to their upstream.
    pub reroll: Vec<u32>,
    /// How long stored answers are used, in nanoseconds; `None`: as long as their run exists.
    pub keep_ns: Option<u64>,
}

/// An answer of an earlier run.
pub(crate) struct CachedAnswer {
    pub(crate) exchange: ExchangeMetadata,
    pub(crate) body: Bytes,
    pub(crate) from: AnswerCacheEntry,
}

/// Where an answer is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AnswerCacheEntry {
    pub(crate) run: String,
    pub(crate) seq: u32,
    /// The entry is ignored from this time on, in nanoseconds since 1970-01-01 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until_ns: Option<u64>,
}

/// The cached answers of a namespace.
pub(crate) struct AnswerCache {
    space: Namespace,
    answers: Keyspace,
    key: [u8; 32],
    options: CacheUse,
}

impl AnswerCache {
    /// Opens the answers of a namespace; `None` if they are neither read nor written.
    ///
    /// # Errors
    /// As reading and writing a key.
    pub(crate) fn open(space: &Namespace, how: &CacheUse) -> annals::Result<Option<Self>> {
        if !how.read && !how.write {
            return Ok(None);
        }
        let answers = space.keyspace(KEYSPACE, History::Latest)?;
        let stored = answers.get(KEY_OF_HASHES)?.and_then(|key| <[u8; 32]>::try_from(key).ok());
        let key = match stored {
            Some(key) => key,
            None => {
                let mut key = [0; 32];
                getrandom::fill(&mut key)
                    .map_err(|e| annals::Error::new(ErrorKind::Unavailable, e.to_string()))?;
                answers.put(KEY_OF_HASHES, key.to_vec())?;
                key
            }
        };
        Ok(Some(Self { space: space.clone(), answers, key, options: how.clone() }))
    }

    /// As [`AnswerCache::open`].
    ///
    /// # Errors
    /// Also `Locked` if another process holds the store.
    pub(crate) fn open_in(into: &Destination, how: &CacheUse) -> annals::Result<Option<Self>> {
        match how.read || how.write {
            true => Self::open(into.local("answers of earlier runs")?, how),
            false => Ok(None),
        }
    }

    /// The cache key of this request to this origin; `None` if it has no canonical form.
    pub(crate) fn request_key(&self, origin: &str, http: &HttpExchange, body: &[u8]) -> Option<CallHash> {
        CallHash::canonical(&self.key, &format!("{} {origin}", http.call()), body).ok()
    }

    /// The cached answer to a request that will become frame `seq` of its run.
    pub(crate) fn find(&self, asked: CallHash, origin: &str, seq: Option<u32>) -> Option<CachedAnswer> {
        if !self.options.read || seq.is_some_and(|seq| self.options.reroll.contains(&seq)) {
            return None;
        }
        // An unreadable entry counts as a miss: the request is simply sent again.
        let entry = self.answers.get(&asked.0).ok()??;
        let from: AnswerCacheEntry = serde_json::from_slice(&entry).ok()?;
        if from.until_ns.is_some_and(|until| self.space.is_due(until, now_ns())) {
            // If the deletion fails, the entry ends with its run.
            let _ = self.answers.delete(&asked.0);
            return None;
        }
        let frame = self.space.run(&from.run).ok()?.frame(from.seq).ok()?;
        let exchange: ExchangeMetadata = serde_json::from_slice(&frame.metadata).ok()?;
        let same = self.request_key(origin, &exchange.http, &frame.input) == Some(asked);
        let whole = !frame.incomplete && is_answer(&exchange.http);
        let from = AnswerCacheEntry { until_ns: None, ..from };
        (same && whole).then(|| CachedAnswer { exchange, body: Bytes::from(frame.output), from })
    }

    /// Stores an answer for later runs.
    ///
    /// # Errors
    /// As writing a key.
    pub(crate) fn note(
        &self,
        asked: CallHash,
        http: &HttpExchange,
        run: &Run,
        seq: u32,
    ) -> annals::Result<()> {
        if !self.options.write || !is_answer(http) {
            return Ok(());
        }
        let until_ns = self.options.keep_ns.map(|keep_ns| now_ns().saturating_add(keep_ns));
        let entry = AnswerCacheEntry { run: run.name().to_owned(), seq, until_ns };
        let entry = serde_json::to_vec(&entry).unwrap_or_default();
        self.space.put_with_run(run.uid(), KEYSPACE, &asked.0, entry)
    }
}

/// Deletes all cache entries that lead to answers of a run, and returns their number.
///
/// # Errors
/// As reading and writing keys.
pub fn forget_answers(space: &Namespace, run: &str) -> annals::Result<u64> {
    let Some(answers) = space.find_keyspace(KEYSPACE)? else { return Ok(0) };
    let mut found = Vec::new();
    for pair in answers.scan(ScanRange::all()) {
        let (asked, entry) = pair?;
        if serde_json::from_slice::<AnswerCacheEntry>(&entry).is_ok_and(|entry| entry.run == run) {
            found.push(asked);
        }
    }
    for some in found.chunks(FORGET_BATCH_MAX) {
        let mut batch = space.batch();
        for asked in some {
            batch.delete(&answers, asked);
        }
        batch.commit()?;
    }
    Ok(found.len() as u64)
}

fn now_ns() -> u64 {
    RealIo::default().now_ns()
}

/// Whether an exchange has a complete, successful answer.
fn is_answer(http: &HttpExchange) -> bool {
    http.broken.is_none() && http.status.is_some_and(|status| (200..300).contains(&status))
}

#[cfg(test)]
mod tests {
    use annals::Store;

    use super::*;

    #[test]
    fn forget_answers_removes_only_that_runs_notes() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("n").unwrap();
        assert_eq!(forget_answers(&space, "a").unwrap(), 0);
        let how = CacheUse { read: true, write: true, ..CacheUse::default() };
        let cache = AnswerCache::open(&space, &how).unwrap().unwrap();
        for (key, run) in [(1u8, "a"), (2, "ab"), (3, "a")] {
            let entry = serde_json::to_vec(&AnswerCacheEntry { run: run.to_owned(), seq: 1, until_ns: None })
                .unwrap();
            cache.answers.put(&[key; 32], entry).unwrap();
        }
        assert_eq!((forget_answers(&space, "a").unwrap(), forget_answers(&space, "a").unwrap()), (2, 0));
        let left: Vec<_> = cache.answers.scan(ScanRange::all()).map(|pair| pair.unwrap().0).collect();
        assert_eq!(left, [vec![2; 32], KEY_OF_HASHES.to_vec()]);
    }
}
