//! Reads a group from the log: a list of parts, or the one record that compaction left of it.
//!
//! A group's parts stand in one segment, and each names the previous one, so they are walked from the last to
//! the first. Parts of a mapped sealed segment are decoded in place. Parts of the active segment are read
//! ahead, because the previous part usually stands just before.

use std::ops::Range;

use crate::blob::{Codec, GROUP_BYTES_MAX, GroupDecoder, GroupId};
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, RecordPlace};
use crate::log::record::{GroupPart, GroupRest, RecordKind};
use crate::log::segments::Segment;

/// Maximum bytes read ahead of a part of the active segment.
const AHEAD_BYTES_MAX: u64 = 128 << 10;

/// Raw bytes of a group.
#[derive(Debug)]
pub struct GroupBytes {
    /// From the group's first byte. Ranges that compaction removed read as zeros.
    pub bytes: Vec<u8>,
    /// Whether these are all bytes of the group.
    pub is_whole: bool,
}

/// The raw bytes of a group up to the part that contains byte `reach`. `place` is that of the group's last
/// record.
///
/// # Errors
/// `Damaged` if the group belongs to another namespace, or does not decode.
pub fn read(
    segment: &Segment,
    place: RecordPlace,
    namespace: NamespaceId,
    id: GroupId,
    reach: usize,
    decoder: &mut GroupDecoder,
) -> Result<GroupBytes> {
    let damaged = |e| Error::damaged(&segment.path, u64::from(place.offset), e);
    if segment.id.is_rewritten()
        && let Some(bytes) = read_remainder(segment, place, namespace, id, decoder)?
    {
        return Ok(GroupBytes { bytes, is_whole: true });
    }
    let mut windows = PartWindows { segment, map: segment.mapped(), read: Vec::new() };
    let parts = walk_parts(&mut windows, place, namespace, id)?;
    let front = parts.iter().rev().take_while(|part| (part.raw_start as usize) < reach);
    let encoded = front.map(|part| (part.codec, part.raw_len, windows.get(part.window, &part.encoded)));
    let bytes = decoder.decode(encoded).map_err(damaged)?;
    let whole = parts.first().is_none_or(|last| bytes.len() == (last.raw_start + last.raw_len) as usize);
    Ok(GroupBytes { bytes, is_whole: whole })
}

/// The bytes that compaction left of a group, at their offsets; `None` if the record is a part.
fn read_remainder(
    segment: &Segment,
    place: RecordPlace,
    namespace: NamespaceId,
    id: GroupId,
    decoder: &mut GroupDecoder,
) -> Result<Option<Vec<u8>>> {
    segment.with_record(place, |record| {
        let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
        if record.kind != RecordKind::GroupRest.code() {
            return Ok(None);
        }
        RecordKind::parse(record.kind, record.layout).map_err(|e| wrong(e.to_string()))?;
        let rest = GroupRest::parse(record.body).map_err(|e| wrong(e.to_string()))?;
        if rest.group != id.0 || rest.namespace != namespace {
            return Err(wrong(format!("this record belongs to group {}, not {}", rest.group, id.0)));
        }
        let codec = Codec::from_code(rest.codec).map_err(|e| wrong(e.to_string()))?;
        let raw = decoder.decode_remainder(codec, rest.raw_len(), rest.encoded);
        scatter(&raw.map_err(|e| wrong(e.to_string()))?, &rest.ranges)
            .map(Some)
            .ok_or_else(|| Error::bug("a group's rest is not as long as its ranges"))
    })
}

/// Copies contiguous bytes to these ranges, with zeros between them.
fn scatter(bytes: &[u8], ranges: &[Range<u32>]) -> Option<Vec<u8>> {
    let mut raw = vec![0; ranges.last()?.end as usize];
    let mut rest = bytes;
    for range in ranges {
        let (own, after) = rest.split_at_checked((range.end - range.start) as usize)?;
        raw.get_mut(range.start as usize..range.end as usize)?.copy_from_slice(own);
        rest = after;
    }
    Some(raw)
}

