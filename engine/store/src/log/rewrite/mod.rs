//! Rewrites several segments as one, without dead records.
//!
//! Batches are joined: they share headers. Live records keep kind, layout, salt, head, tail and seqno. Of erased records, the seqnos and the hashes
//! that the ledger needs remain: one record replaces those erased from a batch, and one batch replaces whole
//! erased batches. A group that is completely live is copied part by part. Of other groups, the live ranges
//! are decoded and encoded anew, in one record.
//!
//! Invariants: the sources are only read, and every batch of them is checked. The caller lists the new
//! segment; nothing else does. The output is read again before it is returned, and has the sources' leaves.
//! Each source is read twice: a survey of its groups, unchecked, then every batch, checked; both must agree.
//! Memory holds a window of the file that is read, one of the file that is written, a batch, and the moves of
//! live records.

use std::ops::Range;
use std::sync::Arc;

use crate::blob::GroupId;
use crate::codec::CodecError;
use crate::error::{Error, Result};
use crate::ids::{RecordPlace, SegmentId, Seqno, StoreId};
use crate::io::{Io, OpenMode};
use crate::log::cursor::for_each_checked_record;
use crate::log::erased::ErasedRecords;
use crate::log::erasure::{ErasedSetBuilder, ErasedSpan};
use crate::log::joined::LogBatch;
use crate::log::layout::{RawRecord, SegmentFooter, SegmentHeader};
use crate::log::leaf_hash::LeafHasher;
use crate::log::ledger::{LedgerNode, record_hash};
use crate::log::manifest::SegmentEntry;
use crate::log::paths::StorePaths;
use crate::log::record::{LAYOUT, LogicalBody, RecordKind, group_and_namespace};
use crate::log::salts::BatchSalts;
use crate::log::segments::Segment;
use crate::log::sums::SumsBuilder;
use crate::log::totals::LogTotals;
use crate::schema::RecordSchema;

use collapse::BatchCollapse;
use groups::{GroupPlan, GroupRewriter};
pub use output::JOINED_BYTES;
use output::SegmentOutput;
use source::SourceSegment;
use tally::SegmentTally;

mod collapse;
mod draft;
pub mod groups;
mod output;
pub mod source;
mod tally;

/// Decides which records and ranges are live.
pub trait LiveSet {
    /// Whether the logical record at `offset` of a source is live.
    fn keeps_record(&self, segment: SegmentId, offset: u32) -> bool;
    /// The live raw ranges of a group, ascending and disjoint; empty if there are none, `None` if all of it lives.
    fn live_ranges(&self, group: GroupId) -> Option<Vec<Range<u32>>>;
}

/// Which groups a rewrite compresses although all their bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recompress {
    Nothing,
    /// All, with this Zstandard level.
    All(i32),
    /// Those that were written raw, as recording compresses.
    Raw,
}

/// A segment that was written and synced, but is not listed yet.
#[derive(Debug)]
pub struct RewrittenSegment {
    /// Replaces the sources in the manifest.
    pub entry: SegmentEntry,
    /// Totals of what the sources held and the output does not.
    pub erased: LogTotals,
    /// All erased records among the segment's, also those of earlier rewrites; `None` if there are none.
    pub span: Option<ErasedSpan>,
    /// The same of each source that was itself rewritten. A statement names each of them, unless somebody erased more.
    pub source_spans: Vec<(SegmentId, ErasedSpan)>,
    /// Moves of live logical records and groups. A group is identified by its last record.
    pub moved: Vec<RecordMove>,
    /// Bytes of live records in the output.
    pub live_bytes: u64,
}

/// Old and new place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordMove {
    pub from: RecordPlace,
    pub to: RecordPlace,
}

