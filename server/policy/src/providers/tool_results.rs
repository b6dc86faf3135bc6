//! Tool results that a request carries back to a model.

use serde_json::{Map, Value};

use super::summary::ExchangeSummary;

/// Maximum nesting depth that is searched.
const DEPTH_MAX: usize = 32;

/// The ids of the tool calls whose results a request carries, in order. Results without an id are skipped.
#[must_use]
pub fn tool_result_ids(request: &Value) -> Vec<String> {
    let mut ids = Vec::new();
    let mut copy = request.clone();
    each_result(&mut copy, 0, &mut |id, _| {
        if !ids.iter().any(|of| of == id) {
            ids.push(id.to_owned());
        }
    });
    ids
}

impl ExchangeSummary {
    /// Whether the answer calls tools, or the request carries tool results.
    pub fn has_tools(&self, request: &[u8]) -> bool {
        self.shape.is_model_call() && (!self.tool_calls.is_empty() || brings_results(request))
    }
}

/// Whether a request may carry tool results, by a keyword of each provider's form: avoids parsing a long
/// conversation.
fn brings_results(request: &[u8]) -> bool {
    const WORDS: [&str; 6] = [
        "tool_call_id",
        "tool_name",
        "tool_result",
        "function_call_output",
        "functionResponse",
        "toolResult",
    ];
    let has = |word: &str| memchr::memmem::find(request, format!("\"{word}\"").as_bytes()).is_some();
    WORDS.into_iter().any(has)
}

/// Replaces every result of a tool call by a text; `false` if there is none.
pub fn set_tool_result(request: &mut Value, wanted: &str, text: &str) -> bool {
    let mut found = false;
    each_result(request, 0, &mut |id, result| {
        if id == wanted {
            *result = match result {
                // Gemini's results are objects.
                Value::Object(_) => {
                    serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or_else(|| {
                        Value::Object(Map::from_iter([("result".to_owned(), Value::from(text))]))
                    })
                }
                // Bedrock's Converse accepts only blocks.
                Value::Array(blocks) if blocks.iter().any(is_converse_block) => {
                    serde_json::json!([{ "text": text }])
                }
                _ => Value::from(text),
            };
            found = true;
        }
    });
    found
}

fn is_converse_block(block: &Value) -> bool {
    block.get("type").is_none() && ["text", "json"].iter().any(|key| block.get(*key).is_some())
}

/// Calls `seen` for every tool result in a value, with its call's id.
fn each_result(value: &mut Value, depth: usize, seen: &mut dyn FnMut(&str, &mut Value)) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_result(item, depth + 1, seen)),
        Value::Object(object) => {
            if let Some((id, member)) = result_of(object) {
                let id = id.to_owned();
                if let Some(result) = object.get_mut(member) {
                    seen(&id, result);
                }
                return;
            }
            object.values_mut().for_each(|value| each_result(value, depth + 1, seen));
        }
        _ => {}
    }
}

/// The call's id and the key of the result, if an object is a tool result: OpenAI chat completions and
/// Ollama, Anthropic, OpenAI responses, Bedrock's Converse, Gemini.
fn result_of(object: &Map<String, Value>) -> Option<(&str, &'static str)> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    match (text("role"), text("type")) {
        (Some("tool"), _) => Some((text("tool_call_id").or_else(|| text("tool_name"))?, "content")),
        (_, Some("tool_result")) => Some((text("tool_use_id")?, "content")),
        (_, Some("function_call_output")) => Some((text("call_id")?, "output")),
        (None, None) if text("toolUseId").is_some() => Some((text("toolUseId")?, "content")),
        (None, None) if object.get("response").is_some_and(Value::is_object) => {
            Some((text("id").or_else(|| text("name"))?, "response"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tool_results_are_replaced_in_each_providers_form() {
        let cases = [
            (
                json!({"messages":[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"a","content":"42"},{"role":"tool","tool_call_id":"b","content":"43"}]}),
                vec!["a", "b"],
                "/messages/1/content",
            ),
            (
                json!({"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"42"}]}]}]}),
                vec!["a"],
                "/messages/0/content/0/content",
            ),
            (
                json!({"input":[{"type":"function_call","call_id":"a","name":"f"},{"type":"function_call_output","call_id":"a","output":"42"}]}),
                vec!["a"],
                "/input/1/output",
            ),
            (
                json!({"messages":[{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"json":{"n":42}}]}}]}]}),
                vec!["a"],
                "/messages/1/content/0/toolResult/content/0/text",
            ),
            (
                json!({"contents":[{"role":"user","parts":[{"functionResponse":{"name":"a","response":{"n":42}}}]}]}),
                vec!["a"],
                "/contents/0/parts/0/functionResponse/response/result",
            ),
        ];
        for (mut request, ids, place) in cases {
            assert_eq!(tool_result_ids(&request), ids);
            assert!(brings_results(request.to_string().as_bytes()));
            let before = request.clone();
            assert!(!set_tool_result(&mut request, "z", "new"));
            assert_eq!(request, before);
            assert!(set_tool_result(&mut request, "a", "new"));
            assert_eq!(request.pointer(place), Some(&json!("new")), "{request}");
        }
    }

    #[test]
    fn other_values_are_not_replaced() {
        let mut request = json!({"messages":[{"role":"tool","content":"no id"},{"role":"user","id":"a","content":"x"}],"deep":{"type":"tool_result"}});
        let before = request.clone();
        assert!(tool_result_ids(&request).is_empty());
        assert!(!set_tool_result(&mut request, "a", "new"));
        assert_eq!(request, before);
    }
}
