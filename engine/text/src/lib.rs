//! Text forms that every crate of the workspace reads and writes the same way: hexadecimal digits, percent-encoding, JSON, text made safe to look at, words for a shell.
//!
//! A leaf: it opens no file, keeps no state, and uses no other crate of the workspace.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod hex;
pub mod json;
pub mod percent;
pub mod shell;
pub mod visible;
