//! The data of a report: runs as the page's scripts read them (`ReportSource` in `server/page/assets/source.js`).

use annals::RunReader;
use annals::runs::Flag;
use annals_server::profiles::Redactor;
use annals_server::suspect::{self, Transcript, Weights};
use annals_server::{
    ExchangeMetadata, FramePair, FrameViewOptions, TIMELINE_FRAMES_MAX, blame, frame_view, run_prices,
    timeline,
};
use serde_json::{Map, Value, json};

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::{CliResult, Failure};

/// Maximum bytes of each text in a report: longer ones are cut and say so.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of states that a report holds; the newest.
const STATES_MAX: usize = 200;

/// A run in a report.
pub(crate) struct ReportedRun {
    pub(crate) data: Value,
    /// What could not be read.
    pub(crate) damage: Vec<String>,
}

impl StoreAccess {
    /// One run as a report holds it.
    pub(crate) fn reported_run(&self, id: &str, by: Option<&Redactor>) -> CliResult<ReportedRun> {
        let reader = self.reader(id)?;
        let info = reader.info();
        let prices = run_prices(&reader);
        let mut rows = Vec::new();
        let mut from = Some(1);
        while let Some(first) = from {
            let page = timeline(&reader, first, TIMELINE_FRAMES_MAX, &prices, by).map_err(engine_failure)?;
            rows.extend(page.frames);
            from = page.next;
        }
        let options =
            FrameViewOptions { redactor: by, all: false, text_bytes_max: TEXT_BYTES_MAX, prices: &prices };
        let (mut views, mut damage) = (Map::new(), Vec::new());
        for seq in 1..=info.frames {
            match frame_view(&reader, seq, &options) {
                Ok(view) => {
                    damage.extend(view.damage.iter().map(|what| format!("frame {seq}: {what}")));
                    views.insert(seq.to_string(), to_json(&view)?);
                }
                Err(error) => damage.push(format!("frame {seq}: {error}")),
            }
        }
        let verified = match reader.verify() {
            Ok(verified) => {
                json!({ "frames": verified.frames, "bytes": verified.bytes, "blobs": verified.blobs })
            }
            Err(error) => {
                damage.push(error.to_string());
                json!({ "error": error.to_string() })
            }
        };
        let data = json!({
            "run": run_json(&reader, by)?, "timeline": { "frames": rows, "next": null, "total": info.frames },
            "views": views, "failure": self.failure_json(id, by, &mut damage), "suspect": suspect_json(&reader, by, &mut damage)?,
            "blame": if by.is_none() { self.blame_json(&info.name)? } else { Value::Null },
            "states": if by.is_none() { states(&reader, &mut damage) } else { Vec::new() },
            "verified": verified, "damage": damage,
        });
        Ok(ReportedRun { data, damage })
    }

    /// The frame to read first, and why the run failed.
    fn failure_json(&self, id: &str, by: Option<&Redactor>, damage: &mut Vec<String>) -> Value {
        let report = match self.failure_report(id, by) {
            Ok(report) => report,
            Err(Failure::Message { message, .. }) => {
                damage.push(message);
                None
            }
            Err(_) => None,
        };
        report.map_or(Value::Null, |report| {
            let exchange = serde_json::from_slice::<ExchangeMetadata>(&report.frame.metadata).ok();
            let (code, signal) = report.exit.map_or((None, None), |(code, signal)| (Some(code), signal));
            json!({
                "seq": report.frame.seq, "why": report.why, "exit_code": code, "signal": signal, "stderr": report.stderr,
                "status_code": exchange.and_then(|exchange| exchange.http.status),
            })
        })
    }

    fn blame_json(&self, run: &str) -> CliResult<Value> {
        let Some(document) = self.blame(run)? else { return Ok(Value::Null) };
        Ok(json!({
            "state": document.state, "rows": blame::rows(&document), "pairs": blame::pairs(&document),
            "spent": document.spent,
        }))
    }

