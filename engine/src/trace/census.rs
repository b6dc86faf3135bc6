//! The census: what a pass over the log counts. It finds the records that exist, the erased ones, the statements
//! that explain them, and the numbers of all runs.
//!
//! Rules: a rewritten segment erased exactly what one statement of the ledger names. Each run number has a record,
//! a tombstone, or a place in a statement. A closing states the numbers that were taken and never used, and so does
//! the opening after a crash. So a number without any of these was removed, if the store was closed cleanly.
//!
//! Memory holds a few words for each rewritten segment, each statement and each run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::codec::CodecError;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, Seqno};
use crate::log::cursor::for_each_unchecked_record;
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::erasure::{
    ErasedSetBuilder, ErasedSpan, ErasureHead, ErasureRule, RUNS_MAX, SPANS_MAX, ranges_of, split_ranges,
};
use crate::log::joined::LogBatch;
use crate::log::layout::{COUNT_MAX, LogState, REWRITTEN_FORMAT, RawRecord, SEGMENT_HEADER_BYTES};
use crate::log::ledger::LedgerNode;
use crate::log::manifest::{FORMAT, FORMAT_UNSTATED};
use crate::log::open::{FoundLog, find};
use crate::log::queue::Durability;
use crate::log::record::{EmbeddingHead, FIRST_FREE_SPACE, KvHead, LogicalBody, RecordKind, SpaceHead};
use crate::log::scan::scan_states;
use crate::log::segments::{Segment, read_lock};
use crate::trace::erasure_report::{ErasureReport, UnexplainedErasure, count_of};
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::run_records::RunRecordCensus;
use crate::trace::{kinds, run_keys};
use annals_store::kv::core::Core;
use annals_store::kv::index::prefix_end;
use annals_store::kv::keys;
use annals_store::kv::write::BatchWriter;
use annals_store::schema::RecordSchema;

/// Runs that one look at the index finds.
const PAGE_RUNS: usize = 1 << 16;

/// A rewritten segment with erased records.
#[derive(Debug)]
struct RewrittenSpan {
    erased: ErasedSpan,
    /// Written since format 4, so that a statement must name it.
    is_stated: bool,
}

/// What the ledger states of a span. A compaction that was cut off leaves its statement, and the next one makes the same
/// again.
#[derive(Debug, Clone, Copy, Default)]
struct StatedSpan {
    /// A statement from before format 4 names it.
    is_earlier: bool,
    /// The newest statement of a compaction: its seqno, and the time that all statements of this compaction have.
    compacted: Option<(Seqno, u64)>,
}

/// The rewritten segment that is being read.
#[derive(Debug)]
struct OpenSpan {
    segment: SegmentId,
    first: Seqno,
    end: Seqno,
    is_stated: bool,
    set: ErasedSetBuilder,
}

/// See the module. Feed it every batch of the log, in order.
#[derive(Debug, Default)]
pub(crate) struct LogCensus {
    /// Leaves whose records are counted.
    upto: u64,
    leaves: u64,
    /// Logical records of the counted leaves that exist.
    pub(crate) living: u64,
    /// Those of them that nothing erases: tombstones, statements, and definitions of namespaces and keyspaces.
    pub(crate) permanent: u64,
    /// Erased seqnos before the end of the counted leaves, and leaves without a record.
    pub(crate) erased: u64,
    pub(crate) erased_leaves: u64,
    all_erased: u64,
    erased_content: u64,
    open: Option<OpenSpan>,
    rewritten: Vec<RewrittenSpan>,
    compactions: u64,
    compacted_ns: u64,
    stated: HashMap<ErasedSpan, StatedSpan>,
    recorded: RunNumbers,
    /// Runs that had no record when the store was upgraded to format 4.
    earlier: RunNumbers,
    /// Numbers that were taken and never used.
    unused: RunNumbers,
    framed: RunNumbers,
    /// Records of runs that have to stay until the run's life ends.
    pub(crate) run_records: RunRecordCensus,
    next_run: u64,
    /// Definitions of namespaces and keyspaces.
    spaces: HashMap<u32, SpaceHead>,
    space_names: HashMap<(Option<u32>, String), u32>,
    renamed: BTreeSet<u32>,
    /// Keyspaces that have a key.
    used_spaces: BTreeSet<u32>,
}

