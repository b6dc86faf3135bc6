//! Search in the texts of frames.

use std::path::Path;

use annals::ErrorKind;
use annals_memory::FrameTexts;
use annals_server::profiles::Redactor;
use annals_server::search::{SearchAnswer, catch_up, find, is_caught_up};

use super::failures::engine_failure;
use super::{AskedStore, StoreAccess, StoreWait};
use crate::failure::{CliResult, Failure};

impl StoreAccess {
    /// Indexes all frames of the namespace that have ended. If another process holds the store, that process indexes
    /// them. Calls `progress` while there is more to do.
    pub(crate) fn index_frames(
        root: &Path,
        namespace: &str,
        mut rebuilds: bool,
        wait: StoreWait,
        progress: &mut dyn FnMut(),
    ) -> CliResult<()> {
        loop {
            let mut words = vec![&b"RUN.INDEX"[..], b"NAMESPACE", namespace.as_bytes()];
            words.extend(rebuilds.then_some(&b"REBUILD"[..]));
            let is_whole = match Self::ask_or_open_existing(root, namespace, &words, true, wait)? {
                AskedStore::Asked(reply) => reply.trim() == "1",
                AskedStore::Opened(door) => {
                    door.index_all(rebuilds, progress)?;
                    door.close()?;
                    true
                }
            };
            if is_whole {
                return Ok(());
            }
            rebuilds = false;
            progress();
        }
    }

    fn index_all(&self, rebuilds: bool, progress: &mut dyn FnMut()) -> CliResult<()> {
        let space = self.namespace()?;
        let Some(index) = FrameTexts::open(&space).map_err(engine_failure)? else { return Ok(()) };
        if rebuilds {
            index.clear().map_err(engine_failure)?;
        }
        while !catch_up(&space, &index).map_err(engine_failure)?.is_whole {
            progress();
        }
        Ok(())
    }

    /// Finds the frames that answer a question. `is_indexed` says that all frames are in the index; else this looks.
    pub(crate) fn search(
        &self,
        question: &str,
        by: Option<&Redactor>,
        count: usize,
        is_indexed: bool,
    ) -> CliResult<SearchAnswer> {
        let space = self.namespace()?;
        let Some(index) = FrameTexts::open(&space).map_err(engine_failure)? else {
            return Ok(SearchAnswer { is_whole: is_indexed, ..SearchAnswer::default() });
        };
        let is_whole = is_indexed || is_caught_up(&space, &index).map_err(engine_failure)?;
        find(&space, &index, question, by, count, is_whole).map_err(|error| match error.kind() {
            ErrorKind::Damaged | ErrorKind::Bug => {
                Failure::damage(error, "`annals search --rebuild` makes the index again")
            }
            _ => engine_failure(error),
        })
    }
}
