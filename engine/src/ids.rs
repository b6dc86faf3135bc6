//! Newtypes: those of the store, a run's number, and the links of its chain.

use std::fmt;

use annals_text::hex::HexDisplay;
use serde::{Deserialize, Serialize};

pub use annals_store::ids::{BlobId, NodeHash, RecordedId, Seqno, StoreId};
pub(crate) use annals_store::ids::{NamespaceId, RecordPlace, SegmentId};
pub use annals_vector::RunUid;

/// A link of a run's hash chain. The last link is the run's fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link(pub [u8; 32]);

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&HexDisplay(&self.0), f)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&HexDisplay(&self.0), f)
    }
}
