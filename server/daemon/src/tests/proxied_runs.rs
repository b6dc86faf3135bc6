//! Many runs through one proxy: recorded, ended, replayed. The listener and the model provider are simple
//! test servers.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::DaemonBench;
use crate::proxy_runs::ProxyRuns;
use annals_policy::exchange::ExchangeMetadata;
use annals_proxy::Origin;
use annals_proxy::channel_body::ChannelBody;
use annals_proxy::proxy::{
    BodyMemory, MultiRunProxy, ProxyReplayer, RECORDED, REPLAYED, ReplayOptions, RequestRefusal,
    UpstreamOptions,
};

const TOKEN: &str = "s3cret-t0ken";
const KEY: &str = "sk-k3y-of-the-provider";

/// Answers `/v1/chat/completions` with the request's text and the number of requests so far, plain or as
/// events.
struct TestProvider {
    address: SocketAddr,
    told: Arc<ProviderState>,
    listens: JoinHandle<()>,
}

#[derive(Default)]
struct ProviderState {
    asked: AtomicU64,
    /// The line and headers of every request.
    heads: Mutex<Vec<String>>,
    /// Streams with `holds` wait for this after their first event.
    go_on: Notify,
}

type ProviderResponse = Response<BoxBody<Bytes, Infallible>>;

async fn provide(request: Request<Incoming>, told: Arc<ProviderState>) -> ProviderResponse {
    let head = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
    told.heads.lock().unwrap().push(head);
    let number = told.asked.fetch_add(1, Ordering::SeqCst) + 1;
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let said = asked["messages"][0]["content"].clone();
    if asked["stream"] != true {
        let whole = match &asked["answer"] {
            Value::Null => json!({ "id": number, "said": said, "len": body.len() }).to_string(),
            answer => {
                json!({ "choices": [{ "message": { "role": "assistant", "content": answer } }] }).to_string()
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(whole)).boxed());
        response.headers_mut().insert("x-number", number.into());
        return response;
    }
    let (sender, body) = ChannelBody::<Infallible>::new(1);
    tokio::spawn(async move {
        for part in 0..4 {
            let event = json!({ "id": number, "part": part, "said": said });
            if sender.send_data(format!("data: {event}\n\n").into()).await.is_err() {
                return;
            }
            if asked["holds"] == true && part == 0 {
                told.go_on.notified().await;
            }
            tokio::task::yield_now().await;
        }
    });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}

/// Accepts connections until it is aborted; open connections end with it.
async fn serve<S, F, B>(listener: TcpListener, answer: S)
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// A daemon's proxy and the provider behind it.
struct ProxyFixture {
    bench: DaemonBench,
    many: Arc<MultiRunProxy>,
    provider: TestProvider,
    base: String,
    client: reqwest::Client,
}

impl ProxyFixture {
    fn new() -> Self {
        Self::with_limits(BodyMemory::shared(), BodyMemory::new(1 << 20))
    }

    fn with_limits(bodies: BodyMemory, replayed: BodyMemory) -> Self {
        let bench = DaemonBench::new();
        let told = Arc::new(ProviderState::default());
        let bind = || bench.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (listener, own) = (bind(), told.clone());
        let address = listener.local_addr().unwrap();
        let listens = bench.runtime.spawn(serve(listener, move |request| provide(request, own.clone())));
        let upstream = vec![format!("openai=http://{address}")];
        let mounts = UpstreamOptions { upstream, ..UpstreamOptions::default() }.mounts().unwrap();
        let many = Arc::new(MultiRunProxy::within(mounts, bodies, replayed));
        let (listener, proxy, daemon) = (bind(), many.clone(), bench.daemon.clone());
        let base = format!("http://{}", listener.local_addr().unwrap());
        many.set_port(listener.local_addr().unwrap().port());
        bench.runtime.spawn(serve(listener, move |request| {
            let (proxy, daemon) = (proxy.clone(), daemon.clone());
            async move {
                let login = |token: Option<&str>, _| match token {
                    Some(TOKEN) => Ok(ProxyRuns::new(daemon.tenant("default").unwrap())),
                    _ => Err(RequestRefusal::new(StatusCode::UNAUTHORIZED, "a token is needed")),
                };
                proxy.answer(login, request).await
            }
        }));
        // A provider that is already installed is fine, too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        Self { bench, many, provider: TestProvider { address, told, listens }, base, client }
    }

