//! A small shared library that precedes the C library in programs run by annals: it records the wall clock
//! reads and the entropy of the program, and serves those of an earlier run.
//!
//! The draws of one thread are its *lane*. A lane's name follows from the program's structure: `0` is the
//! first thread of the first process, `0t2` the second thread that it started, `0p1` the first process that
//! it started. Names do not depend on process ids, so they hold in the next run. The library serves
//! `DIR/in/LANE` as long as the program requests the same draws, continues with real values afterwards, and
//! notes everything that it returns in `DIR/out/LANE`, which survives a killed program. The process that runs
//! the program compares both.
//!
//! The library runs in other people's processes. Nothing here panics or prints. A hook entered from within
//! itself calls the real function. Values that cannot be noted are still returned. `errno` and cancellation
//! behave as in the real function. No file stays open, and no thread is started. Monotonic clocks are not
//! captured.
//!
//! The same source is built twice: as an ordinary crate (the format, for readers of lanes; the hooks under names that
//! nothing calls), and by `server/proxy/build.rs` as the shared library, with `--cfg annals_preload`, which gives the hooks the names of the functions that
//! they stand before. It depends on nothing but the C library, whose few types it declares.
//!
//! Left out on purpose: entropy that the C library draws itself (`arc4random`, `mkstemp`),
//! `fopen("/dev/urandom")`, processor instructions (`rdtsc`, `rdrand`), static binaries and C libraries other
//! than glibc. On systems other than Linux only the format exists.
#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "functions of the C library are stood before and called; nothing of it has a safe form"
    )
)]

#[cfg(target_os = "linux")]
mod exec;
pub mod format;
#[cfg(target_os = "linux")]
pub mod guard;
#[cfg(target_os = "linux")]
pub mod hooks;
#[cfg(target_os = "linux")]
mod lane;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod sys;
pub mod traffic;
