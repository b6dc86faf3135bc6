//! Who is let in, and what for: whoever has a token. A token has a name, a namespace and rights.
//!
//! Tokens are 32 random bytes, so their BLAKE3 says nothing of them; only that is kept, in the keyspace `annals.tokens` of the namespace `annals`,
//! under the token's name, and hashes are compared in constant time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use annals::{Durability, History, ScanRange, Store};
use serde::{Deserialize, Serialize};

use super::config::ServingError;
use super::tenant::Tenant;
pub use annals_wire::schema::Rights;

/// What is about the daemon itself stands in this namespace.
pub(super) const OWN_NAMESPACE: &str = "annals";
const KEYSPACE: &str = "annals.tokens";
/// Tokens, at most, and the bytes of a name of one.
const TOKENS_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 64;

/// What somebody may do.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    /// The token's name; `owner` without one.
    pub(super) name: Arc<str>,
    pub(super) rights: Rights,
    pub(super) tenant: Arc<Tenant>,
    /// The profile that a reader without the right `read` is shown things by.
    pub(super) profile: Arc<str>,
    /// The token's hash: it may have been taken back.
    pub(super) token: Option<blake3::Hash>,
}

/// A token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    namespace: String,
    rights: Rights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    made_ns: u64,
    blake3: String,
}

/// A token as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is called, in logs, too.
    pub name: String,
    /// The only namespace that it leads to.
    pub namespace: String,
    /// What may be done with it.
    pub rights: Rights,
    /// The profile that whoever has the right `redacted` and not `read` is shown things by; `safe` where none is named.
    pub profile: Option<String>,
    /// When it was made, in nanoseconds since 1970; 0 for one of the configuration.
    pub made_ns: u64,
    /// The BLAKE3 of its text.
    pub hash: blake3::Hash,
}

/// The tokens.
#[derive(Debug)]
pub(super) struct Access {
    tokens: RwLock<BTreeMap<String, Token>>,
    /// How often one was taken back.
    revoked: AtomicU64,
}

impl Access {
    pub(super) fn new(tokens: impl IntoIterator<Item = Token>) -> Self {
        let tokens = tokens.into_iter().map(|token| (token.name.clone(), token)).collect();
        Self { tokens: RwLock::new(tokens), revoked: AtomicU64::new(0) }
    }

    /// The token that this is, if it goes by this name, or by `default`.
    pub(super) fn find(&self, name: &[u8], token: &[u8]) -> Option<Token> {
        let hash = blake3::hash(token);
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, each in constant time.
        let mut found = None;
        for token in tokens.values() {
            let is_named = name == b"default" || name == token.name.as_bytes();
            if token.hash == hash && is_named {
                found = Some(token.clone());
            }
        }
        found
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether a token still holds.
    pub(super) fn holds(&self, name: &str, hash: &blake3::Hash) -> bool {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.get(name).is_some_and(|token| token.hash == *hash)
    }

    /// How often one was taken back.
    pub(super) fn revoked(&self) -> u64 {
        self.revoked.load(Ordering::Acquire)
    }

    /// All of them, by their names.
    pub(super) fn all(&self) -> Vec<Token> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn add(&self, token: Token) {
        self.tokens.write().unwrap_or_else(PoisonError::into_inner).insert(token.name.clone(), token);
    }

    pub(super) fn remove(&self, name: &str) {
        self.tokens.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.revoked.fetch_add(1, Ordering::Release);
    }
}

/// The tokens that a store keeps.
///
/// # Errors
/// Those of the store; `Refused` for what is none.
pub fn tokens(store: &Store) -> Result<Vec<Token>, ServingError> {
    if !store.namespaces()?.iter().any(|name| name == OWN_NAMESPACE) {
        return Ok(Vec::new());
    }
    let Some(kept) = store.namespace(OWN_NAMESPACE)?.find_keyspace(KEYSPACE)? else { return Ok(Vec::new()) };
    let mut tokens = Vec::new();
    for found in kept.scan(ScanRange::all()).take(TOKENS_MAX) {
        let (name, value) = found?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let read = |value: &[u8]| {
            let kept: Kept = serde_json::from_slice(value).ok()?;
            let hash = blake3::Hash::from_hex(kept.blake3).ok()?;
            Some((kept.namespace, kept.rights, kept.profile, kept.made_ns, hash))
        };
        let Some((namespace, rights, profile, made_ns, hash)) = read(&value) else {
            return Err(ServingError::Refused(format!(
                "what stands under {name:?} in keyspace {KEYSPACE} is no token"
            )));
        };
        tokens.push(Token { name, namespace, rights, profile, made_ns, hash });
    }
    Ok(tokens)
}

/// Makes a token and keeps its hash, on disk when this returns. Its text is given beside, this once.
///
/// # Errors
/// Those of the store; `Refused` for a name that is none or is taken, and where the system has no randomness.
pub fn make_token(
    store: &Store,
    name: &str,
    namespace: &str,
    rights: Rights,
    profile: Option<&str>,
    now_ns: u64,
) -> Result<(Token, String), ServingError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        let why = format!("a token's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'");
        return Err(ServingError::Refused(why));
    }
    if rights == Rights::NONE {
        return Err(ServingError::Refused("a token has at least one right".to_owned()));
    }
    check_profile(rights, profile)?;
    let known = tokens(store)?;
    if known.iter().any(|token| token.name == name) {
        let why = format!("there is a token {name} already: revoke it, or take another name");
        return Err(ServingError::Refused(why));
    }
    if known.len() >= TOKENS_MAX {
        return Err(ServingError::Refused(format!("there are {TOKENS_MAX} tokens already: revoke some")));
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ServingError::Refused(format!("no token can be made: the system has no randomness: {error}"))
    })?;
    let text = annals_text::hex::encode(&bytes);
    let hash = blake3::hash(text.as_bytes());
    let profile = profile.map(str::to_owned);
    let kept = Kept {
        namespace: namespace.to_owned(),
        rights,
        profile: profile.clone(),
        made_ns: now_ns,
        blake3: hash.to_hex().to_string(),
    };
    let kept = serde_json::to_vec(&kept).map_err(|error| ServingError::Refused(error.to_string()))?;
    // A namespace is there from then on, so a name that is none is refused here.
    store.namespace(namespace)?;
    let space = store.namespace(OWN_NAMESPACE)?;
    let keyspace = match space.find_keyspace(KEYSPACE)? {
        Some(keyspace) => keyspace,
        None => space.keyspace(KEYSPACE, History::Latest)?,
    };
    let mut batch = space.batch();
    batch.put(&keyspace, name.as_bytes(), kept);
    // It is told to somebody: it has to hold from then on.
    batch.submit_with(Durability::Disk)?.wait()?;
    let token = Token {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        rights,
        profile,
        made_ns: now_ns,
        hash,
    };
    Ok((token, text))
}

