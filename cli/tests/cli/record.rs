//! `annals record` and `annals replay` with a program that knows nothing about annals.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// Number of replays of each recording.
const REPLAYS: usize = 5;

pub(crate) fn agent() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/agent.py").to_str().unwrap().to_owned()
}

impl CliBench {
    /// Records this command of the agent with this upstream.
    pub(crate) fn record(&self, upstream: &str, run: &str, doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut args = vec!["record", "--run", run, "--upstream", upstream, "--", "python3", "-B", &agent];
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }

    /// Replays a run without a provider's key. `doing` replaces the recorded command unless it is empty.
    pub(crate) fn replay(&self, args: &[&str], doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut all = vec!["replay"];
        all.extend(args);
        if !doing.is_empty() {
            all.extend(["--", "python3", "-B", &agent]);
            all.extend(doing);
        }
        let mut command = self.command(all);
        command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }
}

#[track_caller]
pub(crate) fn says(done: &ProcessResult, what: &[&str]) {
    for what in what {
        assert!(done.stderr.contains(what), "{what:?} is not in: {}", done.stderr);
    }
}

#[test]
fn every_answer_kind_replays_without_upstream_or_key() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["every"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["recorded 9 requests", "a word to the wise", "annals replay"]);
    // Regression: answers without a body (204, and any answer to HEAD) were reported as interrupted, because
    // nobody reads the end of an absent body.
    assert!(!recorded.stderr.contains("without a whole answer"), "{}", recorded.stderr);
    let asked = upstream.asked();
    assert_eq!(asked, 9);
    let lines = String::from_utf8(recorded.stdout.clone()).unwrap();
    for what in ["429", "retry-after', '7'", "audio/mpeg", "204", "caf\u{e9}", ": ping", "/v1/nowhere/known"]
    {
        assert!(lines.contains(what), "{what:?} is not in {lines}");
    }
    for _ in 0..REPLAYS {
        let replayed = bench.replay(&[], &[]);
        assert_eq!(replayed.code, 0, "{replayed:?}");
        assert_eq!(String::from_utf8_lossy(&replayed.stdout), lines);
        says(&replayed, &["exact 9 of 9, served 9, unused 0", "replayed r"]);
    }
    assert_eq!(upstream.asked(), asked, "the replay called the upstream");
    // The frames keep status, headers and bytes of each HTTP exchange, and they verify.
    assert_eq!(bench.run("verify r").code, 0);
    let frames = bench.run("replay r --json").json();
    assert_eq!(frames.len(), 11);
    assert_eq!(frames[9]["component"], "program");
    assert_eq!(frames[10]["output"], "a word to the wise\n");
}

#[test]
fn no_secret_reaches_the_store() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["every"]).code, 0);
    let everything = bench.run("replay r --json").text() + &bench.run("show r --metadata").text();
    assert!(everything.contains("/v1/binary"), "the search finds recorded bytes");
    for secret in ["sk-a-real-secret", "AIzaSecretKey"] {
        assert!(!everything.contains(secret), "{secret}");
    }
}

#[test]
fn changed_request_is_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let asked = upstream.asked();
    let replayed = bench.replay(&["r"], &["changed", "twp"]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["at step 2", "$.messages[1].content", "\"two\" was recorded, \"twp\" was asked"]);
    says(&replayed, &["exact 2 of 3, changed 1", "1 recorded request was never asked for", "NOT replayed"]);
    let told = String::from_utf8(replayed.stdout).unwrap();
    assert!(told.contains("502"), "{told}");
    assert_eq!(upstream.asked(), asked);
    // The right program replays exactly.
    assert_eq!(bench.replay(&["r"], &["changed", "two"]).code, 0);
    // A rule that would hide a message is refused before the program starts.
    let refused = bench.replay(&["r", "--ignore", "$.messages[1].content"], &["changed", "twp"]);
    assert_eq!(refused.code, 125);
    says(&refused, &["hide", "hint: "]);
    let ignored = bench.replay(&["r", "--ignore", "$.temperature"], &["changed", "two"]);
    assert_eq!(ignored.code, 0, "{ignored:?}");
}

/// A client that sends other headers (`anthropic-beta`) asks the same: what is matched is the body.
#[test]
fn changed_headers_are_no_part_of_the_match() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["headed", "tools-2025"]);
    let replayed = bench.replay(&["r"], &["headed", "tools-2026"]);
    assert_eq!((replayed.code, replayed.stdout), (0, recorded.stdout), "{}", replayed.stderr);
    assert!(replayed.stderr.contains("exact 1 of 1"), "{}", replayed.stderr);
}

