//! `annals runs`: lists runs, newest first.

use annals::io::{Io, RealIo};
use annals::{Status, runs::RunFilter};
use annals_server::RunUsage;
use annals_server::blame::BLAME_TAG;
use annals_server::providers::Cost;
use serde_json::{Map, Value, json};

use crate::args::{GlobalArgs, RunsArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, count, dollars, duration, plural, print_note, time_to_minute};
use crate::store_access::{RunRow, StoreAccess, engine_failure, is_blame_fork};
use crate::table_fit::{self, ColumnFit, TableColumn};

/// Rows of a table without `--limit`. JSON has all runs.
const ROWS_DEFAULT: usize = 50;

const COLUMNS: [TableColumn; 11] = [
    ("RUN", ColumnFit::Cut(2, 64)),
    ("STATUS", ColumnFit::Fixed),
    ("SEVERITY", ColumnFit::Fixed),
    ("STARTED (UTC)", ColumnFit::Fixed),
    (">DURATION", ColumnFit::DropLast),
    (">TOKENS", ColumnFit::Fixed),
    (">COST", ColumnFit::Fixed),
    ("MODEL", ColumnFit::Cut(1, 20)),
    (">FRAMES", ColumnFit::Drop(3)),
    ("FROM", ColumnFit::Drop(2)),
    ("FINGERPRINT", ColumnFit::Drop(1)),
];

pub(super) fn run(global: &GlobalArgs, args: &RunsArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    let limit = match args.limit {
        None if out.json => usize::MAX,
        None => ROWS_DEFAULT,
        Some(0) => usize::MAX,
        Some(limit) => limit,
    };
    let (mut shown, mut rows, mut unreadable) = (0, Vec::new(), 0);
    let mut more = false;
    let hides_forks = !args.blame_forks && !args.tag.iter().any(|(key, _)| key == BLAME_TAG);
    for run in door.newest_runs(filter(args)?)? {
        let (reader, run) = run?;
        if hides_forks && is_blame_fork(&reader) {
            continue;
        }
        // A recording names its models in its frames only, and an import may name one for the whole run.
        let names_model = args.model.as_ref().is_none_or(|model| run.model.as_ref() == Some(model));
        if shown == limit && names_model {
            more = true;
            break;
        }
        let used = door.usage(&reader);
        let uses_model = || args.model.as_ref().is_some_and(|model| used.models.contains(model));
        if !names_model && !uses_model() && used.unreadable.is_none() {
            continue;
        }
        if shown == limit {
            more = true;
            break;
        }
        unreadable += usize::from(used.unreadable.is_some());
        shown += 1;
        if out.json {
            out.object(&run_fields(&run, Some(&used)))?;
        } else {
            rows.push(cells(run, &used));
        }
    }
    if !out.json {
        print_table(rows, out)?;
    }
    out.flush()?;
    // A note is needed only for the default limit.
    if more && args.limit.is_none() {
        print_note(format!("showing the newest {shown}, and there are more: --limit 0 for all"));
    }
    match unreadable {
        0 => Ok(()),
        runs => Err(Failure::damage(
            format!(
                "tokens and cost are incomplete for {}: frames cannot be read",
                plural(runs as u64, "run")
            ),
            "`annals verify --all` lists the damage",
        )),
    }
}

/// The runs that the options select.
fn filter(args: &RunsArgs) -> CliResult<RunFilter> {
    let status = args.status.as_deref().map(str::parse).transpose().map_err(engine_failure)?;
    Ok(RunFilter {
        statuses: match args.failed {
            true => vec![Status::Failed, Status::Abandoned],
            false => status.into_iter().collect(),
        },
        severity: args.severity.as_deref().map(str::parse).transpose().map_err(engine_failure)?,
        agent: args.agent.clone(),
        // Frames name models, too: the list looks at both.
        model: None,
        tags: args.tag.clone(),
        since_ns: args.within.map(|within| RealIo::new().now_ns().saturating_sub(within)),
        until_ns: None,
    })
}

fn print_table(rows: Vec<Vec<String>>, out: &mut CliOutput) -> CliResult<()> {
    if rows.is_empty() {
        return out.line("no runs");
    }
    let fitted = table_fit::fit(&COLUMNS, &rows, table_fit::output_columns());
    out.table(&fitted.headers, fitted.rows)?;
    out.flush()?;
    if !fitted.reduced.is_empty() {
        print_note(format!("left out or cut to fit: {}; --json has all", fitted.reduced.join(", ")));
    }
    Ok(())
}

