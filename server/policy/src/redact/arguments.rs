//! Secrets in a command's arguments: masked in the stored command, and read from the environment for a
//! replay.
//!
//! Masking too much costs a replay `-- CMD`; masking too little writes a secret to disk.

use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::PLACEHOLDER;
use super::headers::is_credential_header;
use crate::detect::key_end;
use crate::secret_names::is_secret_key;

/// A masked part of an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskedArgument {
    /// The argument's index; the command's is 0.
    pub at: usize,
    /// Variables that may hold the value, most likely first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
}

/// A secret within an argument, and its option's or variable's name.
struct ArgumentSecret {
    place: Range<usize>,
    name: Option<String>,
}

/// Text patterns: the name is the first group, the value the last.
static HEADER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?:^|["'])([A-Za-z][A-Za-z0-9-]*)[ \t]*:[ \t]+((?i:bearer|basic|token)[ \t]+)?([^\s"']+)"#)
        .ok()
});
static ASSIGNMENT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?:^|[\s;&|("'])(-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=("[^"]+"|'[^']+'|[^\s;&|)"']+)"#).ok()
});
static FLAG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(--[A-Za-z][A-Za-z0-9_-]*)[ \t]+("[^"]+"|'[^']+'|[^\s;&|)"'-][^\s;&|)"']*)"#).ok()
});
static ADDRESS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"[a-z][a-z0-9+.-]*://([^/\s:@]*):([^@/\s]+)@"#).ok());

/// Masks the secrets of a command. `known` are secrets by the names of their variables; `variables_of`
/// returns the variables that have a value.
pub fn mask_arguments(
    words: &[String],
    known: &[(String, String)],
    variables_of: impl Fn(&str) -> Vec<String>,
) -> (Vec<String>, Vec<MaskedArgument>) {
    let (mut stored, mut masked) = (Vec::with_capacity(words.len()), Vec::new());
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| words.get(before)).map_or("", String::as_str);
        let (mut text, mut end) = (String::new(), 0);
        let named = known_secrets_in(word, known);
        let found = if named.is_empty() { secrets(word, before) } else { named };
        for ArgumentSecret { place, name } in found {
            text += &word[end..place.start];
            text += PLACEHOLDER;
            end = place.end;
            let mut variables = variables_of(&word[place]);
            variables.extend(name.filter(|name| !variables.contains(name)));
            masked.push(MaskedArgument { at, variables });
        }
        stored.push(text + &word[end..]);
    }
    (stored, masked)
}

