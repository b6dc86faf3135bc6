//! Keyspaces: versioned keys with a history policy.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::blob::Extent;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, RecordedId, Seqno};
use crate::kv::blob_reader::BlobReader;
use crate::kv::bodies::{self, HashCheck};
use crate::kv::content::{BodyInput, Content};
use crate::kv::core::Core;
use crate::kv::embeddings;
use crate::kv::index::{IndexHit, bound_as_slice, prefix_end};
use crate::kv::keys::{self, KEY_BYTES_MAX};
use crate::kv::table::IndexValue;
use crate::kv::view::View;
use crate::kv::write::{BatchWriter, inline_bytes_max, store_stream};
use crate::log::queue::{Durability, WriteThread};
use crate::log::record::{
    BodyRef, EmbeddingHead, HistoryCode, KV_INLINE_BYTES_MAX, KvHead, RecipeRef, RecordKind,
};
use crate::log::ticket::Ticket;

/// A value of at least this many bytes is written in parts, ahead of its batch.
const STREAMED_VALUE_BYTES: usize = 8 << 20;
/// Approximate overhead of a record besides its key and value.
const RECORD_BYTES: usize = 64;

/// How much of a key's history a keyspace keeps. Older versions read as `Gone`, and compaction may drop them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// Only the newest version.
    #[default]
    Latest,
    /// The newest versions, this many (at least one).
    Newest(u32),
    /// Versions up to this age, and the newest.
    Age(Duration),
    /// Every version.
    All,
}

impl History {
    #[doc(hidden)]
    pub fn code(self) -> HistoryCode {
        match self {
            Self::Latest => HistoryCode::Latest,
            Self::Newest(count) => HistoryCode::Newest(count.max(1)),
            Self::Age(age) => HistoryCode::AgeNs(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
            Self::All => HistoryCode::All,
        }
    }

    #[doc(hidden)]
    pub fn from_code(code: HistoryCode) -> Self {
        match code {
            HistoryCode::Latest => Self::Latest,
            HistoryCode::Newest(count) => Self::Newest(count),
            HistoryCode::AgeNs(ns) => Self::Age(Duration::from_nanos(ns)),
            HistoryCode::All => Self::All,
        }
    }
}

/// One version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The record that wrote it.
    pub seqno: Seqno,
    /// When it was written, in nanoseconds since 1970-01-01 UTC by the writer's clock.
    pub time_ns: u64,
    /// The value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
}

/// A set of keys in a namespace. Cheap to clone; may be used from several threads.
#[derive(Debug, Clone)]
pub struct Keyspace {
    pub(crate) core: Arc<Core>,
    pub(crate) namespace: NamespaceId,
    pub(crate) id: u32,
    pub(crate) history: History,
}

impl Keyspace {
    /// The keyspace of a number. For the layers above.
    #[doc(hidden)]
    pub fn numbered(core: &Arc<Core>, namespace: NamespaceId, id: u32, history: History) -> Self {
        Self { core: core.clone(), namespace, id, history }
    }

    /// For the layers above.
    #[doc(hidden)]
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Its number. For the layers above.
    #[doc(hidden)]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The namespace that it belongs to. For the layers above.
    #[doc(hidden)]
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// The history policy.
    #[must_use]
    pub fn history_policy(&self) -> History {
        self.history
    }