fn cells(run: RunRow, used: &RunUsage) -> Vec<String> {
    let status = status_cell(&run, used);
    let from = run.forked_from.map(|from| format!("{}@{}", from.run.as_deref().unwrap_or("?"), from.at));
    let models = if used.models.is_empty() { run.model.unwrap_or_default() } else { used.models.join(", ") };
    let tokens = total_tokens(used).map(count);
    let unknown = if used.unreadable.is_some() { "?" } else { "" };
    vec![
        run.id,
        status,
        if run.severity == "normal" { String::new() } else { run.severity.to_owned() },
        time_to_minute(run.started_ns),
        run.ended_ns.map(|ended| duration(ended.saturating_sub(run.started_ns))).unwrap_or_default(),
        format!("{}{unknown}", tokens.unwrap_or_default()),
        cost_cell(&used.cost),
        models,
        count(run.frames),
        from.unwrap_or_default(),
        short_hex(run.fingerprint.as_deref().unwrap_or_default()),
    ]
}

/// The status of a run, with whether it is pinned or incomplete.
fn status_cell(run: &RunRow, used: &RunUsage) -> String {
    let pinned = if run.pinned.is_some() { ", pinned" } else { "" };
    let missed = if used.unrecorded > 0 { ", incomplete" } else { "" };
    format!("{}{pinned}{missed}", run.status)
}

/// The sum of input and output tokens, if any were counted.
pub(super) fn total_tokens(used: &RunUsage) -> Option<u64> {
    match (used.input, used.output) {
        (None, None) => None,
        (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
    }
}

/// The cost of calls in a table cell: `over` if some calls have no known price.
fn cost_cell(cost: &Cost) -> String {
    match (cost.priced, cost.unpriced) {
        (0, 0) => String::new(),
        (0, _) => "unknown".to_owned(),
        (_, 0) => dollars(cost).unwrap_or_default(),
        _ => format!("over {}", dollars(&Cost { unpriced: 0, ..*cost }).unwrap_or_default()),
    }
}

/// The first 16 digits of a fingerprint or digest, to compare by eye.
pub(super) fn short_hex(hex: &str) -> String {
    hex.chars().take(16).collect()
}

/// A run as JSON, with its models, tokens and cost.
pub(super) fn run_fields(run: &RunRow, used: Option<&RunUsage>) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("id", json!(run.id));
    put("status", json!(run.status));
    put("severity", json!(run.severity));
    put("frames", json!(run.frames));
    put("fingerprint", json!(run.fingerprint));
    put("started_ns", json!(run.started_ns));
    let first = used.and_then(|used| used.models.first());
    let model = run.model.as_ref().or(first);
    for (key, value) in
        [("agent", json!(run.agent)), ("model", json!(model)), ("ended_ns", json!(run.ended_ns))]
    {
        if !value.is_null() {
            put(key, value);
        }
    }
    if let Some(used) = used {
        if !used.models.is_empty() {
            put("models", json!(used.models));
        }
        if total_tokens(used).is_some() {
            put("tokens", json!({ "input": used.input.unwrap_or(0), "output": used.output.unwrap_or(0) }));
        }
        let Cost { dollars, priced, unpriced } = used.cost;
        if total_tokens(used).is_some() || unpriced > 0 {
            put("cost", json!({ "dollars": dollars, "priced": priced, "unpriced": unpriced }));
        }
        if used.unrecorded > 0 {
            put("unrecorded_connections", json!(used.unrecorded));
        }
        if let Some(why) = &used.unreadable {
            put("unreadable", json!(why));
        }
    }
    if let Some(why) = &run.pinned {
        put("pinned", json!(why));
    }
    if let Some(why) = &run.flagged {
        put("flagged", json!(why));
    }
    if let Some(from) = &run.forked_from {
        put("forked_from", json!({ "run": from.run, "at": from.at, "seq": from.shared }));
    }
    object
}

/// A run as JSON, with its usage read from the store.
pub(super) fn run_and_usage_fields(door: &StoreAccess, run: &RunRow) -> CliResult<Map<String, Value>> {
    let used = door.usage(&door.reader(&run.id)?);
    Ok(run_fields(run, Some(&used)))
}
