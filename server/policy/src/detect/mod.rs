//! Finds values by their shape: addresses, numbers, keys. Pure: takes a text, returns ranges.
//!
//! One pass splits a text into runs of the characters that values consist of ([`class`]). The contents of a
//! run (a digit, an `@`, its length) select the detectors. Most runs are short words that no detector
//! examines. Each detector reads a bounded range, or its range is skipped afterwards, so the time is linear
//! in the text's length for any text.
//!
//! Left out on purpose: names of people and places, passwords without a name, values encoded in base64 or
//! hexadecimal.

mod address;
mod entropy;
mod key;
mod named;
mod number;
#[cfg(test)]
mod reference;
mod seed;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;

use crate::secret_names::{SecretName, is_secret_key, secret_name};
use named::{PersonFact, ValuePlace};

/// A kind of value to detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detector {
    /// `-----BEGIN ... PRIVATE KEY-----` to its end.
    PrivateKey,
    /// Keys with a provider's prefix: OpenAI, Anthropic, AWS, GitHub, Google, Slack, Stripe and others.
    ApiKey,
    /// JSON Web Tokens (RFC 7519).
    Jwt,
    /// Values after `Bearer` (RFC 6750) and `Basic` (RFC 7617).
    Bearer,
    /// E-mail addresses.
    Email,
    /// Payment card numbers, by issuer, length and Luhn check digit (ISO/IEC 7812).
    Card,
    /// IBANs, by country, length and check digits (ISO 13616, mod 97).
    Iban,
    /// IPv4 and IPv6 addresses, except reserved ones (loopback, masks).
    Ip,
    /// Phone numbers: international and North American ones; others only after a telling name or word.
    Phone,
    /// Random-looking words; hexadecimal ones only if a name marks them as secret.
    Entropy,
    /// Passwords and other secrets under their own names, and in addresses.
    Password,
    /// Social security numbers, passport numbers and dates of birth, under their names.
    Person,
    /// Twelve or more words of BIP 39.
    SeedPhrase,
}

impl Detector {
    /// All detectors.
    pub const ALL: [Self; 13] = [
        Self::PrivateKey,
        Self::ApiKey,
        Self::Jwt,
        Self::Bearer,
        Self::Email,
        Self::Card,
        Self::Iban,
        Self::Ip,
        Self::Phone,
        Self::Entropy,
        Self::Password,
        Self::Person,
        Self::SeedPhrase,
    ];

    /// The name in profiles and placeholders.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PrivateKey => "private-key",
            Self::ApiKey => "api-key",
            Self::Jwt => "jwt",
            Self::Bearer => "bearer",
            Self::Email => "email",
            Self::Card => "card",
            Self::Iban => "iban",
            Self::Ip => "ip",
            Self::Phone => "phone",
            Self::Entropy => "entropy",
            Self::Password => "password",
            Self::Person => "person",
            Self::SeedPhrase => "seed-phrase",
        }
    }

    /// Whether its matches have an unmistakable form.
    pub(crate) fn is_strong(self) -> bool {
        self <= Self::Iban && self != Self::Card
    }

    /// Whether it also examines ids that programs need.
    fn looks_at_ids(self) -> bool {
        self <= Self::Email
    }
}

/// The set of active detectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Detectors(u16);

impl Detectors {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self((1 << Detector::ALL.len()) - 1);

    pub(crate) fn with(self, detector: Detector) -> Self {
        Self(self.0 | 1 << detector as u16)
    }

    fn has(self, detector: Detector) -> bool {
        self.0 & 1 << detector as u16 != 0
    }

    /// Those whose matches have an unmistakable form.
    pub(crate) fn strong(self) -> Self {
        let strong = Detector::ALL.iter().filter(|detector| detector.is_strong() && self.has(**detector));
        strong.fold(Self::NONE, |found, detector| found.with(*detector))
    }
}

/// Minimum length of a value that any detector finds, in bytes.
const VALUE_BYTES_MIN: usize = 4;
/// Maximum length of a name, in bytes; longer ones are sentences.
const NAME_BYTES_MAX: usize = 48;
/// Maximum number of cached names.
const KNOWN_MAX: usize = 4096;

thread_local! {
    static KNOWN: RefCell<HashMap<Box<[u8]>, NameHint, RandomState>> = RefCell::default();
}

/// What a text's name says about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NameHint(u16);

