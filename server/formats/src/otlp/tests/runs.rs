//! Runs of traces: begun, continued, ended; spans that arrive twice, late, or after a restart.

use annals::Status;
use serde_json::{Value, json};

use super::{Bench, NOW, TRACE, metadata, request, span};
use crate::otlp::ingest::Limits;
use crate::otlp::{Form, Ingest, is_ingested};

const SECOND: u64 = 1_000_000_000;

fn name() -> String {
    format!("trace-{TRACE}")
}

fn status(bench: &Bench, name: &str) -> Status {
    bench.run(name).info().status
}

/// The same span in another trace.
fn of(trace: u8, mut span: Value) -> Value {
    span["traceId"] = json!(format!("{trace:032x}"));
    span
}

#[test]
fn what_is_sent_again_is_no_second_frame() {
    let bench = Bench::new();
    let all = request(&[span(1, 0, &[]), span(2, 1, &[])]);
    assert_eq!(bench.take(&all).frames, 2);
    let again = bench.take(&all);
    assert_eq!((again.frames, again.again, again.rejected), (0, 2, 0));
    // Also within one request.
    let twice = bench.take(&request(&[span(3, 1, &[]), span(3, 1, &[])]));
    assert_eq!((twice.frames, twice.again), (1, 1));
    assert_eq!(bench.frames(&name()).len(), 3);
}

#[test]
fn a_whole_trace_that_is_quiet_ends_as_its_root_says() {
    let bench = Bench::new();
    bench.take(&request(&[span(2, 1, &[])]));
    bench.ingest.settle(NOW + 60 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Open, "its root is to come");
    bench.take(&request(&[span(1, 0, &[])]));
    bench.ingest.settle(NOW + 29 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Open, "more may come");
    bench.ingest.settle(NOW + 30 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &name()), Status::Ok);

    let mut failed = of(1, span(1, 0, &[]));
    failed["status"] = json!({ "code": 2 });
    let rootless = of(2, span(2, 1, &[]));
    // A child of this trace names a parent that never arrives.
    let holed = [of(3, span(1, 0, &[])), of(3, span(5, 4, &[]))];
    bench.take(&request(&[&[failed, rootless][..], &holed].concat()));
    bench.ingest.settle(NOW + 30 * SECOND, false).unwrap();
    let of = |trace: u8| status(&bench, &format!("trace-{trace:032x}"));
    assert_eq!((of(1), of(2), of(3)), (Status::Failed, Status::Open, Status::Open));
    bench.ingest.settle(NOW + 600 * SECOND, false).unwrap();
    assert_eq!((of(1), of(2), of(3)), (Status::Failed, Status::Abandoned, Status::Ok));
}

#[test]
fn what_comes_late_goes_to_a_run_that_names_the_first() {
    let bench = Bench::new();
    bench.take(&request(&[span(1, 0, &[]), span(2, 1, &[])]));
    bench.ingest.settle(NOW, true).unwrap();
    let late = bench.take(&request(&[span(2, 1, &[]), span(3, 2, &[]), span(4, 3, &[])]));
    assert_eq!((late.frames, late.again), (2, 1));
    let second = format!("{}.2", name());
    let run = bench.run(&second);
    let told: Value = serde_json::from_slice(&run.metadata().unwrap()).unwrap();
    assert_eq!(told["ingested"]["continues"], name());
    assert!(run.info().tags.contains(&("annals.continues".to_owned(), name())));
    let frames = bench.frames(&second);
    assert_eq!(metadata(&frames[0])["edges"]["recorded"]["parent"], json!({ "run": name(), "frame": 2 }));
    assert_eq!((frames[0].parent, frames[1].parent), (None, Some(1)));
    bench.ingest.settle(NOW + 30 * SECOND, false).unwrap();
    assert_eq!(status(&bench, &second), Status::Ok);
    // Only known spans: no third run is begun.
    assert_eq!(bench.take(&request(&[span(3, 2, &[])])).again, 1);
    bench.ingest.settle(NOW, true).unwrap();
    assert_eq!(bench.names().len(), 2);
    bench.take(&request(&[span(9, 3, &[])]));
    assert_eq!(
        metadata(&bench.frames(&format!("{}.3", name()))[0])["edges"]["recorded"]["parent"]["run"],
        second
    );
}

#[test]
fn a_daemon_that_is_killed_knows_afterwards_what_it_has() {
    let bench = Bench::new();
    bench.take(&request(&[span(2, 1, &[])]));
    // The next process has only what is on disk.
    let Bench { store, space, ingest, _directory } = bench;
    drop((store, space, ingest));
    let bench = Bench::over(_directory);
    assert_eq!(status(&bench, &name()), Status::Abandoned);
    let taken = bench.take(&request(&[span(1, 0, &[]), span(2, 1, &[])]));
    assert_eq!((taken.frames, taken.again), (1, 1));
    bench.ingest.settle(NOW, true).unwrap();
    assert_eq!(status(&bench, &format!("{}.2", name())), Status::Ok);
}

#[test]
fn a_run_of_that_name_which_is_somebody_elses_is_left_alone() {
    let bench = Bench::new();
    let other = bench.space.begin_run(annals::RunSpec::new(name())).unwrap();
    assert_eq!(bench.take(&request(&[span(1, 0, &[])])).frames, 1);
    assert_eq!(bench.names(), [name(), format!("{}.2", name())]);
    other.end(Status::Ok).unwrap();
}

#[test]
fn the_least_recently_used_traces_are_ended_for_new_ones() {
    let bench = Bench::new();
    let ingest = Ingest::with(bench.space.clone(), Limits { traces: 2, remembered: 100 });
    let take =
        |spans: &[Value]| ingest.traces(request(spans).to_string().as_bytes(), Form::Json, NOW).unwrap();
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
fn requests_at_once_make_each_span_one_frame() {
    let bench = Bench::new();
    let ingest = Ingest::with(bench.space.clone(), Limits { traces: 2, remembered: 1000 });
    let frames: u64 = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut frames = 0;
                    for number in 1..20u64 {
                        let spans: Vec<Value> = (1..5).map(|trace| of(trace, span(number, 0, &[]))).collect();
                        let body = request(&spans).to_string();
                        frames += ingest.traces(body.as_bytes(), Form::Json, NOW).unwrap().frames;
                    }
                    frames
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    assert_eq!(frames, 4 * 19);
    ingest.settle(NOW, true).unwrap();
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
fn a_store_that_cannot_write_says_when_to_come_again() {
    let bench = Bench::new();
    bench.take(&request(&[span(1, 0, &[])]));
    bench.store.clone().close().unwrap();
    // One trace that is open, and one that is new.
    for spans in [[span(2, 1, &[])], [of(1, span(2, 1, &[]))]] {
        let refused =
            bench.ingest.traces(request(&spans).to_string().as_bytes(), Form::Json, NOW).unwrap_err();
        assert_eq!((refused.status, refused.retry_after_s), (503, Some(30)), "{}", refused.message());
        assert_eq!(serde_json::from_slice::<Value>(&refused.body(Form::Json)).unwrap()["code"], 14);
    }
}

#[test]
fn what_was_ingested_is_known_as_that_and_has_no_calls_to_be_replayed() {
    let bench = Bench::new();
    let call =
        span(1, 0, &[("gen_ai.operation.name", "chat"), ("input.value", "{}"), ("output.value", "ok")]);
    bench.take(&request(&[call]));
    bench.ingest.settle(NOW, true).unwrap();
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
