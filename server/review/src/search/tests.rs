//! What is found, what is no longer found, and what a reader with a profile may find.

use annals::{Component, Frame, Namespace, RunSpec, Status, Store};
use annals_memory::FrameTexts;
use annals_policy::profiles::{Profile, Redactor};
use serde_json::json;

use super::{SearchAnswer, catch_up, find, is_caught_up};

struct SearchBench {
    _store: Store,
    space: Namespace,
    index: FrameTexts,
    _directory: tempfile::TempDir,
}

impl SearchBench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        let index = FrameTexts::open(&space).unwrap().unwrap();
        Self { _store: store, space, index, _directory: directory }
    }

    fn record(&self, name: &str, texts: &[&str]) {
        let run = self.space.begin_run(RunSpec::new(name).replace(true)).unwrap();
        for text in texts {
            run.record(Frame::new(Component::Tool, "{}", *text)).unwrap();
        }
        run.end(Status::Ok).unwrap();
    }

    fn answer(&self, question: &str, by: Option<&Redactor>) -> SearchAnswer {
        while !catch_up(&self.space, &self.index).unwrap().is_whole {}
        find(&self.space, &self.index, question, by, 20, true).unwrap()
    }

    /// The hits as `run@seq`, the best first.
    fn hits(&self, question: &str) -> Vec<String> {
        let hits = self.answer(question, None).hits;
        hits.iter().map(|hit| format!("{}@{}", hit.run, hit.seq)).collect()
    }
}

fn call(messages: &[(&str, &str)], answer: &str) -> Frame {
    let messages: Vec<_> =
        messages.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    let request = json!({ "model": "m", "messages": messages });
    Frame::new(
        Component::Llm,
        request.to_string(),
        json!({ "role": "assistant", "content": answer }).to_string(),
    )
}

/// A request repeats all messages before it: each is found where it was said first.
#[test]
fn text_is_found_in_the_first_frame_that_says_it() {
    let bench = SearchBench::new();
    let run = bench.space.begin_run(RunSpec::new("talk")).unwrap();
    run.record(call(&[("user", "Where is the zeppelin parked?")], "In hangar seven.")).unwrap();
    let second = [
        ("user", "Where is the zeppelin parked?"),
        ("assistant", "In hangar seven."),
        ("user", "Fuel it with hydrogen."),
    ];
    run.record(call(&second, "Done.")).unwrap();
    run.end(Status::Ok).unwrap();
    assert_eq!(bench.hits("zeppelin"), ["talk@1"]);
    assert_eq!(bench.hits("hangar seven"), ["talk@1"]);
    assert_eq!(bench.hits("HYDROGEN"), ["talk@2"]);
    assert!(bench.hits("submarine").is_empty());
    let found = bench.answer("is the zeppelin", None).hits.remove(0).text.unwrap();
    assert!(found.is_exact);
    assert_eq!((&*found.before, &*found.found, &*found.after), ("Where ", "is the zeppelin", " parked?"));
}

/// Nothing of such a run is kept. Once its empty batch was refused, and no search of the store found anything.
#[test]
fn run_without_texts_is_passed_over() {
    let bench = SearchBench::new();
    let run = bench.space.begin_run(RunSpec::new("silent")).unwrap();
    run.record(Frame::new(Component::Tool, "", "")).unwrap();
    run.end(Status::Ok).unwrap();
    bench.space.begin_run(RunSpec::new("empty")).unwrap().end(Status::Ok).unwrap();
    bench.record("says", &["a curlew calls"]);
    assert_eq!(bench.hits("curlew"), ["says@1"]);
}

#[test]
fn exact_text_comes_before_similar_words() {
    let bench = SearchBench::new();
    bench.record("similar", &["the timeout of the upstream was long"]);
    bench
        .record("exact", &["error: upstream timeout, again and again, in a much longer text than the other"]);
    bench.record("newer", &["the timeout of the upstream was long"]);
    assert_eq!(bench.hits("upstream timeout"), ["exact@1", "newer@1", "similar@1"]);
}

#[test]
fn forgotten_dropped_and_replaced_runs_are_not_found() {
    let bench = SearchBench::new();
    for name in ["forgotten", "dropped", "replaced", "stays"] {
        bench.record(name, &["the canary sings"]);
    }
    assert_eq!(bench.hits("canary").len(), 4);
    bench.space.forget("forgotten", "asked for").unwrap();
    bench.space.drop_run("dropped", "rule", "").unwrap();
    bench.record("replaced", &["nothing of the kind"]);
    assert_eq!(bench.hits("canary"), ["stays@1"]);
    // Nothing of them is left in the index once the next search has begun.
    let runs = bench.space.find_keyspace("annals.search.runs").unwrap().unwrap();
    assert_eq!(
        runs.scan(annals::kv::ScanRange::all()).keys().count(),
        2,
        "the run that stays, and the new one"
    );
    bench.index.clear().unwrap();
    assert_eq!(bench.hits("canary"), ["stays@1"]);
}

#[test]
fn open_run_is_searched_up_to_its_last_frame() {
    let bench = SearchBench::new();
    let run = bench.space.begin_run(RunSpec::new("live")).unwrap();
    run.record(Frame::new(Component::Tool, "{}", "a walrus came")).unwrap();
    assert_eq!(bench.hits("walrus"), ["live@1"]);
    run.record(Frame::new(Component::Tool, "{}", "a pelican came")).unwrap();
    assert!(!is_caught_up(&bench.space, &bench.index).unwrap());
    assert_eq!(bench.hits("pelican"), ["live@2"]);
    assert!(is_caught_up(&bench.space, &bench.index).unwrap());
    run.record(Frame::new(Component::Tool, "{}", "an ostrich came")).unwrap();
    run.end(Status::Failed).unwrap();
    assert_eq!(bench.hits("ostrich"), ["live@3"]);
    assert!(bench.index.waiting().unwrap().is_empty(), "an ended run is not looked at again");
}

