//! Recall of the questions of recorded runs, in the memories of all tenants of a namespace.
//!
//! It serves people who look for a run. Agents recall within one tenant ([`Memory::recall`]). So a recall here is not noted
//! as the source of a later snapshot, and no access is counted.
//!
//! The keys of the cards name the tenants. With the built-in embedder each tenant's index is asked, and words are weighed by
//! their rarity among the entries of all tenants, so that scores of different tenants can be compared. Vectors of all tenants
//! stand in one partition, which is searched once.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use super::embedder::Embedder;
use super::operations::{CheckedEntry, embedder_mismatch, identity_of_key, parse_value};
use super::postings::{AskedTenant, ScoreFilter, TailCards, is_damage, partition_of};
use super::rank::rank;
use super::recall::{embed_one, embedding_text};
use super::vector_search::{cosine, embedder_of_partition, length_mismatch, partition_name};
use super::words::{Card, CardRead, QuestionTerms, TermRarity};
use super::*;
use annals_store::kv::View;

/// Maximum number of questions of one run that [`Memory::recall_runs`] returns.
pub const RUN_QUESTIONS_MAX: usize = 5;
/// How the id of a run's entry begins.
const RUN_ID: &[u8] = b"run-";
/// Keys of a tenant that are passed one by one; then a new scan begins at the next tenant. A scan reads so many at once.
const KEYS_PASSED: usize = 256;

/// Which run the key of an entry is of: the key without the frame of a later question. `None` for other entries.
pub(super) fn run_of_key(key: &[u8]) -> Option<&[u8]> {
    let id = key.iter().position(|byte| *byte == 0)? + 1;
    key.get(id..)?.strip_prefix(RUN_ID)?;
    let frame = key.iter().rposition(|byte| *byte == b'@').filter(|at| *at >= id);
    let is_number = |at: &usize| {
        key.get(at + 1..).is_some_and(|seq| !seq.is_empty() && seq.iter().all(u8::is_ascii_digit))
    };
    frame.filter(is_number).map_or(Some(key), |at| key.get(..at))
}

/// The best entries of the best runs. `sorted` has the best first.
pub(super) fn best_of_runs(
    sorted: impl Iterator<Item = Result<(f32, Vec<u8>)>>,
    run_max: usize,
) -> Result<BestOfRuns> {
    let mut best = BestOfRuns { found: Vec::new(), is_full: false };
    let mut questions: HashMap<Vec<u8>, usize> = HashMap::new();
    for next in sorted {
        let (score, key) = next?;
        let Some(run) = run_of_key(&key) else { continue };
        if questions.len() >= run_max && !questions.contains_key(run) {
            best.is_full = true;
            break;
        }
        let number = questions.entry(run.to_vec()).or_default();
        if *number < RUN_QUESTIONS_MAX {
            *number += 1;
            best.found.push((score, key));
        }
    }
    Ok(best)
}

pub(super) struct BestOfRuns {
    /// Scores and keys.
    pub(super) found: Vec<(f32, Vec<u8>)>,
    /// There are more runs.
    pub(super) is_full: bool,
}

/// An entry that answers a question.
struct Candidate {
    score: f32,
    /// Its tenant's place in the list of tenants, and the number of its card there.
    tenant: usize,
    number: u64,
    /// Its key, if its card is in the tail.
    key: Option<Vec<u8>>,
}

impl Memory {
    /// Finds the questions of recorded runs that answer a question, in the memories of all tenants: entries with an id
    /// `run-...` and `metadata.run`, in the order of [`Memory::recall`]. They are of at most `run_max` runs, and at most
    /// [`RUN_QUESTIONS_MAX`] of each. The minimum score is the embedder's threshold; with [`WordEmbedder`], an entry must
    /// hold enough of the question's words.
    ///
    /// # Errors
    /// `Invalid` if nothing was found, and all vectors of the namespace are of another embedder, which the error names, or of
    /// another length; the embedder's errors; `Damaged`, `Unavailable`.
    pub fn recall_runs(&self, question: &str, with: &dyn Embedder, run_max: usize) -> Result<Vec<MemoryHit>> {
        let Some(vector) = embed_one(question.trim(), with)? else { return Ok(Vec::new()) };
        let found = match with.id() == WordEmbedder::ID {
            true => self.runs_by_words(&QuestionTerms::parse(question), run_max)?,
            false => self.runs_by_vector(&vector, with, run_max)?,
        };
        if found.is_empty() {
            self.check_run_embedder(vector.len(), with.id())?;
        }
        let mut hits = Vec::new();
        for (score, key) in found {
            let is_of_run =
                |entry: &MemoryEntry| entry.is_of_run && entry.embedder.as_deref() == Some(with.id());
            if let Some(entry) = self.live_entry(&key)?.filter(is_of_run) {
                hits.push(MemoryHit { entry, identity: identity_of_key(&key), score });
            }
        }
        rank(hits, &MemoryQuery::default())
    }

