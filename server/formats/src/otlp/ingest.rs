//! Open traces, and the requests that add to them.
//!
//! Invariants: spans answered with 200 are on disk. A trace stays locked until its spans are on disk, so a
//! span is never reported as a duplicate before it is durable. Locks of several traces are taken in the order
//! of their ids. The number of traces and of span ids in memory is limited; the least recently used traces
//! are ended to stay within it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use annals::{Namespace, Ticket};

use super::logs;
use super::reply::{TraceReceipt, TraceRefusal};
use super::span::{self, MappedSpan, SpanId, TraceId};
use super::trace::{PARTS_MAX, Trace};
use super::wire::{TraceEncoding, decode_logs, decode_request};

/// Maximum number of open traces.
const TRACES_MAX: usize = 512;
/// Maximum number of span ids remembered over all traces.
const REMEMBERED_MAX: usize = 1 << 19;
/// Maximum number of traces of a request that are processed at a time; for so long, as many more are open.
const AT_ONCE: usize = TRACES_MAX;
/// A complete trace ends after this much inactivity.
const QUIET_NS: u64 = 30_000_000_000;
/// An incomplete trace ends after this much inactivity.
const IDLE_NS: u64 = 600_000_000_000;

/// Ingests traces into a namespace. A daemon has one per namespace: two would not see each other's open
/// traces.
#[derive(Debug)]
pub struct TraceIngest {
    space: Namespace,
    open: Mutex<HashMap<TraceId, Arc<TraceSlot>>>,
    /// Use counter, for least-recently-used eviction.
    uses: AtomicU64,
    limits: IngestLimits,
}

/// Limits on what is held in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct IngestLimits {
    pub(super) traces: usize,
    pub(super) remembered: usize,
}

/// The slot of a trace.
#[derive(Debug, Default)]
struct TraceSlot {
    used: AtomicU64,
    remembered: AtomicUsize,
    state: Mutex<TraceState>,
}

#[derive(Debug, Default)]
enum TraceState {
    #[default]
    New,
    Open(Box<Trace>),
    /// The slot was removed from the open traces; a new one replaces it.
    Removed,
}

impl TraceIngest {
    /// An ingest for this namespace with no open traces.
    pub fn new(space: Namespace) -> Self {
        Self::with_limits(space, IngestLimits { traces: TRACES_MAX, remembered: REMEMBERED_MAX })
    }

    pub(super) fn with_limits(space: Namespace, limits: IngestLimits) -> Self {
        Self { space, open: Mutex::default(), uses: AtomicU64::new(0), limits }
    }

    /// Ingests the spans of a request; `now_ns` is nanoseconds since 1970. Blocks until they are on disk.
    ///
    /// # Errors
    /// 400 if the body cannot be read, 413 if it is too large, 500 for a fault of the store. 503 if the store
    /// cannot write now: some spans may be stored, and the same request should be sent again.
    pub fn ingest_request(
        &self,
        body: &[u8],
        form: TraceEncoding,
        now_ns: u64,
    ) -> Result<TraceReceipt, TraceRefusal> {
        self.ingest(map_request(body, form)?, now_ns)
    }

    /// Ingests the events of model calls of a request with log records, as [`TraceIngest::ingest_request`].
    ///
    /// # Errors
    /// As [`TraceIngest::ingest_request`].
    pub fn ingest_logs(
        &self,
        body: &[u8],
        form: TraceEncoding,
        now_ns: u64,
    ) -> Result<TraceReceipt, TraceRefusal> {
        self.ingest(map_log_request(body, form)?, now_ns)
    }

    fn ingest(
        &self,
        (mut taken, traces): (TraceReceipt, SpansByTrace),
        now_ns: u64,
    ) -> Result<TraceReceipt, TraceRefusal> {
        let mut traces = traces.into_iter().peekable();
        while traces.peek().is_some() {
            self.evict_traces()?;
            let some: Vec<_> = traces.by_ref().take(AT_ONCE).collect();
            self.add_spans(some, &mut taken, now_ns)?;
        }
        Ok(taken)
    }

    /// Ends the runs of complete traces after some inactivity, and of incomplete ones after more. With `all`,
    /// ends every trace.
    ///
    /// # Errors
    /// Those of the store.
    pub fn end_quiet_traces(&self, now_ns: u64, all: bool) -> annals::Result<()> {
        let slots: Vec<(TraceId, Arc<TraceSlot>)> =
            self.open().iter().map(|(id, slot)| (*id, slot.clone())).collect();
        let mut first = Ok(());
        for (id, slot) in slots {
            let mut state = lock(&slot.state);
            let TraceState::Open(trace) = &*state else { continue };
            let quiet_ns = now_ns.saturating_sub(trace.seen_ns);
            let wait_ns = if trace.is_whole() { QUIET_NS } else { IDLE_NS };
            if all || quiet_ns >= wait_ns {
                let ended = self.end(&id, &slot, &mut state);
                first = first.and(ended);
            }
        }
        first
    }

