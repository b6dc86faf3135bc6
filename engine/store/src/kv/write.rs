//! Builds one batch: packs bodies into leased groups, adds the records that name them, and hands the batch to
//! the writer.

use std::sync::Arc;

use crate::blob::{
    AnchorKey, AnchorSeed, ComparedBody, EarlierBytes, Extent, GroupId, Packer, PreviousMatch, encode_recipe,
    plan,
};
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, Seqno};
use crate::kv::bodies::{self, anchor_seed};
use crate::kv::content::{BodyInput, Content, StoredBlob};
use crate::kv::core::{Core, Options};
use crate::kv::fence::Pass;
use crate::kv::keys;
use crate::log::batch::BatchBuf;
use crate::log::queue::{Durability, Lease, SubmitTerms, WriteThread};
use crate::log::record::{BodyRef, GroupPart, KV_INLINE_BYTES_MAX, RecipeRef, RecordKind};
use crate::log::segments::lock;
use crate::log::ticket::Ticket;

/// Bytes of a streamed body that are committed together.
const STREAM_BYTES: usize = 1 << 20;

/// Of a body from this size on, fewer anchors are kept and looked up: a long repeat still meets one of them.
const LARGE_BODY_BYTES: usize = 256 << 10;

/// See the module. If it is dropped before [`BatchWriter::submit`], nothing of it becomes visible.
#[derive(Debug)]
pub struct BatchWriter {
    core: Arc<Core>,
    pub namespace: NamespaceId,
    batch: BatchBuf,
    lease: Option<Lease>,
    /// Taken with the first body that may name existing content.
    pass: Option<Pass>,
    /// The batch may be queued even while the store closes.
    at_close: bool,
    /// New bytes of bodies that were packed raw although they may compress.
    raw_bytes: u64,
}

/// Maximum bytes of a value that is stored in its record.
pub fn inline_bytes_max(options: &Options) -> usize {
    KV_INLINE_BYTES_MAX.min(codec::index(options.body_bytes_max))
}

/// A body that is in the batch, or inline.
#[derive(Debug, Clone)]
pub struct PackedBody {
    pub reference: BodyRef,
    pub id: BlobId,
    /// Length in bytes.
    pub len: u64,
    /// `None`: inline.
    pub extents: Option<Arc<Vec<Extent>>>,
}

impl PackedBody {
    /// Appends the recipe of a blob to a record's tail. `base` is the body to code against, and how far back
    /// it is.
    pub fn put_recipe(&self, base: Option<(u32, &[Extent])>, tail: &mut Vec<u8>) {
        let Some(extents) = &self.extents else { return };
        let coded = base.map(|(back, base)| (back, encode_recipe(extents, Some(base))));
        let (base_back, recipe) = match coded {
            // A recipe without a base takes at least a byte for each extent.
            Some(coded) if coded.1.len() < extents.len() => coded,
            coded => {
                let alone = encode_recipe(extents, None);
                coded.filter(|(_, coded)| coded.len() < alone.len()).unwrap_or((0, alone))
            }
        };
        RecipeRef { body_len: self.len, base_back, recipe: &recipe }.put(tail);
    }
}

impl BatchWriter {
    pub fn new(core: &Arc<Core>, namespace: NamespaceId) -> Result<Self> {
        let queue = &core.log()?.queue;
        queue.check_poisoned()?;
        Ok(Self {
            core: core.clone(),
            namespace,
            batch: queue.batch(namespace),
            lease: None,
            pass: None,
            at_close: false,
            raw_bytes: 0,
        })
    }

    /// Like [`BatchWriter::new`], for what closing writes after callers are no longer served.
    pub fn for_close(core: &Arc<Core>, namespace: NamespaceId) -> Result<Self> {
        Ok(Self { at_close: true, ..Self::new(core, namespace)? })
    }

    /// Whether it writes into this namespace of this store.
    pub(crate) fn is_of(&self, core: &Core, namespace: NamespaceId) -> bool {
        self.core.store == core.store && self.namespace == namespace
    }

    /// Reserves space for this many bytes of records.
    pub fn reserve(&mut self, bytes: usize) {
        self.batch.reserve(bytes);
    }