    /// The other embedders with entries in the namespace, sorted. [`Memory::recall_runs`] does not compare their entries with
    /// a question. Of an id of more than 200 bytes this is the hash.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn other_embedders(&self, asked: &str) -> Result<Vec<String>> {
        let partitions = self.space.embedders()?;
        let named = partitions.iter().filter_map(|name| embedder_of_partition(name));
        let mut others: BTreeSet<String> = named.map(str::to_owned).collect();
        if self.words.scan(ScanRange::all()).keys().next().transpose()?.is_some() {
            others.insert(WordEmbedder::ID.to_owned());
        }
        others.remove(asked);
        Ok(others.into_iter().collect())
    }

    fn runs_by_words(&self, asked: &QuestionTerms, run_max: usize) -> Result<Vec<(f32, Vec<u8>)>> {
        let view = View::new(self.entries.core());
        let mut tenants = Vec::new();
        for prefix in self.card_tenants(&view)? {
            let partition = partition_of(&prefix);
            let tenant = match self.read_tenant(&view, &partition, asked) {
                Ok(Some(tenant)) => tenant,
                Ok(None) => self.read_cards(&view, &prefix)?,
                Err(error) if is_damage(&error) => {
                    // If the index cannot be discarded, the next recall reads the cards again.
                    let _later = self.discard_index(&prefix);
                    self.read_cards(&view, &prefix)?
                }
                Err(error) => return Err(error),
            };
            tenants.push((partition, tenant));
        }
        let cards: Vec<TailCards<'_>> =
            tenants.iter().map(|(_, tenant)| tenant.tail_cards()).collect::<Result<_>>()?;
        let mut rarity = TermRarity::new(asked);
        for ((_, tenant), cards) in tenants.iter().zip(&cards) {
            tenant.count(cards, asked, &mut rarity);
        }
        let filter = ScoreFilter { identity: None, tiers: &[], min_score: None };
        let mut candidates: Vec<Candidate> = Vec::new();
        for (place, ((_, tenant), cards)) in tenants.iter().zip(&cards).enumerate() {
            tenant.score(cards, asked, &rarity, &filter, &mut |score, number, key| {
                if key.is_none_or(|key| run_of_key(key).is_some()) {
                    let key = key.map(<[u8]>::to_vec);
                    candidates.push(Candidate { score, tenant: place, number, key });
                }
            });
        }
        // Of equal scores the newest of a tenant first.
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.number.cmp(&a.number)));
        let keys = candidates.into_iter().filter_map(|found| {
            let key = match (found.key, tenants.get(found.tenant)) {
                (Some(key), _) => Ok(Some(key)),
                (None, Some((partition, _))) => self.key_of_number(&view, partition, found.number),
                (None, None) => Ok(None),
            };
            key.map(|key| Some((found.score, key?))).transpose()
        });
        Ok(best_of_runs(keys, run_max)?.found)
    }

    /// The prefixes of the tenants that have cards, in order.
    fn card_tenants(&self, view: &View) -> Result<Vec<String>> {
        let mut tenants: Vec<String> = Vec::new();
        let mut from: Bound<Vec<u8>> = Bound::Unbounded;
        loop {
            let range = ScanRange::between(from.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let (mut passed, mut next) = (0, None);
            for key in view.scan(&self.words, range).keys() {
                let key = key?;
                if tenants.last().is_some_and(|last| key.starts_with(last.as_bytes())) {
                    passed += 1;
                    if passed < KEYS_PASSED {
                        continue;
                    }
                    // The byte after a slash: no key of the tenant is beyond it.
                    next = tenants.last().map(|last| [last.trim_end_matches('/').as_bytes(), b"0"].concat());
                    break;
                }
                passed = 0;
                let end = key.iter().position(|byte| *byte == b'/').map_or(key.len(), |at| at + 1);
                tenants.push(String::from_utf8_lossy(key.get(..end).unwrap_or_default()).into_owned());
            }
            match next {
                Some(next) => from = Bound::Included(next),
                None => return Ok(tenants),
            }
        }
    }

    /// The cards of a tenant without an index.
    fn read_cards(&self, view: &View, prefix: &str) -> Result<AskedTenant> {
        let cards = view.scan(&self.words, ScanRange::prefix(prefix.as_bytes()));
        Ok(AskedTenant::without_index(cards.collect::<Result<_>>()?, self.now_ms()))
    }

    /// # Errors
    /// `Invalid` if the namespace has no vector that can be compared, and the first entry of a run has another one.
    fn check_run_embedder(&self, numbers: usize, asked: &str) -> Result<()> {
        if self.space.embedders()?.contains(&partition_name(numbers, Some(asked))) {
            return Ok(());
        }
        for key in self.entries.scan(ScanRange::all()).keys() {
            let key = key?;
            if run_of_key(&key).is_none() {
                continue;
            }
            let Some(entry) = self.live_entry(&key)? else { continue };
            match (&entry.embedding, &entry.embedder) {
                (Some(own), Some(of)) if of == asked => {
                    return Err(length_mismatch(asked, numbers, own.len()));
                }
                (Some(_), Some(of)) => return Err(embedder_mismatch(asked, of)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The score of each entry if nothing but its own texts decides; `None` if they do not answer the question. For entries as a
/// reader with a profile sees them: the stored vectors and cards are of the texts that the profile hides.
///
/// # Errors
/// `Invalid` for an entry with too many values; the embedder's errors.
pub fn entry_shares(
    question: &str,
    entries: &[MemoryEntry],
    with: &dyn Embedder,
) -> Result<Vec<Option<f32>>> {
    if with.id() == WordEmbedder::ID {
        let asked = QuestionTerms::parse(question);
        return entries
            .iter()
            .map(|entry| match CheckedEntry::parse(&entry.to_json())?.card {
                Some(card) => card_share(&asked, &card),
                None => Ok(None),
            })
            .collect();
    }
    let texts: Vec<String> = entries
        .iter()
        .map(|entry| Ok(embedding_text(&parse_value(entry.value())?)))
        .collect::<Result<_>>()?;
    let mut asked: Vec<&str> = vec![question.trim()];
    asked.extend(texts.iter().map(String::as_str).filter(|text| !text.is_empty()));
    if asked.contains(&"") {
        return Ok(vec![None; entries.len()]);
    }
    let mut vectors = with.embed(&asked)?.into_iter();
    let missing = || Error::bug(format!("{:?} gave no vector for a text", with.id()));
    let question = vectors.next().ok_or_else(missing)?;
    texts
        .iter()
        .map(|text| {
            if text.is_empty() {
                return Ok(None);
            }
            let score = cosine(&question, &vectors.next().ok_or_else(missing)?);
            Ok(Some(score).filter(|score| *score >= with.threshold()))
        })
        .collect()
}

/// The share of a question that a card holds, if all its words weigh the same; `None` if it does not answer the question.
pub(super) fn card_share(asked: &QuestionTerms, card: &Card) -> Result<Option<f32>> {
    if asked.is_empty() {
        return Ok(None);
    }
    let bytes = card.bytes();
    let card = CardRead::parse(&bytes).map_err(|error| Error::bug(error.to_string()))?;
    let rarity = TermRarity::new(asked);
    Ok(rarity.score(asked, &card).filter(|_| rarity.answers(asked, &card)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_key_ignores_frames_and_other_entries() {
        let run = |key: &str| run_of_key(key.as_bytes()).map(|run| String::from_utf8_lossy(run).into_owned());
        let of = |key: &str| Some(key.to_owned());
        assert_eq!(run("t/_/c\0run-night"), of("t/_/c\0run-night"));
        assert_eq!(run("t/_/c\0run-night@7"), of("t/_/c\0run-night"));
        assert_eq!(run("t/_/c\0run-mia@example.com"), of("t/_/c\0run-mia@example.com"));
        assert_eq!(run("t/_/c@9\0run-night"), of("t/_/c@9\0run-night"));
        for other in ["t/_/c\0snap-1", "t/_/run-c\0a", "run-a", "t/_/c\0arun-1"] {
            assert_eq!(run(other), None, "{other:?}");
        }
    }
}
