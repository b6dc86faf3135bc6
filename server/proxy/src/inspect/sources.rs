//! Reads the text of a program: its script and the local files that it imports. Each file is read once, long
//! ones only in part.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::command::{ScriptSource, kind_of_script};
use super::report::{InspectedFile, InspectionFinding, ProgramKind};
use super::text::{Import, imports, without_comments};
use crate::nondet::open_regular;

/// Maximum number of files read.
const FILES_MAX: usize = 64;
/// Maximum number of bytes read of one file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of bytes read in total.
const BYTES_MAX: u64 = 8 << 20;
/// Maximum number of paths tried.
const TRIED_MAX: usize = 4096;
/// A zero byte among this many first bytes marks a file as binary.
const BINARY_BYTES: usize = 8 << 10;
const JAVASCRIPT_ENDS: [&str; 6] = ["js", "mjs", "cjs", "ts", "tsx", "jsx"];

/// A file of the program.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) kind: ProgramKind,
    pub(super) looked: InspectedFile,
    /// Without its comments.
    pub(super) code: String,
    pub(super) imports: Vec<Import>,
}

/// The files read, and problems with others.
#[derive(Debug, Default)]
pub(super) struct SourceReader {
    pub(super) files: Vec<SourceFile>,
    pub(super) findings: Vec<InspectionFinding>,
    seen: BTreeSet<PathBuf>,
    bytes: u64,
    tried: usize,
}

fn finding(problem: bool, text: String, next: &str) -> InspectionFinding {
    InspectionFinding { problem, what: "file", place: None, text, next: next.to_owned() }
}

impl SourceReader {
    /// Reads all files that a start leads to.
    pub(super) fn read(kind: ProgramKind, start: &ScriptSource, directory: &Path) -> Self {
        let mut sources = Self::default();
        let mut waiting = VecDeque::new();
        match start {
            ScriptSource::Nowhere => {}
            ScriptSource::Inline(option, code) => {
                let mut code = code.clone();
                code.truncate(code.floor_char_boundary(FILE_BYTES_MAX as usize));
                let looked =
                    InspectedFile { file: (*option).to_owned(), bytes: code.len() as u64, cut: false };
                let path = directory.join("-");
                sources.take(kind, &path, directory, looked, &code, &mut waiting);
            }
            ScriptSource::File(path) => sources.first(kind, &directory.join(path), path, &mut waiting),
            ScriptSource::Module(name) => {
                let place = directory.join(name.replace('.', "/"));
                let files = [place.with_extension("py"), place.join("__main__.py")];
                // Installed modules are not inspected.
                if let Some(path) = files.into_iter().find(|path| path.is_file()) {
                    let shown = path.strip_prefix(directory).unwrap_or(&path).to_owned();
                    sources.first(kind, &path, &shown, &mut waiting);
                }
            }
        }
        let root = match start {
            ScriptSource::File(path) => directory.join(path).parent().unwrap_or(directory).to_owned(),
            _ => directory.to_owned(),
        };
        while let Some((kind, path)) = waiting.pop_front() {
            if sources.files.len() >= FILES_MAX || sources.bytes >= BYTES_MAX {
                let text = format!("the program has more files than were inspected ({FILES_MAX})");
                sources.findings.push(finding(false, text, "a recording says what was captured"));
                break;
            }
            let shown: PathBuf = path.strip_prefix(directory).unwrap_or(&path).components().collect();
            let shown = shown.display().to_string();
            // An unreadable import is the program's own problem.
            if let Ok((looked, text)) = sources.load(&path, &shown) {
                sources.take(kind, &path, &root, looked, &text, &mut waiting);
            }
        }
        sources
    }

    /// Reads the file named by the command line; failing to read it is a problem.
    fn first(
        &mut self,
        kind: ProgramKind,
        path: &Path,
        shown: &Path,
        waiting: &mut VecDeque<(ProgramKind, PathBuf)>,
    ) {
        let shown = shown.display().to_string();
        self.is_new_file(path);
        match self.load(path, &shown) {
            Ok((looked, text)) => {
                let root = path.parent().unwrap_or(Path::new(".")).to_owned();
                self.take(kind, path, &root, looked, &text, waiting);
            }
            Err(why) => {
                let next = "check the file's name, its permissions and the working directory";
                self.findings.push(finding(true, format!("{shown} cannot be inspected: {why}"), next));
            }
        }
    }

