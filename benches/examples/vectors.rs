//! Measures vector search: recall, searches a second, opening, memory, building, searches beside inserts,
//! filters. With the feature `usearch`, usearch runs beside it on one thread, with the queries by turns.
//! Prints medians of rounds, one line for each figure.
//!
//! `cargo run --profile dist -p annals-benches --features usearch --example vectors -- [COUNT] [DIMENSIONS]
//! [FOLDER] [KINDS]`
//! COUNT is 100,000 and DIMENSIONS 384 by default. usearch keeps its numbers in these KINDS (`f32,bf16,i8`).
//! A given FOLDER stays with what was built in it, and a second run measures that again. It also gets the
//! vectors, the queries and their nearest vectors, for `benches/vectors_hnswlib.py`.
//! The vectors are clustered, as embeddings are: a centre for each hundred, and noise around it, from a seed.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use annals::{
    Durability, Namespace, Options, Store,
    kv::History,
    vectors::{Owner, OwnerFilter, Search, SearchHit},
};

const EMBEDDER: &str = "bench";
const QUERIES: usize = 1000;
const BATCH: usize = 500;

/// The vectors of one seed: centres, and noise around them.
struct Clusters {
    state: u64,
    centres: Vec<Vec<f32>>,
}

impl Clusters {
    fn new(count: usize, dimensions: usize) -> Self {
        let mut all = Self { state: 0x9e37_79b9_7f4a_7c15, centres: Vec::new() };
        all.centres =
            (0..count.div_ceil(100)).map(|_| (0..dimensions).map(|_| all.normal()).collect()).collect();
        all
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// About normal: the sum of four uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / 8_388_608.0 - 1.0).sum()
    }

    fn vector(&mut self) -> Vec<f32> {
        let centre = self.next() as usize % self.centres.len();
        (0..self.centres[centre].len()).map(|at| self.centres[centre][at] + 0.6 * self.normal()).collect()
    }
}

fn open(path: &Path) -> Store {
    Store::open_with(path, Options { durability: Durability::Process, ..Options::default() }).unwrap()
}

/// A line of /proc/self/status, in kilobytes.
fn proc_status_kb(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = after.split(' ').skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// A key: the number of one of a hundred tenants, then the vector's number.
fn key(number: usize) -> [u8; 9] {
    let mut key = [(number % 100) as u8; 9];
    key[1..].copy_from_slice(&(number as u64).to_be_bytes());
    key
}

fn put(space: &Namespace, from: usize, vectors: &[Vec<f32>]) {
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut batch = space.batch();
    for (at, vector) in vectors.iter().enumerate() {
        batch.put_embedded(&keys, &key(from + at), "", &[(EMBEDDER, vector)]);
    }
    batch.commit().unwrap();
}

fn number(found: &SearchHit) -> u64 {
    match &found.owner {
        Owner::Key { key, .. } => u64::from_be_bytes(key[1..].try_into().unwrap()),
        Owner::Snapshot { .. } => u64::MAX,
    }
}

/// Latencies of a search for each query, sorted, and what was found.
fn searches(space: &Namespace, queries: &[Vec<f32>], wanted: &Search<'_>) -> (Vec<Duration>, Vec<Vec<u64>>) {
    let mut took = Vec::with_capacity(queries.len());
    let found = queries.iter().map(|query| {
        let began = Instant::now();
        let found = space.nearest(EMBEDDER, query, wanted).unwrap();
        took.push(began.elapsed());
        found.iter().map(number).collect()
    });
    let found = found.collect();
    took.sort_unstable();
    (took, found)
}

fn recall(found: &[Vec<u64>], truth: &[Vec<u64>]) -> f64 {
    let hits: usize = found
        .iter()
        .zip(truth)
        .map(|(found, truth)| {
            let found: HashSet<u64> = found.iter().copied().collect();
            truth.iter().filter(|one| found.contains(one)).count()
        })
        .sum();
    hits as f64 / truth.iter().map(Vec::len).sum::<usize>().max(1) as f64
}

/// Writes little-endian numbers for other programs: vectors and queries as f32, and the ten nearest of each
/// query as u64.
fn write_inputs(dir: &Path, vectors: &[Vec<f32>], queries: &[Vec<f32>], truth: &[Vec<u64>]) {
    for (name, rows) in [("vectors.f32", vectors), ("queries.f32", queries)] {
        let mut file = BufWriter::new(File::create(dir.join(name)).unwrap());
        rows.iter().flatten().for_each(|number| file.write_all(&number.to_le_bytes()).unwrap());
        file.flush().unwrap();
    }
    let truth: Vec<u8> = truth.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    std::fs::write(dir.join("truth.u64"), truth).unwrap();
}

fn print_latencies(what: &str, took: &[Duration], recall: f64) {
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let rate = took.len() as f64 / took.iter().sum::<Duration>().as_secs_f64();
    println!(
        "{what:28} recall@10 {recall:.4}  {rate:8.0}/s  p50 {:.3} ms  p99.9 {:.3} ms",
        at(0.5),
        at(0.999)
    );
}

/// The widths with which graphs are walked.
const WIDTHS: [usize; 7] = [16, 24, 32, 48, 64, 128, 256];
/// Queries that each searcher answers before the next one's turn.
const TURN_QUERIES: usize = 50;
/// The interval at which ten vectors are inserted beside searches: a thousand a second.
const INSERT_EVERY: Duration = Duration::from_millis(10);
/// Nearly as many vectors as a flush needs.
const IN_MEMORY_VECTORS: usize = 4000;
/// Rounds, of which the median is printed.
const ROUNDS: usize = 5;

/// A search function, with its name.
type NamedSearcher<'a> = (String, Box<dyn FnMut(&[f32]) -> Vec<u64> + 'a>);

