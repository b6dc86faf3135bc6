//! The command line: every verb and option.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// Record the runs of AI agents bit-exactly, and replay them.
#[derive(Debug, Parser)]
#[command(name = "annals", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXIT_CODES: &str = "`annals VERB --help` shows the options of a verb.
Exit codes: 0 success, 1 failure, 2 usage error, 3 divergence or damage found, 4 not found.
The store is --store, else $ANNALS_STORE, else the nearest .annals in this directory or a parent, else ./.annals.";

/// Options of every verb.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Directory of the store [default: $ANNALS_STORE, else the nearest .annals upward]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Namespace to read and write
    #[arg(long, global = true, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,
    /// Print JSON instead of text: one object, or one object per line
    #[arg(long, global = true, action = ArgAction::SetTrue)]
    pub(crate) json: bool,
}

/// The verbs of the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a program and record its model calls over HTTP
    Record(RecordArgs),
    /// Record programs that are started elsewhere: keep the proxy open and print the variables that point to
    /// it
    Attach(AttachArgs),
    /// Serve the store to Redis clients and to recorders, until Ctrl-C or SIGTERM
    Serve(ServeArgs),
    /// Manage the tokens for access to a daemon over TCP and HTTP
    #[command(subcommand)]
    Token(TokenVerb),
    /// Create a store
    Init,
    /// Import runs from a file of transcripts or frames
    Import(ImportArgs),
    /// List runs, newest first, with duration, tokens, cost and model
    #[command(visible_alias = "ls")]
    Runs(RunsArgs),
    /// Show a run, or one of its frames
    Show(ShowArgs),
    /// Follow a run while it is recorded, frame by frame, until it ends
    Tail(TailArgs),
    /// Show where a run failed: the frame, the new part of its request, the answer, the program's exit
    Open(OpenArgs),
    /// Run a recorded program again with model calls answered from the recording, or read runs back and check
    /// them
    Replay(ReplayArgs),
    /// Check that the stored bytes are the recorded bytes
    Verify(VerifyArgs),
    /// Make checkpoints and proofs that show that no history was rewritten
    #[command(subcommand)]
    Ledger(LedgerVerb),
    /// Verify stored runs or tapes, and re-run their programs to detect drift
    Check(DriftArgs),
    /// Export runs to self-contained files, and import them
    #[command(subcommand)]
    Tape(TapeVerb),
    /// Compare two runs by content, then by bytes; exit with 3 if they differ
    Diff(DiffArgs),
    /// Continue a recorded program from one of its frames, with changes, into a new run
    Fork(ForkArgs),
    /// Print the agent's state after a frame
    State(StateArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Set the value of a key
    Put(PutArgs),
    /// Delete a key
    Del(DelArgs),
    /// List keys and values in order
    Scan(ScanArgs),
    /// Store a memory entry or a run's snapshot for `recall`
    Remember(RememberArgs),
    /// Find stored decisions for a similar QUESTION, with their recorded evidence
    Recall(RecallArgs),
    /// Store recall settings under a name, for use by several agents with `recall --memory NAME`
    DefineMemory(DefineMemoryArgs),
    /// Print the memory as JSON Lines for model training
    ExportTraining(ExportTrainingArgs),
    /// Show what the store holds and its size on disk
    Stats,
    /// Drop runs by a policy, and report the rules [default policy: 90 days for failed, abandoned, flagged
    /// and escalated runs, 7 days for others]
    Retain(RetainArgs),
    /// Pin a run, so that no policy drops it
    Pin(PinArgs),
    /// Remove the pin of a run
    Unpin(UnpinArgs),
    /// Drop a run now, and list what still holds its bytes
    Forget(ForgetArgs),
    /// Diagnose the store and say what to do; changes nothing. With --agent: say which calls of a program can
    /// be captured
    Doctor(DoctorArgs),
    /// Copy all undamaged data of a damaged store into a new store, and list the losses
    Repair(RepairArgs),
    /// Copy the store in its present state, even while a process records into it
    Backup(BackupArgs),
    /// Reclaim the disk space of deleted data: dropped runs and expired versions. The store may be in use
    Compact(CompactArgs),
    /// Check a backup, and restore it to a new store
    Restore(RestoreArgs),
    /// Record real runs, kill the recorder, reopen, and replay everything bit-exactly
    Demo(DemoArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes with --agent: 0 if no problem was found or nothing is known, 1 if a problem makes the capture of all model calls unlikely, or if \
the program cannot start."
)]
pub(crate) struct DoctorArgs {
    /// Inspect a program instead of a store: which model calls a recording is likely to capture, and what to
    /// do about the others. Reads files only, starts nothing, needs no store
    #[arg(long, requires = "command")]
    pub(crate) agent: bool,
    /// Program and its arguments, as for `record`
    #[arg(last = true, requires = "agent", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The exit code is the program's. 125: annals failed before the program started; 126 or 127: the program cannot be started."
)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
    /// Also capture the times and random numbers that the program draws, so that a replay serves them. Linux
    /// only; tested with Python and Node
    #[arg(long)]
    pub(crate) capture_nondet: bool,
    /// Store the value of this environment variable with the run; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) keep_env: Vec<String>,
    /// Expect unrecorded connections to this host that carry no model calls: list them, but do not exit with
    /// 1. "any" is every host; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) expect_host: Vec<String>,
    /// Do not record standard input [default: a pipe or file is passed to the program and recorded; a
    /// terminal is not recorded]
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the variables that point a program to the proxy, and records until Ctrl-C or SIGTERM."
)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The daemon always listens at SOCKET in the store's directory, for its user only. Over TCP and HTTP a client needs a token. `annals token add` makes
one. If there is none, the daemon makes one and shows it at the start. Each option can also be set in the environment and, except --config, in the file:
socket, tcp, http, no_auth, upstream, allow_host, profiles, slow_ms, idle_seconds, retain, sweep_every, log, and [[tokens]] with name, namespace, rights, profile, blake3. An option wins over the environment, and the environment wins over the file."
)]
pub(crate) struct ServeArgs {
    /// Also listen at this Unix socket
    #[arg(long, value_name = "PATH", env = "ANNALS_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Also listen for Redis clients at this loopback address, for example 127.0.0.1:7420
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_TCP")]
    pub(crate) tcp: Option<String>,
    /// Also listen for HTTP at this loopback address, for example 127.0.0.1:7421
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_HTTP")]
    pub(crate) http: Option<String>,
    /// Require no token over TCP and HTTP: every user and program of this machine can read and write
    #[arg(long, env = "ANNALS_NO_AUTH", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_auth: bool,
    /// Address for model calls of the proxy, for all providers or one; repeatable [default: the provider's
    /// public address]
    #[arg(long, value_name = "[PROVIDER=]URL", env = "ANNALS_UPSTREAM", value_delimiter = ',')]
    pub(crate) upstream: Vec<String>,
    /// Host that the proxy may call; repeatable [default: all hosts]
    #[arg(long, value_name = "HOST", env = "ANNALS_ALLOW_HOST", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
    /// File with redaction profiles, in TOML [default: profiles.toml in the store's directory]
    #[arg(long, value_name = "FILE", env = "ANNALS_PROFILES")]
    pub(crate) profiles: Option<PathBuf>,
    /// Log commands that take longer than this, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", env = "ANNALS_SLOW_MS")]
    pub(crate) slow_ms: Option<u64>,
    /// Close the connection of a Redis client after this idle time, in seconds [default: 0, never]
    #[arg(long, value_name = "SECONDS", env = "ANNALS_IDLE_SECONDS")]
    pub(crate) idle_seconds: Option<u64>,
    /// Drop runs by this policy: a TOML file, or "default" for the built-in policy [default: drop nothing]
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// Time between two sweeps of --retain, for example 30min [default: 1h]
    #[arg(long, value_name = "TIME", env = "ANNALS_SWEEP_EVERY")]
    pub(crate) sweep_every: Option<String>,
    /// Format of the log on standard error [default: human]
    #[arg(long, value_name = "FORM", env = "ANNALS_LOG")]
    pub(crate) log: Option<LogFormatArg>,
    /// File with further options, in TOML
    #[arg(long, value_name = "FILE", env = "ANNALS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// Format of the daemon's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatArg {
    /// Text lines for a person
    Human,
    /// One JSON object per line
    Json,
}

