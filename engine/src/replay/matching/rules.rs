//! Rules about the parts of a request that may differ from run to run, and about those that must not.
//!
//! An *ignore* rule removes a value from both requests before they are compared. A *mask* rule replaces parts
//! of strings that have a shape. A *query* rule leaves out a key of the query.
//!
//! Invariant: no rule hides a message, a prompt, a tool or a model. A rule that could is refused when it is
//! made, by the member names of providers' requests. If a path contains such a name, it may ignore only an
//! id, a time or the like inside. A mask never changes a model's name.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::replay::matching::json::Json;
use crate::replay::matching::path::{Path, PathStep};
use crate::replay::matching::shape::Shape;

/// Maximum number of rules in one set: each may read the whole body.
const RULES_MAX: usize = 64;
/// Maximum length of a query key in a rule, in bytes.
const QUERY_KEY_BYTES_MAX: usize = 256;

/// Members that hold the conversation, the tools, or a whole nested request.
const CONVERSATION_KEYS: [&str; 31] = [
    "messages",
    "message",
    "input",
    "inputs",
    "contents",
    "content",
    "parts",
    "part",
    "text",
    "system",
    "systemInstruction",
    "system_instruction",
    "instructions",
    "tools",
    "tool_calls",
    "toolConfig",
    "functions",
    "function",
    "function_call",
    "functionCall",
    "functionResponse",
    "arguments",
    "output",
    "query",
    "documents",
    "request",
    "requests",
    "generateContentRequest",
    "params",
    "body",
    "inputText",
];
/// Members that no rule may hide: the model, a prompt, and names that stand for a whole conversation.
const UNHIDEABLE_KEYS: [&str; 13] = [
    "model",
    "models",
    "modelId",
    "model_id",
    "modelVersion",
    "prompt",
    "prompts",
    "prompt_id",
    "promptId",
    "previous_response_id",
    "conversation",
    "cachedContent",
    "cached_content",
];
/// Members that a mask does not change: a model's name may contain a date.
const MODEL_KEYS: [&str; 5] = ["model", "models", "modelId", "model_id", "modelVersion"];
/// Member names that may be ignored within a conversation, in addition to those that end like an id.
const VOLATILE_KEYS: [&str; 14] = [
    "id",
    "uuid",
    "nonce",
    "timestamp",
    "time",
    "date",
    "created",
    "created_at",
    "createdAt",
    "updated_at",
    "updatedAt",
    "cache_control",
    "signature",
    "thoughtSignature",
];

/// Names of the built-in rule sets.
pub const PRESETS: [&str; 4] = ["none", "gemini", "bedrock", "redacting"];

/// The rules for leaving out parts of a request when it is compared.
///
/// ```
/// use annals::matching::{Rules, Shape};
/// let rules = Rules::none()
///     .ignore("$.metadata.request_id")?
///     .mask("$.messages[0].content", Shape::Time)?
///     .rule("query api-version")?;
/// assert!(rules.ignore("$.messages").is_err());
/// # Ok::<(), annals::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    ignored: Vec<Path>,
    masked: Vec<(Path, Shape)>,
    query: Vec<String>,
}

impl Rules {
    /// No rules. Requests are then the same if their JSON values are equal; spacing and the order of members
    /// do not matter.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a set of [`PRESETS`]. `gemini` leaves out the query key `key`. `bedrock` leaves out the query
    /// keys of a signed request. `redacting` leaves out the query keys `key` and `api_key`, and the top-level
    /// members `idempotency_key` and `request_id`.
    ///
    /// # Errors
    /// `Invalid` for an unknown name.
    pub fn preset(self, name: &str) -> Result<Self> {
        let (query, paths): (&[&str], &[&str]) = match name {
            "none" => (&[], &[]),
            "gemini" => (&["key"], &[]),
            "bedrock" => (
                &[
                    "authorization",
                    "x-amz-credential",
                    "x-amz-date",
                    "x-amz-security-token",
                    "x-amz-signature",
                    "x-amz-content-sha256",
                ],
                &[],
            ),
            "redacting" => (&["key", "api_key"], &["$.idempotency_key", "$.request_id"]),
            _ => {
                let there = PRESETS.join(", ");
                return Err(Error::invalid(format!("unknown matcher {name:?}; known matchers: {there}")));
            }
        };
        let with = query.iter().try_fold(self, |rules, key| rules.ignore_query(key))?;
        paths.iter().try_fold(with, |rules, path| rules.ignore(path))
    }

