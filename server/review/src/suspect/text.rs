//! What is read of a message's text: values (numbers, dates, identifiers, names), prose without code, and
//! phrases.

use std::collections::HashSet;

/// Maximum number of values read of one message.
const VALUES_MAX: usize = 4096;
/// Maximum bytes of a value; longer tokens are data, not values.
const VALUE_BYTES_MAX: usize = 128;

/// A fence of code in Markdown.
const FENCE: &str = "```";

/// The values of a text in order, each once: tokens with a digit (numbers without their separators of
/// thousands, dates, identifiers, addresses), and names of at least two capitalised words. In lower case.
pub(super) fn values(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut add = |value: String| {
        if found.len() < VALUES_MAX && seen.insert(value.clone()) {
            found.push(value);
        }
    };
    for token in text.split(|c: char| !(c.is_alphanumeric() || "_.,:/@-".contains(c))) {
        if let Some(value) = token_value(token) {
            add(value);
        }
    }
    for name in names(text) {
        add(name);
    }
    found
}

fn token_value(token: &str) -> Option<String> {
    let token = token.trim_matches(|c: char| !c.is_alphanumeric());
    let has_digit = token.bytes().any(|byte| byte.is_ascii_digit());
    if !has_digit || token.len() < 2 || token.len() > VALUE_BYTES_MAX {
        return None;
    }
    let is_number = token.bytes().all(|byte| byte.is_ascii_digit() || byte == b',' || byte == b'.');
    let value = if is_number { plain_number(token) } else { token.to_lowercase() };
    (value.len() >= 2).then_some(value)
}

/// A number without separators of thousands and without zeros at the end of its fraction.
fn plain_number(token: &str) -> String {
    let digits = token.replace(',', "");
    match digits.split_once('.') {
        Some((whole, fraction)) if !fraction.contains('.') => {
            let fraction = fraction.trim_end_matches('0');
            if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
        }
        _ => digits,
    }
}

/// Names: at least two capitalised words, separated by single spaces. Headings and emphasis in Markdown are
/// none.
fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let mut words: Vec<&str> = Vec::new();
        let mut end = |words: &mut Vec<&str>| {
            if words.len() >= 2 {
                names.push(words.join(" ").to_lowercase());
            }
            words.clear();
        };
        for word in line.split(' ') {
            let letters = word.trim_matches(|c: char| !c.is_alphanumeric());
            let mut chars = letters.chars();
            let capital = chars.next().is_some_and(char::is_uppercase);
            let is_name = !word.starts_with(['*', '_'])
                && capital
                && letters.len() > 1
                && chars.all(char::is_lowercase);
            let opens = word.starts_with(letters);
            if !is_name || !opens {
                end(&mut words);
            }
            if is_name {
                words.push(letters);
                if !word.ends_with(letters) {
                    end(&mut words);
                }
            }
        }
        end(&mut words);
    }
    names.retain(|name| name.len() <= VALUE_BYTES_MAX);
    names
}

/// Whether `known` holds a value, or all numbers that it is composed of.
pub(super) fn is_known(value: &str, mut known: impl FnMut(&str) -> bool) -> bool {
    if known(value) {
        return true;
    }
    let parts: Vec<&str> =
        value.split(['-', ':', '/', '_', '.', '@']).filter(|part| !part.is_empty()).collect();
    parts.len() > 1 && parts.iter().all(|part| part.len() < 2 || known(part))
}

/// The words of a text in lower case that have at least three letters or digits.
pub(super) fn words(text: &str) -> HashSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() > 2);
    words.map(str::to_lowercase).collect()
}

/// A text without its fenced code; fences that are not closed end with the text.
pub(super) fn prose(text: &str) -> String {
    text.split(FENCE).step_by(2).collect::<Vec<_>>().join(" ")
}

/// The fenced code of a text.
pub(super) fn code(text: &str) -> Option<String> {
    let code = text.split(FENCE).skip(1).step_by(2).collect::<Vec<_>>().join("\n");
    (!code.trim().is_empty()).then_some(code)
}

