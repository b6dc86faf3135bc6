//! Matches requests, in the order in which the program makes them, with the calls of a recording.
//!
//! A request is answered by the earliest unserved call with the same hash. Without one, the earliest call
//! that is the same after the rules answers it. Recorded bodies are read and brought into canonical form once
//! per route, and only when a request of that route has no exact match. A request without an answer is
//! compared with a limited number of calls.
//!
//! Invariant: a call is served once, and only to an equal request.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, Result};
use crate::replay::matching::canonical::{CanonicalBody, canonical_hash, route};
use crate::replay::matching::diff::Diff;
use crate::replay::matching::divergence::{compare_names, shown_name};
use crate::replay::matching::order::ReleaseOrder;
use crate::replay::matching::{CallHash, Divergence, Grade, NearestCall, Receipt, RecordedCall, Rules};

/// Maximum number of a route's unserved calls that a diverging request is compared with.
const CANDIDATES_MAX: usize = 16;
/// Bytes of recorded bodies after which the comparison stops reading more.
const CANDIDATE_BYTES_MAX: usize = 256 << 20;
/// Maximum number of nearest calls in a report.
const NEAREST_MAX: usize = 3;

type BodySource = Box<dyn Fn(u32) -> Result<Vec<u8>> + Send + Sync>;

/// The result of matching a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchOutcome {
    /// The frame whose request is the same, byte for byte.
    Exact(u32),
    /// The frame whose request is the same after the matcher.
    Matched(u32),
    /// No recorded call answers the request.
    Diverged(Box<Divergence>),
}

/// The calls of a recording, and which of them the program has made.
///
/// A server calls [`Matching::ask`] for each request, [`Matching::may_release`] until the answer may go out,
/// and then [`Matching::mark_released`]. If an answer will never go out, it calls [`Matching::give_up`]
/// instead.
pub struct Matching {
    calls: Vec<RecordedCall>,
    served: Vec<bool>,
    /// For each call, whether it overlapped a call with the same request.
    overlapped: Vec<bool>,
    /// The batch number of each call; 0 for none.
    batches: Vec<u32>,
    bodies: BodySource,
    rules: Rules,
    key: [u8; 32],
    exact: HashMap<CallHash, EqualCalls>,
    routes: HashMap<String, RouteCalls>,
    release: ReleaseOrder,
    receipt: Receipt,
    /// Index in `calls` of the last call served.
    last: Option<usize>,
}

/// Calls with equal requests, sorted by their beginnings.
#[derive(Default)]
struct EqualCalls {
    calls: VecDeque<usize>,
    recorded: u32,
}

#[derive(Default)]
struct RouteCalls {
    calls: Vec<usize>,
    /// Calls by the hash of their canonical form; computed at first use.
    canonical: Option<HashMap<CallHash, EqualCalls>>,
}

impl EqualCalls {
    fn add(&mut self, call: usize) {
        self.calls.push_back(call);
        self.recorded += 1;
    }

    /// Takes the first unserved call. It skips calls that were served under their other hash.
    fn take(&mut self, served: &[bool]) -> Option<usize> {
        while let Some(call) = self.calls.pop_front() {
            if !served[call] {
                return Some(call);
            }
        }
        None
    }
}

impl std::fmt::Debug for Matching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matching")
            .field("rules", &self.rules)
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}

impl Matching {
    /// Matches against `calls`, given in any order. `bodies` returns a recorded request's bytes by the call's
    /// frame number. `key` must be the key of the calls' hashes.
    ///
    /// # Errors
    /// `Invalid` if two calls have the same number.
    pub fn new(
        mut calls: Vec<RecordedCall>,
        bodies: impl Fn(u32) -> Result<Vec<u8>> + Send + Sync + 'static,
        rules: Rules,
        key: [u8; 32],
    ) -> Result<Self> {
        calls.sort_by_key(|call| call.seq);
        if let Some(pair) = calls.windows(2).find(|pair| pair[0].seq == pair[1].seq) {
            return Err(Error::invalid(format!("two recorded calls have the number {}", pair[0].seq)));
        }
        let mut exact: HashMap<CallHash, EqualCalls> = HashMap::new();
        let mut routes: HashMap<String, RouteCalls> = HashMap::new();
        // The calls are sorted by beginning: frame numbers follow storage, and a recorder may store a call
        // when it ends.
        let mut begun: Vec<usize> = (0..calls.len()).collect();
        begun.sort_by_key(|place| calls[*place].begun_ns);
        for place in begun {
            exact.entry(calls[place].exact).or_default().add(place);
            routes.entry(route(&calls[place].name).to_owned()).or_default().calls.push(place);
        }
        let mut batches = vec![0; calls.len()];
        for (batch, waiting) in (1..).zip(exact.values_mut()) {
            order_batches(&calls, waiting, batch, &mut batches);
        }
        let recorded = u32::try_from(calls.len()).map_err(|_| Error::invalid("a run has too many calls"))?;
        Ok(Self {
            served: vec![false; calls.len()],
            overlapped: overlapped(&calls, exact.values()),
            batches,
            release: ReleaseOrder::new(&calls),
            calls,
            bodies: Box::new(bodies),
            rules,
            key,
            exact,
            routes,
            receipt: Receipt { recorded, ..Receipt::default() },
            last: None,
        })
    }