impl NameHint {
    pub(crate) const NOTHING: Self = Self(0);
    /// An id that programs need, a signature, encrypted reasoning, or a model's name.
    const ID: u16 = 1;
    /// A digest, or base64 data.
    const DIGEST: u16 = 2;
    const PHONE: u16 = 4;
    const SECRET: u16 = 8;
    /// A part of a text that a stream spells.
    const PART: u16 = 16;
    /// An id by the end of its name alone; people put numbers of cards and phones there.
    const NAMED_ID: u16 = 32;
    /// Any value is a secret.
    const PASSWORD: u16 = 64;
    const SOCIAL_SECURITY: u16 = 128;
    const PASSPORT: u16 = 256;
    const BIRTH: u16 = 512;

    /// The hint of a member's name. Bodies repeat a few names, so hints are cached.
    pub(crate) fn from_name(name: &[u8]) -> Self {
        if name.len() > NAME_BYTES_MAX {
            return Self::NOTHING;
        }
        KNOWN.with_borrow_mut(|known| {
            if let Some(near) = known.get(name) {
                return *near;
            }
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            let near = Self::parse(name);
            known.insert(name.into(), near);
            near
        })
    }

    fn parse(name: &[u8]) -> Self {
        let mut small = [0; NAME_BYTES_MAX];
        let Some(small) = small.get_mut(..name.len()) else { return Self::NOTHING };
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        let is = |names: &[&[u8]]| names.contains(&&*small);
        let holds =
            |words: &[&[u8]]| words.iter().any(|word| small.windows(word.len()).any(|part| part == *word));
        let ends = |ends: &[&[u8]]| ends.iter().any(|end| small.ends_with(end));
        if is(IDS) || ends(&[b"_id", b"_ids"]) && !is(&[b"user_id", b"client_id"]) {
            let is_phone = holds(&[b"phone", b"mobile"]);
            return Self(match () {
                () if is(IDS) => Self::ID,
                () if is_phone => Self::ID | Self::NAMED_ID | Self::PHONE,
                () => Self::ID | Self::NAMED_ID,
            });
        }
        let mut near = 0;
        if is(&[b"data", b"b64_json", b"file_data", b"integrity", b"etag", b"asked", b"fingerprint"])
            || holds(&[b"digest", b"hash", b"checksum", b"sha", b"md5", b"commit", b"revision"])
        {
            near |= Self::DIGEST;
        }
        if holds(&[b"phone", b"mobile", b"fax", b"whatsapp"]) || is(&[b"tel", b"cell", b"msisdn"]) {
            near |= Self::PHONE;
        }
        if std::str::from_utf8(small).is_ok_and(is_secret_key) {
            near |= Self::SECRET;
        }
        if is(PARTS) {
            near |= Self::PART;
        }
        if secret_name(small) == Some(SecretName::Password) {
            near |= Self::PASSWORD;
        }
        let squeezed: Vec<u8> = small.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
        let squeezed_ends = |ends: &[&[u8]]| ends.iter().any(|end| squeezed.ends_with(end));
        if is(&[b"ssn"])
            || ends(&[b"_ssn"])
            || holds(&[b"ssn_", b"social"]) && squeezed_ends(&[b"ssn", b"security", b"number", b"no"])
        {
            near |= Self::SOCIAL_SECURITY;
        }
        if holds(&[b"passport"]) {
            near |= Self::PASSPORT;
        }
        if squeezed_ends(&[b"dob", b"birth", b"birthdate", b"birthday"]) {
            near |= Self::BIRTH;
        }
        Self(near)
    }

    /// Whether texts with this name are parts of one text in a stream.
    pub(crate) fn is_part(self) -> bool {
        self.has(Self::PART)
    }

    /// Whether it is an id that programs need.
    pub(crate) fn is_id(self) -> bool {
        self.has(Self::ID)
    }

    fn has(self, what: u16) -> bool {
        self.0 & what != 0
    }
}

/// Names of values that programs need unchanged.
const IDS: &[&[u8]] = &[
    b"id",
    b"uid",
    b"uuid",
    b"signature",
    b"thoughtsignature",
    b"thought_signature",
    b"encrypted_content",
    b"model",
    b"modelversion",
    b"model_version",
    b"responseid",
    b"requestid",
    b"request-id",
    b"x-request-id",
    b"toolcallid",
    b"tooluseid",
    b"callid",
    b"system_fingerprint",
    b"cf-ray",
    b"traceparent",
    b"trace_id",
    b"span_id",
];

