//! Finds addresses in a program's text: those of model providers, and base addresses of clients, fixed or
//! from a variable.

use std::collections::{BTreeMap, BTreeSet};

use annals_policy::providers;
use memchr::memmem;
use reqwest::Url;

use super::report::ProgramKind;
use super::sources::SourceFile;
use super::text::{EnvRead, LineIndex, env_reads, is_name};
use crate::variables::Variable;

/// Maximum number of addresses reported for one file.
const FOUND_MAX: usize = 64;
/// How far an expression is followed on its line, and the distance within which a variable makes an address
/// its default.
const EXPRESSION_BYTES: usize = 200;
const HOST_BYTES_MAX: usize = 253;
const QUOTES: [char; 3] = ['"', '\'', '`'];
/// Names of base addresses, in lower case; other words may precede them.
const BASES: [&str; 5] = ["base_url", "baseurl", "api_base", "basepath", "azure_endpoint"];
/// Hosts of providers without a variable in annals; a leading dot covers all subdomains.
const OTHER_HOSTS: [&str; 4] =
    ["api.together.xyz", "router.huggingface.co", ".openai.azure.com", ".aiplatform.googleapis.com"];
/// Calls that only realtime interfaces have.
const REALTIME: [&str; 4] = ["realtime.connect(", ".live.connect(", "/v1/realtime", "OpenAIRealtime"];

/// The kind of an address in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressKind {
    /// Fixed, and a model provider's or a client's base address.
    Fixed,
    /// Named like a base address, but of unknown use.
    Possible,
    /// Read from this variable, which annals does not set by itself.
    FromVariable(String),
    /// A WebSocket; of a model, if that is known.
    WebSocket { model: bool },
}

/// An address found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundAddress {
    pub(super) line: u64,
    pub(super) address: AddressKind,
    /// Scheme, host and port, or the text found.
    pub(super) shown: String,
    /// The path after them, which follows the proxy's address.
    pub(super) path: String,
    /// The provider, if the host is known.
    pub(super) provider: Option<String>,
}

/// An address written in a text.
#[derive(Debug, Clone)]
struct AddressLiteral<'a> {
    at: usize,
    origin: &'a str,
    host: &'a str,
    path: &'a str,
}

/// The addresses in a file that a recording misses or needs to be told of, and the variables that it reads.
pub(super) fn addresses(source: &SourceFile) -> (Vec<FoundAddress>, Vec<EnvRead>) {
    let code = source.code.as_str();
    let reads = env_reads(code, source.kind);
    let text = SourceText {
        kind: source.kind,
        code,
        lines: LineIndex::new(code),
        reads: &reads,
        known: Variable::known(),
    };
    let literals = literals(code);
    let mut found = BTreeMap::new();
    text.base_addresses(&literals, &mut found);
    for literal in &literals {
        let provider = text.provider(literal);
        let web = literal.origin.starts_with("ws");
        if web {
            let address = AddressKind::WebSocket { model: provider.is_some() };
            found.entry(literal.at).or_insert((address, literal.clone()));
        } else if provider.is_some() || is_model_call(literal.path) {
            let address =
                text.variable_before(literal.at).map_or(Some(AddressKind::Fixed), |name| text.from(name));
            if let Some(address) = address {
                found.entry(literal.at).or_insert((address, literal.clone()));
            }
        }
    }
    for literal in text.bare_hosts() {
        found.entry(literal.at).or_insert((AddressKind::Fixed, literal));
    }
    let mut found: Vec<_> =
        found.into_values().map(|(address, literal)| text.found_address(address, &literal)).collect();
    for word in REALTIME {
        if let Some(at) = memmem::find(code.as_bytes(), word.as_bytes()) {
            let (line, shown) = (text.lines.line(at), word.trim_end_matches('(').to_owned());
            let address = AddressKind::WebSocket { model: true };
            found.push(FoundAddress { line, address, shown, path: String::new(), provider: None });
        }
    }
    found.sort_by_key(|found| found.line);
    found.dedup_by(|a, b| a.line == b.line && a.address == b.address);
    found.truncate(FOUND_MAX);
    (found, reads)
}

