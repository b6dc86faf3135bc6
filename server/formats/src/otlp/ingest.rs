//! Traces that are open, and what comes for them.
//!
//! Invariants: what was answered with 200 is on disk; so nobody is told that a span is there already before whoever brought it has seen it written (a trace is
//! locked until then). Locks of several traces are taken in the order of their ids. What is held is bounded: so many traces, so many span ids;
//! those that were used least recently are ended for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use annals::{Namespace, Ticket};

use super::reply::{Refused, Taken};
use super::span::{self, Mapped, SpanId, TraceId};
use super::trace::{PARTS_MAX, Trace};
use super::wire::{Form, parse};

/// Traces that are open at a time.
const TRACES_MAX: usize = 512;
/// Span ids that are remembered of all of them.
const REMEMBERED_MAX: usize = 1 << 19;
/// Traces of a request that are worked on at a time.
const AT_ONCE: usize = 64;
/// A whole trace that is quiet for so long has ended.
const QUIET_NS: u64 = 30_000_000_000;
/// The same for one that is not whole.
const IDLE_NS: u64 = 600_000_000_000;

/// Takes traces into a namespace. One for a daemon and namespace: two would not know of each other's open traces.
#[derive(Debug)]
pub struct Ingest {
    space: Namespace,
    open: Mutex<HashMap<TraceId, Arc<Slot>>>,
    /// Counts uses, so that the least recent is known.
    uses: AtomicU64,
    limits: Limits,
}

/// How much is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) traces: usize,
    pub(super) remembered: usize,
}

/// A trace's place.
#[derive(Debug, Default)]
struct Slot {
    used: AtomicU64,
    remembered: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    Open(Box<Trace>),
    /// It is no longer among those that are open: another slot is.
    Gone,
}

impl Ingest {
    /// Into this namespace, with no trace open.
    pub fn new(space: Namespace) -> Self {
        Self::with(space, Limits { traces: TRACES_MAX, remembered: REMEMBERED_MAX })
    }

    pub(super) fn with(space: Namespace, limits: Limits) -> Self {
        Self { space, open: Mutex::default(), uses: AtomicU64::new(0), limits }
    }

    /// Takes a request's spans; `now_ns` is nanoseconds since 1970. What it holds is on disk when this returns; blocks until then.
    ///
    /// # Errors
    /// 400 for a body that cannot be read, 413 for one that is too much, 503 where the store cannot take it now: then some of it may have been taken, and
    /// sending the same again is right. 500 for what is wrong with the store.
    pub fn traces(&self, body: &[u8], form: Form, now_ns: u64) -> Result<Taken, Refused> {
        let (mut taken, traces) = mapped(body, form)?;
        let mut traces = traces.into_iter().peekable();
        while traces.peek().is_some() {
            self.make_room()?;
            let some: Vec<_> = traces.by_ref().take(AT_ONCE).collect();
            self.take(some, &mut taken, now_ns)?;
        }
        Ok(taken)
    }

    /// Ends the runs of traces that are whole and have been quiet for a while; of others after longer. With `all`, of every trace.
    ///
    /// # Errors
    /// Those of the store.
    pub fn settle(&self, now_ns: u64, all: bool) -> annals::Result<()> {
        let slots: Vec<(TraceId, Arc<Slot>)> =
            self.open().iter().map(|(id, slot)| (*id, slot.clone())).collect();
        let mut first = Ok(());
        for (id, slot) in slots {
            let mut state = lock(&slot.state);
            let State::Open(trace) = &*state else { continue };
            let quiet_ns = now_ns.saturating_sub(trace.seen_ns);
            let wait_ns = if trace.is_whole() { QUIET_NS } else { IDLE_NS };
            if all || quiet_ns >= wait_ns {
                let ended = self.end(&id, &slot, &mut state);
                first = first.and(ended);
            }
        }
        first
    }

