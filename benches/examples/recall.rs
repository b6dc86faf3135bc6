//! Measures how well the built-in embedder finds what real runs are asked about: precision and recall by its rule for
//! answers, and by minimum scores instead. The questions are in two halves. The constants were chosen on one half, and the
//! other was held out.
//!
//! `cargo run --profile dist -p annals-benches --example recall -- FILE.json[.xz] [--misses] [--times N]
//! [--costs N]`
//! FILE holds the runs of tau-bench's airline agent (`tau-airline.json.xz`, see docs/memory.md). Of each
//! task's four runs, three are remembered. The fourth is only asked about, so that no question is the text of
//! an entry. A hash of the task chooses the half, because a task's runs are alike. docs/memory.md says how
//! questions are made.
//! With `--times` the runs are remembered N times. With `--costs` it does something else: it remembers N
//! entries of a tenant, each with its own ids, and prints the time of a question among them.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use annals::{Durability, Options, Store};
use annals_memory::{Identity, Memory, MemoryQuery, SnapshotOptions, WordEmbedder};
use serde::Deserialize;
use serde_json::{Value, json};

type RecallBenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The trial that is not remembered.
const HELD_BACK_TRIAL: u64 = 3;
/// UTF-16 units that a snapshot keeps of a tool's result.
const PREVIEW_UNITS: usize = 200;
/// The minimum scores that are tried.
const MIN_SCORES: [f32; 9] = [0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8];

#[derive(Deserialize)]
struct TauRun {
    task_id: u64,
    trial: u64,
    traj: Vec<TauMessage>,
    info: TauRunInfo,
}

#[derive(Deserialize)]
struct TauRunInfo {
    task: TauTask,
}

#[derive(Deserialize)]
struct TauTask {
    user_id: String,
    instruction: String,
}

#[derive(Deserialize)]
struct TauMessage {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<TauCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct TauCall {
    id: String,
    function: TauFunction,
}

#[derive(Deserialize)]
struct TauFunction {
    name: String,
    arguments: String,
}

/// What is a right answer to a question.
enum ExpectedAnswer {
    /// A run of this customer.
    Customer(String),
    /// A run whose record has this text.
    RunWithText(String),
    /// No run.
    NoRun,
}

struct RecallQuestion {
    kind: &'static str,
    held_out: bool,
    text: String,
    answer: ExpectedAnswer,
}

/// The result of a question.
struct RecallOutcome {
    /// Whether the hit by the rule for answers was right; `None` without a hit.
    by_rule: Option<bool>,
    /// The score of the best entry, and whether it was right.
    best: Option<(f32, bool)>,
}

fn main() -> RecallBenchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name the file of runs")?;
    let more: Vec<String> = arguments.collect();
    let with_misses = more.iter().any(|argument| argument == "--misses");
    let number = |option: &str| {
        let value = more.iter().position(|argument| argument == option).and_then(|at| more.get(at + 1));
        value.map(|value| value.parse::<usize>()).transpose()
    };
    let times = number("--times")?.unwrap_or(1);
    let runs = read(&path)?;
    if let Some(entries) = number("--costs")? {
        return measure_costs(&runs, entries);
    }
    let dir = tempfile::tempdir()?;
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(dir.path().join("store"), options)?;
    let memory = Memory::open(&store.namespace("default")?)?;
    let mut customers = BTreeMap::new();
    for time in 0..times {
        remember(&memory, &runs, time, &mut customers)?;
    }
    let questions = questions(&runs);
    println!("{} runs remembered, {} questions", customers.len(), questions.len());
    let told: Vec<RecallOutcome> = questions
        .iter()
        .map(|question| ask(&memory, question, &customers, with_misses))
        .collect::<RecallBenchResult<_>>()?;
    let began = std::time::Instant::now();
    for question in &questions {
        memory.recall(&identity("asking"), &question.text, &WordEmbedder, &recall_options(None))?;
    }
    let each = began.elapsed().as_secs_f64() * 1e3 / questions.len() as f64;
    println!(
        "{each:.2} ms a question
"
    );
    print(&questions, &told);
    store.close()?;
    Ok(())
}

fn read(path: &str) -> RecallBenchResult<Vec<TauRun>> {
    let bytes = std::fs::read(path)?;
    let mut text = Vec::new();
    match path.ends_with(".xz") {
        true => liblzma::read::XzDecoder::new(bytes.as_slice()).read_to_end(&mut text)?,
        false => bytes.as_slice().read_to_end(&mut text)?,
    };
    Ok(serde_json::from_slice(&text)?)
}

