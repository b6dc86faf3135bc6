//! The identity that a run's memory entry belongs to: from its tags, else from the runs that it was forked
//! from.

use annals::{ErrorKind, Namespace, RunInfo};
use annals_memory::Identity;

/// The tags that name an identity.
pub const TENANT_TAG: &str = "tenant";
/// See [`TENANT_TAG`].
pub const PRINCIPAL_TAG: &str = "principal";
/// See [`TENANT_TAG`].
pub const CONVERSATION_TAG: &str = "conversation";
/// The tag that controls remembering, and the value that turns it off.
pub const MEMORY_TAG: &str = "memory";
/// See [`MEMORY_TAG`].
pub const MEMORY_OFF: &str = "off";

/// The value that also remembers a what-if; counts only on the run itself.
pub const MEMORY_ON: &str = "on";

/// The tag that says how long the run's entries are kept, as `180d`; counts only on the run itself.
pub const MEMORY_FOR_TAG: &str = "memory-for";

/// The tag that adds the run's commit log to its entries if its value is [`MEMORY_ON`]; counts only on the run itself.
pub const MEMORY_COMMITS_TAG: &str = "memory-commits";

/// Maximum number of ancestors that are read.
const FORKS_MAX: usize = 64;

/// The identity of a run, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunIdentity {
    Known(Identity),
    /// The run must not be remembered.
    Disabled,
    /// An ancestor of the run is gone, and it may have had any identity.
    Unknown,
}

/// The identity that a run's memory entry belongs to.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub(super) fn run_identity(space: &Namespace, info: &RunInfo) -> annals::Result<RunIdentity> {
    let mut info = info.clone();
    for _ in 0..FORKS_MAX {
        let tag = |key: &str| {
            let found = info.tags.iter().rev().find(|(of, _)| of == key);
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        if tag(MEMORY_TAG).as_deref() == Some(MEMORY_OFF) {
            return Ok(RunIdentity::Disabled);
        }
        let own = Identity {
            tenant: tag(TENANT_TAG),
            principal: tag(PRINCIPAL_TAG),
            conversation: tag(CONVERSATION_TAG),
        };
        if own != Identity::default() {
            return Ok(RunIdentity::Known(own));
        }
        let Some(parent) = &info.parent else { return Ok(RunIdentity::Known(own)) };
        info = match space.run_by_uid(parent.uid) {
            Ok(parent) => parent.info().clone(),
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => {
                return Ok(RunIdentity::Unknown);
            }
            Err(error) => return Err(error),
        };
    }
    Ok(RunIdentity::Unknown)
}
