//! `annals decide`, `decisions` and `decision`: record decisions, find them, and show how they were reached.

use annals_deliberation::Method;
use annals_server::profiles::Redactor;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::address::RunAddress;
use crate::args::{DecideArgs, DecisionArgs, DecisionsArgs, GlobalArgs, SpikeFormatArg};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, preview, printable};
use crate::profiles;
use crate::store_access::{StoreAccess, StoreWait};
use crate::table_fit::{self, ColumnFit, TableColumn};
use crate::{input, locate};

/// Most bytes of a decision's file.
const FILE_BYTES_MAX: usize = 64 << 20;
const COLUMNS: [TableColumn; 7] = [
    ("ID", ColumnFit::Fixed),
    ("WHEN", ColumnFit::Drop(2)),
    ("CATEGORY", ColumnFit::Drop(3)),
    ("STAKES", ColumnFit::Drop(1)),
    (">CONFIDENCE", ColumnFit::Drop(4)),
    ("OUTCOME", ColumnFit::Fixed),
    ("DECISION", ColumnFit::Cut(1, 24)),
];

pub(super) fn decide(global: &GlobalArgs, args: &DecideArgs, out: &mut CliOutput) -> CliResult<()> {
    let params = match &args.file {
        Some(file) => {
            let hint = "a decision has at most 64 MiB here: the daemon's RESP takes larger ones";
            let bytes = input::read_at_most(file, FILE_BYTES_MAX, hint)?;
            String::from_utf8(bytes).map_err(|error| {
                Failure::failed(
                    format!("{}: not UTF-8: {error}", file.display()),
                    "a decision is JSON in UTF-8",
                )
            })?
        }
        None => decision_params(args)?,
    };
    let answer = write(global, ("DELIB.RECORD", Method::RecordDecision), &params, true)?;
    if out.json {
        return print_json(&answer, out);
    }
    let answer = parse(&answer)?;
    let inputs = answer["deliberation_inputs_count"].as_u64().unwrap_or(0);
    let told = match inputs {
        0 => "no deliberation".to_owned(),
        1 => "a deliberation with 1 input".to_owned(),
        count => format!("a deliberation with {count} inputs"),
    };
    out.line(format_args!("decided {}, {told}", text(&answer["id"])))?;
    for warning in answer["guardrail_warnings"].as_array().into_iter().flatten() {
        let (id, why) = (text(&warning["guardrail"]), text(&warning["message"]));
        crate::output::print_note(format_args!("guardrail {}: {}", printable(&id), printable(&why)));
    }
    Ok(())
}

fn decision_params(args: &DecideArgs) -> CliResult<String> {
    let mut params = json!({ "decision": args.decision, "confidence": args.confidence, "tags": args.tag });
    let mut reasons = Vec::new();
    for reason in &args.reason {
        let (kind, text) = reason.split_once(':').ok_or_else(|| {
            Failure::usage(
                format!("`{reason}` is not TYPE:TEXT"),
                "write a reason as 'analysis:it is cheaper'",
            )
        })?;
        reasons.push(json!({ "type": kind, "text": text }));
    }
    params["reasons"] = reasons.into();
    for (name, value) in [
        ("category", &args.category),
        ("stakes", &args.stakes),
        ("context", &args.context),
        ("project", &args.project),
        ("agentId", &args.agent),
    ] {
        params[name] = json!(value);
    }
    if let Some(run) = &args.run {
        let address = RunAddress::parse(run)?;
        (params["run"], params["frame"]) = (json!(address.run), json!(address.seq));
    }
    Ok(params.to_string())
}

