//! Weights in searches of the memory.

use annals_diagnostics::{Diagnostics, RecallWeights, observation_id};
use annals_memory::{HitWeights, Identity, Memory, MemoryHit, MemoryQuery, RankedHit, WordEmbedder};
use serde_json::json;

use crate::support::{Bench, ended};

const UUID: &str = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";

fn whose() -> Identity {
    Identity { tenant: Some("t".to_owned()), ..Identity::default() }
}

/// Entries of one tenant with vectors at growing angles from `[1, 0]`.
fn memory(bench: &Bench) -> Memory {
    let memory = Memory::open(&bench.store.namespace("default").unwrap()).unwrap();
    for (id, y, more) in
        [("near", 0.1, json!({})), (UUID, 0.3, json!({})), ("echo", 0.0, json!({ "derivedFrom": "near" }))]
    {
        let entry =
            json!({ "id": id, "value": id, "embedding": [1.0, y], "embeddingModel": "e", "metadata": more });
        memory.put(&whose(), &entry.to_string()).unwrap();
    }
    memory
}

fn ids(memory: &Memory, weights: Option<&RecallWeights<'_>>, k: usize) -> Vec<String> {
    let weights = weights.map(|weights| weights as &dyn HitWeights);
    let wanted = MemoryQuery { k, embedder: Some("e"), weights, ..MemoryQuery::default() };
    let hits = memory.search(&whose(), &[1.0, 0.0], &wanted).unwrap();
    hits.into_iter().map(|hit| hit.entry.id).collect()
}

#[test]
fn observation_of_an_entry_is_named_with_its_identity() {
    assert_eq!(observation_id("t/_/c", "snap-1"), "t/_/c/snap-1");
    assert_eq!(observation_id("t/_/c", UUID), UUID);
    for id in [
        "1b4e28ba-2fa1-41d2-883f-0016d3cca42",
        "1b4e28ba-2fa1-41d2-883f-0016d3cca42g",
        "1b4e28ba+2fa1-41d2-883f-0016d3cca427",
    ] {
        assert_eq!(observation_id("t/_/c", id), format!("t/_/c/{id}"));
    }
}

/// The entry that misled falls behind; the entry that answers from it stays behind its source.
#[test]
fn weights_order_hits_behind_their_sources() {
    let bench = Bench::new();
    let memory = memory(&bench);
    let weights = RecallWeights { diagnostics: &bench.diagnostics, org: Some("t"), session: None };
    assert_eq!(ids(&memory, Some(&weights), 9), ["near", "echo", UUID], "without sessions");
    for number in 0..3 {
        bench.record(&ended(&format!("s{number}"), "rejected", &["t/_/_/near", "t/_/_/echo"]));
    }
    assert_eq!(ids(&memory, Some(&weights), 9), [UUID, "near", "echo"]);
    assert_eq!(ids(&memory, Some(&weights), 1), [UUID]);
    assert_eq!(ids(&memory, None, 9), ["near", "echo", UUID], "weights that nobody asks for");
    // The entry of that id in another tenant has its own weight.
    bench.record(&ended("u", "rejected", &["other/_/_/near", UUID]));
    assert_eq!(bench.diagnostics.weight(UUID).unwrap(), 0.85);
    bench.diagnostics.set_weighting(Some("t"), false).unwrap();
    assert_eq!(ids(&memory, Some(&weights), 9), ["near", "echo", UUID], "switched off");
    let elsewhere = RecallWeights { org: Some("other"), ..weights };
    assert_eq!(ids(&memory, Some(&elsewhere), 9), [UUID, "near", "echo"]);
}

