//! Words of a command line for a POSIX shell.

/// Quotes a word, so that a shell reads it as it is.
#[must_use]
pub fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_quoted_only_where_needed() {
        assert_eq!(
            ["a.py", "", "a b", "it's", "$x"].map(super::quote),
            ["a.py", "''", "'a b'", "'it'\\''s'", "'$x'"]
        );
    }
}
