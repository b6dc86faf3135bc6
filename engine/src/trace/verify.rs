//! Checking whole runs, on as many threads as the caller says.
//!
//! A run is cut into ranges of frames. Each begins with the link that is recorded for the frame before it, and the
//! range before must arrive at just that link, so that the chain is walked without a gap.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Link;
use crate::kv::bodies::HashCheck;
use crate::kv::parallel::{self, ParallelJob};
use crate::trace::chain;
use crate::trace::reader::RunReader;
use crate::trace::scan::{BodyOutput, FrameScan};

/// A range is worth a thread from so many frames on.
const RANGE_FRAMES_MIN: u32 = 32;

/// Ranges for each thread: later frames cost more than earlier ones, so whoever is done takes another.
pub(crate) fn ranges_per_thread(threads: usize) -> usize {
    if threads > 1 { 2 } else { 1 }
}

/// What a verification read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyCounts {
    /// Frames whose bytes and links were checked.
    pub frames: u64,
    /// Bodies whose bytes were checked against their ids.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A range of frames that was checked.
#[derive(Debug)]
pub(crate) struct VerifiedRange {
    begins: Link,
    ends: Link,
    verified: VerifyCounts,
}

impl RunReader {
    /// Reads every frame, and checks the run's fingerprint where it has ended.
    ///
    /// # Errors
    /// `Damaged` at the first frame that is not what was recorded.
    pub fn verify(&self) -> Result<VerifyCounts> {
        self.verify_with_threads(1)
    }

    /// The same on this many threads, the caller's being one of them; 0 is 1. Finds the same first damage.
    ///
    /// # Errors
    /// As [`RunReader::verify`].
    pub fn verify_with_threads(&self, threads: usize) -> Result<VerifyCounts> {
        let jobs = self.verify_jobs(threads.saturating_mul(ranges_per_thread(threads)));
        let ranges = parallel::run_all(&*self.core.io, threads, jobs)?;
        self.join_ranges(ranges)
    }

    /// Checks of at most `count` ranges that make up the run, to be given to [`RunReader::joined`] in this order.
    pub(crate) fn verify_jobs(&self, count: usize) -> Vec<ParallelJob<Result<VerifiedRange>>> {
        let frames = self.info.frames;
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(frames / RANGE_FRAMES_MIN).max(1);
        // Frame 1 ..= last, in parts that differ by one frame at most.
        let end = |range: u32| (u64::from(frames) * u64::from(range) / u64::from(count)) as u32;
        let reader = Self { hashing: HashCheck::Compared, ..self.clone() };
        (0..count)
            .map(|range| {
                let (reader, first, last) = (reader.clone(), end(range) + 1, end(range + 1));
                Box::new(move || reader.verify_range(first, last)) as ParallelJob<_>
            })
            .collect()
    }

    fn verify_range(&self, first: u32, last: u32) -> Result<VerifiedRange> {
        let mut scan = FrameScan::new(self, first, last)?;
        let begins = scan.link();
        let mut verified = VerifyCounts::default();
        while let Some(scanned) = scan.next(BodyOutput::CheckedOnly) {
            let scanned = scanned?;
            verified.frames += 1;
            verified.blobs += 2 + u64::from(!scanned.frame.metadata.is_empty());
            verified.bytes += scanned.bytes;
        }
        Ok(VerifiedRange { begins, ends: scan.link(), verified })
    }

    /// What the checks of a run's ranges come to. The first error by frames is the one that is met.
    pub(crate) fn join_ranges(
        &self,
        ranges: impl IntoIterator<Item = Result<VerifiedRange>>,
    ) -> Result<VerifyCounts> {
        let damaged = |what: &str| Error::new(ErrorKind::Damaged, format!("run {:?} {what}", self.info.name));
        let mut link = chain::genesis();
        let mut all = VerifyCounts::default();
        for range in ranges {
            let VerifiedRange { begins, ends, verified } = range?;
            if begins != link {
                let what =
                    format!("has a frame {} that does not follow from the frames before it", all.frames + 1);
                return Err(damaged(&what));
            }
            link = ends;
            all.frames += verified.frames;
            all.blobs += verified.blobs;
            all.bytes += verified.bytes;
        }
        if self.info.fingerprint.is_some_and(|fingerprint| fingerprint != link) {
            return Err(damaged("does not add up to its fingerprint"));
        }
        self.metadata()?;
        Ok(all)
    }
}
