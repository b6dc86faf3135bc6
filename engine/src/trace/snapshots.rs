//! Reads snapshots: an agent's state after a frame, taken by any run of a fork's lineage.

use std::sync::Arc;

use crate::blob::Extent;
use crate::codec::{ByteReader, CodecError};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{RunUid, Seqno};
use crate::log::record::{BodyRef, RecipeRef};
use crate::trace::frames::BASE_DEPTH_MAX;
use crate::trace::heads::SnapshotHead;
use crate::trace::kinds;
use crate::trace::reader::{Ancestor, RunReader};
use crate::trace::run_keys;
use annals_store::kv::bodies;
use annals_store::kv::keys;

/// An agent's state after a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The frame it was taken after.
    pub seq: u32,
    /// The state, exactly.
    pub state: Vec<u8>,
    /// Embedder id and vector.
    pub embeddings: Vec<(String, Vec<f32>)>,
}

impl RunReader {
    /// The snapshot taken after frame `seq`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Damaged`.
    pub fn snapshot(&self, seq: u32) -> Result<Snapshot> {
        let found = self.snapshot_at(seq)?.filter(|snapshot| snapshot.seq == seq);
        found.ok_or_else(|| {
            Error::not_found(format!("run {:?} has no snapshot after frame {seq}", self.info.name))
        })
    }

