//! The heads of the records of runs: their byte layout. The rest of `trace` gives them meaning.

use serde::{Deserialize, Serialize};

use crate::codec::{ByteReader, CodecError, put_bytes, put_signed, put_varint};
use crate::ids::{Link, NamespaceId, RunUid};
use crate::log::record::{BodyRef, put_embeddings, take_embeddings};
use crate::trace::run_records::{FactHash, hash_facts};

/// The head of a frame record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    /// 0 if none.
    pub(crate) parent: u32,
    /// Code of the component; with code 15, `other` is its name.
    pub(crate) component: u8,
    pub(crate) other: Option<String>,
    pub(crate) severity: u8,
    /// Begun but not finished: there is no output yet.
    pub(crate) open: bool,
    /// The component failed.
    pub(crate) error: bool,
    /// Nanoseconds after the run's start.
    pub(crate) start_ns: i64,
    pub(crate) duration_ns: u64,
    /// The chain's link after frame `.0`; `None` while an earlier frame is unfinished.
    pub(crate) link: Option<(u32, Link)>,
    pub(crate) input: BodyRef,
    pub(crate) output: BodyRef,
    pub(crate) metadata: BodyRef,
}

const FRAME_OPEN: u16 = 1 << 6;
const FRAME_ERROR: u16 = 1 << 7;
const FRAME_LINK: u16 = 1 << 8;
const FRAME_LINK_OTHER: u16 = 1 << 9;
/// Code of a component with a custom name.
pub(crate) const COMPONENT_OTHER: u8 = 15;
/// Maximum length of a custom component's name, in bytes.
pub(crate) const COMPONENT_BYTES_MAX: usize = 64;

