//! Reads a tape in two passes with the same decoder: the first checks everything, the second returns the
//! frames.

use std::sync::Arc;

use super::layout::{
    BODY_BYTES_MAX, ERROR, FORMAT, INCOMPLETE, INLINE_BYTES_MAX, MAGIC, PARENT, SNAPSHOT, TAPE_BYTES_MAX,
    TEXT_BYTES_MAX, TapeError, TapeInfo, TapeLocation, raw_bytes_max,
};
use super::window::BodyWindow;
use crate::codec::{ByteReader, CodecError, index};
use crate::error::{Error, Result};
use crate::ids::{BlobId, Link};
use crate::log::record::{EMBEDDER_BYTES_MAX, EMBEDDINGS_MAX};
use crate::trace::heads::{COMPONENT_BYTES_MAX, COMPONENT_OTHER};
use crate::trace::model::{TAGS_MAX, check_text};
use crate::trace::{Component, RunSpec, Severity, Snapshot, Status, chain};

/// A tape that was read whole and checked. Every body hashes to its id, and the chain of its frames ends in
/// its fingerprint. The digest at its end matches all bytes before it.
#[derive(Debug)]
pub struct Tape {
    bytes: Vec<u8>,
    info: TapeInfo,
}

/// A frame of a tape.
#[derive(Debug)]
pub(super) struct TapeFrame {
    pub(super) seq: u32,
    pub(super) component: Component,
    pub(super) parent: Option<u32>,
    pub(super) severity: Severity,
    pub(super) incomplete: bool,
    pub(super) error: bool,
    pub(super) started_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) input: TapeBody,
    pub(super) output: TapeBody,
    pub(super) metadata: TapeBody,
    pub(super) snapshot: Option<Snapshot>,
}

/// A body and the hash of its bytes.
#[derive(Debug, Clone)]
pub(super) struct TapeBody {
    pub(super) bytes: Arc<Vec<u8>>,
    id: BlobId,
}

type TapeResult<T> = std::result::Result<T, TapeError>;

impl Tape {
    /// Whether these bytes begin with the magic of a tape.
    #[must_use]
    pub fn is_tape(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads and checks a tape.
    ///
    /// # Errors
    /// `Invalid` if the bytes are not a tape, or one of another format or over [`TAPE_BYTES_MAX`] bytes;
    /// `Damaged`, with the location, if the tape was changed.
    pub fn read(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() as u64 > TAPE_BYTES_MAX {
            return Err(Error::invalid(format!("a tape has at most {TAPE_BYTES_MAX} bytes")));
        }
        let info = check_tape(&bytes)?;
        Ok(Self { bytes, info })
    }

    /// The tape's head, with the counts and fingerprint of its run.
    #[must_use]
    pub fn info(&self) -> &TapeInfo {
        &self.info
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Always false, since a tape has a head.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The tape's frames in order.
    pub(super) fn frames(&self) -> Result<impl Iterator<Item = Result<TapeFrame>> + '_> {
        let (mut decoder, head) = TapeDecoder::begin(&self.bytes)?;
        Ok((1..=head.frames).map(move |seq| Ok(decoder.frame(seq, head.started_ns)?)))
    }
}

fn check_tape(bytes: &[u8]) -> TapeResult<TapeInfo> {
    let (mut decoder, mut info) = TapeDecoder::begin(bytes)?;
    let mut link = chain::genesis();
    let raw = |body: &TapeBody| body.bytes.len() as u64;
    for seq in 1..=info.frames {
        let frame = decoder.frame(seq, info.started_ns)?;
        if frame.incomplete && info.status != Status::Abandoned {
            return Err(decoder.damaged("the frame is unfinished, but its run has ended"));
        }
        let digest = chain::digest(
            &frame.component,
            frame.parent.unwrap_or(0),
            frame.incomplete,
            frame.error,
            frame.input.id,
            frame.output.id,
            &frame.metadata.bytes,
        );
        link = chain::next(&link, &digest);
        info.raw_bytes += raw(&frame.input) + raw(&frame.output) + raw(&frame.metadata);
    }
    decoder.site = TapeLocation::End;
    info.fingerprint = Link(decoder.decode(|r| r.array())?);
    if info.fingerprint != link {
        return Err(decoder.damaged("its fingerprint does not match its frames"));
    }
    let covered = blake3::hash(&bytes[..decoder.reader.position()]);
    let digest: [u8; 32] = decoder.decode(|r| r.array())?;
    if covered != blake3::Hash::from_bytes(digest) {
        return Err(decoder.damaged("its digest does not match its bytes"));
    }
    if !decoder.reader.is_empty() {
        return Err(decoder.damaged("bytes follow after the end"));
    }
    Ok(info)
}

/// Decodes a tape from its first byte.
struct TapeDecoder<'a> {
    reader: ByteReader<'a>,
    site: TapeLocation,
    window: BodyWindow,
    /// Bytes that the remaining bodies may have.
    raw_left: u64,
}

