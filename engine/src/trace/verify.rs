//! Verifies whole runs, on as many threads as the caller asks for.
//!
//! A run is cut into ranges of frames. Each range begins with the link recorded for the frame before it. The
//! range before must end with exactly that link, so that the chain is walked without a gap.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Link;
use crate::trace::chain;
use crate::trace::reader::RunReader;
use crate::trace::scan::{BodyOutput, FrameScan};
use annals_store::kv::bodies::HashCheck;
use annals_store::kv::parallel::{self, ParallelJob};

/// Minimum number of frames in a range; a smaller one is not worth a thread.
const RANGE_FRAMES_MIN: u32 = 32;

/// Number of ranges per thread. Later frames cost more than earlier ones, so a thread that is done takes
/// another range.
pub(crate) fn ranges_per_thread(threads: usize) -> usize {
    if threads > 1 { 2 } else { 1 }
}

/// Counts of what a verification checked.
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
    /// Checks every frame, and the fingerprint if the run has ended.
    ///
    /// # Errors
    /// `Damaged` at the first frame that differs from what was recorded.
    pub fn verify(&self) -> Result<VerifyCounts> {
        self.verify_with_threads(1)
    }

    /// As [`RunReader::verify`], on this many threads, including the caller's; 0 means 1. Reports the same
    /// first damage.
    ///
    /// # Errors
    /// As [`RunReader::verify`].
    pub fn verify_with_threads(&self, threads: usize) -> Result<VerifyCounts> {
        let jobs = self.verify_jobs(threads.saturating_mul(ranges_per_thread(threads)));
        let ranges = parallel::run_all(&*self.core.io, threads, jobs)?;
        self.join_ranges(ranges)
    }

    /// Returns at most `count` jobs, one for each range of the run. Their results go to
    /// [`RunReader::join_ranges`], in this order.
    pub(crate) fn verify_jobs(&self, count: usize) -> Vec<ParallelJob<Result<VerifiedRange>>> {
        let frames = self.info.frames;
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(frames / RANGE_FRAMES_MIN).max(1);
        // Cuts frames 1 ..= last into ranges whose lengths differ by at most one frame.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a range is at most `count`, so its end at most `frames`"
        )]
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

    /// Adds up the results of a run's ranges. Returns the error of the first damaged range in the order of
    /// frames.
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
                    format!("is damaged: frame {} does not follow from the frames before it", all.frames + 1);
                return Err(damaged(&what));
            }
            link = ends;
            all.frames += verified.frames;
            all.blobs += verified.blobs;
            all.bytes += verified.bytes;
        }
        if self.info.fingerprint.is_some_and(|fingerprint| fingerprint != link) {
            return Err(damaged("is damaged: its frames do not add up to its fingerprint"));
        }
        self.metadata()?;
        Ok(all)
    }
}
