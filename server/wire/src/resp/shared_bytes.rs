//! Bytes of a value that several owners share.

use std::ops::Deref;
use std::sync::Arc;

/// Up to this length the bytes are beside their count of owners. A longer value keeps the memory that it arrived in.
const SHORT_BYTES_MAX: usize = 4 << 10;

/// Bytes that several owners share. Short ones are one allocation: where a server replaces one value after the other,
/// each allocation is a place in memory that no processor cache holds.
#[derive(Debug, Clone)]
pub enum SharedBytes {
    Short(Arc<[u8]>),
    Long(Arc<Vec<u8>>),
}

impl Default for SharedBytes {
    fn default() -> Self {
        Self::Short(Arc::default())
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        match bytes.len() <= SHORT_BYTES_MAX {
            true => Self::Short(bytes.into()),
            false => Self::Long(bytes.into()),
        }
    }
}

impl From<SharedBytes> for Vec<u8> {
    fn from(bytes: SharedBytes) -> Self {
        match bytes {
            SharedBytes::Short(bytes) => bytes.to_vec(),
            SharedBytes::Long(bytes) => Arc::unwrap_or_clone(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_kept() {
        for len in [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let shared = SharedBytes::from(bytes.clone());
            assert!(*shared == *bytes && shared.clone() == shared, "{len}");
            assert_eq!(matches!(shared, SharedBytes::Short(_)), len <= SHORT_BYTES_MAX);
            assert_eq!(Vec::from(shared), bytes);
        }
    }

    #[test]
    fn long_bytes_keep_their_memory() {
        let bytes = vec![7; SHORT_BYTES_MAX + 1];
        let place = bytes.as_ptr();
        let bytes: Vec<u8> = SharedBytes::from(bytes).into();
        assert_eq!(bytes.as_ptr(), place);
    }
}
