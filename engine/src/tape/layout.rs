//! The layout of a tape. docs/tapes.md describes it byte by byte.
//!
//! ```text
//! tape = magic [12] | format u16 | head | frame* | fingerprint [32] | digest [32]
//! ```

use crate::codec::{CodecError, put_bytes, put_varint};
use crate::error::{Error, ErrorKind};
use crate::ids::Link;
use crate::trace::{RunInfo, Severity, Status};

/// The first bytes of every tape. The zero byte marks the file as binary, so that git and other tools do not
/// convert its line ends.
pub(super) const MAGIC: &[u8; 12] = b"annals tape\0";
/// The only format so far.
pub(super) const FORMAT: u16 = 1;

/// Maximum length of a tape, in bytes. Tapes are held in memory.
pub const TAPE_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of a body, in bytes.
pub(super) const BODY_BYTES_MAX: u64 = 1 << 30;
/// Part of the limit on the total bytes of a tape's bodies: this many, plus [`RAW_FACTOR_MAX`] for each byte
/// of the tape. The limit prevents a small file from causing unbounded work.
const RAW_BYTES_MIN: u64 = 64 << 20;
/// A conversation of n steps repeats its beginning n times; this factor allows some 10,000 steps.
const RAW_FACTOR_MAX: u64 = 4096;

/// A body of at most this many bytes is written as it is and never referred to.
pub(super) const INLINE_BYTES_MAX: u64 = 63;
/// Minimum number of equal bytes that are stored as a reference.
pub(super) const COPY_BYTES_MIN: usize = 32;
/// Maximum length of a text in the head (names, tags), in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 4 << 10;

/// Flag of a frame that was begun and never finished. The other flags follow.
pub(super) const INCOMPLETE: u8 = 1;
pub(super) const ERROR: u8 = 2;
pub(super) const PARENT: u8 = 4;
pub(super) const SNAPSHOT: u8 = 8;

/// The tag with the fork point of a run on tape. The tape contains the shared frames, but not the parent run.
pub(super) const FORKED_FROM: &str = "annals.forked_from";

/// Maximum total bytes of the bodies of a tape of this length.
pub(super) fn raw_bytes_max(tape_bytes: u64) -> u64 {
    RAW_BYTES_MIN + tape_bytes.saturating_mul(RAW_FACTOR_MAX)
}

/// The head of a tape, with the counts and fingerprint of its run.
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
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// When it ended, nanoseconds since 1970-01-01 UTC.
    pub ended_ns: u64,
    /// The run's metadata: JSON, or empty.
    pub metadata: Vec<u8>,
    /// Number of its frames, including those that a fork shares.
    pub frames: u32,
    /// Raw bytes of its inputs, outputs and metadata.
    pub raw_bytes: u64,
    /// The last link of its chain.
    pub fingerprint: Link,
}

/// Writes the part of the head before the metadata.
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

/// The part of a tape in which an error is.
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

/// Why a tape cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TapeError {
    #[error("this is not a tape: its first bytes differ from those of a tape")]
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
