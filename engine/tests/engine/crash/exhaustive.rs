//! Every workload of up to four operations over ten that cover the kinds, crashed at every operation of the disk.
//!
//! A workload's points before its last operation are those of the one without it, which is gone through as well: the two
//! traces are compared, and only what is new is crashed. Where at most three changes are in doubt every subset is kept,
//! else the extremes and some by chance.

use super::drive::{ALPHABET, OPS, Room};
use super::explore::{Choices, Explorer, record};
use super::{number, report};
use crate::support::Rng;

/// Every workload of `length` operations, the last one changing fastest.
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
    // The long run goes through all of them; the ordinary one takes a share of the longer ones.
    let wanted = number("ANNALS_CRASH_STATES", 0);
    let every = |length: u32| if wanted > 0 { 1 } else { [1, 1, 7, 211, 4001][length as usize] };
    let choices = Choices { all_up_to: 3, seeds: if wanted > 0 { 4 } else { 2 } };
    let mut explorer = Explorer::default();
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
            let mut rng = Rng(seed ^ index as u64);
            let explored = record(seed, Room::Ample, &ops).and_then(|recorded| {
                let trace = recorded.io.history().trace_hash_until(recorded.last_began);
                // The parent was recorded by the last operation's beginning: its own trace says so.
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
