//! Parameters of tools: their JSON schemas, and arguments checked against them. One table serves both.

use serde_json::{Map, Value, json};

/// What a parameter takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterKind {
    /// A text.
    Text,
    /// A whole number in a range, both ends included.
    Integer(u64, u64),
    /// A number from 0 to 1.
    Share,
    /// True or false.
    Boolean,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A JSON object.
    Object,
}

/// A parameter of a tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: ParameterKind,
    pub(crate) is_required: bool,
    pub(crate) description: &'static str,
}

/// Why a call of a tool gave no result; the text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolError(pub(crate) String);

impl From<annals::Error> for ToolError {
    fn from(error: annals::Error) -> Self {
        Self(error.to_string())
    }
}

/// Arguments of a call that fit their parameters.
#[derive(Debug, Default)]
pub(crate) struct Arguments(Map<String, Value>);

impl Arguments {
    /// Checks the arguments of a call. A null counts as absent.
    pub(crate) fn parse(parameters: &[Parameter], mut given: Map<String, Value>) -> Result<Self, ToolError> {
        given.retain(|_, value| !value.is_null());
        if let Some(unknown) = given.keys().find(|name| !parameters.iter().any(|known| known.name == *name)) {
            let names: Vec<_> = parameters.iter().map(|known| known.name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let unknown: String = unknown.chars().take(60).collect();
            return Err(ToolError(format!("unknown argument {unknown:?}; the tool takes: {known}")));
        }
        for parameter in parameters {
            match given.get(parameter.name) {
                None if parameter.is_required => {
                    return Err(ToolError(format!("the argument {:?} is missing", parameter.name)));
                }
                Some(value) if !parameter.kind.admits(value) => {
                    let (name, wanted) = (parameter.name, parameter.kind.describe());
                    return Err(ToolError(format!("the argument {name:?} must be {wanted}")));
                }
                _ => {}
            }
        }
        Ok(Self(given))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    pub(crate) fn share(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.boolean(name).unwrap_or(false)
    }

    pub(crate) fn boolean(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<&str> {
        let list = self.0.get(name).and_then(Value::as_array);
        list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }

    pub(crate) fn object(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }
}

impl ParameterKind {
    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Integer(least, greatest) => {
                value.as_u64().is_some_and(|number| (least..=greatest).contains(&number))
            }
            Self::Share => value.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)),
            Self::Boolean => value.is_boolean(),
            Self::OneOf(allowed) => value.as_str().is_some_and(|text| allowed.contains(&text)),
            Self::Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            Self::Object => value.is_object(),
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Integer(least, greatest) if greatest == u64::from(u32::MAX) => {
                format!("a whole number from {least}")
            }
            Self::Integer(least, greatest) => format!("a whole number from {least} to {greatest}"),
            Self::Share => "a number from 0 to 1".to_owned(),
            Self::Boolean => "true or false".to_owned(),
            Self::OneOf(allowed) => format!("one of: {}", allowed.join(", ")),
            Self::Texts => "a list of texts".to_owned(),
            Self::Object => "an object".to_owned(),
        }
    }

    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Integer(least, greatest) => {
                json!({ "type": "integer", "minimum": least, "maximum": greatest })
            }
            Self::Share => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::OneOf(allowed) => json!({ "type": "string", "enum": allowed }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::Object => json!({ "type": "object" }),
        }
    }
}

/// The JSON schema (draft 2020-12) of a tool's arguments.
pub(crate) fn schema(parameters: &[Parameter]) -> Map<String, Value> {
    let mut properties = Map::new();
    for parameter in parameters {
        let mut schema = parameter.kind.schema();
        schema["description"] = parameter.description.into();
        properties.insert(parameter.name.to_owned(), schema);
    }
    let required: Vec<_> =
        parameters.iter().filter(|parameter| parameter.is_required).map(|parameter| parameter.name).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Parameter, ParameterKind, schema};
    use serde_json::{Value, json};

    const PARAMETERS: &[Parameter] = &[
        Parameter { name: "run", kind: ParameterKind::Text, is_required: true, description: "the run" },
        Parameter {
            name: "limit",
            kind: ParameterKind::Integer(1, 100),
            is_required: false,
            description: "how many",
        },
        Parameter {
            name: "status",
            kind: ParameterKind::OneOf(&["ok", "failed"]),
            is_required: false,
            description: "which",
        },
    ];

    fn parse(value: Value) -> Result<Arguments, String> {
        let Value::Object(given) = value else { panic!("an object") };
        Arguments::parse(PARAMETERS, given).map_err(|error| error.0)
    }

    #[test]
    fn arguments_outside_the_table_are_refused_by_name() {
        assert_eq!(parse(json!({})).unwrap_err(), "the argument \"run\" is missing");
        assert_eq!(
            parse(json!({ "run": "a", "statu": "ok" })).unwrap_err(),
            "unknown argument \"statu\"; the tool takes: run, limit, status"
        );
        assert_eq!(
            parse(json!({ "run": "a", "limit": 0 })).unwrap_err(),
            "the argument \"limit\" must be a whole number from 1 to 100"
        );
        assert_eq!(
            parse(json!({ "run": "a", "status": "bad" })).unwrap_err(),
            "the argument \"status\" must be one of: ok, failed"
        );
        assert_eq!(parse(json!({ "run": 3 })).unwrap_err(), "the argument \"run\" must be a text");
        let given = parse(json!({ "run": "a", "limit": null })).unwrap();
        assert_eq!((given.text("run"), given.number("limit")), (Some("a"), None));
    }

    #[test]
    fn schema_names_every_parameter() {
        let schema = Value::Object(schema(PARAMETERS));
        assert_eq!(schema["required"], json!(["run"]));
        assert_eq!(schema["properties"]["status"]["enum"], json!(["ok", "failed"]));
        assert_eq!(schema["additionalProperties"], json!(false));
    }
}
