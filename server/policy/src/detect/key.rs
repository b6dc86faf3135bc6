//! Finds self-describing keys: provider prefixes, JSON Web Tokens, values after `Bearer`, private keys.

use std::ops::Range;
use std::sync::LazyLock;

use super::{begins, class, is_alnum};

/// Maximum length of a key over two lines, in bytes.
const WRAPPED_BYTES_MAX: usize = 320;
/// Maximum number of attempts to read a key over two lines, in each run of characters.
const WRAPPED_ATTEMPTS_MAX: u32 = 4;
/// Maximum length of a private key, in bytes.
const PRIVATE_BYTES_MAX: usize = 16 << 10;
/// Minimum number of different characters; fewer make an example: `sk-xxxxxxxx`.
const DISTINCT_MIN: u32 = 7;

/// Tables of key forms: prefix, characters after it, least and greatest number of them, source. The first is
/// generated from the rules of Betterleaks; the second holds what it lacks.
const TABLES: [&str; 2] = [include_str!("../../rules/betterleaks.tsv"), include_str!("../../rules/own.tsv")];

/// A key's form.
#[derive(Debug)]
struct KeyForm {
    prefix: &'static [u8],
    /// Index of its characters in [`KeyForms::alphabets`].
    alphabet: usize,
    /// Limits of the number of characters after the prefix.
    least: usize,
    most: usize,
}

/// Number of a prefix's bytes by which forms are looked up; no prefix is shorter.
const LOOKUP_BYTES: usize = 3;

/// All forms, sorted by the first bytes of their prefixes.
#[derive(Debug)]
struct KeyForms {
    forms: Vec<KeyForm>,
    /// For each beginning of prefixes, in order: its bytes as a number, and the range of its forms.
    heads: Vec<(u32, Range<usize>)>,
    /// Bit sets over ASCII.
    alphabets: Vec<u128>,
    /// A bit for each [`filter_bit`] of a beginning. Most words begin otherwise.
    filter: [u64; FILTER_BITS / 64],
}

/// Number of bits that sort out most beginnings.
const FILTER_BITS: usize = 4096;

/// The bit of a beginning: the upper bits of a product (Fibonacci hashing).
fn filter_bit(head: u32) -> usize {
    (head.wrapping_mul(0x9e37_79b1) >> 20) as usize % FILTER_BITS
}

static FORMS: LazyLock<KeyForms> = LazyLock::new(|| KeyForms::read(&TABLES));

impl KeyForms {
    /// Reads tables; lines that are no form are left out (a test finds them).
    fn read(tables: &[&'static str]) -> Self {
        let (mut forms, mut alphabets) = (Vec::new(), Vec::new());
        let lines = tables.iter().flat_map(|table| table.lines());
        forms.extend(lines.filter_map(|line| KeyForm::read(line, &mut alphabets)));
        // A longer prefix precedes its own prefixes.
        forms.sort_by_key(|form: &KeyForm| (head(form.prefix), std::cmp::Reverse(form.prefix.len())));
        let mut heads: Vec<(u32, Range<usize>)> = Vec::new();
        for (at, form) in forms.iter().enumerate() {
            let Some(head) = head(form.prefix) else { continue };
            match heads.last_mut().filter(|(last, _)| *last == head) {
                Some((_, range)) => range.end = at + 1,
                None => heads.push((head, at..at + 1)),
            }
        }
        let mut filter = [0; FILTER_BITS / 64];
        for bit in heads.iter().map(|(head, _)| filter_bit(*head)) {
            filter[bit / 64] |= 1 << (bit % 64);
        }
        Self { forms, heads, alphabets, filter }
    }

    fn may_begin(&self, head: u32) -> bool {
        let bit = filter_bit(head);
        self.filter[bit / 64] & 1 << (bit % 64) != 0
    }

    /// The forms whose prefixes begin a text.
    fn beginning<'s>(&'s self, text: &'s [u8]) -> impl Iterator<Item = &'s KeyForm> {
        let found = head(text)
            .filter(|head| self.may_begin(*head))
            .and_then(|head| self.heads.binary_search_by_key(&head, |(head, _)| *head).ok());
        let range = found.and_then(|at| self.heads.get(at)).map_or(0..0, |(_, range)| range.clone());
        let forms = self.forms.get(range).unwrap_or_default();
        forms.iter().filter(|form| text.starts_with(form.prefix))
    }
}

/// The bytes by which a text's forms are looked up.
fn head(text: &[u8]) -> Option<u32> {
    let [first, second, third, ..] = text else { return None };
    Some(u32::from_be_bytes([0, *first, *second, *third]))
}

impl KeyForm {
    fn read(line: &'static str, alphabets: &mut Vec<u128>) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let mut fields = line.split('\t');
        let (prefix, letters) = (fields.next()?.as_bytes(), fields.next()?.as_bytes());
        let (least, most) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (mut of, mut at) = (0u128, 0);
        while let Some(&byte) = letters.get(at) {
            let last = match letters.get(at + 1..at + 3) {
                Some(&[b'-', last]) => last,
                _ => byte,
            };
            (byte..=last).for_each(|byte| of |= 1 << (byte & 127));
            at += if last == byte { 1 } else { 3 };
        }
        let alphabet = alphabets.iter().position(|known| *known == of).unwrap_or_else(|| {
            alphabets.push(of);
            alphabets.len() - 1
        });
        (prefix.len() >= LOOKUP_BYTES).then_some(Self { prefix, alphabet, least, most })
    }
}

/// The stretch of one alphabet's characters that was measured last.
#[derive(Debug, Clone, Copy)]
struct AlphabetStretch {
    start: usize,
    end: usize,
    /// Whether its end was examined and did not look random; then no later part of it does.
    is_plain: bool,
}

/// What a search for keys remembers of a text, so that it measures each stretch once.
#[derive(Debug, Default)]
pub(super) struct KeyScan {
    stretches: Vec<AlphabetStretch>,
    /// The end of the run in which a key over two lines was tried, and how often.
    wrapped_run: usize,
    attempts: u32,
}

impl KeyScan {
    fn stretch(&mut self, text: &[u8], alphabet: usize, from: usize) -> Option<&mut AlphabetStretch> {
        let alphabets = &FORMS.alphabets;
        if self.stretches.is_empty() {
            self.stretches =
                vec![AlphabetStretch { start: usize::MAX, end: 0, is_plain: false }; alphabets.len()];
        }
        let of = alphabets.get(alphabet)?;
        let known = self.stretches.get_mut(alphabet)?;
        if !(known.start <= from && from < known.end) {
            let rest = text.get(from..)?;
            let len = rest.iter().take_while(|byte| byte.is_ascii() && of >> **byte & 1 == 1).count();
            *known = AlphabetStretch { start: from, end: from + len, is_plain: false };
        }
        Some(known)
    }

