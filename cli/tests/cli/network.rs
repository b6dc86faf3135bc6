//! Connections that bypass annals: a recording reports them, a replay refuses them.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::says;
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// A server that programs reach directly. It counts connections and sends nothing.
struct CountingServer {
    at: SocketAddr,
    accepted: Arc<AtomicU64>,
}

impl CountingServer {
    fn start(address: &str) -> Option<Self> {
        let listener = TcpListener::bind(address).ok()?;
        let (at, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let count = accepted.clone();
        #[expect(clippy::disallowed_methods, reason = "a server of the test's own")]
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        Some(Self { at, accepted })
    }

    fn start_on_loopback() -> Self {
        Self::start("127.0.0.1:0").unwrap()
    }

    /// `HOST PORT`, the form in which the agent takes an address.
    fn host_and_port(&self) -> String {
        format!("{} {}", self.at.ip(), self.at.port())
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn agent() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/network.py").to_str().unwrap().to_owned()
}

/// Records this command of the agent; the options come before the command.
fn record(bench: &CliBench, upstream: &FakeUpstream, options: &[&str], doing: &[&str]) -> ProcessResult {
    let agent = agent();
    let mut args = vec!["record", "--run", "r", "--upstream", &upstream.url];
    args.extend(options);
    args.extend(["--", "python3", "-B", &agent]);
    args.extend(doing);
    run(bench, &args)
}

fn run(bench: &CliBench, args: &[&str]) -> ProcessResult {
    let mut command = bench.command(args.to_vec());
    command.env_remove("OPENAI_BASE_URL").env("OUTSIDE", std::process::id().to_string());
    ProcessResult::from_output(command.stdin(Stdio::null()).output().unwrap())
}

/// Compiles, with these linker flags, a C program that connects to `HOST PORT` and stays for some
/// milliseconds.
#[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
fn connector(directory: &Path, flags: &[&str]) -> PathBuf {
    let (source, program) = (directory.join("connector.c"), directory.join("connector"));
    std::fs::write(
        &source,
        "#include <arpa/inet.h>\n#include <stdlib.h>\n#include <sys/socket.h>\n#include <unistd.h>\n\
         int main(int c, char **v) {\n  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(v[2]))};\n\
         inet_pton(AF_INET, v[1], &to.sin_addr);\n  int fd = socket(AF_INET, SOCK_STREAM, 0);\n\
         int failed = connect(fd, (void *)&to, sizeof to) != 0;\n  usleep(atoi(v[3]) * 1000);\n  return failed;\n}\n",
    )
    .unwrap();
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(built.success(), "cc {flags:?}");
    program
}

// Regression: a script made one call through the variable and two to a fixed address. `record` printed
// `recorded 1 request` and ended with 0. `replay` made both direct calls again, printed `exact 1 of 1, not
// spent`, and ended with 0.
#[test]
fn bypassing_call_is_reported_and_blocked_in_replay() {
    let (bench, upstream, elsewhere) = (CliBench::new(), FakeUpstream::start(), FakeUpstream::start());
    let port = elsewhere.url.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let direct = format!("direct 127.0.0.1 {port}");
    let recorded = record(&bench, &upstream, &[], &["annals", &direct, &direct]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(
        &recorded,
        &["NOT RECORDED: 2 connections of python3", &format!("to 127.0.0.1:{port}"), "recorded 1 request"],
    );
    says(&recorded, &["--env NAME=/PATH", &format!("--expect-host 127.0.0.1:{port}")]);
    let asked = elsewhere.asked();
    assert_eq!(asked, 2);
    for _ in 0..3 {
        let replayed = bench.replay(&[], &[]);
        assert_eq!(replayed.code, 3, "{replayed:?}");
        says(
            &replayed,
            &["REFUSED: 2 connections of python3", "NOT replayed as recorded", "2 connections not recorded"],
        );
        says(&replayed, &["the recording is incomplete"]);
    }
    assert_eq!(elsewhere.asked(), asked, "a replay reached the network");
    // The run stores which connections it lacks, and every listing of the run shows them.
    let listed = bench.run("runs").text();
    assert!(listed.contains("incomplete"), "{listed}");
    let shown = bench.run("show r").text();
    assert!(shown.contains("NOT RECORDED: 2 connections of python3"), "{shown}");
    let program = bench
        .run("replay r --json")
        .json()
        .into_iter()
        .find(|frame| frame["component"] == "program")
        .unwrap();
    let kept = &program["metadata"]["volatile"]["network"]["connections"][0];
    assert_eq!((&kept["host"], &kept["count"]), (&"127.0.0.1".into(), &2.into()), "{program}");
}

#[test]
fn hosts_are_expected_permitted_or_refused_quietly() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let (host, action) = (elsewhere.at.to_string(), format!("connect {}", elsewhere.host_and_port()));
    let recorded = record(&bench, &upstream, &["--expect-host", &host], &["annals", &action]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &[&format!("other traffic, not recorded: 1 x {host}")]);
    let accepted = elsewhere.accepted();
    assert_eq!(bench.replay(&[], &[]).code, 3);
    let quiet = bench.replay(&["--refuse-quietly", &host], &[]);
    assert_eq!(quiet.code, 0, "{quiet:?}");
    says(&quiet, &[&format!("refused as expected: 1 x {host}")]);
    assert_eq!(bench.replay(&["--refuse-quietly", "127.0.0.1:1"], &[]).code, 3);
    assert_eq!(elsewhere.accepted(), accepted, "a refused connection was made");
    for options in [&["--allow-host", &*host][..], &["--network", "loopback"], &["--network", "all"]] {
        let permitted = bench.replay(options, &[]);
        assert_eq!(permitted.code, 0, "{options:?}: {permitted:?}");
    }
    assert_eq!(elsewhere.accepted(), accepted + 3);
    for bad in ["http://a", "", "a:0", "a b"] {
        let refused = bench.replay(&["--allow-host", bad], &[]);
        assert_eq!(refused.code, 125, "{bad:?}: {refused:?}");
        says(&refused, &["is not HOST[:PORT]"]);
    }
}

// Regression: programs that load no library were neither seen nor stopped. The kernel's socket tables now
// show them, and a network namespace stops them.
#[test]
fn static_program_is_watched_and_blocked() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let program = connector(bench.directory.path(), &["-static"]);
    let action = format!("run {} {} 600", program.display(), elsewhere.host_and_port());
    let recorded = record(&bench, &upstream, &[], &["annals", &action]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(&recorded, &["NOT RECORDED: 1 connection of connector", "SAMPLED ONLY", "is a static binary"]);
    let accepted = elsewhere.accepted();
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["REFUSED: 1 connection of connector", &elsewhere.at.to_string()]);
    assert_eq!(elsewhere.accepted(), accepted);
}

#[test]
fn setuid_program_is_watched_and_blocked() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let program = connector(bench.directory.path(), &[]);
    if !Command::new("chown").arg("65534").arg(&program).status().unwrap().success() {
        eprintln!("SKIPPED: only root can make a program of another user");
        return;
    }
    assert!(Command::new("chmod").arg("4755").arg(&program).status().unwrap().success());
    let open = Command::new("chmod").arg("755").arg(bench.directory.path()).status().unwrap();
    assert!(open.success());
    let action = format!("run {} {} 600", program.display(), elsewhere.host_and_port());
    let recorded = record(&bench, &upstream, &[], &["annals", &action]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(&recorded, &["NOT RECORDED: 1 connection of connector", "runs as another user"]);
    let accepted = elsewhere.accepted();
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["REFUSED: 1 connection of connector"]);
    assert_eq!(elsewhere.accepted(), accepted);
}