/// Lets all searchers answer all queries by turns, round after round.
fn compare_searchers(queries: &[Vec<f32>], all: &mut [NamedSearcher<'_>], truth: &[Vec<u64>]) {
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let mut found: Vec<Vec<Vec<u64>>> = vec![Vec::new(); all.len()];
    for round in 0..ROUNDS {
        let mut took = vec![Duration::ZERO; all.len()];
        for turn in queries.chunks(TURN_QUERIES) {
            for (at, (_, one)) in all.iter_mut().enumerate() {
                for query in turn {
                    let began = Instant::now();
                    let mut near = one(query);
                    took[at] += began.elapsed();
                    if round == 0 {
                        near.truncate(10);
                        found[at].push(near);
                    }
                }
            }
        }
        for (rounds, took) in rounds.iter_mut().zip(took) {
            rounds.push(queries.len() as f64 / took.as_secs_f64());
        }
    }
    for ((name, _), (mut rates, found)) in all.iter().zip(rounds.into_iter().zip(found)) {
        rates.sort_by(f64::total_cmp);
        println!(
            "{name:28} recall@10 {:.4}  {:8.0}/s ({:.0} to {:.0})",
            recall(&found, truth),
            rates[ROUNDS / 2],
            rates[0],
            rates[ROUNDS - 1]
        );
    }
}

/// usearch at its defaults (16 neighbours, 128 candidates when adding), for the kinds of numbers that it can
/// keep.
#[cfg(feature = "usearch")]
mod peer {
    use std::path::Path;
    use std::time::Instant;

    use usearch::{Index, IndexOptions, MetricKind, ScalarKind, new_index};

    use super::processor;

    pub(super) const KINDS: [(&str, ScalarKind); 3] =
        [("f32", ScalarKind::F32), ("bf16", ScalarKind::BF16), ("i8", ScalarKind::I8)];

    fn options(dimensions: usize, kind: ScalarKind) -> IndexOptions {
        IndexOptions {
            dimensions,
            metric: MetricKind::Cos,
            quantization: kind,
            connectivity: 16,
            expansion_add: 128,
            expansion_search: 64,
            multi: false,
        }
    }

    /// Builds an index unless its file exists. Returns a view of the file.
    pub(super) fn built(dir: &Path, (name, kind): (&str, ScalarKind), vectors: &[Vec<f32>]) -> Index {
        let path = dir.join(format!("usearch-{name}"));
        let dimensions = vectors[0].len();
        if !path.exists() {
            let (began, before) = (Instant::now(), cpu_time());
            let index = new_index(&options(dimensions, kind)).unwrap();
            index.reserve(vectors.len()).unwrap();
            for (at, vector) in vectors.iter().enumerate() {
                index.add(at as u64, vector).unwrap();
            }
            println!(
                "usearch {name}: built          {:?}, processor {:?}",
                began.elapsed(),
                processor() - before
            );
            index.save(path.to_str().unwrap()).unwrap();
        }
        let began = Instant::now();
        let view = new_index(&options(dimensions, kind)).unwrap();
        view.view(path.to_str().unwrap()).unwrap();
        println!("usearch {name}: opened         {:?}", began.elapsed());
        view
    }

    pub(super) fn ask(index: &Index, width: usize, query: &[f32]) -> Vec<u64> {
        index.change_expansion_search(width);
        index.search(query, 10).unwrap().keys
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: usize| arguments.next().map_or(or, |text| text.parse().unwrap());
    let (count, dimensions) = (number(100_000), number(384));
    let folder = arguments.next();
    #[cfg(feature = "usearch")]
    let kinds = arguments.next().unwrap_or_else(|| "f32,bf16,i8".to_owned());
    let mut clusters = Clusters::new(count, dimensions);
    let vectors: Vec<Vec<f32>> = (0..count).map(|_| clusters.vector()).collect();
    let queries: Vec<Vec<f32>> = (0..QUERIES).map(|_| clusters.vector()).collect();
    let own = tempfile::tempdir().unwrap();
    let dir = folder.as_ref().map_or(own.path(), |folder| Path::new(folder));
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join("store");
    if !path.exists() {
        let (began, before) = (Instant::now(), cpu_time());
        let store = open(&path);
        let space = store.namespace("n").unwrap();
        for (batch, some) in vectors.chunks(BATCH).enumerate() {
            put(&space, batch * BATCH, some);
        }
        println!("inserted                     {:?}, processor {:?}", began.elapsed(), cpu_time() - before);
        let resident = proc_status_kb("RssAnon");
        store.settle_vectors().unwrap();
        println!("inserted, files and graph    {:?}, processor {:?}", began.elapsed(), cpu_time() - before);
        println!(
            "at most resident             {:.0} MB, {resident:.0} KB before that",
            proc_status_kb("VmHWM") / 1e3
        );
        store.close().unwrap();
    }

    let resident = || proc_status_kb("RssAnon") + proc_status_kb("RssFile");
    let before = resident();
    let began = Instant::now();
    let store = open(&path);
    let space = store.namespace("n").unwrap();
    let (opened, grown) = (began.elapsed(), resident() - before);
    let _ = space.nearest(EMBEDDER, &queries[0], &Search::default()).unwrap();
    println!(
        "opened                       {opened:?}, {grown:.0} KB more resident; after a search {:?}, {:.0} KB",
        began.elapsed(),
        resident() - before
    );

    let wanted = Search::default();
    let exact = Search { exact: true, ..wanted };
    let (took, truth) = searches(&space, &queries, &exact);
    print_latencies("exact", &took, 1.0);
    if folder.is_some() {
        write_inputs(dir, &vectors, &queries, &truth);
    }
    let ask = |wanted: Search<'static>| {
        let space = &space;
        move |query: &[f32]| -> Vec<u64> {
            space.nearest(EMBEDDER, query, &wanted).unwrap().iter().map(self::number).collect()
        }
    };
    #[cfg(feature = "usearch")]
    let indexes: Vec<_> = peer::KINDS
        .into_iter()
        .filter(|(name, _)| kinds.split(',').any(|kind| kind == *name))
        .map(|kind| (kind.0, peer::built(dir, kind, &vectors)))
        .collect();
    let ours = WIDTHS.map(|width| -> NamedSearcher<'_> {
        (format!("annals, width {width}"), Box::new(ask(Search { width: Some(width), ..wanted })))
    });
    let mut all: Vec<NamedSearcher<'_>> = ours.into();
    #[cfg(feature = "usearch")]
    for (name, index) in &indexes {
        all.extend(WIDTHS.map(|width| -> NamedSearcher<'_> {
            let asked = move |query: &[f32]| peer::ask(index, width, query);
            (format!("usearch {name}, width {width}"), Box::new(asked))
        }));
    }
    compare_searchers(&queries, &mut all, &truth);
    drop(all);

    // One tenant, by a closure and by its keys' prefix; and a tenth of all, by a filter that is evaluated
    // once.
    let own = |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key[0] == 7);
    let tenant = OwnerFilter::keys("k", &[7]);
    let tenth = OwnerFilter::new(|owner| matches!(owner, Owner::Key { key, .. } if key[0] % 10 == 3));
    for (name, filtered) in [
        ("closure, 1% pass", Search { filter: Some(&own), ..wanted }),
        ("keys of one tenant, 1%", Search { owners: Some(&tenant), ..wanted }),
        ("among 10%", Search { owners: Some(&tenth), ..wanted }),
    ] {
        let began = Instant::now();
        let _ = space.nearest(EMBEDDER, &queries[0], &filtered).unwrap();
        let first = began.elapsed();
        let queries = &queries[..QUERIES / if filtered.filter.is_some() { 10 } else { 1 }];
        let (_, truth) = searches(&space, queries, &Search { exact: true, ..filtered });
        let (took, found) = searches(&space, queries, &filtered);
        print_latencies(name, &took, recall(&found, &truth));
        println!("{name}, for the first time {first:?}");
    }
    let mut idle: Vec<Duration> = (0..ROUNDS).flat_map(|_| searches(&space, &queries, &wanted).0).collect();
    idle.sort_unstable();
    print_latencies("nearest, idle", &idle, 1.0);
    let stop = AtomicBool::new(false);
    let mut inserted = 0;
    let mut took = std::thread::scope(|scope| {
        let inserts = scope.spawn(|| {
            let mut from = count;
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                put(&space, from, &vectors[from % (count - 10)..][..10]);
                from += 10;
                let due = began + INSERT_EVERY * ((from - count) / 10) as u32;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            from - count
        });
        let took: Vec<Duration> = (0..ROUNDS).flat_map(|_| searches(&space, &queries, &wanted).0).collect();
        stop.store(true, Ordering::Relaxed);
        inserted = inserts.join().unwrap();
        took
    });
    took.sort_unstable();
    print_latencies("nearest, beside inserts", &took, 1.0);
    println!("inserted meanwhile           {inserted}");
    let before = inserted;
    inserted = inserted.max(IN_MEMORY_VECTORS);
    for from in (before..inserted).step_by(BATCH) {
        put(&space, count + from, &vectors[from..inserted.min(from + BATCH)]);
    }
    let (took, _) = searches(&space, &queries, &wanted);
    print_latencies("nearest, 4,000 in memory", &took, 1.0);
    // Restores the folder for another run.
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut batch = space.batch();
    (count..count + inserted).for_each(|number| {
        batch.delete(&keys, &key(number));
    });
    batch.commit().unwrap();
}
