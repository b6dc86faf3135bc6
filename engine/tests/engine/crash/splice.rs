//! Files from another life of the same store. Every checksum in them is valid, since the same store wrote
//! them at the same places with the same numbers. Only the chain tells them apart.
//!
//! A partly restored backup leaves such files, or two copies of a store that were both written.

use std::collections::BTreeSet;
use std::path::PathBuf;

use annals::io::sim::{Crash, SimIo};
use annals::{
    Store,
    kv::{History, ScanRange},
};

use super::STORE;
use super::drive::IndexRoom;

/// A store that continues from `disk`, with values of equal length that contain `life`; then it is killed or
/// closed.
fn run_life(disk: &SimIo, from: usize, count: usize, life: &str, close: bool) -> SimIo {
    let disk = disk.crash(Crash::Everything);
    let store = Store::open_with(STORE, IndexRoom::Ample.options(&disk)).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("all", History::All).unwrap();
    for i in from..from + count {
        keys.put(format!("k{i}").as_bytes(), format!("{life}{}", "x".repeat(300))).unwrap();
    }
    if close {
        store.close().unwrap();
    }
    disk.crash(Crash::Everything)
}

#[test]
fn segment_from_another_life_is_detected() {
    let first = run_life(&SimIo::new(7), 0, 20, "both", true);
    // The active segment has several batches: a single one of another life would look like a torn write.
    let [ours, theirs] = ["ours", "them"].map(|life| run_life(&first, 20, 43, life, false));
    let shared: BTreeSet<PathBuf> = first.files().into_iter().collect();
    let mut spliced = 0;
    for path in ours.files() {
        let new = !shared.contains(&path) && path.extension().is_some_and(|end| end == "seg");
        let Some(bytes) = theirs.read(&path).filter(|bytes| new && ours.read(&path).as_ref() != Some(bytes))
        else {
            continue;
        };
        let disk = ours.crash(Crash::Everything);
        disk.edit(&path, |to| *to = bytes).unwrap();
        spliced += 1;
        let what = path.display();
        let Ok(store) = Store::open_read_only_with(STORE, IndexRoom::Ample.options(&disk)) else { continue };
        let report = store.verify().unwrap();
        let keys = store.namespace("default").unwrap().find_keyspace("all").unwrap().unwrap();
        let values: Vec<Vec<u8>> =
            keys.scan(ScanRange::all()).filter_map(Result::ok).map(|(_, value)| value).collect();
        let strange = values.iter().filter(|value| value.starts_with(b"them")).count();
        assert_eq!(strange, 0, "{what} of another life is believed; verify finds {:?}", report.damaged);
        assert!(
            !report.damaged.is_empty() || values.len() == 63,
            "{what}: values are missing, nothing says so"
        );
    }
    assert!(spliced >= 2, "{spliced}");
}
