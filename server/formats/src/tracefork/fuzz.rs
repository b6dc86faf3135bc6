//! Fuzz target for tapes of tracefork.

use annals_text::hex;
use sha2::{Digest, Sha256};

use super::parse::{MAGIC, TapeEvent, TraceforkTape, VERSION_MAX};
use super::sqlite;
use crate::fuzzing::take_byte;

/// Maximum raw bytes of a tape's blobs together.
const RAW_BYTES_MAX: u64 = 1 << 20;
/// Bytes of SQLite's smallest page, and of the head of the first one.
const PAGE_BYTES: usize = 512;
const HEAD_BYTES: usize = 100;

/// Input: a byte that selects the form, then a tape as it is; the pages of a database behind a correct head;
/// or bodies, of which a correct binary tape is made.
///
/// Oracle: the same result each time; the draws of a database are no longer than its file; a tape made of
/// bodies has these bodies, and is refused if one of them is replaced.
pub fn tracefork(mut data: &[u8]) {
    let form = take_byte(&mut data);
    match form % 3 {
        0 => drop(read_twice(data)),
        1 => {
            let mut file = vec![0; HEAD_BYTES];
            file[..16].copy_from_slice(sqlite::MAGIC);
            file[16..18].copy_from_slice(&(PAGE_BYTES as u16).to_be_bytes());
            file[59] = 1;
            file.extend_from_slice(data);
            file.resize(file.len().next_multiple_of(PAGE_BYTES), 0);
            let events = read_twice(&file).map(|tape| tape.events).unwrap_or_default();
            let drawn = events.iter().map(|event| match event {
                TapeEvent::Draw(kind, value) => kind.len() + value.len(),
                _ => 0,
            });
            assert!(drawn.sum::<usize>() <= file.len(), "rows share bytes");
        }
        _ => built(form, data),
    }
}

fn read_twice(bytes: &[u8]) -> Option<TraceforkTape> {
    let read = || {
        TraceforkTape::read_within(bytes, RAW_BYTES_MAX).map(|tape| {
            let digest = tape.digest();
            (tape, digest)
        })
    };
    let (once, again) = (read(), read());
    assert_eq!(once, again);
    once.ok().map(|(tape, _)| tape)
}

/// Makes a tape whose calls are pairs of neighbouring bodies.
fn built(form: u8, mut data: &[u8]) {
    let mut bodies = Vec::new();
    while !data.is_empty() {
        let len = usize::from(take_byte(&mut data)).min(data.len());
        let (body, rest) = data.split_at(len);
        bodies.push(body);
        data = rest;
    }
    let names: Vec<_> = bodies.iter().map(|body| hex::encode(&Sha256::digest(body))).collect();
    let calls: Vec<_> = names.windows(2).collect();
    let (exchanges, tools) = calls.split_at(calls.len() / 2);
    let header = serde_json::json!({ "boundary": "b", "agent_name": "n", "draws": [], "blob_hashes": names,
        "exchanges": exchanges, "tool_exchanges": tools })
    .to_string();
    let version = 2 + u16::from(form / 3) % (VERSION_MAX - 1);
    let tape_of = |bodies: &[&[u8]]| {
        let mut tape = [MAGIC, &version.to_be_bytes(), &(header.len() as u32).to_be_bytes()].concat();
        tape.extend_from_slice(header.as_bytes());
        for body in bodies {
            let Ok(blob) = zstd::bulk::compress(body, 1) else { return None };
            tape.extend_from_slice(&(blob.len() as u32).to_be_bytes());
            tape.extend_from_slice(&blob);
        }
        Some(tape)
    };
    let tape = tape_of(&bodies).and_then(|tape| read_twice(&tape));
    let read = tape.as_ref().map(|tape| tape.events.iter().filter_map(bodies_of).collect::<Vec<_>>());
    let written = bodies.windows(2).map(|pair| (pair[0], pair[1])).collect();
    assert_eq!(read, Some(written), "a correct tape is refused, or has other bodies");
    if let Some(first) = bodies.first_mut() {
        let other = [*first, b"!"].concat();
        *first = &other;
        let swapped = tape_of(&bodies).and_then(|tape| read_twice(&tape));
        assert!(swapped.is_none(), "a replaced body is accepted");
    }
}

fn bodies_of(event: &TapeEvent) -> Option<(&[u8], &[u8])> {
    match event {
        TapeEvent::Exchange(request, answer) | TapeEvent::Tool(request, answer) => Some((request, answer)),
        TapeEvent::Draw(..) => None,
    }
}
