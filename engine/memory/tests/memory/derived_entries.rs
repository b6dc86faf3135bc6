//! Sources of derived entries: found behind nearer derived entries, never another tenant's; and the choice
//! among equal scores.

use annals::io::sim::SimIo;
use annals::{RunSpec, Status};
use annals_memory::{MemoryHit, MemoryQuery, SnapshotOptions, WordEmbedder};

use crate::memory::{entry, identity, memory, opened};

fn ids(hits: &[MemoryHit]) -> Vec<&str> {
    hits.iter().map(|hit| hit.entry.id.as_str()).collect()
}

/// A writer of one tenant can name any source: it must not give access to another tenant.
#[test]
fn derived_from_gives_no_access_to_another_tenant() {
    let memory = memory(&SimIo::new(1));
    for who in [identity("u", "c"), identity("t", "other")] {
        memory.put(&who, &entry("secret", ",\"embedding\":[1,0.1]")).unwrap();
        memory
            .remember(
                &who,
                r#"{"id":"secret words","value":{"query":"loan forty-two","finalContent":"no"}}"#,
                &WordEmbedder,
            )
            .unwrap();
    }
    let own = identity("t", "c");
    for (n, of) in ["u/_/c/secret", "t/_/other/secret", "u/_/c/secret words"].iter().enumerate() {
        let more = format!(",\"embedding\":[1,0],\"metadata\":{{\"derivedFrom\":\"{of}\"}}");
        memory.put(&own, &entry(&format!("e{n}"), &more)).unwrap();
    }
    let all = |across| MemoryQuery {
        k: 50,
        min_score: Some(-1.0),
        across_conversations: across,
        ..MemoryQuery::default()
    };
    let found = memory.search(&own, &[1.0, 0.0], &all(false)).unwrap();
    assert_eq!(ids(&found), ["e0", "e1", "e2"], "a source in its own conversation");
    let found = memory.search(&own, &[1.0, 0.0], &all(true)).unwrap();
    assert!(found.iter().all(|hit| hit.identity.starts_with("t/")), "a source in its own tenant");
    assert_eq!(
        ids(&found),
        ["e0", "e2", "secret", "e1"],
        "a source of the tenant stands before the derived entry"
    );
    let words = r#"{"id":"w","value":{"query":"loan forty-two","finalContent":"see there"},"metadata":{"derivedFrom":"u/_/c/secret words"}}"#;
    memory.remember(&own, words, &WordEmbedder).unwrap();
    let found = memory.recall(&own, "loan forty-two", &WordEmbedder, &all(false)).unwrap();
    assert_eq!(ids(&found), ["w"]);
}

