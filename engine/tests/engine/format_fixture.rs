//! Whole stores of each format, kept as files. They must stay readable and writable.
//!
//! `tests/data/format/v1` holds format 1, and `v1.sums` the SHA-256 of its recorded content. `v2` is the same
//! recording with two runs dropped, compacted; `v3` that again, with its vectors settled; `v4` the same in format 4. A new format gets its own fixture (`make_fixture`); existing
//! fixtures never change.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the fixture is copied past the engine, and a helper of a test may fail like the test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::{
    Component, ErrorKind, Frame, Options, RunSpec, Severity, Status, Store,
    kv::{History, ScanRange},
    ledger::{Gap, GapKind},
    upkeep::{CompactOptions, Sharing, diagnose},
};
use sha2::{Digest, Sha256};

/// A fixture and what it holds.
struct FormatFixture {
    folder: &'static str,
    sums: &'static str,
    /// At least this many batches and frames are verified.
    over: (u64, u64),
    /// A run to fork.
    run: &'static str,
}

const KEPT: [FormatFixture; 4] = [
    FormatFixture {
        folder: "v1",
        sums: include_str!("../data/format/v1.sums"),
        over: (30, 20),
        run: "loan-42",
    },
    FormatFixture {
        folder: "v2",
        sums: include_str!("../data/format/v2.sums"),
        over: (20, 4),
        run: "loan-42 again",
    },
    FormatFixture {
        folder: "v3",
        sums: include_str!("../data/format/v3.sums"),
        over: (20, 4),
        run: "loan-42 again",
    },
    FormatFixture {
        folder: "v4",
        sums: include_str!("../data/format/v4.sums"),
        over: (20, 4),
        run: "loan-42 again",
    },
];

fn fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format").join(version)
}

fn sum(out: &mut String, what: &str, bytes: &[u8]) {
    for byte in Sha256::digest(bytes) {
        let _ = write!(out, "{byte:02x}");
    }
    let _ = writeln!(out, "  {what}");
}

/// The SHA-256 of everything in a store: namespaces, runs and keys.
fn sums(store: &Store) -> annals::Result<String> {
    let mut out = String::new();
    for name in store.namespaces()? {
        let space = store.namespace(&name)?;
        for info in space.runs()? {
            let info = info?;
            let run = space.run(&info.name)?;
            let at = format!("{name}/{}", info.name);
            sum(
                &mut out,
                &format!("{at} {} {:?} {:?}", info.status, info.severity, info.tags),
                &run.metadata()?,
            );
            for frame in run.frames() {
                let frame = frame?;
                let at =
                    format!("{at}/{} {} {:?} {}", frame.seq, frame.component, frame.parent, frame.started_ns);
                sum(&mut out, &format!("{at} input"), &frame.input);
                sum(
                    &mut out,
                    &format!("{at} output{}", if frame.incomplete { " so far" } else { "" }),
                    &frame.output,
                );
                sum(&mut out, &format!("{at} metadata"), &frame.metadata);
                sum(&mut out, &format!("{at} link"), frame.link.to_string().as_bytes());
                if let Some(snapshot) = run.snapshot_at(frame.seq)?.filter(|s| s.seq == frame.seq) {
                    sum(&mut out, &format!("{at} state {:?}", snapshot.embeddings), &snapshot.state);
                }
            }
        }
        for keyspace in ["all", "latest"] {
            let Some(keyspace) = space.find_keyspace(keyspace)? else { continue };
            for pair in keyspace.scan(ScanRange::all()) {
                let (key, value) = pair?;
                sum(
                    &mut out,
                    &format!("{name} {:?} {}", keyspace.history_policy(), String::from_utf8_lossy(&key)),
                    &value,
                );
                for version in keyspace.history(&key)? {
                    sum(
                        &mut out,
                        &format!("  {}", version.seqno),
                        version.value.as_deref().unwrap_or(b"(ended)"),
                    );
                }
            }
        }
    }
    Ok(out)
}

