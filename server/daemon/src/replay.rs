//! The replay of a run to one connection: each request is answered by the same recorded call, once, in
//! recorded order.
//!
//! The engine's `Matching` decides, as for the engine's `Replayer`; draws come from the engine's
//! `ReplayingNondet`. A connection sends one request after another, so an answer never waits for its turn. A
//! frame's call name is `call.name` of its metadata, else its component's name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annals::matching::{Answer, Call, CallHash, Matching, Rules};
use annals::{Component, ReplayingNondet, RunReader};
use serde::Deserialize;

use super::turn::Refusal;
use annals_formats::otlp::is_ingested;

/// The key of the hashes. A fixed key suffices: the recording has the whole requests, and the hashes are
/// never shown.
const KEY: [u8; 32] = *b"annals daemon, in memory only.  ";
/// Approximate maximum bytes that all replays hold of their runs.
const BYTES_MAX: usize = 256 << 20;
/// Approximate bytes held of a call besides its name.
const CALL_BYTES: usize = 256;

/// Number of bytes that all replays hold.
#[derive(Debug, Default, Clone)]
pub(super) struct Replayed(Arc<AtomicUsize>);

/// The replay of a run to one connection.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) name: String,
    reader: RunReader,
    matching: Matching,
    pub(super) draws: ReplayingNondet,
    _held: Held,
}

#[derive(Debug)]
struct Held(Replayed, usize);

impl Held {
    fn more(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.1 += bytes;
        if self.0.0.fetch_add(bytes, Ordering::Relaxed) + bytes <= BYTES_MAX {
            return Ok(());
        }
        Err("ERR too many calls are replayed at a time: end other connections that replay, or take a shorter run".into())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Replay {
    /// Reads a run and verifies every frame.
    ///
    /// # Errors
    /// Those of the store; `DIVERGED` for an ingested run; too many bytes held by replays.
    pub(super) fn of(name: &str, reader: RunReader, replayed: &Replayed) -> Result<Self, Refusal> {
        // Ingested frames hold traces, which may look like a program's requests.
        if is_ingested(&reader)? {
            return Err(Refusal(format!(
                "DIVERGED at step 1: run {name} was ingested from traces, which hold no requests and answers as they were sent"
            )));
        }
        let (mut held, mut calls) = (Held(replayed.clone(), 0), Vec::new());
        for frame in reader.frames() {
            let frame = frame?;
            // The answer of an incomplete frame is not known completely.
            if frame.incomplete || frame.component == Component::Nondet {
                continue;
            }
            let name = name_of(&frame.metadata).unwrap_or_else(|| frame.component.name().to_owned());
            held.more(CALL_BYTES + name.len())?;
            calls.push(Call {
                seq: frame.seq,
                exact: CallHash::of(&KEY, &name, &frame.input),
                name,
                begun_ns: frame.started_ns,
                ended_ns: frame.started_ns.saturating_add(frame.duration_ns),
                arrived: 0,
            });
        }
        let bodies = reader.clone();
        let matching = Matching::new(calls, move |seq| Ok(bodies.frame(seq)?.input), Rules::none(), KEY)?;
        let draws = ReplayingNondet::new(&reader)?;
        Ok(Self { name: name.to_owned(), reader, matching, draws, _held: held })
    }

    /// The recorded answer to a request.
    ///
    /// # Errors
    /// `DIVERGED` with the difference and the step; `FAILED` with the recorded error of a failed call; those
    /// of the store.
    pub(super) fn answer(&mut self, name: &str, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let seq = match self.matching.ask(name, request)? {
            Answer::Exact(seq) | Answer::Matched(seq) => seq,
            Answer::Diverged(divergence) => return Err(Refusal(format!("DIVERGED {divergence}"))),
        };
        let frame = self.reader.frame(seq)?;
        if frame.error {
            return Err(Refusal(format!("FAILED {}", String::from_utf8_lossy(&frame.output))));
        }
        Ok(frame.output)
    }
}

/// The call name in a frame's metadata.
fn name_of(metadata: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        call: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_slice::<Metadata>(metadata).ok().map(|metadata| metadata.call.name)
}
