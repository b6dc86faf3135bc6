//! Verbs of the memory: `remember`, `recall`, `define-memory` and `export-training`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{IdentityArgs, ProfileArgs};

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
    /// At most this number of tokens (4 UTF-16 units each): print the projection of --projection or --memory (else the
    /// full one) if it has no more, else the largest of the others; with --json the limit is per hit
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = tokens)]
    pub(crate) budget: Option<usize>,
    /// Session that asks: log the candidates, and what it is given, for `annals diagnose`. Opens the store for
    /// writing
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
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
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
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
