//! What was answered once, by what was asked: a keyspace of the store, so that its rules and its retention hold for it, too.
//!
//! A key is the BLAKE3 of the embedder's id, a zero byte and the text; the value is the vector's numbers as four bytes each, lowest first. No text is kept.
//! Under the empty text, of which nobody has a vector, stands how many numbers the embedder's vectors have, in four bytes.

use annals::{Durability, History, Keyspace, Namespace, Result};

/// The keyspace.
const NAME: &str = "annals.embeddings";

/// More numbers than a vector can have that is found.
const NUMBERS_MAX: usize = 1 << 16;

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

    /// How many numbers an embedder's vectors have, once there were some.
    pub(super) fn length(&self, id: &str) -> Result<Option<usize>> {
        let kept = self.vectors.get(&key(id, ""))?;
        let length =
            kept.and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok()).map(u32::from_le_bytes);
        Ok(length.map(|length| length as usize).filter(|length| (1..=NUMBERS_MAX).contains(length)))
    }

    /// Keeps vectors of texts, all of one length. What is not on disk yet when the machine goes down is asked for again.
    pub(super) fn put<'a>(
        &self,
        id: &str,
        vectors: impl Iterator<Item = (&'a str, &'a Vec<f32>)>,
    ) -> Result<()> {
        let mut batch = self.space.batch();
        let mut length = None;
        for (text, vector) in vectors {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            batch.put(&self.vectors, &key(id, text), bytes);
            length = u32::try_from(vector.len()).ok();
        }
        if let Some(length) = length {
            batch.put(&self.vectors, &key(id, ""), length.to_le_bytes().to_vec());
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
