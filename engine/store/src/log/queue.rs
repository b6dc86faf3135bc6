//! The queue in front of the writer: it fixes the order.
//!
//! A batch gets its seqno and its place the moment it is queued, under one lock; its caller then fills in what
//! follows from the place (checksums, sums) outside the lock, and the writer takes batches in the order of their
//! places ([`super::sequence`]). So a caller knows where its bytes will stand before they are written, and a group's
//! next part can point back at the one before. Groups never span segments: while a new segment is wanted, no group
//! that already has parts is handed out, and the segment changes at the first batch that leaves none of them behind.

use std::sync::Arc;

use crate::blob::Packer;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, Seqno, StoreId};
use crate::log::activity::{Activity, Counters};
use crate::log::batch::BatchBuf;
use crate::log::layout::{SEGMENT_HEADER_BYTES, Salt};
use crate::log::patience::Patience;
use crate::log::segments::lock;
use crate::log::sequence::Ordered;
use crate::log::sums::Sums;
use crate::log::ticket::{Completer, Failure, Ticket, ticket};
use crate::schema::RecordSchema;
use crate::sync::channel::Sender;
use crate::sync::{Condvar, Mutex, OnceLock};

/// When a commit counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Written and synced: survives power loss.
    #[default]
    Disk,
    /// Written: survives the end of the process, not of the machine.
    Process,
}

/// Open groups kept ready, for all namespaces together.
const IDLE_GROUPS_MAX: usize = 8;

/// Written batches whose room is kept.
const SPARE_BATCHES_MAX: usize = 32;

/// What the writer receives.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every job is a batch")]
pub enum Job {
    Batch(Queued),
    /// A batch whose caller went away after its place was fixed: nothing can follow it.
    Lost {
        from: Seqno,
        to: Seqno,
    },
    /// Answer once everything queued before is published.
    Barrier {
        at: Seqno,
        completer: Completer,
    },
    /// Seal what is before this segment; where it is wanted (`down`), hand the index over to be written down up to here.
    Seal {
        at: Seqno,
        segment: SegmentId,
        completer: Completer,
        down: bool,
    },
    /// Write and sync all, close cleanly, and end.
    Close {
        at: Seqno,
    },
}

impl Ordered for Job {
    fn from(&self) -> Seqno {
        match self {
            Self::Batch(queued) => queued.first_seqno,
            Self::Lost { from, .. } => *from,
            Self::Barrier { at, .. } | Self::Seal { at, .. } | Self::Close { at } => *at,
        }
    }

    fn to(&self) -> Seqno {
        match self {
            Self::Batch(queued) => Seqno(queued.first_seqno.0 + queued.batch.starts.len() as u64),
            Self::Lost { to, .. } => *to,
            Self::Barrier { at, .. } | Self::Seal { at, .. } | Self::Close { at } => *at,
        }
    }
}

/// A batch whose place is fixed, whole but for its header.
#[derive(Debug)]
pub struct Queued {
    pub batch: BatchBuf,
    pub sums: Sums,
    pub segment: SegmentId,
    pub offset: u64,
    pub first_seqno: Seqno,
    pub time_ns: u64,
    pub durability: Durability,
    pub completer: Completer,
}

/// The groups that one batch writes into, and where their last parts stand.
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
    /// Where a group's last part stands in the segment and how long it is; zeros without one.
    pub fn last_part(&self, group: u64) -> (u32, u32) {
        self.last_parts.iter().find(|(of, ..)| *of == group).map_or((0, 0), |(_, at, len)| (*at, *len))
    }
}

/// Open groups on loan to one batch. Dropped without being queued, they are closed for good: what was packed
/// into them never reaches the log.
#[derive(Debug)]
pub struct Lease {
    groups: Option<OpenGroups>,
    /// They have parts in the log already.
    continuing: bool,
    queue: Arc<Queue>,
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
            lock(&self.queue.order).continuing -= 1;
            self.queue.returned.notify_all();
        }
    }
}

#[derive(Debug)]
struct Order {
    segment: SegmentId,
    offset: u64,
    next_seqno: Seqno,
    /// A new segment is wanted.
    rotate: bool,
    /// Groups with parts in the active segment that are on loan.
    continuing: usize,
    idle: Vec<OpenGroups>,
    /// Only what closing itself writes is still taken.
    closing: bool,
    closed: bool,
}