/// Actions on the tokens with which clients log in to a daemon.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make a token for the namespace and print it; it is never shown again
    Add(TokenAddArgs),
    /// List tokens without their secret text
    List,
    /// Revoke a token and close the connections that use it
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenAddArgs {
    /// Name of the token
    pub(crate) name: String,
    /// Rights of the token, separated by commas: record, read, redacted, operate [default: all; redacted with
    /// --profile]
    #[arg(long, value_name = "RIGHTS")]
    pub(crate) rights: Option<String>,
    /// Profile that redacts what the token's readers see: safe, or one of the daemon's --profiles; implies
    /// --rights redacted
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevokeArgs {
    /// Name of the token
    pub(crate) name: String,
}

/// The new run of a recording, and the upstreams of its calls.
#[derive(Debug, Args)]
pub(crate) struct NewRunArgs {
    /// Name of the run [default: program name and start time; "attach" if there is no program]
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Name of a variable whose value is removed from everything that is stored: bodies, addresses, headers,
    /// output; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,
    /// File with rules, in TOML, stored with the run: severities (`[[severity]]`), model prices
    /// (`[[price]]`), and what may differ in a replay (`[[matcher]]`)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Tag of the run; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) tag: Vec<String>,
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
    /// Do not store a memory of the run for `annals recall` when it ends
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Policy for sampling: a TOML file, or "default". A run that the sampling leaves out is dropped when it
    /// ends. If a daemon holds the store, the daemon's policy applies
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// Do not fail if no request is recorded
    #[arg(long)]
    pub(crate) allow_empty: bool,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Further variable with a base address, and the path after the address, for example MY_LLM_URL=/v1. Its
    /// upstream is its present value, else --upstream. NAME= leaves the variable unchanged. Repeatable
    #[arg(long, value_name = "NAME=/PATH")]
    pub(crate) env: Vec<String>,
}

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

/// Format of an imported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// Runs of messages in OpenAI's format, as a JSON array or JSON Lines
    Chat,
    /// Frames, one JSON object each, as `replay --json` prints them
    Frames,
}