    /// Sets a key, as durable as the store's options say. A key has at most 64 KiB. A value of 4 KiB or more
    /// becomes a blob.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn put(&self, key: &[u8], value: impl Into<Content>) -> Result<Seqno> {
        let mut batch = KvBatch::new(&self.core, self.namespace);
        batch.put(self, key, value);
        batch.commit()
    }

    /// Deletes a key, whether it exists or not.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn delete(&self, key: &[u8]) -> Result<Seqno> {
        let mut batch = KvBatch::new(&self.core, self.namespace);
        batch.delete(self, key);
        batch.commit()
    }

    /// A key's current value.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`, `Unavailable`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.core.is_writer() {
            let at = self.core.index.visible();
            let version = self.version_at(at, key)?;
            // If something newer came meanwhile, a table may have left out the wanted version. Then an older
            // one or none was found.
            if self.core.index.visible() == at {
                return Ok(version.and_then(|version| version.value));
            }
        }
        // A view keeps the versions that it may read. In a store open for reading, a refresh installs new
        // tables before it shows them.
        let view = View::new(&self.core);
        Ok(self.version_at(view.seqno(), key)?.and_then(|version| version.value))
    }

    /// Whether a key has this value. Bytes of values of 4 KiB or more are not read: their BLAKE3 hashes are compared.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn has_value(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        check_key(key)?;
        let view = View::new(&self.core);
        let found = self.core.index.get(&keys::user(self.id, key), view.seqno())?;
        found.map_or(Ok(false), |(_, place)| self.version_has_content(key, place, BlobId::of(value)))
    }

    /// A key's current value, as a stream.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; the stream ends with an error if bytes are not what was written.
    pub fn reader(&self, key: &[u8]) -> Result<Option<BlobReader>> {
        let view = View::new(&self.core);
        check_key(key)?;
        let Some((_, value)) = self.core.index.get(&keys::user(self.id, key), view.seqno())? else {
            return Ok(None);
        };
        let of_bytes = |bytes| BlobReader::from_bytes(self.core.clone(), self.namespace, bytes);
        Ok(match self.read_record(key, value)? {
            (_, StoredValue::Nothing) => None,
            (_, StoredValue::Inline(bytes)) => Some(of_bytes(bytes)),
            (_, StoredValue::Blob { extents, len, id }) => {
                bodies::check_len(&extents, len, id)?;
                let core = self.core.clone();
                Some(BlobReader::new(core, self.namespace, extents, (len, id), HashCheck::Compared))
            }
        })
    }

    /// A key's value as it was after record `seqno`.
    ///
    /// # Errors
    /// `Gone` if the history policy no longer keeps it; otherwise as [`Keyspace::get`].
    pub fn get_at(&self, key: &[u8], seqno: Seqno) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        let view = View::new(&self.core);
        let found = self.core.index.versions(&keys::user(self.id, key), view.seqno())?;
        let kept = self.retained_versions(key, &found)?;
        match found.iter().position(|(at, _)| *at <= seqno).map(|index| (index, found[index])) {
            Some((index, (at, value))) if index < kept => Ok(self.read_version(key, at, value)?.value),
            // A compacted log keeps one version past its age. Older versions may be gone.
            None if self.history == History::All || kept == found.len() && kept < self.version_limit() => {
                Ok(None)
            }
            _ => Err(Error::new(
                ErrorKind::Gone,
                format!(
                    "the value after record {seqno} is past this keyspace's history ({:?})",
                    self.history
                ),
            )),
        }
    }

    /// A key's versions that the policy keeps, newest first.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn history(&self, key: &[u8]) -> Result<Vec<Version>> {
        self.versions(key)?.collect()
    }

    /// Like [`Keyspace::history`], but each version is read when the iterator reaches it. Sees what was
    /// committed when it was called.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; each item may fail, too.
    pub fn versions(&self, key: &[u8]) -> Result<impl Iterator<Item = Result<Version>> + use<>> {
        check_key(key)?;
        let view = View::new(&self.core);
        let found = self.core.index.versions(&keys::user(self.id, key), view.seqno())?;
        let (keyspace, key, horizon) = (self.clone(), key.to_vec(), self.horizon());
        let mut is_newest = true;
        Ok(found.into_iter().take(self.version_limit()).map_while(move |(seqno, value)| {
            // The view keeps the versions that are still to be read.
            let _view = &view;
            match keyspace.read_version(&key, seqno, value) {
                Ok(version) if !std::mem::take(&mut is_newest) && version.time_ns < horizon => None,
                read => Some(read),
            }
        }))
    }

    /// Keys and values, in key order or its reverse. Sees what was committed when it was called.
    #[must_use]
    pub fn scan(&self, range: ScanRange) -> Scan {
        Scan::new(self.clone(), range, View::new(&self.core))
    }

    /// Number of a key's versions that the policy keeps.
    fn retained_versions(&self, key: &[u8], versions: &[(Seqno, IndexValue)]) -> Result<usize> {
        let History::Age(_) = self.history else { return Ok(self.version_limit().min(versions.len())) };
        let horizon = self.horizon();
        let mut young = 0;
        for (seqno, value) in versions {
            if self.read_version(key, *seqno, *value)?.time_ns < horizon {
                break;
            }
            young += 1;
        }
        Ok(young.max(1).min(versions.len()))
    }

    /// Versions before this time are not kept, except the newest.
    fn horizon(&self) -> u64 {
        match self.history {
            History::Age(age) => {
                self.core.io.now_ns().saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
            }
            _ => 0,
        }
    }

    fn version_limit(&self) -> usize {
        match self.history {
            History::Latest => 1,
            History::Newest(count) => count as usize,
            History::Age(_) | History::All => usize::MAX,
        }
    }

    #[doc(hidden)]
    pub fn version_at(&self, at: Seqno, key: &[u8]) -> Result<Option<Version>> {
        check_key(key)?;
        let _pin = self.core.pin();
        match self.core.index.get(&keys::user(self.id, key), at)? {
            Some((seqno, value)) => self.read_version(key, seqno, value).map(Some),
            None => Ok(None),
        }
    }

    /// Reads the version of a key that the record at a place wrote.
    #[doc(hidden)]
    pub fn read_version(&self, key: &[u8], seqno: Seqno, value: IndexValue) -> Result<Version> {
        let (time_ns, kept) = self.read_record(key, value)?;
        let value = match kept {
            StoredValue::Nothing => None,
            StoredValue::Inline(bytes) => Some(bytes),
            StoredValue::Blob { extents, len, id } => {
                Some(bodies::read_body(&self.core, self.namespace, &extents, len, id)?)
            }
        };
        Ok(Version { seqno, time_ns, value })
    }

    /// Where the bytes of a version lie in groups of bodies; none for a deletion and for a short value, which its
    /// record holds. For the layers above.
    #[doc(hidden)]
    pub fn version_extents(&self, key: &[u8], value: IndexValue) -> Result<Vec<Extent>> {
        Ok(match self.read_record(key, value)?.1 {
            StoredValue::Blob { extents, .. } => extents.to_vec(),
            StoredValue::Inline(_) | StoredValue::Nothing => Vec::new(),
        })
    }

    /// Whether a version's value is the content with this id. Bytes of long values are not read. For the layers
    /// above.
    #[doc(hidden)]
    pub fn version_has_content(&self, key: &[u8], value: IndexValue, wanted: BlobId) -> Result<bool> {
        Ok(match self.read_record(key, value)?.1 {
            StoredValue::Blob { id, .. } => id.fits(wanted),
            StoredValue::Inline(bytes) => BlobId::of(&bytes) == wanted,
            StoredValue::Nothing => false,
        })
    }

    /// The value that the record at a place gives a key, and when it was written.
    fn read_record(&self, key: &[u8], value: IndexValue) -> Result<(u64, StoredValue)> {
        let kind = if value.kind == keys::ENDED { RecordKind::Delete } else { RecordKind::Put };
        let (head, recipe) = self.core.read_logical(keys::place(value), kind, |logical| {
            let head = KvHead::parse(kind, logical.head)?;
            let mut tail = crate::codec::ByteReader::new(logical.tail, "key-value tail");
            let recipe = match head.value {
                Some(BodyRef::Blob { len, .. }) => Some(RecipeRef::take(&mut tail, len)?.recipe.to_vec()),
                _ => None,
            };
            Ok((head, recipe))
        })?;
        if head.space != self.id || head.key != key {
            return Err(Error::new(ErrorKind::Damaged, "the index leads to another key than the one wanted"));
        }
        let kept = match (head.value, recipe) {
            (Some(BodyRef::Inline(bytes)), _) => StoredValue::Inline(bytes),
            (Some(BodyRef::Blob { len, id }), Some(recipe)) => {
                let alone = RecipeRef { body_len: len, base_back: 0, recipe: &recipe };
                let extents =
                    bodies::decode_extents(alone, |_| Err(Error::bug("a value's recipe stands alone")))?;
                StoredValue::Blob { extents, len, id }
            }
            (None, _) => StoredValue::Nothing,
            _ => return Err(Error::new(ErrorKind::Damaged, "a value's record has no recipe")),
        };
        Ok((head.time_ns, kept))
    }
}

