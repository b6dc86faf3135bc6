//! Bodies that callers hand in, and blobs that are stored before a record names them.

use std::sync::Arc;

use crate::blob::Extent;
use crate::ids::{BlobId, NamespaceId};

/// A body whose bytes are already in the log, from `Namespace::store_blob`. It lasts once a
/// committed frame or value holds it.
#[derive(Debug, Clone)]
pub struct StoredBlob {
    pub(crate) namespace: NamespaceId,
    pub(crate) id: BlobId,
    pub(crate) len: u64,
    pub(crate) extents: Arc<Vec<Extent>>,
}

impl StoredBlob {
    /// A body of which all bytes are in the log. For the layers above.
    #[doc(hidden)]
    pub fn new(namespace: NamespaceId, id: BlobId, len: u64, extents: Arc<Vec<Extent>>) -> Self {
        Self { namespace, id, len, extents }
    }

    /// BLAKE3 of its bytes.
    #[must_use]
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A body: bytes in memory, or a blob streamed into the store before.
#[derive(Debug, Clone)]
pub enum BodyInput<'a> {
    /// The bytes, handed over.
    Bytes(Arc<Vec<u8>>),
    /// The bytes, lent for the call. The store copies only what the lane's last body does not have.
    Lent(&'a [u8]),
    /// A blob of the same namespace.
    Stored(StoredBlob),
}

/// A [`BodyInput`] that owns its bytes.
pub type Content = BodyInput<'static>;

impl Default for BodyInput<'_> {
    fn default() -> Self {
        Self::Bytes(Arc::default())
    }
}

impl BodyInput<'_> {
    /// The bytes, if they are in memory.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Lent(bytes) => Some(bytes),
            Self::Stored(_) => None,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Lent(bytes) => bytes.len() as u64,
            Self::Stored(blob) => blob.len,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for BodyInput<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(Arc::new(bytes))
    }
}

impl From<&[u8]> for BodyInput<'_> {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl<const N: usize> From<&[u8; N]> for BodyInput<'_> {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<&str> for BodyInput<'_> {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl From<String> for BodyInput<'_> {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<StoredBlob> for BodyInput<'_> {
    fn from(blob: StoredBlob) -> Self {
        Self::Stored(blob)
    }
}
