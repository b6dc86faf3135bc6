//! Recall by words through the index: reads the postings of a question's terms, and the cards of the tail.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use annals::kv::ScanRange;
use annals::{Error, ErrorKind, Result};
use annals_store::codec::CodecError;
use annals_store::kv::View;
use annals_store::log::segments::lock;
use annals_store::sync::{Mutex, rank};

use super::super::words::{BulkScores, CardRead, QuestionLists, QuestionTerms, TermRarity};
use super::super::{Identity, Memory, MemoryQuery};
use super::bitmap::{Bitmap, read_ordinals};
use super::maintain::tail_range;
use super::meta::{PartInfo, PartList};
use super::part::{
    PartRow, TABLE_BLOCK, Table, TableRow, Term, bucket_key, for_each_posting, identity_hash,
    read_table_block, table_key,
};
use super::write::missing_bucket;
use super::{Partition, card_number, number_of_key, partition_of};

/// Maximum number of cards and tables kept for the next recall.
const CARDS_MAX: usize = 4096;
const TABLES_MAX: usize = 64;

/// Tables of parts and cards of tails that were read. Neither changes under its number.
#[derive(Debug, Default)]
pub(in super::super) struct IndexCache(Mutex<CachedIndex, { rank::CACHE }>);

#[derive(Debug, Default)]
struct CachedIndex {
    tables: HashMap<(Partition, u32), Arc<Table>>,
    cards: HashMap<(Partition, u64), Arc<Vec<u8>>>,
}

/// What a question found in an index.
pub(in super::super) struct IndexFinding {
    /// Scores, by the numbers of the entries' cards.
    pub(in super::super) passed: Vec<(f32, u64)>,
    /// Whether there is any living entry that the query covers, whatever it holds.
    pub(in super::super) any: bool,
}

/// A part with the postings of a question.
struct AskedPart {
    table: Arc<Table>,
    living: Bitmap,
    lists: QuestionLists,
}

/// A tenant's entries as a question finds them: parts of the index, and the cards that no part holds.
pub(in super::super) struct AskedTenant {
    parts: Vec<AskedPart>,
    tail: Vec<TailEntry>,
    /// Expired cards do not count.
    now_ms: i64,
}

/// Which entries of a tenant are scored.
pub(in super::super) struct ScoreFilter<'a> {
    /// The name of the only identity, or all of the tenant.
    pub(in super::super) identity: Option<&'a str>,
    /// The only tiers, or all.
    pub(in super::super) tiers: &'a [u8],
    /// `None`: entries that answer the question.
    pub(in super::super) min_score: Option<f32>,
}

/// Takes the score of an entry, the number of its card, and its key if the card is in the tail.
pub(in super::super) type EachScore<'a> = &'a mut dyn FnMut(f32, u64, Option<&[u8]>);

pub(in super::super) fn damaged(error: &CodecError) -> Error {
    Error::new(ErrorKind::Damaged, error.to_string())
}

/// Reads the value of a key of the index.
pub(in super::super) type GetFn<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>>;

/// Number, key and card of an entry that no part of the index holds yet.
type TailEntry = (u64, Vec<u8>, Arc<Vec<u8>>);

/// Whether a card has this number. A run that is dropped while its entry is replaced may leave a number of an older card.
pub(super) fn has_number(card: &[u8], partition: &Partition, number: u64) -> bool {
    card.last_chunk() == Some(&card_number(partition, number))
}

/// Reads the rows of a part's table.
pub(in super::super) fn read_rows<R: PartRow>(
    get: GetFn<'_>,
    partition: &Partition,
    part: &PartInfo,
) -> Result<Vec<R>> {
    let mut rows = Vec::with_capacity(part.count as usize);
    for block in 0..part.count.div_ceil(TABLE_BLOCK) {
        let bytes = get(&table_key(partition, part.id, block))?.ok_or_else(|| damaged(&missing_bucket()))?;
        read_table_block(&bytes, &mut rows).map_err(|error| damaged(&error))?;
    }
    if rows.len() != part.count as usize {
        return Err(damaged(&CodecError::Header(format!("the table of {part:?} has {} rows", rows.len()))));
    }
    Ok(rows)
}

/// Reads the table of a part of memories.
pub(super) fn read_table(get: GetFn<'_>, partition: &Partition, part: &PartInfo) -> Result<Table> {
    let rows: Vec<TableRow> = read_rows(get, partition, part)?;
    if !rows.is_sorted_by(|a, b| a.number < b.number) {
        return Err(damaged(&CodecError::Header(format!("the table of {part:?} is out of order"))));
    }
    Ok(Table::new(rows))
}

