//! Finds self-describing keys: provider prefixes, JSON Web Tokens, values after `Bearer`, private keys.

use std::ops::Range;

use super::{begins, is_alnum};

/// Maximum length of a key, in bytes.
const KEY_BYTES_MAX: usize = 512;
/// Maximum length of a private key, in bytes.
const PRIVATE_BYTES_MAX: usize = 16 << 10;
/// Minimum number of different characters; fewer make an example: `sk-xxxxxxxx`.
const DISTINCT_MIN: u32 = 7;

/// The alphabet of a key after its prefix.
#[derive(Debug, Clone, Copy)]
enum KeyAlphabet {
    /// Letters and digits.
    Plain,
    /// Capitals and digits.
    Capitals,
    /// Digits and a to f.
    Hex,
    /// The base64url alphabet; `Dotted` also allows dots.
    Url,
    Dotted,
}

impl KeyAlphabet {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Plain => is_alnum(byte),
            Self::Capitals => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
            Self::Url => is_alnum(byte) || matches!(byte, b'-' | b'_'),
            Self::Dotted => is_alnum(byte) || matches!(byte, b'-' | b'_' | b'.'),
        }
    }
}

/// Prefix, alphabet, minimum and maximum number of characters after it. A longer prefix precedes its own
/// prefixes.
const PREFIXES: &[(&[u8], KeyAlphabet, usize, usize)] = &[
    // Anthropic, OpenAI and others with similar keys
    (b"sk-ant-", KeyAlphabet::Url, 20, 200),
    (b"sk-proj-", KeyAlphabet::Url, 20, 250),
    (b"sk-svcacct-", KeyAlphabet::Url, 20, 250),
    (b"sk-admin-", KeyAlphabet::Url, 20, 250),
    (b"sk-or-v1-", KeyAlphabet::Hex, 32, 64),
    (b"sk-lf-", KeyAlphabet::Url, 20, 60),
    (b"sk-", KeyAlphabet::Url, 20, 200),
    (b"sess-", KeyAlphabet::Plain, 32, 64),
    // AWS
    (b"AKIA", KeyAlphabet::Capitals, 16, 16),
    (b"ASIA", KeyAlphabet::Capitals, 16, 16),
    (b"ABIA", KeyAlphabet::Capitals, 16, 16),
    (b"ACCA", KeyAlphabet::Capitals, 16, 16),
    // GitHub, GitLab
    (b"github_pat_", KeyAlphabet::Url, 22, 120),
    (b"ghp_", KeyAlphabet::Plain, 30, 255),
    (b"gho_", KeyAlphabet::Plain, 30, 255),
    (b"ghu_", KeyAlphabet::Plain, 30, 255),
    (b"ghs_", KeyAlphabet::Plain, 30, 255),
    (b"ghr_", KeyAlphabet::Plain, 30, 255),
    (b"glpat-", KeyAlphabet::Dotted, 20, 60),
    // Google
    (b"AIza", KeyAlphabet::Url, 35, 35),
    (b"ya29.", KeyAlphabet::Dotted, 20, 400),
    (b"GOCSPX-", KeyAlphabet::Url, 28, 28),
    // Slack
    (b"xoxb-", KeyAlphabet::Url, 16, 200),
    (b"xoxp-", KeyAlphabet::Url, 16, 200),
    (b"xoxa-", KeyAlphabet::Url, 16, 200),
    (b"xoxr-", KeyAlphabet::Url, 16, 200),
    (b"xoxs-", KeyAlphabet::Url, 16, 200),
    (b"xoxe.", KeyAlphabet::Dotted, 16, 400),
    (b"xapp-", KeyAlphabet::Url, 16, 200),
    // Stripe
    (b"sk_live_", KeyAlphabet::Plain, 16, 200),
    (b"sk_test_", KeyAlphabet::Plain, 16, 200),
    (b"rk_live_", KeyAlphabet::Plain, 16, 200),
    (b"rk_test_", KeyAlphabet::Plain, 16, 200),
    (b"whsec_", KeyAlphabet::Plain, 16, 100),
    // Others
    (b"hf_", KeyAlphabet::Plain, 30, 60),
    (b"gsk_", KeyAlphabet::Plain, 40, 80),
    (b"xai-", KeyAlphabet::Plain, 40, 120),
    (b"r8_", KeyAlphabet::Plain, 30, 60),
    (b"pplx-", KeyAlphabet::Plain, 32, 80),
    (b"npm_", KeyAlphabet::Plain, 36, 36),
    (b"pypi-", KeyAlphabet::Url, 50, 250),
    (b"SG.", KeyAlphabet::Dotted, 50, 80),
    (b"dop_v1_", KeyAlphabet::Hex, 64, 64),
    (b"dapi", KeyAlphabet::Hex, 32, 34),
    (b"shpat_", KeyAlphabet::Plain, 32, 32),
    (b"hvs.", KeyAlphabet::Url, 24, 200),
    (b"lin_api_", KeyAlphabet::Plain, 32, 60),
    (b"ntn_", KeyAlphabet::Plain, 32, 60),
];

/// The first entry of [`PREFIXES`] for each first byte; `u8::MAX` if there is none.
static FIRST: [u8; 128] = {
    let mut first = [u8::MAX; 128];
    let mut at = PREFIXES.len();
    while at > 0 {
        at -= 1;
        first[PREFIXES[at].0[0] as usize] = at as u8;
    }
    first
};

/// The end of the provider key that begins here.
pub(super) fn provider(text: &[u8], at: usize) -> Option<usize> {
    let from = FIRST.get(text[at] as usize).copied().filter(|from| *from != u8::MAX)?;
    let rest = text.get(at..)?;
    for (prefix, of, least, most) in PREFIXES.get(usize::from(from)..)? {
        if !rest.starts_with(prefix) {
            continue;
        }
        let body = rest.get(prefix.len()..)?;
        let len = body.iter().take(KEY_BYTES_MAX).take_while(|byte| of.has(**byte)).count();
        let body = body.get(..len)?;
        let len = len - body.iter().rev().take_while(|byte| **byte == b'.').count();
        let goes_on = text.get(at + prefix.len() + len).is_some_and(|byte| is_alnum(*byte));
        let has = |of: fn(&u8) -> bool| body.iter().any(of);
        let is_mixed = has(u8::is_ascii_digit)
            || has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && distinct(body) >= 12;
        if (*least..=*most).contains(&len) && !goes_on && is_mixed && distinct(body) >= DISTINCT_MIN {
            return Some(at + prefix.len() + len);
        }
    }
    None
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
        rest.iter().take_while(|byte| KeyAlphabet::Url.has(**byte)).count()
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
