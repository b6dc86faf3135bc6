//! Splits a text into words with their stems, n-grams of letters, and identifiers.

/// Letters of an n-gram; the ends of a word count as letters.
const GRAM_LETTERS: usize = 4;
/// Maximum length of a word in letters; the rest of a longer word is ignored.
const WORD_LETTERS_MAX: usize = 64;
/// Maximum length of an identifier in bytes; longer tokens are not identifiers.
const IDENTIFIER_BYTES_MAX: usize = 256;
/// Minimum digits of a number that counts as an identifier.
const NUMBER_DIGITS_MIN: usize = 5;
/// Minimum characters of a code of letters and digits.
const CODE_CHARS_MIN: usize = 4;

/// English words that say little about a text's subject, sorted.
const COMMON: [&str; 118] = [
    "a", "about", "after", "again", "also", "am", "an", "and", "any", "are", "as", "at", "be", "because",
    "been", "before", "being", "between", "but", "by", "can", "could", "d", "did", "do", "does", "doing",
    "done", "during", "for", "from", "had", "has", "have", "having", "he", "hello", "her", "hey", "hi",
    "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "like", "m", "me", "more",
    "most", "my", "need", "no", "not", "of", "off", "on", "only", "or", "other", "our", "out", "over",
    "please", "s", "she", "should", "so", "some", "t", "than", "thank", "thanks", "that", "the", "their",
    "them", "then", "there", "these", "they", "this", "those", "through", "to", "under", "until", "up", "us",
    "ve", "very", "want", "was", "we", "were", "what", "when", "where", "which", "while", "who", "whom",
    "whose", "why", "will", "with", "won", "would", "yet", "you", "your", "yours",
];

/// Endings removed from a word; the first that fits is used.
const ENDINGS: [&str; 16] = [
    "ations", "ation", "ments", "ment", "ings", "ing", "ies", "ied", "ers", "ed", "es", "er", "ly", "s", "e",
    "y",
];
/// Minimum letters of a stem.
const STEM_LETTERS_MIN: usize = 3;

/// Whether a word is too common to say much.
pub(super) fn is_common(word: &str) -> bool {
    COMMON.binary_search(&word).is_ok()
}

/// Gives each word of a text in lower case; a word written `likeThis` is followed by its parts.
pub(super) fn for_each_word(text: &str, each: &mut dyn FnMut(&str)) {
    let mut word = String::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let length = letters_bytes(rest);
        if length == 0 {
            let skipped = if first.is_ascii() { 1 } else { rest.chars().next().map_or(1, char::len_utf8) };
            rest = rest.get(skipped..).unwrap_or_default();
            continue;
        }
        let (found, after) = rest.split_at(length);
        rest = after;
        word.clear();
        if found.is_ascii() {
            word.push_str(found.get(..found.len().min(WORD_LETTERS_MAX)).unwrap_or_default());
            word.make_ascii_lowercase();
        } else {
            word.extend(found.chars().take(WORD_LETTERS_MAX).flat_map(char::to_lowercase));
        }
        each(&word);
        if has_hump(found) {
            for part in humps(found) {
                each(&part.to_lowercase());
            }
        }
    }
}

/// Length in bytes of the letters and digits that a text begins with.
fn letters_bytes(text: &str) -> usize {
    let length = text.bytes().take_while(u8::is_ascii_alphanumeric).count();
    match text.as_bytes().get(length) {
        Some(next) if !next.is_ascii() => {
            text.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(text.len())
        }
        _ => length,
    }
}

fn is_hump(before: u8, after: u8) -> bool {
    before.is_ascii_lowercase() && after.is_ascii_uppercase()
}

fn has_hump(word: &str) -> bool {
    word.len() <= WORD_LETTERS_MAX
        && word.as_bytes().array_windows().any(|[before, after]| is_hump(*before, *after))
}

