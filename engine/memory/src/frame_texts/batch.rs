//! Adds the texts of frames to the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use annals::runs::RunBelonging;
use annals::{Error, ErrorKind, Result, RunUid};

use super::super::operations::to_json_bytes;
use super::super::postings::{
    ENTRIES_MAX, NewPart, PartInfo, PartList, Term, commit_index, damaged, delete_parts, for_each_term,
    merged_from, write_part,
};
use super::super::words::CardRead;
use super::{
    FrameGaps, FrameRow, FrameText, FrameTexts, LOW_MARK, PARTITION, RUNS, RunMark, card_of, removed_key,
};

/// A batch is full with this many frames or terms: about 60 MB of memory while it is written.
const FRAMES_FULL: usize = ENTRIES_MAX * 2 / 3;
const TERMS_FULL: usize = 1 << 20;

/// Texts of frames that become one part of the index, with the marks and gaps of their runs.
#[derive(Debug, Default)]
pub struct FrameTextBatch {
    rows: Vec<FrameRow>,
    /// The terms of the frames, with their places in `rows`.
    terms: Vec<(Term, u16)>,
    runs: BTreeMap<RunUid, (Option<RunMark>, FrameGaps)>,
    low_mark: Option<RunUid>,
}

impl FrameTextBatch {
    /// Adds frames of a run, and how far the run is indexed with them: `None` if it need not be looked at again. Frames
    /// without texts are left out.
    ///
    /// # Errors
    /// `Invalid` for texts with too many values, or if the batch was full.
    pub fn add(
        &mut self,
        run: RunUid,
        frames: &[FrameText],
        mark: Option<RunMark>,
        gaps: FrameGaps,
    ) -> Result<()> {
        for frame in frames.iter().filter(|frame| frame.texts.iter().any(|text| !text.is_empty())) {
            let Some(card) = card_of(&frame.texts)? else { continue };
            if self.rows.len() >= ENTRIES_MAX {
                return Err(Error::invalid("the batch of texts is full"));
            }
            let ordinal = u16::try_from(self.rows.len()).unwrap_or(u16::MAX);
            let bytes = card.bytes();
            let card = CardRead::parse(&bytes).map_err(|error| damaged(&error))?;
            for_each_term(&card, &mut |term| self.terms.push((term, ordinal)));
            self.rows.push(FrameRow { run: run.0, seq: frame.seq });
        }
        self.runs.insert(run, (mark, gaps));
        Ok(())
    }

    /// Notes that all runs up to this one were looked at.
    pub fn set_low_mark(&mut self, run: RunUid) {
        self.low_mark = Some(run);
    }

    /// Whether it should be committed before more is added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows.len() >= FRAMES_FULL || self.terms.len() >= TERMS_FULL
    }
}

impl FrameTexts {
    /// Adds a batch to the index, all of it or nothing. Frames of a run that was dropped meanwhile are not found. The index can
    /// be made again, so it is not synced.
    ///
    /// # Errors
    /// `Damaged` if the index cannot be read; `Unavailable`, `Poisoned`.
    pub fn commit(&self, batch: FrameTextBatch) -> Result<()> {
        let FrameTextBatch { rows: fresh_rows, terms, runs, low_mark } = batch;
        let has_list = self.list()?;
        if runs.is_empty() && low_mark.is_none() && has_list.is_some() {
            return Ok(());
        }
        let indexed: BTreeSet<u64> = fresh_rows.iter().map(|row| row.run).collect();
        let mut gone = BTreeSet::new();
        for run in indexed {
            if !self.note_run(run)? {
                gone.insert(run);
            }
        }
        let mut list = has_list.unwrap_or_default();
        let mut old = Vec::new();
        let mut batch = match fresh_rows.is_empty() {
            true => self.space.batch(),
            false => {
                let first = merged_from(&list, fresh_rows.len());
                old = list.parts.split_off(first);
                let removed = self.removed()?;
                self.merge(&mut list, first, &old, &removed, (fresh_rows, terms))?
            }
        };
        batch.put(&self.parts, &PARTITION, list.bytes());
        for (run, (mark, gaps)) in runs {
            let key = run.0.to_be_bytes();
            match mark.filter(|_| !gone.contains(&run.0)) {
                Some(mark) => batch.put(&self.waiting, &key, to_json_bytes(&mark)?),
                None => batch.delete(&self.waiting, &key),
            };
            match gaps == FrameGaps::default() {
                false => batch.put(&self.gaps, &key, to_json_bytes(&gaps)?),
                true => batch.delete(&self.gaps, &key),
            };
        }
        for run in gone {
            batch.put(&self.removed, &removed_key(run), Vec::new());
        }
        if let Some(run) = low_mark {
            batch.put(&self.waiting, LOW_MARK, run.0.to_be_bytes().to_vec());
        }
        commit_index(batch)?;
        delete_parts(self.place(), &old)
    }

