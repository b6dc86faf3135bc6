//! Merges sorted sources of entries into one (Knuth, The Art of Computer Programming 3, section 5.4.1).
//!
//! There are few sources, so the least is found by comparing all. Entries are lent, not copied.

use super::entry::{IndexValue, VersionKey};
use super::error::TableResult;

/// Entries in order, of which one at a time is current.
pub trait MergeSource {
    /// Advances to the next entry; false at the end, and from then on.
    fn advance(&mut self) -> TableResult<bool>;
    /// The key of the current entry.
    fn key(&self) -> &[u8];
    /// Its seqno.
    fn seqno(&self) -> u64;
    /// Its value.
    fn value(&self) -> IndexValue;
}

/// Calls `each` with the entries of all sources in order (key ascending, then seqno descending). Of entries
/// with the same key and seqno, only the one of the first source counts. Ends at the first error, its own or
/// a source's.
///
/// If a source is out of order, so is the output, which [`TableWriter`](super::TableWriter) refuses.
pub fn merge<E: From<super::TableError>>(
    sources: Vec<Box<dyn MergeSource + '_>>,
    mut each: impl FnMut(&[u8], u64, IndexValue) -> Result<(), E>,
) -> Result<(), E> {
    merge_checked(sources, |key, seqno, value, _| each(key, seqno, value))
}

/// As [`merge`]; `each` also gets whether another source has a different value in an entry with this key and seqno.
pub fn merge_checked<E: From<super::TableError>>(
    mut sources: Vec<Box<dyn MergeSource + '_>>,
    mut each: impl FnMut(&[u8], u64, IndexValue, bool) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    while at < sources.len() {
        if sources[at].advance()? {
            at += 1;
        } else {
            drop(sources.remove(at));
        }
    }
    while let Some(first) = least_source(&sources) {
        let (before, rest) = sources.split_at_mut(first + 1);
        let Some(source) = before.last_mut() else { break };
        let same = |other: &dyn MergeSource| other.seqno() == source.seqno() && other.key() == source.key();
        let differs = rest.iter().any(|other| same(&**other) && other.value() != source.value());
        each(source.key(), source.seqno(), source.value(), differs)?;
        // Skip the same entry in the other sources.
        let mut ended = Vec::new();
        for (number, other) in rest.iter_mut().enumerate() {
            if other.seqno() == source.seqno() && other.key() == source.key() && !other.advance()? {
                ended.push(first + 1 + number);
            }
        }
        if !source.advance()? {
            ended.insert(0, first);
        }
        for number in ended.into_iter().rev() {
            drop(sources.remove(number));
        }
    }
    Ok(())
}

/// The source whose entry comes first; of equal entries, the first source.
fn least_source(sources: &[Box<dyn MergeSource + '_>]) -> Option<usize> {
    let spot = |number: usize| {
        let source = sources.get(number)?;
        Some(VersionKey { key: source.key(), seqno: source.seqno() })
    };
    let mut found = 0;
    let mut first = spot(0)?;
    for number in 1..sources.len() {
        if let Some(other) = spot(number)
            && other < first
        {
            (found, first) = (number, other);
        }
    }
    Some(found)
}