/// The name of a run's conversation.
fn conversation(run: &TauRun, time: usize) -> String {
    format!("run-{}-{}-{time}", run.task_id, run.trial)
}

fn identity(conversation: &str) -> Identity {
    Identity { tenant: Some("airline".into()), principal: None, conversation: Some(conversation.into()) }
}

/// Remembers all but one run of each task. Notes the customer of each conversation.
fn remember(
    memory: &Memory,
    runs: &[TauRun],
    time: usize,
    customers: &mut BTreeMap<String, String>,
) -> RecallBenchResult<()> {
    for run in runs.iter().filter(|run| run.trial != HELD_BACK_TRIAL) {
        let identity = identity(&conversation(run, time));
        memory.write_snapshot(
            &identity,
            &snapshot(run).to_string(),
            &WordEmbedder,
            &SnapshotOptions::default(),
        )?;
        customers.insert(identity.name(), run.info.task.user_id.clone());
    }
    Ok(())
}

/// Number of questions that are timed.
const TIMED_QUESTIONS: usize = 200;

/// Times questions among `entries` entries of a tenant: copies of the remembered runs, each with other ids.
fn measure_costs(runs: &[TauRun], entries: usize) -> RecallBenchResult<()> {
    let dir = tempfile::tempdir()?;
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(dir.path().join("store"), options)?;
    let memory = Memory::open(&store.namespace("default")?)?;
    let kept: Vec<(&TauRun, String)> = runs
        .iter()
        .filter(|run| run.trial != HELD_BACK_TRIAL)
        .map(|run| (run, snapshot(run).to_string()))
        .collect();
    let began = std::time::Instant::now();
    for number in 0..entries {
        let (run, snapshot) = &kept[number % kept.len()];
        let copy = number / kept.len();
        let identity = identity(&conversation(run, copy));
        let mut text = snapshot.clone();
        for id in ids(run).iter().filter(|_| copy > 0) {
            text = text.replace(id.as_str(), &format!("{id}{copy}"));
        }
        let entry = format!("{{\"id\":\"snap-1\",\"value\":{text}}}");
        memory.remember(&identity, &entry, &WordEmbedder)?;
    }
    println!("{entries} entries remembered in {:.1} s", began.elapsed().as_secs_f64());
    let questions: Vec<RecallQuestion> = questions(runs).into_iter().take(TIMED_QUESTIONS).collect();
    let ask = |question: &RecallQuestion| {
        memory.recall(&identity("asking"), &question.text, &WordEmbedder, &recall_options(None))
    };
    for question in questions.iter().take(5) {
        ask(question)?;
    }
    let (mut took, mut answered) = (Vec::new(), 0);
    for question in &questions {
        let began = std::time::Instant::now();
        answered += ask(question)?.len();
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
    println!("{} questions, {answered} answered: p50 {:.2} ms, p99 {:.2} ms", took.len(), at(0.5), at(0.99));
    store.close()?;
    Ok(())
}

/// A run's snapshot, as agentfootprint would remember it.
fn snapshot(run: &TauRun) -> Value {
    let preview = |text: &str| {
        let units: Vec<u16> = text.encode_utf16().collect();
        match units.get(..PREVIEW_UNITS).filter(|_| units.len() > PREVIEW_UNITS) {
            Some(front) => format!("{}\u{2026}", String::from_utf16_lossy(front)),
            None => text.to_owned(),
        }
    };
    let result = |id: &str| {
        let message = run.traj.iter().find(|message| message.tool_call_id.as_deref() == Some(id));
        preview(message.and_then(|message| message.content.as_deref()).unwrap_or_default())
    };
    let calls: Vec<Value> = tool_calls(run)
        .map(|call| {
            let args: Value = serde_json::from_str(&call.function.arguments).unwrap_or_default();
            json!({"name": call.function.name, "args": args, "resultPreview": result(&call.id), "errored": false})
        })
        .collect();
    json!({
        "query": query(run), "finalContent": last_answer(run), "iterations": calls.len() + 1, "decisions": [],
        "toolCalls": calls, "durationMs": 0, "tokenUsage": {"input": 0, "output": 0},
    })
}

fn tool_calls(run: &TauRun) -> impl Iterator<Item = &TauCall> {
    run.traj.iter().flat_map(|message| message.tool_calls.iter().flatten())
}

fn query(run: &TauRun) -> &str {
    let first = run.traj.iter().find(|message| message.role == "user");
    first.and_then(|message| message.content.as_deref()).unwrap_or_default()
}

fn last_answer(run: &TauRun) -> &str {
    let said = run.traj.iter().rev().filter(|message| message.role == "assistant");
    said.filter_map(|message| message.content.as_deref())
        .find(|content| !content.is_empty())
        .unwrap_or_default()
}

fn questions(runs: &[TauRun]) -> Vec<RecallQuestion> {
    let mut questions = Vec::new();
    let mut known = String::new();
    for run in runs {
        known.push_str(&snapshot(run).to_string());
    }
    for run in runs {
        let held_out = is_held_out(&format!("task-{}", run.task_id));
        let mut add =
            |kind, text: String, answer| questions.push(RecallQuestion { kind, held_out, text, answer });
        let customer = || ExpectedAnswer::Customer(run.info.task.user_id.clone());
        if run.trial == 0 {
            let ids = ids(run);
            for (number, id) in ids.iter().take(2).enumerate() {
                let text = match number % 2 {
                    0 => format!("What was done about {id}?"),
                    _ => format!("Why was the request concerning {id} handled that way?"),
                };
                add("by id", text, ExpectedAnswer::RunWithText(id.clone()));
            }
            // The same with an id that differs in one letter and that no run has.
            for id in ids.iter().take(2) {
                let other = with_other_last_letter(id);
                if !known.contains(&other) {
                    add(
                        "unknown id",
                        format!("Why was the flight change of {other} refused?"),
                        ExpectedAnswer::NoRun,
                    );
                }
            }
        }
        if run.trial == HELD_BACK_TRIAL {
            let task = instruction(&run.info.task.instruction);
            if let Some(sentence) = longest_named_sentence(task.iter().map(String::as_str)) {
                let text = format!("What was decided for the customer of whom it was said: {sentence}");
                add("by topic", text, customer());
            }
            let kind = if names_something(query(run)) { "other words" } else { "vague" };
            add(kind, query(run).to_owned(), customer());
            if let Some(sentence) = longest_named_sentence(sentences(last_answer(run)).into_iter()) {
                add("by answer", format!("Who was told this? {sentence}"), customer());
            }
        }
    }
    for text in include_str!("recall_unknown.txt").lines() {
        questions.push(RecallQuestion {
            kind: "unknown topic",
            held_out: is_held_out(text),
            text: text.to_owned(),
            answer: ExpectedAnswer::NoRun,
        });
    }
    questions
}

fn is_held_out(name: &str) -> bool {
    blake3::hash(name.as_bytes()).as_bytes()[0] % 2 == 1
}

/// The ids of customers and reservations in a run's calls.
fn ids(run: &TauRun) -> BTreeSet<String> {
    let arguments =
        tool_calls(run).filter_map(|call| serde_json::from_str::<Value>(&call.function.arguments).ok());
    arguments
        .flat_map(|args| ["reservation_id", "user_id"].map(|name| args[name].as_str().map(str::to_owned)))
        .flatten()
        .collect()
}

/// An id with another last letter.
fn with_other_last_letter(id: &str) -> String {
    let (front, last) = id.split_at(id.len() - 1);
    let other = match last {
        "7" => "3",
        digit if digit.as_bytes()[0].is_ascii_digit() => "7",
        "X" => "Y",
        _ => "X",
    };
    format!("{front}{other}")
}

/// A customer's instructions in the third person. No run has these sentences.
fn instruction(text: &str) -> Vec<String> {
    let of_them = |sentence: &str| {
        let words = sentence.split(' ').map(|word| match word.to_lowercase().as_str() {
            "you" => "they",
            "your" => "their",
            _ => word,
        });
        words.collect::<Vec<_>>().join(" ")
    };
    // The first words name the customer.
    let named = |word: &str| word.contains('_');
    let plain = |sentence: &str| match sentence.strip_prefix("You are ").and_then(|rest| rest.split_once(' '))
    {
        Some((name, rest)) if named(name) => rest.trim_start_matches("and ").to_owned(),
        _ => sentence.to_owned(),
    };
    sentences(text)
        .into_iter()
        .map(plain)
        .map(|sentence| of_them(&sentence))
        .filter(|sentence| !sentence.contains('_'))
        .collect()
}

fn sentences(text: &str) -> Vec<&str> {
    let lines = text.lines().flat_map(|line| line.split_inclusive(['.', '!', '?']));
    lines.map(str::trim).filter(|sentence| !sentence.is_empty()).collect()
}

/// The longest sentence that names something.
fn longest_named_sentence<'a>(sentences: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    sentences
        .filter(|sentence| sentence.len() > 30 && names_something(sentence))
        .max_by_key(|sentence| sentence.len())
}

