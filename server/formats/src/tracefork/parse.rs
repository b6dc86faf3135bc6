//! The content of a tape, the same for each of its forms.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use crate::import::base64;
use serde::Deserialize;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::TapeRefusal;
use super::sqlite::{self, SqliteDatabase, SqliteValue};

pub(super) const MAGIC: &[u8] = b"TFTAPE\0";
/// The newest version of the binary form that can be read.
pub(super) const VERSION_MAX: u16 = 4;
/// Maximum number of raw bytes of all blobs together.
const RAW_BYTES_MAX: u64 = 1 << 30;

type TraceforkBody = Arc<Vec<u8>>;
/// A request and its answer.
type TapeBodyPair = (TraceforkBody, TraceforkBody);

/// An event. The events are in the tape's order.
#[derive(Debug, Clone, PartialEq)]
pub enum TapeEvent {
    /// Kind and value of a draw.
    Draw(String, String),
    /// Request and answer of a model call.
    Exchange(TraceforkBody, TraceforkBody),
    /// Request and answer of a tool call.
    Tool(TraceforkBody, TraceforkBody),
}

/// A tape of tracefork.
#[derive(Debug, Default, PartialEq)]
pub struct TraceforkTape {
    pub agent_name: String,
    pub boundary: String,
    pub content_redacted: bool,
    /// The batches of overlapping calls as tracefork wrote them, if the tape has any.
    pub async_batches: Option<Json>,
    pub events: Vec<TapeEvent>,
}

/// Whether the bytes begin like one of the forms of a tape. Version 1 begins like any JSON object.
pub fn looks_like_tape(bytes: &[u8]) -> bool {
    bytes.starts_with(sqlite::MAGIC) || bytes.starts_with(MAGIC) || bytes.first() == Some(&b'{')
}

/// The header of the binary form. In version 1 it is the whole tape.
#[derive(Deserialize)]
struct TapeHeader {
    boundary: String,
    agent_name: String,
    #[serde(default)]
    content_redacted: bool,
    draws: Vec<(String, String)>,
    exchanges: Vec<(String, String)>,
    #[serde(default)]
    tool_exchanges: Vec<(String, String)>,
    #[serde(default)]
    async_batches: Option<Json>,
    #[serde(default)]
    blob_hashes: Vec<String>,
}

/// Bodies by their names, which are SHA-256 digests.
struct TapeBlobs {
    by_hash: HashMap<String, TraceforkBody>,
    raw: u64,
    raw_max: u64,
}

impl TapeBlobs {
    fn new(raw_max: u64) -> Self {
        Self { by_hash: HashMap::new(), raw: 0, raw_max }
    }

