//! Replacements for the C library's network functions: they note each connection and each name look-up that
//! does not go to the proxy, and refuse it if the policy says so.
//!
//! This module and [`crate::traffic`] are also built as a library of their own, without Rust's standard
//! library and without dependencies, so that it loads under every C library. It allocates nothing, keeps no
//! file open and never panics. If a note cannot be written, the program continues normally.
//!
//! Layout: `policy` (the mapped policy and its decisions), `notes` (lines about what happened), `hooks` (the
//! replaced functions), `programs` (those that start programs).
#![expect(missing_docs, reason = "documented by the C library")]

mod hooks;
mod notes;
mod policy;
mod programs;

pub use hooks::{
    connect, getaddrinfo, gethostbyname, gethostbyname_r, gethostbyname2, sendmmsg, sendmsg, sendto,
};
pub use programs::{execv, execve, execvp, execvpe, posix_spawn, posix_spawnp};

extern "C" fn library_begins() {
    let _ = policy::set_up();
}

#[cfg(annals_network)]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = library_begins;
#[cfg(not(annals_network))]
const _: extern "C" fn() = library_begins;
