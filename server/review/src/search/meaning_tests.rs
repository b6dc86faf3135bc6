//! Runs that are found by the meaning of their questions, as an operator and as a reader with a profile sees them.

use annals::retention::{RetentionLimit, RetentionPolicy, RetentionRule};
use annals::{Component, Frame, Namespace, RunSpec, Status, Store};
use annals_memory::{Embedder, Memory, WordEmbedder};
use annals_policy::profiles::{Profile, Redactor};
use serde_json::{Value, json};

use super::{MeaningAnswer, find_by_meaning};
use crate::run_memory::{RememberOutcome, remember_ended};

struct MeaningBench {
    store: Store,
    space: Namespace,
    _directory: tempfile::TempDir,
}

fn built_in(_: &Namespace) -> annals::Result<Box<dyn Embedder>> {
    Ok(Box::new(WordEmbedder))
}

/// A model call that answers a question of a conversation of its own.
fn call(question: &str, answer: &str) -> Frame {
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": question }] });
    let answer = json!({ "choices": [{ "message": { "role": "assistant", "content": answer } }] });
    let metadata = json!({
        "http": { "mount": "m", "method": "POST", "path": "/v1/chat/completions", "status": 200 },
        "volatile": { "asked": "", "request_headers": [], "response_headers": [["content-type", "application/json"]] },
    });
    Frame::new(Component::Llm, request.to_string(), answer.to_string()).metadata(metadata.to_string())
}

impl MeaningBench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        Self { store, space, _directory: directory }
    }

    /// Records a run of a tenant that is asked these questions, and remembers it.
    fn record(&self, spec: RunSpec, tenant: &str, asked: &[(&str, &str)]) {
        let run = self.space.begin_run(spec.tag("tenant", tenant).replace(true)).unwrap();
        for (question, answer) in asked {
            run.record(call(question, answer)).unwrap();
        }
        let uid = run.end(Status::Ok).unwrap().uid;
        let stored = remember_ended(&self.space, uid, Status::Ok, built_in).unwrap();
        assert!(matches!(&stored, RememberOutcome::Stored(_, ids) if ids.len() == asked.len()), "{stored:?}");
    }

    fn answer(&self, question: &str, by: Option<&Redactor>, count: usize) -> MeaningAnswer {
        let memory = Memory::open(&self.space).unwrap();
        find_by_meaning(&self.space, &memory, question, &WordEmbedder, by, count).unwrap()
    }

    /// The hits as `run@seq`, the best first.
    fn hits(&self, question: &str) -> Vec<String> {
        let hits = self.answer(question, None, 20).hits;
        hits.iter().map(|hit| format!("{}@{}", hit.run, hit.best.seq)).collect()
    }

    /// Retention drops all runs that have ended; their memory stays.
    fn drop_all(&self) {
        let rule = RetentionRule::new("all", RetentionLimit::ForNs(0));
        let policy = RetentionPolicy::new(vec![rule]);
        self.store.retain(self.store.plan_retention(&policy, None).unwrap()).unwrap();
    }
}

#[test]
fn runs_of_several_tenants_are_found_by_their_questions() {
    let bench = MeaningBench::new();
    bench.record(RunSpec::new("loan"), "bank", &[("Why was the mortgage rejected?", "The credit is low.")]);
    bench.record(RunSpec::new("cat"), "vet", &[("Which vaccine does the cat need?", "Rabies.")]);
    let answer = bench.answer("the mortgage was rejected", None, 20);
    assert_eq!(answer.embedder, "annals-words-1");
    let [hit] = answer.hits.as_slice() else { panic!("{answer:?}") };
    assert_eq!((&*hit.run, hit.best.seq, &*hit.identity), ("loan", 1, "bank/_/_"));
    assert_eq!(
        (&*hit.best.question, &*hit.best.answer),
        ("Why was the mortgage rejected?", "The credit is low.")
    );
    assert_eq!((hit.status.as_deref(), hit.gone, hit.what_if), (Some("ok"), false, false));
    let json: Value = serde_json::to_value(hit).unwrap();
    assert_eq!((&json["seq"], &json["others"]), (&json!(1), &json!([])));
    assert!(bench.hits("submarine").is_empty());
}

