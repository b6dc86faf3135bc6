//! One sample of everything that the log writes, with fixed fields.

use std::path::Path;

use crate::blob::{Extent, GroupId, encode_recipe};
use crate::codec;
use crate::ids::{BlobId, Link, NamespaceId, RunUid, SegmentId, Seqno, StoreId};
use crate::io::sim::SimIo;
use crate::io::{Io, OpenMode};
use crate::log::batch::BatchBuf;
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::erasure::{ErasedSpan, ErasureHead, ErasureRule};
use crate::log::joined::JoinedTable;
use crate::log::layout::{
    BATCH_HEADER_BYTES, BatchForm, BatchHeader, LogState, REWRITTEN_FORMAT, SEGMENT_FORMAT,
    SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, Salt, SegmentFooter, SegmentHeader, chain_digest, seal_record,
    stamp_record, start_record,
};
use crate::log::ledger::{Frontier, LedgerNode, leaf_hash, record_hash};
use crate::log::manifest::{
    CleanClose, CutList, FORMAT, LogCut, Manifest, ManifestState, SegmentEntry, TableEntry, VectorEntry,
    VectorList,
};
use crate::log::paths::StorePaths;
use crate::log::record::{
    BodyRef, EmbeddingHead, GroupPart, GroupRest, HistoryCode, KvHead, RecipeRef, RecordKind, SpaceHead,
};
use crate::log::salts::derived_salt;
use crate::log::synced::SyncedNote;
use crate::log::totals::LogTotals;
use crate::trace::Component;
use crate::trace::chain;
use crate::trace::heads::{FrameHead, PartHead, RunFields, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::kinds;

pub(crate) const STORE: StoreId = StoreId(*b"0123456789abcdef");
pub(crate) const SEGMENT: SegmentId = SegmentId(3);
/// Offset of the sample batches.
pub(crate) const OFFSET: u64 = SEGMENT_HEADER_BYTES;
pub(crate) const TIME_NS: u64 = 1_600_000_000_000_000_000;
pub(crate) const RECORD_SALT: [u8; 16] = [0x5a; 16];

pub(crate) fn salt() -> Salt {
    Salt::new(STORE, SEGMENT)
}

fn link(byte: u8) -> Link {
    Link([byte; 32])
}

fn inline(bytes: &[u8]) -> BodyRef {
    BodyRef::Inline(bytes.to_vec())
}

fn blob() -> BodyRef {
    BodyRef::Blob { len: 300, id: BlobId([0xb1; 32]).into() }
}

fn extents() -> Vec<Extent> {
    [(7, 0, 100), (7, 150, 50), (9, 20, 150)]
        .map(|(group, offset, len)| Extent { group: GroupId(group), offset, len })
        .into()
}

pub(crate) fn segment_header() -> SegmentHeader {
    SegmentHeader {
        magic: SEGMENT_MAGIC,
        format: SEGMENT_FORMAT,
        cipher: 0,
        key_id: 0,
        store: STORE,
        segment: SEGMENT,
        first_seqno: Seqno(7),
        chain: [0xcd; 16],
        created_ns: TIME_NS,
    }
}

pub(crate) fn put_inline() -> KvHead {
    KvHead { space: 17, time_ns: TIME_NS, key: b"key".to_vec(), value: Some(inline(b"value")) }
}

pub(crate) fn run_fields() -> RunFields {
    RunFields {
        uid: RunUid(2),
        namespace: NamespaceId(16),
        name: "loan-42".into(),
        agent: "approver".into(),
        model: String::new(),
        tags: vec![("env".into(), "prod".into())],
        status: 1,
        severity: 2,
        parent: Some((RunUid(1), 3, 4)),
        started_ns: TIME_NS,
        ended_ns: TIME_NS + 5,
        frames: 6,
        raw_bytes: 700,
        fingerprint: link(0xf1),
        gone: false,
    }
}

/// A frame that ended in order.
pub(crate) fn frame() -> FrameHead {
    FrameHead {
        run: RunUid(2),
        seq: 300,
        parent: 298,
        component: 1,
        other: None,
        severity: 1,
        open: false,
        error: false,
        start_ns: 1000,
        duration_ns: 250,
        link: Some((300, link(0x11))),
        input: blob(),
        output: inline(b"out"),
        metadata: BodyRef::Same { back: 2 },
    }
}

impl FrameHead {
    /// The head as a reader finds it: its link proves the ids of input and output beyond their first bytes.
    pub(crate) fn with_id_fronts(mut self) -> Self {
        for body in [&mut self.input, &mut self.output] {
            if let BodyRef::Blob { id, .. } = body {
                *id = id.front();
            }
        }
        self
    }
}

/// An open frame. By its caller's clock it began before its run.
pub(crate) fn frame_open() -> FrameHead {
    FrameHead {
        open: true,
        parent: 0,
        start_ns: -1000,
        duration_ns: 0,
        link: None,
        output: inline(b""),
        ..frame()
    }
}

/// A failed frame of the caller's own component.
pub(crate) fn frame_other() -> FrameHead {
    FrameHead { component: 15, other: Some("judge".into()), severity: 3, error: true, ..frame() }
}

/// A frame whose end also linked a later frame that had waited for it.
pub(crate) fn frame_ahead() -> FrameHead {
    FrameHead { link: Some((302, link(0x22))), ..frame() }
}

pub(crate) fn part() -> PartHead {
    PartHead { run: RunUid(2), seq: 300, part: 1, after_ns: 50_000_000, body: blob() }
}

pub(crate) fn snapshot() -> SnapshotHead {
    SnapshotHead {
        run: RunUid(2),
        seq: 300,
        state: blob(),
        embeddings: vec![("e5".into(), inline(&[0, 0, 128, 63]))],
    }
}

pub(crate) fn tombstone() -> TombstoneHead {
    TombstoneHead {
        namespace: NamespaceId(16),
        run: RunUid(2),
        frames: 300,
        started_ns: TIME_NS,
        parent: None,
        dropped_ns: TIME_NS + 1,
        rule: "normal".into(),
        why: String::new(),
    }
}

pub(crate) fn tombstone_of_fork() -> TombstoneHead {
    TombstoneHead {
        parent: Some((RunUid(1), 299, 300)),
        rule: "forget".into(),
        why: "asked for".into(),
        ..tombstone()
    }
}

pub(crate) fn embedding() -> EmbeddingHead {
    let embeddings = vec![("e5".into(), blob()), ("words".into(), inline(&[0, 0, 128, 63]))];
    EmbeddingHead { namespace: NamespaceId(16), space: 17, key: b"loan/42".to_vec(), embeddings }
}

pub(crate) fn spaces() -> [SpaceHead; 3] {
    let keyspace =
        |history| SpaceHead::Keyspace { id: 17, namespace: NamespaceId(16), name: "kv".into(), history };
    [
        SpaceHead::Namespace { id: NamespaceId(16), name: "default".into() },
        keyspace(HistoryCode::Newest(3)),
        keyspace(HistoryCode::All),
    ]
}

pub(crate) fn group_part(first: bool) -> GroupPart<'static> {
    GroupPart {
        group: 7,
        namespace: NamespaceId(16),
        raw_start: if first { 0 } else { 300 },
        raw_len: 5,
        codec: u8::from(!first),
        before_offset: if first { 0 } else { 200 },
        before_len: if first { 0 } else { 64 },
        encoded: b"bytes",
    }
}

