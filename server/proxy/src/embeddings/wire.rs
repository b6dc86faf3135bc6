//! Encodes requests for `/v1/embeddings` and decodes the answers.

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use annals_text::visible::is_hidden;

/// Maximum characters of an error's message that are passed on.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Serialize)]
struct EmbeddingsRequest<'a> {
    model: &'a str,
    input: &'a [&'a str],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
}

/// The body of a request for the vectors of texts.
pub(super) fn request_body(model: &str, texts: &[&str], base64: bool, dimensions: Option<u32>) -> Vec<u8> {
    let encoding_format = if base64 { "base64" } else { "float" };
    let request = EmbeddingsRequest { model, input: texts, encoding_format, dimensions };
    // Serialisation of these types cannot fail.
    serde_json::to_vec(&request).unwrap_or_default()
}

#[derive(Deserialize)]
struct EmbeddingsAnswer {
    data: Vec<EmbeddingItem>,
}

#[derive(Deserialize)]
struct EmbeddingItem {
    index: Option<usize>,
    embedding: EmbeddingNumbers,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an embedding is neither numbers nor base64")]
enum EmbeddingNumbers {
    List(Vec<f32>),
    /// Base64 of the numbers, four bytes each, little-endian.
    Packed(String),
}

/// The vectors of an answer, in the order of the request's texts.
///
/// # Errors
/// A message, if the answer does not match the request.
pub(super) fn parse_answer(body: &[u8], texts: usize) -> Result<Vec<Vec<f32>>, String> {
    let answer: EmbeddingsAnswer =
        serde_json::from_slice(body).map_err(|e| format!("its answer is malformed: {e}"))?;
    if answer.data.len() != texts {
        return Err(format!("it answered {} vectors to {texts} texts", answer.data.len()));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; texts];
    for (place, one) in answer.data.into_iter().enumerate() {
        let index = one.index.unwrap_or(place);
        let slot =
            vectors.get_mut(index).ok_or_else(|| format!("it answered a vector {index} to {texts} texts"))?;
        let vector = decode_numbers(one.embedding)?;
        if let Some(at) = vector.iter().position(|number| !number.is_finite()) {
            return Err(format!("number {} of its vector {index} is not finite", at + 1));
        }
        // A zero vector has no direction: it would be stored and never found.
        if vector.iter().all(|number| *number == 0.0) {
            let what = if vector.is_empty() { "empty" } else { "all zeros" };
            return Err(format!("its vector {index} is {what}"));
        }
        if slot.replace(vector).is_some() {
            return Err(format!("it answered vector {index} twice"));
        }
    }
    // There are as many vectors as texts, and no index twice: every slot is filled.
    Ok(vectors.into_iter().flatten().collect())
}

fn decode_numbers(numbers: EmbeddingNumbers) -> Result<Vec<f32>, String> {
    let packed = match numbers {
        EmbeddingNumbers::List(list) => return Ok(list),
        EmbeddingNumbers::Packed(text) => base64::engine::general_purpose::STANDARD.decode(text),
    };
    let packed = packed.map_err(|e| format!("its vector is not base64: {e}"))?;
    let (numbers, rest) = packed.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!(
            "its vector in base64 has {} bytes, which is not a multiple of four",
            packed.len()
        ));
    }
    Ok(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The message in an error's body, shortened.
pub(super) fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ErrorBody {
        Deep { error: ErrorMessageBody },
        Flat { error: String },
        Detail { message: String },
    }
    #[derive(Deserialize)]
    struct ErrorMessageBody {
        message: String,
    }
    let text = match serde_json::from_slice(body) {
        Ok(
            ErrorBody::Deep { error: ErrorMessageBody { message } }
            | ErrorBody::Flat { error: message }
            | ErrorBody::Detail { message },
        ) => message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let plain = text.trim().chars().map(|letter| if is_hidden(letter) { ' ' } else { letter });
    plain.take(ERROR_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_vectors_follow_text_order_in_both_encodings() {
        let body = br#"{"object":"list","data":[{"index":1,"embedding":[0.5,-1]},{"index":0,"embedding":"AACAPwAAAEA="}],"model":"m"}"#;
        assert_eq!(parse_answer(body, 2).unwrap(), [vec![1.0, 2.0], vec![0.5, -1.0]]);
        let unnumbered = br#"{"data":[{"embedding":[1]},{"embedding":[2]}]}"#;
        assert_eq!(parse_answer(unnumbered, 2).unwrap(), [vec![1.0], vec![2.0]]);
    }

    #[test]
    fn answer_that_does_not_match_request_is_refused() {
        for (body, why) in [
            ("", "its answer is malformed"),
            ("{}", "its answer is malformed"),
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 vectors to 2 texts"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[2]}]}"#, "vector 0 twice"),
            (
                r#"{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[2]}]}"#,
                "a vector 2 to 2 texts",
            ),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1e999]}]}"#, "malformed"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":"AADAfw=="}]}"#, "not finite"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":"AAA="}]}"#, "2 bytes"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":"?"}]}"#, "not base64"),
            (
                r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[null]}]}"#,
                "neither numbers nor base64",
            ),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[]}]}"#, "vector 1 is empty"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":""}]}"#, "vector 1 is empty"),
            (
                r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[0,-0.0]}]}"#,
                "vector 1 is all zeros",
            ),
        ] {
            let refused = parse_answer(body.as_bytes(), 2).unwrap_err();
            assert!(refused.contains(why), "{body}: {refused}");
        }
        let deep = format!("{{\"data\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_answer(deep.as_bytes(), 1).is_err());
    }

    #[test]
    fn error_message_is_extracted_and_truncated() {
        assert_eq!(error_message(br#"{"error":{"message":"no such model","type":"x"}}"#), "no such model");
        assert_eq!(error_message(br#"{"error":"model not found"}"#), "model not found");
        assert_eq!(error_message(br#"{"message":"slow\ndown"}"#), "slow down");
        assert_eq!(error_message(b"<html>\x1b[2J"), "<html> [2J");
        assert_eq!(error_message("\u{e9}".repeat(999).as_bytes()).chars().count(), 300);
    }
}
