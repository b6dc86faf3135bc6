//! `annals record --capture-nondet`: programs that put times, ids and random numbers into their requests.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

const REPLAYS: usize = 3;
const CAPTURE: &str = "--capture-nondet";

fn agent(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents").join(name).to_str().unwrap().to_owned()
}

/// The path of the real interpreter, because `python3` may be a script that starts another.
fn python() -> String {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

impl CliBench {
    fn capture(
        &self,
        upstream: &FakeUpstream,
        run: &str,
        options: &[&str],
        program: &[&str],
    ) -> ProcessResult {
        let line =
            [&["record", "--run", run, "--upstream", &upstream.url], options, &["--"], program].concat();
        let mut command = self.command(line);
        command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").env_remove("PYTHONHASHSEED");
        ProcessResult::from_output(command.stdin(Stdio::null()).output().unwrap())
    }

    fn draws(&self, upstream: &FakeUpstream, run: &str, doing: &[&str]) -> ProcessResult {
        let (python, agent) = (python(), agent("draws.py"));
        self.capture(upstream, run, &[CAPTURE], &[&[python.as_str(), "-B", &agent], doing].concat())
    }

    fn private_directories(&self) -> Vec<PathBuf> {
        let listed = self.path("").read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("annals-network-") || name.starts_with("annals-nondet-")
        });
        listed.collect()
    }

    fn replay_agent(&self, args: &[&str], variables: &[(&str, &str)]) -> ProcessResult {
        let mut command = self.command([&["replay"], args].concat());
        command.env_remove("OPENAI_API_KEY").env_remove("PYTHONHASHSEED").envs(variables.iter().copied());
        ProcessResult::from_output(command.stdin(Stdio::null()).output().unwrap())
    }

    /// Replays a run several times and checks that each replay equals the recording, lanes of draws included.
    #[track_caller]
    fn is_exact(&self, run: &str, recorded: &ProcessResult, calls: usize) {
        assert_eq!(recorded.code, 0, "{recorded:?}");
        assert!(!recorded.stderr.contains("NOT CAPTURED"), "{}", recorded.stderr);
        for _ in 0..REPLAYS {
            let replayed = self.replay_agent(&[run], &[]);
            assert_eq!(replayed.code, 0, "{replayed:?}");
            let exact = format!("exact {calls} of {calls}, served {calls}, unused 0");
            assert!(replayed.stderr.contains(&exact), "{}", replayed.stderr);
            assert!(!replayed.stderr.contains("DRAWN OTHERWISE"), "{}", replayed.stderr);
            assert_eq!(sorted(&replayed.stdout), sorted(&recorded.stdout));
        }
    }
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8(bytes.to_vec()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn times_ids_and_random_numbers_in_prompts_replay_exactly() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.draws(&upstream, "r", &["every"]);
    assert!(recorded.stderr.contains("draws of 1 thread"), "{}", recorded.stderr);
    bench.is_exact("r", &recorded, 3);
    // The draws that led to a call come before it, and a run with draws verifies like any other.
    let frames = bench.run("replay r --json").json();
    let components: Vec<_> = frames.iter().map(|frame| frame["component"].as_str().unwrap()).collect();
    assert_eq!(components[..6], ["nondet", "llm", "nondet", "llm", "nondet", "llm"]);
    assert_eq!(bench.run("verify r").code, 0);

    // Without the option each run of the program sends different requests.
    let (python, agent) = (python(), agent("draws.py"));
    assert_eq!(bench.capture(&upstream, "plain", &[], &[&python, "-B", &agent, "every"]).code, 0);
    let replayed = bench.replay_agent(&["plain"], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    assert!(replayed.stderr.contains("exact 0 of 3"), "{}", replayed.stderr);
}

/// What is not recorded is not hidden: without the option, a program whose requests hold times, ids or random numbers, in
/// its own thread, in others or in child processes, is told by its replay.
#[test]
fn drift_outside_the_boundary_is_detected() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let (python, agent) = (python(), agent("draws.py"));
    for (doing, calls) in [("every", 3), ("threads", 8), ("children", 11)] {
        let recorded = bench.capture(&upstream, doing, &[], &[&python, "-B", &agent, doing]);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        let replayed = bench.replay_agent(&[doing], &[]);
        assert_eq!(replayed.code, 3, "{doing}: {replayed:?}");
        assert!(replayed.stderr.contains("DIVERGED"), "{doing}: {}", replayed.stderr);
        assert!(replayed.stderr.contains(&format!("exact 0 of {calls}")), "{doing}: {}", replayed.stderr);
    }
}

