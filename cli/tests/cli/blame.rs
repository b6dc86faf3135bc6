//! `annals blame` with a program that knows nothing about annals, and with everything that can go wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::record::says;
use crate::{CliBench, ProcessResult};

mod forks;
mod judge;
mod perturbations;
mod refusals;

type AnswerFn = dyn Fn(u64, u64, &Value) -> Value + Send + Sync;

/// A scripted model: its answer is a function of the step (from 1), of how often that step was asked (from 0),
/// and of the request.
struct StepUpstream {
    url: String,
    asked: Arc<AtomicU64>,
}

impl StepUpstream {
    fn start(answer: impl Fn(u64, u64, &Value) -> Value + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicU64::new(0));
        let answer: Arc<AnswerFn> = Arc::new(answer);
        let counts: Arc<Vec<AtomicU64>> = Arc::new((0..64).map(|_| AtomicU64::new(0)).collect());
        let total = asked.clone();
        let accept = move || {
            for stream in listener.incoming() {
                let (stream, answer) = (stream.unwrap(), answer.clone());
                let (counts, total) = (counts.clone(), total.clone());
                let serve = move || serve(stream, &*answer, &counts, &total);
                std::thread::Builder::new().spawn(serve).unwrap();
            }
        };
        std::thread::Builder::new().spawn(accept).unwrap();
        Self { url, asked }
    }

    /// A model that errs once, at this step; later answers repeat what they were told.
    fn with_fault(at: u64) -> Self {
        Self::start(move |step, times, request| {
            let told = request["messages"].to_string().contains("WRONG");
            match (step == at && times == 0, told) {
                (true, _) => message("value WRONG"),
                (_, true) => message(&format!("value {step} as before")),
                (_, false) => message(&format!("value {step}")),
            }
        })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

fn message(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

fn serve(stream: TcpStream, answer: &AnswerFn, counts: &[AtomicU64], total: &AtomicU64) {
    let mut from = BufReader::new(stream.try_clone().unwrap());
    let mut to = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if from.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if from.read_exact(&mut body).is_err() {
            return;
        }
        let request: Value = serde_json::from_slice(&body).unwrap();
        let said = request["messages"].as_array().unwrap();
        let step = 1 + said.iter().filter(|message| message["role"] == "assistant").count() as u64;
        total.fetch_add(1, Ordering::SeqCst);
        let message = answer(step, counts[step as usize].fetch_add(1, Ordering::SeqCst), &request);
        let status = message["status"].as_u64().unwrap_or(200);
        let body =
            json!({ "id": "x", "model": request["model"], "choices": [{ "index": 0, "message": message,
            "finish_reason": "stop" }], "usage": { "prompt_tokens": 10, "completion_tokens": 5 } })
            .to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if to.write_all(&[head.as_bytes(), body.as_bytes()].concat()).is_err() {
            return;
        }
    }
}

fn agent() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/steps.py").to_str().unwrap().to_owned()
}

impl CliBench {
    fn record_steps(&self, upstream: &StepUpstream, run: &str, doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut args =
            vec!["record", "--run", run, "--upstream", &upstream.url, "--", "python3", "-B", &agent];
        args.extend(doing);
        self.blame_command(&args)
    }

    fn blame_command(&self, args: &[&str]) -> ProcessResult {
        let mut command = self.command(args);
        command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }

    /// The stored blame; null if there is none.
    fn stored_blame(&self, run: &str) -> Value {
        let shown = self.run_args(["blame", run, "--show", "--json"]);
        serde_json::from_slice(&shown.stdout).unwrap_or_default()
    }

    fn blame_rows(&self, run: &str) -> Vec<Value> {
        self.stored_blame(run)["steps"].as_array().unwrap().clone()
    }

    fn spent_calls(&self, run: &str) -> u64 {
        self.stored_blame(run)["spent"]["calls"].as_u64().unwrap_or(0)
    }

    fn spent_dollars(&self, run: &str) -> f64 {
        self.stored_blame(run)["spent"]["dollars"].as_f64().unwrap()
    }
}

/// The error line of a command that printed notes before it.
#[track_caller]
fn error_of(done: &ProcessResult, code: i32) -> String {
    assert_eq!(done.code, code, "{done:?}");
    done.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error line").to_owned()
}

fn row_of(rows: &[Value], step: u64) -> &Value {
    rows.iter().find(|row| row["step"] == step).unwrap()
}