/// The value that a record gives a key.
enum StoredValue {
    Nothing,
    Inline(Vec<u8>),
    Blob { extents: Arc<Vec<Extent>>, len: u64, id: RecordedId },
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key of {} bytes is over the limit of {KEY_BYTES_MAX}: use its hash as the key and keep it in the value",
            key.len()
        )));
    }
    Ok(())
}

/// The index of an operation, with embedder ids and vectors.
type OperationEmbeddings = (usize, Vec<(String, Vec<f32>)>);

/// A value in a batch.
#[derive(Debug)]
enum BatchValue {
    /// So many bytes after its key.
    Copied(usize),
    Content(Content),
}

/// Several changes that happen together or not at all.
#[derive(Debug)]
#[must_use = "nothing happens before commit or submit"]
pub struct KvBatch {
    core: Arc<Core>,
    namespace: NamespaceId,
    /// All keys, end to end, each followed by its value if that was copied.
    bytes: Vec<u8>,
    /// Keyspace, length of its key in `bytes`, and the new value.
    operations: Vec<(u32, usize, Option<BatchValue>)>,
    embeddings: Vec<OperationEmbeddings>,
    /// The time of the changes, if it is not now.
    time_ns: Option<u64>,
    first_error: Option<Error>,
}

impl KvBatch {
    #[doc(hidden)]
    pub fn new(core: &Arc<Core>, namespace: NamespaceId) -> Self {
        Self {
            core: core.clone(),
            namespace,
            bytes: Vec::new(),
            operations: Vec::new(),
            embeddings: Vec::new(),
            time_ns: None,
            first_error: None,
        }
    }

