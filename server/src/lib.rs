//! What stands between agents and the engine. So far the part that needs no socket: what is known about the providers
//! of models ([`providers`]) and what must not reach the disk ([`redact`]). Nothing of the engine or the command line depends on it.
//!
//! Left out on purpose: sockets, threads, clocks. Both rooms are functions of bytes.

mod percent;
pub mod providers;
pub mod redact;
