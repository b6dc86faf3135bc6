//! The index of the texts of recorded frames: which frames hold the words of a question.
//!
//! It consists of *parts* (`super::postings`): postings of words, n-grams and identifiers, and a table of frames. It holds no
//! text: the frame has it. Frames are gathered in a [`FrameTextBatch`], which becomes a part and is merged with smaller ones,
//! so that a frame takes its postings and a row of two bytes, and no key of its own.
//!
//! The index follows from the frames. What indexes them (`annals_review::search`) keeps its place here:
//! - Runs up to the *low mark* were indexed, apart from those that wait.
//! - A run *waits* while frames may follow, or while its shared frames are indexed with another run.
//! - *Gaps* are frames that could not be read, or of which only a part is in the index.
//!
//! Invariants:
//! - A batch is one commit: parts, marks and gaps change together. If the process ends before it, frames are read again.
//! - Each run in the index has a key that belongs to it. The commit that drops the run notes the run as removed, so that its
//!   rows are dead at once. [`FrameTexts::tend`] takes them out of the parts.

mod batch;
mod tend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use annals::RunUid;
use annals_store::codec::{ByteReader, CodecError, put_signed};
use annals_store::kv::View;
use serde::{Deserialize, Serialize};

use super::operations::CheckedEntry;
use super::postings::{Bitmap, PartInfo, PartList, PartPlace, PartRow, damaged, read_lists, read_rows};
use super::run_recall::card_share;
use super::words::{BulkScores, Card, QuestionTerms, TermRarity};
use super::*;

pub use batch::FrameTextBatch;

/// Names of keyspaces: what waits, and gaps; the runs in the index, those of them that were removed, and the parts.
const WAITING: &str = "annals.search.waiting";
const GAPS: &str = "annals.search.gaps";
const RUNS: &str = "annals.search.runs";
const REMOVED: &str = "annals.search.runs.removed";
const PARTS: &str = "annals.search.parts";
/// The key of the low mark among the runs that wait, which have keys of eight bytes.
const LOW_MARK: &[u8] = b"low";
/// The beginning of the keys of parts, and the key of their list.
const PARTITION: [u8; 16] = [0; 16];
/// The key of [`REMOVED`]: this, and the run's uid.
const REMOVED_FRONT: usize = 16;

/// The index of a namespace's frames.
#[derive(Debug, Clone)]
pub struct FrameTexts {
    space: Namespace,
    waiting: Keyspace,
    gaps: Keyspace,
    runs: Keyspace,
    removed: Keyspace,
    parts: Keyspace,
}

/// The texts of a frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrameText {
    /// The frame's number.
    pub seq: u32,
    /// Its texts, in order.
    pub texts: Vec<String>,
}

/// How far a run is indexed, if it has to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMark {
    /// The first frame that has to be read next time.
    pub next: u32,
    /// The run whose frames it shares, if they are indexed with that run only.
    pub parent: Option<u64>,
}

/// Frames of a run that the index does not cover, or only in part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameGaps {
    /// Number of frames that could not be read.
    pub unread: u32,
    /// Number of frames with texts that were cut.
    pub cut: u32,
}

/// A frame that holds words of a question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrameTextHit {
    /// The run.
    pub run: RunUid,
    /// The frame's number.
    pub seq: u32,
    /// The share of the question that the frame holds, from 0 to 1, as [`MemoryHit::score`].
    pub score: f32,
}

/// A frame in the table of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FrameRow {
    run: u64,
    seq: u32,
}

impl PartRow for FrameRow {
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let before = before.copied().unwrap_or(Self { run: 0, seq: 0 });
        let run = self.run.wrapping_sub(before.run);
        let seq = if run == 0 { before.seq } else { 0 };
        put_signed(out, run.cast_signed());
        put_signed(out, i64::from(self.seq) - i64::from(seq));
    }

    fn read(before: Option<&Self>, reader: &mut ByteReader<'_>) -> std::result::Result<Self, CodecError> {
        let before = before.copied().unwrap_or(Self { run: 0, seq: 0 });
        let run = reader.signed()?.cast_unsigned();
        let seq = i64::from(if run == 0 { before.seq } else { 0 }).checked_add(reader.signed()?);
        let seq = seq.and_then(|seq| u32::try_from(seq).ok());
        let seq =
            seq.ok_or_else(|| CodecError::Header("the table of frames has no such frame".to_owned()))?;
        Ok(Self { run: before.run.wrapping_add(run), seq })
    }
}

impl FrameTexts {
    /// The index of this namespace; `None` in a store that is open for reading and has none.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Option<Self>> {
        let open = || -> Result<Self> {
            let keyspace = |name| space.keyspace(name, History::Latest);
            Ok(Self {
                space: space.clone(),
                waiting: keyspace(WAITING)?,
                gaps: keyspace(GAPS)?,
                runs: keyspace(RUNS)?,
                removed: keyspace(REMOVED)?,
                parts: keyspace(PARTS)?,
            })
        };
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The highest number of a run that was looked at; `None` if there is none.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn low_mark(&self) -> Result<Option<RunUid>> {
        if self.list()?.is_none() {
            // An index in the form of before, or none.
            return Ok(None);
        }
        let kept = self.waiting.get(LOW_MARK)?;
        Ok(kept.and_then(|bytes| bytes.try_into().ok()).map(|bytes| RunUid(u64::from_be_bytes(bytes))))
    }

