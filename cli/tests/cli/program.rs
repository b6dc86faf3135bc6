//! The recorded program: its command, its input, processes that it leaves behind, and the closing line of the
//! recording.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

impl CliBench {
    /// `annals record` with this command of the agent, not yet started.
    fn recording(&self, upstream: &FakeUpstream, options: &[&str], doing: &[&str]) -> Command {
        let agent = agent();
        let mut args = vec!["record", "--upstream", &upstream.url];
        args.extend(options);
        args.extend(["--", "python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Frames of a run.
    fn frames_of(&self, run: &str) -> Vec<Value> {
        self.run(&format!("replay {run} --json")).json()
    }

    /// The first frame of this component in a run, if there is one.
    fn frame(&self, run: &str, component: &str) -> Option<Value> {
        self.frames_of(run).into_iter().find(|frame| frame["component"] == component)
    }
}

fn done(command: &mut Command) -> ProcessResult {
    ProcessResult::from_output(command.output().unwrap())
}

/// Runs a command with this input on standard input, followed by the end of input.
fn fed(command: &mut Command, input: &[u8]) -> ProcessResult {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // A program that does not read all of it breaks the pipe.
    let writer = std::thread::Builder::new().spawn(move || drop(stdin.write_all(&input))).unwrap();
    let done = ProcessResult::from_output(child.wait_with_output().unwrap());
    writer.join().unwrap();
    done
}

fn stdout(done: &ProcessResult) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Reads standard error until a line contains this text.
fn wait_for(stderr: &mut BufReader<ChildStderr>, what: &str) {
    let (mut all, mut line) = (String::new(), String::new());
    while !line.contains(what) {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{what:?} is not in {all}");
        all += &line;
    }
}

fn ended(mut child: Child, mut stderr: BufReader<ChildStderr>) -> ProcessResult {
    let (mut said, mut told) = (String::new(), Vec::new());
    stderr.read_to_string(&mut said).unwrap();
    child.stdout.take().unwrap().read_to_end(&mut told).unwrap();
    ProcessResult { code: child.wait().unwrap().code().unwrap(), stdout: told, stderr: said }
}

/// Regression: requests were counted when they came, not when the store acknowledged them. On a full disk a
/// recording printed `recorded 20 requests` and ended with 0, but the store held ten.
#[test]
fn a_full_disk_is_an_error_that_counts_stored_requests() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let record = bench.recording(&upstream, &["--run", "full"], &["bulky", "20", "20000"]);
    let mut command = Command::new("sh");
    // The limit on file size, in blocks of 512 bytes, stands for a full disk.
    command.args(["-c", "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\""]).arg(record.get_program());
    command.args(record.get_args()).current_dir(bench.path("")).env_remove("ANNALS_STORE");
    command.env_remove("OPENAI_BASE_URL").env("OPENAI_API_KEY", "sk-a-real-secret");
    let recorded = done(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert_eq!((recorded.code, stdout(&recorded).lines().count()), (1, 20), "{}", recorded.stderr);
    says(&recorded, &[" of 20 requests are stored: the disk is full", "; the program ended with 0"]);
    assert_eq!(recorded.stderr.matches("error: ").count(), 1, "{}", recorded.stderr);
    let error = recorded.stderr.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
    let stored: usize = error.split(' ').next().unwrap().parse().unwrap();
    assert!((1..20).contains(&stored), "{error}");
    says(&recorded, &[&format!("recorded {stored} request")]);
    let whole = |frame: &&Value| frame["component"] == "llm" && frame["incomplete"] != true;
    assert_eq!(bench.frames_of("full").iter().filter(whole).count(), stored);
    assert_eq!(bench.run("verify").code, 0);
}

/// Regression: a mistyped command left a failed run without frames in the store. `annals replay` then used it
/// as the last run.
#[test]
fn a_command_that_cannot_be_started_leaves_no_run() {
    use std::os::unix::fs::PermissionsExt;
    let bench = CliBench::new();
    bench.write("not-executable", "x");
    bench.write("no-format", "\x01\x02 no program");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bench.path("no-format"), mode).unwrap();
    let cases = [
        ("pyhton-of-nobody", 127),
        ("./nowhere", 127),
        ("./not-executable", 126),
        ("/", 126),
        ("./no-format", 126),
    ];
    for (command, code) in cases {
        let done = bench.run_args(["record", "--", command, "agent.py"]);
        assert_eq!(done.code, code, "{done:?}");
        says(&done, &["error: ", "cannot be started", "hint: "]);
        assert!(bench.run("runs --json").json().is_empty(), "{command}");
    }
    let upstream = FakeUpstream::start();
    assert_eq!(bench.record(&upstream.url, "r", &["swapped", "a,b"]).code, 0);
    let forked =
        bench.command(["fork", "r@1", "child", "--", "pyhton-of-nobody"]).env("OPENAI_API_KEY", "x").output();
    assert_eq!(ProcessResult::from_output(forked.unwrap()).code, 127);
    assert_eq!(bench.run("runs --json").json().len(), 1);
}

/// Regression: standard input was not recorded. A replay of `annals record -- python agent.py < file` read
/// the terminal.
#[test]
fn standard_input_is_recorded_and_replayed() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let large: Vec<u8> =
        (0..10_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (run, input) in [("large", large.as_slice()), ("small", b"a\0b"), ("empty", b"")] {
        let recorded = fed(&mut bench.recording(&upstream, &["--run", run], &["reads"]), input);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        assert!(stdout(&recorded).starts_with(&format!("{} ", input.len())), "{run}");
        let replayed = bench.replay(&[run], &[]);
        assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&recorded)), "{}", replayed.stderr);
        // The recorded input wins over input that a user pipes into the replay.
        let live = fed(
            bench.command(["replay", run, "--stdin", "live"]).stdout(Stdio::piped()).stderr(Stdio::piped()),
            b"other",
        );
        assert_eq!((live.code, live.stdout.starts_with(b"5 ")), (3, true), "{live:?}");
    }
    let frame = bench.frame("small", "stdin").unwrap();
    assert_eq!((&frame["output"], bench.frame("empty", "stdin")), (&Value::from("a\0b"), None));
    let raw = bench.run("replay large --raw").ok();
    assert!(raw.windows(1000).any(|part| part == &large[5_000_000..5_001_000]));
}

