//! Several recorders that share one store.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// A running recorder.
struct RecorderProcess {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    /// Output of its program so far.
    told: Vec<u8>,
}

impl CliBench {
    fn recorder(&self, upstream: &FakeUpstream, options: &[&str], doing: &[&str]) -> RecorderProcess {
        let agent = agent();
        let mut args = vec!["record", "--upstream", &upstream.url];
        args.extend(options);
        args.extend(["--", "python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        RecorderProcess::spawn(command)
    }

    /// Status of a run in the current list.
    fn status(&self, run: &str) -> String {
        let listed = self.run("runs --json").json();
        let row = listed.iter().find(|row| row["id"] == run).expect("the run is listed");
        row["status"].as_str().unwrap().to_owned()
    }

    /// Waits until a run has ended; returns its status.
    fn ended(&self, run: &str) -> String {
        loop {
            match self.status(run) {
                status if status != "open" => return status,
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    #[track_caller]
    fn replays(&self, run: &str, recorded: &ProcessResult) {
        let replayed = self.replay(&[run], &[]);
        let stdout = String::from_utf8_lossy(&recorded.stdout);
        assert_eq!(
            (replayed.code, &*String::from_utf8_lossy(&replayed.stdout)),
            (0, &*stdout),
            "{replayed:?}"
        );
        says(&replayed, &["unused 0"]);
        assert!(!replayed.stdout.is_empty());
    }
}

impl RecorderProcess {
    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stdout, stderr, told: Vec::new() }
    }

    /// Waits for a line of the program.
    fn line(&mut self) {
        assert!(self.stdout.read_until(b'\n', &mut self.told).unwrap() > 0, "the program has ended");
    }

    fn done(mut self) -> ProcessResult {
        let mut stderr = String::new();
        self.stdout.read_to_end(&mut self.told).unwrap();
        self.stderr.read_to_string(&mut stderr).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        ProcessResult { code, stdout: self.told, stderr }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The parts of frames that do not depend on the time of the recording.
fn shapes(bench: &CliBench, run: &str) -> Vec<serde_json::Value> {
    let mut frames = bench.run(&format!("replay {run} --json")).json();
    for frame in &mut frames {
        let frame = frame.as_object_mut().unwrap();
        let metadata = frame["metadata"].as_object_mut().unwrap();
        // The upstream numbers its answers, so their texts differ.
        metadata.retain(|key, _| !["volatile", "text", "text_bytes"].contains(&key.as_str()));
        frame.retain(|key, _| {
            ["component", "parent", "severity", "error", "incomplete", "input", "metadata"]
                .contains(&key.as_str())
        });
    }
    frames
}

/// The first recorder once stayed until all others had ended: a time limit on it ended the recordings of the others.
#[test]
fn first_recorder_ends_with_its_program() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut first = bench.recorder(&upstream, &["--run", "first"], &["held", "a", "go1", "b"]);
    first.line();
    let socket = bench.path(".annals/SOCKET");
    #[expect(clippy::disallowed_methods, reason = "reads the permissions of the socket")]
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let of_second = ["held", "c", "go2", "d,e"];
    let mut second = bench.recorder(&upstream, &["--run", "second"], &of_second);
    second.line();
    // Readers see both runs and their recorded frames.
    assert_eq!((bench.status("first"), bench.status("second")), ("open".to_owned(), "open".to_owned()));
    assert!(bench.run("show second@1 --input --raw").text().contains("\"c\""));
    bench.write("go1", "");
    let first = first.done();
    assert_eq!(first.code, 0, "{first:?}");
    says(&first, &["recorded 2 requests into first"]);
    assert_eq!(bench.status("first"), "ok");
    // The second one has the store now, or will take it: a third one records through it.
    let third = bench.record(&upstream.url, "third", &["fails", "7"]);
    assert_eq!(third.code, 7, "{third:?}");

    bench.write("go2", "");
    let second = second.done();
    assert_eq!(second.code, 0, "{second:?}");
    says(&second, &["recorded 3 requests into second"]);
    assert!(!socket.exists());
    bench.replays("first", &first);
    bench.replays("second", &second);
    assert_eq!(bench.replay(&["third"], &[]).code, 7);
    assert_eq!(bench.run("verify").code, 0);
    // Nothing is missing, so there is no gap, whichever process held the store.
    assert!(bench.run("ledger gaps --json").stdout.is_empty());
    // A run that came through the socket equals a run that its recorder wrote itself.
    let alone = bench.record(&upstream.url, "alone", &of_second);
    assert_eq!(alone.code, 0, "{alone:?}");
    assert_eq!(shapes(&bench, "second"), shapes(&bench, "alone"));
}

#[test]
fn five_recorders_that_start_at_once_all_record() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    // No store exists yet, so no process serves it. One program writes more than a socket buffer, one more
    // than one command can carry.
    let doing: [&[&str]; 5] = [
        &["every"],
        &["swapped", "a,b,c,d,e,f,g,h"],
        &["threads"],
        &["large", "20000000"],
        &["pictures", "3", "300000", "4"],
    ];
    let names = ["r0", "r1", "r2", "r3", "r4"];
    let recorders: Vec<_> = names
        .iter()
        .zip(doing)
        .map(|(name, doing)| bench.recorder(&upstream, &["--run", name], doing))
        .collect();
    let done: Vec<_> = recorders.into_iter().map(RecorderProcess::done).collect();
    for (name, done) in names.iter().zip(&done) {
        assert_eq!(done.code, 0, "{name}: {done:?}");
        assert!(!done.stderr.contains("STOPPED"), "{name}: {}", done.stderr);
        if *name == "r2" {
            says(&bench.replay(&[name], &[]), &["exact 8 of 8"]);
        } else {
            bench.replays(name, done);
        }
    }
    assert_eq!(bench.run("verify").code, 0);
    // Two recorders without a requested name get different names.
    let recorders = [(), ()].map(|()| bench.recorder(&upstream, &["--allow-empty"], &["nothing"]));
    for done in recorders.map(RecorderProcess::done) {
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert_eq!(bench.run("runs --json").json().len(), 7);
}

/// The others once went on without being recorded: `0 of 8 requests are stored`, with exit code 1.
#[test]
fn killed_holder_is_replaced_without_loss() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut first = bench.recorder(&upstream, &["--run", "first"], &["held", "a", "go1", "b"]);
    first.line();
    let mut second = bench.recorder(&upstream, &["--run", "second"], &["held", "c", "go2", "d,e"]);
    second.line();
    // In the middle of an answer, and with more standard output than is held in memory.
    let mut third = bench.recorder(&upstream, &["--run", "third"], &["streams", "f,g,h", "2000000"]);
    third.line();
    first.kill();
    bench.write("go2", "");
    let (second, third) = (second.done(), third.done());
    for (done, run) in [(&second, "second"), (&third, "third")] {
        assert_eq!(done.code, 0, "{}", done.stderr);
        says(done, &[&format!("recorded 3 requests into {run}")]);
        bench.replays(run, done);
    }
    let fourth = bench.record(&upstream.url, "fourth", &["swapped", "x"]);
    assert_eq!(fourth.code, 0, "{fourth:?}");
    for (run, status) in [("first", "abandoned"), ("second", "ok"), ("third", "ok"), ("fourth", "ok")] {
        assert_eq!(bench.status(run), status, "{run}");
    }
    assert_eq!(bench.run("verify").code, 0);
    // Let the first recorder's program end.
    bench.write("go1", "");
}

/// Ten processes record 30 programs while the process that holds the store is killed five times;
/// `.ci/kills/recorders.py` does so with 1,000 and 100.
#[test]
fn recordings_survive_repeated_kills_of_the_holder() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/kills/recorders.py");
    let seed = std::env::var("ANNALS_SEED").unwrap_or_else(|_| "24".to_owned());
    println!("ANNALS_SEED={seed} cargo test -p annals-cli --test cli recordings_survive -- --nocapture");
    let mut command = Command::new("python3");
    command.args([script, "--recordings", "30", "--kills", "5", "--seed", &seed]);
    let done = command.args(["--binary", env!("CARGO_BIN_EXE_annals")]).output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
    println!("{told}");
}

/// A joined recorder counts what the store has acknowledged, too: the disk of the process that holds the store is full.
#[test]
fn full_disk_of_the_holder_is_an_error_of_the_others() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let agent = agent();
    let mut holder = Command::new("sh");
    // What a file may have here stands for what a disk has: blocks of 512 bytes.
    holder.args(["-c", "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_annals")]);
    holder.args(["record", "--run", "first", "--upstream", &upstream.url, "--", "python3", "-B", &agent]);
    holder.args(["held", "a", "go", "b"]).current_dir(bench.path("")).env_remove("ANNALS_STORE");
    holder.env_remove("OPENAI_BASE_URL").env("OPENAI_API_KEY", "sk-a-real-secret").stdin(Stdio::null());
    let mut first = RecorderProcess::spawn(holder);
    first.line();
    let second = bench.recorder(&upstream, &["--run", "second"], &["bulky", "20", "20000"]).done();
    assert_eq!(second.code, 1, "{second:?}");
    says(&second, &[" of 20 requests are stored: the disk is full", "; the program ended with 0"]);
    let error = second.stderr.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
    let stored: usize = error.split(' ').next().unwrap().parse().unwrap();
    let frames = bench.run("replay second --json").json();
    let whole = |frame: &&serde_json::Value| frame["component"] == "llm" && frame["incomplete"] != true;
    assert_eq!(frames.iter().filter(whole).count(), stored);
    bench.write("go", "");
    let first = first.done();
    // A refused commit leaves nothing, so the holder's own small request still fits.
    assert_eq!(first.code, 0, "{first:?}");
    says(&first, &["recorded 2 requests into first"]);
    assert_eq!(bench.run("verify").code, 0);
}