/// Which messages of a chat become frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExpandArg {
    /// Messages of users, models and tools; every message of a transcript between agents
    Turns,
    /// Messages of models and tools only
    Calls,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File to import, or - for standard input; xz and zstd files are decompressed
    pub(crate) file: PathBuf,
    /// Format of the file
    #[arg(long, value_enum)]
    pub(crate) format: ImportFormat,
    /// Template for run names from top-level keys, for example '{task_id}-{trial}' [default: `id`, else the
    /// position]
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) id: Option<String>,
    /// Model of runs that name none
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Top-level key with the outcome of a run: true or a number of 1 or more is ok; a status name also
    /// counts
    #[arg(long, value_name = "KEY")]
    pub(crate) status_from: Option<String>,
    /// Which messages of a chat become frames [default: turns]
    #[arg(long, value_enum, value_name = "EXPANSION")]
    pub(crate) expand: Option<ExpandArg>,
    /// Exit with 0 even if a message is in no frame, or if no frame was imported
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Replace existing runs of the same name
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List only runs with this status
    #[arg(long, value_name = "STATUS", value_parser = ["open", "ok", "failed", "abandoned"])]
    pub(crate) status: Option<String>,
    /// List only runs with this severity
    #[arg(long, value_name = "SEVERITY", value_parser = ["debug", "normal", "flagged", "escalated"])]
    pub(crate) severity: Option<String>,
    /// List only runs that failed or were abandoned
    #[arg(long, conflicts_with = "status")]
    pub(crate) failed: bool,
    /// List only the newest N runs; 0 lists all [default: 50; with --json: 0]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct OpenArgs {
    /// The run
    #[arg(group = "which")]
    pub(crate) run: Option<String>,
    /// Open the latest run that failed or was abandoned
    #[arg(long, group = "which")]
    pub(crate) last_failed: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// Show only the frame's input
    #[arg(long, group = "part")]
    pub(crate) input: bool,
    /// Show only the frame's output
    #[arg(long, group = "part")]
    pub(crate) output: bool,
    /// Show only the metadata
    #[arg(long, group = "part")]
    pub(crate) metadata: bool,
    /// Show only the messages that the frame's request adds, drops or changes, compared with the previous
    /// request
    #[arg(long, group = "part", conflicts_with = "raw", conflicts_with = "json")]
    pub(crate) new: bool,
    /// Write only the exact bytes
    #[arg(long, requires = "part", conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
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

