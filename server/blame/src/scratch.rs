//! A copy of a working directory for one fork.

use std::path::Path;

/// Copies a directory to a new temporary one, which is removed when the result is dropped. Links are copied as
/// links. The store itself is left out: it may be larger than the rest, and is in use.
pub(crate) fn copy(directory: &Path) -> std::io::Result<tempfile::TempDir> {
    let copy = tempfile::Builder::new().prefix("annals-blame-").tempdir()?;
    copy_into(directory, copy.path())?;
    Ok(copy)
}

fn copy_into(from: &Path, to: &Path) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "the user's own files, outside any store")]
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, target)?;
        } else if kind.is_dir() {
            if entry.path().join("CURRENT").exists() && entry.path().join("segments").exists() {
                continue;
            }
            std::fs::create_dir(&target)?;
            copy_into(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    #[test]
    fn copy_has_files_and_links_but_no_store() {
        let from = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(from.path().join("a/b")).unwrap();
        std::fs::write(from.path().join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("a/b/c", from.path().join("l")).unwrap();
        std::fs::create_dir_all(from.path().join(".annals/segments")).unwrap();
        std::fs::write(from.path().join(".annals/CURRENT"), "1").unwrap();
        let to = copy(from.path()).unwrap();
        assert_eq!(std::fs::read(to.path().join("l")).unwrap(), b"x");
        assert!(!to.path().join(".annals").exists());
        let kept = to.path().to_path_buf();
        drop(to);
        assert!(!kept.exists());
    }
}
