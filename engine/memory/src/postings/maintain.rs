//! Keeping the index: numbers for new cards, parts of the tail's postings, merges, rebuilding.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use annals::kv::ScanRange;
use annals::{Error, ErrorKind, KvBatch, Result};
use annals_store::ids::NamespaceId;
use annals_store::sync::MutexGuard;

use super::super::words::{Card, CardRead, numbered};
use super::super::{Memory, PostingSpaces, RacePoint, reach};
use super::find::{damaged, has_number, read_table};
use super::meta::{PartInfo, PartList};
use super::part::{ENTRIES_MAX, TableRow, Term, for_each_term, identity_hash};
use super::write::{NewPart, commit_index, delete_all, delete_parts, merged_from, write_part};
use super::{Partition, PartitionPlace, card_number, number_of_key, partition_of};

/// The tail is made a part at this length.
pub(in super::super) const TAIL_MAX: u64 = 512;
/// Cards in one commit of a rebuild.
const REBUILT_AT_ONCE: usize = 512;
/// Keys of queued and unpublished batches that are remembered at most.
const QUEUED_KEYS_MAX: usize = 4096;
/// Assumed bytes of one posting of a new card: a tail is short, so that most terms have few.
const POSTING_BYTES: usize = 6;
/// A part is written again without its removed entries if they are more than this share of it.
const REMOVED_SHARE: u64 = 4;

/// What the memories of all namespaces of a store share while it is open.
#[derive(Debug, Default)]
struct SharedState {
    partitions: HashMap<PartitionPlace, PartitionState>,
    /// The numbers that partitions without a state had used: no number is given out twice, since recalls keep cards and tables by
    /// them.
    used: HashMap<PartitionPlace, UsedNumbers>,
    /// Keys of entries in batches that may not be published yet.
    queued: HashSet<(NamespaceId, Vec<u8>)>,
}

/// The first numbers that were never given out.
#[derive(Debug, Clone, Copy, Default)]
struct UsedNumbers {
    card: u64,
    part: u32,
}

impl SharedState {
    /// Forgets a partition's state, but not which numbers it used.
    fn discard(&mut self, place: PartitionPlace) {
        if let Some(state) = self.partitions.remove(&place) {
            self.note_used(place, UsedNumbers { card: state.next, part: state.next_part });
        }
    }

    /// Adds used numbers; returns all of the partition.
    fn note_used(&mut self, place: PartitionPlace, used: UsedNumbers) -> UsedNumbers {
        let known = self.used.entry(place).or_default();
        *known = UsedNumbers { card: known.card.max(used.card), part: known.part.max(used.part) };
        *known
    }
}

#[derive(Debug, Clone)]
struct PartitionState {
    /// The next number of a card, and of a part.
    next: u64,
    next_part: u32,
    tail_from: u64,
    /// Cards added to the tail, and cards removed from parts, since the last look at the parts.
    added: u64,
    removed: u64,
}

/// The lock of every read-modify-write of a memory, and what it guards.
pub(in super::super) struct Numbering<'a> {
    guard: MutexGuard<'a, Option<Box<dyn Any + Send>>>,
    /// The caller keeps runs from being dropped already.
    pub(in super::super) holds_drops: bool,
}

impl<'a> Numbering<'a> {
    pub(in super::super) fn new(guard: MutexGuard<'a, Option<Box<dyn Any + Send>>>) -> Self {
        Self { guard, holds_drops: false }
    }

    fn state(&mut self) -> Result<&mut SharedState> {
        self.guard
            .get_or_insert_with(|| Box::new(SharedState::default()))
            .downcast_mut()
            .ok_or_else(|| Error::bug("the memory's shared state has another type"))
    }
}

impl Memory {
    fn place(&self, partition: &Partition) -> PartitionPlace {
        (self.entries.namespace(), self.entries.id(), *partition)
    }

    /// Waits until every queued batch of entries can be read.
    pub(in super::super) fn settle(&self, changing: &mut Numbering<'_>) -> Result<()> {
        let state = changing.state()?;
        if !state.queued.is_empty() {
            let core = self.entries.core();
            core.log()?.queue.barrier(core.index.visible())?;
            state.queued.clear();
        }
        Ok(())
    }

