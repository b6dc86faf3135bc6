//! A model provider that answers at once, after 20 ms, or with a stream whose chunks say when they were sent.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::ProxyBenchResult;
use crate::http::{HttpConnection, now_ns};
use crate::pace::{self, PacedStream};

/// The interval between the chunks of a stream.
const CHUNK_EVERY: Duration = Duration::from_millis(20);

/// Listens on its own thread until the process ends. Returns its address.
pub(crate) fn start() -> ProxyBenchResult<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let url = format!("http://{}", listener.local_addr()?);
    let pace = pace::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("upstream".to_owned()).spawn(move || {
        runtime.block_on(async {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((stream, _)) = listener.accept().await {
                let pace = pace.clone();
                tokio::spawn(async {
                    if let Ok(wire) = HttpConnection::new(stream) {
                        _ = serve(wire, pace).await
                    }
                });
            }
        });
    })?;
    Ok(url)
}

async fn serve(mut wire: HttpConnection, pace: Sender<PacedStream>) -> ProxyBenchResult<()> {
    let answer = json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "word ".repeat(300) }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 5000, "completion_tokens": 300, "total_tokens": 5300 },
    });
    let answer = answer.to_string();
    let whole = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
        answer.len()
    );
    while let Some(head) = wire.head().await? {
        let body = wire.body(&head).await?;
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        if path.ends_with("/stream") {
            let asked: Value = serde_json::from_slice(&body)?;
            let (number, chunks) = (asked["number"].as_u64(), asked["chunks"].as_u64());
            return stream(wire, number.unwrap_or(0), chunks.unwrap_or(0), &pace).await;
        }
        if path.ends_with("/chat/completions") {
            tokio::time::sleep(CHUNK_EVERY).await;
        }
        wire.stream.write_all(whole.as_bytes()).await?;
    }
    Ok(())
}

/// Sends the head. The thread of `pace` sends the rest.
async fn stream(
    wire: HttpConnection,
    number: u64,
    chunks: u64,
    pace: &Sender<PacedStream>,
) -> ProxyBenchResult<()> {
    let mut stream = wire.stream;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let to = stream.into_std()?;
    to.set_nonblocking(false)?;
    // Streams do not send at the same moments.
    let first = Instant::now() + Duration::from_micros(number * 7919 % 20_000);
    pace.send(PacedStream { to, first, every: CHUNK_EVERY, chunks, chunk, last: b"0\r\n\r\n" })?;
    Ok(())
}

fn chunk(number: u64) -> Vec<u8> {
    let delta = json!({ "id": "s", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "n": number,
        "choices": [{ "index": 0, "delta": { "content": format!("{} ", now_ns()) }, "finish_reason": null }] });
    let event = format!("data: {delta}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}
