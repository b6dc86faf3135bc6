//! Verbs that bring runs in and out: `import` and `tape`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::shared::{IdentityArgs, ProfileArgs};

/// Format of an imported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// Runs of messages in OpenAI's format, as a JSON array or JSON Lines
    Chat,
    /// Frames, one JSON object each, as `replay --json` prints them
    Frames,
    /// Traces of OpenTelemetry: OTLP as JSON, JSON Lines or protobuf. Structure only: such runs replay no program
    Otlp,
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
    /// Also store each question of a run, with its answer, in the agents' memory for `recall`
    #[arg(long)]
    pub(crate) remember: bool,
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
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
    /// File for the tape, readable by you alone; an existing file is replaced. - is standard output [default:
    /// standard output, unless it is a terminal]
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
