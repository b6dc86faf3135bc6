//! Measures how fast bodies are redacted on one core, by the profile `safe` and by one with an additional
//! pattern. Prints megabytes a second of stored bodies, medians of seven rounds.
//!
//! `cargo run --profile dist -p annals-benches --example redaction [FILE ...]`
//! The bodies are requests of a growing conversation, and the same with values to find in every turn. Then
//! follow tool results full of ids, digests and numbers, a streamed answer, plain text, and the named files.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::fmt::Write as _;
use std::time::Instant;

use annals_benches::conversation::{BenchConversation, ConversationForm};
use annals_server::profiles::{Profile, Profiles, Redactor};

/// Bytes of each kind of body.
const BODY_BYTES: usize = 4 << 20;
const ROUNDS: usize = 7;

fn main() {
    let safe = Redactor::new(&Profile::safe(), [7; 32]);
    let file =
        "[[profile]]\nname = \"more\"\npatterns = { customer = 'C-\\d{6}' }\npaths = \"$..password\"\n";
    let profiles = Profiles::parse(file).unwrap();
    let more = Redactor::new(profiles.find("more").unwrap(), [7; 32]);
    println!("{:32} {:>10} {:>9} {:>12} {:>12}", "bodies", "bytes", "replaced", "safe MB/s", "more MB/s");
    let mut kinds = vec![
        ("requests of a conversation", conversation()),
        ("the same, values in every turn", vec![turns()]),
        ("results full of ids and numbers", vec![results()]),
        ("a streamed answer", vec![stream()]),
        ("plain text", vec![text()]),
    ];
    kinds.extend(HOSTILE.iter().map(|(name, piece)| (*name, vec![repeat(piece)])));
    kinds.push(("long base64", vec![long(64)]));
    kinds.push(("long digits", vec![long(10)]));
    kinds.push(("JSON in JSON in JSON", vec![nested()]));
    let named: Vec<(String, Vec<u8>)> =
        std::env::args().skip(1).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    kinds.extend(named.iter().map(|(path, body)| (path.as_str(), vec![body.clone()])));
    for (name, bodies) in kinds {
        let bytes: usize = bodies.iter().map(Vec::len).sum();
        let speed = |redactor: &Redactor| {
            let mut speeds: Vec<f64> =
                (0..ROUNDS).map(|_| megabytes_per_second(redactor, &bodies, bytes)).collect();
            speeds.sort_by(f64::total_cmp);
            speeds[ROUNDS / 2]
        };
        let replaced: usize = bodies.iter().map(|body| safe.body(body, None).replaced).sum();
        println!("{name:32} {bytes:>10} {replaced:>9} {:>12.0} {:>12.0}", speed(&safe), speed(&more));
    }
}

/// Pieces that each could make a detector search far from every position.
const HOSTILE: [(&str, &str); 25] = [
    ("sk-sk-...", "sk-"),
    ("lines of sk-a", "sk-a1\n"),
    ("xoxb-1-xoxb-1-...", "xoxb-1-"),
    ("AKIAAKIA...", "AKIA"),
    ("a=a=...", "a="),
    ("pwd=pwd=...", "pwd="),
    ("password: password: ...", "password: "),
    ("://a:a://a:a...", "://a:a"),
    ("eyJ.-eyJ.-...", "eyJ.-"),
    ("a@a@...", "a@"),
    ("1 1 1 ...", "1 "),
    ("ability ability ...", "ability "),
    ("dob dob ...", "dob "),
    ("&#64;&#64;...", "&#64;"),
    ("%41%41...", "%41"),
    ("pwd='pwd='...", "pwd='"),
    ("pwd='a1b2'...", "pwd='a1b2'"),
    ("token=token=...", "token="),
    ("1.1.1.1 1.1.1.1 ...", "1.1.1.1 "),
    ("a.b@c.de a.b@c.de ...", "a.b@c.de "),
    ("4111 1111 ...", "4111 1111 "),
    ("0 0 0 ...", "0 "),
    ("::1 ::1 ...", "::1 "),
    ("zoo zoo ...", "zoo "),
    // The slowest of 8,000 random ones: searched as written, decoded, and as JSON that was cut off.
    ("cut JSON with references and IPs", "{\"delta\":\":&amp;base64,fe80::1"),
];

