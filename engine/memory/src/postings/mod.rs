//! Inverted indexes: of the word cards of memories, and of the texts of frames (`frame_texts`), which has parts only.
//!
//! The index of the word cards: which entries of a tenant hold a word, an n-gram or an identifier.
//! docs/format.md, section 20, has the layout.
//!
//! Each card gets a number, counted up in its *partition* (a tenant of a namespace). The newest cards are the
//! *tail*: a recall reads them one by one. Once the tail is long, its postings are written as a *part*, and
//! neighbouring parts are merged, so that a partition has few of them. A part is spread over many keys
//! (*buckets*, by the hash of the term), so a question reads only the postings of its own terms.
//!
//! Invariants:
//! - A card, its number's key and the removal of the card that it replaces are in one commit. Numbers are given out
//!   and batches are submitted under the memory's lock, so a reader that sees a number sees all lower ones.
//! - A number in a part is alive unless it is in the keyspace of removed numbers, which whatever deletes a
//!   card writes in the same commit (`annals::trace::belongings` for the cards of runs).
//! - The index follows from the cards. Without it, or if it is damaged, a recall reads every card, and the next write rebuilds
//!   it. Answers are equal either way.
//! - Names, ids and texts of an entry stand only under its own keys, never in a part.

mod bitmap;
mod find;
mod maintain;
mod merge;
mod meta;
mod part;
mod write;

pub(super) use bitmap::Bitmap;
pub(super) use part::{ENTRIES_MAX, PartRow, Term, for_each_term};

pub(super) use find::{
    AskedTenant, IndexCache, IndexFinding, ScoreFilter, TailCards, damaged, read_lists, read_rows,
};
pub(super) use maintain::{Numbering, TAIL_MAX, is_damage};
pub(super) use meta::{PartInfo, PartList};
pub(super) use write::{NewPart, PartPlace, commit_index, delete_parts, merged_from, write_part};

/// Ends of the names of the keyspaces of the index; the names begin with that of the keyspace of cards.
///
/// From a partition and a number to the key of the entry.
pub(super) const NUMBERS: &str = ".numbers";
/// The numbers in parts whose cards were deleted.
pub(super) const REMOVED: &str = ".removed";
/// The parts' postings.
pub(super) const POSTINGS: &str = ".postings";
/// The list of the parts of each partition.
pub(super) const PARTS: &str = ".parts";

/// A partition: the first bytes of the BLAKE3 of the tenant's prefix, so that no key holds a tenant's name.
pub(super) type Partition = [u8; 16];
/// A partition of a store: its namespace, the number of the keyspace of its entries, and its name there.
pub(super) type PartitionPlace = (annals_store::ids::NamespaceId, u32, Partition);
/// A partition and the number of a card, big-endian.
pub(super) type CardNumber = [u8; 24];

pub(super) fn partition_of(tenant_prefix: &str) -> Partition {
    let mut partition = [0; 16];
    partition.copy_from_slice(&blake3::hash(tenant_prefix.as_bytes()).as_bytes()[..16]);
    partition
}

pub(super) fn card_number(partition: &Partition, number: u64) -> CardNumber {
    let mut key = [0; 24];
    key[..16].copy_from_slice(partition);
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number in a key of [`NUMBERS`] or [`REMOVED`].
pub(super) fn number_of_key(key: &[u8]) -> Option<u64> {
    key.get(16..)?.try_into().ok().map(u64::from_be_bytes)
}
