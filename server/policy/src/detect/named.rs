//! Finds values by the name before them: passwords in configurations, code and addresses, and numbers of
//! persons.
//!
//! References (`${DB_PASSWORD}`, `os.environ[...]`), types, examples and sentences under such a name stay: they
//! hide nothing, and a reader needs them.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::key::distinct;
use super::{before, is_alnum};
use crate::secret_names::{SecretName, secret_name};

/// Maximum length of a name, of a value without quotes, and of one in quotes, in bytes.
const NAME_BYTES_MAX: usize = 48;
const BARE_BYTES_MAX: usize = 128;
const QUOTED_BYTES_MAX: usize = 256;
/// Maximum length of an address's part before its host, in bytes.
const AUTHORITY_BYTES_MAX: usize = 320;
/// Minimum length of a password, in bytes.
const PASSWORD_BYTES_MIN: usize = 4;
/// Minimum length of a token without quotes, in bytes.
const TOKEN_BYTES_MIN: usize = 12;

/// Values that stand for a secret in examples, types and forms.
const EXAMPLES: [&[u8]; 30] = [
    b"string",
    b"text",
    b"none",
    b"null",
    b"true",
    b"false",
    b"undefined",
    b"required",
    b"optional",
    b"changeme",
    b"change-me",
    b"change_me",
    b"example",
    b"redacted",
    b"hidden",
    b"masked",
    b"placeholder",
    b"password",
    b"passwd",
    b"secret",
    b"token",
    b"pass",
    b"object",
    b"bytes",
    b"varchar",
    b"empty",
    b"missing",
    b"invalid",
    b"expired",
    b"unknown",
];

/// Where a named value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValuePlace {
    /// In quotes, or the whole text of a JSON member.
    Quoted,
    /// In an environment, a query or a connection string: any word is a value.
    Assigned,
    /// In code or prose.
    Bare,
}

/// Finds passwords and tokens after their names.
pub(super) fn secrets(text: &[u8], mut found: impl FnMut(Range<usize>)) {
    let (mut from, mut bare_end) = (0, 0);
    for at in memchr::memchr2_iter(b'=', b':', text) {
        if at < from {
            continue;
        }
        let Some((name, start)) = name_before(text, at) else { continue };
        let name_text = std::str::from_utf8(name).unwrap_or_default();
        let Some(kind) = secret_name(name_text) else { continue };
        let Some((range, place)) = value_after(text, at, start, name, &mut bare_end) else { continue };
        let value = text.get(range.clone()).unwrap_or_default();
        let is_token = || {
            (TOKEN_BYTES_MIN..=BARE_BYTES_MAX).contains(&value.len())
                && value.iter().all(|byte| is_alnum(*byte) || b"-_.+/=~".contains(byte))
                && value.iter().any(u8::is_ascii_digit)
                && value.iter().any(u8::is_ascii_alphabetic)
        };
        let ends_line = matches!(text.get(range.end), None | Some(b'\n' | b'\r'));
        if is_secret_value(value, place, ends_line) && (kind == SecretName::Password || is_token()) {
            from = range.end;
            found(range);
        }
    }
}

/// The name before a separator, and its position.
fn name_before(text: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let head = text.get(at.saturating_sub(NAME_BYTES_MAX + 4)..at)?;
    let gap = head.iter().rev().take(4).take_while(|byte| b"\"'` \\".contains(byte)).count();
    let head = head.get(..head.len() - gap)?;
    let len = head.iter().rev().take_while(|byte| is_alnum(**byte) || b"_-.".contains(byte)).count();
    let name = head.get(head.len() - len..)?;
    (len > 0 && len <= NAME_BYTES_MAX).then_some((name, at - gap - len))
}

