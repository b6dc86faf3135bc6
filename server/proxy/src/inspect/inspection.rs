//! Combines all facts about a program into the result of an inspection.

use std::path::Path;

use super::addresses::{AddressKind, FoundAddress, addresses};
use super::clients::{AZURE, FixedAddress, called, is_litellm, known, other_model, providers};
use super::command::start;
use super::environment;
use super::report::{
    CaptureLikelihood, DetectedClient, Inspection, InspectionFinding, InspectionVerdict, ProgramKind,
    SourceLine,
};
use super::sources::{SourceFile, SourceReader};
use super::text::LineIndex;
use crate::nondet::{ExecChain, ExecTarget, chain};
use crate::program::Program;
use crate::variables::Variable;
use annals_text::shell;

/// The client's name if the program reads a variable without a client library.
const ITSELF: &str = "the program itself";
/// Modules and packages for WebSockets.
const WEB_SOCKETS: [&str; 3] = ["websockets", "websocket", "ws"];

/// Why there is nothing to inspect: the program would not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// As a shell exits: 127 if there is no such command, 126 if it cannot be executed.
    pub code: u8,
    /// The error message.
    pub message: String,
}

/// The facts collected so far.
#[derive(Default)]
struct InspectionDraft {
    clients: Vec<DetectedClient>,
    findings: Vec<InspectionFinding>,
    /// Variables that the program itself reads.
    reads: Vec<String>,
    /// Variables that a recording leaves unchanged in this environment.
    left: Vec<String>,
    /// The base addresses that clients without a variable need.
    fixed_clients: Vec<(String, FixedAddress)>,
    /// Variables to pass with --env, with the path after the address.
    envs: Vec<(String, String)>,
    /// For each fixed address the provider, if known, and the file.
    fixed: Vec<(Option<String>, String)>,
    not: Vec<String>,
}

/// Inspects a program without running anything. `set` returns a variable's value in its environment.
///
/// # Errors
/// If it would not start: the command is missing or cannot be executed.
pub fn inspect(program: &Program, set: &dyn Fn(&str) -> Option<String>) -> Result<Inspection, StartError> {
    let chain = chain(program);
    check_start(program, &chain)?;
    let directory = program.directory.as_deref().unwrap_or(Path::new(""));
    let (kind, start) = start(program, &chain);
    let sources = SourceReader::read(kind, &start, directory);
    let left = Variable::known().into_iter().filter(|variable| !variable.is_recorded(set));
    let left = left.map(|variable| variable.name).collect();
    let mut seen = InspectionDraft { findings: sources.findings, left, ..InspectionDraft::default() };
    if kind == ProgramKind::Other || sources.files.is_empty() {
        seen.command(program);
    }
    let found: Vec<_> = sources.files.iter().map(|source| (source, seen.file(source))).collect();
    for (source, found) in &found {
        found.iter().for_each(|found| seen.address(source, found));
    }
    seen.report_fixed_clients();
    seen.report_unset_variables();
    seen.report_litellm_models(&sources.files);
    let (upstreams, wrong) = environment::upstreams(set);
    seen.findings.extend(wrong);
    let keys = environment::keys(set);
    seen.report_missing(kind, &sources.files, keys.iter().any(|key| key.set));
    seen.findings.sort_by_key(|finding| !finding.problem);
    let nondet = environment::nondet(kind, &chain);
    let verdict = seen.verdict(program);
    Ok(Inspection {
        command: program.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        programs: chain.files.iter().map(|path| path.display().to_string()).collect(),
        kind,
        files: sources.files.into_iter().map(|source| source.looked).collect(),
        clients: seen.clients,
        upstreams,
        keys,
        proxies: environment::proxies(set),
        nondet,
        findings: seen.findings,
        verdict,
    })
}

