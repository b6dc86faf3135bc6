//! A tape into a store: as a run like any other.

use super::read::{Tape, TapeFrame};
use crate::error::Result;
use crate::kv::Content;
use crate::store::Namespace;
use crate::trace::{Frame, RunBatch, RunInfo, RunSpec};

/// Raw bytes of frames that are committed together: a run is one commit up to this size. A larger one goes in parts, and
/// is open, then abandoned, if it is stopped between them.
const COMMIT_RAW_BYTES_MAX: usize = 256 << 20;

impl Namespace {
    /// Records the run of a tape, under another name where one is given. The run is as it was recorded, with its times and
    /// its fingerprint; what a fork shared is its own. With `replace` it takes the place of a run of that name.
    ///
    /// # Errors
    /// `Conflict` where a run of this name lives and is not to be replaced; `Invalid` for a name or a body that this store
    /// does not take; `Unavailable`, `Poisoned`.
    pub fn import_tape(&self, tape: &Tape, name: Option<&str>, replace: bool) -> Result<RunInfo> {
        let info = tape.info();
        let name = name.unwrap_or(&info.name);
        let mut spec = RunSpec::new(name)
            .agent(&info.agent)
            .model(&info.model)
            .severity(info.severity)
            .metadata(info.metadata.clone())
            .started_ns(info.started_ns)
            .replace(replace);
        for (key, value) in &info.tags {
            spec = spec.tag(key, value);
        }
        let run = self.prepare_run(spec)?;
        let mut batch = run.batch()?;
        let mut uncommitted = 0;
        for frame in tape.frames()? {
            let frame = frame?;
            let bytes = frame.input.bytes.len() + frame.output.bytes.len() + frame.metadata.bytes.len();
            if uncommitted > 0 && uncommitted + bytes > COMMIT_RAW_BYTES_MAX {
                batch.commit()?;
                batch = run.batch()?;
                uncommitted = 0;
            }
            uncommitted += bytes;
            put_frame(&mut batch, frame)?;
        }
        batch.end_as_recorded((info.status, info.severity), info.ended_ns, info.fingerprint)?;
        batch.commit()?;
        Ok(self.run(name)?.info().clone())
    }
}

fn put_frame(batch: &mut RunBatch<'_>, from: TapeFrame) -> Result<()> {
    let frame = Frame {
        component: from.component,
        parent: from.parent,
        started_ns: Some(from.started_ns),
        duration_ns: from.duration_ns,
        input: Content::Bytes(from.input.bytes),
        output: Content::Bytes(from.output.bytes),
        metadata: from.metadata.bytes.to_vec(),
        severity: from.severity,
        error: from.error,
    };
    let seq = if from.incomplete { batch.record_incomplete(&frame)? } else { batch.frame(frame)? };
    debug_assert_eq!(seq, from.seq);
    if let Some(snapshot) = from.snapshot {
        let embeddings: Vec<(&str, &[f32])> =
            snapshot.embeddings.iter().map(|(id, vector)| (id.as_str(), vector.as_slice())).collect();
        batch.snapshot_as_recorded(snapshot.state.into(), &embeddings)?;
    }
    Ok(())
}
