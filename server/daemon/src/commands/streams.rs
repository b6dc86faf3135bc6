//! Runs as Redis streams: an entry is a frame; its id is the frame's time in milliseconds and its number.
//!
//! XADD writes a frame of the component `entry` whose input is the fields as a RESP array of strings. So all
//! bytes are kept, and the RESP parser reads them. Frames recorded otherwise read as entries with the fields
//! `component`, `input`, `output` and `metadata`. Times in ids never decrease: an entry with an earlier start
//! gets the time of the entry before it.
//!
//! A stream made by XADD is open until RUN.END. The end of the daemon abandons it, and the next XADD takes it up
//! again. Nothing can be added to an ended run.

use std::sync::Arc;

use annals::{Component, ErrorKind, Frame, RecordedFrame, RunReader, RunSpec, Status};

use super::parse::{integer, no_subcommand, syntax, word_is, wrong_subcommand_arity};
use crate::command_table::CommandHandler;
use crate::open_runs::DaemonRun;
use crate::session::HeldCommand;
use crate::stream_entries;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_wire::resp::{Protocol, Reply, RequestDecoder, RequestLimits, write_command};

/// The component of frames written by XADD.
const ENTRY: &str = "entry";
/// Maximum bytes of entries in a reply: a client asks again for the rest.
const REPLY_BYTES_MAX: usize = 64 << 20;
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const WRONG_ID: &str = "ERR Invalid stream ID specified as stream command argument";

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("xadd", add),
    ("xlen", |call| Ok(Reply::count(find(call, 1)?.map_or(0, |reader| reader.info().frames as usize)))),
    ("xrange", |call| range(call, 2, 3, false)),
    ("xrevrange", |call| range(call, 3, 2, true)),
    ("xread", read),
    ("xinfo", info),
];

/// Whether an error means that there is no run of this name any more, so the name is free.
fn is_absent_run(kind: ErrorKind) -> bool {
    [ErrorKind::NotFound, ErrorKind::Gone].contains(&kind)
}

/// The run named by a word, if it exists.
fn find(call: &mut CommandCall<'_, '_>, at: usize) -> Result<Option<RunReader>, CommandRefusal> {
    let (database, key) = (call.database(), call.word(at));
    let found = match std::str::from_utf8(key) {
        Ok(name) if !name.is_empty() => match call.work.namespace().run(name) {
            Ok(reader) => Some(reader),
            Err(error) if is_absent_run(error.kind()) || error.kind() == ErrorKind::Invalid => None,
            Err(error) => return Err(error.into()),
        },
        _ => None,
    };
    if found.is_none() && call.work.get(database, key)?.is_some() {
        return Err(WRONG_TYPE.into());
    }
    Ok(found)
}

fn add(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut at, mut makes) = (2, true);
    if word_is(call.word(at), "NOMKSTREAM") {
        (at, makes) = (3, false);
    }
    if ["MAXLEN", "MINID"].iter().any(|option| word_is(call.word(at), option)) {
        return Err("ERR trimming is not supported: a recorded run is immutable".into());
    }
    if call.word(at) != b"*" {
        return Err("ERR an entry's id is its time and its frame's number: only * is supported".into());
    }
    let fields = call.rest(at + 1);
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(wrong_arity("xadd"));
    }
    let name = std::str::from_utf8(call.word(1)).map_err(|_| "ERR a run's name is UTF-8")?;
    if call.tenant.open_run(name).is_none()
        && call.session.offload.is_none()
        && !call.session.in_exec
        && find_interrupted_stream(call, name)?.is_some()
    {
        // Taking a run up reads from the disk.
        return call.retry_offloaded();
    }
    let Some(open) = stream_run(call, name, makes)? else { return Ok(Reply::Null) };
    let mut body = Vec::new();
    let words: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
    // Writing to a vector cannot fail.
    let _ = write_command(&mut body, &words);
    let frame = Frame::new(Component::Other(ENTRY.to_owned()), body, Vec::new());
    if call.session.defers_replies
        && !call.session.in_exec
        && stream_entries::accepts_run(&call.session.entries, &open)
    {
        // Its reply is produced together with those of the following entries.
        stream_entries::defer(&mut call.session.entries, open, frame);
        return Ok(Reply::Null);
    }
    let mut alone = None;
    stream_entries::defer(&mut alone, open, frame);
    let added = alone.map(|alone| stream_entries::submit_entries(alone, call.work, call.daemon.now_ns()));
    added.and_then(|mut replies| replies.pop()).ok_or_else(|| "BUG an entry was lost".into())
}

