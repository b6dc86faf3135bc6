//! Lets a person edit text in the editor that the environment names.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failure::{CliResult, Failure};

/// A temporary file that exists while it is edited.
struct DraftFile(PathBuf);

impl Drop for DraftFile {
    #[expect(clippy::disallowed_methods, reason = "a draft is no file of a store")]
    fn drop(&mut self) {
        // A failure to remove the file cannot be reported.
        let _ = fs::remove_file(&self.0);
    }
}

/// Opens these bytes in `$VISUAL`, else `$EDITOR`, else vi, and returns the edited bytes.
#[expect(clippy::disallowed_methods, reason = "a draft is no file of a store")]
pub(crate) fn edit(bytes: &[u8]) -> CliResult<Vec<u8>> {
    let failed = |what: String| Failure::failed(what, "--response FILE takes an answer from a file");
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let end = if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() { "json" } else { "txt" };
    let name = format!("annals-answer-{}.{end}", std::process::id());
    let draft = DraftFile(std::env::temp_dir().join(name));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft.0)
        .map_err(|error| failed(format!("cannot create {}: {error}", draft.0.display())))?;
    file.write_all(bytes).map_err(|error| failed(format!("the draft cannot be written: {error}")))?;
    drop(file);
    // The shell splits the variable, which may hold a command with arguments, as for git.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg(&editor).arg(&draft.0).stdin(Stdio::inherit());
    let status = command.status().map_err(|error| failed(format!("{editor} cannot be started: {error}")))?;
    if !status.success() {
        return Err(failed(format!("{editor} ended with {status}; nothing was changed")));
    }
    let edited =
        fs::read(&draft.0).map_err(|error| failed(format!("the draft cannot be read back: {error}")))?;
    if edited == bytes {
        return Err(failed("the answer was not changed, so there is nothing to fork".to_owned()));
    }
    Ok(edited)
}
