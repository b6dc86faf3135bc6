//! Recipes as bytes.
//!
//! A recipe is a list of operations. Each begins with a number `len * 4 + kind` and makes `len` bytes. The last one
//! has the length 0: it makes the remaining bytes of the body, whose length is known. (Recipes of earlier formats
//! have its length.)
//!
//! | kind | then | stands for |
//! |---|---|---|
//! | 0 copy | signed: source - cursor | that byte range of the base body; the cursor moves to its end |
//! | 1 next | nothing | the extent at the frontier |
//! | 2 near | signed: offset - frontier's offset | an extent in the frontier's group |
//! | 3 far | signed: group - frontier's group (never 0); signed: offset - end of the last far extent of that group, else 0 | an extent elsewhere |
//!
//! The cursor begins at 0. The frontier is the greatest end (group first, then offset) among the base's
//! extents; without a base it is group 0, offset 0. Each explicit extent that ends past the frontier moves
//! it: new text stands there. Numbers are LEB128; signed numbers are zigzag-coded.
//!
//! Invariants of a decoded recipe: no empty extent, none past [`GROUP_BYTES_MAX`], adjacent extents are
//! merged, at most [`EXTENTS_MAX`] extents and [`BODY_BYTES_MAX`] bytes.

use std::ops::Range;

use crate::codec::{ByteReader, put_signed, put_varint};

use super::{BODY_BYTES_MAX, BlobError, EXTENTS_MAX, Extent, GROUP_BYTES_MAX, GroupId};

const COPY: u8 = 0;
const NEXT: u8 = 1;
const NEAR: u8 = 2;
const FAR: u8 = 3;

/// The positions that explicit extents are coded against; coder and decoder keep the same ones.
#[derive(Clone, Copy)]
struct RecipeOrigins {
    /// Greatest end so far: group and offset.
    frontier: (u64, u32),
    /// End of the last far extent.
    far: (u64, u32),
}

impl RecipeOrigins {
    fn new(base: &[Extent]) -> Self {
        let frontier = base.iter().map(|e| (e.group.0, e.end())).max().unwrap_or((0, 0));
        Self { frontier, far: (0, 0) }
    }

    fn extend_frontier(&mut self, e: &Extent) {
        self.frontier = self.frontier.max((e.group.0, e.end()));
    }

    fn far_origin(&self, group: u64) -> u32 {
        if self.far.0 == group { self.far.1 } else { 0 }
    }
}

/// Appends an extent; merges it with the last one if they are adjacent.
pub(super) fn push_extent(out: &mut Vec<Extent>, e: Extent) {
    match out.last_mut() {
        Some(last) if last.is_followed_by(&e) && last.len.checked_add(e.len).is_some() => last.len += e.len,
        _ if e.len > 0 => out.push(e),
        _ => {}
    }
}

/// Encodes a recipe, against the recipe of an earlier body if there is one.
///
/// Any base is correct; a base that shares much makes the recipe short.
#[must_use]
pub fn encode_recipe(extents: &[Extent], base: Option<&[Extent]>) -> Vec<u8> {
    let base = RecipeBase::new(base.unwrap_or_default());
    let mut out = RecipeBytes { bytes: Vec::with_capacity(32), last_head: None };
    let mut marks = RecipeOrigins { frontier: base.end, far: (0, 0) };
    let mut cursor = 0u64;
    // Most bodies begin like their base: that front is one copy, found without a search.
    let front = extents.iter().zip(base.extents).take_while(|(a, b)| a == b).count();
    let front_len: u64 = extents[..front].iter().map(|e| u64::from(e.len)).sum();
    // A copy that is not written yet: source and length in the base body.
    let mut copy: Option<(u64, u64)> = (front > 0).then_some((0, front_len));
    for whole in &extents[front..] {
        let mut e = *whole;
        while e.len > 0 {
            let wanted = copy.map_or(cursor, |(from, len)| from + len);
            let (from, len) = match base.find(&e, wanted) {
                BaseMatch::At { from, len } => (from, len),
                BaseMatch::Missing { skip } => {
                    flush_copy(&mut out, &mut copy, &mut cursor);
                    let part = Extent { len: skip, ..e };
                    put_explicit(&mut out, &mut marks, &part);
                    e = Extent { offset: e.offset + skip, len: e.len - skip, ..e };
                    continue;
                }
            };
            match &mut copy {
                Some((start, so_far)) if *start + *so_far == from => *so_far += u64::from(len),
                _ => {
                    flush_copy(&mut out, &mut copy, &mut cursor);
                    copy = Some((from, u64::from(len)));
                }
            }
            e = Extent { offset: e.offset + len, len: e.len - len, ..e };
        }
    }
    flush_copy(&mut out, &mut copy, &mut cursor);
    out.finish()
}

