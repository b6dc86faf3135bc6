//! One interface for times, ids and random numbers, so that they can be recorded and replayed.
//!
//! A program that draws only through this interface sends the same requests when it is run again. The draws
//! between two calls share a frame of component nondet. Its output has a line `KIND VALUE` for each draw; its
//! metadata holds their number as `{"draws":N}`.
//!
//! The draws of a run form a single sequence: threads that draw at the same time would receive each other's
//! values. A program therefore draws before it starts threads, or in only one of them. Not included by
//! design: a lane for each thread.

use std::collections::VecDeque;
use std::sync::Arc;

use annals_text::hex;
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::log::queue::Durability;
use crate::log::segments::lock;
use crate::log::ticket::Ticket;
use crate::sync::{Mutex, rank};
use crate::trace::{Component, Frame, Run, RunReader};

/// Approximate maximum number of bytes of draws in one frame.
const FRAME_BYTES: usize = 64 << 10;
/// Maximum number of bytes that one draw fills.
const FILL_BYTES_MAX: usize = 1 << 20;

/// A source of times, ids and random numbers for a program.
pub trait Nondet: Send + Sync {
    /// The wall clock, in nanoseconds since 1970-01-01 UTC.
    ///
    /// # Errors
    /// In a replay: `Diverged` if another kind was drawn here, or if no recorded draw is left; `Damaged`,
    /// `Unavailable`.
    fn now_ns(&self) -> Result<u64>;
    /// A random UUID (version 4), lower case.
    ///
    /// # Errors
    /// As [`Nondet::now_ns`]; `Unavailable` if the system provides no randomness.
    fn uuid(&self) -> Result<String>;
    /// A random number.
    ///
    /// # Errors
    /// As [`Nondet::uuid`].
    fn random_u64(&self) -> Result<u64>;
    /// Fills `buf`, of at most 1 MiB, with random bytes.
    ///
    /// # Errors
    /// As [`Nondet::uuid`]; `Invalid` for a longer `buf`.
    fn fill(&self, buf: &mut [u8]) -> Result<()>;
}

fn check_fill(buf: &[u8]) -> Result<()> {
    match buf.len() {
        0..=FILL_BYTES_MAX => Ok(()),
        len => Err(Error::invalid(format!("one draw fills at most {FILL_BYTES_MAX} bytes, not {len}"))),
    }
}

/// The system's clock and randomness.
#[derive(Debug, Clone)]
pub struct SystemNondet {
    io: Arc<dyn Io>,
}

impl SystemNondet {
    /// Uses the clock and randomness of `io`.
    pub fn new(io: Arc<dyn Io>) -> Self {
        Self { io }
    }
}

impl Nondet for SystemNondet {
    fn now_ns(&self) -> Result<u64> {
        Ok(self.io.now_ns())
    }

    fn uuid(&self) -> Result<String> {
        let mut bytes = [0; 16];
        self.io.random(&mut bytes)?;
        // Version and variant: RFC 9562, section 5.4.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = hex::encode(&bytes);
        Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
    }

    fn random_u64(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.io.random(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        check_fill(buf)?;
        Ok(self.io.random(buf)?)
    }
}

/// One recorded draw.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RecordedDraw {
    Clock(u64),
    Uuid(String),
    Random(u64),
    Fill(Vec<u8>),
}

impl RecordedDraw {
    fn kind(&self) -> &'static str {
        match self {
            Self::Clock(_) => "clock",
            Self::Uuid(_) => "uuid",
            Self::Random(_) => "random",
            Self::Fill(_) => "fill",
        }
    }

    fn line(&self) -> String {
        let value = match self {
            Self::Clock(number) | Self::Random(number) => number.to_string(),
            Self::Uuid(text) => text.clone(),
            Self::Fill(bytes) => hex::encode(bytes),
        };
        format!("{} {value}\n", self.kind())
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, value) = line.split_once(' ')?;
        Some(match kind {
            "clock" => Self::Clock(value.parse().ok()?),
            "uuid" => Self::Uuid(value.to_owned()),
            "random" => Self::Random(value.parse().ok()?),
            "fill" => Self::Fill(hex::decode(value)?),
            _ => return None,
        })
    }
}

/// Draws from another source and records the values. They are in the log once this is flushed; a
/// [`Recorder`](crate::replay::Recorder) flushes it before it records a call.
pub struct RecordingNondet {
    run: Arc<Run>,
    source: Box<dyn Nondet>,
    pending: Mutex<PendingDraws, { rank::DRAWS_PENDING }>,
}

#[derive(Default)]
struct PendingDraws {
    lines: String,
    draws: u64,
    /// The first failure to record draws. The program received the values all the same.
    failure: Option<Error>,
}

impl PendingDraws {
    /// The frame of the draws since the last frame; `None` without draws.
    fn frame(&mut self) -> Option<Frame> {
        let (lines, draws) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.draws));
        let frame = Frame::new(Component::Nondet, Vec::new(), lines.into_bytes());
        (draws > 0).then(|| frame.metadata(format!(r#"{{"draws":{draws}}}"#)))
    }
}

impl std::fmt::Debug for RecordingNondet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordingNondet").field("run", &self.run.name()).finish_non_exhaustive()
    }
}

