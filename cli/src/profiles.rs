//! `--as PROFILE` and `--profiles FILE`: redaction of what a reader sees.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use annals_server::profiles::{PROFILES_BYTES_MAX, Profiles, Redactor};

use crate::args::{GlobalArgs, ProfileArgs};
use crate::failure::{CliResult, Failure};
use crate::input;
use crate::locate;
use crate::output::printable;
use crate::store_access::{FrameRow, StoreAccess};

/// The default file of profiles, in the store's directory.
const PROFILES_FILE: &str = "profiles.toml";

/// Returns the redactor of the requested profile; `None` if nothing is redacted.
pub(crate) fn redactor(global: &GlobalArgs, args: &ProfileArgs) -> CliResult<Option<Redactor>> {
    let root = locate::store(global.store.as_deref());
    let Some(name) = &args.profile else { return Ok(None) };
    let profiles = read_profiles(&root, args.profiles.as_deref())?;
    let Some(profile) = profiles.find(name) else {
        let there: Vec<_> = profiles.names().collect();
        let message = format!("there is no profile {name:?}; there are {}", there.join(", "));
        let hint = format!(
            "name a file that has it with --profiles; the default is {PROFILES_FILE} in the store's directory"
        );
        return Err(Failure::usage(message, hint));
    };
    if profile.is_raw() {
        return Ok(None);
    }
    let key = if profile.has_key() { [0; 32] } else { placeholder_key(&root)? };
    Ok(Some(Redactor::new(profile, key)))
}

/// Returns the store's key for placeholders.
fn placeholder_key(root: &Path) -> CliResult<[u8; 32]> {
    let (key, lasts) = StoreAccess::placeholder_key(root)?;
    if !lasts {
        // A failure to write to standard error cannot be reported.
        let note = "annals: another process writes to the store, which has no key for placeholders yet: placeholders are comparable only within this output";
        let _ = writeln!(anstream::stderr(), "{note}");
    }
    Ok(key)
}

/// Reads the profiles of the named file, else of the store's own file, if it exists.
fn read_profiles(root: &Path, named: Option<&Path>) -> CliResult<Profiles> {
    let file = match named {
        Some(file) => file.to_path_buf(),
        None => match store_profiles(root) {
            Some(file) => file,
            None => return Ok(Profiles::default()),
        },
    };
    let refused = |place: &str, what: &str| {
        let message = format!("{}{place}: {}", file.display(), printable(what));
        Failure::usage(message, "docs/redaction.md describes files of profiles")
    };
    let text = String::from_utf8(input::read_small(&file, PROFILES_BYTES_MAX)?).map_err(|error| {
        refused("", &format!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
    })?;
    Profiles::parse(&text).map_err(|error| refused(&format!(":{}:{}", error.line, error.column), &error.what))
}

/// Returns the file of profiles in the store's directory, if it exists.
pub(crate) fn store_profiles(root: &Path) -> Option<PathBuf> {
    Some(root.join(PROFILES_FILE)).filter(|file| file.is_file())
}

/// Redacts a frame.
pub(crate) fn redacted_frame(redactor: Option<&Redactor>, frame: FrameRow) -> FrameRow {
    let Some(redactor) = redactor else { return frame };
    let shown = redactor.frame(&frame.input, &frame.output, &frame.metadata);
    // A digest would let a reader confirm guesses of redacted content.
    let (digest, redacted) = (String::new(), Some(redactor.profile().name().to_owned()));
    let (input, output, metadata) = (shown.input, shown.output, shown.metadata);
    FrameRow { input, output, metadata, digest, redacted, ..frame }
}

/// Prints on standard error that the bytes on standard output are redacted.
pub(crate) fn print_redaction_note(redactor: Option<&Redactor>) {
    if let Some(redactor) = redactor {
        let name = redactor.profile().name();
        let _ = writeln!(anstream::stderr(), "annals: redacted by profile {name}: not what was recorded");
    }
}
