//! A program of several steps, recorded and run again against its recording.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use annals::io::RealIo;
use annals::replay::matching::{Receipt, Rules, Shape};
use annals::{
    Component, ErrorKind, Frame, Namespace, RunReader, RunSpec, Status,
    replay::{
        CallError, Calls, DriftingNondet, Nondet, Recorder, Replayer, ReplayingNondet, Request, SystemNondet,
    },
};

use crate::support::fresh;

const CHAT: &str = "POST /v1/chat/completions";
const STEPS: usize = 6;

/// A model that answers with the request, so that any change propagates.
fn model(request: &str) -> Result<Vec<u8>, std::io::Error> {
    Ok(format!(r#"{{"role":"assistant","content":"{}"}}"#, blake(request)).into_bytes())
}

fn blake(text: &str) -> String {
    annals::BlobId::of(text.as_bytes()).to_string()
}

/// An agent with several calls and drawn values in its prompts. Counts the calls and returns the whole
/// transcript.
fn agent(calls: &dyn Calls, made: &AtomicUsize) -> Result<String, CallError> {
    let mut nonce = [0; 5];
    calls.nondet().fill(&mut nonce)?;
    let mut messages = format!(
        r#"{{"role":"system","content":"It is {}. Session {}, {nonce:?}."}}"#,
        calls.nondet().now_ns()?,
        calls.nondet().uuid()?,
    );
    for step in 0..STEPS {
        let seed = calls.nondet().random_u64()?;
        let request = format!(r#"{{"model":"m","seed":"{seed}","messages":[{messages}]}}"#);
        let answer = calls.call(CHAT, request.as_bytes(), br#"{"kind":"test"}"#, || {
            made.fetch_add(1, Ordering::Relaxed);
            model(&request)
        })?;
        messages = format!(
            "{messages},{},{{\"role\":\"user\",\"content\":\"go on {step}\"}}",
            String::from_utf8_lossy(&answer)
        );
    }
    Ok(messages)
}

fn recorder(space: &Namespace, name: &str) -> Recorder {
    Recorder::new(space.begin_run(RunSpec::new(name)).unwrap())
}

fn replayer(space: &Namespace, name: &str) -> Replayer {
    Replayer::new(&space.run(name).unwrap(), Rules::none()).unwrap()
}

fn recorded(space: &Namespace, name: &str) -> String {
    let recorder = recorder(space, name);
    let said = agent(&recorder, &AtomicUsize::new(0)).unwrap();
    recorder.finish(Status::Ok).unwrap();
    said
}

fn line(receipt: &Receipt) -> String {
    receipt.to_string()
}

#[test]
fn agent_with_draws_replays_exactly_twenty_times() {
    let (_dir, _store, space) = fresh();
    let said = recorded(&space, "r");
    let made = AtomicUsize::new(0);
    for _ in 0..20 {
        let replayer = replayer(&space, "r");
        assert_eq!(agent(&replayer, &made).unwrap(), said);
        let receipt = replayer.finish();
        assert_eq!(line(&receipt), "exact 6 of 6, served 6, unused 0");
        assert!(receipt.is_faithful());
    }
    assert_eq!(made.load(Ordering::Relaxed), 0);
    let frames: Vec<_> = space.run("r").unwrap().frames().map(Result::unwrap).collect();
    let kinds: Vec<_> = frames.iter().map(|frame| frame.component.name()).collect();
    assert_eq!(kinds, ["nondet", "llm"].repeat(STEPS), "draws between two calls share a frame");
    assert_eq!(frames[0].output.split(|byte| *byte == b'\n').count(), 5, "4 draws, each a line");
}

#[test]
fn changed_agent_diverges_at_first_step_naming_fields() {
    let (_dir, _store, space) = fresh();
    recorded(&space, "r");
    let replayer = replayer(&space, "r").drifting();
    let error = agent(&replayer, &AtomicUsize::new(0)).unwrap_err();
    assert!(error.is_divergence());
    let text = error.to_string();
    assert!(text.contains("$.messages[0].content") && text.contains("$.seed"), "{text}");
    let receipt = replayer.finish();
    // Most of this short request is draws, and all differ: no recorded call is similar to it.
    assert_eq!((receipt.exact, receipt.changed, receipt.unrecorded), (0, 0, 1));
    assert!(!receipt.is_faithful() && receipt.undrawn > 0, "{receipt}");
}

#[test]
fn mask_accepts_fresh_time_and_rejects_changed_word() {
    let (_dir, _store, space) = fresh();
    let ask = |calls: &dyn Calls, text: &str| {
        let request = format!(r#"{{"messages":[{{"role":"system","content":"{text}"}}]}}"#);
        calls.call(CHAT, request.as_bytes(), b"", || model(&request))
    };
    let recorder = recorder(&space, "r");
    let answer = ask(&recorder, "It is 2026-11-22T10:31:07Z.").unwrap();
    recorder.finish(Status::Ok).unwrap();
    let rules = || Rules::none().mask("$.messages[0].content", Shape::Time).unwrap();
    let masked = Replayer::new(&space.run("r").unwrap(), rules()).unwrap();
    assert_eq!(ask(&masked, "It is 2027-01-01T00:00:00Z.").unwrap(), answer);
    assert_eq!(line(&masked.finish()), "exact 0 of 1, same after the matcher 1, served 1, unused 0");
    let changed = Replayer::new(&space.run("r").unwrap(), rules()).unwrap();
    assert!(ask(&changed, "It was 2027-01-01T00:00:00Z.").unwrap_err().is_divergence());
    let unmasked = replayer(&space, "r");
    let text = ask(&unmasked, "It is 2027-01-01T00:00:00Z.").unwrap_err().to_string();
    assert!(text.contains("the rule `mask time $.messages[0].content` would cover it"), "{text}");
}

#[test]
fn one_changed_request_byte_diverges_naming_its_field() {
    let (_dir, _store, space) = fresh();
    let request = r#"{"messages":[{"content":"what is 2+2?","role":"user"}],"metadata":{"user id":"u1"},"model":"m1","temperature":0.5}"#;
    let recorder = recorder(&space, "r");
    recorder.call(CHAT, request.as_bytes(), b"", || model(request)).unwrap();
    recorder.finish(Status::Ok).unwrap();
    let fields = [
        ("what is 2+2?", "$.messages[0].content"),
        ("user\"", "$.messages[0].role"),
        ("u1", "$.metadata['user id']"),
        ("m1", "$.model"),
        ("0.5", "$.temperature"),
    ];
    let field = |at: usize| {
        let within = |(text, _): &&(&str, &str)| {
            (0..text.len()).any(|n| request.find(text).map(|p| p + n) == Some(at))
        };
        fields.iter().find(within).map(|(_, path)| *path)
    };
    let mut named = 0;
    for at in 0..request.len() {
        for flip in [0x01, 0x04, 0x80] {
            let mut asked = request.as_bytes().to_vec();
            asked[at] ^= flip;
            let replayer = replayer(&space, "r");
            let error = replayer.call(CHAT, &asked, b"", || model("")).unwrap_err();
            assert!(error.is_divergence(), "byte {at} ^ {flip}");
            let text = error.to_string();
            assert!(text.contains("$"), "byte {at} ^ {flip}: {text}");
            if let Some(path) = field(at) {
                assert!(text.contains(path), "byte {at} ^ {flip} is in {path}: {text}");
                named += 1;
            }
            assert!(!replayer.finish().is_faithful());
        }
    }
    assert!(named > 60, "{named}");
    let other = replayer(&space, "r").call("POST /v1/responses", request.as_bytes(), b"", || model(""));
    assert!(other.unwrap_err().is_divergence(), "the same body on another path");
}

#[test]
fn failed_calls_come_back_as_failures_and_not_as_divergences() {
    let (_dir, _store, space) = fresh();
    let ask = |calls: &dyn Calls| calls.call(CHAT, b"{}", b"", || Err::<Vec<u8>, _>("429: retry after 2 s"));
    let recorder = recorder(&space, "r");
    assert_eq!(ask(&recorder).unwrap_err().to_string(), "429: retry after 2 s");
    let tool = recorder.exchange(Request::tool("search", b"q"), Box::new(|| Ok(b"found".to_vec()))).unwrap();
    assert_eq!(tool, b"found");
    recorder.finish(Status::Failed).unwrap();
    let frame = space.run("r").unwrap().frame(1).unwrap();
    assert!(frame.error);
    assert_eq!(frame.component, Component::Llm);
    let replayer = replayer(&space, "r");
    let error = ask(&replayer).unwrap_err();
    assert!(matches!(&error, CallError::Failed(what) if what == "429: retry after 2 s"), "{error:?}");
    assert!(!error.is_divergence());
    let never = || panic!("a replay makes no call");
    assert_eq!(replayer.exchange(Request::tool("search", b"q"), Box::new(never)).unwrap(), b"found");
    let again = ask(&replayer).unwrap_err();
    assert!(again.is_divergence() && again.to_string().contains("once more than it was recorded"), "{again}");
    assert_eq!(line(&replayer.finish()), "exact 2 of 2, unrecorded 1, served 2, unused 0");
}

#[test]
fn two_calls_swapped_diverge_and_do_not_hang() {
    let (_dir, _store, space) = fresh();
    let ask = |calls: &dyn Calls, text: &str| {
        let request = format!(r#"{{"prompt":"{text}"}}"#);
        calls.call(CHAT, request.as_bytes(), b"", || model(&request))
    };
    let recorder = recorder(&space, "r");
    let first = ask(&recorder, "one").unwrap();
    ask(&recorder, "two").unwrap();
    recorder.finish(Status::Ok).unwrap();
    let replayer = replayer(&space, "r").turn_timeout(Duration::from_millis(50));
    let error = ask(&replayer, "two").unwrap_err();
    assert!(error.is_divergence());
    assert!(error.to_string().contains("after those of another call (step 1)"), "{error}");
    assert_eq!(ask(&replayer, "one").unwrap(), first, "nobody waits for what was given up");
    assert_eq!(line(&replayer.finish()), "exact 2 of 2, given up 1, served 1, unused 0");
}

/// Eight threads with separate conversations; all first calls overlap.
fn threads(calls: &dyn Calls) -> (BTreeMap<usize, String>, Vec<usize>) {
    let (barrier, said, order) = (Barrier::new(8), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (barrier, said, order) = (&barrier, &said, &order);
            scope.spawn(move || {
                let mut text = format!("thread {thread}");
                for step in 0..5 {
                    let request = format!(r#"{{"prompt":"{text}"}}"#);
                    if step == 0 {
                        barrier.wait();
                    }
                    let answer = calls.call(CHAT, request.as_bytes(), b"", || {
                        if step == 0 {
                            // Calls end in another order than they begin.
                            barrier.wait();
                            std::thread::sleep(Duration::from_millis(20 * ((thread as u64 * 5 + 3) % 8)));
                        }
                        model(&request)
                    });
                    if step == 0 {
                        order.lock().unwrap().push(thread);
                    }
                    text = blake(&format!("{text} {}", String::from_utf8_lossy(&answer.unwrap())));
                }
                said.lock().unwrap().insert(thread, text);
            });
        }
    });
    (said.into_inner().unwrap(), order.into_inner().unwrap())
}

#[test]
fn eight_threads_get_their_own_answers_twenty_times() {
    let (_dir, _store, space) = fresh();
    let recorder = recorder(&space, "r");
    let (said, _) = threads(&recorder);
    recorder.finish(Status::Ok).unwrap();
    for seed in 0..20 {
        let replayer = match seed % 2 {
            0 => replayer(&space, "r"),
            _ => replayer(&space, "r").chaos(seed),
        };
        assert_eq!(threads(&replayer).0, said);
        assert_eq!(line(&replayer.finish()), "exact 40 of 40, served 40, unused 0");
    }
}

#[test]
fn answers_are_released_in_recorded_order() {
    let (_dir, _store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for n in 1..=7u32 {
        let mut frame = Frame::new(Component::Llm, format!("request {n}"), vec![n as u8])
            .metadata(format!(r#"{{"call":{{"name":"{CHAT}"}}}}"#));
        frame.started_ns = Some(1_000);
        // 7, 3, 6, 2, 5, 1, 4
        frame.duration_ns = 10 * u64::from(n * 5 % 7);
        run.record(frame).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let replayer = replayer(&space, "r").turn_timeout(Duration::from_secs(600));
    let ask = |n: u8| {
        let answer = replayer.call(CHAT, format!("request {n}").as_bytes(), b"", || model("")).unwrap();
        assert_eq!(answer, [n]);
    };
    // A thread that made a request and does not wait: without it, an answer waits for its turn for 3 seconds at most,
    // which is too short on a busy machine.
    ask(7);
    let (last, out) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for waits in [4, 5, 2] {
            let (last, out, ask) = (&last, &out, &ask);
            scope.spawn(move || {
                ask(waits);
                out.fetch_add(1, Ordering::SeqCst);
                if waits == 4 {
                    last.store(1, Ordering::SeqCst);
                }
            });
        }
        // However often the three threads run before that, none of them may get its answer.
        for _ in 0..10_000 {
            std::thread::yield_now();
        }
        assert_eq!(out.load(Ordering::SeqCst), 0, "3 and 6 had ended before");
        ask(3);
        ask(6);
        while out.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(last.load(Ordering::SeqCst), 0, "1 had ended before 4");
        ask(1);
    });
    assert_eq!(line(&replayer.finish()), "exact 7 of 7, served 7, unused 0");
    let chaos = Replayer::new(&space.run("r").unwrap(), Rules::none()).unwrap().chaos(1);
    std::thread::scope(|scope| {
        for n in 1..=7u8 {
            let chaos = &chaos;
            scope.spawn(move || {
                let answer = chaos.call(CHAT, format!("request {n}").as_bytes(), b"", || model("")).unwrap();
                assert_eq!(answer, [n], "each gets its own answer in any order");
            });
        }
    });
    assert_eq!(line(&chaos.finish()), "exact 7 of 7, served 7, unused 0");
}

#[test]
fn draws_are_served_by_kind_and_no_further() {
    let (_dir, _store, space) = fresh();
    let recorder = recorder(&space, "r");
    let nondet = recorder.nondet();
    let drawn = (nondet.now_ns().unwrap(), nondet.uuid().unwrap(), nondet.random_u64().unwrap());
    let mut many = vec![0; 5_000];
    for _ in 0..40 {
        nondet.fill(&mut many).unwrap();
    }
    let uuid = &drawn.1;
    assert!(
        uuid.len() == 36 && uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]),
        "{uuid}"
    );
    recorder.finish(Status::Ok).unwrap();
    let run: RunReader = space.run("r").unwrap();
    assert!(run.info().frames > 1, "many draws take several frames");
    let replaying = ReplayingNondet::new(&run).unwrap();
    assert_eq!(replaying.undrawn(), 43);
    assert_eq!(replaying.uuid().unwrap_err().kind(), ErrorKind::Diverged, "a clock was drawn here");
    assert_eq!(
        (replaying.now_ns().unwrap(), replaying.uuid().unwrap(), replaying.random_u64().unwrap()),
        drawn
    );
    assert_eq!(replaying.fill(&mut [0; 3]).unwrap_err().kind(), ErrorKind::Diverged, "the recorded length");
    let mut again = vec![0; 5_000];
    for _ in 0..40 {
        replaying.fill(&mut again).unwrap();
    }
    assert_eq!((again == many, replaying.undrawn()), (true, 0));
    assert_eq!(replaying.now_ns().unwrap_err().kind(), ErrorKind::Diverged, "none is left");
    let drifting = DriftingNondet(ReplayingNondet::new(&run).unwrap());
    let drifted = (drifting.now_ns().unwrap(), drifting.uuid().unwrap(), drifting.random_u64().unwrap());
    assert!(drifted.0 != drawn.0 && drifted.1 != drawn.1 && drifted.2 != drawn.2, "{drifted:?} {drawn:?}");
    drifting.fill(&mut again).unwrap();
    assert!(again != many);
    let system = SystemNondet::new(std::sync::Arc::new(RealIo::new()));
    assert_ne!(system.uuid().unwrap(), system.uuid().unwrap());
    assert_eq!(system.fill(&mut vec![0; 2 << 20]).unwrap_err().kind(), ErrorKind::Invalid);
}

/// The negative control moved the clock by a nanosecond and flipped the lowest bit of a number. A program that sends
/// seconds, or a number from 0 to 1 made of the upper bits, asked the same again, so its check passed although it
/// depends on its draws.
#[test]
fn negative_control_changes_coarse_uses_of_draws() {
    fn day(nondet: &dyn Nondet) -> annals::Result<u64> {
        Ok(nondet.now_ns()? / 1_000_000_000 / 86_400)
    }
    fn second_of_minute(nondet: &dyn Nondet) -> annals::Result<u64> {
        Ok(nondet.now_ns()? / 1_000_000_000 % 60)
    }
    fn tenths(nondet: &dyn Nondet) -> annals::Result<u64> {
        let share = (nondet.random_u64()? >> 11) as f64 / (1_u64 << 53) as f64;
        Ok((share * 10.0) as u64)
    }
    fn first_of_uuid(nondet: &dyn Nondet) -> annals::Result<u64> {
        Ok(u64::from_str_radix(&nondet.uuid()?[..8], 16).unwrap())
    }
    fn upper_bits_of_a_byte(nondet: &dyn Nondet) -> annals::Result<u64> {
        let mut byte = [0];
        nondet.fill(&mut byte)?;
        Ok(u64::from(byte[0] >> 6))
    }
    let uses = [day, second_of_minute, tenths, first_of_uuid, upper_bits_of_a_byte];
    let (_dir, _store, space) = fresh();
    for (number, used) in uses.into_iter().enumerate() {
        let name = format!("r{number}");
        let ask = |calls: &dyn Calls| {
            let request =
                format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, used(calls.nondet())?);
            calls.call(CHAT, request.as_bytes(), b"", || model(&request))
        };
        let recorder = recorder(&space, &name);
        let said = ask(&recorder).unwrap();
        recorder.finish(Status::Ok).unwrap();
        let exact = replayer(&space, &name);
        assert_eq!(ask(&exact).unwrap(), said);
        assert!(exact.finish().is_faithful());
        let drifting = replayer(&space, &name).drifting();
        assert!(ask(&drifting).unwrap_err().is_divergence(), "use {number}");
    }
    // Two readings of the clock keep their order and their distance; an id keeps its form.
    let recorder = recorder(&space, "order");
    let nondet = recorder.nondet();
    let times = [nondet.now_ns().unwrap(), nondet.now_ns().unwrap()];
    nondet.uuid().unwrap();
    recorder.finish(Status::Ok).unwrap();
    let drifting = DriftingNondet(ReplayingNondet::new(&space.run("order").unwrap()).unwrap());
    let drifted = [drifting.now_ns().unwrap(), drifting.now_ns().unwrap()];
    assert_eq!(drifted[1] - drifted[0], times[1] - times[0]);
    let uuid = drifting.uuid().unwrap();
    assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
}

#[test]
fn recording_failure_never_loses_the_answer() {
    let (_dir, _store, space) = fresh();
    let recorder = recorder(&space, "r");
    recorder.run().end(Status::Ok).unwrap();
    assert!(recorder.call(CHAT, b"{}", b"", || model("x")).is_ok());
    assert_eq!(recorder.finish(Status::Ok).unwrap_err().kind(), ErrorKind::Conflict);
}
