//! The most memory that commands on large things take.
//!
//! Regression: a value, the table of a run and the frames of an import were held whole, several times over:
//! 1 GiB from standard input took 3.3 GB, and then did not fit into one batch.

#![expect(clippy::disallowed_methods, reason = "files that a user would have")]

use std::fs::File;
use std::process::{Command, Stdio};

use crate::{CliBench, ProcessResult};

impl CliBench {
    /// Runs a command that succeeds; returns the most memory that it had resident, in KiB, and its output.
    fn peak_kib(&self, args: &[&str], stdin: Option<&str>) -> (u64, Vec<u8>) {
        let script = "import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)";
        let mut command = Command::new("python3");
        command.args(["-c", script, env!("CARGO_BIN_EXE_annals")]).args(args).current_dir(self.path(""));
        command.stdin(stdin.map_or_else(Stdio::null, |name| File::open(self.path(name)).unwrap().into()));
        let done = ProcessResult::from_output(command.output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        let peak = done.stderr.lines().find_map(|line| line.strip_prefix("peak ")).unwrap().parse().unwrap();
        (peak, done.stdout)
    }
}

#[test]
fn put_streams_a_long_value_in_bounded_memory() {
    const BYTES: usize = 192 << 20;
    let bench = CliBench::new();
    // Bytes that no compression makes fewer.
    let mut state = 7u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let value: Vec<u8> = words.take(BYTES / 8).flatten().collect();
    bench.write("value", &value);
    let (peak, _) = bench.peak_kib(&["put", "k", "-"], Some("value"));
    assert!(peak < 140 << 10, "{peak} KiB");
    assert!(bench.run("get k").ok() == value);
    // A value of the length at which streaming begins, and one byte fewer.
    for length in [64 << 10, (64 << 10) - 1] {
        let value = &value[..length];
        bench.pipe("put short -", value).ok();
        assert!(bench.run("get short").ok() == value, "{length}");
    }
}

#[test]
fn run_of_many_frames_is_imported_and_shown_in_bounded_memory() {
    const FRAMES: usize = 200_000;
    let bench = CliBench::new();
    let line =
        |n: usize| format!(r#"{{"run":"r","component":"tool","input":"call {n}","output":"result {n}"}}"#);
    let lines: Vec<String> = (0..FRAMES).map(line).collect();
    bench.write("frames.jsonl", lines.join("\n"));
    let (peak, told) = bench.peak_kib(&["import", "--format", "frames", "frames.jsonl"], None);
    assert!(told.starts_with(b"imported 1 run, 200,000 frames, "), "{}", String::from_utf8_lossy(&told));
    assert!(peak < 115 << 10, "{peak} KiB");
    let (peak, shown) = bench.peak_kib(&["show", "r"], None);
    assert!(peak < 100 << 10, "{peak} KiB");
    // Each table of 4,096 frames has its header; no frame is missing.
    let shown = String::from_utf8(shown).unwrap();
    let rows = shown.lines().filter(|line| line.contains("tool") && line.contains("result ")).count();
    assert_eq!(rows, FRAMES);
    assert_eq!(
        shown.lines().filter(|line| line.trim_start().starts_with("SEQ")).count(),
        FRAMES.div_ceil(4096)
    );
    bench.run("verify r").ok();
}
