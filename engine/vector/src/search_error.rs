//! The error of operations on vectors. After damage, the files are discarded and the operation is tried
//! again.

use crate::error::Error;
use crate::io::IoError;
use crate::log::open::Damage;

/// See the module.
#[derive(Debug)]
pub enum VectorError {
    Damaged(Damage),
    Other(Error),
}

/// The result of an operation on vectors.
pub type VectorResult<T> = Result<T, VectorError>;

impl From<Damage> for VectorError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<Error> for VectorError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<IoError> for VectorError {
    fn from(error: IoError) -> Self {
        Self::Other(error.into())
    }
}
