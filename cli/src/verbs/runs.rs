//! `annals runs`.

use serde_json::{Map, Value, json};

use crate::args::{Global, RunsArgs};
use crate::door::RunRow;
use crate::failure::Result;
use crate::out::{Out, count};

pub(super) fn run(global: &Global, args: &RunsArgs, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let wanted = |run: &RunRow| {
        args.status.as_ref().is_none_or(|status| *status == run.status)
            && args.severity.as_ref().is_none_or(|severity| *severity == run.severity)
    };
    let mut rows = Vec::new();
    let runs = door.runs()?.into_iter().filter(wanted);
    for run in runs.take(args.limit.unwrap_or(usize::MAX)) {
        if out.json {
            out.object(&object(&run))?;
        } else {
            rows.push(vec![
                run.id,
                run.status,
                run.severity,
                count(run.frames),
                run.model.unwrap_or_default(),
                short(&run.fingerprint),
            ]);
        }
    }
    if out.json {
        return Ok(());
    }
    if rows.is_empty() {
        return out.line("no runs");
    }
    out.table(&["RUN", "STATUS", "SEVERITY", ">FRAMES", "MODEL", "FINGERPRINT"], rows)
}

/// The beginning of a fingerprint or digest: enough to compare by eye.
pub(super) fn short(hex: &str) -> String {
    hex.chars().take(16).collect()
}

/// A run as JSON.
pub(super) fn object(run: &RunRow) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("id", json!(run.id));
    put("status", json!(run.status));
    put("severity", json!(run.severity));
    put("frames", json!(run.frames));
    put("fingerprint", json!(run.fingerprint));
    if let Some(model) = &run.model {
        put("model", json!(model));
    }
    if let Some((from, at)) = &run.forked_from {
        put("forked_from", json!({ "run": from, "seq": at }));
    }
    object
}
