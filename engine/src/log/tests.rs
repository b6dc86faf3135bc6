//! Checks docs/format.md against the code: golden bytes, a second implementation of the bincode form, hostile
//! bytes.

mod golden;
mod hostile;
mod manifest;
mod oracle;
pub(super) mod samples;
#[cfg(annals_shuttle)]
mod schedules;