/// The first of the phrases that a text in lower case contains.
pub(super) fn first_phrase<'a>(lower: &str, phrases: &[&'a str]) -> Option<&'a str> {
    phrases.iter().find(|phrase| lower.contains(**phrase)).copied()
}

/// How often a text in lower case contains any of the phrases.
pub(super) fn phrase_count(lower: &str, phrases: &[&str]) -> usize {
    phrases.iter().map(|phrase| lower.matches(phrase).count()).sum()
}

/// The beginning of a text, at most `bytes` bytes, cut between characters.
pub(super) fn head(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}

/// A text on one line for a sentence of evidence, at most 80 characters.
pub(super) fn quote(text: &str) -> String {
    let line = head(text, 1024).split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(80) {
        Some((at, _)) => format!("\"{}…\"", line.get(..at).unwrap_or_default()),
        None => format!("\"{line}\""),
    }
}

/// Bytes before a phrase that a quotation may have.
const BEFORE_BYTES: usize = 50;

/// The sentence of a text in which a phrase stands, as evidence. `at` is the phrase's place in the text's lower
/// case, which has `lower_len` bytes.
pub(super) fn quote_at(text: &str, lower_len: usize, at: usize) -> String {
    // Lower case may have another length than the text; then the text's beginning is quoted.
    let at = if lower_len == text.len() { at } else { 0 };
    let from = text.floor_char_boundary(at.saturating_sub(BEFORE_BYTES));
    let before = text.get(from..at).unwrap_or_default();
    let sentence = before.rfind(['\n', '.', '!', '?', ':']).map(|end| end + 1);
    let word = || if from == 0 { Some(0) } else { before.find(' ').map(|end| end + 1) };
    let start = from + sentence.or_else(word).unwrap_or(0);
    quote(text.get(start..).unwrap_or_default().trim_start().lines().next().unwrap_or_default())
}

/// As [`quote_at`], for the first place of a phrase.
pub(super) fn quote_around(text: &str, lower: &str, phrase: &str) -> String {
    quote_at(text, lower.len(), lower.find(phrase).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_identifiers_dates_and_names() {
        let of = |text: &str| values(text).join("|");
        assert_eq!(of("It costs $1,250.50, order Z7GOZK on 2024-05-15."), "1250.5|z7gozk|2024-05-15");
        assert_eq!(
            of("see https://a.example/v1?x=22 or ann_lee_2305"),
            "https://a.example/v1|22|ann_lee_2305"
        );
        assert_eq!(
            of("Step 1: ask Fiona Apple, Robert Christgau and the Board"),
            "fiona apple|robert christgau"
        );
        assert_eq!(of("7 5 x\n# Next Steps\n**Gift Cards** used"), "");
    }

    #[test]
    fn composed_value_is_known_by_its_numbers() {
        let known = |value: &str| ["2024", "05", "15"].contains(&value);
        assert!(is_known("2024-05-15", known) && is_known("15", known));
        assert!(!is_known("2024-06-15", known) && !is_known("16", known));
    }

    #[test]
    fn prose_and_code_split_at_fences() {
        let text = "before ```py\nx = 1\n``` after ```open";
        assert_eq!(prose(text), "before   after ");
        assert_eq!(code(text).as_deref(), Some("py\nx = 1\n\nopen"));
        assert!(code("none").is_none() && code("``` ```").is_none());
    }

    #[test]
    fn quotes_are_one_short_line() {
        assert_eq!(quote(" a\n b "), "\"a b\"");
        assert_eq!(quote(&"x".repeat(90)).chars().count(), 83);
        let text = "first line\nWe assume that it holds.\nlast";
        assert_eq!(quote_around(text, &text.to_lowercase(), "assum"), "\"We assume that it holds.\"");
        let text = "It is done. Then I will pay the very long bill of the month";
        assert_eq!(
            quote_around(text, &text.to_lowercase(), "will"),
            "\"Then I will pay the very long bill of the month\""
        );
    }
}
