//! The sums of a batch: counts, bytes by kind, ids in use, and its leaf of the ledger. A caller sums up its
//! own batch before the writer sees it; recovery computes the same from the bytes on disk.

use crate::codec::{self, CodecError};
use crate::ids::Seqno;
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::erasure::ErasureHead;
use crate::log::layout::{BatchHeader, COUNT_MAX, ChainDigest, LogState, RawRecord, chain_digest_of};
use crate::log::leaf_hash::LeafHasher;
use crate::log::ledger::{Frontier, LedgerNode, leaf_hash, record_prefix};
use crate::log::record::{
    BodyRef, EmbeddingHead, KvHead, LAYOUT, LogicalBody, RecordKind, SpaceHead, group_and_namespace,
};
use crate::log::salts::BatchSalts;
use crate::log::totals::LogTotals;
use crate::schema::{RecordSchema, SchemaBytes};

/// What a batch adds to the state of the log.
#[derive(Debug, Clone, Default)]
pub struct BatchSums {
    totals: LogTotals,
    records: u64,
    /// Number of records that replace erased ones.
    stand_ins: u64,
    /// Number of seqnos: one per record, but for a record that replaces erased ones as many as it replaces.
    seqnos: u64,
    /// The small tree over the batch's logical records.
    logical: Frontier,
    salts: BatchSalts,
    /// Set if the batch replaces erased batches.
    batches: Option<ErasedBatches>,
    /// Greater than every id of its kind in the batch; 0 if there is none.
    next_group: u64,
    next_run: u64,
    next_space: u32,
}

/// Sums up a batch, record by record.
pub struct SumsBuilder<'a> {
    schema: &'a dyn RecordSchema,
    sums: BatchSums,
    /// Hashes of records that the batch's small tree does not have yet.
    leaves: &'a mut LeafHasher,
}

impl<'a> SumsBuilder<'a> {
    /// `leaves` is memory for reuse.
    pub fn new(schema: &'a dyn RecordSchema, leaves: &'a mut LeafHasher) -> Self {
        leaves.clear();
        Self { schema, sums: BatchSums::default(), leaves }
    }

    /// Adds a record.
    pub fn add_record(&mut self, seqno: Seqno, record: &RawRecord<'_>) -> Result<(), CodecError> {
        self.sums.add_record(self.schema, seqno, record, self.leaves)
    }

    /// The sums of all records.
    pub fn finish(mut self) -> BatchSums {
        self.sums.add_leaves(self.leaves);
        self.sums
    }

    /// As [`SumsBuilder::finish`], of a batch of `batch_bytes` whose digest follows. The leaf of a single record may
    /// wait for it: [`BatchSums::digest_batch`] then adds it.
    pub fn finish_before_digest(mut self, batch_bytes: usize) -> BatchSums {
        if !self.leaves.can_wait(batch_bytes) {
            self.sums.add_leaves(self.leaves);
        }
        self.sums
    }
}

impl BatchSums {
    fn add_record(
        &mut self,
        schema: &dyn RecordSchema,
        seqno: Seqno,
        record: &RawRecord<'_>,
        leaves: &mut LeafHasher,
    ) -> Result<(), CodecError> {
        self.records += 1;
        self.seqnos += 1;
        let Some(kind) = RecordKind::parse(record.kind, record.layout)? else { return Ok(()) };
        self.stand_ins += u64::from(matches!(kind, RecordKind::Erased | RecordKind::ErasedBatches));
        match kind {
            RecordKind::GroupPart | RecordKind::GroupRest => {
                self.totals.piece_bytes += u64::from(record.bytes);
                self.next_group = self.next_group.max(next_id(group_and_namespace(record.body)?.0)?);
                return Ok(());
            }
            RecordKind::Erased => {
                self.add_leaves(leaves);
                return self.add_erased(&ErasedRecords::parse(record.body)?, record.bytes);
            }
            RecordKind::ErasedBatches => {
                let gone = ErasedBatches::parse(record.body)?;
                self.seqnos = self.seqnos - 1 + gone.seqnos;
                self.totals.chain_bytes += u64::from(record.bytes);
                self.batches = Some(gone);
                return Ok(());
            }
            _ => {}
        }
        let logical = LogicalBody::of(record)?;
        let salt = self.salts.resolve(seqno, logical.salt)?;
        let prefix = record_prefix(&salt, record.kind, LAYOUT, seqno.0);
        leaves.push(&[&prefix, logical.head]);
        self.measure(schema, kind, u64::from(record.bytes), &logical)
    }

    /// The digest of the whole batch, whose header is written. Adds a leaf that waited for it.
    pub fn digest_batch(&mut self, batch: &[u8], leaves: &mut LeafHasher) -> ChainDigest {
        let digest = chain_digest_of(leaves.hash_beside(batch));
        self.add_leaves(leaves);
        digest
    }

    fn add_leaves(&mut self, leaves: &mut LeafHasher) {
        leaves.take_hashes().for_each(|hash| self.logical.push(hash));
    }

