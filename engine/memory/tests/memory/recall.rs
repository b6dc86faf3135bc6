//! Recall by words, by identifiers, and by embedders that callers pass.

use annals::ErrorKind;
use annals::Result;
use annals::io::sim::SimIo;
use annals_memory::{
    Definition, Embedder, Identity, Memory, MemoryHit, MemoryQuery, Projection, SnapshotOptions,
    WordEmbedder, prompt_text, render,
};
use proptest::prelude::*;

use crate::memory::{MONDAY, entry, identity, memory, opened};

const ACROSS: MemoryQuery<'_> = MemoryQuery {
    k: 1,
    min_score: None,
    tiers: &[],
    embedder: None,
    across_conversations: true,
    weights: None,
};

fn snapshot(query: &str, answer: &str) -> String {
    serde_json::json!({"query": query, "finalContent": answer, "decisions": [], "toolCalls": []}).to_string()
}

fn names(hits: &[MemoryHit]) -> Vec<String> {
    hits.iter().map(|hit| format!("{}/{}", hit.identity, hit.entry.id)).collect()
}

fn ask(memory: &Memory, who: &Identity, question: &str) -> Vec<String> {
    names(&memory.recall(who, question, &WordEmbedder, &ACROSS).unwrap())
}

/// The query that a definition describes.
fn query(by: &Definition) -> MemoryQuery<'_> {
    MemoryQuery {
        k: by.k,
        min_score: by.threshold,
        embedder: by.embedder.as_deref(),
        across_conversations: by.across_conversations,
        ..MemoryQuery::default()
    }
}

