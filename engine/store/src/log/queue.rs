//! The queue in front of the writer: it fixes the order of batches.
//!
//! A batch gets its seqno and its place when it is queued, under one lock. Its caller then fills in what
//! depends on the place (checksums, sums) outside the lock, or leaves that to the writer. The writer takes
//! batches in the order of their places ([`super::sequence`]). So a caller knows the place of its bytes before
//! they are written, and a group's next part can point back at the previous one. Groups never span segments.
//! While a new segment is wanted, groups that already have parts are not leased. The segment changes at the
//! first batch when no leased group continues in it.

use std::sync::{Arc, Weak};

use crate::blob::Packer;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, Seqno, StoreId};
use crate::log::activity::{Activity, ActivityCounters};
use crate::log::batch::BatchBuf;
use crate::log::inbox::Inbox;
use crate::log::inline::{InlineWrite, SharedWriter};
use crate::log::layout::{SEGMENT_HEADER_BYTES, Salt};
use crate::log::room::{LogRoom, ReserveUse};
use crate::log::segments::lock;
use crate::log::sequence::LogOrdered;
use crate::log::spin_wait::SpinWait;
use crate::log::sums::BatchSums;
use crate::log::ticket::{Completer, Ticket, WriteFailure, new_ticket};
use crate::schema::RecordSchema;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, OnceLock, rank};

/// When a commit counts as done; the weakest level first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Written: survives the death of the process, but not of the machine.
    Process,
    /// Written and synced: survives power loss.
    #[default]
    Disk,
    /// As `Disk`, and noted outside of the log: if the commit is damaged later, it cannot be taken for a write
    /// that a crash tore. A commit with `Disk` has that within about a second. Costs a second sync.
    Confirmed,
}

/// Maximum idle open groups, for all namespaces together.
const IDLE_GROUPS_MAX: usize = 8;
/// Callers for each core who may wait for one sync while one of them spins: with more, the core is worth more to
/// another.
const SPINNING_CALLERS_A_CORE: usize = 2;

/// A segment with more bytes than this is not worth rewriting for a few raw bodies at its end.
const FRESH_BYTES_MAX: u64 = 4 << 20;

/// Maximum written batches kept for reuse, and bytes of their memory.
const SPARE_BATCHES_MAX: usize = 32;
const SPARE_BYTES_MAX: usize = 8 << 20;

/// A job for the writer.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every job is a batch")]
pub enum WriterJob {
    Batch(QueuedBatch),
    /// A batch whose caller went away after its place was fixed: nothing can follow it.
    Lost {
        from: Seqno,
        to: Seqno,
    },
    /// Answers after everything queued before is published.
    Barrier {
        at: Seqno,
        completer: Completer,
    },
    /// Seals the segments before this one. With `flush_index`, also starts flushing the index up to this
    /// point.
    Seal {
        at: Seqno,
        segment: SegmentId,
        completer: Completer,
        flush_index: bool,
    },
    /// Writes and syncs everything, closes cleanly, and ends the writer.
    Close {
        at: Seqno,
    },
}

impl LogOrdered for WriterJob {
    fn first_seqno(&self) -> Seqno {
        match self {
            Self::Batch(queued) => queued.first_seqno,
            Self::Lost { from, .. } => *from,
            Self::Barrier { at, .. } | Self::Seal { at, .. } | Self::Close { at } => *at,
        }
    }

    fn end_seqno(&self) -> Seqno {
        match self {
            Self::Batch(queued) => Seqno(queued.first_seqno.0 + queued.batch.starts.len() as u64),
            Self::Lost { to, .. } => *to,
            Self::Barrier { at, .. } | Self::Seal { at, .. } | Self::Close { at } => *at,
        }
    }
}

/// A batch with a fixed place, complete except for its header and what `sums` says.
#[derive(Debug)]
pub struct QueuedBatch {
    pub batch: BatchBuf,
    /// `None` if the thread that writes the batch fills in its checksums and sums it up.
    pub sums: Option<BatchSums>,
    pub segment: SegmentId,
    pub offset: u64,
    pub first_seqno: Seqno,
    pub time_ns: u64,
    pub durability: Durability,
    pub completer: Completer,
}

/// Which thread writes a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteThread {
    /// The writer's: the caller does not wait for the ticket at once.
    Writer,
    /// The caller's while it waits alone, else the writer's, which makes one sync for several callers.
    Either,
    /// The caller's, unless it polls the ticket: it has already gathered the writes of many.
    Caller,
}

