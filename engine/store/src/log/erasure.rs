//! Erasure statements: the records by which the ledger holds what compaction erased.
//!
//! A compaction commits a statement before the manifest lists its segments. So a rewritten segment whose erased
//! records no statement names was not made by a compaction, or the log lost its end. docs/format.md has the bytes.
//!
//! ```text
//! erasure  rule u8 | time_ns u64 | count varint | span* | count varint | (gap varint | length varint)*
//! span     first varint | length varint | records varint | leaves varint | digest [32]
//! ```

use std::ops::Range;

use crate::codec::{ByteReader, CodecError, put_varint};
use crate::ids::Seqno;
use crate::log::erased::seqnos_of;
use crate::log::layout::{COUNT_MAX, RawRecord};
use crate::log::ledger::LedgerNode;
use crate::log::record::RecordKind;

/// The BLAKE3 context of a span's digest.
const SET_CONTEXT: &str = "annals erased records 1";

/// Greatest number of spans in one statement.
pub const SPANS_MAX: usize = 4096;

/// Greatest number of runs that one statement names.
pub const RUNS_MAX: u64 = 1 << 20;

/// Why records were erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureRule {
    /// A compaction erased what nothing referenced any more.
    Compaction,
    /// Found when a store of a format before 4 was opened for writing. Nobody stated it at the time.
    BeforeFormat4,
    /// Run numbers that were taken and never used. Nothing was erased.
    Unused,
}

impl ErasureRule {
    /// The rule as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::BeforeFormat4 => "before format 4",
            Self::Unused => "unused",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Compaction => 1,
            Self::BeforeFormat4 => 2,
            Self::Unused => 3,
        }
    }
}

/// The erased records of one rewritten segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErasedSpan {
    /// First seqno of the segment.
    pub first: Seqno,
    /// The seqno after the segment's last one.
    pub end: Seqno,
    /// Number of erased seqnos, at least 1.
    pub records: u64,
    /// Number of leaves of the ledger without a record that still exists.
    pub leaves: u64,
    /// Digest of the set of erased seqnos.
    pub digest: [u8; 32],
}

/// What one compaction erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasureHead {
    pub rule: ErasureRule,
    /// When it was stated, nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// One for each new segment with erased records, ascending and disjoint.
    pub spans: Vec<ErasedSpan>,
    /// Run numbers: of replaced runs whose last record was erased; of runs that had no record at the upgrade; or
    /// unused ones. Ascending ranges that do not touch.
    pub runs: Vec<Range<u64>>,
}

impl ErasureHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + 56 * self.spans.len());
        out.push(self.rule.code());
        out.extend_from_slice(&self.time_ns.to_le_bytes());
        put_varint(&mut out, self.spans.len() as u64);
        for span in &self.spans {
            put_varint(&mut out, span.first.0);
            put_varint(&mut out, span.end.0 - span.first.0);
            put_varint(&mut out, span.records);
            put_varint(&mut out, span.leaves);
            out.extend_from_slice(&span.digest);
        }
        put_varint(&mut out, self.runs.len() as u64);
        let mut end = 0;
        for range in &self.runs {
            put_varint(&mut out, range.start - end);
            put_varint(&mut out, range.end - range.start);
            end = range.end;
        }
        out
    }

    pub fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "erasure head");
        let rule = match r.u8()? {
            1 => ErasureRule::Compaction,
            2 => ErasureRule::BeforeFormat4,
            3 => ErasureRule::Unused,
            other => return Err(CodecError::Unknown { what: "erasure rule", found: u64::from(other) }),
        };
        let time_ns = r.u64()?;
        let count = bounded("spans of an erasure", r.varint()?, 0, SPANS_MAX as u64)?;
        let mut spans = Vec::new();
        let mut before = Seqno(1);
        for _ in 0..count {
            let first = bounded("first record of an erasure", r.varint()?, before.0, COUNT_MAX)?;
            let length = bounded("length of an erasure", r.varint()?, 1, COUNT_MAX - first)?;
            let records = bounded("erased records", r.varint()?, 1, length)?;
            let leaves = bounded("erased leaves", r.varint()?, 0, records)?;
            let (first, end) = (Seqno(first), Seqno(first + length));
            spans.push(ErasedSpan { first, end, records, leaves, digest: r.array()? });
            before = end;
        }
        let count = r.varint()?;
        let (mut runs, mut end, mut left) = (Vec::new(), 0, RUNS_MAX);
        // Each range takes at least two bytes, so a wrong count cannot allocate more than the input.
        for _ in 0..count {
            let start = end + bounded("gap between run numbers", r.varint()?, 1, COUNT_MAX - end)?;
            let length = bounded("number of runs", r.varint()?, 1, left.min(COUNT_MAX - start))?;
            (end, left) = (start + length, left - length);
            runs.push(start..end);
        }
        r.finish()?;
        Ok(Self { rule, time_ns, spans, runs })
    }
}

