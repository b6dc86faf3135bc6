//! Earlier values of keys, as far as the database's keyspace keeps them. Keyspaces made by the daemon keep
//! only the latest value.

use annals::{Seqno, kv::Version};

use super::parse::{field, integer_reply, number, syntax, word_is};
use crate::command_table::CommandHandler;
use crate::databases::check_key;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

/// Maximum number of versions in a reply, and of their bytes.
const VERSIONS_MAX: usize = 10_000;
const REPLY_BYTES_MAX: usize = 64 << 20;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("kv.at", |call| {
        check_key(call.word(1))?;
        let seqno = Seqno(number(call.word(2))?);
        let keyspace = call.tenant.databases.keyspace_of(call.database());
        let found = keyspace.map(|keyspace| keyspace.get_at(call.word(1), seqno)).transpose()?;
        Ok(found.flatten().map_or(Reply::Null, Reply::Bulk))
    }),
    ("kv.history", versions),
];

fn versions(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let most = match call.rest(2) {
        [] => VERSIONS_MAX,
        [option, count] if word_is(option, "COUNT") => number::<usize>(count)?.min(VERSIONS_MAX),
        _ => return Err(syntax()),
    };
    check_key(call.word(1))?;
    let Some(keyspace) = call.tenant.databases.keyspace_of(call.database()) else {
        return Ok(Reply::Array(Vec::new()));
    };
    let (mut told, mut bytes) = (Vec::new(), 0);
    for version in keyspace.versions(call.word(1))?.take(most) {
        let Version { seqno, time_ns, value } = version?;
        bytes += value.as_ref().map_or(0, Vec::len);
        if bytes > REPLY_BYTES_MAX && !told.is_empty() {
            return Err(CommandRefusal(format!(
                "ERR versions of over {REPLY_BYTES_MAX} bytes: ask for fewer by COUNT"
            )));
        }
        told.push(Reply::Map(vec![
            field("seqno", integer_reply(seqno.0)),
            field("time_ns", integer_reply(time_ns)),
            field("value", value.map_or(Reply::Null, Reply::Bulk)),
        ]));
    }
    Ok(Reply::Array(told))
}