/// Reads a question's postings in a part.
pub(in super::super) fn read_lists(
    get: GetFn<'_>,
    partition: &Partition,
    part: &PartInfo,
    asked: &QuestionTerms,
    living: Bitmap,
) -> Result<QuestionLists> {
    let count = part.count as usize;
    let mut by_bucket: BTreeMap<u32, BTreeSet<Term>> = BTreeMap::new();
    asked.for_each_posting(&mut |term| {
        by_bucket.entry(term.bucket(part.buckets)).or_default().insert(term);
    });
    let mut lists: HashMap<Term, Bitmap> = HashMap::new();
    for (bucket, terms) in by_bucket {
        let bytes = get(&bucket_key(partition, part.id, bucket))?;
        let bytes = bytes.ok_or_else(|| damaged(&missing_bucket()))?;
        let read = for_each_posting(&bytes, &mut |term, list| {
            if terms.contains(&term) {
                lists.insert(term, read_ordinals(list, count)?);
            }
            Ok(())
        });
        read.map_err(|error| damaged(&error))?;
    }
    Ok(QuestionLists::new(asked, living, count, &|term| lists.get(&term)))
}

/// The cards of a tail: number, key and card.
pub(in super::super) type TailCards<'a> = Vec<(u64, &'a [u8], CardRead<'a>)>;

impl AskedTenant {
    /// A tenant without an index: the keys and cards of all its entries.
    pub(in super::super) fn without_index(cards: Vec<(Vec<u8>, Vec<u8>)>, now_ms: i64) -> Self {
        let tail = cards.into_iter().map(|(key, card)| (0, key, Arc::new(card))).collect();
        Self { parts: Vec::new(), tail, now_ms }
    }

    /// The cards of the tail that have not expired.
    pub(in super::super) fn tail_cards(&self) -> Result<TailCards<'_>> {
        let mut cards = Vec::with_capacity(self.tail.len());
        for (number, key, bytes) in &self.tail {
            let card = CardRead::parse(bytes).map_err(|error| damaged(&error))?;
            if !card.is_expired(self.now_ms) {
                cards.push((*number, key.as_slice(), card));
            }
        }
        Ok(cards)
    }

    /// Counts the entries, and those that hold each word of the question.
    pub(in super::super) fn count(
        &self,
        cards: &TailCards<'_>,
        asked: &QuestionTerms,
        rarity: &mut TermRarity,
    ) {
        self.parts.iter().for_each(|part| rarity.count_part(&part.lists));
        cards.iter().for_each(|(.., card)| rarity.count_entry(asked, card));
    }

    /// Calls `each` with the entries that pass. Returns whether there is any living entry of the filter's identity.
    pub(in super::super) fn score(
        &self,
        cards: &TailCards<'_>,
        asked: &QuestionTerms,
        rarity: &TermRarity,
        filter: &ScoreFilter<'_>,
        each: EachScore<'_>,
    ) -> bool {
        let mut any = false;
        let own_hash = filter.identity.map(identity_hash);
        for part in &self.parts {
            let mut among = part.living.clone();
            let rows = || part.table.rows.iter().enumerate();
            if let Some(own) = own_hash {
                let mut owned = Bitmap::empty(part.table.rows.len());
                rows().filter(|(_, row)| row.identity == own).for_each(|(at, _)| owned.insert(at));
                among.keep_only(&owned);
            }
            any |= !among.is_empty();
            if !filter.tiers.is_empty() {
                let mut tiered = Bitmap::empty(part.table.rows.len());
                rows()
                    .filter(|(_, row)| filter.tiers.contains(&row.tier))
                    .for_each(|(at, _)| tiered.insert(at));
                among.keep_only(&tiered);
            }
            let query = BulkScores { among: &among, min_score: filter.min_score };
            rarity.score_part(asked, &part.lists, &query, &mut |ordinal, score| {
                if let Some(row) = part.table.rows.get(ordinal) {
                    each(score, row.number, None);
                }
            });
        }
        let own = filter.identity.map(|name| format!("{name}\0"));
        for (number, key, card) in cards {
            if own.as_ref().is_some_and(|own| !key.starts_with(own.as_bytes())) {
                continue;
            }
            any = true;
            if (filter.tiers.is_empty() || filter.tiers.contains(&card.tier))
                && let Some(score) = rarity.score(asked, card)
                && filter.min_score.map_or_else(|| rarity.answers(asked, card), |least| score >= least)
            {
                each(score, *number, Some(key));
            }
        }
        any
    }
}

