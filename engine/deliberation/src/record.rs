//! Writing: decisions with the inputs that they consume, thoughts, reviews.

use annals::runs::RunBelonging;
use annals::{Error, ErrorKind, Result, RunUid};

use crate::calls::{Caller, Captured, cut};
use crate::decision::{NewDecision, OUTCOMES, RecordedFacts, Scope, StoredDecision, pushed, with_members};
use crate::guardrails::{Action, Finding, Phase, evaluate};
use crate::json::{ObjectText, RawObject, to_json};
use crate::times::iso_micros;
use crate::trace::{Spelling, Trace};
use crate::tracker::{ConsumedRecord, InputKind, RelatedDecision, related_decisions};
use crate::{DECISIONS, Deliberation, FRAMES};

/// Most decisions that a stored decision names as related.
const RELATED_MAX: usize = 100;

/// What a call tells of a stored decision.
struct Recorded {
    is_automatic: bool,
    inputs: usize,
    related: usize,
    warnings: Vec<Finding>,
    quality: f64,
    index: StoredDecision,
}

/// The key of a decision by its run and frame; 0 stands for no frame.
fn frame_key(uid: RunUid, frame: Option<u32>, id: &str) -> Vec<u8> {
    [&uid.0.to_be_bytes()[..], &frame.unwrap_or(0).to_be_bytes(), id.as_bytes()].concat()
}

/// The vector partition of an embedder.
pub(crate) fn partition_name(numbers: usize, embedder: Option<&str>) -> Result<String> {
    match embedder {
        None => Ok(numbers.to_string()),
        Some(name) if !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control) => {
            Ok(format!("{numbers}/{name}"))
        }
        Some(_) => Err(Error::invalid("embeddingModel has 1 to 200 bytes and no control characters")),
    }
}

impl Deliberation {
    pub(crate) fn record_decision(&self, caller: &Caller<'_>, params: &str) -> Result<String> {
        let mut new = NewDecision::parse(params)?;
        caller.check(&new.scope)?;
        let mut embedding_failed = None;
        if new.embedding.is_none() {
            let text = [new.decision.as_str(), new.context.as_deref().unwrap_or_default()].join("\n");
            let (vector, failed) = caller.vector(text.trim_end());
            embedding_failed = failed;
            if let Some((vector, embedder)) = vector {
                (new.embedding, new.embedder) = (Some(vector), Some(embedder));
            }
        }
        let run = new.run.as_deref().map(|run| self.run_of(run, new.frame)).transpose()?;
        let id = self.unused_id()?;
        let done = match run {
            None => self.write_decision(caller, &mut new, &id, None)?,
            Some(uid) => {
                let key = frame_key(uid, new.frame, &id);
                let belongings = belongings(&id, &key);
                self.space.write_with_run(uid, &belongings, || {
                    self.write_decision(caller, &mut new, &id, Some(uid))
                })?
            }
        };
        if let Some(index) = &mut self.state().index {
            index.add(&done.index);
        }
        let mut text = ObjectText::new().value("success", true).value("id", &id);
        if done.is_automatic {
            text = text.value("deliberation_auto", true);
        }
        if done.inputs > 0 {
            text = text.value("deliberation_inputs_count", done.inputs);
        }
        if done.related > 0 {
            text = text.value("related_count", done.related);
        }
        let warnings = Some(&done.warnings).filter(|warnings| !warnings.is_empty());
        let text = text.some("guardrail_warnings", warnings).some("embedding_failed", embedding_failed);
        Ok(text.value("quality_score", done.quality).end())
    }

    /// The living run of this name, once what was queued of it is visible. Checks that it has the frame.
    fn run_of(&self, run: &str, frame: Option<u32>) -> Result<RunUid> {
        let core = self.decisions.core();
        core.log()?.queue.barrier(core.index.visible())?;
        let reader = self.space.run(run)?;
        let info = reader.info();
        match frame {
            Some(frame) if frame == 0 || frame > info.frames => Err(Error::new(
                ErrorKind::NotFound,
                format!("run {run:?} has no frame {frame}: it has {} frames", info.frames),
            )),
            _ => Ok(info.uid),
        }
    }

