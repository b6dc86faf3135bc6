//! `annals import`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::{CliBench, LINES, bundled_runs};

/// Runs in the order in which they were imported.
fn listing(bench: &CliBench) -> Vec<(String, String, u64)> {
    let runs = bench.run("runs --json").json();
    let row = |run: &serde_json::Value| {
        let text = |key: &str| run[key].as_str().unwrap().to_owned();
        (text("id"), text("status"), run["frames"].as_u64().unwrap())
    };
    runs.iter().rev().map(row).collect()
}

fn both() -> Vec<(String, String, u64)> {
    vec![("a".into(), "ok".into(), 3), ("b".into(), "failed".into(), 1)]
}

#[test]
fn plain_xz_zst_and_piped_input_read_the_same() {
    let mut xz = Vec::new();
    liblzma::read::XzEncoder::new(LINES.as_bytes(), 6).read_to_end(&mut xz).unwrap();
    let mut two_streams = Vec::new();
    for half in LINES.split_inclusive('\n') {
        liblzma::read::XzEncoder::new(half.as_bytes(), 6).read_to_end(&mut two_streams).unwrap();
    }
    let zst = zstd::encode_all(LINES.as_bytes(), 3).unwrap();
    let array = format!("[{}]", LINES.trim_end().replace('\n', ","));
    for bytes in [LINES.as_bytes(), &xz, &two_streams, &zst, array.as_bytes()] {
        let bench = CliBench::new();
        let file = bench.write("runs.data", bytes);
        let told = bench.run(&format!("import --format chat --status-from reward {file}")).text();
        assert!(told.starts_with("imported 2 runs, 4 frames, "), "{told}");
        assert_eq!(listing(&bench), both());
        let bench = CliBench::new();
        bench.pipe("import --format chat --status-from reward -", bytes).ok();
        assert_eq!(listing(&bench), both());
    }
}

