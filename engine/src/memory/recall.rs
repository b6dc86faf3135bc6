//! Keeping and finding by texts: an embedder makes the vectors, and what is found is told as one text.

use super::embed::Embedder;
use super::js::Js;
use super::*;

/// How a snapshot is kept.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// The turn that the agent's host counts; the next one that is free, if it is not ahead of it.
    pub turn: Option<u64>,
    /// For how many milliseconds it is there; for good where none is given.
    pub ttl_ms: Option<u64>,
    /// `hot`, `warm` or `cold`.
    pub tier: Option<String>,
    /// What it only answers from: ids of its own conversation, or an identity's name, a slash and an id.
    pub derived_from: Vec<String>,
}

impl Memory {
    /// Keeps an entry. One without an embedding gets one of its query (`value.query`, else the texts in its value) and the embedder's id as its
    /// `embeddingModel`; one in which there is no text is kept without. Gives it as it was kept.
    ///
    /// # Errors
    /// As [`Memory::put`], and the embedder's.
    pub fn remember(&self, identity: &Identity, entry: &str, with: &dyn Embedder) -> Result<Entry> {
        let mut entry = Entry::parse(entry)?;
        if entry.embedding.is_none() {
            embed(&mut entry, with)?;
        }
        let text = entry.text();
        self.put(identity, &text)?;
        Entry::parse(&text)
    }

    /// What answers a question: as [`Memory::search`] with the question's vector, by the embedder's own threshold where no other is given. Nothing
    /// for a question in which there is no text.
    ///
    /// # Errors
    /// As [`Memory::search`], and the embedder's.
    pub fn recall(
        &self,
        identity: &Identity,
        question: &str,
        with: &dyn Embedder,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Hit>> {
        let Some(vector) = one_vector(question.trim(), with)? else { return Ok(Vec::new()) };
        let wanted = Wanted {
            min_score: Some(wanted.min_score.unwrap_or_else(|| with.threshold())),
            embedder: Some(with.id()),
            ..wanted.clone()
        };
        self.search(identity, &vector, &wanted)
    }

    /// Keeps a bare snapshot of a run as the entry `snap-N`, N being the next turn of its conversation, in the form in which agentfootprint 9.62.0
    /// writes it. Gives the entry.
    ///
    /// # Errors
    /// `Invalid` for a text that is no snapshot with a query; as [`Memory::remember`].
    pub fn write_snapshot(
        &self,
        identity: &Identity,
        snapshot: &str,
        with: &dyn Embedder,
        options: &Keep,
    ) -> Result<Entry> {
        let query = Js::parse(snapshot)
            .map_err(|e| Error::invalid(format!("a snapshot is a JSON object: {} at byte {}", e.what, e.at)))?
            .get("query")
            .is_some_and(|query| matches!(query, Js::Text(units) if !units.is_empty()));
        if !query {
            return Err(Error::invalid("a snapshot has a query"));
        }
        let turn = self.next_turn(identity)?.max(options.turn.unwrap_or(1).max(1));
        let now = self.now_ms();
        let text = |value: &str| serde_json::Value::from(value).to_string();
        let mut entry = format!(
            "{{\"id\":\"snap-{turn}\",\"value\":{snapshot},\"version\":1,\"createdAt\":{now},\"updatedAt\":{now},\"lastAccessedAt\":{now},\"accessCount\":0"
        );
        if let Some(ttl) = options.ttl_ms {
            entry.push_str(&format!(",\"ttl\":{}", now.saturating_add_unsigned(ttl)));
        }
        if let Some(tier) = &options.tier {
            entry.push_str(&format!(",\"tier\":{}", text(tier)));
        }
        let parts = [
            ("tenant", &identity.tenant),
            ("principal", &identity.principal),
            ("conversationId", &identity.conversation),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter_map(|(name, part)| part.as_ref().map(|part| format!("\"{name}\":{}", text(part))))
            .collect();
        entry.push_str(&format!(",\"source\":{{\"turn\":{turn},\"identity\":{{{}}}}}", parts.join(",")));
        if !options.derived_from.is_empty() {
            let ids = serde_json::Value::from(options.derived_from.clone());
            entry.push_str(&format!(",\"metadata\":{{\"derivedFrom\":{ids}}}"));
        }
        entry.push('}');
        self.remember(identity, &entry, with)
    }

    /// One more than the highest turn of a conversation that is there.
    fn next_turn(&self, identity: &Identity) -> Result<u64> {
        let mut turn = 1;
        self.each(&format!("{}\0snap-", identity.check()?), &mut |_, entry| {
            let number = entry.id.strip_prefix("snap-").and_then(|number| number.parse::<u64>().ok());
            turn = turn.max(number.map_or(0, |number| number.saturating_add(1)));
            Ok(())
        })?;
        Ok(turn)
    }
}

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

/// Gives an entry the vector of what it is about.
fn embed(entry: &mut Entry, with: &dyn Embedder) -> Result<()> {
    let Some(vector) = one_vector(&about(entry.value())?, with)? else { return Ok(()) };
    let numbers = serde_json::to_string(&vector).map_err(|e| Error::bug(e.to_string()))?;
    entry.set("embedding", numbers);
    entry.set("embeddingModel", serde_json::Value::from(with.id()).to_string());
    Ok(())
}

/// The query of a snapshot; the texts of any other value, in their order.
fn about(value: &str) -> Result<String> {
    let value = Js::parse(value)
        .map_err(|e| Error::invalid(format!("a memory's value is no JSON: {} at byte {}", e.what, e.at)))?;
    if let Some(Js::Text(query)) = value.get("query") {
        return Ok(String::from_utf16_lossy(query));
    }
    Ok(value.texts().map(|units| String::from_utf16_lossy(units)).collect::<Vec<_>>().join("\n"))
}

/// The vector of a text, if there is anything in it to go by.
fn one_vector(text: &str, with: &dyn Embedder) -> Result<Option<Vec<f32>>> {
    if text.is_empty() {
        return Ok(None);
    }
    let vector = with.embed(&[text])?.into_iter().next();
    let vector = vector.ok_or_else(|| Error::bug(format!("{:?} gave no vector for a text", with.id())))?;
    Ok(Some(vector).filter(|vector| vector.iter().any(|number| *number != 0.0)))
}
