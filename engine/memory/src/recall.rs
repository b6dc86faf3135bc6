//! Storing and finding entries by text. An embedder makes the vectors, or the built-in embedder compares the
//! words.

use std::collections::HashMap;

use super::embedder::Embedder;
use super::entry::whole_ms;
use super::js_value::{JsValue, text_of};
use super::operations::{
    CheckedEntry, check_values, embedder_mismatch, entry_key, identity_of_key, key_prefix, parse_value,
    to_json_bytes,
};
use super::postings::{IndexFinding, is_damage, partition_of};
use super::rank::{rank, resolve_source};
use super::words::{CardRead, QuestionTerms, TermRarity, tier_number};
use super::*;
use annals::Durability;
use annals_store::kv::View;

/// A recall counts as the source of a following snapshot for this long.
const RECALLED_MS: i64 = 3_600_000;
/// Maximum number of entries in a recent recall.
const RECALLED_MAX: usize = 16;
/// Entries read for ranking: this many for each wanted hit, and at least [`RANKED_MIN`].
pub(super) const RANKED_EACH: usize = 4;
pub(super) const RANKED_MIN: usize = 64;

/// The entries that an identity recalled last.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RecentRecall {
    at_ms: i64,
    ids: Vec<String>,
    /// When each of the ids was recalled last.
    #[serde(default)]
    times_ms: Vec<i64>,
}

/// Settings of [`Memory::write_snapshot`].
#[derive(Debug, Clone, Default)]
pub struct SnapshotOptions {
    /// The turn counted by the agent's host. A higher free turn is used if this one is not ahead of the
    /// stored turns.
    pub turn: Option<u64>,
    /// Lifetime in milliseconds; unlimited if absent.
    pub ttl_ms: Option<u64>,
    /// `hot`, `warm` or `cold`.
    pub tier: Option<String>,
    /// The entries that the snapshot only answers from: ids of its own conversation, or an identity's name, a
    /// slash and an id.
    pub derived_from: Vec<String>,
}

impl Memory {
    /// Stores an entry and returns it as stored. An entry without an embedding gets one of its query
    /// (`value.query`, else all texts in its value), with the embedder's id as `embeddingModel`. An entry
    /// without any text is stored without a vector.
    ///
    /// # Errors
    /// As [`Memory::put`], and the embedder's errors.
    pub fn remember(&self, identity: &Identity, entry: &str, with: &dyn Embedder) -> Result<MemoryEntry> {
        let (mut stored, waiting) = self.submit_remember(identity, &[entry], with)?;
        self.wait_for_put(identity, waiting)?;
        stored.pop().ok_or_else(|| Error::bug("an entry that was given is missing"))
    }

    /// As [`Memory::remember`] of several entries, all of them or none, but returns before they are stored: the
    /// ticket is answered when they are. `None` without entries. Of entries with the same id the last one counts.
    ///
    /// # Errors
    /// As [`Memory::remember`].
    pub fn submit_remember(
        &self,
        identity: &Identity,
        entries: &[&str],
        with: &dyn Embedder,
    ) -> Result<(Vec<MemoryEntry>, Option<annals::Ticket>)> {
        let mut checked: Vec<CheckedEntry> =
            entries.iter().map(|entry| with_embedding(entry, with)).collect::<Result<_>>()?;
        let texts = checked.iter().map(|checked| checked.entry.to_json()).collect();
        let waiting = self.submit_entries(identity, &mut checked, texts)?;
        Ok((checked.into_iter().map(|checked| checked.entry).collect(), waiting))
    }

