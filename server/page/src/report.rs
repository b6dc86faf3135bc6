//! A report: the page and its data in one file, which opens from a disk and asks no network.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{SCRIPT, STYLE};

/// A report as HTML. `title` is shown in the window's title; `data` has the runs as the page's scripts read them
/// (`ReportSource` in `assets/source.js`).
///
/// The content security policy admits this script and this style by their hashes and nothing else. The data is an
/// element of its own: `<` is escaped in it, so no recorded text can end that element.
#[must_use]
pub fn report(title: &str, data: &Value) -> String {
    let script = hash(SCRIPT);
    let style = hash(STYLE);
    let title = escape_html(title);
    let data = data
        .to_string()
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <noscript>This report needs JavaScript; it loads nothing from a network.</noscript>\n\
         <script type=\"application/json\" id=\"annals-report\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// The source expression of an inline script or style in a content security policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A recorded text that ends the data's element would run as a script of the report.
    #[test]
    fn hostile_text_cannot_leave_the_data() {
        let hostile = "</script><script>alert(1)</script><!--<script>\u{2028}&\"'";
        let page = report(hostile, &json!({ "runs": [{ "name": hostile }] }));
        let data = page.split("id=\"annals-report\">").nth(1).unwrap();
        let data = data.split("</script>").next().unwrap();
        let read: Value = serde_json::from_str(data).unwrap();
        assert_eq!(read["runs"][0]["name"], hostile);
        assert_eq!(page.to_lowercase().matches("<script").count(), 2, "the data and the page's own");
        assert_eq!(page.matches("alert(1)").count(), 2, "in the title and in the data");
        assert!(page.contains("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn policy_admits_the_inline_script_by_its_hash() {
        let page = report("r", &json!({ "runs": [] }));
        let script = page.rsplit("<script>").next().unwrap().split("</script>").next().unwrap();
        let style = page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        for (directive, text) in [("script-src", script), ("style-src", style)] {
            let hash = STANDARD.encode(Sha256::digest(text.as_bytes()));
            assert!(page.contains(&format!("{directive} 'sha256-{hash}'")), "{directive}");
        }
        assert!(!page.contains("unsafe-inline") && !page.contains("connect-src"));
    }
}
