//! The command line: every verb and option.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// Record AI-agent runs bit-exactly, and replay them.
#[derive(Debug, Parser)]
#[command(name = "annals", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXIT_CODES: &str = "`annals VERB --help` shows the options of a verb.
Exit codes: 0 done, 1 failed, 2 usage, 3 divergence or damage found, 4 no such thing.
The store is --store, else $ANNALS_STORE, else the nearest .annals directory upward, else ./.annals.";

/// Options that every verb takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The store's directory
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// The namespace to read and write
    #[arg(long, global = true, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,
    /// Print JSON instead of text: one object, or one object a line
    #[arg(long, global = true, action = ArgAction::SetTrue)]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a program and record every model call that it makes over HTTP
    Record(RecordArgs),
    /// Record what programs started elsewhere ask: holds the proxy open and prints the variables that point at it
    Attach(AttachArgs),
    /// Serve the store to Redis clients and to recorders, until Ctrl-C or SIGTERM
    Serve(ServeArgs),
    /// Who may come to a daemon over TCP and HTTP
    #[command(subcommand)]
    Token(TokenVerb),
    /// Create a store
    Init,
    /// Record runs from a file of transcripts or frames
    Import(ImportArgs),
    /// List runs, the newest first, with duration, tokens, cost and model
    #[command(visible_alias = "ls")]
    Runs(RunsArgs),
    /// Show a run, or one of its frames
    Show(ShowArgs),
    /// Follow a run while it is recorded, frame by frame, until it ends
    Tail(TailArgs),
    /// Show where a run failed: the frame, what its request added, the answer, how the program ended
    Open(OpenArgs),
    /// Run a recorded program again, its model calls answered from the recording; or read runs back, every byte checked
    Replay(ReplayArgs),
    /// Check that what is stored is what was recorded
    Verify(VerifyArgs),
    /// Checkpoints and proofs: what shows later, and to others, that nothing was rewritten
    #[command(subcommand)]
    Ledger(LedgerVerb),
    /// Check that runs, or a folder of tapes, still are what was recorded, and that programs still do it
    Check(DriftArgs),
    /// Runs as files that stand alone: for git, for mail, for another machine
    #[command(subcommand)]
    Tape(TapeVerb),
    /// Compare two runs: what requests and answers say, then their bytes; ends with 3 if they differ
    Diff(DiffArgs),
    /// Run a recorded program on from one of its frames, with something changed, into a new run
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
    /// Keep what was decided, as an entry of a memory or as a run's snapshot, for `recall`
    Remember(RememberArgs),
    /// Find what was decided when something like QUESTION was asked, with the evidence as it was recorded
    Recall(RecallArgs),
    /// Keep under a name how a memory is asked, so that several agents ask alike: `recall --memory NAME`
    DefineMemory(DefineMemoryArgs),
    /// Print what is remembered as lines of JSON to train a model by
    ExportTraining(ExportTrainingArgs),
    /// Say what the store holds and what it costs
    Stats,
    /// Drop runs by a policy, and say by which rule: without one, ok runs go after 7 days, what went wrong after 90
    Retain(RetainArgs),
    /// Keep a run whatever the policy says
    Pin(PinArgs),
    /// Take a run's pin away
    Unpin(UnpinArgs),
    /// Drop a run now, and say what still holds its bytes
    Forget(ForgetArgs),
    /// Explain what state the store is in, and what to do about it; changes nothing. With --agent: say what of a program can be captured
    Doctor(DoctorArgs),
    /// Save all that is whole of a damaged store into a new one, and list what was lost
    Repair(RepairArgs),
    /// Copy the store as it is now, also while a process records into it
    Backup(BackupArgs),
    /// Give back the room of what nothing leads to any more: dropped runs, values past their history. The store may be in use
    Compact(CompactArgs),
    /// Check a backup, and make a store of it
    Restore(RestoreArgs),
    /// Record real runs, kill the recorder, reopen, and replay everything bit-exactly
    Demo(DemoArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "With --agent: 0 where it looks fine or nothing can be told, 1 where a problem makes it unlikely that all model calls are captured, or where \
the program would not start."
)]
pub(crate) struct DoctorArgs {
    /// Look at a program instead of a store: which of its model calls a recording is likely to capture, and what to do about the rest. Reads
    /// files only, starts nothing, needs no store
    #[arg(long, requires = "command")]
    pub(crate) agent: bool,
    /// The program and its arguments, as for `record`
    #[arg(last = true, requires = "agent", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The program's exit code is passed on; 125: annals failed before it started, 126 or 127: it could not be started."
)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
    /// Also capture what the program reads of the wall clock and of the system's randomness, for a replay to serve it (Linux; Python and
    /// Node are tested)
    #[arg(long)]
    pub(crate) capture_nondet: bool,
    /// Keep the value of this variable with the run
    #[arg(long, value_name = "NAME")]
    pub(crate) keep_env: Vec<String>,
    /// The program reaches this host by itself, and that is no model call: list it, and do not end with 1 for it. "any" is every host; may be
    /// given again
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) expect_host: Vec<String>,
    /// Leave standard input to the program and record none of it. Without it, a pipe or a file is passed on and recorded; a terminal is
    /// left to the program in any case
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "It prints the variables that point a program at it, and records until it is interrupted (Ctrl-C, or SIGTERM)."
)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "It always listens at SOCKET in the store's directory, for its user alone. Over TCP and HTTP a client needs a token: `annals token add` makes
one, and where there is none, one is made and shown at the start. Each option may also stand in the environment, and, but for --config, in the file:
socket, tcp, http, no_auth, upstream, allow_host, profiles, slow_ms, idle_seconds, retain, sweep_every, log, and [[tokens]] with name, namespace, rights, profile, blake3. An option wins over the environment, that over the file."
)]
pub(crate) struct ServeArgs {
    /// Listen at this Unix socket, too
    #[arg(long, value_name = "PATH", env = "ANNALS_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen for Redis clients at this address of the loopback, too: 127.0.0.1:7420
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_TCP")]
    pub(crate) tcp: Option<String>,
    /// Listen for HTTP at this address of the loopback: 127.0.0.1:7421
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_HTTP")]
    pub(crate) http: Option<String>,
    /// Ask for no token over TCP and HTTP: every user and program of this machine may read and write
    #[arg(long, env = "ANNALS_NO_AUTH", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_auth: bool,
    /// Where the proxy sends requests, in place of a provider's public address; may be given again
    #[arg(long, value_name = "[PROVIDER=]URL", env = "ANNALS_UPSTREAM", value_delimiter = ',')]
    pub(crate) upstream: Vec<String>,
    /// A host that the proxy may call; if there are any, only these. May be given again
    #[arg(long, value_name = "HOST", env = "ANNALS_ALLOW_HOST", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
    /// Profiles of readers, in TOML [default: profiles.toml in the store's directory]
    #[arg(long, value_name = "FILE", env = "ANNALS_PROFILES")]
    pub(crate) profiles: Option<PathBuf>,
    /// Tell of what takes longer than so many milliseconds [default: 100]
    #[arg(long, value_name = "MS", env = "ANNALS_SLOW_MS")]
    pub(crate) slow_ms: Option<u64>,
    /// Hang up on a Redis client that asks nothing for so many seconds [default: 0, never]
    #[arg(long, value_name = "SECONDS", env = "ANNALS_IDLE_SECONDS")]
    pub(crate) idle_seconds: Option<u64>,
    /// Drop runs by this policy, a file in TOML, or the word default for the built-in one
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// How often, as 1h [default: 1h]
    #[arg(long, value_name = "TIME", env = "ANNALS_SWEEP_EVERY")]
    pub(crate) sweep_every: Option<String>,
    /// How it tells on standard error what happens [default: human]
    #[arg(long, value_name = "FORM", env = "ANNALS_LOG")]
    pub(crate) log: Option<LogForm>,
    /// A file in TOML with what is not given here
    #[arg(long, value_name = "FILE", env = "ANNALS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// How a daemon tells what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// Lines for a person
    Human,
    /// An object in JSON a line
    Json,
}

