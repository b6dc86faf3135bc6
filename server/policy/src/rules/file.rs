//! The three kinds of rules in a rules file. docs/record.md describes the format.

use annals::Severity;
use annals::replay::matching::Rules;
use regex::RegexBuilder;
use toml::Spanned;
use toml::de::DeValue;

use super::document::{
    Located, RulesDocument, RulesError, RulesResult, RulesSection, join_names, number, type_name, whole,
};
use crate::body_path::BodyPath;
use crate::providers::{
    ApiShape, ExpectedScalar, NamePattern, Price, Prices, SeverityRule, SeverityRules, StatusRange,
};

/// Maximum size of a rules file, in bytes: a run stores it.
pub const RULES_BYTES_MAX: usize = 256 << 10;
/// Maximum number of severity rules: each may scan every answer.
const SEVERITY_RULES_MAX: usize = 100;
/// Maximum length of a rule's `why`, in bytes.
const WHY_BYTES_MAX: usize = 512;
/// Maximum size of a compiled regular expression, in bytes; its matching time per character grows with that.
const REGEX_BYTES_MAX: usize = 256 << 10;

const KINDS: [&str; 3] = ["matcher", "severity", "price"];
const MATCHER: [&str; 3] = ["rule", "ignore", "preset"];
const SEVERITY: [&str; 20] = [
    "severity",
    "why",
    "status",
    "mount",
    "path",
    "provider",
    "api",
    "model",
    "finish_reason",
    "error_type",
    "tool",
    "contains",
    "matches",
    "duration_over_ms",
    "refusal",
    "tool_errors",
    "cut_short",
    "broken",
    "input",
    "output",
];
const PRICE: [&str; 5] = ["model", "input", "output", "cached_input", "cache_write"];

/// The user's rules. Without a file: no differences are allowed in requests, and severities and prices are
/// the built-in ones.
///
/// ```
/// use annals_policy::rules::RulesFile;
/// let rules = RulesFile::parse(r#"
///     [[matcher]]
///     rule = "mask uuid $.messages[0].content"
///     [[severity]]
///     severity = "escalated"
///     why = "it deletes"
///     tool = "delete*"
///     [[price]]
///     model = "our-model"
///     input = 0.2
///     output = 0.6
/// "#)?;
/// assert_eq!(rules.prices.price("our-model:v3").map(|price| price.output), Some(0.6));
/// let error = RulesFile::parse("[[matcher]]\nignore = '$.messages'").unwrap_err();
/// assert_eq!((error.line, error.column), (2, 10));
/// # Ok::<(), annals_policy::rules::RulesError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct RulesFile {
    /// Allowed differences between requests.
    pub matcher: Rules,
    /// Rules that raise a severity.
    pub severity: SeverityRules,
    /// The built-in prices, overridden by those of the file.
    pub prices: Prices,
    text: String,
}

impl RulesFile {
    /// Parses a rules file.
    ///
    /// # Errors
    /// Says what is wrong, where, and what is allowed. Refused are: invalid TOML; unknown keys; wrong types;
    /// contradictions; rules without effect; rules that would hide a message, a prompt, tools or a model; too
    /// many rules.
    pub fn parse(text: &str) -> RulesResult<Self> {
        if text.len() > RULES_BYTES_MAX {
            let what = format!("the file has {} bytes; at most {RULES_BYTES_MAX} are allowed", text.len());
            return Err(RulesError { line: 1, column: 1, what });
        }
        let document = RulesDocument::parse(text, &KINDS)?;
        Ok(Self {
            matcher: matcher(&document)?,
            severity: severity(&document)?,
            prices: Prices::built_in().overlaid(prices(&document)?),
            text: text.to_owned(),
        })
    }