    /// The frames of two runs in pairs.
    pub(crate) fn reported_diff(&self, a: &str, b: &str) -> CliResult<Value> {
        let alignment = self.align(&self.reader(a)?, &self.reader(b)?)?;
        let pairs = alignment.pairs.iter().map(|pair| match *pair {
            FramePair::Same(a, b) => json!({ "kind": "same", "a": a, "b": b }),
            FramePair::Changed { a, b, input, output, says_same } => json!({
                "kind": "changed", "a": a, "b": b, "input": input, "output": output, "says_same": says_same,
            }),
            FramePair::Dropped(a) => json!({ "kind": "dropped", "a": a }),
            FramePair::Added(b) => json!({ "kind": "added", "b": b }),
        });
        Ok(json!({ "pairs": pairs.collect::<Vec<_>>() }))
    }
}

/// A run as `GET /v1/runs/RUN` returns it. A redacted report has no fingerprint, because guesses of the content
/// could be checked against it.
fn run_json(reader: &RunReader, by: Option<&Redactor>) -> CliResult<Value> {
    let (info, flag) = (reader.info(), reader.flag().map_err(engine_failure)?);
    let shown = |text: &str| by.map_or_else(|| text.to_owned(), |by| by.text(text));
    let tags: Map<String, Value> =
        info.tags.iter().map(|(key, value)| (key.clone(), shown(value).into())).collect();
    let parent = info.parent.as_ref().map(
        |parent| json!({ "run": parent.run, "uid": parent.uid.0, "at": parent.at, "shared": parent.shared }),
    );
    let mut run = json!({
        "name": info.name, "uid": info.uid.0, "status": info.status.name(), "severity": Flag::raise(flag.as_ref(), info.severity).name(),
        "agent": info.agent, "model": info.model, "tags": tags, "parent": parent, "started_ns": info.started_ns,
        "ended_ns": info.ended_ns, "frames": info.frames, "bytes": info.raw_bytes,
        "fingerprint": info.fingerprint.filter(|_| by.is_none()).map(|link| link.to_string()),
    });
    if let Some(by) = by {
        run["redacted"] = true.into();
        run["profile"] = by.profile().name().into();
    }
    if let Some(flag) = flag {
        run["flagged"] = shown(&flag.why).into();
    }
    Ok(run)
}

fn suspect_json(reader: &RunReader, by: Option<&Redactor>, damage: &mut Vec<String>) -> CliResult<Value> {
    let transcript = Transcript::read(reader, by).map_err(engine_failure)?;
    damage.extend(transcript.unread.iter().map(|frame| format!("frame {}: {}", frame.seq, frame.why)));
    let weights = Weights::built_in().map_err(|error| Failure::failed(error, "install annals again"))?;
    let steps = suspect::rank(&transcript, &weights).steps;
    let steps = steps.iter().map(|step| {
        let signals = step.signals.iter();
        let signals =
            signals.map(|seen| json!({ "name": seen.signal.name(), "seq": seen.seq, "why": seen.why }));
        json!({
            "seq": step.seq, "agent": step.agent, "component": step.component, "score": step.score,
            "signals": signals.collect::<Vec<_>>(),
        })
    });
    Ok(steps.collect::<Vec<_>>().into())
}

/// The stored states of a run, oldest first.
fn states(reader: &RunReader, damage: &mut Vec<String>) -> Vec<Value> {
    let (mut states, mut at) = (Vec::new(), reader.info().frames);
    while at > 0 && states.len() < STATES_MAX {
        match reader.snapshot_at(at) {
            Ok(Some(snapshot)) => {
                states
                    .push(json!({ "seq": snapshot.seq, "state": String::from_utf8_lossy(&snapshot.state) }));
                at = snapshot.seq.saturating_sub(1);
            }
            Ok(None) => break,
            Err(error) => {
                damage.push(format!("state at frame {at}: {error}"));
                break;
            }
        }
    }
    states.reverse();
    states
}

fn to_json(value: &impl serde::Serialize) -> CliResult<Value> {
    serde_json::to_value(value).map_err(|error| Failure::failed(error, "report this as a bug of annals"))
}
