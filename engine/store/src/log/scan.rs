//! Reads the log of a store in order, from a known state to its end.
//!
//! It also judges the end: bytes after the last whole batch are torn or damaged (see [`crate::log::open`]). A process
//! may write to the log meanwhile.
//!
//! Checked beside the batches' own checksums and chain: footers, and what `SYNCED` and the manifest say of the batch
//! that ends at a position. A batch of a copy of the store that went its own way has all the former.

use crate::codec::CodecError;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno};
use crate::io::File;
use crate::log::cursor::{LogCursor, advance_state, next_seqno};
use crate::log::joined::LogBatch;
use crate::log::layout::{ChainDigest, LogState, SEGMENT_HEADER_BYTES, Salt, SegmentFooter};
use crate::log::manifest::LogCut;
use crate::log::open::{Damage, FoundLog};
use crate::log::segments::Segment;
use crate::schema::RecordSchema;

/// A footer stands in this many bytes at a segment's end.
const FOOTER_BYTES_MAX: u64 = 64 << 10;

/// The end of the log that a scan found.
#[derive(Debug, Clone)]
pub struct ScanEnd {
    pub segment: SegmentId,
    pub tail: u64,
    pub state: LogState,
    /// Whether bytes after the tail of the active segment are not zeros, or its length differs from the clean
    /// close.
    pub is_torn: bool,
    /// Bytes after the tail, up to the last that is not zero. 0 if they are the footer of a segment that was
    /// being sealed.
    pub torn_bytes: u64,
    /// Everything that was acknowledged before this time stands before the tail.
    pub certain_until_ns: u64,
    pub damage: Option<Damage>,
}

impl ScanEnd {
    /// The bytes that the next opening for writing cuts, if there are any.
    pub fn torn(&self) -> Option<LogCut> {
        (self.torn_bytes > 0 && self.damage.is_none()).then_some(LogCut {
            segment: self.segment,
            offset: self.tail,
            bytes: self.torn_bytes,
            from_ns: self.certain_until_ns,
            until_ns: 0,
        })
    }
}

/// Reads the log from `from`, where its state is `state`, to its end. Calls `visit` for each batch.
pub fn scan(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    from: (SegmentId, u64),
    state: LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment) -> Result<()>,
) -> Result<ScanEnd> {
    scan_states(schema, found, from, state, &mut |batch, segment, _| visit(batch, segment))
}

/// As [`scan`]; `visit` also gets the log's state at the batch's end. `from` may be the end of a sealed
/// segment.
pub fn scan_states(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    from: (SegmentId, u64),
    mut state: LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<ScanEnd> {
    let active = found.state.active()?.id;
    let mut at = from.1;
    for segment in found.segments.from_segment(from.0)? {
        let segment = &*segment;
        // Where the scan begins at this place, its state is the manifest's own.
        refuse_other_state(found, segment, at, &state)?;
        if segment.id == active {
            return scan_active(schema, found, segment, at, state, visit);
        }
        let footer = sealed_footer(segment, segment.file.len()?)?;
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, at, footer.tail);
        let rewritten = Some(&footer).filter(|footer| footer.rewritten_chain.is_some());
        let known = KnownEnds { rewritten, digests: &known_digests(found, segment.id) };
        let stopped = scan_segment((schema, found), &mut cursor, segment, known, &mut state, visit)?;
        if cursor.at != footer.tail {
            return Err(Error::damaged(&segment.path, cursor.at, stopped));
        }
        if let Some(footer) = rewritten.filter(|footer| footer.state != state) {
            // The scan began at the segment's end, or the segment has no batch.
            adopt_footer(&mut state, footer, segment)?;
        }
        at = SEGMENT_HEADER_BYTES;
    }
    Err(Error::bug("the log has no active segment"))
}

