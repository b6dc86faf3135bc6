//! Analyses source text without parsing it: removes comments, finds lines, imports and environment variables.
//!
//! Each pass is linear in the text, and its results are bounded. Text in another language gives wrong
//! findings, never an error.

use memchr::memmem;

use super::report::ProgramKind;

/// Maximum number of imports and of variables collected from one file.
const FOUND_MAX: usize = 1024;
/// Maximum number of lines of a parenthesised list of names.
const NAMES_LINES_MAX: usize = 64;
/// Maximum length of a variable's or package's name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The text with comments, and Python's triple-quoted strings, blanked out. Offsets and lines stay the same.
pub(super) fn without_comments(text: &str, kind: ProgramKind) -> String {
    let from = text.as_bytes();
    let mut bytes = from.to_vec();
    let mut at = 0;
    while at < from.len() {
        let before = at.checked_sub(1).map(|at| from[at]);
        if let Some(length) = comment(&from[at..], kind, before) {
            bytes[at..at + length].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            at += length;
        } else {
            at += quoted(&from[at..], kind).unwrap_or(1);
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

fn to_line_end(rest: &[u8]) -> usize {
    memchr::memchr(b'\n', rest).unwrap_or(rest.len())
}

/// The length of the comment at the beginning of this text.
fn comment(rest: &[u8], kind: ProgramKind, before: Option<u8>) -> Option<usize> {
    let through = |end: &[u8], from: usize| {
        let found = memmem::find(rest.get(from..).unwrap_or_default(), end);
        found.map_or(rest.len(), |at| from + at + end.len())
    };
    match (kind, rest) {
        (ProgramKind::Python, [b'#', ..]) => Some(to_line_end(rest)),
        (ProgramKind::Python, [b'"', b'"', b'"', ..]) => Some(through(b"\"\"\"", 3)),
        (ProgramKind::Python, [b'\'', b'\'', b'\'', ..]) => Some(through(b"'''", 3)),
        (ProgramKind::Shell, [b'#', ..])
            if before.is_none_or(|byte| byte.is_ascii_whitespace() || byte == b';') =>
        {
            Some(to_line_end(rest))
        }
        (ProgramKind::Node, [b'/', b'/', ..]) if before != Some(b':') => Some(to_line_end(rest)),
        (ProgramKind::Node, [b'#', b'!', ..]) if before.is_none() => Some(to_line_end(rest)),
        (ProgramKind::Node, [b'/', b'*', ..]) => Some(through(b"*/", 2)),
        _ => None,
    }
}

/// The length of the quoted string at the beginning of this text; an unclosed string ends with its line.
fn quoted(rest: &[u8], kind: ProgramKind) -> Option<usize> {
    let quote = *rest.first()?;
    let lines = quote == b'`' && kind == ProgramKind::Node;
    if !(lines || matches!(quote, b'"' | b'\'')) {
        return None;
    }
    let escapes = !(kind == ProgramKind::Shell && quote == b'\'');
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'\\' if escapes => at += 1,
            b'\n' if !lines => return Some(at),
            byte if *byte == quote => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
    Some(rest.len())
}

/// The offsets of line beginnings.
pub(super) struct LineIndex(Vec<usize>);

impl LineIndex {
    pub(super) fn new(text: &str) -> Self {
        Self(std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect())
    }

    /// The line number of an offset, from 1.
    pub(super) fn line(&self, at: usize) -> u64 {
        self.0.partition_point(|begin| *begin <= at) as u64
    }

    /// The offset where an offset's line begins.
    pub(super) fn begin(&self, at: usize) -> usize {
        self.0.get(self.0.partition_point(|begin| *begin <= at).wrapping_sub(1)).copied().unwrap_or(0)
    }
}

/// A module, package or command named in a text, with its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// As written: with leading dots or `./` if it is relative.
    pub(super) name: String,
    /// The imported names, which may be modules (Python).
    pub(super) parts: Vec<String>,
    pub(super) at: usize,
}

/// The imports of a text; for a shell script, words that may be commands or scripts.
pub(super) fn imports(code: &str, kind: ProgramKind) -> Vec<Import> {
    let mut found = match kind {
        ProgramKind::Python => python_imports(code),
        ProgramKind::Node => node_imports(code),
        ProgramKind::Shell | ProgramKind::Other => shell_words(code),
    };
    found.truncate(FOUND_MAX);
    found
}

fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',').filter_map(|part| part.split_whitespace().next()).take(64).map(str::to_owned)
}

