//! A TOML document as lists of tables whose values are read by key and type. Every error gives the position
//! and what is allowed.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// An error in a rules file, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct RulesError {
    /// The line, from 1.
    pub line: usize,
    /// The character in it, from 1.
    pub column: usize,
    /// What is wrong there, and what is allowed.
    pub what: String,
}

pub(crate) type RulesResult<T> = Result<T, RulesError>;

/// A document that has only known kinds of tables.
pub(crate) struct RulesDocument<'a> {
    text: &'a str,
    tables: Spanned<DeTable<'a>>,
}

/// One table of the document.
#[derive(Clone, Copy)]
pub(crate) struct RulesSection<'d, 'a> {
    document: &'d RulesDocument<'a>,
    kind: &'static str,
    table: &'d DeTable<'a>,
    at: usize,
}

/// A value and its byte offset in the text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

type TomlValue<'a> = Spanned<DeValue<'a>>;

impl<'a> RulesDocument<'a> {
    /// Parses a document that may contain only these kinds of tables.
    pub(crate) fn parse(text: &'a str, kinds: &[&str]) -> RulesResult<Self> {
        let tables = DeTable::parse(text).map_err(|error| {
            let what = error.message().trim().replace('\n', ", ");
            wrong(text, error.span().map_or(0, |span| span.start), format!("this is not valid TOML: {what}"))
        })?;
        let document = Self { text, tables };
        for (key, value) in document.tables.get_ref().iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            if !kinds.contains(&name) {
                let there = join_names(kinds.iter().map(|kind| format!("[[{kind}]]")));
                return Err(document.wrong(at, format!("there is no table {name:?}; there are {there}")));
            }
            let tables = value.get_ref().as_array().map(|all| all.iter().all(|one| one.get_ref().is_table()));
            if tables != Some(true) {
                let what = format!("{name} is a list of tables: write [[{name}]] before each");
                return Err(document.wrong(at, what));
            }
        }
        Ok(document)
    }

    /// The tables of one kind, in document order; any key outside `keys` is an error.
    pub(crate) fn sections<'d>(
        &'d self,
        kind: &'static str,
        keys: &[&str],
    ) -> RulesResult<Vec<RulesSection<'d, 'a>>> {
        let mut sections = Vec::new();
        let found = self.tables.get_ref().get(kind).and_then(|found| found.get_ref().as_array());
        for value in found.into_iter().flat_map(|all| all.iter()) {
            let Some(table) = value.get_ref().as_table() else { continue };
            for key in table.keys() {
                if !keys.contains(&key.get_ref().as_ref()) {
                    let there = join_names(keys);
                    let what = format!("{:?} is not a key of [[{kind}]]; allowed are {there}", key.get_ref());
                    return Err(self.wrong(key.span().start, what));
                }
            }
            sections.push(RulesSection { document: self, kind, table, at: value.span().start });
        }
        Ok(sections)
    }

    pub(crate) fn wrong(&self, at: usize, what: impl Into<String>) -> RulesError {
        wrong(self.text, at, what.into())
    }
}

impl<'d, 'a> RulesSection<'d, 'a> {
    /// An error at the table's position.
    pub(crate) fn wrong(&self, what: impl std::fmt::Display) -> RulesError {
        self.document.wrong(self.at, format!("this [[{}]] {what}", self.kind))
    }

    /// An error at the position of one of its values.
    pub(crate) fn wrong_at(&self, at: usize, what: impl Into<String>) -> RulesError {
        self.document.wrong(at, what)
    }

    fn get(&self, key: &str) -> Option<&'d TomlValue<'a>> {
        self.table.get(key)
    }

    fn type_error(&self, key: &str, value: &TomlValue<'a>, wanted: &str) -> RulesError {
        let what = format!("{key} is {wanted}, and this is {}", type_name(value.get_ref()));
        self.document.wrong(value.span().start, what)
    }

