//! One frame: a summary, or a piece of one of its parts.

use annals_review::{answer_summary, new_part, redacted_frame};
use serde_json::{Value, json};

use super::{CURSOR, RUN, Tool, cursor_place, named_run, runs};
use crate::answer::{field, text_piece};
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// Bytes of the answer's text in the summary.
const ANSWER_BYTES_MAX: usize = 8000;
/// Lines of what a request adds, in the summary.
const LINES_MAX: usize = 20;

const SEQ: Parameter = Parameter {
    name: "seq",
    kind: ParameterKind::Integer(1, u32::MAX as u64),
    is_required: true,
    description: "Number of the frame within its run, from 1",
};

pub(super) const GET_FRAME: Tool = Tool {
    name: "get_frame",
    title: "Get a frame",
    description: "One frame of a run. Without part: what its request adds to the one before, its answer, its tool calls. With part: the exact request, response or metadata as text, or the agent's state after the frame; long texts in pieces.",
    parameters: &[
        RUN,
        SEQ,
        Parameter {
            name: "part",
            kind: ParameterKind::OneOf(&["request", "response", "metadata", "state"]),
            is_required: false,
            description: "The part to read; default: a summary",
        },
        CURSOR,
    ],
    right: ToolRight::Read,
    run: get_frame,
};

fn get_frame(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let reader = named_run(&store.namespace()?, arguments, "run")?;
    let frames = reader.info().frames;
    let seq = arguments.number("seq").and_then(|seq| u32::try_from(seq).ok()).unwrap_or(0);
    if seq == 0 || seq > frames {
        return Err(ToolError(format!("the run has frames 1 to {frames}")));
    }
    let by = store.redactor();
    let part = arguments.text("part");
    let mut item = runs::frame_item(&reader.frame_info(seq)?, reader.info().started_ns, by);
    item.insert("run".to_owned(), field(&reader.info().name));
    if let Some(by) = by {
        item.insert("redacted".to_owned(), by.profile().name().into());
    }
    let frame = runs::read_frame(&reader, seq)?;
    let Some(part) = part else {
        match answer_summary(&frame, by, ANSWER_BYTES_MAX) {
            Some(summary) => runs::put_answer(&mut item, &summary),
            None => {
                let shown = redacted_frame(frame, by);
                for (name, body) in [("input", &shown.input), ("output", &shown.output)] {
                    item.insert(name.to_owned(), field(&String::from_utf8_lossy(body)));
                }
            }
        }
        if let Some((before, changes)) = new_part(&reader, seq, by)? {
            let lines: Vec<_> =
                changes.changes.iter().take(LINES_MAX).map(|change| field(&change.to_string())).collect();
            item.insert(
                "request_adds".to_owned(),
                json!({
                    "beside_frame": before, "lines": lines,
                    "more": changes.changes.len().saturating_sub(LINES_MAX), "as_before": changes.same,
                }),
            );
        }
        return Ok(item.into());
    };
    let shown = redacted_frame(frame, by);
    let bytes = match part {
        "request" => shown.input,
        "response" => shown.output,
        "metadata" => shown.metadata,
        _ => {
            let Some(snapshot) = reader.snapshot_at(seq)? else {
                return Err(ToolError(format!("the run has no snapshot at or before frame {seq}")));
            };
            item.insert("state_after_frame".to_owned(), snapshot.seq.into());
            match by {
                Some(by) => by.body(&snapshot.state, None).bytes.into_owned(),
                None => snapshot.state,
            }
        }
    };
    let from = usize::try_from(cursor_place(arguments, 0)?).unwrap_or(usize::MAX);
    let piece = text_piece(&bytes, from)
        .ok_or_else(|| ToolError("the cursor is not one that this tool gave".to_owned()))?;
    item.insert("part".to_owned(), part.into());
    item.insert("text".to_owned(), piece.text.into());
    if std::str::from_utf8(&bytes).is_err() {
        item.insert("not_utf8".to_owned(), true.into());
    }
    item.insert("text_bytes".to_owned(), piece.total.into());
    if let Some(next) = piece.next {
        item.insert("cursor".to_owned(), next.to_string().into());
    }
    Ok(item.into())
}
