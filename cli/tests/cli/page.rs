//! The debugger page and the report as a person opens them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use annals::{Component, Frame, RunSpec, Status, Store};
use serde_json::{Value, json};

use crate::CliBench;

const HOSTILE: &str = "</script><script>alert(1)</script>\u{202e}";

fn bench() -> CliBench {
    let bench = CliBench::new();
    let store = Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    for (name, answer) in [("good", "Booked."), ("bad/run", HOSTILE)] {
        let run = space.begin_run(RunSpec::new(name).agent("planner")).unwrap();
        let ask =
            json!({ "model": "m", "messages": [{ "role": "user", "content": "write to ada@example.org" }] });
        let answer = json!({ "role": "assistant", "content": answer });
        run.record(Frame::new(Component::Llm, ask.to_string(), answer.to_string())).unwrap();
        run.snapshot(format!("{{\"of\":\"{name}\"}}"), &[]).unwrap();
        run.end(if name == "good" { Status::Ok } else { Status::Failed }).unwrap();
    }
    store.close().unwrap();
    // A child process of another test inherits the lock file until it executes its program.
    while bench.run("put released yes").stderr.contains("is writing to") {}
    bench
}

/// Runs a command that must fail with this exit code and say this on standard error.
#[track_caller]
fn fails(bench: &CliBench, line: &str, code: i32, says: &str) {
    let done = bench.run(line);
    assert!(done.code == code && done.stderr.contains(says), "{line}: {done:?}");
}

fn read(bench: &CliBench, name: &str) -> String {
    std::fs::read_to_string(bench.path(name)).unwrap()
}

