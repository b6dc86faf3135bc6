//! What a user sees after damage to files, with a second writer, and after a kill.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use annals::{Frame, RunSpec, Store};

use crate::{CliBench, LINES, bundled_runs};

fn imported() -> CliBench {
    let bench = CliBench::new();
    let carried = bundled_runs();
    let args = ["import", "--format", "chat", "--id", "{task_id}-{trial}", carried.to_str().unwrap()];
    bench.run_args(args).ok();
    bench
}

#[expect(clippy::disallowed_methods, reason = "looks at the store from outside")]
fn largest_segment(bench: &CliBench) -> PathBuf {
    let entries = std::fs::read_dir(bench.path(".annals/segments")).unwrap();
    entries.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "damages the store from outside")]
fn flip(path: &Path, at: u64) {
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();
}

#[test]
fn damage_is_listed_and_exits_with_3() {
    let bench = imported();
    let path = largest_segment(&bench);
    let len = path.metadata().unwrap().len();
    for part in 1..8 {
        flip(&path, len * part / 8);
        let done = bench.run("verify --json");
        assert_eq!((done.code, done.stderr.as_str()), (3, ""), "flip at {part}/8");
        let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert!(!found["damaged"].as_array().unwrap().is_empty(), "flip at {part}/8");
        assert_eq!(bench.run("verify").code, 3);
        flip(&path, len * part / 8);
    }
    bench.run("verify").ok();
}

/// Regression: a report of whole frames was not written if anything else in the log was damaged. `search` passed over
/// damaged frames with exit code 0, or said that no frame has the words.
#[test]
fn damage_elsewhere_leaves_a_report_and_is_said_by_search() {
    let bench = imported();
    let path = largest_segment(&bench);
    let len = path.metadata().unwrap().len();
    let runs = bench.run("runs --json").json();
    flip(&path, len * 7 / 8);
    let whole = runs.iter().map(|run| run["id"].as_str().unwrap());
    let whole = whole.clone().find(|run| bench.run(&format!("verify {run}")).code == 0).unwrap().to_owned();
    let done = bench.run(&format!("report {whole} -o r.html --json"));
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.code, 3, "{done:?}");
    assert!(told["damage"][0].as_str().unwrap().contains("no checkpoint of the ledger"), "{told}");
    assert!(bench.path("r.html").exists());
    flip(&path, len * 7 / 8);
    let mut passed_over = 0;
    for part in 1..16 {
        flip(&path, len * part / 16);
        let done = bench.run("search --rebuild flight");
        if done.stderr.contains("damaged and not searched") {
            passed_over += 1;
            assert_eq!(done.code, 3, "flip at {part}/16: {}", done.stderr);
            assert!(!done.stdout.is_empty(), "what was found is printed");
        }
        flip(&path, len * part / 16);
    }
    assert!(passed_over > 0);
}

#[test]
fn a_damaged_run_does_not_hide_the_others() {
    let bench = imported();
    let whole = bench.run("replay --all --json").json();
    let path = largest_segment(&bench);
    let len = path.metadata().unwrap().len();
    flip(&path, len * 7 / 8);
    let done = bench.run("replay --all --json");
    let frames = done.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    assert!(frames < whole.len() && frames > 0, "{frames}");
    for line in done.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let frame: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert!(whole.contains(&frame), "a frame differs from the recording");
    }
    assert!(done.failed(3).starts_with("run "));
    assert_eq!(bench.run("replay --all").code, 3);
}

#[test]
fn second_writer_is_told_the_holder_and_readers_work() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    let store = Store::open(bench.path(".annals")).unwrap();
    let pid = std::process::id().to_string();
    for line in ["put k v --wait 0", "import --format chat - --wait 0", "fork a@1 f --wait 0"] {
        let error = bench.pipe(line, b"{\"id\":\"c\",\"messages\":[]}").failed(1);
        assert!(error.contains(&pid), "{error}");
    }
    assert_eq!(bench.run("runs --json").json().len(), 2);
    assert!(bench.run("replay --all").text().contains("bit-exact"));
    store.close().unwrap();
    bench.run("put k v").ok();
}

