//! Checkpoints: format.md, section 18.

use serde::Deserialize;

use crate::Hash;
use crate::error::Error;
use crate::keys::PublicKey;
use crate::text::{hex, unhex_exact};
use crate::tree;

const MARKS_MAX: usize = 64;

/// The head of a ledger at one moment. Parsing has checked its digest, its marks and its signature, if it has
/// one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
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
    /// Complete subtrees that tile the tree.
    pub marks: Vec<Mark>,
    /// Who signed it, if anybody did.
    pub signature: Option<Signature>,
}

/// A complete subtree of a checkpoint's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
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
pub struct Signature {
    /// The key that made the signature.
    pub key: PublicKey,
    /// Its bytes.
    pub bytes: [u8; 64],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckpointJson {
    annals_checkpoint: u32,
    store: String,
    leaves: u64,
    root: String,
    seqno: u64,
    time_ns: u64,
    marks: Vec<MarkJson>,
    digest: String,
    #[serde(default, deserialize_with = "present")]
    signature: Option<SignatureJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkJson {
    leaves: u64,
    seqno: u64,
    time_ns: u64,
    node: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureJson {
    algorithm: String,
    public_key: String,
    signature: String,
}

/// Deserializes a field that may be absent but not null.
pub(crate) fn present<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(from).map(Some)
}

impl Checkpoint {
    /// Parses a checkpoint from JSON, and checks its digest, its marks and its signature, if it has one.
    ///
    /// # Errors
    /// `Malformed` if this is no checkpoint, `Refused` if it contradicts itself or its signature is invalid.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let read: CheckpointJson = serde_json::from_slice(json)
            .map_err(|e| Error::malformed(format!("this is not a checkpoint of annals: {e}")))?;
        Self::of(read)
    }

    pub(crate) fn of(read: CheckpointJson) -> Result<Self, Error> {
        if read.annals_checkpoint != 1 {
            let version = read.annals_checkpoint;
            return Err(Error::malformed(format!("this checkpoint has version {version}; 1 is known")));
        }
        if read.marks.len() > MARKS_MAX {
            return Err(Error::refused("the checkpoint has over 64 marks"));
        }
        let mut marks = Vec::new();
        for mark in &read.marks {
            let node = unhex_exact(&mark.node)?;
            marks.push(Mark { leaves: mark.leaves, seqno: mark.seqno, time_ns: mark.time_ns, node });
        }
        let mut checkpoint = Self {
            store: unhex_exact(&read.store)?,
            leaves: read.leaves,
            root: unhex_exact(&read.root)?,
            seqno: read.seqno,
            time_ns: read.time_ns,
            marks,
            signature: None,
        };
        checkpoint.check_marks()?;
        if checkpoint.digest() != unhex_exact::<32>(&read.digest)? {
            return Err(Error::refused("the checkpoint's digest does not match its fields"));
        }
        if let Some(signature) = read.signature {
            if signature.algorithm != "ed25519" {
                return Err(Error::malformed("the signature's algorithm is not ed25519"));
            }
            let key = PublicKey(unhex_exact(&signature.public_key)?);
            let bytes = unhex_exact(&signature.signature)?;
            if !key.signed(&checkpoint.statement(), &bytes) {
                return Err(Error::refused("the checkpoint's signature is invalid"));
            }
            checkpoint.signature = Some(Signature { key, bytes });
        }
        Ok(checkpoint)
    }

    fn check_marks(&self) -> Result<(), Error> {
        let mut subtrees = Vec::new();
        let mut before = (0, 0);
        for mark in &self.marks {
            if mark.leaves <= before.0 || mark.seqno <= before.1 {
                return Err(Error::refused("the checkpoint's marks are not in order"));
            }
            subtrees.push((mark.leaves - before.0, mark.node));
            before = (mark.leaves, mark.seqno);
        }
        if before != (self.leaves, self.seqno) || tree::of_subtrees(&subtrees) != Some(self.root) {
            return Err(Error::refused("the checkpoint's marks do not give its root"));
        }
        Ok(())
    }

    /// The bytes that are signed.
    #[must_use]
    pub fn statement(&self) -> Vec<u8> {
        let mut lines = vec![
            "annals checkpoint 1".to_owned(),
            format!("store {}", hex(&self.store)),
            format!("leaves {}", self.leaves),
            format!("root {}", hex(&self.root)),
            format!("seqno {}", self.seqno),
            format!("time_ns {}", self.time_ns),
        ];
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
    pub fn signed_by(&self, key: &PublicKey) -> Result<(), Error> {
        match &self.signature {
            Some(signature) if signature.key == *key => Ok(()),
            Some(signature) => Err(Error::refused(format!(
                "the checkpoint is signed by key {}, not by {key}",
                signature.key
            ))),
            None => {
                Err(Error::refused(format!("the checkpoint is not signed; key {key} must have signed it")))
            }
        }
    }
}