/// Writes and syncs the segment `id` from sealed segments that are adjacent in the order of the log. Encodes
/// groups anew as `recompress` says. Calls `spend` with the number of bytes
/// before each write.
///
/// # Errors
/// `Damaged` if a source differs from what was written; `Invalid` if the live records exceed a segment;
/// `Unavailable`; the error of `spend`. The file is removed then, if possible.
#[expect(clippy::too_many_arguments, reason = "each says another thing; there is one caller")]
pub fn rewrite(
    io: &dyn Io,
    paths: &StorePaths,
    store: StoreId,
    schema: &dyn RecordSchema,
    sources: &[Arc<Segment>],
    id: SegmentId,
    keep: &dyn LiveSet,
    recompress: Recompress,
    spend: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<RewrittenSegment> {
    if !id.is_rewritten() {
        return Err(Error::bug("a rewritten segment has a number of the writer's"));
    }
    let path = paths.segment(id);
    // A file of the same name is left over from a crash: it was never listed.
    if io.stat(&path)?.is_some() {
        io.remove(&path)?;
    }
    let made = write_segment(io, paths, store, schema, sources, id, keep, recompress, spend);
    if made.is_err() {
        // A partial file takes space. If it cannot be removed now, the next opening for writing removes it.
        let _ = io.remove(&path);
    }
    made
}

#[expect(clippy::too_many_arguments, reason = "as `rewrite`")]
fn write_segment(
    io: &dyn Io,
    paths: &StorePaths,
    store: StoreId,
    schema: &dyn RecordSchema,
    sources: &[Arc<Segment>],
    id: SegmentId,
    keep: &dyn LiveSet,
    recompress: Recompress,
    spend: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<RewrittenSegment> {
    let sources = source::open_consecutive(sources)?;
    let (Some(first), Some(last)) = (sources.first(), sources.last()) else {
        return Err(Error::bug("a rewrite has no source segments"));
    };
    let header = SegmentHeader { segment: id, created_ns: io.now_ns(), ..first.header.clone() };
    let header = SegmentHeader { format: crate::log::layout::REWRITTEN_FORMAT, ..header };
    let begins = (header.first_seqno, header.chain);
    let output = SegmentOutput::create(io, paths.segment(id), &header, spend)?;
    let groups = GroupRewriter::new(keep, recompress);
    let mut work = SegmentRewrite {
        schema,
        keep,
        groups,
        output,
        collapse: BatchCollapse::default(),
        tally: None,
        source_erased: ErasedSetBuilder::default(),
        keeps_record: Vec::new(),
        leaves: LeafHasher::default(),
        moved: Vec::new(),
        live_bytes: 0,
    };
    let mut source_spans = Vec::new();
    for source in &sources {
        work.rewrite_source(source)?;
        let erased = std::mem::take(&mut work.source_erased);
        let span = erased.finish(source.header.first_seqno, source.footer.state.next_seqno);
        source_spans.extend(span.map(|span| (source.segment.id, span)));
    }
    for stretch in work.collapse.take_all() {
        work.output.erased_batches(&stretch)?;
    }
    let before = work.tally.take().unwrap_or_default();
    let (moved, live_bytes) = (std::mem::take(&mut work.moved), work.live_bytes);
    let state = last.footer.state.clone();
    let chain = work.output.end_batches()?;
    let footer = SegmentFooter { tail: 0, root: state.ledger.root(), state, rewritten_chain: Some(chain) };
    let sealed_bytes = work.output.seal(footer)?;
    io.sync_dir(&paths.segments())?;
    let made = Segment::open(io, paths, store, id, OpenMode::Read)?;
    let mut after =
        SegmentTally::of_segment(schema, &SourceSegment::open(Arc::new(made))?, before.first_leaf())?;
    if after.leaves() != before.leaves() {
        return Err(Error::bug("a rewritten segment has other leaves than its sources"));
    }
    let entry = SegmentEntry { id, first_seqno: begins.0, sealed_bytes: Some(sealed_bytes) };
    let span = after.take_erased(begins.0, last.footer.state.next_seqno);
    Ok(RewrittenSegment { entry, erased: before.minus(&after), span, source_spans, moved, live_bytes })
}

/// The progress of a rewrite.
struct SegmentRewrite<'a> {
    schema: &'a dyn RecordSchema,
    keep: &'a dyn LiveSet,
    groups: GroupRewriter<'a>,
    output: SegmentOutput<'a>,
    collapse: BatchCollapse,
    /// Totals and leaves of the sources.
    tally: Option<SegmentTally>,
    /// What the current source says that it has erased.
    source_erased: ErasedSetBuilder,
    /// For each record of the current batch, whether it stays.
    keeps_record: Vec<bool>,
    /// Memory for reuse.
    leaves: LeafHasher,
    moved: Vec<RecordMove>,
    live_bytes: u64,
}

impl SegmentRewrite<'_> {
    fn rewrite_source(&mut self, source: &SourceSegment) -> Result<()> {
        let first_leaf = self.groups.survey(source)?;
        self.collapse.start_at_leaf(first_leaf);
        self.tally.get_or_insert_with(|| SegmentTally::new(first_leaf));
        source.each_batch(&mut |batch| self.rewrite_batch(&source.segment, batch))?;
        self.groups.confirm_survey(source)
    }

    fn rewrite_batch(&mut self, segment: &Segment, batch: &LogBatch<'_>) -> Result<()> {
        let damaged = |e: CodecError| Error::damaged(&segment.path, batch.offset, e);
        let (mut sums, keep) = (SumsBuilder::new(self.schema, &mut self.leaves), self.keep);
        self.keeps_record.clear();
        let (lives, groups, erased) = (&mut self.keeps_record, &mut self.groups, &mut self.source_erased);
        for_each_checked_record(batch, segment.salt, |at, seqno, record| {
            sums.add_record(seqno, &record)?;
            erased.add_record(seqno, &record)?;
            groups.note_checked(at, &record)?;
            lives.push(match RecordKind::parse(record.kind, record.layout)? {
                // Records of unknown kind are not kept: their liveness cannot be decided.
                None | Some(RecordKind::Erased | RecordKind::ErasedBatches) => false,
                Some(RecordKind::GroupPart | RecordKind::GroupRest) => {
                    let id = GroupId(group_and_namespace(record.body)?.0);
                    groups.pack(id, at, &record)?;
                    groups.keeps_record_at(id, at)?
                }
                Some(_) => keep.keeps_record(segment.id, at),
            });
            Ok(())
        })
        .map_err(damaged)?;
        let sums = sums.finish();
        self.groups.end_batch();
        let node = sums.node().map_err(damaged)?;
        self.source_erased.end_batch(node).map_err(damaged)?;
        self.tally.as_mut().map_or(Ok(()), |tally| tally.add(&batch.header, &sums)).map_err(damaged)?;
        if self.keeps_record.contains(&true) {
            for stretch in self.collapse.take_all() {
                self.output.erased_batches(&stretch)?;
            }
            self.collapse.skip_batch(node).map_err(damaged)?;
            return self.write_live_records(segment, batch);
        }
        self.collapse.push(&batch.header, &sums, node).map_err(damaged)?;
        for stretch in self.collapse.take_ready() {
            self.output.erased_batches(&stretch)?;
        }
        Ok(())
    }

    /// Writes a batch without its erased records.
    fn write_live_records(&mut self, segment: &Segment, batch: &LogBatch<'_>) -> Result<()> {
        let damaged = |e: CodecError| Error::damaged(&segment.path, batch.offset, e);
        let mut records: Vec<(RecordPlace, Seqno, RawRecord<'_>)> =
            Vec::with_capacity(self.keeps_record.len());
        for_each_checked_record(batch, segment.salt, |at, seqno, record| {
            let place = RecordPlace { segment: segment.id, offset: at, len: record.bytes };
            records.push((place, seqno, record));
            Ok(())
        })
        .map_err(damaged)?;
        let mut draft = self.output.draft(batch.records().len())?;
        // Once a record is erased, the key that its salt follows from goes, too.
        let writes_salts = records.iter().zip(&self.keeps_record).any(|((_, _, record), lives)| {
            let kind = RecordKind::parse(record.kind, record.layout);
            !lives && matches!(kind, Ok(Some(kind)) if kind.is_logical())
        });
        let mut salts = BatchSalts::default();
        for ((from, seqno, record), lives) in records.into_iter().zip(&self.keeps_record) {
            if !lives {
                let erased = erased_record(seqno, &record, &mut salts).map_err(damaged)?;
                draft.erase(&erased).map_err(damaged)?;
                continue;
            }
            let to = match record.kind {
                kind if kind == RecordKind::GroupPart.code() || kind == RecordKind::GroupRest.code() => {
                    let id = GroupId(group_and_namespace(record.body).map_err(damaged)?.0);
                    let plan = self.groups.plan(id).map_err(damaged)?.clone();
                    let to = match plan {
                        GroupPlan::Encode(ranges) => {
                            self.groups.encode(segment, from, &record, &ranges, &mut draft)?
                        }
                        GroupPlan::Pack => {
                            self.groups.write_packed(id, from.offset, &record, &mut draft).map_err(damaged)?
                        }
                        _ => self.groups.copy(id, &record, &mut draft).map_err(damaged)?,
                    };
                    if !self.groups.is_last(id, from.offset) {
                        self.live_bytes += u64::from(to.len);
                        continue;
                    }
                    to
                }
                _ => {
                    let logical = LogicalBody::of(&record).map_err(damaged)?;
                    let salt = salts.resolve(seqno, logical.salt).map_err(damaged)?;
                    draft.logical(&record, writes_salts.then_some(salt))
                }
            };
            self.live_bytes += u64::from(to.len);
            self.moved.push(RecordMove { from, to: RecordPlace { segment: self.output.segment(), ..to } });
        }
        self.output.batch(draft, batch.header.first_seqno, batch.header.time_ns)
    }
}

/// The summary of an erased record. `salts` are those of its batch, up to the record before.
fn erased_record(
    seqno: Seqno,
    record: &RawRecord<'_>,
    salts: &mut BatchSalts,
) -> std::result::Result<ErasedRecords, CodecError> {
    match RecordKind::parse(record.kind, record.layout)? {
        Some(RecordKind::Erased) => ErasedRecords::parse(record.body),
        Some(kind) if kind.is_logical() => {
            let logical = LogicalBody::of(record)?;
            let salt = salts.resolve(seqno, logical.salt)?;
            let hash = record_hash(&salt, record.kind, LAYOUT, seqno.0, logical.head);
            Ok(ErasedRecords { count: 1, nodes: vec![LedgerNode::leaf(hash)] })
        }
        _ => Ok(ErasedRecords { count: 1, nodes: Vec::new() }),
    }
}
