//! The whole check of a proof: format.md, section 18.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Hash;
use crate::checkpoint::{Checkpoint, CheckpointJson, present};
use crate::error::Error;
use crate::head::{FRAME, Frame, RUN, Reference, Run};
use crate::keys::PublicKey;
use crate::text::{hex, unhex, unhex_exact};
use crate::tree;

/// The greatest proof, in bytes of JSON.
pub const JSON_BYTES_MAX: usize = 64 << 20;
const RECORDS_MAX: usize = 1024;
/// A tree of 2^64 leaves is no higher.
const PATH_MAX: usize = 64;

/// What a proof that holds says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What was recorded.
    pub about: About,
    /// The number of the record that says so.
    pub seqno: u64,
    /// Its batch's leaf.
    pub leaf: u64,
    /// The ledger's head that the proof leads to.
    pub checkpoint: Checkpoint,
    /// The leaves and the root of an older ledger that this one is shown to have grown from.
    pub since: Option<(u64, Hash)>,
    /// How it agrees with the checkpoint that was kept, if one was named.
    pub kept: Option<Kept>,
}

/// How a proof agrees with a checkpoint that was kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Both have the same tree.
    Same,
    /// The kept one covers the record.
    Covers,
    /// The kept one is older than the record, and the ledger has grown from it without a change.
    GrownFrom,
}

/// What the proved record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum About {
    /// A frame.
    Frame(AboutFrame),
    /// A run.
    Run(AboutRun),
}

/// What a run's record says. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of format.md, section 6")]
pub struct AboutRun {
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
    pub metadata: Body,
    pub replaced: bool,
}

/// What a frame's record says. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of format.md, section 7")]
pub struct AboutFrame {
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
    pub input: Body,
    pub output: Body,
    pub metadata: Body,
}

