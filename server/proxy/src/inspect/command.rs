//! Finds the text that a command line runs: a script, or code within the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::report::ProgramKind;
use crate::nondet::ExecChain;
use crate::program::Program;

/// Maximum number of arguments examined.
const ARGUMENTS_MAX: usize = 256;

/// Where a program's text is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScriptSource {
    /// A file, by its name in the command line.
    File(PathBuf),
    /// In the command line, after this option.
    Inline(&'static str, String),
    /// A Python module.
    Module(String),
    /// Not available: standard input, or a program that is not a script.
    Nowhere,
}

/// The program's kind, and where its text is.
pub(super) fn start(program: &Program, chain: &ExecChain) -> (ProgramKind, ScriptSource) {
    let Some((command, arguments)) = program.argv.split_first() else {
        return (ProgramKind::Other, ScriptSource::Nowhere);
    };
    let arguments = &arguments[..arguments.len().min(ARGUMENTS_MAX)];
    let kind = kind_of_command(command);
    if kind != ProgramKind::Other {
        return (kind, script(kind, arguments));
    }
    // For a script run directly, its interpreter tells the kind, else its name.
    if let [file, interpreters @ ..] = chain.files.as_slice()
        && !interpreters.is_empty()
    {
        let kinds = interpreters.iter().map(|path| kind_of_command(path.as_os_str()));
        let by_name = || kind_of_script(&file.to_string_lossy());
        let kind = kinds.into_iter().find(|kind| *kind != ProgramKind::Other).or_else(by_name);
        let named = if command.as_bytes().contains(&b'/') { PathBuf::from(command) } else { file.clone() };
        return kind
            .map_or((ProgramKind::Other, ScriptSource::Nowhere), |kind| (kind, ScriptSource::File(named)));
    }
    // `uv run agent.py`, `timeout 60 python agent.py`, `tsx agent.ts`: the first argument that is a script.
    let directory = program.directory.as_deref().unwrap_or(Path::new(""));
    let found = arguments.iter().find_map(|argument| {
        let kind = kind_of_script(&argument.to_string_lossy())?;
        directory.join(argument).is_file().then(|| (kind, ScriptSource::File(argument.into())))
    });
    found.unwrap_or((ProgramKind::Other, ScriptSource::Nowhere))
}

/// The kind by the name of the running program.
fn kind_of_command(command: &OsStr) -> ProgramKind {
    let name = Path::new(command).file_name().unwrap_or_default().to_string_lossy();
    let versioned = |of: &str| {
        name.strip_prefix(of).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    match name.as_ref() {
        "sh" | "bash" | "dash" | "zsh" | "ksh" => ProgramKind::Shell,
        "nodejs" => ProgramKind::Node,
        _ if versioned("node") => ProgramKind::Node,
        _ if versioned("python") || versioned("pypy") => ProgramKind::Python,
        _ => ProgramKind::Other,
    }
}

/// The kind by a file's extension.
pub(super) fn kind_of_script(name: &str) -> Option<ProgramKind> {
    match Path::new(name).extension()?.to_str()? {
        "py" => Some(ProgramKind::Python),
        "js" | "mjs" | "cjs" | "ts" | "mts" | "cts" | "tsx" | "jsx" => Some(ProgramKind::Node),
        "sh" | "bash" => Some(ProgramKind::Shell),
        _ => None,
    }
}

/// Reads an interpreter's arguments.
fn script(kind: ProgramKind, arguments: &[OsString]) -> ScriptSource {
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        let text = argument.to_string_lossy();
        let Some(option) = text.strip_prefix(['-', '+']).filter(|_| text != "-") else {
            return if text == "-" { ScriptSource::Nowhere } else { ScriptSource::File(argument.into()) };
        };
        let mut value = |rest: &str| match rest {
            "" => left.next().map(|next| next.to_string_lossy().into_owned()).unwrap_or_default(),
            rest => rest.to_owned(),
        };
        match kind {
            ProgramKind::Python if option == "-check-hash-based-pycs" => drop(value("")),
            ProgramKind::Python if !option.starts_with('-') => {
                // Options may be combined; these four take the rest as their value.
                if let Some(at) = option.find(['c', 'm', 'W', 'X']) {
                    let taken = value(&option[at + 1..]);
                    match option.as_bytes()[at] {
                        b'c' => return ScriptSource::Inline("-c", taken),
                        b'm' => return ScriptSource::Module(taken),
                        _ => {}
                    }
                }
            }
            ProgramKind::Node => match option {
                "e" | "-eval" | "p" | "-print" | "pe" => return ScriptSource::Inline("-e", value("")),
                "r"
                | "-require"
                | "-import"
                | "-loader"
                | "-experimental-loader"
                | "C"
                | "-conditions"
                | "-title"
                | "-input-type" => drop(value("")),
                "-" => return next(left.next()),
                _ => {}
            },
            ProgramKind::Shell => match option {
                "o" | "O" | "-rcfile" | "-init-file" => drop(value("")),
                "-" => return next(left.next()),
                _ if text.starts_with('-') && !option.starts_with('-') && option.contains('c') => {
                    let code = left.find(|next| !next.as_bytes().starts_with(b"-"));
                    return code.map_or(ScriptSource::Nowhere, |code| {
                        ScriptSource::Inline("-c", code.to_string_lossy().into_owned())
                    });
                }
                _ => {}
            },
            _ => {}
        }
    }
    ScriptSource::Nowhere
}

