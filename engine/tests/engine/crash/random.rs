//! Random workloads of all operations, crashed at a sample of points; a failing workload is shrunk.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::drive::{IndexRoom, OPS, WorkloadOp};
use super::explore::{CrashChoices, CrashExplorer, record};
use super::{number, report};
use crate::support::SeededRng;

/// Number of crash points of a workload.
const POINTS: usize = 8;

fn random(name: &str, room: IndexRoom, share: u64) {
    let seed = number("ANNALS_SEED", 1);
    let states = number("ANNALS_CRASH_STATES", 6_000);
    let wanted = states * share / 100;
    let explorer = RefCell::new(CrashExplorer::default());
    let config = Config { cases: 1, failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
    let rows = (any::<u64>(), proptest::collection::vec(0..OPS.len(), 1..24));
    while explorer.borrow().tally.states < wanted {
        // A proptest runner stops for good after its number of cases: each workload has its own runner.
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&explorer.borrow().tally.workloads.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let ran = TestRunner::new_with_rng(config.clone(), rng).run(&rows, |(seed, row)| {
            // Every fourth workload commits mostly with `Process` durability: then almost only the upkeep
            // thread syncs the log.
            let lazy = |op: usize| seed.is_multiple_of(4) && !op.is_multiple_of(4);
            let ops: Vec<_> =
                row.iter().map(|op| if lazy(*op) { WorkloadOp::Lazy } else { OPS[*op] }).collect();
            let recorded = record(seed, room, &ops).map_err(TestCaseError::fail)?;
            let mut rng = SeededRng(seed);
            // A few points of many workloads find more than all points of a few.
            let from = rng.below(recorded.io.op_count());
            let points = from..from + POINTS;
            let choices = CrashChoices { all_up_to: 2, seeds: 3 };
            explorer
                .borrow_mut()
                .explore(&recorded, points, choices, &mut rng)
                .map_err(|what| TestCaseError::fail(format!("{what}\nin the workload {ops:?}")))
        });
        if let tally = &explorer.borrow().tally
            && wanted > 100_000
            && tally.workloads.is_multiple_of(1000)
        {
            println!(
                "{} workloads, {} crashes, {} checked",
                tally.workloads,
                tally.crashes(),
                tally.distinct
            );
        }
        if let Err(what) = ran {
            panic!("{what}\n{}", report(name, seed, states));
        }
    }
    let tally = explorer.into_inner().tally;
    println!("{name}:\n{tally}");
    assert!(tally.states >= wanted && tally.workloads >= wanted / 200, "{tally}");
    if room == IndexRoom::Tiny && wanted >= 10_000 {
        assert!(
            tally.crossed().iter().all(|count| *count > 0),
            "a border is never crossed: {:?}",
            tally.crossed()
        );
    }
    super::keep(&tally);
}

#[test]
fn random_workloads_survive_crashes() {
    random("random::random_workloads_survive_crashes", IndexRoom::Ample, 50);
}

/// The upkeep thread is always at work. The system decides how its operations interleave with the writer's,
/// so a failure may need several tries to repeat.
#[test]
fn random_workloads_survive_crashes_while_tables_are_written() {
    random("random::random_workloads_survive_crashes_while_tables_are_written", IndexRoom::Tiny, 50);
}
