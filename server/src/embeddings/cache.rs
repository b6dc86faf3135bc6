//! What was answered once, by what was asked: a keyspace of the store, so that its rules and its retention hold for it, too.
//!
//! A key is the BLAKE3 of the embedder's id, a zero byte and the text; the value is the vector's numbers as four bytes each, lowest first. No text is kept.

use annals::{Durability, History, Keyspace, Namespace, Result};

/// The keyspace.
const NAME: &str = "annals.embeddings";

/// See the module.
#[derive(Debug)]
pub(super) struct Cache {
    space: Namespace,
    vectors: Keyspace,
}

impl Cache {
    pub(super) fn new(space: &Namespace) -> Result<Self> {
        Ok(Self { space: space.clone(), vectors: space.keyspace(NAME, History::Latest)? })
    }

    /// The vector of a text.
    pub(super) fn get(&self, id: &str, text: &str) -> Result<Option<Vec<f32>>> {
        let Some(bytes) = self.vectors.get(&key(id, text))? else { return Ok(None) };
        let (numbers, rest) = bytes.as_chunks::<4>();
        let vector: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        // Whoever else writes this keyspace may have written anything: it is asked for again.
        let is_one = rest.is_empty() && !vector.is_empty() && vector.iter().all(|number| number.is_finite());
        Ok(is_one.then_some(vector))
    }

    /// Keeps vectors of texts. What is not on disk yet when the machine goes down is asked for again.
    pub(super) fn put<'a>(
        &self,
        id: &str,
        vectors: impl Iterator<Item = (&'a str, &'a Vec<f32>)>,
    ) -> Result<()> {
        let mut batch = self.space.batch();
        let mut any = false;
        for (text, vector) in vectors {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            batch.put(&self.vectors, &key(id, text), bytes);
            any = true;
        }
        if any {
            batch.submit_with(Durability::Process)?.wait()?;
        }
        Ok(())
    }
}

fn key(id: &str, text: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(id.as_bytes()).update(b"\0").update(text.as_bytes());
    *hasher.finalize().as_bytes()
}
