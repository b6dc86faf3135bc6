//! A column of a block: many numbers, or many bytes, in the fewest bytes of several codings.
//!
//! Purpose: neighbouring entries of an index resemble each other number by number, not byte by byte. Constants
//! and even steps then cost nothing; random numbers cost their bits; the rest is left to zstd.
//!
//! Invariants: decoding allocates at most 8 bytes a number plus the coded bytes, whatever the bytes say; the
//! count is always known before a column is met. The layout is in `layout.rs`.
//!
//! Left out: dictionary and run-length codings. zstd over varints does both well enough.

use super::cursor::{Cursor, put_varint, unzigzag, zigzag};
use super::error::{TableError, What};

/// Numbers minus their least, in equal bits. Frame of reference (Goldstein, Ramakrishnan, Shaft 1998).
const FRAME: u8 = 0;
/// Differences minus their least, in equal bits.
const STEPS: u8 = 1;
/// Varints of zigzag differences.
const VARINT_STEPS: u8 = 2;
/// Varints.
const VARINT: u8 = 3;
/// Plain bytes.
const BYTES: u8 = 4;
/// Added to the coding where the payload is a zstd frame.
const ZSTD: u8 = 0x80;

/// Shorter payloads never gain from a zstd frame, whose overhead is about 9 bytes.
const ZSTD_FROM: usize = 16;
/// Payloads are a few KiB: levels 6 and 9 found nothing more in them.
const ZSTD_LEVEL: i32 = 3;
/// The most bytes a varint takes.
const VARINT_LEN_MAX: usize = 10;

/// A compressor used for many columns.
pub(super) struct Squeezer(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for Squeezer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Squeezer")
    }
}

impl Squeezer {
    pub(super) fn new() -> Result<Self, TableError> {
        let zstd = |source| TableError::Zstd { source };
        let mut inner = zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(zstd)?;
        // The raw length is known from elsewhere, so the frame need not repeat it.
        inner.set_parameter(zstd::zstd_safe::CParameter::ContentSizeFlag(false)).map_err(zstd)?;
        Ok(Self(inner))
    }

    /// Appends a column's tag, head and payload, compressed where that is smaller.
    fn put(&mut self, coding: u8, head: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + head.len() + payload.len());
        if payload.len() >= ZSTD_FROM {
            // A failure to compress costs only the gain.
            if let Ok(frame) = self.0.compress(payload) {
                out.push(coding | ZSTD);
                out.extend_from_slice(head);
                put_varint(&mut out, frame.len() as u64);
                out.extend_from_slice(&frame);
                if out.len() < 1 + head.len() + payload.len() {
                    return out;
                }
                out.clear();
            }
        }
        out.push(coding);
        out.extend_from_slice(head);
        out.extend_from_slice(payload);
        out
    }

    /// Appends a column of bytes.
    pub(super) fn put_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.put(BYTES, &[], bytes));
    }

    /// Appends a column of numbers, in the coding that comes out smallest. Appends nothing for no numbers.
    pub(super) fn put_numbers(&mut self, numbers: &[u64], out: &mut Vec<u8>) {
        let Some((&first, rest)) = numbers.split_first() else { return };
        let steps: Vec<u64> =
            numbers.iter().zip(rest).map(|(before, after)| zigzag(after.wrapping_sub(*before))).collect();
        let mut best = self.frame(FRAME, &[], numbers);
        let mut head = Vec::new();
        put_varint(&mut head, first);
        let packed_steps = self.frame(STEPS, &head, &steps);
        let even = steps.iter().all(|step| Some(step) == steps.first());
        keep_smaller(&mut best, packed_steps);
        if !even && best.len() > ZSTD_FROM {
            for (coding, list) in [(VARINT_STEPS, &steps[..]), (VARINT, rest)] {
                let mut payload = Vec::new();
                list.iter().for_each(|number| put_varint(&mut payload, *number));
                let mut head = head.clone();
                put_varint(&mut head, payload.len() as u64);
                let column = self.put(coding, &head, &payload);
                keep_smaller(&mut best, column);
            }
        }
        out.extend_from_slice(&best);
    }

    fn frame(&mut self, coding: u8, before: &[u8], numbers: &[u64]) -> Vec<u8> {
        let least = numbers.iter().copied().min().unwrap_or(0);
        let widest = numbers.iter().map(|number| number - least).max().unwrap_or(0);
        let width = u64::BITS - widest.leading_zeros();
        let mut head = before.to_vec();
        put_varint(&mut head, least);
        head.push(width.to_le_bytes()[0]);
        let mut payload = Vec::new();
        pack(numbers.iter().map(|number| number - least), width, &mut payload);
        self.put(coding, &head, &payload)
    }
}

fn keep_smaller(best: &mut Vec<u8>, other: Vec<u8>) {
    if other.len() < best.len() {
        *best = other;
    }
}

