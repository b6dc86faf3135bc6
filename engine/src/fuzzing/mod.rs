//! Fuzz targets for every parser of external bytes. Ordinary tests call them too, with the kept corpora.
//! Compiled only for tests and under `cfg(fuzzing)`, so no shipped program contains them.
//!
//! Each function accepts any bytes; its assertions are the oracle. Checksums would reject every random input,
//! so the functions build files with valid checksums around the input. Only an attacker or a bug of the
//! engine writes such files.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::io::sim::{Crash, SimIo};
use crate::io::{Io, OpenMode};
use crate::{
    Component, Frame, Options, RunSpec, Store,
    kv::{History, ScanRange},
};

mod log;
#[path = "../../../fuzz/support.rs"]
mod support;

pub use crate::replay::matching::fuzz::request;
pub use crate::tape::fuzz::tape;
pub use crate::vector::fuzz::vectors;
pub use annals_store::blob::fuzz::{group, recipe};
pub use annals_store::kv::table::fuzz::table;
pub use log::{manifest, record, rewritten, segment};
pub use support::FuzzTarget;

/// All fuzz targets of the engine.
pub const TARGETS: [FuzzTarget; 10] = [
    ("group", group),
    ("manifest", manifest),
    ("recipe", recipe),
    ("record", record),
    ("request", request),
    ("rewritten", rewritten),
    ("segment", segment),
    ("table", table),
    ("tape", tape),
    ("vectors", vectors),
];

/// Directory of the sample store.
pub(crate) const STORE: &str = "s";

/// Maximum keys or frames that are read.
const READ_MAX: usize = 1000;

fn sim_options(io: &SimIo) -> Options {
    Options {
        io: Arc::new(io.clone()),
        group_cache_bytes: 1 << 20,
        zero_ahead_bytes: 0,
        ..Options::default()
    }
}

/// Paths of files with their bytes.
pub(crate) type DiskFiles = Vec<(std::path::PathBuf, Vec<u8>)>;

/// The files of a small store that was not closed, made once per thread.
pub(crate) fn sample_store_files() -> &'static DiskFiles {
    thread_local!(static FILES: &'static DiskFiles = Box::leak(Box::new(make_sample_files())));
    FILES.with(|files| *files)
}

fn make_sample_files() -> DiskFiles {
    let io = SimIo::new(7);
    let made: crate::Result<SimIo> = (|| {
        let store = Store::open_with(STORE, sim_options(&io))?;
        let space = store.namespace("default")?;
        space.keyspace("all", History::All)?.put(b"key", "value")?;
        let run = space.begin_run(RunSpec::new("run"))?;
        run.record(Frame::new(Component::Llm, "a question that is long enough not to be inline", "answer"))?;
        Ok(io.crash(Crash::Everything))
    })();
    made.map(files_of).unwrap_or_default()
}

/// The files of a small store that was compacted and closed, made once per thread.
pub(crate) fn compacted_store_files() -> &'static DiskFiles {
    thread_local!(static FILES: &'static DiskFiles = Box::leak(Box::new(make_compacted_files())));
    FILES.with(|files| *files)
}

fn make_compacted_files() -> DiskFiles {
    let io = SimIo::new(9);
    let made: crate::Result<SimIo> = (|| {
        let store = Store::open_with(STORE, Options { segment_bytes_max: 4 << 10, ..sim_options(&io) })?;
        let space = store.namespace("default")?;
        let keyspace = space.keyspace("all", History::All)?;
        for name in ["kept", "gone", "kept, too"] {
            let run = space.begin_run(RunSpec::new(name))?;
            for step in 0..4u8 {
                let said =
                    format!("a question of {name} that is long enough not to be inline, {step} ").repeat(4);
                run.record(Frame::new(Component::Llm, said, format!("answer {step} of {name}")))?;
            }
            run.end(crate::Status::Ok)?;
            keyspace.put(b"key", name)?;
        }
        space.drop_run("gone", "rule", "")?;
        store.compact(&crate::upkeep::CompactOptions::default())?;
        keyspace.put(b"after", "it")?;
        store.close()?;
        Ok(io.crash(Crash::Everything))
    })();
    made.map(files_of).unwrap_or_default()
}

fn files_of(io: SimIo) -> DiskFiles {
    io.files().into_iter().map(|path| (path.clone(), io.read(&path).unwrap_or_default())).collect()
}

/// A disk with the sample store's files, some of them replaced.
pub(crate) fn sample_disk(replaced: &[(&Path, &[u8])]) -> SimIo {
    disk_with(sample_store_files(), replaced)
}

/// A disk with these files, some of them replaced.
pub(crate) fn disk_with(files: &DiskFiles, replaced: &[(&Path, &[u8])]) -> SimIo {
    let io = SimIo::new(8);
    for (path, bytes) in files {
        let bytes = replaced.iter().find(|(of, _)| of == path).map_or(bytes.as_slice(), |(_, bytes)| bytes);
        if let Some(dir) = path.parent() {
            let _ = io.create_dir_all(dir);
        }
        let _ = io.open(path, OpenMode::CreateNew).map(|file| file.write_at(&[IoSlice::new(bytes)], 0));
    }
    io
}

/// Opens a store read-only and for writing, and reads its content. Errors are allowed; panics and endless
/// loops are not.
pub(crate) fn open_and_read(io: &SimIo) {
    for write in [false, true] {
        let opened = match write {
            false => Store::open_read_only_with(STORE, sim_options(io)),
            true => Store::open_with(STORE, sim_options(io)),
        };
        let Ok(store) = opened else { continue };
        let _ = read_everything(&store);
        let _ = store.verify();
        let _ = store.stats();
        let _ = store.close();
    }
}

fn read_everything(store: &Store) -> crate::Result<()> {
    for name in store.namespaces()? {
        let space = store.namespace(&name)?;
        if let Some(keyspace) = space.find_keyspace("all")? {
            for pair in keyspace.scan(ScanRange::all()).take(READ_MAX) {
                let (key, _) = pair?;
                let _ = keyspace.history(&key)?;
            }
        }
        for run in space.runs()?.take(READ_MAX) {
            let reader = space.run(&run?.name)?;
            for frame in reader.frames().take(READ_MAX) {
                let _ = reader.frame(frame?.seq);
            }
            let _ = reader.snapshot_at(u32::MAX);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_corpora_run_without_panic() {
        support::run_kept_corpora(&TARGETS);
    }

    /// Otherwise the target would test nothing.
    #[test]
    fn compacted_sample_store_is_whole_and_rewritten() {
        let io = disk_with(compacted_store_files(), &[]);
        let store = Store::open_read_only_with(STORE, sim_options(&io)).unwrap();
        assert_eq!(store.verify().unwrap().damaged, []);
        assert_eq!(store.namespace("default").unwrap().runs().unwrap().count(), 2);
        let rewritten =
            compacted_store_files().iter().any(|(path, _)| path.to_string_lossy().contains("2147483648.seg"));
        assert!(rewritten, "{:?}", compacted_store_files().iter().map(|(path, _)| path).collect::<Vec<_>>());
    }

    #[test]
    fn sample_store_is_whole() {
        let io = sample_disk(&[]);
        let store = Store::open_read_only_with(STORE, sim_options(&io)).unwrap();
        assert_eq!(store.verify().unwrap().frames, 1);
        read_everything(&store).unwrap();
    }
}
