//! Reads one JSON object after another from a stream: the elements of an array, the lines of JSON Lines, or
//! consecutive objects.
//!
//! Invariants: at most one object's text is held in memory; every returned object is valid JSON and UTF-8;
//! after an error or the end, nothing more is read.

use std::io::BufRead;

use super::error::{ImportError, SourcePosition};
use super::scan::{DEPTH_MAX, ObjectScanner, ScanError, ScanProgress};

/// Default maximum bytes of the text of one run: 1 GiB.
pub const RUN_BYTES_MAX: u64 = 1 << 30;

/// One object of the source.
#[derive(Debug)]
pub(super) struct SourceObject {
    /// Its exact text.
    pub(super) text: String,
    /// The position of its first byte.
    pub(super) place: SourcePosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceMode {
    Start,
    /// Within the array, before its first element.
    ArrayFirst,
    /// Within the array, after an element.
    ArrayNext,
    /// Consecutive objects without an array.
    Loose,
    /// The array is closed: only white space may follow.
    Closed,
    /// Ended, or failed.
    Over,
}

/// Reads the objects of a source.
#[derive(Debug)]
pub(super) struct ObjectReader<R> {
    reader: R,
    mode: SourceMode,
    noun: &'static str,
    bytes_max: u64,
    /// Line and column of the next byte, from 1.
    line: u64,
    column: u64,
    /// Number of objects begun.
    items: u64,
    /// Every object so far was on a single line.
    one_a_line: bool,
}

impl<R: BufRead> ObjectReader<R> {
    pub(super) fn new(reader: R, noun: &'static str, bytes_max: u64) -> Self {
        Self {
            reader,
            mode: SourceMode::Start,
            noun,
            bytes_max,
            line: 1,
            column: 1,
            items: 0,
            one_a_line: true,
        }
    }

    /// The next object; `None` at the end of the input.
    pub(super) fn next(&mut self) -> Result<Option<SourceObject>, ImportError> {
        if self.mode == SourceMode::Over {
            return Ok(None);
        }
        let before = std::mem::replace(&mut self.mode, SourceMode::Over);
        let Some(after) = self.seek_object(before)? else { return Ok(None) };
        let object = self.object(after)?;
        self.mode = after;
        Ok(Some(object))
    }

    /// Maximum bytes of one run.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Reads up to the next `{`; returns the mode after that object, or `None` at the end.
    fn seek_object(&mut self, mut mode: SourceMode) -> Result<Option<SourceMode>, ImportError> {
        if mode == SourceMode::Start {
            self.skip_byte_order_mark()?;
        }
        loop {
            let byte = self.peek()?;
            if let Some(b' ' | b'\t' | b'\n' | b'\r') = byte {
                self.advance(byte);
                continue;
            }
            let (next, expected) = match (mode, byte) {
                (SourceMode::Start | SourceMode::Loose, Some(b'{')) => return Ok(Some(SourceMode::Loose)),
                (SourceMode::ArrayFirst, Some(b'{')) => return Ok(Some(SourceMode::ArrayNext)),
                (SourceMode::Start, Some(b'[')) => (Some(SourceMode::ArrayFirst), ""),
                (SourceMode::ArrayFirst | SourceMode::ArrayNext, Some(b']')) => {
                    (Some(SourceMode::Closed), "")
                }
                (SourceMode::ArrayNext, Some(b',')) => {
                    self.advance(byte);
                    self.seek_element()?;
                    return Ok(Some(SourceMode::ArrayNext));
                }
                (SourceMode::Start | SourceMode::Loose | SourceMode::Closed | SourceMode::Over, None) => {
                    return Ok(None);
                }
                (SourceMode::Start, _) => (None, "`[` or `{`"),
                (SourceMode::Loose, _) => (None, "`{`"),
                (SourceMode::ArrayFirst, _) => (None, "`{` or `]`"),
                (SourceMode::ArrayNext, _) => (None, "`,` or `]`"),
                (SourceMode::Closed | SourceMode::Over, _) => (None, "the end of the input after `]`"),
            };
            let Some(next) = next else { return Err(self.error_between_objects(expected, byte)) };
            self.advance(byte);
            mode = next;
        }
    }

    /// After a comma: white space and `{`.
    fn seek_element(&mut self) -> Result<(), ImportError> {
        loop {
            match self.peek()? {
                Some(b'{') => return Ok(()),
                byte @ Some(b' ' | b'\t' | b'\n' | b'\r') => self.advance(byte),
                byte => return Err(self.error_between_objects("`{`", byte)),
            }
        }
    }

