//! The index of decisions in memory: words (BM25) and the facts that filters and statistics need.
//!
//! Ranking by words is Okapi BM25 (S. Robertson, H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and
//! Beyond", 2009, section 3) with k1 = 1.2 and b = 0.75. A word of the decision itself counts three times.
//! Lists of words and of vectors are fused by reciprocal ranks (G. Cormack and others, "Reciprocal Rank Fusion
//! outperforms Condorcet", SIGIR 2009) with k = 60.
//!
//! The index follows from the keyspace `annals.decisions`. It is built when it is first needed.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::decision::StoredDecision;
use crate::times::parse_iso;

const K1: f32 = 1.2;
const B: f32 = 0.75;
const TITLE_WEIGHT: u16 = 3;
const FUSION_K: f64 = 60.0;
/// The source of captured thoughts.
const THOUGHT: &str = "cstp:recordThought";
/// Longer words are cut.
const WORD_CHARS_MAX: usize = 64;

/// What is known of a decision without reading it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecisionFacts {
    pub(crate) id: String,
    /// Nanoseconds since 1970.
    pub(crate) created_ns: i128,
    pub(crate) confidence: f64,
    pub(crate) category: Option<String>,
    pub(crate) stakes: String,
    pub(crate) project: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) status: String,
    pub(crate) outcome: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) run_uid: Option<u64>,
    pub(crate) reason_types: Vec<String>,
    pub(crate) trace: Option<TraceFacts>,
}

/// What statistics need of a deliberation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TraceFacts {
    pub(crate) steps: usize,
    /// Those of them among which the convergence lies ([`StoredTrace::sent_steps`]).
    pub(crate) sent_steps: usize,
    pub(crate) inputs: usize,
    /// Number of different sources of the inputs.
    pub(crate) sources: usize,
    pub(crate) convergence_point: Option<u64>,
    /// Milliseconds from the first event to the step of convergence.
    pub(crate) convergence_ms: Option<f64>,
    pub(crate) total_duration_ms: Option<f64>,
}

impl DecisionFacts {
    pub(crate) fn new(stored: &StoredDecision) -> Self {
        let trace = stored.deliberation.as_ref();
        let created_ns = parse_iso(&stored.created_at).unwrap_or(0);
        Self {
            id: stored.id.clone(),
            created_ns,
            confidence: stored.confidence,
            category: stored.category.clone(),
            stakes: stored.stakes.clone(),
            project: stored.project.clone(),
            agent: stored.agent_id.clone(),
            tags: stored.tags.clone(),
            status: stored.status.clone(),
            outcome: stored.outcome.clone(),
            run: stored.run.clone(),
            run_uid: stored.run_uid,
            reason_types: stored.reasons.iter().map(|reason| reason.kind.clone()).collect(),
            trace: trace.filter(|trace| !trace.inputs.is_empty() || !trace.steps.is_empty()).map(|trace| {
                let mut sources: Vec<&str> =
                    trace.inputs.iter().filter_map(|input| input.source.as_deref()).collect();
                sources.sort_unstable();
                sources.dedup();
                TraceFacts {
                    steps: trace.steps.len(),
                    sent_steps: trace.sent_steps(created_ns),
                    inputs: trace.inputs.len(),
                    sources: sources.len(),
                    convergence_point: trace.convergence_point,
                    convergence_ms: crate::statistics::convergence_ms(trace),
                    total_duration_ms: trace.total_duration_ms,
                }
            }),
        }
    }
}

/// The index of a namespace's decisions.
#[derive(Debug, Default)]
pub(crate) struct DecisionIndex {
    facts: Vec<Option<DecisionFacts>>,
    lengths: Vec<u32>,
    by_id: HashMap<String, u32>,
    /// Documents of a word with how often it occurs.
    postings: HashMap<Box<str>, Vec<(u32, u16)>>,
    /// Documents by time; the number tells equal times apart.
    by_time: BTreeMap<(i128, u32), ()>,
    live: usize,
    live_length: u64,
    with_run: usize,
}

/// A document and its score, the best first.
pub(crate) type Ranked = Vec<(u32, f64)>;