fn bounded(what: &'static str, found: u64, least: u64, limit: u64) -> Result<u64, CodecError> {
    match (least..=limit).contains(&found) {
        true => Ok(found),
        false => Err(CodecError::Limit { what, found, limit }),
    }
}

/// Ascending numbers as ranges that do not touch.
pub fn ranges_of(numbers: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

/// The same numbers, in parts of at most `most` numbers.
pub fn split_ranges(ranges: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let (mut parts, mut left) = (Vec::<Vec<Range<u64>>>::new(), 0);
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            if left == 0 {
                parts.push(Vec::new());
                left = most.max(1);
            }
            let end = range.end.min(start.saturating_add(left));
            left -= end - start;
            parts.last_mut().into_iter().for_each(|part| part.push(start..end));
            start = end;
        }
    }
    parts
}

/// Collects the erased records of a rewritten segment from its batches, in order.
#[derive(Debug, Default)]
pub struct ErasedSetBuilder {
    hasher: Option<blake3::Hasher>,
    /// The erased seqnos that are not hashed yet, because the next ones may continue them.
    open: Range<u64>,
    records: u64,
    leaves: u64,
    batch: BatchErasure,
}

/// What a batch still holds.
#[derive(Debug, Default)]
struct BatchErasure {
    living: u64,
    /// The batch replaces erased batches.
    whole: bool,
}

impl ErasedSetBuilder {
    /// Adds a record of the current batch.
    ///
    /// # Errors
    /// For a record of erased records that is malformed.
    pub fn add_record(&mut self, seqno: Seqno, record: &RawRecord<'_>) -> Result<(), CodecError> {
        match RecordKind::parse(record.kind, record.layout)? {
            Some(kind @ (RecordKind::Erased | RecordKind::ErasedBatches)) => {
                self.batch.whole |= kind == RecordKind::ErasedBatches;
                self.add(seqno, seqnos_of(record)?);
            }
            Some(kind) => self.batch.living += u64::from(kind.is_logical()),
            None => {}
        }
        Ok(())
    }

    /// Ends the current batch, which contributes `node` to the ledger. Returns its number of logical records.
    ///
    /// # Errors
    /// For an impossible node.
    pub fn end_batch(&mut self, node: Option<LedgerNode>) -> Result<u64, CodecError> {
        let BatchErasure { living, whole } = std::mem::take(&mut self.batch);
        if let Some(node) = node.filter(|_| whole || living == 0) {
            self.leaves += node.leaves()?;
        }
        Ok(living)
    }