/// 67 of 68 calls of `retain`, and 108 of 108 of `compact`, were refused while others recorded.
#[test]
fn upkeep_works_beside_recorders() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "old", &["swapped", "a,b"]).code, 0);
    bench.run("put person secret").ok();
    let mut first = bench.recorder(&upstream, &["--run", "first"], &["held", "a", "go1", "b"]);
    first.line();
    assert!(bench.run("compact").text().contains("compact"));
    let forgotten = bench.run_args(["forget", "--key", "person", "--why", "asked"]).text();
    assert!(forgotten.starts_with("forgotten: a key with 2 records"), "{forgotten}");
    bench.run("forget --key person --why again").failed(4);
    bench.run("get person").failed(4);
    assert!(bench.run("compact --now").text().contains("compact"));
    bench.run_args(["pin", "old", "--why", "evidence"]).ok();
    assert_eq!(bench.run("unpin old").code, 0);
    bench.run("unpin old").failed(4);
    bench.run_args(["flag", "old", "--why", "odd"]).ok();
    assert_eq!(bench.run("show old --json").json()[0]["flagged"], "odd");
    assert_eq!(bench.run("unflag old").code, 0);
    bench.run_args(["forget", "nobody", "--why", "x"]).failed(4);
    let forgotten = bench.run_args(["forget", "old", "--why", "asked"]).text();
    assert!(forgotten.contains("forgotten"), "{forgotten}");
    assert!(bench.run("retain").text().contains("nothing was dropped"));
    // What does not go through the holder waits for it, and says so.
    let refused = bench.run("put k v --wait 0");
    assert!(refused.stderr.contains("--wait SECONDS"), "{refused:?}");
    refused.failed(1);
    let mut put = bench.command(["put", "k", "v", "--wait", "600"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(put.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("annals: waiting, at most --wait SECONDS: "), "{said}");
    bench.write("go1", "");
    assert!(put.wait().unwrap().success());
    assert_eq!(bench.run("get k").text().trim(), "v");
    let first = first.done();
    assert_eq!(first.code, 0, "{first:?}");
    assert_eq!(bench.run("verify").code, 0);
}

#[test]
fn killed_second_recorder_leaves_an_abandoned_run() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut first = bench.recorder(&upstream, &["--run", "first"], &["held", "a", "go1", "b"]);
    first.line();
    let mut second = bench.recorder(&upstream, &["--run", "second"], &["held", "c,d", "go2", "e"]);
    second.line();
    second.line();
    second.kill();
    assert_eq!(bench.ended("second"), "abandoned");
    bench.write("go1", "");
    let first = first.done();
    assert_eq!(first.code, 0, "{first:?}");
    bench.replays("first", &first);
    assert_eq!(bench.run("verify").code, 0);
    assert!(bench.run("replay second --json").json().len() >= 2);
    bench.write("go2", "");
}

