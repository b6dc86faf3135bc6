//! Decides by a policy which runs stay and which go. It is pure: facts and a time in, verdicts out. `sweep`
//! reads the facts and drops the runs.
//!
//! The first rule that matches a run decides; a run that no rule matches stays. Open and pinned runs are
//! never judged. Records of operators' actions, in the store's own namespace, are judged only by rules that
//! name that namespace.
//!
//! A share (of a rule or of sampling) is chosen by a hash of the store's identity and the run's number. Every
//! call chooses the same runs, and a run in the 5% share is also in the 10% share.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::ids::{RunUid, StoreId};
use crate::trace::heads::RULE_BYTES_MAX;
use crate::trace::{Component, Severity, Status};

/// Maximum number of rules in a policy.
pub const RETENTION_RULES_MAX: usize = 100;
/// Name of the rule under which sampling drops runs.
pub const SAMPLING: &str = "sampling";
/// Name of the rule under which `forget` drops a run.
pub const FORGET: &str = "forget";

const DAY_NS: u64 = 86_400 * 1_000_000_000;

/// The namespace of the records of operators' actions. Only rules that name it apply to it.
pub(crate) const OWN_NAMESPACE: &str = "annals";

/// A share of runs, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunShare(u32);

/// How long, or how many, of the runs that match a rule stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionLimit {
    /// Runs go this many nanoseconds after their end.
    ForNs(u64),
    /// In each namespace this many runs stay: those that ended last.
    Newest(u64),
    /// This share of the runs stays; the others go.
    Share(RunShare),
    /// All runs stay.
    Forever,
}

/// Conditions for runs, and what happens to matching runs. An empty list is no condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionRule {
    /// The rule's name in tombstones and reports: 1 to 256 bytes.
    pub name: String,
    /// Names of namespaces; a `*` at the end matches any rest. Empty: all namespaces except the store's own.
    pub namespaces: Vec<String>,
    /// The statuses that match.
    pub statuses: Vec<Status>,
    /// The severities that match.
    pub severities: Vec<Severity>,
    /// Tags: a run must have at least one of them. Each is a key and, if given, the exact value.
    pub tags: Vec<(String, Option<String>)>,
    /// Components: a run must have a frame of at least one of them.
    pub components: Vec<Component>,
    /// The run ended longer ago than this, in nanoseconds.
    pub older_than_ns: Option<u64>,
    /// The run ended less long ago than this, in nanoseconds.
    pub younger_than_ns: Option<u64>,
    /// Whether the run is pinned.
    pub pinned: Option<bool>,
    /// What happens to matching runs.
    pub keep: RetentionLimit,
}

/// An ordered list of rules, and a sampling share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The rules; the first one that matches a run decides.
    pub rules: Vec<RetentionRule>,
    /// Share of the runs with status ok and severity normal or lower that stays; the others go at the next
    /// sweep. Runs that a rule keeps forever are exempt.
    pub sample: RunShare,
    /// How long after its end sampling lets a run stay, in nanoseconds, so that people can flag it.
    pub sample_after_ns: u64,
    /// How long entries in memory that were made of runs are kept after their creation; `None`: for ever, whatever
    /// becomes of their runs. The memory's own crate follows this.
    pub memory_for_ns: Option<u64>,
}

/// The facts about a run that has ended and is not pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetentionFacts<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) status: Status,
    pub(crate) severity: Severity,
    pub(crate) ended_ns: u64,
}

/// A condition that costs reads to check.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CostlyCondition<'a> {
    /// The run has one of these tags; without a value, any value counts.
    AnyTag(&'a [(String, Option<String>)]),
    /// The run has a frame of one of these components.
    AnyComponent(&'a [Component]),
}

/// What decides over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetentionCause {
    Rule(usize),
    Sampling,
    /// No rule matches the run.
    Nothing,
}

/// A run with the cause of its verdict, and the verdict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunVerdict {
    /// The caller's number for the run's namespace.
    pub(crate) namespace: u32,
    pub(crate) uid: RunUid,
    pub(crate) ended_ns: u64,
    pub(crate) cause: RetentionCause,
    /// The run is to be dropped.
    pub(crate) goes: bool,
}

impl RunShare {
    /// All runs.
    pub const ALL: Self = Self(1_000_000);

    /// A share in millionths; `None` for more than 1,000,000.
    #[must_use]
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (millionths <= Self::ALL.0).then_some(Self(millionths))
    }

    /// Parses a percentage such as `5%` or `0.5%`, with up to four digits after the point.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() > 3 || fraction.len() > 4 {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<4}").parse().ok()?;
        Self::from_millionths(whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(fraction)?)
    }

    /// Whether a run of a store belongs to this share.
    pub(crate) fn includes(self, store: StoreId, uid: RunUid) -> bool {
        let mut hasher = blake3::Hasher::new_derive_key("annals share of runs 1");
        hasher.update(&store.0);
        hasher.update(&uid.0.to_le_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        let drawn = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        (u128::from(drawn) * u128::from(Self::ALL.0)) >> 64 < u128::from(self.0)
    }
}

