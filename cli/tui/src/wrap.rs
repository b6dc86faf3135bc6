//! Lines that fit into a number of columns, by the width of characters on a terminal.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// The columns that a text takes.
#[cfg(test)]
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The lines of `text`, each at most `columns` wide. Breaks at spaces where it can, else between characters.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        wrap_line(line.trim_end_matches('\r'), columns, &mut lines);
    }
    lines
}

fn wrap_line(line: &str, columns: usize, lines: &mut Vec<String>) {
    if line.len() <= columns && line.is_ascii() {
        lines.push(line.to_owned());
        return;
    }
    let (mut shown, mut taken) = (String::new(), 0);
    // The length up to the last space, where the line may be broken.
    let mut space = None;
    for cluster in line.graphemes(true) {
        let wide = cluster.width();
        if taken + wide > columns && !shown.is_empty() {
            let rest = match space.filter(|at| *at > shown.len() / 2) {
                Some(at) => shown.split_off(at).trim_start().to_owned(),
                None => String::new(),
            };
            lines.push(std::mem::replace(&mut shown, rest));
            taken = shown.width();
            space = None;
            if cluster == " " && shown.is_empty() {
                continue;
            }
        }
        shown.push_str(cluster);
        taken += wide;
        if cluster == " " {
            space = Some(shown.len());
        }
    }
    lines.push(shown);
}

/// The beginning of a line that fits; `more` stands for the rest.
pub(crate) fn clip(text: &str, columns: usize, more: &str) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(more.width());
    let (mut shown, mut taken) = (String::new(), 0);
    for cluster in text.graphemes(true) {
        taken += cluster.width();
        if taken > room {
            break;
        }
        shown.push_str(cluster);
    }
    if more.width() <= columns {
        shown.push_str(more);
    }
    shown
}

/// A text in exactly this many columns, to the left.
pub(crate) fn left(text: &str, columns: usize, more: &str) -> String {
    let mut shown = clip(text, columns, more);
    let taken = shown.width();
    shown.extend(std::iter::repeat_n(' ', columns.saturating_sub(taken)));
    shown
}

/// The same, to the right.
pub(crate) fn right(text: &str, columns: usize, more: &str) -> String {
    let shown = clip(text, columns, more);
    let taken = shown.width();
    let mut line: String = std::iter::repeat_n(' ', columns.saturating_sub(taken)).collect();
    line.push_str(&shown);
    line
}

#[cfg(test)]
mod tests {
    use super::{clip, left, right, wrap};

    #[test]
    fn lines_break_at_spaces_and_within_long_words() {
        assert_eq!(wrap("one two three\n\nfour", 8), ["one two ", "three", "", "four"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("日本語テキスト", 6), ["日本語", "テキス", "ト"]);
        assert_eq!(wrap("", 6), [""]);
    }

    #[test]
    fn clipped_text_never_exceeds_its_columns() {
        assert_eq!(clip("日本語", 5, "…"), "日本…");
        assert_eq!(clip("abc", 3, "…"), "abc");
        assert_eq!(clip("abcd", 0, "…"), "");
        assert_eq!(left("日", 4, "…"), "日  ");
        assert_eq!(right("12", 4, "…"), "  12");
    }
}
