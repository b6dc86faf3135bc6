//! Access control: a client needs a token, which has a name, a namespace and rights.
//!
//! A token is 32 random bytes, so its BLAKE3 hash reveals nothing. Only the hash is stored, in the keyspace
//! `annals.tokens` of the namespace `annals` under the token's name. Hashes are compared in constant time.
//!
//! A token may expire. Rotation gives a name a second token, and the first one a time at which it expires, so
//! that clients can change from one to the other.

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

/// The profile for a redacted reader whose token names none.
pub(super) const SAFE: &str = "safe";
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
    /// When the token expires, in nanoseconds since 1970.
    pub(super) expires_ns: Option<u64>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ns: Option<u64>,
    /// The token that this one replaced, while it is still valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<PreviousToken>,
}

/// A token that a rotation replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PreviousToken {
    made_ns: u64,
    blake3: String,
    expires_ns: u64,
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
    /// Time of its expiry in nanoseconds since 1970; `None` if it does not expire.
    pub expires_ns: Option<u64>,
    /// The BLAKE3 hash of its text.
    pub hash: blake3::Hash,
}

impl AccessToken {
    /// Whether it gives the same access as another one.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        (&self.namespace, self.rights, &self.profile) == (&other.namespace, other.rights, &other.profile)
    }

    /// Whether it comes from the configuration file.
    fn is_configured(&self) -> bool {
        self.made_ns == 0
    }

    fn is_expired(&self, now_ns: u64) -> bool {
        self.expires_ns.is_some_and(|expires_ns| expires_ns <= now_ns)
    }
}

/// The token of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundToken {
    Valid(AccessToken),
    Expired(AccessToken),
    Unknown,
}

/// The known tokens.
#[derive(Debug)]
pub(super) struct TokenRegistry {
    /// Ordered by name, and those of one name by age.
    tokens: RwLock<Vec<AccessToken>>,
    /// Number of changes so far that may have made a token invalid.
    revocations: AtomicU64,
}

impl TokenRegistry {
    pub(super) fn new(tokens: impl IntoIterator<Item = AccessToken>) -> Self {
        let registry = Self { tokens: RwLock::default(), revocations: AtomicU64::new(0) };
        tokens.into_iter().for_each(|token| registry.add(token));
        registry
    }

    /// The token with this text, if `name` is its name or `default`.
    pub(super) fn find(&self, name: &[u8], token: &[u8], now_ns: u64) -> FoundToken {
        let hash = blake3::hash(token);
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        // All tokens are compared, each in constant time.
        let mut found = None;
        for token in tokens.iter() {
            let is_named = name == b"default" || name == token.name.as_bytes();
            if token.hash == hash && is_named {
                found = Some(token);
            }
        }
        match found {
            None => FoundToken::Unknown,
            Some(token) if token.is_expired(now_ns) => FoundToken::Expired(token.clone()),
            Some(token) => FoundToken::Valid(token.clone()),
        }
    }

    /// Whether there are no tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The token of a login as it is now; `None` if it was revoked, or if it gives other access now.
    pub(super) fn current(&self, grant: &Grant) -> Option<AccessToken> {
        let hash = grant.token?;
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let token = tokens.iter().find(|token| *token.name == *grant.name && token.hash == hash)?;
        let profile = token.profile.as_deref().unwrap_or(SAFE);
        let is_same = (token.namespace.as_str(), token.rights, profile)
            == (grant.tenant.name.as_str(), grant.rights, &*grant.profile);
        is_same.then(|| token.clone())
    }

