//! The command line: every verb and option. Each module holds the options of one group of verbs; `shared`
//! holds the options that several verbs flatten.

mod blame;
mod deliberation;
mod diagnostics;
mod exchange;
mod kv;
mod ledger;
mod memory;
mod read;
mod record;
mod replay;
mod retain;
mod serve;
mod shared;
mod upkeep;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

pub(crate) use blame::{BlameArgs, ScriptedAgentArgs, ValidateArgs};
pub(crate) use deliberation::{DecideArgs, DecisionArgs, DecisionsArgs, SpikeFormatArg};
pub(crate) use diagnostics::{DiagnoseArgs, LessonsArgs};
pub(crate) use exchange::{ExpandArg, ImportArgs, ImportFormat, TapeExportArgs, TapeImportArgs, TapeVerb};
pub(crate) use kv::{DelArgs, GetArgs, PutArgs, ScanArgs};
pub(crate) use ledger::{CheckpointArgs, LedgerCheckArgs, LedgerVerb, ProveArgs, VerifyArgs};
pub(crate) use memory::{
    DefineMemoryArgs, ExportTrainingArgs, ProjectionArg, RecallArgs, RememberArgs, TrainingArg,
};
pub(crate) use read::{
    DiffArgs, OpenArgs, ReportArgs, RunsArgs, SearchArgs, ShowArgs, StateArgs, SuspectArgs, TailArgs, TuiArgs,
};
pub(crate) use record::{AttachArgs, NewRunArgs, RecordArgs};
pub(crate) use replay::{DivergenceArg, DriftArgs, ForkArgs, ReplayArgs, TimingArg};
pub(crate) use retain::{FlagArgs, ForgetArgs, PinArgs, RetainArgs, UnflagArgs, UnpinArgs};
pub(crate) use serve::{LogFormatArg, McpArgs, ServeArgs, TokenAddArgs, TokenRotateArgs, TokenVerb};
pub(crate) use shared::{
    CacheArg, IdentityArgs, InputArgs, LingerArgs, LiveArgs, NetworkArgs, NetworkScopeArg, ProfileArgs,
    RuleArgs, StdinArg,
};
pub(crate) use upkeep::{BackupArgs, CompactArgs, DemoArgs, DoctorArgs, RepairArgs, RestoreArgs};

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
    /// Refuse to write to a store of an older format instead of upgrading it
    #[arg(long, global = true, action = ArgAction::SetTrue)]
    pub(crate) no_upgrade: bool,
    /// Wait at most this many seconds while another process holds the store
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) wait: u32,
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
    /// Give an agent tools for runs and memory: an MCP server on standard input and output
    Mcp(McpArgs),
    /// Create a store
    Init,
    /// Import runs from a file of transcripts or frames
    Import(ImportArgs),
    /// List runs, newest first, with duration, tokens, cost and model
    #[command(visible_alias = "ls")]
    Runs(RunsArgs),
    /// Find frames by what was said in them, or runs by what they were asked
    Search(SearchArgs),
    /// Show a run, or one of its frames
    Show(ShowArgs),
    /// Follow a run while it is recorded, frame by frame, until it ends
    Tail(TailArgs),
    /// Show where a run failed: the frame, the new part of its request, the answer, the program's exit. With
    /// --web: open the debugger page in a browser
    Open(OpenArgs),
    /// Write a run, or two side by side, as one HTML file that opens without a network
    Report(ReportArgs),
    /// Browse runs and read their frames in the terminal: timeline, conversation, differences, live
    Tui(TuiArgs),
    /// Rank the steps of a failed run by how likely they caused the failure, from the record alone: a
    /// heuristic that says where to read first
    Suspect(SuspectArgs),
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
    /// Find the step that caused a run's failure, by forks of its program with one step perturbed
    Blame(BlameArgs),
    /// Check `blame` itself on planted faults, offline: a scripted agent and a scripted model
    Validate(ValidateArgs),
    /// The scripted agent of `validate`
    #[command(hide = true)]
    ScriptedAgent(ScriptedAgentArgs),
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
    /// Record a decision, with how it was reached
    Decide(DecideArgs),
    /// List or search recorded decisions, or print statistics of them
    Decisions(DecisionsArgs),
    /// Show a decision with its deliberation, or review its outcome
    Decision(DecisionArgs),
    /// Record how a session of an agent ended: its failure category, and the weights of what it was given
    Diagnose(DiagnoseArgs),
    /// Show what sessions taught: misleading observations, failures by category, changes of weights
    Lessons(LessonsArgs),
    /// Show what the store holds and its size on disk
    Stats,
    /// Drop runs by a policy, and report the rules [default policy: 90 days for failed, abandoned, flagged
    /// and escalated runs, 7 days for others]
    Retain(RetainArgs),
    /// Pin a run, so that no policy drops it
    Pin(PinArgs),
    /// Remove the pin of a run
    Unpin(UnpinArgs),
    /// Flag or escalate a run, also after its end
    Flag(FlagArgs),
    /// Remove the flag of a run
    Unflag(UnflagArgs),
    /// Drop a run, a key or a stored blob now, and list what still holds its bytes
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