/// Text that is not repetitive and compresses moderately.
fn text(seed: u64, words: usize) -> String {
    let mut state = seed;
    let mut out = String::new();
    for _ in 0..words {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let _ = write!(out, "{:x} ", (state >> 40) & 0xffff);
    }
    out
}

/// Records the fixture's content.
fn record(store: &Store) -> annals::Result<()> {
    let space = store.namespace("default")?;
    let base = 1_600_000_000_000_000_000u64;
    let spec = |name: &str| RunSpec::new(name).agent("approver").model("m-1").started_ns(base);
    let metadata = format!(r#"{{"note":"{}"}}"#, text(1, 20));
    let run =
        space.begin_run(spec("loan-42").tag("env", "prod").severity(Severity::Flagged).metadata(metadata))?;
    let mut messages = text(2, 60);
    for step in 0..8u64 {
        let request = format!(r#"{{"model":"m-1","messages":["{messages}"]}}"#);
        let answer = text(100 + step, 20 + 5 * step as usize);
        let mut frame = Frame::new(Component::Llm, request, answer.clone()).metadata(format!(
            r#"{{"temperature":0.5,"volatile":{{"id":{step}}},"usage":{{"tokens":{}}}}}"#,
            step * 7
        ));
        frame.started_ns = Some(base + step * 1_000_000);
        frame.duration_ns = 1000 + step;
        let call = run.record(frame)?;
        let mut tool =
            Frame::new(Component::Tool, format!(r#"{{"id":{step}}}"#), r#"{"score":580}"#).parent(call);
        tool.started_ns = Some(base + step * 1_000_000 + 500);
        tool.error = step == 3;
        run.record(tool)?;
        messages.push_str(&answer);
        if step % 4 == 1 {
            run.snapshot(format!("state {step}: {messages}"), &[("e5", &[0.5, -1.0, step as f32])])?;
        }
    }
    let mut judged = Frame::new(Component::Other("judge".into()), messages.clone(), "fine");
    judged.started_ns = Some(base + 9_000_000);
    judged.severity = Severity::Escalated;
    run.record(judged)?;
    run.end(Status::Ok)?;

    let fork = space.fork("loan-42", 5, true, spec("loan-42 again"))?;
    let mut edited = Frame::new(Component::Llm, format!("{} edited", text(2, 60)), text(7, 30));
    edited.started_ns = Some(base + 10_000_000);
    fork.record(edited)?;
    fork.end(Status::Failed)?;

    // Its output was incomplete when the store was closed.
    let cut = space.begin_run(spec("cut off"))?;
    let mut streamed = Frame::new(Component::Llm, text(8, 40), "");
    streamed.started_ns = Some(base + 11_000_000);
    let open = cut.begin_frame(&streamed)?;
    for part in 0..3 {
        open.append(text(20 + part, 30).as_bytes())?;
        open.flush()?;
    }
    drop(open);
    let mut after = Frame::new(Component::User, "are you there?", text(9, 12));
    after.started_ns = Some(base + 12_000_000);
    cut.record(after)?;

    space.begin_run(spec("replaced"))?.end(Status::Ok)?;
    space.begin_run(spec("replaced").replace(true))?.end(Status::Failed)?;

    let all = space.keyspace("all", History::All)?;
    let latest = space.keyspace("latest", History::Latest)?;
    for round in 0..3 {
        all.put(b"key", format!("round {round}"))?;
        latest.put(b"key", format!("round {round}"))?;
    }
    all.delete(b"gone")?;
    all.put(b"large", text(30, 1200))?;
    let other = store.namespace("other")?;
    other.keyspace("latest", History::Latest)?.put(b"key", "elsewhere")?;
    Ok(())
}

/// Copies a fixture, since opening for writing changes files.
fn copy(version: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["", "segments", "tables"] {
        let to = dir.path().join(folder);
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(fixture(version).join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
    dir
}

fn check(store: &Store, kept: &FormatFixture) {
    let report = store.verify().unwrap();
    assert_eq!(report.damaged, []);
    assert!(report.batches > kept.over.0 && report.frames > kept.over.1, "{report:?}");
    let found = sums(store).unwrap();
    for (found, expected) in found.lines().zip(kept.sums.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), kept.sums.lines().count());
}

#[test]
fn a_kept_store_is_read_verified_and_replayed() {
    for kept in KEPT {
        let dir = copy(kept.folder);
        check(&Store::open_read_only(dir.path()).unwrap(), &kept);
    }
}

#[test]
fn a_kept_store_without_its_tables_is_the_same() {
    for kept in KEPT {
        let dir = copy(kept.folder);
        for entry in std::fs::read_dir(dir.path().join("tables")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        check(&Store::open_read_only(dir.path()).unwrap(), &kept);
    }
}

#[test]
fn a_kept_store_can_be_written_on_and_compacted() {
    for kept in KEPT {
        let dir = copy(kept.folder);
        let store = Store::open(dir.path()).unwrap();
        check(&store, &kept);
        let space = store.namespace("default").unwrap();
        let again = space.fork(kept.run, 3, false, RunSpec::new("years later")).unwrap();
        again.record(Frame::new(Component::Llm, text(2, 60), "an answer")).unwrap();
        again.end(Status::Ok).unwrap();
        store.compact(&CompactOptions::default()).unwrap();
        store.close().unwrap();
        let store = Store::open_read_only(dir.path()).unwrap();
        assert_eq!(store.verify().unwrap().damaged, []);
        let run = store.namespace("default").unwrap().run("years later").unwrap();
        assert_eq!(run.frame(4).unwrap().output, b"an answer");
        assert_eq!(run.frame(4).unwrap().input, text(2, 60).as_bytes());
    }
}

/// Every file of a directory but `LOCK`, with its bytes.
fn bytes_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for folder in ["", "segments", "tables"] {
        for entry in std::fs::read_dir(dir.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("LOCK") {
                all.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    all
}

/// An upgrade used to happen without a word, and a backup made before it had the new format, so there was no
/// way back.
#[test]
fn an_upgrade_is_said_and_can_be_refused_or_undone() {
    for (kept, format) in KEPT.iter().zip(1..=3) {
        let (dir, other) = (copy(kept.folder), tempfile::tempdir().unwrap());
        let before = bytes_of(dir.path());
        let refused = Store::open_with(dir.path(), Options { upgrade: false, ..Options::default() });
        let error = refused.map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(&format!("has format {format}")), "{error}");
        assert!(bytes_of(dir.path()) == before, "a refusal changes no file");

        let backup = other.path().join("backup");
        Store::open_read_only(dir.path()).unwrap().backup(&backup, Sharing::Copied).unwrap();
        let found = |path: &Path| diagnose(path, Options::default()).unwrap();
        assert_eq!((found(&backup).format, found(&backup).is_healthy()), (Some(format), true));
        check(&Store::open_read_only(&backup).unwrap(), kept);

        let steps = found(dir.path()).recovery_steps();
        assert!(steps[0].contains("annals backup"), "{steps:?}");
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.opening().upgraded_from, Some(format));
        assert!(store.opening().lines()[0].contains("annals backup"), "{:?}", store.opening().lines());
        store.close().unwrap();
        assert_eq!(found(dir.path()).format, Some(4));
        assert!(Store::open(dir.path()).unwrap().opening().lines().is_empty(), "it is said once");
    }
}

/// Runs dropped before the compaction of the format 2 store are reported as dropped and cannot be read.
#[test]
fn the_store_of_format_2_says_what_was_dropped() {
    let dir = copy("v2");
    let store = Store::open_read_only(dir.path()).unwrap();
    let mut gaps = Vec::new();
    let dropped = |gap: Gap| {
        gaps.extend((gap.kind == GapKind::Dropped).then_some((
            gap.rule,
            gap.why,
            gap.frames.unwrap_or_default(),
        )));
        Ok(())
    };
    store.gaps(&mut { dropped }).unwrap();
    let told = |why: &str, frames| ("fixture".to_owned(), why.to_owned(), frames);
    assert_eq!(gaps, [told("a fork needs its first frames", 17), told("it was cut off", 2)]);
    let space = store.namespace("default").unwrap();
    for name in ["loan-42", "cut off"] {
        assert_eq!(space.run(name).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
    assert_eq!(space.run("loan-42 again").unwrap().frames().count(), 5);
}

/// Format 2 has no statements of what compaction erased. A reader says that it cannot check it. The first opening
/// for writing states what is missing then, so that later erasures are noticed.
#[test]
fn earlier_erasures_are_stated_at_first_opening_for_writing() {
    let dir = copy("v2");
    let erasures = |store: &Store| store.gaps(&mut |_| Ok(())).unwrap();
    let store = Store::open_read_only(dir.path()).unwrap();
    let kept = store.checkpoint().unwrap();
    let found = erasures(&store);
    assert!(found.uncheckable > 0 && found.problems().is_empty(), "{found:?}");
    let notes = store.verify().unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("before format 4 cannot be checked")), "{notes:?}");
    drop(store);
    for _ in 0..2 {
        let store = Store::open(dir.path()).unwrap();
        let found = erasures(&store);
        assert!(found.uncheckable > 0 && found.problems().is_empty(), "{found:?}");
        assert_eq!(found.missing_runs, [], "the numbers of forgotten runs are stated, too");
        assert_eq!(store.checkpoint().unwrap().leaves, kept.leaves + 1, "it is stated once");
        assert_eq!(store.verify_against(&kept).unwrap().differences, []);
        store.close().unwrap();
    }
    let store = Store::open(dir.path()).unwrap();
    let uid = store.namespace("default").unwrap().drop_run("replaced", "fixture", "").unwrap().uid;
    let options = CompactOptions { must_go: vec![uid], ..CompactOptions::default() };
    assert!(store.compact(&options).unwrap().rewritten > 0);
    assert_eq!(store.verify().unwrap().damaged, []);
    assert_eq!(store.verify_against(&kept).unwrap().differences, []);
}

#[test]
fn a_flipped_bit_in_a_kept_store_is_noticed() {
    for kept in KEPT {
        for entry in std::fs::read_dir(fixture(kept.folder).join("segments")).unwrap() {
            let dir = copy(kept.folder);
            let path = dir.path().join("segments").join(entry.unwrap().file_name());
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let noticed = match Store::open_read_only(dir.path()) {
                Ok(store) => !store.verify().unwrap().damaged.is_empty(),
                Err(error) => error.kind() == ErrorKind::Damaged,
            };
            assert!(noticed, "{}", path.display());
        }
    }
}

/// Writes a fixture in this build's format to `engine/tests/data/format/new`, with its sums.
#[test]
#[ignore = "makes a fixture; run it by name when the format gets a new version"]
fn make_fixture() {
    let sim = SimIo::new(1);
    let options = Options { io: Arc::new(sim.clone()), segment_bytes_max: 6 << 10, ..Options::default() };
    let store = Store::open_with("store", options.clone()).unwrap();
    record(&store).unwrap();
    store.close().unwrap();
    let store = Store::open_with("store", options.clone()).unwrap();
    let space = store.namespace("default").unwrap();
    space.drop_run("loan-42", "fixture", "a fork needs its first frames").unwrap();
    space.drop_run("cut off", "fixture", "it was cut off").unwrap();
    store.compact(&CompactOptions::default()).unwrap();
    // A batch whose salts follow from one key.
    let latest = space.keyspace("latest", History::Latest).unwrap();
    let mut batch = space.batch();
    for key in ["one", "two", "three"] {
        batch.put(&latest, key.as_bytes(), key);
    }
    batch.commit().unwrap();
    store.settle_vectors().unwrap();
    store.close().unwrap();
    let store = Store::open_read_only_with("store", options).unwrap();
    assert_eq!(store.verify().unwrap().damaged, []);
    let new = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format/new");
    let mut total = 0;
    for path in sim.files() {
        let Ok(name) = path.strip_prefix("store") else { continue };
        let to = new.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let bytes = sim.read(&path).unwrap();
        total += bytes.len();
        std::fs::write(to, bytes).unwrap();
    }
    std::fs::write(new.with_extension("sums"), sums(&store).unwrap()).unwrap();
    println!("{total} bytes in {}", new.display());
}
