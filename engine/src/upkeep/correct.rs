//! Corrects a batch in which one byte changed.
//!
//! The batch's CRC-32 tells which byte could have changed, and to what: a changed byte gives a difference of
//! the checksums that no other byte near it gives. The digest that the batch's successor recorded (BLAKE3)
//! decides: only bytes with that digest are what was written. So nothing is ever guessed.
//!
//! Corrected bytes stay in memory ([`PatchedFile`]): the damaged store is only read.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use crate::io::{File, FileBytes, FileId, IoResult, LockKind};
use crate::log::layout::{
    BATCH_HEADER_BYTES, PrevDigest, Salt, chain_digest, joined_length_field, length_field,
};
use crate::log::segments::lock;
use crate::sync::{Mutex, rank};

/// The table of CRC-32 (IEEE 802.3, reflected): the effect of a byte's difference on the checksum.
const CRC_TABLE: [u32; 256] = crc_table();
/// The index of an entry of the table by its highest byte.
const BY_HIGH_BYTE: [u8; 256] = by_high_byte();

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let (mut at, mut value_at) = (0, 0u32);
    while at < 256 {
        let mut value = value_at;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
        value_at += 1;
    }
    table
}

const fn by_high_byte() -> [u8; 256] {
    let mut table = [0; 256];
    let mut at = 0u8;
    loop {
        table[(CRC_TABLE[at as usize] >> 24) as usize] = at;
        if at == u8::MAX {
            return table;
        }
        at += 1;
    }
}

/// Restores the bytes of a batch with one changed byte, in place. `batch` is the whole batch at `offset`, and
/// `wanted` its digest. Returns the restored bytes with their offsets in the batch; `None` if no such change
/// explains the batch, which is then as before.
pub(super) fn restore_changed_byte(
    batch: &mut [u8],
    salt: Salt,
    offset: u64,
    wanted: &PrevDigest,
) -> Option<Vec<(usize, u8)>> {
    if batch.len() < BATCH_HEADER_BYTES {
        return None;
    }
    let stored = u32::from_le_bytes(*batch.first_chunk()?);
    // The length and the checksum are known without their bytes. The length has three forms.
    let len = u32::try_from(batch.len()).ok()?;
    let computed = salt.crc(offset, batch.get(4..)?);
    let lengths = [length_field(len), joined_length_field(len), len.to_le_bytes()];
    for (at, bytes) in lengths.map(|length| (4, length)).into_iter().chain([(0, computed.to_le_bytes())]) {
        if let Some(restored) = try_bytes(batch, at, &bytes, wanted) {
            return Some(restored);
        }
    }
    // From the last byte to the first: the difference that a change there would have made.
    let mut difference = stored ^ computed;
    for at in (4..batch.len()).rev() {
        let index = BY_HIGH_BYTE[(difference >> 24) as usize];
        let rest = difference ^ CRC_TABLE[usize::from(index)];
        if rest == 0
            && let Some(restored) = try_bytes(batch, at, &[batch[at] ^ index], wanted)
        {
            return Some(restored);
        }
        difference = (rest << 8) | u32::from(index);
    }
    None
}

/// Puts bytes into a batch if it then has the wanted digest.
fn try_bytes(batch: &mut [u8], at: usize, bytes: &[u8], wanted: &PrevDigest) -> Option<Vec<(usize, u8)>> {
    let place = batch.get_mut(at..at + bytes.len())?;
    let before = place.to_vec();
    place.copy_from_slice(bytes);
    if !wanted.fits(&chain_digest(batch)) {
        batch.get_mut(at..at + bytes.len())?.copy_from_slice(&before);
        return None;
    }
    let changed = before.iter().zip(bytes).enumerate().filter(|(_, (old, new))| old != new);
    Some(changed.map(|(i, (_, new))| (at + i, *new)).collect())
}

/// A file of a damaged store, with corrected bytes over its own. It is only read.
#[derive(Debug)]
pub(super) struct PatchedFile {
    file: Arc<dyn File>,
    patches: Mutex<BTreeMap<u64, u8>, { rank::PATCHES }>,
}

impl PatchedFile {
    pub(super) fn new(file: Arc<dyn File>) -> Self {
        Self { file, patches: Mutex::new(BTreeMap::new()) }
    }

    pub(super) fn patch(&self, at: u64, byte: u8) {
        lock(&self.patches).insert(at, byte);
    }

    fn read_only(&self) -> IoResult<()> {
        let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        Err(crate::io::IoError::new("change", std::path::Path::new("a file of the damaged store"), error))
    }
}

impl File for PatchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        let got = self.file.read_at(buf, offset)?;
        for (at, byte) in lock(&self.patches).range(offset..offset.saturating_add(got as u64)) {
            if let Some(place) = usize::try_from(at - offset).ok().and_then(|at| buf.get_mut(at)) {
                *place = *byte;
            }
        }
        Ok(got)
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> IoResult<()> {
        self.read_only()
    }

    fn len(&self) -> IoResult<u64> {
        self.file.len()
    }

    fn set_len(&self, _: u64) -> IoResult<()> {
        self.read_only()
    }

    fn sync(&self) -> IoResult<()> {
        self.read_only()
    }

    fn map(&self) -> IoResult<FileBytes> {
        let mut bytes = vec![0; usize::try_from(self.len()?).unwrap_or(usize::MAX)];
        let got = self.read_at(&mut bytes, 0)?;
        bytes.truncate(got);
        Ok(FileBytes::owned(Arc::from(bytes)))
    }

    fn id(&self) -> IoResult<FileId> {
        self.file.id()
    }

    fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
        self.file.try_lock(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{SegmentId, StoreId};

    fn batch(len: usize, length: [u8; 4], salt: Salt, offset: u64) -> Vec<u8> {
        let mut batch: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        batch[4..8].copy_from_slice(&length);
        let crc = salt.crc(offset, &batch[4..]);
        batch[..4].copy_from_slice(&crc.to_le_bytes());
        batch
    }

    #[test]
    fn any_changed_byte_is_restored_and_two_are_not() {
        let salt = Salt::new(StoreId([3; 16]), SegmentId(1));
        for (len, form) in [(35, 1), (48, 0), (49, 0), (333, 0), (333, 1), (333, 2)] {
            let lengths =
                [(len as u32).to_le_bytes(), length_field(len as u32), joined_length_field(len as u32)];
            let length = lengths[form];
            let whole = batch(len, length, salt, 96);
            let wanted = chain_digest(&whole).into();
            for at in 0..len {
                for change in [1, 2, 0x80, 0xFF, 0x5A] {
                    let mut changed = whole.clone();
                    changed[at] ^= change;
                    let restored = restore_changed_byte(&mut changed, salt, 96, &wanted);
                    assert_eq!(restored, Some(vec![(at, whole[at])]), "{change} at {at} of {len}");
                    assert_eq!(changed, whole);
                    let mut changed = whole.clone();
                    changed[at] ^= change;
                    changed[(at + 20) % len] ^= 1;
                    let before = changed.clone();
                    assert_eq!(restore_changed_byte(&mut changed, salt, 96, &wanted), None);
                    assert_eq!(changed, before);
                }
            }
        }
        let mut short = vec![1; BATCH_HEADER_BYTES - 1];
        assert_eq!(restore_changed_byte(&mut short, salt, 96, &[0; 16].into()), None);
    }
}
