//! The rules of agentfootprint's store, one test each, and its own example.

use annals::ErrorKind;
use annals::io::sim::SimIo;
use annals::kv::ScanRange;
use annals::retention::DeadlineKind;
use annals::{Options, Store};
use annals_memory::{Identity, Memory, MemoryEntry, MemoryQuery, Projection, render};

pub(crate) const MONDAY: &str = r#"{"query":"Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.","finalContent":"Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.","iterations":1,"decisions":[{"stageId":"classify-risk","chosen":"rejected","rule":"Marginal credit","evidence":{"creditScore":580,"threshold":600}},{"stageId":"pick-reason","chosen":"credit-too-low","rule":"Credit below floor","evidence":{"creditScore":580,"incomeAboveFloor":true}}],"toolCalls":[{"name":"lookupCreditBureau","args":{"applicationId":"42"},"resultPreview":"{ \"score\": 580, \"bureau\": \"experian\" }","errored":false}],"durationMs":1840,"tokenUsage":{"input":1200,"output":180}}"#;

/// A store with the simulated clock.
pub(crate) fn opened(sim: &SimIo) -> Store {
    Store::open_with("s", Options { io: std::sync::Arc::new(sim.clone()), ..Options::default() }).unwrap()
}

pub(crate) fn memory(sim: &SimIo) -> Memory {
    Memory::open(&opened(sim).namespace("n").unwrap()).unwrap()
}

pub(crate) fn identity(tenant: &str, conversation: &str) -> Identity {
    Identity { tenant: Some(tenant.into()), principal: None, conversation: Some(conversation.into()) }
}

pub(crate) fn entry(id: &str, more: &str) -> String {
    format!("{{\"id\":\"{id}\",\"value\":{MONDAY},\"version\":1{more}}}")
}

