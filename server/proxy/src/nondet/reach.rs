//! Which files a command executes, and whether a library can be loaded into them: only programs started by
//! the system's dynamic loader qualify. Nothing is run to find out.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::program::Program;

/// Maximum chain of scripts whose interpreters are scripts.
const SCRIPTS_MAX: usize = 4;
const HEAD_BYTES: usize = 512;
const PROGRAM_HEADERS_MAX: u16 = 256;
const PROGRAM_HEADER_BYTES: usize = 56;
const INTERPRETER_BYTES_MAX: usize = 256;
const PT_INTERP: u32 = 3;
/// ELF header values: 64 bits, and the machine type of this build.
const CLASS_64: u8 = 2;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why a program cannot be covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CoverageObstacle {
    /// The reason, to follow the program's name.
    pub(crate) why: String,
    /// Whether the program would not start with the library in its environment.
    pub(crate) harmful: bool,
}

/// The files that are executed for a command: its own, and after a script its interpreter.
#[derive(Debug)]
pub(crate) struct ExecChain {
    /// The files; contains at least the first, unless the command is missing.
    pub(crate) files: Vec<PathBuf>,
    /// The kind of the last file.
    pub(crate) end: ExecTarget,
}

/// What a command finally executes, as far as its files tell.
#[derive(Debug)]
pub(crate) enum ExecTarget {
    /// A program that nothing prevents from loading the library.
    Coverable,
    /// A program that the library cannot cover.
    NotCoverable(CoverageObstacle),
    /// The command or its interpreter does not exist.
    Missing(OsString),
    /// The file exists but cannot be executed.
    NotExecutable(&'static str),
}

/// Why the library cannot be loaded into this program; `None` if nothing prevents it, or if the program is
/// not found.
pub(super) fn coverage_obstacle(program: &Program) -> Option<CoverageObstacle> {
    match chain(program).end {
        ExecTarget::NotCoverable(beyond) => Some(beyond),
        _ => None,
    }
}

/// Describes the programs, among this one and those it started, that no library can be loaded into; at most
/// `max`.
pub(crate) fn uncovered_programs(program: &Program, started: &BTreeSet<String>, max: usize) -> Vec<String> {
    let of = |name: &String| Program { argv: vec![name.into()], ..program.clone() };
    let all = std::iter::once(program.clone()).chain(started.iter().map(of));
    // Programs of another C library are covered: the network library needs none.
    let found = all.filter_map(|program| coverage_obstacle(&program)).filter(|beyond| !beyond.harmful);
    let found: BTreeSet<_> = found.map(|beyond| beyond.why).collect();
    found.into_iter().take(max).collect()
}

/// Follows a command to the executed files.
pub(crate) fn chain(program: &Program) -> ExecChain {
    let directory = program.directory.as_deref().unwrap_or(Path::new(""));
    let mut command = program.argv.first().cloned().unwrap_or_default();
    let mut files = Vec::new();
    for _ in 0..SCRIPTS_MAX {
        let Some(path) = find_command(&command, directory) else {
            return ExecChain { files, end: ExecTarget::Missing(command) };
        };
        match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return ExecChain { files, end: ExecTarget::Missing(command) };
            }
            Err(_) => {}
            Ok(file) if file.is_dir() => {
                return ExecChain { files, end: ExecTarget::NotExecutable("is a directory") };
            }
            Ok(file) if !file.is_file() => {
                return ExecChain { files, end: ExecTarget::NotExecutable("is no file") };
            }
            Ok(_) if rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_err() => {
                return ExecChain { files, end: ExecTarget::NotExecutable("may not be executed") };
            }
            Ok(_) => {}
        }
        let look = inspect_file(&path);
        let shown = path.display().to_string();
        files.push(path);
        let end = match look {
            ExecFile::Coverable => ExecTarget::Coverable,
            ExecFile::Text => ExecTarget::NotExecutable("is text without a #! line"),
            ExecFile::NotCoverable(beyond) => ExecTarget::NotCoverable(CoverageObstacle {
                why: format!("{shown} {}", beyond.why),
                ..beyond
            }),
            ExecFile::Script(interpreter) => {
                command = interpreter;
                continue;
            }
        };
        return ExecChain { files, end };
    }
    ExecChain { files, end: ExecTarget::Coverable }
}

/// The file that a command names, found as the system finds it.
fn find_command(command: &OsStr, directory: &Path) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(directory.join(command));
    }
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| directory.join(folder).join(command)).find(executable)
}

/// Opens a regular file; never blocks on a pipe.
///
/// # Errors
/// Those of the system, and an error if it is not a regular file.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    #[expect(clippy::disallowed_methods, reason = "the program that is to be run, not a file of a store")]
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()? {
        found if found.is_file() => Ok(file),
        found if found.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        _ => Err(std::io::Error::other("it is no regular file")),
    }
}

enum ExecFile {
    Coverable,
    /// Neither a program nor a script.
    Text,
    NotCoverable(CoverageObstacle),
    Script(OsString),
}