    /// Stops the provider; returns once no connection to it succeeds.
    fn close_provider(&self) {
        self.provider.listens.abort();
        self.bench.runtime.block_on(async {
            while tokio::net::TcpStream::connect(self.provider.address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
    }

    fn request(&self, begins: &str, way: RunNaming, run: &str) -> reqwest::RequestBuilder {
        let (base, run) = (&self.base, percent_encoded(run));
        let to = |path: String| self.client.post(format!("{base}{path}/v1/chat/completions"));
        let key = format!("Bearer {KEY}");
        match way {
            RunNaming::Path => to(format!("{begins}/{TOKEN}@{run}/openai")).header("authorization", key),
            RunNaming::Header => to(format!("{begins}/openai"))
                .header("x-annals-run", run)
                .header("x-annals-token", TOKEN)
                .header("authorization", key),
            RunNaming::Key => {
                to(format!("{begins}/openai")).header("authorization", format!("{key}+annals:{TOKEN}:{run}"))
            }
        }
    }

    async fn send(&self, begins: &str, way: RunNaming, run: &str, body: &Value) -> ReceivedResponse {
        let sent = self.request(begins, way, run).body(body.to_string()).send().await.unwrap();
        ReceivedResponse::of(sent).await
    }

    /// Sends one request from outside of the runtime.
    fn ask(&self, begins: &str, way: RunNaming, run: &str, body: &Value) -> ReceivedResponse {
        self.bench.runtime.block_on(self.send(begins, way, run, body))
    }

    fn await_settled(&self) {
        self.bench.runtime.block_on(self.many.finish());
    }

    fn run(&self, name: &str) -> annals::RunReader {
        self.bench.daemon.tenant("default").unwrap().space.run(name).unwrap()
    }

    fn script(&self, script: &str) {
        self.bench.client().script(script);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct ReceivedResponse {
    status: u16,
    number: Option<String>,
    content_type: Option<String>,
    body: Bytes,
}

impl ReceivedResponse {
    async fn of(sent: reqwest::Response) -> Self {
        let header = |name| {
            sent.headers()
                .get(name)
                .map(|value: &hyper::header::HeaderValue| value.to_str().unwrap().to_owned())
        };
        let (number, content_type) = (header("x-number"), header("content-type"));
        Self { status: sent.status().as_u16(), number, content_type, body: sent.bytes().await.unwrap() }
    }

    fn error_message(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}

#[derive(Debug, Clone, Copy)]
enum RunNaming {
    Path,
    Header,
    Key,
}

const WAYS: [RunNaming; 3] = [RunNaming::Path, RunNaming::Header, RunNaming::Key];

fn percent_encoded(run: &str) -> String {
    run.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
            b';' => ";".to_owned(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn chat_request(text: &str, stream: bool) -> Value {
    json!({ "model": "gpt-4o", "stream": stream, "messages": [{ "role": "user", "content": text }] })
}

/// Asserts that a secret is in no file of the store and in no content of its runs; files may be compressed.
fn assert_absent(town: &ProxyFixture, secret: &str) {
    let mut directories = vec![town.bench._directory.path().to_path_buf()];
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        #[expect(clippy::disallowed_methods, reason = "a test looks into the store's files")]
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.is_file() {
                let bytes = std::fs::read(&path).unwrap();
                files += 1;
                assert!(memchr::memmem::find(&bytes, secret.as_bytes()).is_none(), "{}", path.display());
            }
        }
    }
    assert!(files > 0);
    let has = |bytes: &[u8]| memchr::memmem::find(bytes, secret.as_bytes()).is_some();
    for info in town.bench.daemon.tenant("default").unwrap().space.runs_after(None).unwrap() {
        let name = info.unwrap().name;
        let run = town.run(&name);
        assert!(!has(name.as_bytes()) && !has(&run.metadata().unwrap()), "{name}");
        for frame in run.frames() {
            let frame = frame.unwrap();
            assert!(
                !has(&frame.input) && !has(&frame.output) && !has(&frame.metadata),
                "{name} {}",
                frame.seq
            );
        }
    }
}

#[test]
fn fifty_concurrent_runs_record_and_replay_without_provider() {
    let town = ProxyFixture::new();
    let name = |run: usize| format!("run {run}/é");
    let asks = |run: usize, ask: usize| chat_request(&format!("run {run} asks {ask}"), ask % 2 == 1);
    let mut got: Vec<Vec<ReceivedResponse>> = town.bench.runtime.block_on(async {
        let town = &town;
        let runs = (0..50).map(|run| async move {
            let mut got = Vec::new();
            for ask in 0..4 {
                // Each request names the run in a different way.
                got.push(town.send(RECORDED, WAYS[(run + ask) % 3], &name(run), &asks(run, ask)).await);
            }
            got
        });
        join_all(runs).await
    });
    assert_eq!(town.provider.told.asked.load(Ordering::SeqCst), 200);
    for (run, got) in got.iter().enumerate() {
        assert!(got.iter().all(|got| got.status == 200), "{got:?}");
        let name = name(run);
        let words = format!("run.end \"{}\" -> +OK", name.replace('é', "\\xc3\\xa9"));
        town.script(&words);
        let reader = town.run(&name);
        assert_eq!((reader.info().frames, reader.info().status), (4, annals::Status::Ok));
        reader.verify().unwrap();
        // The run has everything that `annals replay` needs.
        let origin = Origin::from_reader(&reader).unwrap().unwrap();
        let replayer =
            ProxyReplayer::new(reader.clone(), origin.key_bytes().unwrap(), ReplayOptions::default())
                .unwrap();
        assert_eq!(origin.mounts.get("openai").unwrap().origin, format!("http://{}", town.provider.address));
        for (ask, got) in got.iter().enumerate() {
            let body = asks(run, ask).to_string();
            let seq = u32::try_from(ask).unwrap() + 1;
            let found = replayer.ask("POST openai /v1/chat/completions", body.as_bytes()).unwrap();
            assert!(
                matches!(found, annals::replay::matching::MatchOutcome::Exact(number) if number == seq),
                "{found:?}"
            );
            let frame = reader.frame(seq).unwrap();
            assert_eq!(frame.input, body.as_bytes());
            assert_eq!(frame.output, got.body);
            let exchange: ExchangeMetadata = serde_json::from_slice(&frame.metadata).unwrap();
            assert_eq!((&*exchange.http.path, &*exchange.http.mount), ("/v1/chat/completions", "openai"));
        }
    }
    // Nothing addressed to annals reached the provider, and the provider's key did.
    for head in town.provider.told.heads.lock().unwrap().iter() {
        assert!(
            !head.contains(TOKEN) && !head.contains("annals") && head.contains(&format!("\"Bearer {KEY}\"")),
            "{head}"
        );
    }
    assert_absent(&town, TOKEN);
    assert_absent(&town, KEY);
    town.close_provider();
    let replayed: Vec<Vec<ReceivedResponse>> = town.bench.runtime.block_on(async {
        let town = &town;
        let runs = (0..50).map(|run| async move {
            let mut got = Vec::new();
            for ask in 0..4 {
                got.push(town.send(REPLAYED, WAYS[(run + ask + 1) % 3], &name(run), &asks(run, ask)).await);
            }
            got
        });
        join_all(runs).await
    });
    assert_eq!(replayed, got);
    // The recording answered these requests.
    assert!(got.remove(0).remove(0).number.is_some());
    assert_eq!(town.provider.told.asked.load(Ordering::SeqCst), 200);
}

/// Runs all futures concurrently.
async fn join_all<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(|one| (Some(Box::pin(one)), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in &mut all {
            if let Some(running) = future
                && let std::task::Poll::Ready(done) = running.as_mut().poll(context)
            {
                (*future, *output) = (None, Some(done));
            }
        }
        if all.iter().all(|(future, _)| future.is_none()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

#[test]
fn concurrent_first_requests_begin_one_run_shared_with_resp() {
    let town = ProxyFixture::new();
    let got = town.bench.runtime.block_on(async {
        let town = &town;
        let asks = (0..40).map(|ask| async move {
            town.send(RECORDED, WAYS[ask % 3], "r", &chat_request(&format!("{ask}"), false)).await
        });
        join_all(asks).await
    });
    assert!(got.iter().all(|got| got.status == 200), "{got:?}");
    town.await_settled();
    town.script(
        r#"
        frame.add r tool ask answer -> :41
        run.end r -> +OK
        "#,
    );
    assert_eq!(town.run("r").info().frames, 41);
    // A run that was begun over RESP, with metadata of its own.
    town.script(
        r#"
        run.begin name b metadata {"my":1} -> *4|$4|name|$1|b|$3|uid|:2
        frame.add b tool ask answer -> :1
        "#,
    );
    let asked = chat_request("hello", true);
    let got = town.ask(RECORDED, RunNaming::Header, "b", &asked);
    town.script("run.end b failed -> +OK");
    let frame = town.run("b").frame(2).unwrap();
    assert_eq!((frame.output.as_slice(), frame.incomplete), (&got.body[..], false));
    town.close_provider();
    assert_eq!(town.ask(REPLAYED, RunNaming::Key, "b", &asked), got);
    // Matched by its exact bytes, not by the canonical form, which other requests may share.
    let about = town.client.get(format!("{}/replay/{TOKEN}@b", town.base)).send();
    let about = town.bench.runtime.block_on(async { ReceivedResponse::of(about.await.unwrap()).await });
    let about: Value = serde_json::from_slice(&about.body).unwrap();
    assert_eq!((&about["exact"], &about["recorded"], &about["served"]), (&json!(1), &json!(1), &json!(1)));
}

#[test]
fn unauthorized_or_unrecordable_requests_begin_nothing() {
    let town = ProxyFixture::new();
    let runtime = &town.bench.runtime;
    let send = |path: &str, headers: &[(&str, &str)]| {
        let mut request = town.client.post(format!("{}{path}", town.base)).body("{}");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        runtime.block_on(async { ReceivedResponse::of(request.send().await.unwrap()).await })
    };
    for (path, headers) in [
        ("/proxy/r/openai/v1/x", vec![]),
        ("/proxy/wrong@r/openai/v1/x", vec![]),
        ("/proxy/openai/v1/x", vec![("x-annals-run", "r"), ("x-annals-token", "wrong")]),
        ("/proxy/openai/v1/x", vec![("x-api-key", "k+annals:wrong:r")]),
        ("/replay/r/openai/v1/x", vec![]),
        ("/replay/r", vec![]),
    ] {
        assert_eq!(send(path, &headers).status, 401, "{path}");
    }
    let token = ("x-annals-token", TOKEN);
    assert_eq!(send("/proxy/r/nowhere/v1/x", &[token]).status, 404);
    assert_eq!(send("/replay/r/openai/v1/x", &[token]).status, 404);
    assert_eq!(send("/proxy/a/openai/v1/x", &[token, ("x-annals-run", "b")]).status, 400);
    assert_eq!(send("/proxy/a%00b/openai/v1/x", &[token]).status, 400);
    assert_eq!(town.bench.daemon.tenant("default").unwrap().space.runs_after(None).unwrap().count(), 0);
    assert_eq!(town.provider.told.asked.load(Ordering::SeqCst), 0);

    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("a", false)).status, 200);
    town.script("run.end r -> +OK");
    let refused = town.ask(RECORDED, RunNaming::Path, "r", &chat_request("b", false));
    assert_eq!(
        (refused.status, refused.error_message().as_str()),
        (409, "annals: run r has ended: fork it, or record into a new run")
    );
    // The same after a restart, when the run is no longer in memory.
    town.script("run.begin name x -> *4|$4|name|$1|x|$3|uid|:2\nrun.end x failed -> +OK");
    let refused = town.ask(RECORDED, RunNaming::Path, "x", &chat_request("b", false));
    assert!(refused.status == 409 && refused.error_message().contains("(failed)"), "{refused:?}");
    assert_eq!(town.run("r").info().frames, 1);
    assert_absent(&town, "wrong");
    // Some clients send a long request completely before they read: they must still get the response before
    // the connection is closed.
    let mut client = std::net::TcpStream::connect(town.base.trim_start_matches("http://")).unwrap();
    let (path, body) = (format!("/proxy/{TOKEN}@r/openai/v1/x"), vec![b'x'; 24 << 20]);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&body).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
}

/// A recorder continues without recording if its store refuses; the run must not end as if it were complete.
#[test]
fn run_with_unrecorded_exchange_cannot_end_ok() {
    let town = ProxyFixture::new();
    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("a", false)).status, 200);
    town.await_settled();
    town.bench.daemon.tenant("default").unwrap().open_run("r").unwrap().run.end(annals::Status::Ok).unwrap();
    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("b", true)).status, 200);
    town.await_settled();
    let (told, _) = town.bench.client().bytes(b"run.end r\r\n");
    assert!(told.starts_with("-UNAVAILABLE run r is not whole, so it can end as failed only:"), "{told}");
}

#[test]
fn run_end_waits_for_exchanges_and_hang_up_keeps_partial_output() {
    let town = ProxyFixture::new();
    let mut held = chat_request("wait", true);
    held["holds"] = true.into();
    let (first, stream) = town.bench.runtime.block_on(async {
        let mut sent =
            town.request(RECORDED, RunNaming::Key, "r").body(held.to_string()).send().await.unwrap();
        (sent.chunk().await.unwrap().unwrap(), sent)
    });
    town.script("run.end r -> -CONFLICT 1 exchanges of run r are under way in the proxy: end it after them");
    town.script(
        "multi -> +OK\nrun.end r -> +QUEUED\nexec -> *1|-ERR Command not allowed inside a transaction",
    );
    // The exchange continues nevertheless.
    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("more", false)).status, 200);
    drop(stream);
    town.await_settled();
    town.script("run.end r -> +OK");
    let frame = town.run("r").frame(1).unwrap();
    let exchange: ExchangeMetadata = serde_json::from_slice(&frame.metadata).unwrap();
    assert_eq!((exchange.http.broken.as_deref(), frame.error), (Some("the client hung up"), true));
    assert!(frame.output.starts_with(&first), "{frame:?}");
    assert!(!String::from_utf8_lossy(&frame.output).contains("\"part\":3"));
    // A run may be ended immediately after its last exchange.
    for number in 0..20 {
        let name = format!("s{number}");
        assert_eq!(
            town.ask(RECORDED, RunNaming::Header, &name, &chat_request("x", number % 2 == 0)).status,
            200
        );
        town.script(&format!("run.end {name} -> +OK"));
        assert!(!town.run(&name).frame(1).unwrap().incomplete);
    }
    town.provider.told.go_on.notify_waiters();
}

