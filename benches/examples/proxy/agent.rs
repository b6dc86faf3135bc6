//! The agent that is measured: it connects to OPENAI_BASE_URL and prints its figures as JSON.

use std::time::Instant;

use annals_benches::conversation::{BenchConversation, ConversationForm};
use serde_json::json;
use tokio::task::JoinSet;

use crate::ProxyBenchResult;
use crate::http::{HttpConnection, now_ns};

/// Minimum bytes of a request of `ask`.
const REQUEST_BYTES: usize = 20_000;

pub(crate) async fn run(doing: &[String]) -> ProxyBenchResult<()> {
    let base = std::env::var("OPENAI_BASE_URL")?;
    let count = |at: usize| doing.get(at).map_or(Ok(1), |text| text.parse::<usize>());
    let told = match doing.first().map(String::as_str) {
        Some("steps") => steps(&base, count(1)?).await?,
        Some("ask") => ask(&base, count(1)?, count(2)?).await?,
        Some("streams") => streams(&base, count(1)?, count(2)?).await?,
        _ => return Err("unknown work for the agent: give steps, ask or streams".into()),
    };
    println!("{told}");
    Ok(())
}

/// A growing conversation.
async fn steps(base: &str, count: usize) -> ProxyBenchResult<serde_json::Value> {
    let mut wire = HttpConnection::connect(base).await?;
    let mut bytes = 0;
    for step in BenchConversation::new(ConversationForm::Plain, 1).take(count) {
        wire.post(base, "/chat/completions", &step.request).await?;
        let head = wire.head().await?.ok_or("no answer")?;
        bytes += wire.body(&head).await?.len();
    }
    Ok(json!({ "bytes": bytes }))
}

/// Different requests over this many connections.
async fn ask(base: &str, count: usize, connections: usize) -> ProxyBenchResult<serde_json::Value> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for connection in 0..connections {
        let base = base.to_owned();
        tasks.spawn(async move {
            let mut wire = HttpConnection::connect(&base).await?;
            let mut times = Vec::new();
            for number in (connection..count).step_by(connections) {
                let text = format!("{number} ").repeat(REQUEST_BYTES / 2);
                let body = json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": &text[..REQUEST_BYTES] }] });
                let body = body.to_string();
                let asked = Instant::now();
                wire.post(&base, "/responses", body.as_bytes()).await?;
                let head = wire.head().await?.ok_or("no answer")?;
                if !head.starts_with("http/1.1 200") {
                    return Err(head.into());
                }
                wire.body(&head).await?;
                times.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            ProxyBenchResult::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(
        json!({ "median_ms": quantile_of(&mut times, 0.5), "p99_ms": quantile_of(&mut times, 0.99), "per_second": count as f64 / seconds }),
    )
}

/// Concurrent streams: how long each chunk was on its way.
async fn streams(base: &str, count: usize, chunks: usize) -> ProxyBenchResult<serde_json::Value> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let base = base.to_owned();
        tasks.spawn(async move {
            let mut wire = HttpConnection::connect(&base).await?;
            let body = json!({ "number": number, "chunks": chunks, "stream": true }).to_string();
            wire.post(&base, "/stream", body.as_bytes()).await?;
            wire.head().await?.ok_or("no answer")?;
            let mut times = Vec::new();
            loop {
                let chunk = wire.chunk().await?;
                let now = now_ns();
                if chunk.is_empty() {
                    return ProxyBenchResult::Ok(times);
                }
                let text = String::from_utf8_lossy(&chunk);
                // A chunk may hold several events or a part of one: each whole time in it counts.
                for part in text.split("\"content\":\"").skip(1) {
                    if let Some(sent) = part.split(' ').next().and_then(|sent| sent.parse::<u64>().ok()) {
                        times.push(now.saturating_sub(sent) as f64 / 1e6);
                    }
                }
            }
        });
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    Ok(
        json!({ "median_ms": quantile_of(&mut times, 0.5), "p99_ms": quantile_of(&mut times, 0.99), "chunks": times.len() }),
    )
}

/// The value below which this part of all values lies.
fn quantile_of(all: &mut [f64], part: f64) -> f64 {
    all.sort_by(f64::total_cmp);
    let at = (all.len() as f64 * part) as usize;
    all.get(at.min(all.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