/// The sample holds the snapshot as its `full` form; all four projections must follow from it.
#[test]
fn projections_match_agentfootprint_output() {
    let sample = include_str!("../data/rendered_projections.json");
    let sample: serde_json::Value = serde_json::from_str(sample).unwrap();
    let mut compared = 0;
    for name in ["doc", "empty", "erroredNoRule"] {
        let content = |projection: &str| sample[name][projection][0]["content"].as_str().unwrap();
        let (_, snapshot) = content("full").split_once('\n').unwrap();
        for projection in Projection::ALL {
            let ours = render(snapshot, projection, 1.0).unwrap();
            assert_eq!(ours, content(projection.name()), "{name}, {}", projection.name());
            assert_eq!(Projection::from_name(projection.name()), Some(projection));
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}

#[test]
fn search_crosses_conversations_and_never_tenants() {
    let sim = SimIo::new(1);
    let store = opened(&sim);
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    memory
        .put(
            &identity("lending", "app-42"),
            &entry("snap-1", ",\"embedding\":[1,0,0.5],\"embeddingModel\":\"e\""),
        )
        .unwrap();
    store.close().unwrap();
    let memory = self::memory(&sim);
    let friday = identity("lending", "app-42-followup");
    let ask = |identity: &Identity, across| {
        memory
            .search(
                identity,
                &[0.9, 0.1, 0.5],
                &MemoryQuery {
                    k: 1,
                    across_conversations: across,
                    embedder: Some("e"),
                    ..MemoryQuery::default()
                },
            )
            .unwrap()
    };
    assert!(ask(&friday, false).is_empty(), "a search covers its own conversation by default");
    let hits = ask(&friday, true);
    assert_eq!(hits.len(), 1);
    assert_eq!((hits[0].entry.id.as_str(), hits[0].identity.as_str()), ("snap-1", "lending/_/app-42"));
    assert_eq!(hits[0].entry.value(), MONDAY, "byte for byte");
    let told = render(hits[0].entry.value(), Projection::default(), hits[0].score).unwrap();
    assert!(told.contains("- classify-risk \u{2192} \"rejected\" (rule: Marginal credit); evidence: {\"creditScore\":580,\"threshold\":600}"));
    for tenant in ["lendin", "lending2", "_", "", "%"] {
        assert!(ask(&identity(tenant, "app-42"), true).is_empty(), "{tenant}");
    }
    // A mismatch is an error that names both embedders, not an empty answer.
    let refused = memory
        .search(
            &friday,
            &[1.0, 0.0, 0.5],
            &MemoryQuery { across_conversations: true, embedder: Some("f"), ..MemoryQuery::default() },
        )
        .unwrap_err();
    assert!(refused.to_string().contains("\"f\"") && refused.to_string().contains("\"e\""), "{refused}");
}

#[test]
fn search_threshold_is_strict_and_ties_sort_by_id() {
    let memory = memory(&SimIo::new(2));
    let who = identity("t", "c");
    for (id, vector) in [("b", "[2,0]"), ("a", "[1,0]"), ("c", "[1,1]"), ("d", "[0,1]"), ("e", "[1,0,0]")] {
        memory.put(&who, &entry(id, &format!(",\"embedding\":{vector}"))).unwrap();
    }
    memory.put(&who, &entry("none", "")).unwrap();
    let ids = |min: f32, k| -> Vec<(String, f32)> {
        let wanted = MemoryQuery { k, min_score: Some(min), ..MemoryQuery::default() };
        let hits = memory.search(&who, &[5.0, 0.0], &wanted).unwrap();
        hits.into_iter().map(|hit| (hit.entry.id, hit.score)).collect()
    };
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let all =
        vec![("a".to_owned(), 1.0), ("b".to_owned(), 1.0), ("c".to_owned(), half), ("d".to_owned(), 0.0)];
    assert_eq!(ids(-1.0, 0), all);
    assert_eq!(ids(-1.0, 1), all[..1]);
    assert_eq!(ids(half, 0), all[..3], "equal passes");
    assert_eq!(ids(half.next_up(), 0), all[..2], "lower scores are excluded");
    assert_eq!(ids(1.0f32.next_up(), 0), [], "no hit, not even the best");
    assert_eq!(
        memory.search(&who, &[5.0, 0.0], &MemoryQuery::default()).unwrap().len(),
        3,
        "the default minimum is 0.7"
    );
    for vector in [&[f32::NAN, 0.0][..], &[f32::INFINITY, 0.0], &[0.0, 0.0], &[]] {
        assert_eq!(
            memory.search(&who, vector, &MemoryQuery::default()).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{vector:?}"
        );
    }
    let refused = memory.search(&who, &[1.0, f32::NAN], &MemoryQuery::default()).unwrap_err();
    assert!(refused.to_string().contains("number 2 of the vector is not finite"), "{refused}");
    for bad in ["[0,0]", "[1e39,0]", "[1e30,1e30]"] {
        let refused = memory.put(&who, &entry("bad", &format!(",\"embedding\":{bad}"))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad}");
    }
}

/// A follow-up is stored, too, and resembles the next question more than its source. agentfootprint's own
/// example found itself again.
#[test]
fn derived_entry_ranks_behind_its_source() {
    let memory = memory(&SimIo::new(3));
    let (monday, friday) = (identity("t", "app-42"), identity("t", "followup"));
    memory.put(&monday, &entry("snap-1", ",\"embedding\":[1,0.8]")).unwrap();
    memory
        .put(
            &friday,
            &entry("snap-1", ",\"embedding\":[0,1],\"metadata\":{\"derivedFrom\":\"t/_/app-42/snap-1\"}"),
        )
        .unwrap();
    // Another follow-up, with the first one as its source.
    memory
        .put(&friday, &entry("snap-2", ",\"embedding\":[0.01,1],\"metadata\":{\"derivedFrom\":[\"snap-1\"]}"))
        .unwrap();
    for (id, of) in [("ring-1", "ring-2"), ("ring-2", "ring-1"), ("ring-3", "ring-3")] {
        let more = format!(",\"embedding\":[1,0.55],\"metadata\":{{\"derivedFrom\":\"{of}\"}}");
        memory.put(&friday, &entry(id, &more)).unwrap();
    }
    memory.put(&friday, &entry("other", ",\"embedding\":[0.1,1]")).unwrap();
    let found = |min| -> Vec<String> {
        let wanted =
            MemoryQuery { across_conversations: true, min_score: Some(min), ..MemoryQuery::default() };
        let hits = memory.search(&friday, &[0.0, 1.0], &wanted).unwrap();
        hits.into_iter().map(|hit| format!("{}:{}", hit.identity, hit.entry.id)).collect()
    };
    let followup = |id: &str| format!("t/_/followup:{id}");
    let last = ["ring-1", "ring-2", "ring-3"].map(followup);
    let first = [followup("other"), "t/_/app-42:snap-1".to_owned(), followup("snap-1"), followup("snap-2")];
    assert_eq!(found(0.45), [&first[..], &last].concat());
    assert_eq!(
        found(0.9),
        [followup("snap-1"), followup("snap-2"), followup("other")],
        "its source does not pass the filter"
    );
}

#[test]
fn get_counts_access_and_changes_nothing_else() {
    let sim = SimIo::new(4);
    let memory = memory(&sim);
    let who = identity("t", "c");
    let text = entry("a", ",\"accessCount\":4,\"lastAccessedAt\":1,\"createdAt\":7,\"embedding\":[1]");
    memory.put(&who, &text).unwrap();
    assert_eq!(memory.get(&who, "a").unwrap().unwrap().member("accessCount"), Some("5"));
    let second = memory.get(&who, "a").unwrap().unwrap();
    assert_eq!((second.member("accessCount"), second.member("createdAt")), (Some("6"), Some("7")));
    assert_ne!(second.member("lastAccessedAt"), Some("1"));
    assert_eq!(second.value(), MONDAY);
    // Only a read by id counts as an access.
    memory.list(&who, None, None, &[]).unwrap();
    memory.search(&who, &[1.0], &MemoryQuery::default()).unwrap();
    assert_eq!(memory.get(&who, "a").unwrap().unwrap().member("accessCount"), Some("7"));
    memory.put(&who, &text).unwrap();
    assert_eq!(
        memory.get(&who, "a").unwrap().unwrap().member("accessCount"),
        Some("5"),
        "a new entry starts at 0"
    );
    assert!(memory.get(&who, "b").unwrap().is_none());
    assert!(memory.get(&identity("t", "d"), "a").unwrap().is_none());
}

#[test]
fn expired_entry_is_absent() {
    let memory = memory(&SimIo::new(5));
    let who = identity("t", "c");
    for (id, ttl) in [("past", "0"), ("now", "1"), ("later", "99999999999999"), ("never", "null")] {
        memory.put(&who, &entry(id, &format!(",\"ttl\":{ttl},\"embedding\":[1]"))).unwrap();
    }
    let there = |id: &str| memory.get(&who, id).unwrap().is_some();
    assert_eq!(["past", "now", "later", "never"].map(there), [false, false, true, true]);
    assert_eq!(memory.list(&who, None, None, &[]).unwrap().0.len(), 2);
    assert_eq!(memory.search(&who, &[1.0], &MemoryQuery::default()).unwrap().len(), 2);
    assert!(memory.put_if_version(&who, &entry("past", ""), 0).unwrap().applied, "it counts as absent");
}

#[test]
fn entry_expires_at_the_millisecond_of_its_ttl() {
    let until = |ttl: &str| MemoryEntry::parse(&entry("a", &format!(",\"ttl\":{ttl}"))).unwrap();
    assert_eq!([999, 1000, 1001].map(|now| until("1000").is_expired(now)), [false, true, true]);
    assert!(until("0").is_expired(0) && until("0").is_expired(1), "0 is a time in the past");
    assert!(!until("null").is_expired(i64::MAX), "an entry without ttl stays");
    // An expired entry is absent everywhere: it is not read, compared by version or counted by `forget`.
    let memory = memory(&SimIo::new(15));
    let who = identity("t", "c");
    memory.put(&who, "{\"id\":\"a\",\"value\":1,\"version\":6,\"ttl\":1}").unwrap();
    let over = memory.put_if_version(&who, &entry("a", ""), 6).unwrap();
    assert_eq!((over.applied, over.current), (false, None), "no current version is returned");
}

/// Expired entries were only hidden until somebody swept with a policy, and each sweep read every entry. The index of
/// deadlines points to them. It is a hint: an entry that was replaced by one that ends later stays.
#[test]
fn due_entries_are_deleted_by_the_index_of_deadlines() {
    let store = opened(&SimIo::new(31));
    let space = store.namespace("n").unwrap();
    let memory = Memory::open(&space).unwrap();
    let who = Identity::default();
    let put = |id: &str, ttl: &str| {
        memory.put(&who, &entry(id, &format!(",\"ttl\":{ttl},\"embedding\":[1]"))).unwrap();
    };
    for (id, ttl) in
        [("past", "5"), ("moved", "5"), ("kept", "5"), ("later", "90"), ("never", "null"), ("old", "-7")]
    {
        put(id, ttl);
    }
    put("moved", "80");
    put("kept", "null");
    memory.delete(&who, "past").unwrap();
    put("past", "6");
    let entries = space.find_keyspace("annals.memory").unwrap().unwrap();
    let stored = || entries.scan(ScanRange::all()).keys().count();
    let indexed = || {
        let index = space.find_deadlines().unwrap().unwrap();
        index.due(DeadlineKind::Memory, u64::MAX, None, 100).unwrap().len()
    };
    assert_eq!((stored(), indexed()), (6, 7));
    assert_eq!(memory.delete_due(4, 100).unwrap(), (1, false));
    assert_eq!((stored(), indexed()), (5, 6));
    // Two entries that point to nothing that is over, and two that point to one that is.
    assert_eq!(memory.delete_due(6, 2).unwrap(), (0, true));
    assert_eq!(memory.delete_due(6, 2).unwrap(), (1, true));
    assert_eq!(memory.delete_due(6, 2).unwrap(), (0, false));
    assert_eq!((stored(), indexed()), (4, 2));
    assert!(!space.has_due(DeadlineKind::Memory, 79).unwrap());
    // Forgetting an identity leaves nothing with its name.
    assert_eq!(memory.forget(&who).unwrap(), 4);
    assert_eq!((stored(), indexed()), (0, 0));
}

#[test]
fn tier_filter_applies_to_list_and_search() {
    let memory = memory(&SimIo::new(16));
    let who = identity("t", "c");
    for (id, tier) in
        [("h", ",\"tier\":\"hot\""), ("w", ",\"tier\":\"warm\""), ("c", ",\"tier\":\"cold\""), ("n", "")]
    {
        memory.put(&who, &entry(id, &format!("{tier},\"embedding\":[1]"))).unwrap();
    }
    let of = |tiers: &[&str]| -> [Vec<String>; 2] {
        let tiers: Vec<String> = tiers.iter().map(|tier| (*tier).to_owned()).collect();
        let found =
            memory.search(&who, &[1.0], &MemoryQuery { tiers: &tiers, ..MemoryQuery::default() }).unwrap();
        let listed = memory.list(&who, None, None, &tiers).unwrap().0;
        let sorted = |mut ids: Vec<String>| {
            ids.sort();
            ids
        };
        [
            sorted(found.into_iter().map(|hit| hit.entry.id).collect()),
            sorted(listed.into_iter().map(|entry| entry.id).collect()),
        ]
    };
    for (tiers, ids) in [
        (&[][..], &["c", "h", "n", "w"][..]),
        (&["hot"], &["h"]),
        (&["cold", "warm"], &["c", "w"]),
        (&["lukewarm"], &[]),
    ] {
        assert_eq!(of(tiers), [ids, ids], "{tiers:?}");
    }
    let refused = memory.put(&who, &entry("x", ",\"tier\":\"lukewarm\"")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// Search ranks by vectors alone: the causal memory of agentfootprint refuses to rank by age.
#[test]
fn decay_policy_is_kept_and_does_not_change_ranking() {
    let memory = memory(&SimIo::new(17));
    let who = identity("t", "c");
    let policy = ",\"decayPolicy\":{\"halfLifeMs\":1000,\"accessBoost\":1.5},\"lastAccessedAt\":1";
    memory.put(&who, &entry("old", &format!("{policy},\"embedding\":[1,0]"))).unwrap();
    memory.put(&who, &entry("new", ",\"embedding\":[1,0.1]")).unwrap();
    let hits = memory.search(&who, &[1.0, 0.0], &MemoryQuery::default()).unwrap();
    assert_eq!((hits[0].entry.id.as_str(), hits[0].score), ("old", 1.0));
}

#[test]
fn put_many_last_of_an_id_wins_and_invalid_refuses_all() {
    let memory = memory(&SimIo::new(18));
    let who = identity("t", "c");
    let (one, two) = ("{\"id\":\"a\",\"value\":1}", "{\"id\":\"a\",\"value\":2}");
    memory.put_many(&who, &[one, two]).unwrap();
    assert_eq!(memory.get(&who, "a").unwrap().unwrap().value(), "2");
    assert!(memory.put_many(&who, &[one, "{}"]).is_err());
    assert_eq!(memory.get(&who, "a").unwrap().unwrap().value(), "2");
}

#[test]
fn signature_belongs_to_one_identity_and_may_repeat() {
    let memory = memory(&SimIo::new(19));
    let (who, other) = (identity("t", "c"), identity("t", "d"));
    for _ in 0..2 {
        memory.record_signature(&who, "a b/\u{e9}").unwrap();
    }
    let seen = |who: &Identity, signature: &str| memory.has_signature(who, signature).unwrap();
    assert!(seen(&who, "a b/\u{e9}") && !seen(&who, "a b/") && !seen(&other, "a b/\u{e9}"));
    memory.forget(&other).unwrap();
    assert!(seen(&who, "a b/\u{e9}"), "forgetting another conversation does not affect it");
    memory.forget(&who).unwrap();
    assert!(!seen(&who, "a b/\u{e9}"));
}

/// Each JSON value takes many times the memory of its text: 10 MB of brackets once took 1.8 GB to parse.
#[test]
fn value_with_too_many_json_values_is_refused() {
    let memory = memory(&SimIo::new(20));
    let who = identity("t", "c");
    let most = 1 << 20;
    let nested =
        |depth: usize| format!("{{\"id\":\"a\",\"value\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    let flat = |count: usize| format!("{{\"id\":\"a\",\"value\":[{}\"[,{{\\\"[\"]}}", "0,".repeat(count));
    for fits in [nested(most - 1), flat(most - 3)] {
        memory.put(&who, &fits).unwrap();
        memory.remember(&who, &fits, &annals_memory::WordEmbedder).unwrap();
    }
    for over in [nested(most), flat(most)] {
        let refused = memory.put(&who, &over).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("at most 1048576 values"), "{refused}");
        assert!(memory.remember(&who, &over, &annals_memory::WordEmbedder).is_err());
        assert!(memory.put_if_version(&who, &over, 1).is_err());
    }
}

#[test]
fn put_if_version_writes_only_over_expected_version() {
    let memory = memory(&SimIo::new(6));
    let who = identity("t", "c");
    // A member called `version` inside the value once misled a store that searched for the word.
    let with = |version: u64| format!("{{\"value\":{{\"version\":3}},\"id\":\"a\",\"version\":{version}}}");
    let set = |version, expected| {
        let done = memory.put_if_version(&who, &with(version), expected).unwrap();
        (done.applied, done.current)
    };
    assert_eq!(set(1, 1), (false, None), "there is none");
    assert_eq!(set(7, 0), (true, None));
    assert_eq!(set(8, 0), (false, Some(7)));
    assert_eq!(set(8, 3), (false, Some(7)));
    assert_eq!(set(8, 7), (true, None));
    assert_eq!(memory.get(&who, "a").unwrap().unwrap().version, 8);
}

#[test]
fn concurrent_put_if_version_lets_one_writer_win() {
    let store = opened(&SimIo::new(7));
    let who = identity("t", "c");
    // Each thread has a handle of its own: the lock once belonged to the handle.
    let door = || Memory::open(&store.namespace("n").unwrap()).unwrap();
    door().put(&who, &entry("a", "")).unwrap();
    let applied: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    door()
                        .put_if_version(&who, "{\"id\":\"a\",\"value\":1,\"version\":2}", 1)
                        .unwrap()
                        .applied
                })
            })
            .collect();
        tries.into_iter().map(|one| usize::from(one.join().unwrap())).sum()
    });
    assert_eq!(applied, 1);
}

