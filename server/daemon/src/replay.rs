//! The replay of a run to one connection: each request is answered by the same recorded call, once, in
//! recorded order.
//!
//! The engine's `Matching` decides, as for the engine's `Replayer`; draws come from the engine's
//! `ReplayingNondet`. A connection sends one request after another, so an answer never waits for its turn. A
//! frame's call name is `call.name` of its metadata, else its component's name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annals::replay::matching::{MatchOutcome, Matching, RecordedCall, Rules};
use annals::replay::{ReplayingNondet, call_name};
use annals::tape::REDACTED_TAG;
use annals::{Component, RunReader};

use super::turn::CommandRefusal;
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
pub(super) struct ReplayMemory(Arc<AtomicUsize>);

/// The replay of a run to one connection.
#[derive(Debug)]
pub(super) struct ConnectionReplay {
    pub(super) name: String,
    reader: RunReader,
    matching: Matching,
    pub(super) draws: ReplayingNondet,
    _held: ReplayReservation,
}

#[derive(Debug)]
struct ReplayReservation(ReplayMemory, usize);

impl ReplayReservation {
    fn reserve(&mut self, bytes: usize) -> Result<(), CommandRefusal> {
        self.1 += bytes;
        if self.0.0.fetch_add(bytes, Ordering::Relaxed) + bytes <= BYTES_MAX {
            return Ok(());
        }
        Err("ERR too many calls are replayed at a time: end other connections that replay, or take a shorter run".into())
    }
}

impl Drop for ReplayReservation {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl ConnectionReplay {
    /// Reads a run and verifies every frame.
    ///
    /// # Errors
    /// Those of the store; `DIVERGED` for an ingested or redacted run; too many bytes held by replays.
    pub(super) fn open(
        name: &str,
        reader: RunReader,
        replayed: &ReplayMemory,
    ) -> Result<Self, CommandRefusal> {
        // Ingested frames hold traces, which may look like a program's requests.
        if is_ingested(&reader)? {
            return Err(CommandRefusal(format!(
                "DIVERGED at step 1: run {name} was ingested from traces, which hold no requests and answers as they were sent"
            )));
        }
        if let Some((_, by)) = reader.info().tags.iter().find(|(key, _)| key == REDACTED_TAG) {
            return Err(CommandRefusal(format!(
                "DIVERGED at step 1: run {name} was redacted by profile {by} before it came here: no program gets the answers that were recorded"
            )));
        }
        let (mut held, mut calls) = (ReplayReservation(replayed.clone(), 0), Vec::new());
        for frame in reader.frames() {
            let frame = frame?;
            // The answer of an incomplete frame is not known completely.
            if frame.incomplete || frame.component == Component::Nondet {
                continue;
            }
            let name = call_name(&frame.metadata).unwrap_or_else(|| frame.component.name().to_owned());
            held.reserve(CALL_BYTES + name.len())?;
            calls.push(RecordedCall::from_frame(&KEY, name, &frame));
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
    pub(super) fn answer(&mut self, name: &str, request: &[u8]) -> Result<Vec<u8>, CommandRefusal> {
        let seq = match self.matching.ask(name, request)? {
            MatchOutcome::Exact(seq) | MatchOutcome::Matched(seq) => seq,
            MatchOutcome::Diverged(divergence) => {
                return Err(CommandRefusal(format!("DIVERGED {divergence}")));
            }
        };
        let frame = self.reader.frame(seq)?;
        if frame.error {
            return Err(CommandRefusal(format!("FAILED {}", String::from_utf8_lossy(&frame.output))));
        }
        Ok(frame.output)
    }
}
