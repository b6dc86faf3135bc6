//! The only access to locks, atomics, channels and threads.
//!
//! Ordinarily these are the standard library's types and crossbeam's channel, under their own names. Built
//! with `--cfg annals_shuttle`, they are shuttle's instead. One system thread then runs all threads in turn,
//! and a seeded scheduler chooses who continues at each lock, atomic, message and wait. So a test explores
//! thousands of schedules, a failing schedule can be repeated, and a deadlock is an immediate error
//! (`engine/tests/schedules`, run by `.ci/schedules`).
//!
//! `Arc`, `Weak`, `PoisonError`, `TryLockError` and `LazyLock` come from the standard library in both builds.
//! Threads never wait for the first four, and the last holds only constants. Left out: memory orders. The
//! scheduler treats every atomic as sequentially consistent; `.ci/sanitize` tests weaker orders.

#[cfg(not(annals_shuttle))]
mod backend {
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

pub use backend::{
    Condvar, JoinHandle, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, SCHEDULED,
    atomic, channel, cores, spin_loop, thread,
};