impl RecordingNondet {
    /// Records the values of `source` into a run.
    pub fn new(run: Arc<Run>, source: impl Nondet + 'static) -> Self {
        Self { run, source: Box::new(source), pending: Mutex::default() }
    }

    /// Submits the draws since the last flush, without waiting.
    ///
    /// # Errors
    /// The first failure to record draws, reported once: `Conflict` for a run that has ended, `Unavailable`,
    /// `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        let mut pending = lock(&self.pending);
        self.submit_pending(&mut pending);
        pending.failure.take().map_or(Ok(()), Err)
    }

    /// Like [`RecordingNondet::flush`], with a durability. Returns a ticket if there were draws to submit.
    ///
    /// # Errors
    /// As [`RecordingNondet::flush`].
    pub fn submit(&self, durability: Durability) -> Result<Option<Ticket>> {
        let mut pending = lock(&self.pending);
        if let Some(failure) = pending.failure.take() {
            return Err(failure);
        }
        let Some(frame) = pending.frame() else { return Ok(None) };
        let mut batch = self.run.batch()?;
        batch.durability(durability);
        batch.frame(frame)?;
        batch.submit().map(Some)
    }

    fn note(&self, draw: &RecordedDraw) {
        let mut pending = lock(&self.pending);
        pending.lines.push_str(&draw.line());
        pending.draws += 1;
        if pending.lines.len() >= FRAME_BYTES {
            self.submit_pending(&mut pending);
        }
    }

    /// Submits under the lock of the pending draws, so that frames keep the order of the draws.
    fn submit_pending(&self, pending: &mut PendingDraws) {
        let Some(frame) = pending.frame() else { return };
        if let Err(error) = self.run.submit(frame) {
            pending.failure.get_or_insert(error);
        }
    }
}

impl Nondet for RecordingNondet {
    fn now_ns(&self) -> Result<u64> {
        let value = self.source.now_ns()?;
        self.note(&RecordedDraw::Clock(value));
        Ok(value)
    }

    fn uuid(&self) -> Result<String> {
        let value = self.source.uuid()?;
        self.note(&RecordedDraw::Uuid(value.clone()));
        Ok(value)
    }

    fn random_u64(&self) -> Result<u64> {
        let value = self.source.random_u64()?;
        self.note(&RecordedDraw::Random(value));
        Ok(value)
    }

    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        check_fill(buf)?;
        self.source.fill(buf)?;
        self.note(&RecordedDraw::Fill(buf.to_vec()));
        Ok(())
    }
}

/// Replays the recorded draws, in order.
#[derive(Debug)]
pub struct ReplayingNondet {
    reader: RunReader,
    left: Mutex<RemainingDraws, { rank::DRAWS_LEFT }>,
}

#[derive(Debug)]
struct RemainingDraws {
    /// The draws left in the current frame, and the later frames with their numbers of draws.
    draws: VecDeque<RecordedDraw>,
    frames: VecDeque<(u32, u64)>,
    served: u64,
}

/// The number of draws according to a frame's metadata.
pub(super) fn draw_count(component: &Component, metadata: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct DrawsMetadata {
        draws: u64,
    }
    let read =
        (*component == Component::Nondet).then(|| serde_json::from_slice::<DrawsMetadata>(metadata).ok());
    read.flatten().map(|read| read.draws)
}

impl ReplayingNondet {
    /// Replays the draws of a run. It reads the records of all frames now, and the contents of a frame of
    /// draws when its turn comes.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn new(reader: &RunReader) -> Result<Self> {
        let mut frames = VecDeque::new();
        for seq in 1..=reader.info().frames {
            let info = reader.frame_info(seq)?;
            frames.extend(draw_count(&info.component, &info.metadata).map(|draws| (seq, draws)));
        }
        Ok(Self::with_frames(reader, frames))
    }

    pub(super) fn with_frames(reader: &RunReader, frames: VecDeque<(u32, u64)>) -> Self {
        let left = RemainingDraws { draws: VecDeque::new(), frames, served: 0 };
        Self { reader: reader.clone(), left: Mutex::new(left) }
    }

    /// Number of recorded draws that the program has not drawn.
    pub fn undrawn(&self) -> u64 {
        let left = lock(&self.left);
        left.frames.iter().fold(left.draws.len() as u64, |sum, (_, draws)| sum.saturating_add(*draws))
    }

    /// Takes the next draw, if `like` accepts its kind.
    fn next<T>(&self, kind: &str, like: impl FnOnce(&RecordedDraw) -> Option<T>) -> Result<T> {
        let mut left = lock(&self.left);
        while left.draws.is_empty() {
            let Some((seq, draws)) = left.frames.pop_front() else {
                let served = left.served;
                return Err(diverged(format!(
                    "the program draws a {kind} after the last of {served} recorded draws: it took another path"
                )));
            };
            let frame = self.reader.frame(seq)?;
            left.draws = parse(&frame.output, draws)
                .ok_or_else(|| Error::new(ErrorKind::Damaged, format!("frame {seq} lacks its draws")))?;
        }
        let number = left.served + 1;
        let taken = match left.draws.front() {
            Some(draw) => like(draw).ok_or_else(|| {
                diverged(format!(
                    "draw {number} was a {} and is now a {kind}: the program took another path",
                    draw.kind()
                ))
            }),
            None => Err(Error::bug("a frame of draws is empty")),
        }?;
        left.draws.pop_front();
        left.served = number;
        Ok(taken)
    }
}

