//! Hashes of many records side by side.
//!
//! A record's leaf is the BLAKE3 hash of a short message, and one block after the other takes most of the time
//! of adding the record. The processor can work on the blocks of up to 16 messages at once. Messages of one
//! chunk are therefore collected: all their blocks but the last go through [`Platform::hash_many`], and the
//! last ones, which may be shorter, one by one. The hashes are the same as of `blake3::hash`.
//!
//! A batch of a single record has only one leaf. It waits for the digest of the batch, and goes beside that
//! ([`LeafHasher::hash_beside`]).

use std::sync::LazyLock;

use blake3::IncrementCounter;
use blake3::hazmat::ContextKey;
use blake3::platform::Platform;

use crate::log::ledger::MerkleHash;

/// Bytes of a block, and of a chunk: BLAKE3 hashes longer messages as a tree.
const BLOCK_BYTES: usize = 64;
const CHUNK_BYTES: usize = 1024;
/// The key of the plain hash, and the flags of blocks; BLAKE3's specification, sections 2.1 and 2.2.
const IV: [u32; 8] =
    [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A, 0x510E_527F, 0x9B05_688C, 0x1F83_D9AB, 0x5BE0_CD19];
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 1 << 1;
const ROOT: u8 = 1 << 3;
const DERIVE_KEY_MATERIAL: u8 = 1 << 6;
/// Maximum messages that the processor works on at once.
const LANES: usize = blake3::platform::MAX_SIMD_DEGREE;
/// Collected bytes from which on the messages are hashed, so that they are still in the processor's cache.
const COLLECTED_BYTES: usize = 32 << 10;

static PLATFORM: LazyLock<Platform> = LazyLock::new(Platform::detect);

/// See the module.
#[derive(Debug, Default)]
pub struct LeafHasher {
    /// The messages that are not hashed yet, end to end.
    bytes: Vec<u8>,
    /// Where each of them begins and ends in `bytes`, and its place in `hashes`.
    pending: Vec<PendingMessage>,
    hashes: Vec<MerkleHash>,
}

#[derive(Debug, Clone, Copy)]
struct PendingMessage {
    start: usize,
    end: usize,
    place: usize,
}

impl PendingMessage {
    /// Number of blocks before the last one.
    fn whole_blocks(self) -> usize {
        (self.end - self.start).saturating_sub(1) / BLOCK_BYTES
    }
}

impl LeafHasher {
    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pending.clear();
        self.hashes.clear();
    }

    /// Adds the message of these parts.
    pub fn push(&mut self, parts: &[&[u8]]) {
        let (start, place) = (self.bytes.len(), self.hashes.len());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let end = self.bytes.len();
        self.hashes.push([0; 32]);
        if end - start > CHUNK_BYTES {
            self.hashes[place] = *blake3::hash(&self.bytes[start..]).as_bytes();
            self.bytes.truncate(start);
            return;
        }
        self.pending.push(PendingMessage { start, end, place });
        if end >= COLLECTED_BYTES {
            self.hash_pending();
        }
    }

    /// The hashes of all messages since the last call, in their order.
    pub fn take_hashes(&mut self) -> impl Iterator<Item = MerkleHash> + '_ {
        self.hash_pending();
        self.hashes.drain(..)
    }

    /// Whether the only message is not hashed yet, and can be hashed beside another one of `other_bytes`.
    pub fn can_wait(&self, other_bytes: usize) -> bool {
        match *self.pending {
            [message] => {
                self.hashes.len() == 1
                    && message.whole_blocks() > 0
                    && (message.end - message.start..=CHUNK_BYTES).contains(&other_bytes)
            }
            _ => false,
        }
    }

    /// The hash of `other`. If the only message waits for it, both are hashed side by side.
    pub fn hash_beside(&mut self, other: &[u8]) -> MerkleHash {
        let ([message], true) = (&*self.pending, self.can_wait(other.len())) else {
            return *blake3::hash(other).as_bytes();
        };
        let own = &self.bytes[message.start..message.end];
        let mut states = [[0; 32]; 2];
        hash_whole_blocks(&[own, other], message.whole_blocks(), states.as_flattened_mut());
        self.hashes[message.place] = finish_chunk(own, message.whole_blocks(), &states[0]);
        let hash = finish_chunk(other, message.whole_blocks(), &states[1]);
        self.pending.clear();
        self.bytes.clear();
        hash
    }

    fn hash_pending(&mut self) {
        // Only messages of equally many blocks go side by side.
        self.pending.sort_by_key(|message| message.whole_blocks());
        for alike in self.pending.chunk_by(|one, other| one.whole_blocks() == other.whole_blocks()) {
            for few in alike.chunks(LANES) {
                let mut messages: [&[u8]; LANES] = [&[]; LANES];
                for (bytes, message) in messages.iter_mut().zip(few) {
                    *bytes = &self.bytes[message.start..message.end];
                }
                let blocks = few.first().map_or(0, |message| message.whole_blocks());
                let mut states = [[0; 32]; LANES];
                hash_whole_blocks(&messages[..few.len()], blocks, states.as_flattened_mut());
                for ((message, bytes), state) in few.iter().zip(messages).zip(&states) {
                    self.hashes[message.place] = finish_chunk(bytes, blocks, state);
                }
            }
        }
        self.pending.clear();
        self.bytes.clear();
    }
}

