//! Doctor, repair, backup and restore as a user meets them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annals::{Component, Frame, RunSpec, Status, Store};

use crate::{Bench, LINES};

#[expect(clippy::disallowed_methods, reason = "looks at the store from outside")]
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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

fn imported() -> Bench {
    let bench = Bench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    bench.run("put key value").ok();
    bench
}

#[test]
fn a_healthy_store_is_said_to_be_healthy() {
    let bench = imported();
    let before = files(&bench.path(".annals"));
    let text = bench.run("doctor").text();
    assert!(text.contains("closed cleanly") && text.contains("healthy"), "{text}");
    let [found] = bench.run("doctor --json").json().try_into().unwrap();
    assert_eq!(
        (&found["healthy"], &found["clean"], &found["format"]),
        (&true.into(), &true.into(), &3.into())
    );
    assert!(found["free_bytes"].as_u64().unwrap() > 0);
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

#[test]
fn a_store_is_compacted_by_who_holds_it_and_else_here() {
    let bench = imported();
    let names: Vec<String> =
        bench.run("runs --json").json().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    bench.pipe("import --format chat --replace -", LINES.as_bytes()).ok();
    let before = bench.run("replay --all --json").json();
    let [told] = bench.run("compact --dry-run --json").json().try_into().unwrap();
    assert!(told["dry_run"] == true && told["rewritten"].as_u64().unwrap() > 0, "{told}");
    assert!(told["needed_bytes"].as_u64().unwrap() > told["made_bytes"].as_u64().unwrap());
    let text = bench.run("compact --max-bytes-per-second 100000000").text();
    assert!(text.contains("log files became"), "{text}");
    assert_eq!(bench.run("replay --all --json").json(), before);
    assert_eq!(bench.run("runs --json").json().len(), names.len());
    bench.run("verify").ok();
    let text = bench.run("compact").text();
    assert!(text.contains("none worth writing anew"), "{text}");
    bench.run("compact --max-bytes-per-second 0").failed(2);
    bench.run("--store nowhere compact").failed(4);
    // Somebody else writes, and serves nobody.
    let store = Store::open(bench.path(".annals")).unwrap();
    let error = bench.run("compact").failed(1);
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    store.close().unwrap();
}