/// A profile is for who may read redacted only: who may read all would see it elsewhere.
pub(super) fn check_profile(rights: Rights, profile: Option<&str>) -> Result<(), ServingError> {
    let Some(profile) = profile else { return Ok(()) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let why = if profile.is_empty() || profile.len() > NAME_BYTES_MAX || !profile.bytes().all(is_plain) {
        format!("a profile's name has 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'")
    } else if profile == "raw" {
        "a token that shows everything has the right read, and no profile".to_owned()
    } else if !rights.include(Rights::REDACTED) || rights.include(Rights::READ) {
        "a profile is for the right redacted, without read: whoever has that reads everything".to_owned()
    } else {
        return Ok(());
    };
    Err(ServingError::Refused(why))
}

/// Takes a token back, on disk when this returns. Says whether there was one.
///
/// # Errors
/// Those of the store.
pub fn revoke_token(store: &Store, name: &str) -> Result<bool, ServingError> {
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
    fn a_token_is_told_once_and_only_its_hash_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        assert_eq!(tokens(&store).unwrap(), []);
        let rights = Rights::RECORD.and(Rights::READ);
        let (token, text) = make_token(&store, "ci", "n", rights, None, 5).unwrap();
        assert_eq!(tokens(&store).unwrap(), std::slice::from_ref(&token));
        assert!(make_token(&store, "ci", "n", rights, None, 5).unwrap_err().to_string().contains("already"));
        for name in ["", "a b", &"x".repeat(65), "\u{e9}"] {
            assert!(make_token(&store, name, "n", rights, None, 5).is_err(), "{name:?}");
        }
        for (rights, profile) in
            [(rights, "safe"), (Rights::RECORD, "safe"), (Rights::REDACTED, "raw"), (Rights::REDACTED, "a b")]
        {
            assert!(make_token(&store, "x", "n", rights, Some(profile), 5).is_err(), "{rights} {profile}");
        }
        let access = Access::new(tokens(&store).unwrap());
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
        // Taken back, it is nobody's any more, here and at the next start.
        assert!(revoke_token(&store, "ci").unwrap() && !revoke_token(&store, "ci").unwrap());
        access.remove("ci");
        assert!(access.find(b"ci", text.as_bytes()).is_none() && !access.holds("ci", &token.hash));
        assert_eq!((tokens(&store).unwrap(), access.revoked()), (Vec::new(), 1));
    }

    #[test]
    fn rights_are_named() {
        let some: Rights = "read, operate".parse().unwrap();
        assert_eq!(some.to_string(), "read,operate");
        assert!(some.include(Rights::READ) && !some.include(Rights::RECORD) && !some.include(Rights::ALL));
        assert!("".parse::<Rights>().is_err() && "write".parse::<Rights>().is_err());
        assert_eq!(Rights::ALL.to_string(), "record,read,redacted,operate");
    }
}
