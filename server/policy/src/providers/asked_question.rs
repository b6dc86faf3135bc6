//! The question that a request works on, and the conversation that it belongs to.
//!
//! One process often records many conversations. A question is identified by the hash of its conversation's
//! messages up to the question, so that the later calls of its tool loop find it again, even if other
//! conversations were recorded in between. System messages are not hashed: they often hold the time.
//!
//! A user's message is one of these:
//! - a question;
//! - a reply: a confirmation, or a statement after an answer that asks for something. It continues the
//!   question before it;
//! - a closing (`Thanks!`), which asks nothing;
//! - text of the client's own (`<system-reminder>`, `Observation:`), which is not counted.

use super::api::{ApiShape, ModelApi};
use super::blocks;
use super::json::JsonNode;
use super::messages::{PartKind, request_turns};
use super::spoken_texts::{parts, user_text};
use super::text::clip;

/// Longer texts are no closing and no confirmation.
const SHORT_WORDS_MAX: usize = 24;
/// Bytes of an answer's end that are searched for a question to the user.
const ANSWER_END_BYTES: usize = 1024;

/// The question that a request works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedQuestion {
    /// Identifies the question: a hash of its conversation's messages up to it.
    pub key: [u8; 32],
    /// The question, and the user's replies to the model's questions about it, each on a line.
    pub text: String,
    /// Whether the model has answered after the question.
    pub is_underway: bool,
    /// Whether the user's last message only closes the conversation.
    pub is_closing: bool,
}

/// The question of a request, its text cut to `bytes_max` bytes. `None` if no message of the user asks
/// anything. `body` is JSON, decoded from its content encoding.
#[must_use]
pub fn asked_question(api: &ModelApi, body: &[u8], bytes_max: usize) -> Option<AskedQuestion> {
    if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
        return None;
    }
    let fields = JsonNode::parse(body).ok()?.fields();
    let mut chain = blake3::Hasher::new();
    // Of a conversation that the provider keeps, the request holds only the new messages.
    chain.update(fields.get("previous_response_id").source().as_bytes());
    let mut asked: Option<AskedQuestion> = None;
    // The model's last text, and whether any message of the model followed the user's last one.
    let (mut answer, mut is_answered) = (String::new(), true);
    for (at, turn) in request_turns(&fields).0.into_iter().enumerate() {
        let parts = parts(at, turn);
        if parts.iter().all(|part| matches!(part.view.role.as_str(), "system" | "developer")) {
            continue;
        }
        for part in &parts {
            chain.update(&part.view.hash);
        }
        if blocks::is_model(turn) {
            let texts = parts.iter().filter(|part| part.view.kind == PartKind::Text);
            let text: Vec<String> = texts.filter_map(|part| part.content.string()).collect();
            if !text.is_empty() {
                answer = text.join("\n");
            }
            is_answered = true;
            asked.iter_mut().for_each(|asked| asked.is_underway = true);
            continue;
        }
        // Text beside a tool's result belongs to the tool loop.
        if parts.iter().any(|part| part.view.kind == PartKind::ToolResult) {
            continue;
        }
        let Some(text) = user_text(at, turn, bytes_max).filter(|text| !is_of_client(text)) else { continue };
        match &mut asked {
            Some(asked) if !is_answered => {
                // More of the same message: the first part is the question, unless it only greets.
                if asked.is_closing && !is_closing(&text) {
                    *asked = AskedQuestion::new(&chain, text);
                }
            }
            Some(asked) if !asked.is_closing && is_reply(&text, &answer) => {
                add_line(&mut asked.text, &text, bytes_max)
            }
            Some(asked) if is_closing(&text) => asked.is_closing = true,
            _ => asked = Some(AskedQuestion::new(&chain, text)),
        }
        is_answered = false;
    }
    asked
}

impl AskedQuestion {
    fn new(chain: &blake3::Hasher, text: String) -> Self {
        let is_closing = is_closing(&text);
        Self { key: *chain.finalize().as_bytes(), text, is_underway: false, is_closing }
    }
}

fn add_line(text: &mut String, line: &str, bytes_max: usize) {
    if text.len() < bytes_max {
        text.push('\n');
        text.push_str(clip(line, bytes_max.saturating_sub(text.len())));
    }
}