/// A kill may come after the end of one run and before the beginning of the next, when no run is open. On a
/// busy machine this happened, and the test then asked for an abandoned run in vain. So it kills recorders
/// until one had a run open; what is promised holds for each of them.
#[test]
fn killed_writer_keeps_acknowledged_data() {
    let abandoned = |bench: &CliBench| {
        let mut command = bench.command(["demo", "--record-into", ".annals"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut acknowledged = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut acknowledged).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let promised = acknowledged.iter().filter(|byte| **byte == b'\n').count();
        assert!(bench.run("replay --all --json").json().len() >= promised);
        bench.run("verify").ok();
        bench.run("put k v").ok();
        let runs = bench.run("runs --json").json();
        bench.run("verify").ok();
        runs.iter().any(|run| run["status"] == "abandoned")
    };
    assert!((0..10).any(|_| abandoned(&CliBench::new())), "each of 10 kills came between two runs");
}

#[test]
fn killed_import_leaves_only_whole_runs() {
    let bench = CliBench::new();
    let messages = vec![r#"{"role":"assistant","content":"x"}"#; 300].join(",");
    let lines: Vec<String> = (0..60).map(|id| format!("{{\"id\":{id},\"messages\":[{messages}]}}")).collect();
    let file = bench.write("runs.jsonl", lines.join("\n"));
    for round in 0..3 {
        let store = format!("store-{round}");
        let mut command = bench.command(["--store", &store, "import", "--format", "chat", &file]);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let listing = || bench.run(&format!("--store {store} runs --json")).stdout;
        // Kill the import once the first run is listed, while it imports a later one.
        while listing().is_empty() && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = listing();
        assert!(!listed.is_empty());
        for line in listed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let run: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!((&run["frames"], &run["status"]), (&300.into(), &"ok".into()));
        }
        bench.run(&format!("--store {store} verify")).ok();
    }
}

#[test]
fn invalid_names_are_refused_with_line_and_lose_nothing() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    for name in ["", "a\\nb", &"x".repeat(513)] {
        let line = format!(
            "{{\"id\":\"fine-{0}\",\"messages\":[]}}\n{{\"id\":\"{name}\",\"messages\":[]}}",
            name.len()
        );
        let error = bench.pipe("import --format chat -", line.as_bytes()).failed(1);
        assert!(error.starts_with("line 2: run 2: a run's name "), "{error}");
    }
    assert_eq!(bench.run("runs --json").json().len(), 5);
    let key = "k".repeat(65_537);
    assert!(bench.run(&format!("put {key} v")).failed(1).contains("65536"));
    bench.run("verify").ok();
}

#[test]
fn state_is_the_newest_snapshot_up_to_the_frame() {
    let bench = CliBench::new();
    let store = Store::open(bench.path(".annals")).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    for (state, output) in [(Some(&b"first"[..]), "1"), (None, "2"), (Some(b"\xff"), "3")] {
        run.record(Frame::new(annals::Component::Llm, "in", output)).unwrap();
        if let Some(state) = state {
            run.snapshot(state, &[]).unwrap();
        }
    }
    run.end(annals::Status::Ok).unwrap();
    store.close().unwrap();
    assert_eq!(bench.run("state r@2 --raw").ok(), b"first");
    assert_eq!(bench.run("state r --raw").ok(), b"\xff");
    let [state] = bench.run("state r@2 --json").json().try_into().unwrap();
    assert_eq!((&state["run"], &state["seq"], &state["state"]), (&"r".into(), &1.into(), &"first".into()));
    let [state] = bench.run("state r --json").json().try_into().unwrap();
    assert_eq!((&state["seq"], &state["state_base64"]), (&3.into(), &"/w==".into()));
    bench.run("state r@4").failed(4);
}