    /// Packs a body: inline if it has at most `inline_max` bytes, otherwise as a blob.
    pub fn pack_content(&mut self, content: &BodyInput<'_>, inline_max: usize) -> Result<PackedBody> {
        self.check_len(content)?;
        if let Some(bytes) = content.bytes().filter(|bytes| bytes.len() <= inline_max) {
            return Ok(PackedBody {
                reference: BodyRef::Inline(bytes.to_vec()),
                id: BlobId::of(bytes),
                len: bytes.len() as u64,
                extents: None,
            });
        }
        match content {
            BodyInput::Bytes(bytes) => self.pack_blob(&ComparedBody::new(bytes, None)),
            BodyInput::Lent(bytes) => self.pack_blob(&ComparedBody::lent(bytes, None)),
            BodyInput::Stored(blob) if blob.namespace != self.namespace => {
                Err(Error::invalid("the stored blob belongs to another namespace: store it in this one"))
            }
            BodyInput::Stored(blob) => {
                // From now on the batch may be the blob's only holder.
                self.pass.get_or_insert_with(|| self.core.fence.pass());
                Ok(PackedBody {
                    reference: BodyRef::Blob { len: blob.len, id: blob.id.into() },
                    id: blob.id,
                    len: blob.len,
                    extents: Some(blob.extents.clone()),
                })
            }
        }
    }

    /// Packs a key's value, and appends its reference to the record's head and tail.
    pub fn put_value(&mut self, content: &Content, head: &mut Vec<u8>, tail: &mut Vec<u8>) -> Result<()> {
        let inline_max = inline_bytes_max(&self.core.options);
        match content.bytes() {
            // An inline value has no address, so nothing hashes it.
            Some(bytes) if bytes.len() <= inline_max => BodyRef::put_inline(bytes, head),
            _ => {
                let packed = self.pack_content(content, KV_INLINE_BYTES_MAX)?;
                packed.reference.put(head);
                packed.put_recipe(None, tail);
            }
        }
        Ok(())
    }

    /// Refuses a body over the store's limit.
    ///
    /// # Errors
    /// `Invalid` for a body over the store's limit.
    pub fn check_len(&self, content: &BodyInput<'_>) -> Result<()> {
        let limit = self.core.options.body_bytes_max;
        if content.len() > limit {
            return Err(Error::invalid(format!(
                "a body of {} bytes is over the limit of {limit}; raise body_bytes_max or split it",
                content.len()
            )));
        }
        Ok(())
    }

    /// Packs a body as a blob.
    pub fn pack_blob(&mut self, body: &ComparedBody<'_>) -> Result<PackedBody> {
        let (id, len) = (body.id(), body.bytes().len() as u64);
        let extents = Arc::new(self.pack(body.bytes(), body.previous_match())?);
        Ok(PackedBody { reference: BodyRef::Blob { len, id: id.into() }, id, len, extents: Some(extents) })
    }

    fn pack(&mut self, bytes: &[u8], before: Option<PreviousMatch<'_>>) -> Result<Vec<Extent>> {
        let (core, namespace) = (self.core.clone(), self.namespace);
        let writer = core.writer()?;
        let queue = &writer.log.queue;
        let fresh = || Packer::new(anchor_seed(core.store, namespace));
        let lease = self.lease.get_or_insert_with(|| queue.lease(namespace, fresh));
        let packer = &mut lease.groups()?.packer;
        let seed = packer.seed();
        let sparse = bytes.len() >= LARGE_BODY_BYTES;
        let pass = self.pass.get_or_insert_with(|| core.fence.pass());
        let plan =
            plan(bytes, before, &EarlierContent { core: &core, pass, namespace, seed, packer, sparse });
        let new_bytes = plan.new_bytes();
        let raw = writer.raw_tail.takes(new_bytes, || queue.has_fresh_segment());
        if raw {
            self.raw_bytes += new_bytes as u64;
        }
        let packed = packer
            .put(bytes, &plan, raw, &mut || writer.new_group())
            .map_err(|e| Error::with_source(ErrorKind::Bug, format!("a body cannot be packed: {e}"), e))?;
        let kept =
            packed.anchors.into_iter().filter(|anchor| !sparse || keys::is_kept_for_large_bodies(anchor.key));
        self.batch.anchors.extend(kept);
        Ok(packed.extents)
    }