    /// Ignores the values at a path, such as `$.user`, `$.messages[*].tool_call_id` or `$..request_id`.
    ///
    /// # Errors
    /// `Invalid` for a malformed path, and for too many rules. Also for a path that would hide a message, a
    /// prompt, tools, a model or the whole request.
    pub fn ignore(mut self, path: &str) -> Result<Self> {
        let path = Path::parse(path)?;
        if let Some(why) = hiding_reason(&path.0) {
            return Err(Error::invalid(format!(
                "a rule that ignores {path} is refused: {why}; a rule must not hide a whole message, prompt or model. \
                 To leave out ids or times inside of a text, mask them"
            )));
        }
        self.ignored.push(path);
        self.check_count()
    }

    /// Masks the values of a shape in the strings (and numbers) at a path and below it. `$` and `$..` mean
    /// the whole body.
    ///
    /// # Errors
    /// `Invalid` for a malformed path or one that leads to a model, for numbers everywhere, and for too many
    /// rules.
    pub fn mask(mut self, path: &str, shape: Shape) -> Result<Self> {
        let path = Path::parse(if path == "$.." { "$" } else { path })?;
        let refused =
            |why: &str| Err(Error::invalid(format!("a rule that masks {shape} at {path} is refused: {why}")));
        let named = |step: &PathStep| matches!(step, PathStep::Member(name) | PathStep::Anywhere(name) if is_any(&MODEL_KEYS, name));
        if path.0.iter().any(named) {
            return refused("another model gives another answer");
        }
        let anywhere = |step: &PathStep| matches!(step, PathStep::Every | PathStep::Anywhere(_));
        if shape == Shape::Number && path.0.iter().all(anywhere) {
            return refused("it would hide every number of every message; give a narrower path");
        }
        self.masked.push((path, shape));
        self.check_count()
    }

    /// Leaves out a key of the query; upper and lower case are equal.
    ///
    /// # Errors
    /// `Invalid` for a key that is empty, longer than 256 bytes or malformed, and for one that names the
    /// model. Also for too many rules.
    pub fn ignore_query(mut self, key: &str) -> Result<Self> {
        if key.is_empty() || key.len() > QUERY_KEY_BYTES_MAX || key.contains(['&', '=', '?', '#', ' ']) {
            return Err(Error::invalid(format!("{key:?} is not a valid query key")));
        }
        if is_any(&UNHIDEABLE_KEYS, key) {
            return Err(Error::invalid(format!(
                "a rule that ignores the query key {key:?} would hide a model or prompt"
            )));
        }
        self.query.push(key.to_owned());
        self.check_count()
    }

    /// Adds a rule as reports write it: `ignore PATH`, `mask SHAPE PATH` or `query KEY`.
    ///
    /// # Errors
    /// `Invalid` as in [`Self::ignore`], [`Self::mask`] and [`Self::ignore_query`], and for any other text.
    pub fn rule(self, text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a rule: write `ignore PATH`, `mask SHAPE PATH` or `query KEY`"
            ))
        };
        let (verb, rest) = text.split_once(' ').ok_or_else(wrong)?;
        match verb {
            "ignore" => self.ignore(rest),
            "query" => self.ignore_query(rest),
            "mask" => {
                let (shape, path) = rest.split_once(' ').ok_or_else(wrong)?;
                self.mask(path, shape.parse()?)
            }
            _ => Err(wrong()),
        }
    }

    fn check_count(self) -> Result<Self> {
        match self.ignored.len() + self.masked.len() + self.query.len() {
            0..=RULES_MAX => Ok(self),
            count => {
                Err(Error::invalid(format!("{count} rules are too many; at most {RULES_MAX} are allowed")))
            }
        }
    }

    /// Applies the rules to a body.
    pub(super) fn apply(&self, json: &mut Json<'_>) {
        for path in &self.ignored {
            path.each(json, &mut |value| *value = Json::Hidden);
        }
        for (path, shape) in &self.masked {
            path.each(json, &mut |value| mask(value, *shape));
        }
    }

    /// Whether the rules leave out this query key.
    pub(super) fn ignores_query(&self, key: &str) -> bool {
        self.query.iter().any(|ignored| ignored.eq_ignore_ascii_case(key))
    }
}

