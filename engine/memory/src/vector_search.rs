//! Search for entries by vector.
//!
//! Each entry's vector stands in the vector index beside its text. The partition's name holds the number of
//! dimensions and the embedder. So entries of any embedder and length can coexist, and only comparable
//! vectors are compared. All tenants of a namespace share a partition; the key tells the owner, and a search
//! filters by key prefix.

use std::collections::HashSet;

use super::embedder::Embedder;
use super::operations::{embedder_mismatch, entry_key, has_tier, identity_of_key, key_prefix};
use super::rank::{rank, resolve_source};
use super::recall::{RANKED_EACH, RANKED_MIN};
use super::run_recall::{best_of_runs, run_of_key};
use super::*;
use annals::vectors::{Owner, OwnerFilter, Search};
use annals_store::log::segments::lock;
use annals_store::sync::{Mutex, rank};
use annals_vector::kernel::dot;

/// Longer embedder ids are hashed in partition names.
const EMBEDDER_BYTES_MAX: usize = 200;

/// The name of the partition for vectors of an embedder.
pub(super) fn partition_name(numbers: usize, embedder: Option<&str>) -> String {
    match embedder {
        None => numbers.to_string(),
        Some(plain) if plain.len() <= EMBEDDER_BYTES_MAX && !plain.chars().any(char::is_control) => {
            format!("{numbers}/{plain}")
        }
        Some(other) => format!("{numbers}#{}", blake3::hash(other.as_bytes()).to_hex()),
    }
}

/// The embedder that a partition of memory names, or the hash of its id; `None` for other partitions.
pub(super) fn embedder_of_partition(name: &str) -> Option<&str> {
    let at = name.find(['/', '#'])?;
    let numbers = name.get(..at)?;
    (!numbers.is_empty() && numbers.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.get(at + 1..))?
}

/// Whether the vectors of a partition have this many dimensions.
fn has_dimensions(name: &str, numbers: usize) -> bool {
    let digits = name.find(['/', '#']).map_or(name, |end| name.get(..end).unwrap_or_default());
    digits.parse() == Ok(numbers)
}

/// The entries that a search may return.
struct SearchFilter<'a> {
    memory: &'a Memory,
    prefix: &'a str,
    /// Only entries of recorded runs.
    of_runs: bool,
    tiers: &'a [String],
    /// The first error met while filtering.
    failed: Mutex<Option<Error>, { rank::MEMORY_SEARCH_FAILURE }>,
}

impl SearchFilter<'_> {
    fn passes(&self, owner: &Owner) -> bool {
        let Some(key) = self.visible_key(owner) else { return false };
        match self.memory.live_entry(key) {
            Ok(entry) => entry.is_some_and(|entry| has_tier(&entry, self.tiers)),
            Err(error) => {
                lock(&self.failed).get_or_insert(error);
                false
            }
        }
    }

    /// The key of an owner, if it is an entry within the search's prefix.
    fn visible_key<'b>(&self, owner: &'b Owner) -> Option<&'b [u8]> {
        match owner {
            Owner::Key { keyspace, key }
                if keyspace == ENTRIES
                    && key.starts_with(self.prefix.as_bytes())
                    && (!self.of_runs || run_of_key(key).is_some()) =>
            {
                Some(key)
            }
            _ => None,
        }
    }

    /// The nearest entries of a partition that pass the filter.
    fn nearest(&self, name: &str, vector: &[f32], k: usize, min_score: f32) -> Result<Vec<(f32, Vec<u8>)>> {
        let filter = |owner: &Owner| self.passes(owner);
        let among = OwnerFilter::keys(ENTRIES, self.prefix.as_bytes());
        let wanted =
            Search { k, min_score, owners: Some(&among), filter: Some(&filter), ..Search::default() };
        let found = match self.memory.space.nearest(name, vector, &wanted) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        match lock(&self.failed).take() {
            Some(error) => Err(error),
            None => Ok(found
                .iter()
                .filter_map(|found| Some((found.score, self.visible_key(&found.owner)?.to_vec())))
                .collect()),
        }
    }
}

impl Memory {
    /// Entries whose vectors are nearest to `vector`, the nearest first, ties by id. Scores equal to the
    /// minimum are included. A derived entry stands behind its source if both are found. The hits are noted as
    /// the identity's recent recall, as those of [`Memory::recall`] are.
    ///
    /// # Errors
    /// `Invalid` for a malformed vector, or if nothing was found and the stored entries use another embedder,
    /// which the error names; `Damaged`, `Unavailable`.
    pub fn search(
        &self,
        identity: &Identity,
        vector: &[f32],
        wanted: &MemoryQuery<'_>,
    ) -> Result<Vec<MemoryHit>> {
        let prefix = key_prefix(identity, wanted)?;
        squared_norm(vector)?;
        let least = wanted.min_score.unwrap_or(THRESHOLD);
        let names = self.partition_names(vector.len(), wanted)?;
        let passing = SearchFilter {
            memory: self,
            prefix: &prefix,
            of_runs: false,
            tiers: wanted.tiers,
            failed: Mutex::new(None),
        };
        let most = wanted.hit_limit().saturating_mul(RANKED_EACH).max(RANKED_MIN);
        let mut found = Vec::new();
        for name in &names {
            found.extend(passing.nearest(name, vector, most, least)?);
        }
        if found.is_empty() {
            if let Some(embedder) = wanted.embedder {
                let mut any = false;
                for name in &names {
                    any |= !passing.nearest(name, vector, 1, -1.0)?.is_empty();
                }
                if !any {
                    self.check_comparable(&prefix, vector.len(), embedder, wanted.tiers)?;
                }
            }
            return Ok(Vec::new());
        }
        found.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        found.truncate(most);
        let mut hits = rank(self.hits_with_sources(&prefix, vector, wanted, found)?, wanted)?;
        hits.truncate(wanted.hit_limit());
        self.note_recall(identity, &hits);
        Ok(hits)
    }