/// Words of which closings and greetings are made, sorted.
const CLOSING_WORDS: [&str; 78] = [
    "a",
    "afternoon",
    "again",
    "all",
    "alright",
    "and",
    "any",
    "anything",
    "appreciate",
    "appreciated",
    "assistance",
    "awesome",
    "be",
    "bye",
    "care",
    "cheers",
    "cool",
    "day",
    "did",
    "else",
    "evening",
    "everything",
    "excellent",
    "fine",
    "for",
    "friend",
    "glad",
    "good",
    "goodbye",
    "got",
    "great",
    "greetings",
    "have",
    "hello",
    "help",
    "helped",
    "helpful",
    "helping",
    "hey",
    "hi",
    "i",
    "is",
    "it",
    "later",
    "lot",
    "lovely",
    "m",
    "morning",
    "much",
    "needed",
    "nice",
    "night",
    "no",
    "nothing",
    "now",
    "ok",
    "okay",
    "perfect",
    "really",
    "s",
    "see",
    "so",
    "take",
    "thank",
    "thanks",
    "that",
    "the",
    "there",
    "this",
    "today",
    "too",
    "very",
    "was",
    "weekend",
    "wonderful",
    "you",
    "your",
    "yourself",
];
/// Words of closings that thank or take leave.
const LEAVE_WORDS: [&str; 7] = ["appreciate", "appreciated", "bye", "cheers", "goodbye", "thank", "thanks"];
/// Words of closings that accept what was offered, if they come first.
const ASSENT_WORDS: [&str; 11] = [
    "alright",
    "awesome",
    "cool",
    "excellent",
    "fine",
    "great",
    "lovely",
    "ok",
    "okay",
    "perfect",
    "wonderful",
];
/// Further words of confirmations, sorted.
const CONFIRMING_WORDS: [&str; 24] = [
    "absolutely",
    "ahead",
    "confirm",
    "confirmed",
    "continue",
    "correct",
    "do",
    "don",
    "exactly",
    "go",
    "nope",
    "please",
    "proceed",
    "right",
    "sounds",
    "sure",
    "t",
    "them",
    "then",
    "with",
    "works",
    "yeah",
    "yep",
    "yes",
];
/// Beginnings of texts that clients put into the user's messages.
const CLIENT_MARKS: [&str; 9] = [
    "<system-reminder>",
    "<environment_context>",
    "<user_instructions>",
    "<tool_result",
    "<tool_response",
    "<function_results",
    "Observation:",
    "Tool result:",
    "###STOP###",
];
/// Beginnings of answers to a closing.
const CLOSING_ANSWERS: [&str; 16] = [
    "you're welcome",
    "you\u{2019}re welcome",
    "you are welcome",
    "you're very welcome",
    "you are very welcome",
    "my pleasure",
    "no problem",
    "glad i could",
    "happy to help",
    "glad to help",
    "have a great day",
    "have a good day",
    "have a nice day",
    "have a wonderful day",
    "take care!",
    "goodbye",
];
/// Parts of questions that only offer more help.
const OFFERS: [&str; 6] = [
    "anything else",
    "something else",
    "further assistance",
    "further questions",
    "other questions",
    "else i can",
];

fn is_of_client(text: &str) -> bool {
    CLIENT_MARKS.iter().any(|mark| text.trim_start().starts_with(mark))
}

/// The words of a short text without digits and questions, in lower case.
fn short_words(text: &str) -> Option<Vec<String>> {
    if text.len() > 512 || text.contains(|letter: char| letter == '?' || letter.is_ascii_digit()) {
        return None;
    }
    let words: Vec<String> = text
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    (!words.is_empty() && words.len() <= SHORT_WORDS_MAX).then_some(words)
}

/// Whether a user's text only greets, thanks or takes leave.
fn is_closing(text: &str) -> bool {
    short_words(text)
        .is_some_and(|words| words.iter().all(|word| CLOSING_WORDS.binary_search(&word.as_str()).is_ok()))
}

