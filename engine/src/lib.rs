//! annals: an embedded key-value storage engine whose log is the database. It records AI-agent runs
//! bit-exactly and returns them bit-exactly.
//!
//! ```
//! use annals::{Component, Frame, RunSpec, Status, Store};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("store");
//! let store = Store::open(&path)?;
//! let agent = store.namespace("default")?;
//! let run = agent.begin_run(RunSpec::new("loan-42").model("gpt-4o-2024-08-06"))?;
//! let call = run.record(Frame::new(Component::Llm, r#"{"messages":["approve?"]}"#, r#"{"tool":"score"}"#))?;
//! run.record(Frame::new(Component::Tool, r#"{"id":42}"#, r#"{"score":580}"#).parent(call))?;
//! let recorded = run.end(Status::Ok)?;
//! for frame in agent.run("loan-42")?.frames() {
//!     let frame = frame?; // checked: its bytes hash to their ids, its link follows
//!     println!("{} {} {} bytes", frame.seq, frame.component, frame.output.len());
//! }
//! assert_eq!(agent.run("loan-42")?.info().fingerprint, recorded.fingerprint);
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The engine prints nothing, reads no environment variable and starts no runtime. Its modules, lowest first:
//! [`io`], `blob`, `log`, `kv`, `trace`, `replay` and `ledger`. A module uses only those before it.

#[cfg(test)]
mod format_tests;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod ledger;
mod replay;
mod store;
mod tape;
mod trace;
mod upkeep;
#[cfg(test)]
mod vector_tests;

pub use annals_store::io;
use annals_store::{blob, codec, error, ids, kv, log, sync, timestamp};
use annals_vector as vector;
pub use error::{Error, ErrorKind, Result};
pub use ids::{BlobId, Link, NodeHash, RunUid, Seqno, StoreId};
pub use io::ReadMode;
pub use kv::core::Options;
pub use kv::{
    BlobReader, Content, History, KEY_BYTES_MAX, Keyspace, KvBatch, ScanRange, StoredBlob, Version, View,
};
pub use kv::{Keys, Scan};
pub use ledger::{
    Checkpoint, CheckpointDifference, Comparison, Gap, GapKind, HistoryPart, Mark, Proof, Signature,
};
pub use log::activity::{Activity, SYNC_BOUNDS_NS};
pub use log::{Damage, Durability, Ticket, socket_paths};
pub use replay::matching;
pub use replay::{
    CallError, CallFn, Calls, DriftingNondet, Nondet, Recorder, RecordingNondet, Replayer, ReplayingNondet,
    Request, SystemNondet, VerifyProblem, VerifyReport,
};
pub use store::{BytesByKind, Namespace, Stats, Store};
pub use tape::{REDACTED_TAG, TAPE_BYTES_MAX, Tape, TapeInfo, TapeRedaction};
pub use trace::{
    Component, DroppedRun, ENDED_RUNS_MAX, Ending, ForkPoint, Frame, FrameInfo, Frames, LlmFrame, OpenFrame,
    Pin, RUN_NAME_BYTES_MAX, RecordedFrame, Run, RunBatch, RunInfo, RunReader, RunSpec, Severity, Snapshot,
    Status, ToolFrame, VerifyCounts,
};
pub use upkeep::{
    BackupNote, BackupReport, CompactOptions, CompactPhase, CompactProgress, CompactReport, Diagnosis,
    FORGET, Finding, LostItem, RETENTION_RULES_MAX, RepairReport, RetentionLimit, RetentionPlan,
    RetentionPolicy, RetentionReport, RetentionRule, RuleReport, RunRemnants, RunShare, RunTotals, SAMPLING,
    Sharing, diagnose, is_due, parse_duration_ns, repair, restore,
};
pub use vector::{Owner, OwnerFilter, Search, SearchHit};
