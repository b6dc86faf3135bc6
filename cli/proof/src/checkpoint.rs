//! Checkpoints: format.md, section 18.

use serde::Deserialize;

use crate::Hash;
use crate::error::ProofError;
use crate::keys::PublicKey;
use crate::text::{hex, unhex_exact};
use crate::tree;

const MARKS_MAX: usize = 64;

/// The head of a ledger at one moment. Parsing has checked its digest, its marks and its signature, if it has
/// one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCheckpoint {
    /// The store's identity.
    pub store: [u8; 16],
    /// Leaves of the tree.
    pub leaves: u64,
    /// The tree's root.
    pub root: Hash,
    /// The last record covered.
    pub seqno: u64,
    /// When it was made, nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// What the store held; `None` in a checkpoint of version 1.
    pub counts: Option<CheckedCounts>,
    /// What its parts held; `None` before version 3.
    pub parts: Option<CheckedParts>,
    /// Complete subtrees that tile the tree.
    pub marks: Vec<CheckedMark>,
    /// Who signed it, if anybody did.
    pub signature: Option<CheckedSignature>,
}

/// What a store held when a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedCounts {
    /// Logical records that existed.
    pub living: u64,
    /// Erased records.
    pub erased: u64,
    /// Leaves of which no record existed.
    pub erased_leaves: u64,
    /// Run numbers on record.
    pub runs: u64,
    /// The greatest run number in use.
    pub last_run: u64,
}

/// What the parts of a store held when a checkpoint was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedParts {
    /// Logical records that existed, by mark.
    pub living_by_mark: Vec<u64>,
    /// Tombstones, statements of erasures, and definitions of namespaces and keyspaces.
    pub permanent: u64,
    /// How many run numbers a part has.
    pub run_span: u64,
    /// The parts with a record, ascending.
    pub runs: Vec<CheckedRunPart>,
}

/// What a part of the run numbers held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckedRunPart {
    /// The least run number.
    pub first: u64,
    /// Whole frames and final ends of runs that were neither dropped nor replaced.
    pub records: u64,
    /// Those of the other runs that still existed.
    pub dropped: u64,
    /// Snapshots of runs that were neither dropped nor replaced.
    pub snapshots: u64,
}

/// A complete subtree of a checkpoint's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedMark {
    /// Where its leaves end.
    pub leaves: u64,
    /// Its last record.
    pub seqno: u64,
    /// When its last batch was queued.
    pub time_ns: u64,
    /// Its root.
    pub node: Hash,
}

