//! Keys and values.

use std::io::Read;

use annals::{
    Keyspace, Seqno,
    kv::{Content, History, ScanRange, Version},
};
use annals_server::is_own_keyspace;

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::{CliResult, Failure};

impl StoreAccess {
    fn keyspace(&self, name: &str) -> CliResult<Option<Keyspace>> {
        self.namespace()?.find_keyspace(name).map_err(engine_failure)
    }

    pub(crate) fn get(&self, keyspace: &str, key: &[u8], at: Option<u64>) -> CliResult<Option<Vec<u8>>> {
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(None) };
        let value = match at {
            Some(seqno) => keyspace.get_at(key, Seqno(seqno)),
            None => keyspace.get(key),
        };
        value.map_err(engine_failure)
    }

    /// Returns every stored version of a key, in the engine's order.
    pub(crate) fn versions(&self, keyspace: &str, key: &[u8]) -> CliResult<Vec<Version>> {
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(Vec::new()) };
        keyspace.history(key).map_err(engine_failure)
    }

    /// Sets a value: `head`, and all that `rest` still has, which is streamed. Creates the keyspace if it does
    /// not exist; it then keeps every version. Returns the sequence number.
    pub(crate) fn put(
        &self,
        keyspace: &str,
        key: &[u8],
        head: Vec<u8>,
        rest: Option<impl Read>,
    ) -> CliResult<u64> {
        refuse_own(keyspace)?;
        let value: Content = match rest {
            None => head.into(),
            Some(rest) => {
                self.namespace()?.store_blob(head.as_slice().chain(rest)).map_err(engine_failure)?.into()
            }
        };
        let keyspace = match self.keyspace(keyspace)? {
            Some(keyspace) => keyspace,
            None => self.namespace()?.keyspace(keyspace, History::All).map_err(engine_failure)?,
        };
        keyspace.put(key, value).map(|seqno| seqno.0).map_err(engine_failure)
    }

    /// Deletes a key. Returns whether the key existed.
    pub(crate) fn del(&self, keyspace: &str, key: &[u8]) -> CliResult<bool> {
        refuse_own(keyspace)?;
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(false) };
        if keyspace.get(key).map_err(engine_failure)?.is_none() {
            return Ok(false);
        }
        keyspace.delete(key).map(|_| true).map_err(engine_failure)
    }

    pub(crate) fn scan(
        &self,
        keyspace: &str,
        prefix: &[u8],
        reverse: bool,
    ) -> CliResult<impl Iterator<Item = CliResult<(Vec<u8>, Vec<u8>)>>> {
        let range = ScanRange::prefix(prefix);
        let range = if reverse { range.reverse() } else { range };
        let scan = self.keyspace(keyspace)?.map(|keyspace| keyspace.scan(range));
        Ok(scan.into_iter().flatten().map(|pair| pair.map_err(engine_failure)))
    }
}

/// Refuses to change a keyspace of annals' own. A `put` into one that is not there yet would create it with another
/// history, and then retention, pins or memory fail for good.
fn refuse_own(keyspace: &str) -> CliResult<()> {
    if is_own_keyspace(keyspace) {
        let message = format!("keyspace {keyspace:?} belongs to annals");
        return Err(Failure::failed(message, "choose a name that does not begin with `annals.`"));
    }
    Ok(())
}
