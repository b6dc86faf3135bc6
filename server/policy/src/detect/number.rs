//! Finds numbers in groups: payment cards and phone numbers; and IBANs.

use std::ops::Range;

use super::{before, begins, is_alnum};

/// Maximum number of groups, and of digits, in a number.
const GROUPS_MAX: usize = 8;
const DIGITS_MAX: usize = 20;

/// Digits in groups, as people write numbers: `4111 1111 1111 1111`, `(415) 555-0100`.
#[derive(Debug)]
pub(super) struct DigitGroups {
    all: [DigitGroup; GROUPS_MAX],
    count: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct DigitGroup {
    start: usize,
    end: usize,
    /// The separator before it: a blank, `-`, `.`, `/`, `)` for a bracket and what may follow it, `(` for an
    /// opening one; 0 for the first group.
    separator: u8,
}

impl DigitGroup {
    fn len(&self) -> usize {
        self.end - self.start
    }
}

impl DigitGroups {
    /// Reads the groups from a digit on; `None` if the number is too long.
    pub(super) fn read(text: &[u8], at: usize) -> Option<Self> {
        let mut groups = Self { all: Default::default(), count: 0 };
        let (mut from, mut separator, mut digits) = (at, 0, 0);
        while groups.count < GROUPS_MAX {
            let mut end = from;
            while end < text.len() && text[end].is_ascii_digit() && end - from <= DIGITS_MAX {
                end += 1;
            }
            digits += end - from;
            if end == from || digits > DIGITS_MAX {
                break;
            }
            groups.all[groups.count] = DigitGroup { start: from, end, separator };
            groups.count += 1;
            let rest = text.get(end..).unwrap_or_default();
            let skip = match rest {
                [b')', b' ' | b'-' | b'.' | b'/', digit, ..] if digit.is_ascii_digit() => 2,
                [b')', digit, ..] if digit.is_ascii_digit() => 1,
                [b' ', b'(', digit, ..] if digit.is_ascii_digit() => 2,
                [b' ' | b'-' | b'.' | b'/', digit, ..] if digit.is_ascii_digit() => 1,
                _ => break,
            };
            separator = if skip == 2 && rest[1] == b'(' { b'(' } else { rest[0] };
            from = end + skip;
        }
        (groups.count > 0).then_some(groups)
    }

    fn groups(&self) -> &[DigitGroup] {
        self.all.get(..self.count).unwrap_or_default()
    }

    /// The end of the card number that begins here.
    pub(super) fn card(&self, text: &[u8]) -> Option<usize> {
        let groups = self.groups();
        let first = groups.first()?;
        // Not the end of a longer chain: `1.4111...`, `7-4111-...`.
        if first.start >= 2 && matches!(text[first.start - 1], b'.' | b'-') && is_alnum(text[first.start - 2])
        {
            return None;
        }
        let parts = match first.len() {
            12.. => 1,
            4 => {
                let separator = groups.get(1)?.separator;
                let len = |at: usize| groups.get(at).map_or(0, DigitGroup::len);
                let parts = match (len(1), len(2), len(3), len(4)) {
                    (6, 4 | 5, _, _) => 3,
                    (4, 4, 4, 3) => 5,
                    (4, 4, 4, _) => 4,
                    _ => return None,
                };
                let same = groups.iter().take(parts).skip(1).all(|group| group.separator == separator);
                if !same || !matches!(separator, b' ' | b'-') {
                    return None;
                }
                parts
            }
            _ => return None,
        };
        let fits = |parts: usize| {
            let end = groups.get(parts - 1)?.end;
            let (mut digits, mut count) = ([0; DIGITS_MAX], 0);
            for byte in groups.iter().take(parts).flat_map(|group| &text[group.start..group.end]) {
                *digits.get_mut(count)? = *byte;
                count += 1;
            }
            let digits = digits.get(..count)?;
            let goes_on = match text.get(end..).unwrap_or_default() {
                [byte, ..] if is_alnum(*byte) => true,
                [b'-' | b'.', digit, ..] => digit.is_ascii_digit(),
                _ => false,
            };
            (!goes_on && is_issued(digits) && luhn(digits)).then_some(end)
        };
        fits(parts).or_else(|| if parts == 5 { fits(4) } else { None })
    }

