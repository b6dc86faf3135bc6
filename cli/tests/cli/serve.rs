//! A store that a daemon serves to clients.

#[cfg(target_os = "linux")]
mod forks;
mod hostile;
mod hostile_http;
mod kills;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::CliBench;
use crate::upstream::FakeUpstream;

/// A running daemon.
pub(crate) struct ServeProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Lines that it printed before it was ready.
    start_lines: Vec<String>,
}

impl CliBench {
    pub(crate) fn serve(&self, options: &[&str]) -> ServeProcess {
        let mut args = vec!["serve"];
        args.extend(options);
        self.spawn_daemon(self.command(args))
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn spawn_daemon(&self, mut command: std::process::Command) -> ServeProcess {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut told = Vec::new();
        while !told.iter().any(|line: &String| line == "annals: ready") {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the daemon was never ready: {told:?}");
            told.push(line.trim_end().to_owned());
        }
        ServeProcess { child, stderr, start_lines: told }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path(".annals/SOCKET")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn value(&self, key: &str) -> Option<String> {
        let done = self.run(&format!("get {key} --keyspace db0 --raw"));
        (done.code == 0).then(|| String::from_utf8(done.stdout).unwrap())
    }
}

impl ServeProcess {
    /// The rest of the start line that contains these words.
    fn text_after(&self, words: &str) -> String {
        let found = self.start_lines.iter().find_map(|line| line.split_once(words)).map(|(_, rest)| rest);
        assert!(found.is_some(), "{words:?} is not in {:?}", self.start_lines);
        found.unwrap().to_owned()
    }

    fn tcp(&self) -> TcpStream {
        let mut address =
            self.start_lines.iter().filter_map(|line| line.split_once("127.0.0.1:")).map(|(_, rest)| rest);
        let port: String = address.next_back().unwrap().chars().take_while(char::is_ascii_digit).collect();
        let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the daemon's end. Returns its exit code and its output since it was ready.
    pub(crate) fn wait_for_exit(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a command and reads one line.
fn ask(stream: &mut (impl Read + Write), command: &str) -> String {
    stream.write_all(command.as_bytes()).unwrap();
    stream.write_all(b"\r\n").unwrap();
    line(stream)
}

fn line(stream: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.last() != Some(&b'\n') && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

#[test]
fn a_daemon_compacts_the_store_that_it_serves() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let daemon = bench.serve(&[]);
    let [told] = bench.run("compact --dry-run --recompress --json").json().try_into().unwrap();
    assert_eq!((&told["dry_run"], &told["rewritten"]), (&true.into(), &0.into()), "{told}");
    let text = bench.run("compact --max-bytes-per-second 1000000").text();
    assert!(text.contains("none worth rewriting"), "{text}");
    drop(daemon);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "looks at files as a user would")]
fn daemon_keeps_witnesses_of_its_store() {
    let bench = CliBench::new();
    assert!(bench.run("serve --witness kept").failed(2).contains("does not exist"));
    std::fs::create_dir(bench.path("kept")).unwrap();
    assert!(bench.run("serve --witness-every 1h").failed(2).contains("witness_every needs witness"));
    let daemon = bench.serve(&["--witness", "kept", "--witness-every", "1s"]);
    let files = || {
        let all = std::fs::read_dir(bench.path("kept")).unwrap().map(|entry| entry.unwrap().path());
        // A witness has a draft's name until it is whole.
        all.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
    };
    let wait_for = |count: usize| -> Vec<std::path::PathBuf> {
        loop {
            let found: Vec<std::path::PathBuf> = files();
            if found.len() >= count {
                return found;
            }
            std::thread::yield_now();
        }
    };
    let first = wait_for(1);
    let kept = std::fs::read(&first[0]).unwrap();
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, "set colour blue"), "+OK");
    wait_for(2);
    assert_eq!(std::fs::read(&first[0]).unwrap(), kept, "a witness never changes");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit(), (Some(0), String::new()));
    let told = bench.run("verify --against kept").text();
    assert!(told.contains("\nunchanged: all "), "{told}");
}

#[test]
fn socket_writes_are_visible_to_the_engine() {
    let bench = CliBench::new();
    let daemon = bench.serve(&[]);
    assert!(daemon.text_after("listening at ").ends_with(".annals/SOCKET"));
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, "set colour blue"), "+OK");
    assert_eq!(ask(&mut client, "get colour"), "$4");
    assert_eq!(line(&mut client), "blue");
    // Readers open the store directly. A writer is refused, and the error names the daemon's process.
    assert_eq!(bench.value("colour").as_deref(), Some("blue"));
    assert!(bench.run("put a b --wait 0").failed(1).contains(&daemon.child.id().to_string()));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit(), (Some(0), String::new()));
    assert!(!bench.path(".annals/SOCKET").exists());
    assert_eq!(bench.value("colour").as_deref(), Some("blue"));
    assert_eq!(bench.run("verify").code, 0);
}

