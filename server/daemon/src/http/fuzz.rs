//! Fuzz target: the mapping of HTTP requests to commands.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::command_words;
use super::json::JsonMembers;
use crate::fuzzing::take_byte;
use annals_wire::schema::routes::{MemberKind, ROUTES, WordSource};

/// Input: a byte that selects a route, the path parts and the query with their lengths, then a body.
///
/// Oracle: an accepted request maps to the route's command. The path parts and every text, number and flag of
/// the body are among its words, in order; an independent JSON parser provides them. The words are limited by
/// the input's size. A member that the route does not take is refused.
pub fn http_body(mut data: &[u8]) {
    let route = &ROUTES[usize::from(take_byte(&mut data)) % ROUTES.len()];
    let (first, second, asked) = (text(&mut data), text(&mut data), text(&mut data));
    let names: Vec<&str> = route.path.split('/').filter_map(|part| part.strip_prefix('{')).collect();
    let of_path = |name: &str| {
        let at = names.iter().position(|known| known.trim_end_matches('}') == name)?;
        [first.as_str(), second.as_str()].get(at).copied()
    };
    let body = Bytes::copy_from_slice(data);
    let takes_json = route.verb == super::HttpVerb::Post;
    let parsed = if takes_json { JsonMembers::parse(data) } else { Ok(JsonMembers::default()) };
    let Ok(mut members) = parsed else { return };
    let Ok(made) = command_words(route, &of_path, &asked, &body, &mut members) else { return };
    let came = first.len() + second.len() + asked.len() + data.len();
    // The command itself is a word, even for an empty input.
    let most = 64 * (1 + route.words.len()) + 32 * came;
    assert!(made.iter().map(Vec::len).sum::<usize>() <= most, "{} bytes that came are {most}", came);
    assert_eq!(made.first().map(Vec::as_slice), Some(route.command.as_bytes()));
    if members.expect_empty().is_err() {
        return;
    }
    let read: Map<String, Value> = serde_json::from_slice(data).unwrap_or_default();
    let mut rest = made.iter().skip(1);
    let mut has = |word: &[u8], what: &str| {
        assert!(rest.any(|made| made == word), "{what} {} is not in {made:?}", word.escape_ascii());
    };
    for word in route.words {
        match *word {
            WordSource::Path(name) => has(of_path(name).unwrap_or_default().as_bytes(), name),
            WordSource::PathAt(name, at) => {
                if let Some(number) = read.get(at).and_then(Value::as_u64) {
                    has(format!("{}@{number}", of_path(name).unwrap_or_default()).as_bytes(), at);
                }
            }
            WordSource::Field(name, kind)
            | WordSource::OptionalValue(name, kind)
            | WordSource::Option(name, _, kind) => {
                let Some(value) = read.get(name).filter(|value| !value.is_null()) else { continue };
                if let WordSource::Option(_, word, _) = word
                    && *value != Value::Bool(false)
                    && !matches!(kind, MemberKind::Texts | MemberKind::Vectors)
                {
                    has(word.as_bytes(), name);
                }
                match value {
                    Value::String(text) => has(text.as_bytes(), name),
                    Value::Number(number) if number.is_u64() => has(number.to_string().as_bytes(), name),
                    _ => {}
                }
            }
            WordSource::Query(..) | WordSource::RequiredQuery(..) => {}
            WordSource::Constant(word) => has(word.as_bytes(), "the word"),
            WordSource::Body => has(data, "the body"),
        }
    }
}

/// A text preceded by its length.
fn text(data: &mut &[u8]) -> String {
    let len = usize::from(take_byte(data)).min(data.len());
    let (text, rest) = data.split_at(len);
    *data = rest;
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::http_body;

    #[test]
    fn sample_inputs_run_without_a_panic() {
        for route in 0..=255_u8 {
            http_body(&[route]);
            for body in [
                &b"{}"[..],
                b"",
                b"{\"name\":\"r\",\"tags\":{\"a\":\"b\"}}",
                b"{\"component\":\"llm\",\"request\":{\"base64\":\"/wA=\"},\"response\":\"\\u00e9\"}",
            ] {
                http_body(&[&[route, 1, b'r', 1, b'3', 9][..], b"seqno=1&x", body].concat());
                http_body(&[&[route, 1, b'r', 1, b'3', 0][..], body].concat());
            }
        }
    }
}
