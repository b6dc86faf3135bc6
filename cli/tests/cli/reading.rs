//! The reading verbs: their JSON is a contract.

use annals::{Component, Frame, RunSpec, Status, Store};
use serde_json::{Value, json};

use crate::{CliBench, LINES};

fn imported() -> CliBench {
    let bench = CliBench::new();
    bench.pipe("import --format chat --status-from reward -", LINES.as_bytes()).ok();
    bench
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn runs_as_json_and_as_a_table() {
    let bench = imported();
    let runs = bench.run("runs --json").json();
    for key in ["id", "status", "severity", "frames", "fingerprint"] {
        assert!(runs.iter().all(|run| keys(run).contains(&key)), "{key}");
    }
    assert_eq!((&runs[1]["severity"], &runs[1]["model"]), (&json!("normal"), &json!("m")));
    assert_eq!(runs[0]["fingerprint"].as_str().unwrap().len(), 64);
    let table = bench.run("runs").text();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(!table.contains('\u{1b}'));
    assert_eq!(bench.run("runs --json --status failed").json()[0]["id"], "b");
    assert_eq!(bench.run("runs --json --limit 1").json().len(), 1);
    assert_eq!(bench.run("runs --json --severity escalated").text(), "");
    assert!(bench.run("--namespace other runs --json").failed(4).contains("other"));
}

#[test]
fn replay_prints_an_object_for_each_frame() {
    let bench = imported();
    let frames = bench.run("replay a --json").json();
    assert_eq!(frames.len(), 3);
    for (frame, seq) in frames.iter().zip(1..) {
        assert_eq!((&frame["run"], &frame["seq"]), (&json!("a"), &json!(seq)));
        for key in ["component", "input", "output", "digest"] {
            assert!(frame[key].is_string(), "{key}");
        }
    }
    assert_eq!(bench.run("replay --all --json").json().len(), 4);
    assert_eq!(bench.run("show a@2 --json").json()[0], frames[1]);
    assert!(bench.run("replay a").text().contains("bit-exact: 3 frames"));
    assert!(bench.run("replay --all").text().contains("bit-exact: 2 runs, 4 frames"));
}

#[test]
fn ingested_run_is_readable_but_not_replayed() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let spec = RunSpec::new("trace-1").metadata(r#"{"ingested":{"from":"otlp"}}"#);
    let run = store.namespace("default").unwrap().begin_run(spec).unwrap();
    run.record(Frame::new(Component::Llm, "{}", "ok")).unwrap();
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    for command in ["replay trace-1", "replay trace-1 -- echo", "replay"] {
        let told = bench.run(command).failed(3);
        assert!(told.contains("DIVERGED at step 1") && told.contains("ingested from traces"), "{told}");
    }
    assert_eq!(bench.run("replay trace-1 --json").json()[0]["output"], "ok");
    assert!(bench.run("replay --all").text().contains("bit-exact: 3 runs, 5 frames"));
}

#[test]
fn verify_counts_what_it_checked() {
    let bench = imported();
    let [all] = bench.run("verify --json").json().try_into().unwrap();
    assert_eq!((&all["runs"], &all["frames"], &all["damaged"]), (&json!(2), &json!(4), &json!([])));
    assert!(all["blobs"].as_u64().unwrap() > 0);
    assert!(all["values"].is_u64() && all["snapshots"].is_u64(), "{all}");
    let [one] = bench.run("verify a --json").json().try_into().unwrap();
    assert_eq!((&one["runs"], &one["frames"]), (&json!(1), &json!(3)));
    let [sample] = bench.run("verify --sample 1 --json").json().try_into().unwrap();
    assert_eq!(sample["runs"], 1);
    assert!(bench.run("verify").text().starts_with("whole: 2 runs, 4 frames, "));
}

#[test]
fn stats_report_counts_and_disk_bytes() {
    let bench = imported();
    let [stats] = bench.run("stats --json").json().try_into().unwrap();
    assert_eq!((&stats["runs"], &stats["frames"]), (&json!(2), &json!(4)));
    let frames = bench.run("replay --all --json").json();
    let len = |frame: &Value, key: &str| frame[key].as_str().unwrap().len() as u64;
    let raw: u64 = frames.iter().map(|frame| len(frame, "input") + len(frame, "output")).sum();
    assert!(stats["raw_bytes"].as_u64().unwrap() >= raw);
    assert!(stats["disk_bytes"].as_u64().unwrap() > 0);
    for kind in [
        "pieces",
        "recipes",
        "frame_records",
        "run_records",
        "kv_records",
        "chains_and_ledger",
        "tables",
        "vectors",
        "log_files",
        "manifest",
        "other",
    ] {
        assert!(stats["bytes"][kind].is_u64(), "{kind}");
    }
    // Every byte has a kind.
    let kinds = stats["bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap());
    assert_eq!(
        (kinds.sum::<u64>(), &stats["bytes"]["other"]),
        (stats["disk_bytes"].as_u64().unwrap(), &json!(0))
    );
    bench.run("stats").ok();
}

#[test]
fn fork_shares_earlier_frames() {
    let bench = imported();
    let fork = &bench.run("fork a@2 again --json").json()[0];
    assert_eq!((&fork["id"], &fork["frames"]), (&json!("again"), &json!(2)));
    let (of_fork, of_run) = (bench.run("replay again --json").json(), bench.run("replay a --json").json());
    for (forked, original) in of_fork.iter().zip(&of_run) {
        assert_eq!(
            (&forked["input"], &forked["output"], &forked["digest"]),
            (&original["input"], &original["output"], &original["digest"])
        );
    }
    assert_eq!(of_fork.len(), 2);
}

#[test]
fn terminal_output_has_no_control_sequences() {
    let bench = CliBench::new();
    let line = r#"{"run":"r","component":"x","input":"\u001b]0;title\u0007","output":"\u009b2J \u202egpj.exe\u2066\u061c\u200b"}"#;
    bench.pipe("import --format frames -", line.as_bytes()).ok();
    for line in ["show r", "show r@1", "replay r"] {
        let shown = bench.run(line).text();
        // Regression: bidirectional controls were shown as they are, so a recorded text could look like another.
        let hidden = |char: char| {
            char.is_control() && char != '\n' || "\u{202e}\u{2066}\u{61c}\u{200b}".contains(char)
        };
        assert!(!shown.chars().any(hidden), "{line}: {shown:?}");
    }
    assert!(bench.run("show r@1").text().contains("\\u{202e}gpj.exe"));
    // A name in an error message is recorded text, too.
    assert!(bench.run_args(["show", "no\u{202e}ne"]).failed(4).contains("\\u{202e}"));
    assert_eq!(bench.run("show r@1 --input --raw").ok(), b"\x1b]0;title\x07");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let bench = CliBench::new();
    let big = format!(r#"{{"run":"r","component":"llm","output":"{}"}}"#, "x".repeat(1 << 20));
    bench.pipe("import --format frames -", big.as_bytes()).ok();
    for line in ["replay r --json", "replay r --raw"] {
        let mut command = bench.command(line.split_whitespace());
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), done.stderr.as_slice()), (Some(0), &b""[..]), "{line}");
    }
}