/// A body: how long it is, and the BLAKE3 of its bytes in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "said above")]
pub struct Body {
    pub bytes: u64,
    pub blake3: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofJson {
    annals_proof: u32,
    about: About,
    records: Vec<RecordJson>,
    #[serde(default, deserialize_with = "present")]
    consistency: Option<ConsistencyJson>,
    checkpoint: CheckpointJson,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordJson {
    kind: u8,
    layout: u8,
    seqno: u64,
    salt: String,
    head: String,
    batch: PathJson,
    ledger: PathJson,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathJson {
    index: u64,
    size: u64,
    path: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsistencyJson {
    leaves: u64,
    root: String,
    path: Vec<String>,
}

/// A record that the ledger holds.
struct Proved {
    kind: u8,
    seqno: u64,
    head: Vec<u8>,
    leaf: u64,
    leaf_hash: Hash,
    path: Vec<Hash>,
}

/// Checks a proof. With a key, its checkpoint must be signed by that; with a kept checkpoint, it must agree with that.
/// Without either the proof is only shown to agree with itself, and anybody can make such a one.
///
/// # Errors
/// `Malformed` where this is no proof; `Refused` where it does not hold; `TooLittle` where it does not say enough to be
/// compared with the kept checkpoint.
pub fn check(json: &[u8], key: Option<&PublicKey>, kept: Option<&Checkpoint>) -> Result<Verdict, Error> {
    if json.len() > JSON_BYTES_MAX {
        return Err(Error::malformed("this is no proof of annals: it is too large"));
    }
    let read: ProofJson = serde_json::from_slice(json)
        .map_err(|e| Error::malformed(format!("this is no proof of annals: {e}")))?;
    if read.annals_proof != 1 {
        return Err(Error::malformed(format!("this proof has version {}; 1 is known", read.annals_proof)));
    }
    if read.records.len() > RECORDS_MAX {
        return Err(Error::refused("the proof has too many records"));
    }
    let checkpoint = Checkpoint::of(read.checkpoint)?;
    if let Some(key) = key {
        checkpoint.signed_by(key)?;
    }
    let records: Vec<Proved> =
        read.records.iter().map(|record| proved(record, &checkpoint)).collect::<Result<_, _>>()?;
    let about = Records::of(&records)?.about()?;
    if about != read.about {
        return Err(Error::refused("what the proof says in words is not what its records say"));
    }
    let since = match &read.consistency {
        None => None,
        Some(consistency) => {
            let old = (consistency.leaves, unhex_exact(&consistency.root)?);
            let path = path(&consistency.path)?;
            tree::check_consistency((old.0, &old.1), (checkpoint.leaves, &checkpoint.root), &path)?;
            Some(old)
        }
    };
    let kept = kept.map(|kept| agreement(kept, &checkpoint, since, &records)).transpose()?;
    let first = records.first().ok_or_else(|| Error::refused("the proof has no record"))?;
    Ok(Verdict { about, seqno: first.seqno, leaf: first.leaf, checkpoint, since, kept })
}

fn path(path: &[String]) -> Result<Vec<Hash>, Error> {
    if path.len() > PATH_MAX {
        return Err(Error::refused("a path is longer than any tree is high"));
    }
    path.iter().map(|node| unhex_exact(node)).collect()
}

/// A record, if the ledger of this checkpoint holds it.
fn proved(record: &RecordJson, checkpoint: &Checkpoint) -> Result<Proved, Error> {
    let salt: [u8; 16] = unhex_exact(&record.salt)?;
    let head = unhex(&record.head)?;
    if record.layout != 1 {
        return Err(Error::refused(format!("a record has layout {}; 1 is known", record.layout)));
    }
    if record.ledger.size != checkpoint.leaves {
        return Err(Error::refused("a record's path is of another tree than the checkpoint's"));
    }
    let hash = tree::leaf(&[&salt, &[record.kind, record.layout], &record.seqno.to_le_bytes(), &head]);
    let batch = tree::root_of(hash, record.batch.index, record.batch.size, &path(&record.batch.path)?)?;
    let leaf_hash = tree::leaf(&[&batch]);
    let path = path(&record.ledger.path)?;
    if tree::root_of(leaf_hash, record.ledger.index, record.ledger.size, &path)? != checkpoint.root {
        return Err(Error::refused("a record's path does not lead to the checkpoint's root"));
    }
    let (kind, seqno, leaf) = (record.kind, record.seqno, record.ledger.index);
    if seqno > checkpoint.seqno {
        return Err(Error::refused("a record is numbered past the checkpoint's last"));
    }
    Ok(Proved { kind, seqno, head, leaf, leaf_hash, path })
}

/// How the proof's records and ledger agree with a checkpoint that somebody kept.
fn agreement(
    kept: &Checkpoint,
    checkpoint: &Checkpoint,
    since: Option<(u64, Hash)>,
    records: &[Proved],
) -> Result<Kept, Error> {
    if kept.store != checkpoint.store {
        return Err(Error::refused("the proof is of another store than the checkpoint"));
    }
    if kept.leaves == checkpoint.leaves {
        return match kept.root == checkpoint.root {
            true => Ok(Kept::Same),
            false => {
                Err(Error::refused("the proof is of another history than the checkpoint: their roots differ"))
            }
        };
    }
    if let Some((leaves, root)) = since
        && leaves == kept.leaves
        && root != kept.root
    {
        return Err(Error::refused(
            "the proof's ledger has grown from another history than the checkpoint's",
        ));
    }
    let mut covered = true;
    for record in records {
        covered &= covers(kept, checkpoint.leaves, record)?;
    }
    match since {
        _ if covered => Ok(Kept::Covers),
        Some((leaves, _)) if leaves == kept.leaves => Ok(Kept::GrownFrom),
        _ if kept.leaves < checkpoint.leaves => Err(Error::TooLittle(
            "the record is newer than the checkpoint, and the proof does not show that the ledger has grown from it"
                .into(),
        )),
        _ => Err(Error::TooLittle(
            "the proof is older than the checkpoint and too short to be compared with it".into(),
        )),
    }
}

/// Whether a record is in one of a checkpoint's marks. A complete subtree of two trees has the same place in both, so
/// the lower part of the record's path leads to its root.
fn covers(kept: &Checkpoint, size: u64, record: &Proved) -> Result<bool, Error> {
    let index = kept.marks.partition_point(|mark| mark.leaves <= record.leaf);
    let Some(mark) = kept.marks.get(index).filter(|mark| mark.leaves <= size) else { return Ok(false) };
    let from = index.checked_sub(1).map_or(0, |before| kept.marks[before].leaves);
    let height = (mark.leaves - from).trailing_zeros() as usize;
    let lower = record.path.get(..height).unwrap_or_default();
    let root = tree::root_of(record.leaf_hash, record.leaf - from, mark.leaves - from, lower)?;
    match root == mark.node {
        true => Ok(true),
        false => Err(Error::refused(format!(
            "the proof is of another history than the checkpoint: they differ in leaves {from} to {}",
            mark.leaves - 1
        ))),
    }
}

/// The records of a proof by what they are of; the first is the one that is proved.
struct Records {
    runs: BTreeMap<u64, Run>,
    frames: BTreeMap<(u64, u32), Frame>,
    /// The run that the proof is about.
    run: u64,
    /// The frame's key, where it is about one.
    frame: Option<(u64, u32)>,
}

impl Records {
    fn of(records: &[Proved]) -> Result<Self, Error> {
        let twice = || Error::refused("the proof has two records of one thing");
        let mut all = Self { runs: BTreeMap::new(), frames: BTreeMap::new(), run: 0, frame: None };
        for (index, record) in records.iter().enumerate() {
            match record.kind {
                RUN => {
                    let run = Run::parse(&record.head)?;
                    // Of a frame's proof the second record is that of its run.
                    if index == usize::from(all.frame.is_some()) {
                        all.run = run.uid;
                    }
                    if all.runs.insert(run.uid, run).is_some() {
                        return Err(twice());
                    }
                }
                FRAME => {
                    let frame = Frame::parse(&record.head)?;
                    let key = (frame.run, frame.seq);
                    if index == 0 {
                        all.frame = Some(key);
                    }
                    if all.frames.insert(key, frame).is_some() {
                        return Err(twice());
                    }
                }
                kind => {
                    return Err(Error::refused(format!("a record is of kind {kind}, not a run or frame")));
                }
            }
        }
        Ok(all)
    }

    fn run(&self, uid: u64) -> Result<&Run, Error> {
        self.runs
            .get(&uid)
            .ok_or_else(|| Error::refused(format!("the record of run number {uid} is missing")))
    }

    /// The run that holds frame `seq` of the run that the proof is about.
    fn holder(&self, seq: u32, used: &mut Used) -> Result<&Run, Error> {
        let mut run = self.run(self.run)?;
        used.runs.insert(run.uid);
        while let Some((parent, shared)) = run.parent.filter(|(_, shared)| seq <= *shared) {
            let older = self.run(parent)?;
            // A fork is younger than what it was forked from: so this ends.
            if parent >= run.uid || older.namespace != run.namespace || shared == 0 {
                return Err(Error::refused("a run is said to be forked from one that it cannot be of"));
            }
            run = older;
            used.runs.insert(run.uid);
        }
        Ok(run)
    }

    fn frame(&self, seq: u32, used: &mut Used) -> Result<(&Run, &Frame), Error> {
        let holder = self.holder(seq, used)?;
        let frame = self.frames.get(&(holder.uid, seq));
        let frame = frame.ok_or_else(|| Error::refused(format!("the record of frame {seq} is missing")))?;
        used.frames.insert((holder.uid, seq));
        Ok((holder, frame))
    }

    fn about(&self) -> Result<About, Error> {
        let mut used = Used::default();
        let about = match self.frame {
            None => About::Run(self.about_run(&mut used)?),
            Some((holder, seq)) => About::Frame(self.about_frame(holder, seq, &mut used)?),
        };
        if used.runs.len() != self.runs.len() || used.frames.len() != self.frames.len() {
            return Err(Error::refused("the proof has records that it does not need"));
        }
        Ok(about)
    }

    fn about_run(&self, used: &mut Used) -> Result<AboutRun, Error> {
        let run = self.run(self.run)?;
        used.runs.insert(run.uid);
        let Reference::Known(bytes, hash) = run.metadata else {
            return Err(Error::refused("a run's metadata refers to another one"));
        };
        let status = ["open", "ok", "failed", "abandoned"].get(usize::from(run.status));
        Ok(AboutRun {
            run: run.name.clone(),
            uid: run.uid,
            agent: run.agent.clone(),
            model: run.model.clone(),
            status: (*status.ok_or_else(|| Error::refused("a run has an unknown status"))?).to_owned(),
            severity: severity(run.severity)?,
            started_ns: run.started_ns,
            ended_ns: run.ended_ns,
            frames: run.frames,
            fingerprint: hex(&run.fingerprint),
            metadata: Body { bytes, blake3: hex(&hash) },
            replaced: run.gone,
        })
    }

    fn about_frame(&self, of: u64, seq: u32, used: &mut Used) -> Result<AboutFrame, Error> {
        let run = self.run(self.run)?;
        let (holder, frame) = self.frame(seq, used)?;
        if holder.uid != of {
            return Err(Error::refused("the frame is not one of the run"));
        }
        let mut body = |slot: usize| match frame.bodies[slot] {
            Reference::Known(bytes, hash) => Ok(Body { bytes, blake3: hex(&hash) }),
            Reference::Same(back) => {
                let at = seq.checked_sub(back).filter(|at| *at > 0);
                let at = at.ok_or_else(|| Error::refused("a body refers to no earlier frame"))?;
                match self.frame(at, used)?.1.bodies[slot] {
                    Reference::Known(bytes, hash) => Ok(Body { bytes, blake3: hex(&hash) }),
                    Reference::Same(_) => {
                        Err(Error::refused("a body refers to one that is itself a reference"))
                    }
                }
            }
        };
        Ok(AboutFrame {
            run: run.name.clone(),
            uid: run.uid,
            seq,
            component: frame.component.clone(),
            parent: frame.parent,
            severity: severity(frame.severity)?,
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

/// Which records it took.
#[derive(Default)]
struct Used {
    runs: BTreeSet<u64>,
    frames: BTreeSet<(u64, u32)>,
}

fn severity(code: u8) -> Result<String, Error> {
    let name = ["debug", "normal", "flagged", "escalated"].get(usize::from(code));
    name.map(|name| (*name).to_owned()).ok_or_else(|| Error::refused("a severity is unknown"))
}
