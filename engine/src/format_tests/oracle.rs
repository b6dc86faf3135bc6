//! Compares the bincode form with a second implementation (wincode), so that the crate can be replaced
//! without changing a byte. The types here mirror the real ones and share no code with them.

use wincode::{SchemaRead, SchemaWrite};

use super::samples;
use crate::codec;

type OracleHash = [u8; 32];

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleSegmentHeader {
    magic: [u8; 8],
    format: u16,
    cipher: u8,
    key_id: u32,
    store: [u8; 16],
    segment: u32,
    first_seqno: u64,
    chain: [u8; 16],
    created_ns: u64,
}

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleFrontier {
    leaves: u64,
    peaks: Vec<OracleHash>,
}

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleLogState {
    next_seqno: u64,
    chain: [u8; 16],
    ledger: OracleFrontier,
    /// batches, records, frames; bytes of pieces, recipes, frames, runs, key-values, chains.
    totals: [u64; 9],
    newest_ns: u64,
    next_group: u64,
    next_run: u64,
    next_space: u32,
}

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleFooter {
    tail: u64,
    state: OracleLogState,
    root: OracleHash,
}

type OracleVectorFile = (u64, u64, u32, String, u32, u64, u64);

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleManifestState {
    format: u16,
    store: [u8; 16],
    created_ns: u64,
    segments: Vec<(u32, u64, Option<u64>)>,
    tables: Vec<(u64, u64)>,
    covers: (u32, u64),
    covers_state: OracleLogState,
    synced: u64,
    clean: Option<(u64, OracleLogState)>,
    next_table: u64,
    next_rewritten: u32,
    erased: [u64; 9],
    vectors: (Vec<OracleVectorFile>, u64, u64),
    cuts: (Vec<OracleLogCut>, u64),
}

/// Segment, offset, bytes, from and until.
type OracleLogCut = (u32, u64, u64, u64, u64);

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
struct OracleRunFields {
    uid: u64,
    namespace: u32,
    name: String,
    agent: String,
    model: String,
    tags: Vec<(String, String)>,
    status: u8,
    severity: u8,
    parent: Option<(u64, u32, u32)>,
    started_ns: u64,
    ended_ns: u64,
    frames: u32,
    raw_bytes: u64,
    fingerprint: OracleHash,
    gone: bool,
}

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
enum OracleHistory {
    Latest,
    Newest(u32),
    AgeNs(u64),
    All,
}

#[derive(SchemaWrite, SchemaRead, Debug, PartialEq)]
enum OracleSpace {
    Namespace { id: u32, name: String },
    Keyspace { id: u32, namespace: u32, name: String, history: OracleHistory },
}

/// Decodes our bytes as the mirror type and encodes them again.
macro_rules! same {
    ($mirror:ty, $ours:expr) => {{
        let ours = codec::encode(&$ours).unwrap();
        let read: $mirror = wincode::deserialize_exact(&ours).unwrap();
        assert_eq!(wincode::serialize(&read).unwrap(), ours, "{read:?}");
        read
    }};
}

#[test]
fn wincode_reads_and_writes_the_same_bytes() {
    let header = same!(OracleSegmentHeader, samples::segment_header());
    assert_eq!((header.segment, header.first_seqno), (3, 7));
    let ours = samples::footer();
    let footer = same!(OracleFooter, (ours.tail, ours.state, ours.root));
    assert_eq!((footer.tail, footer.state.ledger.leaves, footer.state.ledger.peaks.len()), (4096, 3, 2));
    assert_eq!(footer.state.totals, [3, 39, 5, 1, 2, 3, 4, 6, 7]);
    let state = same!(OracleManifestState, samples::manifest_state());
    assert_eq!(state.segments, [(2, 1, Some(5000)), (3, 7, None)]);
    assert_eq!(state.clean.map(|clean| clean.0), Some(96));
    let run = same!(OracleRunFields, samples::run_fields());
    assert_eq!((run.name.as_str(), run.parent, run.gone), ("loan-42", Some((1, 3, 4)), false));
    let [_, newest, all] = samples::spaces().map(|space| same!(OracleSpace, space));
    assert!(matches!(
        newest,
        OracleSpace::Keyspace { id: 17, namespace: 16, history: OracleHistory::Newest(3), .. }
    ));
    assert!(matches!(all, OracleSpace::Keyspace { history: OracleHistory::All, .. }));
    same!(
        OracleSpace,
        crate::log::record::SpaceHead::Keyspace {
            id: 18,
            namespace: crate::ids::NamespaceId(16),
            name: "é".into(),
            history: crate::log::record::HistoryCode::AgeNs(u64::MAX),
        }
    );
}
