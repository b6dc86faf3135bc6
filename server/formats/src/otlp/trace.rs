//! An open trace: its run and its known spans.
//!
//! A trace is the run `trace-<32 digits>`. A run that has ended, or was left by a dead process, cannot be
//! extended: later spans go to `trace-<32 digits>.2`, `.3` and so on, each of which names the first run. The
//! span ids of the earlier runs are read from the store, so that no span is stored twice.

use annals::runs::INGESTED_TAG;
use annals::{Durability, ErrorKind, Namespace, Run, RunReader, RunSpec, Status, Ticket};
use serde::Deserialize;
use serde_json::json;

use super::edges::{SpanNote, SpanPlace, TraceSpans};
use super::reply::TraceReceipt;
use super::span::{MappedSpan, TraceId};
use annals_text::hex;

/// Maximum number of spans in a run, and of remembered span ids of earlier runs.
pub(super) const SPANS_MAX: usize = 1 << 14;
/// Maximum number of runs of a trace.
pub(super) const PARTS_MAX: u16 = 1000;
/// Maximum number of frames of a batch, and approximately of their bytes.
const BATCH_FRAMES_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// An open trace.
#[derive(Debug)]
pub(super) struct Trace {
    run: Run,
    id: TraceId,
    part: u16,
    known: TraceSpans,
    /// Frames of this run.
    frames: usize,
    /// Whether a root has arrived, and if so, whether one failed.
    root: Option<bool>,
    /// When the last span arrived.
    pub(super) seen_ns: u64,
}

/// The name of a trace's run.
fn run_name(id: &TraceId, part: u16) -> String {
    match part {
        1 => format!("trace-{}", hex::encode(id)),
        part => format!("trace-{}.{part}", hex::encode(id)),
    }
}

