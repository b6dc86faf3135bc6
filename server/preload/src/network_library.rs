//! The root of the network library: `guard` and what it stands on, without Rust's standard library, so that the library needs no other
//! and loads under every C library. Built by `server/proxy/build.rs` alone.
#![no_std]
#![allow(dead_code, reason = "`sys` also serves the library of clocks")]

mod guard;
mod sys;
mod traffic;

/// Nothing here panics; the language asks for a handler.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The precompiled core library refers to it; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