/// Whether a provider's interface has this path for calls of models, whatever the host is.
fn is_model_call(path: &str) -> bool {
    providers::recognise("POST", path, "").shape.is_model_call()
}

struct SourceText<'a> {
    kind: ProgramKind,
    code: &'a str,
    lines: LineIndex,
    reads: &'a [EnvRead],
    known: Vec<Variable>,
}

impl<'a> SourceText<'a> {
    fn found_address(&self, address: AddressKind, literal: &AddressLiteral<'_>) -> FoundAddress {
        let provider = self.provider(literal);
        let (shown, path) = (literal.origin.to_owned(), literal.path.to_owned());
        FoundAddress { line: self.lines.line(literal.at), address, shown, path, provider }
    }

    /// Hosts of providers that are given to a client without a scheme, such as Python's `http.client`.
    fn bare_hosts(&self) -> Vec<AddressLiteral<'a>> {
        let defaults = self.known.iter().filter_map(|variable| Url::parse(variable.default.as_deref()?).ok());
        let known = defaults.filter_map(|url| url.host_str().map(str::to_owned));
        let known: BTreeSet<String> = known.filter(|host| host.starts_with("api.")).collect();
        let mut found = Vec::new();
        for host in known.iter().map(String::as_str).chain(OTHER_HOSTS) {
            for at in memmem::find_iter(self.code.as_bytes(), host).take(FOUND_MAX) {
                let (before, after) = (&self.code[..at], &self.code[at + host.len()..]);
                let after = after.strip_prefix(":443").unwrap_or(after);
                if before.ends_with(QUOTES) && after.starts_with(QUOTES) {
                    let host = &self.code[at..at + host.len()];
                    found.push(AddressLiteral { at, origin: host, host, path: "" });
                }
            }
        }
        found
    }

    /// The provider that serves an address.
    fn provider(&self, literal: &AddressLiteral<'_>) -> Option<String> {
        let of = |variable: &&Variable| {
            let Some(Ok(url)) = variable.default.as_deref().map(Url::parse) else { return false };
            let host = url.host_str().unwrap_or_default();
            let local = host == "127.0.0.1" && literal.host == "localhost";
            let port = url.port().is_none_or(|port| literal.origin.ends_with(&format!(":{port}")));
            // A provider's website is not its interface.
            let whole = host.starts_with("api.") || url.path() == "/";
            (local || literal.host.eq_ignore_ascii_case(host))
                && port
                && (whole || literal.path.starts_with(url.path()))
        };
        let other = |host: &&&str| match host.strip_prefix('.') {
            Some(_) => literal.host.ends_with(**host),
            None => literal.host.eq_ignore_ascii_case(host),
        };
        let known = self.known.iter().find(of).map(|variable| variable.provider.clone());
        known.or_else(|| OTHER_HOSTS.iter().find(other).map(|host| host.trim_start_matches('.').to_owned()))
    }

    /// A variable that annals does not set must be reported.
    fn from(&self, name: &str) -> Option<AddressKind> {
        let known = self.known.iter().any(|variable| variable.name == name);
        (!known).then(|| AddressKind::FromVariable(name.to_owned()))
    }

    /// The variable read shortly before this on its line: the address here is its default.
    fn variable_before(&self, at: usize) -> Option<&'a str> {
        let begin = self.lines.begin(at).max(at.saturating_sub(EXPRESSION_BYTES));
        let read = self.reads[..self.reads.partition_point(|read| read.at < at)].last()?;
        (read.at >= begin).then_some(read.name.as_str())
    }

    /// The variable read shortly after this on its line.
    fn variable_after(&self, at: usize) -> Option<&'a str> {
        let read = self.reads.get(self.reads.partition_point(|read| read.at < at))?;
        let near = read.at - at < EXPRESSION_BYTES && self.lines.line(read.at) == self.lines.line(at);
        near.then_some(read.name.as_str())
    }

    /// Base addresses given to clients.
    fn base_addresses(
        &self,
        literals: &[AddressLiteral<'a>],
        found: &mut BTreeMap<usize, (AddressKind, AddressLiteral<'a>)>,
    ) {
        let lower = self.code.to_ascii_lowercase();
        let literal_in = |from: usize, to: usize| {
            let literal = literals.get(literals.partition_point(|literal| literal.at < from))?;
            (literal.at < to).then_some(literal)
        };
        let assigned = self.assignments(literals);
        for base in BASES {
            for at in memmem::find_iter(lower.as_bytes(), base).take(FOUND_MAX * 16) {
                let after = at + base.len();
                let rest = &self.code[after..];
                let gap = rest.len() - rest.trim_start_matches(['"', '\'', '?', ' ', ']']).len();
                let Some(sep @ ('=' | ':')) = rest[gap..].chars().next() else { continue };
                let rest_before = &rest[..gap];
                let value = after + gap + 1;
                let rest = &self.code[value..];
                let blank = rest.len() - rest.trim_start_matches(' ').len();
                // A comparison, or `${BASE_URL:-...}`, the default of a variable.
                if rest.starts_with(['=', '>']) || (sep == ':' && self.kind == ProgramKind::Shell) {
                    continue;
                }
                // `base_url=`, `"base_url":`, `environ["OPENAI_BASE_URL"] =`; assignments to the program's
                // own names have blanks there.
                let given = sep == ':' || gap == 0 || rest_before.contains(']');
                // Allows for the quote and a prefix letter.
                if let Some(literal) = literal_in(value, value + blank + 4) {
                    let address = if given { AddressKind::Fixed } else { AddressKind::Possible };
                    found.entry(literal.at).or_insert((address, literal.clone()));
                } else if let Some(name) = self.variable_after(value) {
                    if let Some(address) = self.from(name) {
                        let path =
                            literal_in(value, value + EXPRESSION_BYTES).map_or("", |literal| literal.path);
                        found
                            .entry(at)
                            .or_insert((address, AddressLiteral { at, origin: "", host: "", path }));
                    }
                } else if given {
                    let name = &rest[blank..];
                    let name = &name[..name.find(|c| !is_name(c)).unwrap_or(name.len())];
                    match assigned.get(name) {
                        Some(AssignedValue::Literal(literal)) => {
                            found.insert(literal.at, (AddressKind::Fixed, (*literal).clone()));
                        }
                        Some(AssignedValue::Variable(name, at)) => {
                            if let Some(address) = self.from(name) {
                                let literal = AddressLiteral { at: *at, origin: "", host: "", path: "" };
                                found.entry(*at).or_insert((address, literal));
                            }
                        }
                        None => {}
                    }
                }
            }
        }
    }

    /// Names assigned an address, or an environment variable.
    fn assignments<'b>(
        &self,
        literals: &'b [AddressLiteral<'a>],
    ) -> BTreeMap<&'a str, AssignedValue<'a, 'b>> {
        let mut assigned = BTreeMap::new();
        let name_of = |at: usize| -> Option<&'a str> {
            let begin = self.lines.begin(at).max(at.saturating_sub(EXPRESSION_BYTES));
            let (left, _) = self.code.get(begin..at)?.split_once('=')?;
            let left = left.split(':').next()?.trim();
            left.rsplit(|c| !is_name(c)).next().filter(|name| !name.is_empty())
        };
        for read in self.reads {
            if let Some(name) = name_of(read.at) {
                assigned.insert(name, AssignedValue::Variable(&read.name, read.at));
            }
        }
        for literal in literals {
            if let Some(name) = name_of(literal.at) {
                assigned.entry(name).or_insert(AssignedValue::Literal(literal));
            }
        }
        assigned
    }
}