/// agentfootprint's own example, which its own store does not answer: another conversation, another agent,
/// Friday.
#[test]
fn question_about_application_42_recalls_its_decision() {
    let sim = SimIo::new(1);
    let store = opened(&sim);
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    let (monday, friday) = (identity("lending", "app-42"), identity("lending", "app-42-followup"));
    let kept = memory.write_snapshot(&monday, MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    assert_eq!((kept.id.as_str(), kept.embedder.as_deref()), ("snap-1", Some(WordEmbedder.id())));
    assert_eq!(kept.value(), MONDAY, "byte for byte");
    let other = snapshot("Should we approve loan #7? Credit: 700.", "Application #7: approved.");
    memory
        .write_snapshot(&identity("lending", "app-7"), &other, &WordEmbedder, &SnapshotOptions::default())
        .unwrap();
    store.close().unwrap();
    let memory = self::memory(&sim);
    let question = "Why was application #42 rejected?";
    let hits = memory.recall(&friday, question, &WordEmbedder, &ACROSS).unwrap();
    assert_eq!(names(&hits), ["lending/_/app-42/snap-1"]);
    let told = prompt_text(&hits, Some(Projection::default()), None);
    let exact = render(MONDAY, Projection::default(), hits[0].score).unwrap();
    assert_eq!(told, format!("{exact}\ndecided at {}", hits[0].decided_at().unwrap()));
    assert!(told.contains("{\"creditScore\":580,\"threshold\":600}"), "{told}");
    assert_eq!(hits[0].entry.value(), MONDAY);

    assert!(
        memory.recall(&friday, question, &WordEmbedder, &MemoryQuery::default()).unwrap().is_empty(),
        "its own identity has none"
    );
    assert_eq!(
        ask(&memory, &friday, "Why was application #43 rejected?"),
        [""; 0],
        "no decision about it is stored"
    );
    assert_eq!(
        ask(&memory, &friday, "Should we approve loan #43? Credit: 580. Income: 95k. Amount: 50k."),
        [""; 0]
    );
    assert_eq!(ask(&memory, &friday, "Which seat has the pilot's dog?"), [""; 0]);
    for nothing in ["", "  ", "?!", "Why was it?", "\u{0}"] {
        assert_eq!(ask(&memory, &friday, nothing), [""; 0], "{nothing:?}");
    }
    for tenant in ["lendin", "lending2", "_", "", "%"] {
        assert_eq!(ask(&memory, &identity(tenant, "app-42"), question), [""; 0], "{tenant:?}");
    }
}

#[test]
fn definition_sets_query_and_never_identity() {
    let sim = SimIo::new(1);
    let memory = memory(&sim);
    assert_eq!(memory.definitions().unwrap(), []);
    assert!(memory.definition("causal").unwrap_err().to_string().ends_with("none is defined"));
    memory
        .write_snapshot(&identity("lending", "app-42"), MONDAY, &WordEmbedder, &SnapshotOptions::default())
        .unwrap();
    let text = r#"{"id":"causal","description":"why it was decided", "type":"CAUSAL","strategy":{"kind":"TOP_K","topK":3,"threshold":0.5,"embedder":"annals-words-1"},
        "projection":"NARRATIVE","acrossConversations":true}"#;
    let causal = memory.define(text).unwrap();
    assert_eq!((memory.definition("causal").unwrap(), causal.text()), (causal.clone(), text));
    assert_eq!(
        (causal.projection, causal.description.as_deref()),
        (Projection::Narrative, Some("why it was decided"))
    );
    assert_eq!(
        (causal.k, causal.threshold, causal.embedder.as_deref(), causal.across_conversations),
        (3, Some(0.5), Some(WordEmbedder.id()), true)
    );
    let wanted = query(&causal);
    let ask = |tenant: &str| {
        let question = "Why was application #42 rejected?";
        names(&memory.recall(&identity(tenant, "friday"), question, &WordEmbedder, &wanted).unwrap())
    };
    assert_eq!((ask("lending"), ask("other")), (vec!["lending/_/app-42/snap-1".to_owned()], vec![]));

    // Absent settings have their defaults; a definition with the same id replaces the old one.
    let plain = memory.define(r#"{"id":"causal"}"#).unwrap();
    assert_eq!(
        (plain.k, plain.threshold, plain.projection, plain.across_conversations),
        (1, None, Projection::Decisions, false)
    );
    let other = memory.define(r#"{"id":"other","strategy":{"embedder":"e"}}"#).unwrap();
    let refused =
        memory.recall(&identity("lending", "friday"), "why?", &WordEmbedder, &query(&other)).unwrap_err();
    assert!(refused.to_string().contains("\"annals-words-1\" here, not by \"e\""), "{refused}");
    assert_eq!(memory.definitions().unwrap(), [plain, other.clone()]);
    assert_eq!((memory.undefine("causal").unwrap(), memory.undefine("causal").unwrap()), (true, false));
    assert_eq!(memory.definitions().unwrap(), [other]);
    let missing = memory.definition("causal").unwrap_err();
    assert_eq!(
        (missing.kind(), missing.to_string().ends_with("there are \"other\"")),
        (ErrorKind::NotFound, true)
    );
    assert_eq!(ask("lending").len(), 1, "the entries stay");
}

#[test]
fn parse_invalid_definition_gives_reason() {
    let memory = memory(&SimIo::new(1));
    for (text, why) in [
        ("", "JSON object"),
        (r#"["causal"]"#, "JSON object"),
        ("{}", "missing field `id`"),
        (r#"{"id":""}"#, "id must have 1 to"),
        (r#"{"id":"a\nb"}"#, "id must have 1 to"),
        (r#"{"id":"a","id":"b"}"#, "duplicate field `id`"),
        (r#"{"id":"a","topk":1}"#, "unknown field `topk`"),
        (r#"{"id":"a","strategy":{"top_k":1}}"#, "unknown field `top_k`"),
        (r#"{"id":"a","strategy":{"topK":0}}"#, "from 1 to 1000, not 0"),
        (r#"{"id":"a","strategy":{"topK":1001}}"#, "from 1 to 1000, not 1001"),
        (r#"{"id":"a","strategy":{"topK":1.5}}"#, "line 1"),
        (r#"{"id":"a","strategy":{"threshold":1.01}}"#, "from -1 to 1, not 1.01"),
        (r#"{"id":"a","strategy":{"threshold":1e39}}"#, "number out of range"),
        (r#"{"id":"a","strategy":{"kind":"window"}}"#, "not \"window\""),
        (r#"{"id":"a","type":"episodic"}"#, "not \"episodic\""),
        (r#"{"id":"a","projection":"all"}"#, "decisions, commits, narrative or full"),
    ] {
        let refused = memory.define(text).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Invalid && refused.to_string().contains(why),
            "{text}: {refused}"
        );
    }
    assert!(memory.define(&format!("{{\"id\":\"a\",\"description\":{:?}}}", "d".repeat(1 << 16))).is_err());
    assert_eq!(memory.definitions().unwrap(), []);
    for number in 0..1000 {
        memory.define(&format!("{{\"id\":\"{number}\"}}")).unwrap();
    }
    assert!(memory.define(r#"{"id":"one more"}"#).unwrap_err().to_string().contains("at most 1000"));
    memory.define(r#"{"id":"7","description":"in the place of the other"}"#).unwrap();
}

#[test]
fn recall_requires_every_identifier_of_the_question() {
    let memory = memory(&SimIo::new(2));
    let who = identity("t", "c");
    let value = r#"{"query":"Where is it?","finalContent":"Sent.","toolCalls":[{"name":"track","args":{"order":7304512,"for":["mia.li@example.com"]},"resultPreview":"{\"code\":\"Q69X3R\",\"via\":\"HAT136-HAT039\"}"}]}"#;
    memory.write_snapshot(&who, value, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    for (question, found) in [
        ("Where was order 7304512 sent?", true),
        ("Anything about Mia.Li@Example.com?", true),
        ("What became of Q69X3R, order 7304512?", true),
        ("Was HAT136 sent?", true),
        ("Was HAT137 sent?", false),
        ("What became of Q69X3R, order 7304513?", false),
        ("Anything about li@example.com?", false),
        // The entry holds the identifier, and nothing that the question asks for.
        ("Which carrier took 7304512?", false),
        ("Which carrier took the parcel?", false),
    ] {
        assert_eq!(ask(&memory, &who, question).len(), usize::from(found), "{question}");
        let strict = MemoryQuery { min_score: Some(0.95), ..ACROSS };
        let hits = memory.recall(&who, question, &WordEmbedder, &strict).unwrap();
        assert!(hits.is_empty(), "a given minimum score is not lowered: {question}");
    }
}

#[test]
fn rare_words_weigh_more_and_threshold_is_strict() {
    let memory = memory(&SimIo::new(3));
    let colours = ["red", "green", "blue", "amber"];
    for (n, colour) in colours.iter().enumerate() {
        let text = snapshot(&format!("Paint the {colour} bicycle"), "Painted the bicycle.");
        memory
            .write_snapshot(
                &identity("t", &format!("c{n}")),
                &text,
                &WordEmbedder,
                &SnapshotOptions::default(),
            )
            .unwrap();
    }
    let who = identity("t", "new");
    assert_eq!(ask(&memory, &who, "Who painted the amber bicycle?"), ["t/_/c3/snap-1"]);
    let all = MemoryQuery { k: 0, min_score: Some(0.0), ..ACROSS };
    let hits = memory.recall(&who, "amber bicycle", &WordEmbedder, &all).unwrap();
    assert_eq!((hits.len(), hits[0].score), (4, 1.0));
    assert!(hits[1].score < 0.5, "the word in all entries weighs less than half: {}", hits[1].score);
    let at = |least| {
        memory
            .recall(
                &who,
                "amber bicycle",
                &WordEmbedder,
                &MemoryQuery { min_score: Some(least), ..all.clone() },
            )
            .unwrap()
            .len()
    };
    assert_eq!([at(hits[1].score), at(hits[1].score.next_up()), at(1.0), at(1.0f32.next_up())], [4, 1, 1, 0]);
    // Entries of another tenant do not make a word more common.
    for n in 0..20 {
        let text = snapshot("amber amber", "amber");
        memory
            .write_snapshot(&identity("u", &n.to_string()), &text, &WordEmbedder, &SnapshotOptions::default())
            .unwrap();
    }
    let again = memory.recall(&who, "amber bicycle", &WordEmbedder, &all).unwrap();
    assert_eq!(again[1].score, hits[1].score);
    // Neither do deleted and expired entries.
    memory.delete(&identity("t", "c0"), "snap-1").unwrap();
    memory.forget(&identity("t", "c1")).unwrap();
    assert_eq!(memory.recall(&who, "bicycle", &WordEmbedder, &all).unwrap().len(), 2);
    let brought = entry("snap-1", ",\"embedding\":[1,0],\"embeddingModel\":\"e\"");
    memory.put(&identity("t", "c2"), &brought).unwrap();
    assert_eq!(
        memory.recall(&who, "bicycle", &WordEmbedder, &all).unwrap().len(),
        1,
        "an entry of another embedder has no card"
    );
}

/// A follow-up is stored, too, and matches the next question best. With one hit wanted, the original decision
/// was never found.
#[test]
fn snapshot_answering_from_recall_ranks_behind_source() {
    let sim = SimIo::new(4);
    let memory = memory(&sim);
    let (monday, friday) = (identity("lending", "app-42"), identity("lending", "friday"));
    memory.write_snapshot(&monday, MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    let question = "Why was application #42 rejected?";
    let answer = snapshot(question, "Application #42 was rejected since credit 580 is below 600.");
    assert_eq!(ask(&memory, &friday, question), ["lending/_/app-42/snap-1"]);
    let followup =
        memory.write_snapshot(&friday, &answer, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    assert_eq!(followup.derived_from, ["lending/_/app-42/snap-1"]);
    for turn in 2..4 {
        assert_eq!(ask(&memory, &friday, question), ["lending/_/app-42/snap-1"], "turn {turn}");
        memory.write_snapshot(&friday, &answer, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    }
    let all = memory.recall(&friday, question, &WordEmbedder, &MemoryQuery { k: 9, ..ACROSS }).unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(all[0].entry.value(), MONDAY);
    assert!(all[0].score < all[1].score, "it is not first by score alone");
    // A recall counts as a source once. For a run with tool calls it counts only if it was made during the run,
    // which took 1,840 ms.
    let next =
        || memory.write_snapshot(&friday, &answer, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    assert_eq!(next().derived_from, names(&all));
    assert_eq!(next().derived_from, [""; 0]);
    let now_ms = 1_800_000_000_000;
    for (after_ms, counts) in [(0, true), (1840, true), (1841, false)] {
        sim.set_now_ns(now_ms * 1_000_000);
        let recalled = ask(&memory, &friday, question);
        sim.set_now_ns((now_ms + after_ms) * 1_000_000);
        let kept =
            memory.write_snapshot(&friday, MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
        assert_eq!(kept.derived_from, if counts { recalled } else { Vec::new() }, "{after_ms} ms");
    }
    ask(&memory, &friday, question);
    sim.set_now_ns((now_ms + 9_000) * 1_000_000);
    let named = SnapshotOptions { derived_from: vec!["snap-1".into()], ..SnapshotOptions::default() };
    assert_eq!(
        memory.write_snapshot(&friday, MONDAY, &WordEmbedder, &named).unwrap().derived_from,
        ["snap-1"]
    );
}

/// Quoted entries are recognised by their text, regardless of the caller, the interface and the
/// projection.
#[test]
fn quoted_entries_are_found_by_query_and_time() {
    let sim = SimIo::new(14);
    let memory = memory(&sim);
    memory
        .write_snapshot(&identity("t", "app-42"), MONDAY, &WordEmbedder, &SnapshotOptions::default())
        .unwrap();
    let long =
        snapshot(&format!("#7 \u{1f600}{}", "long ".repeat(30)), "Approved.\n[Past run \u{b7} query: \"");
    memory
        .write_snapshot(&identity("t", "app-7"), &long, &WordEmbedder, &SnapshotOptions::default())
        .unwrap();
    let recalled =
        |question: &str| memory.recall(&identity("t", "x"), question, &WordEmbedder, &ACROSS).unwrap();
    let (monday, other) = (recalled("#42"), recalled("#7"));
    let told_in = |tenant: &str, text: &str| memory.entries_quoted_in(&identity(tenant, "y"), text).unwrap();
    for projection in Projection::ALL {
        let text = format!("Be brief.\n{}\n\nUser: why?", prompt_text(&monday, Some(projection), None));
        assert!(Memory::may_quote_entries(&text));
        assert_eq!(told_in("t", &text), ["t/_/app-42/snap-1"], "{}", projection.name());
        assert_eq!(told_in("u", &text), [""; 0], "never another tenant's");
        let both = format!("{text}\n\n{}", prompt_text(&other, Some(Projection::Commits), None));
        assert_eq!(told_in("t", &both).len(), 2);
    }
    let text = prompt_text(&monday, Some(Projection::Commits), None);
    // Most prompts quote nothing, which is decided without reading any entry.
    for nothing in ["Be brief.", text.split('\n').next().unwrap(), "x\ndecided at 2026-11-23T14:14:00Z"] {
        assert!(!Memory::may_quote_entries(nothing), "{nothing}");
    }
    for nothing in [
        "",
        "[Past run \u{b7} query: \"",
        &text.replace("Should", "Could"),
        &text.replace("\ndecided at ", "\ndecided at 9"),
        &text.replace("\ndecided at", "decided on"),
        text.rsplit_once('T').unwrap().0,
    ] {
        assert_eq!(told_in("t", nothing), [""; 0], "{nothing}");
    }
}

#[test]
fn snapshot_matches_agentfootprint_form() {
    let memory = memory(&SimIo::new(5));
    let who = Identity {
        tenant: Some("lending".into()),
        principal: Some("u/1".into()),
        conversation: Some("app-42".into()),
    };
    let kept = memory.write_snapshot(&who, MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    let members: serde_json::Value = serde_json::from_str(&kept.to_json()).unwrap();
    assert_eq!(members["createdAt"], members["updatedAt"]);
    assert_eq!(members["createdAt"], members["lastAccessedAt"]);
    assert_eq!((members["version"].as_u64(), members["accessCount"].as_u64()), (Some(1), Some(0)));
    assert_eq!(
        kept.member("source"),
        Some(r#"{"turn":1,"identity":{"tenant":"lending","principal":"u/1","conversationId":"app-42"}}"#)
    );
    assert_eq!((kept.member("ttl"), kept.member("tier"), kept.member("metadata")), (None, None, None));
    let order = [
        "id",
        "value",
        "version",
        "createdAt",
        "updatedAt",
        "lastAccessedAt",
        "accessCount",
        "embedding",
        "embeddingModel",
        "source",
    ];
    let places = order.map(|name| kept.to_json().find(&format!("\"{name}\":")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(memory.get(&who, "snap-1").unwrap().unwrap().value(), MONDAY);

    let id = |keep: &SnapshotOptions| memory.write_snapshot(&who, MONDAY, &WordEmbedder, keep).unwrap().id;
    assert_eq!(id(&SnapshotOptions::default()), "snap-2");
    assert_eq!(
        id(&SnapshotOptions { turn: Some(12), ..SnapshotOptions::default() }),
        "snap-12",
        "the host's turn is ahead"
    );
    assert_eq!(
        id(&SnapshotOptions { turn: Some(3), ..SnapshotOptions::default() }),
        "snap-13",
        "the host's turn is behind"
    );
    let gone = SnapshotOptions {
        turn: Some(40),
        ttl_ms: Some(0),
        tier: Some("cold".into()),
        ..SnapshotOptions::default()
    };
    assert_eq!(id(&gone), "snap-40");
    assert_eq!(id(&SnapshotOptions::default()), "snap-14", "expired entries do not count");
    memory.put(&who, &entry("snap-900x", "")).unwrap();
    memory.put(&who, &entry("msg-99-0", "")).unwrap();
    assert_eq!(id(&SnapshotOptions::default()), "snap-15", "other ids are not turns");
    for bad in ["", "[]", "{}", r#"{"query":""}"#, r#"{"query":7}"#, r#"{"query":"q"},"id":"x""#] {
        let refused =
            memory.write_snapshot(&who, bad, &WordEmbedder, &SnapshotOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad}");
    }
    let tier = SnapshotOptions { tier: Some("lukewarm".into()), ..SnapshotOptions::default() };
    assert_eq!(
        memory.write_snapshot(&who, MONDAY, &WordEmbedder, &tier).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn concurrent_snapshots_get_distinct_turns() {
    let store = opened(&SimIo::new(6));
    let who = identity("t", "c");
    let door = || Memory::open(&store.namespace("n").unwrap()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                door().write_snapshot(&who, MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap()
            });
        }
    });
    let mut ids: Vec<String> =
        door().list(&who, None, None, &[]).unwrap().0.into_iter().map(|entry| entry.id).collect();
    ids.sort();
    assert_eq!(ids, (1..9).map(|n| format!("snap-{n}")).collect::<Vec<_>>());
}

#[test]
fn recall_respects_tiers_and_expiry() {
    let memory = memory(&SimIo::new(7));
    let who = identity("t", "c");
    for (turn, tier, ttl_ms) in [(1, "hot", None), (2, "cold", Some(1 << 40)), (3, "cold", Some(0))] {
        let keep = SnapshotOptions {
            turn: Some(turn),
            tier: Some(tier.into()),
            ttl_ms,
            ..SnapshotOptions::default()
        };
        memory.write_snapshot(&who, MONDAY, &WordEmbedder, &keep).unwrap();
    }
    let of = |tiers: &[String]| {
        let wanted = MemoryQuery { k: 0, tiers, ..ACROSS };
        names(&memory.recall(&who, "application #42", &WordEmbedder, &wanted).unwrap())
    };
    assert_eq!(of(&[]), ["t/_/c/snap-1", "t/_/c/snap-2"]);
    assert_eq!(of(&["cold".into()]), ["t/_/c/snap-2"]);
    assert_eq!(of(&["warm".into()]), [""; 0]);
}

/// A custom embedder that counts letters, like agentfootprint's mock.
pub(crate) struct LetterCountEmbedder(pub(crate) &'static str, pub(crate) usize);

impl Embedder for LetterCountEmbedder {
    fn id(&self) -> &str {
        self.0
    }
    fn threshold(&self) -> f32 {
        0.9
    }
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let vector = |text: &&str| {
            let mut vector = vec![0.0; self.1];
            text.encode_utf16().for_each(|unit| vector[usize::from(unit) % self.1] += 1.0);
            vector
        };
        Ok(texts.iter().map(vector).collect())
    }
}

#[test]
fn custom_embedder_id_length_and_threshold_are_enforced() {
    let memory = memory(&SimIo::new(8));
    let who = identity("t", "c");
    let mock = LetterCountEmbedder("mock", 32);
    let kept = memory.write_snapshot(&who, MONDAY, &mock, &SnapshotOptions::default()).unwrap();
    assert_eq!((kept.embedder.as_deref(), kept.embedding.as_ref().map(Vec::len)), (Some("mock"), Some(32)));
    assert_eq!(
        kept.member("embedding"),
        Some("[10,3,0,3,2,4,0,0,1,2,0,2,2,2,6,5,4,0,3,1,3,5,1,1,1,1,3,0,0,0,0,1]"),
        "the members match agentfootprint's"
    );
    let ask = |question: &str, with: &dyn Embedder| memory.recall(&who, question, with, &ACROSS);
    let query = "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.";
    let hits = ask(query, &mock).unwrap();
    assert_eq!((hits.len(), hits[0].score), (1, 1.0));
    assert!(ask("zzzz", &mock).unwrap().is_empty(), "below its own threshold");
    assert!(ask(" ", &mock).unwrap().is_empty());
    for (other, both) in [
        (&LetterCountEmbedder("other", 32) as &dyn Embedder, ["\"other\"", "\"mock\""]),
        (&WordEmbedder, ["\"annals-words-1\"", "\"mock\""]),
        (&LetterCountEmbedder("mock", 16), ["16 numbers", "32"]),
    ] {
        let refused = ask(query, other).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(both.iter().all(|name| refused.to_string().contains(name)), "{refused}");
    }
    memory.write_snapshot(&identity("t", "d"), MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    assert_eq!(names(&ask(query, &WordEmbedder).unwrap()), ["t/_/d/snap-1"]);
    let refused = memory.recall(&identity("t", "d"), query, &mock, &MemoryQuery::default()).unwrap_err();
    assert!(refused.to_string().contains("annals-words-1"), "{refused}");
}

#[test]
fn remember_embeds_query_or_texts_and_keeps_given_vector() {
    let memory = memory(&SimIo::new(9));
    let who = identity("t", "c");
    let kept = memory
        .remember(&who, r#"{"id":"fact","value":{"city":["Lisbon",{"river":"Tejo"}],"n":7}}"#, &WordEmbedder)
        .unwrap();
    assert_eq!(kept.embedder.as_deref(), Some(WordEmbedder.id()));
    assert_eq!(ask(&memory, &who, "Which river flows through Lisbon?"), ["t/_/c/fact"]);
    let own = r#"{"id":"own","value":"x","embedding":[1,0.5],"embeddingModel":"e"}"#;
    assert_eq!(memory.remember(&who, own, &WordEmbedder).unwrap().to_json(), own);
    let empty = memory
        .remember(&who, r#"{"id":"empty","value":[true,null]}"#, &LetterCountEmbedder("mock", 8))
        .unwrap();
    assert_eq!((empty.embedding, empty.embedder), (None, None));
    // A query of common words has no vector, yet its entry is found by its other texts.
    let vague = snapshot("Where is it?", "In Kathmandu.");
    let kept = memory.write_snapshot(&who, &vague, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    assert_eq!((kept.embedding, kept.embedder.as_deref()), (None, Some(WordEmbedder.id())));
    assert_eq!(ask(&memory, &who, "Kathmandu"), ["t/_/c/snap-1"]);
}

#[test]
fn prompt_text_picks_largest_projection_that_fits() {
    let memory = memory(&SimIo::new(10));
    let who = identity("t", "c");
    for id in ["a", "b"] {
        memory.remember(&who, &entry(id, ""), &WordEmbedder).unwrap();
    }
    let hits = memory.recall(&who, "#42", &WordEmbedder, &MemoryQuery { k: 2, ..ACROSS }).unwrap();
    assert_eq!(names(&hits), ["t/_/c/a", "t/_/c/b"]);
    assert_eq!(hits[0].decided_at(), None, "it has no creation time");
    let one = |projection| render(MONDAY, projection, hits[0].score).unwrap();
    let all = Projection::ALL.map(one);
    let sizes = all.clone().map(|text| text.encode_utf16().count());
    let [decisions, commits, narrative, full] = sizes;
    assert!(commits < narrative && narrative < decisions && decisions < full, "{sizes:?}");
    assert_eq!(prompt_text(&hits, Some(Projection::Commits), None), format!("{}\n\n{}", all[1], all[1]));
    let with = |units: usize| prompt_text(&hits, None, Some(units / 4));
    let tokens = |units: usize| units.div_ceil(4) * 4;
    let both = |size: usize| tokens(2 * size + 2);
    assert_eq!(with(both(full)), format!("{}\n\n{}", all[3], all[3]));
    assert_eq!(with(both(full) - 4), format!("{}\n\n{}", all[0], all[0]));
    let twice = |text: &str| format!("{text}\n\n{text}");
    assert_eq!(with(both(decisions) - 4), twice(&all[2]), "two short hits are preferred to one long hit");
    assert_eq!(with(both(commits) - 4), all[2], "only one hit fits, in a longer projection");
    assert_eq!(with(tokens(commits)), all[1]);
    assert_eq!(with(tokens(commits) - 4), "", "nothing is cut");
    // A query for the narrative got the full projection, because that fitted.
    let asked = |units: usize| prompt_text(&hits, Some(Projection::Narrative), Some(units / 4));
    assert_eq!(asked(both(full)), twice(&all[2]));
    assert_eq!(asked(both(narrative) - 4), twice(&all[1]));
    assert_eq!(prompt_text(&[], Some(Projection::Full), None), "");
}

/// Arbitrary JSON of any depth.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        "[ -~\u{e9}\u{4e2d}\u{1f600}]{0,12}".prop_map(|text| serde_json::Value::from(text).to_string()),
        Just("\"\\ud800\\u0000\\/\"".to_owned()),
    ];
    leaf.prop_recursive(6, 48, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::vec(("[a-z0-9]{0,3}", inner), 0..4).prop_map(|members| {
                let members: Vec<String> =
                    members.into_iter().map(|(name, value)| format!("\"{name}\" :{value}")).collect();
                format!("{{{}\t}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn evidence_is_kept_byte_for_byte_at_any_depth(evidence in json(), deep in prop_oneof![3 => 0usize..50, 1 => 5_000usize..20_000]) {
        let evidence = format!("{}{evidence}{}", "[".repeat(deep), "]".repeat(deep));
        let snapshot = format!("{{\"query\":\"loan #42\",\"finalContent\":\"f\",\"decisions\":[{{\"stageId\":\"s\",\"chosen\":\"c\",\"evidence\":{evidence}}}]}}");
        let memory = memory(&SimIo::new(11));
        let who = identity("t", "c");
        memory.write_snapshot(&who, &snapshot, &WordEmbedder, &SnapshotOptions::default()).unwrap();
        let hits = memory.recall(&who, "loan #42", &WordEmbedder, &ACROSS).unwrap();
        prop_assert_eq!(hits[0].entry.value(), &snapshot);
        prop_assert!(!prompt_text(&hits, Some(Projection::Full), None).is_empty());
        let full = render(&snapshot, Projection::Full, 1.0).unwrap();
        let (_, again) = full.split_once('\n').unwrap();
        prop_assert_eq!(&render(again, Projection::Full, 1.0).unwrap(), &full);
        prop_assert!(full.len() < (1 << 26), "indentation grows with the square of the depth: {}", full.len());
    }

    /// Equal entries give equal scores, however they were stored and whatever was stored in between.
    #[test]
    fn scores_depend_only_on_stored_entries(
        texts in prop::collection::vec("[a-f]{1,6}( [a-f]{1,6}){0,5}", 1..8),
        question in "[a-f]{1,6}( [a-f]{1,6}){0,3}",
        seed in any::<u64>(),
    ) {
        let all = MemoryQuery { k: 0, min_score: Some(0.0), ..ACROSS };
        let tell = |order: &mut dyn Iterator<Item = usize>| {
            let memory = memory(&SimIo::new(12));
            let who = identity("t", "gone");
            memory.write_snapshot(&who, &snapshot("abc", "def"), &WordEmbedder, &SnapshotOptions::default()).unwrap();
            for n in order {
                let entry = format!("{{\"id\":\"e{n}\",\"value\":{}}}", snapshot(&texts[n], "x"));
                memory.remember(&identity("t", "c"), &entry, &WordEmbedder).unwrap();
            }
            memory.forget(&who).unwrap();
            let hits = memory.recall(&who, &question, &WordEmbedder, &all).unwrap();
            hits.into_iter().map(|hit| (hit.entry.to_json(), hit.score.to_bits())).collect::<Vec<_>>()
        };
        let turned = (seed % texts.len() as u64) as usize;
        let one = tell(&mut (0..texts.len()));
        prop_assert_eq!(&one, &tell(&mut (0..texts.len()).rev()));
        prop_assert_eq!(&one, &tell(&mut (turned..texts.len()).chain(0..turned)));
    }
}

/// A deeply nested snapshot stays on one line: indentation grows with the square of the depth.
#[test]
fn deep_snapshot_renders_without_indentation_blow_up() {
    let deep = (1 << 20) - 3;
    let snapshot = format!("{{\"query\":\"q\",\"finalContent\":{}1{}}}", "[".repeat(deep), "]".repeat(deep));
    let full = render(&snapshot, Projection::Full, 1.0).unwrap();
    assert!(full.ends_with(&snapshot), "as it came");
    let some = format!("{{\"query\":\"q\",\"finalContent\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    assert!(render(&some, Projection::Full, 1.0).unwrap().contains(&format!("\n{}1\n", "  ".repeat(101))));
}

/// Golden values: another machine, compiler or accidental change must not move them.
#[test]
fn vectors_and_scores_match_golden_values() {
    let vector = WordEmbedder.embed(&["Why was application #42 rejected? \u{c9}t\u{e9}!"]).unwrap().remove(0);
    let places: Vec<(usize, f32)> =
        vector.iter().copied().enumerate().filter(|(_, number)| *number != 0.0).collect();
    let memory = memory(&SimIo::new(13));
    memory.write_snapshot(&identity("t", "c"), MONDAY, &WordEmbedder, &SnapshotOptions::default()).unwrap();
    let all = MemoryQuery { min_score: Some(0.0), ..ACROSS };
    let score = |question: &str| {
        memory.recall(&identity("t", "c"), question, &WordEmbedder, &all).unwrap()[0].score.to_bits()
    };
    let scores = ["Which credit score was below the floor?", "applicants rejection", "Loan #42"].map(score);
    assert_eq!(vector.len(), 256);
    let words = [158, 162, 218, 229];
    assert_eq!(
        places.iter().filter(|(_, count)| *count == 4.0).map(|(at, _)| *at).collect::<Vec<_>>(),
        words
    );
    let grams = [7, 19, 56, 61, 62, 72, 120, 127, 138, 163, 174, 178, 182, 209, 216, 227, 248];
    assert_eq!(
        places.iter().filter(|(_, count)| *count == 1.0).map(|(at, _)| *at).collect::<Vec<_>>(),
        grams
    );
    assert_eq!(scores, [1_062_159_849, 1_053_323_952, 1_065_353_216]);
}