fn next(argument: Option<&OsString>) -> ScriptSource {
    argument.map_or(ScriptSource::Nowhere, |argument| ScriptSource::File(argument.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nondet::ExecTarget;

    fn of(line: &str) -> (ProgramKind, ScriptSource) {
        let program = Program {
            argv: line.split('~').map(OsString::from).collect(),
            directory: None,
            environment: Vec::new(),
        };
        start(&program, &ExecChain { files: Vec::new(), end: ExecTarget::Coverable })
    }

    fn file(kind: ProgramKind, name: &str) -> (ProgramKind, ScriptSource) {
        (kind, ScriptSource::File(name.into()))
    }

    fn inline(kind: ProgramKind, option: &'static str, code: &str) -> (ProgramKind, ScriptSource) {
        (kind, ScriptSource::Inline(option, code.to_owned()))
    }

    #[test]
    fn command_line_script_is_found() {
        assert_eq!(of("python3~-B~-W~ignore~-X~dev~a.py~-c~x"), file(ProgramKind::Python, "a.py"));
        assert_eq!(of("/opt/bin/python3.12~-Bc~import x"), inline(ProgramKind::Python, "-c", "import x"));
        assert_eq!(of("python~-magent.cli"), (ProgramKind::Python, ScriptSource::Module("agent.cli".into())));
        assert_eq!(of("python~-m"), (ProgramKind::Python, ScriptSource::Module(String::new())));
        assert_eq!(of("python"), (ProgramKind::Python, ScriptSource::Nowhere));
        assert_eq!(of("python~-"), (ProgramKind::Python, ScriptSource::Nowhere));
        assert_eq!(of("node~--no-warnings~-r~./x.js~a.mjs"), file(ProgramKind::Node, "a.mjs"));
        assert_eq!(of("node~--eval~fetch()"), inline(ProgramKind::Node, "-e", "fetch()"));
        assert_eq!(of("bash~-o~pipefail~-eu~run"), file(ProgramKind::Shell, "run"));
        assert_eq!(of("sh~-ec~curl x~y"), inline(ProgramKind::Shell, "-c", "curl x"));
        assert_eq!(of("uv~run~no-such-file.py"), (ProgramKind::Other, ScriptSource::Nowhere));
        assert_eq!(of("pythonic~a.py").0, ProgramKind::Other);
    }

    #[test]
    fn script_kind_follows_its_interpreter() {
        let of = |files: &[&str]| {
            let program = Program { argv: vec![files[0].into()], directory: None, environment: Vec::new() };
            let files = files.iter().map(PathBuf::from).collect();
            start(&program, &ExecChain { files, end: ExecTarget::Coverable })
        };
        assert_eq!(of(&["./agent", "/usr/bin/python3"]), file(ProgramKind::Python, "./agent"));
        assert_eq!(of(&["./agent.ts", "/usr/bin/tsx"]), file(ProgramKind::Node, "./agent.ts"));
        assert_eq!(of(&["./agent", "/usr/bin/perl"]), (ProgramKind::Other, ScriptSource::Nowhere));
    }
}