/// The bytes of a recipe that is being encoded.
struct RecipeBytes {
    bytes: Vec<u8>,
    /// The number that the last operation begins with: where it stands, and the kind in it.
    last_head: Option<(Range<usize>, u8)>,
}

impl RecipeBytes {
    /// Begins an operation.
    fn put_head(&mut self, len: u64, kind: u8) {
        let start = self.bytes.len();
        put_varint(&mut self.bytes, len * 4 + u64::from(kind));
        self.last_head = Some((start..self.bytes.len(), kind));
    }

    fn put_signed(&mut self, number: i64) {
        put_signed(&mut self.bytes, number);
    }

    /// The recipe. The length of its last operation is left out.
    fn finish(mut self) -> Vec<u8> {
        if let Some((head, kind)) = self.last_head {
            self.bytes.splice(head, [kind]);
        }
        self.bytes
    }
}

fn flush_copy(out: &mut RecipeBytes, copy: &mut Option<(u64, u64)>, cursor: &mut u64) {
    if let Some((from, len)) = copy.take() {
        out.put_head(len, COPY);
        out.put_signed(from.wrapping_sub(*cursor).cast_signed());
        *cursor = from + len;
    }
}

fn put_explicit(out: &mut RecipeBytes, marks: &mut RecipeOrigins, e: &Extent) {
    let (group, offset) = marks.frontier;
    let len = u64::from(e.len);
    if e.group.0 != group {
        out.put_head(len, FAR);
        out.put_signed(e.group.0.wrapping_sub(group).cast_signed());
        out.put_signed(i64::from(e.offset) - i64::from(marks.far_origin(e.group.0)));
        marks.far = (e.group.0, e.end());
    } else if e.offset == offset {
        out.put_head(len, NEXT);
    } else {
        out.put_head(len, NEAR);
        out.put_signed(i64::from(e.offset) - i64::from(offset));
    }
    marks.extend_frontier(e);
}

/// The extents of a base body, searchable by address.
struct RecipeBase<'a> {
    extents: &'a [Extent],
    /// Start of each extent in the body.
    starts: Vec<u64>,
    /// Greatest end among the extents: group and offset.
    end: (u64, u32),
    /// Indices sorted by (group, offset), computed on first use.
    sorted: std::cell::OnceCell<Vec<u32>>,
}

enum BaseMatch {
    /// The front of the extent is at `from` in the base, for `len` bytes.
    At { from: u64, len: u32 },
    /// The base does not contain the first `skip` bytes.
    Missing { skip: u32 },
}

impl<'a> RecipeBase<'a> {
    fn new(extents: &'a [Extent]) -> Self {
        let end = RecipeOrigins::new(extents).frontier;
        Self { extents, starts: starts_of(extents), end, sorted: std::cell::OnceCell::new() }
    }

    fn sorted(&self) -> &[u32] {
        self.sorted.get_or_init(|| {
            let extents = self.extents;
            let mut sorted: Vec<u32> = (0..extents.len()).filter_map(|i| u32::try_from(i).ok()).collect();
            sorted.sort_unstable_by_key(|&i| (extents[i as usize].group, extents[i as usize].offset, i));
            sorted
        })
    }

