//! Whose memory a run goes into: what its tags say, else those of the run that it is a fork of.

use annals::{ErrorKind, Namespace, RunInfo};
use annals_memory::Identity;

/// The tags that name an identity.
pub const TENANT: &str = "tenant";
/// See [`TENANT`].
pub const PRINCIPAL: &str = "principal";
/// See [`TENANT`].
pub const CONVERSATION: &str = "conversation";
/// The tag by which a run is not remembered, and the value that says so.
pub const MEMORY: &str = "memory";
/// See [`MEMORY`].
pub const OFF: &str = "off";

/// Forks of forks that are looked at.
const FORKS_MAX: usize = 64;

/// What is known of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Of(Identity),
    /// It is not to be remembered.
    Off,
    /// It is a fork of a run that is gone, which may have been anybody's.
    Unknown,
}

/// Whose memory a run goes into.
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