/// Replaces the masked parts of a command by the values of variables.
///
/// # Errors
/// A masked argument without a set variable.
pub fn unmask_arguments(
    stored: &[String],
    masked: &[MaskedArgument],
    value_of: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>, MaskedArgument> {
    let mut words = stored.to_vec();
    let mut from = (usize::MAX, 0);
    for mask in masked {
        let value = mask.variables.iter().find_map(|name| value_of(name)).ok_or_else(|| mask.clone())?;
        let word = words.get_mut(mask.at).ok_or_else(|| mask.clone())?;
        // Several masks of one argument are in order.
        let start = if from.0 == mask.at { from.1 } else { 0 };
        let found = word.get(start..).and_then(|rest| rest.find(PLACEHOLDER)).ok_or_else(|| mask.clone())?;
        let place = start + found..start + found + PLACEHOLDER.len();
        from = (mask.at, place.start + value.len());
        word.replace_range(place, &value);
    }
    Ok(words)
}

/// Known secrets within an argument, in order.
fn known_secrets_in(word: &str, known: &[(String, String)]) -> Vec<ArgumentSecret> {
    let (mut found, mut end) = (Vec::new(), 0);
    let places = |(name, value): &(String, String)| {
        let starts: Vec<_> = word.match_indices(value.as_str()).map(|(start, _)| start).collect();
        let (name, len) = (name.clone(), value.len());
        starts
            .into_iter()
            .map(move |start| ArgumentSecret { place: start..start + len, name: Some(name.clone()) })
    };
    let mut all: Vec<_> = known.iter().filter(|(_, value)| !value.is_empty()).flat_map(places).collect();
    all.sort_by_key(|secret| secret.place.start);
    for secret in all {
        if secret.place.start >= end {
            end = secret.place.end;
            found.push(secret);
        }
    }
    found
}

/// The secrets of an argument, in order and disjoint.
fn secrets(word: &str, before: &str) -> Vec<ArgumentSecret> {
    let is_whole_value = names_secret(before) && before.starts_with('-') && !before.contains('=');
    if is_whole_value && !word.starts_with('-') && may_be_secret(before, word) {
        return vec![ArgumentSecret { place: 0..word.len(), name: Some(variable(before)) }];
    }
    // The text of `sh -c` is a command of its own; a lone assignment extends to the argument's end.
    let is_text = before.starts_with('-') && !before.starts_with("--") && before.ends_with('c');
    if !is_text
        && let Some((name, value)) = word.split_once('=')
        && names_secret(name)
        && may_be_secret(name, value)
    {
        return vec![ArgumentSecret { place: name.len() + 1..word.len(), name: Some(variable(name)) }];
    }
    let mut found = named_secrets_in(word);
    let mut at = 0;
    while at < word.len() {
        match key_end(word.as_bytes(), at)
            .filter(|end| word.is_char_boundary(at) && word.is_char_boundary(*end))
        {
            Some(end) => {
                found.push(ArgumentSecret { place: at..end, name: None });
                at = end;
            }
            None => at += 1,
        }
    }
    found.sort_by_key(|secret| (secret.place.start, secret.name.is_none()));
    let mut end = 0;
    found.retain(|secret| {
        let is_apart = secret.place.start >= end;
        end = if is_apart { secret.place.end } else { end };
        is_apart
    });
    found
}

/// Values in a text that follow a secret name.
fn named_secrets_in(word: &str) -> Vec<ArgumentSecret> {
    let mut found = Vec::new();
    let patterns = [(&HEADER, 3, 0), (&ASSIGNMENT, 2, 1), (&FLAG, 2, 2), (&ADDRESS, 2, 3)];
    for (pattern, value_at, kind) in patterns {
        for captures in pattern.iter().flat_map(|pattern| pattern.captures_iter(word)) {
            let (Some(name), Some(value)) = (captures.get(1), captures.get(value_at)) else { continue };
            let (name, mut place) = (name.as_str(), value.range());
            let is_named = match kind {
                0 => is_credential_header(name),
                3 => true,
                _ => names_secret(name),
            };
            if value.as_str().starts_with(['"', '\'']) {
                place = place.start + 1..place.end - 1;
            }
            if is_named && may_be_secret(name, &word[place.clone()]) {
                let name = (kind != 3).then(|| variable(name));
                found.push(ArgumentSecret { place, name });
            }
        }
    }
    found
}

/// Words that make a name secret, and words that make it harmless.
const SECRET: [&str; 13] = [
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "jwt",
    "pat",
    "bearer",
];
const HARMLESS: [&str; 22] = [
    "file",
    "path",
    "dir",
    "max",
    "min",
    "count",
    "limit",
    "type",
    "name",
    "env",
    "url",
    "size",
    "length",
    "id",
    "public",
    "primary",
    "foreign",
    "sort",
    "partition",
    "budget",
    "ttl",
    "per",
];

/// Whether the name of an option or variable marks a secret: `--api-key`, `OPENAI_API_KEY`.
fn names_secret(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase();
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    let mut words = name.split(['-', '_', '.']);
    let is_harmless = words.clone().any(|word| HARMLESS.contains(&word));
    let ends = ["apikey", "accesskey", "secretkey", "privatekey", "token", "secret", "password"];
    is_name
        && !is_harmless
        && words.any(|word| SECRET.contains(&word) || ends.iter().any(|end| word.ends_with(end)))
}

/// Whether a value may be a secret: not a count, a path, a variable's name or a sort key.
fn may_be_secret(name: &str, value: &str) -> bool {
    let is_small_number = value.len() < 8 && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_password = is_secret_key(name) && name.to_ascii_lowercase().contains("pass");
    // `--key` often names the key of a table or a sort.
    let is_bare = name.trim_start_matches('-').eq_ignore_ascii_case("key") && name.starts_with('-');
    let is_short = is_bare && value.len() < 16;
    !value.is_empty()
        && value != PLACEHOLDER
        && !value.starts_with(['$', '@', '%'])
        && (!is_small_number || is_password)
        && !is_short
        && !matches!(value, "true" | "false" | "none" | "null")
        && !Path::new(value).exists()
}

/// The variable for an option's value: `--api-key` is read from API_KEY.
fn variable(name: &str) -> String {
    name.trim_start_matches('-').replace(['-', '.'], "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(words: &[&str]) -> (Vec<String>, Vec<MaskedArgument>) {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        mask_arguments(&words, &[], |_| Vec::new())
    }

    const KEY: &str = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1w";

    #[test]
    fn arguments_that_look_like_secrets_are_masked() {
        let shell = format!("API_KEY='a b' curl -H \"Authorization: Bearer tok1\" --token t0k {KEY} $TOKEN");
        let cases: [(&[&str], &[&str], usize); 9] = [
            (&["x", "--password", "hunter2"], &["x", "--password", "annals-redacted"], 1),
            (&["x", "--api-key=abc"], &["x", "--api-key=annals-redacted"], 1),
            (&["x", "-token", "abc", "y"], &["x", "-token", "annals-redacted", "y"], 1),
            (&["env", "MY_TOKEN=a b=c", "x"], &["env", "MY_TOKEN=annals-redacted", "x"], 1),
            (&["x", KEY], &["x", "annals-redacted"], 1),
            (&["x", "X-Api-Key: abc"], &["x", "X-Api-Key: annals-redacted"], 1),
            (&["x", "postgres://me:pw@db/x"], &["x", "postgres://me:annals-redacted@db/x"], 1),
            (&["x", "--password", "1234"], &["x", "--password", "annals-redacted"], 1),
            (
                &["sh", "-c", &shell],
                &[
                    "sh",
                    "-c",
                    "API_KEY='annals-redacted' curl -H \"Authorization: Bearer annals-redacted\" --token annals-redacted annals-redacted $TOKEN",
                ],
                4,
            ),
        ];
        for (words, stored, count) in cases {
            let (as_stored, masks) = masked(words);
            assert_eq!(
                (as_stored, masks.len()),
                (stored.iter().map(|word| (*word).to_owned()).collect(), count)
            );
        }
    }

    #[test]
    fn arguments_that_resemble_secrets_stay() {
        let cases: [&[&str]; 12] = [
            &["x", "--max-tokens", "100"],
            &["x", "--max-token=4096"],
            &["sort", "--key", "2"],
            &["sort", "--key=name"],
            &["x", "--token", "--verbose"],
            &["x", "--tokenizer", "gpt2"],
            &["x", "--token-file", "abc"],
            &["x", "--password", "/etc/passwd"],
            &["x", "TOKENS=5", "KEYBOARD=de"],
            &["sh", "-c", "curl --token $TOKEN"],
            &["x", "what is a token: a word?"],
            &["python", "agent.py", "sk-a-real-secret"],
        ];
        for words in cases {
            let (stored, masks) = masked(words);
            assert_eq!((stored, masks), (words.iter().map(|word| (*word).to_owned()).collect(), Vec::new()));
        }
    }

    #[test]
    fn masked_arguments_are_restored_from_variables() {
        let words: Vec<_> = ["x", "A_KEY=one", "--token", "two", "--pass-token=é"].map(str::to_owned).into();
        let named = |value: &str| if value == "two" { vec!["MINE".to_owned()] } else { Vec::new() };
        let (stored, masks) = mask_arguments(&words, &[], named);
        assert_eq!(
            stored,
            ["x", "A_KEY=annals-redacted", "--token", "annals-redacted", "--pass-token=annals-redacted"]
        );
        let set = |name: &str| match name {
            "A_KEY" => Some("annals-redacted twice".to_owned()),
            "MINE" => Some("two".to_owned()),
            "PASS_TOKEN" => Some("é".to_owned()),
            _ => None,
        };
        let back = unmask_arguments(&stored, &masks, set).unwrap();
        assert_eq!(back, ["x", "A_KEY=annals-redacted twice", "--token", "two", "--pass-token=é"]);
        let refused =
            unmask_arguments(&stored, &masks, |name| set(name).filter(|_| name != "MINE")).unwrap_err();
        assert_eq!((refused.at, refused.variables), (3, vec!["MINE".to_owned(), "TOKEN".to_owned()]));
    }

    #[test]
    fn known_secrets_are_masked_everywhere() {
        let words = vec!["x".to_owned(), "a mine-9 b mine-9".to_owned()];
        let known = [("MINE".to_owned(), "mine-9".to_owned())];
        let (stored, masks) = mask_arguments(&words, &known, |_| Vec::new());
        assert_eq!(stored[1], "a annals-redacted b annals-redacted");
        assert_eq!(unmask_arguments(&stored, &masks, |_| Some("mine-9".to_owned())).unwrap(), words);
    }

    #[test]
    fn two_masks_of_one_argument_are_restored_in_order() {
        let words = vec!["sh".to_owned(), "-c".to_owned(), "A_TOKEN=one B_TOKEN=two x".to_owned()];
        let (stored, masks) = mask_arguments(&words, &[], |_| Vec::new());
        assert_eq!(stored[2], "A_TOKEN=annals-redacted B_TOKEN=annals-redacted x");
        assert_eq!(
            unmask_arguments(&stored, &masks, |name| Some(name.to_owned())).unwrap()[2],
            "A_TOKEN=A_TOKEN B_TOKEN=B_TOKEN x"
        );
    }
}
