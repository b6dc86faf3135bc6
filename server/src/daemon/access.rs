//! Who is let in: whoever has the token. Only its hash is kept, and hashes are compared in constant time.

use annals::{History, Namespace};

use super::config::ServingError;

/// Where the hash of a token of the daemon's own making is kept, and under which key.
const KEYSPACE: &str = "annals.tokens";
const KEY: &[u8] = b"default";

/// Who is let in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access(Option<blake3::Hash>);

impl Access {
    /// Everybody who can connect.
    pub(super) const OPEN: Self = Self(None);

    /// Whoever has the token with this hash.
    pub(super) fn by(token: blake3::Hash) -> Self {
        Self(Some(token))
    }

    /// Whether nobody is asked.
    pub(super) fn is_open(self) -> bool {
        self.0.is_none()
    }

    /// Whether whoever says this is let in.
    pub(super) fn admits(self, token: &[u8]) -> bool {
        // `Hash` compares in constant time.
        self.0.is_none_or(|hash| blake3::hash(token) == hash)
    }
}

/// The hash of the store's token. Where it has none, one is made: it is given beside, this once.
///
/// # Errors
/// Those of the store; where the system has no randomness.
pub(super) fn token(space: &Namespace) -> Result<(blake3::Hash, Option<String>), ServingError> {
    let tokens = match space.find_keyspace(KEYSPACE)? {
        Some(tokens) => tokens,
        None => space.keyspace(KEYSPACE, History::Latest)?,
    };
    if let Some(kept) = tokens.get(KEY)? {
        let hash = blake3::Hash::from_hex(kept).map_err(|_| {
            ServingError::Refused(format!("what stands under `default` in keyspace {KEYSPACE} is no hash"))
        })?;
        return Ok((hash, None));
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ServingError::Refused(format!("no token can be made: the system has no randomness: {error}"))
    })?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = blake3::hash(token.as_bytes());
    let mut batch = space.batch();
    batch.put(&tokens, KEY, hash.to_hex().as_bytes().to_vec());
    // It is told to somebody: it has to hold from then on.
    batch.submit_with(annals::Durability::Disk)?.wait()?;
    Ok((hash, Some(token)))
}

#[cfg(test)]
mod tests {
    use super::{Access, token};

    #[test]
    fn a_token_is_made_once_and_only_its_hash_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = annals::Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("n").unwrap();
        let (hash, made) = token(&space).unwrap();
        let made = made.unwrap();
        assert_eq!(token(&space).unwrap(), (hash, None));
        let access = Access::by(hash);
        assert!(access.admits(made.as_bytes()) && !access.is_open());
        assert!(!access.admits(b"") && !access.admits(hash.to_hex().as_bytes()));
        let kept = space.find_keyspace("annals.tokens").unwrap().unwrap().get(b"default").unwrap().unwrap();
        assert_eq!(kept, hash.to_hex().as_bytes());
    }
}
