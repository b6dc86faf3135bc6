//! The result of an inspection. The field names are those of `annals doctor --agent --json`.

use serde::Serialize;

/// The language of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramKind {
    /// Python.
    Python,
    /// JavaScript or TypeScript.
    Node,
    /// A shell.
    Shell,
    /// Anything else, including compiled programs, about which nothing is known.
    Other,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceLine {
    /// The file, as named by the command line.
    pub file: String,
    /// The line number, from 1.
    pub line: u64,
}

impl std::fmt::Display for SourceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An inspected file of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// As named by the command line; `-c` or a similar option for code in the command line.
    pub file: String,
    /// Number of inspected bytes, from the beginning.
    pub bytes: u64,
    /// Whether the file is longer.
    pub cut: bool,
}

/// A client that sends requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DetectedClient {
    /// The library, the command, or `the program itself`.
    pub name: String,
    /// The providers of its models; empty for a plain HTTP client.
    pub providers: Vec<String>,
    /// The variables for its base address that annals sets.
    pub variables: Vec<String>,
    /// Its first occurrence.
    #[serde(flatten)]
    pub place: SourceLine,
}

/// An observation, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectionFinding {
    /// Whether it makes a complete recording unlikely.
    pub problem: bool,
    /// The kind of finding: `address`, `client`, `websocket`, `variable`, `upstream`, `key`, `file`,
    /// `program`, `nothing`.
    pub what: &'static str,
    /// Its location; `None` if it has no single line.
    #[serde(flatten)]
    pub place: Option<SourceLine>,
    /// The observation, as a sentence without its full stop.
    pub text: String,
    /// What to do.
    pub next: String,
}

/// A base address that is already set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamVariable {
    /// The variable.
    pub variable: String,
    /// Scheme, host and port of the upstream; null if it cannot be one.
    pub origin: Option<String>,
}

/// A variable that clients read a key from. Its value is not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyVariable {
    /// The variable.
    pub variable: String,
    /// Whether it is set and not empty.
    pub set: bool,
}

/// Whether clocks and randomness can be captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NondetSupport {
    /// Whether `--capture-nondet` would work for this program on this machine, as far as its files tell.
    pub works: bool,
    /// Why not, or what would not be covered.
    pub not_covered: Vec<String>,
}

/// Whether model calls are likely captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureLikelihood {
    /// A client with a variable of annals was found, and no problem.
    Likely,
    /// There are problems.
    Unlikely,
    /// No model client was found.
    Unknown,
}

/// The conclusion of an inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectionVerdict {
    /// The likelihood.
    pub capture: CaptureLikelihood,
    /// What is likely captured.
    pub likely: Vec<String>,
    /// What is likely not captured.
    pub not: Vec<String>,
    /// The command to try, quoted for a shell.
    pub r#try: String,
}

/// The result of a static inspection of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The executed files: the command's own, then the interpreter of each script.
    pub programs: Vec<String>,
    /// The program's language.
    pub kind: ProgramKind,
    /// The inspected files.
    pub files: Vec<InspectedFile>,
    /// The clients found.
    pub clients: Vec<DetectedClient>,
    /// Base addresses that are set.
    pub upstreams: Vec<UpstreamVariable>,
    /// Key variables, set or not.
    pub keys: Vec<KeyVariable>,
    /// The variables of an HTTP proxy that are set.
    pub proxies: Vec<String>,
    /// Clocks and randomness.
    pub nondet: NondetSupport,
    /// Findings, problems first.
    pub findings: Vec<InspectionFinding>,
    /// The conclusion.
    pub verdict: InspectionVerdict,
}