fn humps(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.as_bytes().array_windows().position(|[before, after]| is_hump(*before, *after))
    {
        let (part, after) = rest.split_at(at + 1);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts
}

/// A word without its ending, so that `rejected`, `rejects` and `rejecting` are equal. Only words of ASCII
/// letters are shortened.
pub(super) fn stem(word: &str) -> &str {
    if word.len() <= STEM_LETTERS_MIN || !word.bytes().all(|letter| letter.is_ascii_lowercase()) {
        return word;
    }
    let fits = |ending: &&&str| word.ends_with(**ending) && word.len() - ending.len() >= STEM_LETTERS_MIN;
    let ending = ENDINGS.iter().find(fits).map_or(0, |ending| ending.len());
    let mut stem = word.get(..word.len() - ending).unwrap_or(word);
    // A letter doubled by the ending: `cancelled`, `planning`.
    if let [.., before, last] = stem.as_bytes()
        && before == last
        && stem.len() > STEM_LETTERS_MIN
    {
        stem = stem.get(..stem.len() - 1).unwrap_or(stem);
    }
    stem
}

/// Gives the n-grams of a word, with marks at its ends. Words shorter than an n-gram have none.
pub(super) fn for_each_gram(word: &str, each: &mut dyn FnMut(&str)) {
    if word.len() < GRAM_LETTERS {
        return;
    }
    let mut marked = String::with_capacity(word.len() + 2);
    marked.push('^');
    marked.push_str(word);
    marked.push('$');
    if marked.is_ascii() {
        for from in 0..=marked.len() - GRAM_LETTERS {
            each(marked.get(from..from + GRAM_LETTERS).unwrap_or_default());
        }
        return;
    }
    if word.chars().count() < GRAM_LETTERS {
        return;
    }
    let ends = marked.char_indices().skip(GRAM_LETTERS).map(|(at, _)| at).chain([marked.len()]);
    for ((from, _), end) in marked.char_indices().zip(ends) {
        each(marked.get(from..end).unwrap_or_default());
    }
}

/// Gives the identifiers of a text in lower case. An identifier is one of these tokens:
///
/// - `#` with letters and digits after it, at least one of them a digit (`#42`);
/// - an e-mail address;
/// - a code of letters and digits of at least four characters, its parts joined by `-`, `_`, `.` or `+`
///   (`app-42`, `HAT136`, `mia_li_3668`);
/// - a number of at least five digits, in one part or joined by `-` or `_` (`1234567`, `555-1234`).
///
/// Quantities are not identifiers: a number with a unit (`50k`, `2nd`, `24-hour`), an amount (`$12000`), a
/// decimal, a date, a time. With `parts`, identifiers within an identifier are given, too (`HAT136` in
/// `HAT136-HAT039`).
pub(super) fn for_each_identifier(text: &str, parts: bool, each: &mut dyn FnMut(&str)) {
    if !text.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@') {
        return;
    }
    let mut rest = text;
    let mut before = ' ';
    while let Some(letter) = rest.chars().next() {
        let length = match letter {
            // In texts that hold JSON, the character after a backslash belongs to an escape, not to a word.
            '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '#' => token_bytes(rest, 1),
            _ if letter.is_alphanumeric() => token_bytes(rest, 0),
            _ => letter.len_utf8(),
        };
        let (found, after) = rest.split_at(length);
        // Nothing without a digit or an @ is an identifier, and most words have neither.
        let may_be = found.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@');
        if may_be && found.len() <= IDENTIFIER_BYTES_MAX && letter != '\\' {
            let small = found.to_lowercase();
            if is_identifier(&small) && !is_amount(&small, before) {
                each(&small);
            }
            if parts {
                small.split(is_joint).filter(|part| part.len() < small.len()).for_each(|part| {
                    if is_identifier(part) {
                        each(part);
                    }
                });
                if let Some(bare) = small.strip_prefix('#').filter(|bare| is_identifier(bare)) {
                    each(bare);
                }
            }
        }
        before = letter;
        rest = after;
    }
}

fn is_joint(letter: char) -> bool {
    matches!(letter, '-' | '_' | '.' | '+' | '@')
}