#[test]
fn blame_names_the_faulty_step_and_keeps_its_forks() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(3));
    assert_eq!(bench.record_steps(&upstream, "r", &["5"]).code, 1);
    let asked = upstream.asked();
    let estimated = bench.blame_command(&["blame", "r", "--k", "4", "--estimate"]);
    assert_eq!((estimated.code, upstream.asked()), (0, asked), "an estimate spends nothing: {estimated:?}");
    says(&estimated, &["plan: 23 forks, at most 60 calls to models, at most $", "run for real"]);

    let blamed = bench.blame_command(&["blame", "r", "--k", "4"]);
    assert_eq!(blamed.code, 0, "{blamed:?}");
    assert!(blamed.stderr.starts_with("annals: tools of the program run for real"), "{}", blamed.stderr);
    says(&blamed, &["23 forks", "the store grew by"]);
    let rows = bench.blame_rows("r");
    assert_eq!((&rows[0]["step"], &rows[0]["label"]), (&json!(3), &json!("decisive")), "{rows:?}");
    assert_eq!((&rows[0]["flips"], &rows[0]["valid"]), (&json!(4), &json!(4)));
    assert!(rows[1..].iter().all(|row| row["flips"] == 0), "{rows:?}");

    // Forks are runs, and do not hide the user's own.
    assert_eq!(bench.run("runs --json").json().len(), 1);
    assert_eq!(bench.run("runs --json --blame-forks").json().len(), 24);
    assert_eq!(bench.run("runs --json --tag annals.blame=r").json().len(), 23);
    assert_eq!(bench.run("show last --json").json(), bench.run("show r --json").json());
    assert_eq!(bench.run("verify --all").code, 0);
    let dropped = bench.run("blame r --drop").text();
    assert!(dropped.contains("dropped the blame of r and 23 forks"), "{dropped}");
    assert_eq!(bench.run("runs --json --blame-forks").json().len(), 1);
    bench.run("blame r --show").failed(4);
}

/// Regression: with captured draws, a fork's frames have other numbers than the run's: the cause of a failure was
/// compared with a draw, and blame said of it that its answer never changed.
#[test]
fn captured_draws_do_not_hide_the_changed_answer() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(3));
    let text = std::fs::read_to_string(agent()).unwrap();
    // After the fault, the program draws twice for each step.
    let drawing = "    [uuid.uuid4() for _ in range(1 + (\"WRONG\" in str(messages)))]\n    body = json";
    let agent = bench.write("drawing.py", text.replace("    body = json", drawing));
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    let program = ["--", python.trim(), "-B", &agent, "5"];
    let options = ["record", "--run", "r", "--capture-nondet", "--upstream", &upstream.url];
    assert_eq!(bench.blame_command(&[&options[..], &program].concat()).code, 1);
    let frames = bench.run("replay r --json").json();
    let draws = frames.iter().filter(|frame| frame["component"] == "nondet").count();
    assert!(draws > 2, "{draws} draws");
    let blamed = bench.blame_command(&["blame", "r", "--k", "3"]);
    assert_eq!(blamed.code, 0, "{blamed:?}");
    let rows = bench.blame_rows("r");
    assert_eq!(
        (&rows[0]["label"], &rows[0]["changed"], &rows[0]["unchanged"]),
        (&json!("decisive"), &json!(3), &json!(0))
    );
    assert!(rows[1..].iter().all(|row| row["changed"] == 0 || row["flips"] == 0), "{rows:?}");
}

/// Before a fork's step the recording answers: the first calls reach no upstream. Only the step and what it
/// changed are asked.
#[test]
fn prefix_and_unchanged_calls_reach_no_upstream() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["5"]).code, 1);
    let before = upstream.asked();
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "1", "--steps", "4"]).code, 0);
    assert_eq!(upstream.asked() - before, 1, "the answer stayed, so later calls keep their recorded ones");
    let before = upstream.asked();
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "1", "--steps", "2..2"]).code, 0);
    assert_eq!(upstream.asked() - before, 4, "the answer changed, so later calls are asked again");
}

