//! When the recorded answers of a run ended, as their program saw it.
//!
//! A client may know the end of an answer before its connection ends: it stops at `data: [DONE]` and sends
//! the next request. So an answer ends with its last byte. Recordings hold that time
//! ([`Volatile::data_ns`](annals_policy::exchange::Volatile::data_ns)). Older recordings hold it in whole
//! milliseconds; then it is at most the start of the next request.

use std::collections::{HashMap, HashSet};

use annals::replay::matching::RecordedCall;

use annals_policy::exchange::{ExchangeMetadata, VolatileExchange};

const MS: u64 = 1_000_000;

/// Sets the end of each call to the last byte of its answer.
pub(super) fn end_with_data(calls: &mut [RecordedCall], exchanges: &HashMap<u32, ExchangeMetadata>) {
    let mut begun: Vec<u64> = calls.iter().map(|call| call.begun_ns).collect();
    begun.sort_unstable();
    for call in calls {
        if let Some(exchange) = exchanges.get(&call.seq) {
            call.ended_ns = data_end(call, &exchange.volatile, &begun);
        }
    }
}

/// When the last byte of an answer came; `begun` holds the start times of all requests, in order.
fn data_end(call: &RecordedCall, volatile: &VolatileExchange, begun: &[u64]) -> u64 {
    if let Some(after) = volatile.data_ns {
        return call.ended_ns.min(call.begun_ns.saturating_add(after));
    }
    let parts = volatile.part_ms.iter().zip(&volatile.part_bytes).rev();
    let Some((ms, _)) = parts.into_iter().find(|(_, bytes)| **bytes > 0) else { return call.ended_ns };
    let earliest = call.begun_ns.saturating_add(ms.saturating_mul(MS));
    let latest = earliest.saturating_add(MS);
    if call.ended_ns < latest {
        return call.ended_ns;
    }
    let next = begun.partition_point(|of| *of < earliest || *of <= call.begun_ns);
    begun.get(next).map_or(latest, |next| latest.min(*next))
}

/// The numbers of calls that overlap no other call.
pub(super) fn calls_without_overlap(calls: &[RecordedCall]) -> HashSet<u32> {
    let mut by_begin: Vec<_> = calls.iter().map(|call| (call.begun_ns, call.ended_ns, call.seq)).collect();
    by_begin.sort_unstable();
    let mut ended = 0;
    let mut alone = HashSet::new();
    for (at, (begun_ns, ended_ns, seq)) in by_begin.iter().enumerate() {
        let next = by_begin.get(at + 1).is_some_and(|(next, ..)| next < ended_ns);
        if *begun_ns >= ended && !next {
            alone.insert(*seq);
        }
        ended = ended.max(*ended_ns);
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;
    use annals::replay::matching::CallHash;

    fn call(begun_ms: u64, ended_ms: u64) -> RecordedCall {
        let name = "POST openai /v1/x".to_owned();
        RecordedCall {
            seq: 1,
            name,
            exact: CallHash([0; 32]),
            begun_ns: begun_ms * MS,
            ended_ns: ended_ms * MS,
            arrived: 0,
        }
    }

    fn parts(parts: &[(u64, u64)]) -> VolatileExchange {
        let (part_bytes, part_ms) = parts.iter().copied().unzip();
        VolatileExchange { part_bytes, part_ms, ..VolatileExchange::default() }
    }

    #[test]
    fn answer_ends_with_its_last_byte() {
        let exact = VolatileExchange { data_ns: Some(12_345_678), ..parts(&[(5, 12)]) };
        assert_eq!(data_end(&call(100, 500), &exact, &[]), 112_345_678);
        let late = VolatileExchange { data_ns: Some(u64::MAX), ..parts(&[(5, 12)]) };
        assert_eq!(data_end(&call(100, 500), &late, &[]), 500 * MS, "never behind the frame's end");
        assert_eq!(
            data_end(&call(100, 500), &VolatileExchange::default(), &[]),
            500 * MS,
            "an answer without bytes"
        );
    }

    #[test]
    fn older_recording_ends_an_answer_before_the_next_request() {
        let volatile = parts(&[(5, 3), (5, 12), (0, 400)]);
        assert_eq!(data_end(&call(100, 500), &volatile, &[100 * MS]), 113 * MS);
        let next = 112 * MS + 300_000;
        assert_eq!(data_end(&call(100, 500), &volatile, &[100 * MS, next, 115 * MS]), next);
        assert_eq!(data_end(&call(100, 112), &volatile, &[100 * MS]), 112 * MS, "the end came with the data");
        let at_once = parts(&[(5, 0)]);
        assert_eq!(
            data_end(&call(100, 500), &at_once, &[100 * MS]),
            101 * MS,
            "its own request is no next one"
        );
        let hostile = parts(&[(5, u64::MAX)]);
        assert_eq!(data_end(&call(100, 500), &hostile, &[]), 500 * MS);
    }
}
