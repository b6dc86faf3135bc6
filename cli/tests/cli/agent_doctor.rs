//! `annals doctor --agent`: the report about a program before it runs.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use crate::{CliBench, ProcessResult};

/// Variables that would change the report.
const CLEARED: [&str; 20] = [
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "OPENAI_HOST",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_URL",
    "ANTHROPIC_HOST",
    "GOOGLE_GEMINI_BASE_URL",
    "GEMINI_BASE_URL",
    "OLLAMA_HOST",
    "ANTHROPIC_API_BASE",
    "GROQ_BASE_URL",
    "GROQ_API_BASE",
    "CO_API_URL",
    "AZURE_OPENAI_ENDPOINT",
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
    "AWS_BEARER_TOKEN_BEDROCK",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "MISTRAL_BASE_URL",
    "OPENROUTER_BASE_URL",
    "ANTHROPIC_API_KEY",
];

impl CliBench {
    fn doctor(&self, options: &[&str], variables: &[(&str, &str)], program: &[&str]) -> ProcessResult {
        let mut command = self.command([&["doctor", "--agent"], options, &["--"], program].concat());
        CLEARED.iter().for_each(|name| _ = command.env_remove(name));
        command.env("OPENAI_API_KEY", "hunter2").envs(variables.iter().copied());
        ProcessResult::from_output(command.stdin(Stdio::null()).output().unwrap())
    }

    /// Returns the report in both forms, text and JSON, and checks that they agree.
    #[track_caller]
    fn doctor_text(&self, code: i32, program: &[&str]) -> (String, Value) {
        let (text, json) = (self.doctor(&[], &[], program), self.doctor(&["--json"], &[], program));
        assert_eq!((text.code, json.code, text.stderr.as_str()), (code, code, ""), "{text:?}");
        let text = String::from_utf8(text.stdout).unwrap();
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        for finding in json["findings"].as_array().unwrap() {
            let place = finding["file"]
                .as_str()
                .map_or(String::new(), |file| format!(" {file}:{}:", finding["line"]));
            let word = if finding["problem"] == true { "problem" } else { "note" };
            let line = format!(
                "{word}:{place} {}\n  next: {}\n",
                finding["text"].as_str().unwrap(),
                finding["next"].as_str().unwrap()
            );
            assert!(text.contains(&line), "{line}{text}");
        }
        for client in json["clients"].as_array().unwrap() {
            let line = format!(
                "client: {} ({}:{})",
                client["name"].as_str().unwrap(),
                client["file"].as_str().unwrap(),
                client["line"]
            );
            assert!(text.contains(&line), "{line}: {text}");
        }
        let verdict = &json["verdict"];
        let last = text.lines().last().unwrap();
        assert!(last.ends_with(&format!("; try: {}", verdict["try"].as_str().unwrap())), "{last}");
        for (of, word) in [("likely", "likely captured: "), ("not", "not captured: ")] {
            let all: Vec<_> =
                verdict[of].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
            assert!(last.contains(&format!("{word}{}", all.join(", "))), "{last}");
        }
        assert_eq!(code == 1, verdict["capture"] == "unlikely");
        assert!(!self.path(".annals").exists());
        (text, json)
    }
}

#[test]
fn python_program_with_client_is_fine_and_not_started() {
    let bench = CliBench::new();
    bench.write("llm.py", "import os\nfrom langchain_anthropic import ChatAnthropic\n");
    bench.write("agent.py", "open('started', 'w')\nfrom openai import OpenAI\nimport llm\nOpenAI()\n");
    let (text, json) = bench.doctor_text(0, &["python3", "agent.py"]);
    assert!(
        text.contains("looks like: likely captured: openai (OPENAI_BASE_URL), langchain_anthropic ("),
        "{text}"
    );
    assert!(text.contains("looked at: agent.py and 1 file that it imports"), "{text}");
    assert!(
        text.contains("nothing was run") && text.ends_with("try: annals record -- python3 agent.py\n"),
        "{text}"
    );
    assert_eq!((&json["kind"], &json["verdict"]["capture"]), (&"python".into(), &"likely".into()));
    assert_eq!(json["files"][1]["file"], "llm.py");
    assert!(!bench.path("started").exists());
}

