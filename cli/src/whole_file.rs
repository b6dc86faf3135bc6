//! Files of the user that are whole or not there: written beside, and renamed.

use std::io::{self, Write};
use std::path::Path;

use crate::failure::Failure;

/// Writes a file by `content`. What is no plain file (a pipe, a device) is written to as it is; a file that is there is
/// replaced once the new one is whole.
///
/// # Errors
/// Outside: what `content` says. Inside: what the system says.
#[expect(clippy::disallowed_methods, reason = "the user's own file, which is no part of a store")]
pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<io::Result<()>, Failure> {
    if std::fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        return match std::fs::OpenOptions::new().write(true).open(path) {
            Ok(mut file) => content(&mut file).map(Ok),
            Err(error) => Ok(Err(error)),
        };
    }
    // Where the name is a link, what it leads to is replaced, not the link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
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
