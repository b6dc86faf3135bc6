//! Secret names of query keys and headers.
//!
//! A false match costs a reader a value; a missed one writes a secret to disk. So words match anywhere in a
//! name, and the exceptions are known to be harmless and useful.

use annals_text::percent;

/// Words that make a name secret anywhere in it. Names are compared without separators, in lower case.
const WORDS: [&str; 19] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "signature",
    "authorization",
    "cookie",
    "apikey",
    "accesskey",
    "authkey",
    "privatekey",
    "subscriptionkey",
    "functionskey",
    "accountkey",
    "sharedkey",
    "jwt",
    "sessionkey",
];
/// Query keys that are secret only as a whole.
const KEYS: [&str; 8] = ["key", "sig", "auth", "pwd", "pass", "sas", "codeverifier", "assertion"];
/// Suffixes of names that hold counts or list positions.
const HARMLESS_ENDS: [&str; 8] = [
    "tokencount",
    "tokenscount",
    "pagetoken",
    "nexttoken",
    "continuationtoken",
    "maxtokens",
    "signatureinput",
    "tokentype",
];
/// Ends of names whose values are secrets, whatever they look like.
const PASSWORDS: [&str; 24] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "secret",
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
    "encryptionkey",
    "signingkey",
    "masterkey",
    "authkey",
    "accountkey",
    "sharedkey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "bearertoken",
    "sessiontoken",
    "credential",
    "mnemonic",
    "recoveryphrase",
];

/// Lower case, without `-` and `_`.
fn squeezed(name: &str) -> String {
    let letters = name.trim().bytes().filter(|byte| !matches!(byte, b'_' | b'-'));
    letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// Whether a name holds a count or a list position: `x-ratelimit-remaining-tokens`, `next_page_token`.
fn is_harmless(squeezed: &str) -> bool {
    HARMLESS_ENDS.iter().any(|end| squeezed.ends_with(end))
        || squeezed.contains("ratelimit") && squeezed.contains("tokens")
}

/// Whether a name of any kind contains a secret word.
pub(crate) fn holds_secret_word(name: &str) -> bool {
    let name = squeezed(name);
    !is_harmless(&name) && WORDS.iter().any(|word| name.contains(word))
}

/// Whether a query key's value is secret: `key`, `api_key`, `access_token`, `sig`, `X-Amz-Signature`, ... The
/// key may be percent-encoded.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    let key = if key.contains('%') { percent::decode(key) } else { key.into() };
    KEYS.contains(&squeezed(&key).as_str()) || holds_secret_word(&key)
}

/// Whether a name marks its value as secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretName {
    /// Whatever the value looks like: `password`, `DB_PASSWORD2`, `clientSecret`.
    Password,
    /// If the value looks random: `token`.
    Token,
}

/// What a name says of its value, in time that depends on the name's length alone.
pub(crate) fn secret_name(name: &[u8]) -> Option<SecretName> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let name = name.get(..name.len() - digits)?;
    // Most names end like no secret one: the last two letters decide.
    let last = name.last()?.to_ascii_lowercase();
    if !matches!(last, b'd' | b'e' | b't' | b'y' | b'n' | b'l' | b'c' | b's') {
        return None;
    }
    let second = name.iter().rev().skip(1).find(|byte| !matches!(byte, b'_' | b'-'))?.to_ascii_lowercase();
    let may_be = matches!(
        (second, last),
        (b'r' | b'w', b'd')
            | (b's' | b'd', b'e')
            | (b'e', b't' | b'y' | b'n')
            | (b'a', b'l')
            | (b'i', b'c')
            | (b's', b's')
    );
    if !may_be {
        return None;
    }
    let is_pass = match name.split_last_chunk::<4>() {
        Some((head, end)) if last == b's' => {
            end.eq_ignore_ascii_case(b"pass") && head.last().is_some_and(|byte| b"_-.".contains(byte))
        }
        _ => false,
    };
    let ends_so = |end: &&str| end.as_bytes().last() == Some(&last) && squeezed_ends_with(name, end);
    if is_pass || PASSWORDS.iter().any(&ends_so) {
        return (!squeezed_contains(name, "public")).then_some(SecretName::Password);
    }
    let is_token = ends_so(&"token") && {
        let is_counted = HARMLESS_ENDS.iter().any(ends_so);
        !(is_counted || squeezed_contains(name, "ratelimit") && squeezed_contains(name, "tokens"))
    };
    is_token.then_some(SecretName::Token)
}

/// Whether the [`squeezed`] name ends so.
fn squeezed_ends_with(name: &[u8], end: &str) -> bool {
    let mut letters = name.iter().rev().filter(|byte| !matches!(byte, b'_' | b'-'));
    end.bytes().rev().all(|letter| letters.next().is_some_and(|found| found.to_ascii_lowercase() == letter))
}

/// Whether the [`squeezed`] name contains a word.
fn squeezed_contains(name: &[u8], word: &str) -> bool {
    let word = word.as_bytes();
    let begins = |at: usize| name.get(at).map(u8::to_ascii_lowercase) == word.first().copied();
    (0..name.len()).filter(|at| begins(*at)).any(|at| {
        let rest = name.get(at..).unwrap_or_default();
        let mut letters = rest.iter().filter(|byte| !matches!(byte, b'_' | b'-'));
        word.iter().all(|letter| letters.next().is_some_and(|found| found.to_ascii_lowercase() == *letter))
    })
}

#[cfg(test)]
mod tests {
    use super::{HARMLESS_ENDS, PASSWORDS, SecretName, is_secret_key, secret_name};

    /// The last two letters sort names out before the words are compared: every word must pass them, also with
    /// separators and digits.
    #[test]
    fn every_secret_word_is_found_at_the_end_of_a_name() {
        for word in PASSWORDS.into_iter().chain(["pass"]) {
            let (head, end) = word.split_at(word.len() - 1);
            let names =
                [format!("db_{word}"), format!("DB-{}9", word.to_uppercase()), format!("db_{head}_{end}")];
            for name in names.iter().take(if word == "pass" { 2 } else { 3 }) {
                assert_eq!(secret_name(name.as_bytes()), Some(SecretName::Password), "{name}");
            }
        }
        assert_eq!(secret_name(b"id_tok-e-n"), Some(SecretName::Token));
        for name in HARMLESS_ENDS.into_iter().chain(["", "d", "_d", "fe80", "title", "compass"]) {
            assert_eq!(secret_name(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn secret_query_keys_are_recognised() {
        for key in [
            "key",
            "KEY",
            "api_key",
            "apiKey",
            "api-key",
            "access_token",
            "sig",
            "signature",
            "X-Amz-Signature",
            "X-Amz-Credential",
            "X-Amz-Security-Token",
            "X-Goog-Signature",
            "client_secret",
            "k%65y",
            "subscription-key",
            "AWSAccessKeyId",
            "token",
            "password",
        ] {
            assert!(is_secret_key(key), "{key}");
        }
        for key in [
            "api-version",
            "alt",
            "model",
            "pageToken",
            "page_token",
            "max_tokens",
            "keyword",
            "monkey",
            "X-Amz-Date",
            "limit",
            "",
            "beta",
        ] {
            assert!(!is_secret_key(key), "{key}");
        }
    }
}