    /// Number of changes so far that may have made a token invalid.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    /// Whether there is a token of this name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).iter().any(|token| token.name == *name)
    }

    /// All tokens, ordered by name.
    pub(super) fn all(&self) -> Vec<AccessToken> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add(&self, token: AccessToken) {
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let at = tokens.partition_point(|other| other.name <= token.name);
        tokens.insert(at, token);
    }

    /// Replaces the stored tokens of a name.
    pub(super) fn replace_stored(&self, name: &str, tokens: Vec<AccessToken>) {
        self.replace(|token| token.name == name && !token.is_configured(), tokens);
    }

    /// Replaces the tokens of the configuration file.
    ///
    /// # Errors
    /// `Refused` if one has the name of a stored token; then nothing changes.
    pub(super) fn replace_configured(&self, tokens: Vec<AccessToken>) -> Result<(), ServeError> {
        let stored: Vec<_> = self.all().into_iter().filter(|token| !token.is_configured()).collect();
        check_names(&stored, &tokens)?;
        self.replace(AccessToken::is_configured, tokens);
        Ok(())
    }

    pub(super) fn remove(&self, name: &str) {
        self.replace(|token| token.name == name, Vec::new());
    }

    /// Replaces the tokens for which `is_replaced` holds.
    fn replace(&self, is_replaced: impl Fn(&AccessToken) -> bool, new: Vec<AccessToken>) {
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|token| !is_replaced(token));
        tokens.extend(new);
        tokens.sort_by(|a, b| (&a.name, a.made_ns).cmp(&(&b.name, b.made_ns)));
        drop(tokens);
        self.revocations.fetch_add(1, Ordering::Release);
    }
}

/// Refuses configured tokens with the name of a stored one: a client could get the rights of the other token,
/// or be revoked with it.
pub(super) fn check_names(stored: &[AccessToken], configured: &[AccessToken]) -> Result<(), ServeError> {
    match configured.iter().find(|token| stored.iter().any(|stored| stored.name == token.name)) {
        None => Ok(()),
        Some(AccessToken { name, .. }) => Err(ServeError::Refused(format!(
            "two tokens are called {name:?}: give the one in the file another name"
        ))),
    }
}

/// A time in nanoseconds since 1970 from RFC 3339 text.
///
/// # Errors
/// A sentence for invalid text.
pub(super) fn parse_time_ns(text: &str) -> Result<u64, String> {
    let time = text.parse::<jiff::Timestamp>().ok();
    let time = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
    time.ok_or_else(|| format!("must be a time such as \"2026-12-31T00:00:00Z\", and not {text:?}"))
}

/// The time of an expiry: RFC 3339 text, or a duration from now, such as `90d`.
///
/// # Errors
/// A sentence for invalid text, and for a time that has passed.
pub fn parse_expiry_ns(text: &str, now_ns: u64) -> Result<u64, String> {
    let expires_ns = match annals::retention::parse_duration_ns(text) {
        Some(ns) => now_ns.saturating_add(ns),
        None => parse_time_ns(text).map_err(|why| format!("an expiry {why}, or a duration such as 90d"))?,
    };
    match expires_ns > now_ns {
        true => Ok(expires_ns),
        false => Err(format!("the expiry {text:?} has passed already")),
    }
}

/// A time as RFC 3339 text.
#[must_use]
pub fn time_text(ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(ns)).map_or_else(|_| ns.to_string(), |time| time.to_string())
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
        let kept: Option<TokenRecord> = serde_json::from_slice(&value).ok();
        let Some(stored) = kept.and_then(|kept| kept.tokens(&name)) else {
            return Err(ServeError::Refused(format!(
                "the entry {name:?} in keyspace {KEYSPACE} is not a valid token"
            )));
        };
        tokens.extend(stored);
    }
    Ok(tokens)
}

impl TokenRecord {
    /// The tokens of this record, the older one first; `None` if a hash is malformed.
    fn tokens(&self, name: &str) -> Option<Vec<AccessToken>> {
        let token = |made_ns: u64, blake3: &str, expires_ns: Option<u64>| {
            let (namespace, rights, profile) = (self.namespace.clone(), self.rights, self.profile.clone());
            let hash = blake3::Hash::from_hex(blake3).ok()?;
            Some(AccessToken { name: name.to_owned(), namespace, rights, profile, made_ns, expires_ns, hash })
        };
        let previous = self.previous.as_ref();
        let previous = previous.map(|old| token(old.made_ns, &old.blake3, Some(old.expires_ns)));
        let newest = token(self.made_ns, &self.blake3, self.expires_ns);
        previous.into_iter().chain([newest]).collect()
    }
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
    expires_ns: Option<u64>,
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
    let (text, hash) = draw_token()?;
    let profile = profile.map(str::to_owned);
    let kept = TokenRecord {
        namespace: namespace.to_owned(),
        rights,
        profile: profile.clone(),
        made_ns: now_ns,
        blake3: hash.to_hex().to_string(),
        expires_ns,
        previous: None,
    };
    // This creates the namespace, and fails here if its name is invalid.
    store.namespace(namespace)?;
    keep_record(store, name, &kept)?;
    let token = AccessToken {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        rights,
        profile,
        made_ns: now_ns,
        expires_ns,
        hash,
    };
    Ok((token, text))
}