#[test]
fn a_fork_reads_what_its_parent_had_read() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = fed(&mut bench.recording(&upstream, &["--run", "r"], &["reads"]), b"something");
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let forked = bench
        .command(["fork", "r@1", "child", "--model", "m-2"])
        .env("OPENAI_API_KEY", "x")
        .stdin(Stdio::null())
        .output();
    let forked = ProcessResult::from_output(forked.unwrap());
    assert_eq!((forked.code, forked.stdout.starts_with(b"9 ")), (0, true), "{forked:?}");
    let replayed = bench.replay(&["child"], &[]);
    assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&forked)), "{}", replayed.stderr);
    let agent = agent();
    let mut live = bench.command([
        "replay",
        "r",
        "--on-divergence",
        "live",
        "--into",
        "on",
        "--",
        "python3",
        "-B",
        &agent,
        "reads",
        "4",
    ]);
    let live =
        ProcessResult::from_output(live.env("OPENAI_API_KEY", "x").stdin(Stdio::null()).output().unwrap());
    assert_eq!((live.code, live.stdout.starts_with(b"4 ")), (3, true), "{live:?}");
    let replayed = bench.replay(&["on"], &[]);
    assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&live)), "{}", replayed.stderr);
}

#[test]
fn program_that_reads_little_input_ends_at_once() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let large = vec![b'x'; 10_000_000];
    let some = fed(&mut bench.recording(&upstream, &["--run", "some"], &["reads", "10"]), &large);
    assert_eq!((some.code, some.stdout.starts_with(b"10 ")), (0, true), "{some:?}");
    assert_eq!(stdout(&bench.replay(&["some"], &[])), stdout(&some));
    let none = fed(&mut bench.recording(&upstream, &["--run", "none"], &["swapped", "a"]), &large);
    assert_eq!(none.code, 0, "{none:?}");
    assert_eq!(bench.replay(&["none"], &[]).code, 0);
    // Standard input stays open and never has a byte.
    let mut open = bench.recording(&upstream, &["--run", "open"], &["swapped", "a"]);
    let mut child = open.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    assert_eq!(ProcessResult::from_output(child.wait_with_output().unwrap()).code, 0);
    drop(stdin);
    assert_eq!(bench.frame("open", "stdin"), None);
    // Standard input is closed.
    let record = bench.recording(&upstream, &["--run", "closed"], &["swapped", "a"]);
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" \"$@\" <&-"]).arg(record.get_program()).args(record.get_args());
    closed.current_dir(bench.path("")).env("OPENAI_API_KEY", "x").env_remove("OPENAI_BASE_URL");
    assert_eq!(done(closed.stdout(Stdio::piped()).stderr(Stdio::piped())).code, 0);
}