/// Bytes on their way to the writer, bounded.
#[derive(Debug)]
struct Budget {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

impl Budget {
    fn take(&self, bytes: usize) {
        let mut used = lock(&self.used);
        // A batch larger than the whole budget goes alone.
        while *used > 0 && *used + bytes > self.limit {
            used = self.freed.wait(used).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *used += bytes;
    }

    fn give(&self, bytes: usize) {
        *lock(&self.used) -= bytes;
        self.freed.notify_all();
    }
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    order: Mutex<Order>,
    /// A lease came back.
    returned: Condvar,
    jobs: Sender<Job>,
    budget: Budget,
    pub counters: Counters,
    /// Batches that were written, to be filled again.
    spare: Mutex<Vec<BatchBuf>>,
    /// Of those who wait for tickets.
    patience: Arc<Patience>,
    failure: OnceLock<Failure>,
    store: StoreId,
    segment_bytes_max: u64,
    schema: Arc<dyn RecordSchema>,
}

/// Where a batch will stand. Whoever drops it without using it ends all writing, since nothing can follow.
#[derive(Debug)]
struct Position<'a> {
    queue: &'a Queue,
    segment: SegmentId,
    offset: u64,
    from: Seqno,
    to: Seqno,
    bytes: usize,
    used: bool,
}

impl Drop for Position<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.queue.budget.give(self.bytes);
            self.queue.send(Job::Lost { from: self.from, to: self.to });
        }
    }
}

impl Queue {
    #[expect(clippy::too_many_arguments, reason = "each says another thing; there is one caller")]
    pub fn new(
        jobs: Sender<Job>,
        store: StoreId,
        segment: SegmentId,
        offset: u64,
        next_seqno: Seqno,
        queue_bytes_max: usize,
        segment_bytes_max: u64,
        schema: Arc<dyn RecordSchema>,
    ) -> Self {
        Self {
            order: Mutex::new(Order {
                segment,
                offset,
                next_seqno,
                rotate: false,
                continuing: 0,
                idle: Vec::new(),
                closing: false,
                closed: false,
            }),
            returned: Condvar::new(),
            jobs,
            budget: Budget { limit: queue_bytes_max, used: Mutex::new(0), freed: Condvar::new() },
            counters: Counters::default(),
            spare: Mutex::default(),
            patience: Arc::default(),
            failure: OnceLock::new(),
            store,
            segment_bytes_max,
            schema,
        }
    }