/// Tokens, by which clients log in to a daemon.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make a token for the namespace, and print it this once
    Add(TokenAddArgs),
    /// List tokens, without their texts
    List,
    /// Take a token back: whoever came by it is hung up on
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenAddArgs {
    /// What it is called
    pub(crate) name: String,
    /// What may be done with it: record, read, redacted, operate, with commas between [default: all]
    #[arg(long, value_name = "RIGHTS")]
    pub(crate) rights: Option<String>,
    /// What whoever reads by it is shown: a profile of the daemon's --profiles, or safe; for the right redacted, which it then has by itself
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevokeArgs {
    /// What it is called
    pub(crate) name: String,
}

/// The run that calls are recorded into, and where they go.
#[derive(Debug, Args)]
pub(crate) struct NewRunArgs {
    /// The run's name [default: the program's (without one: attach), with the time]
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Take the value of this variable out of all that is stored: bodies, addresses, headers, output. Only its name is given here; may be
    /// given again
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,
    /// Rules of your own, in TOML: what matters (`[[severity]]`), what models cost (`[[price]]`), and, for replays, what may differ (`[[matcher]]`).
    /// The run keeps them
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// A tag of the run; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) tag: Vec<String>,
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    /// Remember nothing of the run, once it has ended, for `annals recall`
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Drop the run when it has ended, if the sampling of this policy leaves it out: a file in TOML, or the word default. Where a daemon
    /// holds the store, its policy counts
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// Do not fail where no request is recorded
    #[arg(long)]
    pub(crate) allow_empty: bool,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Another variable that the program reads a base address from, with the path that belongs after the address:
    /// MY_LLM_URL=/v1; its upstream is its own value, else that of --upstream. NAME= leaves a variable as it is
    #[arg(long, value_name = "NAME=/PATH")]
    pub(crate) env: Vec<String>,
}

/// What a program may reach while a recording answers its model calls.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// What the program may reach besides annals until it goes on live: nothing, this machine's loopback, or everything
    #[arg(long, value_enum, value_name = "SCOPE", default_value_t)]
    pub(crate) network: ScopeArg,
    /// Refuse connections to this host and do not end with 3 for them, as for telemetry; may be given again
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) refuse_quietly: Vec<String>,
}

