//! One pass over the leaves of the log. If compaction left only the root of a subtree, the pass visits that
//! subtree as one node.

use crate::error::{Error, Result};
use crate::ids::Seqno;
use crate::log::joined::LogBatch;
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES};
use crate::log::ledger::{Frontier, LedgerNode};
use crate::log::open::{FoundLog, find};
use crate::log::scan::{ScanEnd, scan, scan_states};
use crate::log::segments::Segment;
use crate::trace::census::LogCensus;
use annals_store::kv::core::Core;
use annals_store::schema::RecordSchema;

/// A leaf, or a subtree of erased leaves, visited by [`walk`].
pub(super) struct Leaf<'a> {
    /// Number of its first leaf, from 0.
    pub(super) index: u64,
    pub(super) node: LedgerNode,
    /// Its last record.
    pub(super) last: Seqno,
    pub(super) batch: &'a LogBatch<'a>,
    pub(super) segment: &'a Segment,
    /// The tree of the leaves before it.
    pub(super) before: &'a Frontier,
    /// What the leaves before it hold.
    pub(super) census: &'a LogCensus,
}

impl Leaf<'_> {
    /// The number of the leaf after it, or after its subtree.
    pub(super) fn end(&self) -> u64 {
        self.index + (1 << self.node.height)
    }
}

/// Finds the files of a log and reads its current state.
pub(super) fn open_log(core: &Core) -> Result<(FoundLog, LogState)> {
    let found = find(&*core.io, &core.paths, false, false, core.options.read_mode)?;
    let end = scan(
        &*core.schema,
        &found,
        found.state.covers,
        found.state.covers_state.clone(),
        &mut |_, _| Ok(()),
    )?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok((found, end.state)),
    }
}

/// What a walk found.
pub(super) struct WalkedLog {
    pub(super) tree: Frontier,
    pub(super) end: ScanEnd,
    pub(super) census: LogCensus,
}

/// What [`walk`] reaches.
pub(super) enum Visit<'a> {
    Leaf(&'a Leaf<'a>),
    /// The end of the visited leaves: the tree over them, and what they hold.
    End(&'a Frontier, &'a LogCensus),
}

/// Reads the log from its first byte, checks every checksum and the chain, and calls `each` for the first
/// `upto` leaves, and once at their end. The last visited node may be a subtree that extends past `upto`. Returns the
/// tree over the visited leaves, and the census, which counts the records of those leaves.
///
/// # Errors
/// `Damaged` if the log is damaged; `Unavailable`; errors of `each`.
pub(super) fn walk(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    upto: u64,
    each: &mut dyn FnMut(Visit<'_>) -> Result<()>,
) -> Result<WalkedLog> {
    let first = found.state.segments.first().map(|segment| segment.id).unwrap_or_default();
    let mut tree = Frontier::default();
    let mut census = LogCensus::new(upto);
    let mut is_past = false;
    let end = scan_states(
        schema,
        found,
        (first, SEGMENT_HEADER_BYTES),
        LogState::empty(),
        &mut |batch, segment, state| {
            let node = batch.node.filter(|_| !is_past);
            if let Some(node) = node {
                let (index, last) = (tree.leaves, state.last_seqno());
                let census = &census;
                is_past = index >= upto;
                match is_past {
                    true => each(Visit::End(&tree, census))?,
                    false => {
                        let leaf = Leaf { index, node, last, batch, segment, before: &tree, census };
                        each(Visit::Leaf(&leaf))?;
                    }
                }
            }
            census.add(batch, segment, state)?;
            match node.filter(|_| !is_past) {
                Some(node) => {
                    tree.push_node(node).map_err(|e| Error::damaged(&segment.path, batch.offset, e))
                }
                None => Ok(()),
            }
        },
    )?;
    if let Some(damage) = &end.damage {
        return Err(damage.error());
    }
    if !is_past {
        each(Visit::End(&tree, &census))?;
    }
    Ok(WalkedLog { tree, end, census })
}