#[test]
fn tcp_is_loopback_only_and_needs_a_token() {
    let bench = CliBench::new();
    for address in ["0.0.0.0:0", "192.0.2.1:7420"] {
        let refused = bench.run_args(["serve", "--tcp", address]).failed(2);
        assert!(refused.contains("not an address of the loopback"), "{refused}");
    }
    let daemon = bench.serve(&["--tcp", "127.0.0.1:0"]);
    let token = daemon.text_after("shown only once: ");
    assert_eq!(token.len(), 64);
    let mut client = daemon.tcp();
    assert_eq!(ask(&mut client, "get a"), "-NOAUTH Authentication required.");
    assert_eq!(
        ask(&mut client, "auth 0000"),
        "-WRONGPASS invalid username-password pair or user is disabled."
    );
    assert_eq!(ask(&mut client, &format!("auth {token}")), "+OK");
    assert_eq!(ask(&mut client, "set a 1"), "+OK");
    // A page in a browser can send these bytes to any port of the machine.
    let mut page = daemon.tcp();
    assert_eq!(ask(&mut page, "POST / HTTP/1.1\r\nHost: x\r\n\r\nset a 2"), "");
    assert_eq!(ask(&mut client, "get a"), "$1");
    assert_eq!(line(&mut client), "1");
    daemon.signal("-INT");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    // The token is valid from now on, and the daemon does not print it again.
    let again = bench.serve(&["--tcp", "127.0.0.1:0"]);
    assert!(
        !again.start_lines.iter().any(|line| line.contains("token,") || line.contains(&token)),
        "{:?}",
        again.start_lines
    );
    assert_eq!(ask(&mut again.tcp(), &format!("auth {token}")), "+OK");
    drop(again);
    let open = bench.serve(&["--tcp", "127.0.0.1:0", "--no-auth"]);
    open.text_after("without a token");
    assert_eq!(ask(&mut open.tcp(), "set b 1"), "+OK");
}

#[test]
fn config_file_and_second_socket_are_used() {
    let bench = CliBench::new();
    let hash = blake3::hash(b"sesame");
    bench.write(
        "annals.toml",
        format!(
            "tcp = \"127.0.0.1:0\"\nsocket = \"here\"\n[[tokens]]\nname = \"mine\"\nblake3 = \"{hash}\"\n"
        ),
    );
    let daemon = bench.serve(&["--config", "annals.toml"]);
    assert_eq!(ask(&mut daemon.tcp(), "auth sesame"), "+OK");
    let mut other = UnixStream::connect(bench.path("here")).unwrap();
    assert_eq!(ask(&mut other, "set a 1"), "+OK");
    assert_eq!(ask(&mut bench.connect(), "strlen a"), ":1");
    bench.write("wrong.toml", "port = 1\n");
    assert!(bench.run("serve --config wrong.toml").failed(2).contains("port"));
    bench.write("a-file", "of the user's");
    drop(daemon);
    assert!(bench.run("serve --socket a-file").failed(1).contains("a-file"));
}

/// Sets keys `NAME:N` one after the other until the daemon ends. Returns the number of acknowledged keys.
fn load(mut client: impl Read + Write, name: usize, begun: &AtomicUsize) -> usize {
    for number in 0.. {
        if number == 20 {
            begun.fetch_add(1, Ordering::Relaxed);
        }
        let sent = client.write_all(format!("set {name}:{number} {number}\r\n").as_bytes());
        if sent.is_err() || line(&mut client) != "+OK" {
            return number;
        }
    }
    0
}

