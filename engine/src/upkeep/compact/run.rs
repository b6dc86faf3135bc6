//! One compaction, from start to end.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::blob::GroupId;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, Seqno};
use crate::log::layout::SEGMENT_HEADER_BYTES;
use crate::log::rewrite::{LiveSet, Recompress, rewrite};
use crate::log::room::release_reserve_if_short;
use crate::log::scan::sealed_tail;
use crate::log::segments::{Segment, lock, read_lock};
use crate::sync::{Mutex, rank};
use crate::trace::schema::RunSchema;
use crate::upkeep::compact::choose::{CompactionPlan, choose};
use crate::upkeep::compact::live::LiveRecords;
use crate::upkeep::compact::mark::{MarkedStore, mark};
use crate::upkeep::compact::swap::RewrittenFiles;
use crate::upkeep::compact::weigh::{MustGo, SegmentWeight, weigh};
use crate::upkeep::compact::workers::run_jobs;
use crate::upkeep::compact::{CompactOptions, CompactPhase, CompactProgress, CompactReport};
use crate::upkeep::forget::SharedContent;
use annals_store::kv::core::Core;
use annals_store::kv::embeddings::SweptOwners;
use annals_store::kv::fence::RaisedFence;
use annals_store::kv::index::{CompactionBase, PlaceMap};
use annals_store::kv::keys;
use std::sync::TryLockError;

/// Bytes for a manifest and what the file system itself needs.
const MANIFEST_OVERHEAD_BYTES: u64 = 64 << 10;

/// What a compaction did, and what shares bytes with keys that must go.
type CompactResult = (CompactReport, Vec<SharedContent>);

/// A running compaction.
struct Compaction<'a> {
    core: &'a Arc<Core>,
    options: &'a CompactOptions,
}

/// Progress and rate limit of one phase, shared by its threads.
#[derive(Clone)]
pub(super) struct Pace {
    core: Arc<Core>,
    options: CompactOptions,
    phase: CompactPhase,
    /// Estimate of the phase's bytes in total.
    of: u64,
    began_ns: u64,
    done: Arc<Mutex<u64, { rank::COMPACT_PROGRESS }>>,
}

/// What the survey found: the live data and the plan.
struct CompactionSurvey {
    base: CompactionBase,
    marked: MarkedStore,
    weighed: Vec<SegmentWeight>,
    /// Living data that shares bytes with keys that must go.
    sharers: Vec<SharedContent>,
    plan: CompactionPlan,
    /// Raw bytes in the sealed segments.
    raw_bytes: u64,
    /// Keeps batches from referencing older groups; `None` if nothing will be rewritten.
    _fence: Option<RaisedFence>,
}

/// Reports what a compaction would do. It opens its own reader, so it seals, flushes and blocks nothing.
pub(super) fn dry_run(core: &Arc<Core>, options: &CompactOptions) -> Result<CompactResult> {
    if core.is_closed() {
        return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
    }
    let reader = Core::open(core.paths.root(), core.options.clone(), false, RunSchema::shared())?;
    // The new reader does not see the views of this process, so their presence is passed on.
    let keep_all = !lock(&core.index.views).is_empty();
    let work = Compaction { core: &reader, options };
    let looked = work.survey_read_only(keep_all)?;
    Ok((work.report(&looked), looked.sharers))
}

pub(super) fn compact(core: &Arc<Core>, options: &CompactOptions) -> Result<CompactResult> {
    let log = core.log()?;
    log.queue.check_poisoned()?;
    let writer = core.writer()?;
    let _compacting = match writer.compacting.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // That does not take long, and nobody asked for it.
        Err(TryLockError::WouldBlock) if writer.raw_tail.is_compressing() => lock(&writer.compacting),
        Err(TryLockError::WouldBlock) => {
            return Err(Error::conflict("another compaction of this store is running: wait until it ends"));
        }
    };
    let _reserve = log.queue.use_reserve();
    release_reserve_if_short(&*core.io, &core.paths, core.options.reserve_bytes)?;
    let (mut report, sharers) = compact_what_fits(core, options)?;
    // Each pass leaves room for the next one.
    while report.unfit > 0 {
        match compact_what_fits(core, options) {
            Ok((next, _)) => report = report.add(next),
            // What was done so far holds; the report says what is left.
            Err(error) if error.kind() == ErrorKind::Unavailable && !work_ends(core, options) => break,
            Err(error) => return Err(error),
        }
    }
    Ok((report, sharers))
}

