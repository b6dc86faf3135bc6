//! The commands: what the schema says of each, and what it does.

use std::collections::HashMap;

use annals_wire::schema::{self, CommandSchema};
use foldhash::fast::RandomState;

use super::commands;
use super::turn::{CommandCall, CommandResult};

/// What a command does.
pub(super) type CommandHandler = fn(&mut CommandCall<'_, '_>) -> CommandResult;

/// A command of the daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    pub(super) schema: &'static CommandSchema,
    pub(super) run: CommandHandler,
}

/// Commands by name.
#[derive(Debug)]
pub(super) struct CommandTable(HashMap<&'static str, Command, RandomState>);

/// Maximum length of a command's name.
const NAME_BYTES_MAX: usize = 32;

impl CommandTable {
    pub(super) fn new() -> Self {
        let handlers: HashMap<_, _, RandomState> =
            commands::HANDLERS.iter().copied().flatten().copied().collect();
        let command = |schema: &'static CommandSchema| {
            Some((schema.name, Command { schema, run: *handlers.get(schema.name)? }))
        };
        Self(schema::all_commands().filter_map(command).collect())
    }

    /// The command of this name, ignoring case.
    pub(super) fn find(&self, name: &[u8]) -> Option<Command> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.0.get(std::str::from_utf8(small).ok()?).copied()
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
        assert_eq!(table.0.len(), all_commands().count());
        assert_eq!(HANDLERS.iter().map(|group| group.len()).sum::<usize>(), all_commands().count());
        for command in all_commands() {
            let found = table.find(command.name.to_uppercase().as_bytes()).unwrap();
            assert_eq!(found.schema.name, command.name);
        }
        assert!(
            table.find(b"no").is_none()
                && table.find(&[b'x'; 100]).is_none()
                && table.find(b"\xff").is_none()
        );
    }
}
