//! Combines all facts about a program into the result of an inspection.

use std::path::Path;

use super::addresses::{Address, Found, addresses};
use super::clients::{AZURE, Fixed, called, is_litellm, known, other_model, providers};
use super::command::start;
use super::report::{Capture, Client, Finding, Inspection, Kind, Place, Verdict};
use super::sources::{Source, Sources};
use super::surroundings;
use super::text::Lines;
use crate::nondet::{Chain, End, chain};
use crate::program::Program;
use crate::proxy::Variable;

/// The client's name if the program reads a variable without a client library.
const ITSELF: &str = "the program itself";
/// Modules and packages for WebSockets.
const WEB_SOCKETS: [&str; 3] = ["websockets", "websocket", "ws"];

/// Why there is nothing to inspect: the program would not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CannotStart {
    /// As a shell exits: 127 if there is no such command, 126 if it cannot be executed.
    pub code: u8,
    /// The error message.
    pub message: String,
}

/// The facts collected so far.
#[derive(Default)]
struct Seen {
    clients: Vec<Client>,
    findings: Vec<Finding>,
    /// Variables that the program itself reads.
    reads: Vec<String>,
    /// Variables that a recording leaves unchanged in this environment.
    left: Vec<String>,
    /// The base addresses that clients without a variable need.
    fixed_clients: Vec<(String, Fixed)>,
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
pub fn inspect(program: &Program, set: &dyn Fn(&str) -> Option<String>) -> Result<Inspection, CannotStart> {
    let chain = chain(program);
    starts(program, &chain)?;
    let directory = program.directory.as_deref().unwrap_or(Path::new(""));
    let (kind, start) = start(program, &chain);
    let sources = Sources::read(kind, &start, directory);
    let left = Variable::known().into_iter().filter(|variable| !variable.is_recorded(set));
    let left = left.map(|variable| variable.name).collect();
    let mut seen = Seen { findings: sources.findings, left, ..Seen::default() };
    if kind == Kind::Other || sources.files.is_empty() {
        seen.command(program);
    }
    let found: Vec<_> = sources.files.iter().map(|source| (source, seen.file(source))).collect();
    for (source, found) in &found {
        found.iter().for_each(|found| seen.address(source, found));
    }
    seen.clients_alone();
    seen.clients_left();
    seen.models_of_litellm(&sources.files);
    let (upstreams, wrong) = surroundings::upstreams(set);
    seen.findings.extend(wrong);
    let keys = surroundings::keys(set);
    seen.leftovers(kind, &sources.files, keys.iter().any(|key| key.set));
    seen.findings.sort_by_key(|finding| !finding.problem);
    let nondet = surroundings::nondet(kind, &chain);
    let verdict = seen.verdict(program);
    Ok(Inspection {
        command: program.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        programs: chain.files.iter().map(|path| path.display().to_string()).collect(),
        kind,
        files: sources.files.into_iter().map(|source| source.looked).collect(),
        clients: seen.clients,
        upstreams,
        keys,
        proxies: surroundings::proxies(set),
        nondet,
        findings: seen.findings,
        verdict,
    })
}

fn starts(program: &Program, chain: &Chain) -> Result<(), CannotStart> {
    let command = program.argv.first().map(|command| command.to_string_lossy()).unwrap_or_default();
    let by = |name: &str| match chain.files.last() {
        Some(script) => format!("{}: there is no {name}, which its first line names", script.display()),
        None => format!("{name}: there is no such command"),
    };
    match &chain.end {
        End::Missing(name) => Err(CannotStart { code: 127, message: by(&name.to_string_lossy()) }),
        End::NotExecutable(why) => Err(CannotStart { code: 126, message: format!("{command} {why}") }),
        End::Fine | End::Beyond(_) => Ok(()),
    }
}

impl Seen {
    /// Handles a command that is a client itself.
    fn command(&mut self, program: &Program) {
        let Some(command) = program.argv.first() else { return };
        let name = Path::new(command).file_name().unwrap_or_default().to_string_lossy();
        let place = Place { file: command.to_string_lossy().into_owned(), line: 1 };
        if let Some(known) = known(Kind::Other, &name) {
            self.client(known.name, known.variables, known.fixed, place);
        }
    }

    fn client(&mut self, name: &str, variables: &[&str], fixed: Option<Fixed>, place: Place) {
        if self.clients.iter().any(|client| client.name == name) {
            return;
        }
        let mut providers = providers(variables);
        providers.extend(fixed.map(|fixed| fixed.provider.to_owned()));
        self.fixed_clients.extend(fixed.map(|fixed| (name.to_owned(), fixed)));
        let variables = variables.iter().map(|name| (*name).to_owned()).collect();
        self.clients.push(Client { name: name.to_owned(), providers, variables, place });
    }

