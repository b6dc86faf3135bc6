//! The error of operations on vectors. After damage, the files are discarded and the operation is tried
//! again.

use crate::error::Error;
use crate::io::IoError;
use crate::log::open::Damage;

/// See the module.
#[derive(Debug)]
pub enum Stopped {
    Damaged(Damage),
    Other(Error),
}

/// The result of an operation on vectors.
pub type Tried<T> = Result<T, Stopped>;

impl From<Damage> for Stopped {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<IoError> for Stopped {
    fn from(error: IoError) -> Self {
        Self::Other(error.into())
    }
}