#[test]
fn eight_threads_get_own_answers_in_recorded_order() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["threads"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    for _ in 0..REPLAYS {
        let replayed = bench.replay(&[], &[]);
        assert_eq!(replayed.code, 0, "{replayed:?}");
        says(&replayed, &["exact 8 of 8"]);
        let sorted = |bytes: &[u8]| {
            let mut lines: Vec<_> =
                String::from_utf8(bytes.to_vec()).unwrap().lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&replayed.stdout), sorted(&recorded.stdout));
    }
}

#[test]
fn swapped_call_order_does_not_hang() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["swapped", "a,b"]).code, 0);
    let replayed = bench.replay(&["r"], &["swapped", "b,a"]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["step 2 was answered before [1]"]);
    let more = bench.replay(&["r"], &["swapped", "a,b,b"]);
    assert_eq!(more.code, 3);
    says(&more, &["once more than it was recorded"]);
}

#[test]
fn broken_connections_are_recorded_as_far_as_they_came() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["hangs_up"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["1 without a whole answer"]);
    let frames = bench.run("replay r --json").json();
    assert_eq!(frames[0]["metadata"]["http"]["broken"], "the client hung up");
    assert_eq!((&frames[0]["error"], &frames[0]["severity"]), (&true.into(), &"flagged".into()));
    assert!(frames[0]["output"].as_str().unwrap().starts_with(": ping"), "{}", frames[0]["output"]);
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);

    let recorded = bench.record(&upstream.url, "b", &["broken"]);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), "incomplete b'half of it'\n", "{recorded:?}");
    let replayed = bench.replay(&["b"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
}

#[test]
fn program_exit_code_is_passed_on_and_recorded() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let failed = bench.record(&upstream.url, "failed", &["fails", "7"]);
    assert_eq!(failed.code, 7, "{failed:?}");
    assert_eq!(bench.record(&upstream.url, "died", &["dies"]).code, 128 + 15);
    assert_eq!(bench.replay(&["failed"], &[]).code, 7);
    let runs = bench.run("runs --status failed --severity flagged --json").json();
    assert_eq!(runs.len(), 2);
    let frames = bench.run("replay died --json").json();
    assert_eq!(frames.last().unwrap()["metadata"]["exit"]["signal"], 15);
    for (command, code) in [("no-such-program-anywhere", 127), ("/", 126)] {
        let done = bench.run_args(["record", "--", command]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.stderr.contains("cannot be started"), "{done:?}");
    }
}

#[test]
fn a_program_without_model_calls_fails_unless_allowed() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let done = bench.record(&upstream.url, "r", &["nothing"]);
    assert_eq!((done.code, done.stdout.as_slice()), (1, &b"no call\n"[..]));
    let error = "error: NO MODEL CALL WAS CAPTURED; the program ended with 0";
    says(&done, &[error, "hint: ", "--env NAME=/PATH", "--allow-empty"]);
    let allowed = ["record", "--allow-empty", "--", "sh", "-c", "exit 0"];
    assert_eq!(bench.run_args(allowed).code, 0);
    // The program's own exit code wins, and the warning is still printed.
    let failed = bench.run_args(["record", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.code, 7);
    says(&failed, &["NO MODEL CALL WAS CAPTURED; the program ended with 7"]);
    // A requested name that is taken is refused.
    assert_eq!(bench.record(&upstream.url, "r", &["nothing"]).code, 125);
}

#[test]
fn unreachable_or_forbidden_upstreams_are_refused() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let gone = "http://127.0.0.1:9";
    let done = bench.record(gone, "r", &["swapped", "a"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "a 502\n", "{done:?}");
    let frames = bench.run("replay r --json").json();
    let broken = frames[0]["metadata"]["http"]["broken"].as_str().unwrap();
    assert!(broken.contains("127.0.0.1:9 cannot be asked"), "{broken}");
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &done.stdout), "{}", replayed.stderr);
    for (bad, args) in [
        ("http://169.254.169.254", &[][..]),
        ("ftp://example.org", &[][..]),
        (&upstream.url, &["--allow-host", "api.openai.com"][..]),
    ] {
        let mut line = vec!["record", "--upstream", bad];
        line.extend(args);
        line.extend(["--", "true"]);
        let done = bench.run_args(line);
        assert!(matches!(done.code, 2 | 125), "{bad}: {done:?}");
        assert!(done.stderr.contains("error: ") && done.stderr.contains("hint: "), "{done:?}");
    }
}

