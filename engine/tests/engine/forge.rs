//! A forger of stores: reads a log and writes it again with new checksums, chain digests, footers, ledger
//! root and manifest. It follows docs/format.md and shares no code with the engine, so an attacker could make
//! the same files. It writes no tables, since tables are caches.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Record kinds that only compaction writes.
const ERASED: u8 = 17;
const ERASED_BATCHES: u8 = 18;
const GROUP_REST: u8 = 19;
/// Segments that compaction writes have numbers from here on.
const FIRST_REWRITTEN: u32 = 1 << 31;

/// Whole ids of bodies by their first bytes.
pub(crate) type WholeIds = HashMap<[u8; 8], [u8; 32]>;

pub(crate) type StoreFiles = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ForgedRecord {
    Logical {
        kind: u8,
        salt: [u8; 16],
        head: Vec<u8>,
        tail: Vec<u8>,
    },
    Part {
        group: u64,
        namespace: u64,
        raw_start: u64,
        raw_len: u64,
        codec: u8,
        encoded: Vec<u8>,
    },
    /// Replaces erased records of its batch: their number of seqnos, and nodes of the batch's tree.
    Erased {
        count: u64,
        nodes: Vec<SubtreeNode>,
    },
    /// Replaces erased batches; the only record of its batch.
    ErasedBatches {
        seqnos: u64,
        batches: u64,
        node: Option<SubtreeNode>,
    },
    /// The remaining ranges of a group, each as gap and length.
    Rest {
        group: u64,
        namespace: u64,
        codec: u8,
        ranges: Vec<(u64, u64)>,
        encoded: Vec<u8>,
    },
}

/// The height and root of a complete subtree.
pub(crate) type SubtreeNode = (u8, [u8; 32]);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedBatch {
    pub(crate) time_ns: u64,
    pub(crate) records: Vec<ForgedRecord>,
}

/// A log: batches by segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedLog {
    pub(crate) store: [u8; 16],
    pub(crate) segments: Vec<Vec<ForgedBatch>>,
    /// For each segment that compaction made: its number, and the log state before it as its footer has it.
    pub(crate) rewritten: Vec<Option<(u32, ForgedLogState)>>,
    /// The format in the headers of rewritten segments: 2 before format 4 of the store.
    pub(crate) rewritten_format: u16,
    /// The format in the manifest, from format 2 on.
    pub(crate) manifest_format: u16,
    /// The next rewritten segment number, and what compaction subtracted from the totals; format 2 only.
    pub(crate) erased: Option<(u32, [u64; 9])>,
}

/// A logical record: seqno, kind, salt, head.
pub(crate) type LogicalRecord = (u64, u8, [u8; 16], Vec<u8>);

impl ForgedBatch {
    pub(crate) fn has_leaf(&self) -> bool {
        self.leaves() > 0
    }

    /// The number of seqnos of its first `index` records.
    pub(crate) fn seqnos_before(&self, index: usize) -> u64 {
        let takes = |record: &ForgedRecord| match record {
            ForgedRecord::Erased { count, .. } => *count,
            ForgedRecord::ErasedBatches { seqnos, .. } => *seqnos,
            _ => 1,
        };
        self.records.iter().take(index).map(takes).sum()
    }

    /// The number of ledger leaves that the batch has or replaces.
    pub(crate) fn leaves(&self) -> u64 {
        let mut own = false;
        for record in &self.records {
            match record {
                ForgedRecord::Logical { kind, .. } => own |= *kind < 128,
                ForgedRecord::Erased { nodes, .. } => own |= !nodes.is_empty(),
                ForgedRecord::ErasedBatches { node: Some((height, _)), .. } => return 1 << (height & 63),
                _ => {}
            }
        }
        u64::from(own)
    }
}

// ---- reading ----

struct ByteCursor<'a>(&'a [u8]);

impl<'a> ByteCursor<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
    fn u8(&mut self) -> u8 {
        self.bytes(1)[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes(2).try_into().unwrap())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }
    fn varint(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.u8();
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    }
}

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