/// Replaces a token by a new one with the same name and access; durable when this returns. The old one expires
/// after `overlap_ns`, at the latest when it would have expired anyway. Returns the tokens of the name that
/// are valid now, and the new one's text, which is not stored.
///
/// # Errors
/// Those of the store; `NotFound` if there is no stored token of this name; `Refused` if the system has no
/// randomness.
pub fn rotate_token(
    store: &Store,
    name: &str,
    overlap_ns: u64,
    expires_ns: Option<u64>,
    now_ns: u64,
) -> Result<(Vec<AccessToken>, String), ServeError> {
    let unknown =
        || annals::Error::new(annals::ErrorKind::NotFound, format!("there is no token {name} in the store"));
    let keyspace = store.namespace(OWN_NAMESPACE)?.find_keyspace(KEYSPACE)?.ok_or_else(unknown)?;
    let value = keyspace.get(name.as_bytes())?.ok_or_else(unknown)?;
    let malformed = |error| {
        ServeError::Refused(format!(
            "the entry {name:?} in keyspace {KEYSPACE} is not a valid token: {error}"
        ))
    };
    let old: TokenRecord = serde_json::from_slice(&value).map_err(malformed)?;
    let (text, hash) = draw_token()?;
    let ends_ns = now_ns.saturating_add(overlap_ns).min(old.expires_ns.unwrap_or(u64::MAX));
    let previous = PreviousToken { made_ns: old.made_ns, blake3: old.blake3, expires_ns: ends_ns };
    let record = TokenRecord {
        namespace: old.namespace,
        rights: old.rights,
        profile: old.profile,
        // Later than the old one's, whatever the clock says: the order of the two is that of their times.
        made_ns: now_ns.max(old.made_ns + 1),
        blake3: hash.to_hex().to_string(),
        expires_ns,
        previous: (ends_ns > now_ns).then_some(previous),
    };
    keep_record(store, name, &record)?;
    let tokens =
        record.tokens(name).ok_or_else(|| ServeError::Refused("a token's hash is malformed".to_owned()))?;
    Ok((tokens, text))
}

/// Draws a token's text, and returns it with its hash.
fn draw_token() -> Result<(String, blake3::Hash), ServeError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ServeError::Refused(format!("no token can be made: the system has no randomness: {error}"))
    })?;
    let text = annals_text::hex::encode(&bytes);
    let hash = blake3::hash(text.as_bytes());
    Ok((text, hash))
}

