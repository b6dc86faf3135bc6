//! Frames: added whole, or begun, appended to and ended; and read.

use annals::{BlobId, Durability, RecordedFrame, kv::BlobReader};

use super::parse::{arguments, field, integer_reply, number, run_reader, syntax, word_is};
use super::runs::open_run;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_policy::profiles::Redactor;
use annals_proxy::run_prices;
use annals_review::{
    FrameViewOptions, TEXT_BYTES_MAX, TIMELINE_FRAMES, TIMELINE_FRAMES_MAX, frame_view, timeline,
};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("frame.add", |call| {
        let open = open_run(call, 1)?;
        let (frame, blob) = arguments(call, 2).frame(false)?;
        if blob.is_some() {
            return Err(syntax());
        }
        let mut batch = open.run.batch()?;
        batch.durability(Durability::Disk);
        let at_ms = frame.started_ns.unwrap_or(0) / 1_000_000;
        let seq = batch.frame(frame)?;
        let ticket = batch.submit()?;
        open.monotonic_ms(at_ms);
        call.work.await_before_reply(ticket);
        Ok(Reply::Integer(seq.into()))
    }),
    ("frame.begin", |call| {
        let open = open_run(call, 1)?;
        let (frame, _) = arguments(call, 2).frame(true)?;
        let (seq, ticket) = open.begin_frame(&frame)?;
        call.work.await_before_reply(ticket);
        Ok(Reply::Integer(seq.into()))
    }),
    ("frame.append", |call| {
        let open = open_run(call, 1)?;
        let (len, ticket) = open.append(number(call.word(2))?, call.word(3))?;
        call.work.await_before_reply(ticket);
        Ok(integer_reply(len))
    }),
    ("frame.end", |call| {
        let open = open_run(call, 1)?;
        let ending = arguments(call, 3).ending()?;
        let ticket = open.end_frame(number(call.word(2))?, &ending)?;
        call.work.await_before_reply(ticket);
        Ok(Reply::OK)
    }),
    ("frame.get", get),
    ("run.view", view),
    ("run.timeline", show_timeline),
];

/// Maximum bytes of each text of a view.
const TEXT_BYTES_LIMIT: usize = 64 << 20;

fn view(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let seq = number::<u32>(call.word(2))?;
    let (mut all, mut text_bytes_max) = (false, TEXT_BYTES_MAX);
    let mut options = call.rest(3).iter();
    while let Some(option) = options.next() {
        if word_is(option, "ALL") {
            all = true;
        } else if word_is(option, "TEXTMAX") {
            text_bytes_max = number::<usize>(options.next().ok_or_else(syntax)?)?.min(TEXT_BYTES_LIMIT);
        } else {
            return Err(syntax());
        }
    }
    let reader = run_reader(call, 1)?;
    let info = reader.frame_info(seq)?;
    check_reply_size(info.input_bytes.saturating_add(info.output_bytes))?;
    let redactor = call.daemon.redactor(call.session)?;
    let prices = run_prices(&reader);
    let options = FrameViewOptions { redactor: redactor.as_deref(), all, text_bytes_max, prices: &prices };
    json_reply(&frame_view(&reader, seq, &options)?)
}

fn show_timeline(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut from, mut limit) = (1, TIMELINE_FRAMES);
    let mut options = call.rest(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        if word_is(option, "FROM") {
            from = number::<u32>(value)?;
        } else if word_is(option, "LIMIT") {
            limit = number::<usize>(value)?.min(TIMELINE_FRAMES_MAX);
        } else {
            return Err(syntax());
        }
    }
    let reader = run_reader(call, 1)?;
    let redactor = call.daemon.redactor(call.session)?;
    json_reply(&timeline(&reader, from, limit, &run_prices(&reader), redactor.as_deref())?)
}

fn json_reply(value: &impl serde::Serialize) -> CommandResult {
    let text = serde_json::to_string(value).map_err(|error| CommandRefusal(format!("BUG {error}")))?;
    check_reply_size(text.len() as u64)?;
    Ok(Reply::Json(text))
}

