//! Programs that work without annals work under `record`: the forms in which real clients read and use their base addresses.
//!
//! Each program asks what the client that it names was seen to ask, with the standard library alone.

use std::process::Stdio;

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// Asks a model at an address and prints the answer's status.
const ASK: &str = "import json, os, sys, urllib.error, urllib.request\n\
    def ask(url):\n    \
        body = json.dumps({'model': 'm', 'max_tokens': 9, 'messages': [{'role': 'user', 'content': 'hi'}]}).encode()\n    \
        try: print(urllib.request.urlopen(urllib.request.Request(url, body, {'content-type': 'application/json'})).status)\n    \
        except urllib.error.HTTPError as error: print(error.code)\n";

/// Variables that would change what a test sees.
const CLEARED: [&str; 9] = [
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_URL",
    "ANTHROPIC_API_BASE",
    "AZURE_OPENAI_ENDPOINT",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
];

impl CliBench {
    /// Runs a program by `annals` in a fresh environment with these variables.
    fn with_variables(&self, args: &[&str], variables: &[(&str, &str)], program: &str) -> ProcessResult {
        self.write("ask.py", format!("{ASK}{program}\n"));
        let mut command = self.command([args, &["--", "python3", "-B", "ask.py"]].concat());
        CLEARED.iter().for_each(|name| _ = command.env_remove(name));
        command.current_dir(self.path("")).envs(variables.iter().copied()).stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }

    /// What the frame of a run's first request says of it.
    fn first_request(&self) -> serde_json::Value {
        let frame = self.run("show r@1 --metadata --json").json().remove(0);
        frame["metadata"].clone()
    }
}

/// Vercel's @ai-sdk/anthropic takes its address to end in /v1, the official library does not. annals set one that does not, so the
/// provider was asked for /messages and said 404: a program that worked broke when it was recorded.
#[test]
fn vercel_anthropic_client_calls_v1_messages() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let program = "ask(os.environ['ANTHROPIC_BASE_URL'] + '/messages')";
    let named = format!("anthropic={}", upstream.url);
    let args = ["record", "--run", "r", "--upstream", &named];
    let recorded = bench.with_variables(&args, &[], program);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let request = bench.first_request();
    assert_eq!(request["http"]["path"], "/v1/messages", "{request}");
    assert_eq!(request["model"], "c-1", "{request}");
    // The official library's form is the same request.
    let official = "ask(os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages')";
    for program in [program, official] {
        let replayed = bench.with_variables(&["replay", "r"], &[], program);
        assert_eq!(replayed.code, 0, "{replayed:?}");
        assert!(replayed.stderr.contains("exact 1 of 1"), "{replayed:?}");
    }
    let forked = bench.with_variables(&["fork", "r@1", "child"], &[], program);
    assert_eq!(forked.code, 0, "{forked:?}");
}

/// A gateway of the user's own is asked for what the program asks, whatever that is.
#[test]
fn user_gateway_path_is_unchanged() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let gateway = format!("{}/claude/", upstream.url);
    let variables = [("ANTHROPIC_BASE_URL", gateway.as_str())];
    let program = "ask(os.environ['ANTHROPIC_BASE_URL'] + '/messages')";
    // The path of no known interface: not a model's call.
    let recorded = bench.with_variables(&["record", "--run", "r"], &variables, program);
    // What is asked there has no form of a model that is known here: it is recorded, and no failure.
    assert!(recorded.stderr.contains("none of them is known as a model call"), "{recorded:?}");
    assert_eq!(recorded.code, 0, "{recorded:?}");
    assert_eq!(bench.first_request()["http"]["path"], "/claude/messages");
    assert_eq!(bench.with_variables(&["replay", "r"], &[], program).code, 0);
}

/// litellm and langchain-openai read one variable and, where it is not set, another. A user had set the second; annals set the first to the
/// public address, and the program left its gateway.
#[test]
fn user_variable_wins_over_its_alternative() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let address = format!("{}/v1", upstream.url);
    for (first, second) in [("OPENAI_BASE_URL", "OPENAI_API_BASE"), ("OPENAI_API_BASE", "OPENAI_BASE_URL")] {
        let asked = upstream.asked();
        let program =
            format!("ask((os.environ.get('{first}') or os.environ['{second}']) + '/chat/completions')");
        let run = format!("after-{first}");
        let variables = [(second, address.as_str())];
        let recorded = bench.with_variables(&["record", "--run", &run], &variables, &program);
        assert_eq!((recorded.code, recorded.stdout.as_slice()), (0, &b"200\n"[..]), "{recorded:?}");
        assert_eq!(upstream.asked(), asked + 1);
        let replayed = bench.with_variables(&["replay", &run], &[], &program);
        assert!(replayed.code == 0 && replayed.stderr.contains("exact 1 of 1"), "{replayed:?}");
    }
}

/// The Node client of Azure goes to OPENAI_BASE_URL where that is set, so setting it sent Azure's calls to OpenAI.
#[test]
fn openai_address_is_unset_if_only_azure_is_set() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let program = "ask((os.environ.get('OPENAI_BASE_URL') or os.environ['AZURE_OPENAI_ENDPOINT']) + '/openai/deployments/d/chat/completions')";
    let variables = [("AZURE_OPENAI_ENDPOINT", upstream.url.as_str())];
    let recorded = bench.with_variables(&["record", "--run", "r"], &variables, program);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let request = bench.first_request();
    assert_eq!((&request["http"]["mount"], &request["provider"]), (&"azure".into(), &"azure".into()));
}

/// What one client needs may hurt another in the same program, so that a variable can be left as it is.
#[test]
fn env_without_path_leaves_variable_unchanged() {
    let bench = CliBench::new();
    let program = "print(os.environ.get('OPENAI_BASE_URL'), 'ANTHROPIC_BASE_URL' in os.environ)";
    let args = ["record", "--run", "r", "--env", "OPENAI_BASE_URL="];
    let recorded = bench.with_variables(&args, &[], program);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), "None True\n", "{recorded:?}");
}

/// A value that is no address was once an error without a way out for a program that never reads it.
#[test]
fn invalid_address_error_names_the_remedy() {
    let bench = CliBench::new();
    let variables = [("AZURE_OPENAI_ENDPOINT", "https://x.example/?api-version=1")];
    let refused = bench.with_variables(&["record", "--run", "r"], &variables, "print(1)");
    assert!(refused.code != 0 && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.contains("--env AZURE_OPENAI_ENDPOINT="), "{refused:?}");
    let args = ["record", "--run", "r", "--env", "AZURE_OPENAI_ENDPOINT="];
    let recorded = bench.with_variables(&args, &variables, "print(1)");
    assert_eq!(recorded.stdout, b"1\n", "{recorded:?}");
}
