//! Retention of memory: deletes entries that have expired, by their own lifetime or by a policy.

use annals::retention::RetentionPolicy;
use annals::{Result, Store};
use annals_memory::Memory;

/// The keyspace of entries.
const ENTRIES: &str = "annals.memory";
const NS_PER_MS: u64 = 1_000_000;
/// Entries that are deleted in one commit.
const DELETED_AT_ONCE: usize = 256;

/// Deletes the entries in memory of all namespaces that have expired at `at_ns`: by their `ttl`, or, if they were made of
/// recorded runs, by the policy. Returns the number of deleted entries; with `dry_run` of those that would be.
///
/// # Errors
/// `Damaged`, `Unavailable`, `Poisoned`; `Invalid` in a store open for reading, unless it is a dry run.
pub fn delete_expired_memories(
    store: &Store,
    policy: &RetentionPolicy,
    at_ns: u64,
    dry_run: bool,
) -> Result<u64> {
    let ms = |ns: u64| i64::try_from(ns / NS_PER_MS).unwrap_or(i64::MAX);
    let mut deleted = 0;
    for name in store.namespaces()? {
        let space = store.namespace(&name)?;
        // Opening a memory creates its keyspaces.
        if space.find_keyspace(ENTRIES)?.is_some() {
            let memory = Memory::open(&space)?;
            deleted += match policy.memory_for_ns {
                None if !dry_run => delete_due(&memory, at_ns / NS_PER_MS)?,
                runs_for_ns => memory.delete_expired(ms(at_ns), runs_for_ns.map(ms), dry_run)?,
            };
        }
    }
    Ok(deleted)
}

fn delete_due(memory: &Memory, now_ms: u64) -> Result<u64> {
    let mut deleted = 0;
    loop {
        let (some, is_more) = memory.delete_due(now_ms, DELETED_AT_ONCE)?;
        deleted += some;
        if !is_more {
            return Ok(deleted);
        }
    }
}
