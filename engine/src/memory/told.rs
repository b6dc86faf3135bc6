//! What is given to a model of what was found, as one text.

use super::Hit;
use super::projection::{Projection, render};

impl Hit {
    /// When it was decided, in milliseconds since 1970: the entry's `createdAt`.
    #[must_use]
    pub fn decided_ms(&self) -> Option<i64> {
        let text = self.entry.member("createdAt")?;
        serde_json::from_str::<f64>(text).ok().filter(|ms| *ms > 0.0).map(|ms| ms as i64)
    }

    /// The same as RFC 3339 has it, to the second.
    #[must_use]
    pub fn decided_at(&self) -> Option<String> {
        let ns = u64::try_from(self.decided_ms()?).ok()?.checked_mul(1_000_000)?;
        Some(crate::timestamp::rfc3339(ns))
    }
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
