//! Writes a log, and a manifest that fits it.

use std::collections::HashMap;
use std::path::PathBuf;

use super::cursors::CheckedByteCursor;
use super::heads::{ForgedFrameHead, ForgedReference};
use super::state::{ForgedLogState, hash, peaks_root, push, push_node};
use super::{
    ERASED, ERASED_BATCHES, ForgedBatch, ForgedLog, ForgedRecord, GROUP_REST, StoreFiles, SubtreeNode,
};

pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn crc(start: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(start);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

impl ForgedLog {
    /// The files of a cleanly closed store with this log, without tables. `None` if a record can no longer be
    /// parsed for the totals.
    pub(crate) fn write(&self) -> Option<StoreFiles> {
        let mut files = StoreFiles::new();
        let mut state = ForgedLogState::new();
        let mut listed = Vec::new();
        let mut own = 0;
        // The last segment is the active one.
        let empty = [Vec::new()];
        let more =
            if self.state_before_rewrite(self.segments.len() - 1).is_some() { &empty[..] } else { &[] };
        let last = self.segments.len() + more.len() - 1;
        for (index, batches) in self.segments.iter().chain(more).enumerate() {
            let was = self.state_before_rewrite(index);
            let id = was.map_or(own + 1, |(id, _)| *id);
            own += u32::from(was.is_none());
            let salt = crc(0, &[&self.store, &id.to_le_bytes()]);
            let crc_at = |at: usize, bytes: &[u8]| crc(salt, &[&(at as u64).to_le_bytes(), bytes]);
            listed.push((id, state.next_seqno));
            let mut out = b"annalseg".to_vec();
            let format = if was.is_some() { self.rewritten_format } else { 1 };
            out.extend_from_slice(&format.to_le_bytes());
            out.push(0);
            out.extend_from_slice(&0u32.to_le_bytes());
            out.extend_from_slice(&self.store);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&state.next_seqno.to_le_bytes());
            out.extend_from_slice(&state.chain);
            out.extend_from_slice(&7u64.to_le_bytes());
            out.resize(92, 0);
            let check = crc_at(0, &out);
            out.extend_from_slice(&check.to_le_bytes());
            // Position of the last part of each group in this segment.
            let mut parts: HashMap<u64, (usize, usize)> = HashMap::new();
            for batch in batches {
                let at = out.len();
                let bytes = batch_bytes(batch, at, &mut state, &mut parts, &crc_at)?;
                out.extend_from_slice(&bytes);
            }
            if index < last {
                let tail = out.len();
                let mut own_chain = Vec::new();
                if let Some((_, said)) = was {
                    // Computable fields are recomputed; the others are kept.
                    own_chain = state.chain.to_vec();
                    let (next_seqno, leaves, peaks) = (state.next_seqno, state.leaves, state.peaks.clone());
                    state = ForgedLogState { next_seqno, leaves, peaks, ..said.clone() };
                }
                let mut footer = (tail as u64).to_le_bytes().to_vec();
                footer.extend_from_slice(&state.to_bytes());
                footer.extend_from_slice(&peaks_root(&state.peaks));
                footer.extend_from_slice(&own_chain);
                footer.extend_from_slice(&(footer.len() as u32).to_le_bytes());
                let check = crc_at(tail, &footer);
                out.extend_from_slice(&footer);
                out.extend_from_slice(&check.to_le_bytes());
                out.extend_from_slice(b"annalend");
            }
            files.insert(PathBuf::from(format!("s/segments/{id:08}.seg")), out);
        }
        files.insert("s/MANIFEST-0001".into(), self.manifest(&files, &listed, &state));
        let line = format!("MANIFEST-0001 {:08x}\n", crc(0, &[b"MANIFEST-0001"]));
        files.insert("s/CURRENT".into(), line.into_bytes());
        Some(files)
    }

    /// The number and footer state of a segment that compaction made.
    fn state_before_rewrite(&self, segment: usize) -> Option<&(u32, ForgedLogState)> {
        self.rewritten.get(segment)?.as_ref()
    }

    fn manifest(&self, files: &StoreFiles, listed: &[(u32, u64)], state: &ForgedLogState) -> Vec<u8> {
        let len = |id: u32| files[&PathBuf::from(format!("s/segments/{id:08}.seg"))].len() as u64;
        let mut out = b"annalman".to_vec();
        out.extend_from_slice(&self.store);
        let check = crc(0, &[&out]);
        out.extend_from_slice(&check.to_le_bytes());
        let mut body = if self.erased.is_some() { self.manifest_format } else { 1 }.to_le_bytes().to_vec();
        body.extend_from_slice(&self.store);
        body.extend_from_slice(&7u64.to_le_bytes());
        body.extend_from_slice(&(listed.len() as u64).to_le_bytes());
        for (index, (id, first)) in listed.iter().enumerate() {
            body.extend_from_slice(&id.to_le_bytes());
            body.extend_from_slice(&first.to_le_bytes());
            if index + 1 < listed.len() {
                body.push(1);
                body.extend_from_slice(&len(*id).to_le_bytes());
            } else {
                body.push(0);
            }
        }
        body.extend_from_slice(&0u64.to_le_bytes());
        body.extend_from_slice(&listed.first().unwrap().0.to_le_bytes());
        body.extend_from_slice(&96u64.to_le_bytes());
        body.extend_from_slice(&ForgedLogState::new().to_bytes());
        let tail = len(listed.last().unwrap().0);
        body.extend_from_slice(&tail.to_le_bytes());
        body.push(1);
        body.extend_from_slice(&tail.to_le_bytes());
        body.extend_from_slice(&state.to_bytes());
        body.extend_from_slice(&1u64.to_le_bytes());
        if let Some((next, erased)) = &self.erased {
            body.extend_from_slice(&next.to_le_bytes());
            erased.iter().for_each(|total| body.extend_from_slice(&total.to_le_bytes()));
            // No vector files: an empty list, and the number of the first file.
            [0u64, 0, 1].iter().for_each(|number| body.extend_from_slice(&number.to_le_bytes()));
            // No cuts: an empty list, and how many are no longer listed.
            if self.manifest_format > 3 {
                [0u64, 0].iter().for_each(|number| body.extend_from_slice(&number.to_le_bytes()));
            }
        }
        let len = (body.len() as u32).to_le_bytes();
        let check = crc(0, &[&self.store, &28u64.to_le_bytes(), &len, &body]);
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(&len);
        out.extend_from_slice(&body);
        out
    }
}

