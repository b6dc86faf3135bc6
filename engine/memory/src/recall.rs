//! Keeping and finding by texts: an embedder makes the vectors, or the words themselves are held against each other.

use std::collections::HashMap;

use super::embed::Embedder;
use super::js::Js;
use super::ops::{checked, identity_of, json, key, mismatch, scope};
use super::rank::{rank, source_of};
use super::words::{Asked, CardRead, Rarity, tier_number};
use super::*;
use annals::Durability;

/// What a run was told counts as what it answers from for so long.
const RECALLED_MS: i64 = 3_600_000;
/// How many of those are kept in mind.
const RECALLED_MAX: usize = 16;
/// Entries that are read to be ranked, for each that is wanted, and at least.
pub(super) const RANKED_EACH: usize = 4;
pub(super) const RANKED_MIN: usize = 64;

/// What an identity was told.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Recalled {
    at_ms: i64,
    ids: Vec<String>,
}

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
        let entry = embedded(entry, with)?;
        self.put(identity, &entry.text())?;
        Ok(entry)
    }

    /// What answers a question: as [`Memory::search`] with the question's vector, by the embedder's own threshold where no other is given. Nothing
    /// for a question in which there is nothing to go by.
    ///
    /// With [`Words`], the score is the share of the question that an entry holds, in all its texts. Where the question names something by an identifier
    /// (`#42`, `app-42`, an order's number, an e-mail address), only entries that hold every one answer, and those do whatever their score is,
    /// unless a least score is given.
    ///
    /// An embedder that is wanted has to be this one. What an identity is told is kept in mind: a snapshot of it that follows within the hour answers
    /// from that ([`Memory::write_snapshot`]).
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
        if let Some(other) = wanted.embedder.filter(|other| *other != with.id()) {
            return Err(Error::invalid(format!(
                "a question is made a vector of by {:?} here, not by {other:?}: bring its vector",
                with.id()
            )));
        }
        let hits = if with.id() == Words::ID {
            self.recall_words(identity, question, wanted)?
        } else {
            let Some(vector) = one_vector(question.trim(), with)? else { return Ok(Vec::new()) };
            let wanted = Wanted {
                min_score: Some(wanted.min_score.unwrap_or_else(|| with.threshold())),
                embedder: Some(with.id()),
                ..wanted.clone()
            };
            self.search(identity, &vector, &wanted)?
        };
        self.keep_in_mind(identity, &hits);
        Ok(hits)
    }

    /// Holds a question against the cards of all entries: once to count how rare its words are in the tenant, once to score.
    fn recall_words(&self, identity: &Identity, question: &str, wanted: &Wanted<'_>) -> Result<Vec<Hit>> {
        let asked = Asked::of(question);
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let prefix = scope(identity, wanted)?;
        let mut rarity = Rarity::new(&asked);
        self.each_card(&identity.tenant_prefix(), &mut |_, card| rarity.count(&asked, card))?;
        let least = match wanted.min_score {
            Some(least) => least,
            None if asked.has_identifiers() => 0.0,
            None => Words::THRESHOLD,
        };
        let tiers: Vec<u8> = wanted.tiers.iter().map(|tier| tier_number(Some(tier))).collect();
        let (mut passed, mut any) = (Vec::new(), false);
        self.each_card(&prefix, &mut |key, card| {
            any = true;
            if (tiers.is_empty() || tiers.contains(&card.tier))
                && let Some(score) = rarity.score(&asked, card).filter(|score| *score >= least)
            {
                passed.push((score, key));
            }
        })?;
        if !any {
            self.refuse_others(&prefix)?;
        }
        let mut hits = rank(self.best(passed, wanted)?);
        hits.truncate(wanted.count());
        Ok(hits)
    }

    /// The entries that scored best, and those that they answer from, as far as these passed, too.
    fn best(&self, mut passed: Vec<(f32, Vec<u8>)>, wanted: &Wanted<'_>) -> Result<Vec<Hit>> {
        passed.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        let mut rest: HashMap<Vec<u8>, f32> = HashMap::new();
        let ranked = wanted.count().saturating_mul(RANKED_EACH).max(RANKED_MIN).min(passed.len());
        rest.extend(passed.drain(ranked..).map(|(score, key)| (key, score)));
        let mut hits = Vec::new();
        while let Some((score, key)) = passed.pop() {
            let Some(entry) = self.living(&key)?.filter(|entry| entry.embedder.as_deref() == Some(Words::ID))
            else {
                continue;
            };
            let identity = identity_of(&key);
            for said in &entry.derived_from {
                let (of, id) = source_of(&identity, said);
                passed.extend(rest.remove_entry(&self::key(of, id)).map(|(key, score)| (score, key)));
            }
            hits.push(Hit { entry, identity, score });
        }
        Ok(hits)
    }

    /// Calls `each` with every card under a prefix whose entry's time is not over, by key.
    fn each_card(&self, prefix: &str, each: &mut dyn FnMut(Vec<u8>, &CardRead<'_>)) -> Result<()> {
        let now = self.now_ms();
        for found in self.words.scan(ScanRange::prefix(prefix.as_bytes())) {
            let (key, bytes) = found?;
            let card = CardRead::of(&bytes).map_err(|e| Error::bug(e.to_string()))?;
            if !card.is_expired(now) {
                each(key, &card);
            }
        }
        Ok(())
    }

    /// # Errors
    /// `Invalid` where what is remembered is of another embedder than the one that is built in.
    fn refuse_others(&self, prefix: &str) -> Result<()> {
        self.each(prefix, &mut |_, entry| match &entry.embedder {
            Some(other) if entry.embedding.is_some() => Err(mismatch(Words::ID, other)),
            _ => Ok(()),
        })
    }

    /// Whoever is told something may go on to answer from it. An answer is worth more than this note: where it cannot be kept, it is not.
    fn keep_in_mind(&self, identity: &Identity, hits: &[Hit]) {
        if hits.is_empty() || !self.recalled.core().is_writer() {
            return;
        }
        let _changing = self.changing();
        let mut recalled = self.recalled(identity).unwrap_or_default();
        for hit in hits {
            let id = format!("{}/{}", hit.identity, hit.entry.id);
            if !recalled.ids.contains(&id) {
                recalled.ids.push(id);
            }
        }
        let over = recalled.ids.len().saturating_sub(RECALLED_MAX);
        recalled.ids.drain(..over);
        recalled.at_ms = self.now_ms();
        let mut batch = self.space.batch();
        if let Ok(value) = json(&recalled) {
            batch.put(&self.recalled, &key(&identity.name(), ""), value);
            let _not_kept = batch.submit_with(Durability::Process).and_then(annals::Ticket::wait);
        }
    }

    /// What an identity was told of late.
    fn recalled(&self, identity: &Identity) -> Result<Recalled> {
        let Some(kept) = self.recalled.get(&key(&identity.check()?, ""))? else {
            return Ok(Recalled::default());
        };
        let recalled: Recalled = serde_json::from_slice(&kept).map_err(|e| Error::bug(e.to_string()))?;
        let is_late = self.now_ms().saturating_sub(recalled.at_ms) <= RECALLED_MS;
        Ok(if is_late { recalled } else { Recalled::default() })
    }

    /// What an identity was told within the last hour and has not answered yet: of each the identity's name, a slash and the id.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn told_of_late(&self, identity: &Identity) -> Result<Vec<String>> {
        Ok(self.recalled(identity)?.ids)
    }

    /// Keeps a bare snapshot of a run as the entry `snap-N`, N being the next turn of its conversation, in the form in which agentfootprint 9.62.0
    /// writes it. Gives the entry.
    ///
    /// One that calls no tools only answers from what its identity was told of late, if it was: it is marked so (`metadata.derivedFrom`), as it is from
    /// what the options name, and stands behind it when both are found.
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
        let name = identity.check()?;
        let parsed = Js::parse(snapshot).map_err(|e| {
            Error::invalid(format!("a snapshot is a JSON object: {} at byte {}", e.what, e.at))
        })?;
        if !parsed.get("query").is_some_and(|query| matches!(query, Js::Text(units) if !units.is_empty())) {
            return Err(Error::invalid("a snapshot has a query"));
        }
        let calls_tools = parsed.get("toolCalls").is_some_and(|calls| !calls.items().is_empty());
        // Whoever makes the vector may be far away: that comes before anything is held.
        let vector = one_vector(&about(snapshot)?, with)?;
        let _changing = self.changing();
        let turn = self.next_turn(&name)?.max(options.turn.unwrap_or(1).max(1));
        let mut derived_from = options.derived_from.clone();
        if !calls_tools {
            derived_from.extend(self.told_of_late(identity)?);
        }
        let mut entry = Entry::parse(&format!("{{\"id\":\"snap-{turn}\",\"value\":{snapshot}}}"))?;
        begin(&mut entry, self.now_ms(), options);
        tag(&mut entry, vector.as_deref(), with)?;
        end(&mut entry, identity, turn, &derived_from);
        let text = entry.text();
        let entry = Entry::parse(&text)?;
        let card = checked(&entry)?;
        let mut batch = self.space.batch();
        self.add(&mut batch, &key(&name, &entry.id), (&entry, &text), card)?;
        batch.delete(&self.recalled, &key(&name, ""));
        self.commit(batch)?;
        Ok(entry)
    }

    /// One more than the highest turn of a conversation that is there.
    fn next_turn(&self, name: &str) -> Result<u64> {
        let prefix = key(name, "snap-");
        let mut turns = Vec::new();
        for found in self.entries.scan(ScanRange::prefix(&prefix)).keys() {
            let found = found?;
            let number = found.get(prefix.len()..).and_then(|number| std::str::from_utf8(number).ok());
            turns.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        turns.sort_unstable();
        while let Some(turn) = turns.pop() {
            if self.living(&key(name, &format!("snap-{turn}")))?.is_some() {
                return Ok(turn.saturating_add(1));
            }
        }
        Ok(1)
    }
}

