//! Merges sorted streams of entries into one (Knuth, The Art of Computer Programming 3, section 5.4.1).

use super::entry::Entry;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Entries of several sorted sources in one order. Made by [`merge`].
#[derive(Debug)]
pub(crate) struct Merge<I, E> {
    sources: Vec<I>,
    heads: BinaryHeap<Head>,
    /// The source whose head was given last and has not been replaced yet.
    refill: Option<usize>,
    last: Option<(Vec<u8>, u64)>,
    error: Option<E>,
    done: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    entry: Entry,
    source: usize,
}

impl Ord for Head {
    /// Greatest is what comes out first: the least entry, and of equal ones that of the first source.
    fn cmp(&self, other: &Self) -> Ordering {
        other.entry.spot().cmp(&self.entry.spot()).then_with(|| other.source.cmp(&self.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Merges sources that each are sorted (key ascending, then seqno descending). Of entries with the same key
/// and seqno only the one from the first source that has it comes out. Ends after the first error; an error
/// comes out as soon as it is met, before entries that would have come after it.
///
/// A source out of order gives an output out of order, which [`TableWriter`](super::TableWriter) refuses.
pub(crate) fn merge<I, E>(sources: Vec<I>) -> Merge<I, E>
where
    I: Iterator<Item = Result<Entry, E>>,
{
    let mut this = Merge {
        heads: BinaryHeap::with_capacity(sources.len()),
        sources,
        refill: None,
        last: None,
        error: None,
        done: false,
    };
    for source in 0..this.sources.len() {
        this.pull(source);
    }
    this
}

impl<I, E> Merge<I, E>
where
    I: Iterator<Item = Result<Entry, E>>,
{
    fn pull(&mut self, source: usize) {
        match self.sources.get_mut(source).and_then(Iterator::next) {
            Some(Ok(entry)) => self.heads.push(Head { entry, source }),
            Some(Err(error)) => self.error = self.error.take().or(Some(error)),
            None => {}
        }
    }

    fn step(&mut self) -> Option<Result<Entry, E>> {
        loop {
            if let Some(source) = self.refill.take() {
                self.pull(source);
            }
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            let Head { entry, source } = self.heads.pop()?;
            self.refill = Some(source);
            let again =
                self.last.as_ref().is_some_and(|(key, seqno)| *seqno == entry.seqno && *key == entry.key);
            if again {
                continue;
            }
            let (key, seqno) = self.last.get_or_insert_default();
            key.clone_from(&entry.key);
            *seqno = entry.seqno;
            return Some(Ok(entry));
        }
    }
}

impl<I, E> Iterator for Merge<I, E>
where
    I: Iterator<Item = Result<Entry, E>>,
{
    type Item = Result<Entry, E>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        if !matches!(step, Some(Ok(_))) {
            self.done = true;
            self.sources.clear();
            self.heads.clear();
        }
        step
    }
}

impl<I, E> std::iter::FusedIterator for Merge<I, E> where I: Iterator<Item = Result<Entry, E>> {}
