//! Answers a program's calls from a recording.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::log::segments::lock;
use crate::replay::calls::{CallError, CallFn, Calls, Request, call_name};
use crate::replay::matching::{Divergence, Grade, MatchOutcome, Matching, Receipt, RecordedCall, Rules};
use crate::replay::nondet::{DriftingNondet, Nondet, ReplayingNondet, draw_count};
use crate::sync::{Condvar, Mutex, MutexGuard, rank, thread};
use crate::trace::{REDACTED_TAG, RunReader};

/// Key of the request hashes. It is no secret: the recording holds the requests unredacted, and the hashes
/// stay in memory.
const KEY: [u8; 32] = *b"annals replayer, in memory only.";
/// How long an answer waits for its turn while another thread of the program may still make a request.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer waits while every thread that ever made a request waits, too. Only a new thread could
/// end that wait.
const TURN_TIMEOUT_ALL_WAIT: Duration = Duration::from_secs(3);
/// How often a waiting thread checks whether it may go on.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Answers a program's calls from a run; it never makes a real call.
///
/// A request is answered by the first unused recorded call with the same name and bytes. Without one, a call
/// that is the same under the rules answers it. Any other request is an error of kind `Diverged`. Answers are
/// released in the order in which the recorded calls ended. An answer that waits too long for calls that the
/// program does not make is given up, which is `Diverged`, too. So a replay never hangs.
#[derive(Debug)]
pub struct Replayer {
    reader: RunReader,
    source: DrawSource,
    patience: Duration,
    turns: Mutex<ReplayState, { rank::REPLAYER_TURNS }>,
    released: Condvar,
}

#[derive(Debug)]
enum DrawSource {
    Replaying(ReplayingNondet),
    Drifting(DriftingNondet),
}

#[derive(Debug)]
struct ReplayState {
    matching: Matching,
    /// Threads that ever made a request, and how many of them wait.
    threads: HashSet<thread::ThreadId>,
    waiting: usize,
    /// Number of answers that were released or given up.
    passed: u64,
}

