//! Reading a body as a stream, without holding it in memory.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::blob::{Extent, GroupId};
use crate::error::Error;
use crate::ids::{BlobId, NamespaceId, RecordedId};
use crate::kv::bodies::{self, HashCheck};
use crate::kv::core::Core;
use crate::kv::groups::{DecodeScope, group_for_extent};

/// Small extents are gathered into pieces of at least this many bytes.
const PIECE_BYTES: usize = 128 << 10;

/// Streams the bytes of a body from first to last.
///
/// The reader hashes the bytes as they pass. It returns the last piece only after the whole body matches its
/// id. On a mismatch, reading ends with an error instead: a caller that reads to the end has the right bytes.
/// A reader from `RunReader::unverified` does not hash them.
#[derive(Debug)]
pub struct BlobReader {
    core: Arc<Core>,
    namespace: NamespaceId,
    extents: Arc<Vec<Extent>>,
    next: usize,
    /// The group that was read last.
    group: Option<(GroupId, Arc<Vec<u8>>)>,
    /// The current piece, if it was gathered from several extents. `None`: the piece is a range of `group`.
    gathered: Option<Vec<u8>>,
    /// The range of the current piece that is not yet returned.
    piece_start: usize,
    piece_end: usize,
    /// `None`: the hash is not compared.
    hasher: Option<Box<blake3::Hasher>>,
    len: u64,
    id: RecordedId,
}

impl BlobReader {
    #[doc(hidden)]
    pub fn new(
        core: Arc<Core>,
        namespace: NamespaceId,
        extents: Arc<Vec<Extent>>,
        named: (u64, RecordedId),
        hashing: HashCheck,
    ) -> Self {
        let (len, id) = named;
        let hasher = (hashing == HashCheck::Compared).then(Box::default);
        Self {
            core,
            namespace,
            extents,
            next: 0,
            group: None,
            gathered: None,
            piece_start: 0,
            piece_end: 0,
            hasher,
            len,
            id,
        }
    }

    /// A reader of a body that is already in memory.
    #[doc(hidden)]
    pub fn from_bytes(core: Arc<Core>, namespace: NamespaceId, bytes: Vec<u8>) -> Self {
        let (len, id) = (bytes.len() as u64, BlobId::of(&bytes).into());
        let all = Self::new(core, namespace, Arc::default(), (len, id), HashCheck::Skipped);
        Self { piece_end: bytes.len(), gathered: Some(bytes), ..all }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the body has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// BLAKE3 of the body, as far as it is known: once the last piece was read, all of it. Before that, the
    /// record may hold only its first bytes. A reader that does not hash learns no more than the record holds.
    #[must_use]
    pub fn id(&self) -> RecordedId {
        self.id
    }

    /// Reads the rest of the body and checks its id, without handing bytes out.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not the ones that were stored; `Unavailable`.
    #[doc(hidden)]
    pub fn check(mut self) -> Result<(), Error> {
        while self.next < self.extents.len() {
            self.load_piece()?;
        }
        Ok(())
    }

    /// Loads the group of the next extent, and returns the extent's range in it.
    fn next_extent(&mut self) -> Result<Option<Range<usize>>, Error> {
        let Some(extent) = self.extents.get(self.next) else { return Ok(None) };
        let range = extent.offset as usize..extent.end() as usize;
        let known = self.group.take().filter(|(id, raw)| *id == extent.group && raw.len() >= range.end);
        let at_hand = match known {
            Some(known) => known,
            None => {
                let rest = self.extents.get(self.next..).unwrap_or_default();
                (
                    extent.group,
                    group_for_extent(&self.core, self.namespace, extent, rest, DecodeScope::UpToBody)?,
                )
            }
        };
        self.group = Some(at_hand);
        self.next += 1;
        Ok(Some(range))
    }

    fn group_bytes(&self, range: Range<usize>) -> Result<&[u8], Error> {
        let raw = self.group.as_ref().and_then(|(_, raw)| raw.get(range));
        raw.ok_or_else(|| bodies::hash_mismatch(self.id))
    }

    /// Loads the next piece, if there is one. Small extents are gathered first, because hashing them one by
    /// one is several times slower. A body of one extent is never copied.
    fn load_piece(&mut self) -> Result<(), Error> {
        let mut gathered = self.gathered.take().unwrap_or_default();
        gathered.clear();
        let alone = self.extents.len() == 1;
        let mut hasher = self.hasher.take();
        let mut whole = None;
        while gathered.len() < PIECE_BYTES {
            let Some(range) = self.next_extent()? else { break };
            let bytes = self.group_bytes(range.clone())?;
            if alone {
                if let Some(hasher) = &mut hasher {
                    hasher.update(bytes);
                }
                whole = Some(range);
                break;
            }
            gathered.extend_from_slice(bytes);
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(&gathered);
            if self.next == self.extents.len() {
                let found = BlobId(*hasher.finalize().as_bytes());
                if !self.id.fits(found) {
                    return Err(bodies::hash_mismatch(self.id));
                }
                self.id = found.into();
            }
        }
        self.hasher = hasher;
        let piece = whole.unwrap_or(0..gathered.len());
        (self.piece_start, self.piece_end) = (piece.start, piece.end);
        self.gathered = (!alone).then_some(gathered);
        Ok(())
    }

    fn piece(&self) -> &[u8] {
        let from = self.gathered.as_ref().or_else(|| self.group.as_ref().map(|(_, raw)| &**raw));
        from.and_then(|from| from.get(self.piece_start..self.piece_end)).unwrap_or_default()
    }
}

impl Read for BlobReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.piece_start == self.piece_end && self.next < self.extents.len() {
            self.load_piece().map_err(|e| IoError::new(IoErrorKind::InvalidData, e))?;
        }
        let piece = self.piece();
        let count = piece.len().min(out.len());
        out[..count].copy_from_slice(&piece[..count]);
        self.piece_start += count;
        Ok(count)
    }
}
