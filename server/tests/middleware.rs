//! A program that records and replays its own reqwest client.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and is an upstream of its own"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use annals::{Namespace, Options, RunSpec, Status, Store};
use annals_server::ReplayOptions;
use annals_server::middleware::{ClientRecording, ClientReplay};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

/// A server that answers one request per connection and counts connections; breaks off if the request asks
/// for it.
fn upstream() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, count) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicU64::new(0)));
    let asked = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
            let mut from = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                from.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            from.read_exact(&mut body).unwrap();
            if head.contains("/broken") {
                continue;
            }
            let answer = format!("{number}: {}", String::from_utf8(body).unwrap());
            let status = if head.contains("/limited") { "429 Too Many Requests" } else { "200 OK" };
            let head =
                format!("HTTP/1.1 {status}\r\nx-number: {number}\r\nretry-after: 3\r\nconnection: close\r\n");
            let all = format!("{head}content-length: {}\r\n\r\n{answer}", answer.len());
            stream.write_all(all.as_bytes()).unwrap();
        }
    });
    (url, count)
}

async fn ask(client: &ClientWithMiddleware, url: &str, body: &str) -> String {
    let sent =
        client.post(url).header("authorization", "Bearer sk-secret").body(body.to_owned()).send().await;
    match sent {
        Ok(response) => {
            let (status, number) = (response.status(), response.headers().get("x-number").cloned());
            let (url, body) = (response.url().path().to_owned(), response.text().await.unwrap());
            format!("{status} {number:?} {url} {body}")
        }
        Err(_) => "no answer".to_owned(),
    }
}

async fn agent(client: &ClientWithMiddleware, url: &str) -> Vec<String> {
    let mut told = Vec::new();
    for (path, body) in
        [("/a", "one"), ("/a", "one"), ("/limited?x=1", "two"), ("/broken", "three"), ("/a", "")]
    {
        told.push(ask(client, &format!("{url}{path}"), body).await);
    }
    told
}

fn space(directory: &tempfile::TempDir) -> Namespace {
    let store = Store::open_with(directory.path().join("store"), Options::default()).unwrap();
    store.namespace("default").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn middleware_records_and_replays_a_client() {
    // The program chooses its TLS provider; this build enables none by default.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (directory, (url, count)) = (tempfile::tempdir().unwrap(), upstream());
    let space = space(&directory);
    let recording = ClientRecording::begin(&space, RunSpec::new("agent")).unwrap();
    let client = ClientBuilder::new(reqwest::Client::new()).with(recording.layer()).build();
    let told = agent(&client, &url).await;
    assert!(told[0].contains("200 OK") && told[0].contains("/a 1: one"), "{told:?}");
    assert!(told[2].contains("429") && told[3] == "no answer", "{told:?}");
    let recorded = recording.end(Status::Ok).await.unwrap();
    assert_eq!((recorded.requests, recorded.broken, recorded.secrets_removed), (5, 1, 5));
    assert_eq!(recorded.failure, None);
    let asked = count.load(Ordering::SeqCst);

    let reader = space.run("agent").unwrap();
    for _ in 0..3 {
        let replaying = ClientReplay::new(&reader, ReplayOptions::default()).unwrap();
        let client = ClientBuilder::new(reqwest::Client::new()).with(replaying.layer()).build();
        assert_eq!(agent(&client, &url).await, told);
        let done = replaying.finish();
        assert!(done.receipt.is_faithful() && done.diverged.is_empty(), "{done:?}");
    }
    // A different request is refused, and the error names it.
    let replaying = ClientReplay::new(&reader, ReplayOptions::default()).unwrap();
    let client = ClientBuilder::new(reqwest::Client::new()).with(replaying.layer()).build();
    assert_eq!(ask(&client, &format!("{url}/a"), "other").await, "no answer");
    let done = replaying.finish();
    assert_eq!((done.receipt.changed + done.receipt.unrecorded, done.diverged.len()), (1, 1));
    assert!(!done.receipt.is_faithful());
    assert_eq!(count.load(Ordering::SeqCst), asked, "no replay asks the upstream");
}