#[test]
fn unrecordable_request_is_refused_and_others_continue() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let done = bench.record(&upstream.url, "r", &["strange"]);
    let text = String::from_utf8(done.stdout.clone()).unwrap();
    assert!(text.contains("501") && text.contains("WebSocket") && text.contains("still there"), "{text}");
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!((replayed.code, replayed.stdout), (0, done.stdout), "{}", replayed.stderr);
}

/// Another local user can find the port but not the secret in the path. A request cannot be hidden in another
/// request's body.
#[test]
fn foreign_and_smuggled_requests_are_refused() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let script = bench.write("wait.sh", "echo $OPENAI_BASE_URL; read line");
    let mut command =
        bench.command(["record", "--run", "r", "--upstream", &upstream.url, "--", "sh", &script]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut address = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut address).unwrap();
    let rest = address.trim().strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let ask = |request: String| {
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let close = "Host: x\r\nConnection: close\r\n";
    assert!(ask(format!("GET /v1/models HTTP/1.1\r\n{close}\r\n")).starts_with("HTTP/1.1 403"));
    // A tunnel is not opened: TLS is not intercepted.
    let tunnel = ask(format!("CONNECT api.openai.com:443 HTTP/1.1\r\n{close}\r\n"));
    assert!(tunnel.starts_with("HTTP/1.1 4"), "{tunnel}");
    assert_eq!(upstream.asked(), 0);
    let differing = "Content-Length: 4\r\nContent-Length: 5\r\n";
    let answer = ask(format!("POST /{path}/x HTTP/1.1\r\n{close}{differing}\r\nabcde"));
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(upstream.asked(), 0);
    // If a request has both a length and chunks, the chunks count (RFC 9112, 6.3). annals sends its own
    // length to the upstream, so the hidden request never becomes a request.
    let two = "Content-Length: 47\r\nTransfer-Encoding: chunked\r\n";
    let hidden = "GET /admin HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = ask(format!("POST /{path}/x HTTP/1.1\r\n{close}{two}\r\n2\r\nok\r\n0\r\n\r\n{hidden}"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("1 /v1/x"), "{answer}");
    assert_eq!(upstream.asked(), 1);
    assert!(ask(format!("GET /{path}/models HTTP/1.1\r\n{close}\r\n")).starts_with("HTTP/1.1 200"));
    assert_eq!(upstream.asked(), 2);
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Regression: a request with more than 100 header fields was refused, and one without the secret was, and nothing was said
/// of either: the recording had "1 request", and its replay was exact.
#[test]
fn refused_requests_are_told_and_many_headers_are_recorded() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let program = "import os, urllib.error, urllib.parse, urllib.request as r\n\
        base = os.environ['OPENAI_BASE_URL']\n\
        many = {f'x-many-{n}': 'v' for n in range(200)}\n\
        r.urlopen(r.Request(base + '/chat/completions', b'{}', many)).read()\n\
        try: r.urlopen(urllib.parse.urljoin(base, '/v1/models'))\n\
        except urllib.error.HTTPError as e: assert e.code == 403, e.code";
    let mut command =
        bench.command(["record", "--run", "r", "--upstream", &upstream.url, "--", "python3", "-c", program]);
    command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let done = ProcessResult::from_output(command.output().unwrap());
    assert!(done.stderr.contains("recorded 1 request into r"), "{done:?}");
    assert!(done.stderr.contains("NOT RECORDED: 1 request that annals refused"), "{done:?}");
    assert_eq!((upstream.asked(), done.code), (1, 1));
    // A fork and a replay that goes on live record, too. The replay ends with 3, because it diverged.
    let other = program.replace("b'{}'", "b'{\"n\":1}'");
    let live = ["replay", "r", "--on-divergence", "live", "--", "python3", "-c", &other];
    for (line, code) in [(&["fork", "r@1", "forked", "--set-all", "$.x=1"][..], 1), (&live, 3)] {
        let mut command = bench.command(line);
        command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        let done = ProcessResult::from_output(command.output().unwrap());
        assert!(done.stderr.contains("NOT RECORDED: 1 request that annals refused"), "{done:?}");
        assert_eq!(done.code, code, "{done:?}");
    }
}