#[test]
fn fixed_address_is_reported_with_its_line() {
    let bench = CliBench::new();
    bench.write(
        "agent.py",
        "import openai\n\nclient = openai.OpenAI(\n    base_url=\"https://api.openai.com/v1\")\n",
    );
    let (text, json) = bench.doctor_text(1, &["python3", "agent.py"]);
    let line = "problem: agent.py:4: the address https://api.openai.com is fixed in the program\n";
    assert!(
        text.contains(line) && text.contains("--env NAME=/v1") && text.contains("OPENAI_BASE_URL"),
        "{text}"
    );
    assert_eq!(json["verdict"]["likely"].as_array().unwrap().len(), 0);
    // An address that is read from a variable is no problem.
    bench.write("agent.py", "import openai, os\nopenai.OpenAI(base_url=os.environ['MY_LLM'])\n");
    let (text, _) = bench.doctor_text(0, &["python3", "agent.py"]);
    assert!(text.ends_with("try: annals record --env MY_LLM=/v1 -- python3 agent.py\n"), "{text}");
}

#[test]
fn node_and_shell_programs_are_inspected() {
    let bench = CliBench::new();
    bench.write(
        "agent.mjs",
        "// import '@google/generative-ai'\nimport Anthropic from '@anthropic-ai/sdk';\nnew Anthropic();\n",
    );
    // The inspection needs only an executable of this name, not the real interpreter.
    bench.write("node", "#!/bin/sh\n");
    let executable = |name: &str| {
        let file = bench.path(name);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    executable("node");
    let (_, json) = bench.doctor_text(0, &["./node", "agent.mjs"]);
    assert_eq!(json["verdict"]["likely"], serde_json::json!(["@anthropic-ai/sdk (ANTHROPIC_BASE_URL)"]));

    bench.write("ask.sh", "#!/bin/bash\nset -e\ncurl -s https://api.mistral.ai/v1/chat/completions -d @-\n");
    executable("ask.sh");
    let (text, json) = bench.doctor_text(1, &["./ask.sh"]);
    assert!(text.contains("problem: ./ask.sh:3: the address https://api.mistral.ai is fixed"), "{text}");
    assert_eq!((&json["kind"], json["programs"].as_array().unwrap().len()), (&"shell".into(), 2));
    let (text, _) =
        bench.doctor_text(0, &["bash", "-c", "curl \"$OPENAI_BASE_URL/models\" # https://api.openai.com"]);
    assert!(
        text.contains("likely captured: the program itself (OPENAI_BASE_URL); not captured: nothing"),
        "{text}"
    );
}

#[test]
fn program_that_cannot_start_is_an_error() {
    let bench = CliBench::new();
    bench.write("data", "text");
    let of = |program: &str| bench.doctor(&[], &[], &[program]).failed(1);
    assert!(of("annals-no-such-program").contains("there is no such command (exit code 127"));
    assert!(of("./nowhere").contains("./nowhere: there is no such command"));
    assert!(of("./data").contains("may not be executed (exit code 126"));
    assert!(bench.doctor(&["--json"], &[], &["./nowhere"]).stdout.is_empty());
    // `--agent` and a command each need the other.
    assert_eq!(bench.run("doctor --agent").code, 2);
    assert_eq!(bench.run("doctor -- true").code, 2);
}

#[test]
fn unusable_files_are_reported_and_skipped() {
    let bench = CliBench::new();
    let (text, _) = bench.doctor_text(1, &["python3", "gone.py"]);
    assert!(text.contains("problem: gone.py cannot be inspected: "), "{text}");
    bench.write("binary.py", b"\x7fELF\0\0");
    assert!(bench.doctor_text(1, &["python3", "binary.py"]).0.contains("it is not text"));
    bench.write("closed.py", "import openai");
    std::fs::set_permissions(bench.path("closed.py"), std::fs::Permissions::from_mode(0o0)).unwrap();
    // A privileged user can read the file, so there is no problem to report.
    let may =
        std::process::Command::new("cat").arg(bench.path("closed.py")).output().unwrap().status.success();
    bench.doctor_text(i32::from(!may), &["python3", "closed.py"]);
    bench.write("huge.py", "import openai\n".repeat(3_000_000));
    let (text, json) = bench.doctor_text(0, &["python3", "huge.py"]);
    assert!(text.contains("note: only the first 1048576 bytes of huge.py were inspected"), "{text}");
    assert_eq!(json["files"][0], serde_json::json!({ "file": "huge.py", "bytes": 1_048_576, "cut": true }));
    bench.write("steer.py", "requests.get('https://api.openai.com\u{1b}[31m')\nimport x\u{1b}]0;y\u{7}\n");
    assert!(!bench.doctor_text(1, &["python3", "steer.py"]).0.contains('\u{1b}'));
}

#[test]
fn environment_is_reported_without_secrets() {
    let bench = CliBench::new();
    bench.write("agent.py", "import openai");
    let variables = [
        ("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
        ("ANTHROPIC_BASE_URL", "https://me:hunter2@llm.example"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy.example"),
    ];
    for options in [&[][..], &["--json"]] {
        let done = bench.doctor(options, &variables, &["python3", "agent.py"]);
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.code, 1, "{text}");
        for part in
            ["http://127.0.0.1:9", "OPENAI_API_KEY", "HTTPS_PROXY", "value of ANTHROPIC_BASE_URL cannot be"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn static_binary_lacks_only_nondet_capture() {
    let bench = CliBench::new();
    let found = ["/sbin/ldconfig", "/bin/busybox", "/usr/sbin/ldconfig"].into_iter().find(|path| {
        let file = bench.doctor(&["--json"], &[], &[path]);
        serde_json::from_slice::<Value>(&file.stdout).is_ok_and(|json| json["nondet"]["works"] == false)
    });
    let Some(path) = found else {
        println!("skipped: no static binary on this machine");
        return;
    };
    let (text, json) = bench.doctor_text(0, &[path]);
    assert!(
        text.contains("--capture-nondet would not work: ") && text.contains("is a static binary"),
        "{text}"
    );
    assert_eq!(json["verdict"]["capture"], "unknown");
    assert!(text.contains("likely captured: cannot be told"), "{text}");
}

/// Regression: the report called clients covered, or did not mention them, although no recording captured
/// their calls. The exit code was 0.
#[test]
fn uncaptured_clients_are_problems() {
    let bench = CliBench::new();
    let is_problem = |name: &str, text: &str, says: &str| {
        bench.write(name, text);
        let command = if name.ends_with(".py") { "python3" } else { "./node" };
        let (told, _) = bench.doctor_text(1, &[command, name]);
        assert!(told.contains(says), "{says:?}: {told}");
    };
    bench.write("node", "#!/bin/sh\n");
    std::fs::set_permissions(bench.path("node"), std::fs::Permissions::from_mode(0o755)).unwrap();
    is_problem("a.py", "from mistralai.client import Mistral", "the value of MISTRAL_BASE_URL");
    is_problem(
        "a.py",
        "import litellm\nlitellm.completion(model='gemini/x')",
        "a.py:2: litellm reads no variable",
    );
    is_problem("a.py", "from openai import AzureOpenAI\nAzureOpenAI()", "--upstream azure=URL");
    is_problem("a.py", "import boto3\nboto3.client('bedrock-runtime')", "--upstream bedrock=URL");
    is_problem(
        "a.mjs",
        "import { google } from '@ai-sdk/google'",
        "GOOGLE_GEMINI_BASE_URL followed by /v1beta",
    );
    is_problem("a.mjs", "import { groq } from '@ai-sdk/groq'", "the value of GROQ_API_BASE");
    is_problem("a.mjs", "import { bedrock } from '@ai-sdk/amazon-bedrock'", "--upstream bedrock=URL");
    is_problem("a.mjs", "import { AzureOpenAI } from 'openai'\nnew AzureOpenAI()", "--env OPENAI_BASE_URL=");
}

#[test]
fn captured_clients_are_likely() {
    let bench = CliBench::new();
    for (text, likely) in [
        ("import groq", "groq (GROQ_BASE_URL)"),
        ("import cohere", "cohere (CO_API_URL)"),
        ("import langchain_groq", "langchain_groq (GROQ_API_BASE, GROQ_BASE_URL)"),
        ("import litellm\nlitellm.completion('groq/x')", "litellm (OPENAI_BASE_URL, OPENAI_API_BASE, "),
    ] {
        bench.write("a.py", text);
        let (told, _) = bench.doctor_text(0, &["python3", "a.py"]);
        assert!(told.contains(&format!("likely captured: {likely}")), "{text}: {told}");
    }
    bench.write("a.py", "import openai\nopenai.AzureOpenAI()");
    let set = [("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com")];
    let done = bench.doctor(&[], &set, &["python3", "a.py"]);
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.code == 0 && told.contains("AzureOpenAI (AZURE_OPENAI_ENDPOINT)"), "{told}");
    // If the competing variable is set, a recording does not set the variable that this client reads.
    bench.write("a.py", "import openai\nopenai.OpenAI()");
    let rival = [("OPENAI_API_BASE", "http://127.0.0.1:9/v1")];
    let done = bench.doctor(&[], &rival, &["python3", "a.py"]);
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.code == 1 && told.contains("openai reads OPENAI_BASE_URL, which a recording does not change"),
        "{told}"
    );
}