    /// Sets the time of the changes, if it is not now.
    #[doc(hidden)]
    pub fn at_time(mut self, time_ns: u64) -> Self {
        self.time_ns = Some(time_ns);
        self
    }

    /// Sets a key. A value that is lent ([`BodyInput::Lent`]) is copied; a short one then takes no allocation of its own.
    pub fn put<'v>(&mut self, keyspace: &Keyspace, key: &[u8], value: impl Into<BodyInput<'v>>) -> &mut Self {
        self.add_operation(keyspace, key, Some(value.into()))
    }

    /// Sets a key, and makes its value searchable by vectors: pairs of an embedder's id and the vector that
    /// it made of the value. `Namespace::nearest` finds them once this is
    /// committed, until the key is set again or deleted. At most 16 vectors, one of each embedder, with as
    /// many dimensions as that embedder's first vector in the namespace.
    ///
    /// A vector that no search could find (NaN, infinity, zero, another number of dimensions) is refused when
    /// the batch is committed.
    pub fn put_embedded<'v>(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: impl Into<BodyInput<'v>>,
        embeddings: &[(&str, &[f32])],
    ) -> &mut Self {
        if let Err(error) = embeddings::check_embeddings(embeddings) {
            self.first_error.get_or_insert(error);
        } else if !embeddings.is_empty() {
            let owned = embeddings.iter().map(|(id, vector)| ((*id).to_owned(), vector.to_vec())).collect();
            self.embeddings.push((self.operations.len(), owned));
        }
        self.put(keyspace, key, value)
    }

    /// Deletes a key.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) -> &mut Self {
        self.add_operation(keyspace, key, None)
    }

    fn add_operation(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<BodyInput<'_>>) -> &mut Self {
        if keyspace.namespace != self.namespace || keyspace.core.store != self.core.store {
            self.first_error
                .get_or_insert_with(|| Error::invalid("a batch holds keyspaces of one namespace only"));
        }
        if let Err(error) = check_key(key) {
            self.first_error.get_or_insert(error);
        }
        self.bytes.extend_from_slice(key);
        let inline_max = inline_bytes_max(&self.core.options);
        let value = value.map(|value| match value {
            BodyInput::Lent(bytes) if bytes.len() <= inline_max => {
                self.bytes.extend_from_slice(bytes);
                BatchValue::Copied(bytes.len())
            }
            BodyInput::Lent(bytes) => BatchValue::Content(bytes.into()),
            BodyInput::Bytes(bytes) => BatchValue::Content(Content::Bytes(bytes)),
            BodyInput::Stored(blob) => BatchValue::Content(Content::Stored(blob)),
        });
        self.operations.push((keyspace.id, key.len(), value));
        self
    }

    /// Writes the batch and waits until it is as durable as the store's options say. Returns the last
    /// record's seqno.
    ///
    /// # Errors
    /// `Invalid` for an empty batch, a key that is too long or another namespace's keyspace; `Unavailable`,
    /// `Poisoned`.
    pub fn commit(self) -> Result<Seqno> {
        let durability = self.core.options.durability;
        self.queue(durability, WriteThread::Either)?.wait()
    }

    /// Hands the batch to the writer without waiting.
    ///
    /// # Errors
    /// As [`KvBatch::commit`].
    pub fn submit(self) -> Result<Ticket> {
        let durability = self.core.options.durability;
        self.submit_with(durability)
    }

    /// Like [`KvBatch::submit`], with its own durability.
    ///
    /// # Errors
    /// As [`KvBatch::commit`].
    pub fn submit_with(self, durability: Durability) -> Result<Ticket> {
        self.queue(durability, WriteThread::Writer)
    }

    /// Like [`KvBatch::submit_with`], but [`Ticket::wait`] writes the batch on its caller's thread, together
    /// with everything that was submitted before. If the ticket is polled or dropped instead, the writer's
    /// thread writes it. Until one of these, it may remain unwritten.
    ///
    /// For a caller that gathers the writes of many clients and waits for all of them.
    ///
    /// # Errors
    /// As [`KvBatch::commit`].
    pub fn submit_inline(self, durability: Durability) -> Result<Ticket> {
        self.queue(durability, WriteThread::Caller)
    }
}