#[test]
fn search_finds_what_was_said() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("birds")).unwrap();
    run.record(Frame::new(Component::Tool, "{}", "the kingfisher of ada@example.org dives")).unwrap();
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let hits = bench.run("search kingfisher --json").json();
    assert_eq!((hits.len(), &hits[0]["run"], &hits[0]["seq"]), (1, &json!("birds"), &json!(1)));
    assert_eq!(hits[0]["text"]["found"], json!("kingfisher"));
    assert_eq!(hits[0]["text"]["is_exact"], json!(true));
    let text = bench.run("search the kingfisher").text();
    assert!(text.starts_with("birds@1  tool  "), "{text}");
    assert!(text.contains("\n    the kingfisher of ada@example.org dives\n"), "{text}");
    assert!(bench.run("search --rebuild kingfisher").text().starts_with("birds@1"));
    assert!(bench.run("search cassowary").failed(4).contains("nothing was found for"));
    // Regression: a frame said it, and annals denied that. Frequent words, and parts of a stretch without spaces, are not
    // in the index.
    for (question, hint) in [("the", "frequent words alone find nothing"), ("退款", "only whole stretches")]
    {
        let none = bench.run(&format!("search {question}"));
        assert!(none.code == 4 && none.stderr.contains(hint), "{none:?}");
    }
    let hidden = bench.run("search ada@example.org --as safe");
    assert!(hidden.code == 4 && hidden.stderr.contains("error: nothing was found for"), "{hidden:?}");
    let shown = bench.run("search kingfisher --as safe");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("[email:") && !text.contains("ada@"), "{shown:?}");
}