/// Whether a name is in the list, in any case: some providers ignore the case of names.
fn is_any(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a member with this name may be ignored even inside of a message.
pub(super) fn is_volatile(name: &str) -> bool {
    let id = ["_id", "-id", "Id", "ID", "_at", "_uuid"].iter().any(|end| name.ends_with(end));
    (id || VOLATILE_KEYS.contains(&name))
        && !is_any(&UNHIDEABLE_KEYS, name)
        && !is_any(&CONVERSATION_KEYS, name)
}

/// The reason why ignoring these steps would hide too much, if it would.
pub(super) fn hiding_reason(steps: &[PathStep]) -> Option<&'static str> {
    let Some(last) = steps.last() else { return Some("it is the whole request") };
    let name = |step: &PathStep| match step {
        PathStep::Member(name) | PathStep::Anywhere(name) => Some(name.clone()),
        _ => None,
    };
    let names: Vec<String> = steps.iter().filter_map(name).collect();
    if names.iter().any(|name| is_any(&UNHIDEABLE_KEYS, name)) {
        return Some("it leads to the model, a prompt, or a reference to a conversation");
    }
    if name(last).is_some_and(|name| is_volatile(&name)) {
        return None;
    }
    if names.iter().any(|name| is_any(&CONVERSATION_KEYS, name)) {
        return Some("it leads to messages or tools, but not to an id or a time in them");
    }
    match steps {
        // A request may be an array, and any member may hold the messages.
        [PathStep::Every | PathStep::Element(_), ..] => {
            Some("it matches any part of the request: name the member")
        }
        steps if steps.iter().any(|step| matches!(step, PathStep::Anywhere(_))) => {
            Some("`..` also searches in messages, and the name is not that of an id or a time")
        }
        _ => None,
    }
}

