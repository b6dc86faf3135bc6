//! Tapes: export, import, and those of tracefork.

use annals::{
    ErrorKind, RunInfo, RunReader, RunSpec, Status,
    tape::{Tape, TapeRedaction},
};
use annals_server::profiles::Redactor;

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::{CliResult, Failure};
use crate::tracefork::TraceforkRecording as Foreign;

impl StoreAccess {
    /// Writes a run as a tape. Returns the tape's length in bytes.
    pub(crate) fn export_tape(&self, reader: &RunReader, to: &mut dyn std::io::Write) -> CliResult<u64> {
        reader.write_tape(to).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Failure::failed(error, "wait until it has ended"),
            _ => engine_failure(error),
        })
    }

    /// Writes a redacted run as a tape that names the profile. Returns the tape's length in bytes.
    pub(crate) fn export_redacted_tape(
        &self,
        reader: &RunReader,
        redactor: &Redactor,
        to: &mut dyn std::io::Write,
    ) -> CliResult<u64> {
        let shown = TapeRedaction {
            by: redactor.profile().name(),
            frame: &mut |frame| {
                let shown = redactor.frame(&frame.input, &frame.output, &frame.metadata);
                (frame.input, frame.output, frame.metadata) = (shown.input, shown.output, shown.metadata);
            },
            bytes: &mut |bytes| redactor.metadata(&bytes).bytes.into_owned(),
            tag: &mut |tag| redactor.text(tag),
        };
        reader.write_redacted_tape(to, shown).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Failure::failed(error, "wait until it has ended"),
            _ => engine_failure(error),
        })
    }

    /// Records the run of a tape.
    pub(crate) fn import_tape(&self, tape: &Tape, name: Option<&str>, replace: bool) -> CliResult<RunInfo> {
        self.namespace()?.import_tape(tape, name, replace).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Failure::failed(error, "set another name with --run, or add --replace"),
            _ => engine_failure(error),
        })
    }

    /// Records a tape of tracefork as a run of this name.
    pub(crate) fn import_tracefork(
        &self,
        recording: Foreign,
        name: &str,
        replace: bool,
    ) -> CliResult<RunInfo> {
        let spec = RunSpec::new(name).replace(replace).metadata(recording.metadata);
        let run = self.namespace()?.prepare_run(spec).map_err(engine_failure)?;
        let mut batch = run.batch().map_err(engine_failure)?;
        for frame in recording.frames {
            batch.frame(frame).map_err(engine_failure)?;
        }
        batch.end(Status::Ok).map_err(engine_failure)?;
        batch.commit().map_err(engine_failure)?;
        Ok(self.reader(name)?.info().clone())
    }
}

/// Parses a tape.
pub(crate) fn parse_tape(bytes: Vec<u8>) -> CliResult<Tape> {
    Tape::read(bytes).map_err(|error| match error.kind() {
        ErrorKind::Damaged => Failure::damage(error, "fetch the tape again, or repeat `annals tape export`"),
        _ => Failure::failed(error, "name an unchanged tape of annals or of tracefork"),
    })
}