    /// Finds the entries that answer a question: [`Memory::search`] with the question's vector. The default
    /// minimum score is the embedder's threshold. A question with nothing to search by gives no hits.
    ///
    /// With [`WordEmbedder`], the score is the share of the question that an entry's texts hold. If the
    /// question names something by an identifier (`#42`, `app-42`, an order number, an e-mail address), only
    /// entries with every identifier are found. Without a minimum score, an entry must also hold enough of
    /// the question's other words (docs/memory.md).
    ///
    /// If the query names an embedder, it must be this one. The hits are noted as the identity's recent
    /// recall: a snapshot written within the next hour counts as derived from them
    /// ([`Memory::write_snapshot`]).
    ///
    /// # Errors
    /// As [`Memory::search`], and the embedder's errors.
    pub fn recall(
        &self,
        identity: &Identity,
        question: &str,
        with: &dyn Embedder,
        wanted: &MemoryQuery<'_>,
    ) -> Result<Vec<MemoryHit>> {
        if let Some(other) = wanted.embedder.filter(|other| *other != with.id()) {
            return Err(Error::invalid(format!(
                "questions are embedded by {:?} here, not by {other:?}: pass the question's vector instead",
                with.id()
            )));
        }
        if with.id() != WordEmbedder::ID {
            let Some(vector) = embed_one(question.trim(), with)? else { return Ok(Vec::new()) };
            let wanted = MemoryQuery {
                min_score: Some(wanted.min_score.unwrap_or_else(|| with.threshold())),
                embedder: Some(with.id()),
                ..wanted.clone()
            };
            return self.search(identity, &vector, &wanted);
        }
        let hits = self.recall_words(identity, question, wanted)?;
        self.note_recall(identity, &hits);
        Ok(hits)
    }

    /// Scores a question by the index, or against the cards of all entries if there is no index or it is
    /// damaged.
    fn recall_words(
        &self,
        identity: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
    ) -> Result<Vec<MemoryHit>> {
        let asked = QuestionTerms::parse(question);
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        identity.checked_name()?;
        match self.recall_indexed(identity, &asked, wanted) {
            Ok(Some(hits)) => return Ok(hits),
            Ok(None) => {}
            Err(error) if is_damage(&error) => {
                // If the index cannot be discarded, the next recall reads the cards again.
                let _later = self.discard_index(&identity.tenant_prefix());
            }
            Err(error) => return Err(error),
        }
        self.recall_by_scan(identity, &asked, wanted)
    }

    /// Recall by the index; `None` if the tenant has none.
    fn recall_indexed(
        &self,
        identity: &Identity,
        asked: &QuestionTerms,
        wanted: &MemoryQuery<'_>,
    ) -> Result<Option<Vec<MemoryHit>>> {
        let (view, prefix) = (View::new(self.entries.core()), key_prefix(identity, wanted)?);
        let tiers: Vec<u8> = wanted.tiers.iter().map(|tier| tier_number(Some(tier))).collect();
        let Some(IndexFinding { mut passed, any }) =
            self.find_indexed(&view, identity, asked, wanted, &tiers)?
        else {
            return Ok(None);
        };
        if !any {
            self.check_built_in_embedder(&prefix)?;
        }
        passed.sort_unstable_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        let partition = partition_of(&identity.tenant_prefix());
        let key_of = |number| -> Result<Option<Vec<u8>>> {
            let key = self.key_of_number(&view, &partition, number)?;
            Ok(key.filter(|key| key.starts_with(prefix.as_bytes())))
        };
        // The best entries, in the order of `top_hits`. Only entries that score like the last of them are
        // compared by their keys.
        let ranked = Self::ranked_count(wanted).min(passed.len());
        let least = ranked.checked_sub(1).and_then(|at| passed.get(at)).map_or(0.0, |(score, _)| *score);
        let mut best = Vec::new();
        let mut rest: HashMap<u64, f32> = HashMap::new();
        let mut equal = Vec::new();
        for (score, number) in passed {
            match score.total_cmp(&least) {
                _ if ranked == 0 => {}
                std::cmp::Ordering::Greater => best.extend(key_of(number)?.map(|key| (score, key))),
                std::cmp::Ordering::Equal => equal.extend(key_of(number)?.map(|key| (key, number))),
                std::cmp::Ordering::Less => drop(rest.insert(number, score)),
            }
        }
        equal.sort();
        for (key, number) in equal {
            match best.len() < ranked {
                true => best.push((least, key)),
                false => drop(rest.insert(number, least)),
            }
        }
        let hits = self.hits_and_sources(best, &mut |source| {
            // Numbers of another tenant say nothing here.
            let is_covered = !rest.is_empty() && source.starts_with(prefix.as_bytes());
            let number = if is_covered { self.number_of_entry(&view, source)? } else { None };
            Ok(number.and_then(|number| rest.remove(&number)))
        })?;
        let mut hits = rank(hits, wanted)?;
        hits.truncate(wanted.hit_limit());
        Ok(Some(hits))
    }