    /// The end of the provider key that begins here.
    pub(super) fn provider(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let rest = text.get(at..)?;
        for form in FORMS.beginning(rest) {
            let from = at + form.prefix.len();
            let Some(stretch) = self.stretch(text, form.alphabet, from) else { continue };
            let mut end = stretch.end;
            while end > from && end + 3 > stretch.end && text[end - 1] == b'.' {
                end -= 1;
            }
            let goes_on = text.get(stretch.end).is_some_and(|byte| is_alnum(*byte));
            if stretch.is_plain || goes_on || !(form.least..=form.most).contains(&(end - from)) {
                continue;
            }
            let body = text.get(from..end)?;
            let kinds = body.iter().fold(0, |kinds, byte| kinds | class::OF[usize::from(*byte)]);
            let has = |kind: u8| kinds & kind != 0;
            let has_lower = has(class::LOWER);
            // Capitals alone are a key after capitals: `AKIA...`.
            let is_capital = !has_lower && form.prefix.iter().all(u8::is_ascii_uppercase);
            let is_mixed =
                has(class::DIGIT) || is_capital || has(class::UPPER) && has_lower && distinct(body) >= 12;
            if is_mixed && distinct(body) >= DISTINCT_MIN {
                return Some(end);
            }
            // Capitals are judged by the prefix, too.
            stretch.is_plain = has_lower;
        }
        None
    }

