//! Embeddings on their way into the log: their limits, and the interface through which `kv` uses the module
//! `vector`.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::NamespaceId;
use crate::kv::core::Core;
use crate::kv::write::BatchWriter;
use crate::log::record::{BodyRef, EMBEDDER_BYTES_MAX, EMBEDDINGS_MAX, KV_INLINE_BYTES_MAX};

/// Maximum number of dimensions: up to here, sums of products of bytes are exact in 32 bits.
pub const DIMENSIONS_MAX: usize = 65_536;

/// Minimum sum of squares of a vector.
const SQUARE_MIN: f64 = 1e-36;
/// Maximum sum of squares of a vector.
const SQUARE_MAX: f64 = 1e38;

/// What a sweep removes from the files of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweptOwners<'a> {
    /// Uids of dropped owners of which no vector may stay.
    pub uids: &'a [u64],
    /// Forgotten keys of which no vector may stay: the keyspace, and the key there.
    pub keys: &'a [(u32, Vec<u8>)],
    /// Rewrite every file with a dead vector, however few it has.
    pub all_dead: bool,
}

/// Finds stored vectors again; the module `vector` implements it.
pub trait EmbeddingIndex: Send + Sync + std::fmt::Debug {
    /// Refuses a vector that has other dimensions than its embedder's first vector in the namespace.
    ///
    /// # Errors
    /// `Invalid`, naming both; `Damaged`, `Unavailable`.
    fn check_dimensions(
        &self,
        core: &Arc<Core>,
        namespace: NamespaceId,
        embedder: &str,
        dimensions: usize,
    ) -> Result<()>;
    /// Notes that a batch with vectors was queued.
    fn note_queued(&self, core: &Arc<Core>);
    /// Removes the vectors of what was dropped from the files. Also rewrites files in which many vectors are dead.
    /// Durable when this returns.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Unavailable`: nothing is lost in any of these cases.
    fn sweep(&self, core: &Arc<Core>, what: &SweptOwners<'_>) -> Result<()>;
    /// Stops the background work; nothing is written afterwards.
    fn stop(&self, core: &Arc<Core>);
}

/// Refuses embeddings that no search could find.
///
/// # Errors
/// `Invalid` for more than 16 embeddings; for an embedder id that is empty, over 256 bytes, has control
/// characters or occurs twice; for a vector that is empty, over 65,536 dimensions, has NaN or infinity, or no
/// direction.
pub fn check_embeddings(embeddings: &[(&str, &[f32])]) -> Result<()> {
    if embeddings.len() > EMBEDDINGS_MAX {
        return Err(Error::invalid(format!("at most {EMBEDDINGS_MAX} embeddings of one value are allowed")));
    }
    for (index, (embedder, vector)) in embeddings.iter().enumerate() {
        check_embedder_id(embedder)?;
        if embeddings[..index].iter().any(|(before, _)| before == embedder) {
            return Err(Error::invalid(format!("there are two embeddings of {embedder:?}: give one")));
        }
        check_vector(embedder, vector)?;
    }
    Ok(())
}

/// Refuses a text that is not a valid embedder id.
pub fn check_embedder_id(embedder: &str) -> Result<()> {
    let fits = (1..=EMBEDDER_BYTES_MAX).contains(&embedder.len()) && !embedder.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "an embedder's id has 1 to {EMBEDDER_BYTES_MAX} bytes and no control characters, not {embedder:?}"
        ))),
    }
}

/// Refuses a vector that cannot be compared with others.
pub fn check_vector(embedder: &str, vector: &[f32]) -> Result<()> {
    let wrong = |why: &str| {
        Err(Error::invalid(format!("the vector of {embedder:?} {why}: no search could ever find it")))
    };
    if vector.is_empty() {
        return wrong("has no dimensions");
    }
    if vector.len() > DIMENSIONS_MAX {
        return wrong(&format!("has {} dimensions, over the limit of {DIMENSIONS_MAX}", vector.len()));
    }
    if vector.iter().any(|x| !x.is_finite()) {
        return wrong("holds NaN or infinity");
    }
    // The sum of squares is then neither zero nor infinite, in whatever order it is added up in 32 bits.
    match vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() {
        square if square < SQUARE_MIN => wrong("is zero, or too small to have a direction"),
        square if square > SQUARE_MAX => wrong("is too large to be compared with others"),
        _ => Ok(()),
    }
}

/// A vector's stored bytes.
pub fn vector_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A vector from its stored bytes; `None` if they are not a whole number of dimensions.
pub fn vector_from_bytes(bytes: &[u8]) -> Option<Vec<f32>> {
    let (whole, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| whole.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Packs a vector. A small one is stored inline in the record, so that reading it needs no decoding.
pub fn pack_vector(writer: &mut BatchWriter, vector: &[f32], tail: &mut Vec<u8>) -> Result<BodyRef> {
    let packed = writer.pack_content(&vector_bytes(vector).into(), KV_INLINE_BYTES_MAX)?;
    packed.put_recipe(None, tail);
    Ok(packed.reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn unsearchable_vectors_are_refused_with_a_reason() {
        let long = vec![1.0; DIMENSIONS_MAX + 1];
        let cases: [(&[f32], &str); 9] = [
            (&[], "no dimensions"),
            (&long, "65537 dimensions"),
            (&[1.0, f32::NAN], "NaN"),
            (&[f32::INFINITY, 1.0], "infinity"),
            (&[f32::NEG_INFINITY], "infinity"),
            (&[0.0, -0.0], "is zero"),
            (&[1e-30, 1e-30], "too small"),
            (&[3e38, 1.0], "too large"),
            (&[f32::MIN_POSITIVE], "too small"),
        ];
        for (vector, why) in cases {
            let error = check_vector("e", vector).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}");
        }
        for vector in [&[1.0][..], &[-1e-17, 0.0], &[1e18], &long[1..]] {
            check_vector("e", vector).unwrap();
        }
        let one = &[1.0][..];
        let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &[f32])> = many.iter().map(|id| (id.as_str(), one)).collect();
        check_embeddings(&many[..16]).unwrap();
        let long = "x".repeat(257);
        for wrong in [&many[..], &[("a", one), ("b", one), ("a", one)], &[("", one)], &[("a\n", one)]] {
            assert_eq!(check_embeddings(wrong).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(check_embeddings(&[(&long, one)]).is_err() && check_embeddings(&[(&long[1..], one)]).is_ok());
    }

    #[test]
    fn vector_bytes_round_trip_exactly() {
        let vector = [1.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX];
        let back = vector_from_bytes(&vector_bytes(&vector)).unwrap();
        assert_eq!(back.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), vector.map(f32::to_bits));
        assert!(vector_from_bytes(&[1, 2, 3]).is_none());
    }
}
