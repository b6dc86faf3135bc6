//! Replays of clients whose requests overlap, repeat, or differ in ways that do not matter; also how a replay
//! reports the program's output.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Barrier, Condvar, Mutex};

use crate::record::says;
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// Number of replays of each recording.
const REPLAYS: usize = 5;

fn client() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/order.py");
    path.to_str().unwrap().to_owned()
}

impl CliBench {
    fn record_client(&self, options: &[&str], upstream: &str, doing: &[&str]) -> ProcessResult {
        let client = client();
        let mut args = vec!["record", "--run", "r", "--upstream", upstream];
        args.extend(options);
        args.extend(["--", "python3", "-B", &client]);
        args.extend(doing);
        let mut command = self.command(args);
        ProcessResult::from_output(command.env("OPENAI_API_KEY", "k").stdin(Stdio::null()).output().unwrap())
    }

    fn replay_client(&self, options: &[&str], doing: &[&str]) -> ProcessResult {
        let client = client();
        let mut args = vec!["replay", "r"];
        args.extend(options);
        if !doing.is_empty() {
            args.extend(["--", "python3", "-B", &client]);
            args.extend(doing);
        }
        ProcessResult::from_output(self.command(args).stdin(Stdio::null()).output().unwrap())
    }
}

/// Answers `/v1/held` with a stream: the last event comes at once, the end only after a request for
/// `/v1/finish`.
struct HoldingUpstream {
    url: String,
}