/// The run that receives entries under this name; with `makes`, it is begun if it does not exist.
fn stream_run(
    call: &mut CommandCall<'_, '_>,
    name: &str,
    makes: bool,
) -> Result<Option<Arc<DaemonRun>>, CommandRefusal> {
    if let Some(open) = call.tenant.open_run(name) {
        return Ok(Some(open));
    }
    // Its times are read before the lock is taken: the run may be long. They stay in memory.
    if let Some(reader) = find_interrupted_stream(call, name)? {
        call.tenant.frame_times_ms(&reader)?;
    }
    let database = call.database();
    call.work.lock_databases();
    // Another connection may have begun it while this one waited for the lock.
    if let Some(open) = call.tenant.open_run(name) {
        return Ok(Some(open));
    }
    if call.work.get(database, call.word(1))?.is_some() {
        return Err(WRONG_TYPE.into());
    }
    match call.work.namespace().run(name) {
        Ok(reader) if is_interrupted_stream(&reader)? => {
            call.tenant.check_open_limit()?;
            let last_ms = call.tenant.frame_times_ms(&reader)?.last().copied().unwrap_or(0);
            let resumed = call.work.namespace().resume_run(name)?;
            let open = call.tenant.insert_open_run(resumed.run, false);
            open.monotonic_ms(last_ms);
            Ok(Some(open))
        }
        Ok(reader) => {
            let status = reader.info().status.name();
            Err(CommandRefusal(format!("ERR run {name} is {status}: XADD adds only to runs that XADD began")))
        }
        Err(error) if !is_absent_run(error.kind()) => Err(error.into()),
        Err(_) if !makes => Ok(None),
        Err(_) => {
            call.tenant.check_open_limit()?;
            let run = call.work.namespace().begin_run(RunSpec::new(name))?;
            Ok(Some(call.tenant.insert_open_run(Arc::new(run), false)))
        }
    }
}

/// The stream of this name that the daemon's end interrupted.
fn find_interrupted_stream(
    call: &CommandCall<'_, '_>,
    name: &str,
) -> Result<Option<RunReader>, CommandRefusal> {
    match call.work.namespace().run(name) {
        Ok(reader) if is_interrupted_stream(&reader)? => Ok(Some(reader)),
        Ok(_) => Ok(None),
        Err(error) if is_absent_run(error.kind()) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether XADD began this run, and the daemon's end interrupted it.
fn is_interrupted_stream(reader: &RunReader) -> annals::Result<bool> {
    let info = reader.info();
    Ok([Status::Open, Status::Abandoned].contains(&info.status)
        && info.frames > 0
        && reader.frame_info(1)?.component.name() == ENTRY)
}

/// Parses an id: milliseconds and a number. `rest` replaces a missing number.
fn id(word: &[u8], rest: u64) -> Result<(u64, u64), CommandRefusal> {
    let number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| digits)
    };
    let text = std::str::from_utf8(word).map_err(|_| WRONG_ID)?;
    let (ms, seq) = match text.split_once('-') {
        Some((ms, seq)) => (number(ms), number(seq)),
        None => (number(text), Some(rest)),
    };
    ms.zip(seq).ok_or_else(|| WRONG_ID.into())
}

/// The number of the first frame in a range; frames are numbered from 1.
fn first_in_range(word: &[u8], ids: &[u64]) -> Result<usize, CommandRefusal> {
    let (from, past) = match word {
        b"-" => return Ok(1),
        b"+" => return Ok(ids.len() + 1),
        [b'(', rest @ ..] => (id(rest, 0)?, true),
        word => (id(word, 0)?, false),
    };
    Ok(frames_before(ids, from, past) + 1)
}

