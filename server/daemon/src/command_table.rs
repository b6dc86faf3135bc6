//! The commands: what the schema says of each, and what it does.

use std::collections::HashMap;

use annals_wire::schema::{self, CommandSchema};
use foldhash::fast::RandomState;

use super::access::Rights;
use super::commands;
use super::turn::{CommandCall, CommandResult};

/// What a command does.
pub(super) type CommandHandler = fn(&mut CommandCall<'_, '_>) -> CommandResult;

/// A command of the daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    pub(super) schema: &'static CommandSchema,
    pub(super) run: CommandHandler,
    pub(super) traits: CommandTraits,
}

/// What the schema's flags say, looked up once: comparing their names took a twentieth of a SET.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommandTraits {
    pub(super) whole: bool,
    pub(super) apart: bool,
    pub(super) joined: bool,
    pub(super) write: bool,
    pub(super) no_auth: bool,
    pub(super) no_multi: bool,
    pub(super) settled: bool,
    pub(super) stores: bool,
    pub(super) action: bool,
    /// [`CommandSchema::writes`].
    pub(super) always_writes: bool,
    /// [`CommandSchema::rights`].
    pub(super) rights: Rights,
}

impl CommandTraits {
    fn new(schema: &CommandSchema) -> Self {
        let is = |flag| schema.flags.contains(&flag);
        Self {
            whole: is("whole"),
            apart: is("apart"),
            joined: is("joined"),
            write: is("write"),
            no_auth: is("no_auth"),
            no_multi: is("no_multi"),
            settled: is("settled"),
            stores: is("stores"),
            action: is("action"),
            always_writes: schema.writes(),
            rights: schema.rights(),
        }
    }
}

/// Commands by name.
#[derive(Debug)]
pub(super) struct CommandTable {
    all: HashMap<&'static str, Command, RandomState>,
    /// Those with short names, by [`short_name`]: a number is hashed and compared in place, for each command of a pipeline.
    short: HashMap<u64, Command, RandomState>,
}

/// Maximum length of a command's name.
const NAME_BYTES_MAX: usize = 32;

/// A name of at most eight bytes in lower case, padded with zeros; `None` if it is longer, or ends with a zero byte.
fn short_name(name: &[u8]) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    let is_padded = name.last() == Some(&0);
    (!is_padded).then(|| u64::from_le_bytes(bytes.map(|byte| byte.to_ascii_lowercase())))
}

impl CommandTable {
    pub(super) fn new() -> Self {
        let handlers: HashMap<_, _, RandomState> =
            commands::HANDLERS.iter().copied().flatten().copied().collect();
        let command = |schema: &'static CommandSchema| {
            let traits = CommandTraits::new(schema);
            Some((schema.name, Command { schema, run: *handlers.get(schema.name)?, traits }))
        };
        let all: HashMap<_, _, RandomState> = schema::all_commands().filter_map(command).collect();
        let short = all.iter().filter_map(|(name, command)| Some((short_name(name.as_bytes())?, *command)));
        Self { short: short.collect(), all }
    }

    /// The command of this name, ignoring case.
    pub(super) fn find(&self, name: &[u8]) -> Option<Command> {
        if let Some(short) = short_name(name) {
            return self.short.get(&short).copied();
        }
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.all.get(std::str::from_utf8(small).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use annals_wire::schema::all_commands;

    use super::CommandTable;
    use crate::commands::HANDLERS;

    #[test]
    fn every_command_has_a_handler_and_is_found_in_any_letters() {
        let table = CommandTable::new();
        assert_eq!(table.all.len(), all_commands().count());
        assert_eq!(HANDLERS.iter().map(|group| group.len()).sum::<usize>(), all_commands().count());
        for command in all_commands() {
            let found = table.find(command.name.to_uppercase().as_bytes()).unwrap();
            assert_eq!(found.schema.name, command.name);
        }
        assert!(
            table.find(b"no").is_none()
                && table.find(b"").is_none()
                && table.find(b"get\0").is_none()
                && table.find(&[b'x'; 100]).is_none()
                && table.find(b"\xff").is_none()
        );
    }
}
