//! Shared helpers of this test binary: options, a seeded generator, a growing conversation.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::io::{Io, OpenMode};
use annals::{
    Component, Durability, Frame, Namespace, Options, ReadMode, RecordedFrame, Run, RunReader, RunSpec, Store,
};

use crate::forge::StoreFiles;

/// The default options, reading as `ANNALS_READ_MODE` says: `mapped` (the default) or `positional`.
pub(crate) fn defaults() -> Options {
    let read_mode = match std::env::var("ANNALS_READ_MODE").as_deref() {
        Err(_) | Ok("mapped") => ReadMode::Mapped,
        Ok("positional") => ReadMode::Positional,
        Ok(other) => panic!("ANNALS_READ_MODE={other}: mapped or positional"),
    };
    Options { read_mode, ..Options::default() }
}

/// Opens a store for writing with [`defaults`].
pub(crate) fn writer(path: impl AsRef<Path>) -> annals::Result<Store> {
    Store::open_with(path, defaults())
}

/// Opens a store for reading with [`defaults`].
pub(crate) fn reader(path: impl AsRef<Path>) -> annals::Result<Store> {
    Store::open_read_only_with(path, defaults())
}

/// A real disk, without waiting for syncs.
pub(crate) fn process_durability_options() -> Options {
    Options { durability: Durability::Process, zero_ahead_bytes: 64 << 10, ..defaults() }
}

/// A simulated disk, every commit synced.
pub(crate) fn sim_options(sim: &SimIo) -> Options {
    Options { io: Arc::new(sim.clone()), zero_ahead_bytes: 4 << 10, ..defaults() }
}

/// A new store on a real disk and its namespace; dropping the directory deletes it.
pub(crate) fn fresh() -> (tempfile::TempDir, Store, Namespace) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let space = store.namespace("default").unwrap();
    (dir, store, space)
}

/// The seed of a random test; also prints the command that repeats the test.
pub(crate) fn seed(fixed: u64, test: &str) -> u64 {
    let seed = std::env::var("ANNALS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(fixed);
    println!("repeat with: ANNALS_SEED={seed} cargo test -p annals --test engine {test} -- --exact");
    seed
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct SeededRng(pub(crate) u64);

impl SeededRng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Bytes that do not compress.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Random words.
    pub(crate) fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 12] = [
            "flight ", "refund ", "the ", "user ", "asks ", "to ", "cancel ", "book ", "4711 ", "ok ",
            "seat ", "a ",
        ];
        let mut text = Vec::with_capacity(len + 8);
        while text.len() < len {
            text.extend_from_slice(WORDS[self.below(WORDS.len())].as_bytes());
        }
        text.truncate(len);
        text
    }
}

/// Frame `seq` of a growing conversation: each request holds everything before it. Equal topics give equal
/// conversations.
#[derive(Debug)]
pub(crate) struct GrowingConversation {
    messages: String,
    topic: String,
    step: usize,
}