/// The value after a separator.
fn value_after(
    text: &[u8],
    at: usize,
    name_at: usize,
    name: &[u8],
    bare_end: &mut usize,
) -> Option<(Range<usize>, ValuePlace)> {
    let rest = text.get(at + 1..)?;
    // `==` compares, `=>` and `:=` assign.
    let skip = match rest {
        [b'=', ..] => return None,
        [b'>', ..] if text[at] == b'=' => 1,
        _ => 0,
    };
    let blanks = rest.get(skip..)?.iter().take(4).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let rest = rest.get(skip + blanks..)?;
    let from = at + 1 + skip + blanks;
    let quote = match rest {
        [b'\\', quote @ (b'"' | b'\''), ..] => Some((*quote, 2)),
        [quote @ (b'"' | b'\'' | b'`'), ..] => Some((*quote, 1)),
        _ => None,
    };
    if let Some((quote, width)) = quote {
        let body = rest.get(width..rest.len().min(width + QUOTED_BYTES_MAX))?;
        let end = body.iter().position(|byte| *byte == quote || *byte == b'\n')?;
        let escape = usize::from(width == 2 && end > 0 && body.get(end - 1) == Some(&b'\\'));
        let is_closed = body.get(end) == Some(&quote);
        let range = from + width..from + width + end - escape;
        return is_closed.then_some((range, ValuePlace::Quoted));
    }
    if *bare_end <= from {
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b",;&\"'`<>|".contains(byte);
        let len = rest.iter().position(ends).unwrap_or(rest.len());
        *bare_end = from + len;
    }
    let mut end = *bare_end;
    let is_query = text[at] == b'=' && matches!(before(text, name_at), Some(b'?' | b'&' | b';'));
    if is_query && end - from <= BARE_BYTES_MAX {
        // A fragment ends a query.
        end = memchr::memchr(b'#', text.get(from..end)?).map_or(end, |at| from + at);
    }
    while end > from && matches!(text[end - 1], b')' | b']' | b'}' | b'.' | b'!' | b'?' | b'\\') {
        // A sign at the end of a line belongs to the value: `Sommer2024!`.
        let is_value_end = text[end - 1] == b'!' && end == *bare_end;
        if is_value_end {
            break;
        }
        end -= 1;
    }
    let is_environment = name.iter().any(u8::is_ascii_uppercase) && !name.iter().any(u8::is_ascii_lowercase);
    let place = match text[at] == b'=' && blanks == 0 && (is_environment || is_query) {
        true => ValuePlace::Assigned,
        false => ValuePlace::Bare,
    };
    (end > from && end - from <= BARE_BYTES_MAX).then_some((from..end, place))
}

static CHANGE_ME: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| words(&["changeme"]));
static SECRET_WORDS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| words(&["password", "passwd", "secret", "api_key", "apikey", "token"]));

/// A search for words regardless of case.
fn words(words: &[&str]) -> Option<AhoCorasick> {
    AhoCorasick::builder().ascii_case_insensitive(true).build(words).ok()
}

fn holds(value: &[u8], words: &Option<AhoCorasick>) -> bool {
    words.as_ref().is_some_and(|words| words.is_match(value))
}

fn starts_with(value: &[u8], begin: &[u8]) -> bool {
    value.get(..begin.len()).is_some_and(|head| head.eq_ignore_ascii_case(begin))
}