#[test]
fn coalitions_tell_two_halves_of_a_conjunction() {
    let upstream = StepUpstream::start(|step, times, _| {
        message(if (step == 2 || step == 4) && times == 0 { "half" } else { "whole" })
    });
    let bench = CliBench::new();
    let script = bench.write(
        "two.py",
        std::fs::read_to_string(agent()).unwrap().replace("\"WRONG\" in said", "said.count(\"half\") == 2"),
    );
    let recorded = bench.blame_command(&[
        "record",
        "--run",
        "r",
        "--upstream",
        &upstream.url,
        "--",
        "python3",
        "-B",
        &script,
        "5",
    ]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    let blamed = bench.blame_command(&["blame", "r", "--k", "2", "--coalitions", "1", "--orders", "3"]);
    assert_eq!(blamed.code, 0, "{blamed:?}");
    // 3 re-runs, 2 forks of 5 steps, 11 coalitions of single steps, 6 forks for each of 3 orders. The fork of the pair
    // was in no plan.
    says(&blamed, &["plan: 42 forks", "pairs that act together come on top: at most 10 forks", "43 forks, "]);
    let table = String::from_utf8(blamed.stdout).unwrap();
    assert!(table.contains("@2 and @4: the failure needs both; a fix of either ends it"), "{table}");
    let rows = bench.blame_rows("r");
    for step in [2, 4] {
        let row = row_of(&rows, step);
        assert_eq!(
            (&row["role"], &row["necessary"], &row["sufficient"]),
            (&json!("part-of-conjunction"), &json!(true), &json!(false)),
            "{row}"
        );
        assert!(row["shapley"]["interval"]["high"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(row_of(&rows, 3)["role"], "none");
}

#[test]
fn one_step_is_blamed_like_many() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(1));
    assert_eq!(bench.record_steps(&upstream, "r", &["1"]).code, 1);
    let done = bench.blame_command(&["blame", "r", "--k", "2", "--coalitions", "1", "--orders", "2"]);
    assert_eq!(done.code, 0, "{done:?}");
    let rows = bench.blame_rows("r");
    assert_eq!((rows.len(), &rows[0]["flips"], &rows[0]["role"]), (1, &json!(2), &json!("root")), "{rows:?}");
}

/// A request that differs without any perturbation makes every fork meaningless: the difference is named.
#[test]
fn nondeterministic_program_is_refused_with_the_difference() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3", "random-request"]).code, 1);
    let done = bench.blame_command(&["blame", "r", "--k", "2"]);
    let error = error_of(&done, 3);
    assert!(error.contains("not deterministic before any perturbation"), "{error}");
    // The lines below it name what differs.
    assert!(error.contains("step 1") && done.stderr.contains("messages"), "{done:?}");
    // Regression: it was kept as an interrupted blame, which `--resume` could not finish.
    assert!(bench.run("blame r --show").failed(4).contains("has no blame"));
    assert_eq!(bench.run("runs --json").json().len(), 1);
}

/// The program passes when it runs again, whatever the model says: no step is to blame.
#[test]
fn failure_that_does_not_repeat_is_not_blamed_on_a_step() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3", "counts-files"]).code, 1);
    let done = bench.blame_command(&["blame", "r", "--k", "2"]);
    let error = error_of(&done, 3);
    // The re-runs end before their first call: that is named as what it is.
    assert!(error.contains("never made 3 of the recorded calls"), "{error}");
}

/// Exceptions, time-outs and refused upstreams are no outcomes: never counted as "no flip".
#[test]
fn undefined_forks_are_never_counted_as_no_flip() {
    for (mode, why) in
        [("raises-if-right", "nobody expected that"), ("sleeps-if-right", "ran longer than 8 s")]
    {
        let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
        assert_eq!(bench.record_steps(&upstream, "r", &["3", mode]).code, 1);
        let options = ["blame", "r", "--k", "1", "--time-limit", "8s"];
        let done = bench.blame_command(&options);
        assert_eq!(done.code, 0, "{done:?}");
        let rows = bench.blame_rows("r");
        let row = row_of(&rows, 2);
        assert_eq!(
            (&row["valid"], &row["undefined"], &row["trustworthy"]),
            (&json!(0), &json!(1), &json!(false))
        );
        assert!(row["undefined_reasons"][0][0].as_str().unwrap().contains(why), "{row}");
        let table = String::from_utf8(done.stdout).unwrap();
        assert!(table.contains("CANNOT BE TRUSTED: 1 fork undefined"), "{table}");
    }
    let upstream = StepUpstream::start(|step, times, _| match (step, times) {
        (2, 0) => message("WRONG"),
        (2, _) => json!({ "status": 503, "content": "busy" }),
        _ => message("fine"),
    });
    let bench = CliBench::new();
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "2"]).code, 0);
    let rows = bench.blame_rows("r");
    assert_eq!(row_of(&rows, 2)["valid"], 0, "{rows:?}");
}