/// A valid signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedSignature {
    /// The key that made the signature.
    pub key: PublicKey,
    /// Its bytes.
    pub bytes: [u8; 64],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckpointInput {
    annals_checkpoint: u32,
    store: String,
    leaves: u64,
    root: String,
    seqno: u64,
    time_ns: u64,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    living: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    erased: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    erased_leaves: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    runs: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    last_run: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    living_by_mark: Option<Vec<u64>>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    permanent: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    run_span: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    run_parts: Option<Vec<CheckedRunPart>>,
    marks: Vec<MarkInput>,
    digest: String,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    signature: Option<SignatureInput>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkInput {
    leaves: u64,
    seqno: u64,
    time_ns: u64,
    node: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureInput {
    algorithm: String,
    public_key: String,
    signature: String,
}

/// Deserializes a field that may be absent but not null.
pub(crate) fn deserialize_non_null<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(from).map(Some)
}

fn wrong_fields() -> ProofError {
    ProofError::malformed("the checkpoint's fields are not those of its version")
}

impl CheckedCheckpoint {
    /// Parses a checkpoint from JSON, and checks its digest, its marks and its signature, if it has one.
    ///
    /// # Errors
    /// `Malformed` if this is no checkpoint, `Refused` if it contradicts itself or its signature is invalid.
    pub fn parse(json: &[u8]) -> Result<Self, ProofError> {
        let read: CheckpointInput = serde_json::from_slice(json)
            .map_err(|e| ProofError::malformed(format!("this is not a checkpoint of annals: {e}")))?;
        Self::from_input(read)
    }

    pub(crate) fn from_input(read: CheckpointInput) -> Result<Self, ProofError> {
        let listed = (read.living, read.erased, read.erased_leaves, read.runs, read.last_run);
        let counts = match listed {
            (Some(living), Some(erased), Some(erased_leaves), Some(runs), Some(last_run)) => {
                Some(CheckedCounts { living, erased, erased_leaves, runs, last_run })
            }
            (None, None, None, None, None) => None,
            _ => return Err(wrong_fields()),
        };
        let parts = match (read.living_by_mark, read.permanent, read.run_span, read.run_parts) {
            (Some(living_by_mark), Some(permanent), Some(run_span), Some(runs)) => {
                Some(CheckedParts { living_by_mark, permanent, run_span, runs })
            }
            (None, None, None, None) => None,
            _ => return Err(wrong_fields()),
        };
        match (read.annals_checkpoint, counts.is_some(), parts.is_some()) {
            (1, false, false) | (2, true, false) | (3, true, true) => {}
            (1..=3, ..) => return Err(wrong_fields()),
            (version, ..) => {
                let what = format!("this checkpoint has version {version}; 1 to 3 are known");
                return Err(ProofError::malformed(what));
            }
        }
        if read.marks.len() > MARKS_MAX {
            return Err(ProofError::refused("the checkpoint has over 64 marks"));
        }
        let mut marks = Vec::new();
        for mark in &read.marks {
            let node = unhex_exact(&mark.node)?;
            marks.push(CheckedMark { leaves: mark.leaves, seqno: mark.seqno, time_ns: mark.time_ns, node });
        }
        let mut checkpoint = Self {
            store: unhex_exact(&read.store)?,
            leaves: read.leaves,
            root: unhex_exact(&read.root)?,
            seqno: read.seqno,
            time_ns: read.time_ns,
            counts,
            parts,
            marks,
            signature: None,
        };
        checkpoint.check_marks()?;
        checkpoint.check_counts()?;
        checkpoint.check_parts()?;
        if checkpoint.digest() != unhex_exact::<32>(&read.digest)? {
            return Err(ProofError::refused("the checkpoint's digest does not match its fields"));
        }
        if let Some(signature) = read.signature {
            if signature.algorithm != "ed25519" {
                return Err(ProofError::malformed("the signature's algorithm is not ed25519"));
            }
            let key = PublicKey(unhex_exact(&signature.public_key)?);
            let bytes = unhex_exact(&signature.signature)?;
            if !key.verifies(&checkpoint.statement(), &bytes) {
                return Err(ProofError::refused("the checkpoint's signature is invalid"));
            }
            checkpoint.signature = Some(CheckedSignature { key, bytes });
        }
        Ok(checkpoint)
    }

    fn check_marks(&self) -> Result<(), ProofError> {
        let mut subtrees = Vec::new();
        let mut before = (0, 0);
        for mark in &self.marks {
            if mark.leaves <= before.0 || mark.seqno <= before.1 {
                return Err(ProofError::refused("the checkpoint's marks are not in order"));
            }
            subtrees.push((mark.leaves - before.0, mark.node));
            before = (mark.leaves, mark.seqno);
        }
        if before != (self.leaves, self.seqno) || tree::root_of_subtrees(&subtrees) != Some(self.root) {
            return Err(ProofError::refused("the checkpoint's marks do not give its root"));
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), ProofError> {
        let Some(counts) = &self.counts else { return Ok(()) };
        let records = counts.living.checked_add(counts.erased);
        match records.is_some_and(|records| records <= self.seqno)
            && counts.erased_leaves <= self.leaves
            && counts.runs <= counts.last_run
            && counts.last_run <= 1 << 56
        {
            true => Ok(()),
            false => Err(ProofError::refused("the checkpoint's counts contradict each other")),
        }
    }

    fn check_parts(&self) -> Result<(), ProofError> {
        let (Some(counts), Some(parts)) = (&self.counts, &self.parts) else { return Ok(()) };
        let CheckedParts { living_by_mark, permanent, run_span, runs } = parts;
        let own = |part: &CheckedRunPart| [part.records, part.dropped, part.snapshots];
        let of_runs = runs.iter().flat_map(own).try_fold(*permanent, u64::checked_add);
        let begins_later = |pair: &[CheckedRunPart]| pair[0].first < pair[1].first;
        match run_span.is_power_of_two()
            && runs.len() <= 256
            && runs.iter().all(|part| part.first % run_span == 0 && own(part) != [0; 3])
            && runs.windows(2).all(begins_later)
            && runs.last().is_none_or(|part| part.first <= counts.last_run)
            && living_by_mark.len() == self.marks.len()
            && living_by_mark.iter().copied().try_fold(0, u64::checked_add) == Some(counts.living)
            && of_runs.is_some_and(|records| records <= counts.living)
        {
            true => Ok(()),
            false => Err(ProofError::refused("the checkpoint's counts of parts contradict the others")),
        }
    }

    /// The bytes that are signed.
    #[must_use]
    pub fn statement(&self) -> Vec<u8> {
        let mut lines = vec![
            format!(
                "annals checkpoint {}",
                1 + u8::from(self.counts.is_some()) + u8::from(self.parts.is_some())
            ),
            format!("store {}", hex(&self.store)),
            format!("leaves {}", self.leaves),
            format!("root {}", hex(&self.root)),
            format!("seqno {}", self.seqno),
            format!("time_ns {}", self.time_ns),
        ];
        if let Some(counts) = &self.counts {
            lines.push(format!("living {}", counts.living));
            lines.push(format!("erased {}", counts.erased));
            lines.push(format!("erased_leaves {}", counts.erased_leaves));
            lines.push(format!("runs {}", counts.runs));
            lines.push(format!("last_run {}", counts.last_run));
        }
        if let Some(parts) = &self.parts {
            let living: String = parts.living_by_mark.iter().map(|count| format!(" {count}")).collect();
            lines.push(format!("living_by_mark{living}"));
            lines.push(format!("permanent {}", parts.permanent));
            lines.push(format!("run_span {}", parts.run_span));
            for CheckedRunPart { first, records, dropped, snapshots } in &parts.runs {
                lines.push(format!("runs {first} {records} {dropped} {snapshots}"));
            }
        }
        for mark in &self.marks {
            lines.push(format!("mark {} {} {} {}", mark.leaves, mark.seqno, mark.time_ns, hex(&mark.node)));
        }
        lines.push(String::new());
        lines.join("\n").into_bytes()
    }

    /// BLAKE3 of the statement: a name for the checkpoint.
    #[must_use]
    pub fn digest(&self) -> Hash {
        *blake3::hash(&self.statement()).as_bytes()
    }

    /// Refuses a checkpoint that this key did not sign.
    ///
    /// # Errors
    /// `Refused`.
    pub fn require_signed_by(&self, key: &PublicKey) -> Result<(), ProofError> {
        match &self.signature {
            Some(signature) if signature.key == *key => Ok(()),
            Some(signature) => Err(ProofError::refused(format!(
                "the checkpoint is signed by key {}, not by {key}",
                signature.key
            ))),
            None => Err(ProofError::refused(format!(
                "the checkpoint is not signed; key {key} must have signed it"
            ))),
        }
    }
}