impl HoldingUpstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let finished = Arc::new((Mutex::new(false), Condvar::new()));
        let accept = move || {
            for stream in listener.incoming() {
                let (stream, finished) = (stream.unwrap(), finished.clone());
                std::thread::Builder::new().spawn(move || hold(stream, &finished)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(accept).unwrap();
        Self { url }
    }
}

/// Serves the requests of one connection until the client disconnects.
fn hold(mut to: TcpStream, (finished, changed): &(Mutex<bool>, Condvar)) -> Option<()> {
    let mut from = BufReader::new(to.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            from.read_line(&mut head).ok().filter(|read| *read > 0)?;
        }
        let path = head.split(' ').nth(1)?;
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length:").nth(1)?.lines().next()?.trim().parse().ok()?;
        from.read_exact(&mut vec![0; length]).ok()?;
        if path == "/v1/held" {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            to.write_all(head).ok()?;
            for event in ["data: {\"choices\":[]}\n\n", "data: [DONE]\n\n"] {
                write!(to, "{:x}\r\n{event}\r\n", event.len()).ok()?;
            }
            drop(changed.wait_while(finished.lock().unwrap(), |finished| !*finished).unwrap());
            to.write_all(b"0\r\n\r\n").ok()?;
            continue;
        }
        if path == "/v1/finish" {
            *finished.lock().unwrap() = true;
            changed.notify_all();
        }
        let body = r#"{"choices":[{"message":{"content":"fine"}}]}"#;
        let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
        write!(to, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").ok()?;
    }
}

/// Regression: a client of OpenAI's interface reads a stream up to `data: [DONE]` and continues. annals
/// waited for the end of the stream, which came later. The last event therefore waited for the end of an
/// answer that the client had not requested yet. After 3 s without progress the replay printed "step 1 was
/// answered before [2]" and ended with 3, although the client had no concurrency.
#[test]
fn client_that_stops_at_done_replays_exactly() {
    let (bench, upstream) = (CliBench::new(), HoldingUpstream::start());
    let recorded = bench.record_client(&[], &upstream.url, &["stops_at_done", "3"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    for _ in 0..REPLAYS {
        let replayed = bench.replay_client(&[], &[]);
        assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
        says(&replayed, &["exact 5 of 5, served 5, unused 0"]);
    }
}

/// Regression: eight threads sent the same request at once. A replay printed `exact 8 of 8` without a
/// warning, but each thread got another thread's answer. Which thread sends first is chance; the order of the
/// answers is not.
#[test]
fn overlapping_identical_requests_are_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record_client(&[], &upstream.url, &["same", "8", "as they come"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let lines = |bytes: &[u8]| {
        let mut lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    for _ in 0..REPLAYS {
        let replayed = bench.replay_client(&[], &[]);
        assert_eq!(
            (replayed.code, lines(&replayed.stdout)),
            (0, lines(&recorded.stdout)),
            "{}",
            replayed.stderr
        );
        says(
            &replayed,
            &["exact 8 of 8", "identical requests overlapped: which caller got which answer is not recorded"],
        );
    }
}

/// Sequential identical requests are unambiguous, so no warning is printed.
#[test]
fn sequential_identical_requests_are_not_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record_client(&[], &upstream.url, &["twice"]);
    let replayed = bench.replay_client(&["--check-output"], &[]);
    assert_eq!((replayed.code, replayed.stdout), (0, recorded.stdout), "{}", replayed.stderr);
    assert!(!replayed.stderr.contains("overlapped"), "{}", replayed.stderr);
}

/// Regression: a replay was exact although the program's output differed, and no exit code showed the
/// difference.
#[test]
fn different_output_is_reported_and_checked_on_demand() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_client(&[], &upstream.url, &["prints_time"]).code, 0);
    let another = "the program's standard output is not what was recorded";
    let replayed = bench.replay_client(&[], &[]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &[another, "annals: replayed r: exact 1 of 1"]);
    let checked = bench.replay_client(&["--check-output"], &[]);
    assert_eq!(checked.code, 3, "{checked:?}");
    says(&checked, &[another, "NOT replayed as recorded: r: exact 1 of 1"]);
    assert_eq!(bench.run("check r --programs").code, 0);
    let drifted = bench.run("check r --programs --check-output");
    assert_eq!(drifted.code, 3, "{drifted:?}");
    assert!(String::from_utf8_lossy(&drifted.stdout).contains(another), "{drifted:?}");
    for line in ["check r --check-output", "replay r --raw --check-output"] {
        assert_eq!(bench.run(line).code, 2, "{line}");
    }
}

/// Regression: the client draws a new boundary for each upload of a file, so no replay of an upload matched.
#[test]
fn uploads_match_with_any_boundary() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let parts = ["model=whisper-1", "file@a.txt=some --b1 bytes\r\n--b1x"];
    let doing = |boundary, parts: [&'static str; 2]| ["uploads", boundary, parts[0], parts[1]];
    assert_eq!(bench.record_client(&[], &upstream.url, &doing("b1", parts)).code, 0);
    let exact = bench.replay_client(&["--check-output"], &[]);
    assert_eq!(exact.code, 0, "{exact:?}");
    let other = bench.replay_client(&["--check-output"], &doing("3f2a5c1e00004abc", parts));
    assert_eq!(other.code, 0, "{other:?}");
    says(&other, &["exact 0 of 1, same after the matcher 1, served 1"]);
    for (changed, what) in [
        (["model=whisper-2", parts[1]], "part 1 \"model\" content: \"whisper-1\" was recorded"),
        ([parts[0], "file@b.txt=some --b1 bytes\r\n--b1x"], "part 2 \"file\" content-disposition: "),
        ([parts[0], "file@a.txt=some --b1 byte\r\n--b1x"], "part 2 \"file\" content: "),
    ] {
        let replayed = bench.replay_client(&[], &doing("3f2a5c1e00004abc", changed));
        assert_eq!(replayed.code, 3, "{replayed:?}");
        says(&replayed, &[what, "exact 0 of 1, changed 1"]);
    }
}

/// Regression: a report said "no such call was recorded" and then compared the request with a recorded call.
#[test]
fn report_is_consistent_and_names_the_remedy() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_client(&[], &upstream.url, &["timed"]).code, 0);
    let timed = bench.replay_client(&[], &[]);
    assert_eq!(timed.code, 3, "{timed:?}");
    says(&timed, &["only a time differs", "`annals record --capture-nondet`"]);
    let far = bench.replay_client(&[], &["uploads", "b1", "a=something else altogether"]);
    assert_eq!(far.code, 3, "{far:?}");
    says(&far, &["which resembles no remaining recorded request; the nearest:", "name: "]);
    assert!(!far.stderr.contains("no such call") && !far.stderr.contains("capture-nondet"), "{}", far.stderr);
    let twice = bench.replay_client(&[], &["twice"]);
    assert!(!twice.stderr.contains("no such call"), "{}", twice.stderr);
}

