//! The identity that a run's memory entry belongs to: from its tags, else from the runs that it was forked
//! from.

use annals::{ErrorKind, Namespace, RunInfo};
use annals_memory::Identity;

/// The tags that name an identity.
pub const TENANT: &str = "tenant";
/// See [`TENANT_TAG`].
pub const PRINCIPAL: &str = "principal";
/// See [`TENANT_TAG`].
pub const CONVERSATION: &str = "conversation";
/// The tag that controls remembering, and the value that turns it off.
pub const MEMORY: &str = "memory";
/// See [`MEMORY_TAG`].
pub const OFF: &str = "off";

/// Maximum number of ancestors that are read.
const FORKS_MAX: usize = 64;

/// The identity of a run, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Of(Identity),
    /// The run must not be remembered.
    Off,
    /// An ancestor of the run is gone, and it may have had any identity.
    Unknown,
}

/// The identity that a run's memory entry belongs to.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub(super) fn whose(space: &Namespace, info: &RunInfo) -> annals::Result<Whose> {
    let mut info = info.clone();
    for _ in 0..FORKS_MAX {
        let tag = |key: &str| {
            let found = info.tags.iter().rev().find(|(of, _)| of == key);
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        if tag(MEMORY).as_deref() == Some(OFF) {
            return Ok(Whose::Off);
        }
        let own =
            Identity { tenant: tag(TENANT), principal: tag(PRINCIPAL), conversation: tag(CONVERSATION) };
        if own != Identity::default() {
            return Ok(Whose::Of(own));
        }
        let Some(parent) = &info.parent else { return Ok(Whose::Of(own)) };
        info = match space.run_numbered(parent.uid) {
            Ok(parent) => parent.info().clone(),
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => {
                return Ok(Whose::Unknown);
            }
            Err(error) => return Err(error),
        };
    }
    Ok(Whose::Unknown)
}