    /// The range of the phone number that begins with the first group. `named`: a name marks it as one.
    pub(super) fn phone(
        &self,
        text: &[u8],
        named: bool,
        letterless: &mut LetterlessStretch,
    ) -> Option<Range<usize>> {
        let groups = self.groups();
        let first = groups.first()?;
        let before_it = before(text, first.start);
        let mut start = first.start;
        let plus = before_it == Some(b'+') && begins(text, start - 1);
        let opened = before_it == Some(b'(');
        if plus || opened {
            start -= 1;
        }
        if opened && before(text, start) == Some(b'+') {
            return None;
        }
        // Not within a longer word, chain or sum.
        if !plus && !opened && matches!(before_it, Some(b'-' | b'.' | b'/' | b'+' | b'_' | b'#' | b'$')) {
            return None;
        }
        let ends = |parts: usize| {
            let end = groups.get(parts.checked_sub(1)?)?.end;
            let goes_on = match text.get(end..).unwrap_or_default() {
                [byte, ..] if is_alnum(*byte) || *byte == b'_' => true,
                [b'-' | b'.' | b':' | b'/', next, ..] => next.is_ascii_digit(),
                _ => false,
            };
            (!goes_on).then_some(end)
        };
        let upto = |max: usize| {
            let mut digits = 0;
            let parts = groups.iter().take_while(|group| {
                digits += group.len();
                digits <= max
            });
            parts.count()
        };
        let digits = |parts: usize| groups.iter().take(parts).map(DigitGroup::len).sum::<usize>();
        if plus {
            let parts = upto(15);
            let (count, least) = (digits(parts), if parts == 1 { 10 } else { 8 });
            if text[first.start] == b'0' || count < least || first.len() > 3 && parts > 1 {
                return None;
            }
            return ends(parts).map(|end| start..end);
        }
        // North America: area and exchange codes begin with 2 to 9.
        let skip = usize::from(groups.len() > 3 && first.len() == 1 && text[first.start] == b'1');
        if let [area, exchange, line, ..] = groups.get(skip..).unwrap_or_default()
            && (area.len(), exchange.len(), line.len()) == (3, 3, 4)
            && text[area.start] >= b'2'
            && text[exchange.start] >= b'2'
            && (opened || area.separator == b'(' || exchange.separator == line.separator)
            && (named
                || opened
                || area.separator == b'('
                || matches!(line.separator, b'-' | b'.')
                || says_phone(text, start, letterless))
            && let Some(end) = ends(skip + 3)
        {
            return Some(start..end);
        }
        let parts = upto(15);
        let count = digits(parts);
        let is_written_so = text[first.start] == b'0' || opened;
        let mut says = || {
            is_written_so && says_phone(text, start, letterless)
                || count >= 9 && names_phone(text, start, letterless)
        };
        if (7..=15).contains(&count) && (named || says()) {
            return ends(parts).map(|end| start..end);
        }
        None
    }
}

/// How far a word may be from the phone number that it marks, and that it names, in bytes.
const SAYS_BYTES_MAX: usize = 20;
const NAMES_BYTES_MAX: usize = 32;

/// A stretch of text that is known to hold no ASCII letter, so that rows of numbers are not searched for words
/// again at each number.
#[derive(Debug, Default)]
pub(super) struct LetterlessStretch(Range<usize>);

impl LetterlessStretch {
    /// The end of the last letter before a position, not before `floor`.
    fn letter_end(&mut self, text: &[u8], at: usize, floor: usize) -> Option<usize> {
        let mut from = at;
        while from > floor {
            if from <= self.0.end && from > self.0.start {
                from = self.0.start;
            } else if text[from - 1].is_ascii_alphabetic() {
                break;
            } else {
                from -= 1;
            }
        }
        if from < at {
            self.0 = from..at;
        }
        (from > floor).then_some(from)
    }
}

/// Whether a number that begins so may be a card or a phone number. Decides most numbers before their groups
/// are read.
pub(super) fn may_begin(text: &[u8], at: usize, named: bool, letterless: &mut LetterlessStretch) -> bool {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take(DIGITS_MAX).take_while(|byte| byte.is_ascii_digit()).count()
    };
    let len = digits(at);
    let is_marked = named || matches!(before(text, at), Some(b'+' | b'('));
    // An area code, a card's first group or a whole card.
    if is_marked || matches!(len, 3 | 4 | 12..) {
        return true;
    }
    // The code of North America, before an area code.
    if len == 1 && text[at] == b'1' && (digits(at + 2) == 3 || digits(at + 3) == 3) {
        return true;
    }
    text[at] == b'0' && says_phone(text, at, letterless) || names_phone(text, at, letterless)
}

