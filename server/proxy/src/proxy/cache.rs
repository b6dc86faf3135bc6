//! Answers of earlier runs, found by their request.
//!
//! A cache entry names the frame that holds the answer; the answer itself stays in its run. The key is a
//! keyed hash of the request's canonical form and its destination. The request of the found frame is hashed
//! again, so an entry whose run was dropped, replaced or redacted gives no answer. Each namespace has its own
//! hash key.
//!
//! An entry ends with its run, or earlier at its deadline, if it has one.

use std::collections::BTreeSet;

use annals::io::{Io, RealIo};
use annals::replay::matching::CallHash;
use annals::retention::{Deadline, DeadlineKind};
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
            // If the deletion fails, a sweep deletes the entry, or it ends with its run.
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
        let deadline = entry.deadline_ms();
        let entry = serde_json::to_vec(&entry).unwrap_or_default();
        let deadline = deadline.map(|ms| (DeadlineKind::Answer, ms));
        self.space.put_with_run(run.uid(), KEYSPACE, &asked.0, entry, deadline)
    }
}

impl AnswerCacheEntry {
    /// When it ends, in milliseconds since 1970-01-01 UTC.
    fn deadline_ms(&self) -> Option<u64> {
        self.until_ns.map(|ns| ns.div_ceil(1_000_000))
    }
}

/// Deletes cache entries whose deadline is past, the earliest first, as the index of deadlines has them. Looks at `most`
/// entries of the index at most; returns the number of deleted entries, and whether there may be more.
///
/// # Errors
/// As reading and writing keys.
pub fn delete_due_answers(space: &Namespace, now_ms: u64, most: usize) -> annals::Result<(u64, bool)> {
    let Some(answers) = space.find_keyspace(KEYSPACE)? else { return Ok((0, false)) };
    let deadline_of = |value: &[u8]| {
        let entry = serde_json::from_slice::<AnswerCacheEntry>(value);
        entry.ok().and_then(|entry| entry.deadline_ms())
    };
    let index = space.complete_deadlines(DeadlineKind::Answer, |value| Ok(deadline_of(value)))?;
    let due = index.due(DeadlineKind::Answer, now_ms, None, most)?;
    if due.is_empty() {
        return Ok((0, false));
    }
    // No answer is put meanwhile.
    let _held = space.hold_drops();
    let (mut batch, mut gone) = (space.batch(), BTreeSet::new());
    for Deadline { ms, id } in &due {
        index.remove(&mut batch, DeadlineKind::Answer, *ms, id);
        // The answer may have been replaced or deleted with its run.
        let until = answers.get(id)?.and_then(|value| deadline_of(&value));
        if until.is_some_and(|until| until <= now_ms) && gone.insert(id) {
            batch.delete(&answers, id);
        }
    }
    batch.commit()?;
    Ok((gone.len() as u64, due.len() == most))
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
    use annals::{RunSpec, Store};

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

    /// Regression: an answer whose time was over stayed until somebody asked for the same again.
    #[test]
    fn due_answers_are_deleted_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("n").unwrap();
        assert_eq!(delete_due_answers(&space, u64::MAX, 10).unwrap(), (0, false));
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let (mount, path) = ("openai".to_owned(), "/v1/chat".to_owned());
        let (method, status) = ("POST".to_owned(), Some(200));
        let http = HttpExchange { mount, method, path, query: None, status, broken: None };
        let note = |number: u8, keep_ns: Option<u64>| {
            let how = CacheUse { read: true, write: true, keep_ns, ..CacheUse::default() };
            let cache = AnswerCache::open(&space, &how).unwrap().unwrap();
            cache.note(CallHash([number; 32]), &http, &run, 1).unwrap();
        };
        let second = 1_000_000_000;
        // The third is noted again, to last longer.
        for (number, keep_ns) in
            [(1, Some(0)), (2, None), (3, Some(0)), (4, Some(0)), (3, Some(3600 * second))]
        {
            note(number, keep_ns);
        }
        let now_ms = now_ns().div_ceil(1_000_000);
        assert!(space.has_due(DeadlineKind::Answer, now_ms).unwrap());
        let mut deleted = 0;
        loop {
            let (some, is_more) = delete_due_answers(&space, now_ms, 2).unwrap();
            deleted += some;
            if !is_more {
                break;
            }
        }
        assert_eq!(deleted, 2);
        assert!(!space.has_due(DeadlineKind::Answer, now_ms).unwrap());
        let answers = space.find_keyspace(KEYSPACE).unwrap().unwrap();
        let left: Vec<_> = answers.scan(ScanRange::all()).map(|pair| pair.unwrap().0).collect();
        assert_eq!(left, [vec![2; 32], vec![3; 32], KEY_OF_HASHES.to_vec()]);
    }
}