/// A thousand entries can have 64 MiB each: a page must end before it holds them all.
#[test]
fn list_page_is_bounded_in_bytes_and_continues() {
    let memory = memory(&SimIo::new(9));
    let who = identity("t", "c");
    let long = "x".repeat(33 << 20);
    for id in ["a", "b", "c"] {
        memory.put(&who, &format!("{{\"id\":\"{id}\",\"value\":\"{long}\"}}")).unwrap();
    }
    let page = |cursor: Option<&str>| -> (Vec<String>, Option<String>) {
        let (entries, next) = memory.list(&who, cursor, None, &[]).unwrap();
        (entries.into_iter().map(|entry| entry.id).collect(), next)
    };
    assert_eq!(page(None), (vec!["a".to_owned(), "b".to_owned()], Some("2".to_owned())));
    assert_eq!(page(Some("2")), (vec!["c".to_owned()], None));
}

#[test]
fn list_is_ordered_by_last_change_and_paged() {
    let memory = memory(&SimIo::new(8));
    let who = identity("t", "c");
    let texts: Vec<String> = (0..250)
        .map(|n| {
            entry(
                &format!("e{n:03}"),
                &format!(",\"updatedAt\":{},\"tier\":\"{}\"", n / 2, if n % 5 == 0 { "hot" } else { "cold" }),
            )
        })
        .collect();
    memory.put_many(&who, &texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    memory.put_many(&who, &[]).unwrap();
    let (first, next) = memory.list(&who, None, None, &[]).unwrap();
    assert_eq!(
        (first.len(), first[0].id.as_str(), first[1].id.as_str(), next.as_deref()),
        (100, "e248", "e249", Some("100"))
    );
    let (rest, next) = memory.list(&who, Some("200"), Some(5000), &[]).unwrap();
    assert_eq!((rest.len(), rest[49].id.as_str(), next), (50, "e001", None));
    assert_eq!(
        memory.list(&who, Some("nonsense"), Some(1), &[]).unwrap().0[0].id,
        "e248",
        "a malformed cursor counts as 0"
    );
    assert_eq!(memory.list(&who, None, Some(1000), &["hot".into()]).unwrap().0.len(), 50);
    assert!(memory.list(&who, Some("900"), None, &[]).unwrap().0.is_empty());
}

#[test]
fn feedback_is_averaged_and_deleted_with_its_entry() {
    let memory = memory(&SimIo::new(9));
    let who = identity("t", "c");
    memory.put(&who, &entry("a", "")).unwrap();
    assert_eq!(memory.feedback(&who, "a").unwrap(), None);
    for usefulness in [0.5, 7.0, f64::NAN, f64::INFINITY, -1.0] {
        memory.rate(&who, "a", usefulness).unwrap();
    }
    let said = memory.feedback(&who, "a").unwrap().unwrap();
    assert_eq!((said.count, said.average()), (3, 0.5 / 3.0));
    memory.record_signature(&who, "s").unwrap();
    memory.delete(&who, "a").unwrap();
    memory.delete(&who, "a").unwrap();
    assert!(memory.get(&who, "a").unwrap().is_none() && memory.feedback(&who, "a").unwrap().is_none());
    assert!(memory.has_signature(&who, "s").unwrap() && !memory.has_signature(&who, "r").unwrap());
    memory.put(&who, &entry("b", "")).unwrap();
    memory.put(&identity("t", "c2"), &entry("b", "")).unwrap();
    assert_eq!(memory.forget(&who).unwrap(), 1);
    assert!(memory.get(&who, "b").unwrap().is_none() && !memory.has_signature(&who, "s").unwrap());
    assert!(memory.get(&identity("t", "c2"), "b").unwrap().is_some(), "another conversation's stays");
}
