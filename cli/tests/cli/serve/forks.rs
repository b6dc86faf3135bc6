//! Forks that clients of the daemon start: `annals serve --allow-fork -- CMD`.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{ServeProcess, http};
use crate::record::agent;
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// What the recorded program is asked to do.
const DOING: [&str; 3] = ["noted", "1", "a,b,c"];

struct ForkBench {
    bench: CliBench,
    upstream: FakeUpstream,
}

impl ForkBench {
    /// A store with the run `r`, which has three model calls.
    fn new() -> Self {
        let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
        assert_eq!(bench.record(&upstream.url, "r", &DOING).code, 0);
        Self { bench, upstream }
    }

    /// A daemon that starts forks with this command, and its token.
    fn serve(&self, command: &[&str]) -> (ServeProcess, String) {
        let mut args = vec!["serve", "--http", "127.0.0.1:0", "--allow-fork", "--"];
        args.extend(command);
        let mut command = self.bench.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL");
        let daemon = self.bench.spawn_daemon(command);
        let token = daemon.text_after("shown only once: ");
        (daemon, token)
    }
}

fn ask(daemon: &ServeProcess, request: &str, token: &str, body: Value) -> (u16, Value) {
    let (status, text) = http(daemon, request, token, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// The fork of this name, once it has ended.
fn ended(daemon: &ServeProcess, token: &str, run: &str) -> Value {
    loop {
        let (status, all) = ask(daemon, "GET /v1/forks", token, Value::Null);
        assert_eq!(status, 200, "{all}");
        let forks = all["forks"].as_array().unwrap();
        let fork = forks.iter().find(|fork| fork["run"] == run);
        assert!(fork.is_some(), "{run} is not in {all}");
        if let Some(fork) = fork.filter(|fork| fork["running"] == false) {
            return fork.clone();
        }
        std::thread::yield_now();
    }
}

#[test]
fn fork_with_another_answer_runs_on_into_a_new_run() {
    let at = ForkBench::new();
    let agent = agent();
    let (daemon, token) = at.serve(&[&["python3", "-B", &agent], &DOING[..]].concat());
    let (_, all) = ask(&daemon, "GET /v1/forks", &token, Value::Null);
    assert_eq!((&all["command"][0], &all["forks"]), (&json!("python3"), &json!([])));

    let (status, recorded) = http(&daemon, "GET /v1/runs/r/frames/2/response", &token, "");
    assert_eq!(status, 200);
    let answer = recorded.replace("you said", "you never said");
    assert_ne!(answer, recorded);
    let (status, made) =
        ask(&daemon, "POST /v1/forks", &token, json!({ "run": "r", "at": 2, "answer": answer }));
    assert_eq!((status, &made["run"]), (201, &json!("r-fork-2")), "{made}");
    let fork = ended(&daemon, &token, "r-fork-2");
    assert_eq!((&fork["code"], &fork["parent"], &fork["at"]), (&json!(0), &json!("r"), &json!(2)), "{fork}");
    let output = fork["output"].as_str().unwrap();
    // What the program printed, and what annals said.
    assert!(
        output.contains("you never said") && output.contains("forked into r-fork-2: prefix replayed"),
        "{output}"
    );
    let (_, frame) = http(&daemon, "GET /v1/runs/r-fork-2/frames/2/response", &token, "");
    assert_eq!(frame, answer);
    let (_, info) = ask(&daemon, "GET /v1/runs/r-fork-2", &token, Value::Null);
    assert_eq!((&info["parent"]["run"], &info["status"]), (&json!("r"), &json!("ok")), "{info}");
    assert_eq!(at.upstream.asked(), 4, "only the last call was made again");

    // The next one has a name of its own. Names that are taken are refused.
    let (status, made) = ask(
        &daemon,
        "POST /v1/forks",
        &token,
        json!({ "run": "r", "at": 2, "set": { "$.temperature": 0.5 } }),
    );
    assert_eq!((status, &made["run"]), (201, &json!("r-fork-2-2")), "{made}");
    assert_eq!(ended(&daemon, &token, "r-fork-2-2")["code"], 0);
    let (_, request) = http(&daemon, "GET /v1/runs/r-fork-2-2/frames/2/request", &token, "");
    assert_eq!(serde_json::from_str::<Value>(&request).unwrap()["temperature"], 0.5);
    let (status, why) = ask(&daemon, "POST /v1/forks", &token, json!({ "run": "r", "at": 2, "name": "r" }));
    assert_eq!((status, &why["code"]), (409, &json!("CONFLICT")), "{why}");
    let (status, why) = ask(&daemon, "POST /v1/forks", &token, json!({ "run": "r", "at": 99 }));
    assert!(status == 422 && why["detail"].as_str().unwrap().contains("no frame 99"), "{why}");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(at.bench.run("verify").code, 0);
}

#[test]
fn fork_that_cannot_run_says_why() {
    let at = ForkBench::new();
    let (daemon, token) = at.serve(&["no-such-program"]);
    let fork = |run: &str, mut body: Value| {
        body["run"] = run.into();
        ask(&daemon, "POST /v1/forks", &token, body)
    };
    for (run, body, status, detail) in [
        ("none", json!({ "at": 1 }), 404, "none"),
        ("r", json!({ "at": 1 }), 422, "no-such-program"),
        ("r", json!({}), 400, "at"),
        ("r", json!({ "at": 1, "answr": "x" }), 400, "answr"),
        ("r", json!({ "at": 1, "name": "--no-run" }), 400, "must not begin"),
        ("r", json!({ "at": 1, "set": { "$.a=b": 1 } }), 400, "must not begin"),
        ("r", json!({ "at": 1, "set": { "temperature": 1 } }), 422, "temperature"),
        ("r", json!({ "at": 1, "tool_results": { "call_9": "x" } }), 422, "tool result"),
    ] {
        let (told, why) = fork(run, body.clone());
        assert_eq!(told, status, "{body}: {why}");
        assert!(why["detail"].as_str().unwrap().contains(detail), "{body}: {why}");
    }
    let (_, all) = ask(&daemon, "GET /v1/forks", &token, Value::Null);
    assert!(all["forks"].as_array().unwrap().iter().all(|fork| fork["running"] == false), "{all}");
    let (_, runs) = ask(&daemon, "GET /v1/runs", &token, Value::Null);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
    assert_eq!(ask(&daemon, "DELETE /v1/forks/none", &token, Value::Null).0, 404);
}

/// A client who can start a program on this machine can do everything that the daemon's user can.
#[test]
fn forks_take_all_rights_and_a_daemon_that_allows_them() {
    let at = ForkBench::new();
    let made = at.bench.run("token add some --rights record,read").text();
    let all = at.bench.run("token add all").text();
    let (some, all) = (made.trim(), all.trim());
    let daemon = at.bench.serve(&["--http", "127.0.0.1:0"]);
    let (status, why) = ask(&daemon, "POST /v1/forks", all, json!({ "run": "r", "at": 1 }));
    assert!(status == 403 && why["detail"].as_str().unwrap().contains("--allow-fork"), "{why}");
    assert_eq!(ask(&daemon, "GET /v1/forks", all, Value::Null).1, json!({ "command": null, "forks": [] }));
    for request in ["POST /v1/forks", "GET /v1/forks", "DELETE /v1/forks/r"] {
        let (status, why) = ask(&daemon, request, some, json!({ "run": "r", "at": 1 }));
        assert!(status == 403 && why["detail"].as_str().unwrap().contains("operate"), "{request}: {why}");
        assert_eq!(ask(&daemon, request, "", json!({ "run": "r", "at": 1 })).0, 401);
    }
    drop(daemon);
    for (line, why) in [
        ("serve --http 127.0.0.1:0 --no-auth --allow-fork -- true", "every user of this machine"),
        ("serve --allow-fork -- true", "needs http"),
        ("serve --http 127.0.0.1:0 --allow-fork", "CMD"),
        ("serve --http 127.0.0.1:0 -- true", "--allow-fork"),
    ] {
        let done = at.bench.run(line);
        assert!(done.code == 2 && done.stderr.contains(why), "{line}: {done:?}");
    }
}

/// A fork that is stopped keeps what it has recorded. A daemon that ends stops its forks.
#[test]
fn forks_end_when_asked_and_with_their_daemon() {
    let at = ForkBench::new();
    let program = format!("python3 -B {} {}; sleep 600", agent(), DOING.join(" "));
    let (daemon, token) = at.serve(&["sh", "-c", &program]);
    let start = || {
        let (status, made) = ask(&daemon, "POST /v1/forks", &token, json!({ "run": "r", "at": 2 }));
        assert_eq!(status, 201, "{made}");
        made["run"].as_str().unwrap().to_owned()
    };
    let first = start();
    let (status, why) = ask(&daemon, "POST /v1/forks", &token, json!({ "run": "r", "at": 2, "name": first }));
    assert_eq!(status, 409, "{why}");
    // The last call of the program is stored before it is stopped.
    while at.upstream.asked() < 4 {
        std::thread::yield_now();
    }
    while ask(&daemon, &format!("GET /v1/runs/{first}/frames/3"), &token, Value::Null).0 != 200 {
        std::thread::yield_now();
    }
    assert_eq!(ask(&daemon, &format!("DELETE /v1/forks/{first}"), &token, Value::Null).0, 204);
    let fork = ended(&daemon, &token, &first);
    assert_ne!(fork["code"], 0, "{fork}");
    let second = start();
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let runs = at.bench.run("runs --json").json();
    let of = |name: &str| {
        let found = runs.iter().find(|run| run["id"] == name);
        assert!(found.is_some(), "{name} is lost");
        found.unwrap()
    };
    assert!(of(&first)["frames"].as_u64().unwrap() >= 3, "{runs:?}");
    assert_ne!(of(&second)["status"], "open");
    assert_eq!(at.bench.run("verify").code, 0);
}

/// Regression: `annals fork` waited for the store while a daemon held it. It records through the daemon, and takes the
/// store over if that one is killed.
#[test]
fn fork_beside_a_daemon_records_through_it_and_outlives_it() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let file = bench.path("go on").display().to_string();
    bench.write("go on", "");
    assert_eq!(bench.record(&upstream.url, "r", &["held", "a", &file, "b"]).code, 0);
    let fork = |name: &str, more: &[&str]| {
        let agent = agent();
        let mut args = vec!["fork", "r@1", name, "--wait", "0"];
        args.extend(more);
        args.extend(["--", "python3", "-B", &agent, "held", "a", &file, "b"]);
        let mut command = bench.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let daemon = bench.serve(&[]);
    let done =
        ProcessResult::from_output(fork("edited", &["--set-all", "$.temperature=0.5"]).output().unwrap());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("first different at frame 1"), "{done:?}");
    let shared = bench.run("fork r@1 shared --no-run --json").json();
    assert_eq!((&shared[0]["id"], &shared[0]["frames"]), (&"shared".into(), &1.into()), "{shared:?}");

    #[expect(clippy::disallowed_methods, reason = "a file of the test")]
    std::fs::remove_file(&file).unwrap();
    let child = fork("child", &[]).spawn().unwrap();
    while bench.run("show child --json").code != 0 {
        std::thread::yield_now();
    }
    daemon.signal("-KILL");
    daemon.wait_for_exit();
    bench.write("go on", "");
    let done = ProcessResult::from_output(child.wait_with_output().unwrap());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("prefix replayed 1, tail recorded 1"), "{done:?}");
    let runs = bench.run("runs --json").json();
    let child = runs.iter().find(|run| run["id"] == "child").unwrap();
    assert_eq!((&child["status"], &child["forked_from"]["run"]), (&"ok".into(), &"r".into()), "{child}");
    assert_eq!(bench.replay(&["child"], &["held", "a", &file, "b"]).code, 0);
    assert_eq!(bench.run("verify").code, 0);
}
