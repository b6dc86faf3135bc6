//! Power cuts and full disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use annals::io::sim::{Crash, SimIo};
use annals::{Namespace, Options, Store};
use serde_json::Value;

use super::{NOW, metadata, request, span};
use crate::otlp::{TraceEncoding, TraceIngest, TraceReceipt, TraceRefusal};

fn open(sim: &SimIo) -> (Store, Namespace, TraceIngest) {
    let options = Options { io: Arc::new(sim.clone()), ..Options::default() };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    (store, space.clone(), TraceIngest::new(space))
}

fn send(ingest: &TraceIngest, spans: &[Value]) -> Result<TraceReceipt, TraceRefusal> {
    ingest.ingest_request(request(spans).to_string().as_bytes(), TraceEncoding::Json, NOW)
}

/// The number of frames for each span; every frame is verified.
fn frames(space: &Namespace) -> BTreeMap<String, usize> {
    let mut frames = BTreeMap::new();
    for run in space.runs().unwrap() {
        for frame in space.run(&run.unwrap().name).unwrap().frames() {
            let span = metadata(&frame.unwrap())["volatile"]["otlp"]["span"]["spanId"].to_string();
            *frames.entry(span).or_default() += 1;
        }
    }
    frames
}

/// Acknowledged spans survive a power cut, and spans that are resent become one frame each.
#[test]
fn acknowledged_spans_survive_power_cut_exactly_once() {
    let batches: Vec<Vec<Value>> = (0..4)
        .map(|batch| (1..=5).map(|n| span(batch * 5 + n, u64::from(batch * 5 + n > 1), &[])).collect())
        .collect();
    for answered in 1..=batches.len() {
        for how in [Crash::Nothing, Crash::Everything, Crash::Torn, Crash::Seed(7)] {
            let sim = SimIo::new(answered as u64);
            let (_store, _, ingest) = open(&sim);
            for batch in &batches[..answered] {
                assert_eq!(send(&ingest, batch).unwrap().frames, 5);
            }
            let (_store, space, ingest) = open(&sim.crash(how));
            assert_eq!(frames(&space).len(), answered * 5, "{how:?}");
            for batch in &batches {
                send(&ingest, batch).unwrap();
            }
            let frames = frames(&space);
            assert!(frames.len() == 20 && frames.values().all(|count| *count == 1), "{how:?}: {frames:?}");
        }
    }
}

// Each trace waited for the sync of the one before it: a request with 512 traces took 3.7 s.
#[test]
fn request_with_many_traces_takes_one_sync() {
    let sim = SimIo::new(1);
    let (store, space, ingest) = open(&sim);
    send(&ingest, &[span(1, 0, &[])]).unwrap();
    let spans: Vec<Value> = (1..=512)
        .map(|number| {
            let mut span = span(1, 0, &[]);
            span["traceId"] = format!("{number:032x}").into();
            span
        })
        .collect();
    let before = store.activity().syncs;
    assert_eq!(send(&ingest, &spans).unwrap().frames, 512);
    // The 513th trace that is open ends the oldest one, which takes a sync of its own.
    assert!(store.activity().syncs - before <= 2, "{} syncs", store.activity().syncs - before);
    assert_eq!(space.runs().unwrap().count(), 513);
}

/// A full disk gives a refusal with a retry time. Once there is room, possibly after reopening the store, the
/// same requests make each span one frame.
#[test]
fn retry_after_full_disk_makes_each_span_one_frame() {
    let long = "what was asked of it ".repeat(50);
    let texts = [("gen_ai.operation.name", "chat"), ("input.value", long.as_str())];
    let batch = |batch: u64| -> Vec<Value> { (1..=4).map(|n| span(batch * 4 + n, 0, &texts)).collect() };
    let mut refused = 0;
    for room in [0, 700, 5_000, 40_000] {
        let sim = SimIo::new(room);
        let (store, space, ingest) = open(&sim);
        send(&ingest, &batch(0)).unwrap();
        let used: usize = sim.files().iter().filter_map(|file| sim.read(file)).map(|bytes| bytes.len()).sum();
        sim.set_capacity(Some(used as u64 + room));
        let mut taken = 1;
        for number in 1..2000 {
            match send(&ingest, &batch(number)) {
                Ok(_) => taken += 1,
                Err(error) => {
                    assert_eq!((error.status, error.retry_after_s), (503, Some(30)), "{}", error.message());
                    refused += 1;
                    break;
                }
            }
        }
        sim.set_capacity(None);
        let known: Vec<String> = frames(&space).into_keys().collect();
        assert!(known.len() >= taken * 4);
        // Some stores continue by themselves, others must be reopened.
        drop((ingest, space));
        let _ = store.close();
        let (_store, space, ingest) = open(&sim);
        for number in 0..=taken as u64 {
            send(&ingest, &batch(number)).unwrap();
        }
        let frames = frames(&space);
        assert!(frames.len() >= (taken + 1) * 4 && frames.values().all(|count| *count == 1), "{frames:?}");
    }
    assert_eq!(refused, 4);
}
