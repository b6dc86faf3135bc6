//! Doctor, repair, backup and restore as a user sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::{Component, Frame, RunSpec, Status, Store, kv::History};

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
        (&true.into(), &true.into(), &4.into())
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
        // One changed byte of a batch would be restored.
        for at in [0, 9] {
            hurt[whole.len() * part / 16 + at] ^= 0x20;
        }
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

/// Takes from standard error the one line that says why a backup is not noted in the store.
#[track_caller]
fn assert_unnoted(done: &mut ProcessResult, why: &str) {
    let said = std::mem::take(&mut done.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("`annals forget` will not name it") && said.contains(why), "{said}");
}

#[test]
fn a_store_in_use_is_backed_up_and_restored() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("live")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    let mut done = bench.run("backup copy --json");
    assert_unnoted(&mut done, "it was not closed cleanly");
    let [report] = done.json().try_into().unwrap();
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
        // While the compaction runs, reads work, other upkeep goes through it, and other writers wait.
        assert_eq!(bench.run("replay --all --json").json(), before.0);
        bench.run("compact --dry-run").ok();
        bench.run("retain").ok();
        bench.run("pin a --why x").ok();
        bench.run("unpin a").ok();
        let error = bench.run("compact --wait 0").failed(1);
        assert!(error.contains("another compaction of this store is running"), "{error}");
        let error = bench.run("put k v --wait 0").failed(1);
        assert!(error.contains(&format!("process {} is writing", child.id())), "{error}");
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

