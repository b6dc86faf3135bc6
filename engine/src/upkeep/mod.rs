//! Upkeep of stores: diagnosis, repair, backup, compaction and retention.
//!
//! Layout:
//! - `directory`: lists a store's files without trusting them.
//! - `order`: finds the segments that make up the log.
//! - `salvage`: reads everything of the log that passes its checks, and lists what is missing.
//! - `correct`: restores a batch in which one byte changed.
//! - `repair`: writes the salvaged data into a new store. `repair_report` holds what was lost.
//! - `doctor`: describes a store and its damage.
//! - `backup`: copies a store that is in use, and restores a copy.
//! - `compact`: reclaims the space of unreferenced data.
//! - `due`: compares deadlines with a clock. `deadlines`: the index of deadlines.
//! - `retention`: decides by a policy which runs go. `sweep` reads the runs and drops them.
//! - `forget`: drops one run on request; its `keys` forgets keys and finds what holds a content.

mod backup;
pub(crate) mod compact;
mod correct;
pub(crate) mod deadlines;
mod directory;
mod doctor;
pub(crate) mod due;
pub(crate) mod forget;
mod order;
mod repair;
mod repair_report;
pub(crate) mod retention;
mod salvage;
pub(crate) mod sweep;

pub use backup::{BackupReport, Sharing, restore};
pub use compact::{CompactOptions, CompactPhase, CompactProgress, CompactReport};
pub use doctor::{Diagnosis, Finding, diagnose};
pub use forget::{BackupNote, ContentHolder, ForgottenKey, SharedContent};
pub use repair::repair;
pub use repair_report::{LostItem, RepairReport};

pub use crate::store::BytesByKind;
pub use annals_store::kv::core::OpeningReport;
pub use annals_store::log::activity::{Activity, SYNC_BOUNDS_NS};
pub use annals_store::log::open::is_unfinished_repair;
pub use annals_store::log::{Damage, LogCut, socket_paths};
