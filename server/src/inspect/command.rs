//! Finds the text that a command line runs: a script, or code within the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::report::Kind;
use crate::nondet::Chain;
use crate::program::Program;

/// Maximum number of arguments examined.
const ARGUMENTS_MAX: usize = 256;

/// Where a program's text is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
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
pub(super) fn start(program: &Program, chain: &Chain) -> (Kind, Start) {
    let Some((command, arguments)) = program.argv.split_first() else { return (Kind::Other, Start::Nowhere) };
    let arguments = &arguments[..arguments.len().min(ARGUMENTS_MAX)];
    let kind = kind_of_command(command);
    if kind != Kind::Other {
        return (kind, script(kind, arguments));
    }
    // For a script run directly, its interpreter tells the kind, else its name.
    if let [file, interpreters @ ..] = chain.files.as_slice()
        && !interpreters.is_empty()
    {
        let kinds = interpreters.iter().map(|path| kind_of_command(path.as_os_str()));
        let by_name = || kind_of_script(&file.to_string_lossy());
        let kind = kinds.into_iter().find(|kind| *kind != Kind::Other).or_else(by_name);
        let named = if command.as_bytes().contains(&b'/') { PathBuf::from(command) } else { file.clone() };
        return kind.map_or((Kind::Other, Start::Nowhere), |kind| (kind, Start::File(named)));
    }
    // `uv run agent.py`, `timeout 60 python agent.py`, `tsx agent.ts`: the first argument that is a script.
    let directory = program.directory.as_deref().unwrap_or(Path::new(""));
    let found = arguments.iter().find_map(|argument| {
        let kind = kind_of_script(&argument.to_string_lossy())?;
        directory.join(argument).is_file().then(|| (kind, Start::File(argument.into())))
    });
    found.unwrap_or((Kind::Other, Start::Nowhere))
}

/// The kind by the name of the running program.
fn kind_of_command(command: &OsStr) -> Kind {
    let name = Path::new(command).file_name().unwrap_or_default().to_string_lossy();
    let versioned = |of: &str| {
        name.strip_prefix(of).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    match name.as_ref() {
        "sh" | "bash" | "dash" | "zsh" | "ksh" => Kind::Shell,
        "nodejs" => Kind::Node,
        _ if versioned("node") => Kind::Node,
        _ if versioned("python") || versioned("pypy") => Kind::Python,
        _ => Kind::Other,
    }
}

/// The kind by a file's extension.
pub(super) fn kind_of_script(name: &str) -> Option<Kind> {
    match Path::new(name).extension()?.to_str()? {
        "py" => Some(Kind::Python),
        "js" | "mjs" | "cjs" | "ts" | "mts" | "cts" | "tsx" | "jsx" => Some(Kind::Node),
        "sh" | "bash" => Some(Kind::Shell),
        _ => None,
    }
}

/// Reads an interpreter's arguments.
fn script(kind: Kind, arguments: &[OsString]) -> Start {
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        let text = argument.to_string_lossy();
        let Some(option) = text.strip_prefix(['-', '+']).filter(|_| text != "-") else {
            return if text == "-" { Start::Nowhere } else { Start::File(argument.into()) };
        };
        let mut value = |rest: &str| match rest {
            "" => left.next().map(|next| next.to_string_lossy().into_owned()).unwrap_or_default(),
            rest => rest.to_owned(),
        };
        match kind {
            Kind::Python if option == "-check-hash-based-pycs" => drop(value("")),
            Kind::Python if !option.starts_with('-') => {
                // Options may be combined; these four take the rest as their value.
                if let Some(at) = option.find(['c', 'm', 'W', 'X']) {
                    let taken = value(&option[at + 1..]);
                    match option.as_bytes()[at] {
                        b'c' => return Start::Inline("-c", taken),
                        b'm' => return Start::Module(taken),
                        _ => {}
                    }
                }
            }
            Kind::Node => match option {
                "e" | "-eval" | "p" | "-print" | "pe" => return Start::Inline("-e", value("")),
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
            Kind::Shell => match option {
                "o" | "O" | "-rcfile" | "-init-file" => drop(value("")),
                "-" => return next(left.next()),
                _ if text.starts_with('-') && !option.starts_with('-') && option.contains('c') => {
                    let code = left.find(|next| !next.as_bytes().starts_with(b"-"));
                    return code.map_or(Start::Nowhere, |code| {
                        Start::Inline("-c", code.to_string_lossy().into_owned())
                    });
                }
                _ => {}
            },
            _ => {}
        }
    }
    Start::Nowhere
}

fn next(argument: Option<&OsString>) -> Start {
    argument.map_or(Start::Nowhere, |argument| Start::File(argument.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nondet::End;

    fn of(line: &str) -> (Kind, Start) {
        let program = Program {
            argv: line.split('~').map(OsString::from).collect(),
            directory: None,
            environment: Vec::new(),
        };
        start(&program, &Chain { files: Vec::new(), end: End::Fine })
    }

    fn file(kind: Kind, name: &str) -> (Kind, Start) {
        (kind, Start::File(name.into()))
    }

    fn inline(kind: Kind, option: &'static str, code: &str) -> (Kind, Start) {
        (kind, Start::Inline(option, code.to_owned()))
    }

    #[test]
    fn the_script_of_a_command_line() {
        assert_eq!(of("python3~-B~-W~ignore~-X~dev~a.py~-c~x"), file(Kind::Python, "a.py"));
        assert_eq!(of("/opt/bin/python3.12~-Bc~import x"), inline(Kind::Python, "-c", "import x"));
        assert_eq!(of("python~-magent.cli"), (Kind::Python, Start::Module("agent.cli".into())));
        assert_eq!(of("python~-m"), (Kind::Python, Start::Module(String::new())));
        assert_eq!(of("python"), (Kind::Python, Start::Nowhere));
        assert_eq!(of("python~-"), (Kind::Python, Start::Nowhere));
        assert_eq!(of("node~--no-warnings~-r~./x.js~a.mjs"), file(Kind::Node, "a.mjs"));
        assert_eq!(of("node~--eval~fetch()"), inline(Kind::Node, "-e", "fetch()"));
        assert_eq!(of("bash~-o~pipefail~-eu~run"), file(Kind::Shell, "run"));
        assert_eq!(of("sh~-ec~curl x~y"), inline(Kind::Shell, "-c", "curl x"));
        assert_eq!(of("uv~run~no-such-file.py"), (Kind::Other, Start::Nowhere));
        assert_eq!(of("pythonic~a.py").0, Kind::Other);
    }

    #[test]
    fn a_script_by_itself_is_what_its_interpreter_is() {
        let of = |files: &[&str]| {
            let program = Program { argv: vec![files[0].into()], directory: None, environment: Vec::new() };
            let files = files.iter().map(PathBuf::from).collect();
            start(&program, &Chain { files, end: End::Fine })
        };
        assert_eq!(of(&["./agent", "/usr/bin/python3"]), file(Kind::Python, "./agent"));
        assert_eq!(of(&["./agent.ts", "/usr/bin/tsx"]), file(Kind::Node, "./agent.ts"));
        assert_eq!(of(&["./agent", "/usr/bin/perl"]), (Kind::Other, Start::Nowhere));
    }
}
