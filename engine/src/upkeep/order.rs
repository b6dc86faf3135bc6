//! Finds the segment files that make up the log, and their order: from the manifest, or else from the
//! segments themselves.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno};
use crate::log::manifest::SegmentEntry;
use crate::log::scan::sealed_footer;
use crate::upkeep::directory::SegmentFile;

/// Maximum number of missing files that are reported.
const MISSING_MAX: usize = 1000;

/// The segment files in log order, without those that an interrupted compaction left over.
///
/// # Errors
/// `Unavailable` if a file cannot be read.
pub(super) fn log_order(
    found: Vec<SegmentFile>,
    listed: Option<&[SegmentEntry]>,
) -> Result<Vec<SegmentFile>> {
    match listed {
        Some(listed) if listed.iter().all(|entry| found.iter().any(|one| one.segment.id == entry.id)) => {
            Ok(order_by_manifest(found, listed))
        }
        _ => order_by_headers(found),
    }
}

/// Whether the manifest is older than the log: a rewritten segment that it does not list holds records of its active
/// segment, or later ones. It came with an older copy of the store.
pub(super) fn is_older(listed: &[SegmentEntry], found: &[SegmentFile]) -> Result<bool> {
    let Some(active) = listed.last() else { return Ok(false) };
    for one in found.iter().filter(|one| one.segment.id.is_rewritten()) {
        let is_listed = listed.iter().any(|entry| entry.id == one.segment.id);
        if !is_listed && record_span(one)?.is_some_and(|(_, end)| end > active.first_seqno) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The order of the manifest, followed by segments that the writer may have begun since.
fn order_by_manifest(mut found: Vec<SegmentFile>, listed: &[SegmentEntry]) -> Vec<SegmentFile> {
    let last = listed.last().map(|entry| entry.id);
    found.retain(|one| {
        let id = one.segment.id;
        listed.iter().any(|entry| entry.id == id) || (!id.is_rewritten() && Some(id) > last)
    });
    let place = |one: &SegmentFile| listed.iter().position(|entry| entry.id == one.segment.id);
    found.sort_by_key(|one| (place(one).unwrap_or(usize::MAX), one.segment.id));
    found
}

/// Orders the files by the seqnos of their records. A complete rewritten segment replaces its sources: they
/// hold nothing else that is needed. An incomplete rewritten segment is ignored if a source still exists,
/// because the manifest never listed it.
fn order_by_headers(found: Vec<SegmentFile>) -> Result<Vec<SegmentFile>> {
    let mut spans = Vec::with_capacity(found.len());
    for one in &found {
        spans.push(record_span(one)?);
    }
    let begins_alone = |at: usize| {
        let begin = |one: &SegmentFile| one.header.as_ref().map(|header| header.first_seqno);
        let others = found.iter().enumerate().filter(|(other, _)| *other != at);
        others.map(|(_, other)| begin(other)).all(|other| other.is_none() || other != begin(&found[at]))
    };
    let stays = |at: usize| {
        let one = &found[at];
        let id = one.segment.id;
        let Some(first) = one.header.as_ref().map(|header| header.first_seqno) else {
            return !id.is_rewritten();
        };
        if id.is_rewritten() && spans[at].is_none() && !begins_alone(at) {
            return false;
        }
        // The later segment was made from the earlier one.
        let newer = |other: usize| found[other].segment.id.is_rewritten() && found[other].segment.id > id;
        !(0..found.len())
            .any(|other| newer(other) && spans[other].is_some_and(|(from, to)| from <= first && first < to))
    };
    let kept: Vec<bool> = (0..found.len()).map(stays).collect();
    // A segment without a header follows the segment with the preceding number.
    let mut known = Seqno(0);
    let mut sorted: Vec<(Seqno, SegmentFile)> = Vec::new();
    for (one, _) in found.into_iter().zip(kept).filter(|(_, kept)| *kept) {
        known = one.header.as_ref().map_or(known, |header| header.first_seqno);
        sorted.push((known, one));
    }
    sorted.sort_by_key(|(first, one)| (*first, one.segment.id));
    Ok(sorted.into_iter().map(|(_, one)| one).collect())
}

/// The seqnos of a sealed segment's records: the first, and the one after the last.
fn record_span(one: &SegmentFile) -> Result<Option<(Seqno, Seqno)>> {
    let Some(header) = &one.header else { return Ok(None) };
    match sealed_footer(&one.segment, one.len.min(u64::from(u32::MAX))) {
        Ok(footer) => Ok(Some((header.first_seqno, footer.state.next_seqno))),
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
        Err(error) => Err(Error::new(error.kind(), error.to_string())),
    }
}

/// Listed segments whose files are missing. Without a list: numbers missing between the writer's own
/// segments.
pub(super) fn missing_segments(found: &[SegmentFile], listed: Option<&[SegmentEntry]>) -> Vec<SegmentId> {
    let there = |id: SegmentId| found.iter().any(|one| one.segment.id == id);
    if let Some(listed) = listed {
        return listed.iter().map(|entry| entry.id).filter(|id| !there(*id)).take(MISSING_MAX).collect();
    }
    let mut next = Some(1);
    let mut missing = Vec::new();
    for id in found.iter().map(|one| one.segment.id) {
        // The number of a rewritten segment does not tell which segments it replaces.
        if let Some(from) = next.filter(|_| !id.is_rewritten()) {
            missing.extend((from..id.0).take(MISSING_MAX - missing.len()).map(SegmentId));
        }
        next = (!id.is_rewritten()).then_some(id.0.saturating_add(1));
    }
    missing
}
