//! `tapes.sums`: the fingerprints that the tapes of a folder must have.
//!
//! Each tape is sound in itself, so a tape that was recorded again, or replaced by another sound tape, passes the check
//! of its bytes. The file names the content that was committed: a line `FINGERPRINT  NAME` for each tape, with the
//! name relative to the folder. Like the fingerprint, it covers the frames and not the run's name, tags and times.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::atomic_file::{self, FileAccess};
use crate::failure::{CliResult, Failure};
use crate::input;

/// The file's name.
pub(super) const FILE: &str = "tapes.sums";
/// Most bytes of a file: about 40,000 tapes.
const BYTES_MAX: usize = 4 << 20;
/// Hexadecimal digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 64;

/// Fingerprints by the names of tapes.
pub(super) type TapeSums = BTreeMap<String, String>;

/// Reads the sums of a folder; `None` if it has none.
pub(super) fn read(folder: &Path) -> CliResult<Option<TapeSums>> {
    let path = folder.join(FILE);
    // A dangling link or a folder that cannot be searched is no absence: the tapes would pass without a comparison.
    if path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let bytes = input::read_small(&path, BYTES_MAX)?;
    let refused = |why: String| {
        let hint = "`annals check DIR --write-sums` writes the file anew, if all tapes are as they should be";
        Failure::failed(format!("{}: {why}", path.display()), hint)
    };
    let text = String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8".to_owned()))?;
    let sums = parse(&text).map_err(refused)?;
    Ok(Some(sums))
}

fn parse(text: &str) -> Result<TapeSums, String> {
    let mut sums = TapeSums::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()) {
        let (fingerprint, name) = line
            .split_once("  ")
            .filter(|(fingerprint, name)| is_fingerprint(fingerprint) && !name.is_empty())
            .ok_or_else(|| format!("line {number} is not `FINGERPRINT  NAME`"))?;
        if sums.insert(name.to_owned(), fingerprint.to_ascii_lowercase()).is_some() {
            return Err(format!("line {number} lists {name} a second time"));
        }
    }
    Ok(sums)
}

fn is_fingerprint(text: &str) -> bool {
    text.len() == FINGERPRINT_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Writes the sums of a folder and returns the file's path.
pub(super) fn write(folder: &Path, sums: &TapeSums) -> CliResult<PathBuf> {
    let path = folder.join(FILE);
    let text: String = sums.iter().map(|(name, fingerprint)| format!("{fingerprint}  {name}\n")).collect();
    let written = atomic_file::write(&path, FileAccess::Everybody, |file| {
        file.write_all(text.as_bytes()).map_err(crate::failure::output_failure)
    });
    written?.map_err(|error| crate::verbs::tape::write_failure(&path, &error))?;
    Ok(path)
}

/// The name of a tape in the sums of its folder, with `/` between folders.
pub(super) fn name_of(folder: &Path, tape: &Path) -> CliResult<String> {
    let inside = tape.strip_prefix(folder).unwrap_or(tape);
    let parts: Option<Vec<&str>> = inside.iter().map(|part| part.to_str()).collect();
    parts.map(|parts| parts.join("/")).filter(|name| !name.contains(['\n', '\r'])).ok_or_else(|| {
        let message = format!("{} has a name that {FILE} cannot hold", tape.display());
        Failure::failed(message, "rename the tape: UTF-8 without line breaks")
    })
}

#[cfg(test)]
mod tests {
    use super::{FILE, name_of, parse, read};
    use std::path::Path;

    #[test]
    fn sums_read_only_whole_lines_of_different_tapes() {
        let (one, two) = ("0a".repeat(32), "F0".repeat(32));
        let sums = parse(&format!("{one}  a.tape\r\n\n{two}  more/b c.tape\n")).unwrap();
        assert_eq!(sums.get("a.tape"), Some(&one));
        assert_eq!(sums.get("more/b c.tape"), Some(&two.to_ascii_lowercase()));
        for (text, why) in [
            (format!("{one} a.tape"), "line 1 is not"),
            (format!("{one}  a.tape\n<<<<<<< HEAD\n"), "line 2 is not"),
            (format!("{}  a.tape", &one[1..]), "line 1 is not"),
            (format!("{one}  a.tape\n{two}  a.tape\n"), "line 2 lists a.tape a second time"),
        ] {
            let refused = parse(&text).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    /// Sums that could not be read counted as none, and the check ended with 0.
    #[cfg(unix)]
    #[test]
    fn sums_that_are_a_dangling_link_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        std::os::unix::fs::symlink("nowhere", dir.path().join(FILE)).unwrap();
        assert!(read(dir.path()).is_err());
    }

    #[test]
    fn names_of_tapes_are_relative_and_one_line() {
        assert_eq!(name_of(Path::new("t/"), Path::new("t/more/a.tape")).unwrap(), "more/a.tape");
        assert!(name_of(Path::new("t"), Path::new("t/a\nb.tape")).is_err());
    }
}