#[test]
fn each_thread_has_its_own_draws() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.draws(&upstream, "r", &["threads"]);
    assert!(recorded.stderr.contains("draws of 9 threads"), "{}", recorded.stderr);
    bench.is_exact("r", &recorded, 8);
}

#[test]
fn each_child_process_has_its_own_draws() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.draws(&upstream, "r", &["children"]);
    bench.is_exact("r", &recorded, 11);
}

#[test]
fn shell_and_its_children_are_captured() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let script = bench.write(
        "steps.sh",
        "for step in 1 2; do id=$(head -c 6 /dev/urandom | od -An -tx1); at=$(date +%s%N)\n\
         python3 -B $0.py $step \"$id $at\" & done; wait",
    );
    bench.write(
        "steps.sh.py",
        "import sys\nsys.argv, said = ['', 'nothing'], ' '.join(sys.argv[1:])\n\
         source = open('agent.py').read().replace('globals()[', 'nothing = lambda: None\\nglobals()[')\n\
         exec(source)\nchat(said + drawn())\n",
    );
    std::os::unix::fs::symlink(agent("draws.py"), bench.path("agent.py")).unwrap();
    let recorded = bench.capture(&upstream, "r", &[CAPTURE], &["bash", &script]);
    bench.is_exact("r", &recorded, 2);
}

#[test]
fn node_replays_exactly() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("node is not installed: not tested");
        return;
    }
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.capture(&upstream, "r", &[CAPTURE], &["node", &agent("draws.mjs")]);
    let told = String::from_utf8(recorded.stdout.clone()).unwrap();
    assert!(told.ends_with("RangeError\nRangeError\nTypeMismatchError\n"), "{told} {}", recorded.stderr);
    bench.is_exact("r", &recorded, 4);
}

#[test]
fn one_hundred_thousand_draws_cost_little() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.draws(&upstream, "r", &["clocks", "100000"]);
    bench.is_exact("r", &recorded, 2);
    let frames = bench.run("replay r --json").json();
    assert!(frames[0]["output_base64"].as_str().unwrap().len() < 600_000, "a draw takes more than six bytes");
}

#[test]
fn changed_draws_are_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.draws(&upstream, "more", &["more", "5"]).code, 0);
    assert!(!bench.replay_agent(&["more"], &[]).stderr.contains("DRAWN OTHERWISE"));
    for (times, what) in [("9", ": the rest are new values"), ("2", "were recorded\n")] {
        let replayed = bench.replay_agent(&["more"], &[("DRAW_TIMES", times)]);
        // The program's requests are still the same.
        assert_eq!(replayed.code, 0, "{replayed:?}");
        assert!(replayed.stderr.contains("DRAWN OTHERWISE: lane 0 drew"), "{}", replayed.stderr);
        assert!(replayed.stderr.contains(what), "{}", replayed.stderr);
    }
    assert_eq!(bench.draws(&upstream, "races", &["races"]).code, 0);
    let replayed = bench.replay_agent(&["races"], &[]);
    assert!(replayed.stderr.contains("as its draw"), "{}", replayed.stderr);
}

#[test]
fn killed_program_keeps_its_draws() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.draws(&upstream, "r", &["dies"]);
    assert_eq!(recorded.code, 128 + 9, "{recorded:?}");
    let replayed = bench.replay_agent(&["r"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (128 + 9, &recorded.stdout), "{}", replayed.stderr);
    assert!(replayed.stderr.contains("exact 1 of 1"), "{}", replayed.stderr);
}