/// Hashes the first `blocks` blocks of each message; each has more. `states` receives 32 bytes for each.
fn hash_whole_blocks(messages: &[&[u8]], blocks: usize, states: &mut [u8]) {
    macro_rules! of_blocks {
        ($($count:literal)*) => {
            match blocks {
                $($count => hash_blocks::<{ $count * BLOCK_BYTES }>(messages, states),)*
                _ => {}
            }
        };
    }
    of_blocks!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

fn hash_blocks<const N: usize>(messages: &[&[u8]], states: &mut [u8]) {
    let mut inputs: [&[u8; N]; LANES] = [&[0; N]; LANES];
    for (input, message) in inputs.iter_mut().zip(messages) {
        if let Some(whole) = message.first_chunk() {
            *input = whole;
        }
    }
    PLATFORM.hash_many(&inputs[..messages.len()], &IV, 0, IncrementCounter::No, 0, CHUNK_START, 0, states);
}

/// Hashes what follows the first `done` blocks of a message of at most one chunk; `state` is what they left.
fn finish_chunk(message: &[u8], done: usize, state: &[u8; 32]) -> MerkleHash {
    if done == 0 {
        return compress_last(IV, message, CHUNK_START);
    }
    let mut words = words_of(state);
    let mut left = &message[done * BLOCK_BYTES..];
    while let Some((block, rest)) =
        left.split_first_chunk::<BLOCK_BYTES>().filter(|(_, rest)| !rest.is_empty())
    {
        #[expect(clippy::cast_possible_truncation, reason = "64")]
        PLATFORM.compress_in_place(&mut words, block, BLOCK_BYTES as u8, 0, 0);
        left = rest;
    }
    compress_last(words, left, 0)
}

/// The hash that blake3 derives from this context key and at most 64 bytes.
pub fn derive_from_block(context: &ContextKey, bytes: &[u8]) -> MerkleHash {
    compress_last(words_of(context), bytes, CHUNK_START | DERIVE_KEY_MATERIAL)
}

fn words_of(bytes: &[u8; 32]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Ends the only chunk of a message with its last block.
fn compress_last(mut words: [u32; 8], last: &[u8], flags: u8) -> MerkleHash {
    let mut block = [0; BLOCK_BYTES];
    block[..last.len()].copy_from_slice(last);
    #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
    PLATFORM.compress_in_place(&mut words, &block, last.len() as u8, 0, flags | CHUNK_END | ROOT);
    let mut hash = [0; 32];
    for (bytes, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + len) as u8).collect()
    }

    fn assert_hashed(lens: impl Iterator<Item = usize>) {
        let mut hasher = LeafHasher::default();
        let messages: Vec<_> = lens.map(message).collect();
        for message in &messages {
            let (one, two) = message.split_at(message.len() / 3);
            hasher.push(&[one, two]);
        }
        let hashes: Vec<_> = hasher.take_hashes().collect();
        let wanted: Vec<_> = messages.iter().map(|message| *blake3::hash(message).as_bytes()).collect();
        assert!(hashes == wanted, "of {} messages", messages.len());
        assert_eq!(hasher.take_hashes().count(), 0);
    }

    #[test]
    fn hashes_of_every_length_are_those_of_blake3() {
        assert_hashed(0..1100);
        assert_hashed((0..1100).rev());
        (0..1100).for_each(|len| assert_hashed([len].into_iter()));
    }

    #[test]
    fn message_beside_another_one_has_the_hash_of_blake3() {
        let mut together = 0;
        let more_bytes = [0, 1, 35, 64, 99, 600];
        for (own, other) in (0..1100).flat_map(|own| more_bytes.map(|more| (own, own + more))) {
            let mut hasher = LeafHasher::default();
            hasher.push(&[&message(own)]);
            together += usize::from(hasher.can_wait(other));
            let hash = hasher.hash_beside(&message(other));
            assert_eq!(hash, *blake3::hash(&message(other)).as_bytes(), "{own} beside {other}");
            let left: Vec<_> = hasher.take_hashes().collect();
            assert_eq!(left, [*blake3::hash(&message(own)).as_bytes()], "{own} beside {other}");
        }
        // From 65 bytes on, as long as the other one is a single chunk.
        assert_eq!(together, more_bytes.iter().map(|more| CHUNK_BYTES - 64 - more).sum::<usize>());
        // Two messages, and one that is longer than the other.
        let mut hasher = LeafHasher::default();
        hasher.push(&[&message(600)]);
        hasher.push(&[&message(600)]);
        assert!(!hasher.can_wait(700));
        hasher.clear();
        hasher.push(&[&message(600)]);
        assert!(!hasher.can_wait(599) && hasher.can_wait(600));
        assert_eq!(hasher.hash_beside(&message(100)), *blake3::hash(&message(100)).as_bytes());
        assert_eq!(hasher.take_hashes().count(), 1);
    }

    #[test]
    fn derived_block_is_the_hash_that_blake3_derives() {
        for len in 0..=BLOCK_BYTES {
            let wanted = blake3::derive_key("a context", &message(len));
            let context = blake3::hazmat::hash_derive_key_context("a context");
            assert_eq!(derive_from_block(&context, &message(len)), wanted, "{len}");
        }
    }

    #[test]
    fn equal_lengths_are_hashed_in_any_number() {
        for len in [1, 63, 64, 65, 128, 538, 1023, 1024, 1025] {
            (0..50).for_each(|count| assert_hashed(std::iter::repeat_n(len, count)));
        }
        // Short, long and equal ones in turn, more than are collected at once.
        assert_hashed((0..500).map(|number| [538, 40, 3000, 128][number % 4]));
    }
}
