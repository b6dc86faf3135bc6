//! Programs that work without annals also work under `record`: how real clients read and use their base
//! addresses.
//!
//! Each program uses only the standard library and sends the requests that the named client sends.

use std::process::Stdio;

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

/// Asks a model at an address and prints the answer's status.
const ASK: &str = "import json, os, sys, urllib.error, urllib.request\n\
    def ask(url):\n    \
        body = json.dumps({'model': 'm', 'max_tokens': 9, 'messages': [{'role': 'user', 'content': 'hi'}]}).encode()\n    \
        try: print(urllib.request.urlopen(urllib.request.Request(url, body, {'content-type': 'application/json'})).status)\n    \
        except urllib.error.HTTPError as error: print(error.code)\n";

/// Variables that would change the result of a test.
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
    /// Runs a program through `annals` in a fresh environment with these variables.
    fn with_variables(&self, args: &[&str], variables: &[(&str, &str)], program: &str) -> ProcessResult {
        self.write("ask.py", format!("{ASK}{program}\n"));
        let mut command = self.command([args, &["--", "python3", "-B", "ask.py"]].concat());
        CLEARED.iter().for_each(|name| _ = command.env_remove(name));
        command.current_dir(self.path("")).envs(variables.iter().copied()).stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }

    /// Metadata of the first frame of run `r`.
    fn first_request(&self) -> serde_json::Value {
        let frame = self.run("show r@1 --metadata --json").json().remove(0);
        frame["metadata"].clone()
    }
}

/// Regression: Vercel's @ai-sdk/anthropic expects an address that ends in /v1; the official library does not.
/// annals set an address without /v1, so the client requested /messages and got 404. A working program failed
/// when it was recorded.
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
    // The official library sends the same request.
    let official = "ask(os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages')";
    for program in [program, official] {
        let replayed = bench.with_variables(&["replay", "r"], &[], program);
        assert_eq!(replayed.code, 0, "{replayed:?}");
        assert!(replayed.stderr.contains("exact 1 of 1"), "{replayed:?}");
    }
    let forked = bench.with_variables(&["fork", "r@1", "child"], &[], program);
    assert_eq!(forked.code, 0, "{forked:?}");
}

/// The user's own gateway receives the path that the program requests, unchanged.
#[test]
fn user_gateway_path_is_unchanged() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let gateway = format!("{}/claude/", upstream.url);
    let variables = [("ANTHROPIC_BASE_URL", gateway.as_str())];
    let program = "ask(os.environ['ANTHROPIC_BASE_URL'] + '/messages')";
    // annals knows no interface with this path, so the request is not a model call.
    let recorded = bench.with_variables(&["record", "--run", "r"], &variables, program);
    // A request in an unknown form is recorded and is not a failure.
    assert!(recorded.stderr.contains("none of them is known as a model call"), "{recorded:?}");
    assert_eq!(recorded.code, 0, "{recorded:?}");
    assert_eq!(bench.first_request()["http"]["path"], "/claude/messages");
    assert_eq!(bench.with_variables(&["replay", "r"], &[], program).code, 0);
}

/// Regression: litellm and langchain-openai read one variable and fall back to another. The user had set the
/// fallback. annals set the first variable to the public address, so the program stopped calling the user's
/// gateway.
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

/// Regression: Azure's Node client prefers OPENAI_BASE_URL. annals set it, so calls for Azure went to OpenAI.
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

/// A variable that one client needs can break another client of the same program. Users can exclude it.
#[test]
fn env_without_path_leaves_variable_unchanged() {
    let bench = CliBench::new();
    let program = "print(os.environ.get('OPENAI_BASE_URL'), 'ANTHROPIC_BASE_URL' in os.environ)";
    let args = ["record", "--run", "r", "--env", "OPENAI_BASE_URL="];
    let recorded = bench.with_variables(&args, &[], program);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), "None True\n", "{recorded:?}");
}

/// Regression: a value that is not an address was an error. A program that never reads the variable could not
/// be recorded at all.
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
