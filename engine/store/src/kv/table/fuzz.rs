//! Entry point for fuzzers: a table file with correct checksums around any blocks and index.

use std::ops::Bound;

use super::entry::VersionKey;
use super::index::BlockIndexBuilder;
use super::layout::{HEADER_LEN, TableFooter, block_crc, header};
use super::{Table, TableCoverage, TableMeta};
use crate::io::FileBytes;
use crate::testing::{byte, take_bytes, take_u16};

const META: TableMeta = TableMeta {
    store: *b"0123456789abcdef",
    id: 7,
    covers: TableCoverage { segment: 3, offset: 4096, seqno: 99 },
};

/// The input begins with a count of entries, and whether it holds the index, too. Then follow blocks: first
/// key, filter, body.
pub fn table(data: &[u8]) {
    let mut rest = data;
    let entry_count = take_u16(&mut rest) as u64;
    let own_index = byte(&mut rest) & 1 == 1;
    let (mut blocks, mut index, mut keys) = (Vec::new(), BlockIndexBuilder::default(), Vec::<Vec<u8>>::new());
    let given_index = match own_index {
        true => {
            let len = take_u16(&mut rest);
            Some(take_bytes(&mut rest, len))
        }
        false => None,
    };
    while !rest.is_empty() {
        let (key_len, words) = (usize::from(byte(&mut rest)), usize::from(byte(&mut rest) & 3));
        let key = take_bytes(&mut rest, key_len).to_vec();
        let filter = take_bytes(&mut rest, words * 32).to_vec();
        let body_len = take_u16(&mut rest);
        let body = take_bytes(&mut rest, body_len);
        let offset = (HEADER_LEN + blocks.len()) as u64;
        let before = keys.last().map(|key| VersionKey::oldest_of(key));
        if index.add(offset, before, VersionKey::newest_of(&key)).is_err() {
            return;
        }
        let Ok(words) = u8::try_from(filter.len() / 32) else { return };
        blocks.push(words);
        let words = u32::from(words);
        if words > 0 {
            let filter = &filter[..words as usize * 32];
            blocks.extend_from_slice(&block_crc(&META, offset, words, filter).to_le_bytes());
            blocks.extend_from_slice(filter);
        }
        blocks.extend_from_slice(&block_crc(&META, offset, words, body).to_le_bytes());
        blocks.extend_from_slice(body);
        keys.push(key);
    }
    let (made, block_count) = index.finish();
    let index = given_index.unwrap_or(&made);
    let index_offset = (HEADER_LEN + blocks.len()) as u64;
    let index_crc = crc32fast::hash(index);
    let footer = TableFooter { index_offset, block_count, entry_count, meta: META, index_crc };
    let file = [&header()[..], &blocks, index, &footer.encode()].concat();
    if let Ok(table) = Table::open(FileBytes::owned(file.into())) {
        check_reads(&table, &keys);
    }
}

fn check_reads(table: &Table, keys: &[Vec<u8>]) {
    for key in keys {
        let _ = table.get(key, u64::MAX);
        let _ = table.versions(key);
    }
    let forward: Result<Vec<_>, _> = table.scan(Bound::Unbounded, Bound::Unbounded).collect();
    let back: Result<Vec<_>, _> = table.scan_back(Bound::Unbounded, Bound::Unbounded).collect();
    if table.verify().is_err() {
        return;
    }
    // A table that verifies can be read. It is sorted and counted, and each entry is found by its key.
    assert!(forward.is_ok() && back.is_ok(), "a table that verifies cannot be read");
    let (forward, back) = (forward.unwrap_or_default(), back.unwrap_or_default());
    assert!(forward.iter().rev().eq(back.iter()), "back is not forward reversed");
    assert_eq!(forward.len() as u64, table.entry_count());
    for entry in &forward {
        let found = table.get(&entry.key, entry.seqno).ok().flatten();
        assert!(found == Some((entry.seqno, entry.value)), "an entry is not found by its key");
    }
}
