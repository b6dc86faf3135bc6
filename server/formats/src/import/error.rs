//! Errors of imports, each with its position in the source.

use std::fmt;

/// A position in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePosition {
    /// Line of the source, from 1.
    pub line: u64,
    /// Number of the object in the source, from 1.
    pub item: u64,
    /// The word for an object of this source: "run" or "object".
    pub noun: &'static str,
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {} {}", self.line, self.noun, self.item)
    }
}

/// Why an import stopped. No part of the affected run was returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The reader failed: a broken disk, or a compressed file that is damaged or cut short.
    #[error("{place}: cannot read the input: {source}")]
    Read {
        /// The position that reading had reached.
        place: SourcePosition,
        /// The reader's own error.
        #[source]
        source: std::io::Error,
    },
    /// The text is not JSON.
    #[error("{place}: expected {expected} at line {at_line}, column {column}, found {}", FoundByte(*.found))]
    Syntax {
        /// The reported position: the line on which the object began, if each object has a line of its own.
        place: SourcePosition,
        /// The text that was expected.
        expected: &'static str,
        /// Line of the first wrong byte, from 1.
        at_line: u64,
        /// Column of the first wrong byte, in bytes, from 1.
        column: u64,
        /// The wrong byte; `None` if the input ended.
        found: Option<u8>,
    },
    /// A string holds bytes that are not UTF-8.
    #[error("{place}: the bytes at line {at_line} are not UTF-8")]
    NotUtf8 {
        /// The object.
        place: SourcePosition,
        /// Line of the first wrong byte.
        at_line: u64,
    },
    /// Arrays and objects are nested too deeply.
    #[error("{place}: nested deeper than {limit} levels")]
    TooDeep {
        /// The position at which the limit was exceeded.
        place: SourcePosition,
        /// The limit, in levels.
        limit: usize,
    },
    /// The text of one run is too long.
    #[error("{place}: the text of one run is over {limit} bytes")]
    TooBig {
        /// The beginning of the run.
        place: SourcePosition,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The input is JSON, but not of the shape that the format requires.
    #[error("{place}: {what}")]
    Shape {
        /// The object.
        place: SourcePosition,
        /// The problem, as a clause.
        what: String,
    },
    /// A top-level key that the options name is missing.
    #[error("{place}: there is no key `{key}`, which {wanted_by} needs")]
    MissingKey {
        /// The run.
        place: SourcePosition,
        /// The key.
        key: String,
        /// The value that the option determines, and the option.
        wanted_by: &'static str,
    },
    /// Two runs of one input have the same name.
    #[error("{place}: a second run named `{id}` in this input")]
    DuplicateRun {
        /// The later of the two runs.
        place: SourcePosition,
        /// Their name.
        id: String,
    },
}

impl ImportError {
    /// A hint for the user, as a sentence without a full stop.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "check that the file is whole, for example with `xz -t` or `zstd -t`",
            Self::Syntax { .. } => {
                "the input is a JSON array or one JSON object after another; correct or remove this one"
            }
            Self::NotUtf8 { .. } => {
                "JSON text is UTF-8; in frames, give other bytes as `input_base64` or `output_base64`"
            }
            Self::TooDeep { .. } => "keep deep structures as a string within the message",
            Self::TooBig { .. } => "split the run, or record it through the engine, which streams bodies",
            Self::Shape { .. } => "docs/cli.md describes the formats that can be imported",
            Self::MissingKey { .. } => "name a key that every run has at its top level",
            Self::DuplicateRun { .. } => {
                "name runs by keys that tell them apart, for example --id '{task_id}-{trial}'"
            }
        }
    }
}

struct FoundByte(Option<u8>);

impl fmt::Display for FoundByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("the end of the input"),
            Some(b'\n') => f.write_str("the end of the line"),
            Some(byte) if byte.is_ascii_graphic() => write!(f, "`{}`", char::from(byte)),
            Some(byte) => write!(f, "byte 0x{byte:02x}"),
        }
    }
}
