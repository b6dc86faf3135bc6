//! Checkpoints and proofs as JSON. docs/format.md describes the form. Hashes are lower-case hexadecimal.

use annals_text::hex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{NodeHash, Seqno, StoreId};
use crate::ledger::checkpoint::{Checkpoint, Mark, PartCounts, RecordCounts, Signature};
use crate::trace::RunPart;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointJson {
    annals_checkpoint: u32,
    store: String,
    leaves: u64,
    root: String,
    seqno: u64,
    time_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    living: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    erased: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    erased_leaves: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    runs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    last_run: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    living_by_mark: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    permanent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    run_span: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    run_parts: Option<Vec<RunPartJson>>,
    marks: Vec<MarkJson>,
    digest: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    signature: Option<SignatureJson>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkJson {
    leaves: u64,
    seqno: u64,
    time_ns: u64,
    node: String,
}

/// How many records a part of the run numbers has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunPartJson {
    first: u64,
    records: u64,
    dropped: u64,
    snapshots: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureJson {
    algorithm: String,
    public_key: String,
    signature: String,
}

impl CheckpointJson {
    pub(super) fn new(checkpoint: &Checkpoint, signature: Option<&Signature>) -> Self {
        let (counts, parts) = (checkpoint.counts.as_ref(), checkpoint.parts.as_ref());
        Self {
            annals_checkpoint: checkpoint.version(),
            store: checkpoint.store.to_string(),
            leaves: checkpoint.leaves,
            root: checkpoint.root.to_string(),
            seqno: checkpoint.seqno.0,
            time_ns: checkpoint.time_ns,
            living: counts.map(|counts| counts.living),
            erased: counts.map(|counts| counts.erased),
            erased_leaves: counts.map(|counts| counts.erased_leaves),
            runs: counts.map(|counts| counts.runs),
            last_run: counts.map(|counts| counts.last_run),
            living_by_mark: parts.map(|parts| parts.living_by_mark.clone()),
            permanent: parts.map(|parts| parts.permanent),
            run_span: parts.map(|parts| parts.run_span),
            run_parts: parts.map(|parts| {
                let each = parts.runs.iter().map(|part| {
                    let RunPart { first, records, dropped, snapshots } = *part;
                    RunPartJson { first, records, dropped, snapshots }
                });
                each.collect()
            }),
            marks: checkpoint
                .marks
                .iter()
                .map(|mark| MarkJson {
                    leaves: mark.leaves,
                    seqno: mark.seqno.0,
                    time_ns: mark.time_ns,
                    node: mark.node.to_string(),
                })
                .collect(),
            digest: checkpoint.digest().to_string(),
            signature: signature.map(|signature| SignatureJson {
                algorithm: "ed25519".into(),
                public_key: hex::encode(&signature.public_key),
                signature: hex::encode(&signature.bytes),
            }),
        }
    }
}

impl Checkpoint {
    /// The checkpoint as one line of JSON, with the signature if one is given.
    ///
    /// # Errors
    /// `Bug` only.
    pub fn to_json(&self, signature: Option<&Signature>) -> Result<String> {
        to_json_text(&CheckpointJson::new(self, signature))
    }

    /// Parses a checkpoint. The signature is not checked: callers that have the key must check it first.
    ///
    /// # Errors
    /// `Invalid` if this is not a checkpoint, or its marks or digest do not match its fields.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let wrong = |what: String| Error::invalid(format!("this is not a checkpoint of annals: {what}"));
        let read: CheckpointJson = serde_json::from_slice(json).map_err(|e| wrong(e.to_string()))?;
        let listed = (read.living, read.erased, read.erased_leaves, read.runs, read.last_run);
        let counts = match listed {
            (Some(living), Some(erased), Some(erased_leaves), Some(runs), Some(last_run)) => {
                Some(RecordCounts { living, erased, erased_leaves, runs, last_run })
            }
            (None, None, None, None, None) => None,
            _ => return Err(wrong("its fields are not those of its version".into())),
        };
        let parts = match (read.living_by_mark, read.permanent, read.run_span, read.run_parts) {
            (Some(living_by_mark), Some(permanent), Some(run_span), Some(runs)) => {
                let part = |RunPartJson { first, records, dropped, snapshots }| RunPart {
                    first,
                    records,
                    dropped,
                    snapshots,
                };
                let runs = runs.into_iter().map(part).collect();
                Some(PartCounts { living_by_mark, permanent, run_span, runs })
            }
            (None, None, None, None) => None,
            _ => return Err(wrong("its fields are not those of its version".into())),
        };
        match (read.annals_checkpoint, counts.is_some(), parts.is_some()) {
            (1, false, false) | (2, true, false) | (3, true, true) => {}
            (1..=3, ..) => return Err(wrong("its fields are not those of its version".into())),
            (version, ..) => return Err(wrong(format!("version {version} is unknown"))),
        }
        let hash = |text: &str| {
            hex::decode_lower(text)
                .map(NodeHash)
                .ok_or_else(|| wrong("a hash is not 64 lower-case hexadecimal digits".into()))
        };
        let mut marks = Vec::new();
        for mark in &read.marks {
            let (leaves, seqno, time_ns) = (mark.leaves, Seqno(mark.seqno), mark.time_ns);
            marks.push(Mark { leaves, seqno, time_ns, node: hash(&mark.node)? });
        }
        let store = hex::decode_lower(&read.store)
            .ok_or_else(|| wrong("its store id is not 32 lower-case hexadecimal digits".into()))?;
        let checkpoint = Self {
            store: StoreId(store),
            leaves: read.leaves,
            root: hash(&read.root)?,
            seqno: Seqno(read.seqno),
            time_ns: read.time_ns,
            counts,
            parts,
            marks,
        };
        if checkpoint.digest() != hash(&read.digest)? {
            return Err(wrong("its digest does not match its fields".into()));
        }
        checkpoint.check()?;
        Ok(checkpoint)
    }
}

pub(super) fn to_json_text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(format!("JSON cannot be written: {e}")))
}