impl fmt::Display for RunShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        match rest {
            0 => write!(f, "{whole}%"),
            rest => write!(f, "{whole}.{}%", format!("{rest:04}").trim_end_matches('0')),
        }
    }
}

impl fmt::Display for RetentionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForNs(ns) => write!(f, "for {}", DurationText(*ns)),
            Self::Newest(count) => write!(f, "the newest {count}"),
            Self::Share(share) => write!(f, "{share}"),
            Self::Forever => f.write_str("for ever"),
        }
    }
}

/// A duration in nanoseconds. It displays in the greatest unit that leaves no remainder.
struct DurationText(u64);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(365 * DAY_NS, "y"), (DAY_NS, "d"), (DAY_NS / 24, "h"), (DAY_NS / 1440, "min")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}s", self.0 / 1_000_000_000),
        }
    }
}

/// Parses a duration such as `7d` into nanoseconds: a whole number and `s`, `min`, `h`, `d`, `w` or `y` (365
/// days).
#[must_use]
pub fn parse_duration_ns(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(at)?;
    let unit_ns = match unit {
        "s" => 1_000_000_000,
        "min" => DAY_NS / 1440,
        "h" => DAY_NS / 24,
        "d" => DAY_NS,
        "w" => 7 * DAY_NS,
        "y" => 365 * DAY_NS,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ns)
}

impl RetentionRule {
    /// A rule without conditions.
    #[must_use]
    pub fn new(name: impl Into<String>, keep: RetentionLimit) -> Self {
        Self {
            name: name.into(),
            namespaces: Vec::new(),
            statuses: Vec::new(),
            severities: Vec::new(),
            tags: Vec::new(),
            components: Vec::new(),
            older_than_ns: None,
            younger_than_ns: None,
            pinned: None,
            keep,
        }
    }

    /// Whether the rule matches every run outside of the store's own namespace.
    #[must_use]
    pub fn matches_all(&self) -> bool {
        *self == Self { name: self.name.clone(), keep: self.keep, ..Self::new("", self.keep) }
    }

    /// Checks that the rule can be followed.
    ///
    /// # Errors
    /// A sentence without its subject, if the rule would drop open or pinned runs, contradicts itself, or has
    /// an invalid name.
    pub fn check(&self) -> std::result::Result<(), String> {
        let keeps_all = self.keep == RetentionLimit::Forever;
        if self.name.is_empty() || self.name.len() > RULE_BYTES_MAX || self.name.chars().any(char::is_control)
        {
            return Err(format!(
                "has a name that is not 1 to {RULE_BYTES_MAX} bytes without control characters"
            ));
        }
        if [SAMPLING, FORGET].contains(&self.name.as_str()) {
            return Err(format!("is called {:?}, a name that is reserved for annals' own rules", self.name));
        }
        if self.statuses.contains(&Status::Open) && !keeps_all {
            return Err("would drop open runs: a run that has not ended is never dropped".to_owned());
        }
        if self.pinned == Some(true) && !keeps_all {
            return Err("would drop pinned runs: a pin keeps a run until it is removed".to_owned());
        }
        if let (Some(older), Some(younger)) = (self.older_than_ns, self.younger_than_ns)
            && older >= younger
        {
            return Err("contradicts itself: no run is older than older_than and younger than younger_than"
                .to_owned());
        }
        if self.keep == RetentionLimit::Newest(0) {
            return Err("keeps the newest 0: write keep = \"0d\" to keep none".to_owned());
        }
        Ok(())
    }

