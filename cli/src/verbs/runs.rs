//! `annals runs`.

use serde_json::{Map, Value, json};

use crate::args::{Global, RunsArgs};
use crate::door::RunRow;
use crate::failure::Result;
use crate::out::{Out, count};

pub(super) fn run(global: &Global, args: &RunsArgs, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let wanted = |run: &RunRow| {
        args.status.as_ref().is_none_or(|status| status == run.status)
            && (!args.failed || matches!(run.status, "failed" | "abandoned"))
            && args.severity.as_ref().is_none_or(|severity| severity == run.severity)
    };
    let mut rows = Vec::new();
    let runs = door.runs()?.filter(|run| run.as_ref().map_or(true, wanted));
    for run in runs.take(args.limit.unwrap_or(usize::MAX)) {
        let run = run?;
        if out.json {
            out.object(&object(&run))?;
        } else {
            rows.push(vec![
                run.id,
                match run.pinned {
                    Some(_) => format!("{}, pinned", run.status),
                    None => run.status.to_owned(),
                },
                run.severity.to_owned(),
                count(run.frames),
                run.model.unwrap_or_default(),
                run.forked_from
                    .map_or(String::new(), |(from, at)| format!("{}@{at}", from.as_deref().unwrap_or("?"))),
                short(run.fingerprint.as_deref().unwrap_or_default()),
            ]);
        }
    }
    if out.json {
        return Ok(());
    }
    if rows.is_empty() {
        return out.line("no runs");
    }
    out.table(&["RUN", "STATUS", "SEVERITY", ">FRAMES", "MODEL", "FROM", "FINGERPRINT"], rows)
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
    put("started_ns", json!(run.started_ns));
    for (key, value) in
        [("agent", json!(run.agent)), ("model", json!(run.model)), ("ended_ns", json!(run.ended_ns))]
    {
        if !value.is_null() {
            put(key, value);
        }
    }
    if let Some(why) = &run.pinned {
        put("pinned", json!(why));
    }
    if let Some((from, shared)) = &run.forked_from {
        put("forked_from", json!({ "run": from, "seq": shared }));
    }
    object
}
