//! Read-only bytes of a whole file.

use std::sync::Arc;

use super::{File, Result};

/// Read-only bytes of a whole file: a memory map, or an owned copy where the file was read by position or lives in a simulation.
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

    /// Has a stretch of a map read from the disk, ahead of being looked at: faster than page by page, and a disk that fails, or a file that was cut,
    /// is an error here and not the end of the process. Where the system has no such call nothing is done.
    ///
    /// # Errors
    /// What the disk says.
    #[doc(hidden)]
    pub fn populate(&self, from: usize, len: usize) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Repr::Mapped(map) = &self.0 {
            let len = len.min(map.len().saturating_sub(from));
            return match map.advise_range(memmap2::Advice::PopulateRead, from, len) {
                // Older kernels have no such advice.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
                // What the system says of it is "Bad address".
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
                    Err(std::io::Error::other(
                        "the disk does not give all of it, or the file was cut: run annals doctor",
                    ))
                }
                done => done,
            };
        }
        let _ = (from, len);
        Ok(())
    }
}

/// How sealed segments and tables are read: files that nobody writes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// Through memory maps, without a copy. A map has no way to report an error: where another program cuts such a
    /// file, or the disk under it fails, a read ends the process by SIGBUS.
    #[default]
    Mapped,
    /// By position, as the active segment always is. Every failure is an error, and costs are higher: a system call
    /// and a copy for each record or stretch of a group that no cache holds; and each table is read whole when it is
    /// opened and kept in memory, as many bytes as `BytesByKind::tables` says.
    Positional,
}

impl ReadMode {
    /// All bytes of a file that nobody writes any more.
    #[doc(hidden)]
    pub fn whole(self, file: &dyn File) -> Result<Bytes> {
        if self == Self::Mapped {
            return file.map();
        }
        let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
        let got = file.read_at(&mut bytes, 0)?;
        // Cut meanwhile: whoever asked finds that it is too short.
        bytes.truncate(got);
        Ok(Bytes::owned(Arc::from(bytes)))
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

#[cfg(test)]
mod tests {
    /// A map that is looked at past the end of a file that was cut ends the process; asked for ahead, it is an error.
    #[test]
    #[cfg(target_os = "linux")]
    #[expect(clippy::disallowed_methods, reason = "a real file is cut")]
    fn what_a_file_no_longer_has_is_an_error_when_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let map = super::super::map::whole_file(&file).unwrap();
        map.populate(5, 1 << 20).unwrap();
        let super::Repr::Mapped(asked) = &map.0 else { panic!("it is not mapped") };
        if asked.advise(memmap2::Advice::PopulateRead).is_err() {
            println!("SKIPPED: this system has no such advice");
            return;
        }
        file.set_len(100_000).unwrap();
        map.populate(0, 100_000).unwrap();
        let error = map.populate(0, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("the file was cut"), "{error}");
    }
}
