//! Looking after stores: what a damaged one still holds, and saving that into a new one.
//!
//! Layout: `site` (what stands in a directory, without trusting it), `order` (which segments make the log), `salvage` (all of the log that checks, and what is
//! missing between), `repair` (that written into a new store), `lost` (what could not be), `doctor` (what to
//! say of a store and its damage), `backup` (copies of a store that is in use, and back), `compact` (the room of what
//! nothing leads to any more), `moment` (what is due), `retention` (what a policy decides), `sweep` (that read and done), `forget` (one run, on
//! request).

mod backup;
mod compact;
mod directory;
mod doctor;
mod due;
mod forget;
mod order;
mod repair;
mod repair_report;
mod retention;
mod salvage;
mod sweep;

pub use backup::{BackupReport, Sharing, restore};
pub use compact::{CompactOptions, CompactPhase, CompactProgress, CompactReport};
pub use doctor::{Diagnosis, Finding, diagnose};
pub use due::is_due;
pub use forget::{BackupNote, RunRemnants};
pub use repair::repair;
pub use repair_report::{LostItem, RepairReport};
pub use retention::{
    FORGET, RETENTION_RULES_MAX, RetentionLimit, RetentionPolicy, RetentionRule, RunShare, SAMPLING,
    parse_duration_ns,
};
pub use sweep::{RetentionPlan, RetentionReport, RuleReport, RunTotals};