pub(super) fn decisions(global: &GlobalArgs, args: &DecisionsArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    let mut filters = json!({ "tags": args.tag });
    for (name, value) in [
        ("category", &args.category),
        ("stakes", &args.stakes),
        ("outcome", &args.outcome),
        ("agentId", &args.agent),
        ("project", &args.project),
        ("since", &args.since),
    ] {
        filters[name] = json!(value);
    }
    if args.stats {
        let params = json!({ "filters": filters }).to_string();
        let stats = door.read_decisions(Method::GetDeliberationStats, &params)?;
        return print_json(stats.as_deref().unwrap_or("{\"decisions\":0}"), out);
    }
    if args.query.is_some() && redactor.is_some() {
        return Err(Failure::usage(
            "a query with --as would reveal redacted text",
            "list the decisions without a query, or search without --as",
        ));
    }
    let params = json!({
        "query": args.query, "limit": args.limit, "filters": filters, "includeDeliberation": args.deliberation,
    });
    let Some(found) = door.read_decisions(Method::QueryDecisions, &params.to_string())? else {
        return Ok(());
    };
    let found: DecisionPage = serde_json::from_str(&found).map_err(not_json)?;
    profiles::print_redaction_note(redactor.as_ref());
    let shown = found.decisions.iter().map(|one| redacted(redactor.as_ref(), one.get()));
    if out.json {
        return shown.into_iter().try_for_each(|one| print_json(&one, out));
    }
    let rows: Vec<Vec<String>> =
        shown.map(|one| parse(&one).map(|one| row(&one))).collect::<CliResult<_>>()?;
    if rows.is_empty() {
        return Ok(());
    }
    let (count, total) = (rows.len(), found.total);
    let fitted = table_fit::fit(&COLUMNS, &rows, table_fit::output_columns());
    out.table(&fitted.headers, fitted.rows)?;
    if total > count {
        out.line(format_args!("{} more: --limit shows more", total - count))?;
    }
    Ok(())
}

/// A page of decisions, each as it was answered.
#[derive(serde::Deserialize)]
struct DecisionPage {
    decisions: Vec<Box<RawValue>>,
    total: usize,
}

fn row(one: &Value) -> Vec<String> {
    let when = text(&one["created_at"]);
    vec![
        text(&one["id"]),
        when.get(..16).unwrap_or_default().replace('T', " "),
        text(&one["category"]),
        text(&one["stakes"]),
        one["confidence"].to_string(),
        one["outcome"].as_str().map_or_else(|| text(&one["status"]), str::to_owned),
        preview(text(&one["title"]).as_bytes(), 200),
    ]
}

pub(super) fn decision(global: &GlobalArgs, args: &DecisionArgs, out: &mut CliOutput) -> CliResult<()> {
    if let Some(outcome) = &args.review {
        let params = json!({ "id": args.id, "outcome": outcome, "actualResult": args.result }).to_string();
        let answer = write(global, ("DELIB.REVIEW", Method::ReviewOutcome), &params, false)?;
        if out.json {
            return print_json(&answer, out);
        }
        return out.line(format_args!("reviewed {}: {outcome}", printable(&args.id)));
    }
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    let none = || {
        Failure::missing(
            format!("there is no decision {:?}", args.id),
            "`annals decisions` lists the decisions",
        )
    };
    if let Some(format) = args.spikes {
        let name = if format == SpikeFormatArg::Csv { "csv" } else { "json" };
        let params = json!({ "id": args.id, "format": name }).to_string();
        let found = parse(&door.read_decisions(Method::ExportSpikes, &params)?.ok_or_else(none)?)?;
        return match format {
            SpikeFormatArg::Csv => out.value(text(&found["csv"]).as_bytes()),
            SpikeFormatArg::Json => out.object(&found["events"]),
        };
    }
    let params = json!({ "id": args.id, "spelling": "snake_case" }).to_string();
    let found = door.read_decisions(Method::GetDecision, &params)?.ok_or_else(none)?;
    let found = redacted(redactor.as_ref(), &found);
    profiles::print_redaction_note(redactor.as_ref());
    if out.json {
        return print_json(&found, out);
    }
    show(&parse(&found)?, out)
}