    /// As [`Memory::recall`] with the built-in embedder, but without the index and without noting the recall: for tests that
    /// compare both.
    ///
    /// # Errors
    /// As [`Memory::recall`].
    #[doc(hidden)]
    pub fn recall_scanning(
        &self,
        identity: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
    ) -> Result<Vec<MemoryHit>> {
        let asked = QuestionTerms::parse(question);
        if asked.is_empty() { Ok(Vec::new()) } else { self.recall_by_scan(identity, &asked, wanted) }
    }

    /// Scores a question against the cards of all entries. One pass counts how rare its words are in the
    /// tenant, a second pass scores.
    fn recall_by_scan(
        &self,
        identity: &Identity,
        asked: &QuestionTerms,
        wanted: &MemoryQuery<'_>,
    ) -> Result<Vec<MemoryHit>> {
        let prefix = key_prefix(identity, wanted)?;
        let mut rarity = TermRarity::new(asked);
        self.for_each_card(&identity.tenant_prefix(), &mut |_, card| rarity.count_entry(asked, card))?;
        let tiers: Vec<u8> = wanted.tiers.iter().map(|tier| tier_number(Some(tier))).collect();
        let (mut passed, mut any) = (Vec::new(), false);
        self.for_each_card(&prefix, &mut |key, card| {
            any = true;
            if (tiers.is_empty() || tiers.contains(&card.tier))
                && let Some(score) = rarity.score(asked, card)
                && wanted.min_score.map_or_else(|| rarity.answers(asked, card), |least| score >= least)
            {
                passed.push((score, key));
            }
        })?;
        if !any {
            self.check_built_in_embedder(&prefix)?;
        }
        let mut hits = rank(self.top_hits(passed, wanted)?, wanted)?;
        hits.truncate(wanted.hit_limit());
        Ok(hits)
    }

    /// The entries with the best scores, and their sources that also reached the minimum score.
    fn top_hits(&self, mut passed: Vec<(f32, Vec<u8>)>, wanted: &MemoryQuery<'_>) -> Result<Vec<MemoryHit>> {
        passed.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        let mut rest: HashMap<Vec<u8>, f32> = HashMap::new();
        let ranked = Self::ranked_count(wanted).min(passed.len());
        rest.extend(passed.drain(ranked..).map(|(score, key)| (key, score)));
        self.hits_and_sources(passed, &mut |source| Ok(rest.remove(source)))
    }

    /// Number of entries that are read and ranked.
    fn ranked_count(wanted: &MemoryQuery<'_>) -> usize {
        wanted.hit_limit().saturating_mul(RANKED_EACH).max(RANKED_MIN)
    }

    /// The entries of some keys, and their sources of which `take_source` gives a score.
    fn hits_and_sources(
        &self,
        mut passed: Vec<(f32, Vec<u8>)>,
        take_source: &mut dyn FnMut(&[u8]) -> Result<Option<f32>>,
    ) -> Result<Vec<MemoryHit>> {
        let mut hits = Vec::new();
        while let Some((score, key)) = passed.pop() {
            let Some(entry) =
                self.live_entry(&key)?.filter(|entry| entry.embedder.as_deref() == Some(WordEmbedder::ID))
            else {
                continue;
            };
            let identity = identity_of_key(&key);
            for said in &entry.derived_from {
                let (of, id) = resolve_source(&identity, said);
                let source = entry_key(of, id);
                passed.extend(take_source(&source)?.map(|score| (score, source)));
            }
            hits.push(MemoryHit { entry, identity, score });
        }
        Ok(hits)
    }

