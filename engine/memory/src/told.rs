//! What is given to a model of what was found, as one text; and what such a text, found again in what a model was asked, was told of.

use std::collections::BTreeSet;

use super::ops::identity_of;
use super::projection::{HEADER, HEADER_SCORE, Projection, query_told, render};
use super::{Entry, Hit, Identity, Memory};
use annals::Result;

/// What the line begins with that says when it was decided.
const DECIDED: &str = "\ndecided at ";
/// How long its time is: `2026-11-23T14:14:00Z`.
const TIME_BYTES: usize = 20;
/// Tellings of a text that are looked for.
const TELLINGS_MAX: usize = 64;

impl Entry {
    /// When it was made, in milliseconds since 1970: its `createdAt`.
    fn created_ms(&self) -> Option<i64> {
        let text = self.member("createdAt")?;
        serde_json::from_str::<f64>(text).ok().filter(|ms| *ms > 0.0).map(|ms| ms as i64)
    }

    /// The same as RFC 3339 has it, to the second.
    fn created_at(&self) -> Option<String> {
        let ns = u64::try_from(self.created_ms()?).ok()?.checked_mul(1_000_000)?;
        Some(annals_store::timestamp::rfc3339(ns))
    }
}

impl Hit {
    /// When it was decided, in milliseconds since 1970: the entry's `createdAt`.
    #[must_use]
    pub fn decided_ms(&self) -> Option<i64> {
        self.entry.created_ms()
    }

    /// The same as RFC 3339 has it, to the second.
    #[must_use]
    pub fn decided_at(&self) -> Option<String> {
        self.entry.created_at()
    }
}

impl Memory {
    /// Whether a text may be one that [`told`] gave, or hold one.
    #[must_use]
    pub fn may_tell(text: &str) -> bool {
        text.contains(HEADER) && text.contains(DECIDED)
    }

    /// The entries of a tenant that a text tells of, as [`told`] gave it, wherever it stands in it: of each the identity's name, a slash and the id. Known by query
    /// and time, whoever asked, by whatever door; the first 64 tellings of a text are looked at.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn told_in(&self, identity: &Identity, text: &str) -> Result<Vec<String>> {
        identity.check()?;
        let (queries, times) = tellings(text);
        let mut found = Vec::new();
        if queries.is_empty() || times.is_empty() {
            return Ok(found);
        }
        self.each(&identity.tenant_prefix(), &mut |key, entry| {
            if entry.created_at().is_some_and(|time| times.contains(time.as_str()))
                && query_told(entry.value()).is_some_and(|query| queries.contains(query.as_str()))
            {
                found.push(format!("{}/{}", identity_of(&key), entry.id));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Queries and times of the tellings in a text. Which belongs to which is not said: what is told may quote a telling itself.
fn tellings(text: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let queries = text.split(HEADER).skip(1).take(TELLINGS_MAX);
    let times = text.split(DECIDED).skip(1).take(TELLINGS_MAX);
    (
        queries.filter_map(|rest| Some(rest.split_once(HEADER_SCORE)?.0)).collect(),
        times.filter_map(|rest| rest.get(..TIME_BYTES)).collect(),
    )
}

/// UTF-16 units of a token.
const UNITS_A_TOKEN: usize = 4;

/// What is given to a model as one text: [`render`] of each hit in the projection, and, where the entry says when it was made, a line
/// `decided at 2026-11-23T14:14:00Z` after it; an empty line between two.
///
/// With a budget, in tokens of four UTF-16 units: the largest of the four that fits with all hits; where none does, with one hit less, and so on.
/// Nothing is cut: where not even one hit fits, the text is empty.
#[must_use]
pub fn told(hits: &[Hit], projection: Projection, budget: Option<usize>) -> String {
    let all = |hits: &[Hit], projection: Projection| -> String {
        let texts: Vec<String> = hits.iter().filter_map(|hit| one_told(hit, projection)).collect();
        texts.join("\n\n")
    };
    let Some(budget) = budget else { return all(hits, projection) };
    let units_max = budget.saturating_mul(UNITS_A_TOKEN);
    for count in (1..=hits.len()).rev() {
        let texts = Projection::ALL.map(|projection| all(hits.get(..count).unwrap_or_default(), projection));
        let sized = texts.into_iter().map(|text| (text.encode_utf16().count(), text));
        if let Some((_, text)) =
            sized.filter(|(units, _)| *units <= units_max).max_by_key(|(units, _)| *units)
        {
            return text;
        }
    }
    String::new()
}

fn one_told(hit: &Hit, projection: Projection) -> Option<String> {
    let text = render(hit.entry.value(), projection, hit.score)?;
    Some(match hit.decided_at() {
        Some(when) => format!("{text}\ndecided at {when}"),
        None => text,
    })
}