/// Regression: names of runs reached the terminal with bidirectional controls, so one run could pose as another.
#[test]
fn names_of_runs_are_shown_escaped() {
    let bench = CliBench::new();
    let name = "ok\u{202e}gpj.exe";
    let line = json!({ "run": name, "component": "llm", "input": "a", "output": "b" }).to_string();
    bench.pipe("import --format frames -", line.as_bytes()).ok();
    bench.pipe("import --format frames -", br#"{"run":"z","component":"llm","output":"bb"}"#).ok();
    let at = format!("{name}@1");
    for words in [
        &["show", name][..],
        &["show", &at],
        &["open", "--text", name],
        &["tail", name],
        &["diff", name, "z"],
        &["fork", &at, "new"],
        &["runs"],
        &["forget", name, "--why", "asked"],
    ] {
        let done = bench.run_args(words);
        let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), done.stderr);
        assert!(told.contains("gpj.exe") && !told.contains('\u{202e}'), "{words:?}: {told}");
    }
}

#[test]
fn search_by_meaning_finds_remembered_runs() {
    let bench = imported();
    assert!(bench.run("search --meaning mortgage").failed(4).contains("no question of a run"));
    let run = |id: &str, question: &str, answer: &str| {
        let messages =
            json!([{ "role": "user", "content": question }, { "role": "assistant", "content": answer }]);
        json!({ "id": id, "messages": messages }).to_string()
    };
    for (tenant, line) in [
        ("bank", run("loan", "Why was the mortgage of ada@example.org rejected?", "The credit is low.")),
        ("vet", run("cat", "Which vaccine does the cat need?", "Rabies.")),
    ] {
        bench.write("runs.jsonl", &line);
        bench.run(&format!("import --format chat --remember --tenant {tenant} runs.jsonl")).ok();
    }
    let hits = bench.run("search --meaning why was a mortgage rejected --json").json();
    assert_eq!((hits.len(), &hits[0]["run"], &hits[0]["gone"]), (1, &json!("loan"), &json!(false)));
    let text = bench.run("search --meaning mortgage rejected").text();
    assert!(text.starts_with("loan@2  bank/_/_  1.00\n    Why was the mortgage"), "{text}");
    assert!(text.ends_with("\n    > The credit is low.\n"), "{text}");
    let shown = bench.run("search --meaning mortgage rejected --as safe");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("[email:") && !text.contains("ada@"), "{shown:?}");
    let hidden = bench.run("search --meaning ada@example.org --as safe");
    assert!(hidden.code == 4 && hidden.stderr.contains("no question of a run"), "{hidden:?}");
    assert_eq!(bench.run("search --meaning mortgage --rebuild").code, 2);
}

/// A process that holds the store indexes the frames: the search does not wait for it to end.
#[test]
fn search_works_while_another_process_holds_the_store() {
    let bench = imported();
    let store = Store::open(bench.path(".annals")).unwrap();
    let _host = annals_server::RecorderHost::start(&store, &bench.path(".annals")).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("held")).unwrap();
    run.record(Frame::new(Component::Tool, "{}", "the nightjar churrs")).unwrap();
    let hits = bench.run("search nightjar --json").json();
    assert_eq!((hits.len(), &hits[0]["run"]), (1, &json!("held")));
}
