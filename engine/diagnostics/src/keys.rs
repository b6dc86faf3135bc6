//! The keys of counts, weights and their records. docs/format.md lists them.

use crate::session::EdgeKey;

/// The first byte of a key in the keyspace of counts.
pub(crate) const BUCKET: u8 = b'c';
pub(crate) const OBSERVATION: u8 = b'o';
pub(crate) const CANDIDATE: u8 = b'm';
pub(crate) const MENTION: u8 = b'i';
pub(crate) const EXPIRY: u8 = b'x';
pub(crate) const SETTING: u8 = b's';
/// How many audit events there are.
pub(crate) const AUDIT_COUNT: &[u8] = b"a";

/// The first byte of a key of a weight, and of its history.
pub(crate) const OBSERVATION_WEIGHT: u8 = b'o';
pub(crate) const NODE_WEIGHT: u8 = b'n';
pub(crate) const EDGE_WEIGHT: u8 = b'e';

/// Any organisation or project, as a part of a scope.
const ANY: u8 = 1;
/// A named organisation or project, followed by its id and a zero byte.
const NAMED: u8 = 2;
/// A row without an organisation or a project.
const NONE: u8 = 3;

/// A set of rows: of an organisation or any, and of a project or any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope(Vec<u8>);

impl Scope {
    /// The rows that a filter selects.
    pub(crate) fn of_filter(org: Option<&str>, project: Option<&str>) -> Self {
        let mut bytes = Vec::new();
        put_part(&mut bytes, org, ANY);
        put_part(&mut bytes, project, ANY);
        Self(bytes)
    }

    /// The scopes that a row belongs to, at most four.
    pub(crate) fn all_of_row(org: Option<&str>, project: Option<&str>) -> Vec<Self> {
        let orgs: &[Option<&str>] = if org.is_some() { &[None, org] } else { &[None] };
        let projects: &[Option<&str>] = if project.is_some() { &[None, project] } else { &[None] };
        orgs.iter()
            .flat_map(|org| projects.iter().map(move |project| Self::of_filter(*org, *project)))
            .collect()
    }
}

fn put_part(bytes: &mut Vec<u8>, part: Option<&str>, without: u8) {
    match part {
        None => bytes.push(without),
        Some(part) => {
            bytes.push(NAMED);
            bytes.extend_from_slice(part.as_bytes());
            bytes.push(0);
        }
    }
}

/// The start of the keys of one kind in a scope.
pub(crate) fn scoped(kind: u8, scope: &Scope) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + scope.0.len());
    key.push(kind);
    key.extend_from_slice(&scope.0);
    key
}

/// The key of an observation's state, or of its entry among the candidates.
pub(crate) fn of_observation(kind: u8, scope: &Scope, observation: &str) -> Vec<u8> {
    let mut key = scoped(kind, scope);
    key.extend_from_slice(observation.as_bytes());
    key
}

