//! Tests of tables, by behaviour.

mod damage;
mod golden;
mod hostile;
mod model;
mod size;

use super::{FilterPolicy, IndexEntry, IndexValue, Table, TableCoverage, TableMeta, TableWriter};
use crate::io::FileBytes;

pub(super) const META: TableMeta = TableMeta {
    store: *b"0123456789abcdef",
    id: 7,
    covers: TableCoverage { segment: 3, offset: 4096, seqno: 99 },
};

fn write(entries: &[IndexEntry], filter: FilterPolicy) -> Vec<u8> {
    let mut writer = TableWriter::new(Vec::new(), META).unwrap().with_filter(filter);
    for entry in entries {
        writer.add(entry).unwrap();
    }
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> super::TableResult<Table> {
    Table::open(FileBytes::owned(bytes.into()))
}

fn entry(key: &[u8], seqno: u64, a: u64, b: u32) -> IndexEntry {
    IndexEntry { key: key.to_vec(), seqno, value: IndexValue { kind: 1, a, b, c: 100 } }
}

/// A generator good enough to shuffle test data (Steele, Lea, Flood: SplitMix, 2014).
struct TableTestRng(u64);

impl TableTestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
