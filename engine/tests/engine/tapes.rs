//! Tapes made from the format 1 fixture. They must stay readable. Making them again must give the same bytes
//! as long as chunking is unchanged. A change of chunking keeps these tapes and adds new ones.
#![expect(clippy::disallowed_methods, reason = "fixtures are read past the engine")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::{Options, Status, Store, Tape};

/// A file in `tests/data/tape`, and its run.
const KEPT: [(&str, &str); 2] = [("loan-42.tape", "loan-42"), ("loan-42-again.tape", "loan-42 again")];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[test]
fn format_1_tape_reads_and_rewrites_to_same_bytes() {
    let store = Store::open_read_only(data("format/v1")).unwrap();
    let space = store.namespace("default").unwrap();
    let options = Options { io: Arc::new(SimIo::new(1)), ..Options::default() };
    let other = Store::open_with("s", options).unwrap().namespace("default").unwrap();
    for (file, run) in KEPT {
        let kept = std::fs::read(data("tape").join(file)).unwrap();
        let from = space.run(run).unwrap();
        let mut made = Vec::new();
        from.write_tape(&mut made).unwrap();
        assert!(made == kept, "{file} is made differently now: {} bytes, not {}", made.len(), kept.len());
        let tape = Tape::read(kept.clone()).unwrap();
        assert_eq!(Some(tape.info().fingerprint), from.info().fingerprint);
        let info = other.import_tape(&tape, None, false).unwrap();
        assert_eq!((info.frames, info.fingerprint), (from.info().frames, from.info().fingerprint));
        let mut again = Vec::new();
        other.run(run).unwrap().write_tape(&mut again).unwrap();
        assert!(again == kept, "{file} exported from another store has other bytes");
    }
    // A run whose recorder went away before the end.
    let open = space.run("cut off").unwrap();
    if open.info().status == Status::Open {
        assert!(open.write_tape(&mut Vec::new()).is_err());
    }
}