/// The key of a bucket of counts.
pub(crate) fn bucket(scope: &Scope, level: u8, number: u64) -> Vec<u8> {
    let mut key = scoped(BUCKET, scope);
    key.push(level);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The start of the keys of all rows that name an observation.
pub(crate) fn mentions(observation: &str) -> Vec<u8> {
    [&[MENTION], observation.as_bytes(), &[0]].concat()
}

/// The key of one row that names an observation.
pub(crate) fn mention(observation: &str, time_ms: u64, session: &str) -> Vec<u8> {
    [&mentions(observation), &time_ms.to_be_bytes()[..], session.as_bytes()].concat()
}

/// The value of a mention: whether the row failed, how often it names the observation, and its organisation and
/// project.
pub(crate) fn mention_value(failed: bool, count: u32, org: Option<&str>, project: Option<&str>) -> Vec<u8> {
    let mut bytes = vec![u8::from(failed)];
    bytes.extend_from_slice(&count.to_le_bytes());
    put_part(&mut bytes, org, NONE);
    put_part(&mut bytes, project, NONE);
    bytes
}

/// Reads a mention: failed, count, organisation, project.
pub(crate) fn read_mention(bytes: &[u8]) -> Option<(bool, u32, Option<&str>, Option<&str>)> {
    let (failed, rest) = bytes.split_first()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (org, rest) = take_part(rest)?;
    let (project, rest) = take_part(rest)?;
    rest.is_empty().then_some((*failed == 1, u32::from_le_bytes(*count), org, project))
}

fn take_part(bytes: &[u8]) -> Option<(Option<&str>, &[u8])> {
    match bytes.split_first()? {
        (&NONE, rest) => Some((None, rest)),
        (&NAMED, rest) => {
            let end = rest.iter().position(|byte| *byte == 0)?;
            Some((Some(std::str::from_utf8(rest.get(..end)?).ok()?), rest.get(end + 1..)?))
        }
        _ => None,
    }
}

/// The key that finds a row when it expires.
pub(crate) fn expiry(expires_ms: u64, session: &str) -> Vec<u8> {
    [&[EXPIRY], &expires_ms.to_be_bytes()[..], session.as_bytes()].concat()
}

/// The key of the switch of an organisation, or of the namespace.
pub(crate) fn setting(org: Option<&str>) -> Vec<u8> {
    let mut key = vec![SETTING];
    put_part(&mut key, org, ANY);
    key
}

/// The key of the weight of an observation or a node.
pub(crate) fn weight(kind: u8, id: &str) -> Vec<u8> {
    [&[kind], id.as_bytes()].concat()
}

/// The key of an edge's weight.
pub(crate) fn edge_weight(edge: &EdgeKey) -> Vec<u8> {
    let parts = [edge.source_id.as_bytes(), edge.target_id.as_bytes(), edge.relationship_name.as_bytes()];
    [&[EDGE_WEIGHT], &parts.join(&0)[..]].concat()
}

/// The start of the keys of a weight's history.
pub(crate) fn changes_of(weight: &[u8]) -> Vec<u8> {
    [weight, &[0]].concat()
}

/// The key of a numbered item after a prefix.
pub(crate) fn numbered(prefix: &[u8], number: u64) -> Vec<u8> {
    [prefix, &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/format.md, section 23.
    #[test]
    fn keys_have_the_bytes_of_the_format() {
        let all = Scope::all_of_row(Some("o"), Some("p"));
        let bytes: Vec<&[u8]> = all.iter().map(|scope| scope.0.as_slice()).collect();
        assert_eq!(bytes, [&b"\x01\x01"[..], b"\x01\x02p\0", b"\x02o\0\x01", b"\x02o\0\x02p\0"]);
        let scope = Scope::of_filter(Some("o"), None);
        assert_eq!(bucket(&scope, 3, 258), b"c\x02o\0\x01\x03\0\0\0\0\0\0\x01\x02");
        assert_eq!(of_observation(CANDIDATE, &scope, "x"), b"m\x02o\0\x01x");
        assert_eq!(mention("x", 1, "s"), b"ix\0\0\0\0\0\0\0\0\x01s");
        assert_eq!(expiry(1, "s"), b"x\0\0\0\0\0\0\0\x01s");
        assert_eq!((setting(None), setting(Some("o"))), (b"s\x01".to_vec(), b"s\x02o\0".to_vec()));
        let edge = EdgeKey {
            source_id: "a".to_owned(),
            target_id: "b".to_owned(),
            relationship_name: "r".to_owned(),
        };
        assert_eq!(numbered(&changes_of(&edge_weight(&edge)), 2), b"ea\0b\0r\0\0\0\0\0\0\0\0\x02");
    }

    #[test]
    fn mention_is_read_as_it_was_written() {
        for (org, project) in [(None, None), (Some("o"), None), (None, Some("p")), (Some("o"), Some("p"))] {
            let value = mention_value(true, 7, org, project);
            assert_eq!(read_mention(&value), Some((true, 7, org, project)));
            for end in 0..value.len() {
                assert_eq!(read_mention(&value[..end]), None);
            }
        }
        assert_eq!(mention_value(false, 1, None, Some("p")), b"\0\x01\0\0\0\x03\x02p\0");
    }
}
