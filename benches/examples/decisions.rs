//! Measures decisions: recording one with 20 captured inputs, beside a plain frame of a run with the same
//! bytes; and queries of 100,000 decisions by words and by words and vectors.
//!
//! `cargo run --profile dist -p annals-benches --example decisions [-- --decisions N] [--rounds N]`. Prints the
//! medians, the ratio, and the 99th percentiles. Run it on a quiet machine; the store is in the system's
//! folder for temporary files.
#![expect(clippy::print_stdout, reason = "a program that measures and prints")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::time::{Duration, Instant};

use annals::{Component, Durability, Frame, Options, RunSpec, Store};
use annals_benches::conversation::BenchRng;
use annals_benches::measure::quantile;
use annals_deliberation::{Caller, Deliberation, Method};

const INPUTS: usize = 20;
const DIMENSIONS: usize = 64;
const QUERIES: usize = 200;
const WORDS: usize = 20_000;

fn argument(name: &str, default: usize) -> usize {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == name);
    at.and_then(|at| args.get(at + 1)).map_or(default, |text| text.parse().unwrap())
}

fn told(name: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let (half, most) = (quantile(&times, 0.5), quantile(&times, 0.99));
    println!("{name:52} median {half:>10.1?}   p99 {most:>10.1?}");
    half
}

/// A word; low numbers are frequent, as in a language.
fn word(random: &mut BenchRng) -> String {
    let (one, other) = (random.next() % WORDS as u64, random.next() % WORDS as u64);
    format!("w{}", one * other / WORDS as u64)
}

fn vector(random: &mut BenchRng) -> String {
    let numbers = (0..DIMENSIONS).map(|_| format!("0.{:03}", 1 + random.next() % 998));
    format!("[{}]", numbers.collect::<Vec<_>>().join(","))
}

fn record(durability: Durability, rounds: usize) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { durability, ..Options::default() };
    let store = Store::open_with(directory.path().join("s"), options).unwrap();
    let space = store.namespace("default").unwrap();
    let decisions = Deliberation::open(&space).unwrap();
    let run = space.begin_run(RunSpec::new("plain")).unwrap();
    let caller = Caller::new("bench");
    let (mut recorded, mut framed) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for input in 0..INPUTS {
            let params =
                format!("{{\"text\":\"thought {input} of round {round}, as long as a short sentence\"}}");
            decisions.call(&caller, Method::RecordThought, &params).unwrap();
        }
        let params = format!("{{\"decision\":\"Decide {round}\",\"confidence\":0.5}}");
        let began = Instant::now();
        let answer = decisions.call(&caller, Method::RecordDecision, &params).unwrap();
        recorded.push(began.elapsed());
        assert!(answer.contains("\"deliberation_inputs_count\":20"), "{answer}");
        let id = answer.split("\"id\":\"").nth(1).unwrap().get(..8).unwrap();
        let keyspace = space.find_keyspace("annals.decisions").unwrap().unwrap();
        let bytes = keyspace.get(id.as_bytes()).unwrap().unwrap();
        let began = Instant::now();
        run.record(Frame::new(Component::Planner, params, bytes)).unwrap();
        framed.push(began.elapsed());
    }
    let (one, other) = (
        told(&format!("DELIB.RECORD with {INPUTS} inputs ({durability:?})"), recorded),
        told(&format!("a frame with the same bytes ({durability:?})"), framed),
    );
    println!("{:52} {:.2}", "ratio of the medians", one.as_secs_f64() / other.as_secs_f64());
}

fn query(count: usize) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(directory.path().join("s"), options).unwrap();
    let space = store.namespace("default").unwrap();
    let decisions = Deliberation::open(&space).unwrap();
    let caller = Caller { tracks: false, ..Caller::new("bench") };
    let mut random = BenchRng(7);
    for _ in 0..count {
        let text: Vec<String> = (0..12).map(|_| word(&mut random)).collect();
        let context: Vec<String> = (0..40).map(|_| word(&mut random)).collect();
        let params = format!(
            "{{\"decision\":\"{}\",\"context\":\"{}\",\"confidence\":0.5,\"embedding\":{},\"embeddingModel\":\"e\"}}",
            text.join(" "),
            context.join(" "),
            vector(&mut random)
        );
        decisions.call(&caller, Method::RecordDecision, &params).unwrap();
    }
    store.settle_vectors().unwrap();
    let began = Instant::now();
    decisions.call(&caller, Method::QueryDecisions, "{\"query\":\"first\"}").unwrap();
    println!("{:52} {:?}", format!("index of {count} decisions built, first query"), began.elapsed());
    for (name, with_vector) in [("a query by words", false), ("a query by words and vector", true)] {
        let mut times = Vec::new();
        for _ in 0..QUERIES {
            let text: Vec<String> = (0..6).map(|_| word(&mut random)).collect();
            let meaning = match with_vector {
                true => format!(",\"embedding\":{},\"embeddingModel\":\"e\"", vector(&mut random)),
                false => String::new(),
            };
            let params = format!("{{\"query\":\"{}\"{meaning}}}", text.join(" "));
            let began = Instant::now();
            decisions.call(&caller, Method::QueryDecisions, &params).unwrap();
            times.push(began.elapsed());
        }
        told(&format!("{name} of {count} decisions"), times);
    }
    let began = Instant::now();
    decisions.call(&caller, Method::GetDeliberationStats, "{}").unwrap();
    println!("{:52} {:?}", format!("statistics of {count} decisions"), began.elapsed());
}

fn main() {
    let rounds = argument("--rounds", 500);
    record(Durability::Process, rounds);
    record(Durability::Disk, rounds);
    query(argument("--decisions", 100_000));
}
