//! The texts of a frame: messages, answers, arguments and results of tools, and bodies that are text.

use std::collections::HashSet;

use annals::{Component, RecordedFrame};
use annals_memory::FrameText;
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{
    self, ConversationMessage, ConversationPart, DECODED_BYTES_MAX, WireExchange, answer_conversation,
    request_conversation,
};

use crate::frame_views::{api_and_body, chat_answer};

/// Maximum bytes of a text that are indexed.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of texts of a run that are remembered, to index each once.
const SEEN_MAX: usize = 1 << 20;

/// The texts of a run that were read already, by their hashes.
#[derive(Debug, Default)]
pub(super) struct SeenTexts(HashSet<u64>);

impl SeenTexts {
    /// Whether a text is new. Past the limit, texts are new again.
    fn is_new(&mut self, text: &str) -> bool {
        if self.0.len() >= SEEN_MAX {
            self.0.clear();
        }
        let hash = blake3::hash(text.as_bytes());
        let hash = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.0.insert(hash)
    }
}

/// The texts of a frame that the run did not have before, and whether some were cut.
pub(super) fn new_texts(frame: &RecordedFrame, seen: &mut SeenTexts) -> (FrameText, bool) {
    let mut found = FrameText { seq: frame.seq, texts: Vec::new() };
    if frame.component == Component::Nondet {
        return (found, false);
    }
    let mut is_cut = false;
    let mut add = |text: &str, cut: bool| {
        if !text.is_empty() && seen.is_new(text) {
            is_cut |= cut;
            found.texts.push(text.to_owned());
        }
    };
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
    let output_coding =
        exchange.as_ref().and_then(|exchange| exchange.volatile.response_headers.get("content-encoding"));
    let output = providers::decode(output_coding, &frame.output, DECODED_BYTES_MAX).bytes;
    match api_and_body(frame) {
        Some((api, body)) => {
            let read = request_conversation(&api, None, &body, true, TEXT_BYTES_MAX);
            match read.messages.is_empty() {
                true => add_plain(&body, &mut add),
                false => message_texts(&read.messages, &mut add),
            }
            let answer = chat_answer(exchange.as_ref(), &output);
            let (messages, _) = answer_conversation(
                &WireExchange {
                    api: &api,
                    request: b"",
                    request_encoding: None,
                    status: exchange.as_ref().map_or(Some(200), |of| of.http.status).unwrap_or(0),
                    content_type: exchange
                        .as_ref()
                        .and_then(|of| of.volatile.response_headers.get("content-type")),
                    content_encoding: None,
                    response: &answer,
                },
                TEXT_BYTES_MAX,
            );
            match messages.is_empty() {
                true => add_plain(&output, &mut add),
                false => message_texts(&messages, &mut add),
            }
        }
        None => {
            let coding = exchange.as_ref().and_then(|of| of.volatile.request_headers.get("content-encoding"));
            add_plain(&providers::decode(coding, &frame.input, DECODED_BYTES_MAX).bytes, &mut add);
            add_plain(&output, &mut add);
        }
    }
    (found, is_cut)
}

/// Calls `each` with every text of some messages, and whether it was cut.
pub(super) fn message_texts(messages: &[ConversationMessage], each: &mut dyn FnMut(&str, bool)) {
    for part in messages.iter().flat_map(|message| &message.parts) {
        match part {
            ConversationPart::Text { text, cut, .. } | ConversationPart::Thinking { text, cut, .. } => {
                each(text, *cut);
            }
            ConversationPart::ToolCall { name, arguments, cut, .. } => {
                each(&format!("{name} {arguments}"), *cut);
            }
            ConversationPart::ToolResult { text, cut, .. } => each(text, *cut),
            ConversationPart::Other { json, cut, .. } => each(json, *cut),
            ConversationPart::Image { .. } | ConversationPart::Binary { .. } => {}
        }
    }
}

/// A body that is text.
fn add_plain(body: &[u8], add: &mut dyn FnMut(&str, bool)) {
    let Ok(text) = std::str::from_utf8(body) else { return };
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    add(text.get(..end).unwrap_or_default(), end < text.len());
}