#[test]
fn acknowledged_writes_survive_every_daemon_end() {
    for signal in ["-TERM", "-KILL"] {
        let bench = CliBench::new();
        let daemon = bench.serve(&[]);
        let begun = AtomicUsize::new(0);
        let counts = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|name| {
                    let (client, begun) = (bench.connect(), &begun);
                    scope.spawn(move || load(client, name, begun))
                })
                .collect();
            while begun.load(Ordering::Relaxed) < clients.len() {
                std::thread::yield_now();
            }
            daemon.signal(signal);
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        let (code, _) = daemon.wait_for_exit();
        assert_eq!(code, (signal == "-TERM").then_some(0));
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        let there = bench.run("scan --keyspace db0 --json").json();
        for (name, count) in counts.iter().enumerate() {
            let of =
                there.iter().filter(|pair| pair["key"].as_str().unwrap().starts_with(&format!("{name}:")));
            // The daemon may have written one more key without acknowledging it.
            let of = of.count();
            assert!((*count..=count + 1).contains(&of), "{signal}: of {count} there are {of}");
        }
        assert_eq!(bench.run("verify").code, 0);
    }
}

#[test]
fn annals_commands_work_over_sockets_and_persist() {
    let bench = CliBench::new();
    let daemon = bench.serve(&["--tcp", "127.0.0.1:0", "--no-auth"]);
    let (mut one, mut other) = (bench.connect(), bench.connect());
    for (command, reply) in
        [("run.begin name r", "*4"), ("frame.begin r llm ask", ":1"), ("frame.append r 1 half", ":4")]
    {
        // The rest of a longer reply does not matter.
        let mut once = bench.connect();
        assert_eq!(ask(&mut once, command), reply);
    }
    // A blocked reader of a run waits until the answer is whole and delays no other client.
    other.write_all(b"run.tail r block 0\r\n").unwrap();
    assert_eq!(ask(&mut one, "frame.append r 1 whole"), ":9");
    // The daemon may close the connection before the whole command is sent.
    let _ = one.write_all(format!("set long {}\r\n", "x".repeat(200_000)).as_bytes());
    assert_eq!(line(&mut one), "-ERR Protocol error: too big inline request");
    let mut one = bench.connect();
    let long = "x".repeat(200_000);
    assert_eq!(ask(&mut one, &format!("*3\r\n$3\r\nset\r\n$4\r\nlong\r\n$200000\r\n{long}")), "+OK");
    assert_eq!(ask(&mut one, "frame.end r 1"), "+OK");
    assert_eq!((line(&mut other), line(&mut other)), ("*1".to_owned(), "*32".to_owned()));
    assert_eq!(ask(&mut one, "frame.add r tool a b"), ":2");
    // A client over TCP may not make the daemon write files.
    let copy = bench.path("copy");
    let backup = format!("store.backup {}", copy.display());
    assert!(ask(&mut daemon.tcp(), &backup).starts_with("-NOPERM "));
    assert_eq!(ask(&mut bench.connect(), &backup), "*10");
    assert_eq!(ask(&mut bench.connect(), "store.verify"), "*20");
    assert_eq!(ask(&mut one, "frame.begin r llm again"), ":3");
    assert_eq!(ask(&mut one, "frame.append r 3 begun"), ":5");
    daemon.signal("-KILL");
    drop(daemon);
    let again = bench.serve(&[]);
    let mut client = bench.connect();
    assert_eq!(
        ask(&mut client, "run.end r"),
        "-CONFLICT run r has ended (abandoned): fork it, or record into a new run"
    );
    for (part, bytes) in [("1 response", "halfwhole"), ("2 request", "a"), ("3 response", "begun")] {
        assert_eq!(ask(&mut client, &format!("frame.get r {part}")), format!("${}", bytes.len()));
        assert_eq!(line(&mut client), bytes);
    }
    assert_eq!(ask(&mut client, "strlen long"), ":200000");
    assert_eq!(ask(&mut client, "run.begin name s"), "*4");
    again.signal("-TERM");
    assert_eq!(again.wait_for_exit(), (Some(0), String::new()));
    let runs = bench.run("runs --json").json();
    assert!(runs.iter().all(|run| run["status"] == "abandoned") && runs.len() == 2, "{runs:?}");
    assert_eq!(bench.run("verify").code, 0);
    assert_eq!(bench.run_args(["--store", copy.to_str().unwrap(), "verify"]).code, 0);
}