impl FrameHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        let mut flags = u16::from(self.component & 15) | u16::from(self.severity & 3) << 4;
        flags |= if self.open { FRAME_OPEN } else { 0 } | if self.error { FRAME_ERROR } else { 0 };
        match self.link {
            Some((seq, _)) if seq == self.seq => flags |= FRAME_LINK,
            Some(_) => flags |= FRAME_LINK | FRAME_LINK_OTHER,
            None => {}
        }
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        out.extend_from_slice(&flags.to_le_bytes());
        if self.component == COMPONENT_OTHER {
            put_bytes(&mut out, self.other.as_deref().unwrap_or("").as_bytes());
        }
        put_varint(&mut out, if self.parent == 0 { 0 } else { u64::from(self.seq - self.parent) });
        put_signed(&mut out, self.start_ns);
        put_varint(&mut out, self.duration_ns);
        if let Some((seq, link)) = &self.link {
            if *seq != self.seq {
                put_varint(&mut out, u64::from(*seq));
            }
            out.extend_from_slice(&link.0);
        }
        // The link covers both ids, so their first bytes are enough to find a wrong body without it.
        let proved = self.has_own_link();
        self.input.put_if_proved(&mut out, proved);
        self.output.put_if_proved(&mut out, proved);
        self.metadata.put(&mut out);
        out
    }

    /// Whether the record holds the link after its own frame. It proves the ids of input and output.
    fn has_own_link(&self) -> bool {
        self.link.is_some_and(|(at, _)| at == self.seq)
    }

    /// Run and sequence number of a frame, from the front of its head.
    pub(crate) fn peek(head: &[u8]) -> Result<(RunUid, u32), CodecError> {
        let mut r = ByteReader::new(head, "frame head");
        Ok((RunUid(r.varint()?), r.varint32()?))
    }

    /// Run and sequence number of a frame, and whether it is only begun, from the front of its head.
    pub(crate) fn peek_open(head: &[u8]) -> Result<(RunUid, u32, bool), CodecError> {
        let mut r = ByteReader::new(head, "frame head");
        Ok((RunUid(r.varint()?), r.varint32()?, r.u16()? & FRAME_OPEN != 0))
    }

    /// A hash of what stays the same when a frame that was begun is finished.
    pub(crate) fn beginning(&self) -> FactHash {
        let mut input = Vec::new();
        // A finished frame names the first bytes of an id only.
        self.input.put_if_proved(&mut input, true);
        let other = self.other.as_deref().unwrap_or_default().as_bytes();
        hash_facts(&[
            &[self.component],
            other,
            &self.parent.to_le_bytes(),
            &self.start_ns.to_le_bytes(),
            &input,
        ])
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "frame head");
        let run = RunUid(r.varint()?);
        let seq = r.varint32()?;
        let flags = r.u16()?;
        if flags >> 10 != 0 || (flags & FRAME_LINK_OTHER != 0 && flags & FRAME_LINK == 0) {
            return Err(CodecError::Unknown { what: "frame flags", found: u64::from(flags) });
        }
        let component = (flags & 15) as u8;
        let other = match component {
            COMPONENT_OTHER => Some(r.text(COMPONENT_BYTES_MAX)?.to_owned()),
            _ => None,
        };
        let back = r.varint32()?;
        let parent = match back {
            0 => 0,
            back if back < seq => seq - back,
            back => return Err(CodecError::Unknown { what: "frame parent", found: u64::from(back) }),
        };
        let start_ns = r.signed()?;
        let duration_ns = r.varint()?;
        let link = if flags & FRAME_LINK != 0 {
            let at = if flags & FRAME_LINK_OTHER != 0 { r.varint32()? } else { seq };
            if flags & FRAME_LINK_OTHER != 0 && at == seq {
                return Err(CodecError::Unknown { what: "another frame's link", found: u64::from(at) });
            }
            Some((at, Link(r.array()?)))
        } else {
            None
        };
        let proved = link.is_some_and(|(at, _)| at == seq);
        let head = Self {
            run,
            seq,
            parent,
            component,
            other,
            severity: (flags >> 4 & 3) as u8,
            open: flags & FRAME_OPEN != 0,
            error: flags & FRAME_ERROR != 0,
            start_ns,
            duration_ns,
            link,
            input: BodyRef::take_if_proved(&mut r, proved)?,
            output: BodyRef::take_if_proved(&mut r, proved)?,
            metadata: BodyRef::take(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

/// A part of a frame's output: its number from 1, nanoseconds after the frame's start, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    pub(crate) part: u32,
    pub(crate) after_ns: u64,
    pub(crate) body: BodyRef,
}

impl PartHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        put_varint(&mut out, u64::from(self.part));
        put_varint(&mut out, self.after_ns);
        self.body.put(&mut out);
        out
    }

    /// Run, frame and number of a part, from the front of its head.
    pub(crate) fn peek(head: &[u8]) -> Result<(RunUid, u32, u32), CodecError> {
        let mut r = ByteReader::new(head, "frame part head");
        Ok((RunUid(r.varint()?), r.varint32()?, r.varint32()?))
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "frame part head");
        let head = Self {
            run: RunUid(r.varint()?),
            seq: r.varint32()?,
            part: r.varint32()?,
            after_ns: r.varint()?,
            body: BodyRef::take(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

/// An agent's state after frame `seq`, with its embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHead {
    pub(crate) run: RunUid,
    pub(crate) seq: u32,
    pub(crate) state: BodyRef,
    /// Embedder id and the vector's little-endian f32 bytes.
    pub(crate) embeddings: Vec<(String, BodyRef)>,
}

impl SnapshotHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.seq));
        self.state.put(&mut out);
        put_embeddings(&self.embeddings, &mut out);
        out
    }

    /// Run and sequence number of a snapshot, from the front of its head.
    pub(crate) fn peek(head: &[u8]) -> Result<(RunUid, u32), CodecError> {
        let mut r = ByteReader::new(head, "snapshot head");
        Ok((RunUid(r.varint()?), r.varint32()?))
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "snapshot head");
        let run = RunUid(r.varint()?);
        let seq = r.varint32()?;
        let state = BodyRef::take(&mut r)?;
        let embeddings = take_embeddings(&mut r)?;
        r.finish()?;
        Ok(Self { run, seq, state, embeddings })
    }
}