    /// Finds the front of `e`. Prefers position `wanted` in the base, so that a copy continues; else any
    /// position.
    fn find(&self, e: &Extent, wanted: u64) -> BaseMatch {
        let index = self.starts.partition_point(|&start| start <= wanted);
        if let Some(found) = index.checked_sub(1).and_then(|i| self.overlap(i, e)).filter(|f| f.0 == wanted) {
            return BaseMatch::At { from: found.0, len: found.1 };
        }
        if (e.group.0, e.offset) >= self.end {
            // `e` is newer than all of the base, like bytes that were just packed.
            return BaseMatch::Missing { skip: e.len };
        }
        let sorted = self.sorted();
        let after = sorted.partition_point(|&i| {
            let b = &self.extents[i as usize];
            (b.group, b.offset) <= (e.group, e.offset)
        });
        // Extents of the base may overlap: only the last four that begin before `e` are checked.
        for &i in sorted[..after].iter().rev().take(4) {
            if let Some((from, len)) = self.overlap(i as usize, e) {
                return BaseMatch::At { from, len };
            }
        }
        let skip = match sorted.get(after).map(|&i| &self.extents[i as usize]) {
            Some(b) if b.group == e.group && b.offset < e.end() => b.offset - e.offset,
            _ => e.len,
        };
        BaseMatch::Missing { skip }
    }

    /// Position and length of the front of `e` in extent `i`.
    fn overlap(&self, i: usize, e: &Extent) -> Option<(u64, u32)> {
        let b = &self.extents[i];
        if b.group != e.group || b.offset > e.offset || b.end() <= e.offset {
            return None;
        }
        let inside = e.offset - b.offset;
        Some((self.starts[i] + u64::from(inside), e.len.min(b.len - inside)))
    }
}

/// Reads a recipe coded by [`encode_recipe`] against the same base. `body_len` is the length of the body that it
/// makes, in bytes.
///
/// # Errors
/// A typed error for bytes that are not a recipe; memory stays bounded by [`EXTENTS_MAX`]. A recipe of an earlier
/// format may make another length: the caller compares.
pub fn decode_recipe(bytes: &[u8], base: Option<&[Extent]>, body_len: u64) -> Result<Vec<Extent>, BlobError> {
    let base = base.unwrap_or_default();
    let starts = starts_of(base);
    let mut marks = RecipeOrigins::new(base);
    let mut out: Vec<Extent> = Vec::with_capacity(base.len() + 4);
    let (mut cursor, mut total) = (0u64, 0u64);
    let mut reader = ByteReader::new(bytes, "recipe");
    while !reader.is_empty() {
        let at = reader.position();
        let wrong = |what| BlobError::RecipeOperation { at, what };
        let head = take_number(&mut reader)?;
        let is_last = head >> 2 == 0;
        let len = if is_last { body_len.saturating_sub(total) } else { head >> 2 };
        if len == 0 {
            return Err(wrong("it makes no bytes"));
        }
        total = total.saturating_add(len);
        if total > BODY_BYTES_MAX {
            return Err(BlobError::BodyTooLong { found: total, most: BODY_BYTES_MAX });
        }
        let kind = (head & 3) as u8;
        if kind == COPY {
            let from = cursor
                .checked_add_signed(take_signed(&mut reader)?)
                .ok_or(wrong("it copies from before the base"))?;
            cursor = from.checked_add(len).ok_or(wrong("it copies past the base"))?;
            copy_range(&mut out, base, &starts, from, len).ok_or(wrong("it copies past the base"))?;
        } else {
            let (frontier_group, frontier) = marks.frontier;
            let (group, offset) = match kind {
                NEXT => (frontier_group, i64::from(frontier)),
                NEAR => (frontier_group, i64::from(frontier).saturating_add(take_signed(&mut reader)?)),
                _ => {
                    let group = frontier_group.wrapping_add_signed(take_signed(&mut reader)?);
                    (group, i64::from(marks.far_origin(group)).saturating_add(take_signed(&mut reader)?))
                }
            };
            let e = extent_in_group(group, offset, len).ok_or(wrong("its extent lies outside a group"))?;
            if kind == FAR {
                marks.far = (group, e.end());
            }
            marks.extend_frontier(&e);
            push_extent(&mut out, e);
        }
        if out.len() > EXTENTS_MAX {
            return Err(BlobError::TooManyExtents { most: EXTENTS_MAX });
        }
        if is_last && !reader.is_empty() {
            return Err(wrong("an operation without a length is not the last one"));
        }
    }
    Ok(out)
}

