//! Memory entries as lines to train a model with. Nothing is recorded for training alone.
//!
//! The reward of an entry comes from the first source that has one: its feedback ([`Memory::rate`]), a
//! numeric `evalScore` of its value (0 to 1), or its metadata: `outcome` (`accepted` is good; `rejected`,
//! `escalated` and `overridden` are bad), `blame` (from 0 to 1; more is worse), `severity` (`flagged` and
//! `escalated` are bad), `status` (`ok` is good, `failed` is bad). Without any source the reward is unknown.
//!
//! What-ifs are in no line.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::operations::{key_prefix, to_json_bytes};
use super::*;

/// A format of training lines.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainingFormat {
    /// Question and answer of each entry with a positive reward: `{"prompt","completion"}`.
    Sft,
    /// For each question, the best answer with each worse answer, and the decisions behind both:
    /// `{"prompt","chosen","rejected","chosen_decisions","rejected_decisions"}`.
    Dpo,
    /// Each decision with the entry's reward, from -1 to 1, or null:
    /// `{"prompt","step","steps","stageId","chosen","rule","evidence","completion","reward"}`.
    ProcessRl,
}

/// The members of a snapshot that go into training lines, as raw JSON.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrainingExample {
    query: Box<RawValue>,
    final_content: Box<RawValue>,
    #[serde(default)]
    decisions: Vec<Box<RawValue>>,
    #[serde(default)]
    eval_score: Option<Box<RawValue>>,
}

/// The members of an entry's metadata that judge its answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct JudgedMetadata {
    outcome: Option<String>,
    blame: Option<f64>,
    severity: Option<String>,
    status: Option<String>,
}

impl JudgedMetadata {
    /// The first judgement that exists: what a person made of the answer, the share of the blame for a
    /// failure, the severity of the run, and its status.
    fn reward(&self) -> Option<f64> {
        let outcome = match self.outcome.as_deref() {
            Some("accepted") => Some(1.0),
            Some("rejected" | "escalated" | "overridden") => Some(-1.0),
            _ => None,
        };
        let blame = self.blame.filter(|blame| *blame > 0.0).map(|blame| -blame.min(1.0));
        let severity = matches!(self.severity.as_deref(), Some("flagged" | "escalated")).then_some(-1.0);
        let status = match self.status.as_deref() {
            Some("ok") => Some(1.0),
            Some("failed") => Some(-1.0),
            _ => None,
        };
        outcome.or(blame).or(severity).or(status)
    }
}

#[derive(Serialize)]
struct SftLine<'a> {
    prompt: &'a RawValue,
    completion: &'a RawValue,
}

#[derive(Serialize)]
struct DpoLine<'a> {
    prompt: &'a RawValue,
    chosen: &'a RawValue,
    rejected: &'a RawValue,
    chosen_decisions: &'a [Box<RawValue>],
    rejected_decisions: &'a [Box<RawValue>],
}

#[derive(Serialize)]
struct ProcessStepLine<'a> {
    prompt: &'a RawValue,
    step: usize,
    steps: usize,
    #[serde(rename = "stageId")]
    stage: Option<Box<RawValue>>,
    chosen: Option<Box<RawValue>>,
    rule: Option<Box<RawValue>>,
    evidence: Option<Box<RawValue>>,
    completion: &'a RawValue,
    reward: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DecisionJson {
    stage_id: Option<Box<RawValue>>,
    chosen: Option<Box<RawValue>>,
    rule: Option<Box<RawValue>>,
    evidence: Option<Box<RawValue>>,
}

/// Receives an entry's key, its example and its reward from -1 to 1, if known.
type ExampleCallback<'a> = dyn FnMut(&[u8], TrainingExample, Option<f64>) -> Result<()> + 'a;

