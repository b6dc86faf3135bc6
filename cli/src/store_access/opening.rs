//! Opening a store for writing: its options, and what is said on standard error when the opening changes
//! something.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use annals::{Options, Store, upkeep::OpeningReport};

use crate::output::print_note;

/// Set by `--no-upgrade`.
static NO_UPGRADE: AtomicBool = AtomicBool::new(false);

/// From now on, opening for writing refuses a store of an older format.
pub(crate) fn forbid_upgrades() {
    NO_UPGRADE.store(true, Ordering::Relaxed);
}

/// The options of an opening for writing.
pub(crate) fn write_options() -> Options {
    Options { upgrade: !NO_UPGRADE.load(Ordering::Relaxed), ..Options::default() }
}

/// Opens a store for writing, and says on standard error what the opening changed.
pub(crate) fn open_for_writing(root: &Path, options: Options) -> annals::Result<Store> {
    let store = Store::open_with(root, options)?;
    print_opening(store.opening());
    Ok(store)
}

/// Says what an opening changed.
pub(super) fn print_opening(report: &OpeningReport) {
    report.lines().into_iter().for_each(print_note);
}