    /// What the writer has done, and what waits for it.
    pub fn activity(&self) -> Activity {
        self.counters.read(*lock(&self.budget.used))
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

    /// Keeps the room of a batch that the writer is done with.
    pub fn take_back(&self, batch: BatchBuf) {
        let Some(batch) = batch.emptied() else { return };
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_BATCHES_MAX {
            spare.push(batch);
        }
    }

    /// Lends open groups of a namespace; `fresh` makes new ones.
    pub fn lease(self: &Arc<Self>, namespace: NamespaceId, fresh: impl FnOnce() -> Packer) -> Lease {
        let mut order = lock(&self.order);
        let found = order.idle.iter().rposition(|groups| groups.namespace == namespace);
        let groups = match found {
            Some(index) => {
                order.continuing += 1;
                order.idle.remove(index)
            }
            None => {
                drop(order);
                OpenGroups { packer: fresh(), last_parts: Vec::new(), segment: None, namespace }
            }
        };
        Lease { groups: Some(groups), continuing: found.is_some(), queue: self.clone() }
    }

    /// Fixes the batch's place and hands it to the writer. Gives the seqno of its first record.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure of the writer, `Unavailable` once the store is closed.
    pub fn submit(
        &self,
        mut batch: BatchBuf,
        part_places: &[(u64, u32, u32)],
        lease: Option<Lease>,
        durability: Durability,
        time_ns: u64,
        at_close: bool,
    ) -> Result<(Seqno, Ticket)> {
        self.check()?;
        let bytes = batch.bytes.len();
        self.budget.take(bytes);
        let mut position = match self.place(&batch, part_places, lease, at_close) {
            Ok(position) => position,
            Err(refused) => {
                self.budget.give(bytes);
                return Err(refused);
            }
        };
        let (segment, offset, first_seqno) = (position.segment, position.offset, position.from);
        let sums = batch
            .settle(&*self.schema, Salt::new(self.store, segment), offset, first_seqno)
            .map_err(|e| Error::bug(format!("a batch of our own does not parse: {e}")))?;
        let (completer, ticket) = ticket(&self.patience);
        position.used = true;
        self.send(Job::Batch(Queued {
            batch,
            sums,
            segment,
            offset,
            first_seqno,
            time_ns,
            durability,
            completer,
        }));
        Ok((first_seqno, ticket))
    }

    /// Fixes a batch's place: from here on the groups it was given can be lent to the next one.
    fn place(
        &self,
        batch: &BatchBuf,
        part_places: &[(u64, u32, u32)],
        mut lease: Option<Lease>,
        at_close: bool,
    ) -> Result<Position<'_>> {
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
            // A lease takes the lock when it is dropped.
            drop(guard);
            return Err(Error::new(ErrorKind::Unavailable, refused));
        }
        let own = usize::from(lease.as_ref().is_some_and(|lease| lease.continuing));
        if order.rotate && own == 0 && order.continuing == 0 {
            order.segment = SegmentId(order.segment.0 + 1);
            order.offset = SEGMENT_HEADER_BYTES;
            order.rotate = false;
        }
        let (segment, offset, from) = (order.segment, order.offset, order.next_seqno);
        let to = Seqno(from.0 + batch.starts.len() as u64);
        order.offset += bytes as u64;
        order.next_seqno = to;
        if order.offset >= self.segment_bytes_max && !order.rotate {
            order.rotate = true;
            order.idle.clear();
        }
        if let Some(mut groups) = lease.as_mut().and_then(|lease| lease.groups.take()) {
            order.continuing -= own;
            self.returned.notify_all();
            groups.segment = Some(segment);
            let new =
                part_places.iter().map(|(group, at, len)| (*group, (offset + u64::from(*at)) as u32, *len));
            groups.last_parts.retain(|(of, ..)| part_places.iter().all(|(group, ..)| group != of));
            groups.last_parts.extend(new);
            let open = groups.packer.open_groups();
            groups.last_parts.retain(|(group, ..)| open.contains(group));
            if !order.rotate {
                if order.idle.len() >= IDLE_GROUPS_MAX {
                    order.idle.remove(0);
                }
                order.idle.push(groups);
            }
        }
        Ok(Position { queue: self, segment, offset, from, to, bytes, used: false })
    }

    /// Fixes a batch's place and drops it.
    #[cfg(all(test, annals_shuttle))]
    pub fn lose(&self, batch: &BatchBuf) {
        self.budget.take(batch.bytes.len());
        drop(self.place(batch, &[], None, false));
    }

    /// Waits until everything queued so far is published; `visible` is what is published already.
    ///
    /// # Errors
    /// `Poisoned` where it never will be.
    pub fn barrier(&self, visible: Seqno) -> Result<()> {
        let waiting = {
            let order = lock(&self.order);
            if order.closed || order.next_seqno.0 == visible.0 + 1 {
                return Ok(());
            }
            let (completer, waiting) = ticket(&self.patience);
            self.send(Job::Barrier { at: order.next_seqno, completer });
            waiting
        };
        waiting.wait().map(drop)
    }

    /// Has the active segment sealed, unless it is empty. Waits until no batch
    /// holds a group that goes on in it; `stop` is asked now and then whether to wait on. Gives the first segment that is
    /// not sealed by this.
    ///
    /// # Errors
    /// `Poisoned`, `Unavailable`, what `stop` says.
    pub fn seal(&self, stop: &dyn Fn() -> Result<()>) -> Result<SegmentId> {
        let mut order = lock(&self.order);
        let sealed = order.segment;
        let is_done = |order: &Order| order.segment != sealed || order.offset == SEGMENT_HEADER_BYTES;
        if !is_done(&order) && !order.rotate {
            order.rotate = true;
            order.idle.clear();
        }
        while !is_done(&order) && order.continuing > 0 {
            stop()?;
            let waited = self.returned.wait_timeout(order, crate::log::patience::LOOK_EVERY);
            order = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        if order.closed {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        if !is_done(&order) {
            order.segment = SegmentId(order.segment.0 + 1);
            order.offset = SEGMENT_HEADER_BYTES;
            order.rotate = false;
        }
        let segment = order.segment;
        let (completer, waiting) = ticket(&self.patience);
        self.send(Job::Seal { at: order.next_seqno, segment, completer, down: false });
        drop(order);
        waiting.wait()?;
        Ok(segment)
    }

    /// Has the index written down up to the end of what was queued so far, all of it durable.
    ///
    /// # Errors
    /// `Poisoned`, `Unavailable`.
    pub fn write_down(&self) -> Result<()> {
        let order = lock(&self.order);
        if order.closed {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        let (completer, waiting) = ticket(&self.patience);
        self.send(Job::Seal { at: order.next_seqno, segment: order.segment, completer, down: true });
        drop(order);
        waiting.wait().map(drop)
    }

    /// Stops taking callers' batches. What was taken before is written yet; [`Queue::barrier`] waits for it.
    pub fn stop(&self) {
        lock(&self.order).closing = true;
    }

    /// Stops taking batches and tells the writer to finish.
    pub fn close(&self) {
        let mut order = lock(&self.order);
        if !std::mem::replace(&mut order.closed, true) {
            order.idle.clear();
            self.send(Job::Close { at: order.next_seqno });
        }
    }

    fn send(&self, job: Job) {
        // The writer only goes away after `close` or a panic; then the job's completer answers by being dropped.
        let _ = self.jobs.send(job);
    }

    /// The writer is done with these bytes.
    pub fn give_back(&self, bytes: usize) {
        self.budget.give(bytes);
    }

    /// Remembers why nothing can be written any more.
    pub fn poison(&self, failure: Failure) -> Failure {
        self.failure.get_or_init(|| failure).clone()
    }

    pub fn is_poisoned(&self) -> bool {
        self.failure.get().is_some()
    }

    /// # Errors
    /// `Poisoned` with the first cause.
    pub fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(first) => Err(Self::poisoned(first).error()),
            None => Ok(()),
        }
    }

    /// What later callers are told of the first failure.
    pub fn poisoned(first: &Failure) -> Failure {
        let message =
            format!("nothing can be written since this failed: {}; reopen the store", first.message);
        Failure { kind: ErrorKind::Poisoned, message: message.into() }
    }
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests;