/// Sixty-four entries are ranked. If all of them were nearer than their source, the source was once not
/// found.
#[test]
fn source_is_found_behind_many_nearer_derived_entries() {
    let memory = memory(&SimIo::new(2));
    let who = identity("t", "c");
    let half = std::f32::consts::FRAC_1_SQRT_2;
    memory.put(&who, &entry("source", ",\"embedding\":[1,1]")).unwrap();
    for n in 0..80 {
        let more = ",\"embedding\":[1,0],\"metadata\":{\"derivedFrom\":\"source\"}";
        memory.put(&who, &entry(&format!("e{n:02}"), more)).unwrap();
    }
    let first = |min_score| {
        let wanted = MemoryQuery { k: 1, min_score: Some(min_score), ..MemoryQuery::default() };
        memory.search(&who, &[1.0, 0.0], &wanted).unwrap().remove(0).entry.id
    };
    assert_eq!(first(half), "source", "an entry that equals the minimum score is found");
    assert_eq!(first(half.next_up()), "e00");
    // The same by words: the decision shares fewer words with the question than later questions do.
    let who = identity("w", "c");
    let keep = |id: &str, value: &str, of: &str| {
        memory.remember(&who, &format!("{{\"id\":\"{id}\",\"value\":{value}{of}}}"), &WordEmbedder).unwrap();
    };
    keep("source", r#"{"query":"amber bicycle","finalContent":"sold"}"#, "");
    for n in 0..80 {
        let value = r#"{"query":"Who bought the amber bicycle?","finalContent":"see there"}"#;
        keep(&format!("e{n:02}"), value, ",\"metadata\":{\"derivedFrom\":\"source\"}");
    }
    let ask = |min_score| {
        let wanted = MemoryQuery { k: 1, min_score: Some(min_score), ..MemoryQuery::default() };
        memory.recall(&who, "Who bought the amber bicycle?", &WordEmbedder, &wanted).unwrap()
    };
    let source = ask(0.0).remove(0);
    assert_eq!(source.entry.id, "source");
    assert!(source.score < 0.9, "{}", source.score);
    assert_eq!(ids(&ask(source.score)), ["source"], "equal passes");
    assert_eq!(ids(&ask(source.score.next_up())), ["e00"]);
}

/// More entries are equally near than are ranked: the smallest ids are returned, in JavaScript's order,
/// whatever the insertion order.
#[test]
fn equal_scores_return_smallest_ids() {
    let memory = memory(&SimIo::new(3));
    let who = identity("t", "c");
    for n in (0..80).rev() {
        // Entries of two embedders, each with its own vectors.
        let by = if n % 2 == 0 { ",\"embeddingModel\":\"e\"" } else { "" };
        memory.put(&who, &entry(&format!("e{n:02}"), &format!(",\"embedding\":[2,0]{by}"))).unwrap();
    }
    let found = |k| memory.search(&who, &[1.0, 0.0], &MemoryQuery { k, ..MemoryQuery::default() }).unwrap();
    assert_eq!(ids(&found(3)), ["e00", "e01", "e02"]);
    assert_eq!(found(79).len(), 79);
    let other = identity("t", "d");
    for id in ["\u{ff5e}", "\u{1f600}", "z"] {
        memory.put(&other, &entry(id, ",\"embedding\":[1,0]")).unwrap();
        memory.put(&identity("t", "e"), &entry(id, ",\"embedding\":[1,0]")).unwrap();
    }
    let wanted = MemoryQuery { across_conversations: true, k: 200, ..MemoryQuery::default() };
    let all = memory.search(&other, &[1.0, 0.0], &wanted).unwrap();
    let last: Vec<String> =
        all[80..].iter().map(|hit| format!("{}:{}", hit.identity, hit.entry.id)).collect();
    let expected = ["z", "\u{1f600}", "\u{ff5e}"].map(|id| [format!("t/_/d:{id}"), format!("t/_/e:{id}")]);
    assert_eq!(last, expected.concat(), "equal ids are sorted by identity");
}

#[test]
fn recent_recall_lasts_one_hour_inclusive() {
    let sim = SimIo::new(4);
    let memory = memory(&sim);
    let (monday, friday) = (identity("t", "c"), identity("t", "d"));
    let snapshot = r#"{"query":"loan #42","finalContent":"no","decisions":[],"toolCalls":[]}"#;
    memory.write_snapshot(&monday, snapshot, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    let across = MemoryQuery { across_conversations: true, ..MemoryQuery::default() };
    let now = 1_700_000_000_000_000_000;
    sim.set_now_ns(now);
    assert_eq!(memory.recall(&friday, "loan #42", &WordEmbedder, &across).unwrap().len(), 1);
    for (after_ms, told) in [(0, 1), (3_600_000, 1), (3_600_001, 0), (3_600_000, 1)] {
        sim.set_now_ns(now + after_ms * 1_000_000);
        assert_eq!(memory.recently_recalled(&friday).unwrap().len(), told, "{after_ms} ms");
    }
}

/// A run that answers from a recall clears it; a run that does not leaves it to the next.
#[test]
fn run_entry_clears_recent_recall() {
    let sim = SimIo::new(6);
    let store = opened(&sim);
    let space = store.namespace("n").unwrap();
    let memory = annals_memory::Memory::open(&space).unwrap();
    let (monday, friday) = (identity("t", "c"), identity("t", "d"));
    let snapshot = r#"{"query":"loan #42","finalContent":"no","decisions":[],"toolCalls":[]}"#;
    memory.write_snapshot(&monday, snapshot, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let uid = run.end(Status::Ok).unwrap().uid;
    let across = MemoryQuery { across_conversations: true, ..MemoryQuery::default() };
    memory.recall(&friday, "loan #42", &WordEmbedder, &across).unwrap();
    let keep = |id: &str, more: &str| {
        memory.remember_for_run(uid, &friday, &[entry(id, more)], &WordEmbedder).unwrap();
        memory.recently_recalled(&friday).unwrap()
    };
    assert_eq!(keep("alone", ""), ["t/_/c/snap-1"]);
    assert_eq!(keep("after", ",\"metadata\":{\"derivedFrom\":\"t/_/c/snap-1\"}"), [""; 0]);
}

/// Word entries and vector entries expire in the same millisecond.
#[test]
fn recall_finds_entry_until_its_ttl() {
    let sim = SimIo::new(5);
    let memory = memory(&sim);
    let who = identity("t", "c");
    let end_ms = 1_700_000_000_000;
    let entry = |id: &str, more: &str| {
        format!("{{\"id\":\"{id}\",\"value\":{{\"query\":\"loan #42\"}},\"ttl\":{end_ms}{more}}}")
    };
    memory.remember(&who, &entry("words", ""), &WordEmbedder).unwrap();
    memory.put(&who, &entry("vector", ",\"embedding\":[1,0]")).unwrap();
    for (now_ms, there) in [(end_ms - 1, true), (end_ms, false), (end_ms + 1, false)] {
        sim.set_now_ns(now_ms * 1_000_000);
        let by_words = memory.recall(&who, "loan #42", &WordEmbedder, &MemoryQuery::default()).unwrap();
        let by_vector = memory.search(&who, &[1.0, 0.0], &MemoryQuery::default()).unwrap();
        assert_eq!((by_words.len(), by_vector.len()), (usize::from(there), usize::from(there)), "{now_ms}");
        assert_eq!(memory.list(&who, None, None, &[]).unwrap().0.len(), if there { 2 } else { 0 });
    }
    // From then on it does not make a word more common either.
    let other = identity("t", "other");
    memory.remember(&other, r#"{"id":"amber","value":{"query":"amber"}}"#, &WordEmbedder).unwrap();
    let score = |now_ms: u64| {
        sim.set_now_ns(now_ms * 1_000_000);
        let all = MemoryQuery { min_score: Some(0.0), ..MemoryQuery::default() };
        memory.recall(&other, "amber loan", &WordEmbedder, &all).unwrap()[0].score
    };
    assert_eq!(score(end_ms), score(end_ms + 1));
    assert_ne!(score(end_ms - 1), score(end_ms));
}