/// Whether it has a digit, or a capital after the first word: a place, a date, a flight, a person.
fn names_something(text: &str) -> bool {
    let capital = |word: &str| {
        let word = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        word.len() > 1 && word.starts_with(char::is_uppercase) && !word.starts_with("I'")
    };
    text.contains(|letter: char| letter.is_ascii_digit())
        || sentences(text).iter().any(|sentence| sentence.split_whitespace().skip(1).any(capital))
}

fn recall_options(min_score: Option<f32>) -> MemoryQuery<'static> {
    MemoryQuery { k: 1, across_conversations: true, min_score, ..MemoryQuery::default() }
}

fn ask(
    memory: &Memory,
    question: &RecallQuestion,
    customers: &BTreeMap<String, String>,
    with_misses: bool,
) -> RecallBenchResult<RecallOutcome> {
    let who = identity("asking");
    let first = |min_score| -> RecallBenchResult<Option<(f32, bool)>> {
        let hits = memory.recall(&who, &question.text, &WordEmbedder, &recall_options(min_score))?;
        Ok(hits.first().map(|hit| {
            let right = match &question.answer {
                ExpectedAnswer::NoRun => false,
                ExpectedAnswer::Customer(customer) => customers.get(&hit.identity) == Some(customer),
                ExpectedAnswer::RunWithText(id) => hit.entry.value().contains(id.as_str()),
            };
            (hit.score, right)
        }))
    };
    let (answer, best) = (first(None)?, first(Some(0.0))?);
    let is_negative = matches!(question.answer, ExpectedAnswer::NoRun);
    let is_miss = answer.is_none_or(|(_, right)| !right);
    if with_misses && if is_negative { answer.is_some() } else { is_miss } {
        let half = if question.held_out { "held out" } else { "tuned" };
        println!(
            "{half}, {}, {best:?}, {}: {}",
            question.kind,
            if answer.is_some() { "wrong" } else { "nothing" },
            question.text
        );
    }
    Ok(RecallOutcome { by_rule: answer.map(|(_, right)| right), best })
}