fn show(one: &Value, out: &mut CliOutput) -> CliResult<()> {
    out.line(decision_line(one))?;
    let confidence = &one["confidence"];
    let category = one["category"].as_str().map_or(String::new(), |category| format!("{category}, "));
    let (stakes, status) = (text(&one["stakes"]), text(&one["status"]));
    let outcome = one["outcome"].as_str().map_or(String::new(), |outcome| format!(": {outcome}"));
    out.line(format_args!(
        "{}stakes {}, confidence {confidence}, {}{}",
        printable(&category),
        printable(&stakes),
        printable(&status),
        printable(&outcome)
    ))?;
    let by = one["agent_id"].as_str().or(one["recorded_by"].as_str()).unwrap_or_default();
    out.line(format_args!("by {}, {}", printable(by), printable(&text(&one["created_at"]))))?;
    if let Some(run) = one["run"].as_str() {
        let frame = one["frame"].as_u64().map_or(String::new(), |frame| format!("@{frame}"));
        out.line(format_args!("taken in {}{frame}", printable(run)))?;
    }
    if let Some(context) = one["context"].as_str() {
        out.line(format_args!("context: {}", printable(context)))?;
    }
    for reason in one["reasons"].as_array().into_iter().flatten() {
        out.line(format_args!(
            "{}: {}",
            printable(&text(&reason["type"])),
            printable(&text(&reason["text"]))
        ))?;
    }
    if let Some(result) = one["actual_result"].as_str() {
        out.line(format_args!("result: {}", printable(result)))?;
    }
    let trace = &one["deliberation"];
    for input in trace["inputs"].as_array().into_iter().flatten() {
        let source = input["source"].as_str().map_or(String::new(), |source| format!(" [{source}]"));
        let (id, told) = (text(&input["id"]), text(&input["text"]));
        out.line(format_args!("input {}: {}{}", printable(&id), printable(&told), printable(&source)))?;
    }
    for step in trace["steps"].as_array().into_iter().flatten() {
        let used: Vec<String> = step["inputs_used"].as_array().into_iter().flatten().map(text).collect();
        let used = if used.is_empty() { String::new() } else { format!(" (from {})", used.join(", ")) };
        let end = if step["conclusion"] == true { ", conclusion" } else { "" };
        let kind = step["type"].as_str().map_or(String::new(), |kind| format!(" {kind}"));
        let converges = if step["step"] == trace["convergence_point"] { ", inputs converge" } else { "" };
        out.line(format_args!(
            "step {}{}{end}{converges}: {}{}",
            step["step"],
            printable(&kind),
            printable(&text(&step["thought"])),
            printable(&used)
        ))?;
    }
    match trace["total_duration_ms"].as_f64() {
        Some(ms) => out.line(format_args!("deliberated for {ms} ms")),
        None => Ok(()),
    }
}

/// `a1b2c3d4: what was decided`.
pub(super) fn decision_line(one: &Value) -> String {
    format!("{}: {}", printable(&text(&one["id"])), printable(&text(&one["title"])))
}

/// The decisions of a run or a frame, as a reader may see them.
pub(super) fn of_run(
    door: &StoreAccess,
    run: &str,
    frame: Option<u32>,
    redactor: Option<&Redactor>,
) -> CliResult<Vec<Box<RawValue>>> {
    let found = door.decisions_of_run(run, frame)?;
    found.iter().map(|one| RawValue::from_string(redacted(redactor, one)).map_err(not_json)).collect()
}

/// The lines about the decisions of a run or a frame.
pub(super) fn print_of_run(decisions: &[Box<RawValue>], out: &mut CliOutput) -> CliResult<()> {
    for one in decisions {
        let one = parse(one.get())?;
        let frame = one["frame"].as_u64().map_or(String::new(), |frame| format!(" in frame {frame}"));
        out.line(format_args!("decision{frame} {}", decision_line(&one)))?;
    }
    Ok(())
}

fn redacted(redactor: Option<&Redactor>, text: &str) -> String {
    match redactor {
        None => text.to_owned(),
        Some(by) => String::from_utf8_lossy(&by.body(text.as_bytes(), None).bytes).into_owned(),
    }
}

fn write(global: &GlobalArgs, command: (&str, Method), params: &str, creates: bool) -> CliResult<String> {
    let root = locate::store(global.store.as_deref());
    StoreAccess::write_decision(
        &root,
        &global.namespace,
        command,
        None,
        params,
        creates,
        StoreWait::from_args(global),
    )
}

fn print_json(json: &str, out: &mut CliOutput) -> CliResult<()> {
    let raw: Box<RawValue> = serde_json::from_str(json).map_err(not_json)?;
    out.object(&raw)
}

fn parse(json: &str) -> CliResult<Value> {
    serde_json::from_str::<Map<String, Value>>(json).map(Value::Object).map_err(not_json)
}

fn not_json(error: serde_json::Error) -> Failure {
    Failure::failed(format!("the answer is not JSON: {error}"), "this is a bug in annals: please report it")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
