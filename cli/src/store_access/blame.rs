//! Blames of runs.

use annals::RunReader;
use annals_server::blame::{
    BLAME_TAG, BlameDocument, BlameOptions, Blamer, Oracle, RunOutcome, drop_blame, load_blame,
};
use annals_server::{Origin, RerunnerOptions};

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::{CliResult, Failure};

impl StoreAccess {
    /// Prepares the blame of a run.
    pub(crate) fn blamer(
        &self,
        reader: &RunReader,
        origin: &Origin,
        rerun: RerunnerOptions,
        options: BlameOptions,
        range: Option<&str>,
    ) -> CliResult<Blamer> {
        let space = self.namespace()?;
        Ok(Blamer::new(&space, reader, origin, rerun, options, range)?)
    }

    /// The stored blame of a run.
    pub(crate) fn blame(&self, run: &str) -> CliResult<Option<BlameDocument>> {
        load_blame(&self.namespace()?, run).map_err(engine_failure)
    }

    /// Drops the blame of a run and its forks; returns their number.
    pub(crate) fn drop_blame(&self, run: &str) -> CliResult<u64> {
        drop_blame(&self.namespace()?, run).map_err(engine_failure)
    }

    /// The oracle that a text describes.
    pub(crate) fn oracle(&self, text: &str) -> CliResult<Oracle> {
        let mut oracle = Oracle::parse(text, |run| {
            self.outcome(run).map_err(|_| format!("there is no run {run:?} with an outcome"))
        })
        .map_err(|why| Failure::usage(why, "--oracle exit"))?;
        oracle.keep_in(&self.namespace()?);
        Ok(oracle)
    }

    /// The outcome of a run's program.
    pub(crate) fn outcome(&self, run: &str) -> CliResult<RunOutcome> {
        let reader = self.reader(run)?;
        let outcome = RunOutcome::from_reader(&reader).map_err(engine_failure)?;
        outcome.ok_or_else(|| {
            let message = format!("run `{run}` has no program that ended, so it has no outcome");
            Failure::usage(message, "name a run of `annals record`")
        })
    }

    /// The size of the store on disk, in bytes.
    pub(crate) fn disk_bytes(&self) -> CliResult<u64> {
        Ok(self.stats()?.disk_bytes)
    }
}

/// Whether a run is a fork of a blame.
pub(crate) fn is_blame_fork(reader: &RunReader) -> bool {
    reader.info().tags.iter().any(|(key, _)| key == BLAME_TAG)
}
