//! Reading a body as a stream, without holding it in memory.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::blob::{Extent, GroupId};
use crate::error::Error;
use crate::ids::{BlobId, NamespaceId};
use crate::kv::bodies::{self, Hashing};
use crate::kv::core::Core;
use crate::kv::groups::{Wanted, group_of};

/// Extents are gathered until there are so many bytes.
const PIECE_BYTES: usize = 128 << 10;

/// The bytes of a body, from first to last.
///
/// They are hashed as they pass. The last piece is handed out only once the whole is known to hash to the body's id:
/// where it does not, reading ends with an error instead, so whoever reads to the end has the right bytes or knows.
/// One that comes from `RunReader::unverified` does not hash them.
#[derive(Debug)]
pub struct BlobReader {
    core: Arc<Core>,
    namespace: NamespaceId,
    extents: Arc<Vec<Extent>>,
    next: usize,
    /// The group that was read last.
    group: Option<(GroupId, Arc<Vec<u8>>)>,
    /// The piece at hand, unless it is a range of the group.
    gathered: Option<Vec<u8>>,
    /// What is left of the piece at hand.
    at: usize,
    end: usize,
    /// `None`: nobody compares the hash.
    hasher: Option<Box<blake3::Hasher>>,
    len: u64,
    id: BlobId,
}

impl BlobReader {
    #[doc(hidden)]
    pub fn new(
        core: Arc<Core>,
        namespace: NamespaceId,
        extents: Arc<Vec<Extent>>,
        named: (u64, BlobId),
        hashing: Hashing,
    ) -> Self {
        let (len, id) = named;
        let hasher = (hashing == Hashing::Compared).then(Box::default);
        Self {
            core,
            namespace,
            extents,
            next: 0,
            group: None,
            gathered: None,
            at: 0,
            end: 0,
            hasher,
            len,
            id,
        }
    }

    /// A body that is in memory already.
    #[doc(hidden)]
    pub fn of_bytes(core: Arc<Core>, namespace: NamespaceId, bytes: Vec<u8>) -> Self {
        let (len, id) = (bytes.len() as u64, BlobId::of(&bytes));
        let all = Self::new(core, namespace, Arc::default(), (len, id), Hashing::LeftOut);
        Self { end: bytes.len(), gathered: Some(bytes), ..all }
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

    /// BLAKE3 of the body.
    #[must_use]
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Has the next extent's group at hand, and says where in it the extent is.
    fn next_extent(&mut self) -> Result<Option<Range<usize>>, Error> {
        let Some(extent) = self.extents.get(self.next) else { return Ok(None) };
        let range = extent.offset as usize..extent.end() as usize;
        let known = self.group.take().filter(|(id, raw)| *id == extent.group && raw.len() >= range.end);
        let at_hand = match known {
            Some(known) => known,
            None => {
                let rest = self.extents.get(self.next..).unwrap_or_default();
                (extent.group, group_of(&self.core, self.namespace, extent, rest, Wanted::Reach)?)
            }
        };
        self.group = Some(at_hand);
        self.next += 1;
        Ok(Some(range))
    }

    fn of_group(&self, range: Range<usize>) -> Result<&[u8], Error> {
        let raw = self.group.as_ref().and_then(|(_, raw)| raw.get(range));
        raw.ok_or_else(|| bodies::mismatch(self.id))
    }

    /// Goes to the next piece, if there is one. Small extents are gathered first, since hashing them one by one costs
    /// several times as much; a body of one extent is never copied.
    fn fetch(&mut self) -> Result<(), Error> {
        let mut gathered = self.gathered.take().unwrap_or_default();
        gathered.clear();
        let alone = self.extents.len() == 1;
        let mut hasher = self.hasher.take();
        let mut whole = None;
        while gathered.len() < PIECE_BYTES {
            let Some(range) = self.next_extent()? else { break };
            let bytes = self.of_group(range.clone())?;
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
            if self.next == self.extents.len() && hasher.finalize().as_bytes() != &self.id.0 {
                return Err(bodies::mismatch(self.id));
            }
        }
        self.hasher = hasher;
        let piece = whole.unwrap_or(0..gathered.len());
        (self.at, self.end) = (piece.start, piece.end);
        self.gathered = (!alone).then_some(gathered);
        Ok(())
    }

    fn piece(&self) -> &[u8] {
        let from = self.gathered.as_ref().or_else(|| self.group.as_ref().map(|(_, raw)| &**raw));
        from.and_then(|from| from.get(self.at..self.end)).unwrap_or_default()
    }
}

impl Read for BlobReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.end && self.next < self.extents.len() {
            self.fetch().map_err(|e| IoError::new(IoErrorKind::InvalidData, e))?;
        }
        let piece = self.piece();
        let count = piece.len().min(out.len());
        out[..count].copy_from_slice(&piece[..count]);
        self.at += count;
        Ok(count)
    }
}