/// A fork shares frames with its parent. They are found in the parent, and in the fork once the parent is gone.
#[test]
fn shared_frames_stay_found_after_the_parent_is_dropped() {
    let bench = SearchBench::new();
    bench.record("parent", &["the first osprey", "the second osprey"]);
    let fork = bench.space.fork("parent", 1, false, RunSpec::new("fork")).unwrap();
    fork.record(Frame::new(Component::Tool, "{}", "the third osprey")).unwrap();
    fork.end(Status::Ok).unwrap();
    let mut hits = bench.hits("osprey");
    hits.sort();
    assert_eq!(hits, ["fork@2", "parent@1", "parent@2"]);
    bench.space.drop_run("parent", "rule", "").unwrap();
    let mut hits = bench.hits("osprey");
    hits.sort();
    assert_eq!(hits, ["fork@1", "fork@2"]);
}

/// A profile hides addresses. A hit for one would confirm that it stands there.
/// Regression: a hit showed the whole question from an earlier message, which its request only repeats, and came first for
/// it.
#[test]
fn hit_shows_the_text_of_its_own_frame() {
    let bench = SearchBench::new();
    let run = bench.space.begin_run(RunSpec::new("r")).unwrap();
    run.record(call(&[("user", "where does the grey osprey nest")], "on a pole")).unwrap();
    let again = [
        ("user", "where does the grey osprey nest"),
        ("assistant", "on a pole"),
        ("user", "is the osprey grey"),
    ];
    run.record(call(&again, "yes")).unwrap();
    run.end(Status::Ok).unwrap();
    let hits = bench.answer("grey osprey", None).hits;
    let shown: Vec<_> = hits.iter().map(|hit| (hit.seq, hit.text.as_ref().unwrap().found.as_str())).collect();
    assert_eq!(shown, [(1, "grey osprey"), (2, "osprey")], "{hits:?}");
}

/// Regression: after a blame of a run, the best hits for a text of it were the forks of the blame, and the run itself was
/// not among them.
#[test]
fn forks_of_a_blame_are_not_found() {
    let bench = SearchBench::new();
    bench.record("failed", &["nothing", "the second osprey"]);
    for number in 0..30 {
        let spec = RunSpec::new(format!("fork-{number}")).tag(annals::runs::BLAME_TAG, "failed");
        let fork = bench.space.fork("failed", 1, false, spec).unwrap();
        fork.record(Frame::new(Component::Tool, "{}", "the second osprey")).unwrap();
        fork.end(Status::Ok).unwrap();
    }
    // What the user makes of such a fork is searched, with what it shares.
    let own = bench.space.fork("fork-0", 2, false, RunSpec::new("own")).unwrap();
    own.record(Frame::new(Component::Tool, "{}", "a third osprey")).unwrap();
    own.end(Status::Ok).unwrap();
    let mut hits = bench.hits("osprey");
    hits.sort();
    assert_eq!(hits, ["failed@2", "own@2", "own@3"]);
}

#[test]
fn redacted_reader_finds_nothing_that_the_profile_hides() {
    let bench = SearchBench::new();
    bench.record("mail", &["write to ada.lovelace@example.org about the kestrel"]);
    let redactor = Redactor::new(&Profile::safe(), [7; 32]);
    assert_eq!(bench.hits("ada.lovelace@example.org"), ["mail@1"]);
    for guess in ["ada.lovelace@example.org", "lovelace", "ada lovelace"] {
        assert!(bench.answer(guess, Some(&redactor)).hits.is_empty(), "{guess}");
    }
    let hit = bench.answer("kestrel", Some(&redactor)).hits.remove(0);
    let text = hit.text.unwrap();
    assert!(!format!("{text:?}").contains("lovelace"), "{text:?}");
}

#[test]
fn cleared_index_is_made_again() {
    let bench = SearchBench::new();
    for number in 0..40 {
        bench.record(
            &format!("run-{number}"),
            &["the heron waits", &format!("number {number} of the herons")],
        );
    }
    let before = bench.hits("number 17 of the herons");
    assert_eq!(before[0], "run-17@2");
    bench.index.clear().unwrap();
    assert!(!is_caught_up(&bench.space, &bench.index).unwrap());
    assert_eq!(bench.hits("number 17 of the herons"), before);
    let again = FrameTexts::open(&bench.space).unwrap().unwrap();
    assert_eq!(find(&bench.space, &again, "heron", None, 100, true).unwrap().hits.len(), 80);
}

/// Agents' memory has its own entries: a search must not show them, and recall must not show frames.
#[test]
fn memory_and_frames_are_apart() {
    let bench = SearchBench::new();
    bench.record("run", &["the bittern booms"]);
    assert_eq!(bench.hits("bittern"), ["run@1"]);
    let memory = annals_memory::Memory::open(&bench.space).unwrap();
    let whose = annals_memory::Identity::default();
    memory
        .remember(&whose, r#"{"id":"a","value":{"query":"the ibis stalks"}}"#, &annals_memory::WordEmbedder)
        .unwrap();
    let wanted = annals_memory::MemoryQuery { across_conversations: true, ..Default::default() };
    assert!(memory.recall(&whose, "bittern", &annals_memory::WordEmbedder, &wanted).unwrap().is_empty());
    assert_eq!(memory.recall(&whose, "ibis", &annals_memory::WordEmbedder, &wanted).unwrap().len(), 1);
    assert!(bench.hits("ibis").is_empty());
}