/// An entry with the vector of what it is about, if it had none.
pub(super) fn embedded(entry: &str, with: &dyn Embedder) -> Result<Entry> {
    let mut entry = Entry::parse(entry)?;
    if entry.embedding.is_none() {
        let vector = one_vector(&about(entry.value())?, with)?;
        tag(&mut entry, vector.as_deref(), with)?;
    }
    Entry::parse(&entry.text())
}

/// What agentfootprint writes of a snapshot before its vector.
fn begin(entry: &mut Entry, now: i64, options: &Keep) {
    let mut set = |name: &str, value: serde_json::Value| entry.set(name, value.to_string());
    set("version", 1.into());
    for time in ["createdAt", "updatedAt", "lastAccessedAt"] {
        set(time, now.into());
    }
    set("accessCount", 0.into());
    if let Some(ttl) = options.ttl_ms {
        set("ttl", now.saturating_add_unsigned(ttl).into());
    }
    if let Some(tier) = &options.tier {
        set("tier", tier.as_str().into());
    }
}

/// What it writes after it, and what the snapshot answers from.
fn end(entry: &mut Entry, identity: &Identity, turn: u64, derived_from: &[String]) {
    let parts: Vec<String> = identity
        .parts()
        .into_iter()
        .filter_map(|(name, part)| Some(format!("\"{name}\":{}", serde_json::Value::from(part?))))
        .collect();
    entry.set("source", format!("{{\"turn\":{turn},\"identity\":{{{}}}}}", parts.join(",")));
    if !derived_from.is_empty() {
        let ids = serde_json::Value::from(derived_from.to_vec());
        entry.set("metadata", format!("{{\"derivedFrom\":{ids}}}"));
    }
}