#[test]
fn run_is_found_by_name_prefix_and_as_last() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for run in ["first", "second", "secret"] {
        assert_eq!(bench.record(&upstream.url, run, &["swapped", "a"]).code, 0);
    }
    assert!(bench.run("show last").text().starts_with("secret:"));
    assert!(bench.run("show fi").text().starts_with("first:"));
    let error = bench.run("show sec").failed(4);
    assert!(error.contains("second") && error.contains("secret"), "{error}");
    bench.run("show none").failed(4);
}

#[test]
fn open_shows_where_a_run_failed() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "good", &["swapped", "a,b"]).code, 0);
    assert!(bench.run("open --last-failed").failed(4).contains("no run has failed"));
    assert_eq!(bench.record(&upstream.url, "bad", &["fails", "7"]).code, 7);
    assert_eq!(bench.record(&upstream.url, "later", &["swapped", "a"]).code, 0);
    let runs = bench.run("runs --failed --json").json();
    assert_eq!(runs.iter().map(|run| run["id"].as_str().unwrap()).collect::<Vec<_>>(), ["bad"]);
    let shown = bench.run("open --last-failed").text();
    for what in ["bad: failed", "ended with 7", "bad@1 of", "the first request:", "about to fail", "answer, "]
    {
        assert!(shown.contains(what), "{what:?} is not in {shown}");
    }
    // `--new` compares a request with the one before and shows only the message that differs.
    let new = bench.run("show good@2 --new").text();
    assert!(new.starts_with("beside good@1:"), "{new}");
    assert!(
        new.contains("~ message 2, user") && new.contains("as before") && !new.contains("system"),
        "{new}"
    );
    assert!(bench.run("show good@3 --new").failed(1).contains("no model call"));
}

/// Regression: `open` said "it has no frames" of a program that had failed before its first call, and not how it ended.
#[test]
fn open_shows_how_a_program_failed_before_its_first_call() {
    let bench = CliBench::new();
    let done = bench.run_args(["record", "--run", "r", "--", "python3", "-c", "import no_such_module"]);
    assert_eq!(done.code, 1, "{done:?}");
    let shown = bench.run("open --last-failed").text();
    for what in ["the program ended with 1", "no call was recorded", "No module named"] {
        assert!(shown.contains(what), "{what:?} is not in {shown}");
    }
    assert_eq!(bench.run("open --last-failed --json").json()[0]["exit_code"], 1);
}

/// A provider that answers every request with 500.
fn failing_provider() -> String {
    provider_that_says(
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndown",
    )
}

/// A provider that gives every request this answer.
#[expect(clippy::disallowed_methods, reason = "a thread of the test")]
fn provider_that_says(answer: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    url
}

/// Regression: an answer that ends with trailers was recorded as one whose client had hung up, and its replay never ended
/// it. `diff` called two requests the same that asked for different paths and got the same bytes.
#[test]
fn trailers_end_an_answer_and_paths_differ() {
    let bench = CliBench::new();
    let upstream = provider_that_says(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\nconnection: close\r\n\r\n4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    for (run, path) in [("a", "/one?x=1"), ("b", "/two")] {
        let program = format!(
            "import os, urllib.request as r; print(r.urlopen(os.environ['OPENAI_BASE_URL'] + '{path}').read())"
        );
        let mut command =
            bench.command(["record", "--run", run, "--upstream", &upstream, "--", "python3", "-c", &program]);
        command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        let done = ProcessResult::from_output(command.output().unwrap());
        assert!(done.code == 0 && !done.stderr.contains("without a whole answer"), "{done:?}");
        let replayed = bench.run(&format!("replay {run} --check-output"));
        assert_eq!((replayed.code, replayed.stdout), (0, done.stdout), "{}", replayed.stderr);
    }
    let done = bench.run("diff a b");
    let told = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.code, 3, "{told}");
    assert!(told.contains("GET /v1/one?x=1") && told.contains("GET /v1/two"), "{told}");
}

/// A child process of another test inherits the lock file until it executes its program.
fn await_released(bench: &CliBench) {
    while bench.run("put released yes").stderr.contains("is writing to") {}
}