/// What may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ScopeArg {
    /// Nothing: the program gets a network of its own that has annals in it and nothing else
    #[default]
    None,
    /// Services on this machine
    Loopback,
    /// Everything
    All,
}

/// How long processes keep their proxy that outlive the program.
#[derive(Debug, Args)]
pub(crate) struct LingerArgs {
    /// How long processes that outlive the program keep their proxy, at most: a number and s, min or h
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) linger: String,
}

/// The standard input of a program that runs again.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// What the program reads as standard input [default: recorded, where the run has it]
    #[arg(long, value_enum)]
    pub(crate) stdin: Option<StdinArg>,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
}

/// What a program that runs again reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StdinArg {
    /// What the recorded program was given
    Recorded,
    /// The standard input of this command
    Live,
}

/// How calls go to upstreams.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// Where model calls go, for all providers or for one [default: where the program's own variables point (of a recorded program: where
    /// its calls went), else the provider's public address]
    #[arg(long, value_name = "[PROVIDER=]URL")]
    pub(crate) upstream: Vec<String>,
    /// Call no other hosts than these. While a recording answers: the program may reach this host by itself; may be given again
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Answers of earlier runs to the same request: take them, note this run's, or both
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cache: CacheArg,
    /// Note this run's answers for so long only, as 7d [default: as long as the run stays]
    #[arg(long, value_name = "TIME")]
    pub(crate) cache_for: Option<String>,
    /// Call the upstream for the request that becomes frame N, whatever the cache has; may be given again
    #[arg(long, value_name = "N")]
    pub(crate) reroll: Vec<u32>,
}

/// What is done with answers of earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum CacheArg {
    /// Nothing
    #[default]
    Off,
    /// A request that was answered before gets that answer
    Read,
    /// Answers are noted for later runs
    Write,
    /// Both
    Both,
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Runs of messages in the OpenAI shape, as a JSON array or JSON Lines
    Chat,
    /// Frames, one JSON object each, as `replay --json` prints them
    Frames,
}

