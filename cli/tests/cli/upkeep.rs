//! Doctor, repair, backup and restore as a user sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::{Component, Frame, RunSpec, Status, Store};

use crate::{CliBench, LINES, ProcessResult};

#[expect(clippy::disallowed_methods, reason = "looks at the store from outside")]
pub(crate) fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in [root.to_path_buf(), root.join("segments"), root.join("tables")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                found.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    found
}

#[expect(clippy::disallowed_methods, reason = "damages the store from outside")]
fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

fn imported() -> CliBench {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    bench.run("put key value").ok();
    bench
}

#[test]
fn healthy_store_is_reported_as_healthy() {
    let bench = imported();
    // A file of the command line, which the engine does not know.
    bench.write(".annals/profiles.toml", "");
    let before = files(&bench.path(".annals"));
    let text = bench.run("doctor").text();
    assert!(text.contains("closed cleanly") && text.contains("healthy"), "{text}");
    let [found] = bench.run("doctor --json").json().try_into().unwrap();
    assert_eq!(
        (&found["healthy"], &found["clean"], &found["format"]),
        (&true.into(), &true.into(), &3.into())
    );
    assert!(
        found["free_bytes"].as_u64().unwrap() > 0 && found["foreign"] == serde_json::json!([]),
        "{found}"
    );
    assert_eq!(files(&bench.path(".annals")), before);
    bench.run("--store nowhere doctor").failed(4);
    let store = Store::open(bench.path(".annals")).unwrap();
    let text = bench.run("doctor").text();
    assert!(text.contains(&format!("process {} is writing", std::process::id())), "{text}");
    store.close().unwrap();
}

#[test]
fn a_damaged_store_is_explained_and_repaired_into_a_new_one() {
    let bench = imported();
    let frames = bench.run("replay --all --json").json();
    let root = bench.path(".annals");
    let segment =
        files(&root).into_keys().find(|path| path.extension().is_some_and(|end| end == "seg")).unwrap();
    let whole = files(&root).remove(&segment).unwrap();
    let (mut lost, mut kept) = (0, 0);
    for part in 1..16 {
        let mut hurt = whole.clone();
        hurt[whole.len() * part / 16] ^= 0x20;
        put(&segment, &hurt);
        let before = files(&root);
        let done = bench.run("doctor");
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(done.code == 3 && text.contains("annals repair --to") && text.contains(".seg"), "{text}");
        assert_eq!(bench.run("doctor --json").code, 3);
        let to = format!("new-{part}");
        let done = bench.run(&format!("repair --to {to} --json"));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let named = report["lost"].as_array().unwrap().len();
        assert_eq!((done.code, done.stderr.as_str()), (if named == 0 { 0 } else { 3 }, ""), "{report}");
        assert!(!report["damage"].as_array().unwrap().is_empty());
        lost += named;
        assert_eq!(files(&root), before, "the damaged store was changed");
        bench.run(&format!("--store {to} verify")).ok();
        let names = bench.run(&format!("--store {to} runs --json"));
        if names.code == 0 {
            for frame in bench.run(&format!("--store {to} replay --all --json")).json() {
                let same = frames
                    .iter()
                    .any(|known| ["component", "input", "output"].iter().all(|key| known[key] == frame[key]));
                assert!(same || frame["component"] == "lost", "{frame}");
                kept += usize::from(same);
            }
        }
        bench.run(&format!("repair --to {to}")).failed(1);
    }
    assert!(lost >= 8 && kept > 15, "{lost} {kept}");
    put(&segment, &whole);
    bench.run("repair --to whole").ok();
    assert_eq!(bench.run("--store whole replay --all --json").json(), frames);
    assert_eq!(bench.run("--store whole get key").ok(), b"value");
    assert_eq!(bench.run("repair").code, 2);
}

#[test]
fn a_store_in_use_is_backed_up_and_restored() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("live")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    let [report] = bench.run("backup copy --json").json().try_into().unwrap();
    assert_eq!(report["seqno"], store.seqno().0);
    assert!(report["copied_files"].as_u64().unwrap() >= 1);
    bench.run("backup copy").failed(1);
    run.record(Frame::new(Component::Llm, "later", "out")).unwrap();
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    bench.run("--store copy verify").ok();
    let [live] = bench.run("--store copy show live --json").json().try_into().unwrap();
    assert_eq!(live["frames"], 1);
    bench.run("backup copied --copy").ok();
    bench.run("restore copied back").ok();
    assert_eq!(bench.run("--store back replay --all --json").json(), bench.run("replay --all --json").json());
    bench.run("restore copied back").failed(1);
    bench.run("restore nothing else").failed(4);
    let copied = bench.path("copied");
    let segment =
        files(&copied).into_iter().find(|(path, _)| path.extension().is_some_and(|end| end == "seg"));
    let (path, mut bytes) = segment.unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    put(&path, &bytes);
    bench.run("restore copied again").failed(3);
}