impl Trace {
    /// Begins the run of a trace that starts with these spans; `None` if the trace already has the maximum
    /// number of runs.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn begin(
        space: &Namespace,
        id: TraceId,
        spans: &[MappedSpan],
    ) -> annals::Result<Option<Self>> {
        let mut earlier = Vec::new();
        for part in 1..=PARTS_MAX {
            match space.run(&run_name(&id, part)) {
                Ok(reader) => earlier.push((part, reader)),
                // The name of a dropped run is free, too.
                Err(error) if [ErrorKind::NotFound, ErrorKind::Gone].contains(&error.kind()) => {
                    match space.prepare_run(run_spec(&id, part, spans)) {
                        Ok(run) => return Ok(Some(Self::resume(run, id, part, &earlier))),
                        // Another writer has just taken the name.
                        Err(error) if error.kind() == ErrorKind::Conflict => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn resume(run: Run, id: TraceId, part: u16, earlier: &[(u16, RunReader)]) -> Self {
        let mut known = TraceSpans::default();
        for (part, reader) in earlier.iter().rev() {
            for seq in (1..=reader.info().frames).rev() {
                if known.len() >= SPANS_MAX {
                    break;
                }
                // Verification reports an unreadable frame; here its span may be stored again.
                if let Some(span) = reader.frame_info(seq).ok().and_then(|frame| span_id_of(&frame.metadata))
                {
                    known.remember(span, SpanPlace { part: *part, seq });
                }
            }
        }
        // An ended earlier run had its root.
        let ended = |(_, run): &(u16, RunReader)| matches!(run.info().status, Status::Ok | Status::Failed);
        let root = earlier.iter().any(ended).then_some(false);
        Self { run, id, part, known, frames: 0, root, seen_ns: 0 }
    }

    /// Adds spans as frames; known spans are skipped. Returns the tickets to wait for.
    ///
    /// # Errors
    /// Those of the store. The trace must not be used afterwards.
    pub(super) fn add_spans(
        &mut self,
        spans: Vec<MappedSpan>,
        taken: &mut TraceReceipt,
    ) -> annals::Result<Vec<Ticket>> {
        let mut tickets = Vec::new();
        let mut spans = spans.into_iter().peekable();
        while spans.peek().is_some() {
            let mut batch = self.run.batch()?;
            batch.durability(Durability::Disk);
            let (mut frames, mut bytes) = (0, 0);
            while frames < BATCH_FRAMES_MAX && bytes < BATCH_BYTES_MAX {
                let Some(span) = spans.next() else { break };
                if self.known.contains(&span.span) {
                    taken.duplicates += 1;
                    continue;
                }
                let edges = self.known.edges(&span, self.part, |part| run_name(&self.id, part));
                let noted = SpanNote::new(&span, &edges);
                if span.parent.is_none() {
                    self.root = Some(span.error || self.root.unwrap_or(false));
                }
                let frame = span.frame(edges.parent, edges.metadata)?;
                bytes += frame.metadata.len();
                bytes += usize::try_from(frame.input.len() + frame.output.len()).unwrap_or(usize::MAX / 4);
                let seq = batch.frame(frame)?;
                self.known.insert_frame(&noted, SpanPlace { part: self.part, seq });
                (frames, self.frames, taken.frames) = (frames + 1, self.frames + 1, taken.frames + 1);
            }
            if frames > 0 {
                // The wait for one of them writes all with one sync.
                tickets.push(batch.submit_inline()?);
            }
        }
        Ok(tickets)
    }

    /// Number of remembered span ids.
    pub(super) fn remembered(&self) -> usize {
        self.known.len()
    }

    /// Whether the run has the maximum number of frames.
    pub(super) fn is_full(&self) -> bool {
        self.frames >= SPANS_MAX
    }

    /// Whether a root and all referenced parents have arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.root.is_some() && self.known.is_whole()
    }

    /// Ends the run with the root's status; `Abandoned` if no root arrived.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn end(&self) -> annals::Result<()> {
        if self.frames == 0 {
            // Nothing new arrived: the run was never begun.
            return Ok(());
        }
        let status = match self.root {
            Some(false) => Status::Ok,
            Some(true) => Status::Failed,
            None => Status::Abandoned,
        };
        let mut batch = self.run.batch()?;
        batch.durability(Durability::Disk);
        batch.end(status)?;
        batch.commit().map(drop)
    }

    /// Leaves the run as it is on disk.
    pub(super) fn abandon(&self) {
        // This is called only after the store refused a write, so a failure here is expected.
        let _ = self.run.abandon();
    }
}

fn run_spec(id: &TraceId, part: u16, spans: &[MappedSpan]) -> RunSpec {
    // The root's values take precedence over those of its children.
    let root = spans.iter().find(|span| span.parent.is_none());
    let first = |of: fn(&MappedSpan) -> Option<&String>| {
        root.and_then(of).or_else(|| spans.iter().find_map(of)).cloned().unwrap_or_default()
    };
    let agent = first(|span| span.agent.as_ref());
    let agent = if agent.is_empty() { first(MappedSpan::service) } else { agent };
    let mut ingested = json!({ "from": "otlp", "trace_id": hex::encode(id) });
    let mut spec = RunSpec::new(run_name(id, part)).agent(agent).model(first(|span| span.model.as_ref()));
    spec = spec.tag(INGESTED_TAG, "otlp");
    if part > 1 {
        ingested["continues"] = json!(run_name(id, 1));
        ingested["part"] = json!(part);
        spec = spec.tag("annals.continues", run_name(id, 1));
    }
    let conversation = first(|span| span.conversation.as_ref());
    if !conversation.is_empty() {
        spec = spec.tag("conversation", conversation);
    }
    spec.started_ns = spans.iter().map(|span| span.started_ns).filter(|ns| *ns > 0).min();
    spec.metadata(json!({ "ingested": ingested }).to_string())
}

/// Whether a run was made from ingested traces, or shares frames of one that was. Such a run holds the contents of
/// spans, not of network traffic, so it cannot be replayed.
///
/// # Errors
/// As [`RunReader::metadata`].
pub fn is_ingested(reader: &RunReader) -> annals::Result<bool> {
    #[derive(Deserialize)]
    struct IngestedMetadata {
        #[serde(rename = "ingested")]
        _ingested: IngestedMarker,
    }
    #[derive(Deserialize)]
    struct IngestedMarker {
        #[serde(rename = "from")]
        _from: String,
    }
    let is_marked = |metadata: &[u8]| serde_json::from_slice::<IngestedMetadata>(metadata).is_ok();
    if reader.info().tags.iter().any(|(key, _)| key == INGESTED_TAG) || is_marked(&reader.metadata()?) {
        return Ok(true);
    }
    // Frames that were exported and imported again have lost the tags of their run.
    Ok(reader.info().frames > 0 && is_marked(&reader.frame_info(1)?.metadata))
}

/// The span id in a frame's metadata.
fn span_id_of(metadata: &[u8]) -> Option<[u8; 8]> {
    #[derive(Deserialize)]
    struct SpanIdMetadata {
        volatile: SpanIdVolatile,
    }
    #[derive(Deserialize)]
    struct SpanIdVolatile {
        otlp: SpanIdOtlp,
    }
    #[derive(Deserialize)]
    struct SpanIdOtlp {
        span: SpanIdField,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SpanIdField {
        span_id: String,
    }
    let metadata: SpanIdMetadata = serde_json::from_slice(metadata).ok()?;
    let id = u64::from_str_radix(&metadata.volatile.otlp.span.span_id, 16).ok()?;
    Some(id.to_be_bytes())
}
