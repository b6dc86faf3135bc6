//! Checks and proofs of the recorded history.

use annals::{
    Error, ErrorKind, StoreId,
    ledger::{Checkpoint, Comparison, ErasureReport, Gap, Proof},
    replay::VerifyReport,
};

use super::StoreAccess;
use super::failures::engine_failure;
use super::runs::no_run_failure;
use crate::failure::{CliResult, Failure};

/// The runs that a check covers.
pub(crate) enum VerifyScope<'a> {
    Run(&'a str),
    All,
    Sample(u64),
}

impl StoreAccess {
    pub(crate) fn verify(&self, scope: VerifyScope<'_>) -> CliResult<VerifyReport> {
        let report = match scope {
            VerifyScope::All => self.store.verify(),
            VerifyScope::Run(id) => {
                let name = self.reader(id)?.info().name.clone();
                self.store.verify_runs(&self.namespace, &[name])
            }
            VerifyScope::Sample(wanted) => {
                let names = self.runs()?.map(|run| run.map(|run| run.id)).collect::<CliResult<Vec<_>>>()?;
                self.store.verify_runs(&self.namespace, &even_sample(&names, wanted))
            }
        };
        report.map_err(no_run_failure)
    }

    /// Returns the present head of the ledger.
    pub(crate) fn checkpoint(&self) -> CliResult<Checkpoint> {
        self.store.checkpoint().map_err(engine_failure)
    }

    /// Makes a proof of a run or of one of its frames.
    pub(crate) fn prove(&self, id: &str, seq: Option<u32>, since: Option<&Checkpoint>) -> CliResult<Proof> {
        let name = self.reader(id)?.info().name.clone();
        self.namespace()?.prove(&name, seq, since).map_err(|error| match error.kind() {
            ErrorKind::Diverged => Failure::damage(error, "`annals verify --against CHECKPOINT` shows where"),
            _ => no_run_failure(error),
        })
    }

    /// Compares the store's history with a checkpoint, and with older ones.
    pub(crate) fn compare(&self, checkpoint: &Checkpoint, older: &[Checkpoint]) -> CliResult<Comparison> {
        self.store.verify_against_all(checkpoint, older).map_err(engine_failure)
    }

    /// The store's identity.
    pub(crate) fn id(&self) -> StoreId {
        self.store.id()
    }

    /// Calls `each` for every gap: a dropped or missing part of the history. Returns what was erased without one.
    pub(crate) fn gaps(&self, each: &mut dyn FnMut(Gap) -> CliResult<()>) -> CliResult<ErasureReport> {
        let mut failure = None;
        let listed = self.store.gaps(&mut |gap| {
            each(gap).map_err(|failed| {
                failure = Some(failed);
                Error::new(ErrorKind::Unavailable, "the output could not be written")
            })
        });
        match failure {
            Some(failure) => Err(failure),
            None => listed.map_err(engine_failure),
        }
    }
}

/// Parses a checkpoint from JSON.
pub(crate) fn parse_checkpoint(json: &[u8]) -> CliResult<Checkpoint> {
    Checkpoint::from_json(json).map_err(engine_failure)
}

/// Selects this number of names, evenly spread.
pub(super) fn even_sample(names: &[String], wanted: u64) -> Vec<String> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(names.len());
    (0..wanted).filter_map(|index| names.get(index * names.len() / wanted)).cloned().collect()
}
