//! The store's placeholder key: within one store, equal values get equal placeholders; other stores differ.

use annals::{Durability, Store, kv::History};

/// Its location: the namespace for data about the store itself.
const NAMESPACE: &str = "annals";
const KEYSPACE: &str = "annals.placeholders";
const KEY: &[u8] = b"key";

/// The store's key, if it has one.
///
/// # Errors
/// Those of the store.
pub fn placeholder_key(store: &Store) -> annals::Result<Option<[u8; 32]>> {
    if !store.namespaces()?.iter().any(|name| name == NAMESPACE) {
        return Ok(None);
    }
    let Some(keyspace) = store.namespace(NAMESPACE)?.find_keyspace(KEYSPACE)? else { return Ok(None) };
    Ok(keyspace.get(KEY)?.and_then(|key| key.try_into().ok()))
}

/// A key that is not stored: its placeholders can only be compared among themselves.
///
/// # Errors
/// `Unavailable` if the system has no randomness.
pub fn temporary_key() -> annals::Result<[u8; 32]> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        annals::Error::new(annals::ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
    })?;
    Ok(key)
}

/// The store's key; creates one if there is none. It is on disk when this returns.
///
/// # Errors
/// Those of the store; `Unavailable` if the system has no randomness.
pub fn make_placeholder_key(store: &Store) -> annals::Result<[u8; 32]> {
    if let Some(key) = placeholder_key(store)? {
        return Ok(key);
    }
    let key = temporary_key()?;
    let space = store.namespace(NAMESPACE)?;
    let keyspace = match space.find_keyspace(KEYSPACE)? {
        Some(keyspace) => keyspace,
        None => space.keyspace(KEYSPACE, History::Latest)?,
    };
    let mut batch = space.batch();
    batch.put(&keyspace, KEY, key.to_vec());
    batch.submit_with(Durability::Disk)?.wait()?;
    Ok(key)
}
