//! The inverted index gives the answers of a scan of all cards, score by score, through removals, replacements,
//! expiry, restarts, merges, rebuilding and damage.

use annals::io::sim::SimIo;
use annals::{Namespace, RunSpec, Status, Store, kv::ScanRange};
use annals_memory::{Identity, Memory, MemoryHit, MemoryQuery, WordEmbedder};

use crate::memory::{identity, opened};

/// A linear congruential generator: the same choices for a seed on every machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// Few words, so that entries share many, and words whose n-grams are alike.
const WORDS: [&str; 24] = [
    "refund",
    "refunds",
    "rejected",
    "declined",
    "approved",
    "approval",
    "Elena",
    "Petrova",
    "loan",
    "mortgage",
    "mortgages",
    "flight",
    "delayed",
    "delay",
    "money",
    "school",
    "escalated",
    "invoice",
    "invoicing",
    "today",
    "why",
    "was",
    "application",
    "creditScore",
];
const IDENTIFIERS: [&str; 6] = ["#42", "#43", "app-42", "HAT136", "mia@example.com", "1234567"];

fn text(choices: &mut Choices, words: usize) -> String {
    let mut text = Vec::new();
    for _ in 0..=choices.below(words) {
        text.push(if choices.below(6) == 0 { choices.one(&IDENTIFIERS) } else { choices.one(&WORDS) });
    }
    text.join(" ")
}

fn entry(choices: &mut Choices, id: &str, now_ms: u64) -> String {
    let (query, answer, tool) = (text(choices, 6), text(choices, 6), text(choices, 4));
    let mut more = String::new();
    if choices.below(4) == 0 {
        more += &format!(",\"ttl\":{}", now_ms + choices.below(40) as u64 * 1000);
    }
    if choices.below(3) == 0 {
        more += &format!(",\"tier\":\"{}\"", choices.one(&["hot", "warm", "cold"]));
    }
    if choices.below(5) == 0 {
        more += &format!(",\"metadata\":{{\"derivedFrom\":\"e{}\"}}", choices.below(40));
    }
    format!(
        "{{\"id\":\"{id}\",\"value\":{{\"query\":\"{query}\",\"finalContent\":\"{answer}\",\"toolCalls\":[{{\"args\":\"{tool}\"}}]}}{more}}}"
    )
}

fn whose(choices: &mut Choices) -> Identity {
    identity(choices.one(&["t", "u"]), choices.one(&["a", "b", "c"]))
}

fn told(hits: &[MemoryHit]) -> Vec<(String, String, u32)> {
    hits.iter().map(|hit| (hit.identity.clone(), hit.entry.id.clone(), hit.score.to_bits())).collect()
}

/// Asks through the index and by a scan. Returns the number of hits.
fn compare(memory: &Memory, choices: &mut Choices, story: &str) -> usize {
    let question = format!("{}?", text(choices, 5));
    let who = whose(choices);
    let tiers: Vec<String> = if choices.below(4) == 0 { vec!["hot".to_owned()] } else { Vec::new() };
    let min_score = [None, None, Some(0.0), Some(0.3), Some(0.6)][choices.below(5)];
    let wanted = MemoryQuery {
        k: [1, 3, 30, 200][choices.below(4)],
        min_score,
        tiers: &tiers,
        across_conversations: choices.below(3) > 0,
        ..MemoryQuery::default()
    };
    let found = memory.recall(&who, &question, &WordEmbedder, &wanted).unwrap();
    let scanned = memory.recall_scanning(&who, &question, &wanted).unwrap();
    assert_eq!(told(&found), told(&scanned), "{story}: {question:?} of {} {wanted:?}", who.name());
    found.len()
}

fn keys(space: &Namespace, keyspace: &str) -> usize {
    space.find_keyspace(keyspace).unwrap().map_or(0, |found| found.scan(ScanRange::all()).keys().count())
}