#[test]
fn hostile_connections_do_not_disturb_others() {
    let bench = CliBench::new();
    let daemon = bench.serve(&["--tcp", "127.0.0.1:0"]);
    let mut setup = bench.connect();
    assert_eq!(ask(&mut setup, &format!("set big {}", "x".repeat(60_000))), "+OK");
    // A client that never reads its replies, until the daemon accepts no more commands.
    let mut greedy = bench.connect();
    greedy.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut quiet = 0;
    while quiet < 20 {
        match greedy.write(b"get big\r\n") {
            Ok(written) => (sent, quiet) = (sent + written, 0),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 64 << 20, "the daemon must stop reading");
    }
    // A client that announces a huge value, one that sends half a command, one that sends single bytes, and
    // one that sends noise.
    let mut announces = bench.connect();
    announces.write_all(b"*2\r\n$3\r\nGET\r\n$536870912\r\n").unwrap();
    let mut half = bench.connect();
    half.write_all(b"*3\r\n$3\r\nSE").unwrap();
    let mut drip = bench.connect();
    let mut stranger = daemon.tcp();
    let refused = ask(&mut stranger, "*1\r\n$1000000");
    assert_eq!(refused, "-ERR Protocol error: unauthenticated bulk length");
    let mut other = bench.connect();
    for (number, byte) in b"*3\r\n$3\r\nSET\r\n$4\r\ndrip\r\n$1\r\n1\r\n".iter().enumerate() {
        drip.write_all(&[*byte]).unwrap();
        assert_eq!(ask(&mut other, &format!("set n {number}")), "+OK");
    }
    assert_eq!(line(&mut drip), "+OK");
    // These clients do not delay the daemon's end, and their memory is small.
    let status = format!("/proc/{}/status", daemon.child.id());
    #[expect(clippy::disallowed_methods, reason = "reads the memory of the process")]
    let status = std::fs::read(status).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if let Some(resident) = status.ok().and_then(|text| Some(text.split_once("VmRSS:")?.1.to_owned())) {
        let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
        assert!(kib < 200 << 10, "{kib} KiB");
    }
    drop((announces, half, greedy));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
}

#[test]
fn a_program_is_recorded_through_a_daemon() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let daemon = bench.serve(&[]);
    let mut client = bench.connect();
    let recorded = bench.record(&upstream.url, "r", &["swapped", "a,b,c,d"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    assert_eq!(ask(&mut client, "set a 1"), "+OK");
    let runs = bench.run("runs --json").json();
    assert_eq!((&runs[0]["id"], &runs[0]["status"]), (&"r".into(), &"ok".into()));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    assert_eq!(String::from_utf8_lossy(&replayed.stdout), String::from_utf8_lossy(&recorded.stdout));
}

/// Sends a request over HTTP. Returns the status and the body.
pub(crate) fn http(daemon: &ServeProcess, request: &str, token: &str, body: &str) -> (u16, String) {
    let address = daemon.text_after("listening at http://");
    let address = address.split(',').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let login = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{login}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn http_accepts_a_token_made_by_the_command_line() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let add = |name: &str| {
        let made = bench.run(&format!("token add {name} --rights record,read"));
        assert_eq!(made.code, 0, "{}", made.stderr);
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let early = add("early");
    let daemon = bench.serve(&["--http", "127.0.0.1:0"]);
    assert!(
        !daemon.start_lines.iter().any(|line| line.contains("shown only once")),
        "there is a token already"
    );
    assert_eq!(http(&daemon, "GET /v1/runs", "", "").0, 401);
    assert_eq!(http(&daemon, "POST /v1/runs", &early, "{\"name\":\"r\"}").0, 201);
    // Tokens can be added while the daemon holds the store.
    let late = add("late");
    assert_eq!(http(&daemon, "GET /v1/runs/r", &late, "").0, 200);
    assert_eq!(http(&daemon, "GET /v1/store/stats", &late, "").0, 403);
    bench.run("token revoke late").ok();
    assert_eq!(http(&daemon, "GET /v1/runs/r", &late, "").0, 401);
    assert_eq!(bench.run("token revoke late").code, 4);
    assert_eq!(http(&daemon, "POST /v1/runs/r/end", &early, "").0, 204);
    daemon.signal("-TERM");
    // The daemon prints only the refused logins.
    let (code, said) = daemon.wait_for_exit();
    assert!(code == Some(0) && said.lines().all(|line| line.contains("a login was refused")), "{said}");
    let listed = String::from_utf8(bench.run("token list").stdout).unwrap();
    assert_eq!(listed, "early  default  record,read\n");
    // The operations are stored as a run.
    let operations = String::from_utf8(bench.run("runs --namespace annals").stdout).unwrap();
    assert!(operations.contains("operations-"), "{operations}");
    assert_eq!(bench.run("verify").code, 0);
}

#[test]
fn environment_sets_options_and_json_log_is_pure() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let mut command = bench.command(["serve"]);
    command.env("ANNALS_TCP", "127.0.0.1:0").env("ANNALS_LOG", "json");
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "no token is shown in a log");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("annals token add"));
    bench.run("token add me").ok();
    let mut command = bench.command(["serve"]);
    command.env("ANNALS_TCP", "127.0.0.1:0").env("ANNALS_LOG", "json").env("ANNALS_SLOW_MS", "0");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line.contains("the daemon serves")) {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{lines:?}");
        lines.push(line);
    }
    let mut client = bench.connect();
    assert_eq!(ask(&mut client, "set colour secret-word"), "+OK");
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    lines.extend(rest.lines().map(str::to_owned));
    for line in &lines {
        let _: serde_json::Value = serde_json::from_str(line).unwrap();
    }
    let all = lines.concat();
    assert!(all.contains("\"command\":\"SET\"") && !all.contains("secret-word"), "{all}");
    assert!(all.contains("\"protocol\":\"resp\"") && all.contains("the daemon ends"), "{all}");
}

