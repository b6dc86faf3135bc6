//! A trace that is being taken: its run, and what is known of its spans.
//!
//! A trace is the run `trace-<32 digits>`. One that has ended, or was left by a process that is gone, cannot be added to: what comes later goes to
//! `trace-<32 digits>.2`, `.3` and so on, each of which names the first. Which spans the earlier ones hold is read from them, so that none comes twice.

use annals::{Durability, ErrorKind, Namespace, Run, RunReader, RunSpec, Status, Ticket};
use serde::Deserialize;
use serde_json::json;

use super::edges::{Known, Noted, Place};
use super::reply::Taken;
use super::span::{Mapped, TraceId};
use annals_text::hex;

/// Spans of a run, and span ids of a trace's earlier runs that are remembered.
pub(super) const SPANS_MAX: usize = 1 << 14;
/// Runs of a trace.
pub(super) const PARTS_MAX: u16 = 1000;
/// Frames of a batch, and about their bytes.
const BATCH_FRAMES_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The tag of every run that was ingested.
const TAG: &str = "annals.ingested";

/// See the module.
#[derive(Debug)]
pub(super) struct Trace {
    run: Run,
    id: TraceId,
    part: u16,
    known: Known,
    /// Frames of this run.
    frames: usize,
    /// Whether a root has come, and whether one failed.
    root: Option<bool>,
    /// When a span came last.
    pub(super) seen_ns: u64,
}

/// The name of a trace's run.
fn name(id: &TraceId, part: u16) -> String {
    match part {
        1 => format!("trace-{}", hex::encode(id)),
        part => format!("trace-{}.{part}", hex::encode(id)),
    }
}

