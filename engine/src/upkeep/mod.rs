//! Looking after stores: what a damaged one still holds, and saving that into a new one.
//!
//! Layout: `site` (what stands in a directory, without trusting it), `order` (which segments make the log), `salvage` (all of the log that checks, and what is
//! missing between), `repair` (that written into a new store), `lost` (what could not be), `doctor` (what to
//! say of a store and its damage), `backup` (copies of a store that is in use, and back), `compact` (the room of what
//! nothing leads to any more).

mod backup;
mod compact;
mod doctor;
mod lost;
mod order;
mod repair;
mod salvage;
mod site;

pub use backup::{BackupReport, Sharing, restore};
pub use compact::{CompactOptions, CompactPhase, CompactProgress, Compacted};
pub use doctor::{Diagnosis, Finding, diagnose};
pub use lost::{Lost, RepairReport};
pub use repair::repair;
