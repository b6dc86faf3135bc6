//! One pass over the log, leaf after leaf.

use crate::error::{Error, Result};
use crate::kv::core::Core;
use crate::log::cursor::Batch;
use crate::log::layout::{BatchHeader, LogState, SEGMENT_HEADER_BYTES};
use crate::log::ledger::{Frontier, Hash};
use crate::log::open::{End, Found, find, scan, scan_states};
use crate::log::segments::Segment;

/// A leaf as it goes by.
pub(super) struct Leaf<'a> {
    /// Its number, from 0.
    pub(super) index: u64,
    pub(super) hash: Hash,
    pub(super) batch: &'a Batch<'a>,
    pub(super) header: BatchHeader,
    pub(super) segment: &'a Segment,
    /// The tree of the leaves before it.
    pub(super) before: &'a Frontier,
}

/// The files of a log and what it says of itself.
pub(super) fn look(core: &Core) -> Result<(Found, LogState)> {
    let found = find(&*core.io, &core.paths, false, false, core.options.read_mode)?;
    let end = scan(&found, found.state.covers, found.state.covers_state.clone(), &mut |_, _| Ok(()))?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok((found, end.state)),
    }
}

/// Reads the log from its first byte, checking every checksum and the chain, and calls `each` for the first `upto`
/// leaves. Gives the tree over them, or over all there are if those are fewer.
///
/// # Errors
/// `Damaged` where the log is; `Unavailable`; what `each` gives.
pub(super) fn walk(
    found: &Found,
    upto: u64,
    each: &mut dyn FnMut(&Leaf<'_>) -> Result<()>,
) -> Result<(Frontier, End)> {
    let first = found.state.segments.first().map(|segment| segment.id).unwrap_or_default();
    let mut tree = Frontier::default();
    let end =
        scan_states(found, (first, SEGMENT_HEADER_BYTES), LogState::empty(), &mut |batch, segment, _| {
            let Some(hash) = batch.leaf.filter(|_| tree.leaves < upto) else { return Ok(()) };
            let (_, header) =
                BatchHeader::peek(batch.whole).map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
            each(&Leaf { index: tree.leaves, hash, batch, header, segment, before: &tree })?;
            tree.push(hash);
            Ok(())
        })?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok((tree, end)),
    }
}
