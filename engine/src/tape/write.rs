//! Writes a run as a tape.

use std::io::Write;
use std::sync::Arc;

use serde_json::json;

use super::layout::{
    BODY_BYTES_MAX, ERROR, FORKED_FROM, FORMAT, INCOMPLETE, INLINE_BYTES_MAX, MAGIC, PARENT, SNAPSHOT,
    TAPE_BYTES_MAX, put_head, raw_bytes_max,
};
use super::window::BodyWindow;
use crate::codec::{put_bytes, put_signed, put_varint};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BlobId;
use crate::trace::heads::COMPONENT_OTHER;
use crate::trace::lanes::{BodySlot, LaneKey};
use crate::trace::model::TAGS_MAX;
use crate::trace::reader::run_record;
use crate::trace::{Component, REDACTED_TAG, RecordedFrame, RunReader, Snapshot, Status, chain};

/// Redaction of a tape, for readers who may not see the whole run.
pub struct TapeRedaction<'a> {
    /// The name of the profile that redacts, written into the tag [`REDACTED_TAG`].
    pub by: &'a str,
    /// Redacts a frame's input, output and metadata.
    pub frame: &'a mut dyn FnMut(&mut RecordedFrame),
    /// Redacts the run's metadata and the states of snapshots.
    pub bytes: &'a mut dyn FnMut(Vec<u8>) -> Vec<u8>,
    /// Redacts a tag's value.
    pub tag: &'a mut dyn FnMut(&str) -> String,
}

impl std::fmt::Debug for TapeRedaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShownTape").field("by", &self.by).finish_non_exhaustive()
    }
}

/// Writes a tape and tracks its digest, length and window.
struct TapeWriter<'a> {
    to: &'a mut dyn Write,
    hasher: blake3::Hasher,
    written: u64,
    raw: u64,
    window: BodyWindow,
    /// Bytes that are not written yet, at most one frame.
    pending: Vec<u8>,
}

impl RunReader {
    /// Writes the run as a tape; returns the tape's length in bytes. Every frame is read and checked,
    /// including those that a fork shares. The same run gives the same bytes from any store.
    ///
    /// # Errors
    /// `Conflict` if the run has not ended; `Invalid` if the tape would be larger than
    /// [`crate::tape::TAPE_BYTES_MAX`]; `Damaged` at the first frame that differs from what was recorded;
    /// `Unavailable` if the tape cannot be written. After an error, the written bytes are not a valid tape.
    pub fn write_tape(&self, to: &mut dyn Write) -> Result<u64> {
        self.write(to, None)
    }

    /// Writes the run as a redacted tape. The tag `annals.redacted` names the profile. The fingerprint is
    /// that of the redacted frames, not the run's. Vectors are left out, since they reveal much of the texts
    /// they were made from.
    ///
    /// # Errors
    /// As [`RunReader::write_tape`]; `Invalid` if the run has the maximum number of tags already.
    pub fn write_redacted_tape(&self, to: &mut dyn Write, shown: TapeRedaction<'_>) -> Result<u64> {
        self.write(to, Some(shown))
    }

    fn write(&self, to: &mut dyn Write, mut shown: Option<TapeRedaction<'_>>) -> Result<u64> {
        let info = self.info();
        let (Some(fingerprint), Some(ended_ns)) = (info.fingerprint, info.ended_ns) else {
            return Err(Error::conflict(format!(
                "run {:?} has not ended: it is still being recorded, or its recorder was killed; in that \
                 case open the store for writing, which ends the run",
                info.name
            )));
        };
        let hasher = blake3::Hasher::new();
        let mut tape =
            TapeWriter { to, hasher, written: 0, raw: 0, window: BodyWindow::default(), pending: Vec::new() };
        tape.pending.extend(MAGIC);
        tape.pending.extend(FORMAT.to_le_bytes());
        let (mut tags, mut metadata) = (self.tape_tags()?, self.metadata()?);
        let mut link = chain::genesis();
        if let Some(shown) = &mut shown {
            // A run that was redacted before gets the new tag only; the earlier redaction stays in its bytes.
            tags.iter_mut().for_each(|(_, value)| *value = (shown.tag)(value));
            tags.retain(|(key, _)| key != REDACTED_TAG);
            if tags.len() == TAGS_MAX {
                return Err(Error::invalid(format!(
                    "the run has {TAGS_MAX} tags: there is no room for {REDACTED_TAG}"
                )));
            }
            tags.push((REDACTED_TAG.to_owned(), shown.by.to_owned()));
            metadata = (shown.bytes)(metadata);
        }
        put_head(&mut tape.pending, info, &tags, ended_ns);
        tape.body(metadata, &(Component::Other(String::new()), BodySlot::Metadata))?;
        tape.flush()?;
        for frame in self.frames() {
            let mut frame = frame?;
            let mut snapshot = self.snapshot_at(frame.seq)?.filter(|snapshot| snapshot.seq == frame.seq);
            if let Some(shown) = &mut shown {
                (shown.frame)(&mut frame);
                snapshot = snapshot.map(|snapshot| Snapshot {
                    state: (shown.bytes)(snapshot.state),
                    embeddings: Vec::new(),
                    ..snapshot
                });
                let digest = chain::digest(
                    &frame.component,
                    frame.parent.unwrap_or(0),
                    frame.incomplete,
                    frame.error,
                    BlobId::of(&frame.input),
                    BlobId::of(&frame.output),
                    &frame.metadata,
                );
                link = chain::next(&link, &digest);
            }
            if frame.incomplete && info.status != Status::Abandoned {
                return Err(Error::new(ErrorKind::Damaged, "a run that has ended has an unfinished frame"));
            }
            tape.frame(frame, snapshot, info.started_ns)?;
            tape.flush()?;
        }
        tape.pending.extend(if shown.is_some() { link.0 } else { fingerprint.0 });
        tape.flush()?;
        let digest = tape.hasher.finalize();
        tape.pending.extend(digest.as_bytes());
        tape.flush()?;
        tape.to.flush().map_err(write_error)?;
        Ok(tape.written)
    }

