//! Prints the costs of an insert, a flush, a merge and a lookup.
//!
//! `ANNALS_KEYS=5000000 cargo test --release -p annals --lib kv::index::tests::measure -- --ignored --nocapture`

use std::sync::Arc;

use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{Io, RealIo};
use crate::kv::index::levels::{Index, IndexLevels, IndexLimits};
use crate::kv::keys;
use crate::kv::table::{IndexEntry, IndexValue};
use crate::log::layout::LogState;
use crate::log::manifest::ManifestState;
use crate::log::paths::StorePaths;

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key of sixteen digits, in no order.
fn key(n: u64) -> Vec<u8> {
    keys::user(17, format!("{:016x}", mix(n)).as_bytes())
}

fn entry(n: u64) -> IndexEntry {
    let value =
        IndexValue { kind: keys::AT_PLACE, a: 1 + n / 400_000, b: (n % 400_000) as u32 * 600, c: 600 };
    IndexEntry { key: key(n), seqno: n + 1, value }
}

fn index(dir: &std::path::Path, memory_bytes: usize) -> Index {
    let io: Arc<dyn Io> = Arc::new(RealIo::new());
    let paths = StorePaths::new(dir);
    io.create_dir_all(&paths.tables()).unwrap();
    let state = ManifestState {
        format: 1,
        store: StoreId([7; 16]),
        created_ns: 0,
        segments: Vec::new(),
        tables: Vec::new(),
        covers: (SegmentId(1), 96),
        covers_state: LogState::empty(),
        synced: 96,
        clean: None,
        next_table: 1,
        next_rewritten: SegmentId::REWRITTEN_MIN,
        erased: crate::log::totals::LogTotals::default(),
        vectors: crate::log::manifest::VectorList::default(),
        cuts: crate::log::manifest::CutList::default(),
    };
    Index::open(
        &io,
        &paths,
        &state,
        IndexLimits { memory_bytes, read_mode: crate::io::ReadMode::default() },
        &crate::testing::no_schema(),
    )
    .0
}

/// Processor time of this thread in nanoseconds: other load on the machine does not count.
fn thread_cpu_ns() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}

#[test]
#[ignore = "figures for people"]
fn print_index_costs() {
    let count: u64 = std::env::var("ANNALS_KEYS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), 16 << 20);
    let (mut inserting, mut writing, mut flushes, mut written) = (0.0, 0.0, 0, 0u64);
    let before = resident_kb();
    let mut counted = 0;
    let mut batch = Vec::new();
    for n in 0..count {
        batch.push(entry(n));
        if batch.len() == 5000 || n + 1 == count {
            let start = thread_cpu_ns();
            index.insert(batch.drain(..));
            inserting += (thread_cpu_ns() - start) / 1e9;
            let levels = index.levels();
            if levels.active.bytes() >= index.limits.memory_bytes || n + 1 == count {
                if flushes == 0 {
                    counted = levels.active.bytes();
                    println!(
                        "memory: {} entries, {} KB counted, {} KB resident",
                        levels.active.len(),
                        counted / 1024,
                        resident_kb() - before
                    );
                }
                let start = thread_cpu_ns();
                let memory = [levels.active.clone()];
                let tables =
                    index.flush_memory((SegmentId(1), 96), &LogState::empty(), &memory, u64::MAX).unwrap();
                let took = (thread_cpu_ns() - start) / 1e9;
                let newest = &tables.last().unwrap().table;
                writing += took;
                flushes += 1;
                written += newest.entry_count();
                index.change_levels(|levels| *levels = IndexLevels { tables, ..IndexLevels::default() });
                index.remove_tables_not_in(&index.levels());
            }
        }
    }
    let levels = index.levels();
    let bytes: u64 = levels.tables.iter().map(|listed| listed.table.file_len()).sum();
    println!(
        "{count} keys: {:.0} ns an insert; {flushes} flushes ({} KB each) wrote {:.1} times each entry in {writing:.1} s, {:.2} M entries/s; {:.1} bytes an entry in {} tables; {} KB resident",
        inserting * 1e9 / count as f64,
        counted / 1024,
        written as f64 / count as f64,
        written as f64 / writing / 1e6,
        bytes as f64 / count as f64,
        levels.tables.len(),
        resident_kb(),
    );
    println!("tables: {:?}", levels.tables.iter().map(|l| l.table.entry_count()).collect::<Vec<_>>());
    drop(levels);
    let gets = 200_000;
    for (what, of) in [("cold", count), ("warm", count), ("hot, 100 keys", 100), ("missing", 0)] {
        let keys: Vec<Vec<u8>> = (0..gets)
            .map(|n| match of {
                0 => key(count + n),
                of => key(mix(n + of) % of),
            })
            .collect();
        let start = thread_cpu_ns();
        let found = keys.iter().filter(|key| index.get(key, Seqno(u64::MAX)).unwrap().is_some()).count();
        let took = (thread_cpu_ns() - start) / gets as f64;
        println!("{took:.0} ns a get, {what}: {found} found");
    }
    println!("{} KB resident", resident_kb());
}