/// Length of a token in bytes, from character `at`: letters and digits, and joints between two of them.
fn token_bytes(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let mut end = at;
    while let Some(byte) = bytes.get(end) {
        let next = bytes.get(end + 1);
        if !byte.is_ascii() || next.is_some_and(|next| !next.is_ascii()) {
            return token_bytes_by_letters(text, at);
        }
        let joins = is_joint(char::from(*byte)) && next.is_some_and(u8::is_ascii_alphanumeric);
        if !byte.is_ascii_alphanumeric() && !joins {
            break;
        }
        end += 1;
    }
    end
}

fn token_bytes_by_letters(text: &str, at: usize) -> usize {
    let mut letters = text.char_indices().skip(at).peekable();
    let mut end = at;
    while let Some((place, letter)) = letters.next() {
        let goes_on = letter.is_alphanumeric()
            || (is_joint(letter) && letters.peek().is_some_and(|(_, next)| next.is_alphanumeric()));
        if !goes_on {
            break;
        }
        end = place + letter.len_utf8();
    }
    end
}

fn is_amount(token: &str, before: char) -> bool {
    matches!(before, '$' | '\u{20ac}' | '\u{a3}' | '\u{a5}') && !token.starts_with('#')
}

fn is_identifier(token: &str) -> bool {
    let digits = token.chars().filter(char::is_ascii_digit).count();
    let has_letters = token.chars().any(char::is_alphabetic);
    if let Some((name, host)) = token.split_once('@') {
        return !name.is_empty() && host.contains('.') && !host.contains('@');
    }
    if digits == 0 {
        return false;
    }
    if token.starts_with('#') {
        return true;
    }
    if begins_with_date(token) {
        return false;
    }
    if !has_letters {
        return digits >= NUMBER_DIGITS_MIN && !token.contains(['.', '+']);
    }
    token.chars().count() >= CODE_CHARS_MIN && !is_quantity(token)
}

/// `2026-11-23`, or a token that starts with a date.
fn begins_with_date(token: &str) -> bool {
    let mut parts = token.splitn(3, '-');
    let mut part = |length: usize, open: bool| {
        parts.next().is_some_and(|part| {
            (part.len() == length || (open && part.len() > length))
                && part.bytes().take(length).all(|digit| digit.is_ascii_digit())
        })
    };
    part(4, false) && part(2, false) && part(2, true)
}

/// A number with a unit or exponent: `50k`, `3.5gb`, `20th`, `1e10`, `24-hour`, `10am-2pm`.
fn is_quantity(token: &str) -> bool {
    let unit_letters_max = if token.contains('-') { usize::MAX } else { 3 };
    let rest = token.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    if rest.len() == token.len() {
        return false;
    }
    let unit = rest.trim_start_matches('-');
    let letters = unit.chars().count();
    let plain = unit.chars().all(char::is_alphabetic) && letters <= unit_letters_max;
    let exponent =
        unit.strip_prefix('e').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    let range = token.split('-').count() == 2
        && token.split('-').all(|part| part.len() < token.len() && is_small_quantity(part));
    plain || exponent || range
}