/// A program that ended with 0 although its only model call answered 500 had not failed, so `--last-failed` found
/// no run. After forks of a failed run it opened the newest fork, not the run that failed in production.
#[test]
fn open_last_failed_passes_over_forks_and_takes_flagged_runs() {
    let bench = CliBench::new();
    let catches = "import os, urllib.request, urllib.error\n\
        try: urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/chat/completions', b'{}')\n\
        except urllib.error.HTTPError: pass";
    let upstream = failing_provider();
    let args = ["record", "--run", "outage", "--upstream", &upstream, "--", "python3", "-c", catches];
    let mut command = bench.command(args);
    command.env("OPENAI_API_KEY", "k").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    assert_eq!(ProcessResult::from_output(command.output().unwrap()).code, 0);
    let [run] = bench.run("runs --json").json().try_into().unwrap();
    assert_eq!((&run["status"], &run["severity"]), (&"ok".into(), &"flagged".into()));
    let opened = |line: &str| {
        let done = bench.run(line);
        assert_eq!(done.code, 0, "{done:?}");
        let shown = String::from_utf8(done.stdout).unwrap();
        (shown.split(':').next().unwrap().to_owned(), done.stderr)
    };
    let (name, note) = opened("open --last-failed");
    assert_eq!(name, "outage");
    assert!(
        note.contains("outage: no run has failed: this is the newest flagged or escalated run"),
        "{note}"
    );
    // A fork of it fails, then a run, then another fork.
    let store = annals::Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    let fork = |of: &str, name: &str| {
        space.fork(of, 1, false, annals::RunSpec::new(name)).unwrap().end(annals::Status::Failed).unwrap()
    };
    fork("outage", "what-if");
    store.close().unwrap();
    await_released(&bench);
    let (name, note) = opened("open --last-failed");
    assert_eq!(name, "what-if");
    assert!(note.contains("what-if: only forks and live replays have failed"), "{note}");
    let good = FakeUpstream::start();
    assert_eq!(bench.record(&good.url, "production", &["fails", "7"]).code, 7);
    let store = annals::Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    for name in ["production-1", "production-2"] {
        let spec = annals::RunSpec::new(name);
        space.fork("production", 1, false, spec).unwrap().end(annals::Status::Failed).unwrap();
    }
    store.close().unwrap();
    await_released(&bench);
    let (name, note) = opened("open --last-failed");
    assert_eq!((name.as_str(), note.as_str()), ("production", ""));
}

impl CliBench {
    pub(crate) fn fork(&self, args: &[&str], upstream: &str) -> ProcessResult {
        let mut all = vec!["fork", "--upstream", upstream];
        all.extend(args);
        let mut command = self.command(all);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }
}

#[test]
fn fork_replays_its_prefix_and_records_the_rest() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    assert_eq!(upstream.asked(), 3);
    // The edited fork replaces the answer of step 2, so only step 3 is requested.
    let swapped = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":["swapped"]}"#;
    let file = bench.write("answer.json", swapped);
    let forked = bench.fork(&["r@2", "child", "--response", &file], &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    says(
        &forked,
        &[
            "forked into child: prefix replayed 1, 1 answer replaced, tail recorded 1, first different at frame 2",
        ],
    );
    assert_eq!(upstream.asked(), 4);
    let told = String::from_utf8(forked.stdout).unwrap();
    assert!(
        told.contains("1: you said") && told.contains("['swapped']") && told.contains("4: you said"),
        "{told}"
    );
    let frames = bench.run("replay child --json").json();
    assert_eq!(frames[1]["output"], swapped);
    assert_eq!(bench.run("verify child").code, 0);
    // The child replays alone, from its parent's frame and its own frames.
    let replayed = bench.replay(&["child"], &[]);
    assert_eq!(
        (replayed.code, String::from_utf8(replayed.stdout.clone()).unwrap()),
        (0, told),
        "{}",
        replayed.stderr
    );
    says(&replayed, &["exact 3 of 3"]);
    let listed = bench.run("runs").text();
    // The point of the fork is the one that was asked for.
    assert!(listed.contains("r@2"), "{listed}");

    // The model changes from step 3 on. The program's requests stay the same; only the requests to the
    // upstream change.
    let forked = bench.fork(&["r@3", "cheap", "--model", "m-2", "--set", "$.temperature=0"], &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    says(&forked, &["prefix replayed 2, tail recorded 1, first different at frame 3"]);
    let frame = &bench.run("show cheap@3 --json").json()[0];
    let input: serde_json::Value = serde_json::from_str(frame["input"].as_str().unwrap()).unwrap();
    assert_eq!((&input["model"], &input["temperature"]), (&"m-2".into(), &0.into()));
    assert_eq!(frame["metadata"]["edited"], true);
    assert_eq!(bench.replay(&["cheap"], &[]).code, 0);

    // The comparison shows one replaced answer, one repeated request, and one changed request.
    let swapped = bench.run("diff r child --json");
    assert_eq!(swapped.code, 3, "{swapped:?}");
    let lines = String::from_utf8(swapped.stdout).unwrap();
    let pair: serde_json::Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
    let wanted = serde_json::json!({ "a": 2, "b": 2, "input": false, "output": true, "same": false });
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&pair[key], value, "{key}: {lines}");
    }
    let cheap = bench.run("diff r cheap");
    let text = String::from_utf8(cheap.stdout).unwrap();
    for what in ["cheap@3 beside r@3:", "model", "m-1 -> m-2", "2 frames the same"] {
        assert!(text.contains(what), "{what:?} is not in {text}");
    }
    assert_eq!(bench.run("diff r r").code, 0);

    // A fork without edits shares the frame that it names.
    let forked = bench.fork(&["r@2"], &upstream.url);
    says(&forked, &["forked into r-fork-2: prefix replayed 2, tail recorded 1"]);
}

