//! The records that replace erased ones in a rewritten segment: the number of erased seqnos, and the ledger
//! nodes that cover them. docs/format.md specifies the bytes.
//!
//! ```text
//! erased          count varint | nodes varint | (height u8 | node [32])*
//! erased batches  seqnos varint | batches varint | nothing, or: height u8 | node [32]
//! ```

use crate::codec::{ByteReader, CodecError, put_varint};
use crate::log::layout::{BATCH_BYTES_MAX, COUNT_MAX, RECORD_HEADER_BYTES_MIN, RawRecord};
use crate::log::ledger::LedgerNode;
use crate::log::record::RecordKind;

/// The greatest number of records in a batch.
const RECORDS_MAX: u64 = (BATCH_BYTES_MAX / RECORD_HEADER_BYTES_MIN) as u64;
/// Bytes of a node.
const NODE_BYTES: usize = 33;

/// Consecutive erased records of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasedRecords {
    /// The number of their seqnos: at least one.
    pub count: u64,
    /// Subtrees of the batch's small tree over the logical records among them, from the left.
    pub nodes: Vec<LedgerNode>,
}

impl ErasedRecords {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count);
        put_varint(out, self.nodes.len() as u64);
        self.nodes.iter().for_each(|node| put_node(node, out));
    }

    pub fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(body, "record of erased records");
        let count = check_count("erased records", r.varint()?, RECORDS_MAX)?;
        let listed = r.varint()?;
        let rest = r.take_rest();
        // Checked before anything is allocated.
        if !rest.len().is_multiple_of(NODE_BYTES) || listed != (rest.len() / NODE_BYTES) as u64 {
            return Err(CodecError::Header("erased records list a wrong number of nodes".into()));
        }
        let nodes: Vec<LedgerNode> =
            rest.chunks_exact(NODE_BYTES).map(take_node).collect::<Result<_, CodecError>>()?;
        let mut leaves = 0u64;
        for node in &nodes {
            leaves = leaves.saturating_add(node.leaves()?);
        }
        if leaves > count {
            return Err(CodecError::Header("erased records are fewer than their nodes cover".into()));
        }
        Ok(Self { count, nodes })
    }
}

/// Consecutive batches that were erased completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErasedBatches {
    /// Number of seqnos of their records.
    pub seqnos: u64,
    /// Number of the batches.
    pub batches: u64,
    /// The ledger's subtree over the leaves of the batches that have one.
    pub node: Option<LedgerNode>,
}

impl ErasedBatches {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.seqnos);
        put_varint(out, self.batches);
        if let Some(node) = &self.node {
            put_node(node, out);
        }
    }

    pub fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(body, "record of erased batches");
        let seqnos = check_count("erased records", r.varint()?, COUNT_MAX)?;
        let batches = check_count("erased batches", r.varint()?, seqnos)?;
        let node = match r.take_rest() {
            [] => None,
            bytes => Some(take_node(bytes)?),
        };
        if node.as_ref().map_or(Ok(0), LedgerNode::leaves)? > batches {
            return Err(CodecError::Header("erased batches are fewer than their node covers".into()));
        }
        Ok(Self { seqnos, batches, node })
    }
}

/// Number of seqnos that a record of a segment takes.
pub fn seqnos_of(record: &RawRecord<'_>) -> Result<u64, CodecError> {
    match record.kind {
        kind if kind == RecordKind::Erased.code() => Ok(ErasedRecords::parse(record.body)?.count),
        kind if kind == RecordKind::ErasedBatches.code() => Ok(ErasedBatches::parse(record.body)?.seqnos),
        _ => Ok(1),
    }
}

fn check_count(what: &'static str, found: u64, limit: u64) -> Result<u64, CodecError> {
    match (1..=limit).contains(&found) {
        true => Ok(found),
        false => Err(CodecError::Limit { what, found, limit }),
    }
}

fn put_node(node: &LedgerNode, out: &mut Vec<u8>) {
    out.push(node.height);
    out.extend_from_slice(&node.hash);
}

fn take_node(bytes: &[u8]) -> Result<LedgerNode, CodecError> {
    let mut r = ByteReader::new(bytes, "node of erased records");
    let node = LedgerNode { height: r.u8()?, hash: r.array()? };
    r.finish()?;
    node.leaves()?;
    Ok(node)
}