/// Whether the text under a secret name is a secret: no reference, type, example or sentence.
pub(super) fn is_secret_value(value: &[u8], place: ValuePlace, ends_line: bool) -> bool {
    let value = value.trim_ascii();
    if !(PASSWORD_BYTES_MIN..=QUOTED_BYTES_MAX).contains(&value.len()) || distinct(value) < 3 {
        return false;
    }
    let has = |of: fn(&u8) -> bool| value.iter().any(of);
    let is_reference = match value {
        [b'<' | b'{' | b'[' | b'*' | b'(', ..] | [b'$', b'{' | b'(', ..] | [b'%', b'(', ..] => true,
        [b'$', rest @ ..] => rest.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_'),
        [b'%', .., b'%'] => true,
        _ => false,
    };
    // `sk-xxxxxxxx`, `****`.
    let is_filled = value.windows(6).any(|part| part.iter().all(|byte| *byte == part[0]));
    let is_example = is_filled
        || EXAMPLES.iter().any(|example| value.eq_ignore_ascii_case(example))
        || starts_with(value, b"your")
        || starts_with(value, b"annals-redacted")
        || holds(value, &CHANGE_ME);
    let names_a_secret = !has(u8::is_ascii_digit) && holds(value, &SECRET_WORDS);
    let words = value.split(|byte| *byte == b' ').count();
    let is_sentence = words > 6 || words > 2 && value.ends_with(b".");
    if is_reference || is_example || names_a_secret || is_sentence {
        return false;
    }
    if place == ValuePlace::Quoted {
        return true;
    }
    // A call, an index or a pattern.
    if value.iter().any(|byte| b"()[]{}".contains(byte)) {
        return false;
    }
    if place == ValuePlace::Assigned {
        return true;
    }
    let is_word = value.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'.'));
    let is_lower = value.iter().all(u8::is_ascii_lowercase);
    !is_word || is_lower && ends_line && value.len() >= 8
}

/// The password of an address: `scheme://user:password@host`.
pub(super) fn address_passwords(text: &[u8], mut found: impl FnMut(Range<usize>)) {
    for at in memchr::memmem::find_iter(text, b"://") {
        if before(text, at).is_none_or(|byte| !is_alnum(byte)) {
            continue;
        }
        let from = at + 3;
        let rest = text.get(from..text.len().min(from + AUTHORITY_BYTES_MAX)).unwrap_or_default();
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b"/?#\"'`<>,\\".contains(byte);
        let authority = rest.get(..rest.iter().position(ends).unwrap_or(rest.len())).unwrap_or_default();
        let Some(host) = memchr::memrchr(b'@', authority) else { continue };
        let Some(colon) = memchr::memchr(b':', authority.get(..host).unwrap_or_default()) else { continue };
        let range = from + colon + 1..from + host;
        let value = text.get(range.clone()).unwrap_or_default();
        if is_secret_value(value, ValuePlace::Quoted, true) {
            found(range);
        }
    }
}

/// A number or date of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PersonFact {
    SocialSecurity,
    Passport,
    Birth,
}

/// Words that name a fact of a person.
const FACTS: [(&str, PersonFact); 7] = [
    ("ssn", PersonFact::SocialSecurity),
    ("social security", PersonFact::SocialSecurity),
    ("social_security", PersonFact::SocialSecurity),
    ("passport", PersonFact::Passport),
    ("birth", PersonFact::Birth),
    ("dob", PersonFact::Birth),
    ("born", PersonFact::Birth),
];
/// Words that may stand between a fact's name and its value.
const BETWEEN: [&[u8]; 14] = [
    b"number", b"no", b"nr", b"num", b"is", b"was", b"on", b"date", b"day", b"of", b"the", b"id", b"s",
    b"code",
];
const MONTHS: [&[u8; 3]; 12] =
    [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
/// Maximum distance between a fact's name and its value, in bytes.
const BETWEEN_BYTES_MAX: usize = 32;

static FACT_WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| words(&FACTS.map(|(word, _)| word)));

/// Finds facts of persons after their names.
pub(super) fn person_facts(text: &[u8], mut found: impl FnMut(Range<usize>)) {
    let mut from = 0;
    for word in FACT_WORDS.iter().flat_map(|words| words.find_iter(text)) {
        let Some((name, fact)) = FACTS.get(word.pattern().as_usize()) else { continue };
        let is_part = before(text, word.start()).is_some_and(is_alnum) && *name != "birth";
        if word.start() < from || is_part {
            continue;
        }
        if let Some(range) = value_of_fact(text, word.end(), *fact) {
            from = range.end;
            found(range);
        }
    }
}

