//! Indexes the frames that were recorded since the index was made.

use annals::runs::{BLAME_TAG, RunFilter, RunOrder};
use annals::{ErrorKind, Namespace, RunReader, RunUid, Status};
use annals_memory::{FrameGaps, FrameText, FrameTextBatch, FrameTexts, RunMark};

use super::texts::{SeenTexts, new_texts};

/// Recorded bytes that one call reads; the frame that reaches this is the last.
const BYTES_MAX: u64 = 48 << 20;
/// Runs of which one call reads the records.
const RUNS_MAX: usize = 2000;
/// Frames and bytes of texts that are added to the batch at once.
const FRAMES_AT_ONCE: usize = 64;
const TEXT_BYTES_AT_ONCE: usize = 1 << 20;

/// How far the index is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CatchUp {
    /// All frames that had ended when the call began are indexed. Otherwise another call goes on.
    pub is_whole: bool,
    /// Number of frames that the call indexed.
    pub frames: u64,
}

/// Indexes what was recorded since the last call, oldest runs first, and returns after about 48 MiB of frames or 2,000
/// runs. Callers take turns: two at a time would do the same work twice.
///
/// # Errors
/// `Unavailable`, `Poisoned`; `Damaged` for a run whose record cannot be read. Damaged frames are noted as gaps.
pub fn catch_up(space: &Namespace, index: &FrameTexts) -> annals::Result<CatchUp> {
    index.tend()?;
    let batch = FrameTextBatch::default();
    let mut work = Work { space, index, batch, bytes: 0, done: CatchUp::default() };
    let added = work.add_runs();
    // Also after an error: what stands before it is indexed.
    index.commit(work.batch)?;
    work.done.is_whole = added?;
    Ok(work.done)
}

/// Whether all frames that have ended are indexed, for a reader that cannot index them. False also if it cannot tell:
/// frames that ended after one that is still open may be indexed or not.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub fn is_caught_up(space: &Namespace, index: &FrameTexts) -> annals::Result<bool> {
    for (run, mark) in index.waiting()? {
        let reader = match space.run_by_uid(run) {
            Err(error) if is_gone(&error) => continue,
            found => found?,
        };
        // An open frame has no texts yet.
        let is_open = |seq| reader.frame_info(seq).is_ok_and(|about| about.incomplete);
        let parent = mark.parent.map(|parent| lives(space, RunUid(parent))).transpose()?;
        if parent == Some(false) || (mark.next..=reader.info().frames).any(|seq| !is_open(seq)) {
            return Ok(false);
        }
    }
    let mut after = index.low_mark()?;
    loop {
        let page = space.page_runs(&RunFilter::default(), RunOrder::OldestFirst, after, 1)?;
        match page.next {
            _ if !page.runs.is_empty() => return Ok(false),
            Some(next) => after = Some(next),
            None => return Ok(true),
        }
    }
}

struct Work<'a> {
    space: &'a Namespace,
    index: &'a FrameTexts,
    batch: FrameTextBatch,
    bytes: u64,
    done: CatchUp,
}

