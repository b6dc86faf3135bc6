//! What the store asks about records of runs ([`RecordSchema`]).

use std::any::Any;
use std::sync::Arc;

use crate::codec::{ByteReader, CodecError};
use crate::ids::{NamespaceId, RunUid};
use crate::log::record::{BodyRef, LogicalBody, RecipeRef, RecordKind};
use crate::trace::frame_cache::FrameCache;
use crate::trace::heads::{FrameHead, PartHead, RunFields, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::model::{Severity, Status};
use crate::trace::run_facts::RunFacts;
use crate::trace::run_keys::RunTerm;
use crate::trace::{kinds, run_keys};
use annals_store::kv::core::Core;
use annals_store::kv::keys::{AT_PLACE, ENDED, unnumbered_vectors};
use annals_store::schema::{RecordSchema, SchemaBytes, SchemaCounts, SchemaVectors};

/// Bytes of a link in a frame's head.
const LINK_BYTES: u64 = 32;

/// The schema of runs, with the cache of one store's frames.
#[derive(Debug)]
pub(crate) struct RunSchema {
    frames: Arc<FrameCache>,
}

impl RunSchema {
    /// A new one, as a store takes it.
    pub(crate) fn shared() -> Arc<dyn RecordSchema> {
        Arc::new(Self { frames: Arc::new(FrameCache::new()) })
    }

    /// The frame cache of a store. With another schema, an empty cache that is not shared.
    pub(crate) fn frames(core: &Core) -> Arc<FrameCache> {
        let schema: &dyn Any = &*core.schema;
        schema.downcast_ref::<Self>().map_or_else(|| Arc::new(FrameCache::new()), |own| own.frames.clone())
    }
}

impl RecordSchema for RunSchema {
    fn kind_name(&self, kind: u8) -> &'static str {
        match RecordKind::Schema(kind) {
            kinds::RUN => "Run",
            kinds::FRAME => "Frame",
            kinds::FRAME_PART => "FramePart",
            kinds::SNAPSHOT => "Snapshot",
            kinds::TOMBSTONE => "Tombstone",
            _ => "unknown",
        }
    }

    fn post(&self, kind: u8, head: &[u8], add: &mut dyn FnMut(&[u8], u8)) -> Result<(), CodecError> {
        match RecordKind::Schema(kind) {
            kinds::RUN => {
                let fields = RunHead::parse(head)?.fields;
                let kind = if fields.gone { ENDED } else { AT_PLACE };
                add(&run_keys::run(fields.namespace, fields.uid), kind);
                add(&run_keys::run_name(fields.namespace, &fields.name), kind);
                post_state(&fields, add);
                if let Some(facts) = RunFacts::of_run(&fields) {
                    add(&facts.key(fields.namespace), AT_PLACE);
                }
            }
            kinds::FRAME => {
                let (run, seq) = FrameHead::peek(head)?;
                add(&run_keys::frame(run, seq), AT_PLACE);
            }
            kinds::FRAME_PART => {
                let head = PartHead::parse(head)?;
                add(&run_keys::part(head.run, head.seq, head.part), AT_PLACE);
            }
            kinds::SNAPSHOT => {
                let head = SnapshotHead::parse(head)?;
                add(&run_keys::snapshot(head.run, head.seq), AT_PLACE);
                if !head.embeddings.is_empty() {
                    add(&unnumbered_vectors(), AT_PLACE);
                }
            }
            kinds::TOMBSTONE => {
                let head = TombstoneHead::parse(head)?;
                add(&run_keys::run(head.namespace, head.run), ENDED);
                add(&RunFacts::of_tombstone(&head).key(head.namespace), AT_PLACE);
                if let Some((parent, ..)) = head.parent {
                    add(&run_keys::fork(parent, head.run), AT_PLACE);
                }
            }
            _ => return Err(unknown(kind)),
        }
        Ok(())
    }

    fn count(&self, kind: u8, head: &[u8]) -> Result<SchemaCounts, CodecError> {
        let none = |bytes| SchemaCounts { bytes, recipe_bytes: 0, chain_bytes: 0, frames: 0, uid: None };
        Ok(match RecordKind::Schema(kind) {
            kinds::RUN => {
                let head = RunHead::parse(head)?;
                let (recipe_bytes, uid) = (head.metadata.recipe_bytes(), Some(head.fields.uid.0));
                SchemaCounts { recipe_bytes, uid, ..none(SchemaBytes::Runs) }
            }
            kinds::FRAME => {
                let head = FrameHead::parse(head)?;
                let bodies = [&head.input, &head.output, &head.metadata];
                SchemaCounts {
                    recipe_bytes: bodies.iter().map(|body| body.recipe_bytes()).sum(),
                    chain_bytes: if head.link.is_some() { LINK_BYTES } else { 0 },
                    frames: u64::from(!head.open),
                    ..none(SchemaBytes::Frames)
                }
            }
            kinds::FRAME_PART => {
                let recipe_bytes = PartHead::parse(head)?.body.recipe_bytes();
                SchemaCounts { recipe_bytes, ..none(SchemaBytes::Frames) }
            }
            kinds::SNAPSHOT => {
                let head = SnapshotHead::parse(head)?;
                let vectors = head.embeddings.iter().map(|(_, vector)| BodyRef::recipe_bytes(vector));
                let recipe_bytes = head.state.recipe_bytes() + vectors.sum::<u64>();
                SchemaCounts { recipe_bytes, ..none(SchemaBytes::Runs) }
            }
            kinds::TOMBSTONE => {
                let uid = Some(TombstoneHead::parse(head)?.run.0);
                SchemaCounts { uid, ..none(SchemaBytes::Runs) }
            }
            _ => return Err(unknown(kind)),
        })
    }

    fn vectors(&self, kind: u8, logical: LogicalBody<'_>) -> Result<Option<SchemaVectors>, CodecError> {
        if RecordKind::Schema(kind) != kinds::SNAPSHOT {
            return Ok(None);
        }
        let head = SnapshotHead::parse(logical.head)?;
        let mut tail = ByteReader::new(logical.tail, "snapshot tail");
        if let BodyRef::Blob { len, .. } = head.state {
            RecipeRef::take(&mut tail, len)?;
        }
        let owner = (head.run.0, head.seq);
        Ok(Some(SchemaVectors { owner, embeddings: head.embeddings, tail: tail.take_rest().to_vec() }))
    }

    fn owner_key(&self, uid: u64, seq: u32) -> Vec<u8> {
        run_keys::snapshot(RunUid(uid), seq)
    }

    fn life_key(&self, namespace: NamespaceId, uid: u64) -> Vec<u8> {
        run_keys::run(namespace, RunUid(uid))
    }

    fn records_moved(&self) {
        self.frames.clear();
    }
}

