//! The wire forms of the scripted agent and the scripted model: OpenAI's chat completions and Anthropic's messages.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent::ScriptedAnswer;

/// An interface that the scripted agent asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireForm {
    /// `POST /chat/completions`.
    #[default]
    OpenAi,
    /// `POST /v1/messages`.
    Anthropic,
}

/// An answer as the agent reads it.
pub(super) struct ReadAnswer {
    /// The message that later requests repeat.
    pub(super) message: Value,
    pub(super) text: String,
    /// Tool calls: an id, a name, and the arguments.
    pub(super) calls: Vec<(String, String, Value)>,
}

impl WireForm {
    /// The variable from which a client of this interface reads its base address.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::OpenAi => "OPENAI_BASE_URL",
            Self::Anthropic => "ANTHROPIC_BASE_URL",
        }
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::OpenAi => "/chat/completions",
            Self::Anthropic => "/v1/messages",
        }
    }

    /// The interface that an HTTP request line asks.
    pub(super) fn of_request_line(line: &str) -> Self {
        if line.contains("/v1/messages ") { Self::Anthropic } else { Self::OpenAi }
    }

    /// A request's body with these messages.
    pub(super) fn request(self, messages: &[Value]) -> Value {
        let system = "do the next step";
        match self {
            Self::OpenAi => {
                let first = json!({ "role": "system", "content": system });
                let all: Vec<&Value> = std::iter::once(&first).chain(messages).collect();
                json!({ "model": "scripted-1", "messages": all })
            }
            Self::Anthropic => {
                json!({ "model": "scripted-1", "max_tokens": 256, "system": system, "messages": messages })
            }
        }
    }

    /// The body of an answer. `prompt_tokens` is what the request is said to have used.
    pub(super) fn response(self, answer: &ScriptedAnswer, prompt_tokens: usize) -> Value {
        let calls = (1..).zip(&answer.calls);
        let has_calls = !answer.calls.is_empty();
        match self {
            Self::OpenAi => {
                let mut message = json!({ "role": "assistant", "content": answer.text });
                if has_calls {
                    let calls = calls.map(|(number, (name, key, value))| {
                        let arguments = json!({ "key": key, "value": value }).to_string();
                        json!({ "id": format!("call_{number}"), "type": "function",
                            "function": { "name": name, "arguments": arguments } })
                    });
                    message["tool_calls"] = calls.collect();
                }
                let finish = if has_calls { "tool_calls" } else { "stop" };
                json!({
                    "id": "scripted", "object": "chat.completion", "model": "scripted-1",
                    "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
                    "usage": { "prompt_tokens": prompt_tokens, "completion_tokens": 8 },
                })
            }
            Self::Anthropic => {
                let mut content = vec![json!({ "type": "text", "text": answer.text })];
                content.extend(calls.map(|(number, (name, key, value))| {
                    json!({ "type": "tool_use", "id": format!("toolu_{number}"), "name": name,
                        "input": { "key": key, "value": value } })
                }));
                let stop = if has_calls { "tool_use" } else { "end_turn" };
                json!({
                    "id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted-1",
                    "content": content, "stop_reason": stop, "stop_sequence": null,
                    "usage": { "input_tokens": prompt_tokens, "output_tokens": 8 },
                })
            }
        }
    }

    /// Reads an answer's body.
    pub(super) fn read(self, body: &Value) -> ReadAnswer {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match self {
            Self::OpenAi => {
                let message = body["choices"][0]["message"].clone();
                let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
                    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
                    let arguments = serde_json::from_str(arguments).unwrap_or_default();
                    (word(&call["id"]), word(&call["function"]["name"]), arguments)
                });
                let (text, calls) = (word(&message["content"]), calls.collect());
                ReadAnswer { message, text, calls }
            }
            Self::Anthropic => {
                let blocks = body["content"].as_array().map_or(&[][..], Vec::as_slice);
                let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
                let calls = of("tool_use")
                    .map(|call| (word(&call["id"]), word(&call["name"]), call["input"].clone()))
                    .collect();
                let text = of("text").map(|block| word(&block["text"])).collect();
                let message = json!({ "role": "assistant", "content": blocks });
                ReadAnswer { message, text, calls }
            }
        }
    }

    /// The message that gives a tool's result to the model.
    pub(super) fn tool_result(self, id: &str, result: &str) -> Value {
        match self {
            Self::OpenAi => json!({ "role": "tool", "tool_call_id": id, "content": result }),
            Self::Anthropic => {
                let block = json!({ "type": "tool_result", "tool_use_id": id, "content": result });
                json!({ "role": "user", "content": [block] })
            }
        }
    }
}
