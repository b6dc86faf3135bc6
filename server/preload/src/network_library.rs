//! The root of the network library: `guard` and its dependencies, without Rust's standard library, so that it
//! loads under every C library. Built by `server/proxy/build.rs` alone.
#![no_std]
#![allow(dead_code, reason = "`sys` also serves the library of clocks")]

mod c_function;
mod guard;
mod sys;
mod traffic;

/// Nothing here panics, but the language requires a handler.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Referenced by the precompiled core library; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
