//! A request that no recorded call answers, and its report.

use std::fmt;

use crate::replay::matching::canonical::{query, route};
use crate::replay::matching::diff::{ChangeKind, Diff, Difference, shown_text};
use crate::replay::matching::rules::Rules;
use crate::replay::matching::shape::{SHAPES, Shape};

/// Query keys whose values a report must not print.
const SECRET_KEYS: [&str; 8] = [
    "key",
    "api_key",
    "apikey",
    "api-key",
    "token",
    "access_token",
    "x-amz-signature",
    "x-amz-security-token",
];

/// The kind of a divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// An unserved recorded call is similar: something in the request has changed.
    Changed,
    /// No similar call was recorded, or the program made the call more often than recorded.
    Unrecorded,
}

/// A recorded call that is similar to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearestCall {
    /// The call's frame number.
    pub seq: u32,
    /// The call's name, without the secrets in its query.
    pub name: String,
    /// Number of differing bytes, summed over all fields.
    pub distance: u64,
    /// The differing fields, at most 16.
    pub differences: Vec<Difference>,
    /// Number of further differing fields.
    pub more: usize,
}

/// A request that no recorded call answers. `Display` gives the report, a few lines long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The kind of divergence.
    pub grade: Grade,
    /// Frame number of the nearest recorded call if one is similar, else of the next recorded call; `None` if
    /// no call is left.
    pub step: Option<u32>,
    /// The name of the request, without the secrets in its query.
    pub name: String,
    /// How often this request was recorded, if all of those calls are already served.
    pub recorded_times: Option<u32>,
    /// The most similar unserved calls, the most similar first; at most 3.
    pub nearest: Vec<NearestCall>,
}

impl Divergence {
    /// Whether a time or a random id differs from the nearest recorded call. A recording that includes the
    /// draws would replay such values.
    #[must_use]
    pub fn looks_drawn(&self) -> bool {
        self.differs_in(&SHAPES.into_iter().filter(|shape| *shape != Shape::Number).collect::<Vec<_>>())
    }

    /// Whether a number differs from the nearest recorded call; `looks_drawn` implies it. The program may have
    /// drawn or computed it.
    #[must_use]
    pub fn differs_in_a_number(&self) -> bool {
        self.differs_in(&SHAPES)
    }

    fn differs_in(&self, shapes: &[Shape]) -> bool {
        self.nearest.first().is_some_and(|near| near.differences.iter().any(|one| one.is_of(shapes)))
    }
}

impl Difference {
    /// Whether the two values are equal but for parts of these shapes.
    fn is_of(&self, shapes: &[Shape]) -> bool {
        if self.looks_like.is_some_and(|shape| shapes.contains(&shape)) {
            return true;
        }
        // The text may hold several shapes; each of them is masked.
        let masked =
            |text: &str| shapes.iter().fold(text.to_owned(), |text, shape| shape.mask(&text).unwrap_or(text));
        let (recorded, asked) = (masked(&self.recorded), masked(&self.asked));
        self.kind == ChangeKind::Changed && recorded == asked && recorded != self.recorded
    }
}

/// Adds the differences of two names to `diff`.
pub(super) fn compare_names(recorded: &str, asked: &str, rules: &Rules, diff: &mut Diff) {
    let changed = |path: String, kind, recorded: &str, asked: &str, rule| Difference {
        path,
        kind,
        recorded: shown_text(recorded),
        asked: shown_text(asked),
        span: None,
        looks_like: None,
        rule,
    };
    let (a, b) = (route(recorded), route(asked));
    if a != b {
        diff.add(a.len().max(b.len()), || changed("name".to_owned(), ChangeKind::Changed, a, b, None));
    }
    let (mut a, mut b) =
        (query(recorded, rules).into_iter().peekable(), query(asked, rules).into_iter().peekable());
    loop {
        let (left, right) = match (a.peek(), b.peek()) {
            (None, None) => return,
            (Some(left), Some(right)) if left.0 == right.0 => (a.next(), b.next()),
            (Some(left), right) if right.is_none_or(|right| left.0 < right.0) => (a.next(), None),
            _ => (None, b.next()),
        };
        let (key, kind) = match (left, right) {
            (Some((key, _)), Some(_)) => (key, ChangeKind::Changed),
            (Some((key, _)), None) => (key, ChangeKind::Removed),
            (None, other) => (other.map_or("", |(key, _)| key), ChangeKind::Added),
        };
        let (old, new) = (left.map_or("", |(_, value)| value), right.map_or("", |(_, value)| value));
        if kind != ChangeKind::Changed || old != new {
            let rule = format!("query {key}");
            let rule = rules.clone().rule(&rule).is_ok().then_some(rule).filter(|_| is_secret(key));
            let hidden = |value: &str| if is_secret(key) { "(hidden)".to_owned() } else { value.to_owned() };
            diff.add(key.len() + old.len().max(new.len()), || {
                changed(format!("query.{}", shown_text(key)), kind, &hidden(old), &hidden(new), rule)
            });
        }
    }
}

