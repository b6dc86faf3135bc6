//! A source segment of a rewrite, read and checked batch by batch.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::cursor::{LogCursor, next_seqno};
use crate::log::joined::LogBatch;
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES, SegmentFooter, SegmentHeader};
use crate::log::scan::sealed_footer;
use crate::log::segments::Segment;
use crate::sync::thread;

/// A sealed segment with its header and footer.
#[derive(Debug)]
pub struct SourceSegment {
    pub segment: Arc<Segment>,
    pub header: SegmentHeader,
    pub footer: SegmentFooter,
}

/// Opens the sources; each must follow the previous one.
pub fn open_consecutive(segments: &[Arc<Segment>]) -> Result<Vec<SourceSegment>> {
    let sources: Vec<SourceSegment> =
        segments.iter().map(|segment| SourceSegment::open(segment.clone())).collect::<Result<_>>()?;
    for two in sources.windows(2) {
        let (before, after) = (&two[0].footer.state, &two[1]);
        if after.header.first_seqno != before.next_seqno || after.header.chain != before.chain {
            return Err(Error::damaged(&after.segment.path, 0, "it does not follow the segment before it"));
        }
    }
    Ok(sources)
}

impl SourceSegment {
    pub fn open(segment: Arc<Segment>) -> Result<Self> {
        let header = segment.header()?;
        let footer = sealed_footer(&segment, segment.file.len()?)?;
        Ok(Self { segment, header, footer })
    }

    /// Calls `visit` with each batch, unchecked. A caller that relies on it must compare the result with that
    /// of [`SourceSegment::each_batch`].
    ///
    /// # Errors
    /// `Damaged` if the batch lengths do not fit; the error of `visit`.
    pub fn each_batch_unchecked(&self, visit: &mut dyn FnMut(&LogBatch<'_>) -> Result<()>) -> Result<()> {
        let Self { segment, footer, .. } = self;
        let mut cursor = LogCursor::sealed(segment, SEGMENT_HEADER_BYTES, footer.tail);
        while cursor.at < footer.tail {
            let at = cursor.at;
            visit(&cursor.next_unchecked()?.map_err(|e| Error::damaged(&segment.path, at, e))?)?;
        }
        Ok(())
    }

    /// Calls `visit` with each batch, checked.
    ///
    /// # Errors
    /// `Damaged` if the batches differ from what was written; the error of `visit`.
    pub fn each_batch(&self, visit: &mut dyn FnMut(&LogBatch<'_>) -> Result<()>) -> Result<()> {
        let Self { segment, header, footer } = self;
        let mut state =
            LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
        let mut cursor = LogCursor::sealed(segment, SEGMENT_HEADER_BYTES, footer.tail);
        while cursor.at < footer.tail {
            let at = cursor.at;
            let damaged = |e| Error::damaged(&segment.path, at, e);
            // Recording and reading threads go first.
            thread::yield_now();
            let batch = cursor.next(&state)?.map_err(damaged)?;
            visit(&batch)?;
            state.next_seqno = next_seqno(&batch, segment.salt).map_err(damaged)?;
            state.chain = batch.digest_after(state.chain);
        }
        if state.chain != footer.own_chain() || state.next_seqno != footer.state.next_seqno {
            let what = "its footer does not say what its batches add up to";
            return Err(Error::damaged(&segment.path, footer.tail, what));
        }
        Ok(())
    }
}