    /// Adds spans to their traces, in the order of the trace ids.
    fn add_spans(
        &self,
        traces: Vec<(TraceId, Vec<MappedSpan>)>,
        taken: &mut TraceReceipt,
        now_ns: u64,
    ) -> Result<(), TraceRefusal> {
        let mut rest: BTreeMap<TraceId, Vec<MappedSpan>> = traces.into_iter().collect();
        while !rest.is_empty() {
            let slots: Vec<(TraceId, Arc<TraceSlot>)> = rest.keys().map(|id| (*id, self.slot(id))).collect();
            let mut held: Vec<(&TraceId, &Arc<TraceSlot>, MutexGuard<'_, TraceState>)> =
                slots.iter().map(|(id, slot)| (id, slot, lock(&slot.state))).collect();
            let (mut tickets, mut failed): (Vec<Ticket>, Option<annals::Error>) = (Vec::new(), None);
            // A run is begun only once all that is queued is written, so every trace is opened before any spans
            // are queued: otherwise each trace waits for the sync of the one before it.
            let mut opened = Vec::with_capacity(held.len());
            for (id, _, state) in &mut held {
                // The slot was ended between lookup and lock: the next round gets a new one.
                let spans = if matches!(**state, TraceState::Removed) { None } else { rest.remove(*id) };
                let is_open = match &spans {
                    Some(spans) => self.open_trace(id, state, spans, now_ns),
                    None => Ok(false),
                };
                opened.push((spans, is_open));
            }
            for ((_, slot, state), (spans, is_open)) in held.iter_mut().zip(opened) {
                let Some(spans) = spans else { continue };
                let added = is_open.and_then(|is_open| match &mut **state {
                    TraceState::Open(trace) if is_open => {
                        let more = trace.add_spans(spans, taken);
                        slot.remembered.store(trace.remembered(), Ordering::Relaxed);
                        more
                    }
                    _ => {
                        let count = spans.iter().map(|span| span.count).sum();
                        taken.reject(count, &format!("a trace has at most {PARTS_MAX} runs"));
                        Ok(Vec::new())
                    }
                });
                match added {
                    Ok(more) => tickets.extend(more),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            for ticket in tickets {
                if let Err(error) = ticket.wait() {
                    failed = failed.or(Some(error));
                }
            }
            for (id, slot, state) in &mut held {
                // It is unknown which of these were written: a resent span is compared with what is on disk.
                if failed.is_some() || matches!(**state, TraceState::New) {
                    self.release_slot(id, slot, state);
                }
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Opens the trace of a slot, which is begun if necessary. Returns false if the trace cannot have more runs.
    fn open_trace(
        &self,
        id: &TraceId,
        state: &mut TraceState,
        spans: &[MappedSpan],
        now_ns: u64,
    ) -> annals::Result<bool> {
        if let TraceState::Open(trace) = state
            && trace.is_full()
        {
            trace.end()?;
            *state = TraceState::New;
        }
        if matches!(state, TraceState::New)
            && let Some(trace) = Trace::begin(&self.space, *id, spans)?
        {
            *state = TraceState::Open(Box::new(trace));
        }
        let TraceState::Open(trace) = state else { return Ok(false) };
        trace.seen_ns = trace.seen_ns.max(now_ns);
        Ok(true)
    }

    /// The slot of a trace, created if necessary.
    fn slot(&self, id: &TraceId) -> Arc<TraceSlot> {
        let slot = self.open().entry(*id).or_default().clone();
        slot.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        slot
    }

    /// Ends the least recently used traces until the limits hold. Traces in use are skipped.
    fn evict_traces(&self) -> annals::Result<()> {
        let mut all: Vec<(TraceId, Arc<TraceSlot>)> = {
            let open = self.open();
            open.iter().map(|(id, slot)| (*id, slot.clone())).collect()
        };
        let mut remembered: usize = all.iter().map(|(_, slot)| slot.remembered.load(Ordering::Relaxed)).sum();
        let mut many = all.len();
        all.sort_by_key(|(_, slot)| slot.used.load(Ordering::Relaxed));
        for (id, slot) in &all {
            if many <= self.limits.traces && remembered <= self.limits.remembered {
                break;
            }
            let mut state = match slot.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            (many, remembered) =
                (many - 1, remembered.saturating_sub(slot.remembered.load(Ordering::Relaxed)));
            self.end(id, slot, &mut state)?;
        }
        Ok(())
    }

    /// Ends the run of a trace and removes its slot.
    fn end(&self, id: &TraceId, slot: &Arc<TraceSlot>, state: &mut TraceState) -> annals::Result<()> {
        let ended = match state {
            TraceState::Open(trace) => trace.end(),
            TraceState::New | TraceState::Removed => Ok(()),
        };
        self.release_slot(id, slot, state);
        ended
    }

    /// Removes the slot of a trace. A run that was not ended is left as it is on disk.
    fn release_slot(&self, id: &TraceId, slot: &Arc<TraceSlot>, state: &mut TraceState) {
        if let TraceState::Open(trace) = state {
            trace.abandon();
        }
        *state = TraceState::Removed;
        let mut open = self.open();
        if open.get(id).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            open.remove(id);
        }
    }

    /// Whether a trace is open.
    pub fn has_open_traces(&self) -> bool {
        !self.open().is_empty()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<TraceId, Arc<TraceSlot>>> {
        lock(&self.open)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps a request to the frames of its traces, without a store. The spans of a trace are ordered by start
/// time, parents before their children.
///
/// # Errors
/// As [`TraceIngest::ingest_request`].
pub(super) fn map_request(
    body: &[u8],
    form: TraceEncoding,
) -> Result<(TraceReceipt, SpansByTrace), TraceRefusal> {
    let request = decode_request(body, form)?;
    Ok(by_trace(|taken, take| span::map_spans(request, taken, take)))
}

/// As [`map_request`], for a request with log records.
///
/// # Errors
/// As [`TraceIngest::ingest_request`].
pub(super) fn map_log_request(
    body: &[u8],
    form: TraceEncoding,
) -> Result<(TraceReceipt, SpansByTrace), TraceRefusal> {
    let request = decode_logs(body, form)?;
    Ok(by_trace(|taken, take| logs::map_logs(request, taken, take)))
}

/// Sorts what a request maps to by trace.
fn by_trace(map: impl FnOnce(&mut TraceReceipt, &mut dyn FnMut(MappedSpan))) -> (TraceReceipt, SpansByTrace) {
    let mut taken = TraceReceipt::default();
    let mut traces = SpansByTrace::new();
    map(&mut taken, &mut |span| traces.entry(span.trace).or_default().push(span));
    for spans in traces.values_mut() {
        *spans = parents_first(std::mem::take(spans));
    }
    (taken, traces)
}

/// Processes a request completely except for the store, to test hostile input. Returns the number of frames.
///
/// # Errors
/// As [`TraceIngest::ingest_request`].
#[cfg(any(test, fuzzing))]
pub(crate) fn map_without_store(body: &[u8], form: TraceEncoding) -> Result<u64, TraceRefusal> {
    use super::edges::{SpanNote, SpanPlace, TraceSpans};
    let (_, traces) = map_request(body, form)?;
    let mut frames = 0;
    for spans in traces.into_values() {
        let mut known = TraceSpans::default();
        for (seq, span) in (1..).zip(spans) {
            let edges = known.edges(&span, 1, |part| part.to_string());
            let noted = SpanNote::new(&span, &edges);
            span.frame(edges.parent, edges.metadata)?;
            known.insert_frame(&noted, SpanPlace { part: 1, seq });
            frames += 1;
        }
    }
    Ok(frames)
}

/// Spans by trace.
pub(super) type SpansByTrace = BTreeMap<TraceId, Vec<MappedSpan>>;

fn parents_first(spans: Vec<MappedSpan>) -> Vec<MappedSpan> {
    let places: HashMap<SpanId, usize> = spans.iter().enumerate().map(|(at, span)| (span.span, at)).collect();
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    // Ordered by start time, then by arrival.
    let mut ready = BinaryHeap::new();
    for (at, span) in spans.iter().enumerate() {
        match span.parent.and_then(|parent| places.get(&parent)) {
            Some(parent) if *parent != at => children.entry(*parent).or_default().push(at),
            _ => ready.push(Reverse((span.started_ns, at))),
        }
    }
    let mut spans: Vec<Option<MappedSpan>> = spans.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(spans.len());
    while let Some(Reverse((_, at))) = ready.pop() {
        for child in children.remove(&at).into_iter().flatten() {
            if let Some(span) = &spans[child] {
                ready.push(Reverse((span.started_ns, child)));
            }
        }
        ordered.extend(spans[at].take());
    }
    // Spans that are their own ancestors.
    ordered.extend(spans.into_iter().flatten());
    ordered
}