    /// Reads the beginning of a file.
    fn load(&mut self, path: &Path, shown: &str) -> Result<(InspectedFile, String), String> {
        let file = open_regular(path).map_err(|error| error.to_string())?;
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        self.bytes += bytes.len() as u64;
        if memchr::memchr(0, &bytes[..bytes.len().min(BINARY_BYTES)]).is_some() {
            return Err("it is not text".to_owned());
        }
        let looked = InspectedFile {
            file: shown.to_owned(),
            bytes: bytes.len() as u64,
            cut: length > bytes.len() as u64,
        };
        if looked.cut {
            let text = format!("only the first {FILE_BYTES_MAX} bytes of {shown} were inspected");
            self.findings.push(finding(false, text, "a recording says what was captured"));
        }
        Ok((looked, String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn take(
        &mut self,
        kind: ProgramKind,
        path: &Path,
        root: &Path,
        looked: InspectedFile,
        text: &str,
        waiting: &mut VecDeque<(ProgramKind, PathBuf)>,
    ) {
        let code = without_comments(text, kind);
        let imports = imports(&code, kind);
        let here = path.parent().unwrap_or(root);
        for import in &imports {
            for path in import_paths(kind, import, here, root) {
                let kind = if kind == ProgramKind::Shell {
                    kind_of_script(&import.name).unwrap_or(kind)
                } else {
                    kind
                };
                if waiting.len() < FILES_MAX && self.is_new_file(&path) {
                    waiting.push_back((kind, path));
                }
            }
        }
        self.files.push(SourceFile { kind, looked, code, imports });
    }

    /// Whether it is a file that was not read before under any name.
    fn is_new_file(&mut self, path: &Path) -> bool {
        self.tried += 1;
        self.tried <= TRIED_MAX
            && path.is_file()
            && path.canonicalize().is_ok_and(|path| self.seen.insert(path))
    }
}

/// Paths where the local file of an import may be.
fn import_paths(kind: ProgramKind, import: &Import, here: &Path, root: &Path) -> Vec<PathBuf> {
    match kind {
        ProgramKind::Python => {
            let name = import.name.trim_start_matches('.');
            let dots = import.name.len() - name.len();
            let mut place = if dots == 0 { root } else { here };
            for _ in 1..dots.min(8) {
                place = place.parent().unwrap_or(place);
            }
            if name.contains('/') {
                return Vec::new();
            }
            let place = place.join(name.replace('.', "/"));
            let mut found = vec![place.join("__init__.py")];
            if !name.is_empty() {
                found.insert(0, with_extension(&place, "py"));
            }
            found.extend(
                import
                    .parts
                    .iter()
                    .filter(|part| !part.contains('/'))
                    .map(|part| place.join(format!("{part}.py"))),
            );
            found
        }
        ProgramKind::Node if import.name.starts_with('.') => {
            let place = here.join(&import.name);
            let mut found = vec![place.clone()];
            found.extend(JAVASCRIPT_ENDS.map(|end| with_extension(&place, end)));
            // TypeScript imports name the compiled file.
            found.push(place.with_extension("ts"));
            found.extend(JAVASCRIPT_ENDS.map(|end| place.join(format!("index.{end}"))));
            found
        }
        ProgramKind::Shell if kind_of_script(&import.name).is_some() => {
            vec![here.join(&import.name), root.join(&import.name)]
        }
        _ => Vec::new(),
    }
}

/// The path with this extension instead of its own.
fn with_extension(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".");
    path.push(end);
    path.into()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files that a user would have")]
mod tests {
    use super::*;

    fn read(
        files: &[(&str, &[u8])],
        kind: ProgramKind,
        start: &ScriptSource,
    ) -> (Vec<String>, Vec<InspectionFinding>) {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let sources = SourceReader::read(kind, start, directory.path());
        (sources.files.into_iter().map(|source| source.looked.file).collect(), sources.findings)
    }

    #[test]
    fn imported_files_are_read_once() {
        let files: [(&str, &[u8]); 6] = [
            ("app/main.py", b"import near, openai\nfrom pkg.deep import x\nfrom pkg import part\n"),
            ("app/near.py", b"import main\nimport near"),
            ("app/pkg/__init__.py", b"from . import part\nfrom ..near import y"),
            ("app/pkg/deep.py", b"from .. import near"),
            ("app/pkg/part.py", b""),
            ("app/openai.txt", b""),
        ];
        let (mut looked, findings) =
            read(&files, ProgramKind::Python, &ScriptSource::File("app/main.py".into()));
        assert_eq!(looked.remove(0), "app/main.py");
        looked.sort();
        assert_eq!(looked, ["app/near.py", "app/pkg/__init__.py", "app/pkg/deep.py", "app/pkg/part.py"]);
        assert_eq!(findings, []);
        let files: [(&str, &[u8]); 4] = [
            ("src/a.ts", b"import x from './lib/b.js'; import y from './c'; import 'openai'"),
            ("src/lib/b.ts", b"export * from '../a'"),
            ("src/c/index.js", b""),
            ("src/openai.js", b""),
        ];
        let (looked, _) = read(&files, ProgramKind::Node, &ScriptSource::File("src/a.ts".into()));
        assert_eq!(looked, ["src/a.ts", "src/lib/b.ts", "src/c/index.js"]);
        let files: [(&str, &[u8]); 2] =
            [("run.sh", b"python3 ./agent.py \"$@\""), ("agent.py", b"import openai")];
        let (looked, _) = read(&files, ProgramKind::Shell, &ScriptSource::File("run.sh".into()));
        assert_eq!(looked, ["run.sh", "agent.py"]);
        let (looked, _) =
            read(&[("m/__main__.py", b"")], ProgramKind::Python, &ScriptSource::Module("m".into()));
        assert_eq!(looked, ["m/__main__.py"]);
    }

    #[test]
    fn binary_files_are_reported_and_long_files_are_cut() {
        let start = ScriptSource::File("a.py".into());
        let problem = |files: &[(&str, &[u8])]| {
            let (looked, findings) = read(files, ProgramKind::Python, &start);
            assert!(looked.is_empty() && findings[0].problem, "{findings:?}");
            findings[0].text.clone()
        };
        assert!(problem(&[("a.py", b"a\0b")]).contains("not text"));
        assert!(problem(&[("a.py/b", b"")]).contains("directory"));
        assert!(problem(&[]).contains("a.py cannot be inspected"));
        let long = b"import openai\n".repeat(100_000);
        let (looked, findings) = read(&[("a.py", &long)], ProgramKind::Python, &start);
        assert_eq!((looked.len(), findings.len(), findings[0].problem), (1, 1, false));
        let (looked, _) = read(&[("a.py", b"\xff\xfeimport \xc3")], ProgramKind::Python, &start);
        assert_eq!(looked.len(), 1);
    }

    #[test]
    fn import_loops_and_pipes_do_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink(path("loop.py"), path("loop.py")).unwrap();
        std::os::unix::fs::symlink(".", path("again")).unwrap();
        std::fs::write(path("a.py"), "import loop\nimport again.again.a\nimport pipe").unwrap();
        let made = std::process::Command::new("mkfifo").arg(path("pipe.py")).status();
        assert!(made.unwrap().success());
        let looked = |name: &str| {
            SourceReader::read(ProgramKind::Python, &ScriptSource::File(name.into()), directory.path())
        };
        assert_eq!(looked("a.py").files.len(), 1);
        assert!(looked("pipe.py").findings[0].problem && looked("loop.py").findings[0].problem);
        // A very long chain of imports is followed up to the limit.
        for number in 0..200 {
            std::fs::write(path(&format!("m{number}.py")), format!("import m{}", number + 1)).unwrap();
        }
        let many = looked("m0.py");
        assert_eq!((many.files.len(), many.findings.len()), (FILES_MAX, 1));
    }
}
