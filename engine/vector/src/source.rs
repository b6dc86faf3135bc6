//! Records that have vectors, found through the index, and whether their owners still have them.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::codec::ByteReader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RecordPlace, Seqno};
use crate::kv::bodies;
use crate::kv::core::Core;
use crate::kv::embeddings::{check_vector, vector_from_bytes};
use crate::kv::keys;
use crate::log::record::{BodyRef, EmbeddingHead, LogicalBody, RecipeRef, RecordKind, SpaceHead};
use crate::types::{OwnerId, RunUid, VectorOrigin};
use annals_store::schema::SchemaVectors;

/// Maximum number of runs whose namespace is remembered.
const RUNS_MAX: usize = 4096;

/// The namespace of each run, which a snapshot's record does not name.
#[derive(Debug, Default)]
pub struct RunNamespaces {
    known: HashMap<RunUid, NamespaceId>,
    namespaces: Vec<NamespaceId>,
}

impl RunNamespaces {
    /// The run's namespace; `None` if the run and its snapshots are gone.
    fn namespace(&mut self, core: &Core, run: RunUid) -> Result<Option<NamespaceId>> {
        if let Some(known) = self.known.get(&run) {
            return Ok(Some(*known));
        }
        let mut found = self.find_namespace(core, run)?;
        if found.is_none() {
            // Namespaces may have been added since.
            let spaces = core.list_spaces()?;
            self.namespaces = spaces.iter().filter_map(namespace_id).collect();
            found = self.find_namespace(core, run)?;
        }
        if let Some(namespace) = found {
            if self.known.len() >= RUNS_MAX {
                self.known.clear();
            }
            self.known.insert(run, namespace);
        }
        Ok(found)
    }

    fn find_namespace(&self, core: &Core, run: RunUid) -> Result<Option<NamespaceId>> {
        for namespace in &self.namespaces {
            if core.index.newest(&core.schema.life_key(*namespace, run.0))?.is_some() {
                return Ok(Some(*namespace));
            }
        }
        Ok(None)
    }
}

fn namespace_id(space: &SpaceHead) -> Option<NamespaceId> {
    match space {
        SpaceHead::Namespace { id, .. } => Some(*id),
        SpaceHead::Keyspace { .. } => None,
    }
}

/// The vectors of one record.
#[derive(Debug)]
pub struct RecordVectors {
    pub namespace: NamespaceId,
    pub item: VectorOrigin,
    /// By embedder, each once; every vector can be compared.
    pub embeddings: Vec<(String, Vec<f32>)>,
}

/// Places of records with vectors after `after` and up to `upto`, in order, at most about `limit`; and
/// whether there may be more.
pub fn vector_places(
    core: &Core,
    after: Seqno,
    upto: Seqno,
    limit: usize,
) -> Result<(Vec<(Seqno, RecordPlace)>, bool)> {
    let (from, to) = (keys::vectors(after), keys::vectors(upto));
    let bounds = (Bound::Excluded(from.as_slice()), Bound::Included(to.as_slice()));
    let (hits, more) = core.index.read_page(bounds.0, bounds.1, Seqno(u64::MAX), false, limit)?;
    let places = hits.iter().filter_map(|hit| Some((keys::vectors_seqno(&hit.key)?, keys::place(hit.value))));
    Ok((places.collect(), more.is_some()))
}

/// A record's owner and embeddings, and the part of its tail that holds the vectors' recipes.
struct EmbeddingRecord {
    namespace: Option<NamespaceId>,
    owner: OwnerId,
    embeddings: Vec<(String, BodyRef)>,
    tail: Vec<u8>,
}

