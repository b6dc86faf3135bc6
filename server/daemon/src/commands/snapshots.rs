//! Snapshots: an agent's state after a frame.

use annals::{Durability, Snapshot};

use super::parse::{field, number, run_reader, syntax, word_is};
use super::runs::open_run;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("snap.put", put),
    ("snap.get", |call| {
        let seq = number(call.word(2))?;
        Ok(snapshot_reply(run_reader(call, 1)?.snapshot(seq)?))
    }),
    ("snap.at", |call| {
        let seq = number(call.word(2))?;
        Ok(run_reader(call, 1)?.snapshot_at(seq)?.map_or(Reply::Null, snapshot_reply))
    }),
];

fn put(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (options, odd) = call.rest(3).as_chunks::<3>();
    if !odd.is_empty() || options.iter().any(|[option, ..]| !word_is(option, "EMBEDDING")) {
        return Err(syntax());
    }
    let mut embeddings = Vec::with_capacity(options.len());
    for [_, embedder, vector] in options {
        let embedder = std::str::from_utf8(embedder).map_err(|_| "ERR an embedder's id is UTF-8")?;
        embeddings.push((embedder, vector_from_bytes(vector)?));
    }
    let embeddings: Vec<(&str, &[f32])> =
        embeddings.iter().map(|(id, vector)| (*id, vector.as_slice())).collect();
    let open = open_run(call, 1)?;
    let mut batch = open.run.batch()?;
    batch.durability(Durability::Disk);
    let seq = batch.snapshot(call.word(2), &embeddings)?;
    let ticket = batch.submit()?;
    call.work.await_before_reply(ticket);
    Ok(Reply::Integer(seq.into()))
}

/// Decodes a vector of little-endian f32.
pub(super) fn vector_from_bytes(bytes: &[u8]) -> Result<Vec<f32>, CommandRefusal> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err("ERR a vector is of f32, four bytes each".into());
    }
    Ok(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn snapshot_reply(snapshot: Snapshot) -> Reply {
    let embeddings = snapshot.embeddings.into_iter().map(|(embedder, vector)| {
        let bytes = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
        (Reply::text(embedder), Reply::Bulk(bytes))
    });
    Reply::Map(vec![
        field("seq", Reply::Integer(snapshot.seq.into())),
        field("embeddings", Reply::Map(embeddings.collect())),
        field("state", Reply::Bulk(snapshot.state)),
    ])
}