/// A decompressor used for many columns, made only when the first compressed one is met.
#[derive(Default)]
pub(super) struct Inflater(Option<zstd::bulk::Decompressor<'static>>);

impl Inflater {
    /// The payload of `len` raw bytes that follows.
    fn payload<'a>(&mut self, cursor: &mut Cursor<'a>, zstd: bool, len: usize) -> Result<Payload<'a>, What> {
        if !zstd {
            return cursor.take(len).map(Payload::Plain).ok_or("a column is cut short");
        }
        let stored = usize::try_from(cursor.varint().ok_or(LENGTH)?).map_err(|_| LENGTH)?;
        let frame = cursor.take(stored).ok_or("a compressed column is cut short")?;
        let inner = match &mut self.0 {
            Some(inner) => inner,
            empty => empty.insert(zstd::bulk::Decompressor::new().map_err(|_| "zstd cannot be set up")?),
        };
        let mut raw = vec![0; len];
        match inner.decompress_to_buffer(frame, &mut raw[..]) {
            Ok(found) if found == len => Ok(Payload::Inflated(raw)),
            Ok(_) => Err("a compressed column has another length than promised"),
            Err(_) => Err("a compressed column does not decompress"),
        }
    }

    /// Reads a column of `len` bytes.
    pub(super) fn bytes<'a>(&mut self, cursor: &mut Cursor<'a>, len: usize) -> Result<Payload<'a>, What> {
        match cursor.u8().ok_or("a column is missing")? {
            BYTES => self.payload(cursor, false, len),
            tag if tag == BYTES | ZSTD => self.payload(cursor, true, len),
            _ => Err("a column of bytes has an unknown coding"),
        }
    }

    /// Reads a column of `count` numbers. The caller has bounded `count`.
    pub(super) fn numbers(&mut self, cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>, What> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let tag = cursor.u8().ok_or("a column is missing")?;
        let zstd = tag & ZSTD != 0;
        let coding = tag & !ZSTD;
        if coding == FRAME {
            let mut numbers = Vec::with_capacity(count);
            self.framed(cursor, zstd, count, |number| numbers.push(number))?;
            return Ok(numbers);
        }
        let mut last = cursor.varint().ok_or(LENGTH)?;
        let mut numbers = Vec::with_capacity(count);
        numbers.push(last);
        let mut step = |coded| {
            last = last.wrapping_add(unzigzag(coded));
            numbers.push(last);
        };
        match coding {
            STEPS => self.framed(cursor, zstd, count - 1, step)?,
            VARINT_STEPS => self.varints(cursor, zstd, count - 1, &mut step)?,
            VARINT => self.varints(cursor, zstd, count - 1, &mut |number| numbers.push(number))?,
            _ => return Err("a column of numbers has an unknown coding"),
        }
        Ok(numbers)
    }

    fn framed(
        &mut self,
        cursor: &mut Cursor<'_>,
        zstd: bool,
        count: usize,
        mut each: impl FnMut(u64),
    ) -> Result<(), What> {
        let least = cursor.varint().ok_or(LENGTH)?;
        let width = u32::from(cursor.u8().ok_or(LENGTH)?);
        if width > u64::BITS {
            return Err("a column's numbers are wider than 64 bits");
        }
        let len = packed_len(count, width).ok_or(LENGTH)?;
        let payload = self.payload(cursor, zstd, len)?;
        unpack(&payload, width, count, |number| each(number.wrapping_add(least)));
        Ok(())
    }

    fn varints(
        &mut self,
        cursor: &mut Cursor<'_>,
        zstd: bool,
        count: usize,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), What> {
        let len = usize::try_from(cursor.varint().ok_or(LENGTH)?).map_err(|_| LENGTH)?;
        if len < count || len > count.saturating_mul(VARINT_LEN_MAX) {
            return Err("a column's length does not fit its count");
        }
        let payload = self.payload(cursor, zstd, len)?;
        let mut cursor = Cursor::new(&payload);
        for _ in 0..count {
            each(cursor.varint().ok_or("a number in a column is cut short")?);
        }
        if cursor.is_empty() { Ok(()) } else { Err("a column has bytes after its last number") }
    }
}

const LENGTH: What = "a length is cut short or too big";

/// Raw bytes of a column.
pub(super) enum Payload<'a> {
    Plain(&'a [u8]),
    Inflated(Vec<u8>),
}

impl std::ops::Deref for Payload<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Inflated(bytes) => bytes,
        }
    }
}

fn packed_len(count: usize, width: u32) -> Option<usize> {
    Some(count.checked_mul(usize::try_from(width).ok()?)?.div_ceil(8))
}

/// Appends `width` low bits of each number, the lowest bit of the first number in the lowest bit of a byte.
fn pack(numbers: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let (mut waiting, mut bits) = (0u128, 0u32);
    for number in numbers {
        waiting |= u128::from(number) << bits;
        bits += width;
        while bits >= 8 {
            out.push(waiting.to_le_bytes()[0]);
            waiting >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(waiting.to_le_bytes()[0]);
    }
}

/// The inverse of [`pack`]; missing bytes read as zeros, but callers pass exactly [`packed_len`].
fn unpack(bytes: &[u8], width: u32, count: usize, mut each: impl FnMut(u64)) {
    let mask = u128::from(u64::MAX) >> (u64::BITS - width);
    let (mut waiting, mut bits) = (0u128, 0u32);
    let mut bytes = bytes.iter();
    for _ in 0..count {
        while bits < width {
            waiting |= u128::from(bytes.next().copied().unwrap_or(0)) << bits;
            bits += 8;
        }
        let low = (waiting & mask).to_le_bytes();
        each(u64::from_le_bytes([low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7]]));
        waiting >>= width;
        bits -= width;
    }
}