fn repeat(piece: &str) -> Vec<u8> {
    piece.repeat(BODY_BYTES / piece.len()).into_bytes()
}

/// One word of random characters from the first `count` of base64, from its digits on.
fn long(count: u64) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/";
    let mut numbers = RedactionRng(4);
    (0..BODY_BYTES).map(|_| LETTERS[usize::try_from(numbers.next() % count).unwrap()]).collect()
}

fn nested() -> Vec<u8> {
    let mut body = String::from("{\"a\":[1,\"text of some words\",{\"password\":\"x\"}]}");
    while body.len() < BODY_BYTES {
        body = serde_json::json!({ "arguments": body, "more": body }).to_string();
        if body.len() < 64 << 10 {
            body = format!("[{body},{body}]");
        }
    }
    body.into_bytes()
}

fn megabytes_per_second(redactor: &Redactor, bodies: &[Vec<u8>], bytes: usize) -> f64 {
    let begun = Instant::now();
    let shown: usize = bodies.iter().map(|body| redactor.body(body, None).bytes.len()).sum();
    assert!(shown > 0);
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn conversation() -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let steps = BenchConversation::new(ConversationForm::Plain, 1).skip(20);
    let whole = steps.flat_map(|step| [step.request, step.response, step.tool_input, step.tool_output]);
    whole
        .take_while(|body| {
            bytes += body.len();
            bytes < BODY_BYTES
        })
        .collect()
}

/// Repeatable numbers that look random.
struct RedactionRng(u64);

impl RedactionRng {
    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele et al., 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn turns() -> Vec<u8> {
    let (mut numbers, mut body) = (RedactionRng(1), String::from("{\"messages\":["));
    let says = "I ordered it two weeks ago and nothing came so far.\\n\\nThe shop said \\\"soon\\\", but my neighbour had hers after three days; please look it up. ";
    while body.len() < BODY_BYTES {
        let (user, port) = (numbers.next() % 10_000, numbers.next() % 200);
        let _ = write!(
            body,
            r#"{{"role":"user","content":"{}write to user{user}@example.com or call (415) 555-0{port:03}. {says}"}},{{"role":"tool","tool_call_id":"call_{:016x}{:08x}","content":"{{\"host\":\"10.1.{port}.7\",\"rows\":[1,2,3],\"ok\":true}}"}},"#,
            says.repeat(3),
            numbers.next(),
            numbers.next() >> 32,
        );
    }
    body.push_str("{}]}");
    body.into_bytes()
}

fn results() -> Vec<u8> {
    let (mut numbers, mut body) = (RedactionRng(2), String::from("["));
    while body.len() < BODY_BYTES {
        let (a, b, c) = (numbers.next(), numbers.next(), numbers.next());
        let _ = write!(
            body,
            r#"{{"id":"{a:016x}{b:016x}","commit":"{c:016x}{a:016x}{:08x}","order":{},"at":"2026-11-{:02}T10:{:02}:12.{:06}Z","version":"{}.{}.{}","price":{}.{:02},"path":"/srv/app-{}/v{}/index.js"}},"#,
            b >> 32,
            c % 10_000_000_000,
            a % 28 + 1,
            b % 60,
            c % 1_000_000,
            a % 9,
            b % 40,
            c % 9,
            a % 1000,
            b % 100,
            c % 50,
            a % 7,
        );
    }
    body.push_str("{}]");
    body.into_bytes()
}

fn stream() -> Vec<u8> {
    let words =
        ["The ", "order ", "was ", "sent ", "to ", "you ", "on ", "Monday", ", ", "by ", "ship", ".\\n"];
    let (mut numbers, mut body) = (RedactionRng(3), String::new());
    while body.len() < BODY_BYTES {
        let word = words[usize::try_from(numbers.next() % 12).unwrap()];
        let _ = write!(
            body,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{word}\"}}}}\n\n"
        );
    }
    body.into_bytes()
}

fn text() -> Vec<u8> {
    let line = "2026-11-23 10:12:13 INFO worker-7 took job 48213 of queue default, 12 left; retry=0 took=12.5ms path=/v1/jobs\n";
    line.repeat(BODY_BYTES / line.len()).into_bytes()
}