impl DecisionIndex {
    /// Adds a decision, in the place of an older version of it.
    pub(crate) fn add(&mut self, stored: &StoredDecision) {
        self.remove(&stored.id);
        let number = u32::try_from(self.facts.len()).unwrap_or(u32::MAX);
        let mut counts: HashMap<String, u16> = HashMap::new();
        let mut length = 0u32;
        let mut count = |text: &str, weight: u16| {
            for word in words(text) {
                length = length.saturating_add(1);
                let known = counts.entry(word).or_default();
                *known = known.saturating_add(weight);
            }
        };
        count(&stored.decision, TITLE_WEIGHT);
        let optional = [&stored.context, &stored.pattern, &stored.project, &stored.category];
        optional.into_iter().flatten().for_each(|text| count(text, 1));
        stored.tags.iter().for_each(|text| count(text, 1));
        for reason in &stored.reasons {
            if let Some(serde_json::Value::String(text)) = &reason.text {
                count(text, 1);
            }
        }
        if let Some(trace) = &stored.deliberation {
            // The text of a captured call repeats the words of a question. Counted, each decision would answer
            // the questions that were asked before it.
            let is_call = |source: &Option<String>| {
                source.as_deref().is_some_and(|source| source.starts_with("cstp:") && source != THOUGHT)
            };
            let (calls, inputs): (Vec<_>, Vec<_>) =
                trace.inputs.iter().partition(|input| is_call(&input.source));
            let calls: HashSet<&str> = calls.iter().map(|input| input.text.as_str()).collect();
            let said: HashSet<&str> = inputs.iter().map(|input| input.text.as_str()).collect();
            inputs.iter().for_each(|input| count(&input.text, 1));
            let thoughts = trace.steps.iter().map(|step| step.thought.as_str());
            thoughts
                .filter(|text| !calls.contains(text) && !said.contains(text))
                .for_each(|text| count(text, 1));
        }
        for (word, times) in counts {
            self.postings.entry(word.into_boxed_str()).or_default().push((number, times));
        }
        let facts = DecisionFacts::new(stored);
        self.by_id.insert(facts.id.clone(), number);
        self.by_time.insert((facts.created_ns, number), ());
        self.live += 1;
        self.live_length += u64::from(length);
        self.with_run += usize::from(facts.run_uid.is_some());
        self.facts.push(Some(facts));
        self.lengths.push(length);
    }

    /// Removes a decision. Its postings stay, and lead to nothing.
    pub(crate) fn remove(&mut self, id: &str) {
        let Some(number) = self.by_id.remove(id) else { return };
        let Some(facts) = self.facts.get_mut(number as usize).and_then(Option::take) else { return };
        self.by_time.remove(&(facts.created_ns, number));
        self.live -= 1;
        self.live_length -= u64::from(self.lengths.get(number as usize).copied().unwrap_or(0));
        self.with_run -= usize::from(facts.run_uid.is_some());
    }

    /// Whether most entries of the index are of removed decisions.
    pub(crate) fn is_stale(&self) -> bool {
        self.facts.len() > 1024 && self.facts.len() > 2 * self.live
    }

    pub(crate) fn has_runs(&self) -> bool {
        self.with_run > 0
    }