    /// Adds a blob. Fails if the blob's hash differs from its name.
    fn add(&mut self, hash: &str, compressed: &[u8]) -> Result<(), TapeRefusal> {
        let left = self.raw_max - self.raw;
        let mut bytes = Vec::new();
        let decoder = zstd::Decoder::with_buffer(compressed);
        let read = decoder.and_then(|decoder| decoder.take(left + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("blob {hash} does not decompress: {error}"))?;
        if bytes.len() as u64 > left {
            return Err(format!("its blobs have more than {} bytes", self.raw_max));
        }
        self.raw += bytes.len() as u64;
        if sha256_hex(&bytes) != hash {
            return Err(format!("blob {hash} is not what its name says: it was replaced or damaged"));
        }
        self.by_hash.insert(hash.to_owned(), Arc::new(bytes));
        Ok(())
    }

    fn pair(&self, (request, answer): (&str, &str)) -> Result<TapeBodyPair, TapeRefusal> {
        let of =
            |hash: &str| self.by_hash.get(hash).cloned().ok_or_else(|| format!("blob {hash} is missing"));
        Ok((of(request)?, of(answer)?))
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    annals_text::hex::encode(&Sha256::digest(bytes))
}

impl TraceforkTape {
    /// Reads a tape in any form and hashes every blob.
    pub fn read(bytes: &[u8]) -> Result<Self, TapeRefusal> {
        Self::read_within(bytes, RAW_BYTES_MAX)
    }

    /// Reads a tape whose blobs have at most `raw_max` raw bytes together.
    pub(super) fn read_within(bytes: &[u8], raw_max: u64) -> Result<Self, TapeRefusal> {
        let mut blobs = TapeBlobs::new(raw_max);
        if bytes.starts_with(sqlite::MAGIC) {
            return Self::from_database(bytes, blobs);
        }
        let Some(rest) = bytes.strip_prefix(MAGIC) else { return Self::from_json(bytes) };
        let (version, rest) = rest.split_first_chunk().ok_or("it ends in its head")?;
        let version = u16::from_be_bytes(*version);
        if !(2..=VERSION_MAX).contains(&version) {
            return Err(format!("it is of version {version}; 1 to {VERSION_MAX} are read"));
        }
        let (len, rest) = rest.split_first_chunk().ok_or("it ends in its head")?;
        let len = u32::from_be_bytes(*len) as usize;
        let (header, mut rest) = rest.split_at_checked(len).ok_or("it ends in its head")?;
        let header: TapeHeader = serde_json::from_slice(header).map_err(|e| format!("its head: {e}"))?;
        for hash in &header.blob_hashes {
            let (len, after) = rest.split_first_chunk().ok_or("it ends before its last blob")?;
            let len = u32::from_be_bytes(*len) as usize;
            let (blob, after) = after.split_at_checked(len).ok_or("it ends in a blob")?;
            blobs.add(hash, blob)?;
            rest = after;
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes follow its last blob", rest.len()));
        }
        Self::from_header(header, |pair| blobs.pair(pair))
    }

    /// Reads version 1: JSON with bodies in base64.
    fn from_json(bytes: &[u8]) -> Result<Self, TapeRefusal> {
        let header: TapeHeader = serde_json::from_slice(bytes).map_err(|e| format!("it is no tape: {e}"))?;
        let body = |text: &str| base64::decode(text).map(Arc::new).ok_or("a body is not base64".to_owned());
        Self::from_header(header, |(request, answer)| Ok((body(request)?, body(answer)?)))
    }

    fn from_header(
        header: TapeHeader,
        pair: impl Fn((&str, &str)) -> Result<TapeBodyPair, TapeRefusal>,
    ) -> Result<Self, TapeRefusal> {
        let TapeHeader { boundary, agent_name, content_redacted, async_batches, .. } = header;
        let mut events: Vec<_> =
            header.draws.into_iter().map(|(kind, value)| TapeEvent::Draw(kind, value)).collect();
        for (request, answer) in &header.exchanges {
            let (request, answer) = pair((request, answer))?;
            events.push(TapeEvent::Exchange(request, answer));
        }
        for (request, answer) in &header.tool_exchanges {
            let (request, answer) = pair((request, answer))?;
            events.push(TapeEvent::Tool(request, answer));
        }
        Ok(Self { agent_name, boundary, content_redacted, async_batches, events })
    }

    fn from_database(bytes: &[u8], mut blobs: TapeBlobs) -> Result<Self, TapeRefusal> {
        let mut database = SqliteDatabase::open(bytes)?;
        for row in database.table("blobs")? {
            let [SqliteValue::Text(hash), SqliteValue::Blob(data)] = row.as_slice() else {
                return Err("a row of its blobs is not as tracefork writes it".to_owned());
            };
            blobs.add(hash, data)?;
        }
        let mut tape = Self::default();
        for row in database.table("meta")? {
            let [key, value] = row.as_slice() else { return Err("its metadata is not pairs".to_owned()) };
            let value = value.text()?;
            match key.text()? {
                "boundary" => value.clone_into(&mut tape.boundary),
                "agent_name" => value.clone_into(&mut tape.agent_name),
                "content_redacted" => tape.content_redacted = value != "0",
                "async_batches" => tape.async_batches = serde_json::from_str(value).ok(),
                "schema_version" if !matches!(value, "1" | "2") => {
                    return Err(format!("its schema is of version {value}; 1 and 2 are read"));
                }
                _ => {}
            }
        }
        for row in database.table("events")? {
            let [_, kind, a, b] = row.as_slice() else {
                return Err("its events are not as written".to_owned());
            };
            let (kind, a, b) = (kind.text()?, a.text()?, b.text()?);
            tape.events.push(match kind {
                "draw" => TapeEvent::Draw(a.to_owned(), b.to_owned()),
                "exchange" => blobs.pair((a, b)).map(|(a, b)| TapeEvent::Exchange(a, b))?,
                "tool_exchange" => blobs.pair((a, b)).map(|(a, b)| TapeEvent::Tool(a, b))?,
                kind => return Err(format!("an event of the kind {kind:?} is not known")),
            });
        }
        Ok(tape)
    }

    /// tracefork's digest of the tape: SHA-256 over the draws, then the model calls, then the tool calls.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        let pair =
            |letter: char, a: &[u8], b: &[u8]| format!("{letter}:{}:{}\n", sha256_hex(a), sha256_hex(b));
        for turn in 0..3 {
            for event in &self.events {
                match (turn, event) {
                    (0, TapeEvent::Draw(kind, value)) => hasher.update(format!("D:{kind}:{value}\n")),
                    (1, TapeEvent::Exchange(a, b)) => hasher.update(pair('X', a, b)),
                    (2, TapeEvent::Tool(a, b)) => hasher.update(pair('T', a, b)),
                    _ => {}
                }
            }
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cli/tests/data/PROVENANCE.md names the source of this tape.
    const SINGLE_TURN: &[u8] = include_bytes!("../../../../cli/tests/data/tracefork_single_turn.tape.sqlite");
    const DIGEST: &str = "5020d10d6829cfd079f71dc0aa88c36e973302a8861eed9284f2eb70792139d1";

    fn digest_hex(digest: [u8; 32]) -> String {
        annals_text::hex::encode(&digest)
    }

    fn container(version: u16, header: &Json, blobs: &[&[u8]]) -> Vec<u8> {
        let header = header.to_string();
        let mut bytes = [MAGIC, &version.to_be_bytes(), &(header.len() as u32).to_be_bytes()].concat();
        bytes.extend(header.as_bytes());
        for blob in blobs {
            let blob = zstd::encode_all(*blob, 3).unwrap();
            bytes.extend((blob.len() as u32).to_be_bytes());
            bytes.extend(blob);
        }
        bytes
    }

    #[test]
    fn tracefork_tape_has_its_published_digest() {
        let tape = TraceforkTape::read(SINGLE_TURN).unwrap();
        assert_eq!(digest_hex(tape.digest()), DIGEST);
        assert_eq!((tape.agent_name.as_str(), tape.events.len()), ("single_turn", 1));
    }

    #[test]
    fn all_tape_forms_have_the_same_digest() {
        let draws = serde_json::json!([["clock", "1.5"], ["uuid", "u"]]);
        let (q, a) = (&b"{\"q\":1}"[..], &b"\xff answer"[..]);
        let header = |exchanges: Json, tools: Json| {
            serde_json::json!({ "boundary": "b", "agent_name": "n", "draws": draws, "exchanges": exchanges,
                "tool_exchanges": tools, "blob_hashes": [sha256_hex(q), sha256_hex(a)] })
        };
        let hashes = || serde_json::json!([[sha256_hex(q), sha256_hex(a)]]);
        let mut first =
            header(serde_json::json!([[base64::encode(q), base64::encode(a)]]), Json::Array(vec![]));
        first.as_object_mut().unwrap().remove("tool_exchanges");
        let one = TraceforkTape::read(first.to_string().as_bytes()).unwrap();
        let four =
            TraceforkTape::read(&container(4, &header(hashes(), Json::Array(vec![])), &[q, a])).unwrap();
        assert_eq!(one.events, four.events);
        assert_eq!(digest_hex(one.digest()), digest_hex(four.digest()));
        let tool = TraceforkTape::read(&container(3, &header(hashes(), hashes()), &[q, a])).unwrap();
        assert_ne!(digest_hex(tool.digest()), digest_hex(four.digest()));
        // Another blob under the old name, which tracefork itself accepts.
        let swapped = container(4, &header(hashes(), hashes()), &[q, b"another answer"]);
        assert!(TraceforkTape::read(&swapped).unwrap_err().contains("is not what its name says"));
        assert!(
            TraceforkTape::read(&container(6, &header(hashes(), hashes()), &[q, a]))
                .unwrap_err()
                .contains("version 6")
        );
    }

    /// A file of 128 KiB whose 20,000 rows are the same bytes of one page took 480 MB: each row was a copy.
    #[test]
    fn rows_that_share_their_bytes_are_refused() {
        const PAGE: usize = 1 << 16;
        let mut bytes = vec![0; 2 * PAGE];
        bytes[..16].copy_from_slice(sqlite::MAGIC);
        bytes[17] = 1; // pages of 64 KiB
        bytes[59] = 1; // UTF-8
        // A leaf whose cells all begin at the same place.
        let mut leaf = |page: usize, head: usize, cells: u16, place: u16, cell: &[u8]| {
            let page = &mut bytes[page * PAGE..][..PAGE];
            page[head] = 13;
            page[head + 3..][..2].copy_from_slice(&cells.to_be_bytes());
            for at in 0..usize::from(cells) {
                page[head + 8 + 2 * at..][..2].copy_from_slice(&place.to_be_bytes());
            }
            page[usize::from(place)..][..cell.len()].copy_from_slice(cell);
            bytes.clone()
        };
        // A cell: the length of its payload, its rowid, the payload: head, then values.
        leaf(0, 100, 1, 60_000, b"\x16\x01\x06\x17\x17\x17\x01\x00tableblobsblobs\x02");
        let row = [&b"\x81\xbb\x46\x01\x05\x0f\x82\xf7\x0dk"[..], &[b'v'; 24_000]].concat();
        for (rows, refusal) in [(1, "as tracefork writes it"), (20_000, "its rows share bytes")] {
            let refused = TraceforkTape::read(&leaf(1, 0, rows, 41_000, &row)).unwrap_err();
            assert!(refused.ends_with(refusal), "{rows} rows: {refused}");
        }
    }

    #[test]
    fn changed_or_cut_database_never_panics() {
        let mut refused = 0;
        for at in 0..SINGLE_TURN.len() {
            let mut bytes = SINGLE_TURN.to_vec();
            bytes[at] ^= 0x55;
            match TraceforkTape::read(&bytes) {
                Ok(tape) => drop(tape.digest()),
                Err(_) => refused += 1,
            }
        }
        for at in (0..SINGLE_TURN.len()).step_by(97) {
            let _ = TraceforkTape::read(&SINGLE_TURN[..at]).map(|tape| tape.digest());
        }
        assert!(refused > 300, "{refused}");
    }
}