#[test]
fn requests_keep_the_exact_text_of_messages() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    let assistant =
        r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"find","arguments":"{}"}}]}"#;
    let tool = r#"{"role":"tool","tool_call_id":"c","content":"-0"}"#;
    let request = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"caf\u00e9"}},{assistant},{tool}]}}"#
    );
    assert_eq!(bench.run("show a@3 --input --raw").text(), request);
    assert_eq!(bench.run("show a@3 --output --raw").text(), r#"{"role":"assistant", "content":"done"}"#);
    let call = r#"{"id":"c","function":{"name":"find","arguments":"{}"}}"#;
    assert_eq!(bench.run("show a@2 --input --raw").text(), call);
    assert_eq!(bench.run("show a@2 --metadata --raw").text(), r#"{"tool":{"name":"find"}}"#);
    assert_eq!(bench.run("show b@1 --input --raw").text(), r#"{"model":"unknown","messages":[]}"#);
    assert_eq!(bench.run("show a --metadata --raw").text(), r#"{"id":"a","reward":1,"model":"m"}"#);
    let outputs = format!(r#"{assistant}{tool}{{"role":"assistant", "content":"done"}}"#);
    assert_eq!(bench.run("replay a --raw").text(), outputs);
}

#[test]
fn bad_line_is_reported_and_earlier_runs_stay() {
    let bench = CliBench::new();
    let lines: Vec<&str> = LINES.lines().collect();
    let source = format!("{}\n{}\n{}\n", lines[0], &lines[1][..40], lines[1]);
    let file = bench.write("runs.jsonl", source);
    let done = bench.run(&format!("import --format chat {file}"));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "imported 1 run, 3 frames, 554 B before the error\n");
    let error = done.failed(1);
    assert!(error.starts_with("line 2: run 2: expected"), "{error}");
    assert_eq!(listing(&bench), [("a".to_owned(), "ok".to_owned(), 3)]);
}

#[test]
fn damaged_archive_leaves_only_whole_runs() {
    let mut xz = Vec::new();
    liblzma::read::XzEncoder::new(LINES.as_bytes(), 6).read_to_end(&mut xz).unwrap();
    let zst = zstd::encode_all(LINES.as_bytes(), 3).unwrap();
    for mut bytes in [xz, zst] {
        bytes.truncate(bytes.len() - 20);
        let bench = CliBench::new();
        let file = bench.write("runs", &bytes);
        let error = bench.run(&format!("import --format chat {file}")).failed(1);
        assert!(error.contains("cannot read the input"), "{error}");
        for (id, _, frames) in listing(&bench) {
            assert_eq!(frames, if id == "a" { 3 } else { 1 });
        }
    }
}

#[test]
fn a_run_that_exists_is_refused_unless_replaced() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    let error = bench.pipe("import --format chat -", LINES.as_bytes()).failed(1);
    assert!(error.contains("`a`") || error.contains("\"a\""), "{error}");
    let shorter = r#"{"id":"a","status":"failed","messages":[{"role":"assistant"}]}"#;
    bench.pipe("import --format chat --replace -", shorter.as_bytes()).ok();
    let replaced = ("a".to_owned(), "failed".to_owned(), 1);
    assert_eq!(listing(&bench), [("b".to_owned(), "ok".to_owned(), 1), replaced]);
}

#[test]
fn names_come_from_a_template() {
    let bench = CliBench::new();
    bench.run_args(["import", "--format", "chat", "--id", "r{reward}/{id}", &bench.write("x", LINES)]).ok();
    let ids: Vec<String> = listing(&bench).into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(ids, ["r1/a", "r0/b"]);
    let error = bench.run("import --format chat --id {nothing} x").failed(1);
    assert_eq!(error, "line 1: run 1: there is no key `nothing`, which the name of runs (--id) needs");
    bench.run("import --format chat --id fixed x").failed(2);
    bench.run("import --format frames --id {id} x").failed(2);
}

#[test]
fn replay_json_can_be_imported_again() {
    let bench = CliBench::new();
    let carried = bundled_runs();
    let args = ["import", "--format", "chat", "--id", "{task_id}-{trial}", carried.to_str().unwrap()];
    bench.run_args(args).ok();
    let exported = bench.run("replay --all --json").ok();
    assert_eq!(exported.iter().filter(|byte| **byte == b'\n').count(), 408);
    bench.pipe("--namespace again import --format frames -", &exported).ok();
    assert!(
        bench.run("--namespace again replay --all --json").ok() == exported,
        "the export of the import differs"
    );
    let fingerprints = |line: &str| -> Vec<_> {
        bench.run(line).json().iter().map(|run| (run["id"].clone(), run["fingerprint"].clone())).collect()
    };
    assert_eq!(fingerprints("--namespace again runs --json"), fingerprints("runs --json"));
}

#[test]
fn binary_bytes_survive_export_and_import() {
    let bench = CliBench::new();
    let line = r#"{"run":"r","component":"tool","input_base64":"/wD+","output":"","metadata_base64":"ewp9"}"#;
    bench.pipe("import --format frames -", line.as_bytes()).ok();
    assert_eq!(bench.run("show r@1 --input --raw").ok(), [0xff, 0, 0xfe]);
    assert_eq!(bench.run("show r@1 --metadata --raw").ok(), b"{\n}");
    let [frame] = bench.run("replay r --json").json().try_into().unwrap();
    assert_eq!((frame["input_base64"].as_str(), frame["input"].as_str()), (Some("/wD+"), None));
    assert_eq!((frame["output"].as_str(), frame["output_base64"].as_str()), (Some(""), None));
}

/// Traces in a file could be brought in only by sending them to a daemon.
#[test]
fn import_reads_traces_from_files_as_structure() {
    let bench = CliBench::new();
    let span = |number: u8, parent: &str, name: &str, more: &str| {
        format!(
            r#"{{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b17{number}","parentSpanId":"{parent}","name":"{name}","startTimeUnixNano":"17954264{number}0000000000","endTimeUnixNano":"17954264{number}1000000000","attributes":[{more}]}}"#
        )
    };
    let text = |key: &str, value: &str| format!(r#"{{"key":"{key}","value":{{"stringValue":"{value}"}}}}"#);
    let chat = [text("gen_ai.operation.name", "chat"), text("gen_ai.request.model", "gpt-4o")].join(",");
    let request = |spans: &[String]| {
        format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{}]}}]}}]}}"#, spans.join(","))
    };
    let root = request(&[span(1, "", "invoke_agent a", &text("gen_ai.operation.name", "invoke_agent"))]);
    let child = request(&[span(2, "eee19b7ec3c1b171", "chat gpt-4o", &chat)]);
    bench.write("traces.jsonl", format!("{root}\n{child}\n"));
    let text = bench.run("import --format otlp traces.jsonl").text();
    assert_eq!(text, "imported 2 frames\n");
    let [run] = bench.run("runs --json").json().try_into().unwrap();
    assert_eq!((&run["frames"], &run["status"]), (&2.into(), &"ok".into()));
    let name = run["id"].as_str().unwrap();
    let shown = bench.run(&format!("show {name}@2 --json")).text();
    assert!(shown.contains("gpt-4o") && shown.contains("\"parent\":1"), "{shown}");
    // Structure only: no program is answered from it.
    assert_ne!(bench.run(&format!("replay {name} -- true")).code, 0);
    // The same file brings nothing new, and says so.
    let text = bench.run("import --format otlp traces.jsonl").text();
    assert_eq!(text, "imported 0 frames; 2 spans there already\n");
    bench.write("broken.jsonl", format!("{child}\n{{\"resourceSpans\":"));
    let error = bench.run("import --format otlp broken.jsonl").failed(1);
    assert!(error.contains("request 2 of the file"), "{error}");
    let refused = bench.pipe(
        "import --format otlp -",
        b"{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"traceId\":\"\"}]}]}]}",
    );
    assert_eq!(refused.code, 1, "a span that is not stored is said: {refused:?}");
    assert_eq!(bench.run("import --format otlp traces.jsonl --remember").code, 2);
    assert_eq!(bench.pipe("import --format otlp -", b"{}").code, 1, "no span");
}