/// Gives an entry a vector, and the name of who made it.
fn tag(entry: &mut Entry, vector: Option<&[f32]>, with: &dyn Embedder) -> Result<()> {
    if let Some(vector) = vector {
        entry.set("embedding", numbers(vector)?);
    }
    // With the one that is built in, an entry is found by all its texts, even if its query says nothing.
    if vector.is_some() || with.id() == Words::ID {
        entry.set("embeddingModel", serde_json::Value::from(with.id()).to_string());
    }
    Ok(())
}

/// Numbers as JSON has them, whole ones without a point.
fn numbers(vector: &[f32]) -> Result<String> {
    let whole = |number: &f32| number.fract() == 0.0 && number.abs() < 1e6;
    let texts: Vec<String> = vector
        .iter()
        .map(|number| match whole(number) {
            true => Ok((*number as i32).to_string()),
            false => serde_json::to_string(number).map_err(|e| Error::bug(e.to_string())),
        })
        .collect::<Result<_>>()?;
    Ok(format!("[{}]", texts.join(",")))
}

/// The query of a snapshot; the texts of any other value, in their order.
fn about(value: &str) -> Result<String> {
    let value = Js::parse(value)
        .map_err(|e| Error::invalid(format!("a memory's value is no JSON: {} at byte {}", e.what, e.at)))?;
    if let Some(Js::Text(query)) = value.get("query") {
        return Ok(String::from_utf16_lossy(query));
    }
    let mut texts = Vec::new();
    value.each_text(&mut |text| texts.push(text.to_owned()));
    Ok(texts.join("\n"))
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
