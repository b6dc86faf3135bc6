//! Entry point for fuzzers: rules, a recorded request, and a request to match.

use super::canonical::CanonicalBody;
use super::diff::Diff;
use super::{CallHash, MatchOutcome, Matching, RecordedCall, Rules};

const KEY: [u8; 32] = [1; 32];

/// The input has three parts, separated by NUL bytes: rules (one per line), the recorded body, and the body
/// to match. Invalid rules are ignored.
///
/// The checks: a request is exact if and only if its bytes equal the recorded ones. It is the same after the
/// matcher if and only if the canonical forms are equal. The comparison finds no difference if and only if
/// they are equal.
pub fn request(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let (text, recorded, asked) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let mut rules = Rules::none();
    for line in String::from_utf8_lossy(text).lines().take(8) {
        rules = rules.clone().rule(line).unwrap_or(rules);
    }
    let (a, b) = (CanonicalBody::new(recorded, &rules), CanonicalBody::new(asked, &rules));
    let (Ok(form_a), Ok(form_b)) = (a.canonical(), b.canonical()) else {
        return assert!(data.is_empty(), "a JSON tree must have a canonical form");
    };
    let same = form_a == form_b;
    if let Ok(diff) = Diff::new(&a, &b, (recorded, asked), &rules)
        && matches!(
            (&a, &b),
            (CanonicalBody::Json(_), CanonicalBody::Json(_))
                | (CanonicalBody::Bytes(_), CanonicalBody::Bytes(_))
        )
    {
        assert_eq!((diff.distance == 0, diff.differences.is_empty()), (same, same));
    }
    let name = "POST /x?a=1".to_owned();
    let call = RecordedCall {
        seq: 1,
        exact: CallHash::new(&KEY, &name, recorded),
        name,
        begun_ns: 0,
        ended_ns: 1,
        arrived: 0,
    };
    let kept = recorded.to_vec();
    let Ok(mut matching) = Matching::new(vec![call], move |_| Ok(kept.clone()), rules, KEY) else { return };
    match matching.ask("POST /x?a=1", asked) {
        Ok(MatchOutcome::Exact(_)) => assert_eq!(recorded, asked),
        Ok(MatchOutcome::Matched(_)) => assert!(same && recorded != asked),
        Ok(MatchOutcome::Diverged(divergence)) => assert!(!same && !divergence.to_string().is_empty()),
        Err(error) => assert_ne!(error.kind(), crate::ErrorKind::Bug),
    }
}