/// Posts a run among the open ones, among the forks of its parent, and in the lists of what it is found by.
fn post_state(fields: &RunFields, add: &mut dyn FnMut(&[u8], u8)) {
    let was_open = fields.status == Status::Open.code();
    // A run that is gone now and was not open has left the open runs before.
    if was_open || !fields.gone {
        let kind = if was_open && !fields.gone { AT_PLACE } else { ENDED };
        add(&run_keys::open_run(fields.namespace, fields.uid), kind);
    }
    if let Some((parent, ..)) = fields.parent {
        add(&run_keys::fork(parent, fields.uid), AT_PLACE);
    }
    // Each reader of a list checks the run's record, so no entry has to end. Compaction drops old ones.
    if fields.gone {
        return;
    }
    let mut list = |term| add(&run_keys::listed_run(fields.namespace, term, fields.uid), AT_PLACE);
    if fields.status != Status::Open.code() && fields.status != Status::Ok.code() {
        list(RunTerm::Status(fields.status));
    }
    if fields.severity != Severity::Normal.code() {
        list(RunTerm::Severity(fields.severity));
    }
    if !fields.agent.is_empty() {
        list(RunTerm::Agent(&fields.agent));
    }
    if !fields.model.is_empty() {
        list(RunTerm::Model(&fields.model));
    }
    fields.tags.iter().for_each(|(key, value)| list(RunTerm::Tag(key, value)));
    add(&run_keys::run_time(fields.namespace, fields.started_ns, fields.uid), AT_PLACE);
}

fn unknown(kind: u8) -> CodecError {
    CodecError::Unknown { what: "record kind", found: u64::from(kind) }
}
