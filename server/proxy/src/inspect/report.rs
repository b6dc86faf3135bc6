//! What is said of a program. The field names are those of `annals doctor --agent --json`.

use serde::Serialize;

/// What runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramKind {
    /// Python.
    Python,
    /// JavaScript or TypeScript.
    Node,
    /// A shell.
    Shell,
    /// Anything else, compiled programs too: nothing is known of what it asks.
    Other,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceLine {
    /// The file, as the command line leads to it.
    pub file: String,
    /// From 1.
    pub line: u64,
}

impl std::fmt::Display for SourceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A file of the program that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// As the command line leads to it; `-c` and its like for a program in the command line.
    pub file: String,
    /// How many of its bytes were looked at, from its beginning.
    pub bytes: u64,
    /// It has more.
    pub cut: bool,
}

/// Something that sends requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DetectedClient {
    /// The library, the command, or `the program itself`.
    pub name: String,
    /// The providers whose models it asks; none for a plain HTTP client.
    pub providers: Vec<String>,
    /// The variables that it reads its base address from and that annals sets.
    pub variables: Vec<String>,
    /// Where it is first named.
    #[serde(flatten)]
    pub place: SourceLine,
}

/// Something to know, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectionFinding {
    /// It makes it unlikely that all of the program's model calls are captured.
    pub problem: bool,
    /// Which kind of finding: `address`, `client`, `websocket`, `variable`, `upstream`, `key`, `file`, `program`, `nothing`.
    pub what: &'static str,
    /// Where it was found; none where it is of no one line.
    #[serde(flatten)]
    pub place: Option<SourceLine>,
    /// What, as a sentence without its full stop.
    pub text: String,
    /// What to do.
    pub next: String,
}

/// A base address that is set already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamVariable {
    /// The variable.
    pub variable: String,
    /// Scheme, host and port where its requests would go on to; null where that cannot be.
    pub origin: Option<String>,
}

/// A variable that clients read a key from. Its value is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyVariable {
    /// The variable.
    pub variable: String,
    /// Whether it is set and not empty.
    pub set: bool,
}

/// Whether clocks and randomness could be captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NondetSupport {
    /// `--capture-nondet` would work for this program on this machine, as far as its files say.
    pub works: bool,
    /// Why not, or what it would not cover.
    pub not_covered: Vec<String>,
}

/// Whether it looks as if model calls were captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureLikelihood {
    /// Something that reads a variable of annals' was seen, and no problem.
    Likely,
    /// There are problems.
    Unlikely,
    /// Nothing was seen that asks a model.
    Unknown,
}

/// What it comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectionVerdict {
    /// In a word.
    pub capture: CaptureLikelihood,
    /// What is likely captured.
    pub likely: Vec<String>,
    /// What is not.
    pub not: Vec<String>,
    /// The command to try, quoted for a shell.
    pub r#try: String,
}

/// What a static look at a program says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The files that are executed for it: the command's own, then the interpreter of each that is a script.
    pub programs: Vec<String>,
    /// What runs it.
    pub kind: ProgramKind,
    /// What was looked at of its text.
    pub files: Vec<InspectedFile>,
    /// What was seen that sends requests.
    pub clients: Vec<DetectedClient>,
    /// Base addresses that are set.
    pub upstreams: Vec<UpstreamVariable>,
    /// Keys, set or not.
    pub keys: Vec<KeyVariable>,
    /// The variables that name a proxy of the environment and are set.
    pub proxies: Vec<String>,
    /// Clocks and randomness.
    pub nondet: NondetSupport,
    /// Problems first.
    pub findings: Vec<InspectionFinding>,
    /// What it comes to.
    pub verdict: InspectionVerdict,
}