const PARTS: &str = "annals.memory.words.parts";
const POSTINGS: &str = "annals.memory.words.postings";

fn random_story(seed: u64, steps: usize) {
    let mut choices = Choices(seed);
    let sim = SimIo::new(seed);
    let mut now_ms = 1_700_000_000_000u64;
    sim.set_now_ns(now_ms * 1_000_000);
    let mut store = opened(&sim);
    let mut space = store.namespace("n").unwrap();
    let mut memory = Memory::open(&space).unwrap().with_tail_max(8);
    let (mut hits, mut runs) = (0, 0);
    for step in 0..steps {
        let story = format!("seed {seed}, step {step}: repeat with `random_story({seed}, {})`", step + 1);
        let who = whose(&mut choices);
        let id = format!("e{}", choices.below(40));
        match choices.below(16) {
            0..=7 => {
                let entry = entry(&mut choices, &id, now_ms);
                memory.remember(&who, &entry, &WordEmbedder).unwrap();
            }
            8 => {
                let many: Vec<String> = (0..choices.below(30))
                    .map(|_| {
                        let id = format!("e{}", choices.below(40));
                        entry(&mut choices, &id, now_ms)
                    })
                    .collect();
                let many: Vec<&str> = many.iter().map(String::as_str).collect();
                let (_, waiting) = memory.submit_remember(&who, &many, &WordEmbedder).unwrap();
                // Some waits come after the next batch is queued.
                let other = entry(&mut choices, &id, now_ms);
                memory.remember(&who, &other, &WordEmbedder).unwrap();
                waiting.map(|waiting| waiting.wait().unwrap());
            }
            9..=10 => memory.delete(&who, &id).unwrap(),
            11 => {
                // The same id without a card.
                memory.put(&who, &format!("{{\"id\":\"{id}\",\"value\":1,\"embedding\":[1,0]}}")).unwrap();
            }
            12 => {
                runs += 1;
                let name = format!("r{runs}");
                let run = space.begin_run(RunSpec::new(&*name)).unwrap();
                let uid = run.end(Status::Ok).unwrap().uid;
                let entry = entry(&mut choices, &id, now_ms);
                memory.remember_for_run(uid, &who, &[entry], &WordEmbedder).unwrap();
                if choices.below(2) == 0 {
                    memory.put(&who, &crate::word_index::entry(&mut choices, &id, now_ms)).unwrap();
                }
            }
            13 if runs > 0 => {
                // Forgets a run and its entries; a run may be gone already.
                let _gone = space.forget(&format!("r{}", 1 + choices.below(runs)), "asked for");
            }
            14 => {
                now_ms += choices.below(20) as u64 * 1000;
                sim.set_now_ns(now_ms * 1_000_000);
                if choices.below(10) == 0 {
                    memory.forget(&who).unwrap();
                }
            }
            _ if choices.below(4) == 0 => {
                drop((memory, space));
                store.close().unwrap();
                store = opened(&sim);
                space = store.namespace("n").unwrap();
                memory = Memory::open(&space).unwrap().with_tail_max(8);
            }
            _ => {}
        }
        for _ in 0..2 {
            hits += compare(&memory, &mut choices, &story);
        }
    }
    assert!(hits > steps / 4, "{hits} hits: the questions find too little to show anything");
    assert!(keys(&space, POSTINGS) > 0, "no part was written");
    drop(store);
}

#[test]
fn index_answers_as_a_scan_over_random_stories() {
    for seed in 1..=6 {
        random_story(seed, 220);
    }
}