/// Whether a user's text continues the question before it: a confirmation, or a statement after an answer
/// that asks for something.
fn is_reply(text: &str, answer: &str) -> bool {
    let confirms = short_words(text).is_some_and(|words| {
        let confirming = |word: &str| CONFIRMING_WORDS.binary_search(&word).is_ok();
        words.iter().any(|word| confirming(word))
            && words
                .iter()
                .all(|word| confirming(word) || CLOSING_WORDS.binary_search(&word.as_str()).is_ok())
    });
    let asks = asks_user(answer);
    if confirms && !is_closing(text) {
        // `No, thanks` after an offer closes; `Yes` confirms whatever was said.
        return true;
    }
    asks && !text.contains('?') && !takes_leave(text)
}

/// Whether a closing thanks or takes leave whatever was asked. `Okay, thanks` after a question accepts it; `No, thanks`
/// and `Thanks, have a great day` end the conversation.
fn takes_leave(text: &str) -> bool {
    let Some(words) = short_words(text).filter(|_| is_closing(text)) else { return false };
    let is_one_of = |list: &[&str], word: &String| list.contains(&word.as_str());
    let decides = |word: &&String| {
        is_one_of(&LEAVE_WORDS, word) || is_one_of(&ASSENT_WORDS, word) || is_one_of(&["no", "nothing"], word)
    };
    words.iter().any(|word| is_one_of(&LEAVE_WORDS, word))
        && !words.iter().find(decides).is_some_and(|word| is_one_of(&ASSENT_WORDS, word))
}

/// Whether an answer ends by asking the user for something, and not only by offering more help.
fn asks_user(answer: &str) -> bool {
    let answer = answer.trim_end();
    let mut from = answer.len().saturating_sub(ANSWER_END_BYTES);
    while !answer.is_char_boundary(from) {
        from += 1;
    }
    let end = answer.get(from..).unwrap_or_default().to_lowercase();
    let last = end.rsplit(['.', '!', '\n']).find(|sentence| !sentence.trim().is_empty()).unwrap_or_default();
    last.contains('?') && !OFFERS.iter().any(|offer| last.contains(offer))
}