    /// Number of erased seqnos so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Number of leaves so far of which no record exists any more.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    fn add(&mut self, first: Seqno, count: u64) {
        self.records = self.records.saturating_add(count);
        let end = first.0.saturating_add(count);
        if self.open.end == first.0 && !self.open.is_empty() {
            self.open.end = end;
            return;
        }
        self.flush();
        self.open = first.0..end;
    }

    fn flush(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            let hasher = self.hasher.get_or_insert_with(|| blake3::Hasher::new_derive_key(SET_CONTEXT));
            hasher.update(&open.start.to_le_bytes());
            hasher.update(&open.end.to_le_bytes());
        }
    }

    /// The erased records of the segment, whose seqnos are `first..end`; `None` if there are none.
    pub fn finish(mut self, first: Seqno, end: Seqno) -> Option<ErasedSpan> {
        self.flush();
        let digest = *self.hasher?.finalize().as_bytes();
        Some(ErasedSpan { first, end, records: self.records, leaves: self.leaves, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> ErasureHead {
        let span = |first, end, records, leaves| ErasedSpan {
            first: Seqno(first),
            end: Seqno(end),
            records,
            leaves,
            digest: [7; 32],
        };
        ErasureHead {
            rule: ErasureRule::Compaction,
            time_ns: 9,
            spans: vec![span(1, 100, 30, 4), span(100, 101, 1, 0)],
            runs: vec![1..2, 8..11],
        }
    }

    #[test]
    fn erasure_head_round_trips() {
        let empty = ErasureHead { spans: Vec::new(), runs: Vec::new(), ..head() };
        let earlier = ErasureHead { rule: ErasureRule::BeforeFormat4, ..head() };
        let unused = ErasureHead { rule: ErasureRule::Unused, spans: Vec::new(), ..head() };
        for head in [head(), empty, earlier, unused] {
            let bytes = head.encode();
            assert_eq!(ErasureHead::parse(&bytes).unwrap(), head);
            assert!(ErasureHead::parse(&bytes[..bytes.len() - 1]).is_err());
            assert!(ErasureHead::parse(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn erasure_head_that_contradicts_itself_is_refused() {
        let refused = |change: fn(&mut ErasureHead)| {
            let mut wrong = head();
            change(&mut wrong);
            assert!(ErasureHead::parse(&wrong.encode()).is_err(), "{wrong:?}");
        };
        refused(|head| head.spans[0].first = Seqno(0));
        refused(|head| head.spans[1].first = Seqno(99));
        refused(|head| head.spans[0].records = 0);
        refused(|head| head.spans[0].records = 100);
        refused(|head| head.spans[0].leaves = 31);
        refused(|head| head.spans[1].end = Seqno(COUNT_MAX + 1));
        refused(|head| head.runs[0] = 0..1);
        refused(|head| head.runs[1] = 2..3);
        refused(|head| head.runs[1] = 8..9 + RUNS_MAX);
        let mut bytes = head().encode();
        bytes[0] = 4;
        assert_eq!(ErasureHead::parse(&bytes), Err(CodecError::Unknown { what: "erasure rule", found: 4 }));
    }

    /// The digest covers the set, not the records that stand for it: a later compaction may join them.
    #[test]
    fn digest_of_erased_set_ignores_how_it_is_stored() {
        let digest = |ranges: &[(u64, u64)]| {
            let mut set = ErasedSetBuilder::default();
            ranges.iter().for_each(|(first, count)| set.add(Seqno(*first), *count));
            set.finish(Seqno(1), Seqno(50)).map(|span| (span.records, span.digest))
        };
        assert_eq!(digest(&[(3, 4), (7, 2), (20, 1)]), digest(&[(3, 6), (20, 1)]));
        assert_ne!(digest(&[(3, 6), (20, 1)]), digest(&[(3, 5), (8, 1), (21, 1)]));
        assert_eq!(digest(&[]), None);
        assert_eq!(ranges_of([1, 2, 5, 7, 8]), [1..3, 5..6, 7..9]);
        let split = |ranges: &[Range<u64>], most| -> Vec<String> {
            split_ranges(ranges, most).iter().map(|part| format!("{part:?}")).collect()
        };
        assert_eq!(split(&[1..4, 6..9], 2), ["[1..3]", "[3..4, 6..7]", "[7..9]"]);
        assert_eq!(split(std::slice::from_ref(&(1..4)), 9), ["[1..4]"]);
    }
}
