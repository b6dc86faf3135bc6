//! The whole check of a proof: format.md, section 18.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Hash;
use crate::checkpoint::{CheckedCheckpoint, CheckpointInput, deserialize_non_null};
use crate::error::ProofError;
use crate::head::{BodyReference, ChainWitness, FRAME_KIND, FrameRecordHead, RUN_KIND, RunRecordHead};
use crate::keys::PublicKey;
use crate::text::{hex, unhex, unhex_exact};
use crate::tree;

/// Most bytes of a proof's JSON.
pub const JSON_BYTES_MAX: usize = 64 << 20;
const RECORDS_MAX: usize = 1024;
/// Most nodes of a path: a tree of 2^64 leaves is not higher.
const PATH_MAX: usize = 64;

/// The content of a valid proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofVerdict {
    /// The proven run or frame.
    pub about: ProofClaim,
    /// The number of the proven record.
    pub seqno: u64,
    /// The leaf of the record's batch.
    pub leaf: u64,
    /// The ledger's head that the proof leads to.
    pub checkpoint: CheckedCheckpoint,
    /// The leaves and root of an older ledger, if the proof shows that this ledger has grown from it.
    pub since: Option<(u64, Hash)>,
    /// The agreement with the kept checkpoint, if one was given.
    pub kept: Option<CheckpointAgreement>,
}

/// How a proof agrees with a checkpoint that was kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointAgreement {
    /// The proof and the kept checkpoint have the same tree.
    SameLedger,
    /// The kept checkpoint covers the record.
    CoversRecord,
    /// The kept checkpoint is older than the record, and the ledger has grown from it without a change.
    GrownFrom,
}

/// The content of the proven record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProofClaim {
    /// A frame.
    Frame(FrameClaim),
    /// A run.
    Run(RunClaim),
}

/// The content of a run's record. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of format.md, section 6")]
pub struct RunClaim {
    pub run: String,
    pub uid: u64,
    pub agent: String,
    pub model: String,
    pub status: String,
    pub severity: String,
    pub started_ns: u64,
    pub ended_ns: u64,
    pub frames: u32,
    pub fingerprint: String,
    pub metadata: BodyClaim,
    pub replaced: bool,
}

/// The content of a frame's record. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of format.md, section 7")]
pub struct FrameClaim {
    pub run: String,
    pub uid: u64,
    pub seq: u32,
    pub component: String,
    pub parent: u32,
    pub severity: String,
    pub open: bool,
    pub error: bool,
    pub started_ns: u64,
    pub duration_ns: u64,
    pub input: BodyClaim,
    pub output: BodyClaim,
    pub metadata: BodyClaim,
}

