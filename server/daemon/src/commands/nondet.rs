//! Times, ids and random numbers: drawn and recorded for an open run, served from the recording for an ended
//! one.

use annals::replay::Nondet;

use super::parse::{integer_reply, number, run_name, syntax, word_is};
use super::runs::{connection_replay, open_run};
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_wire::resp::Reply;

/// Maximum number of bytes of one draw.
const FILL_BYTES_MAX: usize = 16 << 10;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[("nondet.draw", draw)];

#[derive(Debug, Clone, Copy)]
enum DrawKind {
    Clock,
    Uuid,
    Random,
    Fill(usize),
}

fn draw(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let kind = match call.rest(2) {
        [kind] if word_is(kind, "CLOCK") => DrawKind::Clock,
        [kind] if word_is(kind, "UUID") => DrawKind::Uuid,
        [kind] if word_is(kind, "RANDOM") => DrawKind::Random,
        [kind, length] if word_is(kind, "FILL") => {
            let length = number::<usize>(length)?;
            if length > FILL_BYTES_MAX {
                return Err(CommandRefusal(format!("ERR one draw fills at most {FILL_BYTES_MAX} bytes")));
            }
            DrawKind::Fill(length)
        }
        [_] => return Err("ERR the kind of draw is missing: give CLOCK, UUID, RANDOM or FILL length".into()),
        [_, _] => return Err(syntax()),
        _ => return Err(wrong_arity("nondet.draw")),
    };
    let name = run_name(call.word(1))?;
    let records = call.tenant.open_run(name).is_some();
    let right = if records { Rights::RECORD } else { Rights::READ };
    if !call.session.has_rights(right) {
        return Err(CommandRefusal(format!("NOPERM a draw for this run takes the right {right}")));
    }
    if records {
        call.check_writer()?;
        let (drawn, ticket) = open_run(call, 1)?.draw(|draws| draw_from(draws, kind))?;
        if let Some(ticket) = ticket {
            call.work.await_before_reply(ticket);
        }
        return Ok(drawn);
    }
    let is_known = call.session.replay.as_ref().is_some_and(|replay| replay.name == name);
    if !is_known && call.session.offload.is_none() {
        return call.retry_offloaded();
    }
    if !is_known && call.work.namespace().run(name)?.info().status == annals::Status::Open {
        return Err(CommandRefusal(format!("CONFLICT run {name} is recorded by another client")));
    }
    draw_from(&connection_replay(call, name, false)?.draws, kind)
}

fn draw_from(from: &dyn Nondet, kind: DrawKind) -> CommandResult {
    Ok(match kind {
        DrawKind::Clock => integer_reply(from.now_ns()?),
        DrawKind::Uuid => Reply::text(from.uuid()?),
        DrawKind::Random => Reply::text(from.random_u64()?.to_string()),
        DrawKind::Fill(length) => {
            let mut bytes = vec![0; length];
            from.fill(&mut bytes)?;
            Reply::Bulk(bytes)
        }
    })
}
