//! Read-only bytes of a whole file.

use std::sync::Arc;

/// Read-only bytes of a whole file: a memory map, or an owned copy where the file lives in a simulation.
///
/// What a map promises: no copy, and one address for as long as this lives, even after the file is removed.
/// What it cannot: a file that another process cuts makes reads past the cut kill the process, and one that is
/// written changes under the reader. Only files that nobody writes any more are mapped, and their content is
/// verified before it is handed on.
#[derive(Debug)]
pub struct Bytes(Repr);

#[derive(Debug)]
enum Repr {
    Owned(Arc<[u8]>),
    Mapped(memmap2::Mmap),
}

impl Bytes {
    /// Wraps an owned copy.
    #[must_use]
    pub fn owned(bytes: Arc<[u8]>) -> Self {
        Self(Repr::Owned(bytes))
    }

    pub(super) fn mapped(map: memmap2::Mmap) -> Self {
        Self(Repr::Mapped(map))
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(bytes) => bytes,
            Repr::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
