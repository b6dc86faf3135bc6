//! Blobs: bytes stored under their BLAKE3 hash in the keyspace `annals.blobs`. The bodies of frames are not
//! among them: they belong to their run.

use annals::{
    BlobId, Durability, Keyspace, Namespace, Ticket,
    kv::{BlobReader, Content, History, StoredBlob},
};

use super::parse::{number, syntax};
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

/// The keyspace of stored blobs.
pub(crate) const BLOBS: &str = "annals.blobs";

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[("blob.put", put), ("blob.get", get)];

fn put(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let stored = call.stored.first().map(|(_, blob)| blob.clone());
    let id = stored.as_ref().map_or_else(|| BlobId::of(call.word(1)), StoredBlob::id);
    let content = stored.map_or_else(|| call.word(1).into(), Content::from);
    let ticket = put_blob_entry(call.work.namespace(), id, content)?;
    call.work.await_before_reply(ticket);
    Ok(Reply::text(id.to_string()))
}

fn put_blob_entry(space: &Namespace, id: BlobId, content: Content) -> annals::Result<Ticket> {
    let blobs = match space.find_keyspace(BLOBS)? {
        Some(blobs) => blobs,
        None => space.keyspace(BLOBS, History::Latest)?,
    };
    let mut batch = space.batch();
    batch.put(&blobs, &id.0, content);
    batch.submit_with(Durability::Disk)
}

/// Stores a blob that is already in the store under its id.
///
/// # Errors
/// Those of the store.
pub(crate) fn keep_blob(space: &Namespace, blob: StoredBlob) -> annals::Result<Ticket> {
    put_blob_entry(space, blob.id(), blob.into())
}

/// The blob with this id, as a stream.
///
/// # Errors
/// Those of the store; a malformed id.
pub(crate) fn blob_reader(space: &Namespace, id: &[u8]) -> Result<Option<BlobReader>, CommandRefusal> {
    let id = parse_blob_id(id)?;
    Ok(match space.find_keyspace(BLOBS)? {
        Some(blobs) => blobs.reader(&id)?,
        None => None,
    })
}

fn get(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let id = parse_blob_id(call.word(1))?;
    let range = match call.rest(2) {
        [] => None,
        [offset, length] => Some((number::<usize>(offset)?, number::<usize>(length)?)),
        _ => return Err(syntax()),
    };
    let blobs: Option<Keyspace> = call.work.namespace().find_keyspace(BLOBS)?;
    let Some(mut bytes) = blobs.map(|blobs| blobs.get(&id)).transpose()?.flatten() else {
        return Ok(Reply::Null);
    };
    if let Some((offset, length)) = range {
        bytes.truncate(offset.saturating_add(length));
        bytes.drain(..offset.min(bytes.len()));
    }
    if bytes.len() > BULK_BYTES_MAX {
        return Err(CommandRefusal(format!(
            "ERR a reply has at most {BULK_BYTES_MAX} bytes: ask for a part of it"
        )));
    }
    Ok(Reply::Bulk(bytes))
}

fn parse_blob_id(word: &[u8]) -> Result<[u8; 32], CommandRefusal> {
    let hash = blake3::Hash::from_hex(word);
    hash.map(Into::into).map_err(|_| "ERR a blob's id is 64 hexadecimal digits".into())
}
