//! The entry point for fuzzers: profiles and bodies.

use serde_json::Value;

use super::{Profiles, Redactor};
use crate::fuzzing::take_byte;

const ENCODINGS: [Option<&str>; 6] =
    [None, Some("gzip"), Some("deflate"), Some("br"), Some("zstd"), Some("what nobody knows")];

/// Input: a byte for the body's content encoding, two bytes for the length of a profiles file, the file, a
/// body.
///
/// Oracle: the file is parsed, or refused with a position inside it. Each of its profiles redacts a body to
/// the same result every time. Unredacted bodies keep their bytes, JSON stays JSON, and text stays text.
pub fn redaction(mut data: &[u8]) {
    let encoding = ENCODINGS.get(usize::from(take_byte(&mut data)) % ENCODINGS.len()).copied().flatten();
    let len = usize::from(take_byte(&mut data)) | usize::from(take_byte(&mut data)) << 8;
    let (file, stored) = data.split_at(len.min(data.len()));
    let profiles = match std::str::from_utf8(file).map(Profiles::parse) {
        Ok(Ok(profiles)) => profiles,
        Ok(Err(error)) => {
            let lines = file.split(|byte| *byte == b'\n').count();
            assert!((1..=lines + 1).contains(&error.line) && error.column > 0, "{error}");
            assert!(!error.what.is_empty());
            Profiles::default()
        }
        Err(_) => Profiles::default(),
    };
    let json = serde_json::from_slice::<Value>(stored).is_ok();
    let text = std::str::from_utf8(stored).is_ok();
    for profile in profiles.names().filter_map(|name| profiles.find(name)).take(4) {
        let redactor = Redactor::new(profile, [7; 32]);
        for (shown, again) in [
            (redactor.body(stored, encoding), redactor.body(stored, encoding)),
            (redactor.metadata(stored), redactor.metadata(stored)),
        ] {
            assert_eq!(shown.bytes, again.bytes, "not the same each time");
            assert_eq!(shown.replaced, again.replaced);
            assert!(shown.replaced > 0 || *shown.bytes == *stored, "changed, and nothing was replaced");
            let as_it_was = encoding.is_none() && shown.replaced > 0;
            assert!(
                !as_it_was || !text || std::str::from_utf8(&shown.bytes).is_ok(),
                "text is none any more"
            );
            let is_json = || serde_json::from_slice::<Value>(&shown.bytes).is_ok();
            // JSON that is nested too deep is replaced as a whole.
            let whole = shown.bytes.starts_with(b"[deep:");
            assert!(!as_it_was || !json || whole || is_json(), "JSON is none any more");
        }
        drop(redactor.text(&String::from_utf8_lossy(stored)));
    }
}
