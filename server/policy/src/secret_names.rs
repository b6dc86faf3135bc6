//! Secret names of query keys and headers.
//!
//! A false match costs a reader a value; a missed one writes a secret to disk. So words match anywhere in a
//! name, and the exceptions are known to be harmless and useful.

use annals_text::percent;

/// Words that make a name secret anywhere in it; `-` matches `-`, `_` or nothing.
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
    "api-key",
    "access-key",
    "auth-key",
    "private-key",
    "subscription-key",
    "functions-key",
    "account-key",
    "shared-key",
    "jwt",
    "session-key",
];
/// Query keys that are secret only as a whole.
const KEYS: [&str; 9] = ["key", "sig", "auth", "pwd", "pass", "sas", "apikey", "code-verifier", "assertion"];
/// Suffixes of names that hold counts or list positions.
const HARMLESS_ENDS: [&str; 8] = [
    "token-count",
    "tokens-count",
    "page-token",
    "next-token",
    "continuation-token",
    "max-tokens",
    "signature-input",
    "token-type",
];

/// Lower case, with `-` for `_`.
fn normalised(name: &str) -> String {
    name.trim().chars().map(|letter| if letter == '_' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// Whether a name of any kind contains a secret word.
pub(crate) fn holds_secret_word(name: &str) -> bool {
    let name = normalised(name);
    let squeezed = name.replace('-', "");
    let harmless = |end: &str| name.ends_with(end) || squeezed.ends_with(&end.replace('-', ""));
    // `x-ratelimit-remaining-tokens` and similar names hold counts.
    let counts = squeezed.contains("ratelimit") && squeezed.contains("tokens");
    if counts || HARMLESS_ENDS.iter().any(|end| harmless(end)) {
        return false;
    }
    WORDS.iter().any(|word| squeezed.contains(&word.replace('-', "")))
}

/// Whether a query key's value is secret: `key`, `api_key`, `access_token`, `sig`, `X-Amz-Signature`, ... The
/// key may be percent-encoded.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    let key = percent::decode(key);
    KEYS.contains(&normalised(&key).as_str()) || holds_secret_word(&key)
}

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

/// Lower case, without separators and a number at the end: `DB_PASSWORD2` is `dbpassword`.
fn squeezed(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '_' | '-' | '.'));
    let name: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_owned()
}

/// Whether any value under this name is a secret: `password`, `DB_PASSWORD`, `clientSecret`.
pub(crate) fn is_password_name(name: &str) -> bool {
    let squeezed = squeezed(name);
    let is_pass = || {
        let last = name.rsplit(['_', '-', '.']).next().unwrap_or_default();
        last.eq_ignore_ascii_case("pass") && last.len() < name.len()
    };
    !squeezed.contains("public") && (PASSWORDS.iter().any(|end| squeezed.ends_with(end)) || is_pass())
}

/// Whether a value under this name that looks random is a secret: `token`, `X-Auth`.
pub(crate) fn is_token_name(name: &str) -> bool {
    let squeezed = squeezed(name);
    (squeezed.ends_with("token") || squeezed == "credentials") && holds_secret_word(name)
}

#[cfg(test)]
mod tests {
    use super::is_secret_key;

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