/// The vectors of the record at a place. `None` if their owner is gone, or if it is no record with vectors
/// (compaction may have removed it).
pub fn read_record_vectors(
    core: &Core,
    runs: &mut RunNamespaces,
    seqno: Seqno,
    place: RecordPlace,
) -> Result<Option<RecordVectors>> {
    let segment = core.segment(place.segment)?;
    let wrong = |e| Error::damaged(&segment.path, u64::from(place.offset), e);
    let record = segment.with_record(place, |record| {
        let parsed = match RecordKind::parse(record.kind, record.layout).map_err(wrong)? {
            Some(RecordKind::Schema(kind)) => {
                let found = LogicalBody::of(&record).and_then(|logical| core.schema.vectors(kind, logical));
                let Some(SchemaVectors { owner: (uid, seq), embeddings, tail }) = found.map_err(wrong)?
                else {
                    return Ok(None);
                };
                let owner = OwnerId::Snapshot { run: RunUid(uid), seq };
                Ok(EmbeddingRecord { namespace: None, owner, embeddings, tail })
            }
            Some(RecordKind::Embedding) => LogicalBody::of(&record).and_then(|logical| {
                let head = EmbeddingHead::parse(logical.head)?;
                let owner = OwnerId::Key { space: head.space, key: head.key.into() };
                let (namespace, tail) = (Some(head.namespace), logical.tail.to_vec());
                Ok(EmbeddingRecord { namespace, owner, embeddings: head.embeddings, tail })
            }),
            _ => return Ok(None),
        };
        parsed.map(Some).map_err(wrong)
    })?;
    let Some(record) = record else { return Ok(None) };
    let namespace = match (&record.owner, record.namespace) {
        (OwnerId::Snapshot { run, .. }, _) => runs.namespace(core, *run)?,
        (OwnerId::Key { .. }, namespace) => namespace,
    };
    let Some(namespace) = namespace else { return Ok(None) };
    let embeddings = decode_vectors(core, namespace, &record)?;
    Ok(Some(RecordVectors { namespace, item: VectorOrigin { seqno, owner: record.owner }, embeddings }))
}

fn decode_vectors(
    core: &Core,
    namespace: NamespaceId,
    record: &EmbeddingRecord,
) -> Result<Vec<(String, Vec<f32>)>> {
    let mut tail = ByteReader::new(&record.tail, "embedding tail");
    let mut embeddings: Vec<(String, Vec<f32>)> = Vec::with_capacity(record.embeddings.len());
    for (embedder, reference) in &record.embeddings {
        let bytes = match reference {
            BodyRef::Inline(bytes) => bytes.clone(),
            BodyRef::Blob { len, id } => {
                let damaged = |e| Error::new(ErrorKind::Damaged, format!("an embedding's record: {e}"));
                let recipe = RecipeRef::take(&mut tail, *len).map_err(damaged)?;
                let alone = |_| Err(Error::new(ErrorKind::Damaged, "a vector's recipe stands alone"));
                let extents: Arc<_> = bodies::decode_extents(recipe, alone)?;
                bodies::read_body(core, namespace, &extents, *len, *id)?
            }
            BodyRef::Same { .. } => {
                return Err(Error::new(ErrorKind::Damaged, "a vector refers to another one"));
            }
        };
        // Older stores accepted vectors that cannot be compared: they are skipped.
        if let Some(vector) = vector_from_bytes(&bytes)
            && check_vector(embedder, &vector).is_ok()
            && embeddings.iter().all(|(before, _)| before != embedder)
        {
            embeddings.push((embedder.clone(), vector));
        }
    }
    Ok(embeddings)
}

/// Whether an owner still has the vectors of `item`, as of `at`.
pub fn is_living(core: &Core, namespace: NamespaceId, item: &VectorOrigin, at: Seqno) -> Result<bool> {
    let newest = match &item.owner {
        // The embeddings of a key are in the record after its put.
        OwnerId::Key { space, key } => {
            let found = core.index.get(&keys::user(*space, key), at)?;
            found.filter(|(_, value)| value.kind == keys::AT_PLACE).map(|(seqno, _)| seqno.0 + 1)
        }
        OwnerId::Snapshot { run, seq } => {
            if core.index.newest(&core.schema.life_key(namespace, run.0))?.is_none() {
                return Ok(false);
            }
            core.index.get(&core.schema.owner_key(run.0, *seq), at)?.map(|(seqno, _)| seqno.0)
        }
    };
    Ok(newest == Some(item.seqno.0))
}

/// The vectors of the record at a place by embedder, for callers that copy them.
pub fn vectors_at(core: &Core, seqno: Seqno, place: RecordPlace) -> Result<Vec<(String, Vec<f32>)>> {
    let found = read_record_vectors(core, &mut RunNamespaces::default(), seqno, place)?;
    Ok(found.map_or_else(Vec::new, |found| found.embeddings))
}