/// With a session each candidate leaves a row, also those that are not returned, and the returned ones count as
/// given to the session.
#[test]
fn session_leaves_a_row_for_each_candidate() {
    let bench = Bench::new();
    let memory = memory(&bench);
    bench.record(&ended("before", "rejected", &["t/_/_/near", "t/_/_/near", "t/_/_/near"]));
    let weights = RecallWeights { diagnostics: &bench.diagnostics, org: Some("t"), session: Some("s") };
    ids(&memory, Some(&RecallWeights { session: None, ..weights }), 1);
    // The recall itself is noted by the memory; diagnostics note nothing.
    assert!(bench.diagnostics.retrievals("s").unwrap().is_empty(), "no session, no row");
    assert!(bench.diagnostics.injection("s").unwrap().is_none(), "no session, no injection");
    assert_eq!(ids(&memory, Some(&weights), 1), [UUID]);
    let rows = bench.diagnostics.retrievals("s").unwrap();
    let told: Vec<_> = rows
        .iter()
        .map(|row| (row.id.as_str(), row.feedback_weight, row.unweighted_rank, row.weighted_rank))
        .collect();
    assert_eq!(told, [(UUID, 1.0, 2, 0), ("t/_/_/near", 0.7, 0, 1), ("t/_/_/echo", 1.0, 1, 2)]);
    assert!(
        rows.iter().all(|row| (row.weighted_score - row.relevance_score * row.feedback_weight).abs() < 1e-12)
    );
    assert_eq!(bench.diagnostics.injection("s").unwrap().unwrap().observation_ids, [UUID]);
    // The report needs no list of its own.
    let report = bench.record(&json!({ "sessionId": "s", "outcome": "rework" }));
    assert_eq!(report.weight_changes[0].observation_id, UUID);
    let row: serde_json::Value =
        serde_json::from_str(&bench.diagnostics.session("s").unwrap().unwrap()).unwrap();
    assert_eq!(row["orgId"], "t");
    // Ranking may be off; the rows are still written.
    bench.diagnostics.set_weighting(None, false).unwrap();
    ids(&memory, Some(&RecallWeights { session: Some("off"), ..weights }), 1);
    let rows = bench.diagnostics.retrievals("off").unwrap();
    assert_eq!((rows.len(), rows[0].id.as_str(), rows[0].feedback_weight), (3, "t/_/_/near", 0.7));
    assert_eq!(rows[0].weighted_score, rows[0].relevance_score);
}

/// Questions in words are ordered alike.
#[test]
fn recall_by_words_is_ordered_by_weights() {
    let bench = Bench::new();
    let memory = Memory::open(&bench.store.namespace("default").unwrap()).unwrap();
    for id in ["a", "b"] {
        let entry = json!({ "id": id, "value": { "query": "how do we deploy the billing service" } });
        memory.remember(&whose(), &entry.to_string(), &WordEmbedder).unwrap();
    }
    bench.record(&ended("s", "rejected", &["t/_/_/a"]));
    let weights = RecallWeights { diagnostics: &bench.diagnostics, org: None, session: None };
    let first = |weights: Option<&dyn HitWeights>| {
        let wanted = MemoryQuery { k: 1, weights, ..MemoryQuery::default() };
        let hits = memory.recall(&whose(), "deploy the billing service", &WordEmbedder, &wanted).unwrap();
        hits[0].entry.id.clone()
    };
    assert_eq!((first(None), first(Some(&weights))), ("a".to_owned(), "b".to_owned()));
}

/// Weights that are no numbers fail the search; they must not order it.
#[test]
fn weights_that_are_no_numbers_fail_the_search() {
    #[derive(Debug)]
    struct Broken(fn(usize) -> Vec<f32>);
    impl HitWeights for Broken {
        fn weighted_scores(&self, hits: &[MemoryHit]) -> annals::Result<Vec<f32>> {
            Ok((self.0)(hits.len()))
        }
        fn note_order(&self, _: &[RankedHit<'_>], _: usize) -> annals::Result<()> {
            panic!("there is no order")
        }
    }
    let bench = Bench::new();
    let memory = memory(&bench);
    let broken: [fn(usize) -> Vec<f32>; 2] = [|hits| vec![f32::NAN; hits], |hits| vec![1.0; hits - 1]];
    for broken in broken {
        let wanted = MemoryQuery { weights: Some(&Broken(broken)), ..MemoryQuery::default() };
        let failed = memory.search(&whose(), &[1.0, 0.0], &wanted).unwrap_err();
        assert!(failed.to_string().contains("a finite score"), "{failed}");
    }
}

#[test]
fn namespace_without_sessions_has_no_diagnostics() {
    let store = annals::Store::open_with(
        "s",
        annals::Options {
            io: std::sync::Arc::new(annals::io::sim::SimIo::new(3)),
            ..annals::Options::default()
        },
    )
    .unwrap();
    let space = store.namespace("n").unwrap();
    let seqno = store.seqno();
    assert!(Diagnostics::find(&space).unwrap().is_none());
    assert_eq!(store.seqno(), seqno, "looking writes nothing");
    Diagnostics::open(&space).unwrap();
    assert!(Diagnostics::find(&space).unwrap().is_some());
}