/// The data inside a report.
fn data(page: &str) -> Value {
    let data = page.split("id=\"annals-report\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn report_holds_a_run_in_one_file() {
    let bench = bench();
    let text = bench.run("report bad/run -o r.html").text();
    assert!(text.starts_with("r.html: 1 frame, "), "{text}");
    let page = read(&bench, "r.html");
    assert_eq!(page.to_lowercase().matches("<script").count(), 2, "recorded text became a script");
    assert!(
        !page.contains(" src=") && !page.contains(" href=") && !page.contains("@import"),
        "it loads a file"
    );
    let data = data(&page);
    let run = &data["runs"][0];
    assert_eq!(run["run"]["name"], "bad/run");
    assert_eq!(run["run"]["fingerprint"].as_str().unwrap().len(), 64);
    assert_eq!(run["views"]["1"]["answer"][0]["parts"][0]["text"], HOSTILE);
    assert_eq!(run["timeline"]["frames"].as_array().unwrap().len(), 1);
    assert_eq!((&run["verified"]["frames"], &run["damage"]), (&json!(1), &json!([])));
    assert_eq!(run["states"][0]["state"], "{\"of\":\"bad/run\"}");
    assert_eq!(run["failure"]["seq"], 1);
    assert!(data["ledger"].is_object(), "{data}");
    let [told] = bench.run("report bad/run -o r.html --json").json().try_into().unwrap();
    assert_eq!(
        (&told["report"], &told["runs"], &told["damage"]),
        (&json!("r.html"), &json!(["bad/run"]), &json!([]))
    );
}

#[test]
fn report_of_two_runs_pairs_their_frames() {
    let bench = bench();
    bench.run("report good bad/run -o pair.html").ok();
    let data = data(&read(&bench, "pair.html"));
    assert_eq!(data["diff"]["pairs"][0]["kind"], "changed");
    assert_eq!(data["diff"]["pairs"][0]["output"], true);
    assert_eq!(data["runs"].as_array().unwrap().len(), 2);
}

/// A hash or a state beside redacted text would let a reader check guesses.
#[test]
fn redacted_report_holds_no_values_and_no_hashes() {
    let bench = bench();
    let done = bench.run("report good -o safe.html --as safe");
    assert_eq!(
        (done.code, done.stderr.trim()),
        (0, "annals: redacted by profile safe: not what was recorded")
    );
    let page = read(&bench, "safe.html");
    assert!(!page.contains("ada@example.org"), "the address stands in the report");
    let data = data(&page);
    assert_eq!(data["profile"], "safe");
    let run = &data["runs"][0];
    assert_eq!(
        (&run["run"]["fingerprint"], &run["states"], &run["blame"]),
        (&Value::Null, &json!([]), &Value::Null)
    );
    assert_eq!(run["views"]["1"]["request"]["blake3"], Value::Null);
    bench.run("report good -o raw.html").ok();
    assert!(read(&bench, "raw.html").contains("ada@example.org"), "the test looks for the right text");
}

#[test]
fn report_of_a_tape_needs_no_store() {
    let bench = bench();
    bench.run("tape export bad/run -o r.tape").ok();
    bench.run("report --tape r.tape -o tape.html --store missing").ok();
    let data = data(&read(&bench, "tape.html"));
    assert_eq!(data["runs"][0]["run"]["name"], "bad/run");
    assert_eq!(data["runs"][0]["views"]["1"]["answer"][0]["parts"][0]["text"], HOSTILE);
}

#[test]
fn report_errors_say_what_to_do() {
    let bench = bench();
    fails(&bench, "report none -o r.html", 4, "none");
    fails(&bench, "report good -o nowhere/r.html", 1, "nowhere/r.html");
    fails(&bench, "report good", 2, "--output");
    fails(&bench, "report -o r.html", 2, "RUN");
    fails(&bench, "report --tape none.tape -o r.html", 4, "none.tape");
}

/// A process of `annals open --web`.
struct OpenPage {
    child: Child,
    link: String,
}

impl OpenPage {
    fn start(bench: &CliBench, line: &str) -> Self {
        let mut command = bench.command(line.split_whitespace());
        let mut child = command
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut text = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut text).unwrap();
        let link = text.find("http://").map(|at| text[at..].trim().to_owned());
        assert!(link.is_some(), "{text:?} has no link");
        let link = link.unwrap();
        Self { child, link }
    }

    fn address(&self) -> &str {
        self.link.strip_prefix("http://").unwrap().split('/').next().unwrap()
    }

    fn ask(&self, request: &str, headers: &str, body: &str) -> String {
        ask(self.address(), request, headers, body)
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(address: &str, request: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Logs in by a link. Returns the headers of the session.
fn login(link: &str, address: &str) -> String {
    log_in(link, address).0
}

/// The headers of a session, and whether the page is told that it only reads.
fn log_in(link: &str, address: &str) -> (String, bool) {
    let code = link.split("#/login/").nth(1).unwrap().split('?').next().unwrap();
    let answer = ask(
        address,
        "POST /login",
        "content-type: application/json\r\n",
        &json!({ "code": code }).to_string(),
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = answer.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap();
    let given: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let session = format!("cookie: {cookie}\r\nannals-page: {}\r\n", given["key"].as_str().unwrap());
    (session, given["reads_only"].as_bool().unwrap())
}

#[test]
fn open_web_serves_the_page_without_a_daemon() {
    let bench = bench();
    let page = OpenPage::start(&bench, "open --last-failed --web");
    assert!(page.link.ends_with("?to=/run/bad%252Frun"), "{}", page.link);
    assert!(page.ask("GET /", "", "").contains("/assets/page.js"));
    assert!(page.ask("GET /v1/runs", "", "").starts_with("HTTP/1.1 401"), "the store needs the link");
    let session = login(&page.link, page.address());
    let runs = page.ask("GET /v1/runs?with=usage", &session, "");
    assert!(runs.starts_with("HTTP/1.1 200") && runs.contains("bad/run"), "{runs}");
    let view = page.ask("GET /v1/runs/good/frames/1/view", &session, "");
    assert!(view.contains("Booked."), "{view}");
    // Another process gets a link from this one.
    let [told] = bench.run("open --web --json").json().try_into().unwrap();
    let link = told["page"].as_str().unwrap();
    assert!(link.starts_with(&format!("http://{}/#/login/", page.address())), "{link}");
    login(link, page.address());
    drop(page);
    assert_eq!(bench.run("token list").text(), "", "the page left a token in the store");
}

#[test]
fn open_web_uses_the_daemon_of_the_store() {
    let bench = bench();
    let daemon = bench.serve(&["--http", "127.0.0.1:0"]);
    let link = bench.run("open good --web").text();
    let link = &link[link.find("http://").unwrap()..];
    let address = link.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let session = login(link.trim(), address);
    assert!(ask(address, "GET /v1/runs", &session, "").starts_with("HTTP/1.1 200"));
    drop(daemon);
    let daemon = bench.serve(&[]);
    let page = OpenPage::start(&bench, "open --web");
    let session = login(&page.link, page.address());
    assert!(page.ask("GET /v1/runs", &session, "").starts_with("HTTP/1.1 200"), "a daemon without HTTP");
    drop((page, daemon));
}

/// A program that links the engine holds the store, and listens nowhere.
#[test]
fn open_web_follows_the_store_of_a_program() {
    let bench = bench();
    let store = Store::open(bench.path(".annals")).unwrap();
    let page = OpenPage::start(&bench, "open --web");
    let session = login(&page.link, page.address());
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("mine")).unwrap();
    run.record(Frame::new(Component::Tool, "{}", "1")).unwrap();
    while !page.ask("GET /v1/runs/mine", &session, "").contains(r#""frames":1"#) {}
    run.end(Status::Ok).unwrap();
    while !page.ask("GET /v1/runs/mine", &session, "").contains(r#""status":"ok""#) {}
    let found = page.ask("GET /v1/search?q=Booked", &session, "");
    assert!(found.contains(r#"{"hits":[],"is_whole":false,"gaps":[]}"#), "nobody indexes: {found}");
    store.close().unwrap();
    // A page that can no longer follow ends: it would show old runs without a word.
    let mut page = page;
    bench.write(".annals/CURRENT", "garbage");
    assert_eq!(page.child.wait().unwrap().code(), Some(3), "damage");
}

/// A recorder holds the store and serves no page: `open --web` said so, and showed nothing.
#[test]
fn open_web_follows_the_store_of_a_recorder() {
    let bench = bench();
    let mut recorder = bench.command(["record", "--allow-empty", "--run", "live", "--", "cat"]);
    let mut recorder =
        recorder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while bench.run("show live").code != 0 {
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder has ended");
    }
    let page = OpenPage::start(&bench, "open live --web");
    let (session, reads_only) = log_in(&page.link, page.address());
    assert!(reads_only, "the page says so");
    let json = |request: &str, body: &str| -> (String, Value) {
        let answer = page.ask(request, &format!("content-type: application/json\r\n{session}"), body);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head[9..12].to_owned(),
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{answer}: {error}")),
        )
    };
    assert_eq!(json("GET /v1/runs/live", "").1["status"], "open");
    assert!(json("GET /v1/runs/good/frames/1/view", "").1.to_string().contains("Booked."));
    // What needs a place in the store that nobody has made.
    for route in ["GET /v1/memory/definitions", "GET /v1/diagnostics/audit"] {
        assert_eq!(json(route, "").0, "404", "{route}");
    }
    // The recorder indexes, and this process finds it.
    let found = json("GET /v1/search?q=Booked", "").1;
    assert!(found["hits"][0]["run"] == "good" && found["is_whole"] == true, "{found}");
    for (request, body, status) in [
        ("POST /v1/runs/good/pin", r#"{"why":"x"}"#, "400"),
        ("POST /v1/store/compact", "{}", "400"),
        ("POST /v1/store/retain", r#"{"dry_run":true}"#, "200"),
        ("POST /v1/store/verify", "{}", "200"),
    ] {
        let (code, why) = json(request, body);
        assert_eq!(code, status, "{request}: {why}");
    }
    let (_, why) = json("POST /v1/store/compact", "{}");
    assert!(why["detail"].as_str().unwrap().contains("open for reading only"), "{why}");
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    while json("GET /v1/runs/live", "").1["status"] != "ok" {}
    bench.run("put x y").ok();
    let page_again = OpenPage::start(&bench, "open --web");
    let (session, reads_only) = log_in(&page_again.link, page_again.address());
    assert!(!reads_only);
    let pinned = page_again.ask(
        "POST /v1/runs/good/pin",
        &format!("content-type: application/json\r\n{session}"),
        r#"{"why":"x"}"#,
    );
    assert!(pinned.starts_with("HTTP/1.1 204"), "with the store of its own it may write: {pinned}");
}

#[test]
fn open_web_errors_say_what_to_do() {
    let bench = bench();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fails(&bench, &format!("open --web --port {port}"), 1, &format!("another program uses port {port}"));
    fails(&bench, "open none --web", 4, "none");
    fails(&bench, "open", 2, "no run is named");
    fails(&bench, "open good --port 1", 2, "--web");
    fails(&bench, "open good --web --as safe", 2, "--as");
    fails(&bench, "open --web --namespace other", 4, "other");
    fails(&bench, "open --web --store missing", 4, "missing");
}