fn is_secret(key: &str) -> bool {
    SECRET_KEYS.iter().any(|secret| secret.eq_ignore_ascii_case(key))
}

/// A name as a report prints it.
pub(super) fn shown_name(name: &str) -> String {
    let Some((route, query)) = name.split_once('?') else { return shown_text(name) };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, _)) if is_secret(key) => format!("{key}=(hidden)"),
        _ => pair.to_owned(),
    };
    shown_text(&format!("{route}?{}", query.split('&').map(pair).collect::<Vec<_>>().join("&")))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ChangeKind::Changed => {
                write!(f, "{}: {:?} was recorded, {:?} was asked", self.path, self.recorded, self.asked)?;
            }
            ChangeKind::Added => write!(f, "{}: not recorded, {:?} was asked", self.path, self.asked)?,
            ChangeKind::Removed => write!(f, "{}: {:?} was recorded, not asked", self.path, self.recorded)?,
        }
        if let Some(shape) = self.looks_like {
            write!(f, " (only a {shape} differs)")?;
        }
        match &self.rule {
            Some(rule) => write!(f, "; the rule `{rule}` would cover it"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "at step {step} ")?,
            None => f.write_str("after the last step ")?,
        }
        write!(f, "the program asked {}", self.name)?;
        match (self.grade, self.recorded_times) {
            (Grade::Changed, _) => f.write_str(", but the recorded request differs")?,
            (Grade::Unrecorded, Some(1)) => f.write_str(" once more than it was recorded (once)")?,
            (Grade::Unrecorded, Some(times)) => {
                write!(f, " once more than it was recorded ({times} times)")?;
            }
            (Grade::Unrecorded, None) if self.nearest.is_empty() => {
                f.write_str(", and all recorded requests are already answered")?;
            }
            (Grade::Unrecorded, None) => {
                f.write_str(", which resembles no remaining recorded request; the nearest:")?;
            }
        }
        for near in &self.nearest {
            write!(
                f,
                "\n  {} {} differs by {} byte{}",
                near.seq,
                near.name,
                near.distance,
                if near.distance == 1 { "" } else { "s" }
            )?;
            for difference in &near.differences {
                write!(f, "\n    {difference}")?;
            }
            if near.more > 0 {
                write!(f, "\n    further fields: {}", near.more)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_by_part_and_secrets_stay_hidden() {
        let mut diff = Diff::default();
        compare_names("POST /a?key=S1&x=1&y=2", "POST /b?y=3&key=S2&z=4", &Rules::none(), &mut diff);
        let text: Vec<_> = diff.differences.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                r#"name: "POST /a" was recorded, "POST /b" was asked"#,
                r#"query.key: "(hidden)" was recorded, "(hidden)" was asked; the rule `query key` would cover it"#,
                r#"query.x: "1" was recorded, not asked"#,
                r#"query.y: "2" was recorded, "3" was asked"#,
                r#"query.z: not recorded, "4" was asked"#,
            ]
        );
        let mut none = Diff::default();
        compare_names("/a?key=1&b=2", "/a?b=2&key=3", &Rules::none().preset("gemini").unwrap(), &mut none);
        assert_eq!((none.distance, none.differences.len()), (0, 0));
        assert_eq!(shown_name("POST /a?Key=S1&x=1"), "POST /a?Key=(hidden)&x=1");
    }
}
