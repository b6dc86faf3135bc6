//! Proofs that a run or a frame is in the ledger. They can be checked without the store.

use std::collections::BTreeMap;

use annals_text::hex;
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, NodeHash, RunUid, Seqno};
use crate::ledger::checkpoint::{Checkpoint, CheckpointBuilder, Signature};
use crate::ledger::json::{CheckpointJson, to_json_text};
use crate::ledger::tree::{self, SubtreeRoots};
use crate::ledger::walk::{Leaf, Visit, open_log, walk};
use crate::log::cursor::for_each_checked_record;
use crate::log::erased::ErasedRecords;
use crate::log::ledger::{Frontier, LedgerNode, MerkleHash, record_hash};
use crate::log::record::{BodyRef, LAYOUT, LogicalBody, RecordKind};
use crate::log::salts::BatchSalts;
use crate::store::Namespace;
use crate::trace::heads::{FrameHead, RunFields, RunHead};
use crate::trace::kinds;
use crate::trace::reader::{ChainWitness, run_record};
use crate::trace::run_keys;
use crate::trace::{Component, RunReader, Severity, Status};
use annals_store::kv::core::Core;
use annals_store::kv::keys;

/// Maximum number of records in a proof: the frame's record, those of its run and of the run's ancestors, and
/// those of frames whose bodies it refers to.
const RECORDS_MAX: usize = 1024;

/// A self-contained proof that a run or a frame is in the ledger of a checkpoint.
#[derive(Debug, Clone)]
pub struct Proof {
    /// The checkpoint that the proof leads to.
    pub checkpoint: Checkpoint,
    about: ProofSubject,
    /// The proved record, then the records needed to interpret it.
    records: Vec<RecordProof>,
    consistency: Option<ConsistencyProof>,
}

#[derive(Debug, Clone)]
struct RecordProof {
    kind: u8,
    layout: u8,
    seqno: u64,
    salt: [u8; 16],
    head: Vec<u8>,
    /// Only for a frame of which the record holds the first bytes of an id alone.
    chain: Option<ChainWitness>,
    /// The record's index among the batch's logical records, and the number of those.
    index: u64,
    records: u64,
    batch_path: Vec<MerkleHash>,
    leaf: u64,
    path: Vec<MerkleHash>,
}

#[derive(Debug, Clone)]
struct ConsistencyProof {
    leaves: u64,
    root: NodeHash,
    path: Vec<MerkleHash>,
}

/// A readable summary of the proved record. Checkers recompute it from the records.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum ProofSubject {
    Run {
        run: String,
        uid: u64,
        agent: String,
        model: String,
        status: &'static str,
        severity: &'static str,
        started_ns: u64,
        ended_ns: u64,
        frames: u32,
        fingerprint: String,
        metadata: ProvedBody,
        replaced: bool,
    },
    Frame {
        run: String,
        uid: u64,
        seq: u32,
        component: String,
        parent: u32,
        severity: &'static str,
        open: bool,
        error: bool,
        started_ns: u64,
        duration_ns: u64,
        input: ProvedBody,
        output: ProvedBody,
        metadata: ProvedBody,
    },
}

#[derive(Debug, Clone, Serialize)]
struct ProvedBody {
    bytes: u64,
    blake3: String,
}

#[derive(Serialize)]
struct ProofJson<'a> {
    annals_proof: u32,
    about: &'a ProofSubject,
    records: Vec<RecordJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consistency: Option<ConsistencyJson>,
    checkpoint: CheckpointJson,
}

#[derive(Serialize)]
struct RecordJson {
    kind: u8,
    layout: u8,
    seqno: u64,
    salt: String,
    head: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<ChainJson>,
    batch: PathJson,
    ledger: PathJson,
}

#[derive(Serialize)]
struct ChainJson {
    before: String,
    input: String,
    output: String,
    metadata: String,
}

