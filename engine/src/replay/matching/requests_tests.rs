//! Tests of matching: the calls served, their order, and the grading of divergences.

use std::sync::Arc;

use super::*;
use crate::replay::matching::Shape;
use crate::sync::atomic::{AtomicUsize, Ordering};

const KEY: [u8; 32] = [7; 32];
const CHAT: &str = "POST /v1/chat/completions";

/// A recording of these requests, one after the other, and a counter of body reads.
fn recording(requests: &[(&str, &str)], rules: Rules) -> (Matching, Arc<AtomicUsize>) {
    let calls = (1..).zip(requests).map(|(seq, (name, body))| RecordedCall {
        seq,
        name: (*name).to_owned(),
        exact: CallHash::new(&KEY, name, body.as_bytes()),
        begun_ns: u64::from(seq) * 10,
        ended_ns: u64::from(seq) * 10 + 5,
        arrived: 0,
    });
    let bodies: Vec<Vec<u8>> = requests.iter().map(|(_, body)| body.as_bytes().to_vec()).collect();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let read = move |seq: u32| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(bodies[seq as usize - 1].clone())
    };
    (Matching::new(calls.collect(), read, rules, KEY).unwrap(), reads)
}

fn chat(text: &str) -> String {
    format!(r#"{{"messages":[{{"content":"{text}","role":"user"}}],"model":"m"}}"#)
}

fn diverged(answer: MatchOutcome) -> Divergence {
    match answer {
        MatchOutcome::Diverged(divergence) => *divergence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_requests_are_served_in_order_without_reading_bodies() {
    let body = chat("a");
    let (mut matching, reads) = recording(&[(CHAT, &body), (CHAT, &chat("b")), (CHAT, &body)], Rules::none());
    assert_eq!(matching.ask(CHAT, chat("b").as_bytes()).unwrap(), MatchOutcome::Exact(2));
    assert_eq!(matching.ask(CHAT, body.as_bytes()).unwrap(), MatchOutcome::Exact(1));
    assert_eq!(matching.ask(CHAT, body.as_bytes()).unwrap(), MatchOutcome::Exact(3));
    (1..=3).for_each(|seq| matching.mark_released(seq));
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    assert_eq!(matching.receipt().to_string(), "exact 3 of 3, served 3, unused 0");
    assert!(matching.receipt().is_faithful());
}

#[test]
fn a_request_asked_once_more_is_unrecorded_and_says_so() {
    let body = chat("a");
    let (mut matching, _) = recording(&[(CHAT, &body), (CHAT, &chat("b"))], Rules::none());
    matching.ask(CHAT, body.as_bytes()).unwrap();
    let found = diverged(matching.ask(CHAT, body.as_bytes()).unwrap());
    assert_eq!((found.grade, found.recorded_times), (Grade::Unrecorded, Some(1)));
    assert!(found.to_string().contains("once more than it was recorded (once)"), "{found}");
    let spaced = body.replace(':', " : ");
    let found = diverged(matching.ask(CHAT, spaced.as_bytes()).unwrap());
    assert_eq!(found.recorded_times, Some(1), "spacing makes no difference");
    assert_eq!(matching.receipt().missing, [2]);
}

#[test]
fn matched_call_is_served_once_and_its_body_read_once() {
    let rules = Rules::none().mask("$.messages[0].content", Shape::Time).unwrap();
    let (mut matching, reads) = recording(
        &[(CHAT, &chat("at 10:31:07")), (CHAT, &chat("at 10:45:00")), ("POST /v1/embeddings", "{}")],
        rules,
    );
    assert_eq!(matching.ask(CHAT, chat("at 11:00:00").as_bytes()).unwrap(), MatchOutcome::Matched(1));
    assert_eq!(reads.load(Ordering::Relaxed), 2, "bodies of the other route must not be read");
    assert_eq!(matching.ask(CHAT, chat("at 11:00:01").as_bytes()).unwrap(), MatchOutcome::Matched(2));
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    let found = diverged(matching.ask(CHAT, chat("at 10:45:00").as_bytes()).unwrap());
    assert_eq!(found.grade, Grade::Unrecorded, "the only recorded call was already served after the matcher");
    assert_eq!(found.step, Some(3));
    assert_eq!(
        matching.receipt().to_string(),
        "exact 0 of 3, same after the matcher 2, unrecorded 1, served 0, unused 1"
    );
}

#[test]
fn a_changed_request_names_the_nearest_call_and_the_field() {
    let long = "word ".repeat(100);
    let requests: Vec<String> =
        (0..5).map(|n| chat(&format!("{long} step {n} {}", "x".repeat(n * 40)))).collect();
    let recorded: Vec<_> = requests.iter().map(|body| (CHAT, body.as_str())).collect();
    let (mut matching, _) = recording(&recorded, Rules::none());
    let found = diverged(matching.ask(CHAT, requests[3].replace("\"m\"", "\"n\"").as_bytes()).unwrap());
    assert_eq!((found.grade, found.step), (Grade::Changed, Some(4)));
    assert_eq!(found.nearest.len(), NEAREST_MAX);
    let nearest = &found.nearest[0];
    assert_eq!((nearest.seq, nearest.distance, nearest.differences.len()), (4, 1, 1));
    assert_eq!(nearest.differences[0].path, "$.model");
    assert_eq!(nearest.differences[0].rule, None);
    let text = found.to_string();
    assert!(text.starts_with("at step 4 the program asked POST /v1/chat/completions"), "{text}");
    assert!(text.contains(r#"$.model: "m" was recorded, "n" was asked"#), "{text}");
    assert_eq!(matching.receipt().changed, 1);
}

#[test]
fn distant_request_or_other_route_is_unrecorded() {
    let (mut matching, _) = recording(&[(CHAT, &chat("a short question"))], Rules::none());
    let far = diverged(matching.ask(CHAT, br#"{"input":"something quite different, and long"}"#).unwrap());
    assert_eq!((far.grade, far.step, far.nearest.len()), (Grade::Unrecorded, Some(1), 1));
    let other = diverged(matching.ask("POST /v1/other", chat("a short question").as_bytes()).unwrap());
    assert_eq!((other.grade, other.step), (Grade::Unrecorded, Some(1)));
    assert_eq!(other.nearest[0].differences[0].path, "name", "an equal body on another path does not match");
    assert_eq!(matching.receipt().unrecorded, 2);
    let beta = format!("{CHAT}?beta=1");
    let query = diverged(matching.ask(&beta, chat("a short question").as_bytes()).unwrap());
    assert_eq!((query.grade, query.nearest[0].differences[0].path.as_str()), (Grade::Changed, "query.beta"));
}

#[test]
fn a_recording_without_its_secrets_still_knows_the_request() {
    let sent = chat("my key is sk-123");
    let call = RecordedCall {
        seq: 1,
        name: CHAT.to_owned(),
        exact: CallHash::new(&KEY, CHAT, sent.as_bytes()),
        begun_ns: 0,
        ended_ns: 1,
        arrived: 0,
    };
    let redacted = chat("my key is [redacted]").into_bytes();
    let mut matching = Matching::new(vec![call], move |_| Ok(redacted.clone()), Rules::none(), KEY).unwrap();
    assert_eq!(matching.ask(CHAT, sent.as_bytes()).unwrap(), MatchOutcome::Exact(1));
}

#[test]
fn a_call_out_of_turn_waits_and_says_for_whom() {
    let (mut matching, _) = recording(&[(CHAT, &chat("a")), (CHAT, &chat("b"))], Rules::none());
    assert_eq!(matching.ask(CHAT, chat("b").as_bytes()).unwrap(), MatchOutcome::Exact(2));
    assert!(!matching.may_release(2));
    assert_eq!(matching.blocking(2), [1]);
    matching.give_up(2);
    assert_eq!(matching.ask(CHAT, chat("a").as_bytes()).unwrap(), MatchOutcome::Exact(1));
    assert!(matching.may_release(1));
    matching.mark_released(1);
    assert_eq!(matching.receipt().to_string(), "exact 2 of 2, given up 1, served 1, unused 0");
    assert!(!matching.receipt().is_faithful());
}

#[test]
fn duplicate_call_numbers_and_unreadable_bodies_are_errors() {
    let call = RecordedCall {
        seq: 1,
        name: CHAT.to_owned(),
        exact: CallHash([0; 32]),
        begun_ns: 0,
        ended_ns: 0,
        arrived: 0,
    };
    let twice = Matching::new(vec![call.clone(), call.clone()], |_| Ok(Vec::new()), Rules::none(), KEY);
    assert_eq!(twice.unwrap_err().kind(), crate::ErrorKind::Invalid);
    let mut matching =
        Matching::new(vec![call], |_| Err(Error::not_found("gone")), Rules::none(), KEY).unwrap();
    assert_eq!(matching.ask(CHAT, b"x").unwrap_err().kind(), crate::ErrorKind::NotFound);
}

#[test]
fn ten_thousand_equal_calls_cost_each_the_same() {
    let body = chat(&"x".repeat(20_000));
    let calls = (1..=10_000).map(|seq| RecordedCall {
        seq,
        name: CHAT.to_owned(),
        exact: CallHash::new(&KEY, CHAT, body.as_bytes()),
        begun_ns: 0,
        ended_ns: u64::from(seq),
        arrived: 0,
    });
    let mut matching =
        Matching::new(calls.collect(), |_| Err(Error::bug("read")), Rules::none(), KEY).unwrap();
    for seq in 1..=10_000 {
        assert_eq!(matching.ask(CHAT, body.as_bytes()).unwrap(), MatchOutcome::Exact(seq));
        assert!(matching.may_release(seq));
        matching.mark_released(seq);
    }
    assert!(matching.receipt().is_faithful());
}

#[test]
fn hostile_depth_is_compared_as_bytes() {
    let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    let (mut matching, _) = recording(&[(CHAT, &deep(100_000))], Rules::none().ignore("$..id").unwrap());
    let found = diverged(matching.ask(CHAT, deep(99_999).as_bytes()).unwrap());
    assert_eq!((found.grade, found.nearest[0].differences[0].path.as_str()), (Grade::Changed, "body"));
    assert_eq!(matching.ask(CHAT, deep(100_000).as_bytes()).unwrap(), MatchOutcome::Exact(1));
}

/// Calls with one request, each given by its beginning, its end and its arrival.
fn identical(spans: &[(u64, u64, u64)]) -> Matching {
    let calls = (1..).zip(spans).map(|(seq, (begun_ns, ended_ns, arrived))| RecordedCall {
        seq,
        name: CHAT.to_owned(),
        exact: CallHash::new(&KEY, CHAT, b"{}"),
        begun_ns: *begun_ns,
        ended_ns: *ended_ns,
        arrived: *arrived,
    });
    Matching::new(calls.collect(), |_| Err(Error::bug("read")), Rules::none(), KEY).unwrap()
}

/// The frames that answer `count` such requests.
fn answers(matching: &mut Matching, count: usize) -> Vec<u32> {
    let mut ask = || match matching.ask(CHAT, b"{}").unwrap() {
        MatchOutcome::Exact(seq) => seq,
        other => panic!("{other:?}"),
    };
    (0..count).map(|_| ask()).collect()
}

/// Frames are numbered as they are stored. A program that records its own calls stores them in the order of
/// their ends.
#[test]
fn identical_requests_get_answers_in_the_order_they_began() {
    let mut matching = identical(&[(20, 30, 0), (10, 40, 0), (0, 50, 0)]);
    assert_eq!(answers(&mut matching, 3), [3, 2, 1]);
    let receipt = matching.receipt();
    assert_eq!(receipt.overlapped, 3);
    assert_eq!((matching.gap_after(1), matching.gap_after(2), matching.gap_after(3)), (10, 10, 0));
    let mut in_sequence = identical(&[(0, 10, 1), (10, 20, 2), (20, 30, 3)]);
    assert!(!in_sequence.has_batches() && in_sequence.has_repeats());
    assert_eq!(answers(&mut in_sequence, 3), [1, 2, 3]);
    assert_eq!((in_sequence.receipt().overlapped, in_sequence.gap_after(1)), (0, 10));
}

/// Regression: a program opened several connections at once, and on a busy machine the second was read and
/// answered before the first was read. A replay gave the first answer to the first connection.
#[test]
fn request_read_late_belongs_to_the_batch_it_arrived_in() {
    let mut matching = identical(&[(0, 10, 2), (20, 30, 1), (21, 40, 3), (50, 60, 4)]);
    let hash = CallHash::new(&KEY, CHAT, b"{}");
    assert_eq!((matching.unserved(&hash), matching.batch_len(&hash)), (4, 2));
    assert_eq!(answers(&mut matching, 2), [2, 1]);
    assert_eq!((matching.unserved(&hash), matching.batch_len(&hash)), (2, 1));
    assert_eq!(answers(&mut matching, 2), [3, 4]);
    assert_eq!(matching.unserved(&hash), 0);
}

#[test]
fn batch_is_what_was_under_way_before_its_first_answer() {
    // Calls 1 to 3 overlap; 4 began after 2 was answered; 5 is alone.
    let mut matching = identical(&[(0, 90, 7), (1, 50, 5), (2, 80, 6), (60, 95, 8), (200, 210, 9)]);
    assert!(matching.has_batches());
    let hash = CallHash::new(&KEY, CHAT, b"{}");
    let mut sizes = Vec::new();
    let mut order = Vec::new();
    for _ in 0..5 {
        sizes.push(matching.batch_len(&hash));
        order.extend(answers(&mut matching, 1));
    }
    assert_eq!((sizes, order), (vec![3, 2, 1, 1, 1], vec![2, 3, 1, 4, 5]));
    assert_eq!(matching.batch_len(&hash), 0);
    assert_eq!(matching.batch_len(&CallHash([1; 32])), 0);
    assert_eq!(matching.receipt().overlapped, 4);
}
