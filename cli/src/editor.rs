//! Text changed by a person, in the editor that the environment names.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failure::{Code, Failure, Result};

/// A file that is there as long as it is edited.
struct Draft(PathBuf);

impl Drop for Draft {
    #[expect(clippy::disallowed_methods, reason = "a draft is no file of a store")]
    fn drop(&mut self) {
        // Nothing is left to do where it cannot be removed.
        let _ = fs::remove_file(&self.0);
    }
}

/// What `$VISUAL`, else `$EDITOR`, else vi makes of these bytes.
#[expect(clippy::disallowed_methods, reason = "a draft is no file of a store")]
pub(crate) fn edit(bytes: &[u8]) -> Result<Vec<u8>> {
    let failed =
        |what: String| Failure::new(Code::Failed, what, "--response FILE takes an answer from a file");
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let end = if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() { "json" } else { "txt" };
    let name = format!("annals-answer-{}.{end}", std::process::id());
    let draft = Draft(std::env::temp_dir().join(name));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft.0)
        .map_err(|error| failed(format!("{} cannot be made: {error}", draft.0.display())))?;
    file.write_all(bytes).map_err(|error| failed(format!("the draft cannot be written: {error}")))?;
    drop(file);
    // As git does: the variable may hold a command with arguments.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg(&editor).arg(&draft.0).stdin(Stdio::inherit());
    let status = command.status().map_err(|error| failed(format!("{editor} cannot be started: {error}")))?;
    if !status.success() {
        return Err(failed(format!("{editor} ended with {status}, so nothing is changed")));
    }
    let edited =
        fs::read(&draft.0).map_err(|error| failed(format!("the draft cannot be read back: {error}")))?;
    if edited == bytes {
        return Err(failed("the answer was left as it is, so there is nothing to fork for".to_owned()));
    }
    Ok(edited)
}