    /// A non-empty text.
    pub(crate) fn text(&self, key: &str) -> RulesResult<Option<Located<&'d str>>> {
        self.get(key).map(|value| self.one_text(key, value, "a text")).transpose()
    }

    fn one_text(&self, key: &str, value: &'d TomlValue<'a>, wanted: &str) -> RulesResult<Located<&'d str>> {
        let at = value.span().start;
        match value.get_ref().as_str() {
            Some("") => Err(self.document.wrong(at, format!("{key} is empty"))),
            Some(text) => Ok(Located { value: text, at }),
            None => Err(self.type_error(key, value, wanted)),
        }
    }

    /// A text or a list of texts; empty if the key is absent.
    pub(crate) fn texts(&self, key: &str) -> RulesResult<Vec<Located<&'d str>>> {
        let wanted = "a text or a list of texts";
        self.values(key)?.into_iter().map(|value| self.one_text(key, value, wanted)).collect()
    }

    /// As [`RulesSection::texts`], but an empty list is allowed and is distinct from an absent key.
    pub(crate) fn optional_texts(&self, key: &str) -> RulesResult<Option<Vec<Located<&'d str>>>> {
        match self.get(key).map(|value| value.get_ref().as_array()) {
            None => Ok(None),
            Some(Some(all)) if all.is_empty() => Ok(Some(Vec::new())),
            Some(_) => self.texts(key).map(Some),
        }
    }

    /// A value, or each value of a non-empty list.
    pub(crate) fn values(&self, key: &str) -> RulesResult<Vec<&'d TomlValue<'a>>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        match value.get_ref().as_array() {
            Some(all) if all.is_empty() => Err(self
                .document
                .wrong(value.span().start, format!("{key} is an empty list and would never match"))),
            Some(all) => Ok(all.iter().collect()),
            None => Ok(vec![value]),
        }
    }

    /// A boolean.
    pub(crate) fn boolean(&self, key: &str) -> RulesResult<Option<bool>> {
        let of = |value: &TomlValue<'a>| {
            value.get_ref().as_bool().ok_or_else(|| self.type_error(key, value, "true or false"))
        };
        self.get(key).map(of).transpose()
    }

    /// An integer of 0 or more.
    pub(crate) fn whole(&self, key: &str) -> RulesResult<Option<u64>> {
        let of = |value: &'d TomlValue<'a>| {
            let number = whole(value.get_ref()).and_then(|number| u64::try_from(number).ok());
            number.ok_or_else(|| self.type_error(key, value, "a whole number of 0 or more"))
        };
        self.get(key).map(of).transpose()
    }

    /// A number of 0 or more.
    pub(crate) fn amount(&self, key: &str) -> RulesResult<Option<f64>> {
        let of = |value: &'d TomlValue<'a>| {
            let amount = number(value.get_ref()).filter(|amount| amount.is_finite() && *amount >= 0.0);
            amount.ok_or_else(|| self.type_error(key, value, "a number of 0 or more"))
        };
        self.get(key).map(of).transpose()
    }

    /// A table whose keys are arbitrary, in key order.
    pub(crate) fn table(&self, key: &str) -> RulesResult<Vec<(Located<&'d str>, &'d TomlValue<'a>)>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wanted = "a table of places and values, as { \"$.error.code\" = \"overloaded\" }";
        let table = value.get_ref().as_table().ok_or_else(|| self.type_error(key, value, wanted))?;
        if table.is_empty() {
            return Err(self.document.wrong(value.span().start, format!("{key} is empty")));
        }
        let of = |(key, value): (&'d Spanned<_>, _)| {
            let name: &'d std::borrow::Cow<'a, str> = key.get_ref();
            (Located { value: name.as_ref(), at: key.span().start }, value)
        };
        Ok(table.iter().map(of).collect())
    }
}

/// An integer.
pub(crate) fn whole(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A number with or without a fraction.
pub(crate) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value.as_float() {
        Some(number) => number.as_str().parse().ok(),
        #[expect(clippy::cast_precision_loss, reason = "exact to 2^53; no price is greater")]
        None => whole(value).map(|number| number as f64),
    }
}

/// The type of a value, for error texts.
pub(crate) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Joins names as `a, b and c`.
pub(crate) fn join_names<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    match (names.pop(), names.as_slice()) {
        (Some(last), []) => last,
        (Some(last), first) => format!("{} and {last}", first.join(", ")),
        (None, _) => String::new(),
    }
}

fn wrong(text: &str, at: usize, what: String) -> RulesError {
    let before = text.get(..text.floor_char_boundary(at)).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    RulesError { line: before.matches('\n').count() + 1, column, what }
}