/// A body: its length, and the BLAKE3 hash of its bytes in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "said above")]
pub struct BodyClaim {
    pub bytes: u64,
    pub blake3: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofInput {
    annals_proof: u32,
    about: ProofClaim,
    records: Vec<RecordInput>,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    consistency: Option<ConsistencyInput>,
    checkpoint: CheckpointInput,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordInput {
    kind: u8,
    layout: u8,
    seqno: u64,
    salt: String,
    head: String,
    #[serde(default, deserialize_with = "deserialize_non_null")]
    chain: Option<ChainInput>,
    batch: PathInput,
    ledger: PathInput,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainInput {
    before: String,
    input: String,
    output: String,
    metadata: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathInput {
    index: u64,
    size: u64,
    path: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsistencyInput {
    leaves: u64,
    root: String,
    path: Vec<String>,
}

/// A record that the ledger contains.
struct ProvenRecord {
    kind: u8,
    seqno: u64,
    head: Vec<u8>,
    chain: Option<ChainWitness>,
    leaf: u64,
    leaf_hash: Hash,
    path: Vec<Hash>,
}

/// Checks a proof. If a key is given, it must have signed the proof's checkpoint. If a kept checkpoint is
/// given, the proof must agree with it. Without both, the check shows only that the proof is consistent, and
/// anybody can make a consistent proof.
///
/// # Errors
/// `Malformed` if this is no proof, `Refused` if the proof is not valid, `Insufficient` if the proof cannot be compared
/// with the kept checkpoint.
pub fn check(
    json: &[u8],
    key: Option<&PublicKey>,
    kept: Option<&CheckedCheckpoint>,
) -> Result<ProofVerdict, ProofError> {
    if json.len() > JSON_BYTES_MAX {
        return Err(ProofError::malformed("this is not a proof of annals: it is too large"));
    }
    let read: ProofInput = serde_json::from_slice(json)
        .map_err(|e| ProofError::malformed(format!("this is not a proof of annals: {e}")))?;
    let with_chain = read.records.iter().any(|record| record.chain.is_some());
    match (read.annals_proof, with_chain) {
        (1, false) | (2, _) => {}
        (1, true) => {
            return Err(ProofError::malformed(
                "this is not a proof of annals: its fields are not those of its version",
            ));
        }
        (version, _) => {
            return Err(ProofError::malformed(format!(
                "this proof has version {version}; 1 and 2 are known: use a newer annals"
            )));
        }
    }
    if read.records.len() > RECORDS_MAX {
        return Err(ProofError::refused("the proof has too many records"));
    }
    let checkpoint = CheckedCheckpoint::from_input(read.checkpoint)?;
    if let Some(key) = key {
        checkpoint.require_signed_by(key)?;
    }
    let records: Vec<ProvenRecord> =
        read.records.iter().map(|record| prove_record(record, &checkpoint)).collect::<Result<_, _>>()?;
    let about = CheckedProofRecords::from_records(&records)?.claim()?;
    if about != read.about {
        return Err(ProofError::refused("the proof's text does not agree with its records"));
    }
    let since = match &read.consistency {
        None => None,
        Some(consistency) => {
            let old = (consistency.leaves, unhex_exact(&consistency.root)?);
            let path = decode_path(&consistency.path)?;
            tree::check_consistency((old.0, &old.1), (checkpoint.leaves, &checkpoint.root), &path)?;
            Some(old)
        }
    };
    let kept = kept.map(|kept| agreement(kept, &checkpoint, since, &records)).transpose()?;
    let first = records.first().ok_or_else(|| ProofError::refused("the proof has no record"))?;
    Ok(ProofVerdict { about, seqno: first.seqno, leaf: first.leaf, checkpoint, since, kept })
}

fn decode_path(path: &[String]) -> Result<Vec<Hash>, ProofError> {
    if path.len() > PATH_MAX {
        return Err(ProofError::refused("a path is longer than the height of any tree"));
    }
    path.iter().map(|node| unhex_exact(node)).collect()
}

/// Checks that the ledger of this checkpoint contains a record.
fn prove_record(record: &RecordInput, checkpoint: &CheckedCheckpoint) -> Result<ProvenRecord, ProofError> {
    let salt: [u8; 16] = unhex_exact(&record.salt)?;
    let head = unhex(&record.head)?;
    if record.layout != 1 {
        return Err(ProofError::refused(format!("a record has layout {}; 1 is known", record.layout)));
    }
    if record.ledger.size != checkpoint.leaves {
        return Err(ProofError::refused("a record's path is of another tree than the checkpoint's"));
    }
    let hash = tree::leaf_hash(&[&salt, &[record.kind, record.layout], &record.seqno.to_le_bytes(), &head]);
    let batch =
        tree::inclusion_root(hash, record.batch.index, record.batch.size, &decode_path(&record.batch.path)?)?;
    let leaf_hash = tree::leaf_hash(&[&batch]);
    let path = decode_path(&record.ledger.path)?;
    if tree::inclusion_root(leaf_hash, record.ledger.index, record.ledger.size, &path)? != checkpoint.root {
        return Err(ProofError::refused("a record's path does not lead to the checkpoint's root"));
    }
    let (kind, seqno, leaf) = (record.kind, record.seqno, record.ledger.index);
    if seqno > checkpoint.seqno {
        return Err(ProofError::refused("a record is numbered past the checkpoint's last"));
    }
    let chain = match &record.chain {
        None => None,
        Some(chain) => Some(ChainWitness {
            before: unhex_exact(&chain.before)?,
            input: unhex_exact(&chain.input)?,
            output: unhex_exact(&chain.output)?,
            metadata: unhex_exact(&chain.metadata)?,
        }),
    };
    Ok(ProvenRecord { kind, seqno, head, chain, leaf, leaf_hash, path })
}

/// Compares the proof's records and ledger with a kept checkpoint.
fn agreement(
    kept: &CheckedCheckpoint,
    checkpoint: &CheckedCheckpoint,
    since: Option<(u64, Hash)>,
    records: &[ProvenRecord],
) -> Result<CheckpointAgreement, ProofError> {
    if kept.store != checkpoint.store {
        return Err(ProofError::refused("the proof is of another store than the checkpoint"));
    }
    if kept.leaves == checkpoint.leaves {
        return match kept.root == checkpoint.root {
            true => Ok(CheckpointAgreement::SameLedger),
            false => Err(ProofError::refused(
                "the proof is of another history than the checkpoint: their roots differ",
            )),
        };
    }
    if let Some((leaves, root)) = since
        && leaves == kept.leaves
        && root != kept.root
    {
        return Err(ProofError::refused(
            "the proof's ledger has grown from another history than the checkpoint's",
        ));
    }
    let mut covered = true;
    for record in records {
        covered &= is_covered(kept, checkpoint.leaves, record)?;
    }
    match since {
        _ if covered => Ok(CheckpointAgreement::CoversRecord),
        Some((leaves, _)) if leaves == kept.leaves => Ok(CheckpointAgreement::GrownFrom),
        _ if kept.leaves < checkpoint.leaves => Err(ProofError::Insufficient(
            "the record is newer than the checkpoint, and the proof does not show that the ledger has grown from it"
                .into(),
        )),
        _ => Err(ProofError::Insufficient(
            "the proof is older than the checkpoint and too short to be compared with it".into(),
        )),
    }
}

/// Returns whether one of the checkpoint's marks covers a record. A complete subtree has the same place in
/// both trees, so the lower part of the record's path leads to the mark's root.
fn is_covered(kept: &CheckedCheckpoint, size: u64, record: &ProvenRecord) -> Result<bool, ProofError> {
    let index = kept.marks.partition_point(|mark| mark.leaves <= record.leaf);
    let Some(mark) = kept.marks.get(index).filter(|mark| mark.leaves <= size) else { return Ok(false) };
    let from = index.checked_sub(1).map_or(0, |before| kept.marks[before].leaves);
    let height = (mark.leaves - from).trailing_zeros() as usize;
    let lower = record.path.get(..height).unwrap_or_default();
    let root = tree::inclusion_root(record.leaf_hash, record.leaf - from, mark.leaves - from, lower)?;
    match root == mark.node {
        true => Ok(true),
        false => Err(ProofError::refused(format!(
            "the proof is of another history than the checkpoint: they differ in leaves {from} to {}",
            mark.leaves - 1
        ))),
    }
}

/// The records of a proof, by run and by frame. The first record is the proven one.
struct CheckedProofRecords {
    runs: BTreeMap<u64, RunRecordHead>,
    frames: BTreeMap<(u64, u32), FrameRecordHead>,
    /// The run that the proof is about.
    run: u64,
    /// The key of the frame, if the proof is about a frame.
    frame: Option<(u64, u32)>,
}

impl CheckedProofRecords {
    fn from_records(records: &[ProvenRecord]) -> Result<Self, ProofError> {
        let twice = || ProofError::refused("the proof has two records of one run or frame");
        let mut all = Self { runs: BTreeMap::new(), frames: BTreeMap::new(), run: 0, frame: None };
        for (index, record) in records.iter().enumerate() {
            match record.kind {
                RUN_KIND if record.chain.is_some() => {
                    return Err(ProofError::refused("a run's record has a chain"));
                }
                RUN_KIND => {
                    let run = RunRecordHead::parse(&record.head)?;
                    // In a proof of a frame, the second record is that of its run.
                    if index == usize::from(all.frame.is_some()) {
                        all.run = run.uid;
                    }
                    if all.runs.insert(run.uid, run).is_some() {
                        return Err(twice());
                    }
                }
                FRAME_KIND => {
                    let mut frame = FrameRecordHead::parse(&record.head)?;
                    frame.complete_ids(record.chain.as_ref())?;
                    let key = (frame.run, frame.seq);
                    if index == 0 {
                        all.frame = Some(key);
                    }
                    if all.frames.insert(key, frame).is_some() {
                        return Err(twice());
                    }
                }
                kind => {
                    return Err(ProofError::refused(format!(
                        "a record is of kind {kind}, not a run or frame"
                    )));
                }
            }
        }
        Ok(all)
    }

    fn run(&self, uid: u64) -> Result<&RunRecordHead, ProofError> {
        self.runs
            .get(&uid)
            .ok_or_else(|| ProofError::refused(format!("the record of run number {uid} is missing")))
    }

    /// The run that holds frame `seq` of the run that the proof is about.
    fn holder(&self, seq: u32, used: &mut UsedRecords) -> Result<&RunRecordHead, ProofError> {
        let mut run = self.run(self.run)?;
        used.runs.insert(run.uid);
        while let Some((parent, shared)) = run.parent.filter(|(_, shared)| seq <= *shared) {
            let older = self.run(parent)?;
            // A fork has a greater uid than its parent, so this loop ends.
            if parent >= run.uid || older.namespace != run.namespace || shared == 0 {
                return Err(ProofError::refused("a run is said to be forked from one that it cannot be of"));
            }
            run = older;
            used.runs.insert(run.uid);
        }
        Ok(run)
    }

    fn frame(
        &self,
        seq: u32,
        used: &mut UsedRecords,
    ) -> Result<(&RunRecordHead, &FrameRecordHead), ProofError> {
        let holder = self.holder(seq, used)?;
        let frame = self.frames.get(&(holder.uid, seq));
        let frame =
            frame.ok_or_else(|| ProofError::refused(format!("the record of frame {seq} is missing")))?;
        used.frames.insert((holder.uid, seq));
        Ok((holder, frame))
    }

    fn claim(&self) -> Result<ProofClaim, ProofError> {
        let mut used = UsedRecords::default();
        let about = match self.frame {
            None => ProofClaim::Run(self.run_claim(&mut used)?),
            Some((holder, seq)) => ProofClaim::Frame(self.frame_claim(holder, seq, &mut used)?),
        };
        if used.runs.len() != self.runs.len() || used.frames.len() != self.frames.len() {
            return Err(ProofError::refused("the proof has records that it does not need"));
        }
        Ok(about)
    }

    fn run_claim(&self, used: &mut UsedRecords) -> Result<RunClaim, ProofError> {
        let run = self.run(self.run)?;
        used.runs.insert(run.uid);
        let BodyReference::Known(bytes, hash) = run.metadata else {
            return Err(ProofError::refused("a run's metadata refers to another one"));
        };
        let status = ["open", "ok", "failed", "abandoned"].get(usize::from(run.status));
        Ok(RunClaim {
            run: run.name.clone(),
            uid: run.uid,
            agent: run.agent.clone(),
            model: run.model.clone(),
            status: (*status.ok_or_else(|| ProofError::refused("a run has an unknown status"))?).to_owned(),
            severity: severity_name(run.severity)?,
            started_ns: run.started_ns,
            ended_ns: run.ended_ns,
            frames: run.frames,
            fingerprint: hex(&run.fingerprint),
            metadata: BodyClaim { bytes, blake3: hex(&hash) },
            replaced: run.gone,
        })
    }

    fn frame_claim(&self, of: u64, seq: u32, used: &mut UsedRecords) -> Result<FrameClaim, ProofError> {
        let run = self.run(self.run)?;
        let (holder, frame) = self.frame(seq, used)?;
        if holder.uid != of {
            return Err(ProofError::refused("the frame is not one of the run"));
        }
        let mut body = |slot: usize| match frame.bodies[slot] {
            BodyReference::Known(bytes, hash) => Ok(BodyClaim { bytes, blake3: hex(&hash) }),
            BodyReference::SameAsEarlier(back) => {
                let at = seq.checked_sub(back).filter(|at| *at > 0);
                let at = at.ok_or_else(|| ProofError::refused("a body refers to no earlier frame"))?;
                match self.frame(at, used)?.1.bodies[slot] {
                    BodyReference::Known(bytes, hash) => Ok(BodyClaim { bytes, blake3: hex(&hash) }),
                    BodyReference::SameAsEarlier(_) => {
                        Err(ProofError::refused("a body refers to one that is itself a reference"))
                    }
                    BodyReference::Front(..) => Err(incomplete_id()),
                }
            }
            BodyReference::Front(..) => Err(incomplete_id()),
        };
        Ok(FrameClaim {
            run: run.name.clone(),
            uid: run.uid,
            seq,
            component: frame.component.clone(),
            parent: frame.parent,
            severity: severity_name(frame.severity)?,
            open: frame.open,
            error: frame.error,
            started_ns: holder.started_ns.saturating_add_signed(frame.start_ns),
            duration_ns: frame.duration_ns,
            input: body(0)?,
            output: body(1)?,
            metadata: body(2)?,
        })
    }
}

/// The records that the claim needs.
#[derive(Default)]
struct UsedRecords {
    runs: BTreeSet<u64>,
    frames: BTreeSet<(u64, u32)>,
}

/// Ids are completed before a frame is used.
fn incomplete_id() -> ProofError {
    ProofError::refused("a frame's body has only the first bytes of an id")
}

fn severity_name(code: u8) -> Result<String, ProofError> {
    let name = ["debug", "normal", "flagged", "escalated"].get(usize::from(code));
    name.map(|name| (*name).to_owned()).ok_or_else(|| ProofError::refused("a severity is unknown"))
}
