//! Walks over a table's entries between two keys, in either direction.
//!
//! A walk holds the shape of one block. It reads a block only when it reaches it, so that a damaged block
//! stops the walk there and not before. A walk ends after an error.

use super::entry::{IndexEntry, IndexValue, VersionKey};
use super::error::TableResult;
use super::merge::MergeSource;
use super::reader::{CheckedBlock, EntryPlace, Table};
use std::ops::{Bound, Deref};

/// Entries in order. `T` is `&Table` or `Arc<Table>`.
#[derive(Debug)]
pub struct TableScan<T> {
    walk: TableWalk<T>,
    to: Bound<Vec<u8>>,
    /// Where the walk begins; `None` once it has begun.
    from: Option<Bound<Vec<u8>>>,
}

/// Entries of a table in order, from its first or from a key on, lent one at a time: what a merge reads.
#[derive(Debug)]
pub struct TableSource<T> {
    table: T,
    block: Option<CheckedBlock>,
    /// The next block, and the place of the next entry in the block before it.
    next: usize,
    at: usize,
    key: Vec<u8>,
    seqno: u64,
    value: IndexValue,
}

impl<T: Deref<Target = Table>> TableSource<T> {
    pub fn new(table: T) -> Self {
        let value = IndexValue { kind: 0, a: 0, b: 0, c: 0 };
        Self { table, block: None, next: 0, at: 0, key: Vec::new(), seqno: 0, value }
    }

    /// The entries of this key and of all keys after it.
    pub fn starting_at(table: T, from: &[u8]) -> TableResult<Self> {
        let EntryPlace { block, at } = table.seek(VersionKey::newest_of(from), false)?;
        let mut source = Self::new(table);
        source.next = block;
        if block < source.table.block_count() {
            source.block = Some(source.table.block_at(block)?);
            (source.next, source.at) = (block + 1, at);
        }
        Ok(source)
    }
}

impl<T: Deref<Target = Table>> MergeSource for TableSource<T> {
    fn advance(&mut self) -> TableResult<bool> {
        loop {
            if let Some(block) = &self.block {
                let view = block.shape.view(self.table.body(block));
                if self.at < view.len() {
                    let value = view.key(self.at, &mut self.key).and_then(|()| view.value(self.at));
                    self.value = value.ok_or_else(|| self.table.changed_block_error())?;
                    self.seqno = view.seqno(self.at);
                    self.at += 1;
                    return Ok(true);
                }
            }
            if self.next == self.table.block_count() {
                return Ok(false);
            }
            self.block = Some(self.table.block_at(self.next)?);
            self.next += 1;
            self.at = 0;
        }
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn seqno(&self) -> u64 {
        self.seqno
    }

    fn value(&self) -> IndexValue {
        self.value
    }
}

/// Entries in reverse order. `T` is `&Table` or `Arc<Table>`.
#[derive(Debug)]
pub struct ReverseTableScan<T> {
    walk: TableWalk<T>,
    from: Bound<Vec<u8>>,
    to: Option<Bound<Vec<u8>>>,
}

#[derive(Debug)]
struct TableWalk<T> {
    table: T,
    /// The current block, with its number.
    block: Option<(usize, CheckedBlock)>,
    /// The place of the next entry (forward) or of the one after the next (backward).
    place: EntryPlace,
    done: bool,
}

impl<T: Deref<Target = Table>> TableScan<T> {
    /// Like [`Table::scan`], for a walk that owns a share of its table.
    pub fn new(table: T, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Self {
        Self { walk: TableWalk::new(table), to: to.map(<[u8]>::to_vec), from: Some(from.map(<[u8]>::to_vec)) }
    }

    fn step(&mut self) -> TableResult<Option<IndexEntry>> {
        if let Some(from) = self.from.take() {
            self.walk.place = match &from {
                Bound::Unbounded => EntryPlace { block: 0, at: 0 },
                Bound::Included(key) => self.walk.table.seek(VersionKey::newest_of(key), false)?,
                Bound::Excluded(key) => self.walk.table.seek(VersionKey::oldest_of(key), true)?,
            };
        }
        let Some(entry) = self.walk.forward()? else { return Ok(None) };
        let inside = match &self.to {
            Bound::Unbounded => true,
            Bound::Included(key) => entry.key <= *key,
            Bound::Excluded(key) => entry.key < *key,
        };
        Ok(inside.then_some(entry))
    }
}

impl<T: Deref<Target = Table>> ReverseTableScan<T> {
    /// Like [`Table::scan_back`], for a walk that owns a share of its table.
    pub fn new(table: T, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Self {
        Self { walk: TableWalk::new(table), from: from.map(<[u8]>::to_vec), to: Some(to.map(<[u8]>::to_vec)) }
    }

    fn step(&mut self) -> TableResult<Option<IndexEntry>> {
        if let Some(to) = self.to.take() {
            self.walk.place = match &to {
                Bound::Unbounded => EntryPlace { block: self.walk.table.block_count(), at: 0 },
                Bound::Included(key) => self.walk.table.seek(VersionKey::oldest_of(key), true)?,
                Bound::Excluded(key) => self.walk.table.seek(VersionKey::newest_of(key), false)?,
            };
        }
        let Some(entry) = self.walk.backward()? else { return Ok(None) };
        let inside = match &self.from {
            Bound::Unbounded => true,
            Bound::Included(key) => entry.key >= *key,
            Bound::Excluded(key) => entry.key > *key,
        };
        Ok(inside.then_some(entry))
    }
}

impl<T: Deref<Target = Table>> TableWalk<T> {
    fn new(table: T) -> Self {
        Self { table, block: None, place: EntryPlace { block: 0, at: 0 }, done: false }
    }

