//! Finds the directory of the store.

use std::path::{Path, PathBuf};

/// The name of a store's directory, searched upward from the working directory.
const STORE_DIR: &str = ".annals";

/// The environment variable that names the store.
const STORE_VARIABLE: &str = "ANNALS_STORE";

/// The store to use: the option, else the variable, else the nearest `.annals` upward, else `./.annals`.
pub(crate) fn store(option: Option<&Path>) -> PathBuf {
    configured_store(option).or_else(nearest_store).unwrap_or_else(|| PathBuf::from(STORE_DIR))
}

/// The store to create: as [`store`], but never one in a parent directory.
pub(crate) fn new_store(option: Option<&Path>) -> PathBuf {
    configured_store(option).unwrap_or_else(|| PathBuf::from(STORE_DIR))
}

fn configured_store(option: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os(STORE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    option.map(Path::to_path_buf).or_else(variable)
}

fn nearest_store() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|directory| directory.join(STORE_DIR)).find(|candidate| candidate.is_dir())
}