/// Draws are stored before the frames that they led to, so a killed recorder has both.
#[test]
fn killed_recorder_has_all_draws_before_its_frames() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let (python, agent) = (python(), agent("draws.py"));
    let script = bench.write("wait.sh", format!("'{python}' -B '{agent}' every; echo there; read line"));
    let line = ["record", "--run", "r", "--upstream", &upstream.url, CAPTURE, "--", "sh", &script];
    let mut command = bench.command(line);
    // Its directories are then the only ones there.
    command.env("TMPDIR", bench.path(""));
    let mut recorder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = std::io::BufReader::new(recorder.stdout.take().unwrap());
    let mut line = String::new();
    while line != "there\n" {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut told, &mut line).unwrap() > 0);
    }
    // The last frame is stored a moment after the program receives its answer.
    let is_whole = |frame: &serde_json::Value| frame["component"] == "llm" && frame["incomplete"] != true;
    while bench.run("replay r --json").json().iter().filter(|frame| is_whole(frame)).count() < 3 {
        std::thread::yield_now();
    }
    recorder.kill().unwrap();
    assert_eq!(recorder.wait().unwrap().signal(), Some(9));
    drop(recorder.stdin.take());
    assert!(!bench.private_directories().is_empty());
    // Any later recording removes them, once the program has ended.
    let is_left = (0..100).all(|number| {
        let run = format!("after-{number}");
        let mut after = bench.command(["record", "--run", &run, "--allow-empty", "--", "true"]);
        assert!(after.env("TMPDIR", bench.path("")).output().unwrap().status.success());
        !bench.private_directories().is_empty()
    });
    assert!(!is_left, "{:?}", bench.private_directories());
    bench.write("wait.sh", format!("'{python}' -B '{agent}' every; echo there"));
    let replayed = bench.replay_agent(&["r"], &[]);
    assert!(replayed.stderr.contains("exact 3 of 3"), "{}", replayed.stderr);
}

#[test]
fn fork_is_served_to_fork_point_and_replays_alone() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.draws(&upstream, "r", &["every"]).code, 0);
    let mut fork = bench.command(["fork", "r@4", "child", "--model", "m-2", "--upstream", &upstream.url]);
    let forked =
        ProcessResult::from_output(fork.env("OPENAI_API_KEY", "k").stdin(Stdio::null()).output().unwrap());
    assert_eq!(forked.code, 0, "{forked:?}");
    assert!(forked.stderr.contains("prefix replayed 1, tail recorded 2"), "{}", forked.stderr);
    let replayed = bench.replay_agent(&["child"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &forked.stdout), "{}", replayed.stderr);
    assert!(replayed.stderr.contains("exact 3 of 3"), "{}", replayed.stderr);
    assert!(!replayed.stderr.contains("DRAWN OTHERWISE"), "{}", replayed.stderr);
}

#[test]
fn uncovered_programs_are_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let source =
        bench.write("alone.c", "#include <stdio.h>\nint main(void) { puts(\"alone\"); return 0; }\n");
    let mut compiler = Command::new("cc");
    let built = compiler.args(["-static", "-o", "alone"]).arg(source).current_dir(bench.path(".")).output();
    if !built.is_ok_and(|built| built.status.success()) {
        println!("there is no static C library: not tested");
        return;
    }
    let recorded = bench.capture(&upstream, "r", &[CAPTURE, "--allow-empty"], &["./alone"]);
    assert_eq!((recorded.code, recorded.stdout.as_slice()), (0, &b"alone\n"[..]));
    assert!(
        recorded.stderr.contains("NOT CAPTURED: ") && recorded.stderr.contains("alone is a static binary")
    );
    // An uncovered program that a covered program starts.
    let recorded = bench.capture(&upstream, "s", &[CAPTURE, "--allow-empty"], &["sh", "-c", "./alone; true"]);
    assert_eq!((recorded.code, recorded.stdout.as_slice()), (0, &b"alone\n"[..]));
    assert!(recorded.stderr.contains("NOT CAPTURED: ./alone (process 0p1"), "{}", recorded.stderr);
    assert!(bench.replay_agent(&["s"], &[]).stderr.contains("NOT CAPTURED: ./alone"));
}
