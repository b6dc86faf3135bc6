//! Stands in for the log's rewriting: copies all there is.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::blob::GroupId;
use crate::error::{Error, Result};
use crate::ids::{Place, SegmentId, Seqno, StoreId};
use crate::io::{Io, Open};
use crate::log::cursor::{Cursor, for_each_record};
use crate::log::layout::*;
use crate::log::manifest::SegmentEntry;
use crate::log::open::{sealed_footer, sealed_tail};
use crate::log::paths::Paths;
use crate::log::segments::Segment;
use crate::log::totals::Totals;

pub(crate) trait Keep {
    fn record(&self, segment: SegmentId, offset: u32) -> bool;
    fn group(&self, group: GroupId) -> Vec<Range<u32>>;
}
pub(crate) struct Made {
    pub entry: SegmentEntry,
    pub erased: Totals,
    pub moved: Vec<Moved>,
    pub live_bytes: u64,
}
pub(crate) struct Moved {
    pub from: Place,
    pub to: Place,
}

pub(crate) fn rewrite(
    io: &dyn Io,
    paths: &Paths,
    store: StoreId,
    sources: &[Arc<Segment>],
    id: SegmentId,
    _keep: &dyn Keep,
    _recompress: Option<i32>,
    spend: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Made> {
    let path = paths.segment(id);
    if io.stat(&path)?.is_some() {
        io.remove(&path)?;
    }
    let file = io.open(&path, Open::CreateNew)?;
    let first = sources[0].header()?;
    let header = SegmentHeader { segment: id, ..first.clone() };
    let bytes = header.encode().map_err(|e| Error::bug(e.to_string()))?;
    file.write_at(&[IoSlice::new(&bytes)], 0)?;
    let new = Salt::new(store, id);
    let mut at = SEGMENT_HEADER_BYTES;
    let mut prev = first.chain;
    let mut moved = Vec::new();
    let mut last = None;
    for source in sources {
        let len = source.file.len()?;
        let header = source.header()?;
        let end = sealed_tail(source, len)?;
        let mut state =
            LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
        let mut cursor = Cursor::new(source.file.clone(), source.salt, SEGMENT_HEADER_BYTES, end);
        while cursor.at < end {
            let from = cursor.at;
            let batch = cursor.next(&state)?.map_err(|e| Error::damaged(&source.path, from, e))?;
            let (_, head) =
                BatchHeader::peek(batch.whole).map_err(|e| Error::damaged(&source.path, from, e))?;
            state.next_seqno = Seqno(head.first_seqno.0 + u64::from(head.records));
            state.chain = chain_digest(batch.whole);
            let mut whole = batch.whole.to_vec();
            let mut spots = Vec::new();
            for_each_record(batch.whole, batch.offset, source.salt, |offset, _, record| {
                spots.push((offset, record.bytes));
                Ok(())
            })
            .map_err(|e| Error::damaged(&source.path, from, e))?;
            for (offset, len) in spots {
                let within = (offset - from) as usize;
                stamp_record(&mut whole[within..within + len as usize], new, at + within as u64);
                moved.push(Moved {
                    from: Place { segment: source.id, offset: offset as u32, len },
                    to: Place { segment: id, offset: (at + within as u64) as u32, len },
                });
            }
            BatchHeader { prev, ..head }.write(&mut whole, new, at);
            prev = chain_digest(&whole);
            spend(whole.len() as u64)?;
            file.write_at(&[IoSlice::new(&whole)], at)?;
            at += whole.len() as u64;
        }
        last = Some(sealed_footer(source, len)?);
    }
    let footer = last.unwrap();
    let footer = Footer { tail: at, ..footer };
    let bytes = footer.encode(new).map_err(|e| Error::bug(e.to_string()))?;
    file.write_at(&[IoSlice::new(&bytes)], at)?;
    file.sync()?;
    io.sync_dir(&paths.segments())?;
    let entry =
        SegmentEntry { id, first_seqno: first.first_seqno, sealed_bytes: Some(at + bytes.len() as u64) };
    Ok(Made { entry, erased: Totals::default(), moved, live_bytes: at })
}
