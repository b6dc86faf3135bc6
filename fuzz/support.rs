//! What the `fuzzing` modules of all crates share. Each of them includes this file.

/// A fuzz target: its name, and the function that takes any bytes.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// Takes a byte off the front; 0 at the end.
#[allow(dead_code, reason = "the engine has its own functions that take bytes")]
pub(crate) fn take_byte(data: &mut &[u8]) -> u8 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    *first
}

/// Calls each target with its kept corpus. Inputs that a fuzzer found, including those of fixed bugs, are
/// permanent regression tests.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the corpora are files")]
pub(crate) fn run_kept_corpora(targets: &[FuzzTarget]) {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpora = manifest.ancestors().map(|dir| dir.join("fuzz/corpus")).find(|dir| dir.is_dir());
    let corpora = corpora.expect("a folder above the crate holds fuzz/corpus");
    for (name, target) in targets {
        let dir = corpora.join(name);
        let inputs: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "{} is empty", dir.display());
        for input in &inputs {
            let bytes = std::fs::read(input).unwrap();
            let done = std::panic::catch_unwind(|| target(&bytes));
            assert!(done.is_ok(), "target {name} on {}", input.display());
        }
        println!("{name}: {} inputs", inputs.len());
    }
}