    pub(crate) fn number(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn facts(&self, number: u32) -> Option<&DecisionFacts> {
        self.facts.get(number as usize)?.as_ref()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &DecisionFacts> {
        self.facts.iter().flatten()
    }

    /// Decisions that pass, the newest first.
    pub(crate) fn newest(&self, passes: &dyn Fn(&DecisionFacts) -> bool) -> Ranked {
        let numbers = self.by_time.keys().rev().map(|(_, number)| *number);
        numbers.filter(|number| self.facts(*number).is_some_and(passes)).map(|number| (number, 0.0)).collect()
    }

    /// Decisions that hold a word of the question and pass, the best first.
    pub(crate) fn by_words(&self, question: &str, passes: &dyn Fn(&DecisionFacts) -> bool) -> Ranked {
        let mut asked: Vec<String> = words(question).collect();
        asked.sort_unstable();
        asked.dedup();
        if self.live == 0 {
            return Vec::new();
        }
        let average = (self.live_length as f32 / self.live as f32).max(1.0);
        let mut scores = vec![0f32; self.facts.len()];
        for word in &asked {
            let Some(postings) = self.postings.get(word.as_str()) else { continue };
            let having = postings.len() as f32;
            let all = (self.facts.len() as f32).max(having);
            let rarity = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
            for (number, times) in postings {
                let times = f32::from(*times);
                let length = self.lengths.get(*number as usize).copied().unwrap_or(0) as f32;
                let weight = times * (K1 + 1.0) / (times + K1 * (1.0 - B + B * length / average));
                if let Some(score) = scores.get_mut(*number as usize) {
                    *score += rarity * weight;
                }
            }
        }
        let mut ranked: Ranked = Vec::new();
        for (number, score) in (0u32..).zip(scores) {
            if score > 0.0 && self.facts(number).is_some_and(passes) {
                ranked.push((number, f64::from(score)));
            }
        }
        self.sort(&mut ranked);
        ranked
    }

    /// Sorts by score, then by id.
    fn sort(&self, ranked: &mut Ranked) {
        let id = |number: u32| self.facts(number).map(|facts| facts.id.as_str());
        ranked.sort_by(|(one, a), (other, b)| b.total_cmp(a).then_with(|| id(*one).cmp(&id(*other))));
    }

    /// Two lists as one, by reciprocal ranks.
    pub(crate) fn fuse(&self, lists: [&Ranked; 2], depth: usize) -> Ranked {
        let mut scores: HashMap<u32, f64> = HashMap::new();
        for list in lists {
            for (rank, (number, _)) in list.iter().take(depth).enumerate() {
                *scores.entry(*number).or_default() += 1.0 / (FUSION_K + rank as f64 + 1.0);
            }
        }
        let mut ranked: Ranked = scores.into_iter().collect();
        self.sort(&mut ranked);
        ranked
    }
}

/// The words of a text: letters and digits, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(|word| word.chars().take(WORD_CHARS_MAX).flat_map(char::to_lowercase).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> DecisionIndex {
        let mut index = DecisionIndex::default();
        for (id, decision, day) in [
            ("a", "Use Postgres for the ledger of payments", 1),
            ("b", "Cache answers of the model in Redis", 2),
            ("c", "Keep payments in Redis: the queue of payments", 3),
        ] {
            let created_at = format!("2026-02-0{day}T00:00:00.000000+00:00");
            index.add(&StoredDecision {
                id: id.into(),
                decision: decision.into(),
                created_at,
                ..Default::default()
            });
        }
        index
    }

    fn ids(index: &DecisionIndex, ranked: &Ranked) -> String {
        ranked.iter().map(|(number, _)| index.facts(*number).unwrap().id.as_str()).collect()
    }

    #[test]
    fn rare_and_frequent_words_rank_first() {
        let index = index();
        assert_eq!(ids(&index, &index.by_words("payments", &|_| true)), "ca");
        assert_eq!(ids(&index, &index.by_words("POSTGRES payments?", &|_| true)), "ac");
        assert_eq!(ids(&index, &index.by_words("kafka", &|_| true)), "");
        assert_eq!(ids(&index, &index.by_words("redis", &|facts| facts.id != "c")), "b");
        assert_eq!(ids(&index, &index.newest(&|_| true)), "cba");
    }

    #[test]
    fn fusion_prefers_what_both_lists_hold() {
        let index = index();
        let (words, vectors) = (vec![(0, 9.0), (1, 1.0)], vec![(1, 0.9), (2, 0.1)]);
        assert_eq!(ids(&index, &index.fuse([&words, &vectors], 10)), "bac");
    }

    #[test]
    fn replaced_and_removed_decisions_are_not_found() {
        let mut index = index();
        let again = StoredDecision { id: "a".into(), decision: "Use SQLite".into(), ..Default::default() };
        index.add(&again);
        assert_eq!(ids(&index, &index.by_words("postgres", &|_| true)), "");
        assert_eq!(ids(&index, &index.by_words("sqlite", &|_| true)), "a");
        index.remove("a");
        assert_eq!(ids(&index, &index.by_words("sqlite", &|_| true)), "");
        assert_eq!(index.all().count(), 2);
    }
}
