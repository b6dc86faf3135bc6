//! The seam between the store and the layer above it, whose records the store keeps and does not understand.
//!
//! The kinds [`SCHEMA_KINDS`] and the keyspaces of [`is_schema_space`] belong to that layer. Of a record of such a kind the store
//! asks the schema which keys lead to it, how it counts in the totals, and which vectors it has. Writing and recovery ask the
//! same questions, so both get the same index and the same sums.

use std::any::Any;
use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::codec::CodecError;
use crate::ids::NamespaceId;
use crate::log::record::{BodyRef, LogicalBody};

/// Record kinds of the layer above.
pub const SCHEMA_KINDS: RangeInclusive<u8> = 4..=8;
/// The keyspace of the layer above whose keys come and go soon: an ended version and the ones before it leave
/// the tables together. So an older version may come back: each reader checks the record that a key leads to.
pub const PASSING_SPACE: u32 = 11;

/// Whether a keyspace of the index belongs to the layer above. Of its keys only the newest version counts.
#[must_use]
pub fn is_schema_space(space: u32) -> bool {
    matches!(space, 2..=6 | PASSING_SPACE..=13)
}

/// What the layer above says about its records. One instance belongs to one open store.
pub trait RecordSchema: Any + Debug + Send + Sync {
    /// The name of a kind in messages.
    fn kind_name(&self, kind: u8) -> &'static str;

    /// Calls `add` with each key that leads to a record, and the code of the entry (`crate::kv::keys::AT` or
    /// [`crate::kv::keys::ENDED`]).
    ///
    /// # Errors
    /// Where the head is not one of this kind.
    fn post(&self, kind: u8, head: &[u8], add: &mut dyn FnMut(&[u8], u8)) -> Result<(), CodecError>;

    /// How a record counts in the totals.
    ///
    /// # Errors
    /// Where the head is not one of this kind.
    fn count(&self, kind: u8, head: &[u8]) -> Result<SchemaCounts, CodecError>;

    /// The vectors of a record; `None` where its kind has none.
    ///
    /// # Errors
    /// Where the record is not one of this kind.
    fn vectors(&self, kind: u8, logical: LogicalBody<'_>) -> Result<Option<SchemaVectors>, CodecError>;

    /// The key whose newest record has the vectors of an owner.
    fn owner_key(&self, uid: u64, seq: u32) -> Vec<u8>;

    /// The key that is there for as long as what has this number lives in this namespace.
    fn life_key(&self, namespace: NamespaceId, uid: u64) -> Vec<u8>;

    /// Compaction has moved records: forgets what was read from their old places.
    fn records_moved(&self);
}

/// How a record of the layer above counts in the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaCounts {
    /// Which total its bytes belong to, apart from those counted below.
    pub bytes: SchemaBytes,
    /// Bytes of its head that name blobs.
    pub recipe_bytes: u64,
    /// Bytes of its head that are links of a chain.
    pub chain_bytes: u64,
    /// Finished frames that it stands for.
    pub frames: u64,
    /// The number that it uses, of those that [`crate::kv::store_writer::StoreWriter::new_uid`] gives out.
    pub uid: Option<u64>,
}

/// The vectors of a record of the layer above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaVectors {
    /// Whose they are: a number of those that [`crate::kv::store_writer::StoreWriter::new_uid`] gives out, and one below it.
    pub owner: (u64, u32),
    /// By embedder.
    pub embeddings: Vec<(String, BodyRef)>,
    /// Their recipes, in order.
    pub tail: Vec<u8>,
}

/// A total of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaBytes {
    /// `crate::log::totals::Totals::frame_bytes`
    Frames,
    /// `crate::log::totals::Totals::run_bytes`
    Runs,
}