#[test]
fn questions_of_one_run_are_one_hit() {
    let bench = MeaningBench::new();
    let asked = [
        ("Which vaccine does the cat need?", "Rabies."),
        ("May the mortgage be prolonged although it was rejected?", "No."),
        ("Why was the mortgage rejected?", "The credit is low."),
    ];
    bench.record(RunSpec::new("long"), "bank", &asked);
    bench.record(RunSpec::new("short"), "bank", &[("Was a mortgage rejected?", "Yes.")]);
    let hits = bench.answer("why was the mortgage rejected", None, 20).hits;
    let of = |run: &str| hits.iter().find(|hit| hit.run == run).unwrap();
    assert_eq!(hits.len(), 2, "{hits:?}");
    assert_eq!(of("long").best.seq, 3);
    assert_eq!(of("long").others.iter().map(|other| other.seq).collect::<Vec<_>>(), [2]);
    assert!(of("short").others.is_empty());
    assert_eq!(bench.answer("why was the mortgage rejected", None, 1).hits.len(), 1);
    assert_eq!(bench.answer("why was the mortgage rejected", None, 0).hits.len(), 0);
}

/// A link to frames that are gone would be a dead one, and to a later run of the same name a wrong one.
#[test]
fn dropped_run_is_found_and_called_gone() {
    let bench = MeaningBench::new();
    bench.record(RunSpec::new("night"), "bank", &[("Why was the mortgage rejected?", "The credit is low.")]);
    bench.drop_all();
    let gone = |bench: &MeaningBench| -> Vec<(String, bool)> {
        let hits = bench.answer("why was the mortgage rejected", None, 20).hits;
        hits.into_iter().map(|hit| (format!("{} {}", hit.run, hit.identity), hit.gone)).collect()
    };
    let dropped = ("night bank/_/_".to_owned(), true);
    assert_eq!(gone(&bench), std::slice::from_ref(&dropped));
    bench.record(RunSpec::new("night"), "agency", &[("Was the mortgage rejected again?", "Yes.")]);
    let both = gone(&bench);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both.contains(&dropped) && both.contains(&("night agency/_/_".to_owned(), false)), "{both:?}");
    bench.space.forget("night", "asked for").unwrap();
    assert!(!gone(&bench).iter().any(|(_, gone)| !gone), "a forgotten run is not found");
}

/// A hit for a hidden value would confirm a guess of it, and so would a score that counts it.
#[test]
fn redacted_reader_finds_only_what_the_profile_shows() {
    let bench = MeaningBench::new();
    let asked = [("Why was the mortgage of ada.lovelace@example.org rejected?", "Call +44 20 7946 0958.")];
    bench.record(RunSpec::new("mail"), "bank", &asked);
    bench.record(RunSpec::new("dropped"), "ada.lovelace@example.org", &[("Was the yacht insured?", "No.")]);
    let redactor = Redactor::new(&Profile::safe(), [7; 32]);
    for guess in ["ada.lovelace@example.org", "lovelace", "ada lovelace"] {
        assert_eq!(bench.hits(guess), ["mail@1"], "{guess}");
        assert!(bench.answer(guess, Some(&redactor), 20).hits.is_empty(), "{guess}");
    }
    let shown = bench.answer("why was the mortgage rejected", Some(&redactor), 20).hits;
    let text = format!("{shown:?}");
    assert!(shown.len() == 1 && text.contains("[email:"), "{text}");
    assert!(!text.contains("lovelace") && !text.contains("7946"), "{text}");
    let score = |question: &str| bench.answer(question, Some(&redactor), 20).hits[0].best.score;
    assert_eq!(score("mortgage rejected lovelace"), score("mortgage rejected submarine"));
    let yacht = format!("{:?}", bench.answer("was the yacht insured", Some(&redactor), 20).hits);
    assert!(yacht.contains("dropped") && !yacht.contains("lovelace"), "{yacht}");
}

#[test]
fn long_texts_are_cut_between_characters() {
    let bench = MeaningBench::new();
    let question = format!("Why was the mortgage rejected? {}", "ä".repeat(500));
    bench.record(RunSpec::new("long"), "bank", &[(&question, "Because.")]);
    let hit = bench.answer("mortgage rejected", None, 1).hits.remove(0);
    assert!(hit.best.question.len() <= 404 && hit.best.question.ends_with("ä…"), "{}", hit.best.question);
    assert!(question.starts_with(hit.best.question.trim_end_matches('…')));
}
