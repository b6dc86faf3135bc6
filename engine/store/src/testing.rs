//! What tests and fuzz targets of this crate and of those above it share. Not in ordinary builds.

use std::path::Path;
use std::sync::Arc;

use crate::codec::CodecError;
use crate::ids::NamespaceId;
use crate::kv::core::Core;
use crate::kv::write::store_stream;
use crate::log::record::LogicalBody;
use crate::schema::{RecordSchema, SchemaCounts, SchemaVectors};
use crate::{History, Keyspace, KvBatch, Options, StoredBlob};

/// Takes `len` bytes from the front, or all that are left.
pub fn take_bytes<'a>(data: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, rest) = data.split_at(len.min(data.len()));
    *data = rest;
    front
}

/// Takes a byte, 0 at the end.
pub fn byte(data: &mut &[u8]) -> u8 {
    take_bytes(data, 1).first().copied().unwrap_or(0)
}

/// Takes two bytes as a little-endian number.
pub fn take_u16(data: &mut &[u8]) -> usize {
    usize::from(byte(data)) | usize::from(byte(data)) << 8
}

/// A schema without records of its own.
#[derive(Debug)]
pub struct NoSchema;

impl RecordSchema for NoSchema {
    fn kind_name(&self, _: u8) -> &'static str {
        "unknown"
    }

    fn post(&self, kind: u8, _: &[u8], _: &mut dyn FnMut(&[u8], u8)) -> Result<(), CodecError> {
        Err(CodecError::Unknown { what: "record kind", found: u64::from(kind) })
    }

    fn count(&self, kind: u8, _: &[u8]) -> Result<SchemaCounts, CodecError> {
        Err(CodecError::Unknown { what: "record kind", found: u64::from(kind) })
    }

    fn vectors(&self, _: u8, _: LogicalBody<'_>) -> Result<Option<SchemaVectors>, CodecError> {
        Ok(None)
    }

    fn owner_key(&self, _: u64, _: u32) -> Vec<u8> {
        Vec::new()
    }

    fn life_key(&self, _: NamespaceId, _: u64) -> Vec<u8> {
        Vec::new()
    }

    fn records_moved(&self) {}
}

/// [`NoSchema`], as it is shared.
pub fn no_schema() -> Arc<dyn RecordSchema> {
    Arc::new(NoSchema)
}

/// A store of keys and values alone.
#[derive(Debug, Clone)]
pub struct KvStore(Arc<Core>);

/// A namespace of a [`KvStore`].
#[derive(Debug, Clone)]
pub struct KvNamespace {
    core: Arc<Core>,
    id: NamespaceId,
}

impl KvStore {
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> crate::Result<Self> {
        Core::open(path.as_ref(), options, true, Arc::new(NoSchema)).map(Self)
    }

    pub fn open_read_only_with(path: impl AsRef<Path>, options: Options) -> crate::Result<Self> {
        Core::open(path.as_ref(), options, false, Arc::new(NoSchema)).map(Self)
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.0
    }

    pub fn namespace(&self, name: &str) -> crate::Result<KvNamespace> {
        Ok(KvNamespace { core: self.0.clone(), id: self.0.namespace(name)? })
    }

    pub fn rebuilt(&self) -> Vec<crate::Damage> {
        self.0.index.rebuilt()
    }

    pub fn drop_caches(&self) {
        self.0.groups.clear();
    }

    pub fn close(self) -> crate::Result<()> {
        self.0.close()
    }
}

impl KvNamespace {
    pub fn keyspace(&self, name: &str, history: History) -> crate::Result<Keyspace> {
        self.core.keyspace(self.id, name, history)
    }

    pub fn find_keyspace(&self, name: &str) -> crate::Result<Option<Keyspace>> {
        self.core.find_keyspace(self.id, name)
    }

    pub fn batch(&self) -> KvBatch {
        KvBatch::new(&self.core, self.id)
    }

    pub fn store_blob(&self, mut from: impl std::io::Read) -> crate::Result<StoredBlob> {
        store_stream(&self.core, self.id, &mut from)
    }
}
