//! The messages of a run for the ranking of its steps, and kept opinions of models about them.

use annals::RunUid;
use annals_server::QuestionHash;
use annals_server::profiles::Redactor;
use annals_server::suspect::Transcript;

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::CliResult;

impl StoreAccess {
    /// Reads a run as messages. Damaged frames are listed in the result.
    pub(crate) fn transcript(&self, id: &str, by: Option<&Redactor>) -> CliResult<(RunUid, Transcript)> {
        let reader = self.reader(id)?;
        let transcript = Transcript::read(&reader, by).map_err(engine_failure)?;
        Ok((reader.info().uid, transcript))
    }

    /// Returns the kept answer to a question.
    pub(crate) fn kept_verdict(&self, question: QuestionHash) -> CliResult<Option<Vec<u8>>> {
        annals_server::kept_verdict(&self.namespace()?, question).map_err(engine_failure)
    }

    /// Keeps an answer to a question about a run.
    pub(crate) fn keep_verdict(&self, uid: RunUid, question: QuestionHash, answer: Vec<u8>) -> CliResult<()> {
        annals_server::keep_verdict(&self.namespace()?, uid, question, answer).map_err(engine_failure)
    }
}
