//! Hits as one text for a model's prompt, and the reverse: the entries that a prompt quotes.

use std::collections::BTreeSet;

use super::entry::whole_ms;
use super::operations::identity_of_key;
use super::projection::{HEADER, HEADER_SCORE, Projection, render, rendered_query};
use super::{Identity, Memory, MemoryEntry, MemoryHit};
use annals::Result;

/// Starts the line that gives the time of the decision.
const DECIDED_AT: &str = "\ndecided at ";
/// Bytes of that time: `2026-11-23T14:14:00Z`.
const TIME_BYTES: usize = 20;
/// Maximum number of quotes read in one text.
const QUOTES_MAX: usize = 64;

impl MemoryEntry {
    /// When the entry was created, in milliseconds since 1970: its `createdAt`.
    pub(super) fn created_ms(&self) -> Option<i64> {
        let text = self.member("createdAt")?;
        serde_json::from_str::<f64>(text).ok().filter(|ms| *ms > 0.0).map(whole_ms)
    }

    /// [`Self::created_ms`] in RFC 3339, to the second.
    fn created_at(&self) -> Option<String> {
        let ns = u64::try_from(self.created_ms()?).ok()?.checked_mul(1_000_000)?;
        Some(annals_store::timestamp::rfc3339(ns))
    }
}

impl MemoryHit {
    /// When the decision was made, in milliseconds since 1970: the entry's `createdAt`.
    #[must_use]
    pub fn decided_ms(&self) -> Option<i64> {
        self.entry.created_ms()
    }

    /// [`Self::decided_ms`] in RFC 3339, to the second.
    #[must_use]
    pub fn decided_at(&self) -> Option<String> {
        self.entry.created_at()
    }
}

impl Memory {
    /// Whether a text may hold output of [`prompt_text`].
    #[must_use]
    pub fn may_quote_entries(text: &str) -> bool {
        text.contains(HEADER) && text.contains(DECIDED_AT)
    }

    /// The entries of a tenant that a text quotes in the form of [`prompt_text`], each as the identity's
    /// name, a slash and the id. Entries are recognised by query and time, regardless of the program that recalled them. Only the
    /// first 64 quotes of a text are read.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn entries_quoted_in(&self, identity: &Identity, text: &str) -> Result<Vec<String>> {
        identity.checked_name()?;
        let (queries, times) = quoted_queries_and_times(text);
        let mut found = Vec::new();
        if queries.is_empty() || times.is_empty() {
            return Ok(found);
        }
        self.for_each_entry(&identity.tenant_prefix(), &mut |key, entry| {
            if entry.created_at().is_some_and(|time| times.contains(time.as_str()))
                && rendered_query(entry.value()).is_some_and(|query| queries.contains(query.as_str()))
            {
                found.push(format!("{}/{}", identity_of_key(&key), entry.id));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// The queries and times quoted in a text. They are not paired, since a quoted entry may quote another one.
fn quoted_queries_and_times(text: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let queries = text.split(HEADER).skip(1).take(QUOTES_MAX);
    let times = text.split(DECIDED_AT).skip(1).take(QUOTES_MAX);
    (
        queries.filter_map(|rest| Some(rest.split_once(HEADER_SCORE)?.0)).collect(),
        times.filter_map(|rest| rest.get(..TIME_BYTES)).collect(),
    )
}

/// UTF-16 units counted as one token.
const UNITS_PER_TOKEN: usize = 4;

/// Hits as one text for a model: [`render`] of each hit in the projection (`None`: the default one), with an empty
/// line between hits.
/// If the entry has a creation time, a line `decided at 2026-11-23T14:14:00Z` follows it.
///
/// `budget` is in tokens of four UTF-16 units. The text then uses the projection (`None`: the full one) if it fits
/// with all hits, else the largest of the others that does. If none fits, the last hit is left out, and so on. Hits
/// are never cut: if not even one fits, the text is empty.
#[must_use]
pub fn prompt_text(hits: &[MemoryHit], projection: Option<Projection>, budget: Option<usize>) -> String {
    let all = |hits: &[MemoryHit], projection: Projection| -> String {
        let texts: Vec<String> = hits.iter().filter_map(|hit| hit_text(hit, projection)).collect();
        texts.join("\n\n")
    };
    let Some(budget) = budget else { return all(hits, projection.unwrap_or_default()) };
    // The whole snapshot has the most to say, whatever its length.
    let preferred = projection.unwrap_or(Projection::Full);
    let units_max = budget.saturating_mul(UNITS_PER_TOKEN);
    for count in (1..=hits.len()).rev() {
        let texts = Projection::ALL.map(|projection| all(hits.get(..count).unwrap_or_default(), projection));
        let sized = Projection::ALL.into_iter().zip(texts);
        let sized = sized.map(|(projection, text)| (projection, text.encode_utf16().count(), text));
        if let Some((.., text)) = sized
            .filter(|(_, units, _)| *units <= units_max)
            .max_by_key(|(projection, units, _)| (*projection == preferred, *units))
        {
            return text;
        }
    }
    String::new()
}

fn hit_text(hit: &MemoryHit, projection: Projection) -> Option<String> {
    let text = render(hit.entry.value(), projection, hit.score)?;
    Some(match hit.decided_at() {
        Some(when) => format!("{text}\ndecided at {when}"),
        None => text,
    })
}