/// The extent, if it lies in a group's bounds.
fn extent_in_group(group: u64, offset: i64, len: u64) -> Option<Extent> {
    let offset = u32::try_from(offset).ok()?;
    let len = u32::try_from(len).ok()?;
    let inside = offset.checked_add(len)? as usize <= GROUP_BYTES_MAX;
    inside.then_some(Extent { group: GroupId(group), offset, len })
}

/// Start of each extent in the body they make.
fn starts_of(extents: &[Extent]) -> Vec<u64> {
    let mut at = 0u64;
    let mut starts = Vec::with_capacity(extents.len());
    for e in extents {
        starts.push(at);
        at = at.saturating_add(u64::from(e.len));
    }
    starts
}

/// Appends a byte range of the base. `None` if the range ends past the base. Stops early with too many
/// extents.
fn copy_range(out: &mut Vec<Extent>, base: &[Extent], starts: &[u64], from: u64, len: u64) -> Option<()> {
    let mut index = starts.partition_point(|&start| start <= from).checked_sub(1)?;
    let mut skip = u32::try_from(from - starts.get(index)?).ok()?;
    let mut left = len;
    while left > 0 {
        let e = base.get(index)?;
        let have = e.len.checked_sub(skip).filter(|have| *have > 0)?;
        let take = u32::try_from(left.min(u64::from(have))).ok()?;
        push_extent(out, Extent { group: e.group, offset: e.offset.checked_add(skip)?, len: take });
        if out.len() > EXTENTS_MAX {
            return Some(());
        }
        left -= u64::from(take);
        skip = 0;
        index += 1;
    }
    Some(())
}

/// The next number of a recipe.
fn take_number(reader: &mut ByteReader<'_>) -> Result<u64, BlobError> {
    let at = reader.position();
    reader.varint().map_err(|_| BlobError::RecipeNumber { at })
}