    fn unused_id(&self) -> Result<String> {
        loop {
            let id = self.random_id()?;
            if self.decisions.get(id.as_bytes())?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Stores a decision, and consumes the caller's inputs, in one commit.
    fn write_decision(
        &self,
        caller: &Caller<'_>,
        new: &mut NewDecision<'_>,
        id: &str,
        run: Option<RunUid>,
    ) -> Result<Recorded> {
        let (settings, rules) = (self.read_settings()?, self.rules()?);
        let keys = if caller.tracks { caller.consumed_trackers(&new.scope) } else { Vec::new() };
        let vector = new.embedding.take();
        let partition = vector
            .as_ref()
            .map(|vector| partition_name(vector.len(), new.embedder.as_deref()))
            .transpose()?;
        let mut batch = self.space.batch();
        let (queued, done) = {
            let mut state = self.state();
            let now_ns = self.now_ns();
            let trackers = state.trackers(&self.trackers)?;
            let consumption = trackers.select(&keys, now_ns);
            let added = new.trace.merge_tracked(&consumption.inputs);
            new.trace.check()?;
            let has_content = new.trace.has_content();
            let action = Action {
                text: &new.decision,
                context: new.context.as_deref(),
                category: new.category.as_deref(),
                stakes: Some(&new.stakes),
                confidence: Some(new.confidence),
                has_deliberation: Some(has_content),
                has_reasoning: new.trace.has_reasoning(),
            };
            let verdict = evaluate(&rules, settings.require_deliberation, Phase::Record, &action);
            if !verdict.violations.is_empty() {
                let each = verdict.violations.iter().map(|one| format!("{}: {}", one.guardrail, one.message));
                let each: Vec<String> = each.collect();
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the decision is blocked by guardrails: {}", each.join("; ")),
                ));
            }
            let mut related: Vec<RelatedDecision> = related_decisions(&consumption.inputs);
            related.truncate(RELATED_MAX);
            let related_json = (!related.is_empty()).then(|| to_json(&related));
            let quality = new.quality();
            let created_at = iso_micros(now_ns);
            let stored = new.to_stored(&RecordedFacts {
                id,
                recorded_by: caller.token,
                created_at: &created_at,
                run_uid: run.map(|uid| uid.0),
                related_json: related_json.as_deref(),
                quality,
                is_automatic: added > 0,
            });
            let index = StoredDecision::parse(stored.as_bytes())?;
            match (&vector, &partition) {
                (Some(vector), Some(name)) => {
                    let vectors = [(name.as_str(), vector.as_slice())];
                    batch.put_embedded(&self.decisions, id.as_bytes(), stored.into_bytes(), &vectors);
                }
                _ => {
                    batch.put(&self.decisions, id.as_bytes(), stored.into_bytes());
                }
            }
            if let Some(uid) = run {
                batch.put(&self.frames, &frame_key(uid, new.frame, id), Vec::new());
            }
            let note = ConsumedRecord {
                owner: caller.token.to_owned(),
                keys: Vec::new(),
                agent_id: new.scope.agent.clone(),
                decision_id: id.to_owned(),
                inputs_count: 0,
                texts: Vec::new(),
                consumed_at: created_at,
                number: 0,
            };
            trackers.consume(&consumption, note, &self.trackers, &mut batch);
            let queued = batch.submit_inline(self.durability());
            if queued.is_err() {
                state.trackers = None;
            }
            let done = Recorded {
                is_automatic: added > 0,
                inputs: new.trace.inputs.len(),
                related: related.len(),
                warnings: verdict.warnings,
                quality,
                index,
            };
            (queued, done)
        };
        self.settle_trackers(queued?.wait())?;
        Ok(done)
    }