/// Whether an answer only answers a closing.
#[must_use]
pub fn is_closing_answer(answer: &str) -> bool {
    let lower: String = answer.trim_start().chars().take(40).flat_map(char::to_lowercase).collect();
    answer.len() <= 512
        && !answer.contains(|letter: char| letter.is_ascii_digit())
        && CLOSING_ANSWERS.iter().any(|mark| lower.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::recognise;
    use serde_json::{Value, json};

    fn asked(messages: &Value) -> Option<AskedQuestion> {
        let api = recognise("POST", "/v1/chat/completions", "");
        asked_question(&api, json!({ "messages": messages }).to_string().as_bytes(), 999)
    }

    fn chat(texts: &[&str]) -> Value {
        let roles = ["user", "assistant"].into_iter().cycle();
        roles.zip(texts).map(|(role, text)| json!({ "role": role, "content": text })).collect()
    }

    const OPENAI: &str = "/v1/chat/completions";
    const CLAUDE: &str = "/v1/messages";
    const RESPONSES: &str = "/v1/responses";
    const GEMINI: &str = "/v1beta/models/g:generateContent";

    fn asks(path: &str, body: &str) -> Option<String> {
        asked_question(&recognise("POST", path, ""), body.as_bytes(), 99).map(|asked| asked.text)
    }

    #[test]
    fn question_is_the_first_unanswered_user_message() {
        for (path, body, wanted) in [
            (
                OPENAI,
                r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"caf\u00e9?"},{"role":"user","content":"b"}]}"#,
                "café?",
            ),
            (
                OPENAI,
                r#"{"messages":[{"role":"user","content":"old"},{"role":"assistant","content":"a"},{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"y"}]}]}"#,
                "x\ny",
            ),
            (
                CLAUDE,
                r#"{"system":"s","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]}]}"#,
                "q",
            ),
            (RESPONSES, r#"{"instructions":"s","input":"why"}"#, "why"),
            (
                RESPONSES,
                r#"{"input":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"input_text","text":"why"}]}]}"#,
                "why",
            ),
            (
                GEMINI,
                r#"{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"text":"b"}]},{"role":"user","parts":[{"text":"c"}]}]}"#,
                "c",
            ),
            ("/api/generate", r#"{"prompt":"p"}"#, "p"),
        ] {
            assert_eq!(asks(path, body).as_deref(), Some(wanted), "{body}");
        }
        for (path, body) in [
            (OPENAI, r#"{"messages":[{"role":"system","content":"s"}]}"#),
            (OPENAI, r#"{"messages":[{"role":"user","content":" "}]}"#),
            (OPENAI, "no JSON"),
            ("/v1/embeddings", r#"{"input":"text to embed"}"#),
            ("/other", r#"{"messages":[{"role":"user","content":"q"}]}"#),
        ] {
            assert_eq!(asks(path, body), None, "{body}");
        }
        let long = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "é".repeat(99));
        assert_eq!(asks(OPENAI, &long), Some("é".repeat(49)));
    }

    #[test]
    fn question_key_names_conversation_and_question() {
        let first = asked(&chat(&["Why #42?"])).unwrap();
        let loop_step = asked(&json!([
            { "role": "system", "content": "it is 12:01" },
            { "role": "user", "content": "Why #42?" },
            { "role": "assistant", "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": "a", "content": "x" },
        ]));
        assert_eq!(loop_step, Some(AskedQuestion { is_underway: true, ..first.clone() }));
        let next = asked(&chat(&["Why #42?", "Too low.", "And #77?"])).unwrap();
        assert_eq!((next.text.as_str(), next.is_underway), ("And #77?", false));
        let alone = asked(&chat(&["And #77?"])).unwrap();
        assert!(first.key != next.key && next.key != alone.key);
    }

    #[test]
    fn replies_continue_question_and_closings_end_it() {
        let question = "I want to cancel my flight.";
        let key = asked(&chat(&[question])).unwrap().key;
        for (texts, text, closing) in [
            (&["Done.", "Thanks!"][..], "", true),
            (
                &["Done. Is there anything else I can help you with?", "No, that's all. Thank you so much!"],
                "",
                true,
            ),
            // `Thanks!` was joined to the question as a reply to the offer, and `Have a great day!` became its answer.
            (&["Rejected: 580. Would you like me to explain how to appeal?", "Thanks!"], "", true),
            (&["Rejected: 580. Shall I send you the letter?", "No, thank you. Goodbye!"], "", true),
            (&["Rejected: 580. Shall I send you the letter?", "Thanks, have a great day!"], "", true),
            (&["Shall I book it?", "Okay, thanks!"], "\nOkay, thanks!", false),
            (&["Do you have a bag?", "No."], "\nNo.", false),
            (&["What is your id?", "It is mia_li_3668."], "\nIt is mia_li_3668.", false),
            (&["It costs 50.", "Yes, go ahead please."], "\nYes, go ahead please.", false),
            (&["Your id?", "mia_li_3668", "Done.", "Great, bye"], "\nmia_li_3668", true),
            (&["I look.", "<system-reminder>be short</system-reminder>"], "", false),
        ] {
            let found = asked(&chat(&[&[question], texts].concat())).unwrap();
            assert_eq!((found.key, found.is_closing), (key, closing), "{texts:?}");
            assert_eq!(found.text, format!("{question}{text}"), "{texts:?}");
        }
        for texts in [&["Done.", "Change my seat."][..], &["Done. Shall I book?", "What does it cost?"]] {
            assert_ne!(asked(&chat(&[&[question], texts].concat())).unwrap().key, key, "{texts:?}");
        }
        assert!(asked(&chat(&["Hi!"])).unwrap().is_closing);
        let greeted = asked(&chat(&["Hi!", "How can I help?", "Why #42?"])).unwrap();
        assert_eq!((greeted.text.as_str(), greeted.is_closing), ("Why #42?", false));
    }

    #[test]
    fn word_lists_are_sorted() {
        assert!(CLOSING_WORDS.is_sorted() && CONFIRMING_WORDS.is_sorted());
        assert!(
            is_closing_answer("You're welcome! Have a great day!")
                && is_closing_answer("Take care!")
                && !is_closing_answer("Take care of the deposit first, then sign.")
                && !is_closing_answer("Have a good look at the clause on deposits.")
                && !is_closing_answer("Rejected: 580.")
        );
    }
}