#[test]
fn replay_sessions_of_one_run_are_independent() {
    let town = ProxyFixture::new();
    // The same request three times, each with a different answer.
    let asked = chat_request("again", false);
    let got: Vec<_> = (0..3).map(|_| town.ask(RECORDED, RunNaming::Path, "r", &asked)).collect();
    town.script("run.end r -> +OK");
    town.close_provider();
    for (round, got) in got.iter().enumerate() {
        let sessions = [
            (RunNaming::Path, "r"),
            (RunNaming::Path, "r;one"),
            (RunNaming::Header, "r;two"),
            (RunNaming::Key, "r;three"),
        ];
        for (way, session) in sessions {
            assert_eq!(town.ask(REPLAYED, way, session, &asked), *got, "{round} {session}");
        }
    }
    let refused = town.ask(REPLAYED, RunNaming::Path, "r", &asked);
    assert_eq!(refused.status, 502);
    let told: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(told["error"]["type"], "annals_divergence");
    // Another request diverges, and the error names the difference.
    let refused = town.ask(REPLAYED, RunNaming::Path, "r;new", &chat_request("other", false));
    assert!(refused.status == 502 && refused.error_message().contains("$.messages"), "{refused:?}");
    let at = |method: Method, run: &str| {
        let request = town.client.request(method, format!("{}/replay/{TOKEN}@{run}", town.base));
        town.bench.runtime.block_on(async { ReceivedResponse::of(request.send().await.unwrap()).await })
    };
    let about: Value = serde_json::from_slice(&at(Method::GET, "r").body).unwrap();
    assert_eq!((&about["exact"], &about["unrecorded"], &about["unused"]), (&json!(3), &json!(1), &json!([])));
    assert_eq!(at(Method::DELETE, "r").status, 204);
    assert_eq!(at(Method::DELETE, "r").status, 404);
    assert_eq!(at(Method::GET, "r").status, 404);
    assert_eq!(at(Method::PUT, "r").status, 405);
    assert_eq!(town.ask(REPLAYED, RunNaming::Path, "r", &asked), got[0]);
    assert_eq!(town.ask(REPLAYED, RunNaming::Path, "r;one", &asked).status, 502);
}