/// Names of text parts in provider streams.
const PARTS: &[&[u8]] = &[
    b"delta",
    b"text",
    b"content",
    b"partial_json",
    b"arguments",
    b"thinking",
    b"reasoning",
    b"reasoning_content",
    b"refusal",
    b"response",
    b"output_text",
    b"output",
    b"token",
    b"completion",
    b"generated_text",
    b"transcript",
    b"chunk",
    b"answer",
];

/// A match: its range and its detector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetectorHit {
    pub(crate) range: Range<usize>,
    pub(crate) detector: Detector,
}

/// Character classes.
mod class {
    pub(super) const DIGIT: u8 = 1;
    pub(super) const UPPER: u8 = 2;
    pub(super) const LOWER: u8 = 4;
    pub(super) const AT: u8 = 8;
    pub(super) const COLON: u8 = 16;
    pub(super) const DOT: u8 = 32;
    /// All characters that values consist of.
    pub(super) const RUN: u8 = 64;
    /// The others of them.
    pub(super) const SIGN: u8 = 128;
    pub(super) const ALNUM: u8 = DIGIT | UPPER | LOWER;

    pub(super) static OF: [u8; 256] = {
        let mut of = [0; 256];
        let mut byte = 0;
        while byte < 128 {
            of[byte] = match byte as u8 {
                b'0'..=b'9' => RUN | DIGIT,
                b'A'..=b'Z' => RUN | UPPER,
                b'a'..=b'z' => RUN | LOWER,
                b'@' => RUN | AT,
                b':' => RUN | COLON,
                b'.' => RUN | DOT,
                b'_' | b'-' | b'+' | b'/' | b'=' | b'~' => RUN | SIGN,
                _ => 0,
            };
            byte += 1;
        }
        of
    };
}

fn is_alnum(byte: u8) -> bool {
    class::OF[byte as usize] & class::ALNUM != 0
}

/// The byte before a position.
fn before(text: &[u8], at: usize) -> Option<u8> {
    at.checked_sub(1).and_then(|at| text.get(at)).copied()
}

/// Whether a letter before a position ends an escape: `\n` in a text that was escaped twice.
fn is_escape(text: &[u8], at: usize) -> bool {
    at >= 1 && text[at - 1] == b'\\' && matches!(text.get(at), Some(b'n' | b'r' | b't'))
}

/// Whether a value may begin at a position: not within a word.
fn begins(text: &[u8], at: usize) -> bool {
    before(text, at).is_none_or(|byte| !is_alnum(byte)) || at >= 2 && is_escape(text, at - 1)
}

/// The end of a provider key or JSON Web Token that begins at a position.
pub(crate) fn key_end(text: &[u8], at: usize) -> Option<usize> {
    let begins = at == 0 || !text[at - 1].is_ascii_alphanumeric();
    let token = || Some(key::jwt(text, at)).filter(|(_, is_token)| *is_token).map(|(end, _)| end);
    begins.then(|| key::provider(text, at).or_else(token)).flatten()
}

/// Finds values in `text`; matches may overlap. `near` is the hint of the text's name.
pub(crate) fn find(text: &[u8], wanted: Detectors, near: NameHint, hits: &mut Vec<DetectorHit>) {
    if wanted == Detectors::NONE || text.len() < VALUE_BYTES_MIN {
        return;
    }
    let mut look = DetectorScan {
        text,
        wanted,
        near,
        hits,
        numbers_from: 0,
        tokens_from: 0,
        keys: key::KeyScan::default(),
        letterless: number::LetterlessStretch::default(),
        address_passwords: Vec::new(),
    };
    look.named();
    let mut seeds = seed::SeedScan::default();
    let with_seeds = look.wants(Detector::SeedPhrase);
    let mut at = 0;
    while at < text.len() {
        while at < text.len() && class::OF[text[at] as usize] == 0 {
            at += 1;
        }
        let start = at;
        let mut holds = 0;
        while at < text.len() {
            let of = class::OF[text[at] as usize];
            if of == 0 {
                break;
            }
            holds |= of;
            at += 1;
        }
        if start < at {
            if with_seeds {
                // A stop after the last word belongs to the run.
                let is_last = holds & class::DOT != 0 && text[at - 1] == b'.';
                let (end, lower) =
                    if is_last { (at - 1, class::LOWER | class::DOT) } else { (at, class::LOWER) };
                let is_lower = holds & !class::RUN & !lower == 0 && is_word(text, start..end);
                if is_lower || !seeds.is_empty() {
                    let found = seeds.add(text, start..end, is_lower).into_iter();
                    for range in found.chain(is_last.then(|| seeds.finish(text)).flatten()) {
                        look.hit(Detector::SeedPhrase, range);
                    }
                }
            }
            at = look.run(start, at, holds).max(at);
        }
    }
    if let Some(range) = seeds.finish(text) {
        look.hit(Detector::SeedPhrase, range);
    }
}

