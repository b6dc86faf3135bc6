//! A run's hash chain. A link binds a frame's component, parent, blob ids and canonical metadata to all
//! frames before it. Times and the metadata's key `volatile` are left out, so that the same run recorded
//! elsewhere has the same fingerprint.

use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use serde_json::Value;

use crate::ids::{BlobId, Link};
use crate::trace::model::Component;

/// Hash of a frame's content, before it is bound to the frames before it.
pub(crate) type FrameDigest = [u8; 32];

static LINK_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("annals run link 1"));
static FRAME_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("annals run frame 1"));
/// Hash of empty metadata, which most frames have.
static NO_METADATA: LazyLock<[u8; 32]> = LazyLock::new(|| *blake3::hash(&[]).as_bytes());

/// The link before frame 1.
pub(crate) fn genesis() -> Link {
    Link(*blake3::Hasher::new_derive_key("annals run chain 1").finalize().as_bytes())
}

/// The link after a frame.
pub(crate) fn next(before: &Link, frame: &FrameDigest) -> Link {
    let mut hasher = blake3::Hasher::new_from_context_key(&LINK_KEY);
    hasher.update(&before.0);
    hasher.update(frame);
    Link(*hasher.finalize().as_bytes())
}

/// The digest of a frame's content. `incomplete`: the frame was begun and never finished.
pub(crate) fn digest(
    component: &Component,
    parent: u32,
    incomplete: bool,
    error: bool,
    input: BlobId,
    output: BlobId,
    metadata: &[u8],
) -> FrameDigest {
    let mut hasher = blake3::Hasher::new_from_context_key(&FRAME_KEY);
    hasher.update(&[component.code()]);
    if let Component::Other(name) = component {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    hasher.update(&parent.to_le_bytes());
    hasher.update(&[u8::from(incomplete), u8::from(error)]);
    hasher.update(&input.0);
    hasher.update(&output.0);
    hasher.update(&canonical_metadata(metadata));
    *hasher.finalize().as_bytes()
}

/// Hash of the canonical form (RFC 8785) of a JSON object without its key `volatile`. Metadata that is not a
/// JSON object is hashed as it is.
pub(crate) fn canonical_metadata(metadata: &[u8]) -> [u8; 32] {
    if metadata.is_empty() {
        return *NO_METADATA;
    }
    let canonical = match serde_json::from_slice(metadata) {
        Ok(Value::Object(mut object)) => {
            object.remove("volatile");
            serde_json_canonicalizer::to_vec(&object).ok()
        }
        _ => None,
    };
    *blake3::hash(canonical.as_deref().unwrap_or(metadata)).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(metadata: &str) -> FrameDigest {
        let id = BlobId::of(b"x");
        digest(&Component::Llm, 0, false, false, id, id, metadata.as_bytes())
    }

    #[test]
    fn digest_ignores_order_space_and_volatile_keys() {
        assert_eq!(of(r#"{"a":1,"b":"x","volatile":{"id":7}}"#), of(r#"{ "b":"\u0078", "a":1.0 }"#));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":2}"#));
        assert_ne!(of("not json"), of("not  json"));
    }
}