/// Which messages of a chat become frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExpandArg {
    /// Messages of users, of the model and of tools; every message of a transcript of agents
    Turns,
    /// Messages of the model and of tools only
    Calls,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file, or - for standard input; .xz and .zst are read as they are
    pub(crate) file: PathBuf,
    /// What the file holds
    #[arg(long, value_enum)]
    pub(crate) format: Format,
    /// How runs are named, by their top-level keys: '{task_id}-{trial}' [default: their `id`, else by position]
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) id: Option<String>,
    /// The model of runs that name none
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// A top-level key that says how a run ended: true, a number of 1 or more, or a status name
    #[arg(long, value_name = "KEY")]
    pub(crate) status_from: Option<String>,
    /// Which messages of a chat become frames [default: turns]
    #[arg(long, value_enum, value_name = "EXPANSION")]
    pub(crate) expand: Option<ExpandArg>,
    /// End with 0 also if a message is in no frame, or if no frame was imported
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Replace runs that exist
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Only runs of this status: open, ok, failed or abandoned
    #[arg(long, value_name = "STATUS", value_parser = ["open", "ok", "failed", "abandoned"])]
    pub(crate) status: Option<String>,
    /// Only runs of this severity: debug, normal, flagged or escalated
    #[arg(long, value_name = "SEVERITY", value_parser = ["debug", "normal", "flagged", "escalated"])]
    pub(crate) severity: Option<String>,
    /// Only runs that failed or were abandoned
    #[arg(long, conflicts_with = "status")]
    pub(crate) failed: bool,
    /// Only the newest N; 0 for all [default: 50; with --json: 0]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct OpenArgs {
    /// The run
    #[arg(group = "which")]
    pub(crate) run: Option<String>,
    /// The last run that failed or was abandoned
    #[arg(long, group = "which")]
    pub(crate) last_failed: bool,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// Only the frame's input
    #[arg(long, group = "part")]
    pub(crate) input: bool,
    /// Only the frame's output
    #[arg(long, group = "part")]
    pub(crate) output: bool,
    /// Only the metadata
    #[arg(long, group = "part")]
    pub(crate) metadata: bool,
    /// Only what the frame's request adds to the one before, drops from it or changes in it, by message
    #[arg(long, group = "part", conflicts_with = "raw", conflicts_with = "json")]
    pub(crate) new: bool,
    /// Write the exact bytes and nothing else
    #[arg(long, requires = "part", conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

/// Who reads.
#[derive(Debug, Args)]
pub(crate) struct AsArgs {
    /// Show what this profile shows, values of people and secrets replaced: raw (everything), safe, or one of --profiles
    #[arg(long = "as", id = "profile", value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Profiles of your own, in TOML [default: profiles.toml in the store's directory]
    #[arg(long, value_name = "FILE", env = "ANNALS_PROFILES")]
    pub(crate) profiles: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --all, --json and --raw the program runs again where one was recorded, and every model call of it is
answered from the recording: no key, no network. It ends with 3 where anything was not as recorded, else with the program's exit code."
)]
pub(crate) struct ReplayArgs {
    /// The run [default: the last one]
    #[arg(conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Read every run back; no program is started
    #[arg(long)]
    pub(crate) all: bool,
    /// Write the outputs' exact bytes and nothing else; no program is started
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Answers come as fast as they are taken, or as slowly as they were recorded
    #[arg(long, value_enum, default_value_t)]
    pub(crate) timing: TimingArg,
    /// End with 3 where the program's standard output is not what was recorded, or cannot be compared
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Release answers that overlapped in another order, by this seed, to find programs that hang on chance
    #[arg(long, value_name = "SEED")]
    pub(crate) chaos: Option<u64>,
    /// What becomes of a request that the recording has no answer for
    #[arg(long, value_enum, default_value_t)]
    pub(crate) on_divergence: DivergenceArg,
    /// With --on-divergence live: the name of the new run [default: RUN-live]
    #[arg(long, value_name = "NAME")]
    pub(crate) into: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Another program than the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What of a request may differ from the recorded one.
#[derive(Debug, Args)]
pub(crate) struct RuleArgs {
    /// Rules of this file, in TOML, in place of those that the run was recorded with
    #[arg(long = "rules", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// What of a request may differ: 'ignore PATH', 'mask SHAPE PATH' (a uuid, a time, ... in a text) or 'query KEY'; may be given again
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Vec<String>,
    /// Leave out the value at this place of requests, as --rule 'ignore PATH' does
    #[arg(long, value_name = "JSONPATH")]
    pub(crate) ignore: Vec<String>,
    /// A set of rules: none, gemini, bedrock or redacting
    #[arg(long, value_name = "PRESET")]
    pub(crate) matcher: Vec<String>,
}

/// What becomes of a request that is not in the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum DivergenceArg {
    /// It is answered with an error, 502, that says what differs
    #[default]
    Refuse,
    /// It and all that follow go to their upstreams, recorded into a new run that replays by itself
    Live,
}

