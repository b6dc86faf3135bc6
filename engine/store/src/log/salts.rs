//! The salts of a batch's logical records.
//!
//! A salt keeps the hash of an erased record from being guessed. A batch of one logical record stores the salt
//! itself. A batch of several stores one random key with the first of them, and each salt follows from the key
//! and the record's number. Once a record of the batch is erased, compaction writes the salts of the others out
//! and drops the key: the salts that remain say nothing about the key, and so nothing about the erased salt.

use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, hash_derive_key_context};

use crate::codec::CodecError;
use crate::ids::Seqno;
use crate::log::leaf_hash::derive_from_block;

/// A record's salt.
pub type Salt16 = [u8; 16];

/// How a record stores its salt: the layout byte of logical records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordSalt {
    /// Layout 1: the salt itself.
    Stored(Salt16),
    /// Layout 2: a key, from which this salt and later ones of the batch follow.
    Key(Salt16),
    /// Layout 3: nothing. It follows from the last key before it in the batch.
    Derived,
}

impl RecordSalt {
    /// Bytes in the record.
    #[must_use]
    pub fn stored_bytes(self) -> u64 {
        match self {
            Self::Stored(bytes) | Self::Key(bytes) => bytes.len() as u64,
            Self::Derived => 0,
        }
    }
}

static SALT_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("annals record salt 1"));

/// The salt that follows from a key for the record of this number.
#[must_use]
pub fn derived_salt(key: &Salt16, seqno: Seqno) -> Salt16 {
    let mut material = [0; 24];
    material[..16].copy_from_slice(key);
    material[16..].copy_from_slice(&seqno.0.to_le_bytes());
    derive_from_block(&SALT_KEY, &material).first_chunk().copied().unwrap_or_default()
}

/// Gives the salts of a batch's logical records, in their order.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchSalts {
    key: Option<Salt16>,
}

impl BatchSalts {
    /// The salt of the next logical record.
    ///
    /// # Errors
    /// [`CodecError::Header`] for a derived salt without a key before it.
    pub fn resolve(&mut self, seqno: Seqno, salt: RecordSalt) -> Result<Salt16, CodecError> {
        let key = match salt {
            RecordSalt::Stored(salt) => return Ok(salt),
            RecordSalt::Key(key) => self.key.insert(key),
            RecordSalt::Derived => self.key.as_ref().ok_or_else(|| {
                CodecError::Header("a record's salt follows from a key, and none is before it".into())
            })?,
        };
        Ok(derived_salt(key, seqno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_salts_need_a_key_and_differ_by_number() {
        let mut salts = BatchSalts::default();
        assert!(salts.resolve(Seqno(1), RecordSalt::Derived).is_err());
        assert_eq!(salts.resolve(Seqno(1), RecordSalt::Stored([7; 16])), Ok([7; 16]));
        assert!(salts.resolve(Seqno(2), RecordSalt::Derived).is_err(), "a stored salt is no key");
        let first = salts.resolve(Seqno(3), RecordSalt::Key([9; 16])).unwrap();
        let second = salts.resolve(Seqno(4), RecordSalt::Derived).unwrap();
        assert_eq!((first, second), (derived_salt(&[9; 16], Seqno(3)), derived_salt(&[9; 16], Seqno(4))));
        assert!(first != second && first != [9; 16]);
        // A later key takes over, as when two batches were joined.
        assert_eq!(salts.resolve(Seqno(5), RecordSalt::Key([1; 16])), Ok(derived_salt(&[1; 16], Seqno(5))));
        assert_eq!(salts.resolve(Seqno(6), RecordSalt::Derived), Ok(derived_salt(&[1; 16], Seqno(6))));
    }
}
