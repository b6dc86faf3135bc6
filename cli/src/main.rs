//! The `annals` command line: arguments, progress, tables. What it does is done by the engine.
//!
//! Layout: `args` (the command line), `groups` (its help), `screen` (tables that fit), `verbs` (a file for each), `door` (the one way into the engine), `out`
//! (everything printed), `failure` (errors and exit codes), `locate` (which store), `address` (`RUN@SEQ`),
//! `input` and `progress` (reading what is imported), `whole_file` and `junit` (files for the user), `tracefork` (its tapes),
//! `allocator` (whose memory is whose).

mod address;
mod allocator;
mod args;
mod door;
mod editor;
mod failure;
mod groups;
mod input;
mod junit;
mod locate;
mod out;
mod profiles;
mod progress;
mod rules;
mod screen;
mod supervision;
mod tracefork;
mod verbs;
mod watched;
mod whole_file;

use std::process::ExitCode;

use clap::FromArgMatches;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let parsed = groups::command().try_get_matches();
    let cli = match parsed.and_then(|matches| args::Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(refused) => return failure::refused(&refused),
    };
    match verbs::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