#[derive(Serialize)]
struct PathJson {
    index: u64,
    size: u64,
    path: Vec<String>,
}

#[derive(Serialize)]
struct ConsistencyJson {
    leaves: u64,
    root: String,
    path: Vec<String>,
}

impl Proof {
    /// The proof as one line of JSON. Its checkpoint has the signature, if one is given.
    ///
    /// # Errors
    /// `Bug` only.
    pub fn to_json(&self, signature: Option<&Signature>) -> Result<String> {
        let path = |path: &[MerkleHash]| path.iter().map(|node| hex::encode(node)).collect();
        let records = self.records.iter().map(|record| RecordJson {
            kind: record.kind,
            layout: record.layout,
            seqno: record.seqno,
            salt: hex::encode(&record.salt),
            head: hex::encode(&record.head),
            chain: record.chain.as_ref().map(|chain| ChainJson {
                before: chain.before.to_string(),
                input: chain.input.to_string(),
                output: chain.output.to_string(),
                metadata: hex::encode(&chain.metadata),
            }),
            batch: PathJson { index: record.index, size: record.records, path: path(&record.batch_path) },
            ledger: PathJson { index: record.leaf, size: self.checkpoint.leaves, path: path(&record.path) },
        });
        to_json_text(&ProofJson {
            annals_proof: if self.records.iter().any(|record| record.chain.is_some()) { 2 } else { 1 },
            about: &self.about,
            records: records.collect(),
            consistency: self.consistency.as_ref().map(|consistency| ConsistencyJson {
                leaves: consistency.leaves,
                root: consistency.root.to_string(),
                path: path(&consistency.path),
            }),
            checkpoint: CheckpointJson::new(&self.checkpoint, signature),
        })
    }
}

impl Namespace {
    /// Proves that the newest record of a run, or of its frame `seq`, is in the ledger. With `since`, the
    /// proof also shows that the ledger has only grown since that checkpoint.
    ///
    /// The proof leads to a checkpoint made now. It proves what was recorded and that the record is still in
    /// the log. It does not prove that nothing was recorded afterwards. Reads the whole log once, in bounded
    /// memory.
    ///
    /// # Errors
    /// `NotFound` for the run or frame; `Invalid` if `since` is malformed or of another store; `Diverged` if
    /// the ledger has not grown from `since`; `Gone` if growth from `since` can no longer be proved;
    /// `Damaged`, `Unavailable`.
    pub fn prove(&self, run: &str, seq: Option<u32>, since: Option<&Checkpoint>) -> Result<Proof> {
        let store = &self.store;
        let core = store.core();
        if let Some(since) = since {
            since.check()?;
            if since.store != store.id() {
                return Err(Error::invalid(format!("the checkpoint is of another store, {}", since.store)));
            }
        }
        let mut wanted =
            ProofRecords { core, namespace: self.id, seqnos: Vec::new(), chains: BTreeMap::new() };
        let reader = self.run(run)?;
        let about = match seq {
            None => wanted.run_subject(&reader)?,
            Some(seq) => wanted.frame_subject(&reader, seq)?,
        };
        if wanted.seqnos.len() > RECORDS_MAX {
            let what = format!("the proof needs {} records; the limit is {RECORDS_MAX}", wanted.seqnos.len());
            return Err(Error::invalid(what));
        }
        let (found, state) = open_log(core)?;
        let size = state.ledger.leaves;
        let mut making = CheckpointBuilder::new(size);
        let mut growth = ConsistencyBuilder::new(since, size)?;
        let mut places: BTreeMap<u64, (RecordProof, SubtreeRoots)> = BTreeMap::new();
        let mut sorted = wanted.seqnos.clone();
        sorted.sort_unstable();
        let mut ahead = &sorted[..];
        let walked = walk(&*core.schema, &found, size, &mut |visit| {
            making.visit(&visit);
            let Visit::Leaf(leaf) = visit else { return Ok(()) };
            growth.leaf(leaf);
            let upto = ahead.partition_point(|seqno| *seqno <= leaf.last);
            let (here, later) = ahead.split_at(upto);
            ahead = later;
            for (_, roots) in places.values_mut() {
                roots.push(leaf.node);
            }
            for seqno in here {
                let mut roots = SubtreeRoots::continuing(leaf.before, tree::inclusion(leaf.index, size));
                roots.push(leaf.node);
                places.insert(seqno.0, (record_proof(leaf, *seqno)?, roots));
            }
            Ok(())
        })?;
        core.sync_log(&*found.segments.get(walked.end.segment)?.file)?;
        let checkpoint = making.finish(store, &walked)?;
        let mut records = Vec::new();
        for seqno in &wanted.seqnos {
            let place = places.remove(&seqno.0);
            let whole = place.and_then(|(record, roots)| {
                let chain = wanted.chains.get(&seqno.0).cloned();
                Some(RecordProof { path: roots.into_hashes()?, chain, ..record })
            });
            records.push(whole.ok_or_else(|| {
                let what = format!("the index refers to record {seqno}, which is not in the log");
                Error::new(ErrorKind::Damaged, what)
            })?);
        }
        Ok(Proof { checkpoint, about, records, consistency: growth.finish()? })
    }
}