    /// The runs that have to be looked at again.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn waiting(&self) -> Result<BTreeMap<RunUid, RunMark>> {
        let mut waiting = BTreeMap::new();
        for found in self.waiting.scan(ScanRange::all()) {
            let (key, value) = found?;
            // A mark that cannot be read: the run is indexed again.
            let mark = serde_json::from_slice(&value).unwrap_or(RunMark { next: 1, parent: None });
            waiting.extend(run_of_key(&key).map(|run| (run, mark)));
        }
        Ok(waiting)
    }

    /// The runs that the index covers in part.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn gaps(&self) -> Result<BTreeMap<RunUid, FrameGaps>> {
        let mut gaps = BTreeMap::new();
        for found in self.gaps.scan(ScanRange::all()) {
            let (key, value) = found?;
            let of_run = serde_json::from_slice(&value).unwrap_or(FrameGaps { unread: 1, cut: 0 });
            gaps.extend(run_of_key(&key).map(|run| (run, of_run)));
        }
        Ok(gaps)
    }

    /// Finds at most `k` frames that hold what a question asks for, the best first. Of equal scores the newest run is
    /// first. A question without words finds nothing.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn find(&self, question: &str, k: usize) -> Result<Vec<FrameTextHit>> {
        let asked = QuestionTerms::parse(question);
        let view = View::new(self.parts.core());
        let Some(list) = view.get(&self.parts, &PARTITION)?.filter(|_| !asked.is_empty()) else {
            return Ok(Vec::new());
        };
        let list = PartList::parse(&list).map_err(|error| damaged(&error))?;
        let removed = removed_runs(view.scan(&self.removed, ScanRange::all()).keys())?;
        let mut rarity = TermRarity::new(&asked);
        let mut parts = Vec::new();
        for part in &list.parts {
            let get = &mut |key: &[u8]| view.get(&self.parts, key);
            let rows: Vec<FrameRow> = read_rows(get, &PARTITION, part)?;
            let mut living = Bitmap::full(rows.len());
            let mut dead = Bitmap::empty(rows.len());
            let is_dead = |row: &FrameRow| removed.contains(&row.run);
            rows.iter().enumerate().filter(|(_, row)| is_dead(row)).for_each(|(at, _)| dead.insert(at));
            living.remove_all(&dead);
            let lists = read_lists(get, &PARTITION, part, &asked, living.clone())?;
            rarity.count_part(&lists);
            parts.push((rows, living, lists));
        }
        let mut found = Vec::new();
        for (rows, among, lists) in &parts {
            rarity.score_part(
                &asked,
                lists,
                &BulkScores { among, min_score: None },
                &mut |ordinal, score| {
                    found.extend(rows.get(ordinal).map(|row| (score, *row)));
                },
            );
        }
        found.sort_unstable_by(|(a, one), (b, other)| {
            b.total_cmp(a).then(other.run.cmp(&one.run)).then(one.seq.cmp(&other.seq))
        });
        // Frames that were read again may stand in two parts.
        let mut seen = BTreeSet::new();
        let once = found.iter().filter(|(_, row)| seen.insert(*row));
        let hit = |(score, row): &(f32, FrameRow)| FrameTextHit {
            run: RunUid(row.run),
            seq: row.seq,
            score: *score,
        };
        Ok(once.take(k).map(hit).collect())
    }

    /// The list of the parts; `None` if there is no index, or one in the form of before.
    fn list(&self) -> Result<Option<PartList>> {
        let bytes = self.parts.get(&PARTITION)?;
        bytes.map(|bytes| PartList::parse(&bytes).map_err(|error| damaged(&error))).transpose()
    }

    fn place(&self) -> PartPlace<'_> {
        (&self.space, &self.parts, &PARTITION)
    }

    /// The frames of a part, by their ordinals.
    fn rows(&self, part: &PartInfo) -> Result<Vec<FrameRow>> {
        read_rows(&mut |key| self.parts.get(key), &PARTITION, part)
    }

    /// The runs in the index that were dropped or replaced.
    fn removed(&self) -> Result<BTreeSet<u64>> {
        removed_runs(self.removed.scan(ScanRange::all()).keys())
    }
}

/// The share of a question that texts hold, from 0 to 1, if all its words weigh the same; `None` if they do not answer
/// it. Nothing but the texts decides.
///
/// # Errors
/// `Invalid` for texts with too many values.
pub fn text_share(question: &str, texts: &[String]) -> Result<Option<f32>> {
    let asked = QuestionTerms::parse(question);
    match card_of(texts)? {
        Some(card) => card_share(&asked, &card),
        None => Ok(None),
    }
}

/// The value of the key that belongs to a run: it ends with the key of [`REMOVED`], which the commit that drops the run sets.
fn removed_key(run: u64) -> Vec<u8> {
    [&[0; REMOVED_FRONT][..], &run.to_be_bytes()].concat()
}

fn removed_runs(keys: impl Iterator<Item = Result<Vec<u8>>>) -> Result<BTreeSet<u64>> {
    let run =
        |key: Vec<u8>| key.get(REMOVED_FRONT..).and_then(|uid| uid.try_into().ok()).map(u64::from_be_bytes);
    keys.filter_map(|key| key.map(run).transpose()).collect()
}

fn run_of_key(key: &[u8]) -> Option<RunUid> {
    key.try_into().ok().map(|bytes| RunUid(u64::from_be_bytes(bytes)))
}

/// The card of texts, as an entry of memory with them has it.
fn card_of(texts: &[String]) -> Result<Option<Card>> {
    let texts = serde_json::to_string(texts).map_err(|error| Error::bug(error.to_string()))?;
    let entry = format!("{{\"id\":\"0\",\"value\":{texts},\"embeddingModel\":\"{}\"}}", WordEmbedder::ID);
    Ok(CheckedEntry::parse(&entry)?.card)
}