    /// Collects a file's clients and the variables that it reads; returns its addresses.
    fn file(&mut self, source: &Source) -> Vec<Found> {
        let lines = Lines::of(&source.code);
        let place = |at| Place { file: source.looked.file.clone(), line: lines.line(at) };
        for import in &source.imports {
            let parts = import.parts.iter().map(|part| format!("{}.{part}", import.name));
            let mut names = std::iter::once(import.name.clone()).chain(parts);
            if let Some(known) = names.find_map(|name| known(source.kind, &name)) {
                self.client(known.name, known.variables, known.fixed, place(import.at));
            }
            if source.kind != Kind::Shell && WEB_SOCKETS.contains(&import.name.as_str()) {
                self.web_socket(place(import.at), &format!("{} is imported", import.name), false);
            }
        }
        if matches!(source.kind, Kind::Python | Kind::Node) {
            for (known, at) in called(&source.code) {
                self.client(known.name, known.variables, None, place(at));
                if source.kind == Kind::Node && known.name == AZURE {
                    self.azure_of_node(place(at));
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

    fn web_socket(&mut self, place: Place, what: &str, model: bool) {
        if model {
            self.not.push(format!("realtime calls ({place})"));
        }
        self.findings.push(Finding {
            problem: model,
            what: "websocket",
            place: Some(place),
            text: format!("{what}: WebSockets are refused by the recorder"),
            next: "use the provider's interface over plain HTTP or server-sent events".to_owned(),
        });
    }

    fn address(&mut self, source: &Source, found: &Found) {
        let file = source.looked.file.clone();
        let place = Place { file: file.clone(), line: found.line };
        let model_clients = self.clients.iter().any(|client| !client.providers.is_empty());
        let path = if found.path.is_empty() { "/v1" } else { found.path.trim_end_matches('/') };
        match &found.address {
            Address::WebSocket { model } => self.web_socket(place, &found.shown, *model),
            Address::From(name) => {
                if !self.envs.iter().any(|(known, _)| known == name) {
                    self.envs.push((name.clone(), path.to_owned()));
                }
                self.findings.push(Finding {
                    problem: false,
                    what: "variable",
                    place: Some(place),
                    text: format!("the address comes from {name}, which annals does not set by itself"),
                    next: format!("annals record --env {name}={path} -- ..."),
                });
            }
            Address::Fixed if found.provider.is_some() || model_clients => {
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
                self.findings.push(Finding {
                    problem: true,
                    what: "address",
                    place: Some(place),
                    text: format!("the address {} is fixed in the program", found.shown),
                    next,
                });
            }
            Address::Fixed | Address::Perhaps => self.findings.push(Finding {
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
    fn clients_alone(&mut self) {
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
            let given = given.map_or_else(String::new, |(_, Fixed { variable, path, .. })| match *path {
                "" => format!("the value of {variable}"),
                path => format!("the value of {variable} followed by {path}"),
            });
            self.not.push(format!("{} ({})", client.name, client.place));
            self.findings.push(Finding {
                problem: true,
                what: "client",
                place: Some(client.place.clone()),
                text: format!("{} reads no variable for the address of {provider}", client.name),
                next: format!("give it {given} as its base address, or use another library"),
            });
        }
    }

    /// Reports clients whose variables a recording leaves unchanged.
    fn clients_left(&mut self) {
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
            self.findings.push(Finding {
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
    fn azure_of_node(&mut self, place: Place) {
        if self.left.iter().any(|name| name == "OPENAI_BASE_URL") {
            return;
        }
        self.findings.push(Finding {
            problem: true,
            what: "client",
            place: Some(place),
            text: "AzureOpenAI in Node uses OPENAI_BASE_URL if it is set, and a recording sets it"
                .to_owned(),
            next: "leave the variable out: annals record --env OPENAI_BASE_URL= -- ...".to_owned(),
        });
    }

    /// Reports litellm models whose provider has no variable that a recording sets.
    fn models_of_litellm(&mut self, files: &[Source]) {
        let Some(client) = self.clients.iter().find(|client| is_litellm(&client.name)) else { return };
        let (name, first) = (client.name.clone(), client.place.clone());
        let mut is_seen = false;
        for source in files.iter().filter(|source| source.kind == Kind::Python) {
            let Some((at, provider)) = other_model(&source.code) else { continue };
            let place = Place { file: source.looked.file.clone(), line: Lines::of(&source.code).line(at) };
            is_seen = true;
            self.not.push(format!("models {provider}/... of {name} ({place})"));
            self.findings.push(Finding {
                problem: true,
                what: "client",
                place: Some(place),
                text: format!("{name} reads no variable that a recording sets for models {provider}/..."),
                next: "pass api_base, from a variable of your own with --env NAME=/PATH".to_owned(),
            });
        }
        if !is_seen {
            self.findings.push(Finding {
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
    fn leftovers(&mut self, kind: Kind, files: &[Source], key: bool) {
        let note = |what, text: &str, next: &str| Finding {
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
            let what = if kind == Kind::Other {
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

    fn verdict(&self, program: &Program) -> Verdict {
        let lost = |client: &Client| {
            self.fixed.iter().any(|(provider, file)| match provider {
                Some(provider) => client.providers.contains(provider),
                None => *file == client.place.file,
            })
        };
        let is_set = |client: &Client| client.variables.iter().any(|name| !self.left.contains(name));
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
        likely.extend(self.envs.iter().map(|(name, _)| format!("requests to the address in {name}, with --env")));
        let capture = match (self.findings.iter().any(|finding| finding.problem), likely.is_empty()) {
            (true, _) => Capture::Unlikely,
            (false, false) => Capture::Likely,
            (false, true) => Capture::Unknown,
        };
        let mut words = vec!["annals".to_owned(), "record".to_owned()];
        for (name, path) in &self.envs {
            words.extend(["--env".to_owned(), format!("{name}={path}")]);
        }
        words.push("--".to_owned());
        words.extend(program.argv.iter().map(|word| word.to_string_lossy().into_owned()));
        let r#try = words.iter().map(|word| for_shell(word)).collect::<Vec<_>>().join(" ");
        Verdict { capture, likely, not: self.not.clone(), r#try }
    }
}

/// Quotes a word for a shell.
fn for_shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
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
    fn a_client_that_reads_a_variable_is_likely_captured() {
        let found = of("a.py", "from openai import OpenAI\nimport requests\n");
        assert_eq!(found.verdict.capture, Capture::Likely);
        assert_eq!(found.verdict.likely, ["openai (OPENAI_BASE_URL)"]);
        assert_eq!(found.verdict.r#try, "annals record -- ./python3 a.py");
        assert!(found.findings.is_empty(), "{:?}", found.findings);
    }

    #[test]
    fn a_fixed_address_is_a_problem_of_its_provider_only() {
        let text = "import openai, requests\nfrom anthropic import Anthropic\nrequests.get('https://api.anthropic.com/v1/models')\n";
        let found = of("a.py", text);
        assert_eq!(found.verdict.capture, Capture::Unlikely);
        assert_eq!(found.verdict.likely, ["openai (OPENAI_BASE_URL)"]);
        let [problem] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
        assert_eq!(problem.place.as_ref().unwrap().to_string(), "a.py:3");
        assert!(problem.next.contains("ANTHROPIC_BASE_URL"), "{problem:?}");
        // An unknown base address is a problem if the file has a model client.
        let found = of("a.py", "import openai\nopenai.OpenAI(base_url='http://10.0.0.1/v1')");
        assert_eq!((found.verdict.capture, found.verdict.likely.len()), (Capture::Unlikely, 0));
        assert_eq!(of("a.py", "Weather(base_url='http://10.0.0.1/v1')").verdict.capture, Capture::Unknown);
    }

    #[test]
    fn clients_without_a_variable_need_to_be_given_one() {
        let found = of("a.mjs", "import { Ollama } from 'ollama';\nnew Ollama()");
        assert_eq!(found.verdict.capture, Capture::Unlikely);
        assert!(found.findings[0].next.contains("OLLAMA_HOST"), "{:?}", found.findings);
        let found =
            of("a.mjs", "import { Ollama } from 'ollama';\nnew Ollama({ host: process.env.OLLAMA_HOST })");
        assert_eq!(found.verdict.capture, Capture::Likely);
        let found = of("a.py", "import openai, os\nopenai.OpenAI(base_url=os.environ['MY_URL'])");
        assert_eq!(found.verdict.r#try, "annals record --env MY_URL=/v1 -- ./python3 a.py");
        assert_eq!(found.verdict.capture, Capture::Likely);
    }

    #[test]
    fn nothing_more_is_claimed_than_was_seen() {
        for text in ["print(1)", "import requests", "import subprocess"] {
            let found = of("a.py", text);
            assert_eq!((found.verdict.capture, found.findings.len()), (Capture::Unknown, 1), "{text}");
        }
        let found = of("a.py", "import websockets\nimport openai\nclient.beta.realtime.connect(model='m')");
        let problems: Vec<_> = found.findings.iter().map(|finding| finding.problem).collect();
        assert_eq!(problems, [true, false]);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(
            ["a.py", "", "a b", "it's", "$x"].map(for_shell),
            ["a.py", "''", "'a b'", "'it'\\''s'", "'$x'"]
        );
    }
}