/// Called for each logical record of a batch: its kind, salt and head, and its node. For erased records there is
/// no content, only the nodes over them.
type RecordVisitor<'a> = dyn FnMut(Seqno, Option<(u8, [u8; 16], &[u8])>, &[LedgerNode]) + 'a;

/// Builds the part of a record's proof that lies within its batch.
fn record_proof(leaf: &Leaf<'_>, wanted: Seqno) -> Result<RecordProof> {
    let mut found = None;
    let mut logical_records = 0;
    // Visits each logical record, and the nodes over erased ones.
    let each = |then: &mut RecordVisitor<'_>| {
        let mut salts = BatchSalts::default();
        for_each_checked_record(leaf.batch, leaf.segment.salt, |_, seqno, record| {
            match RecordKind::parse(record.kind, record.layout)? {
                Some(RecordKind::Erased) => then(seqno, None, &ErasedRecords::parse(record.body)?.nodes),
                Some(kind) if kind.is_logical() => {
                    let logical = LogicalBody::of(&record)?;
                    let salt = salts.resolve(seqno, logical.salt)?;
                    let hash = record_hash(&salt, record.kind, LAYOUT, seqno.0, logical.head);
                    then(seqno, Some((record.kind, salt, logical.head)), &[LedgerNode::leaf(hash)]);
                }
                _ => {}
            }
            Ok(())
        })
        .map_err(|e| Error::damaged(&leaf.segment.path, leaf.batch.offset, e))
    };
    each(&mut |seqno, record, nodes| {
        if let Some((kind, salt, head)) = record.filter(|_| seqno == wanted) {
            found = Some(RecordProof {
                kind,
                layout: LAYOUT,
                seqno: seqno.0,
                salt,
                head: head.to_vec(),
                chain: None,
                index: logical_records,
                records: 0,
                batch_path: Vec::new(),
                leaf: leaf.index,
                path: Vec::new(),
            });
        }
        logical_records += nodes.iter().map(|node| 1u64 << node.height).sum::<u64>();
    })?;
    let missing = || Error::damaged(&leaf.segment.path, leaf.batch.offset, "the record is not in its batch");
    let record = found.ok_or_else(missing)?;
    let mut roots = SubtreeRoots::new(tree::inclusion(record.index, logical_records));
    each(&mut |_, _, nodes| nodes.iter().for_each(|node| roots.push(*node)))?;
    Ok(RecordProof {
        records: logical_records,
        batch_path: roots.into_hashes().ok_or_else(missing)?,
        ..record
    })
}

