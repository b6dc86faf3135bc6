//! Verbs that check the history: `verify` and `ledger`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
    /// Also compare the history with this checkpoint file, or with all of this store in a folder; - is
    /// standard input
    #[arg(long, value_name = "CHECKPOINT|DIR")]
    pub(crate) against: Option<PathBuf>,
    /// Public key (PEM) that must have signed the checkpoint
    #[arg(long, value_name = "PUBLIC.pem", requires = "against")]
    pub(crate) key: Option<PathBuf>,
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
    /// Add the checkpoint as a new file to this folder; existing files are never changed [default: print it]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// File for the proof, readable by you alone; an existing file is replaced [default: standard output]
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
    /// Accept a proof that only agrees with itself; anybody can make one [default: exit with 1 without --key or
    /// --checkpoint]
    #[arg(long, conflicts_with_all = ["key", "checkpoint"])]
    pub(crate) structure_only: bool,
}