/// The number of the last frame in a range.
fn last_in_range(word: &[u8], ids: &[u64]) -> Result<usize, CommandRefusal> {
    let (to, past) = match word {
        b"-" => return Ok(0),
        b"+" => return Ok(ids.len()),
        [b'(', rest @ ..] => (id(rest, u64::MAX)?, false),
        word => (id(word, u64::MAX)?, true),
    };
    Ok(frames_before(ids, to, past))
}

/// The number of frames with a lower id; with `or_equal`, including this id.
fn frames_before(ids: &[u64], id: (u64, u64), or_equal: bool) -> usize {
    // Times never decrease and numbers increase, so frames are ordered by id.
    let is_before = |number: usize| {
        let of = (ids.get(number - 1).copied().unwrap_or(u64::MAX), number as u64);
        of < id || or_equal && of == id
    };
    let (mut low, mut high) = (0, ids.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if is_before(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

fn range(call: &mut CommandCall<'_, '_>, from: usize, to: usize, reverse: bool) -> CommandResult {
    let count = match call.rest(4) {
        [] => usize::MAX,
        [option, count] if word_is(option, "COUNT") => usize::try_from(integer(count)?).unwrap_or(0),
        _ => return Err(syntax()),
    };
    let reader = find(call, 1)?;
    let ids = match &reader {
        Some(reader) => call.tenant.frame_times_ms(reader)?,
        None => Vec::new(),
    };
    let (from, to) = (first_in_range(call.word(from), &ids)?, last_in_range(call.word(to), &ids)?);
    if count == 0 {
        return Ok(Reply::NullArray);
    }
    let Some(reader) = reader else { return Ok(Reply::Array(Vec::new())) };
    let found = if reverse {
        entry_replies(&reader, &ids, (from..=to).rev().take(count), &mut 0)
    } else {
        entry_replies(&reader, &ids, (from..=to).take(count), &mut 0)
    };
    found.map(Reply::Array)
}

/// Entries as replies; `bytes` counts those of the whole reply.
fn entry_replies(
    reader: &RunReader,
    ids: &[u64],
    numbers: impl Iterator<Item = usize>,
    bytes: &mut usize,
) -> Result<Vec<Reply>, CommandRefusal> {
    let mut found = Vec::new();
    for number in numbers {
        let frame = reader.frame(u32::try_from(number).unwrap_or(u32::MAX))?;
        let of_frame = frame.input.len() + frame.output.len() + frame.metadata.len();
        let is_first = std::mem::replace(bytes, *bytes + of_frame) == 0;
        if *bytes > REPLY_BYTES_MAX && !is_first {
            return Err(CommandRefusal(format!(
                "ERR entries of over {REPLY_BYTES_MAX} bytes: ask for fewer by COUNT"
            )));
        }
        let id = format!("{}-{number}", ids.get(number - 1).copied().unwrap_or_default());
        found.push(Reply::Array(vec![Reply::text(id), Reply::Array(entry_fields(frame))]));
    }
    Ok(found)
}

/// The fields and values of a frame.
fn entry_fields(frame: RecordedFrame) -> Vec<Reply> {
    if frame.component.name() == ENTRY
        && let Ok(Some(words)) = RequestDecoder::new(RequestLimits::CLIENT).next(&mut frame.input.as_slice())
    {
        return words.into_iter().map(Reply::Bulk).collect();
    }
    let all = [
        ("component", frame.component.name().as_bytes().to_vec()),
        ("input", frame.input),
        ("output", frame.output),
        ("metadata", frame.metadata),
    ];
    all.into_iter().flat_map(|(name, value)| [Reply::text(name), Reply::Bulk(value)]).collect()
}

fn read(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut count, mut block, mut at) = (usize::MAX, None, 1);
    while !word_is(call.word(at), "STREAMS") {
        let value = call.words.get(at + 1).ok_or_else(syntax)?;
        if word_is(call.word(at), "COUNT") {
            count = usize::try_from(integer(value)?).ok().filter(|count| *count > 0).unwrap_or(usize::MAX);
        } else if word_is(call.word(at), "BLOCK") {
            let wrong = |_| CommandRefusal("ERR timeout is not an integer or out of range".to_owned());
            let ms = integer(value).map_err(wrong)?;
            block = Some(u64::try_from(ms).map_err(|_| "ERR timeout is negative")?);
        } else {
            return Err(syntax());
        }
        at += 2;
    }
    let given = call.rest(at + 1);
    if given.is_empty() || !given.len().is_multiple_of(2) {
        return Err(
            "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified."
                .into(),
        );
    }
    let half = given.len() / 2;
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut again = call.words.to_vec();
    for number in 0..half {
        let (key, after) = (at + 1 + number, at + 1 + half + number);
        let reader = find(call, key)?;
        let ids = match &reader {
            Some(reader) => call.tenant.frame_times_ms(reader)?,
            None => Vec::new(),
        };
        let from = if call.word(after) == b"$" {
            // `$` means the end of the stream now, however long the command then waits.
            let last = ids.last().map_or("0-0".to_owned(), |ms| format!("{ms}-{}", ids.len()));
            if let Some(word) = again.get_mut(after) {
                *word = last.into_bytes();
            }
            ids.len() + 1
        } else {
            frames_before(&ids, id(call.word(after), 0)?, true) + 1
        };
        let Some(reader) = reader else { continue };
        let new = entry_replies(&reader, &ids, (from..=ids.len()).take(count), &mut bytes)?;
        if !new.is_empty() {
            found.push((Reply::Bulk(call.word(key).to_vec()), Reply::Array(new)));
        }
    }
    if found.is_empty() {
        if let Some(ms) = block.filter(|_| !call.session.in_exec) {
            let until = call.session.until.or((ms > 0).then(|| call.work.now_ms().saturating_add(ms)));
            if until.is_none_or(|until| call.work.now_ms() < until) {
                call.session.held_command =
                    Some(HeldCommand { words: again, until, waits: true, offload: None });
            }
        }
        return Ok(Reply::NullArray);
    }
    Ok(match call.session.facts.protocol {
        Protocol::Resp3 => Reply::Map(found),
        Protocol::Resp2 => {
            Reply::Array(found.into_iter().map(|(key, new)| Reply::Array(vec![key, new])).collect())
        }
    })
}

fn info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if !word_is(call.word(1), "STREAM") {
        return Err(no_subcommand("XINFO", call.word(1)));
    }
    if call.words.len() != 3 {
        return Err(wrong_subcommand_arity("xinfo", call.word(1)));
    }
    let reader = find(call, 2)?.ok_or("ERR no such key")?;
    let ids = call.tenant.frame_times_ms(&reader)?;
    let last = ids.last().map_or("0-0".to_owned(), |ms| format!("{ms}-{}", ids.len()));
    let first = ids.first().map_or("0-0".to_owned(), |ms| format!("{ms}-1"));
    let one = |number: usize| {
        let found = if ids.is_empty() {
            Ok(Vec::new())
        } else {
            entry_replies(&reader, &ids, std::iter::once(number), &mut 0)
        };
        found.map(|found| found.into_iter().next().unwrap_or(Reply::Null))
    };
    let info = reader.info();
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    Ok(Reply::Map(vec![
        pair("length", Reply::count(ids.len())),
        pair("last-generated-id", Reply::text(last)),
        pair("max-deleted-entry-id", Reply::text("0-0")),
        pair("entries-added", Reply::count(ids.len())),
        pair("recorded-first-entry-id", Reply::text(first)),
        pair("groups", Reply::Integer(0)),
        pair("first-entry", one(1)?),
        pair("last-entry", one(ids.len())?),
        pair("status", Reply::text(info.status.name())),
        pair("agent", Reply::text(&info.agent)),
        pair("model", Reply::text(&info.model)),
    ]))
}
