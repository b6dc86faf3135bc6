//! Reading: queries, look-ups, checks, statistics, exports.

use std::collections::{HashMap, HashSet};

use annals::kv::ScanRange;
use annals::vectors::{Owner, OwnerFilter, Search};
use annals::{Error, ErrorKind, Result};

use crate::calls::{Answer, Caller, Captured, cut};
use crate::decision::{CATEGORIES, OUTCOMES, STAKES, Scope, Shown, StoredDecision, check_confidence, shown};
use crate::guardrails::{Action, Phase, evaluate};
use crate::json::{ObjectText, RawObject, array_text, to_json};
use crate::record::{no_decision, partition_name};
use crate::search::{DecisionFacts, DecisionIndex, Ranked};
use crate::spikes;
use crate::statistics::{deliberation_stats, reason_stats};
use crate::times::{iso_micros, parse_iso};
use crate::trace::{REASON_TYPES, Spelling, Trace};
use crate::tracker::{InputKind, RelatedDecision};
use crate::{DECISIONS, Deliberation};

const LIMIT_DEFAULT: usize = 10;
const LIMIT_MAX: usize = 1000;
/// Decisions of a query that its input remembers.
const RELATED_EACH: usize = 5;
/// Fewest entries of each list that are fused.
const FUSED_MIN: usize = 200;
const STATUSES: [&str; 2] = ["pending", "reviewed"];

/// Which decisions are wanted.
#[derive(Debug, Default, Clone, PartialEq)]
struct Filter {
    category: Option<String>,
    stakes: Option<String>,
    project: Option<String>,
    status: Option<String>,
    outcome: Option<String>,
    agent: Option<String>,
    run: Option<String>,
    reason_type: Option<String>,
    tags: Vec<String>,
    confidence: (Option<f64>, Option<f64>),
    time_ns: (Option<i128>, Option<i128>),
    has_deliberation: Option<bool>,
}

impl Filter {
    /// Takes filters from the parameters: members of their own, or within `filters`.
    fn take(object: &mut RawObject<'_>) -> Result<Self> {
        let Some(nested) = object.take(&["filters"])? else { return Self::take_members(object, false) };
        let outer = Self::take_members(object, false)?;
        let mut inner = RawObject::parse(nested, "\"filters\"")?;
        let filter = Self::take_members(&mut inner, true)?;
        inner.expect_empty()?;
        if outer != Self::default() {
            return Err(Error::invalid("filters stand beside \"filters\": give all of them within it"));
        }
        Ok(filter)
    }

    fn take_members(object: &mut RawObject<'_>, is_nested: bool) -> Result<Self> {
        let time = |object: &mut RawObject<'_>, name: &str| {
            let Some(text) = object.take_text(&[name])? else { return Ok(None) };
            parse_iso(&text).map(Some).ok_or_else(|| {
                Error::invalid(format!("{name:?} is not a time like 2026-02-08T12:00:00Z: {text:?}"))
            })
        };
        let confidence = |object: &mut RawObject<'_>, names: &[&str]| {
            object.take_as::<f64>(names, "a number from 0 to 1")?.map(check_confidence).transpose()
        };
        let tag = object.take_text(&["tag"])?;
        let mut tags = object.take_as::<Vec<String>>(&["tags"], "a list of texts")?.unwrap_or_default();
        tags.extend(tag);
        Ok(Self {
            category: object.take_choice(&["category"], &CATEGORIES)?,
            stakes: object.take_choice(&["stakes"], &STAKES)?,
            project: object.take_text(&["project"])?,
            status: object.take_choice(&["status"], &STATUSES)?,
            outcome: object.take_choice(&["outcome"], &OUTCOMES)?,
            agent: if is_nested { object.take_text(&["agentId", "agent_id", "agent"])? } else { None },
            run: object.take_text(&["run"])?,
            reason_type: object.take_choice(&["reasonType", "reason_type"], &REASON_TYPES)?,
            tags,
            confidence: (
                confidence(object, &["minConfidence", "min_confidence"])?,
                confidence(object, &["maxConfidence", "max_confidence"])?,
            ),
            time_ns: (time(object, "since")?, time(object, "until")?),
            has_deliberation: object.take_as(&["hasDeliberation", "has_deliberation"], "true or false")?,
        })
    }

    fn passes(&self, facts: &DecisionFacts) -> bool {
        let is = |wanted: &Option<String>, value: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| value == Some(wanted))
        };
        is(&self.category, facts.category.as_ref())
            && is(&self.stakes, Some(&facts.stakes))
            && is(&self.project, facts.project.as_ref())
            && is(&self.status, Some(&facts.status))
            && is(&self.outcome, facts.outcome.as_ref())
            && is(&self.agent, facts.agent.as_ref())
            && is(&self.run, facts.run.as_ref())
            && self.reason_type.as_ref().is_none_or(|kind| facts.reason_types.contains(kind))
            && self.tags.iter().all(|tag| facts.tags.contains(tag))
            && self.confidence.0.is_none_or(|least| facts.confidence >= least)
            && self.confidence.1.is_none_or(|most| facts.confidence <= most)
            && self.time_ns.0.is_none_or(|since| facts.created_ns >= since)
            && self.time_ns.1.is_none_or(|until| facts.created_ns <= until)
            && self.has_deliberation.is_none_or(|has| facts.trace.is_some() == has)
    }
}