#[derive(Debug, Args)]
#[command(
    after_help = "If a program was recorded, it runs again, and the recording answers every model call: no key, no network.
--all, --json, --raw and --as start no program. Exit code: 3 if anything was not as recorded, else the program's."
)]
pub(crate) struct ReplayArgs {
    /// Run to replay [default: the latest]
    #[arg(conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Read and check every run; start no program
    #[arg(long)]
    pub(crate) all: bool,
    /// Write only the exact bytes of the outputs; start no program
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Speed of the replayed answers
    #[arg(long, value_enum, default_value_t)]
    pub(crate) timing: TimingArg,
    /// Exit with 3 if the program's standard output differs from the recorded one or cannot be compared
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Shuffle the order of overlapping answers with this seed, to find programs whose behaviour depends on
    /// response order
    #[arg(long, value_name = "SEED")]
    pub(crate) chaos: Option<u64>,
    /// What happens to a request without a recorded answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) on_divergence: DivergenceArg,
    /// Name of the new run, with --on-divergence live [default: RUN-live]
    #[arg(long, value_name = "NAME")]
    pub(crate) into: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Program to run instead of the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
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

/// What happens to a request that is not in the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum DivergenceArg {
    /// Answer with error 502 that says what differs
    #[default]
    Refuse,
    /// Send this and all later requests to their upstreams, and record them into a new run that replays alone
    Live,
}

/// Speed of replayed answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TimingArg {
    /// As fast as the program reads them
    #[default]
    None,
    /// With the recorded delays
    Recorded,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(false))]
pub(crate) struct VerifyArgs {
    /// Run to verify
    #[arg(group = "what")]
    pub(crate) run: Option<String>,
    /// Verify every run and the log [default if no run is named]
    #[arg(long, group = "what")]
    pub(crate) all: bool,
    /// Verify only this number of runs, spread evenly
    #[arg(long, group = "what", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// Also compare the history with this checkpoint file; - is standard input
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) against: Option<PathBuf>,
    /// Public key (PEM) that must have signed the checkpoint
    #[arg(long, value_name = "PUBLIC.pem", requires = "against")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A folder stands for the *.tape files in it. An argument that ends in .tape is a tape; any other is a run.
