//! The engine uses locks, atomics, channels and threads through `engine/store/src/sync.rs` only. The scheduler of
//! `engine/tests/schedules` cannot see anything else.

use std::path::{Path, PathBuf};

/// Types of the standard library that are allowed everywhere: no thread waits for them.
const ALLOWED_TYPES: [&str; 5] = ["Arc", "Weak", "PoisonError", "TryLockError", "LazyLock"];
/// Paths with these beginnings may be named only in `sync`.
const RESTRICTED_PATHS: [&str; 5] = ["std::sync::", "std::thread", "crossbeam", "spin_loop", "shuttle::"];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !matches!(name, "tests" | "sync") {
            sources(&path, out);
        } else if name.ends_with(".rs") && !matches!(name, "tests.rs" | "sync.rs") {
            out.push(path);
        }
    }
}

/// The restricted uses in a source text.
fn forbidden_imports(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for door in RESTRICTED_PATHS {
        for (at, _) in code.match_indices(door) {
            let rest = &code[at + door.len()..];
            let named = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or_default(),
                None => rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default(),
            };
            let free =
                door == "std::sync::" && named.split(',').all(|name| ALLOWED_TYPES.contains(&name.trim()));
            // `crate::sync::spin_loop` is allowed.
            if !free && !code[..at].ends_with("crate::sync::") {
                found.push(format!("{door}{named}"));
            }
        }
    }
    found
}

#[test]
fn engine_uses_locks_and_threads_through_sync_only() {
    let mut paths = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut paths);
    assert!(paths.len() > 60, "only {} sources were found", paths.len());
    for path in paths {
        let found = forbidden_imports(&std::fs::read_to_string(&path).unwrap());
        assert!(found.is_empty(), "{}: {found:?}; take it from crate::sync", path.display());
    }
    // The check itself detects violations.
    for bad in ["use std::sync::Mutex;", "use std::sync::{Arc, Condvar};", "std::thread::spawn(|| {})"] {
        assert_eq!(forbidden_imports(bad).len(), 1, "{bad}");
    }
    assert!(forbidden_imports("use std::sync::{Arc, PoisonError};\nuse crate::sync::Mutex;").is_empty());
}
