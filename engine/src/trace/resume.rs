//! Takes up a run again whose recorder is gone: it goes on with the frames that the log holds.
//!
//! Everything comes from the log: the chain, the frames that were begun and not finished, and their output so
//! far. Only lanes start empty, which costs space for the next bodies and never correctness.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::codec::ByteReader;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Link, NamespaceId, RunUid, Seqno};
use crate::log::record::{BodyRef, RecipeRef};
use crate::log::segments::lock;
use crate::store::Namespace;
use crate::trace::batch::BegunFrame;
use crate::trace::chain::FrameDigest;
use crate::trace::frame_cache::FrameRecord;
use crate::trace::frames::BodyLocation;
use crate::trace::heads::RunHead;
use crate::trace::kinds;
use crate::trace::lanes::{BodySlot, RunLanes};
use crate::trace::model::{Component, Status};
use crate::trace::reader::{RunOrTombstone, RunReader, find_living_run, find_run_or_tombstone, run_record};
use crate::trace::recorder::{Run, RunState, encode_run, inline};
use crate::trace::run_keys;
use crate::trace::stream::{ArrivedParts, OpenFrame, push_extent};
use annals_store::kv::bodies;
use annals_store::kv::core::Core;
use annals_store::kv::write::{BatchWriter, PackedBody};

/// A run that was taken up again.
#[derive(Debug)]
pub struct ResumedRun {
    /// The run, open. Its next frame follows the last one that the log holds.
    pub run: Arc<Run>,
    /// Its frames that were begun and not finished, in order. [`OpenFrame::output_len`] is the length of the output
    /// that the log holds.
    pub open_frames: Vec<OpenFrame<Arc<Run>>>,
}

/// Where a run's chain ends, and the frames behind that end.
struct ChainEnd {
    linked: (u32, Link),
    waiting: BTreeMap<u32, FrameDigest>,
    open: Vec<Arc<FrameRecord>>,
}

impl Namespace {
    /// Takes up a run again that is open or abandoned, after its recorder has gone away. The run is open when
    /// this returns, and goes on with what the log holds. The caller must know that it is the run's recorder.
    ///
    /// # Errors
    /// `NotFound` if no run of this name lives; `Conflict` if the run has ended, is still being recorded, or
    /// if a fork shares a frame that is not finished; `Damaged`, `Unavailable`, `Poisoned`.
    pub fn resume_run(&self, name: &str) -> Result<ResumedRun> {
        let (core, recording) = (self.store.core(), self.store.recording());
        let log = core.log()?;
        log.queue.check_poisoned()?;
        let uid = {
            let mut names = lock(&recording.names);
            // Its recorder's last batches may be queued and not in the index yet.
            log.queue.barrier(core.index.visible())?;
            let living = find_living_run(core, self.id, name)?;
            let uid = living.ok_or_else(|| Error::not_found(format!("there is no run {name:?}")))?;
            let key = (self.id, name.to_owned());
            if names.held.contains_key(&key) {
                return Err(Error::conflict(format!("run {name:?} is being recorded")));
            }
            names.held.insert(key, uid);
            uid
        };
        let resumed = self.take_up(uid);
        if resumed.is_err() {
            lock(&recording.names).held.remove(&(self.id, name.to_owned()));
        }
        resumed
    }

    /// Takes up a run whose name is reserved.
    fn take_up(&self, uid: RunUid) -> Result<ResumedRun> {
        let (core, recording) = (self.store.core(), self.store.recording());
        let forking = lock(&recording.forking);
        let gone = || Error::new(ErrorKind::Gone, format!("run number {} was dropped", uid.0));
        let (head, tail) = run_record(core, self.id, uid)?.ok_or_else(gone)?;
        let name = head.fields.name.clone();
        let status = Status::from_code(head.fields.status)?;
        if !matches!(status, Status::Open | Status::Abandoned) {
            return Err(Error::conflict(format!("run {name:?} has ended as {}", status.name())));
        }
        let reader = RunReader::open(core, self.id, uid)?;
        let end = chain_end(&reader)?;
        if let Some(first) = end.open.first().map(|record| record.head.seq)
            && (forking.is_parent(uid) || shares_from(core, self.id, uid, first)?)
        {
            return Err(Error::conflict(format!(
                "run {name:?} was forked at a frame that is not finished, so it cannot go on"
            )));
        }
        let mut raw_bytes = reader.info().raw_bytes;
        let mut frames = Vec::with_capacity(end.open.len());
        for record in &end.open {
            let begun = begun_frame(&reader, record)?;
            raw_bytes = raw_bytes.saturating_sub(begun.begun_bytes());
            frames.push((begun, arrived_parts(&reader, record.head.seq)?));
        }
        let metadata = packed_metadata(&head, &tail)?;
        let snapshots = core.index.scan_prefix(&run_keys::snapshots(uid), Seqno(u64::MAX))?;
        let snapshots: BTreeSet<u32> =
            snapshots.iter().filter_map(|hit| run_keys::last_number(&hit.key)).collect();
        let mut fields = head.fields;
        (fields.status, fields.ended_ns, fields.frames) = (Status::Open.code(), 0, 0);
        // Readers, and the next opening, must see that the run is open again.
        let head = RunHead { fields: fields.clone(), metadata: head.metadata };
        let mut writer = BatchWriter::new(core, self.id)?;
        writer.add_record(kinds::RUN, &encode_run(&head)?, &tail)?;
        // Closing abandons the run again, whether or not this commit is reported as done.
        lock(&recording.names).note_resumed(self.id, uid);
        if let Some((_, ticket)) = writer.submit_awaited(core.options.durability)? {
            ticket.wait()?;
        }
        drop(forking);
        let state = RunState {
            severity: fields.severity,
            raw_bytes,
            fields: Arc::new(fields),
            metadata: Arc::new(metadata),
            unpacked: None,
            begun: true,
            ended: false,
            held_parent: None,
            replaces: None,
            last_seq: reader.info().frames,
            linked: end.linked,
            waiting: end.waiting,
            lanes: RunLanes::default(),
            snapshots: Arc::new(snapshots),
        };
        let run = Arc::new(Run::from_state(core, recording, self.id, (uid, name), state));
        let open_frames = frames
            .into_iter()
            .map(|(begun, arrived)| OpenFrame::resumed(run.clone(), begun, arrived))
            .collect();
        Ok(ResumedRun { run, open_frames })
    }
}