fn batch_bytes(
    batch: &ForgedBatch,
    at: usize,
    state: &mut ForgedLogState,
    parts: &mut HashMap<u64, (usize, usize)>,
    crc_at: &dyn Fn(usize, &[u8]) -> u32,
) -> Option<Vec<u8>> {
    let mut out = vec![0; 48];
    let first = state.next_seqno;
    let (mut peaks, mut leaves) = (Vec::new(), 0);
    let mut seqno = first;
    let mut whole = None;
    for record in &batch.records {
        let start = out.len();
        let mut takes = 1;
        out.extend_from_slice(&[0; 8]);
        match record {
            ForgedRecord::Part { group, namespace, raw_start, raw_len, codec, encoded } => {
                out.extend_from_slice(&[16, 1]);
                for number in [*group, *namespace, *raw_start, *raw_len] {
                    varint(&mut out, number);
                }
                out.push(*codec);
                let (before, len) = match raw_start {
                    0 => (0, 0),
                    _ => parts.get(group).copied().unwrap_or((0, 0)),
                };
                varint(&mut out, before as u64);
                varint(&mut out, len as u64);
                out.extend_from_slice(encoded);
                state.next_group = state.next_group.max(group + 1);
                state.totals[3] += (out.len() - start) as u64;
                parts.insert(*group, (at + start, out.len() - start));
            }
            ForgedRecord::Logical { kind, salt, head, tail } => {
                out.extend_from_slice(&[*kind, 1]);
                out.extend_from_slice(salt);
                varint(&mut out, head.len() as u64);
                out.extend_from_slice(head);
                out.extend_from_slice(tail);
                // Skippable records are not part of the ledger.
                if *kind < 128 {
                    let seqno = seqno.to_le_bytes();
                    let leaf = hash(&[&[0], salt, &[*kind, 1], &seqno, head]);
                    push(&mut peaks, &mut leaves, leaf);
                    sum(state, *kind, head, tail.len() as u64, (out.len() - start) as u64)?;
                }
            }
            ForgedRecord::Erased { count, nodes } => {
                out.extend_from_slice(&[ERASED, 1]);
                varint(&mut out, *count);
                varint(&mut out, nodes.len() as u64);
                for node in nodes {
                    push_node(&mut peaks, &mut leaves, *node)?;
                    put_node(&mut out, node);
                }
                takes = *count;
            }
            ForgedRecord::ErasedBatches { seqnos, batches, node } => {
                out.extend_from_slice(&[ERASED_BATCHES, 1]);
                varint(&mut out, *seqnos);
                varint(&mut out, *batches);
                node.iter().for_each(|node| put_node(&mut out, node));
                whole = *node;
                takes = *seqnos;
            }
            ForgedRecord::Rest { group, namespace, codec, ranges, encoded } => {
                out.extend_from_slice(&[GROUP_REST, 1]);
                varint(&mut out, *group);
                varint(&mut out, *namespace);
                out.push(*codec);
                varint(&mut out, ranges.len() as u64);
                for (gap, len) in ranges {
                    varint(&mut out, *gap);
                    varint(&mut out, *len);
                }
                out.extend_from_slice(encoded);
                state.next_group = state.next_group.max(group + 1);
            }
        }
        let len = (out.len() - start) as u32;
        out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
        let check = crc_at(at + start, &out[start + 4..]);
        out[start..start + 4].copy_from_slice(&check.to_le_bytes());
        seqno += takes;
    }
    let len = out.len() as u32;
    out[4..8].copy_from_slice(&len.to_le_bytes());
    out[8..12].copy_from_slice(&(batch.records.len() as u32).to_le_bytes());
    out[16..24].copy_from_slice(&first.to_le_bytes());
    out[24..32].copy_from_slice(&batch.time_ns.to_le_bytes());
    out[32..48].copy_from_slice(&state.chain);
    let check = crc_at(at, &out[4..]);
    out[..4].copy_from_slice(&check.to_le_bytes());
    if let Some(node) = whole {
        push_node(&mut state.peaks, &mut state.leaves, node)?;
    }
    if leaves > 0 {
        let leaf = hash(&[&[0], &peaks_root(&peaks)]);
        push(&mut state.peaks, &mut state.leaves, leaf);
    }
    state.chain.copy_from_slice(&hash(&[&out])[..16]);
    state.next_seqno = seqno;
    state.totals[0] += 1;
    state.totals[1] += batch.records.len() as u64;
    state.totals[8] += 48;
    state.newest_ns = state.newest_ns.max(batch.time_ns);
    Some(out)
}

