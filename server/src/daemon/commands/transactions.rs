//! MULTI, EXEC, DISCARD: several commands that happen together. A turn is one batch anyway; what is between is only not yet done.

use crate::daemon::session::{Queued, Transaction};
use crate::daemon::table::Command;
use crate::daemon::turn::{Call, Outcome, Refusal};
use crate::resp::Reply;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "multi",
        arity: 1,
        flags: &["no_multi", "fast"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "1.2.0",
        summary: "Starts a transaction.",
        arguments: "",
        run: |call| {
            if call.session.transaction.is_some() {
                return Err("ERR MULTI calls can not be nested".into());
            }
            call.session.transaction = Some(Transaction::default());
            Ok(Reply::OK)
        },
    },
    Command {
        name: "exec",
        arity: 1,
        flags: &["no_multi", "slow"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "1.2.0",
        summary: "Executes all commands in a transaction, as one batch.",
        arguments: "",
        run: exec,
    },
    Command {
        name: "discard",
        arity: 1,
        flags: &["no_multi", "fast"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "2.0.0",
        summary: "Discards a transaction.",
        arguments: "",
        run: |call| match call.session.transaction.take() {
            Some(_) => Ok(Reply::OK),
            None => Err("ERR DISCARD without MULTI".into()),
        },
    },
];

fn exec(call: &mut Call<'_, '_>) -> Outcome {
    let transaction = call.session.transaction.take().ok_or("ERR EXEC without MULTI")?;
    if transaction.spoiled {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    call.session.in_exec = true;
    let mut replies = Vec::with_capacity(transaction.queued.len());
    for Queued { command, words, stored } in transaction.queued {
        let mut one = Call {
            daemon: call.daemon,
            tenant: call.tenant,
            session: &mut *call.session,
            work: &mut *call.work,
            words: &words,
            stored: &stored,
        };
        replies.push((command.run)(&mut one).unwrap_or_else(|Refusal(why)| Reply::Error(why)));
    }
    call.session.in_exec = false;
    Ok(Reply::Array(replies))
}