impl Replayer {
    /// A replayer for a run. It reads the run once and verifies every frame.
    ///
    /// # Errors
    /// `Diverged` if the run was redacted before it came here; `Damaged` if a frame is not what was recorded;
    /// `Unavailable`.
    pub fn new(reader: &RunReader, rules: Rules) -> Result<Self> {
        if let Some((_, by)) = reader.info().tags.iter().find(|(key, _)| key == REDACTED_TAG) {
            let what =
                format!("run {:?} was redacted by profile {by} before it came here", reader.info().name);
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let (mut calls, mut draws) = (Vec::new(), VecDeque::new());
        for frame in reader.frames() {
            let frame = frame?;
            draws.extend(draw_count(&frame.component, &frame.metadata).map(|count| (frame.seq, count)));
            // An incomplete frame may lack part of its answer, so it cannot answer a call.
            if let Some(name) = call_name(&frame.metadata).filter(|_| !frame.incomplete) {
                calls.push(RecordedCall::from_frame(&KEY, name, &frame));
            }
        }
        let bodies = reader.clone();
        let matching = Matching::new(calls, move |seq| Ok(bodies.frame(seq)?.input), rules, KEY)?;
        Ok(Self {
            reader: reader.clone(),
            source: DrawSource::Replaying(ReplayingNondet::with_frames(reader, draws)),
            patience: TURN_TIMEOUT,
            turns: Mutex::new(ReplayState { matching, threads: HashSet::new(), waiting: 0, passed: 0 }),
            released: Condvar::new(),
        })
    }

    /// Changes each drawn value slightly: the negative control, which a sound check must fail.
    #[must_use]
    pub fn drifting(mut self) -> Self {
        if let DrawSource::Replaying(replaying) = self.source {
            self.source = DrawSource::Drifting(DriftingNondet(replaying));
        }
        self
    }

    /// Releases the answers of overlapping calls in another order than the recorded one, chosen by `seed`.
    #[must_use]
    pub fn chaos(self, seed: u64) -> Self {
        let Self { reader, source, patience, turns, released } = self;
        let ReplayState { matching, threads, waiting, passed } =
            turns.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let turns = Mutex::new(ReplayState { matching: matching.chaos(seed), threads, waiting, passed });
        Self { reader, source, patience, turns, released }
    }

    /// Sets how long an answer waits for its turn while no other answer is released. Then it is given up. The
    /// default is 30 seconds. The wait is at most 3 seconds while every thread that ever made a request
    /// waits.
    #[must_use]
    pub fn turn_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The recorded answer to a model call. `metadata` and `send` are unused; a [`Recorder`](crate::replay::Recorder)
    /// needs them.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the recorded error text if the recorded call failed; `Diverged`, with a
    /// report; `Damaged`, `Unavailable`.
    pub fn call<E: std::fmt::Display>(
        &self,
        name: &str,
        request: &[u8],
        metadata: &[u8],
        send: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Vec<u8>, CallError> {
        (self as &dyn Calls).call(name, request, metadata, send)
    }

    /// Ends the replay and returns its receipt.
    #[must_use]
    pub fn finish(self) -> Receipt {
        let undrawn = match &self.source {
            DrawSource::Replaying(replaying) => replaying.undrawn(),
            DrawSource::Drifting(drifting) => drifting.0.undrawn(),
        };
        Receipt { undrawn, ..lock(&self.turns).matching.receipt() }
    }

    /// Gives up a call, so that the others no longer wait for it.
    fn skip_call(&self, turns: &mut ReplayState, seq: u32) {
        turns.matching.give_up(seq);
        turns.passed += 1;
        self.released.notify_all();
    }

    /// Waits until the answer may be released.
    fn await_turn(&self, mut turns: MutexGuard<'_, ReplayState>, seq: u32, name: &str) -> Result<()> {
        let io = &self.reader.core.io;
        turns.waiting += 1;
        let (mut passed, mut since) = (turns.passed, io.monotonic_ns());
        while !turns.matching.may_release(seq) {
            if turns.passed != passed {
                (passed, since) = (turns.passed, io.monotonic_ns());
            }
            let all_wait = turns.waiting >= turns.threads.len();
            let patience = if all_wait { self.patience.min(TURN_TIMEOUT_ALL_WAIT) } else { self.patience };
            let waited = Duration::from_nanos(io.monotonic_ns().saturating_sub(since));
            if waited >= patience {
                let error = stuck_error(seq, name, &turns.matching.blocking(seq), waited);
                self.skip_call(&mut turns, seq);
                turns.waiting -= 1;
                return Err(error);
            }
            let woken = self.released.wait_timeout(turns, POLL_INTERVAL.min(patience - waited));
            turns = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        turns.matching.mark_released(seq);
        turns.waiting -= 1;
        turns.passed += 1;
        self.released.notify_all();
        Ok(())
    }
}

fn stuck_error(seq: u32, name: &str, blocking: &[u32], waited: Duration) -> Error {
    const SHOWN: usize = 8;
    let mut steps: Vec<String> = blocking.iter().take(SHOWN).map(ToString::to_string).collect();
    if blocking.len() > SHOWN {
        steps.push(format!("{} more", blocking.len() - SHOWN));
    }
    let what = format!(
        "at step {seq} the program asked {}, whose recorded answer comes after those of {} (step {}). The program \
         has not received those, and for {:.1} s no answer was released: it makes its calls in another order than recorded",
        name.escape_debug().take(128).collect::<String>(),
        if blocking.len() == 1 { "another call" } else { "other calls" },
        steps.join(", "),
        waited.as_secs_f64(),
    );
    Error::new(ErrorKind::Diverged, what)
}

fn diverged_error(divergence: &Divergence) -> Error {
    Error::new(ErrorKind::Diverged, divergence.to_string())
}

impl Calls for Replayer {
    fn exchange(&self, request: Request<'_>, _send: CallFn<'_>) -> std::result::Result<Vec<u8>, CallError> {
        let seq = {
            let mut turns = lock(&self.turns);
            turns.threads.insert(thread::current().id());
            match turns.matching.ask(request.name, request.body)? {
                MatchOutcome::Exact(seq) | MatchOutcome::Matched(seq) => seq,
                MatchOutcome::Diverged(divergence) => {
                    // The program will not make the recorded call that this request has replaced, so no
                    // answer may wait for it.
                    if let (Grade::Changed, Some(step)) = (divergence.grade, divergence.step) {
                        self.skip_call(&mut turns, step);
                    }
                    return Err(diverged_error(&divergence).into());
                }
            }
        };
        // The frame is read before the answer's turn, so that reading does not delay the answers after it.
        let frame = match self.reader.frame(seq) {
            Ok(frame) => frame,
            Err(error) => {
                self.skip_call(&mut lock(&self.turns), seq);
                return Err(error.into());
            }
        };
        self.await_turn(lock(&self.turns), seq, request.name)?;
        match frame.error {
            true => Err(CallError::Failed(String::from_utf8_lossy(&frame.output).into_owned())),
            false => Ok(frame.output),
        }
    }

    fn nondet(&self) -> &dyn Nondet {
        match &self.source {
            DrawSource::Replaying(replaying) => replaying,
            DrawSource::Drifting(drifting) => drifting,
        }
    }
}