    fn forward(&mut self) -> TableResult<Option<IndexEntry>> {
        loop {
            let place = self.place;
            if place.block >= self.table.block_count() {
                return Ok(None);
            }
            if place.at < self.load(place.block)? {
                self.place.at += 1;
                return self.entry(place).map(Some);
            }
            self.place = EntryPlace { block: place.block + 1, at: 0 };
        }
    }

    fn backward(&mut self) -> TableResult<Option<IndexEntry>> {
        loop {
            if let Some(at) = self.place.at.checked_sub(1) {
                self.place.at = at;
                self.load(self.place.block)?;
                return self.entry(self.place).map(Some);
            }
            let Some(before) = self.place.block.checked_sub(1) else { return Ok(None) };
            self.place = EntryPlace { block: before, at: self.load(before)? };
        }
    }

    /// Makes this the current block. Returns the number of its entries.
    fn load(&mut self, number: usize) -> TableResult<usize> {
        if self.block.as_ref().is_none_or(|(held, _)| *held != number) {
            self.block = Some((number, self.table.block_at(number)?));
        }
        Ok(self.block.as_ref().map_or(0, |(_, block)| block.shape.view(&[]).len()))
    }

    /// The entry at a place of the current block.
    fn entry(&self, place: EntryPlace) -> TableResult<IndexEntry> {
        let found = self
            .block
            .as_ref()
            .and_then(|(_, block)| block.shape.view(self.table.body(block)).entry(place.at));
        found.ok_or_else(|| self.table.changed_block_error())
    }

    /// Ends the walk at its first error or its end.
    fn finish_step(&mut self, step: TableResult<Option<IndexEntry>>) -> Option<TableResult<IndexEntry>> {
        self.done = !matches!(step, Ok(Some(_)));
        if self.done {
            self.block = None;
        }
        step.transpose()
    }
}

impl<T: Deref<Target = Table>> Iterator for TableScan<T> {
    type Item = TableResult<IndexEntry>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.walk.done {
            return None;
        }
        let step = self.step();
        self.walk.finish_step(step)
    }
}

impl<T: Deref<Target = Table>> Iterator for ReverseTableScan<T> {
    type Item = TableResult<IndexEntry>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.walk.done {
            return None;
        }
        let step = self.step();
        self.walk.finish_step(step)
    }
}

impl<T: Deref<Target = Table>> std::iter::FusedIterator for TableScan<T> {}
impl<T: Deref<Target = Table>> std::iter::FusedIterator for ReverseTableScan<T> {}
