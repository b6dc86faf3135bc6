//! Heads of records: what a forger changes in frames and runs.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;

use super::cursors::{ByteCursor, CheckedByteCursor};
use super::state::hash;
use super::{ForgedLog, ForgedRecord, WholeIds, varint};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ForgedReference {
    Inline(Vec<u8>),
    Blob(u64, [u8; 32]),
    /// Length, and the first bytes of the id.
    Front(u64, [u8; 8]),
    Same(u64),
}

impl ForgedReference {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => {
                varint(out, (bytes.len() as u64) << 2);
                out.extend_from_slice(bytes);
            }
            Self::Blob(len, id) => {
                varint(out, len << 2 | 1);
                out.extend_from_slice(id);
            }
            Self::Front(len, front) => {
                varint(out, len << 2 | 3);
                out.extend_from_slice(front);
            }
            Self::Same(back) => varint(out, back << 2 | 2),
        }
    }

    /// Whether a recipe stands in the tail.
    pub(crate) fn is_blob(&self) -> bool {
        matches!(self, Self::Blob(..) | Self::Front(..))
    }

    pub(super) fn recipe_bytes(&self) -> u64 {
        match self {
            Self::Blob(..) | Self::Front(..) => {
                let mut out = Vec::new();
                self.put(&mut out);
                out.len() as u64
            }
            _ => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedFrameHead {
    pub(crate) run: u64,
    pub(crate) seq: u64,
    pub(crate) flags: u16,
    name: Vec<u8>,
    back: u64,
    pub(crate) start: u64,
    pub(crate) duration: u64,
    linked: u64,
    pub(crate) link: [u8; 32],
    pub(crate) bodies: [ForgedReference; 3],
}

impl ForgedFrameHead {
    pub(crate) fn parse(head: &[u8]) -> Option<Self> {
        let mut f = CheckedByteCursor(head);
        let (run, seq) = (f.varint()?, f.varint()?);
        let flags = ByteCursor(f.take(2)?).u16();
        let name = match flags & 15 {
            15 => {
                let len = f.varint()?;
                f.take(len)?.to_vec()
            }
            _ => Vec::new(),
        };
        let (back, start, duration) = (f.varint()?, f.varint()?, f.varint()?);
        let linked = if flags >> 9 & 1 == 1 { f.varint()? } else { 0 };
        let link = if flags >> 8 & 1 == 1 { f.take(32)?.try_into().ok()? } else { [0; 32] };
        let bodies = [f.reference()?.0, f.reference()?.0, f.reference()?.0];
        Some(Self { run, seq, flags, name, back, start, duration, linked, link, bodies })
    }

    pub(crate) fn head(&self) -> Vec<u8> {
        let mut out = Vec::new();
        varint(&mut out, self.run);
        varint(&mut out, self.seq);
        out.extend_from_slice(&self.flags.to_le_bytes());
        if self.flags & 15 == 15 {
            varint(&mut out, self.name.len() as u64);
            out.extend_from_slice(&self.name);
        }
        varint(&mut out, self.back);
        varint(&mut out, self.start);
        varint(&mut out, self.duration);
        if self.flags >> 9 & 1 == 1 {
            varint(&mut out, self.linked);
        }
        if self.flags >> 8 & 1 == 1 {
            out.extend_from_slice(&self.link);
        }
        self.bodies.iter().for_each(|body| body.put(&mut out));
        out
    }
}

/// Offsets in a run's head: the start of the fixed part, and the fingerprint.
fn run_parts(head: &[u8]) -> Option<(usize, usize)> {
    let mut f = CheckedByteCursor(head);
    let len = f.varint()? as usize;
    let start = head.len() - f.0.len();
    Some((start, start + len.checked_sub(33)?))
}

impl ForgedLog {
    /// Recomputes every link and fingerprint from the frames. Works only for frames without metadata, in runs
    /// without open frames. `ids` gives the whole ids of bodies by their first bytes.
    pub(crate) fn relink(&mut self, ids: &WholeIds) {
        let mut frames: BTreeMap<(u64, u64), ForgedFrameHead> = BTreeMap::new();
        let mut parents: BTreeMap<u64, Option<(u64, u64)>> = BTreeMap::new();
        for record in self.segments.iter().flatten().flat_map(|batch| &batch.records) {
            let ForgedRecord::Logical { kind, head, .. } = record else { continue };
            if *kind == 5
                && let Some(frame) = ForgedFrameHead::parse(head)
            {
                // A dropped run may leave shared frames without its Run record. No dropped run here was a
                // fork.
                parents.entry(frame.run).or_insert(None);
                frames.insert((frame.run, frame.seq), frame);
            }
            if *kind == 4
                && let Some((start, _)) = run_parts(head)
            {
                let mut f = ByteCursor(&head[start..]);
                let (uid, _) = (f.u64(), f.u32());
                for _ in 0..3 {
                    let len = f.u64() as usize;
                    f.bytes(len);
                }
                for _ in 0..2 * f.u64() {
                    let len = f.u64() as usize;
                    f.bytes(len);
                }
                f.bytes(2);
                parents.insert(uid, (f.u8() == 1).then(|| (f.u64(), u64::from(f.u32()))));
            }
        }
        let mut links: BTreeMap<(u64, u64), [u8; 32]> = BTreeMap::new();
        let genesis = *blake3::Hasher::new_derive_key("annals run chain 1").finalize().as_bytes();
        // A parent's uid is always smaller than its fork's.
        for (uid, parent) in &parents {
            let mut holder = BTreeMap::new();
            let (mut seq, mut link) = (1, genesis);
            if let Some((parent, shared)) = parent {
                for seq in 1..=*shared {
                    let known = links.get(&(*parent, seq)).copied();
                    holder.insert(seq, (*parent, seq));
                    link = known.unwrap_or(link);
                    links.insert((*uid, seq), link);
                    if let Some(frame) = frames.get(&(*parent, seq)).cloned() {
                        frames.entry((*uid, seq)).or_insert(frame);
                    }
                }
                seq = shared + 1;
            }
            while let Some(frame) = frames.get(&(*uid, seq)) {
                let id = |slot: usize| {
                    let mut at = seq;
                    loop {
                        match frames.get(&(*uid, at)).map(|frame| &frame.bodies[slot]) {
                            Some(ForgedReference::Inline(bytes)) => return hash(&[bytes]),
                            Some(ForgedReference::Blob(_, id)) => return *id,
                            Some(ForgedReference::Front(_, front)) => {
                                return ids.get(front).copied().unwrap_or_default();
                            }
                            Some(ForgedReference::Same(back)) => at = at.saturating_sub(*back),
                            None => return [0; 32],
                        }
                    }
                };
                let mut digest = blake3::Hasher::new_derive_key("annals run frame 1");
                digest.update(&[(frame.flags & 15) as u8]);
                if frame.flags & 15 == 15 {
                    digest.update(&(frame.name.len() as u64).to_le_bytes());
                    digest.update(&frame.name);
                }
                let parent = if frame.back == 0 { 0 } else { (seq - frame.back) as u32 };
                digest.update(&parent.to_le_bytes());
                digest.update(&[(frame.flags >> 6 & 1) as u8, (frame.flags >> 7 & 1) as u8]);
                digest.update(&id(0));
                digest.update(&id(1));
                digest.update(&hash(&[]));
                let mut next = blake3::Hasher::new_derive_key("annals run link 1");
                next.update(&link);
                next.update(digest.finalize().as_bytes());
                link = *next.finalize().as_bytes();
                links.insert((*uid, seq), link);
                seq += 1;
            }
            links.insert((*uid, 0), link);
        }
        let mut renamed: HashMap<[u8; 32], [u8; 32]> = HashMap::new();
        for ((run, seq), frame) in &frames {
            renamed.extend(links.get(&(*run, *seq)).map(|link| (frame.link, *link)));
        }
        for record in self.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
            let ForgedRecord::Logical { kind, head, .. } = record else { continue };
            if *kind == 5
                && let Some(mut frame) = ForgedFrameHead::parse(head)
            {
                frame.link = links.get(&(frame.run, frame.seq)).copied().unwrap_or(frame.link);
                *head = frame.head();
            }
            if *kind == 4
                && let Some((_, at)) = run_parts(head)
                && let Some(link) = renamed.get(&head[at..at + 32])
            {
                head[at..at + 32].copy_from_slice(link);
            }
        }
    }

    /// Stores every compressed group as raw bytes.
    pub(crate) fn decompress(&mut self) {
        let mut encoded: HashMap<u64, (Vec<u8>, u64)> = HashMap::new();
        for record in self.segments.iter().flatten().flat_map(|batch| &batch.records) {
            if let ForgedRecord::Part { group, codec: 1, encoded: bytes, raw_len, .. } = record {
                let (all, len) = encoded.entry(*group).or_default();
                all.extend_from_slice(bytes);
                *len += raw_len;
            }
        }
        let mut raw: HashMap<u64, Vec<u8>> = HashMap::new();
        for (group, (bytes, len)) in encoded {
            let mut out = vec![0; len as usize];
            zstd::stream::read::Decoder::new(&bytes[..]).unwrap().read_exact(&mut out).unwrap();
            raw.insert(group, out);
        }
        for record in self.segments.iter_mut().flatten().flat_map(|batch| &mut batch.records) {
            if let ForgedRecord::Rest { codec, ranges, encoded, .. } = record
                && *codec == 1
            {
                let mut out = vec![0; ranges.iter().map(|(_, len)| *len as usize).sum()];
                zstd::stream::read::Decoder::new(&encoded[..]).unwrap().read_exact(&mut out).unwrap();
                (*encoded, *codec) = (out, 0);
            }
            if let ForgedRecord::Part { group, codec, encoded, raw_start, raw_len, .. } = record
                && *codec == 1
            {
                let start = *raw_start as usize;
                *encoded = raw[group][start..start + *raw_len as usize].to_vec();
                *codec = 0;
            }
        }
    }
}