/// Reads the active segment from `at`, where its state is `state`, to its end.
///
/// A process may write to it meanwhile. A batch that was on its way when the scan met it is read again before anything
/// after it is judged: by then later batches may stand there, and they name it as synced.
fn scan_active(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    segment: &Segment,
    mut at: u64,
    mut state: LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<ScanEnd> {
    let note = found.note.note.as_ref().filter(|note| note.segment == segment.id);
    let known = KnownEnds { rewritten: None, digests: &known_digests(found, segment.id) };
    // Tables lead to records up to there: the log was synced before they were listed.
    let covered = if found.state.covers.0 == segment.id { found.state.covers.1 } else { 0 };
    let noted = found.state.synced.max(covered).max(note.map_or(0, |note| note.synced));
    loop {
        let len = segment.file.len()?;
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, at, len);
        let stopped = scan_segment((schema, found), &mut cursor, segment, known, &mut state, visit)?;
        let tail = cursor.at;
        let mut torn_bytes = cursor.end_of_data_after(tail)? - tail;
        let torn = torn_bytes > 0 || found.state.clean.as_ref().is_some_and(|clean| len != clean.tail);
        let synced = match torn {
            true => noted.max(cursor.greatest_synced_after(tail, &state)?),
            false => noted,
        };
        if torn && is_batch_at(segment, tail, &state)? {
            at = tail;
            continue;
        }
        let mut damage = None;
        if len < tail.max(noted) {
            let what = format!("the file ends here; {} bytes of it had been synced", tail.max(noted));
            damage = Some(Damage { file: segment.path.clone(), offset: len, what });
        } else if tail < synced {
            damage = Some(Damage { file: segment.path.clone(), offset: tail, what: stopped });
        }
        if torn && sealed_footer(segment, segment.file.len()?).is_ok_and(|footer| footer.tail == tail) {
            torn_bytes = 0;
        }
        let certain_until_ns = state.newest_ns.max(note.map_or(0, |note| note.time_ns));
        let segment = segment.id;
        return Ok(ScanEnd { segment, tail, state, is_torn: torn, torn_bytes, certain_until_ns, damage });
    }
}

/// Whether a whole batch that follows `state` stands at `at` by now.
fn is_batch_at(segment: &Segment, at: u64, state: &LogState) -> Result<bool> {
    let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, at, segment.file.len()?);
    Ok(cursor.next(state)?.is_ok())
}

/// What is known of a segment's batches beside their own bytes.
#[derive(Clone, Copy)]
struct KnownEnds<'a> {
    /// The footer, in a rewritten segment.
    rewritten: Option<&'a SegmentFooter>,
    digests: &'a [KnownDigest],
}

/// The digest of the batch that ends at a position.
#[derive(Debug, Clone, Copy)]
struct KnownDigest {
    at: u64,
    chain: ChainDigest,
    /// The file that names it.
    source: &'static str,
}

/// What other files than the log say of a segment's batches.
fn known_digests(found: &FoundLog, segment: SegmentId) -> Vec<KnownDigest> {
    let covers = (found.state.covers.0 == segment).then_some(KnownDigest {
        at: found.state.covers.1,
        chain: found.state.covers_state.chain,
        source: "the manifest",
    });
    let note = found.note.note.as_ref().filter(|note| note.segment == segment);
    let note = note.map(|note| KnownDigest { at: note.synced, chain: note.chain, source: "SYNCED" });
    covers.into_iter().chain(note).collect()
}