#[test]
fn a_program_that_changes_its_namespace_stays_inside() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let (words, options) = (elsewhere.host_and_port(), ["--expect-host", "any"]);
    let (own, other) = (format!("own-namespace {words}"), format!("other-namespace {words}"));
    let recorded = record(&bench, &upstream, &options, &["annals", &own, &other]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let accepted = elsewhere.accepted();
    let replayed = run(&bench, &["replay", "r"]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    assert_eq!(elsewhere.accepted(), accepted, "{replayed:?}");
}

#[test]
fn other_traffic_is_listed_but_is_no_missed_call() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = record(
        &bench,
        &upstream,
        &[],
        &["annals", "datagram 127.0.0.1 53", "datagram 127.0.0.1 9", "connect 127.0.0.1 5432"],
    );
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(
        &recorded,
        &[
            "other traffic, not recorded: ",
            "127.0.0.1:53 (name look-ups (DNS))",
            "(a database on this machine)",
        ],
    );
    assert!(
        !recorded.stderr.contains(":9 "),
        "a datagram to an unknown port is no traffic: {}",
        recorded.stderr
    );
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["to 127.0.0.1:53:", "to 127.0.0.1:5432:"]);
}

#[test]
fn unresolvable_name_is_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = record(&bench, &upstream, &[], &["annals", "name api.groq.com", "name localhost"]);
    if recorded.stderr.contains("api.groq.com") {
        // If the name does not resolve, the failed look-up is the only trace of the call.
        assert_eq!(recorded.code, 1, "{recorded:?}");
        says(&recorded, &["api.groq.com:443 (groq)"]);
    }
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["to api.groq.com:443", "--refuse-quietly api.groq.com:443"]);
    assert!(!replayed.stderr.contains("localhost"), "{}", replayed.stderr);
    assert_eq!(bench.replay(&["--refuse-quietly", "groq.com"], &[]).code, 0);
}