fn check_start(program: &Program, chain: &ExecChain) -> Result<(), StartError> {
    let command = program.argv.first().map(|command| command.to_string_lossy()).unwrap_or_default();
    let by = |name: &str| match chain.files.last() {
        Some(script) => format!("{}: there is no {name}, which its first line names", script.display()),
        None => format!("{name}: there is no such command"),
    };
    match &chain.end {
        ExecTarget::Missing(name) => Err(StartError { code: 127, message: by(&name.to_string_lossy()) }),
        ExecTarget::NotExecutable(why) => Err(StartError { code: 126, message: format!("{command} {why}") }),
        ExecTarget::Coverable | ExecTarget::NotCoverable(_) => Ok(()),
    }
}

impl InspectionDraft {
    /// Handles a command that is a client itself.
    fn command(&mut self, program: &Program) {
        let Some(command) = program.argv.first() else { return };
        let name = Path::new(command).file_name().unwrap_or_default().to_string_lossy();
        let place = SourceLine { file: command.to_string_lossy().into_owned(), line: 1 };
        if let Some(known) = known(ProgramKind::Other, &name) {
            self.client(known.name, known.variables, known.fixed, place);
        }
    }

    fn client(&mut self, name: &str, variables: &[&str], fixed: Option<FixedAddress>, place: SourceLine) {
        if self.clients.iter().any(|client| client.name == name) {
            return;
        }
        let mut providers = providers(variables);
        providers.extend(fixed.map(|fixed| fixed.provider.to_owned()));
        self.fixed_clients.extend(fixed.map(|fixed| (name.to_owned(), fixed)));
        let variables = variables.iter().map(|name| (*name).to_owned()).collect();
        self.clients.push(DetectedClient { name: name.to_owned(), providers, variables, place });
    }

    /// Collects a file's clients and the variables that it reads; returns its addresses.
    fn file(&mut self, source: &SourceFile) -> Vec<FoundAddress> {
        let lines = LineIndex::new(&source.code);
        let place = |at| SourceLine { file: source.looked.file.clone(), line: lines.line(at) };
        for import in &source.imports {
            let parts = import.parts.iter().map(|part| format!("{}.{part}", import.name));
            let mut names = std::iter::once(import.name.clone()).chain(parts);
            if let Some(known) = names.find_map(|name| known(source.kind, &name)) {
                self.client(known.name, known.variables, known.fixed, place(import.at));
            }
            if source.kind != ProgramKind::Shell && WEB_SOCKETS.contains(&import.name.as_str()) {
                self.web_socket(place(import.at), &format!("{} is imported", import.name), false);
            }
        }
        if matches!(source.kind, ProgramKind::Python | ProgramKind::Node) {
            for (known, at) in called(&source.code) {
                self.client(known.name, known.variables, None, place(at));
                if source.kind == ProgramKind::Node && known.name == AZURE {
                    self.report_node_azure(place(at));
                }
            }
        }
        let (found, reads) = addresses(source);
        for read in reads {
            if Variable::known().iter().any(|variable| variable.name == read.name)
                && !self.reads.contains(&read.name)
            {
                let name = format!("{ITSELF} ({})", read.name);
                self.client(&name, &[&read.name], None, place(read.at));
                self.reads.push(read.name);
            }
        }
        found
    }

    fn web_socket(&mut self, place: SourceLine, what: &str, model: bool) {
        if model {
            self.not.push(format!("realtime calls ({place})"));
        }
        self.findings.push(InspectionFinding {
            problem: model,
            what: "websocket",
            place: Some(place),
            text: format!("{what}: WebSockets are refused by the recorder"),
            next: "use the provider's interface over plain HTTP or server-sent events".to_owned(),
        });
    }