fn scan_segment(
    (schema, found): (&dyn RecordSchema, &FoundLog),
    cursor: &mut LogCursor,
    segment: &Segment,
    known: KnownEnds<'_>,
    state: &mut LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<String> {
    loop {
        match cursor.next(state)? {
            Ok(mut batch) => {
                batch.node = advance_state(schema, state, &batch, segment.salt)
                    .map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
                let end = batch.end();
                if let Some(footer) = known.rewritten.filter(|footer| end == Some(footer.tail)) {
                    adopt_footer(state, footer, segment)?;
                }
                if let Some(end) = end {
                    refuse_other_batch(segment, (batch.offset, end), &state.chain, known.digests)?;
                    refuse_other_state(found, segment, end, state)?;
                }
                visit(&batch, segment, state)?;
            }
            Err(stopped) => return Ok(stopped.to_string()),
        }
    }
}

/// Refuses a manifest whose state of the log up to its index tables is not that of the log there. With a smaller one,
/// readers would miss the newest records, and checkpoints would not cover them.
fn refuse_other_state(found: &FoundLog, segment: &Segment, at: u64, state: &LogState) -> Result<()> {
    let said = &found.state.covers_state;
    let is_same = state.next_seqno == said.next_seqno && state.ledger == said.ledger;
    // With a smaller one, the next writer would take numbers that are taken.
    let has_numbers = state.next_run <= said.next_run
        && state.next_group <= said.next_group
        && state.next_space <= said.next_space;
    match found.state.covers == (segment.id, at) && !(is_same && has_numbers) {
        true => {
            let numbers = |of: &LogState| {
                format!(
                    "{} records, {} leaves, and {}, {} and {} as the next numbers of runs, groups and spaces",
                    of.last_seqno(),
                    of.ledger.leaves,
                    of.next_run,
                    of.next_group,
                    of.next_space
                )
            };
            let what =
                format!("the log has {} here, and the manifest says {}", numbers(state), numbers(said));
            Err(Error::damaged(&segment.path, at, what))
        }
        false => Ok(()),
    }
}

/// Refuses a batch at a place where another file knows of another one. It may follow the batch before it and
/// have correct checksums: one of a copy of the store that went its own way.
fn refuse_other_batch(
    segment: &Segment,
    (offset, end): (u64, u64),
    chain: &ChainDigest,
    known: &[KnownDigest],
) -> Result<()> {
    let here = |known: &&KnownDigest| offset < known.at && known.at <= end;
    match known.iter().find(|known| here(known) && (known.at != end || known.chain != *chain)) {
        Some(KnownDigest { source, .. }) => {
            let what = format!("another batch stood here: {source} names the digest of that one");
            Err(Error::damaged(&segment.path, offset, what))
        }
        None => Ok(()),
    }
}

/// Takes over the state of a rewritten segment's footer at the segment's end. The footer has the counts of
/// erased records, and the digest that the next segment continues from. Its other fields must match the
/// batches.
fn adopt_footer(state: &mut LogState, footer: &SegmentFooter, segment: &Segment) -> Result<()> {
    let said = &footer.state;
    let same = state.ledger == said.ledger
        && state.next_seqno == said.next_seqno
        && [footer.own_chain(), said.chain].contains(&state.chain)
        && state.next_group <= said.next_group
        && state.next_run <= said.next_run
        && state.next_space <= said.next_space;
    if !same {
        let what = "its footer does not say what its batches add up to";
        return Err(Error::damaged(&segment.path, footer.tail, what));
    }
    state.clone_from(said);
    Ok(())
}

/// Calls `visit` with each batch, its segment, and the next seqno after it. Reads from `from` (`None`: the
/// start of the first segment) up to `to`. Both must be ends of batches; all batches between must be whole.
///
/// # Errors
/// `Damaged` if a batch is not whole.
pub fn scan_between(
    found: &FoundLog,
    from: Option<(SegmentId, u64)>,
    to: (SegmentId, u64),
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, Seqno) -> Result<()>,
) -> Result<()> {
    let segments = match from {
        Some(from) => found.segments.from_segment(from.0)?,
        None => found.segments.all(),
    };
    let last = segments.iter().position(|segment| segment.id == to.0);
    let last = last.ok_or_else(|| Error::new(ErrorKind::Damaged, "the range ends in an unlisted segment"))?;
    for segment in segments.iter().take(last + 1) {
        let header = segment.header()?;
        let mut state =
            LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
        let end = if segment.id == to.0 { to.1 } else { sealed_tail(segment, segment.file.len()?)? };
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, SEGMENT_HEADER_BYTES, end);
        while cursor.at < end {
            let at = cursor.at;
            let batch = cursor.next(&state)?.map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.next_seqno =
                next_seqno(&batch, segment.salt).map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.chain = batch.digest_after(state.chain);
            if from.is_none_or(|from| segment.id != from.0 || batch.offset >= from.1) {
                visit(&batch, segment, state.next_seqno)?;
            }
        }
    }
    Ok(())
}

/// The end of the batches of a sealed segment, from its footer.
pub fn sealed_tail(segment: &Segment, len: u64) -> Result<u64> {
    Ok(sealed_footer(segment, len)?.tail)
}

/// A sealed segment's footer.
pub fn sealed_footer(segment: &Segment, len: u64) -> Result<SegmentFooter> {
    let start = len.saturating_sub(FOOTER_BYTES_MAX);
    footer_at_end(&*segment.file, segment.salt, len)?.map_err(|e| Error::damaged(&segment.path, start, e))
}