/// How a batch is queued.
#[derive(Debug, Clone, Copy)]
pub struct SubmitTerms {
    pub durability: Durability,
    pub time_ns: u64,
    /// Accepted even while the store closes.
    pub at_close: bool,
    pub write_thread: WriteThread,
}

/// The open groups that one batch writes into, and the places of their last parts.
#[derive(Debug)]
pub struct OpenGroups {
    pub packer: Packer,
    /// Place of each open group's last part: group, offset in the segment, bytes.
    last_parts: Vec<(u64, u32, u32)>,
    /// The segment that holds their parts.
    segment: Option<SegmentId>,
    namespace: NamespaceId,
}

impl OpenGroups {
    /// Offset in the segment and length of a group's last part; zeros if it has none.
    pub fn last_part(&self, group: u64) -> (u32, u32) {
        self.last_parts.iter().find(|(of, ..)| *of == group).map_or((0, 0), |(_, at, len)| (*at, *len))
    }
}

/// Open groups leased to one batch. If the lease is dropped before it is queued, the groups are closed: bytes
/// packed into them never reach the log.
#[derive(Debug)]
pub struct Lease {
    groups: Option<OpenGroups>,
    /// Whether the groups already have parts in the log.
    continuing: bool,
    queue: Arc<WriteQueue>,
}

impl Lease {
    /// The groups themselves.
    pub fn groups(&mut self) -> Result<&mut OpenGroups> {
        self.groups.as_mut().ok_or_else(|| Error::bug("a lease was used after it was queued"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.groups.is_some() && self.continuing {
            let mut order = lock(&self.queue.order);
            order.continuing_leases -= 1;
            if order.lease_waiters > 0 {
                self.queue.returned.notify_all();
            }
        }
    }
}

#[derive(Debug)]
struct QueueOrder {
    segment: SegmentId,
    offset: u64,
    next_seqno: Seqno,
    /// Position in the segment up to which batches may be placed: its file has disk space that far.
    allocated: u64,
    /// Whether a new segment is wanted.
    wants_rotation: bool,
    /// Number of leases of groups with parts in the active segment.
    continuing_leases: usize,
    /// Threads that wait until those leases end.
    lease_waiters: usize,
    idle: Vec<OpenGroups>,
    /// Only batches of the close itself are still accepted.
    closing: bool,
    closed: bool,
}

impl QueueOrder {
    /// Continues in the next segment. `allocates`: batches need space there.
    fn begin_next(&mut self, allocates: bool) {
        self.segment = SegmentId(self.segment.0 + 1);
        self.offset = SEGMENT_HEADER_BYTES;
        self.allocated = if allocates { SEGMENT_HEADER_BYTES } else { u64::MAX };
        self.wants_rotation = false;
    }
}

/// Bounds the bytes on their way to the writer.
#[derive(Debug)]
struct ByteBudget {
    limit: usize,
    used: Mutex<UsedBytes, { rank::QUEUE_BUDGET }>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct UsedBytes {
    bytes: usize,
    /// Threads that wait for room.
    waiters: usize,
}

impl ByteBudget {
    /// Calls `before_wait` if it has to wait.
    fn acquire(&self, bytes: usize, before_wait: impl FnOnce()) {
        let mut used = lock(&self.used);
        // A batch larger than the whole budget goes alone.
        let is_full = |used: &UsedBytes| used.bytes > 0 && used.bytes + bytes > self.limit;
        if is_full(&used) {
            drop(used);
            before_wait();
            used = lock(&self.used);
        }
        while is_full(&used) {
            used.waiters += 1;
            used = self.freed.wait(used).unwrap_or_else(std::sync::PoisonError::into_inner);
            used.waiters -= 1;
        }
        used.bytes += bytes;
    }

    fn release(&self, bytes: usize) {
        let mut used = lock(&self.used);
        used.bytes -= bytes;
        if used.waiters > 0 {
            self.freed.notify_all();
        }
    }
}

/// Fixes the order of batches and hands them to the writer.
#[derive(Debug)]
pub struct WriteQueue {
    order: Mutex<QueueOrder, { rank::QUEUE_ORDER }>,
    /// Signalled when a lease ends.
    returned: Condvar,
    pub inbox: Inbox<WriterJob>,
    /// Set once the writer's thread runs; dead once it is gone.
    pub writer: OnceLock<Weak<SharedWriter>>,
    /// How many commits the next sync probably serves: those of the last one, and those that waited after it. One
    /// caller alone may sync itself.
    pub sync_group: AtomicUsize,
    budget: ByteBudget,
    pub counters: ActivityCounters,
    /// Written batches, for reuse.
    spare: Mutex<Vec<BatchBuf>, { rank::SPARE_BUFFERS }>,
    /// Shared by all waiters for tickets.
    spin_wait: Arc<SpinWait>,
    /// The largest group of callers who wait for one sync of whom one spins.
    spinning_group_max: usize,
    failure: OnceLock<WriteFailure>,
    /// Unset: batches are placed whether the disk has room or not.
    room: OnceLock<LogRoom>,
    store: StoreId,
    segment_bytes_max: u64,
    schema: Arc<dyn RecordSchema>,
}

/// The fixed place of a batch. Dropping it unused ends all writing, because nothing can follow.
#[derive(Debug)]
struct QueuePosition<'a> {
    queue: &'a WriteQueue,
    segment: SegmentId,
    offset: u64,
    from: Seqno,
    to: Seqno,
    bytes: usize,
    used: bool,
}

/// The outcome of an attempt to place a batch.
#[derive(Debug)]
enum Placing<'a> {
    Placed(QueuePosition<'a>),
    /// The segment's file needs disk space up to `end` first.
    NeedsRoom {
        segment: SegmentId,
        end: u64,
    },
    /// The next segment must be begun first, so that space can be allocated in it.
    NeedsSegment,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.queue.budget.release(self.bytes);
            self.queue.send(WriterJob::Lost { from: self.from, to: self.to });
        }
    }
}