    fn address(&mut self, source: &SourceFile, found: &FoundAddress) {
        let file = source.looked.file.clone();
        let place = SourceLine { file: file.clone(), line: found.line };
        let model_clients = self.clients.iter().any(|client| !client.providers.is_empty());
        let path = if found.path.is_empty() { "/v1" } else { found.path.trim_end_matches('/') };
        match &found.address {
            AddressKind::WebSocket { model } => self.web_socket(place, &found.shown, *model),
            AddressKind::FromVariable(name) => {
                if !self.envs.iter().any(|(known, _)| known == name) {
                    self.envs.push((name.clone(), path.to_owned()));
                }
                self.findings.push(InspectionFinding {
                    problem: false,
                    what: "variable",
                    place: Some(place),
                    text: format!("the address comes from {name}, which annals does not set by itself"),
                    next: format!("annals record --env {name}={path} -- ..."),
                });
            }
            AddressKind::Fixed if found.provider.is_some() || model_clients => {
                let variables = Variable::known();
                let of = |variable: &&Variable| Some(&variable.provider) == found.provider.as_ref();
                let next = match variables.iter().find(of) {
                    Some(variable) => format!(
                        "read it from {}, which annals sets; or from a variable of your own, with --env NAME={path}",
                        variable.name
                    ),
                    None => format!("read it from a variable of your own, with --env NAME={path}"),
                };
                self.not.push(format!("requests to {} ({place})", found.shown));
                self.fixed.push((found.provider.clone(), file));
                self.findings.push(InspectionFinding {
                    problem: true,
                    what: "address",
                    place: Some(place),
                    text: format!("the address {} is fixed in the program", found.shown),
                    next,
                });
            }
            AddressKind::Fixed | AddressKind::Possible => self.findings.push(InspectionFinding {
                problem: false,
                what: "address",
                place: Some(place),
                text: format!(
                    "{} is named like a base address; a model behind it is not captured",
                    found.shown
                ),
                next: format!("if a model is behind it, read it from a variable, with --env NAME={path}"),
            }),
        }
    }

    /// Reports clients that read no variable and get no base address from the program either.
    fn report_fixed_clients(&mut self) {
        let read = self.reads.iter().filter(|name| !self.left.contains(name));
        let read = read.map(String::as_str).collect::<Vec<_>>();
        let handed = providers(&read);
        for client in &self.clients {
            let fixed = client.variables.is_empty() && client.providers.iter().any(|of| !handed.contains(of));
            if !fixed {
                continue;
            }
            let provider = client.providers.join(", ");
            let given = self.fixed_clients.iter().find(|(name, _)| *name == client.name);
            let given =
                given.map_or_else(String::new, |(_, FixedAddress { variable, path, .. })| match *path {
                    "" => format!("the value of {variable}"),
                    path => format!("the value of {variable} followed by {path}"),
                });
            self.not.push(format!("{} ({})", client.name, client.place));
            self.findings.push(InspectionFinding {
                problem: true,
                what: "client",
                place: Some(client.place.clone()),
                text: format!("{} reads no variable for the address of {provider}", client.name),
                next: format!("give it {given} as its base address, or use another library"),
            });
        }
    }

    /// Reports clients whose variables a recording leaves unchanged.
    fn report_unset_variables(&mut self) {
        for client in &self.clients {
            let first = client
                .variables
                .first()
                .filter(|_| client.variables.iter().all(|name| self.left.contains(name)));
            let Some(variable) = first else { continue };
            let provider = client.providers.first().map_or("", String::as_str);
            let next = match provider {
                "bedrock" => {
                    "name a gateway that checks no signature: --upstream bedrock=URL; AWS refuses requests signed for another address".to_owned()
                }
                provider => format!("set {variable}, or name the upstream: --upstream {provider}=URL"),
            };
            self.not.push(format!("{} ({})", client.name, client.place));
            self.findings.push(InspectionFinding {
                problem: true,
                what: "client",
                place: Some(client.place.clone()),
                text: format!(
                    "{} reads {variable}, which a recording does not change in this environment",
                    client.name
                ),
                next,
            });
        }
    }

    /// The Node client of Azure prefers OpenAI's address to its own.
    fn report_node_azure(&mut self, place: SourceLine) {
        if self.left.iter().any(|name| name == "OPENAI_BASE_URL") {
            return;
        }
        self.findings.push(InspectionFinding {
            problem: true,
            what: "client",
            place: Some(place),
            text: "AzureOpenAI in Node uses OPENAI_BASE_URL if it is set, and a recording sets it".to_owned(),
            next: "leave the variable out: annals record --env OPENAI_BASE_URL= -- ...".to_owned(),
        });
    }

