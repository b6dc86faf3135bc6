//! Runs of traces: begun, continued, ended; spans that arrive twice, late, or after a restart.

use annals::Status;
use serde_json::{Value, json};

use super::{IngestBench, NOW, TRACE, metadata, request, span};
use crate::otlp::ingest::IngestLimits;
use crate::otlp::{TraceEncoding, TraceIngest, is_ingested};

const SECOND: u64 = 1_000_000_000;

fn name() -> String {
    format!("trace-{TRACE}")
}

fn status(bench: &IngestBench, name: &str) -> Status {
    bench.run(name).info().status
}

/// The same span in another trace.
fn of(trace: u8, mut span: Value) -> Value {
    span["traceId"] = json!(format!("{trace:032x}"));
    span
}

#[test]
fn resent_span_makes_no_second_frame() {
    let bench = IngestBench::new();
    let all = request(&[span(1, 0, &[]), span(2, 1, &[])]);
    assert_eq!(bench.take(&all).frames, 2);
    let again = bench.take(&all);
    assert_eq!((again.frames, again.duplicates, again.rejected), (0, 2, 0));
    // Also within one request.
    let twice = bench.take(&request(&[span(3, 1, &[]), span(3, 1, &[])]));
    assert_eq!((twice.frames, twice.duplicates), (1, 1));
    assert_eq!(bench.frames(&name()).len(), 3);
}

#[test]
fn quiet_complete_trace_ends_with_root_status() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(2, 1, &[])]));
    bench.ingest.end_quiet_traces(NOW + 60 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Open, "its root is to come");
    bench.take(&request(&[span(1, 0, &[])]));
    bench.ingest.end_quiet_traces(NOW + 29 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Open, "more may come");
    bench.ingest.end_quiet_traces(NOW + 30 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Ok);

    let mut failed = of(1, span(1, 0, &[]));
    failed["status"] = json!({ "code": 2 });
    let rootless = of(2, span(2, 1, &[]));
    // A child of this trace names a parent that never arrives.
    let holed = [of(3, span(1, 0, &[])), of(3, span(5, 4, &[]))];
    bench.take(&request(&[&[failed, rootless][..], &holed].concat()));
    bench.ingest.end_quiet_traces(NOW + 30 * SECOND, false).unwrap();
    let of = |trace: u8| status(&bench, &format!("trace-{trace:032x}"));
    assert_eq!((of(1), of(2), of(3)), (Status::Failed, Status::Open, Status::Open));
    bench.ingest.end_quiet_traces(NOW + 600 * SECOND, false).unwrap();
    assert_eq!((of(1), of(2), of(3)), (Status::Failed, Status::Abandoned, Status::Ok));
}

#[test]
fn late_spans_go_to_a_continuation_run() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(1, 0, &[]), span(2, 1, &[])]));
    bench.ingest.end_quiet_traces(NOW, true).unwrap();
    let late = bench.take(&request(&[span(2, 1, &[]), span(3, 2, &[]), span(4, 3, &[])]));
    assert_eq!((late.frames, late.duplicates), (2, 1));
    let second = format!("{}.2", name());
    let run = bench.run(&second);
    let told: Value = serde_json::from_slice(&run.metadata().unwrap()).unwrap();
    assert_eq!(told["ingested"]["continues"], name());
    assert!(run.info().tags.contains(&("annals.continues".to_owned(), name())));
    let frames = bench.frames(&second);
    assert_eq!(metadata(&frames[0])["edges"]["recorded"]["parent"], json!({ "run": name(), "frame": 2 }));
    assert_eq!((frames[0].parent, frames[1].parent), (None, Some(1)));
    bench.ingest.end_quiet_traces(NOW + 30 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &second), Status::Ok);
    // Only known spans: no third run is begun.
    assert_eq!(bench.take(&request(&[span(3, 2, &[])])).duplicates, 1);
    bench.ingest.end_quiet_traces(NOW, true).unwrap();
    assert_eq!(bench.names().len(), 2);
    bench.take(&request(&[span(9, 3, &[])]));
    assert_eq!(
        metadata(&bench.frames(&format!("{}.3", name()))[0])["edges"]["recorded"]["parent"]["run"],
        second
    );
}

#[test]
fn restart_after_kill_recognizes_stored_spans() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(2, 1, &[])]));
    // The next process has only what is on disk.
    let IngestBench { store, space, ingest, _directory } = bench;
    drop((store, space, ingest));
    let bench = IngestBench::over(_directory);
    assert_eq!(status(&bench, &name()), Status::Abandoned);
    let taken = bench.take(&request(&[span(1, 0, &[]), span(2, 1, &[])]));
    assert_eq!((taken.frames, taken.duplicates), (1, 1));
    bench.ingest.end_quiet_traces(NOW, true).unwrap();
    assert_eq!(status(&bench, &format!("{}.2", name())), Status::Ok);
}

