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

/// The values under names in a text, in order: passwords of addresses, other passwords and tokens, facts of
/// persons.
#[derive(Debug, Default)]
pub(super) struct NamedValues {
    pub(super) address_passwords: Vec<Range<usize>>,
    pub(super) secrets: Vec<Range<usize>>,
    pub(super) facts: Vec<Range<usize>>,
}

/// Bytes at which a name may be recognized: separators, and letters of the words that name a person's facts.
static ANCHORS: [bool; 256] = {
    let mut anchors = [false; 256];
    let all = b"=:bBsSpP";
    let mut at = 0;
    while at < all.len() {
        anchors[all[at] as usize] = true;
        at += 1;
    }
    anchors
};

/// Bytes that end an address's part before its path.
static ENDS_AUTHORITY: [bool; 256] = {
    let mut ends = [false; 256];
    let all = b" \t\n\r\x0c/?#\"'`<>,\\";
    let mut at = 0;
    while at < all.len() {
        ends[all[at] as usize] = true;
        at += 1;
    }
    ends
};

/// Finds values under names, in one pass over the text.
pub(super) fn find(text: &[u8], with_secrets: bool, with_facts: bool) -> NamedValues {
    let mut values = NamedValues::default();
    let (mut secrets_from, mut bare_end, mut facts_from) = (0, 0, 0);
    let mut next = 0;
    while let Some(at) = text
        .get(next..)
        .and_then(|rest| rest.iter().position(|byte| ANCHORS[usize::from(*byte)]).map(|found| next + found))
    {
        next = at + 1;
        if matches!(text[at], b'=' | b':') {
            if !with_secrets {
                continue;
            }
            if let Some(range) = address_password(text, at) {
                values.address_passwords.push(range);
            }
            if at >= secrets_from
                && let Some(range) = secret(text, at, &mut bare_end)
            {
                secrets_from = range.end;
                values.secrets.push(range);
            }
        } else if with_facts
            && let Some((word, fact)) = fact_word(text, at)
            && word.start >= facts_from
            && let Some(range) = value_of_fact(text, word.end, fact)
        {
            facts_from = range.end;
            values.facts.push(range);
        }
    }
    values
}

/// The password or token after the separator at a position.
fn secret(text: &[u8], at: usize, bare_end: &mut usize) -> Option<Range<usize>> {
    let (name, start) = name_before(text, at)?;
    let kind = secret_name(name)?;
    let (range, place) = value_after(text, at, start, name, bare_end)?;
    let value = text.get(range.clone())?;
    let is_token = || {
        (TOKEN_BYTES_MIN..=BARE_BYTES_MAX).contains(&value.len())
            && value.iter().all(|byte| is_alnum(*byte) || b"-_.+/=~".contains(byte))
            && value.iter().any(u8::is_ascii_digit)
            && value.iter().any(u8::is_ascii_alphabetic)
    };
    let ends_line = matches!(text.get(range.end), None | Some(b'\n' | b'\r'));
    (is_secret_value(value, place, ends_line) && (kind == SecretName::Password || is_token()))
        .then_some(range)
}

/// The name before a separator, and its position.
fn name_before(text: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let head = text.get(at.saturating_sub(NAME_BYTES_MAX + 4)..at)?;
    let is_gap = |byte: &&u8| matches!(byte, b'"' | b'\'' | b'`' | b' ' | b'\\');
    let gap = head.iter().rev().take(4).take_while(is_gap).count();
    let head = head.get(..head.len() - gap)?;
    let is_name = |byte: &&u8| is_alnum(**byte) || matches!(byte, b'_' | b'-' | b'.');
    let len = head.iter().rev().take_while(is_name).count();
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
        let ends = |byte: &u8| {
            byte.is_ascii_whitespace()
                || matches!(byte, b',' | b';' | b'&' | b'"' | b'\'' | b'`' | b'<' | b'>' | b'|')
        };
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

static SECRET_WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = ["password", "passwd", "secret", "api_key", "apikey", "token"];
    AhoCorasick::builder().ascii_case_insensitive(true).build(words).ok()
});
/// The length of the shortest of them.
const SECRET_WORD_BYTES_MIN: usize = 5;

fn says_change_me(value: &[u8]) -> bool {
    memchr::memchr2_iter(b'c', b'C', value)
        .any(|at| value.get(at..).is_some_and(|rest| starts_with(rest, b"changeme")))
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
        || says_change_me(value);
    let names_a_secret = value.len() >= SECRET_WORD_BYTES_MIN
        && !has(u8::is_ascii_digit)
        && SECRET_WORDS.as_ref().is_some_and(|words| words.is_match(value));
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

/// The password of an address, `scheme://user:password@host`, whose first colon is at a position.
fn address_password(text: &[u8], at: usize) -> Option<Range<usize>> {
    let is_address = text.get(at..)?.starts_with(b"://") && before(text, at).is_some_and(is_alnum);
    if !is_address {
        return None;
    }
    let from = at + 3;
    let rest = text.get(from..text.len().min(from + AUTHORITY_BYTES_MAX))?;
    let ends = |byte: &u8| ENDS_AUTHORITY[usize::from(*byte)];
    let authority = rest.get(..rest.iter().position(ends).unwrap_or(rest.len()))?;
    let host = memchr::memrchr(b'@', authority)?;
    let colon = memchr::memchr(b':', authority.get(..host)?)?;
    let range = from + colon + 1..from + host;
    let value = text.get(range.clone())?;
    is_secret_value(value, ValuePlace::Quoted, true).then_some(range)
}

/// A number or date of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PersonFact {
    SocialSecurity,
    Passport,
    Birth,
}

/// Words that may stand between a fact's name and its value.
const BETWEEN: [&[u8]; 14] = [
    b"number", b"no", b"nr", b"num", b"is", b"was", b"on", b"date", b"day", b"of", b"the", b"id", b"s",
    b"code",
];
const MONTHS: [&[u8; 3]; 12] =
    [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
/// Maximum distance between a fact's name and its value, in bytes.
const BETWEEN_BYTES_MAX: usize = 32;

/// The word at an anchor that names a fact of a person: `ssn`, `social security`, `passport`, `birth`, `born`,
/// and `dob`, which is recognized at its end.
fn fact_word(text: &[u8], at: usize) -> Option<(Range<usize>, PersonFact)> {
    let rest = text.get(at..)?;
    let begins = |word: &[u8]| rest.len() >= word.len() && starts_with(rest, word);
    let (start, len, fact) = match text[at].to_ascii_lowercase() {
        // `dobirth` and `doborn` hold `dob`, which ends first.
        b'b' if at >= 2 && text[at - 2..at].eq_ignore_ascii_case(b"do") => (at - 2, 3, PersonFact::Birth),
        // Also within a word: `dateofbirth`.
        b'b' if begins(b"birth") => return Some((at..at + 5, PersonFact::Birth)),
        b'b' if begins(b"born") => (at, 4, PersonFact::Birth),
        b's' if begins(b"ssn") => (at, 3, PersonFact::SocialSecurity),
        b's' if begins(b"social security") || begins(b"social_security") => {
            (at, 15, PersonFact::SocialSecurity)
        }
        b'p' if begins(b"passport") => (at, 8, PersonFact::Passport),
        _ => return None,
    };
    let is_part = before(text, start).is_some_and(is_alnum);
    (!is_part).then_some((start..start + len, fact))
}

pub(super) fn value_of_fact(text: &[u8], from: usize, fact: PersonFact) -> Option<Range<usize>> {
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
