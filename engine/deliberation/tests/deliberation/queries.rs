//! Queries by text, meaning and filters.

use annals_deliberation::{Caller, Method, TextEmbedder};
use serde_json::{Value, json};

use crate::support::{Bench, SECOND, decision, texts, with};

fn titles(found: &Value) -> Vec<String> {
    texts(&found["decisions"], "title")
}

#[test]
fn filters_narrow_a_query_and_newest_come_first() {
    let bench = Bench::new();
    for (text, more) in [
        ("one", json!({ "category": "security", "stakes": "high", "tags": ["a", "b"], "agentId": "ann" })),
        ("two", json!({ "project": "p", "confidence": 0.2, "reasons": [{ "type": "pattern" }] })),
        ("three", json!({ "deliberation": { "steps": [{ "step": 1, "thought": "t" }] } })),
    ] {
        bench.record(with(decision(text), more));
        bench.sim.advance_ns(60 * SECOND);
    }
    let one =
        bench.call(Method::QueryDecisions, json!({ "category": "security" }))["decisions"][0]["id"].clone();
    bench.call(Method::ReviewOutcome, json!({ "id": one, "outcome": "success" }));
    let found = |params: Value| titles(&bench.call(Method::QueryDecisions, params));
    assert_eq!(found(json!({})), ["three", "two", "one"]);
    assert_eq!(found(json!({ "limit": 1 })), ["three"]);
    for (filter, title) in [
        (json!({ "category": "security" }), "one"),
        (json!({ "stakes": "high" }), "one"),
        (json!({ "tags": ["a", "b"] }), "one"),
        (json!({ "agentId": "ann" }), "one"),
        (json!({ "status": "reviewed" }), "one"),
        (json!({ "outcome": "success" }), "one"),
        (json!({ "until": "2026-02-08T12:00:30Z" }), "one"),
        (json!({ "project": "p" }), "two"),
        (json!({ "maxConfidence": 0.5 }), "two"),
        (json!({ "reasonType": "pattern" }), "two"),
        (json!({ "since": "2026-02-08T12:01:30Z" }), "three"),
        (json!({ "hasDeliberation": true }), "three"),
    ] {
        assert_eq!(found(json!({ "filters": filter })), [title], "{filter}");
        if filter.get("agentId").is_none() {
            assert_eq!(found(filter.clone()), [title], "{filter} of its own");
        }
    }
    assert_eq!(found(json!({ "query": "two", "filters": { "stakes": "high" } })), [""; 0]);
}

/// S3.36: words and vectors, fused by reciprocal ranks.
#[test]
fn words_and_vectors_are_fused() {
    let bench = Bench::new();
    for (text, vector) in
        [("cheap storage", [1.0, 0.0]), ("fast cache", [0.9, 0.1]), ("cheap lunch", [0.0, 1.0])]
    {
        bench.record(with(decision(text), json!({ "embedding": vector, "embeddingModel": "e" })));
    }
    bench.record(decision("cheap without a vector"));
    let ask = |params: Value| bench.call(Method::QueryDecisions, params);
    let vector = json!({ "embedding": [1.0, 0.0], "embeddingModel": "e" });
    let semantic = ask(vector.clone());
    assert_eq!(
        (titles(&semantic), &semantic["mode"]),
        (["cheap storage", "fast cache", "cheap lunch"].map(str::to_owned).to_vec(), &json!("semantic"))
    );
    assert_eq!(semantic["decisions"][0]["distance"], 0.0);
    let fused = ask(with(vector.clone(), json!({ "query": "cheap" })));
    assert_eq!(
        (titles(&fused)[0].as_str(), &fused["mode"], &fused["total"]),
        ("cheap storage", &json!("hybrid"), &json!(4))
    );
    assert_eq!(titles(&fused).len(), 4);
    let words = ask(with(vector, json!({ "query": "lunch", "retrievalMode": "keyword" })));
    assert_eq!((titles(&words), &words["mode"]), (vec!["cheap lunch".to_owned()], &json!("keyword")));
    // Vectors of another embedder are never compared.
    let other = ask(json!({ "embedding": [1.0, 0.0], "embeddingModel": "f" }));
    assert_eq!((&other["decisions"], &other["total"]), (&json!([]), &json!(0)));
}

#[test]
fn thoughts_are_searched_and_captured_questions_are_not() {
    let bench = Bench::new();
    bench.query("kangaroo");
    bench.call(Method::RecordThought, json!({ "text": "Latency beats everything" }));
    bench.record(decision("Use the cache"));
    assert_eq!(titles(&bench.query("latency")), ["Use the cache"]);
    assert_eq!(titles(&bench.query("kangaroo")), [""; 0], "its own question is no answer");
}

/// An index that is built from the store answers as one that grew with it.
#[test]
fn rebuilt_index_answers_as_the_one_before() {
    let bench = Bench::new();
    for number in 0..40 {
        let (recorded, _) = bench.record(decision(&format!("word{} and word{}", number % 7, number % 3)));
        if number % 5 == 0 {
            bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": "partial" }));
        }
    }
    let ask = |bench: &Bench| {
        let found = ["word1", "word2 word3", "partial"].map(|text| {
            let params = json!({ "query": text, "limit": 50 });
            let mut found = bench.call(Method::QueryDecisions, params);
            let rows = found["decisions"].as_array_mut().unwrap();
            let row = |row: &mut Value| (row["id"].take(), row["outcome"].take());
            let mut rows: Vec<String> = rows.iter_mut().map(row).map(|row| format!("{row:?}")).collect();
            rows.sort();
            rows
        });
        (found, bench.call(Method::GetDeliberationStats, json!({}))["outcomes"].clone())
    };
    let before = ask(&bench);
    assert_eq!(ask(&bench.opened_again()), before);
}

/// Vectors are made for callers that send none. A failing embedder stops no call, and is said.
#[test]
fn embedder_of_the_caller_makes_vectors_and_its_failure_is_said() {
    let bench = Bench::new();
    let embed = |text: &str| match text {
        text if text.contains("fail") => {
            Err(annals::Error::new(annals::ErrorKind::Unavailable, "it is away"))
        }
        text if text.contains("cat") || text.contains("kitten") => Ok(vec![1.0, 0.0]),
        _ => Ok(vec![0.0, 1.0]),
    };
    let embedder = Some(TextEmbedder { id: "e", embed: &embed });
    let caller = Caller { embedder, ..Caller::new("x") };
    let ask = |method, params: Value| bench.call_as(&caller, method, &params).unwrap();
    ask(Method::RecordDecision, decision("Feed the cat"));
    ask(Method::RecordDecision, decision("Walk the dog"));
    let found = ask(Method::QueryDecisions, json!({ "query": "kitten" }));
    assert_eq!((titles(&found)[0].as_str(), &found["mode"]), ("Feed the cat", &json!("hybrid")));
    let failed = ask(Method::RecordDecision, decision("fail"));
    assert_eq!(failed["embedding_failed"], "it is away");
    let failed = ask(Method::QueryDecisions, json!({ "query": "fail" }));
    assert_eq!((&failed["embedding_failed"], &failed["mode"]), (&json!("it is away"), &json!("keyword")));
    assert_eq!(titles(&failed), ["fail"]);
}
