//! Names of dropped runs: a request for a dropped run by its name reports when and by which rule it was dropped, also
//! after compaction has removed the run's record.
//!
//! The keyspace `annals.dropped` of the run's namespace holds no name. A key is the first 16 bytes of a BLAKE3 hash of
//! the name. The value is the time of the drop in eight bytes, little-endian, then the rule, a zero byte, and the reason.
//! The newest drop of a name counts. The value repeats what the tombstone says, because a repaired store has no
//! tombstones.
//!
//! A reader of the store can test with the hash whether a run of a guessed name was dropped.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::NamespaceId;
use crate::log::record::{BodyRef, KvHead, RecordKind};
use crate::trace::heads::TombstoneHead;
use annals_store::kv::core::Core;
use annals_store::kv::keyspace::{History, Keyspace};
use annals_store::kv::write::BatchWriter;

/// The keyspace of hashes of names.
pub(crate) const DROPPED: &str = "annals.dropped";
const HASH_CONTEXT: &str = "annals 2026-11 name of a dropped run";

/// What the keyspace says of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DroppedName {
    pub(crate) dropped_ns: u64,
    pub(crate) rule: String,
    pub(crate) why: String,
}

fn hash(name: &str) -> [u8; 16] {
    let whole = blake3::derive_key(HASH_CONTEXT, name.as_bytes());
    whole.first_chunk().copied().unwrap_or_default()
}

/// The keyspace of a namespace, which is made if there is none.
pub(crate) fn keyspace(core: &Arc<Core>, namespace: NamespaceId) -> Result<Keyspace> {
    core.keyspace(namespace, DROPPED, History::Latest)
}

/// Adds to a batch that the run of this name was dropped.
pub(crate) fn note(
    keyspace: &Keyspace,
    name: &str,
    head: &TombstoneHead,
    writer: &mut BatchWriter,
) -> Result<()> {
    let mut value = head.dropped_ns.to_le_bytes().to_vec();
    value.extend_from_slice(head.rule.as_bytes());
    value.push(0);
    value.extend_from_slice(head.why.as_bytes());
    let mut put = Vec::new();
    KvHead::put_key(keyspace.id(), head.dropped_ns, &hash(name), &mut put);
    BodyRef::put_inline(&value, &mut put);
    writer.add_record(RecordKind::Put, &put, &[])
}

/// What the keyspace says of this name.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub(crate) fn find(core: &Arc<Core>, namespace: NamespaceId, name: &str) -> Result<Option<DroppedName>> {
    let Some(keyspace) = core.find_keyspace(namespace, DROPPED)? else { return Ok(None) };
    let Some(value) = keyspace.get(&hash(name))? else { return Ok(None) };
    let parse = || {
        let (dropped_ns, rest) = value.split_first_chunk::<8>()?;
        let mut texts = rest.splitn(2, |byte| *byte == 0);
        let mut text = || String::from_utf8(texts.next()?.to_vec()).ok();
        Some(DroppedName { dropped_ns: u64::from_le_bytes(*dropped_ns), rule: text()?, why: text()? })
    };
    match parse() {
        Some(found) => Ok(Some(found)),
        None => Err(Error::new(ErrorKind::Damaged, "a note about a dropped run is malformed")),
    }
}
