//! The manifest of a store that stays open for long: edits accumulate, but the file does not grow without
//! bound.

use std::path::Path;
use std::sync::Arc;

use super::samples;
use crate::io::Io;
use crate::io::sim::SimIo;
use crate::log::manifest::{self, Manifest, SharedManifest, State, TableEntry};
use crate::log::paths::Paths;

/// A state with many tables, so that an edit has more than 16 KB.
fn grown() -> State {
    let tables = (0..1000).map(|id| TableEntry { id, bytes: 1 << 20 }).collect();
    State { tables, next_table: 1000, ..samples::manifest_state() }
}

#[test]
fn a_manifest_that_has_grown_long_goes_on_in_a_new_file_and_a_crash_leaves_the_old_or_the_new() {
    let sim = SimIo::new(1);
    let paths = Paths::new(Path::new("store"));
    sim.create_dir_all(Path::new("store")).unwrap();
    let first = Manifest::create(&sim, &paths, 7, grown()).unwrap();
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
fn a_manifest_goes_on_in_a_new_file_just_where_it_has_a_mebibyte() {
    for (len, generation) in [((1 << 20) - 1, 7), (1 << 20, 8)] {
        let sim = SimIo::new(1);
        let paths = Paths::new(Path::new("store"));
        sim.create_dir_all(Path::new("store")).unwrap();
        let first = Manifest::create(&sim, &paths, 7, samples::manifest_state()).unwrap();
        let shared = SharedManifest::new(Arc::new(sim.clone()), paths.clone(), first.with_end(len), None);
        shared.edit(|state| state.synced = 99).unwrap();
        assert_eq!(sim.files(), [paths.current(), paths.manifest(generation)], "{len} bytes");
    }
}