    /// Appends a logical record.
    pub fn add_record(&mut self, kind: RecordKind, head: &[u8], tail: &[u8]) -> Result<()> {
        let salt = match self.batch.derives_salts() {
            true => [0; 16],
            false => self.core.writer()?.salt(&*self.core.io)?,
        };
        self.batch.push_logical(kind, salt, head, tail)?;
        let batch = &mut self.batch;
        keys::index_keys(&*self.core.schema, kind, head, &mut |key, kind| batch.add_posting(key, kind))
            .map_err(|e| Error::bug(format!("a record of our own does not parse: {e}")))
    }

    /// Encodes what was packed as records of the batch.
    fn flush_groups(&mut self) -> Result<Vec<(u64, u32, u32)>> {
        let mut places = Vec::new();
        let Some(lease) = &mut self.lease else { return Ok(places) };
        let groups = lease.groups()?;
        let parts = groups
            .packer
            .flush()
            .map_err(|e| Error::with_source(ErrorKind::Bug, format!("a group cannot be coded: {e}"), e))?;
        // Later bodies repeat what these groups hold: cached, they need no decoding.
        for (id, raw) in groups.packer.take_full_groups() {
            self.core.groups.put_filled(self.namespace, id, raw);
        }
        if self.raw_bytes > 0 {
            let writer = self.core.writer()?;
            writer.raw_tail.add(std::mem::take(&mut self.raw_bytes), writer.log.queue.active_segment());
        }
        for part in parts {
            let (before_offset, before_len) = groups.last_part(part.group.0);
            let (start, len) = self.batch.push_group_part(&GroupPart {
                group: part.group.0,
                namespace: self.namespace,
                raw_start: part.raw_start,
                raw_len: part.raw_len,
                codec: part.codec.code(),
                before_offset,
                before_len,
                encoded: &part.encoded,
            })?;
            self.batch.add_posting(&keys::group(part.group.0), keys::AT_PLACE);
            places.push((part.group.0, start, len));
        }
        Ok(places)
    }

    /// Hands the batch to the writer. Returns the seqno of its first record, or `None` if the batch is empty.
    pub fn submit(self, durability: Durability) -> Result<Option<(Seqno, Ticket)>> {
        self.submit_on(WriteThread::Writer, durability)
    }

    /// As [`BatchWriter::submit`], by a caller who waits for the ticket at once: it may write the batch itself.
    pub fn submit_awaited(self, durability: Durability) -> Result<Option<(Seqno, Ticket)>> {
        self.submit_on(WriteThread::Either, durability)
    }

    /// As [`BatchWriter::submit`], to be written by this thread.
    pub fn submit_on(
        mut self,
        write_thread: WriteThread,
        durability: Durability,
    ) -> Result<Option<(Seqno, Ticket)>> {
        let places = self.flush_groups()?;
        if self.batch.is_empty() {
            return Ok(None);
        }
        let now = self.core.io.now_ns();
        self.core.note_time(now);
        let lease = self.lease.take();
        let queue = &self.core.log()?.queue;
        // Keep the pass until the batch has its place in the log's order.
        let _pass = self.pass.take();
        let terms = SubmitTerms { durability, time_ns: now, at_close: self.at_close, write_thread };
        queue.submit(self.batch, &places, lease, terms).map(Some)
    }
}

/// Streams a body into the log, a part at a time. No record names it yet.
pub fn store_stream(
    core: &Arc<Core>,
    namespace: NamespaceId,
    from: &mut dyn std::io::Read,
) -> Result<StoredBlob> {
    let limit = core.options.body_bytes_max;
    let mut hasher = blake3::Hasher::new();
    let stream = core.fence.hold_stream();
    let mut len = 0u64;
    let mut piece = Vec::with_capacity(STREAM_BYTES);
    loop {
        piece.clear();
        let read = std::io::Read::take(&mut *from, STREAM_BYTES as u64);
        let got = std::io::Read::read_to_end(&mut { read }, &mut piece).map_err(|e| {
            Error::with_source(ErrorKind::Unavailable, format!("the source cannot be read: {e}"), e)
        })?;
        if got == 0 {
            break;
        }
        len += got as u64;
        if len > limit {
            return Err(Error::invalid(format!(
                "a body is over the limit of {limit} bytes; raise body_bytes_max or split it"
            )));
        }
        hasher.update(&piece);
        let mut writer = BatchWriter::new(core, namespace)?;
        let packed = writer.pack(&piece, None)?;
        let mut extents = lock(&stream);
        for extent in packed {
            match extents.last_mut() {
                Some(last) if last.is_followed_by(&extent) => last.len += extent.len,
                _ => extents.push(extent),
            }
        }
        drop(extents);
        if let Some((_, ticket)) = writer.submit_awaited(Durability::Process)? {
            ticket.wait()?;
        }
    }
    let extents = Arc::new(lock(&stream).clone());
    core.fence.hold_body(&extents);
    Ok(StoredBlob { namespace, id: BlobId(*hasher.finalize().as_bytes()), len, extents })
}

