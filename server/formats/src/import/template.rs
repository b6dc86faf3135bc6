//! Templates that build run names from a run's keys: `{task_id}-{trial}`.

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// An opening or closing brace is missing.
    #[error(
        "the template `{template}` has a brace without its partner; write {{{{ or }}}} for a literal brace"
    )]
    Unbalanced {
        /// The template.
        template: String,
    },
    /// A pair of braces contains no key.
    #[error("the template `{template}` has an empty pair of braces; write a key between them")]
    EmptyKey {
        /// The template.
        template: String,
    },
    /// The template has no key, so all runs would have the same name.
    #[error("the template `{template}` has no key, so that every run would have the same name")]
    NoKey {
        /// The template.
        template: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Key(String),
}

/// A parsed template: text, and keys in braces; `{{` and `}}` are literal braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdTemplate {
    parts: Vec<TemplatePart>,
}

impl std::str::FromStr for IdTemplate {
    type Err = TemplateError;

    fn from_str(template: &str) -> Result<Self, TemplateError> {
        let unbalanced = || TemplateError::Unbalanced { template: template.to_owned() };
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut chars = template.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '{' | '}' if chars.next_if_eq(&char).is_some() => text.push(char),
                '{' => {
                    let mut key = String::new();
                    loop {
                        match chars.next() {
                            Some('}') => break,
                            Some('{') | None => return Err(unbalanced()),
                            Some(char) => key.push(char),
                        }
                    }
                    if key.is_empty() {
                        return Err(TemplateError::EmptyKey { template: template.to_owned() });
                    }
                    if !text.is_empty() {
                        parts.push(TemplatePart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(TemplatePart::Key(key));
                }
                '}' => return Err(unbalanced()),
                char => text.push(char),
            }
        }
        if !text.is_empty() {
            parts.push(TemplatePart::Text(text));
        }
        if !parts.iter().any(|part| matches!(part, TemplatePart::Key(_))) {
            return Err(TemplateError::NoKey { template: template.to_owned() });
        }
        Ok(Self { parts })
    }
}

impl IdTemplate {
    /// Fills in the template. `lookup` returns a key's value as text; a key without a value is the error.
    pub(super) fn fill(&self, mut lookup: impl FnMut(&str) -> Option<String>) -> Result<String, &str> {
        let mut id = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => id.push_str(text),
                TemplatePart::Key(key) => id.push_str(&lookup(key).ok_or(key.as_str())?),
            }
        }
        Ok(id)
    }
}