/// Builds the proof that the ledger has grown from a checkpoint.
struct ConsistencyBuilder<'a> {
    since: Option<(&'a Checkpoint, SubtreeRoots)>,
    root: Option<MerkleHash>,
    /// The checkpoint's last leaf was erased together with younger ones: one node covers them all.
    erased: bool,
}

impl<'a> ConsistencyBuilder<'a> {
    fn new(since: Option<&'a Checkpoint>, size: u64) -> Result<Self> {
        let Some(since) = since.filter(|since| since.leaves > 0) else {
            return Ok(Self { since: None, root: None, erased: false });
        };
        if since.leaves > size {
            let what = format!(
                "the ledger has {size} leaves and the checkpoint {}: the store was rolled back since",
                since.leaves
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let nodes = SubtreeRoots::new(tree::consistency(since.leaves, size));
        Ok(Self { since: Some((since, nodes)), root: None, erased: false })
    }

    fn leaf(&mut self, leaf: &Leaf<'_>) {
        if let Some((since, nodes)) = &mut self.since {
            nodes.push(leaf.node);
            self.erased |= leaf.index < since.leaves && since.leaves < leaf.end();
            if leaf.end() == since.leaves {
                let mut tree: Frontier = leaf.before.clone();
                self.root = tree.push_node(leaf.node).ok().map(|()| tree.root());
            }
        }
    }

    fn finish(self) -> Result<Option<ConsistencyProof>> {
        let Some((since, nodes)) = self.since else { return Ok(None) };
        if self.erased {
            let what = "the checkpoint's last batch was erased together with later ones, so growth since \
                        then cannot be proved; compare the store with it instead: annals verify --against";
            return Err(Error::new(ErrorKind::Gone, what));
        }
        match nodes.into_hashes().filter(|_| self.root == Some(since.root.0)) {
            Some(path) => Ok(Some(ConsistencyProof { leaves: since.leaves, root: since.root, path })),
            None => Err(Error::new(
                ErrorKind::Diverged,
                "the ledger does not begin with the history of the checkpoint: history was rewritten since",
            )),
        }
    }
}

/// The records that a proof needs, found through the index.
struct ProofRecords<'a> {
    core: &'a Core,
    namespace: NamespaceId,
    /// In the order of the proof, the proved record first.
    seqnos: Vec<Seqno>,
    /// What proves the ids of frames, by their records' numbers.
    chains: BTreeMap<u64, ChainWitness>,
}

impl ProofRecords<'_> {
    fn add(&mut self, seqno: Seqno) {
        if !self.seqnos.contains(&seqno) {
            self.seqnos.push(seqno);
        }
    }

    fn add_run(&mut self, uid: RunUid) -> Result<RunHead> {
        let gone = || Error::new(ErrorKind::Gone, format!("the record of run number {} is gone", uid.0));
        let _pin = self.core.pin();
        let found = self.core.index.get(&run_keys::run(self.namespace, uid), Seqno(u64::MAX))?;
        let (seqno, value) = found.ok_or_else(gone)?;
        if run_record(self.core, self.namespace, uid)?.is_none() {
            return Err(gone());
        }
        self.add(seqno);
        self.core.read_logical(keys::place(value), kinds::RUN, |logical| RunHead::parse(logical.head))
    }

    fn add_frame(&mut self, reader: &RunReader, seq: u32) -> Result<FrameHead> {
        let uid = reader.frame_owner(seq)?;
        let missing = || Error::not_found(format!("run {:?} has no frame {seq}", reader.info().name));
        if seq == 0 || seq > reader.info().frames {
            return Err(missing());
        }
        let _pin = self.core.pin();
        let (seqno, value) =
            self.core.index.get(&run_keys::frame(uid, seq), Seqno(u64::MAX))?.ok_or_else(missing)?;
        self.add(seqno);
        let mut head = self
            .core
            .read_logical(keys::place(value), kinds::FRAME, |logical| FrameHead::parse(logical.head))?;
        // A later version of an open frame's record would have another number.
        if let Some(chain) = reader.chain_witness(seq)?.filter(|_| !head.open) {
            for (body, whole) in [(&mut head.input, chain.input), (&mut head.output, chain.output)] {
                if let BodyRef::Blob { id, .. } = body {
                    *id = whole.into();
                }
            }
            self.chains.insert(seqno.0, chain);
        }
        Ok(head)
    }

