//! Named secrets: none of their bytes reach the store, and the replay stays exact.

use std::path::Path;
use std::process::Stdio;

use crate::disturbances::{attach, detach};
use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

const TOKEN: &str = "pa\"ss\nk3y-of-mine";
const PLAIN: &str = "s3cr3t-plain-value";
/// Every form in which the agent sends the secrets contains at least one of these.
const TRACES: [&str; 3] = ["k3y-of-mine", "s3cr3t", "3t-pla"];

impl CliBench {
    /// Runs annals with these values of the secrets.
    fn knowing(&self, args: &[&str], secrets: &[(&str, &str)], doing: &[&str]) -> ProcessResult {
        let agent = agent();
        let mut all = args.to_vec();
        if !doing.is_empty() {
            all.extend(["--", "python3", "-B", &agent]);
            all.extend(doing);
        }
        let mut command = self.command(all);
        command.env_remove("OPENAI_BASE_URL").env_remove("TOKEN").env_remove("PLAIN").stdin(Stdio::null());
        command.env("OPENAI_API_KEY", "sk-of-the-tests").envs(secrets.iter().copied());
        ProcessResult::from_output(command.output().unwrap())
    }

    fn record_secretive(&self, upstream: &FakeUpstream, more: &[&str]) -> ProcessResult {
        let mut args = vec!["record", "--run", "r", "--upstream", &upstream.url];
        args.extend(more);
        self.knowing(&args, &BOTH, &["secretive"])
    }

    /// All readable bytes of the store: its files, and its frames as printed.
    fn everything(&self) -> Vec<u8> {
        let mut all = Vec::new();
        files(&self.path(".annals"), &mut all);
        for line in
            ["replay --all --json", "replay --all --raw", "show r --metadata", "show r@1 --input --raw"]
        {
            all.extend(self.run(line).ok());
        }
        all
    }
}

const BOTH: [(&str, &str); 2] = [("TOKEN", TOKEN), ("PLAIN", PLAIN)];

#[expect(clippy::disallowed_methods, reason = "reads the files of a store")]
fn files(under: &Path, all: &mut Vec<u8>) {
    for entry in std::fs::read_dir(under).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(&entry.path(), all);
        } else if kind.is_file() {
            all.extend(std::fs::read(entry.path()).unwrap());
        }
    }
}

fn traces(of: &[u8]) -> Vec<&'static str> {
    let holds = |trace: &&str| of.windows(trace.len()).any(|window| window == trace.as_bytes());
    TRACES.into_iter().filter(holds).collect()
}

#[test]
fn named_secrets_never_reach_the_store() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let recorded = bench.record_secretive(&upstream, &["--secret", "TOKEN", "--secret", "PLAIN"]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    says(&recorded, &["recorded 3 requests", "secrets removed"]);
    let told = String::from_utf8(recorded.stdout).unwrap();
    // The upstream repeats the secret, and the program receives it unchanged.
    assert!(told.contains(r#"my token is pa\\\"ss\\nk3y-of-mine"#), "{told}");
    assert!(told.contains(r#""content":"3t-pla""#), "{told}");
    assert_eq!(traces(&bench.everything()), [""; 0]);
    assert_eq!(bench.run("verify r").code, 0);
    let frames = bench.run("replay r --json").json();
    assert_eq!(frames[0]["metadata"]["http"]["path"], "/v1/chat/completions");
    assert!(frames[0]["input"].as_str().unwrap().contains("my token is annals-redacted\""));
    assert_eq!(frames[2]["metadata"]["http"]["query"], "a=annals-redacted");
    assert_eq!(frames[4]["output"], "I know annals-redacted\n");

    // Requests are matched by the hash of their original bytes.
    let replayed = bench.knowing(&["replay", "r"], &BOTH, &[]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &["exact 3 of 3, served 3, unused 0"]);
    assert!(!replayed.stderr.contains("not what was recorded"), "{}", replayed.stderr);
    let answers = String::from_utf8(replayed.stdout).unwrap();
    assert!(answers.contains("my token is annals-redacted"), "{answers}");
    assert_eq!(upstream.asked(), 3);
}

/// The recorder knows the values, but not which program will use them.
#[test]
fn attach_keeps_secrets_out_of_the_store() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let named = ["--upstream", &upstream.url, "--secret", "TOKEN", "--secret", "PLAIN"];
    let (attached, exports) = attach(&bench, &named, &BOTH);
    let mut elsewhere = std::process::Command::new("sh");
    elsewhere.args(["-c", &format!("{exports}\npython3 -B {} secretive", agent())]).stdin(Stdio::null());
    let done = ProcessResult::from_output(elsewhere.envs(BOTH).output().unwrap());
    assert_eq!(done.code, 0, "{done:?}");
    let ended = detach(attached);
    assert_eq!(ended.code, 0, "{ended:?}");
    says(&ended, &["recorded 3 requests into r", "secrets removed"]);
    assert_eq!(traces(&bench.everything()), [""; 0]);
    let replayed = bench.knowing(&["replay", "r"], &BOTH, &["secretive"]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &["exact 3 of 3"]);
}

/// Two programs with different secrets send the same request after redaction. Neither may get the other's
/// cached answer.
#[test]
fn cached_answer_is_not_shared_between_secrets() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let cached = ["--secret", "TOKEN", "--secret", "PLAIN", "--cache", "both"];
    assert_eq!(bench.record_secretive(&upstream, &cached).code, 0);
    assert_eq!(upstream.asked(), 3);
    let others = [("TOKEN", "another \"one\" altogether"), ("PLAIN", "s3cr3t-plain-other-value")];
    let mut args = vec!["record", "--run", "s", "--upstream", &upstream.url];
    args.extend(cached);
    let second = bench.knowing(&args, &others, &["secretive"]);
    assert_eq!(second.code, 0, "{second:?}");
    assert_eq!(upstream.asked(), 6);
    let told = String::from_utf8(second.stdout).unwrap();
    assert!(told.contains("altogether") && !told.contains("k3y-of-mine"), "{told}");
    assert_eq!(traces(&bench.everything()), [""; 0]);
}

#[test]
fn unnamed_secret_is_found_in_the_store() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_secretive(&upstream, &[]).code, 0);
    assert_eq!(traces(&bench.everything()), TRACES);
}