impl KvBatch {
    fn queue(self, durability: Durability, write_thread: WriteThread) -> Result<Ticket> {
        let (core, has_embeddings) = (self.core.clone(), self.has_embeddings());
        let mut writer = BatchWriter::new(&core, self.namespace)?;
        self.add_to(&mut writer)?;
        let submitted = writer.submit_on(write_thread, durability)?;
        if has_embeddings && let Some(finder) = core.embedding_index.get() {
            finder.note_queued(&core);
        }
        submitted
            .map(|(_, ticket)| ticket)
            .ok_or_else(|| Error::invalid("an empty batch cannot be committed"))
    }

    /// Whether a key is set together with vectors.
    #[doc(hidden)]
    #[must_use]
    pub fn has_embeddings(&self) -> bool {
        !self.embeddings.is_empty()
    }

    /// Adds the changes to a writer's batch: they happen together with what it has already.
    ///
    /// # Errors
    /// As [`KvBatch::commit`]; `Invalid` for a writer of another store or namespace.
    #[doc(hidden)]
    pub fn add_to(mut self, writer: &mut BatchWriter) -> Result<()> {
        if let Some(error) = self.first_error.take() {
            return Err(error);
        }
        if !writer.is_of(&self.core, self.namespace) {
            return Err(Error::invalid("a batch holds changes of one namespace only"));
        }
        self.stream_long_values()?;
        let values = self.operations.iter().map(|(.., value)| match value {
            Some(BatchValue::Content(content)) => {
                content.bytes().map_or(0, <[u8]>::len).min(KV_INLINE_BYTES_MAX)
            }
            // Counted with the keys.
            Some(BatchValue::Copied(_)) | None => 0,
        });
        // Growing by doubling would copy a long batch twice.
        writer.reserve(values.sum::<usize>() + self.bytes.len() + self.operations.len() * RECORD_BYTES);
        let time_ns = self.time_ns.unwrap_or_else(|| self.core.io.now_ns());
        for (embedder, vector) in self.embeddings.iter().flat_map(|(_, all)| all) {
            if let Some(finder) = self.core.embedding_index.get() {
                finder.check_dimensions(&self.core, self.namespace, embedder, vector.len())?;
            }
        }
        let mut embedded = self.embeddings.iter().peekable();
        let (mut head, mut tail, mut left) = (Vec::new(), Vec::new(), self.bytes.as_slice());
        let mut take = |len: usize| left.split_off(..len).unwrap_or_default();
        for (index, (space, key_len, value)) in self.operations.into_iter().enumerate() {
            head.clear();
            tail.clear();
            let key = take(key_len);
            KvHead::put_key(space, time_ns, key, &mut head);
            let kind = match value {
                None => RecordKind::Delete,
                Some(BatchValue::Copied(len)) => {
                    BodyRef::put_inline(take(len), &mut head);
                    RecordKind::Put
                }
                Some(BatchValue::Content(content)) => {
                    writer.put_value(&content, &mut head, &mut tail)?;
                    RecordKind::Put
                }
            };
            writer.add_record(kind, &head, &tail)?;
            if let Some((_, embeddings)) = embedded.next_if(|(of, _)| *of == index) {
                tail.clear();
                let mut stored = Vec::with_capacity(embeddings.len());
                for (embedder, vector) in embeddings {
                    stored.push((embedder.clone(), embeddings::pack_vector(writer, vector, &mut tail)?));
                }
                let (namespace, key) = (self.namespace, key.to_vec());
                let head = EmbeddingHead { namespace, space, key, embeddings: stored };
                writer.add_record(RecordKind::Embedding, &head.encode(), &tail)?;
            }
        }
        Ok(())
    }