fn totals() -> LogTotals {
    LogTotals {
        batches: 3,
        records: 39,
        frames: 5,
        piece_bytes: 1,
        recipe_bytes: 2,
        frame_bytes: 3,
        run_bytes: 4,
        kv_bytes: 6,
        chain_bytes: 7,
    }
}

pub(crate) fn log_state() -> LogState {
    let mut ledger = Frontier::default();
    for leaf in 0..3u8 {
        ledger.push([leaf; 32]);
    }
    LogState {
        next_seqno: Seqno(40),
        chain: [0xcd; 16],
        ledger,
        totals: totals(),
        newest_ns: TIME_NS,
        next_group: 8,
        next_run: 3,
        next_space: 18,
    }
}

pub(crate) fn footer() -> SegmentFooter {
    let state = log_state();
    SegmentFooter { tail: 4096, root: state.ledger.root(), state, rewritten_chain: None }
}

fn vector_entry() -> VectorEntry {
    let (namespace, embedder) = (NamespaceId(16), "e5".to_owned());
    VectorEntry { id: 3, bytes: 70_000, namespace, embedder, dimensions: 384, count: 40, upto: Seqno(900) }
}

pub(crate) fn manifest_state() -> ManifestState {
    ManifestState {
        format: FORMAT,
        store: STORE,
        created_ns: TIME_NS,
        segments: vec![
            SegmentEntry { id: SegmentId(2), first_seqno: Seqno(1), sealed_bytes: Some(5000) },
            SegmentEntry { id: SEGMENT, first_seqno: Seqno(7), sealed_bytes: None },
        ],
        tables: vec![TableEntry { id: 4, bytes: 900 }],
        covers: (SEGMENT, 96),
        covers_state: LogState::empty(),
        synced: 96,
        clean: Some(CleanClose { tail: 96, state: LogState::empty() }),
        next_table: 5,
        next_rewritten: SegmentId::REWRITTEN_MIN + 6,
        erased: totals(),
        vectors: VectorList { files: vec![vector_entry()], upto: Seqno(900), next: 4 },
        cuts: CutList { newest: vec![log_cut()], earlier: 2 },
    }
}