impl WriteQueue {
    pub fn new(
        store: StoreId,
        segment: SegmentId,
        offset: u64,
        next_seqno: Seqno,
        queue_bytes_max: usize,
        segment_bytes_max: u64,
        schema: Arc<dyn RecordSchema>,
    ) -> Self {
        Self {
            order: Mutex::new(QueueOrder {
                segment,
                offset,
                next_seqno,
                allocated: u64::MAX,
                wants_rotation: false,
                continuing_leases: 0,
                lease_waiters: 0,
                idle: Vec::new(),
                closing: false,
                closed: false,
            }),
            returned: Condvar::new(),
            inbox: Inbox::default(),
            writer: OnceLock::new(),
            sync_group: AtomicUsize::new(1),
            budget: ByteBudget { limit: queue_bytes_max, used: Mutex::default(), freed: Condvar::new() },
            counters: ActivityCounters::default(),
            spare: Mutex::default(),
            spin_wait: Arc::default(),
            spinning_group_max: SPINNING_CALLERS_A_CORE * crate::sync::cores(),
            failure: OnceLock::new(),
            room: OnceLock::new(),
            store,
            segment_bytes_max,
            schema,
        }
    }

    /// From now on a batch is placed only where the disk has room for it.
    pub fn set_room(&self, room: LogRoom) {
        let mut order = lock(&self.order);
        if self.room.set(room).is_ok() {
            order.allocated = order.offset;
        }
    }

    pub fn room(&self) -> Option<&LogRoom> {
        self.room.get()
    }