#[test]
fn fork_without_its_prefix_is_refused_or_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    // The program's first request differs from the recorded one, so the upstream gets no request.
    let agent = agent();
    let forked = bench.fork(&["r@2", "x", "--", "python3", "-B", &agent, "swapped", "no"], &upstream.url);
    assert_eq!(forked.code, 3, "{forked:?}");
    says(&forked, &["DIVERGED", "2 shared requests never asked for"]);
    assert_eq!(upstream.asked(), 3);
    // The fork checks for the key before the program starts.
    let mut command = bench.command(["fork", "r@2", "y"]);
    let done = ProcessResult::from_output(
        command
            .env_remove("OPENAI_API_KEY")
            .env_remove("AZURE_OPENAI_API_KEY")
            .stdin(Stdio::null())
            .output()
            .unwrap(),
    );
    assert_eq!(done.code, 125, "{done:?}");
    says(&done, &["OPENAI_API_KEY", "is not set"]);
    for line in ["fork r@9 z", "fork r@1 r", "fork r@2 z --set model=x", "fork r z"] {
        assert_ne!(bench.run(line).code, 0, "{line}");
    }
    assert_eq!(bench.run("fork r@2 shared --no-run").code, 0);
    assert_eq!(bench.run("show shared --json").json()[0]["frames"], 2);
}

/// Reading verbs work while a recorder writes. `tail` prints each frame when it is stored and ends with the
/// run.
#[test]
fn tail_follows_a_run_while_it_is_recorded() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let script =
        bench.write("steps.sh", "for step in 1 2 3; do read line; python3 -B $0.py swapped $line; done");
    std::os::unix::fs::symlink(agent(), bench.path("steps.sh.py")).unwrap();
    let command = ["record", "--run", "r", "--upstream", &upstream.url, "--", "sh", &script];
    let mut command = bench.command(command);
    let mut recorder = command
        .env("OPENAI_API_KEY", "k")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = recorder.stdin.take().unwrap();
    lines.write_all(b"first\n").unwrap();
    while bench.run("runs --json").stdout.is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut tail = bench.command(["tail", "r"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = std::io::BufReader::new(tail.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut told, &mut line).unwrap();
        line
    };
    let first = next();
    assert!(first.contains("llm") && first.trim_start().starts_with('1'), "{first}");
    assert!(bench.run("show r").text().contains("open"));
    lines.write_all(b"second\n").unwrap();
    assert!(next().trim_start().starts_with('2'));
    lines.write_all(b"third\n").unwrap();
    assert!(next().trim_start().starts_with('3'));
    drop(lines);
    assert!(next().contains("stdin"));
    assert!(next().contains("program"));
    assert_eq!(next(), "r: ok, normal\n");
    assert!(tail.wait().unwrap().success() && recorder.wait().unwrap().success());
}

/// Regression: `tail` waited for ever for a run whose recorder had been killed.
#[test]
fn tail_ends_if_the_recorder_was_killed() {
    let bench = CliBench::new();
    let mut command = bench.command(["record", "--run", "r", "--", "sh", "-c", "read line"]);
    let mut recorder =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while bench.run("runs --json").stdout.is_empty() {
        std::thread::yield_now();
    }
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let error = bench.run("tail r").failed(1);
    assert!(error.contains("its recorder was stopped"), "{error}");
    bench.run("put key value").ok();
    assert!(bench.run("tail r").text().starts_with("r: abandoned"));
}
