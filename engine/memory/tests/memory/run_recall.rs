//! Recall of runs' questions in the memories of all tenants.

use annals::kv::ScanRange;
use annals::{Namespace, RunSpec, Status, Store};
use annals_memory::{Embedder, Identity, Memory, MemoryHit, MemoryQuery, WordEmbedder, entry_shares};

use crate::memory::identity;
use crate::recall::LetterCountEmbedder;
use crate::support::fresh;

struct RunMemoryBench {
    _directory: tempfile::TempDir,
    _store: Store,
    space: Namespace,
    memory: Memory,
}

impl RunMemoryBench {
    fn new() -> Self {
        let (directory, store, space) = fresh();
        // Parts of the index begin at few entries.
        let memory = Memory::open(&space).unwrap().with_tail_max(4);
        Self { _directory: directory, _store: store, space, memory }
    }

    /// Stores a run with a question at each frame, as an ended run leaves it in memory.
    fn run(&self, name: &str, whose: &Identity, questions: &[&str], with: &dyn Embedder) {
        let run = self.space.begin_run(RunSpec::new(name).replace(true)).unwrap();
        let uid = run.uid();
        run.end(Status::Ok).unwrap();
        let entries: Vec<String> = (1..)
            .zip(questions)
            .map(|(frame, question)| {
                let id = if frame == 1 { format!("run-{name}") } else { format!("run-{name}@{frame}") };
                format!(
                    r#"{{"id":"{id}","value":{{"query":"{question}","finalContent":"So."}},"metadata":{{"run":"{name}","frame":{frame}}}}}"#
                )
            })
            .collect();
        self.memory.remember_for_run(uid, whose, &entries, with).unwrap();
    }

    fn hits(&self, question: &str) -> Vec<MemoryHit> {
        self.memory.recall_runs(question, &WordEmbedder, 100).unwrap()
    }

    /// The ids of the found entries, each with its tenant.
    fn found(&self, question: &str) -> Vec<String> {
        named(&self.hits(question))
    }
}

fn named(hits: &[MemoryHit]) -> Vec<String> {
    let tenant = |hit: &MemoryHit| hit.identity.split('/').next().unwrap_or_default().to_owned();
    hits.iter().map(|hit| format!("{}:{}", tenant(hit), hit.entry.id)).collect()
}

/// Entries of other kinds, and those that another tenant's client stored, are no runs.
#[test]
fn runs_of_all_tenants_are_found_and_nothing_else() {
    let bench = RunMemoryBench::new();
    bench.run("loan", &identity("bank", "a"), &["Why was the mortgage rejected?"], &WordEmbedder);
    bench.run(
        "house",
        &identity("agency", "b"),
        &["Was the mortgage for the house rejected?"],
        &WordEmbedder,
    );
    bench.run("plain", &Identity::default(), &["The mortgage was rejected again"], &WordEmbedder);
    bench.run("cat", &identity("vet", "c"), &["Which vaccine does the cat need?"], &WordEmbedder);
    let by_hand = r#"{"id":"snap-1","value":{"query":"Why was the mortgage rejected?"}}"#;
    bench.memory.remember(&identity("bank", "a"), by_hand, &WordEmbedder).unwrap();
    let forged = r#"{"id":"run-none","value":{"query":"Why was the mortgage rejected?"}}"#;
    bench.memory.remember(&identity("bank", "a"), forged, &WordEmbedder).unwrap();
    let mut found = bench.found("why was a mortgage rejected");
    found.sort();
    assert_eq!(found, ["_:run-plain", "agency:run-house", "bank:run-loan"]);
    assert_eq!(bench.found("vaccine of the cat"), ["vet:run-cat"]);
    for nothing in ["", "?!", "the", "submarine"] {
        assert_eq!(bench.found(nothing), [""; 0], "{nothing:?}");
    }
    assert!(bench.memory.recall_runs("mortgage rejected", &WordEmbedder, 0).unwrap().is_empty());
}