    /// Calls `each` with every card under a prefix whose entry has not expired.
    fn for_each_card(&self, prefix: &str, each: &mut dyn FnMut(Vec<u8>, &CardRead<'_>)) -> Result<()> {
        let now = self.now_ms();
        for found in self.words.scan(ScanRange::prefix(prefix.as_bytes())) {
            let (key, bytes) = found?;
            let card = CardRead::parse(&bytes).map_err(|e| Error::bug(e.to_string()))?;
            if !card.is_expired(now) {
                each(key, &card);
            }
        }
        Ok(())
    }

    /// # Errors
    /// `Invalid` if the entries under a prefix use another embedder than the built-in one.
    fn check_built_in_embedder(&self, prefix: &str) -> Result<()> {
        self.for_each_entry(prefix, &mut |_, entry| match &entry.embedder {
            Some(other) if entry.embedding.is_some() => Err(embedder_mismatch(WordEmbedder::ID, other)),
            _ => Ok(()),
        })
    }

    /// Notes hits that the identity may answer from later. A failure to write the note is ignored, since the
    /// hits matter more.
    pub(super) fn note_recall(&self, identity: &Identity, hits: &[MemoryHit]) {
        if hits.is_empty() || !self.recalled.core().is_writer() {
            return;
        }
        let _changing = self.lock_unsettled();
        let mut recalled = self.recent_recall(identity).unwrap_or_default();
        let now = self.now_ms();
        // An older annals wrote no times.
        let recalled_ms = recalled.at_ms;
        recalled.times_ms.resize(recalled.ids.len(), recalled_ms);
        for hit in hits {
            let id = format!("{}/{}", hit.identity, hit.entry.id);
            let known = recalled.ids.iter().position(|known| *known == id);
            match known.and_then(|at| recalled.times_ms.get_mut(at)) {
                Some(time) => *time = now,
                None => {
                    recalled.ids.push(id);
                    recalled.times_ms.push(now);
                }
            }
        }
        let over = recalled.ids.len().saturating_sub(RECALLED_MAX);
        recalled.ids.drain(..over);
        recalled.times_ms.drain(..over);
        recalled.at_ms = now;
        let mut batch = self.space.batch();
        if let Ok(value) = to_json_bytes(&recalled) {
            batch.put(&self.recalled, &entry_key(&identity.name(), ""), value);
            let _not_kept = batch.submit_with(Durability::Process).and_then(annals::Ticket::wait);
        }
    }

    /// What the identity recalled within the last hour.
    fn recent_recall(&self, identity: &Identity) -> Result<RecentRecall> {
        let Some(kept) = self.recalled.get(&entry_key(&identity.checked_name()?, ""))? else {
            return Ok(RecentRecall::default());
        };
        let recalled: RecentRecall = serde_json::from_slice(&kept).map_err(|e| Error::bug(e.to_string()))?;
        let is_late = self.now_ms().saturating_sub(recalled.at_ms) <= RECALLED_MS;
        Ok(if is_late { recalled } else { RecentRecall::default() })
    }

    /// The entries that an identity recalled within the last hour and has not answered from yet. Each is the
    /// identity's name, a slash and the id.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn recently_recalled(&self, identity: &Identity) -> Result<Vec<String>> {
        Ok(self.recent_recall(identity)?.ids)
    }