    /// The run's tags, with the tag of its fork point.
    fn tape_tags(&self) -> Result<Vec<(String, String)>> {
        let info = self.info();
        let mut tags = info.tags.clone();
        if let Some(point) = &info.parent {
            // A replaced parent's record still has its name.
            let name = run_record(&self.core, self.namespace, point.uid)?.map(|(head, _)| head.fields.name);
            let value = json!({ "run": name, "at": point.at, "shared": point.shared }).to_string();
            tags.retain(|(key, _)| key != FORKED_FROM);
            if tags.len() < TAGS_MAX {
                tags.push((FORKED_FROM.to_owned(), value));
            }
        }
        Ok(tags)
    }
}

impl TapeWriter<'_> {
    fn flush(&mut self) -> Result<()> {
        self.written += self.pending.len() as u64;
        if self.written > TAPE_BYTES_MAX {
            return Err(Error::invalid(format!("the tape would be larger than {TAPE_BYTES_MAX} bytes")));
        }
        self.hasher.update(&self.pending);
        self.to.write_all(&self.pending).map_err(write_error)?;
        self.pending.clear();
        Ok(())
    }

    fn frame(&mut self, frame: RecordedFrame, snapshot: Option<Snapshot>, run_started_ns: u64) -> Result<()> {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(frame.incomplete, INCOMPLETE)
            | flag(frame.error, ERROR)
            | flag(frame.parent.is_some(), PARENT)
            | flag(snapshot.is_some(), SNAPSHOT);
        let out = &mut self.pending;
        out.extend([flags, frame.component.code()]);
        if frame.component.code() == COMPONENT_OTHER {
            put_bytes(out, frame.component.name().as_bytes());
        }
        out.push(frame.severity.code());
        if let Some(parent) = frame.parent {
            put_varint(out, u64::from(parent));
        }
        put_signed(out, frame.started_ns.wrapping_sub(run_started_ns).cast_signed());
        put_varint(out, frame.duration_ns);
        let lane = |slot| (frame.component.clone(), slot);
        self.body(frame.input, &lane(BodySlot::Input))?;
        self.body(frame.output, &lane(BodySlot::Output))?;
        self.body(frame.metadata, &lane(BodySlot::Metadata))?;
        let Some(snapshot) = snapshot else { return Ok(()) };
        self.body(snapshot.state, &(Component::Merge, BodySlot::State))?;
        put_varint(&mut self.pending, snapshot.embeddings.len() as u64);
        for (embedder, vector) in snapshot.embeddings {
            put_bytes(&mut self.pending, embedder.as_bytes());
            let bytes = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.body(bytes, &(Component::Other(embedder), BodySlot::State))?;
        }
        Ok(())
    }

    /// Writes a body: as a reference to the same body in the window, or as its difference from the chosen
    /// base.
    fn body(&mut self, bytes: Vec<u8>, lane: &LaneKey) -> Result<()> {
        let len = bytes.len() as u64;
        if len > BODY_BYTES_MAX {
            return Err(Error::invalid(format!("a body of {len} bytes is too large for a tape")));
        }
        if len <= INLINE_BYTES_MAX {
            put_varint(&mut self.pending, 0);
            put_bytes(&mut self.pending, &bytes);
            return Ok(());
        }
        let id = BlobId::of(&bytes);
        if let Some(back) = self.window.find(id) {
            put_varint(&mut self.pending, back + 1);
            let _ = self.window.promote(back);
            return Ok(());
        }
        self.raw += len;
        let bytes = Arc::new(bytes);
        put_varint(&mut self.pending, 0);
        put_varint(&mut self.pending, len);
        self.pending.extend(id.0);
        let mut at = 0;
        if let Some((back, same)) = self.window.nearest(&bytes, lane) {
            for same in same {
                literal(&mut self.pending, &bytes[at..same.new]);
                put_varint(&mut self.pending, (same.len as u64) << 1 | 1);
                put_varint(&mut self.pending, back);
                put_varint(&mut self.pending, same.old as u64);
                at = same.new + same.len;
            }
        }
        literal(&mut self.pending, &bytes[at..]);
        self.window.put(id, &bytes, Some(lane.clone()));
        if self.raw > raw_bytes_max(self.written + self.pending.len() as u64) {
            return Err(Error::invalid("the run repeats more of its bytes than a tape allows"));
        }
        Ok(())
    }
}

fn literal(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_varint(out, (bytes.len() as u64) << 1);
        out.extend(bytes);
    }
}

fn write_error(error: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Unavailable, format!("the tape cannot be written: {error}"), error)
}