impl LogCensus {
    /// A census that counts the records of the first `upto` leaves. It takes in statements and runs of the whole
    /// log.
    pub(crate) fn new(upto: u64) -> Self {
        Self { upto, ..Self::default() }
    }

    /// Adds the next batch, which was checked. `state` is the log's state at its end.
    pub(crate) fn add(&mut self, batch: &LogBatch<'_>, segment: &Segment, state: &LogState) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.segment != segment.id) {
            self.close_span();
        }
        if segment.id.is_rewritten() && self.open.is_none() {
            let header = segment.header()?;
            let (first, is_stated) = (header.first_seqno, header.format == REWRITTEN_FORMAT);
            let set = ErasedSetBuilder::default();
            self.open = Some(OpenSpan { segment: segment.id, first, end: first, is_stated, set });
        }
        self.next_run = state.next_run;
        self.add_records(batch, segment, state).map_err(|e| Error::damaged(&segment.path, batch.offset, e))
    }

    fn add_records(
        &mut self,
        batch: &LogBatch<'_>,
        segment: &Segment,
        state: &LogState,
    ) -> std::result::Result<(), CodecError> {
        let is_counted = self.leaves < self.upto;
        let mut open = self.open.take();
        let (mut living, mut permanent) = (0, 0);
        for_each_unchecked_record(batch, segment.salt, |_, seqno, record| {
            if let Some(open) = &mut open {
                open.set.add_record(seqno, &record)?;
            }
            self.erased_content += erased_content(&record)?;
            let Some(kind) = RecordKind::parse(record.kind, record.layout)?.filter(|kind| kind.is_logical())
            else {
                return Ok(());
            };
            living += 1;
            let head = LogicalBody::of(&record)?.head;
            match kind {
                kinds::RUN => {
                    let fields = RunHead::parse(head)?.fields;
                    self.recorded.insert(fields.uid.0);
                    self.run_records.add_run(&fields);
                }
                kinds::TOMBSTONE => {
                    let head = TombstoneHead::parse(head)?;
                    self.recorded.insert(head.run.0);
                    self.run_records.add_tombstone(&head);
                    permanent += 1;
                }
                kinds::FRAME => {
                    let (run, seq, open) = FrameHead::peek_open(head)?;
                    self.framed.insert(run.0);
                    let beginning = match self.run_records.compares_beginning(run.0, seq, open) {
                        true => Some(FrameHead::parse(head)?.beginning()),
                        false => None,
                    };
                    self.run_records.add_frame(run.0, seq, open, beginning);
                }
                kinds::SNAPSHOT => {
                    let (run, seq) = SnapshotHead::peek(head)?;
                    self.run_records.add_snapshot(run.0, seq);
                }
                RecordKind::Erasure => {
                    self.add_statement(seqno, ErasureHead::parse(head)?);
                    permanent += 1;
                }
                kinds::FRAME_PART => {
                    let (run, seq, part) = PartHead::peek(head)?;
                    self.run_records.add_part(run.0, seq, part);
                }
                RecordKind::Put | RecordKind::Delete => _ = self.used_spaces.insert(KvHead::space(head)?),
                RecordKind::Embedding => _ = self.used_spaces.insert(EmbeddingHead::space(head)?),
                RecordKind::Space => {
                    self.add_space(head)?;
                    permanent += 1;
                }
                _ => {}
            }
            Ok(())
        })?;
        if let Some(open) = &mut open {
            let before = (open.set.records(), open.set.leaves());
            open.set.end_batch(batch.node)?;
            open.end = state.next_seqno;
            if is_counted {
                self.erased_leaves += open.set.leaves() - before.1;
            }
        }
        if is_counted {
            self.living += living;
            self.permanent += permanent;
            self.erased = self.all_erased + open.as_ref().map_or(0, |open| open.set.records());
        }
        self.leaves += batch.node.as_ref().map_or(Ok(0), LedgerNode::leaves)?;
        self.open = open;
        Ok(())
    }

    fn add_statement(&mut self, seqno: Seqno, head: ErasureHead) {
        if head.rule == ErasureRule::Compaction {
            self.compactions += 1;
            self.compacted_ns = self.compacted_ns.max(head.time_ns);
        }
        for span in head.spans {
            let known = self.stated.get(&span).copied().unwrap_or_default();
            let stated = match head.rule {
                ErasureRule::Compaction => StatedSpan { compacted: Some((seqno, head.time_ns)), ..known },
                ErasureRule::BeforeFormat4 => StatedSpan { is_earlier: true, ..known },
                // Such a statement names no spans.
                ErasureRule::Unused => continue,
            };
            self.stated.insert(span, stated);
        }
        if head.rule != ErasureRule::Unused {
            head.runs.iter().for_each(|runs| self.run_records.end_stated(runs));
        }
        let runs = match head.rule {
            ErasureRule::Compaction => &mut self.recorded,
            ErasureRule::BeforeFormat4 => &mut self.earlier,
            ErasureRule::Unused => &mut self.unused,
        };
        runs.ranges.extend(head.runs);
    }

    /// A namespace or keyspace keeps its definition, and its name is that of one.
    fn add_space(&mut self, head: &[u8]) -> std::result::Result<(), CodecError> {
        let space: SpaceHead = crate::codec::decode(head)?;
        let (id, name) = match &space {
            SpaceHead::Namespace { id, name } => (id.0, (None, name.clone())),
            SpaceHead::Keyspace { id, namespace, name, .. } => (*id, (Some(namespace.0), name.clone())),
        };
        let named = *self.space_names.entry(name).or_insert(id);
        let first = self.spaces.entry(id).or_insert_with(|| space.clone());
        if *first != space || named != id || id < FIRST_FREE_SPACE {
            self.renamed.insert(id);
        }
        Ok(())
    }

    fn close_span(&mut self) {
        let Some(OpenSpan { first, end, is_stated, set, .. }) = self.open.take() else { return };
        if let Some(erased) = set.finish(first, end) {
            self.all_erased += erased.records;
            self.rewritten.push(RewrittenSpan { erased, is_stated });
        }
    }

    /// Ends the census and names what nothing explains. Reads the log a second time if there is any.
    pub(crate) fn finish(&mut self, schema: &dyn RecordSchema, found: &FoundLog) -> Result<ErasureReport> {
        self.close_span();
        let mut report = ErasureReport {
            records: self.all_erased,
            content: self.erased_content,
            compactions: self.compactions,
            compacted_ns: self.compacted_ns,
            ..ErasureReport::default()
        };
        let mut unexplained = Vec::new();
        for span in &self.rewritten {
            let erased = &span.erased;
            let overlaps = |other: &ErasedSpan| other.first < erased.end && erased.first < other.end;
            let mut stated = self.stated.iter().filter(|(other, _)| overlaps(other)).peekable();
            let was_stated = stated.peek().is_some();
            let is_earlier = stated.any(|(_, stated)| stated.is_earlier);
            // Only a store that has not been opened for writing since may lack statements.
            let is_due = span.is_stated || was_stated || found.state.format > FORMAT_UNSTATED;
            match self.stated.contains_key(erased) {
                true => report.uncheckable += u64::from(is_earlier),
                false if is_due => unexplained.push(erased.first..erased.end),
                false => report.uncheckable += 1,
            }
        }
        if !unexplained.is_empty() {
            report.unexplained = name_erasures(schema, found, &unexplained)?;
        }
        report.revived_runs = self.run_records.revived.ranges();
        report.changed_runs = self.run_records.changed.ranges();
        report.namesakes = self.run_records.namesakes.ranges();
        report.renamed_spaces = self.renamed.iter().copied().collect();
        let is_keyspace = |id: &u32| matches!(self.spaces.get(id), Some(SpaceHead::Keyspace { .. }));
        report.stray_spaces = self.used_spaces.iter().copied().filter(|id| !is_keyspace(id)).collect();
        report.is_settled = found.state.clean.is_some() && found.state.format > FORMAT_UNSTATED;
        let next = self.next_run;
        report.missing_runs = subtract(&self.recorded.missing(next), &self.earlier.present(next));
        report.missing_runs = subtract(&report.missing_runs, &self.unused.present(next));
        report.earlier_runs = subtract(&self.earlier.present(next), &self.recorded.present(next));
        report.unused_runs = subtract(&self.unused.present(next), &self.recorded.present(next));
        // The numbers of frames without a run: a log before format 4 may have forgotten the run's record.
        if report.uncheckable == 0 {
            let orphaned = self.framed.present(u64::MAX);
            report.orphaned_runs = subtract(&orphaned, &self.recorded.present(u64::MAX));
            report.orphaned_runs = subtract(&report.orphaned_runs, &self.earlier.present(u64::MAX));
        }
        Ok(report)
    }

    /// How many run numbers below `next` have a record, a tombstone or a place in a compaction's statement.
    pub(crate) fn recorded_runs(&self, next: u64) -> u64 {
        count_of(&self.recorded.present(next))
    }

    /// As [`LogCensus::recorded_runs`], without the numbers that the ledger calls unused, whatever else is stated of them; and
    /// the numbers that are not counted.
    pub(crate) fn used_runs(&self, next: u64) -> (u64, Vec<Range<u64>>) {
        let found = subtract(&self.recorded.present(next), &self.unused.present(next));
        (count_of(&found), subtract(std::slice::from_ref(&(1..next.max(1))), &found))
    }

    /// The number of the next run.
    pub(crate) fn next_run(&self) -> u64 {
        self.next_run.max(1)
    }

    /// At most how many records up to `seqno` compactions erased after it, as their statements say. The last one that
    /// stated before it may have erased after it.
    pub(crate) fn stated_after(&self, seqno: Seqno) -> u64 {
        let compactions = || self.stated.values().filter_map(|stated| stated.compacted);
        let before = compactions().filter(|(stated, _)| *stated <= seqno).max();
        let spans = self.rewritten.iter().filter(|span| span.erased.first <= seqno);
        let younger = spans.filter(|span| {
            let compacted = self.stated.get(&span.erased).and_then(|stated| stated.compacted);
            compacted.is_some_and(|(stated, time_ns)| {
                stated > seqno || before.is_some_and(|(_, last_ns)| last_ns == time_ns)
            })
        });
        younger.map(|span| span.erased.records).sum()
    }
}

