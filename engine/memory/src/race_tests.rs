//! Races that no schedule of threads shows reliably: a test acts at a [`RacePoint`], where another thread could.

use std::cell::RefCell;

use annals::io::sim::SimIo;
use annals::{Namespace, Options, RunSpec, Status, Store, kv::ScanRange};

use crate::operations::entry_key;
use crate::{Identity, Memory, MemoryHit, MemoryQuery, RacePoint, WordEmbedder};

type PlannedAction = Option<(RacePoint, Box<dyn FnOnce()>)>;

thread_local! {
    static PLANNED: RefCell<PlannedAction> = const { RefCell::new(None) };
}

/// Runs the planned action once, if it is planned for this point.
pub(crate) fn reach(point: RacePoint) {
    let due = PLANNED.with_borrow_mut(|planned| planned.take_if(|(at, _)| *at == point));
    if let Some((_, act)) = due {
        act();
    }
}

fn plan(point: RacePoint, act: impl FnOnce() + 'static) {
    PLANNED.set(Some((point, Box::new(act))));
}

fn assert_acted() {
    assert!(PLANNED.take().is_none(), "the point was not reached");
}

fn opened(sim: &SimIo) -> (Store, Namespace, Memory) {
    let options = Options { io: std::sync::Arc::new(sim.clone()), ..Options::default() };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("n").unwrap();
    let memory = Memory::open(&space).unwrap().with_tail_max(4);
    (store, space, memory)
}

fn whose() -> Identity {
    Identity { conversation: Some("c".to_owned()), ..Identity::default() }
}

fn entry(id: &str, query: &str) -> String {
    format!(r#"{{"id":"{id}","value":{{"query":"{query}"}}}}"#)
}

/// A run with one memory, both of this name.
fn remember_run(space: &Namespace, memory: &Memory, name: &str) {
    let run = space.begin_run(RunSpec::new(name)).unwrap().end(Status::Ok).unwrap();
    let entries = [entry(name, &format!("why was loan {name} of Elena refused"))];
    memory.remember_for_run(run.uid, &whose(), &entries, &WordEmbedder).unwrap();
}

fn assert_recall_equals_scan(memory: &Memory) -> usize {
    let wanted = MemoryQuery { k: 100, min_score: Some(0.0), ..MemoryQuery::default() };
    let told = |hits: Vec<MemoryHit>| -> Vec<(String, u32)> {
        hits.into_iter().map(|hit| (hit.entry.id, hit.score.to_bits())).collect()
    };
    let mut found = 0;
    for question in ["loan a", "loan b", "loan c", "why was Elena refused"] {
        let hits = told(memory.recall(&whose(), question, &WordEmbedder, &wanted).unwrap());
        assert_eq!(hits, told(memory.recall_scanning(&whose(), question, &wanted).unwrap()), "{question}");
        found += hits.len();
    }
    found
}

fn keys(space: &Namespace, keyspace: &str) -> Vec<Vec<u8>> {
    let found = space.find_keyspace(keyspace).unwrap().unwrap();
    found.scan(ScanRange::all()).keys().map(Result::unwrap).collect()
}

/// Regression: a part was made of cards read before a run was dropped, and the list of removed numbers was read
/// afterwards and emptied. The dropped card stood in the part, and nothing said that it was gone.
#[test]
fn run_dropped_while_part_is_written_stays_removed() {
    let sim = SimIo::new(1);
    let (_store, space, memory) = opened(&sim);
    for name in ["a", "b", "c"] {
        remember_run(&space, &memory, name);
    }
    let dropping = space.clone();
    plan(RacePoint::TailRead, move || drop(dropping.drop_run("b", "r", "").unwrap()));
    memory.remember(&whose(), &entry("d", "loan d"), &WordEmbedder).unwrap();
    assert_acted();
    assert_eq!(keys(&space, "annals.memory.words.removed").len(), 1, "the part has the dropped card");
    assert!(assert_recall_equals_scan(&memory) > 4);
}

/// Regression: rebuilding the index put back cards that it had read before their run was dropped.
#[test]
fn run_dropped_while_index_is_rebuilt_stays_dropped() {
    let sim = SimIo::new(1);
    let (_store, space, memory) = opened(&sim);
    for name in ["a", "b", "c"] {
        remember_run(&space, &memory, name);
    }
    memory.discard_index(&whose().tenant_prefix()).unwrap();
    let dropping = space.clone();
    plan(RacePoint::CardsRead, move || drop(dropping.drop_run("a", "r", "").unwrap()));
    memory.remember(&whose(), &entry("d", "loan d"), &WordEmbedder).unwrap();
    assert_acted();
    let card = entry_key(&whose().name(), "a");
    assert!(!keys(&space, "annals.memory.words").contains(&card), "the card came back");
    assert!(assert_recall_equals_scan(&memory) > 4);
}

/// Storing memories of a run holds the lock that a rebuild takes.
#[test]
fn memory_of_a_run_rebuilds_a_discarded_index() {
    let sim = SimIo::new(1);
    let (_store, space, memory) = opened(&sim);
    for name in ["a", "b"] {
        remember_run(&space, &memory, name);
    }
    memory.get(&whose(), "a").unwrap().unwrap();
    memory.discard_index(&whose().tenant_prefix()).unwrap();
    remember_run(&space, &memory, "c");
    assert_eq!(keys(&space, "annals.memory.words.parts").len(), 1);
    assert!(assert_recall_equals_scan(&memory) > 4);
}

/// Regression: a reader that had read an entry counted the access after the entry was deleted, and closing the store
/// wrote the count, with the entry's id and identity.
#[test]
fn count_of_a_deleted_entry_is_not_written_at_close() {
    for by_run in [false, true] {
        let sim = SimIo::new(1);
        let (store, space, memory) = opened(&sim);
        for name in ["a", "b"] {
            remember_run(&space, &memory, name);
        }
        let key = entry_key(&whose().name(), "a");
        let mut read = memory.live_entry(&key).unwrap().unwrap();
        match by_run {
            true => drop(space.forget("a", "asked").unwrap()),
            false => memory.delete(&whose(), "a").unwrap(),
        }
        memory.count_access(&key, &mut read).unwrap();
        memory.get(&whose(), "b").unwrap().unwrap();
        drop((space, memory));
        store.close().unwrap();
        let (_store, space, _memory) = opened(&sim);
        assert_eq!(keys(&space, "annals.memory.looks"), [entry_key(&whose().name(), "b")], "{by_run}");
    }
}
