//! The manifest of a store that stays open for long: edits accumulate, but the file does not grow without
//! bound.

use std::path::Path;
use std::sync::Arc;

use super::samples;
use crate::io::Io;
use crate::io::sim::SimIo;
use crate::log::manifest::{self, Manifest, ManifestState, SharedManifest, TableEntry};
use crate::log::paths::StorePaths;

/// A state with many tables, so that an edit has more than 16 KB.
fn state_with_many_tables() -> ManifestState {
    let tables = (0..1000).map(|id| TableEntry { id, bytes: 1 << 20 }).collect();
    ManifestState { tables, next_table: 1000, ..samples::manifest_state() }
}

#[test]
fn long_manifest_renews_and_a_crash_leaves_old_or_new() {
    let sim = SimIo::new(1);
    let paths = StorePaths::new(Path::new("store"));
    sim.create_dir_all(Path::new("store")).unwrap();
    let first = Manifest::create(&sim, &paths, 7, state_with_many_tables()).unwrap();
    let shared = SharedManifest::new(Arc::new(sim.clone()), paths.clone(), first, None);

    let (mut synced, mut begun, mut longest) = (96, 0, 0);
    while manifest::load(&sim, &paths).unwrap().unwrap().generation == 7 {
        assert!(synced < 1000, "the manifest grows without end: {longest} bytes");
        begun = sim.op_count();
        synced += 1;
        shared.edit(|state| state.synced = synced).unwrap();
        longest = sim.files().iter().map(|path| sim.read(path).unwrap().len()).max().unwrap();
    }
    assert!(synced > 96 + 30, "an edit has some 16 KB, and a file of 1 MiB holds many: {synced}");
    let loaded = manifest::load(&sim, &paths).unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.state.synced, loaded.state.tables.len()), (8, synced, 1000));
    assert_eq!(sim.files(), [paths.current(), paths.manifest(8)], "the old one is gone");

    let history = sim.history();
    for (point, disk) in history.crashes(8).filter(|(point, _)| point.at >= begun) {
        let found = manifest::load(&disk, &paths).unwrap().unwrap();
        let wanted = if found.generation == 7 { synced - 1 } else { synced };
        assert_eq!(found.state.synced, wanted, "{point}");
        assert!(point.at < history.ops().len() || found.generation == 8, "{point}: it was acknowledged");
    }

    // Editing continues.
    shared.edit(|state| state.synced = 5000).unwrap();
    let loaded = manifest::load(&sim, &paths).unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.state.synced), (8, 5000));
}

#[test]
fn manifest_renews_at_one_mebibyte() {
    for (len, generation) in [((1 << 20) - 1, 7), (1 << 20, 8)] {
        let sim = SimIo::new(1);
        let paths = StorePaths::new(Path::new("store"));
        sim.create_dir_all(Path::new("store")).unwrap();
        let first = Manifest::create(&sim, &paths, 7, samples::manifest_state()).unwrap();
        let shared = SharedManifest::new(Arc::new(sim.clone()), paths.clone(), first.with_end(len), None);
        shared.edit(|state| state.synced = 99).unwrap();
        assert_eq!(sim.files(), [paths.current(), paths.manifest(generation)], "{len} bytes");
    }
}