/// A recorder that held the store refused all of it: users who recorded all day could delete nothing.
#[test]
fn compact_drop_and_pin_work_beside_a_recorder() {
    let bench = imported();
    let mut recorder = bench.command(["record", "--allow-empty", "--run", "r", "--", "cat"]);
    let recorder = recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut recorder = recorder.unwrap();
    // The recorded program reads until its input ends.
    while bench.run("show r").code != 0 {
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder has ended");
    }
    bench.run("pin b --why x").ok();
    for line in ["compact", "forget a --why x", "retain --at +99y", "unpin b"] {
        bench.run(line).ok();
    }
    bench.run("retain --dry-run --at +8d").ok();
    bench.run("compact --dry-run").ok();
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    assert_eq!(bench.run("runs --json").json().len(), 2);
    let gaps = bench.run("ledger gaps --json").json();
    let kinds: Vec<_> = gaps.iter().map(|gap| gap["what"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["dropped", "erased"]);
    bench.run("verify").ok();
}

/// A recorder that held the store knew no command of decisions: an agent that ran under `annals record` could store
/// none. And a holder that did not find a key was reported as a missing store.
#[test]
fn decisions_and_forgetting_work_beside_a_recorder() {
    let bench = imported();
    let mut recorder = bench.command(["record", "--allow-empty", "--run", "r", "--", "cat"]);
    let recorder = recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut recorder = recorder.unwrap();
    while bench.run("show r").code != 0 {
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder has ended");
    }
    bench.run_args(["decide", "Keep Postgres", "--confidence", "0.8"]).ok();
    let [found] = bench.run("decisions --json").json().try_into().unwrap();
    bench.run_args(["decision", found["id"].as_str().unwrap(), "--review", "success"]).ok();
    let error = bench.run_args(["decide", "", "--confidence", "0.5"]).failed(1);
    assert!(error.contains("\"decision\"") && !error.starts_with("ERR"), "{error}");
    let done = bench.run("decide x --confidence 0.5 --run nobody");
    assert!(done.stderr.contains("`annals runs` lists the runs"), "{done:?}");
    let error = bench.run("forget --key nokey --why x").failed(4);
    assert!(error.contains("nothing was forgotten") && !error.contains("no store"), "{error}");
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    let [found] = bench.run("decisions --json").json().try_into().unwrap();
    assert_eq!(found["outcome"], "success");
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
    let error = bench.run("compact --wait 0").failed(1);
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    store.close().unwrap();
}

/// Copies a store, as a process that was killed would leave it.
#[expect(clippy::disallowed_methods, reason = "copies the store past the engine")]
fn copy_store(from: &Path, to: &Path) {
    for folder in ["", "segments", "tables"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for entry in std::fs::read_dir(from.join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
}

/// A store of an older format used to be upgraded without a word by the first verb that wrote to it.
#[test]
fn an_upgrade_is_said_once_and_refused_on_request() {
    let bench = CliBench::new();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/format/v3");
    copy_store(&kept, &bench.path(".annals"));
    let format =
        |store: &str| bench.run(&format!("--store {store} doctor --json")).json()[0]["format"].clone();
    let refused = bench.run("--no-upgrade put key value").failed(1);
    assert!(refused.contains("has format 3") && refused.contains("format 4"), "{refused}");
    let mut done = bench.run("backup before --copy");
    assert_unnoted(&mut done, "has format 3");
    done.ok();
    assert_eq!((format(".annals"), format("before")), (3.into(), 3.into()));
    let done = bench.run("put key value");
    assert_eq!(done.code, 0);
    assert!(
        done.stderr.starts_with("annals: upgraded the store from format 3 to format 4"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("`annals backup`") && done.stderr.contains("--no-upgrade"),
        "{}",
        done.stderr
    );
    bench.run("--no-upgrade put key again").ok();
    assert_eq!((format(".annals"), format("before")), (4.into(), 3.into()));
    bench.run("--store before verify").ok();
}

/// The store of a killed process whose last commit is torn used to lose it without a word.
#[test]
fn a_cut_is_said_by_the_verb_that_cuts_and_by_later_ones() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let keys = store.namespace("default").unwrap().keyspace("default", History::All).unwrap();
    let note = files(&bench.path(".annals"))[&bench.path(".annals/SYNCED")].clone();
    keys.put(b"key", "first").unwrap();
    copy_store(&bench.path(".annals"), &bench.path("killed"));
    store.close().unwrap();
    // The writer may have noted the commit by now.
    put(&bench.path("killed/SYNCED"), &note);
    let segments = files(&bench.path("killed"));
    let is_segment = |path: &Path| path.extension().is_some_and(|end| end == "seg");
    let (path, mut bytes) = segments.into_iter().rfind(|(path, _)| is_segment(path)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end] ^= 1;
    put(&path, &bytes);
    let [found] = bench.run("--store killed verify --json").json().try_into().unwrap();
    assert!(found["tail"]["torn"]["bytes"].as_u64().unwrap() > 48, "{found}");
    let text = bench.run("--store killed doctor").text();
    assert!(text.contains("cut what a crash tore or damage changed"), "{text}");
    let done = bench.run("--store killed put other value");
    assert_eq!(done.code, 0);
    assert!(done.stderr.contains("may have been among them"), "{}", done.stderr);
    bench.run("--store killed put other again").ok();
    let text = bench.run("--store killed verify").text();
    assert!(text.contains("cut after an unclean stop") && text.contains("whole"), "{text}");
    let [found] = bench.run("--store killed doctor --json").json().try_into().unwrap();
    assert_eq!(found["tail"]["cuts"].as_array().map(Vec::len), Some(1), "{found}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "removes a file of the store")]
fn the_command_of_doctor_restores_a_lost_current() {
    let bench = imported();
    std::fs::rename(bench.path(".annals"), bench.path("it's a store")).unwrap();
    let run = |line: &str| bench.run_args(["--store", "it's a store"].into_iter().chain(line.split(' ')));
    let before = run("replay --all --json").json();
    std::fs::remove_file(bench.path("it's a store/CURRENT")).unwrap();
    for verb in ["verify --run a", "runs", "put key value"] {
        let error = run(verb);
        assert_ne!(error.code, 0, "{verb}: {error:?}");
    }
    assert!(run("runs").failed(3).contains("has lost its file CURRENT"));
    let told = run("doctor");
    assert_eq!(told.code, 3, "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    let command = told.lines().find_map(|line| line.trim().strip_prefix("next:")).unwrap().trim();
    let done = Command::new("sh").args(["-c", command]).current_dir(bench.directory.path()).status().unwrap();
    assert!(done.success(), "{command}");
    run("doctor").ok();
    assert_eq!(run("replay --all --json").json(), before);
    run("put key value").ok();
}