/// One part of a group: its fields, and the window that holds its encoded bytes.
#[derive(Debug)]
struct LocatedPart {
    codec: Codec,
    raw_start: u32,
    raw_len: u32,
    window: usize,
    encoded: Range<usize>,
}

/// The parts of a group, last to first, starting at the place of the last.
fn walk_parts(
    windows: &mut PartWindows<'_>,
    last: RecordPlace,
    namespace: NamespaceId,
    id: GroupId,
) -> Result<Vec<LocatedPart>> {
    let segment = windows.segment;
    let mut parts: Vec<LocatedPart> = Vec::new();
    let (mut place, mut ahead) = (last, 0);
    loop {
        let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
        let (window, record_at) = windows.find(place, ahead)?;
        let record = segment.check(place, windows.get(window, &record_at))?;
        if RecordKind::parse(record.kind, record.layout).map_err(|e| wrong(e.to_string()))?
            != Some(RecordKind::GroupPart)
        {
            return Err(wrong("a group part is expected here".into()));
        }
        let part = GroupPart::parse(record.body).map_err(|e| wrong(e.to_string()))?;
        if part.group != id.0 || part.namespace != namespace {
            return Err(wrong(format!("this part belongs to group {}, not {}", part.group, id.0)));
        }
        let codec = Codec::from_code(part.codec).map_err(|e| wrong(e.to_string()))?;
        let follows = parts
            .last()
            .is_none_or(|after| part.raw_start.checked_add(part.raw_len) == Some(after.raw_start));
        let fits =
            part.raw_len > 0 && u64::from(part.raw_start) + u64::from(part.raw_len) <= GROUP_BYTES_MAX as u64;
        let before_end = u64::from(part.before_offset) + u64::from(part.before_len);
        if !fits
            || !follows
            || before_end > u64::from(place.offset)
            || (part.before_offset == 0) != (part.raw_start == 0)
        {
            return Err(wrong("the parts of a group do not follow each other".into()));
        }
        // The encoded bytes end at the end of the record.
        let encoded = record_at.end - part.encoded.len()..record_at.end;
        parts.push(LocatedPart { codec, raw_start: part.raw_start, raw_len: part.raw_len, window, encoded });
        if part.before_offset == 0 {
            return Ok(parts);
        }
        ahead = u64::from(part.raw_start).min(AHEAD_BYTES_MAX);
        place = RecordPlace { offset: part.before_offset, len: part.before_len, ..place };
    }
}

/// Bytes of a segment: the whole map if it is mapped, else the pieces read so far.
struct PartWindows<'a> {
    segment: &'a Segment,
    map: Option<&'a [u8]>,
    /// Offset in the segment and bytes of each window.
    read: Vec<(u64, Vec<u8>)>,
}

impl PartWindows<'_> {
    /// The window that contains a place, and the range in it. A window that has to be read begins up to
    /// `ahead` bytes before the place.
    fn find(&mut self, place: RecordPlace, ahead: u64) -> Result<(usize, Range<usize>)> {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.len));
        let within = |from: u64, len: usize| {
            let at = usize::try_from(start.checked_sub(from)?).ok()?;
            let to = at.checked_add(place.len as usize).filter(|to| *to <= len)?;
            Some(at..to)
        };
        if let Some(map) = self.map {
            let short = || Error::damaged(&self.segment.path, start, "the file ends before a record");
            return within(0, map.len()).map(|range| (0, range)).ok_or_else(short);
        }
        let last = self.read.len();
        if let Some((from, bytes)) = self.read.last()
            && let Some(range) = within(*from, bytes.len())
        {
            return Ok((last - 1, range));
        }
        let from = start.saturating_sub(ahead);
        let mut bytes = Vec::new();
        self.segment.read_range(from, end, &mut bytes)?;
        let range = within(from, bytes.len()).ok_or_else(|| Error::bug("a segment window lacks bytes"))?;
        self.read.push((from, bytes));
        Ok((last, range))
    }

    fn get(&self, window: usize, range: &Range<usize>) -> &[u8] {
        let bytes = self.map.or_else(|| self.read.get(window).map(|(_, bytes)| bytes.as_slice()));
        bytes.and_then(|bytes| bytes.get(range.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