/// A program that hangs without any perturbation: its process group is ended at the time limit.
#[test]
fn hanging_program_is_ended_with_its_process_group() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3", "hangs"]).code, 1);
    let mut command = bench.command(["blame", "r", "--time-limit", "1s", "--k", "1"]);
    command.env("HANG", "1").env("ANNALS_TEST_MARK", bench.path("mark")).stdin(Stdio::null());
    command.env_remove("OPENAI_API_KEY");
    let error = error_of(&ProcessResult::from_output(command.output().unwrap()), 2);
    assert!(error.contains("can be graded: it ran longer than 1 s"), "{error}");
    let mark = bench.path("mark").to_str().unwrap().to_owned();
    let still_running = || {
        let found = Command::new("grep").args(["-l", "-s", "-a", &mark]).args(processes()).output().unwrap();
        !found.stdout.is_empty()
    };
    // A process that was killed may take a moment to end.
    assert!((0..100).any(|_| !still_running()), "a process of the program still runs");
}

/// The environments of all processes.
#[expect(clippy::disallowed_methods, reason = "a listing that the system makes up")]
fn processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.map(|id| format!("/proc/{id}/environ")).collect()
}

#[test]
fn budget_ends_a_blame_that_resume_finishes() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    // Three steps at 1.5e-6 + 3e-6 dollars each, at the table's prices: enough for a few forks.
    let done = bench.blame_command(&["blame", "r", "--k", "3", "--budget", "0.00003", "--jobs", "1"]);
    assert_eq!(done.code, 1, "{done:?}");
    says(&done, &["the budget ended the blame of `r`", "may end it earlier"]);
    let forks = bench.run("runs --json --tag annals.blame=r").json().len();
    assert!((4..12).contains(&forks), "{forks}");
    let error = bench.blame_command(&["blame", "r"]).failed(1);
    assert!(error.contains("has an unfinished blame"), "{error}");
    let done = bench.blame_command(&["blame", "r", "--resume", "--budget", "5"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(bench.run("runs --json --tag annals.blame=r").json().len(), 12);
    assert_eq!(
        (&bench.blame_rows("r")[0]["step"], &bench.blame_rows("r")[0]["flips"]),
        (&json!(2), &json!(3))
    );
}

/// Killed in the middle: forks that were under way are dropped, the others are kept, and `--resume` goes on.
///
/// The time since the last stored state was read from clocks that began at their reading, so it was always
/// zero. No state was stored while forks ran: a killed blame kept nothing, and paid for all its forks again.
/// What dropped forks had cost was forgotten.
#[test]
fn killed_and_interrupted_blames_are_resumed() {
    for signal in ["-KILL", "-INT"] {
        let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
        assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
        let before = upstream.asked();
        let mut command = bench.command(["blame", "r", "--k", "24", "--no-early-stop", "--jobs", "1"]);
        command
            .env_remove("OPENAI_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let kept = loop {
            let stored = bench.stored_blame("r");
            let calls = stored["spent"]["calls"].as_u64().unwrap_or(0);
            // The fork under way has asked twice at most, so a third call is of a fork that ended and is not stored.
            // A machine that is too slow for that between two stored states tests less.
            let lost = upstream.asked() - before - calls;
            if stored["state"] == "running" && calls >= 6 && (lost >= 3 || calls >= 60) {
                break calls;
            }
            assert!(child.try_wait().unwrap().is_none(), "nothing was stored while forks ran: {stored}");
        };
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let ended = child.wait_with_output().unwrap();
        if signal == "-INT" {
            let said = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(ended.status.code(), Some(130), "{said}");
            assert!(said.contains("INTERRUPTED: annals blame r --resume finishes it"), "{said}");
        }
        let shown = bench.run("blame r --show");
        assert_ne!(shown.code, 0, "an unfinished blame says so: {shown:?}");
        let paid = upstream.asked() - before;
        let done = bench.blame_command(&["blame", "r", "--resume"]);
        assert_eq!(done.code, 0, "{done:?}");
        let rows = bench.blame_rows("r");
        assert!(rows.iter().all(|row| row["valid"] == 24), "{rows:?}");
        assert_eq!((&rows[0]["step"], &rows[0]["flips"]), (&json!(2), &json!(24)));
        // Three re-runs and 24 forks of three steps: none is left over, none is missing.
        assert_eq!(bench.run("runs --json --tag annals.blame=r").json().len(), 75);
        // A fork of step 2 asks twice, any other once: a fresh blame needs 96 calls.
        let asked = upstream.asked() - before;
        assert!(asked - paid + kept <= 96, "{asked} calls, {paid} before the signal, {kept} of them stored");
        // What was paid before counts, but for the calls of the one fork that was under way. A call counts before it
        // is sent: one that the signal ended in between was never asked.
        let counted = bench.spent_calls("r");
        let never_asked = u64::from(signal == "-INT");
        assert!(
            counted >= 96 && counted + 2 >= asked && counted <= asked + never_asked,
            "{signal}: {counted} of {asked} calls"
        );
        bench.blame_command(&["blame", "r", "--resume"]).failed(2);
    }
}

/// The forks of an order stand in the document when the whole order is done, but were paid for one by one: a
/// resumed blame found them in the store, and counted them again.
#[test]
fn forks_of_an_unfinished_order_are_paid_once() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let before = upstream.asked();
    let orders = 6;
    let mut command = bench.command(["blame", "r", "--k", "1", "--orders", "6", "--jobs", "1"]);
    command.env_remove("OPENAI_API_KEY").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Three re-runs, a fork for each step, two whole orders of four forks, and one fork that asks more than once.
    while bench.run("runs --json --tag annals.blame=r").json().len() < 3 + 3 + 8 + 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(bench.stored_blame("r")["state"], "interrupted");
    assert_eq!(bench.blame_command(&["blame", "r", "--resume"]).code, 0);
    let (counted, asked) = (bench.spent_calls("r"), upstream.asked() - before);
    assert!((asked..=asked + 1).contains(&counted), "{counted} of {asked} calls");
    assert_eq!(bench.run("runs --json --tag annals.blame=r").json().len(), 3 + 3 + 4 * orders);
}