/// Regression: a dataset with `examples`, as evaluation tools export it, gave `no span was imported`, and with
/// `--allow-empty` it even ended with 0.
#[test]
fn dataset_with_examples_is_named_as_no_trace() {
    let bench = CliBench::new();
    bench.write("dataset.json", r#"{"name":"d","examples":[{"input":{"input.value":"a"},"output":{}}]}"#);
    for options in ["", " --allow-empty"] {
        let error = bench.run(&format!("import --format otlp dataset.json{options}")).failed(1);
        assert!(error.contains("the file is a dataset: it has `examples`"), "{error}");
    }
    assert_eq!(bench.pipe("import --format otlp --allow-empty -", b"{}").code, 0);
}

/// An import that Ctrl-C ended said nothing, so nobody knew which runs it had recorded.
#[test]
fn interrupted_import_says_how_many_runs_stay() {
    let bench = CliBench::new();
    let mut import = bench.command(["--json", "import", "--format", "chat", "-"]);
    let mut import =
        import.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = import.stdin.take().unwrap();
    // The first of three runs: the reader waits for the end of the second.
    input.write_all(LINES.split_inclusive('\n').next().unwrap().as_bytes()).unwrap();
    input.write_all(br#"{"id":"cut","messages":[{"role":"#).unwrap();
    let mut acknowledged = String::new();
    BufReader::new(import.stdout.take().unwrap()).read_line(&mut acknowledged).unwrap();
    assert!(acknowledged.contains(r#""run":"a""#), "{acknowledged}");
    let pid = rustix::process::Pid::from_raw(i32::try_from(import.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = import.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.starts_with("error: interrupted; imported before, and kept: at least 1 run\n"), "{told}");
    drop(input);
    assert_eq!(listing(&bench), [("a".to_owned(), "ok".to_owned(), 3)]);
}