#[test]
fn changed_secret_value_still_matches() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_secretive(&upstream, &["--secret", "TOKEN", "--secret", "PLAIN"]).code, 0);
    let others = [("TOKEN", "another \"one\" altogether"), ("PLAIN", PLAIN)];
    let replayed = bench.knowing(&["replay", "r"], &others, &[]);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &["exact 1 of 3, same after the matcher 2"]);

    // If a secret's value is unknown, the report shows a difference in its place and prints no secret.
    let replayed = bench.knowing(&["replay", "r"], &[("PLAIN", PLAIN)], &[]);
    assert_eq!(replayed.code, 3, "{replayed:?}");
    says(&replayed, &["at step 1", "$.messages[1].content", "annals-redacted"]);
    let ours = replayed.stderr.replace("I know s3cr3t-plain-value\n", "");
    assert_eq!(traces(ours.as_bytes()), [""; 0]);
}

#[test]
fn forks_and_live_replays_remove_the_parents_secrets() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record_secretive(&upstream, &["--secret", "TOKEN", "--secret", "PLAIN"]).code, 0);
    let forked = bench.knowing(&["fork", "r@1", "f"], &BOTH, &[]);
    assert_eq!(forked.code, 0, "{forked:?}");
    says(&forked, &["prefix replayed 1, tail recorded 2", "secrets removed"]);
    let others = [("TOKEN", TOKEN), ("PLAIN", "s3cr3t-plain-other-value")];
    let live = bench.knowing(
        &["replay", "r", "--on-divergence", "live", "--into", "l"],
        &others,
        &["changed", TOKEN],
    );
    assert_eq!(live.code, 3, "{live:?}");
    says(&live, &["went on live into l", "secrets removed"]);
    assert_eq!(bench.run("runs --json").json().len(), 3);
    assert_eq!(traces(&bench.everything()), [""; 0]);
    let refused = bench.knowing(&["fork", "r@1", "g"], &[("PLAIN", PLAIN)], &[]);
    assert_eq!(refused.code, 125, "{refused:?}");
    says(&refused, &["TOKEN is named as a secret, but is not set"]);
}

#[test]
fn unremovable_secrets_are_refused_before_start() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let record = |secret: &str, value: &str, doing: &[&str]| {
        let args = ["record", "--run", "r", "--upstream", &upstream.url, "--secret", secret];
        bench.knowing(&args, &[("TOKEN", value)], doing)
    };
    for (secret, value, doing, why) in [
        ("ABSENT_TOKEN", "x", "nothing", "ABSENT_TOKEN is named as a secret, but is not set"),
        ("TOKEN", "", "nothing", "TOKEN is named as a secret, but is not set"),
        ("TOKEN", "short", "nothing", "TOKEN is not removed from bodies: its value has 5 bytes"),
        (
            "TOKEN",
            "changed-word",
            "changed changed-word",
            "the command, its directory or an upstream's address holds",
        ),
    ] {
        let done = record(secret, value, &doing.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, 125, "{done:?}");
        says(&done, &[why, "hint: "]);
    }
    let done = record("sk-a=value", "x", &["nothing"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(!done.stderr.contains("sk-a"), "{}", done.stderr);
    assert_eq!(upstream.asked(), 0);
    assert!(!bench.run("runs").stderr.is_empty() || bench.run("runs --json").json().is_empty());
}
