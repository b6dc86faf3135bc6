//! Answers for a program that asks from within its own process, and waits for their turns itself.

use annals::RunReader;
use annals::replay::call_name;
use annals::replay::matching::{Divergence, Grade, MatchOutcome as Found, RecordedCall};

use super::{ProxyReplayer, ReplayDivergence, lock};
use crate::proxy::ProxyRequest;
use crate::proxy::exchange_recorder::HUNG_UP;
use crate::proxy::record::http_exchange;

/// What a replay does with the program's own tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolReplay {
    /// They run, and their calls are not looked at.
    #[default]
    Live,
    /// Their recorded results are handed back. What they called is not expected: they do not run.
    Recorded,
    /// They run, and their recorded results are there to be compared.
    Compared,
}

/// The frames of the calls that a tool made, if the tool does not run again.
pub(super) fn calls_inside(tools: ToolReplay, metadata: &[u8]) -> Vec<u32> {
    #[derive(serde::Deserialize)]
    struct ToolMetadata {
        inside: Vec<u32>,
    }
    let read = || serde_json::from_slice::<ToolMetadata>(metadata).map(|read| read.inside);
    if tools == ToolReplay::Recorded { read().unwrap_or_default() } else { Vec::new() }
}

/// A recorded answer of an exchange.
#[derive(Debug)]
pub struct RecordedAnswer {
    /// The frame's number.
    pub seq: u32,
    /// The status of HTTP.
    pub status: u16,
    /// Names and values of the headers, in their recorded order.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// The answer's bytes.
    pub body: Vec<u8>,
    /// The length of each part in bytes.
    pub part_bytes: Vec<u64>,
    /// Why the answer is not complete.
    pub broken: Option<String>,
    /// Whether the client hung up before the answer was complete.
    pub hung_up: bool,
    /// Whether no upstream gave the answer: the request failed.
    pub failed: bool,
}

/// A recorded answer of another call.
#[derive(Debug)]
pub struct RecordedResult {
    /// The frame's number.
    pub seq: u32,
    /// The call's output.
    pub output: Vec<u8>,
    /// Whether the call failed.
    pub error: bool,
    /// The frame's metadata.
    pub metadata: Vec<u8>,
}

/// The calls of a run that are not exchanges: frames whose metadata names a call.
///
/// # Errors
/// `Damaged` if a frame cannot be read.
pub(super) fn other_call(
    reader: &RunReader,
    key: &[u8; 32],
    seq: u32,
    metadata: &[u8],
) -> annals::Result<Option<RecordedCall>> {
    let Some(name) = call_name(metadata) else { return Ok(None) };
    Ok(Some(RecordedCall::from_frame(key, name, &reader.frame(seq)?)))
}

impl ProxyReplayer {
    /// The recorded answer of a request; else the report of the divergence, which is noted.
    ///
    /// # Errors
    /// `Damaged` if the run cannot be read.
    pub(crate) fn take_answer(
        &self,
        mut asked: ProxyRequest,
    ) -> annals::Result<Result<RecordedAnswer, String>> {
        self.settle_path(&mut asked);
        let seq = match self.ask(&http_exchange(&asked).0.call(), &asked.body)? {
            Found::Exact(seq) | Found::Matched(seq) => seq,
            Found::Diverged(divergence) => return Ok(Err(self.note_divergence(divergence))),
        };
        let body = self.0.reader.frame(seq).inspect_err(|_| self.give_up(seq))?.output;
        let Some(exchange) = self.0.exchanges.get(&seq) else {
            return Err(annals::Error::new(annals::ErrorKind::Bug, "the recording lacks this exchange"));
        };
        let headers = exchange.volatile.response_headers.to_map();
        Ok(Ok(RecordedAnswer {
            seq,
            status: exchange.http.status.unwrap_or(200),
            headers: headers
                .iter()
                .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect(),
            body,
            part_bytes: exchange.volatile.part_bytes.clone(),
            broken: exchange.http.broken.clone(),
            hung_up: exchange.http.broken.as_deref() == Some(HUNG_UP),
            failed: super::is_local_answer(exchange),
        }))
    }

    /// The recorded result of another call; else the report of the divergence, which is noted.
    ///
    /// # Errors
    /// `Damaged` if the run cannot be read.
    pub(crate) fn take_result(
        &self,
        name: &str,
        input: &[u8],
    ) -> annals::Result<Result<RecordedResult, String>> {
        let seq = match self.ask(name, input)? {
            Found::Exact(seq) | Found::Matched(seq) => seq,
            Found::Diverged(divergence) => return Ok(Err(self.note_divergence(divergence))),
        };
        let frame = self.0.reader.frame(seq).inspect_err(|_| self.give_up(seq))?;
        Ok(Ok(RecordedResult { seq, output: frame.output, error: frame.error, metadata: frame.metadata }))
    }

    /// Notes a divergence. The program does not make the call that this one has replaced, so no answer waits
    /// for it.
    fn note_divergence(&self, divergence: Box<Divergence>) -> String {
        let report = divergence.to_string();
        if let (Grade::Changed, Some(step)) = (divergence.grade, divergence.step) {
            self.give_up(step);
        }
        self.note(ReplayDivergence::Request(divergence));
        report
    }

    /// Whether this frame's answer may end now.
    pub(crate) fn may_release(&self, seq: u32) -> bool {
        lock(&self.0.matching).may_release(seq)
    }

    /// Says that this frame's answer has ended.
    pub(crate) fn mark_released(&self, seq: u32) {
        self.0.note_released(seq);
    }

    /// Gives up the answers that this frame's answer waits for, and notes it.
    pub(crate) fn give_up_earlier(&self, seq: u32) {
        let mut matching = lock(&self.0.matching);
        if matching.may_release(seq) {
            return;
        }
        let before = matching.blocking(seq);
        before.iter().for_each(|step| matching.give_up(*step));
        drop(matching);
        self.note(ReplayDivergence::Order { step: seq, before });
    }
}