impl Memory {
    /// Gives a line of JSON for each example in an identity's snapshots, in key order. With `across`, the
    /// snapshots of the whole tenant are used. Query, answer and evidence are copied as raw JSON. Entries
    /// that are not snapshots and decisions that are not objects are skipped. Returns the number of lines.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`; errors of `each`.
    pub fn training_lines(
        &self,
        identity: &Identity,
        across: bool,
        form: TrainingFormat,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let prefix =
            key_prefix(identity, &MemoryQuery { across_conversations: across, ..MemoryQuery::default() })?;
        let mut count = 0;
        let mut give = |line: Vec<u8>| {
            count += 1;
            each(&line)
        };
        match form {
            TrainingFormat::Sft => {
                self.for_each_example(&prefix, &mut |_, example, reward| match reward {
                    // Without a judgement, nobody knows that the answer is good.
                    Some(reward) if reward > 0.0 => give(json_line(&SftLine {
                        prompt: &example.query,
                        completion: &example.final_content,
                    })?),
                    _ => Ok(()),
                })?
            }
            TrainingFormat::ProcessRl => self.for_each_example(&prefix, &mut |_, example, reward| {
                let decisions =
                    example.decisions.iter().map(|text| serde_json::from_str::<DecisionJson>(text.get()));
                let decisions: Vec<DecisionJson> = decisions.flatten().collect();
                let steps = decisions.len();
                for (step, of) in (1..).zip(decisions) {
                    let DecisionJson { stage_id: stage, chosen, rule, evidence } = of;
                    let (prompt, completion) = (&*example.query, &*example.final_content);
                    give(json_line(&ProcessStepLine {
                        prompt,
                        step,
                        steps,
                        stage,
                        chosen,
                        rule,
                        evidence,
                        completion,
                        reward,
                    })?)?;
                }
                Ok(())
            })?,
            TrainingFormat::Dpo => self.for_each_pair(&prefix, &mut |pair| give(json_line(pair)?))?,
        }
        Ok(count)
    }

    /// Calls `each` with every snapshot under a prefix and its reward.
    fn for_each_example(&self, prefix: &str, each: &mut ExampleCallback<'_>) -> Result<()> {
        self.for_each_entry(prefix, &mut |key, entry| match self.example(&key, &entry)? {
            Some((example, reward)) => each(&key, example, reward),
            None => Ok(()),
        })
    }

    fn example(&self, key: &[u8], entry: &MemoryEntry) -> Result<Option<(TrainingExample, Option<f64>)>> {
        if entry.is_what_if {
            return Ok(None);
        }
        let Ok(example) = serde_json::from_str::<TrainingExample>(entry.value()) else { return Ok(None) };
        let is_text = |text: &RawValue| text.get().starts_with('"');
        if !is_text(&example.query) || !is_text(&example.final_content) {
            return Ok(None);
        }
        let said = self.read_feedback(key)?.map(|said| said.average());
        let score = || {
            let score: f64 = serde_json::from_str(example.eval_score.as_ref()?.get()).ok()?;
            Some((2.0 * score - 1.0).clamp(-1.0, 1.0))
        };
        let reward = said
            .or_else(score)
            .or_else(|| serde_json::from_str::<JudgedMetadata>(entry.member("metadata")?).ok()?.reward());
        Ok(Some((example, reward)))
    }

    /// Calls `each` with the best answer to a question and each worse one. Questions are equal if their JSON
    /// texts are.
    fn for_each_pair(&self, prefix: &str, each: &mut dyn FnMut(&DpoLine<'_>) -> Result<()>) -> Result<()> {
        // Only keys and rewards are held in memory: the number of entries has no bound.
        let mut asked: BTreeMap<[u8; 32], Vec<(f64, Vec<u8>)>> = BTreeMap::new();
        self.for_each_example(prefix, &mut |key, example, reward| {
            if let Some(reward) = reward {
                let question = blake3::hash(example.query.get().as_bytes());
                asked.entry(*question.as_bytes()).or_default().push((reward, key.to_vec()));
            }
            Ok(())
        })?;
        let read = |key: &[u8]| -> Result<Option<TrainingExample>> {
            let Some(entry) = self.live_entry(key)? else { return Ok(None) };
            Ok(self.example(key, &entry)?.map(|(example, _)| example))
        };
        for answers in asked.values() {
            // The first of the answers with the best reward.
            let best = answers.iter().rev().max_by(|(a, _), (b, _)| a.total_cmp(b));
            let Some((most, key)) = best else { continue };
            let Some(chosen) = read(key)? else { continue };
            for (_, key) in answers.iter().filter(|(reward, _)| reward < most) {
                if let Some(rejected) = read(key)?
                    && rejected.final_content.get() != chosen.final_content.get()
                {
                    each(&DpoLine {
                        prompt: &chosen.query,
                        chosen: &chosen.final_content,
                        rejected: &rejected.final_content,
                        chosen_decisions: &chosen.decisions,
                        rejected_decisions: &rejected.decisions,
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// A value as one line. Line breaks in the raw JSON become spaces: outside of strings, JSON allows either.
fn json_line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = to_json_bytes(value)?;
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    Ok(line)
}