    /// Writes long values to the log in parts, ahead of the batch that names them: in one batch they would
    /// take several times their size in memory. If the batch then fails, a compaction removes the parts.
    fn stream_long_values(&mut self) -> Result<()> {
        let limit = self.core.options.body_bytes_max;
        for (_, _, value) in &mut self.operations {
            let Some(BatchValue::Content(content)) = value else { continue };
            let Some(bytes) = content.bytes() else { continue };
            if bytes.len() >= STREAMED_VALUE_BYTES && bytes.len() as u64 <= limit {
                let stored = store_stream(&self.core, self.namespace, &mut &*bytes)?;
                *content = Content::Stored(stored);
            }
        }
        Ok(())
    }
}

/// Which keys a scan gives, and in which order.
#[derive(Debug, Clone)]
pub struct ScanRange {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    reverse: bool,
}

impl ScanRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { from: Bound::Unbounded, to: Bound::Unbounded, reverse: false }
    }

    /// Keys with this prefix.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let to = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Self { from: Bound::Included(prefix.to_vec()), to, reverse: false }
    }

    /// Keys within bounds.
    #[must_use]
    pub fn between(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Self {
        Self { from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec), reverse: false }
    }

    /// The same keys in reverse order.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = !self.reverse;
        self
    }
}

/// Number of keys that are fetched at once.
const PAGE_KEYS: usize = 256;

/// Keys and values in order.
#[derive(Debug)]
pub struct Scan {
    keyspace: Keyspace,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    reverse: bool,
    /// Keeps the versions that are still to be read.
    view: View,
    page: std::vec::IntoIter<IndexHit>,
    done: bool,
}

impl Scan {
    #[doc(hidden)]
    pub fn new(keyspace: Keyspace, range: ScanRange, view: View) -> Self {
        let user = |bound: Bound<Vec<u8>>| bound.map(|key| keys::user(keyspace.id, &key));
        let from = match user(range.from) {
            Bound::Unbounded => Bound::Included(keys::user(keyspace.id, b"")),
            bound => bound,
        };
        let to = match user(range.to) {
            Bound::Unbounded => {
                prefix_end(&keys::user(keyspace.id, b"")).map_or(Bound::Unbounded, Bound::Excluded)
            }
            bound => bound,
        };
        Self { keyspace, from, to, reverse: range.reverse, view, page: Vec::new().into_iter(), done: false }
    }
}

impl Scan {
    /// Iterates over the keys only: values are neither read nor checked.
    #[must_use]
    pub fn keys(self) -> Keys {
        Keys(self)
    }