    /// Sets the key by which a run that is dropped is noted as removed. False if the run is gone.
    fn note_run(&self, run: u64) -> Result<bool> {
        let key = run.to_be_bytes();
        if self.runs.get(&key)?.is_some() {
            return Ok(true);
        }
        let belonging = RunBelonging { keyspace: RUNS, key: &key, is_lasting: false, is_numbered: true };
        let put = || {
            let mut batch = self.space.batch();
            batch.put(&self.runs, &key, removed_key(run));
            commit_index(batch)
        };
        match self.space.write_with_run(RunUid(run), &[belonging], put) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a part of the living frames of old parts, and of new frames.
    pub(super) fn merge(
        &self,
        list: &mut PartList,
        at: usize,
        old: &[PartInfo],
        removed: &BTreeSet<u64>,
        (fresh_rows, mut fresh): (Vec<FrameRow>, Vec<(Term, u16)>),
    ) -> Result<annals::KvBatch> {
        let read: Vec<Vec<FrameRow>> = old.iter().map(|part| self.rows(part)).collect::<Result<_>>()?;
        // Of a frame that was read again, what was read last stays.
        let mut later: BTreeSet<FrameRow> = fresh_rows.iter().copied().collect();
        let mut lives: Vec<Vec<bool>> = Vec::with_capacity(read.len());
        for rows in read.iter().rev() {
            let is_last =
                rows.iter().map(|row| !removed.contains(&row.run) && !later.contains(row)).collect();
            later.extend(rows);
            lives.push(is_last);
        }
        let (mut rows, mut moved) = (Vec::new(), Vec::new());
        for (read, lives) in read.iter().zip(lives.into_iter().rev()) {
            let mut ordinals = Vec::with_capacity(read.len());
            for (row, lives) in read.iter().zip(lives) {
                ordinals.push(lives.then(|| u16::try_from(rows.len()).unwrap_or(u16::MAX)));
                rows.extend(lives.then_some(*row));
            }
            moved.push(ordinals);
        }
        let before = u16::try_from(rows.len()).unwrap_or(u16::MAX);
        fresh.iter_mut().for_each(|(_, ordinal)| *ordinal += before);
        rows.extend(fresh_rows);
        let fresh_bytes = expected_bytes(&fresh, rows.len());
        let part = NewPart { old, moved: &moved, rows: &rows, fresh: &fresh, fresh_bytes };
        write_part(self.place(), list, at, &part)
    }
}

/// About how many bytes postings take in a part of `count` frames: a term, and a byte for each of its frames or a bit for each
/// frame.
fn expected_bytes(postings: &[(Term, u16)], count: usize) -> usize {
    const TERM_BYTES: usize = 6;
    let mut frames: HashMap<Term, usize> = HashMap::new();
    postings.iter().for_each(|(term, _)| *frames.entry(*term).or_default() += 1);
    frames.values().map(|frames| TERM_BYTES + (*frames).min(count.div_ceil(8))).sum()
}
