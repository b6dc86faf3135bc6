//! Every workload of up to four operations, out of ten that cover all kinds, with a crash at every disk
//! operation.
//!
//! The points before a workload's last operation equal those of the shorter workload, which is tested as
//! well. The two traces are compared, and only new points are crashed. With at most three changes in doubt
//! every subset is kept, else the extremes and some random ones.

use super::drive::{ALPHABET, IndexRoom, OPS};
use super::explore::{CrashChoices, CrashExplorer, record};
use super::{number, report};
use crate::support::SeededRng;

/// Every workload of `length` operations, the last operation changing fastest.
fn workloads(length: u32) -> impl Iterator<Item = Vec<usize>> {
    (0..ALPHABET.pow(length)).map(move |mut n| {
        let mut ops = vec![0; length as usize];
        for op in ops.iter_mut().rev() {
            *op = n % ALPHABET;
            n /= ALPHABET;
        }
        ops
    })
}

#[test]
fn every_short_workload_survives_a_crash_anywhere() {
    let seed = number("ANNALS_SEED", 1);
    // The long run tests all workloads; the ordinary run tests a share of the longer ones.
    let wanted = number("ANNALS_CRASH_STATES", 0);
    let every = |length: u32| if wanted > 0 { 1 } else { [1, 1, 7, 211, 4001][length as usize] };
    let choices = CrashChoices { all_up_to: 3, seeds: if wanted > 0 { 4 } else { 2 } };
    let mut explorer = CrashExplorer::default();
    let mut parents = std::collections::HashMap::new();
    for length in 0..=4 {
        if wanted > 0 {
            println!("so far, all of fewer than {length} operations:\n{}", explorer.tally);
        }
        for (index, workload) in workloads(length).enumerate() {
            if !(index as u64 + seed).is_multiple_of(every(length)) {
                continue;
            }
            let ops: Vec<_> = workload.iter().map(|op| OPS[*op]).collect();
            if wanted > 0 && index % 500 == 499 {
                let tally = &explorer.tally;
                println!(
                    "{} workloads, {} crashes, {} checked",
                    tally.workloads,
                    tally.crashes(),
                    tally.distinct
                );
            }
            let mut rng = SeededRng(seed ^ index as u64);
            let explored = record(seed, IndexRoom::Ample, &ops).and_then(|recorded| {
                let trace = recorded.io.history().trace_hash_until(recorded.last_began);
                // The shorter workload's trace was recorded before: it must be the beginning of this one.
                let begun =
                    parents.entry(workload[..workload.len().saturating_sub(1)].to_vec()).or_insert(trace);
                if *begun != trace {
                    return Err("the same operations gave another trace".to_owned());
                }
                let from = if length == 0 { 0 } else { recorded.last_began };
                explorer.explore(&recorded, from..usize::MAX, choices, &mut rng)
            });
            if let Err(what) = explored {
                panic!(
                    "{what}\nin the workload {ops:?}\n{}",
                    report("exhaustive::every_short_workload_survives_a_crash_anywhere", seed, wanted)
                );
            }
        }
    }
    println!("every_short_workload_survives_a_crash_anywhere:\n{}", explorer.tally);
    assert!(explorer.tally.distinct > 500);
    super::keep(&explorer.tally);
}