// ---- writing ----

pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The log's state at a position: LogState of docs/format.md.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedLogState {
    next_seqno: u64,
    chain: [u8; 16],
    leaves: u64,
    peaks: Vec<[u8; 32]>,
    pub(crate) totals: [u64; 9],
    pub(crate) newest_ns: u64,
    pub(crate) next_group: u64,
    pub(crate) next_run: u64,
    pub(crate) next_space: u32,
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    *blake3::hash(&parts.concat()).as_bytes()
}

fn push(peaks: &mut Vec<[u8; 32]>, leaves: &mut u64, leaf: [u8; 32]) {
    push_node(peaks, leaves, (0, leaf)).unwrap();
}

/// Appends a complete subtree; `None` if no subtree of this height can begin here.
fn push_node(peaks: &mut Vec<[u8; 32]>, leaves: &mut u64, (height, hash_of): SubtreeNode) -> Option<()> {
    if height > 40 || !leaves.is_multiple_of(1 << height) {
        return None;
    }
    let mut node = hash_of;
    for _ in 0..(*leaves >> height).trailing_ones() {
        node = hash(&[&[1], &peaks.pop()?, &node]);
    }
    peaks.push(node);
    *leaves += 1 << height;
    Some(())
}

fn peaks_root(peaks: &[[u8; 32]]) -> [u8; 32] {
    match peaks.split_last() {
        None => hash(&[]),
        Some((last, rest)) => rest.iter().rev().fold(*last, |right, left| hash(&[&[1], left, &right])),
    }
}

impl ForgedLogState {
    fn new() -> Self {
        Self {
            next_seqno: 1,
            chain: [0; 16],
            leaves: 0,
            peaks: Vec::new(),
            totals: [0; 9],
            newest_ns: 0,
            next_group: 1,
            next_run: 1,
            next_space: 16,
        }
    }

    fn read(f: &mut ByteCursor<'_>) -> Self {
        Self {
            next_seqno: f.u64(),
            chain: f.bytes(16).try_into().unwrap(),
            leaves: f.u64(),
            peaks: (0..f.u64()).map(|_| f.bytes(32).try_into().unwrap()).collect(),
            totals: std::array::from_fn(|_| f.u64()),
            newest_ns: f.u64(),
            next_group: f.u64(),
            next_run: f.u64(),
            next_space: f.u32(),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.next_seqno.to_le_bytes().to_vec();
        out.extend_from_slice(&self.chain);
        out.extend_from_slice(&self.leaves.to_le_bytes());
        out.extend_from_slice(&(self.peaks.len() as u64).to_le_bytes());
        self.peaks.iter().for_each(|peak| out.extend_from_slice(peak));
        self.totals.iter().for_each(|total| out.extend_from_slice(&total.to_le_bytes()));
        for number in [self.newest_ns, self.next_group, self.next_run] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.next_space.to_le_bytes());
        out
    }
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

// ---- heads ----

/// A cursor like [`ByteCursor`] for heads that an edit may have broken: it returns `None` instead of
/// panicking.
struct CheckedByteCursor<'a>(&'a [u8]);

impl<'a> CheckedByteCursor<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 127).checked_shl(shift)?;
            shift += 7;
            if byte < 128 {
                return Some(value);
            }
        }
    }

    /// Reads a reference; also returns how many of its bytes count as recipe.
    fn reference(&mut self) -> Option<(ForgedReference, u64)> {
        let first = self.varint()?;
        let found = match first & 3 {
            0 => ForgedReference::Inline(self.take(first >> 2)?.to_vec()),
            1 => ForgedReference::Blob(first >> 2, self.take(32)?.try_into().ok()?),
            2 => ForgedReference::Same(first >> 2),
            _ => ForgedReference::Front(first >> 2, self.take(8)?.try_into().ok()?),
        };
        let bytes = found.recipe_bytes();
        Some((found, bytes))
    }
}

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

    fn recipe_bytes(&self) -> u64 {
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