/// How many records with content this one stands for. An erased batch counts with all its records.
fn erased_content(record: &RawRecord<'_>) -> std::result::Result<u64, CodecError> {
    match RecordKind::parse(record.kind, record.layout)? {
        Some(RecordKind::Erased) => {
            ErasedRecords::parse(record.body)?.nodes.iter().map(LedgerNode::leaves).sum()
        }
        Some(RecordKind::ErasedBatches) => {
            let erased = ErasedBatches::parse(record.body)?;
            Ok(erased.node.map_or(0, |_| erased.seqnos))
        }
        _ => Ok(0),
    }
}

/// Names the erased records of the segments with these seqnos.
fn name_erasures(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    spans: &[Range<Seqno>],
) -> Result<Vec<UnexplainedErasure>> {
    let first = found.state.segments.first().map(|segment| segment.id).unwrap_or_default();
    let (mut named, mut bytes) = (Vec::new(), Vec::new());
    let mut leaf = 0;
    let from = (first, SEGMENT_HEADER_BYTES);
    scan_states(schema, found, from, LogState::empty(), &mut |batch, segment, state| {
        let damaged = |e| Error::damaged(&segment.path, batch.offset, e);
        let leaves = batch.node.as_ref().map_or(Ok(0), LedgerNode::leaves);
        let leaves = leaf..leaf + leaves.map_err(damaged)?;
        leaf = leaves.end;
        let last = state.last_seqno();
        if !segment.id.is_rewritten() || !spans.iter().any(|span| span.contains(&last)) {
            return Ok(());
        }
        for_each_unchecked_record(batch, segment.salt, |_, seqno, record| {
            let (count, whole) = match RecordKind::parse(record.kind, record.layout)? {
                Some(RecordKind::Erased) => {
                    let erased = ErasedRecords::parse(record.body)?;
                    if erased.nodes.is_empty() {
                        bytes.push(UnexplainedErasure {
                            records: seqno.0..seqno.0 + erased.count,
                            leaves: leaf..leaf,
                            whole: false,
                        });
                        return Ok(());
                    }
                    (erased.count, false)
                }
                Some(RecordKind::ErasedBatches) => (ErasedBatches::parse(record.body)?.seqnos, true),
                _ => return Ok(()),
            };
            let more = UnexplainedErasure {
                records: seqno.0..seqno.0.saturating_add(count),
                leaves: leaves.clone(),
                whole,
            };
            match named.last_mut() {
                Some(UnexplainedErasure { records, leaves, whole: true })
                    if whole && records.end == more.records.start =>
                {
                    (records.end, leaves.end) = (more.records.end, more.leaves.end);
                }
                _ => named.push(more),
            }
            Ok(())
        })
        .map_err(damaged)
    })?;
    // Erased bytes alone are named only if nothing else is.
    Ok(if named.is_empty() { bytes } else { named })
}