    /// The entries of runs that are nearest to a vector, of at most `run_max` runs, whatever their tenants.
    pub(super) fn runs_by_vector(
        &self,
        vector: &[f32],
        with: &dyn Embedder,
        run_max: usize,
    ) -> Result<Vec<(f32, Vec<u8>)>> {
        squared_norm(vector)?;
        let name = partition_name(vector.len(), Some(with.id()));
        let passing =
            SearchFilter { memory: self, prefix: "", of_runs: true, tiers: &[], failed: Mutex::new(None) };
        let mut k = run_max.max(1);
        // Many questions of one run may be the nearest: then more are read.
        loop {
            let found = passing.nearest(&name, vector, k, with.threshold())?;
            let is_all = found.len() < k;
            let best = best_of_runs(found.into_iter().map(Ok), run_max)?;
            if is_all || best.is_full {
                return Ok(best.found);
            }
            k = k.saturating_mul(RANKED_EACH);
        }
    }

    /// The partitions with vectors that can be compared with one of this length.
    fn partition_names(&self, numbers: usize, wanted: &MemoryQuery<'_>) -> Result<Vec<String>> {
        // An entry may have a vector without naming its embedder.
        if let Some(embedder) = wanted.embedder {
            return Ok(vec![partition_name(numbers, Some(embedder)), partition_name(numbers, None)]);
        }
        let all = self.space.embedders()?;
        Ok(all.into_iter().filter(|name| has_dimensions(name, numbers)).collect())
    }

    /// The found entries, and their sources that also pass the filter and the minimum score.
    fn hits_with_sources(
        &self,
        prefix: &str,
        vector: &[f32],
        wanted: &MemoryQuery<'_>,
        mut found: Vec<(f32, Vec<u8>)>,
    ) -> Result<Vec<MemoryHit>> {
        let least = wanted.min_score.unwrap_or(THRESHOLD);
        let mut taken: HashSet<Vec<u8>> = found.iter().map(|(_, key)| key.clone()).collect();
        let mut hits = Vec::new();
        while let Some((score, key)) = found.pop() {
            let Some(entry) = self.live_entry(&key)? else { continue };
            let identity = identity_of_key(&key);
            for said in &entry.derived_from {
                let (of, id) = resolve_source(&identity, said);
                let source = entry_key(of, id);
                if !source.starts_with(prefix.as_bytes()) || !taken.insert(source.clone()) {
                    continue;
                }
                let Some(entry) = self.live_entry(&source)?.filter(|entry| has_tier(entry, wanted.tiers))
                else {
                    continue;
                };
                let is_other = wanted
                    .embedder
                    .is_some_and(|asked| entry.embedder.as_deref().is_some_and(|of| of != asked));
                let score = entry.embedding.as_deref().filter(|own| !is_other && own.len() == vector.len());
                found.extend(
                    score
                        .map(|own| cosine(vector, own))
                        .filter(|score| *score >= least)
                        .map(|score| (score, source)),
                );
            }
            hits.push(MemoryHit { entry, identity, score });
        }
        Ok(hits)
    }

    /// # Errors
    /// `Invalid` if the entries under a prefix have vectors of another length or embedder.
    fn check_comparable(&self, prefix: &str, numbers: usize, embedder: &str, tiers: &[String]) -> Result<()> {
        let (mut others, mut lengths) = (BTreeSet::new(), BTreeSet::new());
        self.for_each_entry(prefix, &mut |_, entry| {
            if let Some(own) = entry.embedding.as_deref().filter(|_| has_tier(&entry, tiers)) {
                match &entry.embedder {
                    Some(of) if of != embedder => others.insert(of.clone()),
                    _ => lengths.insert(own.len()),
                };
            }
            Ok(())
        })?;
        if let Some(length) = lengths.iter().find(|length| **length != numbers) {
            return Err(length_mismatch(embedder, numbers, *length));
        }
        match others.first() {
            Some(other) => Err(embedder_mismatch(embedder, other)),
            None => Ok(()),
        }
    }
}

/// The error if the embedder's stored vectors have another length than the question's.
pub(super) fn length_mismatch(embedder: &str, asked: usize, kept: usize) -> Error {
    Error::invalid(format!(
        "the question's vector has {asked} numbers, but the stored vectors of {embedder:?} have {kept}"
    ))
}

/// The squared length of a vector.
///
/// # Errors
/// `Invalid` if a number is not finite, or if the length is zero or overflows.
pub(super) fn squared_norm(vector: &[f32]) -> Result<f64> {
    if let Some(place) = vector.iter().position(|number| !number.is_finite()) {
        return Err(Error::invalid(format!("number {} of the vector is not finite", place + 1)));
    }
    let squared = f64::from(dot(vector, vector));
    match squared > 0.0 && squared.is_finite() {
        true => Ok(squared),
        false => Err(Error::invalid("a vector must not be all zeros, and its length must be finite")),
    }
}

/// Cosine similarity, computed as the vector index does.
#[expect(clippy::cast_possible_truncation, reason = "a score is rounded to 32 bits")]
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let squares = f64::from(dot(a, a)) * f64::from(dot(b, b));
    if squares <= 0.0 {
        return 0.0;
    }
    (f64::from(dot(a, b)) / squares.sqrt()).clamp(-1.0, 1.0) as f32
}
