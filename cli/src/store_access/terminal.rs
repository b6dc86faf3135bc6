//! What the terminal view reads.

use std::collections::BTreeMap;

use annals::io::{Io, RealIo};
use annals::{Namespace, RunReader, Status};
use annals_server::blame;
use annals_server::profiles::Redactor;
use annals_server::suspect::{self, Transcript, Weights};
use annals_tui::RunSource;

use super::StoreAccess;
use crate::failure::CliResult;

/// Number of suspect steps that are marked.
const SUSPECTS_MAX: usize = 5;

impl StoreAccess {
    /// The namespace as the terminal view reads it, redacted by `redactor`.
    pub(crate) fn terminal_source(self, redactor: Option<Redactor>) -> CliResult<RunSource> {
        let space = self.namespace()?;
        let now_ns = || RealIo::new().now_ns();
        Ok(RunSource::new(self.store, space, redactor, annals_server::run_prices, badges, now_ns))
    }
}

/// The blame of a run's steps; without a blame, the five most suspect steps of a failed run. What cannot be read has no
/// marks: the frames themselves say it.
fn badges(space: &Namespace, reader: &RunReader) -> BTreeMap<u32, String> {
    if let Ok(Some(blame)) = blame::load_blame(space, &reader.info().name) {
        return blame::rows(&blame).iter().map(|row| (row.step, format!("{:.2}", row.flip_rate))).collect();
    }
    if !matches!(reader.info().status, Status::Failed | Status::Abandoned) {
        return BTreeMap::new();
    }
    let Ok(transcript) = Transcript::read(reader, None) else { return BTreeMap::new() };
    let Ok(weights) = Weights::built_in() else { return BTreeMap::new() };
    let steps = suspect::rank(&transcript, &weights).steps.into_iter().take(SUSPECTS_MAX);
    steps.zip(1..).map(|(step, place)| (step.seq, format!("S{place}"))).collect()
}