    /// Reports litellm models whose provider has no variable that a recording sets.
    fn report_litellm_models(&mut self, files: &[SourceFile]) {
        let Some(client) = self.clients.iter().find(|client| is_litellm(&client.name)) else { return };
        let (name, first) = (client.name.clone(), client.place.clone());
        let mut is_seen = false;
        for source in files.iter().filter(|source| source.kind == ProgramKind::Python) {
            let Some((at, provider)) = other_model(&source.code) else { continue };
            let place =
                SourceLine { file: source.looked.file.clone(), line: LineIndex::new(&source.code).line(at) };
            is_seen = true;
            self.not.push(format!("models {provider}/... of {name} ({place})"));
            self.findings.push(InspectionFinding {
                problem: true,
                what: "client",
                place: Some(place),
                text: format!("{name} reads no variable that a recording sets for models {provider}/..."),
                next: "pass api_base, from a variable of your own with --env NAME=/PATH".to_owned(),
            });
        }
        if !is_seen {
            self.findings.push(InspectionFinding {
                problem: false,
                what: "client",
                place: Some(first),
                text: format!("{name} is captured for the providers of its variables only"),
                next: "for other providers pass api_base, from a variable of your own with --env NAME=/PATH"
                    .to_owned(),
            });
        }
    }

    /// Adds hints if little or nothing was found.
    fn report_missing(&mut self, kind: ProgramKind, files: &[SourceFile], key: bool) {
        let note = |what, text: &str, next: &str| InspectionFinding {
            problem: false,
            what,
            place: None,
            text: text.to_owned(),
            next: next.to_owned(),
        };
        let asks = self.clients.iter().any(|client| !client.providers.is_empty());
        if asks && !key && self.clients.iter().any(|client| client.providers.iter().any(|of| of != "ollama"))
        {
            let next = "set the one that the program needs; a replay needs none";
            self.findings.push(note("key", "no key is set in this environment", next));
        }
        let record = "record it: a recording without model calls warns about it";
        if files.is_empty() && !self.findings.iter().any(|finding| finding.problem) {
            let what = if kind == ProgramKind::Other {
                "it is not a Python, Node or shell script"
            } else {
                "there is no script to inspect"
            };
            self.findings.push(note("program", &format!("{what}: its requests are unknown"), record));
        } else if self.clients.is_empty() && self.not.is_empty() && self.envs.is_empty() && !files.is_empty()
        {
            self.findings.push(note("nothing", "no code that sends requests was found", record));
        } else if !asks && self.not.is_empty() && self.envs.is_empty() && !files.is_empty() {
            let text = "plain HTTP clients only: the program sets their addresses";
            let next = "if it asks a model, read the address from a variable that annals sets, or from one named with --env NAME=/PATH";
            self.findings.push(note("nothing", text, next));
        }
    }