/// A recorder in a `while read` loop of a shell must not consume the remaining lines of the loop.
#[test]
fn a_shell_loop_over_a_file_keeps_its_lines() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.write("list", "one\ntwo\nthree\n");
    for options in ["", "--no-stdin"] {
        let loops = format!(
            "while read -r word; do \"$0\" record {options} --upstream {} -- python3 -B '{}' swapped $word; done < list",
            upstream.url,
            agent()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &loops, env!("CARGO_BIN_EXE_annals")]).current_dir(bench.path(""));
        shell.env("OPENAI_API_KEY", "x").env_remove("OPENAI_BASE_URL").env_remove("ANNALS_STORE");
        let looped = done(shell.stdout(Stdio::piped()).stderr(Stdio::piped()));
        assert_eq!(stdout(&looped), "one 200\ntwo 200\nthree 200\n", "{}", looped.stderr);
    }
}

#[test]
fn untouched_input_and_terminals_are_not_recorded() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = fed(&mut bench.recording(&upstream, &["--run", "r", "--no-stdin"], &["reads"]), b"abc");
    assert_eq!((recorded.code, recorded.stdout.starts_with(b"3 ")), (0, true), "{recorded:?}");
    assert_eq!(bench.frame("r", "stdin"), None);
    let replayed = fed(bench.command(["replay", "r"]).stdout(Stdio::piped()).stderr(Stdio::piped()), b"abc");
    assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&recorded)), "{}", replayed.stderr);
    let refused = bench.run("replay r --stdin recorded").failed(2);
    assert!(refused.contains("standard input of run `r` was not recorded"), "{refused}");
    // The program gets the terminal itself.
    let spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let asks = "import sys; print('a terminal:', sys.stdin.isatty())";
    let mut python = Command::new("python3");
    python.args(["-c", spawn, env!("CARGO_BIN_EXE_annals"), "record", "--allow-empty", "--run", "tty", "--"]);
    python.args(["python3", "-c", asks]).current_dir(bench.path("")).env_remove("ANNALS_STORE");
    let tty = done(python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(tty.code == 0 && stdout(&tty).contains("a terminal: True"), "{tty:?}");
    assert_eq!(bench.frame("tty", "stdin"), None);
}

#[test]
fn secrets_are_removed_from_standard_input() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut record = bench.recording(&upstream, &["--run", "r", "--secret", "TOKEN"], &["reads"]);
    let recorded = fed(record.env("TOKEN", "tango-foxtrot-9"), b"a tango-foxtrot-9 b");
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["2 secrets removed"]);
    assert_eq!(bench.frame("r", "stdin").unwrap()["output"], "a annals-redacted b");
}

/// Regression: the proxy ended half a second after the program. Later requests of a grandchild failed, and
/// its output was lost.
#[test]
fn surviving_process_keeps_its_proxy() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for (run, output) in [("loud", ""), ("quiet", "silent")] {
        let go = format!("go-{run}");
        let mut recording = bench.recording(&upstream, &["--run", run], &["leaves", &go, output]);
        let mut child = recording.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        wait_for(&mut stderr, "waiting for 1 process of it: ");
        bench.write(&go, "");
        let recorded = ended(child, stderr);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        says(&recorded, &["recorded 3 requests"]);
        assert_eq!(stdout(&recorded).lines().count(), if run == "loud" { 3 } else { 1 });
        // The file exists now, and the replay also waits for the grandchild.
        let replayed = bench.replay(&[run], &[]);
        assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&recorded)), "{}", replayed.stderr);
        says(&replayed, &["exact 3 of 3"]);
    }
}

#[test]
fn linger_ends_on_ctrl_c_or_timeout() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut child = bench.recording(&upstream, &["--run", "r"], &["leaves", "go"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    wait_for(&mut stderr, "waiting for 1 process of it: ");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let recorded = ended(child, stderr);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(
        &recorded,
        &[
            "error: the recording ended before 1 process of the program: ",
            "agent.py leaves go",
            "; the program ended with 0",
        ],
    );
    assert_eq!(bench.run("runs --json").json()[0]["status"], "ok");
    bench.write("go", "");
    // With `--linger 0s` no process is waited for, and surviving processes are expected.
    let left = done(&mut bench.recording(
        &upstream,
        &["--run", "left", "--linger", "0s"],
        &["leaves", "go2", "silent"],
    ));
    assert_eq!(left.code, 0, "{left:?}");
    bench.write("go2", "");
    let odd = bench.run_args(["record", "--linger", "soon", "--", "true"]);
    assert_eq!(odd.code, 125, "{odd:?}");
    says(&odd, &["--linger takes a time such as 30s"]);
}

/// Regression: a fork stored its parent's command. The closing line names `annals replay child`, which then
/// ran the wrong program.
#[test]
fn forks_and_live_replays_store_the_command_that_ran() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["swapped", "a,b"]).code, 0);
    let agent = agent();
    let mut fork = bench.command(["fork", "r@1", "child", "--", "python3", "-B", &agent, "swapped", "a,c"]);
    let forked =
        ProcessResult::from_output(fork.env("OPENAI_API_KEY", "x").stdin(Stdio::null()).output().unwrap());
    assert_eq!((forked.code, stdout(&forked)), (0, "a 200\nc 200\n".to_owned()), "{forked:?}");
    says(&forked, &["annals replay child"]);
    let mut live = bench.command([
        "replay",
        "r",
        "--on-divergence",
        "live",
        "--into",
        "on",
        "--",
        "python3",
        "-B",
        &agent,
        "swapped",
        "a,d",
    ]);
    let live =
        ProcessResult::from_output(live.env("OPENAI_API_KEY", "x").stdin(Stdio::null()).output().unwrap());
    assert_eq!(live.code, 3, "{live:?}");
    for (run, said) in [("child", &forked), ("on", &live)] {
        let replayed = bench.replay(&[run], &[]);
        assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(said)), "{}", replayed.stderr);
        assert!(
            bench.frame(run, "program").unwrap()["input"]
                .as_str()
                .unwrap()
                .contains(stdout(said)[6..7].trim())
        );
    }
}

