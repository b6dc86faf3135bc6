//! `annals diagnose` and `annals lessons`: record how a session ended, and show what sessions taught.

use annals_diagnostics::{
    Diagnostics, FailureCategory, LessonFilter, SESSION_BYTES_MAX, SessionDiagnostic, SessionReport,
    SessionResult,
};
use serde_json::json;

use super::memory::{parse_utf8, source_name};
use crate::args::{DiagnoseArgs, GlobalArgs, LessonsArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, count, plural, printable, time};
use crate::store_access::{StoreAccess, StoreWait};
use crate::{input, locate};

/// The hint of a report that was refused.
const REPORT_HINT: &str = "docs/diagnostics.md has the form of a session's report; nothing was stored";

pub(super) fn diagnose(global: &GlobalArgs, args: &DiagnoseArgs, out: &mut CliOutput) -> CliResult<()> {
    match diagnose_file(global, args, out) {
        Err(failure @ Failure::Message { .. }) if args.best_effort => {
            // The caller's own work must go on: the failure is only told.
            if out.json
                && let Failure::Message { message, .. } = &failure
            {
                out.object(&SessionResult { report: None, failures: vec![message.clone()] })?;
            }
            failure.print();
            Ok(())
        }
        done => done,
    }
}

fn diagnose_file(global: &GlobalArgs, args: &DiagnoseArgs, out: &mut CliOutput) -> CliResult<()> {
    // One byte more than is allowed, so that the engine's own error is shown.
    let bytes = input::read_at_most(&args.file, SESSION_BYTES_MAX + 1, "a report has at most 64 MiB")?;
    let place = source_name(&args.file);
    let text = parse_utf8(bytes, &place, "a session's report is JSON in UTF-8")?;
    // Some editors write a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let session = SessionDiagnostic::parse(text)
        .map_err(|error| Failure::failed(error, REPORT_HINT).with_place(&place))?;
    if args.dry_run {
        let category =
            Diagnostics::category_of(&session).map_err(|error| Failure::failed(error, REPORT_HINT))?;
        return print_category(&session, category, out);
    }
    let root = locate::store(global.store.as_deref());
    let keep_ms = args.keep.map(|ns| ns / 1_000_000);
    let report = StoreAccess::diagnose(
        &root,
        &global.namespace,
        (text, &session),
        keep_ms,
        StoreWait::from_args(global),
    )
    .map_err(|failure| failure.with_place(&place))?;
    print_session(&report, out)
}

fn print_category(
    session: &SessionDiagnostic,
    category: Option<FailureCategory>,
    out: &mut CliOutput,
) -> CliResult<()> {
    if out.json {
        return out.object(&json!({
            "sessionId": session.session_id, "outcome": session.outcome, "failureCategory": category,
        }));
    }
    out.line(category.map_or("none: the session was accepted", FailureCategory::name))
}

fn print_session(report: &SessionReport, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        return out.object(&SessionResult { report: Some(report.clone()), failures: Vec::new() });
    }
    let category = report.failure_category.map(|category| format!(", {}", category.name()));
    let repeated = if report.repeated { " (reported before: nothing changed)" } else { "" };
    out.line(format_args!(
        "{}: {}{}{repeated}",
        printable(&report.session_id),
        report.outcome.name(),
        category.unwrap_or_default()
    ))?;
    if !report.weight_changes.is_empty() {
        let rows = report.weight_changes.iter().map(|change| {
            let number = |number: f64| number.to_string();
            vec![change.observation_id.clone(), number(change.previous_weight), number(change.new_weight)]
        });
        out.table(&["OBSERVATION", ">BEFORE", ">AFTER"], rows.collect())?;
    }
    let doubled = plural(report.aggressive_downweight_applied, "observation");
    out.line(format_args!("{doubled} downweighted as misleading"))?;
    match (&report.graph.skipped, report.graph.nodes, report.graph.edges) {
        (Some(why), ..) => out.line(format_args!("the graph's weights stay: {why}")),
        (None, 0, 0) => Ok(()),
        (None, nodes, edges) => out.line(format_args!(
            "{} and {} of the graph have new weights",
            plural(nodes, "node"),
            plural(edges, "edge")
        )),
    }
}

pub(super) fn lessons(global: &GlobalArgs, args: &LessonsArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    if let Some(observation) = &args.weight_history {
        return weight_history(&door, observation, out);
    }
    if let Some(session) = &args.session {
        let none = || {
            let hint = "`annals diagnose` records one; a row may have expired";
            Failure::missing(format!("there is no row of session {session:?}"), hint)
        };
        let row = door.session_row(session)?.ok_or_else(none)?;
        return out.json_line(&row);
    }
    let filter = LessonFilter { org: args.org.as_deref(), project: args.project.as_deref(), since_ms: 0 };
    let lessons = door.lessons(&filter, args.within.map(|ns| ns / 1_000_000))?;
    if out.json {
        let misleading = lessons.misleading.iter();
        let misleading: Vec<_> =
            misleading.map(|(id, weight)| json!({ "observationId": id, "weight": weight })).collect();
        return out.object(&json!({
            "misleading": misleading, "distribution": lessons.distribution,
        }));
    }
    match lessons.misleading.len() {
        0 => out.line("misleading observations: none")?,
        number => {
            out.line(format_args!("misleading observations: {}", count(number as u64)))?;
            let rows = lessons.misleading.iter().map(|(id, weight)| vec![id.clone(), weight.to_string()]);
            out.table(&["OBSERVATION", ">WEIGHT"], rows.collect())?;
        }
    }
    out.line("failed sessions by category:")?;
    let rows = lessons.distribution.each();
    let rows = rows.iter().map(|(category, number)| vec![category.name().to_owned(), count(*number)]);
    out.table(&["CATEGORY", ">SESSIONS"], rows.collect())
}

fn weight_history(door: &StoreAccess, observation: &str, out: &mut CliOutput) -> CliResult<()> {
    let changes = door.weight_history(observation)?;
    if out.json {
        return changes.iter().try_for_each(|change| out.object(change));
    }
    if changes.is_empty() {
        return out
            .line(format_args!("no session changed the weight of {}: it is 1", printable(observation)));
    }
    let rows = changes.into_iter().map(|change| {
        vec![
            time(change.recorded_at.saturating_mul(1_000_000)),
            change.session_id,
            change.outcome.name().to_owned(),
            change.alpha.to_string(),
            change.previous_weight.to_string(),
            change.new_weight.to_string(),
        ]
    });
    out.table(&["TIME", "SESSION", "OUTCOME", ">ALPHA", ">BEFORE", ">AFTER"], rows.collect())
}