    /// The newest snapshot taken after frame `seq` or an earlier one.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn snapshot_at(&self, seq: u32) -> Result<Option<Snapshot>> {
        for Ancestor { uid, upto, .. } in self.lineage.iter().rev() {
            let to = run_keys::snapshot(*uid, seq.min(*upto));
            if let Some(hit) = self.core.index.last_key(&run_keys::snapshots(*uid), &to)? {
                let at = run_keys::last_number(&hit.key).unwrap_or(0);
                return self.read_snapshot(*uid, at).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads every snapshot that the run took, and those of its lineage that only its forks can read now: their
    /// own run is gone. Returns their number, and the bytes of their states and vectors.
    ///
    /// # Errors
    /// `Damaged` at the first snapshot that differs from what was recorded; `Unavailable`.
    pub(crate) fn verify_snapshots(&self) -> Result<(u64, u64)> {
        let (mut count, mut bytes) = (0, 0);
        for Ancestor { uid, upto, .. } in self.lineage.iter() {
            let is_own = *uid == self.info.uid;
            if !is_own && self.core.index.newest(&run_keys::run(self.namespace, *uid))?.is_some() {
                continue;
            }
            for hit in self.core.index.scan_prefix(&run_keys::snapshots(*uid), Seqno(u64::MAX))? {
                let seq = run_keys::last_number(&hit.key).unwrap_or(0);
                if !is_own && seq > *upto {
                    continue;
                }
                let snapshot = self.read_snapshot(*uid, seq).map_err(|error| {
                    Error::new(error.kind(), format!("the snapshot after frame {seq}: {error}"))
                })?;
                count += 1;
                bytes += snapshot.state.len() as u64;
                bytes += snapshot.embeddings.iter().map(|(_, vector)| 4 * vector.len() as u64).sum::<u64>();
            }
        }
        Ok((count, bytes))
    }

    /// Reads the snapshot that run `uid` of the lineage took after frame `seq`.
    pub(crate) fn read_snapshot(&self, uid: RunUid, seq: u32) -> Result<Snapshot> {
        let (head, tail) = self.snapshot_record(uid, seq)?;
        let mut tail = ByteReader::new(&tail, "snapshot tail");
        let mut read = |reference: &BodyRef| -> Result<Vec<u8>> {
            match reference {
                BodyRef::Inline(bytes) => Ok(bytes.clone()),
                BodyRef::Blob { len, id } => {
                    let recipe = RecipeRef::take(&mut tail, *len).map_err(damaged_snapshot)?;
                    let extents = bodies::decode_extents(recipe, |back| self.snapshot_extents(seq, back, 0))?;
                    bodies::read_body(&self.core, self.namespace, &extents, *len, *id)
                }
                BodyRef::Same { .. } => Err(Error::new(ErrorKind::Damaged, "a vector refers to another one")),
            }
        };
        let state = match &head.state {
            BodyRef::Same { back } => self.repeated_state(seq, *back)?,
            stored => read(stored)?,
        };
        let mut embeddings = Vec::with_capacity(head.embeddings.len());
        for (embedder, vector) in &head.embeddings {
            let bytes = read(vector)?;
            let vector =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            embeddings.push((embedder.clone(), vector));
        }
        Ok(Snapshot { seq, state, embeddings })
    }

    /// The extents of all blobs that a snapshot's own record holds.
    pub(crate) fn own_snapshot_extents(
        &self,
        head: &SnapshotHead,
        tail: &[u8],
    ) -> Result<Vec<Arc<Vec<Extent>>>> {
        let mut tail = ByteReader::new(tail, "snapshot tail");
        let mut named = Vec::new();
        let bodies = std::iter::once(&head.state).chain(head.embeddings.iter().map(|(_, vector)| vector));
        for body in bodies {
            let BodyRef::Blob { len, .. } = body else { continue };
            let recipe = RecipeRef::take(&mut tail, *len).map_err(damaged_snapshot)?;
            named.push(bodies::decode_extents(recipe, |back| self.snapshot_extents(head.seq, back, 0))?);
        }
        Ok(named)
    }

    /// Reads the state of the earlier snapshot that a later one repeats.
    fn repeated_state(&self, seq: u32, back: u32) -> Result<Vec<u8>> {
        let wrong =
            || Error::new(ErrorKind::Damaged, format!("the snapshot after frame {seq} names no earlier one"));
        let at = seq.checked_sub(back).filter(|at| *at > 0 && back > 0).ok_or_else(wrong)?;
        let uid = self.snapshot_owner(at)?;
        match self.snapshot_record(uid, at)?.0.state {
            BodyRef::Same { .. } => Err(wrong()),
            _ => Ok(self.read_snapshot(uid, at)?.state),
        }
    }

    /// The run of the lineage that holds the snapshot after frame `seq`. A fork may take a snapshot before
    /// its own first frame: the snapshot is then the fork's, although the frame is its parent's.
    fn snapshot_owner(&self, seq: u32) -> Result<RunUid> {
        for Ancestor { uid, .. } in self.lineage.iter().rev().filter(|ancestor| seq <= ancestor.upto) {
            if self.core.index.newest(&run_keys::snapshot(*uid, seq))?.is_some() {
                return Ok(*uid);
            }
        }
        let what = format!("the snapshot after frame {seq} is referred to, but missing");
        Err(Error::new(ErrorKind::Damaged, what))
    }

    /// The runs of the lineage that may have taken a snapshot after frame `seq`, youngest first.
    pub(crate) fn possible_snapshot_owners(&self, seq: u32) -> Vec<RunUid> {
        self.lineage
            .iter()
            .rev()
            .filter(|ancestor| seq <= ancestor.upto)
            .map(|ancestor| ancestor.uid)
            .collect()
    }

    fn snapshot_record(&self, uid: RunUid, seq: u32) -> Result<(SnapshotHead, Vec<u8>)> {
        let _pin = self.core.pin();
        let value = self.core.index.newest(&run_keys::snapshot(uid, seq))?.ok_or_else(|| {
            Error::new(
                ErrorKind::Damaged,
                format!("the snapshot after frame {seq} is referred to, but missing"),
            )
        })?;
        self.core.read_logical(keys::place(value), kinds::SNAPSHOT, |logical| {
            Ok((SnapshotHead::parse(logical.head)?, logical.tail.to_vec()))
        })
    }

    /// The extents of the state of the snapshot `back` numbers before `seq`.
    fn snapshot_extents(&self, seq: u32, back: u32, depth: u32) -> Result<Arc<Vec<Extent>>> {
        let at = seq.checked_sub(back).filter(|at| *at > 0 && depth < BASE_DEPTH_MAX);
        let at =
            at.ok_or_else(|| Error::new(ErrorKind::Damaged, "a snapshot's recipe has no earlier base"))?;
        let (head, tail) = self.snapshot_record(self.snapshot_owner(at)?, at)?;
        let BodyRef::Blob { len, .. } = head.state else {
            return Err(Error::new(ErrorKind::Damaged, "a snapshot's recipe has a base without a recipe"));
        };
        let mut tail = ByteReader::new(&tail, "snapshot tail");
        let recipe = RecipeRef::take(&mut tail, len).map_err(damaged_snapshot)?;
        bodies::decode_extents(recipe, |back| self.snapshot_extents(at, back, depth + 1))
    }
}

fn damaged_snapshot(error: CodecError) -> Error {
    Error::new(ErrorKind::Damaged, format!("a snapshot's record is damaged: {error}"))
}