    fn add_erased(&mut self, gone: &ErasedRecords, bytes: u32) -> Result<(), CodecError> {
        self.seqnos = self.seqnos - 1 + gone.count;
        self.totals.chain_bytes += u64::from(bytes);
        gone.nodes.iter().try_for_each(|node| self.logical.push_node(*node))
    }

    /// Counts and bytes of the records.
    pub fn totals(&self) -> &LogTotals {
        &self.totals
    }

    /// Number of records, without those that replace erased ones.
    pub fn present_records(&self) -> u64 {
        self.records - self.stand_ins
    }

    /// Whether the batch replaces erased batches.
    pub fn stands_for_batches(&self) -> bool {
        self.batches.is_some()
    }

    /// Number of batches that it is or replaces.
    pub fn batches(&self) -> u64 {
        self.batches.map_or(1, |gone| gone.batches)
    }

    /// Number of seqnos of the records.
    pub fn seqnos(&self) -> u64 {
        self.seqnos
    }

    /// The batch's contribution to the ledger: its leaf, if any, or the subtree that it replaces.
    ///
    /// # Errors
    /// For a batch that replaces others but also holds other records.
    pub fn node(&self) -> Result<Option<LedgerNode>, CodecError> {
        match self.batches {
            None => Ok((self.logical.leaves > 0).then(|| LedgerNode::leaf(leaf_hash(&self.logical.root())))),
            Some(gone) if self.records == 1 => Ok(gone.node),
            Some(_) => Err(CodecError::Header("a batch of erased batches holds other records".into())),
        }
    }

    /// Adds a logical record's bytes to their kinds, and notes the ids it uses.
    fn measure(
        &mut self,
        schema: &dyn RecordSchema,
        kind: RecordKind,
        bytes: u64,
        logical: &LogicalBody<'_>,
    ) -> Result<(), CodecError> {
        let totals = &mut self.totals;
        let mut recipes = logical.tail.len() as u64;
        let mut chain = logical.salt.stored_bytes();
        let own = match kind {
            RecordKind::Schema(kind) => {
                let counts = schema.count(kind, logical.head)?;
                recipes += counts.recipe_bytes;
                chain += counts.chain_bytes;
                totals.frames += counts.frames;
                if let Some(uid) = counts.uid {
                    self.next_run = self.next_run.max(next_id(uid)?);
                }
                match counts.bytes {
                    SchemaBytes::Frames => &mut totals.frame_bytes,
                    SchemaBytes::Runs => &mut totals.run_bytes,
                }
            }
            RecordKind::Embedding => {
                let head = EmbeddingHead::parse(logical.head)?;
                recipes +=
                    head.embeddings.iter().map(|(_, vector)| BodyRef::recipe_bytes(vector)).sum::<u64>();
                &mut totals.kv_bytes
            }
            RecordKind::Put | RecordKind::Delete => {
                recipes += KvHead::peek(kind, logical.head)?.2;
                &mut totals.kv_bytes
            }
            RecordKind::Space => {
                let id = match codec::decode(logical.head)? {
                    SpaceHead::Namespace { id, .. } => id.0,
                    SpaceHead::Keyspace { id, .. } => id,
                };
                self.next_space = self.next_space.max(id.saturating_add(1));
                &mut totals.run_bytes
            }
            RecordKind::Erasure => {
                ErasureHead::parse(logical.head)?;
                &mut totals.run_bytes
            }
            RecordKind::GroupPart
            | RecordKind::GroupRest
            | RecordKind::Erased
            | RecordKind::ErasedBatches => return Ok(()),
        };
        *own += bytes.saturating_sub(recipes + chain);
        totals.recipe_bytes += recipes;
        totals.chain_bytes += chain;
        Ok(())
    }
}

/// The id after this one.
fn next_id(id: u64) -> Result<u64, CodecError> {
    match id < COUNT_MAX {
        true => Ok(id + 1),
        false => Err(CodecError::Limit { what: "a run or group number", found: id, limit: COUNT_MAX }),
    }
}

impl LogState {
    /// Adds a batch with this header, these sums and this digest; returns its contribution to the ledger, if
    /// any.
    ///
    /// # Errors
    /// For an invalid batch of a rewritten segment. The state is unchanged then.
    pub fn advance(
        &mut self,
        header: &BatchHeader,
        sums: &BatchSums,
        chain: ChainDigest,
    ) -> Result<Option<LedgerNode>, CodecError> {
        let node = sums.node()?;
        let next = header.first_seqno.0.saturating_add(sums.seqnos);
        if next > COUNT_MAX {
            return Err(CodecError::Limit { what: "a record's number", found: next, limit: COUNT_MAX });
        }
        if let Some(node) = node {
            self.ledger.push_node(node)?;
        }
        self.totals.add(&sums.totals);
        self.totals.batches += 1;
        self.totals.records += sums.records;
        self.totals.chain_bytes += header.own_bytes();
        self.next_group = self.next_group.max(sums.next_group);
        self.next_run = self.next_run.max(sums.next_run);
        self.next_space = self.next_space.max(sums.next_space);
        self.next_seqno = Seqno(next);
        self.chain = chain;
        self.newest_ns = self.newest_ns.max(header.time_ns);
        Ok(node)
    }
}
