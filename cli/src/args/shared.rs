//! Options that several verbs share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Network access of a program while a recording answers its model calls.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Network that the program can reach besides annals, until it continues live
    #[arg(long, value_enum, value_name = "SCOPE", default_value_t)]
    pub(crate) network: NetworkScopeArg,
    /// Refuse connections to this host, but do not exit with 3 (for telemetry, for example); repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) refuse_quietly: Vec<String>,
}

/// The network that a program can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum NetworkScopeArg {
    /// Nothing: the program gets its own network, which contains only annals
    #[default]
    None,
    /// Services on this machine
    Loopback,
    /// Everything
    All,
}

/// How long annals waits for processes that outlive the program.
#[derive(Debug, Args)]
pub(crate) struct LingerArgs {
    /// Longest time that processes which outlive the program keep their proxy: a number and s, min or h
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) linger: String,
}

/// The standard input of a program that runs again.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// Standard input of the program [default: recorded if the run has it, else live]
    #[arg(long, value_enum)]
    pub(crate) stdin: Option<StdinArg>,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
}

/// Source of a re-run program's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StdinArg {
    /// The recorded standard input
    Recorded,
    /// The standard input of this command
    Live,
}

/// Options for calls to upstreams.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// Address for model calls, for all providers or one; repeatable [default: the address in the program's
    /// variables (for a recorded program: the recorded upstream), else the provider's public address]
    #[arg(long, value_name = "[PROVIDER=]URL")]
    pub(crate) upstream: Vec<String>,
    /// Host that annals may call; if given, no others. While a recording answers, the program may also reach
    /// it directly; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Cache of answers to identical requests: read cached answers, write them, or both
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cache: CacheArg,
    /// Lifetime of the answers that this run writes to the cache, for example 7d [default: as long as the run
    /// exists]
    #[arg(long, value_name = "TIME")]
    pub(crate) cache_for: Option<String>,
    /// Call the upstream for the request of frame N, even if the cache has an answer; repeatable
    #[arg(long, value_name = "N")]
    pub(crate) reroll: Vec<u32>,
    /// Also store a memory of a what-if: a fork, a replay that went on live, or a run that the cache answered
    /// [default: only other runs are remembered]
    #[arg(long)]
    pub(crate) remember: bool,
}

/// Use of the answer cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum CacheArg {
    /// No cache
    #[default]
    Off,
    /// Answer repeated requests from the cache
    Read,
    /// Write answers to the cache for later runs
    Write,
    /// Both
    Both,
}

/// Rules for the parts of a request that may differ from the recording.
#[derive(Debug, Args)]
pub(crate) struct RuleArgs {
    /// File with rules, in TOML [default: the rules that the run was recorded with]
    #[arg(long = "rules", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Part of a request that may differ: 'ignore PATH', 'mask SHAPE PATH' (a uuid, a time, ... inside a
    /// text) or 'query KEY'; repeatable
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Vec<String>,
    /// Ignore the value at this path of requests, as --rule 'ignore PATH'; repeatable
    #[arg(long, value_name = "JSONPATH")]
    pub(crate) ignore: Vec<String>,
    /// Predefined rules: none, gemini, bedrock or redacting; repeatable
    #[arg(long, value_name = "PRESET")]
    pub(crate) matcher: Vec<String>,
}

/// Identity of a memory. An omitted part is distinct from every named one.
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    /// Tenant name; tenants cannot see each other's data
    #[arg(long, value_name = "T")]
    pub(crate) tenant: Option<String>,
    /// Person or program within the tenant
    #[arg(long, value_name = "P")]
    pub(crate) principal: Option<String>,
    /// Conversation of the principal
    #[arg(long, value_name = "C")]
    pub(crate) conversation: Option<String>,
}

/// The profile of the reader.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Redact personal data and secrets by this profile: raw (no redaction), safe, or one of --profiles
    /// [default: raw]
    #[arg(long = "as", id = "profile", value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// File with your own profiles, in TOML [default: profiles.toml in the store's directory]
    #[arg(long, value_name = "FILE", env = "ANNALS_PROFILES")]
    pub(crate) profiles: Option<PathBuf>,
}
