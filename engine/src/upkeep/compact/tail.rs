//! Compresses the raw tail of the log (`kv::raw_tail`).
//!
//! The segments that may hold raw bodies are rewritten with every record, as few as the longest segment allows, and
//! their raw groups compressed.
//! As nothing that a record names is lost, later batches may refer to these groups all the time, so there is no fence.
//! Only tables that lead to these segments are made anew. Small segments before them, which earlier calls made, are
//! joined with them, so that a store that is opened often has few of them.

use std::ops::Range;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use crate::blob::GroupId;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno};
use crate::log::rewrite::{LiveSet, Recompress, rewrite};
use crate::log::segments::{Segment, lock, read_lock};
use crate::sync::{JoinHandle, Mutex, rank};
use crate::upkeep::compact::swap::RewrittenFiles;
use annals_store::kv::core::Core;
use annals_store::kv::index::{CompactionBase, PlaceMap};
use annals_store::kv::keys;
use annals_store::kv::raw_tail::{IDLE_BYTES_MIN, RawBytes, SHARE_MIN};

/// Fewer raw bytes are not worth a rewrite when a store is closed.
pub(crate) const CLOSING_BYTES_MIN: u64 = 4 << 10;
/// Segments are joined up to this many bytes.
const JOINED_BYTES_MAX: u64 = 32 << 20;

/// Adjacent segments, and the seqno with which they begin.
type TailSources<'a> = (&'a [Arc<Segment>], Seqno);

/// Everything lives.
struct AllLive;

impl LiveSet for AllLive {
    fn keeps_record(&self, _: SegmentId, _: u32) -> bool {
        true
    }

    fn live_ranges(&self, _: GroupId) -> Option<Vec<Range<u32>>> {
        None
    }
}

/// A store is idle once nothing was committed for about this long.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// After a failure, the next try comes so much later.
const RETRY_TIME: Duration = Duration::from_secs(60);

/// While views hold this many bytes of segments that were rewritten, the idle tail stays raw. It would be rewritten with what
/// it is joined with each time, and a view that stays open would hold a copy of each.
const PINNED_BYTES_MAX: u64 = 256 << 20;

/// The thread that compresses the tail of a store that is open and idle.
#[derive(Debug)]
pub(crate) struct TailThread(Mutex<Option<JoinHandle<()>>, { rank::TAIL_THREAD }>);

impl TailThread {
    /// Starts the thread if bodies may be raw in this store. Without it, the tail waits for the closing.
    pub(crate) fn start(core: &Arc<Core>) -> Self {
        let is_on = core.writer().is_ok_and(|writer| writer.raw_tail.is_on());
        let of = core.clone();
        let thread =
            is_on.then(|| core.io.spawn("annals-tail", Box::new(move || compress_when_idle(&of))).ok());
        Self(Mutex::new(thread.flatten()))
    }

    /// Ends the thread, after what it is doing.
    pub(crate) fn stop(&self, core: &Core) {
        let Some(thread) = lock(&self.0).take() else { return };
        if let Ok(writer) = core.writer() {
            writer.raw_tail.stop();
        }
        // A panic of the thread leaves the tail raw.
        let _ = thread.join();
    }
}

fn compress_when_idle(core: &Arc<Core>) {
    let Ok(writer) = core.writer() else { return };
    let tail = &writer.raw_tail;
    while tail.wait_for_bytes() {
        let mut seen = None;
        while seen != Some(core.index.visible()) {
            seen = Some(core.index.visible());
            if !tail.pause(IDLE_TIME) {
                return;
            }
        }
        let stops = || match tail.is_stopped() {
            true => Err(Error::new(ErrorKind::Unavailable, "the store is being closed")),
            false => Ok(()),
        };
        let has_room = read_lock(&core.segments).pinned_bytes() < PINNED_BYTES_MAX;
        let is_done = has_room && compress_tail(core, IDLE_BYTES_MIN, &stops).is_ok();
        if !is_done && !tail.pause(RETRY_TIME) {
            return;
        }
    }
}

/// See [`Store::compress_tail`](crate::Store::compress_tail). Fewer raw bytes than `bytes_min` stay.
/// While it waits for a batch whose group is in the last segment, it calls `waits`, whose error ends it.
pub(crate) fn compress_tail(
    core: &Arc<Core>,
    bytes_min: u64,
    waits: &dyn Fn() -> Result<()>,
) -> Result<bool> {
    let writer = core.writer()?;
    if writer.raw_tail.bytes() < bytes_min {
        return Ok(false);
    }
    writer.log.queue.check_poisoned()?;
    let _compacting = match writer.compacting.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(Error::conflict("a compaction of this store is running: wait until it ends"));
        }
    };
    let taken = writer.raw_tail.take();
    let done = compress_taken(core, taken, waits);
    writer.raw_tail.finish(taken, done.is_ok());
    done
}