fn inspect_file(path: &Path) -> ExecFile {
    let Ok(file) = open_regular(path) else { return ExecFile::Coverable };
    let mut head = [0; HEAD_BYTES];
    let Ok(length) = file.read_at(&mut head, 0) else { return ExecFile::Coverable };
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return interpreter(line).map_or(ExecFile::Coverable, ExecFile::Script);
    }
    let not = |why: &str, harmful| ExecFile::NotCoverable(CoverageObstacle { why: why.to_owned(), harmful });
    let privileged = file
        .metadata()
        .is_ok_and(|file| file.mode() & 0o4000 != 0 && file.uid() != rustix::process::geteuid().as_raw());
    if privileged {
        return not("runs as another user: the loader ignores the library", false);
    }
    if !head.starts_with(b"\x7fELF") || length < 64 {
        let text = head.iter().all(|byte| !matches!(byte, 0..=8 | 14..=31));
        return if text { ExecFile::Text } else { ExecFile::Coverable };
    }
    if head[4] != CLASS_64 || u16::from_le_bytes([head[18], head[19]]) != MACHINE {
        return not("is made for another machine than this library", false);
    }
    match loader(&file, head) {
        None => not("is a static binary", false),
        Some(loader) if loader.windows(8).any(|part| part == b"ld-linux") => ExecFile::Coverable,
        Some(loader) => {
            not(&format!("is loaded by {}, not by glibc's loader", String::from_utf8_lossy(&loader)), true)
        }
    }
}

/// The loader named in a 64-bit ELF file.
fn loader(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    let u64_at =
        |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let from = u64_at(head, 32)?;
    let size = u64::from(u16::from_le_bytes([head[54], head[55]]));
    let count = u16::from_le_bytes([head[56], head[57]]).min(PROGRAM_HEADERS_MAX);
    for index in 0..u64::from(count) {
        let mut header = [0; PROGRAM_HEADER_BYTES];
        file.read_exact_at(&mut header, from.checked_add(index * size)?).ok()?;
        if u32::from_le_bytes([header[0], header[1], header[2], header[3]]) == PT_INTERP {
            let mut path = vec![0; INTERPRETER_BYTES_MAX.min(usize::try_from(u64_at(&header, 32)?).ok()?)];
            file.read_exact_at(&mut path, u64_at(&header, 8)?).ok()?;
            path.retain(|byte| *byte != 0);
            return Some(path);
        }
    }
    None
}

/// The program that runs a script; after `env`, the program that `env` looks up.
fn interpreter(line: &[u8]) -> Option<OsString> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = words.next()?;
    let found = match first.ends_with(b"/env") {
        true => words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')).unwrap_or(first),
        false => first,
    };
    Some(OsString::from_vec(found.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each in a directory of its own: tests that shared one removed it while another wrote its file.
    #[expect(clippy::disallowed_methods, reason = "files that a user would have")]
    fn chain_of(bytes: &[u8]) -> ExecChain {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        chain(&Program { argv: vec![path.into_os_string()], directory: None, environment: Vec::new() })
    }

    fn beyond_of(bytes: &[u8]) -> Option<CoverageObstacle> {
        match chain_of(bytes).end {
            ExecTarget::NotCoverable(beyond) => Some(beyond),
            _ => None,
        }
    }

    /// The smallest file with a header: one program header of this kind that names this loader.
    fn elf(kind: u32, loader: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 120];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        file[64..68].copy_from_slice(&kind.to_le_bytes());
        file[72..80].copy_from_slice(&120_u64.to_le_bytes());
        file[96..104].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        file.extend(loader);
        file
    }

    #[test]
    fn uncoverable_programs_are_recognised_by_their_file() {
        assert_eq!(beyond_of(&elf(PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0")), None);
        let r#static = beyond_of(&elf(1, b"")).unwrap();
        assert!(r#static.why.ends_with("is a static binary") && !r#static.harmful);
        let musl = beyond_of(&elf(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")).unwrap();
        assert!(musl.why.contains("ld-musl") && musl.harmful);
        let mut other = elf(1, b"");
        other[4] = 1;
        assert!(beyond_of(&other).unwrap().why.contains("another machine"));
        for bytes in [&b""[..], b"#!", b"#!\n", b"\x7fELF", b"#!/usr/bin/env -S\n", b"text"] {
            assert_eq!(beyond_of(bytes), None, "{bytes:?}");
        }
        // Invalid headers must only make it a static program.
        let mut odd = elf(PT_INTERP, b"x");
        odd[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(beyond_of(&odd).is_some());
    }

    #[test]
    fn command_is_followed_to_the_executed_file() {
        let script = chain_of(b"#!/bin/sh\n");
        assert!(script.files.len() >= 2 && script.files[1].ends_with("sh"), "{script:?}");
        assert!(
            matches!(chain_of(b"#!/no/such/thing\n").end, ExecTarget::Missing(name) if name == "/no/such/thing")
        );
        assert!(matches!(chain_of(b"print(1)\n").end, ExecTarget::NotExecutable(why) if why.contains("#!")));
        let of = |name: &str| {
            let program = Program { argv: vec![name.into()], directory: None, environment: Vec::new() };
            chain(&program).end
        };
        assert!(matches!(of("annals-no-such-command"), ExecTarget::Missing(_)));
        assert!(matches!(of("/"), ExecTarget::NotExecutable("is a directory")));
        assert!(matches!(of("/dev/null"), ExecTarget::NotExecutable("is no file")));
        assert!(matches!(of("src/lib.rs"), ExecTarget::NotExecutable("may not be executed")));
    }

    #[test]
    fn script_interpreters_are_parsed() {
        let of = |line: &[u8]| interpreter(line).unwrap_or_default().into_string().unwrap();
        assert_eq!(of(b"/bin/sh -e\nrest"), "/bin/sh");
        assert_eq!(of(b" /usr/bin/env python3\n"), "python3");
        assert_eq!(of(b"/usr/bin/env -S A=1 node --flag"), "node");
    }
}