/// Regression: a dry run opened the store for writing and sealed the active segment. It failed while another
/// process held the store.
#[test]
fn compact_dry_run_changes_no_file_beside_a_writer() {
    let bench = imported();
    bench.pipe("import --format chat --replace -", LINES.as_bytes()).ok();
    let before = files(&bench.path(".annals"));
    let [told] = bench.run("compact --dry-run --json").json().try_into().unwrap();
    assert!(told["dry_run"] == true && told["rewritten"].as_u64().unwrap() > 0, "{told}");
    let text = bench.run("compact --dry-run --recompress").text();
    assert!(text.contains("would compact: 1 log file would become 1 and free about"), "{text}");
    assert!(files(&bench.path(".annals")) == before, "a dry run changed a file");
    // First a process that holds the store without serving it, then a daemon.
    let store = Store::open(bench.path(".annals")).unwrap();
    let held = files(&bench.path(".annals"));
    assert_eq!(bench.run("compact --dry-run --json").json(), std::slice::from_ref(&told));
    assert!(files(&bench.path(".annals")) == held, "a dry run changed a file");
    store.close().unwrap();
    let daemon = bench.serve(&[]);
    bench.run("compact --dry-run").ok();
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    // The compaction does what the dry run announced.
    let [done] = bench.run("compact --json").json().try_into().unwrap();
    for what in ["segments", "rewritten", "made"] {
        assert_eq!(done[what], told[what], "{what}");
    }
}

/// Whether a compaction has written a segment.
#[expect(clippy::disallowed_methods, reason = "looks at the store from outside")]
fn has_rewritten(bench: &CliBench) -> bool {
    let names = std::fs::read_dir(bench.path(".annals/segments")).unwrap();
    let mut ids =
        names.map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().parse::<u32>());
    ids.any(|id| id.is_ok_and(|id| id >= 1 << 31))
}

/// Regression: the signal killed the compaction. Its files stayed until a process opened the store for
/// writing.
#[test]
fn interrupted_compaction_changes_and_leaves_nothing() {
    let bench = imported();
    bench.pipe("import --format chat --replace -", LINES.as_bytes()).ok();
    let before = (bench.run("replay --all --json").json(), bench.run("ledger gaps --json").json());
    for signal in ["-INT", "-TERM"] {
        let mut command = bench.command(["compact", "--max-bytes-per-second", "1"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        while !has_rewritten(&bench) {
            assert!(child.try_wait().unwrap().is_none(), "the compaction ended before it wrote a segment");
            std::thread::yield_now();
        }
        // While the compaction runs, reads work, and writers are told which process writes.
        assert_eq!(bench.run("replay --all --json").json(), before.0);
        bench.run("compact --dry-run").ok();
        for line in ["compact", "retain", "forget a --why x", "pin a --why x"] {
            let error = bench.run(line).failed(1);
            assert!(error.contains(&format!("process {} is writing", child.id())), "{line}: {error}");
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let error = ProcessResult::from_output(child.wait_with_output().unwrap()).failed(1);
        assert_eq!(error, "the compaction was cancelled: the store is unchanged");
        assert!(!has_rewritten(&bench), "{signal}: it left files");
        assert_eq!((bench.run("replay --all --json").json(), bench.run("ledger gaps --json").json()), before);
        bench.run("verify").ok();
    }
    assert!(bench.run("compact").text().starts_with("compacted: "));
    assert_eq!(bench.run("replay --all --json").json(), before.0);
}

#[test]
fn compact_drop_and_pin_are_refused_beside_a_recorder() {
    let bench = imported();
    let mut recorder = bench.command(["record", "--allow-empty", "--run", "r", "--", "cat"]);
    let recorder = recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut recorder = recorder.unwrap();
    // The recorded program reads until its input ends.
    while bench.run("show r").code != 0 {
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder has ended");
    }
    for line in ["compact", "retain --at +8d", "forget a --why x", "pin a --why x", "unpin a"] {
        let error = bench.run(line).failed(1);
        assert!(error.contains("a recorder holds the store and"), "{line}: {error}");
    }
    bench.run("retain --dry-run --at +8d").ok();
    bench.run("compact --dry-run").ok();
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    assert_eq!(bench.run("runs --json").json().len(), 3);
    assert!(bench.run("ledger gaps --json").json().is_empty());
}

#[test]
fn compact_runs_in_daemon_or_in_process() {
    let bench = imported();
    let names: Vec<String> =
        bench.run("runs --json").json().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    bench.pipe("import --format chat --replace -", LINES.as_bytes()).ok();
    let before = bench.run("replay --all --json").json();
    let [told] = bench.run("compact --dry-run --json").json().try_into().unwrap();
    assert!(told["dry_run"] == true && told["rewritten"].as_u64().unwrap() > 0, "{told}");
    assert!(told["needed_bytes"].as_u64().unwrap() > told["made_bytes"].as_u64().unwrap());
    let text = bench.run("compact --max-bytes-per-second 100000000").text();
    assert!(text.contains("compacted: ") && text.contains(" became 1 and freed "), "{text}");
    assert_eq!(bench.run("replay --all --json").json(), before);
    assert_eq!(bench.run("runs --json").json().len(), names.len());
    bench.run("verify").ok();
    let text = bench.run("compact").text();
    assert!(text.contains("none worth rewriting"), "{text}");
    bench.run("compact --max-bytes-per-second 0").failed(2);
    bench.run("--store nowhere compact").failed(4);
    // Another process writes and does not serve the store.
    let store = Store::open(bench.path(".annals")).unwrap();
    let error = bench.run("compact").failed(1);
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    store.close().unwrap();
}
