//! Runs a test body many times: under schedules chosen from seeds, or on the system's threads.
//!
//! Half of the schedules choose the next thread at random at each step. The other half are PCT's (Burckhardt
//! and others, ASPLOS 2010): random priorities that change at few random steps. PCT finds faults that need a
//! rare order.
//!
//! `ANNALS_SCHEDULES` is the number of schedules (300 under the scheduler, 10 on the system's threads, one
//! under Miri). `ANNALS_SEED` is the first seed (1). `ANNALS_SCHEDULER` chooses the half (`random`, `pct`;
//! default both).

#[cfg(annals_shuttle)]
pub(crate) use scheduled::*;
#[cfg(not(annals_shuttle))]
pub(crate) use system::*;

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How many times a body runs.
pub(crate) fn schedules() -> u64 {
    let default = match (cfg!(annals_shuttle), cfg!(miri)) {
        (true, _) => 300,
        (false, false) => 10,
        (false, true) => 1,
    };
    number("ANNALS_SCHEDULES", default)
}

#[cfg(not(annals_shuttle))]
mod system {
    pub(crate) fn hook() {}

    pub(crate) fn announce(_scheduler: &str, seed: u64, schedules: u64, test: &str) {
        println!(
            "repeat with: ANNALS_SEED={seed} ANNALS_SCHEDULES={schedules} cargo test -p annals --test schedules {test} -- --exact"
        );
    }

    pub(crate) fn once(_seed: u64, body: impl Fn() + Send + Sync + 'static) {
        body();
    }

    pub(crate) fn explore(test: &str, body: impl Fn(u64) + Send + Sync + Copy + 'static) {
        let first = super::number("ANNALS_SEED", 1);
        for seed in first..first + super::schedules() {
            announce("", seed, 1, test);
            body(seed);
        }
    }
}

#[cfg(annals_shuttle)]
mod scheduled {
    use std::sync::{Mutex, Once, PoisonError};

    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, FailurePersistence, Runner};

    /// PCT learns the length of a body from the first schedule of a round, which is always the same.
    const ROUND: u64 = 20;
    /// Stack size of each thread in bytes.
    const STACK_BYTES: usize = 1 << 20;

    /// How to repeat the current schedule, for the panic message.
    static REPEAT: Mutex<String> = Mutex::new(String::new());

    fn config() -> Config {
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        config
    }

    /// Prints how to repeat the schedule at once: a second panic while threads unwind aborts the process.
    pub(crate) fn hook() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let ordinary = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                ordinary(info);
                eprintln!("{}", REPEAT.lock().unwrap_or_else(PoisonError::into_inner));
            }));
        });
    }

    /// Notes how to repeat the next schedule.
    pub(crate) fn announce(scheduler: &str, seed: u64, schedules: u64, test: &str) {
        let line = format!(
            "repeat with: ANNALS_SEED={seed} ANNALS_SCHEDULES={schedules} ANNALS_SCHEDULER={scheduler} .ci/schedules {test}"
        );
        *REPEAT.lock().unwrap() = line;
    }

    /// Runs one random schedule of a body.
    pub(crate) fn once(seed: u64, body: impl Fn() + Send + Sync + 'static) {
        Runner::new(RandomScheduler::new_from_seed(seed, 1), config()).run(body);
    }

    /// Calls `body` with the seed of each schedule.
    pub(crate) fn explore(test: &str, body: impl Fn(u64) + Send + Sync + Copy + 'static) {
        hook();
        let (first, schedules) = (super::number("ANNALS_SEED", 1), super::schedules());
        let which = std::env::var("ANNALS_SCHEDULER").unwrap_or_default();
        let (by_chance, by_priority) = match which.as_str() {
            "random" => (schedules, 0),
            "pct" => (0, schedules),
            _ => (schedules.div_ceil(2), schedules / 2),
        };
        for seed in first..first + by_chance {
            announce("random", seed, 1, test);
            once(seed, move || body(seed));
        }
        let rounds = by_priority.div_ceil(ROUND);
        for seed in first..first + rounds {
            announce("pct", seed, ROUND, test);
            let depth = 1 + (seed % 5) as usize;
            let scheduler = PctScheduler::new_from_seed(seed, depth, ROUND as usize);
            Runner::new(scheduler, config()).run(move || body(seed));
        }
        println!(
            "{test}: {} schedules, {by_chance} by chance, {} by PCT",
            by_chance + rounds * ROUND,
            rounds * ROUND
        );
    }
}
