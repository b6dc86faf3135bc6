//! What a library can be loaded into: programs that the system's dynamic loader starts, as their files say.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::program::Program;

/// Scripts whose interpreters are scripts.
const SCRIPTS_MAX: usize = 4;
const HEAD_BYTES: usize = 512;
const PROGRAM_HEADERS_MAX: u16 = 256;
const PROGRAM_HEADER_BYTES: usize = 56;
const INTERPRETER_BYTES_MAX: usize = 256;
const PT_INTERP: u32 = 3;
/// Of an ELF file: 64 bits, and the machine that this is.
const CLASS_64: u8 = 2;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why a program cannot be covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beyond {
    /// In words, after the program's name.
    pub(super) why: String,
    /// The library must not be offered: the program would not start.
    pub(super) harmful: bool,
}

/// Why the library cannot be loaded into this program; `None` where nothing speaks against it, also where it cannot be found.
pub(super) fn beyond(program: &Program) -> Option<Beyond> {
    let directory = program.directory.as_deref().unwrap_or(Path::new("."));
    let mut path = find(program.argv.first()?, directory)?;
    for _ in 0..SCRIPTS_MAX {
        match look(&path) {
            Look::Fine => return None,
            Look::Beyond(beyond) => {
                return Some(Beyond { why: format!("{} {}", path.display(), beyond.why), ..beyond });
            }
            Look::Script(interpreter) => path = find(&interpreter, directory)?,
        }
    }
    None
}

/// The file that a command names, as the system looks for it.
fn find(command: &OsStr, directory: &Path) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(directory.join(command));
    }
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| directory.join(folder).join(command)).find(executable)
}

enum Look {
    Fine,
    Beyond(Beyond),
    Script(OsString),
}

fn look(path: &Path) -> Look {
    #[expect(clippy::disallowed_methods, reason = "the program that is to be run, not a file of a store")]
    let Ok(file) = File::open(path) else { return Look::Fine };
    let mut head = [0; HEAD_BYTES];
    let Ok(length) = file.read_at(&mut head, 0) else { return Look::Fine };
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return interpreter(line).map_or(Look::Fine, Look::Script);
    }
    let not = |why: &str, harmful| Look::Beyond(Beyond { why: why.to_owned(), harmful });
    let privileged = file
        .metadata()
        .is_ok_and(|file| file.mode() & 0o4000 != 0 && file.uid() != rustix::process::geteuid().as_raw());
    if privileged {
        return not("runs as another user: nothing is loaded into it", false);
    }
    if !head.starts_with(b"\x7fELF") || length < 64 {
        return Look::Fine;
    }
    if head[4] != CLASS_64 || u16::from_le_bytes([head[18], head[19]]) != MACHINE {
        return not("is made for another machine than this library", false);
    }
    match loader(&file, head) {
        None => not("is a static binary", false),
        Some(loader) if loader.windows(8).any(|part| part == b"ld-linux") => Look::Fine,
        Some(loader) => {
            not(&format!("is loaded by {}, not by that of glibc", String::from_utf8_lossy(&loader)), true)
        }
    }
}

/// The loader that an ELF file of 64 bits names.
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

/// The program that runs a script; behind `env` the one that it is to find.
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

    #[expect(clippy::disallowed_methods, reason = "files that a user would have")]
    fn beyond_of(bytes: &[u8]) -> Option<Beyond> {
        let directory = std::env::temp_dir().join(format!("annals-reach-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("program-{}", blake3::hash(bytes)));
        std::fs::write(&path, bytes).unwrap();
        let program = Program { argv: vec![path.into_os_string()], directory: None, environment: Vec::new() };
        let found = beyond(&program);
        std::fs::remove_file(&program.argv[0]).unwrap();
        let _ = std::fs::remove_dir(directory);
        found
    }

    /// The smallest file with a header: one program header, of this kind, that names this loader.
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
    fn what_cannot_be_covered_is_known_by_its_file() {
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
        // Headers that lead nowhere make it no dynamic program, and nothing worse.
        let mut odd = elf(PT_INTERP, b"x");
        odd[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(beyond_of(&odd).is_some());
    }

    #[test]
    fn interpreters_of_scripts() {
        let of = |line: &[u8]| interpreter(line).unwrap_or_default().into_string().unwrap();
        assert_eq!(of(b"/bin/sh -e\nrest"), "/bin/sh");
        assert_eq!(of(b" /usr/bin/env python3\n"), "python3");
        assert_eq!(of(b"/usr/bin/env -S A=1 node --flag"), "node");
    }
}