/// The footer at the end of a file of this length, or why there is none.
pub(super) fn footer_at_end(
    file: &dyn File,
    salt: Salt,
    len: u64,
) -> Result<std::result::Result<SegmentFooter, CodecError>> {
    let start = len.saturating_sub(FOOTER_BYTES_MAX);
    #[expect(clippy::cast_possible_truncation, reason = "at most `FOOTER_BYTES_MAX`")]
    let mut bytes = vec![0; (len - start) as usize];
    let got = file.read_at(&mut bytes, start)?;
    bytes.truncate(got);
    Ok(SegmentFooter::decode_end(&bytes, start, salt))
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::io::sim::{Crash, SimIo};
    use crate::io::{FileBytes, FileId, IoResult, LockKind, ReadMode};
    use crate::log::open::find;
    use crate::log::paths::StorePaths;
    use crate::log::queue::Durability;
    use crate::testing::{KvStore, no_schema};
    use crate::{History, Options};

    /// A file to which a process writes: some bytes are zeros until a read has gone past them.
    #[derive(Debug)]
    struct GrowingFile {
        file: Arc<dyn File>,
        late: std::ops::Range<u64>,
        is_written: AtomicBool,
    }

    impl File for GrowingFile {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
            let got = self.file.read_at(buf, offset)?;
            if !self.is_written.load(Ordering::Relaxed) {
                let late = (offset..).zip(&mut *buf).filter(|(at, _)| self.late.contains(at));
                late.for_each(|(_, byte)| *byte = 0);
            }
            if offset + got as u64 > self.late.end {
                self.is_written.store(true, Ordering::Relaxed);
            }
            Ok(got)
        }

        fn len(&self) -> IoResult<u64> {
            self.file.len()
        }

        fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> IoResult<()> {
            unimplemented!("only readers use it")
        }

        fn set_len(&self, _: u64) -> IoResult<()> {
            unimplemented!("only readers use it")
        }

        fn sync(&self) -> IoResult<()> {
            unimplemented!("only readers use it")
        }

        fn map(&self) -> IoResult<FileBytes> {
            self.file.map()
        }

        fn id(&self) -> IoResult<FileId> {
            self.file.id()
        }

        fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
            self.file.try_lock(lock)
        }
    }

    /// A store that was left open after commits of these lengths, each synced.
    fn left_open(lengths: &[usize]) -> (SimIo, StorePaths) {
        let sim = SimIo::new(1);
        let options = Options { io: Arc::new(sim.clone()), ..Options::default() };
        let store = KvStore::open_with("s", options).unwrap();
        let space = store.namespace("n").unwrap();
        let keys = space.keyspace("k", History::All).unwrap();
        for (number, len) in (0u64..).zip(lengths) {
            let mut value = vec![0; *len];
            blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut value);
            let mut batch = space.batch();
            batch.put(&keys, &number.to_le_bytes(), value);
            batch.submit_with(Durability::Disk).unwrap().wait().unwrap();
        }
        (sim.crash(Crash::Everything), StorePaths::new(Path::new("s")))
    }

    /// Offset and end of each batch.
    fn batches(found: &FoundLog) -> (Vec<(u64, u64)>, ScanEnd) {
        let (mut all, from) = (Vec::new(), (SegmentId(1), SEGMENT_HEADER_BYTES));
        let end = scan(&*no_schema(), found, from, LogState::empty(), &mut |batch, _| {
            all.push((batch.offset, batch.end().unwrap()));
            Ok(())
        });
        (all, end.unwrap())
    }

    /// Regression: a reader met a batch of more than its window while the writer was writing it. When it read on, the
    /// next batch stood there and said that the first was synced: `verify`, `doctor` and `ledger gaps` reported damage
    /// in 1 of 250 runs beside a writer.
    #[test]
    fn batch_completed_during_a_scan_is_no_damage() {
        let (sim, paths) = left_open(&[100, 1 << 21, 100]);
        let mut found = find(&sim, &paths, false, false, ReadMode::Mapped).unwrap();
        let (wanted, _) = batches(&found);
        let (from, end) = wanted[wanted.len() - 2];
        assert!(end - from > 2 << 20);
        let segment = found.segments.get(SegmentId(1)).unwrap();
        for late in [from..end, from + 1000..end, end - 1..end] {
            let file = GrowingFile { file: segment.file.clone(), late, is_written: AtomicBool::new(false) };
            let segments = crate::log::segments::Segments::default();
            let growing = Segment::new(found.state.store, segment.id, segment.path.clone(), Arc::new(file));
            segments.insert(Arc::new(growing));
            found.segments = Arc::new(segments);
            let (all, end) = batches(&found);
            assert_eq!(all, wanted);
            assert_eq!((end.damage.clone(), end.torn()), (None, None), "{end:?}");
        }
    }
}
