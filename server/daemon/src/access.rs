//! Access control: a client needs a token, which has a name, a namespace and rights.
//!
//! A token is 32 random bytes, so its BLAKE3 hash reveals nothing. Only the hash is stored, in the keyspace
//! `annals.tokens` of the namespace `annals` under the token's name. Hashes are compared in constant time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use annals::{
    Durability, Store,
    kv::{History, ScanRange},
};
use serde::{Deserialize, Serialize};

use super::config::ServeError;
use super::tenant::Tenant;
pub use annals_wire::schema::Rights;

/// The namespace of the daemon's own data.
pub(super) const OWN_NAMESPACE: &str = "annals";
const KEYSPACE: &str = "annals.tokens";
/// Maximum number of tokens, and maximum length of a token's name in bytes.
const TOKENS_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 64;

/// The rights of a client.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    /// The token's name; `owner` without a token.
    pub(super) name: Arc<str>,
    pub(super) rights: Rights,
    pub(super) tenant: Arc<Tenant>,
    /// The profile that redacts for a reader without the right `read`.
    pub(super) profile: Arc<str>,
    /// The token's hash, to check whether it was revoked.
    pub(super) token: Option<blake3::Hash>,
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRecord {
    namespace: String,
    rights: Rights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    made_ns: u64,
    blake3: String,
}

/// An access token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessToken {
    /// Its name; also used in logs.
    pub name: String,
    /// The only namespace that it gives access to.
    pub namespace: String,
    /// Its rights.
    pub rights: Rights,
    /// The profile for a reader with the right `redacted` but not `read`; `safe` if none is named.
    pub profile: Option<String>,
    /// Creation time in nanoseconds since 1970; 0 for a configured token.
    pub made_ns: u64,
    /// The BLAKE3 hash of its text.
    pub hash: blake3::Hash,
}

/// The known tokens.
#[derive(Debug)]
pub(super) struct TokenRegistry {
    tokens: RwLock<BTreeMap<String, AccessToken>>,
    /// Number of revocations so far.
    revocations: AtomicU64,
}

impl TokenRegistry {
    pub(super) fn new(tokens: impl IntoIterator<Item = AccessToken>) -> Self {
        let tokens = tokens.into_iter().map(|token| (token.name.clone(), token)).collect();
        Self { tokens: RwLock::new(tokens), revocations: AtomicU64::new(0) }
    }

    /// The token with this text, if `name` is its name or `default`.
    pub(super) fn find(&self, name: &[u8], token: &[u8]) -> Option<AccessToken> {
        let hash = blake3::hash(token);
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        // All tokens are compared, each in constant time.
        let mut found = None;
        for token in tokens.values() {
            let is_named = name == b"default" || name == token.name.as_bytes();
            if token.hash == hash && is_named {
                found = Some(token.clone());
            }
        }
        found
    }

    /// Whether there are no tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether a token is still valid.
    pub(super) fn is_valid(&self, name: &str, hash: &blake3::Hash) -> bool {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.get(name).is_some_and(|token| token.hash == *hash)
    }

    /// Number of revocations so far.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    /// Whether there is a token of this name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// All tokens, ordered by name.
    pub(super) fn all(&self) -> Vec<AccessToken> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn add(&self, token: AccessToken) {
        self.tokens.write().unwrap_or_else(PoisonError::into_inner).insert(token.name.clone(), token);
    }

    pub(super) fn remove(&self, name: &str) {
        self.tokens.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.revocations.fetch_add(1, Ordering::Release);
    }
}

/// The tokens stored in a store.
///
/// # Errors
/// Those of the store; `Refused` for a malformed entry.
pub fn list_tokens(store: &Store) -> Result<Vec<AccessToken>, ServeError> {
    if !store.namespaces()?.iter().any(|name| name == OWN_NAMESPACE) {
        return Ok(Vec::new());
    }
    let Some(kept) = store.namespace(OWN_NAMESPACE)?.find_keyspace(KEYSPACE)? else { return Ok(Vec::new()) };
    let mut tokens = Vec::new();
    for found in kept.scan(ScanRange::all()).take(TOKENS_MAX) {
        let (name, value) = found?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let read = |value: &[u8]| {
            let kept: TokenRecord = serde_json::from_slice(value).ok()?;
            let hash = blake3::Hash::from_hex(kept.blake3).ok()?;
            Some((kept.namespace, kept.rights, kept.profile, kept.made_ns, hash))
        };
        let Some((namespace, rights, profile, made_ns, hash)) = read(&value) else {
            return Err(ServeError::Refused(format!(
                "the entry {name:?} in keyspace {KEYSPACE} is not a valid token"
            )));
        };
        tokens.push(AccessToken { name, namespace, rights, profile, made_ns, hash });
    }
    Ok(tokens)
}

