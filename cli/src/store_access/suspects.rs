//! The messages of a run for the ranking of its steps, and kept opinions of models about them.

use annals::RunUid;
use annals_server::profiles::Redactor;
use annals_server::suspect::Transcript;

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::CliResult;

/// The keyspace of models' answers: each belongs to its run and is dropped with it.
const KEYSPACE: &str = "annals.suspect_verdicts";

impl StoreAccess {
    /// Reads a run as messages. Damaged frames are listed in the result.
    pub(crate) fn transcript(&self, id: &str, by: Option<&Redactor>) -> CliResult<(RunUid, Transcript)> {
        let reader = self.reader(id)?;
        let transcript = Transcript::read(&reader, by).map_err(engine_failure)?;
        Ok((reader.info().uid, transcript))
    }

    /// Returns the kept answer to a question about a run.
    pub(crate) fn kept_verdict(&self, uid: RunUid, question: &[u8; 32]) -> CliResult<Option<Vec<u8>>> {
        let Some(kept) = self.namespace()?.find_keyspace(KEYSPACE).map_err(engine_failure)? else {
            return Ok(None);
        };
        kept.get(&verdict_key(uid, question)).map_err(engine_failure)
    }

    /// Keeps an answer to a question about a run.
    pub(crate) fn keep_verdict(&self, uid: RunUid, question: &[u8; 32], answer: Vec<u8>) -> CliResult<()> {
        let key = verdict_key(uid, question);
        self.namespace()?.put_with_run(uid, KEYSPACE, &key, answer).map_err(engine_failure)
    }
}

fn verdict_key(uid: RunUid, question: &[u8; 32]) -> Vec<u8> {
    [&uid.0.to_be_bytes()[..], question].concat()
}