/// Forks under way had no share of the budget: each of several began as if the others cost nothing. A fork that
/// asks another model was expected to cost what the recorded model costs.
#[test]
fn budget_is_not_passed_by_forks_under_way() {
    for (options, budget) in
        [(&["--jobs", "4"][..], 0.000_03), (&["--with", "model:gpt-4o", "--jobs", "1"], 0.000_12)]
    {
        // Each answer is new, so all later calls are asked again.
        let upstream = StepUpstream::start(|step, times, _| match (step, times) {
            (2, 0) => message("WRONG"),
            _ => message(&format!("value {step}, {times} before")),
        });
        let bench = CliBench::new();
        assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
        let before = upstream.asked();
        let limit = budget.to_string();
        let done = bench.blame_command(
            &[&["blame", "r", "--k", "8", "--no-early-stop", "--budget", &limit], options].concat(),
        );
        assert_eq!(done.code, 1, "{done:?}");
        says(&done, &["the budget ended the blame of `r`"]);
        let (spent, asked) = (bench.spent_dollars("r"), upstream.asked() - before);
        assert!(spent > 0.0 && spent <= budget, "{spent} of {budget} for {asked} calls");
        // The cheaper model's calls cost 4.5e-6 dollars each.
        assert!(asked as f64 * 4.5e-6 <= budget && bench.spent_calls("r") == asked, "{asked} calls");
    }
}

/// Recorded answers that a fork gave again cost nothing, but were counted as if they had been paid for.
#[test]
fn only_calls_of_upstreams_count_as_spent() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let before = upstream.asked();
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "2", "--no-early-stop"]).code, 0);
    let (spent, asked) = (bench.spent_dollars("r"), upstream.asked() - before);
    assert_eq!(asked, 8);
    assert!((spent - 8.0 * 4.5e-6).abs() < 1e-12, "{spent} dollars for {asked} calls");
}

#[test]
fn estimate_prices_the_model_that_is_asked() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(3));
    assert_eq!(bench.record_steps(&upstream, "r", &["5"]).code, 1);
    // 20 calls of the other model at 75e-6 dollars, and 40 of the recorded one at 4.5e-6.
    let dear = bench.blame_command(&["blame", "r", "--k", "4", "--estimate", "--with", "model:gpt-4o"]);
    says(&dear, &["at most 60 calls to models, at most $0.0017"]);
    // A blame without a budget spends at most five dollars.
    let most = ["blame", "r", "--k", "10000", "--coalitions", "1000", "--estimate", "--with", "model:gpt-4o"];
    let most = bench.blame_command(&most);
    says(&most, &["at most $8.", "the budget of $5.00 may end it earlier"]);
    let endless = ["blame", "r", "--k", "10000", "--coalitions", "1000", "--estimate", "--budget", "inf"];
    assert!(!bench.blame_command(&endless).stderr.contains("the budget of"));
    let unknown = bench.blame_command(&["blame", "r", "--k", "4", "--estimate", "--with", "model:nobodys"]);
    says(&unknown, &["at most $0.0002 and 20 calls without a known price"]);
}