fn diverged(what: String) -> Error {
    Error::new(ErrorKind::Diverged, what)
}

fn parse(output: &[u8], count: u64) -> Option<VecDeque<RecordedDraw>> {
    let text = std::str::from_utf8(output).ok()?;
    let draws: VecDeque<RecordedDraw> = text.lines().map(RecordedDraw::parse).collect::<Option<_>>()?;
    (count > 0 && draws.len() as u64 == count).then_some(draws)
}

impl Nondet for ReplayingNondet {
    fn now_ns(&self) -> Result<u64> {
        self.next("clock", |draw| if let RecordedDraw::Clock(ns) = draw { Some(*ns) } else { None })
    }

    fn uuid(&self) -> Result<String> {
        self.next("uuid", |draw| if let RecordedDraw::Uuid(text) = draw { Some(text.clone()) } else { None })
    }

    fn random_u64(&self) -> Result<u64> {
        self.next("random", |draw| if let RecordedDraw::Random(number) = draw { Some(*number) } else { None })
    }

    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        let kind = format!("fill of {} bytes", buf.len());
        self.next(&kind, |draw| match draw {
            RecordedDraw::Fill(bytes) if bytes.len() == buf.len() => {
                buf.copy_from_slice(bytes);
                Some(())
            }
            _ => None,
        })
    }
}

/// How far [`DriftingNondet`] moves the clock: a day, 1 h, 2 min, 3 s and some nanoseconds. So a date, a time of day
/// and each unit of it differ, however coarsely a program prints them.
const DRIFT_NS: u64 = (86_400 + 3_600 + 120 + 3) * 1_000_000_000 + 456_789_123;
/// The bits of random numbers that [`DriftingNondet`] changes: the highest, the lowest, and every other one between.
const DRIFT_BITS: u64 = 0xaaaa_aaaa_aaaa_aaab;
/// The same of a random byte.
const DRIFT_BYTE: u8 = 0xab;
/// The same of a hexadecimal digit.
const DRIFT_DIGIT: u32 = 0xa;
/// The places of the version and the variant in a UUID's text (RFC 9562, section 4).
const UUID_FIXED: [usize; 2] = [14, 19];

/// The negative control: replays the recorded draws, each changed enough to be seen in what a program makes of it:
/// seconds, dates, numbers from 0 to 1, parts of an id. Times keep their order. If a program's check passes with
/// it, either the program does not depend on its draws, or the check is worthless.
#[derive(Debug)]
pub struct DriftingNondet(pub ReplayingNondet);

fn drifted_digit((place, digit): (usize, char)) -> char {
    let changed = digit.to_digit(16).filter(|_| !UUID_FIXED.contains(&place));
    changed.and_then(|value| char::from_digit(value ^ DRIFT_DIGIT, 16)).unwrap_or(digit)
}

impl Nondet for DriftingNondet {
    fn now_ns(&self) -> Result<u64> {
        Ok(self.0.now_ns()?.saturating_add(DRIFT_NS))
    }

    fn uuid(&self) -> Result<String> {
        Ok(self.0.uuid()?.chars().enumerate().map(drifted_digit).collect())
    }

    fn random_u64(&self) -> Result<u64> {
        Ok(self.0.random_u64()? ^ DRIFT_BITS)
    }

    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        self.0.fill(buf)?;
        buf.iter_mut().for_each(|byte| *byte ^= DRIFT_BYTE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_keep_their_form_and_other_lines_are_none() {
        for draw in [
            RecordedDraw::Clock(u64::MAX),
            RecordedDraw::Uuid("3f2a5c1e-0000-4abc-8def-0123456789ab".to_owned()),
            RecordedDraw::Random(0),
            RecordedDraw::Fill(vec![0, 255, 16]),
            RecordedDraw::Fill(Vec::new()),
        ] {
            assert_eq!(RecordedDraw::parse(draw.line().trim_end_matches('\n')), Some(draw));
        }
        for bad in ["", "clock", "clock x", "clock 18446744073709551616", "fill abc", "fill xy", "coin 1"] {
            assert_eq!(RecordedDraw::parse(bad), None, "{bad}");
        }
        assert_eq!(parse(b"clock 1\n", 2), None);
        assert_eq!(parse(b"\xff", 1), None);
        assert_eq!(draw_count(&Component::Nondet, br#"{"draws":3}"#), Some(3));
        assert_eq!(draw_count(&Component::Tool, br#"{"draws":3}"#), None);
        assert_eq!(draw_count(&Component::Nondet, b""), None);
    }
}
