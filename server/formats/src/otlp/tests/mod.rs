//! Requests of well-behaved and hostile exporters.

mod disks;
mod forms;
mod frames;
mod logs;
mod runs;

use annals::{Namespace, RecordedFrame, RunReader, Store};
use serde_json::{Value, json};

use super::{TraceEncoding, TraceIngest, TraceReceipt};

/// A store and an ingest for it.
struct IngestBench {
    store: Store,
    space: Namespace,
    ingest: TraceIngest,
    _directory: tempfile::TempDir,
}

/// A time shortly after the spans here.
const NOW: u64 = 1_700_000_100_000_000_000;
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

impl IngestBench {
    fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    /// A bench over an existing directory, as after a restart.
    fn over(directory: tempfile::TempDir) -> Self {
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        Self { ingest: TraceIngest::new(space.clone()), store, space, _directory: directory }
    }

    #[track_caller]
    fn take(&self, request: &Value) -> TraceReceipt {
        self.ingest.ingest_request(request.to_string().as_bytes(), TraceEncoding::Json, NOW).unwrap()
    }

    #[track_caller]
    fn run(&self, name: &str) -> RunReader {
        self.space.run(name).unwrap()
    }

    #[track_caller]
    fn frames(&self, name: &str) -> Vec<RecordedFrame> {
        self.run(name).frames().map(Result::unwrap).collect()
    }

    /// Closes the store; returns its directory.
    fn close(self) -> tempfile::TempDir {
        let Self { store, space, ingest, _directory } = self;
        drop((ingest, space));
        store.close().unwrap();
        _directory
    }

    fn names(&self) -> Vec<String> {
        self.space.runs().unwrap().map(|run| run.unwrap().name).collect()
    }
}

fn metadata(frame: &RecordedFrame) -> Value {
    serde_json::from_slice(&frame.metadata).unwrap()
}

/// A request with one resource and scope.
fn request(spans: &[Value]) -> Value {
    let service = json!({ "attributes": [{ "key": "service.name", "value": { "stringValue": "pilot" } }] });
    json!({ "resourceSpans": [{ "resource": service, "scopeSpans": [{ "scope": { "name": "ours" }, "spans": spans }] }] })
}

/// A span from its number (its id, and its start in seconds), its parent's number (0: none), and its text
/// attributes.
fn span(number: u64, parent: u64, texts: &[(&str, &str)]) -> Value {
    let at = |tenths: u64| (1_700_000_000_000_000_000 + tenths * 100_000_000).to_string();
    let pairs = texts.iter().map(|(key, text)| json!({ "key": key, "value": { "stringValue": text } }));
    let parent = if parent == 0 { String::new() } else { format!("{parent:016x}") };
    json!({
        "traceId": TRACE, "spanId": format!("{number:016x}"), "parentSpanId": parent, "name": format!("step {number}"),
        "kind": 1, "startTimeUnixNano": at(number * 10), "endTimeUnixNano": at(number * 10 + 9),
        "attributes": pairs.collect::<Vec<_>>(),
    })
}
