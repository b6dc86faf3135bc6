//! Server-sent events, and requests that only a look at the raw head tells apart.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::TestApi;
use crate::access::{AccessToken, Rights};
use crate::tests::token;

/// A stream of events that is being read.
struct EventReader(BufReader<TcpStream>);

/// Name, id and data of an event.
type Event = (String, Option<u64>, Value);

impl TestApi {
    /// Opens a stream of events; returns its status and its reader.
    fn follow(&self, path: &str, headers: &str) -> (u16, EventReader) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0);
        }
        (status, EventReader(reader))
    }
}

impl EventReader {
    /// The next event; `None` at the end. Lines of chunked encoding, and comments, are passed over.
    fn next(&mut self) -> Option<Event> {
        let (mut name, mut id, mut line) = (None, None, String::new());
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("event: ") {
                name = Some(text.to_owned());
            } else if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.parse().unwrap());
            } else if let Some(text) = line.strip_prefix("data: ") {
                return Some((name.expect("an event has a name"), id, serde_json::from_str(text).unwrap()));
            }
        }
    }

    #[track_caller]
    fn expect(&mut self) -> Event {
        self.next().expect("the stream has ended")
    }
}

#[test]
fn frames_of_a_run_are_events_until_it_ends() {
    let api = TestApi::new();
    let mut client = api.bench.client();
    client.bytes(b"run.begin name r\r\nframe.add r llm one first\r\n");
    let (status, mut events) = api.follow("/v1/runs/r/events", "");
    assert_eq!(status, 200);
    let (name, id, frame) = events.expect();
    assert_eq!(
        (name.as_str(), id, &frame["request"], &frame["response"]),
        ("frame", Some(1), &json!("one"), &json!("first"))
    );
    // The stream waits, and sees what arrives later. A frame that is not finished is no event yet.
    client.bytes(b"frame.add r llm two second\r\nframe.begin r llm three\r\n");
    assert_eq!(events.expect().1, Some(2));
    client.bytes(b"frame.end r 3\r\nrun.end r\r\n");
    assert_eq!(events.expect().1, Some(3));
    let (name, id, run) = events.expect();
    assert_eq!((name.as_str(), id, &run["status"], &run["frames"]), ("end", None, &json!("ok"), &json!(3)));
    assert_eq!(events.next(), None, "the response ends with the run");
    // A client goes on after the last event that it has.
    let (_, mut again) = api.follow("/v1/runs/r/events", "last-event-id: 2\r\n");
    assert_eq!((again.expect().1, again.expect().0.as_str()), (Some(3), "end"));
    let (_, mut from) = api.follow("/v1/runs/r/events?from=2", "");
    assert_eq!(from.expect().1, Some(2));
    for (path, headers, status) in [
        ("/v1/runs/none/events", "", 404),
        ("/v1/runs/r/events?since=1", "", 400),
        ("/v1/runs/r/events", "last-event-id: x\r\n", 400),
        ("/v1/events?from=1", "", 400),
    ] {
        assert_eq!(api.follow(path, headers).0, status, "{path} {headers}");
    }
}

#[test]
fn runs_that_begin_and_change_are_events() {
    let api = TestApi::new();
    let mut client = api.bench.client();
    client.bytes(b"run.begin name old\r\nrun.end old\r\nrun.begin name open\r\n");
    let (status, mut events) = api.follow("/v1/events", "");
    assert_eq!(status, 200);
    let named = |(name, _, run): Event| (name, run["name"].as_str().unwrap().to_owned(), run);
    let (name, run, told) = named(events.expect());
    assert_eq!((name.as_str(), run.as_str(), &told["status"]), ("run", "open", &json!("open")));
    client.bytes(b"frame.add open llm a b\r\n");
    let (_, run, told) = named(events.expect());
    assert_eq!((run.as_str(), &told["frames"]), ("open", &json!(1)));
    client.bytes(b"run.begin name new\r\n");
    let (_, id, told) = events.expect();
    assert_eq!((id, &told["name"]), (told["uid"].as_u64(), &json!("new")));
    client.bytes(b"run.end open failed\r\n");
    let (_, run, told) = named(events.expect());
    assert_eq!((run.as_str(), told["status"] == "open"), ("open", false));
    // Regression: a flag on a run that had ended, and its end by a person, were not told.
    client.bytes(b"run.flag old why\r\n");
    let (_, run, told) = named(events.expect());
    assert_eq!((run.as_str(), &told["severity"]), ("old", &json!("flagged")));
    client.bytes(b"run.unflag old\r\n");
    assert_eq!(named(events.expect()).2["severity"], "normal");
    client.bytes(b"run.drop old why\r\n");
    let (name, run, _) = named(events.expect());
    assert_eq!((name.as_str(), run.as_str()), ("gone", "old"));
    // A client that was away gets the runs that began meanwhile.
    client.bytes(b"run.begin name later\r\nrun.end later\r\n");
    let (_, mut again) = api.follow("/v1/events", &format!("last-event-id: {}\r\n", id.unwrap()));
    assert_eq!(named(again.expect()).1, "new", "it is open");
    assert_eq!(named(again.expect()).1, "later");
}