fn print(questions: &[RecallQuestion], told: &[RecallOutcome]) {
    let kinds: BTreeSet<&str> = questions.iter().map(|question| question.kind).collect();
    let all = || questions.iter().zip(told);
    println!("by the rule for answers: right, wrong, nothing, of all");
    for kind in kinds {
        for held_out in [false, true] {
            let of: Vec<&RecallOutcome> = all()
                .filter(|(question, _)| question.kind == kind && question.held_out == held_out)
                .map(|(_, told)| told)
                .collect();
            let right = of.iter().filter(|told| told.given(None) == Some(true)).count();
            let wrong = of.iter().filter(|told| told.given(None) == Some(false)).count();
            let half = if held_out { "held out" } else { "tuned" };
            println!(
                "  {kind:14} {half:9} {right:3} {wrong:3} {:3} {:3}",
                of.len() - right - wrong,
                of.len()
            );
        }
    }
    println!("\nwithout the vague ones: precision and recall");
    for least in std::iter::once(None).chain(MIN_SCORES.map(Some)) {
        let mut line = least.map_or("  rule".to_owned(), |least| format!("  {least:4.2}"));
        for held_out in [false, true] {
            let of: Vec<(&RecallQuestion, &RecallOutcome)> = all()
                .filter(|(question, _)| question.kind != "vague" && question.held_out == held_out)
                .collect();
            let given: Vec<bool> = of.iter().filter_map(|(_, told)| told.given(least)).collect();
            let right = given.iter().filter(|right| **right).count() as f64;
            let wanted =
                of.iter().filter(|(question, _)| !matches!(question.answer, ExpectedAnswer::NoRun)).count()
                    as f64;
            let half = if held_out { "held out" } else { "tuned" };
            line += &format!("   {half} {:.3} {:.3}", right / given.len().max(1) as f64, right / wanted);
        }
        println!("{line}");
    }
}

impl RecallOutcome {
    /// Whether the hit was right: by the rule for answers, or with a minimum score. `None` without a hit.
    fn given(&self, least: Option<f32>) -> Option<bool> {
        match least {
            None => self.by_rule,
            Some(least) => self.best.filter(|(score, _)| *score >= least).map(|(_, right)| right),
        }
    }
}