/// When the parts of a replayed answer come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TimingArg {
    /// As fast as they are taken
    #[default]
    None,
    /// As long after the request as when they were recorded
    Recorded,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(false))]
pub(crate) struct VerifyArgs {
    /// The run
    #[arg(group = "what")]
    pub(crate) run: Option<String>,
    /// Every run, and the log under them; so too where nothing is named
    #[arg(long, group = "what")]
    pub(crate) all: bool,
    /// So many runs, chosen evenly
    #[arg(long, group = "what", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// Also compare the history with a checkpoint that was kept elsewhere; - reads it from standard input
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) against: Option<PathBuf>,
    /// The public key (PEM) that must have signed the checkpoint
    #[arg(long, value_name = "PUBLIC.pem", requires = "against")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "An argument that is a folder stands for the *.tape in it; one that ends in .tape is a tape; any other is a run. Without one, a
sample of the store's runs is checked. It ends with 3 where anything drifted or is damaged, with 1 where something could not be checked."
)]
pub(crate) struct DriftArgs {
    /// Runs, tapes, or folders of tapes [default: a sample of the store's runs]
    #[arg(value_name = "RUN|TAPE|DIR", conflicts_with_all = ["sample", "seed"])]
    pub(crate) targets: Vec<String>,
    /// So many runs, chosen by a seed [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// The seed of the sample [default: a new one, which is printed]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Also run each recorded program again, its model calls answered from the recording
    #[arg(long)]
    pub(crate) programs: bool,
    /// With programs: one whose standard output is not what was recorded has drifted
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Programs may reach this host by themselves; may be given again
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Run this program in place of each recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What to do with tapes.
#[derive(Debug, Subcommand)]
pub(crate) enum TapeVerb {
    /// Write a run as a tape: one file, the same run always to the same bytes
    Export(TapeExportArgs),
    /// Record the runs of tapes, each checked whole before anything is recorded
    Import(TapeImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TapeExportArgs {
    /// The run
    pub(crate) run: String,
    /// Where the tape goes; replaces a file that is there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TapeImportArgs {
    /// Also take tapes that were redacted when they were exported: their runs stay marked, and are not what was recorded
    #[arg(long)]
    pub(crate) redacted: bool,
    /// The tapes, of annals or of tracefork; - is standard input
    #[arg(required = true)]
    pub(crate) tapes: Vec<PathBuf>,
    /// The name of the run [default: the tape's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Replace runs that exist
    #[arg(long)]
    pub(crate) replace: bool,
}

/// What to do with the ledger.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerVerb {
    /// Print the ledger's head, to be kept elsewhere
    Checkpoint(CheckpointArgs),
    /// Prove that a run or a frame is in the ledger
    Prove(ProveArgs),
    /// Check a proof; needs no store
    Check(CheckArgs),
    /// List what the log says is not there
    Gaps,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Sign it with this private key: Ed25519 in PEM, as `openssl genpkey -algorithm ed25519` writes it
    #[arg(long, value_name = "KEY.pem")]
    pub(crate) sign: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// Where the proof goes; replaces a file that is there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Sign its checkpoint with this private key
    #[arg(long, value_name = "KEY.pem")]
    pub(crate) sign: Option<PathBuf>,
    /// Also show that the ledger has only grown since this checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) since: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The proof; - reads it from standard input
    pub(crate) proof: PathBuf,
    /// A checkpoint that was kept: the proof must agree with it
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// The public key (PEM) that must have signed the proof's checkpoint
    #[arg(long, value_name = "PUBLIC.pem")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Where RUN is of a recorded program, the program runs: its calls up to the fork's point are answered from RUN, later ones
go to the upstreams and are recorded into the new run. Else, and with --no-run, the new run just shares the frames.
It ends with 3 where the program did not ask as recorded up to there, else with the program's exit code."
)]
pub(crate) struct ForkArgs {
    /// RUN@SEQ: frames 1 to SEQ are shared; 1 to SEQ-1 where one of the options below changes what comes at SEQ
    pub(crate) from: String,
    /// The name of the new run [default: RUN-fork-SEQ]
    pub(crate) name: Option<String>,
    /// Answer the request of frame SEQ with this file
    #[arg(long, value_name = "FILE")]
    pub(crate) response: Option<PathBuf>,
    /// Ask another model from frame SEQ on
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Set a value in the request of frame SEQ only: $.temperature=0. A value that is not JSON is a text. May be given again
    #[arg(long, value_name = "JSONPATH=VALUE", conflicts_with_all = ["response", "edit"])]
    pub(crate) set: Vec<String>,
    /// Set a value in every request from frame SEQ on, as --set does in one. May be given again
    #[arg(long, value_name = "JSONPATH=VALUE")]
    pub(crate) set_all: Vec<String>,
    /// Answer the request of frame SEQ with what $VISUAL or $EDITOR makes of its answer
    #[arg(long, conflicts_with = "response")]
    pub(crate) edit: bool,
    /// Put this file in place of what a tool answered, from frame SEQ on. Without an ID it is the one result that frame
    /// SEQ is the first to carry; may be given again
    #[arg(long, value_name = "[ID=]FILE")]
    pub(crate) tool_result: Vec<String>,
    /// Rules of this file, in TOML, in place of those that RUN was recorded with; the new run keeps them
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Start no program
    #[arg(long, conflicts_with_all = ["response", "edit", "tool_result", "model", "set", "set_all", "rules", "command"])]
    pub(crate) no_run: bool,
    /// Another program than the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The run [default: the last one]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The first run
    pub(crate) a: String,
    /// The second run
    pub(crate) b: String,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// RUN for its last state, or RUN@SEQ for the state after that frame
    pub(crate) target: String,
    /// Write the exact bytes and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: AsArgs,
}

/// Options of the verbs on keys.
#[derive(Debug, Args)]
pub(crate) struct Keyspace {
    /// The keyspace
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: Keyspace,
    /// The value as it was at this sequence number
    #[arg(long, value_name = "SEQNO")]
    pub(crate) at: Option<u64>,
    /// Every version that is kept
    #[arg(long, conflicts_with_all = ["at", "raw"])]
    pub(crate) history: bool,
    /// Write the exact bytes and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    pub(crate) key: OsString,
    /// The value, or - for standard input
    pub(crate) value: OsString,
    #[command(flatten)]
    pub(crate) keyspace: Keyspace,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: Keyspace,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Only keys that begin so
    pub(crate) prefix: Option<OsString>,
    #[command(flatten)]
    pub(crate) keyspace: Keyspace,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

/// Whose memory it is. What is not given is one of its own.
#[derive(Debug, Args)]
pub(crate) struct WhoseArgs {
    /// The customer, who never sees another's
    #[arg(long, value_name = "T")]
    pub(crate) tenant: Option<String>,
    /// The person or program within it
    #[arg(long, value_name = "P")]
    pub(crate) principal: Option<String>,
    /// The conversation
    #[arg(long, value_name = "C")]
    pub(crate) conversation: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "What has no vector gets one of its query, by the embedder that ANNALS_EMBEDDINGS_URL names or the one that is built in. Where a daemon or a recorder holds the store, it keeps it. docs/memory.md has the forms."
)]
pub(crate) struct RememberArgs {
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    /// JSON: an entry, with an id and a value, or a run's snapshot alone, with its query; - reads it from standard input
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing found is no failure: nothing is printed, and it ends with 0. docs/memory.md has the forms."
)]
pub(crate) struct RecallArgs {
    /// What is asked; - reads it from standard input
    pub(crate) question: String,
    /// Ask as the definition of this id has it; what else is said here counts before it
    #[arg(long, value_name = "ID")]
    pub(crate) memory: Option<String>,
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    /// Also look at the tenant's other principals and conversations
    #[arg(long)]
    pub(crate) across_conversations: bool,
    /// At most this many, the nearest first [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) top_k: Option<u16>,
    /// The least score that counts, from -1 to 1; equal passes [default: the embedder's own]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = score)]
    pub(crate) threshold: Option<f32>,
    /// What of it is told [default: decisions]
    #[arg(long, value_enum)]
    pub(crate) projection: Option<ProjectionArg>,
    /// Tell the largest form that has so many tokens (of four UTF-16 units) at most; with --json of each by itself
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = tokens)]
    pub(crate) budget: Option<usize>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A definition is as agentfootprint's defineMemory has it: {\"id\": ..., \"description\": ..., \"type\": \"causal\", \"strategy\": {\"kind\": \"top-k\", \"topK\": 1, \
\"threshold\": 0.5, \"embedder\": ...}, \"projection\": \"decisions\", \"acrossConversations\": true}. Only the id has to be there. docs/memory.md says more."
)]
pub(crate) struct DefineMemoryArgs {
    /// The definition, in JSON; - reads it from standard input
    pub(crate) file: PathBuf,
}

