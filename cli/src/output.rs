//! Standard output: text, tables, JSON lines, exact bytes.
//!
//! The output is not filtered: a filter that removes colour would also remove control characters from
//! recorded text. Colour goes only to a terminal, and not with NO_COLOR. Recorded text is escaped before it
//! goes to a terminal, since it may hold control sequences; `--raw` sends it unchanged.

use std::io::{self, BufWriter, IsTerminal, Write};

use annals_formats::import::base64;
use annals_server::providers::Cost;
use annals_text::visible::is_hidden;
pub(crate) use annals_text::visible::printable;
pub(crate) use annals_tui::numbers::{bytes, count, duration, plural, time};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::failure::{CliResult, output_failure};

/// Standard output.
pub(crate) struct CliOutput {
    to: BufWriter<io::Stdout>,
    terminal: bool,
    colour: bool,
    pub(crate) json: bool,
}

impl CliOutput {
    pub(crate) fn new(json: bool) -> Self {
        let stream = io::stdout();
        let colour = anstream::AutoStream::choice(&stream) != anstream::ColorChoice::Never;
        let terminal = stream.is_terminal();
        Self { to: BufWriter::with_capacity(64 << 10, stream), terminal, colour, json }
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> CliResult<()> {
        self.exact_line(printable(&text.to_string()))
    }

    /// A line as it is, also with hidden characters.
    fn exact_line(&mut self, text: impl std::fmt::Display) -> CliResult<()> {
        writeln!(self.to, "{text}").map_err(output_failure)
    }

    /// A line of JSON that is not to change. On a terminal, hidden characters are escaped.
    pub(crate) fn json_line(&mut self, text: &str) -> CliResult<()> {
        match self.terminal {
            true => self.exact_line(visible_json(text)),
            false => self.exact_line(text),
        }
    }

    /// A line of text with its first word in bold and colour.
    pub(crate) fn marked_line(
        &mut self,
        good: bool,
        word: &str,
        rest: impl std::fmt::Display,
    ) -> CliResult<()> {
        if !self.colour {
            return self.line(format_args!("{word}{rest}"));
        }
        let colour = if good { anstyle::AnsiColor::Green } else { anstyle::AnsiColor::Red };
        let style = colour.on_default().bold();
        let (word, rest) = (printable(word), printable(&rest.to_string()));
        self.exact_line(format_args!("{style}{word}{style:#}{rest}"))
    }

    /// Exact bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> CliResult<()> {
        self.to.write_all(bytes).map_err(output_failure)
    }

    /// A value: exact bytes to a pipe or file; escaped text and a line end to a terminal.
    pub(crate) fn value(&mut self, bytes: &[u8]) -> CliResult<()> {
        if !self.terminal {
            return self.bytes(bytes);
        }
        self.line(printable(&String::from_utf8_lossy(bytes)))
    }

    /// A text of several lines, which ends with a line end. On a terminal, hidden characters are escaped.
    pub(crate) fn text(&mut self, text: &str) -> CliResult<()> {
        match self.terminal {
            true => self.line(text),
            false => self.exact_line(text),
        }
    }

    /// A JSON object on a line of its own. On a terminal, hidden characters are escaped.
    pub(crate) fn object(&mut self, object: &impl serde::Serialize) -> CliResult<()> {
        if self.terminal {
            let text = serde_json::to_string(object).map_err(|error| output_failure(error.into()))?;
            return self.json_line(&text);
        }
        serde_json::to_writer(&mut self.to, object).map_err(|error| output_failure(error.into()))?;
        self.exact_line("")
    }

    /// Whether the output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A table: headers (a leading `>` aligns to the right) and rows.
    pub(crate) fn table(&mut self, headers: &[&str], rows: Vec<Vec<String>>) -> CliResult<()> {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headers.iter().map(|header| Cell::new(header.trim_start_matches('>'))));
        for row in rows {
            table.add_row(row.iter().map(|text| printable(text)));
        }
        for (index, header) in headers.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2));
                if header.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        let bold = if self.colour { anstyle::Style::new().bold() } else { anstyle::Style::new() };
        for (index, line) in table.to_string().lines().map(str::trim_end).enumerate() {
            if index == 0 {
                self.exact_line(format_args!("{bold}{line}{bold:#}"))?;
            } else {
                self.exact_line(line)?;
            }
        }
        Ok(())
    }

    /// Writes out the buffer.
    pub(crate) fn flush(&mut self) -> CliResult<()> {
        self.to.flush().map_err(output_failure)
    }
}

/// Prints a note on standard error. A failure to write there cannot be reported.
pub(crate) fn print_note(text: impl std::fmt::Display) {
    let _ = writeln!(anstream::stderr().lock(), "annals: {}", printable(&text.to_string()));
}