impl Memory {
    /// Scores a question through the index. `None` if the tenant has none; `Damaged` if it cannot be read.
    pub(in super::super) fn find_indexed(
        &self,
        view: &View,
        identity: &Identity,
        asked: &QuestionTerms,
        wanted: &MemoryQuery<'_>,
        tiers: &[u8],
    ) -> Result<Option<IndexFinding>> {
        let partition = partition_of(&identity.tenant_prefix());
        let Some(tenant) = self.read_tenant(view, &partition, asked)? else { return Ok(None) };
        let cards = tenant.tail_cards()?;
        let mut rarity = TermRarity::new(asked);
        tenant.count(&cards, asked, &mut rarity);
        let name = identity.name();
        let filter = ScoreFilter {
            identity: (!wanted.across_conversations).then_some(name.as_str()),
            tiers,
            min_score: wanted.min_score,
        };
        let mut found = IndexFinding { passed: Vec::new(), any: false };
        found.any = tenant.score(&cards, asked, &rarity, &filter, &mut |score, number, _| {
            found.passed.push((score, number));
        });
        Ok(Some(found))
    }

    /// Reads what the index of a tenant says of a question. `None` if it has none; `Damaged` if it cannot be read.
    pub(in super::super) fn read_tenant(
        &self,
        view: &View,
        partition: &Partition,
        asked: &QuestionTerms,
    ) -> Result<Option<AskedTenant>> {
        let Some(spaces) = &self.postings else { return Ok(None) };
        let Some(list) = view.get(&spaces.parts, partition)? else { return Ok(None) };
        let list = PartList::parse(&list).map_err(|error| damaged(&error))?;
        let now_ms = self.now_ms();
        let removed = view.scan(&spaces.removed, ScanRange::prefix(partition)).keys();
        let removed: Vec<u64> = removed
            .map(|key| Ok(number_of_key(&key?)))
            .filter_map(Result::transpose)
            .collect::<Result<_>>()?;
        let mut parts = Vec::new();
        for part in &list.parts {
            parts.push(self.read_part(view, partition, part, asked, &removed, now_ms)?);
        }
        let tail = self.read_tail(view, partition, list.tail_from)?;
        Ok(Some(AskedTenant { parts, tail, now_ms }))
    }

    /// The key of the entry whose card has a number.
    pub(in super::super) fn key_of_number(
        &self,
        view: &View,
        partition: &Partition,
        number: u64,
    ) -> Result<Option<Vec<u8>>> {
        let Some(spaces) = &self.postings else { return Ok(None) };
        view.get(&spaces.numbers, &card_number(partition, number))
    }

    /// The number of an entry's card in its tenant's index.
    pub(in super::super) fn number_of_entry(&self, view: &View, key: &[u8]) -> Result<Option<u64>> {
        let Some(bytes) = view.get(&self.words, key)? else { return Ok(None) };
        let card = CardRead::parse(&bytes).map_err(|error| damaged(&error))?;
        Ok(card.number.and_then(|number| number_of_key(&number)))
    }

    fn read_part(
        &self,
        view: &View,
        partition: &Partition,
        part: &PartInfo,
        asked: &QuestionTerms,
        removed: &[u64],
        now_ms: i64,
    ) -> Result<AskedPart> {
        let spaces =
            self.postings.as_ref().ok_or_else(|| Error::bug("a memory without an index has a part"))?;
        let cached = lock(&self.index_cache.0).tables.get(&(*partition, part.id)).cloned();
        let table = match cached {
            Some(table) => table,
            None => {
                let table = read_table(&mut |key| view.get(&spaces.postings, key), partition, part)?;
                let table = Arc::new(table);
                let mut cache = lock(&self.index_cache.0);
                if cache.tables.len() >= TABLES_MAX {
                    cache.tables.clear();
                }
                cache.tables.insert((*partition, part.id), table.clone());
                table
            }
        };
        let living = table.living(removed, now_ms);
        let get = &mut |key: &[u8]| view.get(&spaces.postings, key);
        let lists = read_lists(get, partition, part, asked, living.clone())?;
        Ok(AskedPart { table, living, lists })
    }

    /// Numbers, keys and cards of the tail.
    fn read_tail(&self, view: &View, partition: &Partition, from: u64) -> Result<Vec<TailEntry>> {
        let spaces =
            self.postings.as_ref().ok_or_else(|| Error::bug("a memory without an index has a tail"))?;
        let mut tail = Vec::new();
        for found in view.scan(&spaces.numbers, tail_range(partition, from)) {
            let (number, key) = found?;
            let number =
                number_of_key(&number).ok_or_else(|| Error::bug("a number of a memory is too short"))?;
            let cached = lock(&self.index_cache.0).cards.get(&(*partition, number)).cloned();
            let card = match cached {
                Some(card) => card,
                None => {
                    let Some(bytes) = view.get(&self.words, &key)? else { continue };
                    if !has_number(&bytes, partition, number) {
                        continue;
                    }
                    let card = Arc::new(bytes);
                    let mut cache = lock(&self.index_cache.0);
                    if cache.cards.len() >= CARDS_MAX {
                        cache.cards.clear();
                    }
                    cache.cards.insert((*partition, number), card.clone());
                    card
                }
            };
            tail.push((number, key, card));
        }
        Ok(tail)
    }
}