    /// Makes ready for a batch that sets these keys and is not waited for under the lock: nothing queued sets the same keys.
    pub(in super::super) fn note_queued(&self, changing: &mut Numbering<'_>, keys: &[Vec<u8>]) -> Result<()> {
        let namespace = self.entries.namespace();
        let queued = &changing.state()?.queued;
        let again = keys.iter().any(|key| queued.contains(&(namespace, key.clone())));
        if again || queued.len() + keys.len() > QUEUED_KEYS_MAX {
            self.settle(changing)?;
        }
        changing.state()?.queued.extend(keys.iter().map(|key| (namespace, key.clone())));
        Ok(())
    }

    /// Gives a new card its number, and takes the number of the card that it replaces away. If the index
    /// cannot be kept, the card has no number and recalls read all cards.
    pub(in super::super) fn number_card(
        &self,
        changing: &mut Numbering<'_>,
        batch: &mut KvBatch,
        key: &[u8],
        card: &mut Card,
    ) -> Result<()> {
        let Some(spaces) = &self.postings else { return Ok(()) };
        let tenant = tenant_of_key(key);
        let partition = partition_of(&tenant);
        match self.partition(changing, &tenant, &partition) {
            Ok(true) => {}
            Ok(false) => {
                let place = self.place(&partition);
                let state = changing.state()?.partitions.get(&place);
                let (tail_from, next_id) = state.map_or((0, 0), |state| (state.tail_from, state.next_part));
                let list = PartList { tail_from, next_id, parts: Vec::new() };
                batch.put(&spaces.parts, &partition, list.bytes());
            }
            Err(error) if is_damage(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.remove_number(changing, batch, key)?;
        let Some(state) = changing.state()?.partitions.get_mut(&self.place(&partition)) else {
            return Ok(());
        };
        let number = card_number(&partition, state.next);
        state.next += 1;
        state.added += 1;
        card.number = Some(number);
        batch.put(&spaces.numbers, &number, key.to_vec());
        Ok(())
    }

    /// Adds to a batch that a key's card no longer has its number.
    pub(in super::super) fn remove_number(
        &self,
        changing: &mut Numbering<'_>,
        batch: &mut KvBatch,
        key: &[u8],
    ) -> Result<()> {
        let Some(spaces) = &self.postings else { return Ok(()) };
        let Some(card) = self.words.get(key)? else { return Ok(()) };
        let Ok(Some(number)) = CardRead::parse(&card).map(|card| card.number) else { return Ok(()) };
        batch.delete(&spaces.numbers, &number);
        batch.put(&spaces.removed, &number, Vec::new());
        let partition = partition_of(&tenant_of_key(key));
        if let Some(state) = changing.state()?.partitions.get_mut(&self.place(&partition)) {
            state.removed += 1;
        }
        Ok(())
    }

    /// Loads the state of a partition. False if its list of parts has yet to be written.
    fn partition(&self, changing: &mut Numbering<'_>, tenant: &str, partition: &Partition) -> Result<bool> {
        let Some(spaces) = &self.postings else { return Ok(true) };
        let place = self.place(partition);
        if changing.state()?.partitions.contains_key(&place) {
            return Ok(true);
        }
        self.settle(changing)?;
        let list = spaces.parts.get(partition)?.map(|bytes| PartList::parse(&bytes));
        let is_new = list.is_none();
        let list = match list {
            Some(Ok(list)) => list,
            Some(Err(_)) => self.rebuild(changing, spaces, tenant, partition)?,
            None => match self.words.scan(ScanRange::prefix(tenant.as_bytes())).keys().next() {
                // The store is older than the index.
                Some(_) => self.rebuild(changing, spaces, tenant, partition)?,
                None => {
                    let used = self.used_numbers(changing, spaces, partition)?;
                    PartList { tail_from: used.card, next_id: used.part, parts: Vec::new() }
                }
            },
        };
        let listed = UsedNumbers { card: list.tail_from, part: list.next_id };
        changing.state()?.note_used(place, listed);
        let next = self.used_numbers(changing, spaces, partition)?.card;
        let state = PartitionState {
            next,
            next_part: list.next_id,
            tail_from: list.tail_from,
            added: next - list.tail_from,
            removed: 0,
        };
        let has_list = !is_new || spaces.parts.get(partition)?.is_some();
        changing.state()?.partitions.insert(place, state);
        Ok(has_list)
    }

    /// The numbers that a partition has used, as far as the index and this process know.
    fn used_numbers(
        &self,
        changing: &mut Numbering<'_>,
        spaces: &PostingSpaces,
        partition: &Partition,
    ) -> Result<UsedNumbers> {
        let last = |keyspace: &annals::Keyspace| -> Result<Option<Vec<u8>>> {
            keyspace.scan(ScanRange::prefix(partition).reverse()).keys().next().transpose()
        };
        let after = |key: Option<Vec<u8>>| {
            key.and_then(|key| number_of_key(&key)).map_or(0, |number| number.saturating_add(1))
        };
        let part = last(&spaces.postings)?;
        let part = part.and_then(|key| key.get(16..20)?.try_into().ok().map(u32::from_be_bytes));
        let found = UsedNumbers {
            card: after(last(&spaces.numbers)?).max(after(last(&spaces.removed)?)),
            part: part.map_or(0, |part| part.saturating_add(1)),
        };
        Ok(changing.state()?.note_used(self.place(partition), found))
    }

    /// Numbers all cards of a tenant anew. Their parts are gone; the cards are the tail. No number is used again.
    fn rebuild(
        &self,
        changing: &mut Numbering<'_>,
        spaces: &PostingSpaces,
        tenant: &str,
        partition: &Partition,
    ) -> Result<PartList> {
        let place = self.place(partition);
        changing.state()?.discard(place);
        let used = self.used_numbers(changing, spaces, partition)?;
        let mut batch = self.space.batch();
        batch.delete(&spaces.parts, partition);
        commit_index(batch)?;
        for keyspace in [&spaces.numbers, &spaces.removed, &spaces.postings] {
            delete_all(&self.space, keyspace, partition)?;
        }
        let mut number = used.card;
        let mut keys = self.words.scan(ScanRange::prefix(tenant.as_bytes())).keys();
        loop {
            let some: Vec<Vec<u8>> = keys.by_ref().take(REBUILT_AT_ONCE).collect::<Result<_>>()?;
            if some.is_empty() {
                break;
            }
            reach(RacePoint::CardsRead);
            // A card of a run that is dropped meanwhile must not come back.
            let _held = (!changing.holds_drops).then(|| self.space.hold_drops());
            self.number_again(spaces, partition, some, &mut number)?;
            changing.state()?.note_used(place, UsedNumbers { card: number, part: used.part });
        }
        let list = PartList { tail_from: used.card, next_id: used.part, parts: Vec::new() };
        let mut batch = self.space.batch();
        // The list comes last: after a crash before it, the next write begins again.
        batch.put(&spaces.parts, partition, list.bytes());
        commit_index(batch)?;
        Ok(list)
    }

    /// Gives the cards of these keys new numbers, from `number` on. The caller keeps runs from being dropped.
    fn number_again(
        &self,
        spaces: &PostingSpaces,
        partition: &Partition,
        keys: Vec<Vec<u8>>,
        number: &mut u64,
    ) -> Result<()> {
        let mut batch = self.space.batch();
        let mut numbers = Vec::new();
        for key in keys {
            let Some(bytes) = self.words.get(&key)? else { continue };
            let card = card_number(partition, *number);
            let bytes = numbered(&bytes, &card).map_err(|error| damaged(&error))?;
            batch.put(&self.words, &key, bytes);
            batch.put(&spaces.numbers, &card, key.clone());
            numbers.push((key, card));
            *number += 1;
        }
        if numbers.is_empty() {
            return Ok(());
        }
        commit_index(batch)?;
        // Replacing a run takes no lock: cards of a run that was replaced meanwhile are deleted here.
        let mut batch = self.space.batch();
        let mut is_any_gone = false;
        for (key, card) in numbers {
            if !self.has_entry(&key)? {
                is_any_gone = true;
                batch.delete(&self.words, &key);
                batch.delete(&spaces.numbers, &card);
            }
        }
        if is_any_gone { commit_index(batch) } else { Ok(()) }
    }

    /// Forgets a damaged index: the next write of its tenant rebuilds it.
    pub(in super::super) fn discard_index(&self, tenant: &str) -> Result<()> {
        let (Some(spaces), true) = (&self.postings, self.entries.core().is_writer()) else { return Ok(()) };
        let partition = partition_of(tenant);
        let mut changing = self.lock_changes()?;
        changing.state()?.discard(self.place(&partition));
        let mut batch = self.space.batch();
        batch.delete(&spaces.parts, &partition);
        commit_index(batch)
    }

    /// Makes parts of the tail if it is long, after a batch of entries of this key's tenant is committed. An
    /// index that cannot be read is left to the next recall and the next write: the entry is stored.
    pub(in super::super) fn tend_index(&self, key: &[u8]) -> Result<()> {
        let Some(spaces) = &self.postings else { return Ok(()) };
        let tenant = tenant_of_key(key);
        let partition = partition_of(&tenant);
        let mut changing = self.lock_unsettled();
        let is_due = |changing: &mut Numbering<'_>| -> Result<bool> {
            let state = changing.state()?.partitions.get(&self.place(&partition));
            Ok(state.is_some_and(|state| state.added >= self.tail_max || state.removed >= self.tail_max))
        };
        if !is_due(&mut changing)? {
            return Ok(());
        }
        self.settle(&mut changing)?;
        match self.write_parts(&mut changing, spaces, &partition) {
            Err(error) if is_damage(&error) => {
                drop(changing);
                self.discard_index(&tenant)
            }
            written => written,
        }
    }

    fn write_parts(
        &self,
        changing: &mut Numbering<'_>,
        spaces: &PostingSpaces,
        partition: &Partition,
    ) -> Result<()> {
        loop {
            let bytes =
                spaces.parts.get(partition)?.ok_or_else(|| Error::bug("the list of parts is missing"))?;
            let mut list = PartList::parse(&bytes).map_err(|error| damaged(&error))?;
            // Before the tail: a card that is removed in between is in neither the tail nor this list, so its removal stays noted.
            let removed = removed_numbers(spaces, partition)?;
            let tail = self.tail(spaces, partition, &list)?;
            reach(RacePoint::TailRead);
            let (tail_len, tail_from) = (tail.len() as u64, list.tail_from);
            if tail_len >= self.tail_max {
                let first = merged_from(&list, tail.len());
                let old = list.parts.split_off(first);
                self.write_part((spaces, partition), &mut list, first, &old, &tail, &removed)?;
            } else if !self.drop_removed(spaces, partition, &mut list, &removed)? {
                break;
            }
            if let Some(state) = changing.state()?.partitions.get_mut(&self.place(partition)) {
                state.tail_from = list.tail_from.max(tail_from);
                state.next_part = list.next_id;
            }
        }
        let bytes = spaces.parts.get(partition)?.unwrap_or_default();
        let tail_from = PartList::parse(&bytes).map_err(|error| damaged(&error))?.tail_from;
        if let Some(state) = changing.state()?.partitions.get_mut(&self.place(partition)) {
            (state.added, state.removed, state.tail_from) = (state.next - tail_from, 0, tail_from);
            // Numbers of the tail whose cards are gone are not worth a look at each write.
            state.added = state.added.min(self.tail_max / 2);
        }
        Ok(())
    }

    /// The oldest cards of the tail, at most as many as a part has.
    fn tail(&self, spaces: &PostingSpaces, partition: &Partition, list: &PartList) -> Result<Vec<TailCard>> {
        let mut cards = Vec::new();
        for found in spaces.numbers.scan(tail_range(partition, list.tail_from)).take(ENTRIES_MAX) {
            let (number, key) = found?;
            let number =
                number_of_key(&number).ok_or_else(|| Error::bug("a number of a memory is too short"))?;
            if let Some(bytes) = self.words.get(&key)?.filter(|card| has_number(card, partition, number)) {
                cards.push(TailCard { number, key, bytes });
            }
        }
        Ok(cards)
    }

    /// Writes a part without its removed entries if there are many. False if there is none.
    fn drop_removed(
        &self,
        spaces: &PostingSpaces,
        partition: &Partition,
        list: &mut PartList,
        removed: &[u64],
    ) -> Result<bool> {
        for at in 0..list.parts.len() {
            let Some(part) = list.parts.get(at).cloned() else { break };
            let table = read_table(&mut |key| spaces.postings.get(key), partition, &part)?;
            let gone = removed.iter().filter(|number| table.ordinal_of(**number).is_some()).count() as u64;
            if gone * REMOVED_SHARE > u64::from(part.count) {
                let old = list.parts.remove(at);
                self.write_part((spaces, partition), list, at, &[old], &[], removed)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes one part of some old ones and of cards of the tail, in place of the old ones. `removed` was read before the
    /// tail.
    fn write_part(
        &self,
        (spaces, partition): (&PostingSpaces, &Partition),
        list: &mut PartList,
        at: usize,
        old: &[PartInfo],
        tail: &[TailCard],
        removed: &[u64],
    ) -> Result<()> {
        let mut rows: Vec<TableRow> = Vec::new();
        // The new ordinals of each old part's entries.
        let mut moved: Vec<Vec<Option<u16>>> = Vec::new();
        // The numbers that stand in the old parts and in the cards of the tail, or stood there.
        let mut range: Option<(u64, u64)> =
            (old.is_empty() && !tail.is_empty()).then_some((list.tail_from, 0));
        for part in old {
            let table = read_table(&mut |key| spaces.postings.get(key), partition, part)?;
            let living = table.living(removed, i64::MIN);
            let mut ordinals = Vec::with_capacity(table.rows.len());
            for (ordinal, row) in table.rows.iter().enumerate() {
                range = Some((range.map_or(row.number, |(first, _)| first), row.number));
                let lives = living.contains(ordinal);
                ordinals.push(lives.then(|| u16::try_from(rows.len()).unwrap_or(u16::MAX)));
                if lives {
                    rows.push(*row);
                }
            }
            moved.push(ordinals);
        }
        let mut fresh: Vec<(Term, u16)> = Vec::new();
        for card in tail {
            let read = CardRead::parse(&card.bytes).map_err(|error| damaged(&error))?;
            let ordinal = u16::try_from(rows.len()).unwrap_or(u16::MAX);
            rows.push(TableRow {
                number: card.number,
                identity: identity_hash(&super::super::operations::identity_of_key(&card.key)),
                tier: read.tier,
                ttl_ms: read.ttl_ms,
            });
            range = Some((range.map_or(card.number, |(first, _)| first), card.number));
            for_each_term(&read, &mut |term| fresh.push((term, ordinal)));
        }
        if let Some(last) = tail.last() {
            list.tail_from = last.number + 1;
        }
        let fresh_bytes = fresh.len() * POSTING_BYTES;
        let part = NewPart { old, moved: &moved, rows: &rows, fresh: &fresh, fresh_bytes };
        let mut batch = write_part((&self.space, &spaces.postings, partition), list, at, &part)?;
        batch.put(&spaces.parts, partition, list.bytes());
        for &number in removed {
            // Also of cards that were deleted before they came into a part.
            if range.is_some_and(|(first, last)| (first..=last).contains(&number)) {
                batch.delete(&spaces.removed, &card_number(partition, number));
            }
        }
        commit_index(batch)?;
        delete_parts((&self.space, &spaces.postings, partition), old)
    }
}

/// A card of the tail.
struct TailCard {
    number: u64,
    key: Vec<u8>,
    bytes: Vec<u8>,
}

/// The keys of the tail's numbers.
pub(super) fn tail_range(partition: &Partition, from: u64) -> ScanRange {
    let last = card_number(partition, u64::MAX);
    ScanRange::between(
        std::ops::Bound::Included(&card_number(partition, from)),
        std::ops::Bound::Included(&last),
    )
}

fn removed_numbers(spaces: &PostingSpaces, partition: &Partition) -> Result<Vec<u64>> {
    let keys = spaces.removed.scan(ScanRange::prefix(partition)).keys();
    keys.map(|key| Ok(number_of_key(&key?))).filter_map(Result::transpose).collect()
}

/// Whether an error is about the index itself, which can be made again.
pub(in super::super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Bug)
}

/// The prefix of a tenant's keys, from one of them.
fn tenant_of_key(key: &[u8]) -> String {
    let end = key.iter().position(|byte| *byte == b'/').map_or(key.len(), |at| at + 1);
    String::from_utf8_lossy(key.get(..end).unwrap_or_default()).into_owned()
}