/// Makes a token and stores its hash; durable when this returns. Returns the token's text, which is not
/// stored.
///
/// # Errors
/// Those of the store; `Refused` for an invalid or taken name, and if the system has no randomness.
pub fn make_token(
    store: &Store,
    name: &str,
    namespace: &str,
    rights: Rights,
    profile: Option<&str>,
    now_ns: u64,
) -> Result<(AccessToken, String), ServeError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        let why = format!("a token's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'");
        return Err(ServeError::Refused(why));
    }
    if rights == Rights::NONE {
        return Err(ServeError::Refused("a token has at least one right".to_owned()));
    }
    check_profile(rights, profile)?;
    let known = list_tokens(store)?;
    if known.iter().any(|token| token.name == name) {
        let why = format!("there is a token {name} already: revoke it, or take another name");
        return Err(ServeError::Refused(why));
    }
    if known.len() >= TOKENS_MAX {
        return Err(ServeError::Refused(format!("there are {TOKENS_MAX} tokens already: revoke some")));
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ServeError::Refused(format!("no token can be made: the system has no randomness: {error}"))
    })?;
    let text = annals_text::hex::encode(&bytes);
    let hash = blake3::hash(text.as_bytes());
    let profile = profile.map(str::to_owned);
    let kept = TokenRecord {
        namespace: namespace.to_owned(),
        rights,
        profile: profile.clone(),
        made_ns: now_ns,
        blake3: hash.to_hex().to_string(),
    };
    let kept = serde_json::to_vec(&kept).map_err(|error| ServeError::Refused(error.to_string()))?;
    // This creates the namespace, and fails here if its name is invalid.
    store.namespace(namespace)?;
    let space = store.namespace(OWN_NAMESPACE)?;
    let keyspace = match space.find_keyspace(KEYSPACE)? {
        Some(keyspace) => keyspace,
        None => space.keyspace(KEYSPACE, History::Latest)?,
    };
    let mut batch = space.batch();
    batch.put(&keyspace, name.as_bytes(), kept);
    // The caller shows the token to a user, so it must be durable.
    batch.submit_with(Durability::Disk)?.wait()?;
    let token = AccessToken {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        rights,
        profile,
        made_ns: now_ns,
        hash,
    };
    Ok((token, text))
}

/// Checks that a profile is only given without the right `read`: a reader with that right sees everything
/// anyway.
pub(super) fn check_profile(rights: Rights, profile: Option<&str>) -> Result<(), ServeError> {
    let Some(profile) = profile else { return Ok(()) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let why = if profile.is_empty() || profile.len() > NAME_BYTES_MAX || !profile.bytes().all(is_plain) {
        format!("a profile's name has 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'")
    } else if profile == "raw" {
        "a token without redaction has the right read and no profile".to_owned()
    } else if !rights.includes(Rights::REDACTED) || rights.includes(Rights::READ) {
        "a profile needs the right redacted without read: the right read shows everything".to_owned()
    } else {
        return Ok(());
    };
    Err(ServeError::Refused(why))
}

/// Revokes a token; durable when this returns. Returns whether it existed.
///
/// # Errors
/// Those of the store.
pub fn revoke_token(store: &Store, name: &str) -> Result<bool, ServeError> {
    let space = store.namespace(OWN_NAMESPACE)?;
    let Some(keyspace) = space.find_keyspace(KEYSPACE)? else { return Ok(false) };
    if keyspace.get(name.as_bytes())?.is_none() {
        return Ok(false);
    }
    let mut batch = space.batch();
    batch.delete(&keyspace, name.as_bytes());
    batch.submit_with(Durability::Disk)?.wait()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_text_is_returned_once_and_only_hash_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        assert_eq!(list_tokens(&store).unwrap(), []);
        let rights = Rights::RECORD.union(Rights::READ);
        let (token, text) = make_token(&store, "ci", "n", rights, None, 5).unwrap();
        assert_eq!(list_tokens(&store).unwrap(), std::slice::from_ref(&token));
        assert!(make_token(&store, "ci", "n", rights, None, 5).unwrap_err().to_string().contains("already"));
        for name in ["", "a b", &"x".repeat(65), "\u{e9}"] {
            assert!(make_token(&store, name, "n", rights, None, 5).is_err(), "{name:?}");
        }
        for (rights, profile) in
            [(rights, "safe"), (Rights::RECORD, "safe"), (Rights::REDACTED, "raw"), (Rights::REDACTED, "a b")]
        {
            assert!(make_token(&store, "x", "n", rights, Some(profile), 5).is_err(), "{rights} {profile}");
        }
        let access = TokenRegistry::new(list_tokens(&store).unwrap());
        for name in ["ci", "default"] {
            assert_eq!(access.find(name.as_bytes(), text.as_bytes()), Some(token.clone()));
        }
        let hash = token.hash.to_hex();
        for (name, said) in [("other", text.as_str()), ("ci", ""), ("ci", &text[1..]), ("ci", hash.as_str())]
        {
            assert_eq!(access.find(name.as_bytes(), said.as_bytes()), None, "{name} {said}");
        }
        let own = store.namespace(OWN_NAMESPACE).unwrap().find_keyspace(KEYSPACE).unwrap().unwrap();
        let kept = String::from_utf8(own.get(b"ci").unwrap().unwrap()).unwrap();
        assert!(!kept.contains(&text) && kept.contains("\"rights\":\"record,read\""), "{kept}");
        // A revoked token is refused immediately and after a restart.
        assert!(revoke_token(&store, "ci").unwrap() && !revoke_token(&store, "ci").unwrap());
        access.remove("ci");
        assert!(access.find(b"ci", text.as_bytes()).is_none() && !access.is_valid("ci", &token.hash));
        assert_eq!((list_tokens(&store).unwrap(), access.revocations()), (Vec::new(), 1));
    }

    #[test]
    fn rights_parse_and_print_their_names() {
        let some: Rights = "read, operate".parse().unwrap();
        assert_eq!(some.to_string(), "read,operate");
        assert!(some.includes(Rights::READ) && !some.includes(Rights::RECORD) && !some.includes(Rights::ALL));
        assert!("".parse::<Rights>().is_err() && "write".parse::<Rights>().is_err());
        assert_eq!(Rights::ALL.to_string(), "record,read,redacted,operate");
    }
}
