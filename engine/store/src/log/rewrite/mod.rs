//! Rewrites several segments as one, without dead records.
//!
//! Live records keep kind, layout, salt, head, tail and seqno. Of erased records, the seqnos and the hashes
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
use crate::ids::{Place, SegmentId, Seqno, StoreId};
use crate::io::{Io, Open};
use crate::log::cursor::{Batch, for_each_record};
use crate::log::erased::Erased;
use crate::log::layout::{BatchHeader, Footer, RawRecord, SegmentHeader};
use crate::log::ledger::{Node, record_hash};
use crate::log::manifest::SegmentEntry;
use crate::log::paths::Paths;
use crate::log::record::{Kind, Logical, group_of};
use crate::log::segments::Segment;
use crate::log::sums::Sums;
use crate::log::totals::Totals;
use crate::schema::RecordSchema;

use collapse::Collapse;
use draft::Draft;
use groups::{Groups, Plan};
use output::Output;
use source::Source;
use tally::Tally;

mod collapse;
mod draft;
pub mod groups;
mod output;
pub mod source;
mod tally;

/// Decides which records and ranges are live.
pub trait Keep {
    /// Whether the logical record at `offset` of a source is live.
    fn record(&self, segment: SegmentId, offset: u32) -> bool;
    /// The live raw ranges of a group, ascending and disjoint; empty if there are none.
    fn group(&self, group: GroupId) -> Vec<Range<u32>>;
}

/// A segment that was written and synced, but is not listed yet.
#[derive(Debug)]
pub struct Made {
    /// Replaces the sources in the manifest.
    pub entry: SegmentEntry,
    /// Totals of what the sources held and the output does not.
    pub erased: Totals,
    /// Moves of live logical records and groups. A group is identified by its last record.
    pub moved: Vec<Moved>,
    /// Bytes of live records in the output.
    pub live_bytes: u64,
}

/// Old and new place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub from: Place,
    pub to: Place,
}

