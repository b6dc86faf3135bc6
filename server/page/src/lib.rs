//! The debugger page and the report file. Pure: no socket, no file, no clock; the daemon serves the assets, and
//! the command line gives the data of a report.
//!
//! `assets/` holds one document, one style sheet and the scripts in the order of `SCRIPT`. There is no build step
//! and no library: the scripts share one scope, and recorded text only ever becomes text nodes. A report is the same
//! style and scripts in one file, with the data beside them, and asks no network.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod report;

use std::sync::LazyLock;

pub use report::report;

const DOCUMENT: &str = include_str!("../assets/index.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = concat!(
    include_str!("../assets/format.js"),
    include_str!("../assets/dom.js"),
    include_str!("../assets/source.js"),
    include_str!("../assets/frame.js"),
    include_str!("../assets/timeline.js"),
    include_str!("../assets/fork.js"),
    include_str!("../assets/run.js"),
    include_str!("../assets/runs.js"),
    include_str!("../assets/compare.js"),
    include_str!("../assets/search.js"),
    include_str!("../assets/tables.js"),
    include_str!("../assets/app.js"),
);

/// Headers of every asset. Scripts and styles come from this server only, and no other page may frame it.
pub const SECURITY_HEADERS: [(&str, &str); 4] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
         form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// One file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Its path on the server.
    pub path: &'static str,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// The value of `ETag`.
    pub etag: String,
}

/// All files of the page.
pub static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    let asset = |path, content_type, text: &'static str| Asset {
        path,
        content_type,
        bytes: text.as_bytes(),
        etag: format!("\"{}\"", blake3::hash(text.as_bytes()).to_hex()),
    };
    [
        asset("/", "text/html; charset=utf-8", DOCUMENT),
        asset("/assets/page.css", "text/css; charset=utf-8", STYLE),
        asset("/assets/page.js", "text/javascript; charset=utf-8", SCRIPT),
    ]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_take_less_than_300_kilobytes() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes < 300_000, "{bytes}");
    }

    /// The policy forbids them, so the page would silently lose what they do.
    #[test]
    fn document_has_no_inline_script_style_or_handler() {
        assert!(!DOCUMENT.contains("<style") && !DOCUMENT.contains(" style="));
        for rest in DOCUMENT.split(" on").skip(1) {
            let value = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            assert!(!value.starts_with('='), "a handler: on{rest}");
        }
        for script in DOCUMENT.split("<script").skip(1) {
            assert!(script.trim_start().starts_with("src=\"/assets/"), "{script}");
        }
    }

    /// A recorded text that became markup could run as a script of the page.
    #[test]
    fn scripts_never_parse_text_as_markup() {
        for parser in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "srcdoc"]
        {
            assert!(!SCRIPT.contains(parser), "{parser}");
        }
        assert!(!SCRIPT.to_lowercase().contains("</script"), "a report could not hold the scripts");
    }

    #[test]
    fn nothing_is_loaded_from_another_server() {
        for text in [DOCUMENT, STYLE, SCRIPT] {
            let other: Vec<_> =
                text.match_indices("http").map(|(at, _)| &text[at..(at + 60).min(text.len())]).collect();
            assert!(
                other
                    .iter()
                    .all(|text| text.starts_with("http://www.w3.org/2000/svg") || !text.contains("://")),
                "{other:?}"
            );
        }
    }
}