/// Whether a run consists of small letters. Runs are long and rarely words, so their length decides first.
fn is_word(text: &[u8], run: Range<usize>) -> bool {
    run.len() <= 8 && text.get(run).is_some_and(|run| run.iter().all(u8::is_ascii_lowercase))
}

struct DetectorScan<'t, 'h> {
    text: &'t [u8],
    wanted: Detectors,
    near: NameHint,
    hits: &'h mut Vec<DetectorHit>,
    /// Numbers before this position belong to an earlier match.
    numbers_from: usize,
    /// No JSON Web Token begins before this position: too few dots follow.
    tokens_from: usize,
    keys: key::KeyScan,
    letterless: number::LetterlessStretch,
    /// Passwords in addresses, in order: `pw@host` is no e-mail address.
    address_passwords: Vec<Range<usize>>,
}

impl DetectorScan<'_, '_> {
    fn wants(&self, detector: Detector) -> bool {
        let is_number =
            || matches!(detector, Detector::Card | Detector::Phone) && self.near.has(NameHint::NAMED_ID);
        self.wanted.has(detector) && (detector.looks_at_ids() || !self.near.has(NameHint::ID) || is_number())
    }

    /// Finds values by their names: the text's own name, and names in the text.
    fn named(&mut self) {
        let (text, near) = (self.text, self.near);
        if self.wants(Detector::Password) {
            let whole = text.trim_ascii();
            if near.has(NameHint::PASSWORD) && named::is_secret_value(whole, ValuePlace::Quoted, true) {
                let start = text.len() - text.trim_ascii_start().len();
                self.hit(Detector::Password, start..start + whole.len());
            }
        }
        let (with_secrets, with_facts) = (self.wants(Detector::Password), self.wants(Detector::Person));
        if !with_secrets && !with_facts {
            return;
        }
        let named::NamedValues { address_passwords, secrets, facts } =
            named::find(text, with_secrets, with_facts);
        for range in address_passwords.iter().chain(&secrets) {
            self.hit(Detector::Password, range.clone());
        }
        self.address_passwords = address_passwords;
        if self.wants(Detector::Person) {
            for (hint, fact) in [
                (NameHint::SOCIAL_SECURITY, PersonFact::SocialSecurity),
                (NameHint::PASSPORT, PersonFact::Passport),
                (NameHint::BIRTH, PersonFact::Birth),
            ] {
                let found = near.has(hint).then(|| named::fact_at(text, 0, fact)).flatten();
                if let Some(end) = found {
                    self.hit(Detector::Person, 0..end);
                }
            }
        }
        for range in facts {
            self.hit(Detector::Person, range);
        }
    }

    fn hit(&mut self, detector: Detector, range: Range<usize>) {
        self.hits.push(DetectorHit { range, detector });
    }

    /// Examines a run; returns where to continue.
    fn run(&mut self, start: usize, end: usize, holds: u8) -> usize {
        let len = end - start;
        if holds & (class::DIGIT | class::AT) == 0 && len < 16 {
            return match len {
                5..=15 => self.word(start, end),
                _ => end,
            };
        }
        let mut next = end;
        if holds & class::AT != 0 && self.wants(Detector::Email) {
            let run = self.text.get(start..end).unwrap_or_default();
            for at in memchr::memchr_iter(b'@', run) {
                let found = address::email(self.text, start + at);
                let is_host = |range: &Range<usize>| {
                    let next = self.address_passwords.partition_point(|of| of.end < range.start);
                    self.address_passwords.get(next).is_some_and(|of| of.start < range.end)
                };
                if let Some(range) = found.filter(|range| !is_host(range)) {
                    self.hit(Detector::Email, range);
                }
            }
        }
        if holds & class::DIGIT != 0 && self.wants(Detector::Ip) {
            if holds & class::DOT != 0 {
                address::ip_v4(self.text, start..end, |range| {
                    self.hits.push(DetectorHit { range, detector: Detector::Ip });
                });
            }
            if holds & class::COLON != 0 {
                address::ip_v6(self.text, start..end, |range| {
                    self.hits.push(DetectorHit { range, detector: Detector::Ip });
                });
            }
        }
        let (has_digit, is_long) = (holds & class::DIGIT != 0, len >= 16);
        let mut at = start;
        // After the first position, a value begins after a sign, or after the letter of an escape.
        let mut is_start = begins(self.text, at);
        while at < end {
            if is_start {
                let found = self.at(at, end, has_digit, is_long);
                next = next.max(found);
                at = at.max(found);
            }
            at += 1;
            while at < end && at > start + 1 && is_alnum(self.text[at - 1]) {
                at += 1;
            }
            is_start = at < end && begins(self.text, at);
        }
        if is_long && self.wants(Detector::Entropy) && !self.near.has(NameHint::DIGEST) {
            let secret = self.near.has(NameHint::SECRET);
            entropy::tokens(self.text, start..end, secret, |range| {
                self.hits.push(DetectorHit { range, detector: Detector::Entropy });
            });
        }
        // A scheme may end the run: `authorization:Bearer`.
        next.max(if has_digit { end } else { self.word(start, end) })
    }