impl GrowingConversation {
    pub(crate) fn new(topic: &str) -> Self {
        let messages = format!(r#"{{"role":"system","content":"You are an airline agent. Topic: {topic}"}}"#);
        Self { messages, topic: topic.to_owned(), step: 0 }
    }
}

impl Iterator for GrowingConversation {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        self.step += 1;
        let request = format!(r#"{{"model":"m","messages":[{}]}}"#, self.messages);
        let mut rng =
            SeededRng(self.topic.bytes().fold(self.step as u64, |h, b| h.wrapping_mul(31) ^ u64::from(b)));
        let len = 20 + rng.below(400);
        let words = String::from_utf8(rng.text(len)).unwrap();
        let answer = format!(r#"{{"role":"assistant","content":"{} {words}"}}"#, self.step);
        self.messages.push(',');
        self.messages.push_str(&answer);
        Some((request.into_bytes(), answer.into_bytes()))
    }
}

/// Records the next `steps` steps of a conversation.
pub(crate) fn record(run: &Run, talk: &mut GrowingConversation, steps: usize) {
    for (request, answer) in talk.take(steps) {
        run.record(Frame::new(Component::Llm, request, answer)).unwrap();
    }
}

/// Begins a run and records `steps` steps of the conversation about its own name.
pub(crate) fn recorded(space: &Namespace, name: &str, steps: usize) -> (Run, GrowingConversation) {
    let run = space.begin_run(RunSpec::new(name)).unwrap();
    let mut talk = GrowingConversation::new(name);
    record(&run, &mut talk, steps);
    (run, talk)
}

/// Every frame of a run, verified.
pub(crate) fn frames(reader: &RunReader) -> Vec<RecordedFrame> {
    reader.frames().map(Result::unwrap).collect()
}

/// Inputs and outputs in order.
pub(crate) fn bodies(reader: &RunReader) -> Vec<(Vec<u8>, Vec<u8>)> {
    frames(reader).into_iter().map(|frame| (frame.input, frame.output)).collect()
}

/// Asserts that every byte of a store verifies.
pub(crate) fn assert_whole(store: &Store) {
    assert_eq!(store.verify().unwrap().damaged, []);
}

/// Deletes the index tables of a closed store on a real disk with their folder, as error messages and the
/// README advise.
pub(crate) fn delete_tables(store: &Path) {
    std::fs::remove_dir_all(store.join("tables")).unwrap();
}

/// Offset and length of each batch of a segment. Trusts the lengths in the bytes.
pub(crate) fn batches(segment: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 96;
    while let Some(bytes) = segment.get(at + 4..at + 8) {
        // The highest bits mark the short form, and joined batches.
        let len = (u32::from_le_bytes(bytes.try_into().unwrap()) & !(3 << 30)) as usize;
        if len < 35 || at + len > segment.len() || crc(segment, at, at + len) != u32_at(segment, at) {
            break;
        }
        found.push((at, len));
        at += len;
    }
    found
}

/// Recomputes the checksums of a changed batch as docs/format.md says; false if its record lengths no longer
/// add up.
pub(crate) fn reseal_batch(segment: &mut [u8], at: usize, len: usize) -> bool {
    // Behind the records of joined batches is a table.
    let is_joined = u32_at(segment, at + 4) >> 30 == 3;
    let end = if is_joined { at + u32_at(segment, at + 8) as usize } else { at + len };
    if !(at + 35..=at + len).contains(&end) {
        return false;
    }
    let mut record = at + 35;
    while record < end {
        // A varint after the checksum and the code.
        let (mut bytes, mut digit) = (0, record + 5);
        while digit < end {
            bytes |= ((segment[digit] & 127) as usize) << (7 * (digit - record - 5));
            digit += 1;
            if segment[digit - 1] < 128 || digit > record + 9 {
                break;
            }
        }
        if bytes < digit - record || record + bytes > end {
            return false;
        }
        let sum = crc(segment, record, record + bytes);
        segment[record..record + 4].copy_from_slice(&sum.to_le_bytes());
        record += bytes;
    }
    let sum = crc(segment, at, at + len);
    segment[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    true
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The salted checksum of the bytes from `at` to `end`, without its own four bytes.
fn crc(segment: &[u8], at: usize, end: usize) -> u32 {
    let mut salt = crc32fast::Hasher::new();
    salt.update(&segment[15..35]);
    let mut crc = crc32fast::Hasher::new_with_initial(salt.finalize());
    crc.update(&(at as u64).to_le_bytes());
    crc.update(&segment[at + 4..end]);
    crc.finalize()
}

/// The files of a store.
pub(crate) fn files(sim: &SimIo) -> StoreFiles {
    // The reserve holds disk space and no bytes.
    let ours = sim.files().into_iter().filter(|path| !path.ends_with("RESERVE"));
    ours.map(|path| (path.clone(), sim.read(&path).unwrap())).collect()
}

/// A disk with these files.
pub(crate) fn disk_of(files: &StoreFiles) -> SimIo {
    let sim = SimIo::new(6);
    for (path, bytes) in files {
        sim.create_dir_all(path.parent().unwrap()).unwrap();
        sim.open(path, OpenMode::CreateNew).unwrap().write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }
    sim
}
