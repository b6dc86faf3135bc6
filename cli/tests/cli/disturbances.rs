//! Recordings under disturbance: the recorder or the program is killed, clients disconnect, bodies are large
//! or absent.
//!
//! `ANNALS_ROUGH=20` sets the number of rounds of each disturbance, `ANNALS_SEED` the moments.

use std::io::BufRead;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::CliBench;
use crate::record::{agent, says};
use crate::upstream::FakeUpstream;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

/// Number of rounds of each disturbance.
fn disturbance_rounds() -> u64 {
    number("ANNALS_ROUGH", 3)
}

/// A number below `below`, derived from the seed and the round.
fn random_below(round: u64, below: u64) -> u64 {
    let seed = number("ANNALS_SEED", 1);
    let mixed = (seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 17) % below
}

#[test]
fn killed_recorder_leaves_a_replayable_prefix() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let words: Vec<String> = (0..400).map(|number| format!("w{number}")).collect();
    let mut served = 0;
    for round in 0..disturbance_rounds() {
        let again = format!(
            "ANNALS_SEED={} ANNALS_ROUGH={} cargo test -p annals-cli --test cli rough",
            number("ANNALS_SEED", 1),
            disturbance_rounds()
        );
        let run = format!("r{round}");
        let agent = agent();
        let mut command =
            bench.command(["record", "--run", &run, "--upstream", &upstream.url, "--", "python3", "-B"]);
        command.args([&agent, "noted", "1", &words.join(",")]).env_remove("OPENAI_BASE_URL");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut recorder = command.spawn().unwrap();
        // The agent has received at least one answer.
        let mut lines = std::io::BufReader::new(recorder.stdout.take().unwrap()).lines();
        let mut told = 1;
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("you said"), "{first}");
        std::thread::sleep(Duration::from_millis(random_below(round, 120)));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        told += lines.map_while(Result::ok).filter(|line| line.contains("you said")).count();

        let listed = &bench.run("runs --json").json();
        let of = listed.iter().find(|row| row["id"] == run.as_str()).unwrap();
        assert!(["open", "abandoned"].contains(&of["status"].as_str().unwrap()), "{again}: {of}");
        let frames = of["frames"].as_u64().unwrap();
        // Every answer that the program received is stored, except one whose frame was not finished yet.
        assert!(frames + 1 >= told as u64 && frames <= 400, "{again}: {told} answers, {of}");
        assert_eq!(bench.run(&format!("verify {run}")).code, 0, "{again}");
        let mut replay = bench.command(["replay", &run]);
        let replayed = crate::ProcessResult::from_output(
            replay.env_remove("OPENAI_BASE_URL").stdin(Stdio::null()).output().unwrap(),
        );
        // The program makes more calls than were recorded. The replay serves all recorded calls and reports
        // the divergence.
        assert_eq!(replayed.code, 3, "{again}: {replayed:?}");
        says(&replayed, &["it ends after frame", "DIVERGED"]);
        let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
        let again_told = text.lines().filter(|line| line.contains("you said")).count() as u64;
        assert!(again_told + 1 >= frames && again_told <= frames, "{again}: {again_told} of {frames}");
        served += again_told;
    }
    println!("{} recorders killed, {served} answers served from what they left", disturbance_rounds());
}

#[test]
fn killed_agent_leaves_a_failed_run_that_replays() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for round in 0..disturbance_rounds() {
        let run = format!("r{round}");
        let (calls, bytes) =
            (random_below(round, 5).to_string(), (round % 3 * (1 + random_below(round, 200))).to_string());
        let recorded = bench.record(&upstream.url, &run, &["is_killed", &calls, &bytes]);
        assert_eq!(recorded.code, 128 + 9, "{recorded:?}");
        let replayed = bench.replay(&[&run], &[]);
        assert_eq!(
            (replayed.code, &replayed.stdout),
            (128 + 9, &recorded.stdout),
            "{calls} {bytes}: {}",
            replayed.stderr
        );
        says(&replayed, &["unused 0"]);
    }
    let failed = bench.run("runs --failed --json").json();
    assert_eq!(failed.len() as u64, disturbance_rounds());
}

#[test]
fn client_hang_up_is_recorded_as_far_as_it_came() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for round in 0..disturbance_rounds() {
        let (run, bytes) = (format!("r{round}"), (1 + random_below(round, 380)).to_string());
        let recorded = bench.record(&upstream.url, &run, &["hangs_up", &bytes]);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        let frames = bench.run(&format!("replay {run} --json")).json();
        assert_eq!(frames[0]["metadata"]["http"]["broken"], "the client hung up", "{bytes}");
        let replayed = bench.replay(&[&run], &[]);
        assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{bytes}: {}", replayed.stderr);
    }
}

/// Regression: a client that gave up before the answer came was recorded as answered, and its replay got the answer,
/// with exit code 0. If the answer had not come before the program ended, the request could not be replayed at all.
#[test]
fn request_that_its_client_gave_up_gets_no_answer() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["gives_up"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["recorded 3 requests", "2 without a whole answer"]);
    assert!(String::from_utf8_lossy(&recorded.stdout).starts_with("nobody answered\n"), "{recorded:?}");
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
    says(&replayed, &["exact 3 of 3", "unused 0"]);
    // A program that waits longer than it did finds no answer, and that is said.
    let replayed = bench.replay(&["r"], &["gives_up", "60"]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["step 1 has no answer: at the recording the program hung up after 0."]);
}