impl<'a> TapeDecoder<'a> {
    /// Reads the head. The fingerprint is at the end of the tape, so it is not set yet.
    fn begin(bytes: &'a [u8]) -> TapeResult<(Self, TapeInfo)> {
        if !bytes.starts_with(MAGIC) {
            return Err(TapeError::Magic);
        }
        let reader = ByteReader::new(bytes, "tape");
        let raw_left = raw_bytes_max(bytes.len() as u64);
        let mut decoder = Self { reader, site: TapeLocation::Head, window: BodyWindow::default(), raw_left };
        decoder.decode(|r| r.take(MAGIC.len()))?;
        let found = decoder.decode(ByteReader::u16)?;
        if found != FORMAT {
            return Err(TapeError::Format { found });
        }
        let info = decoder.head(bytes.len())?;
        Ok((decoder, info))
    }

    fn head(&mut self, tape_bytes: usize) -> TapeResult<TapeInfo> {
        let name = self.text()?;
        let (agent, model) = (self.text()?, self.text()?);
        let count = self.decode(ByteReader::varint)?;
        if count > TAGS_MAX as u64 {
            return Err(self.damaged(&format!("it has {count} tags; at most {TAGS_MAX} are allowed")));
        }
        let tags = (0..count).map(|_| Ok((self.text()?, self.text()?))).collect::<TapeResult<Vec<_>>>()?;
        let status = self.decode(ByteReader::u8)?;
        let status = Status::from_code(status).map_err(|e| self.damaged(&e.to_string()))?;
        if status == Status::Open {
            return Err(self.damaged("its run has not ended"));
        }
        let severity = self.severity()?;
        let (started_ns, ended_ns) = (self.time()?, self.time()?);
        let frames = self.decode(ByteReader::varint32)?;
        // Each frame has at least one byte.
        if frames as usize > tape_bytes {
            return Err(self.damaged(&format!("it is too short for {frames} frames")));
        }
        let spec = tags
            .iter()
            .fold(RunSpec::new(&name).agent(&agent).model(&model), |spec, (key, value)| spec.tag(key, value));
        spec.check().map_err(|e| self.damaged(&e.to_string()))?;
        let metadata = self.body()?.bytes.to_vec();
        let (raw_bytes, fingerprint) = (0, Link([0; 32]));
        Ok(TapeInfo {
            name,
            agent,
            model,
            tags,
            status,
            severity,
            started_ns,
            ended_ns,
            metadata,
            frames,
            raw_bytes,
            fingerprint,
        })
    }

    fn frame(&mut self, seq: u32, run_started_ns: u64) -> TapeResult<TapeFrame> {
        self.site = TapeLocation::Frame(seq);
        let flags = self.decode(ByteReader::u8)?;
        if flags & !(INCOMPLETE | ERROR | PARENT | SNAPSHOT) != 0 {
            return Err(self.damaged(&format!("its flags {flags:#04x} are unknown")));
        }
        let has = |flag: u8| flags & flag != 0;
        let component = self.component()?;
        let severity = self.severity()?;
        let parent = if has(PARENT) { Some(self.decode(ByteReader::varint32)?) } else { None };
        if parent.is_some_and(|parent| parent == 0 || parent >= seq) {
            return Err(self.damaged("its parent is not an earlier frame"));
        }
        let after = self.decode(ByteReader::signed)?;
        let started_ns = run_started_ns.checked_add_signed(after).filter(|ns| *ns <= i64::MAX as u64);
        let started_ns = started_ns.ok_or_else(|| self.damaged("its time is out of range"))?;
        let duration_ns = self.decode(ByteReader::varint)?;
        if has(INCOMPLETE) && (has(ERROR) || duration_ns != 0) {
            return Err(self.damaged("it is unfinished, but has an error or a duration"));
        }
        let (input, output, metadata) = (self.body()?, self.body()?, self.body()?);
        let snapshot = if has(SNAPSHOT) { Some(self.snapshot(seq)?) } else { None };
        Ok(TapeFrame {
            seq,
            component,
            parent,
            severity,
            incomplete: has(INCOMPLETE),
            error: has(ERROR),
            started_ns,
            duration_ns,
            input,
            output,
            metadata,
            snapshot,
        })
    }

    fn component(&mut self) -> TapeResult<Component> {
        let code = self.decode(ByteReader::u8)?;
        let other = match code {
            COMPONENT_OTHER => {
                let name = self.decode(|r| r.text(COMPONENT_BYTES_MAX))?.to_owned();
                match name.parse::<Component>() {
                    Ok(Component::Other(name)) => Some(name),
                    Ok(_) => return Err(self.damaged("its custom component has a built-in name")),
                    Err(error) => return Err(self.damaged(&error.to_string())),
                }
            }
            _ => None,
        };
        Component::from_code(code, other).map_err(|e| self.damaged(&e.to_string()))
    }

