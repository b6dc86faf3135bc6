//! The memory map: one of the two modules of the engine that may use unsafe code.
//!
//! Invariant: only files that are never written or truncated again are mapped (sealed segments and tables),
//! for reading. The engine seals a file before it maps it. Another program that writes into a store breaks
//! the invariant. So bytes are verified before use, and a store's files have mode 0600.
#![expect(unsafe_code, reason = "mapping a file is unsafe by nature; this file holds nothing else")]

use std::fs::File;

use super::FileBytes;

/// Maps the whole of `file` for reading. Systems do not map empty files: these give empty owned bytes.
pub(super) fn whole_file(file: &File) -> std::io::Result<FileBytes> {
    if file.metadata()?.len() == 0 {
        return Ok(FileBytes::owned(std::sync::Arc::from([])));
    }
    // SAFETY: the bytes behind a shared slice must not change while it lives. `File::map` is called only for
    // immutable files: the log seals a segment, and the table writer finishes a table, before opening it for
    // mapping. Neither is written or truncated again, only removed, and a map survives a removal.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(FileBytes::mapped(map))
}