/// Stores what is known of a token, in place of what was known.
fn keep_record(store: &Store, name: &str, record: &TokenRecord) -> Result<(), ServeError> {
    let kept = serde_json::to_vec(record).map_err(|error| ServeError::Refused(error.to_string()))?;
    let space = store.namespace(OWN_NAMESPACE)?;
    let keyspace = match space.find_keyspace(KEYSPACE)? {
        Some(keyspace) => keyspace,
        None => space.keyspace(KEYSPACE, History::Latest)?,
    };
    let mut batch = space.batch();
    batch.put(&keyspace, name.as_bytes(), kept);
    // The caller shows the token to a user, so it must be durable.
    batch.submit_with(Durability::Disk)?.wait()?;
    Ok(())
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
        let (token, text) = make_token(&store, "ci", "n", rights, None, None, 5).unwrap();
        assert_eq!(list_tokens(&store).unwrap(), std::slice::from_ref(&token));
        let again = make_token(&store, "ci", "n", rights, None, None, 5).unwrap_err().to_string();
        assert!(again.contains("already"), "{again}");
        for name in ["", "a b", &"x".repeat(65), "\u{e9}"] {
            assert!(make_token(&store, name, "n", rights, None, None, 5).is_err(), "{name:?}");
        }
        for (rights, profile) in
            [(rights, "safe"), (Rights::RECORD, "safe"), (Rights::REDACTED, "raw"), (Rights::REDACTED, "a b")]
        {
            assert!(
                make_token(&store, "x", "n", rights, Some(profile), None, 5).is_err(),
                "{rights} {profile}"
            );
        }
        let access = TokenRegistry::new(list_tokens(&store).unwrap());
        for name in ["ci", "default"] {
            assert_eq!(access.find(name.as_bytes(), text.as_bytes(), 6), FoundToken::Valid(token.clone()));
        }
        let hash = token.hash.to_hex();
        for (name, said) in [("other", text.as_str()), ("ci", ""), ("ci", &text[1..]), ("ci", hash.as_str())]
        {
            assert_eq!(
                access.find(name.as_bytes(), said.as_bytes(), 6),
                FoundToken::Unknown,
                "{name} {said}"
            );
        }
        let own = store.namespace(OWN_NAMESPACE).unwrap().find_keyspace(KEYSPACE).unwrap().unwrap();
        let kept = String::from_utf8(own.get(b"ci").unwrap().unwrap()).unwrap();
        assert!(!kept.contains(&text) && kept.contains("\"rights\":\"record,read\""), "{kept}");
        // A revoked token is refused immediately and after a restart.
        assert!(revoke_token(&store, "ci").unwrap() && !revoke_token(&store, "ci").unwrap());
        access.remove("ci");
        assert_eq!(access.find(b"ci", text.as_bytes(), 6), FoundToken::Unknown);
        assert_eq!((list_tokens(&store).unwrap(), access.revocations()), (Vec::new(), 1));
    }

    #[test]
    fn rotation_lets_the_old_token_live_for_the_overlap() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let unknown = rotate_token(&store, "ci", 10, None, 5).unwrap_err().to_string();
        assert!(unknown.contains("no token ci"), "{unknown}");
        let (first, old) = make_token(&store, "ci", "n", Rights::READ, None, Some(1000), 5).unwrap();
        let (tokens, new) = rotate_token(&store, "ci", 100, None, 50).unwrap();
        assert_eq!(list_tokens(&store).unwrap(), tokens);
        assert_eq!(tokens.iter().map(|token| token.expires_ns).collect::<Vec<_>>(), [Some(150), None]);
        assert!(tokens.iter().all(|token| token.is_equivalent(&first)));
        let access = TokenRegistry::new([first]);
        access.replace_stored("ci", tokens);
        let find = |text: &str, now_ns| access.find(b"ci", text.as_bytes(), now_ns);
        assert!(
            matches!(find(&old, 149), FoundToken::Valid(_))
                && matches!(find(&new, 149), FoundToken::Valid(_))
        );
        assert!(
            matches!(find(&old, 150), FoundToken::Expired(_))
                && matches!(find(&new, 150), FoundToken::Valid(_))
        );
        // Without an overlap the old one is gone at once. A third rotation forgets the first token.
        let (tokens, newest) = rotate_token(&store, "ci", 0, Some(2000), 60).unwrap();
        assert_eq!(tokens.iter().map(|token| token.expires_ns).collect::<Vec<_>>(), [Some(2000)]);
        access.replace_stored("ci", tokens);
        assert_eq!((find(&old, 61), find(&new, 61)), (FoundToken::Unknown, FoundToken::Unknown));
        assert!(matches!(find(&newest, 1999), FoundToken::Valid(_)));
        assert!(matches!(find(&newest, 2000), FoundToken::Expired(_)));
    }

    #[test]
    fn expiry_is_a_time_or_a_duration_in_the_future() {
        let now_ns = 1_700_000_000_000_000_000;
        assert_eq!(parse_expiry_ns("90d", now_ns), Ok(now_ns + 90 * 86_400 * 1_000_000_000));
        let named = parse_expiry_ns("2026-12-31T00:00:00Z", now_ns).unwrap();
        assert_eq!((named, time_text(named).as_str()), (1_798_675_200_000_000_000, "2026-12-31T00:00:00Z"));
        for (text, what) in [("2001-01-01T00:00:00Z", "has passed"), ("0s", "has passed"), ("soon", "90d")] {
            let why = parse_expiry_ns(text, now_ns).unwrap_err();
            assert!(why.contains(what), "{text}: {why}");
        }
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
