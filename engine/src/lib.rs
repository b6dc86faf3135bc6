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
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

#[cfg(test)]
mod format_tests;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod ids;
pub mod ledger;
pub mod replay;
mod store;
pub mod tape;
mod trace;
pub mod upkeep;
#[cfg(test)]
mod vector_tests;

pub use annals_store::io;
use annals_store::{blob, codec, error, log, sync, timestamp};
use annals_vector as vector;

pub mod kv {
    //! Keyspaces: versioned keys beside the runs. Get, put, history, reads as of any record, scans, batches, and
    //! values as streams. [`Namespace::keyspace`](crate::Namespace::keyspace) opens one.

    pub use annals_store::kv::{
        BlobReader, BodyInput, Content, History, KEY_BYTES_MAX, Keys, Keyspace, KvBatch, Scan, ScanRange,
        StoredBlob, Version, View,
    };
}

pub mod retention {
    //! Which runs are kept for how long: policies, plans and reports
    //! ([`Store::plan_retention`](crate::Store::plan_retention)).

    pub use crate::upkeep::deadlines::{Deadline, DeadlineIndex, DeadlineKind};
    pub use crate::upkeep::due::is_due;
    pub use crate::upkeep::forget::{ForgottenRun, RunRemnants};
    pub use crate::upkeep::retention::{
        FORGET, RETENTION_RULES_MAX, RetentionLimit, RetentionPolicy, RetentionRule, RunShare, SAMPLING,
        parse_duration_ns,
    };
    pub use crate::upkeep::sweep::{RetentionPlan, RetentionReport, RuleReport, RunTotals};
}

pub mod runs {
    //! Runs and their frames: recording, reading, forking, pinning.
    //! [`Namespace::begin_run`](crate::Namespace::begin_run) begins a run,
    //! [`Namespace::run`](crate::Namespace::run) reads one.

    pub use crate::ids::Link;
    pub use crate::trace::{
        BLAME_TAG, Component, DroppedRun, ENDED_RUNS_MAX, Ending, Flag, ForkPoint, Frame, FrameInfo,
        FrameInput, Frames, INGESTED_TAG, LlmFrame, OpenFrame, Pin, RUN_NAME_BYTES_MAX, RecordedFrame,
        ResumedRun, Run, RunBatch, RunFilter, RunInfo, RunOrder, RunPage, RunReader, RunSpec, Severity,
        Snapshot, Status, ToolFrame, VerifyCounts,
    };
    #[doc(hidden)]
    pub use crate::trace::{DropHold, RunBelonging};
}

pub mod vectors {
    //! The nearest vectors to a vector: [`Namespace::nearest`](crate::Namespace::nearest).

    pub use annals_vector::{Owner, OwnerFilter, Search, SearchHit};
}

pub use annals_store::kv::core::Options;
pub use error::{Error, ErrorKind, Result};
pub use ids::{BlobId, RecordedId, RunUid, Seqno, StoreId};
pub use io::ReadMode;
pub use kv::{Keyspace, KvBatch};
pub use log::{Durability, Ticket};
pub use runs::{
    Component, Frame, RecordedFrame, Run, RunInfo, RunReader, RunSpec, Severity, Snapshot, Status,
};
pub use store::{Namespace, Stats, Store};