    /// Releases overlapping calls in another order than the recorded one; the same seed gives the same order.
    /// This finds programs whose outcome depends on the order of answers. Call it before the first request.
    #[must_use]
    pub fn chaos(mut self, seed: u64) -> Self {
        self.release.chaos(&self.calls, seed);
        self
    }

    /// Matches a request: the recorded call that answers it, or the differences.
    ///
    /// # Errors
    /// Errors of `bodies`.
    pub fn ask(&mut self, name: &str, body: &[u8]) -> Result<MatchOutcome> {
        self.ask_hashed(CallHash::new(&self.key, name, body), name, body)
    }

    /// Like [`Self::ask`], for a recording that stores requests in another form, for example without secrets.
    /// `hash` is the hash of the request as made; `name` and `body` are as the recorder would store them.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_hashed(&mut self, hash: CallHash, name: &str, body: &[u8]) -> Result<MatchOutcome> {
        let times = match self.find(hash, name, body)? {
            Ok(found) => return Ok(found),
            Err(times) => times,
        };
        let asked = CanonicalBody::new(body, &self.rules);
        let divergence = self.divergence(name, body, &asked, times)?;
        match divergence.grade {
            Grade::Changed => self.receipt.changed += 1,
            Grade::Unrecorded => self.receipt.unrecorded += 1,
        }
        Ok(MatchOutcome::Diverged(Box::new(divergence)))
    }

    /// Takes the recorded call that is the same, exactly or after the rules. `None` if there is none: that is
    /// not compared, counted or reported, because the caller expects other requests.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn take(&mut self, hash: CallHash, name: &str, body: &[u8]) -> Result<Option<u32>> {
        Ok(match self.find(hash, name, body)? {
            Ok(MatchOutcome::Exact(seq) | MatchOutcome::Matched(seq)) => Some(seq),
            Ok(MatchOutcome::Diverged(_)) | Err(_) => None,
        })
    }

    /// Takes the earliest call of the request's route that was not served, whatever its body. The caller
    /// answers by position.
    pub fn take_next(&mut self, name: &str) -> Option<u32> {
        let route = self.routes.get(route(name))?;
        let next = route.calls.iter().copied().find(|place| !self.served[*place])?;
        Some(self.serve(next))
    }

    /// The matching call, else how often the request was recorded.
    fn find(
        &mut self,
        hash: CallHash,
        name: &str,
        body: &[u8],
    ) -> Result<std::result::Result<MatchOutcome, Option<u32>>> {
        let mut times = None;
        if let Some(waiting) = self.exact.get_mut(&hash) {
            if let Some(call) = waiting.take(&self.served) {
                self.receipt.exact += 1;
                return Ok(Ok(MatchOutcome::Exact(self.serve(call))));
            }
            times = Some(waiting.recorded);
        }
        let asked = CanonicalBody::new(body, &self.rules);
        let canonical = canonical_hash(&self.key, name, &asked, &self.rules)?;
        self.hash_route(route(name))?;
        let route_of = self.routes.get_mut(route(name));
        if let Some(waiting) = route_of.and_then(|route| route.canonical.as_mut()?.get_mut(&canonical)) {
            if let Some(call) = waiting.take(&self.served) {
                self.receipt.matched += 1;
                return Ok(Ok(MatchOutcome::Matched(self.serve(call))));
            }
            times = times.or(Some(waiting.recorded));
        }
        Ok(Err(times))
    }

    fn serve(&mut self, call: usize) -> u32 {
        self.served[call] = true;
        self.last = Some(call);
        self.calls[call].seq
    }

    /// Computes the canonical hashes of a route's recorded calls, if that was not done.
    fn hash_route(&mut self, name: &str) -> Result<()> {
        let Some(route) = self.routes.get_mut(name) else { return Ok(()) };
        if route.canonical.is_some() {
            return Ok(());
        }
        let mut canonical: HashMap<CallHash, EqualCalls> = HashMap::new();
        for place in &route.calls {
            let call = &self.calls[*place];
            let bytes = (self.bodies)(call.seq)?;
            let body = CanonicalBody::new(&bytes, &self.rules);
            let hash = canonical_hash(&self.key, &call.name, &body, &self.rules)?;
            canonical.entry(hash).or_default().add(*place);
        }
        route.canonical = Some(canonical);
        Ok(())
    }

    fn divergence(
        &self,
        name: &str,
        body: &[u8],
        asked: &CanonicalBody<'_>,
        times: Option<u32>,
    ) -> Result<Divergence> {
        let next = self.next_call();
        let mut nearest = Vec::new();
        let mut read = 0;
        for place in self.candidates(route(name), next) {
            let call = &self.calls[place];
            let bytes = (self.bodies)(call.seq)?;
            let mut diff =
                Diff::new(&CanonicalBody::new(&bytes, &self.rules), asked, (&bytes, body), &self.rules)?;
            diff.weight += name.len().max(call.name.len()) as u64;
            compare_names(&call.name, name, &self.rules, &mut diff);
            nearest.push((diff, call));
            read += bytes.len();
            if read > CANDIDATE_BYTES_MAX {
                break;
            }
        }
        nearest.sort_by_key(|(diff, call)| (diff.distance, call.seq));
        nearest.truncate(NEAREST_MAX);
        // Similar means that at most half of the bytes differ.
        let near =
            nearest.first().filter(|(diff, _)| diff.distance <= diff.weight / 2).map(|(_, call)| call.seq);
        let changed = near.filter(|_| times.is_none());
        if let (true, Some(next)) = (nearest.is_empty(), next) {
            let (mut diff, call) = (Diff::default(), &self.calls[next]);
            compare_names(&call.name, name, &self.rules, &mut diff);
            nearest.push((diff, call));
        }
        let nearest = nearest.into_iter().map(|(diff, call)| NearestCall {
            seq: call.seq,
            name: shown_name(&call.name),
            distance: diff.distance,
            differences: diff.differences,
            more: diff.more,
        });
        Ok(Divergence {
            grade: if changed.is_some() { Grade::Changed } else { Grade::Unrecorded },
            step: changed.or(next.map(|place| self.calls[place].seq)),
            name: shown_name(name),
            recorded_times: times,
            nearest: nearest.collect(),
        })
    }

    /// The first unserved call after the last one served, or else the first unserved call.
    fn next_call(&self) -> Option<usize> {
        let from = self.last.map_or(0, |last| last + 1);
        let unserved = |place: &usize| !self.served[*place];
        (from..self.calls.len()).find(unserved).or_else(|| (0..from).find(unserved))
    }

    /// Unserved calls of a route, sorted by their distance from the next call.
    fn candidates(&self, route: &str, next: Option<usize>) -> Vec<usize> {
        let (Some(route), Some(next)) = (self.routes.get(route), next) else { return Vec::new() };
        let mut places: Vec<_> = route.calls.iter().copied().filter(|place| !self.served[*place]).collect();
        places.sort_by_key(|place| place.abs_diff(next));
        places.truncate(CANDIDATES_MAX);
        places
    }

    /// Whether the answer of this call may go out: every call that ended before it is released or given up.
    #[must_use]
    pub fn may_release(&self, seq: u32) -> bool {
        self.release.may_release(seq)
    }

    /// Notes that the answer of this call goes out now.
    pub fn mark_released(&mut self, seq: u32) {
        self.receipt.served += 1;
        self.release.mark_done(seq);
    }

    /// Notes that the answer of this call will never go out, or that the program will not make the call.
    /// Other answers no longer wait for it.
    pub fn give_up(&mut self, seq: u32) {
        if self.is_served(seq) {
            self.receipt.given_up += 1;
        }
        self.release.mark_done(seq);
    }

    /// The calls whose answers must go out before this one's, in order.
    #[must_use]
    pub fn blocking(&self, seq: u32) -> Vec<u32> {
        self.release.blocking(seq)
    }

    /// Whether several identical requests were ever under way before one of them was answered.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        self.batches.iter().any(|batch| *batch > 0)
    }

    /// Whether several calls have the same request.
    #[must_use]
    pub fn has_repeats(&self) -> bool {
        self.exact.values().any(|equal| equal.calls.len() > 1)
    }

    /// Number of unserved calls with this request.
    #[must_use]
    pub fn unserved(&self, hash: &CallHash) -> usize {
        let calls = self.exact.get(hash).map(|equal| equal.calls.iter());
        calls.map_or(0, |calls| calls.filter(|place| !self.served[**place]).count())
    }

    /// Size of the next unserved batch of calls with this request: calls that were under way before the first
    /// of them was answered. That many requests arrive before any of them needs its answer.
    #[must_use]
    pub fn batch_len(&self, hash: &CallHash) -> usize {
        let Some(waiting) = self.exact.get(hash) else { return 0 };
        let mut left = waiting.calls.iter().filter(|place| !self.served[**place]).peekable();
        match left.peek().map(|first| self.batches[**first]) {
            None => 0,
            Some(0) => 1,
            Some(batch) => left.take_while(|place| self.batches[**place] == batch).count(),
        }
    }

    /// Time between the end of this answer and that of the next one, in nanoseconds; 0 after the last one.
    #[must_use]
    pub fn gap_after(&self, seq: u32) -> u64 {
        let Some(place) = self.index_of(seq) else { return 0 };
        let next = self.release.next_after(seq).and_then(|next| self.index_of(next));
        next.map_or(0, |next| self.calls[next].ended_ns.saturating_sub(self.calls[place].ended_ns))
    }

    fn is_served(&self, seq: u32) -> bool {
        self.index_of(seq).is_some_and(|place| self.served[place])
    }

    fn index_of(&self, seq: u32) -> Option<usize> {
        self.calls.binary_search_by_key(&seq, |call| call.seq).ok()
    }

    /// The receipt up to now.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        let missing =
            self.calls.iter().zip(&self.served).filter(|(_, served)| !**served).map(|(call, _)| call.seq);
        let overlapped = self.overlapped.iter().zip(&self.served).filter(|(of, served)| **of && **served);
        let overlapped = u32::try_from(overlapped.count()).unwrap_or(u32::MAX);
        Receipt { missing: missing.collect(), overlapped, ..self.receipt.clone() }
    }
}

