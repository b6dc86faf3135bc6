//! The `annals` command line: arguments, progress, tables. The engine and the server do the work.
//!
//! Layout: `args` (the command line), `help_groups` (its help), `table_fit` (tables that fit the terminal),
//! `verbs` (one file for each verb or a few), `store_access` (the only access to the engine), `output`
//! (standard output), `failure` (errors and exit codes), `locate` (the store's directory), `address`
//! (`RUN@SEQ`), `input` and `progress` (imported files), `atomic_file` and `junit` (files for the user),
//! `tracefork` (tapes of tracefork), `allocator` (memory).

mod address;
mod allocator;
mod args;
mod atomic_file;
mod editor;
mod failure;
mod help_groups;
mod input;
mod junit;
mod locate;
mod output;
mod profiles;
mod progress;
mod rules;
mod store_access;
mod supervision;
mod table_fit;
mod tracefork;
mod verbs;
mod watched_embedder;

use std::process::ExitCode;

use clap::FromArgMatches;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let parsed = help_groups::command().try_get_matches();
    let cli = match parsed.and_then(|matches| args::Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(refused) => return failure::print_usage_error(&refused),
    };
    match verbs::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(),
    }
}
