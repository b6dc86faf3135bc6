//! Frames: added whole, or begun, appended to and ended; and read.

use annals::{BlobReader, Durability, RecordedFrame};

use super::parse::{arguments, field, integer_of, is, number, run_of, syntax};
use super::runs::open_run;
use crate::daemon::table::{Command, command, in_group};
use crate::daemon::turn::{Call, Outcome, Refusal};
use crate::profiles::Redactor;
use crate::resp::{BULK_BYTES_MAX, Reply};

const SINCE: &str = "annals 0.1.0";
const WRITE: &[&str] = &["write"];

pub(super) const COMMANDS: &[Command] = &in_group(
    "frames",
    [
        command(
            "frame.add",
            -5,
            WRITE,
            SINCE,
            "Adds a frame to a run and returns its number. Components are user, llm, tool, planner, merge, nondet or a name of your own.",
            "run component request response [METADATA json] [PARENT seq] [SEVERITY severity] [ERROR] [STARTED nanoseconds] [DURATION nanoseconds]",
            |call| {
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
                open.not_before(at_ms);
                call.work.rest_on(ticket);
                Ok(Reply::Integer(seq.into()))
            },
        ),
        command(
            "frame.begin",
            -4,
            WRITE,
            SINCE,
            "Begins a frame whose response is still to come, and returns its number.",
            "run component request [METADATA json] [PARENT seq] [SEVERITY severity] [STARTED nanoseconds]",
            |call| {
                let open = open_run(call, 1)?;
                let (frame, _) = arguments(call, 2).frame(true)?;
                let (seq, ticket) = open.begin_frame(&frame)?;
                call.work.rest_on(ticket);
                Ok(Reply::Integer(seq.into()))
            },
        ),
        command(
            "frame.append",
            4,
            WRITE,
            SINCE,
            "Appends to the response of a frame that FRAME.BEGIN began, and returns its length. Appended bytes are kept even if the frame is never ended.",
            "run seq bytes",
            |call| {
                let open = open_run(call, 1)?;
                let (len, ticket) = open.append(number(call.word(2))?, call.word(3))?;
                if let Some(ticket) = ticket {
                    call.work.rest_on(ticket);
                }
                Ok(integer_of(len))
            },
        ),
        command(
            "frame.end",
            -3,
            WRITE,
            SINCE,
            "Ends a frame that FRAME.BEGIN began. METADATA replaces the metadata that it began with.",
            "run seq [ERROR] [METADATA json] [SEVERITY severity] [DURATION nanoseconds]",
            |call| {
                let open = open_run(call, 1)?;
                let ending = arguments(call, 3).ending()?;
                let ticket = open.end_frame(number(call.word(2))?, &ending)?;
                call.work.rest_on(ticket);
                Ok(Reply::OK)
            },
        ),
        command(
            "frame.get",
            -3,
            &["readonly", "apart", "redacts"],
            SINCE,
            "Returns a frame of a run, or one part of it. Its bytes are verified; damage is an error. A redacted reader gets the whole frame redacted by its profile, with the fields redacted and profile, and cannot read a single part.",
            "run seq [REQUEST|RESPONSE|METADATA]",
            get,
        ),
    ],
);

fn get(call: &mut Call<'_, '_>) -> Outcome {
    let seq = number::<u32>(call.word(2))?;
    let reader = run_of(call, 1)?;
    match call.rest(3) {
        [] => {
            let info = reader.frame_info(seq)?;
            bounded(info.input_bytes.saturating_add(info.output_bytes))?;
            let redactor = call.daemon.redactor(call.session)?;
            Ok(told(reader.frame(seq)?, redactor.as_deref()))
        }
        _ if call.session.is_redacted() => {
            Err("NOPERM a single part cannot be marked as redacted: it takes the right read".into())
        }
        [part] if is(part, "REQUEST") => body(reader.input_reader(seq)?),
        [part] if is(part, "RESPONSE") => body(reader.output_reader(seq)?),
        [part] if is(part, "METADATA") => Ok(Reply::Bulk(reader.frame_info(seq)?.metadata)),
        _ => Err(syntax()),
    }
}

fn bounded(bytes: u64) -> Result<(), Refusal> {
    if bytes <= BULK_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(Refusal(format!("ERR {bytes} bytes: a reply has at most {BULK_BYTES_MAX}")))
}

fn body(mut reader: BlobReader) -> Outcome {
    bounded(reader.len())?;
    let mut bytes = Vec::with_capacity(usize::try_from(reader.len()).unwrap_or(0));
    let read = std::io::Read::read_to_end(&mut reader, &mut bytes);
    read.map_err(|error| Refusal(format!("DAMAGED {error}")))?;
    Ok(Reply::Bulk(bytes))
}

/// The fields that mark a reply as redacted, and the profile's name.
pub(super) fn redacted(redactor: &Redactor) -> [(Reply, Reply); 2] {
    let name = redactor.profile().name();
    [field("redacted", Reply::Boolean(true)), field("profile", Reply::text(name))]
}

/// A frame as a reply. A redacted frame has no hashes, because guesses of its content could be checked
/// against them.
pub(super) fn told(mut frame: RecordedFrame, redactor: Option<&Redactor>) -> Reply {
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
        field("started_ns", integer_of(frame.started_ns)),
        field("duration_ns", integer_of(frame.duration_ns)),
        field("request_bytes", Reply::count(frame.input.len())),
        field("response_bytes", Reply::count(frame.output.len())),
    ];
    match redactor {
        Some(redactor) => told.extend(redacted(redactor)),
        None => told.extend([
            field("request_id", Reply::text(frame.input_id.to_string())),
            field("response_id", Reply::text(frame.output_id.to_string())),
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

/// Size of a frame in a reply, in bytes.
pub(super) fn told_bytes(frame: &RecordedFrame) -> usize {
    frame.input.len() + frame.output.len() + frame.metadata.len()
}
