//! Keeps the index small and true: takes the frames of dropped runs out, and begins anew.

use std::collections::BTreeSet;

use annals::kv::ScanRange;
use annals::{Durability, Keyspace, Result};

use super::super::postings::{PartInfo, commit_index, delete_parts};
use super::{FrameTexts, LOW_MARK, PARTITION, removed_key};

/// Keys that [`FrameTexts::clear`] deletes in one commit.
const KEYS_AT_ONCE: usize = 4096;
/// A part with at most this many frames is written again without dead ones; a larger one if they are more than this
/// share of it.
const SMALL_PART: u32 = 4096;
const DEAD_SHARE: usize = 4;
/// The keyspaces of the form of before, in which each frame had a key in the first three.
const BEFORE: [&str; 6] = [
    "annals.search",
    "annals.search.words",
    "annals.search.words.numbers",
    "annals.search.words.removed",
    "annals.search.words.parts",
    "annals.search.words.postings",
];
/// The keyspace of the links from runs to what belongs to them (`annals::trace::belongings`).
const BELONGINGS: &str = "annals.belongings";

impl FrameTexts {
    /// Takes frames of dropped runs out of the index, and removes an index in the form of before. To be called before frames
    /// are added.
    ///
    /// # Errors
    /// `Damaged` if the index cannot be read; `Unavailable`, `Poisoned`.
    pub fn tend(&self) -> Result<()> {
        if self.list()?.is_none() {
            return if self.is_begun()? { self.clear() } else { Ok(()) };
        }
        let removed = self.removed()?;
        if removed.is_empty() {
            return Ok(());
        }
        let mut batch = self.space.batch();
        for run in &removed {
            batch.delete(&self.waiting, &run.to_be_bytes()).delete(&self.gaps, &run.to_be_bytes());
        }
        commit_index(batch)?;
        // Runs that are dropped from here on are left to the next call.
        let mut still_there = BTreeSet::new();
        loop {
            let Some(mut list) = self.list()? else { return Ok(()) };
            still_there.clear();
            let mut worst: Option<(usize, PartInfo)> = None;
            for (at, part) in list.parts.iter().enumerate() {
                let rows = self.rows(part)?;
                let dead: Vec<u64> =
                    rows.iter().map(|row| row.run).filter(|run| removed.contains(run)).collect();
                let is_due = part.count <= SMALL_PART || dead.len() * DEAD_SHARE > rows.len();
                if !dead.is_empty() && is_due && worst.is_none() {
                    worst = Some((at, part.clone()));
                }
                still_there.extend(dead);
            }
            let Some((at, part)) = worst else { break };
            list.parts.remove(at);
            let old = [part];
            let mut batch = self.merge(&mut list, at, &old, &removed, (Vec::new(), Vec::new()))?;
            batch.put(&self.parts, &PARTITION, list.bytes());
            commit_index(batch)?;
            delete_parts(self.place(), &old)?;
        }
        let mut batch = self.space.batch();
        let mut is_any = false;
        for run in removed.difference(&still_there) {
            is_any = true;
            batch.delete(&self.removed, &removed_key(*run));
        }
        if is_any { commit_index(batch) } else { Ok(()) }
    }

    /// Empties the index, so that it is made again. Durable: a crash does not bring the old index back.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn clear(&self) -> Result<()> {
        // The low mark goes first: after a crash the runs are indexed again.
        let mut batch = self.space.batch();
        batch.delete(&self.waiting, LOW_MARK).delete(&self.parts, &PARTITION);
        batch.submit_with(Durability::Disk)?.wait()?;
        for keyspace in [&self.waiting, &self.gaps, &self.removed, &self.runs, &self.parts] {
            self.delete_keys(keyspace, |_| true)?;
        }
        let mut is_before = false;
        for name in BEFORE {
            if let Some(keyspace) = self.space.find_keyspace(name)? {
                is_before |= self.delete_keys(&keyspace, |_| true)?;
            }
        }
        match self.space.find_keyspace(BELONGINGS)? {
            Some(links) if is_before => self.delete_keys(&links, is_link_of_before).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether there is anything of an index, whatever its form.
    fn is_begun(&self) -> Result<bool> {
        let has_keys = |keyspace: &Keyspace| -> Result<bool> {
            Ok(keyspace.scan(ScanRange::all()).keys().next().transpose()?.is_some())
        };
        if has_keys(&self.waiting)? {
            return Ok(true);
        }
        for name in BEFORE {
            if let Some(keyspace) = self.space.find_keyspace(name)?
                && has_keys(&keyspace)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes keys of a keyspace. Returns whether there were any.
    fn delete_keys(&self, keyspace: &Keyspace, is_old: impl Fn(&[u8]) -> bool) -> Result<bool> {
        let mut is_any = false;
        let mut keys =
            keyspace.scan(ScanRange::all()).keys().filter(|key| !key.as_ref().is_ok_and(|key| !is_old(key)));
        loop {
            let some: Vec<Vec<u8>> = keys.by_ref().take(KEYS_AT_ONCE).collect::<Result<_>>()?;
            if some.is_empty() {
                return Ok(is_any);
            }
            is_any = true;
            let mut batch = self.space.batch();
            some.iter().for_each(|key| _ = batch.delete(keyspace, key));
            batch.submit_with(Durability::Disk)?.wait()?;
        }
    }
}

/// Whether a link names a key of the form of before: the run's uid, the name of a keyspace, a zero byte, the key.
fn is_link_of_before(link: &[u8]) -> bool {
    let name = link.get(8..).and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default();
    BEFORE.iter().any(|before| before.as_bytes() == name)
}
