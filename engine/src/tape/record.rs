//! Records a tape into a store, as an ordinary run.

use super::read::{Tape, TapeFrame};
use crate::error::Result;
use crate::kv::Content;
use crate::store::Namespace;
use crate::trace::{Frame, RunBatch, RunInfo, RunSpec};

/// Maximum raw bytes of frames in one commit. A run up to this size is one commit. A larger run is committed
/// in parts; if the import stops between them, the run stays open and is abandoned later.
const COMMIT_RAW_BYTES_MAX: usize = 256 << 20;

impl Namespace {
    /// Records the run of a tape, under `name` if one is given. The run keeps its times and fingerprint.
    /// Frames that a fork shared become its own. With `replace`, the run replaces a living run of its name.
    ///
    /// # Errors
    /// `Conflict` if a run of this name lives and `replace` is not set; `Invalid` if the store does not
    /// accept the name or a body; `Unavailable`, `Poisoned`.
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
