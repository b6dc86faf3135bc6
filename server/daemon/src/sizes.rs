//! The store's size over time: measured once a day, in UTC, and kept in the store.
//!
//! A measure is the value of a key in the keyspace `annals.sizes` of the daemon's own namespace. The key is the day:
//! days since 1970, four bytes, big-endian.

use annals::kv::{History, ScanRange};
use annals::{Durability, Store};
use serde::{Deserialize, Serialize};

use super::access::OWN_NAMESPACE;

const KEYSPACE: &str = "annals.sizes";
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Measures that are kept: ten years.
const DAYS_MAX: u32 = 3660;

/// What the store held at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreSize {
    /// Nanoseconds since 1970.
    pub(crate) at_ns: u64,
    pub(crate) runs: u64,
    pub(crate) frames: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) disk_bytes: u64,
}

/// The day of a time.
pub(crate) fn day_of(now_ns: u64) -> u32 {
    u32::try_from(now_ns / DAY_NS).unwrap_or(u32::MAX)
}

/// Measures the store, if that was not done today.
///
/// # Errors
/// `Damaged`, `Unavailable`, `Poisoned`.
pub(crate) fn measure(store: &Store, now_ns: u64) -> annals::Result<()> {
    let space = store.namespace(OWN_NAMESPACE)?;
    let keyspace = space.keyspace(KEYSPACE, History::Latest)?;
    let day = day_of(now_ns);
    if keyspace.get(&day.to_be_bytes())?.is_some() {
        return Ok(());
    }
    let stats = store.stats()?;
    let (runs, frames) = (stats.runs, stats.frames);
    let size =
        StoreSize { at_ns: now_ns, runs, frames, raw_bytes: stats.raw_bytes, disk_bytes: stats.disk_bytes };
    let value = serde_json::to_vec(&size).map_err(|error| annals::Error::bug(error.to_string()))?;
    let mut batch = space.batch();
    batch.put(&keyspace, &day.to_be_bytes(), value);
    let oldest = day.saturating_sub(DAYS_MAX).to_be_bytes();
    for key in keyspace.scan(ScanRange::all()).keys() {
        let key = key?;
        if key.as_slice() >= &oldest[..] {
            break;
        }
        batch.delete(&keyspace, &key);
    }
    batch.submit_with(Durability::Process)?.wait().map(drop)
}

/// All kept measures, oldest first.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub(crate) fn sizes(store: &Store) -> annals::Result<Vec<StoreSize>> {
    if !store.namespaces()?.iter().any(|name| name == OWN_NAMESPACE) {
        return Ok(Vec::new());
    }
    let Some(keyspace) = store.namespace(OWN_NAMESPACE)?.find_keyspace(KEYSPACE)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for pair in keyspace.scan(ScanRange::all()) {
        let (_, value) = pair?;
        // A value of another form is of a later annals.
        found.extend(serde_json::from_slice::<StoreSize>(&value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use annals::{Component, Frame, RunSpec, Status};

    use super::*;

    #[test]
    fn store_is_measured_once_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        assert!(sizes(&store).unwrap().is_empty());
        measure(&store, DAY_NS + 5).unwrap();
        let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
        run.record(Frame::new(Component::Tool, "in", "out")).unwrap();
        run.end(Status::Ok).unwrap();
        measure(&store, 2 * DAY_NS - 1).unwrap();
        measure(&store, 2 * DAY_NS).unwrap();
        let kept = sizes(&store).unwrap();
        let shown: Vec<_> = kept.iter().map(|size| (size.at_ns, size.runs, size.frames)).collect();
        assert_eq!(shown, [(DAY_NS + 5, 0, 0), (2 * DAY_NS, 1, 1)]);
        assert!(kept[1].disk_bytes >= kept[0].disk_bytes && kept[1].raw_bytes >= 5);
        // Measures older than ten years go.
        measure(&store, (u64::from(DAYS_MAX) + 2) * DAY_NS).unwrap();
        assert_eq!(sizes(&store).unwrap().len(), 2);
    }
}