/// The existing content that the planner may use: open groups, the index, the log.
struct EarlierContent<'a> {
    core: &'a Core,
    pass: &'a Pass,
    namespace: NamespaceId,
    seed: AnchorSeed,
    packer: &'a Packer,
    /// Only some anchors are looked up, because only some are kept.
    sparse: bool,
}

impl EarlierBytes for EarlierContent<'_> {
    fn seed(&self) -> AnchorSeed {
        self.seed
    }

    fn anchor(&self, key: AnchorKey) -> Option<(GroupId, u32)> {
        if self.sparse && !keys::is_kept_for_large_bodies(key) {
            return None;
        }
        // The index is a cache here: if it cannot be read, that costs space, not correctness.
        let value = self.core.index.newest(&keys::anchor(self.namespace, key)).ok()??;
        let group = GroupId(value.a);
        (value.kind == keys::ANCHOR && self.pass.may_reference(group)).then_some((group, value.b))
    }

    fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        self.packer.group(id).or_else(|| bodies::whole_group(self.core, self.namespace, id, 0).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ByteReader;

    fn extent(group: u64, offset: u32, len: u32) -> Extent {
        Extent { group: GroupId(group), offset, len }
    }

    fn body_len(extents: &[Extent]) -> u64 {
        extents.iter().map(|extent| u64::from(extent.len)).sum()
    }

    #[test]
    fn shorter_recipe_of_two_codings_is_written() {
        let put = |extents: &[Extent], base: Option<(u32, &[Extent])>| {
            let id = BlobId([1; 32]);
            let reference = BodyRef::Blob { len: 1, id: id.into() };
            let mut tail = Vec::new();
            PackedBody { reference, id, len: 1, extents: Some(Arc::new(extents.to_vec())) }
                .put_recipe(base, &mut tail);
            let mut r = ByteReader::new(&tail, "test");
            let taken = RecipeRef::take(&mut r, body_len(extents)).unwrap();
            assert!(r.is_empty());
            let wanted = base.filter(|_| taken.base_back != 0).map(|(_, base)| base);
            assert_eq!(crate::blob::decode_recipe(taken.recipe, wanted, taken.body_len).unwrap(), extents);
            (taken.base_back, taken.recipe.len())
        };
        let many: Vec<Extent> = (0..20).map(|n| extent(5, n * 100, 50)).collect();
        let far = [extent(1 << 40, 1000, 5)];
        assert_eq!(put(&many, Some((7, &many))), (7, 2), "one copy for twenty extents");
        let alone = encode_recipe(&many, None).len();
        assert_eq!(put(&many, None), (0, alone));
        assert_eq!(put(&many, Some((7, &far))), (0, alone), "a base that has nothing of it");
        // Shorter than without a base, but not shorter than the number of extents.
        let new = [extent(9, 3000, 5)];
        let (near, against) =
            ([extent(9, 2990, 10)], encode_recipe(&new, Some(&[extent(9, 2990, 10)])).len());
        assert_eq!((put(&new, Some((7, &near))), against), ((7, 1), 1));
        let two = [extent(9, 3000, 5), extent(9, 4000, 5)];
        assert_eq!(put(&two, Some((7, &near))).0, 7);
        // Equally long: no base, because then nothing else is needed to read it.
        assert_eq!(put(&[extent(0, 0, 10)], Some((7, &[]))), (0, 1));
        assert_eq!(put(&[extent(9, 3000, 5)], Some((7, &[]))).0, 0);
    }
}
