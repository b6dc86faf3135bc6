//! The `annals` binary as its user sees it: arguments in; output, errors and exit codes out.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agent_doctor;
mod base_addresses;
mod blame;
mod commands;
mod damage;
mod decisions;
mod demo;
mod diagnostics;
mod disturbances;
mod embedders;
mod errors;
mod import;
mod keys;
mod ledger;
mod live_replay;
mod mcp;
mod memory;
#[cfg(target_os = "linux")]
mod network;
mod nondet;
mod order;
mod page;
mod peak_memory;
mod program;
mod reading;
mod real_input;
mod recall_interfaces;
mod record;
mod redaction;
mod retention;
mod rules;
mod run_memory;
mod secrets;
mod serve;
mod sharing;
mod suspect;
mod tapes;
mod terminal;
mod transcripts;
mod upkeep;
mod upstream;
mod validate;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A working directory of its own for one test.
struct CliBench {
    directory: tempfile::TempDir,
}

impl CliBench {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        name.to_owned()
    }

    fn command<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annals"));
        command
            .args(args)
            .current_dir(self.directory.path())
            .env_remove("ANNALS_STORE")
            .env_remove("NO_COLOR");
        command
    }

    /// Runs a command line, split at spaces.
    fn run(&self, line: &str) -> ProcessResult {
        self.run_args(line.split_whitespace())
    }

    fn run_args<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> ProcessResult {
        ProcessResult::from_output(self.command(args).stdin(Stdio::null()).output().unwrap())
    }

    fn pipe(&self, line: &str, input: &[u8]) -> ProcessResult {
        let mut command = self.command(line.split_whitespace());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::Builder::new().spawn(move || drop(stdin.write_all(&input))).unwrap();
        let done = ProcessResult::from_output(child.wait_with_output().unwrap());
        writer.join().unwrap();
        done
    }
}

/// Exit code and output of a finished command.
#[derive(Debug)]
struct ProcessResult {
    code: i32,
    stdout: Vec<u8>,
    stderr: String,
}

impl ProcessResult {
    fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Standard output of a command that succeeded and printed nothing to standard error.
    #[track_caller]
    fn ok(self) -> Vec<u8> {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", String::from_utf8_lossy(&self.stdout));
        self.stdout
    }

    /// As [`ProcessResult::ok`], for the first writer after a kill: it may say that it cut a half-written batch.
    /// A test took this note for a failure when a kill hit the middle of a write.
    #[track_caller]
    fn ok_after_kill(mut self) -> Vec<u8> {
        let is_note = |line: &str| line.starts_with("annals: the store was not closed cleanly. Cut ");
        self.stderr = self.stderr.lines().filter(|line| !is_note(line)).collect();
        self.ok()
    }

    #[track_caller]
    fn text(self) -> String {
        String::from_utf8(self.ok()).unwrap()
    }

    /// Standard output as JSON lines.
    #[track_caller]
    fn json(self) -> Vec<serde_json::Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Checks that the command failed with this exit code and printed a hint. Returns the error's text.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        let mut lines = self.stderr.lines();
        let error =
            lines.next().unwrap_or_default().strip_prefix("error: ").expect("an error line").to_owned();
        assert!(lines.next().is_some_and(|line| line.starts_with("hint: ")), "{}", self.stderr);
        error
    }
}

/// Two runs as lines: one with a tool call, one that failed. Neither has a user message, so both expansions
/// give the same frames.
const LINES: &str = concat!(
    r#"{"id":"a","reward":1,"model":"m","messages":[{"role":"system","content":"caf\u00e9"},"#,
    r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"find","arguments":"{}"}}]},"#,
    r#"{"role":"tool","tool_call_id":"c","content":"-0"},{"role":"assistant", "content":"done"}]}"#,
    "\n",
    r#"{"id":"b","reward":0,"messages":[{"role":"assistant","content":"no"}]}"#,
    "\n"
);

/// The file of runs that is in the repository.
fn bundled_runs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/tau-airline-cut.json.xz")
}