/// Regression: arguments were stored unchanged. `--password hunter2` was readable in the run's metadata and
/// in the frame of its program.
#[test]
fn arguments_that_look_like_secrets_are_masked() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let words = ["argued", "--password", "hunter2", "MY_API_KEY=abc-1", "--plain", "word"];
    let mut record = bench.recording(&upstream, &["--run", "r"], &words);
    let recorded = done(record.env("WHERE_IT_IS", "abc-1"));
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["2 arguments masked"]);
    let input = bench.frame("r", "program").unwrap()["input"].as_str().unwrap().to_owned();
    assert!(
        input.ends_with(r#""--password","annals-redacted","MY_API_KEY=annals-redacted","--plain","word"]"#),
        "{input}"
    );
    let refused = bench.replay(&["r"], &[]).failed(2);
    assert!(refused.contains("was masked when it was recorded, and PASSWORD is not set"), "{refused}");
    let mut replay = bench.command(["replay", "r"]);
    let replay = replay.env("PASSWORD", "hunter2").env("WHERE_IT_IS", "abc-1").env_remove("OPENAI_BASE_URL");
    let replayed = ProcessResult::from_output(replay.stdin(Stdio::null()).output().unwrap());
    assert_eq!((replayed.code, stdout(&replayed)), (0, stdout(&recorded)), "{}", replayed.stderr);
    let named = bench.replay(&["r"], &words);
    assert_eq!((named.code, stdout(&named)), (0, stdout(&recorded)), "{}", named.stderr);
}

/// Regression: a word that is not UTF-8 was stored with replacement characters, and a replay started that other command.
#[test]
fn arguments_that_are_not_text_are_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let word = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let recorded = done(bench.recording(&upstream, &["--run", "r"], &["argued"]).arg(word));
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["1 argument not UTF-8: name the command to replay it"]);
    let refused = bench.replay(&["r"], &[]);
    assert_eq!(refused.code, 2, "{refused:?}");
    says(&refused, &["was not UTF-8", "hint: name the command: "]);
    let named = bench.replay(&["r"], &["argued", "other"]);
    assert_ne!(stdout(&named), stdout(&recorded), "{}", named.stderr);
    let mut replay = bench.command(["replay", "r", "--", "python3", "-B", &agent(), "argued"]);
    let replay = replay.arg(word).env("OPENAI_API_KEY", "x").env_remove("OPENAI_BASE_URL");
    let replayed = ProcessResult::from_output(replay.stdin(Stdio::null()).output().unwrap());
    assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
}

/// Regression: no frame named the version of the tool that had answered.
#[test]
fn frames_with_tools_name_the_programs_revision() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "unversioned", &["tools"]).code, 0);
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]);
        let output = command.args(args).current_dir(bench.path("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "a"]);
    let revision = git(&["rev-parse", "HEAD"]);
    assert_eq!(bench.record(&upstream.url, "r", &["tools"]).code, 0);
    let versions = |run: &str| {
        let frames = bench.frames_of(run).into_iter().filter(|frame| frame["component"] == "llm");
        frames.map(|frame| frame["metadata"]["tool_version"].clone()).collect::<Vec<_>>()
    };
    let version = Value::from(revision);
    assert_eq!(versions("r"), [Value::Null, version.clone(), version]);
    assert_eq!(versions("unversioned"), [Value::Null, Value::Null, Value::Null]);
}