/// Whether a word before a number marks it as a phone number.
pub(super) fn says_phone(text: &[u8], at: usize, letterless: &mut LetterlessStretch) -> bool {
    const WORDS: [&[u8]; 14] = [
        b"phone",
        b"telephone",
        b"cellphone",
        b"tel",
        b"mobil",
        b"mobile",
        b"fax",
        b"call",
        b"ring",
        b"handy",
        b"cell",
        b"whatsapp",
        b"sms",
        b"telefon",
    ];
    let from = at.saturating_sub(SAYS_BYTES_MAX);
    if letterless.letter_end(text, at, from).is_none() {
        return false;
    }
    // In small letters, in which escapes (`\n`) end, too.
    let mut head = [0; SAYS_BYTES_MAX];
    let Some(head) = head.get_mut(..at - from) else { return false };
    head.copy_from_slice(text.get(from..at).unwrap_or_default());
    head.make_ascii_lowercase();
    let head = &*head;
    (0..head.len()).any(|place| {
        let is_start = head[place].is_ascii_lowercase() && (head[place] == b'p' || begins(head, place));
        is_start && {
            let rest = head.get(place..).unwrap_or_default();
            let len = rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
            let word = rest.get(..len).unwrap_or_default();
            WORDS.contains(&word)
        }
    })
}

/// Whether the words directly before a number name it as a phone number: `Mobile: `, `phone number is `.
pub(super) fn names_phone(text: &[u8], at: usize, letterless: &mut LetterlessStretch) -> bool {
    const NAMES: [&[u8]; 12] = [
        b"phone",
        b"telephone",
        b"cellphone",
        b"tel",
        b"mobile",
        b"mobil",
        b"fax",
        b"cell",
        b"whatsapp",
        b"sms",
        b"telefon",
        b"handy",
    ];
    const BETWEEN: [&[u8]; 5] = [b"number", b"no", b"nr", b"is", b"num"];
    let floor = at.saturating_sub(NAMES_BYTES_MAX);
    let Some(mut end) = letterless.letter_end(text, at, floor) else { return false };
    loop {
        let head = text.get(floor..end).unwrap_or_default();
        // Most words end like none of these: the last two letters decide.
        let may_be = match head {
            [.., second, last] => matches!(
                &[second.to_ascii_lowercase(), last.to_ascii_lowercase()],
                b"ne"
                    | b"el"
                    | b"le"
                    | b"il"
                    | b"ax"
                    | b"ll"
                    | b"pp"
                    | b"ms"
                    | b"on"
                    | b"dy"
                    | b"er"
                    | b"no"
                    | b"nr"
                    | b"is"
                    | b"um"
            ),
            _ => false,
        };
        if !may_be {
            return false;
        }
        let len = head.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let word = head.get(head.len() - len..).unwrap_or_default();
        if !BETWEEN.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            return NAMES.iter().any(|known| word.eq_ignore_ascii_case(known));
        }
        let rest = head.get(..head.len() - len).unwrap_or_default();
        match rest.iter().rposition(u8::is_ascii_alphabetic) {
            Some(last) => end = floor + last + 1,
            None => return false,
        }
    }
}

/// Whether an issuer uses this prefix and length.
fn is_issued(digits: &[u8]) -> bool {
    let head =
        |count: usize| digits.iter().take(count).fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    match digits.len() {
        14 => matches!(head(3), 300..=305) || matches!(head(2), 36 | 38 | 39),
        15 => matches!(head(2), 34 | 37),
        16 => {
            head(1) == 4
                || matches!(head(2), 51..=55 | 62 | 65)
                || matches!(head(3), 644..=649)
                || matches!(head(4), 2221..=2720 | 3528..=3589 | 6011 | 5018 | 5020 | 5038 | 6304 | 6759 | 6761..=6763)
        }
        19 => head(1) == 4 || head(2) == 62 || head(4) == 6011,
        _ => false,
    }
}