    /// Examines a possible beginning of a value; returns the match's end.
    fn at(&mut self, at: usize, run_end: usize, has_digit: bool, is_long: bool) -> usize {
        let byte = self.text[at];
        if byte.is_ascii_digit() {
            if at >= self.numbers_from {
                return self.number(at);
            }
            return at;
        }
        if !byte.is_ascii_alphabetic() {
            return at;
        }
        if has_digit
            && self.wants(Detector::Iban)
            && let Some(range) = number::iban(self.text, at)
        {
            self.numbers_from = range.end;
            let end = range.end;
            self.hit(Detector::Iban, range);
            return end;
        }
        if !is_long {
            return at;
        }
        if byte == b'e' && at >= self.tokens_from && self.wants(Detector::Jwt) {
            let (end, is_one) = key::jwt(self.text, at);
            if is_one {
                self.hit(Detector::Jwt, at..end);
                return end;
            }
            self.tokens_from = end;
        }
        if self.wants(Detector::ApiKey) {
            let found = self.keys.provider(self.text, at);
            if let Some(end) = self.keys.wrapped(self.text, at, run_end, found).or(found) {
                self.hit(Detector::ApiKey, at..end);
                return end;
            }
        }
        at
    }

    fn number(&mut self, at: usize) -> usize {
        let (card, phone) = (self.wants(Detector::Card), self.wants(Detector::Phone));
        let named = self.near.has(NameHint::PHONE);
        if !number::may_begin(self.text, at, named, &mut self.letterless) {
            return at;
        }
        let Some(groups) = number::DigitGroups::read(self.text, at).filter(|_| card || phone) else {
            return at;
        };
        let in_id = self.near.has(NameHint::NAMED_ID);
        // Ids of 19 digits are common, and one of ten passes as a card.
        if card
            && let Some(end) = groups.card(self.text).filter(|end| {
                !in_id || end - at != 19 || self.text.get(at + 4).is_some_and(|byte| !byte.is_ascii_digit())
            })
        {
            self.numbers_from = end;
            self.hit(Detector::Card, at..end);
            return end;
        }
        let phone = phone
            && (!in_id
                || self.near.has(NameHint::PHONE)
                || matches!(before(self.text, at), Some(b'+' | b'(')));
        if phone && let Some(range) = groups.phone(self.text, named, &mut self.letterless) {
            self.numbers_from = range.end;
            let end = range.end;
            self.hit(Detector::Phone, range);
            return end;
        }
        at
    }

    /// Examines a word that a value may follow.
    fn word(&mut self, start: usize, end: usize) -> usize {
        let word = self.text.get(start..end).unwrap_or_default();
        match word.last() {
            Some(b'r' | b'R' | b'c' | b'C') if self.wants(Detector::Bearer) => {
                if let Some(range) = key::after_scheme(self.text, start, end) {
                    self.hit(Detector::Bearer, range.clone());
                    // Other detectors also examine it, because they may name it more precisely.
                }
                end
            }
            Some(b'N') if self.wants(Detector::PrivateKey) && word.ends_with(b"-----BEGIN") => {
                match key::private(self.text, end - b"-----BEGIN".len()) {
                    Some(range) => {
                        let end = range.end;
                        self.hit(Detector::PrivateKey, range);
                        end
                    }
                    None => end,
                }
            }
            _ => end,
        }
    }
}