#[test]
fn foreign_run_with_the_trace_name_is_left_alone() {
    let bench = IngestBench::new();
    let other = bench.space.begin_run(annals::RunSpec::new(name())).unwrap();
    assert_eq!(bench.take(&request(&[span(1, 0, &[])])).frames, 1);
    assert_eq!(bench.names(), [name(), format!("{}.2", name())]);
    other.end(Status::Ok).unwrap();
}

#[test]
fn least_recently_used_traces_are_ended_at_the_limit() {
    let bench = IngestBench::new();
    let ingest = TraceIngest::with_limits(bench.space.clone(), IngestLimits { traces: 2, remembered: 100 });
    let take = |spans: &[Value]| {
        ingest.ingest_request(request(spans).to_string().as_bytes(), TraceEncoding::Json, NOW).unwrap()
    };
    for trace in [1, 2, 1, 3] {
        take(&[of(trace, span(1, 0, &[]))]);
    }
    take(&[of(1, span(2, 1, &[]))]);
    let of_trace = |trace: u8| status(&bench, &format!("trace-{trace:032x}"));
    assert_eq!((of_trace(1), of_trace(2), of_trace(3)), (Status::Open, Status::Ok, Status::Open));
    // Many span ids in few traces.
    let many: Vec<Value> = (10..120).map(|number| of(4, span(number, 0, &[]))).collect();
    take(&many);
    take(&[of(5, span(1, 0, &[]))]);
    assert_eq!(
        (of_trace(1), of_trace(3), of_trace(4), of_trace(5)),
        (Status::Ok, Status::Ok, Status::Ok, Status::Open)
    );
}

#[test]
fn concurrent_requests_make_each_span_one_frame() {
    let bench = IngestBench::new();
    let ingest = TraceIngest::with_limits(bench.space.clone(), IngestLimits { traces: 2, remembered: 1000 });
    let frames: u64 = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut frames = 0;
                    for number in 1..20u64 {
                        let spans: Vec<Value> = (1..5).map(|trace| of(trace, span(number, 0, &[]))).collect();
                        let body = request(&spans).to_string();
                        frames +=
                            ingest.ingest_request(body.as_bytes(), TraceEncoding::Json, NOW).unwrap().frames;
                    }
                    frames
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    assert_eq!(frames, 4 * 19);
    ingest.end_quiet_traces(NOW, true).unwrap();
    let mut seen: Vec<String> = Vec::new();
    for name in bench.names() {
        assert_ne!(status(&bench, &name), Status::Open);
        bench.run(&name).verify().unwrap();
        seen.extend(bench.frames(&name).iter().map(|frame| {
            let told = metadata(frame)["volatile"]["otlp"]["span"].clone();
            format!("{} {}", told["traceId"], told["spanId"])
        }));
    }
    let many = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((many, seen.len()), (4 * 19, 4 * 19));
}

#[test]
fn unwritable_store_gives_503_with_retry_after() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(1, 0, &[])]));
    bench.store.clone().close().unwrap();
    // One trace that is open, and one that is new.
    for spans in [[span(2, 1, &[])], [of(1, span(2, 1, &[]))]] {
        let refused = bench
            .ingest
            .ingest_request(request(&spans).to_string().as_bytes(), TraceEncoding::Json, NOW)
            .unwrap_err();
        assert_eq!((refused.status, refused.retry_after_s), (503, Some(30)), "{}", refused.message());
        assert_eq!(serde_json::from_slice::<Value>(&refused.body(TraceEncoding::Json)).unwrap()["code"], 14);
    }
}

#[test]
fn ingested_run_is_marked_and_not_replayable() {
    let bench = IngestBench::new();
    let call =
        span(1, 0, &[("gen_ai.operation.name", "chat"), ("input.value", "{}"), ("output.value", "ok")]);
    bench.take(&request(&[call]));
    bench.ingest.end_quiet_traces(NOW, true).unwrap();
    let own = bench
        .space
        .begin_run(
            annals::RunSpec::new("own").metadata(r#"{"ingested":7,"program":{"ingested":{"from":"otlp"}}}"#),
        )
        .unwrap();
    own.end(Status::Ok).unwrap();
    assert!(is_ingested(&bench.run(&name())).unwrap());
    assert!(!is_ingested(&bench.run("own")).unwrap());
    // A program that replays it diverges at the first step.
    let replayer = annals::Replayer::new(&bench.run(&name()), annals::matching::Rules::none()).unwrap();
    let asked =
        annals::Calls::exchange(&replayer, annals::Request::llm("llm", b"{}"), Box::new(|| Ok(Vec::new())));
    assert!(asked.unwrap_err().is_divergence());
}