    pub(crate) fn record_thought(&self, caller: &Caller<'_>, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the thought")?;
        let scope = Scope::take(&mut object)?;
        caller.check(&scope)?;
        let text = object.take_text(&["text", "thought"])?.filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| Error::invalid("a thought needs \"text\""))?;
        let id = object.take_text(&["id"])?;
        object.expect_empty()?;
        let Some(id) = id else {
            let captured = Captured { scope, kind: InputKind::Reasoning, text, related: Vec::new() };
            let (input, tracker) = self.capture(caller, captured)?;
            return Ok(ObjectText::new()
                .value("success", true)
                .value("mode", "pre-decision")
                .value("input_id", input)
                .value("tracker", tracker)
                .end());
        };
        if scope.decision.is_some() {
            return Err(Error::invalid(
                "give \"id\" to add to a stored decision, or \"decisionId\" for a decision to come, not both",
            ));
        }
        let mut number = 0;
        self.change_decision(&id, |stored, now_ns| {
            let object = RawObject::parse(stored, "a stored decision")?;
            let known = object.members.iter().find(|member| member.name == "deliberation");
            let mut trace = known.map(|member| Trace::parse(member.value)).transpose()?.unwrap_or_default();
            number = trace.add_thought(&text, now_ns);
            with_members(stored, &[("deliberation", Some(trace.to_json(Spelling::Snake)))])
        })?;
        Ok(ObjectText::new()
            .value("success", true)
            .value("mode", "post-decision")
            .value("id", &id)
            .value("step", number)
            .end())
    }

    pub(crate) fn review_outcome(&self, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the review")?;
        let scope = Scope::take(&mut object)?;
        let id = object.take_text(&["id"])?.or(scope.decision);
        let id = id.ok_or_else(|| Error::invalid("a review needs \"id\": that of the decision"))?;
        let outcome = object.take_choice(&["outcome"], &OUTCOMES)?.ok_or_else(|| {
            Error::invalid(format!("a review needs \"outcome\": use {}", OUTCOMES.join(", ")))
        })?;
        let result = object.take_text(&["actualResult", "actual_result", "result"])?;
        let lessons = object.take(&["lessons"])?.map(str::to_owned);
        object.expect_empty()?;
        self.change_decision(&id, |stored, now_ns| {
            let object = RawObject::parse(stored, "a stored decision")?;
            let value = |name: &str| {
                object.members.iter().find(|member| member.name == name).map(|member| member.value)
            };
            let (outcome_json, result_json) = (to_json(&outcome), result.as_ref().map(to_json));
            let is_known = value("outcome") == Some(outcome_json.as_str())
                && value("actual_result") == result_json.as_deref()
                && value("lessons") == lessons.as_deref();
            if is_known {
                // A client that lost the answer sends its review again.
                return Ok(stored.to_owned());
            }
            let mut changes = vec![
                ("status", Some(to_json(&"reviewed"))),
                ("outcome", Some(outcome_json)),
                ("reviewed_at", Some(to_json(&iso_micros(now_ns)))),
                ("actual_result", result_json),
                ("lessons", lessons.clone()),
            ];
            if let Some(before) = value("outcome") {
                let earlier = ObjectText::new()
                    .json("outcome", before)
                    .some_json("reviewed_at", value("reviewed_at"))
                    .some_json("actual_result", value("actual_result"))
                    .some_json("lessons", value("lessons"))
                    .end();
                changes.push(("earlier_reviews", Some(pushed(value("earlier_reviews"), earlier)?)));
            }
            with_members(stored, &changes)
        })?;
        let text = ObjectText::new().value("success", true).value("id", &id).value("status", "reviewed");
        Ok(text.value("outcome", outcome).end())
    }

    /// Replaces a stored decision by what `change` makes of it. `change` gets its text and the time.
    fn change_decision(&self, id: &str, change: impl FnOnce(&str, u64) -> Result<String>) -> Result<()> {
        let stored = self.stored(id)?.ok_or_else(|| no_decision(id))?;
        let known = StoredDecision::parse(stored.as_bytes())?;
        let write = || {
            // The lock is held until the new text is visible: the next change must see it.
            let mut state = self.state();
            let stored = self.stored(id)?.ok_or_else(|| no_decision(id))?;
            let text = change(&stored, self.now_ns())?;
            let index = StoredDecision::parse(text.as_bytes())?;
            let mut batch = self.space.batch();
            batch.put(&self.decisions, id.as_bytes(), text.into_bytes());
            self.commit(batch)?;
            if let Some(all) = &mut state.index {
                all.add(&index);
            }
            Ok(())
        };
        match known.run_uid {
            None => write(),
            // Forgetting the run deletes the decision: a change must not bring it back.
            Some(uid) => {
                let uid = RunUid(uid);
                let key = frame_key(uid, known.frame, id);
                self.space.write_with_run(uid, &belongings(id, &key), write)
            }
        }
    }

    /// The decisions that name a run, by frame and id; with a frame, those of this frame. Each is JSON without
    /// its deliberation.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn decisions_of_run(&self, uid: RunUid, frame: Option<u32>) -> Result<Vec<String>> {
        let prefix = match frame {
            Some(frame) => frame_key(uid, Some(frame), ""),
            None => uid.0.to_be_bytes().to_vec(),
        };
        let mut found = Vec::new();
        for key in self.frames.scan(annals::kv::ScanRange::prefix(&prefix)).keys() {
            let key = key?;
            let id = String::from_utf8_lossy(key.get(12..).unwrap_or_default()).into_owned();
            if let Some(stored) = self.stored(&id)? {
                found.push(crate::decision::shown(&stored, crate::decision::Shown::default(), &[])?);
            }
        }
        Ok(found)
    }

    pub(crate) fn lookup_text(id: &str, title: &str) -> String {
        format!("Retrieved decision {id}: {}", cut(title))
    }
}

/// The error for an id without a decision.
pub(crate) fn no_decision(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no decision {id:?}"))
}

/// What belongs to the run of a decision. It outlives a run that retention drops: decisions are asked for long after.
fn belongings<'a>(id: &'a str, frame_key: &'a [u8]) -> [RunBelonging<'a>; 2] {
    [(DECISIONS, id.as_bytes()), (FRAMES, frame_key)].map(|(keyspace, key)| RunBelonging {
        keyspace,
        key,
        is_lasting: true,
        is_numbered: false,
    })
}
