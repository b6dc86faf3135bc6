//! MULTI, EXEC, DISCARD: several commands as one unit. A turn is one batch anyway; MULTI only delays the
//! commands until EXEC.

use std::cell::Cell;

use crate::command_table::CommandHandler;
use crate::session::{QueuedCommand, Transaction};
use crate::turn::{CommandCall, CommandRefusal, CommandResult, take_value};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

/// Maximum total size of a transaction's replies, in bytes; the last reply may exceed it.
const REPLIES_BYTES_MAX: usize = BULK_BYTES_MAX;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("multi", |call| {
        if call.session.transaction.is_some() {
            return Err("ERR MULTI calls can not be nested".into());
        }
        call.session.transaction = Some(Transaction::default());
        Ok(Reply::OK)
    }),
    ("exec", exec),
    ("discard", |call| match call.session.transaction.take() {
        Some(_) => Ok(Reply::OK),
        None => Err("ERR DISCARD without MULTI".into()),
    }),
];

fn exec(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let transaction = call.session.transaction.take().ok_or("ERR EXEC without MULTI")?;
    if transaction.spoiled {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    call.session.in_exec = true;
    let mut replies = Vec::with_capacity(transaction.queued.len());
    let mut room = ReplyBudget(REPLIES_BYTES_MAX);
    for QueuedCommand { command, mut words, stored } in transaction.queued {
        if room.is_full() && command.schema.flags.contains(&"readonly") {
            replies.push(left_out_error());
            continue;
        }
        let taken = Cell::new(take_value(&command, &mut words));
        let mut one = CommandCall {
            daemon: call.daemon,
            tenant: call.tenant,
            session: &mut *call.session,
            work: &mut *call.work,
            words: &words,
            taken: &taken,
            stored: &stored,
        };
        let reply = one.run(&command).unwrap_or_else(|CommandRefusal(why)| Reply::Error(why));
        replies.push(room.admit(reply));
    }
    call.session.in_exec = false;
    Ok(Reply::Array(replies))
}

/// The bytes left for the replies of a transaction.
struct ReplyBudget(usize);

impl ReplyBudget {
    /// Whether no more values may be read.
    fn is_full(&self) -> bool {
        self.0 == 0
    }

    /// Returns the reply, or an error in its place if no bytes are left. The replies of writes are always
    /// returned, because the write has happened; only values are left out.
    fn admit(&mut self, reply: Reply) -> Reply {
        let holds_much =
            !matches!(reply, Reply::Simple(_) | Reply::Error(_) | Reply::Integer(_) | Reply::Null);
        if self.is_full() && holds_much {
            return left_out_error();
        }
        self.0 = self.0.saturating_sub(reply.approximate_bytes());
        reply
    }
}

fn left_out_error() -> Reply {
    Reply::error(format!(
        "ERR the replies of a transaction have at most {REPLIES_BYTES_MAX} bytes: this value is left out"
    ))
}

#[cfg(test)]
mod tests {
    use super::{ReplyBudget, left_out_error};
    use annals_wire::resp::Reply;

    #[test]
    fn replies_past_the_byte_limit_are_left_out() {
        let long = || Reply::Bulk(vec![b'x'; 1000]);
        let mut room = ReplyBudget(2000);
        assert_eq!(
            [long(), long(), long()].map(|reply| room.admit(reply)),
            [long(), long(), left_out_error()]
        );
        assert!(room.is_full());
        for small in [Reply::OK, Reply::Integer(1), Reply::Null, Reply::error("ERR no")] {
            assert_eq!(room.admit(small.clone()), small);
        }
        let nested = Reply::Array(vec![Reply::Map(vec![(Reply::text("a"), long())])]);
        assert!(nested.approximate_bytes() >= 1001);
        assert_eq!(room.admit(nested), left_out_error());
    }
}