/// The next signed number of a recipe.
fn take_signed(reader: &mut ByteReader<'_>) -> Result<i64, BlobError> {
    let at = reader.position();
    reader.signed().map_err(|_| BlobError::RecipeNumber { at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e(group: u64, offset: u32, len: u32) -> Extent {
        Extent { group: GroupId(group), offset, len }
    }

    #[test]
    fn repeated_base_extent_continues_the_current_copy() {
        let (a, b, c) = (e(1, 0, 10), e(1, 50, 20), e(1, 100, 5));
        let base = [a, b, a, c, a];
        let coded = encode_recipe(&[b, a, c], Some(&base));
        assert_eq!(coded, [0, 20], "one copy of all bytes from byte 10");
        assert_eq!(decode_recipe(&coded, Some(&base), 35).unwrap(), [b, a, c]);
        // As an earlier format coded it.
        assert_eq!(decode_recipe(&[0x8c, 0x01, 20], Some(&base), 35).unwrap(), [b, a, c]);
    }

    #[test]
    fn recipe_operations_encode_to_expected_bytes() {
        let base = [e(5, 100, 10), e(7, 40, 2)];
        let cases: [(&[Extent], &[u8]); 6] = [
            (&[e(5, 100, 10)], &[0, 0]),
            (&[e(5, 103, 4)], &[0, 3 << 1]),
            (&[e(7, 42, 3)], &[1]),
            (&[e(7, 50, 3)], &[2, 8 << 1]),
            (&[e(9, 6, 3)], &[3, 2 << 1, 6 << 1]),
            // The second extent is coded against the end of the first, because the frontier is now in the
            // first one's group.
            (&[e(9, 6, 3), e(9, 20, 1)], &[3 << 2 | 3, 2 << 1, 6 << 1, 2, 11 << 1]),
        ];
        for (extents, bytes) in cases {
            assert_eq!(encode_recipe(extents, Some(&base)), bytes, "{extents:?}");
            let len = extents.iter().map(|extent| u64::from(extent.len)).sum();
            assert_eq!(decode_recipe(bytes, Some(&base), len).unwrap(), extents);
        }
        // Bytes before the front of the base extent are new; the rest is copied.
        assert_eq!(encode_recipe(&[e(5, 98, 4)], Some(&base)), [2 << 2 | 3, 3, 0xc4, 1, 0, 0]);
        assert!(encode_recipe(&[], Some(&base)).is_empty());
    }

    #[test]
    fn only_last_operation_may_leave_out_its_length() {
        let base = [e(5, 100, 10)];
        let decode = |bytes: &[u8], len| decode_recipe(bytes, Some(&base), len);
        assert_eq!(decode(&[2 << 2, 0, 0, 4 << 1], 6).unwrap(), [e(5, 100, 2), e(5, 106, 4)]);
        // No bytes are left for it, or there are more operations.
        for (bytes, len) in [(&[0, 0][..], 0), (&[2 << 2, 0, 0, 0], 2), (&[2 << 2, 0, 0, 0], 1)] {
            let error = decode(bytes, len).unwrap_err().to_string();
            assert!(error.contains("makes no bytes"), "{error}");
        }
        let error = decode(&[0, 0, 2 << 2, 0], 6).unwrap_err().to_string();
        assert!(error.contains("not the last"), "{error}");
        assert!(decode(&[0, 0], 11).is_err(), "more than the base has");
        assert!(matches!(decode(&[1], u64::MAX), Err(BlobError::BodyTooLong { .. })));
    }

    #[test]
    fn copy_past_base_end_is_refused() {
        let base = [e(1, 0, 10), e(2, 0, 10)];
        let copy = |from: i64, len: u64| {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, len << 2);
            put_signed(&mut bytes, from);
            decode_recipe(&bytes, Some(&base), len).ok()
        };
        assert_eq!(copy(0, 20), Some(base.to_vec()));
        assert_eq!(copy(9, 2), Some(vec![e(1, 9, 1), e(2, 0, 1)]));
        assert_eq!(copy(19, 1), Some(vec![e(2, 9, 1)]));
        for (from, len) in [(0, 21), (19, 2), (20, 1), (-1, 1), (i64::MAX, 1)] {
            assert_eq!(copy(from, len), None, "{from} {len}");
        }
    }

    #[test]
    fn extent_outside_group_bounds_is_refused() {
        let most = GROUP_BYTES_MAX as u64;
        assert_eq!(extent_in_group(3, 0, most), Some(e(3, 0, most as u32)));
        assert_eq!(extent_in_group(3, most as i64 - 1, 1), Some(e(3, most as u32 - 1, 1)));
        for (offset, len) in
            [(0, most + 1), (1, most), (-1, 1), (most as i64, 1), (0, u64::MAX), (1, u64::from(u32::MAX))]
        {
            assert_eq!(extent_in_group(3, offset, len), None, "{offset} {len}");
        }
    }

    #[test]
    fn recipe_with_too_many_extents_is_refused() {
        // Gaps of one byte, so that no extent is adjacent to the next.
        let apart = |i: usize| e(1 + i as u64 / 1000, 2 * (i as u32 % 1000), 1);
        let base: Vec<Extent> = (0..EXTENTS_MAX).map(apart).collect();
        let coded = |len: usize| {
            let mut bytes = vec![1 << 2 | 1];
            put_varint(&mut bytes, (len as u64) << 2);
            put_signed(&mut bytes, 0);
            bytes
        };
        let decode = |len: usize| decode_recipe(&coded(len), Some(&base), len as u64 + 1);
        let just = decode(EXTENTS_MAX - 1).unwrap();
        assert_eq!(just.len(), EXTENTS_MAX);
        drop(just);
        let over = decode(EXTENTS_MAX);
        assert!(matches!(over, Err(BlobError::TooManyExtents { .. })));
    }
}