/// Whether a compaction must stop: the store is closed, or its caller cancels.
fn work_ends(core: &Core, options: &CompactOptions) -> bool {
    core.is_closed() || options.cancel.as_ref().is_some_and(|cancel| cancel())
}

/// One pass over the store.
fn compact_what_fits(core: &Arc<Core>, options: &CompactOptions) -> Result<CompactResult> {
    let queue = &core.log()?.queue;
    let work = Compaction { core, options };
    let mut looked = work.survey()?;
    let mut report = work.report(&looked);
    // This must precede the new generation: then a lock on the old generation also reveals readers of old
    // vector files.
    if let Some(finder) = core.embedding_index.get() {
        let uids: Vec<u64> = options.must_go.iter().map(|run| run.0).collect();
        let gone = options.must_go_keys.iter();
        let keys: Vec<(u32, Vec<u8>)> = gone.map(|gone| (gone.space, gone.key.clone())).collect();
        finder.sweep(core, &SweptOwners { uids: &uids, keys: &keys, all_dead: options.all_dead })?;
    }
    work.check_free_space(&looked)?;
    let sharers = std::mem::take(&mut looked.sharers);
    if looked.plan.stretches.is_empty() {
        report.pending_bytes = core.log()?.manifest.pending_bytes();
        return Ok((report, sharers));
    }
    let made = work.write_segments(&mut looked).and_then(|rewritten| {
        report.made_bytes = rewritten.segments.iter().filter_map(|(_, made)| made.entry.sealed_bytes).sum();
        report.live_bytes = rewritten.segments.iter().map(|(_, made)| made.live_bytes).sum();
        rewritten.state_erasures(core)?;
        rewritten.swap(core, &looked.base, &|| work.check(), &|held| match looked.marked.has_parents(held) {
            true => Ok(()),
            false => Err(Error::conflict("a run that was dropped is being forked: try again")),
        })
    });
    match made {
        Ok(()) => {
            work.pass_raw_tail(&looked)?;
            work.remove_sources(looked)?;
            core.index.remove_unlisted_tables();
            // A power cut must not bring back files that this call reports as removed.
            core.io.sync_dir(&core.paths.segments())?;
            core.io.sync_dir(&core.paths.tables())?;
            // Readers of the old generation in other processes still have its files open.
            report.pending_bytes = core.log()?.manifest.pending_bytes();
            Ok((report, sharers))
        }
        Err(error) => {
            // If the store was closed, another process may own it now; the next opening removes the new
            // files.
            if !core.is_closed() && !queue.is_poisoned() {
                drop(looked);
                let _ = core.remove_unlisted_segments();
                core.index.remove_unlisted_tables();
            }
            Err(error)
        }
    }
}

impl Pace {
    fn new(work: &Compaction<'_>, phase: CompactPhase, of: u64) -> Self {
        let (core, options) = (work.core.clone(), work.options.clone());
        let began_ns = core.io.monotonic_ns();
        Self { core, options, phase, of, began_ns, done: Arc::default() }
    }

    /// Fails if the compaction must stop.
    ///
    /// # Errors
    /// `Unavailable` if the store was closed or the compaction is cancelled; `Poisoned`.
    fn check(&self) -> Result<()> {
        if self.core.is_closed() {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        if self.options.cancel.as_ref().is_some_and(|cancel| cancel()) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the compaction was cancelled: the store is unchanged",
            ));
        }
        match self.options.dry_run {
            true => Ok(()),
            false => self.core.log()?.queue.check_poisoned(),
        }
    }

    /// Counts bytes that are done or about to be written. Waits if they exceed the rate limit.
    pub(super) fn advance(&self, bytes: u64) -> Result<()> {
        // The lock is held during the wait, which slows the other threads down, too.
        let mut done = lock(&self.done);
        self.check()?;
        *done += bytes;
        if let Some(progress) = &self.options.progress {
            progress(CompactProgress { phase: self.phase, done: *done, total: self.of });
        }
        let limit = self.options.bytes_per_second_max.filter(|_| self.phase == CompactPhase::Writing);
        let Some(limit) = limit else { return Ok(()) };
        let due_ns = u128::from(*done) * 1_000_000_000 / u128::from(limit.max(1));
        let past_ns = u128::from(self.core.io.monotonic_ns().saturating_sub(self.began_ns));
        let mut left = due_ns.saturating_sub(past_ns);
        while left > 0 {
            let some = left.min(100_000_000);
            crate::sync::thread::sleep(Duration::from_nanos(some as u64));
            left -= some;
            self.check()?;
        }
        Ok(())
    }
}