/// Checks the check digit of ISO/IEC 7812-1.
fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| {
            let digit = u32::from(digit - b'0') << (at % 2);
            if digit > 9 { digit - 9 } else { digit }
        })
        .sum();
    sum.is_multiple_of(10) && digits.iter().any(|digit| *digit != digits[0])
}

/// The length of an IBAN by country (the registry of ISO 13616), in order.
const COUNTRIES: &[(&[u8; 2], usize)] = &[
    (b"AD", 24),
    (b"AE", 23),
    (b"AL", 28),
    (b"AT", 20),
    (b"AZ", 28),
    (b"BA", 20),
    (b"BE", 16),
    (b"BG", 22),
    (b"BH", 22),
    (b"BI", 27),
    (b"BR", 29),
    (b"BY", 28),
    (b"CH", 21),
    (b"CR", 22),
    (b"CY", 28),
    (b"CZ", 24),
    (b"DE", 22),
    (b"DJ", 27),
    (b"DK", 18),
    (b"DO", 28),
    (b"EE", 20),
    (b"EG", 29),
    (b"ES", 24),
    (b"FI", 18),
    (b"FK", 18),
    (b"FO", 18),
    (b"FR", 27),
    (b"GB", 22),
    (b"GE", 22),
    (b"GI", 23),
    (b"GL", 18),
    (b"GR", 27),
    (b"GT", 28),
    (b"HR", 21),
    (b"HU", 28),
    (b"IE", 22),
    (b"IL", 23),
    (b"IQ", 23),
    (b"IS", 26),
    (b"IT", 27),
    (b"JO", 30),
    (b"KW", 30),
    (b"KZ", 20),
    (b"LB", 28),
    (b"LC", 32),
    (b"LI", 21),
    (b"LT", 20),
    (b"LU", 20),
    (b"LV", 21),
    (b"LY", 25),
    (b"MC", 27),
    (b"MD", 24),
    (b"ME", 22),
    (b"MK", 19),
    (b"MN", 20),
    (b"MR", 27),
    (b"MT", 31),
    (b"MU", 30),
    (b"NI", 28),
    (b"NL", 18),
    (b"NO", 15),
    (b"OM", 23),
    (b"PK", 24),
    (b"PL", 28),
    (b"PS", 29),
    (b"PT", 25),
    (b"QA", 29),
    (b"RO", 24),
    (b"RS", 22),
    (b"RU", 33),
    (b"SA", 24),
    (b"SC", 31),
    (b"SD", 18),
    (b"SE", 24),
    (b"SI", 19),
    (b"SK", 24),
    (b"SM", 27),
    (b"SO", 23),
    (b"ST", 25),
    (b"SV", 28),
    (b"TL", 23),
    (b"TN", 24),
    (b"TR", 26),
    (b"UA", 29),
    (b"VA", 22),
    (b"VG", 24),
    (b"XK", 20),
    (b"YE", 30),
];

/// The IBAN that begins here, with or without single blanks or hyphens.
pub(super) fn iban(text: &[u8], at: usize) -> Option<Range<usize>> {
    let [a, b, c, d, ..] = text.get(at..)? else { return None };
    if !(b.is_ascii_alphabetic() && c.is_ascii_digit() && d.is_ascii_digit()) {
        return None;
    }
    let country = [a.to_ascii_uppercase(), b.to_ascii_uppercase()];
    let (_, len) = COUNTRIES.get(COUNTRIES.binary_search_by(|(code, _)| (*code).cmp(&country)).ok()?)?;
    let mut plain = [0; 34];
    let (mut count, mut end) = (0, at);
    while count < *len {
        let byte = *text.get(end)?;
        if is_alnum(byte) {
            *plain.get_mut(count)? = byte.to_ascii_uppercase();
            count += 1;
        } else if !(matches!(byte, b' ' | b'-') && end > at && is_alnum(text[end - 1])) {
            return None;
        }
        end += 1;
    }
    if text.get(end).is_some_and(|byte| is_alnum(*byte)) {
        return None;
    }
    // ISO 7064, mod 97-10: the head moves to the end, letters count from 10.
    let moved = plain.get(4..count)?.iter().chain(plain.get(..4)?);
    let rest = moved.fold(0u32, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        letter => (rest * 100 + u32::from(letter - b'A') + 10) % 97,
    });
    (rest == 1).then_some(at..end)
}
