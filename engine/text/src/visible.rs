//! Recorded text made safe to look at: characters that a terminal obeys or does not show become escapes.
//!
//! Text from a model or a program may hold control sequences, change the direction of the text around it, or
//! hide characters. A person who reads it must see what is there.

/// Whether a terminal obeys this character instead of showing it, or shows nothing for it: control
/// characters, bidirectional controls, separators of lines and paragraphs, invisible format characters, tags,
/// fillers, and selectors of variants that no font has. Line ends and tabs are control characters.
///
/// The joiners (U+200C, U+200D) and the selectors of text or emoji (U+FE0E, U+FE0F) are not among them:
/// scripts and emoji need them. [`printable`] shows them where they join nothing.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Bidirectional controls.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Separators of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
            // Zero width and other format characters.
            | '\u{ad}' | '\u{34f}' | '\u{70f}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'
            | '\u{2060}'..='\u{2065}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Fillers that take no room or look like spaces.
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
            // Selectors of variants, and tags, in which whole texts can be hidden.
            | '\u{fe00}'..='\u{fe0d}' | '\u{e0000}'..='\u{e0fff}')
}

/// Text that is safe on a terminal: hidden characters except line ends and tabs become escapes as in a Rust
/// literal. A joiner is shown as an escape unless it stands after a visible character beyond ASCII, and a
/// selector unless it is the only one there.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    // What may follow without an escape.
    let (mut selector_fits, mut joiner_fits) = (false, false);
    for c in text.chars() {
        let shown = match c {
            '\n' | '\t' => true,
            '\u{fe0e}' | '\u{fe0f}' => selector_fits,
            '\u{200c}' | '\u{200d}' => joiner_fits,
            c => !is_hidden(c),
        };
        if shown {
            safe.push(c);
        } else {
            safe.extend(c.escape_default());
        }
        let is_letter = !matches!(c, '\u{fe0e}' | '\u{fe0f}' | '\u{200c}' | '\u{200d}');
        selector_fits = shown && is_letter && !c.is_ascii();
        joiner_fits = selector_fits || shown && matches!(c, '\u{fe0e}' | '\u{fe0f}');
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::{is_hidden, printable};

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\tc\n\u{9b}2J\r"), "a\\u{1b}[31mb\tc\n\\u{9b}2J\\r");
    }

    /// Regression: bidirectional controls reached the terminal, so a recorded text could show another order of
    /// its characters than it has.
    #[test]
    fn bidirectional_and_invisible_characters_are_escaped() {
        let bidirectional = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in bidirectional
            .chain("\u{200e}\u{200f}\u{61c}\u{200b}\u{2060}\u{feff}\u{ad}\u{e0041}\u{2028}".chars())
        {
            assert!(is_hidden(c), "{c:?}");
            assert_eq!(printable(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
        }
    }

    #[test]
    fn joiners_are_shown_only_where_they_join() {
        let family = "👨\u{200d}👩 ❤\u{fe0f}\u{200d}🔥 می\u{200c}خواهم";
        assert_eq!(printable(family), family);
        assert_eq!(printable("pay\u{200d}pal"), "pay\\u{200d}pal");
        assert_eq!(printable("❤\u{fe0f}\u{fe0f}\u{fe0e}"), "❤\u{fe0f}\\u{fe0f}\\u{fe0e}");
        assert_eq!(printable("é\u{200d}\u{200c}"), "é\u{200d}\\u{200c}");
    }
}