    /// As [`Memory::recently_recalled`], each with the time when it was recalled last, in milliseconds since 1970.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn recently_recalled_at(&self, identity: &Identity) -> Result<Vec<(String, i64)>> {
        let recalled = self.recent_recall(identity)?;
        let times = recalled.times_ms.into_iter().chain(std::iter::repeat(recalled.at_ms));
        Ok(recalled.ids.into_iter().zip(times).collect())
    }

    /// Stores a run's bare snapshot as the entry `snap-N`, where N is the conversation's next turn, in the
    /// form of agentfootprint 9.62.0. Returns the entry.
    ///
    /// A snapshot without tool calls counts as derived from the identity's recent recall. One with tool calls counts as
    /// derived from what the identity recalled during the snapshot's run (its `durationMs` before now). The options can
    /// name further sources of any snapshot. A derived snapshot is marked (`metadata.derivedFrom`) and stands
    /// behind its sources when both are found.
    ///
    /// # Errors
    /// `Invalid` if the text is not a snapshot with a query; as [`Memory::remember`].
    pub fn write_snapshot(
        &self,
        identity: &Identity,
        snapshot: &str,
        with: &dyn Embedder,
        options: &SnapshotOptions,
    ) -> Result<MemoryEntry> {
        let name = identity.checked_name()?;
        let parsed = JsValue::parse(snapshot).map_err(|e| {
            Error::invalid(format!("a snapshot must be a JSON object: {} at byte {}", e.what, e.at))
        })?;
        if !parsed
            .get("query")
            .is_some_and(|query| matches!(query, JsValue::Text(units) if !units.is_empty()))
        {
            return Err(Error::invalid("a snapshot must have a query"));
        }
        let calls_tools = parsed.get("toolCalls").is_some_and(|calls| !calls.items().is_empty());
        // The embedder may be slow: its vector is made before the lock is taken.
        let vector = embed_one(&embedding_text(&parsed), with)?;
        let mut changing = self.lock_changes()?;
        let turn = self.next_turn(&name)?.max(options.turn.unwrap_or(1).max(1));
        let mut derived_from = options.derived_from.clone();
        let lasted_ms = parsed.get("durationMs").and_then(JsValue::number).map_or(0, whole_ms);
        let from_ms = match (calls_tools, lasted_ms) {
            (false, _) => i64::MIN,
            (true, 1..) => self.now_ms().saturating_sub(lasted_ms),
            // Nobody says when the run began.
            (true, _) => i64::MAX,
        };
        let recalled = self.recently_recalled_at(identity)?.into_iter();
        derived_from.extend(recalled.filter(|(_, at_ms)| *at_ms >= from_ms).map(|(id, _)| id));
        let mut entry = MemoryEntry::parse(&format!("{{\"id\":\"snap-{turn}\",\"value\":{snapshot}}}"))?;
        set_leading_members(&mut entry, self.now_ms(), options);
        set_embedding(&mut entry, vector.as_deref(), with)?;
        set_trailing_members(&mut entry, identity, turn, &derived_from);
        let text = entry.to_json();
        let CheckedEntry { entry, card } = CheckedEntry::parse(&text)?;
        let mut batch = self.space.batch();
        let key = entry_key(&name, &entry.id);
        self.add_to_batch(&mut changing, &mut batch, &key, (&entry, text), card)?;
        batch.delete(&self.recalled, &entry_key(&name, ""));
        self.commit(batch)?;
        drop(changing);
        // The snapshot is stored. If the index cannot be kept now, the next write tries again.
        let _later = self.tend_index(&key);
        Ok(entry)
    }

    /// One more than the highest turn among a conversation's live snapshots.
    fn next_turn(&self, name: &str) -> Result<u64> {
        let prefix = entry_key(name, "snap-");
        let mut turns = Vec::new();
        for found in self.entries.scan(ScanRange::prefix(&prefix)).keys() {
            let found = found?;
            let number = found.get(prefix.len()..).and_then(|number| std::str::from_utf8(number).ok());
            turns.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        turns.sort_unstable();
        while let Some(turn) = turns.pop() {
            if self.live_entry(&entry_key(name, &format!("snap-{turn}")))?.is_some() {
                return Ok(turn.saturating_add(1));
            }
        }
        Ok(1)
    }
}

/// Parses an entry and adds the vector of its texts if it has none.
pub(super) fn with_embedding(text: &str, with: &dyn Embedder) -> Result<CheckedEntry> {
    let mut entry = MemoryEntry::parse(text)?;
    if entry.embedding.is_some() {
        return CheckedEntry::parse(text);
    }
    let value = parse_value(entry.value())?;
    let vector = embed_one(&embedding_text(&value), with)?;
    set_embedding(&mut entry, vector.as_deref(), with)?;
    // The members are set and read alike, so only the limit on an entry's size is left to check.
    entry.check_size()?;
    check_values(&entry)?;
    CheckedEntry::new(entry, &value)
}