/// Run numbers without a record that are stated at most. A run takes more than a hundred bytes of the log, so a store with
/// more of them has a forged number of the next run: stating all would take the memory of the machine.
const STATED_RUNS_MAX: u64 = 1 << 30;

fn check_stated_runs(runs: &[Range<u64>]) -> Result<()> {
    let count =
        runs.iter().fold(0u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    if count <= STATED_RUNS_MAX {
        return Ok(());
    }
    let what = format!("{count} run numbers have no record: the number of the next run is wrong");
    Err(Error::new(ErrorKind::Damaged, what))
}

/// Commits statements of erased records and of runs without a record, and waits until they are on disk.
pub(crate) fn commit_statements(
    core: &Arc<Core>,
    rule: ErasureRule,
    spans: &[ErasedSpan],
    runs: &[Range<u64>],
) -> Result<()> {
    check_stated_runs(runs)?;
    let time_ns = core.io.now_ns();
    // A statement belongs to no namespace, and has no bodies.
    let mut writer = match rule {
        ErasureRule::Unused => BatchWriter::for_close(core, NamespaceId(0))?,
        _ => BatchWriter::new(core, NamespaceId(0))?,
    };
    let mut state = |spans: &[ErasedSpan], runs: Vec<Range<u64>>| {
        let head = ErasureHead { rule, time_ns, spans: spans.to_vec(), runs };
        writer.add_record(RecordKind::Erasure, &head.encode(), &[])
    };
    // One record, but for limits that no ordinary store reaches.
    let mut runs = split_ranges(runs, RUNS_MAX).into_iter();
    for spans in spans.chunks(SPANS_MAX) {
        state(spans, runs.next().unwrap_or_default())?;
    }
    runs.try_for_each(|runs| state(&[], runs))?;
    match writer.submit_awaited(Durability::Disk)? {
        Some((_, ticket)) => ticket.wait().map(drop),
        None => Ok(()),
    }
}

/// A set of run numbers.
#[derive(Debug, Default)]
struct RunNumbers {
    /// One bit for each number.
    bits: BTreeMap<u64, u64>,
    /// Further numbers.
    ranges: Vec<Range<u64>>,
}

impl RunNumbers {
    fn insert(&mut self, number: u64) {
        // Only a forged frame has a greater number.
        if number >= COUNT_MAX {
            return;
        }
        *self.bits.entry(number / 64).or_default() |= 1 << (number % 64);
    }

    /// The numbers from 1 up to `next`, as ascending ranges that do not touch.
    fn present(&self, next: u64) -> Vec<Range<u64>> {
        let single = self.bits.iter().flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        });
        let mut all = ranges_of(single);
        all.extend(self.ranges.iter().cloned());
        all.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in all {
            let range = range.start.max(1)..range.end.min(next);
            match merged.last_mut() {
                _ if range.is_empty() => {}
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }

    /// The numbers from 1 up to `next` that are not in the set.
    fn missing(&self, next: u64) -> Vec<Range<u64>> {
        subtract(std::slice::from_ref(&(1..next.max(1))), &self.present(next))
    }
}

/// The numbers of `all` without those of `some`. Both are ascending ranges that do not overlap.
fn subtract(all: &[Range<u64>], some: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in all {
        let mut start = range.start;
        let from = some.partition_point(|taken| taken.end <= start);
        for taken in some.iter().skip(from).take_while(|taken| taken.start < range.end) {
            if start < taken.start {
                left.push(start..taken.start);
            }
            start = start.max(taken.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// States what was erased before format 4 from a store that is now open for writing, so that later erasures are
/// noticed. The manifest has the current format only after that.
pub(crate) fn upgrade(core: &Arc<Core>) -> Result<()> {
    if !read_lock(&core.segments).all().iter().any(|segment| segment.id.is_rewritten()) {
        return commit_statements(core, ErasureRule::BeforeFormat4, &[], &unrecorded_runs(core)?);
    }
    state_earlier_erasures(core)?;
    Ok(core.log()?.manifest.edit(|state| state.format = FORMAT)?)
}

/// States run numbers that were taken and never used: nothing else tells them from removed runs.
pub(crate) fn state_unused_runs(core: &Arc<Core>, runs: &[Range<u64>]) -> Result<()> {
    commit_statements(core, ErasureRule::Unused, &[], runs)
}

/// The run numbers of a store open for writing that have no record, tombstone or statement, by its index. Reads the
/// keys of all runs, and the statements only if a number has no key.
pub(crate) fn unrecorded_runs(core: &Arc<Core>) -> Result<Vec<Range<u64>>> {
    let _pin = core.pin();
    let next = core.writer()?.next_uid();
    let mut known = RunNumbers::default();
    for space in core.list_spaces()? {
        let SpaceHead::Namespace { id, .. } = space else { continue };
        let mut from = run_keys::runs(id);
        let end = prefix_end(&from).unwrap_or_default();
        loop {
            let (uids, more) =
                core.index.pick_newest(&from, &end, PAGE_RUNS, |key, _| run_keys::run_uid(key))?;
            uids.into_iter().for_each(|uid| known.insert(uid.0));
            match more {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    if known.missing(next).is_empty() {
        return Ok(Vec::new());
    }
    for_each_statement(core, &mut |statement| known.ranges.extend(statement.runs))?;
    Ok(known.missing(next))
}

/// The spans that statements name.
pub(crate) fn stated_spans(core: &Arc<Core>) -> Result<HashSet<ErasedSpan>> {
    let _pin = core.pin();
    let mut spans = HashSet::new();
    for_each_statement(core, &mut |statement| spans.extend(statement.spans))?;
    Ok(spans)
}

fn for_each_statement(core: &Arc<Core>, each: &mut dyn FnMut(ErasureHead)) -> Result<()> {
    for hit in core.index.scan_prefix(&keys::erasures(), Seqno(u64::MAX))? {
        let place = keys::place(hit.value);
        let parsed = |logical: LogicalBody<'_>| ErasureHead::parse(logical.head);
        each(core.read_logical(place, RecordKind::Erasure, parsed)?);
    }
    Ok(())
}

fn state_earlier_erasures(core: &Arc<Core>) -> Result<()> {
    let found = find(&*core.io, &core.paths, false, false, core.options.read_mode)?;
    let mut census = LogCensus::new(u64::MAX);
    let first = found.state.segments.first().map(|segment| segment.id).unwrap_or_default();
    let from = (first, SEGMENT_HEADER_BYTES);
    scan_states(&*core.schema, &found, from, LogState::empty(), &mut |batch, segment, state| {
        census.add(batch, segment, state)
    })?;
    census.close_span();
    // Segments of format 4 have statements of their own. If one is missing, it was removed.
    let unstated = census.rewritten.iter().filter(|span| !span.is_stated);
    let spans: Vec<ErasedSpan> =
        unstated.map(|span| span.erased).filter(|erased| !census.stated.contains_key(erased)).collect();
    // Numbers that nobody used are among them: before format 4, nothing tells them from forgotten runs.
    let next = census.next_run();
    let runs = subtract(&census.recorded.missing(next), &census.earlier.present(next));
    commit_statements(core, ErasureRule::BeforeFormat4, &spans, &runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::run_numbers;

    #[test]
    fn run_numbers_are_listed_as_ranges() {
        let mut runs = RunNumbers::default();
        [1, 2, 3, 64, 65, 200].into_iter().for_each(|number| runs.insert(number));
        runs.ranges.push(60..64);
        assert_eq!(runs.present(u64::MAX), [1..4, 60..66, 200..201]);
        assert_eq!(runs.missing(70), [4..60, 66..70]);
        assert_eq!(runs.missing(4), []);
        assert_eq!(run_numbers(&runs.missing(70)), "runs 4 to 59, 66 to 69");
        assert_eq!(run_numbers(std::slice::from_ref(&(8..9))), "run 8");
        assert_eq!(subtract(&[1..5, 7..9], &[2..3, 4..8]), [1..2, 3..4, 8..9]);
    }

    /// Found by the fuzz target `manifest`: an upgrade listed all numbers up to a forged one until no memory was left.
    #[test]
    fn forged_number_of_the_next_run_is_damage() {
        assert!(check_stated_runs(&[1..STATED_RUNS_MAX, 1 << 40..(1 << 40) + 1]).is_ok());
        let error = check_stated_runs(&[3..4, 5..1 << 55]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("36028797018963964 run numbers have no record"), "{error}");
    }
}