impl Trace {
    /// Begins the run of a trace, whose first spans these are; none where it has too many already.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn begin(space: &Namespace, id: TraceId, spans: &[Mapped]) -> annals::Result<Option<Self>> {
        let mut earlier = Vec::new();
        for part in 1..=PARTS_MAX {
            match space.run(&name(&id, part)) {
                Ok(reader) => earlier.push((part, reader)),
                // The name of one that was dropped is free, too.
                Err(error) if [ErrorKind::NotFound, ErrorKind::Gone].contains(&error.kind()) => {
                    match space.prepare_run(spec(&id, part, spans)) {
                        Ok(run) => return Ok(Some(Self::over(run, id, part, &earlier))),
                        // Somebody has just taken the name.
                        Err(error) if error.kind() == ErrorKind::Conflict => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn over(run: Run, id: TraceId, part: u16, earlier: &[(u16, RunReader)]) -> Self {
        let mut known = Known::default();
        for (part, reader) in earlier.iter().rev() {
            for seq in (1..=reader.info().frames).rev() {
                if known.len() >= SPANS_MAX {
                    break;
                }
                // One that cannot be read is told of by others; here a span may come twice for it.
                if let Some(span) = reader.frame_info(seq).ok().and_then(|frame| span_of(&frame.metadata)) {
                    known.remember(span, Place { part: *part, seq });
                }
            }
        }
        // Its root came then.
        let ended = |(_, run): &(u16, RunReader)| matches!(run.info().status, Status::Ok | Status::Failed);
        let root = earlier.iter().any(ended).then_some(false);
        Self { run, id, part, known, frames: 0, root, seen_ns: 0 }
    }

    /// Makes frames of spans; those that are frames already are left out. Gives what is to be waited for.
    ///
    /// # Errors
    /// Those of the store. Then the trace is not to be used any more.
    pub(super) fn add(&mut self, spans: Vec<Mapped>, taken: &mut Taken) -> annals::Result<Vec<Ticket>> {
        let mut tickets = Vec::new();
        let mut spans = spans.into_iter().peekable();
        while spans.peek().is_some() {
            let mut batch = self.run.batch()?;
            batch.durability(Durability::Disk);
            let (mut frames, mut bytes) = (0, 0);
            while frames < BATCH_FRAMES_MAX && bytes < BATCH_BYTES_MAX {
                let Some(span) = spans.next() else { break };
                if self.known.has(&span.span) {
                    taken.again += 1;
                    continue;
                }
                let edges = self.known.edges(&span, self.part, |part| name(&self.id, part));
                let noted = Noted::of(&span, &edges);
                if span.parent.is_none() {
                    self.root = Some(span.error || self.root.unwrap_or(false));
                }
                let frame = span.frame(edges.parent, edges.told)?;
                bytes += frame.metadata.len();
                bytes += usize::try_from(frame.input.len() + frame.output.len()).unwrap_or(usize::MAX / 4);
                let seq = batch.frame(frame)?;
                self.known.take(&noted, Place { part: self.part, seq });
                (frames, self.frames, taken.frames) = (frames + 1, self.frames + 1, taken.frames + 1);
            }
            if frames > 0 {
                tickets.push(batch.submit()?);
            }
        }
        Ok(tickets)
    }

    /// Span ids that are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.known.len()
    }

    /// Whether its run takes no more.
    pub(super) fn is_full(&self) -> bool {
        self.frames >= SPANS_MAX
    }

    /// Whether all that was named has come.
    pub(super) fn is_whole(&self) -> bool {
        self.root.is_some() && self.known.is_whole()
    }

    /// Ends its run: as its root says; abandoned where no root came.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn end(&self) -> annals::Result<()> {
        if self.frames == 0 {
            // Nothing came that was new: the run was never begun.
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

    /// Leaves its run as it is on disk.
    pub(super) fn give_up(&self) {
        // The store refuses, or it would not have come to this.
        let _ = self.run.abandon();
    }
}

fn spec(id: &TraceId, part: u16, spans: &[Mapped]) -> RunSpec {
    // What a root says counts more than what its children say.
    let root = spans.iter().find(|span| span.parent.is_none());
    let first = |of: fn(&Mapped) -> Option<&String>| {
        root.and_then(of).or_else(|| spans.iter().find_map(of)).cloned().unwrap_or_default()
    };
    let agent = first(|span| span.agent.as_ref());
    let agent = if agent.is_empty() { first(Mapped::service) } else { agent };
    let mut ingested = json!({ "from": "otlp", "trace_id": hex::encode(id) });
    let mut spec = RunSpec::new(name(id, part)).agent(agent).model(first(|span| span.model.as_ref()));
    spec = spec.tag(TAG, "otlp");
    if part > 1 {
        ingested["continues"] = json!(name(id, 1));
        ingested["part"] = json!(part);
        spec = spec.tag("annals.continues", name(id, 1));
    }
    let conversation = first(|span| span.conversation.as_ref());
    if !conversation.is_empty() {
        spec = spec.tag("conversation", conversation);
    }
    spec.started_ns = spans.iter().map(|span| span.started_ns).filter(|ns| *ns > 0).min();
    spec.metadata(json!({ "ingested": ingested }).to_string())
}

/// Whether a run was made of traces that others recorded: it holds what their spans say, and not what went over a wire, so nothing can be replayed from it.
///
/// # Errors
/// As [`RunReader::metadata`].
pub fn is_ingested(reader: &RunReader) -> annals::Result<bool> {
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(rename = "ingested")]
        _ingested: Ingested,
    }
    #[derive(Deserialize)]
    struct Ingested {
        #[serde(rename = "from")]
        _from: String,
    }
    Ok(serde_json::from_slice::<Metadata>(&reader.metadata()?).is_ok())
}

/// The span that a frame's metadata says it is.
fn span_of(metadata: &[u8]) -> Option<[u8; 8]> {
    #[derive(Deserialize)]
    struct Metadata {
        volatile: Volatile,
    }
    #[derive(Deserialize)]
    struct Volatile {
        otlp: Otlp,
    }
    #[derive(Deserialize)]
    struct Otlp {
        span: Span,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Span {
        span_id: String,
    }
    let metadata: Metadata = serde_json::from_slice(metadata).ok()?;
    let id = u64::from_str_radix(&metadata.volatile.otlp.span.span_id, 16).ok()?;
    Some(id.to_be_bytes())
}