    /// Adds the records of the runs from this one to the ancestor that holds frame `seq`; returns the
    /// holder's fields.
    fn add_lineage(&mut self, reader: &RunReader, seq: u32) -> Result<RunFields> {
        let holder = reader.frame_owner(seq)?;
        let mut fields = self.add_run(reader.info().uid)?.fields;
        while fields.uid != holder {
            let (parent, _, _) =
                fields.parent.ok_or_else(|| Error::bug("a frame's run is not in its lineage"))?;
            fields = self.add_run(parent)?.fields;
        }
        Ok(fields)
    }

    fn run_subject(&mut self, reader: &RunReader) -> Result<ProofSubject> {
        let head = self.add_run(reader.info().uid)?;
        let fields = head.fields;
        Ok(ProofSubject::Run {
            run: fields.name,
            uid: fields.uid.0,
            agent: fields.agent,
            model: fields.model,
            status: Status::from_code(fields.status)?.name(),
            severity: Severity::from_code(fields.severity)?.name(),
            started_ns: fields.started_ns,
            ended_ns: fields.ended_ns,
            frames: fields.frames,
            fingerprint: hex::encode(&fields.fingerprint.0),
            metadata: proved_body(&head.metadata)?,
            replaced: fields.gone,
        })
    }

    fn frame_subject(&mut self, reader: &RunReader, seq: u32) -> Result<ProofSubject> {
        let head = self.add_frame(reader, seq)?;
        let name = self.add_run(reader.info().uid)?.fields.name;
        let holder = self.add_lineage(reader, seq)?;
        let mut bodies = Vec::new();
        for slot in 0..3 {
            bodies.push(match slot_of(&head, slot) {
                BodyRef::Same { back } => {
                    let at = seq.checked_sub(*back).filter(|at| *at > 0);
                    let at =
                        at.ok_or_else(|| Error::new(ErrorKind::Damaged, "a body names no earlier frame"))?;
                    let origin = self.add_frame(reader, at)?;
                    self.add_lineage(reader, at)?;
                    proved_body(slot_of(&origin, slot))?
                }
                reference => proved_body(reference)?,
            });
        }
        let [input, output, metadata] =
            <[ProvedBody; 3]>::try_from(bodies).map_err(|_| Error::bug("three bodies"))?;
        Ok(ProofSubject::Frame {
            run: name,
            uid: reader.info().uid.0,
            seq,
            component: Component::from_code(head.component, head.other)?.name().to_owned(),
            parent: head.parent,
            severity: Severity::from_code(head.severity)?.name(),
            open: head.open,
            error: head.error,
            started_ns: holder.started_ns.saturating_add_signed(head.start_ns),
            duration_ns: head.duration_ns,
            input,
            output,
            metadata,
        })
    }
}

fn slot_of(head: &FrameHead, slot: usize) -> &BodyRef {
    [&head.input, &head.output, &head.metadata][slot]
}

fn proved_body(reference: &BodyRef) -> Result<ProvedBody> {
    match reference {
        BodyRef::Inline(bytes) => {
            Ok(ProvedBody { bytes: bytes.len() as u64, blake3: BlobId::of(bytes).to_string() })
        }
        BodyRef::Blob { len, id } => {
            let whole = id.whole().ok_or_else(|| Error::bug("a frame's ids were not completed"))?;
            Ok(ProvedBody { bytes: *len, blake3: whole.to_string() })
        }
        BodyRef::Same { .. } => Err(Error::new(ErrorKind::Damaged, "a body's origin is itself a reference")),
    }
}