/// What of a snapshot is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectionArg {
    /// What was decided, by which rule and on what evidence; what tools gave; the answer
    Decisions,
    /// What each stage chose
    Commits,
    /// The run as it was told
    Narrative,
    /// All of it, as JSON
    Full,
}

#[derive(Debug, Args)]
#[command(
    after_help = "How a run went say, in this order, what was said of its use (MEM.FEEDBACK), its evalScore, and its status. docs/memory.md has the forms."
)]
pub(crate) struct ExportTrainingArgs {
    /// What each line is for
    #[arg(long, value_enum)]
    pub(crate) format: TrainingArg,
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    /// Also take the tenant's other principals and conversations
    #[arg(long)]
    pub(crate) across_conversations: bool,
}

/// A form of lines to train by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingArg {
    /// What was asked and answered, of all that did not go ill
    Sft,
    /// Of one question the answer that went best and one that went worse
    Dpo,
    /// Each decision with its evidence, and how it all went
    ProcessRl,
}

/// A count of tokens, as an option gives it.
fn tokens(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "a budget is a whole number of tokens".to_owned())
}

/// A score, as an option gives it.
fn score(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| (-1.0..=1.0).contains(number));
    number.ok_or_else(|| "a score is a number from -1 to 1".to_owned())
}

