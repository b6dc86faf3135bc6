//! Read-only bytes of a whole file.

use std::sync::Arc;

use super::{File, IoResult};

/// Read-only bytes of a whole file. They are a memory map, or an owned copy if the file was read by position
/// or is simulated.
///
/// A map makes no copy and keeps one address while this value lives, even after the file is removed. If
/// another process truncates a mapped file, reads past the cut kill the process. If another process writes
/// it, the bytes change under the reader. So only files that are never written again are mapped, and their
/// content is verified before it is returned.
#[derive(Debug)]
pub struct FileBytes(FileBytesRepr);

#[derive(Debug)]
enum FileBytesRepr {
    Owned(Arc<[u8]>),
    Mapped(memmap2::Mmap),
}

impl FileBytes {
    /// Wraps an owned copy.
    #[must_use]
    pub fn owned(bytes: Arc<[u8]>) -> Self {
        Self(FileBytesRepr::Owned(bytes))
    }

    pub(super) fn mapped(map: memmap2::Mmap) -> Self {
        Self(FileBytesRepr::Mapped(map))
    }

    /// Reads a range of a map from disk before it is accessed (read-ahead). This is faster than page by page.
    /// A failing disk or a truncated file gives an error here instead of ending the process. Does nothing if
    /// the system has no such call.
    ///
    /// # Errors
    /// The system's error.
    #[doc(hidden)]
    pub fn populate(&self, from: usize, len: usize) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        if let FileBytesRepr::Mapped(map) = &self.0 {
            let len = len.min(map.len().saturating_sub(from));
            return match map.advise_range(memmap2::Advice::PopulateRead, from, len) {
                // Older kernels do not support this advice.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
                // The system's own text is "Bad address".
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
                    Err(std::io::Error::other(
                        "the disk does not return all bytes, or the file was truncated: run annals doctor",
                    ))
                }
                done => done,
            };
        }
        let _ = (from, len);
        Ok(())
    }
}

/// How sealed segments and tables are read. These files are never written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// Through memory maps, without a copy. A map cannot report an error: if another program truncates such a
    /// file, or the disk under it fails, a read ends the process by SIGBUS.
    #[default]
    Mapped,
    /// By position, as the active segment always is. Every failure is an error. It costs more: a system call
    /// and a copy for each record or group range that no cache holds. Each table is read whole when it is
    /// opened and kept in memory; `BytesByKind::tables` counts these bytes.
    Positional,
}

impl ReadMode {
    /// All bytes of a file that is never written again.
    #[doc(hidden)]
    pub fn read_whole(self, file: &dyn File) -> IoResult<FileBytes> {
        if self == Self::Mapped {
            return file.map();
        }
        let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
        let got = file.read_at(&mut bytes, 0)?;
        // The file was truncated meanwhile: the caller detects that it is too short.
        bytes.truncate(got);
        Ok(FileBytes::owned(Arc::from(bytes)))
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            FileBytesRepr::Owned(bytes) => bytes,
            FileBytesRepr::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    /// Accessing a map past the end of a truncated file ends the process; reading ahead gives an error
    /// instead.
    #[test]
    #[cfg(target_os = "linux")]
    #[expect(clippy::disallowed_methods, reason = "a real file is cut")]
    fn populate_past_the_end_of_a_cut_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let map = super::super::map::whole_file(&file).unwrap();
        map.populate(5, 1 << 20).unwrap();
        let super::FileBytesRepr::Mapped(asked) = &map.0 else { panic!("it is not mapped") };
        if asked.advise(memmap2::Advice::PopulateRead).is_err() {
            println!("SKIPPED: this system does not support the advice");
            return;
        }
        file.set_len(100_000).unwrap();
        map.populate(0, 100_000).unwrap();
        let error = map.populate(0, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("the file was truncated"), "{error}");
    }
}