/// Regression: an agent with one thread requests eight samples at once and prints them in the order of its
/// requests. The proxy read the connections in a different order, so only 4 of 20 replays printed the
/// recorded output.
#[test]
fn identical_requests_of_one_thread_keep_their_answers() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record_client(&[], &upstream.url, &["gathers", "8"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    for _ in 0..REPLAYS {
        let replayed = bench.replay_client(&["--check-output"], &[]);
        assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
        says(&replayed, &["exact 8 of 8"]);
    }
}

/// The recording has eight requests, the replay another number: no request may wait for the missing ones.
#[test]
fn different_count_of_identical_requests_does_not_hang() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_client(&[], &upstream.url, &["gathers", "8"]).code, 0);
    let fewer = bench.replay_client(&[], &["twice"]);
    assert_eq!(fewer.code, 3, "{fewer:?}");
    says(&fewer, &["never asked for"]);
    let more = bench.replay_client(&[], &["gathers", "9", "raw"]);
    assert_eq!(more.code, 3, "{more:?}");
    says(&more, &["once more than it was recorded (8 times)", "exact 8 of 8, unrecorded 1"]);
}

/// Answers so many requests once all of them have come, each with its own question: they all overlap.
fn overlapping_upstream(count: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let all = Arc::new(Barrier::new(count));
    let answer = |mut to: TcpStream, all: &Barrier| -> Option<()> {
        let mut from = BufReader::new(to.try_clone().ok()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            from.read_line(&mut head).ok().filter(|read| *read > 0)?;
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length:").nth(1)?.lines().next()?.trim().parse().ok()?;
        let mut body = vec![0; length];
        from.read_exact(&mut body).ok()?;
        let asked: serde_json::Value = serde_json::from_slice(&body).ok()?;
        all.wait();
        let message = &asked["messages"][0];
        let body = serde_json::json!({ "choices": [{ "message": message }] }).to_string();
        let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
        write!(to, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").ok()
    };
    let accept = move || {
        for stream in listener.incoming() {
            let (stream, all) = (stream.unwrap(), all.clone());
            std::thread::Builder::new().spawn(move || answer(stream, &all)).unwrap();
        }
    };
    std::thread::Builder::new().spawn(accept).unwrap();
    url
}

/// A race of concurrent tool calls: the program merges results as they come, so its output depends on the order of
/// answers. A replay gives answers in the recorded order, and `--chaos` in others. The changed output shows the race.
#[test]
fn race_of_parallel_calls_is_found_by_another_order_of_answers() {
    let bench = CliBench::new();
    let upstream = overlapping_upstream(4);
    let recorded = bench.record_client(&[], &upstream, &["merges", "4"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    assert_eq!(String::from_utf8_lossy(&recorded.stdout).matches("tool ").count(), 4, "{recorded:?}");
    says(&bench.replay_client(&[], &[]), &["exact 4 of 4"]);
    // A busy machine may give the threads the recorded order again, so several orders are tried.
    let races = |seed: u32| {
        let replayed = bench.replay_client(&["--chaos", &seed.to_string(), "--check-output"], &[]);
        says(&replayed, &["exact 4 of 4"]);
        let differs = replayed.stderr.contains("the program's standard output is not what was recorded");
        assert_eq!(replayed.code, if differs { 3 } else { 0 }, "{replayed:?}");
        differs
    };
    assert!((1..=8).any(races), "no order of the answers changed the output");
}