fn value_of_fact(text: &[u8], from: usize, fact: PersonFact) -> Option<Range<usize>> {
    let limit = text.len().min(from + BETWEEN_BYTES_MAX);
    let mut at = from;
    while at < limit {
        let byte = text[at];
        if is_alnum(byte) {
            if let Some(end) = fact_at(text, at, fact) {
                return Some(at..end);
            }
            let len = text.get(at..limit)?.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
            let word = text.get(at..at + len)?;
            // A name's own end: `passportNumber`, `birthdate`.
            if len == 0 || !BETWEEN.iter().any(|known| word.eq_ignore_ascii_case(known)) {
                return None;
            }
            at += len;
        } else if b" \t\"'`:=#_-.(\\".contains(&byte) {
            at += 1;
        } else {
            return None;
        }
    }
    None
}

/// The end of a fact's value that begins here.
pub(super) fn fact_at(text: &[u8], at: usize, fact: PersonFact) -> Option<usize> {
    let rest = text.get(at..text.len().min(at + 40))?;
    let end = match fact {
        PersonFact::SocialSecurity => social_security(rest)?,
        PersonFact::Passport => passport(rest)?,
        PersonFact::Birth => date(rest)?,
    };
    let goes_on = rest.get(end).is_some_and(|byte| is_alnum(*byte));
    (!goes_on).then_some(at + end)
}

fn digits(text: &[u8], from: usize) -> usize {
    text.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count()
}

fn social_security(text: &[u8]) -> Option<usize> {
    match digits(text, 0) {
        9 => Some(9),
        3 => {
            let separator = *text.get(3).filter(|byte| matches!(byte, b'-' | b' ' | b'.'))?;
            let is_one = digits(text, 4) == 2 && text.get(6) == Some(&separator) && digits(text, 7) == 4;
            is_one.then_some(11)
        }
        _ => None,
    }
}

fn passport(text: &[u8]) -> Option<usize> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    let len = text.iter().take_while(|byte| is_part(byte)).count();
    let count = text.iter().take(len).filter(|byte| byte.is_ascii_digit()).count();
    ((6..=10).contains(&len) && count >= 5).then_some(len)
}

fn date(text: &[u8]) -> Option<usize> {
    let month = |from: usize| {
        let len = text.iter().skip(from).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let head = text.get(from..from + 3)?;
        (len >= 3 && MONTHS.iter().any(|month| head.eq_ignore_ascii_case(*month))).then_some(from + len)
    };
    let gap = |from: usize| {
        from + text.iter().skip(from).take(2).take_while(|byte| matches!(byte, b' ' | b',' | b'.')).count()
    };
    let year = |from: usize| (digits(text, from) == 4).then_some(from + 4);
    match digits(text, 0) {
        0 => {
            let day = gap(month(0)?);
            let len = Some(digits(text, day)).filter(|len| (1..=2).contains(len))?;
            year(gap(day + len))
        }
        4 => {
            let separator = *text.get(4).filter(|byte| matches!(byte, b'-' | b'/' | b'.'))?;
            let len = Some(digits(text, 5)).filter(|len| (1..=2).contains(len))?;
            let day = digits(text, 6 + len);
            (text.get(5 + len) == Some(&separator) && (1..=2).contains(&day)).then_some(6 + len + day)
        }
        len @ 1..=2 => match text.get(len)? {
            separator @ (b'-' | b'/' | b'.') => {
                let second = Some(digits(text, len + 1)).filter(|len| (1..=2).contains(len))?;
                let from = len + 1 + second;
                let last = digits(text, from + 1);
                (text.get(from) == Some(separator) && matches!(last, 2 | 4)).then_some(from + 1 + last)
            }
            _ => {
                let ordinal = text.get(len..len + 2)?;
                let is_ordinal = [b"st", b"nd", b"rd", b"th"].iter().any(|end| ordinal == *end);
                year(gap(month(gap(if is_ordinal { len + 2 } else { len }))?))
            }
        },
        _ => None,
    }
}
