//! Vectors: recall, searches a second, opening, memory, building, searches beside inserts, filters; with the feature `usearch`
//! that beside it, on one thread, the queries of both by turns. One table, a line a figure.
//!
//! `cargo run --release -p annals-benches --features usearch --example vectors -- [COUNT] [DIMENSIONS]`, 100,000 and 384 unless
//! said otherwise.
//! The vectors are clustered, as embeddings are: a centre for each hundred, and noise around it, from a seed.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use annals::{Durability, Found, History, Namespace, Options, Owner, Search, Store};

const EMBEDDER: &str = "bench";
const QUERIES: usize = 1000;
const BATCH: usize = 500;

/// Vectors of one seed: centres, and noise around them.
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

    /// About normal: the sum of four even ones.
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
fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Processor time of this process so far.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = after.split(' ').skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn put(space: &Namespace, from: usize, vectors: &[Vec<f32>]) {
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut batch = space.batch();
    for (at, vector) in vectors.iter().enumerate() {
        batch.put_embedded(&keys, &((from + at) as u64).to_be_bytes(), "", &[(EMBEDDER, vector)]);
    }
    batch.commit().unwrap();
}

fn number(found: &Found) -> u64 {
    match &found.owner {
        Owner::Key { key, .. } => u64::from_be_bytes(key.as_slice().try_into().unwrap()),
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

fn line(what: &str, took: &[Duration], recall: f64) {
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let rate = took.len() as f64 / took.iter().sum::<Duration>().as_secs_f64();
    println!(
        "{what:28} recall@10 {recall:.4}  {rate:8.0}/s  p50 {:.3} ms  p99.9 {:.3} ms",
        at(0.5),
        at(0.999)
    );
}

/// How many of the ten nearest are asked for, so that more and more of the graph is looked at.
const WIDER: [usize; 6] = [10, 50, 100, 200, 400, 800];
/// Queries that one of two asks before it is the other's turn.
const TURN: usize = 50;

/// Latencies of a part of the queries, and the ten that were found of each.
type Asked = (Vec<Duration>, Vec<Vec<u64>>);

/// Has two answer all queries by turns.
fn by_turns<'a>(
    queries: &[Vec<f32>],
    ours: &mut dyn FnMut(&[f32]) -> Vec<u64>,
    theirs: Option<&'a mut dyn FnMut(&[f32]) -> Vec<u64>>,
) -> (Asked, Asked) {
    let (mut our, mut their) = (Asked::default(), Asked::default());
    let mut theirs = theirs;
    let ask = |one: &mut dyn FnMut(&[f32]) -> Vec<u64>, turn: &[Vec<f32>], into: &mut Asked| {
        for query in turn {
            let began = Instant::now();
            let mut found = one(query);
            into.0.push(began.elapsed());
            found.truncate(10);
            into.1.push(found);
        }
    };
    for turn in queries.chunks(TURN) {
        ask(ours, turn, &mut our);
        if let Some(theirs) = &mut theirs {
            ask(*theirs, turn, &mut their);
        }
    }
    our.0.sort_unstable();
    their.0.sort_unstable();
    (our, their)
}

/// usearch at its defaults: 16 neighbours, 128 candidates when adding, f32.
#[cfg(feature = "usearch")]
mod peer {
    use std::path::Path;
    use std::time::Instant;

    use usearch::{Index, IndexOptions, MetricKind, ScalarKind, new_index};

    use super::processor;

    fn options(dimensions: usize) -> IndexOptions {
        IndexOptions {
            dimensions,
            metric: MetricKind::Cos,
            quantization: ScalarKind::F32,
            connectivity: 16,
            expansion_add: 128,
            expansion_search: 64,
            multi: false,
        }
    }

    /// Builds one, writes it, and gives it as a view of its file.
    pub(super) fn built(path: &Path, vectors: &[Vec<f32>]) -> Index {
        let (began, before) = (Instant::now(), processor());
        let index = new_index(&options(vectors[0].len())).unwrap();
        index.reserve(vectors.len()).unwrap();
        for (at, vector) in vectors.iter().enumerate() {
            index.add(at as u64, vector).unwrap();
        }
        println!("usearch: built               {:?}, processor {:?}", began.elapsed(), processor() - before);
        index.save(path.to_str().unwrap()).unwrap();
        drop(index);
        let began = Instant::now();
        let view = new_index(&options(vectors[0].len())).unwrap();
        view.view(path.to_str().unwrap()).unwrap();
        println!("usearch: opened              {:?}", began.elapsed());
        view
    }

    pub(super) fn ask(index: &Index, width: usize, query: &[f32]) -> Vec<u64> {
        index.change_expansion_search(width);
        index.search(query, 10).unwrap().keys
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (count, dimensions) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(384));
    let mut clusters = Clusters::new(count, dimensions);
    let vectors: Vec<Vec<f32>> = (0..count).map(|_| clusters.vector()).collect();
    let queries: Vec<Vec<f32>> = (0..QUERIES).map(|_| clusters.vector()).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");

    let (began, before) = (Instant::now(), processor());
    let store = open(&path);
    let space = store.namespace("n").unwrap();
    for (batch, some) in vectors.chunks(BATCH).enumerate() {
        put(&space, batch * BATCH, some);
    }
    println!("inserted                     {:?}", began.elapsed());
    store.settle_vectors().unwrap();
    println!("inserted, files and graph    {:?}, processor {:?}", began.elapsed(), processor() - before);
    store.close().unwrap();

    let before = status("RssAnon") + status("RssFile");
    let began = Instant::now();
    let store = open(&path);
    let space = store.namespace("n").unwrap();
    let opened = began.elapsed();
    let _ = space.nearest(EMBEDDER, &queries[0], &Search::default()).unwrap();
    let grown = status("RssAnon") + status("RssFile") - before;
    println!(
        "opened                       {opened:?}, first search after {:?}, {grown:.0} KB more resident",
        began.elapsed()
    );

    let wanted = Search::default();
    let exact = Search { exact: true, ..wanted };
    let (took, truth) = searches(&space, &queries, &exact);
    line("exact", &took, 1.0);
    #[cfg(feature = "usearch")]
    let index = peer::built(&dir.path().join("usearch"), &vectors);
    for (step, k) in WIDER.into_iter().enumerate() {
        let wider = Search { k, ..wanted };
        let mut ours =
            |query: &[f32]| space.nearest(EMBEDDER, query, &wider).unwrap().iter().map(number).collect();
        #[cfg(feature = "usearch")]
        let mut theirs = |query: &[f32]| peer::ask(&index, 32 << step, query);
        #[cfg(feature = "usearch")]
        let theirs: Option<&mut dyn FnMut(&[f32]) -> Vec<u64>> = Some(&mut theirs);
        #[cfg(not(feature = "usearch"))]
        let theirs = None;
        let (our, their) = by_turns(&queries, &mut ours, theirs);
        line(&format!("nearest {k}"), &our.0, recall(&our.1, &truth));
        if !their.0.is_empty() {
            line(&format!("usearch, width {}", 32 << step), &their.0, recall(&their.1, &truth));
        }
    }
    let (idle, _) = searches(&space, &queries, &wanted);
    line("nearest, again", &idle, 1.0);
    for (name, part) in [("filtered at 10%", 10), ("filtered at 1%", 100)] {
        let some = |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key.iter().map(|b| usize::from(*b)).fold(0, |n, b| (n * 256 + b) % part) == 0);
        let filtered = Search { filter: Some(&some), ..wanted };
        let (_, truth) = searches(&space, &queries[..200], &Search { exact: true, ..filtered });
        let (took, found) = searches(&space, &queries[..200], &filtered);
        line(name, &took, recall(&found, &truth));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut from = count;
            while !stop.load(Ordering::Relaxed) {
                put(&space, from, &vectors[..BATCH.min(10)]);
                from += 10;
            }
        });
        let (took, _) = searches(&space, &queries, &wanted);
        stop.store(true, Ordering::Relaxed);
        line("nearest, beside inserts", &took, 1.0);
    });
}