#[test]
fn requests_over_memory_limits_get_503_with_retry_after() {
    let (bodies, replayed) = (BodyMemory::new(100_000), BodyMemory::new(2_000));
    let town = ProxyFixture::with_limits(bodies.clone(), replayed.clone());
    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("short", false)).status, 200);
    // Long enough to be recorded while it arrives.
    let long = chat_request(&"x".repeat(200_000), false);
    let retried = town.bench.runtime.block_on(async {
        town.request(RECORDED, RunNaming::Path, "r").body(long.to_string()).send().await.unwrap()
    });
    assert_eq!(
        (retried.status(), retried.headers()["retry-after"].to_str().unwrap()),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    let mut held = bodies.reservation();
    while held.reserve(99_990).is_err() {
        std::thread::yield_now();
    }
    let refused = town.ask(RECORDED, RunNaming::Path, "r", &chat_request("short", false));
    assert_eq!((refused.status, refused.error_message().contains("try again")), (503, true));
    drop(held);
    assert_eq!(town.ask(RECORDED, RunNaming::Path, "r", &chat_request("short", true)).status, 200);
    // All room is given back, some of it by the writer.
    while bodies.taken() > 0 {
        std::thread::yield_now();
    }
    town.script("run.end r -> +OK");
    // The long one was begun and aborted; the one without room left no frame.
    assert_eq!(town.run("r").info().frames, 3);
    let refused = town.ask(REPLAYED, RunNaming::Path, "r", &chat_request("short", false));
    assert_eq!((refused.status, replayed.taken()), (503, 0), "{refused:?}");
}