fn put_node(out: &mut Vec<u8>, (height, hash): &SubtreeNode) {
    out.push(*height);
    out.extend_from_slice(hash);
}

/// Adds a logical record to the totals, and notes the ids that it uses.
fn sum(state: &mut ForgedLogState, kind: u8, head: &[u8], tail: u64, bytes: u64) -> Option<()> {
    let (mut recipes, mut chain) = (tail, 16);
    let room = match kind {
        1 | 2 => {
            let mut f = CheckedByteCursor(head);
            f.varint()?;
            f.take(8)?;
            let key = f.varint()?;
            f.take(key)?;
            if kind == 1 {
                recipes += f.reference()?.1;
            }
            7
        }
        3 => {
            let id = u32::from_le_bytes(head.get(4..8)?.try_into().ok()?);
            state.next_space = state.next_space.max(id.saturating_add(1));
            6
        }
        4 => {
            let mut f = CheckedByteCursor(head);
            let len = f.varint()?;
            let fields = f.take(len)?;
            let uid = u64::from_le_bytes(fields.get(..8)?.try_into().ok()?);
            state.next_run = state.next_run.max(uid.saturating_add(1));
            recipes += f.reference()?.1;
            6
        }
        5 => {
            let frame = ForgedFrameHead::parse(head)?;
            recipes += frame.bodies.iter().map(ForgedReference::recipe_bytes).sum::<u64>();
            chain += if frame.flags >> 8 & 1 == 1 { 32 } else { 0 };
            state.totals[2] += u64::from(frame.flags >> 6 & 1 == 0);
            5
        }
        6 => {
            let mut f = CheckedByteCursor(head);
            for _ in 0..4 {
                f.varint()?;
            }
            recipes += f.reference()?.1;
            5
        }
        7 => {
            let mut f = CheckedByteCursor(head);
            f.varint()?;
            f.varint()?;
            recipes += f.reference()?.1;
            for _ in 0..f.varint()?.min(16) {
                let len = f.varint()?;
                f.take(len)?;
                recipes += f.reference()?.1;
            }
            6
        }
        8 | 10 => 6,
        _ => return None,
    };
    state.totals[room] += bytes.saturating_sub(recipes + chain);
    state.totals[4] += recipes;
    state.totals[8] += chain;
    Some(())
}
