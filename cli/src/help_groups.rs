//! `annals --help`: lists the verbs in groups. clap has no headings for subcommands, so this module builds
//! the list from the command. A verb that is in no group goes under the last heading.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::table_fit;

/// Headings and their verbs, in the order they are shown.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Record and replay:", &["record", "attach", "replay", "import", "tape", "demo"]),
    ("Look:", &["runs", "search", "show", "open", "tui", "report", "suspect", "tail", "state"]),
    ("Compare and fork:", &["diff", "fork", "blame", "check", "validate"]),
    (
        "Keys and memory:",
        &[
            "get",
            "put",
            "del",
            "scan",
            "remember",
            "recall",
            "define-memory",
            "export-training",
            "diagnose",
            "lessons",
        ],
    ),
    ("Decisions:", &["decide", "decisions", "decision"]),
    ("Evidence:", &["verify", "ledger"]),
    (
        "Store upkeep:",
        &[
            "init", "stats", "doctor", "retain", "pin", "unpin", "flag", "unflag", "forget", "compact",
            "backup", "restore", "repair",
        ],
    ),
    ("Servers:", &["serve", "token", "mcp"]),
];
const OTHERS_HEADING: &str = "Others:";
/// Columns of the verb's name at the start of a line of help.
const NAME_COLUMNS: usize = 19;
/// The greatest width of help, and its width without a terminal.
const HELP_COLUMNS: usize = 100;

/// The command line, with the verbs of its help in groups.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    let width = table_fit::output_columns().unwrap_or(HELP_COLUMNS).clamp(40, HELP_COLUMNS);
    let (head, verbs) = (anstyle::Style::new().bold().underline(), verb_list(&command, width));
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{verbs}\n{head}Options:{head:#}\n{{options}}{{after-help}}"
    ))
}

/// The verbs under their headings.
fn verb_list(command: &Command, width: usize) -> String {
    let mut text = String::new();
    let head = anstyle::Style::new().bold().underline();
    for (heading, names) in verb_groups(command) {
        let _ = writeln!(text, "\n{head}{heading}{head:#}");
        for name in names {
            if let Some(verb) = command.find_subcommand(&name) {
                push_verb(verb, width, &mut text);
            }
        }
    }
    text
}

/// The visible verbs of each heading.
fn verb_groups(command: &Command) -> Vec<(&'static str, Vec<String>)> {
    let visible = |name: &str| command.find_subcommand(name).is_some_and(|verb| !verb.is_hide_set());
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for (heading, names) in GROUPS {
        let names = names.iter().filter(|name| visible(name)).map(|name| (*name).to_owned());
        groups.push((heading, names.collect()));
    }
    let all = command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(|verb| verb.get_name());
    let rest = all.filter(|name| !GROUPS.iter().any(|(_, names)| names.contains(name)));
    groups.push((OTHERS_HEADING, rest.map(str::to_owned).collect()));
    groups.retain(|(_, names)| !names.is_empty());
    groups
}

/// Appends a verb's name, its aliases and its description.
fn push_verb(verb: &Command, width: usize, text: &mut String) {
    let bold = anstyle::Style::new().bold();
    let name = [verb.get_name()].into_iter().chain(verb.get_visible_aliases()).collect::<Vec<_>>().join(", ");
    let pad = NAME_COLUMNS.saturating_sub(name.chars().count() + 2).max(1);
    let _ = write!(text, "  {bold}{name}{bold:#}{:pad$}", "");
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    let mut column = NAME_COLUMNS;
    for word in about.split_whitespace() {
        if column > NAME_COLUMNS && column + 1 + word.chars().count() > width {
            let _ = write!(text, "\n{:NAME_COLUMNS$}", "");
            column = NAME_COLUMNS;
        }
        if column > NAME_COLUMNS {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.chars().count();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new verb without a group would appear under "Others:".
    #[test]
    fn every_visible_verb_is_in_exactly_one_group() {
        let command = Cli::command();
        let groups = verb_groups(&command);
        assert!(groups.iter().all(|(heading, _)| *heading != OTHERS_HEADING), "{groups:?}");
        let mut shown: Vec<_> = groups.into_iter().flat_map(|(_, names)| names).collect();
        let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut wanted: Vec<_> = visible.map(|verb| verb.get_name().to_owned()).collect();
        shown.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(shown, wanted);
        let text = verb_list(&command, HELP_COLUMNS);
        for name in wanted {
            let mark = format!("\n  {}{name}", anstyle::Style::new().bold());
            // `decision` is also the beginning of `decisions`.
            let is_whole = |rest: &&str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
            assert_eq!(text.split(&mark).skip(1).filter(is_whole).count(), 1, "{name}: {text}");
        }
        for (_, names) in GROUPS {
            assert!(names.iter().all(|name| command.find_subcommand(name).is_some()), "{names:?}");
        }
    }

    #[test]
    fn help_lines_fit_the_width() {
        let plain = anstream::adapter::strip_str(&verb_list(&Cli::command(), 60)).to_string();
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
    }
}