Exit codes: 3 if anything drifted or is damaged, 1 if something could not be checked."
)]
pub(crate) struct DriftArgs {
    /// Runs, tapes, or folders of tapes [default: a sample of the store's runs]
    #[arg(value_name = "RUN|TAPE|DIR", conflicts_with_all = ["sample", "seed"])]
    pub(crate) targets: Vec<String>,
    /// Number of runs in the sample [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// Seed of the sample [default: a new one, which is printed]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Also run each recorded program again with model calls answered from the recording
    #[arg(long)]
    pub(crate) programs: bool,
    /// Also report drift if a program's standard output differs from the recorded one
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Host that programs may reach directly; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Program to run instead of each recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Actions on tapes.
#[derive(Debug, Subcommand)]
pub(crate) enum TapeVerb {
    /// Write a run to a tape file; the same run always gives the same bytes
    Export(TapeExportArgs),
    /// Import the runs of tapes; each tape is fully checked first
    Import(TapeImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TapeExportArgs {
    /// Run to export
    pub(crate) run: String,
    /// File for the tape; an existing file is replaced [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TapeImportArgs {
    /// Also import tapes that were redacted when exported; their runs are marked as redacted
    #[arg(long)]
    pub(crate) redacted: bool,
    /// Tapes of annals or tracefork; - is standard input
    #[arg(required = true)]
    pub(crate) tapes: Vec<PathBuf>,
    /// Name of the run [default: the name on the tape]
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Replace existing runs of the same name
    #[arg(long)]
    pub(crate) replace: bool,
}

/// Actions on the ledger.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerVerb {
    /// Print the head of the ledger, to be stored elsewhere
    Checkpoint(CheckpointArgs),
    /// Write a proof that a run or frame is in the ledger
    Prove(ProveArgs),
    /// Check a proof; needs no store
    Check(LedgerCheckArgs),
    /// List dropped and missing records, with the reason
    Gaps,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Private key to sign with: Ed25519 in PEM, from `openssl genpkey -algorithm ed25519`
    #[arg(long, value_name = "KEY.pem")]
    pub(crate) sign: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// File for the proof; an existing file is replaced [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Private key (PEM) to sign the proof's checkpoint with
    #[arg(long, value_name = "KEY.pem")]
    pub(crate) sign: Option<PathBuf>,
    /// Also prove that the ledger has only grown since this checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) since: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerCheckArgs {
    /// File with the proof; - is standard input
    pub(crate) proof: PathBuf,
    /// Checkpoint file that the proof must agree with
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Public key (PEM) that must have signed the proof's checkpoint
    #[arg(long, value_name = "PUBLIC.pem")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "If RUN has a recorded program, the program runs. RUN answers its calls up to the fork point; later calls go
to the upstreams and are recorded into the new run. Otherwise, or with --no-run, the new run only shares the frames.
Exit code: 3 if the program's calls before the fork point differ from the recording, else the program's."
)]
pub(crate) struct ForkArgs {
    /// RUN@SEQ: the new run shares frames 1 to SEQ, or 1 to SEQ-1 if an option below changes frame SEQ
    pub(crate) from: String,
    /// Name of the new run [default: RUN-fork-SEQ]
    pub(crate) name: Option<String>,
    /// File with a new answer for the request of frame SEQ
    #[arg(long, value_name = "FILE")]
    pub(crate) response: Option<PathBuf>,
    /// Model for all requests from frame SEQ on
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Set a value in the request of frame SEQ only, for example $.temperature=0. A value that is not JSON is
    /// text; repeatable
    #[arg(long, value_name = "JSONPATH=VALUE", conflicts_with_all = ["response", "edit"])]
    pub(crate) set: Vec<String>,
    /// Set a value in every request from frame SEQ on; repeatable
    #[arg(long, value_name = "JSONPATH=VALUE")]
    pub(crate) set_all: Vec<String>,
    /// Edit the answer of frame SEQ in $VISUAL, $EDITOR or vi
    #[arg(long, conflicts_with = "response")]
    pub(crate) edit: bool,
    /// File that replaces the result of tool call ID from frame SEQ on [default ID: the only new result in
    /// the request of frame SEQ]; repeatable
    #[arg(long, value_name = "[ID=]FILE")]
    pub(crate) tool_result: Vec<String>,
    /// File with rules, in TOML, stored with the new run [default: the rules of RUN]
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Start no program; only share the frames
    #[arg(long, conflicts_with_all = ["response", "edit", "tool_result", "model", "set", "set_all", "rules", "command"])]
    pub(crate) no_run: bool,
    /// Program to run instead of the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Run to follow [default: the latest]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// First run
    pub(crate) a: String,
    /// Second run
    pub(crate) b: String,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// RUN for its last state, or RUN@SEQ for the state after that frame
    pub(crate) target: String,
    /// Write only the exact bytes
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

/// Options of the verbs for keys and values.
#[derive(Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// Keyspace of the key
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
    /// Read the value as of this sequence number [default: the latest]
    #[arg(long, value_name = "SEQNO")]
    pub(crate) at: Option<u64>,
    /// List every stored version
    #[arg(long, conflicts_with_all = ["at", "raw"])]
    pub(crate) history: bool,
    /// Write only the exact bytes
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    pub(crate) key: OsString,
    /// Value, or - for standard input
    pub(crate) value: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// List only keys with this prefix
    pub(crate) prefix: Option<OsString>,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
    /// List in descending order
    #[arg(long)]
    pub(crate) reverse: bool,
    /// List at most this number of keys [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
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

#[derive(Debug, Args)]
#[command(
    after_help = "An entry without a vector gets one, computed from its query by the embedder at ANNALS_EMBEDDINGS_URL or by the built-in one. If a daemon or a recorder holds the store, that process stores the entry. docs/memory.md has the formats."
)]
pub(crate) struct RememberArgs {
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
    /// JSON file with an entry (id and value) or a run's snapshot (with its query); - is standard input
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "If nothing is found, nothing is printed and the exit code is 0. docs/memory.md has the formats."
)]
pub(crate) struct RecallArgs {
    /// Question in words; - is standard input
    pub(crate) question: String,
    /// Use the settings of this definition; other options here override them
    #[arg(long, value_name = "ID")]
    pub(crate) memory: Option<String>,
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
    /// Also search the tenant's other principals and conversations
    #[arg(long)]
    pub(crate) across_conversations: bool,
    /// Print at most this number of hits, nearest first, 1 to 1000 [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) top_k: Option<u16>,
    /// Minimum score of a hit, from -1 to 1, inclusive [default: the embedder's threshold]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = score)]
    pub(crate) threshold: Option<f32>,
    /// Part of the snapshot to print [default: decisions]
    #[arg(long, value_enum)]
    pub(crate) projection: Option<ProjectionArg>,
    /// Print the largest form within this number of tokens (4 UTF-16 units each); with --json the limit is
    /// per hit
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = tokens)]
    pub(crate) budget: Option<usize>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A definition has the form of agentfootprint's defineMemory: {\"id\": ..., \"description\": ..., \"type\": \"causal\", \"strategy\": {\"kind\": \"top-k\", \"topK\": 1, \
\"threshold\": 0.5, \"embedder\": ...}, \"projection\": \"decisions\", \"acrossConversations\": true}. Only the id is required. docs/memory.md has the details."
)]
pub(crate) struct DefineMemoryArgs {
    /// JSON file with the definition; - is standard input
    pub(crate) file: PathBuf,
}