impl Compaction<'_> {
    fn check(&self) -> Result<()> {
        Pace::new(self, CompactPhase::Looking, 0).check()
    }

    /// Finds the live data and the segments that are worth rewriting.
    fn survey(&self) -> Result<CompactionSurvey> {
        let core = self.core;
        let log = core.log()?;
        let stop = || self.check();
        // Passes given out from here on reference only groups behind the sealed segments.
        let first_left = log.queue.seal_active(&stop)?;
        let raw_bytes = core.writer()?.raw_tail.bytes();
        let fence = core.fence.raise(core.writer()?.next_group(), &stop)?;
        log.queue.barrier(core.index.visible())?;
        // Batches committed meanwhile may still reference groups in the sealed segments, so they are marked,
        // too.
        log.queue.flush_index()?;
        core.index.wait_flushed()?;
        let base = core.index.take_base(Seqno(0))?;
        let listed = base.segments();
        let behind = listed.iter().position(|id| *id == first_left).unwrap_or(listed.len());
        Ok(CompactionSurvey { raw_bytes, ..self.survey_segments(base, behind, Some(fence))? })
    }

    /// Like `survey`, in a store open for reading. It treats the active segment as it stands; a compaction
    /// would seal it first.
    fn survey_read_only(&self, keep_all: bool) -> Result<CompactionSurvey> {
        let core = self.core;
        let end = core.read_position().ok_or_else(|| Error::bug("a reader has no read position"))?;
        let listed: Vec<SegmentId> =
            read_lock(&core.segments).all().iter().map(|segment| segment.id).collect();
        let last = listed.iter().position(|id| *id == end.0).unwrap_or(listed.len());
        let behind = if end.1 > SEGMENT_HEADER_BYTES { last + 1 } else { last };
        let base = core.index.base_with_memory(end, listed, keep_all)?;
        self.survey_segments(base, behind, None)
    }

    /// Surveys the log up to the end of what `base` covers. Only the first `behind` segments may be
    /// rewritten.
    fn survey_segments(
        &self,
        base: CompactionBase,
        behind: usize,
        fence: Option<RaisedFence>,
    ) -> Result<CompactionSurvey> {
        let core = self.core;
        let stop = || self.check();
        let (covered, covered_to) = base.covers();
        let listed = base.segments();
        let last = listed.iter().position(|id| *id == covered).unwrap_or(listed.len());
        let mut segments = Vec::with_capacity(last + 1);
        for (at, id) in listed.iter().enumerate().take_while(|(at, _)| *at <= last) {
            let segment = core.segment(*id)?;
            // After the end of an active segment's data come zeros that were written ahead.
            let bytes = if segment.is_sealed() { segment.file.len()? } else { covered_to };
            let tail = if at < last { sealed_tail(&segment, bytes)? } else { covered_to };
            segments.push((segment, bytes, tail));
        }
        let of = segments.iter().map(|(.., tail)| tail).sum();
        let forgotten = &self.options.must_go_keys;
        let mut marked = mark(core, &base, forgotten, &stop)?;
        let wanted: HashSet<NamespaceId> = (self.options.must_go.iter())
            .filter_map(|uid| marked.runs.get(uid).map(|run| run.namespace))
            .chain(forgotten.iter().map(|gone| gone.namespace))
            .collect();
        let pace = Pace::new(self, CompactPhase::Looking, of);
        let must_go = MustGo::new(&self.options.must_go, forgotten);
        let (mut weighed, sharers) = weigh(core, &mut marked, segments, must_go, pace)?;
        // The segments after `behind` are read only for what they reference.
        weighed.truncate(behind);
        let which = (self.options.recompress.is_some(), self.options.all_dead);
        let most = core.options.segment_bytes_max;
        let threads = core.io.worker_threads() as u64;
        let room = match (self.options.dry_run, self.free_bytes()?) {
            (false, Some(free)) => free.saturating_sub(base.bytes() + MANIFEST_OVERHEAD_BYTES),
            _ => u64::MAX,
        };
        let plan = choose(&mut weighed, &mut marked.live, &wanted, which, (most, room), threads);
        Ok(CompactionSurvey { base, marked, weighed, sharers, plan, raw_bytes: 0, _fence: fence })
    }

    fn report(&self, looked: &CompactionSurvey) -> CompactReport {
        let plan = &looked.plan;
        CompactReport {
            dry_run: self.options.dry_run,
            seqno: self.core.index.visible(),
            segments: looked.weighed.len() as u64,
            segment_bytes: looked.weighed.iter().map(|weighed| weighed.bytes).sum(),
            rewritten: plan.stretches.iter().map(|stretch| stretch.len() as u64).sum(),
            made: plan.stretches.len() as u64,
            rewritten_bytes: plan.bytes,
            made_bytes: plan.live_bytes - plan.joins,
            live_bytes: plan.live_bytes - plan.joins,
            needed_bytes: match plan.stretches.is_empty() {
                true => 0,
                false => plan.live_bytes + looked.base.bytes() + MANIFEST_OVERHEAD_BYTES,
            },
            unfit: plan.unfit.0,
            pending_bytes: 0,
        }
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(self.core.io.free_bytes(self.core.paths.root())?)
    }

    /// Refuses a compaction that could do nothing for lack of room, or that could leave bytes of a run that
    /// must go.
    fn check_free_space(&self, looked: &CompactionSurvey) -> Result<()> {
        let (plan, options) = (&looked.plan, self.options);
        let must_go = !options.must_go.is_empty() || !options.must_go_keys.is_empty();
        let is_stuck = plan.unfit.0 > 0 && (plan.stretches.is_empty() || must_go);
        let Some(free) = self.free_bytes()?.filter(|_| is_stuck) else { return Ok(()) };
        let needed = plan.live_bytes + plan.unfit.1 + looked.base.bytes() + MANIFEST_OVERHEAD_BYTES;
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "compaction needs {needed} free bytes on the disk of {}, and only {free} are free: make room",
                self.core.paths.root().display()
            ),
        ))
    }

    /// Writes the new segments and the table that points to them.
    fn write_segments(&self, looked: &mut CompactionSurvey) -> Result<RewrittenFiles> {
        let core = self.core;
        let mut next = core.log()?.manifest.state().next_rewritten;
        let mut jobs = Vec::with_capacity(looked.plan.stretches.len());
        for stretch in &looked.plan.stretches {
            let sources: Vec<Arc<Segment>> = (looked.weighed.get(stretch.clone()).unwrap_or_default().iter())
                .map(|weighed| weighed.segment.clone())
                .collect();
            let id = SegmentId(next);
            next = next.checked_add(1).ok_or_else(|| Error::bug("all segment numbers are used"))?;
            jobs.push((sources, id));
        }
        let sources: HashSet<SegmentId> =
            jobs.iter().flat_map(|(sources, _)| sources.iter().map(|source| source.id)).collect();
        let erased_runs = looked.marked.erased_runs(&sources);
        let live = std::mem::take(&mut looked.marked.live);
        let pace = Pace::new(self, CompactPhase::Writing, looked.plan.live_bytes);
        let recompress = self.options.recompress.map_or(Recompress::Raw, Recompress::All);
        let of = core.clone();
        let mut made = run_jobs(&*core.io, jobs.len(), move |at| {
            let Some((sources, id)) = jobs.get(at) else {
                return Err(Error::bug("a compaction job has no stretch"));
            };
            let (io, paths) = (&*of.io, &of.paths);
            rewrite(io, paths, of.store, &*of.schema, sources, *id, &live, recompress, &mut |bytes| {
                pace.advance(bytes)
            })
        })?;
        let mut remap = PlaceMap::default();
        sources.into_iter().for_each(|source| remap.retire(source));
        for made in &mut made {
            std::mem::take(&mut made.moved)
                .into_iter()
                .for_each(|moved| remap.add_move(moved.from, moved.to));
        }
        let of_stretch = |stretch: &Range<usize>| -> Vec<SegmentId> {
            let sources = looked.weighed.get(stretch.clone()).unwrap_or_default();
            sources.iter().map(|source| source.segment.id).collect()
        };
        let segments = looked.plan.stretches.iter().map(of_stretch).zip(made).collect();
        core.io.sync_dir(&core.paths.segments())?;
        remap.sort_moves();
        let thinned = &looked.plan.thinned;
        // Data that is packed again is kept and hardly read. Its tables take half the bytes with fewer anchors.
        let packed: HashSet<GroupId> = match self.options.recompress {
            None => HashSet::new(),
            Some(_) => (looked.plan.stretches.iter())
                .filter_map(|stretch| looked.weighed.get(stretch.clone()))
                .flatten()
                .flat_map(|weighed| weighed.groups.iter().map(|group| group.group))
                .collect(),
        };
        let mut seen = 0u64;
        let table = core.index.write_rebuilt_table(&looked.base, |key, value| {
            seen += 1;
            if seen.is_multiple_of(4096) {
                self.check()?;
            }
            Ok(match value.kind {
                // Such a group may lose bytes, so new bodies must not refer to it.
                keys::ANCHOR if thinned.contains(&GroupId(value.a)) => None,
                keys::ANCHOR if packed.contains(&GroupId(value.a)) => {
                    keys::is_kept_when_packed(key).then_some(value)
                }
                keys::AT_PLACE | keys::ENDED => {
                    remap.new_place(keys::place(value)).map(|place| keys::record_value(value.kind, place))
                }
                _ => Some(value),
            })
        })?;
        Ok(RewrittenFiles { segments, table, erased_runs, retired_bytes: looked.plan.bytes })
    }

    /// Nothing raw is left to compress in sealed segments if all of the tail's were rewritten.
    fn pass_raw_tail(&self, looked: &CompactionSurvey) -> Result<()> {
        let tail = &self.core.writer()?.raw_tail;
        let sealed = |at: usize| looked.weighed.get(at).map(|weighed| weighed.segment.id);
        let is_rewritten = |at: usize| looked.plan.stretches.iter().any(|stretch| stretch.contains(&at));
        let first = tail.first();
        let last = (0..looked.weighed.len()).rev().find_map(sealed).filter(|last| !last.is_rewritten());
        let mut of_tail = (0..looked.weighed.len())
            .filter(|at| sealed(*at).is_some_and(|id| !id.is_rewritten() && id >= first));
        if let Some(last) = last.filter(|_| of_tail.all(is_rewritten)) {
            tail.pass(looked.raw_bytes, SegmentId(last.0.saturating_add(1)));
        }
        Ok(())
    }

    /// Removes the files of segments that the manifest no longer lists. If a removal fails, a later one tries
    /// again.
    fn remove_sources(&self, looked: CompactionSurvey) -> Result<()> {
        let CompactionSurvey { weighed, plan, .. } = looked;
        let mut taken: Vec<Mutex<Option<Arc<Segment>>, { rank::TAKEN_SEGMENT }>> = Vec::new();
        for (at, weighed) in weighed.into_iter().enumerate() {
            if plan.stretches.iter().any(|stretch| stretch.contains(&at)) {
                taken.push(Mutex::new(Some(weighed.segment)));
            }
        }
        let core = self.core.clone();
        run_jobs(&*self.core.io, taken.len(), move |at| {
            // The system frees a file's pages when its last open handle closes. That takes most of the time.
            if let Some(segment) = taken.get(at).and_then(|place| lock(place).take()) {
                let _ = core.io.remove(&core.paths.segment(segment.id));
            }
            Ok(())
        })?;
        Ok(())
    }
}

impl LiveSet for LiveRecords {
    fn keeps_record(&self, segment: SegmentId, offset: u32) -> bool {
        LiveRecords::has_record(self, segment, offset)
    }

    fn live_ranges(&self, group: GroupId) -> Option<Vec<Range<u32>>> {
        Some(LiveRecords::group_ranges(self, group).to_vec())
    }
}
