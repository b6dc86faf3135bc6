//! `--as PROFILE` and `--profiles FILE`: what a reader is shown.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use annals_server::profiles::{PROFILES_BYTES_MAX, Profiles, Redactor};

use crate::args::{AsArgs, Global};
use crate::door::{Door, FrameRow};
use crate::failure::{Code, Failure, Result};
use crate::input;
use crate::locate;
use crate::out::printable;

/// The file in the store's directory that is read where none is named.
const PROFILES_FILE: &str = "profiles.toml";

/// What shows by the profile that was asked for; none where everything is shown as it is.
pub(crate) fn of(global: &Global, args: &AsArgs) -> Result<Option<Redactor>> {
    let root = locate::store(global.store.as_deref());
    let Some(name) = &args.profile else { return Ok(None) };
    let profiles = read(&root, args.profiles.as_deref())?;
    let Some(profile) = profiles.find(name) else {
        let there: Vec<_> = profiles.names().collect();
        let message = format!("there is no profile {name:?}; there are {}", there.join(", "));
        let hint = format!(
            "--profiles names a file that has it; {PROFILES_FILE} in the store's directory is read by itself"
        );
        return Err(Failure::new(Code::Usage, message, hint));
    };
    if profile.is_raw() {
        return Ok(None);
    }
    let key = if profile.has_key() { [0; 32] } else { key(&root)? };
    Ok(Some(Redactor::new(profile, key)))
}

/// The store's key for placeholders.
fn key(root: &Path) -> Result<[u8; 32]> {
    let (key, lasts) = Door::placeholder_key(root)?;
    if !lasts {
        // Nothing is left to do where even this cannot be written.
        let note = "annals: another process writes the store, which has no key for placeholders yet: those of this read are equal among themselves only";
        let _ = writeln!(anstream::stderr(), "{note}");
    }
    Ok(key)
}

/// The profiles of a file; of the store's own where none is named, if it is there.
fn read(root: &Path, named: Option<&Path>) -> Result<Profiles> {
    let file = match named {
        Some(file) => file.to_path_buf(),
        None => match own(root) {
            Some(file) => file,
            None => return Ok(Profiles::default()),
        },
    };
    let refused = |place: &str, what: &str| {
        let message = format!("{}{place}: {}", file.display(), printable(what));
        Failure::new(Code::Usage, message, "docs/redaction.md has all that such a file may hold")
    };
    let text = String::from_utf8(input::small(&file, PROFILES_BYTES_MAX)?).map_err(|error| {
        refused("", &format!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
    })?;
    Profiles::parse(&text).map_err(|error| refused(&format!(":{}:{}", error.line, error.column), &error.what))
}

/// The file of profiles in the store's directory, if it is there.
pub(crate) fn own(root: &Path) -> Option<PathBuf> {
    Some(root.join(PROFILES_FILE)).filter(|file| file.is_file())
}

/// A frame as it is shown.
pub(crate) fn shown(redactor: Option<&Redactor>, frame: FrameRow) -> FrameRow {
    let Some(redactor) = redactor else { return frame };
    let shown = redactor.frame(&frame.input, &frame.output, &frame.metadata);
    // Its digest would let somebody try guesses.
    let (digest, redacted) = (String::new(), Some(redactor.profile().name().to_owned()));
    let (input, output, metadata) = (shown.input, shown.output, shown.metadata);
    FrameRow { input, output, metadata, digest, redacted, ..frame }
}

/// Says of bytes that go out by themselves that they are redacted.
pub(crate) fn note(redactor: Option<&Redactor>) {
    if let Some(redactor) = redactor {
        let name = redactor.profile().name();
        let _ = writeln!(anstream::stderr(), "annals: redacted by profile {name}: not what was recorded");
    }
}