/// The fields of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFields {
    pub(crate) uid: RunUid,
    pub(crate) namespace: NamespaceId,
    pub(crate) name: String,
    pub(crate) agent: String,
    pub(crate) model: String,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) status: u8,
    pub(crate) severity: u8,
    /// The run it was forked from, the last shared frame, and the frame of the fork point.
    pub(crate) parent: Option<(RunUid, u32, u32)>,
    pub(crate) started_ns: u64,
    /// 0 while the run is open.
    pub(crate) ended_ns: u64,
    /// The last frame's number, shared ones included. Valid only after the run has ended.
    pub(crate) frames: u32,
    /// Raw bytes of the run's own frames. Valid only after the run has ended.
    pub(crate) raw_bytes: u64,
    /// The chain's last link. Valid only after the run has ended.
    pub(crate) fingerprint: Link,
    /// Whether the run was replaced or dropped: its name is free.
    pub(crate) gone: bool,
}

/// The state of a run: its newest record is complete. Head: length and bincode of the fields, then the
/// metadata's body reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunHead {
    pub(crate) fields: RunFields,
    pub(crate) metadata: BodyRef,
}

impl RunHead {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut out = Vec::with_capacity(256);
        put_bytes(&mut out, &crate::codec::encode(&self.fields)?);
        self.metadata.put(&mut out);
        Ok(out)
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "run head");
        let fields = crate::codec::decode(r.bytes(head.len())?)?;
        let metadata = BodyRef::take(&mut r)?;
        r.finish()?;
        Ok(Self { fields, metadata })
    }
}

/// Maximum length of the rule that dropped a run, in bytes.
pub(crate) const RULE_BYTES_MAX: usize = 256;
/// Maximum length of the reason given for dropping a run, in bytes.
pub(crate) const WHY_BYTES_MAX: usize = 1024;

/// A dropped run. It contains nothing that the caller said about the run, not even its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TombstoneHead {
    pub(crate) namespace: NamespaceId,
    pub(crate) run: RunUid,
    /// The last frame's number, shared ones included.
    pub(crate) frames: u32,
    pub(crate) started_ns: u64,
    /// The run it was forked from, the last shared frame, and the frame of the fork point. Forks of this run
    /// read their shared frames through it.
    pub(crate) parent: Option<(RunUid, u32, u32)>,
    pub(crate) dropped_ns: u64,
    pub(crate) rule: String,
    /// Empty if no reason was given.
    pub(crate) why: String,
}

impl TombstoneHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.rule.len() + self.why.len());
        put_varint(&mut out, u64::from(self.namespace.0));
        put_varint(&mut out, self.run.0);
        put_varint(&mut out, u64::from(self.frames));
        out.extend_from_slice(&self.started_ns.to_le_bytes());
        match self.parent {
            None => out.push(0),
            Some((uid, shared, at)) => {
                out.push(1);
                put_varint(&mut out, uid.0);
                put_varint(&mut out, u64::from(shared));
                put_varint(&mut out, u64::from(at));
            }
        }
        out.extend_from_slice(&self.dropped_ns.to_le_bytes());
        put_bytes(&mut out, self.rule.as_bytes());
        put_bytes(&mut out, self.why.as_bytes());
        out
    }

    pub(crate) fn parse(head: &[u8]) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(head, "tombstone head");
        let namespace = NamespaceId(r.varint32()?);
        let run = RunUid(r.varint()?);
        let frames = r.varint32()?;
        let started_ns = r.u64()?;
        let parent = match r.u8()? {
            0 => None,
            1 => Some((RunUid(r.varint()?), r.varint32()?, r.varint32()?)),
            other => {
                return Err(CodecError::Unknown { what: "parent of a dropped run", found: u64::from(other) });
            }
        };
        // A fork is always younger than its parent.
        if let Some((uid, ..)) = parent.filter(|(uid, ..)| *uid >= run) {
            return Err(CodecError::Unknown { what: "parent of a dropped run", found: uid.0 });
        }
        let head = Self {
            namespace,
            run,
            frames,
            started_ns,
            parent,
            dropped_ns: r.u64()?,
            rule: r.text(RULE_BYTES_MAX)?.to_owned(),
            why: r.text(WHY_BYTES_MAX)?.to_owned(),
        };
        r.finish()?;
        Ok(head)
    }
}