fn mask(json: &mut Json<'_>, shape: Shape) {
    match json {
        Json::Text(text) => {
            if let Some(masked) = shape.mask(text) {
                *text = Cow::Owned(masked);
            }
        }
        Json::Number(text) => {
            if let Some(masked) = shape.mask(text) {
                *json = Json::Text(Cow::Owned(masked));
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| mask(item, shape)),
        Json::Object(members) => {
            let mut maskable = members.iter_mut().filter(|(key, _)| !is_any(&MODEL_KEYS, key));
            maskable.by_ref().for_each(|(_, value)| mask(value, shape));
        }
        Json::Null | Json::Bool(_) | Json::Hidden => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn rules_that_hide_little_are_taken() {
        for path in [
            "$.user",
            "$.metadata",
            "$.metadata.request_id",
            "$['x trace']",
            "$.stream_options.include_usage",
            "$.messages[*].tool_call_id",
            "$.messages[*].content[*].tool_use_id",
            "$.messages[*].content[*].id",
            "$.messages[3].timestamp",
            "$.tools[*].cache_control",
            "$.contents[*].parts[*].thoughtSignature",
            "$.requests[*].custom_id",
            "$..request_id",
            "$..id",
        ] {
            Rules::none().ignore(path).unwrap();
        }
        for (path, shape) in
            [("$", Shape::Uuid), ("$..", Shape::Time), ("$.messages[0].content", Shape::Number)]
        {
            Rules::none().mask(path, shape).unwrap();
        }
        for preset in PRESETS {
            Rules::none().preset(preset).unwrap();
        }
    }

    #[test]
    fn rules_that_hide_a_message_a_prompt_or_a_model_are_refused() {
        for path in [
            "$",
            "$[*]",
            "$[0]",
            "$.*",
            "$.*.foo",
            "$..*",
            "$.messages",
            "$.Messages",
            "$['messages']",
            "$.messages[*]",
            "$.messages[0]",
            "$.messages[*].content",
            "$.messages[*].role",
            "$.messages[*].name",
            "$.messages[*].tool_calls",
            "$.messages[*].tool_calls[*].function.arguments",
            "$.messages[*].content[*]",
            "$.messages[*].content[*].text",
            "$.messages[*].content[*].image_url",
            "$.messages[*].content[*].input.city",
            "$.messages.*",
            "$..messages",
            "$..content",
            "$..text",
            "$..parts",
            "$..data",
            "$..model",
            "$.model",
            "$.modelId",
            "$.model_id",
            "$.input",
            "$.input[*].content",
            "$.contents",
            "$.contents[*].parts[*].text",
            "$.system",
            "$.system[*].text",
            "$.systemInstruction",
            "$.system_instruction.parts",
            "$.instructions",
            "$.prompt",
            "$.prompt[0]",
            "$.prompt.id",
            "$.previous_response_id",
            "$.tools",
            "$.tools[*]",
            "$.tools[*].description",
            "$.functions",
            "$.request",
            "$.request.contents",
            "$.requests[*].params",
        ] {
            let error = Rules::none().ignore(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{path}");
        }
        let error = Rules::none().ignore("$.messages").unwrap_err().to_string();
        assert!(error.contains("must not hide a whole message, prompt or model"), "{error}");
        for (path, shape) in [
            ("$.model", Shape::Time),
            ("$..modelId", Shape::HexId),
            ("$..", Shape::Number),
            ("$", Shape::Number),
        ] {
            assert_eq!(Rules::none().mask(path, shape).unwrap_err().kind(), ErrorKind::Invalid, "{path}");
        }
        for key in ["", "a=b", "a&b", "model"] {
            assert_eq!(Rules::none().ignore_query(key).unwrap_err().kind(), ErrorKind::Invalid, "{key}");
        }
    }

    #[test]
    fn rules_have_a_text_form_and_a_number() {
        let by_text = ["ignore $.user", "mask uuid $.messages[0].content", "query api-version"];
        let rules = by_text.iter().try_fold(Rules::none(), |rules, text| rules.rule(text)).unwrap();
        let by_call =
            Rules::none().ignore("$.user").and_then(|r| r.mask("$.messages[0].content", Shape::Uuid));
        assert_eq!(rules, by_call.and_then(|rules| rules.ignore_query("api-version")).unwrap());
        for bad in ["", "ignore", "ignore $.messages", "mask uuid", "mask sha1 $.a", "drop $.a"] {
            assert_eq!(Rules::none().rule(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
        assert_eq!(Rules::none().preset("gemeni").unwrap_err().kind(), ErrorKind::Invalid);
        let many = (0..=RULES_MAX).try_fold(Rules::none(), |rules, n| rules.ignore(&format!("$.x{n}")));
        assert_eq!(many.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_mask_leaves_the_models_name_alone() {
        let body = br#"{"model":"gpt-4o-2024-08-06","messages":[{"content":"2026-11-22","at":1795343107}]}"#;
        let mut json = Json::parse(body).unwrap();
        Rules::none().mask("$", Shape::Time).unwrap().apply(&mut json);
        assert_eq!(*json.member_mut("model").unwrap(), Json::Text("gpt-4o-2024-08-06".into()));
        let mut content = None;
        Path::parse("$.messages[0].content")
            .unwrap()
            .each(&mut json, &mut |value| content = Some(value.clone()));
        assert_eq!(content, Some(Json::Text(Shape::Time.placeholder().into())));
    }
}
