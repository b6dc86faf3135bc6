//! Valid exchanges with bytes changed, cut and doubled: none may panic, and all results stay bounded.

use super::{anthropic, gemini, messages, openai, read_bytes};
use crate::providers::request_changes;
use crate::redact::Secrets;

const PATHS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1beta/models/g:streamGenerateContent",
    "/api/chat",
];
/// Bytes with a meaning for one of the readers.
const BYTES: &[u8] = b"{}[]\",:\\\n\r 0-9eE.ntu\x00\xff\xefdata\xc3";

/// A random generator (Steele, Lea and Flood, 2014: SplitMix64); a seed repeats a run.
struct MutationRng(u64);

impl MutationRng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((word ^ (word >> 31)) % limit as u64).unwrap()
    }
}

fn mutate(numbers: &mut MutationRng, body: &mut Vec<u8>) {
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(body.len());
        match numbers.below(4) {
            0 => body[at] = BYTES[numbers.below(BYTES.len())],
            1 => body.insert(at, BYTES[numbers.below(BYTES.len())]),
            2 => {
                let end = (at + numbers.below(40)).min(body.len() - 1);
                body.drain(at..end);
            }
            _ => {
                let piece = body[at..(at + numbers.below(60)).min(body.len())].to_vec();
                let to = numbers.below(body.len());
                body.splice(to..to, piece);
            }
        }
    }
    if numbers.below(4) == 0 {
        body.truncate(1 + numbers.below(body.len()));
    }
}

#[test]
fn changed_exchanges_never_panic() {
    let bodies = [
        openai::stream(),
        openai::response_events(),
        anthropic::stream(),
        format!("[{},\n{}]", gemini::FIRST, gemini::SECOND),
        format!("data: {}\r\n\r\n", gemini::SECOND),
        r#"{"model":"m","system":"s","tools":[{"name":"a"}],"messages":[{"role":"user","content":[{"type":"text","text":"go"}]},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"Error: x"}],"contents":[{"parts":[{"functionCall":{"name":"f"}}]}]}"#.to_owned(),
    ];
    let (secrets, _) = Secrets::new(&[("A".to_owned(), b"content\":\"".to_vec())]);
    for seed in 0..3000 {
        let mut numbers = MutationRng(seed);
        let original = bodies[numbers.below(bodies.len())].clone().into_bytes();
        let mut body = original.clone();
        mutate(&mut numbers, &mut body);
        let path = PATHS[numbers.below(PATHS.len())];
        let kind = ["application/json", "text/event-stream"][numbers.below(2)];
        println!("seed {seed}: {path} {kind} {}", String::from_utf8_lossy(&body));
        let summary = read_bytes(path, &String::from_utf8_lossy(&body), 200, kind, &body);
        assert!(summary.to_json().to_string().len() < 64 << 10);
        let api = super::api(path);
        assert!(messages(&api, &body).len() < 100);
        let new = request_changes(&api, &original, &body);
        assert!(new.to_string().len() < 64 << 10);
        let redacted = secrets.redact(&body);
        assert_eq!(redacted.border(body.len()), redacted.bytes.len());
        let again = secrets.redact(&redacted.bytes);
        assert_eq!(again.removed, 0);
    }
}