    fn verdict(&self, program: &Program) -> InspectionVerdict {
        let lost = |client: &DetectedClient| {
            self.fixed.iter().any(|(provider, file)| match provider {
                Some(provider) => client.providers.contains(provider),
                None => *file == client.place.file,
            })
        };
        let is_set = |client: &DetectedClient| client.variables.iter().any(|name| !self.left.contains(name));
        let captured = self.clients.iter().filter(|client| is_set(client) && !lost(client));
        let mut likely: Vec<_> = captured
            .map(|client| match client.name.starts_with(ITSELF) {
                true => client.name.clone(),
                false => {
                    let set = client.variables.iter().filter(|name| !self.left.contains(name));
                    let set: Vec<_> = set.map(String::as_str).collect();
                    format!("{} ({})", client.name, set.join(", "))
                }
            })
            .collect();
        likely.extend(
            self.envs.iter().map(|(name, _)| format!("requests to the address in {name}, with --env")),
        );
        let capture = match (self.findings.iter().any(|finding| finding.problem), likely.is_empty()) {
            (true, _) => CaptureLikelihood::Unlikely,
            (false, false) => CaptureLikelihood::Likely,
            (false, true) => CaptureLikelihood::Unknown,
        };
        let mut words = vec!["annals".to_owned(), "record".to_owned()];
        for (name, path) in &self.envs {
            words.extend(["--env".to_owned(), format!("{name}={path}")]);
        }
        words.push("--".to_owned());
        words.extend(program.argv.iter().map(|word| word.to_string_lossy().into_owned()));
        let r#try = words.iter().map(|word| shell::quote(word)).collect::<Vec<_>>().join(" ");
        InspectionVerdict { capture, likely, not: self.not.clone(), r#try }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files that a user would have")]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Inspection {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(name), text).unwrap();
        // Any existing program: only its name counts.
        std::os::unix::fs::symlink("/bin/sh", directory.path().join("python3")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", directory.path().join("node")).unwrap();
        let by = if name.ends_with(".py") { "./python3" } else { "./node" };
        let argv = vec![by.into(), name.into()];
        let program = Program { argv, directory: Some(directory.path().to_owned()), environment: Vec::new() };
        inspect(&program, &|name| (name == "OPENAI_API_KEY").then(|| "k".to_owned())).unwrap()
    }

    #[test]
    fn client_with_a_variable_is_likely_captured() {
        let found = of("a.py", "from openai import OpenAI\nimport requests\n");
        assert_eq!(found.verdict.capture, CaptureLikelihood::Likely);
        assert_eq!(found.verdict.likely, ["openai (OPENAI_BASE_URL)"]);
        assert_eq!(found.verdict.r#try, "annals record -- ./python3 a.py");
        assert!(found.findings.is_empty(), "{:?}", found.findings);
    }

    #[test]
    fn fixed_address_is_a_problem_of_its_provider_only() {
        let text = "import openai, requests\nfrom anthropic import Anthropic\nrequests.get('https://api.anthropic.com/v1/models')\n";
        let found = of("a.py", text);
        assert_eq!(found.verdict.capture, CaptureLikelihood::Unlikely);
        assert_eq!(found.verdict.likely, ["openai (OPENAI_BASE_URL)"]);
        let [problem] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
        assert_eq!(problem.place.as_ref().unwrap().to_string(), "a.py:3");
        assert!(problem.next.contains("ANTHROPIC_BASE_URL"), "{problem:?}");
        // An unknown base address is a problem if the file has a model client.
        let found = of("a.py", "import openai\nopenai.OpenAI(base_url='http://10.0.0.1/v1')");
        assert_eq!((found.verdict.capture, found.verdict.likely.len()), (CaptureLikelihood::Unlikely, 0));
        assert_eq!(
            of("a.py", "Weather(base_url='http://10.0.0.1/v1')").verdict.capture,
            CaptureLikelihood::Unknown
        );
    }

    #[test]
    fn client_without_a_variable_is_reported() {
        let found = of("a.mjs", "import { Ollama } from 'ollama';\nnew Ollama()");
        assert_eq!(found.verdict.capture, CaptureLikelihood::Unlikely);
        assert!(found.findings[0].next.contains("OLLAMA_HOST"), "{:?}", found.findings);
        let found =
            of("a.mjs", "import { Ollama } from 'ollama';\nnew Ollama({ host: process.env.OLLAMA_HOST })");
        assert_eq!(found.verdict.capture, CaptureLikelihood::Likely);
        let found = of("a.py", "import openai, os\nopenai.OpenAI(base_url=os.environ['MY_URL'])");
        assert_eq!(found.verdict.r#try, "annals record --env MY_URL=/v1 -- ./python3 a.py");
        assert_eq!(found.verdict.capture, CaptureLikelihood::Likely);
    }

    #[test]
    fn unknown_program_gives_an_unknown_verdict() {
        for text in ["print(1)", "import requests", "import subprocess"] {
            let found = of("a.py", text);
            assert_eq!(
                (found.verdict.capture, found.findings.len()),
                (CaptureLikelihood::Unknown, 1),
                "{text}"
            );
        }
        let found = of("a.py", "import websockets\nimport openai\nclient.beta.realtime.connect(model='m')");
        let problems: Vec<_> = found.findings.iter().map(|finding| finding.problem).collect();
        assert_eq!(problems, [true, false]);
    }
}