/// Entries of 24,576 in one part, merges of parts that are full, and questions that all of them answer.
#[test]
fn full_parts_answer_as_a_scan() {
    let mut choices = Choices(99);
    let sim = SimIo::new(9);
    let store = opened(&sim);
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap();
    let who = identity("t", "a");
    for block in 0..40 {
        let many: Vec<String> =
            (0..100).map(|n| entry(&mut choices, &format!("x{block}-{n}"), 1_700_000_000_000)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (_, waiting) = memory.submit_remember(&who, &many, &WordEmbedder).unwrap();
        waiting.unwrap().wait().unwrap();
    }
    let hits: usize = (0..60).map(|_| compare(&memory, &mut choices, "full parts")).sum();
    assert!(hits > 200, "{hits}");
}

fn fill(store: &Store, count: usize) -> Memory {
    let memory = Memory::open(&store.namespace("n").unwrap()).unwrap().with_tail_max(8);
    let mut choices = Choices(7);
    for n in 0..count {
        let entry = entry(&mut choices, &format!("e{n}"), 1_700_000_000_000);
        memory.remember(&identity("t", "a"), &entry, &WordEmbedder).unwrap();
    }
    memory
}

/// A store of an older annals has cards without numbers. Its first write numbers them; until then, recalls read all cards.
#[test]
fn cards_without_index_are_numbered_by_the_next_write() {
    let sim = SimIo::new(3);
    let store = opened(&sim);
    let space = store.namespace("n").unwrap();
    fill(&store, 50);
    // As an older annals left it.
    let words = space.find_keyspace("annals.memory.words").unwrap().unwrap();
    for pair in words.scan(ScanRange::all()) {
        let (key, mut card) = pair.unwrap();
        card.truncate(card.len() - 24);
        card[0] = 1;
        words.put(&key, card).unwrap();
    }
    for name in [PARTS, POSTINGS, "annals.memory.words.numbers", "annals.memory.words.removed"] {
        let keyspace = space.find_keyspace(name).unwrap().unwrap();
        for key in keyspace.scan(ScanRange::all()).keys() {
            keyspace.delete(&key.unwrap()).unwrap();
        }
    }
    drop((words, space));
    store.close().unwrap();
    let store = opened(&sim);
    let space = store.namespace("n").unwrap();
    let memory = Memory::open(&space).unwrap().with_tail_max(8);
    let mut choices = Choices(5);
    (0..20).for_each(|_| {
        compare(&memory, &mut choices, "before the write");
    });
    assert_eq!(keys(&space, PARTS), 0);
    memory.remember(&identity("t", "a"), &entry(&mut choices, "new", 0), &WordEmbedder).unwrap();
    assert_eq!(keys(&space, PARTS), 1);
    assert!(keys(&space, POSTINGS) > 0);
    let hits: usize = (0..40).map(|_| compare(&memory, &mut choices, "after the write")).sum();
    assert!(hits > 10, "{hits}");
}

/// A lost or senseless key of the index is not a lost memory.
#[test]
fn damaged_index_is_scanned_and_rebuilt() {
    for (keyspace, value) in [(POSTINGS, None), (POSTINGS, Some("x")), (PARTS, Some("x"))] {
        let sim = SimIo::new(4);
        let store = opened(&sim);
        let space = store.namespace("n").unwrap();
        let memory = fill(&store, 60);
        let damaged = space.find_keyspace(keyspace).unwrap().unwrap();
        for key in damaged.scan(ScanRange::all()).keys() {
            match value {
                None => damaged.delete(&key.unwrap()).unwrap(),
                Some(value) => damaged.put(&key.unwrap(), value).unwrap(),
            };
        }
        // Not from what an earlier recall kept.
        let memory = {
            drop(memory);
            Memory::open(&space).unwrap().with_tail_max(8)
        };
        let mut choices = Choices(11);
        (0..20).for_each(|_| {
            compare(&memory, &mut choices, "damaged");
        });
        assert_eq!(keys(&space, PARTS), 0, "the damaged index is discarded");
        memory.remember(&identity("t", "a"), &entry(&mut choices, "new", 0), &WordEmbedder).unwrap();
        assert_eq!(keys(&space, PARTS), 1, "rebuilt");
        let hits: usize = (0..40).map(|_| compare(&memory, &mut choices, "rebuilt")).sum();
        assert!(hits > 10, "{hits}");
    }
}

/// Regression: a rebuild gave numbers of cards and parts out again under which an open memory had cached cards and
/// tables, so recalls of a running daemon took another entry's words. The ids run backwards, so that the rebuild meets
/// them in another order. Once all entries are removed, no key of the index has their numbers.
#[test]
fn rebuilt_index_answers_as_a_scan_in_an_open_memory() {
    for all_removed in [false, true] {
        let sim = SimIo::new(4);
        let store = opened(&sim);
        let space = store.namespace("n").unwrap();
        let memory = Memory::open(&space).unwrap().with_tail_max(8);
        let (who, mut choices) = (identity("t", "a"), Choices(7));
        let mut remember = |id: &str| {
            memory.remember(&who, &entry(&mut choices, id, 1_700_000_000_000_000), &WordEmbedder).unwrap();
        };
        let mut asked = Choices(11);
        let mut compare_all =
            |story: &str| (0..60).map(|_| compare(&memory, &mut asked, story)).sum::<usize>();
        (5..10).rev().for_each(|n| remember(&format!("e{n}")));
        assert!(compare_all("a tail") > 5);
        if all_removed {
            (2..5).rev().for_each(|n| remember(&format!("e{n}")));
            assert!(compare_all("a part") > 5);
            (2..10).for_each(|n| memory.delete(&who, &format!("e{n}")).unwrap());
            assert_eq!(keys(&space, "annals.memory.words.removed"), 0);
        }
        let list = space.find_keyspace(PARTS).unwrap().unwrap();
        for key in list.scan(ScanRange::all()).keys() {
            list.put(&key.unwrap(), "x").unwrap();
        }
        compare_all("damaged");
        assert_eq!(keys(&space, PARTS), 0, "the damaged index is discarded");
        (7..9).for_each(|n| remember(&format!("g{n}")));
        assert_eq!(keys(&space, PARTS), 1, "rebuilt");
        assert!(compare_all("a rebuilt tail") > 5);
        (0..7).for_each(|n| remember(&format!("g{n}")));
        assert!(keys(&space, POSTINGS) > 0);
        assert!(compare_all("a part after the rebuild") > 5);
    }
}

/// Writers whose batches share commits, and recalls beside them: nothing is lost, and the index is whole afterwards.
#[test]
fn concurrent_writers_keep_index_whole() {
    let (_dir, store, space) = crate::support::fresh();
    let memory = Memory::open(&space).unwrap().with_tail_max(8);
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let memory = &memory;
            scope.spawn(move || {
                let mut choices = Choices(writer);
                for n in 0..60 {
                    // Writers replace each other's entries, too.
                    let id = format!(
                        "e{}",
                        if n % 3 == 0 { choices.below(10) } else { 100 * (1 + writer as usize) + n }
                    );
                    let entry = entry(&mut choices, &id, 1_700_000_000_000_000);
                    memory.remember(&identity("t", "a"), &entry, &WordEmbedder).unwrap();
                    if n % 7 == 0 {
                        memory.delete(&identity("t", "a"), &format!("e{}", choices.below(10))).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut choices = Choices(77);
            for _ in 0..100 {
                let question = format!("{}?", text(&mut choices, 5));
                let wanted = MemoryQuery { across_conversations: true, ..MemoryQuery::default() };
                memory.recall(&identity("t", "z"), &question, &WordEmbedder, &wanted).unwrap();
            }
        });
    });
    assert_eq!(keys(&space, PARTS), 1, "no recall found damage");
    let cards = keys(&space, "annals.memory.words");
    assert!(cards >= 160, "{cards}");
    assert_eq!(keys(&space, "annals.memory.words.numbers"), cards, "each card has one number");
    let mut choices = Choices(5);
    let hits: usize = (0..60).map(|_| compare(&memory, &mut choices, "after concurrent writes")).sum();
    assert!(hits > 20, "{hits}");
    drop((memory, space));
    store.close().unwrap();
}
