//! Reads the segments and the manifest of a store.

use std::path::{Path, PathBuf};

use super::cursors::ByteCursor;
use super::state::ForgedLogState;
use super::{
    ERASED, ERASED_BATCHES, FIRST_REWRITTEN, ForgedBatch, ForgedLog, ForgedRecord, GROUP_REST, LogicalRecord,
    StoreFiles, SubtreeNode,
};

impl ForgedLog {
    /// Reads the log of a cleanly closed store.
    pub(crate) fn read(files: &StoreFiles) -> Self {
        let current = &files[Path::new("s/CURRENT")];
        let name = std::str::from_utf8(current).unwrap().split(' ').next().unwrap();
        let manifest = &files[&Path::new("s").join(name)];
        let store: [u8; 16] = manifest[8..24].try_into().unwrap();
        let (mut at, mut body) = (28, &manifest[..0]);
        while at < manifest.len() {
            let len = u32::from_le_bytes(manifest[at + 4..at + 8].try_into().unwrap()) as usize;
            body = &manifest[at + 8..at + 8 + len];
            at += 8 + len;
        }
        let mut f = ByteCursor(body);
        let format = f.u16();
        f.bytes(16 + 8);
        let count = f.u64();
        let (mut segments, mut rewritten) = (Vec::new(), Vec::new());
        let mut rewritten_format = 4;
        for _ in 0..count {
            let (id, _) = (f.u32(), f.u64());
            let sealed = (f.u8() == 1).then(|| f.u64());
            let bytes = &files[&PathBuf::from(format!("s/segments/{id:08}.seg"))];
            let end = match sealed {
                None => bytes.len(),
                Some(len) => {
                    let at = len as usize - 16;
                    at - u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
                }
            };
            segments.push(batches(&bytes[96..end]));
            rewritten.push((id >= FIRST_REWRITTEN).then(|| {
                let mut footer = ByteCursor(&bytes[end..]);
                footer.u64();
                rewritten_format = u16::from_le_bytes(bytes[8..10].try_into().unwrap());
                (id, ForgedLogState::read(&mut footer))
            }));
        }
        // The last fields have a fixed length, since these stores have no vector files.
        let erased = (format > 1).then(|| {
            let vectors = if format > 2 { 24 } else { 0 };
            let cuts = if format > 3 { 16 } else { 0 };
            let mut last = ByteCursor(&body[body.len() - 76 - vectors - cuts..]);
            let erased = (last.u32(), std::array::from_fn(|_| last.u64()));
            assert!(
                vectors == 0 || last.u64() == 0,
                "there are vector files: a forger would have to list them"
            );
            erased
        });
        Self { store, segments, rewritten, rewritten_format, manifest_format: format, erased }
    }

    pub(crate) fn batches(&self) -> usize {
        self.segments.iter().map(Vec::len).sum()
    }

    /// The seqno of the first record of batch number `at`.
    pub(crate) fn first_seqno(&self, at: usize) -> u64 {
        let before = self.segments.iter().flatten().take(at);
        1 + before.map(|batch| batch.seqnos_before(batch.records.len())).sum::<u64>()
    }

    /// The index of the segment that holds a batch.
    pub(crate) fn segment_of(&self, at: usize) -> usize {
        self.place(at).0
    }

    /// Segment and index within it of batch number `at`.
    fn place(&self, mut at: usize) -> (usize, usize) {
        for (segment, batches) in self.segments.iter().enumerate() {
            if at < batches.len() {
                return (segment, at);
            }
            at -= batches.len();
        }
        let last = self.segments.len() - 1;
        (last, self.segments[last].len())
    }

    pub(crate) fn get(&mut self, at: usize) -> &mut ForgedBatch {
        let (segment, index) = self.place(at);
        &mut self.segments[segment][index]
    }

    pub(crate) fn remove(&mut self, at: usize) -> ForgedBatch {
        let (segment, index) = self.place(at);
        self.segments[segment].remove(index)
    }

    pub(crate) fn insert(&mut self, at: usize, batch: ForgedBatch) {
        let (segment, index) = self.place(at);
        self.segments[segment].insert(index, batch);
    }

    pub(crate) fn truncate(&mut self, batches: usize) {
        while self.batches() > batches {
            while self.segments.last().is_some_and(Vec::is_empty) {
                self.segments.pop();
            }
            self.segments.last_mut().unwrap().pop();
        }
        // The next segment is a new one, not the rewritten one that stood there.
        self.rewritten.truncate(self.segments.len());
    }

    /// The logical records under the first `leaves` leaves, batch by batch: seqno, kind, salt and head.
    pub(crate) fn logical(&self, leaves: usize) -> Vec<Vec<LogicalRecord>> {
        let (mut seqno, mut seen) = (0u64, 0);
        let mut all = Vec::new();
        for batch in self.segments.iter().flatten() {
            let mut own = Vec::new();
            for record in &batch.records {
                seqno += 1;
                match record {
                    ForgedRecord::Logical { kind, salt, head, .. } if *kind < 128 => {
                        own.push((seqno, *kind, *salt, head.clone()));
                    }
                    // Nodes that replace erased records are part of the ledger.
                    ForgedRecord::Erased { count, nodes } => {
                        own.extend(
                            nodes.iter().map(|(height, hash)| (seqno, ERASED, [*height; 16], hash.to_vec())),
                        );
                        seqno += count - 1;
                    }
                    ForgedRecord::ErasedBatches { seqnos, node, .. } => {
                        own.extend(
                            node.iter()
                                .map(|(height, hash)| (seqno, ERASED_BATCHES, [*height; 16], hash.to_vec())),
                        );
                        seqno += seqnos - 1;
                    }
                    _ => {}
                }
            }
            if !own.is_empty() && seen < leaves as u64 {
                all.push(own);
            }
            seen += batch.leaves();
        }
        all
    }