    fn snapshot(&mut self, seq: u32) -> TapeResult<Snapshot> {
        let state = self.body()?.bytes.to_vec();
        let count = self.decode(ByteReader::varint)?;
        if count > EMBEDDINGS_MAX as u64 {
            return Err(self.damaged(&format!("its snapshot has {count} embeddings")));
        }
        let mut embeddings = Vec::new();
        for _ in 0..count {
            let embedder = self.decode(|r| r.text(EMBEDDER_BYTES_MAX))?.to_owned();
            check_text("an embedder's id", &embedder, 1, EMBEDDER_BYTES_MAX)
                .map_err(|e| self.damaged(&e.to_string()))?;
            let bytes = self.body()?.bytes;
            let (floats, rest) = bytes.as_chunks::<4>();
            let vector: Vec<f32> = floats.iter().map(|b| f32::from_le_bytes(*b)).collect();
            if vector.is_empty() || !rest.is_empty() || vector.iter().any(|x| !x.is_finite()) {
                return Err(self.damaged("an embedding of its snapshot is not a vector of finite numbers"));
            }
            embeddings.push((embedder, vector));
        }
        Ok(Snapshot { seq, state, embeddings })
    }

    /// Reads a body and compares its bytes with its id.
    fn body(&mut self) -> TapeResult<TapeBody> {
        let same = self.decode(ByteReader::varint)?;
        if let Some(back) = same.checked_sub(1) {
            let found = self.window.promote(back);
            let (id, bytes) =
                found.ok_or_else(|| self.damaged("a body refers to one that is not in the window"))?;
            return Ok(TapeBody { bytes, id });
        }
        let len = self.decode(ByteReader::varint)?;
        if len <= INLINE_BYTES_MAX {
            let bytes = self.decode(|r| r.take(index(len)))?.to_vec();
            return Ok(TapeBody { id: BlobId::of(&bytes), bytes: Arc::new(bytes) });
        }
        if len > BODY_BYTES_MAX.min(self.raw_left) {
            return Err(self.damaged(&format!("a body of {len} bytes is over the limit")));
        }
        self.raw_left -= len;
        let id = BlobId(self.decode(|r| r.array())?);
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            self.piece(&mut bytes, len)?;
        }
        if BlobId::of(&bytes) != id {
            return Err(self.damaged(&format!("a body of {len} bytes does not hash to its id {id}")));
        }
        let bytes = Arc::new(bytes);
        self.window.put(id, &bytes, None);
        Ok(TapeBody { bytes, id })
    }

    /// Reads the next piece of a body: literal bytes, or a range of an earlier body.
    fn piece(&mut self, body: &mut Vec<u8>, len: u64) -> TapeResult<()> {
        let head = self.decode(ByteReader::varint)?;
        let count = head >> 1;
        if count == 0 || count > len - body.len() as u64 {
            return Err(self.damaged("a piece of a body has a wrong length"));
        }
        let count = index(count);
        if head & 1 == 0 {
            let bytes = self.decode(|r| r.take(count))?;
            body.extend_from_slice(bytes);
            return Ok(());
        }
        let (back, offset) = (self.decode(ByteReader::varint)?, self.decode(ByteReader::varint)?);
        let end = offset.checked_add(count as u64);
        let range = self.window.get(back).and_then(|base| base.get(index(offset)..index(end?)));
        match range {
            Some(range) => body.extend_from_slice(range),
            None => return Err(self.damaged("a piece of a body refers to bytes that are not in the window")),
        }
        Ok(())
    }

    fn severity(&mut self) -> TapeResult<Severity> {
        let code = self.decode(ByteReader::u8)?;
        Severity::from_code(code).map_err(|e| self.damaged(&e.to_string()))
    }

    /// Reads a time in nanoseconds since 1970. It must fit into an i64, so that differences do not overflow.
    fn time(&mut self) -> TapeResult<u64> {
        let ns = self.decode(ByteReader::varint)?;
        if ns > i64::MAX.cast_unsigned() {
            return Err(self.damaged("a time is out of range"));
        }
        Ok(ns)
    }

    fn text(&mut self) -> TapeResult<String> {
        self.decode(|r| r.text(TEXT_BYTES_MAX)).map(str::to_owned)
    }

    fn decode<T>(
        &mut self,
        take: impl FnOnce(&mut ByteReader<'a>) -> std::result::Result<T, CodecError>,
    ) -> TapeResult<T> {
        let offset = self.reader.position() as u64;
        let site = self.site;
        take(&mut self.reader).map_err(|source| TapeError::Coding { site, offset, source })
    }

    fn damaged(&self, what: &str) -> TapeError {
        TapeError::Wrong { site: self.site, offset: self.reader.position() as u64, what: what.to_owned() }
    }
}
