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
//! The same source is built twice. As an ordinary crate it serves readers of lanes; nothing calls its hooks.
//! `server/proxy/build.rs` builds it as the shared library with `--cfg annals_preload`, which gives the hooks
//! the names of the C library's functions. It depends on nothing but the C library, whose types it declares.
//!
//! Layout: `hooks` (clocks and entropy), `exec` (starting programs), `lane` and `process` (the state of a
//! thread and of a process), `format` (the bytes of a lane), `guard` and `traffic` (the network library),
//! `namespace` (a program's entry into its network namespace), `c_function` and `sys`.
//!
//! Left out on purpose: entropy that the C library draws itself (`arc4random`, `mkstemp`),
//! `fopen("/dev/urandom")`, processor instructions (`rdtsc`, `rdrand`), static binaries and C libraries other
//! than glibc. On systems other than Linux only the format exists.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "replaces and calls functions of the C library, which have no safe form")
)]

#[cfg(target_os = "linux")]
mod c_function;
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
