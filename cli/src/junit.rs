//! JUnit XML for CI servers: one suite, with a case for each checked run or tape.
//!
//! There is no standard. CI servers agree on this subset: `testsuites`, `testsuite`, `testcase` with
//! `failure` or `error`.

use std::fmt::Write as _;

use annals_text::visible::is_hidden;

/// A case.
#[derive(Debug)]
pub(crate) struct JunitCase<'a> {
    pub(crate) class: &'a str,
    pub(crate) name: &'a str,
    pub(crate) seconds: f64,
    /// The problem, if there is one.
    pub(crate) problem: Option<JunitProblem<'a>>,
}

/// A problem of a case.
#[derive(Debug)]
pub(crate) struct JunitProblem<'a> {
    /// The check found a problem. If false, the check itself failed.
    pub(crate) is_finding: bool,
    /// One word.
    pub(crate) kind: &'a str,
    pub(crate) text: &'a str,
}

/// The document.
pub(crate) fn document(suite: &str, cases: &[JunitCase<'_>]) -> String {
    let count = |found| {
        cases
            .iter()
            .filter(|case| case.problem.as_ref().is_some_and(|wrong| wrong.is_finding == found))
            .count()
    };
    let (tests, failures, errors) = (cases.len(), count(true), count(false));
    let seconds: f64 = cases.iter().map(|case| case.seconds).sum();
    let suite = escaped(suite);
    let counts = format!(r#"tests="{tests}" failures="{failures}" errors="{errors}""#);
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"{suite}\" {counts} time=\"{seconds:.3}\">\n  \
         <testsuite name=\"{suite}\" {counts} skipped=\"0\" time=\"{seconds:.3}\">\n"
    );
    for case in cases {
        let (class, name) = (escaped(case.class), escaped(case.name));
        let head =
            format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"{:.3}\"", case.seconds);
        // Writing to a String does not fail.
        let _ = match &case.problem {
            None => writeln!(xml, "{head}/>"),
            Some(JunitProblem { is_finding: found, kind, text }) => {
                let element = if *found { "failure" } else { "error" };
                let message = escaped(text.lines().next().unwrap_or_default());
                let (kind, text) = (escaped(kind), escaped(text));
                writeln!(
                    xml,
                    "{head}>\n      <{element} type=\"{kind}\" message=\"{message}\">{text}</{element}>\n    </testcase>"
                )
            }
        };
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Escapes text for an element or an attribute. XML 1.0 cannot represent most control characters; they and
/// other hidden characters become escapes as in a Rust literal.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' => safe.push_str("&#10;"),
            '\t' => safe.push_str("&#9;"),
            '\u{fffe}' | '\u{ffff}' => safe.extend(char.escape_unicode()),
            char if is_hidden(char) => safe.extend(char.escape_default()),
            char => safe.push(char),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_is_well_formed_xml() {
        let wrong =
            JunitProblem { is_finding: true, kind: "drift", text: "a]]><b>&\"\u{1b}[31m\u{0}\u{ffff}\nc" };
        let xml = document("s", &[JunitCase { class: "c", name: "<n>", seconds: 0.5, problem: Some(wrong) }]);
        assert!(xml.contains(r#"tests="1" failures="1" errors="0" skipped="0" time="0.500""#), "{xml}");
        assert!(xml.contains("name=\"&lt;n&gt;\""), "{xml}");
        assert!(xml.contains(r#"message="a]]&gt;&lt;b&gt;&amp;&quot;\u{1b}[31m\u{0}\u{ffff}">"#), "{xml}");
        assert!(xml.contains("\\u{ffff}&#10;c</failure>"), "{xml}");
        assert!(!xml.chars().any(|c| c.is_control() && c != '\n'));
    }
}