/// How a query is ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    List,
    Keyword,
    Semantic,
    Hybrid,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Keyword => "keyword",
            Self::Semantic => "semantic",
            Self::Hybrid => "hybrid",
        }
    }

    /// The mode that a query can have.
    fn choose(wanted: Option<&str>, has_text: bool, has_vector: bool) -> Result<Self> {
        match (wanted.unwrap_or("auto"), has_text, has_vector) {
            ("semantic", _, false) => {
                Err(Error::invalid("a semantic query needs \"embedding\": the vector of the question"))
            }
            ("keyword", false, _) => Err(Error::invalid("a keyword query needs \"query\": the words")),
            ("semantic", ..) | (_, false, true) => Ok(Self::Semantic),
            ("keyword", ..) | (_, true, false) => Ok(Self::Keyword),
            (_, true, true) => Ok(Self::Hybrid),
            (_, false, false) => Ok(Self::List),
        }
    }
}

/// A hit: the decision's id, its score, and its distance from the question.
struct Hit {
    id: String,
    score: f64,
    distance: f64,
}

/// Takes the wanted spelling of deliberations.
fn take_spelling(object: &mut RawObject<'_>) -> Result<Spelling> {
    let named = object.take_choice(&["spelling"], &["camelCase", "snake_case"])?;
    Ok(if named.as_deref() == Some("snake_case") { Spelling::Snake } else { Spelling::Camel })
}

fn rounded(distance: f64) -> f64 {
    (distance * 1000.0).round() / 1000.0
}