    /// The end of a provider key that begins here, in a run that ends at `run_end`, and goes on after a line
    /// break, as terminals wrap it. `found`: the end of the part before the break, if that part is a key.
    pub(super) fn wrapped(
        &mut self,
        text: &[u8],
        at: usize,
        run_end: usize,
        found: Option<usize>,
    ) -> Option<usize> {
        let skip = match text.get(run_end..)? {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => return None,
        };
        let head = text.get(at..run_end).filter(|head| head.len() <= WRAPPED_BYTES_MAX)?;
        if found.is_some_and(|end| end != run_end) {
            return None;
        }
        FORMS.beginning(head).next()?;
        // The first prefix of a run covers those within its key, so few attempts suffice.
        if self.wrapped_run != run_end {
            (self.wrapped_run, self.attempts) = (run_end, 0);
        }
        self.attempts += 1;
        if self.attempts > WRAPPED_ATTEMPTS_MAX {
            return None;
        }
        let tail = text.get(run_end + skip..text.len().min(run_end + skip + WRAPPED_BYTES_MAX))?;
        let is_part = |byte: &u8| is_alnum(*byte) || matches!(byte, b'-' | b'_' | b'.' | b'=' | b'+' | b'/');
        let tail = tail.get(..tail.iter().take_while(|byte| is_part(byte)).count())?;
        // The next line's first word is no part of a key.
        let has = |of: fn(&u8) -> bool| tail.iter().any(of);
        if tail.len() < 6 || !has(u8::is_ascii_digit) || !has(u8::is_ascii_alphabetic) || distinct(tail) < 6 {
            return None;
        }
        let joined = [head, tail].concat();
        let end = Self::default().provider(&joined, 0).filter(|end| *end > head.len())?;
        Some(at + end + skip)
    }
}

/// The end of the provider key that begins here.
pub(super) fn provider(text: &[u8], at: usize) -> Option<usize> {
    KeyScan::default().provider(text, at)
}

/// Whether a byte belongs to base64url.
fn is_url_base64(byte: u8) -> bool {
    is_alnum(byte) || matches!(byte, b'-' | b'_')
}

/// The number of different characters.
pub(super) fn distinct(text: &[u8]) -> u32 {
    text.iter().fold(0u128, |seen, byte| seen | 1 << (byte & 127)).count_ones()
}

/// The end of a possible JSON Web Token that begins here, and whether it is valid.
pub(super) fn jwt(text: &[u8], at: usize) -> (usize, bool) {
    if !text.get(at..).is_some_and(|rest| rest.starts_with(b"eyJ")) {
        return (at, false);
    }
    let part = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|byte| is_url_base64(**byte)).count()
    };
    let (mut end, mut parts) = (at + part(at), 1);
    while parts < 5 && text.get(end) == Some(&b'.') {
        let len = part(end + 1);
        if len == 0 && parts != 2 {
            break;
        }
        end += 1 + len;
        parts += 1;
    }
    (end, parts >= 3 && end - at >= 36)
}

/// The value after the name of an authorization scheme that ends at `end`.
pub(super) fn after_scheme(text: &[u8], start: usize, end: usize) -> Option<Range<usize>> {
    let ends_with = |name: &[u8]| {
        let from = end.checked_sub(name.len())?;
        let is_it = from >= start && text.get(from..end)?.eq_ignore_ascii_case(name) && begins(text, from);
        is_it.then_some(())
    };
    let is_basic = ends_with(b"basic").is_some();
    if !is_basic {
        ends_with(b"bearer")?;
    }
    let rest = text.get(end..)?;
    let blanks = rest.iter().take(8).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    if blanks == 0 {
        return None;
    }
    let from = end + blanks;
    let is_token =
        |byte: &u8| is_alnum(*byte) || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
    let token = text.get(from..)?;
    let token = token.get(..token.iter().take(4096).take_while(|byte| is_token(byte)).count())?;
    let len = token.len() - token.iter().rev().take_while(|byte| **byte == b'.').count();
    let token = token.get(..len)?;
    let is_random = token.iter().any(u8::is_ascii_digit) && distinct(token) >= DISTINCT_MIN;
    (len >= 16 && is_random || is_basic && len >= 8 && is_user_and_password(token))
        .then_some(from..from + len)
}

/// Whether base64 decodes to `user:password`.
fn is_user_and_password(token: &[u8]) -> bool {
    use base64::Engine as _;
    let decoded = base64::engine::general_purpose::STANDARD.decode(token).unwrap_or_default();
    decoded.contains(&b':') && decoded.iter().all(|byte| (0x20..0x7f).contains(byte))
}

/// The private key (RFC 7468) that begins here. Without an end marker it extends as far as it looks like a
/// key.
pub(super) fn private(text: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = text.get(at..text.len().min(at + PRIVATE_BYTES_MAX))?;
    let label = rest.get(b"-----BEGIN".len()..rest.len().min(64))?;
    let label = label.get(..memchr::memmem::find(label, b"-----")?)?;
    // A blank or a key type precedes it.
    memchr::memmem::find(label, b"PRIVATE KEY").filter(|place| *place > 0)?;
    let head = b"-----BEGIN".len() + label.len() + 5;
    let body = rest.get(head..)?;
    let end = match memchr::memmem::find(body, b"-----END") {
        Some(end) => {
            let tail = body.get(end + 8..body.len().min(end + 72))?;
            head + end + 8 + memchr::memmem::find(tail, b"-----").map_or(0, |dashes| dashes + 5)
        }
        None => {
            let is_part = |byte: &u8| is_alnum(*byte) || b"+/=\n\r\t \\-:,".contains(byte);
            head + body.iter().take_while(|byte| is_part(byte)).count()
        }
    };
    Some(at..at + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that cannot be read would be a provider without a rule.
    #[test]
    fn every_line_of_the_tables_is_a_form() {
        let lines = TABLES.iter().flat_map(|table| table.lines()).filter(|line| !line.starts_with('#'));
        assert_eq!(lines.count(), FORMS.forms.len());
        assert!(FORMS.forms.iter().all(|form| form.least <= form.most && form.prefix.len() >= LOOKUP_BYTES));
        assert!(FORMS.alphabets.len() < 64, "{} alphabets", FORMS.alphabets.len());
    }
}
