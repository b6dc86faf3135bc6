//! What a tape is: docs/tapes.md has it byte by byte.
//!
//! ```text
//! tape = magic [12] | format u16 | head | frame* | fingerprint [32] | digest [32]
//! ```

use crate::codec::{CodecError, put_bytes, put_varint};
use crate::error::{Error, ErrorKind};
use crate::ids::Link;
use crate::trace::{RunInfo, Severity, Status};

/// What every tape begins with. The zero byte tells git and others that this is no text whose line ends may be changed.
pub(super) const MAGIC: &[u8; 12] = b"annals tape\0";
/// The one format that there is.
pub(super) const FORMAT: u16 = 1;

/// The greatest tape, in bytes: it is held in memory.
pub const TAPE_BYTES_MAX: u64 = 1 << 30;
/// The greatest body.
pub(super) const BODY_BYTES_MAX: u64 = 1 << 30;
/// Bodies that a tape defines have at most so many bytes together, and [`RAW_FACTOR_MAX`] for each of the tape's own: so
/// that a small file cannot ask for endless work.
const RAW_BYTES_MIN: u64 = 64 << 20;
/// A conversation of n steps repeats its beginning n times: this is one of some 10,000 steps.
const RAW_FACTOR_MAX: u64 = 4096;

/// A body shorter than this is written as it is and never referred to.
pub(super) const INLINE_BYTES_MAX: u64 = 63;
/// What is the same in two bodies is worth a reference from so many bytes on.
pub(super) const COPY_BYTES_MIN: usize = 32;
/// Longest text in a head: names, tags.
pub(super) const TEXT_BYTES_MAX: usize = 4 << 10;

/// A frame's flags.
pub(super) const INCOMPLETE: u8 = 1;
pub(super) const ERROR: u8 = 2;
pub(super) const PARENT: u8 = 4;
pub(super) const SNAPSHOT: u8 = 8;

/// The tag that says where a run on tape was forked: the tape holds the shared frames, and not the run they came from.
pub(super) const FORKED_FROM: &str = "annals.forked_from";
/// The tag of a run that is what somebody was shown of another, with the name of what decided that.
pub const REDACTED_TAG: &str = "annals.redacted";

/// How many bytes the bodies of a tape of this length may have together.
pub(super) fn raw_bytes_max(tape_bytes: u64) -> u64 {
    RAW_BYTES_MIN + tape_bytes.saturating_mul(RAW_FACTOR_MAX)
}

/// What a tape says of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapeInfo {
    /// The run's name.
    pub name: String,
    /// The agent's name.
    pub agent: String,
    /// The model's name.
    pub model: String,
    /// Its tags; of a fork also `annals.forked_from`: a JSON object of `run`, `at` and `shared`.
    pub tags: Vec<(String, String)>,
    /// How it ended.
    pub status: Status,
    /// How much it matters.
    pub severity: Severity,
    /// Nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// The same for its end.
    pub ended_ns: u64,
    /// What else its recorder said of it: JSON, or nothing.
    pub metadata: Vec<u8>,
    /// Its frames, those that a fork shares included.
    pub frames: u32,
    /// Bytes of its bodies.
    pub raw_bytes: u64,
    /// The last link of its chain.
    pub fingerprint: Link,
}

/// The part of the head before the metadata.
pub(super) fn put_head(out: &mut Vec<u8>, info: &RunInfo, tags: &[(String, String)], ended_ns: u64) {
    for text in [&info.name, &info.agent, &info.model] {
        put_bytes(out, text.as_bytes());
    }
    put_varint(out, tags.len() as u64);
    for text in tags.iter().flat_map(|(key, value)| [key, value]) {
        put_bytes(out, text.as_bytes());
    }
    out.extend([info.status.code(), info.severity.code()]);
    put_varint(out, info.started_ns);
    put_varint(out, ended_ns);
    put_varint(out, u64::from(info.frames));
}

/// Where in a tape something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TapeLocation {
    Head,
    Frame(u32),
    End,
}

impl std::fmt::Display for TapeLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Head => f.write_str("its head"),
            Self::Frame(seq) => write!(f, "frame {seq}"),
            Self::End => f.write_str("its end"),
        }
    }
}

/// Why bytes are no tape.
#[derive(Debug, thiserror::Error)]
pub(super) enum TapeError {
    #[error("this is no tape: it does not begin as one")]
    Magic,
    #[error("this is a tape of format {found}; this version of annals reads format {FORMAT}")]
    Format { found: u16 },
    #[error("the tape is damaged in {site}, at byte {offset}: {source}")]
    Coding { site: TapeLocation, offset: u64, source: CodecError },
    #[error("the tape is damaged in {site}, at byte {offset}: {what}")]
    Wrong { site: TapeLocation, offset: u64, what: String },
}

impl From<TapeError> for Error {
    fn from(error: TapeError) -> Self {
        let kind = match error {
            TapeError::Magic | TapeError::Format { .. } => ErrorKind::Invalid,
            TapeError::Coding { .. } | TapeError::Wrong { .. } => ErrorKind::Damaged,
        };
        Self::with_source(kind, error.to_string(), error)
    }
}