    /// Adds spans to their traces, which come in the order of their ids.
    fn take(
        &self,
        traces: Vec<(TraceId, Vec<Mapped>)>,
        taken: &mut Taken,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let mut rest: BTreeMap<TraceId, Vec<Mapped>> = traces.into_iter().collect();
        while !rest.is_empty() {
            let slots: Vec<(TraceId, Arc<Slot>)> = rest.keys().map(|id| (*id, self.slot(id))).collect();
            let mut held: Vec<(&TraceId, &Arc<Slot>, MutexGuard<'_, State>)> =
                slots.iter().map(|(id, slot)| (id, slot, lock(&slot.state))).collect();
            let (mut tickets, mut failed): (Vec<Ticket>, Option<annals::Error>) = (Vec::new(), None);
            for (id, slot, state) in &mut held {
                // It was ended between the look and the lock: the next round finds another.
                if matches!(**state, State::Gone) {
                    continue;
                }
                let Some(spans) = rest.remove(*id) else { continue };
                let added = self.opened(id, state, &spans, now_ns).and_then(|trace| match trace {
                    Some(trace) => {
                        let more = trace.add(spans, taken);
                        slot.remembered.store(trace.remembered(), Ordering::Relaxed);
                        more
                    }
                    None => {
                        taken.reject(spans.len(), &format!("a trace has at most {PARTS_MAX} runs"));
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
                // What became of these is not known for sure: whoever sends them again finds what is on disk.
                if failed.is_some() || matches!(**state, State::New) {
                    self.leave(id, slot, state);
                }
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The trace of a place, begun where it is not open; none where it can have no more runs.
    fn opened<'a>(
        &self,
        id: &TraceId,
        state: &'a mut State,
        spans: &[Mapped],
        now_ns: u64,
    ) -> annals::Result<Option<&'a mut Trace>> {
        if let State::Open(trace) = state
            && trace.is_full()
        {
            trace.end()?;
            *state = State::New;
        }
        if matches!(state, State::New)
            && let Some(trace) = Trace::begin(&self.space, *id, spans)?
        {
            *state = State::Open(Box::new(trace));
        }
        let State::Open(trace) = state else { return Ok(None) };
        trace.seen_ns = trace.seen_ns.max(now_ns);
        Ok(Some(&mut **trace))
    }

    /// The place of a trace, made where there is none.
    fn slot(&self, id: &TraceId) -> Arc<Slot> {
        let slot = self.open().entry(*id).or_default().clone();
        slot.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        slot
    }

    /// Ends traces that were used least recently, until what is held is within its limits. One that is in use is passed over.
    fn make_room(&self) -> annals::Result<()> {
        let mut all: Vec<(TraceId, Arc<Slot>)> = {
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

    /// Ends a trace's run, and lets its place go.
    fn end(&self, id: &TraceId, slot: &Arc<Slot>, state: &mut State) -> annals::Result<()> {
        let ended = match state {
            State::Open(trace) => trace.end(),
            State::New | State::Gone => Ok(()),
        };
        self.leave(id, slot, state);
        ended
    }

    /// Lets a trace's place go. A run that was not ended is left as it is on disk.
    fn leave(&self, id: &TraceId, slot: &Arc<Slot>, state: &mut State) {
        if let State::Open(trace) = state {
            trace.give_up();
        }
        *state = State::Gone;
        let mut open = self.open();
        if open.get(id).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            open.remove(id);
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<TraceId, Arc<Slot>>> {
        lock(&self.open)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a request says, as the frames of traces; without a store. Those of a trace stand in the order in which they began, parents before their children.
///
/// # Errors
/// As [`Ingest::traces`].
pub(super) fn mapped(body: &[u8], form: Form) -> Result<(Taken, Traces), Refused> {
    let mut taken = Taken::default();
    let mut traces = Traces::new();
    span::each(parse(body, form)?, &mut taken, |span| traces.entry(span.trace).or_default().push(span));
    for spans in traces.values_mut() {
        *spans = in_order(std::mem::take(spans));
    }
    Ok((taken, traces))
}

/// Does all that is done with a request, but for the store: for whoever wants to see what hostile bytes do. Gives how many frames it makes.
///
/// # Errors
/// As [`Ingest::traces`].
#[cfg(any(test, fuzzing))]
pub(crate) fn look(body: &[u8], form: Form) -> Result<u64, Refused> {
    use super::edges::{Known, Noted, Place};
    let (_, traces) = mapped(body, form)?;
    let mut frames = 0;
    for spans in traces.into_values() {
        let mut known = Known::default();
        for (seq, span) in (1..).zip(spans) {
            let edges = known.edges(&span, 1, |part| part.to_string());
            let noted = Noted::of(&span, &edges);
            span.frame(edges.parent, edges.told)?;
            known.take(&noted, Place { part: 1, seq });
            frames += 1;
        }
    }
    Ok(frames)
}

/// Spans by their trace.
pub(super) type Traces = BTreeMap<TraceId, Vec<Mapped>>;

fn in_order(spans: Vec<Mapped>) -> Vec<Mapped> {
    let places: HashMap<SpanId, usize> = spans.iter().enumerate().map(|(at, span)| (span.span, at)).collect();
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    // By time; and, among equals, as they were sent.
    let mut ready = BinaryHeap::new();
    for (at, span) in spans.iter().enumerate() {
        match span.parent.and_then(|parent| places.get(&parent)) {
            Some(parent) if *parent != at => children.entry(*parent).or_default().push(at),
            _ => ready.push(Reverse((span.started_ns, at))),
        }
    }
    let mut spans: Vec<Option<Mapped>> = spans.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(spans.len());
    while let Some(Reverse((_, at))) = ready.pop() {
        for child in children.remove(&at).into_iter().flatten() {
            if let Some(span) = &spans[child] {
                ready.push(Reverse((span.started_ns, child)));
            }
        }
        ordered.extend(spans[at].take());
    }
    // Those that are their own ancestors.
    ordered.extend(spans.into_iter().flatten());
    ordered
}
