//! Times, ids and random numbers: drawn and recorded for an open run, served from the recording for an ended
//! one.

use annals::Nondet;

use super::parse::{integer_of, is, number, run_name, syntax};
use super::runs::{open_run, replay_of};
use crate::access::Rights;
use crate::table::Handler;
use crate::turn::{Call, Outcome, Refusal, wrong_number};
use annals_wire::resp::Reply;

/// Maximum number of bytes of one draw.
const FILL_BYTES_MAX: usize = 16 << 10;

pub(super) const HANDLERS: &[(&str, Handler)] = &[("nondet.draw", draw)];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Clock,
    Uuid,
    Random,
    Fill(usize),
}

fn draw(call: &mut Call<'_, '_>) -> Outcome {
    let kind = match call.rest(2) {
        [kind] if is(kind, "CLOCK") => Kind::Clock,
        [kind] if is(kind, "UUID") => Kind::Uuid,
        [kind] if is(kind, "RANDOM") => Kind::Random,
        [kind, length] if is(kind, "FILL") => {
            let length = number::<usize>(length)?;
            if length > FILL_BYTES_MAX {
                return Err(Refusal(format!("ERR one draw fills at most {FILL_BYTES_MAX} bytes")));
            }
            Kind::Fill(length)
        }
        [_] => return Err("ERR the kind of draw is missing: give CLOCK, UUID, RANDOM or FILL length".into()),
        [_, _] => return Err(syntax()),
        _ => return Err(wrong_number("nondet.draw")),
    };
    let name = run_name(call.word(1))?;
    let records = call.tenant.open_run(name).is_some();
    let right = if records { Rights::RECORD } else { Rights::READ };
    if !call.session.may(right) {
        return Err(Refusal(format!("NOPERM a draw for this run takes the right {right}")));
    }
    if records {
        let (drawn, ticket) = open_run(call, 1)?.draw(|draws| drawn(draws, kind))?;
        if let Some(ticket) = ticket {
            call.work.rest_on(ticket);
        }
        return Ok(drawn);
    }
    let is_known = call.session.replay.as_ref().is_some_and(|replay| replay.name == name);
    if !is_known && call.session.apart.is_none() {
        return call.again_apart();
    }
    if !is_known && call.work.space().run(name)?.info().status == annals::Status::Open {
        return Err(Refusal(format!("CONFLICT run {name} is recorded by another client")));
    }
    drawn(&replay_of(call, name, false)?.draws, kind)
}

fn drawn(from: &dyn Nondet, kind: Kind) -> Outcome {
    Ok(match kind {
        Kind::Clock => integer_of(from.now_ns()?),
        Kind::Uuid => Reply::text(from.uuid()?),
        Kind::Random => Reply::text(from.random_u64()?.to_string()),
        Kind::Fill(length) => {
            let mut bytes = vec![0; length];
            from.fill(&mut bytes)?;
            Reply::Bulk(bytes)
        }
    })
}