/// Regression: a replay that ended with another exit code than the recording said nothing, even with --check-output.
#[test]
#[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
fn replay_with_another_exit_code_says_so() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    bench.write("flag", "");
    let flag = bench.path("flag");
    let recorded = bench.record(&upstream.url, "r", &["exits_if", flag.to_str().unwrap()]);
    assert_eq!(recorded.code, 1, "{recorded:?}");
    let replayed = bench.replay(&["r", "--check-output"], &[]);
    assert_eq!(replayed.code, 1, "{replayed:?}");
    assert!(!replayed.stderr.contains("the program ended with"), "{replayed:?}");
    std::fs::remove_file(&flag).unwrap();
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &["the program ended with 0, not with 1 as recorded", "exact 1 of 1"]);
    assert_eq!(bench.replay(&["r", "--check-output"], &[]).code, 3);
}

/// A request whose client hung up while it sent the body was counted as seen, and no frame said that it had been there.
#[test]
fn request_cut_in_its_body_is_recorded() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for round in 0..disturbance_rounds() {
        let run = format!("r{round}");
        let recorded = bench.record(&upstream.url, &run, &["cuts_upload"]);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        says(&recorded, &["recorded 2 requests", "1 without a whole answer"]);
        let frames = bench.run(&format!("replay {run} --json")).json();
        let cut = frames.iter().find(|frame| frame["metadata"]["http"]["broken"].is_string()).unwrap();
        assert_eq!((&cut["component"], &cut["input"]), (&"llm".into(), &"".into()), "{cut}");
        let replayed = bench.replay(&[&run], &[]);
        assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
    }
}

#[test]
fn repeated_pictures_are_stored_once() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url, "r", &["pictures", "10", "1000000", "30"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let stats = &bench.run("stats --json").json()[0];
    let disk = stats["disk_bytes"].as_u64().unwrap();
    println!("10 MB of pictures in base64, sent in 30 requests: {disk} bytes");
    assert!(disk <= 10_500_000, "{stats}");
    let input = bench.run_args(["show", "r@30", "--input", "--raw"]).ok();
    assert!(input.len() > 10_000_000);
    assert_eq!(bench.run("verify r").code, 0);
}

#[test]
fn large_chunked_and_garbled_bodies_replay_exactly() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    for doing in [&["large", "100000000"][..], &["chunked"], &["garbled"]] {
        let recorded = bench.record(&upstream.url, doing[0], doing);
        assert_eq!(recorded.code, 0, "{recorded:?}");
        let text = String::from_utf8_lossy(&recorded.stdout).into_owned();
        assert!(text.starts_with("200 "), "{text}");
        let asked = upstream.asked();
        let replayed = bench.replay(&[doing[0]], &[]);
        assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
        assert_eq!(upstream.asked(), asked);
    }
    // One byte over the limit is refused with a reason, and the refusal is recorded.
    let over = (256 * 1024 * 1024 + 1).to_string();
    let refused = bench.record(&upstream.url, "over", &["large", &over]);
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(text.starts_with("413 ") && text.contains("at most 256 MiB"), "{text}");
}

#[test]
fn upstream_without_tls_is_reported() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record(&upstream.url.replace("http:", "https:"), "r", &["swapped", "a"]);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), "a 502\n", "{recorded:?}");
    let frames = bench.run("replay r --json").json();
    let broken = frames[0]["metadata"]["http"]["broken"].as_str().unwrap();
    assert!(broken.contains("cannot be asked") && broken.contains("tls"), "{broken}");
    let replayed = bench.replay(&["r"], &[]);
    assert_eq!((replayed.code, &replayed.stdout), (0, &recorded.stdout), "{}", replayed.stderr);
}

/// Starts `annals attach`; returns its process and the variables for an agent that another process starts.
pub(crate) fn attach(bench: &CliBench, more: &[&str], secrets: &[(&str, &str)]) -> (Child, String) {
    let mut command = bench.command([&["attach", "--run", "r"], more].concat());
    command.env_remove("OPENAI_BASE_URL").envs(secrets.iter().copied());
    let mut attached =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(attached.stdout.take().unwrap()).lines();
    let exports: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.contains("OPENROUTER")).collect();
    (attached, exports.join("\n"))
}

/// Ends the recording with SIGTERM, as a user does.
pub(crate) fn detach(attached: Child) -> crate::ProcessResult {
    let pid = attached.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    crate::ProcessResult::from_output(attached.wait_with_output().unwrap())
}

/// Another process starts the agent with the variables that `attach` prints.
#[test]
fn attach_records_programs_started_elsewhere() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let (attached, exports) = attach(&bench, &["--upstream", &upstream.url], &[]);
    let script = format!("{exports}\npython3 -B {} noted 1 a,b", agent());
    let told = std::process::Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("2: you said"), "{told}");
    let ended = detach(attached);
    assert_eq!(ended.code, 0, "{ended:?}");
    says(&ended, &["until Ctrl-C", "recorded 2 requests into r", "annals replay r -- CMD"]);
    let runs = bench.run("runs --json").json();
    assert_eq!((&runs[0]["status"], &runs[0]["frames"]), (&"ok".into(), &2.into()));
    let replayed = bench.replay(&["r"], &["noted", "1", "a,b"]);
    assert_eq!((replayed.code, String::from_utf8(replayed.stdout).unwrap()), (0, told));
    let nameless = bench.run("replay r");
    assert_eq!(nameless.code, 2, "{nameless:?}");
    says(&nameless, &["its program is unknown"]);
}
