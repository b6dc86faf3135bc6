//! The kept corpora of the fuzz targets `checkpoint` and `proof` also run as ordinary tests.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the corpora are files, and a test that cannot go on panics"
)]

#[path = "../../../fuzz/ledger.rs"]
#[expect(clippy::panic, reason = "what a door finds it tells by a panic")]
mod ledger;

use std::path::Path;

fn run_corpus(name: &str, door: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let inputs: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty(), "{} is empty", dir.display());
    for input in &inputs {
        let bytes = std::fs::read(input).unwrap();
        let done = std::panic::catch_unwind(|| door(&bytes));
        assert!(done.is_ok(), "target {name} on {}", input.display());
    }
}

#[test]
fn both_readers_agree_on_checkpoint_corpus() {
    run_corpus("checkpoint", ledger::checkpoint);
}

#[test]
fn proof_corpus_never_panics() {
    run_corpus("proof", ledger::proof);
}

/// The checks can fail, but they do not refuse everything: both readers accept an input once its digest is
/// corrected.
#[test]
fn corrected_digest_is_accepted() {
    let text = include_str!("data/older.json");
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    assert!(annals::ledger::Checkpoint::from_json(text.as_bytes()).is_ok());
    let mut edited = value;
    edited["time_ns"] = 5.into();
    edited["signature"] = serde_json::Value::Null;
    edited.as_object_mut().unwrap().remove("signature");
    let edited = edited.to_string();
    assert!(annals::ledger::Checkpoint::from_json(edited.as_bytes()).is_err());
    ledger::checkpoint(format!(" {edited}").as_bytes());
    let right = ledger::put_right(format!(" {edited}").as_bytes()).unwrap();
    assert!(annals::ledger::Checkpoint::from_json(&right).is_ok());
    assert!(annals_proof::CheckedCheckpoint::parse(&right).is_ok());
}
