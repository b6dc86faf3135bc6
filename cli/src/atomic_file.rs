//! Writes the user's files atomically: to a temporary file, which is then renamed.

use std::io::{self, Write};
use std::path::Path;

use crate::failure::Failure;

/// Who may read a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Only the user: the file has recorded content.
    Owner = 0o600,
    /// Everybody, as far as the user's mask permits.
    Everybody = 0o644,
}

/// Writes a file with `content`. A pipe or device is written directly. An existing file is replaced once the
/// new one is complete.
///
/// # Errors
/// The outer result has the error of `content`, the inner one the error of the system.
#[expect(clippy::disallowed_methods, reason = "the user's own file, which is no part of a store")]
pub(crate) fn write(
    path: &Path,
    access: FileAccess,
    content: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<io::Result<()>, Failure> {
    if std::fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        return match std::fs::OpenOptions::new().write(true).open(path) {
            Ok(mut file) => content(&mut file).map(Ok),
            Err(error) => Ok(Err(error)),
        };
    }
    // If the name is a symbolic link, its target is replaced, not the link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(access as u32));
    let mut file = match builder.tempfile_in(folder) {
        Ok(file) => io::BufWriter::with_capacity(64 << 10, file),
        Err(error) => return Ok(Err(error)),
    };
    content(&mut file)?;
    let done = file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| {
        file.as_file().sync_all()?;
        file.persist(&path).map(drop).map_err(|error| error.error)
    });
    Ok(done)
}