impl Deliberation {
    pub(crate) fn query_decisions(&self, caller: &Caller<'_>, params: &str) -> Result<Answer> {
        let mut object = RawObject::parse(params, "the query")?;
        let scope = Scope::take(&mut object)?;
        caller.check(&scope)?;
        let query = object.take_text(&["query"])?.unwrap_or_default();
        let limit = object.take_as::<usize>(&["limit", "topK", "top_k"], "a whole number")?;
        let limit = limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("a query gives 1 to {LIMIT_MAX} decisions, not {limit}")));
        }
        let with_trace = object
            .take_as(&["includeDeliberation", "include_deliberation"], "true or false")?
            .unwrap_or(false);
        let spelling = take_spelling(&mut object)?;
        let wanted = object.take_choice(
            &["retrievalMode", "retrieval_mode", "mode"],
            &["auto", "semantic", "keyword", "hybrid"],
        )?;
        let vector = object.take_as::<Vec<f32>>(&["embedding"], "a list of numbers")?;
        let embedder = object.take_text(&["embeddingModel", "embedding_model"])?;
        let filter = Filter::take(&mut object)?;
        object.expect_empty()?;
        let mut vector = vector.filter(|vector| !vector.is_empty()).map(|vector| (vector, embedder));
        let (mut embedding_failed, has_text) = (None, !query.trim().is_empty());
        if vector.is_none() && has_text && wanted.as_deref() != Some("keyword") {
            let (found, failed) = caller.vector(&query);
            vector = found.map(|(vector, embedder)| (vector, Some(embedder)));
            embedding_failed = failed;
        }
        let mode = Mode::choose(wanted.as_deref(), has_text, vector.is_some())?;
        let vector = match vector {
            Some((vector, embedder)) => Some((partition_name(vector.len(), embedder.as_deref())?, vector)),
            None => None,
        };
        let (hits, mut total) = self.search(&query, vector.as_ref(), mode, &filter, limit)?;
        let (mut texts, mut related) = (Vec::new(), Vec::new());
        for hit in hits {
            if texts.len() == limit {
                break;
            }
            // Forgetting a run deletes its decisions, which the index does not see.
            let Some(stored) = self.stored(&hit.id)? else {
                total -= 1;
                continue;
            };
            let distance = rounded(hit.distance);
            let extra = match mode {
                Mode::List => Vec::new(),
                _ => vec![("score", to_json(&hit.score)), ("distance", to_json(&distance))],
            };
            texts.push(shown(&stored, Shown { spelling, with_trace }, &extra)?);
            if related.len() < RELATED_EACH && mode != Mode::List {
                let summary = StoredDecision::parse(stored.as_bytes())?.decision;
                related.push(RelatedDecision { id: hit.id, summary, distance });
            }
        }
        let text = format!("Queried '{}': {} results ({})", cut(&query), texts.len(), mode.name());
        let json = ObjectText::new()
            .json("decisions", &array_text(&texts))
            .value("total", total)
            .value("mode", mode.name())
            .some("embedding_failed", embedding_failed)
            .end();
        Ok(Answer { json, captured: Some(Captured { scope, kind: InputKind::Query, text, related }) })
    }

    /// The best decisions, some more than wanted, and the number of all.
    fn search(
        &self,
        query: &str,
        vector: Option<&(String, Vec<f32>)>,
        mode: Mode,
        filter: &Filter,
        limit: usize,
    ) -> Result<(Vec<Hit>, usize)> {
        let mut state = self.state();
        let index = state.index(&self.decisions)?;
        let passes = |facts: &DecisionFacts| filter.passes(facts);
        let depth = limit.saturating_mul(4).max(FUSED_MIN);
        let words = match mode {
            Mode::List => index.newest(&passes),
            Mode::Semantic => Vec::new(),
            Mode::Keyword | Mode::Hybrid => index.by_words(query, &passes),
        };
        let near = match (mode, vector) {
            (Mode::Semantic | Mode::Hybrid, Some((partition, vector))) => {
                self.nearest(index, partition, vector, depth, filter)?
            }
            _ => Vec::new(),
        };
        let (ranked, total) = match mode {
            Mode::List | Mode::Keyword => {
                let total = words.len();
                (words.clone(), total)
            }
            Mode::Semantic => (near.clone(), near.len()),
            Mode::Hybrid => {
                let fused = index.fuse([&words, &near], depth);
                let known: HashSet<u32> = words.iter().map(|(number, _)| *number).collect();
                let total = known.len() + near.iter().filter(|(number, _)| !known.contains(number)).count();
                (fused, total)
            }
        };
        let cosines: HashMap<u32, f64> = near.into_iter().collect();
        let scores: HashMap<u32, f64> = match mode {
            Mode::Hybrid => words.into_iter().take(depth).collect(),
            _ => HashMap::new(),
        };
        let hit = |(number, score): (u32, f64)| {
            // Without a vector the distance falls as the score of words rises.
            let by_words = scores.get(&number).copied().unwrap_or(score);
            let distance = cosines.get(&number).map_or(1.0 / (1.0 + by_words), |cosine| 1.0 - cosine);
            Some(Hit { id: index.facts(number)?.id.clone(), score, distance })
        };
        // Some decisions may have gone with their runs.
        let spare = if index.has_runs() { ranked.len() } else { limit };
        Ok((ranked.into_iter().take(spare).filter_map(hit).collect(), total))
    }

    /// The nearest decisions by vector, with the cosine.
    fn nearest(
        &self,
        index: &DecisionIndex,
        partition: &str,
        vector: &[f32],
        k: usize,
        filter: &Filter,
    ) -> Result<Ranked> {
        let number = |owner: &Owner| match owner {
            Owner::Key { keyspace, key } if keyspace == DECISIONS => {
                index.number(std::str::from_utf8(key).ok()?)
            }
            _ => None,
        };
        let passes = |owner: &Owner| {
            number(owner).and_then(|number| index.facts(number)).is_some_and(|facts| filter.passes(facts))
        };
        let among = OwnerFilter::keys(DECISIONS, b"");
        let wanted = Search { k, owners: Some(&among), filter: Some(&passes), ..Search::default() };
        let found = match self.space.nearest(partition, vector, &wanted) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        Ok(found.iter().filter_map(|hit| Some((number(&hit.owner)?, f64::from(hit.score)))).collect())
    }

    pub(crate) fn get_decision(&self, caller: &Caller<'_>, params: &str) -> Result<Answer> {
        let mut object = RawObject::parse(params, "the parameters")?;
        let mut scope = Scope::take(&mut object)?;
        caller.check(&scope)?;
        // Without an id, the decision's own id is the one to read.
        let id = object.take_text(&["id"])?.or_else(|| scope.decision.take());
        let id = id.ok_or_else(|| Error::invalid("\"id\" of the decision is missing"))?;
        let with_trace = object
            .take_as(&["includeDeliberation", "include_deliberation"], "true or false")?
            .unwrap_or(true);
        let spelling = take_spelling(&mut object)?;
        object.expect_empty()?;
        let stored = self.stored(&id)?.ok_or_else(|| no_decision(&id))?;
        let title = StoredDecision::parse(stored.as_bytes())?.decision;
        let text = Self::lookup_text(&id, &title);
        let json = shown(&stored, Shown { spelling, with_trace }, &[])?;
        Ok(Answer {
            json,
            captured: Some(Captured { scope, kind: InputKind::Lookup, text, related: Vec::new() }),
        })
    }

    pub(crate) fn check_guardrails(&self, caller: &Caller<'_>, params: &str) -> Result<Answer> {
        let mut object = RawObject::parse(params, "the action")?;
        let scope = Scope::take(&mut object)?;
        caller.check(&scope)?;
        let nested = object.take(&["action"])?;
        let mut action = match nested {
            Some(text) if text.starts_with('{') => {
                object.expect_empty()?;
                RawObject::parse(text, "\"action\"")?
            }
            Some(text) => {
                // A text alone is the description.
                let mut members = object;
                members.members.push(crate::json::RawMember {
                    quoted: "\"description\"",
                    name: "description".into(),
                    value: text,
                });
                members
            }
            None => object,
        };
        let description =
            action.take_text(&["description", "decision"])?.filter(|text| !text.trim().is_empty());
        let description = description
            .ok_or_else(|| Error::invalid("a check needs \"description\": what is about to be done"))?;
        let category = action.take_choice(&["category"], &CATEGORIES)?;
        let stakes = action.take_choice(&["stakes"], &STAKES)?;
        let confidence = action.take_as::<f64>(&["confidence"], "a number from 0 to 1")?;
        let confidence = confidence.map(check_confidence).transpose()?;
        let context = action.take_text(&["context"])?;
        action.expect_empty()?;
        let settings = self.read_settings()?;
        let verdict = evaluate(
            &self.rules()?,
            settings.require_deliberation,
            Phase::Check,
            &Action {
                text: &description,
                context: context.as_deref(),
                category: category.as_deref(),
                stakes: stakes.as_deref(),
                confidence,
                ..Action::default()
            },
        );
        let is_allowed = verdict.violations.is_empty();
        let result = match verdict.violations.len() {
            0 => "allowed".to_owned(),
            count => format!("blocked ({count} violations)"),
        };
        let text = format!("Checked '{}': {result}", cut(&description));
        let json = ObjectText::new()
            .value("allowed", is_allowed)
            .value("violations", &verdict.violations)
            .value("warnings", &verdict.warnings)
            .value("evaluated", verdict.evaluated)
            .end();
        Ok(Answer {
            json,
            captured: Some(Captured { scope, kind: InputKind::Guardrail, text, related: Vec::new() }),
        })
    }

    pub(crate) fn get_reason_stats(&self, caller: &Caller<'_>, params: &str) -> Result<Answer> {
        let mut object = RawObject::parse(params, "the parameters")?;
        let scope = Scope::take(&mut object)?;
        caller.check(&scope)?;
        let filter = Filter::take(&mut object)?;
        object.expect_empty()?;
        let stats = self.with_matching(&filter, reason_stats)?;
        let mut text = format!("Reviewed reason stats: {} types, {} decisions", stats.types, stats.decisions);
        if stats.diversity != 0.0 {
            text += &format!(", diversity={:.2}", stats.diversity);
        }
        let captured = Captured { scope, kind: InputKind::Stats, text, related: Vec::new() };
        Ok(Answer { json: stats.json.to_string(), captured: Some(captured) })
    }

    pub(crate) fn get_deliberation_stats(&self, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the parameters")?;
        Scope::take(&mut object)?;
        let filter = Filter::take(&mut object)?;
        object.expect_empty()?;
        Ok(self.with_matching(&filter, deliberation_stats)?.to_string())
    }

    /// What `make` says of all matching decisions that the store holds.
    fn with_matching<T>(&self, filter: &Filter, make: impl FnOnce(&[&DecisionFacts]) -> T) -> Result<T> {
        let mut state = self.state();
        let index = state.index(&self.decisions)?;
        if index.has_runs() {
            // Decisions go with their runs, which the index does not see.
            let keys = self.decisions.scan(ScanRange::all()).keys();
            let kept: HashSet<Vec<u8>> = keys.collect::<Result<_>>()?;
            let gone: Vec<String> = index
                .all()
                .map(|facts| facts.id.clone())
                .filter(|id| !kept.contains(id.as_bytes()))
                .collect();
            gone.iter().for_each(|id| index.remove(id));
        }
        let matching: Vec<&DecisionFacts> = index.all().filter(|facts| filter.passes(facts)).collect();
        Ok(make(&matching))
    }

    pub(crate) fn export_spikes(&self, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the parameters")?;
        let scope = Scope::take(&mut object)?;
        let id = object.take_text(&["id"])?.or(scope.decision);
        let id = id.ok_or_else(|| Error::invalid("\"id\" of the decision is missing"))?;
        let format = object.take_choice(&["format"], &["json", "csv"])?;
        object.expect_empty()?;
        let stored = self.stored(&id)?.ok_or_else(|| no_decision(&id))?;
        let object = RawObject::parse(&stored, "a stored decision")?;
        let trace = object.members.iter().find(|member| member.name == "deliberation");
        let trace = trace.map(|member| Trace::parse(member.value)).transpose()?.unwrap_or_default();
        let events = spikes::events(&trace)?;
        let text = ObjectText::new().value("id", &id);
        Ok(match format.as_deref() {
            Some("csv") => text.value("format", "csv").value("csv", spikes::to_csv(&events)).end(),
            _ => text.value("format", "json").value("events", &events).end(),
        })
    }

    pub(crate) fn debug_tracker(&self, caller: &Caller<'_>, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the parameters")?;
        Scope::take(&mut object)?;
        object.expect_empty()?;
        let core = self.decisions.core();
        let mut swept = 0;
        let mut state = self.state();
        let now_ns = self.now_ns();
        if core.is_writer() && !core.is_poisoned() {
            let mut batch = self.space.batch();
            swept = state.trackers(&self.trackers)?.sweep(now_ns, &self.trackers, &mut batch);
            if swept > 0
                && let Err(error) = self.commit(batch)
            {
                state.trackers = None;
                return Err(error);
            }
        }
        let (sessions, consumed) = state.trackers(&self.trackers)?.of_owner(caller.token);
        let sessions = sessions.map(|(key, inputs)| {
            let each = inputs.iter().map(|input| {
                ObjectText::new()
                    .value("id", &input.id)
                    .value("type", input.kind)
                    .value("text", &input.text)
                    .value("source", &input.source)
                    .value("timestamp", iso_micros(input.time_ns))
                    .value("age_seconds", now_ns.saturating_sub(input.time_ns) / 1_000_000_000)
                    .end()
            });
            ObjectText::new()
                .value("key", key)
                .value("input_count", inputs.len())
                .json("inputs", &array_text(each))
                .end()
        });
        let sessions = array_text(sessions);
        let consumed = array_text(consumed.map(to_json));
        Ok(ObjectText::new()
            .json("sessions", &sessions)
            .json("consumed", &consumed)
            .value("swept", swept)
            .end())
    }
}