#[test]
fn recorder_waits_for_an_exclusive_writer() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut import = bench.command(["import", "--format", "chat", "-"]);
    let mut import =
        import.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = import.stdin.take().unwrap();
    lines.write_all(crate::LINES.as_bytes()).unwrap();
    while bench.run("runs --json").stdout.is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let recorder = bench.recorder(&upstream, &["--run", "r"], &["swapped", "c"]);
    // The recorder has tried to open the store several times, with pauses.
    let status = format!("/proc/{}/status", recorder.child.id());
    while std::fs::read_to_string(&status).unwrap().lines().any(|line| {
        line.strip_prefix("voluntary_ctxt_switches:")
            .is_some_and(|times| times.trim().parse::<u32>().unwrap() < 5)
    }) {
        std::thread::yield_now();
    }
    drop(lines);
    let done = recorder.done();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(import.wait().unwrap().success());
    assert_eq!(bench.status("r"), "ok");
}

#[test]
fn interrupted_holder_leaves_the_store_to_the_others() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut first = bench.recorder(&upstream, &["--run", "first"], &["held", "a", "go1", "b"]);
    first.line();
    let mut second = bench.recorder(&upstream, &["--run", "second"], &["held", "c", "go2", "d"]);
    second.line();
    let pid = first.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let first = first.done();
    assert_eq!(first.code, 128 + 15, "{first:?}");
    says(&first, &["recorded 1 request into first"]);
    bench.write("go2", "");
    let second = second.done();
    assert_eq!(second.code, 0, "{second:?}");
    says(&second, &["recorded 2 requests into second"]);
    assert_eq!((bench.status("first"), bench.status("second")), ("failed".to_owned(), "ok".to_owned()));
    bench.replays("second", &second);
}