fn is_small_quantity(part: &str) -> bool {
    let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
    rest.len() < part.len() && rest.chars().count() <= 3 && rest.chars().all(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_identifiers(text: &str, parts: bool) -> Vec<String> {
        let mut found = Vec::new();
        for_each_identifier(text, parts, &mut |one| found.push(one.to_owned()));
        found
    }

    #[test]
    fn identifiers_exclude_quantities() {
        for (text, found) in [
            ("Why was application #42 rejected?", vec!["#42"]),
            ("(loan#A7), #urgent", vec!["#a7"]),
            ("app-42: APP-42-followup.", vec!["app-42", "app-42-followup"]),
            ("ask Mia.Li+x@Example.com, or me@home", vec!["mia.li+x@example.com"]),
            ("user mia_li_3668 on HAT136", vec!["mia_li_3668", "hat136"]),
            ("order 1234567, call 555-1234", vec!["1234567", "555-1234"]),
            ("{\"id\":\"Q69X3R\\nZ0\"}", vec!["q69x3r"]),
            ("Credit: 580. Income: 95k. Amount: 50k, $12000, 12000.50, 1.5e10, 3.5gb", vec![]),
            ("on 2026-11-23, at 2026-11-23T14:14:00Z, May 20th, 24-hour, 10am-2pm", vec![]),
            ("mp3, May, 42, 2024, one-way, non-stop", vec![]),
            (
                "sha256 of 0f8fad5b-d9cb-469f-a165-70867728950e",
                vec!["sha256", "0f8fad5b-d9cb-469f-a165-70867728950e"],
            ),
            ("Stra\u{df}e7 \u{2014} \u{e9}t\u{e9}-42", vec!["stra\u{df}e7", "\u{e9}t\u{e9}-42"]),
        ] {
            assert_eq!(found_identifiers(text, false), found, "{text}");
        }
        assert_eq!(
            found_identifiers("HAT136-HAT039 credit_card_4421486", true),
            ["hat136-hat039", "hat136", "hat039", "credit_card_4421486", "4421486"]
        );
        assert_eq!(found_identifiers("#app-42", true), ["#app-42", "app-42"]);
        assert_eq!(
            found_identifiers(&"a1".repeat(200), false),
            Vec::<String>::new(),
            "too long for an identifier"
        );
    }

    #[test]
    fn common_words_are_sorted() {
        assert!(COMMON.is_sorted() && is_common("why") && !is_common("rejected"));
    }

    #[test]
    fn words_are_stemmed_and_split_at_camel_humps() {
        let mut found = Vec::new();
        for_each_word("creditScore: REJECTED, \u{c9}t\u{e9}s", &mut |word| found.push(word.to_owned()));
        assert_eq!(found, ["creditscore", "credit", "score", "rejected", "\u{e9}t\u{e9}s"]);
        for (word, stem) in [
            ("rejected", "reject"),
            ("rejects", "reject"),
            ("rejecting", "reject"),
            ("cancelled", "cancel"),
            ("cancellation", "cancel"),
            ("bags", "bag"),
            ("flies", "fli"),
            ("was", "was"),
            ("42s", "42s"),
            ("\u{e9}t\u{e9}s", "\u{e9}t\u{e9}s"),
            ("all", "all"),
            ("tall", "tal"),
        ] {
            assert_eq!(super::stem(word), stem, "{word}");
        }
        let mut found = Vec::new();
        for_each_gram("bags", &mut |gram| found.push(gram.to_owned()));
        for_each_gram("bag", &mut |gram| found.push(gram.to_owned()));
        assert_eq!(found, ["^bag", "bags", "ags$"]);
        found.clear();
        for_each_gram("\u{e9}t\u{e9}s", &mut |gram| found.push(gram.to_owned()));
        for_each_gram("\u{e9}t\u{e9}", &mut |gram| found.push(gram.to_owned()));
        assert_eq!(found, ["^\u{e9}t\u{e9}", "\u{e9}t\u{e9}s", "t\u{e9}s$"]);
    }

    /// Letters that are ASCII are read a byte at a time; a token ends where it ends letter by letter.
    #[test]
    fn ascii_tokens_end_where_letters_end() {
        let letters = ['a', '7', '-', '@', '.', '#', ' ', '\u{e9}', '\u{4e2d}', '\u{2013}'];
        let mut mixed = 1u64;
        for _ in 0..20_000 {
            let text: String = (0..8)
                .map(|_| {
                    mixed =
                        mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    letters[(mixed >> 33) as usize % letters.len()]
                })
                .collect();
            assert_eq!(token_bytes(&text, 0), token_bytes_by_letters(&text, 0), "{text:?}");
            let named = format!("#{text}");
            assert_eq!(token_bytes(&named, 1), token_bytes_by_letters(&named, 1), "{named:?}");
            let mut words = Vec::new();
            for_each_word(&text, &mut |word| words.push(word.to_owned()));
            let split =
                text.split(|letter: char| !letter.is_alphanumeric()).filter(|found| !found.is_empty());
            assert_eq!(words, split.map(str::to_lowercase).collect::<Vec<_>>(), "{text:?}");
        }
    }
}