#[test]
fn ipv6_connections_are_seen_and_refused() {
    let Some(elsewhere) = CountingServer::start("[::1]:0") else {
        eprintln!("SKIPPED: this machine has no IPv6 loopback");
        return;
    };
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let action = format!("connect {}", elsewhere.host_and_port());
    let recorded = record(&bench, &upstream, &[], &["annals", &action]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(&recorded, &[&format!("to {}", elsewhere.at)]);
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &[&format!("to {}", elsewhere.at)]);
    assert_eq!(elsewhere.accepted(), 1);
}

#[test]
fn ten_thousand_connections_are_counted() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let action = format!("many 10000 {}", elsewhere.host_and_port());
    let recorded = record(&bench, &upstream, &[], &["annals", &action]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    says(&recorded, &["NOT RECORDED: 10,000 connections"]);
    let replayed = bench.replay(&[], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["REFUSED: 10,000 connections"]);
    assert!(String::from_utf8_lossy(&replayed.stdout).contains("10000 failed"), "{replayed:?}");
}

#[test]
fn library_guards_if_namespaces_are_forbidden() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let program = connector(bench.directory.path(), &["-static"]);
    let direct = format!("connect {}", elsewhere.host_and_port());
    let long = format!("run {} {} 600", program.display(), elsewhere.host_and_port());
    let recorded = record(&bench, &upstream, &["--expect-host", "any"], &["annals", &direct]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let accepted = elsewhere.accepted();
    // In its own user namespace, the limit applies only to this test.
    let forbidden = |args: &[&str]| {
        let command = bench.command(args.to_vec());
        let mut shell = Command::new("unshare");
        shell.args(["-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        command.get_envs().for_each(|(name, value)| _ = value.map(|value| shell.env(name, value)));
        ProcessResult::from_output(
            shell.current_dir(bench.directory.path()).stdin(Stdio::null()).output().unwrap(),
        )
    };
    let replayed = forbidden(&["replay", "r"]);
    if replayed.stderr.contains("unshare") {
        eprintln!("SKIPPED: no user namespace in which namespaces could be forbidden: {}", replayed.stderr);
        return;
    }
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["REFUSED: 1 connection", "GUARDED LESS: a network namespace is not permitted here"]);
    assert_eq!(elsewhere.accepted(), accepted);
    // Without a namespace a static program cannot be stopped. The report names it, and its connection makes
    // the replay fail.
    let agent = agent();
    let replayed = forbidden(&["replay", "r", "--", "python3", "-B", &agent, "annals", &long]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["NOT GUARDED: ", "is a static binary", "NOT REFUSED: 1 connection of connector"]);
}

// Before the fork point a fork is a replay and reaches no network. After it, it is a recording.
#[test]
fn fork_refuses_before_fork_point_and_notes_after() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let direct = format!("connect {}", elsewhere.host_and_port());
    let recorded =
        record(&bench, &upstream, &["--expect-host", "any"], &[&direct, "annals", &direct, "annals"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let accepted = elsewhere.accepted();
    let forked = run(&bench, &["fork", "r@1", "child"]);
    assert_eq!(forked.code, 3, "{forked:?}");
    says(&forked, &["REFUSED: 1 connection", "NOT RECORDED: 1 connection"]);
    assert_eq!(elsewhere.accepted(), accepted + 1);
    // The report names programs that cannot load the library.
    let program = connector(bench.directory.path(), &["-static"]);
    let stray = format!("run {} {} 600", program.display(), elsewhere.host_and_port());
    let agent = agent();
    let forked =
        run(&bench, &["fork", "r@1", "other", "--", "python3", "-B", &agent, &stray, "annals", "annals"]);
    assert_eq!(forked.code, 1, "{forked:?}");
    says(&forked, &["NOT GUARDED: ", "is a static binary", "NOT RECORDED: 1 connection of connector"]);
}

// Regression: the library was in a directory that other users could not enter. Each `su` in a recorded
// program printed two errors of the loader.
#[test]
fn a_process_of_another_user_loads_the_library() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let connect = format!("exec 3<>/dev/tcp/{}/{}", elsewhere.at.ip(), elsewhere.at.port());
    let script = bench.path("other.sh");
    let line = format!("setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '{connect}'");
    bench.write("other.sh", line);
    let args = ["record", "--run", "r", "--upstream", &upstream.url, "--", "sh", script.to_str().unwrap()];
    let recorded = run(&bench, &args);
    if recorded.stderr.contains("setpriv:") {
        eprintln!("SKIPPED: this user may not become another: {}", recorded.stderr);
        return;
    }
    assert!(!recorded.stderr.contains("ld.so"), "{recorded:?}");
    says(&recorded, &["NOT RECORDED: 1 connection of bash"]);
}

// Regression: a client retried a refused connection for two minutes. Its user saw only a program that hangs.
#[test]
fn refusal_is_reported_while_program_runs() {
    let (bench, upstream, elsewhere) =
        (CliBench::new(), FakeUpstream::start(), CountingServer::start_on_loopback());
    let held = bench.path("held");
    assert!(Command::new("mkfifo").arg(&held).status().unwrap().success());
    let (connect, hold) =
        (format!("connect {}", elsewhere.host_and_port()), format!("hold {}", held.display()));
    let agent = agent();
    let args = ["record", "--run", "r", "--upstream", &upstream.url, "--expect-host", "any", "--"];
    let mut recorder =
        bench.command(args.into_iter().chain(["python3", "-B", &agent, "annals", &connect, &hold]));
    let mut recorder = recorder.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    // The program continues once it reads this file.
    bench.write("held", "on");
    assert!(recorder.wait().unwrap().success());
    let mut replayer = bench.command(["replay", "r"]);
    let mut replayer =
        replayer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(replayer.stderr.take().unwrap()).lines();
    let told =
        lines.find(|line| line.as_ref().unwrap().contains(&elsewhere.at.to_string())).unwrap().unwrap();
    assert!(told.starts_with("annals: refusing python3"), "{told}");
    bench.write("held", "on");
    let rest = lines.map(Result::unwrap).collect::<Vec<_>>().join("\n");
    assert_eq!(replayer.wait().unwrap().code(), Some(3), "{rest}");
    assert!(rest.contains("REFUSED: 1 connection"), "{rest}");
}

// Regression: `--upstream opneai=URL` was accepted. No variable pointed at it, and the calls went to OpenAI.
#[test]
fn upstream_of_unknown_provider_is_refused() {
    let bench = CliBench::new();
    let refused = run(&bench, &["record", "--upstream", "opneai=http://127.0.0.1:9", "--", "true"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    says(&refused, &["--upstream names provider \"opneai\"", "known providers: openai, "]);
    assert_eq!(bench.run("runs").code, 4, "a refused recording must not create a store");
    let args = [
        "record",
        "--allow-empty",
        "--env",
        "MY_LLM=/v1",
        "--upstream",
        "my-llm=http://127.0.0.1:9",
        "--",
        "true",
    ];
    assert_eq!(run(&bench, &args).code, 0);
}
