//! A store of several segments with every kind of record. Its segments are rewritten and listed as compaction
//! does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::blob::{GROUP_BYTES_MAX, GroupDecoder, GroupId};
use crate::format_tests::schema;
use crate::ids::{NamespaceId, RecordPlace, SegmentId};
use crate::io::sim::SimIo;
use crate::io::{Io, ReadMode};
use crate::log::cursor::for_each_checked_record;
use crate::log::erasure::ErasureRule;
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES};
use crate::log::manifest::{self, Manifest, ManifestState};
use crate::log::open::{FoundLog, find};
use crate::log::parts;
use crate::log::paths::StorePaths;
use crate::log::record::{GroupPart, GroupRest, LogicalBody, RecordKind};
use crate::log::rewrite::{LiveSet, Recompress, RewrittenSegment, rewrite};
use crate::log::salts::BatchSalts;
use crate::log::scan::{ScanEnd, scan};
use crate::trace::census::commit_statements;
use crate::{Component, Frame, Options, RunSpec, Status, Store, kv::History};

pub(crate) const ROOT: &str = "s";

pub(crate) fn options(sim: &SimIo) -> Options {
    let read_mode = ReadMode::Positional;
    let io = Arc::new(sim.clone());
    Options {
        io,
        segment_bytes_max: 20 << 10,
        zero_ahead_bytes: 0,
        read_mode,
        // The tests rewrite the segments, not the closing.
        raw_tail_bytes_max: 0,
        ..Options::default()
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix_seed(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Unique bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Words that compress.
fn words(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).iter().map(|byte| b'a' + byte % 8).collect()
}

/// Writes interleaved runs, forks, streams of parts, snapshots, keys and a large body.
pub(crate) fn sample_store(seed: u64) -> SimIo {
    let sim = SimIo::new(seed);
    let store = Store::open_with(ROOT, options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("keys", History::All).unwrap();
    for round in 0..6u64 {
        let name = |n: u64| format!("run {round}.{n}");
        let runs = [0, 1].map(|n| space.begin_run(RunSpec::new(name(n))).unwrap());
        let mut said = words(mix_seed(seed, round), 300);
        for step in 0..8u64 {
            for (n, run) in (0u64..).zip(&runs) {
                let own = mix_seed(seed, round << 16 | step << 8 | n);
                said.extend(words(own, 40 + (own % 200) as usize));
                let output = match own % 3 {
                    0 => noise(own, 60 + (own % 900) as usize),
                    1 => words(own, 500),
                    _ => noise(own, 20),
                };
                run.record(Frame::new(Component::Tool, said.clone(), output)).unwrap();
                if own.is_multiple_of(4) {
                    run.snapshot(words(own, 2000), &[("e5", &[1.0, (own % 1000) as f32])]).unwrap();
                }
            }
            let own = mix_seed(seed, 1 << 40 | round << 8 | step);
            let value = if own.is_multiple_of(2) { noise(own, 30) } else { noise(own, 5000) };
            keys.put(format!("key {}", own % 5).as_bytes(), value).unwrap();
            let mut batch = space.batch();
            batch.put(&keys, b"one", noise(own + 1, 50)).put(&keys, b"two", noise(own + 2, 50));
            batch.delete(&keys, b"three");
            batch.commit().unwrap();
        }
        if round % 2 == 1 {
            let fork = space.fork(&name(0), 4, false, RunSpec::new(format!("fork {round}"))).unwrap();
            fork.record(Frame::new(Component::Llm, said, words(round, 700))).unwrap();
            fork.end(Status::Ok).unwrap();
        }
        for run in runs {
            run.end(Status::Failed).unwrap();
        }
    }
    store.close().unwrap();
    sim
}

pub(crate) fn paths() -> StorePaths {
    StorePaths::new(Path::new(ROOT))
}

pub(crate) fn find_log(sim: &SimIo) -> FoundLog {
    find(sim, &paths(), false, false, ReadMode::Positional).unwrap()
}

/// Scans the log from its first byte to its end.
pub(crate) fn scan_whole_log(sim: &SimIo) -> crate::Result<ScanEnd> {
    let found = find_log(sim);
    let first = found.state.segments.first().unwrap().id;
    let end = scan(&*schema(), &found, (first, SEGMENT_HEADER_BYTES), LogState::empty(), &mut |_, _| Ok(()))?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok(end),
    }
}

/// A logical record: place, time of its batch, kind, salt, head and tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampleRecord {
    pub(crate) place: RecordPlace,
    pub(crate) time_ns: u64,
    pub(crate) kind: RecordKind,
    pub(crate) salt: [u8; 16],
    pub(crate) head: Vec<u8>,
    pub(crate) tail: Vec<u8>,
}

/// A group: its last record, its namespace, and the raw ranges it contains.
#[derive(Debug, Clone)]
pub(crate) struct SampleGroup {
    pub(crate) last: RecordPlace,
    pub(crate) namespace: NamespaceId,
    pub(crate) ranges: Vec<Range<u32>>,
}

/// All records and groups of a log.
#[derive(Debug, Default)]
pub(crate) struct LogContents {
    /// By seqno.
    pub(crate) records: BTreeMap<u64, SampleRecord>,
    pub(crate) groups: BTreeMap<u64, SampleGroup>,
}

pub(crate) fn log_contents(sim: &SimIo) -> LogContents {
    let found = find_log(sim);
    let first = found.state.segments.first().unwrap().id;
    let mut all = LogContents::default();
    scan(&*schema(), &found, (first, SEGMENT_HEADER_BYTES), LogState::empty(), &mut |batch, segment| {
        let mut salts = BatchSalts::default();
        for_each_checked_record(batch, segment.salt, |at, seqno, record| {
            let place = RecordPlace { segment: segment.id, offset: at, len: record.bytes };
            let (id, namespace, ranges) = match RecordKind::parse(record.kind, record.layout)?.unwrap() {
                RecordKind::GroupPart => {
                    let part = GroupPart::parse(record.body)?;
                    (part.group, part.namespace, std::iter::once(0..part.raw_start + part.raw_len).collect())
                }
                RecordKind::GroupRest => {
                    let rest = GroupRest::parse(record.body)?;
                    (rest.group, rest.namespace, rest.ranges)
                }
                kind if kind.is_logical() => {
                    let LogicalBody { salt, head, tail } = LogicalBody::of(&record)?;
                    let salt = salts.resolve(seqno, salt)?;
                    let (head, tail) = (head.to_vec(), tail.to_vec());
                    let time_ns = batch.header.time_ns;
                    all.records.insert(seqno.0, SampleRecord { place, time_ns, kind, salt, head, tail });
                    return Ok(());
                }
                _ => return Ok(()),
            };
            all.groups.insert(id, SampleGroup { last: place, namespace, ranges });
            Ok(())
        })
        .unwrap();
        Ok(())
    })
    .unwrap();
    all
}

/// The raw bytes of every group.
pub(crate) fn raw_groups(sim: &SimIo, all: &LogContents) -> BTreeMap<u64, Vec<u8>> {
    let found = find_log(sim);
    let mut decoder = GroupDecoder::default();
    let each = all.groups.iter().map(|(id, held)| {
        let segment = found.segments.get(held.last.segment).unwrap();
        let raw =
            parts::read(&segment, held.last, held.namespace, GroupId(*id), GROUP_BYTES_MAX, &mut decoder);
        (*id, raw.unwrap().bytes)
    });
    each.collect()
}

/// Rewrites segments in rows of these lengths; the remaining segments stay.
pub(crate) fn rewrite_rows(
    sim: &SimIo,
    keep: &dyn LiveSet,
    rows: &[usize],
    recompress: Recompress,
) -> crate::Result<Vec<RewrittenSegment>> {
    let (io, paths) = (sim as &dyn Io, paths());
    let found = find_log(sim);
    let loaded = manifest::load(io, &paths)?.unwrap();
    let mut state: ManifestState = loaded.state;
    let sealed = state.segments.len() - 1;
    let (mut at, mut listed, mut made) = (0, Vec::new(), Vec::new());
    for row in rows {
        let entries = &state.segments[at..(at + row).min(sealed)];
        at += entries.len();
        if entries.is_empty() {
            continue;
        }
        let sources: Vec<_> = entries.iter().map(|entry| found.segments.get(entry.id).unwrap()).collect();
        let id = SegmentId(state.next_rewritten);
        state.next_rewritten += 1;
        let one =
            rewrite(io, &paths, state.store, &*schema(), &sources, id, keep, recompress, &mut |bytes| {
                match bytes {
                    0 => Err(crate::Error::bug("nothing is written")),
                    _ => Ok(()),
                }
            })?;
        assert_eq!(sim.read(&paths.segment(id)).unwrap().len() as u64, one.entry.sealed_bytes.unwrap());
        listed.push(one.entry.clone());
        state.erased.add(&one.erased);
        made.push(one);
    }
    let gone: Vec<SegmentId> = state.segments[..at].iter().map(|entry| entry.id).collect();
    listed.extend_from_slice(&state.segments[at..]);
    state.segments = listed;
    // The old tables lead to places that no longer exist: they are rebuilt.
    state.tables.clear();
    state.covers = (state.segments[0].id, SEGMENT_HEADER_BYTES);
    state.covers_state = LogState::empty();
    state.format = manifest::FORMAT;
    Manifest::create(io, &paths, loaded.generation + 1, state)?;
    for id in gone {
        io.remove(&paths.segment(id))?;
    }
    Ok(made)
}

/// States what was erased by rewriting, as compaction does before it lists its segments. All runs without a record
/// count as replaced.
pub(crate) fn state_erasures(sim: &SimIo, made: &[RewrittenSegment]) {
    let store = Store::open_with(ROOT, options(sim)).unwrap();
    let runs = store.gaps(&mut |_| Ok(())).unwrap().missing_runs;
    let spans: Vec<_> = made.iter().filter_map(|made| made.span).collect();
    commit_statements(store.core(), ErasureRule::Compaction, &spans, &runs).unwrap();
    store.close().unwrap();
}
