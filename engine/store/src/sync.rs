//! The only door to locks, atomics, channels and threads.
//!
//! Ordinarily what stands here is the standard library's own, and crossbeam's channel, under their own names: the same
//! code as without the door. Built with `--cfg annals_shuttle` it is shuttle's instead: one system thread runs all
//! threads in turn and a scheduler chooses from a seed who goes on at each lock, atomic, message and wait. So a test
//! goes through thousands of schedules, a failing one repeats, and where nobody can go on that is an error at once
//! (`engine/tests/schedules`, run by `.ci/schedules`).
//!
//! `Arc`, `Weak`, `PoisonError`, `TryLockError` and `LazyLock` are the standard library's in both: nobody waits for the
//! first four, and the last holds constants only. Left out: memory orders. The scheduler takes every atomic as sequentially consistent;
//! weaker orders are for `.ci/sanitize`.

#[cfg(not(annals_shuttle))]
mod door {
    pub use crossbeam_channel as channel;
    pub use std::hint::spin_loop;
    pub use std::sync::{
        Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
    };
    pub use std::thread::{self, JoinHandle};

    /// Whether a test's scheduler runs all threads.
    pub const SCHEDULED: bool = false;

    /// How many threads can run at once.
    pub fn cores() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }
}

#[cfg(annals_shuttle)]
mod door {
    pub use super::scheduled::{OnceLock, channel};
    pub use shuttle::hint::spin_loop;
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
    pub use shuttle::thread::{self, JoinHandle};

    /// Whether a test's scheduler runs all threads.
    pub const SCHEDULED: bool = true;

    /// How many threads can run at once.
    pub fn cores() -> usize {
        1
    }
}

#[cfg(annals_shuttle)]
mod scheduled;

pub use door::{
    Condvar, JoinHandle, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, SCHEDULED,
    atomic, channel, cores, spin_loop, thread,
};