/// The outcome of a proxied run is stored in memory in the background, under the identity in its headers or
/// tags. Runs that nobody ended are stored at the daemon's end.
#[test]
fn proxied_run_is_remembered_after_it_ends() {
    use annals_memory::{Identity, Memory, MemoryQuery, WordEmbedder};
    let town = ProxyFixture::new();
    let asks = |run: &str, headers: &[(&str, &str)]| {
        let body = json!({ "messages": [{ "role": "user", "content": "Should we approve loan #42?" }], "answer": "REJECTED" });
        let request = town.request("/proxy", RunNaming::Path, run).body(body.to_string());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        assert_eq!(town.bench.runtime.block_on(request.send()).unwrap().status(), 200);
    };
    asks("monday", &[("x-annals-tenant", "lending"), ("x-annals-conversation", "app-42")]);
    asks("off", &[("x-annals-memory", "off")]);
    asks("never-ended", &[]);
    asks("abandoned", &[]);
    asks("plain", &[]);
    town.script(
        "run.begin name tagged tag tenant lending -> *4|$4|name|$6|tagged|$3|uid|:6
         run.begin name by-hand -> *4|$4|name|$7|by-hand|$3|uid|:7
         frame.add by-hand llm what that -> :1",
    );
    asks("tagged", &[("x-annals-tenant", "too late: it has its tags")]);
    town.await_settled();
    town.script(
        "run.end monday -> +OK
         run.end off -> +OK
         run.end abandoned abandoned -> +OK
         run.end plain failed -> +OK
         run.end tagged -> +OK
         run.end by-hand -> +OK",
    );
    town.bench.daemon.shut_down();
    let space = town.bench.daemon.tenant("default").unwrap().space.clone();
    let memory = Memory::open(&space).unwrap();
    let ids = |tenant: &str, conversation: &str| {
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let identity = Identity { tenant: part(tenant), principal: None, conversation: part(conversation) };
        let (entries, _) = memory.list(&identity, None, None, &[]).unwrap();
        let mut ids: Vec<_> = entries.into_iter().map(|entry| entry.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("lending", "app-42"), ["run-monday"]);
    assert_eq!(ids("lending", ""), ["run-tagged"]);
    assert_eq!(ids("", ""), ["run-never-ended", "run-plain"]);
    let lending = Identity { tenant: Some("lending".into()), ..Identity::default() };
    let wanted = MemoryQuery { across_conversations: true, ..MemoryQuery::default() };
    let hits = memory.recall(&lending, "Should loan #42 be approved?", &WordEmbedder, &wanted).unwrap();
    assert!(hits.iter().any(|hit| hit.entry.id == "run-monday"));
    assert!(hits.iter().all(|hit| hit.identity.starts_with("lending/")));
}