#[test]
fn second_blame_at_the_same_time_is_refused() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let before = upstream.asked();
    let mut command = bench.command(["blame", "r", "--k", "12", "--no-early-stop", "--jobs", "1"]);
    command.env_remove("OPENAI_API_KEY").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    while upstream.asked() < before + 1 {
        std::thread::yield_now();
    }
    let second = bench.blame_command(&["blame", "r", "--wait", "0"]);
    let error = second.failed(1);
    assert!(error.contains("a blame records its forks itself and needs the store alone"), "{error}");
    assert!(child.wait().unwrap().success());
    assert_eq!(bench.blame_rows("r")[0]["flips"], 12);
}

/// A file size limit is a full disk: the error says so, and what is done is kept.
#[test]
fn full_disk_in_the_middle_is_named_and_resumed() {
    // Answers that differ at each asking, and do not compress.
    let upstream = StepUpstream::start(|step, times, _| {
        let mut state = step * 1000 + times;
        let noise = (0..20_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (state >> 33) as u8 % 26)
        });
        message(&format!(
            "{}{}",
            if step == 2 && times == 0 { "WRONG " } else { "" },
            noise.collect::<String>()
        ))
    });
    let bench = CliBench::new();
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    let blame = bench.command(["blame", "r", "--k", "40", "--no-early-stop", "--jobs", "1"]);
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\""]).arg(blame.get_program());
    command.args(blame.get_args()).current_dir(bench.directory.path()).env_remove("ANNALS_STORE");
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let full = ProcessResult::from_output(command.output().unwrap());
    assert_eq!(full.code, 1, "{full:?}");
    assert!(full.stderr.contains("the disk is full") || full.stderr.contains("File too large"), "{full:?}");
    assert_eq!(bench.run("verify --all").code, 0);
    assert_ne!(bench.run("blame r --show").code, 0, "an unfinished blame does not look finished");
    let going_on = bench.blame_command(&["blame", "r", "--resume", "--budget", "0.000001"]);
    assert_eq!(going_on.code, 1, "{going_on:?}");
    says(&going_on, &["the budget ended the blame"]);
}

#[test]
fn what_if_ends_by_the_oracle_and_prints_its_time() {
    let upstream = StepUpstream::start(|step, _, request| match step {
        1 => {
            json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "call_1", "type": "function",
            "function": { "name": "search", "arguments": "{}" } }] })
        }
        _ if request["messages"].to_string().contains("WRONG") => message("so it is WRONG"),
        _ => message("so it is Oslo"),
    });
    let bench = CliBench::new();
    assert_eq!(bench.record_steps(&upstream, "r", &["2"]).code, 1);
    let fixed =
        bench.blame_command(&["fork", "r@1", "fixed", "--use-tool", "search=other", "--oracle", "exit"]);
    assert_eq!(fixed.code, 0, "{fixed:?}");
    says(&fixed, &["no longer fails (", " s)"]);
    let same = bench.blame_command(&["fork", "r@2", "same", "--oracle", "json:$.status=good"]);
    assert_eq!(same.code, 3, "{same:?}");
    says(&same, &["same failure ("]);
    let error = bench.blame_command(&["fork", "r@2", "x", "--use-tool", "search=other"]).failed(2);
    assert!(error.contains("calls no tool \"search\""), "{error}");
    let error = bench.blame_command(&["fork", "fixed@1", "y", "--oracle", "exit"]).failed(2);
    assert!(error.contains("passed"), "{error}");
}

/// The time was the difference of two clocks, each of which began at its reading: always 0.0 s.
#[test]
fn what_if_prints_how_long_the_program_ran() {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(1));
    let agent = agent();
    let slow = ["sh", "-c", "sleep 0.2; exec python3 -B \"$0\" 2", &agent];
    let args = [&["record", "--run", "r", "--upstream", &upstream.url, "--"][..], &slow].concat();
    assert_eq!(bench.blame_command(&args).code, 1);
    let done = bench.blame_command(&["fork", "r@2", "same", "--oracle", "exit"]);
    assert_eq!(done.code, 3, "{done:?}");
    let (_, rest) = done.stderr.split_once("same failure (").expect("a verdict");
    let seconds: f64 = rest.split_once(" s)").unwrap().0.parse().unwrap();
    assert!(seconds >= 0.2, "{}", done.stderr);
}
