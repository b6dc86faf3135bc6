//! The memory map: one of the engine's two rooms where unsafe code is allowed.
//!
//! Invariant: only files that nobody writes or cuts any more are mapped (sealed segments and tables), for
//! reading. The engine keeps it by sealing before it maps; another program that writes into a store breaks it,
//! which is why what is read is verified before it is used and why a store's files have mode 0600.
#![expect(unsafe_code, reason = "mapping a file is unsafe by nature; this file holds nothing else")]

use std::fs::File;

use super::Bytes;

/// Maps the whole of `file` for reading. An empty file, which no system maps, gives empty owned bytes.
pub(super) fn whole_file(file: &File) -> std::io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::owned(std::sync::Arc::from([])));
    }
    // SAFETY: the bytes behind a shared slice must not change while it lives. `File::map` is called only for
    // files that are immutable by then: the log seals a segment, and the table writer finishes a table, before
    // opening it for mapping, and neither is ever written or cut again, only removed, which a map survives.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::mapped(map))
}