    /// Whether the rule matches a run. Asks `has` only for what costs reads, and only if all else matches.
    fn matches(
        &self,
        run: &RetentionFacts<'_>,
        at_ns: u64,
        has: &mut dyn FnMut(CostlyCondition<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let age_ns = at_ns.saturating_sub(run.ended_ns);
        let named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => run.namespace.starts_with(begin),
            None => run.namespace == pattern,
        };
        let matches = (self.namespaces.is_empty() && run.namespace != OWN_NAMESPACE
            || self.namespaces.iter().any(named))
            && (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && (self.severities.is_empty() || self.severities.contains(&run.severity))
            && self.older_than_ns.is_none_or(|older| age_ns > older)
            && self.younger_than_ns.is_none_or(|younger| age_ns < younger)
            // Pinned runs are never judged.
            && self.pinned != Some(true);
        Ok(matches
            && (self.tags.is_empty() || has(CostlyCondition::AnyTag(&self.tags))?)
            && (self.components.is_empty() || has(CostlyCondition::AnyComponent(&self.components))?))
    }
}

impl Default for RetentionPolicy {
    /// The default policy: runs that failed, were abandoned, flagged or escalated stay 90 days, all others 7
    /// days.
    fn default() -> Self {
        let ended = vec![Status::Failed, Status::Abandoned];
        let marked = vec![Severity::Flagged, Severity::Escalated];
        Self::new(vec![
            RetentionRule {
                statuses: ended,
                ..RetentionRule::new("failed", RetentionLimit::ForNs(90 * DAY_NS))
            },
            RetentionRule {
                severities: marked,
                ..RetentionRule::new("marked", RetentionLimit::ForNs(90 * DAY_NS))
            },
            RetentionRule::new("normal", RetentionLimit::ForNs(7 * DAY_NS)),
        ])
    }
}

/// Whether one of these tags is among the tags of a run.
pub(crate) fn has_tag(any: &[(String, Option<String>)], tags: &[(String, String)]) -> bool {
    any.iter().any(|(key, value)| {
        tags.iter().any(|(k, v)| k == key && value.as_ref().is_none_or(|value| v == value))
    })
}

impl RetentionPolicy {
    /// These rules, without sampling, and for ever for memories.
    #[must_use]
    pub fn new(rules: Vec<RetentionRule>) -> Self {
        Self { rules, sample: RunShare::ALL, sample_after_ns: 0, memory_for_ns: None }
    }

    /// Refuses rules that would drop open or pinned runs, contradict themselves or can never apply.
    ///
    /// # Errors
    /// `Invalid`, with the rule's name.
    pub fn check(&self) -> Result<()> {
        if self.rules.len() > RETENTION_RULES_MAX {
            return Err(Error::invalid(format!("a policy has at most {RETENTION_RULES_MAX} rules")));
        }
        for (at, rule) in self.rules.iter().enumerate() {
            rule.check().map_err(|what| Error::invalid(format!("rule {:?} {what}", rule.name)))?;
            let before = self.rules.get(..at).unwrap_or_default();
            if let Some(other) = before.iter().find(|other| other.matches_all() || other.name == rule.name) {
                let what = if other.name == rule.name {
                    "has the name of another rule"
                } else {
                    "is never reached: an earlier rule matches all runs"
                };
                return Err(Error::invalid(format!("rule {:?} {what}", rule.name)));
            }
        }
        Ok(())
    }

    /// What decides over a run. `has` tells whether a condition holds that costs reads.
    pub(crate) fn find_cause(
        &self,
        (store, uid): (StoreId, RunUid),
        run: &RetentionFacts<'_>,
        at_ns: u64,
        has: &mut dyn FnMut(CostlyCondition<'_>) -> Result<bool>,
    ) -> Result<RetentionCause> {
        let mut found = RetentionCause::Nothing;
        for (at, rule) in self.rules.iter().enumerate() {
            if rule.matches(run, at_ns, has)? {
                found = RetentionCause::Rule(at);
                break;
            }
        }
        let for_ever = matches!(found, RetentionCause::Rule(at) if self.rules.get(at).is_some_and(|rule| rule.keep == RetentionLimit::Forever));
        let is_plain =
            run.status == Status::Ok && run.severity <= Severity::Normal && run.namespace != OWN_NAMESPACE;
        let is_time = at_ns >= run.ended_ns.saturating_add(self.sample_after_ns);
        Ok(match is_plain && is_time && !for_ever && !self.sample.includes(store, uid) {
            true => RetentionCause::Sampling,
            false => found,
        })
    }

    /// Decides for each run whether it is dropped.
    pub(crate) fn decide(&self, store: StoreId, at_ns: u64, runs: &mut [RunVerdict]) {
        let mut newest: HashMap<(usize, u32), Vec<usize>> = HashMap::new();
        for (index, run) in runs.iter_mut().enumerate() {
            let RetentionCause::Rule(at) = run.cause else {
                run.goes = run.cause == RetentionCause::Sampling;
                continue;
            };
            let Some(rule) = self.rules.get(at) else { continue };
            match rule.keep {
                RetentionLimit::ForNs(ns) => run.goes = run.ended_ns.saturating_add(ns) <= at_ns,
                RetentionLimit::Share(share) => run.goes = !share.includes(store, run.uid),
                RetentionLimit::Newest(_) => newest.entry((at, run.namespace)).or_default().push(index),
                RetentionLimit::Forever => run.goes = false,
            }
        }
        for ((at, _), mut indexes) in newest {
            let Some(RetentionLimit::Newest(count)) = self.rules.get(at).map(|rule| rule.keep) else {
                continue;
            };
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let by_end =
                |index: &usize| runs.get(*index).map(|run| std::cmp::Reverse((run.ended_ns, run.uid)));
            indexes.sort_unstable_by_key(by_end);
            for index in indexes.into_iter().skip(count) {
                if let Some(run) = runs.get_mut(index) {
                    run.goes = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
