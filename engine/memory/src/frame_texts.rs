//! The index of the texts of recorded frames: which frames hold the words of a question.
//!
//! A frame's texts are an entry of a memory of its own (the keyspace `annals.search` and those beside it), so that
//! cards, postings, ranking and rebuilding are those of agents' memory. The entry holds no text: the frame has it.
//! An entry is a belonging of its run, so it goes with the run in one commit. Conversations are runs, by their numbers
//! counted down, so that of equal scores the newest run comes first.
//!
//! The index follows from the frames. What indexes them (`annals_review::search`) keeps its place here:
//! - Runs up to the *low mark* were indexed, apart from those that wait.
//! - A run *waits* while frames may follow, or while its shared frames are indexed with another run.
//! - *Gaps* are frames that could not be read, or of which only a part is in the index.

use std::collections::BTreeMap;

use annals::runs::RunBelonging;
use annals::{Durability, RunUid};
use serde::{Deserialize, Serialize};

use super::operations::{CheckedEntry, entry_key, to_json_bytes};
use super::words::{Card, CardRead, QuestionTerms, TermRarity};
use super::*;

const NAME: &str = "annals.search";
/// The key of the low mark among the runs that wait, which have keys of eight bytes.
const LOW_MARK: &[u8] = b"low";
/// Keys that [`FrameTexts::clear`] deletes in one commit.
const KEYS_AT_ONCE: usize = 4096;

/// The index of a namespace's frames.
#[derive(Debug, Clone)]
pub struct FrameTexts {
    memory: Memory,
    waiting: Keyspace,
    gaps: Keyspace,
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

impl FrameTexts {
    /// The index of this namespace; `None` in a store that is open for reading and has none.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Option<Self>> {
        let open = || -> Result<Self> {
            let keyspace = |end: &str| space.keyspace(&format!("{NAME}{end}"), History::Latest);
            let memory = Memory::open_named(space, NAME)?;
            Ok(Self { memory, waiting: keyspace(".waiting")?, gaps: keyspace(".gaps")? })
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
        let kept = self.waiting.get(LOW_MARK)?;
        Ok(kept.and_then(|bytes| bytes.try_into().ok()).map(|bytes| RunUid(u64::from_be_bytes(bytes))))
    }

    /// Moves the low mark.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn set_low_mark(&self, run: RunUid) -> Result<()> {
        let mut batch = self.memory.space.batch();
        batch.put(&self.waiting, LOW_MARK, run.0.to_be_bytes().to_vec());
        commit(batch)
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

    /// Indexes frames of a run, all of them or none, in place of what was indexed of them, and notes how far the run is
    /// indexed: `None` if it need not be looked at again. The index can be made again, so it is not synced.
    ///
    /// # Errors
    /// `Gone`, `NotFound` if the run was dropped; `Unavailable`, `Poisoned`.
    pub fn add(
        &self,
        run: RunUid,
        frames: &[FrameText],
        mark: Option<RunMark>,
        gaps: FrameGaps,
    ) -> Result<()> {
        let name = identity(run).checked_name()?;
        let (mut entries, mut cards) = (Vec::new(), Vec::new());
        for frame in frames.iter().filter(|frame| frame.texts.iter().any(|text| !text.is_empty())) {
            let id = frame.seq.to_string();
            cards.push(card_of(&id, &frame.texts)?);
            entries.push((entry_key(&name, &id), MemoryEntry::parse(&entry_json(&id, "null"))?));
        }
        let run_key = run.0.to_be_bytes();
        let (words, waiting_name, gaps_name) =
            (format!("{NAME}{WORD_CARDS}"), format!("{NAME}.waiting"), format!("{NAME}.gaps"));
        let passing =
            |keyspace, key, is_numbered| RunBelonging { keyspace, key, is_lasting: false, is_numbered };
        let has_gaps = gaps != FrameGaps::default();
        let mut belongings = Vec::new();
        belongings.extend(mark.map(|_| passing(&*waiting_name, &run_key[..], false)));
        belongings.extend(has_gaps.then(|| passing(&*gaps_name, &run_key[..], false)));
        for (key, ..) in &entries {
            belongings.extend([passing(NAME, key, false), passing(&words, key, true)]);
        }
        let memory = &self.memory;
        if belongings.is_empty() {
            let mut batch = memory.space.batch();
            batch.delete(&self.waiting, &run_key).delete(&self.gaps, &run_key);
            return commit(batch);
        }
        // Before the lock that keeps runs from being dropped: locks have an order.
        let mut changing = memory.lock_changes()?;
        memory.space.write_with_run(run, &belongings, || {
            changing.holds_drops = true;
            let mut batch = memory.space.batch();
            for ((key, entry), card) in entries.iter().zip(cards) {
                memory.add_to_batch(&mut changing, &mut batch, key, (entry, entry.to_json()), card)?;
            }
            match mark {
                Some(mark) => batch.put(&self.waiting, &run_key, to_json_bytes(&mark)?),
                None => batch.delete(&self.waiting, &run_key),
            };
            match has_gaps {
                true => batch.put(&self.gaps, &run_key, to_json_bytes(&gaps)?),
                false => batch.delete(&self.gaps, &run_key),
            };
            commit(batch)
        })?;
        drop(changing);
        // The entries are stored. If the postings cannot be kept now, the next write tries again.
        let _later = memory.tend_index(identity(run).tenant_prefix().as_bytes());
        Ok(())
    }