/// Sorts each batch by arrival. A batch is the calls with one request that began before the first of them had
/// ended, and those that arrived before one of these but were read late.
fn order_batches(calls: &[RecordedCall], waiting: &mut EqualCalls, request: u32, batches: &mut [u32]) {
    let places = waiting.calls.make_contiguous();
    let mut is_odd = false;
    let mut from = 0;
    while from < places.len() {
        let (mut upto, mut first_end, mut last_arrived) = (from, u64::MAX, 0);
        while let Some(call) = places
            .get(upto)
            .map(|place| &calls[*place])
            .filter(|of| of.begun_ns < first_end || of.arrived < last_arrived)
        {
            first_end = first_end.min(call.ended_ns.max(call.begun_ns + 1));
            last_arrived = last_arrived.max(call.arrived);
            upto += 1;
        }
        let batch = &mut places[from..upto];
        if batch.len() > 1 {
            batch.sort_by_key(|place| calls[*place].arrived);
            // Consecutive batches of one request get different numbers.
            is_odd = !is_odd;
            batch.iter().for_each(|place| batches[*place] = 2 * request + u32::from(is_odd));
        }
        from = upto;
    }
}

/// For each call, whether it overlapped another call with the same request. Each item of `equal` holds the
/// calls of one request, sorted by their beginnings.
fn overlapped<'a>(calls: &[RecordedCall], equal: impl Iterator<Item = &'a EqualCalls>) -> Vec<bool> {
    let mut overlapped = vec![false; calls.len()];
    for waiting in equal {
        let mut longest: Option<usize> = None;
        for place in &waiting.calls {
            if let Some(longest) = longest.filter(|of| calls[*place].begun_ns < calls[*of].ended_ns) {
                (overlapped[*place], overlapped[longest]) = (true, true);
            }
            let end = |place: usize| calls[place].ended_ns;
            longest = longest.filter(|of| end(*of) >= end(*place)).or(Some(*place));
        }
    }
    overlapped
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
