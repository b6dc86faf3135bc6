//! Walks a segment: batches in order, their records, and their sums.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::codec::{ByteReader, CodecError, index};
use crate::error::Result;
use crate::ids::Seqno;
use crate::io::File;
use crate::log::erased::seqnos_of;
use crate::log::joined::{JoinedRest, LogBatch};
use crate::log::layout::{
    BATCH_HEADER_BYTES, BatchForm, BatchHeader, LONG_BATCH_HEADER_BYTES, LogState, RECORD_HEADER_BYTES_MAX,
    RECORD_HEADER_BYTES_MIN, RawRecord, RecordHeader, Salt,
};
use crate::log::leaf_hash::LeafHasher;
use crate::log::ledger::LedgerNode;
use crate::log::record::RecordKind;
use crate::log::segments::Segment;
use crate::log::sums::SumsBuilder;
use crate::schema::RecordSchema;

/// Bytes read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// The longest record in the short form that a search in bytes without a batch finds. Parts of groups are at most half
/// as long, and heads and recipes as a rule far shorter.
const SEARCHED_RECORD_BYTES_MAX: usize = 512 << 10;

/// Where batches end at the latest: the index keeps offsets in a segment as 32 bits.
const BATCH_END_MAX: u64 = u32::MAX as u64;

/// Reads whole batches in order through a bounded window. Batches of a mapped sealed segment are read in
/// place.
#[derive(Debug)]
pub struct LogCursor {
    file: Arc<dyn File>,
    /// The sealed segment whose map is read, if it has one.
    sealed: Option<Arc<Segment>>,
    salt: Salt,
    /// Where to stop reading.
    end: u64,
    /// Offset of the next batch; of joined batches that were not all read, the offset of the first.
    pub at: u64,
    /// Bytes of the joined batches at `at`, and those that were not read yet.
    joined: Option<(usize, JoinedRest)>,
    window: Vec<u8>,
    /// Offset of the window. With a map: the offset up to which the map was read ahead.
    window_at: u64,
}

/// The result of a search for a batch.
#[derive(Debug)]
pub enum BatchSearch<'a> {
    Batch(LogBatch<'a>),
    /// There is no further batch.
    End,
    /// The search budget is spent: too many bytes look like batches but are not.
    BudgetSpent,
}

/// What a search for a record finds at one position.
enum RecordSearch {
    /// A record of this length.
    Record(usize),
    None,
    BudgetSpent,
}

impl LogCursor {
    pub fn new(file: Arc<dyn File>, salt: Salt, at: u64, end: u64) -> Self {
        Self { file, sealed: None, salt, end, at, joined: None, window: Vec::new(), window_at: at }
    }

    /// A cursor over a sealed segment's batches.
    pub fn sealed(segment: &Arc<Segment>, at: u64, end: u64) -> Self {
        let sealed = segment.mapped().is_some_and(|map| map.len() as u64 >= end).then(|| segment.clone());
        Self { sealed, ..Self::new(segment.file.clone(), segment.salt, at, end) }
    }

