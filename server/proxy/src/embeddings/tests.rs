//! The client against a local server.

use std::sync::{Arc, Mutex};

use annals::io::sim::SimIo;
use annals::{ErrorKind, Namespace, Options, Store};
use annals_memory::{Embedder, Identity, Memory, MemoryQuery, SnapshotOptions};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};

use super::{EmbeddingsOptions, HttpEmbedder};

/// A scripted answer of the server, instead of its normal one.
type AnswerScript = dyn Fn(usize, &Value) -> Option<Response<Body>> + Send + Sync;

/// A server that counts letters, and the requests that it got.
struct EmbeddingServer {
    runtime: tokio::runtime::Runtime,
    options: EmbeddingsOptions,
    asked: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

#[derive(Clone)]
struct EmbeddingServerState {
    asked: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    script: Arc<AnswerScript>,
}

/// The vector of a text: its length, and the counts of two letters.
fn vector(text: &str) -> Vec<f32> {
    let count = |letter| text.matches(letter).count() as f32;
    vec![text.len() as f32, count('a'), count('b')]
}

async fn handle_request(
    State(state): State<EmbeddingServerState>,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    let body: Value = serde_json::from_str(&body).unwrap();
    let number = {
        let mut asked = state.asked.lock().unwrap();
        asked.push((headers, body.clone()));
        asked.len()
    };
    if let Some(scripted) = (state.script)(number, &body) {
        return scripted;
    }
    let texts = body["input"].as_array().unwrap();
    // Last vector first: only the index tells which text a vector belongs to.
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .rev()
        .map(|(index, text)| {
            let vector = vector(text.as_str().unwrap());
            let packed = || {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
            };
            let embedding = if body["encoding_format"] == "base64" { json!(packed()) } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    Response::new(json!({"object": "list", "data": data}).to_string().into())
}

fn status(status: u16, headers: &[(&str, &str)], body: &str) -> Option<Response<Body>> {
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Some(response.body(body.to_owned().into()).unwrap())
}

impl EmbeddingServer {
    fn new(script: impl Fn(usize, &Value) -> Option<Response<Body>> + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let state = EmbeddingServerState { asked: asked.clone(), script: Arc::new(script) };
        let router = Router::new().route("/v1/embeddings", post(handle_request)).with_state(state);
        runtime.spawn(async move { axum::serve(listener, router).await });
        let options = EmbeddingsOptions { wait_first_ms: 1, ..EmbeddingsOptions::new(url, "letters") };
        Self { runtime, options, asked }
    }

    fn embedder(&self, kept_in: Option<&Namespace>) -> HttpEmbedder {
        HttpEmbedder::new(self.options.clone(), kept_in).unwrap()
    }

    fn requests(&self) -> Vec<(HeaderMap, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

fn namespace(sim: &SimIo) -> Namespace {
    let options = Options { io: Arc::new(sim.clone()), ..Options::default() };
    Store::open_with("s", options).unwrap().namespace("n").unwrap()
}

#[test]
fn texts_are_sent_in_batches_and_order_is_kept() {
    let mut server = EmbeddingServer::new(|_, _| None);
    server.options.batch_texts = 3;
    server.options.key = Some("sk-1".into());
    let texts = ["a", "bb", "a", "abab", "\u{e9}", "\"b\\", "x y", "bbb"];
    for base64 in [false, true] {
        server.options.base64 = base64;
        let vectors = server.embedder(None).embed(&texts).unwrap();
        assert_eq!(vectors, texts.map(vector));
    }
    let asked = server.requests();
    let inputs: Vec<&Value> = asked.iter().map(|(_, body)| &body["input"]).collect();
    assert_eq!(
        inputs[..3],
        [&json!(["a", "bb", "abab"]), &json!(["\u{e9}", "\"b\\", "x y"]), &json!(["bbb"])]
    );
    assert_eq!(
        (inputs.len(), &asked[0].1["encoding_format"], &asked[3].1["encoding_format"]),
        (6, &json!("float"), &json!("base64"))
    );
    for (headers, body) in &asked {
        assert_eq!(
            (headers["authorization"].to_str().unwrap(), &body["model"]),
            ("Bearer sk-1", &json!("letters"))
        );
        assert_eq!(body.get("dimensions"), None);
    }
    assert_eq!(server.embedder(None).embed(&[]).unwrap(), Vec::<Vec<f32>>::new());
    assert_eq!(server.requests().len(), 6, "no texts need no request");
    assert_eq!(server.embedder(None).embed(&["a", ""]).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn busy_server_is_retried_and_refusal_is_not() {
    let server = EmbeddingServer::new(|number, _| match number {
        1 => status(429, &[("retry-after", "0")], "slow down"),
        2 => status(503, &[], ""),
        _ => None,
    });
    assert_eq!(server.embedder(None).embed(&["ab"]).unwrap(), [vector("ab")]);
    assert_eq!(server.requests().len(), 3);

    let server = EmbeddingServer::new(|_, _| status(500, &[], "{\"error\":{\"message\":\"out of cards\"}}"));
    let refused = server.embedder(None).embed(&["ab"]).unwrap_err();
    assert_eq!((refused.kind(), server.requests().len()), (ErrorKind::Unavailable, 5));
    assert!(
        refused.to_string().contains("after 5 attempts") && refused.to_string().contains("out of cards"),
        "{refused}"
    );

    let server = EmbeddingServer::new(|_, _| status(429, &[("retry-after", "3600")], ""));
    let refused = server.embedder(None).embed(&["ab"]).unwrap_err();
    assert_eq!((refused.kind(), server.requests().len()), (ErrorKind::Unavailable, 1));
    assert!(refused.to_string().contains("3600 s"), "{refused}");

    let mut server = EmbeddingServer::new(|_, _| {
        status(401, &[], "{\"error\":{\"message\":\"Incorrect API key: sk-secret-1\"}}")
    });
    server.options.key = Some("sk-secret-1".into());
    let refused = server.embedder(None).embed(&["ab"]).unwrap_err();
    assert_eq!((refused.kind(), server.requests().len()), (ErrorKind::Invalid, 1));
    assert!(
        refused.to_string().contains("Incorrect API key") && !refused.to_string().contains("sk-secret"),
        "{refused}"
    );
    assert!(!format!("{:?}", server.embedder(None)).contains("sk-secret"), "nor in Debug output");

    let server = EmbeddingServer::new(|_, _| status(302, &[("location", "http://169.254.169.254/")], ""));
    assert_eq!(
        server.embedder(None).embed(&["ab"]).unwrap_err().kind(),
        ErrorKind::Invalid,
        "no redirect is followed"
    );
}

#[test]
fn unreachable_server_is_unavailable() {
    let mut server = EmbeddingServer::new(|_, _| None);
    server.options.attempts = 2;
    // A port that was just closed.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    server.options.url = format!("http://127.0.0.1:{port}");
    let refused = server.embedder(None).embed(&["a"]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("after 2 attempts"), "{refused}");
}

#[test]
fn vector_length_mismatch_is_refused() {
    let mut server = EmbeddingServer::new(|_, _| None);
    server.options.dimensions = Some(4);
    let embedder = server.embedder(None);
    assert_eq!(embedder.id(), "letters@4");
    let refused = embedder.embed(&["a"]).unwrap_err();
    assert!(refused.to_string().contains("3 numbers where 4"), "{refused}");
    assert_eq!(server.requests()[0].1["dimensions"], json!(4));

    let server = EmbeddingServer::new(|number, _| match number {
        2 => status(200, &[], r#"{"data":[{"index":0,"embedding":[1,2]}]}"#),
        3 => status(200, &[], r#"{"data":[]}"#),
        _ => None,
    });
    let embedder = server.embedder(None);
    assert!(embedder.embed(&["a"]).is_ok());
    assert!(embedder.embed(&["b"]).unwrap_err().to_string().contains("2 numbers where 3"));
    assert!(embedder.embed(&["b"]).unwrap_err().to_string().contains("0 vectors to 1 texts"));
    assert!(embedder.embed(&["b"]).is_ok());
}

/// An empty vector in one answer once fixed the length to 0, and the daemon refused all later vectors until a
/// restart. An answer with two lengths fixed the first one.
#[test]
fn refused_answer_does_not_fix_vector_length() {
    for nonsense in [
        r#"{"index":0,"embedding":[]},{"index":1,"embedding":[]}"#,
        r#"{"index":0,"embedding":[1,2]},{"index":1,"embedding":[1,2,3]}"#,
    ] {
        let answer = format!("{{\"data\":[{nonsense}]}}");
        let server =
            EmbeddingServer::new(move |number, _| if number == 1 { status(200, &[], &answer) } else { None });
        let embedder = server.embedder(None);
        let refused = embedder.embed(&["a", "b"]).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Invalid && !refused.to_string().contains("where 0"),
            "{refused}"
        );
        assert_eq!(embedder.embed(&["a", "b"]).unwrap(), ["a", "b"].map(vector), "{nonsense}");
    }
}

/// Each `annals remember` is a process of its own. A model replaced under the same name once had its vectors
/// stored beside the old ones, and recalls found half of the entries.
#[test]
fn vector_length_persists_across_processes() {
    let space = namespace(&SimIo::new(1));
    let exchanged = r#"{"data":[{"index":0,"embedding":[1,2]}]}"#;
    let server =
        EmbeddingServer::new(|number, _| if number == 2 { status(200, &[], exchanged) } else { None });
    assert!(server.embedder(Some(&space)).embed(&["a"]).is_ok());
    let refused = server.embedder(Some(&space)).embed(&["b"]).unwrap_err().to_string();
    assert!(refused.contains("2 numbers where 3") && refused.contains("another name"), "{refused}");
    assert_eq!(server.embedder(Some(&space)).embed(&["b"]).unwrap(), [vector("b")]);
}

#[test]
fn endless_answer_is_cut_off() {
    let server = EmbeddingServer::new(|_, _| Some(Response::new(Body::new(EndlessBody))));
    let refused = server.embedder(None).embed(&["a"]).unwrap_err();
    assert!(refused.to_string().contains("longer than"), "{refused}");
}

/// A body that never ends.
struct EndlessBody;

impl hyper::body::Body for EndlessBody {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, Self::Error>>> {
        let chunk = bytes::Bytes::from_static(&[b' '; 1 << 16]);
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(chunk))))
    }
}

#[test]
fn repeated_text_is_served_from_cache() {
    let sim = SimIo::new(1);
    let space = namespace(&sim);
    let mut server = EmbeddingServer::new(|_, _| None);
    assert_eq!(server.embedder(Some(&space)).embed(&["a", "b"]).unwrap(), [vector("a"), vector("b")]);
    assert_eq!(server.embedder(Some(&space)).embed(&["b", "ab", "a"]).unwrap(), ["b", "ab", "a"].map(vector));
    let asked = server.requests();
    assert_eq!((asked.len(), &asked[1].1["input"]), (2, &json!(["ab"])), "only new texts are requested");
    // Vectors of another model are not used, nor malformed values that other programs wrote.
    server.options.model = "other".into();
    server.embedder(Some(&space)).embed(&["a"]).unwrap();
    assert_eq!(server.requests().len(), 3);
    server.options.model = "letters".into();
    let kept = space.keyspace("annals.embeddings", annals::History::Latest).unwrap();
    let keys: Vec<Vec<u8>> = kept.scan(annals::ScanRange::all()).keys().map(Result::unwrap).collect();
    assert_eq!(keys.len(), 6, "four vectors, and each embedder's vector length");
    for (key, junk) in
        keys.iter().zip([&b"abc"[..], b"", &f32::NAN.to_le_bytes(), &1f32.to_le_bytes()].iter().cycle())
    {
        kept.put(key, junk.to_vec()).unwrap();
    }
    let embedder = server.embedder(Some(&space));
    assert!(embedder.embed(&["x"]).is_ok(), "the length is known");
    assert_eq!(embedder.embed(&["a", "b", "ab"]).unwrap(), ["a", "b", "ab"].map(vector));
}

#[test]
fn http_embedder_remembers_and_recalls_inside_runtime() {
    let sim = SimIo::new(2);
    let memory = Memory::open(&namespace(&sim)).unwrap();
    let server = EmbeddingServer::new(|_, _| None);
    let embedder = server.embedder(None);
    let who = Identity { tenant: Some("t".into()), ..Identity::default() };
    let snapshot = r#"{"query":"abba","finalContent":"done"}"#;
    let hits = server.runtime.block_on(async {
        memory.write_snapshot(&who, snapshot, &embedder, &SnapshotOptions::default()).unwrap();
        let hits = memory.recall(&who, " abba ", &embedder, &MemoryQuery::default()).unwrap();
        drop(embedder);
        hits
    });
    assert_eq!((hits.len(), hits[0].score, hits[0].entry.embedder.as_deref()), (1, 1.0, Some("letters")));
}

#[test]
fn environment_variables_configure_embedder() {
    let with = |set: &[(&str, &str)]| {
        let set: Vec<(String, String)> = set
            .iter()
            .map(|(name, value)| (format!("ANNALS_EMBEDDINGS_{name}"), (*value).to_owned()))
            .collect();
        EmbeddingsOptions::from_variables(&|name| {
            let own = set.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
            own.or_else(|| (name == "OPENAI_API_KEY").then(|| "sk-openai".into()))
        })
    };
    assert!(with(&[]).unwrap().is_none());
    assert!(with(&[("URL", "")]).unwrap().is_none());
    assert!(
        with(&[("URL", "http://localhost:1")]).unwrap_err().to_string().contains("ANNALS_EMBEDDINGS_MODEL")
    );
    let near = with(&[
        ("URL", "http://localhost:1/v1"),
        ("MODEL", "m"),
        ("DIMENSIONS", "256"),
        ("THRESHOLD", "0.55"),
    ]);
    let near = near.unwrap().unwrap();
    assert_eq!(
        (near.id().as_str(), near.threshold, near.key),
        ("m@256", 0.55, None),
        "OpenAI's key is not sent to other servers"
    );
    let far = with(&[("URL", "https://api.openai.com/v1"), ("MODEL", "m")]).unwrap().unwrap();
    assert_eq!((far.key.as_deref(), far.threshold), (Some("sk-openai"), 0.7));
    let own =
        with(&[("URL", "https://api.openai.com/v1"), ("MODEL", "m"), ("KEY", "sk-own")]).unwrap().unwrap();
    assert_eq!(own.key.as_deref(), Some("sk-own"));
    for (name, value) in [("DIMENSIONS", "many"), ("DIMENSIONS", "-1"), ("THRESHOLD", "high")] {
        let refused = with(&[("URL", "http://localhost:1"), ("MODEL", "m"), (name, value)]).unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

#[test]
fn invalid_options_are_refused() {
    let options = |url: &str| EmbeddingsOptions::new(url, "m");
    let with_key = |url: &str| EmbeddingsOptions { key: Some("sk".into()), ..options(url) };
    for (options, why) in [
        (options("nowhere"), "not a URL"),
        (options("ftp://localhost"), "must begin with http"),
        (options("http://user:pass@localhost"), "must not hold a user name"),
        (with_key("http://example.com/v1"), "https"),
        (EmbeddingsOptions { key: Some("a\nb".into()), ..options("https://example.com") }, "no header"),
        (EmbeddingsOptions { dimensions: Some(0), ..options("http://localhost") }, "at least 1"),
        (EmbeddingsOptions { batch_texts: 0, ..options("http://localhost") }, "at least 1"),
        (EmbeddingsOptions { attempts: 0, ..options("http://localhost") }, "at least 1"),
        (EmbeddingsOptions { threshold: f32::NAN, ..options("http://localhost") }, "threshold"),
        (EmbeddingsOptions { model: "annals-words-1".into(), ..options("http://localhost") }, "built-in"),
        (EmbeddingsOptions { model: "m".repeat(300), ..options("http://localhost") }, "256 bytes"),
    ] {
        let refused = HttpEmbedder::new(options, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(why), "{refused}");
    }
    for fine in ["http://127.0.0.1:1", "http://localhost", "http://[::1]:8", "https://example.com"] {
        assert!(HttpEmbedder::new(with_key(fine), None).is_ok(), "{fine}");
    }
    assert!(
        HttpEmbedder::new(options("http://example.com"), None).is_ok(),
        "a server without a key may be plain http"
    );
}