    /// The text of the file; empty if there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn matcher(document: &RulesDocument<'_>) -> RulesResult<Rules> {
    let mut rules = Rules::none();
    for section in document.sections("matcher", &MATCHER)? {
        let mut all = Vec::new();
        for (key, of) in [
            ("rule", Rules::rule as fn(Rules, &str) -> annals::Result<Rules>),
            ("ignore", Rules::ignore),
            ("preset", Rules::preset),
        ] {
            all.extend(section.texts(key)?.into_iter().map(|text| (of, text)));
        }
        if all.is_empty() {
            return Err(section.wrong(format_args!("is empty; it takes {}", join_names(MATCHER))));
        }
        for (of, Located { value, at }) in all {
            rules = of(rules, value).map_err(|error| section.wrong_at(at, error.to_string()))?;
        }
    }
    Ok(rules)
}

fn severity(document: &RulesDocument<'_>) -> RulesResult<SeverityRules> {
    let mut rules = Vec::new();
    for section in document.sections("severity", &SEVERITY)? {
        if rules.len() == SEVERITY_RULES_MAX {
            return Err(
                section.wrong(format_args!("is one more than the {SEVERITY_RULES_MAX} that are allowed"))
            );
        }
        rules.push(severity_rule(&section)?);
    }
    Ok(SeverityRules::new(rules))
}

fn severity_rule(section: &RulesSection<'_, '_>) -> RulesResult<SeverityRule> {
    let names = |key: &str| names(section, key);
    let rule = SeverityRule {
        severity: raised_severity(section)?,
        why: why(section)?,
        status: section
            .values("status")?
            .into_iter()
            .map(|value| statuses(section, value))
            .collect::<RulesResult<_>>()?,
        mount: names("mount")?,
        path: names("path")?,
        provider: names("provider")?,
        api: apis(section)?,
        model: names("model")?,
        finish_reason: names("finish_reason")?,
        error_type: names("error_type")?,
        tool: names("tool")?,
        contains: section.texts("contains")?.into_iter().map(|text| text.value.to_owned()).collect(),
        matches: section.text("matches")?.map(|text| regex(section, text)).transpose()?,
        duration_over_ms: section.whole("duration_over_ms")?,
        refusal: section.boolean("refusal")?,
        tool_errors: section.boolean("tool_errors")?,
        cut_short: section.boolean("cut_short")?,
        broken: section.boolean("broken")?,
        input: places(section, "input")?,
        output: places(section, "output")?,
    };
    if rule.conditions() == 0 {
        let conditions = join_names(SEVERITY.iter().skip(2));
        return Err(
            section.wrong(format_args!("has no condition and would always match; there are {conditions}"))
        );
    }
    Ok(rule)
}

fn raised_severity(section: &RulesSection<'_, '_>) -> RulesResult<Severity> {
    const ALLOWED: &str = "severity is \"flagged\" or \"escalated\"";
    let Some(text) = section.text("severity")? else {
        return Err(section.wrong(format_args!("lacks severity; {ALLOWED}")));
    };
    match text.value {
        "flagged" => Ok(Severity::Flagged),
        "escalated" => Ok(Severity::Escalated),
        "normal" | "debug" => Err(section.wrong_at(text.at, format!("no rule lowers a severity: {ALLOWED}"))),
        other => Err(section.wrong_at(text.at, format!("{ALLOWED}, and not {other:?}"))),
    }
}

fn why(section: &RulesSection<'_, '_>) -> RulesResult<String> {
    let Some(text) = section.text("why")? else {
        return Err(section.wrong("lacks why: it names the rule on each flagged frame"));
    };
    if text.value.len() > WHY_BYTES_MAX || text.value.chars().any(char::is_control) {
        let what = format!("why is one line of at most {WHY_BYTES_MAX} bytes, without control characters");
        return Err(section.wrong_at(text.at, what));
    }
    Ok(text.value.to_owned())
}

/// Names in which `*` is allowed only at the end.
fn names(section: &RulesSection<'_, '_>, key: &str) -> RulesResult<Vec<NamePattern>> {
    let name = |text: Located<&str>| match text.value.find('*') {
        Some(at) if at + 1 < text.value.len() => {
            Err(section.wrong_at(text.at, format!("in {key} a * stands at the end only, for any rest")))
        }
        _ => Ok(NamePattern::parse(text.value)),
    };
    section.texts(key)?.into_iter().map(name).collect()
}