    /// The next batch if it is valid and follows `state`, else the reason. On a mismatch the cursor does not
    /// move.
    pub fn next(&mut self, state: &LogState) -> Result<std::result::Result<LogBatch<'_>, CodecError>> {
        if self.joined.is_some() {
            return self.next_joined(state.next_seqno);
        }
        let (offset, len) = match self.read_next_extent()? {
            Ok(ahead) => ahead,
            Err(error) => return Ok(Err(error)),
        };
        let header = match BatchHeader::check(self.window_from(offset), self.salt, offset) {
            Ok((header, _)) => header,
            Err(error) => return Ok(Err(error)),
        };
        if header.first_seqno != state.next_seqno || !header.prev.fits(&state.chain) {
            return Ok(Err(CodecError::Header("the batch does not follow the one before it".into())));
        }
        Ok(self.advance_over(offset, len))
    }

    /// The next batch by its length alone, unchecked: for callers that check it later. The seqno of a batch without
    /// a header is 0.
    pub fn next_unchecked(&mut self) -> Result<std::result::Result<LogBatch<'_>, CodecError>> {
        if self.joined.is_some() {
            return self.next_joined(Seqno(0));
        }
        match self.read_next_extent()? {
            Ok((offset, len)) => Ok(self.advance_over(offset, len)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// The next one of joined batches.
    fn next_joined(&mut self, first_seqno: Seqno) -> Result<std::result::Result<LogBatch<'_>, CodecError>> {
        let offset = self.at;
        let Some((len, rest)) = self.joined.take() else {
            return Ok(Err(CodecError::Header("no joined batch is left".into())));
        };
        self.fill(offset, len)?;
        let whole = self.window_from(offset).get(..len).unwrap_or_default();
        let after = rest.batch(whole, offset, first_seqno).map(|batch| batch.rest());
        match after {
            Ok(Some(after)) => self.joined = Some((len, after)),
            Ok(None) => self.at = offset + len as u64,
            Err(error) => return Ok(Err(error)),
        }
        let whole = self.window_from(offset).get(..len).unwrap_or_default();
        Ok(rest.batch(whole, offset, first_seqno))
    }

    /// Offset and length of the next batch, after reading all of it into the window.
    fn read_next_extent(&mut self) -> Result<std::result::Result<(u64, usize), CodecError>> {
        let offset = self.at;
        self.fill(offset, LONG_BATCH_HEADER_BYTES)?;
        let bytes = self.window_from(offset);
        let header = match BatchHeader::peek(bytes) {
            Ok((_, header)) => header,
            Err(error) => return Ok(Err(error)),
        };
        let len = header.bytes as usize;
        let end_max = self.end.min(BATCH_END_MAX);
        if !header.has_valid_length() || offset + len as u64 > end_max {
            return Ok(Err(CodecError::Limit {
                what: "batch length",
                found: len as u64,
                limit: end_max.saturating_sub(offset),
            }));
        }
        self.fill(offset, len)?;
        Ok(Ok((offset, len)))
    }

    /// The batch at `offset`, or the first one of joined batches; moves the cursor past it.
    fn advance_over(&mut self, offset: u64, len: usize) -> std::result::Result<LogBatch<'_>, CodecError> {
        let found = self.window_from(offset).len();
        if found < len {
            return Err(CodecError::Short { what: "batch", found, needed: len });
        }
        let salt = self.salt;
        let whole = self.window_from(offset).get(..len).unwrap_or_default();
        let after = LogBatch::of(whole, offset, salt)?.rest();
        self.joined = after.map(|rest| (len, rest));
        self.at = if after.is_none() { offset + len as u64 } else { offset };
        LogBatch::of(self.window_from(offset).get(..len).unwrap_or_default(), offset, salt)
    }

    /// Searches for any later valid batch, wherever it stands, and returns the greatest synced position that
    /// they name. Needed only if [`LogCursor::next`] stopped at bytes that are not zeros.
    pub fn greatest_synced_after(&mut self, from: u64, state: &LogState) -> Result<u64> {
        let mut greatest = 0;
        let mut budget = self.search_budget(from);
        self.at = from;
        let first = state.next_seqno.0..=state.next_seqno.0.saturating_add(self.end);
        loop {
            match self.search_batch(&first, &mut budget)? {
                BatchSearch::Batch(batch) => greatest = greatest.max(u64::from(batch.header.synced)),
                BatchSearch::End => return Ok(greatest),
                // Acknowledged batches may follow, so nothing may be treated as torn.
                BatchSearch::BudgetSpent => return Ok(u64::MAX),
            }
        }
    }

    /// Arbitrary bytes may look like many batches or records. The budget ends a search after it has checked
    /// 64 times the remaining bytes.
    pub fn search_budget(&self, from: u64) -> u64 {
        64 * (self.end - from.min(self.end) + 1)
    }

    /// The next valid batch, here or later, whose first seqno is in the range; it need not follow another
    /// batch. Of joined batches it is the first one. The cursor then stands after all of them.
    pub fn search_batch(&mut self, first: &RangeInclusive<u64>, budget: &mut u64) -> Result<BatchSearch<'_>> {
        let mut at = self.at;
        let found = loop {
            if at + BATCH_HEADER_BYTES as u64 > self.end {
                break None;
            }
            self.fill(at, LONG_BATCH_HEADER_BYTES)?;
            let Ok((_, header)) = BatchHeader::peek(self.window_from(at)) else {
                if self.window_from(at).len() < BATCH_HEADER_BYTES {
                    break None;
                }
                // Too few bytes are left for the long form.
                at += 1;
                continue;
            };
            let len = header.bytes as usize;
            // Cheap tests first: the bytes are arbitrary, and few pass.
            let plausible = header.has_valid_length()
                && at + len as u64 <= self.end.min(BATCH_END_MAX)
                && u64::from(header.synced) <= at
                && first.contains(&header.first_seqno.0);
            if plausible {
                match budget.checked_sub(len as u64) {
                    Some(left) => *budget = left,
                    None => return Ok(BatchSearch::BudgetSpent),
                }
                self.fill(at, len)?;
                // A record's checksum is made as a batch's. Only a batch consists of records.
                let whole = BatchHeader::check(self.window_from(at), self.salt, at);
                if whole.is_ok_and(|(_, whole)| consists_of_records(whole, at, self.salt).is_ok()) {
                    break Some(len);
                }
            }
            at += 1;
        };
        let Some(len) = found else {
            self.at = self.end;
            return Ok(BatchSearch::End);
        };
        (self.joined, self.at) = (None, at + len as u64);
        let batch = LogBatch::of(self.window_from(at).get(..len).unwrap_or_default(), at, self.salt);
        Ok(batch.map_or(BatchSearch::BudgetSpent, BatchSearch::Batch))
    }

    /// Offset and bytes of the next valid record, here or later, in bytes that make no batch. The cursor then
    /// stands after it. `is_plausible` looks at a record before its checksum is computed: in the short form, many
    /// bytes look like the header of a record.
    pub fn search_record(
        &mut self,
        is_plausible: &dyn Fn(&RawRecord<'_>) -> bool,
        budget: &mut u64,
    ) -> Result<Option<(u32, &[u8])>> {
        let mut at = self.at;
        let found = loop {
            if at + RECORD_HEADER_BYTES_MIN as u64 > self.end {
                break None;
            }
            match self.record_at(at, is_plausible, budget)? {
                RecordSearch::Record(len) => break Some(len),
                RecordSearch::BudgetSpent => break None,
                RecordSearch::None => at += 1,
            }
        };
        let Some(len) = found else {
            self.at = self.end;
            return Ok(None);
        };
        self.at = at + len as u64;
        #[expect(clippy::cast_possible_truncation, reason = "the record ends within 32 bits: checked above")]
        let place = at as u32;
        Ok(self.window_from(at).get(..len).map(|record| (place, record)))
    }

    /// Whether a valid record of either form stands at `at`.
    fn record_at(
        &mut self,
        at: u64,
        is_plausible: &dyn Fn(&RawRecord<'_>) -> bool,
        budget: &mut u64,
    ) -> Result<RecordSearch> {
        for form in [BatchForm::Short, BatchForm::Long { records: 1 }] {
            self.fill(at, RECORD_HEADER_BYTES_MAX)?;
            let Ok(header) = RecordHeader::peek(self.window_from(at), form) else { continue };
            let len = header.bytes as usize;
            let known = matches!(RecordKind::parse(header.kind, header.layout), Ok(Some(_)));
            let is_long = form != BatchForm::Short;
            if !known
                || at + len as u64 > self.end.min(BATCH_END_MAX)
                || (len > SEARCHED_RECORD_BYTES_MAX && !is_long)
            {
                continue;
            }
            self.fill(at, len)?;
            let record = RawRecord::unchecked(self.window_from(at), form);
            if !record.is_ok_and(|record| is_long || is_plausible(&record)) {
                continue;
            }
            match budget.checked_sub(len as u64) {
                Some(left) => *budget = left,
                None => return Ok(RecordSearch::BudgetSpent),
            }
            if RawRecord::check(self.window_from(at), form, self.salt, at).is_ok() {
                return Ok(RecordSearch::Record(len));
            }
        }
        Ok(RecordSearch::None)
    }

    /// Whether all bytes from `from` to the end are zero.
    pub fn only_zeros_after(&mut self, from: u64) -> Result<bool> {
        Ok(self.end_of_data_after(from)? == from)
    }

    /// The position after the last byte from `from` on that is not zero; `from` if all are zero.
    pub fn end_of_data_after(&mut self, from: u64) -> Result<u64> {
        let (mut at, mut data_end) = (from, from);
        while at < self.end {
            let want = WINDOW_BYTES.min(index(self.end - at));
            self.fill(at, want)?;
            let bytes = self.window_from(at);
            let got = bytes.len().min(want);
            if got == 0 {
                break;
            }
            if let Some(last) = bytes[..got].iter().rposition(|byte| *byte != 0) {
                data_end = at + last as u64 + 1;
            }
            at += got as u64;
        }
        Ok(data_end)
    }

    fn window_from(&self, at: u64) -> &[u8] {
        if let Some(map) = self.sealed.as_ref().and_then(|segment| segment.mapped()) {
            return map.get(index(at)..).unwrap_or(&[]);
        }
        self.window.get(index(at - self.window_at)..).unwrap_or(&[])
    }

    /// Makes the window contain `[at, at + len)`, as far as the file goes.
    fn fill(&mut self, at: u64, len: usize) -> Result<()> {
        if let Some(segment) = &self.sealed {
            let wanted = at + len as u64;
            if wanted > self.window_at {
                let from = self.window_at.max(at);
                let ahead = (wanted - from).max(WINDOW_BYTES as u64);
                segment.populate(from, index(ahead))?;
                self.window_at = from + ahead;
            }
            return Ok(());
        }
        let held = self.window_at + self.window.len() as u64;
        if at >= self.window_at && at + len as u64 <= held {
            return Ok(());
        }
        if at >= self.window_at && at <= held {
            self.window.drain(..index(at - self.window_at));
        } else {
            self.window.clear();
        }
        self.window_at = at;
        let want = len.max(WINDOW_BYTES).min(index(self.end.saturating_sub(at)));
        let have = self.window.len();
        if want > have {
            self.window.resize(want, 0);
            let got = self.file.read_at(&mut self.window[have..], at + have as u64)?;
            self.window.truncate(have + got);
        }
        Ok(())
    }
}

/// Calls `each` with the offset, seqno and content of every record of a batch. For erased records, the seqno
/// is their first.
pub fn for_each_checked_record<'a>(
    batch: &LogBatch<'a>,
    salt: Salt,
    each: impl FnMut(u32, Seqno, RawRecord<'a>) -> std::result::Result<(), CodecError>,
) -> std::result::Result<(), CodecError> {
    walk_records(batch, salt, |bytes, form, at| RawRecord::check(bytes, form, salt, at), each)
}

/// As [`for_each_checked_record`], without checking the records: for callers that check them later.
pub fn for_each_unchecked_record<'a>(
    batch: &LogBatch<'a>,
    salt: Salt,
    each: impl FnMut(u32, Seqno, RawRecord<'a>) -> std::result::Result<(), CodecError>,
) -> std::result::Result<(), CodecError> {
    walk_records(batch, salt, |bytes, form, _| RawRecord::unchecked(bytes, form), each)
}

fn walk_records<'a>(
    batch: &LogBatch<'a>,
    salt: Salt,
    take: impl Fn(&'a [u8], BatchForm, u64) -> std::result::Result<RawRecord<'a>, CodecError>,
    mut each: impl FnMut(u32, Seqno, RawRecord<'a>) -> std::result::Result<(), CodecError>,
) -> std::result::Result<(), CodecError> {
    let LogBatch { offset, header, .. } = *batch;
    let range = batch.records();
    let whole = batch.whole.get(..range.end).unwrap_or_default();
    let end = offset.saturating_add(whole.len() as u64);
    if end > BATCH_END_MAX {
        return Err(CodecError::Limit { what: "end of a batch", found: end, limit: BATCH_END_MAX });
    }
    let (mut at, mut seqno, mut records) = (range.start, header.first_seqno, 0);
    let goes_on = |at: usize, records: u32| match header.form {
        BatchForm::Long { records: all } => records < all,
        _ => at < whole.len(),
    };
    while goes_on(at, records) {
        let rest = whole.get(at..).unwrap_or(&[]);
        let record = take(rest, header.form, offset + at as u64)?;
        records += 1;
        let seqnos = match RecordKind::parse(record.kind, record.layout) {
            Ok(Some(kind)) if kind.is_compaction_only() => match salt.is_rewritten {
                true => seqnos_of(&record)?,
                false => {
                    let found = u64::from(record.kind);
                    return Err(CodecError::Unknown { what: "record kind in a segment as written", found });
                }
            },
            _ => 1,
        };
        #[expect(clippy::cast_possible_truncation, reason = "the batch ends within 32 bits of the segment")]
        let place = (offset + at as u64) as u32;
        each(place, seqno, record)?;
        seqno = Seqno(seqno.0.saturating_add(seqnos));
        at += record.bytes as usize;
    }
    ByteReader::new(whole.get(at..).unwrap_or(&[]), "batch").finish()
}

/// Fails unless these bytes, a batch or joined batches, consist of records by their lengths.
fn consists_of_records(whole: &[u8], offset: u64, salt: Salt) -> std::result::Result<(), CodecError> {
    let mut next = Some(LogBatch::of(whole, offset, salt)?);
    while let Some(batch) = next {
        for_each_unchecked_record(&batch, salt, |_, _, _| Ok(()))?;
        next = batch.joined(Seqno(0))?;
    }
    Ok(())
}

/// The seqno after those of a batch whose records were all checked.
pub fn next_seqno(batch: &LogBatch<'_>, salt: Salt) -> std::result::Result<Seqno, CodecError> {
    let mut next = batch.header.first_seqno;
    for_each_unchecked_record(batch, salt, |_, seqno, record| {
        let seqnos = if salt.is_rewritten { seqnos_of(&record)? } else { 1 };
        next = Seqno(seqno.0.saturating_add(seqnos));
        Ok(())
    })?;
    Ok(next)
}

/// Advances `state` over a checked batch; returns the batch's contribution to the ledger, if any.
pub fn advance_state(
    schema: &dyn RecordSchema,
    state: &mut LogState,
    batch: &LogBatch<'_>,
    salt: Salt,
) -> std::result::Result<Option<LedgerNode>, CodecError> {
    let mut leaves = LeafHasher::default();
    let mut sums = SumsBuilder::new(schema, &mut leaves);
    for_each_checked_record(batch, salt, |_, seqno, record| sums.add_record(seqno, &record))?;
    let chain = batch.digest_after(state.chain);
    state.advance(&batch.header, &sums.finish(), chain)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;

    use super::*;
    use crate::ids::{SegmentId, StoreId};
    use crate::io::sim::{FailRule, OpKind, SimIo};
    use crate::io::{Io, OpenMode};
    use crate::log::layout::{seal_record, stamp_record, start_record};

    fn byte(at: usize) -> u8 {
        (at % 251) as u8
    }

    /// A cursor over a file with these bytes; reading stops at `end`.
    fn cursor(bytes: &[u8], end: u64) -> (SimIo, LogCursor) {
        let sim = SimIo::new(1);
        let file = sim.open(Path::new("f"), OpenMode::CreateNew).unwrap();
        file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
        let salt = Salt::new(StoreId::default(), SegmentId(1));
        (sim, LogCursor::new(file, salt, 0, end))
    }

    #[test]
    fn cursor_window_reads_ahead_and_keeps_bytes() {
        const MIB: u64 = WINDOW_BYTES as u64;
        let bytes: Vec<u8> = (0..3 * WINDOW_BYTES + 7).map(byte).collect();
        let end = bytes.len() as u64 - 5;
        let (sim, mut cursor) = cursor(&bytes, end);
        // Offset and length to fill; allowed reads; offset and length of the window afterwards.
        let steps = [
            (0, 10, 1, 0, MIB),
            (0, WINDOW_BYTES, 0, 0, MIB),
            (MIB - 48, 48, 0, 0, MIB),
            // One byte past the window's end: drops the bytes before, keeps the held bytes, reads the rest.
            (MIB - 48, 49, 1, MIB - 48, MIB),
            // Before the window.
            (100, 48, 1, 100, MIB),
            // More than a window at once.
            (200, 2 * WINDOW_BYTES, 1, 200, 2 * MIB),
            (200 + 2 * MIB, 4, 1, 200 + 2 * MIB, MIB + 2 - 200),
            // Up to the end; there are no more bytes.
            (end - 3, 3, 0, 200 + 2 * MIB, MIB + 2 - 200),
            (end - 3, 4, 0, end - 3, 3),
            (end, 1, 0, end, 0),
            // After the window, with a gap.
            (5, 5, 1, 5, MIB),
            (2 * MIB, 5, 1, 2 * MIB, MIB),
        ];
        for (number, (at, len, reads, window_at, window_len)) in steps.into_iter().enumerate() {
            sim.clear_faults();
            sim.fail(FailRule::eio(OpKind::Read).after(reads).forever());
            cursor.fill(at, len).unwrap();
            // Every allowed read was made: the next one fails.
            if reads > 0 {
                assert!(cursor.file.read_at(&mut [0], 0).is_err(), "step {number}");
            }
            assert_eq!(
                (cursor.window_at, cursor.window.len() as u64),
                (window_at, window_len),
                "step {number}"
            );
            let first = window_at as usize;
            assert!(cursor.window == bytes[first..first + cursor.window.len()], "step {number}");
        }
    }

    #[test]
    fn search_budget_is_64_times_the_bytes() {
        let (_, cursor) = cursor(&[0; 100], 90);
        let budgets = [0, 1, 89, 90, 91, u64::MAX].map(|from| cursor.search_budget(from));
        assert_eq!(budgets, [64 * 91, 64 * 90, 64 * 2, 64, 64, 64]);
    }

    #[test]
    fn only_zeros_after_stops_at_the_end() {
        for (len, mark, end, zeros) in [
            (100, 50, 100, false),
            (100, 99, 100, false),
            (100, 99, 99, true),
            (100, 9, 100, true),
            (100, 10, 100, false),
            (100, 0, 150, true),
            (3 << 20, (2 << 20) + 9, 3 << 20, false),
        ] {
            let mut bytes = vec![0; len];
            bytes[mark] = 1;
            let (_, mut cursor) = cursor(&bytes, end);
            assert_eq!(cursor.only_zeros_after(10).unwrap(), zeros, "{mark} of {len} up to {end}");
        }
    }

    /// Puts a whole record at `at`.
    fn put_record(bytes: &mut [u8], at: usize, kind: u8, body: &[u8]) {
        let mut record = Vec::new();
        let start = start_record(&mut record, kind, 1);
        record.extend_from_slice(body);
        seal_record(&mut record, start);
        stamp_record(&mut record, Salt::new(StoreId::default(), SegmentId(1)), at as u64);
        bytes[at..at + record.len()].copy_from_slice(&record);
    }

    /// Puts a whole record in the long form at `at`.
    fn put_long_record(bytes: &mut [u8], at: usize, kind: u8, body: &[u8]) {
        let mut record =
            [[0; 4].as_slice(), &(body.len() as u32 + 10).to_le_bytes(), &[kind, 1], body].concat();
        stamp_record(&mut record, Salt::new(StoreId::default(), SegmentId(1)), at as u64);
        bytes[at..at + record.len()].copy_from_slice(&record);
    }

    #[test]
    fn search_record_finds_only_whole_records() {
        let mut bytes = vec![0; 300];
        put_record(&mut bytes, 7, 1, b"one");
        put_record(&mut bytes, 40, 11, b"of no known kind");
        put_record(&mut bytes, 80, 2, b"broken");
        bytes[90] ^= 1;
        put_record(&mut bytes, 120, 2, b"");
        put_long_record(&mut bytes, 150, 1, b"long form");
        // This record would pass the end.
        put_record(&mut bytes, 284, 1, b"0123456789");
        let found = |end: u64, budget: u64, least: usize| {
            let (_, mut cursor) = cursor(&bytes, end);
            let (mut budget, mut all) = (budget, Vec::new());
            let is_plausible = |record: &RawRecord<'_>| record.body.len() >= least;
            while let Some((at, record)) = cursor.search_record(&is_plausible, &mut budget).unwrap() {
                all.push((at, record.len()));
            }
            assert_eq!(cursor.at, end);
            all
        };
        let (one, two, long, last) = ((7, 9), (120, 6), (150, 19), (284, 16));
        assert_eq!(found(300, 10_000, 0), [one, two, long, last]);
        assert_eq!(found(300, 10_000, 3), [one, long, last], "one is not plausible");
        assert_eq!(found(299, 10_000, 0), [one, two, long]);
        assert_eq!(found(126, 10_000, 0), [one, two]);
        assert_eq!(found(125, 10_000, 0), [one]);
        assert!(found(300, 8, 0).is_empty(), "the budget is spent");
        assert!(found(9, 10_000, 0).is_empty());
    }

    /// In the long form, a record has its checksum and its length where a batch has them. Random bytes of a salt once kept it from
    /// being taken for a batch. After a byte of a batch had changed, a record without a salt was taken for one, of
    /// which 2^36 records were missing.
    #[test]
    fn search_batch_takes_no_record_for_a_batch() {
        let mut bytes = vec![0; 300];
        // As a batch, it was written when nothing was synced, and its first record has number 7.
        let mut body = [0; 60];
        body[6] = 7;
        put_long_record(&mut bytes, 7, 3, &body);
        let (_, mut cursor) = cursor(&bytes, 300);
        let found = cursor.search_batch(&(1..=100), &mut 10_000).unwrap();
        assert!(matches!(found, BatchSearch::End), "{found:?}");
    }

    #[test]
    fn search_record_past_the_first_window_is_whole() {
        let mut bytes = vec![0; 2 << 20];
        let at = (1 << 20) + 100_000;
        put_record(&mut bytes, at, 1, b"far away");
        let (_, mut cursor) = cursor(&bytes, bytes.len() as u64);
        let (found, record) = cursor.search_record(&|_| true, &mut 1000).unwrap().unwrap();
        assert_eq!((found as usize, record), (at, &bytes[at..at + 14]));
        assert_eq!(cursor.at, at as u64 + 14);
    }
}