    /// The next key and where its value is.
    fn next_hit(&mut self) -> Option<Result<IndexHit>> {
        loop {
            if let Some(hit) = self.page.next() {
                return Some(Ok(hit));
            }
            if self.done {
                return None;
            }
            let index = &self.keyspace.core.index;
            match index.read_page(
                bound_as_slice(&self.from),
                bound_as_slice(&self.to),
                self.view.seqno(),
                self.reverse,
                PAGE_KEYS,
            ) {
                Ok((hits, more)) => {
                    self.page = hits.into_iter();
                    match more {
                        Some(last) if self.reverse => self.to = Bound::Excluded(last),
                        Some(last) => self.from = Bound::Excluded(last),
                        None => self.done = true,
                    }
                }
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let hit = match self.next_hit()? {
                Ok(hit) => hit,
                Err(error) => return Some(Err(error)),
            };
            let key = keys::user_part(&hit.key).to_vec();
            // The place alone identifies the version: the seqno is the reader's own bound.
            match self.keyspace.read_version(&key, self.view.seqno(), hit.value) {
                Ok(Version { value: Some(value), .. }) => return Some(Ok((key, value))),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The keys of a [`Scan`].
#[derive(Debug)]
pub struct Keys(Scan);

impl Iterator for Keys {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next_hit()?.map(|hit| keys::user_part(&hit.key).to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::io::sim::SimIo;
    use crate::testing::KvStore as Store;

    /// An index may be wrong, by a bug or by design. The record that it leads to must hold the requested key
    /// of this keyspace.
    #[test]
    fn index_entry_of_another_key_is_damage() {
        let options = Options { io: Arc::new(SimIo::new(1)), ..Options::default() };
        let store = Store::open_with("s", options).unwrap();
        let space = store.namespace("n").unwrap();
        let (one, other) =
            (space.keyspace("one", History::All).unwrap(), space.keyspace("other", History::All).unwrap());
        one.put(b"key", "value").unwrap();
        let at = View::new(&one.core).seqno();
        let (seqno, value) = one.core.index.get(&keys::user(one.id, b"key"), at).unwrap().unwrap();
        assert_eq!(one.read_version(b"key", seqno, value).unwrap().value.as_deref(), Some(&b"value"[..]));
        assert_eq!(one.read_version(b"kez", seqno, value).unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(other.read_version(b"key", seqno, value).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn lent_values_of_every_length_are_stored_beside_owned_ones() {
        let options = Options { io: Arc::new(SimIo::new(1)), ..Options::default() };
        let store = Store::open_with("s", options).unwrap();
        let space = store.namespace("n").unwrap();
        let keyspace = space.keyspace("one", History::All).unwrap();
        let lens = [0, 1, 511, KV_INLINE_BYTES_MAX - 1, KV_INLINE_BYTES_MAX, KV_INLINE_BYTES_MAX + 1, 70_000];
        let value = |len: usize| (0..len).map(|at| (at * 31 + len) as u8).collect::<Vec<u8>>();
        let mut batch = KvBatch::new(&keyspace.core, keyspace.namespace);
        for len in lens {
            let bytes = value(len);
            batch.put(&keyspace, format!("lent {len}").as_bytes(), BodyInput::Lent(&bytes));
            batch.delete(&keyspace, b"no value");
            batch.put(&keyspace, format!("owned {len}").as_bytes(), bytes);
        }
        batch.commit().unwrap();
        for len in lens {
            for how in ["lent", "owned"] {
                let found = keyspace.get(format!("{how} {len}").as_bytes()).unwrap();
                assert!(found.as_deref() == Some(&value(len)), "{how} {len}");
            }
        }
        assert_eq!(keyspace.get(b"no value").unwrap(), None);
    }

    #[test]
    fn lent_value_over_the_limit_is_refused() {
        let io = Arc::new(SimIo::new(1));
        let store = Store::open_with("s", Options { io, body_bytes_max: 100, ..Options::default() }).unwrap();
        let space = store.namespace("n").unwrap();
        let keyspace = space.keyspace("one", History::All).unwrap();
        for (len, fits) in [(100, true), (101, false)] {
            let mut batch = KvBatch::new(&keyspace.core, keyspace.namespace);
            batch.put(&keyspace, b"key", BodyInput::Lent(&vec![7; len]));
            let done = batch.commit().map_err(|error| error.kind());
            assert_eq!(done.map(drop), if fits { Ok(()) } else { Err(ErrorKind::Invalid) }, "{len}");
        }
        assert_eq!(keyspace.get(b"key").unwrap(), Some(vec![7; 100]));
    }
}