fn compress_taken(core: &Arc<Core>, taken: RawBytes, waits: &dyn Fn() -> Result<()>) -> Result<bool> {
    let log = core.log()?;
    let stop = || match core.is_closed() {
        true => Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again")),
        false => log.queue.check_poisoned(),
    };
    // Sealing first would leave a segment at each closing of a store that is mostly something else.
    let (active, active_end) = log.queue.active_end();
    let mut bytes = 0;
    for segment in read_lock(&core.segments).all().iter().filter(|segment| is_of_tail(segment, taken)) {
        bytes += if segment.id == active { active_end } else { segment.file.len()? };
    }
    if taken.bytes < bytes / SHARE_MIN {
        return Ok(false);
    }
    let end = log.queue.seal_active(&|| stop().and_then(|()| waits()))?;
    log.queue.barrier(core.index.visible())?;
    log.queue.flush_index()?;
    core.index.wait_flushed()?;
    let mut all = read_lock(&core.segments).all();
    all.truncate(all.iter().position(|segment| segment.id == end).unwrap_or(all.len()));
    let bytes_max = core.options.segment_bytes_max;
    let Some((sources, from)) = choose_sources(&all, taken, bytes_max)? else { return Ok(false) };
    let base = core.index.take_base(from)?;
    let made = write_tail(core, sources, &base, &stop).and_then(|rewritten| {
        rewritten.state_erasures(core)?;
        rewritten.swap(core, &base, &stop, &|_| Ok(()))
    });
    drop(base);
    if made.is_err() && (core.is_closed() || log.queue.is_poisoned()) {
        // Another process may own the store now; the next opening removes the new files.
        return made.map(|()| false);
    }
    for source in sources.iter().filter(|_| made.is_ok()) {
        // Readers may still have it open. If it cannot be removed now, the next opening for writing removes it.
        let _ = core.io.remove(&core.paths.segment(source.id));
    }
    if made.is_err() {
        let _ = core.remove_unlisted_segments();
    }
    core.index.remove_unlisted_tables();
    made?;
    core.io.sync_dir(&core.paths.segments())?;
    core.io.sync_dir(&core.paths.tables())?;
    Ok(true)
}

/// Whether a segment may hold some of these raw bytes. A compaction may have rewritten the first ones meanwhile, and
/// has compressed them then.
fn is_of_tail(segment: &Segment, taken: RawBytes) -> bool {
    !segment.id.is_rewritten() && segment.id >= taken.first
}

/// The last of these sealed segments, which are rewritten, and the seqno with which they begin. `None` if there are
/// none.
fn choose_sources(
    all: &[Arc<Segment>],
    taken: RawBytes,
    segment_bytes_max: u64,
) -> Result<Option<TailSources<'_>>> {
    let Some(mut first) = all.iter().position(|segment| is_of_tail(segment, taken)) else { return Ok(None) };
    let mut bytes = 0;
    for segment in all.get(first..).unwrap_or_default() {
        bytes += segment.file.len()?;
    }
    // Each is joined with one at most twice as long: so none is copied more often than the logarithm of their number.
    while let Some(before) =
        first.checked_sub(1).and_then(|at| all.get(at)).filter(|one| one.id.is_rewritten())
    {
        let more = before.file.len()?;
        if more > bytes * 2 || bytes + more > JOINED_BYTES_MAX.min(segment_bytes_max) {
            break;
        }
        (first, bytes) = (first - 1, bytes + more);
    }
    match all.get(first..) {
        Some(sources @ [begin, ..]) => Ok(Some((sources, begin.header()?.first_seqno))),
        _ => Ok(None),
    }
}

/// Writes the new segments, and the table that leads to them.
fn write_tail(
    core: &Arc<Core>,
    sources: &[Arc<Segment>],
    base: &CompactionBase,
    stop: &dyn Fn() -> Result<()>,
) -> Result<RewrittenFiles> {
    let mut next = core.log()?.manifest.state().next_rewritten;
    let (io, paths) = (&*core.io, &core.paths);
    let mut places = PlaceMap::default();
    let mut segments = Vec::new();
    let mut retired_bytes = 0;
    for stretch in stretches(sources, core.options.segment_bytes_max)? {
        let id = SegmentId(next);
        next = next.checked_add(1).ok_or_else(|| Error::bug("all segment numbers are used"))?;
        let mut made = rewrite(
            io,
            paths,
            core.store,
            &*core.schema,
            stretch,
            id,
            &AllLive,
            Recompress::Raw,
            &mut |_| stop(),
        )?;
        for source in stretch {
            places.retire(source.id);
            retired_bytes += source.file.len()?;
        }
        for moved in std::mem::take(&mut made.moved) {
            places.add_move(moved.from, moved.to);
        }
        segments.push((stretch.iter().map(|source| source.id).collect(), made));
    }
    io.sync_dir(&paths.segments())?;
    places.sort_moves();
    let table = core.index.write_rebuilt_table(base, |_, value| {
        Ok(match value.kind {
            keys::AT_PLACE | keys::ENDED => {
                places.new_place(keys::place(value)).map(|place| keys::record_value(value.kind, place))
            }
            _ => Some(value),
        })
    })?;
    Ok(RewrittenFiles { segments, table, erased_runs: Vec::new(), retired_bytes })
}

/// Splits adjacent segments into stretches of at most so many bytes, if a single one has no more.
fn stretches(sources: &[Arc<Segment>], bytes_max: u64) -> Result<Vec<&[Arc<Segment>]>> {
    let mut stretches = Vec::new();
    let (mut begin, mut held) = (0, 0);
    for (at, source) in sources.iter().enumerate() {
        let bytes = source.file.len()?;
        if at > begin && held + bytes > bytes_max {
            stretches.push(sources.get(begin..at).unwrap_or_default());
            (begin, held) = (at, 0);
        }
        held += bytes;
    }
    stretches.push(sources.get(begin..).unwrap_or_default());
    Ok(stretches)
}