/// Writes the certificate and the key of the daemon's own tests. They protect nothing.
#[expect(clippy::disallowed_methods, reason = "files that a user would have")]
fn write_tls_files(bench: &CliBench) {
    let (cert, key) = (
        include_str!("../../../server/daemon/src/tls/test-cert.pem"),
        include_str!("../../../server/daemon/src/tls/test-key.pem"),
    );
    std::fs::write(bench.path("cert.pem"), cert).unwrap();
    std::fs::write(bench.path("key.pem"), key).unwrap();
}

#[test]
fn daemon_with_tls_tells_plain_clients_and_logs_them() {
    let bench = CliBench::new();
    write_tls_files(&bench);
    assert!(bench.run("serve --tcp 0.0.0.0:0").failed(2).contains("tls_cert"));
    assert!(bench.run("serve --tls-cert cert.pem").failed(2).contains("tls_key"));
    let daemon =
        bench.serve(&["--tcp", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem", "--no-auth"]);
    assert!(daemon.start_lines.iter().any(|line| line.contains("with TLS")), "{:?}", daemon.start_lines);
    assert!(ask(&mut daemon.tcp(), "ping").starts_with("-ERR this port requires TLS"));
    assert_eq!(ask(&mut bench.connect(), "ping"), "+PONG", "the Unix socket needs none");
    daemon.signal("-TERM");
    let (code, said) = daemon.wait_for_exit();
    assert!(code == Some(0) && said.contains("a client without TLS was refused"), "{said}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
fn hangup_reads_tokens_again_and_keeps_them_if_invalid() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let config = |names: &[&str]| {
        let one = |name: &&str| {
            format!(
                "[[tokens]]\nname = \"{name}\"\nblake3 = \"{}\"\n",
                blake3::hash(name.as_bytes()).to_hex()
            )
        };
        std::fs::write(bench.path("a.toml"), names.iter().map(one).collect::<String>()).unwrap();
    };
    config(&["old"]);
    let mut daemon = bench.serve(&["--tcp", "127.0.0.1:0", "--config", "a.toml"]);
    let mut client = daemon.tcp();
    assert_eq!(ask(&mut client, "auth old"), "+OK");
    let hang_up = |daemon: &mut ServeProcess| {
        daemon.signal("-HUP");
        let mut told = String::new();
        while !told.contains("SIGHUP") {
            told.clear();
            assert!(daemon.stderr.read_line(&mut told).unwrap() > 0);
        }
        told
    };
    std::fs::write(bench.path("a.toml"), "[[tokens]]\nnam = 1\n").unwrap();
    let told = hang_up(&mut daemon);
    assert!(told.contains("a.toml:2:1") && told.contains("the old one stays"), "{told}");
    assert_eq!(ask(&mut client, "ping"), "+PONG");
    config(&["new"]);
    let told = hang_up(&mut daemon);
    assert!(told.contains("read again"), "{told}");
    assert_eq!(ask(&mut client, "ping"), "", "its token is gone");
    assert!(ask(&mut daemon.tcp(), "auth old").starts_with("-WRONGPASS"));
    assert_eq!(ask(&mut daemon.tcp(), "auth new"), "+OK");
}

#[test]
fn rotated_token_and_its_successor_overlap() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let text = |line: &str| bench.run(line).text().trim().to_owned();
    let old = text("token add ci --expires 90d");
    let daemon = bench.serve(&["--tcp", "127.0.0.1:0"]);
    assert!(bench.run("token add x --expires yesterday").failed(1).contains("expiry"));
    let new = text("token rotate ci --overlap 1h");
    let mut client = daemon.tcp();
    for token in [&old, &new] {
        assert_eq!(ask(&mut client, &format!("auth ci {token}")), "+OK");
    }
    let listed = text("token list");
    assert_eq!(listed.lines().filter(|line| line.starts_with("ci ")).count(), 2, "{listed}");
    assert_eq!(listed.matches("expires 20").count(), 1, "{listed}");
    text("token rotate ci --overlap 0s");
    assert_eq!(ask(&mut client, "ping"), "", "the token of this connection is gone");
    assert!(ask(&mut daemon.tcp(), &format!("auth ci {old}")).starts_with("-WRONGPASS"));
    assert!(bench.run("token rotate nobody").failed(4).contains("no token nobody"));
    drop(daemon);
    assert!(bench.run("token rotate nobody").failed(4).contains("no token nobody"));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "looks at files as a user would")]
fn backups_of_a_folder_are_made_and_pruned() {
    let bench = CliBench::new();
    bench.run("put colour blue").ok();
    assert_eq!(bench.run("backup").code, 2);
    assert!(bench.run("backup --to kept").failed(1).contains("kept"));
    std::fs::create_dir(bench.path("kept")).unwrap();
    assert!(bench.run("serve --backup-every 1h").failed(2).contains("backup_every needs backup_to"));
    let backups = || {
        let all = std::fs::read_dir(bench.path("kept")).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("backup-"));
        names.sort();
        names
    };
    bench.run("backup --to kept --keep 2").ok();
    let first = backups();
    // A daemon goes on where the command stopped. The oldest is removed once the third is whole.
    let daemon = bench.serve(&["--backup-to", "kept", "--backup-every", "1s", "--backup-keep", "2"]);
    while backups().contains(&first[0]) {
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut bench.connect(), "set later 1"), "+OK");
    daemon.signal("-TERM");
    let (code, said) = daemon.wait_for_exit();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let kept = backups();
    assert_eq!(kept.len(), 2, "{kept:?}");
    // Regression: a daemon that could not listen made a backup all the same. Restarted again and again, it replaced the
    // good ones.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    for _ in 0..3 {
        let line = format!("serve --no-auth --tcp {at} --backup-to kept --backup-keep 2 --witness kept");
        assert!(bench.run(&line).failed(1).contains(&at));
    }
    assert_eq!(backups(), kept);
    assert_eq!(std::fs::read_dir(bench.path("kept")).unwrap().count(), kept.len(), "no checkpoint");
    bench.run(&format!("restore kept/{} restored", kept[1])).ok();
    assert_eq!(bench.run("get colour --store restored --raw").text(), "blue");
    let operations = bench.run("runs --namespace annals").text();
    assert!(operations.contains("operations-"), "{operations}");
}

#[test]
fn service_manager_is_told_when_the_daemon_listens() {
    let bench = CliBench::new();
    let manager = std::os::unix::net::UnixDatagram::bind(bench.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = bench.command(["serve"]);
    command.env("NOTIFY_SOCKET", bench.path("notify"));
    let _daemon = bench.spawn_daemon(command);
    let mut told = [0; 64];
    let bytes = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..bytes], b"READY=1");
}
