//! What the terminal view reads.

use annals::io::{Io, RealIo};
use annals_server::profiles::Redactor;
use annals_tui::RunSource;

use super::StoreAccess;
use crate::failure::CliResult;

impl StoreAccess {
    /// The namespace as the terminal view reads it, redacted by `redactor`.
    pub(crate) fn terminal_source(self, redactor: Option<Redactor>) -> CliResult<RunSource> {
        let space = self.namespace()?;
        let now_ns = || RealIo::new().now_ns();
        Ok(RunSource::new(self.store, space, redactor, annals_server::run_prices, now_ns))
    }
}
