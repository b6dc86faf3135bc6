//! Redis key patterns: `*`, `?`, `[a-c]`, `[^a]`, and a backslash to escape.

/// Whether a text matches the pattern. Time is at most proportional to the product of the lengths; iterative.
pub(super) fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
    let (mut at, mut place) = (0, 0);
    // The position after the last star, and how much of the text it has matched.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, place));
            continue;
        }
        let step = match text.get(place) {
            Some(byte) => match_one(pattern.get(at..).unwrap_or_default(), *byte, fold),
            None if at == pattern.len() => return true,
            None => None,
        };
        match (step, star) {
            (Some(taken), _) => {
                at += taken;
                place += 1;
            }
            (None, Some((after, taken))) if taken < text.len() => {
                (at, place) = (after, taken + 1);
                star = Some((after, taken + 1));
            }
            _ => return false,
        }
    }
}

/// Whether a byte matches the start of the pattern; returns the length of the matched part of the pattern.
fn match_one(pattern: &[u8], byte: u8, fold: bool) -> Option<usize> {
    let folded = |byte: u8| if fold { byte.to_ascii_lowercase() } else { byte };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', meant, ..] => (folded(*meant) == folded(byte)).then_some(2),
        [b'[', ..] => {
            let (is_in, taken) = match_class(pattern, folded(byte), folded);
            is_in.then_some(taken)
        }
        [meant, ..] => (folded(*meant) == folded(byte)).then_some(1),
    }
}

fn match_class(pattern: &[u8], byte: u8, folded: impl Fn(u8) -> u8) -> (bool, usize) {
    let mut at = 1;
    let not = pattern.get(at) == Some(&b'^');
    at += usize::from(not);
    let mut found = false;
    loop {
        match pattern.get(at..).unwrap_or_default() {
            // An unterminated class extends to the end of the pattern, as in Redis.
            [] => return (found != not, at),
            [b']', ..] => return (found != not, at + 1),
            [b'\\', meant, ..] => {
                found |= folded(*meant) == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (from, to) = (folded(*from.min(to)), folded(*from.max(to)));
                found |= (from..=to).contains(&byte);
                at += 3;
            }
            [meant, ..] => {
                found |= folded(*meant) == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_like_redis() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("*b*", "abc", true),
            ("a*d", "abc", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a[", "a", false),
            ("**a", "bca", true),
            ("a", "A", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), is, "{pattern} {text}");
        }
        assert!(matches(b"APPEND*", b"appendonly", true));
        // A pattern that takes exponential time if every star backtracks.
        assert!(!matches(format!("{}b", "a*".repeat(40)).as_bytes(), "a".repeat(5000).as_bytes(), false));
    }
}
