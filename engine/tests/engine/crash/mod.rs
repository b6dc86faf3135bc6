//! Crashes at every operation of workloads on the simulated disk, each compared with a plain model.
//!
//! A workload runs once. Then the disk is rebuilt for each point of its history and each choice of what a
//! crash keeps, and [`oracle`] checks it. `ANNALS_CRASH_STATES` is the number of states, `ANNALS_SEED` the
//! seed.

mod deadlines;
mod drive;
mod exhaustive;
mod explore;
mod faults;
mod ledger;
mod model;
mod oracle;
mod random;
mod splice;
mod tally;

use std::sync::{Mutex, PoisonError};

use tally::CrashTally;

const STORE: &str = "/store";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The end of a failure message.
fn report(test: &str, seed: u64, states: u64) -> String {
    let states = if states > 0 { format!("ANNALS_CRASH_STATES={states} ") } else { String::new() };
    format!(
        "repeat with: ANNALS_SEED={seed} {states}cargo test -p annals --test engine crash::{test} -- --exact"
    )
}

/// Adds up the tallies of this process's tests, and prints the sum so far.
fn keep(tally: &CrashTally) {
    static ALL: Mutex<Option<CrashTally>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = all.get_or_insert_default();
    sum.merge(tally);
    println!(
        "all crash tests so far: {} crashes, {} states, {} checked",
        sum.crashes(),
        sum.states,
        sum.distinct
    );
}