fn python_imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let mut lines = code.split_inclusive('\n');
    let mut begin = 0;
    while let Some(line) = lines.next() {
        let at = begin;
        begin += line.len();
        if found.len() >= FOUND_MAX {
            break;
        }
        for statement in line.split(';').map(str::trim) {
            if let Some(list) = statement.strip_prefix("import ") {
                found.extend(names(list).map(|name| Import { name, parts: Vec::new(), at }));
            } else if let Some((module, list)) =
                statement.strip_prefix("from ").and_then(|rest| rest.split_once(" import"))
            {
                let mut list = list.trim().to_owned();
                if list.starts_with('(') {
                    for _ in 0..NAMES_LINES_MAX {
                        if list.contains(')') {
                            break;
                        }
                        let Some(line) = lines.next() else { break };
                        begin += line.len();
                        list.push_str(line);
                    }
                }
                let parts = names(list.trim_matches(|c: char| matches!(c, '(' | ')') || c.is_whitespace()));
                found.push(Import { name: module.trim().to_owned(), parts: parts.collect(), at });
            }
        }
    }
    found
}

fn node_imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for word in ["from", "import", "require"] {
        for at in memmem::find_iter(code.as_bytes(), word).take(FOUND_MAX * 4) {
            let before = code[..at].chars().next_back();
            let rest = code[at + word.len()..].trim_start_matches([' ', '\t', '(', '\r', '\n']);
            let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'' | '`')) else { continue };
            let name = head(&rest[1..]);
            let Some(end) = name.find(quote) else { continue };
            if before.is_none_or(|c| !is_name(c) && c != '.') && end > 0 {
                found.push(Import { name: name[..end].to_owned(), parts: Vec::new(), at });
            }
        }
    }
    found.sort_by_key(|import| import.at);
    found
}

/// The beginning of a text, at most as long as a name, cut between characters.
fn head(text: &str) -> &str {
    let mut end = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn shell_words(code: &str) -> Vec<Import> {
    let apart =
        |c: char| c.is_whitespace() || matches!(c, '|' | ';' | '&' | '(' | ')' | '`' | '"' | '\'' | '=');
    let mut found = Vec::new();
    let mut at = 0;
    for word in code.split_inclusive(apart) {
        let name = word.trim_end_matches(apart);
        let base = name.rsplit('/').next().unwrap_or(name);
        let script = super::command::kind_of_script(name).is_some();
        if name.len() <= NAME_BYTES_MAX
            && (script || super::clients::known(ProgramKind::Shell, base).is_some())
        {
            let name = if script { name } else { base };
            found.push(Import { name: name.to_owned(), parts: Vec::new(), at });
        }
        at += word.len();
        if found.len() >= FOUND_MAX {
            break;
        }
    }
    found
}

/// An environment variable that a text reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvRead {
    pub(super) name: String,
    pub(super) at: usize,
}

pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The environment variables that a text reads, in order.
pub(super) fn env_reads(code: &str, kind: ProgramKind) -> Vec<EnvRead> {
    let ways: &[&str] = match kind {
        ProgramKind::Python => &["environ", "getenv"],
        ProgramKind::Node => &["process.env", "Deno.env", "Bun.env"],
        ProgramKind::Shell | ProgramKind::Other => &["$"],
    };
    let mut found = Vec::new();
    for way in ways {
        for at in memmem::find_iter(code.as_bytes(), way).take(FOUND_MAX * 4) {
            let rest = head(&code[at + way.len()..]);
            let rest = rest.strip_prefix(".get").unwrap_or(rest);
            let rest = match kind {
                ProgramKind::Python | ProgramKind::Node => {
                    rest.trim_start_matches([' ', '.', '[', '(', '{', '"', '\'', '`'])
                }
                ProgramKind::Shell | ProgramKind::Other => rest.strip_prefix('{').unwrap_or(rest),
            };
            let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
            if !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) {
                found.push(EnvRead { name: name.to_owned(), at });
            }
        }
    }
    found.sort_by_key(|read| read.at);
    found.truncate(FOUND_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(code: &str, kind: ProgramKind) -> Vec<String> {
        imports(&without_comments(code, kind), kind).into_iter().map(|import| import.name).collect()
    }

    #[test]
    fn comments_are_blanked_and_texts_stay() {
        let python = "a = '#x' # https://a\n\"\"\"doc\n# 'é\"\"\"\nb = \"it's\" # é\n";
        let code = without_comments(python, ProgramKind::Python);
        assert_eq!((code.len(), code.lines().count()), (python.len(), 4));
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "=", "'#x'", "b", "=", "\"it's\""]);
        let code = without_comments("x('https://a') // b\n/* c\n */ y(`\n//d`)", ProgramKind::Node);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["x('https://a')", "y(`", "//d`)"]);
        let code = without_comments("curl https://a/#b # c\necho \"${#d}\"", ProgramKind::Shell);
        assert_eq!(code.trim_end(), "curl https://a/#b    \necho \"${#d}\"");
        for odd in ["'", "\"\"\"", "/*", "`\\", "\\", "'\\", "\u{feff}#", "'''é"] {
            for kind in [ProgramKind::Python, ProgramKind::Node, ProgramKind::Shell, ProgramKind::Other] {
                assert_eq!(without_comments(odd, kind).len(), odd.len(), "{odd:?}");
            }
        }
    }

    #[test]
    fn imports_are_found_in_each_language() {
        let python = "import os, openai as o; import a.b\nif x:\n  from .near import y\n'''\nimport not_me\n'''\n# import nor_me\n";
        assert_eq!(named(python, ProgramKind::Python), ["os", "openai", "a.b", ".near"]);
        let many =
            imports("from google import (\n  genai,  \n  types as t,\n)\nimport x", ProgramKind::Python);
        assert_eq!(many[0].parts, ["genai", "types"]);
        assert_eq!(many[1].name, "x");
        let node = "import OpenAI from \"openai\"; // from 'no'\nconst a = require('./a.js');\nimport(`b`);\nimport 'c'\nimported('d'); Array.from('e')";
        assert_eq!(named(node, ProgramKind::Node), ["openai", "./a.js", "b", "c"]);
        let shell = "x=$(curl -s y | jq .) # wget\npython3 tools/run.py && . ./lib.sh\n/usr/bin/curl z";
        assert_eq!(named(shell, ProgramKind::Shell), ["curl", "tools/run.py", "./lib.sh", "curl"]);
    }

    #[test]
    fn environment_reads_are_found() {
        let of = |code: &str, kind| -> Vec<String> {
            env_reads(code, kind).into_iter().map(|read| read.name).collect()
        };
        let python = "os.environ['A'], os.environ.get( \"B\", 1), os.getenv('C'), os.environ";
        assert_eq!(of(python, ProgramKind::Python), ["A", "B", "C"]);
        assert_eq!(
            of("process.env.A ?? process.env['B'] ?? Deno.env.get('C')", ProgramKind::Node),
            ["A", "B", "C"]
        );
        assert_eq!(of("$A ${B:-x} $1 $( ls )", ProgramKind::Shell), ["A", "B"]);
    }

    #[test]
    fn lines_are_counted_from_one() {
        let lines = LineIndex::new("a\nbc\n");
        assert_eq!([0, 1, 2, 3, 5].map(|at| lines.line(at)), [1, 1, 2, 2, 3]);
        assert_eq!([0, 1, 2, 3, 5].map(|at| lines.begin(at)), [0, 0, 2, 2, 5]);
    }
}
