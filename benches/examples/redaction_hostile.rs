//! Looks for inputs that make redaction by the profile `safe` slow, and prints the slowest.
//!
//! `cargo run --profile dist -p annals-benches --example redaction_hostile -- [SEEDS [FIRST_SEED]]`
//! For each seed (default: 8000 from 1) it joins 1 to 12 random words into a piece and repeats the piece to a body of
//! 64 KiB. The words are the prefixes of the rules of keys, secret names, separators, numbers, addresses and disguises;
//! one body in two begins as JSON, an event stream or a text in JSON. Each body is redacted three times, and its fastest
//! time counts. The slowest 20 bodies are then redacted again at 4 MiB, seven times, and printed by their medians.
//!
//! Neither search nor answer depends on time: the same seeds give the same bodies.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::time::Instant;

use annals_server::profiles::{Profile, Redactor};

/// Bytes of a body in the first pass, and in the second.
const SHORT_BYTES: usize = 64 << 10;
const LONG_BYTES: usize = 4 << 20;
const SHORT_ROUNDS: usize = 3;
const LONG_ROUNDS: usize = 7;
/// Words of a piece at most.
const WORDS_MAX: u64 = 12;
const SHOWN: usize = 20;
/// MB/s that no input should be slower than.
const GOAL: f64 = 20.0;

/// Tables of the rules of keys: the first column holds prefixes.
const RULES: [&str; 2] = [
    include_str!("../../server/policy/rules/betterleaks.tsv"),
    include_str!("../../server/policy/rules/own.tsv"),
];

/// Words of the other detectors, and what stands around values.
const WORDS: &[&str] = &[
    "password",
    "Password",
    "DB_PASSWORD",
    "pwd",
    "secret",
    "api_key",
    "token",
    "access_token",
    "passphrase",
    "dob",
    "birth",
    "born",
    "ssn",
    "social security",
    "passport",
    "number",
    "is ",
    "phone",
    "tel",
    "bearer ",
    "Bearer ",
    "Basic ",
    "-----BEGIN ",
    "PRIVATE KEY-----",
    "eyJ",
    "eyJhbGci",
    "base64,",
    "zoo",
    "ability",
    "abandon",
    "4111",
    "1111",
    "415",
    "555",
    "0100",
    "1.1.1.1",
    "fe80::1",
    "::1",
    "::",
    "DE89",
    "GB29",
    "+49",
    "(",
    ")",
    "@",
    "a@b.de",
    "user",
    "://",
    "https://",
    ".",
    ",",
    ":",
    "=",
    "&",
    "?",
    "/",
    "-",
    "_",
    "+",
    "~",
    "#",
    ";",
    "$",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    "'",
    "\"",
    "\\",
    "\\n",
    "\\u0041",
    "\\\"",
    "\n",
    "\t",
    " ",
    "  ",
    "&amp;",
    "&#64;",
    "&quot;",
    "%41",
    "%40",
    "%",
    "\u{200b}",
    "\u{ff21}",
    "\u{e9}",
    "\u{4e2d}",
    "0",
    "1",
    "9",
    "a",
    "A",
    "x1",
    "Ab1",
    "deadbeef",
    "0123456789",
    "aB3dE5gH7jK9mN1p",
    "id",
    "_id",
    "delta",
    "content",
    "data: ",
    "\"delta\":\"",
    "\",\"",
    "{\"a\":\"",
];

const HEADS: &[&str] =
    &["{\"", "{\"delta\":\"", "[\"", "data: {\"text\":\"", "\"", "{\"text\":\"{\\\"a\\\":\\\""];

struct HostileRng(u64);

impl HostileRng {
    fn below(&mut self, count: usize) -> usize {
        // SplitMix64 (Steele et al., 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % count as u64).unwrap()
    }
}

/// What a seed's body begins with, and the piece that follows again and again.
fn piece(seed: u64, prefixes: &[&'static str]) -> (&'static str, String) {
    let mut random = HostileRng(seed);
    let head = match random.below(2) {
        0 => "",
        _ => HEADS[random.below(HEADS.len())],
    };
    let count = 1 + random.below(usize::try_from(WORDS_MAX).unwrap());
    let mut piece = String::new();
    for _ in 0..count {
        piece += match random.below(4) {
            0 => prefixes[random.below(prefixes.len())],
            _ => WORDS[random.below(WORDS.len())],
        };
    }
    (head, piece)
}

fn body(head: &str, piece: &str, bytes: usize) -> Vec<u8> {
    [head, &piece.repeat(bytes.div_ceil(piece.len()))].concat().into_bytes()
}

fn megabytes_per_second(redactor: &Redactor, body: &[u8]) -> f64 {
    let begun = Instant::now();
    assert!(!redactor.body(body, None).bytes.is_empty());
    body.len() as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>().unwrap());
    let (seeds, first) = (numbers.next().unwrap_or(8000), numbers.next().unwrap_or(1));
    let prefixes: Vec<&'static str> = RULES
        .iter()
        .flat_map(|table| table.lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('\t').next())
        .collect();
    let redactor = Redactor::new(&Profile::safe(), [7; 32]);
    let mut speeds: Vec<(f64, u64)> = Vec::new();
    for seed in first..first + seeds {
        let (head, piece) = piece(seed, &prefixes);
        let body = body(head, &piece, SHORT_BYTES);
        let fastest = (0..SHORT_ROUNDS).map(|_| megabytes_per_second(&redactor, &body));
        speeds.push((fastest.fold(0.0, f64::max), seed));
    }
    speeds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let below = speeds.partition_point(|(speed, _)| *speed < GOAL);
    println!("{below} of {seeds} inputs are slower than {GOAL} MB/s");
    println!(
        "{seeds} inputs from seed {first}; the slowest {SHOWN}, at {LONG_BYTES} bytes, medians of {LONG_ROUNDS}:"
    );
    println!("{:>8} {:>12} {:>12}  piece", "seed", "MB/s short", "MB/s");
    let mut slowest = f64::INFINITY;
    for (short, seed) in speeds.into_iter().take(SHOWN) {
        let (head, piece) = piece(seed, &prefixes);
        let body = body(head, &piece, LONG_BYTES);
        let mut long: Vec<f64> = (0..LONG_ROUNDS).map(|_| megabytes_per_second(&redactor, &body)).collect();
        long.sort_by(f64::total_cmp);
        let median = long[LONG_ROUNDS / 2];
        slowest = slowest.min(median);
        println!("{seed:>8} {short:>12.1} {median:>12.1}  {head:?} {piece:?}");
    }
    println!("slowest: {slowest:.1} MB/s");
}
