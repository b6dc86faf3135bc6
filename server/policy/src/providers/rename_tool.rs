//! Another tool in the place of one that an answer calls.

use serde_json::Value;

/// Maximum nesting depth that is searched.
const DEPTH_MAX: usize = 32;

/// An answer's body with the calls of tool `from` as calls of tool `to`: OpenAI chat completions and responses,
/// Anthropic, Gemini, Bedrock's Converse; as a whole or as a stream of events. `None` if it calls no such tool.
#[must_use]
pub fn rename_tool_calls(body: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    if let Ok(mut whole) = serde_json::from_slice::<Value>(body) {
        let renamed = rename(&mut whole, 0, from, to);
        return if renamed { serde_json::to_vec(&whole).ok() } else { None };
    }
    let text = std::str::from_utf8(body).ok()?;
    let mut renamed = false;
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let event =
            line.strip_prefix("data:").and_then(|data| serde_json::from_str::<Value>(data.trim()).ok());
        let changed = event.and_then(|mut event| rename(&mut event, 0, from, to).then_some(event));
        renamed |= changed.is_some();
        lines.push(changed.map_or_else(|| line.to_owned(), |event| format!("data: {event}")));
    }
    renamed.then(|| lines.join("\n").into_bytes())
}

/// Renames all calls within a value; whether there were any.
fn rename(value: &mut Value, depth: usize, from: &str, to: &str) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    match value {
        Value::Array(items) => {
            items.iter_mut().fold(false, |any, item| rename(item, depth + 1, from, to) | any)
        }
        Value::Object(object) => {
            let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
            // A call by its own type, or the member that holds one.
            let mut any = matches!(kind, "tool_use" | "function_call" | "server_tool_use")
                && rename_member(object.get_mut("name"), from, to);
            for key in ["function", "functionCall", "toolUse"] {
                if let Some(Value::Object(call)) = object.get_mut(key) {
                    any |= rename_member(call.get_mut("name"), from, to);
                }
            }
            object.values_mut().fold(any, |any, member| rename(member, depth + 1, from, to) | any)
        }
        _ => false,
    }
}

fn rename_member(name: Option<&mut Value>, from: &str, to: &str) -> bool {
    match name {
        Some(name) if name == from => {
            *name = Value::from(to);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_are_renamed_in_each_providers_form() {
        for body in [
            json!({"choices":[{"message":{"tool_calls":[{"type":"function","function":{"name":"a","arguments":"{}"}}]}}]}),
            json!({"content":[{"type":"text","text":"a"},{"type":"tool_use","name":"a","input":{}}]}),
            json!({"output":[{"type":"function_call","name":"a","arguments":"{}"}]}),
            json!({"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":{}}}]}}]}),
            json!({"output":{"message":{"content":[{"toolUse":{"name":"a","input":{}}}]}}}),
        ] {
            let renamed = rename_tool_calls(body.to_string().as_bytes(), "a", "b").unwrap();
            let renamed = String::from_utf8(renamed).unwrap();
            assert!(renamed.contains("\"name\":\"b\"") && !renamed.contains("\"name\":\"a\""), "{renamed}");
            assert_eq!(rename_tool_calls(body.to_string().as_bytes(), "c", "b"), None);
        }
    }

    #[test]
    fn calls_in_events_are_renamed_and_other_lines_stay() {
        let events = "event: x\ndata: {\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"a\"}}]}}\n\ndata: [DONE]\n\n";
        let renamed = String::from_utf8(rename_tool_calls(events.as_bytes(), "a", "b").unwrap()).unwrap();
        assert!(renamed.starts_with("event: x\ndata: {") && renamed.ends_with("}\n\ndata: [DONE]\n\n"));
        assert!(renamed.contains("\"b\""));
        assert_eq!(rename_tool_calls(b"no json", "a", "b"), None);
    }
}
