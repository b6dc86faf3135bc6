//! Removes named secrets from a stream that is not held in memory: a program's output.
//!
//! Bytes that may belong to a value are held back, so that no border between two reads hides one. Left out on
//! purpose: values spelled over several lines of JSON, and compressed output.

use std::io::{ErrorKind, Read, Result};

use super::secrets::Secrets;

/// Number of bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Endlessly overlapping values are cut after this many bytes.
const HELD_BYTES_MAX: usize = 1 << 20;

/// A reader that replaces secrets in another reader's data.
#[derive(Debug)]
pub struct RedactingReader<R> {
    from: R,
    secrets: Secrets,
    /// Read but not completely searched.
    held: Vec<u8>,
    out: Vec<u8>,
    /// Number of consumed bytes of `out`.
    taken: usize,
    at_end: bool,
    removed: u64,
}

impl<R: Read> RedactingReader<R> {
    /// Removes `secrets` from the data of `from`.
    #[must_use]
    pub fn new(from: R, secrets: &Secrets) -> Self {
        let (secrets, held, out) = (secrets.clone(), Vec::new(), Vec::new());
        Self { from, secrets, held, out, taken: 0, at_end: false, removed: 0 }
    }

    /// Number of values removed so far.
    #[must_use]
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// The position before which no value can begin without having ended.
    fn settled(&self) -> usize {
        if self.at_end {
            return self.held.len();
        }
        let limit = (self.held.len() + 1).saturating_sub(self.secrets.longest().max(1));
        match self.secrets.find(&self.held).find(|found| found.end > limit) {
            Some(found) if found.start == 0 && self.held.len() > HELD_BYTES_MAX => found.end,
            Some(found) => found.start.min(limit),
            None => limit,
        }
    }
}

impl<R: Read> Read for RedactingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let left = self.out.get(self.taken..).unwrap_or_default();
            if !left.is_empty() || buffer.is_empty() {
                let len = left.len().min(buffer.len());
                buffer[..len].copy_from_slice(&left[..len]);
                self.taken += len;
                return Ok(len);
            }
            if self.at_end && self.held.is_empty() {
                return Ok(0);
            }
            if !self.at_end {
                let before = self.held.len();
                self.held.resize(before + READ_BYTES, 0);
                let read = match self.from.read(&mut self.held[before..]) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
                    read => read.map(Some),
                };
                self.held.truncate(before + read.as_ref().map_or(0, |read| read.unwrap_or(0)));
                self.at_end = read? == Some(0);
            }
            let settled = self.settled();
            let cleared = self.secrets.redact(&self.held[..settled]);
            self.removed += cleared.removed as u64;
            self.out = cleared.bytes.into_owned();
            self.taken = 0;
            self.held.drain(..settled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redact::PLACEHOLDER;

    /// Returns this many bytes at a time.
    struct ChunkedReader<'a>(&'a [u8], usize);

    impl Read for ChunkedReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            let len = self.1.min(buffer.len()).min(self.0.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn secrets() -> Secrets {
        let named = [("A", "s3cr3t/value"), ("B", "aaaaaaaa"), ("C", "value-and-more")];
        let (secrets, refused) =
            Secrets::new(&named.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
        assert!(refused.is_empty());
        secrets
    }

    fn read(text: &[u8], step: usize) -> (Vec<u8>, u64) {
        let mut cleared = RedactingReader::new(ChunkedReader(text, step), &secrets());
        let mut out = Vec::new();
        cleared.read_to_end(&mut out).unwrap();
        (out, cleared.removed())
    }

    #[test]
    fn values_across_reads_are_removed() {
        let text = b"x s3cr3t/value-and-more, czNjcjN0L3ZhbHVl \ns3cr3t%2fvalue;s3cr3t/valu and aaaaaaa";
        let whole = secrets().redact(text);
        let expected = (whole.bytes.to_vec(), whole.removed as u64);
        assert_eq!(expected.1, 3);
        for step in [1, 2, 3, 5, 7, 11, 40, 1000] {
            assert_eq!(read(text, step), expected, "{step} bytes at a time");
        }
    }

    #[test]
    fn endlessly_overlapping_values_are_held_up_to_the_limit() {
        let (out, removed) = read(&vec![b'a'; 3 << 20], 64 << 10);
        assert!((1..=4).contains(&removed), "{removed}");
        assert!(out.len() < 8 + 4 * PLACEHOLDER.len(), "{} bytes are left", out.len());
    }

    #[test]
    fn input_without_secrets_passes_unchanged() {
        let text: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        assert_eq!(read(&text, 999), (text, 0));
    }
}