/// The part of a snapshot to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectionArg {
    /// Decisions with their rules and evidence, tool results, and the answer
    Decisions,
    /// The choice of each stage
    Commits,
    /// The narrative of the run
    Narrative,
    /// The whole snapshot, as JSON
    Full,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The quality of a run is taken from the first of these that exists: feedback (MEM.FEEDBACK), its evalScore, its status. docs/memory.md has the formats."
)]
pub(crate) struct ExportTrainingArgs {
    /// Format of the lines
    #[arg(long, value_enum)]
    pub(crate) format: TrainingArg,
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
    /// Also export the tenant's other principals and conversations
    #[arg(long)]
    pub(crate) across_conversations: bool,
}

/// Format of training lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingArg {
    /// Questions and answers of all runs that did not go badly
    Sft,
    /// For each question, the best answer and a worse one
    Dpo,
    /// Each decision with its evidence, and the outcome of the run
    ProcessRl,
}

/// Parses a number of tokens.
fn tokens(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "a budget must be a whole number of tokens".to_owned())
}

/// Parses a score.
fn score(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| (-1.0..=1.0).contains(number));
    number.ok_or_else(|| "a score must be a number from -1 to 1".to_owned())
}

#[derive(Debug, Args)]
#[command(
    after_help = "The policy applies to every namespace. Open and pinned runs are never dropped. Frames that a fork shares stay. Without --at, annals refuses a clock \
that is before the newest record or more than 400 days after it. docs/retention.md describes policies."
)]
pub(crate) struct RetainArgs {
    /// File with the policy, in TOML [default: the built-in policy]
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Only list what would be dropped
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Time at which the policy is applied: 2026-01-31T12:00:00Z, or +8d for eight days from now [default:
    /// now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Run to pin
    pub(crate) run: String,
    /// Reason for the pin
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}

#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// Run to unpin
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Full name of the run
    pub(crate) run: String,
    /// Reason; it stays in the ledger, so it must hold no content of the run
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Directory of the new store: empty, or not yet existing
    #[arg(long, value_name = "NEWDIR")]
    pub(crate) to: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Directory of the copy: empty, or not yet existing
    pub(crate) dest: PathBuf,
    /// Copy every file, instead of sharing unchanging files with the store by hard link or reflink
    #[arg(long)]
    pub(crate) copy: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "If a daemon serves the store, the daemon compacts it. Compaction needs free space for the rewritten data before it frees any; --dry-run says how much. A \
segment is rewritten if at least a tenth of it is dead."
)]
pub(crate) struct CompactArgs {
    /// Only report what would be rewritten
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also recompress live data, which is slower and saves more space; data is recompressed only once
    #[arg(long)]
    pub(crate) recompress: bool,
    /// Write at most this number of bytes per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_bytes_per_second: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Directory of the backup
    pub(crate) backup: PathBuf,
    /// Directory of the store: empty, or not yet existing
    pub(crate) dest: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the store in this new directory [default: a temporary directory that is deleted]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Record into this store until killed: for the demonstration's child process
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) record_into: Option<PathBuf>,
}
