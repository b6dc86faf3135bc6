//! Records operators' actions in the store itself: a run in the namespace `annals`, begun with the first
//! action, with one frame per action.

use std::sync::{Arc, Mutex, PoisonError};

use annals::{Component, Durability, Frame, Run, RunSpec, Status, Store, Ticket};
use serde_json::json;

use super::access::OWN_NAMESPACE;

/// Maximum number of an action's words that a frame keeps, and maximum bytes of each.
const WORDS_MAX: usize = 16;
const WORD_BYTES_MAX: usize = 256;

/// The record of operators' actions.
#[derive(Debug)]
pub(super) struct OperationLog {
    store: Store,
    run: Mutex<Option<Arc<Run>>>,
}

impl OperationLog {
    pub(super) fn new(store: Store) -> Self {
        Self { store, run: Mutex::default() }
    }

    /// Records an action: who, from where, with which words, and its error if it failed. Its result is not
    /// kept, because it may contain a token.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn record(
        &self,
        who: &str,
        from: &str,
        words: &[Vec<u8>],
        failed: Option<&str>,
        now_ns: u64,
    ) -> annals::Result<Ticket> {
        let shown =
            |word: &Vec<u8>| String::from_utf8_lossy(word.get(..WORD_BYTES_MAX).unwrap_or(word)).into_owned();
        let words: Vec<_> = words.iter().take(WORDS_MAX).map(shown).collect();
        let input = json!({ "who": who, "from": from, "words": words }).to_string();
        let output = failed.map_or_else(|| "OK".to_owned(), str::to_owned);
        let mut frame = Frame::new(Component::Other("operation".to_owned()), input, output);
        frame.error = failed.is_some();
        frame.started_ns = Some(now_ns);
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match &*run {
            Some(run) => run.clone(),
            None => {
                let name = format!("operations-{now_ns}");
                let spec = RunSpec::new(name).agent("annals serve").started_ns(now_ns);
                let begun = self.store.namespace(OWN_NAMESPACE)?.begin_run(spec)?;
                run.insert(Arc::new(begun)).clone()
            }
        };
        let mut batch = run.batch()?;
        batch.durability(Durability::Disk);
        batch.frame(frame)?;
        batch.submit()
    }

    /// Ends the run, if there is one.
    pub(super) fn end(&self) {
        if let Some(run) = self.run.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If this fails, closing the store reports the cause.
            let _ = run.end(Status::Ok);
        }
    }
}