    /// Finds at most `k` frames that hold what a question asks for, the best first. Of equal scores the newest run is
    /// first. A question without words finds nothing.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn find(&self, question: &str, k: usize) -> Result<Vec<FrameTextHit>> {
        let wanted = MemoryQuery { k, across_conversations: true, ..MemoryQuery::default() };
        let hits = self.memory.recall_words(&Identity::default(), question, &wanted)?;
        let read = |hit: &MemoryHit| {
            let run = hit.identity.rsplit('/').next().and_then(|name| u64::from_str_radix(name, 16).ok())?;
            Some(FrameTextHit { run: RunUid(!run), seq: hit.entry.id.parse().ok()?, score: hit.score })
        };
        Ok(hits.iter().filter_map(read).collect())
    }

    /// Empties the index, so that it is made again. Durable: a crash does not bring the old index back.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn clear(&self) -> Result<()> {
        let memory = &self.memory;
        memory.discard_index(&Identity::default().tenant_prefix())?;
        let postings = memory.postings.iter();
        let postings = postings.flat_map(|all| [&all.numbers, &all.removed, &all.postings, &all.parts]);
        // The low mark goes first: after a crash the runs are indexed again.
        for keyspace in
            [&self.waiting, &self.gaps, &memory.entries, &memory.words].into_iter().chain(postings)
        {
            loop {
                let keys = keyspace.scan(ScanRange::all()).keys().take(KEYS_AT_ONCE);
                let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
                if keys.is_empty() {
                    break;
                }
                let mut batch = memory.space.batch();
                for key in &keys {
                    batch.delete(keyspace, key);
                }
                batch.submit_with(Durability::Disk)?.wait()?;
            }
        }
        Ok(())
    }
}

/// The share of a question that texts hold, from 0 to 1, if all its words weigh the same; `None` if they do not answer
/// it. Nothing but the texts decides.
///
/// # Errors
/// `Invalid` for texts with too many values.
pub fn text_share(question: &str, texts: &[String]) -> Result<Option<f32>> {
    let asked = QuestionTerms::parse(question);
    let Some(card) = card_of("0", texts)?.filter(|_| !asked.is_empty()) else { return Ok(None) };
    let bytes = card.bytes();
    let card = CardRead::parse(&bytes).map_err(|error| Error::bug(error.to_string()))?;
    let rarity = TermRarity::new(&asked);
    Ok(rarity.score(&asked, &card).filter(|_| rarity.answers(&asked, &card)))
}

fn commit(batch: KvBatch) -> Result<()> {
    batch.submit_with(Durability::Process)?.wait().map(drop)
}

fn run_of_key(key: &[u8]) -> Option<RunUid> {
    key.try_into().ok().map(|bytes| RunUid(u64::from_be_bytes(bytes)))
}

fn identity(run: RunUid) -> Identity {
    Identity { conversation: Some(format!("{:016x}", !run.0)), ..Identity::default() }
}

fn entry_json(id: &str, value: &str) -> String {
    format!("{{\"id\":\"{id}\",\"value\":{value},\"embeddingModel\":\"{}\"}}", WordEmbedder::ID)
}

fn card_of(id: &str, texts: &[String]) -> Result<Option<Card>> {
    let texts = serde_json::to_string(texts).map_err(|error| Error::bug(error.to_string()))?;
    Ok(CheckedEntry::parse(&entry_json(id, &texts))?.card)
}