/// The same answers come from parts of the index, from its tail, and from the cards if there is no index. Many entries of a
/// tenant make the walk over tenants begin a new scan.
#[test]
fn index_and_cards_find_the_same_runs() {
    let bench = RunMemoryBench::new();
    for number in 0..600 {
        let question = format!("Is the heron number {number} grey?");
        let entry = format!(r#"{{"id":"e{number}","value":{{"query":"{question}"}}}}"#);
        bench.memory.remember(&identity("many", "c"), &entry, &WordEmbedder).unwrap();
    }
    for (at, tenant) in ["a", "many", "many-more", "many2", "z"].into_iter().enumerate() {
        let question = format!("Where does the heron of pond {at} nest?");
        bench.run(&format!("nest-{at}"), &identity(tenant, "c"), &[&question], &WordEmbedder);
    }
    let scored = |hits: Vec<MemoryHit>| -> Vec<(String, f32)> {
        named(&hits).into_iter().zip(hits.iter().map(|hit| hit.score)).collect()
    };
    let indexed = scored(bench.hits("where does a heron nest"));
    assert_eq!(indexed.len(), 5, "{indexed:?}");
    let parts = bench.space.find_keyspace("annals.memory.words.parts").unwrap().unwrap();
    let keys: Vec<Vec<u8>> = parts.scan(ScanRange::all()).keys().map(Result::unwrap).collect();
    assert_eq!(keys.len(), 5);
    parts.put(&keys[0], vec![9; 7]).unwrap();
    assert_eq!(scored(bench.hits("where does a heron nest")), indexed, "a damaged index");
    for key in &keys {
        parts.delete(key).unwrap();
    }
    assert_eq!(scored(bench.hits("where does a heron nest")), indexed, "no index");
}

/// A rare word of one tenant may be frequent in the namespace: scores of tenants are compared with each other.
#[test]
fn words_are_weighed_by_all_tenants() {
    let bench = RunMemoryBench::new();
    for number in 0..20 {
        let whose = identity(&format!("t{number}"), "c");
        bench.run(&format!("flight-{number}"), &whose, &["Is the flight late?"], &WordEmbedder);
    }
    bench.run("oslo", &identity("u", "c"), &["Which hotel is in Oslo?"], &WordEmbedder);
    let hits = bench.hits("hotel flight Oslo");
    assert_eq!(named(&hits), ["u:run-oslo"], "the flight alone is no answer");
    assert!(hits[0].score > 0.8, "{}", hits[0].score);
}

#[test]
fn run_with_many_questions_hides_no_other_run() {
    for with in [&WordEmbedder as &dyn Embedder, &LetterCountEmbedder("letters", 8)] {
        let bench = RunMemoryBench::new();
        let question = "Why was the mortgage rejected?";
        bench.run("long", &identity("t", "a"), &[question; 40], with);
        bench.run("short", &identity("t", "b"), &[question], with);
        let hits = bench.memory.recall_runs(question, with, 2).unwrap();
        let of = |run: &str| hits.iter().filter(|hit| hit.entry.id.starts_with(run)).count();
        assert_eq!((of("run-long"), of("run-short")), (5, 1), "{}: {:?}", with.id(), named(&hits));
        assert!([1, 5].contains(&bench.memory.recall_runs(question, with, 1).unwrap().len()));
    }
}

/// An operator's look must not make later entries of an agent derived ones.
#[test]
fn recall_of_runs_leaves_no_trace() {
    let bench = RunMemoryBench::new();
    let whose = identity("t", "a");
    bench.run("loan", &whose, &["Why was the mortgage rejected?"], &WordEmbedder);
    bench.run("far", &whose, &["Why was the mortgage rejected?"], &LetterCountEmbedder("letters", 8));
    let before = bench.space.store().seqno();
    assert_eq!(bench.found("mortgage rejected").len(), 1);
    let far =
        bench.memory.recall_runs("mortgage rejected why", &LetterCountEmbedder("letters", 8), 9).unwrap();
    assert_eq!(far.len(), 1);
    assert_eq!(bench.space.store().seqno(), before);
    assert!(bench.memory.recently_recalled(&whose).unwrap().is_empty());
    let recalled = MemoryQuery { across_conversations: true, ..MemoryQuery::default() };
    assert_eq!(bench.memory.recall(&whose, "mortgage rejected", &WordEmbedder, &recalled).unwrap().len(), 1);
    assert_eq!(bench.memory.recently_recalled(&whose).unwrap(), ["t/_/a/run-loan"]);
}

#[test]
fn entries_of_another_embedder_only_are_an_error() {
    let letters = LetterCountEmbedder("letters", 8);
    let ask = |bench: &RunMemoryBench, with: &dyn Embedder| {
        bench.memory.recall_runs("mortgage rejected", with, 9).map(|hits| hits.len())
    };
    let names = |refused: annals::Result<usize>, both: [&str; 2]| {
        let refused = refused.unwrap_err().to_string();
        assert!(both.iter().all(|name| refused.contains(&format!("{name:?}"))), "{refused}");
    };
    let bench = RunMemoryBench::new();
    assert_eq!(ask(&bench, &WordEmbedder).unwrap(), 0, "no entries at all");
    bench.run("loan", &identity("t", "a"), &["Why was the mortgage rejected?"], &letters);
    names(ask(&bench, &WordEmbedder), ["annals-words-1", "letters"]);
    names(ask(&bench, &LetterCountEmbedder("other", 8)), ["other", "letters"]);
    let length = ask(&bench, &LetterCountEmbedder("letters", 4)).unwrap_err().to_string();
    assert!(length.contains("has 4 numbers") && length.contains("have 8"), "{length}");
    bench.run("cat", &identity("u", "b"), &["Which vaccine does the cat need?"], &WordEmbedder);
    assert_eq!(ask(&bench, &WordEmbedder).unwrap(), 0, "an entry that can be compared is no answer");
}

#[test]
fn shares_are_of_the_given_texts() {
    let bench = RunMemoryBench::new();
    for with in [&WordEmbedder as &dyn Embedder, &LetterCountEmbedder("letters", 64)] {
        bench.run("loan", &identity("t", "a"), &["Why was the mortgage rejected?"], with);
        let hit = bench.memory.recall_runs("why was the mortgage rejected", with, 1).unwrap().remove(0);
        let hidden = hit.entry.to_json().replace("mortgage rejected", "[hidden]");
        let hidden = annals_memory::MemoryEntry::parse(&hidden).unwrap();
        let empty = annals_memory::MemoryEntry::parse(r#"{"id":"e","value":""}"#).unwrap();
        let shares = entry_shares("mortgage rejected", &[hit.entry, hidden, empty], with).unwrap();
        assert_eq!(shares[1..], [None, None], "{}: {shares:?}", with.id());
    }
    let entry = annals_memory::MemoryEntry::parse(
        r#"{"id":"e","value":{"query":"mortgage rejected"},"embeddingModel":"annals-words-1"}"#,
    );
    let shares = entry_shares("mortgage rejected", &[entry.unwrap()], &WordEmbedder).unwrap();
    assert_eq!(shares, [Some(1.0)]);
}