/// Names of interfaces; each must be known.
fn apis(section: &RulesSection<'_, '_>) -> RulesResult<Vec<NamePattern>> {
    let names = names(section, "api")?;
    for (name, text) in names.iter().zip(section.texts("api")?) {
        if !ApiShape::ALL.iter().any(|shape| name.is(shape.name())) {
            let there = join_names(ApiShape::ALL.iter().map(|shape| shape.name()));
            return Err(
                section.wrong_at(text.at, format!("there is no api {:?}; there are {there}", text.value))
            );
        }
    }
    Ok(names)
}

/// A status (`429`) or a class of statuses (`"5xx"`).
fn statuses(section: &RulesSection<'_, '_>, value: &Spanned<DeValue<'_>>) -> RulesResult<StatusRange> {
    let wrong = || {
        let what = "status is a number from 100 to 599, a class such as \"5xx\", or a list of these";
        section.wrong_at(value.span().start, format!("{what}, and this is {}", type_name(value.get_ref())))
    };
    let from = match value.get_ref() {
        DeValue::String(class) => {
            let hundreds = class.strip_suffix("xx").and_then(|digit| digit.parse::<u16>().ok());
            let from = hundreds.filter(|digit| (1..=5).contains(digit)).ok_or_else(wrong)? * 100;
            return Ok(StatusRange { from, to: from + 99 });
        }
        other => whole(other).and_then(|status| u16::try_from(status).ok()),
    };
    let from = from.filter(|status| (100..=599).contains(status)).ok_or_else(wrong)?;
    Ok(StatusRange { from, to: from })
}

fn regex(section: &RulesSection<'_, '_>, text: Located<&str>) -> RulesResult<regex::Regex> {
    RegexBuilder::new(text.value).size_limit(REGEX_BYTES_MAX).build().map_err(|error| {
        let why = match error {
            regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
            // The last line of the error says what is wrong; the lines before it draw the position.
            other => other.to_string().lines().last().unwrap_or_default().trim().to_owned(),
        };
        section.wrong_at(text.at, format!("matches is a regular expression without backreferences: {why}"))
    })
}

/// Expected values by their path in a body.
fn places(section: &RulesSection<'_, '_>, key: &str) -> RulesResult<Vec<(BodyPath, ExpectedScalar)>> {
    let of = |(place, value): (Located<&str>, &Spanned<DeValue<'_>>)| {
        let path = BodyPath::parse(place.value).map_err(|why| section.wrong_at(place.at, why))?;
        let wanted = match value.get_ref() {
            DeValue::String(text) => Some(ExpectedScalar::Text(text.clone().into_owned())),
            DeValue::Boolean(truth) => Some(ExpectedScalar::Truth(*truth)),
            other => whole(other)
                .map(ExpectedScalar::Whole)
                .or_else(|| number(other).filter(|number| number.is_finite()).map(ExpectedScalar::Number)),
        };
        let wrong = || {
            let what = format!(
                "{} is a text, a number, true or false, and not {}",
                place.value,
                type_name(value.get_ref())
            );
            section.wrong_at(value.span().start, what)
        };
        Ok((path, wanted.ok_or_else(wrong)?))
    };
    section.table(key)?.into_iter().map(of).collect()
}

fn prices(document: &RulesDocument<'_>) -> RulesResult<Prices> {
    let mut prices = Prices::none();
    for section in document.sections("price", &PRICE)? {
        let Some(model) = section.text("model")? else {
            return Err(section.wrong("lacks model; model and input are required, the rest is optional"));
        };
        if model.value.contains('*') {
            let what = "a price applies to every model with this prefix: leave out the *";
            return Err(section.wrong_at(model.at, what));
        }
        let Some(input) = section.amount("input")? else {
            return Err(section.wrong("lacks input: US dollars per million request tokens"));
        };
        let price = Price {
            input,
            output: section.amount("output")?.unwrap_or(0.0),
            cached_input: section.amount("cached_input")?,
            cache_write: section.amount("cache_write")?,
        };
        if !prices.add(model.value, price) {
            return Err(section.wrong_at(model.at, format!("there is a price for {:?} already", model.value)));
        }
    }
    Ok(prices)
}