    /// The number of batches up to and including the last of the first `leaves` leaves.
    pub(crate) fn up_to_leaf(&self, leaves: usize) -> usize {
        let mut seen = 0;
        let all = self.segments.iter().flatten();
        all.take_while(|batch| {
            let before = seen;
            seen += batch.leaves() as usize;
            before < leaves
        })
        .count()
    }
}

fn batches(mut bytes: &[u8]) -> Vec<ForgedBatch> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let mut f = ByteCursor(bytes);
        let (_, word) = (f.u32(), f.u32());
        // The forger writes the long form, which readers accept in every format.
        let (short, joined, len) = (word >> 31 == 1, word >> 30 == 3, (word & !(3 << 30)) as usize);
        let (mut ends, mut times) = (vec![len], Vec::new());
        let (first, time_ns) = if short {
            let records_end = f.u32() as usize;
            if joined {
                (ends, times) = joined_batches(&bytes[records_end..len], records_end);
            }
            let mut seqno = [0; 8];
            seqno[..7].copy_from_slice(f.bytes(7));
            let time_ns = f.u64();
            f.bytes(8);
            (u64::from_le_bytes(seqno), time_ns)
        } else {
            f.bytes(8);
            let (first, time_ns) = (f.u64(), f.u64());
            f.bytes(16);
            (first, time_ns)
        };
        let (mut records, mut time_ns) = (Vec::new(), time_ns);
        let (mut seqno, mut key) = (first, [0; 16]);
        let (mut ends, mut times) = (ends.into_iter(), times.into_iter());
        let mut end = ends.next().unwrap();
        loop {
            if bytes.len() - f.0.len() == end {
                all.push(ForgedBatch { time_ns, records: std::mem::take(&mut records) });
                let Some(next) = ends.next() else { break };
                end = next;
                time_ns = time_ns.wrapping_add_signed(times.next().unwrap());
            }
            f.u32();
            let (kind, layout, body) = if short {
                let (code, left) = (f.u8(), f.0.len());
                let whole = f.varint() as usize;
                let body = f.bytes(whole - 5 - (left - f.0.len()));
                if code < 128 { (code & 31, 1 + (code >> 5), body) } else { (code, 1, body) }
            } else {
                let (len, kind, layout) = (f.u32() as usize, f.u8(), f.u8());
                (kind, layout, f.bytes(len - 10))
            };
            let mut body = ByteCursor(body);
            records.push(match kind {
                16 => {
                    let (group, namespace, raw_start, raw_len) =
                        (body.varint(), body.varint(), body.varint(), body.varint());
                    let codec = body.u8();
                    body.varint();
                    body.varint();
                    ForgedRecord::Part {
                        group,
                        namespace,
                        raw_start,
                        raw_len,
                        codec,
                        encoded: body.0.to_vec(),
                    }
                }
                ERASED => {
                    let (count, _) = (body.varint(), body.varint());
                    seqno += count - 1;
                    ForgedRecord::Erased { count, nodes: nodes(body.0) }
                }
                ERASED_BATCHES => {
                    let (seqnos, batches) = (body.varint(), body.varint());
                    seqno += seqnos - 1;
                    ForgedRecord::ErasedBatches { seqnos, batches, node: nodes(body.0).pop() }
                }
                GROUP_REST => {
                    let (group, namespace, codec) = (body.varint(), body.varint(), body.u8());
                    let ranges = (0..body.varint()).map(|_| (body.varint(), body.varint())).collect();
                    ForgedRecord::Rest { group, namespace, codec, ranges, encoded: body.0.to_vec() }
                }
                kind => {
                    let stored = if layout == 3 { None } else { body.bytes(16).try_into().ok() };
                    key = if layout == 2 { stored.unwrap() } else { key };
                    // The forger stores every salt.
                    let salt = stored.filter(|_| layout == 1).unwrap_or_else(|| derived_salt(&key, seqno));
                    let len = body.varint() as usize;
                    ForgedRecord::Logical {
                        kind,
                        salt,
                        head: body.bytes(len).to_vec(),
                        tail: body.0.to_vec(),
                    }
                }
            });
            seqno += 1;
        }
        bytes = &bytes[len..];
    }
    all
}

/// Where the records of each of joined batches end, and the times between them. The forger writes each alone.
fn joined_batches(table: &[u8], records_end: usize) -> (Vec<usize>, Vec<i64>) {
    let mut table = ByteCursor(table);
    let (mut ends, mut times, mut at) = (Vec::new(), Vec::new(), 35);
    while !table.0.is_empty() {
        at += table.varint() as usize;
        ends.push(at);
        let zigzag = table.varint();
        times.push((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64));
    }
    ends.push(records_end);
    (ends, times)
}

fn derived_salt(key: &[u8; 16], seqno: u64) -> [u8; 16] {
    let mut salt = blake3::Hasher::new_derive_key("annals record salt 1");
    salt.update(key);
    salt.update(&seqno.to_le_bytes());
    *salt.finalize().as_bytes().first_chunk().unwrap()
}

fn nodes(bytes: &[u8]) -> Vec<SubtreeNode> {
    bytes.chunks_exact(33).map(|node| (node[0], node[1..].try_into().unwrap())).collect()
}