/// Writes and syncs the segment `id` from sealed segments that are adjacent in the order of the log. With
/// `recompress`, encodes every group anew with that Zstandard level. Calls `spend` with the number of bytes
/// before each write.
///
/// # Errors
/// `Damaged` if a source differs from what was written; `Invalid` if the live records exceed a segment;
/// `Unavailable`; the error of `spend`. The file is removed then, if possible.
#[expect(clippy::too_many_arguments, reason = "each says another thing; there is one caller")]
pub fn rewrite(
    io: &dyn Io,
    paths: &Paths,
    store: StoreId,
    schema: &dyn RecordSchema,
    sources: &[Arc<Segment>],
    id: SegmentId,
    keep: &dyn Keep,
    recompress: Option<i32>,
    spend: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Made> {
    if !id.is_rewritten() {
        return Err(Error::bug("a rewritten segment has a number of the writer's"));
    }
    let path = paths.segment(id);
    // A file of the same name is left over from a crash: it was never listed.
    if io.stat(&path)?.is_some() {
        io.remove(&path)?;
    }
    let made = write(io, paths, store, schema, sources, id, keep, recompress, spend);
    if made.is_err() {
        // A partial file takes space. If it cannot be removed now, the next opening for writing removes it.
        let _ = io.remove(&path);
    }
    made
}

#[expect(clippy::too_many_arguments, reason = "as `rewrite`")]
fn write(
    io: &dyn Io,
    paths: &Paths,
    store: StoreId,
    schema: &dyn RecordSchema,
    sources: &[Arc<Segment>],
    id: SegmentId,
    keep: &dyn Keep,
    recompress: Option<i32>,
    spend: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Made> {
    let sources = source::in_a_row(sources)?;
    let (Some(first), Some(last)) = (sources.first(), sources.last()) else {
        return Err(Error::bug("a rewrite has no source segments"));
    };
    let header = SegmentHeader { segment: id, created_ns: io.now_ns(), ..first.header.clone() };
    let header = SegmentHeader { format: crate::log::layout::REWRITTEN_FORMAT, ..header };
    let begins = (header.first_seqno, header.chain);
    let output = Output::create(io, paths.segment(id), &header, spend)?;
    let groups = Groups::new(keep, recompress);
    let mut work = Work {
        schema,
        keep,
        groups,
        output,
        collapse: Collapse::default(),
        tally: None,
        lives: Vec::new(),
        moved: Vec::new(),
        live_bytes: 0,
    };
    for source in &sources {
        work.source(source)?;
    }
    for stretch in work.collapse.take_all() {
        work.output.erased_batches(&stretch)?;
    }
    let before = work.tally.take().unwrap_or_default();
    let (moved, live_bytes) = (std::mem::take(&mut work.moved), work.live_bytes);
    let state = last.footer.state.clone();
    let chain = work.output.chain();
    let footer = Footer { tail: 0, root: state.ledger.root(), state, rewritten_chain: Some(chain) };
    let sealed_bytes = work.output.seal(footer)?;
    io.sync_dir(&paths.segments())?;
    let made = Segment::open(io, paths, store, id, Open::Read)?;
    let after = Tally::of(schema, &Source::open(Arc::new(made))?, before.begins())?;
    if after.leaves() != before.leaves() {
        return Err(Error::bug("a rewritten segment has other leaves than its sources"));
    }
    let entry = SegmentEntry { id, first_seqno: begins.0, sealed_bytes: Some(sealed_bytes) };
    Ok(Made { entry, erased: before.without(&after), moved, live_bytes })
}

/// The progress of a rewrite.
struct Work<'a> {
    schema: &'a dyn RecordSchema,
    keep: &'a dyn Keep,
    groups: Groups<'a>,
    output: Output<'a>,
    collapse: Collapse,
    /// Totals and leaves of the sources.
    tally: Option<Tally>,
    /// For each record of the current batch, whether it stays.
    lives: Vec<bool>,
    moved: Vec<Moved>,
    live_bytes: u64,
}

impl Work<'_> {
    fn source(&mut self, source: &Source) -> Result<()> {
        let first_leaf = self.groups.survey(source)?;
        self.collapse.begins(first_leaf);
        self.tally.get_or_insert_with(|| Tally::new(first_leaf));
        source.each_batch(&mut |batch, header| self.batch(&source.segment, batch, header))?;
        self.groups.settle(source)
    }

    fn batch(&mut self, segment: &Segment, batch: &Batch<'_>, header: &BatchHeader) -> Result<()> {
        let damaged = |e: CodecError| Error::damaged(&segment.path, batch.offset, e);
        let (mut sums, keep, schema) = (Sums::default(), self.keep, self.schema);
        self.lives.clear();
        let (lives, groups) = (&mut self.lives, &mut self.groups);
        for_each_record(batch.whole, batch.offset, segment.salt, |at, seqno, record| {
            sums.record(schema, seqno, &record)?;
            groups.checked(at, &record)?;
            lives.push(match Kind::parse(record.kind, record.layout)? {
                // Records of unknown kind are not kept: their liveness cannot be decided.
                None | Some(Kind::Erased | Kind::ErasedBatches) => false,
                Some(Kind::GroupPart | Kind::GroupRest) => {
                    groups.stands(GroupId(group_of(record.body)?.0), at as u32)?
                }
                Some(_) => keep.record(segment.id, at as u32),
            });
            Ok(())
        })
        .map_err(damaged)?;
        self.groups.batch_ends();
        let node = sums.node().map_err(damaged)?;
        self.tally.as_mut().map_or(Ok(()), |tally| tally.add(&sums)).map_err(damaged)?;
        if self.lives.contains(&true) {
            for stretch in self.collapse.take_all() {
                self.output.erased_batches(&stretch)?;
            }
            self.collapse.skip(node).map_err(damaged)?;
            return self.thinned(segment, batch, header);
        }
        self.collapse.push(header, &sums, node).map_err(damaged)?;
        for stretch in self.collapse.take_ready() {
            self.output.erased_batches(&stretch)?;
        }
        Ok(())
    }

    /// Writes a batch without its erased records.
    fn thinned(&mut self, segment: &Segment, batch: &Batch<'_>, header: &BatchHeader) -> Result<()> {
        let damaged = |e: CodecError| Error::damaged(&segment.path, batch.offset, e);
        let mut records: Vec<(Place, Seqno, RawRecord<'_>)> = Vec::with_capacity(self.lives.len());
        for_each_record(batch.whole, batch.offset, segment.salt, |at, seqno, record| {
            let place = Place { segment: segment.id, offset: at as u32, len: record.bytes };
            records.push((place, seqno, record));
            Ok(())
        })
        .map_err(damaged)?;
        let mut draft = Draft::new(self.output.next()?);
        for ((from, seqno, record), lives) in records.into_iter().zip(&self.lives) {
            if !lives {
                draft.erase(&erased(seqno, &record).map_err(damaged)?).map_err(damaged)?;
                continue;
            }
            let to = match record.kind {
                kind if kind == Kind::GroupPart.code() || kind == Kind::GroupRest.code() => {
                    let id = GroupId(group_of(record.body).map_err(damaged)?.0);
                    let plan = self.groups.plan(id).map_err(damaged)?.clone();
                    let to = match plan {
                        Plan::Encode(ranges) => {
                            self.groups.encode(segment, from, &record, &ranges, &mut draft)?
                        }
                        _ => self.groups.copy(id, &record, &mut draft).map_err(damaged)?,
                    };
                    if !self.groups.is_last(id, from.offset) {
                        self.live_bytes += u64::from(to.len);
                        continue;
                    }
                    to
                }
                kind => draft.logical(kind, record.layout, record.body),
            };
            self.live_bytes += u64::from(to.len);
            self.moved.push(Moved { from, to: Place { segment: self.output.segment(), ..to } });
        }
        self.output.batch(draft, header)
    }
}

/// The summary of an erased record.
fn erased(seqno: Seqno, record: &RawRecord<'_>) -> std::result::Result<Erased, CodecError> {
    match Kind::parse(record.kind, record.layout)? {
        Some(Kind::Erased) => Erased::parse(record.body),
        Some(kind) if kind.is_logical() => {
            let logical = Logical::parse(record.body)?;
            let hash = record_hash(&logical.salt, record.kind, record.layout, seqno.0, logical.head);
            Ok(Erased { count: 1, nodes: vec![Node::leaf(hash)] })
        }
        _ => Ok(Erased { count: 1, nodes: Vec::new() }),
    }
}