/// Finds the last linked frame of a run, and what lies behind it.
fn chain_end(reader: &RunReader) -> Result<ChainEnd> {
    let shared = reader.info().parent.as_ref().map_or(0, |parent| parent.shared);
    let mut records = Vec::new();
    let mut linked = None;
    for seq in (shared + 1..=reader.info().frames).rev() {
        let record = reader.record(seq)?;
        // A link is stored once all frames before it are finished, so the last one is the end of the chain.
        if let Some(stored) = record.head.link {
            linked = Some(stored);
            break;
        }
        records.push(record);
    }
    let linked = match linked {
        Some(linked) => linked,
        None => (shared, reader.link_at(shared)?),
    };
    let (mut waiting, mut open) = (BTreeMap::new(), Vec::new());
    for record in records.into_iter().rev().filter(|record| record.head.seq > linked.0) {
        if record.head.open {
            open.push(record);
        } else {
            waiting.insert(record.head.seq, reader.frame_digest(record.head.seq, &record)?);
        }
    }
    Ok(ChainEnd { linked, waiting, open })
}

/// Whether a fork, living or dropped, shares frame `seq` of this run.
fn shares_from(core: &Arc<Core>, namespace: NamespaceId, uid: RunUid, seq: u32) -> Result<bool> {
    for hit in core.index.scan_prefix(&run_keys::forks(uid), Seqno(u64::MAX))? {
        let Some(fork) = run_keys::fork_uid(&hit.key) else { continue };
        let parent = match find_run_or_tombstone(core, namespace, fork)? {
            Some(RunOrTombstone::Run(head, _)) => head.fields.parent,
            Some(RunOrTombstone::Dropped(head)) => head.parent,
            None => None,
        };
        if parent.is_some_and(|(of, shared, _)| of == uid && shared >= seq) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The values of an unfinished frame that its end needs again.
fn begun_frame(reader: &RunReader, record: &Arc<FrameRecord>) -> Result<BegunFrame> {
    let seq = record.head.seq;
    let component = Component::from_code(record.head.component, record.head.other.clone())?;
    let input = packed_body(reader, record, BodySlot::Input)?;
    let metadata = packed_body(reader, record, BodySlot::Metadata)?;
    let bytes = reader.body(seq, record, BodySlot::Metadata)?.bytes;
    let started_ns = reader.started_ns(seq, &record.head)?;
    Ok(BegunFrame::resumed(record.head.clone(), component, input, (metadata, bytes), started_ns))
}

fn packed_body(reader: &RunReader, record: &Arc<FrameRecord>, slot: BodySlot) -> Result<PackedBody> {
    let seq = record.head.seq;
    let reference = match slot {
        BodySlot::Input => record.head.input.clone(),
        _ => record.head.metadata.clone(),
    };
    Ok(match (reference, reader.find_body(seq, record, slot)?) {
        (BodyRef::Inline(bytes), _) => inline(&bytes),
        (reference @ BodyRef::Blob { .. }, BodyLocation::Blob { extents, len, .. }) => {
            let id = reader.body_id(seq, record, slot)?;
            PackedBody { reference, id, len, extents: Some(extents) }
        }
        (reference, _) => {
            let (id, len) = (reader.body_id(seq, record, slot)?, reader.body_len(seq, record, slot)?);
            PackedBody { reference, id, len, extents: None }
        }
    })
}

/// The metadata of a run, as its next record names it.
fn packed_metadata(head: &RunHead, tail: &[u8]) -> Result<PackedBody> {
    Ok(match &head.metadata {
        BodyRef::Inline(bytes) => inline(bytes),
        BodyRef::Blob { len, id } => {
            let mut tail = ByteReader::new(tail, "run tail");
            let recipe = RecipeRef::take(&mut tail, *len)
                .map_err(|e| Error::new(ErrorKind::Damaged, format!("a run's record is damaged: {e}")))?;
            let extents = bodies::decode_extents(recipe, |_| Err(Error::bug("a run's recipe stands alone")))?;
            let id = id.whole().ok_or_else(|| Error::bug("only a frame's link proves the rest of an id"))?;
            PackedBody { reference: head.metadata.clone(), id, len: *len, extents: Some(extents) }
        }
        BodyRef::Same { .. } => {
            return Err(Error::new(ErrorKind::Damaged, "a run's metadata refers to a frame"));
        }
    })
}

/// The output of an unfinished frame that the log holds.
fn arrived_parts(reader: &RunReader, seq: u32) -> Result<ArrivedParts> {
    let mut arrived = ArrivedParts::default();
    reader.for_each_part(seq, &mut |bytes, of_part| {
        if of_part.is_empty() && !bytes.is_empty() {
            return Err(Error::new(ErrorKind::Damaged, format!("frame {seq} has a part outside of groups")));
        }
        arrived.hasher.update(&bytes);
        arrived.len += bytes.len() as u64;
        of_part.iter().for_each(|extent| push_extent(&mut arrived.extents, *extent));
        arrived.parts += 1;
        Ok(())
    })?;
    Ok(arrived)
}
