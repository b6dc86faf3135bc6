//! Looking after stores: what a damaged one still holds, and saving that into a new one.
//!
//! Layout: `site` (what stands in a directory, without trusting it), `order` (which segments make the log), `salvage` (all of the log that checks, and what is
//! missing between), `repair` (that written into a new store), `lost` (what could not be), `doctor` (what to
//! say of a store and its damage), `backup` (copies of a store that is in use, and back), `compact` (the room of what
//! nothing leads to any more), `moment` (what is due), `retention` (what a policy decides), `sweep` (that read and done), `forget` (one run, on
//! request).

mod backup;
mod compact;
mod doctor;
mod forget;
mod lost;
mod moment;
mod order;
mod repair;
mod retention;
mod salvage;
mod site;
mod sweep;

pub use backup::{BackupReport, Sharing, restore};
pub use compact::{CompactOptions, CompactPhase, CompactProgress, Compacted};
pub use doctor::{Diagnosis, Finding, diagnose};
pub use forget::{BackupMade, StillHeld};
pub use lost::{Lost, RepairReport};
pub use moment::is_due;
pub use repair::repair;
pub use retention::{FORGET, Keep, Policy, RETENTION_RULES_MAX, Rule, SAMPLING, Share, lasting_ns};
pub use sweep::{Amount, Plan, Retention, RuleReport};
