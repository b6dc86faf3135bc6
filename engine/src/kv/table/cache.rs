//! The few blocks of a table that were read last, decoded.

use super::block::Block;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks kept. A decoded block of ordinary keys takes about 40 KB.
const BLOCKS_MAX: usize = 8;
/// Blocks with longer keys than this together, in bytes, are not kept.
const KEYS_LEN_MAX: usize = 64 * 1024;

/// Least recently used first out. A list is enough for so few.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Vec<(usize, Arc<Block>)>>);

impl Cache {
    pub(super) fn get(&self, block: usize) -> Option<Arc<Block>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|(number, _)| *number == block)?;
        list.get_mut(..=at)?.rotate_right(1);
        list.first().map(|(_, found)| Arc::clone(found))
    }

    pub(super) fn put(&self, block: usize, decoded: &Arc<Block>) {
        if decoded.keys_len() > KEYS_LEN_MAX {
            return;
        }
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.iter().all(|(number, _)| *number != block) {
            list.truncate(BLOCKS_MAX - 1);
            list.insert(0, (block, Arc::clone(decoded)));
        }
    }
}
