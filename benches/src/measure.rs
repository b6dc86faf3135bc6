//! Measures on a noisy machine: alternatives run in one process, by turns, and the median of each is taken.
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::time::{Duration, Instant};

/// An alternative to measure. It returns how long it took, and how much it did in that time.
pub struct Contender<'a> {
    /// Its name in tables.
    pub name: String,
    /// Does the work once.
    pub run: Box<dyn FnMut() -> TimedWork + 'a>,
}

/// What was done and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct TimedWork {
    /// Number of things done: steps, bytes, records.
    pub done: f64,
    /// The time taken, without preparation.
    pub took: Duration,
}

impl<'a> Contender<'a> {
    /// A contender of this name. `run` returns what it did and how long that took.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> TimedWork + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// Times a piece of work.
pub fn timed<T>(done: f64, work: impl FnOnce() -> T) -> (T, TimedWork) {
    let began = Instant::now();
    let out = work();
    (out, TimedWork { done, took: began.elapsed() })
}

/// The rates of one contender: things a second, one for each round.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The contender's name.
    pub name: String,
    /// The rates, ascending.
    pub rates: Vec<f64>,
}

impl Rates {
    /// The median rate.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.rates.get(self.rates.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Lets all entrants take turns, `rounds` times, in alternating order. Returns what each gave, round by
/// round.
pub fn run_in_turn<T>(rounds: usize, entrants: usize, mut run: impl FnMut(usize) -> T) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = (0..entrants).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for turn in 0..entrants {
            let index = if round % 2 == 0 { turn } else { entrants - 1 - turn };
            all[index].push(run(index));
        }
    }
    all
}

/// Runs all contenders by turns, `rounds` times.
#[must_use]
pub fn interleave(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Rates> {
    let count = contenders.len();
    let all = run_in_turn(rounds, count, |index| {
        let work = (contenders[index].run)();
        work.done / work.took.as_secs_f64().max(1e-9)
    });
    let sorted = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates
    };
    contenders.into_iter().zip(all).map(|(c, rates)| Rates { name: c.name, rates: sorted(rates) }).collect()
}

/// The value below which `share` (0 to 1) of the sorted samples lie.
#[must_use]
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64) * share).round() as usize).copied().unwrap_or_default()
}

/// Calls `work` `count` times. Returns each call's time, sorted.
pub fn sorted_samples(count: usize, mut work: impl FnMut(usize)) -> Vec<Duration> {
    let mut all: Vec<Duration> = (0..count)
        .map(|index| {
            let began = Instant::now();
            work(index);
            began.elapsed()
        })
        .collect();
    all.sort();
    all
}

/// Anonymous resident memory of this process in bytes, and the most that was ever resident (files included).
#[must_use]
pub fn resident_bytes() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().split(' ').next()).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0)
            * 1024
    };
    (field("RssAnon:"), field("VmHWM:"))
}