    /// Reads one object, whose `{` is the next byte.
    fn object(&mut self, mode: SourceMode) -> Result<SourceObject, ImportError> {
        self.items += 1;
        let place = self.place();
        let mut scan = ObjectScanner::new();
        let mut text = Vec::new();
        loop {
            let (line, column) = (&mut self.line, &mut self.column);
            let buffer = fill(&mut self.reader, place)?;
            if buffer.is_empty() {
                return Err(self.error_within_object(scan.expected(), None, place, mode));
            }
            let mut taken = 0;
            let mut outcome = Ok(ScanProgress::More);
            for byte in buffer {
                outcome = scan.push(*byte);
                if outcome.is_err() {
                    break;
                }
                taken += 1;
                count(*byte, line, column);
                if outcome == Ok(ScanProgress::Done) {
                    break;
                }
            }
            let found = buffer.get(taken).copied();
            if text.len() as u64 + taken as u64 > self.bytes_max {
                return Err(ImportError::TooBig { place, limit: self.bytes_max });
            }
            text.extend_from_slice(buffer.get(..taken).unwrap_or_default());
            self.reader.consume(taken);
            match outcome {
                Ok(ScanProgress::More) => {}
                Ok(ScanProgress::Done) => return self.finish_object(text, place),
                Err(ScanError::TooDeep) => {
                    return Err(ImportError::TooDeep { place: self.place(), limit: DEPTH_MAX });
                }
                Err(ScanError::Expected(what)) => {
                    return Err(self.error_within_object(what, found, place, mode));
                }
            }
        }
    }

    fn finish_object(&mut self, text: Vec<u8>, place: SourcePosition) -> Result<SourceObject, ImportError> {
        self.one_a_line &= self.line == place.line;
        match String::from_utf8(text) {
            Ok(text) => Ok(SourceObject { text, place }),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let before = error.as_bytes().get(..valid).unwrap_or_default();
                let at_line = place.line + before.iter().filter(|byte| **byte == b'\n').count() as u64;
                Err(ImportError::NotUtf8 { place, at_line })
            }
        }
    }

    /// The error for a wrong byte inside an object. If each object has a line of its own, a truncated line is
    /// detected only on the next line; the reported line is then the one on which the object began.
    fn error_within_object(
        &self,
        expected: &'static str,
        found: Option<u8>,
        began: SourcePosition,
        mode: SourceMode,
    ) -> ImportError {
        let cut = mode == SourceMode::Loose
            && (self.one_a_line && self.items > 1 || self.column == 1 && found == Some(b'{'));
        let line = if cut || found.is_none() && self.one_a_line { began.line } else { self.line };
        let place = SourcePosition { line, ..began };
        ImportError::Syntax { place, expected, at_line: self.line, column: self.column, found }
    }

    /// The error for a wrong byte between objects.
    fn error_between_objects(&self, expected: &'static str, found: Option<u8>) -> ImportError {
        let place = SourcePosition { item: self.items + 1, ..self.place() };
        ImportError::Syntax { place, expected, at_line: self.line, column: self.column, found }
    }

    fn place(&self) -> SourcePosition {
        SourcePosition { line: self.line, item: self.items, noun: self.noun }
    }

    fn peek(&mut self) -> Result<Option<u8>, ImportError> {
        let place = SourcePosition { item: self.items + 1, ..self.place() };
        Ok(fill(&mut self.reader, place)?.first().copied())
    }

    fn advance(&mut self, byte: Option<u8>) {
        if let Some(byte) = byte {
            self.reader.consume(1);
            count(byte, &mut self.line, &mut self.column);
        }
    }

    /// Some tools write a byte order mark before JSON. Its three bytes are read one by one, since a reader
    /// may return only one byte at a time.
    fn skip_byte_order_mark(&mut self) -> Result<(), ImportError> {
        if self.peek()? == Some(0xef) {
            for expected in [0xef, 0xbb, 0xbf] {
                let byte = self.peek()?;
                if byte != Some(expected) {
                    return Err(self.error_between_objects("`[` or `{`", byte));
                }
                self.reader.consume(1);
            }
        }
        Ok(())
    }
}

/// The reader's next bytes; empty at the end.
fn fill<R: BufRead>(reader: &mut R, place: SourcePosition) -> Result<&[u8], ImportError> {
    loop {
        match reader.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(ImportError::Read { place, source }),
            // The buffer is requested again below, since the borrow checker rejects returning it from the
            // loop. The bytes are buffered, so this costs nothing.
            Ok(_) => break,
        }
    }
    reader.fill_buf().map_err(|source| ImportError::Read { place, source })
}

fn count(byte: u8, line: &mut u64, column: &mut u64) {
    if byte == b'\n' {
        *line += 1;
        *column = 1;
    } else {
        *column += 1;
    }
}