enum AssignedValue<'a, 'b> {
    Literal(&'b AddressLiteral<'a>),
    Variable(&'a str, usize),
}

/// All addresses of a text, in order. A user and a password in an address are left out.
fn literals(code: &str) -> Vec<AddressLiteral<'_>> {
    let mut found = Vec::new();
    for colon in memmem::find_iter(code.as_bytes(), "://") {
        let scheme =
            ["https", "http", "wss", "ws"].into_iter().find(|scheme| code[..colon].ends_with(scheme));
        let Some(scheme) = scheme else { continue };
        let (at, from) = (colon - scheme.len(), colon + 3);
        let rest = &code[from..];
        let authority = rest.find(|c: char| {
            !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '@' | '_' | '[' | ']' | '%' | '~'))
        });
        let authority = &rest[..authority.unwrap_or(rest.len())];
        let host = authority.rsplit('@').next().unwrap_or(authority);
        if host.is_empty() || host.len() > HOST_BYTES_MAX {
            continue;
        }
        let path = &rest[authority.len()..];
        let path = if path.starts_with('/') { path } else { "" };
        let end = path.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_')));
        let end = end.unwrap_or(path.len()).min(EXPRESSION_BYTES);
        // With a user in the address, only the host is shown.
        let origin = if host.len() == authority.len() { &code[at..from + authority.len()] } else { host };
        let name = host.split(':').next().unwrap_or(host);
        found.push(AddressLiteral { at, origin, host: name, path: &path[..end] });
        if found.len() >= FOUND_MAX * 16 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::report::InspectedFile;
    use crate::inspect::text::without_comments;

    fn of(code: &str, kind: ProgramKind) -> Vec<(u64, AddressKind, String)> {
        let looked = InspectedFile { file: String::new(), bytes: 0, cut: false };
        let source = SourceFile { kind, looked, code: without_comments(code, kind), imports: Vec::new() };
        addresses(&source).0.into_iter().map(|found| (found.line, found.address, found.shown)).collect()
    }

    fn fixed(line: u64, shown: &str) -> (u64, AddressKind, String) {
        (line, AddressKind::Fixed, shown.to_owned())
    }

    #[test]
    fn fixed_base_addresses_are_found() {
        let python = "import x\nrequests.post('https://api.openai.com/v1/chat')\nc = OpenAI(\n    base_url=\"http://10.0.0.1:8000/v1\",\n)\n\
                      # base_url='https://api.openai.com'\nd({'base_url': f'https://me:pw@llm.example/v1'})\n";
        assert_eq!(
            of(python, ProgramKind::Python),
            [fixed(2, "https://api.openai.com"), fixed(4, "http://10.0.0.1:8000"), fixed(7, "llm.example")]
        );
        let node = "const c = new OpenAI({ baseURL: 'http://localhost:1/v1' });\nfetch(`https://api.anthropic.com/v1/messages`)";
        assert_eq!(
            of(node, ProgramKind::Node),
            [fixed(1, "http://localhost:1"), fixed(2, "https://api.anthropic.com")]
        );
        let shell = "curl -s https://api.mistral.ai/v1/x\ncurl http://localhost:11434/api/chat";
        assert_eq!(
            of(shell, ProgramKind::Shell),
            [fixed(1, "https://api.mistral.ai"), fixed(2, "http://localhost:11434")]
        );
        let python = "os.environ['OPENAI_BASE_URL'] = 'https://api.openai.com/v1'";
        assert_eq!(of(python, ProgramKind::Python), [fixed(1, "https://api.openai.com")]);
        // Through a name; and a name that nobody uses.
        let python = "LLM = 'https://llm.example/v1'\nOTHER_BASE_URL = 'https://weather.example'\nc = OpenAI(base_url=LLM)";
        let found = of(python, ProgramKind::Python);
        assert_eq!(found[0], fixed(1, "https://llm.example"));
        assert_eq!((found.len(), &found[1].1), (2, &AddressKind::Possible));
    }

    /// Regression: a local model asked over plain HTTP, and a provider's host without a scheme, were not seen.
    #[test]
    fn model_paths_and_bare_hosts_are_fixed_addresses() {
        let python = "urlopen('http://127.0.0.1:9999/v1/chat/completions')\nHTTPSConnection('api.openai.com')\n\
                      HTTPSConnection(\"api.anthropic.com:443\")\nget('http://127.0.0.1:9999/health')\nprint('api.openai.com is down')";
        let wanted =
            [fixed(1, "http://127.0.0.1:9999"), fixed(2, "api.openai.com"), fixed(3, "api.anthropic.com")];
        assert_eq!(of(python, ProgramKind::Python), wanted);
        let python = "post(os.environ.get('OPENAI_BASE_URL', 'http://10.0.0.1/v1/messages'))";
        assert_eq!(of(python, ProgramKind::Python), []);
    }

    #[test]
    fn default_of_a_variable_is_not_a_fixed_address() {
        let fine = [
            ("x = os.environ.get('OPENAI_BASE_URL', 'https://api.openai.com/v1')", ProgramKind::Python),
            ("OpenAI(base_url=os.environ['OPENAI_BASE_URL'])", ProgramKind::Python),
            (
                "new OpenAI({ baseURL: process.env.OPENAI_BASE_URL ?? 'https://api.openai.com/v1' })",
                ProgramKind::Node,
            ),
            ("curl \"${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions\"", ProgramKind::Shell),
            ("print('see https://openrouter.ai/ and https://example.org')", ProgramKind::Python),
            ("if base_url == 'https://x.example': pass", ProgramKind::Python),
        ];
        for (code, kind) in fine {
            assert_eq!(of(code, kind), [], "{code}");
        }
        let told = [
            ("OpenAI(base_url=os.environ['MY_URL'])", ProgramKind::Python),
            ("URL = os.getenv('MY_URL')\nOpenAI(base_url=URL)", ProgramKind::Python),
            ("new OpenAI({baseURL: process.env.MY_URL || 'https://api.openai.com/v1'})", ProgramKind::Node),
            ("curl ${MY_URL:-https://api.openai.com}/v1", ProgramKind::Shell),
        ];
        for (code, kind) in told {
            let found = of(code, kind);
            assert_eq!(found.len(), 1, "{code}: {found:?}");
            assert_eq!(found[0].1, AddressKind::FromVariable("MY_URL".to_owned()), "{code}");
        }
    }

    #[test]
    fn web_sockets_are_found() {
        let found = of(
            "connect('wss://api.openai.com/v1/realtime')\nws('wss://x.example')\nc.beta.realtime.connect(m)",
            ProgramKind::Python,
        );
        let models: Vec<_> = found.iter().map(|found| (found.0, found.1.clone())).collect();
        let of = |model| AddressKind::WebSocket { model };
        assert_eq!(models, [(1, of(true)), (2, of(false)), (3, of(true))]);
    }

    #[test]
    fn odd_and_long_texts_take_linear_time() {
        for odd in [
            "://",
            "https://",
            "http://@",
            "base_url=",
            "base_url=\"",
            "é://é",
            "https://é",
            "wss://[",
            "base_url:é",
            "$",
        ] {
            for kind in [ProgramKind::Python, ProgramKind::Node, ProgramKind::Shell] {
                assert!(of(odd, kind).len() <= 1, "{odd}");
            }
        }
        let long = "base_url='https://api.openai.com' os.environ['A'] ".repeat(20_000);
        assert!(of(&long, ProgramKind::Python).len() <= FOUND_MAX);
    }
}
