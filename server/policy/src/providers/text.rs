//! Bounded texts from outside: beginnings with a known total length, and single lines that are safe to print.

use annals_text::visible::is_hidden;

/// The beginning of a text that arrives in pieces, and its total length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundedText {
    head: String,
    bytes: u64,
    /// Maximum number of bytes kept.
    head_max: usize,
}

/// The default maximum length of a kept text: 64 KiB.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

impl Default for BoundedText {
    fn default() -> Self {
        Self::up_to(TEXT_BYTES_MAX)
    }
}

impl BoundedText {
    /// A text of which at most `head_max` bytes are kept.
    pub(super) fn up_to(head_max: usize) -> Self {
        Self { head: String::new(), bytes: 0, head_max }
    }

    /// Forgets the text.
    pub(super) fn clear(&mut self) {
        *self = Self::up_to(self.head_max);
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: &str) {
        if self.bytes == self.head.len() as u64 {
            let room = self.head_max.saturating_sub(self.head.len());
            self.head.push_str(clip(piece, room));
        }
        self.bytes += piece.len() as u64;
    }

    /// The first [`TEXT_BYTES_MAX`] bytes, or the requested number; cut between characters.
    #[must_use]
    pub fn head(&self) -> &str {
        &self.head
    }

    /// The total length in bytes of UTF-8.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The beginning of `text`, at most `bytes_max` bytes, cut between characters.
pub(super) fn clip(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default()
}

/// The beginning of `text` as one line of at most `chars_max` characters. White space and hidden
/// characters become one space; an ellipsis marks omitted text.
pub(super) fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    let mut gap = false;
    // Runs of white space are read only up to this bound.
    for character in clip(text, chars_max.saturating_mul(16)).chars() {
        if character.is_whitespace() || is_hidden(character) {
            gap = !line.is_empty();
            continue;
        }
        let added = 1 + usize::from(gap);
        if count + added > chars_max {
            line.push('…');
            return line;
        }
        if std::mem::take(&mut gap) {
            line.push(' ');
        }
        line.push(character);
        count += added;
    }
    if text.len() > chars_max.saturating_mul(16) {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{BoundedText, TEXT_BYTES_MAX, one_line};

    #[test]
    fn bounded_text_keeps_its_head_and_counts_all_bytes() {
        let mut text = BoundedText::default();
        for _ in 0..TEXT_BYTES_MAX {
            text.push("é€");
        }
        assert_eq!(text.bytes(), 5 * TEXT_BYTES_MAX as u64);
        assert!(text.head().len() <= TEXT_BYTES_MAX && text.head().len() > TEXT_BYTES_MAX - 5);
        assert!("é€".repeat(TEXT_BYTES_MAX).starts_with(text.head()));
    }

    #[test]
    fn one_line_removes_control_characters() {
        assert_eq!(one_line("  a\n\tb\u{1b}[31mc\u{202e}d ", 99), "a b [31mc d");
        assert_eq!(one_line("äöüß", 3), "äöü…");
        assert_eq!(one_line(&" ".repeat(9999), 3), "…");
        assert_eq!(one_line("", 3), "");
    }
}