#[test]
fn stream_of_an_expired_token_ends_with_the_reason() {
    let api = TestApi::with(false);
    api.bench.client().bytes(b"run.begin name r\r\n");
    let now_ns = api.bench.daemon.now_ns();
    let expiring =
        |ns| AccessToken { expires_ns: Some(now_ns + ns), ..token("reader", "default", Rights::READ) };
    api.bench.daemon.access.add(expiring(3_600_000_000_000));
    let login = "authorization: Bearer token\r\n";
    let (status, mut events) = api.follow("/v1/runs/r/events", login);
    assert_eq!(status, 200);
    // As if the hour had passed.
    api.bench.daemon.access.remove("reader");
    api.bench.daemon.access.add(AccessToken { expires_ns: Some(now_ns), ..expiring(0) });
    let (name, _, problem) = events.expect();
    assert_eq!(
        (name.as_str(), &problem["code"], &problem["status"]),
        ("error", &json!("NOAUTH"), &json!(401))
    );
    assert_eq!(events.next(), None);
    let refused = api.ask_with("GET /v1/runs", login, b"");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("bearer")));
    assert!(refused.text().contains("the token expired at "), "{}", refused.text());
}

/// A stream has no end of its own: it held up the daemon's end until the time limit.
#[test]
fn streams_end_with_the_daemon() {
    let api = TestApi::new();
    api.bench.client().bytes(b"run.begin name r\r\n");
    let (_, mut runs) = api.follow("/v1/events", "");
    let (_, mut frames) = api.follow("/v1/runs/r/events", "");
    assert_eq!(runs.expect().0, "run");
    api.stop.send(true).unwrap();
    assert_eq!((runs.next(), frames.next()), (None, None));
    api.await_ended(2);
}

/// A slow reader holds one reply in the daemon, however long the run is.
#[test]
fn slow_reader_of_events_holds_one_reply() {
    let api = TestApi::new();
    let mut client = api.bench.client();
    let answer = "x".repeat(1 << 20);
    client.bytes(b"run.begin name r\r\n");
    for _ in 0..40 {
        client.bytes(
            format!(
                "*5\r\n$9\r\nframe.add\r\n$1\r\nr\r\n$3\r\nllm\r\n$1\r\nq\r\n${}\r\n{answer}\r\n",
                answer.len()
            )
            .as_bytes(),
        );
    }
    client.bytes(b"run.end r\r\n");
    let commands = || api.bench.daemon.figures().commands;
    let before = commands();
    let (_, mut events) = api.follow("/v1/runs/r/events", "");
    assert_eq!(events.expect().1, Some(1));
    // The socket takes some MB; then the stream's task waits, and asks for nothing.
    (0..50).for_each(|_| assert_eq!(api.ask_with("GET /healthz", "", b"").status, 200));
    let asked = commands() - before;
    assert!(asked < 11, "{asked} of some 12 commands");
    let rest = std::iter::from_fn(|| events.next()).count();
    assert_eq!(rest, 39 + 1, "all frames and the end arrive");
}

/// Regression: hyper took one of the two lengths and hid the other.
#[test]
fn request_with_two_lengths_is_refused() {
    let api = TestApi::new();
    let host = api.address;
    let both = format!(
        "PUT /v1/databases/0/keys/k HTTP/1.1\r\nhost: {host}\r\ncontent-length: 40\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n"
    );
    let first = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let answer = api.raw(both.as_bytes());
    assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/problem+json")));
    assert!(answer.text().contains("both Content-Length and Transfer-Encoding"), "{}", answer.text());
    assert!(!answer.text().contains("HTTP/1.1"), "nothing behind it is answered");
    let second = api.raw(format!("{first}{both}").as_bytes()).text();
    assert!(second.contains("HTTP/1.1 400"), "also behind another request: {second}");
    api.bench.client().bytes(b"get k\r\n");
    let chunked =
        both.replace("content-length: 40\r\n", "").replace("transfer", "connection: close\r\ntransfer");
    assert_eq!(api.raw(chunked.as_bytes()).status, 204, "one length is fine");
}

#[test]
fn allowed_host_names_are_answered() {
    let api = TestApi::new();
    let port = api.address.port();
    let ask = |host: &str, more: &str| {
        api.raw(
            format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n").as_bytes(),
        )
        .status
    };
    assert_eq!(ask("annals.example", ""), 200);
    assert_eq!(ask(&format!("annals.example:{port}"), "origin: https://annals.example\r\n"), 200);
    assert_eq!(ask("evil.example", ""), 421);
    assert_eq!(ask("annals.example", "origin: https://evil.example\r\n"), 403);
}