    /// From now on batches may use the reserve of disk space, until the result is dropped.
    pub fn use_reserve(&self) -> Option<ReserveUse<'_>> {
        self.room.get().map(LogRoom::use_reserve)
    }

    /// The writer's counters and the bytes that wait for it.
    pub fn activity(&self) -> Activity {
        self.counters.read(lock(&self.budget.used).bytes)
    }

    /// An empty batch of a namespace.
    pub fn batch(&self, namespace: NamespaceId) -> BatchBuf {
        match lock(&self.spare).pop() {
            Some(mut batch) => {
                batch.namespace = namespace;
                batch
            }
            None => BatchBuf::new(namespace),
        }
    }

    /// Keeps a written batch for reuse.
    pub fn recycle(&self, batch: BatchBuf) {
        let Some(batch) = batch.into_spare() else { return };
        let mut spare = lock(&self.spare);
        let kept: usize = spare.iter().map(BatchBuf::capacity).sum();
        if spare.len() < SPARE_BATCHES_MAX && kept + batch.capacity() <= SPARE_BYTES_MAX {
            spare.push(batch);
        }
    }

    /// Leases open groups of a namespace; `fresh` makes a packer if none is idle.
    pub fn lease(self: &Arc<Self>, namespace: NamespaceId, fresh: impl FnOnce() -> Packer) -> Lease {
        let mut order = lock(&self.order);
        let found = order.idle.iter().rposition(|groups| groups.namespace == namespace);
        let groups = match found {
            Some(index) => {
                order.continuing_leases += 1;
                order.idle.remove(index)
            }
            None => {
                drop(order);
                OpenGroups { packer: fresh(), last_parts: Vec::new(), segment: None, namespace }
            }
        };
        Lease { groups: Some(groups), continuing: found.is_some(), queue: self.clone() }
    }

    /// Fixes the batch's place and hands it to the writer. Returns the seqno of its first record.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure of the writer, `Unavailable` after the store is closed or if the
    /// disk is full. Then nothing of the batch was written, and a later batch may succeed.
    pub fn submit(
        self: &Arc<Self>,
        mut batch: BatchBuf,
        part_places: &[(u64, u32, u32)],
        mut lease: Option<Lease>,
        terms: SubmitTerms,
    ) -> Result<(Seqno, Ticket)> {
        let SubmitTerms { durability, time_ns, at_close, write_thread } = terms;
        self.check_poisoned()?;
        let bytes = batch.bytes.len();
        // The bytes in the way may be those of a caller who has not waited for its ticket yet.
        self.budget.acquire(bytes, || self.inbox.ring());
        let mut position = loop {
            let placing = self.fix_place(&batch, part_places, &mut lease, at_close);
            let prepared = placing.and_then(|placing| match placing {
                Placing::Placed(position) => Ok(Some(position)),
                Placing::NeedsRoom { segment, end } => self.make_room(segment, end).map(|()| None),
                Placing::NeedsSegment => self.begin_segment().map(|()| None),
            });
            match prepared {
                Ok(Some(position)) => break position,
                Ok(None) => {}
                Err(refused) => {
                    self.budget.release(bytes);
                    return Err(refused);
                }
            }
        };
        let (segment, offset, first_seqno) = (position.segment, position.offset, position.from);
        // A caller who gathered the writes of many has other work: the thread that writes the batch sums it up.
        let sums = match write_thread {
            WriteThread::Caller => None,
            _ => Some(self.stamp_and_sum(&mut batch, segment, offset, first_seqno)?),
        };
        let group = match durability {
            Durability::Process => 1,
            _ => self.sync_group.load(Ordering::Relaxed),
        };
        // Where many wait for a sync, one who spins keeps the others from its core.
        let spins = group <= self.spinning_group_max;
        let (completer, ticket) = new_ticket(spins.then(|| self.spin_wait.clone()));
        position.used = true;
        let job = WriterJob::Batch(QueuedBatch {
            batch,
            sums,
            segment,
            offset,
            first_seqno,
            time_ns,
            durability,
            completer,
        });
        let is_inline = match write_thread {
            WriteThread::Writer => false,
            WriteThread::Either => group <= 1,
            WriteThread::Caller => true,
        };
        self.inbox.send(job, !is_inline);
        let ticket = if is_inline { ticket.with_inline(InlineWrite::new(self)) } else { ticket };
        Ok((first_seqno, ticket))
    }

    /// Fills in what depends on a batch's place.
    pub fn stamp_and_sum(
        &self,
        batch: &mut BatchBuf,
        segment: SegmentId,
        offset: u64,
        first_seqno: Seqno,
    ) -> Result<BatchSums> {
        batch
            .stamp_and_sum(&*self.schema, Salt::new(self.store, segment), offset, first_seqno)
            .map_err(|e| Error::bug(format!("a batch of our own does not parse: {e}")))
    }

    /// Fixes a batch's place. From then on the groups of its lease can be leased again.
    fn fix_place(
        &self,
        batch: &BatchBuf,
        part_places: &[(u64, u32, u32)],
        lease: &mut Option<Lease>,
        at_close: bool,
    ) -> Result<Placing<'_>> {
        let bytes = batch.bytes.len();
        let mut guard = lock(&self.order);
        let order = &mut *guard;
        let refused = if order.closed || (order.closing && !at_close) {
            Some("the store is closed: open it again")
        } else if order.offset + bytes as u64 > u64::from(u32::MAX) {
            Some(
                "the log segment is full and a batch that is still open keeps it from being sealed: commit or drop it",
            )
        } else {
            None
        };
        if let Some(refused) = refused {
            return Err(Error::new(ErrorKind::Unavailable, refused));
        }
        let own = usize::from(lease.as_ref().is_some_and(|lease| lease.continuing));
        if order.wants_rotation && own == 0 && order.continuing_leases == 0 {
            match self.room.get() {
                None => order.begin_next(false),
                Some(room) if room.can_begin_segment() => return Ok(Placing::NeedsSegment),
                // The disk is full: the old segment may still have space.
                Some(_) => {}
            }
        }
        let end = order.offset + bytes as u64;
        if end > order.allocated {
            return Ok(Placing::NeedsRoom { segment: order.segment, end });
        }
        let (segment, offset, from) = (order.segment, order.offset, order.next_seqno);
        let to = Seqno(from.0 + batch.starts.len() as u64);
        order.offset += bytes as u64;
        order.next_seqno = to;
        if order.offset >= self.segment_bytes_max && !order.wants_rotation {
            order.wants_rotation = true;
            order.idle.clear();
        }
        if let Some(mut groups) = lease.as_mut().and_then(|lease| lease.groups.take()) {
            order.continuing_leases -= own;
            if order.lease_waiters > 0 {
                self.returned.notify_all();
            }
            groups.segment = Some(segment);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the batch ends within 32 bits: checked above"
            )]
            let new =
                part_places.iter().map(|(group, at, len)| (*group, (offset + u64::from(*at)) as u32, *len));
            groups.last_parts.retain(|(of, ..)| part_places.iter().all(|(group, ..)| group != of));
            groups.last_parts.extend(new);
            let open = groups.packer.open_groups();
            groups.last_parts.retain(|(group, ..)| open.contains(group));
            if !order.wants_rotation {
                if order.idle.len() >= IDLE_GROUPS_MAX {
                    order.idle.remove(0);
                }
                order.idle.push(groups);
            }
        }
        Ok(Placing::Placed(QueuePosition { queue: self, segment, offset, from, to, bytes, used: false }))
    }

    /// Seals the active segment, unless another caller has, or a batch holds a group that continues in it.
    fn begin_segment(&self) -> Result<()> {
        let waiting = {
            let mut order = lock(&self.order);
            if !order.wants_rotation || order.continuing_leases > 0 || order.closed {
                return Ok(());
            }
            order.begin_next(true);
            let (completer, waiting) = new_ticket(Some(self.spin_wait.clone()));
            let (at, segment) = (order.next_seqno, order.segment);
            self.send(WriterJob::Seal { at, segment, completer, flush_index: false });
            waiting
        };
        waiting.wait().map(drop)
    }

    /// Allocates disk space for a segment up to `end`.
    fn make_room(&self, segment: SegmentId, end: u64) -> Result<()> {
        let Some(room) = self.room.get() else { return Ok(()) };
        if let Some(allocated) = room.allocate(segment, end)? {
            let mut order = lock(&self.order);
            if order.segment == segment {
                order.allocated = order.allocated.max(allocated);
            }
            return Ok(());
        }
        // The writer begins the segment after the batches before it.
        let waiting = {
            let order = lock(&self.order);
            if order.closed {
                return Ok(());
            }
            let (completer, waiting) = new_ticket(Some(self.spin_wait.clone()));
            self.send(WriterJob::Barrier { at: order.next_seqno, completer });
            waiting
        };
        waiting.wait().map(drop)
    }

    /// Fixes a batch's place and drops it.
    #[cfg(all(test, annals_shuttle))]
    pub fn drop_after_placing(&self, batch: &BatchBuf) {
        self.budget.acquire(batch.bytes.len(), || ());
        drop(self.fix_place(batch, &[], &mut None, false));
    }

    /// Waits until everything queued so far is published. `visible` is the last seqno already published.
    ///
    /// # Errors
    /// `Poisoned` if it never will be.
    pub fn barrier(&self, visible: Seqno) -> Result<()> {
        let waiting = {
            let order = lock(&self.order);
            if order.closed || order.next_seqno.0 == visible.0 + 1 {
                return Ok(());
            }
            self.send_barrier(&order)
        };
        waiting.wait().map(drop)
    }

    /// A ticket for everything queued so far: it is answered once all of it is published.
    pub fn submit_barrier(&self) -> Ticket {
        self.send_barrier(&lock(&self.order))
    }

    fn send_barrier(&self, order: &QueueOrder) -> Ticket {
        let (completer, waiting) = new_ticket(Some(self.spin_wait.clone()));
        self.send(WriterJob::Barrier { at: order.next_seqno, completer });
        waiting
    }

    /// Seals the active segment, unless it is empty. Waits until no batch holds a group that continues in it;
    /// calls `stop` at intervals to check whether to give up. Returns the first segment that this call does
    /// not seal.
    ///
    /// # Errors
    /// `Poisoned`, `Unavailable`, the error of `stop`.
    pub fn seal_active(&self, stop: &dyn Fn() -> Result<()>) -> Result<SegmentId> {
        let mut order = lock(&self.order);
        let sealed = order.segment;
        let is_done = |order: &QueueOrder| order.segment != sealed || order.offset == SEGMENT_HEADER_BYTES;
        if !is_done(&order) && !order.wants_rotation {
            order.wants_rotation = true;
            order.idle.clear();
        }
        while !is_done(&order) && order.continuing_leases > 0 {
            stop()?;
            order.lease_waiters += 1;
            let waited = self.returned.wait_timeout(order, crate::log::spin_wait::STOP_CHECK_INTERVAL);
            order = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            order.lease_waiters -= 1;
        }
        if order.closed {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        if !is_done(&order) {
            order.begin_next(self.room.get().is_some());
        }
        let segment = order.segment;
        let (completer, waiting) = new_ticket(Some(self.spin_wait.clone()));
        self.send(WriterJob::Seal { at: order.next_seqno, segment, completer, flush_index: false });
        drop(order);
        waiting.wait()?;
        Ok(segment)
    }

    /// Starts flushing the index up to the end of what was queued so far, all of it durable.
    ///
    /// # Errors
    /// `Poisoned`, `Unavailable`.
    pub fn flush_index(&self) -> Result<()> {
        let order = lock(&self.order);
        if order.closed {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        let (completer, waiting) = new_ticket(Some(self.spin_wait.clone()));
        self.send(WriterJob::Seal {
            at: order.next_seqno,
            segment: order.segment,
            completer,
            flush_index: true,
        });
        drop(order);
        waiting.wait().map(drop)
    }

    /// The segment in which the next batch stands, unless it begins another one.
    pub fn active_segment(&self) -> SegmentId {
        lock(&self.order).segment
    }

    /// The active segment, and where its next batch stands.
    pub fn active_end(&self) -> (SegmentId, u64) {
        let order = lock(&self.order);
        (order.segment, order.offset)
    }

    /// Whether the active segment is short. If it is not, the next batch that can begins another.
    pub fn has_fresh_segment(&self) -> bool {
        let mut order = lock(&self.order);
        let is_fresh = order.offset <= FRESH_BYTES_MAX;
        if !is_fresh && !order.wants_rotation {
            order.wants_rotation = true;
            order.idle.clear();
        }
        is_fresh
    }

    /// Stops accepting batches of callers. Accepted batches are still written; [`WriteQueue::barrier`] waits
    /// for them.
    pub fn stop_accepting(&self) {
        lock(&self.order).closing = true;
    }

    /// Stops accepting batches and tells the writer to finish.
    pub fn close(&self) {
        let mut order = lock(&self.order);
        if !std::mem::replace(&mut order.closed, true) {
            order.idle.clear();
            self.send(WriterJob::Close { at: order.next_seqno });
        }
    }

    fn send(&self, job: WriterJob) {
        // The writer ends only after `close` or a panic. Then dropping the job's completer answers its
        // waiter.
        self.inbox.send(job, true);
    }

    /// Releases the budget of bytes that the writer has handled.
    pub fn release_bytes(&self, bytes: usize) {
        self.budget.release(bytes);
    }

    /// Stores the first failure, after which nothing can be written; returns that first failure.
    pub fn poison(&self, failure: WriteFailure) -> WriteFailure {
        self.failure.get_or_init(|| failure).clone()
    }

    pub fn is_poisoned(&self) -> bool {
        self.failure.get().is_some()
    }

    /// # Errors
    /// `Poisoned` with the first cause.
    pub fn check_poisoned(&self) -> Result<()> {
        match self.failure.get() {
            Some(first) => Err(Self::poisoned_failure(first).to_error()),
            None => Ok(()),
        }
    }

    /// The error for callers after the first failure.
    pub fn poisoned_failure(first: &WriteFailure) -> WriteFailure {
        let message =
            format!("nothing can be written since this failed: {}; reopen the store", first.message);
        WriteFailure { kind: ErrorKind::Poisoned, message: message.into() }
    }
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests;