#[test]
fn store_with_long_path_can_be_shared() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let deep = format!("{}/{}/store", "d".repeat(120), "e".repeat(120));
    #[expect(clippy::disallowed_methods, reason = "a directory that a user would have")]
    std::fs::create_dir_all(bench.path(&deep)).unwrap();
    let of = |run: &'static str| ["--store", &deep, "--run", run].map(str::to_owned);
    let first = of("first");
    let mut first =
        bench.recorder(&upstream, &first.each_ref().map(String::as_str), &["held", "a", "go", "b"]);
    first.line();
    let second = of("second");
    let second = bench.recorder(&upstream, &second.each_ref().map(String::as_str), &["swapped", "c"]).done();
    assert_eq!(second.code, 0, "{second:?}");
    bench.write("go", "");
    assert_eq!(first.done().code, 0);
    assert_eq!(bench.run(&format!("runs --store {deep} --json")).json().len(), 2);
}

#[test]
fn recorders_use_own_namespaces_and_report_refusals() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let mut first = bench.recorder(&upstream, &["--run", "r"], &["held", "a", "go", "b"]);
    first.line();
    let second = bench.recorder(&upstream, &["--run", "r", "--namespace", "other"], &["swapped", "c"]).done();
    assert_eq!(second.code, 0, "{second:?}");
    let taken = bench.recorder(&upstream, &["--run", "r"], &["swapped", "c"]).done();
    assert_eq!(taken.code, 125, "{taken:?}");
    says(&taken, &["run \"r\" exists already"]);
    let cached = bench.recorder(&upstream, &["--run", "s", "--cache", "both"], &["swapped", "c"]).done();
    assert_eq!(cached.code, 125, "{cached:?}");
    says(&cached, &["answers of earlier runs are not available through it", "hint: "]);
    bench.write("go", "");
    assert_eq!(first.done().code, 0);
    assert_eq!(bench.run("runs --json").json().len(), 1);
    assert_eq!(bench.run("runs --namespace other --json").json().len(), 1);
    assert_eq!(bench.run("doctor").code, 0);
}

/// Tokens cannot be changed while a recorder holds the store. The error was `unknown command 'TOKEN.ADD'`, with the hint
/// to correct the value that it names.
#[test]
fn token_beside_a_recorder_is_refused_with_the_reason() {
    let bench = CliBench::new();
    for words in [&["add", "alice"][..], &["rotate", "alice"], &["revoke", "alice"]] {
        let annals = env!("CARGO_BIN_EXE_annals");
        let done = bench.run_args([&["record", "--", annals, "token"], words].concat());
        assert_eq!(done.code, 1, "{done:?}");
        says(
            &done,
            &["a recorder holds the store, and it does not change tokens", "when the recording has ended"],
        );
    }
    bench.run("token add alice").ok();
}
