//! The cache of vectors: a keyspace of the store, so that retention and access rules hold for it.
//!
//! A key is the BLAKE3 of the embedder's id, a zero byte and the text. The value is the vector, four bytes
//! for each number, little-endian. No text is stored. The empty text has no vector: under its key stands the
//! length of the embedder's vectors, in four bytes.

use annals::{Durability, History, Keyspace, Namespace, Result};

/// The keyspace of the cache.
const KEYSPACE: &str = "annals.embeddings";

/// Larger than any vector that can be searched.
const DIMENSIONS_MAX: usize = 1 << 16;

/// The cached vectors of a namespace: see the module.
#[derive(Debug)]
pub(super) struct VectorCache {
    space: Namespace,
    vectors: Keyspace,
}

impl VectorCache {
    pub(super) fn new(space: &Namespace) -> Result<Self> {
        Ok(Self { space: space.clone(), vectors: space.keyspace(KEYSPACE, History::Latest)? })
    }

    /// The cached vector of a text.
    pub(super) fn get(&self, id: &str, text: &str) -> Result<Option<Vec<f32>>> {
        let Some(bytes) = self.vectors.get(&cache_key(id, text))? else { return Ok(None) };
        let (numbers, rest) = bytes.as_chunks::<4>();
        let vector: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        // Other programs can write this keyspace: a malformed value is ignored, and the vector is requested
        // again.
        let is_one = rest.is_empty() && !vector.is_empty() && vector.iter().all(|number| number.is_finite());
        Ok(is_one.then_some(vector))
    }

    /// The length of an embedder's vectors, once a vector was cached.
    pub(super) fn length(&self, id: &str) -> Result<Option<usize>> {
        let kept = self.vectors.get(&cache_key(id, ""))?;
        let length =
            kept.and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok()).map(u32::from_le_bytes);
        Ok(length.map(|length| length as usize).filter(|length| (1..=DIMENSIONS_MAX).contains(length)))
    }

    /// Caches vectors, all of one length. The write is not synced: vectors lost in a power failure are
    /// requested again.
    pub(super) fn put<'a>(
        &self,
        id: &str,
        vectors: impl Iterator<Item = (&'a str, &'a Vec<f32>)>,
    ) -> Result<()> {
        let mut batch = self.space.batch();
        let mut length = None;
        for (text, vector) in vectors {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            batch.put(&self.vectors, &cache_key(id, text), bytes);
            length = u32::try_from(vector.len()).ok();
        }
        if let Some(length) = length {
            batch.put(&self.vectors, &cache_key(id, ""), length.to_le_bytes().to_vec());
            batch.submit_with(Durability::Process)?.wait()?;
        }
        Ok(())
    }
}

fn cache_key(id: &str, text: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(id.as_bytes()).update(b"\0").update(text.as_bytes());
    *hasher.finalize().as_bytes()
}