/// Sets the members that agentfootprint writes before the vector.
fn set_leading_members(entry: &mut MemoryEntry, now: i64, options: &SnapshotOptions) {
    let mut set = |name: &str, value: serde_json::Value| entry.set_member(name, value.to_string());
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

/// Sets the members that agentfootprint writes after the vector, and the snapshot's sources.
fn set_trailing_members(entry: &mut MemoryEntry, identity: &Identity, turn: u64, derived_from: &[String]) {
    let parts: Vec<String> = identity
        .parts()
        .into_iter()
        .filter_map(|(name, part)| Some(format!("\"{name}\":{}", serde_json::Value::from(part?))))
        .collect();
    entry.set_member("source", format!("{{\"turn\":{turn},\"identity\":{{{}}}}}", parts.join(",")));
    if !derived_from.is_empty() {
        let ids = serde_json::Value::from(derived_from.to_vec());
        entry.set_member("metadata", format!("{{\"derivedFrom\":{ids}}}"));
    }
}

/// Sets an entry's vector and the embedder's id.
fn set_embedding(entry: &mut MemoryEntry, vector: Option<&[f32]>, with: &dyn Embedder) -> Result<()> {
    if let Some(vector) = vector {
        entry.set_member("embedding", vector_json(vector)?);
        entry.embedding = Some(vector.to_vec());
    }
    // The built-in embedder finds an entry by all its texts, even if its query holds no words.
    if vector.is_some() || with.id() == WordEmbedder::ID {
        entry.set_member("embeddingModel", serde_json::Value::from(with.id()).to_string());
        entry.embedder = Some(with.id().to_owned());
    }
    Ok(())
}

/// A vector as JSON; integers without a decimal point.
fn vector_json(vector: &[f32]) -> Result<String> {
    let whole = |number: &f32| number.fract() == 0.0 && number.abs() < 1e6;
    let mut out = Vec::with_capacity(2 + 4 * vector.len());
    for number in vector {
        let begin = if out.is_empty() { b'[' } else { b',' };
        match whole(number) {
            true if (0.0..10.0).contains(number) && number.is_sign_positive() => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a digit")]
                out.extend([begin, b'0' + *number as u8]);
            }
            is_whole => {
                out.push(begin);
                let text = match is_whole {
                    #[expect(clippy::cast_possible_truncation, reason = "a whole number below a million")]
                    true => (*number as i32).to_string(),
                    false => serde_json::to_string(number).map_err(|e| Error::bug(e.to_string()))?,
                };
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    if out.is_empty() {
        out.push(b'[');
    }
    out.push(b']');
    String::from_utf8(out).map_err(|e| Error::bug(e.to_string()))
}

/// The text to embed: a snapshot's query, or all texts of any other value in order.
pub(super) fn embedding_text(value: &JsValue) -> String {
    if let Some(JsValue::Text(query)) = value.get("query") {
        return text_of(query);
    }
    let mut texts = Vec::new();
    value.for_each_text(&mut |text| texts.push(text.to_owned()));
    texts.join("\n")
}

/// The vector of a text, if the text holds anything to search by.
pub(super) fn embed_one(text: &str, with: &dyn Embedder) -> Result<Option<Vec<f32>>> {
    if text.is_empty() {
        return Ok(None);
    }
    let vector = with.embed(&[text])?.into_iter().next();
    let vector = vector.ok_or_else(|| Error::bug(format!("{:?} gave no vector for a text", with.id())))?;
    Ok(Some(vector).filter(|vector| vector.iter().any(|number| *number != 0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The members that the vector adds are not parsed again.
    #[test]
    fn entry_with_embedding_equals_its_json() {
        for entry in [
            r#"{"id":"a","value":{"query":"Why #42?","finalContent":"No"}}"#,
            r#"{"id":"b","value":"","embedding":null,"embeddingModel":null}"#,
            r#"{"id":"c","value":[1,"two"],"x\"y":1,"ttl":5}"#,
            r#"{"id":"d","value":1,"embedding":[0.1,-0.0,12,1e7],"embeddingModel":"own"}"#,
        ] {
            let embedded = with_embedding(entry, &WordEmbedder).unwrap().entry;
            assert_eq!(MemoryEntry::parse(&embedded.to_json()).unwrap(), embedded, "{entry}");
        }
        assert_eq!(vector_json(&[]).unwrap(), "[]");
        assert_eq!(
            vector_json(&[0.0, -0.0, 9.0, 10.0, -1.0, 0.1, 1e7]).unwrap(),
            "[0,0,9,10,-1,0.1,10000000.0]"
        );
    }
}
