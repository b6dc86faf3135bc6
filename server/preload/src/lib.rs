//! A small shared library that stands before the C library in a program that annals runs: it keeps what the program reads of the
//! wall clock and of the system's entropy, and gives it again what an earlier run had read.
//!
//! What a thread draws is its *lane*. A lane's name says where the thread comes from: `0` is the first thread of the first
//! process, `0t2` the second thread that it started, `0p1` the first process that it started. So names follow from what the program does,
//! not from process ids, and hold in the next run. The library serves `DIR/in/LANE` as long as the program asks for what stands there, goes on with
//! real values after that, and notes all that it handed out in `DIR/out/LANE`, which a killed program leaves behind.
//! Whoever runs the program compares both.
//!
//! It lives in other people's processes, so: nothing here panics or prints; a hook that is entered from within itself passes through;
//! what cannot be noted is handed out all the same; `errno` and cancellation are the real function's; no file stays open; no thread is started.
//! Monotonic clocks pass through.
//!
//! The same source is built twice: as an ordinary crate (the format, for whoever reads lanes; the hooks under names that
//! nothing calls), and by `server/proxy/build.rs` as the shared library, with `--cfg annals_preload`, which gives the hooks the names of the functions that
//! they stand before. It depends on nothing but the C library, whose few types it declares.
//!
//! Left out on purpose: entropy that the C library itself draws (`arc4random`, `mkstemp`), `fopen("/dev/urandom")`, instructions of the
//! processor (`rdtsc`, `rdrand`), static binaries and other C libraries than glibc. On other systems
//! than Linux only the format is here.
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