#[derive(Debug, Args)]
#[command(
    after_help = "It covers every namespace. Runs that are open or pinned never go, and what a fork shares stays for the fork. Without --at it refuses a clock \
that stands before the newest record or more than 400 days after it. docs/retention.md has the policies."
)]
pub(crate) struct RetainArgs {
    /// The policy, a file in TOML; without one the built-in one
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Only say what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The time to go by, as 2026-01-31T12:00:00Z, or +8d for eight days from now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The run
    pub(crate) run: String,
    /// Why it is kept
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}

#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// The run
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The run, by its whole name
    pub(crate) run: String,
    /// Why it goes; the ledger keeps this, so nothing of the run belongs in it
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// The directory of the new store: empty, or not there yet
    #[arg(long, value_name = "NEWDIR")]
    pub(crate) to: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The directory of the copy: empty, or not there yet
    pub(crate) dest: PathBuf,
    /// Copy every byte, also where another name for the same bytes would do
    #[arg(long)]
    pub(crate) copy: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Where a daemon serves the store, it compacts it. It needs room for what it writes anew before it frees any, and says how much beforehand. A \
segment is written anew once a tenth of it is dead."
)]
pub(crate) struct CompactArgs {
    /// Only say what it would do
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Pack anew, smaller and slower, also what lives whole; once done, it is left alone
    #[arg(long)]
    pub(crate) recompress: bool,
    /// Write no more than so many bytes a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_bytes_per_second: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup
    pub(crate) backup: PathBuf,
    /// The directory of the store: empty, or not there yet
    pub(crate) dest: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the store in this new directory
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Record into this store until killed: the demonstration's own child process
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) record_into: Option<PathBuf>,
}
