//! Measures how long a small body takes to read when nothing of it is in memory, neither in the engine's
//! caches nor in the system's.
//!
//! `cargo run --profile dist -p annals-benches --example cold -- STORE... [--samples N]`: draws N frames
//! (default 300) of the namespace `default` whose input and output together have 2 to 8 KB.
//! For each frame, the store's files are dropped from the system's page cache (`posix_fadvise`, DONTNEED),
//! and the store is opened, which reads no log. Then the files are dropped again, and finding the run and
//! reading the frame, verified, is timed.
//! The store must be on a disk, not in memory, and no process may write it.
#![expect(clippy::print_stdout, reason = "a program that measures and prints")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use annals::Store;
use annals_benches::conversation::BenchRng;
use annals_benches::measure::quantile;
use rustix::fs::{Advice, fadvise};

/// What counts as a small body, in bytes.
const SMALL_BODY_BYTES: std::ops::RangeInclusive<u64> = 2 << 10..=8 << 10;

fn store_files(store: &Path) -> Vec<PathBuf> {
    let dirs = [store.to_path_buf(), store.join("segments"), store.join("tables")];
    let listed = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    listed.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}

fn evict_pages(files: &[PathBuf]) {
    for path in files {
        let file = File::open(path).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
}

fn small_frames(store: &Store) -> Vec<(String, u32)> {
    let space = store.namespace("default").unwrap();
    let mut all = Vec::new();
    for run in space.runs().unwrap() {
        let run = run.unwrap();
        let reader = space.run(&run.name).unwrap();
        for seq in 1..=run.frames {
            let info = reader.frame_info(seq).unwrap();
            if SMALL_BODY_BYTES.contains(&(info.input_bytes + info.output_bytes)) {
                all.push((run.name.clone(), seq));
            }
        }
    }
    all
}

fn measure(path: &Path, count: usize) {
    let there = small_frames(&Store::open_read_only(path).unwrap());
    let files = store_files(path);
    for file in &files {
        // Pages that wait to be written are not dropped.
        File::open(file).unwrap().sync_all().unwrap();
    }
    let mut random = BenchRng(1);
    let (mut opening, mut cold, mut warm, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..count {
        let (name, seq) = &there[(random.next() % there.len() as u64) as usize];
        evict_pages(&files);
        let began = Instant::now();
        let store = Store::open_read_only(path).unwrap();
        opening.push(began.elapsed());
        evict_pages(&files);
        let read = || {
            let began = Instant::now();
            let frame = store.namespace("default").unwrap().run(name).unwrap().frame(*seq).unwrap();
            (began.elapsed(), frame.input.len() + frame.output.len())
        };
        let (took, len) = read();
        cold.push(took);
        bytes += len;
        store.drop_caches();
        warm.push(read().0);
    }
    println!(
        "{}: {} frames of 2 to 8 KB, {count} drawn, {} bytes each on the whole",
        path.display(),
        there.len(),
        bytes / count
    );
    let show = |what: &str, times: &mut Vec<Duration>| {
        times.sort();
        let [half, most, all] = [0.5, 0.99, 1.0].map(|share| quantile(times, share));
        println!("  {what:44} p50 {half:>10.1?}  p99 {most:>10.1?}  greatest {all:>10.1?}");
    };
    show("opening, nothing in memory", &mut opening);
    show("a frame, nothing in memory", &mut cold);
    show("a frame, its pages in memory, no caches", &mut warm);
}

fn main() {
    let (mut stores, mut count) = (Vec::new(), 300);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--samples" => count = words.next().unwrap().parse().unwrap(),
            store => stores.push(PathBuf::from(store)),
        }
    }
    assert!(
        !stores.is_empty(),
        "which store? `annals import` makes one, `annals compact --recompress` packs it"
    );
    stores.iter().for_each(|store| measure(store, count));
}