impl Work<'_> {
    /// Adds what was recorded since the last call. Returns whether that is all.
    fn add_runs(&mut self) -> annals::Result<bool> {
        for (run, mark) in self.index.waiting()? {
            if self.bytes >= BYTES_MAX {
                return Ok(false);
            }
            self.look_again(run, mark)?;
        }
        let (mut after, mut looked) = (self.index.low_mark()?, 0);
        loop {
            let page = self.space.page_runs(&RunFilter::default(), RunOrder::OldestFirst, after, 256)?;
            for run in &page.runs {
                if self.bytes >= BYTES_MAX || looked >= RUNS_MAX {
                    return Ok(false);
                }
                looked += 1;
                if !is_blame_fork(run) {
                    self.index_run(run, RunMark { next: 1, parent: None })?;
                }
                self.batch.set_low_mark(run.info().uid);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(self.bytes < BYTES_MAX),
            }
        }
    }

    /// Goes on with a run that was not over, or whose parent had its shared frames.
    fn look_again(&mut self, uid: RunUid, mark: RunMark) -> annals::Result<()> {
        let reader = match self.space.run_by_uid(uid) {
            Err(error) if is_gone(&error) => return Ok(()),
            found => found?,
        };
        // An earlier version began to index it.
        if is_blame_fork(&reader) {
            return Ok(());
        }
        let lost_parent = match mark.parent {
            Some(parent) => !lives(self.space, RunUid(parent))?,
            None => false,
        };
        match lost_parent {
            true => self.index_run(&reader, RunMark { next: 1, parent: None }),
            false if reader.info().frames >= mark.next || is_over(&reader) && mark.parent.is_none() => {
                self.index_run(&reader, mark)
            }
            false => Ok(()),
        }
    }

    /// Indexes a run from the frame of its mark on. A fork of a living run begins after the shared frames, which are
    /// found in that run.
    fn index_run(&mut self, reader: &RunReader, mark: RunMark) -> annals::Result<()> {
        let info = reader.info();
        let (mut next, mut parent) = (mark.next, mark.parent);
        if let Some(fork) = info.parent.as_ref()
            && parent.is_none()
            && is_searched(self.space, fork.uid)?
        {
            (next, parent) = (next.max(fork.shared + 1), Some(fork.uid.0));
        }
        // The bytes were verified when they were stored, and they are only read here, not served.
        let bodies = reader.unverified();
        let (mut seen, mut gaps) = (SeenTexts::default(), FrameGaps::default());
        if mark.next > 1 {
            gaps = self.index.gaps()?.get(&info.uid).copied().unwrap_or_default();
            // What the frame before repeats is indexed already.
            if let Ok(frame) = bodies.frame(mark.next - 1) {
                new_texts(&frame, &mut seen);
            }
        }
        let (mut some, mut bytes, mut first_open) = (Vec::<FrameText>::new(), 0, None);
        let is_open = !is_over(reader);
        for seq in next..=info.frames {
            match bodies.frame_info(seq).and_then(|about| Ok((about, bodies.frame(seq)?))) {
                Ok((about, _)) if about.incomplete && info.status == Status::Open => {
                    first_open = first_open.or(Some(seq));
                    continue;
                }
                Ok((_, frame)) => {
                    self.bytes += (frame.input.len() + frame.output.len()) as u64;
                    let (texts, is_cut) = new_texts(&frame, &mut seen);
                    gaps.cut += u32::from(is_cut);
                    bytes += texts.texts.iter().map(String::len).sum::<usize>();
                    some.push(texts);
                }
                Err(error) if error.kind() == ErrorKind::Damaged => gaps.unread += 1,
                // The run was dropped meanwhile, and its part of the index with it.
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            let is_paused = self.bytes >= BYTES_MAX && seq < info.frames;
            if some.len() >= FRAMES_AT_ONCE || bytes >= TEXT_BYTES_AT_ONCE || is_paused {
                let mark = RunMark { next: first_open.unwrap_or(seq + 1), parent };
                self.add(info.uid, &mut some, Some(mark), gaps)?;
                bytes = 0;
                if is_paused {
                    return Ok(());
                }
            }
        }
        let mark = RunMark { next: first_open.unwrap_or(info.frames + 1), parent };
        let waits = is_open || parent.is_some();
        self.add(info.uid, &mut some, waits.then_some(mark), gaps)
    }

    fn add(
        &mut self,
        uid: RunUid,
        some: &mut Vec<FrameText>,
        mark: Option<RunMark>,
        gaps: FrameGaps,
    ) -> annals::Result<()> {
        let frames = std::mem::take(some);
        self.done.frames += frames.len() as u64;
        self.batch.add(uid, &frames, mark, gaps)?;
        match self.batch.is_full() {
            true => self.index.commit(std::mem::take(&mut self.batch)),
            false => Ok(()),
        }
    }
}

/// Whether the run lives and is one that is searched.
fn is_searched(space: &Namespace, uid: RunUid) -> annals::Result<bool> {
    match space.run_by_uid(uid) {
        Ok(run) => Ok(!is_blame_fork(&run)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a blame made the run. It is not searched: a blame makes many of each run, which say almost the same.
pub(super) fn is_blame_fork(run: &RunReader) -> bool {
    run.info().tags.iter().any(|(key, _)| key == BLAME_TAG)
}

fn lives(space: &Namespace, uid: RunUid) -> annals::Result<bool> {
    match space.run_by_uid(uid) {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether no frame can follow. An abandoned run may be resumed.
fn is_over(reader: &RunReader) -> bool {
    matches!(reader.info().status, Status::Ok | Status::Failed)
}

fn is_gone(error: &annals::Error) -> bool {
    matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound)
}