fn log_cut() -> LogCut {
    LogCut { segment: SegmentId(2), offset: 4600, bytes: 130, from_ns: TIME_NS, until_ns: TIME_NS + 5 }
}

pub(crate) fn synced_note() -> SyncedNote {
    SyncedNote::new(STORE, 6, (SEGMENT, 190), &LogState { chain: [0xcd; 16], ..log_state() }, TIME_NS)
}

/// A batch with checksums for [`OFFSET`].
pub(crate) fn stamped(mut batch: BatchBuf) -> Vec<u8> {
    let len = batch.bytes.len();
    for (index, start) in batch.starts.iter().enumerate() {
        let end = batch.starts.get(index + 1).map_or(len, |next| *next as usize);
        let start = *start as usize;
        stamp_record(&mut batch.bytes[start..end], salt(), OFFSET + start as u64);
    }
    let header = BatchHeader {
        bytes: len as u32,
        form: BatchForm::Short,
        synced: OFFSET as u32,
        first_seqno: Seqno(7),
        time_ns: TIME_NS,
        prev: [0xcd; 16].into(),
    };
    header.write(&mut batch.bytes, salt(), OFFSET);
    batch.bytes
}

pub(crate) fn one_record(kind: RecordKind, head: &[u8], tail: &[u8]) -> Vec<u8> {
    let mut batch = BatchBuf::new(NamespaceId(16));
    batch.push_logical(kind, RECORD_SALT, head, tail).unwrap();
    stamped(batch)
}

/// The batch of [`one_record`] in the long form.
fn long_batch(kind: RecordKind, head: &[u8]) -> Vec<u8> {
    let body = [&RECORD_SALT[..], &[u8::try_from(head.len()).unwrap()], head].concat();
    let len = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
    let mut record = [&[0; 4][..], &len(body.len() + 10), &[kind.code(), 1], &body].concat();
    stamp_record(&mut record, salt(), OFFSET + 48);
    let mut batch = [&[0; 4][..], &len(record.len() + 48), &len(1), &len(OFFSET as usize)].concat();
    batch.extend([&7u64.to_le_bytes()[..], &TIME_NS.to_le_bytes(), &[0xcd; 16], &record].concat());
    let crc = salt().crc(OFFSET, &batch[4..]);
    batch[..4].copy_from_slice(&crc.to_le_bytes());
    batch
}

