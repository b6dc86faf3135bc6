//! Reading a body as a stream, without holding it in memory.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read};
use std::sync::Arc;

use crate::blob::Extent;
use crate::error::Error;
use crate::ids::{BlobId, NamespaceId};
use crate::kv::bodies;
use crate::kv::core::Core;

/// The bytes of a body, from first to last.
///
/// They are hashed as they pass. The last piece is handed out only once the whole is known to hash to the body's id:
/// where it does not, reading ends with an error instead, so whoever reads to the end has the right bytes or knows.
#[derive(Debug)]
pub struct BlobReader {
    core: Arc<Core>,
    namespace: NamespaceId,
    extents: Arc<Vec<Extent>>,
    next: usize,
    /// What is left of the piece at hand, and where it begins.
    piece: Vec<u8>,
    at: usize,
    hasher: blake3::Hasher,
    len: u64,
    id: BlobId,
}

impl BlobReader {
    pub(crate) fn new(
        core: Arc<Core>,
        namespace: NamespaceId,
        extents: Arc<Vec<Extent>>,
        len: u64,
        id: BlobId,
    ) -> Self {
        let hasher = blake3::Hasher::new();
        Self { core, namespace, extents, next: 0, piece: Vec::new(), at: 0, hasher, len, id }
    }

    /// A body that is in memory already.
    pub(crate) fn of_bytes(core: Arc<Core>, namespace: NamespaceId, bytes: Vec<u8>) -> Self {
        let (len, id) = (bytes.len() as u64, BlobId::of(&bytes));
        Self { piece: bytes, ..Self::new(core, namespace, Arc::default(), len, id) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the body has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// BLAKE3 of the body.
    #[must_use]
    pub fn id(&self) -> BlobId {
        self.id
    }

    fn fetch(&mut self) -> Result<(), Error> {
        let Some(extent) = self.extents.get(self.next) else { return Ok(()) };
        let end = extent.end() as usize;
        let raw = bodies::group(&self.core, self.namespace, extent.group, end)?;
        let bytes = raw.get(extent.offset as usize..end).ok_or_else(|| bodies::mismatch(self.id))?;
        self.hasher.update(bytes);
        self.next += 1;
        if self.next == self.extents.len() && self.hasher.finalize().as_bytes() != &self.id.0 {
            return Err(bodies::mismatch(self.id));
        }
        self.piece.clear();
        self.piece.extend_from_slice(bytes);
        self.at = 0;
        Ok(())
    }
}

impl Read for BlobReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.piece.len() {
            self.fetch().map_err(|e| IoError::new(IoErrorKind::InvalidData, e))?;
        }
        let rest = &self.piece[self.at..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}