/// Adds bytes to a JSON object: under `key` as text, or under `key_base64` if they are not UTF-8.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(key.to_owned(), Value::String(text.to_owned())),
        Err(_) => object.insert(format!("{key}_base64"), Value::String(base64::encode(bytes))),
    };
}

/// Metadata for a JSON line: the object itself if it is a JSON object on one line, else base64; `None` if it
/// is empty.
pub(crate) fn metadata(bytes: &[u8]) -> (Option<Box<RawValue>>, Option<String>) {
    if bytes.is_empty() {
        return (None, None);
    }
    let one_line = !bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
    let exact = bytes.first() == Some(&b'{') && bytes.last() == Some(&b'}') && one_line;
    let text = std::str::from_utf8(bytes).ok().filter(|_| exact);
    match text.and_then(|text| RawValue::from_string(text.to_owned()).ok()) {
        Some(raw) => (Some(raw), None),
        None => (None, Some(base64::encode(bytes))),
    }
}

/// JSON with the same value, in which hidden characters are escapes. Beyond ASCII, JSON has characters only in
/// strings.
fn visible_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if char >= '\u{7f}' && is_hidden(char) {
            let units = char
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            safe.push_str(&units);
        } else {
            safe.push(char);
        }
    }
    safe
}

/// The start of a body, on one line.
pub(crate) fn preview(bytes: &[u8], chars_max: usize) -> String {
    let head = bytes.get(..bytes.len().min(chars_max * 4)).unwrap_or_default();
    let text = String::from_utf8_lossy(head);
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = flat.chars().take(chars_max).collect();
    if short.len() < flat.len() || head.len() < bytes.len() {
        short.push('…');
    }
    printable(&short)
}

/// The cost of calls, to a hundredth of a cent; `None` if no tokens were counted.
pub(crate) fn dollars(cost: &Cost) -> Option<String> {
    let known = annals_tui::numbers::dollars(cost.dollars);
    match (cost.priced, cost.unpriced) {
        (0, 0) => None,
        (0, _) => Some("price unknown".to_owned()),
        (_, 0) => Some(known),
        (_, unknown) => Some(format!("{known} and {} of unknown price", plural(unknown, "call"))),
    }
}

/// A time in UTC to the minute, for a table.
pub(crate) fn time_to_minute(ns: u64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(ns));
    stamp.map_or_else(|_| format!("{ns} ns"), |stamp| stamp.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::{Cost, dollars, metadata, preview, time_to_minute, visible_json};

    #[test]
    fn time_of_a_table_ends_with_minutes() {
        assert_eq!(time_to_minute(1_700_000_000_123_456_789), "2023-11-14 22:13");
    }

    #[test]
    fn unknown_cost_is_not_shown_as_zero() {
        let of = |dollars_: f64, priced, unpriced| dollars(&Cost { dollars: dollars_, priced, unpriced });
        let told = [(0.0, 0, 0), (0.0, 0, 3), (0.0, 1, 0), (0.000_099, 1, 0), (0.0001, 1, 0), (1.5, 2, 1)];
        let told = told.map(|(amount, priced, unpriced)| of(amount, priced, unpriced).unwrap_or_default());
        let wanted =
            ["", "price unknown", "$0", "under $0.0001", "$0.0001", "$1.5000 and 1 call of unknown price"];
        assert_eq!(told, wanted);
    }

    #[test]
    fn json_on_a_terminal_has_no_hidden_character_and_the_same_value() {
        let value = serde_json::json!({ "text": "a\u{202e}b\u{9b}\u{7f}\u{e0041}\n" });
        let text = visible_json(&value.to_string());
        assert_eq!(text, r#"{"text":"a\u202eb\u009b\u007f\udb40\udc41\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn preview_is_short_and_safe() {
        assert_eq!(preview(b"a \n b\x1b", 80), "a b\\u{1b}");
        assert_eq!(preview(b"abcdef", 3), "abc…");
    }

    #[test]
    fn metadata_is_json_only_if_its_bytes_survive() {
        let shown = |bytes: &[u8]| {
            let (raw, base64) = metadata(bytes);
            (raw.map(|raw| raw.get().to_owned()), base64)
        };
        assert_eq!(shown(b""), (None, None));
        assert_eq!(shown(br#"{"a":  1e400}"#), (Some(r#"{"a":  1e400}"#.to_owned()), None));
        for bytes in [&b"{\n}"[..], b"{} ", b"[]", b"x", b"\xff", b"{"] {
            assert!(matches!(shown(bytes), (None, Some(_))), "{bytes:?}");
        }
    }
}