/// Two records: the first stores a key, and both salts follow from it.
fn batch_with_key() -> Vec<u8> {
    let mut batch = BatchBuf::new(NamespaceId(16));
    let put = put_inline();
    let delete = KvHead { value: None, ..put_inline() };
    batch.push_logical(RecordKind::Put, RECORD_SALT, &put.encode(), &[]).unwrap();
    batch.push_logical(RecordKind::Delete, [0xee; 16], &delete.encode(), &[]).unwrap();
    stamped(batch)
}

/// The single record of a batch, from its crc on.
fn record(kind: RecordKind, head: &[u8], recipes: usize) -> Vec<u8> {
    let mut tail = Vec::new();
    for back in 0..recipes as u32 {
        RecipeRef { body_len: 100, base_back: back * 4, recipe: &[0x91, 3] }.put(&mut tail);
    }
    one_record(kind, head, &tail).split_off(BATCH_HEADER_BYTES)
}

fn part_record(first: bool) -> Vec<u8> {
    let mut batch = BatchBuf::new(NamespaceId(16));
    batch.push_group_part(&group_part(first)).unwrap();
    stamped(batch).split_off(BATCH_HEADER_BYTES)
}

/// MANIFEST-0007 and CURRENT as they are written.
fn manifest_files() -> (Vec<u8>, Vec<u8>) {
    let sim = SimIo::new(1);
    let root = Path::new("store");
    sim.create_dir_all(root).unwrap();
    let paths = StorePaths::new(root);
    Manifest::create(&sim, &paths, 7, manifest_state()).unwrap();
    let read = |path: &Path| {
        let file = sim.open(path, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    (read(&paths.manifest(7)), read(&paths.current()))
}

/// The edit of [`manifest_state`] in format 1, 2 or 3.
pub(crate) fn manifest_before(format: u16) -> Vec<u8> {
    ManifestState { format, ..manifest_state() }.encode().unwrap()
}

/// Segment of the compaction samples.
pub(crate) const REWRITTEN: SegmentId = SegmentId(SegmentId::REWRITTEN_MIN + 5);

pub(crate) fn rewritten_salt() -> Salt {
    Salt::new(STORE, REWRITTEN)
}

pub(crate) fn rewritten_header() -> SegmentHeader {
    SegmentHeader { format: REWRITTEN_FORMAT, segment: REWRITTEN, ..segment_header() }
}

pub(crate) fn rewritten_footer() -> SegmentFooter {
    SegmentFooter { rewritten_chain: Some([0xee; 16]), ..footer() }
}

pub(crate) fn erased() -> ErasedRecords {
    let node = |height, byte| LedgerNode { height, hash: [byte; 32] };
    ErasedRecords { count: 300, nodes: vec![node(0, 0xa1), node(1, 0xa2)] }
}

pub(crate) fn erased_of(leaf: bool) -> ErasedBatches {
    let node = leaf.then_some(LedgerNode { height: 6, hash: [0xa3; 32] });
    ErasedBatches { seqnos: 500, batches: 70, node }
}

pub(crate) fn group_rest() -> GroupRest<'static> {
    let ranges = vec![0..100, 300..301, 400..262_144];
    GroupRest { group: 7, namespace: NamespaceId(16), codec: 1, ranges, encoded: b"bytes" }
}

/// Records of a rewritten segment as a batch at [`OFFSET`].
pub(crate) fn rewritten(records: &[(RecordKind, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0; BATCH_HEADER_BYTES];
    for (kind, body) in records {
        let start = start_record(&mut bytes, kind.code(), 1);
        bytes.extend_from_slice(body);
        seal_record(&mut bytes, start);
        stamp_record(&mut bytes[start..], rewritten_salt(), OFFSET + start as u64);
    }
    let header = BatchHeader {
        bytes: u32::try_from(bytes.len()).unwrap(),
        form: BatchForm::Short,
        synced: 0,
        first_seqno: Seqno(7),
        time_ns: TIME_NS,
        prev: [0xcd; 16].into(),
    };
    header.write(&mut bytes, rewritten_salt(), OFFSET);
    bytes
}

/// Three joined batches: a key's value, erased batches with one leaf, and the value again.
pub(crate) fn joined() -> Vec<u8> {
    let logical = one_record(RecordKind::Put, &put_inline().encode(), &[]).split_off(BATCH_HEADER_BYTES + 6);
    let node = Some(LedgerNode { height: 0, hash: [0xa4; 32] });
    let gone = put(|out| ErasedBatches { seqnos: 500, batches: 1, node }.put(out));
    let records =
        [(RecordKind::Put, logical.clone()), (RecordKind::ErasedBatches, gone), (RecordKind::Put, logical)];
    let (mut bytes, mut table) = (vec![0; BATCH_HEADER_BYTES], JoinedTable::default());
    for ((kind, body), time_ns) in records.iter().zip([TIME_NS, TIME_NS + 91_000, TIME_NS - 1]) {
        let start = start_record(&mut bytes, kind.code(), 1);
        bytes.extend_from_slice(body);
        seal_record(&mut bytes, start);
        stamp_record(&mut bytes[start..], rewritten_salt(), OFFSET + start as u64);
        table.push((bytes.len() - start) as u64, time_ns);
    }
    join(bytes, &table.finish())
}

/// Joined batches with these records, which begin behind the room for the header, and this table.
pub(crate) fn join(mut bytes: Vec<u8>, table: &[u8]) -> Vec<u8> {
    let records_end = u32::try_from(bytes.len()).unwrap();
    bytes.extend_from_slice(table);
    let header = BatchHeader {
        bytes: u32::try_from(bytes.len()).unwrap(),
        form: BatchForm::Joined { records_end },
        synced: 0,
        first_seqno: Seqno(7),
        time_ns: TIME_NS,
        prev: [0xcd; 16].into(),
    };
    header.write(&mut bytes, rewritten_salt(), OFFSET);
    bytes
}

/// The bytes that `put` appends.
pub(crate) fn put(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

/// The statement of a compaction of two segments, after which replaced runs are gone.
pub(crate) fn erasure() -> ErasureHead {
    let span = |first, end, records, leaves, digest| ErasedSpan {
        first: Seqno(first),
        end: Seqno(end),
        records,
        leaves,
        digest: [digest; 32],
    };
    ErasureHead {
        rule: ErasureRule::Compaction,
        time_ns: TIME_NS,
        spans: vec![span(1, 301, 130, 12, 0xe1), span(401, 500, 1, 0, 0xe2)],
        runs: vec![3..4, 8..11],
    }
}

fn erased_batches(leaf: bool) -> Vec<u8> {
    rewritten(&[(RecordKind::ErasedBatches, put(|out| erased_of(leaf).put(out)))])
}

/// A key's value, 300 erased records, three of them logical, and a group remainder.
pub(crate) fn rewritten_batch() -> Vec<u8> {
    let logical = one_record(RecordKind::Put, &put_inline().encode(), &[]).split_off(BATCH_HEADER_BYTES + 6);
    rewritten(&[
        (RecordKind::Put, logical),
        (RecordKind::Erased, put(|out| erased().put(out))),
        (RecordKind::GroupRest, put(|out| group_rest().put(out))),
    ])
}

/// Name and bytes of every sample.
pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let put = put_inline();
    let put_blob = KvHead { value: Some(blob()), ..put_inline() };
    let delete = KvHead { value: None, ..put_inline() };
    let [namespace, newest, every] = spaces().map(|space| codec::encode(&space).unwrap());
    let run = RunHead { fields: run_fields(), metadata: inline(b"{}") };
    let (manifest, current) = manifest_files();
    let batch = one_record(RecordKind::Put, &put.encode(), &[]);
    let hash = record_hash(&RECORD_SALT, RecordKind::Put.code(), 1, 7, &put.encode());
    let digest = |component: &Component, metadata: &[u8]| {
        chain::digest(component, 3, false, true, BlobId([1; 32]), BlobId([2; 32]), metadata)
    };
    let llm = digest(&Component::Llm, br#"{"b":1.0,"a":"\u0078","volatile":{"id":7}}"#);
    let mut ledger = Frontier::default();
    let mut roots = ledger.root().to_vec();
    for leaf in 0..3u8 {
        ledger.push([leaf; 32]);
        roots.extend(ledger.root());
    }
    let base = &extents()[..2];
    vec![
        ("segment_header", segment_header().encode().unwrap()),
        ("chain_digest", chain_digest(&batch).to_vec()),
        ("batch", batch),
        ("batch_long", long_batch(RecordKind::Put, &put.encode())),
        ("batch_with_key", batch_with_key()),
        ("put_inline", record(RecordKind::Put, &put.encode(), 0)),
        ("put_blob", record(RecordKind::Put, &put_blob.encode(), 1)),
        ("delete", record(RecordKind::Delete, &delete.encode(), 0)),
        ("namespace", record(RecordKind::Space, &namespace, 0)),
        ("keyspace_newest", record(RecordKind::Space, &newest, 0)),
        ("keyspace_all", record(RecordKind::Space, &every, 0)),
        ("run", record(kinds::RUN, &run.encode().unwrap(), 0)),
        ("frame", record(kinds::FRAME, &frame().encode(), 1)),
        ("frame_open", record(kinds::FRAME, &frame_open().encode(), 1)),
        ("frame_other", record(kinds::FRAME, &frame_other().encode(), 1)),
        ("frame_ahead", record(kinds::FRAME, &frame_ahead().encode(), 1)),
        ("frame_part", record(kinds::FRAME_PART, &part().encode(), 1)),
        ("snapshot", record(kinds::SNAPSHOT, &snapshot().encode(), 1)),
        ("tombstone", record(kinds::TOMBSTONE, &tombstone().encode(), 0)),
        ("tombstone_of_fork", record(kinds::TOMBSTONE, &tombstone_of_fork().encode(), 0)),
        ("embedding", record(RecordKind::Embedding, &embedding().encode(), 1)),
        ("erasure", record(RecordKind::Erasure, &erasure().encode(), 0)),
        ("group_part_first", part_record(true)),
        ("group_part_later", part_record(false)),
        ("footer", footer().encode(salt()).unwrap()),
        ("manifest", manifest),
        ("manifest_1", manifest_before(1)),
        ("manifest_2", manifest_before(2)),
        ("manifest_3", manifest_before(3)),
        ("synced_slot", synced_note().encode().unwrap().to_vec()),
        ("current", current),
        ("segment_header_rewritten", rewritten_header().encode().unwrap()),
        ("erased_batches", erased_batches(true)),
        ("erased_batches_without_leaf", erased_batches(false)),
        ("batch_with_erased", rewritten_batch()),
        ("joined", joined()),
        ("footer_rewritten", rewritten_footer().encode(rewritten_salt()).unwrap()),
        ("derived_salts", [7, 8].map(|seqno| derived_salt(&RECORD_SALT, Seqno(seqno))).concat()),
        ("record_hash", hash.to_vec()),
        ("leaf", leaf_hash(&hash).to_vec()),
        ("ledger_roots", roots),
        ("chain_genesis", chain::genesis().0.to_vec()),
        ("frame_digest", llm.to_vec()),
        ("frame_digest_other", digest(&Component::Other("judge".into()), b"").to_vec()),
        ("link", chain::next(&chain::genesis(), &llm).0.to_vec()),
        ("recipe_alone", encode_recipe(&extents(), None)),
        ("recipe_against_base", encode_recipe(&extents(), Some(base))),
    ]
}