fn get(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let seq = number::<u32>(call.word(2))?;
    let reader = run_reader(call, 1)?;
    match call.rest(3) {
        [] => {
            let info = reader.frame_info(seq)?;
            check_reply_size(info.input_bytes.saturating_add(info.output_bytes))?;
            let redactor = call.daemon.redactor(call.session)?;
            Ok(frame_reply(reader.frame(seq)?, redactor.as_deref()))
        }
        _ if call.session.is_redacted() => {
            Err("NOPERM a single part cannot be marked as redacted: it takes the right read".into())
        }
        [part] if word_is(part, "REQUEST") => body_reply(reader.input_reader(seq)?),
        [part] if word_is(part, "RESPONSE") => body_reply(reader.output_reader(seq)?),
        [part] if word_is(part, "METADATA") => Ok(Reply::Bulk(reader.frame_info(seq)?.metadata)),
        _ => Err(syntax()),
    }
}

fn check_reply_size(bytes: u64) -> Result<(), CommandRefusal> {
    if bytes <= BULK_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(CommandRefusal(format!("ERR {bytes} bytes: a reply has at most {BULK_BYTES_MAX}")))
}

fn body_reply(mut reader: BlobReader) -> CommandResult {
    check_reply_size(reader.len())?;
    let mut bytes = Vec::with_capacity(usize::try_from(reader.len()).unwrap_or(0));
    let read = std::io::Read::read_to_end(&mut reader, &mut bytes);
    read.map_err(|error| CommandRefusal(format!("DAMAGED {error}")))?;
    Ok(Reply::Bulk(bytes))
}

/// The fields that mark a reply as redacted, and the profile's name.
pub(super) fn redaction_fields(redactor: &Redactor) -> [(Reply, Reply); 2] {
    let name = redactor.profile().name();
    [field("redacted", Reply::Boolean(true)), field("profile", Reply::text(name))]
}

/// A frame as a reply. A redacted frame has no hashes, because guesses of its content could be checked
/// against them.
pub(super) fn frame_reply(mut frame: RecordedFrame, redactor: Option<&Redactor>) -> Reply {
    if let Some(redactor) = redactor {
        let shown = redactor.frame(&frame.input, &frame.output, &frame.metadata);
        (frame.input, frame.output, frame.metadata) = (shown.input, shown.output, shown.metadata);
    }
    let mut told = vec![
        field("seq", Reply::Integer(frame.seq.into())),
        field("parent", frame.parent.map_or(Reply::Null, |seq| Reply::Integer(seq.into()))),
        field("component", Reply::text(frame.component.name())),
        field("severity", Reply::text(frame.severity.name())),
        field("incomplete", Reply::Boolean(frame.incomplete)),
        field("error", Reply::Boolean(frame.error)),
        field("started_ns", integer_reply(frame.started_ns)),
        field("duration_ns", integer_reply(frame.duration_ns)),
        field("request_bytes", Reply::count(frame.input.len())),
        field("response_bytes", Reply::count(frame.output.len())),
    ];
    match redactor {
        Some(redactor) => told.extend(redaction_fields(redactor)),
        None => told.extend([
            field("request_id", blob_id_reply(frame.input_id)),
            field("response_id", blob_id_reply(frame.output_id)),
            field("link", Reply::text(frame.link.to_string())),
        ]),
    }
    told.extend([
        field("request", Reply::Bulk(frame.input)),
        field("response", Reply::Bulk(frame.output)),
        field("metadata", Reply::Bulk(frame.metadata)),
    ]);
    Reply::Map(told)
}

/// The id of a body in a reply. A reader that hashes always knows it.
fn blob_id_reply(id: Option<BlobId>) -> Reply {
    id.map_or(Reply::Null, |id| Reply::text(id.to_string()))
}

/// Size of a frame in a reply, in bytes.
pub(super) fn frame_bytes(frame: &RecordedFrame) -> usize {
    frame.input.len() + frame.output.len() + frame.metadata.len()
}
