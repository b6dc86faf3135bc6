//! A path in a JSON body as the command line and rules write it: `$.model`, `$.messages[0].content`, `$['a
//! b']`.
//!
//! Out of scope: paths that match several places (`*`, `..`); matchers have their own paths for that.

use serde_json::Value;

/// A path in a JSON body: member names and array indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPath(Vec<BodyPathStep>);

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyPathStep {
    Member(String),
    Element(usize),
}

impl BodyPath {
    /// Parses `$.model`, `$.messages[0].content` or `$['a b']`.
    ///
    /// # Errors
    /// A sentence that names the invalid path.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a path in a body: write $.model or $.messages[0].content");
        let mut rest = text.strip_prefix('$').ok_or_else(wrong)?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = if let Some(name) = rest.strip_prefix('.') {
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (name, after) = name.split_at(end);
                (BodyPathStep::Member(name.to_owned()), after)
            } else {
                let inner = rest.strip_prefix('[').ok_or_else(wrong)?;
                let (inner, after) = inner.split_once(']').ok_or_else(wrong)?;
                match inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\'')) {
                    Some(name) => (BodyPathStep::Member(name.to_owned()), after),
                    None => (BodyPathStep::Element(inner.parse().map_err(|_| wrong())?), after),
                }
            };
            if matches!(&step, BodyPathStep::Member(name) if name.is_empty()) {
                return Err(wrong());
            }
            steps.push(step);
            rest = after;
        }
        if steps.is_empty() { Err(wrong()) } else { Ok(Self(steps)) }
    }

    /// The steps from the top.
    pub(crate) fn steps(&self) -> &[BodyPathStep] {
        &self.0
    }

    /// The value at this path, if there is one.
    #[must_use]
    pub fn get<'a>(&self, body: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(body, |at, step| match step {
            BodyPathStep::Member(name) => at.get(name.as_str()),
            BodyPathStep::Element(index) => at.get(*index),
        })
    }

    /// Sets the value at this path; returns whether that changed something. It does not if the value is there already, or
    /// if the path does not exist and cannot be created.
    pub fn set(&self, body: &mut Value, value: &Value) -> bool {
        if self.get(body) == Some(value) {
            return false;
        }
        let mut at = body;
        for step in &self.0 {
            let next = match step {
                BodyPathStep::Member(name) => {
                    at.as_object_mut().map(|object| object.entry(name.clone()).or_insert(Value::Null))
                }
                BodyPathStep::Element(number) => at.as_array_mut().and_then(|array| array.get_mut(*number)),
            };
            let Some(next) = next else { return false };
            at = next;
        }
        *at = value.clone();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::BodyPath;

    #[test]
    fn invalid_body_paths_are_refused() {
        for bad in ["", "$", "model", "$.", "$[x]", "$..a", "$.a[", "$.a['b"] {
            assert!(BodyPath::parse(bad).is_err(), "{bad}");
        }
    }
}
